// Runs random messages under mpirun: `<seed> <messages> <steps> <lag> <plain|rendezvous>`; 0 if all arrive.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/RuntimePattern.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace pp;

int main(int argc, char **argv) {
  if (argc != 6 || !getenv("OMPI_COMM_WORLD_SIZE"))
    return 2;
  TransportOptions options{strcmp(argv[5], "plain") == 0 ? Sends::Plain : Sends::Rendezvous, 20};
  int32_t ranks = atoi(getenv("OMPI_COMM_WORLD_SIZE")), rank = 0;
  std::unique_ptr<Transport> transport;
  Status status = makeMpiTransport(ranks, options, rank, transport);
  test::Pattern pattern(ranks, strtoull(argv[1], nullptr, 10), atoi(argv[2]));
  if (status.ok())
    status = transport->prepare(pattern.programs[rank]);
  pp_rank_t state;
  state.rank = rank;
  state.ranks = ranks;
  double start = status.ok() ? transport->now() : 0;
  if (status.ok())
    status = test::runPattern(pattern, state, *transport, atoi(argv[3]), strtoull(argv[4], nullptr, 10));
  if (!status.ok()) {
    fprintf(stderr, "rank %d: %s\n", rank, status.message().c_str());
    abortMpi(status.code());
  }
  if (rank == 0)
    printf("%.6f s\n", transport->now() - start);
  finishMpi();
}
