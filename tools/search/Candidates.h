// The schedules among which --search chooses: stages of some layers on some ranks, and what the library has besides.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_SEARCH_CANDIDATES_H
#define PP_TOOLS_SEARCH_CANDIDATES_H

#include "frontend/Frontend.h"
#include "tools/search/Savings.h"

namespace pp {

/// How large the program is for which a schedule is sought.
struct SearchSizes {
  int64_t ranks = 0, microbatches = 0, layers = 0;
};

/// Stages with their ranks and layers. The planner finds the order of the units.
struct StageCut {
  std::string family;                  ///< `V`
  std::vector<int64_t> places, layers; ///< by stage
  std::vector<Saving> savings;         ///< by stage
  bool operator==(const StageCut &) const = default;

  std::string describe() const;
  std::string described(const Saving &saving) const;
  /// As a schedule of the language.
  Replacement replacement(const SearchSizes &sizes) const;
};

/// One stage on each rank, loops of several, and waves: a V is one of them. Their layers are as even as can be.
std::vector<StageCut> evenCuts(const SearchSizes &sizes);

/// The cut where each stage does what it can of one of the savings. `held`: by stage, the parts of the model in it.
StageCut savingCut(const StageCut &cut, const std::vector<Saving> &savings, const SavingModels::Choice &choice,
                   const std::vector<std::vector<std::string>> &held);

/// A layer from the rank that has most to do, by the times of its stages, to the one that has least; nothing if that
/// rank has no layer to give.
std::optional<StageCut> shiftedCut(const StageCut &cut, llvm::ArrayRef<double> work, int64_t ranks);

/// A schedule of the library whose order the planner does not change: slices, weights or stashes that move, joints.
struct LibrarySchedule {
  const char *file, *name;
  std::vector<std::pair<std::string, int64_t>> arguments; ///< beside ranks and microbatches

  /// `slimpipe(4, 8, slices = 8)`
  std::string call(const SearchSizes &sizes) const;
  Replacement replacement(const SearchSizes &sizes) const;
};
std::vector<LibrarySchedule> librarySchedules(const SearchSizes &sizes);

} // namespace pp

#endif // PP_TOOLS_SEARCH_CANDIDATES_H
