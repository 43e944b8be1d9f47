// Makes one B of an I and the W that follows it on the rank, where no message would leave or arrive between the two.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: unit I(0, 3) on [0]      After: unit B(0, 3) on [0]
//         unit W(0, 3) on [0]
//
// Halves cost memory and time: what W waits for is written by I and read back, and what both need is made again twice.
// Two of them side by side are worth it where the gradient of the activation goes to another rank between them, which
// could not begin before the W otherwise; and where W waits for a share of the gradient that travels. Elsewhere nobody
// sees the difference: the rank would do nothing else in between, and B takes as long as both.
#include "analysis/Actions.h"
#include "analysis/Vocabulary.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_FUSEUNITS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class Fuser {
public:
  explicit Fuser(ProgramOp program) : program(program), pieces(program) {
    program.walk([&](UnitOp op) {
      if (llvm::is_contained({Phase::B, Phase::I}, op.getUnit().getPhase()))
        backwards[op.getUnit().getCoord()] = op.getRanks();
    });
    program.walk([&](AttendOp op) { attended.insert(op.getUnit()); });
    program.walk([&](TransferOp op) {
      if (op.getThing().getRole() == Role::grad)
        travelling.insert(pieces.find(op.getThing().getCoord()));
    });
  }

  void run() {
    std::vector<Operation *> last(program.getRanks());
    for (const Action &action : readActions(program, pieces)) {
      auto weights = dyn_cast<UnitOp>(action.op);
      auto inputs = weights ? dyn_cast_or_null<UnitOp>(last[weights.getRanks().front()]) : UnitOp();
      if (inputs && !attended.contains(inputs.getUnit()) && areHalves(inputs, weights) && meetsNoMessage(inputs)) {
        inputs.setUnitAttr(UnitIdAttr::get(program.getContext(), Phase::B, inputs.getUnit().getCoord()));
        weights.erase();
        continue;
      }
      for (int64_t rank : action.anchors)
        last[rank] = action.op;
    }
  }

private:
  ProgramOp program;
  Pieces pieces;
  llvm::DenseMap<CoordAttr, ArrayRef<int64_t>> backwards; ///< where B or I of a unit runs
  llvm::DenseSet<UnitIdAttr> attended;                    ///< units for which an `attend` names their phase
  llvm::DenseSet<int64_t> travelling;                     ///< pieces whose gradient the schedule moves

  static bool areHalves(UnitOp inputs, UnitOp weights) {
    return inputs.getUnit().getPhase() == Phase::I && weights.getUnit().getPhase() == Phase::W &&
           inputs.getUnit().getCoord() == weights.getUnit().getCoord() && inputs.getRanks() == weights.getRanks() &&
           inputs.getRanks().size() == 1;
  }

  /// The backward of the piece before runs here, too, or nothing there trains; and W adds to a sum that is here.
  bool meetsNoMessage(UnitOp inputs) {
    CoordAttr coord = inputs.getUnit().getCoord();
    int64_t piece = pieces.find(coord);
    if (travelling.contains(piece))
      return false;
    SmallVector<int64_t, 4> readers = llvm::to_vector<4>(piecesBefore(pieces, piece));
    for (int64_t gradient : pieces.skipsFrom(piece, Role::dact))
      readers.push_back(pieces.skip(gradient).readers.front());
    return llvm::all_of(readers, [&](int64_t before) {
      CoordAttr reader = pieces.op(before).getCoord().with(coord.getMicrobatch(), coord.getSlice());
      auto found = backwards.find(reader);
      return !vocabularyShards(pieces, piece) && (found == backwards.end() || found->second == inputs.getRanks());
    });
  }
};

struct FuseUnits : public pp::impl::FuseUnitsBase<FuseUnits> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      Fuser(program).run();
  }
};

} // namespace
