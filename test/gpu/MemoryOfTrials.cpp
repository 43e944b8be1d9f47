// A device that refuses memory to a trial leaves no error behind, of which the next kernel would be blamed.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The source as it is, with a device that keeps its last error as CUDA does. (Without a GPU, CUDA itself says at every
// request for the last error that there is none.)
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <utility>

namespace {

cudaError_t lastError = cudaSuccess;
size_t room = 0;

cudaError_t giveMemory(void **memory, size_t bytes) {
  if (bytes > room)
    return lastError = cudaErrorMemoryAllocation;
  *memory = &room;
  return cudaSuccess;
}
cudaError_t takeLastError() { return std::exchange(lastError, cudaSuccess); }

} // namespace

#define cudaMalloc giveMemory
#define cudaGetLastError takeLastError
#include "runtime/cuda/Memory.cpp"

TEST(MemoryOfTrials, RefusalLeavesNoError) {
  room = 100;
  EXPECT_EQ(allocateForTrial(101), nullptr);
  EXPECT_EQ(lastError, cudaSuccess);
  EXPECT_EQ(allocateForTrial(100), &room);
  DeviceBlock block;
  std::string why;
  EXPECT_FALSE(block.allocate(101, why));
  EXPECT_EQ(why, "the device refused 101 bytes: out of memory");
  EXPECT_EQ(lastError, cudaSuccess);
}
