// Checks that the schedule runs every unit of the step exactly once, each backward where its forward ran.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: units as emitted. After: the same, or one error with both places (docs/proofs.md 1).
#include "analysis/Exchange.h"
#include "analysis/Keys.h"
#include "analysis/Vocabulary.h"
#include "passes/Passes.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

namespace pp {
#define GEN_PASS_DEF_VERIFYUNITS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// Where each phase of one (piece, microbatch, slice) runs.
struct Cell {
  UnitOp phases[6];
  UnitOp &operator[](Phase phase) { return phases[static_cast<unsigned>(phase)]; }
};

struct VerifyUnits : public pp::impl::VerifyUnitsBase<VerifyUnits> {
  /// The updates by piece and rank; the rank is -1 unless each rank updates its copy or shard.
  llvm::MapVector<std::pair<int64_t, int64_t>, UnitOp> updates;

  void runOnPrograms() override {
    markAllAnalysesPreserved();
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(verify(program)))
        return signalPassFailure();
  }

  LogicalResult verify(ProgramOp program) {
    Pieces pieces(program);
    int64_t microbatches = program.getMicrobatches(), slices = std::max<int64_t>(program.getSlices(), 1);
    std::vector<Cell> cells(pieces.size() * microbatches * slices);
    auto cell = [&](int64_t piece, int64_t mb, int64_t slice) -> Cell & {
      return cells[(piece * microbatches + mb) * slices + std::max<int64_t>(slice, 0)];
    };
    updates.clear();
    WalkResult walk = program.walk(
        [&](UnitOp op) { return failed(record(op, pieces, cell)) ? WalkResult::interrupt() : WalkResult::advance(); });
    if (walk.wasInterrupted() || (hasVersions(program) && failed(verifyVersions(program, pieces))) ||
        failed(verifyUpdates(program, pieces)) || failed(verifyAttends(program)))
      return failure();
    for (int64_t piece = 0; piece < pieces.size(); ++piece)
      for (int64_t mb = 0; mb < microbatches; ++mb)
        for (int64_t slice = 0; slice < slices; ++slice)
          if (failed(verifyCell(pieces, pieces.op(piece).getCoord().with(mb, program.getSlices() ? slice : -1),
                                cell(piece, mb, slice))))
            return failure();
    return success();
  }

  template <typename CellOf> LogicalResult record(UnitOp op, const Pieces &pieces, CellOf cell) {
    CoordAttr coord = op.getUnit().getCoord();
    int64_t piece = pieces.find(coord);
    Phase phase = op.getUnit().getPhase();
    if (phase == Phase::U)
      return recordUpdate(op, pieces, piece);
    UnitOp &first = cell(piece, coord.getMicrobatch(), coord.getSlice())[phase];
    if (first) {
      auto error = emitError(op.getLoc()) << "`" << op.getUnit().str() << "` runs twice" << withLoops(op);
      error.attachNote(first.getLoc()) << "first here" << withLoops(first);
      return error;
    }
    first = op;
    return success();
  }

  //===-- Updates written by hand -------------------------------------------------------------------------------===//

  LogicalResult recordUpdate(UnitOp op, const Pieces &pieces, int64_t piece) {
    int64_t rank = op.getRanks().front();
    ArrayRef<int64_t> owners = pieces.isSharded(piece) ? pieces.shards(piece) : pieces.owners(piece);
    UnitOp &first = updates[{piece, owners.size() > 1 ? rank : -1}];
    if (first) {
      auto error = emitError(op.getLoc()) << pieces.describe(piece) << " is updated twice" << withLoops(op);
      error.attachNote(first.getLoc()) << "first here" << withLoops(first);
      return error;
    }
    first = op;
    if (owners.empty() || llvm::is_contained(owners, rank))
      return success();
    auto error = emitError(op.getLoc()) << "`" << op.getUnit().str() << "` runs on rank " << rank
                                        << ", but its optimizer state is on "
                                        << PlaceAttr::get(op.getContext(), owners, Layout::full).str() << withLoops(op);
    error.attachNote(pieces.op(piece).getLoc()) << "placed here";
    return error;
  }

  /// No unit that adds to the gradient of a piece stands behind its update in the list of the same rank.
  LogicalResult verifyUpdates(ProgramOp program, const Pieces &pieces) {
    struct Late {
      llvm::SetVector<int64_t> microbatches;
      UnitOp first;
    };
    llvm::MapVector<Operation *, Late> late; // by update, since it was met
    program.walk([&](UnitOp op) {
      Phase phase = op.getUnit().getPhase();
      if (phase == Phase::U)
        late[op];
      if (phase != Phase::B && phase != Phase::W)
        return;
      int64_t piece = pieces.find(op.getUnit().getCoord()), rank = op.getRanks().front();
      for (int64_t key : {rank, int64_t(-1)})
        if (UnitOp update = updates.lookup({piece, key});
            update && late.count(update) && op.getRanks() == update.getRanks()) {
          late[update].microbatches.insert(op.getUnit().getCoord().getMicrobatch());
          late[update].first = late[update].first ? late[update].first : op;
        }
    });
    for (auto &[op, found] : late) {
      if (!found.first)
        continue;
      auto update = cast<UnitOp>(op);
      auto error = emitError(update.getLoc()) << "`" << update.getUnit().str() << "` on rank "
                                              << update.getRanks().front() << " lacks the gradient of ";
      llvm::interleaveComma(found.microbatches, error, [&](int64_t mb) { error << "microbatch " << mb; });
      error << withLoops(update);
      error.attachNote(found.first.getLoc())
          << "`" << found.first.getUnit().str() << "` adds it later, here" << withLoops(found.first);
      return error;
    }
    return success();
  }

  //===-- Attention on other ranks ------------------------------------------------------------------------------===//

  LogicalResult verifyAttends(ProgramOp program) {
    llvm::DenseMap<std::pair<UnitIdAttr, int64_t>, AttendOp> given;
    Pieces pieces(program);
    KeysBefore keys(program, pieces.all());
    llvm::DenseMap<UnitIdAttr, UnitOp> units; // those before the op
    Exchanges exchanges(program);
    WalkResult walk = program.walk([&](Operation *any) {
      if (auto unit = dyn_cast<UnitOp>(any))
        units[unit.getUnit()] = unit;
      auto op = dyn_cast<AttendOp>(any);
      if (!op)
        return WalkResult::advance();
      UnitOp helped;
      if (auto together = dyn_cast<TogetherOp>(op->getParentOp()))
        for (auto unit : together.getOps<UnitOp>())
          if (unit.getUnit() == op.getUnit())
            helped = unit;
      bool isAhead = op->getParentOp() == program.getOperation();
      if (isAhead ? failed(verifyAhead(op, exchanges.ahead(op.getUnit())->op, units, pieces, keys))
                  : failed(verifyAttend(op, helped)))
        return WalkResult::interrupt();
      for (int64_t slice : op.getSlices())
        if (auto [it, isNew] = given.try_emplace({op.getUnit(), slice}, op); !isNew) {
          auto error = emitError(op.getLoc())
                       << "slice " << slice << " of `" << op.getUnit().str() << "` is attended twice" << withLoops(op);
          error.attachNote(it->second.getLoc()) << "first here" << withLoops(it->second);
          return WalkResult::interrupt();
        }
      return WalkResult::advance();
    });
    return failure(walk.wasInterrupted());
  }

  static LogicalResult verifyAttend(AttendOp op, UnitOp helped) {
    std::string unit = "`" + op.getUnit().str() + "`";
    Phase phase = op.getUnit().getPhase();
    if (!helped)
      return emitError(op.getLoc()) << "`attend` belongs in the `together` block of the unit it helps, and " << unit
                                    << " is not in this one" << withLoops(op);
    if (!isCutAtAttentions(phase))
      return emitError(op.getLoc()) << "`attend` helps an `F`, a `B` or an `I`, got " << unit << withLoops(op);
    if (helped.getRanks().front() == static_cast<int64_t>(op.getRank())) {
      auto error = emitError(op.getLoc()) << "rank " << op.getRank() << " cannot help " << unit
                                          << ", which runs there itself" << withLoops(op);
      error.attachNote(helped.getLoc()) << unit << " runs here" << withLoops(helped);
      return error;
    }
    int64_t own = op.getUnit().getCoord().getSlice();
    for (int64_t slice : op.getSlices()) {
      if (slice >= 0 && slice < own)
        continue;
      auto error = emitError(op.getLoc()) << "slice " << slice << " cannot be given away; " << unit << " can give ";
      if (own > 0)
        error << "0 to " << own - 1 << ", its own slice stays";
      else
        error << "none, its own slice stays";
      return error << withLoops(op);
    }
    return success();
  }

  /// Before its unit, on the same rank, of an attention that is a piece of its own.
  static LogicalResult verifyAhead(AttendOp op, UnitOp unit, const llvm::DenseMap<UnitIdAttr, UnitOp> &before,
                                   const Pieces &pieces, const KeysBefore &keys) {
    std::string name = "`" + op.getUnit().str() + "`";
    if (!isCutAtAttentions(op.getUnit().getPhase()))
      return emitError(op.getLoc()) << "`attend` helps an `F`, a `B` or an `I`, got " << name << withLoops(op);
    if (!unit || unit.getRanks().front() != static_cast<int64_t>(op.getRank())) {
      auto error = emitError(op.getLoc()) << "`attend` on another rank belongs in the `together` block of the unit it "
                                             "helps, and "
                                          << name << " does not run on rank " << op.getRank() << withLoops(op);
      if (unit)
        error.attachNote(unit.getLoc()) << name << " runs here, on rank " << unit.getRanks().front() << withLoops(unit);
      return error;
    }
    CoordAttr coord = op.getUnit().getCoord();
    int64_t piece = pieces.find(coord);
    if (!keys.isAlone(piece)) {
      auto error = emitError(op.getLoc())
                   << "`attend` ahead of " << name << " expects a part that is the attention alone, and whose keys the "
                   << "part before makes" << withLoops(op);
      error.attachNote(pieces.op(piece).getLoc()) << pieces.describe(piece) << " is declared here";
      if (keys.hasNoKeys(piece))
        error.attachNote(pieces.op(piece).getLoc())
            << "it has scans or convolutions and no attention: they go on from the slice before, and their states do "
               "not travel between ranks yet, so all slices of a microbatch run on one rank";
      auto program = op->getParentOfType<ProgramOp>();
      if (int64_t devices = program.sizeOf(Axis::context); devices > 1)
        error.attachNote(program.getLoc()) << "over `context = " << devices << "` an attention gets its keys itself, "
                                           << "from all devices: ring attention is not supported there yet";
      return error;
    }
    if (UnitOp early = before.lookup(op.getUnit())) {
      auto error = emitError(op.getLoc()) << "`attend` outside of a `together` stands before its unit" << withLoops(op);
      error.attachNote(early.getLoc()) << name << " runs here" << withLoops(early);
      return error;
    }
    if (UnitOp again = before.lookup(UnitIdAttr::get(op.getContext(), Phase::R, coord)))
      return emitError(op.getLoc()) << "`attend` ahead of " << name << ", whose attention runs again in `"
                                    << again.getUnit().str() << "`" << withLoops(op);
    for (int64_t slice : op.getSlices())
      if (slice < 0 || slice > coord.getSlice())
        return emitError(op.getLoc()) << "slice " << slice << " cannot be attended; " << name << " sees 0 to "
                                      << coord.getSlice() << withLoops(op);
    return success();
  }

  LogicalResult verifyCell(const Pieces &pieces, CoordAttr coord, Cell &cell) {
    PieceOp piece = pieces.op(pieces.find(coord));
    std::string at = "(" + coord.str() + ")";
    UnitOp forward = cell[Phase::F], backward = cell[Phase::B], inputs = cell[Phase::I], weights = cell[Phase::W];
    auto never = [&](StringRef phase, Operation *other, StringRef note) {
      auto error = emitError(piece.getLoc()) << "`" << phase << at << "` never runs";
      if (other)
        error.attachNote(other->getLoc()) << note << withLoops(other);
      return error;
    };
    if (!forward)
      return never("F", backward ? backward : inputs, "its backward runs here");
    if (!backward && !inputs && !weights)
      return never("B", forward, "its `F` runs here");
    if (backward && (inputs || weights)) {
      UnitOp half = inputs ? inputs : weights;
      auto error = emitError(half.getLoc()) << "`" << half.getUnit().str() << "` runs beside `B" << at
                                            << "`, which is both `I` and `W`" << withLoops(half);
      error.attachNote(backward.getLoc()) << "`B` runs here" << withLoops(backward);
      return error;
    }
    if (inputs && !weights)
      return never("W", inputs, "its `I` runs here");
    if (weights && !inputs)
      return never("I", weights, "its `W` runs here");
    for (UnitOp later : {backward, inputs, weights, cell[Phase::R]})
      if (later && later.getRanks() != forward.getRanks()) {
        auto error = emitError(later.getLoc())
                     << "`" << later.getUnit().str() << "` runs on rank " << later.getRanks().front()
                     << ", but its `F` ran on rank " << forward.getRanks().front() << withLoops(later);
        error.attachNote(forward.getLoc()) << "its `F` runs here" << withLoops(forward);
        return error;
      }
    return verifyVersion(forward, {backward, inputs, cell[Phase::R]});
  }

  //===-- Several updates, and older weights --------------------------------------------------------------------===//

  /// A gradient is one of the weights that the forward used.
  static LogicalResult verifyVersion(UnitOp forward, ArrayRef<UnitOp> others) {
    auto program = forward->getParentOfType<ProgramOp>();
    int64_t version = versionOf(program, forward);
    for (UnitOp other : others) {
      int64_t its = other ? versionOf(program, other) : version;
      if (its == version)
        continue;
      auto error = emitError(other.getLoc())
                   << "`" << other.getUnit().str() << "` reads version " << its
                   << " of its weights, but its `F` read version " << version << withLoops(other);
      error.attachNote(forward.getLoc()) << "its `F` runs here" << withLoops(forward);
      return error;
    }
    return success();
  }

  /// Refuses what several versions cannot be combined with yet.
  static LogicalResult verifyVersions(ProgramOp program, const Pieces &pieces) {
    auto unsupported = [](Operation *op, const Twine &what) {
      return emitError(op->getLoc()) << what << " in a schedule with `updates` or `with weight(..)`, which is not "
                                     << "supported yet" << withLoops(op);
    };
    WalkResult walk = program.walk([&](Operation *op) {
      auto transfer = dyn_cast<TransferOp>(op);
      if (transfer && llvm::is_contained({Role::weight, Role::grad, Role::opt}, transfer.getThing().getRole()))
        return WalkResult(unsupported(op, "`move " + transfer.getThing().str() + "`"));
      if (auto unit = dyn_cast<UnitOp>(op); unit && unit.getUnit().getPhase() == Phase::U)
        return WalkResult(unsupported(op, "`" + unit.getUnit().str() + "` is written by hand"));
      return isa<AttendOp>(op) ? WalkResult(unsupported(op, "`attend` stands")) : WalkResult::advance();
    });
    if (walk.wasInterrupted())
      return failure();
    for (int64_t piece = 0; piece < pieces.size(); ++piece)
      if (pieces.isSharded(piece) || pieces.isReplicated(piece) || vocabularyShards(pieces, piece) ||
          (!pieces.homes(piece).empty() && pieces.homes(piece) != pieces.owners(piece)))
        return unsupported(pieces.op(piece), pieces.describe(piece) + " is not whole on one rank, with its optimizer,");
    auto precision = program.getTrain().getAs<StringAttr>("precision");
    if (precision && precision.getValue() == "f16")
      return unsupported(program, "precision f16, which may skip an update, stands");
    return success();
  }
};

} // namespace
