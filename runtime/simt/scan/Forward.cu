// The forward of a linear scan, in chunks of rows.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/simt/scan/Tiles.h"

using namespace pp;

namespace {

//===-- Scans: a block goes down a sequence with one head's state of 32 columns of v ------------------------------===//

/// The state behind a chunk; u is scaled by what its rows leave. Each thread has its own elements of the state.
template <class E, bool ByChannel>
PP_DEVICE void advance(const ScanCall<E> &n, ChunkTiles<Acc<E>, ByChannel> &f, Acc<E> *u, Acc<E> *state, int64_t b,
                       int head, const RowChunk &chunk) {
  using A = Acc<E>;
  for (int i = 0; i < ownRows && !ByChannel; ++i)
    u[(firstRow() + i) * line + laneOf()] *= f.outer[firstRow() + i];
  for (int panel = 0; panel < n.panels(); ++panel) {
    f.readPanel(n, b, head, chunk, panel);
    Own<A> sum;
    multiplyTiles<true, false, ByChannel>(sum, f.k, u, f.outer);
    A *its = state + panel * tileSize;
    for (int i = 0; i < ownRows; ++i) {
      const int c = firstRow() + i, at = c * line + laneOf();
      its[at] = chunk.first ? sum.v[i] : f.allOf(c) * its[at] + sum.v[i];
    }
  }
}

/// `Keeps`: for the backward, which needs no outputs but the states in front of chunks and the rows of w.
template <class E, bool ByChannel, bool Keeps>
__global__ void __launch_bounds__(scanThreads) scanKernel(const __grid_constant__ ScanCall<E> n) {
  using A = Acc<E>;
  const int64_t task = n.firstTask + blockIdx.x, b = task / n.heads;
  const int head = int(task % n.heads), column = int(blockIdx.y) * edge, columns = n.e - column, lane = laneOf();
  ChunkTiles<A, ByChannel> f(sharedMemory<A>());
  A *u = f.next, *state = u + tileSize;
  auto keep = [&](int t) { storeState(state, n.border(n.borders, task, t) + column, n.d, n.e, columns); };
  if (!n.rows.begins(b, 0)) {
    loadState(state, n.state + task * n.stateSize() + column, n.d, n.e, columns);
    if (Keeps)
      keep(0);
  }
  for (RowChunk chunk{0, 0, false, false}; chunk.end < n.rows.s;) {
    chunk = n.rows.at(b, chunk.end);
    const int rows = chunk.rows();
    f.readRows(n, b, head, chunk);
    PairSums<A, ByChannel> pairs;
    Own<A> taken, given; // of the state by k and by q
    for (int panel = 0; panel < n.panels(); ++panel) {
      f.readPanel(n, b, head, chunk, panel);
      if (!Keeps || n.delta)
        pairs.add(f, rows, n.delta);
      const A *its = state + panel * tileSize;
      if (!chunk.first && n.delta)
        multiplyTiles<false, false, ByChannel>(taken, f.k, its, f.inner);
      if (!chunk.first && !Keeps)
        multiplyTiles<false, false, ByChannel>(given, f.q, its, f.inner);
    }
    pairs.template write<false>(f, rows);
    for (int i = 0; i < ownRows; ++i) {
      const int r = firstRow() + i;
      A its = r < rows && lane < columns ? widen(n.v[n.atHead(b, chunk.begin + r, head) * n.e + column + lane]) : A(0);
      u[r * line + lane] = its - f.innerOf(r) * taken.v[i];
    }
    waitBlock();
    if (n.delta)
      solve<false>(u, f.l, rows);
    if (Keeps)
      storeTile(u, n.row(n.w, task, chunk.begin, n.e) + column, n.e, rows, columns);
    for (int i = 0; i < ownRows; ++i)
      u[(firstRow() + i) * line + lane] *= f.beta[firstRow() + i];
    waitBlock();
    if (!Keeps) {
      Own<A> o;
      multiplyTiles(o, f.p, u);
      for (int i = 0; i < ownRows; ++i)
        if (const int r = firstRow() + i; r < rows && lane < columns)
          narrow(n.o[n.atHead(b, chunk.begin + r, head) * n.e + column + lane], f.innerOf(r) * given.v[i] + o.v[i]);
      waitBlock();
    }
    if (chunk.last || (Keeps && chunk.end == n.rows.s))
      continue;
    advance(n, f, u, state, b, head, chunk);
    if (Keeps)
      keep(chunk.end);
  }
  if (!Keeps && n.behind)
    storeState(state, n.behind + task * n.stateSize() + column, n.d, n.e, columns);
}

template <class E, bool Keeps>
pp_status_t launchForward(const PreparedOp &op, const ScanCall<E> &n, int64_t tasks, bool byChannel) {
  const Grid grid{tasks, blocksFor(n.e, edge)};
  return byChannel
             ? launch(op, scanKernel<E, true, Keeps>, grid, scanThreads, scanBytes<Acc<E>, true>(forwardTiles, n.d), n)
             : launch(op, scanKernel<E, false, Keeps>, grid, scanThreads, scanBytes<Acc<E>, false>(forwardTiles, n.d),
                      n);
}

template <class E> pp_status_t scan(const PreparedOp &op, void *const *a) {
  ScanCall<E> n(op, a[5], a[6], a[8]);
  n.q = in<E>(a[0]), n.k = in<E>(a[1]), n.v = in<E>(a[2]), n.g = in<Acc<E>>(a[3]), n.beta = in<Acc<E>>(a[4]);
  n.o = out<E>(a[7]), n.behind = out<Acc<E>>(a[8]);
  return launchForward<E, false>(op, n, op.dims[0] * op.dims[2], op.params[1] > 0);
}

} // namespace

template <class E>
pp_status_t pp::launchStates(const PreparedOp &op, const ScanCall<E> &n, int64_t tasks, bool byChannel) {
  return launchForward<E, true>(op, n, tasks, byChannel);
}
#define PP_STATES(E) template pp_status_t pp::launchStates(const PreparedOp &, const ScanCall<E> &, int64_t, bool);
PP_STATES(float)
PP_STATES(Bf16)
PP_STATES(double)
PP_STATES(F16)

PP_BODIES(scan)
