// Shapes, kernels and costs of losses: cross-entropy, whole or over shards of the vocabulary, and formulas of tokens.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

/// A number of at least 0.
static LogicalResult checkLimit(Check check, StringRef name, const APFloat &value) {
  if (!value.isNegative() && value.isFinite())
    return success();
  return emitOptionalError(check.loc, "`", check.op, "` expects a `", name, "` of at least 0, got ",
                           value.convertToDouble());
}

/// Logits [.., V] and one target for each row; the cap of the logits, 0 for none.
static LogicalResult checkLogits(Check check, Value z, Value targets, const APFloat &softcap) {
  if (failed(check.numbers("the logits", z)) || failed(check.tokens("the targets", targets)))
    return failure();
  if (failed(checkLimit(check, "softcap", softcap)))
    return failure();
  return check.equal("the logits' rows", rowsOf(z), "the targets", elementsOf(targets));
}

/// The loss, and behind it its z-loss if there is one.
static RankedTensorType lossType(Value like, const APFloat &zLoss) {
  return inSums(like, SmallVector<int64_t>{zLoss.isZero() ? 1 : 2});
}

INFER(CrossEntropyOp) {
  Check check{"cross_entropy", loc};
  if (failed(check.operands(a, 2, 2)) || failed(checkLogits(check, a.getZ(), a.getTargets(), a.getSoftcap())) ||
      failed(check.vocabulary(widthOf(a.getZ()))) || failed(checkLimit(check, "z_loss", a.getZLoss())))
    return failure();
  types.push_back(lossType(a.getZ(), a.getZLoss()));
  return success();
}

INFER(CrossEntropyBwdOp) {
  Check check{"cross_entropy_bwd", loc};
  if (failed(check.operands(a, 2, 2)) || failed(checkLogits(check, a.getZ(), a.getTargets(), a.getSoftcap())) ||
      failed(checkLimit(check, "z_loss", a.getZLoss())))
    return failure();
  types.assign({a.getZ().getType(), lossType(a.getZ(), a.getZLoss())});
  return success();
}

/// A cap follows the other numbers, how far on targets are the cap, and a z-loss that; up to the last that is not 0.
static SmallVector<double> withCap(SmallVector<double> params, double softcap, double ahead = 0, double zLoss = 0) {
  if (softcap != 0 || ahead != 0 || zLoss != 0)
    params.push_back(softcap);
  if (ahead != 0 || zLoss != 0)
    params.push_back(ahead);
  if (zLoss != 0)
    params.push_back(zLoss);
  return params;
}
template <typename Op> static double aheadOf(Op op) { return op.getCounted() ? static_cast<double>(op.getAhead()) : 0; }

StringRef CrossEntropyBwdOp::kernelName() { return "cross_entropy"; }
Dims CrossEntropyBwdOp::dims() { return {rowsOf(getZ()), widthOf(getZ())}; }
SmallVector<double> CrossEntropyBwdOp::params() {
  return withCap({getScale().convertToDouble()}, getSoftcap().convertToDouble(), aheadOf(*this),
                 getZLoss().convertToDouble());
}
Flags CrossEntropyBwdOp::flags() { return flagsOf({{"counted", getCounted()}}); }
double CrossEntropyBwdOp::flops() { return 8.0 * elementsOf(getZ()); }

//===-- Shards of the vocabulary --------------------------------------------------------------------------------===//

/// The columns of z are [first, first + width) of the vocabulary; of devices that begin one behind the other, the first
/// one's.
static LogicalResult checkShard(Check check, Value z, int64_t first, int64_t vocab) {
  if (first >= 0 && first + widthOf(z) <= vocab)
    return success();
  return emitOptionalError(check.loc, "`", check.op, "` expects columns of a vocabulary of ", vocab, ", got ", first,
                           " to ", first + widthOf(z));
}

/// Largest logit, sum of exponentials and the target's logit of each row; or three and what is picked.
static RankedTensorType lossStatistics(Value z, Value ids = {}) {
  SmallVector<int64_t> shape(tensorOf(z).getShape());
  shape.back() = ids ? 3 + elementsOf(ids) / rowsOf(z) : 3;
  return inSums(z, shape);
}

static LogicalResult checkStatistics(Check check, Value stats, bool mayHavePicks = false) {
  if (failed(check.numbers("the statistics", stats)))
    return failure();
  if (widthOf(stats) == 3 || (mayHavePicks && widthOf(stats) > 3))
    return success();
  return emitOptionalError(check.loc, "`", check.op, "` expects 3 statistics in each row",
                           mayHavePicks ? " or more" : "", ", got ", widthOf(stats));
}

/// Columns [batch, length] or [batch, length, k], one or k of each row of logits.
static LogicalResult checkIds(Check check, Value z, Value targets, Value ids) {
  if (failed(check.rank("the logits", z, 3)))
    return failure();
  ArrayRef<int64_t> shape = tensorOf(ids).getShape(), rows = tensorOf(targets).getShape();
  if (tensorOf(ids).getElementType().isInteger(32) &&
      (shape == rows || (shape.size() == 3 && shape.take_front(2) == rows)))
    return success();
  return emitOptionalError(check.loc, "`", check.op, "` expects columns to pick as i32 [", rows[0], ", ", rows[1],
                           "] or [", rows[0], ", ", rows[1], ", k], got ", ids.getType());
}

INFER(CrossEntropyStatsOp) {
  Check check{"cross_entropy_stats", loc};
  if (failed(check.operands(a, 2, 3)) || failed(checkLogits(check, a.getZ(), a.getTargets(), a.getSoftcap())) ||
      failed(checkShard(check, a.getZ(), a.getFirst(), a.getVocab())) ||
      (a.getIds() && failed(checkIds(check, a.getZ(), a.getTargets(), a.getIds()))))
    return failure();
  types.push_back(lossStatistics(a.getZ(), a.getIds()));
  return success();
}

INFER(CrossEntropyMergeOp) {
  Check check{"cross_entropy_merge", loc};
  if (failed(check.operands(a, 1, std::numeric_limits<size_t>::max())) ||
      failed(checkStatistics(check, a.getParts()[0], /*mayHavePicks=*/true)))
    return failure();
  for (Value part : a.getParts())
    if (failed(check.same("the first part", a.getParts()[0], "every other", part)))
      return failure();
  types.push_back(a.getParts()[0].getType());
  return success();
}

INFER(CrossEntropyLossOp) {
  Check check{"cross_entropy_loss", loc};
  if (failed(check.operands(a, 2, 2)) || failed(checkStatistics(check, a.getStats())) ||
      failed(check.tokens("the targets", a.getTargets())) || failed(checkLimit(check, "z_loss", a.getZLoss())) ||
      failed(check.equal("the statistics' rows", rowsOf(a.getStats()), "the targets", elementsOf(a.getTargets()))))
    return failure();
  types.push_back(lossType(a.getStats(), a.getZLoss()));
  return success();
}

INFER(CrossEntropyDzOp) {
  Check check{"cross_entropy_dz", loc};
  if (failed(check.operands(a, 3, 3)) || failed(checkLogits(check, a.getZ(), a.getTargets(), a.getSoftcap())) ||
      failed(checkShard(check, a.getZ(), a.getFirst(), a.getVocab())) ||
      failed(checkLimit(check, "z_loss", a.getZLoss())) ||
      failed(check.type("the statistics", a.getStats(), lossStatistics(a.getZ()))))
    return failure();
  types.push_back(a.getZ().getType());
  return success();
}

template <typename Op> static Dims shardDims(Op op) {
  return {rowsOf(op.getZ()), widthOf(op.getZ()), static_cast<int64_t>(op.getFirst()),
          static_cast<int64_t>(op.getVocab())};
}

template <typename Op> static SmallVector<Varying> firstColumn(Op op) {
  return op.getFirstBy() ? SmallVector<Varying>{{2, *op.getFirstBy(), widthOf(op.getZ())}} : SmallVector<Varying>();
}

StringRef CrossEntropyStatsOp::kernelName() { return getIds() ? "token_shard" : "cross_entropy_stats"; }
Dims CrossEntropyStatsOp::dims() {
  Dims dims = shardDims(*this);
  if (getIds())
    dims.push_back(widthOf(getStats()) - 3);
  return dims;
}
SmallVector<Varying> CrossEntropyStatsOp::varying() { return firstColumn(*this); }
SmallVector<Varying> CrossEntropyDzOp::varying() { return firstColumn(*this); }
SmallVector<double> CrossEntropyStatsOp::params() { return withCap({}, getSoftcap().convertToDouble()); }
double CrossEntropyStatsOp::flops() { return (getIds() ? 8.0 : 5.0) * elementsOf(getZ()); }
StringRef CrossEntropyMergeOp::kernelName() { return widthOf(getStats()) > 3 ? "token_merge" : "cross_entropy_merge"; }
Dims CrossEntropyMergeOp::dims() {
  Dims dims = {rowsOf(getStats()), static_cast<int64_t>(getParts().size())};
  if (const int64_t width = widthOf(getStats()); width > 3)
    dims.push_back(width);
  return dims;
}
double CrossEntropyMergeOp::flops() { return 5.0 * rowsOf(getStats()) * static_cast<double>(getParts().size()); }
SmallVector<Run> CrossEntropyMergeOp::lists() { return {{0, static_cast<unsigned>(getParts().size())}}; }
Dims CrossEntropyLossOp::dims() { return {rowsOf(getStats())}; }
SmallVector<double> CrossEntropyLossOp::params() {
  return withCap({getScale().convertToDouble()}, 0, aheadOf(*this), getZLoss().convertToDouble());
}
Flags CrossEntropyLossOp::flags() { return flagsOf({{"counted", getCounted()}}); }
Dims CrossEntropyDzOp::dims() { return shardDims(*this); }
double CrossEntropyDzOp::flops() { return 3.0 * elementsOf(getZ()); }
SmallVector<double> CrossEntropyDzOp::params() {
  return withCap({getScale().convertToDouble()}, getSoftcap().convertToDouble(), aheadOf(*this),
                 getZLoss().convertToDouble());
}
Flags CrossEntropyDzOp::flags() { return flagsOf({{"counted", getCounted()}}); }

//===-- Formulas of tokens --------------------------------------------------------------------------------------===//

static LogicalResult checkPicked(Check check, Value z, Value targets, Value ids, const APFloat &softcap) {
  if (failed(checkLogits(check, z, targets, softcap)) || failed(check.vocabulary(widthOf(z))))
    return failure();
  return checkIds(check, z, targets, ids);
}

INFER(TokenStatsOp) {
  Check check{"token_stats", loc};
  if (failed(check.operands(a, 3, 3)) ||
      failed(checkPicked(check, a.getZ(), a.getTargets(), a.getIds(), a.getSoftcap())))
    return failure();
  Type row = statistic(a.getZ());
  types.assign({row, row, row, inSums(a.getZ(), tensorOf(a.getIds()).getShape())});
  return success();
}

INFER(TokenRowsOp) {
  Check check{"token_rows", loc};
  Value stats = a.getStats();
  if (failed(check.operands(a, 3, 3)) || failed(check.numbers("the statistics", stats)) ||
      failed(check.tokens("the targets", a.getTargets())) ||
      failed(checkIds(check, stats, a.getTargets(), a.getIds())) ||
      failed(check.equal("the statistics' rows", rowsOf(stats), "the targets", elementsOf(a.getTargets()))) ||
      failed(check.type("the statistics", stats, lossStatistics(stats, a.getIds()))))
    return failure();
  Type row = inSums(stats, tensorOf(a.getTargets()).getShape());
  types.assign({row, row, row, inSums(stats, tensorOf(a.getIds()).getShape())});
  return success();
}

INFER(TokenStatsBwdOp) {
  Check check{"token_stats_bwd", loc};
  if (failed(check.operands(a, 9, 9)) ||
      failed(checkPicked(check, a.getZ(), a.getTargets(), a.getIds(), a.getSoftcap())) ||
      (a.getVocab() > 0 && failed(checkShard(check, a.getZ(), a.getFirst(), a.getVocab()))))
    return failure();
  Type row = statistic(a.getZ());
  for (Value each : {a.getLse(), a.getMeanP(), a.getDlse(), a.getDmeanP(), a.getDmean()})
    if (failed(check.type("statistics", each, row)))
      return failure();
  if (failed(check.type("the gradient of what was picked", a.getDpicks(),
                        inSums(a.getZ(), tensorOf(a.getIds()).getShape()))))
    return failure();
  types.push_back(a.getZ().getType());
  return success();
}

/// A number in the type of sums and a target for each token, and perhaps where its segment begins. The values are those
/// of one of so many devices that have two runs of each row.
static LogicalResult checkTokens(Check check, Value v, Value targets, Value starts, int64_t devices = 0) {
  if (failed(check.numbers("the values", v)) || failed(check.tokens("the targets", targets)) ||
      (starts && failed(check.same("the targets", targets, "the starts", starts))))
    return failure();
  SmallVector<int64_t> shape(tensorOf(targets).getShape());
  if (devices > 0 && (shape.size() != 2 || shape[1] % (2 * devices) != 0))
    return emitOptionalError(check.loc, "`", check.op, "`: `zigzag` = ", devices, " does not cut rows of ",
                             shape.back());
  if (devices > 0)
    shape[1] /= devices;
  return check.type("the values", v, inSums(v, shape));
}

INFER(SegmentSumOp) {
  Check check{"segment_sum", loc};
  if (failed(check.operands(a, 3, 3)) || failed(checkTokens(check, a.getV(), a.getTargets(), a.getStarts())))
    return failure();
  auto type = tensorOf(a.getV());
  const auto devices = static_cast<int64_t>(a.getZigzag());
  if (devices > 0 && type.getDimSize(1) % (2 * devices) != 0)
    return emitOptionalError(loc, "`segment_sum`: `zigzag` = ", devices, " does not cut rows of ", type.getDimSize(1));
  types.push_back(devices > 0 ? type.clone({type.getDimSize(0), type.getDimSize(1) / devices}) : type);
  return success();
}

INFER(TokenMeanOp) {
  Check check{"token_mean", loc};
  if (failed(check.operands(a, 2, 3)) ||
      failed(checkTokens(check, a.getV(), a.getTargets(), a.getStarts(), a.getZigzag())))
    return failure();
  types.push_back(inSums(a.getV(), SmallVector<int64_t>{1}));
  return success();
}

INFER(TokenMeanBwdOp) {
  Check check{"token_mean_bwd", loc};
  if (failed(check.operands(a, 2, 3)) ||
      failed(checkTokens(check, a.getV(), a.getTargets(), a.getStarts(), a.getZigzag())))
    return failure();
  types.assign({a.getV().getType(), inSums(a.getV(), SmallVector<int64_t>{1})});
  return success();
}

template <typename Op> static Dims tokenDims(Op op) {
  return {rowsOf(op.getZ()), widthOf(op.getZ()), elementsOf(op.getIds()) / rowsOf(op.getZ())};
}
Dims TokenStatsOp::dims() { return tokenDims(*this); }
SmallVector<double> TokenStatsOp::params() { return withCap({}, getSoftcap().convertToDouble()); }
double TokenStatsOp::flops() { return 8.0 * elementsOf(getZ()); }
Dims TokenStatsBwdOp::dims() {
  Dims dims = tokenDims(*this);
  dims.append({static_cast<int64_t>(getFirst()), getVocab() > 0 ? static_cast<int64_t>(getVocab()) : widthOf(getZ())});
  return dims;
}
SmallVector<Varying> TokenStatsBwdOp::varying() {
  return getFirstBy() ? SmallVector<Varying>{{3, *getFirstBy(), widthOf(getZ())}} : SmallVector<Varying>();
}
SmallVector<double> TokenStatsBwdOp::params() { return withCap({}, getSoftcap().convertToDouble()); }
double TokenStatsBwdOp::flops() { return 8.0 * elementsOf(getZ()); }

Dims TokenRowsOp::dims() { return {rowsOf(getStats()), widthOf(getStats()) - 3}; }

/// The own runs of each row.
template <typename Op> static TwoRuns ownRuns(Op op) {
  return {static_cast<int64_t>(op.getZigzag()), widthOf(op.getTargets()), op.getContext()};
}
/// Own tokens, and those of a row; where they begin, and the length of a whole row.
template <typename Op> static Dims rowDims(Op op) {
  const TwoRuns runs = ownRuns(op);
  const int64_t parts = std::max<int64_t>(runs.devices, 1), whole = widthOf(op.getTargets());
  Dims dims = {elementsOf(op.getTargets()) / parts, whole / parts, 0, whole};
  runs.addTo(dims);
  return dims;
}
/// Where a device's two runs begin.
template <typename Op> static SmallVector<Varying> rowsVarying(Op op) { return ownRuns(op).varying(2, 4); }
Dims SegmentSumOp::dims() { return rowDims(*this); }
SmallVector<Varying> SegmentSumOp::varying() { return rowsVarying(*this); }
SmallVector<Varying> TokenMeanOp::varying() { return rowsVarying(*this); }
SmallVector<Varying> TokenMeanBwdOp::varying() { return rowsVarying(*this); }
Flags SegmentSumOp::flags() { return flagsOf({{"mean", getMean()}, {"zigzag", getZigzag() > 0}}); }
double SegmentSumOp::flops() { return elementsOf(getV()); }

template <typename Op> static SmallVector<double> meanParams(Op op) {
  return withCap({op.getScale().convertToDouble()}, /*softcap=*/0,
                 op.getCounted() ? static_cast<double>(op.getDivisor()) : 0);
}
Dims TokenMeanOp::dims() { return rowDims(*this); }
SmallVector<double> TokenMeanOp::params() { return meanParams(*this); }
Flags TokenMeanOp::flags() { return flagsOf({{"counted", getCounted()}, {"zigzag", getZigzag() > 0}}); }
SmallVector<Value> TokenMeanOp::pointers() { return {getV(), getTargets(), getStarts(), getLoss()}; }
double TokenMeanOp::flops() { return elementsOf(getV()); }
Dims TokenMeanBwdOp::dims() { return rowDims(*this); }
SmallVector<double> TokenMeanBwdOp::params() { return meanParams(*this); }
Flags TokenMeanBwdOp::flags() { return flagsOf({{"counted", getCounted()}, {"zigzag", getZigzag() > 0}}); }
SmallVector<Value> TokenMeanBwdOp::pointers() { return {getV(), getTargets(), getStarts(), getDv(), getLoss()}; }
double TokenMeanBwdOp::flops() { return 2.0 * elementsOf(getV()); }

StringRef SegmentSumOp::whyNotSliced() {
  return "a sum over documents is of whole sequences, and the head of a slice makes loss and gradient before those of "
         "earlier slices are there; a schedule without slices can sum, also over `context`";
}

bool TokenMeanOp::isDivided() { return !getCounted() && !getTotal(); }

//===-- Through statistics of columns ---------------------------------------------------------------------------===//

Value CrossEntropyOp::statisticsOf(OpBuilder &builder, ValueRange operands, int64_t first, AxesAttr firstBy) {
  return builder.create<CrossEntropyStatsOp>(getLoc(), operands[0], operands[1], /*ids=*/Value(), first,
                                             widthOf(getZ()), getSoftcap(), firstBy);
}
SmallVector<Value> CrossEntropyOp::fromStatistics(OpBuilder &builder, Value stats, ValueRange operands) {
  return {builder.create<CrossEntropyLossOp>(getLoc(), stats, operands[1], getScaleAttr(), getCountedAttr(),
                                             getAheadAttr(), getZLossAttr())};
}

Value CrossEntropyStatsOp::statisticsOf(OpBuilder &builder, ValueRange operands, int64_t first, AxesAttr firstBy) {
  return builder.create<CrossEntropyStatsOp>(getLoc(), operands[0], operands[1], getIds() ? operands[2] : Value(),
                                             static_cast<int64_t>(getFirst()) + first, getVocab(), getSoftcap(),
                                             firstBy);
}
SmallVector<Value> CrossEntropyStatsOp::fromStatistics(OpBuilder &, Value stats, ValueRange) { return {stats}; }

Value TokenStatsOp::statisticsOf(OpBuilder &builder, ValueRange operands, int64_t first, AxesAttr firstBy) {
  return builder.create<CrossEntropyStatsOp>(getLoc(), operands[0], operands[1], operands[2], first, widthOf(getZ()),
                                             getSoftcap(), firstBy);
}
SmallVector<Value> TokenStatsOp::fromStatistics(OpBuilder &builder, Value stats, ValueRange operands) {
  return builder.create<TokenRowsOp>(getLoc(), stats, operands[1], operands[2])->getResults();
}
