// Where the time of a step goes on one rank: sums for every run, single events for --trace.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRACE_H
#define PP_RUNTIME_TRACE_H

#include "runtime/Program.h"
#include <ctime>
#include <string>
#include <vector>

namespace pp {

class Trace {
public:
  enum class Kind : int32_t { Unit, Post, Wait, Step };
  struct Event {
    int64_t start = 0, stop = 0; ///< nanoseconds of CLOCK_MONOTONIC
    Kind kind = Kind::Unit;
    int32_t number = 0; ///< of the unit, the message or the step
  };
  /// Nanoseconds inside task bodies, in posts, in waits, and of whole steps.
  struct Sums {
    int64_t units = 0, posts = 0, waits = 0, steps = 0;
  };

  [[nodiscard]] static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
  }

  /// Makes room for `capacity` events; later ones are counted and dropped.
  void reserve(size_t capacity) {
    events.resize(capacity);
    used = 0;
  }
  void beginUnit() {
    nested = 0;
    unitStart = now();
  }
  /// What a unit posted and waited for inside itself counts there only.
  void endUnit(int32_t unit) {
    total.units -= nested;
    add(Kind::Unit, unit, unitStart, now(), total.units);
  }
  void posted(int32_t message, int64_t start) { add(Kind::Post, message, start, now(), total.posts); }
  void waited(int32_t message, int64_t start) { add(Kind::Wait, message, start, now(), total.waits); }
  void stepped(int32_t step, int64_t start) { add(Kind::Step, step, start, now(), total.steps); }
  void clearSums() { total = {}; }

  [[nodiscard]] const Sums &sums() const { return total; }
  [[nodiscard]] const Event *data() const { return events.data(); }
  [[nodiscard]] size_t size() const { return used; }
  [[nodiscard]] size_t dropped() const { return lost; }

private:
  void add(Kind kind, int32_t number, int64_t start, int64_t stop, int64_t &sum) {
    sum += stop - start;
    nested += stop - start;
    if (used < events.size())
      events[used++] = {start, stop, kind, number};
    else if (!events.empty())
      ++lost;
  }

  Sums total;
  int64_t unitStart = 0, nested = 0;
  std::vector<Event> events;
  size_t used = 0, lost = 0;
};

/// What one rank hands in for the trace file; times are moved by `shift` nanoseconds.
struct RankTrace {
  const RankProgram *program = nullptr;
  std::vector<Trace::Event> events;
  int64_t shift = 0;
};

/// The numbers of messages by rank and number on it: from 1, sends and sums in the order of ranks and of their lists.
[[nodiscard]] std::vector<std::vector<int64_t>> numberMessages(const std::vector<RankTrace> &ranks);

/// Writes Chrome's trace format: one process a rank, units on one line of it and messages on another.
Status writeTrace(const std::string &path, const std::vector<RankTrace> &ranks);

} // namespace pp

#endif // PP_RUNTIME_TRACE_H
