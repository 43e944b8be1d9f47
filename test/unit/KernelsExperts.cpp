// Routers and the rows of experts against references in f64: ties, experts without rows, segments of many, all chosen.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Kernels.h"
#include <algorithm>
#include <array>
#include <numeric>

using namespace pp;
using namespace pp::test;

namespace {

using Numbers = std::vector<int32_t>;

/// Integers that a kernel writes.
struct Integers {
  std::vector<int32_t, DeviceAllocator<int32_t>> values;
  explicit Integers(size_t n) : values(n, -1) {}
  int32_t *data() { return values.data(); }
  [[nodiscard]] Numbers get() const { return {values.begin(), values.end()}; }
};

struct RouterCase {
  int64_t tokens, experts, top;
  bool renormalises, sigmoid;
  double scale, balance, z;
  int64_t group, groups, best;
  bool hasBias, byLargest = false;
  double least = 0, added = 0;
  int64_t identity = 0; ///< so many of the experts have no rows
  double jitter = -1;   ///< of a sparsemixer; negative: another router
  [[nodiscard]] int64_t held() const { return experts - identity; }
  [[nodiscard]] bool mixes() const { return jitter >= 0; }
};

const RouterCase routers[] = {
    {12, 5, 2, true, false, 1, 0.7, 0.05, 6, 1, 1, false},
    {12, 5, 5, false, false, 0.5, 0.7, 0, 12, 1, 1, false},
    {10, 4, 1, true, false, 2, 0, 0.3, 5, 1, 1, true},
    {12, 6, 3, false, true, 2.5, 0.7, 0, 4, 3, 2, true},
    {12, 8, 2, true, true, 1, 0.7, 0, 12, 1, 1, true},
    {12, 8, 4, true, true, 1, 0, 0, 6, 2, 1, false},
    {12, 6, 2, true, false, 1, 0.4, 0.05, 6, 3, 2, false},
    {12, 6, 3, false, false, 1.5, 0.4, 0, 6, 3, 2, false, true},
    {12, 8, 2, true, false, 1, 0, 0, 12, 8, 3, true, true}, // groups of one expert
    {12, 8, 2, true, false, 2, 0.4, 0.05, 6, 1, 1, true, false, 0.3},
    {12, 8, 4, true, true, 1, 0, 0, 6, 2, 1, false, true, 2},
    {12, 8, 3, true, true, 1.5, 0.7, 0, 6, 1, 1, true, false, 0, 0.25},
    {12, 6, 2, true, false, 1, 0.4, 0.05, 6, 1, 1, false, false, 0.4, 0.2},
    // More experts than a warp has lanes, more choices than a block has threads.
    {60, 40, 5, true, false, 1.5, 0.4, 0.05, 20, 1, 1, true},
    {60, 40, 5, true, true, 1, 0.7, 0, 30, 5, 2, true},
    {12, 80, 5, true, false, 1, 0, 0, 6, 40, 4, false, true, 0.1},
    // Experts without rows, of which a token may choose more than there are others.
    {12, 9, 4, false, false, 2.5, 0.7, 0, 12, 1, 1, true, false, 0, 0, 3},
    {60, 40, 5, true, true, 1, 0, 0, 20, 1, 1, true, false, 0, 0, 16},
    {12, 6, 5, false, false, 1, 0, 0.05, 6, 1, 1, false, false, 0, 0, 4},
    // Two choices, each with a softmax of the logits near its own: of all, of some, of equal ones.
    {12, 6, 2, false, false, 1, 0, 0, 6, 1, 1, false, false, 0, 0, 0, 10},
    {12, 8, 2, false, false, 1.5, 0, 0, 12, 1, 1, false, false, 0, 0, 0, 0.5155},
    {60, 40, 2, false, false, 1, 0, 0, 20, 1, 1, false, false, 0, 0, 0, 0.5155},
    {12, 2, 2, false, false, 1, 0, 0, 12, 1, 1, false, false, 0, 0, 0, 0},
};

/// The results of route, computed by sorting.
struct Routed {
  Values w, p, lse;
  Numbers sel, places, counts;
};

Values scoresOfToken(const RouterCase &its, const double *logits, double &lse) {
  if (its.mixes())
    return lse = 0, Values(logits, logits + its.experts);
  Values p(its.experts);
  double sum = 0;
  for (int64_t i = 0; i < its.experts; ++i)
    sum += std::exp(logits[i]);
  for (int64_t i = 0; i < its.experts; ++i)
    p[i] = its.sigmoid ? 1 / (1 + std::exp(-logits[i])) : std::exp(logits[i]) / sum;
  lse = its.sigmoid ? 0 : std::log(sum);
  return p;
}

/// The first of `values` by size, of equal ones the lower number first.
Numbers largest(const Values &values, int64_t count) {
  Numbers order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

Numbers choose(const RouterCase &its, Values scores, const Values &bias) {
  for (int64_t i = 0; i < its.experts && its.hasBias; ++i)
    scores[i] += bias[i];
  const int64_t size = its.experts / its.groups;
  Values groups;
  for (auto group = scores.begin(); its.groups > 1 && group != scores.end(); group += size) {
    Values sorted(group, group + size);
    std::sort(sorted.rbegin(), sorted.rend());
    groups.push_back(sorted[0] + (its.byLargest ? 0 : sorted[1]));
  }
  const Numbers kept = largest(groups, its.groups > 1 ? its.best : 0);
  for (int64_t i = 0; i < its.experts && its.groups > 1; ++i)
    if (std::find(kept.begin(), kept.end(), i / size) == kept.end())
      scores[i] = -1e30;
  return largest(scores, its.top);
}

/// The weight of a token's j-th choice by a sparsemixer: what is far from it is not in its softmax.
double mixed(const RouterCase &its, const Values &logits, const Numbers &sel, int64_t j) {
  const double most = logits[sel[j]];
  double sum = 0;
  for (int64_t i = 0; i < its.experts; ++i) {
    const double farness = (most - logits[i]) / std::max(std::fabs(logits[i]), most);
    if (!(farness > 2 * its.jitter) && !(j == 1 && i == sel[0]))
      sum += std::exp(logits[i]);
  }
  return its.scale * std::exp(most) / sum;
}

/// Rows without a token have chosen -1, or a negative number in `rows`.
Routed routed(const RouterCase &its, const Values &logits, const Values &bias, const Numbers *chosen = nullptr,
              const Numbers &rows = {}) {
  Routed made;
  made.counts.assign(its.experts, 0);
  for (int64_t t = 0; t < its.tokens; ++t) {
    double lse = 0;
    Values p = scoresOfToken(its, &logits[t * its.experts], lse);
    if (chosen ? (*chosen)[t * its.top] < 0 : !rows.empty() && rows[t] < 0) {
      made.p.insert(made.p.end(), its.experts, 0);
      made.w.insert(made.w.end(), its.top, 0);
      made.sel.insert(made.sel.end(), its.top, -1);
      made.lse.push_back(0);
      continue;
    }
    Numbers sel =
        chosen ? Numbers(chosen->begin() + t * its.top, chosen->begin() + (t + 1) * its.top) : choose(its, p, bias);
    double sum = 0;
    for (int32_t e : sel)
      sum += p[e], ++made.counts[e];
    for (int64_t j = 0; j < its.top; ++j)
      made.w.push_back(its.mixes()
                           ? mixed(its, p, sel, j)
                           : its.scale * p[sel[j]] / (its.renormalises ? std::max(sum, its.least) + its.added : 1));
    made.p.insert(made.p.end(), p.begin(), p.end());
    made.lse.push_back(lse);
    made.sel.insert(made.sel.end(), sel.begin(), sel.end());
  }
  Numbers order(made.sel.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return made.sel[a] < made.sel[b]; });
  made.places.assign(made.sel.size(), -1);
  int32_t next = 0;
  for (int32_t choice : order)
    if (made.sel[choice] >= 0)
      made.places[choice] = next++;
  return made;
}

/// The two losses of a router, by their definitions, times the tokens: each group's balance counts by its tokens.
/// `chosen` says how often, which has no gradient.
double lossesOf(const RouterCase &its, const Values &logits, const Numbers &chosen) {
  Values bias(its.experts, 0);
  Routed made = routed(its, logits, bias, &chosen);
  double balance = 0, z = 0;
  for (int64_t first = 0; first < its.tokens; first += its.group) {
    double tokens = 0;
    for (int64_t t = first; t < first + its.group; ++t)
      tokens += chosen[t * its.top] >= 0;
    for (int64_t e = 0; e < its.experts && tokens > 0; ++e) {
      double often = 0, mean = 0;
      for (int64_t t = first; t < first + its.group; ++t) {
        const double *p = &made.p[t * its.experts], whole = std::accumulate(p, p + its.experts, 0.0);
        mean += whole > 0 ? p[e] / (its.sigmoid ? whole : 1) / tokens : 0;
        for (int64_t j = 0; j < its.top; ++j)
          often += chosen[t * its.top + j] == e;
      }
      balance += tokens * often / tokens * mean;
    }
  }
  for (double lse : made.lse)
    z += lse * lse;
  return its.balance * double(its.experts) / double(its.top) * balance + its.z * z;
}

/// All are there; none in the middle and at the end; the first two groups have none.
Numbers rowsOf(const RouterCase &its, int kind) {
  Numbers rows(its.tokens, 3);
  for (int64_t t = 0; t < its.tokens; ++t)
    if (kind == 1 ? t % 5 == 2 || t + 2 >= its.tokens : t < 2 * its.group)
      rows[t] = -1;
  return kind == 0 ? Numbers() : rows;
}

std::vector<std::string> flagsOf(const RouterCase &its, bool isForward = false) {
  std::vector<std::string> flags;
  if (its.renormalises)
    flags.emplace_back("renormalise");
  if (its.sigmoid)
    flags.emplace_back("sigmoid");
  if (its.byLargest && isForward)
    flags.emplace_back("largest");
  if (its.mixes())
    flags.emplace_back("sparsemixer");
  return flags;
}

/// The rows of each expert, one behind the other.
const Numbers segments[] = {{3, 0, 5}, {600, 7, 0, 1}, {0, 0, 4}, {1, 1}};

size_t total(const Numbers &counts) { return size_t(std::accumulate(counts.begin(), counts.end(), 0)); }

/// Sums of products, expert by expert: c[i, j] of rows, or [e, i, j] of all rows of e.
Values products(const Numbers &counts, const Values &a, const Values &b, int64_t in, int64_t out, char what) {
  Values c(what == 'w' ? counts.size() * in * out : total(counts) * (what == 'y' ? out : in), 0);
  size_t row = 0;
  for (size_t e = 0; e < counts.size(); ++e)
    for (int32_t end = counts[e]; end > 0; --end, ++row)
      for (int64_t i = 0; i < in; ++i)
        for (int64_t j = 0; j < out; ++j)
          if (size_t at = (e * in + i) * out + j; what == 'y') // x w
            c[row * out + j] += a[row * in + i] * b[at];
          else if (what == 'x') // dy w^T
            c[row * in + i] += a[row * out + j] * b[at];
          else // x^T dy
            c[at] += a[row * in + i] * b[row * out + j];
  return c;
}

/// Adds the earlier values, as kernels with "accumulate" do.
void addIf(bool adds, Values &to, const Values &before) {
  for (size_t i = 0; i < to.size() && adds; ++i)
    to[i] += before[i];
}

/// Longer sums have more roundings.
double productTolerance(Type type) { return isHalf(type) ? toleranceOf(type) : 4 * toleranceOf(type); }

/// Keeps the choices for which sections of so many experts have room, first choices of all tokens first; their rows are
/// ordered by section, expert and token.
void limitRows(const RouterCase &its, Routed &made, int64_t each, int64_t room, int64_t limit) {
  std::vector<std::array<int64_t, 3>> rows; // expert, token, choice
  Numbers taken(its.held() / each, 0);
  for (int64_t j = 0; j < its.top; ++j)
    for (int64_t t = 0; t < its.tokens; ++t)
      if (int32_t e = made.sel[t * its.top + j]; e >= 0 && e < its.held() && taken[e / each]++ < limit)
        rows.push_back({e, t, j});
  std::sort(rows.begin(), rows.end());
  made.places.assign(made.sel.size(), -1);
  made.counts.assign(its.held(), 0);
  int64_t inSection = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    auto [e, t, j] = rows[i];
    inSection = i > 0 && rows[i - 1][0] / each == e / each ? inSection + 1 : 0;
    made.places[t * its.top + j] = int32_t(e / each * room + inSection);
    ++made.counts[e];
  }
}

/// Scores are multiples of 1/4, so that many are equal: of equal ones the lower expert is chosen. With several sections
/// the rows are those of one section, but each section begins behind the room for all rows that could come to the
/// sections before it. `full`: a section has room for the rows that come to it if all experts are chosen equally often;
/// further choices get no row. Rows without a token, as `rowsOf` says, take no room and make none.
void checkRoute(Type type, const RouterCase &its, int64_t sections, bool full, int kind) {
  const Numbers rows = rowsOf(its, kind);
  const auto tokens = its.tokens - int64_t(std::count(rows.begin(), rows.end(), -1));
  const int64_t each = its.held() / sections, most = its.tokens * std::min(its.top, each);
  auto equal = [&](int64_t count) { return std::min(most, (count * its.top + sections - 1) / sections); };
  const int64_t room = full ? equal(its.tokens) : most;
  std::vector<double> params = {its.scale, its.balance, its.z, full ? 1.0 : 0.0};
  const bool hasMore = its.identity > 0 || its.mixes();
  if (its.groups > 1 || its.least > 0 || its.added > 0 || hasMore)
    params.insert(params.end(), {double(its.groups), double(its.best)});
  if (its.least > 0 || its.added > 0 || hasMore)
    params.push_back(its.least);
  if (its.added > 0 || hasMore)
    params.push_back(its.added);
  if (hasMore)
    params.push_back(double(its.identity));
  if (its.mixes())
    params.push_back(its.jitter);
  OneOp op("route", type, {its.tokens, its.experts, its.top, its.group, sections, room}, params, flagsOf(its, true));
  Values logits = random(its.tokens * its.experts, 1), bias(its.experts);
  for (double &value : logits)
    value = std::round(value * 4) / 4;
  for (size_t i = 0; i < bias.size(); ++i)
    bias[i] = i % 3 ? 0.125 : -0.25;
  Routed expected = routed(its, logits, bias, nullptr, rows);
  limitRows(its, expected, each, room, full ? equal(tokens) : room);
  const size_t choices = its.tokens * its.top;
  Array w(type, choices), p(type, logits.size()), lse(type, its.tokens), biases(type, bias);
  Integers sel(choices), places(choices), counted(its.held()), there(rows.size());
  std::copy(rows.begin(), rows.end(), there.values.begin());
  op(pp_route, Array(type, logits), its.hasBias ? biases.data() : nullptr, kind ? there.data() : nullptr, w, sel.data(),
     p, lse, places.data(), counted.data());
  const Numbers counts = counted.get();
  EXPECT_EQ(sel.get(), expected.sel);
  EXPECT_EQ(places.get(), expected.places);
  EXPECT_EQ(counts, expected.counts);
  expectNear(w.get(), expected.w, toleranceOf(type), "w");
  expectNear(p.get(), expected.p, toleranceOf(type), "p");
  expectNear(lse.get(), expected.lse, toleranceOf(type), "lse");
  const RouterSums &sums = op.rank.routed;
  EXPECT_NEAR(sums.balance + sums.z, lossesOf(its, logits, expected.sel), 1e-5 * double(its.tokens));
  const auto taken = int64_t(std::accumulate(counts.begin(), counts.end(), 0));
  EXPECT_EQ(sums.rows, taken);
  const int64_t selves = std::count_if(expected.sel.begin(), expected.sel.end(),
                                       [&](int32_t e) { return e >= its.held(); }); // that want no row
  EXPECT_EQ(sums.dropped, tokens * its.top - selves - taken);
  EXPECT_TRUE(full || sums.dropped == 0);
  if (tokens == 0) {
    EXPECT_EQ(sums.experts, 0);
    EXPECT_EQ(sums.fewest, INT64_MAX);
    return;
  }
  EXPECT_EQ(sums.experts, its.held());
  EXPECT_EQ(sums.fewest, *std::min_element(counts.begin(), counts.end()));
  EXPECT_EQ(sums.most, *std::max_element(counts.begin(), counts.end()));
}

} // namespace

TEST(KernelsExperts, Route) {
  for (Type type : {Type::F32, Type::F64})
    for (const RouterCase &its : routers)
      for (int64_t sections = 1; sections <= its.held(); ++sections)
        if (its.held() % sections == 0)
          for (bool full : {false, true})
            for (int kind : {0, 1, 2})
              if (!full || its.identity == 0) // with a capacity all experts have rows
                checkRoute(type, its, sections, full, kind);
}

/// The bias chooses, but is not in the weights; two calls give the same bits.
TEST(KernelsExperts, BiasOf16Bits) {
  for (Type type : halfTypes) {
    OneOp op("route", type, {1, 4, 2, 1, 1, 2}, {1, 0, 0, 0}, {"sigmoid"});
    Array logits(Type::F32, Values{2, 1, 0, -1}), bias(type, Values{0, 0, 0, 8}), w(Type::F32, 2), p(Type::F32, 4),
        lse(Type::F32, 1);
    Integers sel(2), places(2), counts(4);
    op(pp_route, logits, bias, nullptr, w, sel.data(), p, lse, places.data(), counts.data());
    EXPECT_EQ(sel.get(), (Numbers{3, 0}));
    expectNear(w.get(), {1 / (1 + std::exp(1.0)), 1 / (1 + std::exp(-2.0))}, 1e-6, "w");
    const Values first = w.get();
    op(pp_route, logits, bias, nullptr, w, sel.data(), p, lse, places.data(), counts.data());
    expectEqual(w.get(), first, "again");
  }
}

/// Checks the gradients by finite differences of the weights and of both losses, with a loss scale. The choices stay
/// fixed. Rows without a token have no gradient.
void checkRouteBackward(Type type, const RouterCase &its, int kind) {
  const double lossScale = 4, perToken = 0.125;
  OneOp op("route_bwd", type, {its.tokens, its.experts, its.top, its.group},
           {its.scale, its.balance, its.z, its.least, its.added, std::max(its.jitter, 0.0)}, flagsOf(its));
  op.rank.optimizer.lossScale = lossScale;
  op.rank.optimizer.perToken = perToken;
  Values logits = rounded(type, random(its.tokens * its.experts, 3)), bias(its.experts, 0.1);
  for (double &logit :
       logits) // far from the bounds of a mixer, which have no gradient, so that no difference meets one
    logit = its.jitter > 0 ? std::round(logit * 4) / 4 : logit;
  Routed made = routed(its, logits, bias, nullptr, rowsOf(its, kind));
  Values dw = rounded(type, random(made.w.size(), 4));
  auto whole = [&](const Values &at) {
    Values y = routed(its, at, bias, &made.sel).w;
    double sum = lossScale * perToken * lossesOf(its, at, made.sel);
    for (size_t i = 0; i < y.size(); ++i)
      sum += dw[i] * y[i];
    return Values{sum};
  };
  Array lse(type, made.lse), dlogits(type, logits.size());
  op(pp_route_bwd, Array(type, dw), Array(type, made.w), made.sel, Array(type, made.p),
     its.z != 0 ? lse.data() : nullptr, nullptr, dlogits);
  expectNear(dlogits.get(), finiteDifferences(whole, logits, {1}), type == Type::F64 ? 1e-9 : 1e-4, "dlogits");
  for (int64_t i = 0; i < its.tokens * its.experts; ++i)
    EXPECT_TRUE(made.sel[i / its.experts * its.top] >= 0 || dlogits.get()[i] == 0);
  EXPECT_EQ(op.rank.routed.balance, 0); // route has reported it
}

TEST(KernelsExperts, RouteBackward) {
  for (Type type : {Type::F32, Type::F64})
    for (const RouterCase &its : routers)
      for (int kind : {0, 1, 2})
        if (its.tokens <= 12 || (kind == 1 && type == Type::F64)) // differences of many logits take long
          checkRouteBackward(type, its, kind);
}

/// Two devices with half of each group have, with the counts of both, the gradients and the balance of one with all.
TEST(KernelsExperts, SharedBalance) {
  for (Type type : {Type::F32, Type::F64})
    for (const RouterCase &its : routers) {
      if (its.group % 2 || its.mixes()) // which have no balance
        continue;
      const int64_t half = its.group / 2, n = its.experts, k = its.top, groups = its.tokens / its.group;
      const double tolerance = type == Type::F64 ? 1e-14 : 1e-6, balance = 0.7, z = 0.2;
      Values logits = rounded(type, random(its.tokens * n, 3)), bias(n, 0.1),
             dw = rounded(type, random(its.tokens * k, 4));
      Routed made = routed(its, logits, bias, nullptr, rowsOf(its, 1));
      auto run = [&](int64_t first, int64_t length, const Array *often, Values &out) {
        // The tokens `first` to `first` + `length` of every group.
        auto part = [&](const auto &all, int64_t width) {
          std::decay_t<decltype(all)> own;
          for (int64_t g = 0; g < groups; ++g)
            own.insert(own.end(), all.begin() + (g * its.group + first) * width,
                       all.begin() + (g * its.group + first + length) * width);
          return own;
        };
        OneOp op("route_bwd", type, {groups * length, n, k, length}, {its.scale, balance, z}, flagsOf(its));
        Array dlogits(type, groups * length * n), lse(type, part(made.lse, 1));
        op(pp_route_bwd, Array(type, part(dw, k)), Array(type, part(made.w, k)), part(made.sel, k),
           Array(type, part(made.p, n)), lse, often ? often->data() : nullptr, dlogits);
        out = dlogits.get();
        return op.rank.routed.balance;
      };
      Values counts(groups * n, 0), whole, parts[2];
      for (int64_t i = 0; i < its.tokens * k; ++i)
        if (made.sel[i] >= 0)
          counts[i / (its.group * k) * n + made.sel[i]] += 1;
      Array often(type, groups * n);
      OneOp("choice_counts", type, {its.tokens, n, k, its.group})(pp_choice_counts, made.sel, often);
      expectEqual(often.get(), counts, "counts");
      double all = run(0, its.group, &often, whole), sum = 0, defined = 0;
      for (int64_t t = 0; t < its.tokens; ++t) {
        const double *p = &made.p[t * n], *often = &counts[t / its.group * n];
        const double choices = std::accumulate(often, often + n, 0.0);
        for (int64_t e = 0; e < n && made.sel[t * k] >= 0; ++e)
          defined += balance * n / choices * often[e] * p[e] / (its.sigmoid ? std::accumulate(p, p + n, 0.0) : 1);
      }
      EXPECT_NEAR(all, defined, 10 * tolerance * defined);
      for (int64_t device : {0, 1})
        sum += run(device * half, half, &often, parts[device]);
      EXPECT_NEAR(sum, all, tolerance * std::abs(all));
      for (int64_t g = 0, i = 0; g < groups; ++g)
        for (int64_t t = 0; t < its.group; ++t)
          for (int64_t e = 0; e < n; ++e, ++i)
            EXPECT_EQ(whole[i], parts[t / half][(g * half + t % half) * n + e]);
      Values alone;
      run(0, its.group, nullptr, alone);
      expectEqual(alone, whole, "the counts of one device");
    }
}

/// The router's product and its gradients are those of one expert with all rows; the logits are in the type of sums.
TEST(KernelsExperts, Routers) {
  for (Type type : allTypes)
    for (auto [tokens, h, n] : {std::array<int64_t, 3>{7, 10, 3}, {70, 33, 130}, {65, 200, 1}}) {
      const Type acc = accOf(type);
      const std::vector<int64_t> dims = {tokens, h, n};
      const Numbers all = {int32_t(tokens)};
      Values x = rounded(type, random(tokens * h, 1)), w = rounded(type, random(h * n, 2, 0.3)),
             dy = rounded(acc, random(tokens * n, 3));
      Array logits(acc, tokens * n);
      OneOp("router", type, dims)(pp_router, Array(type, x), Array(type, w), logits);
      expectNear(logits.get(), products(all, x, w, h, n, 'y'), productTolerance(acc), "logits");
      for (bool adds : {false, true}) {
        const std::vector<std::string> flags(adds, "accumulate");
        Values before = rounded(type, random(tokens * h, 5)), sums = rounded(acc, random(h * n, 6));
        Values dx = products(all, dy, w, h, n, 'x'), dw = products(all, x, dy, h, n, 'w');
        addIf(adds, dx, before);
        addIf(adds, dw, sums);
        Array gotX(type, before), gotW(acc, sums);
        OneOp("router_dx", type, dims, {}, flags)(pp_router_dx, Array(acc, dy), Array(type, w), gotX);
        OneOp("router_dw", type, dims, {}, flags)(pp_router_dw, Array(type, x), Array(acc, dy), gotW);
        expectNear(gotX.get(), dx, productTolerance(type), "dx");
        expectNear(gotW.get(), dw, productTolerance(acc), "dw");
      }
    }
}

/// Experts without rows, one with more than 512, and widths beyond 512.
TEST(KernelsExperts, Products) {
  for (Type type : allTypes)
    for (const Numbers &counts : segments)
      for (auto [in, out] : {std::pair<int64_t, int64_t>{6, 10}, {530, 9}}) {
        const int64_t rows = int64_t(total(counts)), n = int64_t(counts.size());
        const std::vector<int64_t> dims = {rows, in, out, n, 1};
        const Type acc = accOf(type);
        Values x = rounded(type, random(rows * in, 1)), w = rounded(type, random(n * in * out, 2, 0.3)),
               dy = rounded(type, random(rows * out, 3));
        Array y(type, rows * out);
        OneOp forward("expert_linear", type, dims);
        forward(pp_expert_linear, Array(type, x), Array(type, w), counts, y);
        expectNear(y.get(), products(counts, x, w, in, out, 'y'), productTolerance(type), "y");
        const Values first = y.get();
        forward(pp_expert_linear, Array(type, x), Array(type, w), counts, y);
        expectEqual(y.get(), first, "again");
        for (bool adds : {false, true}) {
          const std::vector<std::string> flags(adds, "accumulate");
          Values before = rounded(type, random(rows * in, 5)), sums = rounded(acc, random(n * in * out, 6));
          Values dx = products(counts, dy, w, in, out, 'x'), dw = products(counts, x, dy, in, out, 'w');
          addIf(adds, dx, before);
          addIf(adds, dw, sums);
          Array gotX(type, before), gotW(acc, sums);
          OneOp("expert_linear_dx", type, dims, {}, flags)(pp_expert_linear_dx, Array(type, dy), Array(type, w), counts,
                                                           gotX);
          OneOp("expert_linear_dw", type, dims, {}, flags)(pp_expert_linear_dw, Array(type, x), Array(type, dy), counts,
                                                           gotW);
          expectNear(gotX.get(), dx, productTolerance(type), "dx");
          expectNear(gotW.get(), dw, productTolerance(acc), "dw");
        }
      }
}

/// A row has the same bits however many rows its expert has, and wherever it stands among them: other documents change
/// these alone.
TEST(KernelsExperts, RowsDoNotSeeEachOther) {
  for (Type type : allTypes)
    for (auto [in, out] : {std::pair<int64_t, int64_t>{16, 24}, {400, 1024}}) {
      const int64_t most = 500;
      Values x = rounded(type, random(most * in, 1)), w = rounded(type, random(2 * in * out, 2, 0.3)),
             dy = rounded(type, random(most * out, 3)), before = rounded(type, random(most * in, 4));
      // Runs the rows of the second expert from `first` on; the first expert has five rows.
      auto run = [&](int64_t first, int64_t rows) {
        const Numbers counts = {5, int32_t(rows)};
        const std::vector<int64_t> dims = {5 + rows, in, out, 2, 1};
        auto part = [&](const Values &all, int64_t width) {
          Values own(5 * width, 0.5);
          own.insert(own.end(), all.begin() + first * width, all.begin() + (first + rows) * width);
          return own;
        };
        Array y(type, (5 + rows) * out), dx(type, part(before, in));
        OneOp("expert_linear", type, dims)(pp_expert_linear, Array(type, part(x, in)), Array(type, w), counts, y);
        OneOp("expert_linear_dx", type, dims, {}, {"accumulate"})(pp_expert_linear_dx, Array(type, part(dy, out)),
                                                                  Array(type, w), counts, dx);
        return std::pair{y.get(), dx.get()};
      };
      const auto [allY, allDx] = run(0, most);
      for (auto [first, rows] : {std::pair<int64_t, int64_t>{0, 1},
                                 {3, 1},
                                 {7, 2},
                                 {1, 7},
                                 {9, 15},
                                 {4, 16},
                                 {5, 33},
                                 {48, 49},
                                 {90, 405}}) {
        const auto [y, dx] = run(first, rows);
        auto cut = [&](const Values &all, int64_t from, int64_t width) {
          return Values(all.begin() + (5 + from) * width, all.begin() + (5 + from + rows) * width);
        };
        expectEqual(cut(y, 0, out), cut(allY, first, out), "y");
        expectEqual(cut(dx, 0, in), cut(allDx, first, in), "dx");
      }
    }
}

/// Rows that came from three devices, in sections with room for more: each expert multiplies those of every section,
/// and what is behind them is neither read nor written.
TEST(KernelsExperts, ProductsOfSections) {
  const std::vector<Numbers> sections = {{3, 0, 5, 0}, {0, 7, 1, 0}, {0, 0, 0, 0}};
  const int64_t room = 9, in = 6, out = 10, n = 4, all = room * int64_t(sections.size());
  const double unread = std::numeric_limits<double>::quiet_NaN(), unwritten = 64;
  for (Type type : allTypes)
    for (bool adds : {false, true}) {
      const Type acc = accOf(type);
      const std::vector<std::string> flags(adds, "accumulate");
      Values x = rounded(type, random(all * in, 1)), w = rounded(type, random(n * in * out, 2, 0.3)),
             dy = rounded(type, random(all * out, 3)), sums = rounded(acc, random(n * in * out, 6));
      Values y(all * out, unwritten), dx(all * in, unwritten), dw = adds ? sums : Values(sums.size(), 0);
      Numbers counts;
      for (size_t s = 0; s < sections.size(); ++s) {
        const Numbers &its = sections[s];
        counts.insert(counts.end(), its.begin(), its.end());
        const int64_t first = room * int64_t(s), end = first + int64_t(total(its));
        Values ownX(x.begin() + first * in, x.begin() + end * in),
            ownDy(dy.begin() + first * out, dy.begin() + end * out);
        Values ownY = products(its, ownX, w, in, out, 'y'), ownDx = products(its, ownDy, w, in, out, 'x'),
               ownDw = products(its, ownX, ownDy, in, out, 'w');
        std::copy(ownY.begin(), ownY.end(), y.begin() + first * out);
        for (size_t i = 0; i < ownDx.size(); ++i)
          dx[size_t(first * in) + i] = ownDx[i] + (adds ? unwritten : 0);
        for (size_t i = 0; i < dw.size(); ++i)
          dw[i] += ownDw[i];
        std::fill(x.begin() + end * in, x.begin() + (first + room) * in, unread);
        std::fill(dy.begin() + end * out, dy.begin() + (first + room) * out, unread);
      }
      const std::vector<int64_t> dims = {all, in, out, n, int64_t(sections.size())};
      Array gotY(type, Values(y.size(), unwritten)), gotX(type, Values(dx.size(), unwritten)), gotW(acc, sums);
      OneOp("expert_linear", type, dims)(pp_expert_linear, Array(type, x), Array(type, w), counts, gotY);
      OneOp("expert_linear_dx", type, dims, {}, flags)(pp_expert_linear_dx, Array(type, dy), Array(type, w), counts,
                                                       gotX);
      OneOp("expert_linear_dw", type, dims, {}, flags)(pp_expert_linear_dw, Array(type, x), Array(type, dy), counts,
                                                       gotW);
      expectNear(gotY.get(), y, productTolerance(type), "y");
      expectNear(gotX.get(), dx, (adds ? unwritten : 1) * productTolerance(type), "dx");
      expectNear(gotW.get(), dw, productTolerance(acc), "dw");
    }
}

/// The weights of choices travel with their rows: each number to its row, and back; a row has one number. The fourth
/// choice has no row.
TEST(KernelsExperts, WeightsOfRows) {
  const int64_t tokens = 3, top = 2, room = 9, h = 40;
  const Numbers places = {4, 0, 8, -1, 5, 2};
  for (Type type : allTypes) {
    const Type acc = accOf(type);
    Values w = rounded(acc, random(tokens * top, 1)), a = rounded(type, random(room * h, 2)),
           dy = rounded(type, random(room * h, 3));
    Values placed(room, 0), scaled(a.size()), da(a.size()), dw(room, 0);
    Values back = w;
    back[3] = 0;
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i] >= 0)
        placed[size_t(places[i])] = w[i];
    for (size_t i = 0; i < a.size(); ++i) {
      scaled[i] = placed[i / h] * a[i];
      da[i] = placed[i / h] * dy[i];
      dw[i / h] += dy[i] * a[i];
    }
    Array gotPlaced(acc, Values(room, 7)), taken(acc, w.size()), y(type, a.size()), gotA(type, a.size()),
        gotW(acc, room);
    if (type == acc) { // the kernels are those of the type of sums
      OneOp("place_weights", type, {tokens, top, room})(pp_place_weights, Array(acc, w), places, gotPlaced);
      expectEqual(gotPlaced.get(), placed, "placed");
      OneOp("take_weights", type, {tokens, top, room})(pp_take_weights, gotPlaced, places, taken);
      expectEqual(taken.get(), back, "taken");
    }
    const Array rows(acc, placed);
    OneOp("scale_rows", type, {room, 1, h})(pp_scale_rows, Array(type, a), rows, nullptr, y);
    expectNear(y.get(), scaled, toleranceOf(type), "scaled");
    OneOp("scale_rows_bwd", type, {room, 1, h})(pp_scale_rows_bwd, Array(type, dy), Array(type, a), rows, nullptr, gotA,
                                                gotW);
    expectNear(gotA.get(), da, toleranceOf(type), "da");
    expectNear(gotW.get(), dw, 4 * toleranceOf(acc), "dw");
  }
}

/// Each expert's bias is added to its rows, in both sections, and its gradient is the sum of theirs. Nothing is read or
/// written behind the rows of a section, and the third expert has none.
TEST(KernelsExperts, Biases) {
  const int64_t experts = 3, room = 70, rows = 2 * room;
  const Numbers counts = {3, 60, 0, 1, 2, 0};
  for (Type type : allTypes)
    for (int64_t h : {37, 304}) {
      const Type acc = accOf(type);
      const std::vector<int64_t> dims = {rows, h, experts, 2};
      Values x = rounded(type, random(rows * h, 1)), bias = rounded(type, random(experts * h, 2)),
             dy = rounded(type, random(rows * h, 3)), before = rounded(acc, random(experts * h, 4));
      Values y(x.size(), 9), db(experts * h, 0), sums = before;
      for (int64_t s = 0; s < 2; ++s)
        for (int64_t e = 0, row = s * room; e < experts; ++e)
          for (int64_t last = row + int64_t(counts[s * experts + e]); row < last; ++row)
            for (int64_t c = 0; c < h; ++c) {
              y[row * h + c] = x[row * h + c] + bias[e * h + c];
              db[e * h + c] += dy[row * h + c];
              sums[e * h + c] += dy[row * h + c];
            }
      Array got(type, Values(x.size(), 9)), over(type, x), b(type, bias), gotB(acc, db.size()), added(acc, before);
      OneOp("expert_bias", type, dims)(pp_expert_bias, over, b, counts, got);
      expectEqual(got.get(), rounded(type, y), "y");
      OneOp("expert_bias", type, dims)(pp_expert_bias, over, b, counts, over);
      for (size_t i = 0; i < y.size(); ++i)
        y[i] = y[i] == 9 ? x[i] : y[i];
      expectEqual(over.get(), rounded(type, y), "over x");
      OneOp("expert_bias_dw", type, dims)(pp_expert_bias_dw, Array(type, dy), counts, gotB);
      expectNear(gotB.get(), db, 16 * toleranceOf(acc), "db");
      OneOp("expert_bias_dw", type, dims, {}, {"accumulate"})(pp_expert_bias_dw, Array(type, dy), counts, added);
      expectNear(added.get(), sums, 16 * toleranceOf(acc), "sums");
    }
}

/// Rows are copied to their places and back; w multiplies them, and its gradient is a sum over a row.
TEST(KernelsExperts, Rows) {
  const int64_t tokens = 7, top = 3;
  for (Type type : allTypes)
    for (int64_t h : {37, 304}) {
      const Type acc = accOf(type);
      const std::vector<int64_t> dims = {tokens, top, h};
      Numbers places(tokens * top);
      std::iota(places.begin(), places.end(), 0);
      std::shuffle(places.begin(), places.end(), std::mt19937(7));
      Values x = rounded(type, random(tokens * h, 1)), w = rounded(acc, random(tokens * top, 2)),
             dy = rounded(type, random(tokens * top * h, 3)), before = rounded(type, random(tokens * h, 4));
      Values rows(tokens * top * h), scaled(rows.size()), da(rows.size()), dw(w.size(), 0), sums = before;
      for (size_t i = 0; i < places.size(); ++i)
        for (int64_t c = 0; c < h; ++c) {
          const size_t at = places[i] * h + c;
          rows[at] = x[i / top * h + c];
          scaled[at] = w[i] * rows[at];
          da[at] = w[i] * dy[at];
          dw[i] += dy[at] * rows[at];
          sums[i / top * h + c] += rows[at];
        }
      Array got(type, rows.size()), y(type, rows.size()), gotA(type, rows.size()), gotW(acc, w.size()),
          all(type, before);
      OneOp("dispatch", type, dims)(pp_dispatch, Array(type, x), places, got);
      expectEqual(got.get(), rows, "rows");
      OneOp("scale_rows", type, dims)(pp_scale_rows, got, Array(acc, w), places, y);
      expectNear(y.get(), scaled, toleranceOf(type), "scaled");
      OneOp("scale_rows_bwd", type, dims)(pp_scale_rows_bwd, Array(type, dy), got, Array(acc, w), places, gotA, gotW);
      expectNear(gotA.get(), da, toleranceOf(type), "da");
      expectNear(gotW.get(), dw, 4 * toleranceOf(acc), "dw");
      OneOp("combine", type, dims, {}, {"accumulate"})(pp_combine, got, places, all);
      expectNear(all.get(), sums, toleranceOf(type), "y");
    }
}

/// A choice without a row is copied nowhere, and adds nothing; the gradient of its weight is 0.
TEST(KernelsExperts, DroppedRows) {
  const int64_t h = 40;
  const Numbers places = {2, -1, -1, -1, 0, 1};
  for (Type type : allTypes) {
    Values x = rounded(type, random(3 * h, 1)), before = rounded(type, random(3 * h, 2)), rows(4 * h, 5), sums = before;
    for (int64_t c = 0; c < h; ++c) {
      rows[2 * h + c] = x[c];
      rows[c] = rows[h + c] = x[2 * h + c];
      sums[c] += x[c];
      sums[2 * h + c] += 2 * x[2 * h + c];
    }
    Array got(type, Values(4 * h, 5)), y(type, before);
    OneOp("dispatch", type, {3, 2, h})(pp_dispatch, Array(type, x), places, got);
    expectEqual(got.get(), rows, "rows");
    OneOp("combine", type, {3, 2, h}, {}, {"accumulate"})(pp_combine, got, places, y);
    expectNear(y.get(), sums, toleranceOf(type), "y");
    const Type acc = accOf(type);
    Values w = rounded(acc, random(6, 3)), scaled(4 * h, 7), dw(6, 0);
    for (size_t i = 0; i < places.size(); ++i)
      for (int64_t c = 0; c < h && places[i] >= 0; ++c) {
        scaled[places[i] * h + c] = w[i] * rows[places[i] * h + c];
        dw[i] += rows[places[i] * h + c] * rows[places[i] * h + c];
      }
    Array product(type, Values(4 * h, 7)), da(type, Values(4 * h, 7)), gotW(acc, 6);
    OneOp("scale_rows", type, {3, 2, h})(pp_scale_rows, got, Array(acc, w), places, product);
    expectNear(product.get(), scaled, toleranceOf(type), "scaled");
    OneOp("scale_rows_bwd", type, {3, 2, h})(pp_scale_rows_bwd, got, got, Array(acc, w), places, da, gotW);
    expectNear(da.get(), scaled, toleranceOf(type), "da");
    expectNear(gotW.get(), dw, 4 * toleranceOf(acc), "dw");
  }
}

/// 12 tokens with two choices of six experts: 4 is the mean, so 3 times 1, 7, 4, 4, 8, 0 less 12.
TEST(KernelsExperts, LoadAndSteer) {
  for (Type type : {Type::F32, Type::F64}) {
    const Numbers counts = {1, 7, 4, 4, 8, 0};
    Array load(type, Values(6, 100));
    OneOp("expert_load", type, {6, 2})(pp_expert_load, counts, load);
    expectEqual(load.get(), {-9, 9, 0, 0, 12, -12}, "load");
    OneOp("expert_load", type, {6, 2}, {}, {"accumulate"})(pp_expert_load, counts, load);
    expectEqual(load.get(), {-18, 18, 0, 0, 24, -24}, "sum");
  }
  for (Type type : allTypes)
    for (double norm : {2.0, double(INFINITY)}) {
      const Type acc = accOf(type);
      OneOp op("steer", type, {4}, {0.125});
      op.rank.optimizer.lr = 1e6, op.rank.optimizer.weightDecay = 0.1, op.rank.optimizer.clip = 1e-3;
      Values w = {1, -2, 0.5, 4}, next = {1.125, -2.125, 0.5, 3.875};
      Array weights(type, w), master(acc, w);
      op(pp_steer, Array(acc, Values{-3, 40, 0, 0.25}), Array(Type::F64, Values{norm}), weights,
         isHalf(type) ? master.data() : nullptr);
      expectEqual(weights.get(), std::isinf(norm) ? w : next, "w");
      expectEqual((isHalf(type) ? master : weights).get(), std::isinf(norm) ? w : next, "master");
    }
}

/// The same loads as above from the choices themselves; a row without a token has none.
TEST(KernelsExperts, LoadOfChoices) {
  for (Type type : {Type::F32, Type::F64}) {
    Numbers sel;
    for (int32_t e = 0; e < 6; ++e)
      sel.insert(sel.end(), (std::array<int32_t, 6>{1, 7, 4, 4, 8, 0})[size_t(e)], e);
    sel.insert(sel.end(), 2, -1);
    Array load(type, Values(6, 100));
    OneOp("choice_load", type, {13, 6, 2})(pp_choice_load, sel, load);
    expectEqual(load.get(), {-9, 9, 0, 0, 12, -12}, "load");
    OneOp("choice_load", type, {13, 6, 2}, {}, {"accumulate"})(pp_choice_load, sel, load);
    expectEqual(load.get(), {-18, 18, 0, 0, 24, -24}, "sum");
  }
}

TEST(KernelsExperts, IdentityWeights) {
  for (Type type : {Type::F32, Type::F64}) {
    const Numbers sel = {0, 5, 4, 3, 1, 2, 6, 4, 5, -1, -1, -1};
    const Values w = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
    Array u(type, 4), dw(type, 12);
    OneOp("identity_weights", type, {4, 3, 4})(pp_identity_weights, Array(type, w), sel, u);
    expectEqual(u.get(), {6, 0, 448, 0}, "u");
    OneOp("identity_weights_bwd", type, {4, 3, 4})(pp_identity_weights_bwd, Array(type, Values{3, 5, 7, 9}), sel, dw);
    expectEqual(dw.get(), {0, 3, 3, 0, 0, 0, 7, 7, 7, 0, 0, 0}, "dw");
  }
}

TEST(KernelsExperts, Refusals) {
  EXPECT_NE(refusal({"route", Type::F32, {4, 6, 3, 4, 1, 12}, {1, 0, 0, 0, 1, 1, 0, 0, 0, 0.1}, {"sparsemixer"}})
                .find("3 choices of a sparsemixer, which has 2"),
            std::string::npos);
  EXPECT_NE(refusal({"route", Type::F32, {4, 6, 2, 4, 1, 8}, {1, 0, 0, 0, 1, 1, 0, 0, 6}, {}})
                .find("6 of 6 experts without rows"),
            std::string::npos);
  EXPECT_NE(refusal({"route", Type::F32, {4, 3, 4, 4, 1, 16}, {1, 0, 0, 0}, {}}).find("4 choices of 3 experts"),
            std::string::npos);
  EXPECT_NE(
      refusal({"route", Type::F32, {4, 6, 4, 4, 1, 16}, {1, 0, 0, 0, 3, 1}, {}}).find("1 of 3 groups of 6 experts"),
      std::string::npos);
  EXPECT_NE(
      refusal({"route", Type::F32, {4, 6, 2, 3, 1, 8}, {1, 0, 0, 0}, {}}).find("groups of 3 do not divide 4 tokens"),
      std::string::npos);
  EXPECT_NE(refusal({"route", Type::F32, {4, 6, 2, 4, 1, 8}, {1, 0, 0, 0, 3}, {}})
                .find("expected 4 params, or two of groups behind, a least sum, what is added, experts without rows, "
                      "and a jitter"),
            std::string::npos);
  EXPECT_NE(
      refusal({"route", Type::F32, {4, 6, 2, 4, 4, 1}, {1, 0, 0, 0}, {}}).find("6 experts are not cut in 4 sections"),
      std::string::npos);
  EXPECT_NE(refusal({"route", Type::F32, {4, 6, 2, 4, 6, 5}, {1, 0, 0, 0}, {}})
                .find("5 rows of a section are more than can come"),
            std::string::npos);
  EXPECT_NE(refusal({"expert_linear", Type::F32, {9, 3, 4, 2, 2}, {}, {}}).find("9 rows are not cut in 2 sections"),
            std::string::npos);
  EXPECT_NE(refusal({"expert_bias_dw", Type::F32, {9, 3, 4, 2}, {}, {}}).find("9 rows are not cut in 2 sections"),
            std::string::npos);
}
