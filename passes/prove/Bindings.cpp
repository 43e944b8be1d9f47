// Proves that what ranks hand to the trainer is whole: each weight saved once, all gradients, and the norm.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/prove/Values.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// A checkpoint has each weight once: of a program that says what is saved, one rank saves each piece, or each shard.
static LogicalResult checkSaved(ProgramOp program) {
  struct Saved {
    SlotOp first; ///< that has the weights; at last the one that saves them
    int64_t times = 0;
  };
  llvm::MapVector<std::pair<Attribute, int64_t>, Saved> all; // by piece and shard
  bool saves = false;
  for (auto rank : program.getOps<RankOp>())
    for (auto slot : rank.getOps<SlotOp>()) {
      BindingAttr binding = slot.getBindingAttr();
      if (!binding || binding.getKind() != BindingKind::weight)
        continue;
      Saved &its = all[{binding.getPiece(), binding.getShard()}];
      if (binding.getSave() && ++its.times > 1) {
        auto error = slot.emitError() << "`" << slot.getLabel() << "` is saved twice";
        error.attachNote(its.first.getLoc()) << "first here";
        return error;
      }
      if (!its.first || binding.getSave())
        its.first = slot;
      saves |= binding.getSave();
    }
  for (auto &[which, its] : all)
    if (saves && its.times == 0)
      return its.first.emitError() << "`" << its.first.getLabel()
                                   << "` is saved by no rank; a checkpoint would lack it";
  return success();
}

/// Gradients are handed in for every piece that is updated, or shard of it, by one of the ranks that update it, or for
/// none; the norm by every rank that updates, or by none.
static LogicalResult checkHandedIn(ProgramOp program) {
  DenseSet<std::pair<Attribute, int64_t>> gradients; // by piece and shard
  DenseSet<Operation *> norms;
  SmallVector<std::pair<RankOp, SlotOp>> states;
  for (auto rank : program.getOps<RankOp>())
    for (auto slot : rank.getOps<SlotOp>()) {
      BindingAttr binding = slot.getBindingAttr();
      if (binding && binding.getKind() == BindingKind::grad)
        gradients.insert({binding.getPiece(), binding.getShard()});
      else if (binding && binding.getKind() == BindingKind::norm)
        norms.insert(rank);
      else if (binding && binding.getKind() == BindingKind::opt)
        states.push_back({rank, slot});
    }
  for (auto [rank, slot] : states) {
    BindingAttr binding = slot.getBindingAttr();
    StringRef lacks = !gradients.empty() && !gradients.contains({binding.getPiece(), binding.getShard()})
                          ? "the gradient of these weights"
                      : !norms.empty() && !norms.contains(rank) ? "the norm"
                                                                : "";
    if (!lacks.empty())
      return slot.emitError() << "rank " << rank.getRank() << " updates `" << slot.getLabel() << "`, and " << lacks
                              << " is not handed in, as others are";
  }
  return success();
}

LogicalResult pp::proveBindings(ProgramOp program) {
  return failure(failed(checkSaved(program)) || failed(checkHandedIn(program)));
}
