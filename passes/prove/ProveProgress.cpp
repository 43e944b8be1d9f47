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

  /// If messages of a rank share a lane, messages inside its units use this lane, too, and the proof does not model
  /// them.
  LogicalResult refuseExchanges(ProgramOp program) const {
    SymbolTable symbols(program->getParentOfType<ModuleOp>());
    for (auto rank : program.getOps<RankOp>())
      for (auto launch : rank.getOps<LaunchOp>())
        if (auto body = symbols.lookup<func::FuncOp>(launch.getCallee());
            body && body.walk([](nn::Exchange) { return WalkResult::interrupt(); }).wasInterrupted())
          return emitError(launch.getLoc())
                 << "`" << launch.getUnit().str()
                 << "` has messages between devices inside it; with `--channels=" << stringifyChannelMap(channels)
                 << "` these are not proved yet";
    return success();
  }

  LogicalResult prove(ProgramOp program) {
    bool isShared = channels == ChannelMap::rank || channels == ChannelMap::direction;
    if (isShared && failed(refuseExchanges(program)))
      return failure();
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
