// The memory of tests on a GPU: managed, so that kernels and tests reach it alike; without a GPU all tests are skipped.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/DeviceMemory.h"
#include <cstdio>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

void *pp::test::allocateForDevice(size_t bytes) {
  void *memory = nullptr;
  return cudaMallocManaged(&memory, bytes) == cudaSuccess ? memory : nullptr;
}
/// The test may have launched what still reads it.
void pp::test::freeForDevice(void *memory) {
  cudaDeviceSynchronize();
  cudaFree(memory);
}
void pp::test::uploadToDevice(void *to, const void *from, size_t bytes) {
  cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
}
void pp::test::downloadFromDevice(void *to, const void *from, size_t bytes) {
  cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess)
    error = cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost);
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}
int32_t pp::test::wordOfDevice(const int32_t *word) {
  int32_t value = -1;
  downloadFromDevice(&value, word, sizeof(value));
  return value;
}

int main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  int devices = 0;
  if (cudaError_t error = cudaGetDeviceCount(&devices)) {
    std::printf("skipped: no GPU can be used: %s\n", cudaGetErrorString(error));
    return 77;
  }
  return RUN_ALL_TESTS();
}
