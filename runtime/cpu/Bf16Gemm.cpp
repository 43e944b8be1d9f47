// Products of bf16 by AVX512-BF16: pairs of elements along k are multiplied and summed into f32 in one instruction.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   panel of b, 48 columns           a tile of c: 8 rows by 3 vectors of 16 columns, in registers
//   pair 0   [b00 b10 | b01 b11 | ..]        c[i][j] += a[i][2p] b[2p][j] + a[i][2p+1] b[2p+1][j]
//   pair 1   [b20 b30 | b21 b31 | ..]
//
// b is packed for a block of columns and all of k that a block has; a is read as it lies where pairs along k lie
// together, else it is packed too. Sums over k are made in blocks of `depth`: a block's tile stays in registers, and
// between blocks it lies in f32, in c itself or (c in bf16) in scratch, so c is rounded once. Each element of c is
// summed in an order that depends on k alone: not on m, n, or how columns are dealt out to threads.
#include "runtime/cpu/Bf16Gemm.h"
#include <algorithm>
#include <immintrin.h>

using namespace pp;

namespace {

constexpr int64_t tileRows = 8, lanes = 16, panel = bf16Panel, panelBytes = panel * 4; // of one pair
constexpr int64_t depth = 256, blockRows = 96, blockColumns = 8 * panel, blockDepth = 2048;
constexpr int64_t mostRows = 11 * blockRows; // whose sums and packed a lie in scratch together

int64_t pairsOf(int64_t k) { return (k + 1) / 2; }
int64_t roundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/// The places of the element pairs of a: as given, or packed in panels of 8 rows.
struct Rows {
  const char *first;
  int64_t row, pair; // bytes from one to the next
};

/// A tile of c, and what becomes of it.
struct Target {
  float *sums; ///< what earlier blocks of k left, and where this one leaves its own
  int64_t stride;
  bool begins;                 ///< nothing is in `sums` yet
  uint16_t *rounded = nullptr; ///< where it is rounded to at the end; null: it stays in `sums`
  int64_t roundedStride = 0;
  const uint16_t *bias = nullptr;
  bool adds = false; ///< to what `rounded` holds
};

__m512 widen(__mmask16 mask, const uint16_t *x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x)), 16));
}

template <int rows, int vectors>
[[gnu::noinline]] void tile(Rows a, const char *b, int64_t pairs, const Target &t, __mmask16 last) {
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) // where the tile goes, while it is computed
#pragma GCC unroll 3
    for (int n = 0; n < vectors; ++n)
      if (t.rounded)
        __builtin_prefetch(t.rounded + i * t.roundedStride + n * lanes, 1);
      else
        __builtin_prefetch(t.sums + i * t.stride + n * lanes, 1);
  __m512 sum[rows][vectors];
  auto maskOf = [&](int n) -> __mmask16 { return n + 1 < vectors ? __mmask16(0xffff) : last; };
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 3
    for (int n = 0; n < vectors; ++n)
      sum[i][n] = t.begins ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(maskOf(n), t.sums + i * t.stride + n * lanes);
  const char *left = a.first;
  for (int64_t p = 0; p < pairs; ++p, b += panelBytes, left += a.pair) {
    __m512bh right[vectors];
#pragma GCC unroll 3
    for (int n = 0; n < vectors; ++n)
      right[n] = (__m512bh)_mm512_load_si512(b + n * lanes * 4);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      int32_t both;
      __builtin_memcpy(&both, left + i * a.row, 4);
      auto wide = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 3
      for (int n = 0; n < vectors; ++n)
        sum[i][n] = _mm512_dpbf16_ps(sum[i][n], wide, right[n]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 3
    for (int n = 0; n < vectors; ++n) {
      __mmask16 mask = maskOf(n);
      if (!t.rounded) {
        _mm512_mask_storeu_ps(t.sums + i * t.stride + n * lanes, mask, sum[i][n]);
        continue;
      }
      uint16_t *c = t.rounded + i * t.roundedStride + n * lanes;
      if (t.bias)
        sum[i][n] = _mm512_add_ps(sum[i][n], widen(mask, t.bias + n * lanes));
      if (t.adds)
        sum[i][n] = _mm512_add_ps(sum[i][n], widen(mask, c));
      _mm256_mask_storeu_epi16(c, mask, (__m256i)_mm512_cvtneps_pbh(sum[i][n]));
    }
}

template <int rows> void tileOf(Rows a, const char *b, int64_t pairs, const Target &t, int64_t columns) {
  auto last = __mmask16((1u << ((columns - 1) % lanes + 1)) - 1);
  if (columns > 2 * lanes)
    tile<rows, 3>(a, b, pairs, t, last);
  else if (columns > lanes)
    tile<rows, 2>(a, b, pairs, t, last);
  else
    tile<rows, 1>(a, b, pairs, t, last);
}

//===-- Packing -------------------------------------------------------------------------------------------------===//

/// Sixteen vectors of sixteen pairs, transposed.
void transpose(__m512i (&v)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

/// Pairs of two rows: x[j] below y[j].
[[gnu::always_inline]] inline __m512i interleave(__mmask16 mask, const uint16_t *x, const uint16_t *y) {
  __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x));
  __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(y ? mask : __mmask16(0), y));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/// `columns` columns of `k` rows, which lie `row` apart, into panels of `wide`: y[panel][pair][wide], zero past the
/// last column. Row by row, as memory is read best.
template <int wide> void packAcross(const uint16_t *x, int64_t row, int64_t k, int64_t columns, char *y) {
  constexpr int step = wide < lanes ? lanes / wide : 1; // panels that one vector fills
  int64_t panelSize = pairsOf(k) * wide * 4;
  for (int64_t p = 0; p < pairsOf(k); ++p, x += 2 * row)
    for (int64_t j = 0; j < roundUp(columns, wide); j += lanes) {
      int64_t left = std::clamp<int64_t>(columns - j, 0, lanes);
      const uint16_t *at = left ? x + j : x;
      __builtin_prefetch(at + 16 * row); // the hardware foresees no rows that lie far apart
      __builtin_prefetch(at + 17 * row);
      auto mask = __mmask16((1u << left) - 1);
      __m512i pairs = interleave(mask, at, 2 * p + 1 < k ? at + row : nullptr);
      char *to = y + j / wide * panelSize + (p * wide + j % wide) * 4;
      if constexpr (step == 1) {
        _mm512_store_si512(to, pairs);
      } else {
        _mm256_store_si256(reinterpret_cast<__m256i *>(to), _mm512_castsi512_si256(pairs));
        if (j + wide < columns)
          _mm256_store_si256(reinterpret_cast<__m256i *>(to + panelSize), _mm512_extracti64x4_epi64(pairs, 1));
      }
    }
}

/// Up to 16 columns, `column` apart, whose `k` elements lie together.
void packAlong(const uint16_t *x, int64_t column, int64_t k, int64_t columns, int64_t room, char *y, int64_t step) {
  auto whole = __mmask16((1u << room) - 1);
  for (int64_t k0 = 0; k0 < k; k0 += 32) {
    int64_t left = std::min<int64_t>(k - k0, 32);
    auto mask = __mmask32(left == 32 ? ~0u : (1u << left) - 1);
    __m512i v[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j)
      v[j] = _mm512_maskz_loadu_epi16(j < columns ? mask : __mmask32(0), x + (j < columns ? j : 0) * column + k0);
    transpose(v);
    for (int64_t p = 0; p < pairsOf(left); ++p, y += step)
      _mm512_mask_storeu_epi32(y, whole, v[p]);
  }
}

/// `columns` columns of b into panels [pair][48], zero past the last.
void packB(const uint16_t *b, const GemmShape &g, int64_t k, int64_t columns, char *y) {
  if (g.bColumn == 1)
    return packAcross<panel>(b, g.bRow, k, columns, y);
  for (int64_t j = 0; j < columns; j += panel, y += pairsOf(k) * panelBytes)
    for (int64_t n = 0; n < panel; n += lanes) {
      int64_t width = std::clamp<int64_t>(columns - j - n, 0, lanes);
      packAlong(b + (width ? j + n : 0) * g.bColumn, g.bColumn, k, width, lanes, y + n * 4, panelBytes);
    }
}

/// `rows` rows of a into panels [pair][8].
void packA(const uint16_t *a, const GemmShape &g, int64_t k, int64_t rows, char *y) {
  // A line of memory at a time: more panels than a cache has ways would lie in the same sets.
  int64_t panelSize = pairsOf(k) * tileRows * 4;
  for (int64_t i = 0; i < rows && g.aRow == 1; i += 4 * tileRows, y += 4 * panelSize)
    packAcross<tileRows>(a + i, g.aColumn, k, std::min(rows - i, 4 * tileRows), y);
  for (int64_t i = 0; i < rows && g.aRow != 1; i += tileRows, y += panelSize)
    packAlong(a + i * g.aRow, g.aRow, k, std::min(rows - i, tileRows), tileRows, y, tileRows * 4);
}

//===-- Blocks --------------------------------------------------------------------------------------------------===//

/// Whether pairs of a can be read where they lie: along k, and none past its end.
bool readsA(const GemmShape &g) { return g.aColumn == 1 && g.k % 2 == 0; }
bool keepsSums(const GemmShape &g) { return g.halfOut() && g.k > depth; }

/// A block of c, whose first row is `c` and `sums`: the rows of one block of a against the packed columns, one depth of
/// k after the other.
struct Block {
  const GemmShape &g;
  const uint16_t *bias;
  void *c;
  float *sums;             // of c in bf16, [mostRows][blockColumns]
  int64_t column, columns; // of c
  int64_t k0, k;           // of this block

  Target target(int64_t i, int64_t j, int64_t at, int64_t many) const {
    bool begins = k0 + at == 0, ends = k0 + at + many == g.k;
    int64_t offset = i * g.n + column + j;
    if (!g.halfOut())
      return {static_cast<float *>(c) + offset, g.n, begins && !g.accumulate};
    Target target{sums + i * blockColumns + j, blockColumns, begins};
    if (ends) {
      target.rounded = static_cast<uint16_t *>(c) + offset, target.roundedStride = g.n;
      target.bias = g.bias ? bias + column + j : nullptr, target.adds = g.accumulate;
    }
    return target;
  }

  void rows(int64_t i, int64_t count, Rows a, const char *b, int64_t j, int64_t at, int64_t many) const {
    int64_t pairs = pairsOf(many), width = std::min(columns - j, panel);
    auto next = [&](int64_t step) { i += step, count -= step, a.first += step * a.row; };
    for (; count >= 8; next(8))
      tileOf<8>(a, b, pairs, target(i, j, at, many), width);
    if (count >= 4)
      tileOf<4>(a, b, pairs, target(i, j, at, many), width), next(4);
    if (count >= 2)
      tileOf<2>(a, b, pairs, target(i, j, at, many), width), next(2);
    if (count >= 1)
      tileOf<1>(a, b, pairs, target(i, j, at, many), width);
  }

  /// `packed`: panels of 8 rows, each of all the block's pairs; null: a is read where it lies.
  void run(int64_t i0, int64_t height, const uint16_t *a, const char *packed, const char *b) const {
    for (int64_t at = 0; at < k; at += depth) {
      int64_t many = std::min(depth, k - at), pair = at / 2;
      for (int64_t j = 0; j < columns; j += panel) {
        const char *right = b + (j / panel * pairsOf(k) + pair) * panelBytes;
        if (!packed) {
          rows(i0, height, {reinterpret_cast<const char *>(a + k0 + at), g.aRow * 2, 4}, right, j, at, many);
          continue;
        }
        for (int64_t i = 0; i < height; i += tileRows)
          rows(i0 + i, std::min(tileRows, height - i),
               {packed + (i * pairsOf(k) + pair * tileRows) * 4, 4, tileRows * 4}, right, j, at, many);
      }
    }
  }
};

/// Scratch of one thread: panels of b, panels of a, sums.
struct Scratch {
  char *b, *a;
  float *sums;
  int64_t bytes;
  Scratch(const GemmShape &g, char *first) {
    int64_t rows = std::min(g.m, mostRows), pairs = pairsOf(std::min(g.k, blockDepth)),
            columns = std::min(roundUp(g.n, panel), blockColumns);
    int64_t bBytes = pairs * columns * 4, aBytes = readsA(g) ? 0 : pairs * roundUp(rows, tileRows) * 4;
    int64_t sumBytes = keepsSums(g) ? rows * blockColumns * 4 : 0;
    b = first, a = b + bBytes, sums = reinterpret_cast<float *>(a + aBytes);
    bytes = roundUp(bBytes + aBytes + sumBytes, 64);
  }
};

} // namespace

int64_t pp::bf16GemmBytes(const GemmShape &shape) { return Scratch(shape, nullptr).bytes; }

/// Rows [first row of a and c, and so many], all their sums.
static void multiplyRows(const GemmShape &g, const uint16_t *left, const uint16_t *right, const uint16_t *bias, void *c,
                         int64_t height, const Scratch &scratch, int64_t first, int64_t end) {
  auto multiply = [&](int64_t j, int64_t k0) {
    int64_t k = std::min(g.k - k0, blockDepth);
    Block block{g, bias, c, scratch.sums, j, std::min(end - j, blockColumns), k0, k};
    packB(right + k0 * g.bRow + j * g.bColumn, g, k, block.columns, scratch.b);
    if (!readsA(g) && (keepsSums(g) || j == first))
      packA(left + k0 * g.aColumn, g, k, height, scratch.a);
    for (int64_t i = 0; i < height; i += blockRows)
      block.run(i, std::min(blockRows, height - i), left + i * g.aRow,
                readsA(g) ? nullptr : scratch.a + i * pairsOf(k) * 4, scratch.b);
  };
  // Scratch has the sums of one block of columns; where c holds them itself, what is packed of a serves all blocks.
  if (keepsSums(g))
    for (int64_t j = first; j < end; j += blockColumns)
      for (int64_t k0 = 0; k0 < g.k; k0 += blockDepth)
        multiply(j, k0);
  else
    for (int64_t k0 = 0; k0 < g.k; k0 += blockDepth)
      for (int64_t j = first; j < end; j += blockColumns)
        multiply(j, k0);
}

void pp::bf16Gemm(const GemmShape &g, const void *a, const void *b, const void *bias, void *c, char *memory,
                  int64_t first, int64_t end) {
  Scratch scratch(g, memory);
  for (int64_t i = 0; i < g.m; i += mostRows)
    multiplyRows(g, static_cast<const uint16_t *>(a) + i * g.aRow, static_cast<const uint16_t *>(b),
                 static_cast<const uint16_t *>(bias), static_cast<char *>(c) + i * g.n * (g.halfOut() ? 2 : 4),
                 std::min(mostRows, g.m - i), scratch, first, end);
}
