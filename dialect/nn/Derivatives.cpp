// Derivatives of the `nn` ops: each forward op turns the gradients of its results into those of its operands.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Weights come first, activations second: a rebuilt input is read by the weight's gradient alone, so it dies before the
// next gradient needs memory (docs/derivatives.md, "Temporaries"). A sum is continued in place (`acc`) wherever the
// kernel can.
#include "dialect/nn/Nn.h"

using namespace mlir;
using namespace pp::nn;

void Gradients::add(Location loc, Value value, Value gradient) {
  Value sum = get(value);
  set(value, sum ? builder.create<AddOp>(loc, sum, gradient).getZ() : gradient);
}

void Gradients::addToWeight(Location loc, Value weight, Value gradient) {
  Value sum = get(weight);
  set(weight, sum ? builder.create<AccumulateOp>(loc, gradient, sum, DenseI64ArrayAttr()).getY() : gradient);
}

LogicalResult EmbeddingOp::differentiate(Gradients &gradients) {
  Value dx = gradients.get(getX());
  if (!dx)
    return success();
  uint64_t vocab = cast<RankedTensorType>(getTable().getType()).getDimSize(0);
  auto table = gradients.builder.create<EmbeddingDwOp>(getLoc(), getTokens(), dx, gradients.get(getTable()), vocab,
                                                       getFirstAttr(), getWholeAttr(), getPad(), getFirstByAttr());
  gradients.set(getTable(), table);
  return success();
}

LogicalResult PositionsOp::differentiate(Gradients &gradients) {
  Value dx = gradients.get(getX());
  if (!dx)
    return success();
  uint64_t context = cast<RankedTensorType>(getTable().getType()).getDimSize(0);
  gradients.set(getTable(), gradients.builder.create<PositionsDwOp>(getLoc(), dx, gradients.get(getTable()), context,
                                                                    getOffset(), getZigzag()));
  return success();
}

LogicalResult LinearOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  OpBuilder &builder = gradients.builder;
  auto rounded = getX().getDefiningOp<QuantizeOp>(), roundedW = getW().getDefiningOp<QuantizeOp>();
  const bool inEightBits = rounded && roundedW;
  Value x = inEightBits ? rounded.getX() : getX(), w = inEightBits ? roundedW.getX() : getW();
  gradients.set(w, builder.create<LinearDwOp>(getLoc(), x, dy, gradients.get(w), getTransposed()));
  if (getBias())
    gradients.set(getBias(), builder.create<BiasDwOp>(getLoc(), dy, gradients.get(getBias())));
  Value turned = w;
  if (inEightBits) { // this product is a sum over w's other dimension
    dy = builder.create<QuantizeOp>(rounded.getLoc(), dy, rounded.getRows(), rounded.getColumns());
    turned = builder.create<QuantizeOp>(roundedW.getLoc(), w, roundedW.getColumns(), roundedW.getRows());
  }
  gradients.set(x, builder.create<LinearDxOp>(getLoc(), dy, turned, gradients.get(x), getTransposed()));
  return success();
}

LogicalResult QuantizeOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(), dy);
  return success();
}

LogicalResult OpaqueOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  OpBuilder &builder = gradients.builder;
  auto count = cast<RankedTensorType>(getW().getType()).getNumElements();
  gradients.set(getW(), builder.create<OpaqueDwOp>(getLoc(), dy, getKept(), gradients.get(getW()), getFlopsAttr(),
                                                   builder.getI64IntegerAttr(count)));
  gradients.set(getX(),
                builder.create<OpaqueDxOp>(getLoc(), dy, getW(), getKept(), gradients.get(getX()), getFlopsAttr()));
  return success();
}

Operation *LayernormOp::rebuild(OpBuilder &builder) {
  return builder.create<LayernormRebuildOp>(getLoc(), getX(), getGain(), getBias(), getMean(), getRstd());
}

LogicalResult LayernormOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  auto backward = gradients.builder.create<LayernormBwdOp>(getLoc(), dy, getX(), getGain(), getMean(), getRstd(),
                                                           gradients.get(getX()));
  gradients.addToWeight(getLoc(), getGain(), backward.getDgain());
  gradients.addToWeight(getLoc(), getBias(), backward.getDbias());
  gradients.set(getX(), backward.getDx());
  return success();
}

Operation *RmsnormOp::rebuild(OpBuilder &builder) {
  return builder.create<RmsnormRebuildOp>(getLoc(), getX(), getGain(), getRstd(), getPlus());
}

LogicalResult RmsnormOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  auto backward = gradients.builder.create<RmsnormBwdOp>(getLoc(), dy, getX(), getGain(), getRstd(),
                                                         gradients.get(getX()), getPlus());
  gradients.addToWeight(getLoc(), getGain(), backward.getDgain());
  gradients.set(getX(), backward.getDx());
  return success();
}

LogicalResult RopeOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  gradients.add(getLoc(), getX(),
                gradients.builder.create<RopeOp>(getLoc(), dy, getStarts(), getHeads(), getTheta(), getStyle(),
                                                 getOffset(), !getInverse(), getTableAttr(), getZigzag(), getPassing(),
                                                 getGrowthAttr()));
  return success();
}

LogicalResult GeluOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(), gradients.builder.create<GeluBwdOp>(getLoc(), dy, getX(), getExact()));
  return success();
}

LogicalResult SwigluOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  auto backward = gradients.builder.create<SwigluBwdOp>(getLoc(), dy, getP(), getQ(), getPacked());
  gradients.add(getLoc(), getP(), backward.getDp());
  if (getQ())
    gradients.add(getLoc(), getQ(), backward.getDq());
  return success();
}

LogicalResult GluOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  auto backward = gradients.builder.create<GluBwdOp>(getLoc(), dy, getP(), getQ(), getActivation(), getLimit(),
                                                     getAlpha(), getPlus(), getPacked());
  gradients.add(getLoc(), getP(), backward.getDp());
  if (getQ())
    gradients.add(getLoc(), getQ(), backward.getDq());
  return success();
}

LogicalResult AddOp::differentiate(Gradients &gradients) {
  Value dz = gradients.get(getZ());
  if (!dz)
    return success();
  gradients.add(getLoc(), getX(), dz);
  gradients.add(getLoc(), getY(), dz);
  return success();
}

LogicalResult AddBiasOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  gradients.set(getBias(), gradients.builder.create<BiasDwOp>(getLoc(), dy, gradients.get(getBias())));
  gradients.add(getLoc(), getX(), dy);
  return success();
}

LogicalResult ScaleOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(), gradients.builder.create<ScaleOp>(getLoc(), dy, getFactorAttr()));
  return success();
}

LogicalResult DropoutOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(),
                  gradients.builder.create<DropoutOp>(getLoc(), dy, getRows(), getRate(), getOffset(), getSite(),
                                                      getSites(), getZigzag()));
  return success();
}

LogicalResult pp::nn::SplitOp::differentiate(Gradients &gradients) {
  int64_t total = cast<RankedTensorType>(getX().getType()).getShape().back();
  int64_t start = 0;
  Value placed;
  bool lacks = !llvm::all_of(getColumns(), [&](Value value) { return gradients.get(value); }); // what nothing reads
  for (auto [column, width] : llvm::zip(getColumns(), runWidths())) {
    if (Value gradient = gradients.get(column))
      placed = gradients.builder.create<PlaceColumnsOp>(getLoc(), gradient, placed, start, total, getPeriods(),
                                                        /*shared=*/false, /*zeros=*/lacks && !placed);
    start += width;
  }
  if (placed)
    gradients.add(getLoc(), getX(), placed);
  return success();
}

LogicalResult ConcatOp::differentiate(Gradients &gradients) {
  Value dz = gradients.get(getZ());
  if (!dz)
    return success();
  OpBuilder &builder = gradients.builder;
  auto periods = static_cast<int64_t>(getPeriods());
  int64_t x = cast<RankedTensorType>(getX().getType()).getShape().back() / periods;
  int64_t y = cast<RankedTensorType>(dz.getType()).getShape().back() / periods - x;
  gradients.add(getLoc(), getX(), builder.create<SliceColumnsOp>(getLoc(), dz, 0, x, periods));
  gradients.add(getLoc(), getY(),
                getShared() ? builder.create<SumColumnsOp>(getLoc(), dz, x, y, periods).getY()
                            : builder.create<SliceColumnsOp>(getLoc(), dz, x, y, periods).getY());
  return success();
}

LogicalResult PadOp::differentiate(Gradients &gradients) {
  auto periods = static_cast<int64_t>(getPeriods());
  int64_t width = cast<RankedTensorType>(getX().getType()).getShape().back() / periods;
  if (Value dz = gradients.get(getZ()))
    gradients.add(getLoc(), getX(), gradients.builder.create<SliceColumnsOp>(getLoc(), dz, 0, width, periods));
  return success();
}

LogicalResult SplitRowsOp::differentiate(Gradients &gradients) {
  SmallVector<Value> runs;
  for (Value run : getRuns())
    if (Value gradient = gradients.get(run))
      runs.push_back(gradient);
  if (runs.empty())
    return success();
  if (runs.size() != getRuns().size())
    return emitError("expected every run of `split_rows` to be read; the gradient of one would be missing");
  int64_t batch = cast<RankedTensorType>(getX().getType()).getDimSize(0);
  gradients.add(getLoc(), getX(), gradients.builder.create<JoinRowsOp>(getLoc(), runs, batch));
  return success();
}

LogicalResult JoinRowsOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  SmallVector<int64_t> counts;
  for (Value run : getRuns())
    counts.push_back(cast<RankedTensorType>(run.getType()).getDimSize(1));
  auto split = gradients.builder.create<SplitRowsOp>(getLoc(), dy, counts);
  for (auto [run, gradient] : llvm::zip(getRuns(), split.getRuns()))
    gradients.add(getLoc(), run, gradient);
  return success();
}
