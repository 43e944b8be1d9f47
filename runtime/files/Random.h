// Random numbers that depend only on what they are for: a seed, a name and a place, never on who asks or when.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_RANDOM_H
#define PP_RUNTIME_FILES_RANDOM_H

#include <cmath>
#include <cstdint>
#include <numbers>
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

} // namespace pp

#endif // PP_RUNTIME_FILES_RANDOM_H
