// Turns the parts of a bound model into functions of `nn` ops.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_MODEL_H
#define PP_FRONTEND_MODEL_H

#include "frontend/schedule/Elaborator.h"
#include "mlir/IR/BuiltinTypes.h"

namespace pp {

/// The shapes that do not come from the model.
struct BatchShape {
  int64_t batch, sequence;
  mlir::FloatType element;
  bool documents = false; ///< rows hold documents: a loss counts its targets when it runs
  int64_t group = 1;      ///< so many documents of the data stay together in a row
};

/// Appends one private function for each part of `model` at the builder's place; `parameters` holds the model's.
/// `columns` gets an entry for each column of the dataset that the model reads.
mlir::LogicalResult buildModel(Source &source, Evaluator &evaluator, const Model &model, Scope &parameters,
                               BatchShape shape, const ModelOutline &outline, mlir::OpBuilder &builder,
                               llvm::SmallVectorImpl<mlir::Attribute> &columns);

/// Part names, the number of layers and the kind of each, for the schedule. After an error, what is known of them.
ModelOutline outlineModel(Evaluator &evaluator, const Model &model, Scope &parameters);

/// A hash of what the parts of the module's model compute: their ops and attributes, but no sizes, which weights have.
/// Two models with equal weights and unlike heads, rotary bases or activations differ in it.
std::string hashOfParts(mlir::ModuleOp module);

} // namespace pp

#endif // PP_FRONTEND_MODEL_H
