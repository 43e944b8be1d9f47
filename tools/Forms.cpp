// Writes a module in the form that --emit asks for: text, objects, an executable.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/Forms.h"
#include "lowering/Lowering.h"
#include "mlir/Support/FileUtilities.h"
#include "passes/Compare.h"
#include "passes/Measured.h"
#include "passes/Passes.h"
#include "passes/Proof.h"
#include "passes/Report.h"
#include "passes/pictures/Pictures.h"
#include "tools/FrontendFlags.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/ToolOutputFile.h"

using namespace mlir;
using namespace pp;
namespace cl = llvm::cl;

cl::OptionCategory &pp::compileOptions() { // a function, for options in other files may be initialised first
  static cl::OptionCategory category("pp-compile options");
  return category;
}

namespace {
cl::opt<Form> form(
    "emit", cl::desc("what to write"), cl::init(Form::Exe), cl::cat(compileOptions()),
    cl::values(clEnumValN(Form::Exe, "exe", "an executable for mpirun (default)"),
               clEnumValN(Form::Obj, "obj", "the object file of --rank, or one per rank into the folder OUT"),
               clEnumValN(Form::Llvm, "llvm", "LLVM IR of --rank"),
               clEnumValN(Form::Ranks, "ranks", "the planned and proved programs of the ranks"),
               clEnumValN(Form::Pipeline, "pipeline", "the step in one global order"),
               clEnumValN(Form::Actions, "actions", "what the schedule emitted, before anything is inferred"),
               clEnumValN(Form::Tasks, "tasks", "CSV, one row per rank: units (PyTorch's compute-only grammar)"),
               clEnumValN(Form::Comms, "comms", "CSV, one row per rank: units and messages"),
               clEnumValN(Form::Timeline, "timeline", "a drawing for the terminal"),
               clEnumValN(Form::Svg, "svg", "a figure: units to time scale; see --messages, --memory"),
               clEnumValN(Form::Report, "report", "one HTML page: timeline, memory, idle causes, links, proof"),
               clEnumValN(Form::Trace, "trace", "the simulated step in Chrome's trace format, as --trace of a run"),
               clEnumValN(Form::Chakra, "chakra", "execution traces for ASTRA-sim: OUT.<rank>.et"),
               clEnumValN(Form::Stats, "stats", "JSON: makespan, bubble, peaks, traffic")));
cl::opt<bool> messagesOption("messages", cl::desc("draw messages as arrows (svg)"), cl::cat(compileOptions()));
cl::opt<bool> memoryOption("memory", cl::desc("draw the memory of the ranks by role (svg)"), cl::cat(compileOptions()));
cl::opt<bool> toScaleOption("to-scale", cl::desc("draw B as wide as two other units (timeline)"),
                            cl::cat(compileOptions()));
cl::opt<unsigned> columnsOption(
    "columns", cl::desc("go on below after so many columns, 0: never (timeline; default the terminal's width)"),
    cl::cat(compileOptions()));
cl::opt<std::string> costsOption(
    "costs", cl::desc("what the simulator counts in: units, cluster (default where there is one), parts, or a profile"),
    cl::value_desc("units|cluster|PART=N,..|FILE.json"), cl::cat(compileOptions()));
cl::opt<std::string>
    orderOption("order", cl::desc("costs of parts of the model for the order of messages; else those of --costs"),
                cl::value_desc("PART=N,.."), cl::cat(compileOptions()));
cl::opt<bool> overlapOption("overlap", cl::init(true), cl::cat(compileOptions()),
                            cl::desc("simulate messages behind tasks (true); false: every rank does one at a time"));
cl::opt<bool> lockstepOption("lockstep", cl::cat(compileOptions()),
                             cl::desc("simulate ranks that wait for all others behind every `together`"));
cl::opt<std::string> compareOption("compare", cl::desc("a run's --trace beside the plan: a table, or drawn (report)"),
                                   cl::value_desc("FILE.json"), cl::cat(compileOptions()));
cl::opt<int> rankOption("rank", cl::desc("only this rank (obj, llvm)"), cl::init(-1), cl::cat(compileOptions()));
cl::opt<std::string> output("o", cl::desc("output file"), cl::value_desc("OUT"), cl::cat(compileOptions()));
cl::opt<std::string> runtimeLibrary("runtime", cl::desc("path of libpp-runtime.a"), cl::cat(compileOptions()));
} // namespace

Form pp::requestedForm() { return form; }
std::string pp::requestedCosts() { return costsOption; }
bool pp::isFormRequested() { return form.getNumOccurrences() > 0; }

LogicalResult pp::setCosts(ModuleOp module) {
  StringRef costs = orderOption.empty() ? StringRef(costsOption) : StringRef(orderOption);
  bool given = !orderOption.empty() || costs.contains('=');
  for (auto program : module.getOps<pipeline::ProgramOp>())
    if (given && failed(setPartCosts(program, costs)))
      return failure();
  return success();
}

/// The step as simulated with the costs that the command line asks for.
static FailureOr<Timeline> timelineOf(pipeline::ProgramOp program) {
  std::unique_ptr<CostModel> costs = makeCosts(program, costsOption);
  if (!costs)
    return failure();
  return simulate(program, *costs, {overlapOption, lockstepOption});
}

static bool isSimulated() {
  return llvm::is_contained({Form::Svg, Form::Report, Form::Trace, Form::Stats}, form.getValue());
}

/// After how many columns a drawing goes on below: --columns, else the width of the terminal that shows it.
static unsigned textColumns() {
  bool shown = (output.empty() || output == "-") && llvm::sys::Process::StandardOutIsDisplayed();
  return columnsOption.getNumOccurrences() || !shown ? columnsOption : llvm::sys::Process::StandardOutColumns();
}

static LogicalResult writeText(ModuleOp module, llvm::raw_ostream &os) {
  if (form == Form::Llvm) {
    llvm::LLVMContext context;
    std::unique_ptr<llvm::Module> rank;
    if (failed(lowerRank(module, std::max<int>(rankOption, 0), context, rank)))
      return failure();
    emitLlvmText(*rank, os);
    return success();
  }
  for (auto program : module.getOps<pipeline::ProgramOp>()) {
    bool compares = !compareOption.empty();
    FailureOr<Timeline> timeline = compares || isSimulated() ? timelineOf(program) : Timeline();
    if (failed(timeline))
      return failure();
    FailureOr<Timeline> measured = compares ? readMeasured(program, compareOption) : Timeline();
    if (failed(measured))
      return failure();
    switch (form) {
    case Form::Tasks:
      printTasks(program, os);
      break;
    case Form::Comms:
      printComms(program, os);
      break;
    case Form::Timeline:
      drawTimeline(program, {toScaleOption, textColumns()}, os);
      break;
    case Form::Svg:
      drawSvg(program, *timeline, {messagesOption, memoryOption}, os);
      break;
    case Form::Report:
      writeReport(program, *timeline, compares ? &*measured : nullptr, os);
      break;
    case Form::Exe: // with --compare alone
      printComparison(*timeline, *measured, os);
      break;
    case Form::Trace:
      writeTrace(program, *timeline, os);
      break;
    case Form::Stats:
      printStats(program, *timeline, os);
      break;
    default:
      module.print(os, OpPrintingFlags().enableDebugInfo(false));
      return success();
    }
  }
  return success();
}

LogicalResult pp::writeExecutable(const ProvedModule &proved, StringRef path) {
  return emitExecutable(proved, runtimeLibrary, path);
}

static LogicalResult writeObjects(const ProvedModule &proved) {
  if (rankOption < 0) {
    llvm::SmallVector<std::string> paths;
    return emitObjects(proved, programRanks(proved.get()), output.empty() ? StringRef(".") : StringRef(output), paths);
  }
  std::string path = output.empty() ? "rank" + std::to_string(rankOption) + ".o" : std::string(output);
  return emitObject(proved, rankOption, path);
}

LogicalResult pp::writeForm(ModuleOp module, const ProvedModule *proved, StringRef source, llvm::raw_ostream &os) {
  auto ranks = programRanks(module);
  if (rankOption >= 0 && form != Form::Actions && form != Form::Pipeline && !llvm::is_contained(ranks, rankOption))
    return usage("rank " + llvm::Twine(rankOption) + " does not exist; this program has " + llvm::Twine(ranks.size()) +
                 " ranks, 0 to " + llvm::Twine(ranks.size() - 1));
  bool compares = !compareOption.empty();
  if (compares && form != Form::Report && isFormRequested())
    return usage("--compare draws under the plan with --emit=report, and prints a table without --emit");
  StringRef named = output.empty() ? llvm::sys::path::stem(source) : StringRef(output);
  bool isCode = (form == Form::Exe && !compares) || form == Form::Obj;
  if (isCode && !proved)
    return usage("objects and executables are made of proved programs only");
  if (isCode)
    return form == Form::Obj ? writeObjects(*proved) : writeExecutable(*proved, named);
  if (form == Form::Chakra) {
    for (auto program : module.getOps<pipeline::ProgramOp>())
      if (FailureOr<Timeline> timeline = timelineOf(program);
          failed(timeline) || failed(writeChakra(program, *timeline, named)))
        return failure();
    return success();
  }
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
