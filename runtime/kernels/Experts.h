// Loops of mixtures of experts: what a router chooses, and the rows of its choices.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_EXPERTS_H
#define PP_RUNTIME_KERNELS_EXPERTS_H

#include "runtime/kernels/DoubleGemm.h"
#include "runtime/kernels/Element.h"
#include "runtime/kernels/GemmShape.h"
#include <algorithm>
#include <limits>
#include <numeric>

namespace {
using namespace pp;

/// The softmax of a row; returns the log of the sum of its powers.
template <class A> A softmaxRow(const A *logits, A *p, int64_t n) {
  A largest = logits[0], sum = 0;
  for (int64_t i = 1; i < n; ++i)
    largest = logits[i] > largest ? logits[i] : largest;
  for (int64_t i = 0; i < n; ++i) {
    p[i] = exponential(logits[i] - largest);
    sum += p[i];
  }
  for (int64_t i = 0; i < n; ++i)
    p[i] /= sum;
  return largest + logarithm(sum);
}

/// The k largest, of equal ones the lower number first. What is no number loses against every number.
template <class A> void chooseLargest(const A *p, int64_t n, int32_t *sel, int64_t k) {
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; ++i) {
      bool taken = false;
      for (int64_t other = 0; other < j; ++other)
        taken |= sel[other] == i;
      if (!taken && (best < 0 || p[i] > p[best]))
        best = i;
    }
    sel[j] = best;
  }
}

/// Groups of experts, one behind the other: those with the largest sums of their `counted` largest scores, one or two,
/// keep them, and what is in the others is lower than any score.
template <class A> void keepBestGroups(A *scores, int64_t n, int64_t groups, int64_t best, int64_t counted) {
  const int64_t size = n / groups;
  constexpr A dropped = -std::numeric_limits<A>::max();
  auto valueOf = [&](int64_t group) {
    int32_t two[2];
    chooseLargest(scores + group * size, size, two, counted);
    return scores[group * size + two[0]] + (counted > 1 ? scores[group * size + two[1]] : A(0));
  };
  for (int64_t left = groups; left > best; --left) {
    int64_t worst = -1;
    A least = 0;
    for (int64_t group = 0; group < groups; ++group) // of equal ones the last goes
      if (scores[group * size] != dropped)
        if (A value = valueOf(group); worst < 0 || value <= least) {
          worst = group;
          least = value;
        }
    for (int64_t i = 0; worst >= 0 && i < size; ++i)
      scores[worst * size + i] = dropped;
  }
}

/// The scores by which experts are chosen, if they are not p itself.
template <class E> const Acc<E> *scoresOf(const PreparedOp &op, const Acc<E> *p, const E *bias, Acc<E> *scores) {
  const int64_t n = op.dims[1], groups = int64_t(op.params[4]);
  if (!bias && groups == 1)
    return p;
  for (int64_t i = 0; i < n; ++i)
    scores[i] = p[i] + (bias ? Acc<E>(get(bias, i)) : Acc<E>(0));
  if (groups > 1)
    keepBestGroups(scores, n, groups, int64_t(op.params[5]), op.has(Largest) ? 1 : 2);
  return scores;
}

template <class A> A sumOfChosen(const A *p, const int32_t *sel, int64_t k) {
  A sum = 0;
  for (int64_t j = 0; j < k; ++j)
    sum += p[sel[j]];
  return sum;
}

template <class A> A atLeast(A sum, A least) { return sum < least ? least : sum; }

template <class A> A sumOfRow(const A *p, int64_t n) {
  A sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += p[i];
  return sum;
}

/// The choices of the first n experts that have a row: a section takes them until it is full, first choices of all
/// tokens first. The others have place -1. Returns how many there are in all.
inline int64_t acceptChoices(const int32_t *sel, int32_t *places, int32_t *counts, int64_t tokens, int64_t k, int64_t n,
                             int64_t each, int64_t room) {
  int64_t all = 0;
  const bool fitsAll = room >= tokens * (k < each ? k : each);
  for (int64_t j = 0; j < k; ++j)
    for (int64_t i = j; i < tokens * k; i += k) {
      places[i] = -1;
      if (sel[i] < 0 || sel[i] >= n)
        continue;
      int64_t section = sel[i] / each, taken = 0;
      for (int64_t e = section * each; e < (section + 1) * each && !fitsAll; ++e)
        taken += counts[e];
      const bool fits = fitsAll || taken < room;
      counts[sel[i]] += fits;
      places[i] = fits ? 0 : -1;
      all += fits;
    }
  return all;
}

/// Rows ordered by expert, then by token; the experts are in equal sections, each of which has room for so many rows,
/// and takes `limit` of them at most. `counts` are the ends of the experts' rows while places are given. Returns how
/// many choices have a row.
inline int64_t planRows(const int32_t *sel, int32_t *places, int32_t *counts, int64_t tokens, int64_t k, int64_t n,
                        int64_t sections, int64_t room, int64_t limit) {
  const int64_t each = n / sections, choices = tokens * k;
  memset(counts, 0, size_t(n) * sizeof(int32_t));
  const int64_t all = acceptChoices(sel, places, counts, tokens, k, n, each, limit);
  int32_t begin = 0;
  for (int64_t e = 0; e < n; ++e) {
    if (e % each == 0)
      begin = int32_t(e / each * room);
    int32_t count = counts[e];
    counts[e] = begin;
    begin += count;
  }
  for (int64_t i = 0; i < choices; ++i)
    places[i] = places[i] < 0 ? -1 : counts[sel[i]]++;
  for (int64_t e = n - 1; e >= 0; --e)
    counts[e] -= e % each == 0 ? int32_t(e / each * room) : counts[e - 1];
  return all;
}

/// The most choices that a section takes; with a capacity it depends on the number of tokens that are there.
inline int64_t roomOf(const PreparedOp &op, int64_t tokens) {
  const double equal = double(tokens * op.dims[2]) / double(op.dims[4]), most = __builtin_ceil(op.params[3] * equal);
  return op.params[3] > 0 && most < double(op.dims[5]) ? int64_t(most) : op.dims[5];
}

/// The balance of groups of rows, and what the step has of rows of experts and of z: sums over tokens.
template <class A> struct RouterReport {
  RouterSums &sums;
  const PreparedOp &op;
  double *often, *mass;          ///< of the group so far, by expert
  int64_t tokens = 0, inAll = 0; ///< of the group so far, and of all
  int64_t held, wanted = 0;      ///< experts with rows, and how often they were chosen

  RouterReport(const PreparedOp &op, void *sums)
      : sums(*out<RouterSums>(sums)), op(op), often(reinterpret_cast<double *>(op.scratch)), mass(often + op.dims[1]),
        held(op.dims[1] - int64_t(op.params[8])) {}

  void begin(int64_t t) {
    if (t % op.dims[3] == 0) {
      memset(often, 0, size_t(2 * op.dims[1]) * sizeof(double));
      tokens = 0;
    }
  }
  void add(const A *p, const int32_t *sel, A lse) {
    const int64_t n = op.dims[1], k = op.dims[2];
    const double whole = op.has(Sigmoid) ? double(sumOfRow(p, n)) : 1;
    for (int64_t i = 0; i < n; ++i)
      mass[i] += double(p[i]) / whole;
    for (int64_t j = 0; j < k; ++j) {
      often[sel[j]] += 1;
      wanted += sel[j] < held;
    }
    sums.z += op.params[2] * double(lse) * double(lse);
    ++tokens;
    ++inAll;
  }
  void end(int64_t t) {
    if ((t + 1) % op.dims[3] != 0 || tokens == 0)
      return;
    double product = 0;
    for (int64_t i = 0; i < op.dims[1]; ++i)
      product += often[i] * mass[i];
    sums.balance += op.params[1] * double(op.dims[1]) / double(op.dims[2]) / double(tokens) * product;
  }
  void addRows(const int32_t *counts, int64_t rows) const {
    if (inAll == 0)
      return;
    sums.rows += rows;
    sums.dropped += wanted - rows;
    sums.experts += held;
    for (int64_t e = 0; e < held; ++e) {
      sums.fewest = counts[e] < sums.fewest ? counts[e] : sums.fewest;
      sums.most = counts[e] > sums.most ? counts[e] : sums.most;
    }
  }
};

/// Whether a logit is near enough to the largest one, m, to be in its softmax.
template <class A> bool isNear(A r, A m, A jitter) {
  const A size = r < 0 ? -r : r;
  return !((m - r) / (size > m ? size : m) > 2 * jitter);
}

/// Calls `each` with an expert and its part in the softmax of a choice of a sparsemixer, the j-th.
template <class A, class Each>
void mixChoice(const A *r, int64_t n, const int32_t *sel, int64_t j, A jitter, Each each) {
  const A m = r[sel[j]];
  A sum = 0;
  auto isIn = [&](int64_t i) { return !(j == 1 && i == sel[0]) && isNear(r[i], m, jitter); };
  for (int64_t i = 0; i < n; ++i)
    if (isIn(i))
      sum += exponential(r[i] - m);
  for (int64_t i = 0; i < n; ++i)
    if (isIn(i))
      each(i, exponential(r[i] - m) / sum);
}

/// Chooses nothing for row t, which holds no token.
template <class A> void leaveOut(int64_t t, int64_t n, int64_t k, A *w, int32_t *sel, A *p, A *lse) {
  lse[t] = 0;
  for (int64_t i = t * n; i < (t + 1) * n; ++i)
    p[i] = 0;
  for (int64_t j = t * k; j < (t + 1) * k; ++j) {
    w[j] = 0;
    sel[j] = -1;
  }
}

template <class E> pp_status_t route(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *logits = in<A>(arguments[0]);
  const int32_t *rows = in<int32_t>(arguments[2]);
  A *w = out<A>(arguments[3]), *p = out<A>(arguments[5]), *lse = out<A>(arguments[6]);
  int32_t *sel = out<int32_t>(arguments[4]), *places = out<int32_t>(arguments[7]), *counts = out<int32_t>(arguments[8]);
  int64_t tokens = op.dims[0], n = op.dims[1], k = op.dims[2];
  RouterReport<A> report(op, arguments[9]);
  A *scores = reinterpret_cast<A *>(report.mass + n);
  for (int64_t t = 0; t < tokens; report.end(t++)) {
    report.begin(t);
    if (rows && rows[t] < 0) {
      leaveOut(t, n, k, w, sel, p, lse);
      continue;
    }
    if (op.has(Sparsemixer)) {
      lse[t] = 0;
      memcpy(p + t * n, logits + t * n, size_t(n) * sizeof(A));
    } else if (op.has(Sigmoid)) {
      lse[t] = 0;
      for (int64_t i = t * n; i < (t + 1) * n; ++i)
        p[i] = sigmoid(logits[i]);
    } else {
      lse[t] = softmaxRow(logits + t * n, p + t * n, n);
    }
    chooseLargest(scoresOf<E>(op, p + t * n, arguments[1] ? in<E>(arguments[1]) : nullptr, scores), n, sel + t * k, k);
    A factor = A(op.params[0]);
    if (op.has(Renormalise))
      factor /= atLeast(sumOfChosen(p + t * n, sel + t * k, k), A(op.params[6])) + A(op.params[7]);
    for (int64_t j = 0; j < k; ++j)
      w[t * k + j] = factor * p[t * n + sel[t * k + j]];
    for (int64_t j = 0; j < k && op.has(Sparsemixer); ++j)
      mixChoice(p + t * n, n, sel + t * k, j, A(op.params[9]), [&](int64_t i, A part) {
        if (i == sel[t * k + j])
          w[t * k + j] = A(op.params[0]) * part;
      });
    report.add(p + t * n, sel + t * k, lse[t]);
  }
  const int64_t limit = roomOf(op, report.inAll);
  report.addRows(counts, planRows(sel, places, counts, tokens, k, report.held, op.dims[4], op.dims[5], limit));
  return PP_OK;
}

/// dp of one token's chosen experts; that of the others is 0. A sum below `least` has no gradient.
template <class A>
void chosenSlopes(const A *dw, const A *w, const int32_t *sel, const A *p, A *dp, int64_t k, A scale, bool renormalises,
                  A least, A added) {
  A dot = 0, sum = 1;
  if (renormalises) {
    sum = sumOfChosen(p, sel, k);
    for (int64_t j = 0; j < k && sum >= least; ++j)
      dot += dw[j] * w[j];
    sum = atLeast(sum, least) + added;
  }
  for (int64_t j = 0; j < k; ++j)
    dp[sel[j]] += (scale * dw[j] - dot) / sum;
}

/// Of one token: from dp = that of w + the balance's `often`, to that of the logits. The balance is of p over its sum.
template <class A> void sigmoidSlopes(const A *p, A *dp, A *balance, int64_t n) {
  A sum = sumOfRow(p, n), dot = 0;
  for (int64_t i = 0; i < n; ++i)
    dot += balance[i] * p[i];
  for (int64_t i = 0; i < n; ++i)
    dp[i] = (dp[i] + (balance[i] - dot / sum) / sum) * p[i] * (1 - p[i]);
}

/// Loads of n experts, of which a token chooses k: `often(e)` says how many choices expert e has.
template <class A> void putLoads(const PreparedOp &op, A *load, int64_t n, int64_t k, int64_t all, auto often) {
  for (int64_t e = 0, unit = std::gcd(n, k); e < n; ++e) {
    const auto its = A((n * often(e) - all) / unit);
    load[e] = op.has(Accumulate) ? load[e] + its : its;
  }
}

template <class E> pp_status_t expert_load(const PreparedOp &op, void *const *arguments) {
  const int32_t *counts = in<int32_t>(arguments[0]);
  const int64_t n = op.dims[0], all = std::accumulate(counts, counts + n, int64_t(0));
  putLoads(op, out<Acc<E>>(arguments[1]), n, op.dims[1], all, [&](int64_t e) { return int64_t(counts[e]); });
  return PP_OK;
}

/// Counts how often the rows of a group chose each expert.
template <class A> void countChoices(const int32_t *sel, A *often, int64_t choices, int64_t n) {
  memset(often, 0, size_t(n) * sizeof(A));
  for (int64_t i = 0; i < choices; ++i)
    if (sel[i] >= 0)
      often[sel[i]] += A(1);
}

template <class E> pp_status_t choice_load(const PreparedOp &op, void *const *arguments) {
  const int64_t n = op.dims[1], k = op.dims[2];
  const int32_t *sel = in<int32_t>(arguments[0]), *end = sel + op.dims[0] * k;
  const int64_t all = std::count_if(sel, end, [](int32_t expert) { return expert >= 0; });
  putLoads(op, out<Acc<E>>(arguments[1]), n, k, all, [&](int64_t e) { return std::count(sel, end, int32_t(e)); });
  return PP_OK;
}

template <class E> pp_status_t identity_weights(const PreparedOp &op, void *const *arguments) {
  const int64_t k = op.dims[1];
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    Acc<E> sum = 0;
    for (int64_t i = t * k; i < (t + 1) * k; ++i)
      sum += in<int32_t>(arguments[1])[i] >= op.dims[2] ? Acc<E>(get(in<E>(arguments[0]), i)) : Acc<E>(0);
    put(out<E>(arguments[2]), t, sum);
  }
  return PP_OK;
}
template <class E> pp_status_t identity_weights_bwd(const PreparedOp &op, void *const *arguments) {
  const int64_t k = op.dims[1];
  for (int64_t i = 0; i < op.dims[0] * k; ++i)
    out<E>(arguments[2])[i] = in<int32_t>(arguments[1])[i] >= op.dims[2] ? in<E>(arguments[0])[i / k] : E(0);
  return PP_OK;
}

template <class E> pp_status_t choice_counts(const PreparedOp &op, void *const *arguments) {
  const int64_t n = op.dims[1], choices = op.dims[2] * op.dims[3];
  for (int64_t group = 0; group < op.dims[0] / op.dims[3]; ++group)
    countChoices(in<int32_t>(arguments[0]) + group * choices, out<Acc<E>>(arguments[1]) + group * n, choices, n);
  return PP_OK;
}

/// The balance of a token of the group whose experts were chosen so often is this times the sum of often p.
template <class A> double balanceOf(const PreparedOp &op, const A *often) {
  const double choices = double(sumOfRow(often, op.dims[1])); // k of each token
  return choices > 0 ? op.params[1] * double(op.dims[1]) / choices : 0;
}

/// This device's share of the balance of groups whose choices others have counted, too.
template <class A> double shareOfBalance(const PreparedOp &op, const int32_t *sel, const A *p, const A *often) {
  const int64_t n = op.dims[1];
  double sum = 0;
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    if (sel[t * op.dims[2]] < 0)
      continue;
    const A *row = p + t * n, *counts = often + t / op.dims[3] * n;
    double dot = 0;
    for (int64_t i = 0; i < n; ++i)
      dot += double(counts[i]) * double(row[i]);
    sum += balanceOf(op, counts) * (op.has(Sigmoid) ? dot / double(sumOfRow(row, n)) : dot);
  }
  return sum;
}

template <class E> pp_status_t route_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *dw = in<A>(arguments[0]), *w = in<A>(arguments[1]), *p = in<A>(arguments[3]), *lse = in<A>(arguments[4]);
  const int32_t *sel = in<int32_t>(arguments[2]);
  A *dlogits = out<A>(arguments[6]), *own = reinterpret_cast<A *>(op.scratch), *pull = own + op.dims[1];
  const A *given = in<A>(arguments[5]), *often = own;
  int64_t tokens = op.dims[0], n = op.dims[1], k = op.dims[2], group = op.dims[3];
  const auto *scalars = in<OptimizerScalars>(arguments[7]);
  const double perToken = scalars->lossScale * scalars->perToken;
  A scale = A(op.params[0]), balance = 0, z = A(2 * op.params[2] * perToken);
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t *chosen = sel + t * k;
    const A *row = p + t * n;
    A *dp = dlogits + t * n;
    if (given)
      often = given + t / group * n;
    else if (t % group == 0)
      countChoices(chosen, own, group * k, n);
    if (t % group == 0)
      balance = A(balanceOf(op, often) * perToken);
    if (*chosen < 0) {
      memset(dp, 0, size_t(n) * sizeof(A));
      continue;
    }
    if (op.has(Sparsemixer)) {
      memset(dp, 0, size_t(n) * sizeof(A));
      for (int64_t j = 0; j < k; ++j) {
        const A slope = dw[t * k + j] * w[t * k + j];
        mixChoice(row, n, chosen, j, A(op.params[5]),
                  [&](int64_t i, A part) { dp[i] += slope * (A(i == chosen[j]) - part); });
      }
      continue;
    }
    for (int64_t i = 0; i < n; ++i)
      dp[i] = op.has(Sigmoid) ? A(0) : balance * often[i];
    chosenSlopes(dw + t * k, w + t * k, chosen, row, dp, k, scale, op.has(Renormalise), A(op.params[3]),
                 A(op.params[4]));
    if (op.has(Sigmoid)) {
      for (int64_t i = 0; i < n; ++i)
        pull[i] = balance * often[i];
      sigmoidSlopes(row, dp, pull, n);
      continue;
    }
    A dot = 0, more = lse ? z * lse[t] : A(0);
    for (int64_t i = 0; i < n; ++i)
      dot += dp[i] * row[i];
    for (int64_t i = 0; i < n; ++i)
      dp[i] = row[i] * (dp[i] - dot + more);
  }
  if (given)
    out<RouterSums>(arguments[8])->balance += shareOfBalance(op, sel, p, given);
  return PP_OK;
}

template <class E> pp_status_t dispatch(const PreparedOp &op, void *const *arguments) {
  const int32_t *places = in<int32_t>(arguments[1]);
  int64_t k = op.dims[1], h = op.dims[2];
  for (int64_t i = 0; i < op.dims[0] * k; ++i)
    if (places[i] >= 0)
      memcpy(out<E>(arguments[2]) + places[i] * h, in<E>(arguments[0]) + i / k * h, size_t(h) * sizeof(E));
  return PP_OK;
}

/// Adds in the type of sums, and rounds once.
template <class E> pp_status_t combine(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *rows = in<E>(arguments[0]);
  const int32_t *places = in<int32_t>(arguments[1]);
  int64_t k = op.dims[1], h = op.dims[2];
  for (int64_t t = 0; t < op.dims[0]; ++t, places += k) {
    E *y = out<E>(arguments[2]) + t * h;
    constexpr int64_t run = 256;
    A sums[run];
    for (int64_t from = 0; from < h; from += run) {
      int64_t count = h - from < run ? h - from : run;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        sums[i] = op.has(Accumulate) ? A(get(y, from + i)) : A(0);
      for (int64_t j = 0; j < k; ++j) {
        if (places[j] < 0)
          continue;
        const E *row = rows + places[j] * h + from;
#pragma omp simd
        for (int64_t i = 0; i < count; ++i)
          sums[i] += get(row, i);
      }
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        put(y, from + i, sums[i]);
    }
  }
  return PP_OK;
}

/// The weight of each row, 0 of rows that no choice has.
template <class E> pp_status_t place_weights(const PreparedOp &op, void *const *arguments) {
  E *rows = out<E>(arguments[2]);
  memset(rows, 0, size_t(op.dims[2]) * sizeof(E));
  for (int64_t i = 0; i < op.dims[0] * op.dims[1]; ++i)
    if (in<int32_t>(arguments[1])[i] >= 0)
      rows[in<int32_t>(arguments[1])[i]] = in<E>(arguments[0])[i];
  return PP_OK;
}

template <class E> pp_status_t take_weights(const PreparedOp &op, void *const *arguments) {
  for (int64_t i = 0; i < op.dims[0] * op.dims[1]; ++i)
    out<E>(arguments[2])[i] =
        in<int32_t>(arguments[1])[i] < 0 ? E(0) : in<E>(arguments[0])[in<int32_t>(arguments[1])[i]];
  return PP_OK;
}

template <class E> pp_status_t expert_bias(const PreparedOp &op, void *const *arguments) {
  const int64_t h = op.dims[1];
  forExpertRows(
      op, in<int32_t>(arguments[2]),
      [&](ExpertRows its) {
        const E *bias = in<E>(arguments[1]) + its.expert * h;
        for (int64_t row = its.begin; row < its.begin + its.rows; ++row) {
          const E *x = in<E>(arguments[0]) + row * h;
          E *y = out<E>(arguments[3]) + row * h;
#pragma omp simd
          for (int64_t c = 0; c < h; ++c)
            put(y, c, get(x, c) + get(bias, c));
        }
      },
      2);
  return PP_OK;
}

template <class E> pp_status_t expert_bias_dw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const int64_t h = op.dims[1];
  forExpertRows(
      op, in<int32_t>(arguments[1]),
      [&](ExpertRows its) {
        A *sum = out<A>(arguments[2]) + its.expert * h;
        if (its.isFirst && !op.has(Accumulate))
          memset(sum, 0, size_t(h) * sizeof(A));
        for (int64_t row = its.begin; row < its.begin + its.rows; ++row) {
          const E *dy = in<E>(arguments[0]) + row * h;
#pragma omp simd
          for (int64_t c = 0; c < h; ++c)
            sum[c] += get(dy, c);
        }
      },
      2);
  return PP_OK;
}

template <class E> pp_status_t scale_rows(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *w = in<A>(arguments[1]);
  const int32_t *places = in<int32_t>(arguments[2]);
  int64_t h = op.dims[2];
  for (int64_t i = 0; i < op.dims[0] * op.dims[1]; ++i) {
    const int64_t row = places ? places[i] : i;
    if (row < 0)
      continue;
    const E *a = in<E>(arguments[0]) + row * h;
    E *y = out<E>(arguments[3]) + row * h;
    A factor = w[i];
#pragma omp simd
    for (int64_t c = 0; c < h; ++c)
      put(y, c, factor * get(a, c));
  }
  return PP_OK;
}

template <class E> pp_status_t scale_rows_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const A *w = in<A>(arguments[2]);
  const int32_t *places = in<int32_t>(arguments[3]);
  A *dw = out<A>(arguments[5]);
  int64_t h = op.dims[2];
  for (int64_t i = 0; i < op.dims[0] * op.dims[1]; ++i) {
    const int64_t row = places ? places[i] : i;
    if (row < 0) {
      dw[i] = 0;
      continue;
    }
    const E *dy = in<E>(arguments[0]) + row * h, *a = in<E>(arguments[1]) + row * h;
    E *da = out<E>(arguments[4]) + row * h;
    A factor = w[i], dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < h; ++c) {
      A slope = get(dy, c);
      dot += slope * get(a, c);
      put(da, c, factor * slope);
    }
    dw[i] = dot;
  }
  return PP_OK;
}

// --- Products in f64 ---

pp_status_t doubleRouter(const PreparedOp &op, void *const *arguments) {
  int64_t tokens = op.dims[0], h = op.dims[1], n = op.dims[2];
  doubleGemm({tokens, n, h, in<double>(arguments[0]), h, 1, in<double>(arguments[1]), n, 1, out<double>(arguments[2])},
             false, op.scratch);
  return PP_OK;
}

pp_status_t doubleRouterDx(const PreparedOp &op, void *const *arguments) {
  int64_t tokens = op.dims[0], h = op.dims[1], n = op.dims[2];
  doubleGemm({tokens, h, n, in<double>(arguments[0]), n, 1, in<double>(arguments[1]), 1, n, out<double>(arguments[2])},
             op.has(Accumulate), op.scratch);
  return PP_OK;
}

pp_status_t doubleRouterDw(const PreparedOp &op, void *const *arguments) {
  int64_t tokens = op.dims[0], h = op.dims[1], n = op.dims[2];
  doubleGemm({h, n, tokens, in<double>(arguments[0]), 1, h, in<double>(arguments[1]), n, 1, out<double>(arguments[2])},
             op.has(Accumulate), op.scratch);
  return PP_OK;
}

pp_status_t doubleExpertLinear(const PreparedOp &op, void *const *arguments) {
  const int64_t k = op.dims[1], n = op.dims[2];
  forExpertRows(op, in<int32_t>(arguments[2]), [&](ExpertRows its) {
    doubleGemm({its.rows, n, k, in<double>(arguments[0]) + its.begin * k, k, 1,
                in<double>(arguments[1]) + its.expert * k * n, n, 1, out<double>(arguments[3]) + its.begin * n},
               false, op.scratch);
  });
  return PP_OK;
}

pp_status_t doubleExpertLinearDx(const PreparedOp &op, void *const *arguments) {
  const int64_t k = op.dims[1], n = op.dims[2];
  forExpertRows(op, in<int32_t>(arguments[2]), [&](ExpertRows its) {
    doubleGemm({its.rows, k, n, in<double>(arguments[0]) + its.begin * n, n, 1,
                in<double>(arguments[1]) + its.expert * k * n, 1, n, out<double>(arguments[3]) + its.begin * k},
               op.has(Accumulate), op.scratch);
  });
  return PP_OK;
}

pp_status_t doubleExpertLinearDw(const PreparedOp &op, void *const *arguments) {
  const int64_t k = op.dims[1], n = op.dims[2];
  forExpertRows(op, in<int32_t>(arguments[2]), [&](ExpertRows its) {
    double *dw = out<double>(arguments[3]) + its.expert * k * n;
    if (its.isFirst && !op.has(Accumulate))
      memset(dw, 0, size_t(k * n) * sizeof(double));
    doubleGemm({k, n, its.rows, in<double>(arguments[0]) + its.begin * k, 1, k,
                in<double>(arguments[1]) + its.begin * n, n, 1, dw},
               true, op.scratch);
  });
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_EXPERTS_H
