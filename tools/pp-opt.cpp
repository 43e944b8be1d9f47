// pp-opt: runs any of our passes on a module, for tests and for looking inside.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"
#include "passes/Memory.h"
#include "passes/Passes.h"

int main(int argc, char **argv) {
  pp::keepFreeMemory();
  mlir::DialectRegistry registry;
  registry.insert<mlir::func::FuncDialect, pp::nn::NnDialect, pp::pipeline::PipelineDialect>();
  pp::registerPpPasses();
  mlir::registerTransformsPasses();
  mlir::PassPipelineRegistration<>("pp-all", "the whole pipeline, from actions to proved rank programs",
                                   [](mlir::OpPassManager &manager) { pp::buildPipeline(manager); });
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "the passes of pp\n", registry));
}
