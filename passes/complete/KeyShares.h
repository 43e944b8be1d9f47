// Keys and values that travel between attentions of a growing step, and the shares of their gradients on the way back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_KEYSHARES_H
#define PP_PASSES_KEYSHARES_H

#include "passes/complete/StepOutline.h"
#include <map>

namespace pp {

class KeyShares {
public:
  KeyShares(StepValues &step, const StepOutline &outline) : step(step), outline(outline) {}

  //===-- Keys --------------------------------------------------------------------------------------------------===//
  /// Sends the keys that a unit made for the attention in the next piece.
  void deliver(pipeline::UnitOp op, mlir::Value value);
  /// A copy of keys that the schedule moved to a rank. It serves one use of this attention.
  void lend(int64_t attention, Thing keys, int64_t rank, mlir::Value value);
  /// The first copy that was lent and is not used; null if there is none.
  mlir::Value takeLent(int64_t attention, Thing keys, int64_t rank);

  //===-- Shares of their gradients -----------------------------------------------------------------------------===//
  /// Whether it is a share of a sum: the gradient of keys that slices attend beside each other.
  bool isShare(Thing thing) const;
  /// A share that was made here; if the schedule moves none of these, it goes to who reads the sum.
  void record(Thing thing, int64_t rank, mlir::Value value, mlir::Location loc);
  /// Adds a term on a rank. The term stays in its own slot until the sum is taken: adding it up earlier would make the
  /// rank wait.
  void add(Thing thing, int64_t rank, mlir::Value value);
  /// Takes the rank's share as one value, arrivals waited for and added; null if it has none.
  mlir::Value take(Thing thing, int64_t rank, mlir::Location loc);
  /// All shares, wherever they are, as one sum on this rank.
  mlir::Value gather(Thing thing, int64_t rank, mlir::Location loc);

private:
  StepValues &step;
  const StepOutline &outline;
  llvm::DenseMap<Thing, std::map<int64_t, llvm::SmallVector<mlir::Value, 2>>> shares;                  ///< by rank
  std::map<int64_t, llvm::DenseMap<StepOutline::ThingOnRank, llvm::SmallVector<mlir::Value, 1>>> lent; ///< by attention
};

} // namespace pp

#endif // PP_PASSES_KEYSHARES_H
