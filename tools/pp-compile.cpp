// pp-compile: from a `.pipe` file to an executable, or to any form in between.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "lowering/Lowering.h"
#include "mlir/IR/AsmState.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Support/FileUtilities.h"
#include "mlir/Support/ToolUtilities.h"
#include "passes/Passes.h"
#include "tools/Check.h"
#include "tools/Forms.h"
#include "tools/FrontendFlags.h"
#include "tools/Proofs.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/WithColor.h"

using namespace mlir;
namespace cl = llvm::cl;

namespace {

cl::opt<std::string> input(cl::Positional, cl::desc("FILE.pipe"), cl::Required, cl::cat(pp::compileOptions()));
cl::opt<std::string> target("target", cl::desc("what the program runs on: cpu (default) or cuda"), cl::init("cpu"),
                            cl::cat(pp::compileOptions()));
cl::opt<bool> fuse("fuse", cl::desc("make B of I and W side by side where no message stands between them (true)"),
                   cl::init(true), cl::cat(pp::compileOptions()));
cl::opt<bool> hoist("hoist", cl::desc("let weights leave earlier where the simulated step gains by it"),
                    cl::cat(pp::compileOptions()));
cl::opt<cl::boolOrDefault> epilogues("epilogues",
                                     cl::desc("let products do the gelu and the bias gradients beside them (for cuda)"),
                                     cl::cat(pp::compileOptions()));
cl::opt<bool> verifyDiagnostics("verify-diagnostics", cl::desc("check expected-error comments"),
                                cl::cat(pp::compileOptions()));
cl::opt<bool> splitInput("split-input-file", cl::desc("treat each part between `# -----` lines as a file"),
                         cl::cat(pp::compileOptions()));

/// What a file that holds rank programs already cannot be written as.
LogicalResult checkLevel() {
  if (pp::requestedForm() == pp::Form::Actions || pp::requestedForm() == pp::Form::Pipeline)
    return pp::usage("`" + input + "` holds rank programs; this --emit is what they are made from");
  return success();
}

/// Brings the module to the level that --emit and --prove ask for. `proved` is set where that is the ranks' programs.
LogicalResult runPasses(ModuleOp module, const pp::ProofOptions &proofs, pp::PassTimes &times,
                        std::optional<pp::ProvedModule> &proved) {
  pp::dropProofs(module);
  bool hasRanks = !pp::programRanks(module).empty();
  if (hasRanks && failed(checkLevel()))
    return failure();
  if (pp::requestedForm() == pp::Form::Actions)
    return success();
  if (failed(pp::setCosts(module)))
    return failure();
  PassManager manager(module.getContext());
  manager.addInstrumentation(pp::timePasses(times));
  bool isStep = pp::requestedForm() == pp::Form::Pipeline;
  if (!hasRanks) {
    bool epilogue = epilogues == cl::BOU_TRUE || (epilogues == cl::BOU_UNSET && target == "cuda");
    pp::buildPipeline(manager, isStep ? pp::Until::Step : pp::Until::Ranks, proofs,
                      {fuse, hoist, pp::requestedCosts(), epilogue});
  } else { // a .mlir file that holds rank programs, offsets included: only the bodies' memory is not planned
    manager.addPass(pp::createPlanBodies());
    pp::addProofs(manager, proofs);
  }
  if (isStep)
    return manager.run(module);
  FailureOr<pp::ProvedModule> result = pp::ProvedModule::run(manager, module);
  if (failed(result))
    return failure();
  proved = *result;
  return success();
}

/// What is asked for: the proof, a form, or both.
LogicalResult write(ModuleOp module, const std::optional<pp::ProvedModule> &proved, const pp::PassTimes &times,
                    llvm::raw_ostream &os) {
  if (pp::wantsProof())
    pp::writeProof(module, times, os);
  return success((pp::wantsProof() && !pp::isFormRequested()) ||
                 succeeded(pp::writeForm(module, proved ? &*proved : nullptr, input, os)));
}

/// One file, or one part of a split file.
LogicalResult compile(std::unique_ptr<llvm::MemoryBuffer> buffer, llvm::raw_ostream &os) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, pp::nn::NnDialect, pp::pipeline::PipelineDialect>();
  MLIRContext context(registry, verifyDiagnostics ? MLIRContext::Threading::DISABLED : MLIRContext::Threading::ENABLED);
  context.loadAllAvailableDialects();
  pp::loadLoweringDialects(context);
  context.printOpOnDiagnostic(false);
  auto manager = std::make_shared<llvm::SourceMgr>();
  bool isPipe = !StringRef(input).ends_with(".mlir");
  manager->AddNewSourceBuffer(std::move(buffer), llvm::SMLoc());
  auto options = pp::frontendOptions();
  auto proofs = pp::requestedProofs();
  if (failed(options) || failed(proofs))
    return failure();
  if (pp::wantsCheck()) {
    auto make = [&](ModuleOp module, StringRef path) {
      pp::PassTimes times;
      std::optional<pp::ProvedModule> proved;
      return success(succeeded(runPasses(module, *proofs, times, proved)) &&
                     succeeded(pp::writeExecutable(*proved, path)));
    };
    return pp::check(*manager->getMemoryBuffer(manager->getMainFileID()), *options, make, os);
  }
  auto run = [&] {
    OwningOpRef<ModuleOp> module =
        isPipe ? pp::importPipe(*manager, &context, *options) : parseSourceFile<ModuleOp>(manager, &context);
    pp::PassTimes times;
    std::optional<pp::ProvedModule> proved;
    if (module && target != "cpu")
      for (auto program : module->getOps<pp::pipeline::ProgramOp>())
        program->setAttr(pp::kTargetAttr, StringAttr::get(&context, target));
    return success(module && succeeded(runPasses(*module, *proofs, times, proved)) &&
                   succeeded(write(*module, proved, times, os)));
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
  cl::HideUnrelatedOptions({&pp::compileOptions(), &pp::frontendFlags(), &llvm::getColorCategory()});
  pp::setVersion("pp-compile", pp::linkedTargets());
  cl::ParseCommandLineOptions(argc, argv, "pp-compile: pipeline-parallel training schedules to native programs\n");
  if (target != "cpu" && target != "cuda")
    return failed(pp::usage("target `" + target + "` is not known; there are cpu and cuda")) ? 1 : 0;
  if (pp::wantsProof() && (pp::requestedForm() == pp::Form::Actions || pp::requestedForm() == pp::Form::Pipeline))
    return failed(pp::usage("--prove speaks of rank programs, and this --emit ends before there are any")) ? 1 : 0;
  if (pp::wantsCheck() && (pp::isFormRequested() || pp::wantsProof() || target != "cpu" || verifyDiagnostics ||
                           StringRef(input).ends_with(".mlir")))
    return failed(pp::usage("--check runs a `.pipe` file on this machine's CPU and writes nothing: no --emit, --prove, "
                            "--target or --verify-diagnostics with it"))
               ? 1
               : 0;
  std::string message;
  std::unique_ptr<llvm::MemoryBuffer> buffer = openInputFile(input, &message);
  if (!buffer)
    return failed(pp::usage(message)) ? 1 : 0;
  auto one = [&](std::unique_ptr<llvm::MemoryBuffer> part, llvm::raw_ostream &os) {
    return compile(std::move(part), os);
  };
  LogicalResult result = splitInput ? splitAndProcessBuffer(std::move(buffer), one, llvm::outs(), "# -----", "# -----")
                                    : one(std::move(buffer), llvm::outs());
  return failed(result) ? 1 : 0;
}
