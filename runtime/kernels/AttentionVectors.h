// Vectors of 4, 8 and 16 floats in one spelling, the shuffles that transpose blocks of four, and pairs of bf16.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_ATTENTIONVECTORS_H
#define PP_RUNTIME_KERNELS_ATTENTIONVECTORS_H

#include "runtime/kernels/AttentionShape.h"

namespace {
using namespace pp;

/// Vectors of some lanes, one by one, since g++ 12 does not see a vector in a size that depends on a parameter. The
/// transpose works inside each group of four lanes.
typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
template <int lanes> struct VectorOf;
#define PP_VECTOR_OF(lanes, unpackLow, unpackHigh, pairLow, pairHigh)                                                  \
  template <> struct VectorOf<lanes> {                                                                                 \
    typedef float Floats __attribute__((vector_size(lanes * 4), may_alias));                                           \
    typedef int32_t Integers __attribute__((vector_size(lanes * 4), may_alias));                                       \
    PP_INLINE static void transposeFours(Floats (&v)[4]) {                                                             \
      Floats a = __builtin_shuffle(v[0], v[1], Integers unpackLow);                                                    \
      Floats b = __builtin_shuffle(v[2], v[3], Integers unpackLow);                                                    \
      Floats c = __builtin_shuffle(v[0], v[1], Integers unpackHigh);                                                   \
      Floats d = __builtin_shuffle(v[2], v[3], Integers unpackHigh);                                                   \
      v[0] = __builtin_shuffle(a, b, Integers pairLow);                                                                \
      v[1] = __builtin_shuffle(a, b, Integers pairHigh);                                                               \
      v[2] = __builtin_shuffle(c, d, Integers pairLow);                                                                \
      v[3] = __builtin_shuffle(c, d, Integers pairHigh);                                                               \
    }                                                                                                                  \
  };
#define PP_LIST(...) {__VA_ARGS__}
PP_VECTOR_OF(4, PP_LIST(0, 4, 1, 5), PP_LIST(2, 6, 3, 7), PP_LIST(0, 1, 4, 5), PP_LIST(2, 3, 6, 7))
PP_VECTOR_OF(8, PP_LIST(0, 8, 1, 9, 4, 12, 5, 13), PP_LIST(2, 10, 3, 11, 6, 14, 7, 15),
             PP_LIST(0, 1, 8, 9, 4, 5, 12, 13), PP_LIST(2, 3, 10, 11, 6, 7, 14, 15))
PP_VECTOR_OF(16, PP_LIST(0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
             PP_LIST(2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31),
             PP_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
             PP_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
#undef PP_LIST
#undef PP_VECTOR_OF

/// Four channels of one row of each group of lanes; the rows of two groups lie 4 * stride apart. Joined in registers:
/// a vector written in parts and read whole would wait for the stores.
PP_INLINE void gather(const float *x, int64_t, VectorOf<4>::Floats &v) { v = *in<Four>(x); }
PP_INLINE void gather(const float *x, int64_t stride, VectorOf<8>::Floats &v) {
  v = __builtin_shufflevector(*in<Four>(x), *in<Four>(x + 4 * stride), 0, 1, 2, 3, 4, 5, 6, 7);
}
PP_INLINE void gather(const float *x, int64_t stride, VectorOf<16>::Floats &v) {
  VectorOf<8>::Floats low, high;
  gather(x, stride, low);
  gather(x + 8 * stride, stride, high);
  v = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
PP_INLINE void scatter(float *x, int64_t, VectorOf<4>::Floats v) { *out<Four>(x) = v; }
PP_INLINE void scatter(float *x, int64_t stride, VectorOf<8>::Floats v) {
  *out<Four>(x) = __builtin_shufflevector(v, v, 0, 1, 2, 3);
  *out<Four>(x + 4 * stride) = __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
PP_INLINE void scatter(float *x, int64_t stride, VectorOf<16>::Floats v) {
  scatter(x, stride, __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
  scatter(x + 8 * stride, stride, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

/// Words of two bf16 each, as many as `lanes`: only where the CPU multiplies them.
template <int lanes> struct PairsOf;
#ifdef __AVX512BF16__
template <> struct PairsOf<16> {
  using Vector = VectorOf<16>::Floats;
  /// sum + low * low + high * high, of the word `a` and each word of b.
  PP_INLINE static Vector multiplyAdd(Vector sum, float a, Vector b) {
    return Vector(_mm512_dpbf16_ps(__m512(sum), __m512bh(_mm512_set1_ps(a)), __m512bh(b)));
  }
  /// Rounds two vectors and puts each number of the second above the one of the first.
  PP_INLINE static Vector pair(Vector low, Vector high) {
    const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                            21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return Vector(_mm512_permutexvar_epi16(places, __m512i(_mm512_cvtne2ps_pbh(__m512(high), __m512(low)))));
  }
  /// Rounds a vector into eight words, its numbers side by side.
  PP_INLINE static void storeHalves(float *words, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i_u *>(words), __m256i(_mm512_cvtneps_pbh(__m512(v))));
  }
  /// The first `left` numbers of two rows, each of the second above the one of the first, and zeros.
  PP_INLINE static Vector interleave(const void *low, const void *high, int64_t left) {
    auto mask = __mmask16(left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
    __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, low));
    __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high ? mask : __mmask16(0), high));
    return Vector(_mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
  }
};
#endif

/// Loops over a register tile must vanish before the compiler decides what lives in registers.
#define PP_UNROLL _Pragma("GCC unroll 16")

} // namespace

#endif // PP_RUNTIME_KERNELS_ATTENTIONVECTORS_H
