// Pairs of calls in one: products with gelu, its derivative, a residual, bias sums, against f64 and the plain calls.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/LinearCases.h"
#include <cstdlib>

using namespace pp;
using namespace pp::test;

namespace {

using Case = LinearCase;

/// Widths that are multiples of 8, as cuBLASLt wants for gelu, and others.
void forEachCase(const std::function<void(const Case &)> &test) {
  setenv("PP_EPILOGUES", "on", /*overwrite=*/0); // on GPUs that would not ask for them, too
  forEachLinear({{1, 1, 1}, {64, 48, 96}, {33, 136, 24}, {7, 5, 13}, {130, 72, 264}}, test);
}

/// gelu or its derivative by the definition (frontend/OPERATIONS.md).
double gelu(double u, bool slope = false) {
  double c = std::sqrt(2 / M_PI), a = 0.044715, tau = std::tanh(c * (u + a * u * u * u));
  return slope ? 0.5 * (1 + tau) + 0.5 * u * (1 - tau * tau) * c * (1 + 3 * a * u * u) : 0.5 * u * (1 + tau);
}

/// The operands of a case, as its type holds them: x, dy, w, bias.
struct Operands {
  Values x, dy, w, b;
  explicit Operands(const Case &c)
      : x(rounded(c.type, random(size_t(c.t * c.k), 1))), dy(rounded(c.type, random(size_t(c.t * c.n), 2))),
        w(rounded(c.type, random(size_t(c.k * c.n), 3, 1 / std::sqrt(double(c.k))))),
        b(rounded(c.type, random(size_t(c.n), 4))) {}
  Values linear(const Case &c) const {
    Values u(size_t(c.t * c.n));
    for (int64_t i = 0; i < c.t; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = c.flag ? b[size_t(j)] : 0;
        for (int64_t l = 0; l < c.k; ++l)
          sum += x[size_t(i * c.k + l)] * w[c.weight(l, j)];
        u[size_t(i * c.n + j)] = sum;
      }
    return u;
  }
};

struct Forward {
  Values u, y;
};
Forward forward(const Case &c, const Operands &o) {
  Array u(c.type, size_t(c.t * c.n)), y(c.type, size_t(c.t * c.n)), b(c.type, o.b);
  OneOp op("linear_gelu", c.type, {c.t, c.k, c.n}, {}, c.flags("bias"));
  op(pp_linear_gelu, Array(c.type, o.x), Array(c.type, o.w), c.flag ? b.data() : nullptr, u, y);
  return {u.get(), y.get()};
}
Forward plainForward(const Case &c, const Operands &o) {
  Array u(c.type, size_t(c.t * c.n)), y(c.type, size_t(c.t * c.n)), b(c.type, o.b);
  OneOp first("linear", c.type, {c.t, c.k, c.n}, {}, c.flags("bias")), second("gelu", c.type, {c.t * c.n});
  first(pp_linear, Array(c.type, o.x), Array(c.type, o.w), c.flag ? b.data() : nullptr, u);
  second(pp_gelu, u, y);
  return {u.get(), y.get()};
}

/// The term that is added to a product, rounded to the type.
Values residual(const Case &c) { return rounded(c.type, random(size_t(c.t * c.n), 8)); }
/// x w + b + r; `shift` elements behind addresses at multiples of 64 bytes.
Values sum(const Case &c, const Operands &o, size_t shift = 0) {
  size_t bytes = shift * (c.type == Type::F64 ? 8 : c.type == Type::F32 ? 4 : 2);
  auto behind = [&](Values values) {
    values.insert(values.begin(), shift, 0);
    return Array(c.type, values);
  };
  auto at = [&](const Array &array) { return static_cast<void *>(static_cast<char *>(array.data()) + bytes); };
  Array x = behind(o.x), b(c.type, o.b), r = behind(residual(c)), y(c.type, size_t(c.t * c.n) + shift);
  OneOp op("linear_add", c.type, {c.t, c.k, c.n}, {}, c.flags("bias"));
  op(pp_linear_add, at(x), Array(c.type, o.w), c.flag ? b.data() : nullptr, at(r), at(y));
  Values kept = r.get(), got = y.get();
  expectEqual({kept.begin() + int64_t(shift), kept.end()}, residual(c), c.text() + ", r is read alone");
  return {got.begin() + int64_t(shift), got.end()};
}
Values plainSum(const Case &c, const Operands &o) {
  Array y(c.type, size_t(c.t * c.n)), b(c.type, o.b);
  OneOp first("linear", c.type, {c.t, c.k, c.n}, {}, c.flags("bias")), second("add", c.type, {c.t * c.n});
  first(pp_linear, Array(c.type, o.x), Array(c.type, o.w), c.flag ? b.data() : nullptr, y);
  second(pp_add, Array(c.type, residual(c)), y, y);
  return y.get();
}
Values expectedSum(const Case &c, const Operands &o) {
  Values sums = o.linear(c), r = residual(c);
  for (size_t i = 0; i < sums.size(); ++i)
    sums[i] += r[i];
  return sums;
}

Values backward(const Case &c, const Operands &o, const Values &u) {
  Array du(c.type, size_t(c.t * c.k));
  OneOp op("linear_dx_gelu", c.type, {c.t, c.k, c.n}, {}, c.flags(""));
  op(pp_linear_dx_gelu, Array(c.type, o.dy), Array(c.type, o.w), Array(c.type, u), du);
  return du.get();
}

struct Sums {
  Values w, b;
};
Sums sums(const Case &c, const Operands &o, const Sums &old, bool plain) {
  Type acc = accOf(c.type);
  Array dw(acc, old.w), db(acc, old.b);
  Array x(c.type, o.x), dy(c.type, o.dy);
  if (plain) {
    std::vector<std::string> flags;
    if (c.flag)
      flags.push_back("accumulate");
    OneOp first("linear_dw", c.type, {c.t, c.k, c.n}, {}, c.flags("accumulate"));
    OneOp second("bias_dw", c.type, {c.t, c.n}, {}, flags);
    first(pp_linear_dw, x, dy, dw);
    second(pp_bias_dw, dy, db);
  } else {
    OneOp op("linear_dw_bias", c.type, {c.t, c.k, c.n}, {}, c.flags("accumulate"));
    op(pp_linear_dw_bias, x, dy, dw, db);
  }
  return {dw.get(), db.get()};
}
/// The old contents of the sums, which are added to or overwritten.
Sums before(const Case &c) {
  Type acc = accOf(c.type);
  return {rounded(acc, random(size_t(c.k * c.n), 5)), rounded(acc, random(size_t(c.n), 6))};
}

} // namespace

TEST(KernelsPairs, LinearAndItsGelu) {
  forEachCase([](const Case &c) {
    Operands o(c);
    Values expected = o.linear(c);
    Forward got = forward(c, o);
    expectNear(got.u, expected, toleranceOf(c.type), c.text() + ", u");
    for (double &value : expected)
      value = gelu(value);
    expectNear(got.y, expected, toleranceOf(c.type), c.text() + ", y");
  });
}

TEST(KernelsPairs, DerivativeBehindLinearDx) {
  forEachCase([](const Case &c) {
    if (c.flag)
      return;
    Operands o(c);
    Values u = rounded(c.type, random(size_t(c.t * c.k), 7)), expected(u.size());
    for (int64_t i = 0; i < c.t; ++i)
      for (int64_t l = 0; l < c.k; ++l) {
        double sum = 0;
        for (int64_t j = 0; j < c.n; ++j)
          sum += o.dy[size_t(i * c.n + j)] * o.w[c.weight(l, j)];
        expected[size_t(i * c.k + l)] = sum * gelu(u[size_t(i * c.k + l)], true);
      }
    expectNear(backward(c, o, u), expected, toleranceOf(c.type), c.text());
  });
}

TEST(KernelsPairs, LinearAndAResidual) {
  forEachCase([](const Case &c) {
    Operands o(c);
    expectNear(sum(c, o), expectedSum(c, o), toleranceOf(c.type), c.text());
  });
}

TEST(KernelsPairs, WeightsAndTheirBiases) {
  forEachCase([](const Case &c) {
    Operands o(c);
    Sums old = before(c), expected = c.flag ? old : Sums{Values(old.w.size()), Values(old.b.size())};
    for (int64_t i = 0; i < c.t; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        double dy = o.dy[size_t(i * c.n + j)];
        expected.b[size_t(j)] += dy;
        for (int64_t l = 0; l < c.k; ++l)
          expected.w[c.weight(l, j)] += o.x[size_t(i * c.k + l)] * dy;
      }
    Sums got = sums(c, o, old, false);
    // Compared in acc, as for separate products: only the operands have 16 bits.
    expectNear(got.w, expected.w, toleranceOf(accOf(c.type)), c.text() + ", dw");
    expectNear(got.b, expected.b, toleranceOf(accOf(c.type)), c.text() + ", db");
  });
}

/// On the CPU always, on the device with PP_EPILOGUES=off and in f64, a pair has the bits of its two.
TEST(KernelsPairs, ThePlainCallsWhereNoKernelDoesBoth) {
  setenv("PP_EPILOGUES", "off", 1);
  forEachCase([](const Case &c) {
    Operands o(c);
    Forward got = forward(c, o), expected = plainForward(c, o);
    expectEqual(got.u, expected.u, c.text() + ", u");
    expectEqual(got.y, expected.y, c.text() + ", y");
    expectEqual(sum(c, o), plainSum(c, o), c.text() + ", sum with r");
    Sums dw = sums(c, o, before(c), false), its = sums(c, o, before(c), true);
    expectEqual(dw.w, its.w, c.text() + ", dw");
    expectEqual(dw.b, its.b, c.text() + ", db");
  });
  unsetenv("PP_EPILOGUES");
  bool always = std::string(Kernels::isa()) != "cuda";
  forEachCase([&](const Case &c) {
    Operands o(c);
    if (always || c.type == Type::F64)
      expectEqual(sum(c, o), plainSum(c, o), c.text() + ", sum with r, on");
  });
}

#ifdef PP_EMULATED
/// The other path is there: gelu of the sums differs from gelu of u, which is rounded (docs/derivatives.md R2: 37 % of
/// y in bf16).
TEST(KernelsPairs, GeluOfWhatIsNotRoundedYet) {
  Case c{{64, 48, 96}, Type::Bf16, false, true};
  Operands o(c);
  auto others = [&](const char *wish) {
    setenv("PP_EPILOGUES", wish, 1);
    Forward got = forward(c, o), plain = plainForward(c, o);
    unsetenv("PP_EPILOGUES");
    expectEqual(got.u, plain.u, "u is the same");
    size_t count = 0;
    for (size_t i = 0; i < got.y.size(); ++i)
      count += got.y[i] != plain.y[i];
    return double(count) / double(got.y.size());
  };
  EXPECT_GT(others("on"), 0.2);
  EXPECT_LT(others("on"), 0.5);
  EXPECT_EQ(others("gelu"), others("on"));
  EXPECT_EQ(others("off"), 0);
}

/// In 16 bits the sum of what is rounded once has the bits of the sum in f64, rounded; the two calls round the product
/// first. So it is at any address. (A sum in f32 may fall on the other side of where rounding turns: 1 in 100 of the
/// elements of 2^-11, less in bf16.)
TEST(KernelsPairs, SumOfWhatIsNotRoundedYet) {
  for (Type type : halfTypes)
    for (bool biased : {false, true}) {
      Case c{{64, 48, 95}, type, false, biased};
      Operands o(c);
      Values exact = expectedSum(c, o), product = rounded(type, o.linear(c)), twice = residual(c);
      for (size_t i = 0; i < twice.size(); ++i)
        twice[i] += product[i];
      Values once = rounded(type, exact);
      twice = rounded(type, twice);
      auto share = [&](const Values &values, const Values &others) {
        size_t count = 0;
        for (size_t i = 0; i < values.size(); ++i)
          count += values[i] == others[i];
        return double(count) / double(values.size());
      };
      EXPECT_LT(share(once, twice), 0.9) << c.text();
      for (const char *wish : {"on", "gelu", "off", ""})
        for (size_t shift : {0, 1}) {
          if (*wish)
            setenv("PP_EPILOGUES", wish, 1);
          Values got = sum(c, o, shift);
          unsetenv("PP_EPILOGUES");
          EXPECT_GT(share(got, *wish == 'o' && wish[1] == 'f' ? twice : once), 0.99) << c.text() << " " << wish;
        }
    }
}
#endif

/// Addresses that are no multiples of 16 bytes are served too.
TEST(KernelsPairs, AnyAddress) {
  for (Type type : allTypes) {
    Case c{{24, 16, 32}, type, false, true};
    Operands o(c);
    size_t bytes = type == Type::F64 ? 8 : type == Type::F32 ? 4 : 2;
    auto behind = [&](const Array &array) { return static_cast<void *>(static_cast<char *>(array.data()) + bytes); };
    Values shifted = o.x;
    shifted.insert(shifted.begin(), 0);
    Array x(type, shifted), u(type, size_t(c.t * c.n) + 1), y(type, size_t(c.t * c.n)), b(type, o.b);
    OneOp op("linear_gelu", type, {c.t, c.k, c.n}, {}, {"bias"});
    op(pp_linear_gelu, behind(x), Array(type, o.w), b, behind(u), y);
    Values expected = o.linear(c), got = u.get();
    got.erase(got.begin());
    expectNear(got, expected, toleranceOf(type), c.text() + ", u");
    for (double &value : expected)
      value = gelu(value);
    expectNear(y.get(), expected, toleranceOf(type), c.text() + ", y");
    expectNear(sum(c, o, 1), expectedSum(c, o), toleranceOf(type), c.text() + ", sum with r");
  }
}

TEST(KernelsPairs, SpecsOfPairsAreChecked) {
  auto refusal = [](OpSpec spec) {
    std::unique_ptr<Kernels> kernels;
    std::string message;
    EXPECT_EQ(Kernels::prepare({spec}, kernels, message), PP_INVALID);
    return message;
  };
  EXPECT_EQ(refusal({"linear_gelu", Type::F32, {4, 8}, {}, {}}), "op 0 `linear_gelu`: expected 3 dims, got 2");
  EXPECT_EQ(refusal({"linear_gelu", Type::F32, {4, 8, 8}, {}, {"exact"}}),
            "op 0 `linear_gelu`: it takes no flag `exact`");
  EXPECT_EQ(refusal({"linear_add", Type::F32, {4, 8}, {}, {}}), "op 0 `linear_add`: expected 3 dims, got 2");
  EXPECT_EQ(refusal({"linear_add", Type::F32, {4, 8, 8}, {}, {"accumulate"}}),
            "op 0 `linear_add`: it takes no flag `accumulate`");
  EXPECT_EQ(refusal({"linear_dx_gelu", Type::F32, {4, 8, 8}, {}, {"accumulate"}}),
            "op 0 `linear_dx_gelu`: it takes no flag `accumulate`");
  EXPECT_EQ(refusal({"linear_dw_bias", Type::F32, {4, 8, 0}, {}, {}}), "op 0 `linear_dw_bias`: dim 2 is 0");
}
