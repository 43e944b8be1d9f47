// PTX on a GPU: the driver translates it when it is loaded, and its kernels are launched as any other.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Formula.h"
#include <cuda_runtime.h>

using namespace pp;

namespace {

class DevicePtx final : public PtxLibrary {
public:
  DevicePtx() = default;
  DevicePtx(const DevicePtx &) = delete;
  ~DevicePtx() override {
    if (library)
      cudaLibraryUnload(library);
  }
  cudaError_t load(const char *ptx, const std::vector<const char *> &names) {
    cudaError_t error = cudaLibraryLoadData(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0);
    kernels.resize(names.size());
    for (size_t i = 0; i < names.size() && error == cudaSuccess; ++i) {
      error = cudaLibraryGetKernel(&kernels[i], library, names[i]);
      cudaFuncAttributes unused; // asking for them loads the kernel: a capture must not be the first to launch it
      if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&unused, kernels[i]);
    }
    return error;
  }
  pp_status_t launch(void *stream, size_t kernel, int64_t blocks, int64_t threads,
                     const std::vector<uint64_t> &arguments, std::string &why) const override {
    std::vector<void *> addresses;
    for (const uint64_t &each : arguments)
      addresses.push_back(const_cast<uint64_t *>(&each));
    cudaLaunchConfig_t how = {};
    how.gridDim = unsigned(blocks), how.blockDim = unsigned(threads);
    how.stream = static_cast<cudaStream_t>(stream);
    cudaError_t error = cudaLaunchKernelExC(&how, kernels[kernel], addresses.data());
    if (error == cudaSuccess)
      return PP_OK;
    why = cudaGetErrorString(error);
    return PP_INTERNAL;
  }

private:
  cudaLibrary_t library = nullptr;
  std::vector<cudaKernel_t> kernels;
};

} // namespace

std::unique_ptr<PtxLibrary> PtxLibrary::load(const char *ptx, const std::vector<const char *> &kernels,
                                             std::string &why) {
  auto library = std::make_unique<DevicePtx>();
  cudaError_t error = library->load(ptx, kernels);
  if (error == cudaSuccess)
    return library;
  why = std::string("the GPU refuses a formula's kernels: ") + cudaGetErrorString(error);
  return nullptr;
}
