// Blocked attention, backward: five products on the same tiles as the forward, no scores saved.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   per panel and block of keys:   Pt = exp2(K Qt - L), dSt = scale Pt (V dOt - D)   dot, scores never reach memory
//                                  dQt += K^T dSt                                     outer
//   per block of queries and keys: dV += Pt dO, dK += dSt Q                           dot
//
// Queries outside, keys inside: dQ is local, dK and dV of one kv head are dense f32 sums that its heads share. L is the
// forward's log-sum-exp, D the row sums of dO * O. Only P of one block exists, and it is made again from Q and K.
#ifndef PP_RUNTIME_KERNELS_BLOCKEDBACKWARD_H
#define PP_RUNTIME_KERNELS_BLOCKEDBACKWARD_H

#include "runtime/kernels/AttentionTiles.h"

namespace {
using namespace pp;

template <int lanes, int rows> struct BlockedBackward : Tiles<lanes, rows> {
  using Base = Tiles<lanes, rows>;
  using Base::dot, Base::load, Base::store, Base::exp2, Base::roundUp, Base::widthOf, Base::lengthOf, Base::keyBlockOf;
  using Base::packRows, Base::unpackRows, Base::transposeBlock, Base::transposeBack, Base::addOuter, Base::clearTile;
  using Base::vectors, Base::panel, Base::queryBlock, Base::log2e, Base::addDot;
  using Vector = typename Base::Vector;
  using Sight = typename Base::Sight;

  struct Packs {
    float *k, *v, *dk, *dv, *q, *dout, *qt, *doutT, *dqt, *pt, *dst, *lse, *delta, *ones;
    Packs(char *scratch, const AttentionShape &shape) {
      float *next = reinterpret_cast<float *>(scratch);
      int64_t width = widthOf(shape), rowsOfKeys = lengthOf(shape) * width;
      for (float **part : {&k, &v, &dk, &dv})
        *part = next, next += rowsOfKeys;
      for (float **part : {&q, &dout, &qt, &doutT, &dqt})
        *part = next, next += queryBlock * width;
      for (float **part : {&pt, &dst})
        *part = next, next += roundUp(keyBlockOf(shape), rows) * queryBlock;
      for (float **part : {&lse, &delta, &ones})
        *part = next, next += queryBlock;
    }
    float *end() const { return ones + queryBlock; }
  };

  /// Pt = exp2(K Qt - L): scores never reach memory.
  [[gnu::noinline]] static void weightTile(const float *k, int64_t width, const float *qt, const float *lse,
                                           float *pt) {
    Vector tile[rows][vectors];
    clearTile(tile);
    dot(tile, k, width, qt, panel, width);
    PP_UNROLL
    for (int i = 0; i < rows; ++i)
      PP_UNROLL
      for (int n = 0; n < vectors; ++n)
        store(pt + i * queryBlock + n * lanes, exp2(tile[i][n] - load(lse + n * lanes)));
  }
  /// dSt = scale * Pt * (V dOt - D).
  [[gnu::noinline]] static void slopeTile(const float *v, int64_t width, const float *doutT, const float *delta,
                                          float scale, const float *pt, float *dst) {
    Vector tile[rows][vectors];
    clearTile(tile);
    dot(tile, v, width, doutT, panel, width);
    PP_UNROLL
    for (int i = 0; i < rows; ++i)
      PP_UNROLL
      for (int n = 0; n < vectors; ++n)
        store(dst + i * queryBlock + n * lanes,
              scale * load(pt + i * queryBlock + n * lanes) * (tile[i][n] - load(delta + n * lanes)));
  }
  /// Pt and dSt of a panel against a block of keys; hidden scores may exceed L, so they are cleared after exp.
  static void backwardScores(const Packs &f, int64_t p, int64_t width, int64_t j0, int64_t keys, float scale,
                             const Sight &sight) {
    for (int64_t t = 0; t < keys; t += rows) {
      int64_t tile = t * queryBlock + p * panel, row = (j0 + t) * width, queries = p * width * panel;
      weightTile(f.k + row, width, f.qt + queries, f.lse + p * panel, f.pt + tile);
      if (sight.crosses(j0 + t))
        sight.hide(f.pt + tile, queryBlock, j0 + t, 0);
      slopeTile(f.v + row, width, f.doutT + queries, f.delta + p * panel, scale, f.pt + tile, f.dst + tile);
    }
  }

  /// All panels of a query block against one block of keys.
  static void backwardBlock(const AttentionShape &shape, const Packs &f, int64_t q0, int64_t queries, int64_t j0) {
    int64_t width = widthOf(shape), most = 0;
    for (int64_t p = 0; p * panel < queries; ++p) {
      Sight sight{shape.s, q0 + p * panel, shape.causal};
      int64_t keys = sight.keys(j0, keyBlockOf(shape));
      if (keys <= 0)
        continue;
      most = keys > most ? keys : most;
      backwardScores(f, p, width, j0, keys, 1 / __builtin_sqrtf(float(shape.d)), sight);
      addOuter(f.dqt + p * width * panel, f.k + j0 * width, f.dst + p * panel, queryBlock, width, roundUp(keys, rows));
    }
    int64_t end = roundUp(queries, panel);
    for (int64_t t = 0; t < most; t += rows) {
      // Panels wholly before the key have no scores for it.
      int64_t from = shape.causal && j0 + t > q0 ? (j0 + t - q0) / panel * panel : 0, at = (j0 + t) * width;
      addDot(f.dv + at, f.pt + t * queryBlock + from, f.dout + from * width, width, end - from);
      addDot(f.dk + at, f.dst + t * queryBlock + from, f.q + from * width, width, end - from);
    }
  }

  template <class E> struct Head {
    const E *dout, *q, *o;
    const float *lse;
    E *dq;
  };

  template <class E>
  static void backwardQueries(const AttentionShape &shape, const Packs &f, const Head<E> &head, int64_t q0) {
    int64_t width = widthOf(shape), stride = shape.heads * shape.d, keyBlock = keyBlockOf(shape);
    int64_t queries = shape.s - q0 < queryBlock ? shape.s - q0 : queryBlock;
    int64_t packed = roundUp(queries, panel);
    int64_t keys = shape.causal ? q0 + queries : shape.s;
    packRows(head.q + q0 * stride, stride, queries, shape.d, f.q, width, packed);
    packRows(head.dout + q0 * stride, stride, queries, shape.d, f.dout, width, packed);
    transposeBlock(f.q, packed, width, log2e / __builtin_sqrtf(float(shape.d)), f.qt);
    transposeBlock(f.dout, packed, width, 1, f.doutT);
    memset(f.dqt, 0, size_t(packed * width) * 4);
    for (int64_t i = 0; i < packed; ++i) {
      bool real = i < queries;
      f.ones[i] = 1;
      f.lse[i] = real ? log2e * head.lse[q0 + i] : 0;
      f.delta[i] = real ? dotRows<E>(head.dout + (q0 + i) * stride, head.o + (q0 + i) * stride, shape.d) : 0;
    }
    for (int64_t j0 = 0; j0 < keys; j0 += keyBlock)
      backwardBlock(shape, f, q0, queries, j0);
    transposeBack(f.dqt, packed, width, f.ones, f.q);
    unpackRows(f.q, width, head.dq + q0 * stride, stride, queries, shape.d);
  }

  template <class E> static pp_status_t run(const PreparedOp &op, void *const *arguments) {
    AttentionShape shape(op);
    Packs f(op.scratch, shape);
    int64_t width = widthOf(shape), length = lengthOf(shape), share = shape.heads / shape.groups;
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t group = 0; group < shape.groups; ++group) {
        int64_t at = shape.key(b, 0, group), stride = shape.groups * shape.d;
        packRows(in<E>(arguments[2]) + at, stride, shape.s, shape.d, f.k, width, length);
        packRows(in<E>(arguments[3]) + at, stride, shape.s, shape.d, f.v, width, length);
        memset(f.dk, 0, size_t(length * width) * 4);
        memset(f.dv, 0, size_t(length * width) * 4);
        for (int64_t h = group * share; h < (group + 1) * share; ++h) {
          int64_t query = shape.query(b, 0, h);
          Head<E> head{in<E>(arguments[0]) + query, in<E>(arguments[1]) + query, in<E>(arguments[4]) + query,
                       in<float>(arguments[5]) + (b * shape.heads + h) * shape.s, out<E>(arguments[6]) + query};
          for (int64_t q0 = 0; q0 < shape.s; q0 += queryBlock)
            backwardQueries(shape, f, head, q0);
        }
        unpackRows(f.dk, width, out<E>(arguments[7]) + at, stride, shape.s, shape.d);
        unpackRows(f.dv, width, out<E>(arguments[8]) + at, stride, shape.s, shape.d);
      }
    return PP_OK;
  }

  static int64_t scratchBytes(const AttentionShape &shape) {
    return reinterpret_cast<char *>(Packs(nullptr, shape).end()) - static_cast<char *>(nullptr);
  }
};

} // namespace

#endif // PP_RUNTIME_KERNELS_BLOCKEDBACKWARD_H
