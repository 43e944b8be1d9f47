// Proves that the rank programs cannot deadlock with zero buffering, for maps of messages to lanes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The machine of analysis/Execution.h runs the programs; they are straight lines, so where it stops is where every run
// stops (docs/proofs.md 6).
#include "analysis/Proof.h"
#include "passes/Passes.h"
#include "passes/prove/DeadlockStory.h"
#include "llvm/ADT/StringExtras.h"

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
  static LogicalResult refuseExchanges(ProgramOp program, ChannelMap map) {
    llvm::DenseSet<Attribute> exchanging; // bodies
    for (auto body : program->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
      if (body.walk([](nn::Exchange) { return WalkResult::interrupt(); }).wasInterrupted())
        exchanging.insert(FlatSymbolRefAttr::get(body));
    for (auto rank : program.getOps<RankOp>())
      for (auto launch : rank.getOps<LaunchOp>())
        if (exchanging.contains(launch.getCalleeAttr()))
          return emitError(launch.getLoc())
                 << "`" << launch.getUnit().str()
                 << "` has messages between devices inside it; with `--channels=" << stringifyChannelMap(map)
                 << "` these are not proved yet";
    return success();
  }

  /// Lanes of the map that has most.
  LogicalResult prove(ProgramOp program) {
    int64_t lanes = 0, messages = 0;
    SmallVector<ChannelMap> maps = {channels};
    if (all)
      maps = {ChannelMap::edge, ChannelMap::pair, ChannelMap::direction, ChannelMap::rank, ChannelMap::serial};
    for (ChannelMap map : maps) {
      bool isShared = map != ChannelMap::pair && map != ChannelMap::edge;
      if (isShared && failed(refuseExchanges(program, map)))
        return failure();
      Execution execution(program, map);
      ExecutionListener nobody;
      execution.run(nobody);
      if (!execution.hasEnded())
        return tellDeadlock(program, map, execution);
      lanes = std::max(lanes, execution.countLanes());
      messages = execution.allMessages().size();
    }
    std::string names = llvm::join(llvm::map_range(maps, stringifyChannelMap), ", ");
    recordProof(program, "progress", {{"channels", names}, {"lanes", lanes}, {"messages", messages}});
    return success();
  }
};

} // namespace
