// Checksums of messages: the k-th of a lane has the same number at both ends, so nothing need be said on the way.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/audit/AuditedTransport.h"
#include <map>

namespace pp {
namespace {

using Kind = MessageSpec::Kind;

uint64_t sumOf(const char *data, int64_t bytes) {
  WordSum sum;
  sum.add(data, size_t(bytes));
  return sum.value();
}

/// The checksum of a member's shard, which lies in the whole or alone.
uint64_t sumOfShard(const MessageSpec &message, size_t member, const char *data, bool isWhole) {
  WordSum sum;
  for (ShardRange range : message.ranges(member))
    sum.add(data + (isWhole ? range.whole : range.shard), size_t(range.bytes));
  return sum.value();
}

/// The checksum of the blocks that one member of an all_to_all gives another, at the giver or at the receiver.
uint64_t sumOfBlocks(const MessageSpec &message, size_t from, size_t to, const char *data, bool gives) {
  WordSum sum;
  for (int64_t i = 0; i < message.blocks(); ++i) {
    const Block block = message.block(from, to, i);
    const char *row = data + (gives ? block.give : block.take);
    for (int64_t left = block.rows; left > 0; --left, row += gives ? block.giveStride : block.takeStride)
      sum.add(row, size_t(block.bytes));
  }
  return sum.value();
}

} // namespace

AuditedTransport::AuditedTransport(Transport &inner, const RankProgram &program, Device &device, Ledger &ledger)
    : inner(inner), memory(device), device(program.device), ledger(ledger) {
  std::map<std::pair<uint64_t, bool>, size_t> lanes;
  for (const MessageSpec &message : program.messages) {
    const bool sends = message.kind == Kind::Send;
    AuditKey key;
    key.add(uint64_t(message.isCollective())).add(uint64_t(message.channel));
    if (message.isCollective())
      for (int32_t member : message.group)
        key.add(uint64_t(member));
    else
      key.add(uint64_t(sends ? this->device : message.peer)).add(uint64_t(sends ? message.peer : this->device));
    const size_t counter = lanes.try_emplace({key.value(), sends}, lanes.size()).first->second;
    bounds.push_back({&message, key.value(), counter});
  }
  counters.resize(lanes.size());
}

void AuditedTransport::begin() {
  std::fill(counters.begin(), counters.end(), 0);
  inner.audit(true);
}

/// Null if there is no such message; the transport reports that.
AuditedTransport::Bound *AuditedTransport::take(int32_t message, const void *data, const void *shard) {
  if (message < 0 || size_t(message) >= bounds.size())
    return nullptr;
  Bound &bound = bounds[size_t(message)];
  bound.number = counters[bound.counter]++;
  bound.data = data;
  bound.shard = shard;
  return &bound;
}

pp_status_t AuditedTransport::postSend(pp_rank_t &state, int32_t message, const void *data) {
  if (const Bound *bound = take(message, data, nullptr)) {
    const char *seen = nullptr;
    if (Status status = see(data, bound->message->bytes, seen); !status.ok())
      return state.fail(status.code(), status.message());
    add(*bound, {.number = message, .unit = state.unit}, 1, sumOf(seen, bound->message->bytes));
  }
  return inner.postSend(state, message, data);
}

pp_status_t AuditedTransport::postReceive(pp_rank_t &state, int32_t message, void *data) {
  take(message, data, nullptr);
  return inner.postReceive(state, message, data);
}

pp_status_t AuditedTransport::postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) {
  if (const Bound *bound = take(message, data, shard))
    if (Status status = give(*bound, {.kind = AuditEntry::Kind::Part, .number = message, .unit = state.unit});
        !status.ok())
      return state.fail(status.code(), status.message());
  return inner.postCollective(state, message, data, shard);
}

pp_status_t AuditedTransport::complete(pp_rank_t &state, int32_t message) {
  if (const pp_status_t code = inner.complete(state, message); code != PP_OK)
    return code;
  const Bound &bound = bounds[size_t(message)];
  if (bound.message->kind == Kind::Send)
    return PP_OK;
  AuditEntry entry{.number = message, .from = bound.message->peer, .unit = state.unit};
  if (bound.message->isCollective())
    entry.kind = AuditEntry::Kind::Part;
  const Status status = receive(bound, entry);
  return status.ok() ? PP_OK : state.fail(status.code(), status.message());
}

/// Before the post of a collective: what all get of this member.
Status AuditedTransport::give(const Bound &bound, AuditEntry entry) {
  const MessageSpec &message = *bound.message;
  const size_t own = message.memberOf(device), members = message.group.size();
  const char *seen = nullptr;
  if (message.kind == Kind::Broadcast && message.root == device) {
    PP_TRY(see(bound.data, message.bytes, seen));
    add(bound, entry, int64_t(members) - 1, sumOf(seen, message.bytes), own);
  }
  if (message.kind == Kind::AllGather) {
    PP_TRY(see(bound.shard, message.inPlace ? message.bytes : message.shardBytes(own), seen));
    add(bound, entry, int64_t(members), sumOfShard(message, own, seen, false), own);
  }
  if (message.kind == Kind::AllToAll) {
    PP_TRY(see(bound.shard, message.bytes, seen));
    for (size_t k = 0; k < members; ++k)
      add(bound, entry, 1, sumOfBlocks(message, own, k, seen, true), own, k);
  }
  return {};
}

/// After the complete of a message: notes what has come from all members, in a collective also from this one.
Status AuditedTransport::receive(const Bound &bound, AuditEntry entry) {
  const MessageSpec &message = *bound.message;
  const size_t own = message.memberOf(device), members = message.group.size();
  if (message.isCollective())
    addParts(bound, entry);
  if (message.kind == Kind::Reduce || message.kind == Kind::ReduceScatter ||
      (message.kind == Kind::Broadcast && message.root == device))
    return {}; // nobody else has what this one gets
  const char *seen = nullptr;
  PP_TRY(see(bound.data, message.bytes, seen));
  if (message.kind == Kind::Receive)
    add(bound, entry, -1, sumOf(seen, message.bytes));
  if (message.kind == Kind::Broadcast)
    add(bound, entry, -1, sumOf(seen, message.bytes), message.memberOf(message.root));
  for (size_t k = 0; k < members; ++k)
    if (message.kind == Kind::AllGather)
      add(bound, entry, -1, sumOfShard(message, k, seen, true), k);
    else if (message.kind == Kind::AllToAll)
      add(bound, entry, -1, sumOfBlocks(message, k, own, seen, false), k, own);
  entry.kind = AuditEntry::Kind::Sum;
  if (message.kind == Kind::AllReduce)
    add(bound, entry, own == 0 ? int64_t(members) - 1 : -1, sumOf(seen, message.bytes), members);
  return {};
}

/// The terms of a sum, where the transport brings them to who adds them.
void AuditedTransport::addParts(const Bound &bound, AuditEntry entry) {
  const SumParts *parts = inner.partsOf(entry.number);
  const size_t own = bound.message->memberOf(device), members = bound.message->group.size();
  for (size_t k = 0; parts && k < members; ++k) {
    if (k != own && parts->given[k])
      add(bound, entry, 1, parts->given[k]->value(), own, k);
    if (k != own && parts->taken[k])
      add(bound, entry, -1, parts->taken[k]->value(), k, own);
  }
}

void AuditedTransport::add(const Bound &bound, AuditEntry entry, int64_t share, uint64_t sum, size_t from, size_t to) {
  entry.key = AuditKey().add(bound.lane).add(bound.number).add(uint64_t(from)).add(uint64_t(to)).value();
  entry.share = int32_t(share);
  entry.sum = sum;
  if (entry.kind == AuditEntry::Kind::Part)
    entry.from = bound.message->group[from];
  ledger.add(entry);
}

} // namespace pp
