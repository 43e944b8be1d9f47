// Runs messages under mpirun, random or long ones, and ends with 0 if all arrive.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// <seed> <messages> <steps> <lag> <plain|rendezvous> [<longest count>], or long <bytes>.., or joints <bytes>.., or
// channels <plain|rendezvous>, or sums <plain|rendezvous> <bytes of scratch> <count>..
#include "test/unit/RuntimePattern.h"
#include "runtime/transport/MpiCollective.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

using namespace pp;
using test::statusOf;

/// Rank 0 sends rank 1 messages of these lengths, marked at both ends and where 31 and 32 bits end.
static Status runLong(pp_rank_t &rank, Transport &transport, const std::vector<int64_t> &lengths) {
  RankProgram program = test::emptyPrograms(2)[size_t(rank.rank)];
  for (int64_t bytes : lengths)
    program.messages.push_back(test::p2p(rank.rank == 0, 1 - rank.rank, 7, bytes, "long"));
  PP_TRY(transport.prepare(program));
  int64_t sum = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::vector<char> data(static_cast<size_t>(lengths[i]));
    const int64_t marks[] = {0, lengths[i] / 2, (int64_t(1) << 31) - 1, lengths[i] - 1};
    for (int64_t mark : marks)
      if (rank.rank == 0 && mark < lengths[i])
        data[size_t(mark)] = char(1 + i + size_t(mark % 7));
    auto number = int32_t(i);
    PP_CHECKED(rank.rank == 0 ? transport.postSend(rank, number, data.data())
                              : transport.postReceive(rank, number, data.data()));
    PP_CHECKED(transport.complete(rank, number));
    for (int64_t mark : marks)
      if (mark < lengths[i] && data[size_t(mark)] != char(1 + i + size_t(mark % 7)))
        return internal("byte ", mark, " of ", lengths[i], " did not arrive");
    sum += rank.rank == 0 ? 0 : lengths[i];
  }
  return transport.received() == sum ? Status() : internal("counted ", transport.received(), " bytes of ", sum);
}

/// Rank 0 sends on one channel and then on another. Rank 1 posts the receives in the other order.
static Status runChannels(pp_rank_t &rank, Transport &transport) {
  RankProgram program = test::emptyPrograms(2)[size_t(rank.rank)];
  for (int32_t channel : {7, 8})
    program.messages.push_back(
        test::p2p(rank.rank == 0, 1 - rank.rank, rank.rank == 0 ? channel : 15 - channel, 8, "word"));
  PP_TRY(transport.prepare(program));
  double data[] = {7, 8};
  for (int32_t i : {0, 1})
    PP_CHECKED(rank.rank == 0 ? transport.postSend(rank, i, &data[i]) : transport.postReceive(rank, i, &data[i]));
  for (int32_t i : {0, 1}) {
    PP_CHECKED(transport.complete(rank, i));
    if (data[i] != program.messages[size_t(i)].channel)
      return internal("channel ", program.messages[size_t(i)].channel, " brought ", data[i]);
  }
  return {};
}

/// One collective of both ranks that is so long: words are marked at both ends, in the middle, and where 31 bits end.
static Status runJoint(pp_rank_t &rank, Transport &transport, MessageSpec::Kind kind, int64_t bytes) {
  using Kind = MessageSpec::Kind;
  RankProgram program = test::emptyPrograms(2)[size_t(rank.rank)];
  const int64_t words = bytes / 8, half = words / 2, own = rank.rank;
  const bool isSharded = kind == Kind::AllGather || kind == Kind::ReduceScatter, isExchange = kind == Kind::AllToAll;
  program.messages.push_back(isSharded ? test::sharded(kind, {0, 1}, 7, words)
                                       : test::rooted(kind, 1, {0, 1}, 7, words));
  PP_TRY(transport.prepare(program));
  const int64_t last = words - 1, end = int64_t(1) << 28; // of 31 bits
  const int64_t places[] = {0, half - 1, half, std::min(end - 1, last), std::min(end, last), last};
  auto valueOf = [&](int64_t of, int64_t place) {
    bool isMarked = std::find(std::begin(places), std::end(places), place) != std::end(places);
    return isMarked ? double(of + 1) * 1e6 + double(place % 9973) : 0;
  };
  std::vector<double> data(static_cast<size_t>(words)), shard(size_t(isExchange ? words : isSharded ? half : 0));
  const int64_t first = isSharded ? own * half : 0; // of the shard
  for (int64_t place : places)
    if (kind != Kind::AllGather && !isExchange)
      data[size_t(place)] = valueOf(own, place);
    else if (place >= first && place - first < int64_t(shard.size()))
      shard[size_t(place - first)] = valueOf(own, place);
  PP_CHECKED(transport.postCollective(rank, 0, data.data(), shard.data()));
  PP_CHECKED(transport.complete(rank, 0));
  for (int64_t place : places) {
    double expected = valueOf(0, place) + valueOf(1, place), got = data[size_t(place)];
    if (kind == Kind::Broadcast)
      expected = valueOf(1, place);
    else if (kind == Kind::Reduce && own == 0)
      expected = valueOf(0, place);
    else if (kind == Kind::AllGather)
      expected = valueOf(place / half, place);
    else if (isExchange)
      expected = valueOf(place / half, own * half + place % half);
    else if (kind == Kind::ReduceScatter)
      got = place / half == own ? shard[size_t(place - first)] : expected;
    if (got != expected)
      return internal(kindName(kind), " of ", bytes, " bytes: word ", place, " is ", got, " for ", expected);
  }
  return {};
}

/// Makes a sum one of which each member gets a share: of two rounds, the first with the longer runs, or where it lies.
static void scatter(MessageSpec &sum, int64_t count, bool inPlace) {
  sum.kind = MessageSpec::Kind::ReduceScatter;
  sum.inPlace = inPlace;
  const auto members = int64_t(sum.group.size()), rounds = int64_t(inPlace ? 1 : 2);
  sum.cuts = {0};
  for (int64_t round = 1; round <= rounds; ++round)
    for (int64_t k = 1, first = sum.cuts.back() / 4, last = round == rounds ? count : count * 2 / 3; k <= members; ++k)
      sum.cuts.push_back(4 * (first + (last - first) * k / members));
}

/// All ranks, as devices of one rank, sum so many f32 each time, all sums on their way together; twice. Of every three
/// the second and third are cut, into shards elsewhere and in place.
static Status runSums(pp_rank_t &rank, Transport &transport, const std::vector<int64_t> &counts) {
  RankProgram program = test::emptyPrograms(rank.ranks)[size_t(rank.rank)];
  std::vector<int32_t> all(size_t(rank.ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<float>> data, shards;
  for (int64_t count : counts) {
    program.messages.push_back(test::sumOver(all, 7, count, Type::F32));
    program.messages.back().oneText = true;
    if (size_t k = data.size(); k % 3 > 0)
      scatter(program.messages.back(), count, k % 3 == 2);
    data.emplace_back(size_t(count));
    shards.emplace_back(size_t(count));
  }
  PP_TRY(transport.prepare(program));
  for (int step = 0; step < 2; ++step) {
    for (size_t k = 0; k < data.size(); ++k) {
      for (size_t i = 0; i < data[k].size(); ++i)
        data[k][i] = float((rank.rank + 1) * int((i + k + size_t(step)) % 1009));
      PP_CHECKED(transport.postCollective(rank, int32_t(k), data[k].data(),
                                          k % 3 == 0   ? nullptr
                                          : k % 3 == 1 ? shards[k].data()
                                                       : data[k].data()));
    }
    const int times = rank.ranks * (rank.ranks + 1) / 2;
    for (size_t k = 0; k < data.size(); ++k) {
      PP_CHECKED(transport.complete(rank, int32_t(k)));
      const MessageSpec &message = program.messages[k];
      std::vector<ShardRange> ranges = {{0, 0, message.bytes}};
      if (message.isSharded())
        for (ranges.clear(); ShardRange range : message.ranges(message.memberOf(rank.rank)))
          ranges.push_back(range);
      for (ShardRange range : ranges)
        for (int64_t i = 0; i < range.bytes / 4; ++i) {
          const float *sum = (k % 3 == 1 ? shards : data)[k].data() + range.shard / 4;
          if (sum[i] != float(times * int((size_t(range.whole / 4 + i) + k + size_t(step)) % 1009)))
            return internal("sum ", k, " of ", data[k].size(), ": element ", i, " is ", sum[i]);
        }
    }
  }
  return {};
}

static Status run(pp_rank_t &rank, Transport &transport, int argc, char **argv) {
  if (strcmp(argv[1], "sums") == 0) {
    std::vector<int64_t> counts;
    for (int i = 4; i < argc; ++i)
      counts.push_back(atoll(argv[i]));
    return runSums(rank, transport, counts);
  }
  if (strcmp(argv[1], "channels") == 0)
    return runChannels(rank, transport);
  if (strcmp(argv[1], "joints") == 0) {
    using Kind = MessageSpec::Kind;
    for (int i = 2; i < argc; ++i)
      for (Kind kind :
           {Kind::Broadcast, Kind::Reduce, Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll})
        PP_TRY(runJoint(rank, transport, kind, atoll(argv[i])));
    return {};
  }
  if (strcmp(argv[1], "long") == 0) {
    std::vector<int64_t> lengths;
    for (int i = 2; i < argc; ++i)
      lengths.push_back(atoll(argv[i]));
    return runLong(rank, transport, lengths);
  }
  test::Pattern pattern(rank.ranks, strtoull(argv[1], nullptr, 10), atoi(argv[2]));
  PP_TRY(transport.prepare(pattern.programs[size_t(rank.rank)]));
  return test::runPattern(pattern, rank, transport, atoi(argv[3]), strtoull(argv[4], nullptr, 10));
}

int main(int argc, char **argv) {
  if (argc < 3 || !getenv("OMPI_COMM_WORLD_SIZE"))
    return 2;
  bool isLong = strcmp(argv[1], "long") == 0 || strcmp(argv[1], "joints") == 0, isSums = strcmp(argv[1], "sums") == 0;
  bool isShort = strcmp(argv[1], "channels") == 0;
  if (argc < 6 && !isLong && !isSums && !isShort)
    return 2;
  if (isSums)
    mostMpiScratch = atoll(argv[3]);
  else if (argc > 6 && !isLong)
    mostMpiCount = atoll(argv[6]);
  const char *sends = isLong ? "plain" : argv[isSums || isShort ? 2 : 5];
  TransportOptions options{strcmp(sends, "plain") == 0 ? Sends::Plain : Sends::Rendezvous, isLong ? 600.0 : 60.0};
  int32_t ranks = atoi(getenv("OMPI_COMM_WORLD_SIZE")), rank = 0;
  std::unique_ptr<Transport> transport;
  Status status = makeMpiTransport(pp::Mesh(ranks), options, rank, transport);
  pp_rank_t state;
  state.rank = rank;
  state.ranks = ranks;
  double start = status.ok() ? transport->now() : 0;
  if (status.ok())
    status = run(state, *transport, argc, argv);
  if (!status.ok()) {
    fprintf(stderr, "rank %d: %s\n", rank, status.message().c_str());
    abortMpi(status.code());
  }
  if (rank == 0)
    printf("%.6f s\n", transport->now() - start);
  finishMpi();
}
