// Proves that the rank programs cannot deadlock with zero buffering, or tells the cycle of waits.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Posts never block; a complete blocks until every end of its message has posted. So every op waits for the op before it
// on its rank, and a complete also for the peers' posts. The programs are straight lines: a deadlock exists if and only if
// this graph has a cycle (proofs.md 6). Executing it greedily decides that in linear time.
#include "passes/Actions.h"
#include "passes/Execution.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_PROVEPROGRESS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static std::string tell(int64_t rank, PostOp post) {
  std::string peer = std::to_string(post.getPeers().front()), thing = "`" + post.getThing().str() + "`";
  std::string self = "rank " + std::to_string(rank);
  if (post.getKind() == PostKind::send)
    return self + " sends " + thing + " to rank " + peer + " and waits, because rank " + peer + " has not posted the receive";
  return self + " waits for " + thing + " from rank " + peer + ", which has not sent it";
}

/// The story of the cycle: who waits for whom, from the first rank that is stuck.
static LogicalResult report(ProgramOp program, const Execution &execution, int64_t first) {
  PostOp post = execution.waitsFor(first);
  auto error = emitError(post.getLoc()) << "the ranks wait for each other: " << tell(first, post) << withLoops(post);
  SmallVector<int64_t> told = {first};
  for (int64_t rank = post.getPeers().front(); !llvm::is_contained(told, rank);) {
    told.push_back(rank);
    if (execution.hasEnded(rank)) {
      error.attachNote(program.getLoc()) << "rank " << rank << " has ended";
      break;
    }
    PostOp other = execution.waitsFor(rank);
    error.attachNote(other.getLoc()) << tell(rank, other) << withLoops(other);
    rank = other.getPeers().front();
  }
  return failure();
}

static LogicalResult prove(ProgramOp program) {
  Execution execution(program);
  execution.run([](int64_t, LaunchOp, double) { return 0.0; });
  for (int64_t rank = 0; rank < execution.ranks(); ++rank)
    if (!execution.hasEnded(rank))
      return report(program, execution, rank);
  return success();
}

namespace {

struct ProveProgress : public pp::impl::ProveProgressBase<ProveProgress> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(prove(program)))
        return signalPassFailure();
  }
};

} // namespace
