// Which keys a run of queries attends and which pairs dropout drops, where a head's rows lie, and the dot product.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H
#define PP_RUNTIME_KERNELS_ATTENTIONSHAPE_H

#include "runtime/files/Philox.h"
#include "runtime/kernels/Element.h"
#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace {
using namespace pp;

//===-- Dropout of weights ---------------------------------------------------------------------------------------===//
//
// The word of a pair is number (head * length + query) * length + key of its sequence. Heads count over all devices of
// the rank, positions over the whole sequence. So the word depends on no slice, chunk or part of a call, and the
// backward makes the same word again.

/// Makes a register of words, each in the low half of its lane; the high halves may have any value.
#if defined(__AVX512F__)
typedef uint64_t WordLanes __attribute__((vector_size(64)));
PP_INLINE WordLanes productsOf(WordLanes words, uint32_t by) {
  return WordLanes(_mm512_maskz_mul_epu32(0xff, __m512i(words), _mm512_set1_epi64(by))); // (g++ 12 warns of the other)
}
#elif defined(__AVX2__)
typedef uint64_t WordLanes __attribute__((vector_size(32)));
PP_INLINE WordLanes productsOf(WordLanes words, uint32_t by) {
  return WordLanes(_mm256_mul_epu32(__m256i(words), _mm256_set1_epi64x(by)));
}
#else
typedef uint64_t WordLanes __attribute__((vector_size(16)));
PP_INLINE WordLanes productsOf(WordLanes words, uint32_t by) {
#ifdef __SSE2__
  return WordLanes(_mm_mul_epu32(__m128i(words), _mm_set1_epi64x(by)));
#else
  return (words & 0xffffffff) * by;
#endif
}
#endif

/// Dropout of one head against one chunk of keys; queries count from the call's first, keys from the chunk's first.
struct PairDropout {
  DropoutMask mask;
  int32_t row;    ///< the number of the sequence in the run
  int64_t origin; ///< the element of the first query and the first key
  int64_t length; ///< of the whole sequence
  bool any;       ///< false: every pair keeps its weight
  double growth;  ///< what a weight that stays is multiplied by

  /// The factor of the pair's weight.
  double factor(int64_t query, int64_t key) const {
    int64_t place = origin + query * length + key;
    return !any ? 1 : mask.words(place / 4, row).v[place % 4] >= mask.threshold ? growth : 0;
  }

  /// stays[keys][queries]: all bits of a word set where the pair keeps its weight, none where it does not.
  template <int keys, int queries>
  [[gnu::noinline]] void tile(int64_t query, int64_t key, uint32_t *__restrict stays) const {
    alignas(64) uint32_t words[(keys + 4) * queries];
    int64_t begin = origin + query * length + key;
    bool aligned = length % 4 == 0 && begin % 4 == 0; // the keys of every query begin with a counter's first word
    for (int group = 0; group < keys / 4 + !aligned; ++group)
      groupOfEach<queries>(begin, group, words + 4 * group * queries);
    for (int i = 0; i < keys && aligned; ++i)
#pragma omp simd
      for (int t = 0; t < queries; ++t)
        stays[i * queries + t] = words[i * queries + t] >= mask.threshold ? ~0u : 0u;
    if (aligned)
      return;
    int32_t first[queries]; // the word of each query's first key
    for (int t = 0; t < queries; ++t)
      first[t] = int32_t((begin + t * length) % 4) * queries + t;
    for (int i = 0; i < keys; ++i)
#pragma omp simd
      for (int t = 0; t < queries; ++t)
        stays[i * queries + t] = words[i * queries + first[t]] >= mask.threshold ? ~0u : 0u;
  }

private:
  /// The four words of each query's counter, `group` behind that of its first key.
  template <int queries> PP_INLINE void groupOfEach(int64_t begin, int64_t group, uint32_t *__restrict words) const {
    constexpr int lanes = sizeof(WordLanes) / 8;
    static_assert(queries % lanes == 0);
    WordLanes lane;
    for (int i = 0; i < lanes; ++i)
      lane[i] = uint64_t(i);
    for (int t = 0; t < queries; t += lanes) {
      WordLanes c0 = (lane + t) * uint64_t(length) + uint64_t(begin), c1, c2 = WordLanes{} + uint32_t(row), c3 = {};
      c0 = (c0 >> 2) + uint64_t(group);
      c1 = (c0 >> 32 & 0xffff) | uint64_t(mask.site) << 16;
      uint64_t k0 = uint32_t(mask.seed), k1 = mask.seed >> 32;
#pragma GCC unroll 10
      for (int round = 0; round < kPhiloxRounds; ++round, k0 += kPhiloxStep0, k1 += kPhiloxStep1) {
        WordLanes a = productsOf(c0, kPhiloxFactor0), b = productsOf(c2, kPhiloxFactor2);
        c0 = (b >> 32) ^ c1 ^ k0, c1 = b, c2 = (a >> 32) ^ c3 ^ k1, c3 = a;
      }
      typedef uint32_t Halves __attribute__((vector_size(lanes * 4), aligned(4), may_alias));
      const WordLanes all[4] = {c0, c1, c2, c3};
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<Halves *>(words + i * queries + t) = __builtin_convertvector(all[i], Halves);
    }
  }
};

//===-- The shape of a call --------------------------------------------------------------------------------------===//

/// dims b s H G d, and where a head's rows lie: row t of head h of o is at (batch * s + t) * H * d + h * d, and so is
/// that of q, unless q, k and v are columns of one tensor (`Packed`). Keys come in chunks, each a tensor of its own;
/// which of them a query sees follows from positions in the whole sequence.
/// Where the rows are two runs of a sequence (`Zigzag`), queries are those of one of them, and `s` is its length.
///
/// Query t sees key j, both counted from the chunk's first key, if j <= t where causal, and if no bound from below
/// hides it: a window of w keys, or the first token of the query's document. That bound never falls from a query to the
/// next.
struct AttentionShape {
  int64_t batch, rowsOfSequence, runs, s, heads, groups, d, position, count, window;
  int64_t queryStride, keyStride; ///< from a row of q to the next one, and of k and v
  int64_t first = 0;              ///< the row with which the run begins
  int64_t positions[2];           ///< where each of the runs begins in the sequence
  const Chunk *chunks;
  bool causal;
  double root, softcap;            ///< scores are divided by the root; capped unless softcap is 0
  const int32_t *starts = nullptr; ///< [b, s]: where in the sequence the query's document begins
  const int32_t *rows = nullptr;   ///< [b, s]: the number of the query's sequence in the run; null: no dropout
  DropoutMask mask;
  int64_t whole = 0;     ///< the length of a sequence, of which this call may have a slice
  int64_t firstHead = 0; ///< of all devices' heads
  double growth = 1;     ///< what dropout multiplies the weights by that stay
  explicit AttentionShape(const PreparedOp &op)
      : batch(op.dims[0]), rowsOfSequence(op.dims[1]), runs(op.has(Zigzag) ? 2 : 1), s(rowsOfSequence / runs),
        heads(op.dims[2]), groups(op.dims[3]), d(op.dims[4]), position(op.dims[5]), count(op.chunkCount),
        window(int64_t(op.params[0])), queryStride(op.queryStride()), keyStride(op.keyStride()), chunks(op.chunks),
        causal(op.has(Causal)), root(op.params[1] > 0 ? 1 / op.params[1] : squareRoot(double(op.dims[4]))),
        softcap(op.params[2]), mask(0, 0, 0) {
    for (int64_t run = 0; run < 2; ++run)
      positions[run] = op.positionOf(run * s, rowsOfSequence, op.dims[5]);
  }
  /// `kv` is the list that the op is called with: behind the chunks it has the starts of documents, if there are any,
  /// and then, with dropout, the numbers of sequences.
  AttentionShape(const PreparedOp &op, const void *kv, const void *scalars) : AttentionShape(op) {
    const void *const *data = static_cast<const void *const *>(kv) + 2 * count;
    if (op.has(Documents))
      starts = static_cast<const int32_t *>(*data++);
    const auto *its = static_cast<const OptimizerScalars *>(scalars);
    if (!op.has(Dropped) || its->holds)
      return;
    rows = static_cast<const int32_t *>(*data);
    mask = DropoutMask(its->seed, int64_t(op.params[4]), op.params[3]);
    whole = int64_t(op.params[5]);
    firstHead = int64_t(op.params[6]);
    growth = 1 / (1 - op.params[3]);
  }
  /// From now on the queries are those of `run`.
  void turnTo(int64_t run) {
    first = run * s;
    position = positions[run];
  }
  /// Query heads of a kv head.
  int64_t share() const { return heads / groups; }
  /// Of q and dq.
  int64_t query(int64_t b, int64_t t, int64_t head) const {
    return (b * rowsOfSequence + first + t) * queryStride + head * d;
  }
  /// Of o and dout.
  int64_t outputStride() const { return heads * d; }
  int64_t output(int64_t b, int64_t t, int64_t head) const {
    return ((b * rowsOfSequence + first + t) * heads + head) * d;
  }
  /// Of k, v and their gradients.
  int64_t key(const Chunk &chunk, int64_t b, int64_t t, int64_t group) const {
    return (b * chunk.length + t) * keyStride + group * d;
  }
  int64_t statistic(int64_t b, int64_t t, int64_t head) const {
    return (b * heads + head) * rowsOfSequence + first + t;
  }
  /// The position of the first query, counted from the chunk's first key; may be negative.
  int64_t lead(const Chunk &chunk) const { return position - chunk.position; }
  /// The number of keys of the chunk that queries before `end` see.
  int64_t keysBefore(const Chunk &chunk, int64_t end) const {
    int64_t keys = causal ? end + lead(chunk) : chunk.length;
    return keys < 0 ? 0 : keys < chunk.length ? keys : chunk.length;
  }
  /// Dropout of one head of a sequence against one chunk.
  PairDropout dropout(const Chunk &chunk, int64_t b, int64_t head) const {
    return {mask,
            rows ? rows[b * rowsOfSequence] : 0,
            ((firstHead + head) * whole + position) * whole + chunk.position,
            whole,
            rows != nullptr,
            growth};
  }
  bool isBounded() const { return window > 0 || starts; }
  /// The first key that query t sees, counted from the chunk's first one: negative before it, or behind its last one.
  int64_t lowest(const Chunk &chunk, int64_t b, int64_t t) const {
    int64_t low = window > 0 ? position + t - window + 1 : 0,
            start = starts ? starts[b * rowsOfSequence + first + t] : 0;
    return (low > start ? low : start) - chunk.position;
  }
  /// The same within the chunk; 0 for queries that only `causal` bounds.
  int64_t keysFrom(const Chunk &chunk, int64_t b, int64_t t) const {
    int64_t low = isBounded() ? lowest(chunk, b, t) : 0;
    return low < 0 ? 0 : low < chunk.length ? low : chunk.length;
  }
  /// Whether some query of any run sees a key of the chunk.
  bool reaches(const Chunk &chunk, int64_t b) const {
    AttentionShape turned = *this;
    for (int64_t run = 0; run < runs; ++run) {
      turned.turnTo(run);
      if (turned.keysFrom(chunk, b, 0) < turned.keysBefore(chunk, s))
        return true;
    }
    return false;
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
