// Draws and moves the operations of a program about to be changed; finds a mutation by its name.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Mutations.h"
#include "dialect/nn/Nn.h"
#include "mlir/Parser/Parser.h"
#include "test/fuzz/Mutant.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace pp::pipeline;

namespace pp::fuzz {

/// One of the module's programs: most have one; a step without a barrier has one that does an update over, too.
static ProgramOp drawProgram(ModuleOp module, Dice &dice) {
  llvm::SmallVector<ProgramOp> programs(module.getOps<ProgramOp>());
  return programs.size() == 1 ? programs.front() : dice.pick(programs);
}

Mutant::Mutant(ModuleOp module, Dice &dice) : module(module), dice(dice) {
  for (auto rank : drawProgram(module, dice).getOps<RankOp>()) {
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

OwningOpRef<ModuleOp> drawMutant(ModuleOp module, Dice &dice, llvm::StringRef &name, llvm::StringRef only) {
  for (int attempt = 0; attempt < 6; ++attempt) {
    name = only.empty() ? mutationNames()[size_t(dice.below(int64_t(mutationNames().size())))] : only;
    if (OwningOpRef<ModuleOp> mutant = module.clone(); mutate(*mutant, name, dice))
      return mutant;
  }
  return {};
}

static bool writeMutant(ModuleOp module, llvm::Twine path) {
  std::error_code error;
  llvm::raw_fd_ostream file(path.str(), error);
  if (error) {
    llvm::errs() << "pp-fuzz: error: " << path << ": " << error.message() << "\n";
    return false;
  }
  module->print(file, OpPrintingFlags().enableDebugInfo());
  return true;
}

int writeMutants(int argc, char **argv) {
  uint64_t seed = 0, count = 0;
  if (argc != 4 || llvm::StringRef(argv[2]).getAsInteger(10, seed) ||
      llvm::StringRef(argv[3]).getAsInteger(10, count)) {
    llvm::errs() << "usage: pp-fuzz mutants FILE.mlir FOLDER SEED COUNT\n";
    return 1;
  }
  MLIRContext context;
  context.loadDialect<func::FuncDialect, nn::NnDialect, PipelineDialect>();
  OwningOpRef<ModuleOp> module = parseSourceFile<ModuleOp>(argv[0], &context);
  if (!module || llvm::sys::fs::create_directories(argv[1]))
    return 1;
  for (uint64_t number = 0; number < count; ++number) {
    Dice dice(hashOf(seed, number));
    llvm::StringRef name;
    if (OwningOpRef<ModuleOp> mutant = drawMutant(*module, dice, name);
        mutant && !writeMutant(*mutant, llvm::Twine(argv[1]) + "/" + llvm::Twine(number) + "-" + name + ".mlir"))
      return 1;
  }
  return 0;
}

} // namespace pp::fuzz
