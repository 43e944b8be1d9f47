// Rope, and what tables of rows give and take: embedding and positions, their gradients summed in a fixed order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/Specs.h"
#include "runtime/simt/Map.h"

using namespace pp;

namespace {

// --- Rope ---

template <class E> struct Rope {
  using Element = E;
  const E *x;
  E *y;
  const Acc<E> *cosines, *sines; ///< [positions][half]
  int64_t s, heads, half, d;     ///< the first 2 half of a head's d columns turn
  int64_t passing;               ///< heads of each row behind those
  Acc<E> sign;
  bool pair;
  const int32_t *starts; ///< [batch, s], or null: positions count from the first token
  Places places;
  int64_t table; ///< the position that its first row is of

  /// Pairs i to i + W, all of one head.
  template <int W> PP_DEVICE void at(int64_t i) const {
    int64_t head = quotient(i, half), j = i - head * half, row = quotient(head, heads), t = row - quotient(row, s) * s;
    int64_t position = places.of(t) - (starts ? starts[row] : table);
    auto c = load<W>(cosines + position * half + j), n = load<W>(sines + position * half + j);
    int64_t base = (head + row * passing) * d;
    const E *from = x + base + (pair ? 2 * j : j);
    E *to = y + base + (pair ? 2 * j : j);
    auto a = load<W>(from), b = load<W>(from + (pair ? W : half));
    Pack<Acc<E>, W> p, q;
    for (int k = 0; k < W; ++k) {
      // In pair form a and b are the first and second half of W neighbouring pairs.
      Acc<E> first = pair ? (2 * k < W ? a.v[2 * k % W] : b.v[2 * k % W]) : a.v[k];
      Acc<E> second = pair ? (2 * k + 1 < W ? a.v[(2 * k + 1) % W] : b.v[(2 * k + 1) % W]) : b.v[k];
      p.v[k] = first * c.v[k] - second * sign * n.v[k];
      q.v[k] = second * c.v[k] + first * sign * n.v[k];
    }
    if (!pair) {
      store<W>(to, p);
      store<W>(to + half, q);
      return;
    }
    for (int k = 0; k < W; ++k) {
      (2 * k < W ? a : b).v[2 * k % W] = p.v[k];
      (2 * k + 1 < W ? a : b).v[(2 * k + 1) % W] = q.v[k];
    }
    store<W>(to, a);
    store<W>(to + W, b);
  }
};

/// What does not turn: the columns of heads from `first` on, and the heads of a row behind its first `heads`.
template <class E> struct Passed {
  using Element = E;
  const E *x;
  E *y;
  int64_t first, d, heads, passing;
  template <int W> PP_DEVICE void at(int64_t i) const {
    const int64_t width = d - first, ofHeads = heads * width, row = quotient(i, ofHeads + passing * d);
    const int64_t column = i - row * (ofHeads + passing * d), head = column < ofHeads ? quotient(column, width) : 0;
    const int64_t at = row * (heads + passing) * d +
                       (column < ofHeads ? head * d + first + (column - head * width) : heads * d + (column - ofHeads));
    store<W>(y + at, load<W>(x + at));
  }
};

template <class E> pp_status_t rope(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  int64_t half = op.pairs, heads = op.dims[2], d = op.dims[3], rows = op.dims[0] * op.dims[1], all = rows * heads;
  const int64_t passed = all * (d - 2 * half) + rows * op.passing * d;
  if (passed > 0 && arguments[0] != arguments[2])
    if (pp_status_t status = map(
            op, Passed<E>{in<E>(arguments[0]), out<E>(arguments[2]), 2 * half, d, heads, op.passing}, passed, false))
      return status;
  Rope<E> rope{in<E>(arguments[0]),
               out<E>(arguments[2]),
               in<A>(op.cosines),
               in<A>(op.sines),
               op.dims[1],
               heads,
               half,
               d,
               op.passing,
               op.has(Inverse) ? A(-1) : A(1),
               op.has(Pair),
               op.has(Documents) ? in<int32_t>(arguments[1]) : nullptr,
               Places(op, op.dims[1], op.dims[4]),
               ropeRows(op).first};
  return map(op, rope, all * half, (half | d) % packOf<E> == 0 && aligned(arguments[0], arguments[2]));
}

// --- Tables ---

/// Copies the rows [first, first + rows) of a table of `whole` that the tokens name; zeros for a token of another row.
template <class E> struct Lookup {
  using Element = E;
  const int32_t *tokens;
  const E *table;
  E *x;
  int64_t h, rows, first, whole;
  int32_t *failures, mark;
  template <int W> PP_DEVICE void at(int64_t i) const {
    int64_t t = quotient(i, h), token = tokens[t], row = token - first;
    if (token < 0 || token >= whole)
      setOnce(failures, mark);
    else if (row >= 0 && row < rows)
      store<W>(x + i, load<W>(table + row * h + (i - t * h)));
    else
      store<W>(x + i, Pack<Acc<E>, W>());
  }
};
template <class E> pp_status_t embedding(const PreparedOp &op, void *const *arguments) {
  int64_t h = op.dims[1];
  Lookup<E> lookup{
      in<int32_t>(arguments[0]), in<E>(arguments[1]), out<E>(arguments[2]), h, op.dims[2], op.dims[3], op.dims[4],
      op.launches->failures,     op.number + 1};
  return map(op, lookup, op.dims[0] * h, h % packOf<E> == 0 && aligned(arguments[1], arguments[2]));
}

/// order[k] = the token position that stands k-th when positions are sorted by token, equal tokens in their order: each
/// thread counts how many stand before its own.
__global__ void orderKernel(const int32_t *tokens, int n, int32_t *order) {
  int32_t *tile = sharedMemory<int32_t>();
  int mine = int(blockIdx.x * blockDim.x + threadIdx.x), size = int(blockDim.x), before = 0;
  int32_t token = mine < n ? tokens[mine] : 0;
  for (int start = 0; start < n; start += size) {
    waitBlock();
    if (start + int(threadIdx.x) < n)
      tile[threadIdx.x] = tokens[start + int(threadIdx.x)];
    waitBlock();
    int end = n - start < size ? n - start : size;
    for (int i = 0; i < end; ++i)
      before += tile[i] < token || (tile[i] == token && start + i < mine);
  }
  if (mine < n)
    order[before] = mine;
}

/// Block x begins a token's run in the order, or ends at once; block y is a range of columns.
template <class E, int W>
__global__ void embeddingBackwardKernel(const int32_t *tokens, const int32_t *order, const E *dx, Acc<E> *table,
                                        int64_t n, int64_t h, int64_t rows, int64_t first, int64_t whole, int64_t pad,
                                        int32_t *failures, int32_t mark) {
  int64_t at = blockIdx.x, column = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  int32_t token = tokens[order[at]];
  if (token < 0 || token >= whole) {
    setOnce(failures, mark);
    return;
  }
  int64_t row = token - first;
  if (row < 0 || row >= rows || column >= h || token == pad || (at > 0 && tokens[order[at - 1]] == token))
    return;
  auto sum = load<W>(table + row * h + column);
  for (; at < n && tokens[order[at]] == token; ++at) {
    auto more = load<W>(dx + order[at] * h + column);
    for (int j = 0; j < W; ++j)
      sum.v[j] += more.v[j];
  }
  store<W>(table + row * h + column, sum);
}

template <class E> pp_status_t embedding_dw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  constexpr int W = packOf<E>;
  const int32_t *tokens = in<int32_t>(arguments[0]);
  int32_t *order = reinterpret_cast<int32_t *>(op.scratch);
  int64_t n = op.dims[0], h = op.dims[1];
  A *table = out<A>(arguments[2]);
  if (!op.has(Accumulate))
    if (pp_status_t status = clear(op, table, op.dims[2] * h))
      return status;
  if (pp_status_t status =
          launch(op, orderKernel, {blocksFor(n, 256)}, 256, 256 * sizeof(int32_t), tokens, int(n), order))
    return status;
  bool wide = h % W == 0 && aligned(arguments[1], arguments[2]);
  return launch(op, wide ? embeddingBackwardKernel<E, W> : embeddingBackwardKernel<E, 1>,
                {n, blocksFor(h, 128 * (wide ? W : 1))}, 128, 0, tokens, static_cast<const int32_t *>(order),
                in<E>(arguments[1]), table, n, h, op.dims[2], op.dims[3], op.dims[4], int64_t(op.params[0]),
                op.launches->failures, op.number + 1);
}

/// Every sequence of the batch gets the same rows, from `first` on, or in every second run from `second` on.
template <class E> struct Repeat {
  using Element = E;
  const E *first, *second;
  E *x;
  int64_t size; ///< of a run
  bool two;
  template <int W> PP_DEVICE void at(int64_t i) const {
    int64_t run = quotient(i, size);
    store<W>(x + i, load<W>((two && run % 2 ? second : first) + (i - run * size)));
  }
};
template <class E> pp_status_t positions(const PreparedOp &op, void *const *arguments) {
  int64_t h = op.dims[2], whole = op.dims[1] * h, size = op.has(Zigzag) ? whole / 2 : whole;
  const E *p = in<E>(arguments[1]), *first = p + op.dims[3] * h, *second = p + op.second * h;
  return map(op, Repeat<E>{first, second, out<E>(arguments[2]), size, op.has(Zigzag)}, op.dims[0] * whole,
             size % packOf<E> == 0 && aligned(first, second, arguments[2]));
}

template <class E> struct SumOverBatch {
  using Element = E;
  const E *dx;
  Acc<E> *first, *second; ///< where the rows of a sequence begin, and those of its second run
  int64_t batch, size, run;
  template <int W> PP_DEVICE void at(int64_t i) const {
    Acc<E> *dp = i < run ? first + i : second + (i - run);
    auto sum = load<W>(dp);
    for (int64_t b = 0; b < batch; ++b) {
      auto more = load<W>(dx + b * size + i);
      for (int j = 0; j < W; ++j)
        sum.v[j] += more.v[j];
    }
    store<W>(dp, sum);
  }
};
template <class E> pp_status_t positions_dw(const PreparedOp &op, void *const *arguments) {
  int64_t h = op.dims[2], size = op.dims[1] * h;
  Acc<E> *dp = out<Acc<E>>(arguments[1]);
  if (!op.has(Accumulate))
    if (pp_status_t status = clear(op, dp, op.dims[4] * h))
      return status;
  Acc<E> *first = dp + op.dims[3] * h, *second = dp + op.second * h;
  int64_t run = op.has(Zigzag) ? size / 2 : size;
  return map(op, SumOverBatch<E>{in<E>(arguments[0]), first, second, op.dims[0], size, run}, size,
             (size | run) % packOf<E> == 0 && aligned(arguments[0], first, second));
}

} // namespace

PP_BODIES(rope)
PP_BODIES(embedding)
PP_BODIES(embedding_dw)
PP_BODIES(positions)
PP_BODIES(positions_dw)
