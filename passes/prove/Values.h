// What all slots of a program hold at one instant, and the stories of what may be wrong with it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_VALUES_H
#define PP_PASSES_VALUES_H

#include "analysis/BodyTable.h"
#include "passes/prove/Labels.h"
#include "llvm/ADT/DenseMap.h"

namespace pp {

struct SlotState {
  Label label;
  mlir::Operation *arriving = nullptr; ///< the post of a message that fills the slot and is not completed
  bool taken = false;                  ///< a sum's terms live on elsewhere: sent, added, or used by U
  int32_t terms = -1;                  ///< of a sum: a number in Values::terms
  mlir::Operation *writer = nullptr;   ///< launch or post; null: there when the step began
};

struct Values {
  Values(pipeline::ProgramOp program, const BodyTable &bodies);

  SlotState &of(mlir::Value slot) { return slots[numbers.find(slot)->second]; }
  const SlotState &of(mlir::Value slot) const { return slots[numbers.find(slot)->second]; }
  const Terms &termsOf(const SlotState &state) const { return terms[state.terms]; }
  /// Microbatches times slices, times the steps of units that are cut at their attentions: what every unit adds to its
  /// gradient is as many of these terms as it could have steps.
  int32_t unitCount() const { return unitsOfStep() * steps; }
  int32_t unitsOfStep() const;
  int32_t unitNumber(pipeline::CoordAttr coord) const;
  /// The number of terms in a whole gradient: of the piece's units and of each piece that shares its weights.
  int32_t wholeGradient(int64_t piece) const { return unitCount() * (1 + sharers[piece].size()); }
  /// Whether the mesh sums a part of this gradient, or of its shard (-1: of the whole). It does not sum the gradients
  /// of the device's own experts and of tied weights.
  bool isSummedOverMesh(int64_t piece, int64_t shard) const { return summed[piece][shard + 1]; }
  /// A norm's term of a piece's gradient, or of one of its shards.
  int32_t normTerm(int64_t piece, int64_t shard) const { return norms[piece] + std::max<int64_t>(shard, 0); }
  /// The first piece with weights whose gradient, or a shard of it, a norm lacks; -1 if none.
  int64_t missingInNorm(const Terms &norm) const;
  /// The first term that the gradient of the piece lacks when this update reads it; and one that belongs to another.
  std::optional<int32_t> missingInGradient(int64_t piece, int64_t update, const Terms &sum) const;
  std::optional<int32_t> strangeInGradient(int64_t piece, int64_t update, const Terms &sum) const;

  pipeline::ProgramOp program;
  const BodyTable &bodies;
  Pieces pieces;
  std::vector<llvm::SmallVector<int64_t, 1>> sharers; ///< per piece those that use its weights too
  llvm::DenseMap<mlir::Value, uint32_t> numbers;      ///< of slots: a table of states with gaps would be twice as large
  std::vector<SlotState> slots;
  std::vector<Terms> terms;
  int32_t steps = 1;
  int64_t updates = 1;                 ///< of a step
  std::vector<llvm::BitVector> summed; ///< per piece, of all of it and of each shard, whether the mesh sums gradients
  std::vector<int32_t> norms;          ///< per piece its first term in a norm; behind the last one, the end

  //===-- Stories: each is one error with its notes, and failure ------------------------------------------------===//

  using Result = mlir::LogicalResult;
  Result tellWrongRead(pipeline::LaunchOp launch, mlir::Value slot, Label wanted) const;
  Result tellMissing(pipeline::LaunchOp launch, mlir::Value grad, int32_t term) const;
  /// The gradient has a term of another update.
  Result tellStrange(pipeline::LaunchOp launch, mlir::Value grad, int32_t term) const;
  /// The gradient of a chunk of keys is added to, or used, before this later slice has added its part.
  Result tellChunkLacks(pipeline::LaunchOp launch, mlir::Value sum, int32_t slice) const;
  /// The parts of an attention have the keys of a slice twice, or not at all.
  Result tellWrongParts(pipeline::LaunchOp launch, int32_t slice, llvm::StringRef how) const;
  Result tellNormLacks(pipeline::LaunchOp launch, mlir::Value norm, int64_t piece) const;
  /// The launch or post adds a term that both slots hold.
  Result tellTwice(mlir::Operation *op, mlir::Value first, mlir::Value second, int32_t term) const;
  Result tellLost(mlir::Operation *op, mlir::Value slot) const;
  Result tellWrongSend(pipeline::PostOp send) const;
  /// The gradient has been summed over the mesh before.
  Result tellSummedTwice(pipeline::PostOp post) const;
  Result tellAtEnd(pipeline::SlotOp slot, Label wanted) const;

private:
  /// `F(0, 2)` in back quotes; of a step of an update its name too.
  std::string nameOf(pipeline::LaunchOp launch) const;
  /// Names the one at fault: a launch, the rank that posts, or the ranks that join a collective.
  std::string subject(mlir::Operation *op) const;
  /// Whether the launch makes what has this label.
  bool makes(pipeline::LaunchOp launch, const Label &label) const;
  /// No slot holds the value: it is overwritten, not made yet, or made on another rank.
  void noteMaker(mlir::InFlightDiagnostic &error, pipeline::LaunchOp maker, llvm::StringRef name,
                 pipeline::LaunchOp reader) const;
  std::string termName(const Label &sum, int32_t term) const;
  void noteWriter(mlir::InFlightDiagnostic &error, mlir::Value slot, llvm::StringRef subject) const;
  /// The first slot in program order for which the predicate holds, null if none.
  pipeline::SlotOp findSlot(llvm::function_ref<bool(const SlotState &)> holds) const;
  pipeline::LaunchOp findLaunch(llvm::function_ref<bool(pipeline::LaunchOp)> is) const;
  void noteWhereIs(mlir::InFlightDiagnostic &error, Label wanted, pipeline::LaunchOp reader) const;
};

/// Each weight is saved once, and gradients and their norm are handed in by all that update, or by none (Bindings.cpp).
mlir::LogicalResult proveBindings(pipeline::ProgramOp program);

/// The rank in whose program the op stands.
int64_t rankOf(mlir::Operation *op);

} // namespace pp

#endif // PP_PASSES_VALUES_H
