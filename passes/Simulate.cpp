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

Timeline pp::simulate(ProgramOp program, const CostModel &costs) {
  Execution execution(program);
  Timeline timeline;
  timeline.unitTime = costs.isUnitTime();
  timeline.ranks.resize(execution.ranks());
  execution.run([&](int64_t number, LaunchOp launch, double start) {
    RankTimeline &rank = timeline.ranks[number];
    Span span = {launch, start, start + costs.of(number, launch)};
    timeline.step = std::max(timeline.step, span.end);
    if (span.isWork()) {
      rank.first = rank.busy == 0 && rank.spans.empty() ? start : rank.first;
      rank.busy += span.end - start;
      rank.last = span.end;
      timeline.makespan = std::max(timeline.makespan, span.end);
    }
    rank.spans.push_back(span);
    return span.end - start;
  });
  return timeline;
}
