// Adds up the losses of a part with their weights: a cross-entropy carries its weight, and the part returns plain sums.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   let a = cross_entropy(..)            %a = nn.cross_entropy ..
//   let b = cross_entropy(..)            %b = nn.cross_entropy .. {scale = 0.3}
//   return a + 0.3 * b                   %s = nn.add %a, %b
#include "frontend/model/ModelLosses.h"
#include "dialect/nn/Nn.h"

using namespace llvm;
using namespace pp;

void ModelLosses::clear() {
  losses.clear();
  sums.clear();
  holders.clear();
}

void ModelLosses::add(mlir::Value loss, SMLoc at) {
  sums[loss] = {{unsigned(losses.size()), 1.0}};
  losses.push_back({loss, at});
}

mlir::Value ModelLosses::hold(mlir::OpBuilder &builder, mlir::Value value, SmallVector<Term> terms) {
  auto holder = builder.create<mlir::UnrealizedConversionCastOp>(value.getLoc(), value.getType(), value);
  holders.push_back(holder);
  sums[holder.getResult(0)] = std::move(terms);
  return holder.getResult(0);
}

mlir::Value ModelLosses::scaled(mlir::OpBuilder &builder, mlir::Value loss, double weight) {
  SmallVector<Term> terms = sums[loss];
  for (Term &term : terms)
    term.weight *= weight;
  return hold(builder, loss, std::move(terms));
}

mlir::Value ModelLosses::sum(mlir::OpBuilder &builder, mlir::Value left, mlir::Value right) {
  SmallVector<Term> terms = sums[left];
  for (const Term &term : sums[right]) {
    auto *same = find_if(terms, [&](const Term &other) { return other.loss == term.loss; });
    if (same == terms.end())
      terms.push_back(term);
    else
      same->weight += term.weight;
  }
  return hold(builder, left, std::move(terms));
}

LogicalResult ModelLosses::finish(mlir::OpBuilder &builder, Evaluator &evaluator, bool isLastPart,
                                  SmallVectorImpl<mlir::Value> &returned) {
  if (losses.empty() || (isLastPart && returned.size() != 1))
    return success();
  if (!isLastPart)
    return evaluator.fail(losses.front().second, "only the last part of a model may make a loss");
  SmallVector<Term> terms = sums.lookup(returned.front());
  for (auto [number, loss] : enumerate(losses))
    if (none_of(terms, [&, number = number](const Term &term) { return term.loss == number; }))
      return evaluator.fail(loss.second, "this loss is not part of what the model returns");
  mlir::Value total;
  for (const Term &term : terms) {
    auto loss = losses[term.loss].first.getDefiningOp<nn::CrossEntropyOp>();
    loss.setScaleAttr(builder.getF64FloatAttr(term.weight));
    total = total ? builder.create<nn::AddOp>(loss.getLoc(), total, loss.getLoss()).getZ() : loss.getLoss();
  }
  returned.front() = total;
  for (mlir::Operation *holder : reverse(holders))
    holder->erase();
  return success();
}
