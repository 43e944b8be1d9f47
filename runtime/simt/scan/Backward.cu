// The backward of a linear scan: states in front of chunks, their gradients from the last one, then all chunks at once.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Four kernels for some heads at a time (Facts.h, headsOfScan), as many as scratch has states for:
//   1  down a sequence, for 32 columns of v: S in front of each chunk, rows of w      (Forward.cu's, without outputs)
//   2  up a sequence, for 32 columns of v: dS in front of each chunk, rows of r, dv
//   3  each chunk of a head: N and M, dbeta, and what pairs give dg
//   4  each chunk of a head of keys, for 32 columns of k: dq and dk, over its heads in their order; with decays of
//      columns dg. Else dg's other parts, which a fifth adds up.
// Formulas are those of runtime/kernels/Scan.h. All sums have one order; no kernel has atomics.
#include "runtime/simt/scan/States.h"
#include "runtime/simt/scan/Tiles.h"

using namespace pp;

namespace {

//===-- 2: gradients of states ------------------------------------------------------------------------------------===//

template <class E, bool ByChannel>
__global__ void __launch_bounds__(scanThreads) stateGradientKernel(const __grid_constant__ ScanCall<E> n) {
  using A = Acc<E>;
  const int64_t task = n.firstTask + blockIdx.x, b = task / n.heads;
  const int head = int(task % n.heads), column = int(blockIdx.y) * edge, columns = n.e - column, lane = laneOf();
  ChunkTiles<A, ByChannel> f(sharedMemory<A>());
  A *x = f.next, *dout = x + tileSize, *slope = dout + tileSize; // r, then x; the gradient of the state
  if (n.rows.hasBehind)
    loadState(slope, n.dbehind + task * n.stateSize() + column, n.d, n.e, columns);
  for (int end = n.rows.s; end > 0;) {
    const RowChunk chunk = n.rows.before(b, end);
    const int rows = chunk.rows();
    end = chunk.begin;
    f.readRows(n, b, head, chunk);
    loadTile<E>(dout, n.dout + n.atHead(b, chunk.begin, head) * n.e + column, int64_t(n.heads) * n.e, rows, columns);
    PairSums<A, ByChannel> pairs;
    Own<A> left;
    for (int panel = 0; panel < n.panels(); ++panel) {
      f.readPanel(n, b, head, chunk, panel);
      pairs.add(f, rows, n.delta);
      if (!chunk.last)
        multiplyTiles<false, false, ByChannel>(left, f.k, slope + panel * tileSize, f.outer);
    }
    pairs.template write<true>(f, rows);
    Own<A> r;
    multiplyTiles<true>(r, f.p, dout);
    for (int i = 0; i < ownRows; ++i)
      x[(firstRow() + i) * line + lane] = f.outerOf(firstRow() + i) * left.v[i] + r.v[i];
    waitBlock();
    if (n.delta)
      solve<true>(x, f.l, rows);
    storeTile(x, n.row(n.r, task, chunk.begin, n.e) + column, n.e, rows, columns);
    for (int i = 0; i < ownRows; ++i) {
      const int row = firstRow() + i, at = row * line + lane;
      x[at] *= f.beta[row];
      if (row < rows && lane < columns)
        narrow(n.dv[n.atHead(b, chunk.begin + row, head) * n.e + column + lane], x[at]);
      x[at] *= -f.innerOf(row), dout[at] *= f.innerOf(row);
    }
    if (chunk.first)
      continue;
    for (int panel = 0; panel < n.panels(); ++panel) {
      f.readPanel(n, b, head, chunk, panel);
      Own<A> sum;
      multiplyTiles<true, false, ByChannel>(sum, f.q, dout, f.inner);
      if (n.delta)
        multiplyTiles<true, false, ByChannel>(sum, f.k, x, f.inner);
      A *its = slope + panel * tileSize;
      for (int i = 0; i < ownRows; ++i) {
        const int c = firstRow() + i, at = c * line + lane;
        its[at] = chunk.last ? sum.v[i] : f.allOf(c) * its[at] + sum.v[i];
      }
    }
    A *to = end > 0 ? n.border(n.dborders, task, end) : n.dstate ? n.dstate + task * n.stateSize() : nullptr;
    if (to)
      storeState(slope, to + column, n.d, n.e, columns);
  }
  if (!n.dstate || !n.rows.begins(b, 0))
    return;
  for (int i = int(threadIdx.x); i < n.d * edge; i += scanThreads)
    if (i % edge < columns)
      n.dstate[task * n.stateSize() + int64_t(i / edge) * n.e + column + i % edge] = 0;
}

//===-- 3: pairs of rows ------------------------------------------------------------------------------------------===//

template <class E, bool ByChannel>
__global__ void __launch_bounds__(scanThreads) pairSlopesKernel(const __grid_constant__ ScanCall<E> n) {
  using A = Acc<E>;
  const int64_t task = n.firstTask + blockIdx.x, b = task / n.heads;
  const int head = int(task % n.heads), lane = laneOf(), thread = int(threadIdx.x);
  ChunkTiles<A, ByChannel> f(sharedMemory<A>());
  A *dout = f.p, *w = f.l, *r = f.next;
  n.rows.inWindow(b, int(blockIdx.y), [&](const RowChunk &chunk) {
    const int rows = chunk.rows();
    f.readRows(n, b, head, chunk);
    Own<A> ours, theirs, p, l;
    A dbeta = 0;
    for (int column = 0; column < n.e; column += edge) {
      waitBlock();
      loadTile<E>(dout, n.dout + n.atHead(b, chunk.begin, head) * n.e + column, int64_t(n.heads) * n.e, rows,
                  n.e - column);
      loadTile<A>(w, n.row(n.w, task, chunk.begin, n.e) + column, n.e, rows, n.e - column);
      loadTile<A>(r, n.row(n.r, task, chunk.begin, n.e) + column, n.e, rows, n.e - column);
      waitBlock();
      multiplyTiles<false, true>(ours, dout, w);
      if (n.delta)
        multiplyTiles<false, true>(theirs, r, w);
      for (int c = 0; c < edge && thread < rows; ++c)
        dbeta += r[thread * line + c] * w[thread * line + c];
    }
    if (thread < rows)
      n.dbeta[n.atHead(b, chunk.begin + thread, head)] = dbeta;
    for (int panel = 0; panel < n.panels() && !ByChannel; ++panel) {
      waitBlock();
      f.readKeys(n, b, head / n.share(), chunk, panel);
      waitBlock();
      multiplyTiles<false, true>(p, f.q, f.k);
      if (n.delta)
        multiplyTiles<false, true>(l, f.k, f.k);
    }
    waitBlock();
    A *products = f.p;
    for (int i = 0; i < ownRows; ++i) {
      const int row = firstRow() + i;
      const A factor =
          row < rows && lane <= row ? f.beta[lane] * (ByChannel ? A(1) : f.matrix[row * line + lane]) : A(0);
      const A its = row < rows && lane <= row ? factor * ours.v[i] : A(0);
      const A other = row < rows && lane < row ? -factor * f.beta[row] * theirs.v[i] : A(0);
      if (row < rows) {
        n.row(n.n, task, chunk.begin + row, edge)[lane] = its;
        n.row(n.m, task, chunk.begin + row, edge)[lane] = other;
      }
      if (!ByChannel)
        products[row * line + lane] = row < rows && lane < row ? its * p.v[i] + other * l.v[i] : A(0);
    }
    if (ByChannel)
      return;
    // A decay of row t is in all pairs i >= t > j: sums over j first, then over i.
    waitBlock();
    A sum = 0;
    for (int j = 0; j < edge && thread < rows; ++j)
      products[thread * line + j] = sum += products[thread * line + j];
    waitBlock();
    sum = 0;
    for (int i = thread; i < rows && thread > 0; ++i)
      sum += products[i * line + thread - 1];
    if (thread < rows)
      n.row(n.pairs, task, chunk.begin + thread, 1)[0] = sum;
  });
}

//===-- 4: gradients of q and k, and of decays --------------------------------------------------------------------===//

/// What a block of the fourth kernel has in shared memory beside ChunkTiles: N and M are in its p and l.
template <class A> struct KeyTiles {
  static constexpr int count = 5;
  A *dout, *r, *w, *border, *slope;
  PP_DEVICE explicit KeyTiles(A *memory)
      : dout(memory), r(dout + tileSize), w(r + tileSize), border(w + tileSize), slope(border + tileSize) {}
};

/// One head's rows of dq and dk of a panel, and what its state and what rows leave of it make of them.
template <class A> struct KeySums {
  Own<A> q, k, given, taken, left; ///< the last three: S do, S r, dS' w
  A kept = 0;                      ///< of S times dS', the thread's share
};

template <class E, bool ByChannel> struct KeyGradients {
  using A = Acc<E>;
  using Sums = KeySums<A>;
  const ScanCall<E> &n;
  ChunkTiles<A, ByChannel> f;
  KeyTiles<A> t;
  int64_t b;
  int panel;

  PP_DEVICE KeyGradients(const ScanCall<E> &n, int64_t b, int panel)
      : n(n), f(sharedMemory<A>()), t(f.next), b(b), panel(panel) {}

  /// The state in front, and the gradient of the one behind; over all columns of v.
  PP_DEVICE void addStates(Sums &its, int64_t task, const RowChunk &chunk) {
    const int rows = chunk.rows(), head = int(task % n.heads), rest = n.d - panel * edge;
    const int64_t at = int64_t(panel) * edge * n.e;
    const A *border = chunk.first ? nullptr : n.border(n.borders, task, chunk.begin) + at;
    const A *slope = chunk.last              ? nullptr
                     : chunk.end == n.rows.s ? n.dbehind + task * n.stateSize() + at
                                             : n.border(n.dborders, task, chunk.end) + at;
    for (int column = 0; column < n.e && (border || slope); column += edge) {
      const int columns = n.e - column;
      waitBlock();
      if (border) {
        loadTile<A>(t.border, border + column, n.e, rest, columns);
        loadTile<E>(t.dout, n.dout + n.atHead(b, chunk.begin, head) * n.e + column, int64_t(n.heads) * n.e, rows,
                    columns);
        if (n.delta)
          loadTile<A>(t.r, n.row(n.r, task, chunk.begin, n.e) + column, n.e, rows, columns);
      }
      if (slope) {
        loadTile<A>(t.slope, slope + column, n.e, rest, columns);
        loadTile<A>(t.w, n.row(n.w, task, chunk.begin, n.e) + column, n.e, rows, columns);
      }
      waitBlock();
      if (border) {
        multiplyTiles<false, true>(its.given, t.dout, t.border);
        if (n.delta)
          multiplyTiles<false, true>(its.taken, t.r, t.border);
      }
      if (slope)
        multiplyTiles<false, true>(its.left, t.w, t.slope);
      if (border && slope) { // of columns of k: a thread has a fourth of the columns of v of one
        const int first = laneOf() * line + warpOf() * ownRows;
        for (int c = first; c < first + ownRows; ++c)
          its.kept += t.border[c] * t.slope[c];
      }
    }
  }

  /// Pairs, where all columns have one decay: N and M have it.
  PP_DEVICE void addPairs(Sums &its) {
    multiplyTiles(its.q, f.p, f.k);
    multiplyTiles<true>(its.k, f.p, f.q);
    if (!n.delta)
      return;
    multiplyTiles(its.k, f.l, f.k);
    multiplyTiles<true>(its.k, f.l, f.k);
  }
  /// Pairs of a column's own decays: of both blocks by h, inside a block one by one. What pairs of both blocks give dg
  /// is left in `terms`.
  PP_DEVICE void addPairsByColumn(Sums &its, int rows, A *terms) {
    const int c = laneOf(), first = firstRow(), block = first / halfEdge * halfEdge;
    const int last = rows < block + halfEdge ? rows : block + halfEdge;
    auto at = [&](const A *tile, int row) { return tile[row * line + c]; };
    for (int i = 0; i < ownRows; ++i) {
      const int row = first + i;
      A q = 0, k = 0, term = 0;
      if (block == 0) {
        for (int r = halfEdge; r < rows; ++r)
          k += at(f.halves, r) * (f.p[r * line + row] * at(f.q, r) + f.l[r * line + row] * at(f.k, r));
        k *= at(f.halves, row), term = k * at(f.k, row);
      } else if (row < rows) {
        for (int j = 0; j < halfEdge; ++j) {
          const A other = at(f.halves, j) * at(f.k, j);
          q += f.p[row * line + j] * other, k += f.l[row * line + j] * other;
        }
        q *= at(f.halves, row), k *= at(f.halves, row), term = q * at(f.q, row) + k * at(f.k, row);
      }
      terms[row * line + c] = term;
      A decay = 1;
      for (int j = row; j >= block && row < rows; --j) {
        decay *= j < row ? at(f.step, j + 1) : A(1);
        const A other = decay * at(f.k, j);
        q += f.p[row * line + j] * other, k += f.l[row * line + j] * other;
      }
      decay = 1;
      for (int r = row; r < last; ++r) {
        decay *= r > row ? at(f.step, r) : A(1);
        k += decay * (f.p[r * line + row] * at(f.q, r) + f.l[r * line + row] * at(f.k, r));
      }
      its.q.v[i] += q, its.k.v[i] += k;
    }
  }
  /// What pairs inside a block give dg of its rows, by one warp for each block: `below` has for each row j the sum of
  /// its pairs with row t and those behind.
  PP_DEVICE void pairsOfDecays(int rows, A *below, A *dg) {
    if (warpOf() > 1)
      return;
    const int c = laneOf(), first = warpOf() * halfEdge, end = rows < first + halfEdge ? rows : first + halfEdge;
    auto at = [&](const A *tile, int row) { return tile[row * line + c]; };
    for (int j = first; j < first + halfEdge; ++j)
      below[j * line + c] = dg[j * line + c] = 0;
    for (int i = end - 1; i >= first; --i) {
      A decay = 1, sum = 0;
      for (int j = i - 1; j >= first; --j) {
        decay *= at(f.step, j + 1);
        const A its = decay * at(f.k, j) * (f.p[i * line + j] * at(f.q, i) + f.l[i * line + j] * at(f.k, i));
        sum += below[j * line + c] += its;
      }
      dg[i * line + c] = sum;
    }
  }

  /// Adds a head's to dq and dk of the chunk, and writes what it gives dg.
  PP_DEVICE void addHead(Own<A> &dq, Own<A> &dk, int64_t task, const RowChunk &chunk, bool isFirst) {
    const int rows = chunk.rows(), head = int(task % n.heads), lane = laneOf();
    f.readRows(n, b, head, chunk);
    f.readSteps(n, b, head, chunk, panel);
    loadTile<A>(f.p, n.row(n.n, task, chunk.begin, edge), edge, rows, edge);
    loadTile<A>(f.l, n.row(n.m, task, chunk.begin, edge), edge, rows, edge);
    Sums its;
    addStates(its, task, chunk);
    waitBlock();
    A *terms = t.border, *given = t.dout, *left = t.r, *kept = t.w; // their operands are read
    if constexpr (ByChannel)
      addPairsByColumn(its, rows, terms);
    else
      addPairs(its);
    for (int i = 0; i < ownRows; ++i) {
      const int row = firstRow() + i, at = row * line + lane;
      const A inner = ByChannel ? f.inner[at] : f.inner[row], outer = ByChannel ? f.outer[at] : f.outer[row];
      const A q = inner * its.given.v[i], k = -inner * f.beta[row] * its.taken.v[i];
      const A more = outer * f.beta[row] * its.left.v[i];
      given[at] = f.q[at] * q + f.k[at] * k, left[at] = f.k[at] * more;
      const A toQ = its.q.v[i] + q, toK = its.k.v[i] + k + more;
      dq.v[i] = isFirst ? toQ : dq.v[i] + toQ, dk.v[i] = isFirst ? toK : dk.v[i] + toK;
    }
    kept[warpOf() * line + lane] = its.kept;
    if constexpr (ByChannel) {
      waitBlock();
      pairsOfDecays(rows, t.slope, f.halves);
    }
    waitBlock();
    if constexpr (ByChannel)
      writeDecays(task, chunk, given, left, kept, terms);
    else
      writeParts(task, chunk, given, left, kept);
  }

  /// Sums over the panel's columns of k.
  PP_DEVICE void writeParts(int64_t task, const RowChunk &chunk, const A *given, const A *left, const A *kept) {
    const int row = laneOf();
    if (warpOf() > 2 || row >= chunk.rows() || (warpOf() == 2 && row > 0))
      return;
    const A *from = warpOf() == 0 ? given : warpOf() == 1 ? left : kept;
    A sum = 0;
    for (int i = 0; i < (warpOf() == 2 ? scanThreads / 32 : 1); ++i)
      for (int c = 0; c < edge; ++c)
        sum += from[(row + i) * line + c];
    n.part(task, panel, warpOf())[chunk.begin + row] = warpOf() == 2 ? f.all[0] * sum : sum;
  }
  /// dg of a column: what rows from t on take of the state, and before t leave; pairs of both blocks likewise.
  PP_DEVICE void writeDecays(int64_t task, const RowChunk &chunk, const A *given, const A *left, const A *kept,
                             const A *terms) {
    const int c = laneOf(), rows = chunk.rows(), column = panel * edge + c;
    if (warpOf() > 0 || column >= n.d)
      return;
    A *dg = f.halves;
    A whole = 0, across = 0;
    for (int i = 0; i < scanThreads / 32; ++i)
      whole += kept[i * line + c];
    whole *= f.all[c];
    for (int r = 0; r < rows; ++r) {
      dg[r * line + c] += whole + (r < halfEdge ? across : A(0));
      whole += left[r * line + c];
      across += r < halfEdge ? terms[r * line + c] : A(0);
    }
    A taken = 0;
    across = 0;
    for (int r = rows - 1; r >= 0; --r) {
      taken += given[r * line + c];
      across += r >= halfEdge ? terms[r * line + c] : A(0);
      n.dg[n.atHead(b, chunk.begin + r, int(task % n.heads)) * n.d + column] =
          dg[r * line + c] + taken + (r >= halfEdge ? across : A(0));
    }
  }
};

template <class E, bool ByChannel>
__global__ void __launch_bounds__(scanThreads) keyGradientKernel(const __grid_constant__ ScanCall<E> n, int64_t tasks) {
  using A = Acc<E>;
  const int share = n.share();
  const int64_t pair = n.firstTask / share + blockIdx.x, b = pair / n.keys, all = pair * share;
  const int64_t first = all > n.firstTask ? all : n.firstTask, end = all + share, behind = n.firstTask + tasks;
  const int key = int(pair % n.keys), panel = int(blockIdx.z), column = panel * edge + laneOf();
  KeyGradients<E, ByChannel> its(n, b, panel);
  n.rows.inWindow(b, int(blockIdx.y), [&](const RowChunk &chunk) {
    Own<A> dq, dk;
    auto forEach = [&](const auto &work) {
      for (int i = 0; i < ownRows; ++i)
        if (const int r = chunk.begin + firstRow() + i; r < chunk.end && column < n.d)
          work(i, n.sums + int64_t(r) * n.d + column, n.atKey(b, r, key, column));
    };
    const int64_t other = int64_t(n.rows.s) * n.d;
    if (first > all)
      forEach([&](int i, const A *sum, int64_t) { dq.v[i] = sum[0], dk.v[i] = sum[other]; });
    waitBlock();
    its.f.readKeys(n, b, key, chunk, panel);
    for (int64_t task = first; task < end && task < behind; ++task)
      its.addHead(dq, dk, task, chunk, task == all);
    forEach([&](int i, A *sum, int64_t at) {
      if (end > behind)
        sum[0] = dq.v[i], sum[other] = dk.v[i];
      else
        narrow(n.dq[at], dq.v[i]), narrow(n.dk[at], dk.v[i]);
    });
  });
}

//===-- 5: decays that all columns share --------------------------------------------------------------------------===//

/// dg of a row: its pairs, what rows from it on take of the state, what those before it leave, what the state keeps.
template <class E> struct AddDecays {
  using Element = Acc<E>;
  ScanCall<E> n;
  template <int> PP_DEVICE void at(int64_t i) const {
    using A = Acc<E>;
    const int64_t task = n.firstTask + quotient(i, n.rows.s), b = task / n.heads;
    const int t = int(i - (task - n.firstTask) * n.rows.s);
    const RowChunk chunk = n.rows.of(b, t);
    A sum = n.row(n.pairs, task, t, 1)[0];
    for (int panel = 0; panel < n.panels(); ++panel) {
      const A *taken = n.part(task, panel, 0), *left = n.part(task, panel, 1);
      A its = n.part(task, panel, 2)[chunk.begin];
      for (int r = chunk.begin; r < t; ++r)
        its += left[r];
      A ours = 0;
      for (int r = chunk.end - 1; r >= t; --r)
        ours += taken[r];
      sum += its + ours;
    }
    n.dg[n.atHead(b, t, int(task % n.heads))] = sum;
  }
};

template <class E, bool ByChannel> pp_status_t launchTasks(const PreparedOp &op, const ScanCall<E> &n, int64_t tasks) {
  using A = Acc<E>;
  using Tiles = ChunkTiles<A, ByChannel>;
  const int64_t windows = blocksFor(n.rows.s, edge), pairs = tasks < n.heads / n.keys ? 1 : tasks / (n.heads / n.keys);
  if (pp_status_t status = launchStates<E>(op, n, tasks, ByChannel))
    return status;
  if (pp_status_t status = launch(op, stateGradientKernel<E, ByChannel>, {tasks, blocksFor(n.e, edge)}, scanThreads,
                                  scanBytes<A, ByChannel>(backTiles, n.d), n))
    return status;
  if (pp_status_t status =
          launch(op, pairSlopesKernel<E, ByChannel>, {tasks, windows}, scanThreads, Tiles::size(1) * sizeof(A), n))
    return status;
  if (pp_status_t status = launch(op, keyGradientKernel<E, ByChannel>, {pairs, windows, blocksFor(n.d, edge)},
                                  scanThreads, Tiles::size(KeyTiles<A>::count) * sizeof(A), n, tasks))
    return status;
  return ByChannel ? PP_OK : map(op, AddDecays<E>{n}, tasks * n.rows.s, false);
}

template <class E> pp_status_t scan_bwd(const PreparedOp &op, void *const *a) {
  using A = Acc<E>;
  ScanCall<E> n(op, a[6], a[7], a[8]);
  n.dout = in<E>(a[0]), n.q = in<E>(a[1]), n.k = in<E>(a[2]), n.v = in<E>(a[3]);
  n.g = in<A>(a[4]), n.beta = in<A>(a[5]), n.dbehind = in<A>(a[8]);
  n.dq = out<E>(a[9]), n.dk = out<E>(a[10]), n.dv = out<E>(a[11]);
  n.dg = out<A>(a[12]), n.dbeta = out<A>(a[13]), n.dstate = out<A>(a[14]);
  const bool byChannel = op.params[1] > 0;
  const SizedCall call{"scan_bwd", op.dims, op.params, int64_t(sizeof(E))};
  const ScanParts parts(call.dims, byChannel);
  const int64_t all = op.dims[0] * op.dims[2], each = headsOfScan(call, statesOfScan);
  A *next = reinterpret_cast<A *>(op.scratch);
  auto place = [&](int64_t size) { return next += each * size, next - each * size; };
  n.borders = place(parts.states), n.dborders = place(parts.states), n.w = place(parts.rows), n.r = place(parts.rows);
  n.n = place(parts.pairs), n.m = place(parts.pairs);
  if (!byChannel)
    n.pairs = place(n.rows.s), n.parts = place(parts.decays - n.rows.s);
  n.sums = next;
  for (; n.firstTask < all; n.firstTask += each) {
    const int64_t tasks = each < all - n.firstTask ? each : all - n.firstTask;
    if (pp_status_t status = byChannel ? launchTasks<E, true>(op, n, tasks) : launchTasks<E, false>(op, n, tasks))
      return status;
  }
  return PP_OK;
}

template <class A> size_t largestBytes(const PreparedOp &op) {
  const int64_t d = op.dims[4];
  if (op.kernel == Kernel::scan)
    return op.params[1] > 0 ? scanBytes<A, true>(forwardTiles, d) : scanBytes<A, false>(forwardTiles, d);
  return op.params[1] > 0
             ? std::max(scanBytes<A, true>(backTiles, d), ChunkTiles<A, true>::size(KeyTiles<A>::count) * sizeof(A))
             : std::max(scanBytes<A, false>(backTiles, d), ChunkTiles<A, false>::size(KeyTiles<A>::count) * sizeof(A));
}

} // namespace

int64_t pp::statesOfScan = mostOfStates;

size_t pp::scanSharedBytes(const PreparedOp &op) {
  return op.type == Type::F64 ? largestBytes<double>(op) : largestBytes<float>(op);
}

PP_BODIES(scan_bwd)
