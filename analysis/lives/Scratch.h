// What a rank needs beside its arena: scratch of kernels, tables of rope, and memory in which sums of ranks are made.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_SCRATCH_H
#define PP_ANALYSIS_SCRATCH_H

#include "dialect/pipeline/Pipeline.h"

namespace pp {

/// Bounds that hold for every CPU, with one thread a rank, and over every transport.
struct RankScratch {
  int64_t kernels = 0;  ///< what the largest op needs, and all tables
  int64_t messages = 0; ///< of the collectives that are posted and not complete, at their largest sum
  int64_t total() const { return kernels + messages; }
};

/// Of a rank's program and, unless it is null, its forward program: one runs after the other.
RankScratch scratchOf(pipeline::RankOp rank, pipeline::RankOp forward = {});

} // namespace pp

#endif // PP_ANALYSIS_SCRATCH_H
