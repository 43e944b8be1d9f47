// Numbers of devices against all coordinates written down, and messages of a rank as each of its devices reads them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Program.h"
#include <algorithm>
#include <gtest/gtest.h>

namespace pp {
namespace {

/// All devices in the order of their numbers: the coordinate of the first axis runs fastest.
std::vector<std::array<int32_t, axisCount>> coordinates(const std::array<Axis, axisCount> &order,
                                                        const std::array<int32_t, axisCount> &sizes) {
  std::vector<std::array<int32_t, axisCount>> all;
  for (int32_t d = 0; d < sizes[3]; ++d)
    for (int32_t c = 0; c < sizes[2]; ++c)
      for (int32_t b = 0; b < sizes[1]; ++b)
        for (int32_t a = 0; a < sizes[0]; ++a) {
          std::array<int32_t, axisCount> one = {};
          one[size_t(order[0])] = a;
          one[size_t(order[1])] = b;
          one[size_t(order[2])] = c;
          one[size_t(order[3])] = d;
          all.push_back(one);
        }
  return all;
}

TEST(Mesh, CoordinatesAndLinesInEveryOrder) {
  std::array<Axis, axisCount> order = {Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline};
  int orders = 0;
  do {
    const std::array<int32_t, axisCount> sizes = {2, 3, 1, 4};
    const Mesh mesh(order, sizes);
    const auto all = coordinates(order, sizes);
    ASSERT_EQ(mesh.devices(), 24);
    for (int32_t device = 0; device < 24; ++device) {
      for (Axis axis : order)
        EXPECT_EQ(mesh.coordinate(device, axis), all[size_t(device)][size_t(axis)]);
      for (const std::vector<Axis> &axes : {std::vector<Axis>{Axis::Data}, {Axis::Tensor, Axis::Pipeline}, {}}) {
        std::vector<int32_t> line;
        for (int32_t other = 0; other < 24; ++other) {
          bool isIn = true;
          for (Axis axis : order)
            isIn &= std::find(axes.begin(), axes.end(), axis) != axes.end() ||
                    all[size_t(other)][size_t(axis)] == all[size_t(device)][size_t(axis)];
          if (isIn)
            line.push_back(other);
        }
        EXPECT_EQ(mesh.line(device, axes), line);
      }
    }
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(orders, 24);
}

/// Devices along context, and along data if those are too few, have other experts, in the order of their numbers;
/// copies have the same.
TEST(Mesh, GroupsOfExperts) {
  std::array<Axis, axisCount> order = {Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline};
  int groups = 0;
  do {
    for (auto [context, data] : {std::pair(4, 3), {2, 6}, {1, 8}, {6, 1}})
      for (int32_t experts = 1; experts <= context * data; ++experts) {
        const bool fits = context % experts == 0 || (experts % context == 0 && data % (experts / context) == 0);
        if (!fits)
          continue;
        std::array<int32_t, axisCount> sizes = {};
        for (size_t i = 0; i < axisCount; ++i)
          sizes[i] = order[i] == Axis::Context ? context : order[i] == Axis::Data ? data : 2;
        const Mesh mesh(order, sizes, experts);
        EXPECT_EQ(mesh.size(Axis::Copies) * experts, context * data);
        for (int32_t device = 0; device < mesh.devices(); ++device, ++groups) {
          const auto line = mesh.line(device, {Axis::Expert}), copies = mesh.line(device, {Axis::Copies});
          ASSERT_EQ(line.size(), size_t(experts));
          ASSERT_EQ(copies.size(), size_t(context * data / experts));
          for (int32_t k = 0; k < experts; ++k) {
            EXPECT_EQ(mesh.coordinate(line[size_t(k)], Axis::Expert), k);
            EXPECT_EQ(mesh.coordinate(line[size_t(k)], Axis::Copies), mesh.coordinate(device, Axis::Copies));
            for (Axis axis : {Axis::Tensor, Axis::Pipeline})
              EXPECT_EQ(mesh.coordinate(line[size_t(k)], axis), mesh.coordinate(device, axis));
            const bool isRun = experts <= context; // of neighbours along context
            EXPECT_TRUE(!isRun || mesh.coordinate(line[size_t(k)], Axis::Data) == mesh.coordinate(device, Axis::Data));
          }
          for (int32_t copy : copies)
            EXPECT_EQ(mesh.coordinate(copy, Axis::Expert), mesh.coordinate(device, Axis::Expert));
          EXPECT_EQ(mesh.line(device, {Axis::Expert, Axis::Copies}), mesh.line(device, {Axis::Context, Axis::Data}));
        }
      }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_GT(groups, 1000);
  EXPECT_EQ(Mesh({Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline}, {1, 2, 4, 1}, 4).describe(),
            "8 devices (1 rank of 8: context 2, data 4, experts over 4)");
}

/// Devices of machines of n devices each, by the lowest number on the machine.
std::vector<int32_t> machinesOf(int32_t devices, int32_t each) {
  std::vector<int32_t> machine;
  for (int32_t device = 0; device < devices; ++device)
    machine.push_back(device / each * each);
  return machine;
}

TEST(Mesh, LinesThatMachinesPart) {
  const Mesh mesh({Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline}, {4, 1, 2, 3});
  EXPECT_FALSE(mesh.parted(Axis::Tensor, machinesOf(24, 4)));
  EXPECT_FALSE(mesh.parted(Axis::Tensor, machinesOf(24, 8)));
  EXPECT_FALSE(mesh.parted(Axis::Data, machinesOf(24, 8)));
  EXPECT_FALSE(mesh.parted(Axis::Tensor, {}));
  EXPECT_EQ(mesh.parted(Axis::Tensor, machinesOf(24, 6)), std::pair(4, 6)); // 4 5 | 6 7
  EXPECT_EQ(mesh.parted(Axis::Data, machinesOf(24, 4)), std::pair(0, 4));
  EXPECT_EQ(mesh.parted(Axis::Tensor, machinesOf(24, 2)), std::pair(0, 2));
  const Mesh last({Axis::Pipeline, Axis::Data, Axis::Context, Axis::Tensor}, {3, 2, 1, 4});
  EXPECT_EQ(last.parted(Axis::Tensor, machinesOf(24, 8)), std::pair(0, 12));
}

TEST(Mesh, Names) {
  EXPECT_EQ(Mesh(4).name(3), "rank 3");
  EXPECT_EQ(Mesh(1).describe(), "1 rank");
  const Mesh mesh({Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline}, {8, 2, 4, 8});
  EXPECT_EQ(mesh.describe(), "512 devices (8 ranks of 64: tensor 8, context 2, data 4)");
  EXPECT_EQ(mesh.name(64 + 8 + 3), "device 75 (rank 1, tensor 3, context 1, data 0)");
  EXPECT_TRUE(mesh.isFirst(64));
  EXPECT_FALSE(mesh.isFirst(65));
}

constexpr const char *head = R"("microbatches": 2, "batch": 1, "sequence": 8, "vocab": 4)";

RankProgram resolved(const std::string &mesh, int32_t device, Program &program) {
  const std::string whole = std::string(R"({"ranks": 2, "mesh": {"order": )") + mesh + "}, " + head + "}";
  EXPECT_TRUE(readProgram(whole, program).ok());
  RankProgram rank;
  rank.device = device;
  const std::string own = std::to_string(program.mesh.rankOf(device)),
                    other = std::to_string(1 - program.mesh.rankOf(device));
  const std::string text = R"x({"rank": )x" + own + R"x(, "arena_bytes": 64, "messages": [
      {"kind": "send", "peer": )x" +
                           other + R"x(, "bytes": 8, "label": "act(0, 0)", "line": "mine.pipe:7:3"},
      {"kind": "reduce", "group": [0, 1], "root": 1, "count": 1, "type": "f64", "label": "norm"},
      {"kind": "all_reduce", "group": [)x" +
                           own + R"x(], "axes": ["data"], "count": 4, "type": "f32", "label": "grad(0)",
                                 "line": "mine.pipe:8:5, mine.pipe:9:5"}]})x";
  const Status status = readRankProgram(text, program, rank);
  EXPECT_TRUE(status.ok()) << status.message();
  return rank;
}

TEST(Mesh, MessagesNameDevices) {
  Program program;
  RankProgram rank = resolved(R"([["tensor", 1], ["context", 1], ["data", 3], ["pipeline", 2]])", 4, program);
  EXPECT_EQ(rank.name, "device 4 (rank 1, data 1)");
  EXPECT_EQ(rank.messages[0].peer, 1);
  EXPECT_EQ(rank.messages[1].group, (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(rank.messages[1].root, 4);
  EXPECT_EQ(rank.messages[2].group, (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(describe(rank.messages[0]), "`act(0, 0)` to device 1 (rank 0, data 1) (8 bytes, channel 0, mine.pipe:7:3)");
  EXPECT_EQ(describe(rank.messages[1]), "the reduce of `norm` over 2 devices, root device 4 (rank 1, data 1)");
  EXPECT_EQ(describe(rank.messages[2]), "the sum `grad(0)` over 3 devices (mine.pipe:8:5, mine.pipe:9:5)");
  EXPECT_EQ(program.sequencesPerStep(), 6);
  rank = resolved(R"([["pipeline", 2], ["data", 3], ["tensor", 1], ["context", 1]])", 4, program);
  EXPECT_EQ(rank.name, "device 4 (rank 0, data 2)");
  EXPECT_EQ(rank.messages[0].peer, 5);
  EXPECT_EQ(rank.messages[2].group, (std::vector<int32_t>{0, 2, 4}));
}

/// A device of a mesh with 4 devices along `tensor` and 2 along `data`, and what it reads.
RankProgram ofTensor(int32_t device, const std::string &tables, Program &program) {
  const std::string order = R"([["tensor", 4], ["context", 1], ["data", 2], ["pipeline", 1]])";
  EXPECT_TRUE(readProgram(R"({"ranks": 1, "mesh": {"order": )" + order + "}, " + head + "}", program).ok());
  RankProgram rank;
  rank.device = device;
  const Status status = readRankProgram(R"({"rank": 0, "arena_bytes": 65536, )" + tables + "}", program, rank);
  EXPECT_TRUE(status.ok()) << status.message();
  return rank;
}

TEST(Mesh, ExchangesAndTables) {
  Program program;
  const std::string tables = R"x(
      "ops": [{"kernel": "embedding", "dims": [4, 8, 5, {"by": ["tensor"], "of": [0, 5, 10, 15]}, 18]},
              {"kernel": "scale", "dims": [{"by": ["data", "tensor"], "of": [1, 2, 3, 4, 5, 6, 7, 8]}]}],
      "messages": [
        {"kind": "all_reduce", "group": [0], "axes": ["tensor"], "inside": true, "count": 3, "label": "3"},
        {"kind": "all_reduce", "group": [0], "axes": ["tensor"], "neighbours": 2, "inside": true, "count": 3}])x";
  RankProgram rank = ofTensor(6, tables, program);
  EXPECT_EQ(rank.ops[0].dims, (std::vector<int64_t>{4, 8, 5, 10, 18}));
  EXPECT_EQ(rank.ops[1].dims, (std::vector<int64_t>{7}));
  EXPECT_EQ(rank.messages[0].group, (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_EQ(rank.messages[1].group, (std::vector<int32_t>{6, 7}));
  EXPECT_TRUE(rank.messages[0].inside);
  EXPECT_TRUE(rank.messages[0].oneText);
  EXPECT_EQ(bytesIn(rank.messages[0], 6), 2 * 3 * 24 / 4);
}

/// Device 5 is the second along `tensor` and along `data`. Three tensors' state lies one behind the other.
TEST(Mesh, ShardsOfReplicas) {
  Program program;
  const std::string tables = R"x(
      "ops": [{"kernel": "sgd", "dims": [{"by": ["data"], "of": [32, 8]}],
               "moved": [{"by": ["data"], "of": [0, 128]}, 0]}],
      "messages": [{"kind": "reduce_scatter", "group": [0], "axes": ["data"], "count": 40, "type": "f32",
                    "cuts": [0, 128, 160], "label": "grad(0)"}],
      "state": [{"name": "w", "kind": "m", "shape": [40], "type": "f32", "begin": {"by": ["data"], "of": [0, 32]},
                 "count": {"by": ["data"], "of": [32, 8]}, "offset": {"by": ["data"], "of": [64, 192]}},
                {"name": "b", "kind": "m", "shape": [8], "type": "f32", "begin": {"by": ["data"], "of": [0, 8]},
                 "count": {"by": ["data"], "of": [8, 0]}, "offset": {"by": ["data"], "of": [64, 64]}}])x";
  RankProgram rank = ofTensor(5, tables, program);
  EXPECT_EQ(rank.ops[0].dims, (std::vector<int64_t>{8}));
  EXPECT_EQ(rank.ops[0].moved, (std::vector<int64_t>{128, 0}));
  EXPECT_TRUE(rank.messages[0].inPlace);
  EXPECT_EQ(rank.messages[0].group, (std::vector<int32_t>{1, 5}));
  EXPECT_EQ((*rank.messages[0].ranges(1)).shard, 128);
  EXPECT_EQ(bytesIn(rank.messages[0], 5), 32);
  EXPECT_EQ(rank.state[0].offset, 192);
  EXPECT_EQ(rank.state[0].place(0), 32);
  EXPECT_TRUE(rank.state[0].ofReplica);
  EXPECT_EQ(rank.state[1].elements(), 0);
  EXPECT_TRUE(rank.state[1].ranges().empty());
}

/// Each device along `expert` has two of eight experts, and sends a section of its rows to each other device.
TEST(Mesh, PiecesOfExperts) {
  const std::string mesh = R"("mesh": {"order": [["tensor", 1], ["context", 2], ["data", 4], ["pipeline", 1]], )";
  Program program;
  EXPECT_FALSE(readProgram(R"({"ranks": 1, )" + mesh + R"("expert": 3}, )" + head + "}", program).ok());
  EXPECT_TRUE(readProgram(R"({"ranks": 1, )" + mesh + R"("expert": 4}, )" + head + "}", program).ok());
  for (int32_t device = 0; device < 8; ++device) {
    RankProgram rank;
    rank.device = device;
    const Status status = readRankProgram(R"x({"rank": 0, "arena_bytes": 4096, "messages": [
        {"kind": "all_to_all", "group": [0], "axes": ["expert"], "to": "sections", "type": "f32",
         "inside": true, "count": 20}],
      "grads": [{"name": "w", "shape": [8, 3], "type": "f32", "begin": {"by": ["expert"], "of": [0, 6, 12, 18]},
                 "count": {"by": ["expert"], "of": [6, 6, 6, 6]},
                 "offset": {"by": ["expert"], "of": [64, 64, 64, 64]}}]})x",
                                          program, rank);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(rank.grads[0].ofExpert);
    EXPECT_EQ(rank.grads[0].place(0), device % 4 * 6);
    const int32_t first = device / 4 * 4;
    EXPECT_EQ(rank.messages[0].group, (std::vector<int32_t>{first, first + 1, first + 2, first + 3}));
    EXPECT_EQ(bytesIn(rank.messages[0], device), 3 * 20);
  }
  RankProgram rank;
  EXPECT_FALSE(readRankProgram(R"x({"rank": 0, "arena_bytes": 4096, "messages": [{"kind": "all_to_all", "group": [0],
      "axes": ["expert"], "to": "sections", "inside": true, "count": 21}]})x",
                               program, rank)
                   .ok());
}

/// Which elements of the whole tensor each device has, in the order in which they lie there, by rules of thumb: the
/// whole's indices, each on the devices of its piece.
std::vector<std::vector<int64_t>> elementsByDevice(int64_t rows, int64_t columns, int dim, int64_t runs,
                                                   int64_t copies) {
  std::vector<std::vector<int64_t>> all(4);
  const int64_t run = (dim == 0 ? rows : columns) / runs, piece = (run * copies + 3) / 4;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t device = 0; device < 4; ++device)
        if ((dim == 0 ? i : j) % run / piece == device / copies)
          all[size_t(device)].push_back(i * columns + j);
  return all;
}

std::string viewText(const std::string &base, const std::string &dims, int64_t rows, int64_t columns, int64_t copies) {
  return R"("grads": [{"name": "w", "shape": [)" + std::to_string(rows) + ", " + std::to_string(columns) +
         R"(], "type": "f32", "offset": 0, "copies": )" + std::to_string(copies) +
         R"(, "base": {"by": ["tensor"], "of": )" + base + R"(}, "dims": )" + dims + "}]";
}

TEST(Mesh, ViewsOfCutWeights) {
  struct {
    int64_t rows, columns;
    int dim;
    int64_t runs, copies;
    std::string base, dims;
  } const cases[] = {
      {6, 8, 1, 1, 1, "[0, 2, 4, 6]", "[[6, 8, 6], [2, 1, 2]]"},
      {6, 24, 1, 3, 1, "[0, 2, 4, 6]", "[[6, 24, 6], [3, 8, 3], [2, 1, 2]]"},
      {6, 8, 1, 1, 2, "[0, 0, 4, 4]", "[[6, 8, 6], [4, 1, 4]]"},
      {8, 5, 0, 1, 1, "[0, 10, 20, 30]", "[[2, 5, 2], [5, 1, 5]]"},
      {10, 3, 0, 1, 1, "[0, 9, 18, 27]", R"([[3, 3, {"by": ["tensor"], "of": [3, 3, 3, 1]}], [3, 1, 3]])"},
      {3, 10, 1, 1, 1, "[0, 3, 6, 9]", R"([[3, 10, 3], [3, 1, {"by": ["tensor"], "of": [3, 3, 3, 1]}]])"},
  };
  for (const auto &its : cases) {
    const auto expected = elementsByDevice(its.rows, its.columns, its.dim, its.runs, its.copies);
    for (int32_t device = 0; device < 8; ++device) {
      Program program;
      RankProgram rank = ofTensor(device, viewText(its.base, its.dims, its.rows, its.columns, its.copies), program);
      const TensorSpec &tensor = rank.grads[0];
      std::vector<int64_t> places, ranges;
      for (int64_t i = 0; i < tensor.elements(); ++i)
        if (tensor.place(i) >= 0)
          places.push_back(tensor.place(i));
      EXPECT_EQ(places, expected[size_t(device % 4)]) << its.dims << " on " << device;
      for (TensorSpec::Range range : tensor.ranges())
        for (int64_t i = 0; i < range.count; ++i) {
          ranges.push_back(range.whole + i);
          EXPECT_EQ(tensor.place(range.here + i), range.whole + i);
        }
      EXPECT_EQ(ranges, places);
      // Cut again over ranks: runs of what lies here.
      TensorSpec shard = tensor;
      std::vector<int64_t> again;
      const int64_t third = tensor.elements() / 3;
      for (int64_t k = 0; k < 3; ++k) {
        shard.begin = k * third;
        shard.count = k < 2 ? third : tensor.elements() - 2 * third;
        for (TensorSpec::Range range : shard.ranges())
          for (int64_t i = 0; i < range.count; ++i)
            again.push_back(range.whole + i);
      }
      EXPECT_EQ(again, places);
    }
  }
}

TEST(Mesh, RefusesWhatIsNoView) {
  for (const auto &[base, dims] : {std::pair{"[0, 2, 4, 7]", "[[6, 8, 6], [2, 1, 2]]"},
                                   {"[0, 2, 4]", "[[6, 8, 6], [2, 1, 2]]"},
                                   {"[0, 2, 4, 6]", "[[6, 8, 7], [2, 1, 2]]"}}) {
    Program program;
    const std::string order = R"([["tensor", 4], ["context", 1], ["data", 1], ["pipeline", 1]])";
    EXPECT_TRUE(readProgram(R"({"ranks": 1, "mesh": {"order": )" + order + "}, " + head + "}", program).ok());
    RankProgram rank;
    rank.device = 3;
    const Status status =
        readRankProgram(R"({"rank": 0, "arena_bytes": 65536, )" + viewText(base, dims, 6, 8, 1) + "}", program, rank);
    EXPECT_FALSE(status.ok()) << base << dims;
  }
}

TEST(Mesh, RefusesWhatIsNoMesh) {
  Program program;
  for (const char *order :
       {R"([["data", 2], ["pipeline", 2]])", R"([["data", 2], ["data", 1], ["context", 1], ["pipeline", 2]])",
        R"([["tensor", 1], ["context", 0], ["data", 2], ["pipeline", 2]])",
        R"([["tensor", 1], ["context", 1], ["data", 2], ["pipeline", 3]])",
        R"([["tensor", 1], ["context", 1], ["dat", 2], ["pipeline", 2]])"}) {
    const std::string text = std::string(R"({"ranks": 2, "mesh": {"order": )") + order + "}, " + head + "}";
    EXPECT_FALSE(readProgram(text, program).ok()) << order;
  }
}

} // namespace
} // namespace pp
