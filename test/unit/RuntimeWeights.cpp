// First values of weights: the bits of one draw an element, however many threads draw and wherever the elements lie.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Half.h"
#include "runtime/trainer/Gather.h"
#include "runtime/trainer/Weights.h"
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>

using namespace pp;

namespace {

// The rule of runtime/files/Random.h once more: SplitMix64 (Steele, Lea, Flood 2014), FNV-1a, Box and Muller 1958.
constexpr uint64_t golden = 0x9e3779b97f4a7c15u;
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
uint64_t drawn(uint64_t key, uint64_t counter) { return mix(mix(key + golden) + golden * (counter + 1)); }

double expected(const WeightSpec &weight, uint64_t seed, int64_t element) {
  if (element < 0 || weight.init == WeightSpec::Init::Zero)
    return 0;
  if (weight.init == WeightSpec::Init::One)
    return 1;
  uint64_t name = 14695981039346656037u;
  for (unsigned char letter : weight.name)
    name = (name ^ letter) * 1099511628211u;
  const uint64_t key = drawn(seed, name), at = uint64_t(element);
  auto unit = [&](uint64_t counter) { return double(drawn(key, counter) >> 11) / 9007199254740992.0; };
  if (weight.init == WeightSpec::Init::Uniform)
    return weight.deviation * (2 * unit(at) - 1);
  const double first = unit(2 * at) + 1 / 9007199254740992.0;
  return weight.deviation * (std::sqrt(-2 * std::log(first)) * std::cos(2 * M_PI * unit(2 * at + 1)));
}

/// The bits of a value that was computed in f64.
std::vector<char> bitsOf(Type type, double value) {
  std::vector<char> bits(elementBytes(type));
  auto put = [&](auto rounded) { memcpy(bits.data(), &rounded, sizeof rounded); };
  if (type == Type::F64)
    put(value);
  else if (type == Type::F32)
    put(float(value));
  else
    put(type == Type::F16 ? roundToF16(float(value)) : roundToBf16(float(value)));
  return bits;
}

/// A rank with weights, masters and old versions in all the ways in which they can be cut.
class RuntimeWeights : public testing::Test {
protected:
  static constexpr int64_t gap = 64; ///< bytes behind each tensor

  TensorSpec tensor(const std::string &name, Type type, std::vector<int64_t> shape) {
    TensorSpec its;
    its.name = name;
    its.type = type;
    its.shape = std::move(shape);
    return its;
  }
  void place(TensorSpec &its) {
    its.offset = int64_t(program.arenaBytes);
    program.arenaBytes += (its.bytes() + gap + 63) / 64 * 64;
  }
  void weigh(TensorSpec its, WeightSpec::Init init = WeightSpec::Init::Normal, double deviation = 0.02) {
    place(its);
    WeightSpec weight;
    static_cast<TensorSpec &>(weight) = its;
    weight.init = init;
    weight.deviation = deviation;
    program.weights.push_back(weight);
  }
  void keep(TensorSpec its, const std::string &kind = "master") {
    place(its);
    StateSpec state;
    static_cast<TensorSpec &>(state) = its;
    state.kind = kind;
    program.state.push_back(state);
  }
  RuntimeWeights() {
    // More than three blocks of a thread, and no multiple of any; masters that are the whole, or a piece of it.
    TensorSpec whole = tensor("whole.weight", Type::Bf16, {331, 311}), master = whole, old = whole, piece = whole;
    weigh(whole);
    master.type = piece.type = Type::F32;
    keep(master);
    keep(old, "previous");
    piece.begin = 40001;
    piece.count = 50003;
    keep(piece, "previous2");
    // A weight that is a piece of what its master has.
    TensorSpec part = tensor("part.weight", Type::F16, {300, 200}), all = part;
    part.begin = 100;
    part.count = 33333;
    weigh(part, WeightSpec::Init::Uniform, 0.3);
    all.type = Type::F32;
    keep(all);
    // Cut over a mesh, with padding in both dimensions, of which the master is a piece that begins in the padding.
    TensorSpec cut = tensor("cut.weight", Type::Bf16, {500, 700}), shard = cut;
    cut.dims = {{260, 700, 240}, {180, 1, 175}};
    cut.base = 260 * 700 + 525;
    weigh(cut);
    shard = cut;
    shard.type = Type::F32;
    shard.begin = 177;
    shard.count = 35000;
    keep(shard);
    // The last dimension does not lie together in the whole; columns; what is cut in another way than its master.
    TensorSpec apart = tensor("apart.weight", Type::F32, {400, 300});
    apart.dims = {{300, 1, 300}, {120, 300, 110}};
    weigh(apart);
    TensorSpec narrow = apart; // the same begin, but other rows
    narrow.dims = {{250, 1, 250}, {120, 300, 120}};
    keep(narrow, "previous");
    TensorSpec columns = tensor("columns.weight", Type::F16, {700, 200}), rows = columns;
    columns.begin = 60;
    columns.count = 700 * 50;
    columns.run = 50;
    columns.stride = 200;
    weigh(columns);
    rows.type = Type::F32;
    rows.begin = 10000;
    rows.count = 40000;
    keep(rows);
    TensorSpec beside = columns; // other columns
    beside.begin = 90;
    beside.count = 600 * 50;
    keep(beside, "previous");
    weigh(tensor("norm.weight", Type::Bf16, {70}), WeightSpec::Init::One);
    keep(tensor("norm.weight", Type::F32, {70}));
    weigh(tensor("zero.bias", Type::F64, {70}), WeightSpec::Init::Zero);
    weigh(tensor("wide.weight", Type::F64, {70, 3}), WeightSpec::Init::Normal, 1.5);
    keep(tensor("wide.weight", Type::F64, {70, 3}), "m"); // begins with zeros
    TensorSpec none = tensor("whole.weight", Type::F32, {331, 311});
    none.begin = none.count = 0;
    keep(none, "previous3");
  }

  /// The arena behind a draw, with a pattern where nothing was written.
  std::vector<char> draw(uint64_t seed) {
    std::unique_ptr<Device> device = makeHostDevice();
    EXPECT_TRUE(device->allocate(program, /*more=*/0).ok());
    std::vector<char> arena(size_t(program.arenaBytes), 0x5a);
    EXPECT_TRUE(device->upload(0, arena.data(), arena.size()).ok());
    std::unique_ptr<Transport> transport = makeThreadTransport(makeMeeting(1, {}), 0);
    RankMemory memory{emitted, program, *transport, *device};
    int64_t vanished = 0;
    Status status = loadWeights(memory, {}, seed, vanished);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(device->download(0, arena.data(), arena.size()).ok());
    return arena;
  }

  Emitted emitted;
  RankProgram program;
};

TEST_F(RuntimeWeights, EveryElementHasTheBitsOfItsOwnDraw) {
  constexpr uint64_t seed = 42;
  std::vector<char> expectedArena(size_t(program.arenaBytes), 0x5a);
  auto write = [&](const WeightSpec &weight, const TensorSpec &place) {
    for (int64_t i = 0; i < place.elements(); ++i) {
      std::vector<char> bits = bitsOf(place.type, expected(weight, seed, place.place(i)));
      std::copy(bits.begin(), bits.end(), expectedArena.begin() + place.offset + i * int64_t(bits.size()));
    }
  };
  for (const WeightSpec &weight : program.weights) {
    write(weight, weight);
    for (const StateSpec &state : program.state)
      if (state.name == weight.name && state.kind != "m")
        write(weight, state);
  }
  for (const char *threads : {"1", "2", "3", "7", ""}) {
    if (*threads)
      setenv("PP_THREADS", threads, 1);
    else
      unsetenv("PP_THREADS"); // as many as there are processors
    std::vector<char> arena = draw(seed);
    ASSERT_EQ(arena.size(), expectedArena.size());
    const auto wrong = std::mismatch(arena.begin(), arena.end(), expectedArena.begin()).first - arena.begin();
    EXPECT_EQ(wrong, std::ptrdiff_t(arena.size())) << "with PP_THREADS=" << threads;
  }
  unsetenv("PP_THREADS");
}

TEST_F(RuntimeWeights, AnotherSeedIsAnotherDraw) { EXPECT_NE(draw(1), draw(2)); }

/// The elements of a tensor in the order of a file: those of ours are 0, 1, 2, ..
std::vector<int64_t> inFile(Stored stored, std::vector<int64_t> shape, std::vector<int64_t> *fileHas = nullptr) {
  TensorSpec tensor;
  tensor.type = Type::F64;
  tensor.shape = std::move(shape);
  tensor.stored = stored;
  std::vector<char> bytes(size_t(tensor.bytes()));
  for (int64_t i = 0; i < tensor.elements(); ++i)
    storeElement(bytes.data() + i * 8, Type::F64, double(i));
  turnForFile(tensor, bytes);
  std::vector<int64_t> found;
  for (size_t at = 0; at < bytes.size(); at += 8)
    found.push_back(int64_t(SafeTensors::readerOf("F64")(bytes.data(), int64_t(at / 8))));
  for (int64_t i = 0; i < tensor.elements(); ++i)
    EXPECT_EQ(found[size_t(placeInFile(tensor.turned(), i))], i);
  if (fileHas)
    *fileHas = fileShape(tensor);
  return found;
}

TEST(RuntimeStored, FilesHaveTensorsInOtherOrders) {
  using Numbers = std::vector<int64_t>;
  Numbers shape;
  EXPECT_EQ(inFile(Stored::Transposed, {3, 2}, &shape), (Numbers{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(shape, (Numbers{2, 3}));
  EXPECT_EQ(inFile(Stored::Transposed, {2, 3, 2}, &shape), (Numbers{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}));
  EXPECT_EQ(shape, (Numbers{2, 2, 3}));
  EXPECT_EQ(inFile(Stored::Alternate, {2, 6}, &shape), (Numbers{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));
  EXPECT_EQ(shape, (Numbers{2, 6}));
  EXPECT_EQ(inFile(Stored::Row, {3}, &shape), (Numbers{0, 1, 2}));
  EXPECT_EQ(shape, (Numbers{1, 3}));
  EXPECT_EQ(inFile(Stored::Plain, {2, 2}, &shape), (Numbers{0, 1, 2, 3}));
}

/// More than one block, and squares that do not fit.
TEST(RuntimeStored, LargeTensorsTurn) {
  inFile(Stored::Transposed, {3, 77, 301});
  inFile(Stored::Transposed, {5000, 3});
  inFile(Stored::Transposed, {3, 5000});
  inFile(Stored::Alternate, {3, 9000});
}

} // namespace
