// How a task body groups its tensors into payloads: the slots of its launches, and the pointers of its signature.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_BODYGROUPS_H
#define PP_DIALECT_BODYGROUPS_H

#include "dialect/pipeline/Pipeline.h"
#include "llvm/ADT/DenseMap.h"

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

} // namespace pp

#endif // PP_DIALECT_BODYGROUPS_H
