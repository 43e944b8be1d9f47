// `pp-compile --search`: tries stages, layers, recomputation and schedules of the library, and says what is fastest.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_SEARCH_SEARCH_H
#define PP_TOOLS_SEARCH_SEARCH_H

#include "frontend/Frontend.h"
#include "passes/plan/Plan.h"

namespace pp {

/// True if --search asks for it.
bool wantsSearch();

/// What pp-compile does to a module that the frontend made, before any pass.
using PrepareModule = llvm::function_ref<mlir::LogicalResult(mlir::ModuleOp)>;

/// The best schedule that was found.
struct SearchResult {
  std::optional<Replacement> replacement; ///< nothing: the one that `train` names
  bool isPlanned = false;                 ///< the planner orders its units
  int64_t memoryLimit = -1;               ///< under which it was sought
  std::string text;                       ///< not planned: a `.pipe` file that imports it
};

/// Judges schedules for the program of a file, each compiled in this process, planned where that can be, proved and
/// simulated, and prints the ten best. SIGINT ends it early with the best so far. Fails after an error: the costs do
/// not tell large stages from small ones, the program as written does not compile, nothing fits the memory.
mlir::FailureOr<SearchResult> search(llvm::MemoryBufferRef source, const FrontendOptions &options,
                                     const PlanRequest &request, PrepareModule prepare, llvm::raw_ostream &os);

} // namespace pp

#endif // PP_TOOLS_SEARCH_SEARCH_H
