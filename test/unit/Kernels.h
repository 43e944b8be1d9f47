// Runs one prepared op on arrays given as doubles, and compares with references and finite differences.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_UNIT_KERNELS_H
#define PP_TEST_UNIT_KERNELS_H

#include "runtime/Kernels.h"
#include "runtime/Rank.h"
#include "test/unit/DeviceMemory.h"
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <random>

namespace pp::test {

using Values = std::vector<double>;

/// The type of sums and statistics for this type.
inline Type accOf(Type type) { return type == Type::F64 ? Type::F64 : Type::F32; }
inline const char *nameOf(Type type) {
  return type == Type::F64 ? "f64" : type == Type::F32 ? "f32" : type == Type::F16 ? "f16" : "bf16";
}
constexpr Type allTypes[] = {Type::F32, Type::F64, Type::Bf16, Type::F16}, halfTypes[] = {Type::Bf16, Type::F16};
inline bool isHalf(Type type) { return type == Type::Bf16 || type == Type::F16; }

/// The first n normal numbers of a seed, which are drawn once: most cases of a test begin with the same ones.
inline Values random(size_t n, uint32_t seed, double scale = 1) {
  struct Stream {
    std::mt19937 generator;
    std::normal_distribution<double> normal;
    Values drawn;
  };
  static thread_local std::map<uint32_t, Stream> streams; // some tests have ranks as threads
  Stream &its = streams.try_emplace(seed, Stream{std::mt19937(seed), {}, {}}).first->second;
  while (its.drawn.size() < n)
    its.drawn.push_back(its.normal(its.generator));
  Values values(its.drawn.begin(), its.drawn.begin() + ptrdiff_t(n));
  for (double &value : values)
    value *= scale;
  return values;
}

/// Memory of one element type, 64-byte aligned, written and read as doubles; fresh memory is all NaN, and so is a
/// margin behind the end, which a kernel must leave alone.
class Array {
public:
  Array(Type type, size_t n) : type(type), n(n), bytes((n + margin) * size() + 64, char(0xff)) {}
  Array(Type type, const Values &values) : Array(type, values.size()) { set(values); }

  void set(const Values &values) {
    for (size_t i = 0; i < n; ++i)
      if (type == Type::F64)
        at<double>()[i] = values[i];
      else if (type == Type::F32)
        at<float>()[i] = float(values[i]);
      else if (type == Type::F16)
        at<uint16_t>()[i] = toF16(float(values[i]));
      else
        at<uint16_t>()[i] = toBf16(float(values[i]));
  }
  Values get() const {
    Values values(n);
    for (size_t i = 0; i < n; ++i)
      values[i] = element(i);
    for (size_t i = 0; i < margin * size(); ++i)
      EXPECT_EQ(static_cast<char *>(data())[n * size() + i], char(0xff)) << "written past the end";
    return values;
  }
  void *data() const { return at<char>(); }
  operator void *() const { return data(); }

  static uint16_t toBf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    uint32_t low = bits & 0xffff, high = bits >> 16;
    return uint16_t(high + (low > 0x8000 || (low == 0x8000 && (high & 1))));
  }
  /// The last place of numbers from 2^exponent on; `exponent` is -14 at least.
  static double lastPlace(int exponent) { return 0x1p-24 * double(1 << (exponent + 14)); }
  /// Rounds to the nearest multiple of the last place, at least 2^-24, by arithmetic; the runtime shifts bits.
  static uint16_t toF16(float value) {
    double size = std::fabs(double(value));
    uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (!(size < 65520))
      return std::isnan(value) ? 0x7e00 : uint16_t(sign | 0x7c00);
    int exponent = std::max(size > 0 ? std::ilogb(size) : -14, -14);
    auto last = int(std::nearbyint(size / lastPlace(exponent))); // 1024 to 2048; a subnormal has less
    return uint16_t(sign | (((exponent + 14) << 10) + last));
  }
  static double fromF16(uint16_t bits) {
    int exponent = bits >> 10 & 31, last = bits & 1023;
    double size = exponent == 31 ? (last ? NAN : INFINITY)
                                 : (exponent ? last + 1024 : last) * lastPlace(std::max(exponent, 1) - 15);
    return bits & 0x8000 ? -size : size;
  }

private:
  static constexpr size_t margin = 64;
  Type type;
  size_t n;
  std::vector<char, DeviceAllocator<char>> bytes;

  size_t size() const { return type == Type::F64 ? 8 : type == Type::F32 ? 4 : 2; }
  template <class T> T *at() const {
    return reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(bytes.data()) + 63) / 64 * 64);
  }
  double element(size_t i) const {
    if (type == Type::F64)
      return at<double>()[i];
    if (type == Type::F32)
      return double(at<float>()[i]);
    if (type == Type::F16)
      return fromF16(at<uint16_t>()[i]);
    uint32_t bits = uint32_t(at<uint16_t>()[i]) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return double(value);
  }
};

/// The values as the type holds them: what a reference must start from.
inline Values rounded(Type type, const Values &values) { return Array(type, values).get(); }

/// Why a spec is refused, behind another that is not.
inline std::string refusal(OpSpec spec) {
  std::unique_ptr<Kernels> kernels;
  std::string message;
  EXPECT_EQ(Kernels::prepare({{"add", Type::F32, {4}, {}, {}}, std::move(spec)}, kernels, message), PP_INVALID);
  EXPECT_EQ(kernels, nullptr);
  return message;
}

/// A rank that has one prepared op.
struct OneOp {
  std::unique_ptr<Kernels> kernels;
  pp_rank_t rank;

  OneOp(const char *kernel, Type type, std::vector<int64_t> dims, std::vector<double> params = {},
        std::vector<std::string> flags = {})
      : OneOp(OpSpec{kernel, type, std::move(dims), std::move(params), std::move(flags)}) {}
  explicit OneOp(const OpSpec &spec) {
    std::string message;
    pp_status_t status = Kernels::prepare({spec}, kernels, message);
    EXPECT_EQ(status, PP_OK) << message;
    rank.kernels = kernels.get();
  }
  OneOp &seeded(uint64_t seed) {
    rank.optimizer.seed = seed;
    return *this;
  }
  /// The targets that it is called with have these weights.
  OneOp &weighted(const Values &values) {
    weights.assign(values.begin(), values.end());
    return *this;
  }
  /// Calls the C ABI's function with op 0.
  template <class... Parameters, class... Arguments>
  void operator()(int32_t (*function)(pp_rank_t *, int32_t, Parameters...), const Arguments &...arguments) {
    ASSERT_EQ(status(function, arguments...), PP_OK) << rank.message;
  }
  /// The status that the call returns, or the device's status after it.
  template <class... Parameters, class... Arguments>
  int32_t status(int32_t (*function)(pp_rank_t *, int32_t, Parameters...), const Arguments &...arguments) {
    if (!kernels)
      return PP_INTERNAL;
    if (void *scalars = kernels->scalars())
      uploadToDevice(scalars, &rank.optimizer, sizeof(rank.optimizer));
    if (void *routed = kernels->routed())
      uploadToDevice(routed, &rank.routed, sizeof(rank.routed));
    int32_t status = function(&rank, 0, pointer<Parameters>(arguments)...);
    if (status == PP_OK && kernels->failures() && wordOfDevice(kernels->failures()))
      return PP_INVALID;
    if (const void *routed = kernels->routed())
      downloadFromDevice(&rank.routed, routed, sizeof(rank.routed));
    return status;
  }

private:
  std::deque<std::vector<int32_t, DeviceAllocator<int32_t>>> tokens;
  std::vector<float, DeviceAllocator<float>> weights; ///< of targets; empty: all are 1

  template <class Parameter, class Argument> Parameter pointer(const Argument &argument) {
    if constexpr (std::is_null_pointer_v<Argument>)
      return nullptr;
    else if constexpr (std::is_same_v<Argument, Array>)
      return static_cast<Parameter>(argument.data());
    else if constexpr (std::is_same_v<Argument, std::vector<int32_t>>) {
      const int32_t *begin = tokens.emplace_back(argument.begin(), argument.end()).data();
      if (!weights.empty())
        rank.targetWeights = {{begin, begin + argument.size(), weights.data()}};
      return begin;
    } else
      return const_cast<Parameter>(argument);
  }
};

/// Relative to the largest reference value; f64 nearly exact, f32 2e-5, 16 bits 2.5 roundings of 2^-8 or 2^-11.
inline double toleranceOf(Type type) {
  return type == Type::F64 ? 1e-11 : type == Type::F32 ? 2e-5 : type == Type::F16 ? 1e-2 / 8 : 1e-2;
}

/// Below `floor` the error counts absolutely.
inline void expectNear(const Values &got, const Values &expected, double tolerance, const std::string &what,
                       double floor = 1e-2) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double largest = floor;
  for (double value : expected)
    if (std::isfinite(value))
      largest = std::max(largest, std::fabs(value));
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double error = got[i] == expected[i]   ? 0 // infinities included
                   : std::isfinite(got[i]) ? std::fabs(got[i] - expected[i]) / largest
                                           : 1e30;
    if (error > worst)
      worst = error, where = i;
  }
  EXPECT_LE(worst, tolerance) << what << " at " << where << ": " << got[where] << " instead of " << expected[where];
}

inline void expectEqual(const Values &got, const Values &expected, const std::string &what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], expected[i]) << what << " at " << i;
}

/// d(dot(weights, f(x))) / dx by five points in f64, for every coordinate of x.
inline Values finiteDifferences(const std::function<Values(const Values &)> &f, const Values &x,
                                const Values &weights) {
  const double step = 1e-3;
  auto dot = [&](size_t i, double shift) {
    Values moved = x;
    moved[i] += shift;
    Values y = f(moved);
    double sum = 0;
    for (size_t j = 0; j < y.size(); ++j)
      sum += weights[j] * y[j];
    return sum;
  };
  Values slopes(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    slopes[i] = (8 * (dot(i, step) - dot(i, -step)) - (dot(i, 2 * step) - dot(i, -2 * step))) / (12 * step);
  return slopes;
}

} // namespace pp::test

#endif // PP_TEST_UNIT_KERNELS_H
