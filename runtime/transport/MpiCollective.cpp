// Collectives over MPI's own: communicators made at start, counts and scratch prepared, sums in the members' order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/transport/MpiCollective.h"
#include "runtime/transport/GroupSums.h"
#include <algorithm>
#include <climits>
#include <cstring>
#include <new>
#include <tuple>

namespace pp {

using Kind = MessageSpec::Kind;

std::string mpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

/// A type of so many bytes: blocks whose number fits an int, and what is left. It lives as long as MPI does.
static MPI_Datatype makeLongType(int64_t bytes) {
  int64_t block = std::min<int64_t>(int64_t(1) << 30, mostMpiCount);
  MPI_Datatype blocks = MPI_DATATYPE_NULL, types[2] = {MPI_DATATYPE_NULL, MPI_BYTE}, whole = MPI_DATATYPE_NULL;
  int lengths[2] = {1, int(bytes % block)};
  MPI_Aint places[2] = {0, MPI_Aint(bytes - bytes % block)};
  bool made = MPI_Type_contiguous(int(block), MPI_BYTE, &blocks) == MPI_SUCCESS &&
              MPI_Type_contiguous(int(bytes / block), blocks, &types[0]) == MPI_SUCCESS &&
              MPI_Type_create_struct(2, lengths, places, types, &whole) == MPI_SUCCESS &&
              MPI_Type_commit(&whole) == MPI_SUCCESS;
  if (types[0] != MPI_DATATYPE_NULL)
    MPI_Type_free(&types[0]);
  if (blocks != MPI_DATATYPE_NULL)
    MPI_Type_free(&blocks);
  return made ? whole : MPI_DATATYPE_NULL;
}

std::pair<int, MPI_Datatype> mpiSized(int64_t bytes) {
  bool words = bytes % 8 == 0;
  int64_t count = words ? bytes / 8 : bytes;
  if (count <= mostMpiCount)
    return {int(count), words ? MPI_INT64_T : MPI_BYTE};
  MPI_Datatype whole = makeLongType(bytes);
  return {whole == MPI_DATATYPE_NULL ? -1 : 1, whole};
}

int64_t mpiUnit(const std::vector<int64_t> &cuts, int64_t most) {
  int64_t bits = 0; // the largest power of 2 that divides all cuts divides their bits together
  for (int64_t at : cuts)
    bits |= at;
  int64_t widest = bits == 0 ? 4096 : std::min<int64_t>(bits & -bits, 4096), unit = widest >= 8 ? 8 : 1;
  most = std::max(most, cuts.back());
  if (most / unit > INT_MAX)
    unit = widest;
  return most / unit > INT_MAX ? 0 : unit;
}

char *SumScratch::take(int64_t bytes) {
  for (Block &block : blocks)
    if (!block.isTaken && block.bytes == bytes) {
      block.isTaken = true;
      return block.data.get();
    }
  for (size_t i = blocks.size(); i-- > 0 && planned >= 0 && held + bytes > planned;)
    if (!blocks[i].isTaken) {
      held -= blocks[i].bytes;
      blocks.erase(blocks.begin() + ptrdiff_t(i));
    }
  if (planned >= 0 && held + bytes > planned)
    return nullptr;
  std::unique_ptr<char[]> data(new (std::nothrow) char[size_t(bytes)]);
  if (!data)
    return nullptr;
  held += bytes;
  largest = std::max(largest, held);
  blocks.push_back({std::move(data), bytes, true});
  return blocks.back().data.get();
}

void SumScratch::giveBack(const char *data) {
  for (Block &block : blocks)
    if (block.data.get() == data)
      block.isTaken = false;
}

Status MpiGroups::make(const RankProgram &program) {
  for (const MessageSpec &message : program.messages)
    if (message.isCollective()) {
      auto [found, isNew] = comms.try_emplace(message.channel, message.group, MPI_COMM_NULL);
      if (!isNew && found->second.first != message.group)
        return internal(describe(message), " has channel ", message.channel, ", which is another group's");
    }
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  for (auto &[channel, made] : comms) {
    MPI_Group group = MPI_GROUP_NULL;
    int code = MPI_Group_incl(world, int(made.first.size()), made.first.data(), &group);
    if (code == MPI_SUCCESS)
      code = MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &made.second);
    if (code != MPI_SUCCESS)
      return internal("MPI_Comm_create_group for channel ", channel, ": ", mpiErrorText(code));
    MPI_Comm_set_errhandler(made.second, MPI_ERRORS_RETURN);
    MPI_Group_free(&group);
  }
  MPI_Group_free(&world);
  return {};
}

/// A whole that is cut at `cuts`, round by round of its members, as one run for each member.
static std::vector<MpiCollective::Round> roundsOf(const std::vector<int64_t> &cuts, size_t members,
                                                  bool zigzag = false) {
  std::vector<MpiCollective::Round> rounds;
  for (size_t first = 0; first + 1 < cuts.size(); first += members) {
    rounds.emplace_back();
    for (size_t k = first; k < first + members; ++k)
      rounds.back().push_back({cuts[k], cuts[k + 1] - cuts[k]});
    if (zigzag && rounds.size() % 2 == 0)
      std::reverse(rounds.back().begin(), rounds.back().end());
  }
  return rounds;
}

/// The same in rounds whose runs are no longer than scratch for two of them allows.
static std::vector<MpiCollective::Round> shortened(const std::vector<MpiCollective::Round> &rounds, size_t members) {
  constexpr int64_t line = 64; // of a cache
  const int64_t most = std::max(mostMpiScratch / int64_t(2 * members) / line * line, line);
  std::vector<MpiCollective::Round> all;
  for (const MpiCollective::Round &round : rounds) {
    int64_t longest = 0;
    for (const MpiCollective::Run &run : round)
      longest = std::max(longest, run.bytes);
    for (int64_t done = 0; done == 0 || done < longest; done += most) {
      all.emplace_back();
      for (const MpiCollective::Run &run : round)
        all.back().push_back({run.begin + std::min(done, run.bytes), std::clamp<int64_t>(run.bytes - done, 0, most)});
    }
  }
  return all;
}

/// The cuts of a sum for all members: at the same elements for each member.
static std::vector<int64_t> evenCuts(const MessageSpec &message) {
  const auto members = int64_t(message.group.size());
  constexpr int64_t line = 64; // of a cache
  const int64_t share = ((message.bytes + members - 1) / members + line - 1) / line * line;
  std::vector<int64_t> cuts = {0};
  while (int64_t(cuts.size()) <= members)
    cuts.push_back(std::min(cuts.back() + share, message.bytes));
  return cuts;
}

Status MpiCollective::bindAllToAll() {
  const auto own = size_t(member), members = message->group.size();
  const int64_t each = message->bytes / int64_t(members) / message->blocks();
  const bool takesPacked = !message->toColumns && message->sequences > 0;
  PP_TRY(useUnit({each, message->bytes}, message->bytes));
  for (int64_t i = 0; i < message->blocks(); ++i) {
    Segment segment;
    for (size_t k = 0; k < members; ++k) {
      const int64_t packed = (i * int64_t(members) + int64_t(k)) * each;
      const Block given = message->block(own, k, i), taken = message->block(k, own, i);
      segment.counts.push_back(int(each / unit));
      segment.places.push_back(int((message->toColumns ? packed : given.give) / unit));
      segment.inPlaces.push_back(int((takesPacked ? packed : taken.take) / unit));
    }
    segment.inCounts = segment.counts;
    segments.push_back(std::move(segment));
  }
  partBytes = message->sequences > 0 ? message->bytes : 0;
  return {};
}

void MpiCollective::pack(bool gives) {
  const auto own = size_t(member);
  char *packed = parts;
  for (int64_t i = 0; i < message->blocks(); ++i)
    for (size_t k = 0; k < message->group.size(); ++k) {
      const Block block = gives ? message->block(own, k, i) : message->block(k, own, i);
      char *rows = static_cast<char *>(gives ? shard : data) + (gives ? block.give : block.take);
      for (int64_t row = 0; row < block.rows; ++row, packed += block.bytes)
        if (gives)
          memcpy(packed, rows + row * block.giveStride, size_t(block.bytes));
        else
          memcpy(rows + row * block.takeStride, packed, size_t(block.bytes));
    }
}

int MpiCollective::postAllToAll() {
  const bool packs = message->toColumns, takesPacked = !packs && message->sequences > 0;
  if (packs)
    pack(true);
  int code = MPI_SUCCESS;
  for (size_t i = 0; i < segments.size() && code == MPI_SUCCESS; ++i)
    code = MPI_Ialltoallv(packs ? parts : shard, segments[i].counts.data(), segments[i].places.data(), type,
                          takesPacked ? parts : data, segments[i].inCounts.data(), segments[i].inPlaces.data(), type,
                          comm, &requests[i]);
  return code;
}

Status MpiCollective::bind(const MessageSpec &spec, int32_t rank, MPI_Comm groupComm, bool isRendezvous) {
  message = &spec;
  comm = groupComm;
  rendezvous = isRendezvous;
  member = int(spec.memberOf(rank));
  root = int(spec.memberOf(spec.root));
  std::tie(count, type) = mpiSized(spec.bytes);
  int64_t members = int64_t(spec.group.size());
  if (count < 0 || int64_t(count) * members > INT_MAX) {
    type = makeLongType(spec.bytes);
    count = type == MPI_DATATYPE_NULL ? -1 : 1;
  }
  if (count < 0)
    return invalid(describe(spec), " is too long for MPI: ", spec.bytes, " bytes");
  int64_t each = spec.bytes, longest = 0;
  if (spec.kind == Kind::AllToAll) {
    PP_TRY(bindAllToAll());
  } else if (isInTurns()) {
    auto rounds =
        shortened(roundsOf(spec.isSharded() ? spec.cuts : evenCuts(spec), spec.group.size(), spec.zigzag), members);
    for (each = 0; const Round &round : rounds)
      for (const Run &run : round)
        each = std::max(each, run.bytes);
    PP_TRY(cut(rounds, each, each));
  } else if (spec.isSharded()) {
    each = spec.shardBytes(size_t(member));
    for (size_t k = 0; k < spec.group.size(); ++k)
      longest = std::max(longest, spec.shardBytes(k));
    PP_TRY(cut(roundsOf(spec.cuts, spec.group.size(), spec.zigzag), each, longest));
  }
  bool isRoot = member == root;
  if (spec.kind == Kind::ReduceScatter || spec.kind == Kind::AllReduce || (spec.kind == Kind::Reduce && isRoot)) {
    const int64_t turns = isInTurns() && segments.size() > 1 ? 2 : 1;
    partBytes = turns * each * members;
    sources.resize(size_t(turns * members));
  }
  requests.assign((isInTurns() ? 2 : std::max<size_t>(segments.size(), 1)) + rendezvous, MPI_REQUEST_NULL);
  return {};
}

Status MpiCollective::useUnit(const std::vector<int64_t> &places, int64_t most) {
  unit = mpiUnit(places, most);
  type = unit == 8 ? MPI_INT64_T : MPI_BYTE;
  if (unit > 8 &&
      (MPI_Type_contiguous(int(unit), MPI_BYTE, &type) != MPI_SUCCESS || MPI_Type_commit(&type) != MPI_SUCCESS))
    unit = 0;
  if (unit == 0)
    return invalid(describe(*message), " is too long for MPI: ", message->bytes, " bytes");
  return {};
}

Status MpiCollective::cut(const std::vector<Round> &rounds, int64_t mine, int64_t longest) {
  size_t members = message->group.size();
  int64_t shardPlace = 0;
  std::vector<int64_t> places;
  for (const Round &round : rounds)
    for (const Run &run : round)
      places.insert(places.end(), {run.begin, run.begin + run.bytes});
  PP_TRY(useUnit(places, longest * int64_t(members)));
  for (const Round &round : rounds) {
    Segment segment;
    const Run own = round[size_t(member)];
    for (size_t k = 0; k < members; ++k) {
      segment.counts.push_back(int(round[k].bytes / unit));
      segment.places.push_back(int(round[k].begin / unit));
      segment.inCounts.push_back(int(own.bytes / unit));
      segment.inPlaces.push_back(int((int64_t(k) * mine + (isInTurns() ? 0 : shardPlace)) / unit));
    }
    segment.ownPlace = message->isSharded() && !message->inPlace ? shardPlace : own.begin;
    segment.ownBytes = own.bytes;
    if (message->isSharded())
      shardPlace += own.bytes;
    segments.push_back(std::move(segment));
  }
  return {};
}

void MpiCollective::noteGiven() {
  audited->given.assign(message->group.size(), std::nullopt);
  audited->taken.assign(message->group.size(), std::nullopt);
  if (isInTurns() || (message->kind != Kind::AllReduce && message->kind != Kind::Reduce))
    return; // it is not given whole
  WordSum all;
  all.add(data, size_t(message->bytes));
  for (size_t k = 0; k < message->group.size(); ++k)
    if (int(k) != member && (message->kind == Kind::AllReduce || int(k) == root))
      audited->given[k] = all;
}

void MpiCollective::noteGiven(const Segment &segment) {
  for (size_t k = 0; k < message->group.size(); ++k) {
    if (!audited->given[k])
      audited->given[k].emplace();
    audited->given[k]->add(static_cast<const char *>(data) + int64_t(segment.places[k]) * unit,
                           size_t(segment.counts[k] * unit));
  }
}

void MpiCollective::noteTaken(std::span<const void *const> from, int64_t bytes) {
  for (size_t k = 0; k < from.size(); ++k) {
    if (!audited->taken[k])
      audited->taken[k].emplace();
    audited->taken[k]->add(from[k], size_t(bytes));
  }
}

int MpiCollective::postShares(size_t i, MPI_Request &request) {
  const Segment &segment = segments[i];
  if (audited)
    noteGiven(segment);
  const size_t turn = isInTurns() && i % 2 == 1 ? size_t(partBytes) / 2 : 0;
  return MPI_Ialltoallv(data, segment.counts.data(), segment.places.data(), type, parts + turn, segment.inCounts.data(),
                        segment.inPlaces.data(), type, comm, &request);
}

int MpiCollective::postShards() {
  int code = MPI_SUCCESS;
  for (size_t i = 0; i < segments.size() && code == MPI_SUCCESS; ++i) {
    const Segment &segment = segments[i];
    if (message->kind == Kind::AllGather && message->inPlace)
      code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, segment.counts.data(), segment.places.data(),
                             type, comm, &requests[i]);
    else if (message->kind == Kind::AllGather)
      code = MPI_Iallgatherv(static_cast<char *>(shard) + segment.ownPlace, segment.counts[size_t(member)], type, data,
                             segment.counts.data(), segment.places.data(), type, comm, &requests[i]);
    else
      code = postShares(i, requests[i]);
  }
  return code;
}

int MpiCollective::post(void *whole, void *own, SumScratch &sums) {
  data = whole;
  shard = own;
  scratch = &sums;
  parts = partBytes > 0 ? scratch->take(partBytes) : nullptr;
  if (partBytes > 0 && !parts)
    return MPI_ERR_NO_MEM;
  for (size_t k = 0; k < sources.size(); ++k)
    sources[k] = parts + int64_t(k) * (partBytes / int64_t(sources.size()));
  summed = 0;
  if (audited)
    noteGiven();
  int code = MPI_SUCCESS;
  switch (message->kind) {
  case Kind::Broadcast:
    code = MPI_Ibcast(data, count, type, root, comm, &requests[0]);
    break;
  case Kind::Reduce:
    code = MPI_Igather(data, count, type, parts, count, type, root, comm, &requests[0]);
    break;
  case Kind::AllReduce:
    code = isInTurns() ? postShares(0, requests[0])
                       : MPI_Iallgather(data, count, type, parts, count, type, comm, &requests[0]);
    break;
  case Kind::AllToAll:
    code = postAllToAll();
    break;
  default:
    code = isInTurns() ? postShares(0, requests[0]) : postShards();
  }
  return code == MPI_SUCCESS && rendezvous ? MPI_Ibarrier(comm, &requests.back()) : code;
}

bool MpiCollective::goesOn(int &code) {
  if (message->kind == Kind::AllToAll) {
    if (!message->toColumns && message->sequences > 0)
      pack(false);
    endSum();
  }
  if (sources.empty())
    return false;
  char *sum = static_cast<char *>(message->isSharded() ? shard : data);
  if (!isInTurns()) { // in place there is one segment
    const int64_t bytes = message->isSharded() ? message->shardBytes(size_t(member)) : message->bytes;
    if (audited)
      noteTaken(sources, bytes);
    sumMembers(message->type, sources, sum + (message->inPlace ? segments.front().ownPlace : 0), bytes);
    endSum();
    return false;
  }
  if (summed < segments.size()) {
    const Segment &segment = segments[summed];
    const size_t members = message->group.size();
    const std::span<const void *const> terms = std::span(sources).subspan(summed % 2 * members, members);
    if (audited)
      noteTaken(terms, segment.ownBytes);
    sumMembers(message->type, terms, sum + segment.ownPlace, segment.ownBytes);
    std::fill(requests.begin(), requests.end(), MPI_REQUEST_NULL);
    if (!message->isSharded())
      code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, segment.counts.data(), segment.places.data(),
                             type, comm, &requests[0]);
    if (++summed < segments.size() && code == MPI_SUCCESS)
      code = postShares(summed, requests[1]);
    if (summed < segments.size() || !message->isSharded())
      return true;
  }
  endSum();
  return false;
}

} // namespace pp
