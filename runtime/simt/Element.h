// Elements in packs of 16 bytes, arithmetic in f32 or f64, and sums over a warp and a block in a fixed order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_ELEMENT_H
#define PP_RUNTIME_SIMT_ELEMENT_H

#include "runtime/simt/Simt.h"

namespace pp {

/// Elements of 16 bytes.
template <class E> constexpr int packOf = 16 / int(sizeof(E));

PP_DEVICE float widen(float x) { return x; }
PP_DEVICE double widen(double x) { return x; }
PP_DEVICE float widen(Bf16 x) { return Bf16::valueOf(x.bits); }
PP_DEVICE float widen(F16 x) { return F16::valueOf(x.bits); }

/// W elements as they are computed with.
template <class A, int W> struct Pack {
  A v[W];
};

/// W elements as they are stored: half the registers of 16 bits.
template <class E, int W> struct Stored {
  alignas(W == 1 ? sizeof(E) : 16) E v[W];
  PP_DEVICE Pack<Acc<E>, W> widened() const {
    Pack<Acc<E>, W> pack;
    PP_UNROLL
    for (int i = 0; i < W; ++i)
      pack.v[i] = widen(v[i]);
    return pack;
  }
};

/// Reads W elements; 16-byte aligned unless W is 1.
template <int W, class E> PP_DEVICE Stored<E, W> fetch(const E *p) {
  Stored<E, W> stored;
  if constexpr (W == 1) {
    stored.v[0] = *p;
  } else {
    checkAligned(p, 16);
#ifdef __CUDACC__
    PP_UNROLL
    for (int i = 0; i < W * int(sizeof(E)) / 16; ++i)
      reinterpret_cast<uint4 *>(stored.v)[i] = reinterpret_cast<const uint4 *>(p)[i];
#else
    std::memcpy(stored.v, p, sizeof(stored.v));
#endif
  }
  return stored;
}
template <int W, class E> PP_DEVICE Pack<Acc<E>, W> load(const E *p) { return fetch<W>(p).widened(); }

PP_DEVICE void narrow(float &to, float value) { to = value; }
PP_DEVICE void narrow(double &to, double value) { to = value; }
PP_DEVICE void narrow(Bf16 &to, float value) { to.bits = Bf16::bitsOf(value); }
PP_DEVICE void narrow(F16 &to, float value) { to.bits = F16::bitsOf(value); }

template <int W, class E> PP_DEVICE void store(E *p, const Pack<Acc<E>, W> &pack) {
  if constexpr (W == 1) {
    narrow(*p, pack.v[0]);
  } else {
    alignas(16) E raw[W];
    checkAligned(p, 16);
    PP_UNROLL
    for (int i = 0; i < W; ++i)
      narrow(raw[i], pack.v[i]);
#ifdef __CUDACC__
    PP_UNROLL
    for (int i = 0; i < W * int(sizeof(E)) / 16; ++i)
      reinterpret_cast<uint4 *>(p)[i] = reinterpret_cast<const uint4 *>(raw)[i];
#else
    std::memcpy(p, raw, sizeof(raw));
#endif
  }
}

PP_DEVICE float exponential(float x) { return expf(x); }
PP_DEVICE double exponential(double x) { return exp(x); }
PP_DEVICE float logarithm(float x) { return logf(x); }
PP_DEVICE double logarithm(double x) { return log(x); }
PP_DEVICE float hyperbolicTangent(float x) { return tanhf(x); }
PP_DEVICE double hyperbolicTangent(double x) { return tanh(x); }
PP_DEVICE float squareRoot(float x) { return sqrtf(x); }
PP_DEVICE double squareRoot(double x) { return sqrt(x); }
PP_DEVICE float errorFunction(float x) { return erff(x); }
PP_DEVICE double errorFunction(double x) { return erf(x); }
PP_DEVICE float multiplyAdd(float a, float b, float c) { return fmaf(a, b, c); }
PP_DEVICE double multiplyAdd(double a, double b, double c) { return fma(a, b, c); }
constexpr float log2e = 1.44269504088896340736f;
/// e^x of a score, less the largest or a row's sum, that is at most 0 or hardly more: in f32 one power of two.
PP_DEVICE float weightOf(float x) { return power2(x * log2e); }
PP_DEVICE double weightOf(double x) { return exp(x); }
template <class A> PP_DEVICE A sigmoid(A x) { return A(1) / (A(1) + exponential(-x)); }
template <class A> PP_DEVICE A larger(A x, A y) { return x > y ? x : y; }
template <class A> constexpr A minusInfinity = -A(__builtin_huge_val());

template <class A> PP_DEVICE A warpSum(A value) {
  PP_UNROLL
  for (int mask = 16; mask; mask /= 2)
    value += shuffleXor(value, mask);
  return value;
}
template <class A> PP_DEVICE A warpLargest(A value) {
  PP_UNROLL
  for (int mask = 16; mask; mask /= 2)
    value = larger(value, shuffleXor(value, mask));
  return value;
}

/// Entries in shared memory by which a block adds up a value: 32 for each value.
constexpr int blockSumEntries = 32;

/// The sums over the block, for all its threads; the same bits in every run. The block's size is a multiple of 32.
template <class A, int N> PP_DEVICE void blockSum(A (&values)[N], A *shared) {
  PP_UNROLL
  for (int i = 0; i < N; ++i) {
    A sum = warpSum(values[i]);
    if (threadIdx.x % 32 == 0)
      shared[int(threadIdx.x / 32) * N + i] = sum;
  }
  waitBlock();
  PP_UNROLL
  for (int i = 0; i < N; ++i) {
    values[i] = 0;
    for (int warp = 0; warp < int(blockDim.x / 32); ++warp)
      values[i] += shared[warp * N + i];
  }
  waitBlock();
}

} // namespace pp

#endif // PP_RUNTIME_SIMT_ELEMENT_H
