// What a prepared op holds, the numbers of all kernels, and the table of loops that each ISA's file fills.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_OP_H
#define PP_RUNTIME_KERNELS_OP_H

#include "runtime/Kernels.h"

namespace pp {

class Formula;
class Gemm;
class SdpaPlan;
struct Launches;

enum class FlagNumber : uint8_t {
#define PP_FLAG(flag, name) flag,
#include "runtime/kernels/Kernels.def"
};
enum OpFlag : uint32_t {
#define PP_FLAG(flag, name) flag = 1u << int(FlagNumber::flag),
#include "runtime/kernels/Kernels.def"
};

/// Enumerators are spelt as the C ABI spells the functions: one name, derived mechanically.
enum class Kernel : uint8_t {
#define PP_KERNEL(name, ...) name,
#include "runtime/kernels/Kernels.def"
};
inline constexpr int kernelCount = 0
#define PP_KERNEL(...) +1
#include "runtime/kernels/Kernels.def"
    ;

/// Runs one op; `arguments` as its record has them, and behind those of a loss the weights of its targets.
using Body = pp_status_t (*)(const PreparedOp &op, void *const *arguments);

inline constexpr int64_t mostPicks = 1024; ///< columns of a row of logits that token_stats picks

/// Keys that lie together, and where the first of them stands in the sequence.
struct Chunk {
  int64_t length, position;
};

struct PreparedOp {
  Kernel kernel;
  Type type;
  uint32_t flags = 0;
  int64_t dims[6] = {};
  double params[10] = {};                     ///< of embedding_dw the token whose row takes no gradient, or -1
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
  int threads = 1;         ///< that share the tasks of a scan, each with scratch of its own
  int32_t number = 0;
  const std::vector<int64_t> *moved = nullptr; ///< OpSpec::moved; null: no pointer moves
  const Launches *launches = nullptr; ///< what ops of the device `cuda` share (runtime/simt/Launch.h); null on the CPU

  bool has(OpFlag flag) const { return flags & flag; }
  /// The position of row t in a sequence of `rows` whose first row has position `first`.
  int64_t positionOf(int64_t t, int64_t rows, int64_t first) const {
    return has(Zigzag) && t >= rows / 2 ? second + t - rows / 2 : first + t;
  }
  /// The row of a sequence at this position, among those that are here; -1: it is none of them. The other way round.
  int64_t rowAt(int64_t position, int64_t rows, int64_t first) const {
    const int64_t run = has(Zigzag) ? rows / 2 : rows;
    return position >= first && position < first + run                           ? position - first
           : has(Zigzag) && position >= second && position < second + rows - run ? position - second + run
                                                                                 : -1;
  }
  /// Elements from a row of an attention's q to the next row, and the same for k and v.
  int64_t queryStride() const { return (has(Packed) ? dims[2] + 2 * dims[3] : dims[2]) * dims[4]; }
  int64_t keyStride() const { return has(Packed) ? queryStride() : dims[3] * dims[4]; }
  /// The factors of the rate and of the weight decay for the group of an update's weight.
  double groupRate() const { return params[kernel == Kernel::muon]; }
  double groupShrink() const { return params[kernel == Kernel::muon ? 2 : 1]; }
  /// The factor of the rank's weight decay: 0 for a weight without decay.
  double shrink() const { return has(Decay) ? groupShrink() : 0; }
  /// The number of a counting loss's divisor (runtime/Rank.h): of a cross-entropy, how far ahead its targets are.
  int ahead() const { return int(params[2]); }
  /// The factor of the squares of lse; 0: there is no z-loss.
  double zLoss() const { return params[3]; }
  /// The cap of the logits of a loss; 0: none.
  double logitCap() const {
    return params[kernel != Kernel::cross_entropy_stats && kernel != Kernel::token_stats &&
                  kernel != Kernel::token_shard && kernel != Kernel::token_stats_bwd];
  }
};

/// The loops of one ISA. One file with its own compiler flags makes each table. All functions of the file have internal
/// linkage, so that the linker cannot take code of one ISA for another.
struct IsaTable {
  const char *name;
  bool multipliesBf16;                 ///< products of bf16 are Bf16Gemm.cpp's where oneDNN has no AMX
  Body bodies[kernelCount][typeCount]; ///< by kernel and Type; null where Gemm.cpp serves
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
#endif
/// The best table that this CPU runs.
const IsaTable &isaTable();

} // namespace pp

#endif // PP_RUNTIME_KERNELS_OP_H
