// Attention by cuDNN where it can: causal or unmasked, in 16 bits, forward and backward, of any chunks of keys.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CUDA_SDPA_H
#define PP_RUNTIME_CUDA_SDPA_H

#include "runtime/kernels/Op.h"
#include <memory>
#include <string>
#include <vector>

namespace pp {

/// Queries and one chunk of keys: it begins where they do, or they see all of it.
struct SdpaShape {
  int64_t batch, queries, keys, heads, groups, width;
  bool causal, backward;
  int64_t queryStride, keyStride; ///< elements from a row of q to the next one, and of k and v
  /// What it gives is added to that of other chunks: the output or dq in f32, and so dk and dv if `sumsKeys`.
  bool part;
  Type type;
  SdpaShape(const PreparedOp &op, int64_t chunk);
  /// Whether cuDNN may be asked for an op at all.
  static bool fits(const PreparedOp &op);
  /// Whether what its plans give has to be added up.
  static bool inParts(const PreparedOp &op);
  /// cuDNN has no plan that gives dk and dv in f32 where heads share keys.
  [[nodiscard]] bool sumsKeys() const { return part && heads == groups; }
  [[nodiscard]] int64_t rows() const { return batch * heads * queries; }
  /// What is planned for it in the scratch, at most: analysis/lives/DeviceScratch.cpp counts the same, and says why.
  [[nodiscard]] int64_t plannedBytes() const;
  /// Where parts are added up, the scratch begins with so many bytes more: in a forward the sum of the outputs and one
  /// part, with the statistics of both; in a backward the sum of the dq, one part, and its dk and dv.
  [[nodiscard]] int64_t partBytes() const;
  [[nodiscard]] int64_t bytesOfKeys() const;
  /// Why a plan that wants so many is not taken; empty where it is.
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

/// What runs one shape, made before the first step.
class SdpaPlan {
public:
  /// Null where this build or machine has no cuDNN, or cuDNN no plan, or one that asks for more than is planned: `why`
  /// says it. An empty `device` is the one at hand; else cuDNN's JSON of another, for which the plan is only made.
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
  pp_status_t run(const SdpaTensors &tensors, char *scratch, void *stream) const;
  /// Whether PP_CUDNN says this: `off`, `forward`.
  static bool isWished(const char *what);
  /// What attention runs here by, for --info: cuDNN and its version, or why not.
  static std::string describe();

private:
  struct State;
  SdpaPlan();
  std::unique_ptr<State> state;
};

/// How cuDNN serves an op: by a plan for each chunk of its keys, what these give added up by our own kernels.
class Sdpa {
public:
  /// Null where a chunk has no plan.
  static std::unique_ptr<Sdpa> create(const PreparedOp &op);
  int64_t scratchBytes() const;
  /// Whether the arguments of pp_attention or pp_attention_bwd are such that the plans take them.
  static bool takes(const PreparedOp &op, void *const *arguments);
  pp_status_t run(const PreparedOp &op, void *const *arguments) const;

private:
  pp_status_t forward(const PreparedOp &op, void *const *arguments) const;
  pp_status_t backward(const PreparedOp &op, void *const *arguments) const;
  std::vector<SdpaPlan *> plans; ///< by chunk
  bool parts = false;
};

} // namespace pp

#endif // PP_RUNTIME_CUDA_SDPA_H
