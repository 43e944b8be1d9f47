// When each slot of a rank program holds something: the segments between what writes it and its last reader.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_SLOTLIVES_H
#define PP_ANALYSIS_SLOTLIVES_H

#include "analysis/lives/Lifetimes.h"
#include "llvm/ADT/MapVector.h"

namespace pp {

/// A tensor of a slot, or, where its number is -1, all of them in one run.
struct SlotTensor {
  pipeline::SlotOp slot;
  int64_t tensor = -1;
};

struct SlotLife {
  pipeline::SlotOp op;
  int64_t bytes = 0;
  llvm::SmallVector<Segment, 2> segments;
  int64_t tensor = -1; ///< of a slot whose tensors lie apart: which of them
  SlotTensor heir;     ///< which tensor lies there next, of what launch at the last position makes; a null slot if none
  /// Its offset; 0 before slots are planned.
  int64_t offset() const;
};

/// Whether the two are alive at some common position.
bool meet(const SlotLife &a, const SlotLife &b);

/// The lives of all slots of a rank, ordered by their first segment. Positions count the rank's ops from 0. Weights,
/// optimizer state and data live from the start of the step; values that the trainer reads live to its end. If a slot's
/// tensors lie apart, each tensor has its own life; a tensor that a launch hands on ends right before it. `host`: the
/// slots in the rank's host memory instead. `apart`: as if every tensor that may lie apart did so.
std::vector<SlotLife> slotLives(pipeline::RankOp rank, bool host = false, bool apart = false);

/// The role and bytes of the largest sum of live slots, and where it is reached.
struct Peak {
  int64_t bytes = 0;
  mlir::Operation *where = nullptr;
  llvm::MapVector<llvm::StringRef, int64_t> byRole; ///< the largest sum of each role, reached at times of their own
  llvm::MapVector<llvm::StringRef, int64_t> there;  ///< the sums of the roles at `where`
};
Peak peakOf(pipeline::RankOp rank, llvm::ArrayRef<SlotLife> lives);

/// An instant as messages say it: `B(0, 3)`, `arrival of act(0, 3)`, `start of the step`.
std::string describeInstant(mlir::Operation *op);

} // namespace pp

#endif // PP_ANALYSIS_SLOTLIVES_H
