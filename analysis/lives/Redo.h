// Cuts the program of a rank that does an update over into its stretches (docs/barrier.md).
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_LIVES_REDO_H
#define PP_ANALYSIS_LIVES_REDO_H

#include "dialect/pipeline/Pipeline.h"

namespace pp {

/// Launches, posts and completes in their order: `head` up to the first judge, then what completes the messages of the
/// head, the update once more with what follows it, and `again`, the head once more up to the second judge.
struct RedoParts {
  std::vector<mlir::Operation *> head, drain, undo, again;
};
RedoParts redoPartsOf(pipeline::RankOp redo);

} // namespace pp

#endif // PP_ANALYSIS_LIVES_REDO_H
