// Improves what --search tries: what stages save, their layers, and single changes of the best.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   a cut -> the savings of each stage that the model finds best, judged -> a layer goes from the slowest rank to the
//   fastest, with savings of its own, as long as that gains; once without host memory, once with it
//   the best of all -> one saving changed, or one layer in another stage, judged, as long as that gains
#include "analysis/Proof.h"
#include "tools/search/Searcher.h"

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

/// What the planner knows of the cut's stages; from few microbatches, for all are equal.
FailureOr<PlanModel> Searcher::modelOf(const StageCut &cut, std::string *why) {
  FailureOr<PlanModel> model;
  SearchSizes small = sizes;
  small.microbatches = std::min(small.microbatches, kModelMicrobatches);
  auto use = [&](ModuleOp module) { return LogicalResult(model = planModel(module, request)); };
  return failed(compile(cut.replacement(small), /*says=*/false, use, why)) ? FailureOr<PlanModel>(failure()) : model;
}

/// The same where every stage does what it can of the saving.
FailureOr<PlanModel> Searcher::modelWith(const StageCut &cut, const Saving &saving, const PlanModel &plain) {
  SavingModels::Choice all(cut.places.size(), 0);
  return modelOf(savingCut(cut, {saving}, all, plain.parts));
}

/// Sets of parts that run again: each adds to the one before the part that frees most bytes for its time, as long as
/// that is more than running all again frees.
void Searcher::addPartSets(const StageCut &cut, const PlanModel &plain, const SavingEffect &whole) {
  SavingEffect before = effectOf(plain);
  double least = (before.bytes - whole.bytes) / whole.time;
  std::vector<std::string> parts;
  for (const auto &held : plain.parts)
    for (const std::string &part : held)
      if (!llvm::is_contained(parts, part))
        parts.push_back(part);
  Saving set = {Saving::Parts, {}};
  for (size_t number = 0; number < kPartSets && !isInterrupted; ++number) {
    std::optional<std::pair<Saving, SavingEffect>> best;
    double most = least;
    for (const std::string &part : parts) {
      Saving more = set;
      more.parts.push_back(part);
      FailureOr<PlanModel> model = llvm::is_contained(set.parts, part) || isInterrupted
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

void Searcher::findSavings(const StageCut &cut, const PlanModel &plain) {
  Saving whole = {Saving::Whole, {}};
  savings = {{}};
  FailureOr<PlanModel> model = modelWith(cut, whole, plain);
  if (failed(model))
    return;
  if (SavingEffect effect = effectOf(*model); effect.time > 0)
    addPartSets(cut, plain, effect);
  savings.push_back(whole);
  if (hasHost)
    savings.push_back({Saving::Host, {}});
}

/// The cut with the savings that the planner's model finds best, best first; as it is, where all its orders fit.
std::vector<StageCut> Searcher::savingCuts(const StageCut &cut, const PlanModel &plain) {
  if (SavingModels({plain}, sizes.microbatches).isEnough())
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
  for (const SavingModels::Choice &choice : SavingModels(std::move(models), sizes.microbatches).choose(kChoices))
    cuts.push_back(savingCut(cut, its, choice, plain.parts));
  return cuts;
}

/// Judges the cut as it is, and with the savings that are worth it. Nothing if none can be among the best.
std::optional<std::pair<StageCut, PlanOutcome>> Searcher::judgeSavings(const StageCut &cut) {
  std::string why;
  StageCut without = cut;
  without.savings.assign(cut.places.size(), {});
  FailureOr<PlanModel> plain = modelOf(without, &why);
  std::optional<std::pair<StageCut, PlanOutcome>> best;
  std::vector<StageCut> cuts = failed(plain) ? std::vector<StageCut>() : savingCuts(without, *plain);
  if (succeeded(plain) && cuts.empty())
    why = "needs more than " + formatBytes(request.proofs.memoryLimit) + " on a rank";
  if (without != cut && !cuts.empty() && !llvm::is_contained(cuts, cut))
    cuts.push_back(cut);
  for (const StageCut &its : cuts)
    if (std::optional<PlanOutcome> outcome = isInterrupted ? std::nullopt : judgeCut(its, &why))
      if (!best || outcome->step < best->second.step)
        best = {its, *outcome};
  if (!best && !why.empty())
    fails.push_back(without.describe() + ": " + why);
  return best;
}

/// With recomputation alone and, if that is needed, also with stashes in host memory: the model sees moves roughly.
void Searcher::improve(const StageCut &even) {
  isShort = usesHost = false;
  shiftLayers(even);
  usesHost = hasHost;
  if (isShort && hasHost)
    shiftLayers(even);
}

/// One layer after the other from the rank that has most to do, while the step gets shorter.
void Searcher::shiftLayers(const StageCut &even) {
  auto best = judgeSavings(even);
  size_t reported = fails.size();
  for (int shift = 0; shift < kShifts && best && !isInterrupted; ++shift) {
    std::optional<StageCut> next = shiftedCut(best->first, best->second.work, sizes.ranks);
    auto made = next ? judgeSavings(*next) : std::nullopt;
    if (!made || made->second.step >= best->second.step)
      break;
    best = made;
  }
  fails.resize(reported); // a shift that is not possible is no news
}

/// The cut with another saving in one stage, or with one layer in another stage.
std::vector<StageCut> Searcher::neighbours(const StageCut &cut, const PlanModel &plain) const {
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
void Searcher::polish() {
  std::vector<StageCut> seen;
  for (bool isBetter = true; isBetter && !isInterrupted;) {
    isBetter = false;
    auto row = llvm::find_if(rows, [](const SearchRow &row) { return row.cut.has_value(); });
    if (row == rows.end())
      return;
    StageCut cut = *row->cut;
    double step = row->outcome.step;
    FailureOr<PlanModel> plain = modelOf(cut);
    if (failed(plain))
      return;
    for (const StageCut &next : neighbours(cut, *plain)) {
      if (isBetter || isInterrupted || seen.size() >= kChanges || llvm::is_contained(seen, next) || next == cut)
        continue;
      seen.push_back(next);
      isBetter = judgeCut(next, /*why=*/nullptr, step * (1 - 1e-9)).has_value();
    }
  }
}
