// The stand-in of CUDA, between processes: memory of a device that others open, and words that streams wait for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory of the device is a file without a name, which another process opens by this one's number and its own. If a
// word is written again before its owner has read it, the writing device fails: somebody has not waited.
//   PP_FAKE_PEER=KIND:RANK:K   on this rank (-1: on all) the K-th wait for a word (closed: opening of memory), from 0:
//     hasty (does not wait)  withhold (never ends)  hang (the process sleeps)  die (SIGKILL)
//     closed (is refused)
//   PP_FAKE_PEERS=1   at its end the process says how much it has copied to other devices, and how often it waited
#include "runtime/simt/Messages.h"
#include "test/gpu/FakeCuda.h"
#include <atomic>
#include <cstdio>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace {

/// Files of device memory, and how long they are, by where they lie here.
struct Memory {
  int file;
  size_t bytes;
};
/// The contents of a handle.
struct Name {
  int64_t process, file, bytes;
};

struct Peers {
  std::map<const void *, Memory> own, others;
  pp::FakeFault fault{"PP_FAKE_PEER"};
  long waits = 0, openings = 0;
  int64_t copied = 0;
  ~Peers() {
    if (getenv("PP_FAKE_PEERS"))
      fprintf(stderr, "peers: %lld bytes to others, %ld waits\n", (long long)copied, waits);
  }
} peers;

void *map(int file, size_t bytes) {
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

} // namespace

cudaError_t pp::launchAwait(uint32_t *word, cudaStream_t stream) {
  const long number = peers.waits++;
  peers.fault.stopHere(number);
  const bool isHasty = peers.fault.meets("hasty", number), isWithheld = peers.fault.meets("withhold", number);
  return fakeEnqueue(stream, [=] {
    return [=] {
      uint32_t told = 1;
      if (isHasty)
        std::atomic_ref(*word).store(0);
      return isHasty || (!isWithheld && std::atomic_ref(*word).compare_exchange_strong(told, 0));
    };
  });
}

void *pp::fakeMemory(size_t bytes) {
  int file = memfd_create("device memory", MFD_CLOEXEC);
  if (file < 0)
    return nullptr;
  void *memory = ftruncate(file, off_t(bytes)) == 0 ? map(file, bytes) : nullptr;
  if (!memory)
    close(file);
  else
    peers.own[memory] = {file, bytes};
  return memory;
}
bool pp::fakeFree(void *memory) {
  auto found = peers.own.find(memory);
  if (found == peers.own.end())
    return false;
  munmap(memory, found->second.bytes);
  close(found->second.file);
  peers.own.erase(found);
  return true;
}
bool pp::fakeIsPeers(const void *address) {
  auto behind = peers.others.upper_bound(address);
  return behind != peers.others.begin() &&
         address < static_cast<const char *>(std::prev(behind)->first) + std::prev(behind)->second.bytes;
}
void pp::fakeCopy(void *to, const void *from, size_t bytes) {
  if (fakeIsPeers(to))
    peers.copied += int64_t(bytes);
  if (bytes == sizeof(uint32_t) && fakeIsPeers(to)) { // a word, behind what was copied before
    uint32_t word = 0;
    memcpy(&word, from, bytes);
    if (std::atomic_ref(*static_cast<uint32_t *>(to)).exchange(word, std::memory_order_acq_rel) == word)
      fakeBreak(cudaErrorIllegalState);
  } else {
    memcpy(to, from, bytes);
  }
}

extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory) {
  auto found = peers.own.find(memory);
  if (found == peers.own.end()) // the begin of a block alone
    return cudaErrorInvalidValue;
  const Name name = {getpid(), found->second.file, int64_t(found->second.bytes)};
  *handle = {};
  memcpy(handle->reserved, &name, sizeof name);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned) {
  Name name = {};
  memcpy(&name, handle.reserved, sizeof name);
  if (peers.fault.meets("closed", peers.openings++))
    return cudaErrorPeerAccessUnsupported;
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)name.process, (long long)name.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  *memory = file >= 0 ? map(file, size_t(name.bytes)) : nullptr;
  if (file >= 0)
    close(file);
  if (*memory)
    peers.others[*memory] = {-1, size_t(name.bytes)};
  return *memory ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaIpcCloseMemHandle(void *memory) {
  auto found = peers.others.find(memory);
  if (found == peers.others.end())
    return cudaErrorInvalidValue;
  munmap(memory, found->second.bytes);
  peers.others.erase(found);
  return cudaSuccess;
}

} // extern "C"
