// Attention one query at a time, in O(s) memory: the f64 form, for finite differences and references.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_PLAINATTENTION_H
#define PP_RUNTIME_KERNELS_PLAINATTENTION_H

#include "runtime/kernels/AttentionShape.h"

namespace {
using namespace pp;

template <class A> int64_t plainAttentionBytes(const AttentionShape &shape) {
  return int64_t(sizeof(A)) * (2 * shape.s + 2 * shape.s * shape.d + shape.d);
}

template <class E> PP_INLINE void addScaled(Acc<E> *sum, Acc<E> factor, const E *x, int64_t d) {
#pragma omp simd
  for (int64_t c = 0; c < d; ++c)
    sum[c] += factor * get(x, c);
}

template <class E> pp_status_t plainAttention(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  AttentionShape shape(op);
  const E *q = in<E>(arguments[0]), *k = in<E>(arguments[1]), *v = in<E>(arguments[2]);
  E *o = out<E>(arguments[3]);
  A *lse = out<A>(arguments[4]);
  A *scores = reinterpret_cast<A *>(op.scratch), *sum = scores + shape.s;
  int64_t d = shape.d;
  A scale = A(1) / squareRoot(A(d));
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t head = 0; head < shape.heads; ++head)
      for (int64_t t = 0; t < shape.s; ++t) {
        int64_t group = head / (shape.heads / shape.groups), keys = shape.keysOf(t), at = shape.query(b, t, head);
        A largest = -__builtin_inf(), total = 0;
        for (int64_t j = 0; j < keys; ++j) {
          scores[j] = scale * dotRows<E>(q + at, k + shape.key(b, j, group), d);
          largest = scores[j] > largest ? scores[j] : largest;
        }
        memset(sum, 0, size_t(d) * sizeof(A));
        for (int64_t j = 0; j < keys; ++j) {
          A weight = exponential(scores[j] - largest);
          total += weight;
          addScaled<E>(sum, weight, v + shape.key(b, j, group), d);
        }
        for (int64_t c = 0; c < d; ++c)
          put(o + at, c, sum[c] / total);
        lse[(b * shape.heads + head) * shape.s + t] = largest + logarithm(total);
      }
  return PP_OK;
}

/// One query's part of the backward; dk, dv are the group's sums [s][d], dq is that query's.
template <class E> struct PlainQuery {
  const E *q, *k, *v, *o, *dout;
  Acc<E> lse;
  int64_t keys, stride;
};

template <class E>
PP_INLINE void plainQueryBackward(const PlainQuery<E> &p, Acc<E> *dq, Acc<E> *dk, Acc<E> *dv, int64_t d) {
  using A = Acc<E>;
  A scale = A(1) / squareRoot(A(d)), delta = dotRows<E>(p.dout, p.o, d);
  for (int64_t j = 0; j < p.keys; ++j) {
    A weight = exponential(scale * dotRows<E>(p.q, p.k + j * p.stride, d) - p.lse);
    A slope = scale * weight * (dotRows<E>(p.dout, p.v + j * p.stride, d) - delta);
    addScaled<E>(dv + j * d, weight, p.dout, d);
    addScaled<E>(dk + j * d, slope, p.q, d);
    addScaled<E>(dq, slope, p.k + j * p.stride, d);
  }
}

template <class E> pp_status_t plainAttentionBackward(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  AttentionShape shape(op);
  const E *dout = in<E>(arguments[0]), *q = in<E>(arguments[1]), *k = in<E>(arguments[2]), *v = in<E>(arguments[3]);
  const E *o = in<E>(arguments[4]);
  const A *lse = in<A>(arguments[5]);
  int64_t d = shape.d, s = shape.s, share = shape.heads / shape.groups;
  A *dk = reinterpret_cast<A *>(op.scratch), *dv = dk + s * d, *dq = dv + s * d;
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t group = 0; group < shape.groups; ++group) {
      memset(dk, 0, size_t(2 * s * d) * sizeof(A));
      for (int64_t head = group * share; head < (group + 1) * share; ++head)
        for (int64_t t = 0; t < s; ++t) {
          int64_t at = shape.query(b, t, head), base = shape.key(b, 0, group);
          memset(dq, 0, size_t(d) * sizeof(A));
          plainQueryBackward<E>({q + at, k + base, v + base, o + at, dout + at, lse[(b * shape.heads + head) * s + t],
                                 shape.keysOf(t), shape.groups * d},
                                dq, dk, dv, d);
          for (int64_t c = 0; c < d; ++c)
            put(out<E>(arguments[6]) + at, c, dq[c]);
        }
      for (int64_t t = 0; t < s; ++t)
        for (int64_t c = 0; c < d; ++c) {
          put(out<E>(arguments[7]) + shape.key(b, t, group), c, dk[t * d + c]);
          put(out<E>(arguments[8]) + shape.key(b, t, group), c, dv[t * d + c]);
        }
    }
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_PLAINATTENTION_H
