// `pp-compile --lsp`: a server of the Language Server Protocol for `.pipe` files, on standard input and output.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TOOLS_EDITOR_SERVER_H
#define PP_TOOLS_EDITOR_SERVER_H

#include "frontend/Frontend.h"

namespace pp {

/// True if --lsp asks for it.
bool wantsLanguageServer();

/// Serves until the client says `exit`, or closes the stream. Fails where it was not asked to shut down before.
///
/// Beside the protocol's own there is one request, `pp/timeline`: `{textDocument: {uri}, messages?, memory?}`, which
/// gets `{svg}`, the figure of the step; empty where the file is wrong.
llvm::LogicalResult serveLanguage(const FrontendOptions &options);

} // namespace pp

#endif // PP_TOOLS_EDITOR_SERVER_H
