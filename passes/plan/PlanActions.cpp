// Says whether a program's actions can be planned, reads their order, and writes another one in its place.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/plan/PlanProblem.h"
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

int64_t pp::planKindOf(Phase phase) { return phase == Phase::F ? kPlanF : phase == Phase::W ? kPlanW : kPlanI; }

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
