// The device's memory as the runtime takes it: few blocks, before the first step.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CUDA_MEMORY_H
#define PP_RUNTIME_CUDA_MEMORY_H

#include <cstddef>
#include <string>

namespace pp {

/// One block of the device's memory, zeros at first, 256-byte aligned.
class DeviceBlock {
public:
  DeviceBlock() = default;
  DeviceBlock(const DeviceBlock &) = delete;
  DeviceBlock &operator=(const DeviceBlock &) = delete;
  ~DeviceBlock();
  /// False if the device refuses; `why` says it in its words.
  [[nodiscard]] bool allocate(size_t bytes, std::string &why);
  /// Copies from the host and waits.
  [[nodiscard]] bool upload(size_t at, const void *from, size_t bytes);
  char *data() const { return memory; }

private:
  char *memory = nullptr;
};

/// Pieces of a block of memory begin at multiples of 256 bytes.
constexpr int64_t align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// Memory for the time of a trial; null where the device has too little. Then CUDA's error is taken back: else the next
/// kernel would be blamed for it.
void *allocateForTrial(size_t bytes);

/// The most shared memory that a block of this device may ask for.
size_t sharedMemoryLimit();

} // namespace pp

#endif // PP_RUNTIME_CUDA_MEMORY_H
