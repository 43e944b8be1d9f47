// Proves that the rank programs cannot deadlock with zero buffering, for one map of messages to lanes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The machine of analysis/Execution.h runs the programs; they are straight lines, so where it stops is where every run
// stops (docs/proofs.md 6).
#include "analysis/Proof.h"
#include "passes/Passes.h"
#include "passes/prove/DeadlockStory.h"

namespace pp {
#define GEN_PASS_DEF_PROVEPROGRESS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

struct ProveProgress : public pp::impl::ProveProgressBase<ProveProgress> {
  using ProveProgressBase::ProveProgressBase;

  void runOnPrograms() override {
    markAllAnalysesPreserved();
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(prove(program)))
        return signalPassFailure();
  }

  LogicalResult prove(ProgramOp program) {
    Execution execution(program, channels);
    ExecutionListener nobody;
    execution.run(nobody);
    if (!execution.hasEnded())
      return tellDeadlock(program, channels, execution);
    int64_t messages = execution.allMessages().size();
    recordProof(
        program, "progress",
        {{"channels", stringifyChannelMap(channels)}, {"lanes", execution.countLanes()}, {"messages", messages}});
    return success();
  }
};

} // namespace
