// The command line that every tool for users has: `pp` with its verbs, pp-compile and pp-translate.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_COMMAND_TOOL_H
#define PP_TOOLS_COMMAND_TOOL_H

#include "tools/Forms.h"

namespace pp {

/// Reads the command line and does what it asks for; `maker` is null for `pp`, which has verbs and makes no code.
/// Returns the exit code.
int runTool(int argc, char **argv, const CodeMaker *maker);

} // namespace pp

#endif // PP_TOOLS_COMMAND_TOOL_H
