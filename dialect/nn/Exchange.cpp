// Shapes of what devices of one rank hand each other, and of the views beside it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

INFER(SpreadOp) {
  Check check{"spread", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(AllReduceOp) {
  Check check{"all_reduce", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(AllGatherOp) {
  Check check{"all_gather", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  auto dim = static_cast<int64_t>(a.getDim()), members = static_cast<int64_t>(a.getMembers());
  SmallVector<int64_t> shape(tensorOf(a.getX()).getShape());
  if (dim < 0 || dim >= static_cast<int64_t>(shape.size()) || members < 1)
    return emitOptionalError(loc, "`all_gather` expects a dimension of x, which has ", shape.size(),
                             ", and at least 1 member, got dimension ", dim, " and ", members, " members");
  shape[dim] *= members;
  types.push_back(tensorOf(a.getX()).clone(shape));
  return success();
}

INFER(PieceOp) {
  Check check{"piece", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  auto index = static_cast<int64_t>(a.getIndex()), of = static_cast<int64_t>(a.getOf());
  SmallVector<int64_t> shape(tensorOf(a.getX()).getShape());
  if (shape.empty() || of < 1 || shape[0] % of != 0 || index < 0 || index >= of)
    return emitOptionalError(loc, "`piece` expects one of equal runs of x's first dimension, got number ", index,
                             " of ", of, " of ", a.getX().getType());
  shape[0] /= of;
  types.push_back(tensorOf(a.getX()).clone(shape));
  return success();
}

ExchangeKind AllReduceOp::getKind() { return ExchangeKind::all_reduce; }
ExchangeKind AllGatherOp::getKind() { return ExchangeKind::all_gather; }

//===-- Derivatives ---------------------------------------------------------------------------------------------===//

// What a device gets as gradient of its share of the work is a share; the gradient of a sum is all terms' gradient.
LogicalResult SpreadOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  Value sum = gradients.builder.create<AllReduceOp>(getLoc(), dy, getAxes(), getNeighboursAttr());
  gradients.weights.contains(getX()) ? gradients.addToWeight(getLoc(), getX(), sum)
                                     : gradients.add(getLoc(), getX(), sum);
  return success();
}

bool SpreadOp::isCheap() { return true; }

LogicalResult AllReduceOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(), gradients.builder.create<SpreadOp>(getLoc(), dy, getAxes(), getNeighboursAttr()));
  return success();
}

/// Of statistics: the loss does it.
LogicalResult AllGatherOp::differentiate(Gradients &) { return success(); }
LogicalResult PieceOp::differentiate(Gradients &) { return success(); }
