// Writes a second program of the same actions: the units F with what they read, for evaluation without training.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: F(0, 0) F(1, 0) move weight(0) .. B(1, 0) move grad(1) .. U(1)     After: the same, and beside it
//                                                                            F(0, 0) F(1, 0) move weight(0) ..
//
// The actions that stay keep their order. So the second order is a part of the first, and what was shown of the first
// holds for it. A move stays if an F reads its thing at the move's target, or if another move that stays takes the
// thing on from there. No weight changes, so all copies of a thing are alike: if several come before a reader, the last
// one is enough. The loss of a head that is cut by the vocabulary reads the statistics of all shards, so F does not
// make it. The unit that makes it stays, as an I with nothing but the loss.
#include "analysis/Vocabulary.h"
#include "passes/Passes.h"
#include "passes/derive/DeriveTasks.h"
#include "llvm/ADT/SmallSet.h"

namespace pp {
#define GEN_PASS_DEF_DERIVEFORWARD
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class ForwardWriter {
public:
  ForwardWriter(ModuleOp module, ProgramOp training) : module(module), training(training), pieces(training) {}

  ProgramOp write() {
    training.walk([&](TransferOp move) { moved.insert(move.getThing().getRole()); });
    for (Operation &op : llvm::reverse(training.getBody().front()))
      choose(&op);
    OpBuilder builder(training->getContext());
    builder.setInsertionPointAfter(training);
    auto forward = cast<ProgramOp>(builder.cloneWithoutRegions(*training));
    forward.setSymName((training.getSymName() + "_forward").str());
    forward.setForward(true);
    forward.removeUpdatesAttr(); // all units read the weights that are there
    builder.setInsertionPointToEnd(&forward.getBody().emplaceBlock());
    for (Operation &op : training.getBody().front())
      copy(op, builder);
    return forward;
  }

private:
  using Place = std::pair<Attribute, int64_t>; ///< a thing and a rank

  ModuleOp module;
  ProgramOp training;
  Pieces pieces;
  llvm::DenseSet<Operation *> kept; ///< units and transfers
  llvm::DenseSet<Place> wanted;     ///< what is read from here on, of roles that the schedule moves
  llvm::SmallSet<Role, 8> moved;    ///< by the schedule

  //===-- Choosing, from the end --------------------------------------------------------------------------------===//

  void choose(Operation *op) {
    if (auto transfer = dyn_cast<TransferOp>(op))
      chooseMoves(transfer);
    auto together = dyn_cast<TogetherOp>(op);
    if (!together)
      return chooseUnit(op);
    chooseMoves(llvm::to_vector(together.getOps<TransferOp>())); // which go when its units have run
    for (Operation &inner : together.getBody().front())
      chooseUnit(&inner);
  }

  void chooseUnit(Operation *op) {
    if (auto unit = dyn_cast<UnitOp>(op); unit && stays(unit)) {
      kept.insert(unit);
      for (int64_t rank : unit.getRanks())
        want(unit.getUnit().getCoord(), rank);
    } else if (auto attend = dyn_cast<AttendOp>(op); attend && attend.getUnit().getPhase() == Phase::F) {
      kept.insert(attend);
      for (int64_t slice : attend.getSlices())
        wantKeys(attend.getUnit().getCoord(), slice, attend.getRank());
    }
  }

  bool stays(UnitOp unit) {
    Phase phase = unit.getUnit().getPhase();
    return phase == Phase::F ||
           ((phase == Phase::B || phase == Phase::I) && makesLoss(pieces.find(unit.getUnit().getCoord())));
  }

  /// Whether this piece is the shard of a head that gives the loss to the trainer.
  bool makesLoss(int64_t piece) {
    if (vocabularyShards(pieces, piece) == 0)
      return false;
    auto last = cast<ArrayAttr>(pieces.op(piece).getParts().getValue().back());
    auto part = module.lookupSymbol<func::FuncOp>(cast<StringAttr>(last[0]).getValue());
    return part && part.getNumResults() > 0 && !part.getOps<nn::Loss>().empty();
  }

  void want(CoordAttr unit, int64_t rank) {
    int64_t piece = pieces.find(unit);
    want(Role::weight, pieces.op(piece).getCoord(), rank);
    for (int64_t before : piecesBefore(pieces, piece))
      want(Role::act, pieces.op(before).getCoord().with(unit.getMicrobatch(), unit.getSlice()), rank);
    for (int64_t slice = 0; moved.contains(Role::kv) && slice <= unit.getSlice(); ++slice)
      wantKeys(unit, slice, rank);
  }
  void wantKeys(CoordAttr unit, int64_t slice, int64_t rank) {
    want(Role::kv, unit.with(unit.getMicrobatch(), slice), rank);
  }
  void want(Role role, CoordAttr coord, int64_t rank) {
    if (moved.contains(role))
      wanted.insert({ThingAttr::get(coord.getContext(), role, coord), rank});
  }

  /// All of one group: all reads before all writes.
  void chooseMoves(ArrayRef<TransferOp> moves) {
    SmallVector<TransferOp> chosen;
    for (TransferOp move : moves)
      if (llvm::any_of(targetsOf(move), [&](int64_t to) { return wanted.contains({move.getThing(), to}); }))
        chosen.push_back(move);
    for (TransferOp move : chosen) {
      kept.insert(move);
      for (int64_t to : targetsOf(move))
        wanted.erase({move.getThing(), to});
    }
    for (TransferOp move : chosen)
      if (int64_t from = sourceOf(move); from >= 0)
        wanted.insert({move.getThing(), from});
  }

  /// The rank that sends a copy of its own; -1 where shards are gathered.
  static int64_t sourceOf(TransferOp move) {
    std::optional<PlaceAttr> from = move.getFrom();
    return from && from->getLayout() == Layout::full ? from->getRanks().front() : -1;
  }
  static SmallVector<int64_t> targetsOf(TransferOp move) {
    SmallVector<int64_t> ranks(move.getTo().getRanks());
    llvm::erase(ranks, sourceOf(move));
    return ranks;
  }

  //===-- Copying -----------------------------------------------------------------------------------------------===//

  void copy(Operation &op, OpBuilder &builder) {
    if (isa<PieceOp>(op) || kept.contains(&op))
      copyOne(op, builder);
    auto together = dyn_cast<TogetherOp>(op);
    if (!together || llvm::none_of(together.getBody().front(), [&](Operation &one) { return kept.contains(&one); }))
      return;
    auto made = cast<TogetherOp>(builder.cloneWithoutRegions(op));
    OpBuilder inside = OpBuilder::atBlockEnd(&made.getBody().emplaceBlock());
    for (Operation &one : together.getBody().front())
      if (kept.contains(&one))
        copyOne(one, inside);
  }

  static void copyOne(Operation &op, OpBuilder &builder) {
    auto unit = dyn_cast<UnitOp>(builder.clone(op));
    if (!unit)
      return;
    unit.removeVersionAttr();
    if (unit.getUnit().getPhase() == Phase::B)
      unit.setUnitAttr(UnitIdAttr::get(op.getContext(), Phase::I, unit.getUnit().getCoord()));
  }
};

struct DeriveForward : public pp::impl::DeriveForwardBase<DeriveForward> {
  void runOnPrograms() override {
    ProgramOp training = ProgramOp::trainingOf(getOperation());
    if (training && !ProgramOp::forwardOf(getOperation()) &&
        failed(deriveTasks(getOperation(), ForwardWriter(getOperation(), training).write())))
      signalPassFailure();
  }
};

} // namespace
