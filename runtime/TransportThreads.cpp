// Messages between ranks that are threads of one process: whoever posts second copies; a standstill is found exactly.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One mutex guards who has posted what; copies and sums run outside it, between two posted messages that nobody else
// may touch. A rank that waits is counted; when every rank that has not ended waits, nothing can move any more, and the
// rank that closed the ring reports where each one stands.
#include "runtime/GroupSums.h"
#include "runtime/Transport.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

namespace pp {
namespace {

/// One posted message as its own rank sees it.
struct Ticket {
  std::atomic<bool> done = true;
  int32_t rank = 0;
};

/// A send and a receive that meet.
struct Slot {
  const void *source = nullptr;
  void *target = nullptr;
  size_t sent = 0, expected = 0;
  Ticket *sender = nullptr, *receiver = nullptr; ///< gone as soon as they are done
  int32_t from = 0, to = 0;
  bool buffered = false;
};

/// An ordered lane from one rank to another: the k-th send meets the k-th receive. The ring is one longer than a step
/// needs, because a buffered send may be done before its receive is posted.
struct Lane {
  std::vector<Slot> ring;
  uint64_t sends = 0, receives = 0;              ///< posted so far
  int64_t sendsPerStep = 0, receivesPerStep = 0; ///< as the two programs say
  std::vector<char> buffer;
  bool bufferTaken = false;
};

/// One collective of a group that members arrive at.
struct Joint {
  std::vector<void *> data, shards;
  std::vector<Ticket *> tickets;
  size_t arrived = 0;
};

/// The collectives of one group on one channel, in the order every member posts them.
struct JointLane {
  std::vector<int32_t> group;
  std::vector<Joint> ring;
  std::vector<uint64_t> posts;
  std::vector<int64_t> perStep; ///< by member
};

/// Every shard gets its range of the sum: one run of the whole, or several.
void sumShards(const Joint &joint, const MessageSpec &message) {
  std::vector<const void *> sources(joint.data.size());
  for (size_t owner = 0; owner < joint.shards.size(); ++owner) {
    for (ShardPiece piece : message.pieces(owner)) {
      for (size_t member = 0; member < sources.size(); ++member)
        sources[member] = static_cast<const char *>(joint.data[member]) + piece.whole;
      sumMembers(message.type, sources, static_cast<char *>(joint.shards[owner]) + piece.shard, piece.bytes);
    }
  }
}

void gather(const Joint &joint, const MessageSpec &message) {
  for (void *whole : joint.data)
    for (size_t owner = 0; owner < joint.shards.size(); ++owner)
      for (ShardPiece piece : message.pieces(owner))
        memcpy(static_cast<char *>(whole) + piece.whole, static_cast<const char *>(joint.shards[owner]) + piece.shard,
               size_t(piece.bytes));
}

/// The sum goes to `root`, or to all members where that is -1.
void sum(const Joint &joint, const MessageSpec &message, int64_t root) {
  std::vector<const void *> sources(joint.data.begin(), joint.data.end());
  void *first = joint.data[root < 0 ? 0 : size_t(root)];
  sumMembers(message.type, sources, first, message.bytes);
  for (void *other : joint.data)
    if (root < 0 && other != first)
      memcpy(other, first, size_t(message.bytes));
}

/// Carries a collective out, once all members are there. `root` is a place in the group, -1 without one.
void carryOut(const Joint &joint, const MessageSpec &message, int64_t root) {
  const std::vector<void *> &data = joint.data;
  if (message.kind == MessageSpec::Kind::AllGather) {
    gather(joint, message);
  } else if (message.kind == MessageSpec::Kind::ReduceScatter) {
    sumShards(joint, message);
  } else if (message.kind == MessageSpec::Kind::Broadcast) {
    for (size_t member = 0; member < data.size(); ++member)
      if (int64_t(member) != root)
        memcpy(data[member], data[root], message.bytes);
  } else {
    sum(joint, message, root);
  }
}

} // namespace

class Meeting {
public:
  Meeting(int32_t ranks, TransportOptions options) : ranks(ranks), options(options), places(ranks) {}

  struct Place : Standing {
    std::condition_variable wake;
    Ticket *waitsFor = nullptr;
  };

  std::mutex mutex;
  int32_t ranks;
  TransportOptions options;
  std::vector<Place> places;
  std::map<std::tuple<int32_t, int32_t, int32_t>, Lane> lanes;
  std::map<std::pair<int32_t, int32_t>, Lane> asides; ///< between steps
  std::map<std::pair<std::vector<int32_t>, int32_t>, JointLane> joints;
  std::atomic<bool> broken = false;
  Status failure;
  int32_t failedRank = -1;
  int32_t waiting = 0, ended = 0;
  std::atomic<int64_t> step = 0;

  // The functions below are called with the mutex held. A rank is woken only after it has been given back: the woken
  // one may take the core at once, and would find the mutex held by the one it has put to sleep.

  void finish(Ticket &ticket) {
    ticket.done.store(true, std::memory_order_release);
    Place &place = places[ticket.rank];
    if (place.waitsFor == &ticket) {
      place.waitsFor = nullptr;
      --waiting;
    }
  }

  void wake(int32_t rank) { places[rank].wake.notify_one(); }

  void breakOff(int32_t rank, Status status) {
    if (failure.ok()) {
      failure = std::move(status);
      failedRank = rank;
    }
    broken.store(true, std::memory_order_release);
    for (Place &place : places)
      place.wake.notify_all();
  }

  /// Reports a standstill if every rank that has not ended waits.
  void checkStandstill(int32_t rank) {
    if (waiting == 0 || waiting + ended < ranks || broken)
      return;
    std::vector<const Standing *> all;
    for (const Place &place : places)
      all.push_back(&place);
    breakOff(rank, deadlockIn(step.load(), all));
  }

  /// Posts one end of a message; copies if the other end is there, and then has given the mutex back.
  Status postSend(std::unique_lock<std::mutex> &lock, Lane &lane, Ticket &ticket, const void *data, size_t bytes) {
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

  Status postReceive(std::unique_lock<std::mutex> &lock, Lane &lane, Ticket &ticket, void *data, size_t bytes) {
    Slot &slot = lane.ring[lane.receives++ % lane.ring.size()];
    slot.target = data;
    slot.expected = bytes;
    slot.receiver = &ticket;
    slot.to = ticket.rank;
    ticket.done.store(false, std::memory_order_relaxed);
    return slot.source ? meet(lock, lane, slot) : Status();
  }

  Status meet(std::unique_lock<std::mutex> &lock, Lane &lane, Slot &slot) {
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

  void postJoint(std::unique_lock<std::mutex> &lock, JointLane &lane, size_t member, Ticket &ticket, void *data,
                 void *shard, const MessageSpec &message) {
    Joint &joint = lane.ring[lane.posts[member]++ % lane.ring.size()];
    joint.data[member] = data;
    joint.shards[member] = shard;
    joint.tickets[member] = &ticket;
    ticket.done.store(false, std::memory_order_relaxed);
    if (++joint.arrived < joint.data.size())
      return;
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
  }

  JointLane &jointLane(const std::vector<int32_t> &group, int32_t channel) {
    JointLane &lane = joints[{group, channel}];
    if (lane.group.empty()) {
      lane.group = group;
      lane.posts.resize(group.size());
      lane.perStep.resize(group.size());
    }
    return lane;
  }

  /// Blocks until the ticket is done, the run breaks, or the time is over.
  pp_status_t wait(std::unique_lock<std::mutex> &lock, int32_t rank, Ticket &ticket, const MessageSpec *message) {
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
};

namespace {

class ThreadTransport final : public Transport {
public:
  ThreadTransport(std::shared_ptr<Meeting> meeting, int32_t rank) : meeting(std::move(meeting)), rank(rank) {
    aside.rank = rank;
    spins = std::thread::hardware_concurrency() > unsigned(this->meeting->ranks) ? 2000 : 0;
  }

  Status prepare(const RankProgram &program) override;
  pp_status_t postSend(pp_rank_t &state, int32_t message, const void *data) override;
  pp_status_t postReceive(pp_rank_t &state, int32_t message, void *data) override;
  pp_status_t postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) override;
  pp_status_t complete(pp_rank_t &state, int32_t message) override;
  int64_t outstanding() const override { return posted; }
  Status send(int32_t to, const void *data, size_t bytes) override;
  Status receive(int32_t from, void *data, size_t bytes) override;
  Status sum(std::span<double> values) override;
  Status agree(const Status &mine, int32_t &failed, pp_status_t &code) override;
  void markStep(int64_t step) override { meeting->step.store(step, std::memory_order_relaxed); }
  double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  std::string_view name() const override { return "threads"; }

private:
  struct Bound {
    const MessageSpec *message = nullptr;
    Lane *lane = nullptr;
    JointLane *joint = nullptr;
    size_t member = 0;
    Ticket ticket;
  };

  Bound *bound(pp_rank_t &state, int32_t message, bool (*fits)(const MessageSpec &));
  void bind(Bound &bound, const MessageSpec &message);
  Status checkLanes() const;
  Status peerFailed() { return {PP_PEER, "another rank failed"}; }

  std::shared_ptr<Meeting> meeting;
  int32_t rank;
  int spins;
  std::unique_ptr<Bound[]> bounds;
  size_t boundCount = 0;
  int64_t posted = 0;
  Ticket aside;
};

void ThreadTransport::bind(Bound &bound, const MessageSpec &message) {
  bound.message = &message;
  bound.ticket.rank = rank;
  if (message.isCollective()) {
    bound.joint = &meeting->jointLane(message.group, message.channel);
    while (message.group[bound.member] != rank)
      ++bound.member;
    ++bound.joint->perStep[bound.member];
    size_t members = message.group.size();
    bound.joint->ring.push_back(
        {std::vector<void *>(members), std::vector<void *>(members), std::vector<Ticket *>(members)});
    return;
  }
  bool sends = message.kind == MessageSpec::Kind::Send;
  bound.lane = &meeting->lanes[{sends ? rank : message.peer, sends ? message.peer : rank, message.channel}];
  Lane &lane = *bound.lane;
  ++(sends ? lane.sendsPerStep : lane.receivesPerStep);
  lane.ring.resize(std::max(lane.sendsPerStep, lane.receivesPerStep) + 1);
  if (sends && meeting->options.sends == Sends::Buffered && lane.buffer.size() < size_t(message.bytes))
    lane.buffer.resize(message.bytes);
}

Status ThreadTransport::prepare(const RankProgram &program) {
  boundCount = program.messages.size();
  bounds = std::make_unique<Bound[]>(boundCount);
  {
    std::lock_guard lock(meeting->mutex);
    meeting->places[rank].program = &program;
    for (size_t i = 0; i < boundCount; ++i)
      bind(bounds[i], program.messages[i]);
  }
  PP_TRY(sum({}));
  std::lock_guard lock(meeting->mutex);
  return checkLanes();
}

Status ThreadTransport::checkLanes() const {
  for (const auto &[key, lane] : meeting->lanes)
    if (lane.sendsPerStep != lane.receivesPerStep)
      return internal("rank ", std::get<0>(key), " sends ", lane.sendsPerStep, " messages a step on channel ",
                      std::get<2>(key), " and rank ", std::get<1>(key), " receives ", lane.receivesPerStep);
  for (const auto &[key, lane] : meeting->joints)
    for (size_t member = 1; member < lane.group.size(); ++member)
      if (lane.perStep[member] != lane.perStep[0])
        return internal("ranks ", lane.group[0], " and ", lane.group[member], " join ", lane.perStep[0], " and ",
                        lane.perStep[member], " collectives a step on channel ", key.second);
  return {};
}

ThreadTransport::Bound *ThreadTransport::bound(pp_rank_t &state, int32_t message, bool (*fits)(const MessageSpec &)) {
  if (message < 0 || size_t(message) >= boundCount || !fits(*bounds[message].message) || !bounds[message].ticket.done) {
    (void)state.fail(PP_INTERNAL, text("message ", message, " of ", boundCount,
                                       " cannot be posted here: it is unknown, of another kind, or still under way"));
    return nullptr;
  }
  ++posted;
  return &bounds[message];
}

pp_status_t ThreadTransport::postSend(pp_rank_t &state, int32_t message, const void *data) {
  Bound *end = bound(state, message, [](const MessageSpec &spec) { return spec.kind == MessageSpec::Kind::Send; });
  if (!end)
    return PP_INTERNAL;
  std::unique_lock lock(meeting->mutex);
  Status status = meeting->postSend(lock, *end->lane, end->ticket, data, end->message->bytes);
  return status.ok() ? PP_OK : state.fail(status.code(), status.message());
}

pp_status_t ThreadTransport::postReceive(pp_rank_t &state, int32_t message, void *data) {
  Bound *end = bound(state, message, [](const MessageSpec &spec) { return spec.kind == MessageSpec::Kind::Receive; });
  if (!end)
    return PP_INTERNAL;
  std::unique_lock lock(meeting->mutex);
  Status status = meeting->postReceive(lock, *end->lane, end->ticket, data, end->message->bytes);
  return status.ok() ? PP_OK : state.fail(status.code(), status.message());
}

pp_status_t ThreadTransport::postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) {
  Bound *end = bound(state, message, [](const MessageSpec &spec) { return spec.isCollective(); });
  if (!end)
    return PP_INTERNAL;
  std::unique_lock lock(meeting->mutex);
  meeting->postJoint(lock, *end->joint, end->member, end->ticket, data, shard, *end->message);
  return PP_OK;
}

pp_status_t ThreadTransport::complete(pp_rank_t &state, int32_t message) {
  if (message < 0 || size_t(message) >= boundCount)
    return state.fail(PP_INTERNAL, text("message ", message, " of ", boundCount, " does not exist"));
  Bound &end = bounds[message];
  --posted;
  receivedBytes += bytesIn(*end.message, rank);
  for (int spin = 0; spin < spins && !end.ticket.done.load(std::memory_order_acquire); ++spin)
    std::this_thread::yield();
  if (end.ticket.done.load(std::memory_order_acquire))
    return PP_OK;
  std::unique_lock lock(meeting->mutex);
  meeting->places[rank].unit = state.unit;
  pp_status_t status = meeting->wait(lock, rank, end.ticket, end.message);
  return status == PP_OK ? PP_OK : state.fail(status, "another rank failed");
}

Status ThreadTransport::send(int32_t to, const void *data, size_t bytes) {
  std::unique_lock lock(meeting->mutex);
  Lane &lane = meeting->asides[{rank, to}];
  lane.ring.resize(1);
  PP_TRY(meeting->postSend(lock, lane, aside, data, bytes));
  return meeting->wait(lock, rank, aside, nullptr) == PP_OK ? Status() : peerFailed();
}

Status ThreadTransport::receive(int32_t from, void *data, size_t bytes) {
  std::unique_lock lock(meeting->mutex);
  Lane &lane = meeting->asides[{from, rank}];
  lane.ring.resize(1);
  PP_TRY(meeting->postReceive(lock, lane, aside, data, bytes));
  return meeting->wait(lock, rank, aside, nullptr) == PP_OK ? Status() : peerFailed();
}

Status ThreadTransport::sum(std::span<double> values) {
  std::unique_lock lock(meeting->mutex);
  std::vector<int32_t> everyone(meeting->ranks);
  for (int32_t i = 0; i < meeting->ranks; ++i)
    everyone[i] = i;
  JointLane &lane = meeting->jointLane(everyone, -1); // no message has this channel
  if (lane.ring.empty())
    lane.ring.push_back({std::vector<void *>(meeting->ranks), std::vector<void *>(meeting->ranks),
                         std::vector<Ticket *>(meeting->ranks)});
  MessageSpec message;
  message.kind = MessageSpec::Kind::AllReduce;
  message.type = Type::F64;
  message.count = int64_t(values.size());
  message.bytes = message.count * 8;
  meeting->postJoint(lock, lane, rank, aside, values.data(), nullptr, message);
  return meeting->wait(lock, rank, aside, nullptr) == PP_OK ? Status() : peerFailed();
}

Status ThreadTransport::agree(const Status &mine, int32_t &failed, pp_status_t &code) {
  std::vector<double> codes(meeting->ranks);
  codes[rank] = mine.code();
  PP_TRY(sum(codes));
  failed = -1;
  code = PP_OK;
  for (int32_t other = meeting->ranks - 1; other >= 0; --other)
    if (codes[other] != 0) {
      failed = other;
      code = pp_status_t(codes[other]);
    }
  return {};
}

} // namespace

std::string describe(const Standing &standing, int32_t rank) {
  if (standing.ended)
    return text("rank ", rank, " has ended");
  if (!standing.message)
    return text("rank ", rank, " waits between steps");
  bool known = standing.unit >= 0 && standing.program && standing.unit < int32_t(standing.program->units.size());
  return text("rank ", rank, known ? text(" after `", standing.program->units[standing.unit].name, "`") : std::string(),
              " waits for ", describe(*standing.message));
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

std::shared_ptr<Meeting> makeMeeting(int32_t ranks, TransportOptions options) {
  return std::make_shared<Meeting>(ranks, options);
}

std::unique_ptr<Transport> makeThreadTransport(std::shared_ptr<Meeting> meeting, int32_t rank) {
  return std::make_unique<ThreadTransport>(std::move(meeting), rank);
}

void leave(Meeting &meeting, int32_t rank, const Status &status) {
  std::lock_guard lock(meeting.mutex);
  meeting.places[rank].ended = true;
  ++meeting.ended;
  if (!status.ok())
    meeting.breakOff(rank, status);
  else
    meeting.checkStandstill(rank);
}

Status firstFailure(Meeting &meeting, int32_t &rank) {
  std::lock_guard lock(meeting.mutex);
  rank = meeting.failedRank;
  return meeting.failure;
}

} // namespace pp
