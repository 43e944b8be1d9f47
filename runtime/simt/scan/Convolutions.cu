// Causal convolutions and their two backwards, a thread for each element.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/Facts.h"
#include "runtime/simt/Map.h"

using namespace pp;

namespace {

/// dims b s c n. Row t reads rows t - n + 1 to t of its document; tap i is t - n + 1 + i. Border rows are those before
/// the slice, of which row j is row j - n + 1.
struct Taps {
  int64_t s, c, n, position;
  const int32_t *starts;
  Taps(const PreparedOp &op, const void *starts)
      : s(op.dims[1]), c(op.dims[2]), n(op.dims[3]), position(int64_t(op.params[0])),
        starts(op.has(Documents) ? in<int32_t>(starts) : nullptr) {}
  /// Whether row `to` reads row `from`, at most n - 1 rows before it: of its own document, and of the sequence.
  PP_DEVICE bool reads(int64_t b, int64_t to, int64_t from) const {
    return to >= 0 && to < s && position + from >= (starts ? starts[b * s + to] : 0);
  }
  /// A number of a row of x, or of one before the slice; null: there is none.
  template <class E> PP_DEVICE const E *of(const E *x, const E *border, int64_t b, int64_t t, int64_t j) const {
    return t >= 0 ? x + (b * s + t) * c + j : border ? border + (b * (n - 1) + n - 1 + t) * c + j : nullptr;
  }
};

template <class E> struct Convolve {
  using Element = E;
  Taps taps;
  const E *x, *w, *border;
  E *y;
  template <int> PP_DEVICE void at(int64_t i) const {
    const int64_t row = quotient(i, taps.c), j = i - row * taps.c, b = quotient(row, taps.s), t = row - b * taps.s;
    Acc<E> sum = 0;
    for (int64_t tap = 0; tap < taps.n; ++tap) {
      const int64_t from = t - taps.n + 1 + tap;
      if (const E *its = taps.of(x, border, b, from, j); its && taps.reads(b, t, from))
        sum += widen(w[j * taps.n + tap]) * widen(*its);
    }
    narrow(y[i], sum);
  }
};
/// The border rows of the next slice.
template <class E> struct CarryRows {
  using Element = E;
  Taps taps;
  const E *x, *border;
  E *next;
  template <int> PP_DEVICE void at(int64_t i) const {
    const int64_t row = quotient(i, taps.c), b = quotient(row, taps.n - 1),
                  t = taps.s - taps.n + 1 + row % (taps.n - 1);
    const E *its = taps.of(x, border, b, t, i - row * taps.c);
    narrow(next[i], its ? widen(*its) : Acc<E>(0));
  }
};
/// dx of a row, or what a border row gets, which the slice before adds to its own: of one row in `all` of a sequence.
template <class E> struct ConvolveBack {
  using Element = E;
  using A = Acc<E>;
  Taps taps;
  const E *dy, *w;
  const A *behind;
  E *dx;
  A *border;
  int64_t all;
  template <int> PP_DEVICE void at(int64_t i) const {
    const int64_t s = taps.s, n = taps.n, c = taps.c;
    const int64_t row = quotient(i, c), j = i - row * c, b = quotient(row, all), t = row - b * all + s - all;
    A sum = behind && t > s - n ? behind[(b * (n - 1) + t - (s - n + 1)) * c + j] : A(0);
    for (int64_t tap = 0; tap < n; ++tap)
      if (const int64_t to = t + n - 1 - tap; taps.reads(b, to, t))
        sum += widen(w[j * n + tap]) * widen(dy[(b * s + to) * c + j]);
    if (t < 0)
      border[(b * (n - 1) + n - 1 + t) * c + j] = sum;
    else
      narrow(dx[(b * s + t) * c + j], sum);
  }
};

constexpr int columnsOfBlock = 128;
/// One tap's sums over a block's rows: sums[block][n][c].
template <class E>
__global__ void __launch_bounds__(columnsOfBlock)
    convolutionSumsKernel(Taps taps, const E *x, const E *border, const E *dy, int64_t rows, int64_t rowsPerBlock,
                          Acc<E> *sums) {
  const int64_t j = int64_t(blockIdx.x) * columnsOfBlock + threadIdx.x, tap = blockIdx.z;
  if (j >= taps.c)
    return;
  const int64_t first = blockIdx.y * rowsPerBlock, end = first + rowsPerBlock < rows ? first + rowsPerBlock : rows;
  Acc<E> sum = 0;
  for (int64_t row = first; row < end; ++row) {
    const int64_t b = quotient(row, taps.s), t = row - b * taps.s, from = t - taps.n + 1 + tap;
    if (const E *its = taps.of(x, border, b, from, j); its && taps.reads(b, t, from))
      sum += widen(*its) * widen(dy[row * taps.c + j]);
  }
  sums[(blockIdx.y * taps.n + tap) * taps.c + j] = sum;
}
/// dw[c,n] from the blocks' sums, in their order.
template <class E> struct AddTaps {
  using Element = Acc<E>;
  const Acc<E> *sums;
  Acc<E> *dw;
  int64_t c, n, blocks;
  bool adds;
  template <int> PP_DEVICE void at(int64_t i) const {
    const int64_t j = quotient(i, n), tap = i - j * n;
    Acc<E> sum = 0;
    for (int64_t block = 0; block < blocks; ++block)
      sum += sums[(block * n + tap) * c + j];
    dw[i] = adds ? dw[i] + sum : sum;
  }
};

template <class E> pp_status_t conv(const PreparedOp &op, void *const *a) {
  const Taps taps(op, a[2]);
  const E *x = in<E>(a[0]), *border = in<E>(a[3]);
  if (pp_status_t status =
          map(op, Convolve<E>{taps, x, in<E>(a[1]), border, out<E>(a[4])}, op.dims[0] * op.dims[1] * op.dims[2], false))
    return status;
  return a[5] ? map(op, CarryRows<E>{taps, x, border, out<E>(a[5])}, op.dims[0] * (taps.n - 1) * taps.c, false) : PP_OK;
}
template <class E> pp_status_t conv_dx(const PreparedOp &op, void *const *a) {
  const Taps taps(op, a[2]);
  const int64_t all = taps.s + (a[5] ? taps.n - 1 : 0);
  return map(op,
             ConvolveBack<E>{taps, in<E>(a[0]), in<E>(a[1]), in<Acc<E>>(a[3]), out<E>(a[4]), out<Acc<E>>(a[5]), all},
             op.dims[0] * all * taps.c, false);
}
template <class E> pp_status_t conv_dw(const PreparedOp &op, void *const *a) {
  using A = Acc<E>;
  const Taps taps(op, a[2]);
  const int64_t rows = op.dims[0] * op.dims[1], blocks = blocksOfRows(rows);
  A *sums = reinterpret_cast<A *>(op.scratch);
  if (pp_status_t status =
          launch(op, convolutionSumsKernel<E>, {blocksFor(taps.c, columnsOfBlock), blocks, taps.n}, columnsOfBlock, 0,
                 taps, in<E>(a[0]), in<E>(a[3]), in<E>(a[1]), rows, rowsOfBlock(rows), sums))
    return status;
  return map(op, AddTaps<E>{sums, out<A>(a[4]), taps.c, taps.n, blocks, op.has(Accumulate)}, taps.c * taps.n, false);
}

} // namespace

PP_BODIES(conv)
PP_BODIES(conv_dx)
PP_BODIES(conv_dw)
