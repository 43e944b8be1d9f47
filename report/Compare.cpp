// Prints a measured step beside the planned one: a table by rank, the tasks that differ most, the messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "report/Compare.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/Support/Format.h"
#include <map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// The columns of a rank's row: tasks by phase, waits by cause, and what is neither.
constexpr int phases = 6, causes = 4;
struct Row {
  double byPhase[phases] = {}, byCause[causes] = {};
  double rest = 0;
};

Row rowOf(const RankTimeline &rank, double step) {
  Row row;
  row.rest = step;
  for (const Span &span : rank.spans)
    row.byPhase[static_cast<int>(span.unit().getPhase())] += span.end - span.start;
  for (const Idle &idle : rank.idles)
    row.byCause[static_cast<int>(idle.cause)] += idle.end - idle.start;
  for (double part : row.byPhase)
    row.rest -= part;
  for (double part : row.byCause)
    row.rest -= part;
  return row;
}

/// Milliseconds; what rounds to nothing has no sign.
double millis(double seconds) { return std::abs(seconds) < 5e-7 ? 0 : seconds * 1e3; }

class Printer {
public:
  Printer(const Timeline &planned, const Timeline &measured, llvm::raw_ostream &os)
      : planned(planned), measured(measured), os(os), scale(planned.unitTime ? unit() : 1) {}

  void print() {
    os << llvm::format("step: planned %.3f ms, measured %.3f ms, planned / measured %.3f\n", planned.step * scale * 1e3,
                       measured.step * 1e3, planned.step * scale / measured.step);
    if (planned.unitTime)
      os << llvm::format("(planned in units; one is %.4f ms here, so that all work together is as long as measured)\n",
                         scale * 1e3);
    printRanks();
    printTasks();
    printMessages();
    printVerdict();
  }

private:
  /// Seconds of a planned unit: with it planned and measured work come to the same.
  double unit() const {
    double units = 0, seconds = 0;
    for (auto [plan, run] : llvm::zip(planned.ranks, measured.ranks)) {
      units += plan.busy;
      seconds += run.busy;
    }
    return units > 0 ? seconds / units : 1;
  }

  void cell(double seconds) { os << llvm::format(" %9.3f", millis(seconds)); }

  void printRow(StringRef name, const Row &row, double factor, double step) {
    os << llvm::left_justify(name, 10);
    for (int phase = 0; phase < phases; ++phase)
      if (used[phase])
        cell(row.byPhase[phase] * factor);
    for (double cause : row.byCause)
      cell(cause * factor);
    cell(row.rest * factor);
    cell(step * factor);
    os << "\n";
  }

  void printRanks() {
    for (const RankTimeline &rank : planned.ranks)
      for (const Span &span : rank.spans)
        used[static_cast<int>(span.unit().getPhase())] = true;
    os << "\nms        ";
    for (int phase = 0; phase < phases; ++phase)
      if (used[phase])
        os << llvm::right_justify(stringifyPhase(static_cast<Phase>(phase)), 10);
    for (StringRef name : {"depend", "in line", "on wire", "nothing", "rest", "step"})
      os << llvm::right_justify(name, 10);
    os << "\n";
    for (auto [number, plan, run] : llvm::enumerate(planned.ranks, measured.ranks)) {
      printRow("r" + std::to_string(number) + " plan", rowOf(plan, planned.step), scale, planned.step);
      printRow("r" + std::to_string(number) + " run", rowOf(run, measured.step), 1, measured.step);
    }
  }

  /// The bodies whose tasks differ most from the plan, all runs of one together.
  void printTasks() {
    struct Sum {
      double planned = 0, measured = 0;
      int64_t count = 0;
    };
    llvm::MapVector<std::pair<int64_t, StringRef>, Sum> bodies;
    for (auto [number, plan, run] : llvm::enumerate(planned.ranks, measured.ranks))
      for (auto [a, b] : llvm::zip(plan.spans, run.spans)) {
        Sum &sum = bodies[{static_cast<int64_t>(number), LaunchOp(a.launch).getCallee()}];
        sum.planned += (a.end - a.start) * scale;
        sum.measured += b.end - b.start;
        ++sum.count;
      }
    auto order = bodies.takeVector();
    auto difference = [](const Sum &sum) { return std::abs(sum.measured - sum.planned); };
    llvm::stable_sort(order, [&](const auto &a, const auto &b) { return difference(a.second) > difference(b.second); });
    os << "\ntasks that differ most     planned  measured  (ms, all runs of a step)\n";
    for (const auto &[body, sum] : llvm::ArrayRef(order).take_front(8)) {
      os << llvm::left_justify("r" + std::to_string(body.first) + " " + body.second.str(), 18)
         << llvm::format("%4lld x", static_cast<long long>(sum.count));
      cell(sum.planned);
      cell(sum.measured);
      os << "\n";
    }
  }

  /// By lane: from when both ends are ready to when the message is there.
  void printMessages() {
    struct Sum {
      double planned = 0, measured = 0;
      int64_t count = 0, bytes = 0;
    };
    std::map<std::string, Sum> lanes;
    auto add = [&](const Timeline &timeline, double factor, bool counts, double Sum::*into) {
      for (const Flight &flight : timeline.flights) {
        SmallVector<int64_t, 2> ends = flight.ranks;
        if (flight.kind() == PostKind::receive)
          std::swap(ends[0], ends[1]);
        std::string name;
        for (int64_t rank : ends)
          name += (name.empty() ? "" : ends.size() > 2 ? "+" : ">") + std::to_string(rank);
        Sum &sum = lanes[name];
        sum.*into += std::max(0.0, flight.end - flight.ready) * factor;
        sum.count += counts;
        sum.bytes += counts ? flight.bytes : 0;
      }
    };
    add(planned, scale, true, &Sum::planned);
    add(measured, 1, false, &Sum::measured);
    os << "\nmessages          bytes    planned  measured  (ms from the last post until the message was waited for)\n";
    for (const auto &[name, sum] : lanes) {
      os << llvm::left_justify(name, 8) << llvm::format("%4lld x", static_cast<long long>(sum.count))
         << llvm::format("%10lld", static_cast<long long>(sum.bytes));
      cell(sum.planned);
      cell(sum.measured);
      os << "\n";
    }
  }

  /// Prints where the rank that ends last took longer than planned.
  void printVerdict() {
    size_t last = 0;
    for (auto [number, rank] : llvm::enumerate(measured.ranks))
      if (rank.busy > measured.ranks[last].busy)
        last = number;
    Row plan = rowOf(planned.ranks[last], planned.step), run = rowOf(measured.ranks[last], measured.step);
    double tasks = 0, waits = 0;
    for (int phase = 0; phase < phases; ++phase)
      tasks += run.byPhase[phase] - plan.byPhase[phase] * scale;
    for (int cause = 0; cause < causes; ++cause)
      waits += run.byCause[cause] - plan.byCause[cause] * scale;
    os << llvm::format(
        "\nrank %zu, which works longest, took %+.3f ms: tasks %+.3f, waits and messages %+.3f, rest %+.3f\n", last,
        millis(measured.step - planned.step * scale), millis(tasks), millis(waits),
        millis(run.rest - plan.rest * scale));
  }

  const Timeline &planned, &measured;
  llvm::raw_ostream &os;
  double scale; ///< of planned times, to seconds
  bool used[phases] = {};
};

} // namespace

void pp::printComparison(const Timeline &planned, const Timeline &measured, llvm::raw_ostream &os) {
  Printer(planned, measured, os).print();
}
