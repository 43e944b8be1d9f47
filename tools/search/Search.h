// `pp-compile --search`: which mesh, schedule, stages and recomputation train a program fastest on its cluster.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_SEARCH_SEARCH_H
#define PP_TOOLS_SEARCH_SEARCH_H

#include "frontend/Frontend.h"
#include "passes/plan/Plan.h"

namespace pp {

/// True if --search asks for it.
bool wantsSearch();
/// What --search and --search-seconds say; fails where that makes no sense.
struct SearchCommand;
mlir::FailureOr<SearchCommand> requestedSearch();

/// What pp-compile does to a module that the frontend made, before any pass.
using PrepareModule = llvm::function_ref<mlir::LogicalResult(mlir::ModuleOp)>;

/// What may change: all, the schedule alone, or its stages alone, which the planner orders.
enum class SearchWhat { All, Schedule, Stages };

/// How the program was called.
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
/// is left to try, when its time is over, or with SIGINT. Fails after an error: the costs do not tell large stages from
/// small ones, the program as written does not compile, nothing fits the memory.
mlir::FailureOr<SearchResult> search(llvm::MemoryBufferRef source, const FrontendOptions &options,
                                     const PlanRequest &request, PrepareModule prepare, const SearchCommand &command,
                                     llvm::raw_ostream &os);

} // namespace pp

#endif // PP_TOOLS_SEARCH_SEARCH_H
