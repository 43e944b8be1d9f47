// Draws and moves the operations of a program about to be changed; finds a mutation by its name.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Mutations.h"
#include "test/fuzz/Mutant.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace pp::pipeline;

namespace pp::fuzz {

Mutant::Mutant(ModuleOp module, Dice &dice) : module(module), dice(dice) {
  for (auto rank : (*module.getOps<ProgramOp>().begin()).getOps<RankOp>()) {
    // Slots first: then launches, posts and completes can trade places freely.
    mlir::Block &block = rank.getBody().front();
    llvm::SmallVector<SlotOp> slots(block.getOps<SlotOp>());
    for (SlotOp slot : llvm::reverse(slots))
      slot->moveBefore(&block, block.begin());
    ranks.push_back(rank);
  }
}

bool Mutant::isDefined() {
  for (RankOp rank : ranks)
    for (Operation &op : rank.getBody().front())
      for (mlir::Value operand : op.getOperands())
        if (!operand.getDefiningOp()->isBeforeInBlock(&op))
          return false;
  return true;
}

CompleteOp Mutant::drawComplete() {
  return draw<CompleteOp>([](CompleteOp) { return true; });
}

SlotOp Mutant::drawSlot() {
  return draw<SlotOp>([](SlotOp op) { return !op.tensorOffsets().empty(); });
}

llvm::SmallVector<Operation *> Mutant::opsOf(RankOp rank) {
  llvm::SmallVector<Operation *> ops;
  for (Operation &op : rank.getBody().front())
    if (!llvm::isa<SlotOp>(op))
      ops.push_back(&op);
  return ops;
}

Operation *Mutant::drawOp() {
  llvm::SmallVector<Operation *> ops = opsOf(dice.pick(ranks));
  return ops.empty() ? nullptr : dice.pick(ops);
}

bool Mutant::drop(Operation *op) {
  if (op)
    op->erase();
  return op != nullptr;
}

void Mutant::exchange(Operation *a, Operation *b) {
  if (a == b)
    return;
  Operation *after = b->getNextNode();
  mlir::Block *block = b->getBlock();
  if (after == a) {
    a->moveBefore(b);
    return;
  }
  b->moveBefore(a);
  a->moveBefore(block, after ? after->getIterator() : block->end());
}

static bool uses(Operation *op, Operation *made) {
  return llvm::any_of(op->getOperands(), [&](mlir::Value value) { return value.getDefiningOp() == made; });
}

bool Mutant::moveLater(Operation *op) {
  llvm::SmallVector<Operation *> later;
  for (Operation *next = op ? op->getNextNode() : nullptr; next && !uses(next, op); next = next->getNextNode())
    later.push_back(next);
  if (later.empty())
    return false;
  op->moveAfter(later[size_t(near(int64_t(later.size())))]);
  return true;
}

bool Mutant::moveEarlier(Operation *op) {
  llvm::SmallVector<Operation *> earlier;
  for (Operation *next = op ? op->getPrevNode() : nullptr; next && !llvm::isa<SlotOp>(next) && !uses(op, next);
       next = next->getPrevNode())
    earlier.push_back(next);
  if (earlier.empty())
    return false;
  op->moveBefore(earlier[size_t(near(int64_t(earlier.size())))]);
  return true;
}

int64_t Mutant::near(int64_t count) { return dice.below(dice.oneIn(2) ? std::min<int64_t>(4, count) : count); }

bool Mutant::replaceSlot(Operation *op, unsigned operand) {
  mlir::Value now = op->getOperand(operand);
  SlotOp other = draw<SlotOp>([&](SlotOp slot) {
    return slot->getBlock() == op->getBlock() && slot.getSlot() != now && slot.getSlot().getType() == now.getType();
  });
  if (other)
    op->setOperand(operand, other.getSlot());
  return bool(other);
}

static const llvm::SmallVector<Mutation> &allMutations() {
  static const auto all = [] {
    llvm::SmallVector<Mutation> mutations(taskMutations());
    llvm::append_range(mutations, messageMutations());
    return mutations;
  }();
  return all;
}

llvm::ArrayRef<llvm::StringRef> mutationNames() {
  static const auto names = llvm::map_to_vector(allMutations(), [](const Mutation &mutation) { return mutation.name; });
  return names;
}

bool mutate(ModuleOp module, llvm::StringRef name, Dice &dice) {
  const Mutation *found = llvm::find_if(allMutations(), [&](const Mutation &one) { return one.name == name; });
  return found != allMutations().end() && found->apply(module, dice);
}

} // namespace pp::fuzz
