// Compares a lowered task body with its nn ops and the places that plan-bodies gave them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_LOWERING_CHECKBODIES_H
#define PP_LOWERING_CHECKBODIES_H

#include "lowering/CheckTexts.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace pp {

struct BodyGroups;

/// `apart`: by slot of the launch, whether the body gets an address for each of its tensors. `lowered`: a function for
/// each of its turns, whose calls one behind the other are those of the body.
mlir::LogicalResult checkBody(mlir::func::FuncOp body, llvm::ArrayRef<bool> apart, int64_t rank,
                              llvm::ArrayRef<const llvm::Function *> lowered, TextCheck &text);

/// The places in memory inside the body, as plan-bodies chose them, hold every value as long as it is read.
mlir::LogicalResult checkPlaces(mlir::func::FuncOp body, const BodyGroups &groups, int64_t rank);

} // namespace pp

#endif // PP_LOWERING_CHECKBODIES_H
