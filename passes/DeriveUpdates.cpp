// Writes what happens to a piece's weights at the end of a step: norm, update, and the exchange of tied weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   @p.norm   grad, norm -> norm      sums of squares of the weights that this piece owns
//   @p.U      weight, grad, opt -> ..  AdamW for each of them; a tied weight takes the owner's new value (`fresh`)
//   @p.U.k, norm.k  the same on the k-th shard of a piece whose weights are cut over ranks
//   @p.tie.*  a secondary piece hands its tied gradients out, the owner adds them, and sends the new values back
#include "passes/DeriveTasks.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {
/// The groups of one piece as arguments of a scratch function.
class Updates {
public:
  Updates(ModuleOp module, const PieceModel &piece);
  LogicalResult write();

private:
  LogicalResult writeNorm(bool first);
  LogicalResult writeUpdate();
  LogicalResult writeZero();
  LogicalResult writeTies();
  LogicalResult writeShard(ArrayRef<ElementRange> ranges, const std::string &number);
  LogicalResult writeBodyNamed(const Twine &suffix, ArrayRef<Group> inputs, ArrayRef<Group> results) {
    return writeBody(module, piece.loc, (Twine(piece.prefix) + "." + suffix).str(), inputs, results);
  }
  bool isTied(unsigned i) const { return piece.weights[i].isTied(); }
  Group stateOf() const { return {"opt", states}; }

  ModuleOp module;
  const PieceModel &piece;
  Scratch scratch;
  OpBuilder builder;
  SmallVector<Value> weights, grads, states, norm, fresh;
};
} // namespace

RankedTensorType pp::sumsOf(Type tensor) {
  auto type = cast<RankedTensorType>(tensor);
  return type.clone(nn::sumType(type.getElementType()));
}

RankedTensorType PieceModel::gradType(RankedTensorType weight) const { return rounds ? weight : sumsOf(weight); }

Value pp::widenGrad(OpBuilder &builder, Location loc, Value grad) {
  if (grad.getType() == sumsOf(grad.getType()))
    return grad;
  Value zero = builder.create<nn::ZeroOp>(loc, sumsOf(grad.getType()));
  return builder.create<nn::AccumulateOp>(loc, grad, zero);
}

Value pp::roundGrad(OpBuilder &builder, Location loc, Value sum, Type kept) {
  if (sum.getType() == kept)
    return sum;
  return builder.create<nn::RoundOp>(loc, sum, TypeAttr::get(cast<RankedTensorType>(kept).getElementType()));
}

/// Tensors of the optimizer state of one weight: m, v, and for bf16 the master copy.
static unsigned stateCount(RankedTensorType weight) { return weight.getElementType().isBF16() ? 3 : 2; }

Updates::Updates(ModuleOp module, const PieceModel &piece)
    : module(module), piece(piece), scratch(module, piece.loc), builder(OpBuilder::atBlockBegin(&scratch.block())) {
  SmallVector<Type> weightTypes, gradTypes, stateTypes, freshTypes;
  for (const PieceWeight &weight : piece.weights) {
    RankedTensorType type = weight.attr.getType();
    weightTypes.push_back(type);
    gradTypes.push_back(piece.gradType(type));
    if (weight.isTied())
      freshTypes.push_back(type);
    else
      stateTypes.append(stateCount(type), sumsOf(type));
  }
  weights = scratch.addArguments(weightTypes);
  grads = scratch.addArguments(gradTypes);
  states = scratch.addArguments(stateTypes);
  fresh = scratch.addArguments(freshTypes);
  norm = scratch.addArguments({RankedTensorType::get({1}, builder.getF64Type())});
}

LogicalResult Updates::writeNorm(bool first) {
  Value sum = first ? Value() : norm[0];
  for (auto [i, grad] : llvm::enumerate(grads))
    if (!isTied(i))
      sum = builder.create<nn::SumSquaresOp>(piece.loc, widenGrad(builder, piece.loc, grad), sum);
  if (!sum)
    sum = builder.create<nn::ZeroOp>(piece.loc, norm[0].getType());
  return writeBodyNamed(first ? "norm.first" : "norm", {{"grad", grads, "", true}, {"norm", norm}},
                        {{"norm", {sum}, first ? "" : "norm"}});
}

LogicalResult Updates::writeUpdate() {
  SmallVector<Value> newWeights, newStates;
  unsigned state = 0, tied = 0;
  for (auto [i, weight] : llvm::enumerate(weights)) {
    if (isTied(i)) {
      newWeights.push_back(builder.create<nn::CopyOp>(piece.loc, fresh[tied++], weight));
      continue;
    }
    RankedTensorType type = piece.weights[i].attr.getType();
    unsigned count = stateCount(type);
    Value grad = widenGrad(builder, piece.loc, grads[i]);
    auto update = builder.create<nn::AdamwOp>(piece.loc, grad, piece.clips ? norm[0] : Value(), weight, states[state],
                                              states[state + 1], count == 3 ? states[state + 2] : Value(),
                                              /*decay=*/type.getRank() >= 2);
    newWeights.push_back(update.getNewW());
    llvm::append_range(newStates, update->getResults().drop_front());
    state += count;
  }
  return writeBodyNamed("U", {{"weight", weights}, {"grad", grads}, stateOf(), {"norm", norm}, {"fresh", fresh}},
                        {{"weight", newWeights, "weight"}, {"opt", newStates, "opt"}});
}

LogicalResult Updates::writeZero() {
  SmallVector<Value> zeros;
  for (Value grad : grads)
    zeros.push_back(builder.create<nn::ZeroOp>(piece.loc, grad.getType()));
  return writeBodyNamed("zero", {}, {{"grad", zeros}});
}

LogicalResult Updates::writeTies() {
  SmallVector<Value> share;
  for (auto [i, grad] : llvm::enumerate(grads))
    if (isTied(i))
      share.push_back(grad);
  if (!share.empty() && failed(writeBodyNamed("tie.out", {{"grad", grads}}, {{"share", share}})))
    return failure();
  for (auto [k, sharer] : llvm::enumerate(piece.sharers)) {
    SmallVector<Value> sums = grads, arriving, values;
    for (unsigned i : sharer.weights) {
      arriving.append(scratch.addArguments({grads[i].getType()}));
      Value sum = widenGrad(builder, piece.loc, sums[i]);
      sum = builder.create<nn::AccumulateOp>(piece.loc, arriving.back(), sum);
      sums[i] = roundGrad(builder, piece.loc, sum, grads[i].getType());
      values.push_back(weights[i]);
    }
    if (failed(
            writeBodyNamed("tie.in." + Twine(k), {{"grad", grads}, {"share", arriving}}, {{"grad", sums, "grad"}})) ||
        failed(writeBodyNamed("tie.fresh." + Twine(k), {{"weight", weights}}, {{"fresh", values}})))
      return failure();
  }
  return success();
}

/// The runs of the weights and sums that one rank holds, each a tensor of its own.
LogicalResult Updates::writeShard(ArrayRef<ElementRange> ranges, const std::string &number) {
  SmallVector<Value> mine, sums, state, newWeights, newStates;
  Value first, more = norm[0];
  for (ElementRange range : ranges) {
    RankedTensorType whole = piece.weights[range.tensor].attr.getType();
    auto type = RankedTensorType::get({range.count}, whole.getElementType());
    Value weight = scratch.addArguments({type})[0], kept = scratch.addArguments({piece.gradType(type)})[0];
    SmallVector<Value> old = scratch.addArguments(SmallVector<Type>(stateCount(type), sumsOf(type)));
    Value grad = widenGrad(builder, piece.loc, kept);
    auto update = builder.create<nn::AdamwOp>(piece.loc, grad, piece.clips ? norm[0] : Value(), weight, old[0], old[1],
                                              old.size() == 3 ? old[2] : Value(), /*decay=*/whole.getRank() >= 2);
    first = builder.create<nn::SumSquaresOp>(piece.loc, grad, first);
    more = builder.create<nn::SumSquaresOp>(piece.loc, grad, more);
    mine.push_back(weight);
    sums.push_back(kept);
    llvm::append_range(state, old);
    newWeights.push_back(update.getNewW());
    llvm::append_range(newStates, update->getResults().drop_front());
  }
  if (failed(writeBodyNamed("norm.first." + number, {{"grad", sums, "", true}}, {{"norm", {first}}})) ||
      failed(writeBodyNamed("norm." + number, {{"grad", sums, "", true}, {"norm", norm}}, {{"norm", {more}, "norm"}})))
    return failure();
  return writeBodyNamed("U." + number, {{"weight", mine}, {"grad", sums}, {"opt", state}, {"norm", norm}},
                        {{"weight", newWeights, "weight"}, {"opt", newStates, "opt"}});
}

LogicalResult Updates::write() {
  SmallVector<Type> types;
  for (const PieceWeight &weight : piece.weights)
    types.push_back(weight.attr.getType());
  auto cut = piece.shards > 0 ? cutPayload(types, piece.shards) : SmallVector<SmallVector<ElementRange>>();
  for (auto [k, ranges] : llvm::enumerate(cut)) {
    if (ranges.empty())
      return emitError(piece.loc) << "`" << piece.prefix << "` is too small to be cut over " << piece.shards
                                  << " ranks";
    if (failed(writeShard(ranges, std::to_string(k))))
      return failure();
  }
  return success(succeeded(writeNorm(true)) && succeeded(writeNorm(false)) && succeeded(writeUpdate()) &&
                 succeeded(writeZero()) && succeeded(writeTies()));
}

LogicalResult pp::deriveUpdates(ModuleOp module, const PieceModel &piece) {
  return piece.weights.empty() ? success() : Updates(module, piece).write();
}
