// Times every unit of the rank programs, the same lists that are lowered, under a cost model.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Simulate.h"
#include "passes/Execution.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

double CostModel::of(Phase phase) const {
  switch (phase) {
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

double Timeline::busy(int64_t rank) const {
  double sum = 0;
  for (const Span &span : ranks[rank])
    sum += span.end - span.start;
  return sum;
}

Timeline pp::simulate(ProgramOp program, const CostModel &costs) {
  Execution execution(program);
  Timeline timeline;
  timeline.ranks.resize(execution.ranks());
  execution.run([&](int64_t rank, LaunchOp launch, double start) {
    Phase phase = launch.getUnit().getPhase();
    double end = start + costs.of(phase);
    if (phase != Phase::U) {
      timeline.ranks[rank].push_back({launch.getUnit(), start, end});
      timeline.makespan = std::max(timeline.makespan, end);
    }
    return end - start;
  });
  return timeline;
}
