// The loop of --search: candidates one by one, with the planner inside and the simulator as the judge.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   even cuts of every placement, improved (Improve.cpp) -> schedules of the library as they are -> the table
//
// What cannot be among the ten best by its lower bound is not planned.
#include "tools/search/Search.h"
#include "analysis/Proof.h"
#include "dialect/nn/Nn.h"
#include "passes/plan/PlanProblem.h"
#include "tools/Forms.h"
#include "tools/FrontendFlags.h"
#include "tools/search/Searcher.h"
#include "llvm/Support/FormatVariadic.h"
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

} // namespace

std::atomic<bool> Searcher::isInterrupted = false;

bool pp::wantsSearch() { return searchOption; }

/// Compiles in a context of its own. `says`: its errors are the user's; else the first of them goes to `why`.
LogicalResult Searcher::compile(const std::optional<Replacement> &replacement, bool says, Use use, std::string *why) {
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
  return use(*module);
}

/// The baseline, from which the sizes come, and the limit where none is given.
LogicalResult Searcher::judgeWritten() {
  std::string name;
  FailureOr<PlanOutcome> outcome;
  auto use = [&](ModuleOp module) {
    ProgramOp program = *module.getOps<ProgramOp>().begin();
    sizes = {static_cast<int64_t>(program.getRanks()), static_cast<int64_t>(program.getMicrobatches()), 0};
    for (auto piece : program.getOps<PieceOp>())
      for (Attribute part : piece.getParts())
        sizes.layers = std::max(sizes.layers, cast<IntegerAttr>(cast<ArrayAttr>(part)[1]).getInt() + 1);
    if (auto schedule = program.getTrain().getAs<StringAttr>("schedule"))
      name = schedule.str();
    DictionaryAttr cluster = program.getClusterAttr();
    bool isByCluster = request.changes.costs.empty() || request.changes.costs == "cluster";
    hasHost = isByCluster && cluster && cluster.contains("host");
    request.proofs.memoryLimit = memoryLimitOf(program, request.proofs.memoryLimit);
    return LogicalResult(outcome = outcomeAsWritten(module, request));
  };
  if (failed(compile(std::nullopt, /*says=*/true, use)))
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

/// Keeps what fits, by step; the first of equals. Of stages that are equal but for what they save, one with a step.
void Searcher::offer(const std::string &what, const PlanOutcome &outcome, SearchResult result,
                     std::optional<StageCut> cut) {
  bool isThere = llvm::any_of(rows, [&](const SearchRow &row) {
    return cut && row.cut && cut->places == row.cut->places && cut->layers == row.cut->layers &&
           std::abs(outcome.step - row.outcome.step) < 1e-9 * outcome.step;
  });
  if (outcome.peak > request.proofs.memoryLimit || isThere)
    return;
  auto at = llvm::upper_bound(rows, outcome.step * (1 + 1e-9),
                              [](double step, const SearchRow &row) { return step < row.outcome.step * (1 + 1e-9); });
  rows.insert(at, {what, outcome, std::move(result), std::move(cut)});
  if (rows.size() > kShown)
    rows.pop_back();
}

/// Nothing if the step cannot be shorter than the tenth best and than `below`.
std::optional<PlanOutcome> Searcher::judgeCut(const StageCut &cut, std::string *why, double below) {
  for (const SearchRow &row : rows)
    if (row.cut == cut)
      return row.outcome;
  progress(cut.describe());
  PlanRequest limited = request;
  limited.worthBelow = std::min(below, rows.size() < kShown ? INFINITY : rows.back().outcome.step);
  Replacement replacement = cut.replacement(sizes);
  FailureOr<PlanOutcome> outcome;
  auto use = [&](ModuleOp module) { return LogicalResult(outcome = planOutcome(module, limited)); };
  if (failed(compile(replacement, /*says=*/false, use, why)) || outcome->bound >= limited.worthBelow ||
      outcome->step >= below)
    return std::nullopt;
  offer(cut.describe() + ": " + outcome->seed, *outcome, {replacement, true, request.proofs.memoryLimit, ""}, cut);
  return *outcome;
}

void Searcher::judgeLibrary(const LibrarySchedule &schedule) {
  std::string call = schedule.call(sizes), why;
  progress(call);
  FailureOr<PlanOutcome> outcome;
  auto asIs = [&](ModuleOp module) { return LogicalResult(outcome = outcomeAsWritten(module, request)); };
  if (failed(compile(schedule.replacement(sizes), /*says=*/false, asIs, &why))) {
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
    if (!isInterrupted)
      improve(even);
  polish();
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
