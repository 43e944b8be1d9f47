// The products of mixtures of experts: blocks find an expert and its rows by the counts, which only the device knows.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Counts are data, and a graph's grids are not: a grid has a block for each tile of rows that the worst counts could
// need, and blocks without rows return at once.
//
//   counts 70 0 3, room 96     blocks 0 1 | 2 | 3     rows 0..63  64..69 | 70..72 | none
//
// A block makes 64 x 64 elements of the product from tiles of 16 in shared memory, in the type of sums and without
// tensor cores. Each sum runs over its terms in their order, so that every run gives the same bits.
#include "runtime/simt/Map.h"

using namespace pp;

namespace {

/// Edge of a block's square of the product, terms at a time, and what a thread has of each direction: every 16th.
constexpr int edge = 64, depth = 16, own = 4, pitch = edge + 1, threads = 256;
constexpr size_t sharedElements = 2 * depth * pitch;

/// A matrix of which neighbours of a line lie side by side; `width` from line to line.
template <class E> struct Lines {
  const E *data;
  int64_t width;
};

/// tile[l][i] = element i of the product's side, term l; what is beyond the ends is 0. Down: a line has one term.
template <bool Down, class A, class E>
PP_DEVICE void loadTile(A *tile, Lines<E> from, int64_t first, int64_t end, int64_t term, int64_t terms) {
  PP_UNROLL
  for (int step = 0; step < own; ++step) {
    int at = int(threadIdx.x) + step * threads, l = Down ? at / edge : at % depth, i = Down ? at % edge : at / depth;
    int64_t row = first + i, column = term + l;
    A value = 0;
    if (row < end && column < terms)
      value = widen(from.data[Down ? column * from.width + row : row * from.width + column]);
    tile[l * pitch + i] = value;
  }
}

/// Where a block's square lies, and how far the product goes.
struct Square {
  int64_t i, j, m, n;
};

/// sums += a . b over `terms` terms, of the block's square; all threads of the block are here.
template <bool DownA, bool DownB, class A, class EA, class EB>
PP_DEVICE void multiplyTiles(A (&sums)[own][own], Square at, Lines<EA> a, Lines<EB> b, int64_t terms) {
  A *left = sharedMemory<A>(), *right = left + depth * pitch;
  const int row = int(threadIdx.x) / depth, column = int(threadIdx.x) % depth;
  for (int64_t term = 0; term < terms; term += depth) {
    loadTile<DownA>(left, a, at.i, at.m, term, terms);
    loadTile<DownB>(right, b, at.j, at.n, term, terms);
    waitBlock();
    PP_UNROLL
    for (int l = 0; l < depth; ++l) {
      A x[own], y[own];
      PP_UNROLL
      for (int i = 0; i < own; ++i) {
        x[i] = left[l * pitch + row + i * depth];
        y[i] = right[l * pitch + column + i * depth];
      }
      PP_UNROLL
      for (int i = 0; i < own; ++i)
        PP_UNROLL
      for (int j = 0; j < own; ++j)
        sums[i][j] += x[i] * y[j];
    }
    waitBlock();
  }
}

/// c (+)= sums, where the product has elements; rounded once.
template <class A, class C> PP_DEVICE void storeTile(const A (&sums)[own][own], Square at, C *c, bool adds) {
  const int row = int(threadIdx.x) / depth, column = int(threadIdx.x) % depth;
  for (int i = 0; i < own; ++i)
    for (int j = 0; j < own; ++j) {
      int64_t line = at.i + row + i * depth, place = at.j + column + j * depth;
      if (line >= at.m || place >= at.n)
        continue;
      C &to = c[line * at.n + place];
      narrow(to, sums[i][j] + (adds ? A(widen(to)) : A(0)));
    }
}

// --- One product of all rows: the router's ---

template <bool DownA, bool DownB, class EA, class EB, class C>
__global__ void __launch_bounds__(256)
    productKernel(Lines<EA> a, Lines<EB> b, C *c, int64_t m, int64_t n, int64_t terms, bool adds) {
  using A = Acc<C>;
  const Square at = {int64_t(blockIdx.x) * edge, int64_t(blockIdx.y) * edge, m, n};
  A sums[own][own] = {};
  multiplyTiles<DownA, DownB>(sums, at, a, b, terms);
  storeTile(sums, at, c, adds);
}

template <bool DownA, bool DownB, class EA, class EB, class C>
pp_status_t product(const PreparedOp &op, Lines<EA> a, Lines<EB> b, C *c, int64_t m, int64_t n, int64_t terms) {
  return launch(op, productKernel<DownA, DownB, EA, EB, C>, {blocksFor(m, edge), blocksFor(n, edge)}, threads,
                sharedElements * sizeof(Acc<C>), a, b, c, m, n, terms, op.has(Accumulate));
}

/// dims T h n, as of the two below.
template <class E> pp_status_t router(const PreparedOp &op, void *const *x) {
  const int64_t tokens = op.dims[0], h = op.dims[1], n = op.dims[2];
  return product<false, true>(op, Lines<E>{in<E>(x[0]), h}, Lines<E>{in<E>(x[1]), n}, out<Acc<E>>(x[2]), tokens, n, h);
}

template <class E> pp_status_t router_dx(const PreparedOp &op, void *const *x) {
  const int64_t tokens = op.dims[0], h = op.dims[1], n = op.dims[2];
  return product<false, false>(op, Lines<Acc<E>>{in<Acc<E>>(x[0]), n}, Lines<E>{in<E>(x[1]), n}, out<E>(x[2]), tokens,
                               h, n);
}

template <class E> pp_status_t router_dw(const PreparedOp &op, void *const *x) {
  const int64_t tokens = op.dims[0], h = op.dims[1], n = op.dims[2];
  return product<true, true>(op, Lines<E>{in<E>(x[0]), h}, Lines<Acc<E>>{in<Acc<E>>(x[1]), n}, out<Acc<E>>(x[2]), h, n,
                             tokens);
}

// --- A product for each expert ---

/// What the kernels below know of the rows: in each of `sections` those of an expert lie behind those of the experts
/// before it, counts[section][expert] of them.
struct ExpertCounts {
  const int32_t *counts;
  int64_t experts, sections, room; ///< rows of a section

  /// `at`: which of the sizes is the number of experts; behind it is that of sections.
  ExpertCounts(const PreparedOp &op, const void *counts, int at = 3)
      : counts(in<int32_t>(counts)), experts(op.dims[at]), sections(op.dims[at + 1]), room(op.dims[0] / sections) {}
  /// Tiles that the experts of a section have at most: all but one of an expert's are full.
  [[nodiscard]] int64_t mostTiles() const { return (room + (edge - 1) * (experts < room ? experts : room)) / edge; }
};

/// y = x w or dx (+)= dy w^T: a block has a tile of rows of one expert in one section. Down: of w, a line has one term.
template <bool Down, class E>
__global__ void __launch_bounds__(256)
    expertRowsKernel(ExpertCounts its, const E *x, const E *w, E *y, int64_t n, int64_t terms, bool adds) {
  using A = Acc<E>;
  const int32_t *counts = its.counts + blockIdx.z * its.experts;
  int64_t tile = blockIdx.x, begin = blockIdx.z * its.room, expert = 0;
  for (; expert < its.experts; ++expert) {
    const int64_t tiles = (int64_t(counts[expert]) + edge - 1) / edge;
    if (tile < tiles)
      break;
    tile -= tiles;
    begin += counts[expert];
  }
  if (expert == its.experts)
    return;
  const Square at = {tile * edge, int64_t(blockIdx.y) * edge, counts[expert], n};
  A sums[own][own] = {};
  multiplyTiles<false, Down>(sums, at, Lines<E>{x + begin * terms, terms},
                             Lines<E>{w + expert * n * terms, Down ? n : terms}, terms);
  storeTile(sums, at, y + begin * n, adds);
}

template <bool Down, class E> pp_status_t expertRows(const PreparedOp &op, void *const *a, int64_t n, int64_t terms) {
  const ExpertCounts its(op, a[2]);
  return launch(op, expertRowsKernel<Down, E>, {its.mostTiles(), blocksFor(n, edge), its.sections}, threads,
                sharedElements * sizeof(Acc<E>), its, in<E>(a[0]), in<E>(a[1]), out<E>(a[3]), n, terms,
                op.has(Accumulate));
}

/// dims Q K N n s, as of the two below.
template <class E> pp_status_t expert_linear(const PreparedOp &op, void *const *a) {
  return expertRows<true, E>(op, a, op.dims[2], op.dims[1]);
}

template <class E> pp_status_t expert_linear_dx(const PreparedOp &op, void *const *a) {
  return expertRows<false, E>(op, a, op.dims[1], op.dims[2]);
}

/// dw (+)= x^T dy: a block has a square of one expert's, and adds up its rows, section by section.
template <class E>
__global__ void __launch_bounds__(256)
    expertDwKernel(ExpertCounts its, const E *x, const E *dy, Acc<E> *dw, int64_t m, int64_t n, bool adds) {
  using A = Acc<E>;
  const int64_t expert = blockIdx.z;
  const Square at = {int64_t(blockIdx.x) * edge, int64_t(blockIdx.y) * edge, m, n};
  A sums[own][own] = {};
  bool hasRows = false;
  for (int64_t section = 0; section < its.sections; ++section) {
    const int32_t *counts = its.counts + section * its.experts;
    int64_t begin = section * its.room;
    for (int64_t before = 0; before < expert; ++before)
      begin += counts[before];
    hasRows |= counts[expert] > 0;
    multiplyTiles<true, true>(sums, at, Lines<E>{x + begin * m, m}, Lines<E>{dy + begin * n, n}, counts[expert]);
  }
  if (hasRows || !adds)
    storeTile(sums, at, dw + expert * m * n, adds);
}

template <class E> pp_status_t expert_linear_dw(const PreparedOp &op, void *const *a) {
  const ExpertCounts its(op, a[2]);
  const int64_t m = op.dims[1], n = op.dims[2];
  return launch(op, expertDwKernel<E>, {blocksFor(m, edge), blocksFor(n, edge), its.experts}, threads,
                sharedElements * sizeof(Acc<E>), its, in<E>(a[0]), in<E>(a[1]), out<Acc<E>>(a[3]), m, n,
                op.has(Accumulate));
}

// --- A bias for each expert ---

template <class E> struct ExpertBias {
  using Element = E;
  ExpertCounts its;
  const E *x, *bias;
  E *y;
  int64_t h;
  template <int W> PP_DEVICE void at(int64_t i) const {
    const int64_t row = quotient(i, h), section = quotient(row, its.room);
    const int32_t *counts = its.counts + section * its.experts;
    int64_t left = row - section * its.room, expert = 0;
    for (; expert < its.experts && left >= counts[expert]; ++expert)
      left -= counts[expert];
    if (expert == its.experts)
      return;
    auto a = load<W>(x + i), b = load<W>(bias + expert * h + i - row * h);
    for (int l = 0; l < W; ++l)
      a.v[l] += b.v[l];
    store<W>(y + i, a);
  }
};
/// dims Q N n s, as of the one below.
template <class E> pp_status_t expert_bias(const PreparedOp &op, void *const *a) {
  const int64_t h = op.dims[1];
  return map(op, ExpertBias<E>{{op, a[2], 2}, in<E>(a[0]), in<E>(a[1]), out<E>(a[3]), h}, op.dims[0] * h,
             h % packOf<E> == 0 && aligned(a[0], a[1], a[3]));
}

template <class E> struct ExpertBiasDw {
  using Element = E;
  ExpertCounts its;
  const E *dy;
  Acc<E> *db;
  int64_t h;
  bool adds;
  template <int W> PP_DEVICE void at(int64_t i) const {
    const int64_t expert = quotient(i, h), c = i - expert * h;
    Pack<Acc<E>, W> sum{};
    if (adds)
      sum = load<W>(db + i);
    for (int64_t section = 0; section < its.sections; ++section) {
      const int32_t *counts = its.counts + section * its.experts;
      int64_t begin = section * its.room;
      for (int64_t before = 0; before < expert; ++before)
        begin += counts[before];
      for (int64_t row = begin; row < begin + counts[expert]; ++row) {
        auto more = load<W>(dy + row * h + c);
        for (int l = 0; l < W; ++l)
          sum.v[l] += more.v[l];
      }
    }
    store<W>(db + i, sum);
  }
};
template <class E> pp_status_t expert_bias_dw(const PreparedOp &op, void *const *a) {
  const int64_t h = op.dims[1];
  return map(op, ExpertBiasDw<E>{{op, a[1], 2}, in<E>(a[0]), out<Acc<E>>(a[2]), h, op.has(Accumulate)}, op.dims[2] * h,
             false);
}

} // namespace

PP_BODIES(router)
PP_BODIES(router_dx)
PP_BODIES(router_dw)
PP_BODIES(expert_linear)
PP_BODIES(expert_linear_dx)
PP_BODIES(expert_linear_dw)
PP_BODIES(expert_bias)
PP_BODIES(expert_bias_dw)
