// The weights that the parts of a model declare and read: which are there, their types, names and start values.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_MODELWEIGHTS_H
#define PP_FRONTEND_MODELWEIGHTS_H

#include "dialect/nn/Nn.h"
#include "frontend/model/Model.h"

namespace pp {

/// A weight that a part reads.
struct ModelWeight {
  const WeightDeclaration *declared;
  StringRef part;               ///< empty: shared by parts
  std::optional<unsigned> kind; ///< of the layers that have it
};

/// Says that a tensor of these dimensions has more elements than pp can count bytes of; empty where it has not.
std::string saysTooLarge(ArrayRef<int64_t> dimensions);

class ModelWeights {
public:
  ModelWeights(Evaluator &evaluator, const Model &model, Scope &parameters, BatchShape shape, mlir::Builder builder)
      : evaluator(evaluator), model(model), parameters(parameters), shape(shape), builder(builder) {}

  /// Finds the weights that several parts read; the first call.
  mlir::LogicalResult findShared();
  /// The part's own weights in order of declaration, then those of the model that it reads, but for weights whose
  /// condition does not hold.
  mlir::FailureOr<llvm::SmallVector<ModelWeight>> of(const ModelPart &part);
  /// The declaration of a weight that the part which was asked for last does not have, as its condition is false.
  const WeightDeclaration *findAbsent(const Expr *expr) const;
  mlir::FailureOr<mlir::RankedTensorType> typeOf(const WeightDeclaration &weight);
  [[nodiscard]] std::string numbered(std::string name) const;
  mlir::FailureOr<nn::WeightAttr> attributeOf(const ModelWeight &weight);
  /// The branch of a conditional that is taken.
  mlir::FailureOr<const Expr *> branch(const Expr *conditional);

private:
  mlir::FailureOr<bool> reads(const Expr *expr, StringRef name);
  mlir::FailureOr<bool> reads(const ModelPart &part, StringRef name);
  mlir::FailureOr<std::pair<StringRef, double>> initOf(const WeightDeclaration &weight);
  mlir::LogicalResult checkStored(const WeightDeclaration &weight, nn::Stored stored, SMLoc at, bool ofExperts);
  mlir::LogicalResult checkName(const ModelWeight &weight, StringRef name);

  Evaluator &evaluator;
  const Model &model;
  Scope &parameters;
  BatchShape shape;
  mlir::Builder builder;
  llvm::SmallVector<const WeightDeclaration *> shared;          ///< by several parts
  llvm::SmallVector<const WeightDeclaration *> absent;          ///< from the part that was asked for last
  llvm::SmallVector<std::pair<ModelWeight, std::string>> named; ///< in checkpoints
};

} // namespace pp

#endif // PP_FRONTEND_MODELWEIGHTS_H
