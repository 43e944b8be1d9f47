// Attention: every shape against a dense f64 definition, derivatives by differences, and the mask by its dependences.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Kernels.h"

using namespace pp;
using namespace pp::test;

namespace {

struct Shape {
  int64_t b, s, heads, groups, d;
  bool causal;
  size_t queries() const { return size_t(b * s * heads * d); }
  size_t keys() const { return size_t(b * s * groups * d); }
  size_t rows() const { return size_t(b * heads * s); }
  std::vector<int64_t> dims() const { return {b, s, heads, groups, d}; }
  std::vector<std::string> flags() const {
    return causal ? std::vector<std::string>{"causal"} : std::vector<std::string>{};
  }
  std::string text() const {
    std::string text = causal ? "causal" : "full";
    for (int64_t dim : dims())
      text += " " + std::to_string(dim);
    return text;
  }
};

struct Result {
  Values o, lse;
};
struct Gradients {
  Values dq, dk, dv;
};

/// The dense definition: softmax of the whole masked row; with dout also the textbook gradients of it.
Result reference(const Shape &n, const Values &q, const Values &k, const Values &v, const Values *dout = nullptr,
                 Gradients *gradients = nullptr) {
  Result result{Values(n.queries()), Values(n.rows())};
  if (gradients)
    *gradients = {Values(n.queries(), 0), Values(n.keys(), 0), Values(n.keys(), 0)};
  size_t s = size_t(n.s), d = size_t(n.d), heads = size_t(n.heads), groups = size_t(n.groups);
  double scale = 1 / std::sqrt(double(d));
  for (size_t b = 0; b < size_t(n.b); ++b)
    for (size_t h = 0; h < heads; ++h)
      for (size_t i = 0; i < s; ++i) {
        size_t keys = n.causal ? i + 1 : s, at = ((b * s + i) * heads + h) * d;
        auto key = [&](size_t j) { return ((b * s + j) * groups + h / (heads / groups)) * d; };
        Values p(keys), dp(keys);
        double largest = -1e300, sum = 0, delta = 0;
        for (size_t j = 0; j < keys; ++j) {
          for (size_t c = 0; c < d; ++c)
            p[j] += scale * q[at + c] * k[key(j) + c];
          largest = std::max(largest, p[j]);
        }
        for (size_t j = 0; j < keys; ++j)
          sum += std::exp(p[j] - largest);
        result.lse[(b * heads + h) * s + i] = largest + std::log(sum);
        for (size_t j = 0; j < keys; ++j) {
          p[j] = std::exp(p[j] - largest) / sum;
          for (size_t c = 0; c < d; ++c)
            result.o[at + c] += p[j] * v[key(j) + c];
        }
        if (!gradients)
          continue;
        for (size_t j = 0; j < keys; ++j) {
          for (size_t c = 0; c < d; ++c) {
            dp[j] += (*dout)[at + c] * v[key(j) + c];
            gradients->dv[key(j) + c] += p[j] * (*dout)[at + c];
          }
          delta += p[j] * dp[j];
        }
        for (size_t j = 0; j < keys; ++j)
          for (size_t c = 0; c < d; ++c) {
            double slope = scale * p[j] * (dp[j] - delta);
            gradients->dq[at + c] += slope * k[key(j) + c];
            gradients->dk[key(j) + c] += slope * q[at + c];
          }
      }
  return result;
}

Result forward(const Shape &n, Type type, const Values &q, const Values &k, const Values &v) {
  Array o(type, n.queries()), lse(accOf(type), n.rows());
  OneOp("attention", type, n.dims(), {}, n.flags())(pp_attention, Array(type, q), Array(type, k), Array(type, v), o,
                                                    lse);
  return {o.get(), lse.get()};
}

Gradients backward(const Shape &n, Type type, const Values &dout, const Values &q, const Values &k, const Values &v,
                   const Result &f) {
  Array dq(type, n.queries()), dk(type, n.keys()), dv(type, n.keys());
  OneOp("attention_bwd", type, n.dims(), {}, n.flags())(pp_attention_bwd, Array(type, dout), Array(type, q),
                                                        Array(type, k), Array(type, v), Array(type, f.o),
                                                        Array(accOf(type), f.lse), dq, dk, dv);
  return {dq.get(), dk.get(), dv.get()};
}

/// Lengths and widths below, at and beyond every block and vector; grouped queries; several sequences.
const Shape shapes[] = {
    {1, 1, 1, 1, 1, true},    {1, 1, 2, 1, 8, false},    {2, 5, 2, 2, 4, true},     {1, 7, 4, 2, 16, true},
    {1, 24, 1, 1, 64, true},  {1, 48, 2, 1, 32, true},   {1, 49, 1, 1, 40, false},  {2, 65, 3, 3, 24, true},
    {1, 97, 4, 1, 20, true},  {1, 100, 2, 2, 64, false}, {1, 129, 1, 1, 128, true}, {1, 193, 6, 2, 12, true},
    {1, 250, 2, 1, 33, true}, {1, 257, 1, 1, 80, false}, {1, 300, 2, 1, 64, true},
};

void compare(const Shape &n, Type type, double scale = 1) {
  SCOPED_TRACE(n.text() + " " + nameOf(type));
  Values q = rounded(type, random(n.queries(), 1, scale)), k = rounded(type, random(n.keys(), 2, scale));
  Values v = rounded(type, random(n.keys(), 3)), dout = rounded(type, random(n.queries(), 4));
  Gradients expected;
  Result want = reference(n, q, k, v, &dout, &expected);
  Result got = forward(n, type, q, k, v);
  expectNear(got.o, want.o, toleranceOf(type), "o");
  expectNear(got.lse, want.lse, toleranceOf(accOf(type)), "lse");
  Gradients gradients = backward(n, type, dout, q, k, v, got);
  double tolerance = type == Type::Bf16 ? 2e-2 : toleranceOf(type);
  expectNear(gradients.dq, expected.dq, tolerance, "dq");
  expectNear(gradients.dk, expected.dk, tolerance, "dk");
  expectNear(gradients.dv, expected.dv, tolerance, "dv");
}

} // namespace

TEST(KernelsAttention, EqualsTheDenseDefinition) {
  for (const Shape &shape : shapes)
    for (Type type : allTypes)
      compare(shape, type);
}

/// Scores of some hundreds: the running maximum moves, and most weights underflow.
TEST(KernelsAttention, LargeScores) {
  for (Type type : {Type::F32, Type::F64})
    for (bool causal : {false, true}) {
      Shape n{1, 150, 2, 1, 64, causal};
      compare(n, type, 3);
    }
}

TEST(KernelsAttention, DerivativesByDifferences) {
  Shape n{2, 6, 4, 2, 3, true};
  Values q = random(n.queries(), 1), k = random(n.keys(), 2), v = random(n.keys(), 3), dout = random(n.queries(), 4);
  Result f = forward(n, Type::F64, q, k, v);
  Gradients got = backward(n, Type::F64, dout, q, k, v, f);
  auto output = [&](const Values &q, const Values &k, const Values &v) { return forward(n, Type::F64, q, k, v).o; };
  expectNear(got.dq, finiteDifferences([&](const Values &x) { return output(x, k, v); }, q, dout), 1e-8, "dq");
  expectNear(got.dk, finiteDifferences([&](const Values &x) { return output(q, x, v); }, k, dout), 1e-8, "dk");
  expectNear(got.dv, finiteDifferences([&](const Values &x) { return output(q, k, x); }, v, dout), 1e-8, "dv");
}

/// Differences cannot see a mask that is wrong in both directions: o_i must depend on v_j exactly for j <= i, with the
/// diagonal, and o_0 is v_0.
TEST(KernelsAttention, DependsOnExactlyTheVisibleKeys) {
  for (Type type : allTypes)
    for (bool causal : {true, false}) {
      Shape n{1, 70, 1, 1, 8, causal};
      Values q = random(n.queries(), 1), k = random(n.keys(), 2), v = random(n.keys(), 3);
      Result before = forward(n, type, q, k, v);
      for (size_t j = 0; j < size_t(n.s); ++j) {
        Values moved = v;
        for (size_t c = 0; c < size_t(n.d); ++c)
          moved[j * size_t(n.d) + c] += 1000;
        Values after = forward(n, type, q, k, moved).o;
        for (size_t i = 0; i < size_t(n.s); ++i) {
          bool depends = after[i * size_t(n.d)] != before.o[i * size_t(n.d)];
          ASSERT_EQ(depends, !causal || j <= i) << nameOf(type) << " o " << i << " and v " << j;
        }
      }
      for (size_t c = 0; c < size_t(n.d) && causal; ++c)
        EXPECT_NEAR(before.o[c], rounded(type, v)[c], 1e-6);
    }
}

/// The backward's mask: dk_j and dv_j depend on dout_i exactly for i >= j.
TEST(KernelsAttention, GradientsComeFromExactlyTheLaterQueries) {
  Shape n{1, 60, 1, 1, 8, true};
  Values q = random(n.queries(), 1), k = random(n.keys(), 2), v = random(n.keys(), 3);
  Result f = forward(n, Type::F32, q, k, v);
  for (size_t i = 0; i < size_t(n.s); ++i) {
    Values dout(n.queries(), 0);
    for (size_t c = 0; c < size_t(n.d); ++c)
      dout[i * size_t(n.d) + c] = double(c) - 2.5;
    Gradients g = backward(n, Type::F32, dout, q, k, v, f);
    for (size_t j = 0; j < size_t(n.s); ++j) {
      ASSERT_EQ(g.dv[j * size_t(n.d)] != 0, j <= i) << "dv " << j << " and dout " << i;
      ASSERT_EQ(g.dq[j * size_t(n.d)] != 0 && j != 0, i == j && j != 0) << "dq " << j << " and dout " << i;
      ASSERT_TRUE(j <= i || g.dk[j * size_t(n.d)] == 0) << "dk " << j << " and dout " << i;
    }
  }
}

/// Two runs give the same bits, and so does a second batch entry with the same values.
TEST(KernelsAttention, Deterministic) {
  Shape n{1, 130, 4, 2, 48, true};
  Values q = random(n.queries(), 1), k = random(n.keys(), 2), v = random(n.keys(), 3), dout = random(n.queries(), 4);
  Result f = forward(n, Type::F32, q, k, v), again = forward(n, Type::F32, q, k, v);
  expectEqual(again.o, f.o, "o");
  Gradients g = backward(n, Type::F32, dout, q, k, v, f), repeated = backward(n, Type::F32, dout, q, k, v, f);
  expectEqual(repeated.dq, g.dq, "dq");
  expectEqual(repeated.dk, g.dk, "dk");
  Shape two = n;
  two.b = 2;
  auto twice = [](Values x) {
    Values y = x;
    y.insert(y.end(), x.begin(), x.end());
    return y;
  };
  expectEqual(forward(two, Type::F32, twice(q), twice(k), twice(v)).o, twice(f.o), "second sequence");
}
