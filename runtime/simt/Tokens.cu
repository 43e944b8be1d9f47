// Losses that are formulas of tokens: statistics of rows of logits, sums over segments, and means over tokens.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A block for each row reads the logits once for all their statistics, and once more for their gradient, which may lie
// over them. A block for each segment adds it up, and one block all tokens. Sums have a fixed order, and no scratch.
#include "runtime/simt/Loss.h"
#include "runtime/simt/Map.h"
#include <algorithm>

using namespace pp;

namespace {

// --- Statistics of logits ---

/// The largest of some logits z, and sums of p = exp(z - largest), of p (z - largest), and of z.
template <class A> struct LogitSums {
  A largest = minusInfinity<A>, powers = 0, below = 0, all = 0;

  /// As if the largest were this one, which is no smaller.
  PP_DEVICE void raise(A to) {
    if (powers > 0) { // there are logits
      A by = largest - to, factor = exponential(by);
      below = factor * (below + by * powers);
      powers *= factor;
    }
    largest = to;
  }
  PP_DEVICE void add(LogitSums more) {
    A both = larger(largest, more.largest);
    raise(both);
    more.raise(both);
    powers += more.powers;
    below += more.below;
    all += more.all;
  }
};
constexpr int sumsOfLogits = 4;

template <class E> struct TokenRows {
  const E *z;
  const int32_t *targets, *ids;
  int64_t n, k; ///< columns of a row, and how many of these are picked
  Acc<E> cap;   ///< of the logits; 0: none
  int32_t *failures, mark;

  /// A column; a wrong one counts as none, and is reported.
  PP_DEVICE int64_t column(int64_t id) const {
    if (id < n)
      return id;
    setOnce(failures, mark);
    return -1;
  }
};

template <class E> TokenRows<E> rowsOf(const PreparedOp &op, void *const *arguments) {
  return {in<E>(arguments[0]), in<int32_t>(arguments[1]), in<int32_t>(arguments[2]), op.dims[1],
          op.dims[2],          Acc<E>(op.logitCap()),     op.launches->failures,     op.number + 1};
}

/// Launches the kernel's wide or narrow form, a block for each row.
template <class E, class K, class Rows>
pp_status_t launchRows(const PreparedOp &op, K wideKernel, K narrowKernel, bool wide, int64_t shared, const Rows &its) {
  wide &= op.dims[1] % packOf<E> == 0;
  return launch(op, wide ? wideKernel : narrowKernel, {op.dims[0]},
                rowThreads(blocksFor(op.dims[1], wide ? packOf<E> : 1)), size_t(shared) * sizeof(Acc<E>), its);
}

template <class E> struct TokenStats {
  TokenRows<E> rows;
  Acc<E> *lse, *meanOfPowers, *mean, *picks;
};

template <class E, int W, bool Capped> __global__ void __launch_bounds__(512) tokenStatsKernel(TokenStats<E> its) {
  using A = Acc<E>;
  const TokenRows<E> &rows = its.rows;
  const int64_t row = blockIdx.x, n = rows.n;
  const E *z = rows.z + row * n;
  A *picks = its.picks + row * rows.k;
  const bool has = rows.column(rows.targets[row]) >= 0;
  for (int64_t j = threadIdx.x; j < rows.k; j += blockDim.x) {
    const int64_t id = has ? rows.column(rows.ids[row * rows.k + j]) : -1;
    picks[j] = id < 0 ? A(0) : logitsOf<Capped, 1>(z + id, rows.cap).v[0];
  }
  if (!has) {
    if (threadIdx.x == 0)
      its.lse[row] = its.meanOfPowers[row] = its.mean[row] = 0;
    return;
  }
  LogitSums<A> mine;
  for (int64_t i = int64_t(threadIdx.x) * W; i < n; i += int64_t(blockDim.x) * W) {
    auto a = logitsOf<Capped, W>(z + i, rows.cap);
    A most = mine.largest;
    for (int j = 0; j < W; ++j)
      most = larger(most, a.v[j]);
    mine.raise(most);
    for (int j = 0; j < W; ++j) {
      A less = a.v[j] - most, power = exponential(less);
      mine.powers += power;
      mine.below += power * less;
      mine.all += a.v[j];
    }
  }
  PP_UNROLL
  for (int mask = 16; mask; mask /= 2) {
    A largest = shuffleXor(mine.largest, mask), powers = shuffleXor(mine.powers, mask);
    A below = shuffleXor(mine.below, mask), all = shuffleXor(mine.all, mask);
    mine.add({largest, powers, below, all});
  }
  A *shared = sharedMemory<A>();
  if (threadIdx.x % 32 == 0) {
    A *to = shared + sumsOfLogits * int(threadIdx.x / 32);
    to[0] = mine.largest, to[1] = mine.powers, to[2] = mine.below, to[3] = mine.all;
  }
  waitBlock();
  if (threadIdx.x)
    return;
  LogitSums<A> sums;
  for (int warp = 0; warp < int(blockDim.x / 32); ++warp) {
    const A *from = shared + sumsOfLogits * warp;
    sums.add({from[0], from[1], from[2], from[3]});
  }
  its.lse[row] = sums.largest + logarithm(sums.powers);
  its.meanOfPowers[row] = sums.largest + sums.below / sums.powers;
  its.mean[row] = sums.all / A(n);
}

/// dims T V k.
template <class E> pp_status_t token_stats(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  TokenStats<E> its{rowsOf<E>(op, arguments), out<A>(arguments[3]), out<A>(arguments[4]), out<A>(arguments[5]),
                    out<A>(arguments[6])};
  constexpr int W = packOf<E>, shared = sumsOfLogits * blockSumEntries;
  const bool wide = aligned(its.rows.z);
  return its.rows.cap > 0
             ? launchRows<E>(op, tokenStatsKernel<E, W, true>, tokenStatsKernel<E, 1, true>, wide, shared, its)
             : launchRows<E>(op, tokenStatsKernel<E, W, false>, tokenStatsKernel<E, 1, false>, wide, shared, its);
}

template <class E> struct TokenSlopes {
  TokenRows<E> rows;
  const Acc<E> *lse, *meanOfPowers, *dlse, *dmeanOfPowers, *dmean, *dpicks;
  E *dz;
};

/// The gradient of a logit of a row; of capped logits times the cap's slope.
template <class A, bool Capped> struct LogitSlope {
  A lse, power, slope, every, cap;
  PP_DEVICE A operator()(A logit, A more) const {
    A its = exponential(logit - lse) * (power + slope * logit) + every + more;
    if constexpr (Capped)
      its *= A(1) - (logit / cap) * (logit / cap);
    return its;
  }
};

/// A column that was picked twice has both gradients; each is rounded once, with what it has as any column.
template <class E, int W, bool Capped> __global__ void __launch_bounds__(512) tokenSlopesKernel(TokenSlopes<E> its) {
  using A = Acc<E>;
  const TokenRows<E> &rows = its.rows;
  const int64_t row = blockIdx.x, n = rows.n, k = rows.k;
  const E *z = rows.z + row * n;
  E *dz = its.dz + row * n;
  if (rows.column(rows.targets[row]) < 0) {
    clearRow<E, W>(dz, n);
    return;
  }
  const A dmeanOfPowers = its.dmeanOfPowers[row];
  const LogitSlope<A, Capped> slope{its.lse[row], its.dlse[row] + dmeanOfPowers * (A(1) - its.meanOfPowers[row]),
                                    dmeanOfPowers, its.dmean[row] / A(n), rows.cap};
  const int32_t *ids = rows.ids + row * k;
  const A *dpicks = its.dpicks + row * k;
  A *picked = sharedMemory<A>(); // what their columns get, made before dz is written over z
  for (int64_t j = threadIdx.x; j < k; j += blockDim.x) {
    A more = 0;
    for (int64_t i = 0; i < k; ++i)
      more += ids[i] == ids[j] ? dpicks[i] : A(0);
    if (rows.column(ids[j]) >= 0)
      picked[j] = slope(logitsOf<Capped, 1>(z + ids[j], rows.cap).v[0], more);
  }
  waitBlock();
  for (int64_t i = int64_t(threadIdx.x) * W; i < n; i += int64_t(blockDim.x) * W) {
    auto a = logitsOf<Capped, W>(z + i, rows.cap);
    for (int j = 0; j < W; ++j)
      a.v[j] = slope(a.v[j], A(0));
    store<W>(dz + i, a);
  }
  waitBlock();
  for (int64_t j = threadIdx.x; j < k; j += blockDim.x)
    if (rows.column(ids[j]) >= 0)
      store<1>(dz + ids[j], Pack<A, 1>{{picked[j]}});
}

/// dims T V k; dz may lie on z.
template <class E> pp_status_t token_stats_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  TokenSlopes<E> its{rowsOf<E>(op, arguments), in<A>(arguments[3]), in<A>(arguments[4]), in<A>(arguments[5]),
                     in<A>(arguments[6]),      in<A>(arguments[7]), in<A>(arguments[8]), out<E>(arguments[9])};
  constexpr int W = packOf<E>;
  const bool wide = aligned(its.rows.z, its.dz);
  return its.rows.cap > 0
             ? launchRows<E>(op, tokenSlopesKernel<E, W, true>, tokenSlopesKernel<E, 1, true>, wide, its.rows.k, its)
             : launchRows<E>(op, tokenSlopesKernel<E, W, false>, tokenSlopesKernel<E, 1, false>, wide, its.rows.k, its);
}

// --- Segments: tokens side by side in a row, with one start; starts do not fall in a row ---

/// A block for each token that begins a segment; the others have nothing to do.
template <class A>
__global__ void __launch_bounds__(256)
    segmentSumKernel(const A *v, const int32_t *targets, const int32_t *starts, int64_t rowLength, bool isMean, A *y) {
  const int64_t begin = blockIdx.x, inRow = begin % rowLength, row = begin - inRow + rowLength;
  const int32_t start = starts[begin];
  if (inRow && starts[begin - 1] == start)
    return;
  double sums[2] = {0, 0}; // of v, and of tokens
  for (int64_t t = begin + threadIdx.x; t < row && starts[t] == start; t += blockDim.x)
    if (targets[t] >= 0)
      sums[0] += double(v[t]), sums[1] += 1;
  blockSum(sums, sharedMemory<double>());
  const A sum = A(isMean ? sums[0] / sums[1] : sums[0]);
  for (int64_t t = begin + threadIdx.x; t < row && starts[t] == start; t += blockDim.x)
    y[t] = targets[t] < 0 ? A(0) : sum;
}

/// dims T S.
template <class E> pp_status_t segment_sum(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int threads = int(std::min<int64_t>(blocksFor(op.dims[1], 32) * 32, 256));
  return launch(op, segmentSumKernel<A>, {op.dims[0]}, threads, 2 * blockSumEntries * sizeof(double),
                in<A>(arguments[0]), in<int32_t>(arguments[1]), in<int32_t>(arguments[2]), op.dims[1], op.has(Mean),
                out<A>(arguments[3]));
}

// --- Means over tokens ---

/// The tokens that count: those with a target, or the first of these of each segment, whatever its target weighs.
struct CountedTokens {
  const int32_t *targets;
  const int32_t *starts; ///< null: each token counts
  const float *weights;  ///< null: all are 1
  int64_t rowLength;
  LossFactor factor;

  PP_DEVICE bool has(int64_t t) const {
    if (targets[t] < 0 || !starts)
      return targets[t] >= 0;
    const int64_t row = t - t % rowLength;
    for (int64_t before = t - 1; before >= row && starts[before] == starts[t]; --before)
      if (targets[before] >= 0)
        return false;
    return true;
  }
  PP_DEVICE double weight(int64_t t) const { return starts || !weights ? 1 : double(weights[t]); }
};

/// What stands where there is no target may be infinite, or no number.
template <class A>
__global__ void __launch_bounds__(1024) tokenMeanKernel(const A *v, int64_t n, CountedTokens counted, A *loss) {
  double sum[1] = {0};
  for (int64_t t = threadIdx.x; t < n; t += blockDim.x)
    if (counted.has(t))
      sum[0] += counted.weight(t) * double(v[t]);
  blockSum(sum, sharedMemory<double>());
  if (threadIdx.x == 0)
    *loss = A(counted.factor.value() * sum[0]);
}

template <class A>
pp_status_t meanOfTokens(const PreparedOp &op, const void *v, const CountedTokens &counted, void *loss) {
  return launch(op, tokenMeanKernel<A>, {1}, op.dims[0] > 32 ? 1024 : 32, blockSumEntries * sizeof(double), in<A>(v),
                op.dims[0], counted, out<A>(loss));
}

CountedTokens countedOf(const PreparedOp &op, void *const *arguments, const void *weights) {
  return {in<int32_t>(arguments[1]), in<int32_t>(arguments[2]), in<float>(weights), op.dims[1], lossFactor(op)};
}

/// dims T S.
template <class E> pp_status_t token_mean(const PreparedOp &op, void *const *arguments) {
  takeScalars(op, arguments[4]);
  return meanOfTokens<Acc<E>>(op, arguments[0], countedOf(op, arguments, arguments[5]), arguments[3]);
}

template <class A> struct TokenGradient {
  using Element = A;
  CountedTokens counted;
  A *dv;
  template <int W> PP_DEVICE void at(int64_t t) const {
    const double factor = counted.factor.value() * counted.factor.scalars->lossScale;
    for (int j = 0; j < W; ++j)
      dv[t + j] = counted.has(t + j) ? A(factor * counted.weight(t + j)) : A(0);
  }
};

/// dims T S; dv may lie on v, which is read first.
template <class E> pp_status_t token_mean_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  takeScalars(op, arguments[5]);
  const CountedTokens counted = countedOf(op, arguments, arguments[6]);
  if (pp_status_t status = meanOfTokens<A>(op, arguments[0], counted, arguments[4]))
    return status;
  return map(op, TokenGradient<A>{counted, out<A>(arguments[3])}, op.dims[0], false);
}

} // namespace

PP_BODIES(token_stats)
PP_BODIES(token_stats_bwd)
PP_BODIES(segment_sum)
PP_BODIES(token_mean)
PP_BODIES(token_mean_bwd)
