// The base class of passes on programs of one level of the `pipeline` dialect: it refuses a program of another level.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_LEVELS_H
#define PP_PASSES_LEVELS_H

#include "dialect/pipeline/Pipeline.h"
#include "mlir/Pass/Pass.h"

namespace pp {

/// One error for the first program of the module that is of another level, with a note at the op that shows it. A
/// program with nothing but pieces and limits is of every level.
mlir::LogicalResult requireLevel(mlir::ModuleOp module, pipeline::Level level, llvm::StringRef pass);

/// Passes.td says which level a pass takes; the pass itself defines `runOnPrograms`.
template <pipeline::Level level> class LevelPass : public mlir::OperationPass<mlir::ModuleOp> {
protected:
  using OperationPass::OperationPass;
  virtual void runOnPrograms() = 0;

private:
  void runOnOperation() final {
    if (failed(requireLevel(getOperation(), level, getArgument())))
      return signalPassFailure();
    runOnPrograms();
  }
};

} // namespace pp

#endif // PP_PASSES_LEVELS_H
