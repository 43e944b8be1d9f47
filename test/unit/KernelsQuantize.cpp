// Rounding to 8 bits against a search through all numbers of e4m3, and scales against a search through powers of two.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Kernels.h"
#include <algorithm>

using namespace pp;
using namespace pp::test;

namespace {

/// The numbers of e4m3 from 0 on, by their codes (Micikevicius et al. 2022, table 1): 4 bits of exponent with bias 7.
Values codes() {
  Values all;
  for (int code = 0; code < 127; ++code) { // 127 is NaN
    int exponent = code >> 3, fraction = code & 7;
    all.push_back(exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
  }
  return all;
}

/// The nearest code's number; of two equally near ones that with an even code.
double nearest(double x) {
  static const Values all = codes();
  if (std::isnan(x))
    return x;
  size_t best = 0;
  for (size_t code = 1; code < all.size(); ++code) {
    double now = std::fabs(std::fabs(x) - all[code]), before = std::fabs(std::fabs(x) - all[best]);
    if (now < before || (now == before && code % 2 == 0))
      best = code;
  }
  return std::isinf(x) ? std::copysign(448, x) : std::copysign(all[best], x);
}

/// Of a block whose largest number is this.
double scaleOf(double largest, int most) {
  if (!(largest > 0) || std::isinf(largest))
    return 1;
  int power = most;
  while (std::ldexp(largest, power) > 448)
    --power;
  return std::ldexp(1, power);
}

Values reference(Type type, const Values &x, size_t rows, size_t columns, size_t high, size_t wide) {
  Values y(x.size());
  high = high ? high : rows;
  wide = wide ? wide : columns;
  for (size_t top = 0; top < rows; top += high)
    for (size_t left = 0; left < columns; left += wide) {
      std::vector<size_t> places;
      for (size_t i = top; i < std::min(rows, top + high); ++i)
        for (size_t j = left; j < std::min(columns, left + wide); ++j)
          places.push_back(i * columns + j);
      double largest = 0;
      for (size_t at : places)
        largest = std::isnan(largest) || std::isnan(x[at]) ? NAN : std::max(largest, std::fabs(x[at]));
      double scale = scaleOf(largest, type == Type::F64 ? 1022 : 126);
      for (size_t at : places)
        y[at] = nearest(x[at] * scale) / scale;
    }
  return rounded(type, y);
}

void expectQuantized(Type type, const Values &x, size_t rows, size_t columns, size_t high, size_t wide) {
  Array y(type, x.size());
  OneOp("quantize", type, {int64_t(rows), int64_t(columns), int64_t(high), int64_t(wide)})(pp_quantize, Array(type, x),
                                                                                           y);
  Values got = y.get(), expected = reference(type, rounded(type, x), rows, columns, high, wide);
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i])))
        << nameOf(type) << " blocks " << high << " x " << wide << ", element " << i << " of " << x[i] << ": " << got[i]
        << ", expected " << expected[i];
}

} // namespace

TEST(KernelsQuantize, CodesAreThoseOfTheFormat) {
  Values all = codes();
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  EXPECT_EQ(all.front(), 0);
  EXPECT_EQ(all[1], 0x1p-9);
  EXPECT_EQ(all[8], 0x1p-6); // the least normal number
  EXPECT_EQ(all.back(), 448);
}

/// Blocks that are rows, columns, tiles that do not divide, all, and one element.
TEST(KernelsQuantize, Blocks) {
  const size_t rows = 37, columns = 133;
  for (Type type : allTypes) {
    Values x = random(rows * columns, 1);
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j) // rows and columns that are far apart, a row and a column of zeros
        x[i * columns + j] *= i == 5 || j == 70 ? 0 : std::exp2(double(i % 7) - double(j % 11));
    for (auto [high, wide] : {std::pair<size_t, size_t>{1, 0}, {0, 1}, {1, 128}, {128, 128}, {16, 32}, {0, 0}, {1, 1}})
      expectQuantized(type, x, rows, columns, high, wide);
  }
}

/// Every number of 16 bits as the only one of its block, whose scale is its own, and beside others, whose scale it
/// decides or takes.
TEST(KernelsQuantize, EveryNumberOf16Bits) {
  Values x(65536);
  for (size_t i = 0; i < x.size(); ++i) {
    uint32_t bits = uint32_t(i) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    x[i] = double(value);
  }
  for (auto [high, wide] : {std::pair<size_t, size_t>{1, 1}, {1, 64}, {4, 128}})
    expectQuantized(Type::Bf16, x, 256, 256, high, wide);
}

/// Halfway between neighbours of the format, and a little to each side, in blocks whose scale is 1.
TEST(KernelsQuantize, Halfway) {
  Values all = codes(), x;
  for (size_t code = 0; code + 1 < all.size(); ++code) {
    double middle = (all[code] + all[code + 1]) / 2;
    for (double value : {middle, middle * (1 - 0x1p-20), middle * (1 + 0x1p-20), -middle, all[code]})
      x.push_back(value);
  }
  x.push_back(448); // its scale
  for (Type type : {Type::F32, Type::F64})
    expectQuantized(type, x, 1, x.size(), 1, 0);
}

TEST(KernelsQuantize, FarOut) {
  for (Type type : {Type::F32, Type::F64}) {
    double tiny = type == Type::F64 ? 0x1p-1060 : 0x1p-140, huge = type == Type::F64 ? 0x1.fp1023 : 0x1.fp127;
    for (size_t wide : {size_t(0), size_t(1)})
      expectQuantized(type,
                      {tiny, -tiny, 3 * tiny, 0, huge, -huge, 1, huge / 2, INFINITY, 5, -1000, 2, NAN, 5, -1000, 2}, 4,
                      4, wide ? 0 : 1, wide);
  }
}

TEST(KernelsQuantize, InPlace) {
  Values x = random(600, 3);
  Array over(Type::F32, x), y(Type::F32, x.size());
  OneOp op("quantize", Type::F32, {20, 30, 1, 0});
  op(pp_quantize, over, y);
  op(pp_quantize, over, over);
  EXPECT_EQ(over.get(), y.get());
}
