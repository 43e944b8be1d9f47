// The table of a program's formulas, which the runtime reads.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_FORMULAS_H
#define PP_LOWERING_FORMULAS_H

#include "dialect/nn/Nn.h"
#include "lowering/Calls.h"
#include <map>

namespace llvm {
class Module;
} // namespace llvm

namespace pp {

/// An op for each formula of the module's task bodies, by number. Two formulas of one number are an error.
mlir::FailureOr<std::map<int64_t, nn::MapOp>> formulasOf(mlir::ModuleOp module);

/// Adds `pp_formulas` (runtime/Pp.h) with an entry for each formula of the module's task bodies; nothing if there are
/// none. Its functions are declared (FormulaCode.h).
mlir::LogicalResult addFormulas(mlir::ModuleOp module, CallModule &calls);

/// The lowered table has these formulas, in this order, and no others; else says what is wrong.
std::string checkFormulas(mlir::ModuleOp module, const llvm::Module &lowered);

} // namespace pp

#endif // PP_LOWERING_FORMULAS_H
