// Times the runtime's collectives, which are MPI's own, against the same made of sends and receives, in one run.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// usage: mpirun -n RANKS pp-bench-collectives [ROUNDS]
// Both ways add in the members' order, so both make the same bits (checked). The sends go straight from who has it to
// who needs it, all posted at once; those of an all_to_all are packed. `devices of a rank`: exchanges of a mesh. Of the
// slowest rank's time the shortest of the rounds, the two ways taking turns: what else runs on the machine only adds to
// it.
#include "runtime/transport/GroupSums.h"
#include "runtime/transport/MpiCollective.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace pp;
using Kind = MessageSpec::Kind;

namespace {

struct Case {
  MessageSpec message;
  int32_t rank, ranks;
  std::vector<float> whole, shard, parts, otherWhole, otherShard;

  Case(Kind kind, bool ofDevices, int64_t bytes, int32_t rank, int32_t ranks) : rank(rank), ranks(ranks) {
    message.kind = kind;
    message.oneText = ofDevices;
    message.bytes = bytes;
    message.count = bytes / 4;
    message.root = 0;
    for (int32_t k = 0; k < ranks; ++k)
      message.group.push_back(k);
    if (message.isSharded())
      for (int32_t k = 0; k <= ranks; ++k)
        message.cuts.push_back(bytes / ranks * k);
    if (kind == Kind::AllToAll) { // rows of 4 KiB, hidden 1024 in f32
      message.sequences = 1;
      message.length = bytes / 4096 * ranks;
      message.toColumns = true;
    }
    whole.resize(size_t(message.count));
    shard.resize(size_t(kind == Kind::AllToAll ? message.count : message.count / ranks));
    parts.resize(size_t(message.count * ranks));
    fill();
    otherWhole = whole;
    otherShard = shard;
  }

  void fill() {
    for (size_t i = 0; i < whole.size(); ++i)
      whole[i] = float((i * 7 + size_t(rank) * 13) % 101) / 7;
    for (size_t i = 0; i < shard.size(); ++i)
      shard[i] = float((i * 5 + size_t(rank) * 11) % 97) / 7;
  }

  /// Blocks of an all_to_all, packed for one member or taken from what one has packed.
  void pack(int32_t other, char *packed, bool gives) {
    for (int64_t i = 0; i < message.blocks(); ++i) {
      const Block block =
          gives ? message.block(size_t(rank), size_t(other), i) : message.block(size_t(other), size_t(rank), i);
      for (int64_t row = 0; row < block.rows; ++row, packed += block.bytes)
        if (gives)
          memcpy(packed, reinterpret_cast<char *>(otherShard.data()) + block.give + row * block.giveStride,
                 size_t(block.bytes));
        else
          memcpy(reinterpret_cast<char *>(otherWhole.data()) + block.take + row * block.takeStride, packed,
                 size_t(block.bytes));
    }
  }

  void exchangeBySends() {
    const int64_t each = message.bytes / ranks;
    std::vector<char> out(size_t(message.bytes));
    auto *in = reinterpret_cast<char *>(parts.data());
    std::vector<MPI_Request> requests;
    for (int32_t k = 0; k < ranks; ++k) {
      pack(k, k == rank ? in + each * k : out.data() + each * k, true);
      if (k == rank)
        continue;
      MPI_Irecv(in + each * k, int(each), MPI_BYTE, k, 0, MPI_COMM_WORLD, &requests.emplace_back());
      MPI_Isend(out.data() + each * k, int(each), MPI_BYTE, k, 0, MPI_COMM_WORLD, &requests.emplace_back());
    }
    MPI_Waitall(int(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    for (int32_t k = 0; k < ranks; ++k)
      pack(k, in + each * k, false);
  }

  void bySends() {
    if (message.kind == Kind::AllToAll)
      return exchangeBySends();
    int64_t each = message.bytes / ranks, bytes = message.bytes;
    auto *data = reinterpret_cast<char *>(otherWhole.data()), *own = reinterpret_cast<char *>(otherShard.data()),
         *in = reinterpret_cast<char *>(parts.data());
    std::vector<MPI_Request> requests;
    auto send = [&](const char *from, int64_t size, int32_t to) {
      MPI_Isend(from, int(size), MPI_BYTE, to, 0, MPI_COMM_WORLD, &requests.emplace_back());
    };
    auto receive = [&](char *to, int64_t size, int32_t from) {
      MPI_Irecv(to, int(size), MPI_BYTE, from, 0, MPI_COMM_WORLD, &requests.emplace_back());
    };
    bool gathers = message.kind == Kind::AllGather, scatters = message.kind == Kind::ReduceScatter;
    for (int32_t k = 0; k < ranks; ++k) {
      if (k == rank)
        continue;
      if (gathers)
        receive(data + each * k, each, k), send(own, each, k);
      else if (scatters)
        receive(in + each * k, each, k), send(data + each * k, each, k);
      else if (message.kind == Kind::AllReduce)
        receive(in + bytes * k, bytes, k), send(data, bytes, k);
      else if (message.kind == Kind::Broadcast && rank == 0)
        send(data, bytes, k);
      else if (message.kind == Kind::Reduce && rank == 0)
        receive(in + bytes * k, bytes, k);
      else if (k == 0)
        message.kind == Kind::Broadcast ? receive(data, bytes, 0) : send(data, bytes, 0);
    }
    MPI_Waitall(int(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    if (gathers)
      memcpy(data + each * rank, own, size_t(each));
    if (!scatters && message.kind != Kind::AllReduce && !(message.kind == Kind::Reduce && rank == 0))
      return;
    std::vector<const void *> sources;
    for (int32_t k = 0; k < ranks; ++k)
      sources.push_back(k == rank ? (scatters ? data + each * k : data) : in + (scatters ? each : bytes) * k);
    sumMembers(Type::F32, sources, scatters ? own : data, scatters ? each : bytes);
  }
};

/// Seconds until the last rank is done.
template <typename Work> double timed(Work work) {
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  work();
  double took = MPI_Wtime() - begin, slowest = 0;
  MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

bool compare(Kind kind, bool ofDevices, const char *name, int64_t bytes, int rounds, int32_t rank, int32_t ranks) {
  Case test(kind, ofDevices, bytes, rank, ranks);
  MpiCollective collective;
  SumScratch scratch(-1);
  if (Status bound = collective.bind(test.message, rank, MPI_COMM_WORLD, false); !bound.ok())
    return false;
  std::vector<double> own, sends;
  bool same = true;
  for (int round = 0; round < rounds; ++round) {
    test.fill();
    test.otherWhole = test.whole;
    test.otherShard = test.shard;
    own.push_back(timed([&] {
      collective.post(test.whole.data(), test.shard.data(), scratch);
      MPI_Waitall(int(collective.pending().size()), collective.pending().data(), MPI_STATUSES_IGNORE);
      int code = MPI_SUCCESS;
      while (collective.goesOn(code))
        MPI_Waitall(int(collective.pending().size()), collective.pending().data(), MPI_STATUSES_IGNORE);
    }));
    sends.push_back(timed([&] { test.bySends(); }));
    same &= test.whole == test.otherWhole && test.shard == test.otherShard;
  }
  double a = *std::min_element(own.begin(), own.end()), b = *std::min_element(sends.begin(), sends.end());
  if (rank == 0)
    printf("| %s | %lld | %.3f | %.3f | %.2f |\n", name, static_cast<long long>(bytes), a * 1e3, b * 1e3, a / b);
  return same;
}

} // namespace

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0, rounds = argc > 1 ? atoi(argv[1]) : 21;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (rank == 0)
    printf("| %d ranks | bytes | MPI's ms | sends' ms | ratio |\n|---|---:|---:|---:|---:|\n", ranks);
  bool same = true;
  struct Row {
    Kind kind;
    bool ofDevices; ///< of one rank: they run one text
    const char *name;
  };
  for (auto [kind, ofDevices, name] :
       {Row{Kind::Broadcast, false, "broadcast"}, Row{Kind::Reduce, false, "reduce"},
        Row{Kind::AllGather, false, "all_gather"}, Row{Kind::ReduceScatter, false, "reduce_scatter"},
        Row{Kind::AllReduce, false, "all_reduce"}, Row{Kind::AllGather, true, "all_gather, devices of a rank"},
        Row{Kind::ReduceScatter, true, "reduce_scatter, devices of a rank"},
        Row{Kind::AllReduce, true, "all_reduce, devices of a rank"},
        Row{Kind::AllToAll, true, "all_to_all, devices of a rank"}})
    for (int64_t each : {int64_t(1) << 16, int64_t(1) << 18, int64_t(1) << 20, int64_t(1) << 23})
      same &= compare(kind, ofDevices, name, each * ranks, rounds, rank, ranks);
  if (!same)
    fprintf(stderr, "rank %d: the two ways differ\n", rank);
  MPI_Finalize();
  return same ? 0 : 1;
}
