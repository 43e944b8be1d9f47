// Runs rank programs with zero buffering in model time: the one machine behind the deadlock proof and the simulator.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_EXECUTION_H
#define PP_PASSES_EXECUTION_H

#include "dialect/Pipeline.h"
#include <map>

namespace pp {

/// Posts never block; a complete blocks until every end of its message has posted, and messages take no time. The
/// programs are straight lines, so executing them greedily in any order decides whether they can end, in linear time.
class Execution {
public:
  explicit Execution(pipeline::ProgramOp program);

  /// Runs until no rank can go on. `launched` hears of every launch with its start and returns how long it takes.
  void run(llvm::function_ref<double(int64_t rank, pipeline::LaunchOp launch, double start)> launched);

  int64_t ranks() const { return lists.size(); }
  bool hasEnded(int64_t rank) const { return next[rank] == lists[rank].size(); }
  /// The message whose complete a rank that has not ended waits in.
  pipeline::PostOp waitsFor(int64_t rank) const;

private:
  /// The k-th message of a lane or collective.
  struct Message {
    size_t posted = 0;                     ///< ends so far
    double time = 0;                       ///< when the last end posted
    llvm::SmallVector<int64_t, 2> blocked; ///< ranks in its complete
  };
  using Lane = std::tuple<int64_t, int64_t, int64_t, int64_t>; // from, to, channel, and the end or the number k

  std::vector<std::vector<mlir::Operation *>> lists; ///< launches, posts and completes of every rank
  std::vector<size_t> next;
  std::vector<double> clocks;
  std::vector<int64_t> ready;
  std::map<Lane, Message> messages;
  std::map<Lane, int64_t> counts; ///< posts so far at every end
  llvm::DenseMap<mlir::Operation *, Message *> messageOf;

  Message &find(int64_t rank, pipeline::PostOp post);
  void post(int64_t rank, pipeline::PostOp post);
  bool complete(int64_t rank, pipeline::PostOp post);
};

} // namespace pp

#endif // PP_PASSES_EXECUTION_H
