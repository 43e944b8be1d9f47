// Turns the actions of a schedule into one SSA step: tasks on placed values, explicit and inferred moves.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: unit F(0, 0) on [0]      After: %a, %s = task @s0.F <F 0, 0> on [0] (%w0)
//         unit F(1, 0) on [1]             %f = move act(0, 0) %a : [0] -> [1]      inferred, right after its producer
//                                         %b = wait %f                             right before its consumer
//                                         %l = task @s1.F <F 1, 0> on [1] (%b, %w1)
//
// Weights are values and gradients are sums spread over ranks (frontend/LANGUAGE.md, "Two laws"): `move weight`
// delivers a copy, `move grad` takes the whole share away. A thing that the schedule moves once, it always moves: then
// nothing is inferred for it.
//
// The work is done by classes that share the growing step (StepValues) and what was read of the schedule (StepOutline):
//
//   UnitBuilder         a unit: its body, inputs and results     AttentionExchange  units that are cut at attentions
//   Activations         results that go to their readers         KeyShares          keys, and sums of their gradients
//   MoveBuilder         moves that the schedule writes           GradientShares     who holds which share of a gradient
//   UpdateBuilder       reductions, norms, updates               WeightVersions     several updates, old weights
#include "passes/Passes.h"
#include "passes/complete/AttentionExchange.h"

namespace pp {
#define GEN_PASS_DEF_COMPLETESTEP
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class StepBuilder {
public:
  StepBuilder(ModuleOp module, ProgramOp program)
      : step(module, program), outline(step), gradients(step, outline), keys(step, outline), versions(step, gradients),
        moves(step, outline, gradients, keys), updates(step, outline, gradients, versions),
        units(step, outline, gradients, keys, versions, moves, updates),
        exchange(step, outline, gradients, keys, units) {}

  LogicalResult build() {
    SmallVector<Operation *> actions;
    for (Operation &op : step.program.getBody().front())
      if (isa<UnitOp, TransferOp, TogetherOp, AttendOp>(op))
        actions.push_back(&op);
    if (step.program.getOps<PieceOp>().empty())
      return step.program.emitOpError("has no pieces; expected at least one");
    for (auto piece : step.program.getOps<PieceOp>())
      if (!piece.getBodiesAttr() || !piece.getWeightsAttr())
        return piece.emitOpError() << "has no task bodies; expected a program behind derive-tasks";
    step.begin();
    if (failed(updates.createInputs()))
      return failure();
    updates.postNorm();
    for (Operation *action : actions) {
      if (!isOfForward(action))
        updates.judge();
      if (failed(buildAction(action)))
        return failure();
    }
    if (failed(updates.finish()))
      return failure();
    for (Operation *action : actions)
      action->erase();
    return success();
  }

private:
  StepValues step;
  StepOutline outline;
  GradientShares gradients;
  KeyShares keys;
  WeightVersions versions;
  MoveBuilder moves;
  UpdateBuilder updates;
  UnitBuilder units;
  AttentionExchange exchange;

  /// Whether it is done over where the weights that it read were wrong: units F, and moves of what they make.
  static bool isOfForward(Operation *action) {
    if (auto unit = dyn_cast<UnitOp>(action))
      return unit.getUnit().getPhase() == Phase::F;
    if (auto attend = dyn_cast<AttendOp>(action))
      return attend.getUnit().getPhase() == Phase::F;
    if (auto move = dyn_cast<TransferOp>(action))
      return llvm::is_contained({Role::act, Role::kv}, move.getThing().getRole());
    return llvm::all_of(cast<TogetherOp>(action).getBody().front(), [](Operation &one) { return isOfForward(&one); });
  }

  LogicalResult buildAction(Operation *action) {
    if (auto unit = dyn_cast<UnitOp>(action))
      return units.build(unit);
    if (auto attend = dyn_cast<AttendOp>(action))
      return exchange.buildAhead(attend);
    if (auto transfer = dyn_cast<TransferOp>(action))
      return moves.build(transfer);
    return buildTogether(cast<TogetherOp>(action));
  }

  /// The units first, then all moves as one group.
  LogicalResult buildTogether(TogetherOp together) {
    units.beginJoint();
    if (!together.getOps<AttendOp>().empty()) {
      if (failed(exchange.build(together)))
        return failure();
    } else {
      for (auto unit : together.getOps<UnitOp>())
        if (failed(units.build(unit)))
          return failure();
    }
    auto transfers = llvm::to_vector(together.getOps<TransferOp>());
    return transfers.empty() ? success() : moves.build(transfers);
  }
};

struct CompleteStep : public pp::impl::CompleteStepBase<CompleteStep> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(StepBuilder(getOperation(), program).build()))
        return signalPassFailure();
  }
};

} // namespace
