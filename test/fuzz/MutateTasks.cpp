// Mutations of launches and memory; names say what is done, the comment which real mistake it stands for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/BodyTable.h"
#include "dialect/pipeline/BodyGroups.h"
#include "test/fuzz/Mutant.h"
#include "llvm/ADT/STLExtras.h"
#include <map>

using namespace mlir;
using namespace pp::pipeline;

namespace pp::fuzz {
namespace {

class TaskMutant : public Mutant {
public:
  using Mutant::Mutant;

  //===-- Launches ----------------------------------------------------------------------------------------------===//

  bool dropLaunch() {
    return drop(drawLaunch([](LaunchOp) { return true; }));
  }
  bool dropZero() {
    BodyTable bodies(module);
    return drop(drawLaunch([&](LaunchOp op) { return bodies.of(op).getVariant() == BodyVariant::zero; }));
  }

  bool repeatLaunch() {
    LaunchOp launch = drawLaunch([](LaunchOp) { return true; });
    if (!launch)
      return false;
    Operation *again = launch->clone();
    launch->getBlock()->getOperations().insertAfter(launch->getIterator(), again);
    return dice.oneIn(2) || moveLater(again);
  }

  bool delayLaunch() {
    return moveLater(drawLaunch([](LaunchOp) { return true; }));
  }
  bool hastenLaunch() {
    return moveEarlier(drawLaunch([](LaunchOp) { return true; }));
  }
  /// Moves an update before its last gradients.
  bool hastenUpdate() {
    BodyTable bodies(module);
    return moveEarlier(drawLaunch([&](LaunchOp op) { return bodies.of(op).isUpdate(); }));
  }

  /// The weight pass of a unit runs before the input pass that feeds it, the backward before its forward.
  bool swapPhases() {
    LaunchOp later = drawLaunch([](LaunchOp op) { return op.getUnit().getPhase() != Phase::U; });
    if (!later)
      return false;
    llvm::SmallVector<LaunchOp> others;
    for (auto launch : rankOf(later).getOps<LaunchOp>())
      if (launch != later && launch.getUnit().getCoord() == later.getUnit().getCoord())
        others.push_back(launch);
    if (others.empty())
      return false;
    exchange(later, dice.pick(others));
    return true;
  }

  /// Another microbatch's stash, another version's weights: a slot of the same type.
  bool wrongInput() {
    LaunchOp launch = drawLaunch([](LaunchOp op) { return !op.getInputs().empty(); });
    return launch && replaceSlot(launch, unsigned(dice.below(int64_t(launch.getInputs().size()))));
  }

  bool wrongResult() {
    LaunchOp launch = drawLaunch([](LaunchOp op) { return !op.getResults().empty(); });
    return launch && replaceSlot(launch, unsigned(launch.getInputs().size() +
                                                  size_t(dice.below(int64_t(launch.getResults().size())))));
  }

  /// The inputs of two units of one kind are exchanged: microbatches mixed up.
  bool exchangeInputs() {
    LaunchOp a = drawLaunch([](LaunchOp op) { return !op.getInputs().empty(); });
    if (!a)
      return false;
    LaunchOp b = drawLaunch(
        [&](LaunchOp op) { return op != a && op->getBlock() == a->getBlock() && op.getCallee() == a.getCallee(); });
    if (!b)
      return false;
    unsigned i = unsigned(dice.below(int64_t(a.getInputs().size())));
    mlir::Value mine = a->getOperand(i), theirs = b->getOperand(i);
    a->setOperand(i, theirs);
    b->setOperand(i, mine);
    return mine != theirs;
  }

  /// A later contribution overwrites the sum: the body for the first one is used.
  bool firstForLater() {
    return changeCallee([](BodyAttr body) {
      if (body.getVariant() == BodyVariant::norm)
        return withVariant(body, BodyVariant::norm_first);
      bool adds = body.getPhase() == Phase::B || body.getPhase() == Phase::W;
      return adds && body.getVariant() == BodyVariant::plain ? withVariant(body, BodyVariant::first) : BodyAttr();
    });
  }
  /// The first contribution is added to what nobody has cleared.
  bool laterForFirst() {
    return changeCallee([](BodyAttr body) {
      if (body.getVariant() == BodyVariant::norm_first)
        return withVariant(body, BodyVariant::norm);
      return body.getVariant() == BodyVariant::first ? withVariant(body, BodyVariant::plain) : BodyAttr();
    });
  }

  /// A helper attends a slice too many or too few, or another one.
  bool otherKeys() {
    return changeCallee(
        [&](BodyAttr body) -> BodyAttr {
          auto isPart = [](BodyAttr body) { return body.getCut() && body.getCut().getKind() == CutKind::part; };
          if (!isPart(body))
            return {};
          llvm::SmallVector<BodyAttr> others;
          for (auto function : module.getOps<func::FuncOp>()) {
            BodyAttr other = identityOf(function);
            bool alike = other && other != body && isPart(other) && other.getPieces() == body.getPieces() &&
                         other.getPhase() == body.getPhase() && other.getSlice() == body.getSlice() &&
                         other.getCut().getNumber() == body.getCut().getNumber();
            if (alike)
              others.push_back(other);
          }
          return others.empty() ? BodyAttr() : dice.pick(others);
        },
        /*spare=*/true);
  }

  /// A step merges one part of its attention twice, another not at all.
  bool samePartTwice() {
    auto isPart = [](mlir::Value slot) { return slot.getDefiningOp<SlotOp>().getRole() == Role::part; };
    LaunchOp launch = drawLaunch([&](LaunchOp op) { return llvm::count_if(op.getInputs(), isPart) > 1; });
    if (!launch)
      return false;
    llvm::SmallVector<unsigned> parts;
    for (auto [i, slot] : llvm::enumerate(launch.getInputs()))
      if (isPart(slot))
        parts.push_back(unsigned(i));
    unsigned a = dice.pick(parts), b = dice.pick(parts);
    mlir::Value slot = launch.getInputs()[b];
    if (a == b || slot.getType() != launch.getInputs()[a].getType())
      return false;
    launch->setOperand(a, slot);
    return true;
  }

  //===-- Any operation -----------------------------------------------------------------------------------------===//

  bool swapNeighbours() {
    Operation *op = drawOp();
    if (!op || !op->getNextNode())
      return false;
    exchange(op, op->getNextNode());
    return true;
  }

  bool swapAny() {
    Operation *a = drawOp();
    if (!a)
      return false;
    llvm::SmallVector<Operation *> ops = opsOf(rankOf(a));
    for (int attempt = 0; attempt < 8; ++attempt) {
      Operation *b = dice.pick(ops);
      exchange(a, b);
      if (a != b && isDefined())
        return true;
      exchange(a, b);
    }
    return false;
  }

  //===-- Memory ------------------------------------------------------------------------------------------------===//

  /// A slot lies where another one does.
  bool overlapSlots() {
    SlotOp slot = drawSlot(), other = drawSlot();
    if (!slot || rankOf(slot) != rankOf(other) || slot == other)
      return false;
    llvm::SmallVector<int64_t> offsets = other.tensorOffsets();
    return place(slot, offsets[size_t(dice.below(int64_t(offsets.size())))]);
  }
  bool moveSlot() {
    SlotOp slot = drawSlot();
    if (!slot)
      return false;
    int64_t lines = std::max<int64_t>(1, int64_t(rankOf(slot).getArenaBytes().value_or(0)) / 64);
    return place(slot, 64 * dice.below(lines));
  }
  bool shrinkArena() {
    RankOp rank = dice.pick(ranks);
    if (rank.getArenaBytes().value_or(0) < 64)
      return false;
    rank.setArenaBytes(*rank.getArenaBytes() - 64);
    return true;
  }

  /// The trainer finds another piece or microbatch where the program has this one.
  bool rebind() {
    auto kind = [](SlotOp op) { return op.getBinding() ? std::optional(op.getBinding()->getKind()) : std::nullopt; };
    SlotOp a = draw<SlotOp>([&](SlotOp op) { return bool(kind(op)); });
    SlotOp b = draw<SlotOp>([&](SlotOp op) {
      return a && op != a && kind(op) == kind(a) && op.getSlot().getType() == a.getSlot().getType();
    });
    if (!b || a.getBindingAttr() == b.getBindingAttr())
      return false;
    BindingAttr mine = a.getBindingAttr();
    a.setBindingAttr(b.getBindingAttr());
    b.setBindingAttr(mine);
    return true;
  }

private:
  /// The slot lies there, or one of its tensors where they lie apart.
  bool place(SlotOp slot, int64_t offset) {
    if (llvm::is_contained(slot.tensorOffsets(), offset))
      return false;
    if (!slot.getPlaces()) {
      slot.setOffset(uint64_t(offset));
      return true;
    }
    llvm::SmallVector<int64_t> places = slot.tensorOffsets();
    places[size_t(dice.below(int64_t(places.size())))] = offset;
    slot.setPlaces(places);
    return true;
  }
  static BodyAttr withVariant(BodyAttr body, BodyVariant variant) {
    return BodyAttr::get(body.getPieces(), body.getPhase(), variant, body.getSlice(), body.getCut(), body.getSharer(),
                         body.getShard());
  }
  /// `change` says which body runs in place of this one; null for none.
  template <typename Change> bool changeCallee(Change change, bool spare = false) {
    SymbolTable symbols(module);
    BodyTable bodies(module);
    auto scratchOf = [](func::FuncOp body) { return body->getAttrOfType<IntegerAttr>(kScratchAttr).getInt(); };
    auto renamed = [&](LaunchOp op) {
      BodyAttr other = change(bodies.of(op));
      func::FuncOp body = other ? bodies.find(other) : func::FuncOp();
      bool fits = body && scratchOf(body) <= scratchOf(symbols.lookup<func::FuncOp>(op.getCallee()));
      return fits ? body : func::FuncOp(); // lowering refuses a launch with too little scratch
    };
    LaunchOp launch = drawLaunch([&](LaunchOp op) { return bool(renamed(op)); });
    func::FuncOp changed = launch ? renamed(launch) : func::FuncOp();
    if (!changed)
      return false;
    // Both bodies name their groups; each group keeps its slot.
    FailureOr<BodyGroups> before = BodyGroups::get(symbols.lookup<func::FuncOp>(launch.getCallee())),
                          after = BodyGroups::get(changed);
    std::map<std::string, mlir::Value> slots;
    llvm::SmallVector<mlir::Value> handed(launch.getInputs());
    llvm::append_range(handed, launch.getResults());
    for (const auto *groups : {&before->inputs, &before->results})
      for (const BodyGroups::Group &group : *groups)
        slots[group.name.str()] = handed[size_t(group.pointer)];
    llvm::SmallVector<mlir::Value> inputs, results, scratch;
    for (const BodyGroups::Group &group : after->inputs) {
      mlir::Value slot = slots[group.name.str()];
      for (auto other : rankOf(launch).getOps<SlotOp>())
        if (spare && !slot && other->isBeforeInBlock(launch) && other.getSlot().getType().getPayload() == group.payload)
          slot = other;
      inputs.push_back(slot);
    }
    for (auto [group, tie] : llvm::zip(after->results, after->ties)) {
      mlir::Value slot = tie < 0 ? slots[group.name.str()] : mlir::Value();
      if (slot && cast<SlotType>(slot.getType()).getPayload() != group.payload)
        return false; // what helpers send back would be another message
      if (tie < 0)
        results.push_back(slot);
    }
    if (llvm::is_contained(inputs, mlir::Value()) || llvm::is_contained(results, mlir::Value()))
      return false;
    OpBuilder builder(launch);
    builder.create<LaunchOp>(launch.getLoc(), changed.getSymName(), launch.getUnit(), inputs, results,
                             launch.getScratch(), changed->getAttrOfType<DenseI64ArrayAttr>(kHandedAttr),
                             launch.getVersionAttr(), launch.getJointAttr(), launch.getShareAttr(),
                             launch.getBesideAttr(), launch.getJudges());
    launch.erase();
    return true;
  }
};

template <bool (TaskMutant::*change)()> bool apply(ModuleOp module, Dice &dice) {
  TaskMutant mutant(module, dice);
  return (mutant.*change)() && mutant.isDefined();
}

constexpr Mutation onTasks[] = {
    {"drop-launch", apply<&TaskMutant::dropLaunch>},
    {"drop-zero", apply<&TaskMutant::dropZero>},
    {"repeat-launch", apply<&TaskMutant::repeatLaunch>},
    {"delay-launch", apply<&TaskMutant::delayLaunch>},
    {"hasten-launch", apply<&TaskMutant::hastenLaunch>},
    {"hasten-update", apply<&TaskMutant::hastenUpdate>},
    {"swap-phases", apply<&TaskMutant::swapPhases>},
    {"wrong-input", apply<&TaskMutant::wrongInput>},
    {"wrong-result", apply<&TaskMutant::wrongResult>},
    {"exchange-inputs", apply<&TaskMutant::exchangeInputs>},
    {"first-for-later", apply<&TaskMutant::firstForLater>},
    {"later-for-first", apply<&TaskMutant::laterForFirst>},
    {"other-keys", apply<&TaskMutant::otherKeys>},
    {"same-part-twice", apply<&TaskMutant::samePartTwice>},
    {"rebind", apply<&TaskMutant::rebind>},
    {"swap-neighbours", apply<&TaskMutant::swapNeighbours>},
    {"swap-any", apply<&TaskMutant::swapAny>},
    {"overlap-slots", apply<&TaskMutant::overlapSlots>},
    {"move-slot", apply<&TaskMutant::moveSlot>},
    {"shrink-arena", apply<&TaskMutant::shrinkArena>},
};

} // namespace

llvm::ArrayRef<Mutation> taskMutations() { return onTasks; }

} // namespace pp::fuzz
