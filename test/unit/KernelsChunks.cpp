// Attention over chunks of keys: lists, parts and their merge, additive backwards; slices equal the whole sequence.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Attention.h"

using namespace pp;
using namespace pp::test;

namespace {

#ifdef PP_EMULATED // a thread at a time
constexpr uint32_t randomLists = 8, randomParts = 5;
#else
constexpr uint32_t randomLists = 24, randomParts = 16;
#endif

/// Lengths that divide no block, 1 to 5 chunks, fewer kv heads than heads; queries that begin anywhere, even before
/// all keys, so that some see nothing.
Slice randomSlice(uint32_t seed) {
  std::mt19937 generator(seed);
  auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(generator);
  };
  int64_t groups = pick(1, 2), share = pick(1, 3);
  Slice n(pick(1, 2), pick(1, 130), groups * share, groups, pick(1, 70), pick(0, 3) > 0, pick(0, 150));
  n.chunks.clear();
  int64_t next = pick(0, 40);
  for (int64_t left = pick(1, 5); left; --left) {
    n.chunks.push_back({pick(1, 140), next});
    next += n.chunks.back().length + (pick(0, 2) ? 0 : pick(0, 30));
  }
  return n;
}

/// The chunks [from, to) of a slice, with their keys.
std::pair<Slice, Keys> chunksOf(const Slice &n, const Keys &keys, size_t from, size_t to) {
  Slice part = n;
  part.chunks = {n.chunks.begin() + from, n.chunks.begin() + to};
  return {part, {{keys.k.begin() + from, keys.k.begin() + to}, {keys.v.begin() + from, keys.v.begin() + to}}};
}

Output merge(const Slice &n, Type type, const std::vector<Output> &parts) {
  ArrayList list;
  for (const Output &part : parts) {
    list.add(Array(type, part.o));
    list.add(Array(accOf(type), part.lse));
  }
  OneOp op("attention_merge", type, {n.b, n.s, n.heads, n.d, int64_t(parts.size())});
  Array o(type, n.queries()), lse(accOf(type), n.rows());
  op(pp_attention_merge, list.inputs(), o, lse);
  // The same over the first part.
  op(pp_attention_merge, list.inputs(), list.arrays[0], list.arrays[1]);
  expectEqual(list.arrays[0].get(), o.get(), "o in place");
  expectEqual(list.arrays[1].get(), lse.get(), "lse in place");
  return {o.get(), lse.get()};
}

/// The gradients so far; dk and dv in the type of sums.
struct Accumulators {
  Array dq;
  ArrayList dkv;
  Accumulators(const Slice &n, Type type, uint32_t seed) : dq(type, random(n.queries(), seed)) {
    for (size_t i = 0; i < 2 * n.chunks.size(); ++i)
      dkv.add(Array(accOf(type), random(n.keys(i / 2), seed + 1 + uint32_t(i))));
  }
};

/// Adds what chunks [from, to) of the slice give, or writes it: dq by `adds`, dk and dv by `addsKv`.
void addBackward(const Slice &n, const Keys &keys, size_t from, size_t to, Type type, const Values &q,
                 const Values &dout, const Values &lse, const Values &delta, Accumulators &sums, bool adds,
                 bool addsKv) {
  auto [part, partKeys] = chunksOf(n, keys, from, to);
  ArrayList kv = listOf(part, type, partKeys);
  std::vector<std::string> flags = part.flags({addsKv ? "accumulate_kv" : "sums"});
  if (adds)
    flags.push_back("accumulate");
  OneOp("attention_bwd", type, part.dims(), part.params(), flags)
      .seeded(n.seed)(pp_attention_bwd, Array(type, dout), Array(type, q), Array(accOf(type), lse),
                      Array(accOf(type), delta), kv.inputs(), sums.dq, sums.dkv.outputs() + 2 * from, nullptr);
}

void expectGradients(const Accumulators &sums, const Gradients &expected, const Accumulators *old, double tolerance) {
  auto plus = [&](Values values, const Array *start) {
    Values more = start ? start->get() : Values(values.size(), 0);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += more[i];
    return values;
  };
  expectNear(sums.dq.get(), plus(expected.dq, old ? &old->dq : nullptr), tolerance, "dq");
  for (size_t i = 0; i < sums.dkv.arrays.size(); ++i)
    expectNear(sums.dkv.arrays[i].get(),
               plus(i % 2 ? expected.dv[i / 2] : expected.dk[i / 2], old ? &old->dkv.arrays[i] : nullptr), tolerance,
               "dk, dv " + std::to_string(i));
}

} // namespace

TEST(KernelsChunks, ListEqualsTheDenseDefinition) {
  for (uint32_t seed = 1; seed <= randomLists; ++seed)
    for (Type type : allTypes)
      compare(randomSlice(seed), type);
}

/// The same lists under windows, documents and caps: rows that see a part of a chunk, chunks that nobody sees.
TEST(KernelsChunks, BoundedListsEqualTheDenseDefinition) {
  for (uint32_t seed = 201; seed <= 200 + 2 * randomLists; ++seed)
    for (Type type : allTypes) {
      Slice n = randomSlice(seed);
      n.causal = true;
      n.window = seed % 3 ? 1 + int64_t(seed * 7 % 90) : 0;
      n.softcap = seed % 4 ? 0 : 1.5;
      if (seed % 3 == 0 || seed % 5 == 0)
        n = n.withDocuments({20, 40, 41, n.position + n.s / 3, n.position + n.s / 2});
      compare(seed % 2 ? n : n.dropped(0.2, 1000), type, 1, n.window && n.window < 8 ? 8 : 1); // few keys: rounding
    }
}

/// A tile of keys that no query sees is not read: what is not a number there spoils nothing.
TEST(KernelsChunks, HiddenTilesAreSkipped) {
  for (Type type : allTypes) {
    Slice plain(1, 90, 2, 1, 20, true, 300, {{200, 0}, {190, 200}});
    Slice documents = plain;
    documents.starts.assign(90, 250);
    for (const Slice &n : {plain.windowed(51), documents}) {
      Values q = rounded(type, random(n.queries(), 1)), dout = rounded(type, random(n.queries(), 2));
      Keys keys = randomKeys(n, type, 3), spoilt = keys;
      for (size_t chunk = 0; chunk < 2; ++chunk)
        for (size_t i = 0; i < (chunk ? 40 * 20 : n.keys(0)); ++i) // keys before 240; the first one seen is 250
          spoilt.k[chunk][i] = spoilt.v[chunk][i] = NAN;
      Output got = forward(n, type, q, spoilt), clean = forward(n, type, q, keys);
      expectEqual(got.o, clean.o, "o");
      Gradients gradients = backward(n, type, dout, q, spoilt, got), expected = backward(n, type, dout, q, keys, clean);
      expectEqual(gradients.dq, expected.dq, "dq");
      expectEqual(gradients.dk[1], expected.dk[1], "dk");
      expectEqual(gradients.dv[0], Values(n.keys(0), 0), "dv of keys that nobody sees");
    }
  }
}

namespace {

/// Separate calls for runs of the chunks, merged, equal one call for all; their backwards, last run first, add up to
/// its backward.
void compareParts(const Slice &n, Type type, uint32_t seed) {
  SCOPED_TRACE(n.text() + " " + nameOf(type));
  Values q = rounded(type, random(n.queries(), 1)), dout = rounded(type, random(n.queries(), 2));
  Keys keys = randomKeys(n, type, 3);
  Gradients expected;
  Output want = reference(n, q, keys, &dout, &expected);
  std::vector<size_t> cuts = {0};
  for (size_t at = 1 + seed % 2; at < n.chunks.size(); at += 1 + seed % 3)
    cuts.push_back(at);
  cuts.push_back(n.chunks.size());
  std::vector<Output> parts;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    auto [part, partKeys] = chunksOf(n, keys, cuts[i], cuts[i + 1]);
    parts.push_back(forward(part, type, q, partKeys));
  }
  Output got = merge(n, type, parts);
  expectNear(got.o, want.o, toleranceOf(type), "o");
  expectNear(got.lse, want.lse, toleranceOf(accOf(type)), "lse");

  Values sums = delta(n, type, dout, got.o);
  Accumulators written(n, type, 50), added(n, type, 60), old(n, type, 60);
  for (size_t i = cuts.size() - 1; i-- > 0;) {
    bool first = i + 2 == cuts.size();
    addBackward(n, keys, cuts[i], cuts[i + 1], type, q, dout, got.lse, sums, written, !first, false);
    addBackward(n, keys, cuts[i], cuts[i + 1], type, q, dout, got.lse, sums, added, true, true);
  }
  expectGradients(written, expected, nullptr, gradientTolerance(type));
  expectGradients(added, expected, &old, gradientTolerance(type));
}

} // namespace

TEST(KernelsChunks, PartsMergeAndTheirBackwardsAdd) {
  for (uint32_t seed = 101; seed <= 100 + randomParts; ++seed)
    for (Type type : allTypes)
      compareParts(seed % 2 ? randomSlice(seed).dropped(0.4, 5001) : randomSlice(seed), type, seed);
}

#ifndef PP_EMULATED // whose kernels have one run of queries
/// Lists and parts whose queries are two runs, which begin anywhere.
TEST(KernelsChunks, PartsOfTwoRuns) {
  for (uint32_t seed = 301; seed <= 300 + randomParts; ++seed)
    for (Type type : allTypes) {
      Slice n = randomSlice(seed);
      n.s *= 2, n.second = n.position + n.s / 2 + seed * 37 % 200;
      compare(n, type);
      compareParts(seed % 2 ? n.dropped(0.4, 5001) : n, type, seed);
    }
}
#endif

namespace {

/// Rows [from, to) of every sequence of x.
Values rowsOf(const Values &x, int64_t batch, int64_t from, int64_t to) {
  size_t sequence = x.size() / size_t(batch);
  Values rows;
  for (size_t b = 0; b < size_t(batch); ++b)
    rows.insert(rows.end(), x.begin() + int64_t(b * sequence) + from, x.begin() + int64_t(b * sequence) + to);
  return rows;
}

/// A sequence cut in slices; everything in f64 but the kernels' own arithmetic.
struct Sequence {
  Slice whole;
  Type type;
  std::vector<Chunk> cuts;
  Values q, dout;
  Keys keys, sliced;
  Sequence(const Slice &whole, Type type, const std::vector<int64_t> &lengths)
      : whole(whole), type(type), q(rounded(type, random(whole.queries(), 1))),
        dout(rounded(type, random(whole.queries(), 2))), keys(randomKeys(whole, type, 3)) {
    int64_t at = 0;
    for (int64_t length : lengths) {
      cuts.push_back({length, at});
      for (bool value : {false, true})
        (value ? sliced.v : sliced.k).push_back(part(value ? keys.v[0] : keys.k[0], cuts.size() - 1, whole.groups));
      at += length;
    }
    EXPECT_EQ(at, whole.s);
  }
  Values part(const Values &x, size_t i, int64_t heads) const {
    int64_t width = heads * whole.d;
    return rowsOf(x, whole.b, cuts[i].position * width, (cuts[i].position + cuts[i].length) * width);
  }
  /// Slice i and the chunks that it attends: those before it, and its own.
  Slice slice(size_t i) const {
    Slice slice = whole;
    slice.s = cuts[i].length, slice.position = cuts[i].position;
    slice.chunks = {cuts.begin(), cuts.begin() + int64_t(i) + 1};
    slice.starts.clear();
    for (int64_t row = 0; row < whole.b && !whole.starts.empty(); ++row)
      for (int64_t t = 0; t < slice.s; ++t)
        slice.starts.push_back(whole.starts[size_t(row * whole.s + slice.position + t)]);
    return slice;
  }
};

/// Forward slice by slice; backward in reverse order, dk and dv summed, the last slice writing them.
void compareSlices(const Sequence &n) {
  SCOPED_TRACE(n.whole.text() + " in " + std::to_string(n.cuts.size()) + " slices " + nameOf(n.type));
  Output whole = forward(n.whole, n.type, n.q, n.keys);
  Gradients gradients = backward(n.whole, n.type, n.dout, n.q, n.keys, whole);
  double tolerance = n.type == Type::F64 ? 1e-12 : n.type == Type::F32 ? 5e-6 : 1e-2;
  ArrayList dkv;
  for (size_t i = 0; i < 2 * n.cuts.size(); ++i)
    dkv.add(Array(accOf(n.type), n.slice(n.cuts.size() - 1).keys(i / 2)));
  for (size_t i = n.cuts.size(); i-- > 0;) {
    Slice slice = n.slice(i);
    Values q = n.part(n.q, i, slice.heads), dout = n.part(n.dout, i, slice.heads);
    Keys keys = chunksOf(n.slice(n.cuts.size() - 1), n.sliced, 0, i + 1).second;
    Output got = forward(slice, n.type, q, keys);
    expectNear(got.o, n.part(whole.o, i, slice.heads), tolerance, "o of slice " + std::to_string(i));
    ArrayList kv = listOf(slice, n.type, keys);
    Array dq(n.type, slice.queries());
    OneOp("attention_bwd", n.type, slice.dims(), slice.params(),
          slice.flags({i + 1 == n.cuts.size() ? "sums" : "accumulate_kv"}))(
        pp_attention_bwd, Array(n.type, dout), Array(n.type, q), Array(accOf(n.type), got.lse),
        Array(accOf(n.type), delta(slice, n.type, dout, got.o)), kv.inputs(), dq, dkv.outputs(), nullptr);
    expectNear(dq.get(), n.part(gradients.dq, i, slice.heads), tolerance, "dq of slice " + std::to_string(i));
    // All later slices are done: this one's keys have their whole gradient.
    expectNear(dkv.arrays[2 * i].get(), n.part(gradients.dk[0], i, slice.groups), tolerance, "dk");
    expectNear(dkv.arrays[2 * i + 1].get(), n.part(gradients.dv[0], i, slice.groups), tolerance, "dv");
  }
}

} // namespace

TEST(KernelsChunks, SlicesEqualTheWholeSequence) {
  for (Type type : allTypes) {
    compareSlices({Slice(2, 157, 4, 2, 24, true), type, {157}});
    compareSlices({Slice(2, 157, 4, 2, 24, true), type, {50, 107}});
    compareSlices({Slice(1, 211, 6, 1, 40, true), type, {97, 1, 13, 53, 47}});
    compareSlices({Slice(1, 256, 4, 4, 64, true), type, {64, 64, 64, 64}});
    compareSlices({Slice(1, 200, 2, 1, 9, true), type, {7, 100, 93}});
    compareSlices({Slice(2, 200, 2, 1, 9, true).withDocuments({1, 6, 50, 120, 199}), type, {7, 100, 93}});
    compareSlices({Slice(2, 200, 2, 1, 9, true).windowed(31).withDocuments({50, 120}), type, {100, 7, 93}});
  }
}

TEST(KernelsChunks, WindowedSlicesEqualTheWholeSequence) {
  for (Type type : allTypes)
    for (int64_t window : {1, 2, 45, 64, 150, 300})
      compareSlices({Slice(1, 256, 2, 1, 64, true).windowed(window), type, {64, 64, 64, 64}});
}

/// Queries that stand before all keys have no output and no gradient; in a merge they have weight 0 and change nothing.
TEST(KernelsChunks, RowsThatSeeNothing) {
  for (Type type : allTypes) {
    Slice late(1, 60, 2, 1, 20, true, 10, {{70, 40}, {5, 200}}); // queries 10 to 69, keys 40 to 109: 30 rows see none
    Slice early(1, 60, 2, 1, 20, true, 10, {{33, 0}});
    Values q = rounded(type, random(late.queries(), 1)), dout = rounded(type, random(late.queries(), 2));
    Keys lateKeys = randomKeys(late, type, 3), earlyKeys = randomKeys(early, type, 7);
    Output none = forward(late, type, q, lateKeys), some = forward(early, type, q, earlyKeys);
    for (size_t t = 0; t < 30; ++t)
      for (size_t head = 0; head < 2; ++head) {
        ASSERT_EQ(none.lse[head * 60 + t], -INFINITY);
        for (size_t c = 0; c < 20; ++c)
          ASSERT_EQ(none.o[(t * 2 + head) * 20 + c], 0);
      }
    EXPECT_TRUE(std::isfinite(none.lse[30]));
    Output merged = merge(late, type, {none, some}), turned = merge(late, type, {some, none});
    expectNear(merged.o, turned.o, toleranceOf(type), "order of parts");
    for (size_t t = 0; t < 30; ++t)
      ASSERT_NEAR(merged.lse[t], some.lse[t], 1e-5);
    Output nothing = merge(late, type, {none, none, none});
    EXPECT_EQ(nothing.lse[0], -INFINITY);
    EXPECT_EQ(nothing.o[0], 0);
    Gradients gradients = backward(late, type, dout, q, lateKeys, none), expected;
    reference(late, q, lateKeys, &dout, &expected);
    expectNear(gradients, expected, gradientTolerance(type));
    for (size_t i = 0; i < 30 * 2 * 20; ++i)
      ASSERT_EQ(gradients.dq[i], 0);
  }
}

/// The exact mask of rectangular blocks, where differences are blind: o_t depends on v_j exactly if key j stands at or
/// before query t; dk_j and dv_j depend on dout_t in the same pairs.
TEST(KernelsChunks, PositionsDecideWhoSeesWhom) {
  for (Type type : {Type::F32, Type::F64})
    for (int64_t position : {0, 17, 41, 90}) {
      Slice n(1, 50, 1, 1, 8, true, position, {{30, 20}, {60, 25}});
      Values q = random(n.queries(), 1), dout(n.queries(), 0);
      Keys keys = randomKeys(n, type, 2);
      Output before = forward(n, type, q, keys);
      for (size_t chunk = 0; chunk < 2; ++chunk)
        for (int64_t j = 0; j < n.chunks[chunk].length; j += 7) {
          Keys moved = keys;
          for (int64_t c = 0; c < n.d; ++c)
            moved.v[chunk][size_t(j * n.d + c)] += 1000;
          Values after = forward(n, type, q, moved).o;
          for (int64_t t = 0; t < n.s; ++t)
            ASSERT_EQ(after[size_t(t * n.d)] != before.o[size_t(t * n.d)], n.sees(t, n.chunks[chunk], j))
                << "o " << t << " and v " << j << " of chunk " << chunk << ", queries from " << position;
        }
      for (int64_t t = 0; t < n.s; t += 7) {
        std::fill(dout.begin(), dout.end(), 0);
        for (int64_t c = 0; c < n.d; ++c)
          dout[size_t(t * n.d + c)] = double(c) - 2.5;
        Gradients g = backward(n, type, dout, q, keys, before);
        for (size_t chunk = 0; chunk < 2; ++chunk)
          for (int64_t j = 0; j < n.chunks[chunk].length; ++j)
            ASSERT_EQ(g.dv[chunk][size_t(j * n.d)] != 0, n.sees(t, n.chunks[chunk], j)) << "dv " << j << ", dout " << t;
      }
    }
}

/// Many chunks need as much scratch as two chunks: one chunk's keys and one slice's queries.
TEST(KernelsChunks, ScratchIsOfOneSlice) {
  for (const char *kernel : {"attention", "attention_bwd"}) {
    auto bytes = [&](int64_t chunks) {
      Slice n(1, 128, 8, 2, 64, true, (chunks - 1) * 128, {});
      n.chunks.clear();
      for (int64_t i = 0; i < chunks; ++i)
        n.chunks.push_back({128, i * 128});
      return OneOp(kernel, Type::F32, n.dims(), n.params(), n.flags()).kernels->scratchBytes();
    };
    EXPECT_EQ(bytes(64), bytes(2)) << kernel;
    // K, V, dK, dV of one kv head; Q, dO, O or dQ and their transposes of its four heads; some blocks of scores.
    EXPECT_LE(bytes(64), 4 * (4 * 128 * 64 + 4 * 192 * 66 + 6 * 96 * 66 + 2 * 96 * 96 + 1024)) << kernel;
  }
}

/// A slice turned at its offset is bit for bit the slice of the turned sequence.
TEST(KernelsChunks, RopeOfSlicesIsRopeOfTheSequence) {
  for (Type type : allTypes)
    for (std::vector<std::string> flags : {std::vector<std::string>{}, {"pair"}, {"inverse"}, {"pair", "inverse"}}) {
      int64_t s = 23, heads = 3, d = 10, cut = 9;
      Values x = random(size_t(s * heads * d), 1);
      auto turned = [&](const Values &rows, int64_t offset) {
        Array y(type, rows.size());
        int64_t length = int64_t(rows.size()) / (heads * d);
        OneOp("rope", type, {1, length, heads, d, offset}, {1e4}, flags)(pp_rope, Array(type, rows), nullptr, y);
        return y.get();
      };
      Values whole = turned(x, 0), first = turned(rowsOf(x, 1, 0, cut * heads * d), 0);
      Values second = turned(rowsOf(x, 1, cut * heads * d, s * heads * d), cut);
      first.insert(first.end(), second.begin(), second.end());
      expectEqual(first, whole, nameOf(type));
    }
}

/// Positions count from where a document begins: each is bit for bit a sequence of its own, in slices, too.
TEST(KernelsChunks, RopeOfDocumentsIsRopeOfEach) {
  for (Type type : allTypes)
    for (std::vector<std::string> flags : {std::vector<std::string>{}, {"pair"}, {"inverse"}, {"pair", "inverse"}}) {
      int64_t heads = 2, d = 16, width = heads * d;
      const std::vector<int64_t> lengths = {7, 1, 12};
      std::vector<std::string> documents = flags;
      documents.push_back("documents");
      Values x = random(size_t(20 * width), 1), expected;
      std::vector<int32_t> starts;
      for (int64_t length : lengths) {
        int64_t begin = int64_t(starts.size());
        Array y(type, size_t(length * width));
        OneOp("rope", type, {1, length, heads, d, 0}, {1e4},
              flags)(pp_rope, Array(type, rowsOf(x, 1, begin * width, (begin + length) * width)), nullptr, y);
        Values rows = y.get();
        expected.insert(expected.end(), rows.begin(), rows.end());
        starts.insert(starts.end(), size_t(length), int32_t(begin));
      }
      for (int64_t cut : {20, 3, 7, 15}) {
        Values got;
        for (auto [from, to] : {std::pair(int64_t(0), cut), {cut, int64_t(20)}}) {
          if (from == to)
            continue;
          Array y(type, size_t((to - from) * width));
          std::vector<int32_t> part(starts.begin() + from, starts.begin() + to);
          OneOp("rope", type, {1, to - from, heads, d, from}, {1e4},
                documents)(pp_rope, Array(type, rowsOf(x, 1, from * width, to * width)), part, y);
          Values rows = y.get();
          got.insert(got.end(), rows.begin(), rows.end());
        }
        expectEqual(got, expected, nameOf(type));
      }
    }
}
