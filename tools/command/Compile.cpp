// From a `.pipe` file to an executable, or to any form in between: what the command line of the tools asks for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/command/Compile.h"
#include "dialect/Input.h"
#include "dialect/nn/Nn.h"
#include "frontend/model/Family.h"
#include "mlir/IR/AsmState.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Support/ToolUtilities.h"
#include "passes/Memory.h"
#include "passes/Passes.h"
#include "passes/plan/Plan.h"
#include "report/Report.h"
#include "tools/Effects.h"
#include "tools/Forms.h"
#include "tools/FrontendFlags.h"
#include "tools/Proofs.h"
#include "tools/command/Translate.h"
#include "tools/editor/Server.h"
#include "tools/editor/Watch.h"
#include "tools/search/Search.h"
#include "llvm/Support/BuryPointer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/WithColor.h"
#include <csignal>

using namespace mlir;
namespace cl = llvm::cl;

namespace {

cl::opt<std::string> input(cl::Positional, cl::desc("FILE.pipe"), cl::cat(pp::frontendFlags()));
cl::opt<std::string> fromFolder("from-hf",
                                cl::desc("train the model of this folder, as Hugging Face publishes them; "
                                         "with --schedule=std/<file>.pipe[:NAME]"),
                                cl::value_desc("dir"), cl::cat(pp::frontendFlags()));
cl::list<std::string> configNotes("config-note", cl::CommaSeparated, cl::value_desc("name,.."),
                                  cl::desc("fields of the folder's config.json that change nothing that is trained"),
                                  cl::cat(pp::frontendFlags()));
cl::opt<std::string> target("target", cl::desc("what the program runs on: cpu (default) or cuda"), cl::init("cpu"),
                            cl::cat(pp::codeOptions()));
cl::opt<bool> fuse("fuse",
                   cl::desc("run I and W as one B where they stand side by side with no message between them (true)"),
                   cl::init(true), cl::cat(pp::codeOptions()));
cl::opt<bool> interleave("interleave",
                         cl::desc("compute while the devices of a rank exchange something: what that exchange does not "
                                  "need, and ops of the other unit of a `together` (true)"),
                         cl::init(true), cl::cat(pp::codeOptions()));
cl::opt<bool> hoist("hoist", cl::desc("send weights earlier where that makes the simulated step shorter"),
                    cl::cat(pp::codeOptions()));
cl::opt<pp::PlanEffort>
    plan("plan", cl::ValueOptional, cl::cat(pp::codeOptions()),
         cl::desc("replace the schedule's order of units by the shortest that is found and fits the memory"),
         cl::values(clEnumValN(pp::PlanEffort::Normal, "", "the planner"),
                    clEnumValN(pp::PlanEffort::High, "high", "and some seconds of drawn patterns, lists and moves")));
cl::opt<cl::boolOrDefault>
    epilogues("epilogues",
              cl::desc("compute gelu and bias gradients inside the products beside them (default for cuda)"),
              cl::cat(pp::codeOptions()));
cl::opt<cl::boolOrDefault> forward(
    "forward",
    cl::desc("make a step that runs forward alone, for --eval and --logprobs of the program (exe, obj and json: true); "
             "other forms show that step"),
    cl::cat(pp::codeOptions()));
/// Its words, for --search to say how a row is made again; whether SIGINT ended the search.
std::vector<std::string> commandLine;
bool isInterrupted = false;
cl::opt<bool> verifyDiagnostics("verify-diagnostics", cl::desc("check expected-error comments"), cl::Hidden,
                                cl::cat(pp::frontendFlags()));
cl::opt<bool> splitInput("split-input-file", cl::desc("treat each part between `# -----` lines as a file"), cl::Hidden,
                         cl::cat(pp::frontendFlags()));

/// --check asks for a run.
bool wantsCheck() { return pp::codeMaker() && pp::codeMaker()->wantsCheck(); }

/// Code is made in the end; not where a table alone is asked for.
bool makesCode() {
  bool isTable = pp::wantsProof() || (pp::wantsSearch() && !pp::isOutputNamed());
  return wantsCheck() ||
         ((pp::writesCode() || pp::requestedForm() == pp::Form::Llvm) && (pp::isFormRequested() || !isTable));
}

/// Refuses forms that a file with rank programs cannot be written as.
LogicalResult checkLevel() {
  if (pp::requestedForm() == pp::Form::Actions || pp::requestedForm() == pp::Form::Pipeline)
    return pp::usage("`" + input + "` holds rank programs; this --emit is what they are made from");
  return success();
}

/// Before anything is done that takes time: options without effect, and files that would be written over.
LogicalResult checkRequest(ModuleOp module, const llvm::SourceMgr &sources, bool isPipe) {
  if (module.getOps<pp::pipeline::ProgramOp>().empty())
    return pp::refuse("`" + input + "` holds no program");
  bool hasRanks = !pp::programRanks(module).empty();
  if (hasRanks && failed(checkLevel()))
    return failure();
  bool proves = pp::wantsProofAlone();
  if (failed(pp::checkEffects({isPipe, hasRanks, proves, splitInput, /*checks=*/false})))
    return failure();
  for (auto program : module.getOps<pp::pipeline::ProgramOp>())
    if (pp::requestedForm() == pp::Form::Torch && failed(pp::checkTorch(program)))
      return failure();
  SmallVector<std::string> read = {input};
  for (unsigned buffer = 1; buffer <= sources.getNumBuffers(); ++buffer)
    read.push_back(sources.getMemoryBuffer(buffer)->getBufferIdentifier().str());
  return success(proves || succeeded(pp::checkOutputs(module, input, read)));
}

/// Whether a program for evaluation is wanted beside the one that trains.
bool wantsForward() {
  bool writes = (pp::writesCode() || pp::requestedForm() == pp::Form::Json) && !wantsCheck() && !pp::wantsProofAlone();
  return forward == cl::BOU_TRUE || (forward == cl::BOU_UNSET && writes);
}

/// The command line's options that let passes change the program.
pp::ChangeOptions requestedChanges() {
  bool epilogue = epilogues == cl::BOU_TRUE || (epilogues == cl::BOU_UNSET && target == "cuda");
  bool fuses = fuse && pp::requestedForm() != pp::Form::Torch; // cell by cell what the schedule says
  return {fuses, hoist, pp::requestedCosts(), /*forward=*/false, epilogue, interleave};
}

/// Sets the target that the command line names.
void setTarget(ModuleOp module) {
  if (target != "cpu")
    for (auto program : module.getOps<pp::pipeline::ProgramOp>())
      program.setTarget(StringRef(target));
}

LogicalResult writeProgram(StringRef text) {
  return pp::writeProgramText([&](llvm::raw_ostream &os) { return os << text, success(); });
}

/// --search: finds a schedule in place of the one that `train` names. Prints the table where the program is not to be
/// written, else on stderr. True if that is all.
FailureOr<bool> searchSchedule(llvm::MemoryBufferRef source, bool isPipe, pp::FrontendOptions &options,
                               pp::ProofOptions &proofs, pp::SearchResult &found, llvm::raw_ostream &os) {
  auto prepare = [](ModuleOp module) {
    setTarget(module);
    return pp::setCosts(module);
  };
  bool isAll = !pp::isFormRequested() && !pp::wantsProof() && !pp::isOutputNamed();
  if (failed(pp::checkEffects({isPipe, /*hasRanks=*/!isPipe, pp::wantsProofAlone(), splitInput, /*checks=*/false})))
    return failure();
  pp::PlanRequest request = {proofs, requestedChanges(), pp::requestedManner(), pp::PlanEffort::Normal};
  FailureOr<pp::SearchCommand> command = pp::requestedSearch();
  if (failed(command))
    return failure();
  command->words = commandLine;
  FailureOr<pp::SearchResult> result =
      pp::search(source, options, request, prepare, *command, isAll ? os : llvm::errs());
  if (failed(result))
    return failure();
  found = *result;
  isInterrupted = found.isInterrupted;
  options = found.options;
  proofs.memoryLimit = found.memoryLimit;
  if (isAll || found.text.empty() || pp::requestedForm() != pp::Form::Pipe)
    return isAll;
  return failed(writeProgram(found.text)) ? FailureOr<bool>(failure()) : true;
}

/// Brings the module to the level that --emit and --prove ask for. `proved` is set where that is the ranks' programs.
LogicalResult runPasses(ModuleOp module, const pp::ProofOptions &proofs, pp::PassTimes &times,
                        std::optional<pp::ProvedModule> &proved, bool plans = plan.getNumOccurrences() > 0) {
  pp::dropProofs(module);
  bool hasRanks = !pp::programRanks(module).empty();
  bool isActions = pp::requestedForm() == pp::Form::Actions || pp::requestedForm() == pp::Form::Pipe;
  if (isActions && !plans)
    return success();
  if (failed(pp::setCosts(module)))
    return failure();
  pp::ChangeOptions changes = requestedChanges();
  if (plans && failed(pp::planProgram(module, {proofs, changes, pp::requestedManner(), plan})))
    return failure();
  if (isActions)
    return success();
  changes.forward = wantsForward();
  PassManager manager(module.getContext());
  manager.enableVerifier(false); // the pipeline has passes for it
  manager.addInstrumentation(pp::timePasses(times));
  bool isStep = pp::requestedForm() == pp::Form::Pipeline;
  if (hasRanks)
    pp::buildPipelineOfFile(manager, proofs);
  else
    pp::buildPipeline(manager, isStep ? pp::Until::Step : pp::Until::Ranks, proofs, changes);
  if (isStep)
    return manager.run(module);
  FailureOr<pp::ProvedModule> result = pp::ProvedModule::run(manager, module);
  if (failed(result))
    return failure();
  proved = *result;
  pp::returnFreeMemory(); // what is written next is made by all threads
  return success();
}

/// What is asked for: the proof, a form, or both.
LogicalResult write(ModuleOp module, const std::optional<pp::ProvedModule> &proved, const pp::PassTimes &times,
                    const llvm::SourceMgr &files, llvm::raw_ostream &os) {
  if (pp::wantsProof())
    pp::writeProof(module, times, os);
  return success(pp::wantsProofAlone() ||
                 succeeded(pp::writeForm(module, proved ? &*proved : nullptr, input, files, os)));
}

/// Of a .mlir file.
OwningOpRef<ModuleOp> parseModule(const std::shared_ptr<llvm::SourceMgr> &manager, MLIRContext *context) {
  const llvm::MemoryBuffer &text = *manager->getMemoryBuffer(manager->getMainFileID());
  if (failed(pp::checkNesting(text.getBufferIdentifier(), text.getBuffer(), context)))
    return nullptr;
  return parseSourceFile<ModuleOp>(manager, context);
}

/// One file, or one part of a split file.
LogicalResult compile(std::unique_ptr<llvm::MemoryBuffer> buffer, FailureOr<pp::FrontendOptions> options,
                      llvm::raw_ostream &os) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, pp::nn::NnDialect, pp::pipeline::PipelineDialect>();
  MLIRContext context(registry, verifyDiagnostics ? MLIRContext::Threading::DISABLED : MLIRContext::Threading::ENABLED);
  context.loadAllAvailableDialects();
  if (const pp::CodeMaker *maker = pp::codeMaker())
    maker->loadDialects(context);
  context.printOpOnDiagnostic(false);
  auto manager = std::make_shared<llvm::SourceMgr>();
  bool isPipe = !StringRef(input).ends_with(".mlir");
  manager->AddNewSourceBuffer(std::move(buffer), llvm::SMLoc());
  auto proofs = pp::requestedProofs();
  if (failed(options) || failed(proofs))
    return failure();
  options->makesCode = makesCode();
  if (wantsCheck()) {
    auto make = [&](ModuleOp module, StringRef path) {
      pp::PassTimes times;
      std::optional<pp::ProvedModule> proved;
      return success(succeeded(runPasses(module, *proofs, times, proved)) &&
                     succeeded(pp::writeExecutable(*proved, path)));
    };
    return pp::codeMaker()->check(*manager->getMemoryBuffer(manager->getMainFileID()), *options, make, os);
  }
  pp::SearchResult found;
  bool plans = plan.getNumOccurrences() > 0;
  if (pp::wantsSearch()) {
    std::string given = options->schedule;
    FailureOr<bool> isAll =
        searchSchedule(*manager->getMemoryBuffer(manager->getMainFileID()), isPipe, *options, *proofs, found, os);
    if (failed(isAll) || *isAll)
      return success(succeeded(isAll));
    plans = found.isPlanned || (plans && found.options.schedule == given);
  }
  auto run = [&] {
    pp::Attempt attempt;
    options->attempt = &attempt;
    OwningOpRef<ModuleOp> module =
        isPipe ? pp::importPipe(*manager, &context, *options) : parseModule(manager, &context);
    pp::PassTimes times;
    std::optional<pp::ProvedModule> proved;
    if (module)
      setTarget(*module);
    bool done = module && succeeded(checkRequest(*module, *manager, isPipe)) &&
                succeeded(runPasses(*module, *proofs, times, proved, plans)) &&
                succeeded(write(*module, proved, times, *manager, os));
    pp::noteFiles(*manager, attempt.files);
    // The process ends soon. To take a million ops apart one by one would only cost time.
    if (!splitInput)
      llvm::BuryPointer(module.release().getAsOpaquePointer());
    return success(done);
  };
  if (!verifyDiagnostics) {
    SourceMgrDiagnosticHandler handler(*manager, &context);
    pp::watchCommandLine(context);
    return run();
  }
  SourceMgrDiagnosticVerifierHandler handler(*manager, &context);
  (void)run();
  return handler.verify();
}

/// --from-hf: the folder's config.json becomes a program, which is written or compiled as a file is.
LogicalResult compileFolder() {
  auto options = pp::frontendOptions();
  if (failed(options))
    return failure();
  if (!input.empty())
    return pp::usage("--from-hf=" + fromFolder + " is the program; `" + input + "` is another one");
  if (options->schedule.empty())
    return pp::usage("--from-hf needs a schedule: --schedule=std/zb_v.pipe, or --schedule=FILE.pipe:NAME");
  llvm::SmallString<128> path(fromFolder);
  llvm::sys::path::append(path, "config.json");
  std::string why;
  std::unique_ptr<llvm::MemoryBuffer> config = pp::readInput(path, why);
  if (!config)
    return pp::refuse("cannot read `" + path.str() + "`: " + why + "; a folder of a model has a config.json");
  MLIRContext context;
  context.printOpOnDiagnostic(false);
  llvm::SourceMgr manager;
  manager.AddNewSourceBuffer(std::move(config), llvm::SMLoc());
  SourceMgrDiagnosticHandler handler(manager, &context);
  pp::FolderRequest request{fromFolder, options->schedule, {configNotes.begin(), configNotes.end()}};
  FailureOr<std::string> text = pp::writeProgramOf(request, manager, &context, *options);
  pp::noteFiles(manager);
  if (failed(text))
    return failure();
  if (pp::requestedForm() == pp::Form::Pipe && !plan.getNumOccurrences() && !pp::wantsSearch())
    return writeProgram(*text);
  options->schedule.clear();
  input = fromFolder + ".pipe"; // what messages and outputs are named after
  return compile(llvm::MemoryBuffer::getMemBufferCopy(*text, input), options, llvm::outs());
}

} // namespace

static LogicalResult runOnce() {
  if (pp::wantsTranslation())
    return pp::translate(input.empty() ? "-" : StringRef(input), verifyDiagnostics, splitInput);
  bool finds = plan.getNumOccurrences() || pp::wantsSearch();
  if (fromFolder.empty() && !finds && pp::isFormRequested() && pp::requestedForm() == pp::Form::Pipe)
    return pp::usage(
        "--emit=pipe writes the program that --from-hf=DIR stands for, or the schedule that --plan or --search "
        "finds");
  if (input.empty() && fromFolder.empty())
    return pp::usage("name the file to read: " + pp::toolName() + " FILE.pipe; see --help");
  if (!pp::codeMaker() && !pp::isFormRequested() && !pp::wantsProof() && !finds && !pp::isCompared())
    return pp::usage("say what to do with `" + input +
                     "`: pp draw, prove, stats; see --help. Executables are made by "
                     "pp-compile");
  if (target != "cpu" && target != "cuda")
    return pp::usage("target `" + target + "` is not known; there are cpu and cuda");
  if (wantsCheck() && (pp::isFormRequested() || pp::wantsProof() || target != "cpu" || verifyDiagnostics ||
                       StringRef(input).ends_with(".mlir")))
    return pp::usage("--check runs a `.pipe` file on this machine's CPU and writes nothing: no --emit, --prove, "
                     "--target or --verify-diagnostics with it");
  if (wantsCheck() && failed(pp::checkEffects({/*isPipe=*/true, /*hasRanks=*/false, /*proves=*/false, splitInput,
                                               /*checks=*/true})))
    return failure();
  if (!fromFolder.empty())
    return compileFolder();
  std::string why;
  std::unique_ptr<llvm::MemoryBuffer> buffer = pp::readInput(input, why);
  if (!buffer)
    return pp::refuse("cannot read `" + input + "`: " + why);
  auto one = [&](std::unique_ptr<llvm::MemoryBuffer> part, llvm::raw_ostream &os) {
    return compile(std::move(part), pp::frontendOptions(), os);
  };
  return splitInput ? splitAndProcessBuffer(std::move(buffer), one, llvm::outs(), "# -----", "# -----")
                    : one(std::move(buffer), llvm::outs());
}

/// The programs of --also come first: if one of them cannot be made, the main one is not written either.
static LogicalResult run() {
  FailureOr<pp::Also> also = pp::requestedAlso();
  if (failed(also))
    return failure();
  if (!also->values.empty() && input == "-")
    return pp::usage("--also reads the file once for each program; standard input can be read once");
  const std::string named = input;
  for (const std::string &value : also->values) {
    pp::setDefine(also->name, value);
    pp::setOutputEnd("." + also->name + value);
    if (failed(runOnce())) {
      llvm::WithColor::note(llvm::errs()) << "with " << also->name << " = " << value << ", as --also asks for\n";
      return failure();
    }
    input = named;
  }
  pp::setDefine("", "");
  pp::setOutputEnd("");
  return runOnce();
}

int pp::runCommand(ArrayRef<const char *> words) {
  commandLine.assign(words.begin(), words.end());
  commandLine.front() = toolName().str();
  if (wantsWatch())
    return watch(words, fromFolder.empty() ? input : fromFolder + "/config.json");
  auto serve = [] {
    auto options = frontendOptions();
    return input.empty()
               ? success(succeeded(options) && succeeded(serveLanguage(*options)))
               : LogicalResult(usage("--lsp serves the files that the editor opens; leave `" + input + "` out"));
  };
  int code = exitCode(success(succeeded(wantsLanguageServer() ? serve() : run())));
  tellFiles();
  return code == 0 && isInterrupted ? 128 + SIGINT : code;
}
