// The import of schedule CSV of PyTorch, which pp-translate and a verb of pp are for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_COMMAND_TRANSLATE_H
#define PP_TOOLS_COMMAND_TRANSLATE_H

#include "tools/FrontendFlags.h"

namespace pp {

/// The heading of the options beside this in `--help`.
llvm::cl::OptionCategory &translateOptions();

/// The values of --dialect.
NamedValues dialectNames();

/// True if --import-csv asks for one.
bool wantsTranslation();

/// The options that have an effect on it.
llvm::ArrayRef<llvm::StringRef> optionsOfTranslation();

/// Translates the file, as the command line says. `verifies`, `splits`: for tests, as in --verify-diagnostics.
llvm::LogicalResult translate(llvm::StringRef input, bool verifies, bool splits);

} // namespace pp

#endif // PP_TOOLS_COMMAND_TRANSLATE_H
