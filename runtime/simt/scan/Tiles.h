// The shape of a scan on a GPU, tiles of its operands in shared memory and their products, decays of a chunk of rows.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Formulas and names are those of runtime/kernels/Scan.h. Chunks of 32 rows, panels of 32 columns of k, and 32 columns
// of v are tiles of 32 x 32 in acc. Every product is one of two tiles: a warp has 8 rows of it, a lane one column. What
// is not there is zeros. Columns of v do not see each other in a scan, so that a block has 32 of them and their part of
// the state, whatever the width; in a state the rows are columns of k.
#ifndef PP_RUNTIME_SIMT_SCAN_TILES_H
#define PP_RUNTIME_SIMT_SCAN_TILES_H

#include "runtime/kernels/Facts.h"
#include "runtime/simt/Map.h"

#ifdef __CUDACC__
#define PP_BY_FOUR _Pragma("unroll 4")
#else
#define PP_BY_FOUR
#endif

namespace pp {

constexpr int edge = int(rowsOfScan), line = edge + 1, tileSize = edge * line;
constexpr int scanThreads = 128, ownRows = edge / (scanThreads / 32), halfEdge = edge / 2;

PP_DEVICE int laneOf() { return int(threadIdx.x) % 32; }
PP_DEVICE int warpOf() { return int(threadIdx.x) / 32; }
/// The first of the thread's rows of a tile; its column is its lane.
PP_DEVICE int firstRow() { return warpOf() * ownRows; }
PP_DEVICE int least(int64_t x, int64_t y) { return int(x < y ? x : y); }

//===-- The shape ------------------------------------------------------------------------------------------------===//

/// Rows [begin, end) of one document; `first` and `last`: it has no rows before, or behind.
struct RowChunk {
  int begin, end;
  bool first, last;
  PP_DEVICE int rows() const { return end - begin; }
};

/// Documents and slices, as runtime/kernels/Scan.h has them.
struct ScanRows {
  int s;
  int64_t position;
  const int32_t *starts;
  bool hasBefore, hasBehind;
  PP_DEVICE bool sameDocument(int64_t b, int t, int other) const {
    return !starts || starts[b * s + t] == starts[b * s + other];
  }
  PP_DEVICE int beginOf(int64_t b, int t) const {
    return starts && starts[b * s + t] > position ? int(starts[b * s + t] - position) : 0;
  }
  PP_DEVICE bool begins(int64_t b, int t) const {
    return t > 0 ? !sameDocument(b, t - 1, t) : !hasBefore || (starts && starts[b * s] >= position);
  }
  PP_DEVICE RowChunk at(int64_t b, int begin) const {
    int end = least(begin + edge, s);
    if (!sameDocument(b, begin, end - 1))
      for (end = begin + 1; sameDocument(b, begin, end);)
        ++end;
    return {begin, end, begins(b, begin), end == s ? !hasBehind : begins(b, end)};
  }
  /// The last chunk of those that end at `end`.
  PP_DEVICE RowChunk before(int64_t b, int end) const {
    const int begin = beginOf(b, end - 1);
    return at(b, begin + (end - 1 - begin) / edge * edge);
  }
  /// The chunk of row t.
  PP_DEVICE RowChunk of(int64_t b, int t) const {
    const int begin = beginOf(b, t);
    return at(b, begin + (t - begin) / edge * edge);
  }
  /// Calls `work` for the chunks that begin in rows [32 window, 32 window + 32).
  template <class Work> PP_DEVICE void inWindow(int64_t b, int window, const Work &work) const {
    const int first = window * edge, end = least(first + edge, s);
    for (int t = first; t < end;) {
      const RowChunk chunk = of(b, t);
      if (chunk.begin >= first)
        work(chunk);
      t = chunk.end;
    }
  }
};

/// A call of either direction. Tasks are heads of all sequences; those of this launch begin at `firstTask`.
template <class E> struct ScanCall {
  using A = Acc<E>;
  ScanRows rows;
  int heads, keys, d, e;
  bool delta;
  int64_t firstTask = 0;
  const E *q, *k, *v, *dout = nullptr;
  const A *g, *beta, *state, *dbehind = nullptr;
  E *o = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
  A *behind = nullptr, *dg = nullptr, *dbeta = nullptr, *dstate = nullptr;
  /// Scratch of the tasks of a launch: S in front of a chunk that begins at row t, and its gradient, at t / 32, [d][e];
  /// rows of w and of r, [s][e]; pairs N and M, [s][32]; what pairs give dg, [s]; then for each panel what rows take of
  /// the state, what they leave, and what the state keeps, [s] each. Sums of dq and dk, [s][d].
  A *borders = nullptr, *dborders = nullptr, *w = nullptr, *r = nullptr, *n = nullptr, *m = nullptr, *pairs = nullptr,
    *parts = nullptr, *sums = nullptr;

  ScanCall(const PreparedOp &op, const void *starts, const void *before, bool hasBehind)
      : rows{int(op.dims[1]), int64_t(op.params[0]), op.has(Documents) ? in<int32_t>(starts) : nullptr,
             before != nullptr, hasBehind},
        heads(int(op.dims[2])), keys(int(op.dims[3])), d(int(op.dims[4])), e(int(op.dims[5])), delta(op.has(Delta)),
        state(in<A>(before)) {}
  PP_DEVICE int panels() const { return (d + edge - 1) / edge; }
  PP_DEVICE int share() const { return heads / keys; }
  /// Row t of a sequence; columns of its head of keys, or of v.
  PP_DEVICE int64_t atKey(int64_t b, int t, int key, int column) const {
    return ((b * rows.s + t) * keys + key) * d + column;
  }
  PP_DEVICE int64_t atHead(int64_t b, int t, int head) const { return (b * rows.s + t) * heads + head; }
  PP_DEVICE int64_t stateSize() const { return int64_t(d) * e; }
  PP_DEVICE A *border(A *all, int64_t task, int t) const {
    const int64_t count = (rows.s - 1) / edge + 1;
    return all + ((task - firstTask) * count + t / edge) * stateSize();
  }
  /// Row t of a task, of rows of `width` numbers.
  PP_DEVICE A *row(A *all, int64_t task, int t, int64_t width) const {
    return all + ((task - firstTask) * rows.s + t) * width;
  }
  /// Of 3 parts of each panel.
  PP_DEVICE A *part(int64_t task, int panel, int which) const {
    return parts + ((task - firstTask) * panels() * 3 + panel * 3 + which) * rows.s;
  }
};

//===-- Tiles ----------------------------------------------------------------------------------------------------===//

/// A tile of up to 32 rows, `stride` apart, and up to 32 columns of x.
template <class E> PP_DEVICE void loadTile(Acc<E> *tile, const E *x, int64_t stride, int rows, int columns) {
  const int lane = laneOf();
  PP_UNROLL
  for (int i = 0; i < ownRows; ++i) {
    const int r = firstRow() + i;
    tile[r * line + lane] = r < rows && lane < columns ? widen(x[r * stride + lane]) : Acc<E>(0);
  }
}
template <class A, class E> PP_DEVICE void storeTile(const A *tile, E *x, int64_t stride, int rows, int columns) {
  const int lane = laneOf();
  PP_UNROLL
  for (int i = 0; i < ownRows; ++i)
    if (const int r = firstRow() + i; r < rows && lane < columns)
      narrow(x[r * stride + lane], tile[r * line + lane]);
}
/// All panels of a state's 32 columns.
template <class A> PP_DEVICE void loadState(A *tiles, const A *x, int d, int e, int columns) {
  for (int c = 0; c < d; c += edge)
    loadTile<A>(tiles + c / edge * tileSize, x + int64_t(c) * e, e, d - c, columns);
}
template <class A> PP_DEVICE void storeState(const A *tiles, A *x, int d, int e, int columns) {
  for (int c = 0; c < d; c += edge)
    storeTile(tiles + c / edge * tileSize, x + int64_t(c) * e, e, d - c, columns);
}

/// The thread's 8 numbers of a tile's product.
template <class A> struct Own {
  A v[ownRows] = {};
};

/// sum += x y, of their transposes where XT or YT says so; the elements of x times those of `factor`, where there is
/// one.
template <bool XT = false, bool YT = false, bool Scaled = false, class A>
PP_DEVICE void multiplyTiles(Own<A> &sum, const A *x, const A *y, const A *factor = nullptr) {
  const A *right = y + (YT ? laneOf() * line : laneOf());
  const int first = firstRow() * (XT ? 1 : line);
  PP_BY_FOUR
  for (int k = 0; k < edge; ++k) {
    const A its = right[k * (YT ? 1 : line)];
    PP_UNROLL
    for (int i = 0; i < ownRows; ++i) {
      const int at = first + (XT ? k * line + i : i * line + k);
      if constexpr (Scaled)
        sum.v[i] += x[at] * factor[at] * its;
      else
        sum.v[i] += x[at] * its;
    }
  }
}

/// x_i += or x_j -= what l gives of the rows before, or behind with `Back` by its transpose; 8 rows at a time.
template <bool Back, class A> PP_DEVICE void solve(A *x, const A *l, int rows) {
  constexpr int each = 8, warps = scanThreads / 32;
  const int lane = laneOf(), last = (rows - 1) / each * each;
  auto factor = [&](int i, int j) { return Back ? l[j * line + i] : l[i * line + j]; };
  for (int n = 0; n <= last; n += each) {
    const int first = Back ? last - n : n, begin = Back ? first + each : 0, end = Back ? last + each : first;
    if (n > 0) {
      for (int i = first + warpOf(); i < first + each; i += warps) {
        A sum = 0;
        for (int j = begin; j < end; ++j)
          sum += factor(i, j) * x[j * line + lane];
        x[i * line + lane] -= sum;
      }
      waitBlock();
    }
    if (warpOf() == 0)
      for (int step = 1; step < each; ++step) {
        const int i = Back ? first + each - 1 - step : first + step;
        A sum = 0;
        for (int before = 0; before < step; ++before) {
          const int j = Back ? first + each - 1 - before : first + before;
          sum += factor(i, j) * x[j * line + lane];
        }
        x[i * line + lane] -= sum;
      }
    waitBlock();
  }
}

//===-- Decays of a chunk ----------------------------------------------------------------------------------------===//

/// In shared memory. Of rows: beta, and with one decay for all columns g, e^(G_i), e^(G_last - G_i), and D. With a
/// decay for each column these are tiles of a panel: e^g, e^(G_i), e^(G_last - G_i), h; and e^(G_last) of its columns.
/// q and k of a panel, and of the chunk P and L.
template <class A, bool ByChannel> struct ChunkTiles {
  static constexpr int decayTiles = ByChannel ? 4 : 1, count = 4 + decayTiles;
  A *q, *k, *p, *l, *matrix, *step, *inner, *outer, *halves, *beta, *g, *all, *next;
  static constexpr int64_t size(int tiles) { return (count + tiles) * tileSize + 5 * edge; }
  PP_DEVICE explicit ChunkTiles(A *memory) {
    auto tile = [&] { return memory += tileSize, memory - tileSize; };
    auto row = [&] { return memory += edge, memory - edge; };
    q = tile(), k = tile(), p = tile(), l = tile(), matrix = step = tile();
    inner = ByChannel ? tile() : row(), outer = ByChannel ? tile() : row(), halves = ByChannel ? tile() : nullptr;
    beta = row(), g = row(), all = row(), next = memory;
  }
  /// e^(G_i) of a row of the chunk, e^(G_last - G_i), where columns have no decays of their own.
  PP_DEVICE A innerOf(int r) const { return ByChannel ? A(1) : inner[r]; }
  PP_DEVICE A outerOf(int r) const { return ByChannel ? A(1) : outer[r]; }
  /// e^(G_last) of a column of the panel at hand.
  PP_DEVICE A allOf(int c) const { return ByChannel ? all[c] : all[0]; }

  /// What a head's rows have; the block waits before and after.
  template <class E> PP_DEVICE void readRows(const ScanCall<E> &n, int64_t b, int head, const RowChunk &chunk) {
    waitBlock();
    if (const int r = int(threadIdx.x); r < edge) {
      const bool isThere = r < chunk.rows();
      const int64_t at = n.atHead(b, chunk.begin + r, head);
      beta[r] = isThere ? n.beta[at] : A(0);
      if (!ByChannel)
        g[r] = isThere ? n.g[at] : A(0);
    }
    waitBlock();
    if constexpr (!ByChannel) {
      makeDecays(chunk.rows());
      waitBlock();
    }
  }
  /// Each G_i - G_j is a sum of its own in f64.
  PP_DEVICE void makeDecays(int rows) {
    const int lane = laneOf(), first = firstRow(), end = first + ownRows;
    double sum = 0, whole = 0;
    for (int i = lane + 1; i < first; ++i)
      sum += double(g[i]);
    for (int i = 0; i < first && warpOf() == lane; ++i)
      whole += double(g[i]);
    for (int i = first; i < end; ++i) {
      if (i > lane)
        sum += double(g[i]);
      const A its = lane <= i && i < rows ? exponential(A(sum)) : A(0);
      matrix[i * line + lane] = its;
      if (i == rows - 1)
        outer[lane] = its;
      if (warpOf() == lane) {
        whole += double(g[i]);
        inner[i] = i < rows ? exponential(A(whole)) : A(0);
        if (i == rows - 1)
          all[0] = inner[i];
      }
    }
  }

  /// q, k and the decays of a panel; the block waits before and after. A warp has one of the tiles that decays make.
  template <class E>
  PP_DEVICE void readPanel(const ScanCall<E> &n, int64_t b, int head, const RowChunk &chunk, int panel) {
    waitBlock();
    readKeys(n, b, head / n.share(), chunk, panel);
    readSteps(n, b, head, chunk, panel);
  }
  template <class E>
  PP_DEVICE void readKeys(const ScanCall<E> &n, int64_t b, int key, const RowChunk &chunk, int panel) {
    const int column = panel * edge, columns = n.d - column;
    const int64_t at = n.atKey(b, chunk.begin, key, column), stride = int64_t(n.keys) * n.d;
    loadTile<E>(q, n.q + at, stride, chunk.rows(), columns);
    loadTile<E>(k, n.k + at, stride, chunk.rows(), columns);
  }
  template <class E>
  PP_DEVICE void readSteps(const ScanCall<E> &n, int64_t b, int head, const RowChunk &chunk, int panel) {
    const int column = panel * edge, columns = n.d - column, lane = laneOf(), rows = chunk.rows();
    if constexpr (ByChannel)
      for (int i = 0; i < ownRows; ++i) {
        const int r = firstRow() + i;
        step[r * line + lane] = r < rows && lane < columns
                                    ? exponential(n.g[n.atHead(b, chunk.begin + r, head) * n.d + column + lane])
                                    : A(0);
      }
    waitBlock();
    if constexpr (ByChannel) {
      multiplySteps(rows);
      waitBlock();
    }
  }
  /// Products of steps: every exponent is a sum, so that nothing cancels.
  PP_DEVICE void multiplySteps(int rows) {
    const int lane = laneOf(), warp = warpOf();
    auto at = [&](A *tile, int r) -> A & { return tile[r * line + lane]; };
    A its = 1;
    if (warp == 0)
      for (int r = 0; r < edge; ++r)
        its = r < rows ? its * at(step, r) : A(0), at(inner, r) = its;
    if (warp == 1) {
      for (int r = edge - 1; r >= 0; --r) {
        at(outer, r) = r < rows ? its : A(0);
        its = r < rows ? its * at(step, r) : A(1);
      }
      all[lane] = its;
    }
    if (warp == 2)
      for (int r = halfEdge; r < edge; ++r) {
        its = r > halfEdge ? its * at(step, r) : A(1);
        at(halves, r) = r < rows ? its : A(0);
      }
    if (warp == 3)
      for (int r = halfEdge - 1; r >= 0; --r) {
        its *= at(step, r + 1);
        at(halves, r) = rows > halfEdge ? its : A(0);
      }
  }
};

/// The sums over panels that make P and L of a chunk. With decays of columns a thread has pairs of a block of 16 rows,
/// column j and every fourth row i of it; pairs of both blocks are a product of rows times h.
template <class A, bool ByChannel> struct PairSums {
  using Tiles = ChunkTiles<A, ByChannel>;
  Own<A> p, l;
  A pairP[4] = {}, pairL[4] = {};

  PP_DEVICE static int block() { return int(threadIdx.x) / 64 * halfEdge; }
  PP_DEVICE static int rowOf(int m) { return block() + int(threadIdx.x) / 16 % 4 + 4 * m; }
  PP_DEVICE static int columnOf() { return block() + int(threadIdx.x) % 16; }

  PP_DEVICE void add(const Tiles &f, int rows, bool delta) {
    if constexpr (!ByChannel) {
      multiplyTiles<false, true>(p, f.q, f.k);
      if (delta)
        multiplyTiles<false, true>(l, f.k, f.k);
      return;
    }
    const int j = columnOf();
    for (int m = 0; m < 4; ++m) {
      const int i = rowOf(m);
      if (j > i || i >= rows)
        continue;
      for (int c = 0; c < edge; ++c) {
        A its = f.k[j * line + c];
        for (int t = j + 1; t <= i; ++t)
          its *= f.step[t * line + c];
        pairP[m] += its * f.q[i * line + c];
        pairL[m] += its * f.k[i * line + c];
      }
    }
    if (rows <= halfEdge || firstRow() < halfEdge)
      return;
    const int right = laneOf() % halfEdge * line;
    for (int c = 0; c < edge; ++c) {
      const A its = f.k[right + c] * f.halves[right + c];
      for (int i = 0; i < ownRows; ++i) {
        const int at = (firstRow() + i) * line + c;
        p.v[i] += f.q[at] * f.halves[at] * its;
        l.v[i] += f.k[at] * f.halves[at] * its;
      }
    }
  }
  /// P, and L with its columns times beta, or with `rowsOfL` its rows; the block waits before and after.
  template <bool rowsOfL> PP_DEVICE void write(const Tiles &f, int rows) const {
    const int lane = laneOf();
    waitBlock();
    for (int i = 0; i < ownRows; ++i) {
      const int r = firstRow() + i;
      const bool isThere = lane <= r && r < rows && !(ByChannel && r / halfEdge == lane / halfEdge);
      const A factor = isThere ? (ByChannel ? A(1) : f.matrix[r * line + lane]) : A(0);
      f.p[r * line + lane] = isThere ? factor * p.v[i] : A(0);
      f.l[r * line + lane] = isThere && lane < r ? factor * f.beta[rowsOfL ? r : lane] * l.v[i] : A(0);
    }
    if constexpr (ByChannel) {
      waitBlock();
      const int j = columnOf();
      for (int m = 0; m < 4; ++m)
        if (const int i = rowOf(m); j <= i && i < rows) {
          f.p[i * line + j] = pairP[m];
          f.l[i * line + j] = j < i ? f.beta[rowsOfL ? i : j] * pairL[m] : A(0);
        }
    }
    waitBlock();
  }
};

/// Tiles beside those of ChunkTiles: of the forward u; of the way back rows of r, and of dout.
constexpr int forwardTiles = 1, backTiles = 2;
template <class A, bool ByChannel> size_t scanBytes(int tiles, int64_t d) {
  return size_t(ChunkTiles<A, ByChannel>::size(tiles) + (d + edge - 1) / edge * tileSize) * sizeof(A);
}

/// Fills `borders` and the rows of w of a launch's tasks. (Forward.cu has it for each type.)
template <class E> pp_status_t launchStates(const PreparedOp &op, const ScanCall<E> &n, int64_t tasks, bool byChannel);

} // namespace pp

#endif // PP_RUNTIME_SIMT_SCAN_TILES_H
