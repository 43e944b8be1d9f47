// What of all that was asked of a device surely happens before what: a clock for each stream, counted at the asking.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Each thing asked of a stream is a moment of it. A stream knows how far every stream has come when its next thing
// begins: its own things, and by each wait what the stream that recorded the event knew then (vector clocks; Mattern
// 1989). Nothing here depends on when anything really happens.
#ifndef PP_TEST_GPU_ORDER_H
#define PP_TEST_GPU_ORDER_H

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace pp {

class Order {
public:
  /// The k-th thing asked of a stream.
  struct Moment {
    int32_t stream = -1;
    int64_t count = 0;
  };
  /// A copy or sum, and the memory that it reads and writes.
  struct Access {
    Moment moment;
    std::vector<std::pair<const char *, size_t>> ranges;
  };

  Moment ask(int32_t stream) {
    auto &clock = clockOf(stream);
    return {stream, ++clock[size_t(stream)]};
  }
  void record(int32_t event, int32_t stream) {
    if (events.size() <= size_t(event))
      events.resize(size_t(event) + 1);
    ask(stream);
    events[size_t(event)] = clockOf(stream);
  }
  void wait(int32_t stream, int32_t event) {
    if (size_t(event) < events.size())
      learn(stream, events[size_t(event)]);
  }
  /// The host has waited for the event, or for all that was asked for; what it asks for from now on comes after that.
  void finish(int32_t event) {
    if (size_t(event) < events.size())
      merge(host, events[size_t(event)]);
  }
  void join() {
    for (const Clock &clock : clocks)
      merge(host, clock);
  }

  /// Whether the moment comes before whatever is asked of the stream from now on.
  [[nodiscard]] bool isBefore(Moment moment, int32_t stream) {
    const Clock &clock = clockOf(stream);
    return size_t(moment.stream) < clock.size() && clock[size_t(moment.stream)] >= moment.count;
  }
  /// Copies and sums since the list was taken last.
  std::vector<Access> takeAccesses() { return std::exchange(accesses, {}); }
  void access(int32_t stream, std::vector<std::pair<const char *, size_t>> ranges) {
    accesses.push_back({ask(stream), std::move(ranges)});
  }

private:
  using Clock = std::vector<int64_t>;
  Clock &clockOf(int32_t stream) {
    if (clocks.size() <= size_t(stream))
      clocks.resize(size_t(stream) + 1);
    Clock &clock = clocks[size_t(stream)];
    clock.resize(std::max(clock.size(), size_t(stream) + 1));
    merge(clock, host);
    return clock;
  }
  static void merge(Clock &into, const Clock &from) {
    into.resize(std::max(into.size(), from.size()));
    for (size_t i = 0; i < from.size(); ++i)
      into[i] = std::max(into[i], from[i]);
  }
  void learn(int32_t stream, const Clock &from) { merge(clockOf(stream), from); }

  std::vector<Clock> clocks, events;
  Clock host; ///< what has happened as far as the host knows
  std::vector<Access> accesses;
};

} // namespace pp

#endif // PP_TEST_GPU_ORDER_H
