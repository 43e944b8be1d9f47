// The emulation itself: fragments of the tensor cores by their definition, late copies, barriers that are missed.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/simt/Tiles.h"
#include <algorithm>
#include <cstdlib>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

using namespace pp;

namespace {

/// A whole 16x16 by 16x8 product, its operands filled element by element from PTX's description of the fragments.
struct Product {
  float a[16][16], b[16][8], c[16][8] = {};
  Product() {
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 16; ++j)
        a[i][j] = float((i * 5 + j * 3) % 17 - 8);
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 8; ++j)
        b[i][j] = float((i * 7 + j * 2) % 13 - 6);
  }
  float expected(int i, int j) const {
    float sum = 0;
    for (int k = 0; k < 16; ++k)
      sum += a[i][k] * b[k][j];
    return sum;
  }
};

} // namespace

/// The layout of fragments is the same for both types of 16 bits.
template <class E> static void multiplyFragments() {
  Product p;
  runGrid({}, 32, 0, [&] {
    int lane = int(threadIdx.x), g = lane / 4, t = lane % 4;
    uint32_t a[4], b[2];
    // PTX ISA, mma.m16n8k16, bf16 and f16: row = g for i in {0,1,4,5}, else g + 8; column = 2t + (i & 1), + 8 from i =
    // 4 on.
    for (int i = 0; i < 8; i += 2) {
      int row = i == 0 || i == 4 ? g : g + 8, column = 2 * t + (i >= 4 ? 8 : 0);
      a[i / 2] = E::pairOf(p.a[row][column], p.a[row][column + 1]);
    }
    // b: row = 2t + (i & 1), + 8 from i = 2 on; column = g.
    for (int i = 0; i < 4; i += 2)
      b[i / 2] = E::pairOf(p.b[2 * t + (i >= 2 ? 8 : 0)][g], p.b[2 * t + (i >= 2 ? 8 : 0) + 1][g]);
    float c[4] = {};
    multiply<E>(c, a, b[0], b[1]);
    // c: row = g for i < 2, else g + 8; column = 2t + (i & 1).
    for (int i = 0; i < 4; ++i)
      p.c[i < 2 ? g : g + 8][2 * t + (i & 1)] = c[i];
  });
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j)
      EXPECT_EQ(p.c[i][j], p.expected(i, j)) << i << ", " << j;
}
TEST(Emulation, ProductOfFragments) {
  multiplyFragments<Bf16>();
  multiplyFragments<F16>();
}

/// ldmatrix hands thread T elements 2 (T % 4) and the next of row T / 4; transposed, of column T / 4.
TEST(Emulation, MatricesAreLoadedByRowsAndByColumns) {
  std::vector<Bf16> tile(32 * 8);
  for (size_t i = 0; i < tile.size(); ++i)
    tile[i].bits = uint16_t(i);
  runGrid({}, 32, 0, [&] {
    unsigned lane = threadIdx.x;
    uint32_t straight[4], turned[4];
    loadMatrices(straight, &tile[lane * 8]);
    loadMatricesTransposed(turned, &tile[lane * 8]);
    for (unsigned m = 0; m < 4; ++m) {
      unsigned first = m * 64 + lane / 4 * 8 + lane % 4 * 2, down = m * 64 + lane % 4 * 16 + lane / 4;
      EXPECT_EQ(straight[m], (first + 1) << 16 | first);
      EXPECT_EQ(turned[m], (down + 8) << 16 | down);
    }
  });
}

/// A copy is not there before its group is waited for, and zeros come where nothing is copied.
TEST(Emulation, CopiesComeLate) {
  alignas(16) Bf16 from[8], to[3][8];
  for (auto &each : from)
    each.bits = 1;
  for (auto &row : to)
    for (auto &each : row)
      each.bits = 9;
  runGrid({}, 1, 0, [&] {
    copyLater(to[0], from, true);
    copyLater(to[1], from, false);
    commitCopies();
    copyLater(to[2], from, true);
    commitCopies();
    EXPECT_EQ(to[0][0].bits, 9);
    waitCopies<1>();
    EXPECT_EQ(to[0][0].bits, 1);
    EXPECT_EQ(to[1][0].bits, 0);
    EXPECT_EQ(to[2][7].bits, 9);
    waitCopies<0>();
    EXPECT_EQ(to[2][7].bits, 1);
  });
}

TEST(Emulation, ShufflesAndBarriers) {
  runGrid({2, 3, 2}, 64, 64 * sizeof(int), [] {
    int *shared = sharedMemory<int>();
    EXPECT_EQ(shared[threadIdx.x], -1) << "shared memory is never clean";
    waitBlock();
    shared[threadIdx.x] = int(threadIdx.x);
    waitBlock();
    EXPECT_EQ(shared[63 - threadIdx.x], 63 - int(threadIdx.x));
    EXPECT_EQ(shuffleXor(int(threadIdx.x), 5), int(threadIdx.x) ^ 5);
    EXPECT_LT(blockIdx.y, gridDim.y);
  });
}

/// Each thread of each block runs once in every order. (A thread of the test has an emulation of its own.)
TEST(Emulation, OrdersOfThreadsAndBlocks) {
  auto placesIn = [](const char *order) {
    std::vector<unsigned> places;
    setenv("PP_SIMT_ORDER", order, 1);
    std::thread([&] {
      runGrid({7, 3, 1}, 64, 0, [&] { places.push_back((blockIdx.y * 7 + blockIdx.x) * 64 + threadIdx.x); });
    }).join();
    unsetenv("PP_SIMT_ORDER");
    return places;
  };
  std::vector<unsigned> up = placesIn("up"), down = placesIn("down"), one = placesIn("1"), two = placesIn("2");
  EXPECT_TRUE(std::is_sorted(up.begin(), up.end()));
  EXPECT_TRUE(std::equal(up.begin(), up.end(), down.rbegin(), down.rend()));
  for (const auto &random : {one, two}) {
    std::vector<unsigned> sorted = random;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, up);
    EXPECT_NE(random, up);
  }
  EXPECT_NE(one, two);
}

TEST(EmulationDeathTest, AddressesThatTheDeviceRefusesEndTheProgram) {
  alignas(16) Bf16 row[32] = {};
  alignas(16) float numbers[8] = {};
  auto run = [](const auto &kernel) { runGrid({}, 32, 0, kernel); };
  uint32_t words[4];
  EXPECT_DEATH(run([&] { load<4>(numbers + 1); }), "thread [0-9]+: 16 bytes at once at .*, not a multiple of them");
  EXPECT_DEATH(run([&] { store<4>(numbers + 2, Pack<float, 4>{}); }), "16 bytes at once");
  EXPECT_DEATH(run([&] { loadMatrices(words, row + 4); }), "16 bytes at once");
  EXPECT_DEATH(run([&] { loadMatricesTransposed(words, row + 4); }), "16 bytes at once");
  EXPECT_DEATH(run([&] { copyLater(row + 1, row, true); }), "16 bytes at once");
  EXPECT_DEATH(run([&] { copyLater(row, row + 1, false); }), "16 bytes at once");
  EXPECT_DEATH(run([&] { putPair(row + 1, 0, 2, 1, 1); }), "4 bytes at once");
  run([&] { putPair(row + 1, 0, 3, 1, 1); }); // of an odd row: element by element
}

TEST(EmulationDeathTest, ABarrierThatNotAllReachEndsTheProgram) {
  EXPECT_DEATH(runGrid({}, 64, 0,
                       [] { // the last warp goes its own way
                         if (threadIdx.x < 32)
                           waitBlock();
                       }),
               "waits forever: 32 of 64 threads have ended, 32 wait for all");
}
