// Messages and collectives between threads that meet: whoever comes last copies or sums; a standstill is found exactly.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/transport/Meeting.h"
#include "runtime/transport/GroupSums.h"
#include <algorithm>
#include <chrono>
#include <cstring>

namespace pp {
namespace {

/// Every shard gets its range of the sum: one run of the whole, or several.
void sumShards(const Meeting::Joint &joint, const MessageSpec &message) {
  std::vector<const void *> sources(joint.data.size());
  for (size_t owner = 0; owner < joint.shards.size(); ++owner) {
    for (ShardRange range : message.ranges(owner)) {
      for (size_t member = 0; member < sources.size(); ++member)
        sources[member] = static_cast<const char *>(joint.data[member]) + range.whole;
      sumMembers(message.type, sources, static_cast<char *>(joint.shards[owner]) + range.shard, range.bytes);
    }
  }
}

void gather(const Meeting::Joint &joint, const MessageSpec &message) {
  for (void *whole : joint.data)
    for (size_t owner = 0; owner < joint.shards.size(); ++owner)
      for (ShardRange range : message.ranges(owner))
        if (whole != joint.shards[owner]) // else it lies there
          memcpy(static_cast<char *>(whole) + range.whole, static_cast<const char *>(joint.shards[owner]) + range.shard,
                 size_t(range.bytes));
}

/// Every member gets a part of what each has.
void exchange(const Meeting::Joint &joint, const MessageSpec &message) {
  for (size_t from = 0; from < joint.data.size(); ++from)
    for (size_t to = 0; to < joint.data.size(); ++to)
      for (int64_t i = 0; i < message.blocks(); ++i) {
        const Block block = message.block(from, to, i);
        const char *source = static_cast<const char *>(joint.shards[from]) + block.give;
        char *target = static_cast<char *>(joint.data[to]) + block.take;
        for (int64_t row = 0; row < block.rows; ++row)
          memcpy(target + row * block.takeStride, source + row * block.giveStride, size_t(block.bytes));
      }
}

/// The sum goes to `root`, or to all members where that is -1.
void sum(const Meeting::Joint &joint, const MessageSpec &message, int64_t root) {
  std::vector<const void *> sources(joint.data.begin(), joint.data.end());
  void *first = joint.data[root < 0 ? 0 : size_t(root)];
  sumMembers(message.type, sources, first, message.bytes);
  for (void *other : joint.data)
    if (root < 0 && other != first)
      memcpy(other, first, size_t(message.bytes));
}

/// All members mean the same collective. Otherwise one would write behind what another has room for.
Status checkJoint(const std::vector<int32_t> &group, const Meeting::Joint &joint) {
  const MessageSpec &first = *joint.messages.front();
  for (size_t member = 1; member < group.size(); ++member) {
    const MessageSpec &other = *joint.messages[member];
    if (!isSameCollective(first, other))
      return internal("rank ", group[0], " joins ", describe(first), ", ", first.bytes, " bytes, but rank ",
                      group[member], " joins ", describe(other), ", ", other.bytes, " bytes");
  }
  return {};
}

/// Carries a collective out, once all members are there. `root` is a place in the group, -1 without one.
void carryOut(const Meeting::Joint &joint, const MessageSpec &message, int64_t root) {
  const std::vector<void *> &data = joint.data;
  if (message.kind == MessageSpec::Kind::AllGather) {
    gather(joint, message);
  } else if (message.kind == MessageSpec::Kind::ReduceScatter) {
    sumShards(joint, message);
  } else if (message.kind == MessageSpec::Kind::AllToAll) {
    exchange(joint, message);
  } else if (message.kind == MessageSpec::Kind::Broadcast) {
    for (size_t member = 0; member < data.size(); ++member)
      if (int64_t(member) != root)
        memcpy(data[member], data[root], message.bytes);
  } else {
    sum(joint, message, root);
  }
}

} // namespace

void Meeting::finish(Ticket &ticket) {
  if (options.delaySeconds > 0)
    ticket.since = std::chrono::steady_clock::now();
  ticket.done.store(true, std::memory_order_release);
  Place &place = places[ticket.rank];
  if (place.waitsFor == &ticket) {
    place.waitsFor = nullptr;
    --waiting;
  }
}

void Meeting::breakOff(int32_t rank, Status status) {
  if (failure.ok()) {
    failure = std::move(status);
    failedRank = rank;
  }
  broken.store(true, std::memory_order_release);
  for (Place &place : places)
    place.wake.notify_all();
}

void Meeting::checkStandstill(int32_t rank) {
  if (waiting == 0 || waiting + ended < ranks || broken)
    return;
  std::vector<const Standing *> all;
  for (const Place &place : places)
    all.push_back(&place);
  breakOff(rank, deadlockIn(step.load(), all));
}

Status Meeting::postSend(std::unique_lock<std::mutex> &lock, Lane &lane, Ticket &ticket, const void *data,
                         size_t bytes) {
  Slot &slot = lane.ring[lane.sends++ % lane.ring.size()];
  slot.source = data;
  slot.sent = bytes;
  slot.sender = &ticket;
  slot.from = ticket.rank;
  ticket.done.store(false, std::memory_order_relaxed);
  if (slot.target)
    return meet(lock, lane, slot);
  if (bytes <= lane.buffer.size() && !lane.bufferTaken) {
    memcpy(lane.buffer.data(), data, bytes);
    lane.bufferTaken = slot.buffered = true;
    slot.source = lane.buffer.data();
    finish(ticket);
  }
  return {};
}

Status Meeting::postReceive(std::unique_lock<std::mutex> &lock, Lane &lane, Ticket &ticket, void *data, size_t bytes) {
  Slot &slot = lane.ring[lane.receives++ % lane.ring.size()];
  slot.target = data;
  slot.expected = bytes;
  slot.receiver = &ticket;
  slot.to = ticket.rank;
  ticket.done.store(false, std::memory_order_relaxed);
  return slot.source ? meet(lock, lane, slot) : Status();
}

Status Meeting::meet(std::unique_lock<std::mutex> &lock, Lane &lane, Slot &slot) {
  if (slot.sent != slot.expected)
    return internal("a message of ", slot.sent, " bytes from rank ", slot.from, " met a receive of ", slot.expected,
                    " bytes on rank ", slot.to);
  lock.unlock();
  memcpy(slot.target, slot.source, slot.sent);
  lock.lock();
  int32_t from = slot.from, to = slot.to;
  if (slot.buffered)
    lane.bufferTaken = false; // its send is long done
  else
    finish(*slot.sender);
  finish(*slot.receiver);
  slot = Slot();
  lock.unlock();
  wake(from);
  wake(to);
  return {};
}

Status Meeting::postJoint(std::unique_lock<std::mutex> &lock, JointLane &lane, size_t member, Ticket &ticket,
                          void *data, void *shard, const MessageSpec &message) {
  Joint &joint = lane.ring[lane.posts[member]++ % lane.ring.size()];
  joint.data[member] = data;
  joint.shards[member] = shard;
  joint.tickets[member] = &ticket;
  joint.messages[member] = &message;
  ticket.done.store(false, std::memory_order_relaxed);
  if (++joint.arrived < joint.data.size())
    return {};
  PP_TRY(checkJoint(lane.group, joint));
  lock.unlock();
  auto root = std::find(lane.group.begin(), lane.group.end(), message.root);
  carryOut(joint, message, root == lane.group.end() ? -1 : root - lane.group.begin());
  lock.lock();
  joint.arrived = 0;
  for (Ticket *each : joint.tickets)
    finish(*each);
  lock.unlock();
  for (int32_t other : lane.group)
    wake(other);
  return {};
}

Meeting::JointLane &Meeting::jointLane(const std::vector<int32_t> &group, int32_t channel) {
  JointLane &lane = joints[{group, channel}];
  if (lane.group.empty()) {
    lane.group = group;
    lane.posts.resize(group.size());
    lane.perStep.resize(group.size());
  }
  return lane;
}

pp_status_t Meeting::wait(std::unique_lock<std::mutex> &lock, int32_t rank, Ticket &ticket,
                          const MessageSpec *message) {
  if (!lock.owns_lock())
    lock.lock();
  if (ticket.done)
    return PP_OK;
  Place &place = places[rank];
  place.waitsFor = &ticket;
  place.message = message;
  ++waiting;
  checkStandstill(rank);
  auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.timeoutSeconds);
  while (!ticket.done && !broken)
    if (place.wake.wait_until(lock, std::chrono::time_point_cast<std::chrono::steady_clock::duration>(deadline)) ==
            std::cv_status::timeout &&
        !ticket.done && !broken)
      breakOff(rank, {PP_PEER, text(describe(place, rank), ", overdue after ", options.timeoutSeconds, " s")});
  if (place.waitsFor) {
    place.waitsFor = nullptr;
    --waiting;
  }
  return ticket.done ? PP_OK : PP_PEER;
}

std::string describe(const Standing &standing, int32_t rank) {
  const std::string name =
      standing.program && !standing.program->name.empty() ? standing.program->name : text("rank ", rank);
  if (standing.ended)
    return name + " has ended";
  if (!standing.message)
    return name + " waits between steps";
  bool known = standing.unit >= 0 && standing.program && standing.unit < int32_t(standing.program->units.size());
  const char *where = standing.message->inside ? " in " : " after ";
  return text(name, known ? where + describe(standing.program->units[standing.unit]) : std::string(), " waits for ",
              describe(*standing.message));
}

Status deadlockIn(int64_t step, std::span<const Standing *const> ranks) {
  std::string story = text("deadlock in step ", step, ": ");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == 8 && ranks.size() > 9) {
      story += text("; and ", ranks.size() - rank, " more ranks");
      break;
    }
    story += (rank ? "; " : "") + describe(*ranks[rank], int32_t(rank));
  }
  return {PP_PEER, story};
}

} // namespace pp
