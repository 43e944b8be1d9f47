// Writes TensorBoard's event files: TFRecords of the few protobuf fields that a scalar needs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/EventFile.h"
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <unistd.h>

namespace pp {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr std::array<uint32_t, 256> crcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit)
      rest = rest & 1 ? rest >> 1 ^ 0x82f63b78u : rest >> 1;
    table[byte] = rest;
  }
  return table;
}

template <typename Number> std::string bytesOf(Number number) {
  std::string out(sizeof number, '\0');
  std::memcpy(out.data(), &number, sizeof number);
  return out;
}

std::string varint(uint64_t number) {
  std::string out;
  for (; number >= 0x80; number >>= 7)
    out += char(number | 0x80);
  return out + char(number);
}

/// A field of protobuf whose value has a length (wire type 2).
std::string field(int number, const std::string &body) {
  return std::string(1, char(number << 3 | 2)) + varint(body.size()) + body;
}

/// CRCs of data that holds CRCs are masked, as TFRecord asks.
std::string maskedCrc(const std::string &bytes) { return bytesOf(std::rotr(crc32c(bytes), 15) + 0xa282ead8u); }

double wallSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Field 1 of Event: a double (wire type 1).
std::string wallTime() { return '\x09' + bytesOf(wallSeconds()); }

} // namespace

uint32_t crc32c(const std::string &bytes) {
  static constexpr std::array<uint32_t, 256> table = crcTable();
  uint32_t crc = ~0u;
  for (unsigned char byte : bytes)
    crc = table[(crc ^ byte) & 0xff] ^ crc >> 8;
  return ~crc;
}

EventFile::~EventFile() {
  if (file)
    fclose(file);
}

Status EventFile::open(const std::string &folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return refused("cannot make the folder `", folder, "` of --tensorboard: ", error.message());
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  path = text(folder, "/events.out.tfevents.", int64_t(wallSeconds()), ".", host, ".", getpid());
  file = fopen(path.c_str(), "wb");
  if (!file)
    return refused("cannot write `", path, "` of --tensorboard: ", strerror(errno));
  return write(wallTime() + field(3, "brain.Event:2"));
}

Status EventFile::add(int64_t step, const std::vector<std::pair<std::string, double>> &values) {
  std::string summary;
  for (const auto &[tag, value] : values)
    summary += field(1, field(1, tag) + '\x15' + bytesOf(float(value)));
  return write(wallTime() + '\x10' + varint(uint64_t(step)) + field(5, summary));
}

Status EventFile::write(const std::string &event) {
  std::string length = bytesOf(uint64_t(event.size()));
  std::string record = length + maskedCrc(length) + event + maskedCrc(event);
  if (fwrite(record.data(), 1, record.size(), file) != record.size() || fflush(file) != 0)
    return refused("cannot write `", path, "` of --tensorboard: ", strerror(errno));
  return {};
}

} // namespace pp
