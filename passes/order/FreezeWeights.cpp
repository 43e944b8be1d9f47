// Takes out of a schedule what it does for weights that `freeze` names, and every backward before the first other one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before, with stages 0 and 2 frozen:            After:
//
//   F(0) F(1) F(2) F(3) B(3) B(2) B(1) B(0)        F(0) F(1) F(2) F(3) B(3) I(2) B(1)
//   move grad(0) ..  move grad(2) ..  U(2)
//
// Nothing upstream of stage 1 trains, so stage 0 only runs forward, and stage 1 makes no gradient of what it receives.
// Stage 2 hands the gradient on, and has none of weights: B is I, and W, U and moves of gradients are nothing.
#include "analysis/Actions.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Clauses.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/Passes.h"
#include "llvm/ADT/SetVector.h"

namespace pp {
#define GEN_PASS_DEF_FREEZEWEIGHTS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class Freezer {
public:
  Freezer(ModuleOp module, ProgramOp program, ArrayAttr freeze)
      : symbols(module), program(program), freeze(freeze), pieces(program), trains(pieces.size()) {}

  LogicalResult run() {
    for (int64_t piece = 0; piece < pieces.size(); ++piece)
      markFrozen(piece);
    first = llvm::find(trains, true) - trains.begin();
    if (first == pieces.size())
      return emitError(clauseLoc(program, "freeze")) << "`freeze` leaves no weight of the model to train";
    for (Operation &op : llvm::make_early_inc_range(program.getBody().front()))
      if (auto together = dyn_cast<TogetherOp>(op))
        thin(together);
      else
        change(&op);
    remark();
    return success();
  }

private:
  SymbolTable symbols;
  ProgramOp program;
  ArrayAttr freeze; ///< parts of names; null: all weights but adapters
  Pieces pieces;
  std::vector<bool> trains;
  int64_t first = 0;                  ///< the first piece that trains
  llvm::SmallDenseSet<Location> said; ///< lines with a remark

  bool isFrozen(StringRef weight) const {
    return llvm::any_of(freeze.getAsRange<StringAttr>(),
                        [&](StringAttr text) { return weight.contains(text.getValue()); });
  }

  void markFrozen(int64_t piece) {
    llvm::SetVector<Attribute> frozen;
    for (auto part : pieces.op(piece).getParts().getAsRange<ArrayAttr>()) {
      auto function = symbols.lookup<func::FuncOp>(cast<StringAttr>(part[0]).getValue());
      for (unsigned i = 0; function && i < function.getNumArguments(); ++i)
        if (auto declared = function.getArgAttrOfType<nn::WeightAttr>(i, nn::kWeightAttr)) {
          std::string name = nn::weightName(declared, function, cast<IntegerAttr>(part[1]).getInt());
          if (freeze ? isFrozen(name) : !function.getArgAttr(i, nn::kAdapterAttr))
            frozen.insert(StringAttr::get(program.getContext(), name));
          else
            trains[piece] = true;
        }
    }
    if (!frozen.empty())
      pieces.op(piece).setFrozenAttr(ArrayAttr::get(program.getContext(), frozen.getArrayRef()));
  }

  /// Erases the op, or makes an I of a B.
  void change(Operation *op) {
    if (auto unit = dyn_cast<UnitOp>(op))
      changeUnit(unit);
    else if (auto attend = dyn_cast<AttendOp>(op))
      changeUnit(attend);
    else if (auto transfer = dyn_cast<TransferOp>(op); transfer && isNothing(transfer.getThing()))
      erase(transfer);
  }

  /// Whoever wrote a move of a gradient that nobody makes learns of it: one remark a line.
  void erase(TransferOp transfer) {
    if (transfer.getThing().getRole() == Role::dact && said.insert(transfer.getLoc()).second)
      emitRemark(transfer.getLoc()) << "nothing trains before " << pieces.describe(first)
                                    << ", so nothing makes this `dact` and the move is left out";
    transfer.erase();
  }

  template <typename Op> void changeUnit(Op op) {
    Phase phase = op.getUnit().getPhase();
    CoordAttr coord = op.getUnit().getCoord();
    int64_t piece = pieces.find(coord);
    if (phase == Phase::F || (piece >= first && trains[piece]))
      return;
    if (piece < first || phase == Phase::W || phase == Phase::U)
      op.erase();
    else if (phase == Phase::B)
      op.setUnitAttr(UnitIdAttr::get(program.getContext(), Phase::I, coord));
  }

  bool isNothing(ThingAttr thing) const {
    int64_t piece = pieces.find(thing.getCoord());
    switch (thing.getRole()) {
    case Role::grad:
    case Role::opt:
      return !trains[piece];
    case Role::dact: // what the first piece would give to those before it
      return piece <= first;
    case Role::dkv:
    case Role::stash:
      return piece < first;
    default:
      return false;
    }
  }

  /// Drops what only served units that are gone: keys for help in their attentions.
  void thin(TogetherOp together) {
    auto hasUnits = [&] { return !together.getOps<UnitOp>().empty(); };
    bool had = hasUnits();
    for (Operation &op : llvm::make_early_inc_range(together.getBody().front()))
      change(&op);
    if (had && !hasUnits())
      for (auto transfer : llvm::make_early_inc_range(together.getOps<TransferOp>()))
        if (transfer.getThing().getRole() == Role::kv)
          transfer.erase();
    if (together.getBody().front().empty())
      together.erase();
  }

  void remark() {
    std::string forward, input;
    for (int64_t piece = 0; piece < pieces.size(); ++piece)
      if (std::string &list = piece < first ? forward : input; !trains[piece] && pieces.op(piece).getFrozenAttr())
        list += (list.empty() ? "" : ", ") + pieces.describe(piece);
    if (!forward.empty())
      emitRemark(program.getLoc()) << "nothing trains before " << pieces.describe(first)
                                   << ": these run forward only: " << forward;
    if (!input.empty())
      emitRemark(program.getLoc()) << "all weights are frozen, so `B` is `I` and `W`, `U` and moves of `grad` are "
                                      "nothing: "
                                   << input;
    if (!freeze)
      remarkSplit();
  }

  /// With adapters of rank r on a linear from K to N features, the work of `W` is that of `I` times r (K + N) / (K N).
  void remarkSplit() {
    program.walk([](UnitOp unit) {
      if (unit.getUnit().getPhase() != Phase::W)
        return WalkResult::advance();
      emitRemark(unit.getLoc()) << "`W` computes gradients of adapters alone, which is little work: a backward split "
                                   "into `I` and `W` keeps memory for `W` and gains next to no time";
      return WalkResult::interrupt();
    });
  }
};

struct FreezeWeights : public pp::impl::FreezeWeightsBase<FreezeWeights> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (auto freeze = program.getTrain().getAs<ArrayAttr>("freeze"); freeze || program.getTrain().contains("lora"))
        if (failed(Freezer(getOperation(), program, freeze).run()))
          return signalPassFailure();
  }
};

} // namespace
