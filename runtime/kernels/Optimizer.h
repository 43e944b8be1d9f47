// Loops of the optimizer: the squared norm of gradients, AdamW, SGD, and what Muon does element by element.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_OPTIMIZER_H
#define PP_RUNTIME_KERNELS_OPTIMIZER_H

#include "runtime/kernels/Element.h"

namespace {
using namespace pp;

/// The sum of at most 4096 squares: in f64 where f32 cannot hold it, or loses small squares.
template <class A> double squaresOf(const A *grad, int64_t n) {
  A part = 0;
#pragma omp simd reduction(+ : part)
  for (int64_t i = 0; i < n; ++i)
    part += grad[i] * grad[i];
  if (sizeof(A) == sizeof(double) || (part >= leastSquares && part <= mostSquares))
    return double(part);
  double wide = 0;
#pragma omp simd reduction(+ : wide)
  for (int64_t i = 0; i < n; ++i)
    wide += double(grad[i]) * double(grad[i]);
  return wide;
}

template <class E> pp_status_t sum_squares(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *grad = in<A>(arguments[0]);
  double *sum = out<double>(arguments[1]);
  int64_t n = op.dims[0];
  double total = op.has(Accumulate) ? *sum : 0.0;
  for (int64_t block = 0; block < n; block += 4096)
    total += squaresOf(grad + block, n - block < 4096 ? n - block : 4096);
  *sum = total;
  return PP_OK;
}

/// Whether an update leaves everything as it is: the gradients overflowed, or nothing may change.
inline bool skips(const OptimizerScalars &scalars, const double *norm2) {
  return scalars.holds || (norm2 && !__builtin_isfinite(*norm2));
}

/// The factor of gradients: it takes out the loss scale, and clips their norm.
inline double gammaOf(const OptimizerScalars &scalars, const double *norm2) {
  double gamma = 1 / scalars.lossScale;
  if (scalars.clip > 0 && norm2) {
    double ratio = scalars.clip / (__builtin_sqrt(*norm2) / scalars.lossScale + 1e-6);
    gamma *= ratio < 1 ? ratio : 1;
  }
  return gamma;
}

/// The factors that AdamW computes once per call, in f64, from the rank's scalars.
struct AdamFactors {
  double gamma, beta1, beta2, correction1, correction2, lr, epsilon, decay;

  AdamFactors(const PreparedOp &op, const OptimizerScalars &scalars, const double *norm2)
      : gamma(gammaOf(scalars, norm2)), beta1(scalars.beta1), beta2(scalars.beta2), correction1(scalars.correction1),
        correction2(scalars.correction2), lr(scalars.lr * op.groupRate()), epsilon(scalars.epsilon),
        decay(scalars.weightDecay * op.shrink()) {}
};

template <class E> pp_status_t adamw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *grad = in<A>(arguments[0]);
  E *w = out<E>(arguments[2]);
  A *m = out<A>(arguments[3]);
  A *v = out<A>(arguments[4]);
  A *master = arguments[5] ? out<A>(arguments[5]) : out<A>(arguments[2]);
  const OptimizerScalars &scalars = *in<OptimizerScalars>(arguments[6]);
  const double *norm2 = in<double>(arguments[1]);
  if (skips(scalars, norm2))
    return PP_OK;
  AdamFactors f(op, scalars, norm2);
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

template <class E> pp_status_t sgd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *grad = in<A>(arguments[0]);
  E *w = out<E>(arguments[2]);
  A *u = out<A>(arguments[3]);
  A *master = arguments[4] ? out<A>(arguments[4]) : out<A>(arguments[2]);
  const OptimizerScalars &scalars = *in<OptimizerScalars>(arguments[5]);
  const double *norm2 = in<double>(arguments[1]);
  if (skips(scalars, norm2))
    return PP_OK;
  A gamma = A(gammaOf(scalars, norm2)), momentum = A(scalars.momentum), lr = A(scalars.lr * op.groupRate());
  A decay = A(scalars.weightDecay * op.shrink());
  bool nesterov = op.has(Nesterov);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A value = master[i];
    A g = gamma * grad[i] + decay * value;
    A mean = momentum * u[i] + g;
    u[i] = mean;
    value -= lr * (nesterov ? g + momentum * mean : mean);
    master[i] = value;
    put(w, i, value);
  }
  return PP_OK;
}

template <class E> pp_status_t steer(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *grad = in<A>(arguments[0]);
  A *master = arguments[3] ? out<A>(arguments[3]) : out<A>(arguments[2]);
  if (skips(*in<OptimizerScalars>(arguments[4]), in<double>(arguments[1])))
    return PP_OK;
  A rate = A(op.params[0]);
  for (int64_t i = 0; i < op.dims[0]; ++i) {
    A value = master[i] + (grad[i] > 0 ? -rate : grad[i] < 0 ? rate : A(0));
    master[i] = value;
    put(out<E>(arguments[2]), i, value);
  }
  return PP_OK;
}

template <class E> pp_status_t muon_momentum(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *grad = in<A>(arguments[0]);
  A *u = out<A>(arguments[2]);
  A *way = out<A>(arguments[3]);
  const OptimizerScalars &scalars = *in<OptimizerScalars>(arguments[4]);
  const double *norm2 = in<double>(arguments[1]);
  bool keeps = skips(scalars, norm2); // the way is not gone, but what it holds is read
  A gamma = A(gammaOf(scalars, norm2)), momentum = A(keeps ? 1 : scalars.momentum), rest = 1 - momentum;
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A g = keeps ? A(0) : gamma * grad[i];
    A mean = momentum * u[i] + rest * g;
    u[i] = mean;
    way[i] = momentum * mean + rest * g;
  }
  return PP_OK;
}

template <class E> pp_status_t unit_norm(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[2]);
  double root = __builtin_sqrt(*in<double>(arguments[1]));
  Acc<E> factor = Acc<E>(1 / (root > 1e-7 ? root : 1e-7));
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    put(y, i, factor * get(x, i));
  return PP_OK;
}

template <class E> pp_status_t newton_schulz(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *g = in<E>(arguments[0]);
  const E *gg = in<E>(arguments[1]);
  E *p = out<E>(arguments[2]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n * n; ++i)
    put(p, i, A(-4.7750) * get(g, i) + A(2.0315) * get(gg, i));
  for (int64_t i = 0; i < n; ++i)
    put(p, i * n + i, get(p, i * n + i) + A(3.4445));
  return PP_OK;
}

template <class E> pp_status_t muon(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *way = in<A>(arguments[0]);
  E *w = out<E>(arguments[2]);
  A *master = arguments[3] ? out<A>(arguments[3]) : out<A>(arguments[2]);
  const OptimizerScalars &scalars = *in<OptimizerScalars>(arguments[4]);
  if (skips(scalars, in<double>(arguments[1])))
    return PP_OK;
  A lr = A(scalars.matrixRate * op.groupRate()), decay = A(scalars.matrixDecay * op.shrink()), factor = A(op.params[0]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A value = master[i];
    value -= lr * (decay * value + factor * way[i]);
    master[i] = value;
    put(w, i, value);
  }
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_OPTIMIZER_H
