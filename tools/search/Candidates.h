// What --search chooses among: meshes, and on each the schedules of the library and stages that the planner orders.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_SEARCH_CANDIDATES_H
#define PP_TOOLS_SEARCH_CANDIDATES_H

#include "frontend/Frontend.h"
#include "tools/search/Savings.h"

namespace pp {

/// The names and values of -D.
using Defines = std::vector<std::pair<std::string, std::string>>;

/// How devices share the work besides the schedule, and how a step's sequences are cut.
struct MeshLayout {
  int64_t ranks = 1, tensor = 1, context = 1, data = 1, expert = 1, zero = 0;
  bool sequence = false, heads = false;
  int64_t microbatch = 1, microbatches = 1;
  bool operator==(const MeshLayout &) const = default;

  int64_t devices() const { return ranks * tensor * context * data; }
  int64_t sequences() const { return data * microbatch * microbatches; } ///< of a step
  /// `8 ranks of 8: tensor 8, microbatch 2`
  std::string describe() const;
  /// The differences from `other`, for the command line; without ranks and microbatches, which belong to the schedule.
  Defines defines(const MeshLayout &other) const;
};

/// The sizes of the program that limit its layouts.
struct LayoutLimits {
  int64_t layers = 0, devicesOfNode = 0; ///< of a node: 0 for all
  int64_t length = 0;                    ///< tokens of a sequence
  bool hasExperts = false;
};

/// All that use as many devices for as many sequences as the program as written, in groups: those of a group differ in
/// their ranks and replicas alone, fewest ranks first. The group that is most like the program comes first.
std::vector<std::vector<MeshLayout>> layoutGroups(const MeshLayout &written, const LayoutLimits &limits);

/// The layouts of all groups that differ little from this one: in one or two of the sizes ranks, tensor, context, data
/// and microbatch, by a small factor.
std::vector<MeshLayout> layoutsNear(const MeshLayout &layout, const MeshLayout &written, const LayoutLimits &limits);

/// The layout with another way to share what it shares: state, rows, heads.
std::vector<MeshLayout> variantsOf(const MeshLayout &layout);

/// Stages with their ranks and layers. The planner finds the order of the units.
struct StageCut {
  std::string family;                  ///< `V`
  std::vector<int64_t> places, layers; ///< by stage
  std::vector<Saving> savings;         ///< by stage
  bool operator==(const StageCut &) const = default;

  std::string describe() const;
  std::string described(const Saving &saving) const;
  /// Parameters of std/stages.pipe.
  Defines arguments() const;
};

/// One stage on each rank, loops of several, and waves (a V is one). All spread the layers evenly.
std::vector<StageCut> evenCuts(int64_t ranks, int64_t layers);

/// The cut where each stage does what it can of one of the savings. `held`: by stage, the parts of the model in it.
StageCut savingCut(const StageCut &cut, const std::vector<Saving> &savings, const SavingModels::Choice &choice,
                   const std::vector<std::vector<std::string>> &held);

/// For each rank the `work` of its stages.
std::vector<double> loadsOf(const StageCut &cut, llvm::ArrayRef<double> work, int64_t ranks);

/// For each rank the work of its layers.
std::vector<double> layersOf(const StageCut &cut, llvm::ArrayRef<double> work, int64_t ranks);

/// A layer from the rank of the largest load to the one that has the smallest, with what a layer is `more` there;
/// nothing if that rank has no layer to give.
std::optional<StageCut> shiftedCut(const StageCut &cut, llvm::ArrayRef<double> loads, llvm::ArrayRef<double> more = {});

/// Shifted while the loads get more even, each layer of a stage being an equal share of its `work`.
StageCut balancedCut(StageCut cut, std::vector<double> work, int64_t ranks);

/// A candidate for a row of the table: a layout and a schedule.
struct Candidate {
  MeshLayout layout;
  std::string file, name;                    ///< of the library; no file: the program's own schedule
  Defines arguments = {};                    ///< of the schedule, beside ranks and microbatches
  std::optional<std::string> recompute = {}; ///< what -D recompute says; nothing: as the program says
  int64_t slices = 1;                        ///< of a sequence
  std::optional<StageCut> cut = {};          ///< the planner orders these stages
  bool operator==(const Candidate &) const = default;

  /// `slimpipe(4, 8, slices = 8), tensor 2`
  std::string describe(const MeshLayout &written) const;
  /// `slimpipe(4, 8, slices = 8)`
  std::string call() const;
};

Candidate planned(const MeshLayout &layout, const StageCut &cut);

/// Schedules of the library that train as `single` does on so many ranks, often good ones first.
std::vector<Candidate> libraryOf(const MeshLayout &layout, int64_t layers);
/// Those that cut sequences into slices: they have many units, and take long to be judged.
std::vector<Candidate> slicedLibraryOf(const MeshLayout &layout, int64_t layers, int64_t length);

} // namespace pp

#endif // PP_TOOLS_SEARCH_CANDIDATES_H
