// What the verifiers of the dialect share: an op names only ranks, microbatches and slices that its program has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_PIPELINERANGES_H
#define PP_DIALECT_PIPELINERANGES_H

#include "dialect/pipeline/Pipeline.h"

namespace pp::pipeline {

/// Sizes and places end here instead of overflowing; `plan-slots` refuses what is as large.
inline constexpr int64_t kMostBytes = int64_t(1) << 61;

/// One error at the op if the number is not one of `count` from 0 on.
mlir::LogicalResult verifyNumber(mlir::Operation *op, llvm::StringRef what, int64_t number, int64_t count);
mlir::LogicalResult verifyRanks(mlir::Operation *op, ProgramOp program, llvm::ArrayRef<int64_t> ranks);
/// A unit names a microbatch and, in a schedule with slices, a slice; an update may name no microbatch.
mlir::LogicalResult verifyUnit(mlir::Operation *op, ProgramOp program, UnitIdAttr unit);
/// The part of its unit that an op does: a share from 0 to 1, if it is given.
mlir::LogicalResult verifyShare(mlir::Operation *op, mlir::FloatAttr share);
/// `data`: the axes as messages name them.
std::string textOf(AxesAttr axes);
/// Checks a message over axes of the mesh: the program has a mesh, and the payload so many tensors. Null: over none.
mlir::LogicalResult verifyAxes(mlir::Operation *op, ProgramOp program, AxesAttr axes, std::optional<uint64_t> tensors,
                               mlir::TupleType payload);

} // namespace pp::pipeline

#endif // PP_DIALECT_PIPELINERANGES_H
