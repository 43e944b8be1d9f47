// What the actions of a schedule say together: who reads what, what they move themselves, which units are cut.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_STEPOUTLINE_H
#define PP_PASSES_STEPOUTLINE_H

#include "analysis/Exchange.h"
#include "analysis/Keys.h"
#include "passes/complete/StepValues.h"

namespace pp {

/// Read once, before the step is built.
struct StepOutline {
  explicit StepOutline(const StepValues &step);

  using ThingOnRank = std::pair<Thing, int64_t>;
  /// The ranks that read an act or dact.
  llvm::SmallVector<int64_t, 2> readersOf(Thing made) const;

  Exchanges exchanges;
  KeysBefore keys;
  llvm::DenseMap<Thing, int64_t> keyReaders;      ///< where keys, and sums of their gradients, are read
  llvm::DenseMap<Thing, mlir::Operation *> moves; ///< by thing: its last move; gradients are below
  std::map<int64_t, mlir::Operation *> gradMoves; ///< by piece
  llvm::DenseSet<ThingOnRank> keysMovedTo;        ///< keys that the schedule moves, and where to
  llvm::DenseSet<pipeline::CoordAttr> recomputed; ///< the units with an R
  llvm::DenseSet<mlir::Operation *> readAgain;    ///< each R whose rank reads the recomputed activation after it
  /// Units whose rank adds the next slice of the same microbatch to their gradient before it makes another one.
  llvm::DenseSet<mlir::Operation *> goesOn;
  bool movesStashes = false;

private:
  const Pieces &pieces;
  int64_t microbatches, slices;
  std::vector<int32_t> forwards, backwards; ///< by unit: the rank of its F, and that of its B or I; -1 without one
  llvm::DenseMap<int64_t, pipeline::UnitOp> lastGradients; ///< by rank: the last unit so far that makes a gradient

  size_t numberOf(int64_t piece, int64_t microbatch, int64_t slice) const {
    return (piece * microbatches + microbatch) * slices + std::max<int64_t>(slice, 0);
  }
  using Recomputers = llvm::DenseMap<ThingOnRank, mlir::Operation *>; ///< by activation: its R
  void readUnit(const StepValues &step, pipeline::UnitOp op, Recomputers &recomputers);
  void readMove(const StepValues &step, pipeline::TransferOp op);
};

} // namespace pp

#endif // PP_PASSES_STEPOUTLINE_H
