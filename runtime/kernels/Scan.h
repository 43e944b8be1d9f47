// A linear scan in chunks of rows with its backward, a causal convolution with its two: of whole rows, or in slices.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// In a chunk G_i = g_0 + .. + g_i, D_ij = e^(G_i - G_j) for j <= i, and S is the state before it. w_i is what the keys
// before it leave of v_i (v_i itself without "delta"), and u_i = beta_i w_i:
//   w_i = v_i - e^(G_i) S^T k_i - sum over j < i of (k_i . k_j) D_ij u_j
//   o_i = e^(G_i) S^T q_i + sum over j <= i of (q_i . k_j) D_ij u_j
//   S'  = e^(G_last) S + sum over i of k_i (e^(G_last - G_i) u_i)^T
// A chunk ends where its document ends, so that nothing is masked, and no other document changes a bit of one. No
// exponent is ever positive. Each G_i - G_j is a sum of its own in f64, not a difference of sums: behind a strong decay
// that would be left with few digits. In a slice of a sequence S begins as it came in, unless a document begins there,
// and chunks count from the slice's first row.
#ifndef PP_RUNTIME_KERNELS_SCAN_H
#define PP_RUNTIME_KERNELS_SCAN_H

#include "runtime/kernels/AttentionTiles.h"
#include <omp.h>
#include <tuple>

namespace {
using namespace pp;

//===-- Products in registers ------------------------------------------------------------------------------------===//

#if defined(__AVX512F__)
constexpr int scanLanes = 16, scanRows = 8;
#elif defined(__AVX2__)
constexpr int scanLanes = 8, scanRows = 4;
#else
constexpr int scanLanes = 4, scanRows = 4;
#endif
template <class A> struct WideOf { using Vector = VectorOf<scanLanes>::Floats; };
template <> struct WideOf<double> { typedef double Vector __attribute__((vector_size(scanLanes * 4), may_alias)); };

constexpr int64_t chunkRows = rowsOfScan;

/// A matrix in scratch. Its rows are whole lines of memory, padded with zeros.
template <class A> struct Matrix {
  A *data;
  int64_t stride;
  A *operator[](int64_t row) const { return data + row * stride; }
  Matrix from(int64_t row, int64_t column = 0) const { return {data + row * stride + column, stride}; }
};

template <class A> struct Wide {
  using Vector = typename WideOf<A>::Vector;
  static constexpr int64_t lanes = sizeof(Vector) / sizeof(A);
  PP_INLINE static Vector load(const A *p) { return *reinterpret_cast<const Vector *>(p); }
  PP_INLINE static void store(A *p, Vector v) { *reinterpret_cast<Vector *>(p) = v; }

  /// A tile of product(). (Not inlined: alone it keeps every register for the loop.)
  template <bool across, int count>
  [[gnu::noinline]] static void tile(A *c, int64_t cStride, A keep, const A *factor, const A *a, int64_t aStride,
                                     const A *b, int64_t bStride, int64_t depth) {
    Vector sums[scanRows][count];
    PP_UNROLL
    for (int i = 0; i < scanRows; ++i)
      PP_UNROLL
    for (int n = 0; n < count; ++n)
      sums[i][n] = Vector{};
#pragma GCC unroll 2
    for (int64_t k = 0; k < depth; ++k) {
      Vector right[count];
      PP_UNROLL
      for (int n = 0; n < count; ++n)
        right[n] = load(b + k * bStride + n * lanes);
      PP_UNROLL
      for (int i = 0; i < scanRows; ++i)
        PP_UNROLL
      for (int n = 0; n < count; ++n)
        sums[i][n] += (across ? a[k * aStride + i] : a[i * aStride + k]) * right[n];
    }
    PP_UNROLL
    for (int i = 0; i < scanRows; ++i)
      PP_UNROLL
    for (int n = 0; n < count; ++n) {
      A *to = c + i * cStride + n * lanes;
      Vector sum = factor ? factor[i] * sums[i][n] : sums[i][n];
      store(to, keep != 0 ? keep * load(to) + sum : sum);
    }
  }

  /// c[rows][width] = keep * c + factor_i * (a b), or a^T b with `across`; `depth` terms a sum. What is not kept is
  /// not read. Without a factor it is 1.
  template <bool across = false>
  static void product(Matrix<A> c, A keep, const A *factor, Matrix<A> a, Matrix<A> b, int64_t rows, int64_t width,
                      int64_t depth) {
    for (int64_t at = 0; at < width;) {
      const int64_t left = (width - at) / lanes, count = left == 4 || left == 2 ? 2 : left >= 3 ? 3 : 1;
      auto *run = count == 3 ? tile<across, 3> : count == 2 ? tile<across, 2> : tile<across, 1>;
      for (int64_t i = 0; i < rows; i += scanRows)
        run(c[i] + at, c.stride, keep, factor ? factor + i : nullptr, across ? a.data + i : a[i], a.stride, b.data + at,
            b.stride, depth);
      at += count * lanes;
    }
  }
  /// The same where row i of a, or of a^T, has nothing but zeros behind column i, or before it with `across`.
  template <bool across = false>
  static void triangle(Matrix<A> c, A keep, Matrix<A> a, Matrix<A> b, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i += 8)
      across ? product<true>(c.from(i), keep, nullptr, a.from(i, i), b.from(i), 8, width, rows - i)
             : product<false>(c.from(i), keep, nullptr, a.from(i), b, 8, width, i + 8);
  }

  /// y[columns][rows] = the transpose of x[rows][columns], both in whole lines.
  static void transpose(Matrix<A> x, int64_t rows, int64_t columns, Matrix<A> y) {
    for (int64_t r = 0; r < rows; r += scanLanes)
      for (int64_t c = 0; c < columns; c += 4) {
        if constexpr (sizeof(A) == 4) {
          Vector part[4];
          PP_UNROLL
          for (int i = 0; i < 4; ++i)
            gather(x[r + i] + c, x.stride, part[i]);
          VectorOf<scanLanes>::transposeFours(part);
          PP_UNROLL
          for (int i = 0; i < 4; ++i)
            store(y[c + i] + r, part[i]);
        } else {
          for (int i = 0; i < 4; ++i)
            for (int l = 0; l < scanLanes; ++l)
              y[c + i][r + l] = x[r + l][c + i];
        }
      }
  }

  /// x[i] *= factor_i.
  static void scale(Matrix<A> x, const A *factor, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
      for (int64_t c = 0; c < width; ++c)
        x[i][c] *= factor[i];
  }
  static A dot(const A *x, const A *y, int64_t width) {
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; ++c)
      sum += x[c] * y[c];
    return sum;
  }
};

//===-- The shape of a scan, and what a task has in scratch ------------------------------------------------------===//

/// dims b s h k d e.
struct ScanShape {
  int64_t batch, s, heads, keys, share, d, e;
  int64_t wd, we, sd, se;    ///< widths and strides of rows of k and of v in scratch
  bool delta, byChannel;     ///< a decay for each column of k
  const int32_t *starts;     ///< [b, s]; null: a row is one document
  int64_t position;          ///< of a slice's first row, as starts count
  bool hasBefore, hasBehind; ///< a state comes in; what is behind the last row matters
  ScanShape(const PreparedOp &op, const void *starts, const void *before = nullptr, const void *behind = nullptr)
      : batch(op.dims[0]), s(op.dims[1]), heads(op.dims[2]), keys(op.dims[3]), share(heads / keys), d(op.dims[4]),
        e(op.dims[5]), wd(lineOfScan(d)), we(lineOfScan(e)), sd(strideOfScan(d)), se(strideOfScan(e)),
        delta(op.has(Delta)), byChannel(op.params[1] > 0), starts(op.has(Documents) ? in<int32_t>(starts) : nullptr),
        position(int64_t(op.params[0])), hasBefore(before), hasBehind(behind) {}
  bool sameDocument(int64_t b, int64_t t, int64_t other) const {
    return !starts || starts[b * s + t] == starts[b * s + other];
  }
  /// The first row of the document of row t, or the slice's first one.
  int64_t beginOf(int64_t b, int64_t t) const {
    return starts && starts[b * s + t] > position ? starts[b * s + t] - position : 0;
  }
  bool begins(int64_t b, int64_t t) const {
    return t > 0 ? !sameDocument(b, t - 1, t) : !hasBefore || (starts && starts[b * s] >= position);
  }
};

/// Rows [begin, end) of one document; `first` and `last`: it has no rows before, or behind.
struct RowChunk {
  int64_t begin, end;
  bool first, last;
  int64_t rows() const { return end - begin; }
  int64_t padded() const { return (rows() + 15) / 16 * 16; } ///< with rows of zeros
  static RowChunk at(const ScanShape &shape, int64_t b, int64_t begin) {
    int64_t end = begin + 1;
    while (end < shape.s && end < begin + chunkRows && shape.sameDocument(b, begin, end))
      ++end;
    return {begin, end, shape.begins(b, begin), end == shape.s ? !shape.hasBehind : shape.begins(b, end)};
  }
};

/// What the decays of a chunk make: e^(G_i), e^(G_last - G_i), e^(G_last), D; 0 for rows that are not there.
template <class A> struct Decays {
  A inner[chunkRows], outer[chunkRows], all;
  PP_INLINE static A power(A x) { return sizeof(A) == 4 && x < -87 ? 0 : exponential(x); }
  void read(const A *g, int64_t stride, const RowChunk &chunk, Matrix<A> d) {
    double sums[chunkRows], sum = 0; // of the decays from behind row j to row i, and from the first one
    const int64_t n = chunk.rows(), padded = chunk.padded();
    for (int64_t i = 0; i < padded; ++i) {
      const int64_t seen = i < n ? i + 1 : 0;
      const double its = i < n ? double(g[i * stride]) : 0;
      sum += its, sums[i] = -its;
      inner[i] = i < n ? power(A(sum)) : 0;
#pragma omp simd
      for (int64_t j = 0; j < seen; ++j)
        sums[j] += its, d[i][j] = power(A(sums[j]));
      for (int64_t j = seen; j < padded; ++j)
        d[i][j] = 0;
    }
    all = inner[n - 1];
    for (int64_t i = 0; i < padded; ++i)
      outer[i] = d[n - 1][i];
  }
};

/// The work of one task, a row and a head of keys: `Places` of Facts.h's scanScratch.
template <class E> struct Scan {
  using A = Acc<E>;
  using W = Wide<A>;
  using M = Matrix<A>;

  /// Matrices of a chunk: q k, t and its gradients have d columns, v and what is like it e, p and what is like it one
  /// for each row. Then those of a whole row.
  struct Places {
    M q, k, kt, w, u, o, d, qk, kk, p, l;       // of both directions
    M dq, dk, t, r, ut, yu, xu;                 // of the backward
    M state, stateT, borders, kept, sumQ, sumK; // [d][e], [e][d], borders one below the other, rows of w, dq, dk
    char *end;
    Places(char *scratch, const ScanShape &n, bool backward) {
      A *next = reinterpret_cast<A *>(scratch);
      auto place = [&](M &matrix, int64_t rows, int64_t stride) { matrix = {next, stride}, next += rows * stride; };
      for (M *each : {&q, &k})
        place(*each, chunkRows, n.sd);
      place(kt, n.wd, chunkRows);
      for (M *each : {&w, &u, &o})
        place(*each, chunkRows, n.se);
      for (M *each : {&d, &qk, &kk, &p, &l})
        place(*each, chunkRows, chunkRows);
      place(state, n.wd * (backward ? 1 : n.share), n.se);
      if (backward) {
        for (M *each : {&dq, &dk, &t})
          place(*each, chunkRows, n.sd);
        place(r, chunkRows, n.se), place(ut, n.we, chunkRows);
        for (M *each : {&yu, &xu})
          place(*each, chunkRows, chunkRows);
        place(stateT, n.we, n.sd), place(borders, n.we * ((n.s - 1) / chunkRows + 1), n.sd), place(kept, n.s, n.we);
        for (M *each : {&sumQ, &sumK})
          place(*each, n.share > 1 ? n.s : 0, n.wd);
      }
      end = reinterpret_cast<char *>(next);
    }
    static int64_t bytes(const ScanShape &n, bool backward) {
      return (Places(nullptr, n, backward).end - static_cast<char *>(nullptr) + 63) / 64 * 64;
    }
  };

  /// Rows of a head into scratch, with zeros behind them.
  static void load(const E *x, int64_t stride, const RowChunk &chunk, int64_t columns, M y, int64_t width) {
    for (int64_t t = 0; t < chunk.padded(); ++t) {
      const int64_t n = t < chunk.rows() ? columns : 0;
      if constexpr (sizeof(E) < 4)
        widenRun(x + t * stride, y[t], n);
      else
        memcpy(y[t], x + t * stride, size_t(n) * sizeof(E));
      memset(y[t] + n, 0, size_t(width - n) * sizeof(A));
    }
  }
  static void storeRow(const A *x, E *y, int64_t n) {
    if constexpr (sizeof(E) < 4)
      narrowRun(x, y, n);
    else
      memcpy(y, x, size_t(n) * sizeof(E));
  }
  static void store(M x, const RowChunk &chunk, E *y, int64_t stride, int64_t columns) {
    for (int64_t t = 0; t < chunk.rows(); ++t)
      storeRow(x[t], y + t * stride, columns);
  }
  /// A head's state, with zeros around it, and back.
  static void loadState(const void *states, const ScanShape &n, int64_t number, M y) {
    const A *x = in<A>(states) + number * n.d * n.e;
    for (int64_t i = 0; i < n.wd; ++i) {
      const int64_t columns = i < n.d ? n.e : 0;
      memcpy(y[i], x + i * n.e, size_t(columns) * sizeof(A));
      memset(y[i] + columns, 0, size_t(n.we - columns) * sizeof(A));
    }
  }
  static void storeState(M x, const ScanShape &n, int64_t number, void *states) {
    for (int64_t i = 0; i < n.d; ++i)
      memcpy(out<A>(states) + (number * n.d + i) * n.e, x[i], size_t(n.e) * sizeof(A));
  }
  static void loadBeta(const A *beta, int64_t stride, const RowChunk &chunk, A *its) {
    for (int64_t t = 0; t < chunk.padded(); ++t)
      its[t] = t < chunk.rows() ? beta[t * stride] : 0;
  }

  /// y_ij = x_ij d_ij for j <= i, or -x_ij d_ij for j < i; 0 elsewhere.
  static void decay(M x, M d, const RowChunk &chunk, bool isStrict, M y) {
    const A sign = isStrict ? -1 : 1;
    for (int64_t i = 0; i < chunk.padded(); ++i) {
      const int64_t seen = isStrict ? i : i + 1;
#pragma omp simd
      for (int64_t j = 0; j < chunk.padded(); ++j)
        y[i][j] = j < seen ? sign * x[i][j] * d[i][j] : 0;
    }
  }
  /// The products of rows x_i . y_j with y transposed, those of j <= i at least.
  static void pairs(M x, M yt, const RowChunk &chunk, int64_t depth, M c) {
    for (int64_t i = 0; i < chunk.padded(); i += 16)
      W::product(c.from(i), 0, nullptr, x.from(i), yt, 16, i + 16, depth);
  }

  /// w_i += sum over j < i of l_ij u_j with u_j = beta_j w_j.
  static void solve(const Places &f, const A *beta, const RowChunk &chunk, int64_t width) {
    for (int64_t first = 0; first < chunk.padded(); first += 8) {
      if (first > 0)
        W::product(f.w.from(first), 1, nullptr, f.l.from(first), f.u, 8, width, first);
      substitute<1>(f.w.from(first), f.u.from(first), f.l.from(first, first), beta + first, width);
    }
  }
  /// r_j += sum over i > j of l_ij x_i with x_i = beta_i r_i.
  static void solveBack(M r, M x, M l, const A *beta, const RowChunk &chunk, int64_t width) {
    for (int64_t first = chunk.padded() - 8; first >= 0; first -= 8) {
      const int64_t behind = first + 8;
      if (behind < chunk.padded())
        W::template product<true>(r.from(first), 1, nullptr, l.from(behind, first), x.from(behind), 8, width,
                                  chunk.padded() - behind);
      substitute<-1>(r.from(first), x.from(first), l.from(first, first), beta + first, width);
    }
  }
  /// Eight rows of either; way -1: from the last one, by the transpose of l.
  template <int way> static void substitute(M w, M u, M l, const A *beta, int64_t width) {
    for (int64_t c = 0; c < width; c += W::lanes) {
      typename W::Vector done[8];
      PP_UNROLL
      for (int step = 0; step < 8; ++step) {
        const int i = way > 0 ? step : 7 - step;
        typename W::Vector sum = W::load(w[i] + c);
        PP_UNROLL
        for (int before = 0; before < step; ++before) {
          const int j = way > 0 ? before : 7 - before;
          sum += (way > 0 ? l[i][j] : l[j][i]) * done[j];
        }
        W::store(w[i] + c, sum);
        done[i] = beta[i] * sum;
        W::store(u[i] + c, done[i]);
      }
    }
  }

  /// w and u of a chunk with the state before it; v, k, k transposed and the decays are there.
  static void residuals(const ScanShape &n, const Places &f, const Decays<A> &decays, const A *beta,
                        const RowChunk &chunk, M state) {
    const int64_t rows = chunk.padded();
    if (n.delta) {
      A minus[chunkRows];
      for (int64_t i = 0; i < rows; ++i)
        minus[i] = -decays.inner[i];
      if (!chunk.first)
        W::product(f.w, 1, minus, f.k, state, rows, n.we, n.wd);
      decay(f.kk, f.d, chunk, true, f.l);
      return solve(f, beta, chunk, n.we);
    }
    for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
      for (int64_t c = 0; c < n.we; ++c)
        f.u[i][c] = beta[i] * f.w[i][c];
  }
  /// The state behind a chunk; scales u.
  static void advance(const ScanShape &n, const Places &f, const Decays<A> &decays, const RowChunk &chunk, M state) {
    W::scale(f.u, decays.outer, chunk.rows(), n.we);
    W::template product<true>(state, chunk.first ? 0 : decays.all, nullptr, f.k, f.u, n.wd, n.we, chunk.padded());
  }

  static void forward(void *const *arguments, const ScanShape &n, int64_t task, char *scratch) {
    const Places f(scratch, n, false);
    const int64_t b = task / n.keys, key = task % n.keys;
    Decays<A> decays;
    A beta[chunkRows];
    const int64_t first = b * n.heads + key * n.share; // of its heads
    for (int64_t i = 0; i < n.share && n.hasBefore; ++i)
      loadState(arguments[6], n, first + i, f.state.from(i * n.wd));
    for (RowChunk chunk{}; chunk.end < n.s;) {
      chunk = RowChunk::at(n, b, chunk.end);
      const int64_t row = b * n.s + chunk.begin, rows = chunk.padded();
      load(in<E>(arguments[0]) + (row * n.keys + key) * n.d, n.keys * n.d, chunk, n.d, f.q, n.wd);
      load(in<E>(arguments[1]) + (row * n.keys + key) * n.d, n.keys * n.d, chunk, n.d, f.k, n.wd);
      W::transpose(f.k, rows, n.wd, f.kt);
      pairs(f.q, f.kt, chunk, n.wd, f.qk);
      if (n.delta)
        pairs(f.k, f.kt, chunk, n.wd, f.kk);
      for (int64_t i = 0; i < n.share; ++i) {
        const int64_t head = key * n.share + i;
        const M state = f.state.from(i * n.wd);
        decays.read(in<A>(arguments[3]) + row * n.heads + head, n.heads, chunk, f.d);
        loadBeta(in<A>(arguments[4]) + row * n.heads + head, n.heads, chunk, beta);
        load(in<E>(arguments[2]) + (row * n.heads + head) * n.e, n.heads * n.e, chunk, n.e, f.w, n.we);
        residuals(n, f, decays, beta, chunk, state);
        decay(f.qk, f.d, chunk, false, f.p);
        if (!chunk.first)
          W::product(f.o, 0, decays.inner, f.q, state, rows, n.we, n.wd);
        W::triangle(f.o, chunk.first ? 0 : 1, f.p, f.u, rows, n.we);
        store(f.o, chunk, out<E>(arguments[7]) + (row * n.heads + head) * n.e, n.heads * n.e, n.e);
        if (!chunk.last)
          advance(n, f, decays, chunk, state);
      }
    }
    for (int64_t i = 0; i < n.share && n.hasBehind; ++i)
      storeState(f.state.from(i * n.wd), n, first + i, arguments[8]);
  }

  //===-- Backward -----------------------------------------------------------------------------------------------===//
  //
  // With the gradient dS' of the state behind a chunk, from the last chunk of a document to its first:
  //   r_j = e^(G_last - G_j) dS'^T k_j + sum over i >= j of (q_i . k_j) D_ij do_i
  //         - sum over i > j of (k_i . k_j) D_ij x_i
  //   x_j = beta_j r_j = dv_j;  dbeta_j = r_j . w_j
  //   dS = e^(G_last) dS' + sum over i of e^(G_i) (q_i do_i^T - k_i x_i^T)
  // and with N_ij = (do_i . u_j) D_ij for j <= i, M_ij = -(x_i . u_j) D_ij for j < i (x and M only with "delta"):
  //   dq_i = sum_j N_ij k_j + e^(G_i) S do_i
  //   dk_i = sum_j M_ij k_j - e^(G_i) S x_i + sum_j (N_ji q_j + M_ji k_j) + e^(G_last - G_i) dS' u_i
  // A decay g_t multiplies each pair with i >= t > j, the state's part of each row from t on, what each row before t
  // leaves, and the whole state: dg_t is the sum of these, in which nothing cancels. In a slice dS' begins as it came
  // from the slice behind, and dS goes to the one before.

  /// Where arguments of scan_bwd stand.
  enum { kDout, kQ, kK, kV, kG, kBeta, kStarts, kState, kDbehind, kDq, kDk, kDv, kDg, kDbeta, kDstate };

  /// A head's states in front of its chunks, but those of first ones, and the rows of w; gives how many states.
  static int64_t states(void *const *arguments, const ScanShape &n, const Places &f, int64_t b, int64_t head) {
    Decays<A> decays;
    A beta[chunkRows];
    int64_t count = 0;
    const int64_t key = head / n.share;
    if (!n.begins(b, 0)) {
      loadState(arguments[kState], n, b * n.heads + head, f.state);
      W::transpose(f.state, n.wd, n.we, f.borders.from(n.we * count++));
    }
    for (RowChunk chunk{}; chunk.end < n.s;) {
      chunk = RowChunk::at(n, b, chunk.end);
      const int64_t row = b * n.s + chunk.begin;
      load(in<E>(arguments[kK]) + (row * n.keys + key) * n.d, n.keys * n.d, chunk, n.d, f.k, n.wd);
      if (n.delta) {
        W::transpose(f.k, chunk.padded(), n.wd, f.kt);
        pairs(f.k, f.kt, chunk, n.wd, f.kk);
      }
      decays.read(in<A>(arguments[kG]) + row * n.heads + head, n.heads, chunk, f.d);
      loadBeta(in<A>(arguments[kBeta]) + row * n.heads + head, n.heads, chunk, beta);
      load(in<E>(arguments[kV]) + (row * n.heads + head) * n.e, n.heads * n.e, chunk, n.e, f.w, n.we);
      residuals(n, f, decays, beta, chunk, f.state);
      for (int64_t t = 0; t < chunk.rows(); ++t)
        memcpy(f.kept[chunk.begin + t], f.w[t], size_t(n.we) * sizeof(A));
      if (chunk.last || chunk.end == n.s)
        continue;
      advance(n, f, decays, chunk, f.state);
      W::transpose(f.state, n.wd, n.we, f.borders.from(n.we * count++));
    }
    return count;
  }

  /// The last chunk of those that end at `end`: chunks count from the first row of their document, or of the slice.
  static RowChunk before(const ScanShape &n, int64_t b, int64_t end) {
    const int64_t begin = n.beginOf(b, end - 1);
    return RowChunk::at(n, b, begin + (end - 1 - begin) / chunkRows * chunkRows);
  }

  /// dg of a chunk: `z` are its pairs with j < i, times what they are multiplied by; `inner` what rows take of the
  /// state, `outer` what they leave, `whole` what becomes of the state itself.
  static void decayGradients(const RowChunk &chunk, M z, const A *inner, const A *outer, A whole, A *dg,
                             int64_t stride) {
    A below[chunkRows] = {}, taken = 0, left[chunkRows];
    for (int64_t t = 0; t < chunk.rows(); ++t)
      left[t] = whole, whole += outer[t];
    for (int64_t t = chunk.rows() - 1; t >= 0; --t) {
      A sum = 0;
      for (int64_t j = 0; j < t; ++j)
        below[j] += z[t][j], sum += below[j];
      taken += inner[t];
      dg[t * stride] = sum + taken + left[t];
    }
  }

  static void backwardChunk(void *const *arguments, const ScanShape &n, const Places &f, int64_t b, int64_t head,
                            const RowChunk &chunk, M border) {
    const int64_t key = head / n.share, row = b * n.s + chunk.begin, rows = chunk.padded();
    const int64_t at = (row * n.keys + key) * n.d, atV = (row * n.heads + head) * n.e, atG = row * n.heads + head;
    const M dout = f.o, x = f.r;
    Decays<A> decays;
    A beta[chunkRows], inner[chunkRows] = {}, outer[chunkRows] = {}, whole = 0;
    decays.read(in<A>(arguments[kG]) + atG, n.heads, chunk, f.d);
    loadBeta(in<A>(arguments[kBeta]) + atG, n.heads, chunk, beta);
    load(in<E>(arguments[kQ]) + at, n.keys * n.d, chunk, n.d, f.q, n.wd);
    load(in<E>(arguments[kK]) + at, n.keys * n.d, chunk, n.d, f.k, n.wd);
    load(in<E>(arguments[kDout]) + atV, n.heads * n.e, chunk, n.e, dout, n.we);
    for (int64_t t = 0; t < rows; ++t) {
      const A *w = f.kept[chunk.begin + t];
#pragma omp simd
      for (int64_t c = 0; c < n.we; ++c)
        f.u[t][c] = t < chunk.rows() ? beta[t] * w[c] : 0;
    }
    W::transpose(f.k, rows, n.wd, f.kt);
    W::transpose(f.u, rows, n.we, f.ut);
    pairs(f.q, f.kt, chunk, n.wd, f.qk);
    decay(f.qk, f.d, chunk, false, f.p);
    // r and x, in w and r.
    W::template triangle<true>(f.w, 0, f.p, dout, rows, n.we);
    if (!chunk.last)
      W::product(f.w, 1, decays.outer, f.k, f.state, rows, n.we, n.wd);
    if (n.delta) {
      pairs(f.k, f.kt, chunk, n.wd, f.kk);
      decay(f.kk, f.d, chunk, true, f.l);
      solveBack(f.w, x, f.l, beta, chunk, n.we);
    } else {
      for (int64_t t = 0; t < rows; ++t)
#pragma omp simd
        for (int64_t c = 0; c < n.we; ++c)
          x[t][c] = beta[t] * f.w[t][c];
    }
    store(x, chunk, out<E>(arguments[kDv]) + atV, n.heads * n.e, n.e);
    for (int64_t t = 0; t < chunk.rows(); ++t)
      out<A>(arguments[kDbeta])[atG + t * n.heads] = W::dot(f.w[t], f.kept[chunk.begin + t], n.we);
    // Pairs: N in yu, M in xu, and what decays multiply in qk.
    pairs(dout, f.ut, chunk, n.we, f.yu);
    for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
      for (int64_t j = 0; j < i; ++j)
        f.qk[i][j] = f.yu[i][j] * f.p[i][j];
    decay(f.yu, f.d, chunk, false, f.yu);
    W::triangle(f.dq, 0, f.yu, f.k, rows, n.wd);
    W::template triangle<true>(f.dk, 0, f.yu, f.q, rows, n.wd);
    if (n.delta) {
      pairs(x, f.ut, chunk, n.we, f.xu);
      for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
        for (int64_t j = 0; j < i; ++j)
          f.qk[i][j] += f.xu[i][j] * f.l[i][j];
      decay(f.xu, f.d, chunk, true, f.xu);
      W::triangle(f.dk, 1, f.xu, f.k, rows, n.wd);
      W::template triangle<true>(f.dk, 1, f.xu, f.k, rows, n.wd);
    }
    // The state in front, the gradient of the one behind.
    auto add = [&](M its, M state, const A *factor, A sign, M with, M sum, A *products) {
      W::product(f.t, 0, factor, its, state, rows, n.wd, n.we);
      for (int64_t i = 0; i < chunk.rows(); ++i) {
        products[i] += sign * W::dot(f.t[i], with[i], n.wd);
#pragma omp simd
        for (int64_t c = 0; c < n.wd; ++c)
          sum[i][c] += sign * f.t[i][c];
      }
    };
    if (!chunk.first) {
      add(dout, border, decays.inner, 1, f.q, f.dq, inner);
      if (n.delta)
        add(x, border, decays.inner, -1, f.k, f.dk, inner);
    }
    if (!chunk.last)
      add(f.u, f.stateT, decays.outer, 1, f.k, f.dk, outer);
    if (!chunk.first && !chunk.last) {
      for (int64_t i = 0; i < n.we; ++i)
        whole += W::dot(border[i], f.stateT[i], n.wd);
      whole *= decays.all;
    }
    decayGradients(chunk, f.qk, inner, outer, whole, out<A>(arguments[kDg]) + atG, n.heads);
    if (!chunk.first) {
      W::scale(dout, decays.inner, chunk.rows(), n.we);
      W::template product<true>(f.state, chunk.last ? 0 : decays.all, nullptr, f.q, dout, n.wd, n.we, rows);
      if (n.delta) {
        for (A &each : decays.inner)
          each = -each;
        W::scale(x, decays.inner, chunk.rows(), n.we);
        W::template product<true>(f.state, 1, nullptr, f.k, x, n.wd, n.we, rows);
      }
      W::transpose(f.state, n.wd, n.we, f.stateT);
    }
    addToKeyHead(arguments, n, f, head % n.share, chunk, at);
  }

  /// dq and dk over the heads of a head of keys, in their order; rounded once.
  static void addToKeyHead(void *const *arguments, const ScanShape &n, const Places &f, int64_t i,
                           const RowChunk &chunk, int64_t at) {
    for (auto [its, sums, to] : {std::tuple(f.dq, f.sumQ, kDq), {f.dk, f.sumK, kDk}})
      for (int64_t t = 0; t < chunk.rows(); ++t) {
        A *sum = its[t];
        if (n.share > 1) {
          sum = sums[chunk.begin + t];
#pragma omp simd
          for (int64_t c = 0; c < n.wd; ++c)
            sum[c] = i == 0 ? its[t][c] : sum[c] + its[t][c];
        }
        if (i == n.share - 1)
          storeRow(sum, out<E>(arguments[to]) + at + t * n.keys * n.d, n.d);
      }
  }

  static void backward(void *const *arguments, const ScanShape &n, int64_t task, char *scratch) {
    const Places f(scratch, n, true);
    const int64_t b = task / n.keys, key = task % n.keys;
    for (int64_t head = key * n.share; head < (key + 1) * n.share; ++head) {
      int64_t count = states(arguments, n, f, b, head);
      if (n.hasBehind) {
        loadState(arguments[kDbehind], n, b * n.heads + head, f.state);
        W::transpose(f.state, n.wd, n.we, f.stateT);
      }
      for (int64_t end = n.s; end > 0;) {
        const RowChunk chunk = before(n, b, end);
        count -= !chunk.first;
        backwardChunk(arguments, n, f, b, head, chunk, f.borders.from(n.we * (chunk.first ? 0 : count)));
        end = chunk.begin;
      }
      if (!arguments[kDstate])
        continue;
      if (n.begins(b, 0))
        memset(f.state.data, 0, size_t(n.wd * n.se) * sizeof(A));
      storeState(f.state, n, b * n.heads + head, arguments[kDstate]);
    }
  }
};

//===-- Decays that differ from column to column of k ------------------------------------------------------------===//
//
// Where each column c of k has a decay of its own, e^(G_i) multiplies the rows of S, and D_ij is a number for each:
//   S_t = diag(e^(g_t)) S_(t-1) + k_t u_t^T;   P_ij = sum over c of q_ic D_ijc k_jc;   L_ij = -(.. k_ic D_ijc k_jc)
// Every e^(G_i - G_j) is a product of e^(g_l), j < l <= i: no exponent is positive, nothing cancels, and no digit is
// lost behind a strong decay. A chunk is one or two blocks of 16 rows. Inside a block the sum over columns is made for
// each pair. For i in the second and j in the first the row r at the border makes two factors of D:
//   D_ij = h_i h_j with h_i = e^(G_i - G_r), h_j = e^(G_r - G_j), so that P and L there are products of matrices.

template <class E> struct ChannelScan {
  using Plain = Scan<E>;
  using A = Acc<E>;
  using W = Wide<A>;
  using M = Matrix<A>;
  static constexpr int64_t block = 16;
  static_assert(chunkRows == 2 * block);

  /// Those of Scan, and rows of one head of a chunk: e^g, e^(G_i), e^(G_last - G_i), h; q and k times the second, k
  /// times the third, q and k times h; one for each pair of a row. In the backward dg, and what rows take of the state.
  struct Places : Plain::Places {
    M step, inner, outer, half, qs, ks, ko, qh, kh, pair, dg, taken;
    char *end;
    Places(char *scratch, const ScanShape &n, bool backward) : Plain::Places(scratch, n, backward) {
      A *next = reinterpret_cast<A *>(Plain::Places::end);
      for (M *each : {&step, &inner, &outer, &half, &qs, &ks, &ko, &qh, &kh, &pair, &dg, &taken}) {
        *each = {next, n.sd};
        next += (each == &dg || each == &taken) && !backward ? 0 : chunkRows * n.sd;
      }
      end = reinterpret_cast<char *>(next);
    }
    static int64_t bytes(const ScanShape &n, bool backward) {
      return (Places(nullptr, n, backward).end - static_cast<char *>(nullptr) + 63) / 64 * 64;
    }
  };

  static void multiply(M x, M factor, int64_t rows, int64_t width, M y) {
    for (int64_t t = 0; t < rows; ++t)
#pragma omp simd
      for (int64_t c = 0; c < width; ++c)
        y[t][c] = x[t][c] * factor[t][c];
  }
  /// sum += sign * x * factor.
  static void add(M x, M factor, A sign, int64_t rows, int64_t width, M sum) {
    for (int64_t t = 0; t < rows; ++t)
#pragma omp simd
      for (int64_t c = 0; c < width; ++c)
        sum[t][c] += sign * x[t][c] * factor[t][c];
  }
  static void set(A *x, A value, int64_t width) {
    for (int64_t c = 0; c < width; ++c)
      x[c] = value;
  }
  static void times(const A *x, const A *y, int64_t width, A *product) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c)
      product[c] = x[c] * y[c];
  }

  /// The decays of a chunk, and q and k times what they make; 0 in rows that are not there.
  static void readDecays(const A *g, int64_t stride, const RowChunk &chunk, const ScanShape &n, const Places &f) {
    const int64_t rows = chunk.rows(), padded = chunk.padded();
    for (int64_t t = 0; t < padded; ++t) {
      for (int64_t c = 0; c < n.wd; ++c)
        f.step[t][c] = t < rows && c < n.d ? Decays<A>::power(g[t * stride + c]) : A(0);
      set(f.inner[t], 0, n.wd), set(f.outer[t], 0, n.wd), set(f.half[t], 0, n.wd);
    }
    memcpy(f.inner[0], f.step[0], size_t(n.wd) * sizeof(A));
    for (int64_t t = 1; t < rows; ++t)
      times(f.inner[t - 1], f.step[t], n.wd, f.inner[t]);
    set(f.outer[rows - 1], 1, n.wd);
    for (int64_t t = rows - 2; t >= 0; --t)
      times(f.outer[t + 1], f.step[t + 1], n.wd, f.outer[t]);
    if (rows > block) {
      set(f.half[block], 1, n.wd);
      for (int64_t t = block + 1; t < rows; ++t)
        times(f.half[t - 1], f.step[t], n.wd, f.half[t]);
      memcpy(f.half[block - 1], f.step[block], size_t(n.wd) * sizeof(A));
      for (int64_t t = block - 2; t >= 0; --t)
        times(f.half[t + 1], f.step[t + 1], n.wd, f.half[t]);
    }
    for (auto [x, factor, y] : {std::tuple(f.q, f.inner, f.qs),
                                {f.k, f.inner, f.ks},
                                {f.k, f.outer, f.ko},
                                {f.q, f.half, f.qh},
                                {f.k, f.half, f.kh}})
      multiply(x, factor, padded, n.wd, y);
    if (rows > block)
      W::transpose(f.kh, block, n.wd, f.kt);
  }

  /// y_ij = sign times the sum over columns of x_i D_ij k_j for j <= i, or with isStrict for j < i; 0 elsewhere. `half`
  /// is x times h.
  static void pairs(const ScanShape &n, const Places &f, M x, M half, const RowChunk &chunk, bool isStrict, A sign,
                    M y) {
    const int64_t rows = chunk.rows(), padded = chunk.padded();
    A *its = f.pair[0];
    for (int64_t i = 0; i < padded; ++i) {
      const int64_t first = i / block * block;
      for (int64_t j = first; j < padded; ++j)
        y[i][j] = 0;
      if (i >= rows)
        continue;
      memcpy(its, x[i], size_t(n.wd) * sizeof(A));
      for (int64_t j = i; j >= first; --j) {
        if (j < i)
          times(its, f.step[j + 1], n.wd, its);
        if (j < i || !isStrict)
          y[i][j] = sign * W::dot(its, f.k[j], n.wd);
      }
    }
    if (padded <= block)
      return;
    A signs[block];
    set(signs, sign, block);
    W::product(y.from(block), 0, signs, half.from(block), f.kt, block, block, n.wd);
  }

  /// w and u of a chunk with the state before it; v is in w.
  static void residuals(const ScanShape &n, const Places &f, const A *beta, const RowChunk &chunk, M state) {
    const int64_t rows = chunk.padded();
    if (n.delta) {
      A minus[chunkRows];
      set(minus, -1, chunkRows);
      if (!chunk.first)
        W::product(f.w, 1, minus, f.ks, state, rows, n.we, n.wd);
      pairs(n, f, f.k, f.kh, chunk, true, -1, f.l);
      return Plain::solve(f, beta, chunk, n.we);
    }
    for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
      for (int64_t c = 0; c < n.we; ++c)
        f.u[i][c] = beta[i] * f.w[i][c];
  }
  /// The state behind a chunk.
  static void advance(const ScanShape &n, const Places &f, const RowChunk &chunk, M state) {
    if (!chunk.first)
      W::scale(state, f.inner[chunk.rows() - 1], n.wd, n.we);
    W::template product<true>(state, chunk.first ? 0 : 1, nullptr, f.ko, f.u, n.wd, n.we, chunk.padded());
  }

  static void forward(void *const *arguments, const ScanShape &n, int64_t task, char *scratch) {
    const Places f(scratch, n, false);
    const int64_t b = task / n.keys, key = task % n.keys;
    A beta[chunkRows];
    const int64_t head0 = b * n.heads + key * n.share; // the first of its heads
    for (int64_t i = 0; i < n.share && n.hasBefore; ++i)
      Plain::loadState(arguments[6], n, head0 + i, f.state.from(i * n.wd));
    for (RowChunk chunk{}; chunk.end < n.s;) {
      chunk = RowChunk::at(n, b, chunk.end);
      const int64_t row = b * n.s + chunk.begin, rows = chunk.padded();
      Plain::load(in<E>(arguments[0]) + (row * n.keys + key) * n.d, n.keys * n.d, chunk, n.d, f.q, n.wd);
      Plain::load(in<E>(arguments[1]) + (row * n.keys + key) * n.d, n.keys * n.d, chunk, n.d, f.k, n.wd);
      for (int64_t i = 0; i < n.share; ++i) {
        const int64_t head = key * n.share + i, at = row * n.heads + head;
        const M state = f.state.from(i * n.wd);
        readDecays(in<A>(arguments[3]) + at * n.d, n.heads * n.d, chunk, n, f);
        Plain::loadBeta(in<A>(arguments[4]) + at, n.heads, chunk, beta);
        Plain::load(in<E>(arguments[2]) + at * n.e, n.heads * n.e, chunk, n.e, f.w, n.we);
        residuals(n, f, beta, chunk, state);
        pairs(n, f, f.q, f.qh, chunk, false, 1, f.p);
        if (!chunk.first)
          W::product(f.o, 0, nullptr, f.qs, state, rows, n.we, n.wd);
        W::triangle(f.o, chunk.first ? 0 : 1, f.p, f.u, rows, n.we);
        Plain::store(f.o, chunk, out<E>(arguments[7]) + at * n.e, n.heads * n.e, n.e);
        if (!chunk.last)
          advance(n, f, chunk, state);
      }
    }
    for (int64_t i = 0; i < n.share && n.hasBehind; ++i)
      Plain::storeState(f.state.from(i * n.wd), n, head0 + i, arguments[8]);
  }

  //===-- Backward, in the notation above -------------------------------------------------------------------------===//
  //
  //   dq_i = sum_j N_ij D_ij k_j + e^(G_i) S do_i, and so on: N and M are of pairs alone, D is of each column
  //   dg_t = the sum over pairs i >= t > j of D_ij k_j (N_ij q_i + M_ij k_i), and what rows take, leave and keep

  /// A head's states in front of its chunks, but those of first ones, and the rows of w; gives how many states.
  static int64_t states(void *const *arguments, const ScanShape &n, const Places &f, int64_t b, int64_t head) {
    A beta[chunkRows];
    int64_t count = 0;
    const int64_t key = head / n.share;
    if (!n.begins(b, 0)) {
      Plain::loadState(arguments[Plain::kState], n, b * n.heads + head, f.state);
      W::transpose(f.state, n.wd, n.we, f.borders.from(n.we * count++));
    }
    for (RowChunk chunk{}; chunk.end < n.s;) {
      chunk = RowChunk::at(n, b, chunk.end);
      const int64_t row = b * n.s + chunk.begin, at = row * n.heads + head, atK = (row * n.keys + key) * n.d;
      Plain::load(in<E>(arguments[Plain::kQ]) + atK, n.keys * n.d, chunk, n.d, f.q, n.wd);
      Plain::load(in<E>(arguments[Plain::kK]) + atK, n.keys * n.d, chunk, n.d, f.k, n.wd);
      readDecays(in<A>(arguments[Plain::kG]) + at * n.d, n.heads * n.d, chunk, n, f);
      Plain::loadBeta(in<A>(arguments[Plain::kBeta]) + at, n.heads, chunk, beta);
      Plain::load(in<E>(arguments[Plain::kV]) + at * n.e, n.heads * n.e, chunk, n.e, f.w, n.we);
      residuals(n, f, beta, chunk, f.state);
      for (int64_t t = 0; t < chunk.rows(); ++t)
        memcpy(f.kept[chunk.begin + t], f.w[t], size_t(n.we) * sizeof(A));
      if (chunk.last || chunk.end == n.s)
        continue;
      advance(n, f, chunk, f.state);
      W::transpose(f.state, n.wd, n.we, f.borders.from(n.we * count++));
    }
    return count;
  }

  /// Adds what pairs inside a block give. N is in yu, -M in xu.
  static void addPairs(const ScanShape &n, const Places &f, const RowChunk &chunk) {
    const int64_t rows = chunk.rows();
    M z = f.t; // of the pairs of row i
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t first = i / block * block;
      A *its = f.pair[0];
      set(its, 1, n.wd);
      for (int64_t j = i; j >= first; --j) {
        if (j < i)
          times(its, f.step[j + 1], n.wd, its);
        const A ours = f.yu[i][j], theirs = j < i && n.delta ? -f.xu[i][j] : A(0);
        A *dq = f.dq[i], *dkRow = f.dk[i], *dk = f.dk[j], *product = z[j - first];
        const A *q = f.q[i], *kRow = f.k[i], *k = f.k[j];
#pragma omp simd
        for (int64_t c = 0; c < n.wd; ++c) {
          const A left = its[c] * (ours * q[c] + theirs * kRow[c]), right = its[c] * k[c];
          product[c] = left * k[c];
          dq[c] += ours * right;
          dk[c] += left;
          f.taken[0][c] = theirs * right; // for dk of row i, which may be dk of row j
        }
#pragma omp simd
        for (int64_t c = 0; c < n.wd; ++c)
          dkRow[c] += f.taken[0][c];
      }
      A *sum = f.taken[0];
      set(sum, 0, n.wd);
      for (int64_t t = first + 1; t <= i; ++t)
#pragma omp simd
        for (int64_t c = 0; c < n.wd; ++c)
          sum[c] += z[t - 1 - first][c], f.dg[t][c] += sum[c];
    }
  }

  /// dg_t += the sum of x from row t on to the last one, or of the rows before t; of rows [begin, end).
  static void addFrom(M x, int64_t begin, int64_t end, int64_t width, M dg, A *sum) {
    set(sum, 0, width);
    for (int64_t t = end - 1; t >= begin; --t)
#pragma omp simd
      for (int64_t c = 0; c < width; ++c)
        sum[c] += x[t][c], dg[t][c] += sum[c];
  }
  static void addBefore(M x, int64_t begin, int64_t end, int64_t width, M dg, A *sum) {
    set(sum, 0, width);
    for (int64_t t = begin + 1; t < end; ++t)
#pragma omp simd
      for (int64_t c = 0; c < width; ++c)
        sum[c] += x[t - 1][c], dg[t][c] += sum[c];
  }

  /// Adds what pairs of both blocks give.
  static void addBlocks(const ScanShape &n, const Places &f, const RowChunk &chunk) {
    const int64_t below = chunk.rows() - block;
    if (below <= 0)
      return;
    const M terms = f.taken;
    for (int64_t t = 0; t < chunkRows; ++t)
      set(terms[t], 0, n.wd);
    auto addRows = [&](M slopes, A sign, M left, M sum) { // left: q or k times h
      W::product(f.t, 0, nullptr, slopes.from(block), f.kh, block, n.wd, block);
      add(f.t, f.half.from(block), sign, below, n.wd, sum.from(block));
      add(f.t, left.from(block), sign, below, n.wd, terms.from(block));
    };
    addRows(f.yu, 1, f.qh, f.dq);
    W::template product<true>(f.pair, 0, nullptr, f.yu.from(block), f.qh.from(block), block, n.wd, block);
    if (n.delta) {
      addRows(f.xu, -1, f.kh, f.dk);
      W::template product<true>(f.t, 0, nullptr, f.xu.from(block), f.kh.from(block), block, n.wd, block);
      for (int64_t t = 0; t < block; ++t)
#pragma omp simd
        for (int64_t c = 0; c < n.wd; ++c)
          f.pair[t][c] -= f.t[t][c];
    }
    add(f.pair, f.half, 1, block, n.wd, f.dk);
    add(f.pair, f.kh, 1, block, n.wd, terms);
    addFrom(terms, block, chunk.rows(), n.wd, f.dg, f.pair[0]);
    addBefore(terms, 0, block, n.wd, f.dg, f.pair[0]);
  }

  static void backwardChunk(void *const *arguments, const ScanShape &n, const Places &f, int64_t b, int64_t head,
                            const RowChunk &chunk, M border) {
    const int64_t key = head / n.share, row = b * n.s + chunk.begin, rows = chunk.padded();
    const int64_t atK = (row * n.keys + key) * n.d, at = row * n.heads + head;
    const M dout = f.o, x = f.r;
    A beta[chunkRows];
    Plain::load(in<E>(arguments[Plain::kQ]) + atK, n.keys * n.d, chunk, n.d, f.q, n.wd);
    Plain::load(in<E>(arguments[Plain::kK]) + atK, n.keys * n.d, chunk, n.d, f.k, n.wd);
    Plain::load(in<E>(arguments[Plain::kDout]) + at * n.e, n.heads * n.e, chunk, n.e, dout, n.we);
    readDecays(in<A>(arguments[Plain::kG]) + at * n.d, n.heads * n.d, chunk, n, f);
    Plain::loadBeta(in<A>(arguments[Plain::kBeta]) + at, n.heads, chunk, beta);
    for (int64_t t = 0; t < rows; ++t) {
      const A *w = f.kept[chunk.begin + t];
      for (int64_t c = 0; c < n.we; ++c)
        f.u[t][c] = t < chunk.rows() ? beta[t] * w[c] : 0;
      set(f.dq[t], 0, n.wd), set(f.dk[t], 0, n.wd), set(f.dg[t], 0, n.wd);
    }
    W::transpose(f.u, rows, n.we, f.ut);
    pairs(n, f, f.q, f.qh, chunk, false, 1, f.p);
    // r and x, in w and r.
    W::template triangle<true>(f.w, 0, f.p, dout, rows, n.we);
    if (!chunk.last)
      W::product(f.w, 1, nullptr, f.ko, f.state, rows, n.we, n.wd);
    if (n.delta) {
      pairs(n, f, f.k, f.kh, chunk, true, -1, f.l);
      Plain::solveBack(f.w, x, f.l, beta, chunk, n.we);
    } else {
      for (int64_t t = 0; t < rows; ++t)
#pragma omp simd
        for (int64_t c = 0; c < n.we; ++c)
          x[t][c] = beta[t] * f.w[t][c];
    }
    Plain::store(x, chunk, out<E>(arguments[Plain::kDv]) + at * n.e, n.heads * n.e, n.e);
    for (int64_t t = 0; t < chunk.rows(); ++t)
      out<A>(arguments[Plain::kDbeta])[at + t * n.heads] = W::dot(f.w[t], f.kept[chunk.begin + t], n.we);
    Plain::pairs(dout, f.ut, chunk, n.we, f.yu);
    if (n.delta)
      Plain::pairs(x, f.ut, chunk, n.we, f.xu);
    addPairs(n, f, chunk);
    addBlocks(n, f, chunk);
    // The state in front, and the gradient of the one behind.
    const int64_t there = chunk.rows();
    A *sum = f.pair[0];
    for (int64_t t = 0; t < there; ++t)
      set(f.taken[t], 0, n.wd);
    if (!chunk.first) {
      W::product(f.t, 0, nullptr, dout, border, rows, n.wd, n.we);
      add(f.t, f.inner, 1, there, n.wd, f.dq), add(f.t, f.qs, 1, there, n.wd, f.taken);
      if (n.delta) {
        W::product(f.t, 0, nullptr, x, border, rows, n.wd, n.we);
        add(f.t, f.inner, -1, there, n.wd, f.dk), add(f.t, f.ks, -1, there, n.wd, f.taken);
      }
      addFrom(f.taken, 0, there, n.wd, f.dg, sum);
    }
    if (!chunk.last) {
      W::product(f.t, 0, nullptr, f.u, f.stateT, rows, n.wd, n.we);
      add(f.t, f.outer, 1, there, n.wd, f.dk), multiply(f.t, f.ko, there, n.wd, f.taken);
      addBefore(f.taken, 0, there, n.wd, f.dg, sum);
    }
    const A *all = f.inner[there - 1];
    if (!chunk.first && !chunk.last) {
      set(sum, 0, n.wd);
      for (int64_t i = 0; i < n.we; ++i)
#pragma omp simd
        for (int64_t c = 0; c < n.wd; ++c)
          sum[c] += border[i][c] * f.stateT[i][c];
      for (int64_t t = 0; t < there; ++t)
#pragma omp simd
        for (int64_t c = 0; c < n.wd; ++c)
          f.dg[t][c] += all[c] * sum[c];
    }
    for (int64_t t = 0; t < there; ++t)
      memcpy(out<A>(arguments[Plain::kDg]) + (at + t * n.heads) * n.d, f.dg[t], size_t(n.d) * sizeof(A));
    if (!chunk.first) {
      if (!chunk.last)
        W::scale(f.state, all, n.wd, n.we);
      W::template product<true>(f.state, chunk.last ? 0 : 1, nullptr, f.qs, dout, n.wd, n.we, rows);
      if (n.delta) {
        A minus[chunkRows];
        set(minus, -1, chunkRows);
        W::scale(x, minus, rows, n.we);
        W::template product<true>(f.state, 1, nullptr, f.ks, x, n.wd, n.we, rows);
      }
      W::transpose(f.state, n.wd, n.we, f.stateT);
    }
    Plain::addToKeyHead(arguments, n, f, head % n.share, chunk, atK);
  }

  static void backward(void *const *arguments, const ScanShape &n, int64_t task, char *scratch) {
    const Places f(scratch, n, true);
    const int64_t b = task / n.keys, key = task % n.keys;
    for (int64_t head = key * n.share; head < (key + 1) * n.share; ++head) {
      int64_t count = states(arguments, n, f, b, head);
      if (n.hasBehind) {
        Plain::loadState(arguments[Plain::kDbehind], n, b * n.heads + head, f.state);
        W::transpose(f.state, n.wd, n.we, f.stateT);
      }
      for (int64_t end = n.s; end > 0;) {
        const RowChunk chunk = Plain::before(n, b, end);
        count -= !chunk.first;
        backwardChunk(arguments, n, f, b, head, chunk, f.borders.from(n.we * (chunk.first ? 0 : count)));
        end = chunk.begin;
      }
      if (!arguments[Plain::kDstate])
        continue;
      if (n.begins(b, 0))
        memset(f.state.data, 0, size_t(n.wd * n.se) * sizeof(A));
      Plain::storeState(f.state, n, b * n.heads + head, arguments[Plain::kDstate]);
    }
  }
};

//===-- Calls ----------------------------------------------------------------------------------------------------===//

/// Runs the tasks of a scan, rows times heads of keys, each wholly in one thread with scratch of its own.
template <class E, class Task>
pp_status_t runScan(const PreparedOp &op, void *const *arguments, const ScanShape &n, int64_t bytes, Task task) {
#pragma omp parallel for num_threads(op.threads) schedule(static)
  for (int64_t i = 0; i < n.batch * n.keys; ++i)
    task(arguments, n, i, op.scratch + omp_get_thread_num() * bytes);
  return PP_OK;
}

template <class E> pp_status_t scan(const PreparedOp &op, void *const *arguments) {
  const ScanShape shape(op, arguments[5], arguments[6], arguments[8]);
  return shape.byChannel
             ? runScan<E>(op, arguments, shape, ChannelScan<E>::Places::bytes(shape, false), ChannelScan<E>::forward)
             : runScan<E>(op, arguments, shape, Scan<E>::Places::bytes(shape, false), Scan<E>::forward);
}
template <class E> pp_status_t scan_bwd(const PreparedOp &op, void *const *arguments) {
  const ScanShape shape(op, arguments[6], arguments[7], arguments[8]);
  return shape.byChannel
             ? runScan<E>(op, arguments, shape, ChannelScan<E>::Places::bytes(shape, true), ChannelScan<E>::backward)
             : runScan<E>(op, arguments, shape, Scan<E>::Places::bytes(shape, true), Scan<E>::backward);
}

//===-- Causal convolutions, a column at a time ------------------------------------------------------------------===//

/// dims b s c n. Row t reads rows t - n + 1 to t of its document; tap i is t - n + 1 + i. Rows before 0 are border
/// rows, those before the slice, of which row j is row j - n + 1.
template <class E> struct Taps {
  using A = Acc<E>;
  int64_t batch, s, c, n, position;
  const int32_t *starts;
  A *w, *sum; ///< [n][c], [c]
  Taps(const PreparedOp &op, const void *starts)
      : batch(op.dims[0]), s(op.dims[1]), c(op.dims[2]), n(op.dims[3]), position(int64_t(op.params[0])),
        starts(op.has(Documents) ? in<int32_t>(starts) : nullptr), w(reinterpret_cast<A *>(op.scratch)),
        sum(w + n * c) {}
  /// Whether row `to` reads row `from`, at most n - 1 rows before it: of its own document, and of the sequence.
  bool reads(int64_t b, int64_t to, int64_t from) const {
    return to >= 0 && to < s && position + from >= (starts ? starts[b * s + to] : 0);
  }
  /// A row of x, or one before the slice; null: there is none.
  const E *rowOf(const E *x, const E *border, int64_t b, int64_t t) const {
    return t >= 0 ? x + (b * s + t) * c : border ? border + (b * (n - 1) + n - 1 + t) * c : nullptr;
  }
  void turn(const E *given) const {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < c; ++j)
        w[i * c + j] = get(given, j * n + i);
  }
  void add(int64_t i, const E *row) const {
    const A *tap = w + i * c;
#pragma omp simd
    for (int64_t j = 0; j < c; ++j)
      sum[j] += tap[j] * get(row, j);
  }
  /// y[t] = the sum over taps of w_i x[t - (n - 1 - i)].
  void run(const E *x, const E *border, E *y) const {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = 0; t < s; ++t) {
        memset(sum, 0, size_t(c) * sizeof(A));
        for (int64_t i = 0; i < n; ++i)
          if (const E *row = rowOf(x, border, b, t - n + 1 + i); row && reads(b, t, t - n + 1 + i))
            add(i, row);
        E *to = y + (b * s + t) * c;
#pragma omp simd
        for (int64_t j = 0; j < c; ++j)
          put(to, j, sum[j]);
      }
  }
  /// The border rows of the next slice.
  void carry(const E *x, const E *border, E *next) const {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = s - n + 1; t < s; ++t, next += c)
        if (const E *row = rowOf(x, border, b, t))
          memcpy(next, row, size_t(c) * sizeof(E));
        else
          memset(next, 0, size_t(c) * sizeof(E));
  }
  /// dx[t] = the sum over taps of w_i dy[t + n - 1 - i], and what the next slice has of it; of border rows, too.
  void runBack(const E *dy, const A *behind, E *dx, A *border) const {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = border ? 1 - n : 0; t < s; ++t) {
        const A *its = behind && t > s - n ? behind + (b * (n - 1) + t - (s - n + 1)) * c : nullptr;
        if (its)
          memcpy(sum, its, size_t(c) * sizeof(A));
        else
          memset(sum, 0, size_t(c) * sizeof(A));
        for (int64_t i = 0; i < n; ++i)
          if (const int64_t to = t + n - 1 - i; reads(b, to, t))
            add(i, dy + (b * s + to) * c);
        if (t < 0)
          memcpy(border + (b * (n - 1) + n - 1 + t) * c, sum, size_t(c) * sizeof(A));
        else
#pragma omp simd
          for (int64_t j = 0; j < c; ++j)
            put(dx + (b * s + t) * c, j, sum[j]);
      }
  }
};

template <class E> pp_status_t conv(const PreparedOp &op, void *const *arguments) {
  const Taps<E> taps(op, arguments[2]);
  const E *x = in<E>(arguments[0]), *border = in<E>(arguments[3]);
  taps.turn(in<E>(arguments[1]));
  taps.run(x, border, out<E>(arguments[4]));
  if (arguments[5])
    taps.carry(x, border, out<E>(arguments[5]));
  return PP_OK;
}
template <class E> pp_status_t conv_dx(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const Taps<E> taps(op, arguments[2]);
  taps.turn(in<E>(arguments[1]));
  taps.runBack(in<E>(arguments[0]), in<A>(arguments[3]), out<E>(arguments[4]), out<A>(arguments[5]));
  return PP_OK;
}
template <class E> pp_status_t conv_dw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const Taps<E> taps(op, arguments[2]);
  const int64_t c = taps.c, n = taps.n;
  memset(taps.w, 0, size_t(n * c) * sizeof(A));
  for (int64_t b = 0; b < taps.batch; ++b)
    for (int64_t t = 0; t < taps.s; ++t)
      for (int64_t i = 0; i < n; ++i) {
        const int64_t from = t - n + 1 + i;
        const E *x = taps.rowOf(in<E>(arguments[0]), in<E>(arguments[3]), b, from);
        if (!x || !taps.reads(b, t, from))
          continue;
        const E *dy = in<E>(arguments[1]) + (b * taps.s + t) * c;
        A *sums = taps.w + i * c;
#pragma omp simd
        for (int64_t j = 0; j < c; ++j)
          sums[j] += get(x, j) * get(dy, j);
      }
  A *dw = out<A>(arguments[4]);
  for (int64_t j = 0; j < c; ++j)
    for (int64_t i = 0; i < n; ++i)
      dw[j * n + i] = taps.w[i * c + j] + (op.has(Accumulate) ? dw[j * n + i] : 0);
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_SCAN_H
