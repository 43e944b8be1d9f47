// Shapes, kernels, costs and derivatives of causal convolutions and of linear scans.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

//===-- Convolutions --------------------------------------------------------------------------------------------===//

/// x or dy, and the taps of its columns, which are stored as of a convolution of one channel a group.
static LogicalResult checkTaps(Check check, StringRef name, Value x, Value w) {
  if (failed(check.numbers(name, x)) || failed(check.rank(name, x, 3)) || failed(check.rank("w", w, 3)) ||
      failed(check.sameElements(name, x, "w", w)))
    return failure();
  ArrayRef<int64_t> shape = tensorOf(w).getShape();
  if (shape[0] != widthOf(x) || shape[1] != 1)
    return emitOptionalError(check.loc, "`", check.op, "` expects w as [columns of ", name, ", 1, taps], so [",
                             widthOf(x), ", 1, ..], got ", w.getType());
  return success();
}

static Dims convDims(Value x, int64_t taps) {
  auto type = tensorOf(x);
  return {type.getDimSize(0), type.getDimSize(1), type.getDimSize(2), taps};
}

INFER(ConvOp) {
  Check check{"conv", loc};
  if (failed(check.operands(a, 2, 3)) || failed(checkTaps(check, "x", a.getX(), a.getW())) ||
      failed(check.starts(a.getStarts(), a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

Dims ConvOp::dims() { return convDims(getX(), widthOf(getW())); }
Flags ConvOp::flags() { return flagsOf({{"documents", getStarts() != nullptr}}); }
SmallVector<Value> ConvOp::pointers() { return {getX(), getW(), getStarts(), getY()}; }
double ConvOp::flops() { return 2.0 * elementsOf(getX()) * widthOf(getW()); }

INFER(ConvDxOp) {
  Check check{"conv_dx", loc};
  if (failed(check.operands(a, 2, 3)) || failed(checkTaps(check, "dy", a.getDy(), a.getW())) ||
      failed(check.starts(a.getStarts(), a.getDy())))
    return failure();
  types.push_back(a.getDy().getType());
  return success();
}

Dims ConvDxOp::dims() { return convDims(getDy(), widthOf(getW())); }
Flags ConvDxOp::flags() { return flagsOf({{"documents", getStarts() != nullptr}}); }
SmallVector<Value> ConvDxOp::pointers() { return {getDy(), getW(), getStarts(), getDx()}; }
double ConvDxOp::flops() { return 2.0 * elementsOf(getDy()) * widthOf(getW()); }

INFER(ConvDwOp) {
  Check check{"conv_dw", loc};
  if (failed(check.operands(a, 2, 4)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)) ||
      failed(check.same("x", a.getX(), "dy", a.getDy())) || failed(check.starts(a.getStarts(), a.getX())))
    return failure();
  if (static_cast<int64_t>(a.getTaps()) < 1)
    return emitOptionalError(loc, "`conv_dw` expects at least 1 tap, got ", a.getTaps());
  types.push_back(inSums(a.getX(), {widthOf(a.getX()), 1, static_cast<int64_t>(a.getTaps())}));
  return check.into(a.getAcc(), types[0]);
}

Dims ConvDwOp::dims() { return convDims(getX(), getTaps()); }
Flags ConvDwOp::flags() {
  return flagsOf({{"accumulate", getAcc() != nullptr}, {"documents", getStarts() != nullptr}});
}
SmallVector<Value> ConvDwOp::pointers() { return {getX(), getDy(), getStarts(), getDw()}; }
double ConvDwOp::flops() { return 2.0 * elementsOf(getX()) * static_cast<double>(getTaps()); }

bool ConvOp::isCheap() { return true; }

LogicalResult ConvOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  gradients.set(getW(), gradients.builder.create<ConvDwOp>(getLoc(), getX(), dy, getStarts(), gradients.get(getW()),
                                                           widthOf(getW())));
  gradients.add(getLoc(), getX(), gradients.builder.create<ConvDxOp>(getLoc(), dy, getW(), getStarts()));
  return success();
}

//===-- Scans ---------------------------------------------------------------------------------------------------===//

template <typename Op> static int64_t keyHeadsOf(Op op) {
  return static_cast<int64_t>(op.getKeyHeads() ? op.getKeyHeads() : op.getHeads());
}

template <typename Adaptor> static LogicalResult checkScan(Check check, Adaptor a) {
  auto heads = static_cast<int64_t>(a.getHeads());
  int64_t keys = keyHeadsOf(a);
  if (failed(check.numbers("q", a.getQ())) || failed(check.rank("q", a.getQ(), 3)) ||
      failed(check.same("q", a.getQ(), "k", a.getK())) || failed(check.rank("v", a.getV(), 3)) ||
      failed(check.sameElements("q", a.getQ(), "v", a.getV())) ||
      failed(check.heads("v", widthOf(a.getV()), heads, false)) ||
      failed(check.heads("q", widthOf(a.getQ()), keys, false)) || failed(check.starts(a.getStarts(), a.getQ())))
    return failure();
  if (heads % keys != 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects heads that are a multiple of the ", keys,
                             " heads of q and k, got ", heads);
  if (a.getShared() && keys != 1)
    return emitOptionalError(check.loc, "`", check.op, "` expects one head of q and k where it is `shared`, got ",
                             keys);
  ArrayRef<int64_t> rows = tensorOf(a.getQ()).getShape().take_front(2);
  if (tensorOf(a.getV()).getShape().take_front(2) != rows)
    return emitOptionalError(check.loc, "`", check.op, "` expects q and v with the same rows, got ", a.getQ().getType(),
                             " and ", a.getV().getType());
  RankedTensorType numbers = inSums(a.getQ(), {rows[0], rows[1], heads});
  return success(succeeded(check.type("decay", a.getDecay(), numbers)) &&
                 succeeded(check.type("beta", a.getBeta(), numbers)));
}

template <typename Op> static Dims scanDims(Op op) {
  auto q = tensorOf(op.getQ());
  const int64_t heads = op.getHeads(), keys = keyHeadsOf(op);
  return {q.getDimSize(0), q.getDimSize(1), heads, keys, q.getDimSize(2) / keys, widthOf(op.getV()) / heads};
}

template <typename Op> static Flags scanFlags(Op op) {
  return flagsOf({{"delta", op.getDelta()}, {"documents", op.getStarts() != nullptr}});
}

/// Of each token and head: products with the state, and with the rows of its chunk, which has 32 (runtime/kernels).
template <typename Op> static double scanFlops(Op op, std::array<double, 3> linear, std::array<double, 3> delta) {
  Dims dims = scanDims(op);
  auto d = static_cast<double>(dims[4]), e = static_cast<double>(dims[5]);
  const std::array<double, 3> &its = op.getDelta() ? delta : linear;
  return static_cast<double>(dims[0] * dims[1] * dims[2]) * (its[0] * d * e + 32 * (its[1] * d + its[2] * e));
}

INFER(ScanOp) {
  Check check{"scan", loc};
  if (failed(check.operands(a, 5, 6)) || failed(checkScan(check, a)))
    return failure();
  types.push_back(a.getV().getType());
  return success();
}

Dims ScanOp::dims() { return scanDims(*this); }
Flags ScanOp::flags() { return scanFlags(*this); }
SmallVector<Value> ScanOp::pointers() { return {getQ(), getK(), getV(), getDecay(), getBeta(), getStarts(), getO()}; }
double ScanOp::flops() { return scanFlops(*this, {4, 2, 2}, {6, 4, 2}); }

LogicalResult ScanOp::differentiate(Gradients &gradients) {
  Value dout = gradients.get(getO());
  if (!dout)
    return success();
  auto backward = gradients.builder.create<ScanBwdOp>(getLoc(), dout, getQ(), getK(), getV(), getDecay(), getBeta(),
                                                      getStarts(), getHeads(), getKeyHeads(), getDelta(), getShared());
  for (auto [gradient, value] : llvm::zip_first(backward.getResults(), getOperands())) // `starts` has none
    gradients.add(getLoc(), value, gradient);
  return success();
}

INFER(ScanBwdOp) {
  Check check{"scan_bwd", loc};
  if (failed(check.operands(a, 6, 7)) || failed(checkScan(check, a)) ||
      failed(check.same("dout", a.getDout(), "v", a.getV())))
    return failure();
  types.assign(
      {a.getQ().getType(), a.getK().getType(), a.getV().getType(), a.getDecay().getType(), a.getBeta().getType()});
  return success();
}

Dims ScanBwdOp::dims() { return scanDims(*this); }
Flags ScanBwdOp::flags() { return scanFlags(*this); }
SmallVector<Value> ScanBwdOp::pointers() {
  SmallVector<Value> all = {getDout(), getQ(), getK(), getV(), getDecay(), getBeta(), getStarts()};
  llvm::append_range(all, getResults());
  return all;
}
double ScanBwdOp::flops() { return scanFlops(*this, {12, 6, 6}, {16, 12, 8}); }
