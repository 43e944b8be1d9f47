// Matrix products in f64, for which oneDNN has none: packed panels and a 4x8 block of registers.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_DOUBLEGEMM_H
#define PP_RUNTIME_KERNELS_DOUBLEGEMM_H

#include "runtime/kernels/Element.h"
#include "runtime/kernels/Facts.h"

namespace {
using namespace pp;

constexpr int64_t doubleColumns = 8;

/// c[m,n] (+)= a . b, element (i, j) of a at i * aRow + j * aColumn, of b likewise; c is dense.
struct DoubleProduct {
  int64_t m, n, k;
  const double *a;
  int64_t aRow, aColumn;
  const double *b;
  int64_t bRow, bColumn;
  double *c;
};

using DoubleVector [[gnu::vector_size(32), gnu::aligned(8), gnu::may_alias]] = double;

/// One block of c from a packed [k][4] and b packed [k][8]; rows and columns past the edge are computed, not written.
PP_INLINE void doubleBlock(const double *a, const double *b, int64_t depth, double *c, int64_t n, int64_t rows,
                           int64_t columns, bool adds) {
  DoubleVector sum[doubleRows][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    DoubleVector left = *in<DoubleVector>(b + k * doubleColumns), right = *in<DoubleVector>(b + k * doubleColumns + 4);
    for (int64_t i = 0; i < doubleRows; ++i) {
      sum[i][0] += a[k * doubleRows + i] * left;
      sum[i][1] += a[k * doubleRows + i] * right;
    }
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      c[i * n + j] = (adds ? c[i * n + j] : 0.0) + sum[i][j / 4][j % 4];
}

void doubleGemm(const DoubleProduct &p, bool accumulates, char *scratch) {
  double *packedB = reinterpret_cast<double *>(scratch), *packedA = packedB + doubleDepth * doubleWidth;
  for (int64_t n0 = 0; n0 < p.n; n0 += doubleWidth) {
    int64_t width = p.n - n0 < doubleWidth ? p.n - n0 : doubleWidth;
    for (int64_t k0 = 0; k0 < p.k; k0 += doubleDepth) {
      int64_t depth = p.k - k0 < doubleDepth ? p.k - k0 : doubleDepth;
      for (int64_t j0 = 0; j0 < width; j0 += doubleColumns)
        for (int64_t k = 0; k < depth; ++k)
          for (int64_t j = 0; j < doubleColumns; ++j)
            packedB[j0 * depth + k * doubleColumns + j] =
                j0 + j < width ? p.b[(k0 + k) * p.bRow + (n0 + j0 + j) * p.bColumn] : 0.0;
      for (int64_t i0 = 0; i0 < p.m; i0 += doubleRows) {
        int64_t rows = p.m - i0 < doubleRows ? p.m - i0 : doubleRows;
        for (int64_t k = 0; k < depth; ++k)
          for (int64_t i = 0; i < doubleRows; ++i)
            packedA[k * doubleRows + i] = i < rows ? p.a[(i0 + i) * p.aRow + (k0 + k) * p.aColumn] : 0.0;
        for (int64_t j0 = 0; j0 < width; j0 += doubleColumns)
          doubleBlock(packedA, packedB + j0 * depth, depth, p.c + i0 * p.n + n0 + j0, p.n, rows,
                      width - j0 < doubleColumns ? width - j0 : doubleColumns, accumulates || k0 > 0);
      }
    }
  }
}

pp_status_t doubleLinear(const PreparedOp &op, void *const *arguments) {
  int64_t tokens = op.dims[0], k = op.dims[1], n = op.dims[2];
  bool transposed = op.has(Transposed);
  double *y = out<double>(arguments[3]);
  doubleGemm({tokens, n, k, in<double>(arguments[0]), k, 1, in<double>(arguments[1]), transposed ? 1 : n,
              transposed ? k : 1, y},
             false, op.scratch);
  if (op.has(WithBias))
    for (int64_t i = 0; i < tokens * n; ++i)
      y[i] += in<double>(arguments[2])[i % n];
  return PP_OK;
}

pp_status_t doubleLinearDx(const PreparedOp &op, void *const *arguments) {
  int64_t tokens = op.dims[0], k = op.dims[1], n = op.dims[2];
  bool transposed = op.has(Transposed);
  doubleGemm({tokens, k, n, in<double>(arguments[0]), n, 1, in<double>(arguments[1]), transposed ? k : 1,
              transposed ? 1 : n, out<double>(arguments[2])},
             op.has(Accumulate), op.scratch);
  return PP_OK;
}

pp_status_t doubleLinearDw(const PreparedOp &op, void *const *arguments) {
  int64_t tokens = op.dims[0], k = op.dims[1], n = op.dims[2];
  const double *x = in<double>(arguments[0]), *dy = in<double>(arguments[1]);
  double *dw = out<double>(arguments[2]);
  if (op.has(Transposed))
    doubleGemm({n, k, tokens, dy, 1, n, x, k, 1, dw}, op.has(Accumulate), op.scratch);
  else
    doubleGemm({k, n, tokens, x, 1, k, dy, n, 1, dw}, op.has(Accumulate), op.scratch);
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_DOUBLEGEMM_H
