// What stages do to keep less between forward and backward, and which of them does what, as the planner judges it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_SEARCH_SAVINGS_H
#define PP_TOOLS_SEARCH_SAVINGS_H

#include "passes/plan/Plan.h"

namespace pp {

/// A way in which a stage keeps less between a forward and its backward.
struct Saving {
  enum Kind { None, Parts, Whole, Host };
  Kind kind = None;
  std::vector<std::string> parts; ///< Parts: of the model, which run again; Whole: all of them
  bool operator==(const Saving &) const = default;

  /// The part of this saving that a stage with some parts of the model can do.
  Saving of(const std::vector<std::string> &held) const;
};

/// The stages of a cut, as the planner sees them with each saving: it can mix these without a compilation.
class SavingModels {
public:
  using Choice = std::vector<size_t>; ///< by stage: the number of a saving

  /// `models`: by saving, of the cut where every stage has it. The first saves nothing.
  SavingModels(std::vector<PlanModel> models, int64_t microbatches);

  /// Whether the planner's best order fits where nothing is saved.
  bool isEnough() const;
  /// The best choices, best first: those on the way from no saving until all fits, and what is near the best of them.
  std::vector<Choice> choose(size_t count) const;

private:
  struct Score {
    double makespan, work;
    bool operator<(const Score &other) const;
  };
  using Scored = std::vector<std::pair<Score, Choice>>;
  std::vector<PlanModel> models;

  const TimedProblem &form(size_t saving) const { return models[saving].forms.back(); }
  size_t stages() const { return form(0).problem.stages.size(); }
  TimedProblem mix(size_t form, const Choice &choice) const;
  Score judge(const Choice &choice) const;
  std::vector<double> fullness(const Choice &choice) const;
  double kept(size_t stage, size_t saving) const;
  double cost(size_t stage, size_t saving) const;
  bool saveMore(Choice &choice) const;
  int64_t budget() const;
  void walk(Scored &scored) const;
  void climb(Scored &scored) const;
};

/// The bytes that a model's stages keep between forward and backward, and the time to make the rest again.
struct SavingEffect {
  double bytes = 0, time = 0;
};
SavingEffect effectOf(const PlanModel &model);

} // namespace pp

#endif // PP_TOOLS_SEARCH_SAVINGS_H
