// Writes what happens to a piece's weights at the end of a step: norm, update, and the exchange of tied weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   @p.norm   grad, norm -> norm      sums of squares of the weights that this piece owns
//   @p.U      weight, grad, opt -> ..  the update of each of them; a tied weight takes the owner's new value (`fresh`)
//   With `mesh zero = 1` a replica updates, counts and keeps the state of a shard of the piece's own weights, which lie
//   one behind the other: each op has the part of its tensor that is in the shard, and a state of all of the shard.
//   @p.merge  grad -> grad            devices along `tensor` sum what each has as a term, once a step; devices with the
//                                     same experts what each has made of their gradients; with `zero` all replicas the
//                                     counts of a router's bias
//   @p.sum    grad, share -> grad    with `mesh zero = 2` a gradient is added to the shard's sum as soon as it is made
//   @p.U.k, norm.k, tie.*.k  the same on the k-th shard of a piece whose gradient and state are cut over ranks
//   @p.cut.k  the k-th shard of its weights, where every rank has the whole
//   @p.judge  undo, norm -> norm      with `barrier = false`: behind it the trainer judges the update before; U then
//             copies what it changes and its gradient to `undo` and reads no norm, and norms are those of `undo`
//   @p.redo   weight, opt, undo, norm -> weight, opt   the update once more, from the copies, by the norm
//   @p.tie.*  a secondary piece hands its tied gradients out, the owner adds them, and sends the new values back
#include "dialect/pipeline/Clauses.h"
#include "passes/derive/DeriveTasks.h"
#include "passes/derive/WeightUpdate.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static bool isOfExperts(WeightAttr weight) { return weight.getDeclared().getExperts() > 1; }

namespace {
/// The groups of one piece as arguments of a scratch function.
class Updates {
public:
  Updates(ModuleOp module, const PieceModel &piece);
  LogicalResult write();

private:
  LogicalResult writeNorm(bool first);
  LogicalResult writeUpdate();
  void copyForUndo();
  LogicalResult writeRedo();
  LogicalResult writeZero();
  LogicalResult writeShardSum();
  void mergeTerms(WeightAttr weight, Value &grad);
  bool hasTerms() const;
  LogicalResult writeTies();
  struct Shard;
  LogicalResult refuseToCut(StringRef what, int64_t elements);
  LogicalResult refuseMuon();
  LogicalResult checkFlat();
  void cutOverReplicas();
  DenseI64ArrayAttr flatOf(size_t weight, bool packed = false);
  bool sumsShards() const { return flat && piece.sumsShards; }
  int64_t zero() const { return program().getMeshAttr().getZero(); }
  ProgramOp program() const { return piece.program; }
  Value addTo(Value grad, Value share);
  Value sumSquares(ArrayRef<WeightAttr> of, ArrayRef<Value> gradients, Value before);
  LogicalResult write(BodyVariant variant, ArrayRef<Group> inputs, ArrayRef<Group> results, int64_t shard = -1,
                      int64_t sharer = -1) {
    auto identity = BodyAttr::get(piece.name, Phase::U, variant, /*slice=*/-1, /*cut=*/{}, sharer, shard);
    return writeBody(module, piece.loc, identity, inputs, results);
  }
  bool isTied(unsigned i) const { return piece.weights[i].isTied(); }
  /// Whether its gradient is summed with those of the others, and its state cut with theirs.
  bool isInRun(const PieceWeight &weight) const {
    return !weight.isFrozen() && !weight.isTied() && !isSummedApart(program(), weight.attr.getDeclared());
  }
  Group stateOf() const { return {GroupKind::opt, states}; }

  ModuleOp module;
  const PieceModel &piece;
  Optimizer optimizer;
  Scratch scratch;
  OpBuilder builder;
  SmallVector<Value> weights, grads, states, norm, fresh;
  /// Used without a barrier: copies of the weights, states and gradients that the piece updates by itself, made before
  /// the update; and the same copies as arguments of the next step.
  struct Undo {
    SmallVector<Value> weights, states, grads;
    SmallVector<Value> all() const {
      SmallVector<Value> values(weights);
      values.append(states.begin(), states.end());
      values.append(grads.begin(), grads.end());
      return values;
    }
  };
  Undo copies, undo;
  bool hasBarrier() const { return optimizer.hasBarrier(); }
  /// The gradients that the norm and the update read. If replicas have only the sum of a shard, these are the shard and
  /// the gradients of tied weights, and the place of each gradient among them.
  SmallVector<Value> sums;
  SmallVector<size_t> sumOf;
  /// Set if each replica updates a shard: the cut of the piece's own weights, which stand first. Weights that are
  /// summed apart are not in it: each device has their whole state.
  std::optional<FlatCut> flat;
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
  return nn::addedTo(builder, loc, nn::zeroOf(builder, loc, sumsOf(grad.getType())), grad);
}

Value pp::roundGrad(OpBuilder &builder, Location loc, Value sum, Type kept) {
  if (sum.getType() == kept)
    return sum;
  return builder.create<nn::RoundOp>(loc, sum, TypeAttr::get(cast<RankedTensorType>(kept).getElementType()));
}

Updates::Updates(ModuleOp module, const PieceModel &piece)
    : module(module), piece(piece), optimizer(piece.program), scratch(module, piece.loc),
      builder(OpBuilder::atBlockBegin(&scratch.block())) {
  cutOverReplicas();
  SmallVector<Type> weightTypes, gradTypes, stateTypes, freshTypes;
  for (const PieceWeight &weight : piece.weights) {
    RankedTensorType type = weight.attr.getType();
    weightTypes.push_back(type);
    if (weight.isFrozen())
      continue;
    gradTypes.push_back(piece.gradType(type));
    if (weight.isTied())
      freshTypes.push_back(type);
    else if (!flat || !isInRun(weight))
      stateTypes.append(optimizer.stateOf(weight.attr).size(), sumsOf(type));
    else if (stateTypes.empty())
      stateTypes.append(optimizer.stateOf(weight.attr).size(),
                        RankedTensorType::get({flat->shard}, sumsOf(type).getElementType()));
  }
  weights = scratch.addArguments(weightTypes);
  grads = scratch.addArguments(gradTypes);
  states = scratch.addArguments(stateTypes);
  fresh = scratch.addArguments(freshTypes);
  sums = grads;
  llvm::append_range(sumOf, llvm::seq<size_t>(0, grads.size()));
  if (sumsShards()) {
    size_t own = flat->begins.size();
    SmallVector<Type> sumTypes = {
        sumsOf(RankedTensorType::get({flat->shard}, cast<RankedTensorType>(gradTypes.front()).getElementType()))};
    sumTypes.append(gradTypes.begin() + own, gradTypes.end());
    sums = scratch.addArguments(sumTypes);
    for (size_t i = 0; i < grads.size(); ++i)
      sumOf[i] = i < own ? 0 : i - own + 1;
  }
  norm = scratch.addArguments({RankedTensorType::get({1}, builder.getF64Type())});
  if (!hasBarrier())
    copyForUndo();
}

/// Copies stand before all updates, which are in place. What a tied weight was is its owner's matter.
void Updates::copyForUndo() {
  Undo from;
  for (auto [i, weight] : llvm::enumerate(weights))
    if (!piece.weights[i].isFrozen() && !isTied(i)) {
      from.weights.push_back(weight);
      from.grads.push_back(grads[i]);
    }
  from.states = states;
  auto copy = [&](ArrayRef<Value> values, SmallVector<Value> &made, SmallVector<Value> &arguments) {
    for (Value value : values) {
      made.push_back(nn::copyOf(builder, piece.loc, value));
      arguments.append(scratch.addArguments({value.getType()}));
    }
  };
  copy(from.weights, copies.weights, undo.weights);
  copy(from.states, copies.states, undo.states);
  copy(from.grads, copies.grads, undo.grads);
}

void Updates::cutOverReplicas() {
  SmallVector<Type> own;
  for (const PieceWeight &weight : piece.weights)
    if (isInRun(weight))
      own.push_back(weight.attr.getType());
  if (piece.replicas > 0 && !own.empty())
    flat = cutFlat(own, piece.replicas);
}

/// The place of a weight in the run that is cut over replicas; null if the weight is not cut. Cut weights stand first.
DenseI64ArrayAttr Updates::flatOf(size_t weight, bool packed) {
  if (!flat || weight >= flat->begins.size())
    return {};
  SmallVector<int64_t> numbers = {flat->begins[weight], flat->shard, piece.replicas};
  if (packed)
    numbers.push_back(piece.weights[weight].attr.getType().getNumElements());
  return builder.getDenseI64ArrayAttr(numbers);
}

/// The squares of gradients, and of others before them. On a mesh with `tensor`, or with experts over devices, each
/// device counts the elements that it alone has, the first one those that all have; a replica counts its shard, where
/// updates are cut over replicas. Then they add what each of them counted.
Value Updates::sumSquares(ArrayRef<WeightAttr> of, ArrayRef<Value> gradients, Value before) {
  ProgramOp program = piece.program;
  int64_t tensor = gradients.empty() ? 1 : program.sizeOf(Axis::tensor),
          experts = llvm::any_of(of, isOfExperts) ? program.sizeOf(Axis::expert) : 1;
  Value sum = tensor > 1 || experts > 1 || flat ? Value() : before;
  for (auto [i, weight, grad] : llvm::enumerate(of, gradients)) {
    nn::CutAttr cut = weight.getDeclared().getCut();
    // Over replicas with shards of their own only those with the same experts have the same.
    nn::Axis others = flat ? nn::Axis::copies : nn::Axis::expert;
    int64_t copies = program.sizeOf(others), alike = cut ? cut.getCopies() : tensor,
            alikeExperts = isOfExperts(weight) == bool(flat) && experts > 1 ? copies : 1;
    SmallVector<nn::Axis> along;
    if (tensor > 1 && alike > 1)
      along.push_back(nn::Axis::tensor);
    if (alikeExperts > 1)
      along.push_back(others);
    bool isPart = !along.empty() && along.front() == nn::Axis::tensor && alike < tensor;
    sum = builder.create<nn::SumSquaresOp>(
        piece.loc, grad, sum, along.empty() ? nn::AxesAttr() : nn::AxesAttr::get(module.getContext(), along),
        isPart ? builder.getI64IntegerAttr(alike * alikeExperts) : IntegerAttr(), flatOf(i, sumsShards()));
  }
  SmallVector<nn::Axis> axes;
  if (tensor > 1)
    axes.push_back(nn::Axis::tensor);
  if (flat)
    llvm::append_range(axes, program.sumAxes().getAxes());
  if (experts > 1 && !flat)
    axes.push_back(nn::Axis::expert);
  if (axes.empty())
    return sum;
  sum = builder.create<nn::AllReduceOp>(piece.loc, sum, nn::AxesAttr::get(module.getContext(), axes), IntegerAttr());
  return before ? nn::addedTo(builder, piece.loc, before, sum) : sum;
}

LogicalResult Updates::writeNorm(bool first) {
  SmallVector<WeightAttr> trained;
  SmallVector<Value> counted;
  for (const PieceWeight &weight : piece.weights)
    if (!weight.isFrozen())
      trained.push_back(weight.attr);
  size_t own = 0;
  for (size_t i = 0; i < grads.size(); ++i)
    if (!isTied(i) && optimizer.ruleFor(trained[i]) != Optimizer::Rule::steer)
      counted.push_back(widenGrad(builder, piece.loc, hasBarrier() ? sums[sumOf[i]] : undo.grads[own++]));
    else
      trained[i] = {};
  llvm::erase(trained, WeightAttr());
  Value sum = sumSquares(trained, counted, first ? Value() : norm[0]);
  if (!sum)
    sum = nn::zeroOf(builder, piece.loc, norm[0].getType());
  Group of = {GroupKind::grad, sums, false, true};
  if (!hasBarrier())
    of = {GroupKind::undo, undo.all(), false, true};
  return write(first ? BodyVariant::norm_first : BodyVariant::norm, {of, {GroupKind::norm, norm}},
               {{GroupKind::norm, {sum}, !first}});
}

/// Writes the bodies that repeat an update that the norm shows to be wrong, and the judge, by which the trainer sees
/// it.
LogicalResult Updates::writeRedo() {
  Group kept = {GroupKind::undo, undo.all(), false, true};
  if (failed(write(BodyVariant::judge, {kept, {GroupKind::norm, norm}}, {{GroupKind::norm, norm, true}})))
    return failure();
  SmallVector<Value> oldWeights, oldStates, newWeights, newStates;
  auto restore = [&](Value from, Value into) { return nn::copyOf(builder, piece.loc, from, into); };
  size_t own = 0, state = 0, tied = 0;
  for (auto [i, weight] : llvm::enumerate(weights))
    oldWeights.push_back(piece.weights[i].isFrozen() || isTied(i) ? weight : restore(undo.weights[own++], weight));
  for (auto [from, into] : llvm::zip(undo.states, states))
    oldStates.push_back(restore(from, into));
  own = 0;
  for (auto [i, weight] : llvm::enumerate(oldWeights)) {
    if (piece.weights[i].isFrozen() || isTied(i)) {
      bool isFrozen = piece.weights[i].isFrozen();
      newWeights.push_back(isFrozen ? weight : restore(fresh[tied++], weight));
      continue;
    }
    WeightAttr attr = piece.weights[i].attr;
    auto old = ArrayRef(oldStates).slice(state, optimizer.stateOf(attr).size());
    state += old.size();
    WeightUpdate update{piece.loc, widenGrad(builder, piece.loc, undo.grads[own++]),
                        piece.readsNorm ? norm[0] : Value(), weight, old};
    newWeights.push_back(writeWeightUpdate(builder, optimizer, attr, update, newStates));
  }
  return write(
      BodyVariant::redo,
      {{GroupKind::weight, weights}, kept, stateOf(), {GroupKind::norm, norm, false, true}, {GroupKind::fresh, fresh}},
      {{GroupKind::weight, newWeights, true}, {GroupKind::opt, newStates, true}});
}

LogicalResult Updates::writeUpdate() {
  SmallVector<Value> newWeights, newStates;
  SmallVector<Value> shard; // of all weights that are cut over replicas
  if (flat)
    shard.assign(states.begin(), states.begin() + optimizer.stateOf(piece.weights.front().attr).size());
  unsigned state = 0, tied = 0;
  for (auto [i, weight] : llvm::enumerate(weights)) {
    if (piece.weights[i].isFrozen()) { // stays what it is
      newWeights.push_back(weight);
      continue;
    }
    if (isTied(i)) {
      newWeights.push_back(nn::copyOf(builder, piece.loc, fresh[tied++], weight));
      continue;
    }
    WeightAttr attr = piece.weights[i].attr;
    bool isInShard = flat && i < flat->begins.size();
    if (flat && i == flat->begins.size())
      state = shard.size();
    auto old = isInShard ? ArrayRef(shard) : ArrayRef(states).slice(state, optimizer.stateOf(attr).size());
    WeightUpdate update{piece.loc,
                        widenGrad(builder, piece.loc, sums[sumOf[i]]),
                        piece.readsNorm && hasBarrier() ? norm[0] : Value(),
                        weight,
                        old,
                        flatOf(i, sumsShards())};
    newWeights.push_back(writeWeightUpdate(builder, optimizer, attr, update, newStates));
    state += old.size();
    if (isInShard)
      shard = std::exchange(newStates, {});
  }
  newStates.insert(newStates.begin(), shard.begin(), shard.end());
  SmallVector<Group> results = {{GroupKind::weight, newWeights, true}, {GroupKind::opt, newStates, true}};
  if (!hasBarrier())
    results.push_back({GroupKind::undo, copies.all()});
  return write(BodyVariant::plain,
               {{GroupKind::weight, weights},
                {GroupKind::grad, sums},
                stateOf(),
                {GroupKind::norm, norm},
                {GroupKind::fresh, fresh}},
               results);
}

LogicalResult Updates::writeZero() {
  SmallVector<Value> zeros;
  for (Value grad : grads)
    zeros.push_back(nn::zeroOf(builder, piece.loc, grad.getType()));
  return write(BodyVariant::zero, {}, {{GroupKind::grad, zeros}});
}

/// Each replica adds what it has of the sum of one gradient to its shard of all; those of tied weights are added whole.
LogicalResult Updates::writeShardSum() {
  if (!sumsShards())
    return success();
  for (bool first : {true, false}) {
    SmallVector<Value> total = sums;
    if (first)
      total[0] = nn::zeroOf(builder, piece.loc, sums[0].getType());
    for (auto [i, grad] : llvm::enumerate(grads)) {
      Value &sum = total[sumOf[i]];
      if (sumOf[i] == 0)
        sum = nn::addedTo(builder, piece.loc, sum, grad, flatOf(i));
      else
        sum = first ? grad : addTo(sum, grad);
    }
    Group share = {GroupKind::share, grads};
    if (failed(write(first ? BodyVariant::first : BodyVariant::sum,
                     first ? ArrayRef<Group>(share) : ArrayRef<Group>({{GroupKind::grad, sums}, share}),
                     {{GroupKind::grad, total, !first}})))
      return failure();
  }
  return success();
}

Value Updates::addTo(Value grad, Value share) {
  Value sum = nn::addedTo(builder, piece.loc, widenGrad(builder, piece.loc, grad), share);
  return roundGrad(builder, piece.loc, sum, grad.getType());
}

LogicalResult Updates::writeTies() {
  SmallVector<Value> share;
  for (size_t i = 0; i < grads.size(); ++i)
    if (isTied(i))
      share.push_back(sums[sumOf[i]]);
  if (!share.empty() && failed(write(BodyVariant::tie_out, {{GroupKind::grad, sums}}, {{GroupKind::share, share}})))
    return failure();
  for (auto [k, sharer] : llvm::enumerate(piece.sharers)) {
    SmallVector<Value> total = grads, arriving, values;
    for (unsigned i : sharer.weights) {
      arriving.append(scratch.addArguments({grads[i].getType()}));
      total[i] = addTo(total[i], arriving.back());
      values.push_back(weights[i]);
    }
    auto sharerNumber = static_cast<int64_t>(k);
    if (failed(write(BodyVariant::tie_in, {{GroupKind::grad, grads}, {GroupKind::share, arriving}},
                     {{GroupKind::grad, total, true}},
                     /*shard=*/-1, sharerNumber)) ||
        failed(write(BodyVariant::tie_fresh, {{GroupKind::weight, weights}}, {{GroupKind::fresh, values}}, /*shard=*/-1,
                     sharerNumber)))
      return failure();
  }
  return success();
}

/// The runs of the weights and sums that one rank holds, each a tensor of its own.
struct Updates::Shard {
  Shard(Updates &all, ArrayRef<ElementRange> ranges, int64_t number);
  LogicalResult write();

private:
  LogicalResult writeTies();

  Updates &all;
  SmallVector<ElementRange> ranges;
  int64_t number;
  SmallVector<Value> mine, sums, merged, state, fresh, cut, newWeights, newStates;
  Value first, more; ///< squares of its own sums, and added to those of others
};

Updates::Shard::Shard(Updates &all, ArrayRef<ElementRange> ranges, int64_t number)
    : all(all), ranges(ranges), number(number) {
  OpBuilder &builder = all.builder;
  Location loc = all.piece.loc;
  SmallVector<WeightAttr> counted;
  SmallVector<Value> squares;
  for (ElementRange range : ranges) {
    RankedTensorType whole = all.piece.weights[range.tensor].attr.getType();
    auto type = RankedTensorType::get({range.count}, whole.getElementType());
    Value weight = all.scratch.addArguments({type})[0];
    mine.push_back(weight);
    cut.push_back(builder.create<nn::SliceElementsOp>(loc, all.weights[range.tensor], range.begin, range.count));
    if (all.piece.weights[range.tensor].isFrozen()) {
      newWeights.push_back(weight);
      continue;
    }
    Value kept = all.scratch.addArguments({all.piece.gradType(type)})[0];
    sums.push_back(kept);
    merged.push_back(kept);
    all.mergeTerms(all.piece.weights[range.tensor].attr, merged.back());
    if (all.isTied(range.tensor)) {
      fresh.append(all.scratch.addArguments({type}));
      newWeights.push_back(nn::copyOf(builder, loc, fresh.back(), weight));
      continue;
    }
    WeightAttr attr = all.piece.weights[range.tensor].attr;
    SmallVector<Value> old =
        all.scratch.addArguments(SmallVector<Type>(all.optimizer.stateOf(attr).size(), sumsOf(type)));
    Value grad = widenGrad(builder, loc, kept);
    WeightUpdate update{loc, grad, all.piece.readsNorm ? all.norm[0] : Value(), weight, old};
    if (all.optimizer.ruleFor(attr) != Optimizer::Rule::steer) { // counts, of which there is no norm
      counted.push_back(attr);
      squares.push_back(grad);
    }
    llvm::append_range(state, old);
    newWeights.push_back(writeWeightUpdate(builder, all.optimizer, attr, update, newStates));
  }
  first = all.sumSquares(counted, squares, Value());
  more = all.sumSquares(counted, squares, all.norm[0]);
  if (!first)
    first = nn::zeroOf(builder, loc, all.norm[0].getType());
}

LogicalResult Updates::Shard::write() {
  Group grad = {GroupKind::grad, sums, false, true}, norm = {GroupKind::norm, all.norm};
  if (failed(all.write(BodyVariant::norm_first, {grad}, {{GroupKind::norm, {first}}}, number)) ||
      failed(all.write(BodyVariant::norm, {grad, norm}, {{GroupKind::norm, {more}, true}}, number)) ||
      (all.hasTerms() &&
       failed(all.write(BodyVariant::merge, {{GroupKind::grad, sums}}, {{GroupKind::grad, merged, true}}, number))) ||
      (all.piece.cutsWeights &&
       failed(all.write(BodyVariant::cut, {{GroupKind::weight, all.weights}}, {{GroupKind::weight, cut}}, number))) ||
      failed(writeTies()))
    return failure();
  return all.write(
      BodyVariant::plain,
      {{GroupKind::weight, mine}, {GroupKind::grad, sums}, {GroupKind::opt, state}, norm, {GroupKind::fresh, fresh}},
      {{GroupKind::weight, newWeights, true}, {GroupKind::opt, newStates, true}}, number);
}

/// A shared tensor is cut for itself, at the same elements in every piece: its k-th shards meet on one rank.
LogicalResult Updates::Shard::writeTies() {
  SmallVector<Value> share;
  for (auto [i, range] : llvm::enumerate(ranges))
    if (all.isTied(range.tensor))
      share.push_back(sums[i]);
  if (!share.empty() &&
      failed(all.write(BodyVariant::tie_out, {{GroupKind::grad, sums}}, {{GroupKind::share, share}}, number)))
    return failure();
  for (auto [k, sharer] : llvm::enumerate(all.piece.sharers)) {
    SmallVector<Value> total = sums, arriving, values;
    for (unsigned tensor : sharer.weights) {
      size_t i = llvm::find_if(ranges, [&](ElementRange range) { return range.tensor == tensor; }) - ranges.begin();
      if (i == ranges.size())
        return all.refuseToCut(all.piece.weights[tensor].attr.getName(),
                               all.piece.weights[tensor].attr.getType().getNumElements());
      arriving.append(all.scratch.addArguments({sums[i].getType()}));
      total[i] = all.addTo(sums[i], arriving.back());
      values.push_back(mine[i]);
    }
    auto sharerNumber = static_cast<int64_t>(k);
    if (failed(all.write(BodyVariant::tie_in, {{GroupKind::grad, sums}, {GroupKind::share, arriving}},
                         {{GroupKind::grad, total, true}}, number, sharerNumber)) ||
        failed(all.write(BodyVariant::tie_fresh, {{GroupKind::weight, mine}}, {{GroupKind::fresh, values}}, number,
                         sharerNumber)))
      return failure();
  }
  return success();
}

LogicalResult Updates::refuseToCut(StringRef what, int64_t elements) {
  return emitError(piece.loc) << "`" << what << "` of " << elements << " elements is too small to be cut over "
                              << piece.shards << " ranks; a tensor is cut after multiples of 32 elements";
}

/// Its steps are products of whole matrices.
LogicalResult Updates::refuseMuon() {
  for (const PieceWeight &weight : piece.weights) {
    bool isCut = piece.shards > 0 || weight.attr.getDeclared().getCut();
    if (!isCut || weight.isFrozen() || optimizer.ruleFor(weight.attr) != Optimizer::Rule::muon)
      continue;
    auto error = emitError(piece.loc) << "`muon` needs whole matrices, and " << weight.attr.getName()
                                      << " is cut over ";
    piece.shards > 0 ? error << piece.shards << " ranks (`opt at shard(..)`)" : error << "`tensor`";
    return error << "; `adamw` and `sgd` can cut it";
  }
  return success();
}

/// All of a shard has the state of one rule.
LogicalResult Updates::checkFlat() {
  SmallVector<WeightAttr> own;
  for (const PieceWeight &weight : piece.weights)
    if (flat && isInRun(weight))
      own.push_back(weight.attr);
  for (WeightAttr weight : own) {
    if (optimizer.ruleFor(weight) == Optimizer::Rule::muon)
      return emitError(clauseLoc(program(), "mesh.zero", piece.loc))
             << "`muon` needs whole matrices, and " << weight.getName() << " is cut over " << piece.replicas
             << " replicas (`zero = " << zero() << "`); `adamw` and `sgd` can cut it";
    if (optimizer.stateOf(weight) != optimizer.stateOf(own.front()) ||
        weight.getType().getElementType() != own.front().getType().getElementType())
      return emitError(clauseLoc(program(), "mesh.zero", piece.loc))
             << weight.getName() << " and " << own.front().getName()
             << " have optimizer states of different kinds or types; `zero = " << zero() << "` cuts those of one";
  }
  return success();
}

/// Replaces the terms of a gradient that devices along an axis have by their sum.
void Updates::mergeTerms(WeightAttr weight, Value &grad) {
  if (auto axes = axesOfTerms(program(), weight); !axes.empty())
    grad =
        builder.create<nn::AllReduceOp>(piece.loc, grad, nn::AxesAttr::get(module.getContext(), axes), IntegerAttr());
}

bool Updates::hasTerms() const {
  ProgramOp program = piece.program;
  return llvm::any_of(piece.weights, [&](const PieceWeight &weight) {
    return !weight.isFrozen() && !axesOfTerms(program, weight.attr).empty();
  });
}

LogicalResult Updates::write() {
  if (failed(checkFlat()) || failed(refuseMuon()))
    return failure();
  SmallVector<Type> types;
  SmallVector<int64_t> runs;
  int64_t elements = 0;
  for (auto [i, weight] : llvm::enumerate(piece.weights)) {
    types.push_back(weight.attr.getType());
    elements += weight.isFrozen() ? 0 : weight.attr.getType().getNumElements();
    bool isShared = isTied(i) || llvm::any_of(piece.sharers, [number = unsigned(i)](const Sharer &sharer) {
                      return llvm::is_contained(sharer.weights, number);
                    });
    runs.push_back(runOf(i, isShared, weight.isFrozen()));
  }
  if (piece.shards > 0)
    for (auto [k, ranges] : llvm::enumerate(cutPayload(types, piece.shards, runs).shards)) {
      if (llvm::all_of(ranges, [&](ElementRange range) { return piece.weights[range.tensor].isFrozen(); }))
        return refuseToCut(piece.name.getValue(), elements);
      if (failed(Shard(*this, ranges, static_cast<int64_t>(k)).write()))
        return failure();
    }
  SmallVector<Value> merged = grads;
  for (auto [i, grad] : llvm::enumerate(merged))
    mergeTerms(piece.weights[i].attr, grad);
  if (hasTerms() && failed(write(BodyVariant::merge, {{GroupKind::grad, grads}}, {{GroupKind::grad, merged, true}})))
    return failure();
  if (!hasBarrier() && failed(writeRedo()))
    return failure();
  return success(succeeded(writeNorm(true)) && succeeded(writeNorm(false)) && succeeded(writeUpdate()) &&
                 succeeded(writeZero()) && succeeded(writeShardSum()) && succeeded(writeTies()));
}

LogicalResult pp::deriveUpdates(ModuleOp module, const PieceModel &piece) {
  return piece.trained() == 0 ? success() : Updates(module, piece).write();
}
