// Binds what `train` names: one model, one schedule, their arguments, data, optimizer and precision.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_TRAIN_H
#define PP_FRONTEND_TRAIN_H

#include "frontend/Frontend.h"
#include "frontend/evaluate/CommandLine.h"
#include "frontend/syntax/Ast.h"
#include "frontend/syntax/Source.h"

namespace pp {

/// Everything that a file and its imports declare.
struct Declarations {
  std::vector<const Function *> functions;
  std::vector<const Schedule *> schedules;
  std::vector<const Model *> models;
  std::vector<const ModelBlock *> blocks;
  std::vector<const Train *> trains;
  std::vector<const Cluster *> clusters;
  const Schedule *chosen = nullptr; // by --schedule=FILE.pipe:NAME, in place of what `train` names
  const Schedule *single = nullptr; // the library's, where the program runs alone
  SMLoc begin;                      // of the main file
  bool isWrong = false;             // errors were told
  bool isIncomplete = false;        // some declarations could not be read; what names one of them is right
};

/// Appends the program and the model's functions to `module`.
mlir::LogicalResult elaborateProgram(Source &source, const Declarations &declared, const FrontendOptions &options,
                                     CommandLine &commandLine, mlir::ModuleOp module);

} // namespace pp

#endif // PP_FRONTEND_TRAIN_H
