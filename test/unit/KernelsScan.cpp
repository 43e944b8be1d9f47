// Scans and causal convolutions against their definitions a token at a time in f64; documents, slices, threads.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/Facts.h"
#include "runtime/simt/scan/States.h"
#include "test/unit/Kernels.h"
#include <cstdlib>

using namespace pp;
using namespace pp::test;

namespace {

using Starts = std::vector<int32_t>;

/// Where the document of each row begins; in row b of the batch, documents begin b places earlier.
Starts startsOf(int64_t b, int64_t s, const std::vector<int64_t> &begins) {
  Starts starts;
  for (int64_t row = 0; row < b; ++row)
    for (int64_t t = 0; t < s; ++t) {
      int64_t start = 0;
      for (int64_t begin : begins)
        start = begin - row <= t ? std::max(start, begin - row) : start;
      starts.push_back(int32_t(start));
    }
  return starts;
}

enum class Fading { Mild, None, Least, Strong, Whole, Mixed };
enum class Keys { Random, SomeZero, Equal };
struct Rule {
  bool delta, byChannel;
};
constexpr Rule rules[] = {{false, false}, {true, false}, {false, true}, {true, true}};

std::vector<double> positionOf(int64_t position) {
  return position > 0 ? std::vector<double>{double(position)} : std::vector<double>{};
}

/// A scan's operands, as their types hold them.
struct Problem {
  Type type;
  int64_t b, s, h, k, d, e;
  bool delta, byChannel; ///< a decay of each column of k
  Starts starts;
  Values q, keys, v, g, beta, dout;
  int64_t position = 0;  ///< of the first row, in a slice of the sequence
  Values state, dbehind; ///< S before a slice, and the gradient of S behind it; empty: none

  Problem(Type type, Rule rule, std::array<int64_t, 6> dims, Fading decay = Fading::Mild, Keys kind = Keys::Random,
          const std::vector<int64_t> &begins = {})
      : type(type), b(dims[0]), s(dims[1]), h(dims[2]), k(dims[3]), d(dims[4]), e(dims[5]), delta(rule.delta),
        byChannel(rule.byChannel) {
    if (!begins.empty())
      starts = startsOf(b, s, begins);
    q = rounded(type, random(size_t(b * s * k * d), 1)), v = rounded(type, random(size_t(b * s * h * e), 3));
    keys = random(size_t(b * s * k * d), 2), dout = rounded(type, random(size_t(b * s * h * e), 4));
    for (size_t row = 0; row < size_t(b * s * k); ++row) { // of length 1, else a delta rule may grow without bound
      double *its = &keys[row * size_t(d)], sum = 0;
      for (int64_t c = 0; c < d; ++c)
        its[c] = kind == Keys::Equal ? keys[size_t(c)] : kind == Keys::SomeZero && row % 3 == 1 ? 0 : its[c];
      for (int64_t c = 0; c < d; ++c)
        sum += its[c] * its[c];
      for (int64_t c = 0; c < d && row > 0 && sum > 0; ++c)
        its[c] /= std::sqrt(sum);
    }
    double first = 0;
    for (int64_t c = 0; c < d; ++c)
      first += keys[size_t(c)] * keys[size_t(c)];
    for (int64_t c = 0; c < d; ++c)
      keys[size_t(c)] /= std::sqrt(first);
    keys = rounded(type, keys);
    g = random(size_t(b * s * h * decays()), 5), beta = random(size_t(b * s * h), 6);
    const double some[] = {0, -1e-6, -0.1, -30, -1e4, -2, -0.01};
    for (size_t i = 0; i < g.size(); ++i) {
      g[i] = decay == Fading::Mild     ? -0.3 * std::fabs(g[i])
             : decay == Fading::None   ? 0
             : decay == Fading::Least  ? -1e-6
             : decay == Fading::Strong ? -30
             : decay == Fading::Whole  ? -1e4
                                       : some[i % 7];
    }
    for (size_t i = 0; i < beta.size(); ++i)
      beta[i] = i % 5 == 1 ? 0 : i % 5 == 2 ? 1 : i % 5 == 3 ? 2 : 1 / (1 + std::exp(beta[i]));
    g = rounded(accOf(type), g), beta = rounded(accOf(type), beta);
  }
  std::vector<int64_t> dims() const { return {b, s, h, k, d, e}; }
  int64_t decays() const { return byChannel ? d : 1; } ///< of a head
  /// The number of the decay of row i of the state of a token's head.
  size_t decayOf(size_t one, size_t i) const { return one * size_t(decays()) + (byChannel ? i : 0); }
  std::vector<double> params() const {
    return byChannel ? std::vector<double>{double(position), 1} : positionOf(position);
  }
  std::vector<std::string> flags() const {
    std::vector<std::string> all;
    if (delta)
      all.push_back("delta");
    if (!starts.empty())
      all.push_back("documents");
    return all;
  }
  std::string text() const {
    std::string all = std::string(nameOf(type)) + (delta ? " delta" : " linear") + (byChannel ? " by channel" : "") +
                      (starts.empty() ? "" : " documents");
    for (int64_t dim : dims())
      all += " " + std::to_string(dim);
    return all;
  }
  bool begins(int64_t row, int64_t t) const { return t == 0 || (!starts.empty() && starts[size_t(row * s + t)] == t); }
};

struct Gradients {
  Values q, k, v, g, beta, state = {};
};

/// An operand or result that may be absent: null where it has no values.
struct Optional {
  Array array;
  void *pointer;
  Optional(Type type, const Values &values) : array(type, values), pointer(values.empty() ? nullptr : array.data()) {}
};

/// One token after the other.
struct Reference {
  Values o;
  Gradients d;

  explicit Reference(const Problem &p) : o(p.dout.size()) {
    d = {Values(p.q.size()), Values(p.q.size()), Values(p.v.size()), Values(p.g.size()), Values(p.beta.size())};
    for (int64_t row = 0; row < p.b; ++row)
      for (int64_t head = 0; head < p.h; ++head)
        readHead(p, row, head);
  }

private:
  void readHead(const Problem &p, int64_t row, int64_t head) {
    const auto width = size_t(p.d), columns = size_t(p.e);
    std::vector<Values> states, before, w; // S_t, e^g S_(t-1), and v_t less what the keys before gave
    for (int64_t t = 0; t < p.s; ++t) {
      size_t at = size_t(row * p.s + t), key = (at * size_t(p.k) + size_t(head * p.k / p.h)) * width,
             value = (at * size_t(p.h) + size_t(head)) * columns, one = at * size_t(p.h) + size_t(head);
      Values old = p.begins(row, t) ? Values(width * columns) : states.back(), its(columns);
      for (size_t i = 0; i < old.size(); ++i)
        old[i] *= std::exp(p.g[p.decayOf(one, i / columns)]);
      Values state = old;
      for (size_t c = 0; c < columns; ++c) {
        its[c] = p.v[value + c];
        for (size_t i = 0; i < width && p.delta; ++i)
          its[c] -= old[i * columns + c] * p.keys[key + i];
        for (size_t i = 0; i < width; ++i)
          state[i * columns + c] += p.keys[key + i] * p.beta[one] * its[c];
        o[value + c] = 0;
        for (size_t i = 0; i < width; ++i)
          o[value + c] += state[i * columns + c] * p.q[key + i];
      }
      states.push_back(state), before.push_back(old), w.push_back(its);
    }
    Values slope(width * columns); // of S_t
    for (int64_t t = p.s - 1; t >= 0; --t) {
      size_t at = size_t(row * p.s + t), key = (at * size_t(p.k) + size_t(head * p.k / p.h)) * width,
             value = (at * size_t(p.h) + size_t(head)) * columns, one = at * size_t(p.h) + size_t(head);
      const Values &state = states[size_t(t)], &old = before[size_t(t)], &its = w[size_t(t)];
      for (size_t i = 0; i < width; ++i)
        for (size_t c = 0; c < columns; ++c) {
          d.q[key + i] += state[i * columns + c] * p.dout[value + c];
          slope[i * columns + c] += p.q[key + i] * p.dout[value + c];
        }
      Values inner = slope; // of e^g S_(t-1)
      for (size_t c = 0; c < columns; ++c) {
        double du = 0;
        for (size_t i = 0; i < width; ++i) {
          du += slope[i * columns + c] * p.keys[key + i];
          d.k[key + i] += slope[i * columns + c] * p.beta[one] * its[c];
        }
        d.beta[one] += du * its[c];
        d.v[value + c] = p.beta[one] * du;
        for (size_t i = 0; i < width && p.delta; ++i) {
          inner[i * columns + c] -= p.keys[key + i] * p.beta[one] * du;
          d.k[key + i] -= old[i * columns + c] * p.beta[one] * du;
        }
      }
      for (size_t i = 0; i < inner.size(); ++i) {
        d.g[p.decayOf(one, i / columns)] += inner[i] * old[i];
        slope[i] = p.begins(row, t) ? 0 : std::exp(p.g[p.decayOf(one, i / columns)]) * inner[i];
      }
    }
  }
};

/// o, and S behind the last row if it is asked for.
Values forward(const Problem &p, Values *behind = nullptr) {
  Array o(p.type, p.v.size());
  const Type acc = accOf(p.type);
  OneOp op("scan", p.type, p.dims(), p.params(), p.flags());
  const Array q(p.type, p.q), k(p.type, p.keys), v(p.type, p.v), g(acc, p.g), beta(acc, p.beta);
  const Optional state(acc, p.state), made(acc, Values(behind ? size_t(p.b * p.h * p.d * p.e) : 0, NAN));
  if (p.starts.empty())
    op(pp_scan, q, k, v, g, beta, nullptr, state.pointer, o, made.pointer);
  else
    op(pp_scan, q, k, v, g, beta, p.starts, state.pointer, o, made.pointer);
  if (behind)
    *behind = made.array.get();
  return o.get();
}

Gradients backward(const Problem &p) {
  const Type acc = accOf(p.type);
  Array dq(p.type, p.q.size()), dk(p.type, p.q.size()), dv(p.type, p.v.size()), dg(acc, p.g.size()),
      dbeta(acc, p.beta.size());
  OneOp op("scan_bwd", p.type, p.dims(), p.params(), p.flags());
  const Array dout(p.type, p.dout), q(p.type, p.q), k(p.type, p.keys), v(p.type, p.v), g(acc, p.g), beta(acc, p.beta);
  const Optional state(acc, p.state), dbehind(acc, p.dbehind), dstate(acc, Values(p.state.size(), NAN));
  if (p.starts.empty())
    op(pp_scan_bwd, dout, q, k, v, g, beta, nullptr, state.pointer, dbehind.pointer, dq, dk, dv, dg, dbeta,
       dstate.pointer);
  else
    op(pp_scan_bwd, dout, q, k, v, g, beta, p.starts, state.pointer, dbehind.pointer, dq, dk, dv, dg, dbeta,
       dstate.pointer);
  return {dq.get(), dk.get(), dv.get(), dg.get(), dbeta.get(), dstate.array.get()};
}

double boundOf(Type type) { return type == Type::F64 ? 1e-13 : type == Type::F32 ? 1e-5 : toleranceOf(type) / 2; }

void check(const Problem &p) {
  SCOPED_TRACE(p.text());
  const Reference expected(p);
  expectNear(forward(p), expected.o, boundOf(p.type), "o", 1e-6);
  const Gradients got = backward(p);
  expectNear(got.q, expected.d.q, boundOf(p.type), "dq", 1e-6);
  expectNear(got.k, expected.d.k, boundOf(p.type), "dk", 1e-6);
  expectNear(got.v, expected.d.v, boundOf(p.type), "dv", 1e-6);
  expectNear(got.g, expected.d.g, boundOf(accOf(p.type)), "dg", 1e-6);
  expectNear(got.beta, expected.d.beta, boundOf(accOf(p.type)), "dbeta", 1e-6);
}

void forEachKind(const std::function<void(Type, Rule)> &test) {
  for (Type type : allTypes)
    for (Rule rule : rules)
      test(type, rule);
}

void expectEqual(const Gradients &got, const Gradients &expected) {
  pp::test::expectEqual(got.q, expected.q, "dq"), pp::test::expectEqual(got.k, expected.k, "dk");
  pp::test::expectEqual(got.v, expected.v, "dv"), pp::test::expectEqual(got.g, expected.g, "dg");
  pp::test::expectEqual(got.beta, expected.beta, "dbeta");
}

/// Rows [begin, end) of the first sequence, as one of its own.
Problem cut(const Problem &p, int64_t begin, int64_t end) {
  Problem part = p;
  part.b = 1, part.s = end - begin, part.starts.clear();
  for (Values Problem::*each :
       {&Problem::q, &Problem::keys, &Problem::v, &Problem::g, &Problem::beta, &Problem::dout}) {
    auto width = int64_t((p.*each).size()) / (p.b * p.s);
    part.*each = Values((p.*each).begin() + begin * width, (p.*each).begin() + end * width);
  }
  return part;
}
Values cut(const Values &rows, int64_t s, int64_t begin, int64_t end) {
  auto width = int64_t(rows.size()) / s;
  return Values(rows.begin() + begin * width, rows.begin() + end * width);
}

const std::vector<int64_t> documents = {1, 5, 32, 64, 65, 66, 90, 140};

} // namespace

/// The reference's own gradients, by finite differences of its outputs.
TEST(KernelsScan, ReferencesGradientsAreThoseOfItsOutputs) {
  for (Rule rule : rules) {
    const Problem p(Type::F64, rule, {1, 7, 2, 1, 3, 2}, Fading::Mild, Keys::Random, {4});
    const Reference its(p);
    auto differences = [&](Values Problem::*which) {
      return finiteDifferences(
          [&](const Values &x) {
            Problem moved = p;
            moved.*which = x;
            return Reference(moved).o;
          },
          p.*which, p.dout);
    };
    expectNear(its.d.q, differences(&Problem::q), 1e-10, "dq");
    expectNear(its.d.k, differences(&Problem::keys), 1e-10, "dk");
    expectNear(its.d.v, differences(&Problem::v), 1e-10, "dv");
    expectNear(its.d.g, differences(&Problem::g), 1e-10, "dg");
    expectNear(its.d.beta, differences(&Problem::beta), 1e-10, "dbeta");
  }
}

/// Lengths around a chunk's, widths that are no whole lines, keys that one head has, or three share.
TEST(KernelsScan, EqualsItsDefinition) {
  forEachKind([](Type type, Rule rule) {
    for (std::array<int64_t, 6> dims : {std::array<int64_t, 6>{1, 1, 1, 1, 5, 7},
                                        {2, 31, 3, 1, 7, 5},
                                        {1, 32, 3, 3, 5, 33},
                                        {2, 33, 2, 2, 33, 7},
                                        {1, 100, 6, 2, 16, 40},
                                        {2, 65, 1, 1, 70, 130},
                                        {1, 34, 1, 1, 280, 3}})
      check(Problem(type, rule, dims));
  });
}

TEST(KernelsScan, TakesAnyDecayAndKeys) {
  forEachKind([](Type type, Rule rule) {
    for (Fading decay : {Fading::None, Fading::Least, Fading::Strong, Fading::Whole, Fading::Mixed})
      for (Keys keys : {Keys::Random, Keys::SomeZero, Keys::Equal})
        check(Problem(type, rule, {1, 70, 2, 1, 5, 7}, decay, keys));
  });
}

/// A decay below what f32 holds leaves 0 of the largest state.
TEST(KernelsScan, TheStrongestDecayLeavesNothing) {
  Problem p(Type::F32, {false, false}, {1, 2, 1, 1, 1, 1});
  p.q = {1, 1}, p.keys = {1, 0}, p.v = {1e38, 1}, p.beta = {1, 1}, p.g = {0, -1e4};
  pp::test::expectEqual(forward(p), {float(1e38), 0}, "o");
}

/// Documents that begin at the first row, in a chunk, at its end, and of one token.
TEST(KernelsScan, DocumentsBeginAnywhere) {
  forEachKind([](Type type, Rule rule) {
    check(Problem(type, rule, {2, 150, 3, 1, 7, 20}, Fading::Mild, Keys::Random, documents));
    check(Problem(type, rule, {1, 4, 1, 1, 3, 3}, Fading::Mixed, Keys::Random, {1, 2, 3}));
  });
}

/// A document has the bits that it has alone, also beside one of nothing but NaN.
TEST(KernelsScan, DocumentsDoNotSeeEachOther) {
  forEachKind([](Type type, Rule rule) {
    Problem p(type, rule, {1, 150, 2, 1, 7, 20}, Fading::Mild, Keys::Random, documents);
    for (int64_t t = 66; t < 90; ++t) {
      for (int64_t c = 0; c < p.k * p.d; ++c)
        p.q[size_t(t * p.k * p.d + c)] = p.keys[size_t(t * p.k * p.d + c)] = NAN;
      for (int64_t c = 0; c < p.h * p.e; ++c)
        p.v[size_t(t * p.h * p.e + c)] = p.dout[size_t(t * p.h * p.e + c)] = t % 2 ? NAN : INFINITY;
    }
    const Values o = forward(p);
    const Gradients all = backward(p);
    for (auto [begin, end] :
         {std::pair<int64_t, int64_t>{0, 1}, {1, 5}, {5, 32}, {32, 64}, {64, 65}, {65, 66}, {90, 140}, {140, 150}}) {
      SCOPED_TRACE(p.text() + " from " + std::to_string(begin));
      const Problem alone = cut(p, begin, end);
      pp::test::expectEqual(cut(o, p.s, begin, end), forward(alone), "o");
      expectEqual({cut(all.q, p.s, begin, end), cut(all.k, p.s, begin, end), cut(all.v, p.s, begin, end),
                   cut(all.g, p.s, begin, end), cut(all.beta, p.s, begin, end)},
                  backward(alone));
    }
  });
}

namespace {

/// Rows [begin, end) of all sequences of values with so many rows each; and the other way round.
template <class T>
std::vector<T> sliceOf(const std::vector<T> &rows, int64_t b, int64_t s, int64_t begin, int64_t end) {
  const int64_t width = int64_t(rows.size()) / (b * s);
  std::vector<T> slice;
  for (int64_t row = 0; row < b; ++row)
    slice.insert(slice.end(), rows.begin() + (row * s + begin) * width, rows.begin() + (row * s + end) * width);
  return slice;
}
void putSlice(const Values &slice, int64_t b, int64_t s, int64_t begin, int64_t end, Values &rows) {
  const int64_t width = int64_t(slice.size()) / (b * (end - begin));
  rows.resize(size_t(b * s * width));
  for (int64_t row = 0; row < b; ++row)
    std::copy_n(slice.begin() + row * (end - begin) * width, (end - begin) * width,
                rows.begin() + (row * s + begin) * width);
}

Problem sliceOf(const Problem &p, int64_t begin, int64_t end) {
  Problem part = p;
  part.s = end - begin, part.position = begin, part.starts = sliceOf(p.starts, p.b, p.s, begin, end);
  for (Values Problem::*each : {&Problem::q, &Problem::keys, &Problem::v, &Problem::g, &Problem::beta, &Problem::dout})
    part.*each = sliceOf(p.*each, p.b, p.s, begin, end);
  return part;
}

/// All slices between these borders, with what goes from one to the next, and back.
void checkSlices(const Problem &p, const std::vector<int64_t> &borders) {
  SCOPED_TRACE(p.text());
  const Reference expected(p);
  std::vector<Problem> slices;
  Values o, behind;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    Problem slice = sliceOf(p, borders[i], borders[i + 1]);
    slice.state = behind;
    putSlice(forward(slice, i + 2 < borders.size() ? &behind : nullptr), p.b, p.s, borders[i], borders[i + 1], o);
    slices.push_back(slice);
  }
  Gradients all;
  Values before;
  for (size_t i = slices.size(); i-- > 0;) {
    slices[i].dbehind = before;
    Gradients its = backward(slices[i]);
    for (Values Gradients::*each : {&Gradients::q, &Gradients::k, &Gradients::v, &Gradients::g, &Gradients::beta})
      putSlice(its.*each, p.b, p.s, borders[i], borders[i + 1], all.*each);
    before = its.state;
  }
  expectNear(o, expected.o, boundOf(p.type), "o", 1e-6);
  expectNear(all.q, expected.d.q, boundOf(p.type), "dq", 1e-6);
  expectNear(all.k, expected.d.k, boundOf(p.type), "dk", 1e-6);
  expectNear(all.v, expected.d.v, boundOf(p.type), "dv", 1e-6);
  expectNear(all.g, expected.d.g, boundOf(accOf(p.type)), "dg", 1e-6);
  expectNear(all.beta, expected.d.beta, boundOf(accOf(p.type)), "dbeta", 1e-6);
}

} // namespace

/// Slices of unlike lengths, none of which is whole chunks; documents that begin at a slice's first row and inside.
TEST(KernelsScan, SlicesGoOnFromEachOther) {
#ifdef PP_EMULATED // a thread at a time
  const std::array<int64_t, 6> dims = {1, 100, 3, 1, 7, 35};
#else
  const std::array<int64_t, 6> dims = {2, 100, 6, 2, 16, 40};
#endif
  forEachKind([&](Type type, Rule rule) {
    for (const std::vector<int64_t> &begins : {std::vector<int64_t>{}, {20, 38, 39, 71}})
      for (const std::vector<int64_t> &borders : {std::vector<int64_t>{0, 37, 38, 100}, {0, 5, 71, 100}}) {
        checkSlices(Problem(type, rule, dims, Fading::Mild, Keys::Random, begins), borders);
        checkSlices(Problem(type, rule, {1, 100, 2, 1, 5, 7}, Fading::Mixed, Keys::SomeZero, begins), borders);
      }
  });
}

/// What a slice goes on from is an operand like the others: its gradient by finite differences of o and of S behind it.
TEST(KernelsScan, StatesHaveGradients) {
  for (Rule rule : rules)
    for (const std::vector<int64_t> &begins : {std::vector<int64_t>{}, {8}, {6}}) { // of 5 rows from row 6 on
      Problem p = sliceOf(Problem(Type::F64, rule, {1, 11, 2, 1, 3, 2}, Fading::Mild, Keys::Random, begins), 6, 11);
      p.state = random(12, 7), p.dbehind = random(12, 8);
      Values weights = p.dout;
      weights.insert(weights.end(), p.dbehind.begin(), p.dbehind.end());
      auto differences = [&](Values Problem::*which) {
        return finiteDifferences(
            [&](const Values &x) {
              Problem moved = p;
              moved.*which = x;
              Values behind, o = forward(moved, &behind);
              o.insert(o.end(), behind.begin(), behind.end());
              return o;
            },
            p.*which, weights);
      };
      const Gradients its = backward(p);
      expectNear(its.state, differences(&Problem::state), 1e-10, "dstate");
      expectNear(its.q, differences(&Problem::q), 1e-10, "dq");
      expectNear(its.k, differences(&Problem::keys), 1e-10, "dk");
      expectNear(its.v, differences(&Problem::v), 1e-10, "dv");
      expectNear(its.g, differences(&Problem::g), 1e-10, "dg");
      expectNear(its.beta, differences(&Problem::beta), 1e-10, "dbeta");
    }
}

/// A document that begins with a slice has the bits that it has alone, whatever is before it.
TEST(KernelsScan, StatesDoNotReachOverDocuments) {
  forEachKind([](Type type, Rule rule) {
    const Problem p(type, rule, {1, 70, 3, 1, 7, 20}, Fading::Mild, Keys::Random, {30}), alone = cut(p, 30, 70);
    Problem behind = sliceOf(p, 30, 70);
    behind.state = Values(3 * 7 * 20, NAN);
    pp::test::expectEqual(forward(behind), forward(alone), "o");
    const Gradients its = backward(behind);
    expectEqual(its, backward(alone));
    pp::test::expectEqual(its.state, Values(behind.state.size()), "dstate");
  });
}

#ifdef PP_EMULATED
/// Heads that scratch does not hold together: parts of those of one head of keys, all of one, of two. Same bits.
TEST(KernelsScan, BitsAreTheSameWithFewerHeadsAtOnce) {
  for (Rule rule : rules) {
    const Problem p(Type::F32, rule, {2, 70, 8, 2, 16, 40}, Fading::Mild, Keys::Random, {40});
    const std::vector<int64_t> dims = p.dims();
    const int64_t head = 4 * ScanParts(dims, rule.byChannel).all(), all = statesOfScan;
    const Gradients whole = backward(p);
    for (int64_t heads : {1, 2, 3, 4, 7, 8}) {
      statesOfScan = heads * head;
      EXPECT_EQ(headsOfScan({"scan_bwd", dims, p.params(), 4}, statesOfScan), heads == 3 ? 2 : heads == 7 ? 4 : heads);
      expectEqual(backward(p), whole);
    }
    statesOfScan = all;
  }
}
#else
TEST(KernelsScan, BitsAreTheSameWithThreads) {
  forEachKind([](Type type, Rule rule) {
    const Problem p(type, rule, {2, 70, 6, 2, 9, 20}, Fading::Mild, Keys::Random, {40});
    const Values o = forward(p);
    const Gradients one = backward(p);
    setenv("PP_THREADS", "3", 1);
    pp::test::expectEqual(forward(p), o, p.text());
    expectEqual(backward(p), one);
    unsetenv("PP_THREADS");
  });
}
#endif

TEST(KernelsScan, HeadsAreWholeSharesOfKeys) {
  EXPECT_EQ(refusal({"scan", Type::F32, {1, 8, 6, 4, 5, 7}, {}, {}}),
            "op 1 `scan`: 6 heads are no multiple of 4 heads of keys");
}

//===-- Convolutions ---------------------------------------------------------------------------------------------===//

namespace {

struct Convolution {
  Type type;
  int64_t b, s, c, n;
  Starts starts;
  Values x, w, dy, y, dx, dw;
  Convolution(Type type, std::array<int64_t, 4> dims, const std::vector<int64_t> &begins)
      : type(type), b(dims[0]), s(dims[1]), c(dims[2]), n(dims[3]), starts(startsOf(b, s, begins)),
        x(rounded(type, random(size_t(b * s * c), 1))), w(rounded(type, random(size_t(c * n), 2))),
        dy(rounded(type, random(size_t(b * s * c), 3))), y(x.size()), dx(x.size()), dw(w.size()) {
    for (int64_t row = 0; row < b; ++row)
      for (int64_t t = 0; t < s; ++t)
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < c; ++j) {
            int64_t from = t - n + 1 + i;
            if (from < starts[size_t(row * s + t)])
              continue;
            auto to = size_t((row * s + t) * c + j), read = size_t((row * s + from) * c + j), tap = size_t(j * n + i);
            y[to] += w[tap] * x[read], dx[read] += w[tap] * dy[to], dw[tap] += x[read] * dy[to];
          }
  }
  std::vector<std::string> flags(bool adds = false) const {
    std::vector<std::string> all = {"documents"};
    if (adds)
      all.push_back("accumulate");
    return all;
  }
  Values forward() const {
    Array made(type, y.size());
    OneOp("conv", type, {b, s, c, n}, {}, flags())(pp_conv, Array(type, x), Array(type, w), starts, nullptr, made,
                                                   nullptr);
    return made.get();
  }
  Values gradient() const {
    Array made(type, y.size());
    OneOp("conv_dx", type, {b, s, c, n}, {}, flags())(pp_conv_dx, Array(type, dy), Array(type, w), starts, nullptr,
                                                      made, nullptr);
    return made.get();
  }
};

} // namespace

TEST(KernelsScan, ConvolutionsEqualTheirDefinition) {
  for (Type type : allTypes)
    for (const std::vector<int64_t> &begins : {std::vector<int64_t>{}, {1}, {2, 3, 4, 9, 17}})
      for (std::array<int64_t, 4> dims :
           {std::array<int64_t, 4>{2, 20, 5, 4}, {1, 1, 3, 4}, {1, 3, 40, 4}, {2, 9, 17, 1}, {1, 6, 1, 9}}) {
        const Convolution its(type, dims, begins);
        expectNear(its.forward(), its.y, toleranceOf(type), "y");
        expectNear(its.gradient(), its.dx, toleranceOf(type), "dx");
        for (bool adds : {false, true}) {
          const Type acc = accOf(type);
          Values old = rounded(acc, random(its.dw.size(), 4)), expected = its.dw;
          Array dw(acc, its.dw.size());
          if (adds)
            dw.set(old);
          for (size_t i = 0; i < old.size() && adds; ++i)
            expected[i] += old[i];
          OneOp("conv_dw", type, {its.b, its.s, its.c, its.n}, {},
                its.flags(adds))(pp_conv_dw, Array(type, its.x), Array(type, its.dy), its.starts, nullptr, dw);
          expectNear(dw.get(), expected, toleranceOf(acc), "dw");
        }
        if (begins.empty()) { // without the flag, starts are not read
          Array y(type, its.y.size());
          OneOp("conv", type, {its.b, its.s, its.c, its.n})(pp_conv, Array(type, its.x), Array(type, its.w), nullptr,
                                                            nullptr, y, nullptr);
          expectEqual(y.get(), its.forward(), "y without documents");
        }
      }
}

/// In slices, two of which have fewer rows than a convolution has taps, with and without documents.
TEST(KernelsScan, ConvolutionsGoOnFromSliceToSlice) {
  const std::vector<int64_t> borders = {0, 7, 9, 10, 20};
  for (Type type : allTypes)
    for (const std::vector<int64_t> &begins : {std::vector<int64_t>{}, {3, 9}, {6, 8}})
      for (int64_t n : {2, 4}) {
        const Convolution its(type, {2, 20, 5, n}, begins);
        const Type acc = accOf(type);
        Values y, dx, before;
        std::vector<Values> states(1);
        Array dw(acc, Values(its.dw.size()));
        auto part = [&](const Values &rows, size_t i) { return sliceOf(rows, 2, 20, borders[i], borders[i + 1]); };
        auto starts = [&](size_t i) { return sliceOf(its.starts, 2, 20, borders[i], borders[i + 1]); };
        const auto size = size_t(2 * (n - 1) * 5);
        auto flags = [&](bool adds = false) { // without documents starts are not read
          std::vector<std::string> all = its.flags(adds);
          all.erase(all.begin(), all.begin() + begins.empty());
          return all;
        };
        for (size_t i = 0; i < 4; ++i) {
          const std::vector<int64_t> dims = {2, borders[i + 1] - borders[i], 5, n};
          const Optional state(type, states[i]), behind(type, Values(i < 3 ? size : 0, NAN));
          Array made(type, part(its.y, i).size());
          OneOp("conv", type, dims, positionOf(borders[i]), flags())(
              pp_conv, Array(type, part(its.x, i)), Array(type, its.w), starts(i), state.pointer, made, behind.pointer);
          states.push_back(behind.array.get());
          putSlice(made.get(), 2, 20, borders[i], borders[i + 1], y);
        }
        for (size_t i = 4; i-- > 0;) {
          const std::vector<int64_t> dims = {2, borders[i + 1] - borders[i], 5, n};
          const Optional dbehind(acc, before), dstate(acc, Values(i > 0 ? size : 0, NAN)), state(type, states[i]);
          Array made(type, part(its.y, i).size());
          OneOp("conv_dx", type, dims, positionOf(borders[i]), flags())(pp_conv_dx, Array(type, part(its.dy, i)),
                                                                        Array(type, its.w), starts(i), dbehind.pointer,
                                                                        made, dstate.pointer);
          OneOp("conv_dw", type, dims, positionOf(borders[i]), flags(true))(
              pp_conv_dw, Array(type, part(its.x, i)), Array(type, part(its.dy, i)), starts(i), state.pointer, dw);
          before = dstate.array.get();
          putSlice(made.get(), 2, 20, borders[i], borders[i + 1], dx);
        }
        expectNear(y, its.y, toleranceOf(type), "y");
        expectNear(dx, its.dx, toleranceOf(type), "dx");
        expectNear(dw.get(), its.dw, toleranceOf(acc), "dw");
      }
}

/// What another document holds is not read.
TEST(KernelsScan, ConvolutionsDoNotSeeOtherDocuments) {
  for (Type type : allTypes) {
    Convolution its(type, {1, 20, 5, 4}, {6, 11});
    const Values y = its.forward(), dx = its.gradient();
    for (size_t i = 6 * 5; i < 11 * 5; ++i)
      its.x[i] = its.dy[i] = NAN;
    const Values other = its.forward(), gradient = its.gradient();
    for (size_t i = 0; i < y.size(); ++i)
      if (i < 6 * 5 || i >= 11 * 5) {
        ASSERT_EQ(other[i], y[i]) << i;
        ASSERT_EQ(gradient[i], dx[i]) << i;
      }
  }
}
