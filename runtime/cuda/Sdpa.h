// Attention by cuDNN where it can: causal or unmasked, in 16 bits, forward and backward, of keys that lie together.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CUDA_SDPA_H
#define PP_RUNTIME_CUDA_SDPA_H

#include "runtime/kernels/Op.h"
#include <memory>
#include <string>

namespace pp {

/// Queries and their keys, which begin where they do, or of which they see all.
struct SdpaShape {
  int64_t batch, queries, keys, heads, groups, width;
  bool causal, backward;
  int64_t queryStride, keyStride; ///< elements from a row of q to the next one, and of k and v
  Type type;
  explicit SdpaShape(const PreparedOp &op);
  /// Whether cuDNN may be asked for an op at all. Not where results are added to others' (keys in chunks, sums of
  /// gradients): graphs that gave them in f32 had plans, but on an H100 cuDNN 9.14 wrote wrong outputs by them, and
  /// ran no backward.
  static bool fits(const PreparedOp &op);
  [[nodiscard]] int64_t rows() const { return batch * heads * queries; }
  /// The most scratch that is planned for it.
  [[nodiscard]] int64_t plannedBytes() const;
  /// Why a plan that wants so many bytes is refused; empty if it is taken.
  [[nodiscard]] std::string excess(int64_t wanted) const;
  bool operator==(const SdpaShape &) const = default;
};

/// The tensors of a plan, in the layouts of runtime/Pp.h, all at multiples of 16 bytes. A forward writes o and lse, a
/// backward reads them and dout, and writes the others.
struct SdpaTensors {
  const void *q, *k, *v;
  void *o, *lse;
  const void *dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

/// A plan that runs one shape, made before the first step.
class SdpaPlan {
public:
  /// Null, with the reason in `why`, if there is no cuDNN, or cuDNN has no plan within the planned memory. An empty
  /// `device` is the one at hand; else it is cuDNN's JSON of another one, for which the plan is only made.
  static std::unique_ptr<SdpaPlan> create(const SdpaShape &shape, const std::string &device, std::string &why);
  /// The one of this process for the device at hand, made at the first request; null if there is none. Making one
  /// compiles a kernel, which takes a second.
  static SdpaPlan *shared(const SdpaShape &shape);
  ~SdpaPlan();
  const SdpaShape &shape() const;
  int64_t scratchBytes() const;
  /// Why this version of cuDNN must not compute the shape, for it is known to be wrong there; empty where it may.
  static std::string refusal(const SdpaShape &shape, size_t version);
  /// Why the first of the shapes that `shared` was asked for is not cuDNN's; empty where all are.
  static std::string firstRefusal();
  /// PP_INTERNAL if cuDNN refuses: `why` says it.
  pp_status_t run(const SdpaTensors &tensors, char *scratch, void *stream, std::string &why) const;
  /// Whether PP_CUDNN says this: `off`, `forward`.
  static bool isWished(const char *what);
  /// The library that runs attention here, for --info: cuDNN and its version, or why it is not used.
  static std::string describe();

private:
  struct State;
  SdpaPlan();
  std::unique_ptr<State> state;
};

} // namespace pp

#endif // PP_RUNTIME_CUDA_SDPA_H
