// Completes pieces that several ranks update: each rank updates a shard, or all of the piece.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   rank 0  [W a|b|c|d]  <-all_gather-  a      B: grad  -reduce_scatter->  sum of a  -norm.0, U.0->  a
//   rank 1  [W a|b|c|d]  <-all_gather-  b      B: grad  -reduce_scatter->  sum of b  -norm.1, U.1->  b     and so on
//
// Where the weights are whole on every rank (ZeRO-1 and -2), each cuts its shard out of them for its update, and what
// the updates make is gathered where the old weights were:
//
//   rank 0  [W]  cut.0, U.0 -> a  <-all_gather->  [W']
//
// Where the optimizer state is whole on all of them, too (plain data parallelism), the sums are all-reduced, and each
// rank updates its own copy:
//
//   rank 0  [W]  B: grad  <-all_reduce->  sum  -norm, U->  W'
//
// The shards of a piece are cut by `cutPayload`; the k-th of the ranks in ascending order has the k-th of them. A
// tensor that two pieces use is cut at the same elements in both, so that its shares and new values stay on their rank.
#include "passes/complete/StepBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

bool StepBuilder::involvesShards(TransferOp op) {
  return (op.getFrom() && op.getFrom()->getLayout() == Layout::shard) || op.getTo().getLayout() == Layout::shard;
}

static SmallVector<int64_t> sorted(ArrayRef<int64_t> ranks) {
  SmallVector<int64_t> list(ranks);
  llvm::sort(list);
  return list;
}

SmallVector<int64_t> StepBuilder::sharers(int64_t piece) {
  if (pieces.isReplicated(piece))
    return sorted(pieces.owners(piece));
  return sorted(pieces.shards(piece));
}

bool StepBuilder::sumsOnAll(TransferOp op) {
  PlaceAttr to = op.getTo();
  return op.getThing().getRole() == Role::grad &&
         (to.getLayout() == Layout::shard || (to.getLayout() == Layout::full && to.getRanks().size() > 1));
}

/// A gather brings the whole weight to all that have a shard, a sum ends in all shards, or on all that update the
/// piece.
LogicalResult StepBuilder::verifyShards(TransferOp op) {
  int64_t piece = pieces.find(op.getThing().getCoord());
  Role role = op.getThing().getRole();
  PlaceAttr from = op.getFromAttr(), to = op.getTo();
  bool gathers = role == Role::weight && from && from.getLayout() == Layout::shard && to.getLayout() == Layout::full;
  bool scatters = sumsOnAll(op) && (!from || from.getLayout() == Layout::full);
  bool cut = involvesShards(op);
  SmallVector<int64_t> expected = sorted(cut                          ? pieces.shards(piece)
                                         : pieces.isReplicated(piece) ? pieces.owners(piece)
                                                                      : ArrayRef<int64_t>());
  if (!gathers && !scatters)
    return emitError(op.getLoc()) << "`move " << op.getThing().str() << "` involves "
                                  << (to.getLayout() == Layout::shard ? to : from).str()
                                  << ", which is not supported yet" << withLoops(op);
  for (PlaceAttr place : {from, to})
    if (place && sorted(place.getRanks()) != expected) {
      auto error = emitError(op.getLoc())
                   << "`move " << op.getThing().str() << "` goes " << (place == to ? "to " : "from ") << place.str();
      if (expected.empty())
        error << ", but " << pieces.describe(piece) << (cut ? " is not cut over ranks" : " is not updated there")
              << withLoops(op);
      else
        error << "; expected all of " << pieces.op(piece).getOwner()->str() << withLoops(op);
      error.attachNote(pieces.op(piece).getLoc()) << "placed here";
      return failure();
    }
  return success();
}

//===-- Weights -------------------------------------------------------------------------------------------------===//

const Body *StepBuilder::findShardBody(int64_t piece, StringRef name, int64_t rank) {
  if (!pieces.isSharded(piece))
    return findBody(piece, name);
  SmallVector<int64_t> ranks = sorted(pieces.shards(piece));
  return findBody(piece, (name + "." + Twine(llvm::find(ranks, rank) - ranks.begin())).str());
}

LogicalResult StepBuilder::createShardInputs(int64_t piece) {
  PieceOp op = pieces.op(piece);
  PlaceAttr homes = op.getHomesAttr() ? op.getHomesAttr() : op.getAtAttr();
  bool whole = homes.getLayout() == Layout::full;
  if (sorted(homes.getRanks()) != sorted(pieces.shards(piece)))
    return emitError(op.getLoc()) << pieces.describe(piece) << " has its weights on " << homes.str()
                                  << " and its optimizer state on " << op.getOwner()->str()
                                  << "; expected the same ranks";
  for (int64_t other = 0; other < pieces.size(); ++other)
    if (bool tied = pieces.primary(other) == piece || pieces.primary(piece) == other;
        tied && sorted(pieces.shards(other)) != sorted(pieces.shards(piece))) {
      auto error = emitError(op.getLoc())
                   << pieces.describe(piece) << " is cut over "
                   << PlaceAttr::get(program.getContext(), pieces.shards(piece), Layout::full).str()
                   << " and shares weights with " << pieces.describe(other) << ", which is not";
      error.attachNote(pieces.op(other).getLoc()) << "placed here";
      return failure();
    }
  ThingAttr weight = thing(Role::weight, piece), state = thing(Role::opt, piece);
  for (int64_t rank : pieces.shards(piece)) {
    const Body *update = findShardBody(piece, "U", rank);
    if (whole)
      values[{weight, rank}] =
          addInput(weight, typeOn(Role::weight, findBody(piece, "U")->input("weight")->payload, rank));
    else
      ownWeights[{piece, rank}] = addInput(weight, typeOn(Role::weight, update->input("weight")->payload, rank));
    if (const BodyGroups::Group *opt = update->input("opt"))
      values[{state, rank}] = addInput(state, typeOn(Role::opt, opt->payload, rank));
  }
  return success();
}

Value StepBuilder::joinShards(int64_t piece, Location loc) {
  SmallVector<int64_t> ranks = sorted(pieces.shards(piece));
  SmallVector<Value> parts;
  for (int64_t rank : ranks)
    parts.push_back(ownWeights[{piece, rank}]);
  MLIRContext *context = program.getContext();
  auto whole = ValType::get(context, Role::weight, findBody(piece, "U")->input("weight")->payload,
                            PlaceAttr::get(context, ranks, Layout::shard));
  return builder.create<JoinOp>(loc, whole, parts);
}

//===-- Gradients -----------------------------------------------------------------------------------------------===//

Share StepBuilder::joinShares(int64_t piece, Location loc) {
  SmallVector<int64_t> ranks = sharers(piece);
  SmallVector<Value> terms;
  Share sum{{}, llvm::BitVector(allContributions().size()), nullptr};
  for (int64_t rank : ranks) {
    Share share = takeShare(piece, rank, loc);
    terms.push_back(share.value ? share.value : createZero(piece, rank, loc));
    sum.contributions |= share.contributions;
  }
  MLIRContext *context = program.getContext();
  auto group = ValType::get(context, Role::grad, cast<ValType>(terms.front().getType()).getPayload(),
                            PlaceAttr::get(context, ranks, Layout::partial));
  sum.value = builder.create<JoinOp>(loc, group, terms);
  return sum;
}

/// What came before is added up by now, so that no rank keeps more than two terms.
void StepBuilder::addOnAll(int64_t piece, Share sum) {
  for (int64_t rank : sharers(piece)) {
    PieceRank shard(piece, rank);
    if (ownShares[shard].size() > 1) {
      Share before = takeOwn(piece, rank, pieces.op(piece).getLoc());
      ownShares[shard] = {before};
    }
    ownShares[shard].push_back(sum);
  }
}

Share StepBuilder::takeOwn(int64_t piece, int64_t rank, Location loc) {
  auto terms = std::move(ownShares[{piece, rank}]);
  ownShares.erase({piece, rank});
  Share sum{{}, llvm::BitVector(allContributions().size()), nullptr};
  TupleType payload = findShardBody(piece, "U", rank)->input("grad")->payload;
  for (Share &term : terms) {
    Value arrived = term.value;
    if (isa<FutureType>(arrived.getType()))
      arrived = builder.create<WaitOp>(loc, typeOn(Role::grad, payload, rank), arrived);
    if (sum.value)
      sum.value = createTask(sumBody(piece, rank), updateUnit(piece), rank, {sum.value, arrived}, loc).getResult(0);
    else
      sum.value = arrived;
    sum.contributions |= term.contributions;
  }
  return sum;
}

LogicalResult StepBuilder::reduceOnAll(int64_t piece) {
  Location loc = pieces.op(piece).getLoc();
  bool left = llvm::any_of(shares, [&](auto &entry) { return entry.first.first == piece; });
  if (left && !movedGrads.count(piece)) {
    Share sum = joinShares(piece, loc);
    auto to =
        PlaceAttr::get(program.getContext(), sharers(piece), pieces.isSharded(piece) ? Layout::shard : Layout::full);
    sum.value = createMove(thing(Role::grad, piece), sum.value, to, loc, {});
    addOnAll(piece, sum);
    left = llvm::any_of(shares, [&](auto &entry) { return entry.first.first == piece; });
  }
  for (int64_t rank : sharers(piece)) {
    Share sum = takeOwn(piece, rank, loc);
    if (!sum.value || !sum.contributions.all() || left)
      return reportMissing(piece, rank, sum);
    ownGrads[{piece, rank}] = sum.value;
  }
  return success();
}

//===-- Updates -------------------------------------------------------------------------------------------------===//

/// `fresh` of a piece with tied weights: the owner's new values, on the same rank.
Value StepBuilder::freshShard(int64_t piece, int64_t rank, Location loc) {
  int64_t primary = pieces.primary(piece);
  const Body *fresh = findShardBody(primary, "tie.fresh." + std::to_string(pieces.tieNumber(piece)), rank);
  return createTask(*fresh, updateUnit(primary), rank, {ownWeights[{primary, rank}]}, loc).getResult(0);
}

void StepBuilder::addTiedShards(int64_t piece) {
  Location loc = pieces.op(piece).getLoc();
  int64_t primary = pieces.primary(piece);
  for (int64_t rank : pieces.shards(piece)) {
    const Body *out = findShardBody(piece, "tie.out", rank),
               *in = findShardBody(primary, "tie.in." + std::to_string(pieces.tieNumber(piece)), rank);
    Value share = createTask(*out, updateUnit(piece), rank, {ownGrads[{piece, rank}]}, loc).getResult(0);
    Value &sum = ownGrads[{primary, rank}];
    sum = createTask(*in, updateUnit(primary), rank, {sum, share}, loc).getResult(0);
  }
}

LogicalResult StepBuilder::updateShards(int64_t piece) {
  Location loc = pieces.op(piece).getLoc();
  ThingAttr weight = thing(Role::weight, piece);
  bool whole = !pieces.homesAreShards(piece);
  for (int64_t rank : pieces.shards(piece)) {
    if (whole)
      ownWeights[{piece, rank}] =
          createTask(*findShardBody(piece, "cut", rank), updateUnit(piece), rank, {get(weight, rank, loc)}, loc)
              .getResult(0);
    const Body *body = findShardBody(piece, "U", rank);
    SmallVector<Value> inputs;
    for (const BodyGroups::Group &group : body->groups.inputs)
      inputs.push_back(group.name == "weight"  ? ownWeights[{piece, rank}]
                       : group.name == "grad"  ? ownGrads[{piece, rank}]
                       : group.name == "opt"   ? get(thing(Role::opt, piece), rank, loc)
                       : group.name == "fresh" ? freshShard(piece, rank, loc)
                                               : norms[rank]);
    TaskOp task = createTask(*body, updateUnit(piece), rank, inputs, loc);
    for (auto [group, value] : llvm::zip(body->groups.results, task.getResults()))
      if (group.name == "opt")
        output(thing(Role::opt, piece), value, loc);
      else
        ownWeights[{piece, rank}] = value;
    if (!whole)
      output(weight, ownWeights[{piece, rank}], loc);
    output(thing(Role::grad, piece), ownGrads[{piece, rank}], loc);
  }
  if (whole)
    gathered[piece] =
        createMove(weight, joinShards(piece, loc),
                   PlaceAttr::get(program.getContext(), sorted(pieces.shards(piece)), Layout::full), loc, {});
  return success();
}

/// Every rank has the new whole where the old one was.
void StepBuilder::returnGathered(int64_t piece) {
  Location loc = pieces.op(piece).getLoc();
  ThingAttr weight = thing(Role::weight, piece);
  TupleType payload = findBody(piece, "U")->input("weight")->payload;
  for (int64_t rank : pieces.shards(piece))
    output(weight, builder.create<WaitOp>(loc, typeOn(Role::weight, payload, rank), gathered[piece]), loc);
}
