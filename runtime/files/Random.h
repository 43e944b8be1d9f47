// Random numbers and orders that depend only on what they are for: a seed, a name and a place, not on who asks or when.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_RANDOM_H
#define PP_RUNTIME_FILES_RANDOM_H

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>

namespace pp {

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that scatters consecutive numbers.
[[nodiscard]] constexpr uint64_t scatter(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The `counter`-th number of the stream with this key.
[[nodiscard]] constexpr uint64_t hashOf(uint64_t key, uint64_t counter) {
  return scatter(scatter(key + 0x9e3779b97f4a7c15u) + (counter + 1) * 0x9e3779b97f4a7c15u);
}

/// The key of a name under a seed (FNV-1a, then scattered).
[[nodiscard]] constexpr uint64_t keyOf(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name)
    hash = (hash ^ uint8_t(c)) * 0x100000001b3u;
  return hashOf(seed, hash);
}

/// A normal number of deviation 1 for this place (Box and Muller 1958); one of each pair, so that places are
/// independent.
[[nodiscard]] inline double normalAt(uint64_t key, uint64_t place) {
  double radius = (double(hashOf(key, 2 * place) >> 11) + 1) * 0x1p-53; // (0, 1]
  double angle = double(hashOf(key, 2 * place + 1) >> 11) * 0x1p-53;    // [0, 1)
  return std::sqrt(-2 * std::log(radius)) * std::cos(2 * std::numbers::pi * angle);
}

/// A number of [-1, 1) for this place, all alike probable.
[[nodiscard]] constexpr double uniformAt(uint64_t key, uint64_t place) {
  return double(hashOf(key, place) >> 11) * 0x1p-52 - 1;
}

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

#endif // PP_RUNTIME_FILES_RANDOM_H
