// Finds one step in the trace of a run and lays its slices over the program's launches and messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "report/Measured.h"
#include "analysis/Fingerprint.h"
#include "dialect/Input.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// A slice of the trace, in microseconds.
struct Slice {
  std::string name, category;
  double start = 0, end = 0;
  int64_t message = 0;
};

class Reader {
public:
  Reader(ProgramOp program, StringRef path) : program(program), path(path), ranks(program.getRanks()) {
    timeline.messages = Messages(program);
  }
  LogicalResult parse();
  LogicalResult chooseStep();
  FailureOr<Timeline> read();

private:
  InFlightDiagnostic error() { return emitError(program.getLoc()) << "`" << path << "` of --compare "; }
  StringRef readSlice(const llvm::json::Object &event);
  void readFlights();
  LogicalResult readSpans(RankOp rank);
  void readIdles(int64_t rank);
  double seconds(double micros) const { return (micros - begin) * 1e-6; }
  bool inStep(int64_t rank, const Slice &slice) const {
    const Slice &whole = steps[rank][step];
    return slice.start >= whole.start && slice.start <= whole.end;
  }

  ProgramOp program;
  StringRef path;
  size_t ranks;
  std::vector<std::vector<Slice>> compute{ranks}, steps{ranks}, arrivals{ranks};
  size_t step = 0;
  double begin = 0;
  Timeline timeline;
};

} // namespace

/// Returns the field that is wrong, if so.
StringRef Reader::readSlice(const llvm::json::Object &event) {
  auto pid = event.getInteger("pid");
  auto category = event.getString("cat"), name = event.getString("name");
  auto start = event.getNumber("ts"), length = event.getNumber("dur");
  if (!pid || *pid < 0 || *pid >= static_cast<int64_t>(ranks))
    return "pid";
  if (!category || !name)
    return category ? "name" : "cat";
  if (!isQuantity(start) || !isQuantity(length) || !std::isfinite(*start + *length))
    return isQuantity(start) ? "dur" : "ts";
  Slice slice = {name->str(), category->str(), *start, *start + *length, 0};
  if (const llvm::json::Object *arguments = event.getObject("args"))
    slice.message = arguments->getInteger("message").value_or(0);
  if (*category == "step")
    steps[*pid].push_back(slice);
  else if (llvm::is_contained({"recv", "sum", "broadcast", "gather"}, *category))
    arrivals[*pid].push_back(slice);
  else if (*category == "idle" || *category == "post" || symbolizePhase(*category))
    compute[*pid].push_back(slice);
  return "";
}

LogicalResult Reader::parse() {
  if (MeshAttr mesh = program.getMeshAttr(); mesh && mesh.devicesOfRank() > 1)
    return error() << "is of a program with " << mesh.devicesOfRank()
                   << " devices a rank; expected one, for a plan has "
                   << "one row a rank";
  std::string why;
  std::unique_ptr<llvm::MemoryBuffer> buffer = readInput(path, why);
  if (!buffer)
    return error() << "cannot be read: " << why;
  auto json = parseJsonFile(path, buffer->getBuffer(), program.getContext());
  if (failed(json))
    return failure();
  const llvm::json::Object *whole = json->getAsObject();
  const llvm::json::Array *events = whole ? whole->getArray("traceEvents") : nullptr;
  if (!events)
    return error() << "is not a trace; expected a file that a run wrote with --trace";
  if (std::string why = differenceFrom(program, *whole, /*inOrder=*/true); !why.empty())
    return error() << why;
  for (const llvm::json::Value &event : *events)
    if (const llvm::json::Object *object = event.getAsObject(); object && object->getString("ph") == "X")
      if (StringRef field = readSlice(*object); !field.empty())
        return error() << "has an event whose `" << field << "` is missing, of another program, or no time of at "
                       << "least 0: " << llvm::formatv("{0}", event).str();
  return success();
}

LogicalResult Reader::chooseStep() {
  size_t count = steps.front().size();
  for (const auto &its : steps)
    count = std::min(count, its.size());
  if (count == 0)
    return error() << "does not hold a whole step of " << ranks << " ranks";
  auto lengthOf = [&](size_t number) {
    double first = steps[0][number].start, last = 0;
    for (const auto &its : steps) {
      first = std::min(first, its[number].start);
      last = std::max(last, its[number].end);
    }
    return last - first;
  };
  std::vector<size_t> order;
  for (size_t number = count > 1; number < count; ++number) // the first step touches every page
    order.push_back(number);
  llvm::sort(order, [&](size_t a, size_t b) { return lengthOf(a) < lengthOf(b); });
  step = order[order.size() / 2];
  begin = steps[0][step].start;
  for (const auto &its : steps)
    begin = std::min(begin, its[step].start);
  return success();
}

void Reader::readFlights() {
  timeline.flights.resize(timeline.messages.size());
  for (auto rank : program.getOps<RankOp>())
    for (auto post : rank.getOps<PostOp>()) {
      Flight &flight = timeline.flights[timeline.messages.numberOf(post) - 1];
      size_t place = post.getKind() == PostKind::send ? 0 : flight.posts.size();
      flight.posts.insert(flight.posts.begin() + place, post);
      flight.ranks.insert(flight.ranks.begin() + place, rank.getRank());
      flight.bytes = bytesOf(post);
    }
  for (const auto &its : arrivals)
    for (const Slice &slice : its)
      if (int64_t number = slice.message - static_cast<int64_t>(step) * timeline.messages.size();
          number > 0 && number <= timeline.messages.size()) {
        Flight &flight = timeline.flights[number - 1];
        flight.posted = flight.ready = flight.start = seconds(slice.start);
        flight.end = seconds(slice.end);
      }
}

LogicalResult Reader::readSpans(RankOp rank) {
  RankTimeline &record = timeline.ranks[rank.getRank()];
  std::vector<const Slice *> units;
  for (const Slice &slice : compute[rank.getRank()])
    if (symbolizePhase(slice.category) && inStep(rank.getRank(), slice))
      units.push_back(&slice);
  llvm::stable_sort(units, [](const Slice *a, const Slice *b) { return a->start < b->start; });
  bool working = false;
  for (auto [number, launch] : llvm::enumerate(rank.getOps<LaunchOp>())) {
    std::string wanted = launch.getUnit().cell();
    if (number >= units.size() || units[number]->name != wanted)
      return error() << "is of another program: unit " << number << " of rank " << rank.getRank() << " is "
                     << (number < units.size() ? "`" + units[number]->name + "`" : "missing") << ", expected `"
                     << wanted << "`";
    Span span = {launch, seconds(units[number]->start), seconds(units[number]->end)};
    timeline.step = std::max(timeline.step, span.end);
    if (span.isWork()) {
      record.first = working ? record.first : span.start;
      working = true;
      record.busy += span.end - span.start;
      record.last = span.end;
      timeline.makespan = std::max(timeline.makespan, span.end);
    }
    record.spans.push_back(span);
  }
  return success();
}

/// A wait counts as a wait for the sender until the message is ready, and then as a wait for its transfer. The time of
/// posts counts in the same way.
void Reader::readIdles(int64_t rank) {
  RankTimeline &record = timeline.ranks[rank];
  double last = record.spans.empty() ? 0 : record.spans.back().end;
  for (const Slice &slice : compute[rank]) {
    if (symbolizePhase(slice.category) || !inStep(rank, slice))
      continue;
    int64_t flight = slice.message > 0 && slice.message <= timeline.messages.size() ? slice.message - 1 : -1;
    double start = seconds(slice.start), end = seconds(slice.end);
    double ready =
        flight < 0 || slice.category == "post" ? start : std::clamp(timeline.flights[flight].ready, start, end);
    bool early = record.spans.empty() || start < record.spans.front().start;
    if (ready > start)
      record.idles.push_back({start, ready, early ? IdleCause::imbalance : IdleCause::dependency, flight});
    if (end > ready)
      record.idles.push_back({ready, end, IdleCause::communication, flight});
    last = std::max(last, end);
  }
  if (timeline.step > last)
    record.idles.push_back({last, timeline.step, IdleCause::imbalance, -1});
}

FailureOr<Timeline> Reader::read() {
  timeline.unitTime = false;
  timeline.ranks.resize(ranks);
  readFlights();
  for (auto rank : program.getOps<RankOp>()) {
    if (failed(readSpans(rank)))
      return failure();
  }
  for (auto rank : program.getOps<RankOp>()) // when the end of the step is known
    readIdles(rank.getRank());
  return std::move(timeline);
}

FailureOr<Timeline> pp::readMeasured(ProgramOp program, StringRef path) {
  Reader reader(program, path);
  if (failed(reader.parse()) || failed(reader.chooseStep()))
    return failure();
  return reader.read();
}
