// Proves that the rank programs cannot deadlock with zero buffering, or tells the cycle of waits.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Posts never block; a complete blocks until every end of its message has posted. So every op waits for the op before
// it on its rank, and a complete also for the peers' posts. The programs are straight lines: a deadlock exists if and
// only if this graph has a cycle (proofs.md 6). Executing it greedily decides that in linear time.
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

/// How many collectives of this channel a rank has posted before `stop`; all of them where `stop` is null.
static size_t countJoined(ProgramOp program, int64_t rank, uint64_t channel, Operation *stop) {
  size_t count = 0;
  for (auto op : program.getOps<RankOp>())
    if (static_cast<int64_t>(op.getRank()) == rank)
      for (Operation &inner : op.getBody().front()) {
        if (&inner == stop)
          break;
        auto post = dyn_cast<PostOp>(inner);
        count += post && post.getKind() == PostKind::all_reduce && post.getChannel().value_or(0) == channel;
      }
  return count;
}

/// The rank that this message lacks: its other end, or the first member that has not joined the sum.
static int64_t lackingRank(ProgramOp program, const Execution &execution, int64_t rank, PostOp post) {
  if (post.getKind() != PostKind::all_reduce)
    return post.getPeers().front();
  uint64_t channel = post.getChannel().value_or(0);
  size_t mine = countJoined(program, rank, channel, post);
  for (int64_t member : post.getPeers()) {
    Operation *stop = nullptr;
    if (!execution.hasEnded(member))
      stop = *execution.waitsFor(member).getRequest().user_begin();
    if (member != rank && countJoined(program, member, channel, stop) <= mine)
      return member;
  }
  return post.getPeers().front();
}

static std::string tell(int64_t rank, PostOp post, int64_t lacking) {
  std::string peer = "rank " + std::to_string(lacking), thing = "`" + post.getThing().str() + "`";
  std::string self = "rank " + std::to_string(rank);
  if (post.getKind() == PostKind::send)
    return self + " sends " + thing + " to " + peer + " and waits, because " + peer + " has not posted the receive";
  if (post.getKind() == PostKind::all_reduce)
    return self + " waits for the sum of " + thing + ", which " + peer + " has not joined";
  return self + " waits for " + thing + " from " + peer + ", which has not sent it";
}

/// The story of the cycle: who waits for whom, from the first rank that is stuck.
static LogicalResult report(ProgramOp program, const Execution &execution, int64_t first) {
  PostOp post = execution.waitsFor(first);
  int64_t rank = lackingRank(program, execution, first, post);
  auto error = emitError(post.getLoc()) << "the ranks wait for each other: " << tell(first, post, rank)
                                        << withLoops(post);
  SmallVector<int64_t> told = {first};
  while (!llvm::is_contained(told, rank)) {
    told.push_back(rank);
    if (execution.hasEnded(rank)) {
      error.attachNote(program.getLoc()) << "rank " << rank << " has ended";
      break;
    }
    PostOp other = execution.waitsFor(rank);
    int64_t next = lackingRank(program, execution, rank, other);
    error.attachNote(other.getLoc()) << tell(rank, other, next) << withLoops(other);
    rank = next;
  }
  return failure();
}

static LogicalResult prove(ProgramOp program) {
  Execution execution(program);
  ExecutionListener nobody;
  execution.run(nobody);
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
