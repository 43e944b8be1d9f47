// `pp-compile --check`: judges a schedule by running it, small and in f64, against the same model on one rank.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_JUDGE_CHECK_H
#define PP_TOOLS_JUDGE_CHECK_H

#include "frontend/Frontend.h"

namespace pp {

/// True if --check asks for it.
bool wantsCheck();

/// Makes an executable of a module that the frontend made.
using MakeExecutable = llvm::function_ref<mlir::LogicalResult(mlir::ModuleOp module, llvm::StringRef path)>;

/// Compiles the program of a `.pipe` file and `single` of the same model, both in f64 and with sizes as small as they
/// can be made where -D says nothing. Runs a step of both in one process, and prints the worst difference of every
/// weight's gradient and of the loss. Fails where one is above the bound, and where something cannot be compiled or
/// run.
mlir::LogicalResult check(llvm::MemoryBufferRef source, const FrontendOptions &options, MakeExecutable make,
                          llvm::raw_ostream &os);

} // namespace pp

#endif // PP_TOOLS_JUDGE_CHECK_H
