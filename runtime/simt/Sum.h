// The one kernel that messages need: sums of several arrays, added in the order of their ranks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_SUM_H
#define PP_RUNTIME_SIMT_SUM_H

#include "runtime/device/Driver.h"
#include <cuda_runtime.h>

namespace pp {

/// Members of one collective on one device.
constexpr int mostSummands = 128;

[[nodiscard]] cudaError_t launchSum(const SumSpec &spec, cudaStream_t stream);

} // namespace pp

#endif // PP_RUNTIME_SIMT_SUM_H
