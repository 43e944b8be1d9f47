// The loop of --search: candidates one by one, with the planner inside and the simulator as the judge.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   even cuts of every placement, some recomputed -> layers shifted from the slowest rank, as long as that gains
//   -> schedules of the library that are taken as they are -> the table
//
// What cannot be among the ten best by its lower bound is not planned.
#include "tools/search/Search.h"
#include "analysis/Proof.h"
#include "dialect/nn/Nn.h"
#include "passes/plan/PlanProblem.h"
#include "tools/Forms.h"
#include "tools/FrontendFlags.h"
#include "tools/search/Candidates.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Process.h"
#include <atomic>
#include <csignal>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
namespace cl = llvm::cl;

namespace {
cl::opt<bool> searchOption("search",
                           cl::desc("find stages, layers, recomputation and an order that are fast and fit the memory"),
                           cl::cat(codeOptions()));

constexpr size_t kShown = 10;
constexpr int kShifts = 6; ///< of layers, one after the other

std::atomic<bool> isInterrupted = false;

/// A candidate that was judged.
struct SearchRow {
  std::string what;
  PlanOutcome outcome;
  SearchResult result;
};

class Searcher {
public:
  Searcher(llvm::MemoryBufferRef source, const FrontendOptions &options, const PlanRequest &request,
           PrepareModule prepare, llvm::raw_ostream &os)
      : source(source), options(options), request(request), prepare(prepare), os(os) {}

  FailureOr<SearchResult> run();

private:
  using Judge = llvm::function_ref<FailureOr<PlanOutcome>(ModuleOp)>;
  llvm::MemoryBufferRef source;
  FrontendOptions options;
  PlanRequest request;
  PrepareModule prepare;
  llvm::raw_ostream &os;
  SearchSizes sizes;
  bool isOwnLimit = false;
  std::string written;            ///< what the baseline takes
  std::vector<SearchRow> rows;    ///< by step
  std::vector<std::string> fails; ///< what the compiler said, by candidate
  int tried = 0;
  bool isShown = llvm::sys::Process::StandardErrIsDisplayed();

  FailureOr<PlanOutcome> judge(const std::optional<Replacement> &replacement, bool says, Judge with,
                               std::string *why = nullptr);
  LogicalResult judgeWritten();
  std::optional<PlanOutcome> judgeCut(const StageCut &cut);
  void judgeLibrary(const LibrarySchedule &schedule);
  void offer(const std::string &what, const PlanOutcome &outcome, SearchResult result);
  void shiftLayers(StageCut cut, PlanOutcome outcome);
  void progress(const std::string &what);
  void print() const;
};
} // namespace

bool pp::wantsSearch() { return searchOption; }

/// Compiles in a context of its own. `says`: its errors are the user's; else the first of them goes to `why`.
FailureOr<PlanOutcome> Searcher::judge(const std::optional<Replacement> &replacement, bool says, Judge with,
                                       std::string *why) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, nn::NnDialect, PipelineDialect>();
  MLIRContext context(registry);
  context.loadAllAvailableDialects();
  context.printOpOnDiagnostic(false);
  llvm::SourceMgr manager;
  manager.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBuffer(source), llvm::SMLoc());
  std::optional<SourceMgrDiagnosticHandler> handler;
  std::optional<ScopedDiagnosticHandler> quiet;
  if (says)
    handler.emplace(manager, &context);
  else
    quiet.emplace(&context, [&](Diagnostic &diagnostic) {
      if (why && why->empty() && diagnostic.getSeverity() == DiagnosticSeverity::Error)
        *why = diagnostic.str();
      return success();
    });
  FrontendOptions its = options;
  its.replacement = replacement;
  OwningOpRef<ModuleOp> module = importPipe(manager, &context, its);
  if (!module || failed(prepare(*module)))
    return failure();
  return with(*module);
}

/// The baseline, from which the sizes come, and the limit where none is given.
LogicalResult Searcher::judgeWritten() {
  std::string name;
  auto with = [&](ModuleOp module) -> FailureOr<PlanOutcome> {
    ProgramOp program = *module.getOps<ProgramOp>().begin();
    sizes = {static_cast<int64_t>(program.getRanks()), static_cast<int64_t>(program.getMicrobatches()), 0};
    for (auto piece : program.getOps<PieceOp>())
      for (Attribute part : piece.getParts())
        sizes.layers = std::max(sizes.layers, cast<IntegerAttr>(cast<ArrayAttr>(part)[1]).getInt() + 1);
    if (auto schedule = program.getTrain().getAs<StringAttr>("schedule"))
      name = schedule.str();
    request.proofs.memoryLimit = memoryLimitOf(program, request.proofs.memoryLimit);
    return outcomeAsWritten(module, request);
  };
  FailureOr<PlanOutcome> outcome = judge(std::nullopt, /*says=*/true, with);
  if (failed(outcome))
    return failure();
  isOwnLimit = request.proofs.memoryLimit < 0;
  if (isOwnLimit)
    request.proofs.memoryLimit = outcome->peak;
  if (outcome->isUnitTime && !StringRef(request.changes.costs).contains('='))
    return usage("--search compares stages of different size, and units of --costs=units are all equal: it needs a "
                 "cluster (--cluster, or `cluster` in `train`) or costs of parts (--costs=PART=N,..)");
  written = name + " as written " + planTime(outcome->step, outcome->isUnitTime);
  offer(name + " as written", *outcome, {std::nullopt, false, request.proofs.memoryLimit, ""});
  return success();
}

/// Keeps what fits, by step; the first of equals.
void Searcher::offer(const std::string &what, const PlanOutcome &outcome, SearchResult result) {
  if (outcome.peak > request.proofs.memoryLimit)
    return;
  auto at = llvm::upper_bound(rows, outcome.step * (1 + 1e-9),
                              [](double step, const SearchRow &row) { return step < row.outcome.step * (1 + 1e-9); });
  rows.insert(at, {what, outcome, std::move(result)});
  if (rows.size() > kShown)
    rows.pop_back();
}

std::optional<PlanOutcome> Searcher::judgeCut(const StageCut &cut) {
  progress(cut.describe());
  std::string why;
  PlanRequest limited = request;
  limited.worthBelow = rows.size() < kShown ? INFINITY : rows.back().outcome.step;
  Replacement replacement = cut.replacement(sizes);
  auto plan = [&](ModuleOp module) { return planOutcome(module, limited); };
  FailureOr<PlanOutcome> outcome = judge(replacement, /*says=*/false, plan, &why);
  if (failed(outcome)) {
    fails.push_back(cut.describe() + ": " + why);
    return std::nullopt;
  }
  bool isPlanned = outcome->bound < limited.worthBelow;
  if (isPlanned)
    offer(cut.describe() + ": " + outcome->seed, *outcome, {replacement, true, request.proofs.memoryLimit, ""});
  return isPlanned ? std::optional(*outcome) : std::nullopt;
}

/// One layer after the other from the rank that has most to do, while the step gets shorter.
void Searcher::shiftLayers(StageCut cut, PlanOutcome outcome) {
  for (int shift = 0; shift < kShifts && !isInterrupted; ++shift) {
    std::optional<StageCut> next = shiftedCut(cut, outcome.work, sizes.ranks);
    std::optional<PlanOutcome> made = next ? judgeCut(*next) : std::nullopt;
    if (!made || made->step >= outcome.step)
      return;
    cut = *next;
    outcome = *made;
  }
}

void Searcher::judgeLibrary(const LibrarySchedule &schedule) {
  std::string call = schedule.call(sizes), why;
  progress(call);
  auto asIs = [&](ModuleOp module) { return outcomeAsWritten(module, request); };
  FailureOr<PlanOutcome> outcome = judge(schedule.replacement(sizes), /*says=*/false, asIs, &why);
  if (failed(outcome)) {
    fails.push_back(call + ": " + why);
    return;
  }
  if (outcome->peak > request.proofs.memoryLimit)
    fails.push_back(call + ": needs " + formatBytes(outcome->peak) + " on a rank");
  std::string file = schedule.file;
  offer(call, *outcome,
        {schedule.replacement(sizes), false, request.proofs.memoryLimit,
         "# The best schedule that --search found is the library's: write `schedule " + call +
             "` in `train`.\nimport \"std/" + file + ".pipe\"\n"});
}

void Searcher::progress(const std::string &what) {
  ++tried;
  if (!isShown)
    return;
  std::string best = rows.empty() ? "" : ", best " + planTime(rows[0].outcome.step, rows[0].outcome.isUnitTime);
  llvm::errs() << "\r\x1b[K" << tried << " tried" << best << ", now " << what;
}

void Searcher::print() const {
  os << "schedules for " << sizes.ranks << " ranks, " << sizes.microbatches << " microbatches, " << sizes.layers
     << " layers within " << formatBytes(request.proofs.memoryLimit)
     << (isOwnLimit ? ", what the schedule as written needs" : "") << "; " << tried << " tried"
     << (isInterrupted ? ", then interrupted" : "") << "; " << written << "\n";
  os << llvm::formatv("{0,3}  {1,10}  {2,6}  {3,11}  {4,7}  {5}\n", "", "step", "bubble", "peak", "gap", "schedule");
  for (auto [number, row] : llvm::enumerate(rows)) {
    const PlanOutcome &its = row.outcome;
    std::string gap = its.bound > 0 ? llvm::formatv("{0:F1} %", 100 * (its.makespan / its.bound - 1)).str() : "-";
    os << llvm::formatv("{0,3}  {1,10}  {2,6}  {3,11}  {4,7}  {5}\n", number + 1, planTime(its.step, its.isUnitTime),
                        llvm::formatv("{0:F3}", its.bubble).str(), formatBytes(its.peak), gap, row.what);
  }
  for (const std::string &why : fails)
    os << "not possible: " << why << "\n";
}

FailureOr<SearchResult> Searcher::run() {
  StringRef costs = request.changes.costs;
  if (!costs.empty() && costs != "units" && costs != "cluster" && !costs.contains('='))
    return LogicalResult(usage("`" + costs +
                               "` has the times of the stages that ran, and --search cuts others: give it "
                               "a cluster or costs of parts; --plan takes a profile"));
  if (failed(judgeWritten()))
    return failure();
  auto before = std::signal(SIGINT, [](int) {
    isInterrupted = true;
    std::signal(SIGINT, SIG_DFL); // a second one ends the process
  });
  for (const StageCut &even : evenCuts(sizes))
    for (const StageCut &cut : recomputeVariants(even, sizes.ranks))
      if (std::optional<PlanOutcome> outcome = isInterrupted ? std::nullopt : judgeCut(cut))
        shiftLayers(cut, *outcome);
  for (const LibrarySchedule &schedule : librarySchedules(sizes))
    if (!isInterrupted)
      judgeLibrary(schedule);
  std::signal(SIGINT, before);
  if (isShown)
    llvm::errs() << "\r\x1b[K";
  if (rows.empty())
    return LogicalResult(
        refuse("--search finds no schedule that fits " + formatBytes(request.proofs.memoryLimit) + " on every rank"));
  print();
  return rows.front().result;
}

FailureOr<SearchResult> pp::search(llvm::MemoryBufferRef source, const FrontendOptions &options,
                                   const PlanRequest &request, PrepareModule prepare, llvm::raw_ostream &os) {
  return Searcher(source, options, request, prepare, os).run();
}
