// Greedy execution of rank programs: every rank goes on until it waits, and again when what it waits for has gone.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Execution.h"
#include "llvm/ADT/DenseSet.h"
#include <numeric>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

StringRef pp::stringifyChannelMap(ChannelMap map) {
  switch (map) {
  case ChannelMap::rank:
    return "rank";
  case ChannelMap::direction:
    return "direction";
  case ChannelMap::pair:
    return "pair";
  case ChannelMap::edge:
    return "edge";
  case ChannelMap::serial:
    return "serial";
  }
  llvm_unreachable("every map has a name");
}

//===-- Messages and lanes --------------------------------------------------------------------------------------===//

bool Execution::Message::isComplete() const {
  PostOp post = ends.front().post;
  return ends.size() == (post.isCollective() ? post.getPeers().size() : 2);
}

/// The directed edge of a message and its channel, or the members of a collective.
static std::tuple<int64_t, int64_t, int64_t, const void *> pathOf(int64_t rank, PostOp post) {
  int64_t peer = post.getPeers().front(), channel = post.getChannel().value_or(0);
  if (post.isCollective())
    return {0, 0, channel, post.getPeersAttr().getAsOpaquePointer()};
  bool send = post.getKind() == PostKind::send;
  return {send ? rank : peer, send ? peer : rank, channel, nullptr};
}

Execution::Execution(ProgramOp program, ChannelMap map) : map(map) {
  /// Messages that go one way in order, and the number that a rank has posted so far of each side.
  struct Path {
    std::vector<int64_t> messages;
    int64_t rank = -1, posted[2] = {0, 0};
  };
  std::vector<Path> paths;
  size_t posted = 0;
  for (auto rank : program.getOps<RankOp>())
    posted += llvm::range_size(rank.getOps<PostOp>());
  messages.reserve(posted); // more than there are: what is not touched takes no memory
  elements.reserve(posted);
  llvm::DenseMap<std::tuple<int64_t, int64_t, int64_t, const void *>, size_t> numbers;
  for (auto rank : program.getOps<RankOp>()) {
    int32_t self = lists.size();
    auto &list = lists.emplace_back();
    list.reserve(llvm::count_if(rank.getBody().front(), [](Operation &op) { return !isa<SlotOp>(op); }));
    llvm::DenseMap<Operation *, Step> posts;
    for (Operation &op : rank.getBody().front()) {
      if (auto post = dyn_cast<PostOp>(op)) {
        size_t number = numbers.try_emplace(pathOf(self, post), paths.size()).first->second;
        if (number == paths.size())
          paths.emplace_back();
        Path &path = paths[number];
        if (std::exchange(path.rank, self) != self)
          path.posted[0] = path.posted[1] = 0;
        bool send = post.getKind() == PostKind::send;
        size_t k = path.posted[post.getKind() == PostKind::receive]++; // collectives of whatever kind: one lane
        if (k == path.messages.size()) {
          path.messages.push_back(messages.size());
          messages.emplace_back();
        }
        int32_t message = path.messages[k];
        auto &ends = messages[message].ends;
        ends.insert(send ? ends.begin() : ends.end(), End{self, enqueue(self, post, message), post});
        int32_t end = send ? 0 : post.getKind() == PostKind::receive ? 1 : ends.size() - 1;
        list.push_back(posts[post] = {post, message, end});
      } else if (auto complete = dyn_cast<CompleteOp>(op)) {
        Step step = posts.lookup(complete.getRequest().getDefiningOp());
        list.push_back({complete, step.message, step.end});
      } else if (isa<LaunchOp>(op)) {
        list.push_back({&op});
      }
    }
  }
  for (auto &list : lists) // a receive whose send is missing is alone in its message
    for (Step &step : list)
      if (step.message >= 0)
        step.end = std::min<int32_t>(step.end, messages[step.message].ends.size() - 1);
  next.assign(lists.size(), 0);
  blocking.assign(lists.size(), -1);
  ready.resize(lists.size());
  std::iota(ready.begin(), ready.end(), 0);
}

/// Take the place of a channel for the two ends of a rank's messages to itself.
static constexpr int64_t kHostSend = -1, kHostReceive = -2;

Execution::LaneKey Execution::laneOf(int64_t rank, PostOp post) const {
  auto [from, to, channel, members] = pathOf(rank, post);
  Role role = post.getThing().getRole();
  if (from == to && !members) // to the host and back: the two ends do not stand behind each other
    return {rank, from, to, post.getKind() == PostKind::send ? kHostSend : kHostReceive, nullptr};
  switch (map) {
  case ChannelMap::rank:
  case ChannelMap::serial:
    return {rank, 0, 0, 0, nullptr};
  case ChannelMap::direction:
    return {rank, llvm::is_contained({Role::dact, Role::dkv, Role::grad}, role), 0, 0, nullptr};
  case ChannelMap::pair:
    return members ? LaneKey(rank, 0, 0, channel, members)
                   : LaneKey(rank, std::min(from, to), std::max(from, to), 0, nullptr);
  case ChannelMap::edge:
    return {rank, from, to, channel, members};
  }
  llvm_unreachable("every map has lanes");
}

/// Puts the message at the end of its lane on this rank; returns the element that it is, or is one of.
int32_t Execution::enqueue(int32_t rank, PostOp post, int32_t message) {
  int32_t lane = laneNumbers.try_emplace(laneOf(rank, post), lanes.size()).first->second;
  if (lane == static_cast<int32_t>(lanes.size()))
    lanes.emplace_back();
  auto groupOf = [&](int64_t number) -> std::optional<uint64_t> {
    for (const End &end : messages[number].ends)
      if (end.rank == rank)
        return PostOp(end.post).getGroup();
    return std::nullopt;
  };
  int32_t last = lanes[lane].elements.empty() ? -1 : lanes[lane].elements.back();
  bool joins = map != ChannelMap::edge && post.getGroup() && last >= 0 &&
               groupOf(elements[last].messages.back()) == post.getGroup();
  if (map == ChannelMap::serial)
    joins = joins && isa<PostOp>(lists[rank].back().op); // the list is at the post before
  if (!joins) {
    last = elements.size();
    elements.push_back({rank, lane, {}, 0, false});
    lanes[lane].elements.push_back(last);
  }
  elements[last].messages.push_back(message);
  ++elements[last].left;
  return last;
}

int64_t Execution::countLanes() const {
  llvm::DenseSet<LaneKey> distinct;
  bool shared = map == ChannelMap::pair || map == ChannelMap::edge;
  for (auto &entry : laneNumbers) {
    LaneKey key = entry.first;
    if (std::get<3>(key) == kHostReceive) // counted as its send
      continue;
    if (shared)
      std::get<0>(key) = 0;
    distinct.insert(key);
  }
  return distinct.size();
}

//===-- Running -------------------------------------------------------------------------------------------------===//

/// Where posts block: whether the rank stands in one, which `now` does not go with.
bool Execution::isBlocked(int64_t rank, const Step &now) {
  int64_t &at = blocking[rank];
  if (at < 0)
    return false;
  Element &element = elements[endOf(lists[rank][at]).element];
  if (element.left > 0 && isa<PostOp>(now.op) && &elements[endOf(now).element] == &element)
    return false;
  element.awaited = element.left > 0;
  at = element.left > 0 ? at : -1;
  return at >= 0;
}

void Execution::run(ExecutionListener &listener) {
  auto step = [&](int64_t rank, const Step &now) {
    if (isBlocked(rank, now))
      return false;
    if (auto launch = dyn_cast<LaunchOp>(now.op)) {
      listener.launched(rank, launch);
    } else if (isa<PostOp>(now.op)) {
      post(rank, now, listener);
      if (map == ChannelMap::serial && blocking[rank] < 0 && !PostOp(endOf(now).post).isHost())
        blocking[rank] = next[rank];
    } else {
      const End &end = endOf(now);
      Element &element = elements[end.element];
      if (element.left > 0) {
        element.awaited = true;
        return false;
      }
      listener.completed(rank, end.post);
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

bool Execution::hasEnded() const {
  return llvm::all_of(llvm::seq<int64_t>(0, ranks()), [&](int64_t rank) { return hasEnded(rank); });
}

int64_t Execution::aheadOf(int64_t element) const {
  const Lane &lane = lanes[elements[element].lane];
  int64_t head = lane.elements[lane.head];
  return head == element ? -1 : head;
}

void Execution::post(int64_t rank, const Step &step, ExecutionListener &listener) {
  End &end = messages[step.message].ends[step.end];
  end.posted = true;
  listener.posted(rank, end.post);
  SmallVector<int64_t> candidates = {step.message};
  while (!candidates.empty())
    deliver(candidates.pop_back_val(), listener, candidates);
}

bool Execution::canGo(const Message &message) const {
  return !message.delivered && message.isComplete() &&
         llvm::all_of(message.ends, [&](const End &end) { return end.posted && aheadOf(end.element) < 0; });
}

/// Lets the message go if it can; what stands behind it in its lanes may go next.
void Execution::deliver(int64_t number, ExecutionListener &listener, SmallVectorImpl<int64_t> &candidates) {
  Message &message = messages[number];
  if (!canGo(message))
    return;
  message.delivered = true;
  SmallVector<std::pair<int64_t, PostOp>, 2> ends;
  for (const End &end : message.ends)
    ends.push_back({end.rank, end.post});
  listener.delivered(ends);
  for (const End &end : message.ends) {
    Element &element = elements[end.element];
    if (--element.left > 0)
      continue;
    if (element.awaited)
      ready.push_back(element.rank);
    Lane &lane = lanes[element.lane];
    if (++lane.head < lane.elements.size())
      llvm::append_range(candidates, elements[lane.elements[lane.head]].messages);
  }
}
