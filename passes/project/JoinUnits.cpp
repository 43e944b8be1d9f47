// Puts two units of one `together` on one rank side by side, where devices of the rank exchange something inside them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: task F(0, 1)   move act(0, 1)   wait dact(1, 0)   task B(0, 0)
// After:  wait dact(1, 0)   task F(0, 1) beside   task B(0, 0)   move act(0, 1)
//
// What comes of the first unit leaves behind both, and what the second needs comes before both. So it is not done where
// the second waits for something that another rank makes of the first. Other ranks keep their order: what follows from
// the first unit, and what stands behind that on their lists, moves behind the second; the order of all ranks stays one
// in which all comes before what needs it, so that it cannot deadlock (docs/proofs.md 6).
#include "dialect/nn/Nn.h"
#include "mlir/IR/SymbolTable.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_JOINUNITS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class Joiner {
public:
  explicit Joiner(ModuleOp module) : symbols(module) {}

  void run(ProgramOp program) {
    DenseMap<int64_t, TaskOp> before; // by rank: a task that has no other beside it
    SmallVector<std::pair<TaskOp, TaskOp>> pairs;
    for (auto task : program.getBody().front().getOps<TaskOp>()) {
      TaskOp &first = before[task.getRanks().front()];
      bool joins = first && mayJoin(first, task);
      if (joins)
        pairs.push_back({first, task});
      first = joins ? TaskOp() : task;
    }
    for (auto [first, second] : pairs)
      join(first, second);
  }

private:
  SymbolTable symbols;
  DenseMap<Attribute, bool> exchanges; ///< by callee

  bool doesExchange(TaskOp task) {
    auto [found, isNew] = exchanges.try_emplace(task.getCalleeAttr(), false);
    if (auto function = isNew ? symbols.lookup<func::FuncOp>(task.getCallee()) : func::FuncOp())
      found->second = function.walk([](nn::Exchange) { return WalkResult::interrupt(); }).wasInterrupted();
    return found->second;
  }

  bool mayJoin(TaskOp first, TaskOp second) {
    auto isUnit = [](TaskOp task) {
      return task.getJoint() && !task.getShare() && task.getUnit().getPhase() != Phase::U &&
             task.getRanks().size() == 1;
    };
    return isUnit(first) && isUnit(second) && *first.getJoint() == *second.getJoint() &&
           (doesExchange(first) || doesExchange(second));
  }

  static void join(TaskOp first, TaskOp second) {
    int64_t rank = first.getRanks().front();
    llvm::DenseSet<Operation *> follows = {first};
    llvm::DenseSet<int64_t> behind; // ranks on whose lists something follows
    auto needsFirst = [&](Operation *op) {
      return llvm::any_of(op->getOperands(), [&](Value value) { return follows.contains(value.getDefiningOp()); });
    };
    SmallVector<Operation *> late;
    for (Operation *op = first->getNextNode(); op != second; op = op->getNextNode()) {
      auto ranks = ranksOf(op);
      if (!needsFirst(op) && llvm::none_of(ranks, [&](int64_t other) { return behind.contains(other); }))
        continue;
      late.push_back(op);
      follows.insert(op);
      for (int64_t other : ranks)
        if (other != rank)
          behind.insert(other);
    }
    if (needsFirst(second))
      return;
    first->moveBefore(second);
    for (Operation *op : llvm::reverse(late))
      op->moveAfter(second);
    first.setBeside(true);
  }
};

struct JoinUnits : public pp::impl::JoinUnitsBase<JoinUnits> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (program.getMeshAttr())
        Joiner(getOperation()).run(program);
  }
};

} // namespace
