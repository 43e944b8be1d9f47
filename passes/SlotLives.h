// When each slot of a rank program holds something: the segments between what writes it and its last reader.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_SLOTLIVES_H
#define PP_PASSES_SLOTLIVES_H

#include "dialect/Pipeline.h"
#include "llvm/ADT/MapVector.h"

namespace pp {

/// Positions in the rank's list, both ends included.
struct Segment {
  int64_t first, last;
};

struct SlotLife {
  pipeline::SlotOp op;
  int64_t bytes = 0;
  llvm::SmallVector<Segment, 2> segments;
};

/// Whether both hold something at some position.
bool meet(const SlotLife &a, const SlotLife &b);

/// The lives of all slots of a rank, in order of their first segment; `positions` of the rank's ops are counted from 0.
/// Weights, optimizer state and data are there when the step begins; what the trainer reads lives to the end. `host`: of
/// the slots in the rank's host memory instead.
std::vector<SlotLife> slotLives(pipeline::RankOp rank, bool host = false);

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

/// Offsets by life, and where the last ends.
struct SlotLayout {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};
/// A plan no larger than `first`; `bound` is the largest live sum, which none can go below; `work` is how many slots it may
/// look at (ImprovePlan.cpp).
SlotLayout improvePlan(llvm::ArrayRef<SlotLife> lives, int64_t bound, SlotLayout first, int64_t work);

} // namespace pp

#endif // PP_PASSES_SLOTLIVES_H
