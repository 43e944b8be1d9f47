// Turns the config.json of a published model into the training program that it stands for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_FAMILY_H
#define PP_FRONTEND_FAMILY_H

#include "frontend/Frontend.h"

namespace pp {

/// The values of --from-hf, --schedule and --config-note.
struct FolderRequest {
  std::string folder, schedule;
  std::vector<std::string> notes;
};

/// The text of the program for `folder`, whose config.json is the main buffer of `manager`. `options` tells where the
/// library is and which -D are given, and gets what the program carries of the folder.
mlir::FailureOr<std::string> writeProgramOf(const FolderRequest &request, llvm::SourceMgr &manager,
                                            mlir::MLIRContext *context, FrontendOptions &options);

} // namespace pp

#endif // PP_FRONTEND_FAMILY_H
