// The device's memory where kernels are emulated: the host's.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Memory.h"
#include <cstdlib>
#include <cstring>

using namespace pp;

DeviceBlock::~DeviceBlock() { std::free(memory); }

bool DeviceBlock::allocate(size_t bytes, std::string &why) {
  memory = static_cast<char *>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  if (memory)
    std::memset(memory, 0, bytes);
  else
    why = "no memory";
  return memory;
}

bool DeviceBlock::upload(size_t at, const void *from, size_t bytes) {
  std::memcpy(memory + at, from, bytes);
  return true;
}

/// An A100's: what runs here fits there.
size_t pp::sharedMemoryLimit() { return 166912; }
