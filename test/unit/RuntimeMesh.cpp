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
                           other + R"x(, "bytes": 8, "label": "act(0, 0)"},
      {"kind": "reduce", "group": [0, 1], "root": 1, "count": 1, "type": "f64", "label": "norm"},
      {"kind": "all_reduce", "group": [)x" +
                           own + R"x(], "axes": ["data"], "count": 4, "type": "f32", "label": "grad(0)"}]})x";
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
  EXPECT_EQ(describe(rank.messages[0]), "`act(0, 0)` to device 1 (rank 0, data 1) (8 bytes, channel 0)");
  EXPECT_EQ(program.sequencesPerStep(), 6);
  rank = resolved(R"([["pipeline", 2], ["data", 3], ["tensor", 1], ["context", 1]])", 4, program);
  EXPECT_EQ(rank.name, "device 4 (rank 0, data 2)");
  EXPECT_EQ(rank.messages[0].peer, 5);
  EXPECT_EQ(rank.messages[2].group, (std::vector<int32_t>{0, 2, 4}));
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
