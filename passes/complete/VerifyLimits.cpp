// Checks the schedule's own memory claims: at most so many weights, gradients or stashes alive at once on a rank.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: the step with `limit` ops. After: the same, or an error that names what arrived too much and what is kept.
#include "analysis/lives/StepLives.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_VERIFYLIMITS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

struct VerifyLimits : public pp::impl::VerifyLimitsBase<VerifyLimits> {
  void runOnPrograms() override {
    markAllAnalysesPreserved();
    for (auto program : getOperation().getOps<ProgramOp>()) {
      auto limits = llvm::to_vector(program.getOps<LimitOp>());
      if (limits.empty())
        continue;
      StepLives lives(program, getAnalysis<BodyTable>());
      for (LimitOp limit : limits)
        for (int64_t rank : limit.getRanks())
          if (failed(verify(limit, rank, lives.of(limit.getRole(), rank))))
            return signalPassFailure();
    }
  }

  static LogicalResult verify(LimitOp limit, int64_t rank, ArrayRef<ValueLife> lives) {
    AliveSum alive;
    for (const ValueLife &life : lives)
      alive.add(life);
    Most most = alive.most();
    if (most.sum <= static_cast<int64_t>(limit.getCount()))
      return success();
    return report(limit, rank, lives, most.sum, most.where);
  }

  static LogicalResult report(LimitOp limit, int64_t rank, ArrayRef<ValueLife> lives, int64_t most, int64_t when) {
    auto error = emitError(limit.getLoc())
                 << "rank " << rank << " holds " << most << " "
                 << (limit.getRole() == Role::stash ? "stashes" : (stringifyRole(limit.getRole()) + "s").str())
                 << " at once; the limit is " << static_cast<int64_t>(limit.getCount()) << withLoops(limit);
    const ValueLife *newest = nullptr, *longest = nullptr;
    for (const ValueLife &life : lives) {
      if (life.first > when || life.last < when)
        continue;
      if (!newest || life.first > newest->first)
        newest = &life;
      if (!longest || life.last > longest->last)
        longest = &life;
    }
    error.attachNote(newest->born->getLoc()) << "the last of them arrives here" << withLoops(newest->born);
    bool unused = longest->kept == longest->born;
    error.attachNote(longest->kept->getLoc())
        << (unused ? "one of them arrives here and is not used" : "one of them is kept for its use here")
        << withLoops(longest->kept);
    return error;
  }
};

} // namespace
