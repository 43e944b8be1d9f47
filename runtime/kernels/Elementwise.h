// Loops over flat arrays: gelu, swiglu, add, scale, copies of columns, zero, accumulate, round.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// `#pragma omp simd` promises no dependence between iterations; iteration i touches index i alone, so every alias that
// runtime/Pp.h allows is safe.
#ifndef PP_RUNTIME_KERNELS_ELEMENTWISE_H
#define PP_RUNTIME_KERNELS_ELEMENTWISE_H

#include "runtime/kernels/Element.h"

namespace {
using namespace pp;

constexpr double sqrt2OverPi = 0.79788456080286535588;
constexpr double geluCubic = 0.044715;

/// tanh form as a * sigmoid(2u): half (1 + tanh u) is sigmoid(2u), and exp vectorises where tanh does not.
template <class E> pp_status_t gelu(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  int64_t n = op.dims[0];
  if (op.has(Exact)) {
    for (int64_t i = 0; i < n; ++i) {
      A a = get(x, i);
      put(y, i, A(0.5) * a * (A(1) + errorFunction(a * A(0.70710678118654752440))));
    }
    return PP_OK;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A a = get(x, i);
    A u2 = A(2 * sqrt2OverPi) * (a + A(geluCubic) * a * a * a);
    put(y, i, a * sigmoid(u2));
  }
  return PP_OK;
}

template <class E> pp_status_t gelu_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *dy = in<E>(arguments[0]);
  const E *x = in<E>(arguments[1]);
  E *dx = out<E>(arguments[2]);
  int64_t n = op.dims[0];
  if (op.has(Exact)) {
    for (int64_t i = 0; i < n; ++i) {
      A a = get(x, i);
      A normal = A(0.5) * (A(1) + errorFunction(a * A(0.70710678118654752440)));
      put(dx, i, get(dy, i) * (normal + a * exponential(A(-0.5) * a * a) * A(0.39894228040143267794)));
    }
    return PP_OK;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A a = get(x, i);
    A s = sigmoid(A(2 * sqrt2OverPi) * (a + A(geluCubic) * a * a * a));
    A slope = A(2 * sqrt2OverPi) * (A(1) + A(3 * geluCubic) * a * a);
    put(dx, i, get(dy, i) * (s + a * s * (A(1) - s) * slope));
  }
  return PP_OK;
}

template <class E> pp_status_t swiglu(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *p = in<E>(arguments[0]);
  const E *q = in<E>(arguments[1]);
  E *y = out<E>(arguments[2]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A a = get(p, i);
    put(y, i, a * sigmoid(a) * get(q, i));
  }
  return PP_OK;
}

template <class E> pp_status_t swiglu_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *dy = in<E>(arguments[0]);
  const E *p = in<E>(arguments[1]);
  const E *q = in<E>(arguments[2]);
  E *dp = out<E>(arguments[3]);
  E *dq = out<E>(arguments[4]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A g = get(dy, i), a = get(p, i), b = get(q, i);
    A s = sigmoid(a);
    put(dp, i, g * b * s * (A(1) + a * (A(1) - s)));
    put(dq, i, g * a * s);
  }
  return PP_OK;
}

template <class E> pp_status_t add(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  const E *y = in<E>(arguments[1]);
  E *z = out<E>(arguments[2]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    put(z, i, get(x, i) + get(y, i));
  return PP_OK;
}

template <class E> pp_status_t scale(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  A factor = A(op.params[0]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    put(y, i, factor * A(get(x, i)));
  return PP_OK;
}

template <class E> pp_status_t slice_columns(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  int64_t total = op.dims[1], start = op.dims[2], width = op.dims[3];
  for (int64_t t = 0; t < op.dims[0]; ++t)
    memcpy(y + t * width, x + t * total + start, size_t(width) * sizeof(E));
  return PP_OK;
}

template <class E> pp_status_t place_columns(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  int64_t total = op.dims[1], start = op.dims[2], width = op.dims[3];
  for (int64_t t = 0; t < op.dims[0]; ++t)
    memcpy(y + t * total + start, x + t * width, size_t(width) * sizeof(E));
  return PP_OK;
}

template <class E> pp_status_t copy(const PreparedOp &op, void *const *arguments) {
  memmove(arguments[1], arguments[0], size_t(op.dims[0]) * sizeof(E));
  return PP_OK;
}

template <class E> pp_status_t zero(const PreparedOp &op, void *const *arguments) {
  memset(arguments[0], 0, size_t(op.dims[0]) * sizeof(E));
  return PP_OK;
}

template <class E> pp_status_t accumulate(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  Acc<E> *y = out<Acc<E>>(arguments[1]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    y[i] += get(x, i);
  return PP_OK;
}

template <class E> pp_status_t round(const PreparedOp &op, void *const *arguments) {
  const Acc<E> *x = in<Acc<E>>(arguments[0]);
  E *y = out<E>(arguments[1]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    put(y, i, x[i]);
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_ELEMENTWISE_H
