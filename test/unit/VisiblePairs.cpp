// The closed form of the pairs that attention computes, against a loop over queries and keys.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"
#include <gtest/gtest.h>

using pp::nn::visiblePairs;

namespace {

/// One after the other: query first + t sees key position + u when it does not lie ahead.
int64_t counted(int64_t queries, int64_t first, int64_t keys, int64_t position, bool causal, int64_t window = 0) {
  int64_t pairs = 0;
  for (int64_t t = 0; t < queries; ++t)
    for (int64_t u = 0; u < keys; ++u)
      pairs += (!causal || position + u <= first + t) && (!window || position + u > first + t - window);
  return pairs;
}

// Slices and chunks before, across, behind and beside the diagonal, with gaps and of unequal lengths.
TEST(VisiblePairs, EqualTheLoop) {
  for (int64_t queries : {1, 2, 3, 7, 16})
    for (int64_t first : {0, 1, 5, 16, 40})
      for (int64_t keys : {1, 2, 5, 16, 33})
        for (int64_t position : {0, 1, 4, 5, 6, 15, 16, 17, 40, 55, 56, 57, 100})
          for (bool causal : {false, true})
            EXPECT_EQ(visiblePairs(queries, first, keys, position, causal),
                      double(counted(queries, first, keys, position, causal)))
                << queries << " queries from " << first << ", " << keys << " keys from " << position;
}

TEST(VisiblePairs, OfWindowsEqualTheLoop) {
  for (int64_t queries : {1, 3, 16})
    for (int64_t first : {0, 5, 40})
      for (int64_t keys : {1, 5, 33})
        for (int64_t position : {0, 4, 6, 17, 40, 56})
          for (int64_t window : {1, 2, 7, 16, 100})
            EXPECT_EQ(visiblePairs(queries, first, keys, position, true, window),
                      double(counted(queries, first, keys, position, true, window)))
                << queries << " queries from " << first << ", " << keys << " keys from " << position << ", window "
                << window;
  // The pairs of a whole sequence: s m - m (m - 1) / 2 with m = min(s, window).
  EXPECT_EQ(visiblePairs(8192, 0, 8192, 0, true, 512), 8192.0 * 512 - 512.0 * 511 / 2);
}

// The chunks of a sequence hold the pairs of the whole, which are n (n + 1) / 2.
TEST(VisiblePairs, OfChunksAddUp) {
  constexpr int64_t kTokens = 4194304;
  double slices = 0;
  for (int64_t q = 0; q < 8; ++q)
    for (int64_t k = 0; k < 8; ++k)
      slices += visiblePairs(kTokens / 8, q * kTokens / 8, kTokens / 8, k * kTokens / 8, true);
  EXPECT_EQ(slices, 8796095119360.0); // 4194304 * 4194305 / 2
  EXPECT_EQ(visiblePairs(kTokens, 0, kTokens, 0, true), slices);
}

// Beyond 64 bits the count is rounded; it does not wrap.
TEST(VisiblePairs, DoNotWrap) {
  EXPECT_EQ(visiblePairs(int64_t(1) << 40, 0, int64_t(1) << 40, 0, true), 0x1p79 + 0x1p39);
  EXPECT_EQ(visiblePairs(int64_t(1) << 40, 0, int64_t(1) << 40, 0, false), 0x1p80);
}

} // namespace
