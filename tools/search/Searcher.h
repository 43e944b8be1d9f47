// The state of --search: its program, its limits, the rows so far, and the steps that look for better ones.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_SEARCH_SEARCHER_H
#define PP_TOOLS_SEARCH_SEARCHER_H

#include "tools/search/Candidates.h"
#include "tools/search/Search.h"
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>

namespace pp {

/// A candidate that was judged, and fits the memory.
struct SearchRow {
  Candidate candidate;
  PlanOutcome outcome;
  std::string layout; ///< in Megatron's notation; empty: it has none
};

/// A candidate of which a few microbatches were judged.
struct SearchProbe {
  Candidate candidate;
  double estimate; ///< of the whole step
  int64_t peak;
  double seconds; ///< that the whole step takes to be judged
  double fill;    ///< of its limit, what the fullest rank needs
  double work;    ///< of a rank in the whole step
  double bySpeed; ///< the estimate if stages had layers by the speeds of their ranks
};

/// A layout with the way to recompute in which 1F1B fits its memory.
struct SearchSite {
  MeshLayout layout;
  size_t mode;
  double estimate, bySpeed; ///< as of a probe
  double work;              ///< of a rank, where nothing is recomputed
};

/// The stages of a program in the notation of Megatron-LM's layouts; empty where it has none: stage s is on rank s, or
/// ranks take turns.
std::string megatronLayout(pipeline::ProgramOp program);

class Searcher {
public:
  Searcher(llvm::MemoryBufferRef source, const FrontendOptions &options, const PlanRequest &request,
           PrepareModule prepare, const SearchCommand &command, llvm::raw_ostream &os)
      : source(source), options(options), request(request), prepare(prepare), command(command), os(os) {}

  mlir::FailureOr<SearchResult> run();

  using Use = llvm::function_ref<mlir::LogicalResult(mlir::ModuleOp)>;
  // For StageImprover; several may run at once.
  const PlanRequest &planRequest() const { return request; }
  bool offersHost() const { return hasHost; }
  bool hasKinds() const { return areKinds; }
  const std::string &memoryText() const { return memory; }
  int64_t layers() const { return limits.layers; }
  bool isOver() const;
  /// Compiles the candidate with this number of microbatches, in its own context.
  mlir::LogicalResult compile(const Candidate &candidate, int64_t microbatches, Use use, std::string *why = nullptr);
  /// Judges the planned cut. Nothing if its step cannot be among the best, or is not shorter than `below`.
  std::optional<PlanOutcome> judgeCut(const MeshLayout &layout, const StageCut &cut, std::string *why = nullptr,
                                      double below = INFINITY);
  /// Counts the candidate once, however often it is tried.
  void refuse(const Candidate &candidate, const std::string &why);
  /// The best that was planned on this layout, or nothing.
  std::optional<SearchRow> bestPlanned(const MeshLayout &layout);

private:
  llvm::MemoryBufferRef source;
  FrontendOptions options;
  PlanRequest request;
  PrepareModule prepare;
  SearchCommand command;
  llvm::raw_ostream &os;
  MeshLayout written;
  LayoutLimits limits;
  std::string writtenName, writtenTime;
  std::string memory;                            ///< of a rank, for people
  std::vector<std::string> scheduleDefines;      ///< those of the command line that are the written schedule's
  std::vector<std::optional<std::string>> modes; ///< what -D recompute may say, less first; nothing: as the program
  bool isOwnLimit = false, isUnitTime = false;
  bool isByCluster = false, hasHost = false; ///< `hasHost`: the costs say how fast a host's memory is
  bool areKinds = false;                     ///< the cluster's devices differ
  bool takesFar = false;                     ///< meshes where 1F1B is far above the limit, too
  double seconds = 0;                        ///< of the search
  std::chrono::steady_clock::time_point begin, end;
  static std::atomic<bool> isInterrupted;

  mutable std::mutex lock;                                  ///< of all below
  std::vector<SearchRow> rows;                              ///< by step; none is longer and larger than another
  std::map<std::string, std::optional<SearchProbe>> probes; ///< by their descriptions; nothing: not possible
  std::vector<Candidate> judged;
  std::set<std::string> promising;                            ///< names of schedules that were near the best of a mesh
  std::vector<MeshLayout> improved;                           ///< their stages were planned
  std::set<std::string> refused;                              ///< descriptions of what is not possible
  std::map<std::string, std::pair<int, std::string>> reasons; ///< why that is so: of how many, the first of them
  std::pair<double, std::string> nearest = {INFINITY, ""};    ///< its limit: what needs the least share, and what it is
  int tried = 0;
  bool isPrinted = false, hasEnded = false; ///< nothing was left to try

  FrontendOptions optionsOf(const Candidate &candidate, int64_t microbatches) const;
  std::string commandOf(const Candidate &candidate) const;
  mlir::LogicalResult compile(const FrontendOptions &its, bool says, Use use, std::string *why);
  double best() const;
  std::optional<SearchRow> first() const;
  double elapsed() const;
  double left() const;
  void each(size_t count, llvm::function_ref<void(size_t)> work) const;

  mlir::LogicalResult judgeWritten();
  void readSizes(pipeline::ProgramOp program);
  void findModes();
  void offer(const Candidate &candidate, const PlanOutcome &outcome, const std::string &layout);
  double timeOfFurther(const Candidate &candidate, int64_t few, const PlanOutcome &outcome);
  std::optional<SearchProbe> probe(const Candidate &candidate);
  std::optional<SearchProbe> tryFew(const Candidate &candidate);
  std::vector<SearchProbe> fittingProbes() const;
  void judge(const Candidate &candidate);
  void tryLibrary(const SearchSite &site, bool onlyPromising);
  void tryAll(const std::vector<Candidate> &all, const SearchSite &site);
  void judgeBest(std::vector<SearchProbe> fitting);
  Candidate withMode(Candidate candidate, size_t mode) const;
  std::optional<SearchProbe> probeModes(const Candidate &candidate, size_t first);

  std::vector<SearchSite> sitesOf(const std::vector<MeshLayout> &group);
  std::optional<SearchSite> siteOf(const MeshLayout &layout);
  std::vector<SearchSite> findSites();
  void improve(const MeshLayout &layout);
  void varyBest();
  void improveKinds(const std::vector<SearchSite> &sites);
  void tryFitting(const Candidate &candidate);
  void fillTable();
  void until(double share);
  void takeSteps(bool sharesTime);
  std::string nearestText() const;
  std::string rowText(double seconds, const PlanOutcome &outcome) const;
  void print();
  void printUnjudged() const;
  void printReasons() const;
  SearchResult result() const;
};

} // namespace pp

#endif // PP_TOOLS_SEARCH_SEARCHER_H
