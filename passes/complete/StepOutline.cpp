// Collects from the actions of a schedule all that the parts of `complete-step` must know before they build anything.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/StepOutline.h"
#include "analysis/Vocabulary.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

StepOutline::StepOutline(const StepValues &step)
    : exchanges(step.program), keys(step.program, step.pieces.all()), pieces(step.pieces) {
  Recomputers recomputers;
  ProgramOp program = step.program;
  microbatches = program.getMicrobatches();
  slices = std::max<int64_t>(program.getSlices(), 1);
  forwards.assign(pieces.size() * microbatches * slices, -1);
  backwards = forwards;
  program.walk([&](Operation *op) {
    if (auto unit = dyn_cast<UnitOp>(op))
      readUnit(step, unit, recomputers);
    else if (auto move = dyn_cast<TransferOp>(op))
      readMove(step, move);
  });
}

/// Whether units of this phase read the activation that comes in.
static bool readsActivation(const StepValues &step, int64_t piece, Phase phase) {
  const TaskBody *body = step.bodies.find(piece, phase);
  return body && body->input(GroupKind::act);
}

void StepOutline::readUnit(const StepValues &step, UnitOp op, Recomputers &recomputers) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = step.pieces.find(coord), rank = op.getRanks().front();
  Phase phase = op.getUnit().getPhase();
  for (int64_t before : piecesBefore(step.pieces, piece)) {
    Thing act = step.thing(Role::act, before, coord);
    if (Operation *recomputer = recomputers.lookup({act, rank}); recomputer && readsActivation(step, piece, phase))
      readAgain.insert(recomputer);
  }
  size_t number = numberOf(piece, coord.getMicrobatch(), coord.getSlice());
  if (phase == Phase::F)
    forwards[number] = rank;
  if (phase == Phase::F && keys.reads(piece))
    keyReaders[step.thing(Role::kv, piece, coord)] = rank;
  if (phase == Phase::R) {
    recomputed.insert(coord);
    recomputers[{step.thing(Role::act, piece, coord), rank}] = op;
  }
  if ((phase == Phase::B || phase == Phase::W) && step.pieces.trains(piece)) {
    UnitOp &last = lastGradients[rank];
    CoordAttr before = last ? last.getUnit().getCoord() : CoordAttr();
    if (before && before.getMicrobatch() == coord.getMicrobatch() && step.pieces.find(before) == piece)
      goesOn.insert(last);
    last = op;
  }
  if (phase != Phase::B && phase != Phase::I)
    return;
  backwards[number] = rank;
  if (keys.makes(piece))
    keyReaders[step.thing(Role::dkv, piece + 1, coord)] = rank;
}

SmallVector<int64_t, 2> StepOutline::readersOf(Thing made) const {
  bool isForward = made.role == Role::act;
  SmallVector<int64_t, 2> ranks;
  auto add = [&](int64_t reader) {
    if (int64_t rank = (isForward ? forwards : backwards)[numberOf(reader, made.microbatch, made.slice)]; rank >= 0)
      ranks.push_back(rank);
  };
  if (pieces.isSkip(made.piece))
    llvm::for_each(pieces.skip(made.piece).readers, add);
  else
    llvm::for_each(isForward ? piecesAfter(pieces, made.piece) : piecesBefore(pieces, made.piece), add);
  return ranks;
}

void StepOutline::readMove(const StepValues &step, TransferOp op) {
  Thing thing = step.thing(op.getThing());
  movesStashes |= thing.role == Role::stash;
  if (thing.role == Role::grad)
    gradMoves[thing.piece] = op;
  else
    moves[thing] = op;
  if (thing.role == Role::kv)
    for (int64_t to : op.getTo().getRanks())
      keysMovedTo.insert({thing, to});
}
