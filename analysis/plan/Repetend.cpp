// Repeated patterns: the units of one microbatch placed modulo a period, the same for every microbatch.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   r0 | F0 .. I0 W0                   one microbatch; every period the next one begins
//   r1 | .. F0 .. ..                   the period grows until the peak of the repeated pattern fits the memory
#include "analysis/plan/Planner.h"
#include <algorithm>

using namespace pp;

namespace {

class RepetendSearch {
public:
  RepetendSearch(const PlanProblem &problem, const PlanGraph &graph, const PlanSpacing &spacing)
      : problem(problem), graph(graph), spacing(spacing), stages(problem.stages.size()) {
    std::vector<int64_t> work(problem.ranks, 0);
    for (int64_t unit = 0; unit < problem.chains(); ++unit)
      work[graph.rank[unit]] += graph.time[unit];
    shortest = *std::max_element(work.begin(), work.end());
    std::vector<int64_t> seen(problem.ranks, 0);
    for (const PlanStage &stage : problem.stages)
      chunk.push_back(seen[stage.rank]++);
    for (const PlanStage &stage : problem.stages)
      chunks.push_back(seen[stage.rank]);
  }

  std::optional<PlanOrder> run() {
    for (double period = shortest; period <= 4.0 * shortest; period *= 1.03) {
      if (!place(static_cast<int64_t>(period)) || !fits(static_cast<int64_t>(period)))
        continue;
      auto wider = static_cast<int64_t>(period * spacing.period);
      if (!place(wider) || !fits(wider))
        place(wider = static_cast<int64_t>(period));
      return unrolled(wider, problem.microbatches);
    }
    return std::nullopt;
  }

private:
  const PlanProblem &problem;
  const PlanGraph &graph;
  const PlanSpacing &spacing;
  int64_t stages, shortest = 1;
  std::vector<int64_t> chunk, chunks;                             ///< by stage: which of its rank's, of how many
  std::vector<int64_t> starts;                                    ///< of the units of microbatch 0
  std::vector<std::vector<std::pair<int64_t, int64_t>>> occupied; ///< by rank: start modulo the period, and end

  /// The first free time from `ready` on; the whole unit inside one period's gap.
  bool placeUnit(int64_t unit, int64_t ready, int64_t period) {
    auto &taken = occupied[graph.rank[unit]];
    int64_t time = graph.time[unit], start = ready;
    for (size_t tries = 0; tries <= 2 * taken.size() + 1; ++tries) {
      int64_t at = start % period, moved = start;
      for (auto [from, to] : taken) // both ends of it, one period later too
        for (int64_t shift : {-period, int64_t(0), period})
          if (from + shift < at + time && at < to + shift)
            moved = std::max(moved, start + to + shift - at);
      if (moved == start) {
        starts[unit] = start;
        taken.push_back({at, at + time});
        return true;
      }
      start = moved;
    }
    return false;
  }

  static double factorOf(const std::vector<double> &byStage, int64_t stage, double factor) {
    return byStage.empty() ? factor : byStage[stage];
  }

  bool place(int64_t period) {
    starts.assign(problem.chains(), 0);
    occupied.assign(problem.ranks, {});
    auto ready = [&](int64_t unit) {
      int64_t time = 0;
      for (PlanGraph::Edge edge : graph.before(unit))
        if (edge.unit >= 0)
          time = std::max(time, starts[edge.unit] + graph.time[edge.unit] + edge.delay);
      return time;
    };
    auto later = [&](int64_t unit, double factor) {
      return static_cast<int64_t>((factor - 1) * static_cast<double>(graph.time[unit]));
    };
    for (int64_t s = 0; s < stages; ++s) {
      int64_t from = s ? problem.unit(kPlanF, s - 1, 0) : -1;
      int64_t gap =
          s ? later(from, factorOf(spacing.stageF, s - 1, chunk[s - 1] == 0 ? spacing.firstF : spacing.laterF)) : 0;
      if (int64_t unit = problem.unit(kPlanF, s, 0); !placeUnit(unit, ready(unit) + gap, period))
        return false;
    }
    for (int64_t s = stages - 1; s >= 0; --s) {
      int64_t from = s + 1 < stages ? problem.unit(kPlanI, s + 1, 0) : -1;
      bool isLast = from >= 0 && chunk[s + 1] == chunks[s + 1] - 1;
      int64_t gap =
          from >= 0 ? later(from, factorOf(spacing.stageI, s + 1, isLast ? spacing.lastI : spacing.earlierI)) : 0;
      if (int64_t unit = problem.unit(kPlanI, s, 0); !placeUnit(unit, ready(unit) + gap, period))
        return false;
    }
    for (int64_t s = stages - 1; s >= 0 && problem.isSplit; --s)
      if (int64_t unit = problem.unit(kPlanW, s, 0); !placeUnit(unit, ready(unit), period))
        return false;
    return true;
  }

  /// The pattern for so many microbatches, by start.
  PlanOrder unrolled(int64_t period, int64_t microbatches) const {
    std::vector<std::vector<std::pair<int64_t, int64_t>>> lists(problem.ranks);
    for (int64_t i = 0; i < microbatches; ++i)
      for (int64_t unit = 0; unit < problem.chains(); ++unit)
        lists[graph.rank[unit]].push_back({starts[unit] + i * period, i * problem.chains() + unit});
    PlanOrder order(problem.ranks);
    for (int64_t rank = 0; rank < problem.ranks; ++rank) {
      std::sort(lists[rank].begin(), lists[rank].end());
      for (auto [start, unit] : lists[rank])
        order[rank].push_back(unit);
    }
    return order;
  }

  /// The largest number of microbatches that are under way at once is enough to show the peak.
  bool fits(int64_t period) const {
    int64_t end = 0;
    for (int64_t unit = 0; unit < problem.chains(); ++unit)
      end = std::max(end, starts[unit] + graph.time[unit]);
    std::vector<int64_t> peaks = peaksOf(graph, unrolled(period, std::min(problem.microbatches, end / period + 2)));
    for (int64_t rank = 0; rank < problem.ranks; ++rank)
      if (peaks[rank] > graph.limits[rank])
        return false;
    return true;
  }
};

} // namespace

std::optional<PlanOrder> pp::repetendOrder(const PlanProblem &problem, const PlanGraph &graph,
                                           const PlanSpacing &spacing) {
  return RepetendSearch(problem, graph, spacing).run();
}
