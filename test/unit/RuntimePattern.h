// Messages in a random global order, and a rank that posts and completes its ends of them, for any transport.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_UNIT_RUNTIMEPATTERN_H
#define PP_TEST_UNIT_RUNTIMEPATTERN_H

#include "runtime/Random.h"
#include "runtime/Transport.h"
#include <vector>

namespace pp::test {

inline MessageSpec p2p(bool sends, int32_t peer, int32_t channel, int64_t bytes, std::string label) {
  MessageSpec message;
  message.kind = sends ? MessageSpec::Kind::Send : MessageSpec::Kind::Receive;
  message.peer = peer;
  message.channel = channel;
  message.bytes = bytes;
  message.label = std::move(label);
  message.group = {peer};
  return message;
}

inline MessageSpec sumOver(std::vector<int32_t> group, int32_t channel, int64_t count, Type type) {
  MessageSpec message;
  message.kind = MessageSpec::Kind::AllReduce;
  message.group = std::move(group);
  message.channel = channel;
  message.count = count;
  message.type = type;
  message.bytes = count * int64_t(elementBytes(type));
  message.label = "sum";
  return message;
}

inline Status statusOf(const pp_rank_t &rank, pp_status_t code) {
  return code == PP_OK ? Status() : Status(code, rank.message);
}

#define PP_CHECKED(call)                                                                                               \
  if (pp_status_t code = (call); code != PP_OK)                                                                        \
  return statusOf(rank, code)

inline std::vector<RankProgram> emptyPrograms(int32_t ranks) {
  std::vector<RankProgram> programs(ranks);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    programs[rank].rank = rank;
    programs[rank].units = {{rank == 0 ? "0F0" : "1B0", "F", "", 0, 0}};
  }
  return programs;
}

/// A random global order of messages; every rank posts its ends in this order and completes each a few posts later.
struct Pattern {
  struct Move {
    int32_t from = 0, to = 0; ///< equal: a sum over all ranks
    int64_t count = 0;        ///< of doubles
  };
  std::vector<Move> moves;
  std::vector<RankProgram> programs;
  std::vector<std::vector<int>> moveOf; ///< by rank and message

  Pattern(int32_t ranks, uint64_t seed, int size) : programs(emptyPrograms(ranks)), moveOf(ranks) {
    for (int i = 0; i < size; ++i) {
      Move move{int32_t(hashOf(seed, 3 * i) % ranks), int32_t(hashOf(seed, 3 * i + 1) % ranks),
                int64_t(1 + hashOf(seed, 3 * i + 2) % 300)};
      moves.push_back(move);
      for (int32_t rank = 0; rank < ranks; ++rank) {
        std::vector<int32_t> everyone;
        for (int32_t other = 0; other < ranks; ++other)
          everyone.push_back(other);
        if (move.from == move.to)
          programs[rank].messages.push_back(sumOver(everyone, 100, move.count, Type::F64));
        else if (rank == move.from || rank == move.to)
          programs[rank].messages.push_back(
              p2p(rank == move.from, rank == move.from ? move.to : move.from, 7, move.count * 8, "m"));
        else
          continue;
        moveOf[rank].push_back(i);
      }
    }
  }

  /// What a rank puts into a message of a step.
  static double value(int move, int step, int32_t rank, int64_t i) {
    return move * 1e6 + step * 1e4 + rank * 1e3 + double(i);
  }

  double expected(int32_t ranks, int move, int step, int64_t i) const {
    if (moves[move].from != moves[move].to)
      return value(move, step, moves[move].from, i);
    double total = 0;
    for (int32_t rank = 0; rank < ranks; ++rank)
      total += value(move, step, rank, i);
    return total;
  }
};

inline Status runPattern(const Pattern &pattern, pp_rank_t &rank, Transport &transport, int steps, size_t lag) {
  const auto &messages = pattern.programs[rank.rank].messages;
  std::vector<std::vector<double>> data(messages.size());
  for (int step = 0; step < steps; ++step)
    for (size_t i = 0; i < messages.size() + lag; ++i) {
      if (i < messages.size()) {
        int move = pattern.moveOf[rank.rank][i];
        data[i].assign(pattern.moves[move].count, -1);
        if (messages[i].kind != MessageSpec::Kind::Receive)
          for (size_t j = 0; j < data[i].size(); ++j)
            data[i][j] = Pattern::value(move, step, rank.rank, int64_t(j));
        auto kind = messages[i].kind;
        PP_CHECKED(kind == MessageSpec::Kind::Send      ? transport.postSend(rank, int32_t(i), data[i].data())
                   : kind == MessageSpec::Kind::Receive ? transport.postReceive(rank, int32_t(i), data[i].data())
                                                        : transport.postAllReduce(rank, int32_t(i), data[i].data()));
      }
      if (i < lag)
        continue;
      size_t done = i - lag;
      PP_CHECKED(transport.complete(rank, int32_t(done)));
      int move = pattern.moveOf[rank.rank][done];
      for (size_t j = 0; j < data[done].size(); ++j)
        if (data[done][j] != pattern.expected(rank.ranks, move, step, int64_t(j)))
          return internal("rank ", rank.rank, " message ", done, " element ", j, " is ", data[done][j]);
    }
  return transport.outstanding() == 0 ? Status() : internal("left over");
}

} // namespace pp::test

#endif // PP_TEST_UNIT_RUNTIMEPATTERN_H
