// The transport between threads: what arrives, in which order, and how a run that cannot go on ends.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Half.h"
#include "runtime/files/SafeTensors.h"
#include "runtime/transport/WordSum.h"
#include "test/unit/RuntimePattern.h"
#include <algorithm>
#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>

using namespace pp;
using namespace pp::test;

namespace {

uint64_t wordSum(const std::vector<unsigned char> &bytes, size_t piece) {
  WordSum sum;
  for (size_t at = 0; at < bytes.size(); at += piece)
    sum.add(bytes.data() + at, std::min(piece, bytes.size() - at));
  return sum.value();
}

/// The work of each rank when its transport is ready.
using Body = std::function<Status(pp_rank_t &, Transport &)>;

/// Runs all ranks as the trainer does; the first failure of any.
Status runRanks(const std::vector<RankProgram> &programs, TransportOptions options, const Body &body) {
  auto meeting = makeMeeting(int32_t(programs.size()), options);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < int32_t(programs.size()); ++rank)
    threads.emplace_back([&, rank] {
      auto transport = makeThreadTransport(meeting, rank);
      pp_rank_t state;
      state.rank = rank;
      state.transport = transport.get();
      Status status = transport->prepare(programs[rank]);
      leave(*meeting, rank, status.ok() ? body(state, *transport) : status);
    });
  for (std::thread &thread : threads)
    thread.join();
  int32_t failed = -1;
  return firstFailure(*meeting, failed);
}

class Threads : public testing::TestWithParam<std::tuple<Sends, int, int>> {};

TEST_P(Threads, DeliverEveryMessageOfRandomOrders) {
  auto [sends, ranks, lag] = GetParam();
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Pattern pattern(ranks, seed, 60);
    Status status = runRanks(pattern.programs, {sends, 20}, [&, lag = lag](pp_rank_t &rank, Transport &transport) {
      rank.ranks = int32_t(pattern.programs.size());
      return runPattern(pattern, rank, transport, 8, lag);
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Runtime, Threads,
                         testing::Combine(testing::Values(Sends::Plain, Sends::Buffered, Sends::Rendezvous),
                                          testing::Values(2, 5), testing::Values(0, 3)));

// An exchange inside units is posted many times a step, and gives all devices the same bits each time.
TEST(RuntimeTransport, ExchangesAreRepeated) {
  for (int32_t members : {2, 3, 4})
    for (int64_t count : {1, 7, 130}) {
      auto programs = emptyPrograms(members);
      std::vector<int32_t> group(static_cast<size_t>(members));
      std::iota(group.begin(), group.end(), 0);
      for (auto &program : programs) {
        MessageSpec gather = sumOver(group, 1, members * count, Type::F32);
        gather.kind = MessageSpec::Kind::AllGather;
        for (int32_t k = 0; k <= members; ++k)
          gather.cuts.push_back(k * count * 4);
        program.messages = {sumOver(group, 1, count, Type::F32), gather};
        for (MessageSpec &message : program.messages)
          message.inside = message.oneText = true;
      }
      auto term = [](int32_t rank, int64_t i, int time) { return float(1 + rank) / float(3 + i + time); };
      Status status = runRanks(programs, {Sends::Rendezvous, 20}, [&](pp_rank_t &rank, Transport &transport) {
        std::vector<float> sum(static_cast<size_t>(count)), all(static_cast<size_t>(members * count));
        for (int time = 0; time < 50; ++time) {
          for (int64_t i = 0; i < count; ++i)
            sum[size_t(i)] = term(rank.rank, i, time);
          const std::vector<float> mine = sum;
          PP_CHECKED(transport.postCollective(rank, 0, sum.data(), nullptr));
          PP_CHECKED(transport.complete(rank, 0));
          PP_CHECKED(transport.postCollective(rank, 1, all.data(), const_cast<float *>(mine.data())));
          PP_CHECKED(transport.complete(rank, 1));
          for (int64_t i = 0; i < count; ++i) {
            float expected = term(0, i, time);
            for (int32_t other = 1; other < members; ++other)
              expected += term(other, i, time);
            EXPECT_EQ(sum[size_t(i)], expected);
            for (int32_t other = 0; other < members; ++other)
              EXPECT_EQ(all[size_t(other * count + i)], term(other, i, time));
          }
        }
        return Status();
      });
      EXPECT_TRUE(status.ok()) << status.message();
    }
}

// A member that leaves one out stands elsewhere than the others, and all are named.
TEST(RuntimeTransport, AnExchangeThatIsLeftOutIsNamed) {
  auto programs = emptyPrograms(2);
  for (auto &program : programs) {
    program.messages = {sumOver({0, 1}, 1, 6, Type::F32), sumOver({0, 1}, 2, 1, Type::F64)};
    program.messages[0].inside = true;
    program.messages[0].label = "2x3";
    program.messages[1].label = "norm";
    program.units = {{"0F3", "F", "", 3, 0, "mine.pipe:7:3"}};
  }
  programs[0].messages[0].line = "model.pipe:2:1";
  Status status = runRanks(programs, {Sends::Rendezvous, 20}, [&](pp_rank_t &rank, Transport &transport) {
    float values[6] = {};
    double norm = 0;
    rank.unit = 0;
    for (int time = 0; time < 2; ++time)
      if (rank.rank == 0 || time == 0) {
        PP_CHECKED(transport.postCollective(rank, 0, values, nullptr));
        PP_CHECKED(transport.complete(rank, 0));
      }
    PP_CHECKED(transport.postCollective(rank, 1, &norm, nullptr));
    PP_CHECKED(transport.complete(rank, 1));
    return Status();
  });
  EXPECT_EQ(status.message(), "deadlock in step 0: rank 0 in `0F3` (mine.pipe:7:3) waits for the sum `2x3` over 2 "
                              "ranks (model.pipe:2:1); rank 1 after `0F3` (mine.pipe:7:3) waits for the sum `norm` "
                              "over 2 ranks");
}

// Terms are added in rank order, so that every member has the same bits: (1 + 1e-16) + -1 is not 1 + (1e-16 - 1).
TEST(RuntimeTransport, SumsInRankOrder) {
  auto programs = emptyPrograms(3);
  for (auto &program : programs)
    program.messages = {sumOver({0, 1, 2}, 0, 1, Type::F64), sumOver({0, 1, 2}, 1, 2, Type::F32)};
  const double parts[] = {1, 1e-16, -1};
  const float floats[] = {1, 1e-8f, -1};
  std::vector<double> sums(3);
  std::vector<float> floatSums(3);
  Status status = runRanks(programs, {}, [&](pp_rank_t &rank, Transport &transport) {
    double value = parts[rank.rank];
    float pair[] = {0, floats[rank.rank]};
    PP_CHECKED(transport.postCollective(rank, 0, &value, nullptr));
    PP_CHECKED(transport.postCollective(rank, 1, pair, nullptr));
    PP_CHECKED(transport.complete(rank, 1));
    PP_CHECKED(transport.complete(rank, 0));
    sums[rank.rank] = value;
    floatSums[rank.rank] = pair[1];
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(sums[rank], 0.0);
    EXPECT_EQ(floatSums[rank], 0.0f);
  }
}

// The whole has two runs, each cut over all ranks; with `zigzag` the second one is cut in reverse order. If the next
// number of the type is `first` + 2, then `first` + 1 rounds to `first`: a sum that is rounded on its way never grows.
static void sumShards(Type type, float first, uint16_t (*narrow)(float), float (*widen)(uint16_t), bool zigzag) {
  auto programs = emptyPrograms(3);
  MessageSpec sum = sumOver({0, 1, 2}, 0, 9, type);
  sum.kind = MessageSpec::Kind::ReduceScatter;
  sum.cuts = {0, 4, 8, 12, 14, 16, 18};
  sum.zigzag = zigzag;
  MessageSpec gather = sum;
  gather.kind = MessageSpec::Kind::AllGather;
  for (auto &program : programs)
    program.messages = {sum, gather};
  std::vector<std::vector<float>> shards(3), wholes(3);
  Status status = runRanks(programs, {}, [&](pp_rank_t &rank, Transport &transport) {
    uint16_t whole[9], shard[3] = {}, all[9] = {};
    for (int i = 0; i < 9; ++i)
      whole[i] = narrow(rank.rank == 0 ? first + 2.0f * float(i) : 1.0f);
    PP_CHECKED(transport.postCollective(rank, 0, whole, shard));
    PP_CHECKED(transport.complete(rank, 0));
    PP_CHECKED(transport.postCollective(rank, 1, all, shard));
    PP_CHECKED(transport.complete(rank, 1));
    std::transform(shard, shard + 3, std::back_inserter(shards[rank.rank]), widen);
    std::transform(all, all + 9, std::back_inserter(wholes[rank.rank]), widen);
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
  const float low = first + 14, high = first + 18; // elements 6 and 8
  EXPECT_EQ(shards[0], (std::vector<float>{first + 2, first + 4, zigzag ? high : low}));
  EXPECT_EQ(shards[1], (std::vector<float>{first + 6, first + 8, first + 16})); // elements 2, 3 and 7
  EXPECT_EQ(shards[2], (std::vector<float>{first + 10, first + 12, zigzag ? low : high}));
  for (auto &whole : wholes)
    for (int i = 0; i < 9; ++i)
      EXPECT_EQ(whole[size_t(i)], first + 2.0f * float(i + 1));
}
TEST(RuntimeTransport, ShardsOfSeveralRuns) {
  for (bool zigzag : {false, true}) {
    sumShards(Type::Bf16, 256, roundToBf16, fromBf16, zigzag);
    sumShards(Type::F16, 2048, roundToF16, fromF16, zigzag);
  }
}

/// Members of an all_to_all give two runs of every sequence, and get all rows of their columns, as the definition says
/// element by element. The way back restores the original.
TEST(RuntimeTransport, RunsForColumns) {
  for (int32_t members : {2, 3, 4}) {
    constexpr int64_t sequences = 2, run = 3, narrow = 5;
    const int64_t length = 2 * members * run, width = members * narrow, count = sequences * 2 * run * width;
    auto programs = emptyPrograms(members);
    std::vector<int32_t> group(static_cast<size_t>(members));
    std::iota(group.begin(), group.end(), 0);
    for (auto &program : programs) {
      MessageSpec there = sumOver(group, 1, count, Type::F32);
      there.kind = MessageSpec::Kind::AllToAll;
      there.inside = there.oneText = there.toColumns = true;
      there.sequences = sequences;
      there.length = length;
      MessageSpec back = there;
      back.toColumns = false;
      program.messages = {there, back};
    }
    // The value of element [b, t, j] of the whole.
    auto element = [&](int64_t b, int64_t t, int64_t j) { return float((b * length + t) * width + j); };
    Status status = runRanks(programs, {Sends::Rendezvous, 20}, [&](pp_rank_t &rank, Transport &transport) {
      std::vector<float> runs, columns(static_cast<size_t>(count)), again(static_cast<size_t>(count));
      for (int64_t b = 0; b < sequences; ++b)
        for (int64_t first : {rank.rank * run, (2 * members - 1 - rank.rank) * run})
          for (int64_t t = first; t < first + run; ++t)
            for (int64_t j = 0; j < width; ++j)
              runs.push_back(element(b, t, j));
      std::vector<float> wanted;
      for (int64_t b = 0; b < sequences; ++b)
        for (int64_t t = 0; t < length; ++t)
          for (int64_t j = rank.rank * narrow; j < (rank.rank + 1) * narrow; ++j)
            wanted.push_back(element(b, t, j));
      PP_CHECKED(transport.postCollective(rank, 0, columns.data(), runs.data()));
      PP_CHECKED(transport.complete(rank, 0));
      EXPECT_EQ(columns, wanted) << members << " members, rank " << rank.rank;
      PP_CHECKED(transport.postCollective(rank, 1, again.data(), columns.data()));
      PP_CHECKED(transport.complete(rank, 1));
      EXPECT_EQ(again, runs) << members << " members, rank " << rank.rank;
      EXPECT_EQ(transport.received(), 2 * (members - 1) * count * 4 / members);
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

/// Without sequences the k-th of equal sections goes to the k-th member, which gets it at the place of its giver.
TEST(RuntimeTransport, SectionsForEachMember) {
  for (int32_t members : {2, 3, 5}) {
    constexpr int64_t each = 7;
    auto programs = emptyPrograms(members);
    std::vector<int32_t> group(static_cast<size_t>(members));
    std::iota(group.begin(), group.end(), 0);
    for (auto &program : programs) {
      MessageSpec message = sumOver(group, 1, members * each, Type::F32);
      message.kind = MessageSpec::Kind::AllToAll;
      message.inside = message.oneText = true;
      program.messages = {message};
    }
    auto element = [](int64_t from, int64_t to, int64_t i) { return float((from * 8 + to) * 16 + i); };
    Status status = runRanks(programs, {Sends::Rendezvous, 20}, [&](pp_rank_t &rank, Transport &transport) {
      std::vector<float> given, wanted;
      for (int64_t other = 0; other < members; ++other)
        for (int64_t i = 0; i < each; ++i) {
          given.push_back(element(rank.rank, other, i));
          wanted.push_back(element(other, rank.rank, i));
        }
      std::vector<float> taken(given.size());
      PP_CHECKED(transport.postCollective(rank, 0, taken.data(), given.data()));
      PP_CHECKED(transport.complete(rank, 0));
      EXPECT_EQ(taken, wanted) << members << " members, rank " << rank.rank;
      EXPECT_EQ(transport.received(), (members - 1) * each * 4);
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

/// Each member's shard is summed, and gathered, where it lies in the whole; the last one may have nothing.
TEST(RuntimeTransport, ShardsInPlace) {
  for (int32_t members : {2, 3, 4}) {
    constexpr int64_t count = 40;
    const int64_t each = members == 4 ? 16 : 32; // of four members the last one has none
    auto programs = emptyPrograms(members);
    std::vector<int32_t> group(static_cast<size_t>(members));
    std::iota(group.begin(), group.end(), 0);
    for (auto &program : programs) {
      MessageSpec sum = sumOver(group, 1, count, Type::F32);
      sum.kind = MessageSpec::Kind::ReduceScatter;
      for (int32_t k = 0; k <= members; ++k)
        sum.cuts.push_back(std::min(k * each, count) * 4);
      sum.oneText = sum.inPlace = true;
      MessageSpec gather = sum;
      gather.kind = MessageSpec::Kind::AllGather;
      program.messages = {sum, gather};
    }
    auto term = [](int32_t rank, int64_t i) { return float(1 + rank) / float(3 + i); };
    Status status = runRanks(programs, {Sends::Rendezvous, 20}, [&](pp_rank_t &rank, Transport &transport) {
      std::vector<float> whole(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i)
        whole[size_t(i)] = term(rank.rank, i);
      auto sumOf = [&](int64_t i) {
        float sum = term(0, i);
        for (int32_t other = 1; other < members; ++other)
          sum += term(other, i);
        return sum;
      };
      PP_CHECKED(transport.postCollective(rank, 0, whole.data(), whole.data()));
      PP_CHECKED(transport.complete(rank, 0));
      for (int64_t i = 0; i < count; ++i) {
        bool isOwn = i / each == rank.rank;
        EXPECT_EQ(whole[size_t(i)], isOwn ? sumOf(i) : term(rank.rank, i)) << "rank " << rank.rank << " at " << i;
      }
      PP_CHECKED(transport.postCollective(rank, 1, whole.data(), whole.data()));
      PP_CHECKED(transport.complete(rank, 1));
      for (int64_t i = 0; i < count; ++i)
        EXPECT_EQ(whole[size_t(i)], sumOf(i));
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

/// Two ranks that each send first and only then post their receive.
Status sendFirst(Sends sends) {
  auto programs = emptyPrograms(2);
  for (int32_t rank : {0, 1})
    programs[rank].messages = {p2p(true, 1 - rank, rank, 64, "there"), p2p(false, 1 - rank, 1 - rank, 64, "back")};
  return runRanks(programs, {sends, 20}, [](pp_rank_t &rank, Transport &transport) {
    char out[64] = {}, in[64] = {};
    rank.unit = 0;
    PP_CHECKED(transport.postSend(rank, 0, out));
    PP_CHECKED(transport.complete(rank, 0));
    PP_CHECKED(transport.postReceive(rank, 1, in));
    PP_CHECKED(transport.complete(rank, 1));
    return Status();
  });
}

TEST(RuntimeTransport, BufferedSendsHideWhatRendezvousFinds) {
  EXPECT_TRUE(sendFirst(Sends::Buffered).ok());
  Status status = sendFirst(Sends::Rendezvous);
  EXPECT_EQ(status.code(), PP_PEER);
  EXPECT_EQ(status.message(),
            "deadlock in step 0: rank 0 after `0F0` waits for `there` to rank 1 (64 bytes, channel 0); "
            "rank 1 after `1B0` waits for `there` to rank 0 (64 bytes, channel 1)");
}

TEST(RuntimeTransport, SeesThatAPeerHasEnded) {
  auto programs = emptyPrograms(2);
  programs[0].messages = {p2p(false, 1, 3, 8, "act")};
  programs[1].messages = {p2p(true, 0, 3, 8, "act")};
  Status status = runRanks(programs, {}, [](pp_rank_t &rank, Transport &transport) {
    double value = 0;
    if (rank.rank == 1)
      return Status();
    PP_CHECKED(transport.postReceive(rank, 0, &value));
    PP_CHECKED(transport.complete(rank, 0));
    return Status();
  });
  EXPECT_EQ(status.message(),
            "deadlock in step 0: rank 0 waits for `act` from rank 1 (8 bytes, channel 3); rank 1 has ended");
}

TEST(RuntimeTransport, AFailedRankWakesTheOthers) {
  auto programs = emptyPrograms(4);
  for (auto &program : programs)
    program.messages = {sumOver({0, 1, 2, 3}, 0, 1, Type::F64)};
  auto start = std::chrono::steady_clock::now();
  Status status = runRanks(programs, {}, [](pp_rank_t &rank, Transport &transport) {
    double value = 0;
    if (rank.rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return internal("rank 2 broke");
    }
    PP_CHECKED(transport.postCollective(rank, 0, &value, nullptr));
    PP_CHECKED(transport.complete(rank, 0));
    return Status();
  });
  EXPECT_EQ(status.message(), "rank 2 broke");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(RuntimeTransport, ALateMessageIsOverdue) {
  auto programs = emptyPrograms(2);
  programs[0].messages = {p2p(false, 1, 0, 8, "act")};
  programs[1].messages = {p2p(true, 0, 0, 8, "act")};
  Status status = runRanks(programs, {Sends::Plain, 0.05}, [](pp_rank_t &rank, Transport &transport) {
    double value = 0;
    if (rank.rank == 1) { // busy, not waiting: no deadlock can be told
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      return Status();
    }
    PP_CHECKED(transport.postReceive(rank, 0, &value));
    PP_CHECKED(transport.complete(rank, 0));
    return Status();
  });
  EXPECT_EQ(status.message(), "rank 0 waits for `act` from rank 1 (8 bytes, channel 0), overdue after 0.05 s");
}

TEST(RuntimeTransport, RefusesProgramsThatDoNotFit) {
  auto programs = emptyPrograms(2);
  programs[0].messages = {p2p(true, 1, 0, 8, "act"), p2p(true, 1, 0, 8, "act")};
  programs[1].messages = {p2p(false, 0, 0, 8, "act")};
  Status status = runRanks(programs, {}, [](pp_rank_t &, Transport &) { return Status(); });
  EXPECT_EQ(status.message(), "rank 0 sends 2 messages a step on channel 0 and rank 1 receives 1");

  programs[0].messages = {p2p(true, 1, 0, 16, "act")};
  status = runRanks(programs, {}, [](pp_rank_t &rank, Transport &transport) {
    double values[2] = {};
    PP_CHECKED(rank.rank == 0 ? transport.postSend(rank, 0, values) : transport.postReceive(rank, 0, values));
    PP_CHECKED(transport.complete(rank, 0));
    return Status();
  });
  EXPECT_EQ(status.message(), "a message of 16 bytes from rank 0 met a receive of 8 bytes on rank 1");
}

/// The result of two ranks that post different collectives on one channel: `first` and `second`.
static Status joinUnlike(const MessageSpec &first, const MessageSpec &second) {
  auto programs = emptyPrograms(2);
  programs[0].messages = {first};
  programs[1].messages = {second};
  return runRanks(programs, {}, [&](pp_rank_t &rank, Transport &transport) {
    const MessageSpec &mine =
        rank.rank == 0 ? first : second; // not one byte of room more than its own rank takes it for
    std::vector<char> data(size_t(mine.bytes)), shard(size_t(mine.shardBytes(size_t(rank.rank))));
    PP_CHECKED(transport.postCollective(rank, 0, data.data(), shard.data()));
    PP_CHECKED(transport.complete(rank, 0));
    return Status();
  });
}

// The last member to come would write behind the end of another member's memory.
TEST(RuntimeTransport, RefusesMembersThatDisagree) {
  const MessageSpec small = sumOver({0, 1}, 0, 4, Type::F64), large = sumOver({0, 1}, 0, 1000, Type::F64);
  for (auto [first, second] : {std::pair(small, large), std::pair(large, small)}) {
    Status status = joinUnlike(first, second);
    EXPECT_EQ(status.code(), PP_INTERNAL);
    EXPECT_EQ(status.message(),
              text("rank 0 joins the sum `", first.label, "` over 2 ranks, ", first.bytes,
                   " bytes, but rank 1 joins the sum `", second.label, "` over 2 ranks, ", second.bytes, " bytes"));
  }
  MessageSpec other = small;
  other.type = Type::F32;
  other.count *= 2; // as many bytes
  EXPECT_EQ(joinUnlike(small, other).code(), PP_INTERNAL);
  MessageSpec fromFirst = small, fromSecond = small;
  fromFirst.kind = fromSecond.kind = MessageSpec::Kind::Broadcast;
  fromFirst.root = 0;
  fromSecond.root = 1;
  EXPECT_EQ(joinUnlike(fromFirst, small).code(), PP_INTERNAL);
  EXPECT_EQ(joinUnlike(fromFirst, fromSecond).code(), PP_INTERNAL);
  MessageSpec even = small, uneven = small;
  even.kind = uneven.kind = MessageSpec::Kind::AllGather;
  even.cuts = {0, 16, 32};
  uneven.cuts = {0, 8, 32};
  EXPECT_EQ(joinUnlike(even, uneven).code(), PP_INTERNAL);
  EXPECT_TRUE(joinUnlike(even, even).ok());
}

TEST(RuntimeTransport, RefusesAMessageTwiceUnderWay) {
  auto programs = emptyPrograms(2);
  programs[0].messages = {p2p(true, 1, 0, 8, "act")};
  programs[1].messages = {p2p(false, 0, 0, 8, "act")};
  Status status = runRanks(programs, {}, [](pp_rank_t &rank, Transport &transport) {
    double value = 0;
    if (rank.rank == 1)
      return Status();
    PP_CHECKED(transport.postSend(rank, 0, &value));
    PP_CHECKED(transport.postSend(rank, 0, &value));
    return Status();
  });
  EXPECT_EQ(status.message(),
            "message 0 of 1 cannot be posted here: it is unknown, of another kind, or still under way");
}

TEST(RuntimeTransport, WordSumsFindEveryBitAndDoNotSeePieces) {
  for (size_t size : {0u, 1u, 7u, 32u, 33u, 100u, 256u}) {
    std::vector<unsigned char> bytes(size);
    std::iota(bytes.begin(), bytes.end(), 1);
    const uint64_t whole = wordSum(bytes, size + 1);
    for (size_t piece = 1; piece <= size; ++piece)
      EXPECT_EQ(wordSum(bytes, piece), whole) << size << " bytes in pieces of " << piece;
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      auto flipped = bytes;
      flipped[bit / 8] ^= 1u << bit % 8;
      EXPECT_NE(wordSum(flipped, size), whole) << "bit " << bit << " of " << size << " bytes";
    }
    auto longer = bytes;
    longer.push_back(0);
    EXPECT_NE(wordSum(longer, size + 1), whole) << "a zero behind " << size << " bytes";
  }
}

TEST(RuntimeTransport, WordSumsFindPairsOfHighestBits) {
  std::vector<unsigned char> bytes(256);
  const uint64_t whole = wordSum(bytes, 256);
  for (size_t first = 7; first < 256; first += 8)
    for (size_t second = first + 8; second < 256; second += 8) {
      auto flipped = bytes;
      flipped[first] ^= 0x80;
      flipped[second] ^= 0x80;
      EXPECT_NE(wordSum(flipped, 256), whole) << first << ", " << second;
    }
}

} // namespace
