// Counts the gradients that each update waits for, and keeps weights that units of other versions still read.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// `updates 2`, and units with the weights of one update before (PipeDream-2BW), on the rank of stage 0:
//
//   weight(0)           w0 ─────────────────── U(0, 0) ──▶ w1 ───────────────── U(0, 1) ──▶ w2 ─▶ next step's w0
//   kept                w-1  read by F, B of ..│   copy ▶ w0  read by F, B of ..│   copy ▶ w1 ─▶ next step's w-1
//   microbatches        0 1 2 3                │          4 5 6 7               │
//
// An update works in place. Where its old weights are read later, by units or by the next step, a copy is made first.
// Versions older than the step's beginning are inputs and outputs of the step.
#include "passes/complete/WeightVersions.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

WeightVersions::WeightVersions(StepValues &step, const GradientShares &gradients)
    : step(step), gradients(gradients), used(hasVersions(step.program)), newest(step.pieces.size()),
      carried(step.pieces.size()) {
  if (!used)
    return;
  together = pp::updatesTogether(step.program, step.pieces);
  step.program.walk([&](UnitOp op) { readUnit(op); });
}

void WeightVersions::readUnit(UnitOp op) {
  CoordAttr coord = op.getUnit().getCoord();
  Phase phase = op.getUnit().getPhase();
  int64_t piece = step.pieces.find(coord), version = versionOf(step.program, op);
  if (!step.pieces.trains(piece))
    return;
  if (phase != Phase::W) {
    ++readers[{piece, version}];
    carried[piece] = std::max(carried[piece], -version);
  }
  if (phase == Phase::B || phase == Phase::W) {
    int64_t update = updateOf(step.program, coord.getMicrobatch());
    ++lacking[{piece, update}];
    ++lacking[{-1, update}];
  }
}

void WeightVersions::createInputs(int64_t piece) {
  int64_t rank = step.pieces.owner(piece);
  for (int64_t back = 1; back <= carried[piece]; ++back)
    old[{piece, -back}] =
        step.addInput(Thing(Role::weight, piece, back), step.typeOn(Role::weight, step.bodies.weightsOf(piece), rank));
}

FailureOr<Value> WeightVersions::get(UnitOp op, int64_t piece, int64_t rank) {
  int64_t version = versionOf(step.program, op);
  if (rank != step.pieces.owner(piece)) // whoever reads it reports that it is not there
    return Value();
  --readers[{piece, version}];
  if (version == newest[piece])
    return step.get({Thing(Role::weight, piece), rank}, op.getLoc());
  auto kept = old.find({piece, version});
  if (kept != old.end())
    return kept->second;
  return emitError(op.getLoc()) << "`" << op.getUnit().str() << "` on rank " << rank << " reads version " << version
                                << " of `weight(" << step.pieces.name(piece) << ")`, and the newest is "
                                << newest[piece] << withLoops(op);
}

SmallVector<int64_t> WeightVersions::finishedBy(UnitOp op) {
  Phase phase = op.getUnit().getPhase();
  int64_t piece = step.pieces.find(op.getUnit().getCoord());
  if (gradients.updates() == 1 || (phase != Phase::B && phase != Phase::W) || !step.pieces.trains(piece))
    return {};
  int64_t ofAll = --lacking[{-1, gradients.update()}], ofPiece = --lacking[{piece, gradients.update()}];
  if (!together)
    return ofPiece > 0 ? SmallVector<int64_t>() : SmallVector<int64_t>{piece};
  return ofAll > 0 ? SmallVector<int64_t>() : llvm::to_vector(llvm::seq(int64_t(0), step.pieces.size()));
}

void WeightVersions::setUpdated(ArrayRef<int64_t> pieces) {
  for (int64_t piece : pieces)
    newest[piece] = gradients.update() + 1;
}

Value WeightVersions::createCopy(int64_t piece, int64_t rank, Value weights) {
  return step
      .createTask(step.bodies.copy(piece), gradients.updateUnit(piece), rank, {weights}, step.pieces.op(piece).getLoc())
      .getResult(0);
}

/// The copy is made where the next step wants it, if it wants it and nothing there is read any more.
void WeightVersions::keepOld(int64_t piece, int64_t rank) {
  int64_t version = newest[piece], back = gradients.updates() - version;
  bool carries = back <= carried[piece];
  if (readers[{piece, version}] == 0 && !carries)
    return;
  Value weights = step.get({Thing(Role::weight, piece), rank}, step.pieces.op(piece).getLoc());
  old[{piece, version}] = createCopy(piece, rank, weights);
  bool isFree = readers[{piece, -back}] == 0 && back + gradients.updates() > carried[piece];
  if (carries && isFree)
    keptWhereWanted.insert({piece, version});
}

/// Outputs the oldest version first: each version takes the place of an older one.
void WeightVersions::outputOld(int64_t piece) {
  for (int64_t back = carried[piece]; back > 0; --back) {
    int64_t version = gradients.updates() - back;
    Value weights = old[{piece, version}];
    if (version < 0 || !keptWhereWanted.contains({piece, version}))
      weights = createCopy(piece, step.pieces.owner(piece), weights);
    step.output(Thing(Role::weight, piece, back), weights, step.pieces.op(piece).getLoc());
  }
}
