// The moves that a schedule writes itself: copies of weights, shares of gradients, activations, keys, stashes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_MOVEBUILDER_H
#define PP_PASSES_MOVEBUILDER_H

#include "passes/complete/GradientShares.h"
#include "passes/complete/KeyShares.h"

namespace pp {

class MoveBuilder {
public:
  MoveBuilder(StepValues &step, const StepOutline &outline, GradientShares &gradients, KeyShares &keys)
      : step(step), outline(outline), gradients(gradients), keys(keys) {}

  /// Moves that are posted together: all are read before the first is written.
  mlir::LogicalResult build(llvm::ArrayRef<pipeline::TransferOp> ops);

  //===-- Stashes -----------------------------------------------------------------------------------------------===//
  /// The unit that uses its stash last has run.
  void recordStashUse(Thing stash, pipeline::UnitOp op);
  /// The last move of the stash so far; null if there is none.
  pipeline::TransferOp lastMoveOf(Thing stash) const { return stashMoves.lookup(stash); }

private:
  /// Keys of a piece whose units are cut: those of one attention.
  struct KeyMove {
    pipeline::TransferOp op;
    int64_t attention;
    mlir::Value value;
  };
  using Arrival = std::pair<pipeline::TransferOp, Share>;

  StepValues &step;
  const StepOutline &outline;
  GradientShares &gradients;
  KeyShares &keys;
  int64_t groups = 0;
  llvm::DenseMap<Thing, pipeline::UnitOp> stashUsers;     ///< the last use of each, once it has run
  llvm::DenseMap<Thing, pipeline::TransferOp> stashMoves; ///< the last move of each so far

  int64_t pieceOf(pipeline::TransferOp op) const { return step.pieces.find(op.getThing().getCoord()); }
  llvm::SmallVector<KeyMove> readCutKeys(pipeline::TransferOp op);
  mlir::FailureOr<Share> read(pipeline::TransferOp op);
  mlir::FailureOr<Share> readGrad(pipeline::TransferOp op);
  mlir::LogicalResult buildStashMove(pipeline::TransferOp op, mlir::IntegerAttr group);
  void sendCutKeys(const KeyMove &move, mlir::IntegerAttr group);
  void write(pipeline::TransferOp op, Share share);

  // Checks which things a schedule may move, and between which places (VerifyMoves.cpp).
  bool involvesShards(pipeline::TransferOp op) const;
  /// Whether it sums a gradient on all who update the piece: into their shards, or on each.
  bool sumsOnAll(pipeline::TransferOp op) const;
  mlir::LogicalResult verify(pipeline::TransferOp op) const;
  mlir::LogicalResult verifyGroup(pipeline::TransferOp op) const;
  mlir::InFlightDiagnostic reportStash(pipeline::TransferOp op) const;
};

} // namespace pp

#endif // PP_PASSES_MOVEBUILDER_H
