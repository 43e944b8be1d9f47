// From a `.pipe` file to its pieces, actions and model functions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_FRONTEND_H
#define PP_FRONTEND_FRONTEND_H

#include "frontend/evaluate/Budget.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/SourceMgr.h"
#include <string>
#include <utility>
#include <vector>

namespace pp {

/// What is known of a program that was read, right or wrong: for editors, and for those who watch its files.
struct Attempt {
  std::vector<std::string> files; ///< that it imports, also those that cannot be opened
  /// What parameters of the schedule and the model have that nobody gives a value; `ranks`, `microbatches` and `slices`
  /// by these words.
  std::vector<std::pair<std::string, int64_t>> sizes;
  /// If not 0: so many layers the stages would share equally. Those of the model they do not.
  int64_t layers = 0;
};

struct FrontendOptions {
  /// `-D name=value`, in order; the last of a name counts.
  std::vector<std::pair<std::string, std::string>> defines;
  /// Draw this schedule instead of what `train` says. `FILE.pipe:NAME`, or `FILE.pipe` where it has one: train by it.
  std::string schedule;
  /// Run on this cluster, of the file or of the library, instead of the one that `train` names.
  std::string cluster;
  /// The folder of `import "std/.."`.
  std::string stdlibDir;
  /// If not 0 (for --check): the program of `train` on one rank, by std/single.pipe, with so many microbatches.
  int64_t aloneMicrobatches = 0;
  /// If not empty (for --check), replaces the precision of `train`.
  std::string precision;
  /// If not null (for --check), receives the int parameters of the model.
  std::vector<std::pair<std::string, int64_t>> *modelSizes = nullptr;
  /// For --from-hf: the folder whose weights a run of the program starts with.
  std::string folder;
  /// For --from-hf: the facts of its config.json about the computation, as ConfigFacts writes them.
  std::string config;
  /// If not null (for --search), receives the names of those `defines` that belong to the schedule.
  std::vector<std::string> *scheduleDefines = nullptr;
  /// If not null, receives what is known of the program, after an error, too.
  Attempt *attempt = nullptr;
  /// For --lsp, if not null: texts that an editor holds, by path; they go before the files.
  const llvm::StringMap<std::string> *openFiles = nullptr;
  /// For forms that are code: a model with parts that run elsewhere is an error.
  bool makesCode = false;
  Budget budget;
};

/// The file and the name that `--schedule=FILE.pipe:NAME` says; no file where a name alone stands there.
std::pair<std::string, std::string> scheduleFile(llvm::StringRef given);

/// Reads the main buffer of `manager` (and what it imports, added to `manager`) and elaborates its training program:
/// a module with one function for each model part and one `pipeline.program` of pieces and actions. Null after an
/// error, which went through the context's diagnostics with a position in the text.
mlir::OwningOpRef<mlir::ModuleOp> importPipe(llvm::SourceMgr &manager, mlir::MLIRContext *context,
                                             const FrontendOptions &options);

} // namespace pp

#endif // PP_FRONTEND_FRONTEND_H
