// Ranks on one device, emulated: messages and graphs in random orders that streams allow, and what a missing wait does.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/gpu/Emulated.h"
#include "test/unit/RuntimePattern.h"
#include <gtest/gtest.h>

using namespace pp;
using namespace pp::test;

namespace {

/// The step of a test: the emitted step's signature, with the rank's own function behind it.
thread_local std::vector<std::function<pp_status_t(pp_rank_t &, char *)>> stepOf;
int32_t callStep(pp_rank_t *rank, char *arena) { return stepOf[rank->rank](*rank, arena); }

/// The work of a rank when its device and transport are ready.
using Body = std::function<Status(pp_rank_t &, StreamDevice &, Transport &)>;

/// Runs all ranks as runStreams does; the first failure of any.
Status runRanks(Driver &driver, std::vector<RankProgram> &programs, bool graph, const Body &body,
                bool checked = false) {
  int32_t ranks = int32_t(programs.size());
  Fibers fibers(ranks);
  StepGroup group(driver, &fibers, ranks, graph);
  auto meeting = makeStreamMeeting(ranks, driver, &fibers);
  stepOf.resize(ranks);
  Status status = fibers.run(
      [&](int32_t number) {
        StreamDevice device(driver, group);
        auto transport = makeStreamTransport(meeting, number, device);
        if (checked)
          transport = driver.check(std::move(transport), device, number, /*apart=*/false);
        pp_rank_t rank;
        rank.rank = number;
        rank.ranks = ranks;
        rank.transport = transport.get();
        Status its = device.allocate(programs[number], /*more=*/0);
        device.bind(rank);
        if (its.ok())
          its = transport->prepare(programs[number]);
        if (its.ok())
          its = body(rank, device, *transport);
        leave(*meeting, number);
        if (!its.ok())
          fibers.breakOff(number, its);
      },
      [&] { return standstillOf(*meeting); });
  return status.ok() ? fibers.failure() : status;
}

/// The pattern's messages with data in the arena, filled and checked by work in the ranks' streams.
struct Exchange {
  Exchange(int32_t ranks, uint64_t seed, size_t lag, bool graph) : pattern(ranks, seed, 40), lag(lag), graph(graph) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      int64_t at = 0;
      for (const MessageSpec &message : pattern.programs[rank].messages) {
        places[rank].push_back(at);
        at += 2 * message.bytes;
      }
      pattern.programs[rank].arenaBytes = at;
    }
  }

  /// The elements that arrive wrong.
  int64_t wrongAfter(Driver &driver, int steps, bool checked = false) {
    wrong = 0;
    failure = runRanks(
        driver, pattern.programs, graph,
        [&](pp_rank_t &rank, StreamDevice &device, Transport &transport) {
          stepOf[rank.rank] = [&](pp_rank_t &state, char *arena) { return step(state, transport, arena); };
          for (int now = 0; now < steps; ++now) { // the ranks begin and leave a step together
            current = now;
            if (pp_status_t code = device.run(callStep, rank, {}); code != PP_OK)
              return Status(code, rank.message);
          }
          return Status();
        },
        checked);
    return wrong;
  }

  pp_status_t step(pp_rank_t &rank, Transport &transport, char *arena);
  void fill(int32_t rank, size_t i, double *data, double *shard);
  void check(int32_t rank, size_t i, double *data, double *shard);

  Pattern pattern;
  size_t lag;
  bool graph;
  std::map<int32_t, std::vector<int64_t>> places;
  int current = 0;
  int64_t wrong = 0;
  Status failure;
};

void Exchange::fill(int32_t rank, size_t i, double *data, double *shard) {
  const MessageSpec &message = pattern.programs[rank].messages[i];
  int move = pattern.moveOf[rank][i];
  Shard own(message, rank);
  for (int64_t j = 0; j < message.bytes / 8; ++j)
    data[j] = message.kind == MessageSpec::Kind::Receive ? -1 : Pattern::value(move, current, rank, j);
  for (size_t j = 0; j < own.values.size(); ++j)
    shard[j] = Pattern::value(move, current, rank, own.begin + int64_t(j));
}

void Exchange::check(int32_t rank, size_t i, double *data, double *shard) {
  const MessageSpec &message = pattern.programs[rank].messages[i];
  int move = pattern.moveOf[rank][i];
  Shard own(message, rank);
  bool scattered = message.kind == MessageSpec::Kind::ReduceScatter;
  int64_t count = scattered ? int64_t(own.values.size()) : message.bytes / 8;
  for (int64_t j = 0; j < count; ++j)
    wrong += (scattered ? shard : data)[j] !=
             pattern.expected(rank, int32_t(places.size()), move, current, j + (scattered ? own.begin : 0));
}

pp_status_t Exchange::step(pp_rank_t &rank, Transport &transport, char *arena) {
  const auto &messages = pattern.programs[rank.rank].messages;
  for (size_t i = 0; i < messages.size() + lag; ++i) {
    auto dataOf = [&](size_t k) { return reinterpret_cast<double *>(arena + places[rank.rank][k]); };
    auto shardOf = [&](size_t k) { return dataOf(k) + messages[k].bytes / 8; };
    auto launch = [&](void (Exchange::*work)(int32_t, size_t, double *, double *), size_t k) {
      return rank.queue->add(rank, [=, this, number = rank.rank, data = dataOf(k), shard = shardOf(k)] {
        (this->*work)(number, k, data, shard);
        return PP_OK;
      });
    };
    if (i < messages.size()) {
      if (pp_status_t code = launch(&Exchange::fill, i); code != PP_OK)
        return code;
      auto kind = messages[i].kind;
      pp_status_t code = kind == MessageSpec::Kind::Send ? transport.postSend(rank, int32_t(i), dataOf(i))
                         : kind == MessageSpec::Kind::Receive
                             ? transport.postReceive(rank, int32_t(i), dataOf(i))
                             : transport.postCollective(rank, int32_t(i), dataOf(i), shardOf(i));
      if (code != PP_OK)
        return code;
    }
    if (i < lag)
      continue;
    if (pp_status_t code = transport.complete(rank, int32_t(i - lag)); code != PP_OK)
      return code;
    if (pp_status_t code = launch(&Exchange::check, i - lag); code != PP_OK)
      return code;
  }
  return PP_OK;
}

class Streams : public testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(Streams, DeliverEveryMessageInEveryOrder) {
  auto [ranks, lag, graph] = GetParam();
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Exchange run(ranks, seed, lag, graph);
    auto driver = makeEmulatedDriver(seed, -1);
    EXPECT_EQ(run.wrongAfter(*driver, 4), 0);
    EXPECT_TRUE(run.failure.ok()) << run.failure.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Runtime, Streams,
                         testing::Combine(testing::Values(2, 5), testing::Values(0, 3), testing::Bool()));

// A program without one of its waits computes something wrong in one of a few orders, unless others imply the wait. The
// waits of one step: each end's by the channel's stream, and each rank's by its own.
TEST(RuntimeStreams, AMissingWaitIsSeen) {
  int64_t found = 0, all = 0;
  for (int64_t dropped = 0; dropped < 120; dropped += 3, ++all) {
    bool isSeen = false;
    for (uint64_t seed = 0; seed < 6 && !isSeen; ++seed) {
      Exchange run(3, 7, 1, false);
      auto driver = makeEmulatedDriver(seed, dropped);
      isSeen = run.wrongAfter(*driver, 1) > 0;
      ASSERT_TRUE(run.failure.ok()) << run.failure.message();
    }
    found += isSeen;
  }
  EXPECT_GT(found, all / 2) << "of " << all;
  RecordProperty("seen", int(found));
}

// The check finds a missing wait without any luck of the order. What it does not find others imply: then nothing is
// wrong in any order.
TEST(RuntimeStreams, AMissingWaitIsFoundOrIsImplied) {
  int64_t found = 0, all = 0;
  for (int64_t dropped = 0; dropped < 120; ++dropped, ++all) {
    Exchange checked(3, 7, 1, dropped % 2);
    auto driver = makeEmulatedDriver(1, dropped);
    checked.wrongAfter(*driver, 1, true);
    if (!checked.failure.ok()) {
      EXPECT_NE(checked.failure.message().find("does not wait for what"), std::string::npos)
          << checked.failure.message();
      ++found;
      continue;
    }
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Exchange run(3, 7, 1, false);
      auto other = makeEmulatedDriver(seed, dropped);
      EXPECT_EQ(run.wrongAfter(*other, 1), 0) << "without wait " << dropped << ", seed " << seed;
    }
  }
  EXPECT_GT(found, all / 2) << "of " << all;
  RecordProperty("found", int(found));
}

TEST(RuntimeStreams, TheCheckAgreesWithWhatIsRight) {
  for (uint64_t seed = 0; seed < 4; ++seed)
    for (bool graph : {false, true}) {
      Exchange run(5, seed, 3, graph);
      auto driver = makeEmulatedDriver(seed, -1);
      EXPECT_EQ(run.wrongAfter(*driver, 3, true), 0);
      EXPECT_TRUE(run.failure.ok()) << run.failure.message();
    }
}

// A capture refuses what CUDA refuses: streams that do not join, and streams that nobody waits for in the end.
TEST(RuntimeStreams, ACaptureMustForkAndJoin) {
  auto driver = makeEmulatedDriver(1, -1);
  Driver::Stream origin = -1, other = -1;
  Driver::Event before = -1, begin = -1;
  Driver::Graph graph = -1;
  ASSERT_TRUE(driver->makeStream(origin).ok() && driver->makeStream(other).ok());
  ASSERT_TRUE(driver->makeEvent(before).ok() && driver->makeEvent(begin).ok());
  EXPECT_EQ(driver->wait(other, before).message(), "stream 1 waits for event 0, which nobody has recorded");
  ASSERT_TRUE(driver->record(before, other).ok());
  ASSERT_TRUE(driver->beginCapture(origin).ok());
  EXPECT_EQ(driver->record(begin, other).message(), "stream 1 is asked for work in a capture that it has not joined");
  EXPECT_EQ(driver->wait(other, before).message(),
            "stream 1 waits in a capture for event 0, which was recorded before it");
  EXPECT_EQ(driver->finish().message(), "a capture is waited for before it has ended");
  ASSERT_TRUE(driver->record(begin, origin).ok());
  ASSERT_TRUE(driver->wait(other, begin).ok());
  ASSERT_TRUE(driver->record(before, other).ok());
  EXPECT_EQ(driver->endCapture(origin, graph).message(),
            "the capture ends, and what stream 1 was asked for is not awaited");
}

// A graph that is launched again reads what its ranks' streams were given before the step, such as scalars.
TEST(RuntimeStreams, AGraphBeginsBehindWhatItsRanksWereGiven) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    auto programs = emptyPrograms(2);
    for (RankProgram &program : programs)
      program.arenaBytes = 64;
    int given[2] = {}, onDevice[2] = {}, seen[2] = {};
    auto driver = makeEmulatedDriver(seed, -1);
    Status status = runRanks(*driver, programs, true, [&](pp_rank_t &rank, StreamDevice &device, Transport &) {
      const int32_t its = rank.rank;
      stepOf[its] = [&, its](pp_rank_t &state, char *) {
        return state.queue->add(state, [&, its] {
          seen[its] = onDevice[its];
          return PP_OK;
        });
      };
      for (int step = 1; step < 6; ++step) {
        given[its] = step;
        PP_TRY(driver->copy(device.compute(), &onDevice[its], &given[its], sizeof(int)));
        if (pp_status_t code = device.run(callStep, rank, {}); code != PP_OK)
          return Status(code, rank.message);
        EXPECT_EQ(seen[its], step) << "seed " << seed;
      }
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

/// The inputs and results of a step go to their places in device and host memory, also if pieces lie together; bytes
/// between them stay.
TEST(RuntimeStreams, PiecesOfAStepLieWhereTheyBelong) {
  struct Piece {
    int64_t offset;
    std::vector<char> bytes;
  };
  auto programs = emptyPrograms(1);
  programs[0].arenaBytes = 20000;
  programs[0].hostBytes = 8000; // from 12000 on
  std::vector<Piece>
      pieces; // not in their order: neighbours, 31, 64 and 192 bytes apart, and on both sides of the host
  for (auto [offset, bytes] : {std::pair(6464, 64),
                               {64, 64},
                               {0, 64},
                               {128, 33},
                               {192, 64},
                               {320, 10},
                               {11996, 4},
                               {12000, 64},
                               {512, 64},
                               {19000, 100}})
    pieces.push_back({offset, std::vector<char>(size_t(bytes), char(1 + pieces.size()))});
  std::vector<char> expected(20000, 99);
  for (const Piece &piece : pieces)
    std::copy(piece.bytes.begin(), piece.bytes.end(), expected.begin() + piece.offset);
  std::fill(expected.begin() + 161, expected.begin() + 192, 0); // less than a slot, which belongs to nobody
  auto driver = makeEmulatedDriver(3, -1);
  Status status = runRanks(*driver, programs, true, [&](pp_rank_t &rank, StreamDevice &device, Transport &) {
    stepOf[0] = [](pp_rank_t &, char *) { return PP_OK; };
    std::vector<char> arena(20000, 99);
    PP_TRY(device.upload(0, arena.data(), 12000));
    PP_TRY(device.upload(12000, arena.data(), 8000));
    std::vector<StepCopy> inputs, results;
    std::vector<std::vector<char>> made;
    for (Piece &piece : pieces)
      inputs.push_back({piece.offset, piece.bytes.data(), piece.bytes.size()});
    for (const Piece &piece : pieces)
      made.emplace_back(piece.bytes.size());
    for (size_t i = 0; i < pieces.size(); ++i)
      results.push_back({pieces[i].offset, made[i].data(), made[i].size()});
    for (int step = 0; step < 3; ++step) {
      PP_TRY(device.give(inputs));
      if (pp_status_t code = device.run(callStep, rank, results); code != PP_OK)
        return Status(code, rank.message);
      for (size_t i = 0; i < pieces.size(); ++i)
        EXPECT_EQ(made[i], pieces[i].bytes) << i;
    }
    PP_TRY(device.download(0, arena.data(), 12000));
    PP_TRY(device.download(12000, arena.data() + 12000, 8000));
    std::fill(arena.begin() + 161, arena.begin() + 192, 0);
    EXPECT_EQ(arena, expected);
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

/// The results of a step are those that it has made, however it is asked for and whatever the order.
TEST(RuntimeStreams, ResultsAreThoseOfTheirStep) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (bool graph : {false, true}) {
      auto programs = emptyPrograms(2);
      for (RankProgram &program : programs)
        program.arenaBytes = 128;
      auto driver = makeEmulatedDriver(seed, -1);
      Status status = runRanks(*driver, programs, graph, [&](pp_rank_t &rank, StreamDevice &device, Transport &) {
        stepOf[rank.rank] = [](pp_rank_t &state, char *arena) {
          return state.queue->add(state, [arena] {
            auto *words = reinterpret_cast<int32_t *>(arena);
            words[16] = 10 * words[0];
            return PP_OK;
          });
        };
        for (int32_t step = 1; step < 6; ++step) {
          int32_t given = step + 100 * rank.rank, made = 0;
          PP_TRY(device.give({{0, &given, sizeof given}}));
          given = -1; // it has been read
          if (pp_status_t code = device.run(callStep, rank, {{64, &made, sizeof made}}); code != PP_OK)
            return Status(code, rank.message);
          EXPECT_EQ(made, 10 * (step + 100 * rank.rank)) << "seed " << seed << ", graph " << graph;
        }
        return Status();
      });
      EXPECT_TRUE(status.ok()) << status.message();
    }
}

TEST(RuntimeStreams, WhoWaitsForEverIsFound) {
  auto programs = emptyPrograms(2);
  programs[0].messages = {p2p(false, 1, 0, 64, "never")};
  programs[1].messages = {p2p(true, 0, 0, 64, "never")};
  for (RankProgram &program : programs)
    program.arenaBytes = 64;
  auto driver = makeEmulatedDriver(1, -1);
  Status status = runRanks(*driver, programs, false, [&](pp_rank_t &rank, StreamDevice &device, Transport &transport) {
    stepOf[rank.rank] = [&](pp_rank_t &state, char *arena) {
      if (state.rank == 1)
        return PP_OK;
      pp_status_t code = transport.postReceive(state, 0, arena);
      return code == PP_OK ? transport.complete(state, 0) : code;
    };
    transport.markStep(3);
    rank.unit = 0;
    pp_status_t code = device.run(callStep, rank, {});
    return code == PP_OK ? Status() : Status(code, rank.message);
  });
  EXPECT_EQ(status.code(), PP_PEER);
  EXPECT_EQ(status.message(),
            "deadlock in step 3: rank 0 after `0F0` waits for `never` from rank 1 (64 bytes, channel 0);"
            " rank 1 waits between steps");
}

} // namespace
