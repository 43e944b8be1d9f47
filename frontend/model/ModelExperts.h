// `experts(..)`, the word of models for a mixture of experts, as the ops that it stands for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_MODELEXPERTS_H
#define PP_FRONTEND_MODELEXPERTS_H

#include "mlir/IR/Builders.h"

namespace pp {

/// Creates an op of `nn`, and gives its first result.
using CreateOp = llvm::function_ref<mlir::FailureOr<mlir::Value>(llvm::StringRef name, mlir::ValueRange operands,
                                                                 llvm::ArrayRef<mlir::NamedAttribute> attributes)>;
/// Makes y + u x.
using AddWeighted = llvm::function_ref<mlir::FailureOr<mlir::Value>(mlir::Value y, mlir::Value u, mlir::Value x)>;
/// Tensors of a call that have names, each of which may be null: what is added to the logits of a router, to the
/// products of gate and up, which are one weight, and to those of down; and what the experts read in the place of x.
struct ExpertValues {
  mlir::Value routerBias, gateUpBias, downBias, reads;

  /// The one of this name; null if there is none.
  mlir::Value *find(llvm::StringRef name);
};

/// Operands: x, the router's weight and the experts' three. `rows` is negative where there is no token; null: all are
/// tokens. With the activation "relu2" experts have no gate, and `squared` makes the square of relu. `added` makes
/// y + u x, u a number for each token. `fail` reports a fault of the call.
mlir::FailureOr<mlir::Value> createExperts(mlir::ValueRange operands, const ExpertValues &named, mlir::Value rows,
                                           llvm::ArrayRef<mlir::NamedAttribute> options, CreateOp create,
                                           llvm::function_ref<mlir::FailureOr<mlir::Value>(mlir::Value)> squared,
                                           AddWeighted added,
                                           llvm::function_ref<mlir::LogicalResult(const llvm::Twine &)> fail);

} // namespace pp

#endif // PP_FRONTEND_MODELEXPERTS_H
