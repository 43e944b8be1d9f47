// The kernels of one rank: every op prepared before the first step, then run by number without allocation or lookup.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_H
#define PP_RUNTIME_KERNELS_H

#include "runtime/Pp.h"
#include <memory>
#include <string>
#include <vector>

namespace pp {

struct PreparedOp;

enum class Type : uint8_t { F32, Bf16, F64, F16 };
inline constexpr int typeCount = 4;

/// One entry of a rank's `ops`, as runtime/Pp.h describes it; `kernel` is the function's name without `pp_`.
struct OpSpec {
  std::string kernel;
  Type type = Type::F32;
  std::vector<int64_t> dims;
  std::vector<double> params;
  std::vector<std::string> flags;
  std::vector<int64_t> moved = {}; ///< by pointer, those of a list one by one: by how many bytes it moves on; empty: 0
};

/// The prepared ops of one rank. A rank is one thread: `prepare` and all calls belong to that thread, because oneDNN
/// keeps state per thread, and the scratch is shared by all ops.
class Kernels {
public:
  /// Checks every op and prepares it (oneDNN primitives, rope tables, scratch, the kernels of this CPU's ISA). On
  /// failure `message` names the op and what is wrong. Sets the calling thread's OpenMP threads to 1, or PP_THREADS.
  [[nodiscard]] static pp_status_t prepare(const std::vector<OpSpec> &specs, std::unique_ptr<Kernels> &kernels,
                                           std::string &message);
  ~Kernels();
  Kernels(const Kernels &) = delete;
  Kernels &operator=(const Kernels &) = delete;

  /// The prepared op with this number; null when there is none.
  const PreparedOp *find(int32_t op) const;

  /// The device `cuda` (runtime/cuda): all ops launch on this stream, and nothing of a step waits for it. Bound after
  /// `prepare`, before the first step; the CPU's kernels ignore it.
  void bindStream(void *stream);
  /// Device memory from which adamw and the losses read an OptimizerScalars, to be written before each step. Null on
  /// the CPU, where they read the rank's own one.
  void *scalars() const;
  /// A word of device memory, to be read after a step: 0, or one more than the number of an op that met a token or
  /// target outside its vocabulary. Null on the CPU, where the call itself fails.
  int32_t *failures() const;
  /// Device memory in which routers add to the rank's RouterSums, to be written before each step and read after it.
  /// Null on the CPU, where they add to the rank's own sums, and if there is no router.
  void *routed() const;

  /// Bytes that `prepare` allocated beside the arena: scratch and tables.
  int64_t scratchBytes() const;

  /// The ISA whose loops run here: "avx512_bf16", "avx512", "avx2" or "plain"; PP_ISA in the environment may lower it.
  static const char *isa();

  /// Why an op could not run, as a part of a sentence.
  static std::string whyFailed();
  /// The library that runs attention, for --info; empty on the CPU.
  static std::string attention();
  /// Says how many attentions a library runs, and how many products have an epilogue, on all ranks of this process;
  /// empty on the CPU.
  static std::string engines();

private:
  struct State;
  explicit Kernels(std::unique_ptr<State> state);
  std::unique_ptr<State> state;
};

} // namespace pp

#endif // PP_RUNTIME_KERNELS_H
