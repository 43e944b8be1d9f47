// Anneals an order: moves single units along their rank's list, mostly such as the makespan hangs on, and cools down.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   r0 | F0 F1 F2 I0 ..      F2 starts when F1 ends, and the last unit waits for it: F2 moves up to four places
//
// Double justification never lets two units change places that both have no slack. This does, one at a time, and takes
// an order that is a little longer for a while. Numbers are drawn with a fixed seed and a move's gain is a whole
// number: the same order always becomes the same.
#include "analysis/plan/Planner.h"
#include <algorithm>

using namespace pp;

uint64_t PlanDraws::next() { // the mixer of splitmix64
  uint64_t mixed = state += 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

namespace {

class Annealer {
public:
  Annealer(const PlanGraph &graph, const PlanOrder &order, PlanDraws &draws)
      : graph(graph), order(order), held(graph.ranks()), place(graph.size(), 0), starts(graph.size(), -1),
        draws(draws) {
    for (int64_t rank = 0; rank < graph.ranks(); ++rank)
      remember(rank, 0, order[rank].size());
  }

  PlanOrder run(int64_t tries, int64_t hottest, int64_t bound) {
    int64_t now = *makespan(), shortest = now;
    PlanOrder best = order;
    findTight(now);
    for (int64_t left = tries; left > 0 && shortest > bound; --left) {
      if (!draw() || !isAllowed())
        continue;
      shift(from, to);
      std::optional<int64_t> made = makespan();
      auto heat = static_cast<uint64_t>(hottest * left / tries);
      if (!made || *made > now + static_cast<int64_t>(draws.below(heat + 1))) {
        shift(to, from);
        continue;
      }
      remember(rank, std::min(from, to), std::max(from, to) + 1);
      now = *made;
      findTight(now);
      if (now < shortest) {
        shortest = now;
        best = order;
      }
    }
    return best;
  }

private:
  const PlanGraph &graph;
  PlanOrder order;
  std::vector<std::vector<int64_t>> held; ///< by rank and place: allocated before the unit
  std::vector<int64_t> place, starts;     ///< by unit
  std::vector<int64_t> tight;             ///< on a longest path, and start as the unit before them ends
  std::vector<int64_t> clock, open;       ///< of `makespan`
  std::vector<size_t> next;
  PlanDraws &draws;
  int64_t rank = 0, from = 0, to = 0; ///< the move

  int64_t endOf(int64_t unit) const { return starts[unit] + graph.time[unit]; }

  void remember(int64_t its, int64_t first, int64_t end) {
    std::vector<int64_t> &memory = held[its];
    memory.resize(order[its].size() + 1, 0);
    for (int64_t q = first; q < end; ++q) {
      int64_t unit = order[its][q];
      place[unit] = q;
      memory[q + 1] = memory[q] + graph.alloc[unit] - graph.free[unit];
    }
  }

  /// The makespan as by `startsOf`, without new memory; nothing if ranks wait for each other.
  std::optional<int64_t> makespan() {
    std::fill(starts.begin(), starts.end(), -1);
    next.assign(graph.ranks(), 0);
    clock.assign(graph.ranks(), 0);
    open.clear();
    for (int64_t its = 0; its < graph.ranks(); ++its)
      open.push_back(its);
    int64_t done = 0;
    while (!open.empty()) {
      int64_t its = open.back();
      open.pop_back();
      const std::vector<int64_t> &list = order[its];
      while (next[its] < list.size()) {
        int64_t unit = list[next[its]], ready = clock[its];
        const std::array<PlanGraph::Edge, 2> &before = graph.before(unit), &after = graph.after(unit);
        bool waits = false;
        for (PlanGraph::Edge edge : before)
          if (edge.unit >= 0) {
            waits |= starts[edge.unit] < 0;
            ready = std::max(ready, endOf(edge.unit) + edge.delay);
          }
        if (waits)
          break;
        starts[unit] = ready;
        clock[its] = ready + graph.time[unit];
        ++next[its];
        ++done;
        for (PlanGraph::Edge edge : after)
          if (edge.unit >= 0 && graph.rank[edge.unit] != its)
            open.push_back(graph.rank[edge.unit]);
      }
    }
    return done == graph.size() ? std::optional(*std::max_element(clock.begin(), clock.end())) : std::nullopt;
  }

  /// Walks one longest path back, drawn where there are several.
  void findTight(int64_t end) {
    tight.clear();
    int64_t at = -1;
    for (int64_t its = 0; its < graph.ranks(); ++its)
      if (clock[its] == end && (at < 0 || draws.below(2) == 0))
        at = order[its].back();
    while (at >= 0) {
      int64_t q = place[at], last = q > 0 ? order[graph.rank[at]][q - 1] : -1, came = -1;
      if (last >= 0 && endOf(last) == starts[at])
        tight.push_back(at);
      else
        last = -1;
      for (PlanGraph::Edge edge : graph.before(at))
        if (edge.unit >= 0 && endOf(edge.unit) + edge.delay == starts[at])
          came = edge.unit;
      at = last < 0 || (came >= 0 && draws.below(2) == 0) ? came : last;
    }
  }

  /// Three of four moves are of a tight unit; false where there is no room for this one.
  bool draw() {
    bool isTight = !tight.empty() && draws.below(4) != 0;
    int64_t unit = isTight ? tight[draws.below(tight.size())] : static_cast<int64_t>(draws.below(graph.size()));
    auto places = static_cast<int64_t>(1 + draws.below(isTight ? 4 : 6));
    rank = graph.rank[unit];
    from = place[unit];
    to = from + (draws.below(2) == 0 ? places : -places);
    return to >= 0 && to < static_cast<int64_t>(order[rank].size());
  }

  /// No unit passes one of its chain or one that it waits for, and the memory is enough on the way.
  bool isAllowed() const {
    const std::vector<int64_t> &list = order[rank];
    int64_t unit = list[from], low = std::min(from, to), high = std::max(from, to), memory = held[rank][low];
    auto takes = [&](int64_t its) {
      memory += graph.alloc[its];
      bool fits = memory <= graph.limits[rank];
      memory -= graph.free[its];
      return fits;
    };
    if (to < from && !takes(unit))
      return false;
    for (int64_t q = low; q <= high; ++q) {
      int64_t other = list[q];
      if (q == from)
        continue;
      if (graph.chainOf(other) == graph.chainOf(unit) || !takes(other))
        return false;
      for (int k : {0, 1})
        if (graph.before(unit)[k].unit == other || graph.after(unit)[k].unit == other)
          return false;
    }
    return to < from || takes(unit);
  }

  void shift(int64_t first, int64_t last) {
    auto list = order[rank].begin();
    if (first < last)
      std::rotate(list + first, list + first + 1, list + last + 1);
    else
      std::rotate(list + last, list + first, list + first + 1);
  }
};

} // namespace

PlanOrder pp::annealOrder(const PlanGraph &graph, const PlanOrder &order, int64_t tries, int64_t hottest, int64_t bound,
                          PlanDraws &draws) {
  return Annealer(graph, order, draws).run(tries, hottest, bound);
}
