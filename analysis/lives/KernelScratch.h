// The memory that kernels take beside their operands on a CPU: bounds for every CPU, so that plans depend on none.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_KERNELSCRATCH_H
#define PP_ANALYSIS_KERNELSCRATCH_H

#include "dialect/nn/Nn.h"

namespace pp::nn {

/// Bytes of scratch, which all ops of a rank share, that the op's kernel may need with one thread.
int64_t scratchBytesOf(Kernel kernel);

/// The table that rope's kernel reads. A rank has one for each key: ops with equal keys share it.
struct RopeTable {
  std::string key;
  int64_t bytes;
};
RopeTable ropeTableOf(RopeOp rope);

} // namespace pp::nn

#endif // PP_ANALYSIS_KERNELSCRATCH_H
