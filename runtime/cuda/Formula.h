// Formulas of a model as a GPU runs them: kernels that the compiler wrote as PTX, loaded before the first step.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CUDA_FORMULA_H
#define PP_RUNTIME_CUDA_FORMULA_H

#include "runtime/cuda/FormulaKernel.h"
#include "runtime/kernels/Op.h"

namespace pp {

/// The kernels of a PTX text on this process's devices.
class PtxLibrary {
public:
  /// Null and `why` if the device refuses the text, or lacks one of the kernels.
  static std::unique_ptr<PtxLibrary> load(const char *ptx, const std::vector<const char *> &kernels, std::string &why);
  virtual ~PtxLibrary() = default;
  /// Puts kernel number `kernel` of those that were asked for on the stream. Each argument has 8 bytes. If it cannot be
  /// launched, `why` says so.
  [[nodiscard]] virtual pp_status_t launch(void *stream, size_t kernel, int64_t blocks, int64_t threads,
                                           const std::vector<uint64_t> &arguments, std::string &why) const = 0;
};

class Formula {
public:
  /// The kernels of the op's formula, of those that the program has. `why` says what is wrong with it.
  static std::unique_ptr<Formula> find(const PreparedOp &op, std::string &why);

  int64_t scratchBytes(const PreparedOp &op) const;
  /// `tensors`: the addresses of what is read, then of what is made.
  pp_status_t run(const PreparedOp &op, void *const *tensors) const;

private:
  const pp_formula_kernel_t *entry = nullptr;
  std::shared_ptr<const PtxLibrary> library;
};

} // namespace pp

#endif // PP_RUNTIME_CUDA_FORMULA_H
