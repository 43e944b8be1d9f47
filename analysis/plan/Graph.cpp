// Builds the graph of a planning problem in either direction of time, and runs orders on it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/plan/Problem.h"
#include <algorithm>

using namespace pp;

namespace {

void addEdge(std::array<PlanGraph::Edge, 2> &edges, PlanGraph::Edge edge) { edges[edges[0].unit < 0 ? 0 : 1] = edge; }

} // namespace

PlanGraph::PlanGraph(const PlanProblem &problem, bool isReversed) : limits(problem.limits), chains(problem.chains()) {
  int64_t units = problem.units(), stages = problem.stages.size();
  preds.resize(units);
  succs.resize(units);
  for (int64_t u = 0; u < units; ++u) {
    const PlanStage &stage = problem.at(u);
    int64_t kind = problem.kindOf(u);
    rank.push_back(stage.rank);
    time.push_back(stage.time[kind]);
    alloc.push_back(isReversed ? stage.free[kind] : stage.alloc[kind]);
    free.push_back(isReversed ? stage.alloc[kind] : stage.free[kind]);
  }
  auto connect = [&](int64_t from, int64_t to, int64_t delay) {
    if (isReversed)
      std::swap(from, to);
    addEdge(preds[to], {from, rank[from] == rank[to] ? 0 : delay});
    addEdge(succs[from], {to, rank[from] == rank[to] ? 0 : delay});
  };
  for (int64_t i = 0; i < problem.microbatches; ++i)
    for (int64_t s = 0; s < stages; ++s) {
      if (s + 1 < stages) {
        connect(problem.unit(kPlanF, s, i), problem.unit(kPlanF, s + 1, i), problem.stages[s].forward);
        connect(problem.unit(kPlanI, s + 1, i), problem.unit(kPlanI, s, i), problem.stages[s + 1].backward);
      }
      connect(problem.unit(kPlanF, s, i), problem.unit(kPlanI, s, i), 0);
      if (problem.isSplit)
        connect(problem.unit(kPlanI, s, i), problem.unit(kPlanW, s, i), 0);
    }
}

std::optional<PlanStarts> pp::startsOf(const PlanGraph &graph, const PlanOrder &order, std::vector<int64_t> begins) {
  PlanStarts starts(graph.size(), -1);
  std::vector<size_t> next(graph.ranks(), 0);
  std::vector<int64_t> clock = std::move(begins), open;
  clock.resize(graph.ranks(), 0);
  for (int64_t rank = 0; rank < graph.ranks(); ++rank)
    open.push_back(rank);
  int64_t done = 0;
  while (!open.empty()) { // ranks whose next unit may be able to start
    int64_t rank = open.back();
    open.pop_back();
    while (next[rank] < order[rank].size()) {
      int64_t unit = order[rank][next[rank]], ready = clock[rank];
      bool waits = false;
      for (PlanGraph::Edge edge : graph.before(unit)) {
        if (edge.unit < 0)
          continue;
        waits |= starts[edge.unit] < 0;
        ready = std::max(ready, starts[edge.unit] + graph.time[edge.unit] + edge.delay);
      }
      if (waits || starts[unit] >= 0)
        break;
      starts[unit] = ready;
      clock[rank] = ready + graph.time[unit];
      ++next[rank];
      ++done;
      for (PlanGraph::Edge edge : graph.after(unit))
        if (edge.unit >= 0 && graph.rank[edge.unit] != rank)
          open.push_back(graph.rank[edge.unit]);
    }
  }
  return done == graph.size() ? std::optional(std::move(starts)) : std::nullopt;
}

PlanOrder pp::orderOf(const PlanGraph &graph, const PlanStarts &starts) {
  PlanOrder order(graph.ranks());
  for (int64_t unit = 0; unit < graph.size(); ++unit)
    order[graph.rank[unit]].push_back(unit);
  for (std::vector<int64_t> &list : order)
    std::sort(list.begin(), list.end(),
              [&](int64_t a, int64_t b) { return std::pair(starts[a], a) < std::pair(starts[b], b); });
  return order;
}

int64_t pp::makespanOf(const PlanGraph &graph, const PlanStarts &starts) {
  int64_t end = 0;
  for (int64_t unit = 0; unit < graph.size(); ++unit)
    end = std::max(end, starts[unit] + graph.time[unit]);
  return end;
}

int64_t pp::periodsOf(const PlanGraph &graph, const PlanOrder &order) {
  std::vector<int64_t> begins(graph.ranks(), 0);
  int64_t before = 0, end = 0;
  for (int64_t step = 0; step < 2 * kPlanPeriods; ++step) {
    PlanStarts starts = *startsOf(graph, order, begins);
    for (int64_t rank = 0; rank < graph.ranks(); ++rank)
      if (!order[rank].empty())
        begins[rank] = starts[order[rank].back()] + graph.time[order[rank].back()];
    end = *std::max_element(begins.begin(), begins.end());
    before = step < kPlanPeriods ? end : before;
  }
  return end - before;
}

std::vector<int64_t> pp::peaksOf(const PlanGraph &graph, const PlanOrder &order) {
  std::vector<int64_t> peaks(graph.ranks(), 0);
  for (int64_t rank = 0; rank < graph.ranks(); ++rank) {
    int64_t now = 0;
    for (int64_t unit : order[rank]) {
      now += graph.alloc[unit];
      peaks[rank] = std::max(peaks[rank], now);
      now -= graph.free[unit];
    }
  }
  return peaks;
}
