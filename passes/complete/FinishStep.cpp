// The end of the step: gradients to their owners, their norm, the updates, and the new weights' way home.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   shares on ranks --move, sum--> owner --norm per rank, all-reduce--> U on the owner --move--> every home
//
// A tied weight is owned by the first piece that uses it. Each later piece holds a copy in its own payload: its share
// of the gradient is copied out (tie.out), added on the owner (tie.in.k), and the new value comes back (tie.fresh.k).
#include "dialect/nn/Nn.h"
#include "passes/complete/StepBuilder.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

LogicalResult StepBuilder::finish() {
  if (updates > 1) // each ran behind its last gradient
    return finishLast();
  if (failed(reduceGradients()) || failed(addTiedShares()))
    return failure();
  createNorms();
  return createUpdates();
}

LogicalResult StepBuilder::reduceGradients() {
  for (int64_t piece : finishing) {
    if (!pieces.hasWeights(piece))
      continue;
    if (!sharers(piece).empty()) {
      if (failed(reduceOnAll(piece)))
        return failure();
      continue;
    }
    int64_t owner = pieces.owner(piece);
    Location loc = pieces.op(piece).getLoc();
    if (!movedGrads.count(piece))
      for (int64_t rank = 0; rank < static_cast<int64_t>(program.getRanks()); ++rank) {
        if (rank == owner || !shares.count({piece, rank}))
          continue;
        Share share = takeShare(piece, rank, loc);
        share.value = createMove(thing(Role::grad, piece), share.value, owner, loc);
        shares[{piece, owner}].push_back(share);
      }
    Share sum = takeShare(piece, owner, loc);
    bool leftover = llvm::any_of(shares, [&](auto &entry) { return entry.first.first == piece; });
    if (!sum.value || sum.contributions != allContributions() || leftover)
      return reportMissing(piece, owner, sum);
    ownGrads[{piece, owner}] = sum.value;
  }
  return success();
}

//===-- Tied weights --------------------------------------------------------------------------------------------===//

int64_t StepBuilder::nearestOwner(int64_t piece, int64_t rank, size_t k) {
  ArrayRef<int64_t> owners = pieces.owners(piece);
  return llvm::is_contained(owners, rank) ? rank : owners[k % owners.size()];
}

LogicalResult StepBuilder::addTiedShares() {
  for (int64_t piece : finishing) {
    if (pieces.primary(piece) < 0)
      continue;
    if (pieces.isSharded(piece)) {
      addTiedShards(piece);
      continue;
    }
    Location loc = pieces.op(piece).getLoc();
    int64_t primary = pieces.primary(piece);
    const Body *out = findBody(piece, "tie.out");
    const Body *in = findBody(primary, "tie.in." + std::to_string(pieces.tieNumber(piece)));
    if (!out || !in)
      return emitError(loc) << "`" << pieces.name(piece) << "` has no derived function for its tied weights";
    for (auto [k, target] : llvm::enumerate(pieces.owners(primary))) {
      int64_t owner = nearestOwner(piece, target, k);
      Value share = createTask(*out, updateUnit(piece), owner, {ownGrads[{piece, owner}]}, loc).getResult(0);
      if (owner != target)
        share = waitFor(createMove(thing(Role::grad, piece), share, target, loc), loc);
      Value &sum = ownGrads[{primary, target}];
      sum = createTask(*in, updateUnit(primary), target, {sum, share}, loc).getResult(0);
    }
  }
  return success();
}

//===-- The gradient norm ---------------------------------------------------------------------------------------===//

void StepBuilder::addNorm(int64_t piece, int64_t rank) {
  SmallVector<Value> inputs = {ownGrads[{piece, rank}]};
  if (Value norm = norms[rank])
    inputs.push_back(norm);
  const Body *body = findShardBody(piece, inputs.size() > 1 ? "norm" : "norm.first", rank);
  norms[rank] = createTask(*body, updateUnit(piece), rank, inputs, pieces.op(piece).getLoc()).getResult(0);
}

/// One running sum of squares on every rank that updates something, pieces in model order. What several ranks have
/// whole the first of them counts; where all of them have all, each counts all, and nothing is to be sent.
void StepBuilder::createNorms() {
  ArrayRef<int64_t> owners;
  bool alike = true;
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    if (pieces.hasWeights(piece)) {
      alike &= !pieces.isSharded(piece) && (owners.empty() || owners == pieces.owners(piece));
      owners = pieces.owners(piece);
    }
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    if (pieces.hasWeights(piece))
      for (int64_t rank : pieces.isSharded(piece) ? pieces.shards(piece)
                          : alike                 ? pieces.owners(piece)
                                                  : pieces.owners(piece).take_front())
        addNorm(piece, rank);
  if (!alike)
    reduceNorms();
  for (auto [rank, norm] : norms)
    if (isLast())
      output(normThing(), norm, program.getLoc());
}

ThingAttr StepBuilder::normThing() {
  MLIRContext *context = program.getContext();
  return ThingAttr::get(context, Role::stat, CoordAttr::get(context, builder.getStringAttr("norm"), -1, -1, -1));
}

void StepBuilder::reduceNorms() {
  MLIRContext *context = program.getContext();
  Location loc = program.getLoc();
  SmallVector<int64_t> counting;
  SmallVector<Value> terms;
  for (auto [rank, norm] : norms) {
    counting.push_back(rank);
    terms.push_back(norm);
  }
  TupleType payload = cast<ValType>(terms.front().getType()).getPayload();
  if (terms.size() > 1) {
    auto group = [&](Layout layout) {
      return ValType::get(context, Role::stat, payload, PlaceAttr::get(context, counting, layout));
    };
    Value joined = builder.create<JoinOp>(loc, group(Layout::partial), terms);
    Value future =
        builder.create<MoveOp>(loc, FutureType::get(context, group(Layout::full)), normThing(), joined, IntegerAttr());
    Value total = waitFor(future, loc);
    for (auto &[rank, norm] : norms)
      norm = builder.create<pipeline::SplitOp>(loc, typeOn(Role::stat, payload, rank), total);
  }
  for (int64_t piece = 0; piece < pieces.size(); ++piece) // to those whose pieces others have counted
    for (int64_t rank : pieces.hasWeights(piece) ? pieces.owners(piece) : ArrayRef<int64_t>())
      if (!norms.count(rank))
        norms[rank] = waitFor(createMove(normThing(), norms[pieces.owners(piece).front()], rank, loc), loc);
}

//===-- Updates -------------------------------------------------------------------------------------------------===//

LogicalResult StepBuilder::createUpdates() {
  for (int64_t piece : finishing)
    if (pieces.hasWeights(piece) && failed(pieces.isSharded(piece) ? updateShards(piece) : createUpdates(piece)))
      return failure();
  for (int64_t piece : isLast() ? finishing : SmallVector<int64_t>())
    if (pieces.hasWeights(piece) && !pieces.homesAreShards(piece))
      pieces.isSharded(piece) ? returnGathered(piece) : returnWeights(piece);
  return success();
}

LogicalResult StepBuilder::createUpdates(int64_t piece) {
  for (auto [k, owner] : llvm::enumerate(pieces.owners(piece)))
    if (failed(createUpdate(piece, owner, k)))
      return failure();
  if (isLast())
    output(thing(Role::grad, piece), ownGrads[{piece, pieces.owners(piece).front()}], pieces.op(piece).getLoc());
  return success();
}

LogicalResult StepBuilder::createUpdate(int64_t piece, int64_t owner, size_t k) {
  Location loc = pieces.op(piece).getLoc();
  const Body *body = findBody(piece, "U");
  SmallVector<Value> inputs;
  for (const BodyGroups::Group &group : body->groups.inputs) {
    Value value;
    if (group.name == "weight")
      value = get(thing(Role::weight, piece), owner, loc);
    else if (group.name == "opt")
      value = get(thing(Role::opt, piece), owner, loc);
    else if (group.name == "grad")
      value = ownGrads[{piece, owner}];
    else if (group.name == "norm")
      value = norms[owner];
    else if (group.name == "fresh") {
      int64_t primary = pieces.primary(piece);
      const Body *fresh = findBody(primary, "tie.fresh." + std::to_string(pieces.tieNumber(piece)));
      int64_t source = nearestOwner(primary, owner, k);
      value = createTask(*fresh, updateUnit(primary), source, {ownWeights[{primary, source}]}, loc).getResult(0);
      if (source != owner)
        value = waitFor(createMove(thing(Role::weight, piece), value, owner, loc), loc);
    }
    if (!value)
      return emitError(loc) << "`U(" << pieces.name(piece) << ")` on rank " << owner << ": `" << group.name << "("
                            << pieces.name(piece) << ")` is not there at the end of the step";
    inputs.push_back(value);
  }
  if (versioned)
    keepOld(piece, owner);
  TaskOp task = createTask(*body, updateUnit(piece), owner, inputs, loc);
  for (auto [group, value] : llvm::zip(body->groups.results, task.getResults())) {
    if (group.name == "weight")
      ownWeights[{piece, owner}] = values[{thing(Role::weight, piece), owner}] = value;
    else if (isLast())
      output(thing(Role::opt, piece), value, loc);
    else
      values[{thing(Role::opt, piece), owner}] = value;
  }
  return success();
}

/// The value whose memory this one took over, through updates in place: an input, an arrival, ..
static Operation *rootOf(Value value) {
  while (auto task = value.getDefiningOp<TaskOp>()) {
    int64_t tie = task.getTies()[cast<OpResult>(value).getResultNumber()];
    if (tie < 0)
      break;
    value = task.getInputs()[tie];
  }
  return value.getDefiningOp();
}

void StepBuilder::returnWeights(int64_t piece) {
  Location loc = pieces.op(piece).getLoc();
  if (versioned)
    outputOld(piece);
  ThingAttr weight = thing(Role::weight, piece);
  for (int64_t home : pieces.homes(piece)) {
    int64_t owner = nearestOwner(piece, home, 0);
    Value value = ownWeights[{piece, owner}];
    if (home != owner)
      value = createMove(weight, value, home, loc);
    else if (!isa<InputOp>(rootOf(value)))
      value = createTask(copyBody(piece), updateUnit(piece), owner, {value}, loc).getResult(0);
    values[{weight, home}] = value;
  }
  for (int64_t home : pieces.homes(piece))
    output(weight, waitFor(values[{weight, home}], loc), loc);
}
