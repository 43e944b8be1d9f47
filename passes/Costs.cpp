// Prices tasks and messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Costs.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// Free, on a lane of its own for each directed edge.
Route CostModel::route(PostKind kind, ArrayRef<int64_t> ranks, int64_t) const {
  Route route;
  if (kind == PostKind::send) {
    auto name = [](int64_t rank) { return rank == kHost ? "host" : std::to_string(rank); };
    route.links.push_back(name(ranks[0]) + ">" + name(ranks[1]));
    return route;
  }
  for (size_t i = 0; i < ranks.size(); ++i)
    route.links.push_back(std::to_string(ranks[i]) + ">" + std::to_string(ranks[(i + 1) % ranks.size()]));
  return route;
}

Ring pp::ringOf(PostKind kind, double members) {
  switch (kind) {
  case PostKind::send:
  case PostKind::receive:
    return {1, 1};
  case PostKind::all_reduce: // reduce-scatter, then all-gather
    return {2 * (members - 1) / members, 2 * (members - 1)};
  }
  return {1, 1};
}

std::unique_ptr<CostModel> pp::makeCosts(ProgramOp program, StringRef choice) {
  if (choice == "cluster" || (choice.empty() && program->hasAttr("cluster")))
    return makeClusterCosts(program);
  if (choice == "units" || choice.empty())
    return std::make_unique<UnitCosts>();
  return makeMeasuredCosts(program, choice);
}

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
