// Runs messages under mpirun, random or long ones, and ends with 0 if all arrive.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// <seed> <messages> <steps> <lag> <plain|rendezvous> [<longest count>], or long <bytes>..
#include "test/unit/RuntimePattern.h"
#include "runtime/transport/MpiCollective.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

static Status run(pp_rank_t &rank, Transport &transport, int argc, char **argv) {
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
  if (argc < 3 || (argc < 6 && strcmp(argv[1], "long") != 0) || !getenv("OMPI_COMM_WORLD_SIZE"))
    return 2;
  bool isLong = strcmp(argv[1], "long") == 0;
  if (argc > 6 && !isLong)
    mostMpiCount = atoll(argv[6]);
  TransportOptions options{isLong || strcmp(argv[5], "plain") == 0 ? Sends::Plain : Sends::Rendezvous, 60};
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
