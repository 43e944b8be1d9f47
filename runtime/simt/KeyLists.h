// One call of attention as kernels take it: chunks of keys by value, and the walk over their tiles that queries see.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_KEYLISTS_H
#define PP_RUNTIME_SIMT_KEYLISTS_H

#include "runtime/files/Philox.h"
#include "runtime/simt/Launch.h"

namespace pp {

/// The most chunks of one call; a kernel's parameters hold 32 KB.
constexpr int mostChunks = 256;

struct KeyChunk {
  const void *k, *v;
  void *dk, *dv;
  int length;
  int position; ///< where its first key stands in the sequence
};

/// One call of attention or of its backward. Row t of head h of q is at ((batch * s + t) * heads + h) * d, row j of
/// group g of a chunk at ((batch * length + j) * groups + g) * d, a statistic at (batch * heads + h) * s + t.
///
/// Queries are one run of each sequence, or two (`Zigzag`) of `run` rows each, of which the second stands `apart` rows
/// further than right behind the first. A block has queries of one run.
struct AttentionCall {
  const void *q, *dout;
  void *o, *dq;
  void *lse;
  const void *delta;
  int batch, s, heads, groups, d, count, position, run, apart;
  int queryStride, keyStride; ///< from a row of q to the next one, and of k and v
  bool causal;
  bool wide;       ///< rows of q, k and v are whole packs of 16 bytes, aligned
  bool adds;       ///< to dq
  bool sums;       ///< dk, dv in acc
  bool addsToKeys; ///< to dk, dv, in acc
  double scale, softcap;
  /// Factors for kernels on tensor cores, whose scores have no scale yet: for slopes, and for powers of two. A capped
  /// score is fromCap * tanh(toCap * score); its derivative is 1 - bend * its square.
  float slopeScale, scaleInBits, toCap = 0, fromCap = 0, bend = 0;
  int window;            ///< 0: none
  const int32_t *starts; ///< [batch, s]; null: every row is one document
  const int32_t *rows;   ///< [batch, s]: the number of each query's sequence in the run; null: no dropout
  const OptimizerScalars *scalars;
  double rate;
  int64_t whole;       ///< the length of a sequence, of which this call may have a slice
  int site, firstHead; ///< of the dropout; of all devices' heads
  KeyChunk chunks[mostChunks];

  /// Whether the kernels for tensor cores serve that know neither odd rows nor a cap.
  bool isSimple() const { return wide && softcap <= 0; }
  PP_DEVICE int share() const { return heads / groups; }
  /// Of q and dq. / Of o and dout.
  PP_DEVICE int64_t query(int b, int t, int head) const { return (int64_t(b) * s + t) * queryStride + head * d; }
  PP_DEVICE int64_t output(int b, int t, int head) const { return ((int64_t(b) * s + t) * heads + head) * d; }
  PP_DEVICE int64_t statistic(int b, int t, int head) const { return (int64_t(b) * heads + head) * s + t; }
  PP_DEVICE int64_t key(int chunk, int b, int j, int group) const {
    return (int64_t(b) * chunks[chunk].length + j) * keyStride + group * d;
  }
  /// The position of row t in the sequence; rows behind the last one continue it.
  PP_DEVICE int placeOf(int t) const { return position + t + (t < run ? 0 : apart); }
  /// The same, counted from the chunk's first key: negative if the row comes first.
  PP_DEVICE int leadOf(int chunk, int t) const { return placeOf(t) - chunks[chunk].position; }
  /// The number of blocks of up to `size` queries.
  int64_t blocks(int64_t size) const { return s / run * blocksFor(run, size); }
  /// The queries of a block, from `first` to `end`.
  PP_DEVICE void queriesOf(int block, int size, int &first, int &end) const {
    int each = (run + size - 1) / size, begin = block < each ? 0 : run;
    first = begin + (block < each ? block : block - each) * size;
    end = first + size < begin + run ? first + size : begin + run;
  }
  /// The number of keys of the chunk that a run's queries before `end` see.
  PP_DEVICE int keysBefore(int chunk, int end) const {
    int length = chunks[chunk].length, keys = causal ? leadOf(chunk, end - 1) + 1 : length;
    return keys < 0 ? 0 : keys < length ? keys : length;
  }
  PP_DEVICE bool isBounded() const { return window || starts; }
  /// The first key that query t sees, counted from the chunk's first one; it never falls from a query to the next.
  PP_DEVICE int lowest(int chunk, int b, int t) const {
    int from = chunks[chunk].position, low = window ? leadOf(chunk, t) - window + 1 : -from;
    int start = starts ? starts[int64_t(b) * s + (t < s ? t : s - 1)] - from : low;
    return start > low ? start : low;
  }
  /// Query t sees the chunk's keys from `low` to `high`.
  PP_DEVICE void seenBy(int chunk, int b, int t, int &low, int &high) const {
    int length = chunks[chunk].length, lead = leadOf(chunk, t);
    low = isBounded() ? lowest(chunk, b, t) : 0;
    high = causal && lead < length ? lead + 1 : length;
  }
  PP_DEVICE bool sees(int chunk, int b, int t, int j) const {
    int low, high;
    seenBy(chunk, b, t, low, high);
    return j >= low && j < high;
  }
  /// Moves to the first tile, here or later, that one of a block's queries from `first` to `end` sees; false when
  /// there is none.
  PP_DEVICE bool seek(int &chunk, int &key, int b, int first, int end) const {
    for (; chunk < count; ++chunk, key = 0) {
      int low = isBounded() ? lowest(chunk, b, first) : 0;
      key = key < low ? low : key;
      if (key < keysBefore(chunk, end))
        return true;
    }
    return false;
  }
  /// Whether a bound hides keys from `key` on from one of the block's queries before `end`.
  PP_DEVICE bool hides(int chunk, int b, int key, int end) const {
    return isBounded() && key < lowest(chunk, b, end - 1);
  }
  /// The query of one run, from `first` on and before `last`, with which those end that see a key before `end`.
  PP_DEVICE int queriesUpTo(int chunk, int b, int first, int last, int end) const {
    if (!isBounded())
      return last;
    while (first < last) { // the first query whose lowest key is behind them, by halves
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

/// The queries that see one of the keys from `first` to `end` of a chunk, in tiles of one run each.
struct QueryTiles {
  int start[2], before, count; ///< by run; tiles of the first run, and of both
  PP_DEVICE QueryTiles(const AttentionCall &n, int chunk, int b, int first, int end, int size) : before(0), count(0) {
    PP_UNROLL
    for (int its = 0; its < 2; ++its) {
      int begin = its * n.run, behind = first - n.leadOf(chunk, begin); // queries before it see none of these keys
      start[its] = begin + (n.causal && behind > 0 ? behind / size * size : 0);
      int last = begin < n.s ? begin + n.run : begin;
      int stop = start[its] < last ? n.queriesUpTo(chunk, b, start[its], last, end) : start[its];
      count += (stop - start[its] + size - 1) / size;
      before = its == 0 ? count : before;
    }
  }
  /// The first query of a tile, and where the queries of its run end.
  PP_DEVICE int first(int tile, int size) const {
    return tile < before ? start[0] + tile * size : start[1] + (tile - before) * size;
  }
  static PP_DEVICE int end(const AttentionCall &n, int first) { return first < n.run ? n.run : n.s; }
};

/// Dropout of one head of a sequence: what the weight of a pair is multiplied by. A pair's word is that of
/// runtime/kernels/AttentionShape.h.
template <class A> struct PairDropout {
  DropoutMask mask;
  int64_t head, whole;
  int32_t row;
  A growth;
  PP_DEVICE PairDropout(const AttentionCall &n, int b, int head)
      : mask(n.scalars->seed, n.site, n.scalars->holds ? 0 : n.rate), head((n.firstHead + head) * n.whole),
        whole(n.whole), row(n.rows[int64_t(b) * n.s]), growth(n.scalars->holds ? A(1) : A(1 / (1 - n.rate))) {}
  PP_DEVICE int64_t place(int query, int key) const { return (head + query) * whole + key; }
  /// The factor of a weight by word `i` of four. (An index would put the words into memory.)
  PP_DEVICE A of(const Words &words, int i) const {
    uint32_t low = i & 1 ? words.v[1] : words.v[0], high = i & 1 ? words.v[3] : words.v[2];
    return (i & 2 ? high : low) >= mask.threshold ? growth : A(0);
  }
  /// The factor of the pair of a query and a key at these positions of the sequence.
  PP_DEVICE A factor(int query, int key) const {
    int64_t at = place(query, key);
    return of(mask.words(at / 4, row), int(at) & 3);
  }
  /// Multiplies the weights of this key and the next one, which mostly share a counter.
  PP_DEVICE void apply(int query, int key, A &first, A &second) const {
    int64_t at = place(query, key);
    Words words = mask.words(at / 4, row);
    first *= of(words, int(at) & 3);
    if (at % 4 == 3)
      words = mask.words(at / 4 + 1, row);
    second *= of(words, int(at + 1) & 3);
  }
};
/// Takes its place if nothing is dropped.
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
