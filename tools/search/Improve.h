// Looks for better stages on one layout: with the planner's model of them, and the judge of all candidates.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_SEARCH_IMPROVE_H
#define PP_TOOLS_SEARCH_IMPROVE_H

#include "tools/search/Searcher.h"

namespace pp {

class StageImprover {
public:
  StageImprover(Searcher &searcher, const MeshLayout &layout) : searcher(searcher), layout(layout) {}

  /// The cut with its savings and with other layers.
  void improve(const StageCut &even);
  /// Single changes of the best that was planned on this layout. `known`: the savings of stages that others found.
  void polish(const std::vector<Saving> &known);
  /// The savings that stages may use, whether they must or not.
  std::vector<Saving> savingsFor(const StageCut &cut);
  /// The same as found on the way; empty where none had to.
  const std::vector<Saving> &knownSavings() const { return savings; }

private:
  Searcher &searcher;
  MeshLayout layout;
  bool isShort = false, usesHost = false; ///< memory, for some cut so far; stashes may wait in host memory
  std::vector<Saving> savings;            ///< none, sets of parts, all; found when they are needed

  mlir::FailureOr<PlanModel> modelOf(const StageCut &cut, std::string *why = nullptr);
  mlir::FailureOr<PlanModel> modelWith(const StageCut &cut, const Saving &saving, const PlanModel &plain);
  void findSavings(const StageCut &cut, const PlanModel &plain);
  void addPartSets(const StageCut &cut, const PlanModel &plain, const SavingEffect &whole);
  std::vector<StageCut> savingCuts(const StageCut &cut, const PlanModel &plain);
  std::optional<std::pair<StageCut, PlanOutcome>> judgeSavings(const StageCut &cut, bool isFirst);
  StageCut bySpeed(const StageCut &even);
  StageCut byMemory(StageCut cut);
  void shiftLayers(const StageCut &begin);
  std::vector<StageCut> neighbours(const StageCut &cut, const PlanModel &plain) const;
};

} // namespace pp

#endif // PP_TOOLS_SEARCH_IMPROVE_H
