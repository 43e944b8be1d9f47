// Attention by cuDNN where it can: a whole causal or unmasked attention in 16 bits, forward and backward.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CUDA_SDPA_H
#define PP_RUNTIME_CUDA_SDPA_H

#include "runtime/kernels/Op.h"

namespace pp {

/// One chunk of keys that begins where the queries do, or no mask; gradients in the type of what they are of.
struct SdpaShape {
  int64_t batch, queries, keys, heads, groups, width;
  bool causal, backward;
  Type type;
  explicit SdpaShape(const PreparedOp &op);
  /// Whether cuDNN may be asked for an op at all.
  static bool fits(const PreparedOp &op);
  /// What is planned for it in the scratch, at most: analysis/lives/DeviceScratch.cpp counts the same, and says why.
  [[nodiscard]] int64_t plannedBytes() const;
  /// Why a plan that wants so many is not taken; empty where it is.
  [[nodiscard]] std::string excess(int64_t wanted) const;
  bool operator==(const SdpaShape &) const = default;
};

/// What runs one shape, made before the first step.
class Sdpa {
public:
  /// Null where this build or machine has no cuDNN, or cuDNN no plan, or one that asks for more than is planned: `why`
  /// says it. An empty `device` is the one at
  /// hand; else cuDNN's JSON of another, for which the plan is only made.
  static std::unique_ptr<Sdpa> create(const SdpaShape &shape, const std::string &device, std::string &why);
  /// The one of this process for the device at hand, made at the first request; null if there is none. Making one
  /// compiles a kernel, which takes a second.
  static Sdpa *shared(const SdpaShape &shape);
  ~Sdpa();
  const SdpaShape &shape() const;
  int64_t scratchBytes() const;
  /// Why this version of cuDNN must not compute the shape, for it is known to be wrong there; empty where it may.
  static std::string refusal(const SdpaShape &shape, size_t version);
  /// Why the first of the shapes that `shared` was asked for is not cuDNN's; empty where all are.
  static std::string firstRefusal();
  /// The arguments of pp_attention or pp_attention_bwd; all tensors at multiples of 16 bytes.
  pp_status_t run(void *const *arguments, char *scratch, void *stream) const;
  /// Whether PP_CUDNN says this: `off`, `forward`.
  static bool isWished(const char *what);
  /// What attention runs here by, for --info: cuDNN and its version, or why not.
  static std::string describe();

private:
  struct State;
  Sdpa();
  std::unique_ptr<State> state;
};

} // namespace pp

#endif // PP_RUNTIME_CUDA_SDPA_H
