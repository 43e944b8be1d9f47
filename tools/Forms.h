// What pp-compile can write, and the options that say which form, of which rank, and where to.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_FORMS_H
#define PP_TOOLS_FORMS_H

#include "analysis/Simulate.h"
#include "mlir/IR/BuiltinOps.h"
#include "tools/FrontendFlags.h"
#include "llvm/Support/SourceMgr.h"

namespace pp {

class ProvedModule;

/// The forms of `--emit`.
enum class Form {
  Exe,
  Obj,
  Llvm,
  Ranks,
  Pipeline,
  Actions,
  Tasks,
  Comms,
  Torch,
  Timeline,
  Svg,
  Report,
  Trace,
  Chakra,
  Stats,
  Json,
  Pipe
};

/// What makes code of proved programs. A tool of schedules alone has none, and no form that is code.
struct CodeMaker {
  llvm::ArrayRef<llvm::StringLiteral> (*targets)();
  void (*loadDialects)(mlir::MLIRContext &context);
  /// LLVM IR of a rank.
  llvm::LogicalResult (*writeLlvm)(mlir::ModuleOp module, int64_t rank, llvm::raw_ostream &os);
  llvm::LogicalResult (*writeObject)(const ProvedModule &proved, int64_t rank, llvm::StringRef path);
  llvm::LogicalResult (*writeObjects)(const ProvedModule &proved, llvm::StringRef folder);
  llvm::LogicalResult (*writeExecutable)(const ProvedModule &proved, llvm::StringRef runtime, llvm::StringRef path);
  /// --check asks for a run; runs it, by executables that `make` makes.
  bool (*wantsCheck)();
  llvm::LogicalResult (*check)(llvm::MemoryBufferRef source, const FrontendOptions &options,
                               llvm::function_ref<llvm::LogicalResult(mlir::ModuleOp, llvm::StringRef)> make,
                               llvm::raw_ostream &os);
};
/// The one of this tool, or null; to be set before its command line is read.
const CodeMaker *codeMaker();
void setCodeMaker(const CodeMaker *maker);

/// The headings of pp-compile's options in `--help`: for outputs, for code, and for simulation.
llvm::cl::OptionCategory &compileOptions();
llvm::cl::OptionCategory &codeOptions();
llvm::cl::OptionCategory &simulationOptions();

/// The form that the command line asks for.
Form requestedForm();
/// True if it says so, and does not leave it at the default.
bool isFormRequested();
/// --compare names a run.
bool isCompared();
/// It names the output: with -o.
bool isOutputNamed();
std::string namedOutput();
/// Where this process, which one that watches has started, writes the names of the files that it reads; else empty.
std::string watchedList();
/// The script beside the named output which says that it was written again.
std::string watchScript();
/// The argument of --also: a parameter and its values for further programs; without a name there is none.
struct Also {
  std::string name;
  llvm::SmallVector<std::string> values;
};
llvm::FailureOr<Also> requestedAlso();
/// Sets the text behind the name of the output from now on.
void setOutputEnd(llvm::StringRef end);
/// The form is code.
bool writesCode();

/// The values of --emit, in the order of `Form`.
NamedValues formNames();

/// The value of --costs.
std::string requestedCosts();

/// The manner of simulation by --overlap and --lockstep.
Manner requestedManner();

/// Costs of parts, if --order or --costs gives them, as the programs' own: messages are posted in the order that they
/// lead to.
mlir::LogicalResult setCosts(mlir::ModuleOp module);

/// Fails, said once, where what would be written is a folder, or is read: the source, one of the files `read`, or what
/// an option names. Also by another name, a link.
mlir::LogicalResult checkOutputs(mlir::ModuleOp module, llvm::StringRef source, llvm::ArrayRef<std::string> read);

/// Writes the requested form of a module that is at its level: to -o, else to `os` or (exe, obj) beside the caller,
/// with the name of the source. `proved`: the same module, or null where its proofs did not run; then it is not made
/// into code or JSON. `files`: what was read for it.
llvm::LogicalResult writeForm(mlir::ModuleOp module, const ProvedModule *proved, llvm::StringRef source,
                              const llvm::SourceMgr &files, llvm::raw_ostream &os);

/// Writes a text to -o, else to standard output; nothing of it where `write` fails.
llvm::LogicalResult writeProgramText(llvm::function_ref<llvm::LogicalResult(llvm::raw_ostream &)> write);

/// An executable of proved rank programs.
llvm::LogicalResult writeExecutable(const ProvedModule &proved, llvm::StringRef path);

} // namespace pp

#endif // PP_TOOLS_FORMS_H
