// Builds the task of a unit: finds its body, reads its inputs, records its results, and reports missing inputs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/UnitBuilder.h"
#include "analysis/Vocabulary.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- Bodies --------------------------------------------------------------------------------------------------===//

const TaskBody *UnitBuilder::bodyOf(UnitOp op, bool continues) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = step.pieces.find(coord);
  Phase phase = op.getUnit().getPhase();
  int64_t slice = coord.getSlice();
  BodyVariant variant = BodyVariant::plain;
  if ((phase == Phase::B || phase == Phase::W) && step.pieces.trains(piece) && !continues)
    variant = BodyVariant::first;
  if (const CutUnit *ahead = outline.exchanges.ahead(op.getUnit()))
    return step.bodies.find(piece, phase, variant, slice, ahead->plan.step(coord.getContext(), 0, 1));
  const TaskBody *special = nullptr;
  if (phase == Phase::F && outline.recomputed.contains(coord))
    special = step.bodies.find(piece, phase, BodyVariant::light, slice);
  else if (outline.readAgain.contains(op))
    special = step.bodies.find(piece, phase, BodyVariant::act, slice);
  return special ? special : step.bodies.find(piece, phase, variant, slice);
}

void UnitBuilder::setJoint(TaskOp task) { task.setJoint(joints); }

void UnitBuilder::setShare(TaskOp task, const TaskBody &body, const TaskBody &whole) {
  if (double all = whole.flops(); all > 0)
    task.setShareAttr(step.builder.getF64FloatAttr(body.flops() / all));
}

//===-- Inputs --------------------------------------------------------------------------------------------------===//

Value UnitBuilder::dataInput(BindingKind kind, CoordAttr unit, int64_t rank, TupleType payload, int64_t number) {
  Thing data = step.thing(Role::data, StepValues::dataNumber(kind, number), unit);
  if (!step.has({data, rank}))
    step.set({data, rank}, step.addInput(data, step.typeOn(Role::data, payload, rank), stringifyBindingKind(kind)));
  return step.get({data, rank}, step.program.getLoc());
}

/// Whether the group's number is that of a slice.
static bool isOfSlice(GroupKind kind) {
  return llvm::is_contained({GroupKind::kv, GroupKind::dkv, GroupKind::state, GroupKind::dstate}, kind);
}

/// The value with the group's number, among these values that skip parts.
Thing UnitBuilder::skipOf(ArrayRef<int64_t> skips, const BodyGroups::Group &group, CoordAttr unit) {
  return StepValues::thing(StepValues::roleOf(group.kind()), skips[group.number()], unit);
}

/// A value that other units made, or an attention of this unit that ran apart from it. Null for any other value.
FailureOr<Value> UnitBuilder::readShared(UnitOp op, const BodyGroups::Group &group) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = step.pieces.find(coord), rank = op.getRanks().front();
  GroupKind kind = group.kind();
  Thing needed = step.thing(Role::act, piece, coord);
  if ((kind == GroupKind::act || kind == GroupKind::dact) && group.number() >= 0)
    needed = skipOf(step.pieces.skipsInto(piece, StepValues::roleOf(kind)), group, coord);
  else if (kind == GroupKind::act)
    needed.piece = *piecesBefore(step.pieces, piece).begin();
  else if (kind == GroupKind::dact) // of shards the first's
    needed = step.thing(Role::dact, *piecesAfter(step.pieces, piece).begin(), coord);
  else if (isOfSlice(kind))
    needed = Thing(StepValues::roleOf(kind), piece, coord.getMicrobatch(), group.number());
  else if (kind == GroupKind::dkeys)
    needed = step.thing(Role::dkv, piece + 1, coord);
  else
    return Value();
  if (kind == GroupKind::dkeys) {
    if (Value value = keys.gather(needed, rank, op.getLoc()))
      return value;
    return reportAbsent(op, needed, rank);
  }
  ValueKey key{needed, rank, ValueKey::whole, group.attention()};
  if (!step.has(key))
    if (Value lent = keys.takeLent(group.attention(), needed, rank))
      step.set(key, lent);
  if (Value value = step.get(key, op.getLoc()))
    return value;
  return reportAbsent(op, needed, rank);
}

/// A value that the unit's microbatch left on this rank, or the unit's weights or data. Null if it is not there.
FailureOr<Value> UnitBuilder::readOwn(UnitOp op, const BodyGroups::Group &group) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = step.pieces.find(coord), rank = op.getRanks().front();
  GroupKind kind = group.kind();
  auto get = [&](const ValueKey &key) { return step.get(key, op.getLoc()); };
  if (kind == GroupKind::stash || kind == GroupKind::kept)
    return get({step.thing(Role::stash, piece, coord), rank,
                kind == GroupKind::stash ? ValueKey::whole : ValueKey::light, group.number()});
  if (kind == GroupKind::pending)
    return get({step.thing(Role::temporary, piece, coord), rank, ValueKey::whole, group.number()});
  if (kind == GroupKind::part || kind == GroupKind::dpart)
    return partsAhead.lookup(op.getUnit());
  if (kind == GroupKind::stats)
    return get({step.thing(Role::stat, leadOf(step.pieces, piece), coord), rank});
  if (kind == GroupKind::weight && versions.areUsed() && step.pieces.trains(piece))
    return versions.get(op, piece, rank);
  if (kind == GroupKind::weight)
    return get({Thing(Role::weight, piece), rank});
  if (std::optional<BindingKind> data = group.name.data())
    return dataInput(*data, coord, rank, group.payload, group.number());
  return Value();
}

LogicalResult UnitBuilder::readGroup(UnitOp op, const BodyGroups::Group &group, Value &value) {
  GroupKind kind = group.kind();
  FailureOr<Value> shared = readShared(op, group);
  if (failed(shared))
    return failure();
  value = *shared;
  if (value)
    return success();
  FailureOr<Value> own = readOwn(op, group);
  if (failed(own))
    return failure();
  value = *own;
  if (value)
    return success();
  Thing stash = step.thing(Role::stash, step.pieces.find(op.getUnit().getCoord()), op.getUnit().getCoord());
  if (TransferOp move = kind == GroupKind::kept || kind == GroupKind::stash ? moves.lastMoveOf(stash) : TransferOp())
    return reportMoved(op, stash, move);
  return emitError(op.getLoc()) << "`" << op.getUnit().str() << "` on rank " << op.getRanks().front() << " has no `"
                                << group.name.str() << "` to read there" << withLoops(op);
}

LogicalResult UnitBuilder::reportMoved(UnitOp op, Thing stash, TransferOp move) const {
  PlaceAttr to = move.getTo();
  auto error = emitError(op.getLoc()) << "`" << op.getUnit().str() << "` on rank " << op.getRanks().front()
                                      << " needs `" << step.str(stash) << "`, which is "
                                      << (to.getLayout() == Layout::host ? "in host memory" : "on " + to.str())
                                      << withLoops(op);
  error.attachNote(move.getLoc()) << "moved there here" << withLoops(move);
  return error;
}

/// Reports an input that the schedule moves itself, but not to its reader, and keys or a state of a slice that ran on
/// another rank.
LogicalResult UnitBuilder::reportAbsent(UnitOp op, Thing thing, int64_t rank) const {
  SmallVector<int64_t> ranks;
  for (int64_t other = 0; other < static_cast<int64_t>(ProgramOp(step.program).getRanks()); ++other)
    if (step.has({thing, other}))
      ranks.push_back(other);
  auto error = emitError(op.getLoc()) << "`" << op.getUnit().str() << "` on rank " << rank << " needs `"
                                      << step.str(thing) << "`, which is on " << step.place(ranks).str()
                                      << withLoops(op);
  if (auto move = dyn_cast_or_null<TransferOp>(outline.moves.lookup(thing))) {
    int64_t to = move.getTo().getRanks().front();
    auto &note = error.attachNote(move.getLoc()) << "`" << step.str(thing) << "` is moved by hand here, to rank " << to;
    if (to == rank)
      note << ", and only later";
    else
      note << "; move it to rank " << rank << " too, or leave all its moves to the compiler";
    note << withLoops(move);
  } else if (thing.role == Role::kv || thing.role == Role::dkv) {
    error.attachNote(step.pieces.op(thing.piece).getLoc())
        << "slices read the keys of those before them; run all slices of a microbatch on one rank, or move `"
        << step.str(thing) << "` to rank " << rank;
  } else if (thing.role == Role::state || thing.role == Role::dstate) {
    error.attachNote(step.pieces.op(thing.piece).getLoc())
        << "scans and convolutions go on from the slice before; their states do not travel between ranks yet, so all "
           "slices of a microbatch run on one rank";
  }
  return failure();
}

//===-- Results -------------------------------------------------------------------------------------------------===//

LogicalResult UnitBuilder::recordResults(UnitOp op, const TaskBody &body, TaskOp task, Share share) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = step.pieces.find(coord), rank = op.getRanks().front();
  Phase phase = op.getUnit().getPhase();
  Thing stash = step.thing(Role::stash, piece, coord);
  if (phase == Phase::B || phase == Phase::I)
    moves.recordStashUse(stash, op);
  bool isShard = vocabularyShards(step.pieces, piece) > 0;
  for (auto [group, value] : llvm::zip(body.groups.results, task.getResults())) {
    GroupKind kind = group.kind();
    if (kind == GroupKind::stats || (isShard && (kind == GroupKind::act || kind == GroupKind::dact))) {
      if (failed(activations.recordShard(op, StepValues::roleOf(kind), piece, value)))
        return failure();
    } else if (kind == GroupKind::act || kind == GroupKind::dact) {
      Role role = StepValues::roleOf(kind);
      Thing made = group.number() < 0 ? step.thing(role, piece, coord)
                                      : skipOf(step.pieces.skipsFrom(piece, role), group, coord);
      activations.record(made, value, piece, rank, op.getLoc());
    } else if (kind == GroupKind::stash) {
      step.set({stash, rank, ValueKey::whole, group.number()}, value);
    } else if (kind == GroupKind::kept) {
      step.set({stash, rank, ValueKey::light, group.number()}, value);
    } else if (kind == GroupKind::pending) {
      step.set({step.thing(Role::temporary, piece, coord), rank, ValueKey::whole, group.number()}, value);
    } else if (kind == GroupKind::keys) {
      keys.deliver(op, value);
    } else if (isOfSlice(kind)) {
      Thing made = Thing(StepValues::roleOf(kind), piece, coord.getMicrobatch(), group.number());
      if (keys.isShare(made))
        keys.record(made, rank, value, op.getLoc());
      else
        step.set({made, rank, ValueKey::whole, group.attention()}, value);
    } else if (kind == GroupKind::grad && body.identity.endsUnit()) {
      share.value = value;
      gradients.set(piece, rank, std::move(share), op);
    } else if (kind == GroupKind::loss) {
      step.output(step.thing(Role::stat, piece, coord), value, op.getLoc());
    }
  }
  return success();
}

//===-- Units ---------------------------------------------------------------------------------------------------===//

void UnitBuilder::remarkLate(UnitOp op) {
  Location loc = op.getLoc();
  auto inLoop = dyn_cast<FusedLoc>(loc);
  if (toldLate.insert(inLoop ? inLoop.getLocations().front() : loc).second)
    emitRemark(loc) << "`" << op.getUnit().str()
                    << "` runs at the end of the step: its clipping needs the norm of every gradient";
}

LogicalResult UnitBuilder::finishUpdate(UnitOp op) {
  SmallVector<int64_t> finished = versions.finishedBy(op);
  return finished.empty() ? success() : updates.update(finished);
}

LogicalResult UnitBuilder::build(UnitOp op) {
  CoordAttr coord = op.getUnit().getCoord();
  Phase phase = op.getUnit().getPhase();
  int64_t piece = step.pieces.find(coord), rank = op.getRanks().front();
  if (op.getRanks().size() != 1)
    return emitError(op.getLoc()) << "`" << op.getUnit().str()
                                  << "` runs on a group of ranks, which is not supported yet" << withLoops(op);
  if (phase == Phase::U) {
    remarkLate(op);
    return success();
  }
  step.turnTo(piece, coord);
  gradients.turnTo(updateOf(step.program, coord.getMicrobatch()));
  Share share;
  if ((phase == Phase::B || phase == Phase::W) && step.pieces.trains(piece))
    share = gradients.takeForUnit(piece, rank, op.getLoc());
  const TaskBody *body = bodyOf(op, bool(share.value));
  if (!body && (phase == Phase::W || phase == Phase::R))
    return finishUpdate(op); // without weights W has nothing to do, and R has nothing where F saves all there is
  if (!body)
    return emitError(op.getLoc()) << "`" << op.getUnit().str() << "` has no derived function";
  SmallVector<Value> inputs;
  for (const BodyGroups::Group &group : body->groups.inputs)
    if (Value &input = inputs.emplace_back(); group.name == GroupKind::grad)
      input = share.value;
    else if (failed(readGroup(op, group, input)))
      return failure();
  TaskOp task = step.createTask(*body, op.getUnit(), rank, inputs, op.getLoc());
  if (op->getParentOp() != step.program.getOperation())
    setJoint(task);
  if (outline.exchanges.ahead(op.getUnit()))
    setShare(task, *body, *step.bodies.find(piece, phase, BodyVariant::plain, coord.getSlice()));
  if (versions.areUsed() && phase != Phase::W)
    task.setVersion(versionOf(step.program, op));
  return success(succeeded(recordResults(op, *body, task, std::move(share))) && succeeded(finishUpdate(op)));
}
