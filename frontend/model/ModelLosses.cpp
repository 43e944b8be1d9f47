// Adds up the losses of a part with their weights: each of them carries its weight, and the part returns plain sums.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   let a = cross_entropy(..)            %a = nn.cross_entropy ..
//   let b = cross_entropy(..)            %b = nn.cross_entropy .. {scale = 0.3}
//   report c = b                         %c = nn.token_mean .. {report = 0}      a copy of b's, if b is trained, too
//   return a + 0.3 * b                   %s = nn.add %a, %b
#include "frontend/model/ModelLosses.h"
#include "dialect/nn/Nn.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "runtime/trainer/LogFields.h"

using namespace llvm;
using namespace pp;

void ModelLosses::clear() {
  losses.clear();
  sums.clear();
  holders.clear();
  copies.clear();
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

/// The mean is over all places of the sequences; a target some places on is at fewer. Where targets are counted, those
/// are counted that are so many places on.
static double shareOfPlaces(mlir::Operation *loss, int64_t sequence) {
  auto targets = dyn_cast<mlir::BlockArgument>(loss->getOperand(1));
  auto part = loss->getParentOfType<mlir::func::FuncOp>();
  auto ahead = targets ? part.getArgAttrOfType<mlir::IntegerAttr>(targets.getArgNumber(), nn::kAheadAttr) : nullptr;
  auto whole = dyn_cast<nn::CrossEntropyOp>(loss);
  auto mean = dyn_cast<nn::TokenMeanOp>(loss);
  if (!ahead || (mean && (mean.getTotal() || mean.getDivisor() > 0)))
    return 1;
  if (!(whole ? whole.getCounted() : mean.getCounted()))
    return double(sequence) / double(sequence - ahead.getInt());
  if (whole)
    whole.setAhead(ahead.getInt());
  else
    mean.setDivisor(ahead.getInt());
  return 1;
}

mlir::Value ModelLosses::weighted(mlir::OpBuilder &builder, ArrayRef<Term> terms, int64_t sequence,
                                  function_ref<mlir::Operation *(unsigned)> lossOf) {
  mlir::Value total;
  for (const Term &term : terms) {
    mlir::Operation *loss = lossOf(term.loss);
    loss->setAttr("scale", builder.getF64FloatAttr(term.weight * shareOfPlaces(loss, sequence)));
    mlir::Value own = loss->getResult(0);
    total = total ? mlir::Value(builder.create<nn::AddOp>(loss->getLoc(), total, own).getZ()) : own;
  }
  return total;
}

mlir::Value ModelLosses::total(mlir::OpBuilder &builder, ArrayRef<Term> terms, int64_t sequence, bool further) {
  return weighted(builder, terms, sequence, [&](unsigned number) {
    mlir::Operation *loss = losses[number].first.getDefiningOp();
    if (further)
      loss->setAttr("further", builder.getUnitAttr());
    return loss;
  });
}

LogicalResult ModelLosses::checkReports(Evaluator &evaluator, bool isLastPart, ArrayRef<Name> reports,
                                        ArrayRef<mlir::Value> values) {
  constexpr size_t most = 16;
  if (!isLastPart && !reports.empty())
    return evaluator.fail(reports.front().at, "only the last part of a model may report");
  if (reports.size() > most)
    return evaluator.fail(reports[most].at, "a model reports at most " + Twine(most) + " values");
  for (auto [number, name] : enumerate(reports)) {
    auto *other = find_if(reports, [&, name = name](const Name &other) { return other.text == name.text; });
    if (other != reports.begin() + number)
      return evaluator.fail(name.at, "`" + name.text + "` is reported twice", other->at, "first reported here");
    if (isLogField(name.text))
      return evaluator.fail(name.at, "the log has a field `" + name.text + "` of its own; report another name");
    auto found = sums.find(values[number]);
    if (found == sums.end() || any_of(found->second, [&](const Term &term) {
          return !isa<nn::TokenMeanOp>(losses[term.loss].first.getDefiningOp());
        }))
      return evaluator.fail(name.at, "a report is of means and totals of tokens, as `mean(kl)` of a row `kl`, or "
                                     "`mean(-logprob(z, targets))` for a cross-entropy");
  }
  return success();
}

mlir::Value ModelLosses::reported(mlir::OpBuilder &builder, ArrayRef<Term> terms, int64_t sequence, size_t number,
                                  DenseSet<unsigned> &taken) {
  return weighted(builder, terms, sequence, [&](unsigned loss) {
    mlir::Operation *mean = losses[loss].first.getDefiningOp();
    if (!taken.insert(loss).second) {
      copies.push_back({mean, builder.clone(*mean)});
      mean = copies.back().second;
      mean->removeAttr("further");
    }
    mean->setAttr("report", builder.getI64IntegerAttr(static_cast<int64_t>(number)));
    return mean;
  });
}

SmallVector<mlir::Operation *> ModelLosses::copiesOf(mlir::Operation *mean) const {
  SmallVector<mlir::Operation *> all = {mean};
  for (auto [original, copy] : copies)
    if (original == mean)
      all.push_back(copy);
  return all;
}

LogicalResult ModelLosses::finish(mlir::OpBuilder &builder, Evaluator &evaluator, bool isLastPart, int64_t sequence,
                                  ArrayRef<Name> reports, SmallVectorImpl<mlir::Value> &returned) {
  const size_t trained = returned.size() - reports.size();
  if (failed(checkReports(evaluator, isLastPart, reports, ArrayRef(returned).drop_front(trained))))
    return failure();
  if (losses.empty() || (isLastPart && (trained == 0 || trained > 2)))
    return success();
  if (!isLastPart)
    return evaluator.fail(losses.front().second, "only the last part of a model may make a loss");
  std::vector<SmallVector<Term>> terms;
  for (mlir::Value sum : returned)
    terms.push_back(sums.lookup(sum));
  DenseSet<unsigned> taken; // losses that are trained, or reported
  for (auto [number, loss] : enumerate(losses)) {
    auto isOf = [number = number](ArrayRef<Term> sum) {
      return any_of(sum, [&](const Term &term) { return term.loss == number; });
    };
    if (none_of(terms, isOf))
      return evaluator.fail(loss.second, "this loss is not part of what the model returns");
    auto trains = ArrayRef(terms).take_front(trained);
    if (any_of(trains, isOf))
      taken.insert(number);
    if (all_of(trains, isOf) && trained > 1)
      return evaluator.fail(loss.second, "this loss is a part of both losses that the model returns");
  }
  auto hasZ = [&](const Term &term) {
    auto whole = losses[term.loss].first.getDefiningOp<nn::CrossEntropyOp>();
    return whole && !whole.getZLoss().isZero();
  };
  for (ArrayRef<Term> sum : ArrayRef(terms).take_front(trained))
    if (auto *without = find_if_not(sum, hasZ); without != sum.end() && any_of(sum, hasZ))
      return evaluator.fail(losses[without->loss].second,
                            "this loss has no `z_loss`, and another one that it is added to has one");
  for (auto [number, sum] : enumerate(terms))
    if (number >= trained)
      returned[number] = reported(builder, sum, sequence, number - trained, taken);
    else if (!sum.empty())
      returned[number] = total(builder, sum, sequence, number > 0);
  for (mlir::Operation *holder : reverse(holders))
    holder->erase();
  return success();
}
