// List scheduling in time: each rank runs the ready unit of the best priority that leaves the oldest microbatch room.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Admission: a microbatch that is not the oldest with allocations to make on the rank may allocate only what leaves
// room for all of those, and for the most that one unit frees itself. So the oldest microbatch can always finish, and
// then the next: it gets back as much as that one needs, for microbatches are equal.
#include "analysis/plan/Planner.h"
#include <algorithm>
#include <queue>

using namespace pp;

namespace {

class ListScheduler {
public:
  ListScheduler(const PlanProblem &problem, const PlanGraph &graph, const PlanPriorities &priorities)
      : problem(problem), graph(graph), priorities(priorities), starts(graph.size(), -1), order(graph.ranks()),
        chains(graph.ranks()), next(problem.chains(), 0), used(graph.ranks(), 0), freeFrom(graph.ranks(), 0),
        freed(graph.ranks(), 0), oldest(graph.ranks(), 0), passing(graph.ranks(), 0), needs(graph.ranks()) {
    for (int64_t chain = 0; chain < problem.chains(); ++chain)
      chains[graph.rank[chain]].push_back(chain);
    for (int64_t rank = 0; rank < graph.ranks(); ++rank) {
      int64_t each = 0;
      for (int64_t chain : chains[rank]) {
        each += lastingOf(chain);
        passing[rank] = std::max(passing[rank], graph.alloc[chain] - lastingOf(chain));
      }
      needs[rank].assign(problem.microbatches, each);
    }
  }

  std::optional<PlanOrder> run() {
    for (int64_t rank = 0; rank < graph.ranks(); ++rank)
      wakes.push({0, rank});
    while (!wakes.empty()) {
      auto [time, rank] = wakes.top();
      wakes.pop();
      if (freeFrom[rank] <= time)
        decide(rank, time);
    }
    return done == graph.size() ? std::optional(std::move(order)) : std::nullopt;
  }

private:
  using Wake = std::pair<int64_t, int64_t>;
  const PlanProblem &problem;
  const PlanGraph &graph;
  const PlanPriorities &priorities;
  PlanStarts starts;
  PlanOrder order;
  std::vector<std::vector<int64_t>> chains; ///< by rank
  std::vector<int64_t> next;                ///< by chain: the microbatch that is next
  /// Five numbers of each rank: its allocated bytes, the time until which it is busy, the bytes that its running unit
  /// frees, the oldest microbatch that still allocates for later units, and the most bytes that a unit allocates and
  /// frees itself.
  std::vector<int64_t> used, freeFrom, freed, oldest, passing;
  std::vector<std::vector<int64_t>> needs; ///< by rank and microbatch: allocations for later units, not made yet
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wakes;
  int64_t done = 0;

  /// The bytes that the unit allocates and leaves to later units.
  int64_t lastingOf(int64_t unit) const { return std::max<int64_t>(0, graph.alloc[unit] - graph.free[unit]); }

  /// The time at which the unit's inputs are there; nothing if a unit that it needs has not started.
  std::optional<int64_t> arrivalOf(int64_t unit) const {
    int64_t arrival = 0;
    for (PlanGraph::Edge edge : graph.before(unit)) {
      if (edge.unit >= 0 && starts[edge.unit] < 0)
        return std::nullopt;
      if (edge.unit >= 0)
        arrival = std::max(arrival, starts[edge.unit] + graph.time[edge.unit] + edge.delay);
    }
    return arrival;
  }

  bool isAdmitted(int64_t rank, int64_t unit) const {
    int64_t alloc = graph.alloc[unit];
    if (alloc == 0)
      return true;
    int64_t o = oldest[rank], others = problem.microbatchOf(unit) == o ? 0 : needs[rank][o] + passing[rank];
    return used[rank] + std::max(alloc, lastingOf(unit) + others) <= graph.limits[rank];
  }

  void decide(int64_t rank, int64_t now) {
    used[rank] -= freed[rank];
    freed[rank] = 0;
    int64_t best = -1, soon = -1, arrivalOfSoon = 0;
    auto isBetter = [&](int64_t unit, int64_t than) {
      return than < 0 || std::pair(priorities.of[unit], unit) < std::pair(priorities.of[than], than);
    };
    for (int64_t chain : chains[rank]) {
      if (next[chain] == problem.microbatches)
        continue;
      int64_t unit = next[chain] * problem.chains() + chain;
      std::optional<int64_t> arrival = arrivalOf(unit);
      if (!arrival || !isAdmitted(rank, unit))
        continue;
      if (*arrival <= now && isBetter(unit, best))
        best = unit;
      if (*arrival > now && isBetter(unit, soon)) {
        soon = unit;
        arrivalOfSoon = *arrival;
      }
    }
    if (best < 0)
      return; // woken again by what arrives
    int64_t end = now + graph.time[best];
    if (priorities.looksAhead && soon >= 0 && isBetter(soon, best) && arrivalOfSoon < end &&
        arrivalOfSoon - now <= end - arrivalOfSoon)
      return;
    start(rank, best, now);
  }

  void start(int64_t rank, int64_t unit, int64_t now) {
    int64_t microbatch = problem.microbatchOf(unit), end = now + graph.time[unit];
    starts[unit] = now;
    order[rank].push_back(unit);
    ++next[graph.chainOf(unit)];
    ++done;
    used[rank] += graph.alloc[unit];
    needs[rank][microbatch] -= lastingOf(unit);
    while (oldest[rank] + 1 < problem.microbatches && needs[rank][oldest[rank]] == 0)
      ++oldest[rank];
    freed[rank] = graph.free[unit];
    freeFrom[rank] = end;
    wakes.push({end, rank});
    for (PlanGraph::Edge edge : graph.after(unit))
      if (edge.unit >= 0)
        if (std::optional<int64_t> arrival = arrivalOf(edge.unit))
          wakes.push({*arrival, graph.rank[edge.unit]});
  }
};

} // namespace

std::optional<PlanOrder> pp::listOrder(const PlanProblem &problem, const PlanGraph &graph,
                                       const PlanPriorities &priorities) {
  return ListScheduler(problem, graph, priorities).run();
}
