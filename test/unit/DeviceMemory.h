// Memory that the kernels under test and the tests themselves reach: the host's, or the GPU's where they run on one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_UNIT_DEVICEMEMORY_H
#define PP_TEST_UNIT_DEVICEMEMORY_H

#include <cstddef>
#include <cstdint>

namespace pp::test {

void *allocateForDevice(size_t bytes);
void freeForDevice(void *memory);
void uploadToDevice(void *to, const void *from, size_t bytes);
/// Waits for all that was launched, then reads.
void downloadFromDevice(void *to, const void *from, size_t bytes);
int32_t wordOfDevice(const int32_t *word);

template <class T> struct DeviceAllocator {
  using value_type = T;
  DeviceAllocator() = default;
  template <class U> DeviceAllocator(const DeviceAllocator<U> &) {}
  T *allocate(size_t n) { return static_cast<T *>(allocateForDevice(n * sizeof(T))); }
  void deallocate(T *memory, size_t) { freeForDevice(memory); }
  bool operator==(const DeviceAllocator &) const = default;
};

} // namespace pp::test

#endif // PP_TEST_UNIT_DEVICEMEMORY_H
