// Runs a functor over the packs of flat arrays: `at<W>(i)` computes elements i to i + W.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_MAP_H
#define PP_RUNTIME_SIMT_MAP_H

#include "runtime/simt/Launch.h"

namespace pp {

/// The positions of rows that are one run of a sequence, or two runs (`Zigzag`).
struct Places {
  int64_t first, run, second; ///< the first row's, rows of a run, the second run's first
  Places(const PreparedOp &op, int64_t rows, int64_t first)
      : first(first), run(op.has(Zigzag) ? rows / 2 : rows), second(op.second) {}
  PP_DEVICE int64_t of(int64_t t) const { return t < run ? first + t : second + t - run; }
};

/// n / d for n >= 0, in 32 bits where they suffice: 64-bit division costs as much as the memory access.
PP_DEVICE int64_t quotient(int64_t n, int64_t d) { return (n | d) >> 32 ? n / d : int64_t(uint32_t(n) / uint32_t(d)); }

template <class F> __global__ void __launch_bounds__(256) mapKernel(F f, int64_t n, bool wide) {
  constexpr int W = packOf<typename F::Element>;
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * W;
  if (wide && i + W <= n)
    f.template at<W>(i);
  else
    for (int64_t j = i; j < n && j < i + W; ++j)
      f.template at<1>(j);
}

/// `wide`: packs may be read and written as such at every multiple of their size.
template <class F> pp_status_t map(const PreparedOp &op, F f, int64_t n, bool wide) {
  if (n == 0) // another device does it
    return PP_OK;
  return launch(op, mapKernel<F>, {blocksFor(n, 256 * packOf<typename F::Element>)}, 256, 0, f, n, wide);
}

template <class E> struct Clear {
  using Element = E;
  E *y;
  template <int W> PP_DEVICE void at(int64_t i) const { store<W>(y + i, Pack<Acc<E>, W>{}); }
};
template <class E> pp_status_t clear(const PreparedOp &op, E *y, int64_t n) {
  return map(op, Clear<E>{y}, n, aligned(y));
}

template <class E, class X = E> struct AddBias {
  using Element = E;
  const X *x;
  const E *bias;
  X *y;
  int64_t h;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(x + i), b = load<W>(bias + (i - quotient(i, h) * h));
    for (int j = 0; j < W; ++j)
      a.v[j] += b.v[j];
    store<W>(y + i, a);
  }
};
/// Rows of `h` elements, to each of which the bias is added; y may be x.
template <class E>
pp_status_t addBias(const PreparedOp &op, const void *x, const void *bias, void *y, int64_t rows, int64_t h) {
  return map(op, AddBias<E>{in<E>(x), in<E>(bias), out<E>(y), h}, rows * h, h % packOf<E> == 0 && aligned(x, bias, y));
}

} // namespace pp

#endif // PP_RUNTIME_SIMT_MAP_H
