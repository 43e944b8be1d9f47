// Products: linear, linear_dx, linear_dw and bias_dw in every flag, against triple loops in f64.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/LinearCases.h"

using namespace pp;
using namespace pp::test;

namespace {

using Case = LinearCase;

/// The last ones have sides of one element, whose strides say nothing about the other side.
void forEachCase(const std::function<void(const Case &)> &test) {
  forEachLinear(
      {{1, 1, 1}, {7, 5, 3}, {64, 48, 96}, {33, 129, 17}, {130, 70, 263}, {1, 64, 50}, {9, 1, 7}, {9, 7, 1}, {9, 1, 1}},
      test);
}

/// Sizes on both sides of the blocks of Bf16Gemm.cpp: 8, 96 and 1056 rows, 16, 48 and 384 columns, depths of 256 and
/// 2048; and products of 16 bits that are too large to be widened as a whole: blocks of 512 by 512 by 1024.
void forEachBlockCase(const std::function<void(const Case &)> &test) {
  for (LinearSizes size : std::initializer_list<LinearSizes>{
           {97, 255, 49}, {15, 257, 385}, {3, 2049, 31}, {9, 31, 2050}, {2047, 33, 17}, {4101, 14, 65}, {192, 512, 48}})
    for (bool transposed : {false, true})
      for (bool flag : {false, true})
        test({size, Type::Bf16, transposed, flag});
  for (LinearSizes size : std::initializer_list<LinearSizes>{{3, 1100, 2000}, {1100, 2000, 3}, {1100, 3, 2000}})
    for (Type type : {Type::Bf16, Type::F16})
      for (bool transposed : {false, true})
        for (bool flag : {false, true})
          test({size, type, transposed, flag});
}

void checkLinear(const Case &c) {
  auto [t, k, n] = LinearSizes(c);
  Values x = rounded(c.type, random(size_t(t * k), 1)), w = rounded(c.type, random(size_t(k * n), 2));
  Values b = rounded(c.type, random(size_t(n), 3)), expected(size_t(t * n));
  for (int64_t i = 0; i < t; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = c.flag ? b[size_t(j)] : 0;
      for (int64_t l = 0; l < k; ++l)
        sum += x[size_t(i * k + l)] * w[c.weight(l, j)];
      expected[size_t(i * n + j)] = sum;
    }
  OneOp op("linear", c.type, {t, k, n}, {}, c.flags("bias"));
  Array y(c.type, size_t(t * n)), bias(c.type, b);
  op(pp_linear, Array(c.type, x), Array(c.type, w), c.flag ? bias.data() : nullptr, y);
  expectNear(y.get(), expected, toleranceOf(c.type), c.text());
}

void checkLinearDx(const Case &c) {
  auto [t, k, n] = LinearSizes(c);
  Values dy = rounded(c.type, random(size_t(t * n), 1)), w = rounded(c.type, random(size_t(k * n), 2));
  Values old = rounded(c.type, random(size_t(t * k), 3)), expected(size_t(t * k));
  for (int64_t i = 0; i < t; ++i)
    for (int64_t l = 0; l < k; ++l) {
      double sum = c.flag ? old[size_t(i * k + l)] : 0;
      for (int64_t j = 0; j < n; ++j)
        sum += dy[size_t(i * n + j)] * w[c.weight(l, j)];
      expected[size_t(i * k + l)] = sum;
    }
  OneOp op("linear_dx", c.type, {t, k, n}, {}, c.flags("accumulate"));
  Array dx(c.type, size_t(t * k));
  if (c.flag)
    dx.set(old);
  op(pp_linear_dx, Array(c.type, dy), Array(c.type, w), dx);
  expectNear(dx.get(), expected, toleranceOf(c.type), c.text());
}

void checkLinearDw(const Case &c) {
  auto [t, k, n] = LinearSizes(c);
  Type acc = accOf(c.type);
  Values x = rounded(c.type, random(size_t(t * k), 1)), dy = rounded(c.type, random(size_t(t * n), 2));
  Values old = rounded(acc, random(size_t(k * n), 3)), expected(size_t(k * n));
  for (int64_t l = 0; l < k; ++l)
    for (int64_t j = 0; j < n; ++j) {
      double sum = c.flag ? old[c.weight(l, j)] : 0;
      for (int64_t i = 0; i < t; ++i)
        sum += x[size_t(i * k + l)] * dy[size_t(i * n + j)];
      expected[c.weight(l, j)] = sum;
    }
  OneOp op("linear_dw", c.type, {t, k, n}, {}, c.flags("accumulate"));
  Array dw(acc, size_t(k * n));
  if (c.flag)
    dw.set(old);
  op(pp_linear_dw, Array(c.type, x), Array(c.type, dy), dw);
  // Weight gradients are summed in acc: operands of 16 bits, already rounded, must not cost more than f32.
  expectNear(dw.get(), expected, toleranceOf(acc), c.text());
}

/// The product with this many threads; bits must not depend on it.
Values withThreads(const char *threads, const char *kernel, const Case &c, Type out, size_t size) {
  setenv("PP_THREADS", threads, 1);
  auto [t, k, n] = LinearSizes(c);
  OneOp op(kernel, c.type, {t, k, n}, {}, c.flags("accumulate"));
  unsetenv("PP_THREADS");
  bool makesDw = out == Type::F32;
  Values a = rounded(c.type, random(size_t(makesDw ? t * k : t * n), 1));
  Values b = rounded(c.type, random(size_t(makesDw ? t * n : k * n), 2));
  Array result(out, size);
  result.set(rounded(out, random(size, 3)));
  op(makesDw ? pp_linear_dw : pp_linear_dx, Array(c.type, a), Array(c.type, b), result);
  return result.get();
}

} // namespace

TEST(KernelsGemm, LinearEqualsTripleLoop) {
  forEachCase(checkLinear);
  forEachBlockCase(checkLinear);
}

TEST(KernelsGemm, LinearDxEqualsTripleLoop) {
  forEachCase(checkLinearDx);
  forEachBlockCase(checkLinearDx);
}

TEST(KernelsGemm, LinearDwEqualsTripleLoop) {
  forEachCase(checkLinearDw);
  forEachBlockCase(checkLinearDw);
}

/// Threads share the columns of a product, not its sums: the bits are those of one thread.
TEST(KernelsGemm, Bf16IsTheSameWithThreads) {
  if (std::string(Kernels::isa()) != "avx512_bf16" || __builtin_cpu_supports("amx-bf16"))
    GTEST_SKIP() << "products of bf16 are oneDNN's here";
  forEachBlockCase([](const Case &c) {
    size_t dx = size_t(c.t * c.k), dw = size_t(c.k * c.n);
    EXPECT_EQ(withThreads("1", "linear_dx", c, c.type, dx), withThreads("3", "linear_dx", c, c.type, dx));
    EXPECT_EQ(withThreads("1", "linear_dw", c, Type::F32, dw), withThreads("3", "linear_dw", c, Type::F32, dw));
  });
}

TEST(KernelsGemm, BiasDwSumsColumns) {
  for (Type type : allTypes)
    for (bool adds : {false, true}) {
      int64_t t = 37, n = 19;
      Values dy = rounded(type, random(size_t(t * n), 1)), old = rounded(accOf(type), random(size_t(n), 2));
      Values expected(static_cast<size_t>(n));
      for (size_t j = 0; j < size_t(n); ++j) {
        expected[j] = adds ? old[j] : 0;
        for (size_t i = 0; i < size_t(t); ++i)
          expected[j] += dy[i * size_t(n) + j];
      }
      OneOp op("bias_dw", type, {t, n}, {}, adds ? std::vector<std::string>{"accumulate"} : std::vector<std::string>{});
      Array db(accOf(type), size_t(n));
      if (adds)
        db.set(old);
      op(pp_bias_dw, Array(type, dy), db);
      expectNear(db.get(), expected, toleranceOf(accOf(type)), nameOf(type));
    }
}

/// Products of 16 bits are rounded once: each result is the number nearest to the f64 sum, up to f32 error at a tie.
static void expectRoundedOnce(Type type) {
  int64_t t = 16, k = 512, n = 16;
  Values x = rounded(type, random(size_t(t * k), 1)), w = rounded(type, random(size_t(k * n), 2));
  OneOp op("linear", type, {t, k, n});
  Array y(type, size_t(t * n));
  op(pp_linear, Array(type, x), Array(type, w), nullptr, y);
  Values got = y.get();
  for (size_t i = 0; i < size_t(t); ++i)
    for (size_t j = 0; j < size_t(n); ++j) {
      double sum = 0;
      for (size_t l = 0; l < size_t(k); ++l)
        sum += x[i * size_t(k) + l] * w[l * size_t(n) + j];
      Values near = rounded(type, {sum - 2e-5, sum + 2e-5});
      double value = got[i * size_t(n) + j];
      EXPECT_TRUE(value == near[0] || value == near[1]) << value << " instead of " << sum;
    }
}

TEST(KernelsGemm, HalvesRoundOnce) {
  for (Type type : halfTypes)
    expectRoundedOnce(type);
}

/// f16 does not end at its largest number, 65504, but is infinite beyond: that is how overflow shows.
TEST(KernelsGemm, F16Overflows) {
  OneOp op("linear", Type::F16, {1, 16, 9});
  Array y(Type::F16, 9);
  Values w(16 * 9, 64);
  for (size_t i = 0; i < 16; ++i)
    w[9 * i] = 63, w[9 * i + 1] = -64;
  op(pp_linear, Array(Type::F16, Values(16, 64)), Array(Type::F16, w), nullptr, y);
  Values got = y.get();
  EXPECT_EQ(got[0], 16 * 64 * 63);
  EXPECT_EQ(got[1], -INFINITY);
  EXPECT_EQ(got[8], INFINITY);
}
