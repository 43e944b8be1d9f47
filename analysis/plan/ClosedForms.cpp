// The orders that papers write, as seeds: 1F1B and zero bubble, interleaved 1F1B, ZB-V, V-Half and V-Min.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Seeds need not be the papers' orders to the letter: each is the order that the paper's rule gives with equal times
// and its memory, and justification moves units from there.
#include "analysis/plan/Planner.h"
#include <algorithm>
#include <functional>

using namespace pp;

namespace {

class ClosedFormOrders {
public:
  explicit ClosedFormOrders(const PlanProblem &problem)
      : problem(problem), p(problem.ranks), m(problem.microbatches), stages(problem.stages.size()) {}

  std::vector<PlanSeed> run() {
    if (places([](int64_t s, int64_t) { return s; }, 1)) {
      zbH(1);
      zbH(2);
      for (int64_t stashes : {p / 3, p / 2, 2 * p / 3, p, 3 * p / 2, 2 * p - 1})
        byRule("1F1B of " + std::to_string(stashes), 1, stashes);
    } else if (stages == 2 * p && places([](int64_t s, int64_t p) { return std::min(s, 2 * p - 1 - s); }, 2)) {
      zbV();
      for (int64_t stashes : {2 * p, 3 * p})
        byRule("V of " + std::to_string(stashes), 2, stashes);
      pattern("V-Half", /*isMin=*/false);
      pattern("V-Min", /*isMin=*/true);
    } else if (stages % p == 0 && places([](int64_t s, int64_t p) { return s % p; }, stages / p)) {
      interleaved();
      byRule("loop of " + std::to_string(stages + p - 1), stages / p, stages + p - 1);
    }
    return std::move(seeds);
  }

private:
  const PlanProblem &problem;
  int64_t p, m, stages;
  std::vector<PlanSeed> seeds;

  template <typename Fn> bool places(Fn rankOf, int64_t chunks) const {
    if (stages != chunks * p)
      return false;
    for (int64_t s = 0; s < stages; ++s)
      if (problem.stages[s].rank != rankOf(s, p))
        return false;
    return true;
  }

  /// Backwards first, then forwards, later chunks first, then weights, with equal times and room for so many stashes.
  void byRule(std::string name, int64_t chunks, int64_t stashes) {
    PlanProblem equal = problem;
    for (PlanStage &stage : equal.stages) {
      stage.time = {1, 1, 1};
      stage.time[kPlanI] = problem.isSplit ? 1 : 2;
      stage.alloc = {1, 0, 0};
      stage.free = {0, problem.isSplit ? 0 : 1, problem.isSplit ? 1 : 0};
      stage.forward = stage.backward = 0;
    }
    equal.limits.assign(p, std::max(stashes, chunks));
    PlanPriorities priorities;
    for (int64_t unit = 0; unit < problem.units(); ++unit) {
      int64_t kind = problem.kindOf(unit), s = problem.stageOf(unit),
              level = kind == kPlanI   ? 0
                      : kind == kPlanF ? 1
                                       : 2;
      int64_t within = kind == kPlanF ? stages - 1 - s : s;
      priorities.of.push_back((level * m + (level == 2 ? problem.microbatchOf(unit) : 0)) * stages + within);
    }
    PlanGraph graph(equal, /*isReversed=*/false);
    if (std::optional<PlanOrder> order = listOrder(equal, graph, priorities))
      seeds.push_back({name, *order});
  }

  /// The lists of the ranks, unit by unit: always the next microbatch of its kind and stage, none past the last.
  struct Lists {
    const PlanProblem &problem;
    PlanOrder order = PlanOrder(problem.ranks);
    std::vector<int64_t> next = std::vector<int64_t>(problem.chains(), 0);

    explicit Lists(const PlanProblem &problem) : problem(problem) {}
    void add(PlanKind kind, int64_t stage) {
      int64_t chain = stage * problem.kinds() + kind;
      if (kind < problem.kinds() && next[chain] < problem.microbatches)
        order[problem.stages[stage].rank].push_back(next[chain]++ * problem.chains() + chain);
    }
  };

  void addIfComplete(std::string name, PlanOrder order) {
    if (startsOf(PlanGraph(problem, /*isReversed=*/false), order))
      seeds.push_back({std::move(name), std::move(order)});
  }

  static void repeat(int64_t times, const std::function<void()> &fn) {
    for (int64_t time = 0; time < times; ++time)
      fn();
  }

  /// ZB-H1 and ZB-H2 (Qi et al. 2023): stdlib/zb_h.pipe.
  void zbH(int64_t k) {
    Lists lists(problem);
    for (int64_t r = 0; r < p; ++r) {
      repeat(k * (p - 1 - r), [&] { lists.add(kPlanF, r); });
      repeat(k * r, [&] { lists.add(kPlanF, r), lists.add(kPlanI, r); });
      repeat(m, [&] { lists.add(kPlanF, r), lists.add(kPlanI, r), lists.add(kPlanW, r); });
    }
    addIfComplete("ZB-H" + std::to_string(k), std::move(lists.order));
  }

  /// ZB-V (Qi et al. 2024): stdlib/zb_v.pipe.
  void zbV() {
    Lists lists(problem);
    for (int64_t r = 0; r < p; ++r) {
      int64_t a = r, b = 2 * p - 1 - r;
      auto backward = [&](int64_t s) { lists.add(kPlanI, s), lists.add(kPlanW, s); };
      repeat(2 * (p - r) - 1, [&] { lists.add(kPlanF, a); });
      repeat(r, [&] { lists.add(kPlanF, b), lists.add(kPlanF, a); });
      repeat(p - r, [&] { lists.add(kPlanF, b), backward(b); });
      repeat(std::max(m, 2 * p - 1) - p, [&] { lists.add(kPlanF, a), backward(a), lists.add(kPlanF, b), backward(b); });
      repeat(r, [&] { lists.add(kPlanI, a), lists.add(kPlanI, b); });
      repeat(p - r, [&] { backward(a); });
      repeat(r, [&] { lists.add(kPlanW, b); });
      repeat(r, [&] { lists.add(kPlanW, a); });
    }
    addIfComplete("ZB-V", std::move(lists.order));
  }

  /// V-Half and V-Min (Qi et al. 2024) before they are squeezed: slots of the four units of a microbatch on each rank,
  /// repeated every 6, and W in the first free slot.
  void pattern(std::string name, bool isMin) {
    if (!problem.isSplit)
      return;
    int64_t gap = isMin ? (p % 3 == 0 ? 2 : 0) : (p % 2 == 0 ? 3 : 0);
    PlanOrder order(p);
    for (int64_t r = 0; r < p; ++r) {
      std::array<int64_t, 4> slots = {2 * r, 3 * p - 2 - r, 3 * p + gap + 2 * r - 1, 6 * p + gap - 2 - r};
      if (isMin)
        slots = {r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r};
      std::array<int64_t, 4> its = {r, 2 * p - 1 - r, 2 * p - 1 - r, r};
      std::vector<std::pair<int64_t, int64_t>> timed; // slot and unit
      for (int64_t i = 0; i < m; ++i)
        for (int64_t row = 0; row < 4; ++row)
          timed.push_back({slots[row] + 6 * i, problem.unit(row < 2 ? kPlanF : kPlanI, its[row], i)});
      std::sort(timed.begin(), timed.end());
      std::vector<int64_t> owed;
      size_t next = 0, paid = 0;
      for (int64_t slot = 0; next < timed.size() || paid < owed.size(); ++slot) {
        if (next < timed.size() && timed[next].first == slot) {
          int64_t unit = timed[next++].second;
          order[r].push_back(unit);
          if (problem.kindOf(unit) == kPlanI)
            owed.push_back(unit + 1);
        } else if (paid < owed.size()) {
          order[r].push_back(owed[paid++]);
        }
      }
    }
    addIfComplete(std::move(name), std::move(order));
  }

  /// Megatron's: groups of p microbatches go through the chunks in turn.
  void interleaved() {
    int64_t chunks = stages / p, all = m * chunks;
    if (m % p)
      return;
    PlanOrder order(p);
    for (int64_t r = 0; r < p; ++r) {
      int64_t warm = std::min(all, (p - r - 1) * 2 + (chunks - 1) * p), forwards = 0, backwards = 0;
      auto microbatch = [&](int64_t k) { return k / (p * chunks) * p + k % p; };
      auto chunk = [&](int64_t k) { return k / p % chunks; };
      auto forward = [&] {
        order[r].push_back(problem.unit(kPlanF, chunk(forwards) * p + r, microbatch(forwards)));
        ++forwards;
      };
      while (forwards < warm)
        forward();
      while (backwards < all) {
        if (forwards < all)
          forward();
        int64_t s = (chunks - 1 - chunk(backwards)) * p + r;
        for (int64_t kind = kPlanI; kind < problem.kinds(); ++kind)
          order[r].push_back(problem.unit(kind, s, microbatch(backwards)));
        ++backwards;
      }
    }
    addIfComplete("interleaved 1F1B", std::move(order));
  }
};

} // namespace

std::vector<PlanSeed> pp::closedForms(const PlanProblem &problem) { return ClosedFormOrders(problem).run(); }
