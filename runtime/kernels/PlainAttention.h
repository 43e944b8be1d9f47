// Attention one query at a time, in O(s) memory, for f64; what joins partial attentions, or one and its sinks; deltas.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_PLAINATTENTION_H
#define PP_RUNTIME_KERNELS_PLAINATTENTION_H

#include "runtime/kernels/AttentionShape.h"

namespace {
using namespace pp;

PP_INLINE void addScaled(double *sum, double factor, const double *x, int64_t d) {
#pragma omp simd
  for (int64_t c = 0; c < d; ++c)
    sum[c] += factor * x[c];
}

/// A score under the cap, if there is one.
PP_INLINE double cappedScore(const AttentionShape &shape, double score) {
  return shape.softcap > 0 ? shape.softcap * hyperbolicTangent(score / shape.softcap) : score;
}

/// Scores of one query into `scores`; gives their maximum, -inf without keys.
inline double plainScores(const AttentionShape &shape, const double *q, const void *kv, int64_t b, int64_t group,
                          int64_t t, double *scores) {
  double largest = -__builtin_inf(), scale = 1 / shape.root;
  for (int64_t i = 0; i < shape.count; ++i) {
    const double *k = inList<double>(kv, 2 * i) + shape.key(shape.chunks[i], b, 0, group);
    int64_t begin = shape.keysFrom(shape.chunks[i], b, t), end = shape.keysBefore(shape.chunks[i], t + 1);
    for (int64_t j = begin; j < end; ++j, ++scores) {
      *scores = cappedScore(shape, scale * dotRows<double>(q, k + j * shape.keyStride, shape.d));
      largest = *scores > largest ? *scores : largest;
    }
  }
  return largest;
}

inline pp_status_t plainAttention(const PreparedOp &op, void *const *arguments) {
  AttentionShape shape(op, arguments[1], arguments[4]);
  double *scores = reinterpret_cast<double *>(op.scratch), *sum = scores + shape.allKeys();
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t head = 0; head < shape.heads; ++head)
      for (int64_t row = 0; row < shape.rowsOfSequence; ++row) {
        int64_t t = row % shape.s;
        shape.turnTo(row / shape.s);
        int64_t group = head / shape.share(), at = shape.output(b, t, head);
        const double *q = in<double>(arguments[0]) + shape.query(b, t, head);
        double largest = plainScores(shape, q, arguments[1], b, group, t, scores);
        double total = 0;
        const double *score = scores;
        memset(sum, 0, size_t(shape.d) * sizeof(double));
        for (int64_t i = 0; i < shape.count; ++i) {
          const double *v = inList<double>(arguments[1], 2 * i + 1) + shape.key(shape.chunks[i], b, 0, group);
          int64_t begin = shape.keysFrom(shape.chunks[i], b, t), end = shape.keysBefore(shape.chunks[i], t + 1);
          PairDropout dropout = shape.dropout(shape.chunks[i], b, head);
          for (int64_t j = begin; j < end; ++j) {
            double weight = exponential(*score++ - largest);
            total += weight;
            addScaled(sum, weight * dropout.factor(t, j), v + j * shape.keyStride, shape.d);
          }
        }
        for (int64_t c = 0; c < shape.d; ++c)
          out<double>(arguments[2])[at + c] = total > 0 ? sum[c] / total : 0;
        out<double>(arguments[3])[shape.statistic(b, t, head)] = largest + logarithm(total);
      }
  return PP_OK;
}

/// One query against one chunk; all sums go straight to where they belong.
inline void plainQueryBackward(const AttentionShape &shape, const Chunk &chunk, int64_t b, int64_t t, int64_t head,
                               void *const *arguments, int64_t i) {
  int64_t at = shape.query(b, t, head), row = shape.statistic(b, t, head), d = shape.d;
  const double *dout = in<double>(arguments[0]) + shape.output(b, t, head), *q = in<double>(arguments[1]) + at;
  double lse = in<double>(arguments[2])[row], delta = in<double>(arguments[3])[row],
         *dq = out<double>(arguments[5]) + at;
  double scale = 1 / shape.root;
  PairDropout dropout = shape.dropout(chunk, b, head);
  for (int64_t j = shape.keysFrom(chunk, b, t); j < shape.keysBefore(chunk, t + 1); ++j) {
    int64_t key = shape.key(chunk, b, j, head / shape.share());
    const double *k = inList<double>(arguments[4], 2 * i) + key, *v = inList<double>(arguments[4], 2 * i + 1) + key;
    double score = cappedScore(shape, scale * dotRows<double>(q, k, d));
    double weight = lse > -__builtin_inf() ? exponential(score - lse) : 0, factor = dropout.factor(t, j);
    double slope = scale * weight * (factor * dotRows<double>(dout, v, d) - delta);
    if (shape.softcap > 0)
      slope *= 1 - score / shape.softcap * (score / shape.softcap);
    addScaled(outList<double>(arguments[6], 2 * i) + key, slope, q, d);
    addScaled(outList<double>(arguments[6], 2 * i + 1) + key, factor * weight, dout, d);
    addScaled(dq, slope, k, d);
  }
}

inline pp_status_t plainAttentionBackward(const PreparedOp &op, void *const *arguments) {
  AttentionShape shape(op, arguments[4], arguments[8]);
  if (!op.has(Accumulate))
    memset(arguments[5], 0, size_t(shape.batch * shape.rowsOfSequence * shape.queryStride) * sizeof(double));
  for (int64_t i = 0; i < shape.count; ++i) {
    const Chunk &chunk = shape.chunks[i];
    for (int64_t part = 2 * i; part < 2 * i + 2 && !op.has(OpFlag(AccumulateKv | Packed)); ++part)
      memset(outList<double>(arguments[6], part), 0,
             size_t(shape.batch * chunk.length * shape.groups * shape.d) * sizeof(double));
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t head = 0; head < shape.heads; ++head)
        for (int64_t row = 0; row < shape.rowsOfSequence; ++row) {
          shape.turnTo(row / shape.s);
          plainQueryBackward(shape, chunk, b, row % shape.s, head, arguments, i);
        }
  }
  return PP_OK;
}

//===-- Of every type: merges, sinks, and the row sums that all backwards share ----------------------------------===//

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

#endif // PP_RUNTIME_KERNELS_PLAINATTENTION_H
