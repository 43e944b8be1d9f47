// Executes rank programs with zero buffering, without time: the machine behind the proofs of progress and of values.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_EXECUTION_H
#define PP_ANALYSIS_EXECUTION_H

#include "dialect/pipeline/Pipeline.h"
#include <tuple>

namespace pp {

/// Which messages share a lane, a queue at each rank through which they go one after the other (an NCCL communicator
/// with its stream). `rank`: all messages of a rank. `direction`: two lanes a rank, one for what goes with the model
/// (act, weight, kv, stash, stat, opt, data), one for derivatives (dact, dkv, grad). `pair`: a lane for every two
/// ranks. `edge`: one for every directed edge, as the backends `mpi` and `threads` have it.
/// Sums over a group have a lane of their own under `pair` and `edge`. `serial`: one lane for each rank, on which its
/// units stand, too: a post blocks all behind it until its message has gone (a GPU that serialises its streams).
enum class ChannelMap { rank, direction, pair, edge, serial };
llvm::StringRef stringifyChannelMap(ChannelMap map);

/// Hears what happens, in an order that respects every rank's list and every message.
class ExecutionListener {
public:
  virtual ~ExecutionListener() = default;
  virtual void launched(int64_t rank, pipeline::LaunchOp launch) {}
  virtual void posted(int64_t rank, pipeline::PostOp post) {}
  /// Every end of the message has posted: what the sender's slot holds now is what arrives. `ends` are its posts with
  /// their ranks; of a send and its receive the send stands first.
  virtual void delivered(llvm::ArrayRef<std::pair<int64_t, pipeline::PostOp>> ends) {}
  virtual void completed(int64_t rank, pipeline::PostOp post) {}
};

/// Posts never block. A message goes when all its ends have posted it and it heads its lane at every one of them; a
/// complete blocks until then. The moves of one group go through a lane as one element: each as soon as it can, the
/// lane goes on and their completes end when all have gone; on the lane of a directed edge every message is an element,
/// for messages between the same two ranks keep their order. Where posts block (`serial`), those of one group that
/// follow each other block as one, and host memory blocks nothing. The programs are straight lines, so executing them
/// greedily in any order decides whether they can end, in linear time.
class Execution {
public:
  explicit Execution(pipeline::ProgramOp program, ChannelMap map = ChannelMap::edge);

  /// Runs until no rank can go on.
  void run(ExecutionListener &listener);

  int64_t ranks() const { return lists.size(); }
  bool hasEnded(int64_t rank) const { return next[rank] == lists[rank].size(); }
  bool hasEnded() const;
  /// The message that a rank waits for, if it has not ended.
  pipeline::PostOp waitsFor(int64_t rank) const { return endOf(standing(rank)).post; }
  /// The complete, or the post that blocks, in which it waits.
  mlir::Operation *waitsAt(int64_t rank) const { return standing(rank).op; }

  //===-- What is blocked, for the story of a deadlock ----------------------------------------------------------===//

  // There is one of these for every message and end, so they are small.
  struct End {
    int32_t rank;
    int32_t element;
    pipeline::PostOp post;
    bool posted = false;
  };
  /// One message: the k-th of a directed edge and channel, or the k-th sum of a group.
  struct Message {
    llvm::SmallVector<End, 2> ends; ///< those that some rank posts, now or later; a send before its receive
    bool delivered = false;
    bool isComplete() const; ///< no end is missing
  };
  /// Messages that go through a lane of one rank together.
  struct Element {
    int32_t rank, lane;
    llvm::SmallVector<int32_t, 2> messages;
    int32_t left = 0;     ///< messages that have not gone
    bool awaited = false; ///< the rank stands in a complete
  };
  llvm::ArrayRef<Message> allMessages() const { return messages; }
  const Element &element(int64_t number) const { return elements[number]; }
  /// The element at the head of the lane of this one, or -1 if it is this one.
  int64_t aheadOf(int64_t element) const;
  /// The message that a rank waits for.
  int64_t awaitedMessage(int64_t rank) const { return standing(rank).message; }
  /// Lanes that carry something; the two ends of a pair's or an edge's lane are one.
  int64_t countLanes() const;

private:
  struct Step {
    mlir::Operation *op;
    int32_t message = -1; ///< of a post and its complete
    int32_t end = 0;      ///< which end of the message this is
  };
  struct Lane {
    llvm::SmallVector<int32_t, 2> elements;
    size_t head = 0;
  };
  using LaneKey = std::tuple<int64_t, int64_t, int64_t, int64_t, const void *>; // rank, from, to, channel, members

  ChannelMap map;
  std::vector<llvm::SmallVector<Step, 0>> lists; ///< launches, posts and completes of every rank
  std::vector<size_t> next;
  std::vector<int64_t> blocking; ///< by rank the place in its list of the post that blocks it, or -1
  std::vector<int64_t> ready;
  std::vector<Message> messages;
  std::vector<Element> elements;
  std::vector<Lane> lanes;
  llvm::DenseMap<LaneKey, int32_t> laneNumbers;

  const End &endOf(const Step &step) const { return messages[step.message].ends[step.end]; }
  const Step &standing(int64_t rank) const {
    return lists[rank][blocking[rank] >= 0 ? static_cast<size_t>(blocking[rank]) : next[rank]];
  }
  LaneKey laneOf(int64_t rank, pipeline::PostOp post) const;
  int32_t enqueue(int32_t rank, pipeline::PostOp post, int32_t message);
  bool isBlocked(int64_t rank, const Step &now);
  void post(int64_t rank, const Step &step, ExecutionListener &listener);
  bool canGo(const Message &message) const;
  void deliver(int64_t number, ExecutionListener &listener, llvm::SmallVectorImpl<int64_t> &candidates);
};

} // namespace pp

#endif // PP_ANALYSIS_EXECUTION_H
