// Times every task of the rank programs, the same lists that are lowered, under a cost model.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Simulate.h"
#include "passes/Execution.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

double UnitCosts::of(int64_t, LaunchOp launch) const {
  switch (launch.getUnit().getPhase()) {
  case Phase::F:
    return forward;
  case Phase::B:
    return backward;
  case Phase::I:
    return inputs;
  case Phase::W:
    return weights;
  case Phase::R:
    return recompute;
  case Phase::U:
    return 0;
  }
  return 0;
}

StringRef pp::stringifyIdleCause(IdleCause cause) {
  static constexpr StringLiteral names[] = {"dependency", "head of line", "communication", "imbalance"};
  return names[static_cast<int>(cause)];
}

double Timeline::span() const {
  double longest = 0;
  for (const RankTimeline &rank : ranks)
    longest = std::max(longest, rank.last - rank.first);
  return longest;
}

double Timeline::bubble() const {
  double busy = 0, all = makespan * ranks.size();
  for (const RankTimeline &rank : ranks)
    busy += rank.busy;
  return all > 0 ? 1 - busy / all : 0;
}

namespace {

/// Fills a timeline while the programs execute; messages take no time.
class Recorder : public ExecutionListener {
public:
  Recorder(Timeline &timeline, const CostModel &costs)
      : timeline(timeline), costs(costs), clocks(timeline.ranks.size()) {}

  void launched(int64_t number, LaunchOp launch) override {
    RankTimeline &rank = timeline.ranks[number];
    double start = clocks[number], end = start + costs.of(number, launch);
    Span span = {launch, start, end};
    clocks[number] = end;
    timeline.step = std::max(timeline.step, end);
    if (span.isWork()) {
      rank.first = rank.busy == 0 ? start : rank.first;
      rank.busy += end - start;
      rank.last = end;
      timeline.makespan = std::max(timeline.makespan, end);
    }
    rank.spans.push_back(span);
  }
  void posted(int64_t rank, PostOp post) override { times[post] = clocks[rank]; }
  void delivered(ArrayRef<std::pair<int64_t, PostOp>> ends) override {
    double last = 0;
    for (auto [rank, post] : ends)
      last = std::max(last, times[post]);
    for (auto [rank, post] : ends)
      times[post] = last;
  }
  void completed(int64_t rank, PostOp post) override { clocks[rank] = std::max(clocks[rank], times[post]); }

private:
  Timeline &timeline;
  const CostModel &costs;
  std::vector<double> clocks;
  llvm::DenseMap<Operation *, double> times; ///< of a post, then of its message
};

} // namespace

Timeline pp::simulate(ProgramOp program, const CostModel &costs) {
  Execution execution(program);
  Timeline timeline;
  timeline.unitTime = costs.isUnitTime();
  timeline.ranks.resize(execution.ranks());
  Recorder recorder(timeline, costs);
  execution.run(recorder);
  return timeline;
}
