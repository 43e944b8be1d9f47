// Products of mixtures of experts but of f64, by oneDNN's sgemm: the number of an expert's rows is known when they run.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// oneDNN's primitives are made for their sizes, and each number of rows would be one more; its sgemm takes any. (So
// does OpenBLAS, which on processors that are newer than it is multiplies as on a Prescott.) In f32 that is one call.
// What has 16 bits is widened block by block into the rank's scratch, multiplied in f32 and rounded once:
//
//            n 480 ..              c[block] = a[0] b[0] + a[1] b[1] + ..
//     k 480 [ b[0] | ]
//           [ b[1] | ]
//   m 480 [ a[0] a[1] ] [ c ]
//
// A row of an expert must not depend on how many rows the expert has: that is what other documents change. oneDNN takes
// other kernels, whose sums have other orders, for other numbers of rows: with AVX2 for the last 1 to 3 rows behind a
// multiple of 6, and, from some 360 rows on, for all of them. So each call has 48 rows, and zeros where there are less.
#include "runtime/cpu/Experts.h"
#include "runtime/kernels/Facts.h"
#include "runtime/kernels/GemmShape.h"
#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.h>

using namespace pp;

namespace {

/// Elements of f32, or of 16 bits; element (i, j) lies at i * row + j * column, and one of the two is 1.
struct Matrix {
  const char *data;
  Type type;
  int64_t row, column;

  bool isWide() const { return type == Type::F32; }
  const char *at(int64_t i, int64_t j) const { return data + (i * row + j * column) * (isWide() ? 4 : 2); }
};

/// The block [m, n] from (i, j) on in f32, as it lies; where it is f32 already it stays where it is.
Matrix widened(const Matrix &x, int64_t i, int64_t j, int64_t m, int64_t n, float *to) {
  if (x.isWide())
    return {x.at(i, j), Type::F32, x.row, x.column};
  bool down = x.column != 1;
  auto *widen = isaTable().widen[int(x.type)];
  for (int64_t line = 0; line < (down ? n : m); ++line)
    widen(down ? x.at(i, j + line) : x.at(i + line, j), to + line * (down ? m : n), down ? m : n);
  return {reinterpret_cast<const char *>(to), Type::F32, down ? 1 : n, down ? m : 1};
}

bool multiply(const Matrix &a, const Matrix &b, int64_t m, int64_t n, int64_t k, float *c, int64_t row, bool adds) {
  bool aDown = a.column != 1, bDown = b.column != 1;
  // oneDNN wants lines no closer than they are long, even where there is one alone.
  int64_t aNext = std::max(aDown ? a.column : a.row, aDown ? m : k);
  int64_t bNext = std::max(bDown ? b.column : b.row, bDown ? k : n);
  return dnnl_sgemm(aDown ? 'T' : 'N', bDown ? 'T' : 'N', m, n, k, 1.0f, reinterpret_cast<const float *>(a.data), aNext,
                    reinterpret_cast<const float *>(b.data), bNext, adds ? 1.0f : 0.0f, c, row) == dnnl_success;
}

/// The same for m a multiple of rowsOfCall.
bool multiplyRows(const Matrix &a, const Matrix &b, int64_t m, int64_t n, int64_t k, float *c, int64_t row, bool adds) {
  bool done = true;
  for (int64_t i = 0; i < m; i += rowsOfCall)
    done &= multiply({a.at(i, 0), a.type, a.row, a.column}, b, rowsOfCall, n, k, c + i * row, row, adds);
  return done;
}

/// c[m,n] (+)= a . b; c is dense.
struct SegmentProduct {
  int64_t m, n, k;
  Matrix a, b;
  char *c;
  Type type; ///< of c
  bool accumulates;
  bool byRows = false; ///< a is dense, and its rows are tokens'

  pp_status_t run(char *scratch) const {
    if (a.isWide() && b.isWide() && type == Type::F32 && byRows)
      return runWideRows(reinterpret_cast<float *>(scratch)) ? PP_OK : PP_INTERNAL;
    if (a.isWide() && b.isWide() && type == Type::F32)
      return multiply(a, b, m, n, k, reinterpret_cast<float *>(c), n, accumulates) ? PP_OK : PP_INTERNAL;
    bool done = true;
    for (int64_t i = 0; i < m; i += edgeOfBlock)
      for (int64_t j = 0; j < n; j += edgeOfBlock)
        done &= runBlock(i, j, std::min(edgeOfBlock, m - i), std::min(edgeOfBlock, n - j),
                         reinterpret_cast<float *>(scratch));
    return done ? PP_OK : PP_INTERNAL;
  }
  /// The last rows in scratch, with zeros behind them.
  bool runWideRows(float *scratch) const {
    const int64_t last = m % rowsOfCall, whole = m - last;
    auto *to = reinterpret_cast<float *>(c);
    bool done = multiplyRows(a, b, whole, n, k, to, n, accumulates);
    if (last == 0)
      return done;
    float *left = scratch, *sums = left + rowsOfCall * k;
    std::memcpy(left, a.at(whole, 0), size_t(last * k) * sizeof(float));
    std::fill(left + last * k, sums, 0.0f);
    std::fill(sums, sums + rowsOfCall * n, 0.0f);
    if (accumulates)
      std::memcpy(sums, to + whole * n, size_t(last * n) * sizeof(float));
    done &=
        multiply({reinterpret_cast<const char *>(left), Type::F32, k, 1}, b, rowsOfCall, n, k, sums, n, accumulates);
    std::memcpy(to + whole * n, sums, size_t(last * n) * sizeof(float));
    return done;
  }
  bool runBlock(int64_t i, int64_t j, int64_t rows, int64_t columns, float *scratch) const {
    float *left = scratch, *right = left + edgeOfBlock * edgeOfBlock, *sums = right + edgeOfBlock * edgeOfBlock;
    bool isWide = type == Type::F32;
    float *to = isWide ? reinterpret_cast<float *>(c) + i * n + j : sums;
    int64_t row = isWide ? n : columns, all = byRows ? (rows + rowsOfCall - 1) / rowsOfCall * rowsOfCall : rows;
    bool done = true;
    for (int64_t l = 0; l < k; l += edgeOfBlock) {
      int64_t depth = std::min(edgeOfBlock, k - l);
      const Matrix x = widened(a, i, l, rows, depth, left);
      std::fill(left + rows * depth, left + all * depth, 0.0f);
      done &= (byRows ? multiplyRows : multiply)(x, widened(b, l, j, depth, columns, right), all, columns, depth, to,
                                                 row, l > 0 || (isWide && accumulates));
    }
    for (int64_t line = 0; line < rows && !isWide; ++line)
      isaTable().narrow[int(type)](sums + line * columns, c + 2 * ((i + line) * n + j), columns, accumulates);
    return done;
  }
};

int64_t sizeOf(Type type) { return type == Type::F32 ? 4 : 2; }

char *bytes(void *memory) { return static_cast<char *>(memory); }

pp_status_t runRouter(const PreparedOp &op, void *const *x) {
  int64_t tokens = op.dims[0], h = op.dims[1], n = op.dims[2];
  return SegmentProduct{tokens,      n,         h,    {bytes(x[0]), op.type, h, 1}, {bytes(x[1]), op.type, n, 1},
                        bytes(x[2]), Type::F32, false}
      .run(op.scratch);
}

pp_status_t runRouterDx(const PreparedOp &op, void *const *x) {
  int64_t tokens = op.dims[0], h = op.dims[1], n = op.dims[2];
  return SegmentProduct{tokens,
                        h,
                        n,
                        {bytes(x[0]), Type::F32, n, 1},
                        {bytes(x[1]), op.type, 1, n},
                        bytes(x[2]),
                        op.type,
                        op.has(Accumulate)}
      .run(op.scratch);
}

pp_status_t runRouterDw(const PreparedOp &op, void *const *x) {
  int64_t tokens = op.dims[0], h = op.dims[1], n = op.dims[2];
  return SegmentProduct{h,
                        n,
                        tokens,
                        {bytes(x[0]), op.type, 1, h},
                        {bytes(x[1]), Type::F32, n, 1},
                        bytes(x[2]),
                        Type::F32,
                        op.has(Accumulate)}
      .run(op.scratch);
}

/// One product for each expert and section with rows: y = x w, dx = dy w^T, or dw = x^T dy, whose sections are added.
pp_status_t runExperts(const PreparedOp &op, void *const *x) {
  const int64_t in = op.dims[1], out = op.dims[2], size = sizeOf(op.type);
  const char *first = bytes(x[0]), *second = bytes(x[1]);
  char *result = bytes(x[3]);
  pp_status_t status = PP_OK;
  bool hasRows = false; // of this expert
  forExpertRows(op, static_cast<const int32_t *>(x[2]), [&](ExpertRows its) {
    const int64_t rows = its.rows, begin = its.begin, e = its.expert;
    const char *w = second + e * in * out * size;
    hasRows &= !its.isFirst;
    SegmentProduct product = {rows,
                              out,
                              in,
                              {first + begin * in * size, op.type, in, 1},
                              {w, op.type, out, 1},
                              result + begin * out * size,
                              op.type,
                              false,
                              true};
    if (op.kernel == Kernel::expert_linear_dx)
      product = {rows,
                 in,
                 out,
                 {first + begin * out * size, op.type, out, 1},
                 {w, op.type, 1, out},
                 result + begin * in * size,
                 op.type,
                 op.has(Accumulate),
                 true};
    if (op.kernel == Kernel::expert_linear_dw)
      product = {in,
                 out,
                 rows,
                 {first + begin * in * size, op.type, 1, in},
                 {second + begin * out * size, op.type, out, 1},
                 result + e * in * out * 4,
                 Type::F32,
                 op.has(Accumulate) || hasRows};
    if (rows > 0) {
      if (pp_status_t its = product.run(op.scratch); its != PP_OK)
        status = its;
      hasRows = true;
    } else if (op.kernel == Kernel::expert_linear_dw && its.isFirst && !op.has(Accumulate)) {
      std::memset(product.c, 0, size_t(in * out) * 4);
    }
  });
  return status;
}

} // namespace

Body pp::expertBody(const PreparedOp &op) {
  switch (op.kernel) {
  case Kernel::router:
    return runRouter;
  case Kernel::router_dx:
    return runRouterDx;
  case Kernel::router_dw:
    return runRouterDw;
  case Kernel::expert_linear:
  case Kernel::expert_linear_dx:
  case Kernel::expert_linear_dw:
    return runExperts;
  default:
    return nullptr;
  }
}
