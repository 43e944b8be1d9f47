// pp-compile: from a `.pipe` file to an executable, or to any form in between.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Frontend.h"
#include "lowering/Lowering.h"
#include "mlir/IR/AsmState.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Support/FileUtilities.h"
#include "mlir/Support/ToolUtilities.h"
#include "passes/Passes.h"
#include "tools/Config.h"
#include "tools/Forms.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/WithColor.h"

using namespace mlir;
namespace cl = llvm::cl;

namespace {

cl::opt<std::string> input(cl::Positional, cl::desc("FILE.pipe"), cl::Required, cl::cat(pp::compileOptions()));
cl::list<std::string> defines("D", cl::Prefix, cl::value_desc("name=value"), cl::cat(pp::compileOptions()),
                              cl::desc("give a parameter of the schedule, model or train program a value"));
cl::opt<std::string> schedule("schedule", cl::desc("compile this schedule of the file instead of its train program"),
                              cl::value_desc("name"), cl::cat(pp::compileOptions()));
cl::opt<std::string> target("target", cl::desc("device: cpu"), cl::init("cpu"), cl::cat(pp::compileOptions()));
cl::opt<std::string> stdlibDir("stdlib", cl::desc("folder of the standard library"), cl::cat(pp::compileOptions()));
cl::opt<bool> verifyDiagnostics("verify-diagnostics", cl::desc("check expected-error comments"),
                                cl::cat(pp::compileOptions()));
cl::opt<bool> splitInput("split-input-file", cl::desc("treat each part between `# -----` lines as a file"),
                         cl::cat(pp::compileOptions()));

/// The standard library: --stdlib, else beside this tool's folder (installed or in the build), else the source's.
std::string findStdlib(const char *argv0) {
  if (!stdlibDir.empty())
    return stdlibDir;
  std::string self = llvm::sys::fs::getMainExecutable(argv0, reinterpret_cast<void *>(&findStdlib));
  llvm::SmallString<256> beside(llvm::sys::path::parent_path(llvm::sys::path::parent_path(self)));
  llvm::sys::path::append(beside, "share", "pp", "stdlib");
  return llvm::sys::fs::is_directory(beside) ? std::string(beside) : PP_STDLIB_DIR;
}

FailureOr<pp::FrontendOptions> frontendOptions(StringRef stdlib) {
  pp::FrontendOptions options;
  options.schedule = schedule;
  options.stdlibDir = stdlib.str();
  for (StringRef define : defines) {
    auto [name, value] = define.split('=');
    if (name.empty() || name.size() == define.size())
      return pp::usage("expected -D name=value, got `-D " + define + "`");
    options.defines.push_back({name.str(), value.str()});
  }
  return options;
}

/// The module at the level that --emit asks for.
LogicalResult runPasses(ModuleOp module) {
  if (pp::requestedForm() == pp::Form::Actions)
    return success();
  PassManager manager(module.getContext());
  if (pp::programRanks(module).empty())
    pp::buildPipeline(manager, pp::requestedForm() == pp::Form::Pipeline ? pp::Until::Step : pp::Until::Ranks);
  else // a .mlir file that holds rank programs, offsets included: only the bodies' memory is not planned
    manager.addPass(pp::createPlanBodies());
  return manager.run(module);
}

/// One file, or one part of a split file.
LogicalResult compile(std::unique_ptr<llvm::MemoryBuffer> buffer, StringRef stdlib, llvm::raw_ostream &os) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, pp::nn::NnDialect, pp::pipeline::PipelineDialect>();
  MLIRContext context(registry, verifyDiagnostics ? MLIRContext::Threading::DISABLED : MLIRContext::Threading::ENABLED);
  context.loadAllAvailableDialects();
  pp::loadLoweringDialects(context);
  context.printOpOnDiagnostic(false);
  auto manager = std::make_shared<llvm::SourceMgr>();
  bool isPipe = !StringRef(input).ends_with(".mlir");
  manager->AddNewSourceBuffer(std::move(buffer), llvm::SMLoc());
  auto options = frontendOptions(stdlib);
  if (failed(options))
    return failure();
  auto run = [&] {
    OwningOpRef<ModuleOp> module =
        isPipe ? pp::importPipe(*manager, &context, *options) : parseSourceFile<ModuleOp>(manager, &context);
    return success(module && succeeded(runPasses(*module)) && succeeded(pp::writeForm(*module, input, os)));
  };
  if (!verifyDiagnostics) {
    SourceMgrDiagnosticHandler handler(*manager, &context);
    return run();
  }
  SourceMgrDiagnosticVerifierHandler handler(*manager, &context);
  (void)run();
  return handler.verify();
}

} // namespace

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  cl::HideUnrelatedOptions({&pp::compileOptions(), &llvm::getColorCategory()});
  cl::ParseCommandLineOptions(argc, argv, "pp-compile: pipeline-parallel training schedules to native programs\n");
  if (target != "cpu")
    return failed(pp::usage("target `" + target + "` is not known; this build has cpu")) ? 1 : 0;
  std::string message, stdlib = findStdlib(argv[0]);
  std::unique_ptr<llvm::MemoryBuffer> buffer = openInputFile(input, &message);
  if (!buffer)
    return failed(pp::usage(message)) ? 1 : 0;
  auto one = [&](std::unique_ptr<llvm::MemoryBuffer> part, llvm::raw_ostream &os) {
    return compile(std::move(part), stdlib, os);
  };
  LogicalResult result = splitInput ? splitAndProcessBuffer(std::move(buffer), one, llvm::outs(), "# -----", "# -----")
                                    : one(std::move(buffer), llvm::outs());
  return failed(result) ? 1 : 0;
}
