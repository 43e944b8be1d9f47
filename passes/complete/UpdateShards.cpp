// Updates pieces that several ranks update: each rank updates a shard, or all of the piece.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   rank 0  [W a|b|c|d]  <-all_gather-  a      B: grad  -reduce_scatter->  sum of a  -norm.0, U.0->  a
//   rank 1  [W a|b|c|d]  <-all_gather-  b      B: grad  -reduce_scatter->  sum of b  -norm.1, U.1->  b     and so on
//
// If the weights are whole on every rank (ZeRO-1 and -2), each rank cuts its shard out of them for its update, and the
// new shards are gathered in the place of the old weights:
//
//   rank 0  [W]  cut.0, U.0 -> a  <-all_gather->  [W']
//
// If the optimizer state is whole on every rank, too (plain data parallelism), the gradients are all-reduced, and each
// rank updates its own copy:
//
//   rank 0  [W]  B: grad  <-all_reduce->  sum  -norm, U->  W'
//
// The shards of a piece are cut by `cutPayload`; the k-th of the ranks in ascending order has the k-th of them. A
// tensor that two pieces use is cut at the same elements in both, so that its shares and new values stay on their rank.
#include "passes/complete/UpdateBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

LogicalResult UpdateBuilder::createShardInputs(int64_t piece) {
  const Pieces &pieces = step.pieces;
  PieceOp op = pieces.op(piece);
  PlaceAttr homes = op.getHomesAttr() ? op.getHomesAttr() : op.getAtAttr();
  SmallVector<int64_t> homeRanks(homes.getRanks()), sharers = pieces.sharers(piece);
  llvm::sort(homeRanks);
  if (homeRanks != sharers)
    return emitError(op.getLoc()) << pieces.describe(piece) << " has its weights on " << homes.str()
                                  << " and its optimizer state on " << op.getOwner()->str()
                                  << "; expected the same ranks";
  for (int64_t other = 0; other < pieces.size(); ++other)
    if (bool tied = pieces.primary(other) == piece || pieces.primary(piece) == other;
        tied && (!pieces.isSharded(other) || pieces.sharers(other) != sharers)) {
      auto error = emitError(op.getLoc())
                   << pieces.describe(piece) << " is cut over " << step.place(pieces.shards(piece)).str()
                   << " and shares weights with " << pieces.describe(other) << ", which is not";
      error.attachNote(pieces.op(other).getLoc()) << "placed here";
      return failure();
    }
  Thing weight = Thing(Role::weight, piece), state = Thing(Role::opt, piece);
  bool isWhole = homes.getLayout() == Layout::full;
  PayloadCut cut = cutPayload(step.bodies.weightsOf(piece).getTypes(), sharers.size(), pieces.runs(piece));
  for (int64_t rank : pieces.shards(piece)) {
    TupleType payload = step.bodies.weightsOf(piece);
    if (!isWhole)
      payload = shardPayload(payload, cut.shards[pieces.shardOf(piece, rank)]);
    Value value = step.addInput(weight, step.typeOn(Role::weight, payload, rank));
    step.set({weight, rank, isWhole ? ValueKey::whole : ValueKey::own}, value);
    if (!pieces.trains(piece)) {
      frozen.push_back({weight, value});
      continue;
    }
    const TaskBody *update = step.bodies.findOfShard(piece, BodyVariant::plain, rank);
    if (const BodyGroups::Group *opt = update->input(GroupKind::opt))
      step.set({state, rank}, step.addInput(state, step.typeOn(Role::opt, opt->payload, rank)));
  }
  return success();
}

Value pp::joinShards(StepValues &step, int64_t piece, Location loc) {
  SmallVector<int64_t> ranks = step.pieces.sharers(piece);
  SmallVector<Value> shards;
  for (int64_t rank : ranks)
    shards.push_back(step.get({Thing(Role::weight, piece), rank, ValueKey::own}, loc));
  return step.createJoin(Role::weight, step.bodies.weightsOf(piece), step.place(ranks, Layout::shard), shards, loc);
}

LogicalResult UpdateBuilder::reduceOnAll(int64_t piece) {
  Location loc = locOf(piece);
  SmallVector<int64_t> sharers = step.pieces.sharers(piece);
  if (!gradients.holders(piece).empty() && !outline.gradMoves.count(piece)) {
    Share sum = gradients.join(piece, loc);
    Layout layout = step.pieces.isSharded(piece) ? Layout::shard : Layout::full;
    sum.value = step.createMove(Thing(Role::grad, piece), sum.value, step.place(sharers, layout), loc);
    gradients.addOnAll(piece, sum);
  }
  bool isLeft = !gradients.holders(piece).empty();
  for (int64_t rank : sharers) {
    Share sum = gradients.takeOwn(piece, rank, loc);
    if (!gradients.isComplete(sum) || isLeft)
      return gradients.reportMissing(piece, rank, sum);
    step.set(own(Role::grad, piece, rank), sum.value);
  }
  return success();
}

void UpdateBuilder::addTiedShards(int64_t piece) {
  int64_t primary = step.pieces.primary(piece);
  int64_t sharer = step.pieces.tieNumber(piece);
  for (int64_t rank : step.pieces.shards(piece)) {
    const TaskBody *out = step.bodies.findOfShard(piece, BodyVariant::tie_out, rank),
                   *in = step.bodies.findOfShard(primary, BodyVariant::tie_in, rank, sharer);
    Value share = createUpdateTask(*out, piece, rank, {getOwn(Role::grad, piece, rank)});
    Value sum = step.createTask(*in, gradients.updateUnit(primary), rank, {getOwn(Role::grad, primary, rank), share},
                                locOf(piece))
                    .getResult(0);
    step.set(own(Role::grad, primary, rank), sum);
  }
}

/// `fresh` of a piece with tied weights: the owner's new values, on the same rank.
Value UpdateBuilder::freshShard(int64_t piece, int64_t rank) {
  int64_t primary = step.pieces.primary(piece);
  int64_t sharer = step.pieces.tieNumber(piece);
  return step
      .createTask(*step.bodies.findOfShard(primary, BodyVariant::tie_fresh, rank, sharer),
                  gradients.updateUnit(primary), rank, {getOwn(Role::weight, primary, rank)}, locOf(piece))
      .getResult(0);
}

void UpdateBuilder::updateShard(int64_t piece, int64_t rank) {
  Location loc = locOf(piece);
  const TaskBody *body = step.bodies.findOfShard(piece, BodyVariant::plain, rank);
  SmallVector<Value> inputs;
  for (const BodyGroups::Group &group : body->groups.inputs) {
    Value &value = inputs.emplace_back();
    if (group.name == GroupKind::weight)
      value = getOwn(Role::weight, piece, rank);
    else if (group.name == GroupKind::grad)
      value = getOwn(Role::grad, piece, rank);
    else if (group.name == GroupKind::opt)
      value = step.get({Thing(Role::opt, piece), rank}, loc);
    else if (group.name == GroupKind::fresh)
      value = freshShard(piece, rank);
    else
      value = norms[rank];
  }
  TaskOp task = step.createTask(*body, gradients.updateUnit(piece), rank, inputs, loc);
  for (auto [group, value] : llvm::zip(body->groups.results, task.getResults()))
    if (group.name == GroupKind::opt)
      step.output(Thing(Role::opt, piece), value, loc);
    else
      step.set(own(Role::weight, piece, rank), value);
}

void UpdateBuilder::updateShards(int64_t piece) {
  Location loc = locOf(piece);
  Thing weight = Thing(Role::weight, piece);
  bool isWhole = !step.pieces.homesAreShards(piece);
  for (int64_t rank : step.pieces.shards(piece)) {
    if (isWhole)
      step.set(own(Role::weight, piece, rank), createUpdateTask(*step.bodies.findOfShard(piece, BodyVariant::cut, rank),
                                                                piece, rank, {step.get({weight, rank}, loc)}));
    updateShard(piece, rank);
    if (!isWhole)
      step.output(weight, getOwn(Role::weight, piece, rank), loc);
    step.output(Thing(Role::grad, piece), getOwn(Role::grad, piece, rank), loc);
  }
  if (isWhole)
    gatherShards(piece);
}

/// The new shards are on their way to where the old whole was.
void UpdateBuilder::gatherShards(int64_t piece) {
  Thing weight = Thing(Role::weight, piece);
  SmallVector<int64_t> ranks = step.pieces.sharers(piece);
  Value future = step.createMove(weight, joinShards(step, piece, locOf(piece)), step.place(ranks), locOf(piece));
  for (int64_t rank : ranks)
    step.set({weight, rank}, future);
}

void UpdateBuilder::returnGathered(int64_t piece) {
  Thing weight = Thing(Role::weight, piece);
  for (int64_t rank : step.pieces.shards(piece))
    step.output(weight, step.get({weight, rank}, locOf(piece)), locOf(piece));
}
