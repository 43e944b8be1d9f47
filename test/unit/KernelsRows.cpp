// Row loops: norms, rope, embedding and positions against f64 references and finite differences.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Kernels.h"

using namespace pp;
using namespace pp::test;

namespace {

std::vector<std::string> flags(bool on, const char *name) {
  return on ? std::vector<std::string>{name} : std::vector<std::string>{};
}

struct Norm {
  Values y, mean, rstd;
};

/// Layernorm, or rmsnorm where b is empty.
Norm normReference(const Values &x, const Values &g, const Values &b, double epsilon) {
  size_t h = g.size(), rows = x.size() / h;
  Norm norm{Values(x.size()), Values(rows), Values(rows)};
  for (size_t t = 0; t < rows; ++t) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < h && !b.empty(); ++i)
      mean += x[t * h + i] / double(h);
    for (size_t i = 0; i < h; ++i)
      variance += (x[t * h + i] - mean) * (x[t * h + i] - mean) / double(h);
    norm.mean[t] = mean;
    norm.rstd[t] = 1 / std::sqrt(variance + epsilon);
    for (size_t i = 0; i < h; ++i)
      norm.y[t * h + i] = (x[t * h + i] - mean) * norm.rstd[t] * g[i] + (b.empty() ? 0 : b[i]);
  }
  return norm;
}

struct NormCase {
  Type type;
  int64_t t, h;
  Values x, g, b, dy, old;
  double epsilon = 1e-5;
  NormCase(Type type, int64_t t, int64_t h)
      : type(type), t(t), h(h), x(rounded(type, random(size_t(t * h), 1))), g(rounded(type, random(size_t(h), 2))),
        b(rounded(type, random(size_t(h), 3))), dy(rounded(type, random(size_t(t * h), 4))),
        old(rounded(type, random(size_t(t * h), 5))) {}
  Norm reference(bool layer) const { return normReference(x, g, layer ? b : Values(), epsilon); }
  Values differences(bool layer, const Values &at, const std::function<Values(const Values &)> &f) const {
    (void)layer;
    return finiteDifferences(f, at, dy);
  }
};

void forEachNorm(const std::function<void(const NormCase &)> &test) {
  for (Type type : allTypes)
    for (auto [t, h] : {std::pair<int64_t, int64_t>{1, 4}, {3, 17}, {5, 32}, {2, 43}})
      test(NormCase(type, t, h));
}

} // namespace

TEST(KernelsRows, LayernormAndItsRebuild) {
  forEachNorm([](const NormCase &c) {
    Norm expected = c.reference(true);
    Type acc = accOf(c.type);
    Array y(c.type, c.x.size()), mean(acc, size_t(c.t)), rstd(acc, size_t(c.t)), again(c.type, c.x.size());
    Array x(c.type, c.x), g(c.type, c.g), b(c.type, c.b);
    OneOp("layernorm", c.type, {c.t, c.h}, {c.epsilon})(pp_layernorm, x, g, b, y, mean, rstd);
    expectNear(y.get(), expected.y, toleranceOf(c.type), "y");
    expectNear(mean.get(), expected.mean, toleranceOf(acc), "mean");
    expectNear(rstd.get(), expected.rstd, toleranceOf(acc), "rstd");
    OneOp("layernorm_rebuild", c.type, {c.t, c.h})(pp_layernorm_rebuild, x, g, b, mean, rstd, again);
    expectEqual(again.get(), y.get(), "rebuilt");
  });
}

TEST(KernelsRows, RmsnormAndItsRebuild) {
  forEachNorm([](const NormCase &c) {
    Norm expected = c.reference(false);
    Array y(c.type, c.x.size()), rstd(accOf(c.type), size_t(c.t)), again(c.type, c.x.size());
    Array x(c.type, c.x), g(c.type, c.g);
    OneOp("rmsnorm", c.type, {c.t, c.h}, {c.epsilon})(pp_rmsnorm, x, g, y, rstd);
    expectNear(y.get(), expected.y, toleranceOf(c.type), "y");
    expectNear(rstd.get(), expected.rstd, toleranceOf(accOf(c.type)), "rstd");
    OneOp("rmsnorm_rebuild", c.type, {c.t, c.h})(pp_rmsnorm_rebuild, x, g, rstd, again);
    expectEqual(again.get(), y.get(), "rebuilt");
  });
}

TEST(KernelsRows, NormDerivatives) {
  forEachNorm([](const NormCase &c) {
    for (bool layer : {false, true})
      for (bool adds : {false, true}) {
        Norm norm = c.reference(layer);
        auto y = [&](const Values &x, const Values &g, const Values &b) {
          return normReference(x, g, layer ? b : Values(), c.epsilon).y;
        };
        Values dxExpected = finiteDifferences([&](const Values &v) { return y(v, c.g, c.b); }, c.x, c.dy);
        Values dgExpected = finiteDifferences([&](const Values &v) { return y(c.x, v, c.b); }, c.g, c.dy);
        Values dbExpected = finiteDifferences([&](const Values &v) { return y(c.x, c.g, v); }, c.b, c.dy);
        for (size_t i = 0; i < dxExpected.size() && adds; ++i)
          dxExpected[i] += c.old[i];
        Type acc = accOf(c.type);
        Array dy(c.type, c.dy), x(c.type, c.x), g(c.type, c.g), mean(acc, norm.mean), rstd(acc, norm.rstd);
        Array dx(c.type, c.x.size()), dg(acc, size_t(c.h)), db(acc, size_t(c.h));
        if (adds)
          dx.set(c.old);
        if (layer)
          OneOp("layernorm_bwd", c.type, {c.t, c.h}, {}, flags(adds, "accumulate"))(pp_layernorm_bwd, dy, x, g, mean,
                                                                                    rstd, dx, dg, db);
        else
          OneOp("rmsnorm_bwd", c.type, {c.t, c.h}, {}, flags(adds, "accumulate"))(pp_rmsnorm_bwd, dy, x, g, rstd, dx,
                                                                                  dg);
        // The five points leave 1e-8 where a row of four values bends strongly.
        double tolerance = c.type == Type::F64 ? 1e-7 : toleranceOf(c.type);
        expectNear(dx.get(), dxExpected, tolerance, "dx");
        expectNear(dg.get(), dgExpected, std::max(1e-8, toleranceOf(acc)), "dg");
        if (layer)
          expectNear(db.get(), dbExpected, std::max(1e-8, toleranceOf(acc)), "db");
      }
  });
}

/// Long rows and many of them, by the textbook's derivative: on a GPU threads hold one pack of a row, two or four, or
/// not all of it, and blocks have one row or more.
TEST(KernelsRows, GradientsOfLongNorms) {
  for (Type type : allTypes)
    for (auto [t, h] : {std::pair<int64_t, int64_t>{270, 40}, {3, 300}, {3, 301}, {2, 2056}, {2, 2051}, {2, 16392}})
      for (bool layer : {false, true}) {
        SCOPED_TRACE(std::string(nameOf(type)) + " " + std::to_string(h) + (layer ? " layernorm" : " rmsnorm"));
        NormCase c(type, t, h);
        Norm norm = c.reference(layer);
        auto width = size_t(h);
        Values dxExpected(c.x.size()), dgExpected(width, 0), dbExpected(width, 0);
        for (size_t row = 0; row < c.x.size(); row += width) {
          double mean = norm.mean[row / width], rstd = norm.rstd[row / width], along = 0, sum = 0;
          for (size_t i = 0; i < width; ++i) {
            double slope = c.dy[row + i] * c.g[i], normal = (c.x[row + i] - mean) * rstd;
            along += slope * normal / double(h), sum += layer ? slope / double(h) : 0;
            dgExpected[i] += c.dy[row + i] * normal, dbExpected[i] += c.dy[row + i];
          }
          for (size_t i = 0; i < width; ++i)
            dxExpected[row + i] =
                rstd * (c.dy[row + i] * c.g[i] - sum - (c.x[row + i] - mean) * rstd * along) + c.old[row + i];
        }
        Type acc = accOf(type);
        Array dy(type, c.dy), x(type, c.x), g(type, c.g), mean(acc, norm.mean), rstd(acc, norm.rstd), dx(type, c.old);
        Array dg(acc, width), db(acc, width);
        OneOp op(layer ? "layernorm_bwd" : "rmsnorm_bwd", type, {t, h}, {}, {"accumulate"});
        for (int call = 0; call < 2; ++call) { // the second one finds the scratch as the first one left it
          dx.set(c.old);
          if (layer)
            op(pp_layernorm_bwd, dy, x, g, mean, rstd, dx, dg, db);
          else
            op(pp_rmsnorm_bwd, dy, x, g, rstd, dx, dg);
        }
        expectNear(dx.get(), dxExpected, toleranceOf(type), "dx");
        expectNear(dg.get(), dgExpected, toleranceOf(acc), "dg");
        if (layer)
          expectNear(db.get(), dbExpected, toleranceOf(acc), "db");
      }
}

/// With `plus_one` the gain is the stored number plus 1: in the forward, the rebuilt output, and both gradients.
TEST(KernelsRows, RmsnormWithAGainStoredLessOne) {
  forEachNorm([](const NormCase &c) {
    Values gain = c.g;
    for (double &g : gain)
      g += 1;
    Norm expected = normReference(c.x, gain, {}, c.epsilon);
    Type acc = accOf(c.type);
    Array y(c.type, c.x.size()), rstd(acc, size_t(c.t)), again(c.type, c.x.size()), x(c.type, c.x), g(c.type, c.g);
    OneOp("rmsnorm", c.type, {c.t, c.h}, {c.epsilon}, {"plus_one"})(pp_rmsnorm, x, g, y, rstd);
    expectNear(y.get(), expected.y, toleranceOf(c.type), "y");
    OneOp("rmsnorm_rebuild", c.type, {c.t, c.h}, {}, {"plus_one"})(pp_rmsnorm_rebuild, x, g, rstd, again);
    expectEqual(again.get(), y.get(), "rebuilt");
    Array dx(c.type, c.old), dg(acc, size_t(c.h));
    OneOp("rmsnorm_bwd", c.type, {c.t, c.h}, {}, {"accumulate", "plus_one"})(pp_rmsnorm_bwd, Array(c.type, c.dy), x, g,
                                                                             rstd, dx, dg);
    auto of = [&](const Values &v, const Values &by) { return normReference(v, by, {}, c.epsilon).y; };
    Values slopes = finiteDifferences([&](const Values &v) { return of(v, gain); }, c.x, c.dy);
    for (size_t i = 0; i < slopes.size(); ++i)
      slopes[i] += c.old[i];
    expectNear(dx.get(), slopes, c.type == Type::F64 ? 1e-7 : toleranceOf(c.type), "dx");
    expectNear(dg.get(), finiteDifferences([&](const Values &v) { return of(c.x, v); }, gain, c.dy),
               std::max(1e-8, toleranceOf(acc)), "dg");
  });
}

/// A shift of x changes no layernorm, a scale no rmsnorm (up to epsilon).
TEST(KernelsRows, NormInvariances) {
  int64_t t = 3, h = 24;
  Values x = random(size_t(t * h), 1), ones(size_t(h), 1), zeros(size_t(h), 0), shifted = x, scaled = x;
  for (size_t i = 0; i < x.size(); ++i)
    shifted[i] += 7, scaled[i] *= 3;
  Array g(Type::F64, ones), b(Type::F64, zeros), mean(Type::F64, size_t(t)), rstd(Type::F64, size_t(t));
  Array y(Type::F64, x.size()), z(Type::F64, x.size());
  OneOp layer("layernorm", Type::F64, {t, h}, {1e-12}), rms("rmsnorm", Type::F64, {t, h}, {1e-12});
  layer(pp_layernorm, Array(Type::F64, x), g, b, y, mean, rstd);
  layer(pp_layernorm, Array(Type::F64, shifted), g, b, z, mean, rstd);
  expectNear(z.get(), y.get(), 1e-11, "shift");
  rms(pp_rmsnorm, Array(Type::F64, x), g, y, rstd);
  rms(pp_rmsnorm, Array(Type::F64, scaled), g, z, rstd);
  expectNear(z.get(), y.get(), 1e-11, "scale");
}

namespace {

Values ropeReference(const Values &x, int64_t s, int64_t heads, int64_t d, int64_t offset, double theta, bool pair,
                     double sign) {
  Values y(x.size());
  for (size_t i = 0; i < x.size(); i += size_t(d)) {
    double position = double(offset + int64_t(i) / (d * heads) % s);
    for (size_t j = 0; j < size_t(d) / 2; ++j) {
      double angle = sign * position * std::pow(theta, -2.0 * double(j) / double(d));
      size_t first = i + (pair ? 2 * j : j), second = pair ? first + 1 : first + size_t(d) / 2;
      y[first] = x[first] * std::cos(angle) - x[second] * std::sin(angle);
      y[second] = x[second] * std::cos(angle) + x[first] * std::sin(angle);
    }
  }
  return y;
}

} // namespace

TEST(KernelsRows, Rope) {
  for (Type type : allTypes)
    for (bool pair : {false, true})
      for (int64_t d : {2, 10, 32})
        for (int64_t offset : {0, 1000000}) {
          int64_t batch = 2, s = 5, heads = 3;
          Values x = rounded(type, random(size_t(batch * s * heads * d), 1));
          Array y(type, x); // in place
          OneOp("rope", type, {batch, s, heads, d, offset}, {500.0}, flags(pair, "pair"))(pp_rope, y, nullptr, y);
          expectNear(y.get(), ropeReference(x, s, heads, d, offset, 500, pair, 1), toleranceOf(type) / 2, nameOf(type));
          std::vector<std::string> inverse = flags(pair, "pair");
          inverse.push_back("inverse");
          Array back(type, x.size());
          OneOp("rope", type, {batch, s, heads, d, offset}, {500.0}, inverse)(pp_rope, y, nullptr, back);
          expectNear(back.get(), x, toleranceOf(type), "turned back");
        }
}

/// What is turned, and turned back, grows with the position: 1 + f log(1 + floor((t + m) / n)).
TEST(KernelsRows, RopeThatGrows) {
  for (Type type : allTypes)
    for (double shift : {0.0, 1.0}) {
      const int64_t batch = 2, s = 9, heads = 3, d = 4, offset = 7;
      const Values table = {1.25, 0.5, 0.01, 0.3, 4, shift};
      const Values x = rounded(type, random(size_t(batch * s * heads * d), 1));
      Values plain(x.size()), expected(x.size());
      std::vector<int64_t> dims = {batch, s, heads, d, offset};
      Array turned(type, x.size()), y(type, x.size());
      OneOp("rope", type, dims, {1.25, 0.5, 0.01}, {})(pp_rope, Array(type, x), nullptr, turned);
      plain = turned.get();
      for (size_t i = 0; i < x.size(); ++i) {
        // Positions 7 to 15: 4 divides 8 and 12, from which on there is a step more.
        const int64_t position = offset + int64_t(i) / (d * heads) % s + int64_t(shift);
        const double steps = position < 8 ? 1 : position < 12 ? 2 : position < 16 ? 3 : 4;
        expected[i] = plain[i] * (1 + 0.3 * std::log(1 + steps));
      }
      OneOp("rope", type, dims, table, {})(pp_rope, Array(type, x), nullptr, y);
      expectNear(y.get(), expected, 2 * toleranceOf(type), "grown");
      OneOp("rope", type, dims, {1.25, 0.5, 0.01}, {"inverse"})(pp_rope, Array(type, x), nullptr, turned);
      plain = turned.get();
      for (size_t i = 0; i < x.size(); ++i) {
        const int64_t position = offset + int64_t(i) / (d * heads) % s + int64_t(shift);
        expected[i] = plain[i] * (1 + 0.3 * std::log(1 + std::floor(double(position) / 4)));
      }
      OneOp("rope", type, dims, table, {"inverse"})(pp_rope, Array(type, x), nullptr, y);
      expectNear(y.get(), expected, 2 * toleranceOf(type), "the derivative");
    }
}

/// A table in place of theta: a factor of all that is turned, and an angle for each pair of its own.
TEST(KernelsRows, RopeOfATable) {
  for (Type type : allTypes)
    for (bool pair : {false, true}) {
      int64_t batch = 2, s = 5, heads = 3, d = 10, offset = 7;
      Values table = {1.25, 1.0, 0.5, 0.01, 3.0, 0.0}, x = rounded(type, random(size_t(batch * s * heads * d), 1));
      Values expected(x.size()), again(x.size());
      for (size_t i = 0; i < x.size(); i += size_t(d))
        for (size_t j = 0; j < size_t(d) / 2; ++j) {
          double angle = double(offset + int64_t(i) / (d * heads) % s) * table[1 + j];
          size_t a = i + (pair ? 2 * j : j), b = pair ? a + 1 : a + size_t(d) / 2;
          expected[a] = 1.25 * (x[a] * std::cos(angle) - x[b] * std::sin(angle));
          expected[b] = 1.25 * (x[b] * std::cos(angle) + x[a] * std::sin(angle));
          again[a] = 1.25 * 1.25 * x[a]; // turned back: a rotation, twice the factor
          again[b] = 1.25 * 1.25 * x[b];
        }
      Array y(type, x), back(type, x.size());
      std::vector<int64_t> dims = {batch, s, heads, d, offset};
      OneOp("rope", type, dims, table, flags(pair, "pair"))(pp_rope, y, nullptr, y);
      expectNear(y.get(), expected, toleranceOf(type) / 2, nameOf(type));
      std::vector<std::string> inverse = flags(pair, "pair");
      inverse.push_back("inverse");
      OneOp("rope", type, dims, table, inverse)(pp_rope, y, nullptr, back);
      expectNear(back.get(), again, 2 * toleranceOf(type), "turned back");
    }
}

/// A table of fewer pairs than a head has: what is behind them passes, also of heads of odd width.
TEST(KernelsRows, RopeOfAPart) {
  for (Type type : allTypes)
    for (int64_t d : {7, 16})
      for (bool pair : {false, true}) {
        int64_t batch = 2, s = 5, heads = 3;
        size_t pairs = d == 7 ? 2 : 4;
        Values table = {1.25, 1.0, 0.5}, x = rounded(type, random(size_t(batch * s * heads * d), 1)), expected = x;
        if (d == 16)
          table.insert(table.end(), {0.01, 3.0});
        for (size_t i = 0; i < x.size(); i += size_t(d))
          for (size_t j = 0; j < pairs; ++j) {
            double angle = double(int64_t(i) / (d * heads) % s) * table[1 + j];
            size_t a = i + (pair ? 2 * j : j), b = pair ? a + 1 : a + pairs;
            expected[a] = 1.25 * (x[a] * std::cos(angle) - x[b] * std::sin(angle));
            expected[b] = 1.25 * (x[b] * std::cos(angle) + x[a] * std::sin(angle));
          }
        Array y(type, x.size()), inPlace(type, x);
        OneOp op("rope", type, {batch, s, heads, d, 0}, table, flags(pair, "pair"));
        op(pp_rope, Array(type, x), nullptr, y);
        op(pp_rope, inPlace, nullptr, inPlace);
        expectNear(y.get(), expected, toleranceOf(type) / 2, nameOf(type));
        expectEqual(inPlace.get(), y.get(), "in place");
        for (size_t i = 2 * pairs; i < size_t(d); ++i)
          ASSERT_EQ(y.get()[i], x[i]);
      }
}

/// q, k and v in one tensor: the heads of q and k turn as those of a tensor of their own, and v passes.
TEST(KernelsRows, RopeOfAPackedTensor) {
  for (Type type : allTypes)
    for (int64_t passing : {1, 3})
      for (int64_t d : {7, 32}) {
        int64_t batch = 2, s = 5, heads = 4, all = heads + passing;
        Values table = d == 7 ? Values{1.25, 1.0, 0.5} : Values{500.0};
        Values x = rounded(type, random(size_t(batch * s * all * d), 1)), turning, expected = x;
        auto turned = [&](int64_t i) { return i / d % all < heads; };
        for (int64_t i = 0; i < int64_t(x.size()); ++i)
          if (turned(i))
            turning.push_back(x[size_t(i)]);
        Array apart(type, turning), y(type, x.size()), inPlace(type, x);
        OneOp("rope", type, {batch, s, heads, d, 3}, table, {"pair"})(pp_rope, apart, nullptr, apart);
        OneOp op("rope", type, {batch, s, heads, d, 3, passing}, table, {"pair", "packed"});
        Values its = apart.get();
        for (int64_t i = 0, next = 0; i < int64_t(x.size()); ++i)
          if (turned(i))
            expected[size_t(i)] = its[size_t(next++)];
        op(pp_rope, Array(type, x), nullptr, y);
        op(pp_rope, inPlace, nullptr, inPlace);
        expectEqual(y.get(), expected, nameOf(type));
        expectEqual(inPlace.get(), expected, "in place");
      }
}

/// Products of turned q and k see only the distance: shifting all positions by 1000 changes nothing.
TEST(KernelsRows, RopeShiftInvariance) {
  int64_t s = 6, d = 16;
  Values q = random(size_t(s * d), 1), k = random(size_t(s * d), 2);
  auto products = [&](int64_t offset) {
    OneOp op("rope", Type::F64, {1, s, 1, d, offset}, {10000.0});
    Array turnedQ(Type::F64, q), turnedK(Type::F64, k);
    op(pp_rope, turnedQ, nullptr, turnedQ);
    op(pp_rope, turnedK, nullptr, turnedK);
    Values a = turnedQ.get(), b = turnedK.get(), all(size_t(s * s), 0);
    for (size_t i = 0; i < size_t(s); ++i)
      for (size_t j = 0; j < size_t(s); ++j)
        for (size_t c = 0; c < size_t(d); ++c)
          all[i * size_t(s) + j] += a[i * size_t(d) + c] * b[j * size_t(d) + c];
    return all;
  };
  expectNear(products(1000), products(0), 1e-12, "shifted");
}

TEST(KernelsRows, EmbeddingAndItsGradient) {
  for (Type type : allTypes)
    for (bool adds : {false, true}) {
      int64_t t = 40, h = 11, rows = 7;
      Type acc = accOf(type);
      std::vector<int32_t> tokens(static_cast<size_t>(t));
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = int32_t(i * i % 5); // many repeats; rows 5 and 6 unused
      Values table = rounded(type, random(size_t(rows * h), 1)), dx = rounded(type, random(size_t(t * h), 2));
      Values old = rounded(acc, random(size_t(rows * h), 3)), x(size_t(t * h)),
             sum = adds ? old : Values(old.size(), 0);
      for (size_t i = 0; i < size_t(t); ++i)
        for (size_t j = 0; j < size_t(h); ++j) {
          x[i * size_t(h) + j] = table[size_t(tokens[i]) * size_t(h) + j];
          sum[size_t(tokens[i]) * size_t(h) + j] += dx[i * size_t(h) + j];
        }
      Array out(type, x.size()), grad(acc, old.size());
      OneOp("embedding", type, {t, h, rows})(pp_embedding, tokens, Array(type, table), out);
      expectEqual(out.get(), x, "x");
      if (adds)
        grad.set(old);
      OneOp("embedding_dw", type, {t, h, rows}, {}, flags(adds, "accumulate"))(pp_embedding_dw, tokens, Array(type, dx),
                                                                               grad);
      expectNear(grad.get(), sum, toleranceOf(acc) / 10, "dtable");
    }
}

/// The row of the padding token takes nothing, of a whole table and of shards; all other rows are as without it.
TEST(KernelsRows, PaddingTakesNoGradient) {
  for (Type type : allTypes)
    for (auto [first, rows] : {std::pair<int64_t, int64_t>(0, 7), {0, 3}, {3, 4}})
      for (int64_t pad : {0, 4, 6}) {
        int64_t t = 40, h = 11, whole = 7;
        Type acc = accOf(type);
        std::vector<int32_t> tokens(static_cast<size_t>(t));
        for (size_t i = 0; i < tokens.size(); ++i)
          tokens[i] = int32_t(i * i % 5);
        Array dx(type, random(size_t(t * h), 2)), all(acc, size_t(rows * h)), padded(acc, size_t(rows * h));
        OneOp("embedding_dw", type, {t, h, rows, first, whole})(pp_embedding_dw, tokens, dx, all);
        OneOp("embedding_dw", type, {t, h, rows, first, whole}, {double(pad)})(pp_embedding_dw, tokens, dx, padded);
        Values expected = all.get();
        for (int64_t j = 0; j < h; ++j)
          if (pad >= first && pad < first + rows)
            expected[size_t((pad - first) * h + j)] = 0;
        expectEqual(padded.get(), expected, nameOf(type));
      }
}

/// A shard has rows from `first` on: its tokens' rows, and zeros for all others, whose gradients it leaves alone.
TEST(KernelsRows, RowsOfAShardAndTheirGradient) {
  for (Type type : allTypes)
    for (auto [first, rows] : {std::pair<int64_t, int64_t>(0, 4), {4, 1}, {5, 6}, {0, 11}}) {
      int64_t t = 23, h = 5, whole = 11;
      Type acc = accOf(type);
      std::vector<int32_t> tokens(static_cast<size_t>(t));
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = int32_t(i * i * 3 % 11);
      Values table = rounded(type, random(size_t(rows * h), 1)), dx = rounded(type, random(size_t(t * h), 2));
      Values x(size_t(t * h), 0), sum = rounded(acc, random(size_t(rows * h), 3)), old = sum;
      for (size_t i = 0; i < size_t(t * h); ++i)
        if (int64_t row = tokens[i / size_t(h)] - first; row >= 0 && row < rows) {
          x[i] = table[size_t(row * h) + i % size_t(h)];
          sum[size_t(row * h) + i % size_t(h)] += dx[i];
        }
      Array out(type, Values(x.size(), 7)), grad(acc, old);
      std::vector<int64_t> dims = {t, h, rows, first, whole};
      OneOp("embedding", type, dims)(pp_embedding, tokens, Array(type, table), out);
      expectEqual(out.get(), x, "x of rows from " + std::to_string(first));
      OneOp("embedding_dw", type, dims, {}, {"accumulate"})(pp_embedding_dw, tokens, Array(type, dx), grad);
      expectNear(grad.get(), sum, toleranceOf(acc) / 10, "dtable of rows from " + std::to_string(first));
    }
}

TEST(KernelsRows, PositionsAndTheirGradient) {
  for (Type type : allTypes)
    for (bool adds : {false, true}) {
      size_t batch = 3, s = 5, h = 9, offset = 2, context = 8;
      Type acc = accOf(type);
      std::vector<int64_t> dims = {int64_t(batch), int64_t(s), int64_t(h), int64_t(offset), int64_t(context)};
      Values p = rounded(type, random(context * h, 1)), dx = rounded(type, random(batch * s * h, 2));
      Values old = rounded(acc, random(context * h, 3)), x(batch * s * h), sum = adds ? old : Values(old.size(), 0);
      for (size_t i = 0; i < x.size(); ++i) {
        size_t at = (offset + i / h % s) * h + i % h;
        x[i] = p[at];
        sum[at] += dx[i];
      }
      Array out(type, x.size()), grad(acc, old.size());
      OneOp("positions", type, dims)(pp_positions, nullptr, Array(type, p), out);
      expectEqual(out.get(), x, "x");
      if (adds)
        grad.set(old);
      OneOp("positions_dw", type, dims, {}, flags(adds, "accumulate"))(pp_positions_dw, Array(type, dx), grad);
      expectNear(grad.get(), sum, toleranceOf(acc) / 10, "dp");
    }
}
