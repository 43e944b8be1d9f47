// The state of --search: its program, its limit, the ten best so far, and the steps that look for better ones.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_SEARCH_SEARCHER_H
#define PP_TOOLS_SEARCH_SEARCHER_H

#include "tools/search/Candidates.h"
#include "tools/search/Search.h"
#include "llvm/Support/Process.h"
#include <atomic>

namespace pp {

/// A candidate that was judged.
struct SearchRow {
  std::string what;
  PlanOutcome outcome;
  SearchResult result;
  std::optional<StageCut> cut; ///< nothing: not planned
};

class Searcher {
public:
  Searcher(llvm::MemoryBufferRef source, const FrontendOptions &options, const PlanRequest &request,
           PrepareModule prepare, llvm::raw_ostream &os)
      : source(source), options(options), request(request), prepare(prepare), os(os),
        isShown(llvm::sys::Process::StandardErrIsDisplayed()) {}

  mlir::FailureOr<SearchResult> run();

private:
  using Use = llvm::function_ref<mlir::LogicalResult(mlir::ModuleOp)>;
  llvm::MemoryBufferRef source;
  FrontendOptions options;
  PlanRequest request;
  PrepareModule prepare;
  llvm::raw_ostream &os;
  SearchSizes sizes;
  bool isOwnLimit = false;
  bool isShort = false, usesHost = false; ///< memory, for some cut so far; stashes may wait in host memory
  bool hasHost = false;                   ///< the costs say how fast a host's memory is
  std::string written;                    ///< what the baseline takes
  std::vector<SearchRow> rows;            ///< by step
  std::vector<std::string> fails;         ///< what the compiler said, by candidate
  std::vector<Saving> savings;            ///< none, sets of parts, all; found when they are needed
  int tried = 0;
  static std::atomic<bool> isInterrupted;
  bool isShown; ///< on a terminal: how far it is

  mlir::LogicalResult compile(const std::optional<Replacement> &replacement, bool says, Use use,
                              std::string *why = nullptr);
  mlir::LogicalResult judgeWritten();
  std::optional<PlanOutcome> judgeCut(const StageCut &cut, std::string *why = nullptr, double below = INFINITY);
  void judgeLibrary(const LibrarySchedule &schedule);
  void offer(const std::string &what, const PlanOutcome &outcome, SearchResult result,
             std::optional<StageCut> cut = std::nullopt);
  mlir::FailureOr<PlanModel> modelOf(const StageCut &cut, std::string *why = nullptr);
  mlir::FailureOr<PlanModel> modelWith(const StageCut &cut, const Saving &saving, const PlanModel &plain);
  void findSavings(const StageCut &cut, const PlanModel &plain);
  void addPartSets(const StageCut &cut, const PlanModel &plain, const SavingEffect &whole);
  std::vector<StageCut> savingCuts(const StageCut &cut, const PlanModel &plain);
  std::optional<std::pair<StageCut, PlanOutcome>> judgeSavings(const StageCut &cut);
  void improve(const StageCut &even);
  void shiftLayers(const StageCut &even);
  std::vector<StageCut> neighbours(const StageCut &cut, const PlanModel &plain) const;
  void polish();
  void progress(const std::string &what);
  void print() const;
};

} // namespace pp

#endif // PP_TOOLS_SEARCH_SEARCHER_H
