// How long things live, in positions of a list of ops: the largest number of them alive, and stashes counted by units.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two kinds of lists have lives: the step, whose values live from their op to their last use (StepLives), and the
// program of a rank, whose slots hold something from the op that writes them to the last that reads them (SlotLives).
#ifndef PP_ANALYSIS_LIFETIMES_H
#define PP_ANALYSIS_LIFETIMES_H

#include "analysis/BodyTable.h"

namespace pp {

/// Positions, both ends included.
struct Segment {
  int64_t first, last;
};

/// The largest sum of the weights of segments that share a position, and the first such position.
struct Most {
  int64_t sum = 0, where = 0;
};

/// Sums the weights of segments at each position.
class AliveSum {
public:
  void add(Segment segment, int64_t weight = 1);
  Most most();
  /// The sum at this position.
  int64_t at(int64_t position) const;

private:
  std::vector<std::pair<int64_t, int64_t>> changes; ///< the sum changes right before a position
};

/// The largest number of segments that share a position.
int64_t mostAlive(llvm::ArrayRef<Segment> segments);

/// What a task or launch does to its unit's stash. Papers count stashes by units, from F to the last backward, or from
/// R if F saves only its inputs.
enum class StashEvent { none, begin, end };
StashEvent stashEventOf(pipeline::UnitIdAttr unit, pipeline::BodyAttr body, bool savesStash);

} // namespace pp

#endif // PP_ANALYSIS_LIFETIMES_H
