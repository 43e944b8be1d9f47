// Attention: every shape against a dense f64 definition, derivatives by differences, and the mask by its dependences.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Attention.h"

using namespace pp;
using namespace pp::test;

namespace {

/// Lengths and widths below, at and above the size of every block and vector; grouped queries; several sequences.
const Slice shapes[] = {
    {1, 1, 1, 1, 1, true},    {1, 1, 2, 1, 8, false},    {2, 5, 2, 2, 4, true},     {1, 7, 4, 2, 16, true},
    {1, 24, 1, 1, 64, true},  {1, 48, 2, 1, 32, true},   {1, 49, 1, 1, 40, false},  {2, 65, 3, 3, 24, true},
    {1, 97, 4, 1, 20, true},  {1, 100, 2, 2, 64, false}, {1, 129, 1, 1, 128, true}, {1, 193, 6, 2, 12, true},
    {1, 250, 2, 1, 33, true}, {1, 257, 1, 1, 80, false}, {1, 300, 2, 1, 64, true},
};

void checkDerivatives(const Slice &n) {
  Values q = random(n.queries(), 1), dout = random(n.queries(), 2);
  Keys keys = randomKeys(n, Type::F64, 3);
  Gradients got = backward(n, Type::F64, dout, q, keys, forward(n, Type::F64, q, keys)), expected;
  auto output = [&](const Values &q, const Values &k, const Values &v) {
    return forward(n, Type::F64, q, {{k}, {v}}).o;
  };
  const Values &k = keys.k[0], &v = keys.v[0];
  expected.dq = finiteDifferences([&](const Values &x) { return output(x, k, v); }, q, dout);
  expected.dk = {finiteDifferences([&](const Values &x) { return output(q, x, v); }, k, dout)};
  expected.dv = {finiteDifferences([&](const Values &x) { return output(q, k, x); }, v, dout)};
  expectNear(got, expected, 1e-8);
}

} // namespace

TEST(KernelsAttention, EqualsTheDenseDefinition) {
  for (const Slice &shape : shapes)
    for (Type type : allTypes)
      compare(shape, type);
}

/// Scores of some hundreds: the running maximum moves, and most weights underflow.
TEST(KernelsAttention, LargeScores) {
  for (Type type : {Type::F32, Type::F64})
    for (bool causal : {false, true}) {
      Slice n{1, 150, 2, 1, 64, causal};
      compare(n, type, 3);
    }
}

/// Windows of one key, of two, beside and across every block, and longer than the sequence.
TEST(KernelsAttention, Windows) {
  for (const Slice &shape : shapes)
    for (int64_t window : {1, 2, 13, 48, 95, 130, 1000})
      for (Type type : allTypes)
        if (shape.causal && (window < shape.s || window == 1000))
          compare(shape.windowed(window), type, 1, window == 1 ? 4 : 1); // of one key, dq and dk are rounding
}

/// Documents of one token, of many, and of all; rows of a batch are cut at other places.
TEST(KernelsAttention, Documents) {
  for (Type type : allTypes) {
    compare(Slice(1, 24, 1, 1, 64, true).withDocuments({}), type);
    compare(Slice(2, 65, 3, 3, 24, true).withDocuments({1, 2, 3, 40}), type);
    compare(Slice(1, 193, 6, 2, 12, true).withDocuments({17, 96, 97, 192}), type);
    compare(Slice(3, 250, 2, 1, 33, true).withDocuments({100, 110, 200}).windowed(50), type);
  }
}

/// A scale of its own, and caps that hardly bind, that bind, and that leave nothing of the scores.
TEST(KernelsAttention, ScalesAndCaps) {
  for (Type type : allTypes)
    for (double softcap : {0.0, 1e6, 30.0, 1.0, 1e-3})
      for (Slice n : {Slice(1, 70, 4, 2, 40, true), Slice(2, 100, 1, 1, 72, false)}) {
        n.scale = 0.3, n.softcap = softcap;
        compare(n, type, 1, softcap == 1e-3 ? 20 : 1); // a score over so small a cap is off by 1e-4 in f32
      }
}

/// A sequence of its own length, whose pairs share counters evenly or not, and a part of a long one with many heads,
/// whose counters have more than 32 bits.
TEST(KernelsAttention, Dropout) {
  for (Type type : allTypes)
    for (const Slice &shape : shapes) {
      compare(shape.dropped(0.25, shape.s), type, 1, shape.s == 1 ? 4 : 1); // of one key, dq and dk are rounding
      compare(shape.dropped(0.6, 4 * shape.s), type, 1, shape.s == 1 ? 4 : 1);
    }
  for (Type type : allTypes) {
    Slice far(2, 60, 3, 1, 24, true, 200000, {{70, 150000}, {55, 200005}});
    far.site = 65535;
    compare(far.dropped(0.1, 262144), type);
    Slice capped = Slice(2, 100, 2, 1, 72, true).windowed(40).withDocuments({30, 31});
    capped.softcap = 1;
    compare(capped.dropped(0.3, 102), type);
    Slice second(2, 70, 3, 1, 16, true); // the second of two devices
    second.firstHead = 3;
    compare(second.dropped(0.3, 75), type);
  }
}

/// The weights that stay are as many as they should be, and grow by so much that their sum stays near 1; a step that
/// only holds drops nothing, and neither do other seeds, sites and sequences drop the same.
TEST(KernelsAttention, DropoutIsThatOfTheRun) {
  for (Type type : allTypes) {
    Slice n = Slice(1, 96, 2, 1, 8, false).dropped(0.25, 96);
    Keys keys{{Values(n.keys(0), 0)}, {Values(n.keys(0), 1)}};
    Values zero(n.queries(), 0), o = forward(n, type, zero, keys).o; // all weights are 1 / 96
    double mean = 0;
    for (double share : o)
      mean += share / double(o.size());
    EXPECT_NEAR(mean, 1, 0.02) << nameOf(type);
    for (int change = 0; change < 3; ++change) {
      Slice other = n;
      other.seed += change == 0, other.site += change == 1;
      for (int32_t &number : other.sequences)
        number += change == 2;
      EXPECT_NE(forward(other, type, zero, keys).o, o) << change;
    }
    OneOp op("attention", type, n.dims(), n.params(), n.flags());
    op.rank.optimizer.holds = true;
    Array all(type, n.queries()), lse(accOf(type), n.rows());
    ArrayList kv = listOf(n, type, keys);
    op(pp_attention, Array(type, zero), kv.inputs(), all, lse);
    expectNear(all.get(), Values(n.queries(), 1), toleranceOf(type), "held");
  }
}

TEST(KernelsAttention, DerivativesByDifferences) {
  Slice plain{2, 6, 4, 2, 3, true};
  Slice capped = plain.windowed(3).withDocuments({2});
  capped.scale = 0.8, capped.softcap = 0.9;
  for (const Slice &n : {plain, plain.windowed(2), capped, plain.dropped(0.4, 6), capped.dropped(0.3, 7)}) {
    SCOPED_TRACE(n.text());
    checkDerivatives(n);
  }
}
/// Differences cannot see a mask that is wrong in both directions: o_i must depend on v_j exactly for j <= i, with the
/// diagonal, and o_0 is v_0.
namespace {

/// Causal attention with one score more in each head's softmax, by its definition.
Values sunk(const Slice &n, const Values &q, const Keys &keys, const Values &scores) {
  Values o(n.queries());
  auto at = [&](int64_t b, int64_t t, int64_t head, int64_t heads) {
    return size_t(((b * n.s + t) * heads + head) * n.d);
  };
  for (int64_t b = 0; b < n.b; ++b)
    for (int64_t head = 0; head < n.heads; ++head)
      for (int64_t t = 0; t < n.s; ++t) {
        double total = std::exp(scores[size_t(head)]);
        size_t row = at(b, t, head, n.heads);
        for (int64_t j = 0; j <= t; ++j) {
          size_t key = at(b, j, head * n.groups / n.heads, n.groups);
          double score = 0;
          for (size_t c = 0; c < size_t(n.d); ++c)
            score += q[row + c] * keys.k[0][key + c] * n.factor();
          total += std::exp(score);
          for (size_t c = 0; c < size_t(n.d); ++c)
            o[row + c] += std::exp(score) * keys.v[0][key + c];
        }
        for (size_t c = 0; c < size_t(n.d); ++c)
          o[row + c] /= total;
      }
  return o;
}

} // namespace

/// With the sink's log-sum-exp and output, the gradients of an attention are those of attention and sink together.
TEST(KernelsAttention, SinksAndTheirDerivatives) {
  Slice n(2, 9, 4, 2, 6, true);
  for (Type type : allTypes) {
    Values q = rounded(type, random(n.queries(), 1)), dout = rounded(type, random(n.queries(), 2));
    Values scores = rounded(type, {0.5, -1, 3, -1e4});
    Keys keys{{rounded(type, random(n.keys(0), 3))}, {rounded(type, random(n.keys(0), 4))}};
    Output output = forward(n, type, q, keys);
    Array o(type, output.o), lse(accOf(type), output.lse), y(type, n.queries()), all(accOf(type), n.rows());
    OneOp op("sink", type, {n.b, n.s, n.heads, n.d});
    op(pp_sink, o, lse, Array(type, scores), y, all);
    op(pp_sink, o, lse, Array(type, scores), o, lse);
    expectEqual(o.get(), y.get(), "in place");
    expectEqual(lse.get(), all.get(), "in place");
    expectNear(y.get(), sunk(n, q, keys, scores), 2 * toleranceOf(type), nameOf(type));
    Gradients gradients = backward(n, type, dout, q, keys, {y.get(), all.get()});
    Values dq = finiteDifferences([&](const Values &moved) { return sunk(n, moved, keys, scores); }, q, dout);
    Values dk =
        finiteDifferences([&](const Values &moved) { return sunk(n, q, {{moved}, keys.v}, scores); }, keys.k[0], dout);
    double tolerance = std::max(1e-8, 4 * toleranceOf(type));
    expectNear(gradients.dq, dq, tolerance, "dq");
    expectNear(gradients.dk[0], dk, tolerance, "dk");
    Array ds(accOf(type), scores.size());
    OneOp("sink_bwd", type, {n.b, n.s, n.heads})(pp_sink_bwd, Array(type, scores), all,
                                                 Array(accOf(type), delta(n, type, dout, y.get())), ds);
    expectNear(ds.get(), finiteDifferences([&](const Values &moved) { return sunk(n, q, keys, moved); }, scores, dout),
               tolerance, "ds");
  }
}

TEST(KernelsAttention, DependsOnExactlyTheVisibleKeys) {
  for (Type type : allTypes)
    for (const Slice &n :
         {Slice(1, 70, 1, 1, 8, true), Slice(1, 70, 1, 1, 8, false), Slice(1, 70, 1, 1, 8, true).windowed(9),
          Slice(1, 70, 1, 1, 8, true).withDocuments({1, 30})}) {
      Values q = random(n.queries(), 1);
      Keys keys = randomKeys(n, type, 2);
      Output before = forward(n, type, q, keys);
      for (size_t j = 0; j < size_t(n.s); ++j) {
        Keys moved = keys;
        for (size_t c = 0; c < size_t(n.d); ++c)
          moved.v[0][j * size_t(n.d) + c] += 1000;
        Values after = forward(n, type, q, moved).o;
        for (size_t i = 0; i < size_t(n.s); ++i) {
          bool depends = after[i * size_t(n.d)] != before.o[i * size_t(n.d)];
          ASSERT_EQ(depends, n.sees(int64_t(i), n.chunks[0], int64_t(j)))
              << nameOf(type) << " o " << i << " and v " << j;
        }
      }
      for (size_t c = 0; c < size_t(n.d) && n.causal; ++c)
        EXPECT_NEAR(before.o[c], keys.v[0][c], 1e-6);
    }
}

/// The backward's mask: dk_j and dv_j depend on dout_i exactly for i >= j.
TEST(KernelsAttention, GradientsComeFromExactlyTheLaterQueries) {
  Slice n{1, 60, 1, 1, 8, true};
  Values q = random(n.queries(), 1);
  Keys keys = randomKeys(n, Type::F32, 2);
  Output f = forward(n, Type::F32, q, keys);
  for (size_t i = 0; i < size_t(n.s); ++i) {
    Values dout(n.queries(), 0);
    for (size_t c = 0; c < size_t(n.d); ++c)
      dout[i * size_t(n.d) + c] = double(c) - 2.5;
    Gradients g = backward(n, Type::F32, dout, q, keys, f);
    for (size_t j = 0; j < size_t(n.s); ++j) {
      ASSERT_EQ(g.dv[0][j * size_t(n.d)] != 0, j <= i) << "dv " << j << " and dout " << i;
      ASSERT_EQ(g.dq[j * size_t(n.d)] != 0 && j != 0, i == j && j != 0) << "dq " << j << " and dout " << i;
      ASSERT_TRUE(j <= i || g.dk[0][j * size_t(n.d)] == 0) << "dk " << j << " and dout " << i;
    }
  }
}

/// q, k and v as the columns of one tensor: the definition's results, and the bits of those that lie apart.
TEST(KernelsAttention, OfOneTensor) {
  std::vector<Slice> all(std::begin(shapes), std::end(shapes));
  all.push_back(Slice(2, 65, 4, 2, 24, true).withDocuments({1, 2, 3, 40}).windowed(20));
  all.push_back(Slice(2, 70, 4, 2, 64, true).dropped(0.3, 70));
  for (const Slice &n : all)
    for (Type type : allTypes) {
      SCOPED_TRACE(n.text() + " " + nameOf(type));
      compare(n.inOneTensor(), type);
      Values q = rounded(type, random(n.queries(), 1)), dout = rounded(type, random(n.queries(), 2));
      Keys keys = randomKeys(n, type, 3);
      Output apart = forward(n, type, q, keys), together = forward(n.inOneTensor(), type, q, keys);
      expectEqual(together.o, apart.o, "o");
      Gradients one = backward(n.inOneTensor(), type, dout, q, keys, apart),
                three = backward(n, type, dout, q, keys, apart);
      expectEqual(one.dq, three.dq, "dq");
      expectEqual(one.dk[0], three.dk[0], "dk");
      expectEqual(one.dv[0], three.dv[0], "dv");
    }
}

/// Two runs give the same bits, and so does a second batch entry with the same values.
TEST(KernelsAttention, Deterministic) {
  Slice n{1, 130, 4, 2, 48, true};
  Values q = random(n.queries(), 1), dout = random(n.queries(), 2);
  Keys keys = randomKeys(n, Type::F32, 3);
  Output f = forward(n, Type::F32, q, keys), again = forward(n, Type::F32, q, keys);
  expectEqual(again.o, f.o, "o");
  Gradients g = backward(n, Type::F32, dout, q, keys, f), repeated = backward(n, Type::F32, dout, q, keys, f);
  expectEqual(repeated.dq, g.dq, "dq");
  expectEqual(repeated.dk[0], g.dk[0], "dk");
  Slice two = n;
  two.b = 2;
  auto twice = [](Values x) {
    Values y = x;
    y.insert(y.end(), x.begin(), x.end());
    return y;
  };
  expectEqual(forward(two, Type::F32, twice(q), {{twice(keys.k[0])}, {twice(keys.v[0])}}).o, twice(f.o),
              "second sequence");
}
