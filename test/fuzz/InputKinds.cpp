// Reads what the compiler is handed as its programs do, as far as no file is written.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Proof.h"
#include "analysis/Simulate.h"
#include "analysis/costs/ExpertLoad.h"
#include "dialect/nn/Nn.h"
#include "frontend/Frontend.h"
#include "frontend/csv/Csv.h"
#include "frontend/model/Family.h"
#include "lowering/Lowering.h"
#include "mlir/IR/AsmState.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "passes/Passes.h"
#include "report/Measured.h"
#include "test/fuzz/Inputs.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"

namespace pp::fuzz {
namespace {

using mlir::succeeded;
using pipeline::LaunchOp;
using pipeline::Level;
using pipeline::ProgramOp;
using pipeline::RankOp;

/// A context that says nothing.
struct Quiet {
  mlir::DialectRegistry registry;
  mlir::MLIRContext context{mlir::MLIRContext::Threading::DISABLED};
  Quiet() {
    registry.insert<mlir::func::FuncDialect, nn::NnDialect, pipeline::PipelineDialect>();
    context.appendDialectRegistry(registry);
    context.getDiagEngine().registerHandler([](mlir::Diagnostic &) { return mlir::success(); });
  }
};

llvm::StringRef textOf(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

void addSource(llvm::SourceMgr &sources, std::string_view bytes) {
  sources.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBufferCopy(textOf(bytes), "input"), llvm::SMLoc());
}

/// Uses a proved program as pp-compile does.
void useRanks(mlir::ModuleOp module) {
  for (auto program : module.getOps<ProgramOp>())
    (void)simulate(program, UnitCosts(program));
  loadLoweringDialects(*module.getContext());
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> lowered;
  llvm::SmallVector<int64_t> ranks = programRanks(module);
  for (int64_t rank : ranks)
    if (failed(lowerRank(module, rank, context, lowered)))
      return;
  (void)lowerTable(module, ranks, context, lowered);
}

FrontendOptions boundedOptions() {
  FrontendOptions options;
  options.stdlibDir = PP_STDLIB_DIR;
  options.budget = {.steps = 200'000, .actions = 2'000, .bytes = 50'000'000};
  return options;
}

/// The number of bytes of a program decides what else is drawn for it.
void compileAll(Quiet &quiet, std::string_view bytes, const FrontendOptions &options) {
  llvm::SourceMgr sources;
  addSource(sources, bytes);
  mlir::OwningOpRef<mlir::ModuleOp> module = importPipe(sources, &quiet.context, options);
  if (!module)
    return;
  mlir::PassManager manager(&quiet.context);
  ChangeOptions changes;
  changes.forward = bytes.size() % 2 == 0;
  changes.epilogues = bytes.size() % 3 == 0;
  buildPipeline(manager, Until::Ranks, {}, changes);
  if (succeeded(manager.run(*module)))
    useRanks(*module);
}

void readPipe(std::string_view bytes) {
  Quiet quiet;
  compileAll(quiet, bytes, boundedOptions());
}

/// A config.json and the program that --from-hf makes of it.
void readConfig(std::string_view bytes) {
  Quiet quiet;
  llvm::SourceMgr sources;
  addSource(sources, bytes);
  FrontendOptions options = boundedOptions();
  options.defines = {{"ranks", "2"}, {"microbatches", "2"}, {"data.sequence", "8"}};
  mlir::FailureOr<std::string> program =
      writeProgramOf({"folder", "std/1f1b.pipe", {}}, sources, &quiet.context, options);
  if (succeeded(program))
    compileAll(quiet, *program, options);
}

std::optional<Level> levelOf(mlir::ModuleOp module) {
  for (auto program : module.getOps<ProgramOp>())
    for (mlir::Operation &op : program.getBody().front())
      if (auto level = pipeline::levelOf(&op))
        return level;
  return std::nullopt;
}

constexpr const char *kPasses[] = {
    "derive-tasks",   "adapt-linears",   "split-vocabulary", "cut-sequences", "cut-experts",    "split-parts",
    "verify-layouts", "verify-units",    "freeze-weights",   "fuse-units",    "fuse-epilogues", "linearize-actions",
    "derive-forward", "verify-arrivals", "complete-step",    "hoist-moves",   "verify-limits",  "verify-ops",
    "plan-bodies",    "project-ranks",   "plan-slots",       "prove-units",   "prove-channels", "prove-progress",
    "prove-values",   "prove-slots",     "prove-memory",     "prove-bodies"};

/// The rest of the pipeline behind this level, and some passes alone: which ones is chosen by the bytes.
void readIr(std::string_view bytes) {
  static const bool isReady = [] {
    registerPpPasses();
    return true;
  }();
  for (auto [rest, word] = textOf(bytes).split('#'); !word.empty(); std::tie(rest, word) = word.split('#'))
    if (word.take_while(llvm::isDigit).size() > 6)
      return; // MLIR's own parser has a table of so many results of a value `%v#N`
  Quiet quiet;
  auto module = mlir::parseSourceString<mlir::ModuleOp>(textOf(bytes), &quiet.context);
  if (!module)
    return;
  Dice dice(llvm::hash_value(textOf(bytes)));
  for (int i = 0; i < 4; ++i) {
    mlir::OwningOpRef<mlir::ModuleOp> copy = module->clone();
    mlir::PassManager alone(&quiet.context);
    if (!isReady || failed(mlir::parsePassPipeline(std::string("pp-") + dice.pick(kPasses), alone)))
      abort(); // a name below is no pass
    (void)alone.run(*copy);
  }
  mlir::PassManager manager(&quiet.context);
  std::optional<Level> level = levelOf(*module);
  if (level == Level::step) {
    manager.addPass(createVerifyOps());
    manager.addPass(createVerifyLimits());
    manager.addPass(createPlanBodies());
    manager.addPass(createProjectRanks());
    manager.addPass(createPlanSlots());
    manager.addPass(createVerifyOps());
    addProofs(manager, {});
  } else if (level == Level::ranks) {
    manager.addPass(createVerifyOps());
    manager.addPass(createPlanBodies());
    manager.addPass(createPlanSlots());
    manager.addPass(createVerifyOps());
    addProofs(manager, {});
  } else {
    buildPipeline(manager);
  }
  if (succeeded(manager.run(*module)))
    useRanks(*module);
}

void readCsv(std::string_view bytes) {
  Quiet quiet;
  llvm::SourceMgr sources;
  addSource(sources, bytes);
  CsvDialect dialect = bytes.size() % 2 == 0 ? CsvDialect::Current : CsvDialect::V25;
  mlir::OwningOpRef<mlir::ModuleOp> module = importCsv(sources, &quiet.context, dialect, "imported");
  if (!module)
    return;
  std::string text;
  llvm::raw_string_ostream os(text);
  writePipe(*module->getOps<ProgramOp>().begin(), "imported", "input", os);
  mlir::PassManager manager(&quiet.context);
  manager.addPass(createVerifyUnits());
  manager.addPass(createLinearizeActions());
  (void)manager.run(*module);
}

/// A program to which costs, profiles and traces may belong.
struct Known : Quiet {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  Known() {
    llvm::SourceMgr sources;
    addSource(sources, R"(import "std/models/llama.pipe"
import "std/1f1b.pipe"
import "std/clusters.pipe"
train known {
  model llama(layers = 2, hidden = 8, heads = 2, ffn = 8, vocab = 16)
  schedule one_f_one_b(ranks = 2, microbatches = 2)
  cluster h100_ndr
  data microbatch = 1, sequence = 4
})");
    FrontendOptions options;
    options.stdlibDir = PP_STDLIB_DIR;
    module = importPipe(sources, &context, options);
    mlir::PassManager manager(&context);
    buildPipeline(manager);
    if (!module || failed(manager.run(*module)))
      abort();
  }
  ProgramOp program() { return *module->getOps<ProgramOp>().begin(); }
};

Known &known() {
  static Known one;
  return one;
}

void simulateBy(std::unique_ptr<CostModel> costs) {
  if (costs)
    (void)simulate(known().program(), *costs);
}

void readCosts(std::string_view bytes) { simulateBy(makeCosts(known().program(), textOf(bytes))); }
void readProfile(std::string_view bytes) {
  ProgramOp program = known().program();
  simulateBy(makeMeasuredCosts(program, HandedFile(bytes, "profile.json").path));
}
void readTrace(std::string_view bytes) { (void)readMeasured(known().program(), HandedFile(bytes, "trace.json").path); }
void readLoad(std::string_view bytes) {
  HandedFile file(bytes, "load.json");
  for (llvm::StringRef text : {llvm::StringRef(file.path), textOf(bytes)})
    if (auto load = ExpertLoad::read(text, known().program().getLoc()); succeeded(load))
      (void)load->of(4, known().program().getLoc());
}

} // namespace

const std::vector<InputKind> &inputKinds() {
  static const std::vector<InputKind> kinds = [] {
    std::vector<InputKind> all = {{"pipe", readPipe},     {"ir", readIr},       {"csv", readCsv},
                                  {"config", readConfig}, {"costs", readCosts}, {"profile", readProfile},
                                  {"trace", readTrace},   {"load", readLoad}};
    all.insert(all.end(), runtimeKinds().begin(), runtimeKinds().end());
    return all;
  }();
  return kinds;
}

} // namespace pp::fuzz
