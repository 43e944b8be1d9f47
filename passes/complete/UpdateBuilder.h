// Updates: gradients go to their owners, their norm is made, weights are updated and sent to every home.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_UPDATEBUILDER_H
#define PP_PASSES_UPDATEBUILDER_H

#include "analysis/Optimizer.h"
#include "passes/complete/WeightVersions.h"

namespace pp {

class UpdateBuilder {
public:
  UpdateBuilder(StepValues &step, const StepOutline &outline, GradientShares &gradients, WeightVersions &versions)
      : step(step), outline(outline), gradients(gradients), versions(versions),
        late(!step.program.getForward() && !Optimizer(step.program).hasBarrier()) {}

  /// The weights and optimizer states that are there when the step begins.
  mlir::LogicalResult createInputs();
  /// Whether updates do not wait for the norm (docs/barrier.md): then the step begins with that of the step before, and
  /// judges its update before the first backward.
  bool isLate() const { return late; }
  void postNorm();
  void judge();
  /// One of several updates of a step, behind the last gradient of these pieces.
  mlir::LogicalResult update(llvm::ArrayRef<int64_t> pieces);
  /// The end of the step: the update, or of several what is left of the last one.
  mlir::LogicalResult finish();

private:
  StepValues &step;
  const StepOutline &outline;
  GradientShares &gradients;
  WeightVersions &versions;
  bool late, isJudged = false;
  std::map<int64_t, mlir::Value> undo;                     ///< by piece: what its update before kept
  mlir::Value sumOfNorms;                                  ///< on its way
  std::map<int64_t, mlir::Value> norms;                    ///< by rank
  llvm::SmallVector<std::pair<Thing, mlir::Value>> frozen; ///< the weights of pieces that train none

  mlir::Location locOf(int64_t piece) const { return step.pieces.op(piece).getLoc(); }
  /// The weights or the gradient that the rank updates of a piece: the whole, or a shard.
  ValueKey own(pipeline::Role role, int64_t piece, int64_t rank) const;
  mlir::Value getOwn(pipeline::Role role, int64_t piece, int64_t rank);
  mlir::Value createUpdateTask(const TaskBody &body, int64_t piece, int64_t rank, mlir::ValueRange inputs);

  // Pieces without trained weights.
  void createFrozenInputs(int64_t piece);
  void outputFrozen();

  // Gradients.
  mlir::LogicalResult reduceGradients(llvm::ArrayRef<int64_t> pieces);
  mlir::LogicalResult reduceToOwner(int64_t piece);
  /// The rank among the piece's owners that serves `rank`, the k-th owner of another piece: itself if it can.
  int64_t nearestOwner(int64_t piece, int64_t rank, size_t k) const;
  mlir::LogicalResult addTied(llvm::ArrayRef<int64_t> pieces);
  mlir::LogicalResult addTiedToOwners(int64_t piece);
  void mergeTerms(llvm::ArrayRef<int64_t> pieces);
  void sumOverMesh(llvm::ArrayRef<int64_t> pieces);

  // Norms.
  static Thing normThing() { return {pipeline::Role::stat, /*piece=*/-1}; }
  void createNorms();
  void addNorm(int64_t piece, int64_t rank);
  void reduceNorms();
  mlir::Value moveNorms();
  void splitNorms(mlir::Value sum);
  void sendNorms();

  // Updates.
  mlir::LogicalResult updateWeights(llvm::ArrayRef<int64_t> pieces);
  mlir::LogicalResult updateOnOwner(int64_t piece, int64_t rank, size_t k);
  /// Gathers the weights over the devices along `data`, each of which has updated a shard.
  mlir::Value gatherOverMesh(int64_t piece, mlir::Value weights);
  mlir::Value freshWeights(int64_t piece, int64_t rank, size_t k);
  void returnWeights(int64_t piece);

  // Pieces that are cut over ranks (UpdateShards.cpp).
  mlir::LogicalResult createShardInputs(int64_t piece);
  mlir::LogicalResult reduceOnAll(int64_t piece);
  void addTiedShards(int64_t piece);
  mlir::Value freshShard(int64_t piece, int64_t rank);
  void updateShard(int64_t piece, int64_t rank);
  void updateShards(int64_t piece);
  void gatherShards(int64_t piece);
  void returnGathered(int64_t piece);
};

/// The shards of a weight as one value.
mlir::Value joinShards(StepValues &step, int64_t piece, mlir::Location loc);

} // namespace pp

#endif // PP_PASSES_UPDATEBUILDER_H
