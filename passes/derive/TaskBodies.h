// Finds the function of a task among the derived ones, and makes the small functions that only a whole step needs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_TASKBODIES_H
#define PP_PASSES_TASKBODIES_H

#include "analysis/Actions.h"
#include "passes/project/PlanBodies.h"
#include "llvm/ADT/StringMap.h"

namespace pp {

/// A function that tasks call, and how its tensors are grouped.
struct TaskBody {
  mlir::func::FuncOp function;
  BodyGroups groups;

  llvm::StringRef name() const { return mlir::func::FuncOp(function).getName(); }
  double flops() const;
  /// The input group of this name, null if the body does not read it.
  const BodyGroups::Group *input(llvm::StringRef name) const;
};

class TaskBodies {
public:
  TaskBodies(mlir::ModuleOp module, const Pieces &pieces);

  /// `@s0.F` of the piece whose bodies are called `s0`; null if there is none.
  const TaskBody *find(int64_t piece, llvm::StringRef suffix) const;
  /// `@s0.U.1` of the rank that has shard 1; of a piece that is not cut, `@s0.U`.
  const TaskBody *findOfShard(int64_t piece, llvm::StringRef suffix, int64_t rank) const;
  /// All weights of a piece that is updated.
  mlir::TupleType weightsOf(int64_t piece) const { return find(piece, "U")->input("weight")->payload; }

  /// `@s0.sum(grad, share) -> grad`: adds two gradients of the piece; with a rank, of what that rank updates of it.
  const TaskBody &sum(int64_t piece, int64_t rank = -1);
  /// `@s0.dkv.sum.2`: adds two gradients of the keys of slice 2.
  const TaskBody &sumOfKeys(int64_t piece, int64_t slice, mlir::TupleType payload);
  /// `@s0.copy(weight) -> weight`.
  const TaskBody &copy(int64_t piece);

private:
  mlir::ModuleOp module;
  const Pieces &pieces;
  llvm::StringMap<TaskBody> bodies;

  std::string nameOf(int64_t piece, const llvm::Twine &suffix) const;
  /// Computes each tensor of the result from the tensors at its place in the inputs, which all have the same payload.
  const TaskBody &make(std::string name, llvm::ArrayRef<llvm::StringRef> inputs, mlir::TupleType payload,
                       llvm::StringRef result, int64_t tie,
                       llvm::function_ref<mlir::Value(mlir::OpBuilder &, mlir::ValueRange)> build);
};

} // namespace pp

#endif // PP_PASSES_TASKBODIES_H
