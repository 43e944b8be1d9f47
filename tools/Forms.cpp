// Writes a module in the form that --emit asks for: text, objects, an executable.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/Forms.h"
#include "analysis/Proof.h"
#include "frontend/csv/Csv.h"
#include "frontend/evaluate/CommandLine.h"
#include "report/Compare.h"
#include "report/Measured.h"
#include "report/Output.h"
#include "report/Pictures.h"
#include "report/Report.h"
#include "runtime/Version.h"
#include "tools/FrontendFlags.h"
#include "llvm/ADT/Sequence.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include <sys/ioctl.h>
#include <unistd.h>

using namespace mlir;
using namespace pp;
namespace cl = llvm::cl;

cl::OptionCategory &pp::compileOptions() { // a function, for options in other files may be initialised first
  static cl::OptionCategory category("output options");
  return category;
}
cl::OptionCategory &pp::codeOptions() {
  static cl::OptionCategory category("code options");
  return category;
}
cl::OptionCategory &pp::simulationOptions() {
  static cl::OptionCategory category("simulation options");
  return category;
}

namespace {
cl::opt<Form>
    form("emit", cl::desc("what to write"), cl::init(Form::Exe), cl::cat(compileOptions()),
         cl::values(
             clEnumValN(Form::Exe, "exe", "an executable for mpirun (default)"),
             clEnumValN(Form::Obj, "obj", "the object file of --rank, or one per rank into the folder OUT"),
             clEnumValN(Form::Llvm, "llvm", "LLVM IR of --rank"),
             clEnumValN(Form::Ranks, "ranks", "the planned and proved programs of the ranks"),
             clEnumValN(Form::Pipeline, "pipeline", "the step in one global order"),
             clEnumValN(Form::Actions, "actions", "what the schedule emitted, before anything is inferred"),
             clEnumValN(Form::Tasks, "tasks", "CSV, one row per rank: units (PyTorch's compute-only grammar)"),
             clEnumValN(Form::Comms, "comms", "CSV, one row per rank: units and messages"),
             clEnumValN(Form::Torch, "torch", "a schedule CSV for PyTorch; see --messages, --waits"),
             clEnumValN(Form::Timeline, "timeline", "a drawing for the terminal"),
             clEnumValN(Form::Svg, "svg", "a figure: units to time scale; see --messages, --memory"),
             clEnumValN(Form::Report, "report", "one HTML page: timeline, memory, idle causes, links, proof"),
             clEnumValN(Form::Trace, "trace", "the simulated step in Chrome's trace format, as --trace of a run"),
             clEnumValN(Form::Chakra, "chakra", "execution traces for ASTRA-sim: OUT.<device>.et"),
             clEnumValN(Form::Stats, "stats", "JSON: makespan, bubble, peaks, traffic"),
             clEnumValN(Form::Json, "json", "JSON: the proved programs of the ranks, for drivers in other languages"),
             clEnumValN(Form::Pipe, "pipe",
                        "the `.pipe` file that --from-hf stands for, or the schedule that --plan or --search finds")));
cl::opt<bool>
    messagesOption("messages", cl::cat(compileOptions()),
                   cl::desc("draw messages as arrows (svg); write them, too: PyTorch's compute_comms (torch)"));
cl::opt<bool> waitsOption("waits", cl::init(true), cl::cat(compileOptions()),
                          cl::desc("write WAIT_SEND and WAIT_REDUCE_GRAD beside the messages, which older versions of "
                                   "PyTorch do not know (torch; true)"));
cl::opt<bool> memoryOption("memory", cl::desc("draw the memory of the ranks by role (svg)"), cl::cat(compileOptions()));
cl::opt<bool> toScaleOption("to-scale", cl::desc("draw B as wide as two other units (timeline)"),
                            cl::cat(compileOptions()));
cl::opt<unsigned>
    columnsOption("columns",
                  cl::desc("wrap rows after this many columns; 0: never (timeline; default: the terminal's width)"),
                  cl::cat(compileOptions()));
cl::opt<std::string> costsOption(
    "costs", cl::desc("what the simulator counts in: units, cluster (default where there is one), parts, or a profile"),
    cl::value_desc("units|cluster|PART=N,..|FILE.json"), cl::cat(simulationOptions()));
cl::opt<std::string>
    orderOption("order", cl::desc("costs of parts that decide the order of messages (default: those of --costs)"),
                cl::value_desc("PART=N,.."), cl::cat(simulationOptions()));
cl::opt<bool>
    overlapOption("overlap", cl::init(true), cl::cat(simulationOptions()),
                  cl::desc("simulate messages that overlap with tasks (true); false: a rank does one thing at a time"));
cl::opt<std::string> expertsOption("expert-load",
                                   cl::desc("how choices fall on experts, by a cluster's costs (default: equally)"),
                                   cl::value_desc("zipf=S|FILE.json"), cl::cat(simulationOptions()));
cl::opt<bool> lockstepOption("lockstep", cl::cat(simulationOptions()),
                             cl::desc("simulate ranks that wait for all others after every `together`"));
cl::opt<std::string> compareOption("compare",
                                   cl::desc("compare a run's --trace with the plan: as a table, or drawn (report)"),
                                   cl::value_desc("FILE.json"), cl::cat(compileOptions()));
cl::opt<int> rankOption("rank", cl::desc("only this rank (obj, llvm)"), cl::init(-1), cl::cat(compileOptions()));
cl::opt<std::string> output("o", cl::desc("output file"), cl::value_desc("OUT"), cl::cat(compileOptions()));
cl::opt<std::string> alsoOption("also", cl::value_desc("name=value,.."), cl::cat(compileOptions()),
                                cl::desc("make further programs, OUT.<name><value>, each as -D name=value makes it"));
cl::opt<std::string> watchedOption("watched", cl::desc("write the names of the files that are read"), cl::Hidden,
                                   cl::cat(compileOptions()));
cl::opt<std::string> runtimeLibrary("runtime", cl::desc("path of libpp-runtime.a"), cl::cat(codeOptions()));
} // namespace

static const CodeMaker *maker = nullptr;
const CodeMaker *pp::codeMaker() { return maker; }
void pp::setCodeMaker(const CodeMaker *its) {
  maker = its;
  if (maker)
    return;
  for (const char *ofCode : {"exe", "obj", "llvm"})
    form.getParser().removeLiteralOption(ofCode);
  for (cl::Option *ofCode : {(cl::Option *)&rankOption, (cl::Option *)&alsoOption, (cl::Option *)&runtimeLibrary})
    ofCode->removeArgument();
}

Form pp::requestedForm() { return form; }
std::string pp::requestedCosts() { return costsOption; }
Manner pp::requestedManner() {
  bool showsStats = form == Form::Stats || form == Form::Report;
  return {overlapOption, lockstepOption, showsStats};
}
bool pp::writesCode() { return (form == Form::Exe && compareOption.empty()) || form == Form::Obj; }
static std::string outputEnd;
void pp::setOutputEnd(StringRef end) { outputEnd = end.str(); }
FailureOr<Also> pp::requestedAlso() {
  Also also;
  if (!alsoOption.getNumOccurrences())
    return also;
  auto [name, values] = StringRef(alsoOption).split('=');
  also.name = name;
  SmallVector<StringRef> words;
  values.split(words, ',');
  for (StringRef word : words) {
    bool isWord = !word.empty() && llvm::all_of(word, [](char c) { return llvm::isAlnum(c) || c == '_'; });
    if (name.empty() || !isWord || llvm::is_contained(also.values, word))
      return usage(
          "expected --also=name=value,.. with different values of letters and digits, got `--also=" + alsoOption + "`");
    also.values.push_back(word.str());
  }
  return also;
}
bool pp::isOutputNamed() { return output.getNumOccurrences() > 0; }
bool pp::isCompared() { return !compareOption.empty(); }
std::string pp::namedOutput() { return output; }
std::string pp::watchedList() { return watchedOption; }
std::string pp::watchScript() { return output + ".watch.js"; }
bool pp::isFormRequested() { return form.getNumOccurrences() > 0; }
NamedValues pp::formNames() { return namedValues(form); }

LogicalResult pp::setCosts(ModuleOp module) {
  StringRef costs = orderOption.empty() ? StringRef(costsOption) : StringRef(orderOption);
  bool given = !orderOption.empty() || costs.contains('=');
  for (auto program : module.getOps<pipeline::ProgramOp>())
    if (given && failed(setPartCosts(program, costs)))
      return failure();
  return success();
}

/// The programs that are drawn and counted: the forward program if it was asked for, because it exists only then.
static SmallVector<pipeline::ProgramOp> shownPrograms(ModuleOp module) {
  if (pipeline::ProgramOp forward = pipeline::ProgramOp::forwardOf(module))
    return {forward};
  return llvm::to_vector(llvm::make_filter_range(module.getOps<pipeline::ProgramOp>(),
                                                 [](pipeline::ProgramOp program) { return !program.getRedo(); }));
}

/// The step as simulated with the costs that the command line asks for.
struct Simulated {
  std::unique_ptr<CostModel> costs;
  Timeline timeline;
};
static FailureOr<Simulated> simulated(pipeline::ProgramOp program) {
  std::unique_ptr<CostModel> costs = makeCosts(program, costsOption, expertsOption);
  FailureOr<Timeline> timeline = costs ? simulate(program, *costs, requestedManner()) : FailureOr<Timeline>();
  if (failed(timeline))
    return failure();
  return Simulated{std::move(costs), std::move(*timeline)};
}

static bool isSimulated() {
  return llvm::is_contained({Form::Svg, Form::Report, Form::Trace, Form::Stats, Form::Json}, form.getValue());
}

/// After how many columns a drawing goes on below: --columns, else the width of the terminal that shows it.
static unsigned textColumns() {
  winsize terminal = {};
  bool shown = (output.empty() || output == "-") && ioctl(STDOUT_FILENO, TIOCGWINSZ, &terminal) == 0;
  return columnsOption.getNumOccurrences() || !shown ? columnsOption : terminal.ws_col;
}

static LogicalResult writeJson(ModuleOp module, const llvm::SourceMgr &files, llvm::raw_ostream &os) {
  FailureOr<Simulated> step = simulated(pipeline::ProgramOp::trainingOf(module));
  if (failed(step))
    return failure();
  auto [number, commit] = StringRef(version()).split(" (commit ");
  ProgramOrigin origin{number, commit.drop_back(), costsOption, {}};
  for (unsigned buffer = 1; buffer <= files.getNumBuffers(); ++buffer) {
    const llvm::MemoryBuffer &text = *files.getMemoryBuffer(buffer);
    if (text.getBufferIdentifier() != kCommandLine)
      origin.sources.push_back({text.getBufferIdentifier(), text.getBuffer()});
  }
  return writeProgram(module, step->timeline, origin, os);
}

static LogicalResult writeText(ModuleOp module, StringRef source, const llvm::SourceMgr &files, llvm::raw_ostream &os) {
  if (form == Form::Json)
    return writeJson(module, files, os);
  if (form == Form::Llvm)
    return maker->writeLlvm(module, std::max<int>(rankOption, 0), os);
  for (pipeline::ProgramOp program : shownPrograms(module)) {
    bool compares = !compareOption.empty();
    FailureOr<Simulated> step = compares || isSimulated() ? simulated(program) : Simulated();
    if (failed(step))
      return failure();
    const Timeline &timeline = step->timeline;
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
    case Form::Torch:
      if (failed(exportTorch(program, {messagesOption, waitsOption}, os)))
        return failure();
      break;
    case Form::Timeline:
      drawTimeline(program, {toScaleOption, textColumns()}, os);
      break;
    case Form::Svg:
      drawSvg(program, timeline, {messagesOption, memoryOption}, os);
      break;
    case Form::Report:
      writeReport(program, timeline, compares ? &*measured : nullptr,
                  watchedOption.empty() || output.empty() ? "" : llvm::sys::path::filename(watchScript()), os);
      break;
    case Form::Exe: // with --compare alone
      printComparison(timeline, *measured, os);
      break;
    case Form::Trace:
      writeTrace(program, timeline, os);
      break;
    case Form::Pipe:
      os << "# An order that was planned: `import` this file, and write `schedule planned(" << program.getRanks()
         << ", " << program.getMicrobatches() << ")` in `train`.\n";
      writePipe(program, "planned", source, os);
      break;
    case Form::Stats:
      printStats(program, timeline, *step->costs, os);
      break;
    default:
      module.print(os, OpPrintingFlags().enableDebugInfo(false));
      return success();
    }
  }
  return success();
}

LogicalResult pp::writeExecutable(const ProvedModule &proved, StringRef path) {
  return maker->writeExecutable(proved, runtimeLibrary, path);
}

/// The name of what is written: of -o, else of the source.
static std::string outputName(StringRef source) {
  return (output.empty() ? llvm::sys::path::stem(source).str() : std::string(output)) + outputEnd;
}

/// The files that a request writes; none where it prints.
static SmallVector<std::string> outputsOf(ModuleOp module, StringRef source) {
  std::string named = outputName(source);
  SmallVector<int64_t> ranks = programRanks(module);
  if (ranks.empty()) // they are still to be made
    for (auto program : module.getOps<pipeline::ProgramOp>())
      llvm::append_range(ranks, llvm::seq<int64_t>(0, program.getRanks()));
  SmallVector<std::string> files;
  if (form == Form::Exe && compareOption.empty()) {
    files.push_back(named);
  } else if (form == Form::Obj && rankOption.getNumOccurrences()) {
    files.push_back(output.empty() ? "rank" + std::to_string(rankOption) + ".o" : named);
  } else if (form == Form::Obj) {
    for (int64_t rank : ranks)
      files.push_back((output.empty() ? "." : named) + "/rank" + std::to_string(rank) + ".o");
    files.push_back((output.empty() ? "." : named) + "/table.o");
  } else if (form == Form::Chakra) {
    for (int64_t rank : ranks)
      files.push_back(named + "." + std::to_string(rank) + ".et");
    files.push_back(named + ".groups.json");
  } else if (!output.empty()) {
    files.push_back(output);
  }
  return files;
}

LogicalResult pp::checkOutputs(ModuleOp module, StringRef source, ArrayRef<std::string> read) {
  SmallVector<std::pair<StringRef, StringRef>> inputs; // the file, and what reads it
  for (StringRef file : read)
    inputs.push_back({file, file == source ? "it is what this compiles" : "it is imported"});
  inputs.push_back({costsOption, "--costs reads it"});
  inputs.push_back({compareOption, "--compare reads it"});
  inputs.push_back({runtimeLibrary, "--runtime reads it"});
  bool isBinary = (form == Form::Exe && compareOption.empty()) || form == Form::Obj || form == Form::Chakra;
  if (isBinary && output.empty() && source == "-" && form != Form::Obj)
    return usage("standard input has no name for what is written; name it with -o");
  for (const std::string &file : outputsOf(module, source)) {
    Output place = Output::of(file);
    if (place.kind == Output::Folder)
      return usage("`" + file + "` is a folder; name a file in it with -o");
    if (isBinary && place.kind != Output::File)
      return usage("`" + file + "` is no file, and this form is written into one; name it with -o");
    for (auto [input, why] : inputs)
      if (bool same = false; !input.empty() && !llvm::sys::fs::equivalent(file, input, same) && same)
        return usage("`" + file + "` would be written over: " + why + "; name another file with -o");
  }
  return success();
}

LogicalResult pp::writeProgramText(llvm::function_ref<LogicalResult(llvm::raw_ostream &)> write) {
  std::string why;
  if (succeeded(writeOutput(output.empty() ? "-" : StringRef(output), why, write)))
    return success();
  return why.empty() ? failure()
                     : refuse("cannot write " + (output.empty() ? "standard output" : "`" + output + "`") + ": " + why);
}

static LogicalResult writeObjects(const ProvedModule &proved) {
  if (rankOption < 0)
    return maker->writeObjects(proved, output.empty() ? StringRef(".") : StringRef(output));
  std::string path = output.empty() ? "rank" + std::to_string(rankOption) + ".o" : std::string(output);
  return maker->writeObject(proved, rankOption, path);
}

LogicalResult pp::writeForm(ModuleOp module, const ProvedModule *proved, StringRef source, const llvm::SourceMgr &files,
                            llvm::raw_ostream &os) {
  auto ranks = programRanks(module);
  if (rankOption.getNumOccurrences() && !llvm::is_contained(ranks, rankOption))
    return usage("rank " + llvm::Twine(rankOption) + " does not exist; this program has " + llvm::Twine(ranks.size()) +
                 " ranks, 0 to " + llvm::Twine(ranks.size() - 1));
  std::string named = outputName(source);
  if ((writesCode() || form == Form::Json) && !proved)
    return usage("objects, executables and JSON are made of proved programs only");
  if (writesCode())
    return form == Form::Obj ? writeObjects(*proved) : writeExecutable(*proved, Output::of(named).path);
  if (form == Form::Chakra) {
    for (pipeline::ProgramOp program : shownPrograms(module))
      if (FailureOr<Simulated> step = simulated(program);
          failed(step) || failed(writeChakra(program, step->timeline, named)))
        return failure();
    return success();
  }
  if (output.empty())
    return writeText(module, source, files, os);
  std::string why;
  if (succeeded(writeOutput(output, why,
                            [&](llvm::raw_pwrite_stream &text) { return writeText(module, source, files, text); })))
    return success();
  return why.empty() ? failure() : refuse("cannot write `" + output + "`: " + why);
}
