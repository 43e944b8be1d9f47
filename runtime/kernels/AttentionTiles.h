// The register tiles of blocked attention: vectors, two micro-kernels, the packing of rows, which keys a query sees.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A tile of `rows` x 3 vectors stays in registers: 4 x 3 of 16 registers with AVX2, 8 x 3 of 32 with AVX-512; one row
// element is broadcast and used three times.
//
// Operands are words of 32 bits. A word is an f32, or (`paired`) two bf16 that are neighbours along the sum: channels
// of a row for dot products of rows ("rows" below), or neighbouring rows for sums over rows ("across").
#ifndef PP_RUNTIME_KERNELS_ATTENTIONTILES_H
#define PP_RUNTIME_KERNELS_ATTENTIONTILES_H

#include "runtime/kernels/AttentionShape.h"
#include "runtime/kernels/Facts.h"

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
      Floats a = __builtin_shuffle(v[0], v[1], Integers unpackLow);                                                    \
      Floats b = __builtin_shuffle(v[2], v[3], Integers unpackLow);                                                    \
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

/// Words of two bf16 each, as many as `lanes`: only where the CPU multiplies them.
template <int lanes> struct PairsOf;
#ifdef __AVX512BF16__
template <> struct PairsOf<16> {
  using Vector = VectorOf<16>::Floats;
  /// sum + low * low + high * high, of the word `a` and each word of b.
  PP_INLINE static Vector multiplyAdd(Vector sum, float a, Vector b) {
    return Vector(_mm512_dpbf16_ps(__m512(sum), __m512bh(_mm512_set1_ps(a)), __m512bh(b)));
  }
  /// Rounds two vectors and puts each number of the second above the one of the first.
  PP_INLINE static Vector pair(Vector low, Vector high) {
    const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                            21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return Vector(_mm512_permutexvar_epi16(places, __m512i(_mm512_cvtne2ps_pbh(__m512(high), __m512(low)))));
  }
  /// Rounds a vector into eight words, its numbers side by side.
  PP_INLINE static void storeHalves(float *words, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i_u *>(words), __m256i(_mm512_cvtneps_pbh(__m512(v))));
  }
  /// The first `left` numbers of two rows, each of the second above the one of the first, and zeros.
  PP_INLINE static Vector interleave(const void *low, const void *high, int64_t left) {
    auto mask = __mmask16(left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
    __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, low));
    __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high ? mask : __mmask16(0), high));
    return Vector(_mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
  }
};
#endif

/// Loops over a register tile must vanish before the compiler decides what lives in registers.
#define PP_UNROLL _Pragma("GCC unroll 16")

/// `lanes` floats a vector, `rows` rows a tile.
template <int lanes, int rows, bool paired = false> struct Tiles {
  static constexpr int64_t perWord = paired ? 2 : 1;
  using Vector = typename VectorOf<lanes>::Floats;
  using Integers = typename VectorOf<lanes>::Integers;

  static constexpr int64_t vectors = 3, panel = vectors * lanes, queryBlock = queriesOfBlock;
  static_assert(queryBlock % panel == 0);
  /// A hidden score, and the maximum of a query that has seen nothing yet: it is the larger, so that a query which sees
  /// no key of a block gives every one of them the weight 2^(hidden - unseen) = 0.
  static constexpr float hidden = -1e30f, unseen = -1e20f;
  static constexpr float log2e = 1.44269504f, ln2 = 0.693147181f;

  static constexpr int64_t roundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
  /// Rows of scratch are padded with zeros to whole vectors and tiles.
  static int64_t widthOf(const AttentionShape &shape) { return roundUp(shape.d, lanes > 8 ? lanes : 8); }
  static int64_t lengthOf(int64_t keys) { return roundUp(keys, 16); }
  static int64_t queriesFrom(const AttentionShape &shape, int64_t q0) {
    return shape.s - q0 < queryBlock ? shape.s - q0 : queryBlock;
  }
  /// Blocks of queries that carry something from chunk to chunk: those of both runs of a kv head's heads, or, where one
  /// chunk is all, the block at hand.
  static int64_t blocksKept(const AttentionShape &shape) {
    return shape.count > 1 ? shape.share() * shape.runs * (roundUp(shape.s, queryBlock) / queryBlock) : 1;
  }
  static int64_t blockKept(const AttentionShape &shape, int64_t head, int64_t q0) {
    int64_t run = head % shape.share() * shape.runs + shape.first / shape.s;
    return shape.count > 1 ? (run * roundUp(shape.s, queryBlock) + q0) / queryBlock : 0;
  }
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

  /// sum + a * b, of one word and a vector of words.
  PP_INLINE static Vector multiplyAdd(Vector sum, float a, Vector b) {
    if constexpr (paired)
      return PairsOf<lanes>::multiplyAdd(sum, a, b);
    else
      return sum + a * b;
  }

  /// tile[i][n] += sum over the words c of a[i][c] * b[c][n].
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
        tile[i][n] = multiplyAdd(tile[i][n], a[i * aStride + c], right[n]);
    }
  }

  /// tile[i][n] += sum over the words k of a[k][i] * b[k][n].
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
        tile[i][n] = multiplyAdd(tile[i][n], a[k * aStride + i], right[n]);
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
  template <int width> PP_INLINE static void storeTile(const Vector (&tile)[rows][width], float *c, int64_t stride) {
    PP_UNROLL
    for (int i = 0; i < rows; ++i)
      PP_UNROLL
    for (int n = 0; n < width; ++n)
      store(c + i * stride + n * lanes, tile[i][n]);
  }

  /// c[width][panel] += a^T b over `depth` words of keys: Ot += V^T P and dQt += K^T dSt.
  [[gnu::noinline]] static void addOuter(float *c, const float *a, const float *b, int64_t bStride, int64_t width,
                                         int64_t depth) {
    for (int64_t i = 0; i < width; i += rows) {
      Vector tile[rows][vectors];
      loadTile(tile, c + i * panel, panel);
      outer(tile, a + i, width, b, bStride, depth);
      storeTile(tile, c + i * panel, panel);
    }
  }

  /// One tile of dV += Pt dO or dK += dSt Q: `rows` keys by `count` vectors of channels, over `depth` words of queries.
  template <int count>
  PP_INLINE static void addDotTile(float *c, const float *a, const float *b, int64_t width, int64_t depth) {
    Vector tile[rows][count];
    loadTile(tile, c, width);
    dot(tile, a, queryBlock / perWord, b, width, depth);
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

  /// The hardware foresees no rows that lie a whole token apart.
  template <class E> PP_INLINE static void prefetchRow(const E *x, int64_t d) {
    for (int64_t line = 0; line < d * int64_t(sizeof(E)); line += 64)
      __builtin_prefetch(reinterpret_cast<const char *>(x) + line);
  }
  /// n rows of a head into dense rows of words, zero to `width` channels and from n to `length`.
  template <class E>
  static void packRows(const E *x, int64_t stride, int64_t n, int64_t d, float *y, int64_t width, int64_t length) {
    int64_t words = width / perWord;
    for (int64_t t = 0; t < n; ++t) {
      prefetchRow(x + (t + 8) * stride, d);
      if constexpr (paired) {
        memcpy(y + t * words, x + t * stride, size_t(d) * sizeof(E));
        memset(reinterpret_cast<char *>(y + t * words) + d * sizeof(E), 0, size_t(width - d) * sizeof(E));
        continue;
      }
      widenRun(x + t * stride, y + t * words, d);
      for (int64_t c = d; c < words; ++c)
        y[t * words + c] = 0;
    }
    memset(y + n * words, 0, size_t((length - n) * words) * 4);
  }
  /// The same for sums over rows: word c of row t / perWord holds channel c of rows t to t + perWord.
  template <class E>
  static void packAcross(const E *x, int64_t stride, int64_t n, int64_t d, float *y, int64_t width, int64_t length) {
    if constexpr (!paired) {
      packRows(x, stride, n, d, y, width, length);
    } else {
      for (int64_t t = 0; t < n; t += 2) {
        prefetchRow(x + (t + 8) * stride, d);
        prefetchRow(x + (t + 9) * stride, d);
        const E *low = x + t * stride, *high = t + 1 < n ? low + stride : nullptr;
        for (int64_t c = 0; c < width; c += lanes)
          store(y + t / 2 * width + c,
                PairsOf<lanes>::interleave(low + (c < d ? c : 0), high ? high + (c < d ? c : 0) : nullptr, d - c));
      }
      memset(y + (n + 1) / 2 * width, 0, size_t((length - (n + 1) / 2 * 2) / 2 * width) * 4);
    }
  }
  /// And back; `adds` to what the rows hold.
  template <class E>
  static void unpackRows(const float *x, int64_t width, E *y, int64_t stride, int64_t n, int64_t d, bool adds) {
    for (int64_t t = 0; t < n && adds; ++t)
#pragma omp simd
      for (int64_t c = 0; c < d; ++c)
        put(y + t * stride, c, get(y + t * stride, c) + x[t * width + c]);
    for (int64_t t = 0; t < n && !adds; ++t)
      narrowRun(x + t * width, y + t * stride, d);
  }

  /// Scores of f32 come scaled from scaled queries. Pairs of bf16 stay as they are, and their sums are scaled.
  PP_INLINE static Vector scaled(Vector sum, float scale) { return paired ? sum * scale : sum; }

  /// Transposes `n` dense rows of a query block into panels [panel][word][lane], and scales words of f32: groups of
  /// four lanes read four words of their rows, then exchange them.
  [[gnu::noinline]] static void transposeBlock(const float *x, int64_t n, int64_t width, float scale, float *y) {
    int64_t words = width / perWord;
    for (int64_t q = 0; q < n; q += lanes)
      for (int64_t c = 0; c < words; c += 4) {
        Vector part[4];
        PP_UNROLL
        for (int r = 0; r < 4; ++r)
          gather(x + (q + r) * words + c, words, part[r]);
        VectorOf<lanes>::transposeFours(part);
        PP_UNROLL
        for (int r = 0; r < 4; ++r)
          store(y + (q / panel * words + c + r) * panel + q % panel, paired ? part[r] : scale * part[r]);
      }
  }
  /// And back, each lane by its factor.
  [[gnu::noinline]] static void transposeBack(const float *x, int64_t n, int64_t width, const float *factor, float *y) {
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

  // --- Capped scores -------------------------------------------------------------------------------------------------

  /// tanh up to 5e-7 of its value, and its derivative up to as much of it: where 1 - tanh^2 cancels, of e^-2x.
  PP_INLINE static Vector hyperbolicTangent(Vector x, Vector &slope) {
    Vector size = x < 0 ? -x : x, power = exp2(-2 * log2e * size), square = x * x;
    Vector far = (1 - power) / (1 + power), farSlope = 4 * power / ((1 + power) * (1 + power));
    Vector near = square * 0.0218694885f - 0.0539682540f; // the series, where 1 - e^-2x cancels
    near = near * square + 0.133333333f;
    near = near * square - 0.333333333f;
    near = (near * square + 1.0f) * x;
    slope = size < 0.3f ? 1 - near * near : farSlope;
    return size < 0.3f ? near : x < 0 ? -far : far;
  }
  /// Caps a stored tile of scores in powers of two; `slopes`, if given, gets the derivative of each.
  [[gnu::noinline]] static void capTile(float *tile, int64_t stride, float cap, float *slopes) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t n = 0; n < panel; n += lanes) {
        Vector slope, share = hyperbolicTangent(load(tile + i * stride + n) / cap, slope);
        store(tile + i * stride + n, cap * share);
        if (slopes)
          store(slopes + i * panel + n, slope);
      }
  }

  // --- Masks ---------------------------------------------------------------------------------------------------------

  /// Which keys of a chunk a panel of queries sees: key j is seen by query i if j < length, and j <= first + i where
  /// causal; `first` counts from the chunk's first key, and is negative for queries that come before it. A window or a
  /// document bounds the keys from below.
  struct Sight {
    int64_t length, first;
    bool causal;
    const int32_t *low; ///< the first key that each query sees; null where nothing bounds it
    int64_t all;        ///< the greatest of these: a key that no bound hides from a query
    /// Keys of the block at j0 that some query of the panel sees.
    int64_t keys(int64_t j0, int64_t block) const {
      int64_t end = causal && first + panel < length ? first + panel : length;
      return end - j0 < block ? end - j0 : block;
    }
    bool crosses(int64_t key) const { return key + rows > length || (causal && key + rows - 1 > first) || key < all; }
    /// For each row of a stored tile that has hidden keys: value where seen, else `otherwise`.
    [[gnu::noinline]] void hide(float *tile, int64_t stride, int64_t key, float otherwise) const {
      Integers lane;
      for (int i = 0; i < lanes; ++i)
        lane[i] = i;
      for (int n = 0; n < vectors; ++n) {
        Integers last = Integers{} + (INT32_MAX - 1), from = Integers{} - INT32_MAX;
        if (causal)
          last = lane + int32_t(first + n * lanes);
        if (low)
          from = *reinterpret_cast<const Integers *>(low + n * lanes);
        for (int64_t i = 0; i < rows; ++i) {
          Integers at = Integers{} + (key + i < length ? int32_t(key + i) : INT32_MAX);
          float *values = tile + i * stride + n * lanes;
          store(values, (at <= last) & (at >= from) ? load(values) : Vector{} + otherwise);
        }
      }
    }
  };

  /// The bounds from below of a block of queries against a chunk, panel by panel.
  struct Bounds {
    bool any;
    alignas(64) int32_t low[queryBlock];
    int64_t begins[queryBlock / panel], alls[queryBlock / panel];
    Bounds(const AttentionShape &shape, const Chunk &chunk, int64_t b, int64_t q0) : any(shape.isBounded()) {
      int64_t queries = queriesFrom(shape, q0);
      for (int64_t i = 0; i < queryBlock && any; ++i)
        low[i] = int32_t(shape.lowest(chunk, b, q0 + (i < queries ? i : queries - 1)));
      for (int64_t p = 0; p < queryBlock / panel; ++p) {
        begins[p] = any ? low[p * panel] : 0, alls[p] = 0;
        for (int64_t i = p * panel; i < (p + 1) * panel && any; ++i)
          alls[p] = low[i] > alls[p] ? low[i] : alls[p];
      }
    }
    /// The tile of keys with which panel p begins.
    int64_t begin(int64_t p) const { return begins[p] < 0 ? 0 : begins[p] / rows * rows; }
    /// Whether the query and all after it see none of the tile of keys.
    bool isBehind(int64_t query, int64_t key) const { return any && low[query] >= key + rows; }
    Sight sight(const AttentionShape &shape, const Chunk &chunk, int64_t q0, int64_t p) const {
      return {chunk.length, shape.lead(chunk) + q0 + p * panel, shape.causal, any ? low + p * panel : nullptr, alls[p]};
    }
  };
};

} // namespace

#endif // PP_RUNTIME_KERNELS_ATTENTIONTILES_H
