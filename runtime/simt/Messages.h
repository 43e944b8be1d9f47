// The kernels that messages need: sums of several arrays, added in the order of their ranks, and a wait for a word.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_MESSAGES_H
#define PP_RUNTIME_SIMT_MESSAGES_H

#include "runtime/device/Driver.h"
#include <cuda_runtime.h>

namespace pp {

/// Members of one collective on one device.
constexpr int mostSummands = 128;

[[nodiscard]] cudaError_t launchSum(const SumSpec &spec, cudaStream_t stream);
/// Waits in the stream until another device has made the word 1, and makes it 0. One warp waits, without shared memory:
/// it takes no place that a kernel needs. (CUDA can wait for a word without any, cuStreamWaitValue32, but then all that
/// comes behind in the same hardware queue, or what a graph puts there, waits as well, whatever it depends on.)
[[nodiscard]] cudaError_t launchAwait(uint32_t *word, cudaStream_t stream);

} // namespace pp

#endif // PP_RUNTIME_SIMT_MESSAGES_H
