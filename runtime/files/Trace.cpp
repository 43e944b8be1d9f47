// Writes the events of all ranks as one file for Chrome's trace viewer or Perfetto.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ids, names and lines are those of `pp-compile --emit=trace` (report/Trace.cpp), so that both can be laid side
// by side: a process is a rank; its line (tid) 0 has units, posts and waits, 1 + 2 q sends to rank q, 2 + 2 q receives
// from rank q, 1 + 2 P sums over groups of the P ranks, and 2 + 2 P steps. A message lasts from when its last end was
// posted to when the receiver had waited for it, which may be long after the bytes were there: that nobody sees. Slices
// of one line must not overlap, and arrows need something to end at, so a message begins after the one before it and
// lasts a microsecond at least.
#include "runtime/files/Trace.h"
#include "runtime/files/Draft.h"
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace pp {
namespace {

using Kind = MessageSpec::Kind;

std::string quoted(const std::string &name) { return nlohmann::json(name).dump(); }

class Writer {
public:
  Writer(FILE *file, const Program &program, const std::vector<RankTrace> &ranks)
      : file(file), program(program), ranks(ranks), numbers(numberMessages(ranks)), all(int32_t(ranks.size())) {}
  void write();

private:
  /// One end of a message in one step, nanoseconds on the clock of rank 0.
  struct End {
    size_t rank = 0;
    int32_t message = 0;
    int64_t posted = 0, waited = 0;
  };

  void collect(size_t rank);
  void event(size_t rank, const Trace::Event &event);
  void message(int64_t id, const End &end, int64_t ready, int64_t done);
  void slice(size_t rank, int32_t line, const std::string &name, const char *category, double start, double end,
             const std::string &arguments);
  void names(size_t rank);
  void name(size_t rank, int32_t line, const std::string &name);
  void put(const std::string &line) {
    fprintf(file, "%s\n%s", comma, line.c_str());
    comma = ",";
  }
  double micros(int64_t time) const { return double(time - first) * 1e-3; }
  int32_t lineOf(const MessageSpec &message) const {
    return message.isCollective() ? 1 + 2 * all : 1 + 2 * message.peer + (message.kind == Kind::Receive);
  }

  FILE *file;
  const Program &program;
  const std::vector<RankTrace> &ranks;
  std::vector<std::vector<int64_t>> numbers;
  int32_t all;
  int64_t first = INT64_MAX;
  /// The ends by step (from 0), number of the message, and number of its earlier posts in the step.
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<End>> ends;
  std::map<std::pair<size_t, int32_t>, double> free; ///< by rank and line: where its last message ends
  const char *comma = "";
};

/// The ends of the rank's messages: its events are in order, and a step's event comes after all of the step.
void Writer::collect(size_t rank) {
  int64_t step = 0, shift = ranks[rank].shift;
  std::vector<int64_t> posted(numbers[rank].size()), times(numbers[rank].size());
  for (const Trace::Event &event : ranks[rank].events) {
    first = std::min(first, event.start + shift);
    if (event.kind == Trace::Kind::Post)
      posted.at(size_t(event.number)) = event.start + shift;
    else if (event.kind == Trace::Kind::Wait)
      ends[{step, numbers[rank].at(size_t(event.number)), times[size_t(event.number)]++}].push_back(
          {rank, event.number, posted[size_t(event.number)], event.stop + shift});
    else if (event.kind == Trace::Kind::Step) {
      std::fill(times.begin(), times.end(), 0);
      ++step;
    }
  }
}

void Writer::slice(size_t rank, int32_t line, const std::string &name, const char *category, double start, double end,
                   const std::string &arguments) {
  char times[96];
  snprintf(times, sizeof times, "\"ts\":%.3f,\"dur\":%.3f", start, end - start);
  put(text("{\"ph\":\"X\",\"pid\":", rank, ",\"tid\":", line, ",\"name\":", quoted(name), ",\"cat\":\"", category,
           "\",", times, ",\"args\":{", arguments, "}}"));
}

/// Writes an event of the rank's only thread.
void Writer::event(size_t rank, const Trace::Event &event) {
  if (event.kind == Trace::Kind::Op) // units hold them
    return;
  const RankProgram &program = *ranks[rank].program;
  double start = micros(event.start + ranks[rank].shift), end = micros(event.stop + ranks[rank].shift);
  if (event.kind == Trace::Kind::Unit) {
    const UnitSpec &unit = program.units.at(size_t(event.number));
    slice(rank, 0, unit.name, unit.phase.c_str(), start, end,
          text("\"microbatch\":", unit.microbatch, ",\"flops\":", unit.flops));
  } else if (event.kind == Trace::Kind::Step) {
    slice(rank, 2 + 2 * all, text("step ", event.number), "step", start, end, "");
  } else {
    const MessageSpec &message = program.messages.at(size_t(event.number));
    bool post = event.kind == Trace::Kind::Post;
    slice(rank, 0, text(post ? "post " : "wait ", message.label), post ? "post" : "idle", start, end,
          text("\"message\":", numbers[rank][size_t(event.number)]));
  }
}

/// The message on the line of this end.
void Writer::message(int64_t id, const End &end, int64_t ready, int64_t done) {
  const MessageSpec &message = ranks[end.rank].program->messages[size_t(end.message)];
  int32_t line = lineOf(message);
  bool sends = message.kind == Kind::Send, receives = message.kind == Kind::Receive;
  double &last = free[{end.rank, line}], start = std::max(last, micros(std::min(ready, done)));
  last = std::max(start + 1, micros(done));
  std::string category(sends ? "send" : receives ? "recv" : jointName(message));
  slice(end.rank, line, message.label, category.c_str(), start, last,
        text("\"message\":", id, ",\"bytes\":", message.bytes, ",\"channel\":", message.channel));
  if (!sends && !receives)
    return;
  char time[48];
  snprintf(time, sizeof time, "%.3f", start);
  put(text("{\"ph\":\"", sends ? "s" : "f\",\"bp\":\"e", "\",\"pid\":", end.rank, ",\"tid\":", line,
           ",\"name\":", quoted(message.label), ",\"cat\":\"message\",\"id\":", id, ",\"ts\":", time, "}"));
}

void Writer::name(size_t rank, int32_t line, const std::string &name) {
  put(text("{\"ph\":\"M\",\"pid\":", rank, ",\"tid\":", line, ",\"name\":\"thread_name\",\"args\":{\"name\":\"", name,
           "\"}}"));
  put(text("{\"ph\":\"M\",\"pid\":", rank, ",\"tid\":", line,
           ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":", line, "}}"));
}

void Writer::names(size_t rank) {
  put(text("{\"ph\":\"M\",\"pid\":", rank, ",\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"",
           ranks[rank].program->name, "\"}}"));
  put(text("{\"ph\":\"M\",\"pid\":", rank, ",\"tid\":0,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":", rank,
           "}}"));
  name(rank, 0, "compute");
  for (const auto &[place, last] : free)
    if (int32_t line = place.second; place.first == rank) {
      bool sends = line % 2;
      if (line > 2 * all)
        name(rank, line, "sums");
      else if (size_t(line - 1) / 2 == rank)
        name(rank, line, sends ? "host memory: sent" : "host memory: received");
      else
        name(rank, line, sends ? text("send to ", line / 2) : text("receive from ", line / 2 - 1));
    }
  name(rank, 2 + 2 * all, "steps");
}

void Writer::write() {
  fprintf(file, "{\"displayTimeUnit\":\"ms\",\"made_from\":%s,\"traceEvents\":[", program.fingerprint.c_str());
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    collect(rank);
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const Trace::Event &its : ranks[rank].events)
      event(rank, its);
  int64_t perStep = 0; // numbers go on from step to step
  for (const auto &its : numbers)
    for (int64_t number : its)
      perStep = std::max(perStep, number);
  const int64_t steps = ends.empty() ? 0 : std::get<0>(ends.rbegin()->first) + 1;
  int64_t again = steps * perStep; // what is posted again in a step has numbers behind all others
  for (const auto &[which, its] : ends) {
    const auto &[step, number, times] = which;
    const int64_t id = times == 0 ? number + step * perStep : ++again;
    int64_t ready = 0, done = 0;
    for (const End &end : its) {
      bool sends = ranks[end.rank].program->messages[size_t(end.message)].kind == Kind::Send;
      ready = std::max(ready, end.posted);
      done = std::max(done, sends ? 0 : end.waited);
    }
    for (const End &end : its)
      message(id, end, ready, done);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    names(rank);
  fputs("\n]}\n", file);
}

} // namespace

/// The event of a unit comes after the events of the messages and ops inside it. The time of these messages is taken
/// out of the unit's time, so it counts once.
void Trace::settle() {
  for (size_t i = 0; i < pending.size(); ++i) {
    Event event = pending[i];
    if (event.kind == Kind::Unit)
      for (size_t behind = i; behind > 0 && pending[behind - 1].start >= event.start; --behind)
        if (pending[behind - 1].kind != Kind::Op)
          total.units -= marks->timeOf(pending[behind - 1].stop) - marks->timeOf(pending[behind - 1].start);
    int64_t &sum = event.kind == Kind::Unit   ? total.units
                   : event.kind == Kind::Post ? total.posts
                   : event.kind == Kind::Wait ? total.waits
                                              : total.ops;
    event.start = marks->timeOf(event.start);
    event.stop = marks->timeOf(event.stop);
    keep(event, sum);
  }
  pending.clear();
}

std::vector<std::vector<int64_t>> numberMessages(const std::vector<RankTrace> &ranks) {
  // By the ends of a lane, its channel, and the place in it.
  std::map<std::tuple<std::vector<int32_t>, int32_t, int64_t>, int64_t> known;
  std::vector<std::vector<int64_t>> numbers(ranks.size());
  enum class Pass : uint8_t { Sends, Receives, Inside }; // what is inside bodies has numbers behind all else
  for (Pass pass : {Pass::Sends, Pass::Receives, Pass::Inside})
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::vector<MessageSpec> &messages = ranks[rank].program->messages;
      std::map<std::pair<std::vector<int32_t>, int32_t>, int64_t> counts;
      numbers[rank].resize(messages.size());
      for (size_t i = 0; i < ranks[rank].program->stepMessages(); ++i) {
        const MessageSpec &message = messages[i];
        const bool receives = message.kind == Kind::Receive;
        if (pass != (message.inside ? Pass::Inside : receives ? Pass::Receives : Pass::Sends))
          continue;
        std::vector<int32_t> ends = message.group;
        if (!message.isCollective())
          ends = receives ? std::vector<int32_t>{message.peer, int32_t(rank)}
                          : std::vector<int32_t>{int32_t(rank), message.peer};
        int64_t place = counts[{ends, message.channel}]++;
        numbers[rank][i] = known.try_emplace({ends, message.channel, place}, int64_t(known.size()) + 1).first->second;
      }
    }
  return numbers;
}

Status writeTrace(const std::string &path, const Program &program, const std::vector<RankTrace> &ranks) {
  Draft draft;
  PP_TRY(draft.open(path));
  Writer(draft.file(), program, ranks).write();
  return draft.finish();
}

} // namespace pp
