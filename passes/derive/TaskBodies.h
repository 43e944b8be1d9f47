// Finds the function of a task among the derived ones, and makes the small functions that only a whole step needs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_TASKBODIES_H
#define PP_PASSES_TASKBODIES_H

#include "analysis/Actions.h"
#include "analysis/BodyTable.h"
#include "dialect/pipeline/BodyGroups.h"

namespace pp {

/// A function that tasks call, and how its tensors are grouped.
struct TaskBody {
  mlir::func::FuncOp function;
  pipeline::BodyAttr identity;
  BodyGroups groups;

  llvm::StringRef name() const { return mlir::func::FuncOp(function).getName(); }
  double flops() const;
  /// The input group of this name, null if the body does not read it.
  const BodyGroups::Group *input(pipeline::GroupName name) const;
};

class TaskBodies {
public:
  TaskBodies(mlir::ModuleOp module, const Pieces &pieces);

  /// The body of a unit of this piece, or of a part of its update; null if there is none.
  const TaskBody *find(int64_t piece, pipeline::Phase phase,
                       pipeline::BodyVariant variant = pipeline::BodyVariant::plain, int64_t slice = -1,
                       pipeline::CutAttr cut = {}) const {
    return find(identity(piece, phase, variant, slice, cut));
  }
  /// The body that does this part of an update on all of a piece. `sharer`: for which piece with the same weights.
  const TaskBody *findUpdate(int64_t piece, pipeline::BodyVariant variant, int64_t sharer = -1) const {
    return find(identity(piece, pipeline::Phase::U, variant, /*slice=*/-1, /*cut=*/{}, sharer));
  }
  /// The same on what this rank updates: its shard, or all of a piece that is not cut.
  const TaskBody *findOfShard(int64_t piece, pipeline::BodyVariant variant, int64_t rank, int64_t sharer = -1) const;
  /// All weights of a piece.
  mlir::TupleType weightsOf(int64_t piece) const;
  /// In how many steps units of this phase run where they are cut at their attentions; 0 if none is cut.
  int64_t steps(int64_t piece, pipeline::Phase phase) const;

  /// `sum(grad, share) -> grad`: adds two gradients of the piece; with a rank, of what that rank updates of it.
  const TaskBody &sum(int64_t piece, int64_t rank = -1);
  /// Adds two gradients of the keys of a slice.
  const TaskBody &sumOfKeys(int64_t piece, int64_t slice, mlir::TupleType payload);
  /// `copy(weight) -> weight`.
  const TaskBody &copy(int64_t piece);

private:
  mlir::ModuleOp module;
  const Pieces &pieces;
  BodyTable table;
  llvm::DenseMap<pipeline::BodyAttr, std::unique_ptr<TaskBody>> bodies;

  /// Null for a piece for which nothing was derived.
  pipeline::BodyAttr identity(int64_t piece, pipeline::Phase phase, pipeline::BodyVariant variant, int64_t slice = -1,
                              pipeline::CutAttr cut = {}, int64_t sharer = -1, int64_t shard = -1) const;
  const TaskBody *find(pipeline::BodyAttr identity) const;
  /// Computes each tensor of the result from the tensors at its place in the inputs, which all have the same payload.
  const TaskBody &make(pipeline::BodyAttr identity, llvm::ArrayRef<pipeline::GroupName> inputs, mlir::TupleType payload,
                       pipeline::GroupName result, int64_t tie,
                       llvm::function_ref<mlir::Value(mlir::OpBuilder &, mlir::ValueRange)> build);
};

} // namespace pp

#endif // PP_PASSES_TASKBODIES_H
