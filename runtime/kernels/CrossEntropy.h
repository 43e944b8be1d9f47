// Losses: cross-entropy of whole rows in one pass, or of shards through their statistics; and formulas of tokens.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   shard 0   shard 1  ..      stats: (max, sum of exp(z - max), target's logit or 0) of each row and shard
//   [z ....][z ....]           merge: the same three of all shards, in the order of the parts: deterministic
//      stats --+-- merge       loss:  sum of max + log(sum) - logit
//   dz of each shard from z and the merged three
//
//   z --token_stats--> lse, mean under softmax(z), mean, picked columns --formula--> v --token_mean--> loss
//   dz <--token_stats_bwd-- gradients of these                        <--formula-- dv <--token_mean_bwd--
//   [z ....][z ....] --token_shard--> the same side by side --token_merge--> of all shards --token_rows--> each alone
#ifndef PP_RUNTIME_KERNELS_CROSSENTROPY_H
#define PP_RUNTIME_KERNELS_CROSSENTROPY_H

#include "runtime/kernels/AttentionShape.h"
#include <algorithm>
#include <limits>

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

template <class A> constexpr A minusInfinity = -std::numeric_limits<A>::infinity();

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

//===-- Formulas of tokens --------------------------------------------------------------------------------------===//

/// Of n capped logits: log(sum(e^z)), their mean under softmax(z), and their sum. Logits of minus infinity have no part
/// in the mean; where all are, it is 0.
template <class A> struct LogitSums {
  A lse, meanOfPowers, all;
  A largest, log; ///< lse is their sum
};
template <class E, bool Capped>
PP_INLINE LogitSums<Acc<E>> sumsOfLogits(const E *z, int64_t n, LogitCap<Capped, Acc<E>> cap) {
  using A = Acc<E>;
  const A largest = cap(largestOf<E>(z, n));
  if (largest == minusInfinity<A>)
    return {largest, 0, largest, largest, 0};
  A sum = 0, below = 0, all = 0;
#pragma omp simd reduction(+ : sum, below, all)
  for (int64_t i = 0; i < n; ++i) {
    A logit = cap(get(z, i)), less = logit - largest, power = exponential(less);
    sum += power;
    below += less == minusInfinity<A> ? A(0) : power * less;
    all += logit;
  }
  const A log = logarithm(sum);
  return {largest + log, largest + below / sum, all, largest, log};
}

template <class E, bool Capped> pp_status_t tokenStatsOfRows(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int64_t n = op.dims[1], k = op.dims[2];
  double *losses = out<double>(arguments[7]);
  A *lse = out<A>(arguments[3]), *meanOfPowers = out<A>(arguments[4]), *mean = out<A>(arguments[5]);
  LogitCap<Capped, A> cap(op);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *z = in<E>(arguments[0]) + t * n;
    const int32_t target = in<int32_t>(arguments[1])[t], *ids = in<int32_t>(arguments[2]) + t * k;
    A *picks = out<A>(arguments[6]) + t * k;
    if (target >= n)
      return PP_INVALID;
    if (target < 0) {
      lse[t] = meanOfPowers[t] = mean[t] = 0;
      memset(picks, 0, size_t(k) * sizeof(A));
      continue;
    }
    const LogitSums<A> sums = sumsOfLogits<E>(z, n, cap);
    lse[t] = sums.lse;
    meanOfPowers[t] = sums.meanOfPowers;
    mean[t] = sums.all / A(n);
    for (int64_t j = 0; j < k; ++j) {
      if (ids[j] >= n)
        return PP_INVALID;
      picks[j] = ids[j] < 0 ? A(0) : cap(get(z, ids[j]));
    }
    if (losses)
      losses[t] = double(sums.largest - picks[0]) + double(sums.log);
  }
  return PP_OK;
}

/// dims T V k.
template <class E> pp_status_t token_stats(const PreparedOp &op, void *const *arguments) {
  return op.logitCap() > 0 ? tokenStatsOfRows<E, true>(op, arguments) : tokenStatsOfRows<E, false>(op, arguments);
}

template <class E, bool Capped> pp_status_t statsOfShard(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int64_t n = op.dims[1], first = op.dims[2], vocabulary = op.dims[3], k = op.dims[4];
  const int64_t here = std::min(n, vocabulary - first);
  LogitCap<Capped, A> cap(op);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *z = in<E>(arguments[0]) + t * n;
    const int32_t target = in<int32_t>(arguments[1])[t], *ids = in<int32_t>(arguments[2]) + t * k;
    A *stats = out<A>(arguments[3]) + t * (3 + k);
    if (target >= vocabulary)
      return PP_INVALID;
    if (target < 0) {
      memset(stats, 0, size_t(3 + k) * sizeof(A));
      continue;
    }
    const LogitSums<A> sums = sumsOfLogits<E>(z, here, cap);
    stats[0] = sums.lse, stats[1] = sums.meanOfPowers, stats[2] = sums.all / A(vocabulary);
    for (int64_t j = 0; j < k; ++j) {
      if (ids[j] >= vocabulary)
        return PP_INVALID;
      stats[3 + j] = ids[j] >= first && ids[j] < first + here ? cap(get(z, ids[j] - first)) : A(0);
    }
  }
  return PP_OK;
}

/// dims T n first V k: columns [first, first + n) of V; those from V on are padding, which counts nowhere.
template <class E> pp_status_t token_shard(const PreparedOp &op, void *const *arguments) {
  return op.logitCap() > 0 ? statsOfShard<E, true>(op, arguments) : statsOfShard<E, false>(op, arguments);
}

/// dims T parts width. The result may lie on the first part.
template <class E> pp_status_t token_merge(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int64_t width = op.dims[2];
  for (int64_t row = 0; row < width * op.dims[0]; row += width) {
    A largest = inList<A>(arguments[0], 0)[row], sum = 0, mean = 0;
    for (int64_t i = 1; i < op.dims[1]; ++i)
      largest = std::max(largest, inList<A>(arguments[0], i)[row]);
    auto shareOf = [&](int64_t i, A of) { // nothing of a part all of whose logits are minus infinity
      const A lse = inList<A>(arguments[0], i)[row];
      return lse == minusInfinity<A> ? A(0) : exponential(lse - of);
    };
    for (int64_t i = 0; i < op.dims[1]; ++i)
      sum += shareOf(i, largest);
    const A lse = largest == minusInfinity<A> ? largest : largest + logarithm(sum);
    for (int64_t i = 0; i < op.dims[1]; ++i)
      mean += shareOf(i, lse) * inList<A>(arguments[0], i)[row + 1];
    A *stats = out<A>(arguments[1]) + row;
    for (int64_t j = 2; j < width; ++j) {
      A all = 0;
      for (int64_t i = 0; i < op.dims[1]; ++i)
        all += inList<A>(arguments[0], i)[row + j];
      stats[j] = all;
    }
    stats[0] = lse, stats[1] = mean;
  }
  return PP_OK;
}

/// dims T k.
template <class E> pp_status_t token_rows(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int64_t k = op.dims[1];
  double *losses = out<double>(arguments[6]);
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const A *stats = in<A>(arguments[0]) + t * (3 + k);
    const bool has = in<int32_t>(arguments[1])[t] >= 0;
    for (int64_t i = 0; i < 3; ++i)
      out<A>(arguments[2 + i])[t] = has ? stats[i] : A(0);
    for (int64_t j = 0; j < k; ++j)
      out<A>(arguments[5])[t * k + j] = has ? stats[3 + j] : A(0);
    if (losses && has)
      losses[t] = double(stats[0]) - double(stats[3]);
  }
  return PP_OK;
}

/// A column that was picked twice has both gradients; each is rounded once, with what it has as any column.
template <class E, bool Capped> pp_status_t slopesOfTokens(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int64_t n = op.dims[1], k = op.dims[2], first = op.dims[3], here = std::min(n, op.dims[4] - first);
  LogitCap<Capped, A> cap(op);
  A picked[mostPicks];
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *z = in<E>(arguments[0]) + t * n;
    const int32_t target = in<int32_t>(arguments[1])[t], *ids = in<int32_t>(arguments[2]) + t * k;
    const A lse = in<A>(arguments[3])[t], slope = in<A>(arguments[6])[t];
    const A power = in<A>(arguments[5])[t] + slope * (A(1) - in<A>(arguments[4])[t]),
            every = in<A>(arguments[7])[t] / A(op.dims[4]), *dpicks = in<A>(arguments[8]) + t * k;
    E *dz = out<E>(arguments[9]) + t * n;
    if (target < 0) {
      memset(dz, 0, size_t(n) * sizeof(E));
      continue;
    }
    auto slopeOf = [&](A logit, A more) __attribute__((always_inline)) {
      A its = logit == minusInfinity<A> ? A(0) : exponential(logit - lse) * (power + slope * logit);
      its += every + more;
      return Capped ? its * cap.slope(logit) : its;
    };
    auto isHere = [&](int64_t id) { return id >= first && id < first + here; };
    for (int64_t j = 0; j < k; ++j)
      picked[j] = isHere(ids[j]) ? cap(get(z, ids[j] - first)) : A(0);
#pragma omp simd
    for (int64_t i = 0; i < here; ++i)
      put(dz, i, slopeOf(cap(get(z, i)), A(0)));
    memset(dz + here, 0, size_t(n - here) * sizeof(E));
    for (int64_t j = 0; j < k; ++j) {
      A more = 0;
      for (int64_t i = 0; i < k; ++i)
        more += ids[i] == ids[j] ? dpicks[i] : A(0);
      if (isHere(ids[j]))
        put(dz, ids[j] - first, slopeOf(picked[j], more));
    }
  }
  return PP_OK;
}

/// dims T n k first V; dz may lie on z.
template <class E> pp_status_t token_stats_bwd(const PreparedOp &op, void *const *arguments) {
  return op.logitCap() > 0 ? slopesOfTokens<E, true>(op, arguments) : slopesOfTokens<E, false>(op, arguments);
}

/// Calls `use(begin, end)` for the tokens of each segment: side by side in a row, with one start.
template <class Use> void forSegments(const PreparedOp &op, const int32_t *starts, Use use) {
  const int64_t whole = op.dims[3], tokens = op.dims[0] / op.dims[1] * whole;
  for (int64_t begin = 0, end = 1; begin < tokens; begin = end++) {
    const int64_t row = begin - begin % whole + whole;
    while (end < row && starts[end] == starts[begin])
      ++end;
    use(begin, end);
  }
}

/// Where a token of the whole rows lies among the own ones; -1: it is another device's.
inline int64_t ownPlace(const PreparedOp &op, int64_t t) {
  const int64_t whole = op.dims[3], own = op.rowAt(t % whole, op.dims[1], op.dims[2]);
  return own < 0 ? own : t / whole * op.dims[1] + own;
}

/// dims T S first whole.
template <class E> pp_status_t segment_sum(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *v = in<A>(arguments[0]);
  const int32_t *targets = in<int32_t>(arguments[1]);
  A *y = out<A>(arguments[3]);
  forSegments(op, in<int32_t>(arguments[2]), [&](int64_t begin, int64_t end) {
    double sum = 0, count = 0;
    for (int64_t t = begin; t < end; ++t)
      if (targets[t] >= 0)
        sum += double(v[t]), ++count;
    for (int64_t t = begin; t < end; ++t)
      if (const int64_t own = ownPlace(op, t); own >= 0)
        y[own] = targets[t] < 0 ? A(0) : A(op.has(Mean) ? sum / count : sum);
  });
  return PP_OK;
}

/// Calls `use(t)` for the own tokens that count: those with a target, or the first of these of each segment.
template <class Use> void forCounted(const PreparedOp &op, const int32_t *targets, const int32_t *starts, Use use) {
  if (starts)
    return forSegments(op, starts, [&](int64_t begin, int64_t end) {
      while (begin < end && targets[begin] < 0)
        ++begin;
      if (const int64_t own = begin < end ? ownPlace(op, begin) : -1; own >= 0)
        use(own);
    });
  for (int64_t t = 0; t < op.dims[0]; ++t)
    if (targets[t] >= 0)
      use(t);
}

/// A segment counts once, whatever the weights of its targets are.
inline double weightOfToken(const float *weights, const int32_t *starts, int64_t t) {
  return starts ? 1 : weightOf(weights, t);
}

/// What stands where there is no target may be infinite, or no number.
template <class A>
void meanOfTokens(const PreparedOp &op, const void *v, const void *targets, const void *starts,
                  const OptimizerScalars &scalars, const float *weights, void *loss) {
  double sum = 0;
  forCounted(op, in<int32_t>(targets), in<int32_t>(starts),
             [&](int64_t t) { sum += weightOfToken(weights, in<int32_t>(starts), t) * double(in<A>(v)[t]); });
  out<A>(loss)[0] = A(lossFactor(op, scalars) * sum);
}

/// dims T S first whole.
template <class E> pp_status_t token_mean(const PreparedOp &op, void *const *arguments) {
  meanOfTokens<Acc<E>>(op, arguments[0], arguments[1], arguments[2], *in<OptimizerScalars>(arguments[4]),
                       in<float>(arguments[5]), arguments[3]);
  return PP_OK;
}

/// dims T S first whole; dv may lie on v.
template <class E> pp_status_t token_mean_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const OptimizerScalars &scalars = *in<OptimizerScalars>(arguments[5]);
  const float *weights = in<float>(arguments[6]);
  const int32_t *starts = in<int32_t>(arguments[2]);
  meanOfTokens<A>(op, arguments[0], arguments[1], starts, scalars, weights, arguments[4]);
  const double factor = lossFactor(op, scalars) * scalars.lossScale;
  A *dv = out<A>(arguments[3]);
  memset(dv, 0, size_t(op.dims[0]) * sizeof(A));
  forCounted(op, in<int32_t>(arguments[1]), starts,
             [&](int64_t t) { dv[t] = A(factor * weightOfToken(weights, starts, t)); });
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_CROSSENTROPY_H
