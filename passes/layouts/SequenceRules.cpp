// The rules of layouts on the context axis, where a device has rows of every sequence and all weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// `rows` here are any rows of a device's own: nothing but attention, and what counts positions, asks which they are.
// Those ops say with `zigzag` that they know.
#include "passes/layouts/Layouts.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace pp::nn {
using LayoutKind = DeviceLayout::Kind;
using Results = std::optional<SmallVector<DeviceLayout>>;

static const DeviceLayout kOwn = DeviceLayout::of(LayoutKind::rows), kAll = DeviceLayout::of(LayoutKind::copy),
                          kTerm = DeviceLayout::of(LayoutKind::partial), kAny = DeviceLayout::of(LayoutKind::none);
/// What an attention by heads reads and makes: columns, and statistics, [batch, heads, length], of the own heads.
static const DeviceLayout kHeads = DeviceLayout::shard(2), kHeadStatistics = DeviceLayout::shard(1),
                          kHeadVector = DeviceLayout::shard(0);

namespace {
/// What stands where among the operands; data and zeros fit everywhere.
struct Expected {
  Operation *op;
  ArrayRef<DeviceLayout> layouts;

  bool are(ValueRange values, const DeviceLayout &wanted) const {
    for (auto [operand, layout] : llvm::zip(op->getOperands(), layouts))
      if (llvm::is_contained(values, operand) && layout != wanted && layout != kAny)
        return false;
    return true;
  }
  DeviceLayout of(Value value) const {
    for (auto [operand, layout] : llvm::zip(op->getOperands(), layouts))
      if (operand == value)
        return layout;
    return kAny;
  }
  bool allAre(const DeviceLayout &wanted) const { return are(op->getOperands(), wanted); }
  /// Each result so.
  Results give(bool fits, const DeviceLayout &layout) const {
    return fits ? Results(SmallVector<DeviceLayout>(op->getNumResults(), layout)) : Results();
  }
};
} // namespace

/// Sums, and what only moves elements: all operands alike.
static Results linear(const Expected &given) {
  DeviceLayout common = kAny;
  for (const DeviceLayout &layout : given.layouts)
    if (layout != kAny)
      common = layout;
  bool isTurned = isa<TransposeOp>(given.op) && (common == kOwn || common.kind == LayoutKind::shard);
  return given.give(given.allAre(common) && common.kind != LayoutKind::full && !isTurned, common);
}

/// Whether dropout counts the heads of the devices of this axis: where each has its own.
template <typename Op> static bool countsHeads(Op op, bool byHeads) {
  return !op.getDropoutAttr() || byHeads == countsBy(op, Axis::context);
}

/// Rows in which copies of each head lie side by side.
static DeviceLayout rowsWithCopies(int64_t heads, int64_t times, LayoutKind among) {
  return times > 1 ? DeviceLayout{LayoutKind::rows, 0, heads, times, among} : kOwn;
}

/// Of the own heads of keys: as many on each device, or the one that the own queries read, which neighbours have, too.
template <typename Op> static DeviceLayout headsOfKeys(Op op, const Expected &given) {
  DeviceLayout layout = given.of(op.getKv().front());
  int64_t keys = kvHeadsOf(op);
  bool isCopied = keys == 1 && layout == DeviceLayout::shard(2, 1, layout.copies, LayoutKind::copy);
  return isCopied ? layout : kHeads;
}

/// Own queries and all keys, or whole sequences of the own heads; never of one tensor for q, k and v.
static Results attention(AttentionOp op, const Expected &given) {
  bool byHeads = given.layouts.front() == kHeads;
  if (op.getPacked() || !countsHeads(op, byHeads))
    return {};
  if (byHeads)
    return op.getZigzag() == 0 && given.are(op.getKv(), headsOfKeys(op, given))
               ? Results(SmallVector<DeviceLayout>{kHeads, kHeadStatistics})
               : Results();
  return given.give(op.getZigzag() > 0 && given.are(op.getQ(), kOwn) && given.are(op.getKv(), kAll), kOwn);
}

static Results attentionBwd(AttentionBwdOp op, const Expected &given) {
  bool byHeads = given.layouts.front() == kHeads;
  if (op.getPacked() || !countsHeads(op, byHeads))
    return {};
  if (byHeads) {
    bool statistics = given.are({op.getLse(), op.getDelta()}, kHeadStatistics);
    DeviceLayout keys = headsOfKeys(op, given);
    bool rest = given.are(op.getQ(), kHeads) && given.are(op.getKv(), keys) &&
                given.are(op.getKvAcc(), keys.transposed()) && (!op.getAcc() || given.are(op.getAcc(), kHeads));
    Results results = given.give(op.getZigzag() == 0 && statistics && rest, keys.transposed());
    if (results)
      results->front() = kHeads;
    return results;
  }
  SmallVector<Value> own = {op.getDout(), op.getQ(), op.getLse(), op.getDelta()};
  if (op.getAcc())
    own.push_back(op.getAcc());
  bool fits =
      op.getZigzag() > 0 && given.are(own, kOwn) && given.are(op.getKv(), kAll) && given.are(op.getKvAcc(), kTerm);
  Results results = given.give(fits, kTerm);
  if (results)
    results->front() = kOwn;
  return results;
}

/// The gradient of a weight from rows, added to what there is of it.
template <typename Op> static Results weightGradient(Op op, ValueRange rows, const Expected &given) {
  bool goesOn = !op.getAcc() || given.are(op.getAcc(), kTerm);
  return given.give(goesOn && given.are(rows, kOwn), kTerm);
}

static Results sink(SinkOp op, const Expected &given) {
  if (given.layouts.front() == kHeads)
    return given.are(op.getLse(), kHeadStatistics) && given.are(op.getS(), kHeadVector)
               ? Results(SmallVector<DeviceLayout>{kHeads, kHeadStatistics})
               : Results();
  return given.give(given.are({op.getO(), op.getLse()}, kOwn) && given.are(op.getS(), kAll), kOwn);
}

static Results sinkBwd(SinkBwdOp op, const Expected &given) {
  if (given.layouts.front() == kHeadVector)
    return given.give(given.are({op.getLse(), op.getDelta()}, kHeadStatistics), kHeadVector);
  return given.give(given.are({op.getLse(), op.getDelta()}, kOwn) && given.are(op.getS(), kAll), kTerm);
}

/// Each device routes its own rows; what it chose are numbers of experts and of its rows.
static Results route(RouteOp op, const Expected &given) {
  bool fits = given.are(op.getLogits(), kOwn) && (!op.getBias() || given.are(op.getBias(), kAll));
  Results results = given.give(fits, kOwn);
  for (auto [i, type] : llvm::enumerate(op->getResultTypes()))
    if (results && cast<RankedTensorType>(type).getElementType().isInteger(32))
      (*results)[i] = kAny;
  return results;
}

static Results ofOp(Operation *op, const Expected &given) {
  return llvm::TypeSwitch<Operation *, Results>(op)
      .Case([&](LinearOp it) {
        bool weights = given.are(it.getW(), kAll) && (!it.getBias() || given.are(it.getBias(), kAll));
        return given.give(weights && given.are(it.getX(), kOwn), kOwn);
      })
      .Case([&](AddBiasOp it) { return given.give(given.are(it.getX(), kOwn) && given.are(it.getBias(), kAll), kOwn); })
      .Case([&](LinearDxOp it) {
        bool goesOn = !it.getAcc() || given.are(it.getAcc(), kOwn);
        return given.give(goesOn && given.are(it.getDy(), kOwn) && given.are(it.getW(), kAll), kOwn);
      })
      .Case([&](LinearDwOp it) { return weightGradient(it, {it.getX(), it.getDy()}, given); })
      .Case([&](BiasDwOp it) { return weightGradient(it, it.getDy(), given); })
      .Case([&](EmbeddingOp it) { return given.give(given.are(it.getTable(), kAll), kOwn); })
      .Case([&](EmbeddingDwOp it) { return weightGradient(it, it.getDx(), given); })
      .Case([&](PositionsOp it) { return given.give(it.getZigzag() > 0 && given.are(it.getTable(), kAll), kOwn); })
      .Case([&](PositionsDwOp it) { return it.getZigzag() > 0 ? weightGradient(it, it.getDx(), given) : Results(); })
      .Case<RopeOp, DropoutOp>([&](auto it) { return given.give(it.getZigzag() > 0 && given.allAre(kOwn), kOwn); })
      .Case([&](AttentionOp it) { return attention(it, given); })
      .Case([&](AttentionBwdOp it) { return attentionBwd(it, given); })
      .Case([&](SinkOp it) { return sink(it, given); })
      .Case([&](SinkBwdOp it) { return sinkBwd(it, given); })
      .Case([&](AttentionDeltaOp it) {
        return given.layouts.front() == kHeads ? given.give(given.allAre(kHeads), kHeadStatistics)
                                               : given.give(given.allAre(kOwn), kOwn);
      })
      .Case([&](RepeatHeadsOp it) {
        return given.give(given.allAre(kOwn), rowsWithCopies(it.getHeads(), it.getTimes(), LayoutKind::copy));
      })
      .Case([&](SumHeadsOp it) {
        return given.give(given.allAre(rowsWithCopies(it.getHeads(), it.getTimes(), LayoutKind::partial)), kOwn);
      })
      .Case([&](PlacePieceOp it) { return given.give(given.are(it.getX(), kHeadVector), kTerm); })
      .Case<LayernormOp, LayernormRebuildOp, LayernormBwdOp, RmsnormOp, RmsnormRebuildOp, RmsnormBwdOp>(
          [&](Operation *it) { return rowByRow(it, given.layouts); })
      .Case<RouterOp, ExpertLinearOp>(
          [&](auto it) { return given.give(given.are(it.getX(), kOwn) && given.are(it->getOperand(1), kAll), kOwn); })
      .Case<RouterDxOp, ExpertLinearDxOp>([&](auto it) {
        bool goesOn = !it.getAcc() || given.are(it.getAcc(), kOwn);
        return given.give(goesOn && given.are(it->getOperand(0), kOwn) && given.are(it->getOperand(1), kAll), kOwn);
      })
      .Case([&](RouterDwOp it) { return weightGradient(it, {it.getX(), it.getDlogits()}, given); })
      .Case([&](ExpertLinearDwOp it) { return weightGradient(it, {it.getX(), it.getDy()}, given); })
      .Case([&](RouteOp it) { return route(it, given); })
      .Case([&](ChoiceCountsOp) { return given.give(true, kTerm); })
      .Case([&](ExpertLoadOp it) { return given.give(!it.getAcc() || given.are(it.getAcc(), kTerm), kTerm); })
      .Case([&](RouteBwdOp it) {
        bool statistics = !it.getLse() || given.are(it.getLse(), kOwn);
        bool counts = !it.getOften() || given.are(it.getOften(), kAll);
        return given.give(statistics && counts && given.are({it.getDw(), it.getW(), it.getP()}, kOwn), kOwn);
      })
      .Case<DispatchOp, CombineOp, ScaleRowsOp, ScaleRowsBwdOp, PlaceWeightsOp, TakeWeightsOp>(
          [&](Operation *) { return given.give(given.allAre(kOwn), kOwn); })
      .Case<CrossEntropyOp, CrossEntropyLossOp>([&](Operation *) { return given.give(given.allAre(kOwn), kTerm); })
      .Case([&](CrossEntropyBwdOp) {
        return given.allAre(kOwn) ? Results(SmallVector<DeviceLayout>{kOwn, kTerm}) : Results();
      })
      .Case<CrossEntropyStatsOp, CrossEntropyMergeOp, CrossEntropyDzOp, PieceOp, AttentionMergeOp, RowsOp, JoinRowsOp,
            SplitRowsOp, GeluOp, GeluBwdOp, SwigluOp, SwigluBwdOp, GluOp, GluBwdOp, SplitOp, SliceColumnsOp,
            PlaceColumnsOp, ConcatOp>([&](Operation *) { return given.give(given.allAre(kOwn), kOwn); })
      .Case<AddOp, ScaleOp, CopyOp, AccumulateOp, RoundOp, TransposeOp>([&](Operation *) { return linear(given); })
      .Default(Results());
}

/// `gather_runs` over the context and back, or rows for heads. An exchange over other axes runs for each device of this
/// one; but heads that are already exchanged would lose their order.
static Results exchange(Operation *op, AxesAttr axes, const Expected &given) {
  const DeviceLayout &x = given.layouts.front();
  if (!llvm::is_contained(axes.getAxes(), Axis::context))
    return given.give((x != kHeads && x.copies == 1) || !isa<AllGatherOp, TakeColumnsOp>(op), x);
  if (auto toHeads = dyn_cast<RunsToHeadsOp>(op)) { // of heads with copies one is each device's
    auto members = static_cast<int64_t>(toHeads.getMembers());
    bool isCopied = x.copies > 1 && x == rowsWithCopies(members / x.copies, x.copies, LayoutKind::copy);
    return given.give(x == kOwn || isCopied, isCopied ? DeviceLayout::shard(2, 1, x.copies, LayoutKind::copy) : kHeads);
  }
  if (auto back = dyn_cast<HeadsToRunsOp>(op)) {
    bool isCopied = x.copies > 1 && x == DeviceLayout::shard(2, 1, x.copies, LayoutKind::partial);
    return given.give(x == kHeads || isCopied,
                      rowsWithCopies(static_cast<int64_t>(back.getMembers()) / x.copies, x.copies, x.among));
  }
  if (isa<TakePieceOp>(op))
    return given.give(x == kAll, kHeadVector);
  if (isa<AllReduceOp>(op)) // counts, which have no gradient
    return given.give(x == kTerm, kAll);
  bool gathers = isa<GatherRunsOp>(op);
  if (gathers && x == kAny) // data
    return given.give(true, kAny);
  return given.give(gathers ? x == kOwn : isa<ScatterRunsOp>(op) && x == kTerm, gathers ? kAll : kOwn);
}

Results inferSequenceLayouts(Operation *op, ArrayRef<DeviceLayout> operands) {
  Expected given{op, operands};
  if (isa<ZeroOp>(op))
    return given.give(true, kAny);
  if (auto axes = axesOfExchange(op))
    return exchange(op, axes, given);
  if (!isa<AttentionOp, AttentionBwdOp>(op) && countsBy(op, Axis::context)) // each device has all of a table
    return {};
  return ofOp(op, given);
}

} // namespace pp::nn
