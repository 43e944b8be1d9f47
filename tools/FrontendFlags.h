// The command line of every tool that reads `.pipe` files: parameters, the schedule, the standard library.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_FRONTENDFLAGS_H
#define PP_TOOLS_FRONTENDFLAGS_H

#include "frontend/Frontend.h"
#include "llvm/Support/CommandLine.h"

namespace pp {

/// A request that makes no sense, said once on stderr.
llvm::LogicalResult usage(const llvm::Twine &message);

/// For `--version`: which pp, which LLVM, and targets where the tool links programs.
void setVersion(llvm::StringRef tool, llvm::ArrayRef<llvm::StringLiteral> targets = {});

/// The heading in `--help` of the options that are declared beside this.
llvm::cl::OptionCategory &frontendFlags();

/// What -D, --schedule and --stdlib say.
mlir::FailureOr<FrontendOptions> frontendOptions();

} // namespace pp

#endif // PP_TOOLS_FRONTENDFLAGS_H
