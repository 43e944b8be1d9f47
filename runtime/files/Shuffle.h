// A random order of the sequences of an epoch that is known without being stored.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_SHUFFLE_H
#define PP_RUNTIME_FILES_SHUFFLE_H

#include "runtime/files/Random.h"
#include <algorithm>
#include <bit>
#include <string>

namespace pp {

/// Which of `count` sequences is number `place` of this epoch: a bijection of 0 to count - 1, another one for each seed
/// and epoch. Four rounds of a Feistel network over the next power of four (Luby and Rackoff 1988); numbers that are
/// too large go through it again.
[[nodiscard]] inline int64_t shuffled(uint64_t seed, int64_t epoch, int64_t place, int64_t count) {
  const uint64_t key = keyOf(seed, "epoch " + std::to_string(epoch));
  const int half = std::max(1, (int(std::bit_width(uint64_t(count - 1))) + 1) / 2);
  const uint64_t mask = (uint64_t(1) << half) - 1;
  uint64_t number = uint64_t(place);
  do {
    uint64_t left = number >> half, right = number & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      uint64_t mixed = left ^ (hashOf(key, (round << 32) + right) & mask);
      left = right;
      right = mixed;
    }
    number = left << half | right;
  } while (number >= uint64_t(count));
  return int64_t(number);
}

} // namespace pp

#endif // PP_RUNTIME_FILES_SHUFFLE_H
