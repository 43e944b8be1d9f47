// What the stand-ins of CUDA and NCCL share: work that is put on a stream and done in parts, whenever the host looks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_GPU_FAKECUDA_H
#define PP_TEST_GPU_FAKECUDA_H

#include <cuda_runtime.h>
#include <functional>
#include <utility>
#include <vector>

namespace pp {

/// Does what can be done now; true when all of it is done.
using FakeWork = std::function<bool()>;

/// Puts work on a stream, or into the graph that it is captured for: `make` is then called at each launch.
cudaError_t fakeEnqueue(cudaStream_t stream, std::function<FakeWork()> make);
[[nodiscard]] bool fakeIsCaptured(cudaStream_t stream);
/// What is told of memory that a library reads or writes in a stream; null: nobody asks.
using FakeRanges = std::vector<std::pair<const char *, size_t>>;
inline void (*fakeAccesses)(cudaStream_t stream, FakeRanges ranges) = nullptr;
/// Keeps so many multiprocessors for a kernel that begins, if they are free; below 0: it has ended.
[[nodiscard]] bool fakeOccupy(int64_t multiprocessors);
/// A library takes memory of the device for itself; below 0: it gives it back.
void fakeTake(int64_t bytes);
/// Lets every stream go on a little, in an order drawn from PP_FAKE_SEED.
void fakeGoOn();

} // namespace pp

#endif // PP_TEST_GPU_FAKECUDA_H
