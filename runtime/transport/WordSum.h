// A checksum that costs no more than reading the bytes: for what is compared at once and never stored.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRANSPORT_WORDSUM_H
#define PP_RUNTIME_TRANSPORT_WORDSUM_H

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pp {

/// Each step is one to one in the word and in what was before: any change within one word of 8 bytes is found, and of
/// others all but one in 2^64. Bytes may come in any pieces.
class WordSum {
public:
  void add(const void *data, size_t bytes) {
    const auto *at = static_cast<const unsigned char *>(data);
    total += bytes;
    if (held > 0) {
      const size_t taken = std::min(bytes, sizeof rest - held);
      memcpy(rest + held, at, taken);
      held += taken;
      at += taken;
      bytes -= taken;
      if (held < sizeof rest)
        return;
      step(rest);
      held = 0;
    }
    for (; bytes >= sizeof rest; bytes -= sizeof rest, at += sizeof rest)
      step(at);
    memcpy(rest, at, bytes);
    held = bytes;
  }
  [[nodiscard]] uint64_t value() const {
    WordSum end = *this;
    memset(end.rest + held, 0, sizeof rest - held);
    end.step(end.rest);
    uint64_t sum = total;
    for (uint64_t lane : end.lanes)
      sum = mixed(sum, lane);
    return sum;
  }

private:
  static uint64_t mixed(uint64_t sum, uint64_t word) { return std::rotl((sum ^ word) * 0x9fb21c651e98df25u, 29); }
  void step(const unsigned char *at) {
    for (size_t i = 0; i < 4; ++i) {
      uint64_t word = 0;
      memcpy(&word, at + 8 * i, 8);
      lanes[i] = mixed(lanes[i], word);
    }
  }

  uint64_t lanes[4] = {1, 2, 3, 4}, total = 0;
  unsigned char rest[32] = {};
  size_t held = 0;
};

} // namespace pp

#endif // PP_RUNTIME_TRANSPORT_WORDSUM_H
