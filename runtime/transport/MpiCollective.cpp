// Collectives over MPI's own: communicators made at start, counts and scratch prepared, sums in the members' order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/transport/MpiCollective.h"
#include "runtime/transport/GroupSums.h"
#include <algorithm>
#include <climits>
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

/// Where a sum in two phases is cut, at the same elements for all members, segment behind segment; no range is longer
/// than the first.
static std::vector<int64_t> evenCuts(const MessageSpec &message) {
  const auto members = int64_t(message.group.size());
  constexpr int64_t line = 64; // of a cache
  const int64_t even = ((message.bytes + members - 1) / members + line - 1) / line * line;
  const int64_t share = std::min(even, std::max(mostMpiScratch / (2 * members) / line * line, line));
  std::vector<int64_t> cuts = {0};
  while (cuts.back() < message.bytes || cuts.size() % size_t(members) != 1)
    cuts.push_back(std::min(cuts.back() + share, message.bytes));
  return cuts;
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
  if (spec.isSharded()) {
    each = spec.shardBytes(size_t(member));
    for (size_t k = 0; k < spec.group.size(); ++k)
      longest = std::max(longest, spec.shardBytes(k));
    PP_TRY(cut(spec.cuts, each, longest));
  } else if (isInTwoPhases()) {
    std::vector<int64_t> cuts = evenCuts(spec);
    each = cuts[1];
    PP_TRY(cut(cuts, each, each));
  }
  bool isRoot = member == root;
  if (spec.kind == Kind::ReduceScatter || spec.kind == Kind::AllReduce || (spec.kind == Kind::Reduce && isRoot)) {
    const int64_t turns = isInTwoPhases() && segments.size() > 1 ? 2 : 1;
    partBytes = turns * each * members;
    sources.resize(size_t(turns * members));
  }
  requests.assign((isInTwoPhases() ? 2 : std::max<size_t>(segments.size(), 1)) + rendezvous, MPI_REQUEST_NULL);
  return {};
}

/// One type for all segments, the same at all members: words where all of them are made of words.
Status MpiCollective::cut(const std::vector<int64_t> &cuts, int64_t mine, int64_t longest) {
  size_t members = message->group.size();
  int64_t shardPlace = 0;
  int64_t unit = mpiUnit(cuts, longest * int64_t(members));
  type = unit == 8 ? MPI_INT64_T : MPI_BYTE;
  if (unit > 8 &&
      (MPI_Type_contiguous(int(unit), MPI_BYTE, &type) != MPI_SUCCESS || MPI_Type_commit(&type) != MPI_SUCCESS))
    unit = 0;
  if (unit == 0)
    return invalid(describe(*message), " is too long for MPI: ", message->bytes, " bytes");
  for (size_t first = 0; first + 1 < cuts.size(); first += members) {
    Segment segment;
    int64_t own = cuts[first + size_t(member) + 1] - cuts[first + size_t(member)];
    for (size_t k = 0; k < members; ++k) {
      segment.counts.push_back(int((cuts[first + k + 1] - cuts[first + k]) / unit));
      segment.places.push_back(int(cuts[first + k] / unit));
      segment.inCounts.push_back(int(own / unit));
      segment.inPlaces.push_back(int((int64_t(k) * mine + shardPlace) / unit));
    }
    segment.ownPlace = message->isSharded() && !message->inPlace ? shardPlace : cuts[first + size_t(member)];
    segment.ownBytes = own;
    if (message->isSharded())
      shardPlace += own;
    segments.push_back(std::move(segment));
  }
  return {};
}

int MpiCollective::postShares(size_t i, MPI_Request &request) {
  const Segment &segment = segments[i];
  const size_t turn = isInTwoPhases() && i % 2 == 1 ? size_t(partBytes) / 2 : 0;
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
  int code = MPI_SUCCESS;
  switch (message->kind) {
  case Kind::Broadcast:
    code = MPI_Ibcast(data, count, type, root, comm, &requests[0]);
    break;
  case Kind::Reduce:
    code = MPI_Igather(data, count, type, parts, count, type, root, comm, &requests[0]);
    break;
  case Kind::AllReduce:
    summed = 0;
    if (isInTwoPhases())
      code = postShares(0, requests[0]);
    else
      code = MPI_Iallgather(data, count, type, parts, count, type, comm, &requests[0]);
    break;
  default:
    code = postShards();
  }
  return code == MPI_SUCCESS && rendezvous ? MPI_Ibarrier(comm, &requests.back()) : code;
}

bool MpiCollective::goesOn(int &code) {
  if (sources.empty())
    return false;
  if (!isInTwoPhases()) { // in place there is one segment
    char *sum = static_cast<char *>(message->isSharded() ? shard : data);
    sumMembers(message->type, sources, sum + (message->inPlace ? segments.front().ownPlace : 0),
               message->isSharded() ? message->shardBytes(size_t(member)) : message->bytes);
    endSum();
    return false;
  }
  if (summed == segments.size()) {
    endSum();
    return false;
  }
  const Segment &segment = segments[summed];
  const size_t members = message->group.size();
  sumMembers(message->type, std::span(sources).subspan(summed % 2 * members, members),
             static_cast<char *>(data) + segment.ownPlace, segment.ownBytes);
  std::fill(requests.begin(), requests.end(), MPI_REQUEST_NULL);
  code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, segment.counts.data(), segment.places.data(), type,
                         comm, &requests[0]);
  if (++summed < segments.size() && code == MPI_SUCCESS)
    code = postShares(summed, requests[1]);
  return true;
}

} // namespace pp
