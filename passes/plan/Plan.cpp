// Plans a program: compiles it to learn times and bytes, asks the planner, and judges its orders by the simulator.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/plan/Plan.h"
#include "analysis/Optimizer.h"
#include "analysis/Proof.h"
#include "analysis/lives/Scratch.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include <algorithm>
#include <cmath>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// The number of times that an order is planned again with less memory, if the memory plan needs more than the planner
/// thought.
constexpr int kAttempts = 6;
/// Stashes in host memory come back so many units before their backward at most.
constexpr int64_t kFarthest = 3;

ProgramOp programOf(ModuleOp module) { return *module.getOps<ProgramOp>().begin(); }

/// A program as it was compiled, proved and simulated.
struct Trial {
  OwningOpRef<ModuleOp> module;
  std::unique_ptr<CostModel> costs;
  double makespan = 0, step = 0, bubble = 0;
  double period = 0;  ///< without a barrier; else 0
  double busiest = 0; ///< how long the rank works that works longest
  double work = 0;    ///< of all ranks
  bool hasPairs = false;
  bool isUnitTime = true;
  std::vector<int64_t> arenas; ///< by rank
  int64_t scratch = 0;         ///< of the rank that needs most

  int64_t peak() const { return *std::max_element(arenas.begin(), arenas.end()); }
  /// The rank that needs the largest share of its limit, with so much beside its arena, and that share.
  std::pair<int64_t, double> fullest(ArrayRef<int64_t> limits, int64_t beside) const {
    std::pair<int64_t, double> found = {0, 0};
    for (auto [rank, arena, limit] : llvm::enumerate(arenas, limits))
      if (double share = static_cast<double>(arena + beside) / static_cast<double>(limit); share > found.second)
        found = {static_cast<int64_t>(rank), share};
    return found;
  }
};

class PlanRun {
public:
  PlanRun(ProgramOp program, const PlanRequest &request)
      : program(program), request(request), hasBarrier(Optimizer(program).hasBarrier()) {
    llvm::StringRef costs = request.changes.costs;
    isProfile = !costs.empty() && costs != "units" && costs != "cluster" && !costs.contains('=');
  }
  LogicalResult run();
  FailureOr<PlanModel> model();
  FailureOr<Trial> tryOut(OwningOpRef<ModuleOp> module, bool fuse) const;
  OwningOpRef<ModuleOp> copy() const { return program->getParentOfType<ModuleOp>().clone(); }
  void remark();
  PlanOutcome outcome() const;

private:
  ProgramOp program;
  const PlanRequest &request;
  bool hasBarrier;
  std::vector<int64_t> limits; ///< by rank
  int64_t beside = 0;          ///< the arenas, of limits that were given: scratch
  std::string given;           ///< the name of the schedule
  bool isProfile;              ///< costs are of what ran, and nothing else has any

  /// An order, and how early stashes come back in it.
  struct Found {
    PlanProblem problem;
    PlanOrder order;
    int64_t ahead;
  };
  /// The best so far.
  struct Best {
    double makespan, step, bubble, period;
    int64_t peak;
    std::string seed;
    std::optional<Found> found; ///< nothing: as written
  };
  std::optional<Best> best;
  double bound = INFINITY, periodBound = INFINITY;
  bool isOwnLimit = false;
  std::optional<Trial> written;
  std::vector<double> work;

  bool fits(const Trial &trial) const { return trial.fullest(limits, beside).second <= 1; }
  void offer(const Trial &trial, const std::string &seed, std::optional<Found> found);
  LogicalResult start();
  LogicalResult refuseAll();
  FailureOr<std::pair<TimedProblem, PlanOrder>> read(bool isSplit) const;
  LogicalResult planHalves(bool isSplit);
  LogicalResult planTimed(const TimedProblem &timed, const PlanOrder &seed);
  LogicalResult planWith(PlanEffort effort, int64_t ahead, PlanProblem problem, const PlanOrder &seed);
};

} // namespace

/// How long each rank works if all share the units by their speeds, as far side by side as now. No rank is left out
/// because it has no unit.
static double sharedWork(const Trial &trial) {
  ProgramOp program = programOf(*trial.module);
  std::vector<LaunchOp> units;
  double apart = 0, speeds = 0;
  for (auto rank : program.getOps<RankOp>())
    for (auto launch : rank.getOps<LaunchOp>())
      if (launch.getUnit().getPhase() != Phase::U) {
        units.push_back(launch);
        apart += trial.costs->of(static_cast<int64_t>(rank.getRank()), launch);
      }
  for (int64_t rank = 0; rank < static_cast<int64_t>(program.getRanks()); ++rank) {
    double all = 0;
    for (LaunchOp unit : units)
      all += trial.costs->of(rank, unit);
    speeds += 1 / all;
  }
  return trial.work > 0 ? trial.work / apart / speeds : 0;
}

/// Compiles without a limit; the caller judges whether the memory is enough.
FailureOr<Trial> PlanRun::tryOut(OwningOpRef<ModuleOp> module, bool fuse) const {
  PassManager manager(module->getContext());
  manager.enableVerifier(false); // the pipeline has passes for it
  ProofOptions proofs = request.proofs;
  proofs.memoryLimit = INT64_MAX;
  ChangeOptions changes = request.changes;
  changes.fuse &= fuse;
  buildPipeline(manager, Until::Ranks, proofs, changes);
  if (failed(ProvedModule::run(manager, *module)))
    return failure();
  Trial trial;
  ProgramOp compiled = programOf(*module);
  trial.costs = makeCosts(compiled, request.changes.costs);
  if (!trial.costs)
    return failure();
  Manner manner = request.manner;
  manner.periods |= !hasBarrier;
  FailureOr<Timeline> timeline = simulate(compiled, *trial.costs, manner);
  if (failed(timeline))
    return failure();
  trial.makespan = timeline->makespan;
  trial.step = timeline->step;
  trial.period = hasBarrier ? 0 : timeline->period;
  trial.bubble = timeline->bubble();
  trial.isUnitTime = timeline->unitTime;
  for (const RankTimeline &rank : timeline->ranks) {
    trial.busiest = std::max(trial.busiest, rank.busy);
    trial.work += rank.busy;
    trial.hasPairs |= llvm::any_of(rank.spans, [](const Span &span) { return span.lane > 0; });
  }
  for (auto rank : compiled.getOps<RankOp>())
    trial.arenas.push_back(static_cast<int64_t>(rank.getArenaBytes().value_or(0)));
  for (auto rank : compiled.getOps<RankOp>())
    trial.scratch = std::max<int64_t>(trial.scratch, scratchOf(rank).total());
  trial.module = std::move(module);
  return trial;
}

void PlanRun::offer(const Trial &trial, const std::string &seed, std::optional<Found> found) {
  // Sums of times in another order differ in their last bits.
  auto isLess = [](double a, double b) { return a < b * (1 - 1e-9); };
  bool isBetter = !best || isLess(trial.period, best->period) ||
                  (!isLess(best->period, trial.period) && isLess(trial.makespan, best->makespan));
  if (fits(trial) && isBetter)
    best = {trial.makespan, trial.step, trial.bubble, trial.period, trial.peak() + beside, seed, std::move(found)};
}

/// High effort offers what normal effort does, too: what is shorter to the planner need not be shorter when simulated.
LogicalResult PlanRun::planTimed(const TimedProblem &timed, const PlanOrder &seed) {
  bound = std::min(bound, static_cast<double>(timed.lowerBound()) * timed.tick);
  periodBound = std::min(periodBound, static_cast<double>(mostWorkOf(timed.problem)) * timed.tick);
  work.clear();
  for (const PlanStage &stage : timed.problem.stages)
    work.push_back(static_cast<double>(stage.time[0] + stage.time[1] + (timed.problem.isSplit ? stage.time[2] : 0)) *
                   timed.tick);
  if (bound >= request.worthBelow)
    return success();
  for (PlanEffort effort : {PlanEffort::Normal, PlanEffort::High})
    for (int64_t ahead = 0; ahead <= (hasOffloads(program) ? kFarthest : 0); ++ahead)
      if (effort <= request.effort && failed(planWith(effort, ahead, timed.problem, seed)))
        return failure();
  return success();
}

/// If the memory plan of an order is above the limit, plans again with less memory for the rank.
LogicalResult PlanRun::planWith(PlanEffort effort, int64_t ahead, PlanProblem problem, const PlanOrder &seed) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::optional<Plan> plan = planOrder(problem, {{given, seed}}, effort);
    if (!plan)
      return success();
    OwningOpRef<ModuleOp> module = copy();
    writePlanOrder(programOf(*module), problem, plan->order, ahead);
    FailureOr<Trial> trial = tryOut(std::move(module), /*fuse=*/true);
    if (failed(trial))
      return failure();
    std::string early = ahead > 0 ? ", stashes " + std::to_string(ahead) + " early" : "";
    offer(*trial, plan->seed + early, Found{problem, plan->order, ahead});
    if (fits(*trial))
      return success();
    for (int64_t rank = 0; rank < problem.ranks; ++rank)
      problem.limits[rank] -= std::max<int64_t>(0, trial->arenas[rank] + beside - limits[rank]);
  }
  return success();
}

/// The problem with whole backwards or with halves, and the order as written.
FailureOr<std::pair<TimedProblem, PlanOrder>> PlanRun::read(bool isSplit) const {
  OwningOpRef<ModuleOp> module = copy();
  auto orderOf = [&](const PlanProblem &problem) { return readPlanOrder(programOf(*module), problem); };
  auto readFrom = [&](const Trial &trial) {
    std::vector<int64_t> room = limits;
    for (int64_t &its : room)
      its -= beside;
    TimedProblem timed = readPlanProblem(programOf(*trial.module), *trial.costs, isSplit, room, orderOf);
    timed.problem.hasBarrier = hasBarrier;
    PlanOrder order = orderOf(timed.problem);
    return std::pair(std::move(timed), std::move(order));
  };
  if (!isSplit)
    return readFrom(*written);
  splitBackwards(programOf(*module));
  // A profile has times of what ran: of fused units where there were any.
  FailureOr<Trial> halves = tryOut(OwningOpRef<ModuleOp>(module->clone()), /*fuse=*/isProfile);
  if (failed(halves))
    return failure();
  return readFrom(*halves);
}

LogicalResult PlanRun::planHalves(bool isSplit) {
  auto problem = read(isSplit);
  return failed(problem) ? failure() : planTimed(problem->first, problem->second);
}

std::string pp::planTime(double time, bool isUnitTime) {
  if (isUnitTime)
    return llvm::formatv("{0}", llvm::format("%.6g", time)).str();
  const char *unit = time < 1e-3 ? "us" : time < 1 ? "ms" : "s";
  return llvm::formatv("{0} {1}", llvm::format("%.4g", time * (time < 1e-3 ? 1e6 : time < 1 ? 1e3 : 1)), unit).str();
}

/// Compiles the program as written, and sets the limit.
LogicalResult PlanRun::start() {
  if (failed(checkPlannable(program)))
    return failure();
  auto name = program.getTrain().getAs<StringAttr>("schedule");
  given = name ? name.str() : program.getSymName().str();
  FailureOr<Trial> first = tryOut(copy(), /*fuse=*/true);
  if (failed(first))
    return failure();
  written = std::move(*first);
  limits = memoryLimitsOf(program, request.proofs.memoryLimit);
  isOwnLimit = limits.front() < 0;
  if (isOwnLimit)
    limits.assign(limits.size(), written->peak());
  else
    beside = written->scratch;
  return success();
}

LogicalResult PlanRun::refuseAll() {
  auto exactly = [](int64_t bytes) { return std::to_string(bytes) + " bytes (" + formatBytes(bytes) + ")"; };
  if (llvm::all_equal(limits))
    return program.emitError() << "--plan finds no order that fits " << exactly(limits.front()) << " on every rank; `"
                               << given << "` as written needs " << exactly(written->peak() + beside);
  int64_t rank = written->fullest(limits, beside).first;
  return program.emitError() << "--plan finds no order that fits the memory of every rank; `" << given
                             << "` as written needs " << exactly(written->arenas[rank] + beside) << " of "
                             << exactly(limits[rank]) << " on rank " << rank;
}

LogicalResult PlanRun::run() {
  if (failed(start()))
    return failure();
  offer(*written, given, std::nullopt);
  bool isWhole = hasWholeBackwards(program);
  if (isWhole && failed(planHalves(/*isSplit=*/false)))
    return failure();
  if (!(isWhole && isProfile) && failed(planHalves(/*isSplit=*/true)))
    return failure();
  if (!best)
    return refuseAll();
  bound = std::min(bound, best->makespan); // its bytes are those of another order's memory plan
  if (best->found)
    writePlanOrder(program, best->found->problem, best->found->order, best->found->ahead);
  return success();
}

FailureOr<PlanModel> PlanRun::model() {
  if (failed(start()))
    return failure();
  PlanModel model;
  for (bool isSplit : {false, true}) {
    if (!isSplit && !hasWholeBackwards(program))
      continue;
    auto problem = read(isSplit);
    if (failed(problem))
      return failure();
    model.forms.push_back(std::move(problem->first));
  }
  for (auto piece : program.getOps<PieceOp>()) {
    std::vector<std::string> &parts = model.parts.emplace_back();
    for (Attribute part : piece.getParts())
      if (StringRef name = cast<StringAttr>(cast<ArrayAttr>(part)[0]); !llvm::is_contained(parts, name))
        parts.push_back(name.str());
  }
  return model;
}

void PlanRun::remark() {
  auto timeOf = [&](double time) { return planTime(time, written->isUnitTime); };
  std::string periods;
  if (!hasBarrier)
    periods = llvm::formatv("period {0}, bound {1}, as written {2}, ", timeOf(best->period), timeOf(periodBound),
                            timeOf(written->period));
  program.emitRemark() << "plan: " << best->seed << ", " << periods << "makespan " << timeOf(best->makespan)
                       << ", bound " << timeOf(bound) << ", " << given << " as written " << timeOf(written->makespan)
                       << (fits(*written) ? "" : " (" + formatBytes(written->peak() + beside) + ")") << ", peak "
                       << formatBytes(best->peak) << " of " << formatLimits(limits)
                       << (isOwnLimit ? ", as much as written" : "");
}

PlanOutcome PlanRun::outcome() const {
  return {best->makespan, best->step, best->bubble, bound, best->peak, written->isUnitTime, best->seed, work};
}

LogicalResult pp::planProgram(ModuleOp module, const PlanRequest &request) {
  for (auto program : llvm::make_early_inc_range(module.getOps<ProgramOp>())) {
    PlanRun run(program, request);
    if (failed(run.run()))
      return failure();
    run.remark();
  }
  return success();
}

FailureOr<PlanOutcome> pp::planOutcome(ModuleOp module, const PlanRequest &request) {
  PlanRun run(programOf(module), request);
  return failed(run.run()) ? FailureOr<PlanOutcome>(failure()) : run.outcome();
}

FailureOr<PlanModel> pp::planModel(ModuleOp module, const PlanRequest &request) {
  return PlanRun(programOf(module), request).model();
}

FailureOr<PlanOutcome> pp::outcomeAsWritten(ModuleOp module, const PlanRequest &request) {
  FailureOr<Trial> trial = PlanRun(programOf(module), request).tryOut(OwningOpRef<ModuleOp>(module.clone()), true);
  if (failed(trial))
    return failure();
  std::vector<int64_t> limits = memoryLimitsOf(programOf(module), request.proofs.memoryLimit);
  double shared = sharedWork(*trial);
  PlanOutcome outcome = {
      trial->makespan, trial->step, trial->bubble, trial->busiest, trial->peak() + trial->scratch, trial->isUnitTime,
      "as written",    {},          shared,        trial->hasPairs};
  if (limits.front() >= 0)
    outcome.fill = trial->fullest(limits, trial->scratch).second;
  return outcome;
}
