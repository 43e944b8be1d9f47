// Finds a shortest cycle among what is blocked and tells it, rank by rank and message by message.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   rank 0 --waits in a complete--> act(0, 1) --rank 1 has not posted it--> rank 1 --> ..
//                                             --stands behind, in a lane--> dact(1, 0) --> ..
//
// Everything blocked waits for something blocked, so the graph has a cycle.
#include "passes/prove/DeadlockStory.h"
#include "analysis/Actions.h"
#include "llvm/ADT/DenseSet.h"
#include <queue>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// Breadth-first searches for a shortest cycle begin at so many blocked things at most.
static constexpr size_t kStarts = 256;

namespace {

class Story {
public:
  Story(ProgramOp program, ChannelMap map, const Execution &execution)
      : program(program), map(map), execution(execution) {}

  LogicalResult report() {
    std::vector<Node> cycle = findCycle();
    if (cycle.empty())
      return reportNeverPosted();
    std::optional<InFlightDiagnostic> error;
    for (size_t i = 0; i < cycle.size(); ++i) {
      Node node = cycle[i], next = cycle[(i + 1) % cycle.size()];
      bool told = isMessage(node) && !isMessage(cycle[(i + cycle.size() - 1) % cycle.size()]);
      if (told) // in the line of the rank that waits for it
        continue;
      PostOp post = isMessage(node) ? postBefore(node, next) : execution.waitsFor(node.number);
      std::string line = isMessage(node) ? tellMessage(node.number, next)
                                         : tellRank(node.number, next.number, cycle[(i + 2) % cycle.size()]);
      line += withLoops(post);
      if (!error)
        error.emplace(emitError(post.getLoc()) << "the ranks wait for each other"
                                               << (map == ChannelMap::serial ? ", if posts block: " : ": ") << line);
      else
        error->attachNote(post.getLoc()) << line;
    }
    adviseOn(cycle, *error);
    return failure();
  }

private:
  /// A rank that stands in a complete, or a message that has not gone.
  struct Node {
    int64_t kind, number;
    bool operator==(const Node &other) const { return kind == other.kind && number == other.number; }
  };
  enum { Rank, Message };
  static bool isMessage(Node node) { return node.kind == Message; }

  ProgramOp program;
  ChannelMap map;
  const Execution &execution;

  const Execution::Message &message(int64_t number) const { return execution.allMessages()[number]; }

  /// The nodes that a node waits for.
  SmallVector<Node> next(Node node) const {
    SmallVector<Node> found;
    auto undelivered = [&](const Execution::Element &element) {
      for (int64_t number : element.messages)
        if (!message(number).delivered)
          found.push_back({Message, number});
    };
    if (!isMessage(node)) {
      undelivered(execution.element(endOn(execution.awaitedMessage(node.number), node.number).element));
      return found;
    }
    for (const Execution::End &end : message(node.number).ends) {
      if (!end.posted)
        found.push_back({Rank, end.rank});
      else if (int64_t ahead = execution.aheadOf(end.element); ahead >= 0)
        undelivered(execution.element(ahead));
    }
    return found;
  }

  const Execution::End &endOn(int64_t number, int64_t rank) const {
    return *llvm::find_if(message(number).ends, [&](const Execution::End &end) { return end.rank == rank; });
  }

  //===-- The shortest cycle ------------------------------------------------------------------------------------===//

  using Key = std::pair<int64_t, int64_t>;
  static Key key(Node node) { return {node.kind, node.number}; }

  /// A shortest way from a node back to itself, shorter than `limit`; empty if there is none.
  std::vector<Node> cycleThrough(Node start, size_t limit) const {
    DenseMap<Key, std::pair<Node, size_t>> from;
    std::queue<Node> open;
    open.push(start);
    from[key(start)] = {start, 1};
    while (!open.empty()) {
      Node node = open.front();
      open.pop();
      size_t length = from[key(node)].second;
      for (Node other : next(node)) {
        if (other == start) {
          std::vector<Node> cycle(length);
          for (size_t i = length; i-- > 0; node = from[key(node)].first)
            cycle[i] = node;
          return cycle;
        }
        if (length + 1 < limit && from.try_emplace(key(other), node, length + 1).second)
          open.push(other);
      }
    }
    return {};
  }

  /// A shortest cycle among the nodes that the first blocked rank waits for; it begins at its lowest rank.
  std::vector<Node> findCycle() const {
    std::vector<Node> reached, best;
    llvm::DenseSet<Key> seen;
    auto reach = [&](Node node) {
      if (seen.insert(key(node)).second)
        reached.push_back(node);
    };
    for (int64_t rank = 0; rank < execution.ranks(); ++rank)
      if (!execution.hasEnded(rank))
        reach({Rank, rank});
    for (size_t i = 0; i < std::min(reached.size(), kStarts); ++i) {
      std::vector<Node> cycle = cycleThrough(reached[i], best.empty() ? SIZE_MAX : best.size());
      if (!cycle.empty() && (best.empty() || cycle.size() < best.size()))
        best = cycle;
      for (Node node : next(reached[i]))
        reach(node);
    }
    auto first = llvm::min_element(best, [](Node a, Node b) { return key(a) < key(b); });
    std::rotate(best.begin(), first, best.end());
    return best;
  }

  //===-- In words ----------------------------------------------------------------------------------------------===//

  static std::string quote(PostOp post) { return "`" + post.getThing().str() + "`"; }
  static std::string name(int64_t rank) { return "rank " + std::to_string(rank); }

  /// `act(0, 1)` from rank 0 to rank 1.
  std::string quote(int64_t number) const {
    const auto &ends = message(number).ends;
    PostOp post = ends.front().post;
    if (post.isCollective())
      return ("the " + post.jointName() + " of ").str() + quote(post);
    int64_t other = post.getPeers().front();
    bool send = post.getKind() == PostKind::send;
    return quote(post) + " from " + name(send ? ends.front().rank : other) + " to " +
           name(send ? other : ends.front().rank);
  }

  /// The end of a blocked message at which it stands behind another, else any.
  PostOp postBefore(Node node, Node behind) const {
    for (const Execution::End &end : message(node.number).ends)
      if (isMessage(behind) && end.posted && isAhead(behind.number, end))
        return end.post;
    return message(node.number).ends.front().post;
  }

  /// True if this message is one that the end stands behind.
  bool isAhead(int64_t number, const Execution::End &end) const {
    int64_t ahead = execution.aheadOf(end.element);
    return ahead >= 0 && llvm::is_contained(execution.element(ahead).messages, number);
  }

  std::string lane(int64_t rank, PostOp post) const {
    if (post.isCollective() && (map == ChannelMap::pair || map == ChannelMap::edge))
      return "the lane of that group";
    switch (map) {
    case ChannelMap::rank:
    case ChannelMap::serial:
      return "the lane of rank " + std::to_string(rank);
    case ChannelMap::direction:
      return llvm::is_contained({Role::dact, Role::dkv, Role::grad}, post.getThing().getRole())
                 ? "the backward lane of rank " + std::to_string(rank)
                 : "the forward lane of rank " + std::to_string(rank);
    case ChannelMap::pair:
      return "the lane of " + name(rank) + " with rank " + std::to_string(post.getPeers().front());
    case ChannelMap::edge:
      return "the lane of that edge";
    }
    llvm_unreachable("every map has lanes");
  }

  /// Why a message does not go: a rank has not posted it, or another stands before it in a lane.
  std::string because(int64_t number, Node next) const {
    if (!isMessage(next)) {
      PostOp post = endOn(number, next.number).post;
      std::string done = post.getKind() == PostKind::send      ? "sent it"
                         : post.getKind() == PostKind::receive ? "posted the receive"
                                                               : "joined it";
      return "because " + name(next.number) + " has not " + done;
    }
    for (const Execution::End &end : message(number).ends)
      if (end.posted && isAhead(next.number, end))
        return "because it stands behind " + quote(next.number) + " in " + lane(end.rank, end.post);
    llvm_unreachable("what is blocked has a reason");
  }

  /// `act(0, 1)` from rank 0 to rank 1 cannot go, because ..; rank 1 waits for it after `F(1, 0)`.
  std::string tellMessage(int64_t number, Node next) const {
    std::string text = quote(number) + " cannot go, " + because(number, next);
    for (const Execution::End &end : message(number).ends)
      if (!execution.hasEnded(end.rank) && execution.awaitedMessage(end.rank) == number)
        return text + "; " + name(end.rank) + " waits for it" + afterUnit(end.rank);
    return text;
  }

  /// `rank 0 sends `act(0, 1)` to rank 1 and waits after `F(0, 1)`, because ..`: it waits for `number`, which waits for
  /// `next`.
  std::string tellRank(int64_t rank, int64_t number, Node next) const {
    PostOp post = execution.waitsFor(rank);
    std::string text = name(rank) + " " + waiting(post) + afterUnit(rank);
    if (execution.awaitedMessage(rank) != number)
      return text + " for its whole group, of which " + quote(number) + " lacks, " + because(number, next);
    if (!isMessage(next) && post.getKind() == PostKind::receive)
      return text + ", which " + name(next.number) + " has not sent";
    if (!isMessage(next) && post.isCollective())
      return text + ", which " + name(next.number) + " has not joined";
    return text + ", " + because(number, next);
  }

  static std::string waiting(PostOp post) {
    std::string peer = name(post.getPeers().front());
    if (post.getKind() == PostKind::send)
      return "sends " + quote(post) + " to " + peer + " and waits";
    if (post.getKind() == PostKind::receive)
      return "waits for " + quote(post) + " from " + peer;
    return ("waits for the " + post.jointName() + " of ").str() + quote(post);
  }

  /// The last unit that a rank has run, where it stands now.
  std::string afterUnit(int64_t rank) const {
    for (Operation *op = execution.waitsAt(rank); op; op = op->getPrevNode())
      if (auto launch = dyn_cast<LaunchOp>(op))
        return " after `" + launch.getUnit().str() + "`";
    return "";
  }

  /// Nobody waits in turn: some message is posted by one rank and not by its other.
  LogicalResult reportNeverPosted() {
    for (const Execution::Message &lone : execution.allMessages()) {
      if (lone.isComplete())
        continue;
      PostOp post = lone.ends.front().post;
      StringRef never = post.getKind() == PostKind::send      ? ", which never posts a receive for it"
                        : post.getKind() == PostKind::receive ? ", which never sends it"
                                                              : ", which not every member joins";
      return emitError(post.getLoc()) << name(lone.ends.front().rank) << " " << waiting(post) << never
                                      << withLoops(post);
    }
    llvm_unreachable("what is blocked waits for something");
  }

  //===-- What would help ---------------------------------------------------------------------------------------===//

  /// Tries to post earlier, one at a time, what others wait for; a note says which one removes every deadlock.
  void adviseOn(ArrayRef<Node> cycle, InFlightDiagnostic &error) {
    for (size_t i = 0; i < cycle.size(); ++i) {
      Node node = cycle[i], next = cycle[(i + 1) % cycle.size()];
      if (!isMessage(node))
        continue;
      for (const Execution::End &end : message(node.number).ends) {
        Operation *before = nullptr;
        if (!end.posted && next == Node{Rank, end.rank})
          before = execution.waitsAt(end.rank);
        else if (end.posted && isMessage(next) && isAhead(next.number, end))
          before = firstPost(execution.aheadOf(end.element), end.rank);
        if (!before || !mayMove(end.post, before) || !wouldEnd(end.post, before))
          continue;
        PostOp post = end.post;
        auto &note = error.attachNote(post.getLoc());
        note << "posted on " << name(end.rank) << " before ";
        if (auto other = dyn_cast<PostOp>(before))
          note << quote(other);
        else
          note << "it waits for " << quote(execution.waitsFor(end.rank));
        note << ", this " << (post.getKind() == PostKind::send ? "send" : "receive") << " would let every rank go on"
             << withLoops(post);
        return;
      }
    }
  }

  Operation *firstPost(int64_t element, int64_t rank) const {
    return endOn(execution.element(element).messages.front(), rank).post;
  }

  /// Nothing between the two places touches its slot; a collective keeps its place, for all members share it.
  static bool mayMove(PostOp post, Operation *before) {
    if (post.isCollective())
      return false;
    for (Operation *op = post->getPrevNode(); op; op = op->getPrevNode()) {
      auto complete = dyn_cast<CompleteOp>(op);
      Operation *toucher = complete ? complete.getRequest().getDefiningOp() : op;
      if (llvm::any_of(post->getOperands(),
                       [&](Value slot) { return llvm::is_contained(toucher->getOperands(), slot); }))
        return false;
      if (op == before)
        return true;
    }
    return false;
  }

  bool wouldEnd(PostOp post, Operation *before) {
    Operation *after = post->getPrevNode();
    post->moveBefore(before);
    Execution again(program, map);
    ExecutionListener nobody;
    again.run(nobody);
    post->moveAfter(after);
    return again.hasEnded();
  }
};

} // namespace

LogicalResult pp::tellDeadlock(ProgramOp program, ChannelMap map, const Execution &execution) {
  return Story(program, map, execution).report();
}
