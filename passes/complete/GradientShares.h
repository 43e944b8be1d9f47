// The gradients of a growing step: which rank holds a share of which, of what microbatches, and how shares are summed.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_GRADIENTSHARES_H
#define PP_PASSES_GRADIENTSHARES_H

#include "passes/complete/StepOutline.h"
#include "llvm/ADT/BitVector.h"
#include <map>

namespace pp {

/// The share of a gradient that one rank holds, with the microbatches (and slices) it contains.
struct Share {
  mlir::Value value; ///< a value, or a future if it is on its way
  llvm::BitVector contributions;
  mlir::Operation *moved = nullptr; ///< the last transfer that brought it, or part of it; for messages
};

/// The shares belong to one update, the current one; `turnTo` puts those of another in their place.
class GradientShares {
public:
  GradientShares(StepValues &step, const StepOutline &outline);

  //===-- Updates -----------------------------------------------------------------------------------------------===//
  int64_t updates() const { return numUpdates; }
  int64_t update() const { return current; }
  bool isLast() const { return current + 1 == numUpdates; }
  void turnTo(int64_t update);
  /// U of the piece, as the unit of all tasks that the update needs.
  pipeline::UnitIdAttr updateUnit(int64_t piece) const;

  //===-- Shares of one rank ------------------------------------------------------------------------------------===//
  /// The share that a unit on this rank adds to; null if empty. What the replicas have summed is added first.
  Share takeForUnit(int64_t piece, int64_t rank, mlir::Location loc);
  /// The share that a unit left, which contains what was there before.
  void set(int64_t piece, int64_t rank, Share share, pipeline::UnitOp unit);
  /// Takes the rank's whole share away as one value, arrivals waited for and added; null if empty.
  Share take(int64_t piece, int64_t rank, mlir::Location loc);
  /// One more term on its way to this rank.
  void addTerm(int64_t piece, int64_t rank, Share share);
  /// Sums the terms that are there, so that at most one is pending when the next arrives.
  void sumUp(int64_t piece, int64_t rank, mlir::Location loc);
  /// The empty share of a gradient; null after an error.
  mlir::Value createZero(int64_t piece, int64_t rank, mlir::Location loc);
  /// The ranks that hold a share, ascending.
  llvm::SmallVector<int64_t> holders(int64_t piece) const;

  //===-- Sums over ranks that update a piece together ----------------------------------------------------------===//
  /// Takes what each of these ranks holds, where it holds something, as one value of partial sums. `to` takes part
  /// with zeros if it holds nothing.
  mlir::FailureOr<Share> reduce(int64_t piece, llvm::ArrayRef<int64_t> ranks, int64_t to, mlir::Operation *move);
  /// Takes what all sharers of the piece hold, zeros where that is nothing, as one value of partial sums.
  Share join(int64_t piece, mlir::Location loc);
  /// Such a sum, moved to all sharers: each has one more term of what it updates.
  void addOnAll(int64_t piece, Share sum);
  /// The sum so far of the gradient that the rank updates.
  Share takeOwn(int64_t piece, int64_t rank, mlir::Location loc);

  //===-- Sums of shards over the mesh ----------------------------------------------------------------------------===//
  /// What the replicas of this rank have of the piece's gradient: the sum of their shards and, if gradients of tied
  /// weights are still to be added, the part that is whole.
  std::pair<Share, Share> takeShardSum(int64_t piece, int64_t rank, mlir::Location loc);
  /// The replicas of this rank sum a shard each of this gradient, and add it to the sum of earlier ones.
  mlir::Value addToShardSum(int64_t piece, int64_t rank, mlir::Value whole, mlir::Location loc);

  /// Reports that the share is not the whole gradient, and who has the rest.
  mlir::LogicalResult reportMissing(int64_t piece, int64_t owner, const Share &share) const;
  bool isComplete(const Share &share) const { return share.value && isAll(share); }
  bool isAll(const Share &share) const { return share.contributions == allContributions(); }

private:
  using PieceRank = std::pair<int64_t, int64_t>;
  using Terms = std::map<PieceRank, llvm::SmallVector<Share, 1>>;

  StepValues &step;
  const StepOutline &outline;
  int64_t numUpdates, current = 0;
  Terms terms;                                               ///< of the gradient of a piece on a rank
  std::map<int64_t, Terms> otherTerms;                       ///< by update: those of updates that are not current
  std::map<PieceRank, llvm::SmallVector<Share, 2>> ownTerms; ///< of sums that the sharers of a piece make together
  /// A gradient of which replicas sum a shard each.
  struct Scattered {
    int64_t update, piece;
    Share share;
  };
  std::map<int64_t, Scattered> scattered; ///< by rank: on its way
  std::map<PieceRank, Share> shardSums;   ///< by piece and update: of shards

  void scatter(int64_t piece, int64_t rank, Share share, mlir::Location loc);
  void addScattered(int64_t rank);
  bool waitsForTied(int64_t piece, const Share &last) const;
  int64_t slices() const;
  int64_t contributionOf(pipeline::CoordAttr unit) const;
  llvm::BitVector allContributions() const;
  Share emptyShare() const { return {{}, llvm::BitVector(allContributions().size()), nullptr}; }
  pipeline::UnitOp contributor(int64_t piece, int64_t contribution) const;
  mlir::LogicalResult reportLeft(int64_t piece, int64_t rank, const Share &share) const;
};

} // namespace pp

#endif // PP_PASSES_GRADIENTSHARES_H
