// Improves stages that the planner orders: what they save, their layers, and single changes of the best.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   a cut -> the savings of each stage that the model finds best, judged -> a layer goes from the slowest rank to the
//   fastest, with savings of its own, as long as that gains; once without host memory, once with it
//   where devices differ, the cut has layers by the speeds and memories of the ranks first
//   the best of all -> one saving changed, or one layer in another stage, judged, as long as that gains
#include "tools/search/Improve.h"
#include <numeric>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {
constexpr int kShifts = 6;                ///< of layers, one after the other
constexpr size_t kChoices = 3;            ///< of savings, which are judged for each cut
constexpr size_t kPartSets = 2;           ///< of parts that run again
constexpr int64_t kModelMicrobatches = 3; ///< in programs from which only times and bytes of stages are read
constexpr int kChanges = 40;              ///< of the best, judged at the end
} // namespace

/// The planner's model of the cut's stages, from a few microbatches, because all microbatches are equal.
FailureOr<PlanModel> StageImprover::modelOf(const StageCut &cut, std::string *why) {
  FailureOr<PlanModel> model;
  int64_t few = std::min(layout.microbatches, kModelMicrobatches);
  auto use = [&](ModuleOp module) { return LogicalResult(model = planModel(module, searcher.planRequest())); };
  bool done = succeeded(searcher.compile(planned(layout, cut), few, use, why));
  return done ? model : FailureOr<PlanModel>(failure());
}

/// The same where every stage does what it can of the saving.
FailureOr<PlanModel> StageImprover::modelWith(const StageCut &cut, const Saving &saving, const PlanModel &plain) {
  SavingModels::Choice all(cut.places.size(), 0);
  return modelOf(savingCut(cut, {saving}, all, plain.parts));
}

/// Sets of parts that run again: each adds to the one before the part that frees most bytes for its time, as long as
/// that is more than running all again frees.
void StageImprover::addPartSets(const StageCut &cut, const PlanModel &plain, const SavingEffect &whole) {
  SavingEffect before = effectOf(plain);
  double least = (before.bytes - whole.bytes) / whole.time;
  std::vector<std::string> parts;
  for (const auto &held : plain.parts)
    for (const std::string &part : held)
      if (!llvm::is_contained(parts, part))
        parts.push_back(part);
  Saving set = {Saving::Parts, {}};
  for (size_t number = 0; number < kPartSets && !searcher.isOver(); ++number) {
    std::optional<std::pair<Saving, SavingEffect>> best;
    double most = least;
    for (const std::string &part : parts) {
      Saving more = set;
      more.parts.push_back(part);
      FailureOr<PlanModel> model = llvm::is_contained(set.parts, part) || searcher.isOver()
                                       ? FailureOr<PlanModel>(failure())
                                       : modelWith(cut, more, plain);
      SavingEffect effect = failed(model) ? before : effectOf(*model);
      double freed = (before.bytes - effect.bytes) / std::max(effect.time - before.time, 1e-12 * whole.time);
      if (freed > most) {
        most = freed;
        best = {more, effect};
      }
    }
    if (!best)
      return;
    std::tie(set, before) = *best;
    savings.push_back(set);
  }
}

void StageImprover::findSavings(const StageCut &cut, const PlanModel &plain) {
  Saving whole = {Saving::Whole, {}};
  savings = {{}};
  FailureOr<PlanModel> model = modelWith(cut, whole, plain);
  if (failed(model))
    return;
  if (SavingEffect effect = effectOf(*model); effect.time > 0)
    addPartSets(cut, plain, effect);
  savings.push_back(whole);
  if (searcher.offersHost())
    savings.push_back({Saving::Host, {}});
}

std::vector<Saving> StageImprover::savingsFor(const StageCut &cut) {
  if (FailureOr<PlanModel> plain = modelOf(cut); succeeded(plain))
    findSavings(cut, *plain);
  return savings;
}

/// The cut with the savings that the planner's model finds best, best first; as it is, where all its orders fit.
std::vector<StageCut> StageImprover::savingCuts(const StageCut &cut, const PlanModel &plain) {
  if (SavingModels({plain}, layout.microbatches).isEnough())
    return {cut};
  isShort = true;
  if (savings.empty())
    findSavings(cut, plain);
  std::vector<PlanModel> models = {plain};
  std::vector<Saving> its = {{}};
  for (const Saving &saving : llvm::drop_begin(savings)) {
    if (saving.kind == Saving::Host && !usesHost)
      continue;
    if (FailureOr<PlanModel> model = modelWith(cut, saving, plain); succeeded(model)) {
      models.push_back(std::move(*model));
      its.push_back(saving);
    }
  }
  std::vector<StageCut> cuts;
  for (const SavingModels::Choice &choice : SavingModels(std::move(models), layout.microbatches).choose(kChoices))
    cuts.push_back(savingCut(cut, its, choice, plain.parts));
  return cuts;
}

/// Judges the cut as it is, and with the savings that are worth it. Nothing if none can be among the best.
std::optional<std::pair<StageCut, PlanOutcome>> StageImprover::judgeSavings(const StageCut &cut, bool isFirst) {
  std::string why;
  StageCut without = cut;
  without.savings.assign(cut.places.size(), {});
  FailureOr<PlanModel> plain = modelOf(without, &why);
  std::optional<std::pair<StageCut, PlanOutcome>> best;
  std::vector<StageCut> cuts = failed(plain) ? std::vector<StageCut>() : savingCuts(without, *plain);
  if (succeeded(plain) && cuts.empty())
    why = "needs more than " + searcher.memoryText() + " on a rank";
  if (without != cut && !cuts.empty() && !llvm::is_contained(cuts, cut))
    cuts.push_back(cut);
  for (const StageCut &its : cuts)
    if (std::optional<PlanOutcome> outcome = searcher.isOver() ? std::nullopt : searcher.judgeCut(layout, its, &why))
      if (!best || outcome->step < best->second.step)
        best = {its, *outcome};
  if (!best && !why.empty() && isFirst)
    searcher.refuse(planned(layout, without), why);
  return best;
}

/// Layers by the speeds of the ranks: the planner's model of a stage tells what a layer takes on its rank.
StageCut StageImprover::bySpeed(const StageCut &even) {
  StageCut cut = even, best = even;
  for (double least = INFINITY; !searcher.isOver();) {
    FailureOr<PlanModel> model = modelOf(cut);
    if (failed(model))
      break;
    std::vector<double> work;
    for (const PlanStage &stage : model->forms.back().problem.stages)
      work.push_back(static_cast<double>(stage.time[kPlanF] + stage.time[kPlanI] + stage.time[kPlanW]) *
                     model->forms.back().tick);
    double most = *llvm::max_element(loadsOf(cut, work, layout.ranks));
    if (most >= least)
      break;
    least = most;
    best = cut;
    cut = balancedCut(cut, work, layout.ranks);
  }
  return best;
}

/// One layer after the other from the rank that has least memory for a microbatch, while that leaves less missing.
StageCut StageImprover::byMemory(StageCut cut) {
  auto missing = [&](const StageCut &its) {
    FailureOr<PlanModel> model = searcher.isOver() ? FailureOr<PlanModel>(failure()) : modelOf(its);
    std::vector<double> bytes(layout.ranks, 0);
    if (failed(model))
      return bytes;
    const PlanProblem &problem = model->forms.back().problem;
    for (const PlanStage &stage : problem.stages)
      bytes[stage.rank] += static_cast<double>(stage.alloc[kPlanF]);
    for (auto [needed, limit] : llvm::zip_equal(bytes, problem.limits))
      needed -= static_cast<double>(limit);
    return bytes;
  };
  auto all = [](const std::vector<double> &bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), 0.0,
                           [](double sum, double its) { return sum + std::max(0.0, its); });
  };
  for (std::vector<double> own = missing(cut); all(own) > 0;) {
    std::optional<StageCut> next = shiftedCut(cut, own);
    std::vector<double> its = next ? missing(*next) : own;
    if (all(its) >= all(own))
      break;
    cut = *next;
    own = its;
  }
  return cut;
}

/// Improves the cut with recomputation alone and, if needed, also with stashes in host memory: the model only estimates
/// moves.
void StageImprover::improve(const StageCut &even) {
  isShort = usesHost = false;
  StageCut begin = searcher.hasKinds() ? byMemory(bySpeed(even)) : even;
  shiftLayers(begin);
  usesHost = searcher.offersHost();
  if (isShort && usesHost)
    shiftLayers(begin);
}

/// One layer after the other from the rank that has most to do, while the step gets shorter.
void StageImprover::shiftLayers(const StageCut &begin) {
  auto best = judgeSavings(begin, /*isFirst=*/true); // a shift that is not possible is no news
  for (int shift = 0; shift < kShifts && best && !searcher.isOver(); ++shift) {
    const auto &[cut, outcome] = *best;
    std::vector<double> more;
    if (searcher.hasKinds())
      more = layersOf(cut, outcome.work, layout.ranks);
    std::optional<StageCut> next = shiftedCut(cut, loadsOf(cut, outcome.work, layout.ranks), more);
    auto made = next ? judgeSavings(*next, /*isFirst=*/false) : std::nullopt;
    if (!made || made->second.step >= best->second.step)
      break;
    best = made;
  }
}

/// The cut with another saving in one stage, or with one layer in another stage.
std::vector<StageCut> StageImprover::neighbours(const StageCut &cut, const PlanModel &plain) const {
  std::vector<StageCut> made;
  for (size_t s = 0; s < cut.places.size(); ++s)
    for (const Saving &saving : savings) {
      made.push_back(cut);
      made.back().savings[s] = saving.of(plain.parts[s]);
    }
  for (size_t from = 0; from < cut.places.size(); ++from)
    for (size_t to = 0; to < cut.places.size(); ++to)
      if (bool isEnd = from == 0 || from + 1 == cut.places.size(); from != to && cut.layers[from] > (isEnd ? 0 : 1)) {
        made.push_back(cut);
        --made.back().layers[from];
        ++made.back().layers[to];
      }
  return made;
}

/// Single changes of the best that was planned, as long as one of them is better, as the simulator says.
void StageImprover::polish(const std::vector<Saving> &known) {
  savings = known;
  std::vector<StageCut> seen;
  for (bool isBetter = true; isBetter && !searcher.isOver();) {
    isBetter = false;
    std::optional<SearchRow> row = searcher.bestPlanned(layout);
    FailureOr<PlanModel> plain = row ? modelOf(*row->candidate.cut) : FailureOr<PlanModel>(failure());
    if (failed(plain))
      return;
    StageCut cut = *row->candidate.cut;
    double step = row->outcome.step;
    for (const StageCut &next : neighbours(cut, *plain)) {
      if (isBetter || searcher.isOver() || seen.size() >= kChanges || llvm::is_contained(seen, next) || next == cut)
        continue;
      seen.push_back(next);
      isBetter = searcher.judgeCut(layout, next, /*why=*/nullptr, step * (1 - 1e-9)).has_value();
    }
  }
}
