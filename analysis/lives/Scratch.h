// What a rank needs beside its arena: scratch of kernels, tables of rope, memory for sums of ranks, weights of targets.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_SCRATCH_H
#define PP_ANALYSIS_SCRATCH_H

#include "dialect/pipeline/Pipeline.h"

namespace pp {

/// Bounds for every CPU, with one thread a rank, and for every transport; with `cuda`, for every GPU with NCCL. On a
/// GPU `kernels` is one block, as large as the largest need of a kernel: libraries and our kernels take turns in it.
struct RankScratch {
  int64_t kernels = 0;  ///< what the largest op needs, and all tables
  int64_t messages = 0; ///< of the collectives that are posted and not complete, at their largest sum; in host memory
  /// 4 bytes for each target that the rank reads in a step: data with documents may say how much each one weighs.
  int64_t targetWeights = 0;
  bool isDevice = false;
  int64_t products = 0, attention = 0; ///< of `kernels`, what cuBLASLt and cuDNN need
  int64_t nccl = 0;                    ///< buffers of all communicators, and rows that are packed for them
  /// The most that NCCL's posted, incomplete messages hold at once: one message of each channel.
  int64_t multiprocessors = 0;
  /// The same where messages between two ranks go by copy engines, and collectives alone over NCCL.
  int64_t multiprocessorsOfCollectives = 0;
  int64_t total() const { return kernels + targetWeights + (isDevice ? nccl : messages); }
  /// The parts of `total` and of `kernels` by name: `kernels products attention nccl`, or `kernels messages`; and
  /// `target_weights`, if there may be some.
  llvm::SmallVector<std::pair<llvm::StringRef, int64_t>> parts() const;
  /// `of kernels 2.06 GiB (products of cuBLASLt up to 32.00 MiB, .., in turn), of NCCL 140.00 MiB`.
  std::string str() const;
};

/// `1.50 MiB`.
std::string formatBytes(int64_t bytes);

/// The scratch of a rank's program and, unless it is null, its forward program, which never run together.
RankScratch scratchOf(pipeline::RankOp rank, pipeline::RankOp forward = {});

} // namespace pp

#endif // PP_ANALYSIS_SCRATCH_H
