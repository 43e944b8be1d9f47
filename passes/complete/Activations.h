// Activations and their gradients in a growing step: each goes to the ranks that read it as soon as it is made.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_ACTIVATIONS_H
#define PP_PASSES_ACTIVATIONS_H

#include "passes/complete/StepOutline.h"

namespace pp {

class Activations {
public:
  Activations(StepValues &step, const StepOutline &outline) : step(step), outline(outline) {}

  /// Records what a piece made on this rank, and sends it to readers elsewhere, unless the schedule moves it itself.
  void record(Thing made, mlir::Value value, int64_t piece, int64_t rank, mlir::Location loc);
  /// Records what one shard of a part made that is cut by the vocabulary. When all shards are there, they are summed on
  /// the reader's rank; statistics are gathered on all ranks of the shards.
  mlir::LogicalResult recordShard(pipeline::UnitOp op, pipeline::Role role, int64_t piece, mlir::Value value);

private:
  StepValues &step;
  const StepOutline &outline;
  llvm::DenseMap<Thing, llvm::SmallVector<mlir::Value>> shards; ///< what the shards have made so far

  void gather(Thing made, llvm::ArrayRef<int64_t> ranks, mlir::ValueRange values, mlir::Location loc);
  mlir::LogicalResult reduce(Thing made, llvm::ArrayRef<int64_t> ranks, mlir::ValueRange values, pipeline::UnitOp op);
};

} // namespace pp

#endif // PP_PASSES_ACTIVATIONS_H
