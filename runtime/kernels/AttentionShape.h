// Where the rows of a head lie in q, k and v, and the dot product of two rows: what both attentions share.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H
#define PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H

#include "runtime/kernels/Element.h"

namespace {
using namespace pp;

/// dims b s H G d, and where a head's rows lie: row t of head h of q is at (batch * s + t) * H * d + h * d.
struct AttentionShape {
  int64_t batch, s, heads, groups, d;
  bool causal;
  explicit AttentionShape(const PreparedOp &op)
      : batch(op.dims[0]), s(op.dims[1]), heads(op.dims[2]), groups(op.dims[3]), d(op.dims[4]), causal(op.has(Causal)) {
  }
  int64_t query(int64_t b, int64_t t, int64_t head) const { return ((b * s + t) * heads + head) * d; }
  int64_t key(int64_t b, int64_t t, int64_t group) const { return ((b * s + t) * groups + group) * d; }
  int64_t keysOf(int64_t t) const { return causal ? t + 1 : s; }
};

template <class E> PP_INLINE Acc<E> dotRows(const E *x, const E *y, int64_t d) {
  Acc<E> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < d; ++c)
    sum += get(x, c) * get(y, c);
  return sum;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H
