// Where the time of a step goes on one rank: sums for every run, single events for --trace.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_TRACE_H
#define PP_RUNTIME_FILES_TRACE_H

#include "runtime/Program.h"
#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

namespace pp {

/// The clock of a device that works later than it is asked: marks are put into its stream, and say their time after the
/// step, in nanoseconds of CLOCK_MONOTONIC.
class TraceMarks {
public:
  virtual int64_t mark() = 0;
  virtual int64_t timeOf(int64_t mark) = 0;

protected:
  ~TraceMarks() = default;
};

class Trace {
public:
  enum class Kind : int32_t { Unit, Post, Wait, Step, Op };
  struct Event {
    int64_t start = 0, stop = 0; ///< nanoseconds of CLOCK_MONOTONIC
    Kind kind = Kind::Unit;
    int32_t number = 0; ///< of the unit, the message, the step or the op
  };
  /// Nanoseconds inside task bodies, in posts, in waits, of whole steps, and in ops, if each is an event.
  struct Sums {
    int64_t units = 0, posts = 0, waits = 0, steps = 0, ops = 0;
  };

  [[nodiscard]] static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
  }

  /// From now on all times but those of steps are marks of a device, until `settle`.
  void setMarks(TraceMarks *its) { marks = its; }
  [[nodiscard]] int64_t mark() const { return marks ? marks->mark() : now(); }
  /// Ends the step: the times of its marks are known now.
  void settle();

  /// Makes room for `capacity` events. Up to `most` events are kept; later ones are counted and dropped.
  void reserve(size_t capacity, size_t most) {
    events.resize(std::min(capacity, most));
    this->most = most;
    used = 0;
  }
  void beginUnit() {
    nested = 0;
    unitStart = mark();
  }
  /// Messages inside a unit count as messages only, not in the unit's time.
  void endUnit(int32_t unit) {
    if (!marks)
      total.units -= nested;
    add(Kind::Unit, unit, unitStart, mark(), total.units);
  }
  void posted(int32_t message, int64_t start) { add(Kind::Post, message, start, mark(), total.posts); }
  void waited(int32_t message, int64_t start) { add(Kind::Wait, message, start, mark(), total.waits); }
  /// Whether each op of a unit is an event of its own.
  void setOps(bool wanted) { ops = wanted; }
  [[nodiscard]] bool hasOps() const { return ops; }
  void computed(int32_t op, int64_t start) { add(Kind::Op, op, start, mark(), total.ops); }
  void stepped(int32_t step, int64_t start) {
    pending.clear(); // of a step that failed
    keep({start, now(), Kind::Step, step}, total.steps);
  }
  void clearSums() { total = {}; }

  [[nodiscard]] const Sums &sums() const { return total; }
  [[nodiscard]] const Event *data() const { return events.data(); }
  [[nodiscard]] size_t size() const { return used; }
  [[nodiscard]] size_t dropped() const { return lost; }

private:
  void add(Kind kind, int32_t number, int64_t start, int64_t stop, int64_t &sum) {
    if (marks)
      pending.push_back({start, stop, kind, number});
    else
      keep({start, stop, kind, number}, sum);
  }
  void keep(const Event &event, int64_t &sum) {
    sum += event.stop - event.start;
    if (event.kind != Kind::Op)
      nested += event.stop - event.start;
    if (used == events.size() && used > 0 && used < most) // what goes on inside units has no number that is known
      events.resize(std::min(2 * used, most));
    if (used < events.size())
      events[used++] = event;
    else if (!events.empty())
      ++lost;
  }

  Sums total;
  int64_t unitStart = 0, nested = 0;
  std::vector<Event> events, pending; ///< pending: their times are marks
  TraceMarks *marks = nullptr;
  size_t used = 0, lost = 0, most = 0;
  bool ops = false;
};

/// One rank's part of the trace file; its times are moved by `shift` nanoseconds.
struct RankTrace {
  const RankProgram *program = nullptr;
  std::vector<Trace::Event> events;
  int64_t shift = 0;
};

/// The numbers of messages by rank and number on it: from 1, sends and sums in the order of ranks and of their lists.
[[nodiscard]] std::vector<std::vector<int64_t>> numberMessages(const std::vector<RankTrace> &ranks);

/// Writes Chrome's trace format: one process a rank, units on one line of it and messages on another.
Status writeTrace(const std::string &path, const Program &program, const std::vector<RankTrace> &ranks);

} // namespace pp

#endif // PP_RUNTIME_FILES_TRACE_H
