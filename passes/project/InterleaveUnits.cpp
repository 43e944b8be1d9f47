// Chooses in which turns the ops of two launches run that stand side by side.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: launch @s0.F.. beside []            launch @s0.B ..
// After:  launch @s0.F.. beside [3, 8, 5, 2]  launch @s0.B ..     3 ops of F, 8 of B, 5 of F, 2 of B
//
// Times are those of the program's cluster. Without one an op takes as long as its arithmetic and its bytes, in one
// ratio for all, and a message as long as a rank computes between two of them on average.
#include "analysis/costs/Costs.h"
#include "mlir/IR/SymbolTable.h"
#include "passes/Passes.h"
#include <map>

namespace pp {
#define GEN_PASS_DEF_INTERLEAVEUNITS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

struct InterleaveUnits : public pp::impl::InterleaveUnitsBase<InterleaveUnits> {
  void runOnPrograms() override {
    SymbolTable symbols(getOperation());
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (!program.getMeshAttr())
        continue;
      std::unique_ptr<CostModel> costs;
      if (program.getClusterAttr() && !(costs = makeClusterCosts(program, /*experts=*/"")))
        return signalPassFailure();
      std::vector<Choice> made;
      for (auto rank : program.getOps<RankOp>())
        interleave(rank, costs.get(), symbols, made);
    }
  }

  /// Bodies of most stages take the same times on most ranks, and a choice takes long.
  struct Choice {
    SmallVector<OpTime> one, other;
    DenseI64ArrayAttr turns;
  };

  static void interleave(RankOp rank, const CostModel *costs, SymbolTable &symbols, std::vector<Choice> &made) {
    std::map<std::pair<const void *, const void *>, DenseI64ArrayAttr> chosen; // by both bodies
    auto number = static_cast<int64_t>(rank.getRank());
    auto timesOf = [&](LaunchOp launch) {
      return costs ? costs->opTimes(number, launch.getCallee())
                   : guessedTimes(symbols.lookup<func::FuncOp>(launch.getCallee()));
    };
    for (auto first : rank.getOps<LaunchOp>()) {
      LaunchOp second = first.follower();
      if (!second)
        continue;
      DenseI64ArrayAttr &turns =
          chosen[{first.getCalleeAttr().getAsOpaquePointer(), second.getCalleeAttr().getAsOpaquePointer()}];
      if (!turns) {
        SmallVector<OpTime> one = timesOf(first), other = timesOf(second);
        if (!costs)
          scaleMessages({&one, &other});
        auto known = llvm::find_if(made, [&](const Choice &its) { return its.one == one && its.other == other; });
        turns = known != made.end() ? known->turns : DenseI64ArrayAttr::get(rank.getContext(), chooseTurns(one, other));
        if (known == made.end())
          made.push_back({std::move(one), std::move(other), turns});
      }
      first.setBesideAttr(turns);
    }
  }
};

} // namespace
