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

static bool isOfOperands(nn::View view) { return view.getWhole().getDefiningOp() == view; }

// A run that has a place already, or is needed whole elsewhere, cannot be computed inside what it is joined to.
void BodyPlan::copyParts() {
  Operation *end = terminator();
  auto copyFor = [](OpOperand &operand) {
    OpBuilder builder(operand.getOwner());
    operand.set(nn::copyOf(builder, operand.getOwner()->getLoc(), operand.get()));
  };
  llvm::DenseSet<Value> joined;
  for (auto view : body.front().getOps<nn::View>())
    for (OpOperand &run : isOfOperands(view) ? view->getOpOperands() : MutableArrayRef<OpOperand>())
      if (isa<BlockArgument>(run.get()) || isa<nn::View>(run.get().getDefiningOp()) || !joined.insert(run.get()).second)
        copyFor(run);
  for (OpOperand &operand : end->getOpOperands())
    if (auto view = operand.get().getDefiningOp<nn::View>();
        joined.contains(operand.get()) || (view && !isOfOperands(view)))
      copyFor(operand);
}

void BodyPlan::mergeViews(Operation &op) {
  if (auto view = dyn_cast<nn::View>(op))
    for (auto [part, offset] : view.getParts())
      merge(view.getWhole(), part, offset);
}
