// Messages between ranks that share a device: when all ends are posted, a copy or a sum on the channel's own stream.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// rank 0's stream  .. F(3) |post send          | F(4) ..      | complete: from here on it waits for `done`
//                          v `posted`
// channel's stream         copy (waits for both) -> `done`
//                          ^ `posted`
// rank 1's stream    F(2)  |post receive | .. complete: waits for `done` | F(3) ..
//
// The ranks are fibers of one thread, so nothing here is locked. A rank gives way in `complete` until the other ends
// are posted and the copy has been asked for; it never waits for the device.
#include "runtime/device/StreamDevice.h"
#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <tuple>

namespace pp {
namespace {

/// One end of a message, as its own rank sees it.
struct End {
  const MessageSpec *message = nullptr;
  void *data = nullptr, *shard = nullptr;
  Driver::Event posted = -1;
  Driver::Event ended = -1; ///< recorded when the message is done; `posted` itself of one that is posted once a step
  Driver::Event done = -1;  ///< of all ends of the message the same; -1 until it has been asked for
  bool underWay = false;
};

/// An ordered lane with its stream: the k-th messages that its members post are one.
struct Lane {
  Driver::Stream stream = -1;
  std::vector<std::deque<End *>> waiting; ///< by member, posted and not yet met
  std::vector<int64_t> perStep;           ///< by member, as the programs say
};

/// A lane: a sender, a receiver and a channel; or a whole group and a channel.
using LaneKey = std::pair<std::vector<int32_t>, int32_t>;

/// A message of one rank to another between steps.
struct Aside {
  const void *data = nullptr;
  size_t bytes = 0;
};

} // namespace

class StreamMeeting {
public:
  StreamMeeting(int32_t ranks, Driver &driver, Fibers *fibers) : driver(driver), fibers(fibers), places(ranks) {}

  Lane &laneOf(const LaneKey &key, size_t members) {
    Lane &lane = lanes[key];
    lane.waiting.resize(members);
    lane.perStep.resize(members);
    return lane;
  }
  Status checkLanes() const;
  /// Asks for the message if all its ends are there.
  Status meet(Lane &lane);

  Driver &driver;
  Fibers *fibers;
  std::vector<Standing> places;
  std::map<LaneKey, Lane> lanes;
  std::map<std::pair<int32_t, int32_t>, std::deque<Aside *>> asides;
  std::vector<std::span<double>> summands;
  int32_t arrived = 0; ///< at the sum that comes
  int64_t sums = 0;    ///< done so far
  int64_t step = 0;

private:
  Status carryOut(Driver::Stream stream, const std::vector<End *> &ends);
  Status exchange(Driver::Stream stream, const std::vector<End *> &ends);
  Status copy(Driver::Stream stream, const End &from, const End &to);
};

Status StreamMeeting::checkLanes() const {
  for (const auto &[key, lane] : lanes)
    for (size_t member = 1; member < lane.perStep.size(); ++member)
      if (lane.perStep[member] != lane.perStep[0])
        return internal("ranks ", key.first[0], " and ", key.first[member], " post ", lane.perStep[0], " and ",
                        lane.perStep[member], " messages a step on channel ", std::max(key.second, -1 - key.second));
  return {};
}

Status StreamMeeting::meet(Lane &lane) {
  std::vector<End *> ends;
  for (auto &posted : lane.waiting) {
    if (posted.empty())
      return {};
    ends.push_back(posted.front());
  }
  for (auto &posted : lane.waiting)
    posted.pop_front();
  for (End *end : ends)
    PP_TRY(driver.wait(lane.stream, end->posted));
  PP_TRY(carryOut(lane.stream, ends));
  // Every end waits for the same moment; the event is the last member's, who has just posted or is about to wait.
  Driver::Event done = ends.back()->done = ends.back()->ended;
  PP_TRY(driver.record(done, lane.stream));
  for (End *end : ends)
    end->done = done;
  return {};
}

Status StreamMeeting::copy(Driver::Stream stream, const End &from, const End &to) {
  if (from.message->bytes != to.message->bytes)
    return internal("a message of ", from.message->bytes, " bytes (`", from.message->label, "`) met one of ",
                    to.message->bytes, " bytes (`", to.message->label, "`)");
  return driver.copy(stream, to.data, from.data, size_t(to.message->bytes));
}

Status StreamMeeting::exchange(Driver::Stream stream, const std::vector<End *> &ends) {
  const MessageSpec &spec = *ends[0]->message;
  for (size_t from = 0; from < ends.size(); ++from)
    for (size_t to = 0; to < ends.size(); ++to)
      for (int64_t i = 0; i < spec.blocks(); ++i) {
        const Block block = spec.block(from, to, i);
        PP_TRY(driver.copyRows(stream, {static_cast<char *>(ends[to]->data) + block.take,
                                        static_cast<char *>(ends[from]->shard) + block.give, block.takeStride,
                                        block.giveStride, block.rows, block.bytes}));
      }
  return {};
}

Status StreamMeeting::carryOut(Driver::Stream stream, const std::vector<End *> &ends) {
  const MessageSpec &spec = *ends[0]->message;
  if (!spec.isCollective())
    return copy(stream, *ends[0], *ends[1]);
  size_t root = spec.memberOf(spec.root);
  for (const End *end : ends)
    if (!isSameCollective(*end->message, spec))
      return internal("members of `", spec.label, "` on channel ", spec.channel, " join different collectives");
  SumSpec sum;
  sum.type = spec.type;
  sum.count = spec.count;
  if (spec.kind == MessageSpec::Kind::Broadcast) {
    for (size_t k = 0; k < ends.size(); ++k)
      if (k != root)
        PP_TRY(copy(stream, *ends[root], *ends[k]));
    return {};
  }
  if (spec.kind == MessageSpec::Kind::AllGather) {
    for (size_t k = 0; k < ends.size(); ++k)
      for (ShardRange range : spec.ranges(k))
        for (const End *end : ends)
          if (end->data != ends[k]->shard) // else it lies there
            PP_TRY(driver.copy(stream, static_cast<char *>(end->data) + range.whole,
                               static_cast<char *>(ends[k]->shard) + range.shard, size_t(range.bytes)));
    return {};
  }
  if (spec.kind == MessageSpec::Kind::AllToAll)
    return exchange(stream, ends);
  if (spec.kind == MessageSpec::Kind::ReduceScatter) {
    for (size_t k = 0; k < ends.size(); ++k)
      for (ShardRange range : spec.ranges(k)) {
        sum.count = range.bytes / int64_t(elementBytes(spec.type));
        sum.sums = {static_cast<char *>(ends[k]->shard) + range.shard};
        sum.parts.clear();
        for (const End *end : ends)
          sum.parts.push_back(static_cast<char *>(end->data) + range.whole);
        PP_TRY(driver.sum(stream, sum));
      }
    return {};
  }
  for (size_t k = 0; k < ends.size(); ++k) {
    sum.parts.push_back(ends[k]->data);
    if (spec.kind == MessageSpec::Kind::AllReduce || k == root)
      sum.sums.push_back(ends[k]->data);
  }
  return driver.sum(stream, sum);
}

namespace {

class StreamTransport final : public Transport {
public:
  StreamTransport(std::shared_ptr<StreamMeeting> meeting, int32_t rank, StreamDevice &device)
      : meeting(std::move(meeting)), rank(rank), device(device) {}

  Status prepare(const RankProgram &program) override;
  pp_status_t postSend(pp_rank_t &state, int32_t message, const void *data) override {
    return post(state, message, MessageSpec::Kind::Send, const_cast<void *>(data), nullptr);
  }
  pp_status_t postReceive(pp_rank_t &state, int32_t message, void *data) override {
    return post(state, message, MessageSpec::Kind::Receive, data, nullptr);
  }
  pp_status_t postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) override {
    return post(state, message, std::nullopt, data, shard);
  }
  pp_status_t complete(pp_rank_t &state, int32_t message) override;
  int64_t outstanding() const override { return posted; }
  Status send(int32_t to, const void *data, size_t bytes) override;
  Status receive(int32_t from, void *data, size_t bytes) override;
  Status sum(std::span<double> values) override;
  Status agree(const Status &mine, int32_t &failed, pp_status_t &code) override;
  void markStep(int64_t step) override { meeting->step = step; }
  double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  int32_t ranksBeside() const override { return 1; } // one thread, which is one rank after the other
  std::string_view name() const override { return "threads"; }

private:
  struct Bound {
    End end;
    Lane *lane = nullptr;
    size_t member = 0;
  };

  Status bind(Bound &bound, const MessageSpec &message);
  pp_status_t post(pp_rank_t &state, int32_t message, std::optional<MessageSpec::Kind> kind, void *data, void *shard);
  template <typename Ready> Status await(const Ready &ready) {
    if (!meeting->fibers)
      return ready() ? Status() : internal("rank ", rank, " waits for a message of its own that it has not posted");
    return meeting->fibers->waitUntil(ready) ? Status() : Status(PP_PEER, "another rank failed");
  }

  std::shared_ptr<StreamMeeting> meeting;
  int32_t rank;
  StreamDevice &device;
  std::vector<Bound> bounds;
  int64_t posted = 0;
};

Status StreamTransport::bind(Bound &bound, const MessageSpec &message) {
  bound.end.message = &message;
  bool sends = message.kind == MessageSpec::Kind::Send;
  std::vector<int32_t> members = message.group;
  if (!message.isCollective())
    members = {sends ? rank : message.peer, sends ? message.peer : rank};
  bound.member = message.isCollective() ? size_t(std::find(members.begin(), members.end(), rank) - members.begin())
                                        : size_t(!sends);
  int32_t channel = message.isCollective() ? -1 - message.channel : message.channel; // collectives have their own
  bound.lane = &meeting->laneOf({members, channel}, members.size());
  ++bound.lane->perStep[bound.member];
  if (bound.lane->stream < 0)
    PP_TRY(meeting->driver.makeStream(bound.lane->stream));
  PP_TRY(meeting->driver.makeEvent(bound.end.posted));
  bound.end.ended = bound.end.posted;
  // A member may post it again while others have yet to wait for its end.
  return message.inside ? meeting->driver.makeEvent(bound.end.ended) : Status();
}

Status StreamTransport::prepare(const RankProgram &program) {
  meeting->places[rank].program = &program;
  bounds = std::vector<Bound>(program.messages.size());
  for (size_t i = 0; i < bounds.size(); ++i)
    if (meeting->fibers || program.messages[i].host)
      PP_TRY(bind(bounds[i], program.messages[i]));
  if (meeting->fibers)
    PP_TRY(sum({}));
  return meeting->checkLanes();
}

pp_status_t StreamTransport::post(pp_rank_t &state, int32_t message, std::optional<MessageSpec::Kind> kind, void *data,
                                  void *shard) {
  if (message < 0 || size_t(message) >= bounds.size() || !bounds[message].lane || bounds[message].end.underWay ||
      (kind ? bounds[message].end.message->kind != *kind : !bounds[message].end.message->isCollective()))
    return state.fail(PP_INTERNAL, text("message ", message, " of ", bounds.size(),
                                        " cannot be posted here: it is unknown, of another kind, or still under way"));
  Bound &bound = bounds[message];
  ++posted;
  bool host = bound.end.message->host;
  bound.end.data = host ? device.place(data) : data;
  bound.end.shard = shard;
  bound.end.done = -1;
  bound.end.underWay = true;
  bound.lane->waiting[bound.member].push_back(&bound.end);
  Status status = meeting->driver.record(bound.end.posted, device.compute());
  if (status.ok())
    status = meeting->meet(*bound.lane);
  return status.ok() ? PP_OK : state.fail(status.code(), status.message());
}

pp_status_t StreamTransport::complete(pp_rank_t &state, int32_t message) {
  if (message < 0 || size_t(message) >= bounds.size() || !bounds[message].end.underWay)
    return state.fail(PP_INTERNAL, text("message ", message, " of ", bounds.size(), " was not posted"));
  End &end = bounds[message].end;
  Standing &place = meeting->places[rank];
  place.unit = state.unit;
  place.message = end.message;
  Status status = await([&] { return end.done >= 0; });
  place.message = nullptr;
  if (status.ok())
    status = meeting->driver.wait(device.compute(), end.done);
  end.underWay = false;
  --posted;
  receivedBytes += bytesIn(*end.message, rank);
  return status.ok() ? PP_OK : state.fail(status.code(), status.message());
}

Status StreamTransport::send(int32_t to, const void *data, size_t bytes) {
  Aside aside{data, bytes};
  meeting->asides[{rank, to}].push_back(&aside);
  return await([&] { return aside.data == nullptr; });
}

Status StreamTransport::receive(int32_t from, void *data, size_t bytes) {
  std::deque<Aside *> &queue = meeting->asides[{from, rank}];
  PP_TRY(await([&] { return !queue.empty(); }));
  Aside &aside = *queue.front();
  queue.pop_front();
  if (aside.bytes != bytes)
    return internal("rank ", from, " handed ", aside.bytes, " bytes to rank ", rank, ", which expected ", bytes);
  std::copy_n(static_cast<const char *>(aside.data), bytes, static_cast<char *>(data));
  aside.data = nullptr;
  return {};
}

Status StreamTransport::sum(std::span<double> values) {
  int64_t number = meeting->sums;
  auto &summands = meeting->summands;
  summands.resize(meeting->places.size());
  summands[rank] = values;
  if (++meeting->arrived == int32_t(summands.size())) {
    for (size_t i = 0; i < values.size(); ++i) {
      double total = summands[0][i];
      for (size_t other = 1; other < summands.size(); ++other)
        total += summands[other][i];
      for (std::span<double> each : summands)
        each[i] = total;
    }
    meeting->arrived = 0;
    ++meeting->sums;
  }
  return await([&] { return meeting->sums > number; });
}

Status StreamTransport::agree(const Status &mine, int32_t &failed, pp_status_t &code) {
  std::vector<double> codes(meeting->places.size());
  codes[rank] = mine.code();
  PP_TRY(sum(codes));
  auto found = std::find_if(codes.begin(), codes.end(), [](double each) { return each != 0; });
  failed = found == codes.end() ? -1 : int32_t(found - codes.begin());
  code = found == codes.end() ? PP_OK : pp_status_t(*found);
  return {};
}

} // namespace

std::shared_ptr<StreamMeeting> makeStreamMeeting(int32_t ranks, Driver &driver, Fibers *fibers) {
  return std::make_shared<StreamMeeting>(ranks, driver, fibers);
}

std::unique_ptr<Transport> makeStreamTransport(std::shared_ptr<StreamMeeting> meeting, int32_t rank,
                                               StreamDevice &device) {
  return std::make_unique<StreamTransport>(std::move(meeting), rank, device);
}

void leave(StreamMeeting &meeting, int32_t rank) { meeting.places[rank].ended = true; }

Status standstillOf(const StreamMeeting &meeting) {
  std::vector<const Standing *> all;
  for (const Standing &place : meeting.places)
    all.push_back(&place);
  return deadlockIn(meeting.step, all);
}

} // namespace pp
