// Cuts the program of a rank that does an update over into its stretches (docs/barrier.md).
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_LIVES_REDO_H
#define PP_ANALYSIS_LIVES_REDO_H

#include "dialect/pipeline/Pipeline.h"

namespace pp {

/// Launches, posts and completes in their order: `head` up to the first judge, then what completes the messages of the
/// head, the update once more with what follows it, and `again`, the head once more up to the second judge;
/// `rest`, the step behind it.
struct RedoParts {
  std::vector<mlir::Operation *> head, drain, undo, again, rest;
};
RedoParts redoPartsOf(pipeline::RankOp redo);

/// What runs when an update was wrong is the step up to its judge, what the redo program has between its judges, and
/// the rest of the step. The redo program is what is proved. So it must be the step but for what stands between: its
/// two heads and its rest have the step's ops, in the same places of memory, and its messages with weights are the
/// step's. An error names the first op that differs. `module`: of rank programs; with a judge it must have a redo
/// program.
llvm::LogicalResult verifyRedo(mlir::ModuleOp module);

} // namespace pp

#endif // PP_ANALYSIS_LIVES_REDO_H
