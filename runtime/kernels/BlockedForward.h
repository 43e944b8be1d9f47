// Blocked attention, forward: lanes are queries, scores stand transposed, queries of a kv head share its packed keys.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//                 lanes: a panel of queries (3 vectors)            per panel and block of keys:
//               q0  q1  q2  ..                                       St = K Qt                dot
//     key j0   [ St[j0][q0] ..             ]                         P = exp2(St - max)       in place
//     key j1   [ ..                        ]   one block of keys     Ot += V^T P              outer
//
// Maximum, exp, sum and rescaling are lane-wise: no horizontal step and no transposed K. Q is packed transposed once
// per block of queries; K and V of one kv head lie dense in scratch, because rows a head's stride apart share cache
// sets. Chunks of keys come one after another: what a block of queries carries on (Ot, maximum, sum) stays in scratch,
// so memory is that of one chunk and one slice of queries; nothing of size s * s exists.
#ifndef PP_RUNTIME_KERNELS_BLOCKEDFORWARD_H
#define PP_RUNTIME_KERNELS_BLOCKEDFORWARD_H

#include "runtime/kernels/AttentionTiles.h"

namespace {
using namespace pp;

template <int lanes, int rows, bool paired = false> struct BlockedForward : Tiles<lanes, rows, paired> {
  using Base = Tiles<lanes, rows, paired>;
  using Base::dot, Base::load, Base::store, Base::exp2, Base::roundUp, Base::widthOf, Base::lengthOf, Base::keyBlockOf;
  using Base::hidden, Base::unseen, Base::queriesFrom, Base::blocksKept, Base::blockKept;
  using Base::packAcross, Base::perWord, Base::scaled, Base::storeTile, Base::greater, Base::vectors, Base::panel,
      Base::queryBlock, Base::log2e, Base::ln2;
  using Base::packRows, Base::unpackRows, Base::transposeBlock, Base::transposeBack, Base::addOuter, Base::clearTile;
  using Vector = typename Base::Vector;
  using Sight = typename Base::Sight;
  using Bounds = typename Base::Bounds;

  struct Packs {
    float *k, *v, *q, *qt, *st, *carried;
    float cap; ///< of scores in powers of two; 0: none
    Packs(char *scratch, const AttentionShape &shape) : cap(float(log2e * shape.softcap)) {
      float *next = reinterpret_cast<float *>(scratch);
      int64_t width = widthOf(shape);
      for (float **part : {&k, &v})
        *part = next, next += lengthOf(shape.longest()) * width / perWord;
      q = next; // words, and in the end the rows of o in f32
      qt = q + queryBlock * width;
      st = qt + queryBlock * width / perWord;
      carried = st + roundUp(keyBlockOf(shape), rows) * panel;
    }
  };
  /// Values that a block of queries carries from chunk to chunk; sums and Ot are relative to the maximum.
  struct Carried {
    float *ot, *largest, *sum;
    Carried(const Packs &f, const AttentionShape &shape, int64_t block) {
      ot = f.carried + block * queryBlock * (widthOf(shape) + 2);
      largest = ot + queryBlock * widthOf(shape);
      sum = largest + queryBlock;
    }
  };
  /// At most attentionScratch of Facts.h.
  static int64_t scratchBytes(const AttentionShape &shape) {
    Packs f(nullptr, shape);
    return reinterpret_cast<char *>(Carried(f, shape, blocksKept(shape)).ot) - static_cast<char *>(nullptr);
  }

  /// A tile of scores, and the panel's running maximum. (Not inlined, like the tiles below: alone they keep every
  /// register for the loop; inside a larger function g++ 12 spills within it.)
  [[gnu::noinline]] static void scoreTile(const float *k, int64_t words, const float *qt, float scale, float *st,
                                          float *top) {
    Vector tile[rows][vectors];
    clearTile(tile);
    dot(tile, k, words, qt, panel, words);
    PP_UNROLL
    for (int i = 0; i < rows; ++i)
      PP_UNROLL
    for (int n = 0; n < vectors; ++n)
      tile[i][n] = scaled(tile[i][n], scale);
    storeTile(tile, st, panel);
    PP_UNROLL
    for (int n = 0; n < vectors; ++n) {
      Vector most = load(top + n * lanes);
      PP_UNROLL
      for (int i = 0; i < rows; ++i)
        most = greater(most, tile[i][n]);
      store(top + n * lanes, most);
    }
  }
  /// The same where scores are capped or some keys are hidden.
  static void changedScoreTile(const float *k, int64_t words, const float *qt, float scale, float cap, float *st,
                               float *top, int64_t key, const Sight &sight) {
    alignas(64) float unused[panel] = {};
    scoreTile(k, words, qt, scale, st, unused);
    if (cap > 0)
      Base::capTile(st, panel, cap, nullptr);
    if (sight.crosses(key))
      sight.hide(st, panel, key, hidden);
    for (int i = 0; i < rows; ++i)
      for (int n = 0; n < vectors; ++n)
        store(top + n * lanes, greater(load(top + n * lanes), load(st + i * panel + n * lanes)));
  }

  /// Clears the weights in `st` of pairs that dropout drops; the first query and key as `dropout` counts them.
  [[gnu::noinline]] static void dropWeights(const PairDropout &dropout, float *st, int64_t query, int64_t key,
                                            int64_t keys) {
    using Integers = typename Base::Integers;
    alignas(64) uint32_t stays[rows * panel];
    for (int64_t j = 0; j < keys; j += rows) {
      dropout.tile<rows, panel>(query, key + j, stays);
      for (int64_t i = 0; i < rows; i += perWord)
        for (int n = 0; n < vectors; ++n) {
          const auto *bits = reinterpret_cast<const Integers *>(stays + i * panel + n * lanes);
          Integers kept = paired ? (bits[0] & 0xffff) | (bits[vectors] & ~0xffff) : bits[0];
          auto *weights = reinterpret_cast<Integers *>(st + (j + i) / perWord * panel + n * lanes);
          *weights &= kept;
        }
    }
  }

  /// One panel, whose first query is number t0 of the call, against one block of keys.
  static void forwardBlock(const Packs &f, const Carried &carried, int64_t p, int64_t width, float scale, int64_t t0,
                           int64_t j0, int64_t keys, const Sight &sight, const PairDropout &dropout) {
    int64_t words = width / perWord;
    float *ot = carried.ot + p * width * panel, *largest = carried.largest + p * panel, *sum = carried.sum + p * panel;
    const float *k = f.k + j0 * words, *qt = f.qt + p * words * panel;
    Vector before[vectors], top[vectors], total[vectors] = {};
    for (int n = 0; n < vectors; ++n)
      before[n] = load(largest + n * lanes);
    for (int64_t t = 0; t < keys; t += rows)
      if (f.cap > 0 || sight.crosses(j0 + t))
        changedScoreTile(k + t * words, words, qt, scale, f.cap, f.st + t * panel, largest, j0 + t, sight);
      else
        scoreTile(k + t * words, words, qt, scale, f.st + t * panel, largest);
    for (int n = 0; n < vectors; ++n)
      top[n] = load(largest + n * lanes);
    keys = roundUp(keys, rows);
    for (int64_t j = 0; j < keys; j += perWord)
      for (int n = 0; n < vectors; ++n) {
        Vector weight = exp2(load(f.st + j * panel + n * lanes) - top[n]);
        total[n] += weight;
        if constexpr (paired) { // into the first half of what has been read
          Vector next = exp2(load(f.st + (j + 1) * panel + n * lanes) - top[n]);
          total[n] += next;
          weight = PairsOf<lanes>::pair(weight, next);
        }
        store(f.st + j / perWord * panel + n * lanes, weight);
      }
    typename Base::Integers moved = {};
    for (int n = 0; n < vectors; ++n)
      moved |= typename Base::Integers(top[n] > before[n]);
    int32_t any = 0;
    for (int lane = 0; lane < lanes; ++lane)
      any |= moved[lane];
    for (int n = 0; n < vectors; ++n) {
      Vector shrink = exp2(before[n] - top[n]);
      store(sum + n * lanes, load(sum + n * lanes) * shrink + total[n]);
      for (int64_t c = 0; c < width && any; ++c)
        store(ot + c * panel + n * lanes, load(ot + c * panel + n * lanes) * shrink);
    }
    if (dropout.any)
      dropWeights(dropout, f.st, t0, j0, keys);
    addOuter(ot, f.v + j0 / perWord * width, f.st, panel, width, keys / perWord);
  }

  static void begin(const Carried &carried, int64_t packed, int64_t width) {
    memset(carried.ot, 0, size_t(packed * width) * 4);
    for (int64_t i = 0; i < packed; ++i)
      carried.largest[i] = unseen, carried.sum[i] = 0;
  }

  /// A block of queries (rows of one head, `stride` apart) against the packed chunk.
  template <class E>
  static void attendChunk(const AttentionShape &shape, const Packs &f, const Carried &carried, const Chunk &chunk,
                          const E *q, int64_t b, int64_t head, int64_t q0) {
    int64_t width = widthOf(shape), keyBlock = keyBlockOf(shape), stride = shape.queryStride;
    int64_t queries = queriesFrom(shape, q0), packed = roundUp(queries, panel);
    int64_t keys = shape.keysBefore(chunk, q0 + queries);
    if (shape.keysFrom(chunk, b, q0) >= keys)
      return;
    Bounds bounds(shape, chunk, b, q0);
    PairDropout dropout = shape.dropout(chunk, b, head);
    packRows(q + q0 * stride, stride, queries, shape.d, f.q, width, packed);
    float scale = log2e / float(shape.root);
    transposeBlock(f.q, packed, width, scale, f.qt);
    for (int64_t j0 = bounds.begin(0); j0 < keys; j0 += keyBlock)
      for (int64_t p = 0; p * panel < queries; ++p) {
        Sight sight = bounds.sight(shape, chunk, q0, p);
        int64_t from = bounds.begin(p) > j0 ? bounds.begin(p) : j0, seen = sight.keys(from, j0 + keyBlock - from);
        if (seen > 0)
          forwardBlock(f, carried, p, width, scale, q0 + p * panel, from, seen, sight, dropout);
      }
  }

  /// After the last chunk, divides by the sums; a query that saw no key gets o = 0 and lse = -inf.
  template <class E>
  static void finish(const AttentionShape &shape, const Packs &f, const Carried &carried, E *o, float *lse,
                     int64_t q0) {
    int64_t width = widthOf(shape), stride = shape.outputStride(), queries = queriesFrom(shape, q0);
    for (int64_t i = 0; i < queries; ++i) {
      bool any = carried.sum[i] > 0;
      lse[q0 + i] = any ? ln2 * carried.largest[i] + __builtin_logf(carried.sum[i]) : -__builtin_inff();
      carried.sum[i] = any ? float(shape.growth) / carried.sum[i] : 0;
    }
    transposeBack(carried.ot, roundUp(queries, panel), width, carried.sum, f.q);
    unpackRows(f.q, width, o + q0 * stride, stride, queries, shape.d, false);
  }

  template <class E> static pp_status_t run(const PreparedOp &op, void *const *arguments) {
    AttentionShape shape(op, arguments[1], arguments[4]);
    Packs f(op.scratch, shape);
    int64_t width = widthOf(shape), stride = shape.keyStride;
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t group = 0; group < shape.groups; ++group)
        for (int64_t i = 0; i < shape.count; ++i) {
          const Chunk &chunk = shape.chunks[i];
          int64_t at = shape.key(chunk, b, 0, group), length = lengthOf(chunk.length);
          if (shape.reaches(chunk, b)) {
            packRows(inList<E>(arguments[1], 2 * i) + at, stride, chunk.length, shape.d, f.k, width, length);
            packAcross(inList<E>(arguments[1], 2 * i + 1) + at, stride, chunk.length, shape.d, f.v, width, length);
          }
          for (int64_t k = 0; k < shape.share() * shape.runs; ++k) {
            int64_t head = group * shape.share() + k / shape.runs;
            shape.turnTo(k % shape.runs);
            const E *q = in<E>(arguments[0]) + shape.query(b, 0, head);
            for (int64_t q0 = 0; q0 < shape.s; q0 += queryBlock) {
              Carried carried(f, shape, blockKept(shape, head, q0));
              if (i == 0)
                begin(carried, roundUp(queriesFrom(shape, q0), panel), width);
              attendChunk(shape, f, carried, chunk, q, b, head, q0);
              if (i + 1 == shape.count)
                finish(shape, f, carried, out<E>(arguments[2]) + shape.output(b, 0, head),
                       out<float>(arguments[3]) + shape.statistic(b, 0, head), q0);
            }
          }
        }
    return PP_OK;
  }
};

} // namespace

#endif // PP_RUNTIME_KERNELS_BLOCKEDFORWARD_H
