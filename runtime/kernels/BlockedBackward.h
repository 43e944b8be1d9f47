// Blocked attention, backward: five products on the same tiles as the forward, no scores saved.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   per panel and block of keys:   Pt = exp2(K Qt - L), dSt = scale Pt (V dOt - D)   dot, scores never reach memory
//                                  dQt += K^T dSt                                     outer
//   per block of queries and keys: dV += Pt dO, dK += dSt Q                           dot
//
// Queries outside, keys inside: dQ is local, dK and dV of one kv head are dense f32 sums that its heads share. L is the
// log-sum-exp over all keys of the forward, D the row sums of dO * O: with them chunks of keys add, in any grouping.
// Only P of one block exists, and it is made again from Q and K.
#ifndef PP_RUNTIME_KERNELS_BLOCKEDBACKWARD_H
#define PP_RUNTIME_KERNELS_BLOCKEDBACKWARD_H

#include "runtime/kernels/AttentionTiles.h"

namespace {
using namespace pp;

template <int lanes, int rows, bool paired = false> struct BlockedBackward : Tiles<lanes, rows, paired> {
  using Base = Tiles<lanes, rows, paired>;
  using Base::blockKept;
  using Base::dot, Base::load, Base::store, Base::exp2, Base::roundUp, Base::widthOf, Base::lengthOf, Base::keyBlockOf;
  using Base::packAcross, Base::perWord, Base::scaled, Base::vectors, Base::panel, Base::queryBlock, Base::log2e,
      Base::addDot, Base::queriesFrom, Base::blocksKept;
  using Base::packRows, Base::unpackRows, Base::transposeBlock, Base::transposeBack, Base::addOuter, Base::clearTile;
  using Vector = typename Base::Vector;
  using Sight = typename Base::Sight;
  using Bounds = typename Base::Bounds;

  /// Words of Pt and dSt lie along the queries, `dstAcross` along the keys; one f32 a word serves both sums.
  struct Packs {
    float *k, *v, *kAcross, *dk, *dv, *q, *qt, *doutT, *qAcross, *doutAcross, *pt, *dst, *dstAcross, *tile, *lse,
        *delta, *ones, *dqts;
    float cap; ///< of scores in powers of two; 0: none
    Packs(char *scratch, const AttentionShape &shape) : cap(float(log2e * shape.softcap)) {
      float *next = reinterpret_cast<float *>(scratch);
      int64_t width = widthOf(shape), rowsOfKeys = lengthOf(shape.longest()) * width;
      int64_t block = roundUp(keyBlockOf(shape), rows) * queryBlock;
      auto place = [&](float *&part, int64_t words) { part = next, next += words; };
      place(k, rowsOfKeys / perWord), place(v, rowsOfKeys / perWord), place(dk, rowsOfKeys), place(dv, rowsOfKeys);
      for (float **part : {&qt, &doutT, &qAcross, &doutAcross})
        place(*part, queryBlock * width / perWord);
      place(pt, block / perWord), place(dst, block / perWord);
      q = qAcross, kAcross = k, dstAcross = dst, tile = pt;
      if (paired) {
        place(q, queryBlock * width); // words of a row, and in the end dq in f32
        place(kAcross, rowsOfKeys / perWord), place(dstAcross, block / perWord), place(tile, rows * queryBlock);
      }
      for (float **part : {&lse, &delta, &ones})
        place(*part, queryBlock);
      dqts = next;
    }
    /// dQt of a block of queries, carried from chunk to chunk.
    float *dqt(const AttentionShape &shape, int64_t block) const { return dqts + block * queryBlock * widthOf(shape); }
  };
  /// At most attentionScratch of Facts.h.
  static int64_t scratchBytes(const AttentionShape &shape) {
    Packs f(nullptr, shape);
    return reinterpret_cast<char *>(f.dqt(shape, blocksKept(shape))) - static_cast<char *>(nullptr);
  }

  /// Pt = exp2(K Qt - L): scores never reach memory.
  [[gnu::noinline]] static void weightTile(const float *k, int64_t words, const float *qt, float scale,
                                           const float *lse, float *pt) {
    Vector tile[rows][vectors];
    clearTile(tile);
    dot(tile, k, words, qt, panel, words);
    PP_UNROLL
    for (int i = 0; i < rows; ++i)
      PP_UNROLL
    for (int n = 0; n < vectors; ++n)
      store(pt + i * queryBlock + n * lanes, exp2(scaled(tile[i][n], scale) - load(lse + n * lanes)));
  }
  /// The same under the cap; `slope` gets the derivatives of capping.
  static void cappedWeightTile(const float *k, int64_t words, const float *qt, float scale, float cap, const float *lse,
                               float *pt, float *slope) {
    Vector tile[rows][vectors];
    clearTile(tile);
    dot(tile, k, words, qt, panel, words);
    for (int i = 0; i < rows; ++i)
      for (int n = 0; n < vectors; ++n)
        store(pt + i * queryBlock + n * lanes, scaled(tile[i][n], scale));
    Base::capTile(pt, queryBlock, cap, slope);
    for (int i = 0; i < rows; ++i)
      for (int n = 0; n < vectors; ++n)
        store(pt + i * queryBlock + n * lanes, exp2(load(pt + i * queryBlock + n * lanes) - load(lse + n * lanes)));
  }
  /// Dropout of a tile: which pairs stay (all bits of a word, or none), and the factor of their weights.
  struct Drops {
    alignas(64) uint32_t stays[rows * panel];
    float growth;
    PP_INLINE Vector factor(int64_t at) const {
      using Integers = typename Base::Integers;
      return Vector(Integers(Vector{} + growth) & *reinterpret_cast<const Integers *>(stays + at));
    }
  };
  /// dSt = scale * Pt * (V dOt - D), times `slope` if scores are capped, and what Pt and dSt are multiplied as; `at` is
  /// the tile's first word. With dropout V dOt is what stays of it, and so is Pt from then on.
  template <bool isCapped, bool isDropped>
  [[gnu::noinline]] static void slopeTile(const Packs &f, const float *v, int64_t words, const float *doutT,
                                          const float *delta, float scale, float *pt, int64_t at, const float *slope,
                                          const Drops &drops) {
    Vector tile[rows][vectors];
    clearTile(tile);
    dot(tile, v, words, doutT, panel, words);
    PP_UNROLL
    for (int i = 0; i < rows; ++i)
      PP_UNROLL
    for (int n = 0; n < vectors; ++n) {
      Vector weight = load(pt + i * queryBlock + n * lanes);
      if constexpr (isDropped)
        tile[i][n] *= drops.factor(i * panel + n * lanes);
      tile[i][n] = scale * weight * (tile[i][n] - load(delta + n * lanes));
      if constexpr (isCapped)
        tile[i][n] *= load(slope + i * panel + n * lanes);
      if constexpr (isDropped) {
        weight *= drops.factor(i * panel + n * lanes);
        store(pt + i * queryBlock + n * lanes, weight);
      }
      if constexpr (paired) {
        PairsOf<lanes>::storeHalves(f.pt + (at + i * queryBlock + n * lanes) / 2, weight);
        PairsOf<lanes>::storeHalves(f.dst + (at + i * queryBlock + n * lanes) / 2, tile[i][n]);
        if (i % 2)
          store(f.dstAcross + at / queryBlock / 2 * queryBlock + at % queryBlock + i / 2 * queryBlock + n * lanes,
                PairsOf<lanes>::pair(tile[i - 1][n], tile[i][n]));
      } else {
        store(f.dst + at + i * queryBlock + n * lanes, tile[i][n]);
      }
    }
  }
  /// Pt and dSt of a panel against a block of keys; hidden scores may exceed L, so they are cleared after exp.
  static void backwardScores(const Packs &f, int64_t p, int64_t width, int64_t t0, int64_t j0, int64_t from,
                             int64_t keys, float scale, const Sight &sight, const PairDropout &dropout) {
    int64_t words = width / perWord, queries = p * words * panel;
    alignas(64) float slope[rows * panel];
    Drops drops;
    drops.growth = float(dropout.growth);
    auto *slopes = dropout.any ? (f.cap > 0 ? slopeTile<true, true> : slopeTile<false, true>)
                               : (f.cap > 0 ? slopeTile<true, false> : slopeTile<false, false>);
    for (int64_t t = from; t < keys; t += rows) {
      int64_t at = t * queryBlock + p * panel, row = (j0 + t) * words;
      float *pt = f.tile + (paired ? p * panel : at);
      if (f.cap > 0)
        cappedWeightTile(f.k + row, words, f.qt + queries, log2e * scale, f.cap, f.lse + p * panel, pt, slope);
      else
        weightTile(f.k + row, words, f.qt + queries, log2e * scale, f.lse + p * panel, pt);
      if (sight.crosses(j0 + t))
        sight.hide(pt, queryBlock, j0 + t, 0);
      if (dropout.any)
        dropout.tile<rows, panel>(t0, j0 + t, drops.stays);
      slopes(f, f.v + row, words, f.doutT + queries, f.delta + p * panel, scale, pt, at, slope, drops);
    }
  }

  /// All panels of a query block against one block of keys; the queries begin `lead` keys after the chunk's first.
  static void backwardBlock(const AttentionShape &shape, const Packs &f, float *dqt, const Chunk &chunk,
                            const Bounds &bounds, int64_t q0, int64_t j0, const PairDropout &dropout) {
    int64_t width = widthOf(shape), most = 0, queries = queriesFrom(shape, q0), lead = shape.lead(chunk) + q0;
    for (int64_t p = 0; p * panel < queries; ++p) {
      Sight sight = bounds.sight(shape, chunk, q0, p);
      int64_t keys = sight.keys(j0, keyBlockOf(shape)), from = bounds.begin(p) > j0 ? bounds.begin(p) - j0 : 0;
      if (keys <= from)
        continue;
      most = keys > most ? keys : most;
      backwardScores(f, p, width, q0 + p * panel, j0, from, keys, 1 / float(shape.root), sight, dropout);
      addOuter(dqt + p * width * panel, f.kAcross + (j0 + from) / perWord * width,
               f.dstAcross + from / perWord * queryBlock + p * panel, queryBlock, width,
               (roundUp(keys, rows) - from) / perWord);
    }
    for (int64_t t = bounds.begin(0) > j0 ? bounds.begin(0) - j0 : 0; t < most; t += rows) {
      // Queries wholly before the key have weights of 0 or none, and no more have those whose bounds are behind it.
      int64_t from = shape.causal && j0 + t > lead ? (j0 + t - lead) / lanes * lanes : 0, at = (j0 + t) * width;
      int64_t end = roundUp(queries, panel);
      while (end > from && bounds.isBehind(end - lanes, j0 + t))
        end -= lanes;
      int64_t first = (t * queryBlock + from) / perWord, row = from / perWord * width, depth = (end - from) / perWord;
      addDot(f.dv + at, f.pt + first, f.doutAcross + row, width, depth);
      addDot(f.dk + at, f.dst + first, f.qAcross + row, width, depth);
    }
  }

  /// One head's rows.
  template <class E> struct Head {
    const E *dout, *q;
    const float *lse, *delta;
    E *dq;
    PairDropout dropout;
  };

  /// A query without keys has L = -inf, and weights 2^(S - L) that must be 0.
  static void packStatistics(const Packs &f, const float *lse, const float *delta, int64_t queries, int64_t packed) {
    for (int64_t i = 0; i < packed; ++i) {
      bool real = i < queries;
      f.ones[i] = 1;
      f.lse[i] = !real ? 0 : lse[i] > Base::unseen ? log2e * lse[i] : -Base::unseen;
      f.delta[i] = real ? delta[i] : 0;
    }
  }

  template <class E>
  static void backwardQueries(const AttentionShape &shape, const Packs &f, float *dqt, const Chunk &chunk,
                              const Head<E> &head, int64_t b, int64_t q0) {
    int64_t width = widthOf(shape), keyBlock = keyBlockOf(shape);
    int64_t queries = queriesFrom(shape, q0), packed = roundUp(queries, panel);
    int64_t keys = shape.keysBefore(chunk, q0 + queries);
    if (shape.keysFrom(chunk, b, q0) >= keys)
      return;
    Bounds bounds(shape, chunk, b, q0);
    auto pack = [&](const E *x, int64_t stride, float scale, float *across, float *transposed) {
      packAcross(x, stride, queries, shape.d, across, width, packed);
      if constexpr (paired)
        packRows(x, stride, queries, shape.d, f.q, width, packed);
      transposeBlock(paired ? f.q : across, packed, width, scale, transposed);
    };
    pack(head.dout + q0 * shape.outputStride(), shape.outputStride(), 1, f.doutAcross, f.doutT);
    pack(head.q + q0 * shape.queryStride, shape.queryStride, log2e / float(shape.root), f.qAcross, f.qt);
    packStatistics(f, head.lse + q0, head.delta + q0, queries, packed);
    for (int64_t j0 = bounds.begin(0); j0 < keys; j0 += keyBlock)
      backwardBlock(shape, f, dqt, chunk, bounds, q0, j0, head.dropout);
  }

  template <class E>
  static void finishQueries(const AttentionShape &shape, const Packs &f, const float *dqt, E *dq, int64_t q0,
                            bool adds) {
    int64_t width = widthOf(shape), stride = shape.queryStride, queries = queriesFrom(shape, q0);
    for (int64_t i = 0; i < queryBlock; ++i)
      f.ones[i] = 1;
    transposeBack(dqt, roundUp(queries, panel), width, f.ones, f.q);
    unpackRows(f.q, width, dq + q0 * stride, stride, queries, shape.d, adds);
  }

  /// dK or dV of a chunk and kv head, from the dense sums to where it belongs.
  template <class E>
  static void finishKeys(const PreparedOp &op, const float *sums, const Chunk &chunk, void *to, int64_t at) {
    AttentionShape shape(op);
    int64_t width = widthOf(shape), stride = shape.keyStride;
    if (op.has(Sums) || op.has(AccumulateKv))
      unpackRows(sums, width, out<float>(to) + at, stride, chunk.length, shape.d, op.has(AccumulateKv));
    else
      unpackRows(sums, width, out<E>(to) + at, stride, chunk.length, shape.d, false);
  }

  /// All heads of one kv head against the packed chunk.
  template <class E>
  static void backwardChunk(const PreparedOp &op, const Packs &f, int64_t b, int64_t group, int64_t i,
                            void *const *arguments) {
    AttentionShape shape(op, arguments[4], arguments[8]);
    for (int64_t k = 0; k < shape.share() * shape.runs; ++k) {
      int64_t h = group * shape.share() + k / shape.runs;
      shape.turnTo(k % shape.runs);
      int64_t query = shape.query(b, 0, h), row = shape.statistic(b, 0, h);
      Head<E> head{in<E>(arguments[0]) + shape.output(b, 0, h),
                   in<E>(arguments[1]) + query,
                   in<float>(arguments[2]) + row,
                   in<float>(arguments[3]) + row,
                   out<E>(arguments[5]) + query,
                   shape.dropout(shape.chunks[i], b, h)};
      for (int64_t q0 = 0; q0 < shape.s; q0 += queryBlock) {
        float *dqt = f.dqt(shape, blockKept(shape, h, q0));
        if (i == 0)
          memset(dqt, 0, size_t(queryBlock * widthOf(shape)) * 4);
        backwardQueries(shape, f, dqt, shape.chunks[i], head, b, q0);
        if (i + 1 == shape.count)
          finishQueries(shape, f, dqt, head.dq, q0, op.has(Accumulate));
      }
    }
  }

  template <class E> static pp_status_t run(const PreparedOp &op, void *const *arguments) {
    AttentionShape shape(op, arguments[4], arguments[8]);
    Packs f(op.scratch, shape);
    int64_t width = widthOf(shape), stride = shape.keyStride;
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t group = 0; group < shape.groups; ++group)
        for (int64_t i = 0; i < shape.count; ++i) {
          const Chunk &chunk = shape.chunks[i];
          int64_t at = shape.key(chunk, b, 0, group), length = lengthOf(chunk.length);
          if (shape.reaches(chunk, b)) {
            packRows(inList<E>(arguments[4], 2 * i) + at, stride, chunk.length, shape.d, f.k, width, length);
            packRows(inList<E>(arguments[4], 2 * i + 1) + at, stride, chunk.length, shape.d, f.v, width, length);
            if constexpr (paired)
              packAcross(inList<E>(arguments[4], 2 * i) + at, stride, chunk.length, shape.d, f.kAcross, width, length);
          }
          memset(f.dk, 0, size_t(length * width) * 4);
          memset(f.dv, 0, size_t(length * width) * 4);
          backwardChunk<E>(op, f, b, group, i, arguments);
          finishKeys<E>(op, f.dk, chunk, outList<void>(arguments[6], 2 * i), at);
          finishKeys<E>(op, f.dv, chunk, outList<void>(arguments[6], 2 * i + 1), at);
        }
    return PP_OK;
  }
};

} // namespace

#endif // PP_RUNTIME_KERNELS_BLOCKEDBACKWARD_H
