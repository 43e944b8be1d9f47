// Tiles of rows of 16-bit numbers in shared memory, and the products of a warp's 16 rows with them on the tensor cores.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rows of D elements lie D + 8 apart: 16 bytes more, an odd number of 16-byte banks, so that the eight rows of an 8x8
// matrix never share one. Columns from d on, and rows from the last on, are zeros.
#ifndef PP_RUNTIME_SIMT_TILES_H
#define PP_RUNTIME_SIMT_TILES_H

#include "runtime/simt/KeyLists.h"

namespace pp {

template <int D> constexpr int tileStride = D + 8;

/// The f32 sums of 16 rows and 8 * N columns: element (i, j) in the layout of runtime/simt/Simt.h.
template <int N> struct RowSums {
  float v[N][4];
  PP_DEVICE void clear() {
    PP_UNROLL
    for (int j = 0; j < N; ++j)
      for (int i = 0; i < 4; ++i)
        v[j][i] = 0;
  }
};

/// Copies `Rows` rows from `rows` on, `stride` elements apart; `present` of them exist. A thread copies packs of one
/// column, `step` rows apart; the copy ends later if rows are whole packs.
template <int Rows, int D, int Threads, bool Simple, class E>
PP_DEVICE void loadRows(const AttentionCall &n, E *tile, const E *rows, int64_t stride, int present) {
  constexpr int packs = D / 8, step = Threads / packs;
  static_assert(Threads % packs == 0 && Rows % step == 0);
  int row = int(threadIdx.x) / packs, column = int(threadIdx.x) % packs * 8, rest = column < n.d ? present - row : 0;
  E *to = tile + row * tileStride<D> + column;
  const E *from = rows + row * stride + column;
  if constexpr (!Simple)
    if (!n.wide) {
      for (int i = 0; i < Rows; i += step)
        for (int c = 0; c < 8; ++c)
          to[i * tileStride<D> + c].bits = i < rest && column + c < n.d ? from[i * stride + c].bits : uint16_t(0);
      return;
    }
  PP_UNROLL
  for (int i = 0; i < Rows; i += step)
    copyLater(to + i * tileStride<D>, from + i * stride, i < rest); // (a row that is not there is not read)
}

/// The left operand of a product: rows `row` to `row + 16`, columns `column` to `column + 16` of a tile.
template <int D, class E> PP_DEVICE void loadLeft(uint32_t (&a)[4], const E *tile, int row, int column) {
  int lane = int(threadIdx.x) % 32;
  loadMatrices(a, tile + (row + lane % 16) * tileStride<D> + column + lane / 16 * 8);
}
/// Right operands of two neighbouring 8-column blocks, from a tile whose rows are the product's columns: b[0], b[1] of
/// the block at `row`, b[2], b[3] of the block at `row + 8`.
template <int D, class E> PP_DEVICE void loadRight(uint32_t (&b)[4], const E *tile, int row, int column) {
  int lane = int(threadIdx.x) % 32;
  loadMatrices(b, tile + (row + lane / 16 * 8 + lane % 8) * tileStride<D> + column + lane / 8 % 2 * 8);
}
/// The same from a tile whose rows are the product's inner index: blocks at `column` and `column + 8`.
template <int D, class E> PP_DEVICE void loadRightDown(uint32_t (&b)[4], const E *tile, int row, int column) {
  int lane = int(threadIdx.x) % 32;
  loadMatricesTransposed(b, tile + (row + lane % 16) * tileStride<D> + column + lane / 16 * 8);
}

/// sums[16, 8N] += rows `row` on of `left` times the rows of `right`, both of width D.
template <int N, int D, class E> PP_DEVICE void multiplyRows(RowSums<N> &sums, const E *left, int row, const E *right) {
  PP_UNROLL
  for (int c = 0; c < D; c += 16) {
    uint32_t a[4];
    loadLeft<D>(a, left, row, c);
    PP_UNROLL
    for (int j = 0; j < N; j += 2) {
      uint32_t b[4];
      loadRight<D>(b, right, j * 8, c);
      multiply<E>(sums.v[j], a, b[0], b[1]);
      multiply<E>(sums.v[j + 1], a, b[2], b[3]);
    }
  }
}

/// Left operands of 16 rows and 8 N columns, made of sums where they lie.
template <class E, int N> struct Operands {
  uint32_t a[N / 2][4];
  PP_DEVICE explicit Operands(const RowSums<N> &sums) {
    PP_UNROLL
    for (int k = 0; k < N / 2; ++k) {
      a[k][0] = E::pairOf(sums.v[2 * k][0], sums.v[2 * k][1]);
      a[k][1] = E::pairOf(sums.v[2 * k][2], sums.v[2 * k][3]);
      a[k][2] = E::pairOf(sums.v[2 * k + 1][0], sums.v[2 * k + 1][1]);
      a[k][3] = E::pairOf(sums.v[2 * k + 1][2], sums.v[2 * k + 1][3]);
    }
  }
};

/// sums[16, 8M] += operands[16, 8N] times columns `column` on of the 8N rows of `right`.
template <int M, int N, int D, class E>
PP_DEVICE void multiplyDown(RowSums<M> &sums, const Operands<E, N> &operands, const E *right, int column) {
  PP_UNROLL
  for (int k = 0; k < N / 2; ++k)
    PP_UNROLL
  for (int j = 0; j < M; j += 2) {
    uint32_t b[4];
    loadRightDown<D>(b, right, k * 16, column + j * 8);
    multiply<E>(sums.v[j], operands.a[k], b[0], b[1]);
    multiply<E>(sums.v[j + 1], operands.a[k], b[2], b[3]);
  }
}

/// Bends scores under the cap.
template <int N> PP_DEVICE void capScores(const AttentionCall &n, RowSums<N> &scores) {
  PP_UNROLL
  for (int j = 0; j < N; ++j)
    for (int i = 0; i < 4; ++i)
      scores.v[j][i] = n.fromCap * hyperbolicTangent(n.toCap * scores.v[j][i]);
}

/// A score that its query does not see.
constexpr float hidden = minusInfinity<float>;

/// Calls `hide(j, i)` for the scores of a tile, rows of queries, that are not seen; t is the thread's first row of the
/// run, key the tile's first.
template <int N, class Hide>
PP_DEVICE void forHidden(const AttentionCall &n, int chunk, int b, int t, int key, const Hide &hide) {
  int column = key + int(threadIdx.x) % 4 * 2;
  PP_UNROLL
  for (int half = 0; half < 2; ++half) {
    int low, high;
    n.seenBy(chunk, b, t + 8 * half, low, high);
    low -= column, high -= column;
    PP_UNROLL
    for (int j = 0; j < N; ++j)
      for (int i = 0; i < 2; ++i)
        if (8 * j + i < low || 8 * j + i >= high)
          hide(j, 2 * half + i);
  }
}

/// Writes two neighbouring elements of a row of d, where they exist.
template <class E> PP_DEVICE void putPair(E *row, int column, int d, float x, float y) {
  if (d % 2 == 0 && column < d) {
    checkAligned(row + column, 4);
    *reinterpret_cast<uint32_t *>(row + column) = E::pairOf(x, y);
    return;
  }
  if (column < d)
    row[column].bits = E::bitsOf(x);
  if (column + 1 < d)
    row[column + 1].bits = E::bitsOf(y);
}

} // namespace pp

#endif // PP_RUNTIME_SIMT_TILES_H
