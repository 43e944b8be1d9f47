// Event simulation of the rank programs: the same lists that are lowered, with a time for every op.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Simulate.h"
#include <map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

double CostModel::of(Phase phase) const {
  switch (phase) {
  case Phase::F:
    return forward;
  case Phase::B:
    return backward;
  case Phase::I:
    return inputs;
  case Phase::W:
    return weights;
  case Phase::R:
    return recompute;
  case Phase::U:
    return 0;
  }
  return 0;
}

double Timeline::busy(int64_t rank) const {
  double sum = 0;
  for (const Span &span : ranks[rank])
    sum += span.end - span.start;
  return sum;
}

namespace {

class Simulator {
public:
  Simulator(ProgramOp program, const CostModel &costs) : costs(costs) {
    for (auto rank : program.getOps<RankOp>()) {
      auto &list = lists.emplace_back();
      for (Operation &op : rank.getBody().front())
        if (isa<LaunchOp, PostOp, CompleteOp>(op))
          list.push_back(&op);
    }
  }

  Timeline run() {
    next.assign(lists.size(), 0);
    clocks.assign(lists.size(), 0);
    timeline.ranks.resize(lists.size());
    for (size_t rank = 0; rank < lists.size(); ++rank)
      ready.push_back(rank);
    while (!ready.empty()) {
      int64_t rank = ready.back();
      ready.pop_back();
      while (next[rank] < lists[rank].size() && step(rank, lists[rank][next[rank]]))
        ++next[rank];
    }
    return std::move(timeline);
  }

private:
  struct Message {
    size_t posted = 0;
    double time = 0; ///< when the last end posted
    SmallVector<int64_t, 2> blocked;
  };

  CostModel costs;
  std::vector<std::vector<Operation *>> lists;
  std::vector<size_t> next;
  std::vector<double> clocks;
  std::vector<int64_t> ready;
  Timeline timeline;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, Message> messages; // from, to, channel, k
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, int64_t> counts;
  DenseMap<Operation *, Message *> messageOf;

  Message &find(int64_t rank, PostOp post) {
    int64_t peer = post.getPeers().front(), channel = post.getChannel().value_or(0);
    bool send = post.getKind() == PostKind::send, receive = post.getKind() == PostKind::receive;
    int64_t from = send ? rank : receive ? peer : -1, to = send ? peer : receive ? rank : -1;
    int64_t k = counts[{from, to, channel, send ? -1 : receive ? -2 : rank}]++;
    return messages[{from, to, channel, k}];
  }

  bool step(int64_t rank, Operation *op) {
    if (auto launch = dyn_cast<LaunchOp>(op)) {
      Phase phase = launch.getUnit().getPhase();
      double start = clocks[rank], end = start + costs.of(phase);
      clocks[rank] = end;
      if (phase == Phase::U)
        return true;
      timeline.ranks[rank].push_back({launch.getUnit(), start, end});
      timeline.makespan = std::max(timeline.makespan, end);
      return true;
    }
    auto post = dyn_cast<PostOp>(op);
    if (post) {
      Message &message = find(rank, post);
      messageOf[op] = &message;
      ++message.posted;
      message.time = std::max(message.time, clocks[rank]);
      if (message.posted == ends(post))
        llvm::append_range(ready, message.blocked);
      return true;
    }
    post = cast<CompleteOp>(op).getRequest().getDefiningOp<PostOp>();
    Message &message = *messageOf[post];
    if (message.posted < ends(post)) {
      message.blocked.push_back(rank);
      return false;
    }
    clocks[rank] = std::max(clocks[rank], message.time);
    return true;
  }

  static size_t ends(PostOp post) { return post.getKind() == PostKind::all_reduce ? post.getPeers().size() : 2; }
};

} // namespace

Timeline pp::simulate(ProgramOp program, const CostModel &costs) { return Simulator(program, costs).run(); }
