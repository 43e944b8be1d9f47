// A run of queries and its chunks of keys: dense attention in f64 as a reference, and the kernels' answer to compare.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_UNIT_ATTENTION_H
#define PP_TEST_UNIT_ATTENTION_H

#include "runtime/files/Philox.h"
#include "runtime/kernels/Op.h"
#include "test/unit/Kernels.h"
#include <numeric>

namespace pp::test {

/// The shape of one call. Without chunks: one chunk, with the positions of the queries.
struct Slice {
  int64_t b, s, heads, groups, d;
  bool causal;
  int64_t position;
  std::vector<Chunk> chunks;
  int64_t window = 0;
  double scale = 0, softcap = 0;
  std::vector<int32_t, DeviceAllocator<int32_t>> starts; ///< [b, s], or none
  double rate = 0;                                       ///< of dropout
  int64_t site = 4711, whole = 0, firstHead = 0;         ///< the last one of all devices' heads
  uint64_t seed = 0x123456789abcdef0;
  std::vector<int32_t, DeviceAllocator<int32_t>> sequences; ///< [b, s], the sequences of the run, with dropout
  int64_t second = -1; ///< where the later half of the queries begins, if not behind the first
  bool packed = false; ///< q, k and v are the columns of one tensor
  Slice(int64_t b, int64_t s, int64_t heads, int64_t groups, int64_t d, bool causal, int64_t position = 0,
        std::vector<Chunk> given = {})
      : b(b), s(s), heads(heads), groups(groups), d(d), causal(causal), position(position), chunks(std::move(given)) {
    if (chunks.empty())
      chunks = {{s, position}};
  }
  size_t queries() const { return size_t(b * s * heads * d); }
  size_t keys(size_t chunk) const { return size_t(b * chunks[chunk].length * groups * d); }
  size_t rows() const { return size_t(b * heads * s); }
  Slice windowed(int64_t keys) const {
    Slice other = *this;
    other.window = keys;
    return other;
  }
  /// Its later half from this position on, over these keys: a device's rows of a sequence, or of a slice.
  Slice inTwoRuns(int64_t later, std::vector<Chunk> keys) const {
    Slice other = *this;
    other.second = later, other.chunks = std::move(keys);
    return other;
  }
  Slice inOneTensor() const {
    Slice other = *this;
    other.packed = true;
    return other;
  }
  int64_t placeOf(int64_t t) const { return second < 0 || t < s / 2 ? position + t : second + t - s / 2; }
  /// The slice with documents that begin at these places of the sequence; in row b of the batch, b places earlier.
  Slice withDocuments(std::vector<int64_t> begins) const {
    Slice other = *this;
    for (int64_t row = 0; row < b; ++row)
      for (int64_t t = 0; t < s; ++t) {
        int64_t start = 0;
        for (int64_t begin : begins)
          start = begin - row <= placeOf(t) && begin > row ? std::max(start, begin - row) : start;
        other.starts.push_back(int32_t(start));
      }
    return other;
  }
  /// The slice with dropout, in sequences of `length` tokens; row b of the batch is row 2^30 + 7 b of the run.
  Slice dropped(double rate, int64_t length) const {
    Slice other = *this;
    other.rate = rate, other.whole = length;
    for (int64_t i = 0; i < b * s; ++i)
      other.sequences.push_back(int32_t((1 << 30) + 7 * (i / s)));
    return other;
  }
  /// The factor of dropout on a weight, from the definition in runtime/Pp.h.
  double kept(size_t b, size_t head, size_t t, const Chunk &chunk, size_t j) const {
    if (rate == 0)
      return 1;
    auto query = uint64_t(placeOf(int64_t(t))), key = uint64_t(chunk.position) + j, length = uint64_t(whole);
    uint64_t place = ((uint64_t(firstHead) + head) * length + query) * length + key;
    Words words = philox(seed, {{uint32_t(place / 4), uint32_t(place / 4 >> 32) + (uint32_t(site) << 16),
                                 uint32_t(sequences[b * size_t(s)]), 0}});
    return double(words.v[place % 4]) >= rate * 4294967296.0 ? 1 / (1 - rate) : 0;
  }
  bool sees(int64_t t, const Chunk &chunk, int64_t j, int64_t row = 0) const {
    int64_t key = chunk.position + j, query = placeOf(t);
    return (!causal || key <= query) && (!window || key > query - window) &&
           (starts.empty() || key >= starts[size_t(row * s + t)]);
  }
  double factor() const { return scale > 0 ? scale : 1 / std::sqrt(double(d)); }
  double capped(double score) const { return softcap > 0 ? softcap * std::tanh(score / softcap) : score; }
  /// The derivative of the cap, from the capped score.
  double slopeOf(double score) const { return softcap > 0 ? 1 - score / softcap * (score / softcap) : 1; }
  std::vector<double> params() const {
    if (rate > 0 && firstHead > 0)
      return {double(window), scale, softcap, rate, double(site), double(whole), double(firstHead)};
    if (rate > 0)
      return {double(window), scale, softcap, rate, double(site), double(whole)};
    if (softcap > 0)
      return {double(window), scale, softcap};
    return scale > 0 ? std::vector<double>{double(window), scale}
           : window  ? std::vector<double>{double(window)}
                     : std::vector<double>{};
  }
  std::vector<int64_t> dims() const {
    std::vector<int64_t> dims = {b, s, heads, groups, d, position};
    for (const Chunk &chunk : chunks)
      dims.insert(dims.end(), {chunk.length, chunk.position});
    if (second >= 0)
      dims.push_back(second);
    return dims;
  }
  std::vector<std::string> flags(std::vector<std::string> more = {}) const {
    if (causal)
      more.push_back("causal");
    if (!starts.empty())
      more.push_back("documents");
    if (rate > 0)
      more.push_back("dropout");
    if (second >= 0)
      more.push_back("zigzag");
    if (packed)
      more.push_back("packed");
    return more;
  }
  std::string text() const {
    std::string text = causal ? "causal" : "full";
    for (int64_t dim : dims())
      text += " " + std::to_string(dim);
    for (double param : params())
      text += " " + std::to_string(param);
    return text + (starts.empty() ? "" : " documents") + (packed ? " packed" : "");
  }
};

/// k and v of every chunk.
struct Keys {
  std::vector<Values> k, v;
};
inline Keys randomKeys(const Slice &n, Type type, uint32_t seed, double scale = 1) {
  Keys keys;
  for (size_t i = 0; i < n.chunks.size(); ++i) {
    keys.k.push_back(rounded(type, random(n.keys(i), seed + 2 * uint32_t(i), scale)));
    keys.v.push_back(rounded(type, random(n.keys(i), seed + 2 * uint32_t(i) + 1)));
  }
  return keys;
}

struct Output {
  Values o, lse;
};
struct Gradients {
  Values dq;
  std::vector<Values> dk, dv;
};

/// One query's softmax over all the keys that it sees, as (chunk, offset of the key's row in it, weight).
struct Seen {
  size_t chunk, row;
  double weight, slope = 1, kept = 1; ///< kept: by dropout
};
/// In four sums at once, for the reference takes most of a test's time.
inline double product(const double *a, const double *b, size_t count) {
  double sums[4] = {};
  size_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (size_t j = 0; j < 4; ++j)
      sums[j] += a[i + j] * b[i + j];
  for (; i < count; ++i)
    sums[0] += a[i] * b[i];
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}
inline void addScaled(double *__restrict to, double factor, const double *from, size_t count) {
  for (size_t i = 0; i < count; ++i)
    to[i] += factor * from[i];
}
inline std::vector<Seen> softmax(const Slice &n, const Values &q, const Keys &keys, size_t b, size_t t, size_t head,
                                 double &lse) {
  std::vector<Seen> seen;
  size_t d = size_t(n.d), at = ((b * size_t(n.s) + t) * size_t(n.heads) + head) * d;
  double largest = -INFINITY, sum = 0;
  for (size_t i = 0; i < n.chunks.size(); ++i)
    for (size_t j = 0; j < size_t(n.chunks[i].length); ++j) {
      if (!n.sees(int64_t(t), n.chunks[i], int64_t(j), int64_t(b)))
        continue;
      size_t row = ((b * size_t(n.chunks[i].length) + j) * size_t(n.groups) + head / size_t(n.heads / n.groups)) * d;
      double score = n.capped(n.factor() * product(&q[at], &keys.k[i][row], d));
      seen.push_back({i, row, score, n.slopeOf(score), n.kept(b, head, t, n.chunks[i], j)});
      largest = std::max(largest, score);
    }
  for (Seen &key : seen)
    sum += key.weight = std::exp(key.weight - largest);
  for (Seen &key : seen)
    key.weight /= sum;
  lse = seen.empty() ? -INFINITY : largest + std::log(sum);
  return seen;
}

/// The dense definition; with dout also the textbook gradients of it.
inline Output reference(const Slice &n, const Values &q, const Keys &keys, const Values *dout = nullptr,
                        Gradients *gradients = nullptr) {
  Output output{Values(n.queries()), Values(n.rows())};
  if (gradients) {
    gradients->dq.assign(n.queries(), 0);
    for (size_t i = 0; i < n.chunks.size(); ++i)
      gradients->dk.emplace_back(n.keys(i), 0), gradients->dv.emplace_back(n.keys(i), 0);
  }
  size_t d = size_t(n.d);
  double scale = n.factor();
  for (size_t b = 0; b < size_t(n.b); ++b)
    for (size_t head = 0; head < size_t(n.heads); ++head)
      for (size_t t = 0; t < size_t(n.s); ++t) {
        size_t at = ((b * size_t(n.s) + t) * size_t(n.heads) + head) * d;
        double delta = 0;
        std::vector<Seen> seen =
            softmax(n, q, keys, b, t, head, output.lse[(b * size_t(n.heads) + head) * size_t(n.s) + t]);
        for (const Seen &key : seen)
          addScaled(&output.o[at], key.kept * key.weight, &keys.v[key.chunk][key.row], d);
        if (!gradients)
          continue;
        Values dp; // by key
        for (const Seen &key : seen) {
          dp.push_back(key.kept * product(&(*dout)[at], &keys.v[key.chunk][key.row], d));
          delta += key.weight * dp.back();
        }
        for (size_t i = 0; i < seen.size(); ++i) {
          const Seen &key = seen[i];
          double slope = scale * key.slope * key.weight * (dp[i] - delta);
          addScaled(&gradients->dv[key.chunk][key.row], key.kept * key.weight, &(*dout)[at], d);
          addScaled(&gradients->dq[at], slope, &keys.k[key.chunk][key.row], d);
          addScaled(&gradients->dk[key.chunk][key.row], slope, &q[at], d);
        }
      }
  return output;
}

/// Arrays and the list of their addresses that a kernel takes.
struct ArrayList {
  std::vector<Array> arrays;
  std::vector<void *> addresses;
  void add(Array array) {
    arrays.push_back(std::move(array));
    addresses.clear();
    for (Array &each : arrays)
      addresses.push_back(each.data());
  }
  const void *const *inputs() const { return addresses.data(); }
  void *const *outputs() const { return addresses.data(); }
};
inline ArrayList listOf(const Slice &n, Type type, const Keys &keys) {
  ArrayList list;
  for (size_t i = 0; i < keys.k.size(); ++i) {
    list.add(Array(type, keys.k[i]));
    list.add(Array(type, keys.v[i]));
  }
  if (!n.starts.empty())
    list.addresses.push_back(const_cast<int32_t *>(n.starts.data()));
  if (n.rate > 0)
    list.addresses.push_back(const_cast<int32_t *>(n.sequences.data()));
  return list;
}

/// q, k and v side by side in each row; and columns of such a tensor, from one on.
inline Values packedOf(const Slice &n, const Values &q, const Keys &keys) {
  Values all;
  const int64_t own = n.heads * n.d, shared = n.groups * n.d;
  for (int64_t row = 0; row < n.b * n.s; ++row) {
    all.insert(all.end(), q.begin() + row * own, q.begin() + (row + 1) * own);
    for (const Values *each : {&keys.k[0], &keys.v[0]})
      all.insert(all.end(), each->begin() + row * shared, each->begin() + (row + 1) * shared);
  }
  return all;
}
inline Values columnsOf(const Slice &n, const Values &packed, int64_t first, int64_t count) {
  Values columns;
  const int64_t width = (n.heads + 2 * n.groups) * n.d;
  for (auto row = packed.begin(); row != packed.end(); row += width)
    columns.insert(columns.end(), row + first, row + first + count);
  return columns;
}
/// The list of a packed tensor, which stands for k and v, too.
inline std::vector<const void *> packedList(const Slice &n, Array &packed) {
  std::vector<const void *> list = {packed.data(), packed.data()};
  if (!n.starts.empty())
    list.push_back(n.starts.data());
  if (n.rate > 0)
    list.push_back(n.sequences.data());
  return list;
}

inline Output forward(const Slice &n, Type type, const Values &q, const Keys &keys) {
  Array o(type, n.queries()), lse(accOf(type), n.rows());
  OneOp op("attention", type, n.dims(), n.params(), n.flags());
  op.seeded(n.seed);
  if (n.packed) {
    Array packed(type, packedOf(n, q, keys));
    op(pp_attention, packed, packedList(n, packed).data(), o, lse);
  } else {
    op(pp_attention, Array(type, q), listOf(n, type, keys).inputs(), o, lse);
  }
  return {o.get(), lse.get()};
}

inline Values delta(const Slice &n, Type type, const Values &dout, const Values &o) {
  Array sums(accOf(type), n.rows());
  OneOp("attention_delta", type, {n.b, n.s, n.heads, n.d})(pp_attention_delta, Array(type, dout), Array(type, o), sums);
  return sums.get();
}

/// All gradients of the listed chunks; `total` is of all chunks together, these or more. `givesOutput`: the kernel gets
/// its output, too.
inline Gradients backward(const Slice &n, Type type, const Values &dout, const Values &q, const Keys &keys,
                          const Output &total, bool givesOutput = true) {
  Array dq(type, n.queries()), o(type, total.o), sums(accOf(type), delta(n, type, dout, total.o));
  const void *output = givesOutput ? o.data() : nullptr;
  OneOp op("attention_bwd", type, n.dims(), n.params(), n.flags());
  op.seeded(n.seed);
  if (n.packed) {
    Array packed(type, packedOf(n, q, keys)), made(type, packed.get().size());
    op(pp_attention_bwd, Array(type, dout), packed, Array(accOf(type), total.lse), sums, packedList(n, packed).data(),
       made, static_cast<void *const *>(nullptr), output);
    const int64_t own = n.heads * n.d, shared = n.groups * n.d;
    return {columnsOf(n, made.get(), 0, own),
            {columnsOf(n, made.get(), own, shared)},
            {columnsOf(n, made.get(), own + shared, shared)}};
  }
  ArrayList kv = listOf(n, type, keys), dkv;
  for (size_t i = 0; i < 2 * n.chunks.size(); ++i)
    dkv.add(Array(type, n.keys(i / 2)));
  op(pp_attention_bwd, Array(type, dout), Array(type, q), Array(accOf(type), total.lse), sums, kv.inputs(), dq,
     dkv.outputs(), output);
  Gradients gradients{dq.get(), {}, {}};
  for (size_t i = 0; i < 2 * n.chunks.size(); ++i)
    (i % 2 ? gradients.dv : gradients.dk).push_back(dkv.arrays[i].get());
  return gradients;
}

/// Gradients of 16 bits start from an o that was rounded.
inline double gradientTolerance(Type type) { return isHalf(type) ? 2 * toleranceOf(type) : toleranceOf(type); }

/// Products of unit size cancel in slopes: with one key all of dq and dk is rounding.
inline void expectNear(const Gradients &got, const Gradients &expected, double tolerance) {
  constexpr double floor = 0.1;
  expectNear(got.dq, expected.dq, tolerance, "dq", floor);
  for (size_t i = 0; i < expected.dk.size(); ++i) {
    expectNear(got.dk[i], expected.dk[i], tolerance, "dk of chunk " + std::to_string(i), floor);
    expectNear(got.dv[i], expected.dv[i], tolerance, "dv of chunk " + std::to_string(i), floor);
  }
}

/// One call over all chunks, forward and backward, against the dense definition.
inline void compare(const Slice &n, Type type, double scale = 1, double slack = 1) {
  SCOPED_TRACE(n.text() + " " + nameOf(type));
  Values q = rounded(type, random(n.queries(), 1, scale)), dout = rounded(type, random(n.queries(), 2));
  Keys keys = randomKeys(n, type, 3, scale);
  Gradients expected;
  Output want = reference(n, q, keys, &dout, &expected), got = forward(n, type, q, keys);
  expectNear(got.o, want.o, toleranceOf(type), "o");
  expectNear(got.lse, want.lse, toleranceOf(accOf(type)), "lse");
  expectNear(backward(n, type, dout, q, keys, got), expected, slack * gradientTolerance(type));
}

} // namespace pp::test

#endif // PP_TEST_UNIT_ATTENTION_H
