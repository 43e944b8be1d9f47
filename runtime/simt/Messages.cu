// Adds arrays element by element, in the order of their ranks, so that every run gives the same bits; waits for a word.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/simt/Messages.h"
#include <algorithm>
#include <cuda/atomic>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace pp {
namespace {

/// By value, so that a graph keeps them.
struct Addresses {
  const void *parts[mostSummands];
  void *sums[mostSummands];
  int partCount, sumCount;
};

/// A sum may be one of the parts: an element is written only after all of its parts have been read.
/// The sum of 16 bits is made in f32 and rounded once.
template <typename Element, typename Total = Element> __global__ void addInOrder(const Addresses at, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    Total total = Total(static_cast<const Element *>(at.parts[0])[i]);
    for (int part = 1; part < at.partCount; ++part)
      total += Total(static_cast<const Element *>(at.parts[part])[i]);
    for (int sum = 0; sum < at.sumCount; ++sum)
      static_cast<Element *>(at.sums[sum])[i] = Element(total);
  }
}

__global__ void awaitWord(uint32_t *word) {
  cuda::atomic_ref<uint32_t, cuda::thread_scope_system> its(*word);
  while (its.load(cuda::memory_order_acquire) != 1)
    __nanosleep(200);
  its.store(0, cuda::memory_order_relaxed);
}

} // namespace

cudaError_t launchSum(const SumSpec &spec, cudaStream_t stream) {
  constexpr int threads = 256;
  constexpr int64_t mostBlocks = 1024; // enough to keep the memory of any GPU of today busy
  if (spec.parts.size() > mostSummands || spec.sums.size() > mostSummands)
    return cudaErrorInvalidValue;
  if (spec.count == 0)
    return cudaSuccess;
  Addresses at = {};
  std::copy(spec.parts.begin(), spec.parts.end(), at.parts);
  std::copy(spec.sums.begin(), spec.sums.end(), at.sums);
  at.partCount = int(spec.parts.size());
  at.sumCount = int(spec.sums.size());
  auto blocks = unsigned(std::min(mostBlocks, (spec.count + threads - 1) / threads));
  if (spec.type == Type::F64)
    addInOrder<double><<<blocks, threads, 0, stream>>>(at, spec.count);
  else if (spec.type == Type::Bf16)
    addInOrder<__nv_bfloat16, float><<<blocks, threads, 0, stream>>>(at, spec.count);
  else if (spec.type == Type::F16)
    addInOrder<__half, float><<<blocks, threads, 0, stream>>>(at, spec.count);
  else
    addInOrder<float><<<blocks, threads, 0, stream>>>(at, spec.count);
  return cudaGetLastError();
}

cudaError_t launchAwait(uint32_t *word, cudaStream_t stream) {
  awaitWord<<<1, 1, 0, stream>>>(word);
  return cudaGetLastError();
}

} // namespace pp
