// Mixtures of experts but for their products: what a router chooses, the rows of its choices, and what the run says.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A warp has a token, or a group of tokens and an expert. Rows are ordered without atomics: the block of an expert
// reads all choices and counts those of the experts before it; each of its threads has a run of choices in order.
// What the run says of routers is summed on the device, in f64 and a fixed order, by one block behind each route.
#include "runtime/simt/Map.h"
#include <limits>
#include <numeric>

using namespace pp;

namespace {

constexpr int warps = 4; ///< of a block, each with a token or with a group and an expert

PP_DEVICE int64_t warpNumber() { return int64_t(blockIdx.x) * warps + threadIdx.x / 32; }
PP_DEVICE int laneNumber() { return int(threadIdx.x % 32); }

template <class... Parameters, class... Arguments>
pp_status_t launchWarps(const PreparedOp &op, void (*kernel)(Parameters...), int64_t count, Arguments... arguments) {
  return launch(op, kernel, {blocksFor(count, warps)}, 32 * warps, 0, arguments...);
}

// --- What the run says of routers ---

/// Kernels add to the rank's sums on the device, which go to the host after the step. Emulated kernels without streams
/// have no device that fetches them: they come with the call, and go back with it.
template <class Do> pp_status_t report(const PreparedOp &op, [[maybe_unused]] void *given, const Do &run) {
  RouterSums *sums = op.launches->routed;
#ifndef __CUDACC__
  if (!op.launches->stream) {
    *sums = *out<RouterSums>(given);
    pp_status_t status = run(sums);
    *out<RouterSums>(given) = *sums;
    return status;
  }
#endif
  return run(sums);
}

/// Of a group of rows and an expert, how often they chose it times the sum of what they gave it, over their tokens.
template <class A> struct Shares {
  const int32_t *sel;
  const A *p;
  const double *wholes; ///< what p is divided by, of each token; null: 1
  double *shares;       ///< [groups][n]
  int64_t n, k, group, count;
};

template <class A> __global__ void __launch_bounds__(128) sharesKernel(Shares<A> its) {
  const int64_t number = warpNumber(), first = quotient(number, its.n) * its.group,
                e = number - first / its.group * its.n;
  if (number >= its.count)
    return;
  double sums[3] = {0, 0, 0};
  for (int64_t i = first * its.k + laneNumber(); i < (first + its.group) * its.k; i += 32)
    sums[0] += its.sel[i] == e;
  for (int64_t t = first + laneNumber(); t < first + its.group; t += 32) {
    sums[1] += double(its.p[t * its.n + e]) / (its.wholes ? its.wholes[t] : 1);
    sums[2] += its.sel[t * its.k] >= 0;
  }
  const double often = warpSum(sums[0]), mass = warpSum(sums[1]), tokens = warpSum(sums[2]);
  if (laneNumber() == 0)
    its.shares[number] = tokens > 0 ? often * mass / tokens : 0;
}

/// What one route adds to the sums of a step; null where a loss weighs nothing.
template <class A> struct RouteReport {
  RouterSums *sums;
  const double *shares;
  const A *lse;
  const int32_t *sel, *counts;
  double balance, z;
  int64_t shareCount, tokens, n, k; ///< n of the experts that have rows
};

/// The smallest, or the largest, of the block's values; `shared` has one for each warp.
template <bool Largest> PP_DEVICE int32_t blockEnd(int32_t value, int32_t *shared) {
  auto better = [](int32_t a, int32_t b) { return Largest == (a > b) ? a : b; };
  PP_UNROLL
  for (int mask = 16; mask; mask /= 2)
    value = better(value, shuffleXor(value, mask));
  if (laneNumber() == 0)
    shared[threadIdx.x / 32] = value;
  waitBlock();
  for (int warp = 0; warp < int(blockDim.x / 32); ++warp)
    value = better(value, shared[warp]);
  waitBlock();
  return value;
}

template <class A> __global__ void __launch_bounds__(256) reportKernel(RouteReport<A> its) {
  double *shared = sharedMemory<double>(), sums[2] = {0, 0};
  for (int64_t i = threadIdx.x; its.shares && i < its.shareCount; i += blockDim.x)
    sums[0] += its.shares[i];
  for (int64_t t = threadIdx.x; its.lse && t < its.tokens; t += blockDim.x)
    sums[1] += double(its.lse[t]) * double(its.lse[t]);
  blockSum(sums, shared);
  int32_t fewest = INT32_MAX, most = 0;
  double rows[3] = {0, 0, 0}; // that are there, tokens, and choices that want one
  for (int64_t t = threadIdx.x; its.counts && t < its.tokens; t += blockDim.x)
    rows[1] += its.sel[t * its.k] >= 0;
  for (int64_t i = threadIdx.x; its.counts && i < its.tokens * its.k; i += blockDim.x)
    rows[2] += its.sel[i] >= 0 && its.sel[i] < its.n;
  for (int64_t e = threadIdx.x; its.counts && e < its.n; e += blockDim.x) {
    rows[0] += its.counts[e];
    fewest = its.counts[e] < fewest ? its.counts[e] : fewest;
    most = larger(its.counts[e], most);
  }
  blockSum(rows, shared);
  fewest = blockEnd<false>(fewest, reinterpret_cast<int32_t *>(shared));
  most = blockEnd<true>(most, reinterpret_cast<int32_t *>(shared));
  if (threadIdx.x != 0)
    return;
  its.sums->balance += its.balance * sums[0];
  its.sums->z += its.z * sums[1];
  if (!its.counts || rows[1] == 0) // no token is there
    return;
  its.sums->rows += int64_t(rows[0]);
  its.sums->dropped += int64_t(rows[2]) - int64_t(rows[0]);
  its.sums->experts += its.n;
  its.sums->fewest = fewest < its.sums->fewest ? fewest : its.sums->fewest;
  its.sums->most = most > its.sums->most ? most : its.sums->most;
}

template <class A> pp_status_t launchReport(const PreparedOp &op, const RouteReport<A> &its) {
  return launch(op, reportKernel<A>, {1}, its.shareCount > 32 || its.tokens > 32 ? 256 : 32,
                3 * blockSumEntries * sizeof(double), its);
}

// --- Choices ---

template <class E> struct Router {
  using A = Acc<E>;
  const A *logits;
  const E *bias;
  const int32_t *rows; ///< negative where there is no token; null: all are there
  A *w, *p, *lse;
  int32_t *sel, *places;
  A *scores; ///< what experts are chosen by; p itself where that is all
  A *values; ///< of each token's groups of experts
  double *wholes;
  int64_t tokens, n, k, groups, best, held; ///< held: experts that have rows
  A scale, least, added, jitter;
  bool renormalises, sigmoids, byLargest, mixes;
};

/// What is no number loses against every number.
template <class A> PP_DEVICE A ordered(A x) { return x == x ? x : minusInfinity<A>; }
/// Of equal ones the lower number first.
template <class A> PP_DEVICE bool comesBefore(A x, int64_t i, A y, int64_t j) { return x > y || (x == y && i < j); }

/// p and lse of the warp's token; returns the sum of p, 1 of a softmax.
template <class E> PP_DEVICE Acc<E> fillProbabilities(const Router<E> &its, int64_t t) {
  using A = Acc<E>;
  const A *logits = its.logits + t * its.n;
  A *p = its.p + t * its.n, largest = minusInfinity<A>, sum = 0;
  for (int64_t i = laneNumber(); i < its.n && !its.sigmoids; i += 32)
    largest = larger(largest, logits[i]);
  largest = warpLargest(largest);
  for (int64_t i = laneNumber(); i < its.n; i += 32) {
    p[i] = its.sigmoids ? sigmoid(logits[i]) : exponential(logits[i] - largest);
    sum += p[i];
  }
  sum = warpSum(sum);
  for (int64_t i = laneNumber(); i < its.n && !its.sigmoids; i += 32)
    p[i] /= sum;
  if (laneNumber() == 0)
    its.lse[t] = its.sigmoids ? A(0) : largest + logarithm(sum);
  return its.sigmoids ? sum : A(1);
}

/// Below all scores but those that are no numbers.
template <class A> constexpr A lowest = -std::numeric_limits<A>::max();

/// The sum of the two largest, or the largest.
template <class A> PP_DEVICE A valueOfGroup(const A *scores, int64_t size, bool byLargest) {
  A first = ordered(scores[0]), second = minusInfinity<A>;
  for (int64_t i = 1; i < size; ++i) {
    A score = ordered(scores[i]);
    second = score > first ? first : larger(second, score);
    first = larger(first, score);
  }
  return byLargest ? first : first + second;
}

/// Scores of the experts of the warp's token, those in groups that are not among the best lower than any other.
template <class E> PP_DEVICE void fillScores(const Router<E> &its, int64_t t) {
  using A = Acc<E>;
  const A *p = its.p + t * its.n;
  A *scores = its.scores + t * its.n, *values = its.values + t * its.groups;
  const int64_t size = its.n / its.groups;
  for (int64_t i = laneNumber(); i < its.n; i += 32)
    scores[i] = p[i] + (its.bias ? A(widen(its.bias[i])) : A(0));
  waitWarp();
  if (its.groups == 1)
    return;
  for (int64_t group = laneNumber(); group < its.groups; group += 32)
    values[group] = ordered(valueOfGroup(scores + group * size, size, its.byLargest));
  waitWarp();
  for (int64_t i = laneNumber(); i < its.n; i += 32) {
    const int64_t group = quotient(i, size);
    int64_t before = 0;
    for (int64_t other = 0; other < its.groups; ++other)
      before += comesBefore(values[other], other, values[group], group);
    if (before >= its.best)
      scores[i] = lowest<A>;
  }
  waitWarp();
}

/// The k largest scores in turn; returns the sum of their p.
template <class E> PP_DEVICE Acc<E> choose(const Router<E> &its, const Acc<E> *scores, int64_t t) {
  using A = Acc<E>;
  A last = -minusInfinity<A>, sum = 0;
  int lastAt = -1;
  for (int64_t j = 0; j < its.k; ++j) {
    A best = minusInfinity<A>;
    int at = INT32_MAX;
    for (int64_t i = laneNumber(); i < its.n; i += 32)
      if (A score = ordered(scores[i]); comesBefore(last, lastAt, score, i) && comesBefore(score, i, best, at))
        best = score, at = int(i);
    PP_UNROLL
    for (int mask = 16; mask; mask /= 2) {
      A other = shuffleXor(best, mask);
      int where = shuffleXor(at, mask);
      if (comesBefore(other, where, best, at))
        best = other, at = where;
    }
    if (laneNumber() == 0)
      its.sel[t * its.k + j] = at;
    sum += its.p[t * its.n + at];
    last = best, lastAt = at;
  }
  waitWarp();
  return sum;
}

/// Whether a logit is near enough to the largest one, m, to be in its softmax.
template <class A> PP_DEVICE bool isNear(A r, A m, A jitter) {
  return !((m - r) / larger(r < 0 ? -r : r, m) > 2 * jitter);
}

/// Whether expert i is in the softmax of a choice of a sparsemixer, the j-th, and the sum of that softmax.
template <class A> PP_DEVICE bool isMixed(const A *r, const int32_t *sel, int64_t i, int j, A jitter) {
  return !(j == 1 && i == sel[0]) && isNear(r[i], r[sel[j]], jitter);
}
template <class A> PP_DEVICE A sumOfMixed(const A *r, int64_t n, const int32_t *sel, int j, A jitter) {
  A sum = 0;
  for (int64_t i = laneNumber(); i < n; i += 32)
    if (isMixed(r, sel, i, j, jitter))
      sum += exponential(r[i] - r[sel[j]]);
  return warpSum(sum);
}

/// The two choices of the warp's token by a sparsemixer.
template <class E> PP_DEVICE void mix(const Router<E> &its, int64_t t) {
  using A = Acc<E>;
  A *p = its.p + t * its.n;
  for (int64_t i = laneNumber(); i < its.n; i += 32)
    p[i] = its.logits[t * its.n + i];
  if (laneNumber() == 0)
    its.lse[t] = 0;
  waitWarp();
  choose(its, p, t);
  for (int j = 0; j < 2; ++j)
    if (A sum = sumOfMixed(p, its.n, its.sel + t * 2, j, its.jitter); laneNumber() == 0)
      its.w[t * 2 + j] = its.scale * (A(1) / sum);
}

/// Chooses nothing for the warp's row, which holds no token.
template <class E> PP_DEVICE void leaveOut(const Router<E> &its, int64_t t) {
  for (int64_t i = laneNumber(); i < its.n; i += 32)
    its.p[t * its.n + i] = 0;
  for (int64_t j = t * its.k + laneNumber(); j < (t + 1) * its.k; j += 32)
    its.w[j] = 0, its.sel[j] = its.places[j] = -1;
  if (laneNumber() != 0)
    return;
  its.lse[t] = 0;
  if (its.wholes)
    its.wholes[t] = 1;
}

template <class E> __global__ void __launch_bounds__(128) routeKernel(Router<E> its) {
  using A = Acc<E>;
  const int64_t t = warpNumber();
  if (t >= its.tokens)
    return;
  if (its.rows && its.rows[t] < 0)
    return leaveOut(its, t);
  if (its.mixes)
    return mix(its, t);
  const A whole = fillProbabilities(its, t);
  if (its.wholes && laneNumber() == 0)
    its.wholes[t] = double(whole);
  waitWarp();
  if (its.scores != its.p)
    fillScores(its, t);
  const A sum = choose(its, its.scores + t * its.n, t),
          factor = its.renormalises ? its.scale / (larger(sum, its.least) + its.added) : its.scale;
  for (int64_t j = t * its.k + laneNumber(); j < (t + 1) * its.k; j += 32) {
    its.w[j] = factor * its.p[t * its.n + its.sel[j]];
    if (its.sel[j] >= its.held)
      its.places[j] = -1;
  }
}

/// Where rows go: those of `each` experts are a section, which has room for `room` rows.
struct RowOrder {
  const int32_t *sel;
  int32_t *places, *counts;
  int64_t choices, each, room, k;
  double capacity; ///< 0: a section takes as many as there is room for
  bool drops;      ///< there may be choices of tokens without a row, whose places are -1 already
};

constexpr int orderThreads = 256;

/// A block for each section, which takes choices until it is full: first choices of all tokens first. Each thread has
/// a run of them in that order. A choice without a row has place -1, the others 0.
__global__ void __launch_bounds__(256) acceptKernel(RowOrder its) {
  int32_t *found = sharedMemory<int32_t>(), *there = found + orderThreads;
  const int me = int(threadIdx.x);
  const int64_t section = blockIdx.x, tokens = quotient(its.choices, its.k),
                run = (its.choices + orderThreads - 1) / orderThreads;
  const int64_t first = me * run, end = first + run < its.choices ? first + run : its.choices;
  auto choiceOf = [&](int64_t i) { return i % tokens * its.k + i / tokens; };
  auto isOwn = [&](int32_t expert) { return expert >= 0 && expert / its.each == section; };
  int32_t own = 0, all = 0;
  for (int64_t i = first; i < end; ++i) {
    own += isOwn(its.sel[choiceOf(i)]);
    all += its.sel[choiceOf(i)] >= 0;
  }
  found[me] = own, there[me] = all;
  waitBlock();
  int64_t taken = 0, choices = 0;
  for (int other = 0; other < orderThreads; ++other) {
    taken += other < me ? found[other] : 0;
    choices += there[other];
  }
  const double most = ceil(its.capacity * (double(choices) / double(gridDim.x)));
  const int64_t room = its.capacity > 0 && most < double(its.room) ? int64_t(most) : its.room;
  for (int64_t i = first; i < end; ++i)
    if (const int64_t choice = choiceOf(i); isOwn(its.sel[choice]))
      its.places[choice] = taken++ < room ? 0 : -1;
}

/// A block for each expert. It takes the choices in runs, one for each thread.
__global__ void __launch_bounds__(256) orderKernel(RowOrder its) {
  int32_t *chosen = sharedMemory<int32_t>(), *earlier = chosen + orderThreads;
  const int me = int(threadIdx.x);
  const int64_t e = blockIdx.x, section = e / its.each, run = (its.choices + orderThreads - 1) / orderThreads;
  const int64_t first = me * run, end = first + run < its.choices ? first + run : its.choices;
  int32_t same = 0, before = 0;
  for (int64_t i = first; i < end; ++i) {
    const bool hasRow = !its.drops || its.places[i] >= 0;
    same += hasRow && its.sel[i] == e;
    before += hasRow && its.sel[i] < e && its.sel[i] >= section * its.each;
  }
  chosen[me] = same, earlier[me] = before;
  waitBlock();
  auto place = int32_t(section * its.room);
  int32_t count = 0;
  for (int other = 0; other < orderThreads; ++other) {
    place += earlier[other] + (other < me ? chosen[other] : 0);
    count += chosen[other];
  }
  if (me == 0)
    its.counts[e] = count;
  for (int64_t i = first; i < end; ++i)
    if (its.sel[i] == e && (!its.drops || its.places[i] >= 0))
      its.places[i] = place++;
}

/// Where a route has what, in the rank's scratch.
template <class A> struct RouteScratch {
  double *wholes, *shares;
  A *scores, *values;
  explicit RouteScratch(const PreparedOp &op)
      : wholes(reinterpret_cast<double *>(op.scratch)), shares(wholes + op.dims[0]),
        scores(reinterpret_cast<A *>(shares + shareCount(op))), values(scores + op.dims[0] * op.dims[1]) {}
  /// Groups of tokens times experts.
  static int64_t shareCount(const PreparedOp &op) { return op.dims[0] / op.dims[3] * op.dims[1]; }
};

/// dims T n k g s r. Chooses, orders the rows, and reports.
template <class E> pp_status_t route(const PreparedOp &op, void *const *a) {
  using A = Acc<E>;
  const int64_t tokens = op.dims[0], n = op.dims[1], k = op.dims[2], group = op.dims[3],
                held = n - int64_t(op.params[8]), each = held / op.dims[4];
  const int64_t groups = int64_t(op.params[4]), shareCount = RouteScratch<A>::shareCount(op);
  RouteScratch<A> scratch(op);
  A *p = out<A>(a[5]), *lse = out<A>(a[6]);
  int32_t *sel = out<int32_t>(a[4]), *places = out<int32_t>(a[7]), *counts = out<int32_t>(a[8]);
  double *wholes = op.has(Sigmoid) ? scratch.wholes : nullptr;
  const Router<E> router = {in<A>(a[0]),
                            in<E>(a[1]),
                            in<int32_t>(a[2]),
                            out<A>(a[3]),
                            p,
                            lse,
                            sel,
                            places,
                            a[1] || groups > 1 ? scratch.scores : p,
                            scratch.values,
                            wholes,
                            tokens,
                            n,
                            k,
                            groups,
                            int64_t(op.params[5]),
                            held,
                            A(op.params[0]),
                            A(op.params[6]),
                            A(op.params[7]),
                            A(op.params[9]),
                            op.has(Renormalise),
                            op.has(Sigmoid),
                            op.has(Largest),
                            op.has(Sparsemixer)};
  if (pp_status_t status = launchWarps(op, routeKernel<E>, tokens, router))
    return status;
  const RowOrder order = {sel,        places,       counts,
                          tokens * k, each,         op.dims[5],
                          k,          op.params[3], op.params[3] > 0 || op.dims[5] < tokens * (k < each ? k : each)};
  if (order.drops)
    if (pp_status_t status =
            launch(op, acceptKernel, {op.dims[4]}, orderThreads, 2 * orderThreads * sizeof(int32_t), order))
      return status;
  if (pp_status_t status = launch(op, orderKernel, {held}, orderThreads, 2 * orderThreads * sizeof(int32_t), order))
    return status;
  const bool hasBalance = op.params[1] != 0, hasZ = op.params[2] != 0;
  const Shares<A> shares = {sel, p, wholes, scratch.shares, n, k, group, shareCount};
  if (hasBalance)
    if (pp_status_t status = launchWarps(op, sharesKernel<A>, shareCount, shares))
      return status;
  return report(op, a[9], [&](RouterSums *sums) {
    const double balance = op.params[1] * double(n) / double(k);
    return launchReport(op, RouteReport<A>{sums, hasBalance ? scratch.shares : nullptr, hasZ ? lse : nullptr, sel,
                                           counts, balance, op.params[2], shareCount, tokens, held, k});
  });
}

// --- The gradient of choices ---

template <class A> struct ChoiceCounts {
  const int32_t *sel;
  A *often; ///< [groups][n]
  int64_t n, choices, count;
};

template <class A> __global__ void __launch_bounds__(128) choiceCountsKernel(ChoiceCounts<A> its) {
  const int64_t number = warpNumber(), group = quotient(number, its.n), e = number - group * its.n;
  if (number >= its.count)
    return;
  int32_t often = 0;
  for (int64_t i = group * its.choices + laneNumber(); i < (group + 1) * its.choices; i += 32)
    often += its.sel[i] == e;
  often = warpSum(often);
  if (laneNumber() == 0)
    its.often[number] = A(often);
}

template <class A> pp_status_t countChoices(const PreparedOp &op, const void *sel, A *often) {
  const int64_t n = op.dims[1], count = op.dims[0] / op.dims[3] * n;
  return launchWarps(op, choiceCountsKernel<A>, count,
                     ChoiceCounts<A>{in<int32_t>(sel), often, n, op.dims[2] * op.dims[3], count});
}

/// dims T n k g.
template <class E> pp_status_t choice_counts(const PreparedOp &op, void *const *a) {
  return countChoices(op, a[0], out<Acc<E>>(a[1]));
}

template <class A> struct RouteSlopes {
  const A *dw, *w, *p, *lse;
  const A *often; ///< [groups][n]; null: no balance
  const int32_t *sel;
  A *dlogits;
  double *shares; ///< of each token, of a balance that devices share; null: none
  const OptimizerScalars *scalars;
  int64_t tokens, n, k, group;
  A scale, least, added, jitter;
  double balance, z;
  bool renormalises, sigmoids, mixes;
};

/// Adds to dp what the weights of the warp's token give.
template <class A> PP_DEVICE void addChosen(const RouteSlopes<A> &its, int64_t t, A *dp) {
  const A *dw = its.dw + t * its.k, *w = its.w + t * its.k, *p = its.p + t * its.n;
  const int32_t *sel = its.sel + t * its.k;
  A dot = 0, sum = 1;
  if (its.renormalises) {
    sum = 0;
    for (int64_t j = 0; j < its.k; ++j) {
      sum += p[sel[j]];
      dot += dw[j] * w[j];
    }
    if (sum < its.least)
      dot = 0, sum = its.least; // which has no gradient
    sum += its.added;
  }
  for (int64_t j = laneNumber(); j < its.k; j += 32)
    dp[sel[j]] += (its.scale * dw[j] - dot) / sum;
  waitWarp();
}

/// The gradient of the logits of the warp's token from its two choices by a sparsemixer.
template <class A> PP_DEVICE void mixBack(const RouteSlopes<A> &its, int64_t t) {
  const A *r = its.p + t * its.n;
  const int32_t *sel = its.sel + t * 2;
  A *dr = its.dlogits + t * its.n;
  for (int j = 0; j < 2; ++j) {
    const A sum = sumOfMixed(r, its.n, sel, j, its.jitter), slope = its.dw[t * 2 + j] * its.w[t * 2 + j];
    for (int64_t i = laneNumber(); i < its.n; i += 32) {
      const A part = isMixed(r, sel, i, j, its.jitter) ? exponential(r[i] - r[sel[j]]) / sum : A(0);
      dr[i] = (j == 0 ? A(0) : dr[i]) + slope * (A(i == sel[j]) - part);
    }
  }
}

/// The gradient of the warp's row, which holds no token.
template <class A> PP_DEVICE void leaveOut(const RouteSlopes<A> &its, int64_t t) {
  for (int64_t i = laneNumber(); i < its.n; i += 32)
    its.dlogits[t * its.n + i] = 0;
  if (its.shares && laneNumber() == 0)
    its.shares[t] = 0;
}

template <class A> __global__ void __launch_bounds__(128) routeBackwardKernel(RouteSlopes<A> its) {
  const int64_t t = warpNumber(), n = its.n;
  if (t >= its.tokens)
    return;
  if (its.sel[t * its.k] < 0)
    return leaveOut(its, t);
  if (its.mixes)
    return mixBack(its, t);
  const A *p = its.p + t * n, *often = its.often ? its.often + quotient(t, its.group) * n : nullptr;
  A *dp = its.dlogits + t * n, choices = 0; // of the group: k of each token
  for (int64_t i = laneNumber(); often && i < n; i += 32)
    choices += often[i];
  choices = warpSum(choices);
  const double each = often ? its.balance / double(choices) : 0,
               perToken = its.scalars->lossScale * its.scalars->perToken;
  const A balance = A(each * perToken);
  for (int64_t i = laneNumber(); i < n; i += 32)
    dp[i] = often && !its.sigmoids ? balance * often[i] : A(0);
  waitWarp();
  addChosen(its, t, dp);
  A sum = 0, dot = 0;
  double share = 0;
  for (int64_t i = laneNumber(); i < n; i += 32) {
    sum += p[i];
    dot += (!its.sigmoids ? dp[i] : often ? balance * often[i] : A(0)) * p[i];
    if (its.shares)
      share += double(often[i]) * double(p[i]);
  }
  sum = warpSum(sum), dot = warpSum(dot);
  const A more = its.lse ? A(2 * its.z * perToken) * its.lse[t] : A(0);
  for (int64_t i = laneNumber(); i < n; i += 32)
    if (its.sigmoids) // the balance is of p over its sum
      dp[i] = (dp[i] + ((often ? balance * often[i] : A(0)) - dot / sum) / sum) * p[i] * (A(1) - p[i]);
    else
      dp[i] = p[i] * (dp[i] - dot + more);
  if (!its.shares)
    return;
  share = warpSum(share);
  if (laneNumber() == 0)
    its.shares[t] = each * (its.sigmoids ? share / double(sum) : share);
}

/// dims T n k g.
template <class E> pp_status_t route_bwd(const PreparedOp &op, void *const *a) {
  using A = Acc<E>;
  takeScalars(op, a[7]);
  double *shares = a[5] ? reinterpret_cast<double *>(op.scratch) : nullptr;
  A *counted = a[5] || op.params[1] == 0 ? nullptr : reinterpret_cast<A *>(op.scratch);
  if (counted)
    if (pp_status_t status = countChoices(op, a[2], counted))
      return status;
  const RouteSlopes<A> slopes = {in<A>(a[0]),
                                 in<A>(a[1]),
                                 in<A>(a[3]),
                                 in<A>(a[4]),
                                 counted ? counted : in<A>(a[5]),
                                 in<int32_t>(a[2]),
                                 out<A>(a[6]),
                                 shares,
                                 op.launches->scalars,
                                 op.dims[0],
                                 op.dims[1],
                                 op.dims[2],
                                 op.dims[3],
                                 A(op.params[0]),
                                 A(op.params[3]),
                                 A(op.params[4]),
                                 A(op.params[5]),
                                 op.params[1] * double(op.dims[1]),
                                 op.params[2],
                                 op.has(Renormalise),
                                 op.has(Sigmoid),
                                 op.has(Sparsemixer)};
  if (pp_status_t status = launchWarps(op, routeBackwardKernel<A>, op.dims[0], slopes); status || !shares)
    return status;
  return report(op, a[8], [&](RouterSums *sums) {
    RouteReport<A> its{};
    its.sums = sums, its.shares = shares, its.balance = 1, its.shareCount = op.dims[0];
    return launchReport(op, its);
  });
}

/// An expert's load: n times its choices less all, in units that make it a whole number.
template <class A> struct Load {
  A *load;
  int64_t n, unit;
  bool adds;
  PP_DEVICE void put(int64_t expert, int64_t its, int64_t all) const {
    const auto more = A((n * its - all) / unit);
    load[expert] = adds ? load[expert] + more : more;
  }
};
template <class A> Load<A> loadOf(const PreparedOp &op, void *load, int64_t n, int64_t k) {
  return {out<A>(load), n, std::gcd(n, k), op.has(Accumulate)};
}

/// One block, which adds up all choices first.
template <class A> __global__ void __launch_bounds__(256) expertLoadKernel(const int32_t *counts, Load<A> load) {
  double choices[1] = {0};
  for (int64_t e = threadIdx.x; e < load.n; e += blockDim.x)
    choices[0] += counts[e];
  blockSum(choices, sharedMemory<double>());
  for (int64_t e = threadIdx.x; e < load.n; e += blockDim.x)
    load.put(e, counts[e], int64_t(choices[0]));
}
/// dims n k.
template <class E> pp_status_t expert_load(const PreparedOp &op, void *const *a) {
  return launch(op, expertLoadKernel<Acc<E>>, {1}, 256, blockSumEntries * sizeof(double), in<int32_t>(a[0]),
                loadOf<Acc<E>>(op, a[1], op.dims[0], op.dims[1]));
}

/// A warp has an expert, and reads all choices.
template <class A>
__global__ void __launch_bounds__(128) choiceLoadKernel(const int32_t *sel, int64_t choices, Load<A> load) {
  const int64_t e = warpNumber();
  if (e >= load.n)
    return;
  int32_t own = 0, all = 0;
  for (int64_t i = laneNumber(); i < choices; i += 32)
    own += sel[i] == e, all += sel[i] >= 0;
  own = warpSum(own), all = warpSum(all);
  if (laneNumber() == 0)
    load.put(e, own, all);
}
/// dims T n k.
template <class E> pp_status_t choice_load(const PreparedOp &op, void *const *a) {
  const int64_t n = op.dims[1], k = op.dims[2];
  return launchWarps(op, choiceLoadKernel<Acc<E>>, n, in<int32_t>(a[0]), op.dims[0] * k,
                     loadOf<Acc<E>>(op, a[1], n, k));
}

/// The sum of the weights of a token's choices of experts without rows.
template <class E> struct IdentityWeights {
  using Element = E;
  const E *w;
  const int32_t *sel;
  E *u;
  int64_t k, n;
  template <int W> PP_DEVICE void at(int64_t t) const {
    Acc<E> sum = 0;
    for (int64_t i = t * k; i < (t + 1) * k; ++i)
      sum += sel[i] >= n ? Acc<E>(widen(w[i])) : Acc<E>(0);
    narrow(u[t], sum);
  }
};
template <class E> struct IdentityWeightsBackward {
  using Element = E;
  const E *du;
  const int32_t *sel;
  E *dw;
  int64_t k, n;
  template <int W> PP_DEVICE void at(int64_t i) const { dw[i] = sel[i] >= n ? du[quotient(i, k)] : E(0); }
};
/// dims T k n.
template <class E> pp_status_t identity_weights(const PreparedOp &op, void *const *a) {
  return map(op, IdentityWeights<E>{in<E>(a[0]), in<int32_t>(a[1]), out<E>(a[2]), op.dims[1], op.dims[2]}, op.dims[0],
             false);
}
template <class E> pp_status_t identity_weights_bwd(const PreparedOp &op, void *const *a) {
  return map(op, IdentityWeightsBackward<E>{in<E>(a[0]), in<int32_t>(a[1]), out<E>(a[2]), op.dims[1], op.dims[2]},
             op.dims[0] * op.dims[1], false);
}

// --- Rows of experts ---

/// Packs of a row lie in it.
template <class E, class... Pointers> bool rowsAreWide(int64_t h, Pointers... pointers) {
  return h % packOf<E> == 0 && aligned(pointers...);
}

template <class E> struct Dispatch {
  using Element = E;
  const E *x;
  const int32_t *places;
  E *rows;
  int64_t k, h;
  template <int W> PP_DEVICE void at(int64_t i) const {
    const int64_t choice = quotient(i, h), c = i - choice * h;
    if (places[choice] < 0)
      return;
    store<W>(rows + places[choice] * h + c, load<W>(x + quotient(choice, k) * h + c));
  }
};
/// dims T k h, as of combine and scale_rows.
template <class E> pp_status_t dispatch(const PreparedOp &op, void *const *a) {
  const int64_t k = op.dims[1], h = op.dims[2];
  return map(op, Dispatch<E>{in<E>(a[0]), in<int32_t>(a[1]), out<E>(a[2]), k, h}, op.dims[0] * k * h,
             rowsAreWide<E>(h, a[0], a[2]));
}

template <class E> struct Combine {
  using Element = E;
  const E *rows;
  const int32_t *places;
  E *y;
  int64_t k, h;
  bool adds;
  template <int W> PP_DEVICE void at(int64_t i) const {
    const int64_t t = quotient(i, h), c = i - t * h;
    Pack<Acc<E>, W> sum{};
    if (adds)
      sum = load<W>(y + i);
    for (int64_t j = t * k; j < (t + 1) * k; ++j) {
      if (places[j] < 0)
        continue;
      auto row = load<W>(rows + places[j] * h + c);
      for (int l = 0; l < W; ++l)
        sum.v[l] += row.v[l];
    }
    store<W>(y + i, sum);
  }
};
template <class E> pp_status_t combine(const PreparedOp &op, void *const *a) {
  const int64_t h = op.dims[2];
  return map(op, Combine<E>{in<E>(a[0]), in<int32_t>(a[1]), out<E>(a[2]), op.dims[1], h, op.has(Accumulate)},
             op.dims[0] * h, rowsAreWide<E>(h, a[0], a[2]));
}

/// A number for each choice, to its row or from there.
template <class E, bool ToRows> struct MoveWeights {
  using Element = E;
  const E *from;
  const int32_t *places;
  E *to;
  template <int W> PP_DEVICE void at(int64_t i) const {
    const int32_t place = places[i];
    if (!ToRows)
      to[i] = place < 0 ? E(0) : from[place];
    else if (place >= 0)
      to[place] = from[i];
  }
};
/// dims T k Q, as of take_weights.
template <class E> pp_status_t place_weights(const PreparedOp &op, void *const *a) {
  if (pp_status_t status = clear(op, out<E>(a[2]), op.dims[2]))
    return status;
  return map(op, MoveWeights<E, true>{in<E>(a[0]), in<int32_t>(a[1]), out<E>(a[2])}, op.dims[0] * op.dims[1], false);
}
template <class E> pp_status_t take_weights(const PreparedOp &op, void *const *a) {
  return map(op, MoveWeights<E, false>{in<E>(a[0]), in<int32_t>(a[1]), out<E>(a[2])}, op.dims[0] * op.dims[1], false);
}

template <class E> struct ScaleRows {
  using Element = E;
  const E *a;
  const Acc<E> *w;
  const int32_t *places; ///< null: row i has weight i
  E *y;
  int64_t h;
  template <int W> PP_DEVICE void at(int64_t i) const {
    const int64_t choice = quotient(i, h), at = (places ? places[choice] : choice) * h + i - choice * h;
    if (at < 0)
      return;
    auto row = load<W>(a + at);
    for (int l = 0; l < W; ++l)
      row.v[l] *= w[choice];
    store<W>(y + at, row);
  }
};
template <class E> pp_status_t scale_rows(const PreparedOp &op, void *const *a) {
  const int64_t h = op.dims[2];
  return map(op, ScaleRows<E>{in<E>(a[0]), in<Acc<E>>(a[1]), in<int32_t>(a[2]), out<E>(a[3]), h},
             op.dims[0] * op.dims[1] * h, rowsAreWide<E>(h, a[0], a[3]));
}

template <class E> struct ScaledRows {
  const E *dy, *a;
  const Acc<E> *w;
  const int32_t *places;
  E *da;
  Acc<E> *dw;
  int64_t choices, h;
};

/// A warp has a row: da may lie over dy, for a lane reads what it writes.
template <class E, int W> __global__ void __launch_bounds__(128) scaleRowsBackwardKernel(ScaledRows<E> its) {
  using A = Acc<E>;
  const int64_t choice = warpNumber();
  if (choice >= its.choices)
    return;
  const int64_t first = (its.places ? its.places[choice] : choice) * its.h;
  if (first < 0) {
    if (laneNumber() == 0)
      its.dw[choice] = 0;
    return;
  }
  const A factor = its.w[choice];
  A dot = 0;
  for (int64_t c = first + laneNumber() * W; c < first + its.h; c += 32 * W) {
    auto slope = load<W>(its.dy + c), row = load<W>(its.a + c);
    for (int l = 0; l < W; ++l) {
      dot += slope.v[l] * row.v[l];
      slope.v[l] *= factor;
    }
    store<W>(its.da + c, slope);
  }
  dot = warpSum(dot);
  if (laneNumber() == 0)
    its.dw[choice] = dot;
}

template <class E> pp_status_t scale_rows_bwd(const PreparedOp &op, void *const *a) {
  const int64_t choices = op.dims[0] * op.dims[1], h = op.dims[2];
  const ScaledRows<E> rows = {in<E>(a[0]),  in<E>(a[1]),       in<Acc<E>>(a[2]), in<int32_t>(a[3]),
                              out<E>(a[4]), out<Acc<E>>(a[5]), choices,          h};
  const bool wide = rowsAreWide<E>(h, a[0], a[1], a[4]);
  return launchWarps(op, wide ? scaleRowsBackwardKernel<E, packOf<E>> : scaleRowsBackwardKernel<E, 1>, choices, rows);
}

} // namespace

PP_BODIES(route)
PP_BODIES(choice_counts)
PP_BODIES(route_bwd)
PP_BODIES(expert_load)
PP_BODIES(choice_load)
PP_BODIES(identity_weights)
PP_BODIES(identity_weights_bwd)
PP_BODIES(dispatch)
PP_BODIES(combine)
PP_BODIES(place_weights)
PP_BODIES(take_weights)
PP_BODIES(scale_rows)
PP_BODIES(scale_rows_bwd)
