// Layernorm and rmsnorm, their rebuilds and backwards, and sums of columns; every sum in a fixed order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/Facts.h"
#include "runtime/simt/Map.h"

using namespace pp;

namespace {

// --- Sums of columns: blocks of rows first, then the blocks' sums ---

constexpr int lanesOfColumns = 32, lanesOfRows = 8;

/// sums[blockIdx.y][columns] (+)= the sum over the block's rows of x, which lie `stride` apart. A thread adds one
/// pack's rows, one of every eight.
template <class E, int W>
__global__ void columnSumsKernel(const E *x, int64_t rows, int64_t columns, int64_t stride, int64_t rowsPerBlock,
                                 Acc<E> *sums, bool adds) {
  using A = Acc<E>;
  A *shared = sharedMemory<A>();
  int lane = int(threadIdx.x) % lanesOfColumns, row = int(threadIdx.x) / lanesOfColumns;
  int64_t column = (int64_t(blockIdx.x) * lanesOfColumns + lane) * W;
  int64_t first = int64_t(blockIdx.y) * rowsPerBlock, end = first + rowsPerBlock < rows ? first + rowsPerBlock : rows;
  Pack<A, W> sum{};
  if (column < columns)
    for (int64_t t = first + row; t < end; t += lanesOfRows) {
      auto more = load<W>(x + t * stride + column);
      for (int j = 0; j < W; ++j)
        sum.v[j] += more.v[j];
    }
  for (int j = 0; j < W; ++j)
    shared[(row * W + j) * lanesOfColumns + lane] = sum.v[j];
  waitBlock();
  if (row || column >= columns)
    return;
  A *to = sums + int64_t(blockIdx.y) * columns + column;
  for (int j = 0; j < W; ++j) {
    A total = 0;
    for (int i = 0; i < lanesOfRows; ++i)
      total += shared[(i * W + j) * lanesOfColumns + lane];
    to[j] = adds ? to[j] + total : total;
  }
}

template <class E>
pp_status_t columnSums(const PreparedOp &op, const E *x, int64_t rows, int64_t columns, int64_t stride,
                       int64_t rowsPerBlock, Acc<E> *sums, bool adds) {
  constexpr int W = packOf<E>, threads = lanesOfColumns * lanesOfRows;
  bool wide = (columns | stride) % W == 0 && aligned(x);
  Grid grid{blocksFor(columns, lanesOfColumns * (wide ? W : 1)), blocksFor(rows, rowsPerBlock)};
  return launch(op, wide ? columnSumsKernel<E, W> : columnSumsKernel<E, 1>, grid, threads,
                threads * (wide ? W : 1) * sizeof(Acc<E>), x, rows, columns, stride, rowsPerBlock, sums, adds);
}

template <class E> pp_status_t bias_dw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t rows = op.dims[0], columns = op.dims[1], each = rowsOfBlock(rows), parts = blocksFor(rows, each);
  A *sums = out<A>(arguments[1]), *some = parts == 1 ? sums : reinterpret_cast<A *>(op.scratch);
  bool adds = op.has(Accumulate);
  if (pp_status_t status =
          columnSums<E>(op, in<E>(arguments[0]), rows, columns, columns, each, some, adds && parts == 1))
    return status;
  return parts == 1 ? PP_OK : columnSums<A>(op, some, parts, columns, columns, parts, sums, adds);
}

template <class E> pp_status_t addBiasOf(const PreparedOp &op, const void *b, void *y) {
  return addBias<E>(op, y, b, y, op.dims[0], op.dims[2]);
}

// --- Norms: a block for each row ---

/// The one place that makes an element of a norm: F and the rebuild must agree bit for bit, so that nothing here may be
/// contracted differently in two kernels: products, and one explicit multiply-add.
template <bool Layer, class A> PP_DEVICE A normalized(A x, A mean, A rstd, A g, A b) {
  if constexpr (Layer)
    return multiplyAdd((x - mean) * rstd, g, b);
  return x * rstd * g;
}

/// Gains that may be stored less 1.
template <class A, int W> PP_DEVICE Pack<A, W> plusOne(Pack<A, W> gains, bool plus) {
  for (int j = 0; j < W; ++j)
    gains.v[j] = plus ? gains.v[j] + A(1) : gains.v[j];
  return gains;
}

template <class E> struct NormArrays {
  const E *x, *g, *b;
  E *y;
  Acc<E> *mean, *rstd;
  int64_t h;
  bool plus;
};

template <class E, int W, bool Layer> __global__ void normKernel(NormArrays<E> n, Acc<E> epsilon, bool rebuilds) {
  using A = Acc<E>;
  int64_t row = blockIdx.x, first = int64_t(threadIdx.x) * W, step = int64_t(blockDim.x) * W;
  const E *x = n.x + row * n.h;
  A mean = 0, rstd;
  if (rebuilds) {
    mean = Layer ? n.mean[row] : A(0);
    rstd = n.rstd[row];
  } else {
    A sum[1] = {0};
    if constexpr (Layer) {
      for (int64_t i = first; i < n.h; i += step) {
        auto a = load<W>(x + i);
        for (int j = 0; j < W; ++j)
          sum[0] += a.v[j];
      }
      blockSum(sum, sharedMemory<A>());
      mean = sum[0] / A(n.h);
      sum[0] = 0;
    }
    for (int64_t i = first; i < n.h; i += step) {
      auto a = load<W>(x + i);
      for (int j = 0; j < W; ++j)
        sum[0] += (a.v[j] - mean) * (a.v[j] - mean);
    }
    blockSum(sum, sharedMemory<A>());
    rstd = A(1) / squareRoot(sum[0] / A(n.h) + epsilon);
    if (threadIdx.x == 0) {
      if constexpr (Layer)
        n.mean[row] = mean;
      n.rstd[row] = rstd;
    }
  }
  for (int64_t i = first; i < n.h; i += step) {
    auto a = load<W>(x + i), g = plusOne(load<W>(n.g + i), n.plus);
    Pack<A, W> b{};
    if constexpr (Layer)
      b = load<W>(n.b + i);
    for (int j = 0; j < W; ++j)
      a.v[j] = normalized<Layer>(a.v[j], mean, rstd, g.v[j], b.v[j]);
    store<W>(n.y + row * n.h + i, a);
  }
}

int normThreads(int64_t packs) { return packs >= 256 ? 256 : int((packs + 31) / 32 * 32); }

template <class E, bool Layer> pp_status_t norm(const PreparedOp &op, const NormArrays<E> &n, bool rebuilds) {
  constexpr int W = packOf<E>;
  bool wide = n.h % W == 0 && aligned(n.x, n.g, n.b, n.y);
  return launch(op, wide ? normKernel<E, W, Layer> : normKernel<E, 1, Layer>, {op.dims[0]},
                normThreads(blocksFor(n.h, wide ? W : 1)), blockSumEntries * sizeof(Acc<E>), n, Acc<E>(op.params[0]),
                rebuilds);
}

template <class E> pp_status_t layernorm(const PreparedOp &op, void *const *a) {
  return norm<E, true>(
      op,
      {in<E>(a[0]), in<E>(a[1]), in<E>(a[2]), out<E>(a[3]), out<Acc<E>>(a[4]), out<Acc<E>>(a[5]), op.dims[1], false},
      false);
}
template <class E> pp_status_t layernorm_rebuild(const PreparedOp &op, void *const *a) {
  return norm<E, true>(
      op,
      {in<E>(a[0]), in<E>(a[1]), in<E>(a[2]), out<E>(a[5]), out<Acc<E>>(a[3]), out<Acc<E>>(a[4]), op.dims[1], false},
      true);
}
template <class E> pp_status_t rmsnorm(const PreparedOp &op, void *const *a) {
  return norm<E, false>(
      op, {in<E>(a[0]), in<E>(a[1]), nullptr, out<E>(a[2]), nullptr, out<Acc<E>>(a[3]), op.dims[1], op.has(PlusOne)},
      false);
}
template <class E> pp_status_t rmsnorm_rebuild(const PreparedOp &op, void *const *a) {
  return norm<E, false>(
      op, {in<E>(a[0]), in<E>(a[1]), nullptr, out<E>(a[3]), nullptr, out<Acc<E>>(a[2]), op.dims[1], op.has(PlusOne)},
      true);
}

template <class E> struct NormGradients {
  const E *dy, *x, *g;
  const Acc<E> *mean, *rstd;
  E *dx;
  Acc<E> *parts; ///< [blocks][1 or 2][h]: sums of dg, db
  int64_t rows, h;
  bool adds, plus;
};

/// What a row's packs are multiplied by.
template <class E, int W, bool Layer> struct NormRow {
  using A = Acc<E>;
  A mean, rstd;
  A sums[Layer ? 2 : 1] = {}; ///< of the scaled gradient times x-hat, and of itself

  /// Adds a pack to the row's sums, and to dg and db of its columns.
  PP_DEVICE void add(const Pack<A, W> &d, const Pack<A, W> &x, const Pack<A, W> &g, A *dg, A *db) {
    PP_UNROLL
    for (int j = 0; j < W; ++j) {
      A normal = (x.v[j] - mean) * rstd, scaled = d.v[j] * g.v[j];
      sums[0] += scaled * normal;
      dg[j] += d.v[j] * normal;
      if constexpr (Layer)
        sums[1] += scaled, db[j] += d.v[j];
    }
  }
  /// A pack of dx, when `sums` are means of the whole row.
  PP_DEVICE void write(const Pack<A, W> &d, const Pack<A, W> &x, const Pack<A, W> &g, E *dx, bool adds) const {
    Pack<A, W> old{};
    if (adds)
      old = load<W>(dx);
    PP_UNROLL
    for (int j = 0; j < W; ++j)
      old.v[j] += rstd * (d.v[j] * g.v[j] - (Layer ? sums[Layer] : A(0)) - (x.v[j] - mean) * rstd * sums[0]);
    store<W>(dx, old);
  }
};

/// Packs of a row, and of the sums of dg and db, that a thread keeps in registers at most.
constexpr int mostHeld = 4;
/// Threads of a block with so many: their registers suffice for it.
template <bool Layer> constexpr int mostThreads = Layer ? 384 : 512;

/// A block takes every gridDim-th row. A thread always has the same columns: `Held` packs, whose sums of dg and db it
/// keeps in registers, as it keeps their elements of a row. Of longer rows than a block's threads hold the other
/// packs' sums are in its part of the scratch.
template <class E, int W, int Held, bool Layer>
__global__ void __launch_bounds__(Held == mostHeld ? mostThreads<Layer> : 256)
    normBackwardKernel(const NormGradients<E> n) {
  using A = Acc<E>;
  A *partOfG = n.parts + int64_t(blockIdx.x) * (Layer ? 2 : 1) * n.h, *partOfB = partOfG + n.h;
  int64_t first = int64_t(threadIdx.x) * W, step = int64_t(blockDim.x) * W;
  auto gains = [&](int64_t i) { return plusOne(load<W>(n.g + i), n.plus); };
  Pack<A, W> dg[Held] = {}, db[Held] = {};
  const int64_t rest = Held == mostHeld ? first + Held * step : n.h;
  for (int64_t i = rest; i < n.h; i += step) {
    store<W>(partOfG + i, Pack<A, W>{});
    if constexpr (Layer)
      store<W>(partOfB + i, Pack<A, W>{});
  }
  for (int64_t row = blockIdx.x; row < n.rows; row += gridDim.x) {
    const E *dy = n.dy + row * n.h, *x = n.x + row * n.h;
    E *dx = n.dx + row * n.h;
    NormRow<E, W, Layer> its{Layer ? n.mean[row] : A(0), n.rstd[row]};
    Stored<E, W> d[Held], a[Held];
    PP_UNROLL
    for (int p = 0; p < Held; ++p) {
      int64_t i = first + p * step, at = i < n.h ? i : 0; // (a pack that is there instead of one that is not)
      d[p] = fetch<W>(dy + at), a[p] = fetch<W>(x + at);
    }
    PP_UNROLL
    for (int p = 0; p < Held; ++p)
      if (int64_t i = first + p * step; i < n.h)
        its.add(d[p].widened(), a[p].widened(), gains(i), dg[p].v, db[p].v);
    for (int64_t i = rest; i < n.h; i += step)
      its.add(load<W>(dy + i), load<W>(x + i), gains(i), partOfG + i, partOfB + i);
    blockSum(its.sums, sharedMemory<A>());
    for (A &sum : its.sums)
      sum /= A(n.h);
    PP_UNROLL
    for (int p = 0; p < Held; ++p)
      if (int64_t i = first + p * step; i < n.h)
        its.write(d[p].widened(), a[p].widened(), gains(i), dx + i, n.adds);
    for (int64_t i = rest; i < n.h; i += step)
      its.write(load<W>(dy + i), load<W>(x + i), gains(i), dx + i, n.adds);
  }
  PP_UNROLL
  for (int p = 0; p < Held; ++p)
    if (int64_t i = first + p * step; i < n.h) {
      store<W>(partOfG + i, dg[p]);
      if constexpr (Layer)
        store<W>(partOfB + i, db[p]);
    }
}

/// Threads that hold the row, as far as they may be so many.
template <class E, int W, bool Layer>
pp_status_t launchBackward(const PreparedOp &op, const NormGradients<E> &n, int64_t blocks) {
  int64_t packs = blocksFor(n.h, W), held = packs <= 256 ? 1 : packs <= 512 ? 2 : mostHeld;
  int64_t threads = std::min<int64_t>(blocksFor(blocksFor(packs, held), 32) * 32, mostThreads<Layer>);
  auto *kernel = held == 1   ? normBackwardKernel<E, W, 1, Layer>
                 : held == 2 ? normBackwardKernel<E, W, 2, Layer>
                             : normBackwardKernel<E, W, mostHeld, Layer>;
  return launch(op, kernel, {blocks}, int(threads), 2 * blockSumEntries * sizeof(Acc<E>), n);
}

template <class E, bool Layer> pp_status_t normBackward(const PreparedOp &op, NormGradients<E> n, void *dg, void *db) {
  using A = Acc<E>;
  constexpr int W = packOf<E>;
  constexpr int64_t sumsOf = Layer ? 2 : 1;
  n.parts = reinterpret_cast<A *>(op.scratch);
  n.rows = op.dims[0], n.h = op.dims[1], n.adds = op.has(Accumulate), n.plus = op.has(PlusOne);
  bool wide = n.h % W == 0 && aligned(n.dy, n.x, n.g, n.dx);
  int64_t blocks = blocksOfNorm(n.rows);
  pp_status_t status = wide ? launchBackward<E, W, Layer>(op, n, blocks) : launchBackward<E, 1, Layer>(op, n, blocks);
  if (!status)
    status = columnSums<A>(op, n.parts, blocks, n.h, sumsOf * n.h, blocks, out<A>(dg), false);
  if (Layer && !status)
    status = columnSums<A>(op, n.parts + n.h, blocks, n.h, sumsOf * n.h, blocks, out<A>(db), false);
  return status;
}

template <class E> pp_status_t layernorm_bwd(const PreparedOp &op, void *const *a) {
  return normBackward<E, true>(op,
                               {in<E>(a[0]), in<E>(a[1]), in<E>(a[2]), in<Acc<E>>(a[3]), in<Acc<E>>(a[4]), out<E>(a[5]),
                                nullptr, 0, 0, false, false},
                               a[6], a[7]);
}
template <class E> pp_status_t rmsnorm_bwd(const PreparedOp &op, void *const *a) {
  return normBackward<E, false>(
      op, {in<E>(a[0]), in<E>(a[1]), in<E>(a[2]), nullptr, in<Acc<E>>(a[3]), out<E>(a[4]), nullptr, 0, 0, false, false},
      a[5], nullptr);
}

} // namespace

pp_status_t pp::addBias(const PreparedOp &op, const void *b, void *y) {
  static constexpr decltype(&addBiasOf<float>) bodies[] = {addBiasOf<float>, addBiasOf<Bf16>, addBiasOf<double>,
                                                           addBiasOf<F16>}; // in the order of Type
  return bodies[size_t(op.type)](op, b, y);
}

PP_BODIES(bias_dw)
PP_BODIES(layernorm)
PP_BODIES(layernorm_rebuild)
PP_BODIES(layernorm_bwd)
PP_BODIES(rmsnorm)
PP_BODIES(rmsnorm_rebuild)
PP_BODIES(rmsnorm_bwd)
