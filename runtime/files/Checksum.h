// A checksum of bytes that come in pieces: the CRC-32 of zip files, which Python's zlib.crc32 computes, too.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_CHECKSUM_H
#define PP_RUNTIME_FILES_CHECKSUM_H

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace pp {

using ChecksumTables = std::array<std::array<uint32_t, 256>, 16>;
/// Table k has the remainder of each byte with k zero bytes behind it: 16 bytes are looked up at a time.
inline constexpr ChecksumTables checksumTables = [] {
  ChecksumTables made{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit)
      rest = rest >> 1 ^ (rest & 1 ? 0xedb88320u : 0);
    made[0][byte] = rest;
  }
  for (uint32_t byte = 0; byte < 256; ++byte)
    for (size_t k = 1; k < made.size(); ++k)
      made[k][byte] = made[k - 1][byte] >> 8 ^ made[0][made[k - 1][byte] & 0xff];
  return made;
}();

/// The remainder of the bytes by the polynomial of IEEE 802.3, with its bits mirrored. Any change of up to 32 bits in a
/// row is found; of others, all but one in 2^32.
class Checksum {
public:
  void add(const void *data, size_t bytes) {
    const auto *at = static_cast<const unsigned char *>(data);
    static_assert(std::endian::native == std::endian::little);
    for (; bytes >= 16; bytes -= 16, at += 16) {
      uint64_t low = 0, high = 0;
      memcpy(&low, at, 8);
      memcpy(&high, at + 8, 8);
      low ^= state;
      uint32_t first = 0, second = 0;
      for (int i = 0; i < 8; ++i) {
        first ^= checksumTables[15 - i][low >> (8 * i) & 0xff];
        second ^= checksumTables[7 - i][high >> (8 * i) & 0xff];
      }
      state = first ^ second;
    }
    for (; bytes > 0; --bytes, ++at)
      state = state >> 8 ^ checksumTables[0][(state ^ *at) & 0xff];
  }
  /// Eight hexadecimal digits.
  [[nodiscard]] static std::string text(uint32_t sum) {
    char digits[9];
    snprintf(digits, sizeof digits, "%08x", sum);
    return digits;
  }
  [[nodiscard]] std::string text() const { return text(~state); }
  [[nodiscard]] static std::string of(std::string_view bytes) {
    Checksum sum;
    sum.add(bytes.data(), bytes.size());
    return sum.text();
  }

private:
  uint32_t state = 0xffffffffu;
};

} // namespace pp

#endif // PP_RUNTIME_FILES_CHECKSUM_H
