// What a rank needs beside its arena: scratch of kernels, tables of rope, memory in which sums of ranks are made, and
// the weights of targets that data may have.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_SCRATCH_H
#define PP_ANALYSIS_SCRATCH_H

#include "dialect/pipeline/Pipeline.h"

namespace pp {

/// Bounds that hold for every CPU, with one thread a rank, and over every transport; or, for `cuda`, for every GPU with
/// NCCL. There `kernels` is one block that libraries and our kernels use in turn: as large as the largest one needs.
struct RankScratch {
  int64_t kernels = 0;  ///< what the largest op needs, and all tables
  int64_t messages = 0; ///< of the collectives that are posted and not complete, at their largest sum; in host memory
  /// 4 bytes for each target that the rank reads in a step: data with documents may say how much each one weighs.
  int64_t targetWeights = 0;
  bool isDevice = false;
  int64_t products = 0, attention = 0; ///< of `kernels`, what cuBLASLt and cuDNN need
  int64_t nccl = 0;                    ///< buffers of all communicators, and rows that are packed for them
  /// What NCCL's messages that are posted and not complete hold at their most: of one channel one at a time does.
  int64_t multiprocessors = 0;
  /// The same where messages between two ranks go by copy engines, and collectives alone over NCCL.
  int64_t multiprocessorsOfCollectives = 0;
  int64_t total() const { return kernels + targetWeights + (isDevice ? nccl : messages); }
  /// By name what is in `total`, and of `kernels`: `kernels products attention nccl`, or `kernels messages`; and
  /// `target_weights`, if there may be some.
  llvm::SmallVector<std::pair<llvm::StringRef, int64_t>> parts() const;
  /// `of kernels 2.06 GiB (products of cuBLASLt up to 32.00 MiB, .., in turn), of NCCL 140.00 MiB`.
  std::string str() const;
};

/// Of a rank's program and, unless it is null, its forward program: one runs after the other.
RankScratch scratchOf(pipeline::RankOp rank, pipeline::RankOp forward = {});

} // namespace pp

#endif // PP_ANALYSIS_SCRATCH_H
