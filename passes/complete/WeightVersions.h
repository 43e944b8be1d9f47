// Weights where a step has several updates: which version a unit reads, when an update is due, which versions are kept.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_WEIGHTVERSIONS_H
#define PP_PASSES_WEIGHTVERSIONS_H

#include "passes/complete/GradientShares.h"
#include "llvm/ADT/DenseSet.h"

namespace pp {

class WeightVersions {
public:
  WeightVersions(StepValues &step, const GradientShares &gradients);

  /// Whether units say which weights they read.
  bool areUsed() const { return used; }
  /// Whether an update waits for all pieces.
  bool updatesTogether() const { return together; }
  /// Versions older than the step's beginning, which units of this step read.
  void createInputs(int64_t piece);
  /// The weights that a unit reads; null if the rank does not have them, an error if that version is not made yet.
  mlir::FailureOr<mlir::Value> get(pipeline::UnitOp op, int64_t piece, int64_t rank);
  /// The pieces that can be updated after this unit, because it adds the last gradient that they wait for.
  llvm::SmallVector<int64_t> finishedBy(pipeline::UnitOp op);
  /// Right before an update in place: a copy of the weights for units, or a next step, that still read them.
  void keepOld(int64_t piece, int64_t rank);
  void setUpdated(llvm::ArrayRef<int64_t> pieces);
  /// At the end of the step: the old versions that the next step reads.
  void outputOld(int64_t piece);

private:
  using PieceVersion = std::pair<int64_t, int64_t>;

  StepValues &step;
  const GradientShares &gradients;
  bool used, together = true;
  std::map<PieceVersion, mlir::Value> old; ///< once a newer version is made
  std::map<PieceVersion, int64_t> readers; ///< units that are still to come
  std::map<PieceVersion, int64_t> lacking; ///< by piece, -1 for all, and update: gradients that are still to come
  std::vector<int64_t> newest, carried;    ///< by piece: its version by now; how many older ones the next step reads
  llvm::DenseSet<PieceVersion> keptWhereWanted; ///< the copy already is where the next step wants it

  void readUnit(pipeline::UnitOp op);
  mlir::Value createCopy(int64_t piece, int64_t rank, mlir::Value weights);
};

} // namespace pp

#endif // PP_PASSES_WEIGHTVERSIONS_H
