// Cases of the planner's tests: placements, times, messages and memory in the units of full stages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_UNIT_PLANCASES_H
#define PP_TEST_UNIT_PLANCASES_H

#include "analysis/plan/Planner.h"
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <string>

namespace pp {

constexpr double kTick = 1000; ///< ticks in the forward time of a full stage

/// One case: `placement` is one (a stage per rank), int (two chunks in a loop) or V. Times are those of a full stage,
/// memory is in stashes of full stages.
struct PlanCase {
  const char *placement;
  int64_t ranks, microbatches;
  double forward, inputs, weights, message, limit;
  bool isUneven = false;
};

inline int64_t ticks(double time) { return std::llround(time * kTick); }

inline PlanProblem problemOf(const PlanCase &its) {
  std::string placement = its.placement;
  int64_t p = its.ranks, chunks = placement == "one" ? 1 : 2;
  PlanProblem problem;
  problem.ranks = p;
  problem.microbatches = its.microbatches;
  for (int64_t s = 0; s < chunks * p; ++s) {
    PlanStage stage;
    stage.rank = placement == "V" ? std::min(s, 2 * p - 1 - s) : s % p;
    double more = !its.isUneven ? 0 : s == chunks * p - 1 ? 0.5 : s == 0 ? 0.2 : 0;
    double share = 1.0 / static_cast<double>(chunks);
    stage.time = {ticks(its.forward * share + more), ticks(its.inputs * share + more),
                  ticks(its.weights * share + more)};
    stage.alloc = {2 / chunks, 0, 0};
    stage.free = {0, 0, 2 / chunks};
    stage.forward = stage.backward = ticks(its.message);
    problem.stages.push_back(stage);
  }
  problem.limits.assign(p, std::llround(2 * its.limit));
  return problem;
}

inline std::string describe(const PlanCase &its) {
  return std::string(its.placement) + " p=" + std::to_string(its.ranks) + " m=" + std::to_string(its.microbatches) +
         " I=" + std::to_string(its.inputs) + " message=" + std::to_string(its.message) +
         " limit=" + std::to_string(its.limit) + (its.isUneven ? " uneven" : "");
}

/// All small cases of a grid: placements, times, messages and limits.
template <typename Fn> void eachSmallCase(std::initializer_list<std::pair<int64_t, int64_t>> sizes, Fn fn) {
  for (const char *placement : {"one", "int", "V"})
    for (auto [p, m] : sizes)
      for (double inputs : {1.0, 1.4})
        for (double message : {0.0, 0.05, 0.2})
          for (double share : {0.5, 0.75, 1.0, 1.5, 2.0}) {
            PlanCase its = {placement, p, m, 1, inputs, 2 - inputs, message, std::max(1.0, share * p)};
            SCOPED_TRACE(describe(its));
            fn(problemOf(its));
          }
}

} // namespace pp

#endif // PP_TEST_UNIT_PLANCASES_H
