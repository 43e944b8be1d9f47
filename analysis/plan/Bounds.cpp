// Lower bounds: times that no order of the units can beat, whatever it is.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All rest on the fact that some best order runs each kind of unit of each stage in the order of the microbatches: they
// are equal, so they can be renamed. Hence three kinds of arrows: data; a unit after that of the microbatch before; and
// a forward after what frees the stash of the microbatch that is as many before it as stashes fit.
#include "analysis/plan/Planner.h"
#include <algorithm>
#include <queue>

using namespace pp;

namespace {

class PlanBounds {
public:
  explicit PlanBounds(const PlanProblem &problem)
      : problem(problem), stages(problem.stages.size()), heads(problem.units(), 0), tails(problem.units(), 0) {
    connect();
  }

  int64_t run() const {
    int64_t bound = 0;
    for (int64_t rank = 0; rank < problem.ranks; ++rank)
      bound = std::max({bound, oneMachine(rank), byMemory(rank)});
    return bound;
  }

private:
  const PlanProblem &problem;
  int64_t stages;
  /// The time before a unit can start, and the time after its end until the step can end.
  std::vector<int64_t> heads, tails;

  int64_t delay(int64_t from, int64_t to) const {
    const PlanStage &sender = problem.stages[from];
    return sender.rank == problem.stages[to].rank ? 0 : from < to ? sender.forward : sender.backward;
  }

  /// The bytes that a forward allocates and that stay until the backward.
  static int64_t staysOf(const PlanStage &stage) {
    return std::max<int64_t>(0, stage.alloc[kPlanF] - stage.free[kPlanF]);
  }

  template <typename Fn> void eachArrow(int64_t unit, Fn fn) const { // (from, delay)
    int64_t kind = problem.kindOf(unit), s = problem.stageOf(unit), i = problem.microbatchOf(unit);
    if (kind == kPlanF && s > 0)
      fn(problem.unit(kPlanF, s - 1, i), delay(s - 1, s));
    if (kind == kPlanI && s + 1 < stages)
      fn(problem.unit(kPlanI, s + 1, i), delay(s + 1, s));
    if (kind > 0)
      fn(problem.unit(kind - 1, s, i), 0);
    if (i > 0)
      fn(problem.unit(kind, s, i - 1), 0);
    const PlanStage &stage = problem.stages[s];
    int64_t stays = staysOf(stage), room = problem.limits[stage.rank] - stage.alloc[kPlanF];
    int64_t fit = stays > 0 && room >= 0 ? room / stays + 1 : 0;
    if (kind == kPlanF && fit > 0 && i >= fit)
      fn(problem.unit(stage.free[kPlanI] > 0 || !problem.isSplit ? kPlanI : kPlanW, s, i - fit), 0);
  }

  void connect() {
    std::vector<int64_t> order; // every arrow goes forward in it
    for (int64_t i = 0; i < problem.microbatches; ++i) {
      for (int64_t s = 0; s < stages; ++s)
        order.push_back(problem.unit(kPlanF, s, i));
      for (int64_t s = stages - 1; s >= 0; --s)
        for (int64_t kind = kPlanI; kind < problem.kinds(); ++kind)
          order.push_back(problem.unit(kind, s, i));
    }
    for (int64_t unit : order)
      eachArrow(unit, [&](int64_t from, int64_t delay) {
        heads[unit] = std::max(heads[unit], heads[from] + problem.timeOf(from) + delay);
      });
    std::reverse(order.begin(), order.end());
    for (int64_t unit : order)
      eachArrow(unit, [&](int64_t from, int64_t delay) {
        tails[from] = std::max(tails[from], delay + problem.timeOf(unit) + tails[unit]);
      });
  }

  std::vector<int64_t> unitsOf(int64_t rank) const {
    std::vector<int64_t> units;
    for (int64_t unit = 0; unit < problem.units(); ++unit)
      if (problem.at(unit).rank == rank)
        units.push_back(unit);
    return units;
  }

  /// A bound by Jackson's rule: a machine that may interrupt its units always runs the ready unit with the longest
  /// tail.
  int64_t oneMachine(int64_t rank) const {
    std::vector<int64_t> units = unitsOf(rank);
    std::sort(units.begin(), units.end(), [&](int64_t a, int64_t b) { return heads[a] < heads[b]; });
    std::priority_queue<std::pair<int64_t, int64_t>> ready; // tail, what is left
    int64_t now = 0, bound = 0;
    size_t next = 0;
    while (next < units.size() || !ready.empty()) {
      if (ready.empty())
        now = std::max(now, heads[units[next]]);
      for (; next < units.size() && heads[units[next]] <= now; ++next)
        ready.push({tails[units[next]], problem.timeOf(units[next])});
      auto [tail, left] = ready.top();
      ready.pop();
      int64_t run = next < units.size() ? std::min(left, heads[units[next]] - now) : left;
      now += run;
      if (run < left)
        ready.push({tail, left - run});
      else
        bound = std::max(bound, now + tail);
    }
    return bound;
  }

  /// Little's law: each microbatch fills bytes for at least so long, and the rank has only so many.
  int64_t byMemory(int64_t rank) const {
    double filled = 0;
    int64_t first = INT64_MAX;
    for (int64_t s = 0; s < stages; ++s) {
      const PlanStage &stage = problem.stages[s];
      if (stage.rank != rank)
        continue;
      first = std::min(first, heads[problem.unit(kPlanF, s, 0)]);
      double untilI = stage.time[kPlanF] + stage.time[kPlanI];
      for (int64_t t = s + 1; t < stages; ++t)
        untilI += problem.stages[t].time[kPlanF] + problem.stages[t].time[kPlanI] + delay(t - 1, t) + delay(t, t - 1);
      double late = problem.isSplit ? stage.free[kPlanW] : 0, own = stage.alloc[kPlanI];
      double stays = staysOf(stage), passes = stage.alloc[kPlanF] - staysOf(stage);
      filled += stays * untilI + passes * stage.time[kPlanF] + late * (problem.isSplit ? stage.time[kPlanW] : 0) +
                own * static_cast<double>(stage.time[kPlanI]);
    }
    if (filled <= 0 || problem.limits[rank] <= 0)
      return 0;
    return first + static_cast<int64_t>(filled * problem.microbatches / problem.limits[rank]);
  }
};

} // namespace

int64_t pp::mostWorkOf(const PlanProblem &problem) {
  std::vector<int64_t> work(problem.ranks, 0);
  for (const PlanStage &stage : problem.stages)
    for (int64_t kind = 0; kind < problem.kinds(); ++kind)
      work[stage.rank] += stage.time[kind] * problem.microbatches;
  return *std::max_element(work.begin(), work.end());
}

int64_t pp::lowerBoundOf(const PlanProblem &problem) { return PlanBounds(problem).run(); }
