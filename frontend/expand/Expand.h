// Writes a model out: kinds of layers, the blocks that its parts call, and names in braces.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_EXPAND_H
#define PP_FRONTEND_EXPAND_H

#include "frontend/evaluate/Evaluator.h"

namespace pp {

/// A copy of a model, and what it was copied from.
struct ExpandedModel {
  Model model;
  std::vector<ModelPart> parts;
  std::vector<WeightDeclaration> weights; ///< shared by parts
  llvm::SmallVector<Name> kinds;
  llvm::SmallVector<unsigned> kindNumbers;
  std::vector<llvm::SmallVector<int64_t>> values; ///< of each kind
};

/// Of a model with `layer NAME in [..], ..`, makes one with a kind of layers for all layers of equal values. Each NAME
/// is bound in `parameters`, and `enterPart` gives it the value of a part's kind. Another model is copied. `layer` is
/// bound, too, unless it is a parameter: in parts of a kind with a name, this name. Parts whose condition is false are
/// left out.
mlir::LogicalResult expandLayers(Source &source, Evaluator &evaluator, const Model &model, Scope &parameters,
                                 ExpandedModel &expanded);
void enterPart(const Model &model, const ModelPart &part, Scope &parameters);

/// Whether a condition behind `word` holds; an error if it is not true or false.
mlir::FailureOr<bool> holds(Evaluator &evaluator, const Expr *condition, Scope &parameters, StringRef word);
/// The branch of a conditional that is taken.
mlir::FailureOr<Expr *> takenBranch(Evaluator &evaluator, const Expr *conditional, Scope &parameters);

/// Puts the text of a block in the place of each call of it, and the value of a name in the place of `{NAME}` in
/// strings; `prefix` comes in front of the names of weights in checkpoints. A part where this fails is marked wrong;
/// fails where a weight that parts share is wrong. What is wrong is told.
mlir::LogicalResult expandBlocks(Source &source, Evaluator &evaluator, ArrayRef<const ModelBlock *> blocks,
                                 Scope &parameters, StringRef prefix, ExpandedModel &expanded);

} // namespace pp

#endif // PP_FRONTEND_EXPAND_H
