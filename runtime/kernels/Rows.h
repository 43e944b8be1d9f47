// Loops over rows: norms, rope, embedding, positions, bias gradient.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_ROWS_H
#define PP_RUNTIME_KERNELS_ROWS_H

#include "runtime/kernels/Element.h"

namespace {
using namespace pp;

// --- Norms ---

/// The one place that makes a layernorm row: F and the rebuild must agree bit for bit, so neither may inline it.
template <class E>
[[gnu::noinline]] void normalizeRow(const E *x, const E *g, const E *b, Acc<E> mean, Acc<E> rstd, E *y, int64_t h) {
#pragma omp simd
  for (int64_t i = 0; i < h; ++i)
    put(y, i, (get(x, i) - mean) * rstd * get(g, i) + get(b, i));
}

/// A gain of an rmsnorm; Plus: it is stored less 1.
template <bool Plus, class E> PP_INLINE Acc<E> gainOf(const E *g, int64_t i) {
  return Plus ? get(g, i) + Acc<E>(1) : get(g, i);
}

template <class E, bool Plus> [[gnu::noinline]] void scaleRow(const E *x, const E *g, Acc<E> rstd, E *y, int64_t h) {
#pragma omp simd
  for (int64_t i = 0; i < h; ++i)
    put(y, i, get(x, i) * rstd * gainOf<Plus>(g, i));
}

template <class E> pp_status_t layernorm(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *g = in<E>(arguments[1]), *b = in<E>(arguments[2]);
  A *mean = out<A>(arguments[4]), *rstd = out<A>(arguments[5]);
  int64_t h = op.dims[1];
  A epsilon = A(op.params[0]);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *x = in<E>(arguments[0]) + t * h;
    A sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < h; ++i)
      sum += get(x, i);
    A mu = sum / A(h);
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < h; ++i)
      squares += (get(x, i) - mu) * (get(x, i) - mu);
    mean[t] = mu;
    rstd[t] = A(1) / squareRoot(squares / A(h) + epsilon);
    normalizeRow<E>(x, g, b, mean[t], rstd[t], out<E>(arguments[3]) + t * h, h);
  }
  return PP_OK;
}

template <class E> pp_status_t layernorm_rebuild(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *mean = in<A>(arguments[3]), *rstd = in<A>(arguments[4]);
  int64_t h = op.dims[1];
  for (int64_t t = 0; t < op.dims[0]; ++t)
    normalizeRow<E>(in<E>(arguments[0]) + t * h, in<E>(arguments[1]), in<E>(arguments[2]), mean[t], rstd[t],
                    out<E>(arguments[5]) + t * h, h);
  return PP_OK;
}

template <class E> pp_status_t layernorm_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *g = in<E>(arguments[2]);
  const A *mean = in<A>(arguments[3]), *rstd = in<A>(arguments[4]);
  A *dg = out<A>(arguments[6]), *db = out<A>(arguments[7]);
  int64_t h = op.dims[1];
  memset(dg, 0, size_t(h) * sizeof(A));
  memset(db, 0, size_t(h) * sizeof(A));
  A beta = op.has(Accumulate) ? 1 : 0;
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *dy = in<E>(arguments[0]) + t * h, *x = in<E>(arguments[1]) + t * h;
    E *dx = out<E>(arguments[5]) + t * h;
    A mu = mean[t], r = rstd[t], sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < h; ++i) {
      A d = get(dy, i), normal = (get(x, i) - mu) * r, scaled = d * get(g, i);
      sum += scaled;
      dot += scaled * normal;
      dg[i] += d * normal;
      db[i] += d;
    }
    sum /= A(h);
    dot /= A(h);
    if (beta == 0) {
#pragma omp simd
      for (int64_t i = 0; i < h; ++i)
        put(dx, i, r * (get(dy, i) * get(g, i) - sum - (get(x, i) - mu) * r * dot));
    } else {
#pragma omp simd
      for (int64_t i = 0; i < h; ++i)
        put(dx, i, get(dx, i) + r * (get(dy, i) * get(g, i) - sum - (get(x, i) - mu) * r * dot));
    }
  }
  return PP_OK;
}

template <class E, bool Plus> void rmsnormRows(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  A *rstd = out<A>(arguments[3]);
  int64_t h = op.dims[1];
  A epsilon = A(op.params[0]);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *x = in<E>(arguments[0]) + t * h;
    A squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < h; ++i)
      squares += get(x, i) * get(x, i);
    rstd[t] = A(1) / squareRoot(squares / A(h) + epsilon);
    scaleRow<E, Plus>(x, in<E>(arguments[1]), rstd[t], out<E>(arguments[2]) + t * h, h);
  }
}

template <class E> pp_status_t rmsnorm(const PreparedOp &op, void *const *arguments) {
  op.has(PlusOne) ? rmsnormRows<E, true>(op, arguments) : rmsnormRows<E, false>(op, arguments);
  return PP_OK;
}

template <class E> pp_status_t rmsnorm_rebuild(const PreparedOp &op, void *const *arguments) {
  const Acc<E> *rstd = in<Acc<E>>(arguments[2]);
  int64_t h = op.dims[1];
  auto *scale = op.has(PlusOne) ? scaleRow<E, true> : scaleRow<E, false>;
  for (int64_t t = 0; t < op.dims[0]; ++t)
    scale(in<E>(arguments[0]) + t * h, in<E>(arguments[1]), rstd[t], out<E>(arguments[3]) + t * h, h);
  return PP_OK;
}

template <class E, bool Plus> void rmsnormBackward(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *g = in<E>(arguments[2]);
  const A *rstd = in<A>(arguments[3]);
  A *dg = out<A>(arguments[5]);
  int64_t h = op.dims[1];
  memset(dg, 0, size_t(h) * sizeof(A));
  bool adds = op.has(Accumulate);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *dy = in<E>(arguments[0]) + t * h, *x = in<E>(arguments[1]) + t * h;
    E *dx = out<E>(arguments[4]) + t * h;
    A r = rstd[t], dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < h; ++i) {
      A d = get(dy, i), normal = get(x, i) * r;
      dot += d * gainOf<Plus>(g, i) * normal;
      dg[i] += d * normal;
    }
    dot /= A(h);
    if (!adds) {
#pragma omp simd
      for (int64_t i = 0; i < h; ++i)
        put(dx, i, r * (get(dy, i) * gainOf<Plus>(g, i) - get(x, i) * r * dot));
    } else {
#pragma omp simd
      for (int64_t i = 0; i < h; ++i)
        put(dx, i, get(dx, i) + r * (get(dy, i) * gainOf<Plus>(g, i) - get(x, i) * r * dot));
    }
  }
}

template <class E> pp_status_t rmsnorm_bwd(const PreparedOp &op, void *const *arguments) {
  op.has(PlusOne) ? rmsnormBackward<E, true>(op, arguments) : rmsnormBackward<E, false>(op, arguments);
  return PP_OK;
}

// --- Rope ---

/// The first 2 half columns of one head of one token; sign -1 turns back.
template <class E>
PP_INLINE void turnHead(const E *x, E *y, const Acc<E> *cosines, const Acc<E> *sines, Acc<E> sign, int64_t half,
                        bool pair) {
  if (pair) {
#pragma omp simd
    for (int64_t j = 0; j < half; ++j) {
      Acc<E> a = get(x, 2 * j), b = get(x, 2 * j + 1), c = cosines[j], s = sign * sines[j];
      put(y, 2 * j, a * c - b * s);
      put(y, 2 * j + 1, b * c + a * s);
    }
    return;
  }
#pragma omp simd
  for (int64_t j = 0; j < half; ++j) {
    Acc<E> a = get(x, j), b = get(x, j + half), c = cosines[j], s = sign * sines[j];
    put(y, j, a * c - b * s);
    put(y, j + half, b * c + a * s);
  }
}

template <class E> pp_status_t rope(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t batch = op.dims[0], s = op.dims[1], heads = op.dims[2], d = op.dims[3], half = op.pairs;
  A sign = op.has(Inverse) ? A(-1) : A(1);
  bool pair = op.has(Pair);
  const int32_t *starts = op.has(Documents) ? in<int32_t>(arguments[1]) : nullptr;
  for (int64_t row = 0; row < batch * s; ++row) {
    int64_t position = row % s; // in the table
    if (starts || op.has(Zigzag))
      position = op.positionOf(row % s, s, op.dims[4]) - (starts ? starts[row] : 0);
    const A *cosines = in<A>(op.cosines) + position * half, *sines = in<A>(op.sines) + position * half;
    const E *x = in<E>(arguments[0]) + row * (heads + op.passing) * d;
    E *y = out<E>(arguments[2]) + row * (heads + op.passing) * d;
    for (int64_t head = 0; head < heads; ++head, x += d, y += d) {
      turnHead<E>(x, y, cosines, sines, sign, half, pair);
      if (2 * half < d && x != y)
        memcpy(y + 2 * half, x + 2 * half, size_t(d - 2 * half) * sizeof(E));
    }
    if (op.passing > 0 && x != y)
      memcpy(y, x, size_t(op.passing * d) * sizeof(E));
  }
  return PP_OK;
}

// --- Tables and sums of rows ---

/// dims T h rows first V: rows [first, first + rows) of a table of V; a token of another row gives zeros.
template <class E> pp_status_t embedding(const PreparedOp &op, void *const *arguments) {
  const int32_t *tokens = in<int32_t>(arguments[0]);
  int64_t h = op.dims[1], rows = op.dims[2];
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    if (tokens[t] < 0 || tokens[t] >= op.dims[4])
      return PP_INVALID;
    int64_t row = tokens[t] - op.dims[3];
    E *x = out<E>(arguments[2]) + t * h;
    if (row >= 0 && row < rows)
      memcpy(x, in<E>(arguments[1]) + row * h, size_t(h) * sizeof(E));
    else
      memset(x, 0, size_t(h) * sizeof(E));
  }
  return PP_OK;
}

template <class E> PP_INLINE void addRow(const E *x, Acc<E> *sum, int64_t h) {
#pragma omp simd
  for (int64_t i = 0; i < h; ++i)
    sum[i] += get(x, i);
}

/// Deterministic because one thread adds the tokens in their order.
template <class E> pp_status_t embedding_dw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int32_t *tokens = in<int32_t>(arguments[0]);
  A *table = out<A>(arguments[2]);
  int64_t h = op.dims[1], rows = op.dims[2], pad = int64_t(op.params[0]);
  if (!op.has(Accumulate))
    memset(table, 0, size_t(rows * h) * sizeof(A));
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    if (tokens[t] < 0 || tokens[t] >= op.dims[4])
      return PP_INVALID;
    int64_t row = tokens[t] - op.dims[3];
    if (row >= 0 && row < rows && tokens[t] != pad)
      addRow<E>(in<E>(arguments[1]) + t * h, table + row * h, h);
  }
  return PP_OK;
}

template <class E> pp_status_t positions(const PreparedOp &op, void *const *arguments) {
  int64_t runs = op.has(Zigzag) ? 2 : 1, s = op.dims[1] / runs, h = op.dims[2];
  for (int64_t i = 0; i < op.dims[0] * runs; ++i)
    memcpy(out<E>(arguments[2]) + i * s * h, in<E>(arguments[1]) + (i % runs ? op.second : op.dims[3]) * h,
           size_t(s * h) * sizeof(E));
  return PP_OK;
}

template <class E> pp_status_t positions_dw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t runs = op.has(Zigzag) ? 2 : 1, s = op.dims[1] / runs, h = op.dims[2], context = op.dims[4];
  A *dp = out<A>(arguments[1]);
  if (!op.has(Accumulate))
    memset(dp, 0, size_t(context * h) * sizeof(A));
  for (int64_t i = 0; i < op.dims[0] * runs; ++i)
    addRow<E>(in<E>(arguments[0]) + i * s * h, dp + (i % runs ? op.second : op.dims[3]) * h, s * h);
  return PP_OK;
}

template <class E> pp_status_t bias_dw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t n = op.dims[1];
  A *db = out<A>(arguments[1]);
  if (!op.has(Accumulate))
    memset(db, 0, size_t(n) * sizeof(A));
  for (int64_t t = 0; t < op.dims[0]; ++t)
    addRow<E>(in<E>(arguments[0]) + t * n, db, n);
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_ROWS_H
