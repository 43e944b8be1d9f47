// A grid of blocks run on the CPU, each thread a fiber, so that kernels are tested where there is no GPU.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One fiber runs at a time and runs on until it waits: for its warp (shuffles, matrix products) or for its block. A
// barrier that is missing shows, because the first thread reads before the others have written; with PP_SIMT_ORDER=down
// the last one is first, and with PP_SIMT_ORDER=N threads and blocks go on in a random order. A barrier that not all
// threads reach, and an address that the device would refuse, end the program with a message.
#ifndef PP_RUNTIME_SIMT_BLOCKFIBERS_H
#define PP_RUNTIME_SIMT_BLOCKFIBERS_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace pp {

struct SimtIndex {
  unsigned x = 1, y = 1, z = 1;
};

/// Runs `body` once for each thread of each block; blocks have `threads` threads, a multiple of 32 or fewer than 32.
void runGrid(SimtIndex grid, unsigned threads, size_t sharedBytes, const std::function<void()> &body);

/// Takes the kernels that are launched on a stream; null: there are no streams, and a kernel runs at once.
extern void (*simtStreams)(void *stream, std::function<void()> kernel);
template <typename Work> void simtLaunch(void *stream, Work work) {
  if (simtStreams && stream)
    simtStreams(stream, std::move(work));
  else
    work();
}

/// Told of the device's memory that kernels take, and below 0 give back; null: nobody asks.
extern void (*simtMemory)(void *memory, int64_t bytes);

/// The place of the running thread in its grid; valid inside runGrid.
struct SimtPlace {
  SimtIndex block, blocks, thread, threads;
  char *shared;
};
SimtPlace &simtPlace();

/// Waits for all threads of the block, or of the warp.
void simtWaitBlock();
void simtWaitWarp();

/// Gives the warp what this lane has and waits for the others. What lane i gave then lies at i * simtSlotBytes of what
/// is handed back, until the warp's next exchange but one.
constexpr size_t simtSlotBytes = 64;
char *simtSlot();
const char *simtExchangeSlots();
template <typename T> const char *simtExchange(const T &its) {
  static_assert(sizeof(T) <= simtSlotBytes);
  std::memcpy(simtSlot(), &its, sizeof(T));
  return simtExchangeSlots();
}

/// Ends the program: so many bytes are read or written at once at an address that is not a multiple of them.
[[noreturn]] void simtMisaligned(const void *address, int bytes);

/// Copies that happen no earlier than the wait for their group, as cp.async may.
void simtCopyLater(void *to, const void *from, size_t bytes);
void simtCommitCopies();
void simtWaitCopies(int groupsLeft);

} // namespace pp

#endif // PP_RUNTIME_SIMT_BLOCKFIBERS_H
