// Executes rank programs with zero buffering, without time: the machine behind the proofs of progress and of values.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_EXECUTION_H
#define PP_PASSES_EXECUTION_H

#include "dialect/Pipeline.h"
#include <map>

namespace pp {

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

/// Posts never block; a complete blocks until every end of its message has posted. The programs are straight lines, so
/// executing them greedily in any order decides whether they can end, in linear time.
class Execution {
public:
  explicit Execution(pipeline::ProgramOp program);

  /// Runs until no rank can go on.
  void run(ExecutionListener &listener);

  int64_t ranks() const { return lists.size(); }
  bool hasEnded(int64_t rank) const { return next[rank] == lists[rank].size(); }
  /// The message whose complete a rank that has not ended waits in.
  pipeline::PostOp waitsFor(int64_t rank) const;

private:
  /// The k-th message of a lane or collective.
  struct Message {
    llvm::SmallVector<std::pair<int64_t, pipeline::PostOp>, 2> ends; ///< posted so far
    llvm::SmallVector<int64_t, 2> blocked;                           ///< ranks in its complete
  };
  using Lane = std::tuple<int64_t, int64_t, int64_t, int64_t>; // from, to, channel, and the end or the number k

  std::vector<std::vector<mlir::Operation *>> lists; ///< launches, posts and completes of every rank
  std::vector<size_t> next;
  std::vector<int64_t> ready;
  std::map<Lane, Message> messages;
  std::map<Lane, int64_t> counts; ///< posts so far at every end
  llvm::DenseMap<mlir::Operation *, Message *> messageOf;

  Message &find(int64_t rank, pipeline::PostOp post);
  void post(int64_t rank, pipeline::PostOp post, ExecutionListener &listener);
  bool complete(int64_t rank, pipeline::PostOp post);
};

} // namespace pp

#endif // PP_PASSES_EXECUTION_H
