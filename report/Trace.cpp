// Writes a simulated step as a Chrome trace, with the ids, names and lines of the one that an emitted program writes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A process is a rank. Its lines (tid), the same in runtime/files/Trace.cpp, of P ranks:
//   0          compute: units, and between them waits by cause
//   1 + 2 q    sends to rank q
//   2 + 2 q    receives from rank q
//   1 + 2 P    sums over groups
// A message has one number on all its ends (analysis/Messages.h); an arrow (flow) of this number joins them. Viewers
// take no slices that overlap on one line, nor arrows that end where nothing is: so a message ends before the next of
// its line begins, and lasts a microsecond at least.
#include "report/Names.h"
#include "report/Pictures.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/JSON.h"
#include <map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class EventWriter {
public:
  EventWriter(ProgramOp program, const Timeline &timeline, llvm::raw_ostream &os)
      : timeline(timeline), os(os), perTime(timeline.unitTime ? 1e3 : 1e6), ranks(timeline.ranks.size()),
        lineEnds(ranks) {}
  void write();

private:
  void event(llvm::function_ref<void(llvm::json::OStream &)> fill);
  void slice(int64_t rank, int64_t line, StringRef name, StringRef category, double start, double end,
             llvm::function_ref<void(llvm::json::OStream &)> arguments);
  void meta(int64_t rank, int64_t line, StringRef kind, llvm::function_ref<void(llvm::json::OStream &)> arguments);
  void names(int64_t rank);
  void unit(int64_t rank, const Span &span);
  void idle(int64_t rank, const Idle &idle);
  void memory(int64_t rank);
  void message(const Flight &flight);

  const Timeline &timeline;
  llvm::raw_ostream &os;
  double perTime; ///< microseconds
  int64_t ranks;
  std::vector<std::map<int64_t, double>> lineEnds; ///< by rank and line: where its last message ends, in microseconds
  const char *comma = "";
};

} // namespace

/// Microseconds, to the nanosecond in a step of some seconds; JSON's doubles would have seventeen digits.
static void time(llvm::json::OStream &json, StringRef name, double value) {
  json.attributeBegin(name);
  json.rawValue([&](llvm::raw_ostream &os) { os << llvm::format("%.10g", value); });
  json.attributeEnd();
}

void EventWriter::event(llvm::function_ref<void(llvm::json::OStream &)> fill) {
  os << comma << "\n";
  comma = ",";
  llvm::json::OStream json(os);
  json.object([&] { fill(json); });
}

void EventWriter::slice(int64_t rank, int64_t line, StringRef name, StringRef category, double start, double end,
                        llvm::function_ref<void(llvm::json::OStream &)> arguments) {
  event([&](llvm::json::OStream &json) {
    json.attribute("ph", "X");
    json.attribute("pid", rank);
    json.attribute("tid", line);
    json.attribute("name", name);
    json.attribute("cat", category);
    time(json, "ts", start);
    time(json, "dur", end - start);
    json.attributeObject("args", [&] { arguments(json); });
  });
}

void EventWriter::meta(int64_t rank, int64_t line, StringRef kind,
                       llvm::function_ref<void(llvm::json::OStream &)> arguments) {
  event([&](llvm::json::OStream &json) {
    json.attribute("ph", "M");
    json.attribute("pid", rank);
    json.attribute("tid", line);
    json.attribute("name", kind);
    json.attributeObject("args", [&] { arguments(json); });
  });
}

void EventWriter::names(int64_t rank) {
  meta(rank, 0, "process_name", [&](auto &json) { json.attribute("name", "rank " + std::to_string(rank)); });
  meta(rank, 0, "process_sort_index", [&](auto &json) { json.attribute("sort_index", rank); });
  auto line = [&](int64_t number, const std::string &name) {
    meta(rank, number, "thread_name", [&](auto &json) { json.attribute("name", name); });
    meta(rank, number, "thread_sort_index", [&](auto &json) { json.attribute("sort_index", number); });
  };
  line(0, "compute");
  for (auto [number, end] : lineEnds[rank]) {
    bool sends = number % 2;
    if (number > 2 * ranks)
      line(number, "sums");
    else if ((number - 1) / 2 == rank)
      line(number, sends ? "host memory: sent" : "host memory: received");
    else
      line(number, sends ? "send to " + std::to_string(number / 2) : "receive from " + std::to_string(number / 2 - 1));
  }
}

void EventWriter::unit(int64_t rank, const Span &span) {
  LaunchOp launch = span.launch;
  CoordAttr coord = span.unit().getCoord();
  slice(rank, 0, span.unit().cell(), stringifyPhase(span.unit().getPhase()), span.start * perTime, span.end * perTime,
        [&](llvm::json::OStream &json) {
          json.attribute(coord.isStage() ? StringRef("stage") : coord.getPart().getValue(), coord.getIndex());
          json.attribute("microbatch", coord.getMicrobatch());
          if (coord.getSlice() >= 0)
            json.attribute("slice", coord.getSlice());
          int64_t bytes = 0;
          for (Value result : launch.getResults())
            bytes += slotBytes(result);
          json.attribute("task", launch.getCallee());
          json.attribute("bytes", bytes);
          json.attributeArray("slots", [&] {
            for (Value result : launch.getResults())
              json.value(result.getDefiningOp<SlotOp>().getLabel());
          });
        });
}

void EventWriter::idle(int64_t rank, const Idle &idle) {
  slice(rank, 0, stringifyIdleCause(idle.cause), "idle", idle.start * perTime, idle.end * perTime,
        [&](llvm::json::OStream &json) {
          if (idle.flight < 0)
            return;
          PostOp post = timeline.flights[idle.flight].posts.front();
          json.attribute("waits for", post.getThing().str());
          json.attribute("message", timeline.messages.numberOf(post));
        });
}

void EventWriter::memory(int64_t rank) {
  for (const MemoryPoint &point : timeline.ranks[rank].memory)
    event([&](llvm::json::OStream &json) {
      json.attribute("ph", "C");
      json.attribute("pid", rank);
      json.attribute("name", "memory");
      time(json, "ts", point.time * perTime);
      json.attributeObject("args", [&] {
        for (Role role : stackedRoles())
          json.attribute(stringifyRole(role), point.bytes[static_cast<int>(role)]);
      });
    });
}

void EventWriter::message(const Flight &flight) {
  for (auto [end, rank] : llvm::zip(flight.posts, flight.ranks)) {
    PostOp post = end; // (an accessor of an op is no const function)
    PostKind kind = post.getKind();
    bool sends = kind == PostKind::send, receives = kind == PostKind::receive;
    int64_t line = 1 + 2 * (sends || receives ? post.getPeers()[0] : ranks) + receives;
    double &free = lineEnds[rank][line], start = std::max(free, flight.start * perTime);
    free = std::max(start + 1, flight.end * perTime);
    std::string name = post.getThing().str();
    slice(rank, line, name,
          sends      ? "send"
          : receives ? "recv"
                     : post.jointName(),
          start, free, [&](llvm::json::OStream &json) {
            SlotOp slot = post.getSlot().getDefiningOp<SlotOp>();
            json.attribute("message", timeline.messages.numberOf(post));
            json.attribute("bytes", flight.bytes);
            json.attribute("channel", static_cast<int64_t>(post.getChannel().value_or(0)));
            json.attribute("slot", slot.getLabel());
          });
    if (sends || receives)
      event([&](llvm::json::OStream &json) {
        json.attribute("ph", sends ? "s" : "f");
        if (receives)
          json.attribute("bp", "e");
        json.attribute("pid", rank);
        json.attribute("tid", line);
        json.attribute("name", name);
        json.attribute("cat", "message");
        json.attribute("id", timeline.messages.numberOf(post));
        time(json, "ts", start);
      });
  }
}

void EventWriter::write() {
  os << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (const Span &span : timeline.ranks[rank].spans)
      unit(rank, span);
    for (const Idle &gap : timeline.ranks[rank].idles)
      idle(rank, gap);
    memory(rank);
  }
  std::vector<const Flight *> inTime;
  for (const Flight &flight : timeline.flights)
    inTime.push_back(&flight);
  llvm::stable_sort(inTime, [](const Flight *a, const Flight *b) { return a->start < b->start; });
  for (const Flight *flight : inTime)
    message(*flight);
  for (int64_t rank = 0; rank < ranks; ++rank)
    names(rank);
  os << "\n]}\n";
}

void pp::writeTrace(ProgramOp program, const Timeline &timeline, llvm::raw_ostream &os) {
  EventWriter(program, timeline, os).write();
}
