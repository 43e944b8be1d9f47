// The steps of --search: layouts and the library on them, cheap first; then stages that the planner orders.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   the library on the program's own mesh -> 1F1B on every mesh, with a few microbatches -> the library on those where
//   a rank has little work -> the best schedule on near meshes -> stages, layers and savings on the best mesh -> the
//   table. Where devices differ, stages with layers by their speeds come before the library, on every mesh
//
// A schedule is tried with a few microbatches first. Its estimate is the time of this step and, for each further
// microbatch, the work of its busiest rank. Only schedules that may be the best so far by their estimate are judged
// with all microbatches. Every row is of a whole step.
#include "tools/search/Search.h"
#include "analysis/Proof.h"
#include "analysis/costs/Figures.h"
#include "dialect/nn/Nn.h"
#include "tools/Forms.h"
#include "tools/FrontendFlags.h"
#include "tools/search/Improve.h"
#include "tools/search/Searcher.h"
#include "llvm/ADT/StringExtras.h"
#include <csignal>
#include <thread>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
namespace cl = llvm::cl;

namespace {
cl::opt<SearchWhat> searchOption(
    "search", cl::ValueOptional, cl::cat(codeOptions()), cl::init(SearchWhat::All),
    cl::desc("find the mesh, microbatches, schedule, stages and recomputation that are fastest and fit the memory"),
    cl::values(clEnumValN(SearchWhat::All, "", "everything"),
               clEnumValN(SearchWhat::Schedule, "schedule", "mesh and microbatches stay as they are"),
               clEnumValN(SearchWhat::Stages, "stages", "and so does the library: stages in an order of the planner")));
cl::opt<double> secondsOption("search-seconds", cl::value_desc("SECONDS"), cl::cat(codeOptions()),
                              cl::desc("how long --search may take (110; above 64 devices 560)"));

constexpr size_t kShown = 10; ///< rows
constexpr double kOfSites = 0.3, kOfLayouts = 0.5, kOfNearby = 0.6, kOfSlices = 0.65,
                 kOfStages = 0.85;   ///< shares of the time, until which a step may go on
constexpr double kNearLimit = 1.5;   ///< 1F1B above the limit by less: other schedules may fit
constexpr int kVariants = 6;         ///< how often the best is varied
constexpr double kFarAbove = 2;      ///< above the limit or the best step by more: little is left to choose
constexpr double kHopeless = 1.25;   ///< 1F1B with its bubble takes so many times the best step: it is not tried
constexpr double kSlack = 1.02;      ///< an estimate may be too long by this factor
constexpr double kSideBySide = 1.15; ///< units that do not run side by side take longer by this factor at most
constexpr double kQuick = 10;        ///< this share of the time left: judged at once, not by its turn
constexpr double kWorth = 1.3;       ///< stages with a bound so far above the best may become it
constexpr double kWorse = 1.1;       ///< 1F1B with more ranks takes so much longer: enough ranks
constexpr double kPromising = 1.06;  ///< a schedule within this of a mesh's best is tried on all meshes before others
/// Limits of actions and steps, for each second of the search, for a schedule that is tried with a few microbatches.
constexpr double kActions = 180, kSteps = 200'000;
constexpr int64_t kMany = 64;                          ///< devices
constexpr double kSeconds = 110, kSecondsOfMany = 560; ///< of a search; what has begun then is ended
} // namespace

bool pp::wantsSearch() { return searchOption.getNumOccurrences() > 0; }

FailureOr<SearchCommand> pp::requestedSearch() {
  if (secondsOption.getNumOccurrences() && !(secondsOption > 0))
    return LogicalResult(usage("--search-seconds: expected a number above 0"));
  return SearchCommand{{}, searchOption, secondsOption};
}

std::atomic<bool> Searcher::isInterrupted = false;

double Searcher::elapsed() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
double Searcher::left() const { return std::chrono::duration<double>(end - std::chrono::steady_clock::now()).count(); }
bool Searcher::isOver() const { return isInterrupted || left() <= 0; }

double Searcher::best() const {
  std::lock_guard guard(lock);
  return rows.empty() ? INFINITY : rows.front().outcome.step;
}

std::optional<SearchRow> Searcher::first() const {
  std::lock_guard guard(lock);
  return rows.empty() ? std::nullopt : std::optional(rows.front());
}

/// On all cores. What begins after the end does nothing.
void Searcher::each(size_t count, llvm::function_ref<void(size_t)> work) const {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  size_t most = std::min<size_t>(count, std::max(1u, std::thread::hardware_concurrency()));
  for (size_t i = 0; i < most; ++i)
    threads.emplace_back([&] {
      for (size_t number = next++; number < count && !isOver(); number = next++)
        work(number);
    });
  for (std::thread &thread : threads)
    thread.join();
}

//===-- One candidate -------------------------------------------------------------------------------------------===//

FrontendOptions Searcher::optionsOf(const Candidate &candidate, int64_t microbatches) const {
  FrontendOptions its = options;
  const MeshLayout &layout = candidate.layout;
  bool isWritten = candidate.file.empty();
  if (!isWritten) {
    llvm::erase_if(its.defines, [&](const auto &define) { return llvm::is_contained(scheduleDefines, define.first); });
    its.schedule = "std/" + candidate.file + ".pipe:" + candidate.name;
  }
  auto add = [&](const Defines &more) { its.defines.insert(its.defines.end(), more.begin(), more.end()); };
  add(layout.defines(written));
  if (candidate.name != "single" && (!isWritten || layout.ranks != written.ranks))
    add({{"schedule.ranks", std::to_string(layout.ranks)}});
  if (!isWritten || microbatches != written.microbatches)
    add({{"schedule.microbatches", std::to_string(microbatches)}});
  for (const auto &[name, value] : candidate.arguments)
    add({{"schedule." + name, value}});
  if (candidate.recompute)
    add({{"recompute", *candidate.recompute}});
  return its;
}

/// Compiles in a context of its own. `says`: its errors are the user's; else the first of them goes to `why`.
LogicalResult Searcher::compile(const FrontendOptions &its, bool says, Use use, std::string *why) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, nn::NnDialect, PipelineDialect>();
  MLIRContext context(registry, MLIRContext::Threading::DISABLED); // candidates run side by side
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
  OwningOpRef<ModuleOp> module = importPipe(manager, &context, its);
  if (!module || failed(prepare(*module)))
    return failure();
  return use(*module);
}

LogicalResult Searcher::compile(const Candidate &candidate, int64_t microbatches, Use use, std::string *why) {
  return compile(optionsOf(candidate, microbatches), /*says=*/false, use, why);
}

/// Keeps what fits, and is shorter or smaller than all that is kept.
void Searcher::offer(const Candidate &candidate, const PlanOutcome &outcome, const std::string &layout) {
  std::lock_guard guard(lock);
  auto covers = [](const PlanOutcome &a, const PlanOutcome &b) {
    return a.step <= b.step * (1 + 1e-9) && a.peak <= b.peak;
  };
  if (isPrinted || outcome.fill > 1 ||
      llvm::any_of(rows, [&](const SearchRow &row) { return covers(row.outcome, outcome); }))
    return;
  llvm::erase_if(rows, [&](const SearchRow &row) { return covers(outcome, row.outcome); });
  auto at =
      llvm::upper_bound(rows, outcome.step, [](double step, const SearchRow &row) { return step < row.outcome.step; });
  rows.insert(at, {candidate, outcome, layout});
  llvm::errs() << rowText(elapsed(), outcome) << candidate.describe(written) << "\n";
}

void Searcher::refuse(const Candidate &candidate, const std::string &why) {
  std::string what = candidate.describe(written), kind;
  for (char c : why.empty() ? "it does not compile" : why)
    if (!llvm::isDigit(c))
      kind += c;
    else if (kind.empty() || kind.back() != '#')
      kind += '#';
  std::lock_guard guard(lock);
  if (!refused.insert(what).second)
    return;
  auto &[count, example] = reasons[kind];
  if (count++ == 0)
    example = what + ": " + (why.empty() ? "it does not compile" : why);
}

/// The time of one further microbatch: the work of the busiest rank. If units run side by side, a longer step tells it,
/// because they rarely do so while the pipeline fills and drains.
double Searcher::timeOfFurther(const Candidate &candidate, int64_t few, const PlanOutcome &outcome) {
  int64_t more = few + few / 2;
  FailureOr<PlanOutcome> longer = failure();
  auto use = [&](ModuleOp module) { return LogicalResult(longer = outcomeAsWritten(module, request)); };
  if (!outcome.hasPairs || failed(compile(candidate, more, use)))
    return outcome.bound / static_cast<double>(few);
  return (longer->step - outcome.step) / static_cast<double>(more - few);
}

/// Tries a candidate with a few microbatches; if it has only few, with all of them, and then judges it.
std::optional<SearchProbe> Searcher::probe(const Candidate &candidate) {
  std::string what = candidate.describe(written);
  std::unique_lock guard(lock);
  if (auto known = probes.find(what); known != probes.end())
    return known->second;
  guard.unlock();
  std::optional<SearchProbe> made = tryFew(candidate);
  guard.lock();
  return probes[what] = made;
}

std::optional<SearchProbe> Searcher::tryFew(const Candidate &candidate) {
  int64_t all = candidate.layout.microbatches, ranks = candidate.layout.ranks;
  int64_t few = std::max<int64_t>(2, 2 * ranks / candidate.slices); // as long as a pipeline takes to fill and drain
  few = 2 * all <= 3 * few ? all : few;
  auto start = std::chrono::steady_clock::now();
  FailureOr<PlanOutcome> outcome;
  std::string why, layout;
  auto use = [&](ModuleOp module) {
    layout = megatronLayout(*module.getOps<ProgramOp>().begin());
    return LogicalResult(outcome = outcomeAsWritten(module, request));
  };
  FrontendOptions its = optionsOf(candidate, few);
  its.budget.actions = std::min<int64_t>(its.budget.actions, kActions * seconds);
  its.budget.steps = std::min<int64_t>(its.budget.steps, kSteps * seconds);
  if (failed(compile(its, /*says=*/false, use, &why))) {
    bool isLarge = StringRef(why).contains("--max-actions") || StringRef(why).contains("--max-steps");
    refuse(candidate, isLarge ? "too large to be tried in this time (--search-seconds)" : why);
    return std::nullopt;
  }
  double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  double further = few == all ? 0 : timeOfFurther(candidate, few, *outcome);
  double estimate = outcome->step + static_cast<double>(all - few) * further;
  double times = static_cast<double>(all) / static_cast<double>(few);
  SearchProbe made = {candidate,
                      estimate,
                      outcome->peak,
                      took * times,
                      outcome->fill,
                      times * (areKinds ? outcome->bound : outcome->shared), // even layers stay even in the library
                      areKinds ? estimate * outcome->shared / outcome->bound : estimate};
  {
    std::lock_guard guard(lock);
    ++tried;
    if (made.fill < nearest.first)
      nearest = {made.fill, candidate.describe(written)};
    if (few == all)
      judged.push_back(candidate);
  }
  if (few == all)
    offer(candidate, *outcome, layout);
  return made;
}

/// Those that fit the memory; while nothing is tried.
std::vector<SearchProbe> Searcher::fittingProbes() const {
  std::vector<SearchProbe> fitting;
  for (const auto &[what, its] : probes)
    if (its && its->fill <= 1)
      fitting.push_back(*its);
  return fitting;
}

void Searcher::judge(const Candidate &candidate) {
  {
    std::lock_guard guard(lock);
    if (llvm::is_contained(judged, candidate))
      return;
    judged.push_back(candidate);
    ++tried;
  }
  FailureOr<PlanOutcome> outcome;
  std::string why, layout;
  auto use = [&](ModuleOp module) {
    layout = megatronLayout(*module.getOps<ProgramOp>().begin());
    return LogicalResult(outcome = outcomeAsWritten(module, request));
  };
  if (failed(compile(candidate, candidate.layout.microbatches, use, &why)))
    return refuse(candidate, why);
  offer(candidate, *outcome, layout);
}

std::optional<PlanOutcome> Searcher::judgeCut(const MeshLayout &layout, const StageCut &cut, std::string *why,
                                              double below) {
  Candidate candidate = planned(layout, cut);
  {
    std::lock_guard guard(lock);
    for (const SearchRow &row : rows)
      if (row.candidate == candidate)
        return row.outcome;
    ++tried;
  }
  PlanRequest limited = request;
  limited.worthBelow = std::min(below, kWorth * best());
  FailureOr<PlanOutcome> outcome;
  std::string megatron;
  auto use = [&](ModuleOp module) {
    megatron = megatronLayout(*module.getOps<ProgramOp>().begin());
    return LogicalResult(outcome = planOutcome(module, limited));
  };
  if (failed(compile(candidate, layout.microbatches, use, why)) || outcome->bound >= limited.worthBelow ||
      outcome->step >= below)
    return std::nullopt;
  offer(candidate, *outcome, megatron);
  return *outcome;
}

std::optional<SearchRow> Searcher::bestPlanned(const MeshLayout &layout) {
  std::lock_guard guard(lock);
  auto row =
      llvm::find_if(rows, [&](const SearchRow &row) { return row.candidate.cut && row.candidate.layout == layout; });
  return row == rows.end() ? std::nullopt : std::optional(*row);
}

//===-- The program as written ----------------------------------------------------------------------------------===//

/// The baseline, from which the sizes come, and the limit where none is given.
LogicalResult Searcher::judgeWritten() {
  FailureOr<PlanOutcome> outcome;
  bool recomputes = false;
  std::string layout;
  auto use = [&](ModuleOp module) {
    ProgramOp program = *module.getOps<ProgramOp>().begin();
    readSizes(program);
    limits.hasExperts = module.walk([](nn::Chooses) { return WalkResult::interrupt(); }).wasInterrupted();
    for (auto unit : program.getOps<UnitOp>())
      recomputes |= unit.getUnit().getPhase() == Phase::R;
    std::vector<int64_t> bytes = memoryLimitsOf(program, request.proofs.memoryLimit);
    isOwnLimit = bytes.front() < 0;
    memory = isOwnLimit ? "" : formatLimits(bytes);
    layout = megatronLayout(program);
    return LogicalResult(outcome = outcomeAsWritten(module, request));
  };
  FrontendOptions its = options;
  its.scheduleDefines = &scheduleDefines;
  if (failed(compile(its, /*says=*/true, use, nullptr)))
    return failure();
  if (isOwnLimit)
    memory = formatBytes(request.proofs.memoryLimit = outcome->peak);
  if (outcome->isUnitTime && !StringRef(request.changes.costs).contains('='))
    return usage("--search compares stages of different size, and units of --costs=units are all equal: it needs a "
                 "cluster (--cluster, or `cluster` in `train`) or costs of parts (--costs=PART=N,..)");
  isUnitTime = outcome->isUnitTime;
  writtenTime = writtenName + " as written " + planTime(outcome->step, isUnitTime);
  if (recomputes)
    modes.push_back("");
  modes.push_back(std::nullopt);
  judged.push_back({written, "", writtenName});
  offer(judged.back(), *outcome, layout);
  return success();
}

void Searcher::readSizes(ProgramOp program) {
  auto count = [&](StringRef name) {
    auto value = program.getTrain().getAs<IntegerAttr>(name);
    return value ? value.getInt() : 0;
  };
  written.ranks = static_cast<int64_t>(program.getRanks());
  written.microbatches = static_cast<int64_t>(program.getMicrobatches());
  written.microbatch = count("batch");
  limits.length = count("sequence");
  limits.layers = count("layers");
  if (MeshAttr mesh = program.getMeshAttr()) {
    written.tensor = mesh.sizeOf(Axis::tensor);
    written.context = mesh.sizeOf(Axis::context);
    written.data = mesh.sizeOf(Axis::data);
    written.expert = mesh.getExpert();
    written.zero = mesh.getZero();
    written.sequence = mesh.getSequence();
    written.heads = mesh.getAttention() == Meeting::heads;
  }
  if (auto schedule = program.getTrain().getAs<StringAttr>("schedule"))
    writtenName = schedule.str();
  DictionaryAttr cluster = program.getClusterAttr();
  areKinds = cluster && figuresOf(cluster, 0) != cluster;
  isByCluster = cluster && (request.changes.costs.empty() || request.changes.costs == "cluster");
  hasHost = isByCluster && cluster.contains("host");
  if (auto node = cluster ? cluster.getAs<IntegerAttr>("ranks_per_node") : IntegerAttr())
    limits.devicesOfNode = node.getInt();
}

/// Finds what may be recomputed, less first: the parts of the model that free most bytes for their time, then all.
void Searcher::findModes() {
  std::vector<StageCut> cuts = evenCuts(written.ranks, limits.layers);
  if (!cuts.empty() && !isOver())
    for (const Saving &saving : StageImprover(*this, written).savingsFor(cuts.front()))
      if (saving.kind == Saving::Parts)
        modes.push_back(llvm::join(saving.parts, ","));
  modes.push_back("stage");
}

//===-- Layouts and the library ---------------------------------------------------------------------------------===//

Candidate Searcher::withMode(Candidate candidate, size_t mode) const {
  candidate.recompute = modes[mode];
  return candidate;
}

/// Tries a candidate with as little recomputation as fits; `first` is the mode in which 1F1B fits.
std::optional<SearchProbe> Searcher::probeModes(const Candidate &candidate, size_t first) {
  for (size_t mode = std::max<size_t>(first, 1) - 1; mode < modes.size() && !isOver(); ++mode) {
    std::optional<SearchProbe> its = probe(withMode(candidate, mode));
    if (!its || its->fill <= 1)
      return its;
    if (its->fill > kFarAbove && mode + 2 < modes.size())
      mode = modes.size() - 2; // all or nothing
    if (mode + 1 == modes.size() || its->estimate > kFarAbove * best())
      return refuse(its->candidate, "needs more than " + memory + " on a rank"), std::nullopt;
  }
  return std::nullopt;
}

std::optional<SearchSite> Searcher::siteOf(const MeshLayout &layout) {
  Candidate simple = {layout, layout.ranks == 1 ? "single" : "1f1b", layout.ranks == 1 ? "single" : "one_f_one_b"};
  std::optional<SearchSite> site;
  for (size_t mode = 0; mode < modes.size() && !isOver(); ++mode) {
    std::optional<SearchProbe> its = probe(withMode(simple, mode));
    if (!its)
      return std::nullopt;
    site = {layout, mode, its->estimate, its->bySpeed, site ? site->work : its->work};
    if (its->fill <= 1)
      return site;
    if (its->fill > kFarAbove && mode + 2 < modes.size())
      mode = modes.size() - 2; // all or nothing
    if (mode + 1 == modes.size() && its->fill > kNearLimit && !takesFar) {
      refuse(its->candidate, "needs more than " + memory + " on a rank");
      return std::nullopt;
    }
  }
  return site;
}

/// With more ranks a device keeps less and waits longer: the loop ends when everything fits and the step gets longer.
/// The work of a device stays the same, so this work and the bubble of 1F1B say how long a step is at least.
std::vector<SearchSite> Searcher::sitesOf(const std::vector<MeshLayout> &group) {
  std::vector<SearchSite> sites;
  double shortest = INFINITY, work = 0;
  for (const MeshLayout &layout : group) {
    double bubble = static_cast<double>(layout.ranks - 1) / static_cast<double>(layout.microbatches);
    std::optional<SearchSite> site;
    if (!isOver() && (areKinds || work * (1 + bubble) <= kHopeless * best()))
      site = siteOf(layout);
    if (!site)
      continue;
    sites.push_back(*site);
    work = site->work;
    if (site->mode == 0 && site->bySpeed > kWorse * shortest)
      break;
    shortest = std::min(shortest, site->bySpeed);
  }
  return sites;
}

/// The schedule of the program first, if it is none of the library. `onlyPromising`: what was near the best elsewhere.
void Searcher::tryLibrary(const SearchSite &site, bool onlyPromising) {
  std::vector<Candidate> all = libraryOf(site.layout, limits.layers);
  std::vector<Candidate> more = slicedLibraryOf(site.layout, limits.layers, limits.length);
  auto isWritten = [&](const Candidate &its) { return its.name == writtenName; };
  if (writtenName != "single" && llvm::none_of(all, isWritten) && llvm::none_of(more, isWritten))
    all.insert(all.begin(), {site.layout, "", writtenName});
  if (onlyPromising)
    llvm::erase_if(all, [&](const Candidate &its) { return !promising.count(its.name); });
  tryAll(all, site);
}

void Searcher::tryAll(const std::vector<Candidate> &all, const SearchSite &site) {
  std::vector<std::optional<SearchProbe>> found(all.size());
  each(all.size(), [&](size_t i) {
    found[i] = probeModes(all[i], site.mode);
    if (found[i] && found[i]->fill <= 1 && found[i]->estimate < best() && found[i]->seconds < left() / kQuick)
      judge(found[i]->candidate);
  });
  std::vector<SearchProbe> fitting;
  for (const auto &its : found)
    if (its && its->fill <= 1)
      fitting.push_back(*its);
  double least = INFINITY;
  for (const SearchProbe &its : fitting)
    least = std::min(least, its.estimate);
  for (const SearchProbe &its : fitting)
    if (its.estimate <= kPromising * least)
      promising.insert(its.candidate.name);
  judgeBest(std::move(fitting));
}

/// Judges those that may be the best so far, the shortest first.
void Searcher::judgeBest(std::vector<SearchProbe> fitting) {
  llvm::stable_sort(fitting, [](const SearchProbe &a, const SearchProbe &b) { return a.estimate < b.estimate; });
  each(fitting.size(), [&](size_t i) {
    if (fitting[i].estimate < kSlack * best() && fitting[i].seconds < left() / 2)
      judge(fitting[i].candidate);
  });
}

/// All sites, the shortest first.
std::vector<SearchSite> Searcher::findSites() {
  std::vector<std::vector<MeshLayout>> groups = layoutGroups(written, limits);
  std::vector<std::vector<SearchSite>> found(groups.size());
  each(groups.size(), [&](size_t i) { found[i] = sitesOf(groups[i]); });
  std::vector<SearchSite> sites;
  for (const auto &its : found)
    sites.insert(sites.end(), its.begin(), its.end());
  llvm::stable_sort(sites, [](const SearchSite &a, const SearchSite &b) { return a.estimate < b.estimate; });
  return sites;
}

/// Tries variants of the best row's mesh: other ways to share optimizer state, rows and heads. If its schedule is the
/// library's, tries it on meshes of nearly the same sizes, too.
void Searcher::varyBest() {
  for (int round = 0; round < kVariants && !isOver(); ++round) {
    std::optional<SearchRow> row = first();
    if (!row)
      return;
    std::vector<MeshLayout> others = variantsOf(row->candidate.layout);
    if (!row->candidate.cut)
      llvm::append_range(others, layoutsNear(row->candidate.layout, written, limits));
    each(others.size(), [&](size_t i) {
      Candidate other = row->candidate;
      other.layout = others[i];
      if (other.cut)
        (void)judgeCut(other.layout, *other.cut);
      else
        tryFitting(other);
    });
    if (first()->outcome.step >= row->outcome.step)
      return;
  }
}

/// Tries a candidate with as little recomputation as fits.
void Searcher::tryFitting(const Candidate &candidate) {
  std::optional<SearchProbe> its = probeModes(candidate, 0);
  if (its && its->estimate < kSlack * best() && its->seconds < left() / 2)
    judge(its->candidate);
}

/// Devices differ, and the library cuts evenly: plans stages on every mesh where they may be the best, with optimizer
/// state that is shared or not. Each mesh gets half of the time that is left.
void Searcher::improveKinds(const std::vector<SearchSite> &sites) {
  std::vector<std::optional<SearchSite>> all(2 * sites.size());
  each(sites.size(), [&](size_t i) {
    all[2 * i] = sites[i];
    MeshLayout whole = sites[i].layout;
    whole.zero = 0;
    if (!(whole == sites[i].layout))
      all[2 * i + 1] = siteOf(whole);
  });
  llvm::erase(all, std::nullopt);
  llvm::stable_sort(all, [](const auto &a, const auto &b) { return a->bySpeed < b->bySpeed; });
  for (auto last = end; const auto &site : all) {
    end = std::chrono::steady_clock::now() + (last - std::chrono::steady_clock::now()) / 2;
    if (site->bySpeed < best())
      improve(site->layout);
    hasEnded &= !isOver();
    end = last;
  }
}

/// Tries stages in an order of the planner.
void Searcher::improve(const MeshLayout &layout) {
  if (llvm::is_contained(improved, layout))
    return;
  std::vector<StageCut> cuts = layout.ranks > 1 ? evenCuts(layout.ranks, limits.layers) : std::vector<StageCut>();
  std::vector<std::vector<Saving>> known(cuts.size());
  each(cuts.size(), [&](size_t i) {
    StageImprover improver(*this, layout);
    improver.improve(cuts[i]);
    known[i] = improver.knownSavings();
  });
  auto most = llvm::max_element(known, [](const auto &a, const auto &b) { return a.size() < b.size(); });
  StageImprover(*this, layout).polish(most == known.end() ? std::vector<Saving>() : *most);
  if (!isOver())
    improved.push_back(layout);
}

/// Adds rows that take longer and keep less, from the schedules that were tried with a few microbatches.
void Searcher::fillTable() {
  std::vector<SearchProbe> smaller = fittingProbes();
  llvm::stable_sort(smaller, [](const SearchProbe &a, const SearchProbe &b) { return a.estimate < b.estimate; });
  int64_t least = rows.empty() ? INT64_MAX : rows.front().outcome.peak;
  llvm::erase_if(smaller, [&](const SearchProbe &its) {
    bool isLarger = its.peak >= least;
    least = std::min(least, its.peak);
    return isLarger;
  });
  if (smaller.size() > kShown)
    smaller.resize(kShown);
  each(smaller.size(), [&](size_t i) {
    if (smaller[i].seconds < left() / 2)
      judge(smaller[i].candidate);
  });
}

void Searcher::until(double share) {
  hasEnded &= !isOver();
  end = begin +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds * share));
}

/// One step after the other, each until its share of the time or until the end of it. What is known is not tried again.
void Searcher::takeSteps(bool sharesTime) {
  auto until = [&](double share) { this->until(sharesTime ? share : 1); };
  hasEnded = true;
  until(kOfSites);
  std::vector<SearchSite> sites = {siteOf(written).value_or(SearchSite{written, 0, 0, 0, 0})};
  auto tryOn = [&](ArrayRef<SearchSite> those, auto tryAt) {
    for (const SearchSite &site : those)
      if (command.what != SearchWhat::Stages && !isOver() && site.work < kSideBySide * best())
        tryAt(site);
  };
  auto tryLibrary = [&](const SearchSite &site) { this->tryLibrary(site, /*onlyPromising=*/false); };
  auto tryPromising = [&](const SearchSite &site) { this->tryLibrary(site, /*onlyPromising=*/true); };
  auto trySliced = [&](const SearchSite &site) {
    tryAll(slicedLibraryOf(site.layout, limits.layers, limits.length), site);
  };
  if (!areKinds)
    tryOn(sites, tryLibrary);
  bool searchesLayouts = command.what == SearchWhat::All && isByCluster;
  if (searchesLayouts)
    llvm::append_range(sites, findSites());
  until(kOfLayouts);
  if (areKinds)
    improveKinds(sites);
  ArrayRef<SearchSite> others = ArrayRef(sites).drop_front(areKinds ? 0 : 1);
  for (size_t i = 0; i < others.size() && !isOver(); ++i) {
    tryOn(others, tryPromising); // as far as they are known
    tryOn(others.slice(i, 1), tryLibrary);
  }
  until(kOfNearby);
  judgeBest(fittingProbes()); // of meshes whose turn was over too early
  if (searchesLayouts)
    varyBest();
  until(kOfSlices);
  tryOn(sites, trySliced);
  until(kOfStages);
  improve(first() ? first()->candidate.layout : written);
  until(1);
  if (searchesLayouts)
    varyBest();
  if (command.what != SearchWhat::Stages)
    fillTable();
  hasEnded &= !isOver();
}

FailureOr<SearchResult> Searcher::run() {
  StringRef costs = request.changes.costs;
  if (!costs.empty() && costs != "units" && costs != "cluster" && !costs.contains('='))
    return LogicalResult(usage("`" + costs +
                               "` has the times of the stages that ran, and --search cuts others: give it "
                               "a cluster or costs of parts; --plan takes a profile"));
  begin = std::chrono::steady_clock::now();
  end = begin + std::chrono::hours(1);
  auto before = std::signal(SIGINT, [](int) {
    isInterrupted = true;
    std::signal(SIGINT, SIG_DFL); // a second one ends the process
  });
  if (failed(judgeWritten())) {
    std::signal(SIGINT, before);
    return failure();
  }
  seconds = command.seconds > 0 ? command.seconds : written.devices() > kMany ? kSecondsOfMany : kSeconds;
  until(kOfSites);
  findModes();
  takesFar = areKinds; // uneven stages may fit
  takeSteps(/*sharesTime=*/true);
  for (; !isOver() && (!hasEnded || (rows.empty() && !takesFar)); takeSteps(/*sharesTime=*/false))
    takesFar |= hasEnded; // else what was cut off gets the time that later steps did not need
  std::signal(SIGINT, before);
  if (rows.empty())
    return LogicalResult(
        pp::refuse("--search finds no schedule that fits " + memory + " on every rank" + nearestText()));
  print();
  return result();
}

FailureOr<SearchResult> pp::search(llvm::MemoryBufferRef source, const FrontendOptions &options,
                                   const PlanRequest &request, PrepareModule prepare, const SearchCommand &command,
                                   llvm::raw_ostream &os) {
  return Searcher(source, options, request, prepare, command, os).run();
}
