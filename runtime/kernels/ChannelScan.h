// A linear scan whose decays differ from column to column of k, in chunks of rows, with its backward.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// As Scan.h has it, where e^(G_i) multiplies the rows of S, and D_ij is a number for each column c:
//   S_t = diag(e^(g_t)) S_(t-1) + k_t u_t^T;   P_ij = sum over c of q_ic D_ijc k_jc;   L_ij = -(.. k_ic D_ijc k_jc)
// Every e^(G_i - G_j) is a product of e^(g_l), j < l <= i: no exponent is positive, nothing cancels, and no digit is
// lost behind a strong decay. A chunk is one or two blocks of 16 rows. Inside a block the sum over columns is made for
// each pair. For i in the second and j in the first the row r at the border makes two factors of D:
//   D_ij = h_i h_j with h_i = e^(G_i - G_r), h_j = e^(G_r - G_j), so that P and L there are products of matrices.
#ifndef PP_RUNTIME_KERNELS_CHANNELSCAN_H
#define PP_RUNTIME_KERNELS_CHANNELSCAN_H

#include "runtime/kernels/Scan.h"

namespace {
using namespace pp;

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

  //===-- Backward, in the notation of Scan.h --------------------------------------------------------------------===//
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

} // namespace

#endif // PP_RUNTIME_KERNELS_CHANNELSCAN_H
