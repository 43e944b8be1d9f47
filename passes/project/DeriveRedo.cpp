// Derives the program of a step that finds the update before it wrong: undo, update once more, forwards once more.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before, on a rank:  norm  F F F  judge | F B F B ..  U                      what is before the judges is the head
// After, in @t_redo:  norm  F F F  judge | drain | redo .. | norm  F F F  judge | F B F B ..  U
//
// The drain completes what the head has posted and not completed, on every rank, for the ends of each of its messages
// stand in the heads of both ranks. `redo` updates from the copies that U made, by the norm. What stands behind U at
// the end of the step (new values of tied weights) stands behind it here. Slots are those of the training program, in
// its places; what the drain, the redo and the forwards once more need beside them lies behind all others.
//
// This whole program is proved; the drain, the redo and the second head are what is lowered of it: the rest is the
// training program itself.
#include "analysis/BodyTable.h"
#include "dialect/pipeline/BodyGroups.h"
#include "mlir/IR/IRMapping.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_DERIVEREDO
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class RedoWriter {
public:
  RedoWriter(RankOp rank, const BodyTable &bodies)
      : rank(rank), bodies(bodies), symbols(rank->getParentOfType<ModuleOp>()), builder(rank.getContext()),
        bytes(static_cast<int64_t>(rank.getArenaBytes().value_or(0))) {}

  /// The bytes that the arena then has.
  FailureOr<int64_t> run() {
    std::vector<Operation *> *part = &head;
    for (Operation &op : rank.getBody().front()) {
      auto launch = dyn_cast<LaunchOp>(op);
      part->push_back(&op);
      if (part == &head && launch && launch.getJudges())
        part = &rest;
    }
    if (part != &rest)
      return emitError(rank.getLoc()) << "`barrier = false`: rank " << rank.getRank() << " updates no weights";
    builder.setInsertionPointAfter(head.back());
    drain();
    for (Operation *op : rest)
      if (failed(redo(op)))
        return failure();
    IRMapping again;
    for (Operation *op : head)
      if (!isa<SlotOp>(op))
        builder.clone(*op, again);
    for (CompleteOp complete : left)
      complete.getRequestMutable().assign(again.lookup(complete.getRequest()));
    return bytes;
  }

private:
  RankOp rank;
  const BodyTable &bodies;
  SymbolTable symbols;
  OpBuilder builder;
  int64_t bytes;
  std::vector<Operation *> head, rest;
  SmallVector<CompleteOp> left; ///< of what the head posts, behind it
  IRMapping mapping;            ///< in what is cloned of the rest

  bool isUpdate(LaunchOp launch) const {
    BodyAttr body = bodies.of(launch);
    return body && body.getPhase() == Phase::U && body.isUpdate();
  }

  void drain() {
    llvm::DenseSet<Value> posted;
    for (Operation *op : head) {
      if (auto post = dyn_cast<PostOp>(op))
        posted.insert(post.getRequest());
      else if (auto complete = dyn_cast<CompleteOp>(op))
        posted.erase(complete.getRequest());
    }
    for (Operation *op : rest)
      if (auto complete = dyn_cast<CompleteOp>(op); complete && posted.contains(complete.getRequest()))
        left.push_back(complete);
    for (CompleteOp complete : left)
      builder.create<CompleteOp>(complete.getLoc(), complete.getRequest());
  }

  /// Places the slot behind all others: between the others there may be no room, because some of them live on.
  Value addSlot(SlotOp like) {
    auto slot = cast<SlotOp>(builder.clone(*like));
    slot.removePlacesAttr();
    slot.setOffsetAttr(builder.getI64IntegerAttr(llvm::alignTo(bytes, 64)));
    bytes = static_cast<int64_t>(*slot.getOffset()) + slotBytes(slot.getSlot());
    return slot;
  }

  /// Slots that the step begins with are there; others of what is done over are made here.
  void findSlots(Operation *op) {
    for (Value value : op->getOperands())
      if (auto slot = value.getDefiningOp<SlotOp>(); slot && !slot.getBinding() && !mapping.contains(value))
        mapping.map(value, addSlot(slot));
  }

  /// Repeats an op of the rest of the step if it is an update, sends new values of tied weights, or is another message
  /// with weights.
  LogicalResult redo(Operation *op) {
    if (auto launch = dyn_cast<LaunchOp>(op)) {
      BodyAttr body = bodies.of(launch);
      if (!isUpdate(launch) && (!body || body.getVariant() != BodyVariant::tie_fresh))
        return success();
    } else if (auto post = dyn_cast<PostOp>(op)) {
      if (post.getThing().getRole() != Role::weight)
        return success();
    } else if (auto complete = dyn_cast<CompleteOp>(op); !complete || !mapping.contains(complete.getRequest())) {
      return success();
    }
    if (auto launch = dyn_cast<LaunchOp>(op); launch && isUpdate(launch))
      return redoUpdate(launch);
    findSlots(op);
    builder.clone(*op, mapping);
    return success();
  }

  /// Slots of the update by what they hold, and that of the norm.
  LogicalResult redoUpdate(LaunchOp launch) {
    auto update = symbols.lookup<func::FuncOp>(launch.getCallee());
    BodyAttr identity = bodies.of(launch);
    auto name = BodyAttr::get(identity.getPieces(), Phase::U, BodyVariant::redo, identity.getSlice(), identity.getCut(),
                              identity.getSharer(), identity.getShard());
    auto body = symbols.lookup<func::FuncOp>(name.label());
    auto groups = update && body ? BodyGroups::get(update) : FailureOr<BodyGroups>();
    auto wanted = body ? BodyGroups::get(body) : FailureOr<BodyGroups>();
    if (failed(groups) || failed(wanted))
      return launch.emitError() << "`" << launch.getUnit().str() << "` has no body that does it over";
    std::map<GroupKind, Value> slots = {{GroupKind::norm, cast<LaunchOp>(head.back()).getInputs().back()}};
    for (auto [group, slot] : llvm::zip(groups->inputs, launch.getInputs()))
      if (group.kind() == GroupKind::fresh) {
        if (!mapping.contains(slot))
          return launch.emitError() << "`" << launch.getUnit().str() << "` reads tied weights that nobody has made";
        slots[group.kind()] = mapping.lookup(slot);
      } else {
        slots[group.kind()] = slot;
      }
    slots[GroupKind::undo] = launch.getResults().back();
    SmallVector<Value> inputs;
    for (const BodyGroups::Group &group : wanted->inputs)
      inputs.push_back(slots.at(group.kind()));
    Value scratch;
    if (auto needs = body->getAttrOfType<IntegerAttr>(kScratchAttr); needs && needs.getInt() > 0) {
      auto type = RankedTensorType::get({needs.getInt()}, builder.getI8Type());
      auto slot = SlotType::get(builder.getContext(), TupleType::get(builder.getContext(), {type}));
      auto made = builder.create<SlotOp>(launch.getLoc(), slot, Role::temporary, "scratch", IntegerAttr(),
                                         DenseI64ArrayAttr(), BindingAttr(), /*host=*/false);
      made.setOffsetAttr(builder.getI64IntegerAttr(llvm::alignTo(bytes, 64)));
      bytes = static_cast<int64_t>(*made.getOffset()) + slotBytes(made.getSlot());
      scratch = made;
    }
    auto handed = body->getAttrOfType<DenseI64ArrayAttr>(kHandedAttr);
    builder.create<LaunchOp>(launch.getLoc(), body.getSymName(), launch.getUnit(), inputs, ValueRange(), scratch,
                             handed, IntegerAttr(), IntegerAttr(), FloatAttr(), DenseI64ArrayAttr());
    return success();
  }
};

struct DeriveRedo : public pp::impl::DeriveRedoBase<DeriveRedo> {
  void runOnPrograms() override {
    ProgramOp training = ProgramOp::trainingOf(getOperation()), forward = ProgramOp::forwardOf(getOperation());
    if (!training || ProgramOp::redoOf(getOperation()) || !judges(training))
      return;
    OpBuilder builder(training);
    builder.setInsertionPointAfter(training);
    auto redo = cast<ProgramOp>(builder.clone(*training));
    redo.setSymName((training.getSymName() + "_redo").str());
    redo.setRedo(true);
    BodyTable bodies(getOperation());
    for (auto [number, rank] : llvm::enumerate(redo.getOps<RankOp>())) {
      FailureOr<int64_t> bytes = RedoWriter(rank, bodies).run();
      if (failed(bytes))
        return signalPassFailure();
      for (ProgramOp program : {training, redo, forward})
        if (program)
          (*std::next(program.getOps<RankOp>().begin(), number)).setArenaBytesAttr(builder.getI64IntegerAttr(*bytes));
    }
  }

  static bool judges(ProgramOp program) {
    return llvm::any_of(program.getOps<RankOp>(), [](RankOp rank) {
      return llvm::any_of(rank.getOps<LaunchOp>(), [](LaunchOp launch) { return launch.getJudges(); });
    });
  }
};

} // namespace
