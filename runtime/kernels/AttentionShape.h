// Which keys a run of queries attends, where the rows of a head lie, and the dot product: what both attentions share.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H
#define PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H

#include "runtime/kernels/Element.h"

namespace {
using namespace pp;

/// dims b s H G d, and where a head's rows lie: row t of head h of q is at (batch * s + t) * H * d + h * d. Keys come
/// in chunks, each a tensor of its own; which of them a query sees follows from positions in the whole sequence.
///
/// Query t sees key j, both counted from the chunk's first key, if j <= t where causal, and if no bound from below
/// hides it: a window of w keys, or the first token of the query's document. That bound never falls from a query to the
/// next.
struct AttentionShape {
  int64_t batch, s, heads, groups, d, position, count, window;
  const Chunk *chunks;
  bool causal;
  double root, softcap;            ///< scores are divided by the root; capped unless softcap is 0
  const int32_t *starts = nullptr; ///< [b, s]: where in the sequence the query's document begins
  explicit AttentionShape(const PreparedOp &op)
      : batch(op.dims[0]), s(op.dims[1]), heads(op.dims[2]), groups(op.dims[3]), d(op.dims[4]), position(op.dims[5]),
        count(op.chunkCount), window(int64_t(op.params[0])), chunks(op.chunks), causal(op.has(Causal)),
        root(op.params[1] > 0 ? 1 / op.params[1] : squareRoot(double(op.dims[4]))), softcap(op.params[2]) {}
  /// `kv` is the list that the op is called with: behind the chunks it has the starts of documents, if there are any.
  AttentionShape(const PreparedOp &op, const void *kv) : AttentionShape(op) {
    if (op.has(Documents))
      starts = static_cast<const int32_t *>(static_cast<const void *const *>(kv)[2 * count]);
  }
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
  bool isBounded() const { return window > 0 || starts; }
  /// The first key that query t sees, counted from the chunk's first one: negative before it, or behind its last one.
  int64_t lowest(const Chunk &chunk, int64_t b, int64_t t) const {
    int64_t low = window > 0 ? position + t - window + 1 : 0, start = starts ? starts[b * s + t] : 0;
    return (low > start ? low : start) - chunk.position;
  }
  /// The same within the chunk; 0 for queries that only `causal` bounds.
  int64_t keysFrom(const Chunk &chunk, int64_t b, int64_t t) const {
    int64_t low = isBounded() ? lowest(chunk, b, t) : 0;
    return low < 0 ? 0 : low < chunk.length ? low : chunk.length;
  }
  /// Whether some query sees a key of the chunk.
  bool reaches(const Chunk &chunk, int64_t b) const { return keysFrom(chunk, b, 0) < keysBefore(chunk, s); }
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
