// Plans views: rows and runs of a tensor lie in it, and rows that are concatenated are computed in their final place.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: %a = nn.rows %x {start = 8, ..}   %u = nn.linear %a, %w   %y = nn.join_rows %t, %u      %x at 0, %y at 4096
// After:  %a at [0, 256]                    %u at [-1, 4352]        %y at [-1, 4096]              of 32 bytes a row
//
// One buffer then holds values beside each other; it lives from the first run that is written to the last that is read.
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "passes/project/BodyPlan.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

int64_t BodyPlan::bytesOf(Value value) {
  return llvm::alignTo(tensorBytes(cast<RankedTensorType>(value.getType())), kAlignment);
}

// A run that has a place already, or is needed whole elsewhere, cannot be computed inside what it is joined to.
void BodyPlan::copyParts() {
  Operation *end = terminator();
  auto copyFor = [](OpOperand &operand) {
    OpBuilder builder(operand.getOwner());
    operand.set(builder.create<nn::CopyOp>(operand.getOwner()->getLoc(), operand.get(), Value()).getY());
  };
  llvm::DenseSet<Value> joined;
  for (auto join : body.front().getOps<nn::JoinRowsOp>())
    for (OpOperand &run : join->getOpOperands())
      if (isa<BlockArgument>(run.get()) || run.get().getDefiningOp()->hasTrait<nn::View>() ||
          !joined.insert(run.get()).second)
        copyFor(run);
  for (OpOperand &operand : end->getOpOperands())
    if (joined.contains(operand.get()) ||
        isa_and_nonnull<nn::RowsOp, nn::SpreadOp, nn::PieceOp>(operand.get().getDefiningOp()))
      copyFor(operand);
}

void BodyPlan::mergeViews(Operation &op) {
  if (auto rows = dyn_cast<nn::RowsOp>(op)) {
    auto type = cast<RankedTensorType>(rows.getY().getType());
    merge(rows.getX(), rows.getY(), tensorBytes(type) / type.getDimSize(1) * static_cast<int64_t>(rows.getStart()));
  }
  if (auto spread = dyn_cast<nn::SpreadOp>(op))
    merge(spread.getX(), spread.getY());
  if (auto piece = dyn_cast<nn::PieceOp>(op))
    merge(piece.getX(), piece.getY(),
          tensorBytes(cast<RankedTensorType>(piece.getY().getType())) * static_cast<int64_t>(piece.getIndex()));
  int64_t offset = 0;
  if (auto join = dyn_cast<nn::JoinRowsOp>(op))
    for (Value run : join.getRuns()) {
      merge(join.getY(), run, offset);
      offset += tensorBytes(cast<RankedTensorType>(run.getType()));
    }
}
