// A CUDA driver that takes every kernel and knows no device: where there is no GPU, cuDNN builds its plans against it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
static int loaded;

#define TAKES(name)                                                                                                    \
  int name(void **made) {                                                                                              \
    *made = &loaded;                                                                                                   \
    return 0;                                                                                                          \
  }
#define REFUSES(name)                                                                                                  \
  int name(void) { return 100; } // CUDA_ERROR_NO_DEVICE
#define AGREES(name)                                                                                                   \
  int name(void) { return 0; }

TAKES(cuLibraryLoadData)
TAKES(cuLibraryGetKernel)
TAKES(cuLibraryGetModule)
TAKES(cuKernelGetFunction)
AGREES(cuLibraryUnload)
AGREES(cuKernelSetAttribute)
AGREES(cuKernelGetAttribute)
AGREES(cuFuncSetAttribute)
AGREES(cuFuncGetAttribute)
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetLimit)
REFUSES(cuCtxPopCurrent)
REFUSES(cuCtxPushCurrent)
REFUSES(cuStreamGetCtx)
REFUSES(cuLinkCreate)
REFUSES(cuLinkAddData)
REFUSES(cuLinkComplete)
REFUSES(cuLinkDestroy)
REFUSES(cuLaunchKernel)
REFUSES(cuLaunchKernelEx)
REFUSES(cuLaunchCooperativeKernel)
REFUSES(cuDeviceGetCount)
REFUSES(cuDeviceGet)
REFUSES(cuLibraryLoadFromFile)
REFUSES(cuOccupancyMaxPotentialClusterSize)
REFUSES(cuModuleLoadData)
REFUSES(cuModuleLoadDataEx)
REFUSES(cuModuleGetFunction)
REFUSES(cuModuleUnload)
REFUSES(cuCtxSetLimit)
REFUSES(cuCtxSynchronize)
REFUSES(cuDeviceGetAttribute)
REFUSES(cuStreamSynchronize)
REFUSES(cuInit)

int cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}
int cuGetErrorString(int error, const char **text) {
  *text = error ? "no device" : "no error";
  return 0;
}
int cuGetErrorName(int error, const char **text) { return cuGetErrorString(error, text); }
