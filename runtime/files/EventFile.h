// A file of scalars by step for TensorBoard.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_EVENTFILE_H
#define PP_RUNTIME_EVENTFILE_H

#include "runtime/Status.h"
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace pp {

/// CRC-32C (Castagnoli), of "123456789" e3069283.
[[nodiscard]] uint32_t crc32c(const std::string &bytes);

/// `events.out.tfevents.<seconds>.<host>.<process>`: a sequence of TFRecords (length, masked CRC of the length, body,
/// masked CRC of the body), each body an Event of TensorFlow's event.proto.
class EventFile {
public:
  EventFile() = default;
  ~EventFile();
  EventFile(const EventFile &) = delete;
  EventFile &operator=(const EventFile &) = delete;

  /// Makes the folder, if it is not there, and a new file in it.
  Status open(const std::string &folder);
  [[nodiscard]] bool isOpen() const { return file != nullptr; }
  /// Appends one event with these values, by tag.
  Status add(int64_t step, const std::vector<std::pair<std::string, double>> &values);

private:
  Status write(const std::string &event);

  std::string path;
  FILE *file = nullptr;
};

} // namespace pp

#endif // PP_RUNTIME_EVENTFILE_H
