// Flat loops: gelu, gated units, add, columns, copies, sum of squares and AdamW against f64, slopes by differences.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Philox.h"
#include "test/unit/Kernels.h"

using namespace pp;
using namespace pp::test;

namespace {

using Function = double (*)(double);

double geluTanh(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double geluErf(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2))); }
double silu(double x) { return x / (1 + std::exp(-x)); }

/// Normal values, and some far out where exp saturates.
Values inputs(size_t n, uint32_t seed) {
  Values x = random(n, seed, 2);
  for (size_t i = 0; i < n && i < 8; ++i)
    x[i] = (i % 2 ? -1 : 1) * std::pow(10, double(i) / 3);
  return x;
}

Values map(const Values &x, Function f) {
  Values y(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = f(x[i]);
  return y;
}

std::vector<std::string> flags(bool on, const char *name) {
  return on ? std::vector<std::string>{name} : std::vector<std::string>{};
}

Values slopes(const Values &x, Function f, const Values &dy) {
  return finiteDifferences([&](const Values &moved) { return map(moved, f); }, x, dy);
}

} // namespace

TEST(KernelsElementwise, Gelu) {
  for (Type type : allTypes)
    for (bool exact : {false, true})
      for (size_t n : {1, 15, 333}) {
        Values x = rounded(type, inputs(n, 1)), dy = rounded(type, random(n, 2));
        OneOp op("gelu", type, {int64_t(n)}, {}, flags(exact, "exact"));
        Array y(type, n);
        op(pp_gelu, Array(type, x), y);
        Function f = exact ? geluErf : geluTanh;
        expectNear(y.get(), map(x, f), toleranceOf(type), nameOf(type));

        OneOp back("gelu_bwd", type, {int64_t(n)}, {}, flags(exact, "exact"));
        Array dx(type, dy); // in place over dy
        back(pp_gelu_bwd, dx, Array(type, x), dx);
        expectNear(dx.get(), slopes(x, f, dy), std::max(1e-8, toleranceOf(type)), nameOf(type));
      }
}

/// The two forms differ by up to 4.7e-4: neither may stand for the other.
TEST(KernelsElementwise, GeluFormsDiffer) {
  size_t n = 2001;
  Values x(n), tanhForm, erfForm;
  for (size_t i = 0; i < n; ++i)
    x[i] = (double(i) - 1000) / 250;
  Array y(Type::F64, n);
  OneOp("gelu", Type::F64, {int64_t(n)})(pp_gelu, Array(Type::F64, x), y);
  tanhForm = y.get();
  OneOp("gelu", Type::F64, {int64_t(n)}, {}, {"exact"})(pp_gelu, Array(Type::F64, x), y);
  erfForm = y.get();
  double worst = 0;
  for (size_t i = 0; i < n; ++i)
    worst = std::max(worst, std::fabs(tanhForm[i] - erfForm[i]));
  EXPECT_NEAR(worst, 4.7e-4, 0.1e-4);
}

TEST(KernelsElementwise, Swiglu) {
  for (Type type : allTypes)
    for (size_t n : {1, 17, 300}) {
      Values p = rounded(type, inputs(n, 1)), q = rounded(type, random(n, 2)), dy = rounded(type, random(n, 3));
      Values expected(n), dqExpected(n), weight(n);
      for (size_t i = 0; i < n; ++i) {
        expected[i] = silu(p[i]) * q[i];
        dqExpected[i] = silu(p[i]) * dy[i];
        weight[i] = dy[i] * q[i];
      }
      Array y(type, n), dp(type, p), dq(type, q); // dp over p, dq over q
      OneOp("swiglu", type, {int64_t(n)})(pp_swiglu, dp, dq, y);
      expectNear(y.get(), expected, toleranceOf(type), nameOf(type));
      OneOp("swiglu_bwd", type, {int64_t(n)})(pp_swiglu_bwd, Array(type, dy), dp, dq, dp, dq);
      expectNear(dp.get(), slopes(p, silu, weight), std::max(1e-8, toleranceOf(type)), "dp");
      expectNear(dq.get(), dqExpected, toleranceOf(type), "dq");
    }
}

/// The known answers of the authors' Random123 library.
TEST(KernelsElementwise, PhiloxKnownAnswers) {
  auto expectWords = [](uint64_t key, Words counter, Words expected) {
    Words words = philox(key, counter);
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(words.v[i], expected.v[i]) << i;
  };
  expectWords(0, {{0, 0, 0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expectWords(~uint64_t(0), {{~0u, ~0u, ~0u, ~0u}}, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expectWords(0x299f31d0a4093822, {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

/// Dropout depends on the number of each element, whatever part of the sequences a call has; evaluation drops nothing.
TEST(KernelsElementwise, Dropout) {
  for (Type type : allTypes)
    for (int64_t width : {5, 16}) {
      const int64_t batch = 2, s = 6, site = 4711;
      const double rate = 0.3;
      const uint64_t seed = 0x123456789abcdef0;
      std::vector<int32_t> rows;
      for (int64_t i = 0; i < batch * s; ++i)
        rows.push_back(int32_t(40 + i / s));
      Values x = rounded(type, random(size_t(batch * s * width), 1)), expected = x;
      size_t dropped = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        auto place = uint64_t(int64_t(i) % (s * width)), row = uint64_t(40 + int64_t(i) / (s * width));
        Words words = philox(seed, {{uint32_t(place / 4), uint32_t(site) << 16, uint32_t(row), 0}});
        bool stays = double(words.v[place % 4]) >= rate * 4294967296.0;
        expected[i] = stays ? x[i] / (1 - rate) : 0;
        dropped += !stays;
      }
      EXPECT_NEAR(double(dropped) / double(x.size()), rate, 0.15);
      OneOp op("dropout", type, {batch, s, width, 0, site}, {rate});
      op.rank.optimizer.seed = seed;
      Array y(type, x);
      op(pp_dropout, y, rows, y);
      expectNear(y.get(), expected, toleranceOf(type) / 2, nameOf(type));
      op.rank.optimizer.holds = true;
      op(pp_dropout, Array(type, x), rows, y);
      expectEqual(y.get(), x, "held");
      OneOp last("dropout", type, {1, 2, width, 4, site}, {rate}); // the last two tokens of the first sequence
      last.rank.optimizer.seed = seed;
      Values part(x.begin() + 4 * width, x.begin() + 6 * width);
      Array z(type, part.size());
      last(pp_dropout, Array(type, part), std::vector<int32_t>{40, 40}, z);
      expectNear(z.get(), Values(expected.begin() + 4 * width, expected.begin() + 6 * width), toleranceOf(type) / 2,
                 "a slice");
    }
}

namespace {

/// A gated unit by its definition.
struct GluCase {
  const char *activation;
  double limit, alpha, plus;
  Function act() const { return activation == std::string("exact") ? geluErf : geluTanh; }
  double gate(double p) const {
    double g = limit > 0 ? std::min(p, limit) : p;
    return activation[0] ? act()(g) : g / (1 + std::exp(-alpha * g));
  }
  double up(double q) const { return (limit > 0 ? std::clamp(q, -limit, limit) : q) + plus; }
  Values y(const Values &p, const Values &q) const {
    Values y(p.size());
    for (size_t i = 0; i < p.size(); ++i)
      y[i] = gate(p[i]) * up(q[i]);
    return y;
  }
  OneOp op(const char *kernel, Type type, size_t n) const {
    return OneOp(kernel, type, {int64_t(n)}, {limit, alpha, plus}, flags(activation[0], activation));
  }
};

constexpr GluCase gluCases[] = {{"", 0, 1, 0},       {"", 1.5, 1.702, 1}, {"tanh", 0, 1, 0},
                                {"tanh", 1.5, 1, 0}, {"exact", 0, 1, 0},  {"exact", 1.5, 1, 0.5}};

/// Moves values away from a limit: a difference across the limit says nothing about the slopes on its two sides.
Values apartFrom(double limit, Values values) {
  for (double &value : values)
    if (limit > 0 && std::fabs(std::fabs(value) - limit) < 0.02)
      value = 0.25;
  return values;
}

} // namespace

TEST(KernelsElementwise, Glu) {
  for (Type type : allTypes)
    for (const GluCase &c : gluCases)
      for (size_t n : {1, 17, 300}) {
        SCOPED_TRACE(std::string(nameOf(type)) + " `" + c.activation + "` limit " + std::to_string(c.limit));
        Values p = rounded(type, apartFrom(c.limit, inputs(n, 1))), q = rounded(type, apartFrom(c.limit, inputs(n, 2)));
        Values dy = rounded(type, random(n, 3));
        Array y(type, n), dp(type, p), dq(type, q); // dp over p, dq over q
        c.op("glu", type, n)(pp_glu, dp, dq, y);
        expectNear(y.get(), c.y(p, q), toleranceOf(type), "y");
        c.op("glu_bwd", type, n)(pp_glu_bwd, Array(type, dy), dp, dq, dp, dq);
        auto of = [&](bool gate) {
          return [&, gate](const Values &moved) { return gate ? c.y(moved, q) : c.y(p, moved); };
        };
        expectNear(dp.get(), finiteDifferences(of(true), p, dy), std::max(1e-8, toleranceOf(type)), "dp");
        expectNear(dq.get(), finiteDifferences(of(false), q, dy), std::max(1e-8, toleranceOf(type)), "dq");
      }
}

/// p and q as columns of one tensor give the same bits as two tensors, and so do gradients that are written over them.
TEST(KernelsElementwise, GatesOfAPackedTensor) {
  for (Type type : allTypes)
    for (int64_t width : {1, 12, 64})
      for (bool limited : {false, true}) {
        const int64_t rows = 5, n = rows * width;
        auto columns = [&](Values both, bool second) {
          Values its;
          for (int64_t row = 0; row < rows; ++row)
            its.insert(its.end(), both.begin() + (2 * row + second) * width,
                       both.begin() + (2 * row + second + 1) * width);
          return its;
        };
        Values both = rounded(type, inputs(size_t(2 * n), 1)), dy = rounded(type, random(size_t(n), 3));
        Array y(type, size_t(n)), packedY(type, size_t(n)), dp(type, columns(both, false)),
            dq(type, columns(both, true));
        Array packed(type, both);
        std::vector<double> params = limited ? std::vector<double>{1.5, 1.702, 1} : std::vector<double>{};
        auto op = [&](const char *swiglu, const char *glu, bool isPacked) {
          return OneOp(limited ? glu : swiglu, type, isPacked ? std::vector<int64_t>{n, width} : std::vector{n}, params,
                       flags(isPacked, "packed"));
        };
        auto *forward = limited ? pp_glu : pp_swiglu;
        auto *backward = limited ? pp_glu_bwd : pp_swiglu_bwd;
        op("swiglu", "glu", false)(forward, dp, dq, y);
        op("swiglu", "glu", true)(forward, packed, nullptr, packedY);
        expectEqual(packedY.get(), y.get(), nameOf(type));
        op("swiglu_bwd", "glu_bwd", false)(backward, Array(type, dy), dp, dq, dp, dq);
        op("swiglu_bwd", "glu_bwd", true)(backward, Array(type, dy), packed, nullptr, packed, nullptr);
        expectEqual(columns(packed.get(), false), dp.get(), "dp");
        expectEqual(columns(packed.get(), true), dq.get(), "dq");
      }
}

/// At its limit an input still has a gradient, as torch.clamp has it; what is no number stays none.
TEST(KernelsElementwise, GluAtItsLimits) {
  for (Type type : allTypes) {
    Array dp(type, Values{2, 2, NAN}), dq(type, Values{2, -2, 1}), dy(type, Values{1, 1, 1}), y(type, 3);
    OneOp("glu", type, {3}, {2, 1, 0})(pp_glu, dp, dq, y);
    OneOp("glu_bwd", type, {3}, {2, 1, 0})(pp_glu_bwd, dy, dp, dq, dp, dq);
    EXPECT_GT(dp.get()[0], 1);
    EXPECT_GT(dq.get()[0], 1);
    EXPECT_GT(dq.get()[1], 1);
    for (const Array *array : {&y, &dp, &dq})
      EXPECT_TRUE(std::isnan(array->get()[2])) << nameOf(type);
  }
}

/// A glu with default options is the swiglu, up to the order of roundings.
TEST(KernelsElementwise, GluIsSwiglu) {
  Values p = rounded(Type::F32, inputs(300, 1)), q = rounded(Type::F32, random(300, 2));
  Array y(Type::F32, 300), z(Type::F32, 300);
  OneOp("glu", Type::F32, {300}, {0, 1, 0})(pp_glu, Array(Type::F32, p), Array(Type::F32, q), y);
  OneOp("swiglu", Type::F32, {300})(pp_swiglu, Array(Type::F32, p), Array(Type::F32, q), z);
  expectNear(y.get(), z.get(), 1e-7, "y");
}

TEST(KernelsElementwise, Scale) {
  for (Type type : allTypes)
    for (size_t n : {1, 15, 333}) {
      Values x = rounded(type, random(n, 1)), expected(n);
      for (size_t i = 0; i < n; ++i)
        expected[i] = 0.375 * x[i];
      OneOp op("scale", type, {int64_t(n)}, {0.375});
      Array y(type, n), over(type, x);
      op(pp_scale, over, y);
      expectEqual(y.get(), rounded(type, expected), "y");
      op(pp_scale, over, over);
      expectEqual(over.get(), rounded(type, expected), "over x");
    }
}

TEST(KernelsElementwise, AddBias) {
  for (Type type : allTypes)
    for (size_t h : {1, 15, 48}) {
      Values x = rounded(type, random(7 * h, 1)), bias = rounded(type, random(h, 2)), expected(7 * h);
      for (size_t i = 0; i < 7 * h; ++i)
        expected[i] = x[i] + bias[i % h];
      OneOp op("add_bias", type, {7, int64_t(h)});
      Array y(type, 7 * h), over(type, x), b(type, bias);
      op(pp_add_bias, over, b, y);
      expectEqual(y.get(), rounded(type, expected), "y");
      op(pp_add_bias, over, b, over);
      expectEqual(over.get(), rounded(type, expected), "over x");
      const Type acc = accOf(type); // logits of routers
      Values sums = rounded(acc, random(7 * h, 3));
      Array logits(acc, sums);
      for (size_t i = 0; i < 7 * h; ++i)
        sums[i] += bias[i % h];
      OneOp("add_bias", type, {7, int64_t(h)}, {}, {"sums"})(pp_add_bias, logits, b, logits);
      expectEqual(logits.get(), rounded(acc, sums), "sums");
    }
}

/// Another device counts what this one has, too: nothing is added.
TEST(KernelsElementwise, SumSquaresOfNothing) {
  Array grad(Type::F32, Values{2, 3}), sum(Type::F64, Values{7});
  OneOp("sum_squares", Type::F32, {0}, {}, {"accumulate"})(pp_sum_squares, grad, sum);
  EXPECT_EQ(sum.get()[0], 7);
  const void *both[] = {grad.data(), grad.data()};
  OneOp("sum_squares_all", Type::F32, {0, 0, 2, 0}, {}, {})(pp_sum_squares_all, both, sum);
  EXPECT_EQ(sum.get()[0], 13);
}

TEST(KernelsElementwise, AddAccumulateRound) {
  for (Type type : allTypes) {
    size_t n = 77;
    Values x = rounded(type, random(n, 1)), y = rounded(type, random(n, 2)), sum(n);
    for (size_t i = 0; i < n; ++i)
      sum[i] = x[i] + y[i];
    Array z(type, n), overX(type, x), overY(type, y);
    OneOp op("add", type, {int64_t(n)});
    op(pp_add, overX, overY, z);
    expectEqual(z.get(), rounded(type, sum), "z");
    op(pp_add, overX, Array(type, y), overX);
    expectEqual(overX.get(), rounded(type, sum), "over x");
    op(pp_add, Array(type, x), overY, overY);
    expectEqual(overY.get(), rounded(type, sum), "over y");

    Type acc = accOf(type);
    Values b = rounded(acc, random(n, 4));
    Array total(acc, b), narrow(type, n);
    OneOp("accumulate", type, {int64_t(n)})(pp_accumulate, Array(type, x), total);
    for (size_t i = 0; i < n; ++i)
      sum[i] = x[i] + b[i];
    expectEqual(total.get(), rounded(acc, sum), "accumulate");
    OneOp("round", type, {int64_t(n)})(pp_round, total, narrow);
    expectEqual(narrow.get(), rounded(type, total.get()), "round");
  }
}

/// Copies of each head side by side, and their sum, which is rounded once: widths with and without whole packs.
TEST(KernelsElementwise, CopiesOfHeads) {
  for (Type type : allTypes)
    for (size_t width : {1, 7, 16})
      for (size_t times : {1, 2, 5}) {
        size_t heads = 6;
        std::vector<int64_t> dims = {int64_t(heads), int64_t(width), int64_t(times)};
        Values few = rounded(type, random(heads * width, 1)), many = rounded(type, random(heads * width * times, 2));
        Values copies(many.size()), sums(few.size());
        for (size_t i = 0; i < many.size(); ++i) {
          size_t source = i / (times * width) * width + i % width;
          copies[i] = few[source];
          sums[source] = i / width % times == 0 ? many[i] : rounded(accOf(type), {sums[source] + many[i]})[0];
        }
        Array y(type, many.size()), z(type, few.size());
        OneOp("repeat_heads", type, dims)(pp_repeat_heads, Array(type, few), y);
        expectEqual(y.get(), copies, "copies");
        OneOp("sum_heads", type, {dims[0], dims[1], dims[2], dims[1], 0})(pp_sum_heads, Array(type, many), z);
        expectEqual(z.get(), rounded(type, sums), "sum");
      }
}

/// A run of columns of each of several periods: one row for all of them beside other columns or zeros, and their sum.
TEST(KernelsElementwise, ColumnsOfPeriods) {
  for (Type type : allTypes)
    for (size_t width : {1, 7, 16})
      for (size_t start : {0, 3, 16})
        for (size_t periods : {1, 3}) {
          size_t rows = 5, total = start + width + (start == 3 ? 2 : 16);
          std::vector<int64_t> dims = {int64_t(rows * periods), int64_t(total), int64_t(start), int64_t(width),
                                       int64_t(periods)};
          Values shared = rounded(type, random(rows * width, 1)), x = rounded(type, random(rows * periods * total, 2));
          Values placed = x, zeros(x.size()), sums(shared.size());
          for (size_t t = 0; t < rows * periods; ++t)
            for (size_t j = 0; j < width; ++j) {
              size_t at = t * total + start + j, source = t / periods * width + j;
              placed[at] = zeros[at] = shared[source];
              sums[source] = t % periods == 0 ? x[at] : rounded(accOf(type), {sums[source] + x[at]})[0];
            }
          Array y(type, x), fresh(type, x), z(type, shared.size());
          OneOp("place_columns", type, dims)(pp_place_columns, Array(type, shared), y);
          expectEqual(y.get(), placed, "placed");
          OneOp("place_columns", type, dims, {}, {"zeros"})(pp_place_columns, Array(type, shared), fresh);
          expectEqual(fresh.get(), zeros, "with zeros");
          dims = {int64_t(rows), int64_t(width), int64_t(periods), int64_t(total), int64_t(start)};
          OneOp("sum_heads", type, dims)(pp_sum_heads, Array(type, x), z);
          expectEqual(z.get(), rounded(type, sums), "sum");
        }
}

TEST(KernelsElementwise, ColumnsCopyZero) {
  for (Type type : allTypes) {
    size_t t = 5, total = 13, start = 4, width = 6;
    std::vector<int64_t> dims = {int64_t(t), int64_t(total), int64_t(start), int64_t(width)};
    Values x = rounded(type, random(t * total, 1)), part(t * width), placed = rounded(type, random(t * total, 2));
    Array y(type, t * width), whole(type, placed);
    for (size_t i = 0; i < t; ++i)
      for (size_t j = 0; j < width; ++j)
        placed[i * total + start + j] = part[i * width + j] = x[i * total + start + j];
    OneOp("slice_columns", type, dims)(pp_slice_columns, Array(type, x), y);
    expectEqual(y.get(), part, "slice");
    dims.push_back(1);
    OneOp("place_columns", type, dims)(pp_place_columns, y, whole);
    expectEqual(whole.get(), placed, "place");

    Array copied(type, t * total), cleared(type, Values(t, 1));
    OneOp("copy", type, {int64_t(t * total)})(pp_copy, Array(type, x), copied);
    expectEqual(copied.get(), x, "copy");
    OneOp("zero", type, {int64_t(t)})(pp_zero, cleared);
    expectEqual(cleared.get(), Values(t, 0), "zero");
  }
}

TEST(KernelsElementwise, SumSquares) {
  for (Type type : allTypes)
    for (size_t n : {1, 4096, 10001}) {
      Values grad = rounded(accOf(type), random(n, 1));
      double expected = 0;
      for (double g : grad)
        expected += g * g;
      Array sum(Type::F64, 1);
      OneOp("sum_squares", type, {int64_t(n)})(pp_sum_squares, Array(accOf(type), grad), sum);
      expectNear(sum.get(), {expected}, 1e-6, "written");
      OneOp("sum_squares", type, {int64_t(n)}, {}, {"accumulate"})(pp_sum_squares, Array(accOf(type), grad), sum);
      expectNear(sum.get(), {2 * expected}, 1e-6, "added");
    }
}

/// If f32 overflows or underflows in the squares, the norm of finite numbers is still finite, and not 0.
TEST(KernelsElementwise, SumSquaresBeyondF32) {
  for (Type type : {Type::F32, Type::Bf16})
    for (double scale : {1e25, 1e-25}) {
      Values grad = random(5000, 1);
      for (double &g : grad)
        g *= scale;
      grad = rounded(Type::F32, grad);
      double expected = 0;
      for (double g : grad)
        expected += g * g;
      Array sum(Type::F64, 1), values(Type::F32, grad);
      OneOp("sum_squares", type, {5000})(pp_sum_squares, values, sum);
      EXPECT_NEAR(sum.get()[0] / expected, 1, 1e-12) << scale;
      const void *all[] = {values.data()};
      OneOp("sum_squares_all", type, {5000, 0})(pp_sum_squares_all, static_cast<const void *const *>(all), sum);
      EXPECT_NEAR(sum.get()[0] / expected, 1, 1e-12) << scale;
    }
}

/// A shard cut at a multiple of 4096 gives the same blocks: its f64 sum differs by f64 rounding only.
TEST(KernelsElementwise, SumSquaresOfShards) {
  size_t n = 3 * 4096 + 5, cut = 2 * 4096;
  Values grad = rounded(Type::F32, random(n, 1));
  Array whole(Type::F64, 1), parts(Type::F64, 1);
  OneOp("sum_squares", Type::F32, {int64_t(n)})(pp_sum_squares, Array(Type::F32, grad), whole);
  Values left(grad.begin(), grad.begin() + long(cut)), right(grad.begin() + long(cut), grad.end());
  OneOp("sum_squares", Type::F32, {int64_t(cut)})(pp_sum_squares, Array(Type::F32, left), parts);
  OneOp("sum_squares", Type::F32, {int64_t(n - cut)}, {}, {"accumulate"})(pp_sum_squares, Array(Type::F32, right),
                                                                          parts);
  expectNear(parts.get(), whole.get(), 1e-15, "shards");
}

namespace {

/// AdamW by the paper, in f64.
void adamwReference(const OptimizerScalars &s, double gamma, double decay, const Values &grad, Values &w, Values &m,
                    Values &v) {
  for (size_t i = 0; i < w.size(); ++i) {
    double g = gamma * grad[i];
    m[i] = s.beta1 * m[i] + (1 - s.beta1) * g;
    v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
    double mean = m[i] / (1 - std::pow(s.beta1, double(s.step)));
    double square = v[i] / (1 - std::pow(s.beta2, double(s.step)));
    w[i] -= s.lr * (mean / (std::sqrt(square) + s.epsilon) + decay * w[i]);
  }
}

} // namespace

TEST(KernelsElementwise, AdamW) {
  for (Type type : allTypes)
    for (bool decay : {false, true})
      for (double clip : {0.0, 0.5, 1e6}) {
        size_t n = 103;
        Type acc = accOf(type);
        bool grouped = clip == 1e6; // a group of weights with half the rate and twice the decay
        OneOp op("adamw", type, {int64_t(n)}, grouped ? std::vector<double>{0.5, 2} : std::vector<double>{},
                 flags(decay, "decay"));
        OptimizerScalars &scalars = op.rank.optimizer;
        Values w = rounded(acc, random(n, 1)), m(n, 0), v(n, 0), grad = rounded(acc, random(n, 2));
        double norm2 = 0;
        for (double g : grad)
          norm2 += g * g;
        Array weights(type, w), master(acc, w), mean(acc, m), square(acc, v);
        for (int step = 1; step <= 3; ++step) {
          scalars = {.lr = 1e-2, .weightDecay = grouped ? 0.05 : 0.1, .clip = clip, .step = step};
          adamwReference(scalars, clip > 0 ? std::min(1.0, clip / (std::sqrt(norm2) + 1e-6)) : 1, decay ? 0.1 : 0, grad,
                         w, m, v);
          scalars.lr = grouped ? 2e-2 : 1e-2;
          op(pp_adamw, Array(acc, grad), Array(Type::F64, Values{norm2}), weights, mean, square,
             isHalf(type) ? master.data() : nullptr);
        }
        expectNear(isHalf(type) ? master.get() : weights.get(), w, toleranceOf(acc) / 10, "w");
        expectNear(mean.get(), m, toleranceOf(acc) / 10, "m");
        expectNear(square.get(), v, toleranceOf(acc) / 10, "v");
        if (isHalf(type))
          expectEqual(weights.get(), rounded(type, master.get()), "w is the master rounded");
      }
}

TEST(KernelsElementwise, AdamWWithoutNormDoesNotClip) {
  OneOp op("adamw", Type::F64, {1});
  op.rank.optimizer.lr = 1, op.rank.optimizer.clip = 1e-3;
  Array w(Type::F64, Values{0}), m(Type::F64, Values{0}), v(Type::F64, Values{0});
  op(pp_adamw, Array(Type::F64, Values{2}), nullptr, w, m, v, nullptr);
  EXPECT_NEAR(m.get()[0], 0.1 * 2, 1e-12);
}

namespace {

/// Tensors of an optimizer: weights, m, v and masters, all of them apart.
struct Tensors {
  std::vector<Array> grads, weights, means, squares, masters;
  Type type;
  explicit Tensors(Type type, const std::vector<int64_t> &sizes) : type(type) {
    Type acc = accOf(type);
    for (size_t i = 0; i < sizes.size(); ++i) {
      auto n = size_t(sizes[i]);
      Values w = rounded(acc, random(n, uint32_t(i)));
      grads.emplace_back(acc, random(n, uint32_t(i) + 1000));
      weights.emplace_back(type, w);
      means.emplace_back(acc, random(n, uint32_t(i) + 2000));
      squares.emplace_back(acc, Values(n, 0.5));
      masters.emplace_back(acc, w);
    }
  }
  std::vector<void *> of(size_t i) {
    return {grads[i], weights[i], means[i], squares[i], isHalf(type) ? masters[i].data() : nullptr};
  }
};

/// A few large ones at and around the blocks, then more small ones than one launch takes.
std::vector<int64_t> manySizes() {
  std::vector<int64_t> sizes = {4096, 1, 4097, 103, 3 * 4096, 4095};
  for (int64_t i = 0; i < 300; ++i)
    sizes.push_back(1 + i % 7);
  return sizes;
}

} // namespace

/// One call for many tensors gives the bits of separate calls, with and without decay.
TEST(KernelsElementwise, AdamWOfManyTensors) {
  std::vector<int64_t> sizes = manySizes(), dims;
  for (size_t i = 0; i < sizes.size(); ++i)
    dims.insert(dims.end(), {sizes[i], int64_t(i % 2)});
  for (Type type : allTypes) {
    Tensors together(type, sizes), apart(type, sizes);
    Array norm(Type::F64, Values{9});
    auto set = [](OneOp &op) { op.rank.optimizer = {.lr = 1e-2, .weightDecay = 0.1, .clip = 1, .step = 3}; };
    std::vector<void *> all;
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::vector<void *> its = together.of(i), p = apart.of(i);
      all.insert(all.end(), its.begin(), its.end());
      OneOp one("adamw", type, {sizes[i]}, {0.5, 3}, flags(i % 2, "decay"));
      set(one);
      one(pp_adamw, p[0], norm, p[1], p[2], p[3], p[4]);
    }
    OneOp op("adamw_all", type, dims, {0.5, 3});
    set(op);
    op(pp_adamw_all, norm, static_cast<void *const *>(all.data()));
    for (size_t i = 0; i < sizes.size(); ++i) {
      SCOPED_TRACE(std::string(nameOf(type)) + ", tensor " + std::to_string(i));
      expectEqual(together.weights[i].get(), apart.weights[i].get(), "w");
      expectEqual(together.means[i].get(), apart.means[i].get(), "m");
      expectEqual(together.squares[i].get(), apart.squares[i].get(), "v");
      expectEqual(together.masters[i].get(), apart.masters[i].get(), "master");
    }
  }
}

TEST(KernelsElementwise, SumSquaresOfManyTensors) {
  std::vector<int64_t> sizes = manySizes(), dims;
  for (int64_t size : sizes)
    dims.insert(dims.end(), {size, 0});
  for (Type type : allTypes) {
    Tensors tensors(type, sizes);
    std::vector<const void *> all;
    double expected = 0;
    for (Array &grad : tensors.grads) {
      all.push_back(grad.data());
      for (double g : grad.get())
        expected += g * g;
    }
    Array sum(Type::F64, 1);
    OneOp("sum_squares_all", type, dims)(pp_sum_squares_all, static_cast<const void *const *>(all.data()), sum);
    expectNear(sum.get(), {expected}, 1e-6, "written");
    OneOp("sum_squares_all", type, dims, {}, {"accumulate"})(pp_sum_squares_all,
                                                             static_cast<const void *const *>(all.data()), sum);
    expectNear(sum.get(), {2 * expected}, 1e-6, "added");
  }
}

/// Gradients and norm of a scaled loss give the update of the loss itself, to the bit where the scale is a power of
/// two.
TEST(KernelsElementwise, AdamWTakesTheLossScaleOut) {
  Values grad = rounded(Type::F32, random(50, 1)), scaled = grad, old = random(50, 2);
  for (double &g : scaled)
    g *= 1024;
  for (double clip : {0.0, 0.5, 1e6}) {
    std::vector<Values> results;
    for (double scale : {1.0, 1024.0}) {
      OneOp op("adamw", Type::F16, {50});
      op.rank.optimizer.lr = 1e-2, op.rank.optimizer.clip = clip;
      op.rank.optimizer.lossScale = scale;
      Array w(Type::F16, old), m(Type::F32, Values(50, 0)), v(Type::F32, Values(50, 0)), master(Type::F32, old);
      op(pp_adamw, Array(Type::F32, scale > 1 ? scaled : grad), Array(Type::F64, Values{50 * scale * scale}), w, m, v,
         master);
      for (const Array *array : {&w, &m, &v, &master})
        results.push_back(array->get());
    }
    for (size_t i = 0; i < 4; ++i)
      expectEqual(results[4 + i], results[i], "array " + std::to_string(i));
  }
}

/// If the norm is not finite, nothing changes, in any type.
TEST(KernelsElementwise, AdamWSkipsWhatOverflowed) {
  for (double norm2 : {double(INFINITY), double(NAN)})
    for (Type type : {Type::F16, Type::F32}) {
      OneOp op("adamw", type, {9}, {}, {"decay"});
      op.rank.optimizer.lr = 1e-2, op.rank.optimizer.weightDecay = 0.1, op.rank.optimizer.clip = 1;
      Values old = rounded(Type::F16, random(9, 1)), grad(9, 1);
      grad[3] = INFINITY;
      Array w(type, old), m(Type::F32, old), v(Type::F32, Values(9, 2)), master(Type::F32, old);
      op(pp_adamw, Array(Type::F32, grad), Array(Type::F64, Values{norm2}), w, m, v,
         isHalf(type) ? master.data() : nullptr);
      expectEqual(w.get(), old, "w");
      expectEqual(m.get(), old, "m");
      expectEqual(v.get(), Values(9, 2), "v");
      expectEqual(master.get(), old, "master");
      OneOp all("adamw_all", type, {9, 1});
      all.rank.optimizer = op.rank.optimizer;
      Array gradient(Type::F32, grad);
      void *tensors[] = {gradient, w, m, v, isHalf(type) ? master.data() : nullptr};
      all(pp_adamw_all, Array(Type::F64, Values{norm2}), static_cast<void *const *>(tensors));
      for (const Array *array : {&w, &m, &master})
        expectEqual(array->get(), old, "a list's");
    }
}
