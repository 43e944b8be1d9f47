// Proves that the rank programs cannot deadlock with zero buffering, or tells the cycle of waits.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Posts never block; a complete blocks until every end of its message has posted. So every op waits for the op before it
// on its rank, and a complete also for the peers' posts. The programs are straight lines: a deadlock exists if and only if
// this graph has a cycle (proofs.md 6). Executing it greedily decides that in linear time.
#include "passes/Actions.h"
#include "passes/Passes.h"
#include <numeric>

namespace pp {
#define GEN_PASS_DEF_PROVEPROGRESS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class Execution {
public:
  explicit Execution(ProgramOp program) : program(program) {
    for (auto rank : program.getOps<RankOp>()) {
      auto &list = lists.emplace_back();
      for (Operation &op : rank.getBody().front())
        if (isa<LaunchOp, PostOp, CompleteOp>(op))
          list.push_back(&op);
    }
    next.assign(lists.size(), 0);
  }

  LogicalResult run() {
    std::vector<int64_t> ready(lists.size());
    std::iota(ready.begin(), ready.end(), 0);
    while (!ready.empty()) {
      int64_t rank = ready.back();
      ready.pop_back();
      while (next[rank] < lists[rank].size() && step(rank, lists[rank][next[rank]], ready))
        ++next[rank];
    }
    for (size_t rank = 0; rank < lists.size(); ++rank)
      if (next[rank] < lists[rank].size())
        return report(rank);
    return success();
  }

private:
  /// The k-th message of a lane or collective: how many ends have posted, and who blocks in its complete.
  struct Message {
    size_t posted = 0;
    SmallVector<int64_t, 2> blocked;
  };
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>; // from, to, channel, k

  ProgramOp program;
  std::vector<std::vector<Operation *>> lists;
  std::vector<size_t> next;
  std::map<Key, Message> messages;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, int64_t> counts; // from, to, channel, end -> posts so far
  DenseMap<Operation *, Key> keys;

  bool step(int64_t rank, Operation *op, std::vector<int64_t> &ready) {
    if (auto post = dyn_cast<PostOp>(op)) {
      Message &message = messages[keyOf(rank, post)];
      ++message.posted;
      if (message.posted >= ends(post)) {
        llvm::append_range(ready, message.blocked);
        message.blocked.clear();
      }
      return true;
    }
    auto complete = dyn_cast<CompleteOp>(op);
    if (!complete)
      return true;
    auto post = complete.getRequest().getDefiningOp<PostOp>();
    Message &message = messages[keys[post]];
    if (message.posted >= ends(post))
      return true;
    message.blocked.push_back(rank);
    return false;
  }

  static size_t ends(PostOp post) { return post.getKind() == PostKind::all_reduce ? post.getPeers().size() : 2; }

  Key keyOf(int64_t rank, PostOp post) {
    int64_t peer = post.getPeers().front(), channel = post.getChannel().value_or(0);
    bool send = post.getKind() == PostKind::send, receive = post.getKind() == PostKind::receive;
    int64_t from = send ? rank : receive ? peer : -1, to = send ? peer : receive ? rank : -1;
    int64_t end = send ? -1 : receive ? -2 : rank; // every end counts its own posts
    Key key = {from, to, channel, counts[{from, to, channel, end}]++};
    keys[post] = key;
    return key;
  }

  LogicalResult report(int64_t first) {
    auto blockedAt = [&](int64_t rank) {
      return cast<CompleteOp>(lists[rank][next[rank]]).getRequest().getDefiningOp<PostOp>();
    };
    PostOp post = blockedAt(first);
    auto error = emitError(post.getLoc()) << "the ranks wait for each other: " << tell(first, post) << withLoops(post);
    SmallVector<int64_t> told = {first};
    for (int64_t rank = post.getPeers().front(); !llvm::is_contained(told, rank);) {
      told.push_back(rank);
      if (next[rank] >= lists[rank].size()) {
        error.attachNote(program.getLoc()) << "rank " << rank << " has ended";
        break;
      }
      PostOp other = blockedAt(rank);
      error.attachNote(other.getLoc()) << tell(rank, other) << withLoops(other);
      rank = other.getPeers().front();
    }
    return failure();
  }

  static std::string tell(int64_t rank, PostOp post) {
    std::string peer = std::to_string(post.getPeers().front()), thing = "`" + post.getThing().str() + "`";
    std::string self = "rank " + std::to_string(rank);
    if (post.getKind() == PostKind::send)
      return self + " sends " + thing + " to rank " + peer + " and waits, because rank " + peer + " has not posted the receive";
    return self + " waits for " + thing + " from rank " + peer + ", which has not sent it";
  }
};

struct ProveProgress : public pp::impl::ProveProgressBase<ProveProgress> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(Execution(program).run()))
        return signalPassFailure();
  }
};

} // namespace
