// The table of a program's formulas, which the runtime reads.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_FORMULA_TABLE_H
#define PP_LOWERING_FORMULA_TABLE_H

#include "dialect/nn/Nn.h"
#include "lowering/Calls.h"
#include <map>

namespace llvm {
class Module;
} // namespace llvm

namespace pp {

/// An op for each formula of the module's task bodies, by number. Two formulas of one number are an error.
mlir::FailureOr<std::map<int64_t, nn::MapOp>> formulasOf(mlir::ModuleOp module);

/// Adds a table with an entry for each formula of the module's task bodies; nothing if there are none. For CPUs that is
/// `pp_formulas` (runtime/Pp.h), whose functions are declared (Code.h), for GPUs `pp_formula_kernels`
/// (runtime/cuda/FormulaKernel.h), whose texts are.
mlir::LogicalResult addFormulas(mlir::ModuleOp module, CallModule &calls);

/// The name of the text of a formula's kernels.
std::string kernelsOfFormula(nn::MapOp map);

/// The lowered table has these formulas, in this order, and no others; else says what is wrong.
std::string checkFormulas(mlir::ModuleOp module, const llvm::Module &lowered);

} // namespace pp

#endif // PP_LOWERING_FORMULA_TABLE_H
