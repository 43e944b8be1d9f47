// The device's memory where kernels are emulated: the host's, in pages that are there when they are touched.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Memory.h"
#include "runtime/simt/BlockFibers.h"
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

using namespace pp;

namespace {

struct Block {
  void *whole;
  int64_t bytes;
};
std::mutex mutex; ///< of the blocks: ranks that are threads allocate and free at the same time

/// The blocks by their begins for the kernels.
std::map<char *, Block> &blocks() {
  static auto &all = *new std::map<char *, Block>;
  return all;
}

} // namespace

DeviceBlock::~DeviceBlock() {
  std::lock_guard lock(mutex);
  auto block = blocks().find(memory);
  if (block == blocks().end())
    return;
  if (simtMemory)
    simtMemory(memory, -block->second.bytes);
  std::free(block->second.whole);
  blocks().erase(block);
}

bool DeviceBlock::allocate(size_t bytes, std::string &why) {
  void *whole = std::calloc(1, bytes + 256);
  if (!whole) {
    why = "no memory";
    return false;
  }
  std::lock_guard lock(mutex);
  memory = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(whole) + 255) / 256 * 256);
  blocks()[memory] = {whole, int64_t(bytes)};
  if (simtMemory)
    simtMemory(memory, int64_t(bytes));
  return true;
}

bool DeviceBlock::upload(size_t at, const void *from, size_t bytes) {
  std::memcpy(memory + at, from, bytes);
  return true;
}

/// An A100's: what runs here fits there.
size_t pp::sharedMemoryLimit() { return 166912; }
