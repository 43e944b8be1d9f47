// pp-unproved: writes LLVM text and simulated figures of hand-made rank programs that need not be provable, for tests.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// pp-compile writes nothing of rank programs that are not proved. The lowering and the simulator have tests that are
// shorter without a whole training step; this tool serves them. It makes no objects and is not installed.
#include "dialect/nn/Nn.h"
#include "lowering/Lowering.h"
#include "mlir/IR/AsmState.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Support/FileUtilities.h"
#include "mlir/Support/ToolUtilities.h"
#include "passes/Passes.h"
#include "tools/Forms.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/SourceMgr.h"

using namespace mlir;
namespace cl = llvm::cl;

static cl::opt<std::string> input(cl::Positional, cl::desc("FILE.mlir"), cl::Required, cl::cat(pp::compileOptions()));
static cl::opt<bool> verifyDiagnostics("verify-diagnostics", cl::desc("check expected-error comments"),
                                       cl::cat(pp::compileOptions()));
static cl::opt<bool> splitInput("split-input-file", cl::desc("treat each part between `// -----` lines as a file"),
                                cl::cat(pp::compileOptions()));

static LogicalResult writeOne(std::unique_ptr<llvm::MemoryBuffer> buffer, llvm::raw_ostream &os) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, pp::nn::NnDialect, pp::pipeline::PipelineDialect>();
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  context.printOpOnDiagnostic(false);
  pp::loadLoweringDialects(context);
  auto sources = std::make_shared<llvm::SourceMgr>();
  sources->AddNewSourceBuffer(std::move(buffer), llvm::SMLoc());
  auto run = [&] {
    OwningOpRef<ModuleOp> module = parseSourceFile<ModuleOp>(sources, &context);
    PassManager manager(&context);
    manager.addPass(pp::createPlanBodies());
    return success(module && succeeded(manager.run(*module)) &&
                   succeeded(pp::writeForm(*module, /*proved=*/nullptr, input, *sources, os)));
  };
  if (!verifyDiagnostics) {
    SourceMgrDiagnosticHandler handler(*sources, &context);
    return run();
  }
  SourceMgrDiagnosticVerifierHandler handler(*sources, &context);
  (void)run();
  return handler.verify();
}

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  pp::CodeMaker code = {};
  code.writeLlvm = pp::writeLlvmText;
  pp::setCodeMaker(&code);
  cl::ParseCommandLineOptions(argc, argv, "pp-unproved: rank programs as tests want them\n");
  std::string message;
  std::unique_ptr<llvm::MemoryBuffer> buffer = openInputFile(input, &message);
  if (!buffer) {
    llvm::errs() << message << "\n";
    return 1;
  }
  return failed(splitInput ? splitAndProcessBuffer(std::move(buffer), writeOne, llvm::outs(), "// -----", "// -----")
                           : writeOne(std::move(buffer), llvm::outs()));
}
