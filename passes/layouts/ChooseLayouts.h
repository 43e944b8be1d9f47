// Chooses what each device of the tensor axis has of every value in a run of the model's parts, and of every weight.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_CHOOSELAYOUTS_H
#define PP_PASSES_CHOOSELAYOUTS_H

#include "dialect/pipeline/Pipeline.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/layouts/Layouts.h"

namespace pp {

/// The choice for the parts: for each op the layouts of its operands, in order, and of its results.
struct LayoutChoice {
  struct Step {
    llvm::SmallVector<nn::DeviceLayout> operands, results;
  };
  llvm::DenseMap<mlir::Operation *, Step> steps; ///< terminators included, which make nothing
  llvm::DenseMap<mlir::Value, nn::DeviceLayout> arguments;
};

/// `parts` follow each other: each reads what the one before it returns. The first one's inputs and the last one's
/// results are whole, or with `inRows` runs of rows. Errors are at the ops.
mlir::FailureOr<LayoutChoice> chooseLayouts(llvm::ArrayRef<mlir::func::FuncOp> parts, int64_t devices, bool inRows);

/// An error unless each device has whole heads of queries, and whole heads of keys or one shared with neighbours.
mlir::LogicalResult checkHeads(nn::Attends attention, int64_t devices);

/// Whether an op that reads vocabularies' tables has them cut without need of a divisor (they are padded).
bool isVocabulary(mlir::Value weight, const nn::DeviceLayout &layout);

/// The part's settings `again` and `attention`; the mesh's settings if the part has none.
pipeline::Again againOf(mlir::func::FuncOp part, pipeline::MeshAttr mesh);
pipeline::Meeting meetingOf(mlir::func::FuncOp part, pipeline::MeshAttr mesh);

/// The arguments that come from the part before.
llvm::SmallVector<mlir::BlockArgument> flowOf(mlir::func::FuncOp part);

} // namespace pp

#endif // PP_PASSES_CHOOSELAYOUTS_H
