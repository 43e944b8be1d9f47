// Reads the actions of a schedule for what the parts of `complete-step` must know before they build anything.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/StepOutline.h"
#include "analysis/Vocabulary.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

StepOutline::StepOutline(const StepValues &step) : exchanges(step.program), keys(step.program, step.pieces.all()) {
  Recomputers recomputers;
  ProgramOp program = step.program;
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
  return body && body->input("act");
}

void StepOutline::readUnit(const StepValues &step, UnitOp op, Recomputers &recomputers) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = step.pieces.find(coord), rank = op.getRanks().front();
  Phase phase = op.getUnit().getPhase();
  for (int64_t before : piecesBefore(step.pieces, piece)) {
    ThingAttr act = step.thing(Role::act, before, coord);
    if (Operation *recomputer = recomputers.lookup({act, rank}); recomputer && readsActivation(step, piece, phase))
      readAgain.insert(recomputer);
    if (phase == Phase::F)
      readers[act].push_back(rank);
  }
  if (phase == Phase::F && keys.reads(piece))
    keyReaders[step.thing(Role::kv, piece, coord)] = rank;
  if (phase == Phase::R) {
    recomputed.insert(coord);
    recomputers[{step.thing(Role::act, piece, coord), rank}] = op;
  }
  if (phase != Phase::B && phase != Phase::I)
    return;
  for (int64_t after : piecesAfter(step.pieces, piece))
    readers[step.thing(Role::dact, after, coord)].push_back(rank);
  if (keys.makes(piece))
    keyReaders[step.thing(Role::dkv, piece + 1, coord)] = rank;
}

void StepOutline::readMove(const StepValues &step, TransferOp op) {
  Role role = op.getThing().getRole();
  movesStashes |= role == Role::stash;
  if (role == Role::grad)
    gradMoves[step.pieces.find(op.getThing().getCoord())] = op;
  else
    moves[op.getThing()] = op;
  if (role == Role::kv)
    for (int64_t to : op.getTo().getRanks())
      keysMovedTo.insert({op.getThing(), to});
}
