// Loops over flat arrays: gelu, swiglu, add, copies of columns, zero, accumulate, round, sum of squares, AdamW.
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

template <class E> pp_status_t sum_squares(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *grad = in<A>(arguments[0]);
  double *sum = out<double>(arguments[1]);
  int64_t n = op.dims[0];
  double total = op.has(Accumulate) ? *sum : 0.0;
  for (int64_t block = 0; block < n; block += 4096) {
    int64_t end = block + 4096 < n ? block + 4096 : n;
    A part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = block; i < end; ++i)
      part += grad[i] * grad[i];
    total += double(part);
  }
  *sum = total;
  return PP_OK;
}

/// What AdamW computes once per call, in f64, from the rank's scalars.
struct AdamFactors {
  double gamma, beta1, beta2, correction1, correction2, lr, epsilon, decay;
  bool skips; ///< gradients that overflowed, or nothing may change

  AdamFactors(const OptimizerScalars &scalars, const double *norm2, bool withDecay)
      : beta1(scalars.beta1), beta2(scalars.beta2), lr(scalars.lr), epsilon(scalars.epsilon),
        decay(withDecay ? scalars.weightDecay : 0),
        skips(scalars.holds || (scalars.skips && norm2 && !__builtin_isfinite(*norm2))) {
    correction1 = 1 / (1 - __builtin_pow(beta1, double(scalars.step)));
    correction2 = 1 / (1 - __builtin_pow(beta2, double(scalars.step)));
    gamma = 1 / scalars.lossScale;
    if (scalars.clip > 0 && norm2) {
      double ratio = scalars.clip / (__builtin_sqrt(*norm2) / scalars.lossScale + 1e-6);
      gamma *= ratio < 1 ? ratio : 1;
    }
  }
};

template <class E> pp_status_t adamw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *grad = in<A>(arguments[0]);
  E *w = out<E>(arguments[2]);
  A *m = out<A>(arguments[3]);
  A *v = out<A>(arguments[4]);
  A *master = arguments[5] ? out<A>(arguments[5]) : out<A>(arguments[2]);
  AdamFactors f(*in<OptimizerScalars>(arguments[6]), in<double>(arguments[1]), op.has(Decay));
  if (f.skips)
    return PP_OK;
  A gamma = A(f.gamma), beta1 = A(f.beta1), beta2 = A(f.beta2), rest1 = A(1 - f.beta1), rest2 = A(1 - f.beta2);
  A correction1 = A(f.correction1), correction2 = A(f.correction2), lr = A(f.lr), epsilon = A(f.epsilon);
  A decay = A(f.decay);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A g = gamma * grad[i];
    A mean = beta1 * m[i] + rest1 * g;
    A square = beta2 * v[i] + rest2 * (g * g);
    m[i] = mean;
    v[i] = square;
    A value = master[i];
    value -= lr * (mean * correction1 / (squareRoot(square * correction2) + epsilon) + decay * value);
    master[i] = value;
    put(w, i, value);
  }
  return PP_OK;
}

/// The op of one tensor of a list.
inline PreparedOp oneOf(const PreparedOp &op, int64_t i) {
  PreparedOp one = op;
  one.dims[0] = op.chunks[i].length;
  return one;
}

template <class E> pp_status_t sum_squares_all(const PreparedOp &op, void *const *arguments) {
  void *const *grads = static_cast<void *const *>(arguments[0]);
  for (int64_t i = 0; i < op.chunkCount; ++i) {
    PreparedOp one = oneOf(op, i);
    one.flags |= i > 0 ? uint32_t(Accumulate) : 0;
    void *const its[] = {grads[i], arguments[1]};
    sum_squares<E>(one, its);
  }
  return PP_OK;
}

template <class E> pp_status_t adamw_all(const PreparedOp &op, void *const *arguments) {
  for (int64_t i = 0; i < op.chunkCount; ++i) {
    void *const *tensor = static_cast<void *const *>(arguments[1]) + 5 * i;
    void *const its[] = {tensor[0], arguments[0], tensor[1], tensor[2], tensor[3], tensor[4], arguments[2]};
    PreparedOp one = oneOf(op, i);
    one.flags = op.chunks[i].position ? uint32_t(Decay) : 0;
    adamw<E>(one, its);
  }
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_ELEMENTWISE_H
