// Shapes, kernels and costs of products that do a second kernel's work as well: those of the two ops they stand for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

INFER(LinearGeluOp) {
  Check check{"linear_gelu", loc};
  if (failed(check.operands(a, 2, 3)) ||
      failed(LinearOp::inferReturnTypes(context, loc, a.getOperands(), a.getAttributes(), nullptr, {}, types)))
    return failure();
  types.push_back(types.front());
  return success();
}

Dims LinearGeluOp::dims() { return {rowsOf(getX()), widthOf(getX()), widthOf(getU())}; }
double LinearGeluOp::flops() {
  return 2.0 * elementsOf(getU()) * widthOf(getX()) + (10 + (getBias() != nullptr)) * elementsOf(getU());
}
Flags LinearGeluOp::flags() { return flagsOf({{"transposed", getTransposed()}, {"bias", getBias() != nullptr}}); }
SmallVector<Value> LinearGeluOp::pointers() { return {getX(), getW(), getBias(), getU(), getY()}; }

INFER(LinearDxGeluOp) {
  Check check{"linear_dx_gelu", loc};
  ValueRange product = a.getOperands().take_front(2);
  if (failed(check.operands(a, 3, 3)) ||
      failed(LinearDxOp::inferReturnTypes(context, loc, product, a.getAttributes(), nullptr, {}, types)))
    return failure();
  return check.type("u", a.getU(), types.front());
}

Dims LinearDxGeluOp::dims() { return {rowsOf(getDy()), widthOf(getDu()), widthOf(getDy())}; }
double LinearDxGeluOp::flops() { return 2.0 * elementsOf(getDu()) * widthOf(getDy()) + 15.0 * elementsOf(getDu()); }
Flags LinearDxGeluOp::flags() { return flagsOf({{"transposed", getTransposed()}}); }

INFER(LinearDwBiasOp) {
  Check check{"linear_dw_bias", loc};
  if (failed(check.operands(a, 2, 4)))
    return failure();
  ValueRange product = a.getOperands().take_front(2);
  if (failed(LinearDwOp::inferReturnTypes(context, loc, product, a.getAttributes(), nullptr, {}, types)))
    return failure();
  types.push_back(inSums(a.getDy(), {widthOf(a.getDy())}));
  if (a.getAcc().size() == 1)
    return emitOptionalError(loc, "`linear_dw_bias` adds into both sums or none, got one");
  for (auto [acc, type] : llvm::zip(a.getAcc(), types))
    if (failed(check.into(acc, type)))
      return failure();
  return success();
}

Dims LinearDwBiasOp::dims() { return {rowsOf(getX()), widthOf(getX()), widthOf(getDy())}; }
double LinearDwBiasOp::flops() { return 2.0 * elementsOf(getX()) * widthOf(getDy()) + elementsOf(getDy()); }
Flags LinearDwBiasOp::flags() { return flagsOf({{"transposed", getTransposed()}, {"accumulate", !getAcc().empty()}}); }
SmallVector<Tie> LinearDwBiasOp::getRequiredTies() {
  return getAcc().empty() ? SmallVector<Tie>{} : SmallVector<Tie>{{0, 2}, {1, 3}};
}
