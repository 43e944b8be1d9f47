// What a prepared op holds, the list of all kernels, and the table of loops that each ISA's file fills.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_OP_H
#define PP_RUNTIME_KERNELS_OP_H

#include "runtime/Kernels.h"

namespace pp {

class Formula;
class Gemm;
class SdpaPlan;
struct Launches;

enum OpFlag : uint32_t {
  Transposed = 1,
  Accumulate = 2,
  WithBias = 4,
  Pair = 8,
  Inverse = 16,
  Causal = 32,
  Exact = 64,
  Decay = 128,
  Sums = 256,
  AccumulateKv = 512,
  Counted = 1024,
  Nesterov = 2048,
  Documents = 4096,
  PlusOne = 8192,
  Tanh = 16384,
  Dropped = 32768,
  Renormalise = 65536,
  Sigmoid = 131072,
  Zigzag = 262144,
  Remade = 524288, ///< of a delta: who reads it can make it again
  Packed = 1048576,
};

/// X(name, number of dims, number of params, flags allowed); names and order of dims as in runtime/Pp.h. The dims of
/// attention and attention_bwd are followed by a length and a position for each chunk of keys, those of adamw_all and
/// sum_squares_all by a size and 1 (decay) or 0 for each tensor, those of formula by a stride for each tensor.
/// embedding_dw may have a param, the token whose row takes no gradient; rope may have a factor and up to d/2
/// frequencies in place of theta; attention and attention_bwd may have up to three: window, scale, softcap, and with
/// the flag "dropout" have three or four more; cross_entropy, its stats and dz may end with a softcap, those with
/// targets with how far on these are behind it, and then a z-loss; adamw, adamw_all, sgd and muon with what the group
/// of the weights multiplies the rate by, and the weight decay; route with the number of groups of experts, and of
/// those chosen.
/// With the flag "packed" q, k and v of an attention are one tensor, the columns of q first, and so are dq, dk, dv; a
/// rope turns the first heads of each row, and how many pass behind them is one dim more, behind all others; p and q of
/// a swiglu or glu are one tensor, as are dp and dq, and the columns of p in a row are one dim more.
/// With the flag "zigzag" rows are two runs of each sequence, one behind the other: the position of the second run's
/// first row is one dim more, behind all others.
#define PP_FOR_EACH_KERNEL(X)                                                                                          \
  X(linear, 3, 0, Transposed | WithBias)                                                                               \
  X(linear_dx, 3, 0, Transposed | Accumulate)                                                                          \
  X(linear_dw, 3, 0, Transposed | Accumulate)                                                                          \
  X(linear_gelu, 3, 0, Transposed | WithBias)                                                                          \
  X(linear_add, 3, 0, Transposed | WithBias)                                                                           \
  X(linear_dx_gelu, 3, 0, Transposed)                                                                                  \
  X(linear_dw_bias, 3, 0, Transposed | Accumulate)                                                                     \
  X(bias_dw, 2, 0, Accumulate)                                                                                         \
  X(embedding, 5, 0, 0)                                                                                                \
  X(embedding_dw, 5, 0, Accumulate)                                                                                    \
  X(positions, 5, 0, Zigzag)                                                                                           \
  X(positions_dw, 5, 0, Accumulate | Zigzag)                                                                           \
  X(layernorm, 2, 1, 0)                                                                                                \
  X(layernorm_rebuild, 2, 0, 0)                                                                                        \
  X(layernorm_bwd, 2, 0, Accumulate)                                                                                   \
  X(rmsnorm, 2, 1, PlusOne)                                                                                            \
  X(rmsnorm_rebuild, 2, 0, PlusOne)                                                                                    \
  X(rmsnorm_bwd, 2, 0, Accumulate | PlusOne)                                                                           \
  X(rope, 5, 1, Pair | Inverse | Documents | Zigzag | Packed)                                                          \
  X(attention, 6, 0, Causal | Documents | Dropped | Zigzag | Packed)                                                   \
  X(attention_merge, 5, 0, 0)                                                                                          \
  X(attention_delta, 4, 0, Remade)                                                                                     \
  X(sink, 4, 0, 0)                                                                                                     \
  X(sink_bwd, 3, 0, 0)                                                                                                 \
  X(attention_bwd, 6, 0, Causal | Documents | Dropped | Accumulate | Sums | AccumulateKv | Zigzag | Packed)            \
  X(gelu, 1, 0, Exact)                                                                                                 \
  X(gelu_bwd, 1, 0, Exact)                                                                                             \
  X(swiglu, 1, 0, Packed)                                                                                              \
  X(swiglu_bwd, 1, 0, Packed)                                                                                          \
  X(glu, 1, 3, Exact | Tanh | Packed)                                                                                  \
  X(glu_bwd, 1, 3, Exact | Tanh | Packed)                                                                              \
  X(router, 3, 0, 0)                                                                                                   \
  X(router_dx, 3, 0, Accumulate)                                                                                       \
  X(router_dw, 3, 0, Accumulate)                                                                                       \
  X(route, 6, 4, Renormalise | Sigmoid)                                                                                \
  X(choice_counts, 4, 0, 0)                                                                                            \
  X(route_bwd, 4, 3, Renormalise | Sigmoid)                                                                            \
  X(expert_load, 2, 0, Accumulate)                                                                                     \
  X(dispatch, 3, 0, 0)                                                                                                 \
  X(combine, 3, 0, Accumulate)                                                                                         \
  X(expert_linear, 5, 0, 0)                                                                                            \
  X(expert_linear_dx, 5, 0, Accumulate)                                                                                \
  X(expert_linear_dw, 5, 0, Accumulate)                                                                                \
  X(place_weights, 3, 0, 0)                                                                                            \
  X(take_weights, 3, 0, 0)                                                                                             \
  X(scale_rows, 3, 0, 0)                                                                                               \
  X(scale_rows_bwd, 3, 0, 0)                                                                                           \
  X(formula, 4, 0, 0)                                                                                                  \
  X(add, 1, 0, 0)                                                                                                      \
  X(add_bias, 2, 0, 0)                                                                                                 \
  X(scale, 1, 1, 0)                                                                                                    \
  X(dropout, 5, 1, Zigzag)                                                                                             \
  X(cross_entropy, 2, 1, Counted)                                                                                      \
  X(cross_entropy_stats, 4, 0, 0)                                                                                      \
  X(cross_entropy_merge, 2, 0, 0)                                                                                      \
  X(cross_entropy_loss, 1, 1, Counted)                                                                                 \
  X(cross_entropy_dz, 4, 1, Counted)                                                                                   \
  X(slice_columns, 4, 0, 0)                                                                                            \
  X(place_columns, 4, 0, 0)                                                                                            \
  X(repeat_heads, 3, 0, 0)                                                                                             \
  X(sum_heads, 3, 0, 0)                                                                                                \
  X(copy, 1, 0, 0)                                                                                                     \
  X(zero, 1, 0, 0)                                                                                                     \
  X(accumulate, 1, 0, 0)                                                                                               \
  X(round, 1, 0, 0)                                                                                                    \
  X(sum_squares, 1, 0, Accumulate)                                                                                     \
  X(sum_squares_all, 0, 0, Accumulate)                                                                                 \
  X(adamw, 1, 0, Decay)                                                                                                \
  X(adamw_all, 0, 0, 0)                                                                                                \
  X(sgd, 1, 0, Decay | Nesterov)                                                                                       \
  X(steer, 1, 1, 0)                                                                                                    \
  X(muon_momentum, 1, 0, 0)                                                                                            \
  X(unit_norm, 1, 0, 0)                                                                                                \
  X(newton_schulz, 1, 0, 0)                                                                                            \
  X(muon, 1, 1, Decay)

/// Enumerators are spelt as the C ABI spells the functions: one name, derived mechanically.
enum class Kernel : uint8_t {
#define PP_ENUMERATOR(name, dims, params, flags) name,
  PP_FOR_EACH_KERNEL(PP_ENUMERATOR)
#undef PP_ENUMERATOR
};
#define PP_ONE(name, dims, params, flags) +1
inline constexpr int kernelCount = 0 PP_FOR_EACH_KERNEL(PP_ONE);
#undef PP_ONE

/// Runs one op; `arguments` are the C ABI's pointers in their order (updates, attention, attention_bwd, dropout and the
/// gradients of cross-entropy: then the rank's OptimizerScalars).
using Body = pp_status_t (*)(const PreparedOp &op, void *const *arguments);

/// Keys that lie together, and where the first of them stands in the sequence.
struct Chunk {
  int64_t length, position;
};

struct PreparedOp {
  Kernel kernel;
  Type type;
  uint32_t flags = 0;
  int64_t dims[6] = {};
  double params[7] = {};                      ///< of embedding_dw the token whose row takes no gradient, or -1
  const std::vector<double> *turns = nullptr; ///< rope: all of its params
  Body body = nullptr;
  Gemm *gemm = nullptr;            ///< linear, linear_dx, linear_dw but of f64; a pair that one kernel serves
  const PreparedOp *parts[2] = {}; ///< of a pair, the plain ops that it stands for (runtime/kernels/Specs.h)
  SdpaPlan *sdpa = nullptr;        ///< attention, attention_bwd where a library serves (runtime/cuda/Sdpa.h)
  int64_t pairs = 0;               ///< rope: how many of each head turn
  int64_t passing = 0;             ///< rope: heads of each row behind those that turn
  int64_t gate = 0;                ///< swiglu, glu and their backwards: columns of p in a row of p and q; 0: apart
  int64_t second = 0;              ///< where the second of two runs begins in the sequence
  const void *cosines = nullptr;   ///< rope: [positions][pairs] in acc
  const void *sines = nullptr;
  const Formula *formula = nullptr;
  const Chunk *chunks = nullptr; ///< attention, attention_bwd; the tensors of adamw_all, sum_squares_all and formula
  int64_t chunkCount = 0;
  char *scratch = nullptr; ///< 64-byte aligned; shared by all ops of the rank
  int32_t number = 0;
  const std::vector<int64_t> *moved = nullptr; ///< OpSpec::moved; null: no pointer moves
  const Launches *launches = nullptr; ///< what ops of the device `cuda` share (runtime/simt/Launch.h); null on the CPU

  bool has(OpFlag flag) const { return flags & flag; }
  /// The position of row t in a sequence of `rows` whose first row has position `first`.
  int64_t positionOf(int64_t t, int64_t rows, int64_t first) const {
    return has(Zigzag) && t >= rows / 2 ? second + t - rows / 2 : first + t;
  }
  /// Elements from a row of an attention's q to the next row, and the same for k and v.
  int64_t queryStride() const { return (has(Packed) ? dims[2] + 2 * dims[3] : dims[2]) * dims[4]; }
  int64_t keyStride() const { return has(Packed) ? queryStride() : dims[3] * dims[4]; }
  /// The factors of the rate and of the weight decay for the group of an update's weight.
  double groupRate() const { return params[kernel == Kernel::muon]; }
  double groupShrink() const { return params[kernel == Kernel::muon ? 2 : 1]; }
  /// The factor of the rank's weight decay: 0 for a weight without decay.
  double shrink() const { return has(Decay) ? groupShrink() : 0; }
  /// The number of places that the targets of a counting loss are ahead.
  int ahead() const { return int(params[2]); }
  /// The factor of the squares of lse; 0: there is no z-loss.
  double zLoss() const { return params[3]; }
  /// The cap of the logits of a loss; 0: none.
  double logitCap() const { return params[kernel == Kernel::cross_entropy_stats ? 0 : 1]; }
};

/// The loops of one ISA. One file with its own compiler flags makes each table. All functions of the file have internal
/// linkage, so that the linker cannot take code of one ISA for another.
struct IsaTable {
  const char *name;
  bool multipliesBf16;                 ///< products of bf16 are Bf16Gemm.cpp's where oneDNN has no AMX
  Body bodies[kernelCount][typeCount]; ///< by kernel and Type; null where Gemm.cpp serves
  /// Bytes that the op needs in the rank's scratch.
  int64_t (*scratch)(const PreparedOp &op);
  /// Widens 16 bits to f32, by Type.
  void (*widen[typeCount])(const void *half, float *f32, int64_t n);
  /// Rounds to 16 bits once; adds what the destination holds before rounding when `accumulate`.
  void (*narrow[typeCount])(const float *f32, void *half, int64_t n, bool accumulate);
};

const IsaTable &plainTable();
#ifdef PP_X86_64
const IsaTable &avx2Table();
const IsaTable &avx512Table();
/// The loops of avx512; products and attention multiply bf16 itself.
const IsaTable &avx512Bf16Table();
pp_status_t bf16Attention(const PreparedOp &op, void *const *arguments);
pp_status_t bf16AttentionBackward(const PreparedOp &op, void *const *arguments);
int64_t bf16AttentionBytes(const PreparedOp &op);
#endif
/// The best table that this CPU runs.
const IsaTable &isaTable();

} // namespace pp

#endif // PP_RUNTIME_KERNELS_OP_H
