// Checks what is asked of a device against the rank programs: each message moves between its posts and its completes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   rank 0's stream  F(3) | post ................. | complete | F(4)      the proof of the rank programs rests on this:
//                         |   the message's copy   |                      the copy comes after every end's post and
//   rank 1's stream  F(2)   | post ................... | complete | F(3)  before every end's complete, and touches no
//                                                                         other memory
//
// Which posts are one message is found here a second time, from the programs alone: the k-th of each member of a
// channel. A rank with a device of its own sees its own end only; the other end's rank sees the other end.
#include "test/gpu/Emulated.h"
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

namespace pp {

/// One message of a step, with all ends that were posted.
struct CheckedMessage {
  struct End {
    int32_t rank = -1;
    const MessageSpec *spec = nullptr;
    Order::Moment post;
    std::vector<std::pair<const char *, size_t>> ranges;
  };
  std::vector<End> ends;
  std::vector<Order::Access> accesses;
  bool met = false;
};

class CheckedMeeting {
public:
  explicit CheckedMeeting(bool apart) : apart(apart) {}
  const bool apart; ///< each rank has a device of its own
  /// By members and channel: the messages that each member has posted; the first ones are the same for all members.
  struct Lane {
    std::deque<std::shared_ptr<CheckedMessage>> open;
    std::map<int32_t, size_t> posted; ///< by member, beyond the messages that are met
  };
  std::map<std::tuple<std::vector<int32_t>, bool, int32_t>, Lane> lanes;
  std::set<Driver::Stream> computes; ///< of all ranks
};

namespace {

class CheckedTransport final : public TransportOver {
public:
  CheckedTransport(std::shared_ptr<CheckedMeeting> meeting, std::unique_ptr<Transport> inner, StreamDevice &device,
                   Order &order, int32_t rank)
      : TransportOver(std::move(inner)), meeting(std::move(meeting)), device(device), order(order), rank(rank) {}

  Status prepare(const RankProgram &its) override {
    program = &its;
    under.resize(its.messages.size());
    meeting->computes.insert(device.compute());
    return inner->prepare(its);
  }
  pp_status_t postSend(pp_rank_t &state, int32_t message, const void *data) override {
    return post(state, message, data, nullptr, [&] { return inner->postSend(state, message, data); });
  }
  pp_status_t postReceive(pp_rank_t &state, int32_t message, void *data) override {
    return post(state, message, data, nullptr, [&] { return inner->postReceive(state, message, data); });
  }
  pp_status_t postCollective(pp_rank_t &state, int32_t message, void *data, void *shard) override {
    return post(state, message, data, shard, [&] { return inner->postCollective(state, message, data, shard); });
  }
  pp_status_t complete(pp_rank_t &state, int32_t message) override;
  int64_t outstanding() const override { return inner->outstanding(); }
  std::string_view name() const override { return inner->name(); }

private:
  using End = CheckedMessage::End;

  template <typename Post>
  pp_status_t post(pp_rank_t &state, int32_t message, const void *data, const void *shard, const Post &posts);
  std::shared_ptr<CheckedMessage> join(const MessageSpec &spec, End end);
  Status checkAccesses(CheckedMessage &message) const;
  /// If a rank has a device of its own, its transport also writes further words, such as a message's mark.
  [[nodiscard]] bool isOfMessage(const Order::Access &access) const {
    return !meeting->apart || std::any_of(access.ranges.begin(), access.ranges.end(),
                                          [&](const auto &range) { return device.holds(range.first); });
  }
  [[nodiscard]] bool isAlone(const MessageSpec &spec) const { return meeting->apart && !spec.host; }

  std::shared_ptr<CheckedMeeting> meeting;
  StreamDevice &device;
  Order &order;
  int32_t rank;
  const RankProgram *program = nullptr;
  std::vector<std::shared_ptr<CheckedMessage>> under; ///< by message, while it is posted
};

/// The message that this end belongs to, and whether all of its ends are there now.
std::shared_ptr<CheckedMessage> CheckedTransport::join(const MessageSpec &spec, End end) {
  if (isAlone(spec))
    return std::make_shared<CheckedMessage>(CheckedMessage{{std::move(end)}, {}, true});
  bool sends = spec.kind == MessageSpec::Kind::Send;
  std::vector<int32_t> members = spec.group;
  if (!spec.isCollective())
    members = {sends ? rank : spec.peer, sends ? spec.peer : rank};
  auto &lane = meeting->lanes[{members, spec.isCollective(), spec.channel}];
  int32_t member = spec.isCollective() ? rank : int32_t(!sends); // both ends of a message to oneself are this rank's
  size_t number = lane.posted[member]++;
  while (lane.open.size() <= number)
    lane.open.push_back(std::make_shared<CheckedMessage>());
  std::shared_ptr<CheckedMessage> message = lane.open[number];
  message->ends.push_back(std::move(end));
  message->met = message->ends.size() == members.size();
  if (message->met) { // in order: it is the first
    lane.open.pop_front();
    for (auto &[its, posted] : lane.posted)
      --posted;
  }
  return message;
}

template <typename Post>
pp_status_t CheckedTransport::post(pp_rank_t &state, int32_t message, const void *data, const void *shard,
                                   const Post &posts) {
  if (message < 0 || size_t(message) >= under.size())
    return posts(); // which says what is wrong
  const MessageSpec &spec = program->messages[message];
  End end{rank, &spec, order.ask(device.compute()), {}};
  end.ranges.push_back({static_cast<const char *>(spec.host ? device.place(data) : data), size_t(spec.bytes)});
  if (shard)
    end.ranges.push_back({static_cast<const char *>(shard), size_t(spec.shardBytes(spec.memberOf(rank)))});
  order.takeAccesses();
  if (pp_status_t code = posts(); code != PP_OK)
    return code;
  std::shared_ptr<CheckedMessage> its = under[message] = join(spec, std::move(end));
  its->accesses = order.takeAccesses();
  Status status = checkAccesses(*its);
  return status.ok() ? PP_OK : state.fail(status.code(), status.message());
}

/// A message moves when all its ends are there: after all their posts, and in their memory.
Status CheckedTransport::checkAccesses(CheckedMessage &message) const {
  const MessageSpec &spec = *message.ends[0].spec;
  if (!message.met)
    return message.accesses.empty() ? Status() : internal(describe(spec), " moves before all of its ends are posted");
  if (message.accesses.empty() && !spec.isCollective() && !isAlone(spec))
    return internal(describe(spec), " is not moved when its ends are posted");
  for (const Order::Access &access : message.accesses) {
    for (auto [from, bytes] : access.ranges)
      if (!(isAlone(spec) && !device.holds(from)) && // the other end, or memory on the way there
          std::none_of(message.ends.begin(), message.ends.end(), [&, from = from, bytes = bytes](const End &end) {
            return std::any_of(end.ranges.begin(), end.ranges.end(), [&](const auto &range) {
              return from >= range.first && from + bytes <= range.first + range.second;
            });
          }))
        return internal(describe(spec), " moves memory that none of its ends has named");
    for (const End &end : message.ends)
      if (!order.isBefore(end.post, access.moment.stream))
        return internal(describe(*end.spec), ": what moves it does not wait for what rank ", end.rank,
                        " did before its post");
  }
  return {};
}

pp_status_t CheckedTransport::complete(pp_rank_t &state, int32_t message) {
  order.takeAccesses();
  pp_status_t code = inner->complete(state, message);
  if (code != PP_OK)
    return code;
  std::shared_ptr<CheckedMessage> its = std::move(under[message]);
  for (Order::Access &access : order.takeAccesses()) // in kernels' streams other ranks read what an audit checks
    if (meeting->apart || !meeting->computes.contains(access.moment.stream))
      its->accesses.push_back(std::move(access));
  if (Status status = checkAccesses(*its); !status.ok())
    return state.fail(status.code(), status.message());
  for (const Order::Access &access : its->accesses)
    if (isOfMessage(access) && !order.isBefore(access.moment, device.compute())) {
      Status status = internal(describe(program->messages[message]), ": rank ", rank,
                               " goes on after its complete and does not wait for what moves it");
      return state.fail(status.code(), status.message());
    }
  return PP_OK;
}

} // namespace

std::shared_ptr<CheckedMeeting> makeCheckedMeeting(bool apart) { return std::make_shared<CheckedMeeting>(apart); }

std::unique_ptr<Transport> makeCheckedTransport(std::shared_ptr<CheckedMeeting> meeting,
                                                std::unique_ptr<Transport> inner, StreamDevice &device, Order &order,
                                                int32_t rank) {
  return std::make_unique<CheckedTransport>(std::move(meeting), std::move(inner), device, order, rank);
}

} // namespace pp
