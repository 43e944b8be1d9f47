// `pp-compile --watch`: compiles again whenever a file changes that the program was read from.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_EDITOR_WATCH_H
#define PP_TOOLS_EDITOR_WATCH_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/SourceMgr.h"

namespace pp {

/// The command line asks for it.
bool wantsWatch();

/// Runs this very command without --watch, in a process of its own, each time that `input` or one of its imports
/// changes; until a signal ends it, or the command reads no file at all. The exit code.
int watch(llvm::ArrayRef<const char *> command, llvm::StringRef input);

/// Notes the files that a watched process has read or tried to read.
void noteFiles(const llvm::SourceMgr &manager, llvm::ArrayRef<std::string> imports = {});
/// Tells them to the one that watches, when all have been read.
void tellFiles();

} // namespace pp

#endif // PP_TOOLS_EDITOR_WATCH_H
