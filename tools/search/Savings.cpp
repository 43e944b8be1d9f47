// Chooses a saving for each stage with the planner's model alone: first until all fits, then what is near the best.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   nothing saved, planned without a limit -> the fullest rank saves where a second frees most bytes -> .. until all
//   fits; every choice on the way, and single changes of the best, planned within the limit -> the shortest
//
// The planner's model of a stage comes from a compilation in which all stages have the same saving. In this model R is
// a part of the backward. The orders that the planner finds are then timed with each R as soon as its rank is free. The
// simulator judges the best choices.
#include "tools/search/Savings.h"
#include "llvm/ADT/STLExtras.h"
#include <algorithm>
#include <cmath>
#include <set>

using namespace pp;

namespace {
/// So many units are planned in one look at a choice at most, and in all of them for a cut.
constexpr int64_t kModelUnits = 2'000, kAllUnits = 60'000, kMostLooks = 150;
constexpr int64_t kNoLimit = INT64_MAX / 4;
} // namespace

Saving Saving::of(const std::vector<std::string> &held) const {
  Saving its = {kind, {}};
  for (const std::string &part : parts)
    if (kind == Parts && llvm::is_contained(held, part))
      its.parts.push_back(part);
  if (kind == Parts && its.parts.empty())
    its.kind = None;
  return its;
}

SavingEffect pp::effectOf(const PlanModel &model) {
  const TimedProblem &timed = model.forms.back();
  SavingEffect effect;
  for (auto [stage, again, host] : llvm::zip_equal(timed.problem.stages, timed.again, timed.host)) {
    effect.bytes += static_cast<double>(stage.alloc[kPlanF] - stage.free[kPlanF]);
    effect.time += static_cast<double>(again + host) * timed.tick;
  }
  return effect;
}

SavingModels::SavingModels(std::vector<PlanModel> given, int64_t microbatches) : models(std::move(given)) {
  for (PlanModel &model : models)
    for (TimedProblem &timed : model.forms) {
      int64_t most = std::max(2 * timed.problem.ranks, kModelUnits / timed.problem.chains());
      timed.problem.microbatches = std::min(microbatches, most);
    }
}

/// A difference below this one counts as none: times are rounded to ticks.
bool SavingModels::Score::operator<(const Score &other) const {
  if (std::abs(makespan - other.makespan) > 1e-6 * std::min(makespan, other.makespan))
    return makespan < other.makespan;
  return work < other.work * (1 - 1e-9);
}

TimedProblem SavingModels::mix(size_t form, const Choice &choice) const {
  TimedProblem mixed = models[0].forms[form];
  for (auto [s, saving] : llvm::enumerate(choice)) {
    const TimedProblem &its = models[saving].forms[form];
    PlanStage &stage = mixed.problem.stages[s];
    double ticks = its.tick / mixed.tick;
    auto scaled = [&](int64_t time) { return std::llround(static_cast<double>(time) * ticks); };
    stage = its.problem.stages[s];
    for (int64_t &time : stage.time)
      time = std::max<int64_t>(1, scaled(time));
    stage.forward = scaled(stage.forward);
    stage.backward = scaled(stage.backward);
    mixed.again[s] = scaled(its.again[s]);
    mixed.host[s] = scaled(its.host[s]);
    int64_t &limit = mixed.problem.limits[stage.rank];
    limit = std::min(limit, its.problem.limits[stage.rank]);
  }
  return mixed;
}

/// One microbatch after the other.
static PlanOrder oneByOne(const PlanProblem &problem) {
  PlanOrder order(problem.ranks);
  auto stages = static_cast<int64_t>(problem.stages.size());
  auto push = [&](int64_t kind, int64_t s, int64_t i) {
    order[problem.stages[s].rank].push_back(problem.unit(kind, s, i));
  };
  for (int64_t i = 0; i < problem.microbatches; ++i) {
    for (int64_t s = 0; s < stages; ++s)
      push(kPlanF, s, i);
    for (int64_t s = stages - 1; s >= 0; --s)
      for (int64_t kind = kPlanI; kind < problem.kinds(); ++kind)
        push(kind, s, i);
  }
  return order;
}

/// The end of the last unit, where R runs as soon as its rank is free, and the rest of its backward when it can.
static int64_t timeOf(const TimedProblem &timed, const PlanOrder &order) {
  const PlanProblem &problem = timed.problem;
  PlanGraph graph(problem, /*isReversed=*/false);
  std::vector<int64_t> end(problem.units(), -1), free(problem.ranks, 0);
  std::vector<size_t> next(problem.ranks, 0);
  auto runs = [&](int64_t rank) {
    if (next[rank] == order[rank].size())
      return false;
    int64_t unit = order[rank][next[rank]];
    int64_t again = problem.kindOf(unit) == kPlanI ? timed.again[problem.stageOf(unit)] : 0;
    int64_t start = free[rank] + again;
    for (const PlanGraph::Edge &edge : graph.before(unit)) {
      if (edge.unit >= 0 && end[edge.unit] < 0)
        return false;
      start = edge.unit < 0 ? start : std::max(start, end[edge.unit] + edge.delay);
    }
    free[rank] = end[unit] = start + std::max<int64_t>(1, problem.timeOf(unit) - again);
    ++next[rank];
    return true;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (int64_t rank = 0; rank < problem.ranks; ++rank)
      while (runs(rank))
        moves = true;
  }
  return *llvm::max_element(free);
}

SavingModels::Score SavingModels::judge(const Choice &choice) const {
  Score best = {INFINITY, 0};
  for (size_t form = 0; form < models[0].forms.size(); ++form) {
    TimedProblem timed = mix(form, choice);
    std::optional<Plan> plan = planOrder(timed.problem, {{"one_by_one", oneByOne(timed.problem)}});
    if (!plan)
      continue;
    double work = 0;
    std::vector<int64_t> links(timed.problem.ranks, 0);
    for (auto [stage, host] : llvm::zip_equal(timed.problem.stages, timed.host)) {
      work += static_cast<double>(stage.time[kPlanF] + stage.time[kPlanI] + host) * timed.tick;
      links[stage.rank] += timed.problem.microbatches * host; // a link carries one stash at a time
    }
    int64_t makespan = std::max(::timeOf(timed, plan->order), *llvm::max_element(links));
    best = std::min(best, Score{static_cast<double>(makespan) * timed.tick, work});
  }
  return best;
}

/// For each rank the bytes by which the shortest order found without a limit exceeds the limit.
std::vector<double> SavingModels::fullness(const Choice &choice) const {
  TimedProblem timed = mix(models[0].forms.size() - 1, choice);
  std::vector<int64_t> limits(timed.problem.ranks, kNoLimit);
  std::swap(limits, timed.problem.limits);
  std::optional<Plan> plan = planOrder(timed.problem, {{"one_by_one", oneByOne(timed.problem)}});
  std::vector<double> above;
  for (auto [peak, limit] : llvm::zip_equal(plan->peaks, limits))
    above.push_back(static_cast<double>(peak - limit));
  return above;
}

double SavingModels::kept(size_t stage, size_t saving) const {
  const PlanStage &its = form(saving).problem.stages[stage];
  return static_cast<double>(its.alloc[kPlanF] - its.free[kPlanF]);
}

double SavingModels::cost(size_t stage, size_t saving) const {
  return static_cast<double>(form(saving).again[stage] + form(saving).host[stage]) * form(saving).tick;
}

/// The fullest rank that still can saves in the stage, and in the way, that frees most bytes for its time.
bool SavingModels::saveMore(Choice &choice) const {
  std::vector<double> above = fullness(choice);
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < above.size(); ++rank)
    if (above[rank] > 0)
      ranks.push_back(rank);
  llvm::stable_sort(ranks, [&](size_t a, size_t b) { return above[a] > above[b]; });
  for (size_t rank : ranks) {
    std::pair<size_t, size_t> best;
    double most = 0;
    for (size_t s = 0; s < choice.size(); ++s)
      for (size_t saving = 1; saving < models.size(); ++saving) {
        double freed = kept(s, choice[s]) - kept(s, saving);
        double time = std::max(cost(s, saving) - cost(s, choice[s]), 1e-3 * form(0).tick);
        bool isHere = form(0).problem.stages[s].rank == static_cast<int64_t>(rank);
        if (isHere && freed > 0 && freed / time > most) {
          most = freed / time;
          best = {s, saving};
        }
      }
    if (most > 0) {
      choice[best.first] = best.second;
      return true;
    }
  }
  return false;
}

bool SavingModels::isEnough() const {
  return llvm::all_of(fullness(Choice(stages(), 0)), [](double above) { return above <= 0; });
}

int64_t SavingModels::budget() const {
  return std::min(kMostLooks, kAllUnits / form(0).problem.units() + static_cast<int64_t>(stages()));
}

/// Walks from no saving until everything fits; also tries the same saving in all stages.
void SavingModels::walk(Scored &scored) const {
  Choice choice(stages(), 0);
  do
    scored.push_back({judge(choice), choice});
  while (saveMore(choice));
  for (size_t saving = 1; saving < models.size(); ++saving)
    scored.push_back({judge(Choice(stages(), saving)), Choice(stages(), saving)});
}

/// Single changes of the best choice, as long as one of them is better: less saved where memory is left, or elsewhere.
void SavingModels::climb(Scored &scored) const {
  auto better = [](const auto &a, const auto &b) { return a.first < b.first; };
  auto best = *std::min_element(scored.begin(), scored.end(), better);
  int64_t looks = budget();
  std::set<Choice> seen;
  for (const auto &[score, choice] : scored)
    seen.insert(choice);
  for (bool isBetter = true; isBetter && looks > 0;) {
    isBetter = false;
    for (size_t s = 0; s < stages() && looks > 0; ++s)
      for (size_t saving = 0; saving < models.size() && looks > 0; ++saving) {
        Choice choice = best.second;
        choice[s] = saving;
        if (!seen.insert(choice).second)
          continue;
        --looks;
        scored.push_back({judge(choice), choice});
        if (better(scored.back(), best)) {
          best = scored.back();
          isBetter = true;
        }
      }
  }
}

std::vector<SavingModels::Choice> SavingModels::choose(size_t count) const {
  Scored scored;
  walk(scored);
  climb(scored);
  llvm::stable_sort(scored, [](const auto &a, const auto &b) { return a.first < b.first; });
  std::vector<Choice> best;
  for (const auto &[score, choice] : scored)
    if (best.size() < count && std::isfinite(score.makespan) && !llvm::is_contained(best, choice))
      best.push_back(choice);
  return best;
}
