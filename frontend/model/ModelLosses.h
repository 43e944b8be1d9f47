// The losses of a part of a model that is being built, and the weighted sums of them that its text names.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_MODELLOSSES_H
#define PP_FRONTEND_MODELLOSSES_H

#include "frontend/evaluate/Evaluator.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseMap.h"

namespace pp {

/// A sum is held by a value without meaning until the part returns it; then each loss gets its weight.
class ModelLosses {
public:
  void clear();
  void add(mlir::Value loss, SMLoc at);
  bool isLoss(mlir::Value value) const { return sums.contains(value); }
  mlir::Value scaled(mlir::OpBuilder &builder, mlir::Value loss, double weight);
  mlir::Value sum(mlir::OpBuilder &builder, mlir::Value left, mlir::Value right);

  /// Replaces sums by the values that the last part returns: the loss, one more that is trained and logged apart, and
  /// last the `reports`, which are logged and have no gradient. Other parts have no loss. A sequence has `sequence`
  /// targets, and fewer if they stand further on.
  mlir::LogicalResult finish(mlir::OpBuilder &builder, Evaluator &evaluator, bool isLastPart, int64_t sequence,
                             llvm::ArrayRef<Name> reports, llvm::SmallVectorImpl<mlir::Value> &returned);
  /// The mean, and its copies for reports.
  llvm::SmallVector<mlir::Operation *> copiesOf(mlir::Operation *mean) const;

private:
  struct Term {
    unsigned loss; ///< its number
    double weight;
  };
  /// The sum of the losses that `lossOf` has for these numbers; each gets its weight.
  mlir::Value weighted(mlir::OpBuilder &builder, llvm::ArrayRef<Term> terms, int64_t sequence,
                       llvm::function_ref<mlir::Operation *(unsigned)> lossOf);
  mlir::Value total(mlir::OpBuilder &builder, llvm::ArrayRef<Term> terms, int64_t sequence, bool further);
  mlir::LogicalResult checkReports(Evaluator &evaluator, bool isLastPart, llvm::ArrayRef<Name> reports,
                                   llvm::ArrayRef<mlir::Value> values);
  mlir::Value reported(mlir::OpBuilder &builder, llvm::ArrayRef<Term> terms, int64_t sequence, size_t number,
                       llvm::DenseSet<unsigned> &taken);
  mlir::Value hold(mlir::OpBuilder &builder, mlir::Value value, llvm::SmallVector<Term> terms);

  std::vector<std::pair<mlir::Value, SMLoc>> losses; ///< in the order of the text
  llvm::DenseMap<mlir::Value, llvm::SmallVector<Term>> sums;
  llvm::SmallVector<mlir::Operation *> holders;
  llvm::SmallVector<std::pair<mlir::Operation *, mlir::Operation *>> copies; ///< of means, for reports
};

} // namespace pp

#endif // PP_FRONTEND_MODELLOSSES_H
