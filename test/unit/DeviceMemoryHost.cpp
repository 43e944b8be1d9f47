// The memory of tests on the CPU, emulated kernels included.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/DeviceMemory.h"
#include <cstdlib>
#include <cstring>

void *pp::test::allocateForDevice(size_t bytes) { return std::malloc(bytes); }
void pp::test::freeForDevice(void *memory) { std::free(memory); }
void pp::test::uploadToDevice(void *to, const void *from, size_t bytes) { std::memcpy(to, from, bytes); }
void pp::test::downloadFromDevice(void *to, const void *from, size_t bytes) { std::memcpy(to, from, bytes); }
int32_t pp::test::wordOfDevice(const int32_t *word) { return *word; }
