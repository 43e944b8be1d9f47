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
#include "passes/Report.h"
#include "tools/Config.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/ToolOutputFile.h"

using namespace mlir;
namespace cl = llvm::cl;

namespace {

enum class Emit { Exe, Obj, Llvm, Ranks, Pipeline, Actions, Tasks, Comms, Timeline, Stats };

cl::OptionCategory category("pp-compile options");
cl::opt<std::string> input(cl::Positional, cl::desc("FILE.pipe"), cl::Required, cl::cat(category));
cl::list<std::string> defines("D", cl::Prefix, cl::value_desc("name=value"), cl::cat(category),
                              cl::desc("give a parameter of the schedule, model or train program a value"));
cl::opt<std::string> schedule("schedule", cl::desc("compile this schedule of the file instead of its train program"),
                              cl::value_desc("name"), cl::cat(category));
cl::opt<std::string> target("target", cl::desc("device: cpu"), cl::init("cpu"), cl::cat(category));
cl::opt<Emit>
    emit("emit", cl::desc("what to write"), cl::init(Emit::Exe), cl::cat(category),
         cl::values(clEnumValN(Emit::Exe, "exe", "an executable for mpirun (default)"),
                    clEnumValN(Emit::Obj, "obj", "the object file of --rank, or one per rank into the folder OUT"),
                    clEnumValN(Emit::Llvm, "llvm", "LLVM IR of --rank"),
                    clEnumValN(Emit::Ranks, "ranks", "the planned and proved programs of the ranks"),
                    clEnumValN(Emit::Pipeline, "pipeline", "the step in one global order"),
                    clEnumValN(Emit::Actions, "actions", "what the schedule emitted, before anything is inferred"),
                    clEnumValN(Emit::Tasks, "tasks", "CSV, one row per rank: units (PyTorch's compute-only grammar)"),
                    clEnumValN(Emit::Comms, "comms", "CSV, one row per rank: units and messages"),
                    clEnumValN(Emit::Timeline, "timeline", "a drawing for the terminal"),
                    clEnumValN(Emit::Stats, "stats", "JSON: makespan, bubble, peaks, traffic")));
cl::opt<int> rankOption("rank", cl::desc("only this rank (obj, llvm)"), cl::init(-1), cl::cat(category));
cl::opt<std::string> output("o", cl::desc("output file"), cl::value_desc("OUT"), cl::cat(category));
cl::opt<std::string> stdlibDir("stdlib", cl::desc("folder of the standard library"), cl::cat(category));
cl::opt<std::string> runtimeLibrary("runtime", cl::desc("path of libpp-runtime.a"), cl::cat(category));
cl::opt<bool> verifyDiagnostics("verify-diagnostics", cl::desc("check expected-error comments"), cl::cat(category));
cl::opt<bool> splitInput("split-input-file", cl::desc("treat each part between `# -----` lines as a file"),
                         cl::cat(category));

LogicalResult usage(const llvm::Twine &message) {
  llvm::errs() << "pp-compile: error: " << message << "\n";
  return failure();
}

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
      return usage("expected -D name=value, got `-D " + define + "`");
    options.defines.push_back({name.str(), value.str()});
  }
  return options;
}

/// The module at the level that --emit asks for.
LogicalResult runPasses(ModuleOp module) {
  if (emit == Emit::Actions)
    return success();
  PassManager manager(module.getContext());
  if (pp::programRanks(module).empty())
    pp::buildPipeline(manager, emit == Emit::Pipeline ? pp::Until::Step : pp::Until::Ranks);
  else // a .mlir file that holds rank programs, offsets included: only the bodies' memory is not planned
    manager.addPass(pp::createPlanBodies());
  return manager.run(module);
}

LogicalResult writeText(ModuleOp module, llvm::raw_ostream &os) {
  if (emit == Emit::Llvm) {
    llvm::LLVMContext context;
    std::unique_ptr<llvm::Module> rank;
    if (failed(pp::lowerRank(module, std::max<int>(rankOption, 0), context, rank)))
      return failure();
    pp::emitLlvmText(*rank, os);
    return success();
  }
  for (auto program : module.getOps<pp::pipeline::ProgramOp>()) {
    switch (emit) {
    case Emit::Tasks:
      pp::printTasks(program, os);
      break;
    case Emit::Comms:
      pp::printComms(program, os);
      break;
    case Emit::Timeline:
      pp::printTimeline(program, os);
      break;
    case Emit::Stats:
      pp::printStats(program, os);
      break;
    default:
      module.print(os, OpPrintingFlags().enableDebugInfo(false));
      return success();
    }
  }
  return success();
}

LogicalResult writeObjects(ModuleOp module) {
  if (rankOption < 0) {
    llvm::SmallVector<std::string> paths;
    return pp::emitObjects(module, pp::programRanks(module), output.empty() ? StringRef(".") : StringRef(output),
                           paths);
  }
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> rank;
  if (failed(pp::lowerRank(module, rankOption, context, rank)))
    return failure();
  std::string path = output.empty() ? "rank" + std::to_string(rankOption) + ".o" : std::string(output);
  return pp::emitObject(*rank, path, module.getLoc());
}

LogicalResult write(ModuleOp module, llvm::raw_ostream &os) {
  auto ranks = pp::programRanks(module);
  if (rankOption >= 0 && emit != Emit::Actions && emit != Emit::Pipeline && !llvm::is_contained(ranks, rankOption))
    return usage("rank " + llvm::Twine(rankOption) + " does not exist; this program has " + llvm::Twine(ranks.size()) +
                 " ranks, 0 to " + llvm::Twine(ranks.size() - 1));
  if (emit == Emit::Exe)
    return pp::emitExecutable(module, runtimeLibrary,
                              output.empty() ? llvm::sys::path::stem(input) : StringRef(output));
  if (emit == Emit::Obj)
    return writeObjects(module);
  if (output.empty() || output == "-")
    return writeText(module, os);
  std::string message;
  std::unique_ptr<llvm::ToolOutputFile> file = openOutputFile(output, &message);
  if (!file)
    return usage(message);
  if (failed(writeText(module, file->os())))
    return failure();
  file->keep();
  return success();
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
    return success(module && succeeded(runPasses(*module)) && succeeded(write(*module, os)));
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
  cl::HideUnrelatedOptions(category);
  cl::ParseCommandLineOptions(argc, argv, "pp-compile: pipeline-parallel training schedules to native programs\n");
  if (target != "cpu")
    return failed(usage("target `" + target + "` is not known; this build has cpu")) ? 1 : 0;
  std::string message, stdlib = findStdlib(argv[0]);
  std::unique_ptr<llvm::MemoryBuffer> buffer = openInputFile(input, &message);
  if (!buffer)
    return failed(usage(message)) ? 1 : 0;
  auto one = [&](std::unique_ptr<llvm::MemoryBuffer> part, llvm::raw_ostream &os) {
    return compile(std::move(part), stdlib, os);
  };
  LogicalResult result = splitInput ? splitAndProcessBuffer(std::move(buffer), one, llvm::outs(), "# -----", "# -----")
                                    : one(std::move(buffer), llvm::outs());
  return failed(result) ? 1 : 0;
}
