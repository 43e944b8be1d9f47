// Reads the planning problem from a program's actions and rank programs, and writes an order back as actions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/plan/PlanProblem.h"
#include "analysis/Messages.h"
#include "analysis/lives/SlotLives.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- What can be planned -------------------------------------------------------------------------------------===//

static InFlightDiagnostic refusePlan(Operation *op) { return op->emitError() << "--plan orders units only: "; }

static LogicalResult checkPiece(const Pieces &pieces, int64_t piece) {
  PieceOp op = pieces.op(piece);
  if (!op.getCoord().isStage() || op.getVocabulary())
    return refusePlan(op) << pieces.describe(piece) << " is not a stage";
  if (pieces.isSharded(piece) || pieces.isReplicated(piece) || pieces.homes(piece).size() != 1)
    return refusePlan(op) << "the weights of " << pieces.describe(piece) << " are not on one rank";
  return success();
}

static LogicalResult checkUnit(const Pieces &pieces, UnitOp unit) {
  Phase phase = unit.getUnit().getPhase();
  if (phase == Phase::U)
    return refusePlan(unit) << "`" << unit.getUnit().str() << "` updates weights" << withLoops(unit);
  if (unit.getVersion())
    return refusePlan(unit) << "`" << unit.getUnit().str() << "` names a version of the weights" << withLoops(unit);
  int64_t piece = pieces.find(unit.getUnit().getCoord());
  if (piece < 0 || unit.getRanks().size() != 1)
    return refusePlan(unit) << "`" << unit.getUnit().str() << "` runs on several ranks" << withLoops(unit);
  if (int64_t home = pieces.homes(piece).front(); unit.getRanks().front() != home) {
    auto error = refusePlan(unit) << "`" << unit.getUnit().str() << "` runs on rank " << unit.getRanks().front()
                                  << ", and the weights of " << pieces.describe(piece) << " are on rank " << home
                                  << withLoops(unit);
    error.attachNote(pieces.op(piece).getLoc()) << "placed here";
    return error;
  }
  return success();
}

/// A stash leaves its rank for host memory, or comes back.
static bool isOffload(TransferOp op) {
  if (op.getThing().getRole() != Role::stash || !op.getFrom())
    return false;
  PlaceAttr from = *op.getFrom(), to = op.getTo();
  return from.getRanks() == to.getRanks() && (from.getLayout() == Layout::host) != (to.getLayout() == Layout::host);
}

bool pp::hasOffloads(ProgramOp program) { return llvm::any_of(program.getOps<TransferOp>(), isOffload); }

LogicalResult pp::checkPlannable(ProgramOp program) {
  Pieces pieces(program);
  if (program.getSlices() > 0)
    return refusePlan(program) << "the sequences are cut into slices";
  if (program.countUpdates() > 1)
    return refusePlan(program) << "a step updates its weights several times";
  for (Operation &op : program.getBody().front()) {
    if (isa<PieceOp, LimitOp>(op))
      continue;
    if (auto unit = dyn_cast<UnitOp>(op)) {
      int64_t piece = pieces.find(unit.getUnit().getCoord());
      if (failed(piece < 0 ? success() : checkPiece(pieces, piece)) || failed(checkUnit(pieces, unit)))
        return failure();
    } else if (auto transfer = dyn_cast<TransferOp>(op)) {
      if (isOffload(transfer))
        continue;
      return refusePlan(&op) << "the schedule moves `" << transfer.getThing().str() << "`" << withLoops(&op);
    } else if (isa<TogetherOp>(op)) {
      return refusePlan(&op) << "the schedule has a `together`" << withLoops(&op);
    } else {
      return refusePlan(&op) << "the schedule has an `" << op.getName().stripDialect() << "`" << withLoops(&op);
    }
  }
  return success();
}

//===-- Orders as actions ---------------------------------------------------------------------------------------===//

bool pp::hasWholeBackwards(ProgramOp program) {
  return llvm::none_of(program.getOps<UnitOp>(), [](UnitOp unit) {
    return unit.getUnit().getPhase() == Phase::I || unit.getUnit().getPhase() == Phase::W;
  });
}

static void createUnit(OpBuilder &builder, Location at, Phase phase, CoordAttr coord, int64_t rank) {
  builder.create<UnitOp>(at, UnitIdAttr::get(builder.getContext(), phase, coord), ArrayRef(rank));
}

void pp::splitBackwards(ProgramOp program) {
  for (UnitOp unit : llvm::make_early_inc_range(program.getOps<UnitOp>()))
    if (unit.getUnit().getPhase() == Phase::B) {
      OpBuilder builder(unit);
      for (Phase phase : {Phase::I, Phase::W})
        createUnit(builder, unit.getLoc(), phase, unit.getUnit().getCoord(), unit.getRanks().front());
      unit.erase();
    }
}

static int64_t planKindOf(Phase phase) { return phase == Phase::F ? kPlanF : phase == Phase::W ? kPlanW : kPlanI; }

PlanOrder pp::readPlanOrder(ProgramOp program, const PlanProblem &problem) {
  Pieces pieces(program);
  PlanOrder order(problem.ranks);
  for (UnitOp unit : program.getOps<UnitOp>()) {
    CoordAttr coord = unit.getUnit().getCoord();
    if (unit.getUnit().getPhase() == Phase::R)
      continue;
    order[unit.getRanks().front()].push_back(
        problem.unit(planKindOf(unit.getUnit().getPhase()), pieces.find(coord), coord.getMicrobatch()));
  }
  return order;
}

namespace {

/// Writes the list of each rank, with R before backwards of stages that recompute, and with stashes that leave right
/// behind their forward and come back `ahead` units before their backward.
class PlanOrderWriter {
public:
  PlanOrderWriter(ProgramOp program, const PlanProblem &problem, int64_t ahead)
      : problem(problem), pieces(program), ahead(ahead), builder(OpBuilder::atBlockEnd(&program.getBody().front())) {
    for (Operation &op : llvm::make_early_inc_range(program.getBody().front())) {
      if (auto unit = dyn_cast<UnitOp>(op))
        read(unit);
      else if (auto transfer = dyn_cast<TransferOp>(op))
        offloads.insert({pieces.find(transfer.getThing().getCoord()), transfer.getLoc()});
      if (isa<UnitOp, TransferOp, LimitOp>(op))
        op.erase();
    }
  }

  void write(int64_t rank, const std::vector<int64_t> &list) {
    std::map<size_t, std::vector<int64_t>> leave, come; // behind, before this place of the list
    std::map<std::pair<int64_t, int64_t>, size_t> forwards;
    for (auto [place, unit] : llvm::enumerate(list)) {
      std::pair<int64_t, int64_t> of = {problem.stageOf(unit), problem.microbatchOf(unit)};
      if (problem.kindOf(unit) == kPlanF)
        forwards[of] = place;
      size_t next = problem.kindOf(unit) == kPlanI && offloads.count(of.first) ? forwards[of] + 2 + ahead : SIZE_MAX;
      if (place >= next) { // a unit runs while it leaves
        leave[forwards[of]].push_back(unit);
        come[place - ahead].push_back(unit);
      }
    }
    for (auto [place, unit] : llvm::enumerate(list)) {
      for (int64_t user : come[place])
        createMove(rank, user, Layout::host, Layout::full);
      createUnits(rank, unit);
      for (int64_t user : leave[place])
        createMove(rank, user, Layout::full, Layout::host);
    }
  }

private:
  const PlanProblem &problem;
  Pieces pieces;
  int64_t ahead;
  OpBuilder builder;
  std::map<std::tuple<int64_t, int64_t, bool>, Location> locations; // stage, microbatch, forward
  std::set<int64_t> again;
  std::map<int64_t, Location> offloads; ///< by stage

  void read(UnitOp unit) {
    CoordAttr coord = unit.getUnit().getCoord();
    int64_t stage = pieces.find(coord);
    Phase phase = unit.getUnit().getPhase();
    if (phase == Phase::R)
      again.insert(stage);
    locations.insert({{stage, coord.getMicrobatch(), phase == Phase::F}, unit.getLoc()});
  }

  CoordAttr coordOf(int64_t unit) {
    return pieces.op(problem.stageOf(unit)).getCoord().with(problem.microbatchOf(unit), -1);
  }

  void createUnits(int64_t rank, int64_t unit) {
    int64_t kind = problem.kindOf(unit), stage = problem.stageOf(unit);
    Location at = locations.at({stage, problem.microbatchOf(unit), kind == kPlanF});
    if (kind == kPlanI && again.count(stage))
      createUnit(builder, at, Phase::R, coordOf(unit), rank);
    Phase phase = kind == kPlanF ? Phase::F : kind == kPlanW ? Phase::W : problem.isSplit ? Phase::I : Phase::B;
    createUnit(builder, at, phase, coordOf(unit), rank);
  }

  void createMove(int64_t rank, int64_t unit, Layout from, Layout to) {
    MLIRContext *context = builder.getContext();
    auto place = [&](Layout layout) { return PlaceAttr::get(context, ArrayRef(rank), layout); };
    builder.create<TransferOp>(offloads.at(problem.stageOf(unit)), ThingAttr::get(context, Role::stash, coordOf(unit)),
                               place(from), place(to), builder.getDenseI64ArrayAttr({rank}));
  }
};

} // namespace

void pp::writePlanOrder(ProgramOp program, const PlanProblem &problem, const PlanOrder &order, int64_t ahead) {
  PlanOrderWriter writer(program, problem, ahead);
  program->setAttr(kPlannedAttr, UnitAttr::get(program.getContext()));
  for (auto [rank, list] : llvm::enumerate(order))
    writer.write(static_cast<int64_t>(rank), list);
}

//===-- The problem of a compiled program -----------------------------------------------------------------------===//

namespace {

/// Reads times and bytes from rank programs. Microbatches are equal; what one of the middle occupies is what each does.
class PlanProblemReader {
public:
  PlanProblemReader(ProgramOp program, const CostModel &costs, bool isSplit)
      : program(program), costs(costs), pieces(program), samples(pieces.size(), program.getMicrobatches() / 2) {
    problem.ranks = program.getRanks();
    problem.microbatches = program.getMicrobatches();
    problem.isSplit = isSplit;
    for (int64_t piece = 0; piece < pieces.size(); ++piece)
      problem.stages.emplace_back().rank = pieces.homes(piece).front();
    times.assign(pieces.size(), {0, 0, 0});
    delays.assign(pieces.size(), {0, 0});
    again.assign(pieces.size(), 0);
    host.assign(pieces.size(), 0);
    readOffloads();
  }

  TimedProblem run() {
    for (auto rank : program.getOps<RankOp>()) {
      readTimes(rank);
      readBytes(rank);
    }
    double longest = 0, tick = 1;
    for (const auto &its : times)
      longest = std::max({longest, its[0], its[1], its[2]});
    tick = longest > 0 ? std::max(longest / 1e9, 1e-300) : 1;
    for (const auto &its : delays)
      tick = std::max({tick, its[0] / 1e15, its[1] / 1e15}); // an int has room for all of a step
    for (auto [s, stage] : llvm::enumerate(problem.stages)) {
      for (int64_t kind = 0; kind < 3; ++kind)
        stage.time[kind] = std::max<int64_t>(1, std::llround(times[s][kind] / tick));
      stage.forward = std::llround(delays[s][0] / tick);
      stage.backward = std::llround(delays[s][1] / tick);
      balance(stage);
    }
    TimedProblem timed = {std::move(problem), tick, {}, {}};
    for (double time : again)
      timed.again.push_back(static_cast<int64_t>(time / tick));
    for (double time : host)
      timed.host.push_back(static_cast<int64_t>(time / tick));
    return timed;
  }

private:
  ProgramOp program;
  const CostModel &costs;
  Pieces pieces;
  std::vector<int64_t> samples; ///< by stage: the microbatch that stands for all
  PlanProblem problem;
  std::vector<std::array<double, 3>> times;  ///< by stage
  std::vector<double> again;                 ///< by stage: of R, a part of its backward's
  std::vector<double> host;                  ///< by stage: of its stash to host memory
  std::vector<std::array<double, 2>> delays; ///< by stage: of messages to the next, to the previous one

  bool isWork(LaunchOp launch) const { return launch.getUnit().getPhase() != Phase::U; }
  bool isSample(LaunchOp launch) const {
    return isWork(launch) && launch.getUnit().getCoord().getMicrobatch() == samples[stageOf(launch)];
  }
  int64_t stageOf(LaunchOp launch) const { return pieces.find(launch.getUnit().getCoord()); }

  /// Where stashes wait in host memory, one of those that do stands for all. While a stash leaves or comes, another
  /// unit runs on its rank, and two of them are there: each F and each I of the stage allocates both for that time.
  void readOffloads() {
    std::map<int64_t, std::map<int64_t, int64_t>> moved; // by stage and microbatch: bytes
    for (auto rank : program.getOps<RankOp>())
      for (auto post : rank.getOps<PostOp>()) {
        if (!post.isHost() || post.getKind() != PostKind::send || post.getSlot().getDefiningOp<SlotOp>().getHost())
          continue;
        CoordAttr coord = post.getThing().getCoord();
        moved[pieces.find(coord)][coord.getMicrobatch()] += bytesOf(post);
        Route route = costs.route(PostKind::send, {static_cast<int64_t>(rank.getRank()), kHost}, bytesOf(post));
        double &time = host[pieces.find(coord)];
        time = std::max(time, route.transfer + route.latency);
      }
    for (auto &[piece, its] : moved) {
      auto [microbatch, bytes] = *std::next(its.begin(), static_cast<int64_t>(its.size() / 2));
      samples[piece] = microbatch;
      for (int64_t kind : {kPlanF, kPlanI}) {
        problem.stages[piece].alloc[kind] += bytes;
        problem.stages[piece].free[kind] += bytes;
      }
    }
  }

  void readTimes(RankOp rank) {
    double microbatches = problem.microbatches;
    int64_t number = rank.getRank();
    for (auto launch : rank.getOps<LaunchOp>()) {
      if (!isWork(launch))
        continue;
      double time = costs.of(number, launch) / microbatches;
      std::array<double, 3> &its = times[stageOf(launch)];
      if (launch.getUnit().getPhase() == Phase::R)
        again[stageOf(launch)] += time;
      if (problem.isSplit && launch.getUnit().getPhase() == Phase::B) { // fused: half of it is taken for each half
        its[kPlanI] += time / 2;
        its[kPlanW] += time / 2;
      } else {
        its[planKindOf(launch.getUnit().getPhase())] += time;
      }
    }
    for (auto post : rank.getOps<PostOp>()) {
      Role role = post.getThing().getRole();
      if (post.getKind() != PostKind::send || (role != Role::act && role != Role::dact))
        continue;
      int64_t piece = pieces.find(post.getThing().getCoord());
      if (pieces.isSkip(piece)) // its reader waits for the pieces between, too
        continue;
      Route route = costs.route(PostKind::send, {number, post.getPeers().front()}, bytesOf(post));
      double &delay = delays[piece][role == Role::dact];
      delay = std::max(delay, route.lastPost + route.transfer + route.latency + route.wake);
    }
  }

  /// What is alive from one unit of a stage to another one is allocated by the first and freed by the last; scratch is
  /// both in one unit. Tensors that a launch hands on change their slot and stay allocated.
  void readBytes(RankOp rank) {
    llvm::DenseMap<Value, SmallVector<LaunchOp>> users;
    for (auto launch : rank.getOps<LaunchOp>())
      for (Value slot : launch->getOperands())
        users[slot].push_back(launch);
    for (auto launch : rank.getOps<LaunchOp>())
      for (Value slot : launch.slots())
        if (SmallVector<LaunchOp> &its = users[slot]; !llvm::is_contained(its, launch))
          its.push_back(launch);
    std::vector<SlotLife> lives = slotLives(rank);
    llvm::DenseSet<std::pair<Operation *, int64_t>> inherited;
    for (const SlotLife &life : lives)
      if (life.heir.slot)
        inherited.insert({SlotOp(life.heir.slot), life.heir.tensor});
    for (const SlotLife &life : lives) {
      SlotOp slot = life.op;
      if (slot.getBinding() && (slot.getBinding()->isThereBefore() || slot.getBinding()->isThereAfter()))
        continue;
      SmallVector<LaunchOp> its = users.lookup(slot.getSlot());
      llvm::erase_if(its, [&](LaunchOp launch) { return !isSample(launch); });
      if (its.empty())
        continue;
      int64_t stage = stageOf(its.back());
      LaunchOp first = *llvm::find_if(its, [&](LaunchOp launch) { return stageOf(launch) == stage; });
      PlanStage &made = problem.stages[stage];
      if (!inherited.contains({slot, life.tensor}))
        made.alloc[kindOf(first)] += life.bytes;
      if (!life.heir.slot)
        made.free[kindOf(its.back())] += life.bytes;
    }
  }

  int64_t kindOf(LaunchOp launch) const { return planKindOf(launch.getUnit().getPhase()); }

  /// Tensors that are handed on may change their size: what a microbatch allocates is what it frees.
  void balance(PlanStage &stage) const {
    int64_t rest = 0;
    for (int64_t kind = 0; kind < 3; ++kind)
      rest += stage.alloc[kind] - stage.free[kind];
    (rest > 0 ? stage.free[problem.kinds() - 1] : stage.alloc[kPlanF]) += std::abs(rest);
  }
};

} // namespace

int64_t TimedProblem::lowerBound() const {
  PlanProblem without = problem;
  std::vector<int64_t> work(problem.ranks, 0);
  for (auto [stage, time] : llvm::zip_equal(without.stages, again)) {
    work[stage.rank] += problem.microbatches * (stage.time[kPlanF] + stage.time[kPlanI]);
    work[stage.rank] += problem.isSplit ? problem.microbatches * stage.time[kPlanW] : 0;
    stage.time[kPlanI] -= std::min(time, stage.time[kPlanI] - 1);
  }
  return std::max(lowerBoundOf(without), *llvm::max_element(work));
}

TimedProblem pp::readPlanProblem(ProgramOp program, const CostModel &costs, bool isSplit, int64_t limit,
                                 llvm::function_ref<PlanOrder(const PlanProblem &)> orderOf) {
  TimedProblem timed = PlanProblemReader(program, costs, isSplit).run();
  PlanProblem &problem = timed.problem;
  problem.limits.assign(problem.ranks, 0);
  std::vector<int64_t> peaks = peaksOf(PlanGraph(problem, /*isReversed=*/false), orderOf(problem));
  for (auto rank : program.getOps<RankOp>())
    problem.limits[rank.getRank()] =
        limit - (static_cast<int64_t>(rank.getArenaBytes().value_or(0)) - peaks[rank.getRank()]);
  return timed;
}
