// What joins partial attentions, or an attention and its sinks, to one, and the row sums that all backwards share.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_MERGEATTENTION_H
#define PP_RUNTIME_KERNELS_MERGEATTENTION_H

#include "runtime/kernels/AttentionShape.h"

namespace {
using namespace pp;

/// Weights e^(lse_a - L) of a row's parts; gives L. A part that saw no key has weight 0, and so have all if none did.
template <class A> A mergeWeights(const void *parts, int64_t count, int64_t row, A *weights) {
  A largest = -A(__builtin_inf()), total = 0;
  for (int64_t i = 0; i < count; ++i) {
    A lse = inList<A>(parts, 2 * i + 1)[row];
    largest = lse > largest ? lse : largest;
  }
  for (int64_t i = 0; i < count; ++i) {
    A lse = inList<A>(parts, 2 * i + 1)[row];
    weights[i] = lse > -A(__builtin_inf()) ? exponential(lse - largest) : 0;
    total += weights[i];
  }
  for (int64_t i = 0; i < count && total > 0; ++i)
    weights[i] /= total;
  return largest + logarithm(total);
}

/// dims b s H d parts. A row is read from all parts before it is written: the result may lie on the first part.
template <class E> pp_status_t attention_merge(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t s = op.dims[1], heads = op.dims[2], d = op.dims[3], count = op.dims[4];
  A *sum = reinterpret_cast<A *>(op.scratch), *weights = sum + d;
  for (int64_t b = 0; b < op.dims[0]; ++b)
    for (int64_t t = 0; t < s; ++t)
      for (int64_t head = 0; head < heads; ++head) {
        int64_t at = ((b * s + t) * heads + head) * d, row = (b * heads + head) * s + t;
        out<A>(arguments[2])[row] = mergeWeights<A>(arguments[0], count, row, weights);
        memset(sum, 0, size_t(d) * sizeof(A));
        for (int64_t i = 0; i < count; ++i) {
          const E *part = inList<E>(arguments[0], 2 * i) + at;
#pragma omp simd
          for (int64_t c = 0; c < d; ++c)
            sum[c] += weights[i] * get(part, c);
        }
#pragma omp simd
        for (int64_t c = 0; c < d; ++c)
          put(out<E>(arguments[1]) + at, c, sum[c]);
      }
  return PP_OK;
}

/// dims b s H d.
template <class E> pp_status_t attention_delta(const PreparedOp &op, void *const *arguments) {
  int64_t s = op.dims[1], heads = op.dims[2], d = op.dims[3];
  for (int64_t b = 0; b < op.dims[0]; ++b)
    for (int64_t t = 0; t < s; ++t)
      for (int64_t head = 0; head < heads; ++head) {
        int64_t at = ((b * s + t) * heads + head) * d;
        out<Acc<E>>(arguments[2])[(b * heads + head) * s + t] =
            dotRows<E>(in<E>(arguments[0]) + at, in<E>(arguments[1]) + at, d);
      }
  return PP_OK;
}

/// dims b s H d. The log-sum-exp that the row had is read before the new one is written.
template <class E> pp_status_t sink(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t s = op.dims[1], heads = op.dims[2], d = op.dims[3];
  for (int64_t b = 0; b < op.dims[0]; ++b)
    for (int64_t t = 0; t < s; ++t)
      for (int64_t head = 0; head < heads; ++head) {
        int64_t at = ((b * s + t) * heads + head) * d, row = (b * heads + head) * s + t;
        A lse = in<A>(arguments[1])[row], score = get(in<E>(arguments[2]), head), most = lse > score ? lse : score;
        A whole = most + logarithm(exponential(lse - most) + exponential(score - most)),
          share = exponential(lse - whole);
        out<A>(arguments[4])[row] = whole;
        const E *x = in<E>(arguments[0]) + at;
        E *y = out<E>(arguments[3]) + at;
#pragma omp simd
        for (int64_t c = 0; c < d; ++c)
          put(y, c, share * get(x, c));
      }
  return PP_OK;
}

/// dims b s H.
template <class E> pp_status_t sink_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t s = op.dims[1], heads = op.dims[2];
  for (int64_t head = 0; head < heads; ++head) {
    A score = get(in<E>(arguments[0]), head), sum = 0;
    for (int64_t b = 0; b < op.dims[0]; ++b)
      for (int64_t t = 0; t < s; ++t) {
        int64_t row = (b * heads + head) * s + t;
        sum -= exponential(score - in<A>(arguments[1])[row]) * in<A>(arguments[2])[row];
      }
    out<A>(arguments[3])[head] = sum;
  }
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_MERGEATTENTION_H
