// What all tools do behind their command lines.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_COMMAND_COMPILE_H
#define PP_TOOLS_COMMAND_COMPILE_H

#include "llvm/ADT/ArrayRef.h"

namespace pp {

/// Does what the command line, which was read, asks for. `words` are all of it. Returns the exit code.
int runCommand(llvm::ArrayRef<const char *> words);

} // namespace pp

#endif // PP_TOOLS_COMMAND_COMPILE_H
