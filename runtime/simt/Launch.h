// How an op's body puts kernels on the rank's stream, and what the ops of a rank share on the device.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_LAUNCH_H
#define PP_RUNTIME_SIMT_LAUNCH_H

#include "runtime/Rank.h"
#include "runtime/kernels/Op.h"
#include "runtime/simt/Element.h"
#include <string>

namespace pp {

struct Launches {
  void *stream = nullptr;
  OptimizerScalars *scalars = nullptr;
  int32_t *failures = nullptr;
  RouterSums *routed = nullptr; ///< null where no op is a router's
};

/// Emulated kernels without streams have no device that writes the scalars before a step: they come with the call.
inline void takeScalars([[maybe_unused]] const PreparedOp &op, [[maybe_unused]] const void *scalars) {
#ifndef __CUDACC__
  if (!op.launches->stream)
    *op.launches->scalars = *static_cast<const OptimizerScalars *>(scalars);
#endif
}

/// The error of the device or its library when this process's last launch failed.
inline std::string whyNotLaunched;

struct Grid {
  int64_t x, y = 1, z = 1;
};

/// Puts a kernel on the stream; PP_INTERNAL if it cannot be launched, which is the launch's own error and no older one.
/// Nothing waits.
template <class... Parameters, class... Arguments>
pp_status_t launch(const PreparedOp &op, void (*kernel)(Parameters...), Grid grid, int threads, size_t shared,
                   Arguments... arguments) {
#ifdef __CUDACC__
  cudaError_t error = shared > 48 * 1024
                          ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared))
                          : cudaSuccess;
  cudaLaunchConfig_t how = {};
  how.gridDim = {unsigned(grid.x), unsigned(grid.y), unsigned(grid.z)}, how.blockDim = unsigned(threads);
  how.dynamicSmemBytes = shared, how.stream = static_cast<cudaStream_t>(op.launches->stream);
  if (error == cudaSuccess)
    error = cudaLaunchKernelEx(&how, kernel, arguments...);
  if (error == cudaSuccess)
    return PP_OK;
  whyNotLaunched = cudaGetErrorString(error);
  return PP_INTERNAL;
#else
  simtLaunch(op.launches->stream, [=] {
    runGrid({unsigned(grid.x), unsigned(grid.y), unsigned(grid.z)}, unsigned(threads), shared,
            [&] { kernel(arguments...); });
  });
  return PP_OK;
#endif
}

inline int64_t blocksFor(int64_t n, int64_t size) { return (n + size - 1) / size; }

template <class E> const E *in(const void *p) { return static_cast<const E *>(p); }
template <class E> E *out(void *p) { return static_cast<E *>(p); }
/// Tensor number i of a list of addresses, an argument of its own.
template <class E> E *inList(const void *list, int64_t i) {
  return static_cast<E *>(const_cast<void *>(static_cast<const void *const *>(list)[i]));
}

/// Whether packs of 16 bytes can be read at all of these addresses.
template <class... Pointers> bool aligned(Pointers... pointers) {
  return ((reinterpret_cast<uintptr_t>(static_cast<const void *>(pointers)) | ...) & 15) == 0;
}

/// The bodies of each kernel by Type. A kernel without PP_BODIES behind its loops does not link.
#define PP_KERNEL(name, ...) extern const Body name##Bodies[typeCount];
#include "runtime/kernels/Kernels.def"
#define PP_BODIES(name) const Body pp::name##Bodies[] = {name<float>, name<Bf16>, name<double>, name<F16>};
/// Those of an attention serve where no tensor core does.
Body attentionBody(const PreparedOp &op);
Body attentionBackwardBody(const PreparedOp &op);

/// y[T,N] += b[N] for a linear whose product could not add it.
pp_status_t addBias(const PreparedOp &op, const void *b, void *y);

/// to[N] += from[N], f32, for a product that could only write the column sums of dy.
pp_status_t addSums(const PreparedOp &op, const void *from, void *to);

/// Whether this attention's products are done by tensor cores: 16 bits, and heads that their tiles hold.
inline bool onTensorCores(const PreparedOp &op) {
  return (op.type == Type::Bf16 || op.type == Type::F16) && op.dims[4] <= 256;
}
/// Shared memory of an attention's largest block.
size_t attentionSharedBytes(const PreparedOp &op);
/// That of a scan's, which has the state of some columns of v.
size_t scanSharedBytes(const PreparedOp &op);

} // namespace pp

#endif // PP_RUNTIME_SIMT_LAUNCH_H
