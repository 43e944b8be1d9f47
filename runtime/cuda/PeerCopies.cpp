// Opens the memory of the other GPUs of this machine, and writes messages into it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/PeerCopies.h"
#include "runtime/transport/Presence.h"
#include <algorithm>
#include <cstdlib>

namespace pp {

bool PeerCopies::mayServe(int32_t rank, int32_t other) {
  const char *wish = getenv("PP_COPY_ENGINES");
  const std::vector<int32_t> &machine = machines();
  const auto known = int32_t(machine.size());
  return !(wish && std::string_view(wish) == "off") && rank < known && other < known && machine[rank] == machine[other];
}

Status PeerCopies::begin(const RankProgram &its, int64_t room) {
  program = &its;
  const int64_t edges = std::count_if(its.messages.begin(), its.messages.end(), [](const MessageSpec &message) {
    return !message.isCollective() && !message.host;
  });
  if (edges + room == 0)
    return {};
  constexpr int64_t line = 64;
  taken = ((edges + 1) * int64_t(sizeof(uint32_t)) + line - 1) / line * line;
  blockBytes = taken + room;
  static const uint32_t isOne = 1;
  void *memory = nullptr;
  PP_TRY(driver.allocate(size_t(blockBytes), memory));
  words = static_cast<uint32_t *>(memory);
  PP_TRY(driver.copy(device.compute(), words, &isOne, sizeof isOne));
  PP_TRY(driver.finish());
  shares = driver.share(words, wordsHandle) && driver.share(const_cast<char *>(device.base()), arenaHandle);
  return {};
}

Status PeerCopies::swap(int32_t other, const void *mine, void *theirs, size_t bytes) {
  if (rank < other)
    PP_TRY(mpi.send(other, mine, bytes));
  PP_TRY(mpi.receive(other, theirs, bytes));
  return rank < other ? Status() : mpi.send(other, mine, bytes);
}

int64_t PeerCopies::take(int64_t bytes) {
  const int64_t at = taken;
  taken += bytes;
  return taken <= blockBytes ? at : -1;
}

Status PeerCopies::meet(int32_t other, bool &served) {
  auto [found, isNew] = peers.try_emplace(other);
  Peer &peer = found->second;
  if (isNew) {
    struct Hello {
      int64_t shares;
      Driver::Handle arena, words;
    } mine = {shares && mayServe(rank, other), arenaHandle, wordsHandle}, theirs = {};
    PP_TRY(swap(other, &mine, &theirs, sizeof mine));
    void *arena = nullptr, *itsWords = nullptr;
    int64_t opened = mine.shares && theirs.shares && driver.openShared(theirs.arena, arena) &&
                     driver.openShared(theirs.words, itsWords);
    int64_t alsoThere = 0;
    PP_TRY(swap(other, &opened, &alsoThere, sizeof opened));
    peer = {opened && alsoThere, static_cast<char *>(arena), static_cast<uint32_t *>(itsWords)};
  }
  served = peer.served;
  return {};
}

Status PeerCopies::connect(int32_t other, const std::vector<int32_t> &messages) {
  std::vector<End> mine, theirs(messages.size());
  for (int32_t message : messages)
    mine.push_back({program->messages[message].offset, count++});
  PP_TRY(swap(other, mine.data(), theirs.data(), mine.size() * sizeof(End)));
  for (size_t i = 0; i < messages.size(); ++i)
    bounds[messages[i]] = {&peers[other], mine[i], theirs[i]};
  return {};
}

Status PeerCopies::ask(Driver::Stream stream, int32_t message, void *data) {
  const MessageSpec &spec = program->messages[message];
  const Bound &bound = bounds.at(message);
  const auto bytes = size_t(spec.bytes);
  if (data != device.base() + bound.own.offset)
    return internal(describe(spec), " lies ", static_cast<char *>(data) - device.base(), " bytes into the arena, and ",
                    bound.own.offset, " were said");
  uint32_t *mine = words + bound.own.word, *theirs = bound.peer->words + bound.other.word;
  if (spec.kind == MessageSpec::Kind::Receive) {
    PP_TRY(driver.copy(stream, theirs, words, sizeof *theirs));
    return driver.await(stream, mine, data, bytes);
  }
  PP_TRY(driver.await(stream, mine, nullptr, 0));
  PP_TRY(driver.copy(stream, bound.peer->arena + bound.other.offset, data, bytes));
  return driver.copy(stream, theirs, words, sizeof *theirs);
}

} // namespace pp
