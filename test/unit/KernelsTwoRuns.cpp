// Kernels that read positions on two runs of every sequence, as a device along `context` has them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Attention.h"

using namespace pp;
using namespace pp::test;

/// Attention on a device along `context`, which has two runs of a sequence: apart or together, one of them first or
/// last; with windows, documents and dropout across them.
TEST(KernelsTwoRuns, Attention) {
#ifdef PP_EMULATED // a thread at a time
  const auto sizes = {std::tuple(2, 1, 8), {3, 19, 20}};
#else
  const auto sizes = {std::tuple(2, 1, 8), {2, 24, 20}, {2, 96, 64}, {3, 35, 40}, {4, 50, 64}};
#endif
  for (Type type : allTypes)
    for (auto [members, length, d] : sizes)
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
  using Sizes = std::tuple<int64_t, int64_t, int64_t, std::vector<int64_t>>;
#ifdef PP_EMULATED // a thread at a time
  const std::vector<Sizes> sizes = {{2, 1, 8, {0, 5, 9}}, {3, 7, 20, {0, 41, 42}}};
#else
  const std::vector<Sizes> sizes = {{2, 1, 8, {0, 5, 9}},
                                    {2, 24, 64, {0, 96}},
                                    {2, 100, 24, {0, 50, 51, 300}},
                                    {3, 57, 13, {0, 342, 684}},
                                    {4, 49, 16, {0, 1, 393}}};
#endif
  for (Type type : allTypes)
    for (const auto &[members, length, d, starts] : sizes)
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

namespace {

/// The runs that each device has of `batch` whole sequences of `2 * members * length` rows.
struct Runs {
  int64_t batch, members, length;
  [[nodiscard]] int64_t whole() const { return 2 * members * length; }
  [[nodiscard]] int64_t first(int64_t k) const { return k * length; }
  [[nodiscard]] int64_t second(int64_t k) const { return (2 * members - 1 - k) * length; }
  /// The rows of device k, `width` elements each.
  template <class Elements> [[nodiscard]] Elements of(const Elements &x, int64_t k, int64_t width) const {
    Elements runs;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t row : {b * whole() + first(k), b * whole() + second(k)})
        runs.insert(runs.end(), x.begin() + row * width, x.begin() + (row + length) * width);
    return runs;
  }
};

} // namespace

/// rope on a device's two runs gives the same bits as rope on the whole sequence; with documents, too.
TEST(KernelsTwoRuns, RopeIsThatOfTheSequence) {
  for (Type type : allTypes)
    for (std::vector<std::string> flags : {std::vector<std::string>{}, {"pair", "inverse"}, {"documents"}})
      for (int64_t d : {10, 32}) {
        constexpr Runs n{2, 3, 7};
        constexpr int64_t heads = 2;
        Values x = random(size_t(2 * n.whole() * heads * d), 1);
        std::vector<int32_t> starts;
        for (int64_t i = 0; i < 2 * n.whole(); ++i)
          starts.push_back(int32_t(i % n.whole() / 5 * 5));
        Array y(type, x.size());
        OneOp("rope", type, {2, n.whole(), heads, d, 0}, {1e4}, flags)(pp_rope, Array(type, x), starts, y);
        std::vector<std::string> two = flags;
        two.push_back("zigzag");
        for (int64_t k = 0; k < n.members; ++k) {
          Array turned(type, size_t(4 * n.length * heads * d));
          OneOp("rope", type, {2, 2 * n.length, heads, d, n.first(k), n.second(k)}, {1e4},
                two)(pp_rope, Array(type, n.of(x, k, heads * d)), n.of(starts, k, 1), turned);
          expectEqual(turned.get(), n.of(y.get(), k, heads * d), nameOf(type));
        }
      }
}

/// Rows of a table of positions, whole packs of them and odd ones; the gradients of all devices add up to that of the
/// whole sequence.
TEST(KernelsTwoRuns, PositionsAreThoseOfTheSequence) {
  for (Type type : allTypes)
    for (int64_t h : {9, 16}) {
      constexpr Runs n{3, 2, 5};
      int64_t context = n.whole() + 2;
      Type acc = accOf(type);
      Values p = rounded(type, random(size_t(context * h), 1)),
             dx = rounded(type, random(size_t(3 * n.whole() * h), 2));
      Values old = rounded(acc, random(size_t(context * h), 3));
      Array x(type, dx.size()), expected(acc, old), sum(acc, old), cleared(acc, old);
      OneOp("positions", type, {3, n.whole(), h, 0, context})(pp_positions, nullptr, Array(type, p), x);
      OneOp("positions_dw", type, {3, n.whole(), h, 0, context}, {}, {"accumulate"})(pp_positions_dw, Array(type, dx),
                                                                                     expected);
      for (int64_t k = 0; k < n.members; ++k) {
        std::vector<int64_t> dims = {3, 2 * n.length, h, n.first(k), context, n.second(k)};
        Array own(type, size_t(6 * n.length * h));
        OneOp("positions", type, dims, {}, {"zigzag"})(pp_positions, nullptr, Array(type, p), own);
        expectEqual(own.get(), n.of(x.get(), k, h), nameOf(type));
        Array part(type, n.of(dx, k, h));
        OneOp("positions_dw", type, dims, {}, {"accumulate", "zigzag"})(pp_positions_dw, part, sum);
        OneOp("positions_dw", type, dims, {}, {"zigzag"})(pp_positions_dw, part, cleared);
        Values mine = cleared.get();
        for (int64_t t = 0; t < context; ++t) {
          bool has = (t >= n.first(k) && t < n.first(k) + n.length) || (t >= n.second(k) && t < n.second(k) + n.length);
          EXPECT_EQ(mine[size_t(t * h)] != 0, has) << t;
        }
      }
      expectEqual(sum.get(), expected.get(), nameOf(type));
    }
}

/// A device drops what one device would.
TEST(KernelsTwoRuns, DropoutIsThatOfTheSequence) {
  for (Type type : allTypes)
    for (int64_t width : {5, 16}) {
      constexpr Runs n{2, 3, 7};
      Values x = rounded(type, random(size_t(2 * n.whole() * width), 1));
      std::vector<int32_t> rows;
      for (int64_t i = 0; i < 2 * n.whole(); ++i)
        rows.push_back(int32_t(40 + i / n.whole()));
      Array y(type, x.size());
      OneOp("dropout", type, {2, n.whole(), width, 0, 4711}, {0.3}).seeded(99)(pp_dropout, Array(type, x), rows, y);
      for (int64_t k = 0; k < n.members; ++k) {
        Array own(type, n.of(x, k, width));
        OneOp("dropout", type, {2, 2 * n.length, width, n.first(k), 4711, n.second(k)}, {0.3}, {"zigzag"})
            .seeded(99)(pp_dropout, own, n.of(rows, k, 1), own);
        expectEqual(own.get(), n.of(y.get(), k, width), nameOf(type));
      }
    }
}
