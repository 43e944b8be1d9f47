// Cross-entropy: loss and gradient of whole rows in one pass, or of shards of the vocabulary through their statistics.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   shard 0   shard 1  ..      stats: (max, sum of exp(z - max), target's logit or 0) of each row and shard
//   [z ....][z ....]           merge: the same three of all shards, in the order of the parts: deterministic
//      stats --+-- merge       loss:  sum of max + log(sum) - logit
//   dz of each shard from z and the merged three
#ifndef PP_RUNTIME_KERNELS_CROSSENTROPY_H
#define PP_RUNTIME_KERNELS_CROSSENTROPY_H

#include "runtime/kernels/AttentionShape.h"

namespace {
using namespace pp;

/// What the sum of a step's losses is multiplied by.
inline double lossFactor(const PreparedOp &op, const OptimizerScalars &scalars) {
  return op.has(Counted) ? op.params[0] / scalars.divisor : op.params[0];
}

/// Three passes over a row while it is in cache: maximum, sum, gradient (written over the logits if dz == z). Where e
/// is acc the second pass leaves exp in dz; 16 bits compute it twice, because a value is rounded once.
template <class E> pp_status_t cross_entropy(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int32_t *targets = in<int32_t>(arguments[1]);
  int64_t vocabulary = op.dims[1];
  double loss = 0, *losses = out<double>(arguments[5]);
  const OptimizerScalars &scalars = *in<OptimizerScalars>(arguments[4]);
  A scale = A(lossFactor(op, scalars) * scalars.lossScale);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *z = in<E>(arguments[0]) + t * vocabulary;
    E *dz = out<E>(arguments[2]) + t * vocabulary;
    int32_t target = targets[t];
    if (target >= vocabulary)
      return PP_INVALID;
    if (target < 0) {
      memset(dz, 0, size_t(vocabulary) * sizeof(E));
      continue;
    }
    A largest = get(z, 0), logit = get(z, target), sum = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < vocabulary; ++i)
      largest = get(z, i) > largest ? get(z, i) : largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < vocabulary; ++i) {
      A power = exponential(get(z, i) - largest);
      sum += power;
      if constexpr (sizeof(E) == sizeof(A))
        put(dz, i, power);
    }
    A factor = scale / sum;
    const double mine = double(largest - logit) + double(logarithm(sum));
    loss += mine;
    if (losses)
      losses[t] = mine;
    A share = exponential(logit - largest) / sum;
#pragma omp simd
    for (int64_t i = 0; i < vocabulary; ++i)
      put(dz, i, factor * (sizeof(E) == sizeof(A) ? get(dz, i) : exponential(get(z, i) - largest)));
    put(dz, target, scale * (share - A(1)));
  }
  *out<A>(arguments[3]) = A(lossFactor(op, scalars) * loss);
  return PP_OK;
}

template <class E> PP_INLINE Acc<E> largestOf(const E *z, int64_t n) {
  Acc<E> largest = get(z, 0);
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i)
    largest = get(z, i) > largest ? get(z, i) : largest;
  return largest;
}

/// dims T n first V: columns [first, first + n) of V.
template <class E> pp_status_t cross_entropy_stats(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t n = op.dims[1], first = op.dims[2];
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *z = in<E>(arguments[0]) + t * n;
    int64_t target = in<int32_t>(arguments[1])[t];
    if (target >= op.dims[3])
      return PP_INVALID;
    A largest = largestOf<E>(z, n), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i)
      sum += exponential(get(z, i) - largest);
    A *stats = out<A>(arguments[2]) + 3 * t;
    stats[0] = largest;
    stats[1] = sum;
    stats[2] = target >= first && target < first + n ? get(z, target - first) : 0;
  }
  return PP_OK;
}

/// dims T parts. The result may lie on the first part.
template <class E> pp_status_t cross_entropy_merge(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  for (int64_t row = 0; row < 3 * op.dims[0]; row += 3) {
    A largest = inList<A>(arguments[0], 0)[row], sum = 0, logit = 0;
    for (int64_t i = 1; i < op.dims[1]; ++i) {
      A other = inList<A>(arguments[0], i)[row];
      largest = other > largest ? other : largest;
    }
    for (int64_t i = 0; i < op.dims[1]; ++i) {
      const A *part = inList<A>(arguments[0], i) + row;
      sum += part[1] * exponential(part[0] - largest);
      logit += part[2];
    }
    A *stats = out<A>(arguments[1]) + row;
    stats[0] = largest, stats[1] = sum, stats[2] = logit;
  }
  return PP_OK;
}

/// dims T.
template <class E> pp_status_t cross_entropy_loss(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  double loss = 0, *losses = out<double>(arguments[4]);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const A *stats = in<A>(arguments[0]) + 3 * t;
    if (in<int32_t>(arguments[1])[t] < 0)
      continue;
    const double mine = double(stats[0] - stats[2]) + double(logarithm(stats[1]));
    loss += mine;
    if (losses)
      losses[t] = mine;
  }
  *out<A>(arguments[2]) = A(lossFactor(op, *in<OptimizerScalars>(arguments[3])) * loss);
  return PP_OK;
}

/// dims T n first V; stats are the merged ones.
template <class E> pp_status_t cross_entropy_dz(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t n = op.dims[1], first = op.dims[2];
  const OptimizerScalars &scalars = *in<OptimizerScalars>(arguments[4]);
  A scale = A(lossFactor(op, scalars) * scalars.lossScale);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *z = in<E>(arguments[0]) + t * n;
    E *dz = out<E>(arguments[3]) + t * n;
    int64_t target = in<int32_t>(arguments[1])[t];
    const A *stats = in<A>(arguments[2]) + 3 * t;
    if (target >= op.dims[3])
      return PP_INVALID;
    if (target < 0) {
      memset(dz, 0, size_t(n) * sizeof(E));
      continue;
    }
    A largest = stats[0], factor = scale / stats[1];
    bool here = target >= first && target < first + n;
    A share = here ? factor * exponential(get(z, target - first) - largest) : 0;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i)
      put(dz, i, factor * exponential(get(z, i) - largest));
    if (here)
      put(dz, target - first, share - scale);
  }
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_CROSSENTROPY_H
