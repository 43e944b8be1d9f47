// Code of formulas for GPUs: kernels of threads, as PTX.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_FORMULA_THREADS_H
#define PP_LOWERING_FORMULA_THREADS_H

#include "dialect/formula/Formula.h"

namespace pp {

/// How the kernels of a formula are launched: the numbers of pp_formula_kernel_t (runtime/cuda/FormulaKernel.h).
struct FormulaLaunch {
  int64_t pack = 1, wideThreads = 0, narrowThreads = 0, part = 0, longest = 0;
  bool byRows = false;

  explicit FormulaLaunch(nn::MapOp map);
};

/// Why there is no code of the formula for GPUs; empty if there is.
std::string whyNoThreads(nn::MapOp map);

/// The PTX of all kernels of the formula, for GPUs of compute capability 8.0 or later.
mlir::FailureOr<std::string> writeThreads(nn::MapOp map);

} // namespace pp

#endif // PP_LOWERING_FORMULA_THREADS_H
