// Chunks of keys as kernels take them: a list by value, and the walk over their tiles that a run of queries sees.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_KEYLISTS_H
#define PP_RUNTIME_SIMT_KEYLISTS_H

#include "runtime/files/Philox.h"
#include "runtime/simt/Launch.h"

namespace pp {

/// What one call takes; a kernel's parameters hold 32 KB.
constexpr int mostChunks = 256;

struct KeyChunk {
  const void *k, *v;
  void *dk, *dv;
  int length;
  int lead; ///< where the queries begin, counted from the chunk's first key; negative if they come first
};

/// One call of attention or of its backward. Row t of head h of q is at ((batch * s + t) * heads + h) * d, row j of
/// group g of a chunk at ((batch * length + j) * groups + g) * d, a statistic at (batch * heads + h) * s + t.
struct AttentionCall {
  const void *q, *dout;
  void *o, *dq;
  void *lse;
  const void *delta;
  int batch, s, heads, groups, d, count, position;
  bool causal;
  bool wide;       ///< rows are whole packs of 16 bytes, aligned
  bool adds;       ///< to dq
  bool sums;       ///< dk, dv in acc
  bool addsToKeys; ///< to dk, dv, in acc
  double scale, softcap;
  int window;            ///< 0: none
  const int32_t *starts; ///< [batch, s]; null: every row is one document
  const int32_t *rows;   ///< [batch, s]: the number of each query's sequence in the run; null: no dropout
  const OptimizerScalars *scalars;
  double rate;
  int64_t whole;       ///< the length of a sequence, of which this call may have a slice
  int site, firstHead; ///< of the dropout; of all devices' heads
  KeyChunk chunks[mostChunks];

  PP_DEVICE int share() const { return heads / groups; }
  PP_DEVICE int64_t query(int b, int t, int head) const { return ((int64_t(b) * s + t) * heads + head) * d; }
  PP_DEVICE int64_t statistic(int b, int t, int head) const { return (int64_t(b) * heads + head) * s + t; }
  PP_DEVICE int64_t key(int chunk, int b, int j, int group) const {
    return ((int64_t(b) * chunks[chunk].length + j) * groups + group) * d;
  }
  /// How many keys of the chunk the queries before `end` see.
  PP_DEVICE int keysBefore(int chunk, int end) const {
    int length = chunks[chunk].length, keys = causal ? end + chunks[chunk].lead : length;
    return keys < 0 ? 0 : keys < length ? keys : length;
  }
  PP_DEVICE bool isBounded() const { return window || starts; }
  /// The first key that query t sees, counted from the chunk's first one; it never falls from a query to the next.
  PP_DEVICE int lowest(int chunk, int b, int t) const {
    int lead = chunks[chunk].lead, low = window ? t + lead - window + 1 : lead - position;
    int start = starts ? starts[int64_t(b) * s + (t < s ? t : s - 1)] + lead - position : low;
    return start > low ? start : low;
  }
  PP_DEVICE bool sees(int chunk, int b, int t, int j) const {
    return j < chunks[chunk].length && (!causal || j <= t + chunks[chunk].lead) &&
           (!isBounded() || j >= lowest(chunk, b, t));
  }
  /// Moves to the first tile, here or later, that one of the queries from `first` to `end` sees; false when there is
  /// none.
  PP_DEVICE bool seek(int &chunk, int &key, int b, int first, int end) const {
    for (; chunk < count; ++chunk, key = 0) {
      int low = isBounded() ? lowest(chunk, b, first) : 0;
      key = key < low ? low : key;
      if (key < keysBefore(chunk, end))
        return true;
    }
    return false;
  }
  /// Whether a bound hides keys from `key` on from one of the queries before `end`.
  PP_DEVICE bool hides(int chunk, int b, int key, int end) const {
    return isBounded() && key < lowest(chunk, b, end - 1);
  }
  /// The query from `first` on with which those end that see a key before `end` of the chunk.
  PP_DEVICE int queriesUpTo(int chunk, int b, int first, int end) const {
    if (!isBounded())
      return s;
    int last = s; // the first query whose lowest key is behind them, by halves
    while (first < last) {
      int middle = (first + last) / 2;
      if (lowest(chunk, b, middle) < end)
        first = middle + 1;
      else
        last = middle;
    }
    return last;
  }
  /// A score under the cap.
  template <class A> PP_DEVICE A capped(A score) const {
    return softcap > 0 ? A(softcap) * hyperbolicTangent(score / A(softcap)) : score;
  }
  /// The derivative of capping, by the capped score.
  template <class A> PP_DEVICE A slopeOfCap(A score) const {
    return softcap > 0 ? 1 - score / A(softcap) * (score / A(softcap)) : A(1);
  }
  /// The chunk and tile of keys with this number, counting tiles of `size` through the list.
  PP_DEVICE void tile(int number, int size, int &chunk, int &key) const {
    for (chunk = 0; chunk < count; ++chunk) {
      int tiles = (chunks[chunk].length + size - 1) / size;
      if (number < tiles)
        break;
      number -= tiles;
    }
    key = number * size;
  }
};

/// Dropout of one head of a sequence: what the weight of a pair is multiplied by. A pair's word is that of
/// runtime/kernels/AttentionShape.h.
template <class A> struct PairDropout {
  DropoutMask mask;
  int64_t head, whole;
  int32_t row;
  int position;
  A growth;
  PP_DEVICE PairDropout(const AttentionCall &n, int b, int head)
      : mask(n.scalars->seed, n.site, n.scalars->holds ? 0 : n.rate), head((n.firstHead + head) * n.whole),
        whole(n.whole), row(n.rows[int64_t(b) * n.s]), position(n.position),
        growth(n.scalars->holds ? A(1) : A(1 / (1 - n.rate))) {}
  PP_DEVICE int64_t place(int t, int lead, int j) const {
    return (head + position + t) * whole + (position - lead + j);
  }
  /// Of query t and key j of the chunk.
  PP_DEVICE A factor(int t, int lead, int j) const {
    int64_t at = place(t, lead, j);
    return mask.words(at / 4, row).v[at % 4] >= mask.threshold ? growth : A(0);
  }
  /// Multiplies the weights of keys j and j + 1, which mostly share a counter.
  PP_DEVICE void apply(int t, int lead, int j, A &first, A &second) const {
    int64_t at = place(t, lead, j);
    Words words = mask.words(at / 4, row);
    first *= words.v[at % 4] >= mask.threshold ? growth : A(0);
    if (at % 4 == 3)
      words = mask.words(at / 4 + 1, row);
    second *= words.v[(at + 1) % 4] >= mask.threshold ? growth : A(0);
  }
};
/// In the place of it where nothing is dropped.
struct NoDropout {
  PP_DEVICE NoDropout(const AttentionCall &, int, int) {}
};
template <class A, bool Drops> using DropoutIf = std::conditional_t<Drops, PairDropout<A>, NoDropout>;

inline int64_t tilesOf(const PreparedOp &op, int64_t size) {
  int64_t tiles = 0;
  for (int64_t i = 0; i < op.chunkCount; ++i)
    tiles += blocksFor(op.chunks[i].length, size);
  return tiles;
}

/// `kv` and `dkv` are the C ABI's lists; null what the call has not. `scalars` are the rank's.
AttentionCall attentionCall(const PreparedOp &op, const void *kv, void *dkv, const void *scalars, int64_t elementBytes);

} // namespace pp

#endif // PP_RUNTIME_SIMT_KEYLISTS_H
