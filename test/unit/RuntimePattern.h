// Messages in a random global order, and a rank that posts and completes its ends of them, for any transport.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_UNIT_RUNTIMEPATTERN_H
#define PP_TEST_UNIT_RUNTIMEPATTERN_H

#include "runtime/files/Random.h"
#include "runtime/transport/Transport.h"
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

/// A broadcast or reduce with this root.
inline MessageSpec rooted(MessageSpec::Kind kind, int32_t root, std::vector<int32_t> group, int32_t channel,
                          int64_t count) {
  MessageSpec message = sumOver(std::move(group), channel, count, Type::F64);
  message.kind = kind;
  message.root = root;
  return message;
}

/// A gather or scatter, cut as evenly as whole elements allow.
inline MessageSpec sharded(MessageSpec::Kind kind, std::vector<int32_t> group, int32_t channel, int64_t count) {
  MessageSpec message = sumOver(std::move(group), channel, count, Type::F64);
  message.kind = kind;
  for (size_t k = 0; k <= message.group.size(); ++k)
    message.cuts.push_back(count * int64_t(k) / int64_t(message.group.size()) * 8);
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
    programs[rank].units = {{rank == 0 ? "0F0" : "1B0", "F", "", 0, 0, ""}};
  }
  return programs;
}

/// A random global order of messages; every rank posts its ends in this order and completes each a few posts later.
struct Pattern {
  struct Move {
    int32_t from = 0, to = 0; ///< equal: a collective of all ranks, this one its root
    int64_t count = 0;        ///< of doubles
    MessageSpec::Kind joint = MessageSpec::Kind::AllReduce;
  };
  std::vector<Move> moves;
  std::vector<RankProgram> programs;
  std::vector<std::vector<int>> moveOf; ///< by rank and message
  static constexpr MessageSpec::Kind joints[] = {MessageSpec::Kind::AllReduce, MessageSpec::Kind::Broadcast,
                                                 MessageSpec::Kind::Reduce, MessageSpec::Kind::AllGather,
                                                 MessageSpec::Kind::ReduceScatter};

  Pattern(int32_t ranks, uint64_t seed, int size) : programs(emptyPrograms(ranks)), moveOf(ranks) {
    for (int i = 0; i < size; ++i) {
      Move move{int32_t(hashOf(seed, 3 * i) % ranks), int32_t(hashOf(seed, 3 * i + 1) % ranks),
                int64_t(1 + hashOf(seed, 3 * i + 2) % 300), joints[i % 5]};
      moves.push_back(move);
      for (int32_t rank = 0; rank < ranks; ++rank) {
        std::vector<int32_t> everyone;
        for (int32_t other = 0; other < ranks; ++other)
          everyone.push_back(other);
        if (move.from == move.to && move.joint == MessageSpec::Kind::AllReduce)
          programs[rank].messages.push_back(sumOver(everyone, 100, move.count, Type::F64));
        else if (move.from == move.to && isSharded(move.joint))
          programs[rank].messages.push_back(sharded(move.joint, everyone, 100, move.count));
        else if (move.from == move.to)
          programs[rank].messages.push_back(rooted(move.joint, move.from, everyone, 100, move.count));
        else if (rank == move.from || rank == move.to)
          programs[rank].messages.push_back(
              p2p(rank == move.from, rank == move.from ? move.to : move.from, 7, move.count * 8, "m"));
        else
          continue;
        moveOf[rank].push_back(i);
      }
    }
  }

  static bool isSharded(MessageSpec::Kind kind) {
    return kind == MessageSpec::Kind::AllGather || kind == MessageSpec::Kind::ReduceScatter;
  }

  /// The number that a rank puts into a message of a step. Thirds have no exact sum, so the order of terms shows.
  static double value(int move, int step, int32_t rank, int64_t i) {
    return (move * 1e6 + step * 1e4 + rank * 1e3 + double(i)) / 3;
  }

  double expected(int32_t self, int32_t ranks, int move, int step, int64_t i) const {
    const Move &made = moves[move];
    if (made.from != made.to || made.joint == MessageSpec::Kind::Broadcast)
      return value(move, step, made.from, i);
    if (made.joint == MessageSpec::Kind::Reduce && self != made.from)
      return value(move, step, self, i);
    if (made.joint == MessageSpec::Kind::AllGather) {
      int32_t owner = 0;
      while (i >= made.count * (owner + 1) / ranks)
        ++owner;
      return value(move, step, owner, i);
    }
    double total = 0;
    for (int32_t rank = 0; rank < ranks; ++rank)
      total += value(move, step, rank, i);
    return total;
  }
};

/// The rank's own range in a gather or scatter.
struct Shard {
  std::vector<double> values;
  int64_t begin = 0;
  explicit Shard(const MessageSpec &message, int32_t rank) {
    if (!message.isSharded())
      return;
    begin = message.cuts[rank] / 8;
    values.resize(message.cuts[rank + 1] / 8 - begin, -1);
  }
};

inline Status runPattern(const Pattern &pattern, pp_rank_t &rank, Transport &transport, int steps, size_t lag) {
  const auto &messages = pattern.programs[rank.rank].messages;
  std::vector<std::vector<double>> data(messages.size());
  std::vector<Shard> shards;
  for (const MessageSpec &message : messages)
    shards.emplace_back(message, rank.rank);
  for (int step = 0; step < steps; ++step)
    for (size_t i = 0; i < messages.size() + lag; ++i) {
      if (i < messages.size()) {
        int move = pattern.moveOf[rank.rank][i];
        data[i].assign(pattern.moves[move].count, -1);
        if (messages[i].kind != MessageSpec::Kind::Receive)
          for (size_t j = 0; j < data[i].size(); ++j)
            data[i][j] = Pattern::value(move, step, rank.rank, int64_t(j));
        for (size_t j = 0; j < shards[i].values.size(); ++j)
          shards[i].values[j] = Pattern::value(move, step, rank.rank, shards[i].begin + int64_t(j));
        auto kind = messages[i].kind;
        PP_CHECKED(kind == MessageSpec::Kind::Send ? transport.postSend(rank, int32_t(i), data[i].data())
                   : kind == MessageSpec::Kind::Receive
                       ? transport.postReceive(rank, int32_t(i), data[i].data())
                       : transport.postCollective(rank, int32_t(i), data[i].data(), shards[i].values.data()));
      }
      if (i < lag)
        continue;
      size_t done = i - lag;
      PP_CHECKED(transport.complete(rank, int32_t(done)));
      int move = pattern.moveOf[rank.rank][done];
      bool scattered = messages[done].kind == MessageSpec::Kind::ReduceScatter;
      if (scattered)
        data[done] = shards[done].values;
      for (size_t j = 0; j < data[done].size(); ++j)
        if (data[done][j] !=
            pattern.expected(rank.rank, rank.ranks, move, step, int64_t(j) + (scattered ? shards[done].begin : 0)))
          return internal("rank ", rank.rank, " message ", done, " element ", j, " is ", data[done][j]);
    }
  double sum = rank.rank + 1; // between steps
  PP_TRY(transport.sum({&sum, 1}));
  if (sum != rank.ranks * (rank.ranks + 1) / 2)
    return internal("the sum between steps is ", sum);
  return transport.outstanding() == 0 ? Status() : internal("left over");
}

} // namespace pp::test

#endif // PP_TEST_UNIT_RUNTIMEPATTERN_H
