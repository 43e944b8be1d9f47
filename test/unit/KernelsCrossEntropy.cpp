// Cross-entropy against its definition in f64 and finite differences: whole rows, and shards of the vocabulary.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Kernels.h"
#include <numeric>

using namespace pp;
using namespace pp::test;

namespace {

/// The loss of logits, with a cap if it is above 0, and with the z-loss if there is one. Without weights all weights
/// are 1.
Values lossReference(Values z, const std::vector<int32_t> &targets, double scale, double cap = 0, double zLoss = 0,
                     const Values &weights = {}) {
  for (double &logit : z)
    logit = cap > 0 ? cap * std::tanh(logit / cap) : logit;
  size_t rows = targets.size(), vocabulary = z.size() / rows;
  double loss = 0, squares = 0;
  for (size_t t = 0; t < rows; ++t) {
    if (targets[t] < 0)
      continue;
    double largest = -1e300, sum = 0;
    for (size_t i = 0; i < vocabulary; ++i)
      largest = std::max(largest, z[t * vocabulary + i]);
    for (size_t i = 0; i < vocabulary; ++i)
      sum += std::exp(z[t * vocabulary + i] - largest);
    const double lse = largest + std::log(sum), weight = weights.empty() ? 1 : weights[t];
    loss += scale * weight * (lse - z[t * vocabulary + size_t(targets[t])]);
    squares += scale * weight * zLoss * lse * lse;
  }
  return zLoss > 0 ? Values{loss, squares} : Values{loss};
}

} // namespace

TEST(KernelsCrossEntropy, WholeRows) {
  for (Type type : allTypes)
    for (auto [vocabulary, cap, zLoss] : {std::tuple<int64_t, double, double>{3, 0, 0},
                                          {50, 0, 0},
                                          {3, 2, 0},
                                          {50, 30, 0},
                                          {50, 1e6, 0},
                                          {50, 1e-3, 0},
                                          {50, 0, 0.25},
                                          {50, 30, 0.001}}) {
      std::vector<int32_t> targets = {2, 0, -1, 1};
      Values z = rounded(type, random(targets.size() * size_t(vocabulary), 1, 3));
      z[0] += 60; // far apart logits
      z = rounded(type, z);
      SCOPED_TRACE(std::string(nameOf(type)) + " cap " + std::to_string(cap));
      double scale = 0.25;
      std::vector<double> params = zLoss > 0 ? Values{scale, cap, 0, zLoss}
                                   : cap > 0 ? Values{scale, cap}
                                             : Values{scale};
      Array dz(type, z), loss(accOf(type), zLoss > 0 ? 2 : 1); // dz over z
      OneOp("cross_entropy", type, {int64_t(targets.size()), vocabulary}, params)(pp_cross_entropy, dz, targets, dz,
                                                                                  loss);
      expectNear(loss.get(), lossReference(z, targets, scale, cap, zLoss), toleranceOf(accOf(type)) / 10, "loss");
      if (cap == 1e-3) // far above it all, where differences see a step
        continue;
      auto of = [&, cap = cap, zLoss = zLoss](const Values &v) { return lossReference(v, targets, scale, cap, zLoss); };
      expectNear(dz.get(), finiteDifferences(of, z, {1, 1}), std::max(1e-8, toleranceOf(type)), "dz");
    }
}

/// The gradient is that of loss scale times the loss, the loss itself is not scaled: whole rows, and their shards.
TEST(KernelsCrossEntropy, TheScaleIsInTheGradientAlone) {
  for (Type type : allTypes) {
    std::vector<int32_t> targets = {2, 0, -1, 1};
    Values z = rounded(type, random(4 * 6, 1, 3)), dz[2], losses[2], shards[2];
    for (bool scaled : {false, true}) {
      Array slope(type, 24), loss(accOf(type), 1), stats(accOf(type), 12), shard(type, 24);
      OneOp whole("cross_entropy", type, {4, 6}, {0.25}), merged("cross_entropy_dz", type, {4, 6, 0, 6}, {0.25});
      whole.rank.optimizer.lossScale = merged.rank.optimizer.lossScale = scaled ? 512 : 1;
      whole(pp_cross_entropy, Array(type, z), targets, slope, loss);
      OneOp("cross_entropy_stats", type, {4, 6, 0, 6})(pp_cross_entropy_stats, Array(type, z), targets, stats);
      merged(pp_cross_entropy_dz, Array(type, z), targets, stats, shard);
      dz[scaled] = slope.get(), losses[scaled] = loss.get(), shards[scaled] = shard.get();
    }
    expectEqual(losses[1], losses[0], "loss");
    for (Values *each : {dz, shards}) {
      Values times512 = each[0];
      for (double &value : times512)
        value *= 512;
      expectNear(each[1], times512, type == Type::F16 ? 1e-6 : 0, nameOf(type)); // small ones of f16 have fewer digits
    }
  }
}

/// A loss that the step divides by 4 has the bits of one with scale 1/4: for whole rows and for shards.
TEST(KernelsCrossEntropy, CountedLossesAreDivided) {
  for (Type type : allTypes) {
    std::vector<int32_t> targets = {2, 0, -100, 1};
    Values z = rounded(type, random(4 * 6, 1, 3)), slopes[2], losses[2], shards[2], sums[2];
    for (bool counted : {false, true}) {
      std::vector<double> scale = {counted ? 1.0 : 0.25};
      std::vector<std::string> flags;
      if (counted)
        flags = {"counted"};
      Array slope(type, 24), loss(accOf(type), 1), stats(accOf(type), 12), shard(type, 24), sum(accOf(type), 1);
      OneOp whole("cross_entropy", type, {4, 6}, scale, flags),
          dz("cross_entropy_dz", type, {4, 6, 0, 6}, scale, flags),
          added("cross_entropy_loss", type, {4}, scale, flags);
      for (OneOp *op : {&whole, &dz, &added})
        op->rank.optimizer.divisors[0] = 4;
      whole(pp_cross_entropy, Array(type, z), targets, slope, loss);
      OneOp("cross_entropy_stats", type, {4, 6, 0, 6})(pp_cross_entropy_stats, Array(type, z), targets, stats);
      dz(pp_cross_entropy_dz, Array(type, z), targets, stats, shard);
      added(pp_cross_entropy_loss, stats, targets, sum);
      slopes[counted] = slope.get(), losses[counted] = loss.get(), shards[counted] = shard.get(),
      sums[counted] = sum.get();
    }
    for (Values *each : {slopes, losses, shards, sums})
      expectEqual(each[1], each[0], nameOf(type));
  }
}

namespace {

/// The results of the three kernels with a scale on rows with these weights, or with none: loss, slopes, the loss from
/// statistics, and slopes from statistics.
std::vector<Values> weightedLosses(Type type, const Values &z, double cap, double zLoss, double divisor,
                                   const Values &weights) {
  std::vector<int32_t> targets = {2, 0, -100, 1, 4};
  const int64_t rows = 5, vocabulary = int64_t(z.size()) / rows;
  const Values params = {1, cap, 0, zLoss};
  Array slope(type, z.size()), shard(type, z.size()), stats(accOf(type), 15), loss(accOf(type), zLoss > 0 ? 2 : 1),
      sum(accOf(type), zLoss > 0 ? 2 : 1);
  OneOp whole("cross_entropy", type, {rows, vocabulary}, params, {"counted"}),
      dz("cross_entropy_dz", type, {rows, vocabulary, 0, vocabulary}, params, {"counted"}),
      added("cross_entropy_loss", type, {rows}, {1, 0, 0, zLoss}, {"counted"});
  for (OneOp *op : {&whole, &dz, &added})
    op->weighted(weights).rank.optimizer.divisors[0] = divisor;
  whole(pp_cross_entropy, Array(type, z), targets, slope, loss);
  OneOp("cross_entropy_stats", type, {rows, vocabulary, 0, vocabulary},
        cap > 0 ? Values{cap} : Values{})(pp_cross_entropy_stats, Array(type, z), targets, stats);
  dz(pp_cross_entropy_dz, Array(type, z), targets, stats, shard);
  added(pp_cross_entropy_loss, stats, targets, sum);
  return {loss.get(), slope.get(), sum.get(), shard.get()};
}

} // namespace

/// The loss of a row times its weight, in all kernels; an ignored target counts with no weight. Weights of 1 change no
/// bit, nor does twice the weight over twice the divisor.
TEST(KernelsCrossEntropy, LossesHaveWeights) {
  const std::vector<int32_t> targets = {2, 0, -100, 1, 4};
  const Values weights = {0.5, 3, 7, 0.3125, 1e-3F};
  Values twice = weights;
  for (double &weight : twice)
    weight *= 2;
  for (Type type : allTypes)
    for (auto [cap, zLoss] : {std::pair(0.0, 0.0), {2.0, 0.0}, {0.0, 0.25}, {30.0, 0.01}}) {
      SCOPED_TRACE(std::string(nameOf(type)) + " cap " + std::to_string(cap) + " z-loss " + std::to_string(zLoss));
      const Values z = rounded(type, random(5 * 7, 1, 3));
      const auto got = weightedLosses(type, z, cap, zLoss, 3.8125, weights);
      auto of = [&, cap = cap, zLoss = zLoss](const Values &v) {
        return lossReference(v, targets, 1 / 3.8125, cap, zLoss, weights);
      };
      const Values slopes = finiteDifferences(of, z, {1, 1});
      for (size_t i : {0, 2}) {
        expectNear(got[i], of(z), toleranceOf(accOf(type)) / 10, "loss");
        expectNear(got[i + 1], slopes, std::max(1e-8, toleranceOf(type)), "dz");
      }
      const auto doubled = weightedLosses(type, z, cap, zLoss, 2 * 3.8125, twice),
                 ones = weightedLosses(type, z, cap, zLoss, 4, Values(5, 1)),
                 none = weightedLosses(type, z, cap, zLoss, 4, {});
      for (size_t i = 0; i < got.size(); ++i) {
        expectEqual(doubled[i], got[i], "twice");
        expectEqual(ones[i], none[i], "weights of 1");
      }
    }
}

/// If a step has weights, targets without weights are a fault of the program.
TEST(KernelsCrossEntropy, TargetsWithoutWeightsFail) {
  OneOp op("cross_entropy", Type::F32, {1, 4}, {1}, {"counted"});
  const int32_t elsewhere = 0;
  const float weight = 1;
  op.rank.targetWeights = {{&elsewhere, &elsewhere + 1, &weight}};
  Array z(Type::F32, Values(4, 0)), loss(Type::F32, 1);
  EXPECT_EQ(op.status(pp_cross_entropy, z, std::vector<int32_t>{1}, z, loss), PP_INTERNAL);
  EXPECT_EQ(op.rank.message, "op 0 `cross_entropy` has targets without weights");
}

namespace {

/// Rows of logits over a vocabulary cut in shards of any widths.
struct ShardedLoss {
  Type type;
  std::vector<int64_t> widths;
  std::vector<int32_t> targets;
  double scale, cap = 0, zLoss = 0;
  /// Those of a kernel, and the cap if there is one.
  Values params(Values others) const {
    if (cap > 0)
      others.push_back(cap);
    return others;
  }
  /// The slopes of the loss and of dz.
  Values slopes(double cap) const {
    return zLoss > 0 ? Values{scale, cap, 0, zLoss} : cap > 0 ? Values{scale, cap} : Values{scale};
  }
  int64_t vocabulary() const { return std::accumulate(widths.begin(), widths.end(), int64_t(0)); }
  int64_t tokens() const { return int64_t(targets.size()); }
  Values columns(const Values &z, int64_t first, int64_t width) const {
    Values part;
    for (int64_t t = 0; t < tokens(); ++t)
      part.insert(part.end(), z.begin() + t * vocabulary() + first, z.begin() + t * vocabulary() + first + width);
    return part;
  }
  std::vector<int64_t> dims(int64_t first, int64_t width) const { return {tokens(), width, first, vocabulary()}; }

  Values stats(const Values &z, int64_t first, int64_t width) const {
    Array stats(accOf(type), size_t(3 * tokens()));
    OneOp op("cross_entropy_stats", type, dims(first, width), params({}));
    op(pp_cross_entropy_stats, Array(type, columns(z, first, width)), targets, stats);
    return stats.get();
  }
  Values merged(const Values &z) const {
    std::vector<Array> parts;
    std::vector<const void *> addresses;
    for (int64_t first = 0; int64_t width : widths) {
      parts.emplace_back(accOf(type), stats(z, first, width));
      first += width;
    }
    for (const Array &part : parts)
      addresses.push_back(part.data());
    Array stats(accOf(type), size_t(3 * tokens()));
    OneOp op("cross_entropy_merge", type, {tokens(), int64_t(parts.size())});
    op(pp_cross_entropy_merge, addresses.data(), stats);
    op(pp_cross_entropy_merge, addresses.data(), parts[0]); // over the first part
    expectEqual(parts[0].get(), stats.get(), "stats in place");
    return stats.get();
  }
};

void compareShards(const ShardedLoss &n, uint32_t seed) {
  SCOPED_TRACE(nameOf(n.type) + std::string(" seed ") + std::to_string(seed));
  Values z = random(size_t(n.tokens() * n.vocabulary()), seed, 3);
  z[seed % z.size()] += 60; // one shard far above the others
  z = rounded(n.type, z);
  Array stats(accOf(n.type), n.merged(z)), loss(accOf(n.type), n.zLoss > 0 ? 2 : 1);
  OneOp("cross_entropy_loss", n.type, {n.tokens()}, n.slopes(0))(pp_cross_entropy_loss, stats, n.targets, loss);
  double tolerance = toleranceOf(accOf(n.type));
  expectNear(loss.get(), lossReference(z, n.targets, n.scale, n.cap, n.zLoss), tolerance / 10, "loss");
  auto of = [&](const Values &v) { return lossReference(v, n.targets, n.scale, n.cap, n.zLoss); };
  Values expected = finiteDifferences(of, z, {1, 1});
  for (int64_t first = 0; int64_t width : n.widths) {
    Array dz(n.type, n.columns(z, first, width)); // dz over z
    OneOp op("cross_entropy_dz", n.type, n.dims(first, width), n.slopes(n.cap));
    op(pp_cross_entropy_dz, dz, n.targets, stats, dz);
    expectNear(dz.get(), n.columns(expected, first, width), std::max(1e-8, toleranceOf(n.type)),
               "dz from column " + std::to_string(first));
    first += width;
  }
}

} // namespace

/// Targets in and out of every shard, ignored ones, shards of one column and of many.
TEST(KernelsCrossEntropy, ShardsOfTheVocabulary) {
  for (Type type : allTypes)
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      std::mt19937 generator(seed);
      auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(generator); };
      ShardedLoss n{type, {}, {}, 0.125 * seed};
      for (int left = pick(1, 5); left; --left)
        n.widths.push_back(pick(1, 40));
      int last = int(n.vocabulary()) - 1;
      n.targets = {0, last, -1, pick(0, last), pick(0, last), pick(0, last)};
      compareShards(n, seed);
      n.cap = seed % 2 ? 2 : 30;
      compareShards(n, seed);
      n.cap = seed % 2 ? 0 : 30, n.zLoss = 0.001 * seed;
      compareShards(n, seed);
    }
}

/// One shard is the whole: the same gradient as in one pass, up to the order of its roundings.
TEST(KernelsCrossEntropy, OneShardEqualsWholeRows) {
  ShardedLoss n{Type::F32, {50}, {2, 0, -1, 49}, 0.25};
  Values z = rounded(Type::F32, random(200, 1, 3));
  Array dz(Type::F32, 200), whole(Type::F32, 200), loss(Type::F32, 1);
  OneOp("cross_entropy", Type::F32, {4, 50}, {0.25})(pp_cross_entropy, Array(Type::F32, z), n.targets, whole, loss);
  OneOp("cross_entropy_dz", Type::F32, n.dims(0, 50), {0.25})(pp_cross_entropy_dz, Array(Type::F32, z), n.targets,
                                                              Array(Type::F32, n.merged(z)), dz);
  expectNear(dz.get(), whole.get(), 1e-7, "dz");
}

/// Shards of equal width whose last one goes beyond the vocabulary: what is there, here no numbers at all, is read
/// nowhere and has the gradient 0.
TEST(KernelsCrossEntropy, ColumnsBeyondTheVocabularyDoNotExist) {
  for (Type type : allTypes)
    for (int64_t vocabulary : {50, 257}) // shards of 13 and 65 columns, of which the last one has 11 and 62
      for (double cap : {0.0, 2.0}) {
        SCOPED_TRACE(std::string(nameOf(type)) + " of " + std::to_string(vocabulary) + " cap " + std::to_string(cap));
        const int64_t width = (vocabulary + 3) / 4, rest = vocabulary - 3 * width;
        ShardedLoss n{type, {width, width, width, rest}, {2, int32_t(vocabulary) - 1, -1, 0}, 0.25, cap};
        Values z = rounded(type, random(size_t(4 * vocabulary), 1, 3)), last = n.columns(z, 3 * width, rest);
        Values padded, gradient;
        auto of = [&](const Values &v) { return lossReference(v, n.targets, n.scale, cap); };
        Values expected = n.columns(finiteDifferences(of, z, {1}), 3 * width, rest);
        for (int64_t t = 0; t < 4; ++t)
          for (int64_t i = 0; i < width; ++i) {
            padded.push_back(i < rest ? last[size_t(t * rest + i)] : NAN);
            gradient.push_back(i < rest ? expected[size_t(t * rest + i)] : 0);
          }
        Array dz(type, padded), stats(accOf(type), 12);
        OneOp("cross_entropy_stats", type, n.dims(3 * width, width), n.params({}))(pp_cross_entropy_stats, dz,
                                                                                   n.targets, stats);
        expectNear(stats.get(), n.stats(z, 3 * width, rest), toleranceOf(accOf(type)) / 10, "stats");
        OneOp("cross_entropy_dz", type, n.dims(3 * width, width),
              n.params({n.scale}))(pp_cross_entropy_dz, dz, n.targets, Array(accOf(type), n.merged(z)), dz);
        expectNear(dz.get(), gradient, std::max(1e-8, toleranceOf(type)), "dz");
        for (int64_t t = 0; t < 4; ++t)
          for (int64_t i = rest; i < width; ++i)
            EXPECT_EQ(dz.get()[size_t(t * width + i)], 0);
      }
}

TEST(KernelsCrossEntropy, TargetOutsideTheVocabularyFails) {
  for (bool outside : {false, true}) {
    OneOp op("cross_entropy_stats", Type::F32, {1, 4, 4, 12});
    Array z(Type::F32, Values(4, 0)), stats(Type::F32, 3);
    std::vector<int32_t> target = {outside ? 12 : 11};
    EXPECT_EQ(op.status(pp_cross_entropy_stats, z, target, stats), outside ? PP_INVALID : PP_OK);
    EXPECT_EQ(op.rank.message, outside && !op.kernels->failures()
                                   ? "op 0 `cross_entropy_stats` met a token or target outside its vocabulary"
                                   : "");
    EXPECT_TRUE(outside || stats.get()[2] == 0);
  }
}
