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
#include <algorithm>

namespace {
using namespace pp;

/// The factor of the sum of a step's losses.
inline double lossFactor(const PreparedOp &op, const OptimizerScalars &scalars) {
  return op.has(Counted) ? op.params[0] / scalars.divisors[op.ahead()] : op.params[0];
}

/// The weight of a row's loss; without weights it is 1.
inline double weightOf(const float *weights, int64_t row) { return weights ? double(weights[row]) : 1; }

/// The slope of lse + w lse^2.
inline double slopeOfLse(double w, double lse) { return w > 0 ? 1 + 2 * w * lse : 1; }

/// The cap of logits as loops use it; Capped: logits are cap tanh(z / cap).
template <bool Capped, class A> struct LogitCap {
  A cap, inverse;
  explicit LogitCap(const PreparedOp &op) : cap(A(op.logitCap())), inverse(Capped ? A(1 / op.logitCap()) : A(0)) {}
  PP_INLINE A operator()(A z) const { return Capped ? cap * hyperbolicTangent(z * inverse) : z; }
  /// The derivative of the cap at the point where its value is `logit`.
  PP_INLINE A slope(A logit) const { return Capped ? A(1) - (logit * inverse) * (logit * inverse) : A(1); }
};

template <class E> PP_INLINE Acc<E> largestOf(const E *z, int64_t n) {
  Acc<E> largest = get(z, 0);
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i)
    largest = get(z, i) > largest ? get(z, i) : largest;
  return largest;
}

/// The sum of exp(z - largest). Where e is acc the powers, times the cap's slopes, stay in dz; 16 bits compute them
/// twice, because a value is rounded once.
template <class E, bool Capped>
PP_INLINE Acc<E> sumOfPowers(const E *z, E *dz, int64_t n, Acc<E> largest, LogitCap<Capped, Acc<E>> cap) {
  using A = Acc<E>;
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    A logit = cap(get(z, i)), power = exponential(logit - largest);
    sum += power;
    if constexpr (sizeof(E) == sizeof(A))
      put(dz, i, Capped ? power * cap.slope(logit) : power);
  }
  return sum;
}

/// An element of dz in any column but the target's.
template <class E, bool Capped>
PP_INLINE void writeSlopes(const E *z, E *dz, int64_t n, Acc<E> largest, LogitCap<Capped, Acc<E>> cap, Acc<E> factor) {
  using A = Acc<E>;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (sizeof(E) == sizeof(A)) {
      put(dz, i, factor * get(dz, i));
    } else {
      A logit = cap(get(z, i)), power = exponential(logit - largest);
      put(dz, i, Capped ? factor * power * cap.slope(logit) : factor * power);
    }
  }
}

/// The loss, and behind it its z-loss if there is one.
template <class A>
void writeLoss(const PreparedOp &op, const OptimizerScalars &scalars, double loss, double squares, A *out) {
  out[0] = A(lossFactor(op, scalars) * loss);
  if (op.zLoss() > 0)
    out[1] = A(lossFactor(op, scalars) * op.zLoss() * squares);
}

/// Three passes over a row while it is in cache: maximum, sum, gradient (written over the logits if dz == z).
template <class E, bool Capped> pp_status_t lossOfRows(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int32_t *targets = in<int32_t>(arguments[1]);
  int64_t vocabulary = op.dims[1];
  double loss = 0, squares = 0, *losses = out<double>(arguments[5]);
  const OptimizerScalars &scalars = *in<OptimizerScalars>(arguments[4]);
  const double factor = lossFactor(op, scalars) * scalars.lossScale;
  const float *weights = in<float>(arguments[6]);
  LogitCap<Capped, A> cap(op);
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
    A largest = cap(largestOf<E>(z, vocabulary)), logit = cap(get(z, target)); // a cap keeps the order
    A sum = sumOfPowers<E, Capped>(z, dz, vocabulary, largest, cap);
    const double mine = double(largest - logit) + double(logarithm(sum));
    const double weight = weightOf(weights, t);
    loss += weight * mine;
    if (losses)
      losses[t] = mine;
    const double lse = double(largest) + double(logarithm(sum));
    squares += weight * (lse * lse);
    const A scale = A(factor * weight);
    const A grown = A(slopeOfLse(op.zLoss(), lse));
    A share = exponential(logit - largest) / sum;
    writeSlopes<E, Capped>(z, dz, vocabulary, largest, cap, scale * grown / sum);
    A slope = scale * (share * grown - A(1));
    put(dz, target, Capped ? slope * cap.slope(logit) : slope);
  }
  writeLoss(op, scalars, loss, squares, out<A>(arguments[3]));
  return PP_OK;
}

template <class E> pp_status_t cross_entropy(const PreparedOp &op, void *const *arguments) {
  return op.logitCap() > 0 ? lossOfRows<E, true>(op, arguments) : lossOfRows<E, false>(op, arguments);
}

template <class E, bool Capped> pp_status_t statsOfRows(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t n = op.dims[1], first = op.dims[2], here = std::min(n, op.dims[3] - first);
  LogitCap<Capped, A> cap(op);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *z = in<E>(arguments[0]) + t * n;
    int64_t target = in<int32_t>(arguments[1])[t];
    if (target >= op.dims[3])
      return PP_INVALID;
    A largest = cap(largestOf<E>(z, here)), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < here; ++i)
      sum += exponential(cap(get(z, i)) - largest);
    A *stats = out<A>(arguments[2]) + 3 * t;
    stats[0] = largest;
    stats[1] = sum;
    stats[2] = target >= first && target < first + n ? cap(get(z, target - first)) : 0;
  }
  return PP_OK;
}

/// dims T n first V: columns [first, first + n) of V; those from V on are padding, which counts nowhere.
template <class E> pp_status_t cross_entropy_stats(const PreparedOp &op, void *const *arguments) {
  return op.logitCap() > 0 ? statsOfRows<E, true>(op, arguments) : statsOfRows<E, false>(op, arguments);
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
  double loss = 0, squares = 0, *losses = out<double>(arguments[4]);
  const float *weights = in<float>(arguments[5]);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const A *stats = in<A>(arguments[0]) + 3 * t;
    if (in<int32_t>(arguments[1])[t] < 0)
      continue;
    const double mine = double(stats[0] - stats[2]) + double(logarithm(stats[1])),
                 lse = double(stats[0]) + double(logarithm(stats[1])), weight = weightOf(weights, t);
    loss += weight * mine;
    squares += weight * (lse * lse);
    if (losses)
      losses[t] = mine;
  }
  writeLoss(op, *in<OptimizerScalars>(arguments[3]), loss, squares, out<A>(arguments[2]));
  return PP_OK;
}

template <class E, bool Capped> pp_status_t slopesOfShard(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t n = op.dims[1], first = op.dims[2], exist = std::min(n, op.dims[3] - first);
  const OptimizerScalars &scalars = *in<OptimizerScalars>(arguments[4]);
  const double whole = lossFactor(op, scalars) * scalars.lossScale;
  const float *weights = in<float>(arguments[5]);
  LogitCap<Capped, A> cap(op);
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
    const double lse = double(stats[0]) + double(logarithm(stats[1]));
    const A scale = A(whole * weightOf(weights, t));
    A largest = stats[0], factor = scale * A(slopeOfLse(op.zLoss(), lse)) / stats[1];
    bool here = target >= first && target < first + n;
    A logit = here ? cap(get(z, target - first)) : 0;
    A share = here ? factor * exponential(logit - largest) : 0;
#pragma omp simd
    for (int64_t i = 0; i < exist; ++i) {
      A mine = cap(get(z, i)), slope = factor * exponential(mine - largest);
      put(dz, i, Capped ? slope * cap.slope(mine) : slope);
    }
    memset(dz + exist, 0, size_t(n - exist) * sizeof(E));
    if (here)
      put(dz, target - first, Capped ? (share - scale) * cap.slope(logit) : share - scale);
  }
  return PP_OK;
}

/// dims T n first V; stats are the merged ones.
template <class E> pp_status_t cross_entropy_dz(const PreparedOp &op, void *const *arguments) {
  return op.logitCap() > 0 ? slopesOfShard<E, true>(op, arguments) : slopesOfShard<E, false>(op, arguments);
}

} // namespace

#endif // PP_RUNTIME_KERNELS_CROSSENTROPY_H
