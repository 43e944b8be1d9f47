// The command line of every tool that reads `.pipe` files: parameters, the schedule, the standard library.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_FRONTENDFLAGS_H
#define PP_TOOLS_FRONTENDFLAGS_H

#include "frontend/Frontend.h"
#include "llvm/Support/CommandLine.h"

namespace pp {

/// The name by which the tool was started; messages begin with it. `path` is argv[0], which also finds the executable
/// where there is no /proc.
llvm::StringRef toolName();
void setTool(const char *path);

/// A request that makes no sense, said once on stderr; the tool ends with 2.
llvm::LogicalResult usage(const llvm::Twine &message);
/// Reports once on stderr what the system refused; the tool ends with 1.
llvm::LogicalResult refuse(const llvm::Twine &message);
/// Counts errors that point into the command line; to be called for every context of a tool.
void watchCommandLine(mlir::MLIRContext &context);

/// An option and the names that its value may have.
struct NamedValues {
  llvm::StringRef option;
  llvm::SmallVector<llvm::StringRef> values;
};
template <typename Option> NamedValues namedValues(Option &option) {
  NamedValues named{option.ArgStr, {}};
  for (unsigned i = 0; i < option.getParser().getNumOptions(); ++i)
    if (!option.getParser().getOption(i).empty())
      named.values.push_back(option.getParser().getOption(i));
  return named;
}

/// Reads the command line: `-h` is --help, LLVM's own options are not shown, NO_COLOR counts. False if it is wrong,
/// which is said once on stderr.
bool readCommandLine(llvm::ArrayRef<const char *> words, llvm::StringRef overview,
                     llvm::ArrayRef<const llvm::cl::OptionCategory *> shown, llvm::ArrayRef<NamedValues> named);
/// The tool's exit code: 0 done, 1 the program or a file is wrong, 2 the command line is. Flushes stdout.
int exitCode(llvm::LogicalResult done);

/// For `--version`: which pp, which LLVM, and targets where the tool links programs.
void setVersion(llvm::StringRef tool, llvm::ArrayRef<llvm::StringLiteral> targets = {});

/// The heading in `--help` of the options that are declared beside this.
llvm::cl::OptionCategory &frontendFlags();

/// A further value of a parameter, behind those of -D.
void setDefine(llvm::StringRef name, llvm::StringRef value);
/// The options of -D, --schedule and --stdlib.
mlir::FailureOr<FrontendOptions> frontendOptions();

} // namespace pp

#endif // PP_TOOLS_FRONTENDFLAGS_H
