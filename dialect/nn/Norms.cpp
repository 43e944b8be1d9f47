// Shapes, kernels and costs of the norms.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

/// A gain or bias of a norm of x.
static LogicalResult checkPerColumn(Check check, StringRef name, Value vector, Value x) {
  return success(succeeded(check.rank(name, vector, 1)) &&
                 succeeded(check.equal("x's width", widthOf(x), name.str() + "'s width", widthOf(vector))) &&
                 succeeded(check.sameElements("x", x, name, vector)));
}

INFER(LayernormOp) {
  Check check{"layernorm", loc};
  if (failed(check.operands(a, 3, 3)) || failed(check.numbers("x", a.getX())) ||
      failed(checkPerColumn(check, "the gain", a.getGain(), a.getX())) ||
      failed(checkPerColumn(check, "the bias", a.getBias(), a.getX())))
    return failure();
  types.assign({a.getX().getType(), statistic(a.getX()), statistic(a.getX())});
  return success();
}

INFER(LayernormRebuildOp) {
  Check check{"layernorm_rebuild", loc};
  if (failed(check.operands(a, 5, 5)) || failed(checkPerColumn(check, "the gain", a.getGain(), a.getX())) ||
      failed(checkPerColumn(check, "the bias", a.getBias(), a.getX())) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "mean's elements", elementsOf(a.getMean()))) ||
      failed(check.same("mean", a.getMean(), "rstd", a.getRstd())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(LayernormBwdOp) {
  Check check{"layernorm_bwd", loc};
  if (failed(check.operands(a, 5, 6)) || failed(check.same("dy", a.getDy(), "x", a.getX())) ||
      failed(checkPerColumn(check, "the gain", a.getGain(), a.getX())) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "mean's elements", elementsOf(a.getMean()))) ||
      failed(check.same("mean", a.getMean(), "rstd", a.getRstd())))
    return failure();
  Type hand = inSums(a.getX(), {widthOf(a.getX())});
  types.assign({a.getX().getType(), hand, hand});
  return check.into(a.getAcc(), types[0]);
}

/// A gain that the heads of x share.
static LogicalResult checkPerHead(Check check, Value gain, Value x, int64_t heads) {
  if (heads == 1)
    return checkPerColumn(check, "the gain", gain, x);
  return success(
      succeeded(check.heads("x", widthOf(x), heads, /*even=*/false)) && succeeded(check.rank("the gain", gain, 1)) &&
      succeeded(check.equal("the width of x's heads", widthOf(x) / heads, "the gain's width", widthOf(gain))) &&
      succeeded(check.sameElements("x", x, "the gain", gain)));
}

/// The number of heads that share the gain; 1 if its width does not divide that of x.
static int64_t headsOf(Value x, Value gain) {
  return tensorOf(gain).getRank() == 1 && widthOf(gain) > 0 && widthOf(x) % widthOf(gain) == 0
             ? widthOf(x) / widthOf(gain)
             : 1;
}

/// The kernel sees each head as a row.
static Dims rowsOfHeads(Value x, Value gain) { return {elementsOf(x) / widthOf(gain), widthOf(gain)}; }

static LogicalResult checkPlus(Check check, int64_t plus) {
  if (plus == 0 || plus == 1)
    return success();
  return emitOptionalError(check.loc, "`", check.op, "` expects a `plus` of 0 or 1, got ", plus);
}

INFER(RmsnormOp) {
  Check check{"rmsnorm", loc};
  auto heads = static_cast<int64_t>(a.getHeads());
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) ||
      failed(checkPlus(check, a.getPlus())) || failed(checkPerHead(check, a.getGain(), a.getX(), heads)))
    return failure();
  RankedTensorType rstd = statistic(a.getX());
  if (heads > 1) {
    SmallVector<int64_t> shape(rstd.getShape());
    shape.push_back(heads);
    rstd = rstd.clone(shape);
  }
  types.assign({a.getX().getType(), rstd});
  return success();
}

INFER(RmsnormRebuildOp) {
  Check check{"rmsnorm_rebuild", loc};
  if (failed(check.operands(a, 3, 3)) || failed(checkPlus(check, a.getPlus())) ||
      failed(checkPerHead(check, a.getGain(), a.getX(), headsOf(a.getX(), a.getGain()))) ||
      failed(check.equal("x's rows", elementsOf(a.getX()) / widthOf(a.getGain()), "rstd's elements",
                         elementsOf(a.getRstd()))))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(RmsnormBwdOp) {
  Check check{"rmsnorm_bwd", loc};
  if (failed(check.operands(a, 4, 5)) || failed(check.same("dy", a.getDy(), "x", a.getX())) ||
      failed(checkPlus(check, a.getPlus())) ||
      failed(checkPerHead(check, a.getGain(), a.getX(), headsOf(a.getX(), a.getGain()))) ||
      failed(check.equal("x's rows", elementsOf(a.getX()) / widthOf(a.getGain()), "rstd's elements",
                         elementsOf(a.getRstd()))))
    return failure();
  types.assign({a.getX().getType(), inSums(a.getX(), {widthOf(a.getGain())})});
  return check.into(a.getAcc(), types[0]);
}

Dims LayernormOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
SmallVector<double> LayernormOp::params() { return {getEpsilon().convertToDouble()}; }
double LayernormOp::flops() { return 8.0 * elementsOf(getX()); }

Dims LayernormRebuildOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
double LayernormRebuildOp::flops() { return 4.0 * elementsOf(getX()); }

Dims LayernormBwdOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
double LayernormBwdOp::flops() { return 12.0 * elementsOf(getX()); }
Flags LayernormBwdOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

Dims RmsnormOp::dims() { return rowsOfHeads(getX(), getGain()); }
SmallVector<double> RmsnormOp::params() { return {getEpsilon().convertToDouble()}; }
Flags RmsnormOp::flags() { return flagsOf({{"plus_one", getPlus() == 1}}); }
double RmsnormOp::flops() { return 8.0 * elementsOf(getX()); }

Dims RmsnormRebuildOp::dims() { return rowsOfHeads(getX(), getGain()); }
Flags RmsnormRebuildOp::flags() { return flagsOf({{"plus_one", getPlus() == 1}}); }
double RmsnormRebuildOp::flops() { return 2.0 * elementsOf(getX()); }

Dims RmsnormBwdOp::dims() { return rowsOfHeads(getX(), getGain()); }
double RmsnormBwdOp::flops() { return 12.0 * elementsOf(getX()); }
Flags RmsnormBwdOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}, {"plus_one", getPlus() == 1}}); }
