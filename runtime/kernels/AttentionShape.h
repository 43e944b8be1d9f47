// Which keys a run of queries attends, where the rows of a head lie, and the dot product: what both attentions share.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H
#define PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H

#include "runtime/kernels/Element.h"

namespace {
using namespace pp;

/// dims b s H G d, and where a head's rows lie: row t of head h of q is at (batch * s + t) * H * d + h * d. Keys come
/// in chunks, each a tensor of its own; which of them a query sees follows from positions in the whole sequence.
struct AttentionShape {
  int64_t batch, s, heads, groups, d, position, count;
  const Chunk *chunks;
  bool causal;
  explicit AttentionShape(const PreparedOp &op)
      : batch(op.dims[0]), s(op.dims[1]), heads(op.dims[2]), groups(op.dims[3]), d(op.dims[4]), position(op.dims[5]),
        count(op.chunkCount), chunks(op.chunks), causal(op.has(Causal)) {}
  /// Query heads of a kv head.
  int64_t share() const { return heads / groups; }
  int64_t query(int64_t b, int64_t t, int64_t head) const { return ((b * s + t) * heads + head) * d; }
  int64_t key(const Chunk &chunk, int64_t b, int64_t t, int64_t group) const {
    return ((b * chunk.length + t) * groups + group) * d;
  }
  int64_t statistic(int64_t b, int64_t t, int64_t head) const { return (b * heads + head) * s + t; }
  /// Where the queries begin, counted from the chunk's first key; negative if they come first.
  int64_t lead(const Chunk &chunk) const { return position - chunk.position; }
  /// How many keys of the chunk the queries before `end` see.
  int64_t keysBefore(const Chunk &chunk, int64_t end) const {
    int64_t keys = causal ? end + lead(chunk) : chunk.length;
    return keys < 0 ? 0 : keys < chunk.length ? keys : chunk.length;
  }
  int64_t longest() const {
    int64_t most = 0;
    for (int64_t i = 0; i < count; ++i)
      most = chunks[i].length > most ? chunks[i].length : most;
    return most;
  }
  int64_t allKeys() const {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; ++i)
      sum += chunks[i].length;
    return sum;
  }
};

/// Tensor number i of a list of addresses, an argument of its own.
template <class E> PP_INLINE const E *inList(const void *list, int64_t i) {
  return static_cast<const E *>(static_cast<const void *const *>(list)[i]);
}
template <class E> PP_INLINE E *outList(const void *list, int64_t i) {
  return static_cast<E *>(static_cast<void *const *>(list)[i]);
}

template <class E> PP_INLINE Acc<E> dotRows(const E *x, const E *y, int64_t d) {
  Acc<E> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < d; ++c)
    sum += get(x, c) * get(y, c);
  return sum;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H
