// Sends weights earlier, during the tasks before, as far as the simulator says that the step becomes shorter.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: task F(0, 0) on [0]; move weight(1) to [0]; wait; task F(1, 0) on [0]      the rank waits for its next stage
// After:  move weight(1) to [0]; task F(0, 0) on [0]; wait; task F(1, 0) on [0]      it comes while the rank computes
//
// Both ends post where the move stands, so a move may stand anywhere in the one global order between what makes its
// value and its `wait`: every member sees the same order, and the projection cannot deadlock (docs/proofs.md 6). Moves
// of weights that share a rank keep their order. Waits stay where they are. An earlier arrival holds its memory longer:
// a distance that breaks a `limit` of the schedule, or the memory of a rank, is not taken.
#include "analysis/Simulate.h"
#include "analysis/costs/Costs.h"
#include "passes/Passes.h"
#include <cmath>

namespace pp {
#define GEN_PASS_DEF_HOISTMOVES
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

SmallVector<int64_t> ranksAtBothEnds(MoveOp move) {
  SmallVector<int64_t> members(cast<ValType>(move.getValue().getType()).getRanks());
  llvm::append_range(members, move.getTarget().getRanks());
  llvm::sort(members);
  members.erase(llvm::unique(members), members.end());
  return members;
}

bool movesWeight(MoveOp move) {
  return move.getThing().getRole() == Role::weight && move.getTarget().getLayout() != Layout::host;
}

/// Moves of weights pass so many tasks of each of their ranks.
struct Hoist {
  int64_t distance;
  int64_t moved = 0;

  void run(ProgramOp program) {
    SmallVector<MoveOp> moves;
    for (auto move : program.getBody().front().getOps<MoveOp>())
      if (movesWeight(move))
        moves.push_back(move);
    for (MoveOp move : moves)
      hoist(move);
  }

  /// Whether the move may not stand before this op.
  bool stops(Operation *op, MoveOp move, ArrayRef<int64_t> members, DenseMap<int64_t, int64_t> &passed) const {
    auto join = move.getValue().getDefiningOp<JoinOp>(); // shards seen together: it goes along
    if (join ? llvm::any_of(join.getValues(), [&](Value part) { return part.getDefiningOp() == op; })
             : move.getValue().getDefiningOp() == op)
      return true;
    if (auto other = dyn_cast<MoveOp>(op))
      return movesWeight(other) &&
             llvm::any_of(ranksAtBothEnds(other), [&](int64_t rank) { return llvm::is_contained(members, rank); });
    auto task = dyn_cast<TaskOp>(op);
    return isa<InputOp, PieceOp>(op) || (task && llvm::is_contained(members, task.getRanks().front()) &&
                                         passed[task.getRanks().front()]++ >= distance);
  }

  void hoist(MoveOp move) {
    SmallVector<int64_t> members = ranksAtBothEnds(move);
    DenseMap<int64_t, int64_t> passed;
    Operation *target = nullptr; // only a task of its own ranks is worth passing
    for (Operation *op = move->getPrevNode(); op && !stops(op, move, members, passed); op = op->getPrevNode())
      if (auto task = dyn_cast<TaskOp>(op); task && llvm::is_contained(members, task.getRanks().front()))
        target = op;
    if (!target)
      return;
    if (auto join = move.getValue().getDefiningOp<JoinOp>())
      join->moveBefore(target);
    move->moveBefore(target);
    move.removeGroupAttr(); // it goes alone
    ++moved;
  }
};

struct HoistMoves : public pp::impl::HoistMovesBase<HoistMoves> {
  using HoistMovesBase::HoistMovesBase;

  void runOnPrograms() override {
    auto [chosen, share] = choose();
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (program.getForward())
        continue;
      Hoist hoist{chosen};
      if (chosen > 0)
        hoist.run(program);
      auto remark = program.emitRemark();
      if (hoist.moved == 0)
        remark << "no weights leave earlier: the simulated step does not gain by it";
      else
        remark << hoist.moved << " moves of weights stand up to " << chosen << (chosen == 1 ? " task" : " tasks")
               << " earlier: the simulated step takes " << std::to_string(std::lround(1000 * share))
               << "/1000 of its time";
    }
  }

private:
  static constexpr double kGain = 1e-3; ///< a smaller one is not worth the memory

  /// The distance, and the share of the step's time that is left with it.
  std::pair<int64_t, double> choose() {
    std::optional<double> now = timeAt(0);
    if (!now)
      return {0, 1}; // a later pass says what is wrong
    for (int64_t given = distance; given > 0; --given)
      if (std::optional<double> time = timeAt(given))
        return {given, *time / *now};
    std::pair<int64_t, double> best = {0, *now};
    for (int64_t next : {1, 2, 3, 4, 6, 8, 12, 16}) {
      std::optional<double> time = distance > 0 ? std::nullopt : timeAt(next);
      if (!time)
        break; // farther is no smaller
      if (*time < best.second * (1 - kGain))
        best = {next, *time};
    }
    return {best.first, best.second / *now};
  }

  /// The time of the steps with this distance; nothing if limits or memory do not allow the distance.
  std::optional<double> timeAt(int64_t far) {
    OwningOpRef<ModuleOp> trial = getOperation().clone();
    if (ProgramOp forward = ProgramOp::forwardOf(*trial))
      forward.erase();
    ScopedDiagnosticHandler silence(&getContext(), [](Diagnostic &) { return success(); });
    for (auto program : trial->getOps<ProgramOp>())
      Hoist{far}.run(program);
    PassManager manager(&getContext());
    manager.addPass(createVerifyLimits());
    manager.addPass(createPlanBodies());
    manager.addPass(createProjectRanks());
    manager.addPass(createPlanSlots());
    manager.addPass(createProveMemory({memoryLimit}));
    if (failed(manager.run(*trial)))
      return std::nullopt;
    double sum = 0;
    for (auto program : trial->getOps<ProgramOp>()) {
      std::unique_ptr<CostModel> model = makeCosts(program, costs);
      if (!model)
        return std::nullopt;
      FailureOr<Timeline> timeline = simulate(program, *model);
      if (failed(timeline))
        return std::nullopt;
      sum += timeline->step;
    }
    return sum;
  }
};

} // namespace
