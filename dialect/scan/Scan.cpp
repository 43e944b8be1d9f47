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

/// Of rows like those of x the taps - 1 before a slice, or up to its end.
static RankedTensorType borderRows(Value x, int64_t taps) {
  auto type = tensorOf(x);
  return type.clone({type.getDimSize(0), taps - 1, type.getDimSize(2)});
}

static LogicalResult checkState(Check check, StringRef name, Value state, Type expected) {
  return !state ? success() : check.type(name, state, expected);
}

/// Where a slice's first row stands; of whole sequences it need not be said.
template <typename Op> static SmallVector<double> placeOf(Op op) {
  const auto offset = static_cast<int64_t>(op.getOffset());
  return offset == 0 ? SmallVector<double>() : SmallVector<double>{static_cast<double>(offset)};
}

INFER(ConvOp) {
  Check check{"conv", loc};
  if (failed(check.operands(a, 2, 4)) || failed(checkTaps(check, "x", a.getX(), a.getW())) ||
      failed(check.starts(a.getStarts(), a.getX())))
    return failure();
  RankedTensorType border = borderRows(a.getX(), widthOf(a.getW()));
  types.push_back(a.getX().getType());
  if (a.getCarries())
    types.push_back(border);
  return checkState(check, "state", a.getState(), border);
}

Dims ConvOp::dims() { return convDims(getX(), widthOf(getW())); }
Flags ConvOp::flags() { return flagsOf({{"documents", getStarts() != nullptr}}); }
SmallVector<double> ConvOp::params() { return placeOf(*this); }
SmallVector<Value> ConvOp::pointers() { return {getX(), getW(), getStarts(), getState(), getY(), getStateOut()}; }
double ConvOp::flops() { return 2.0 * elementsOf(getX()) * widthOf(getW()); }

INFER(ConvDxOp) {
  Check check{"conv_dx", loc};
  if (failed(check.operands(a, 2, 4)) || failed(checkTaps(check, "dy", a.getDy(), a.getW())) ||
      failed(check.starts(a.getStarts(), a.getDy())))
    return failure();
  RankedTensorType border = inSums(a.getDy(), borderRows(a.getDy(), widthOf(a.getW())).getShape());
  types.push_back(a.getDy().getType());
  if (a.getCarries())
    types.push_back(border);
  return checkState(check, "dstate_out", a.getDstateOut(), border);
}

Dims ConvDxOp::dims() { return convDims(getDy(), widthOf(getW())); }
Flags ConvDxOp::flags() { return flagsOf({{"documents", getStarts() != nullptr}}); }
SmallVector<double> ConvDxOp::params() { return placeOf(*this); }
SmallVector<Value> ConvDxOp::pointers() { return {getDy(), getW(), getStarts(), getDstateOut(), getDx(), getDstate()}; }
double ConvDxOp::flops() { return 2.0 * elementsOf(getDy()) * widthOf(getW()); }

INFER(ConvDwOp) {
  Check check{"conv_dw", loc};
  if (failed(check.operands(a, 2, 5)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)) ||
      failed(check.same("x", a.getX(), "dy", a.getDy())) || failed(check.starts(a.getStarts(), a.getX())))
    return failure();
  if (static_cast<int64_t>(a.getTaps()) < 1)
    return emitOptionalError(loc, "`conv_dw` expects at least 1 tap, got ", a.getTaps());
  if (failed(checkState(check, "state", a.getState(), borderRows(a.getX(), a.getTaps()))))
    return failure();
  types.push_back(inSums(a.getX(), {widthOf(a.getX()), 1, static_cast<int64_t>(a.getTaps())}));
  return check.into(a.getAcc(), types[0]);
}

Dims ConvDwOp::dims() { return convDims(getX(), getTaps()); }
Flags ConvDwOp::flags() {
  return flagsOf({{"accumulate", getAcc() != nullptr}, {"documents", getStarts() != nullptr}});
}
SmallVector<double> ConvDwOp::params() { return placeOf(*this); }
SmallVector<Value> ConvDwOp::pointers() { return {getX(), getDy(), getStarts(), getState(), getDw()}; }
double ConvDwOp::flops() { return 2.0 * elementsOf(getX()) * static_cast<double>(getTaps()); }

/// The gradient of a result. If nothing comes back for it, but for the state that goes on beside it, it is zero.
static Value gradientOf(Value result, Value later, Gradients &gradients) {
  Value own = gradients.get(result);
  return own || !later ? own : gradients.builder.create<ZeroOp>(result.getLoc(), result.getType()).getResult();
}

LogicalResult ConvOp::differentiate(Gradients &gradients) {
  Value later = getStateOut() ? gradients.get(getStateOut()) : Value(), dy = gradientOf(getY(), later, gradients);
  if (!dy)
    return success();
  auto dw = gradients.builder.create<ConvDwOp>(getLoc(), getX(), dy, getStarts(), getState(), gradients.get(getW()),
                                               widthOf(getW()), getOffset());
  auto dx = gradients.builder.create<ConvDxOp>(getLoc(), dy, getW(), getStarts(), later, getOffset(),
                                               /*carries=*/getState() != nullptr);
  gradients.set(getW(), dw);
  gradients.add(getLoc(), getX(), dx.getDx());
  if (getState())
    gradients.add(getLoc(), getState(), dx.getDstate());
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
  if (a.getShared() && a.getChannels())
    return emitOptionalError(check.loc, "`", check.op, "` expects `shared` or `channels`, got both");
  RankedTensorType numbers = inSums(a.getQ(), {rows[0], rows[1], heads});
  const int64_t decays = a.getChannels() ? heads * (widthOf(a.getQ()) / keys) : heads;
  return success(succeeded(check.type("decay", a.getDecay(), inSums(a.getQ(), {rows[0], rows[1], decays}))) &&
                 succeeded(check.type("beta", a.getBeta(), numbers)));
}

/// The states of all heads, at one place in each sequence.
template <typename Op> static RankedTensorType statesOf(Op op) {
  auto heads = static_cast<int64_t>(op.getHeads());
  return inSums(op.getQ(), {tensorOf(op.getQ()).getDimSize(0), heads, widthOf(op.getQ()) / keyHeadsOf(op),
                            widthOf(op.getV()) / heads});
}

/// As `placeOf`, and behind it whether each column of k has a decay of its own.
template <typename Op> static SmallVector<double> scanParams(Op op) {
  return op.getChannels() ? SmallVector<double>{static_cast<double>(op.getOffset()), 1} : placeOf(op);
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
  if (failed(check.operands(a, 5, 7)) || failed(checkScan(check, a)))
    return failure();
  types.push_back(a.getV().getType());
  if (a.getCarries())
    types.push_back(statesOf(a));
  return checkState(check, "state", a.getState(), statesOf(a));
}

Dims ScanOp::dims() { return scanDims(*this); }
Flags ScanOp::flags() { return scanFlags(*this); }
SmallVector<double> ScanOp::params() { return scanParams(*this); }
SmallVector<Value> ScanOp::pointers() {
  return {getQ(), getK(), getV(), getDecay(), getBeta(), getStarts(), getState(), getO(), getStateOut()};
}
double ScanOp::flops() { return scanFlops(*this, {4, 2, 2}, {6, 4, 2}); }

LogicalResult ScanOp::differentiate(Gradients &gradients) {
  Value later = getStateOut() ? gradients.get(getStateOut()) : Value(), dout = gradientOf(getO(), later, gradients);
  if (!dout)
    return success();
  auto backward = gradients.builder.create<ScanBwdOp>(getLoc(), dout, getQ(), getK(), getV(), getDecay(), getBeta(),
                                                      getStarts(), getState(), later, getHeads(), getKeyHeads(),
                                                      getDelta(), getShared(), getOffset(), getChannels());
  for (auto [gradient, value] : llvm::zip_first(backward.getResults().take_front(5), getOperands()))
    gradients.add(getLoc(), value, gradient); // `starts` has none
  if (getState())
    gradients.add(getLoc(), getState(), backward.getDstate());
  return success();
}

INFER(ScanBwdOp) {
  Check check{"scan_bwd", loc};
  if (failed(check.operands(a, 6, 9)) || failed(checkScan(check, a)) ||
      failed(check.same("dout", a.getDout(), "v", a.getV())))
    return failure();
  types.assign(
      {a.getQ().getType(), a.getK().getType(), a.getV().getType(), a.getDecay().getType(), a.getBeta().getType()});
  if (a.getState())
    types.push_back(statesOf(a));
  return success(succeeded(checkState(check, "state", a.getState(), statesOf(a))) &&
                 succeeded(checkState(check, "dstate_out", a.getDstateOut(), statesOf(a))));
}

Dims ScanBwdOp::dims() { return scanDims(*this); }
Flags ScanBwdOp::flags() { return scanFlags(*this); }
SmallVector<double> ScanBwdOp::params() { return scanParams(*this); }
SmallVector<Value> ScanBwdOp::pointers() {
  return {getDout(),      getQ(),  getK(),  getV(),  getDecay(),  getBeta(),  getStarts(), getState(),
          getDstateOut(), getDq(), getDk(), getDv(), getDdecay(), getDbeta(), getDstate()};
}
double ScanBwdOp::flops() { return scanFlops(*this, {12, 6, 6}, {16, 12, 8}); }
