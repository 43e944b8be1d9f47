// The device's memory through the CUDA runtime.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Memory.h"
#include <cuda_runtime.h>

using namespace pp;

DeviceBlock::~DeviceBlock() { cudaFree(memory); }

bool DeviceBlock::allocate(size_t bytes, std::string &why) {
  void *at = nullptr;
  cudaError_t error = cudaMalloc(&at, bytes);
  if (error == cudaSuccess)
    error = cudaMemset(at, 0, bytes);
  if (error == cudaSuccess)
    error = cudaDeviceSynchronize(); // the rank's stream does not wait for this one
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    why = std::string("the device refused ") + std::to_string(bytes) + " bytes: " + cudaGetErrorString(error);
  }
  memory = static_cast<char *>(at);
  return error == cudaSuccess;
}

bool DeviceBlock::upload(size_t at, const void *from, size_t bytes) {
  return cudaMemcpy(memory + at, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
}

void *pp::allocateForTrial(size_t bytes) {
  void *at = nullptr;
  if (cudaMalloc(&at, bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return at;
}

size_t pp::sharedMemoryLimit() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    return 48 * 1024;
  return size_t(bytes);
}
