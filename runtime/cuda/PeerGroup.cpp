// Puts pieces of collectives into windows of the device's memory, and reads those of the other members.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/PeerGroup.h"
#include <algorithm>
#include <cstdlib>

namespace pp {
namespace {

constexpr int64_t lineBytes = 64, mostWindowBytes = int64_t(32) << 20, wordsOfMember = 3;

int64_t roundUp(int64_t bytes) { return (bytes + lineBytes - 1) / lineBytes * lineBytes; }

/// Bytes of a window for each member: enough for its share of the largest message, where the window may be so large.
int64_t slotFor(size_t members, int64_t bytes) {
  const char *given = getenv("PP_COPY_WINDOW");
  const int64_t most = given ? atoll(given) : mostWindowBytes, n = int64_t(members);
  return std::max(lineBytes, std::min(roundUp((bytes + n - 1) / n), most / n / lineBytes * lineBytes));
}

int64_t wordBytes(size_t members) { return roundUp(int64_t(members) * wordsOfMember * int64_t(sizeof(uint32_t))); }

/// The block in parts of at most so many bytes.
std::vector<Block> parts(const Block &block, int64_t most) {
  std::vector<Block> made;
  const int64_t rows = std::max<int64_t>(1, most / std::max<int64_t>(1, block.bytes));
  for (int64_t row = 0; row < block.rows; row += rows)
    for (int64_t byte = 0; byte < block.bytes; byte += most) {
      Block part = block;
      part.rows = std::min(rows, block.rows - row);
      part.bytes = std::min(most, block.bytes - byte);
      part.give += row * block.giveStride + byte;
      part.take += row * block.takeStride + byte;
      made.push_back(part);
    }
  return made;
}

} // namespace

PeerGroup::PeerGroup(Driver &driver, PeerCopies &peers, const std::vector<int32_t> &members, size_t own, int64_t bytes)
    : driver(driver), peers(peers), members(members), own(own), slotBytes(slotFor(members.size(), bytes)),
      group(members.size()) {}

int64_t PeerGroup::roomFor(size_t members, int64_t bytes) {
  return wordBytes(members) + int64_t(members) * slotFor(members, bytes);
}

int64_t PeerGroup::windowBytes() const { return slotBytes * int64_t(members.size()); }

Status PeerGroup::connect() {
  struct Place {
    int64_t words, slotBytes;
  } mine = {peers.take(wordBytes(members.size()) + windowBytes()), slotBytes};
  if (mine.words < 0)
    return internal("the windows of this rank's groups need more memory than they have");
  for (size_t k = 0; k < members.size(); ++k) {
    Place its = mine;
    if (k != own)
      PP_TRY(peers.swap(members[k], &mine, &its, sizeof mine));
    if (its.slotBytes != slotBytes)
      return refused("ranks ", members[own], " and ", members[k], " have windows of ", slotBytes, " and ",
                     its.slotBytes, " bytes for each other: start all with one PP_COPY_WINDOW");
    char *block = peers.blockOf(members[k]);
    group[k] = {reinterpret_cast<uint32_t *>(block + its.words), block + its.words + wordBytes(members.size())};
  }
  return {};
}

Status PeerGroup::handshake(Word word) {
  for (size_t k = 0; k < members.size(); ++k)
    if (k != own)
      PP_TRY(driver.copy(stream, group[k].words + int64_t(own) * wordsOfMember + word, peers.one(), sizeof(uint32_t)));
  for (size_t k = 0; k < members.size(); ++k)
    if (k != own)
      PP_TRY(driver.await(stream, group[own].words + int64_t(k) * wordsOfMember + word, nullptr, 0));
  return {};
}

/// Of each member the pieces that it gives to all (gathers and broadcasts), or that it adds up.
std::vector<std::vector<PeerGroup::Piece>> PeerGroup::piecesOf(const MessageSpec &message, int64_t most) const {
  std::vector<std::vector<Piece>> pieces(members.size());
  auto cut = [&](size_t member, ShardRange range) {
    for (int64_t done = 0; done < range.bytes; done += most)
      pieces[member].push_back({range.whole + done, range.shard + done, std::min(most, range.bytes - done)});
  };
  const auto element = int64_t(elementBytes(message.type));
  for (size_t k = 0; k < members.size(); ++k)
    if (message.isSharded()) {
      for (ShardRange range : message.ranges(k))
        cut(k, range);
    } else if (message.kind == MessageSpec::Kind::AllReduce) {
      const auto n = int64_t(members.size()), begin = message.count * int64_t(k) / n * element;
      cut(k, {begin, begin, message.count * (int64_t(k) + 1) / n * element - begin});
    } else if (k == message.memberOf(message.root)) {
      cut(k, {0, 0, message.bytes});
    }
  return pieces;
}

static size_t mostOf(const auto &lists) {
  size_t most = 0;
  for (const auto &list : lists)
    most = std::max(most, list.size());
  return most;
}

Status PeerGroup::gather(const MessageSpec &message, char *data, char *shard) {
  const auto pieces = piecesOf(message, windowBytes());
  for (size_t i = 0; i < mostOf(pieces); ++i) {
    if (i < pieces[own].size()) {
      const Piece &piece = pieces[own][i];
      char *from = shard + piece.owned, *to = data + piece.whole;
      PP_TRY(driver.copy(stream, group[own].window, from, size_t(piece.bytes)));
      if (from != to)
        PP_TRY(driver.copy(stream, to, from, size_t(piece.bytes)));
    }
    PP_TRY(handshake(Ready));
    for (size_t k = 0; k < members.size(); ++k)
      if (k != own && i < pieces[k].size())
        PP_TRY(driver.copy(stream, data + pieces[k][i].whole, group[k].window, size_t(pieces[k][i].bytes)));
    PP_TRY(handshake(Read));
  }
  return {};
}

Status PeerGroup::reduce(const MessageSpec &message, char *data, char *shard) {
  // A sum for one member alone has the whole window.
  const bool isForAll = message.kind == MessageSpec::Kind::AllReduce,
             isForOne = message.kind == MessageSpec::Kind::Reduce;
  const auto pieces = piecesOf(message, isForOne ? windowBytes() : slotBytes);
  auto place = [&](size_t member, size_t of) { return isForOne ? group[member].window : slot(member, of); };
  for (size_t i = 0; i < mostOf(pieces); ++i) {
    for (size_t k = 0; k < members.size(); ++k)
      if (k != own && i < pieces[k].size())
        PP_TRY(driver.copy(stream, place(own, k), data + pieces[k][i].whole, size_t(pieces[k][i].bytes)));
    PP_TRY(handshake(Ready));
    if (i < pieces[own].size()) {
      const Piece &piece = pieces[own][i];
      SumSpec sum;
      sum.type = message.type;
      sum.count = piece.bytes / int64_t(elementBytes(message.type));
      for (size_t k = 0; k < members.size(); ++k)
        sum.parts.push_back(k == own ? data + piece.whole : place(k, own));
      sum.sums = {shard + piece.owned};
      if (isForAll)
        sum.sums.push_back(slot(own, own));
      PP_TRY(driver.sum(stream, sum));
    }
    if (isForAll) {
      PP_TRY(handshake(Summed));
      for (size_t k = 0; k < members.size(); ++k)
        if (k != own && i < pieces[k].size())
          PP_TRY(driver.copy(stream, data + pieces[k][i].whole, slot(k, k), size_t(pieces[k][i].bytes)));
    }
    PP_TRY(handshake(Read));
  }
  return {};
}

Status PeerGroup::exchange(const MessageSpec &message, char *data, char *shard) {
  std::vector<std::vector<Block>> given(members.size()), taken(members.size());
  for (size_t k = 0; k < members.size(); ++k)
    for (int64_t i = 0; i < message.blocks(); ++i) {
      const Block gives = message.block(own, k, i), takes = message.block(k, own, i);
      if (k == own) {
        PP_TRY(driver.copyRows(stream, {data + takes.take, shard + takes.give, takes.takeStride, takes.giveStride,
                                        takes.rows, takes.bytes}));
        continue;
      }
      for (const Block &part : parts(gives, slotBytes))
        given[k].push_back(part);
      for (const Block &part : parts(takes, slotBytes))
        taken[k].push_back(part);
    }
  for (size_t i = 0; i < std::max(mostOf(given), mostOf(taken)); ++i) {
    for (size_t k = 0; k < members.size(); ++k)
      if (i < given[k].size()) {
        const Block &its = given[k][i];
        PP_TRY(
            driver.copyRows(stream, {slot(own, k), shard + its.give, its.bytes, its.giveStride, its.rows, its.bytes}));
      }
    PP_TRY(handshake(Ready));
    for (size_t k = 0; k < members.size(); ++k)
      if (i < taken[k].size()) {
        const Block &its = taken[k][i];
        PP_TRY(
            driver.copyRows(stream, {data + its.take, slot(k, own), its.takeStride, its.bytes, its.rows, its.bytes}));
      }
    PP_TRY(handshake(Read));
  }
  return {};
}

Status PeerGroup::ask(Driver::Stream its, const MessageSpec &message, void *data, void *shard) {
  stream = its;
  char *whole = static_cast<char *>(data), *part = static_cast<char *>(shard);
  switch (message.kind) {
  case MessageSpec::Kind::AllToAll:
    return exchange(message, whole, part);
  case MessageSpec::Kind::AllGather:
    return gather(message, whole, part);
  case MessageSpec::Kind::Broadcast:
    return gather(message, whole, whole);
  case MessageSpec::Kind::ReduceScatter:
    return reduce(message, whole, part);
  case MessageSpec::Kind::AllReduce:
  case MessageSpec::Kind::Reduce:
    return reduce(message, whole, whole);
  case MessageSpec::Kind::Send:
  case MessageSpec::Kind::Receive:
    break;
  }
  return internal(describe(message), " is between two ranks");
}

} // namespace pp
