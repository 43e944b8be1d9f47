// How many weights, gradients, activations and stashes are alive at once in the program of a rank.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_RANKLIVES_H
#define PP_ANALYSIS_RANKLIVES_H

#include "analysis/lives/SlotLives.h"

namespace pp {

class RankLives {
public:
  RankLives(pipeline::RankOp rank, const BodyTable &bodies);

  /// The most values at once, as `limit` counts them: until their last use or send. Shards do not count.
  int64_t mostValues(pipeline::Role role) const;
  /// The most slots at once; a message occupies its slot until it is complete.
  int64_t mostSlots(pipeline::Role role) const;
  /// The most stashes of units on the device.
  int64_t mostStashes() const { return mostAlive(stashes); }

private:
  std::vector<SlotLife> lives;
  std::vector<int64_t> positions;                                     ///< moves of one `together` share one
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<int64_t>> uses; ///< by slot: tasks and posts
  llvm::DenseSet<mlir::Operation *> shards;
  std::vector<Segment> stashes;

  void readOps(pipeline::RankOp rank);
  void readStashes(pipeline::RankOp rank, const BodyTable &bodies);
  int64_t most(pipeline::Role role, llvm::function_ref<Segment(const SlotLife &, Segment)> lifeOf) const;
  Segment used(mlir::Operation *slot, Segment segment) const;
};

} // namespace pp

#endif // PP_ANALYSIS_RANKLIVES_H
