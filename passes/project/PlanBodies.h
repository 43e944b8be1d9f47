// The memory of a task body: its groups as pointers of its signature, and a place for every value inside it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_PLANBODIES_H
#define PP_PASSES_PLANBODIES_H

#include "dialect/pipeline/Pipeline.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/DenseMap.h"
#include <string>

namespace pp {

/// How a body's tensors are grouped into payloads: its `pipeline.inputs`, `pipeline.results` and `pipeline.ties`.
struct BodyGroups {
  struct Group {
    pipeline::GroupName name;
    unsigned first = 0; ///< its first argument or returned value
    mlir::TupleType payload;
    int64_t pointer = -1; ///< its pointer in the signature; a result tied to an input has the input's

    pipeline::GroupKind kind() const { return name.kind; }
    int64_t number() const { return name.number; }
    int64_t attention() const { return name.attention; }
  };
  llvm::SmallVector<Group> inputs, results;
  llvm::SmallVector<int64_t> ties;             ///< per result group: the input group whose slot it takes over, or -1
  llvm::SmallVector<mlir::TupleType> pointers; ///< the signature: input groups, then results that are not tied
  llvm::SmallVector<llvm::SmallVector<int64_t>> offsets; ///< by pointer: where its tensors lie, and where they end

  /// Reads and checks the attributes against the function's type; reports errors at the function.
  static mlir::FailureOr<BodyGroups> get(mlir::func::FuncOp body);
  /// The places of the arguments: a pointer of the signature and a byte offset.
  llvm::DenseMap<mlir::Value, std::pair<int64_t, int64_t>> argumentPlaces(mlir::func::FuncOp body) const;
  static bool isBody(mlir::func::FuncOp function) { return function->hasAttr(pipeline::kInputsAttr); }
};

/// The ops that read the value's memory, through views too; a view is a reader itself.
llvm::SmallVector<mlir::Operation *> readersOf(mlir::Value value);

/// Gives every op result of every task body a place (`pipeline.buffers`) and every body its `pipeline.scratch_bytes`.
mlir::LogicalResult planBodies(mlir::ModuleOp module);

} // namespace pp

#endif // PP_PASSES_PLANBODIES_H
