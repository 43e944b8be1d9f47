// Attention and rope on two runs of every sequence, as a device along `context` has them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Attention.h"

using namespace pp;
using namespace pp::test;

/// What a device along `context` has of a sequence: two runs, apart, together, one of them first or last; with windows,
/// documents and dropout across them.
TEST(KernelsTwoRuns, Attention) {
  for (Type type : allTypes)
    for (auto [members, length, d] : {std::tuple(2, 1, 8), {2, 24, 20}, {2, 96, 64}, {3, 35, 40}, {4, 50, 64}})
      for (int64_t k = 0; k < members; ++k) {
        Slice n = Slice(2, 2 * length, 4, 2, d, true, k * length)
                      .inTwoRuns((2 * members - 1 - k) * length, {{2 * members * length, 0}});
        compare(n, type);
        compare(n.windowed(length + length / 2), type, 1, length == 1 ? 4 : 1);
        compare(n.withDocuments({length / 2, 2 * length + 1, (2 * members - 1) * length + 1}), type);
        compare(n.dropped(0.25, 2 * members * length), type);
      }
}

/// The same of a slice: the keys are those of the slices before and its own. Runs longer than a block of queries and
/// shorter than a panel, slices that are no multiple of a tile.
TEST(KernelsTwoRuns, AttentionOverSlices) {
  for (Type type : allTypes)
    for (auto [members, length, d, starts] : {std::tuple(2, 1, 8, std::vector<int64_t>{0, 5, 9}),
                                              {2, 24, 64, {0, 96}},
                                              {2, 100, 24, {0, 50, 51, 300}},
                                              {3, 57, 13, {0, 342, 684}},
                                              {4, 49, 16, {0, 1, 393}}})
      for (int64_t k = 0; k < members; ++k) {
        int64_t slice = 2 * members * length, first = starts.back();
        std::vector<Chunk> keys;
        for (size_t i = 0; i < starts.size(); ++i)
          keys.push_back({(i + 1 < starts.size() ? starts[i + 1] : first + slice) - starts[i], starts[i]});
        Slice n = Slice(length < 50 ? 2 : 1, 2 * length, 4, 2, d, true, first + k * length)
                      .inTwoRuns(first + (2 * members - 1 - k) * length, keys);
        compare(n, type);
        compare(n.windowed(length + length / 2), type, 1, length == 1 ? 4 : 1);
        compare(k % 2 ? n.withDocuments({length / 2, first - 1, first + length + 1}) : n.dropped(0.25, first + slice),
                type);
      }
}

/// A device's two runs, turned as one, are bit for bit those of the turned sequence.
TEST(KernelsTwoRuns, RopeIsThatOfTheSequence) {
  for (Type type : allTypes)
    for (std::vector<std::string> flags : {std::vector<std::string>{}, {"pair", "inverse"}}) {
      constexpr int64_t members = 3, length = 7, heads = 2, d = 10, width = heads * d, whole = 2 * members * length;
      Values x = random(size_t(2 * whole * width), 1);
      Array y(type, x.size());
      OneOp("rope", type, {2, whole, heads, d, 0}, {1e4}, flags)(pp_rope, Array(type, x), nullptr, y);
      std::vector<std::string> two = flags;
      two.push_back("zigzag");
      for (int64_t k = 0; k < members; ++k) {
        int64_t first = k * length, second = (2 * members - 1 - k) * length;
        auto runsOf = [&](const Values &of) {
          Values runs;
          for (int64_t row : {first, second, whole + first, whole + second})
            runs.insert(runs.end(), of.begin() + row * width, of.begin() + (row + length) * width);
          return runs;
        };
        Array turned(type, size_t(4 * length * width));
        OneOp("rope", type, {2, 2 * length, heads, d, first, second}, {1e4}, two)(pp_rope, Array(type, runsOf(x)),
                                                                                  nullptr, turned);
        expectEqual(turned.get(), runsOf(y.get()), nameOf(type));
      }
    }
}
