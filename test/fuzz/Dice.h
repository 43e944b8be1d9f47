// Random choices that depend on a seed alone, so that every case can be made again.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_FUZZ_DICE_H
#define PP_TEST_FUZZ_DICE_H

#include "runtime/files/Random.h"
#include <iterator>

namespace pp::fuzz {

class Dice {
public:
  explicit Dice(uint64_t seed) : seed(seed) {}

  /// 0 .. n-1; n is at least 1.
  int64_t below(int64_t n) { return int64_t(hashOf(seed, thrown++) % uint64_t(n)); }
  /// first .. last.
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  /// True once in n times.
  bool oneIn(int64_t n) { return below(n) == 0; }
  template <typename List> auto &pick(List &list) { return list[size_t(below(int64_t(std::size(list))))]; }

private:
  uint64_t seed, thrown = 0;
};

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_DICE_H
