// Runs each of a step's updates behind its last gradient, and keeps weights that units of other versions still read.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// `updates 2`, and units with the weights of one update before (PipeDream-2BW), on the rank of stage 0:
//
//   weight(0)           w0 ─────────────────── U(0, 0) ──▶ w1 ───────────────── U(0, 1) ──▶ w2 ─▶ next step's w0
//   kept                w-1  read by F, B of ..│   copy ▶ w0  read by F, B of ..│   copy ▶ w1 ─▶ next step's w-1
//   microbatches        0 1 2 3                │          4 5 6 7               │
//
// An update works in place. Where its old weights are read later, by units or by the next step, a copy is made first.
// Versions older than the step's beginning are inputs and outputs of the step. The shares of a gradient are those of
// one update; shares of others wait in `otherShares`.
#include "passes/complete/StepBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

void StepBuilder::readVersions() {
  versioned = hasVersions(program);
  updates = updatesOf(program);
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    finishing.push_back(piece);
  if (!versioned)
    return;
  together = updatesTogether(program, pieces);
  otherShares.resize(updates);
  newest.resize(pieces.size());
  carried.resize(pieces.size());
  program.walk([&](UnitOp op) {
    CoordAttr coord = op.getUnit().getCoord();
    Phase phase = op.getUnit().getPhase();
    int64_t piece = pieces.find(coord), version = versionOf(program, op, coord);
    if (!pieces.hasWeights(piece))
      return;
    if (phase != Phase::W) {
      ++readers[{piece, version}];
      carried[piece] = std::max(carried[piece], -version);
    }
    if (phase == Phase::B || phase == Phase::W) {
      int64_t number = updateOf(program, coord.getMicrobatch());
      ++lacking[{piece, number}];
      ++lacking[{-1, number}];
    }
  });
}

LogicalResult StepBuilder::createOldInputs(int64_t piece, TupleType payload) {
  int64_t rank = pieces.owner(piece);
  for (int64_t back = 1; back <= carried[piece]; ++back) {
    ThingAttr old = thing(Role::weight, piece, back);
    oldWeights[{piece, -back}] = addInput(old, typeOn(Role::weight, payload, rank));
  }
  return success();
}

void StepBuilder::turnTo(int64_t number) {
  if (number == update)
    return;
  otherShares[update] = std::move(shares);
  shares = std::move(otherShares[number]);
  update = number;
}

FailureOr<Value> StepBuilder::weightOf(UnitOp op, int64_t piece, int64_t rank) {
  int64_t version = versionOf(program, op, op.getUnit().getCoord());
  if (rank != pieces.owner(piece)) // whoever reads it reports that it is not there
    return Value();
  --readers[{piece, version}];
  if (version == newest[piece])
    return get(thing(Role::weight, piece), rank, op.getLoc());
  auto old = oldWeights.find({piece, version});
  if (old != oldWeights.end())
    return old->second;
  return emitError(op.getLoc()) << "`" << op.getUnit().str() << "` on rank " << rank << " reads version " << version
                                << " of `weight(" << pieces.name(piece) << ")`, and the newest is " << newest[piece]
                                << withLoops(op);
}

LogicalResult StepBuilder::countGradient(UnitOp op) {
  Phase phase = op.getUnit().getPhase();
  int64_t piece = pieces.find(op.getUnit().getCoord());
  if (updates == 1 || (phase != Phase::B && phase != Phase::W) || !pieces.hasWeights(piece))
    return success();
  int64_t others = --lacking[{-1, update}], own = --lacking[{piece, update}];
  if (together ? others > 0 : own > 0)
    return success();
  if (!together)
    finishing = {piece};
  return finishUpdate();
}

/// With a norm to read it is made first. Without, that of the last update alone is for people, and comes last.
LogicalResult StepBuilder::finishUpdate() {
  norms.clear();
  if (failed(reduceGradients()) || failed(addTiedShares()))
    return failure();
  if (together)
    createNorms();
  if (failed(createUpdates()))
    return failure();
  for (int64_t piece : finishing)
    newest[piece] = update + 1;
  return success();
}

LogicalResult StepBuilder::finishLast() {
  turnTo(updates - 1);
  if (together)
    return success();
  finishing.clear();
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    finishing.push_back(piece);
  createNorms();
  return success();
}

/// The copy is made where the next step wants it, if it wants it and nothing there is read any more.
void StepBuilder::keepOld(int64_t piece, int64_t rank) {
  int64_t version = newest[piece], back = updates - version;
  bool carries = back <= carried[piece];
  if (readers[{piece, version}] == 0 && !carries)
    return;
  ThingAttr weight = thing(Role::weight, piece);
  Value old = get(weight, rank, pieces.op(piece).getLoc());
  oldWeights[{piece, version}] =
      createTask(copyBody(piece), updateUnit(piece), rank, {old}, pieces.op(piece).getLoc()).getResult(0);
  bool isFree = readers[{piece, -back}] == 0 && back + updates > carried[piece];
  if (carries && isFree)
    keptAtHome.insert(piece * (updates + 1) + version);
}

/// The oldest first: each takes the place of one that is older still.
void StepBuilder::outputOld(int64_t piece) {
  Location loc = pieces.op(piece).getLoc();
  int64_t rank = pieces.owner(piece);
  for (int64_t back = carried[piece]; back > 0; --back) {
    int64_t version = updates - back;
    Value old = oldWeights[{piece, version}];
    if (version < 0 || !keptAtHome.contains(piece * (updates + 1) + version))
      old = createTask(copyBody(piece), updateUnit(piece), rank, {old}, loc).getResult(0);
    output(thing(Role::weight, piece, back), old, loc);
  }
}
