// The planner: finds an order of a step's units that is short and fits the memory, and a bound that no order beats.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// docs/planning.md says how it works. The parts are declared here one by one for their tests.
#ifndef PP_ANALYSIS_PLAN_PLANNER_H
#define PP_ANALYSIS_PLAN_PLANNER_H

#include "analysis/plan/Problem.h"
#include <string>

namespace pp {

struct Plan {
  PlanOrder order;
  std::string seed;                  ///< where it comes from: `repetend 2 + J`
  int64_t makespan = 0, periods = 0; ///< periods: as periodsOf has them, 0 with a barrier
  std::vector<int64_t> peaks;        ///< by rank
};

/// An order that the planner starts from, whether it fits the memory or not.
struct PlanSeed {
  std::string name;
  PlanOrder order;
};

/// High: what normal effort found is improved by drawn patterns, drawn lists and annealing, a fixed number of each.
enum class PlanEffort { Normal, High };

/// The best order that is found, from these seeds and the planner's own; nothing if none fits the memory.
/// Deterministic: times are whole numbers, ties go by number, what is drawn is drawn with a fixed seed.
std::optional<Plan> planOrder(const PlanProblem &problem, const std::vector<PlanSeed> &seeds,
                              PlanEffort effort = PlanEffort::Normal);

/// No order has a shorter makespan within the limits.
int64_t lowerBoundOf(const PlanProblem &problem);
/// No order has a shorter period: what the rank with most work computes in a step.
int64_t mostWorkOf(const PlanProblem &problem);

/// One pass of justification: every unit starts as early as the units placed before it allow, into gaps where memory
/// has room. No unit starts later than in `starts`, which must be of an order that fits the memory.
PlanStarts justifyOnce(const PlanGraph &graph, const PlanStarts &starts);

/// Slides all units right, then left, until that gains nothing; never a longer makespan. `order` fits and completes.
PlanOrder justify(const PlanGraph &forward, const PlanGraph &reversed, const PlanOrder &order, int rounds);

/// What a list schedule runs first: the ready unit with the smallest number. `looksAhead`: a rank waits for a better
/// unit that is about to arrive.
struct PlanPriorities {
  std::vector<int64_t> of; ///< by unit
  bool looksAhead = false;
};
/// Runs whatever is ready and leaves enough memory for the oldest microbatch to finish; nothing if it gets stuck.
std::optional<PlanOrder> listOrder(const PlanProblem &problem, const PlanGraph &graph,
                                   const PlanPriorities &priorities);

/// Distances of one microbatch's units in a repeated pattern: factors of a unit's time after forwards of the first
/// chunk and of others, after backwards of the last chunk and of others, and of the shortest period.
struct PlanSpacing {
  double firstF, laterF, lastI, earlierI, period;
  std::vector<double> stageF = {}, stageI = {}; ///< by stage, where they are not empty: in place of the factors
};
/// One microbatch's units placed modulo a period, repeated; nothing if no period within reach fits the memory.
std::optional<PlanOrder> repetendOrder(const PlanProblem &problem, const PlanGraph &graph, const PlanSpacing &spacing);

/// Numbers that look random and are always the same.
class PlanDraws {
public:
  uint64_t next();
  uint64_t below(uint64_t end) { return next() % end; }

private:
  uint64_t state = 0;
};

/// Moves units along the lists, `tries` times, and returns the shortest order. At first it accepts orders that are up
/// to `hottest` ticks longer, at the end none; it stops at `bound`. `order` and all later ones fit and complete.
PlanOrder annealOrder(const PlanGraph &graph, const PlanOrder &order, int64_t tries, int64_t hottest, int64_t bound,
                      PlanDraws &draws);

/// The orders that papers write for the problem's placement.
std::vector<PlanSeed> closedForms(const PlanProblem &problem);

} // namespace pp

#endif // PP_ANALYSIS_PLAN_PLANNER_H
