// The ops that models may use, with the operands and options that a model's text names.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_MODELOPS_H
#define PP_FRONTEND_MODELOPS_H

#include "frontend/model/Model.h"
#include "mlir/IR/Builders.h"

namespace pp {

/// An op that models may use: the words for its operands; the last `optional` of them may be left out.
struct ModelOp {
  StringRef name, operands;
  unsigned optional = 0;

  size_t mostOperands() const { return operands.count(',') + 1; }
};

/// The op of this name; null if there is none.
const ModelOp *findModelOp(StringRef name);

/// Reads the options of calls of ops; an error names what there is instead.
class ModelOptions {
public:
  ModelOptions(Evaluator &evaluator, Scope &parameters, BatchShape shape, mlir::Builder builder)
      : evaluator(evaluator), parameters(parameters), shape(shape), builder(builder) {}

  /// Reads an option; null if the value is the option's default.
  mlir::FailureOr<mlir::Attribute> read(const Expr *call, Name label, const Expr *expr);
  /// The name of the option that operand i is for; empty for a tensor. `split(x, 3)` is `split(x, parts = 3)`.
  Name labelOf(const Expr *call, size_t i);
  /// The op that computes this: a `glu` with all defaults is a `swiglu`.
  StringRef nameOf(StringRef name, ArrayRef<mlir::NamedAttribute> given);
  mlir::LogicalResult checkComplete(const Expr *call, ArrayRef<mlir::NamedAttribute> given);
  mlir::LogicalResult checkCount(const Expr *call, const ModelOp &op, size_t operands);
  /// `isFormula`: of tensors, so that a function of formulas may be meant.
  mlir::LogicalResult failUnknown(const Expr *call, bool isFormula);

  /// Whether operand i of the op is a formula with a number for each head of a token.
  static bool isOfHeads(StringRef name, size_t i) { return name == "scan" && i >= 3; }
  /// Whether these options make an op that changes nothing: a scale of 1, a dropout of 0.
  static bool isNothing(StringRef name, ArrayRef<mlir::NamedAttribute> given);

private:
  std::string signature(const ModelOp &op);
  mlir::FailureOr<mlir::Attribute> numbers(Name label, const Value &value, SMLoc at);
  mlir::Attribute roundedFactor(mlir::Attribute given);
  mlir::FailureOr<mlir::Attribute> runs(Name label, const Value &value, SMLoc at);
  mlir::FailureOr<mlir::Attribute> checkWindow(Name label, const Value &value, SMLoc at);

  Evaluator &evaluator;
  Scope &parameters;
  BatchShape shape;
  mlir::Builder builder;
};

} // namespace pp

#endif // PP_FRONTEND_MODELOPS_H
