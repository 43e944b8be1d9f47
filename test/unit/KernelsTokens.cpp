// Losses that are formulas of tokens: statistics of logits against their definition in f64, and finite differences.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Kernels.h"

using namespace pp;
using namespace pp::test;

namespace {

struct Case {
  int64_t vocabulary, picks;
  double cap;
};
constexpr Case cases[] = {{3, 1, 0}, {50, 1, 0}, {50, 4, 0}, {50, 4, 2}, {64, 4, 2}, {199, 3, 30}};
/// A GPU's block goes over these more than once, by packs or by single columns.
constexpr Case longCases[] = {{4104, 4, 0}, {4104, 3, 2}, {4099, 40, 0}};
const std::vector<int32_t> targets = {2, 0, -100, 1, 2};

/// Columns of each row, of which two are one column, one is none, and one is that of the target.
std::vector<int32_t> idsOf(const Case &its) {
  std::vector<int32_t> ids;
  for (size_t t = 0; t < targets.size(); ++t)
    for (int64_t j = 0; j < its.picks; ++j)
      ids.push_back(its.picks == 1 ? targets[t]
                    : j == 3       ? -1
                    : t == 1       ? 1
                    : t == 3 && !j ? targets[t]
                                   : int32_t((int64_t(t) * 7 + j * 11) % its.vocabulary));
  return ids;
}

/// lse, mean under the softmax, mean, and picked columns of all rows, one behind the other.
Values reference(const Case &its, Values z) {
  const auto rows = int64_t(targets.size());
  const std::vector<int32_t> ids = idsOf(its);
  Values lse, mean, powers, picks;
  for (int64_t t = 0; t < rows; ++t) {
    double *row = z.data() + t * its.vocabulary, sum = 0, below = 0, all = 0;
    const bool has = targets[size_t(t)] >= 0;
    for (int64_t i = 0; i < its.vocabulary; ++i) {
      row[i] = its.cap > 0 ? its.cap * std::tanh(row[i] / its.cap) : row[i];
      sum += std::exp(row[i] - row[0]);
      below += std::exp(row[i] - row[0]) * row[i];
      all += row[i];
    }
    lse.push_back(has ? row[0] + std::log(sum) : 0);
    powers.push_back(has ? below / sum : 0);
    mean.push_back(has ? all / double(its.vocabulary) : 0);
    for (int64_t j = 0; j < its.picks; ++j) {
      const int32_t id = ids[size_t(t * its.picks + j)];
      picks.push_back(has && id >= 0 ? row[id] : 0);
    }
  }
  for (const Values *each : {&powers, &mean, &picks})
    lse.insert(lse.end(), each->begin(), each->end());
  return lse;
}

/// The gradient of dot(weights, reference(z)) by its formula: dp_i = p_i ((1 + z_i - mean_p) w_mean_p + w_lse).
Values gradient(const Case &its, Values z, const Values &weights) {
  const size_t rows = targets.size(), n = size_t(its.vocabulary), k = size_t(its.picks);
  const Values made = reference(its, z);
  const std::vector<int32_t> ids = idsOf(its);
  for (size_t t = 0; t < rows; ++t) {
    const bool has = targets[t] >= 0;
    for (size_t i = 0; i < n; ++i) {
      double &at = z[t * n + i];
      const double logit = its.cap > 0 ? its.cap * std::tanh(at / its.cap) : at;
      const double cap = its.cap > 0 ? 1 - logit * logit / (its.cap * its.cap) : 1;
      double slope = std::exp(logit - made[t]) * ((1 + logit - made[rows + t]) * weights[rows + t] + weights[t]) +
                     weights[2 * rows + t] / double(n);
      for (size_t j = 0; j < k; ++j)
        slope += ids[t * k + j] == int32_t(i) ? weights[3 * rows + t * k + j] : 0;
      at = has ? cap * slope : 0;
    }
  }
  return z;
}

/// The dims of token_stats as token_stats_bwd has them: the columns are all of the vocabulary.
std::vector<int64_t> ofWhole(std::vector<int64_t> dims) {
  dims.insert(dims.end(), {0, dims[1]});
  return dims;
}

Values part(const Values &all, size_t begin, size_t count) {
  return {all.begin() + ptrdiff_t(begin), all.begin() + ptrdiff_t(begin + count)};
}

} // namespace

TEST(KernelsTokens, StatisticsAndTheirGradients) {
  for (Type type : allTypes)
    for (const Case &its : cases) {
      SCOPED_TRACE(std::string(nameOf(type)) + " " + std::to_string(its.vocabulary) + " cap " +
                   std::to_string(its.cap));
      const size_t rows = targets.size(), picked = rows * size_t(its.picks);
      const Type acc = accOf(type);
      const std::vector<int32_t> ids = idsOf(its);
      const Values z = rounded(type, random(rows * size_t(its.vocabulary), 1, 3)), expected = reference(its, z);
      const Values params = its.cap > 0 ? Values{its.cap} : Values{};
      Array lse(acc, rows), powers(acc, rows), mean(acc, rows), picks(acc, picked), dz(type, z);
      const std::vector<int64_t> dims = {int64_t(rows), its.vocabulary, its.picks};
      OneOp("token_stats", type, dims, params)(pp_token_stats, Array(type, z), targets, ids, lse, powers, mean, picks);
      const double tolerance = toleranceOf(acc) / 10;
      expectNear(lse.get(), part(expected, 0, rows), tolerance, "lse");
      expectNear(powers.get(), part(expected, rows, rows), tolerance, "mean under the softmax");
      expectNear(mean.get(), part(expected, 2 * rows, rows), tolerance, "mean");
      expectNear(picks.get(), part(expected, 3 * rows, picked), tolerance, "picked");

      // A row without a target has no gradient, whatever comes back.
      Values weights = rounded(acc, random(3 * rows + picked, 2));
      Values given = weights;
      given[2] = INFINITY, given[rows + 2] = NAN;
      Array dlse(acc, part(given, 0, rows)), dpowers(acc, part(given, rows, rows)),
          dmean(acc, part(given, 2 * rows, rows)), dpicks(acc, part(given, 3 * rows, picked));
      OneOp("token_stats_bwd", type, ofWhole(dims), params)(pp_token_stats_bwd, dz, targets, ids, lse, powers, dlse,
                                                            dpowers, dmean, dpicks, dz); // over z
      auto of = [&](const Values &at) { return reference(its, at); };
      expectNear(dz.get(), finiteDifferences(of, z, weights), std::max(1e-8, toleranceOf(type)), "dz");
    }
}

TEST(KernelsTokens, LongRows) {
  for (Type type : allTypes)
    for (const Case &its : longCases) {
      SCOPED_TRACE(std::string(nameOf(type)) + " " + std::to_string(its.vocabulary));
      const size_t rows = targets.size(), picked = rows * size_t(its.picks);
      const Type acc = accOf(type);
      const std::vector<int32_t> ids = idsOf(its);
      const Values z = rounded(type, random(rows * size_t(its.vocabulary), 1, 3)), expected = reference(its, z);
      const Values params = its.cap > 0 ? Values{its.cap} : Values{};
      Array lse(acc, rows), powers(acc, rows), mean(acc, rows), picks(acc, picked), dz(type, z);
      const std::vector<int64_t> dims = {int64_t(rows), its.vocabulary, its.picks};
      OneOp("token_stats", type, dims, params)(pp_token_stats, Array(type, z), targets, ids, lse, powers, mean, picks);
      expectNear(lse.get(), part(expected, 0, rows), toleranceOf(acc) / 10, "lse");
      expectNear(powers.get(), part(expected, rows, rows), toleranceOf(acc) / 10, "mean under the softmax");
      expectNear(mean.get(), part(expected, 2 * rows, rows), toleranceOf(acc) / 10, "mean");
      expectNear(picks.get(), part(expected, 3 * rows, picked), toleranceOf(acc) / 10, "picked");
      Values weights = random(3 * rows + picked, 2);
      for (size_t i = 0; i < 3 * rows; ++i)
        weights[i] *= 500; // each of so many columns has a small share of these
      weights = rounded(acc, weights);
      Array dlse(acc, part(weights, 0, rows)), dpowers(acc, part(weights, rows, rows)),
          dmean(acc, part(weights, 2 * rows, rows)), dpicks(acc, part(weights, 3 * rows, picked));
      OneOp("token_stats_bwd", type, ofWhole(dims), params)(pp_token_stats_bwd, dz, targets, ids, lse, powers, dlse,
                                                            dpowers, dmean, dpicks, dz);
      expectNear(dz.get(), gradient(its, z, weights), toleranceOf(type), "dz");
    }
}

/// z, or dz, or both lie one element behind what a GPU reads and writes by packs.
TEST(KernelsTokens, OddAddresses) {
  constexpr Case its = {64, 4, 2};
  const size_t rows = targets.size(), size = rows * size_t(its.vocabulary), picked = rows * size_t(its.picks);
  const std::vector<int32_t> ids = idsOf(its);
  const std::vector<int64_t> dims = {int64_t(rows), its.vocabulary, its.picks};
  for (Type type : allTypes)
    for (size_t odd : {1, 2, 3}) {
      SCOPED_TRACE(std::string(nameOf(type)) + " " + std::to_string(odd));
      const Type acc = accOf(type);
      const size_t ofZ = odd & 1, ofDz = odd / 2, bytes = type == Type::F64 ? 8 : type == Type::F32 ? 4 : 2;
      const Values z = rounded(type, random(size, 1, 3)), weights = rounded(acc, random(3 * rows + picked, 2)),
                   expected = reference(its, z);
      Values behind = z;
      behind.insert(behind.begin(), ofZ, 0);
      Array from(type, behind), to(type, size + ofDz), lse(acc, rows), powers(acc, rows), mean(acc, rows),
          picks(acc, picked);
      void *zAt = static_cast<char *>(from.data()) + ofZ * bytes, *dzAt = static_cast<char *>(to.data()) + ofDz * bytes;
      OneOp("token_stats", type, dims, {its.cap})(pp_token_stats, zAt, targets, ids, lse, powers, mean, picks);
      expectNear(lse.get(), part(expected, 0, rows), toleranceOf(acc) / 10, "lse");
      OneOp("token_stats_bwd", type, ofWhole(dims),
            {its.cap})(pp_token_stats_bwd, zAt, targets, ids, lse, powers, Array(acc, part(weights, 0, rows)),
                       Array(acc, part(weights, rows, rows)), Array(acc, part(weights, 2 * rows, rows)),
                       Array(acc, part(weights, 3 * rows, picked)), dzAt);
      expectNear(part(to.get(), ofDz, size), gradient(its, z, weights), toleranceOf(type), "dz");
    }
}

/// The largest probability is so near 1 that its gradient is what two large terms leave: it is rounded once.
TEST(KernelsTokens, ASureTargetIsRoundedOnce) {
  const std::vector<int32_t> target = {1};
  for (Type type : halfTypes) {
    const Values z = rounded(type, {0, 9, -1});
    Array lse(Type::F32, 1), powers(Type::F32, 1), mean(Type::F32, 1), picks(Type::F32, 1), dz(type, 3);
    OneOp("token_stats", type, {1, 3, 1})(pp_token_stats, Array(type, z), target, target, lse, powers, mean, picks);
    OneOp("token_stats_bwd", type, {1, 3, 1, 0, 3})(pp_token_stats_bwd, Array(type, z), target, target, lse, powers,
                                                    Array(Type::F32, Values{1}), Array(Type::F32, Values{0}),
                                                    Array(Type::F32, Values{0}), Array(Type::F32, Values{-1}), dz);
    const double sum = 1 + std::exp(9.0) + std::exp(-1.0);
    EXPECT_NEAR(dz.get()[1] / (std::exp(9.0) / sum - 1), 1, 2e-2) << nameOf(type);
  }
}

TEST(KernelsTokens, MeansAreOfTokensWithTargets) {
  for (Type type : {Type::F32, Type::F64})
    for (bool weighted : {false, true}) {
      const Values v = {1, 2, INFINITY, -4, 8}, weights = weighted ? Values{0.5, 2, 7, 1, 0.25} : Values{1, 1, 1, 1, 1};
      double sum = 0;
      Values slopes(5);
      for (size_t t = 0; t < 5; ++t)
        if (targets[t] >= 0)
          sum += weights[t] * v[t], slopes[t] = 0.5 * weights[t] / 4 * 512;
      for (bool counted : {false, true}) {
        const Values params = {counted ? 0.5 : 0.125};
        const std::vector<std::string> flags =
            counted ? std::vector<std::string>{"counted"} : std::vector<std::string>{};
        OneOp forward("token_mean", type, {5, 5, 0, 5}, params, flags),
            both("token_mean_bwd", type, {5, 5, 0, 5}, params, flags);
        Array loss(type, 1), again(type, 1), dv(type, v);
        for (OneOp *op : {&forward, &both})
          op->weighted(weights).rank.optimizer.divisors[0] = 4, op->rank.optimizer.lossScale = 512;
        forward(pp_token_mean, Array(type, v), targets, nullptr, loss);
        both(pp_token_mean_bwd, dv, targets, nullptr, dv, again);
        expectEqual(loss.get(), {sum * 0.5 / 4}, "loss");
        expectEqual(again.get(), loss.get(), "the loss beside its gradient");
        expectEqual(dv.get(), slopes, "dv");
      }
    }
}

/// Two rows of six tokens: documents of 2, 3 and 1 tokens, then of 6. One has no target, and others begin without one.
const std::vector<int32_t> rowTargets = {-100, 3, 1, 2, -100, -100, -100, -100, 5, 0, 1, -100},
                           rowStarts = {0, 0, 2, 2, 2, 5, 0, 0, 0, 0, 0, 0};

TEST(KernelsTokens, SumsAndMeansOfSegments) {
  for (Type type : {Type::F32, Type::F64})
    for (bool mean : {false, true}) {
      const Values v = {NAN, 2, 3, 4, NAN, NAN, INFINITY, NAN, 8, 16, 32, NAN};
      Array y(type, 12);
      OneOp("segment_sum", type, {12, 6, 0, 6}, {},
            mean ? std::vector<std::string>{"mean"} : std::vector<std::string>{})(pp_segment_sum, Array(type, v),
                                                                                  rowTargets, rowStarts, y);
      const double second = mean ? 3.5 : 7, third = mean ? 56.0 / 3 : 56;
      expectNear(y.get(), {0, 2, second, second, 0, 0, 0, 0, third, third, third, 0}, toleranceOf(type) / 10,
                 mean ? "means" : "sums");
    }
}

/// Each document counts once, at its first token that has a target, whatever that target weighs.
TEST(KernelsTokens, MeansOfSegmentsCountEachOnce) {
  for (Type type : {Type::F32, Type::F64}) {
    const Values v = {NAN, 2, 3, 4, NAN, NAN, NAN, NAN, 8, 16, 32, NAN};
    OneOp forward("token_mean", type, {12, 6, 0, 6}, {0.5, 0, divisorOfDocuments}, {"counted"}),
        both("token_mean_bwd", type, {12, 6, 0, 6}, {0.5, 0, divisorOfDocuments}, {"counted"});
    Array loss(type, 1), again(type, 1), dv(type, 12);
    for (OneOp *op : {&forward, &both})
      op->weighted(Values(12, 7)).rank.optimizer.divisors[divisorOfDocuments] = 4;
    forward(pp_token_mean, Array(type, v), rowTargets, rowStarts, loss);
    both(pp_token_mean_bwd, Array(type, v), rowTargets, rowStarts, dv, again);
    expectEqual(loss.get(), {(2 + 3 + 8) * 0.5 / 4}, "loss");
    expectEqual(again.get(), loss.get(), "the loss beside its gradient");
    expectEqual(dv.get(), {0, 0.125, 0.125, 0, 0, 0, 0, 0, 0.125, 0, 0, 0}, "dv");
  }
  EXPECT_NE(refusal({"token_mean", Type::F32, {12, 6, 0, 6}, {1, 0, divisorOfGroups + 1}, {"counted"}})
                .find("divisor 22; expected 0 to 21"),
            std::string::npos);
  EXPECT_NE(refusal({"segment_sum", Type::F32, {12, 5, 0, 5}, {}, {}}).find("12 tokens are no rows of 5"),
            std::string::npos);
}

/// Segments of up to 900 tokens, more than a GPU's block has threads, and two rows of one segment, side by side; what a
/// segment begins with often has no target.
TEST(KernelsTokens, LongSegments) {
  constexpr size_t rows = 4, length = 1500;
  std::mt19937 draw(1);
  std::vector<int32_t> its, starts;
  Values v, weights;
  for (size_t row = 0; row < rows; ++row)
    for (size_t at = 0; at < length;) {
      const size_t asked = draw() % 3 ? 1 + draw() % 40 : 1 + draw() % 900;
      const size_t begin = at, end = row / 2 ? length : std::min(length, at + asked);
      for (const size_t asks = row / 2 || draw() % 4 ? (end - begin) / 2 : end; at < end; ++at) {
        starts.push_back(int32_t(begin));
        its.push_back(at < begin + asks || draw() % 5 == 0 ? -100 : 1);
        v.push_back(its.back() < 0 ? NAN : double(int(draw() % 64)) - 20);
        weights.push_back(double(draw() % 4) / 2);
      }
    }
  Values sums(v.size()), slopes(v.size()), plain(v.size());
  double ofSegments = 0, ofTokens = 0;
  for (size_t begin = 0, end = 1; begin < v.size(); begin = end++) {
    while (end < v.size() && end / length == begin / length && starts[end] == starts[begin])
      ++end;
    double sum = 0, first = NAN;
    for (size_t t = begin; t < end; ++t)
      if (its[t] >= 0) {
        slopes[t] = std::isnan(first) ? 0.5 / 4 : 0;
        first = std::isnan(first) ? v[t] : first;
        sum += v[t], ofTokens += weights[t] * v[t], plain[t] = weights[t] * 0.5 / 4;
      }
    ofSegments += std::isnan(first) ? 0 : first;
    for (size_t t = begin; t < end; ++t)
      sums[t] = its[t] >= 0 ? sum : 0;
  }
  const std::vector<int64_t> dims = {int64_t(rows * length), int64_t(length), 0, int64_t(length)};
  for (Type type : {Type::F32, Type::F64}) {
    Array y(type, v.size()), dv(type, v), loss(type, 1);
    OneOp("segment_sum", type, dims)(pp_segment_sum, Array(type, v), its, starts, y);
    expectEqual(y.get(), sums, "sums");
    for (bool segments : {true, false}) {
      OneOp both("token_mean_bwd", type, dims, {0.5, 0, divisorOfDocuments}, {"counted"});
      both.weighted(weights).rank.optimizer.divisors[divisorOfDocuments] = 4;
      dv.set(v);
      if (segments)
        both(pp_token_mean_bwd, dv, its, starts, dv, loss);
      else
        both(pp_token_mean_bwd, dv, its, nullptr, dv, loss);
      expectEqual(loss.get(), {(segments ? ofSegments : ofTokens) * 0.5 / 4}, "loss");
      expectEqual(dv.get(), segments ? slopes : plain, "dv");
    }
  }
}

TEST(KernelsTokens, ColumnsOutsideOfTheVocabularyAreRefused) {
  for (bool isTarget : {false, true}) {
    OneOp op("token_stats", Type::F32, {1, 3, 2});
    Array lse(Type::F32, 1), powers(Type::F32, 1), mean(Type::F32, 1), picks(Type::F32, 2);
    const std::vector<int32_t> target = {isTarget ? 3 : 1}, ids = {0, isTarget ? 1 : 3};
    EXPECT_EQ(op.status(pp_token_stats, Array(Type::F32, Values{1, 2, 3}), target, ids, lse, powers, mean, picks),
              PP_INVALID);
    EXPECT_EQ(op.rank.message, op.kernels->failures() // then the device's number says it
                                   ? ""
                                   : "op 0 `token_stats` met a token or target outside its vocabulary");
  }
  EXPECT_NE(refusal({"token_stats", Type::F32, {1, 3, 1025}, {}, {}}).find("1025 columns to pick of each row"),
            std::string::npos);
}

namespace {

/// Shards of the columns, which need not be equal; the last one may have more than there are, as padding.
struct Shard {
  int64_t first, width, exist;
};
const std::vector<std::vector<Shard>> cuts = {{{0, 25, 25}, {25, 25, 25}},
                                              {{0, 16, 16}, {16, 17, 17}, {33, 17, 17}},
                                              {{0, 20, 20}, {20, 20, 20}, {40, 20, 10}},
                                              {{0, 1, 1}, {1, 49, 49}},
                                              {{0, 50, 50}}};

/// Columns [first, first + width) of each row; what does not exist is NaN.
Values columnsOf(const Values &z, int64_t vocabulary, const Shard &shard) {
  Values out;
  for (size_t t = 0; t < targets.size(); ++t)
    for (int64_t i = 0; i < shard.width; ++i)
      out.push_back(i < shard.exist ? z[t * size_t(vocabulary) + size_t(shard.first + i)] : NAN);
  return out;
}

/// The statistics of all shards, merged, and each for itself.
struct Merged {
  Array lse, powers, mean, picks;
};
Merged mergedOf(Type type, const Case &its, const Values &z, const std::vector<Shard> &shards) {
  const int64_t rows = int64_t(targets.size()), k = its.picks;
  const Type acc = accOf(type);
  const std::vector<int32_t> ids = idsOf(its);
  const Values params = its.cap > 0 ? Values{its.cap} : Values{};
  std::vector<Array> parts;
  std::vector<void *> addresses;
  for (const Shard &shard : shards) {
    parts.emplace_back(acc, size_t(rows * (3 + k)));
    OneOp("token_shard", type, {rows, shard.width, shard.first, its.vocabulary, k},
          params)(pp_token_shard, Array(type, columnsOf(z, its.vocabulary, shard)), targets, ids, parts.back());
  }
  for (Array &each : parts)
    addresses.push_back(each.data());
  // Over the first part; and two of them are merged before, as devices of one rank do.
  if (shards.size() > 2) {
    OneOp("token_merge", acc, {rows, 2, 3 + k})(pp_token_merge, addresses.data() + 1, parts[1]);
    addresses.pop_back();
  }
  OneOp("token_merge", acc, {rows, int64_t(addresses.size()), 3 + k})(pp_token_merge, addresses.data(), parts[0]);
  Merged all{{acc, size_t(rows)}, {acc, size_t(rows)}, {acc, size_t(rows)}, {acc, size_t(rows * k)}};
  OneOp("token_rows", acc, {rows, k})(pp_token_rows, parts[0], targets, ids, all.lse, all.powers, all.mean, all.picks);
  return all;
}

} // namespace

TEST(KernelsTokens, ShardsOfTheVocabulary) {
  for (Type type : allTypes)
    for (const Case &its : {Case{50, 1, 0}, Case{50, 4, 0}, Case{50, 4, 2}})
      for (const std::vector<Shard> &shards : cuts) {
        SCOPED_TRACE(std::string(nameOf(type)) + " " + std::to_string(its.picks) + " of " +
                     std::to_string(shards.size()) + " shards, cap " + std::to_string(its.cap));
        const size_t rows = targets.size(), picked = rows * size_t(its.picks);
        const Type acc = accOf(type);
        const std::vector<int32_t> ids = idsOf(its);
        const Values z = rounded(type, random(rows * size_t(its.vocabulary), 1, 3)), expected = reference(its, z);
        const double tolerance = toleranceOf(acc) / 10;
        Merged all = mergedOf(type, its, z, shards);
        expectNear(all.lse.get(), part(expected, 0, rows), tolerance, "lse");
        expectNear(all.powers.get(), part(expected, rows, rows), tolerance, "mean under the softmax");
        expectNear(all.mean.get(), part(expected, 2 * rows, rows), tolerance, "mean");
        expectNear(all.picks.get(), part(expected, 3 * rows, picked), tolerance, "picked");
        const Values weights = rounded(acc, random(3 * rows + picked, 2)), wanted = gradient(its, z, weights);
        Array dlse(acc, part(weights, 0, rows)), dpowers(acc, part(weights, rows, rows)),
            dmean(acc, part(weights, 2 * rows, rows)), dpicks(acc, part(weights, 3 * rows, picked));
        for (const Shard &shard : shards) {
          Array dz(type, columnsOf(z, its.vocabulary, shard));
          OneOp("token_stats_bwd", type, {int64_t(rows), shard.width, its.picks, shard.first, its.vocabulary},
                its.cap > 0 ? Values{its.cap} : Values{})(pp_token_stats_bwd, dz, targets, ids, all.lse, all.powers,
                                                          dlse, dpowers, dmean, dpicks, dz);
          Values own = columnsOf(wanted, its.vocabulary, shard);
          for (double &each : own)
            each = std::isnan(each) ? 0 : each; // padding has no gradient
          expectNear(dz.get(), own, std::max(1e-8, toleranceOf(type)), "dz");
        }
      }
}

/// Logits that nobody may choose are minus infinity: they have no probability and no gradient, wherever they lie, and a
/// whole shard of them has neither.
TEST(KernelsTokens, LogitsOfMinusInfinity) {
  constexpr Case its = {50, 1, 0};
  const std::vector<int32_t> ids = idsOf(its);
  const size_t rows = targets.size();
  for (Type type : allTypes)
    for (int which : {0, 1, 2}) {
      SCOPED_TRACE(std::string(nameOf(type)) + " " + std::to_string(which));
      const Type acc = accOf(type);
      Values z = rounded(type, random(rows * 50, 1, 3)), few, dfew;
      auto isMasked = [&](size_t i) {
        return which == 0 ? i >= 3 && i < 41 : which == 1 ? i >= 25 : i % 3 == 0 && i > 2;
      };
      for (size_t t = 0; t < rows; ++t)
        for (size_t i = 0; i < 50; ++i)
          if (isMasked(i))
            z[t * 50 + i] = -INFINITY;
      Array lse(acc, rows), powers(acc, rows), mean(acc, rows), picks(acc, rows), dz(type, z);
      OneOp("token_stats", type, {int64_t(rows), 50, 1})(pp_token_stats, Array(type, z), targets, ids, lse, powers,
                                                         mean, picks);
      const Values dlse = rounded(acc, random(rows, 2)), dpowers = rounded(acc, random(rows, 3)),
                   dpicks = rounded(acc, random(rows, 4));
      Values wantedLse, wantedPowers, wantedDz;
      for (size_t t = 0; t < rows; ++t) {
        double sum = 0, below = 0;
        for (size_t i = 0; i < 50; ++i)
          if (!isMasked(i))
            sum += std::exp(z[t * 50 + i]), below += std::exp(z[t * 50 + i]) * z[t * 50 + i];
        const bool has = targets[t] >= 0;
        wantedLse.push_back(has ? std::log(sum) : 0), wantedPowers.push_back(has ? below / sum : 0);
        for (size_t i = 0; i < 50; ++i)
          wantedDz.push_back(!has || isMasked(i) ? 0
                                                 : std::exp(z[t * 50 + i]) / sum *
                                                           (dlse[t] + dpowers[t] * (1 + z[t * 50 + i] - below / sum)) +
                                                       (int32_t(i) == targets[t] ? dpicks[t] : 0));
      }
      expectNear(lse.get(), wantedLse, toleranceOf(acc) / 10, "lse");
      expectNear(powers.get(), wantedPowers, toleranceOf(acc) / 10, "mean under the softmax");
      for (const std::vector<Shard> &shards : cuts) {
        Merged all = mergedOf(type, its, z, shards);
        expectNear(all.lse.get(), wantedLse, toleranceOf(acc) / 10, "lse of shards");
        expectNear(all.powers.get(), wantedPowers, toleranceOf(acc) / 10, "mean under the softmax, of shards");
      }
      OneOp("token_stats_bwd", type, {int64_t(rows), 50, 1, 0, 50})(pp_token_stats_bwd, dz, targets, ids, lse, powers,
                                                                    Array(acc, dlse), Array(acc, dpowers),
                                                                    Array(acc, Values(rows)), Array(acc, dpicks), dz);
      expectNear(dz.get(), wantedDz, std::max(1e-8, toleranceOf(type)), "dz");
    }
}

/// Two rows of twelve tokens over three devices, each with two runs of two tokens of each: all that is theirs is what
/// whole rows have there.
TEST(KernelsTokens, RunsOfRowsAreThoseOfWholeOnes) {
  const std::vector<int32_t> its = {-100, 3,    1,    2, 1, -100, 4, 4, -100, 1, 2, 0,
                                    1,    -100, -100, 5, 0, 1,    2, 3, 4,    5, 6, -100},
                             starts = {0, 0, 0, 3, 3, 3, 3, 7, 7, 7, 7, 11, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const int64_t rows = 2, length = 12, own = 4;
  Values v;
  for (size_t t = 0; t < its.size(); ++t)
    v.push_back(its[t] < 0 ? NAN : double(1 << (t % 12)));
  for (Type type : {Type::F32, Type::F64})
    for (bool mean : {false, true}) {
      const std::vector<std::string> flag = mean ? std::vector<std::string>{"mean"} : std::vector<std::string>{};
      Array whole(type, its.size()), dv(type, its.size()), loss(type, 1);
      OneOp("segment_sum", type, {rows * length, length, 0, length}, {}, flag)(pp_segment_sum, Array(type, v), its,
                                                                               starts, whole);
      OneOp all("token_mean_bwd", type, {rows * length, length, 0, length}, {0.5});
      all(pp_token_mean_bwd, Array(type, v), its, starts, dv, loss);
      double sum = 0;
      for (int64_t device = 0; device < 3; ++device) {
        const int64_t first = 2 * device, second = 10 - 2 * device;
        auto ownOf = [&](const Values &values) {
          Values out;
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t at : {first, first + 1, second, second + 1})
              out.push_back(values[size_t(row * length + at)]);
          return out;
        };
        std::vector<std::string> flags = flag;
        flags.push_back("zigzag");
        Array y(type, size_t(rows * own)), mine(type, size_t(rows * own)), part(type, 1), again(type, 1);
        const std::vector<int64_t> dims = {rows * own, own, first, length, second};
        OneOp("segment_sum", type, dims, {}, flags)(pp_segment_sum, Array(type, v), its, starts, y);
        expectEqual(y.get(), ownOf(whole.get()), "sums");
        OneOp both("token_mean_bwd", type, dims, {0.5}, {"zigzag"}),
            forward("token_mean", type, dims, {0.5}, {"zigzag"});
        both(pp_token_mean_bwd, Array(type, ownOf(v)), its, starts, mine, part);
        forward(pp_token_mean, Array(type, ownOf(v)), its, starts, again);
        expectEqual(mine.get(), ownOf(dv.get()), "dv");
        expectEqual(again.get(), part.get(), "the loss beside its gradient");
        sum += part.get()[0];
      }
      expectEqual({sum}, loss.get(), "loss");
    }
  EXPECT_NE(refusal({"segment_sum", Type::F32, {8, 4, 0, 12, 11}, {}, {"zigzag"}})
                .find("places 0 to 12 do not fit rows of 12"),
            std::string::npos);
}
