// Turns the actions of a schedule into one SSA step: tasks on placed values, explicit and inferred moves.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: unit F(0, 0) on [0]      After: %a, %s = task @s0.F <F 0, 0> on [0] (%w0)
//         unit F(1, 0) on [1]             %f = move act(0, 0) %a : [0] -> [1]      inferred, right after its producer
//                                         %b = wait %f                             right before its consumer
//                                         %l = task @s1.F <F 1, 0> on [1] (%b, %w1)
//
// Weights are values and gradients are sums spread over ranks (frontend/LANGUAGE.md, "Two laws"): `move weight`
// delivers a copy, `move grad` takes the whole share away. Who moves a thing once, moves it always: then nothing is
// inferred for it.
#include "analysis/Vocabulary.h"
#include "passes/Passes.h"
#include "passes/complete/StepBuilder.h"

namespace pp {
#define GEN_PASS_DEF_COMPLETESTEP
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- Units ---------------------------------------------------------------------------------------------------===//

bool StepBuilder::readsActivation(int64_t piece, Phase phase) {
  const Body *body = findBody(piece, stringifyPhase(phase));
  return body && body->input("act");
}

void StepBuilder::readActions() {
  llvm::DenseMap<Key, Operation *> makers; // by activation: its R
  program.walk([&](UnitOp op) {
    CoordAttr coord = op.getUnit().getCoord();
    int64_t piece = pieces.find(coord), rank = op.getRanks().front();
    Phase phase = op.getUnit().getPhase();
    for (int64_t before : piecesBefore(pieces, piece)) {
      ThingAttr act = thing(Role::act, before, coord.getMicrobatch(), coord.getSlice());
      if (readsActivation(piece, phase))
        if (Operation *maker = makers.lookup({act, rank}))
          readAgain.insert(maker);
      if (phase == Phase::F)
        consumers[act].push_back(rank);
    }
    if (phase == Phase::F && keys.reads(piece))
      keyReaders[thing(Role::kv, piece, coord.getMicrobatch(), coord.getSlice())] = rank;
    if (phase == Phase::R) {
      remade.insert(coord);
      makers[{thing(Role::act, piece, coord.getMicrobatch(), coord.getSlice()), rank}] = op;
    }
    if (phase == Phase::B || phase == Phase::I)
      for (int64_t after : piecesAfter(pieces, piece))
        consumers[thing(Role::dact, after, coord.getMicrobatch(), coord.getSlice())].push_back(rank);
    if ((phase == Phase::B || phase == Phase::I) && keys.makes(piece))
      keyReaders[thing(Role::dkv, piece + 1, coord.getMicrobatch(), coord.getSlice())] = rank;
  });
  program.walk([&](TransferOp op) {
    movesStashes |= op.getThing().getRole() == Role::stash;
    if (op.getThing().getRole() == Role::grad)
      movedGrads[pieces.find(op.getThing().getCoord())] = op;
    else
      moved[op.getThing()] = op;
    for (int64_t to : op.getTo().getRanks())
      if (op.getThing().getRole() == Role::kv)
        brought.insert({op.getThing(), to});
  });
}

LogicalResult StepBuilder::createInputs() {
  for (int64_t piece = 0; piece < pieces.size(); ++piece) {
    const Body *update = findBody(piece, "U");
    if (!pieces.hasWeights(piece) || !update)
      continue;
    PieceOp op = pieces.op(piece);
    if (pieces.homes(piece).empty())
      return emitError(op.getLoc()) << "no rank holds the weights of " << pieces.describe(piece)
                                    << "; give it a place with `at` or `weight at`";
    if (pieces.isSharded(piece)) {
      if (failed(createShardInputs(piece)))
        return failure();
      continue;
    }
    if (pieces.owners(piece).empty())
      return emitError(op.getLoc()) << pieces.describe(piece) << " has no `opt` place, so no rank can update it";
    for (int64_t rank : pieces.homes(piece)) {
      ThingAttr weight = thing(Role::weight, piece);
      values[{weight, rank}] = addInput(weight, typeOn(Role::weight, update->input("weight")->payload, rank));
    }
    ThingAttr state = thing(Role::opt, piece);
    if (versioned && failed(createOldInputs(piece, update->input("weight")->payload)))
      return failure();
    if (const BodyGroups::Group *opt = update->input("opt"))
      for (int64_t owner : pieces.owners(piece))
        values[{state, owner}] = addInput(state, typeOn(Role::opt, opt->payload, owner));
  }
  return success();
}

Value StepBuilder::dataInput(StringRef kind, CoordAttr unit, int64_t rank, TupleType payload) {
  MLIRContext *context = program.getContext();
  // One thing per kind, microbatch and slice: `tokens` and `targets` are told apart by the part of the coordinate.
  auto coord = CoordAttr::get(context, builder.getStringAttr(kind), -1, unit.getMicrobatch(), unit.getSlice());
  ThingAttr data = ThingAttr::get(context, Role::data, coord);
  Value &value = values[{data, rank}];
  if (!value)
    value = addInput(data, typeOn(Role::data, payload, rank), kind);
  return value;
}

LogicalResult StepBuilder::readGroup(UnitOp op, const BodyGroups::Group &group, Value &value) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = pieces.find(coord), rank = op.getRanks().front(), mb = coord.getMicrobatch(),
          slice = coord.getSlice();
  Location loc = op.getLoc();
  StringRef kind = group.kind();
  ThingAttr needed;
  if (kind == "act" || kind == "dact")
    needed = kind == "act" ? thing(Role::act, *piecesBefore(pieces, piece).begin(), mb, slice)
                           : thing(Role::dact, *piecesAfter(pieces, piece).begin(), mb, slice); // of shards the first's
  else if (kind == "kv" || kind == "dkv")
    needed = thing(kind == "kv" ? Role::kv : Role::dkv, piece, mb, group.chunk());
  if (kind == "part" || kind == "dpart") {
    value = aheadParts.lookup(op.getUnit());
    return success();
  }
  if (kind == "dkeys") {
    needed = thing(Role::dkv, piece + 1, mb, slice);
    value = gatherChunk(needed, rank, loc);
    return value ? success() : reportAbsent(op, needed, rank);
  }
  if (needed) {
    if (auto &lent = lentKeys[group.attention()][{needed, rank}];
        !lent.empty() && !cutValues[group.attention()].count({needed, rank}))
      cutValues[group.attention()][{needed, rank}] = lent.pop_back_val();
    value = get(valuesOf(group.attention()), needed, rank, loc);
    return value ? success() : reportAbsent(op, needed, rank);
  }
  ThingAttr stash = thing(Role::stash, piece, mb, slice);
  if (kind == "stash")
    value = get(valuesOf(group.chunk()), stash, rank, loc);
  else if (kind == "kept")
    value = get(keptOf(group.chunk()), stash, rank, loc);
  else if (kind == "pending")
    value = get(valuesOf(group.chunk()), thing(Role::temporary, piece, mb, slice), rank, loc);
  else if (kind == "stats")
    value = get(thing(Role::stat, leadOf(pieces, piece), mb, slice), rank, loc);
  else if (kind == "weight" && versioned) {
    FailureOr<Value> weight = weightOf(op, piece, rank);
    if (failed(weight))
      return failure();
    value = *weight;
  } else if (kind == "weight")
    value = get(thing(Role::weight, piece), rank, loc);
  else if (kind == "tokens" || kind == "targets" || kind == "source")
    value = dataInput(group.name, coord, rank, group.payload);
  bool isStash = kind == "kept" || kind == "stash";
  if (TransferOp move = isStash && !value ? stashMoves.lookup(stash) : TransferOp()) {
    auto error =
        emitError(loc) << "`" << op.getUnit().str() << "` on rank " << rank << " needs `" << stash.str()
                       << "`, which is "
                       << (move.getTo().getLayout() == Layout::host ? "in host memory" : "on " + move.getTo().str())
                       << withLoops(op);
    error.attachNote(move.getLoc()) << "moved there here" << withLoops(move);
    return error;
  }
  if (!value)
    return emitError(loc) << "`" << op.getUnit().str() << "` on rank " << rank << " has no `" << group.name
                          << "` to read there" << withLoops(op);
  return success();
}

LogicalResult StepBuilder::collectInputs(UnitOp op, const Body &body, SmallVectorImpl<Value> &inputs) {
  for (const BodyGroups::Group &group : body.groups.inputs) {
    if (group.name == "grad")
      continue; // the share, placed by the caller
    if (failed(readGroup(op, group, inputs.emplace_back())))
      return failure();
  }
  return success();
}

void StepBuilder::deliver(ThingAttr made, Value value, int64_t piece, int64_t rank, Location loc) {
  const auto &readers = consumers[made];
  int64_t next = made.getRole() == Role::act ? *groupOf(pieces, piece).end() : leadOf(pieces, piece) - 1;
  if (readers.size() > 1 && vocabularyShards(pieces, next)) {
    SmallVector<int64_t> ranks(readers.begin(), readers.end());
    llvm::sort(ranks);
    Value future = createMove(made, value, PlaceAttr::get(program.getContext(), ranks, Layout::full), loc, {});
    for (int64_t to : ranks)
      if (to != rank)
        values[{made, to}] = future;
    return;
  }
  for (int64_t to : readers)
    if (to != rank && !values.count({made, to}))
      values[{made, to}] = createMove(made, value, to, loc);
}

LogicalResult StepBuilder::recordResults(UnitOp op, const Body &body, TaskOp task, Share share) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = pieces.find(coord), rank = op.getRanks().front(), mb = coord.getMicrobatch(),
          slice = coord.getSlice();
  Phase phase = op.getUnit().getPhase();
  if (movesStashes && (phase == Phase::B || phase == Phase::I))
    stashUsers[thing(Role::stash, piece, mb, slice)] = op;
  for (auto [group, value] : llvm::zip(body.groups.results, task.getResults())) {
    if (group.name == "stats" || (vocabularyShards(pieces, piece) && (group.name == "act" || group.name == "dact"))) {
      if (failed(addShardResult(op, roleOf(group.kind()), piece, value)))
        return failure();
    } else if (group.name == "act" || group.name == "dact") {
      ThingAttr made = thing(group.name == "act" ? Role::act : Role::dact, piece, mb, slice);
      values[{made, rank}] = value;
      if (!moved.count(made))
        deliver(made, value, piece, rank, op.getLoc());
    } else if (group.kind() == "stash") {
      auto &map = valuesOf(group.chunk());
      map[{thing(Role::stash, piece, mb, slice), rank}] = value;
    } else if (group.kind() == "keys") {
      deliverKeys(op, value);
    } else if (group.kind() == "dkv" && keys.reads(piece)) {
      recordChunkShare(thing(Role::dkv, piece, mb, group.chunk()), rank, value, op.getLoc());
    } else if (group.kind() == "kv" || group.kind() == "dkv") {
      auto &map = valuesOf(group.attention());
      map[{thing(group.kind() == "kv" ? Role::kv : Role::dkv, piece, mb, group.chunk()), rank}] = value;
    } else if (group.kind() == "kept") {
      auto &map = keptOf(group.chunk());
      map[{thing(Role::stash, piece, mb, slice), rank}] = value;
    } else if (group.kind() == "pending") {
      auto &map = valuesOf(group.chunk());
      map[{thing(Role::temporary, piece, mb, slice), rank}] = value;
    } else if (group.name == "grad" && CutName::of(task.getCallee()).isLast()) {
      int64_t slices = std::max<int64_t>(program.getSlices(), 1);
      share.value = value;
      share.contributions.set(mb * slices + std::max<int64_t>(slice, 0));
      shares[{piece, rank}] = {share};
    } else if (group.name == "loss") {
      output(thing(Role::stat, piece, mb, slice), value, op.getLoc());
    }
  }
  return success();
}

const Body *StepBuilder::bodyOf(UnitOp op, bool continues) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = pieces.find(coord);
  Phase phase = op.getUnit().getPhase();
  std::string suffix = stringifyPhase(phase).str();
  if ((phase == Phase::B || phase == Phase::W) && pieces.hasWeights(piece) && !continues)
    suffix += ".first";
  std::string slice = coord.getSlice() < 0 ? "" : "." + std::to_string(coord.getSlice());
  if (const CutUnit *ahead = exchanges.ahead(op.getUnit()))
    return findBody(piece, stepName(suffix, 0, 1, ahead->plan) + slice);
  const Body *special = phase == Phase::F && remade.contains(coord) ? findBody(piece, "F.light" + slice)
                        : readAgain.contains(op)                    ? findBody(piece, "R.act" + slice)
                                                                    : nullptr;
  return special ? special : findBody(piece, suffix + slice);
}

LogicalResult StepBuilder::buildUnit(UnitOp op) {
  CoordAttr coord = op.getUnit().getCoord();
  Phase phase = op.getUnit().getPhase();
  int64_t piece = pieces.find(coord), rank = op.getRanks().front();
  if (op.getRanks().size() != 1)
    return emitError(op.getLoc()) << "`" << op.getUnit().str()
                                  << "` runs on a group of ranks, which is not supported yet" << withLoops(op);
  if (phase == Phase::U) {
    auto inLoop = dyn_cast<FusedLoc>(Location(op.getLoc()));
    if (toldLate.insert(inLoop ? inLoop.getLocations().front() : Location(op.getLoc())).second)
      emitRemark(op.getLoc()) << "`" << op.getUnit().str()
                              << "` runs at the end of the step: its clipping needs the norm of every gradient";
    return success();
  }
  turnTo(updateOf(program, coord.getMicrobatch()));
  Share share;
  if ((phase == Phase::B || phase == Phase::W) && pieces.hasWeights(piece))
    share = takeShare(piece, rank, op.getLoc());
  const Body *body = bodyOf(op, bool(share.value));
  if (!body && (phase == Phase::W || phase == Phase::R))
    return countGradient(op); // without weights W has nothing to do, and R has not where F keeps all there is
  if (!body)
    return emitError(op.getLoc()) << "`" << op.getUnit().str() << "` has no derived function";
  SmallVector<Value> inputs;
  if (failed(collectInputs(op, *body, inputs)))
    return failure();
  for (auto [i, group] : llvm::enumerate(body->groups.inputs))
    if (group.name == "grad")
      inputs.insert(inputs.begin() + i, share.value);
  TaskOp task = createTask(*body, op.getUnit(), rank, inputs, op.getLoc());
  if (op->getParentOp() != program.getOperation())
    setJoint(task);
  if (exchanges.ahead(op.getUnit()))
    setShare(task, *body, *findBody(piece, (stringifyPhase(phase) + "." + Twine(coord.getSlice())).str()));
  if (versioned && phase != Phase::W)
    task->setAttr("pipeline.version", builder.getI64IntegerAttr(versionOf(program, op, coord)));
  return success(succeeded(recordResults(op, *body, task, share)) && succeeded(countGradient(op)));
}

//===-- All actions ---------------------------------------------------------------------------------------------===//

LogicalResult StepBuilder::buildActions() {
  readActions();
  Block &body = program.getBody().front();
  SmallVector<Operation *> actions;
  for (Operation &op : body)
    if (isa<UnitOp, TransferOp, TogetherOp, AttendOp>(op))
      actions.push_back(&op);
  readVersions();
  lastInput = pieces.op(pieces.size() - 1);
  builder.setInsertionPointToEnd(&body);
  if (failed(createInputs()))
    return failure();
  for (Operation *action : actions) {
    SmallVector<TransferOp> transfers;
    joints += isa<TogetherOp>(action);
    auto joint = dyn_cast<TogetherOp>(action);
    bool exchanges = joint && !joint.getOps<AttendOp>().empty();
    if (exchanges && failed(buildExchange(joint)))
      return failure();
    if (auto attend = dyn_cast<AttendOp>(action); attend && failed(buildAhead(attend)))
      return failure();
    WalkResult walk = action->walk([&](Operation *op) {
      if (auto transfer = dyn_cast<TransferOp>(op))
        transfers.push_back(transfer);
      if (auto unit = dyn_cast<UnitOp>(op); unit && !exchanges)
        if (failed(buildUnit(unit)))
          return WalkResult::interrupt();
      return WalkResult::advance();
    });
    if (walk.wasInterrupted() || (!transfers.empty() && failed(buildTransfers(transfers))))
      return failure();
  }
  if (failed(finish()))
    return failure();
  for (Operation *action : actions)
    action->erase();
  return success();
}

namespace {
struct CompleteStep : public pp::impl::CompleteStepBase<CompleteStep> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(StepBuilder(getOperation(), program).buildActions()))
        return signalPassFailure();
  }
};
} // namespace
