// The planning problem of a program: its units with the simulator's times and the bytes of the memory plan.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_PLAN_PLANPROBLEM_H
#define PP_PASSES_PLAN_PLANPROBLEM_H

#include "analysis/Actions.h"
#include "analysis/costs/Costs.h"
#include "analysis/plan/Planner.h"

namespace pp {

/// One error, at its place, for the first thing in a program of actions that the planner cannot plan.
mlir::LogicalResult checkPlannable(pipeline::ProgramOp program);

/// Whether all backwards of the program are whole.
bool hasWholeBackwards(pipeline::ProgramOp program);

/// The planner's kind of a unit of this phase.
int64_t planKindOf(pipeline::Phase phase);

/// Replaces every backward by its two halves, one behind the other.
void splitBackwards(pipeline::ProgramOp program);

/// The order of the actions' units. `isSplit`: there are no whole backwards.
PlanOrder readPlanOrder(pipeline::ProgramOp program, const PlanProblem &problem);

/// Whether stashes of the program wait in host memory.
bool hasOffloads(pipeline::ProgramOp program);

/// Replaces the units by those of the order and drops the limits. A unit keeps its location; one half of a backward
/// that was whole has that of the whole. A stage of which a stash waits in host memory sends every stash there that has
/// the time: it leaves right behind its forward, comes back `ahead` units before its backward, and is there meanwhile.
void writePlanOrder(pipeline::ProgramOp program, const PlanProblem &problem, const PlanOrder &order, int64_t ahead);

/// A problem and what its ticks are. Where a stage recomputes, R is a part of its backward: the order has it right
/// before that.
struct TimedProblem {
  PlanProblem problem;
  double tick = 1;            ///< in the costs' unit of time
  std::vector<int64_t> again; ///< by stage: the time of R
  std::vector<int64_t> host;  ///< by stage: how long its stash is on the way to host memory, or back; 0 if it stays

  /// No order that the simulator may see is shorter: R may also run while its rank waits for a gradient.
  int64_t lowerBound() const;
};

/// Reads the problem from the rank programs of a compiled program whose units stood in `order`. What the memory plan
/// needs beside stashes, such as weights and buffers of messages, is taken off the ranks' `limits`: it is the bytes of
/// the plan that `order` has no use for as stashes.
TimedProblem readPlanProblem(pipeline::ProgramOp program, const CostModel &costs, bool isSplit,
                             llvm::ArrayRef<int64_t> limits,
                             llvm::function_ref<PlanOrder(const PlanProblem &)> orderOf);

} // namespace pp

#endif // PP_PASSES_PLAN_PLANPROBLEM_H
