// What all mutations of a rank program are made of: drawing an operation, moving it, trading two.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_FUZZ_MUTANT_H
#define PP_TEST_FUZZ_MUTANT_H

#include "dialect/pipeline/Pipeline.h"
#include "test/fuzz/Dice.h"

namespace pp::fuzz {

/// One row of a table of mutations.
struct Mutation {
  llvm::StringRef name;
  bool (*apply)(mlir::ModuleOp module, Dice &dice);
};

/// Mutations of launches, slots and any two operations; mutations of messages and their waits.
llvm::ArrayRef<Mutation> taskMutations();
llvm::ArrayRef<Mutation> messageMutations();

/// A program about to be changed.
class Mutant {
public:
  Mutant(mlir::ModuleOp module, Dice &dice);

  /// Every value is defined before it is used; what cannot be written down is no mutant.
  bool isDefined();

protected:
  static pipeline::RankOp rankOf(mlir::Operation *op) { return op->getParentOfType<pipeline::RankOp>(); }

  /// One of those for which `which` holds; null if there is none.
  template <typename Op, typename Which> Op draw(Which which) {
    llvm::SmallVector<Op> all;
    for (pipeline::RankOp rank : ranks)
      for (auto op : rank.getOps<Op>())
        if (which(op))
          all.push_back(op);
    return all.empty() ? Op() : dice.pick(all);
  }
  template <typename Which> pipeline::LaunchOp drawLaunch(Which which) { return draw<pipeline::LaunchOp>(which); }
  template <typename Which> pipeline::PostOp drawPost(Which which) { return draw<pipeline::PostOp>(which); }
  pipeline::CompleteOp drawComplete();
  pipeline::SlotOp drawSlot();
  /// A launch, post or complete.
  mlir::Operation *drawOp();
  llvm::SmallVector<mlir::Operation *> opsOf(pipeline::RankOp rank);

  // These functions change nothing and return false if an op is null or cannot be moved.
  static bool drop(mlir::Operation *op);
  bool moveLater(mlir::Operation *op);
  bool moveEarlier(mlir::Operation *op);
  /// Another slot of the same type.
  bool replaceSlot(mlir::Operation *op, unsigned operand);
  static void exchange(mlir::Operation *a, mlir::Operation *b);

  mlir::ModuleOp module;
  Dice &dice;
  llvm::SmallVector<pipeline::RankOp> ranks;

private:
  /// Below `count`; half of the time one of the first four.
  int64_t near(int64_t count);
};

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_MUTANT_H
