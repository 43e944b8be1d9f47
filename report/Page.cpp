// Puts a simulated step, as JSON, into the page that draws it: Page.html, a part of this program.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Proof.h"
#include "report/Names.h"
#include "report/Pictures.h"
#include "report/Report.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static constexpr llvm::StringLiteral kPage =
#include "report/Page.inc"
    ;

namespace {

/// Times are whole numbers: thousandths of a unit of time, or nanoseconds.
class Data {
public:
  Data(ProgramOp program, const Timeline &timeline, llvm::json::OStream &json)
      : program(program), timeline(timeline), json(json), unitNames(program), perTime(timeline.unitTime ? 1e3 : 1e9) {}
  void write(const Timeline *measured, StringRef watched);

private:
  int64_t ticks(double time) const { return std::llround(time * perTime); }
  void numbers(const Timeline &its);
  void words(const Timeline *measured);
  void measuredRanks(const Timeline &measured);
  void rank(RankOp op, const RankTimeline &its);
  void spans(int64_t rank, ArrayRef<Span> spans);
  void needs(RankOp op);
  void idles(ArrayRef<Idle> idles);
  void memory(const RankTimeline &its);
  void messages();
  template <typename Range, typename Value> void column(StringRef name, Range &&range, Value value) {
    json.attributeArray(name, [&] {
      for (auto &&entry : range)
        json.value(value(entry));
    });
  }

  ProgramOp program;
  const Timeline &timeline;
  llvm::json::OStream &json;
  UnitNames unitNames;
  double perTime;
  llvm::MapVector<StringRef, int64_t> tasks;
  llvm::DenseMap<Operation *, int64_t> flightOf; ///< of posts
};

} // namespace

/// If two units run in turn, each has half of their common time.
static std::vector<double> ownTimes(ArrayRef<Span> spans) {
  std::vector<double> times;
  for (auto [i, span] : llvm::enumerate(spans)) {
    times.push_back(span.end - span.start);
    if (span.lane != 2)
      continue;
    const Span &other = spans[i - 1];
    double both = std::max(0.0, std::min(span.end, other.end) - std::max(span.start, other.start));
    times[i - 1] -= both / 2;
    times[i] -= both / 2;
  }
  return times;
}

static double work(const Timeline &timeline) {
  double busy = 0;
  for (const RankTimeline &rank : timeline.ranks)
    busy += rank.busy;
  return busy;
}

void Data::numbers(const Timeline &its) {
  json.attribute("makespan", ticks(its.makespan));
  json.attribute("span", ticks(its.span()));
  json.attribute("step", ticks(its.step));
  json.attribute("bubble", its.bubble());
}

void Data::words(const Timeline *measured) {
  json.attribute("title", titleOf(program));
  json.attribute("unit_time", timeline.unitTime);
  json.attribute("ticks", perTime);
  std::string costs = timeline.unitTime ? "time in units; messages take none" : "";
  if (!timeline.units.empty())
    costs += "; " + timeline.units;
  if (timeline.unitTime && measured)
    costs += llvm::formatv("; measured time is scaled to as much work: a unit is {0} ms",
                           llvm::format("%.4g", 1e3 * work(*measured) / work(timeline)));
  json.attribute("costs", costs);
  json.attribute("pieces", unitNames.pieces());
  json.attributeObject("phases", [&] {
    for (uint32_t phase = 0; phase <= getMaxEnumValForPhase(); ++phase)
      json.attribute(stringifyPhase(Phase(phase)), describe(Phase(phase)));
  });
  json.attributeObject("colors", [&] {
    for (uint32_t phase = 0; phase <= getMaxEnumValForPhase(); ++phase)
      for (int64_t piece = 0; piece < unitNames.pieces(); ++piece)
        json.attribute((stringifyPhase(Phase(phase)) + Twine(piece)).str(),
                       colorOf(Phase(phase), piece, unitNames.pieces()));
  });
  auto entry = [&](StringRef name, StringRef color) {
    json.object([&] {
      json.attribute("name", name);
      json.attribute("color", color);
    });
  };
  json.attributeArray("parts", [&] {
    for (auto [part, words] : llvm::enumerate(unitNames.parts()))
      entry(words, colorOfPart(part));
  });
  json.attributeArray("roles", [&] {
    for (Role role : stackedRoles())
      entry(stringifyRole(role), colorOf(role));
  });
  json.attributeArray("causes", [&] {
    for (IdleCause cause :
         {IdleCause::dependency, IdleCause::headOfLine, IdleCause::communication, IdleCause::imbalance})
      entry(stringifyIdleCause(cause), colorOf(cause));
  });
}

//===-- Ranks ---------------------------------------------------------------------------------------------------===//

static int64_t bytesOf(ValueRange slots) {
  int64_t bytes = 0;
  for (Value slot : slots)
    bytes += slotBytes(slot);
  return bytes;
}

void Data::spans(int64_t rank, ArrayRef<Span> spans) {
  column("name", spans, [](const Span &span) { return span.unit().cell(); });
  column("label", spans, [&](const Span &span) { return unitNames.shortOf(span.unit()); });
  column("phase", spans, [](const Span &span) { return stringifyPhase(span.unit().getPhase()); });
  column("piece", spans, [&](const Span &span) { return unitNames.pieceOf(rank, span.unit()); });
  column("start", spans, [&](const Span &span) { return ticks(span.start); });
  column("end", spans, [&](const Span &span) { return ticks(span.end); });
  if (!unitNames.parts().empty())
    column("part", spans, [&](const Span &span) { return unitNames.partOf(span.unit()); });
  if (llvm::none_of(spans, [](const Span &span) { return span.lane > 0; }))
    return;
  column("lane", spans, [](const Span &span) { return span.lane; });
  column("own", ownTimes(spans), [&](double time) { return ticks(time); });
}

/// The messages that a rank completes before each launch and after the one before it.
void Data::needs(RankOp op) {
  json.attributeArray("waits", [&] {
    SmallVector<int64_t> since;
    for (Operation &op : op.getBody().front()) {
      if (auto done = dyn_cast<CompleteOp>(op)) {
        auto post = done.getRequest().getDefiningOp<PostOp>();
        if (post.getKind() != PostKind::send)
          since.push_back(flightOf.lookup(post));
      } else if (isa<LaunchOp>(op)) {
        json.array([&] {
          for (int64_t flight : since)
            json.value(flight);
        });
        since.clear();
      }
    }
  });
}

void Data::idles(ArrayRef<Idle> idles) {
  json.attributeArray("idles", [&] {
    for (const Idle &idle : idles)
      json.array([&] {
        json.value(ticks(idle.start));
        json.value(ticks(idle.end));
        json.value(static_cast<int64_t>(idle.cause));
        json.value(idle.flight);
      });
  });
}

void Data::memory(const RankTimeline &its) {
  int64_t peak = 0;
  for (const MemoryPoint &point : its.memory)
    peak = std::max(peak, point.total);
  json.attribute("peak", peak);
  json.attributeArray("memory", [&] {
    for (const MemoryPoint &point : its.memory)
      json.array([&] {
        json.value(ticks(point.time));
        for (Role role : stackedRoles())
          json.value(point.bytes[static_cast<int>(role)]);
      });
  });
}

void Data::rank(RankOp op, const RankTimeline &its) {
  spans(op.getRank(), its.spans);
  column("task", its.spans, [&](const Span &span) {
    return tasks.insert({LaunchOp(span.launch).getCallee(), tasks.size()}).first->second;
  });
  column("reads", its.spans, [](const Span &span) { return bytesOf(LaunchOp(span.launch).getInputs()); });
  column("writes", its.spans, [](const Span &span) { return bytesOf(LaunchOp(span.launch).getResults()); });
  needs(op);
  idles(its.idles);
  memory(its);
}

//===-- The whole -----------------------------------------------------------------------------------------------===//

void Data::messages() {
  json.attributeArray("messages", [&] {
    for (const Flight &flight : timeline.flights)
      json.array([&] {
        json.value(PostOp(flight.posts.front()).getThing().str());
        json.value(flight.ranks.front());
        json.value(flight.kind() == PostKind::send ? flight.ranks.back() : -1);
        for (double time : {flight.posted, flight.ready, flight.start, flight.end})
          json.value(ticks(time));
        json.value(flight.bytes);
      });
  });
}

/// If the plan has no seconds, its unit of time is chosen so that the work in both is equally long.
void Data::measuredRanks(const Timeline &measured) {
  double planned = perTime;
  if (timeline.unitTime && work(measured) > 0)
    perTime *= work(timeline) / work(measured);
  json.attributeObject("measured", [&] {
    numbers(measured);
    json.attributeArray("ranks", [&] {
      for (auto [number, its] : llvm::enumerate(measured.ranks))
        json.object([&, number = number, &its = its] {
          spans(number, its.spans);
          idles(its.idles);
        });
    });
  });
  perTime = planned;
}

void Data::write(const Timeline *measured, StringRef watched) {
  for (auto [number, flight] : llvm::enumerate(timeline.flights))
    for (PostOp post : flight.posts)
      flightOf[post] = number;
  json.object([&] {
    words(measured);
    if (!watched.empty())
      json.attribute("watched", watched);
    numbers(timeline);
    json.attributeArray("ranks", [&] {
      for (auto [op, its] : llvm::zip(program.getOps<RankOp>(), timeline.ranks))
        json.object([&] { rank(op, its); });
    });
    column("tasks", tasks, [](const auto &task) { return task.first; });
    messages();
    if (measured)
      measuredRanks(*measured);
    json.attributeBegin("stats");
    writeStats(program, timeline, json);
    json.attributeEnd();
    json.attributeBegin("proof");
    json.rawValue([&](llvm::raw_ostream &os) { printProofJson(Proof(program), os); });
    json.attributeEnd();
  });
}

void pp::writeReport(ProgramOp program, const Timeline &timeline, const Timeline *measured, StringRef watched,
                     llvm::raw_ostream &os) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  llvm::json::OStream json(stream);
  Data(program, timeline, json).write(measured, watched);
  auto [before, after] = kPage.split("{{DATA}}");
  os << before;
  for (StringRef rest = text; !rest.empty();) { // `</` would end the page's element, `<\/` is the same string to JSON
    auto [part, more] = rest.split("</");
    os << part << (more.data() ? "<\\/" : "");
    rest = more;
  }
  os << after;
}
