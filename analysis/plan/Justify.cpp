// Double justification: slides every unit of an order as late, then as early as it can go, and into gaps.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   r0 | F0 F1 .. .. I0 W0 I1 W1        right: I0 and what follows as late as possible; left again: W0 falls into a gap
//
// A unit may always go to the end of the list: what was placed before it started no later than it did. So no unit ever
// starts later than before, the makespan never grows, and since units that are not placed yet come after it in the old
// order too, their memory stays as it was.
#include "analysis/plan/Planner.h"
#include <algorithm>
#include <numeric>

using namespace pp;

namespace {

/// The units of one rank that are placed, in order.
struct JustifiedRank {
  std::vector<int64_t> units, memory; ///< and what is allocated while each of them runs
  int64_t now = 0;                    ///< allocated after the last of them
};

class JustifyPass {
public:
  explicit JustifyPass(const PlanGraph &graph) : graph(graph), starts(graph.size(), 0), ranks(graph.ranks()) {}

  PlanStarts run(const PlanStarts &old) {
    std::vector<int64_t> units(graph.size());
    std::iota(units.begin(), units.end(), 0);
    std::sort(units.begin(), units.end(),
              [&](int64_t a, int64_t b) { return std::pair(old[a], a) < std::pair(old[b], b); });
    for (int64_t unit : units)
      place(unit);
    return std::move(starts);
  }

private:
  const PlanGraph &graph;
  PlanStarts starts;
  std::vector<JustifiedRank> ranks;

  int64_t endOf(int64_t unit) const { return starts[unit] + graph.time[unit]; }

  bool mustFollow(int64_t unit, int64_t other) const {
    return graph.chainOf(unit) == graph.chainOf(other) || graph.before(unit)[0].unit == other ||
           graph.before(unit)[1].unit == other;
  }

  void place(int64_t unit) {
    JustifiedRank &rank = ranks[graph.rank[unit]];
    int64_t ready = 0, size = rank.units.size();
    for (PlanGraph::Edge edge : graph.before(unit))
      if (edge.unit >= 0)
        ready = std::max(ready, endOf(edge.unit) + edge.delay);
    int64_t at = size, start = size ? std::max(ready, endOf(rank.units.back())) : ready, top = rank.now;
    for (int64_t q = size; q > 0; --q) { // before the unit at q - 1
      int64_t other = rank.units[q - 1];
      top = std::max(top, rank.memory[q - 1]);
      if (mustFollow(unit, other) ||
          (graph.alloc[unit] > 0 && top + graph.alloc[unit] > graph.limits[graph.rank[unit]]))
        break;
      int64_t from = std::max(ready, q > 1 ? endOf(rank.units[q - 2]) : 0);
      if (from + graph.time[unit] <= starts[other]) {
        at = q - 1;
        start = from;
      }
      if (starts[other] <= ready)
        break;
    }
    insert(rank, unit, at);
    starts[unit] = start;
  }

  void insert(JustifiedRank &rank, int64_t unit, int64_t at) {
    bool isLast = at == static_cast<int64_t>(rank.units.size());
    int64_t before = isLast ? rank.now : rank.memory[at] - graph.alloc[rank.units[at]];
    rank.units.insert(rank.units.begin() + at, unit);
    rank.memory.insert(rank.memory.begin() + at, before + graph.alloc[unit]);
    int64_t change = graph.alloc[unit] - graph.free[unit];
    rank.now += change;
    for (size_t q = at + 1; q < rank.memory.size(); ++q)
      rank.memory[q] += change;
  }
};

/// The same times seen from the end.
PlanStarts mirrored(const PlanGraph &graph, const PlanStarts &starts) {
  int64_t end = makespanOf(graph, starts);
  PlanStarts mirror;
  for (int64_t unit = 0; unit < graph.size(); ++unit)
    mirror.push_back(end - starts[unit] - graph.time[unit]);
  return mirror;
}

} // namespace

PlanStarts pp::justifyOnce(const PlanGraph &graph, const PlanStarts &starts) { return JustifyPass(graph).run(starts); }

PlanOrder pp::justify(const PlanGraph &forward, const PlanGraph &reversed, const PlanOrder &order, int rounds) {
  PlanOrder best = order;
  PlanStarts now = *startsOf(forward, order);
  int64_t shortest = makespanOf(forward, now);
  auto keep = [&](const PlanStarts &starts) {
    PlanOrder candidate = orderOf(forward, starts);
    std::optional<PlanStarts> run = startsOf(forward, candidate);
    if (!run || makespanOf(forward, *run) >= shortest)
      return false;
    shortest = makespanOf(forward, *run);
    best = std::move(candidate);
    return true;
  };
  now = justifyOnce(forward, now);
  keep(now);
  for (int round = 0, idle = 0; round < rounds && idle < 2; ++round) {
    now = mirrored(reversed, justifyOnce(reversed, mirrored(forward, now)));
    now = justifyOnce(forward, now);
    idle = keep(now) ? 0 : idle + 1;
  }
  return best;
}
