// Ranks that are threads of one process: their messages are bound to the lanes of a meeting before the first step.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/transport/Meeting.h"
#include <algorithm>
#include <chrono>
#include <thread>

namespace pp {
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
  int32_t ranksBeside() const override { return meeting->ranks; }
  std::string_view name() const override { return "threads"; }

private:
  struct Bound {
    const MessageSpec *message = nullptr;
    Meeting::Lane *lane = nullptr;
    Meeting::JointLane *joint = nullptr;
    size_t member = 0;
    Meeting::Ticket ticket;
  };

  pp_status_t await(pp_rank_t &state, Bound &end);
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
  Meeting::Ticket aside;
};

void ThreadTransport::bind(Bound &bound, const MessageSpec &message) {
  bound.message = &message;
  bound.ticket.rank = rank;
  if (message.isCollective()) {
    bound.joint = &meeting->jointLane(message.group, message.channel);
    bound.member = message.memberOf(rank);
    ++bound.joint->perStep[bound.member];
    bound.joint->ring.emplace_back(message.group.size());
    return;
  }
  bool sends = message.kind == MessageSpec::Kind::Send;
  bound.lane = &meeting->lanes[{sends ? rank : message.peer, sends ? message.peer : rank, message.channel}];
  Meeting::Lane &lane = *bound.lane;
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
  Status status = meeting->postJoint(lock, *end->joint, end->member, end->ticket, data, shard, *end->message);
  return status.ok() ? PP_OK : state.fail(status.code(), status.message());
}

pp_status_t ThreadTransport::complete(pp_rank_t &state, int32_t message) {
  if (message < 0 || size_t(message) >= boundCount)
    return state.fail(PP_INTERNAL, text("message ", message, " of ", boundCount, " does not exist"));
  Bound &end = bounds[message];
  --posted;
  receivedBytes += bytesIn(*end.message, rank);
  pp_status_t status = await(state, end);
  // On its way; that takes no core.
  if (meeting->options.delaySeconds > 0 && status == PP_OK)
    std::this_thread::sleep_until(end.ticket.since + std::chrono::duration<double>(meeting->options.delaySeconds));
  return status;
}

pp_status_t ThreadTransport::await(pp_rank_t &state, Bound &end) {
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
  Meeting::Lane &lane = meeting->asides[{rank, to}];
  lane.ring.resize(1);
  PP_TRY(meeting->postSend(lock, lane, aside, data, bytes));
  return meeting->wait(lock, rank, aside, nullptr) == PP_OK ? Status() : peerFailed();
}

Status ThreadTransport::receive(int32_t from, void *data, size_t bytes) {
  std::unique_lock lock(meeting->mutex);
  Meeting::Lane &lane = meeting->asides[{from, rank}];
  lane.ring.resize(1);
  PP_TRY(meeting->postReceive(lock, lane, aside, data, bytes));
  return meeting->wait(lock, rank, aside, nullptr) == PP_OK ? Status() : peerFailed();
}

Status ThreadTransport::sum(std::span<double> values) {
  std::unique_lock lock(meeting->mutex);
  std::vector<int32_t> everyone(meeting->ranks);
  for (int32_t i = 0; i < meeting->ranks; ++i)
    everyone[i] = i;
  Meeting::JointLane &lane = meeting->jointLane(everyone, -1); // no message has this channel
  if (lane.ring.empty())
    lane.ring.emplace_back(size_t(meeting->ranks));
  MessageSpec message;
  message.kind = MessageSpec::Kind::AllReduce;
  message.type = Type::F64;
  message.count = int64_t(values.size());
  message.bytes = message.count * 8;
  PP_TRY(meeting->postJoint(lock, lane, rank, aside, values.data(), nullptr, message));
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
