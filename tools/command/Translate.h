// Translations between `.pipe` files and schedule CSV of PyTorch, which pp-translate is for, and verbs of pp.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_COMMAND_TRANSLATE_H
#define PP_TOOLS_COMMAND_TRANSLATE_H

#include "tools/FrontendFlags.h"

namespace pp {

/// The heading of the options beside this in `--help`.
llvm::cl::OptionCategory &translateOptions();

/// The values of --dialect.
NamedValues dialectNames();

/// True if --import-csv or --export-csv asks for one.
bool wantsTranslation();

/// The options that have an effect on an import, or on an export.
llvm::ArrayRef<llvm::StringRef> optionsOfTranslation(bool isImport);

/// Translates the file, as the command line says. `verifies`, `splits`: for tests, as in --verify-diagnostics.
llvm::LogicalResult translate(llvm::StringRef input, bool verifies, bool splits);

} // namespace pp

#endif // PP_TOOLS_COMMAND_TRANSLATE_H
