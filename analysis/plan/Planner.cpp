// Offers seeds, raw and justified, and keeps the best; stops as soon as the bound says that there is no better.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/plan/Planner.h"
#include <algorithm>
#include <tuple>

using namespace pp;

namespace {

/// Problems with more than kManyUnits units take half the rounds. All waves together schedule at most kWaveUnits units,
/// so that the time stays nearly linear in the number of units.
constexpr int64_t kManyUnits = 10'000, kWaveUnits = 60'000;
/// Counts of what high effort tries, and of the units in it, so that its time is bounded for large problems, too.
constexpr int64_t kPatterns = 30, kLists = 300, kListUnits = 1'500'000, kMoves = 100'000, kMoveUnits = 60'000'000;
/// Hundredths of a rank's forwards of a microbatch: by how much longer orders are taken at first.
constexpr int64_t kHeats[] = {200, 60, 15, 5};
/// Stands for a number of periods: W waits for ever.
constexpr double kNever = 1e3;

const PlanSpacing kSpacings[] = {{1, 2, 2, 1, 1.1},  {2, 2, 2, 2, 1}, {1.5, 2, 1, 1, 1.25},
                                 {3, 1, 1, 1, 1.25}, {2, 1, 2, 1, 1}, {3, 2, 1, 1, 1.1}};

/// The stretch of the waves of forwards and backwards, and the number of periods that W waits.
struct WaveShape {
  double forward, backward, weights;
  bool looksAhead;
};

/// The shapes in an order in which those of the first few differ most; the number of them is prime to the step.
std::vector<WaveShape> waveShapes() {
  std::vector<WaveShape> grid, shapes;
  for (double forward : {1, 2, 3})
    for (double backward : {1, 2, 3})
      for (double weights : {0.0, 1.0, 3.0, kNever})
        for (bool looksAhead : {false, true})
          grid.push_back({forward, backward, weights, looksAhead});
  for (size_t i = 0; i < grid.size(); ++i)
    shapes.push_back(grid[i * 29 % grid.size()]);
  return shapes;
}

class PlannerRun {
public:
  explicit PlannerRun(const PlanProblem &problem)
      : problem(problem), graph(problem, /*isReversed=*/false), reversed(problem, /*isReversed=*/true),
        bound(lowerBoundOf(problem)), rounds(problem.units() > kManyUnits ? 2 : 8) {}

  std::optional<Plan> run(std::vector<PlanSeed> seeds, PlanEffort effort) {
    for (PlanSeed &form : closedForms(problem))
      seeds.push_back(std::move(form));
    for (const PlanSeed &seed : seeds)
      offerBoth(seed.name, seed.order);
    for (const PlanSeed &seed : seeds)
      for (bool looksAhead : {false, true})
        if (!isDone())
          offerList("list of " + seed.name, startsOf(graph, seed.order), looksAhead);
    for (size_t number = 0; number < std::size(kSpacings) && !isDone(); ++number)
      if (std::optional<PlanOrder> order = repetendOrder(problem, graph, kSpacings[number]))
        offerJustified("repetend " + std::to_string(number + 1), *order);
    std::vector<WaveShape> shapes = waveShapes();
    shapes.resize(std::clamp<int64_t>(kWaveUnits / problem.units(), 7, static_cast<int64_t>(shapes.size())));
    for (size_t number = 0; number < shapes.size() && !isDone(); ++number)
      offerList("wave " + std::to_string(number + 1), wave(shapes[number]), shapes[number].looksAhead);
    if (effort == PlanEffort::High && best)
      improve();
    return std::move(best);
  }

private:
  const PlanProblem &problem;
  PlanGraph graph, reversed;
  int64_t bound;
  int rounds;
  std::optional<Plan> best;
  PlanDraws draws;

  bool isDone() const {
    return best && (problem.hasBarrier ? best->makespan <= bound : best->periods <= kPlanPeriods * mostWorkOf(problem));
  }

  bool fits(const PlanOrder &order) const {
    std::vector<int64_t> peaks = peaksOf(graph, order);
    for (int64_t rank = 0; rank < problem.ranks; ++rank)
      if (peaks[rank] > problem.limits[rank])
        return false;
    return true;
  }

  void offer(const std::string &seed, const PlanOrder &order) {
    std::optional<PlanStarts> starts = startsOf(graph, order);
    if (!starts)
      return;
    Plan plan = {order, seed, makespanOf(graph, *starts), problem.hasBarrier ? 0 : periodsOf(graph, order),
                 peaksOf(graph, order)};
    auto rankOf = [](const Plan &plan) {
      return std::tuple(plan.periods, plan.makespan, *std::max_element(plan.peaks.begin(), plan.peaks.end()));
    };
    if (!best || rankOf(plan) < rankOf(*best))
      best = std::move(plan);
  }

  void offerJustified(const std::string &name, const PlanOrder &order) {
    if (isDone() || !fits(order) || !startsOf(graph, order))
      return;
    if (!problem.hasBarrier) // what is shorter alone need not be where many follow each other
      offer(name, order);
    if (!isDone())
      offer(name.find(" + J") == std::string::npos ? name + " + J" : name, justify(graph, reversed, order, rounds));
  }

  void offerBoth(const std::string &name, const PlanOrder &order) {
    if (!fits(order))
      return;
    offer(name, order);
    offerJustified(name, order);
  }

  void offerList(const std::string &name, const std::optional<PlanStarts> &priorities, bool looksAhead) {
    if (!priorities)
      return;
    if (std::optional<PlanOrder> order = listOrder(problem, graph, {*priorities, looksAhead}))
      offerJustified(name, *order);
  }

  /// A number from `low` on, in steps of a quarter.
  double drawFactor(double low, uint64_t steps) { return low + 0.25 * static_cast<double>(draws.below(steps)); }

  void improve() {
    for (int64_t tries = 0, taken = 0; tries < 3 * kPatterns && taken < kPatterns && !isDone(); ++tries) {
      PlanSpacing spacing = {1, 1, 1, 1, drawFactor(1, 3)};
      for (size_t stage = 0; stage < problem.stages.size(); ++stage) {
        spacing.stageF.push_back(drawFactor(1, 9));
        spacing.stageI.push_back(drawFactor(1, 9));
      }
      std::optional<PlanOrder> order = repetendOrder(problem, graph, spacing);
      taken += order.has_value();
      if (order)
        offerJustified("drawn pattern " + std::to_string(taken), *order);
    }
    int64_t longest = *std::max_element(graph.time.begin(), graph.time.end());
    std::string origin = best->seed;
    for (int64_t number = std::min(kLists, kListUnits / problem.units()); number > 0 && !isDone(); --number) {
      PlanStarts starts = *startsOf(graph, best->order);
      auto noise = static_cast<uint64_t>(longest * (1 + number % 8) / 2);
      for (int64_t &start : starts)
        start += static_cast<int64_t>(draws.below(noise + 1));
      offerList(origin + " + lists", starts, draws.below(2) == 0);
    }
    int64_t forward = 0; // of all stages
    for (const PlanStage &stage : problem.stages)
      forward += stage.time[kPlanF];
    for (int64_t heat : kHeats)
      if (!isDone())
        offerJustified(best->seed.find(" + annealing") == std::string::npos ? best->seed + " + annealing" : best->seed,
                       annealOrder(graph, best->order, std::min(kMoves, kMoveUnits / problem.units()),
                                   forward * heat / problem.ranks / 100, bound, draws));
  }

  /// When the units would start if every microbatch passed through the stages like the first, one period later each.
  PlanStarts wave(const WaveShape &shape) const {
    int64_t stages = problem.stages.size();
    std::vector<double> first(problem.chains(), 0), work(problem.ranks, 0);
    for (int64_t unit = 0; unit < problem.chains(); ++unit)
      work[graph.rank[unit]] += static_cast<double>(graph.time[unit]);
    double period = *std::max_element(work.begin(), work.end()), clock = 0;
    for (int64_t s = 0; s < stages; ++s) {
      int64_t unit = problem.unit(kPlanF, s, 0);
      first[unit] = clock;
      clock += shape.forward * static_cast<double>(graph.time[unit] + problem.stages[s].forward);
    }
    for (int64_t s = stages - 1; s >= 0; --s) {
      int64_t unit = problem.unit(kPlanI, s, 0);
      first[unit] = clock;
      clock += shape.backward * static_cast<double>(graph.time[unit] + problem.stages[s].backward);
      if (problem.isSplit)
        first[unit + 1] = clock + shape.weights * period;
    }
    PlanStarts starts;
    for (int64_t unit = 0; unit < problem.units(); ++unit)
      starts.push_back(
          static_cast<int64_t>(first[graph.chainOf(unit)] + static_cast<double>(problem.microbatchOf(unit)) * period));
    return starts;
  }
};

} // namespace

std::optional<Plan> pp::planOrder(const PlanProblem &problem, const std::vector<PlanSeed> &seeds, PlanEffort effort) {
  return PlannerRun(problem).run(seeds, effort);
}
