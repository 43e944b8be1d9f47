// Greedy execution of rank programs: every rank goes on until it waits, and again when what it waits for was posted.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Execution.h"
#include <numeric>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static size_t endsOf(PostOp post) { return post.getKind() == PostKind::all_reduce ? post.getPeers().size() : 2; }

Execution::Execution(ProgramOp program) {
  for (auto rank : program.getOps<RankOp>()) {
    auto &list = lists.emplace_back();
    for (Operation &op : rank.getBody().front())
      if (isa<LaunchOp, PostOp, CompleteOp>(op))
        list.push_back(&op);
  }
  next.assign(lists.size(), 0);
  ready.resize(lists.size());
  std::iota(ready.begin(), ready.end(), 0);
}

void Execution::run(ExecutionListener &listener) {
  auto step = [&](int64_t rank, Operation *op) {
    if (auto launch = dyn_cast<LaunchOp>(op)) {
      listener.launched(rank, launch);
    } else if (auto sent = dyn_cast<PostOp>(op)) {
      post(rank, sent, listener);
    } else {
      auto post = cast<CompleteOp>(op).getRequest().getDefiningOp<PostOp>();
      if (!complete(rank, post))
        return false;
      listener.completed(rank, post);
    }
    return true;
  };
  while (!ready.empty()) {
    int64_t rank = ready.back();
    ready.pop_back();
    while (!hasEnded(rank) && step(rank, lists[rank][next[rank]]))
      ++next[rank];
  }
}

PostOp Execution::waitsFor(int64_t rank) const {
  return cast<CompleteOp>(lists[rank][next[rank]]).getRequest().getDefiningOp<PostOp>();
}

Execution::Message &Execution::find(int64_t rank, PostOp post) {
  int64_t peer = post.getPeers().front(), channel = post.getChannel().value_or(0);
  bool send = post.getKind() == PostKind::send, receive = post.getKind() == PostKind::receive;
  int64_t from = send ? rank : receive ? peer : -1, to = send ? peer : receive ? rank : -1;
  int64_t end = send ? -1 : receive ? -2 : rank;
  return messages[{from, to, channel, counts[{from, to, channel, end}]++}];
}

void Execution::post(int64_t rank, PostOp post, ExecutionListener &listener) {
  Message &message = find(rank, post);
  messageOf[post] = &message;
  listener.posted(rank, post);
  auto end = std::pair(rank, post);
  message.ends.insert(post.getKind() == PostKind::send ? message.ends.begin() : message.ends.end(), end);
  if (message.ends.size() != endsOf(post))
    return;
  listener.delivered(message.ends);
  llvm::append_range(ready, message.blocked);
}

bool Execution::complete(int64_t rank, PostOp post) {
  Message &message = *messageOf[post];
  if (message.ends.size() == endsOf(post))
    return true;
  message.blocked.push_back(rank);
  return false;
}
