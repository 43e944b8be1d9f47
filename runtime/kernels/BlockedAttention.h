// Blocked causal attention with grouped queries: lanes are queries, scores stand transposed, nothing of size s*s exists.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//                 lanes: a panel of queries (NR = 3 vectors)         forward, per panel and block of keys:
//               q0  q1  q2  ..                                         St = K Qt           dot
//     key j0   [ St[j0][q0] ..             ]                           P = exp2(St - max)  in place
//     key j1   [ ..                        ]   one block of keys       Ot += V^T P         outer
//     ..                                                             backward:
//   Maximum, exp, sum and rescaling are lane-wise: no horizontal       Pt = exp2(K Qt - L), dSt = Pt (V dOt - D)
//   step and no transposed K. Q and dO are packed transposed once      dQt += K^T dSt      outer
//   per block of queries; K, V, dK, dV of one kv head lie dense in     dV += Pt dO, dK += dSt Q    dot
//   scratch, because rows a head's stride apart share cache sets.
//
// The two micro-kernels hold a tile of `rows` x 3 vectors in registers: 4 x 3 of 16 registers with AVX2, 8 x 3 of 32 with
// AVX-512; one row element is broadcast and used three times.
#ifndef PP_RUNTIME_KERNELS_BLOCKEDATTENTION_H
#define PP_RUNTIME_KERNELS_BLOCKEDATTENTION_H

#include "runtime/kernels/AttentionShape.h"

namespace {
using namespace pp;

/// Vectors of some lanes, one by one, since g++ 12 does not see a vector in a size that depends on a parameter. The
/// transpose works inside each group of four lanes.
typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
template <int lanes> struct VectorOf;
#define PP_VECTOR_OF(lanes, unpackLow, unpackHigh, pairLow, pairHigh)                                                  \
  template <> struct VectorOf<lanes> {                                                                                 \
    typedef float Floats __attribute__((vector_size(lanes * 4), may_alias));                                           \
    typedef int32_t Integers __attribute__((vector_size(lanes * 4), may_alias));                                       \
    PP_INLINE static void transposeFours(Floats (&v)[4]) {                                                             \
      Floats a = __builtin_shuffle(v[0], v[1], Integers unpackLow), b = __builtin_shuffle(v[2], v[3], Integers unpackLow); \
      Floats c = __builtin_shuffle(v[0], v[1], Integers unpackHigh);                                                   \
      Floats d = __builtin_shuffle(v[2], v[3], Integers unpackHigh);                                                   \
      v[0] = __builtin_shuffle(a, b, Integers pairLow);                                                                \
      v[1] = __builtin_shuffle(a, b, Integers pairHigh);                                                               \
      v[2] = __builtin_shuffle(c, d, Integers pairLow);                                                                \
      v[3] = __builtin_shuffle(c, d, Integers pairHigh);                                                               \
    }                                                                                                                  \
  };
#define PP_LIST(...) {__VA_ARGS__}
PP_VECTOR_OF(4, PP_LIST(0, 4, 1, 5), PP_LIST(2, 6, 3, 7), PP_LIST(0, 1, 4, 5), PP_LIST(2, 3, 6, 7))
PP_VECTOR_OF(8, PP_LIST(0, 8, 1, 9, 4, 12, 5, 13), PP_LIST(2, 10, 3, 11, 6, 14, 7, 15),
             PP_LIST(0, 1, 8, 9, 4, 5, 12, 13), PP_LIST(2, 3, 10, 11, 6, 7, 14, 15))
PP_VECTOR_OF(16, PP_LIST(0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
             PP_LIST(2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31),
             PP_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
             PP_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
#undef PP_LIST
#undef PP_VECTOR_OF

/// Four channels of one row of each group of lanes; the rows of two groups lie 4 * stride apart. Joined in registers:
/// a vector written in parts and read whole would wait for the stores.
PP_INLINE void gather(const float *x, int64_t, VectorOf<4>::Floats &v) { v = *in<Four>(x); }
PP_INLINE void gather(const float *x, int64_t stride, VectorOf<8>::Floats &v) {
  v = __builtin_shufflevector(*in<Four>(x), *in<Four>(x + 4 * stride), 0, 1, 2, 3, 4, 5, 6, 7);
}
PP_INLINE void gather(const float *x, int64_t stride, VectorOf<16>::Floats &v) {
  VectorOf<8>::Floats low, high;
  gather(x, stride, low);
  gather(x + 8 * stride, stride, high);
  v = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
PP_INLINE void scatter(float *x, int64_t, VectorOf<4>::Floats v) { *out<Four>(x) = v; }
PP_INLINE void scatter(float *x, int64_t stride, VectorOf<8>::Floats v) {
  *out<Four>(x) = __builtin_shufflevector(v, v, 0, 1, 2, 3);
  *out<Four>(x + 4 * stride) = __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
PP_INLINE void scatter(float *x, int64_t stride, VectorOf<16>::Floats v) {
  scatter(x, stride, __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
  scatter(x + 8 * stride, stride, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

/// Loops over a register tile must vanish before the compiler decides what lives in registers.
#define PP_UNROLL _Pragma("GCC unroll 16")

/// `lanes` floats a vector, `rows` rows a tile.
template <int lanes, int rows> struct Blocked {
  using Vector = typename VectorOf<lanes>::Floats;
  using Integers = typename VectorOf<lanes>::Integers;

  static constexpr int64_t vectors = 3, panel = vectors * lanes, queryBlock = 96;
  static_assert(queryBlock % panel == 0);
  static constexpr float hidden = -1e30f, log2e = 1.44269504f, ln2 = 0.693147181f;

  static constexpr int64_t roundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
  /// Rows of scratch are padded with zeros to whole vectors and tiles.
  static int64_t widthOf(const AttentionShape &shape) { return roundUp(shape.d, lanes > 8 ? lanes : 8); }
  static int64_t lengthOf(const AttentionShape &shape) { return roundUp(shape.s, 16); }
  /// Keys of a block: its rows of K or V and the scores should stay in the first-level cache.
  static int64_t keyBlockOf(const AttentionShape &shape) { return shape.d <= 64 ? 96 : shape.d <= 128 ? 64 : 32; }

  PP_INLINE static Vector load(const float *p) { return *reinterpret_cast<const Vector *>(p); }
  PP_INLINE static void store(float *p, Vector v) { *reinterpret_cast<Vector *>(p) = v; }
  PP_INLINE static Vector greater(Vector a, Vector b) { return a > b ? a : b; }

  /// 2^x for x <= 0 up to 4e-7, all lanes; from -127 down exactly 0, because the polynomial is exactly 1 at 0.
  PP_INLINE static Vector exp2(Vector x) {
    x = x > -127.0f ? x : Vector{} - 127.0f;
    Vector shifted = x + 12582912.0f, r = x - (shifted - 12582912.0f), p = Vector{} + 0.00111255073f;
    p = p * r + 0.00966628268f;
    p = p * r + 0.0555740036f;
    p = p * r + 0.240223512f;
    p = p * r + 0.693142831f;
    p = p * r + 1.0f;
    return Vector(Integers(p) + (Integers(shifted) << 23));
  }

  // --- The two micro-kernels -----------------------------------------------------------------------------------------

  /// tile[i][n] += sum over c of a[i][c] * b[c][n].
  template <int width>
  PP_INLINE static void dot(Vector (&tile)[rows][width], const float *a, int64_t aStride, const float *b,
                            int64_t bStride, int64_t depth) {
#pragma GCC unroll 2
    for (int64_t c = 0; c < depth; ++c) {
      Vector right[width];
      PP_UNROLL
      for (int n = 0; n < width; ++n)
        right[n] = load(b + c * bStride + n * lanes);
      PP_UNROLL
      for (int i = 0; i < rows; ++i)
        PP_UNROLL
        for (int n = 0; n < width; ++n)
          tile[i][n] += a[i * aStride + c] * right[n];
    }
  }

  /// tile[i][n] += sum over k of a[k][i] * b[k][n].
  template <int width>
  PP_INLINE static void outer(Vector (&tile)[rows][width], const float *a, int64_t aStride, const float *b,
                              int64_t bStride, int64_t depth) {
#pragma GCC unroll 2
    for (int64_t k = 0; k < depth; ++k) {
      Vector right[width];
      PP_UNROLL
      for (int n = 0; n < width; ++n)
        right[n] = load(b + k * bStride + n * lanes);
      PP_UNROLL
      for (int i = 0; i < rows; ++i)
        PP_UNROLL
        for (int n = 0; n < width; ++n)
          tile[i][n] += a[k * aStride + i] * right[n];
    }
  }

  template <int width> PP_INLINE static void clearTile(Vector (&tile)[rows][width]) {
    PP_UNROLL
    for (int i = 0; i < rows; ++i)
      PP_UNROLL
      for (int n = 0; n < width; ++n)
        tile[i][n] = Vector{};
  }
  template <int width> PP_INLINE static void loadTile(Vector (&tile)[rows][width], const float *c, int64_t stride) {
    PP_UNROLL
    for (int i = 0; i < rows; ++i)
      PP_UNROLL
      for (int n = 0; n < width; ++n)
        tile[i][n] = load(c + i * stride + n * lanes);
  }
  template <int width>
  PP_INLINE static void storeTile(const Vector (&tile)[rows][width], float *c, int64_t stride) {
    PP_UNROLL
    for (int i = 0; i < rows; ++i)
      PP_UNROLL
      for (int n = 0; n < width; ++n)
        store(c + i * stride + n * lanes, tile[i][n]);
  }

  /// c[width][panel] += a^T b over `depth` keys: Ot += V^T P and dQt += K^T dSt.
  [[gnu::noinline]] static void addOuter(float *c, const float *a, const float *b, int64_t bStride, int64_t width, int64_t depth) {
    for (int64_t i = 0; i < width; i += rows) {
      Vector tile[rows][vectors];
      loadTile(tile, c + i * panel, panel);
      outer(tile, a + i, width, b, bStride, depth);
      storeTile(tile, c + i * panel, panel);
    }
  }

  /// One tile of dV += Pt dO or dK += dSt Q: `rows` keys by `count` vectors of channels.
  template <int count>
  PP_INLINE static void addDotTile(float *c, const float *a, const float *b, int64_t width, int64_t depth) {
    Vector tile[rows][count];
    loadTile(tile, c, width);
    dot(tile, a, queryBlock, b, width, depth);
    storeTile(tile, c, width);
  }
  [[gnu::noinline]] static void addDot(float *c, const float *a, const float *b, int64_t width, int64_t depth) {
    int64_t left = width / lanes;
    while (left) {
      int64_t at = width - left * lanes, count = left == 4 || left == 2 ? 2 : left >= 3 ? 3 : 1;
      if (count == 3)
        addDotTile<3>(c + at, a, b + at, width, depth);
      else if (count == 2)
        addDotTile<2>(c + at, a, b + at, width, depth);
      else
        addDotTile<1>(c + at, a, b + at, width, depth);
      left -= count;
    }
  }

  // --- Packing -------------------------------------------------------------------------------------------------------

  /// n rows of a head into dense rows of f32, zero to `width` and from n to `length`.
  template <class E>
  static void packRows(const E *x, int64_t stride, int64_t n, int64_t d, float *y, int64_t width, int64_t length) {
    for (int64_t t = 0; t < n; ++t) {
      // The hardware foresees no rows that lie a whole token apart.
      for (int64_t line = 0; line < d * int64_t(sizeof(E)); line += 64)
        __builtin_prefetch(reinterpret_cast<const char *>(x + (t + 8) * stride) + line);
#pragma omp simd
      for (int64_t c = 0; c < d; ++c)
        y[t * width + c] = get(x + t * stride, c);
      for (int64_t c = d; c < width; ++c)
        y[t * width + c] = 0;
    }
    memset(y + n * width, 0, size_t((length - n) * width) * 4);
  }
  template <class E>
  static void unpackRows(const float *x, int64_t width, E *y, int64_t stride, int64_t n, int64_t d) {
    for (int64_t t = 0; t < n; ++t)
#pragma omp simd
      for (int64_t c = 0; c < d; ++c)
        put(y + t * stride, c, x[t * width + c]);
  }

  /// `n` dense rows of a query block, transposed into panels [panel][width][lane] and scaled: groups of four lanes take
  /// four channels of their rows, then change them among themselves.
  [[gnu::noinline]] static void transposeBlock(const float *x, int64_t n, int64_t width, float scale, float *y) {
    for (int64_t q = 0; q < n; q += lanes)
      for (int64_t c = 0; c < width; c += 4) {
        Vector part[4];
        PP_UNROLL
        for (int r = 0; r < 4; ++r)
          gather(x + (q + r) * width + c, width, part[r]);
        VectorOf<lanes>::transposeFours(part);
        PP_UNROLL
        for (int r = 0; r < 4; ++r)
          store(y + (q / panel * width + c + r) * panel + q % panel, scale * part[r]);
      }
  }
  /// And back, each lane by its factor.
  [[gnu::noinline]] static void transposeBack(const float *x, int64_t n, int64_t width, const float *factor,
                                              float *y) {
    for (int64_t q = 0; q < n; q += lanes)
      for (int64_t c = 0; c < width; c += 4) {
        Vector part[4];
        PP_UNROLL
        for (int r = 0; r < 4; ++r)
          part[r] = load(factor + q) * load(x + (q / panel * width + c + r) * panel + q % panel);
        VectorOf<lanes>::transposeFours(part);
        PP_UNROLL
        for (int r = 0; r < 4; ++r)
          scatter(y + (q + r) * width + c, width, part[r]);
      }
  }

  // --- Masks ---------------------------------------------------------------------------------------------------------

  /// Which keys a panel of queries sees: key j is seen by query i if j < s, and j <= i where causal.
  struct Sight {
    int64_t s, first;
    bool causal;
    /// Keys of the block at j0 that some query of the panel sees.
    int64_t keys(int64_t j0, int64_t block) const {
      int64_t end = causal && first + panel < s ? first + panel : s;
      return end - j0 < block ? end - j0 : block;
    }
    bool crosses(int64_t key) const { return key + rows > s || (causal && key + rows - 1 > first); }
    /// For each row of a stored tile that has hidden keys: value where seen, else `otherwise`.
    [[gnu::noinline]] void hide(float *tile, int64_t stride, int64_t key, float otherwise) const {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t lane = 0; lane < panel; ++lane) {
          bool seen = key + i < s && (!causal || key + i <= first + lane);
          tile[i * stride + lane] = seen ? tile[i * stride + lane] : otherwise;
        }
    }
  };

  // --- Forward -------------------------------------------------------------------------------------------------------

  struct Forward {
    float *k, *v, *q, *qt, *ot, *st, *largest, *sum;
    Forward(char *scratch, const AttentionShape &shape) {
      float *next = reinterpret_cast<float *>(scratch);
      int64_t width = widthOf(shape), rowsOfKeys = lengthOf(shape) * width;
      for (float **part : {&k, &v})
        *part = next, next += rowsOfKeys;
      for (float **part : {&q, &qt, &ot})
        *part = next, next += queryBlock * width;
      st = next;
      largest = st + roundUp(keyBlockOf(shape), rows) * panel;
      sum = largest + queryBlock;
    }
    float *end() const { return sum + queryBlock; }
  };

  /// A tile of scores, and the panel's running maximum. (Not inlined, like the tiles below: alone they keep every
  /// register for the loop; inside a larger function g++ 12 spills within it.)
  [[gnu::noinline]] static void scoreTile(const float *k, int64_t width, const float *qt, float *st, float *top) {
    Vector tile[rows][vectors];
    clearTile(tile);
    dot(tile, k, width, qt, panel, width);
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
  /// The same where some keys are hidden.
  static void hiddenScoreTile(const float *k, int64_t width, const float *qt, float *st, float *top, int64_t key,
                              const Sight &sight) {
    alignas(64) float unused[panel] = {};
    scoreTile(k, width, qt, st, unused);
    sight.hide(st, panel, key, hidden);
    for (int i = 0; i < rows; ++i)
      for (int n = 0; n < vectors; ++n)
        store(top + n * lanes, greater(load(top + n * lanes), load(st + i * panel + n * lanes)));
  }

  /// One panel against one block of keys.
  static void forwardBlock(const Forward &f, int64_t p, int64_t width, int64_t j0, int64_t keys, const Sight &sight) {
    float *ot = f.ot + p * width * panel, *largest = f.largest + p * panel, *sum = f.sum + p * panel;
    const float *k = f.k + j0 * width, *qt = f.qt + p * width * panel;
    Vector before[vectors], top[vectors], total[vectors] = {};
    for (int n = 0; n < vectors; ++n)
      before[n] = load(largest + n * lanes);
    for (int64_t t = 0; t < keys; t += rows)
      if (sight.crosses(j0 + t))
        hiddenScoreTile(k + t * width, width, qt, f.st + t * panel, largest, j0 + t, sight);
      else
        scoreTile(k + t * width, width, qt, f.st + t * panel, largest);
    for (int n = 0; n < vectors; ++n)
      top[n] = load(largest + n * lanes);
    keys = roundUp(keys, rows);
    for (int64_t j = 0; j < keys; ++j)
      for (int n = 0; n < vectors; ++n) {
        Vector weight = exp2(load(f.st + j * panel + n * lanes) - top[n]);
        store(f.st + j * panel + n * lanes, weight);
        total[n] += weight;
      }
    Integers moved = {};
    for (int n = 0; n < vectors; ++n)
      moved |= Integers(top[n] > before[n]);
    int32_t any = 0;
    for (int lane = 0; lane < lanes; ++lane)
      any |= moved[lane];
    for (int n = 0; n < vectors; ++n) {
      Vector shrink = exp2(before[n] - top[n]);
      store(sum + n * lanes, load(sum + n * lanes) * shrink + total[n]);
      for (int64_t c = 0; c < width && any; ++c)
        store(ot + c * panel + n * lanes, load(ot + c * panel + n * lanes) * shrink);
    }
    addOuter(ot, f.v + j0 * width, f.st, panel, width, keys);
  }

  template <class E>
  static void forwardQueries(const AttentionShape &shape, const Forward &f, const E *q, E *o, float *lse, int64_t q0) {
    int64_t width = widthOf(shape), keyBlock = keyBlockOf(shape), stride = shape.heads * shape.d;
    int64_t queries = shape.s - q0 < queryBlock ? shape.s - q0 : queryBlock;
    int64_t packed = roundUp(queries, panel);
    int64_t keys = shape.causal ? q0 + queries : shape.s;
    packRows(q + q0 * stride, stride, queries, shape.d, f.q, width, packed);
    transposeBlock(f.q, packed, width, log2e / __builtin_sqrtf(float(shape.d)), f.qt);
    memset(f.ot, 0, size_t(packed * width) * 4);
    for (int64_t i = 0; i < packed; ++i)
      f.largest[i] = hidden, f.sum[i] = 0;
    for (int64_t j0 = 0; j0 < keys; j0 += keyBlock)
      for (int64_t p = 0; p * panel < queries; ++p) {
        Sight sight{shape.s, q0 + p * panel, shape.causal};
        int64_t seen = sight.keys(j0, keyBlock);
        if (seen > 0)
          forwardBlock(f, p, width, j0, seen, sight);
      }
    for (int64_t i = 0; i < queries; ++i) {
      lse[q0 + i] = ln2 * f.largest[i] + __builtin_logf(f.sum[i]);
      f.sum[i] = 1 / f.sum[i];
    }
    transposeBack(f.ot, packed, width, f.sum, f.q);
    unpackRows(f.q, width, o + q0 * stride, stride, queries, shape.d);
  }

  template <class E> static pp_status_t forward(const PreparedOp &op, void *const *arguments) {
    AttentionShape shape(op);
    Forward f(op.scratch, shape);
    int64_t width = widthOf(shape), length = lengthOf(shape), share = shape.heads / shape.groups;
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t group = 0; group < shape.groups; ++group) {
        int64_t at = shape.key(b, 0, group), stride = shape.groups * shape.d;
        packRows(in<E>(arguments[1]) + at, stride, shape.s, shape.d, f.k, width, length);
        packRows(in<E>(arguments[2]) + at, stride, shape.s, shape.d, f.v, width, length);
        for (int64_t head = group * share; head < (group + 1) * share; ++head)
          for (int64_t q0 = 0; q0 < shape.s; q0 += queryBlock)
            forwardQueries(shape, f, in<E>(arguments[0]) + shape.query(b, 0, head),
                           out<E>(arguments[3]) + shape.query(b, 0, head),
                           out<float>(arguments[4]) + (b * shape.heads + head) * shape.s, q0);
      }
    return PP_OK;
  }

  // --- Backward ------------------------------------------------------------------------------------------------------

  struct Backward {
    float *k, *v, *dk, *dv, *q, *dout, *qt, *doutT, *dqt, *pt, *dst, *lse, *delta, *ones;
    Backward(char *scratch, const AttentionShape &shape) {
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
  static void backwardScores(const Backward &f, int64_t p, int64_t width, int64_t j0, int64_t keys, float scale,
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
  static void backwardBlock(const AttentionShape &shape, const Backward &f, int64_t q0, int64_t queries, int64_t j0) {
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
  static void backwardQueries(const AttentionShape &shape, const Backward &f, const Head<E> &head, int64_t q0) {
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

  template <class E> static pp_status_t backward(const PreparedOp &op, void *const *arguments) {
    AttentionShape shape(op);
    Backward f(op.scratch, shape);
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

  static int64_t scratchBytes(const AttentionShape &shape, bool backward) {
    return reinterpret_cast<char *>(backward ? Backward(nullptr, shape).end() : Forward(nullptr, shape).end()) -
           static_cast<char *>(nullptr);
  }
};

} // namespace

#endif // PP_RUNTIME_KERNELS_BLOCKEDATTENTION_H
