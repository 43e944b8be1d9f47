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
  int64_t n, k;                     ///< columns of a row, and how many are picked
  int64_t first, exist, vocabulary; ///< the first column, how many are no padding, and of all shards
  Acc<E> cap;                       ///< of the logits; 0: none
  int32_t *failures, mark;

  /// Whether there is such a token; a wrong one counts as none, and is reported.
  PP_DEVICE bool has(int64_t id) const {
    if (id >= vocabulary)
      setOnce(failures, mark);
    return id >= 0 && id < vocabulary;
  }
  /// The column of a token; -1: it is none of these.
  PP_DEVICE int64_t column(int64_t id) const { return has(id) && id >= first && id < first + exist ? id - first : -1; }
};

template <class E>
TokenRows<E> rowsOf(const PreparedOp &op, void *const *arguments, int64_t k, int64_t first, int64_t vocabulary) {
  const int64_t n = op.dims[1];
  return {in<E>(arguments[0]),
          in<int32_t>(arguments[1]),
          in<int32_t>(arguments[2]),
          n,
          k,
          first,
          std::min(n, vocabulary - first),
          vocabulary,
          Acc<E>(op.logitCap()),
          op.launches->failures,
          op.number + 1};
}

/// Launches the kernel's wide or narrow form, a block for each row.
template <class E, class K, class Rows>
pp_status_t launchRows(const PreparedOp &op, K wideKernel, K narrowKernel, bool wide, int64_t shared, const Rows &its) {
  wide &= its.rows.n % packOf<E> == 0 && its.rows.exist % packOf<E> == 0;
  return launch(op, wide ? wideKernel : narrowKernel, {op.dims[0]},
                rowThreads(blocksFor(its.rows.n, wide ? packOf<E> : 1)), size_t(shared) * sizeof(Acc<E>), its);
}

/// Where the three statistics of a row go, and what is picked: to tensors of their own, or side by side.
template <class E> struct TokenStats {
  TokenRows<E> rows;
  Acc<E> *lse, *meanOfPowers, *mean, *picks;
  int64_t apart, picksApart; ///< from a row to the next one
  double *told;              ///< the losses of rows whose first pick is their target; null: nobody asks

  PP_DEVICE void write(int64_t row, Acc<E> log, Acc<E> below, Acc<E> all) const {
    lse[row * apart] = log, meanOfPowers[row * apart] = below, mean[row * apart] = all;
  }
};

template <class E, int W, bool Capped> __global__ void __launch_bounds__(512) tokenStatsKernel(TokenStats<E> its) {
  using A = Acc<E>;
  const TokenRows<E> &rows = its.rows;
  const int64_t row = blockIdx.x;
  const E *z = rows.z + row * rows.n;
  A *picks = its.picks + row * its.picksApart;
  const bool has = rows.has(rows.targets[row]);
  for (int64_t j = threadIdx.x; j < rows.k; j += blockDim.x) {
    const int64_t id = has ? rows.column(rows.ids[row * rows.k + j]) : -1;
    picks[j] = id < 0 ? A(0) : logitsOf<Capped, 1>(z + id, rows.cap).v[0];
  }
  if (!has) {
    if (threadIdx.x == 0)
      its.write(row, 0, 0, 0);
    return;
  }
  LogitSums<A> mine;
  for (int64_t i = int64_t(threadIdx.x) * W; i < rows.exist; i += int64_t(blockDim.x) * W) {
    auto a = logitsOf<Capped, W>(z + i, rows.cap);
    A most = mine.largest;
    for (int j = 0; j < W; ++j)
      most = larger(most, a.v[j]);
    mine.raise(most);
    for (int j = 0; j < W; ++j) {
      const bool none = a.v[j] == minusInfinity<A>; // less itself it would be no number
      A less = none ? A(0) : a.v[j] - most, power = none ? A(0) : exponential(less);
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
  const bool none = sums.largest == minusInfinity<A>;
  its.write(row, none ? sums.largest : sums.largest + logarithm(sums.powers),
            none ? A(0) : sums.largest + sums.below / sums.powers, sums.all / A(rows.vocabulary));
  if (its.told)
    its.told[row] = double(sums.largest - picks[0]) + double(logarithm(sums.powers));
}

template <class E> pp_status_t launchStats(const PreparedOp &op, const TokenStats<E> &its) {
  constexpr int W = packOf<E>, shared = sumsOfLogits * blockSumEntries;
  const bool wide = aligned(its.rows.z);
  return its.rows.cap > 0
             ? launchRows<E>(op, tokenStatsKernel<E, W, true>, tokenStatsKernel<E, 1, true>, wide, shared, its)
             : launchRows<E>(op, tokenStatsKernel<E, W, false>, tokenStatsKernel<E, 1, false>, wide, shared, its);
}

/// dims T V k.
template <class E> pp_status_t token_stats(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int64_t k = op.dims[2];
  return launchStats(op, TokenStats<E>{rowsOf<E>(op, arguments, k, 0, op.dims[1]), out<A>(arguments[3]),
                                       out<A>(arguments[4]), out<A>(arguments[5]), out<A>(arguments[6]), 1, k,
                                       out<double>(arguments[7])});
}

/// dims T n first V k: columns [first, first + n) of V; those from V on are padding, which counts nowhere.
template <class E> pp_status_t token_shard(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int64_t k = op.dims[4];
  A *stats = out<A>(arguments[3]);
  return launchStats(op, TokenStats<E>{rowsOf<E>(op, arguments, k, op.dims[2], op.dims[3]), stats, stats + 1, stats + 2,
                                       stats + 3, 3 + k, 3 + k, nullptr});
}

constexpr int mostParts = 256;
struct PartList {
  const void *parts[mostParts];
};

/// A block for each row, a thread for each of its numbers; a row is read from all parts before it is written, for the
/// result may lie on the first part.
template <class A>
__global__ void __launch_bounds__(256)
    tokenMergeKernel(const __grid_constant__ PartList list, int parts, int64_t width, A *stats) {
  const int64_t row = blockIdx.x * width;
  auto part = [&](int i, int64_t j) { return static_cast<const A *>(list.parts[i])[row + j]; };
  A largest = minusInfinity<A>, sum = 0, mean = 0;
  for (int i = 0; i < parts; ++i)
    largest = larger(largest, part(i, 0));
  auto shareOf = [&](int i, A of) { // nothing of a part all of whose logits are minus infinity
    return part(i, 0) == minusInfinity<A> ? A(0) : exponential(part(i, 0) - of);
  };
  for (int i = 0; i < parts; ++i)
    sum += shareOf(i, largest);
  const A lse = largest == minusInfinity<A> ? largest : largest + logarithm(sum);
  for (int i = 0; i < parts; ++i)
    mean += shareOf(i, lse) * part(i, 1);
  waitBlock();
  if (threadIdx.x == 0)
    stats[row] = lse, stats[row + 1] = mean;
  for (int64_t j = 2 + threadIdx.x; j < width; j += blockDim.x) {
    A all = 0;
    for (int i = 0; i < parts; ++i)
      all += part(i, j);
    stats[row + j] = all;
  }
}

/// dims T parts width.
template <class E> pp_status_t token_merge(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  PartList list{};
  for (int64_t i = 0; i < op.dims[1]; ++i)
    list.parts[i] = static_cast<const void *const *>(arguments[0])[i];
  const int threads = int(std::min<int64_t>(blocksFor(op.dims[2], 32) * 32, 256));
  return launch(op, tokenMergeKernel<A>, {op.dims[0]}, threads, 0, list, int(op.dims[1]), op.dims[2],
                out<A>(arguments[1]));
}

template <class A> struct EachOfRows {
  using Element = A;
  const A *stats;
  const int32_t *targets;
  A *lse, *meanOfPowers, *mean, *picks;
  double *told; ///< the losses of rows whose first pick is their target; null: nobody asks
  int64_t k;
  template <int W> PP_DEVICE void at(int64_t i) const { // of a number that is picked, and of its row by the first
    for (int64_t p = i; p < i + W; ++p) {
      const int64_t row = quotient(p, k), j = p - row * k;
      const A *from = stats + row * (3 + k);
      const bool has = targets[row] >= 0;
      picks[p] = has ? from[3 + j] : A(0);
      if (j > 0)
        continue;
      if (told && has)
        told[row] = double(from[0]) - double(from[3]);
      lse[row] = has ? from[0] : A(0), meanOfPowers[row] = has ? from[1] : A(0), mean[row] = has ? from[2] : A(0);
    }
  }
};

/// dims T k.
template <class E> pp_status_t token_rows(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  return map(op,
             EachOfRows<A>{in<A>(arguments[0]), in<int32_t>(arguments[1]), out<A>(arguments[2]), out<A>(arguments[3]),
                           out<A>(arguments[4]), out<A>(arguments[5]), out<double>(arguments[6]), op.dims[1]},
             op.dims[0] * op.dims[1], false);
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
    A its = logit == minusInfinity<A> ? A(0) : exponential(logit - lse) * (power + slope * logit);
    its = its + every + more;
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
  if (!rows.has(rows.targets[row])) {
    clearRow<E, W>(dz, n);
    return;
  }
  const A dmeanOfPowers = its.dmeanOfPowers[row];
  const LogitSlope<A, Capped> slope{its.lse[row], its.dlse[row] + dmeanOfPowers * (A(1) - its.meanOfPowers[row]),
                                    dmeanOfPowers, its.dmean[row] / A(rows.vocabulary), rows.cap};
  const int32_t *ids = rows.ids + row * k;
  const A *dpicks = its.dpicks + row * k;
  A *picked = sharedMemory<A>(); // what their columns get, made before dz is written over z
  for (int64_t j = threadIdx.x; j < k; j += blockDim.x) {
    const int64_t column = rows.column(ids[j]);
    A more = 0;
    for (int64_t i = 0; i < k; ++i)
      more += ids[i] == ids[j] ? dpicks[i] : A(0);
    if (column >= 0)
      picked[j] = slope(logitsOf<Capped, 1>(z + column, rows.cap).v[0], more);
  }
  waitBlock();
  for (int64_t i = int64_t(threadIdx.x) * W; i < rows.exist; i += int64_t(blockDim.x) * W) {
    auto a = logitsOf<Capped, W>(z + i, rows.cap);
    for (int j = 0; j < W; ++j)
      a.v[j] = slope(a.v[j], A(0));
    store<W>(dz + i, a);
  }
  clearRow<E, 1>(dz + rows.exist, n - rows.exist);
  waitBlock();
  for (int64_t j = threadIdx.x; j < k; j += blockDim.x)
    if (const int64_t column = rows.column(ids[j]); column >= 0)
      store<1>(dz + column, Pack<A, 1>{{picked[j]}});
}

/// dims T n k first V; dz may lie on z.
template <class E> pp_status_t token_stats_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  TokenSlopes<E> its{rowsOf<E>(op, arguments, op.dims[2], op.dims[3], op.dims[4]),
                     in<A>(arguments[3]),
                     in<A>(arguments[4]),
                     in<A>(arguments[5]),
                     in<A>(arguments[6]),
                     in<A>(arguments[7]),
                     in<A>(arguments[8]),
                     out<E>(arguments[9])};
  constexpr int W = packOf<E>;
  const bool wide = aligned(its.rows.z, its.dz);
  return its.rows.cap > 0
             ? launchRows<E>(op, tokenSlopesKernel<E, W, true>, tokenSlopesKernel<E, 1, true>, wide, its.rows.k, its)
             : launchRows<E>(op, tokenSlopesKernel<E, W, false>, tokenSlopesKernel<E, 1, false>, wide, its.rows.k, its);
}

// --- Segments: tokens side by side in a row, with one start; starts do not fall in a row ---

/// The own tokens of whole rows: all, or two runs of each.
struct OwnTokens {
  int64_t rowLength, whole; ///< of own ones, and of all
  Places places;
  explicit OwnTokens(const PreparedOp &op)
      : rowLength(op.dims[1]), whole(op.dims[3]), places(op, op.dims[1], op.dims[2]) {}

  /// Where a token of the whole rows lies among the own ones; -1: it is another device's. The other way round.
  PP_DEVICE int64_t own(int64_t t) const {
    const int64_t row = quotient(t, whole), at = t - row * whole, second = at - places.second;
    const int64_t its = at >= places.first && at < places.first + places.run ? at - places.first
                        : second >= 0 && second < rowLength - places.run     ? second + places.run
                                                                             : -1;
    return its < 0 ? its : row * rowLength + its;
  }
  PP_DEVICE int64_t among(int64_t t) const {
    const int64_t row = quotient(t, rowLength);
    return row * whole + places.of(t - row * rowLength);
  }
};

/// A block for each token that begins a segment; the others have nothing to do.
template <class A>
__global__ void __launch_bounds__(256)
    segmentSumKernel(const A *v, const int32_t *targets, const int32_t *starts, OwnTokens tokens, bool isMean, A *y) {
  const int64_t rowLength = tokens.whole;
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
    if (const int64_t own = tokens.own(t); own >= 0)
      y[own] = targets[t] < 0 ? A(0) : sum;
}

/// dims T S first whole.
template <class E> pp_status_t segment_sum(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int threads = int(std::min<int64_t>(blocksFor(op.dims[3], 32) * 32, 256));
  return launch(op, segmentSumKernel<A>, {op.dims[0] / op.dims[1] * op.dims[3]}, threads,
                2 * blockSumEntries * sizeof(double), in<A>(arguments[0]), in<int32_t>(arguments[1]),
                in<int32_t>(arguments[2]), OwnTokens(op), op.has(Mean), out<A>(arguments[3]));
}

// --- Means over tokens ---

/// The own tokens that count: those with a target, or the first of these of each segment, whatever its target weighs.
struct CountedTokens {
  const int32_t *targets;
  const int32_t *starts; ///< null: each token counts
  const float *weights;  ///< null: all are 1
  OwnTokens tokens;
  LossFactor factor;

  PP_DEVICE bool has(int64_t own) const {
    const int64_t t = tokens.among(own);
    if (targets[t] < 0 || !starts)
      return targets[t] >= 0;
    const int64_t row = t - t % tokens.whole;
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
  return {in<int32_t>(arguments[1]), in<int32_t>(arguments[2]), in<float>(weights), OwnTokens(op), lossFactor(op)};
}

/// dims T S first whole.
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

/// dims T S first whole; dv may lie on v, which is read first.
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
PP_BODIES(token_shard)
PP_BODIES(token_merge)
PP_BODIES(token_rows)
PP_BODIES(token_stats_bwd)
PP_BODIES(segment_sum)
PP_BODIES(token_mean)
PP_BODIES(token_mean_bwd)
