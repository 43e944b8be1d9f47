// Element types as the loops see them: stored in f32, f64, bf16 or f16, computed in f32 or f64; an exp that vectorises.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Only the files of an ISA include this and the other loop headers; the unnamed namespace is meant: every ISA has its
// own copy of each loop, and none may be merged with another's.
#ifndef PP_RUNTIME_KERNELS_ELEMENT_H
#define PP_RUNTIME_KERNELS_ELEMENT_H

#include "runtime/Rank.h"
#include "runtime/files/Half.h"
#include "runtime/kernels/Op.h"
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#define PP_INLINE [[gnu::always_inline]] inline

namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

template <class E> struct AccOf {
  using Kind = float;
};
template <> struct AccOf<double> {
  using Kind = double;
};
/// The type of sums, statistics and gradients of weights.
template <class E> using Acc = typename AccOf<E>::Kind;

PP_INLINE float get(const float *p, int64_t i) { return p[i]; }
PP_INLINE double get(const double *p, int64_t i) { return p[i]; }
PP_INLINE float get(const Bf16 *p, int64_t i) { return pp::fromBf16(p[i].bits); }
PP_INLINE float get(const F16 *p, int64_t i) { return pp::fromF16(p[i].bits); }

PP_INLINE void put(float *p, int64_t i, float value) { p[i] = value; }
PP_INLINE void put(double *p, int64_t i, double value) { p[i] = value; }
PP_INLINE void put(Bf16 *p, int64_t i, float value) { p[i].bits = pp::roundToBf16(value); }
PP_INLINE void put(F16 *p, int64_t i, float value) { p[i].bits = pp::roundToF16(value); }

/// Runs of elements to f32 and back. g++ 12 makes no vectors of the CPU's own conversions of f16, so they are spelt
/// out.
template <class E> PP_INLINE void widenRun(const E *x, float *y, int64_t n) {
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (__is_same(E, F16))
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u *>(x + i))));
#endif
#pragma omp simd
  for (int64_t j = i; j < n; ++j)
    y[j] = get(x, j);
}
template <class E> PP_INLINE void narrowRun(const float *x, E *y, int64_t n) {
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (__is_same(E, F16))
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i_u *>(y + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
#pragma omp simd
  for (int64_t j = i; j < n; ++j)
    put(y, j, x[j]);
}

template <class E> PP_INLINE const E *in(const void *p) { return static_cast<const E *>(p); }
template <class E> PP_INLINE E *out(void *p) { return static_cast<E *>(p); }

/// e^x to 1e-7: x = n ln2 + r with ln2 in two parts, a polynomial in r, n added to the exponent. Clamped to what f32
/// holds; without -fno-thread-jumps g++ 12 would split the clamp into branches and drop the vector form.
PP_INLINE float exponential(float x) {
  x = x > 88.0f ? 88.0f : x;
  x = x < -87.0f ? -87.0f : x;
  float shifted = x * 1.44269504f + 12582912.0f;
  float n = shifted - 12582912.0f;
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  // Adds in pairs, not by Horner: the loops wait for the length of this chain, not for the multipliers.
  float r2 = r * r;
  float p = (1.9875691500e-4f * r + 1.3981999507e-3f) * r2 + (8.3334519073e-3f * r + 4.1665795894e-2f);
  p = p * r2 + (1.6666665459e-1f * r + 5.0000001201e-1f);
  p = p * r2 + (r + 1.0f);
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, p) + (__builtin_bit_cast(uint32_t, shifted) << 23));
}
PP_INLINE double exponential(double x) { return __builtin_exp(x); }

template <class A> PP_INLINE A sigmoid(A x) { return A(1) / (A(1) + exponential(-x)); }

PP_INLINE float squareRoot(float x) { return __builtin_sqrtf(x); }
PP_INLINE double squareRoot(double x) { return __builtin_sqrt(x); }
PP_INLINE float errorFunction(float x) { return __builtin_erff(x); }
PP_INLINE double errorFunction(double x) { return __builtin_erf(x); }
/// tanh to 5e-7 of its value; it vectorises. The series serves where 1 - e^-2x cancels.
PP_INLINE float hyperbolicTangent(float x) {
  float size = x < 0 ? -x : x, power = exponential(-2.0f * size), far = (1.0f - power) / (1.0f + power), square = x * x;
  float near = square * 0.0218694885f - 0.0539682540f;
  near = near * square + 0.133333333f;
  near = near * square - 0.333333333f;
  near = (near * square + 1.0f) * x;
  return size < 0.3f ? near : x < 0 ? -far : far;
}
PP_INLINE double hyperbolicTangent(double x) { return __builtin_tanh(x); }
PP_INLINE float logarithm(float x) { return __builtin_logf(x); }
PP_INLINE double logarithm(double x) { return __builtin_log(x); }

} // namespace

#endif // PP_RUNTIME_KERNELS_ELEMENT_H
