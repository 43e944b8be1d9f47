// Derivatives of what is computed in parts, attentions that are merged and shards of the vocabulary, and of losses.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   o = merge(attention(q, kv0), attention(q, kv1))    the gradient of a part needs the whole only as lse and delta:
//   delta = sum dout o, of the merged o                dq, dkv0 = bwd(dout, q, lse, delta, kv0), and so for kv1
//
// So it is the merge that makes the gradients of its parts, whose own o and lse nothing reads. A part that is no
// attention of this function came from another rank, and is differentiated there.
#include "dialect/nn/Nn.h"

using namespace mlir;
using namespace pp::nn;

//===-- Attention -----------------------------------------------------------------------------------------------===//

namespace {
/// The values of the whole attention that the gradients of a part of it need.
struct Whole {
  Value dout, lse, delta;
};
} // namespace

static RankedTensorType inSums(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  return type.clone(sumType(type.getElementType()));
}

/// The sums that dk and dv go on into; none if there are none yet. A tensor without one beside others starts at zero.
static SmallVector<Value> kvSums(AttentionOp part, Gradients &gradients) {
  auto sumOf = [&](Value value) {
    Value sum = gradients.get(value);
    return sum && sum.getType() == inSums(value) ? sum : Value();
  };
  SmallVector<Value> sums;
  if (llvm::none_of(part.getKv(), sumOf))
    return sums;
  for (Value value : part.getKv()) {
    Value sum = sumOf(value);
    sums.push_back(sum ? sum : gradients.builder.create<ZeroOp>(part.getLoc(), inSums(value)).getY());
  }
  return sums;
}

/// dk or dv of one chunk in the type of sums. Keys that came from an earlier slice leave it so, for that slice's own
/// backward to add to; those made here have seen all their queries now, and their gradient is rounded, once.
static void setKvGradient(Location loc, Value value, Value sum, Gradients &gradients) {
  if (sum.getType() == value.getType() || isa<BlockArgument>(value))
    return gradients.set(value, sum);
  Value before = gradients.get(value);
  Type element = cast<RankedTensorType>(value.getType()).getElementType();
  gradients.set(value, gradients.builder.create<RoundOp>(loc, sum, TypeAttr::get(element)));
  if (before && before.getType() == value.getType())
    gradients.add(loc, value, before);
}

/// Whether q and all k and v are values of their own: else one sum would be continued twice.
static bool areDistinct(AttentionOp part) {
  llvm::DenseSet<Value> values(part->operand_begin(), part->operand_end());
  return values.size() == part->getNumOperands();
}

static void differentiatePart(AttentionOp part, Whole whole, Gradients &gradients) {
  Location loc = part.getLoc();
  Value q = part.getQ(), before = part.getPacked() ? Value() : gradients.get(q);
  SmallVector<Value> sums;
  if (areDistinct(part))
    sums = kvSums(part, gradients);
  bool inSums = !sums.empty() || (areDistinct(part) && part.getKv().size() > 2);
  auto backward = gradients.builder.create<AttentionBwdOp>(
      loc, whole.dout, q, whole.lse, whole.delta, part.getLists(), before, sums, part.getHeads(), part.getKvHeads(),
      part.getCausal(), inSums, part.getOffset(), part.getKvOffsetsAttr(), part.getWindow(), part.getScale(),
      part.getSoftcap(), part.getDropoutAttr(), part.getZigzag(), part.getPacked());
  if (part.getPacked())
    return gradients.add(loc, q, backward.getDq());
  gradients.set(q, backward.getDq());
  for (auto [value, gradient] : llvm::zip(part.getKv(), backward.getDkv()))
    if (inSums)
      setKvGradient(loc, value, gradient, gradients);
    else
      gradients.add(loc, value, gradient);
}

/// All parts that are attentions of this function, merges of merges included.
static void differentiateParts(AttentionMergeOp merge, Whole whole, Gradients &gradients) {
  for (size_t i = 0; i < merge.getParts().size(); i += 2) {
    if (auto part = merge.getParts()[i].getDefiningOp<AttentionOp>())
      differentiatePart(part, whole, gradients);
    else if (auto inner = merge.getParts()[i].getDefiningOp<AttentionMergeOp>())
      differentiateParts(inner, whole, gradients);
  }
}

LogicalResult AttentionOp::differentiate(Gradients &gradients) {
  Value dout = gradients.get(getO());
  if (!dout)
    return success();
  Value delta = gradients.builder.create<AttentionDeltaOp>(getLoc(), dout, getO(), getHeads());
  differentiatePart(*this, {dout, getLse(), delta}, gradients);
  return success();
}

LogicalResult AttentionMergeOp::differentiate(Gradients &gradients) {
  Value dout = gradients.get(getO());
  if (!dout)
    return success();
  Value delta = gradients.builder.create<AttentionDeltaOp>(getLoc(), dout, getO(), getHeads());
  differentiateParts(*this, {dout, getLse(), delta}, gradients);
  return success();
}

/// The attention inside, whole or merged, has no gradient of its own: that of all that its queries saw is here.
LogicalResult SinkOp::differentiate(Gradients &gradients) {
  Value dout = gradients.get(getY());
  if (!dout)
    return success();
  int64_t heads = cast<RankedTensorType>(getS().getType()).getDimSize(0);
  Value delta = gradients.builder.create<AttentionDeltaOp>(getLoc(), dout, getY(), heads);
  gradients.addToWeight(getLoc(), getS(),
                        gradients.builder.create<SinkBwdOp>(getLoc(), getS(), getLseY(), delta).getDs());
  Whole whole{dout, getLseY(), delta};
  if (auto attention = getO().getDefiningOp<AttentionOp>())
    differentiatePart(attention, whole, gradients);
  else if (auto merge = getO().getDefiningOp<AttentionMergeOp>())
    differentiateParts(merge, whole, gradients);
  else
    return emitError("expected a `sink` around an attention of the same function");
  return success();
}

//===-- Cross-entropy -------------------------------------------------------------------------------------------===//

static LogicalResult addTo(Value &sum, Location loc, Value loss, Gradients &gradients) {
  sum = sum ? gradients.builder.create<AddOp>(loc, loss, sum).getZ() : loss;
  return success();
}

/// The loss of a step is the sum of all that its model makes.
static LogicalResult addLoss(Location loc, Value loss, bool further, Gradients &gradients) {
  return addTo(further ? gradients.furtherLoss : gradients.loss, loc, loss, gradients);
}

LogicalResult CrossEntropyOp::differentiate(Gradients &gradients) {
  auto scale = gradients.builder.getF64FloatAttr(getScale().convertToDouble() * gradients.lossScale);
  auto backward = gradients.builder.create<CrossEntropyBwdOp>(getLoc(), getZ(), getTargets(), scale, getCountedAttr(),
                                                              getAheadAttr(), getSoftcapAttr(), getZLossAttr());
  gradients.add(getLoc(), getZ(), backward.getDz());
  return addLoss(getLoc(), backward.getLoss(), getFurther(), gradients);
}

/// Calls `use` for every shard whose statistics were made here; those of other ranks are differentiated there.
static void forShards(Value stats, llvm::function_ref<void(CrossEntropyStatsOp)> use) {
  if (auto merge = stats.getDefiningOp<CrossEntropyMergeOp>())
    for (Value part : merge.getParts())
      forShards(part, use);
  else if (auto shard = stats.getDefiningOp<CrossEntropyStatsOp>())
    use(shard);
  else if (auto piece = stats.getDefiningOp<PieceOp>(); piece && piece.getIndex() == 0) // of what all devices have
    forShards(piece.getX(), use);
  else if (auto gather = stats.getDefiningOp<AllGatherOp>())
    forShards(gather.getX(), use);
}

LogicalResult CrossEntropyLossOp::differentiate(Gradients &gradients) {
  auto scale = gradients.builder.getF64FloatAttr(getScale().convertToDouble() * gradients.lossScale);
  forShards(getStats(), [&](CrossEntropyStatsOp shard) {
    gradients.add(shard.getLoc(), shard.getZ(),
                  gradients.builder.create<CrossEntropyDzOp>(
                      shard.getLoc(), shard.getZ(), shard.getTargets(), getStats(), shard.getFirstAttr(),
                      shard.getVocabAttr(), scale, getCountedAttr(), getAheadAttr(), shard.getSoftcapAttr(),
                      getZLossAttr(), shard.getFirstByAttr()));
  });
  return addLoss(getLoc(),
                 gradients.builder.create<CrossEntropyLossOp>(getLoc(), getStats(), getTargets(), scale,
                                                              getCountedAttr(), getAheadAttr(), getZLossAttr()),
                 /*further=*/false, gradients);
}

/// The loss, or what makes rows of them, does it.
LogicalResult CrossEntropyMergeOp::differentiate(Gradients &) { return success(); }
LogicalResult CrossEntropyStatsOp::differentiate(Gradients &) { return success(); }

//===-- Formulas of tokens --------------------------------------------------------------------------------------===//

LogicalResult TokenMeanOp::differentiate(Gradients &gradients) {
  const bool isDivided = !getTotal() && !getCounted(); // by a number that is known
  auto scale =
      gradients.builder.getF64FloatAttr(getScale().convertToDouble() * (isDivided ? gradients.lossScale : 1.0));
  auto backward = gradients.builder.create<TokenMeanBwdOp>(getLoc(), getV(), getTargets(), getStarts(), scale,
                                                           getCountedAttr(), getDivisorAttr(), getZigzagAttr());
  if (std::optional<uint64_t> report = getReport()) {
    gradients.reports.resize(std::max<size_t>(gradients.reports.size(), *report + 1));
    return addTo(gradients.reports[*report], getLoc(), backward.getLoss(), gradients);
  }
  gradients.add(getLoc(), getV(), backward.getDv());
  return addLoss(getLoc(), backward.getLoss(), getFurther(), gradients);
}

/// Of own runs of rows the gradient goes around the exchange that gathered v: it is a sum of whole rows, too.
LogicalResult SegmentSumOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY()), v = getV();
  if (!dy)
    return success();
  if (auto gather = v.getDefiningOp<GatherRunsOp>(); gather && getZigzag() > 0) {
    v = gather.getX();
    dy = gradients.builder.create<GatherRunsOp>(getLoc(), dy, gather.getAxes(), gather.getMembers(), gather.getKept());
  }
  gradients.add(
      getLoc(), v,
      gradients.builder.create<SegmentSumOp>(getLoc(), dy, getTargets(), getStarts(), getMeanAttr(), getZigzagAttr()));
  return success();
}

/// The gradients of the statistics of rows, or none if nothing reads these; zeros of those that nobody reads.
static SmallVector<Value> gradientsOfRows(Operation *op, Gradients &gradients) {
  if (llvm::none_of(op->getResults(), [&](Value value) { return gradients.get(value); }))
    return {};
  return llvm::map_to_vector(op->getResults(), [&](Value value) -> Value {
    Value gradient = gradients.get(value);
    return gradient ? gradient : gradients.builder.create<ZeroOp>(op->getLoc(), value.getType()).getY();
  });
}

LogicalResult TokenStatsOp::differentiate(Gradients &gradients) {
  SmallVector<Value> of = gradientsOfRows(*this, gradients);
  if (!of.empty())
    gradients.add(getLoc(), getZ(),
                  gradients.builder.create<TokenStatsBwdOp>(getLoc(), getZ(), getTargets(), getIds(), getLse(),
                                                            getMeanP(), of[0], of[1], of[2], of[3], getSoftcap(),
                                                            /*first=*/0, /*vocab=*/0, AxesAttr()));
  return success();
}

LogicalResult TokenRowsOp::differentiate(Gradients &gradients) {
  SmallVector<Value> of = gradientsOfRows(*this, gradients);
  if (of.empty())
    return success();
  forShards(getStats(), [&](CrossEntropyStatsOp shard) {
    gradients.add(shard.getLoc(), shard.getZ(),
                  gradients.builder.create<TokenStatsBwdOp>(shard.getLoc(), shard.getZ(), shard.getTargets(),
                                                            shard.getIds(), getLse(), getMeanP(), of[0], of[1], of[2],
                                                            of[3], shard.getSoftcap(), shard.getFirst(),
                                                            shard.getVocab(), shard.getFirstByAttr()));
  });
  return success();
}
