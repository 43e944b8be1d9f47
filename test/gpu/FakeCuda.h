// What the stand-ins of CUDA and NCCL share: work that is put on a stream and done in parts, whenever the host looks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_GPU_FAKECUDA_H
#define PP_TEST_GPU_FAKECUDA_H

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <functional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pp {

/// Does what can be done now; true when all of it is done.
using FakeWork = std::function<bool()>;

/// Puts work on a stream, or into the graph that it is captured for: `make` is then called at each launch.
cudaError_t fakeEnqueue(cudaStream_t stream, std::function<FakeWork()> make);
[[nodiscard]] bool fakeIsCaptured(cudaStream_t stream);
/// Ranges of memory that a library reads or writes in a stream; null: nobody asks.
using FakeRanges = std::vector<std::pair<const char *, size_t>>;
inline void (*fakeAccesses)(cudaStream_t stream, FakeRanges ranges) = nullptr;
/// Memory of the device, which other processes can open; null: there is none. / False: it was not made here.
[[nodiscard]] void *fakeMemory(size_t bytes);
bool fakeFree(void *memory);
[[nodiscard]] bool fakeIsPeers(const void *address); ///< it lies in memory of another process
void fakeCopy(void *to, const void *from, size_t bytes);
/// From now on every call fails, as after a kernel that fails.
void fakeBreak(cudaError_t error);
/// Keeps so many multiprocessors for a kernel that begins, if they are free; below 0: it has ended.
[[nodiscard]] bool fakeOccupy(int64_t multiprocessors);
/// A library takes memory of the device for itself; below 0: it gives it back.
void fakeTake(int64_t bytes);
/// Lets every stream go on a little, in an order drawn from PP_FAKE_SEED.
void fakeGoOn();

/// The call that fails by the environment variable KIND:RANK:K: the K-th of this kind, on that rank (-1: on all).
struct FakeFault {
  explicit FakeFault(const char *variable) {
    const char *given = getenv(variable), *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!given)
      return;
    char *end = nullptr;
    kind.assign(given, strcspn(given, ":"));
    long on = strtol(given + kind.size() + 1, &end, 10);
    number = strtol(end + 1, nullptr, 10);
    isHere = on < 0 || (rank && atol(rank) == on);
  }
  [[nodiscard]] bool meets(const char *its, long count) const { return isHere && kind == its && count == number; }
  /// The process dies, or sleeps for ever, where that was asked for.
  void stopHere(long count) const {
    if (meets("die", count))
      raise(SIGKILL);
    while (meets("hang", count))
      pause();
  }
  std::string kind;
  bool isHere = false;
  long number = 0;
};

} // namespace pp

#endif // PP_TEST_GPU_FAKECUDA_H
