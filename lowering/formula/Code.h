// Code of formulas for CPUs: explicit vectors, once for each of the runtime's instruction sets.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_FORMULA_CODE_H
#define PP_LOWERING_FORMULA_CODE_H

#include "dialect/formula/Formula.h"
#include <memory>

namespace llvm {
class LLVMContext;
class Module;
class TargetMachine;
} // namespace llvm

namespace pp {

/// The instruction sets, as `bodies` of pp_formula_t (runtime/Pp.h) has them.
constexpr unsigned kFormulaSets = 3;

/// `pp_formula_<number>_<set>`; empty where the set has no code for it, and the runtime interprets the text.
std::string formulaFunction(nn::MapOp map, unsigned set);

/// The LLVM module of these functions for different maps, optimised. Functions are of `void (i64 rows, ptr strides, ptr
/// tensors)`.
mlir::LogicalResult lowerFormulas(llvm::ArrayRef<nn::MapOp> maps, llvm::TargetMachine &machine,
                                  llvm::LLVMContext &context, std::unique_ptr<llvm::Module> &result);

} // namespace pp

#endif // PP_LOWERING_FORMULA_CODE_H
