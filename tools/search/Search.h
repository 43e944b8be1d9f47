// `pp-compile --search`: which mesh, schedule, stages and recomputation train a program fastest on its cluster.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_SEARCH_SEARCH_H
#define PP_TOOLS_SEARCH_SEARCH_H

#include "frontend/Frontend.h"
#include "passes/plan/Plan.h"

namespace pp {

/// True if --search asks for it.
bool wantsSearch();
/// The values of --search and --search-seconds; fails if they make no sense together.
struct SearchCommand;
mlir::FailureOr<SearchCommand> requestedSearch();

/// Prepares a module that the frontend made, before any pass.
using PrepareModule = llvm::function_ref<mlir::LogicalResult(mlir::ModuleOp)>;

/// What the search may change: all, the schedule alone, or its stages alone, which the planner orders.
enum class SearchWhat { All, Schedule, Stages };

/// The command line of the search.
struct SearchCommand {
  std::vector<std::string> words; ///< all words of the command line
  SearchWhat what = SearchWhat::All;
  double seconds = 0; ///< for the search; 0: by the number of devices
};

/// The best schedule that was found.
struct SearchResult {
  FrontendOptions options;    ///< of the program with it
  bool isPlanned = false;     ///< the planner orders its units
  bool isInterrupted = false; ///< by SIGINT
  int64_t memoryLimit = -1;   ///< under which it was sought
  std::string text;           ///< not planned, and not as written: a `.pipe` file that imports it
};

/// Judges meshes and schedules for the program of a file, each compiled in this process, proved and simulated; stages
/// are planned. Says on stderr what is found as it is found, and prints the ten best. It ends when nothing
/// is left to try, when its time is over, or with SIGINT. Fails after an error: if the costs do not depend on the size
/// of stages, the program as written does not compile, or nothing fits the memory.
mlir::FailureOr<SearchResult> search(llvm::MemoryBufferRef source, const FrontendOptions &options,
                                     const PlanRequest &request, PrepareModule prepare, const SearchCommand &command,
                                     llvm::raw_ostream &os);

} // namespace pp

#endif // PP_TOOLS_SEARCH_SEARCH_H
