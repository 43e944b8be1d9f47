// Proves that the ranks together launch every unit of the step exactly once.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: rank programs. After: the same, or one error with both places (docs/proofs.md 1). verify-units asks the same
// of what the schedule emitted; this asks it of what will run. R may run as often as it likes; that each rank holds
// what its units read is prove-values' matter. A program that does an update over must be the step but for what it does
// over, for the rest of it is not lowered a second time.
#include "analysis/Actions.h"
#include "analysis/BodyTable.h"
#include "analysis/Proof.h"
#include "analysis/lives/Redo.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_PROVEUNITS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// The launches of one (piece, microbatch, slice), by phase.
struct LaunchesOfUnit {
  LaunchOp phases[4];
  LaunchOp &operator[](Phase phase) { return phases[static_cast<unsigned>(phase)]; }
};

class Units {
public:
  Units(ProgramOp program, const BodyTable &bodies)
      : program(program), bodies(bodies), pieces(program), slices(std::max<int64_t>(program.getSlices(), 1)),
        cells(pieces.size() * program.getMicrobatches() * slices), updates(pieces.size()) {
    for (int64_t piece = 0; piece < pieces.size(); ++piece)
      updates[piece].resize(std::max<size_t>({1, pieces.shards(piece).size(), pieces.owners(piece).size()}) *
                            program.countUpdates());
  }

  LogicalResult prove() {
    if (failed(proveRanks()))
      return failure();
    for (auto rank : program.getOps<RankOp>()) {
      bool counts = !program.getRedo(); // else what is before the first judge runs once more
      for (auto launch : rank.getOps<LaunchOp>()) {
        if (counts && failed(record(launch)))
          return failure();
        counts |= launch.getJudges();
      }
    }
    for (int64_t piece = 0; piece < pieces.size(); ++piece) {
      for (auto [shard, update] : llvm::enumerate(updates[piece]))
        if (pieces.trains(piece) && !update)
          return reportUpdate(piece, shard);
      for (int64_t mb = 0; mb < static_cast<int64_t>(program.getMicrobatches()); ++mb)
        for (int64_t slice = 0; slice < slices; ++slice)
          if (failed(proveCell(piece, mb, slice)))
            return failure();
    }
    int64_t updated = llvm::count_if(updates, [](auto &shards) { return static_cast<bool>(shards.front()); });
    recordProof(program, "units", {{"units", counted}, {"updates", updated}});
    return success();
  }

private:
  /// No task updates these weights: of several updates, of copies or of shards the one of this number.
  LogicalResult reportUpdate(int64_t piece, int64_t number) const {
    auto error = emitError(pieces.op(piece).getLoc());
    if (ProgramOp(program).countUpdates() > 1)
      error << "no rank runs update " << number << " of ";
    else if (pieces.isReplicated(piece))
      error << "rank " << pieces.owners(piece)[number] << " does not update ";
    else if (pieces.isSharded(piece))
      error << "no rank updates shard " << number << " of ";
    else
      error << "no rank updates ";
    return error << "the weights of " << pieces.describe(piece);
  }

  ProgramOp program;
  const BodyTable &bodies;
  Pieces pieces;
  int64_t slices;
  std::vector<LaunchesOfUnit> cells;
  std::vector<SmallVector<LaunchOp, 1>> updates;                  ///< by piece, then by shard or owner
  llvm::DenseMap<std::pair<UnitIdAttr, int64_t>, LaunchOp> steps; ///< of units that are cut
  int64_t counted = 0;                                            ///< units other than U and R

  /// The programs are those of ranks 0 to n - 1, in this order.
  LogicalResult proveRanks() {
    int64_t next = 0, ranks = static_cast<int64_t>(program.getRanks());
    for (auto rank : program.getOps<RankOp>())
      if (static_cast<int64_t>(rank.getRank()) != next++)
        return emitError(rank.getLoc()) << "expected the program of rank " << next - 1 << ", got that of rank "
                                        << rank.getRank();
    if (next == ranks)
      return success();
    return emitError(program.getLoc()) << "has programs of " << next << " ranks; this schedule has " << ranks;
  }

  static int64_t rankOf(LaunchOp launch) { return launch->getParentOfType<RankOp>().getRank(); }

  LaunchesOfUnit &cell(int64_t piece, int64_t mb, int64_t slice) {
    return cells[(piece * program.getMicrobatches() + mb) * slices + std::max<int64_t>(slice, 0)];
  }

  LogicalResult record(LaunchOp launch) {
    CoordAttr coord = launch.getUnit().getCoord();
    Phase phase = launch.getUnit().getPhase();
    int64_t piece = pieces.find(coord);
    if (piece < 0)
      return emitError(launch.getLoc()) << "`" << launch.getUnit().str()
                                        << "` names a piece that this schedule does not have" << withLoops(launch);
    if (phase == Phase::R)
      return success();
    if (phase == Phase::U)
      return recordUpdate(piece, launch);
    if (failed(proveRange("microbatch", "es", coord.getMicrobatch(), program.getMicrobatches(), launch)) ||
        (program.getSlices() > 0 && failed(proveRange("slice", "s", coord.getSlice(), slices, launch))))
      return failure();
    BodyAttr body = bodies.of(launch);
    if (isPart(body)) // prove-values counts the keys of the parts that are merged
      return success();
    if (body && body.isStep()) {
      LaunchOp &first = steps[{launch.getUnit(), body.getCut().getNumber()}];
      if (first || !body.beginsUnit())
        return recordOnce(first, launch);
      first = launch;
    }
    ++counted;
    return recordOnce(cell(piece, coord.getMicrobatch(), coord.getSlice())[phase], launch);
  }

  /// The update itself, of the piece or of a shard; what is done before and after it may run more often.
  LogicalResult recordUpdate(int64_t piece, LaunchOp launch) {
    BodyAttr body = bodies.of(launch);
    size_t shard = 0;
    if (body && body.getShard() >= 0)
      shard = body.getShard();
    else if (program.countUpdates() > 1)
      shard = launch.getUnit().getCoord().getMicrobatch();
    else if (pieces.isReplicated(piece))
      shard = llvm::find(pieces.owners(piece), rankOf(launch)) - pieces.owners(piece).begin();
    SmallVector<LaunchOp, 1> &seen = updates[piece];
    bool isUpdate = !body || body.isUpdate();
    return isUpdate && shard < seen.size() ? recordOnce(seen[shard], launch) : success();
  }

  static LogicalResult proveRange(StringRef what, StringRef plural, int64_t number, int64_t count, LaunchOp launch) {
    if (number >= 0 && number < count)
      return success();
    return emitError(launch.getLoc()) << "rank " << rankOf(launch) << " runs `" << launch.getUnit().str() << "`, but "
                                      << what << " " << number << " does not exist; this schedule has " << count << " "
                                      << what << plural << ", 0 to " << count - 1 << withLoops(launch);
  }

  static LogicalResult recordOnce(LaunchOp &first, LaunchOp launch) {
    if (!first) {
      first = launch;
      return success();
    }
    auto error = emitError(launch.getLoc())
                 << "`" << launch.getUnit().str() << "` runs twice, on rank " << rankOf(launch);
    if (rankOf(first) != rankOf(launch))
      error << " and before that on rank " << rankOf(first);
    error << withLoops(launch);
    error.attachNote(first.getLoc()) << "first here" << withLoops(first);
    return failure();
  }

  /// A unit, its backward and what makes its stash again read one and the same version of the weights.
  LogicalResult proveVersion(LaunchOp forward, LaunchOp other) {
    int64_t version = versionOf(program, forward);
    int64_t its = versionOf(program, other);
    if (its == version)
      return success();
    auto error = emitError(other.getLoc())
                 << "`" << other.getUnit().str() << "` on rank " << rankOf(other) << " reads version " << its
                 << " of its weights, but its `F` read version " << version << withLoops(other);
    error.attachNote(forward.getLoc()) << "`F` runs here, on rank " << rankOf(forward) << withLoops(forward);
    return failure();
  }

  LogicalResult proveCell(int64_t piece, int64_t mb, int64_t slice) {
    LaunchesOfUnit &launches = cell(piece, mb, slice);
    LaunchOp forward = launches[Phase::F], backward = launches[Phase::B], inputs = launches[Phase::I],
             weights = launches[Phase::W];
    CoordAttr coord = pieces.op(piece).getCoord().with(mb, program.getSlices() ? slice : -1);
    auto never = [&](StringRef phase, LaunchOp other) {
      auto error = emitError(pieces.op(piece).getLoc()) << "no rank runs `" << phase << "(" << coord.str() << ")`";
      if (other)
        error.attachNote(other.getLoc()) << "`" << other.getUnit().str() << "` runs here, on rank " << rankOf(other)
                                         << withLoops(other);
      return failure();
    };
    if (!forward)
      return never("F", backward ? backward : inputs);
    for (LaunchOp launch : {forward, backward, inputs})
      if (launch && failed(proveSteps(launch)))
        return failure();
    for (LaunchOp launch : {backward, inputs})
      if (launch && failed(proveVersion(forward, launch)))
        return failure();
    if (backward && (inputs || weights))
      return proveOneBackward(backward, inputs ? inputs : weights);
    if (!backward && !inputs && pieces.hasBackward(piece))
      return never(weights ? "I" : "B", weights ? weights : forward);
    if (inputs && !weights && pieces.trains(piece))
      return never("W", inputs);
    return success();
  }

  /// All steps of a unit that is cut at its attentions, on one rank.
  LogicalResult proveSteps(LaunchOp first) {
    BodyAttr body = bodies.of(first);
    if (!body || !body.isStep())
      return success();
    CutAttr cut = body.getCut();
    for (int64_t step = 1; step < cut.getSteps(); ++step) {
      LaunchOp launch = steps.lookup({first.getUnit(), step});
      if (launch && rankOf(launch) == rankOf(first) && bodies.of(launch).getCut().getKeys() == cut.getKeys())
        continue;
      auto error = emitError(first.getLoc())
                   << "`" << first.getUnit().str() << "` on rank " << rankOf(first) << " runs in " << cut.getSteps()
                   << " steps, but step " << step << " does not run there" << withLoops(first);
      if (launch)
        error.attachNote(launch.getLoc())
            << "`@" << launch.getCallee() << "` runs here, on rank " << rankOf(launch) << withLoops(launch);
      return failure();
    }
    return success();
  }

  static LogicalResult proveOneBackward(LaunchOp backward, LaunchOp half) {
    auto error = emitError(half.getLoc())
                 << "`" << half.getUnit().str() << "` runs beside `" << backward.getUnit().str()
                 << "`, which is both `I` and `W`" << withLoops(half);
    error.attachNote(backward.getLoc()) << "`B` runs here, on rank " << rankOf(backward) << withLoops(backward);
    return failure();
  }
};

struct ProveUnits : public pp::impl::ProveUnitsBase<ProveUnits> {
  void runOnPrograms() override {
    markAllAnalysesPreserved();
    bool proved = true; // each program has its own first error
    for (auto program : getOperation().getOps<ProgramOp>())
      proved &= succeeded(Units(program, getAnalysis<BodyTable>()).prove());
    if (!proved || failed(verifyRedo(getOperation())))
      signalPassFailure();
  }
};

} // namespace
