// The planning problem of one step: units with times and memory on ranks, what waits for what, and orders of the units.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_PLAN_PROBLEM_H
#define PP_ANALYSIS_PLAN_PROBLEM_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pp {

/// The kinds of units: forward, backward of inputs (or the whole backward, where it is not split), of weights.
enum PlanKind : int64_t { kPlanF, kPlanI, kPlanW };

/// One stage. Times are positive and whole, in ticks; the delays are those of messages to the next and to the previous
/// stage. A unit allocates when it starts and frees when it ends; all that a microbatch allocates it also frees.
struct PlanStage {
  int64_t rank = 0;
  std::array<int64_t, 3> time = {1, 1, 1}, alloc = {0, 0, 0}, free = {0, 0, 0};
  int64_t forward = 0, backward = 0;
};

/// Stages in model order. `isSplit`: backwards are I and W; else I stands for the whole backward and there is no W.
/// `hasBarrier`: a step ends on all ranks before the next one begins, so the makespan counts; else the period of many.
struct PlanProblem {
  int64_t ranks = 0, microbatches = 0;
  bool isSplit = true, hasBarrier = true;
  std::vector<PlanStage> stages;
  std::vector<int64_t> limits; ///< by rank

  int64_t kinds() const { return isSplit ? 3 : 2; }
  int64_t chains() const { return kinds() * static_cast<int64_t>(stages.size()); }
  int64_t units() const { return microbatches * chains(); }
  int64_t unit(int64_t kind, int64_t stage, int64_t microbatch) const {
    return microbatch * chains() + stage * kinds() + kind;
  }
  int64_t kindOf(int64_t unit) const { return unit % kinds(); }
  int64_t stageOf(int64_t unit) const { return unit % chains() / kinds(); }
  int64_t microbatchOf(int64_t unit) const { return unit / chains(); }
  const PlanStage &at(int64_t unit) const { return stages[stageOf(unit)]; }
  int64_t timeOf(int64_t unit) const { return at(unit).time[kindOf(unit)]; }
};

/// By rank: its units in the order in which it runs them.
using PlanOrder = std::vector<std::vector<int64_t>>;
/// By unit.
using PlanStarts = std::vector<int64_t>;

/// The waits between units, in one direction of time. In reverse, arrows turn round, and what was freed is allocated:
/// an order is valid exactly if its mirror image is valid in reverse, with the same peaks.
class PlanGraph {
public:
  struct Edge {
    int64_t unit = -1, delay = 0;
  };
  PlanGraph(const PlanProblem &problem, bool isReversed);

  int64_t size() const { return rank.size(); }
  int64_t ranks() const { return limits.size(); }
  int64_t chainOf(int64_t unit) const { return unit % chains; }
  /// At most two, the rest of the array has no unit.
  const std::array<Edge, 2> &before(int64_t unit) const { return preds[unit]; }
  const std::array<Edge, 2> &after(int64_t unit) const { return succs[unit]; }

  std::vector<int64_t> rank, time, alloc, free, limits;

private:
  std::vector<std::array<Edge, 2>> preds, succs;
  int64_t chains;
};

/// When the units start if every rank runs its list as soon as it can, from 0 or its time in `begins` on; nothing if
/// they wait for each other for ever, or a unit is missing.
std::optional<PlanStarts> startsOf(const PlanGraph &graph, const PlanOrder &order, std::vector<int64_t> begins = {});

/// The units of each rank by start, then by number.
PlanOrder orderOf(const PlanGraph &graph, const PlanStarts &starts);

/// The end of the last unit.
int64_t makespanOf(const PlanGraph &graph, const PlanStarts &starts);

/// The time of kPlanPeriods steps that follow each other on each rank without a barrier, after as many steps that do
/// not count. The order completes.
constexpr int64_t kPlanPeriods = 4;
int64_t periodsOf(const PlanGraph &graph, const PlanOrder &order);

/// For each rank the most bytes that are allocated at once. Ranks are serial, so the order alone decides it.
std::vector<int64_t> peaksOf(const PlanGraph &graph, const PlanOrder &order);

} // namespace pp

#endif // PP_ANALYSIS_PLAN_PROBLEM_H
