// The rules of layouts: for each op, from what each device has of its operands to what it then has of the results.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Each rule holds because the op, applied to local parts, gives local parts; then its derivative does, too, for
// gradients in transposed layouts: full to full, shard to shard, copy to partial and back (docs/meshes.md).
#include "passes/layouts/Layouts.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace pp::nn {
using LayoutKind = DeviceLayout::Kind;
using Results = std::optional<SmallVector<DeviceLayout>>;

static const DeviceLayout kFull = DeviceLayout::of(LayoutKind::full), kCopy = DeviceLayout::of(LayoutKind::copy),
                          kPartial = DeviceLayout::of(LayoutKind::partial), kNone = DeviceLayout::of(LayoutKind::none),
                          kRows = DeviceLayout::of(LayoutKind::rows);

static LayoutKind transposedKind(LayoutKind kind) {
  return kind == LayoutKind::copy ? LayoutKind::partial : kind == LayoutKind::partial ? LayoutKind::copy : kind;
}

DeviceLayout DeviceLayout::transposed() const {
  return {transposedKind(kind), dim, runs, copies, transposedKind(among)};
}

std::string DeviceLayout::text() const {
  static constexpr llvm::StringRef kNames[] = {"none", "full", "copy", "shard", "rows", "partial"};
  std::string text = kNames[static_cast<size_t>(kind)].str();
  if (kind == LayoutKind::shard)
    text += " " + std::to_string(dim);
  if (runs > 1)
    text += ", " + std::to_string(runs) + " runs";
  if (copies > 1)
    text += ", " + std::to_string(copies) + " copies (" + kNames[static_cast<size_t>(among)].str() + ")";
  return text;
}

int64_t localSize(int64_t whole, const DeviceLayout &layout, int64_t devices) {
  return llvm::divideCeil(whole, devices / layout.copies);
}

DeviceLayout layoutOf(WeightAttr declared) {
  CutAttr cut = declared.getCut();
  return cut ? DeviceLayout::shard(cut.getDim(), cut.getRuns(), cut.getCopies()) : kFull;
}

static int64_t lastOf(Value value) { return cast<RankedTensorType>(value.getType()).getRank() - 1; }

/// Operands of one op by number.
namespace {
struct Operands {
  Operation *op;
  ArrayRef<DeviceLayout> layouts;
  int64_t devices;

  const DeviceLayout &at(Value value) const {
    for (auto [operand, layout] : llvm::zip(op->getOperands(), layouts))
      if (operand == value)
        return layout;
    return kNone;
  }
  bool isColumns(Value value) const { return at(value).kind == LayoutKind::shard && at(value).dim == lastOf(value); }
  /// Neighbours with one piece add their gradients only where that was said (`spread`, or `all_reduce` of a gradient).
  static bool isUsable(const DeviceLayout &layout) { return layout.copies == 1 || layout.among != LayoutKind::full; }
  /// A sum that goes on in place.
  bool goesOn(Value acc, const DeviceLayout &result) const {
    return !acc || at(acc) == result || at(acc).kind == LayoutKind::none;
  }
};
} // namespace

/// Along which axes the op counts from a device's place: rows of a table, columns of logits, heads; null: it does not.
static std::pair<llvm::StringRef, AxesAttr> placesOf(Operation *op) {
  return llvm::TypeSwitch<Operation *, std::pair<llvm::StringRef, AxesAttr>>(op)
      .Case<EmbeddingOp, EmbeddingDwOp, CrossEntropyStatsOp, CrossEntropyDzOp>(
          [](auto it) { return std::pair("first_by", it.getFirstByAttr()); })
      .Case<AttentionOp, AttentionBwdOp>([](auto it) {
        DropoutAttr dropout = it.getDropoutAttr();
        return std::pair(dropout ? "dropout" : "", dropout ? dropout.getHeadsBy() : AxesAttr());
      })
      .Default([](Operation *) { return std::pair("", AxesAttr()); });
}

bool countsBy(Operation *op, Axis axis) {
  AxesAttr axes = placesOf(op).second;
  return axes && llvm::is_contained(axes.getAxes(), axis);
}

std::string whatCounts(Operation *op, Axis axis) {
  llvm::StringRef name = placesOf(op).first;
  return name.empty()
             ? ""
             : ("; its `" + name + (countsBy(op, axis) ? "` names `" : "` does not name `") + stringifyAxis(axis) + "`")
                   .str();
}

static Results one(const DeviceLayout &result) { return SmallVector<DeviceLayout>{result}; }

//===-- Products ------------------------------------------------------------------------------------------------===//

static Results linear(LinearOp op, const Operands &given) {
  DeviceLayout x = given.at(op.getX()), w = given.at(op.getW());
  int64_t out = op.getTransposed() ? 0 : 1;
  if (x == kRows && w == kCopy && (!op.getBias() || given.at(op.getBias()) == kCopy))
    return one(kRows);
  if (w.kind != LayoutKind::shard || !Operands::isUsable(w))
    return std::nullopt;
  if (x == kCopy && w.dim == out && (!op.getBias() || given.at(op.getBias()) == w.along(0)))
    return one(w.along(lastOf(op.getY())));
  bool isRow = given.isColumns(op.getX()) && w == x.along(1 - out) && x.copies == 1;
  return isRow && !op.getBias() ? one(kPartial) : Results();
}

static Results linearDx(LinearDxOp op, const Operands &given) {
  DeviceLayout dy = given.at(op.getDy()), w = given.at(op.getW());
  int64_t out = op.getTransposed() ? 0 : 1;
  DeviceLayout result = kNone;
  if (dy == kRows && w == kCopy)
    result = kRows;
  else if (given.isColumns(op.getDy()) && Operands::isUsable(dy) && w == dy.transposed().along(out))
    result = kPartial;
  else if (dy == kCopy && w.kind == LayoutKind::shard && w.dim == 1 - out && w.copies == 1)
    result = w.along(lastOf(op.getDx()));
  return result != kNone && given.goesOn(op.getAcc(), result) ? one(result) : Results();
}

static Results linearDw(LinearDwOp op, const Operands &given) {
  DeviceLayout x = given.at(op.getX()), dy = given.at(op.getDy());
  int64_t out = op.getTransposed() ? 0 : 1;
  DeviceLayout result = kNone;
  if (x == kRows && dy == kRows)
    result = kPartial;
  else if (x == kCopy && given.isColumns(op.getDy()) && Operands::isUsable(dy))
    result = dy.along(out);
  else if (given.isColumns(op.getX()) && x.copies == 1 && dy == kCopy)
    result = x.along(1 - out);
  return result != kNone && given.goesOn(op.getAcc(), result) ? one(result) : Results();
}

static Results biasDw(BiasDwOp op, const Operands &given) {
  DeviceLayout dy = given.at(op.getDy());
  bool fits = dy == kRows || (given.isColumns(op.getDy()) && Operands::isUsable(dy));
  DeviceLayout result = dy == kRows ? kPartial : dy.along(0);
  return fits && given.goesOn(op.getAcc(), result) ? one(result) : Results();
}

static Results addBias(AddBiasOp op, const Operands &given) {
  DeviceLayout x = given.at(op.getX());
  if (x == kRows)
    return given.at(op.getBias()) == kCopy ? one(kRows) : Results();
  return given.isColumns(op.getX()) && given.at(op.getBias()) == x.along(0) ? one(x) : Results();
}

//===-- Experts -------------------------------------------------------------------------------------------------===//

/// Of each expert's matrix [in, out] a device has columns, or the rows for the columns of x that it has.
static Results expertLinear(ExpertLinearOp op, const Operands &given) {
  DeviceLayout x = given.at(op.getX()), w = given.at(op.getW());
  if (x == kCopy && w == DeviceLayout::shard(2))
    return one(w);
  return x == DeviceLayout::shard(2) && w == DeviceLayout::shard(1) ? one(kPartial) : Results();
}

static Results expertLinearDx(ExpertLinearDxOp op, const Operands &given) {
  DeviceLayout dy = given.at(op.getDy()), w = given.at(op.getW()), result = kNone;
  if (dy == DeviceLayout::shard(2) && w == DeviceLayout::shard(2))
    result = kPartial;
  else if (dy == kCopy && w == DeviceLayout::shard(1))
    result = DeviceLayout::shard(2);
  return result != kNone && given.goesOn(op.getAcc(), result) ? one(result) : Results();
}

static Results expertLinearDw(ExpertLinearDwOp op, const Operands &given) {
  DeviceLayout x = given.at(op.getX()), dy = given.at(op.getDy()), result = kNone;
  if (x == kCopy && dy == DeviceLayout::shard(2))
    result = dy;
  else if (x == DeviceLayout::shard(2) && dy == kCopy)
    result = DeviceLayout::shard(1);
  return result != kNone && given.goesOn(op.getAcc(), result) ? one(result) : Results();
}

/// Multiplies each row by a number. The rows are cut by columns; all devices have the numbers, whose gradient is a term
/// on each device.
static Results scaleRows(Operation *op, Value w, const Operands &given) {
  for (auto [operand, layout] : llvm::zip(op->getOperands(), given.layouts))
    if (layout.kind != LayoutKind::none && layout != (operand == w ? kCopy : DeviceLayout::shard(2)))
      return std::nullopt;
  SmallVector<DeviceLayout> results = {DeviceLayout::shard(2)};
  if (op->getNumResults() > 1)
    results.push_back(kPartial);
  return results;
}

/// The results of a router's choice are numbers of experts and rows. All devices compute the same ones.
static SmallVector<DeviceLayout> replicated(Operation *op) {
  return llvm::map_to_vector(op->getResultTypes(), [](Type type) {
    return cast<RankedTensorType>(type).getElementType().isInteger(32) ? kNone : kFull;
  });
}

//===-- Tables and losses ---------------------------------------------------------------------------------------===//

static Results embeddingDw(EmbeddingDwOp op, const Operands &given) {
  bool fits = given.at(op.getDx()) == kCopy && given.goesOn(op.getAcc(), DeviceLayout::shard(0));
  return fits && countsBy(op, Axis::tensor) ? one(DeviceLayout::shard(0)) : Results();
}

/// Each device's statistics are pieces of those of all, which are gathered along the first dimension.
static Results statistics(CrossEntropyStatsOp op, const Operands &given) {
  bool fits = countsBy(op, Axis::tensor) && given.at(op.getZ()) == DeviceLayout::shard(lastOf(op.getZ()));
  return fits ? one(DeviceLayout::shard(0)) : Results();
}

static Results gradientOfLogits(CrossEntropyDzOp op, const Operands &given) {
  bool fits = countsBy(op, Axis::tensor) && given.at(op.getZ()) == DeviceLayout::shard(lastOf(op.getZ())) &&
              given.at(op.getStats()) == kFull;
  return fits ? one(given.at(op.getZ())) : Results();
}

//===-- Columns -------------------------------------------------------------------------------------------------===//

int64_t equalRuns(SplitOp split) {
  return split.getPeriods() == 1 && llvm::all_equal(split.runWidths()) ? split.getNumResults() : 0;
}

/// The runs of a cut width become values of their own, or each device has whole periods.
static Results split(SplitOp op, const Operands &given) {
  DeviceLayout x = given.at(op.getX());
  if (!given.isColumns(op.getX()))
    return std::nullopt;
  bool isRuns = x.runs > 1 && equalRuns(op) == x.runs;
  if (!isRuns && (x.runs > 1 || op.getPeriods() == 1))
    return std::nullopt;
  return SmallVector<DeviceLayout>(op.getNumResults(), DeviceLayout::shard(x.dim, 1, x.copies, x.among));
}

static Results sliceColumns(SliceColumnsOp op, const Operands &given) {
  DeviceLayout x = given.at(op.getX());
  auto width = cast<RankedTensorType>(op.getX().getType()).getShape().back();
  bool isRun = x.runs > 1 && static_cast<int64_t>(op.getWidth()) * x.runs == width && op.getPeriods() == 1 &&
               op.getStart() % op.getWidth() == 0;
  if (!given.isColumns(op.getX()) || (!isRun && (x.runs > 1 || op.getPeriods() == 1)))
    return std::nullopt;
  return one(DeviceLayout::shard(x.dim, 1, x.copies, x.among));
}

static Results placeColumns(PlaceColumnsOp op, const Operands &given) {
  DeviceLayout x = given.at(op.getX());
  auto width = cast<RankedTensorType>(op.getX().getType()).getShape().back();
  auto total = static_cast<int64_t>(op.getTotal()), start = static_cast<int64_t>(op.getStart());
  bool isRun = op.getPeriods() == 1 && total % width == 0 && start % width == 0;
  if (!given.isColumns(op.getX()) || x.runs > 1 || (op.getPeriods() == 1 && !isRun))
    return std::nullopt;
  if (isRun)
    x.runs = total / width;
  return given.goesOn(op.getAcc(), x) ? one(x) : Results();
}

/// All operands alike, by columns or, where the op is linear, as terms of sums that it passes on.
static Results alike(Operation *op, const Operands &given, bool isLinear) {
  DeviceLayout common = kNone;
  for (const DeviceLayout &layout : given.layouts) {
    if (layout.kind == LayoutKind::none)
      continue;
    if (common.kind != LayoutKind::none && layout != common)
      return std::nullopt;
    common = layout;
  }
  if (common.kind == LayoutKind::none)
    return SmallVector<DeviceLayout>(op->getNumResults(), kNone);
  // By their number in the sequence, or in an order of their own; of these the numbers of choices are no columns.
  bool ofChoices = isa<PlaceWeightsOp, TakeWeightsOp>(op);
  bool movesRows = ofChoices || isa<RowsOp, JoinRowsOp, SplitRowsOp, RopeOp, DispatchOp, CombineOp>(op);
  bool isPassed = isLinear && common.kind != LayoutKind::full;
  if (common.kind == LayoutKind::shard)
    isPassed = !ofChoices && (!movesRows || given.isColumns(op->getOperand(0))) &&
               (isLinear || isa<RopeOp>(op) || common.copies == 1 || common.among != LayoutKind::partial);
  else if (common == kRows)
    isPassed = !movesRows;
  return isPassed ? Results(SmallVector<DeviceLayout>(op->getNumResults(), common)) : Results();
}

//===-- Attention -----------------------------------------------------------------------------------------------===//

/// A device has heads of queries, and as many of keys, or the one that they read, which its neighbours have, too.
template <typename Op> static bool haveHeads(Op op, const Operands &given) {
  int64_t width = lastOf(op.getQ());
  DeviceLayout keys = given.at(op.getKv().front());
  bool isCopied = kvHeadsOf(op) == 1 && keys == DeviceLayout::shard(width, 1, keys.copies, LayoutKind::copy);
  bool fits = given.at(op.getQ()) == DeviceLayout::shard(width) && (isCopied || keys == DeviceLayout::shard(width));
  return fits && !op.getPacked() && (!op.getDropoutAttr() || countsBy(op, Axis::tensor)) &&
         llvm::all_of(op.getKv(), [&](Value value) { return given.at(value) == keys; });
}

/// A packed tensor must be whole on each device: no layout says which columns of q, k and v a device has of it.
static Results attention(AttentionOp op, const Operands &given) {
  return haveHeads(op, given) ? Results({DeviceLayout::shard(lastOf(op.getQ())), DeviceLayout::shard(1)}) : Results();
}

static Results attentionBwd(AttentionBwdOp op, const Operands &given) {
  const DeviceLayout columns = DeviceLayout::shard(lastOf(op.getQ())), statistics = DeviceLayout::shard(1);
  DeviceLayout keys = given.at(op.getKv().front()).transposed();
  bool fits = haveHeads(op, given) && given.at(op.getDout()) == columns && given.at(op.getLse()) == statistics &&
              given.at(op.getDelta()) == statistics && given.goesOn(op.getAcc(), columns) &&
              llvm::all_of(op.getKvAcc(), [&](Value acc) { return given.goesOn(acc, keys); });
  if (!fits)
    return std::nullopt;
  SmallVector<DeviceLayout> results(op->getNumResults(), keys);
  results.front() = columns;
  return results;
}

/// Copies of each head of a device, or their sum.
static Results copiesOfHeads(Operation *op, const Operands &given) {
  const DeviceLayout &x = given.layouts.front();
  return given.isColumns(op->getOperand(0)) && x.runs == 1 ? one(x) : Results();
}

/// Parts of an attention and what joins them, head by head: columns [batch, length, width], their statistics
/// [batch, heads, length] behind them, and one number for each head.
static Results byHeads(Operation *op, const Operands &given) {
  auto layoutOf = [&](Value value, bool isStatistic) {
    int64_t last = lastOf(value);
    return DeviceLayout::shard(last == 0 ? 0 : isStatistic ? 1 : last);
  };
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    bool isStatistic = isa<SinkBwdOp>(op) || (i % 2 == 1 && isa<AttentionMergeOp, SinkOp>(op));
    if (given.layouts[i].kind != LayoutKind::none && given.layouts[i] != layoutOf(operand, isStatistic))
      return std::nullopt;
  }
  SmallVector<DeviceLayout> results;
  for (auto [i, result] : llvm::enumerate(op->getResults()))
    results.push_back(layoutOf(result, isa<AttentionDeltaOp>(op) || i == 1));
  return results;
}

//===-- Norms ---------------------------------------------------------------------------------------------------===//

Results rowByRow(Operation *op, ArrayRef<DeviceLayout> operands) {
  for (auto [operand, layout] : llvm::zip(op->getOperands(), operands)) {
    bool isVector = cast<RankedTensorType>(operand.getType()).getRank() == 1;
    if (layout != (isVector ? kCopy : kRows) && layout.kind != LayoutKind::none)
      return std::nullopt;
  }
  SmallVector<DeviceLayout> results;
  for (Type type : op->getResultTypes())
    results.push_back(cast<RankedTensorType>(type).getRank() == 1 ? kPartial : kRows);
  return results;
}

/// Every head by itself: a device has whole heads, the statistics of these and the gain that all heads share, whose
/// gradient is the sum of what all devices' heads give.
template <typename Norm> static Results normOfHeads(Norm op, const Operands &given) {
  DeviceLayout x = given.at(op.getX());
  bool fits = given.isColumns(op.getX()) && given.at(op.getGain()) == kCopy && x.runs == 1 &&
              (x.copies == 1 || x.among == LayoutKind::copy);
  if constexpr (!std::is_same_v<Norm, RmsnormOp>)
    fits &= given.at(op.getRstd()) == x;
  return fits ? Results(SmallVector<DeviceLayout>(op->getNumResults(), x)) : Results();
}

static Results normOfHeadsBwd(RmsnormBwdOp op, const Operands &given) {
  DeviceLayout dx = given.at(op.getX()).transposed();
  bool fits = normOfHeads(op, given) && given.at(op.getDy()) == dx && given.goesOn(op.getAcc(), dx);
  return fits ? Results({dx, kPartial}) : Results();
}

//===-- Exchanges -----------------------------------------------------------------------------------------------===//

/// Between all devices, or those that are neighbours with the same piece.
static bool areNeighbours(const DeviceLayout &x, std::optional<uint64_t> neighbours) {
  return neighbours && x.kind == LayoutKind::shard && x.copies == static_cast<int64_t>(*neighbours);
}

static Results spread(SpreadOp op, DeviceLayout x) {
  if (x == kFull && !op.getNeighbours())
    return one(kCopy);
  if (!areNeighbours(x, op.getNeighbours()) || x.among != LayoutKind::full)
    return std::nullopt;
  x.among = LayoutKind::copy;
  return one(x);
}

static Results allReduce(AllReduceOp op, DeviceLayout x) {
  if (!llvm::is_contained(op.getAxes().getAxes(), Axis::tensor)) // every device of this axis does so with others
    return one(x);
  if (x == kPartial && !op.getNeighbours())
    return one(kFull);
  if (!areNeighbours(x, op.getNeighbours()) || x.among != LayoutKind::partial)
    return std::nullopt;
  x.among = LayoutKind::full;
  return one(x);
}

static Results allGather(AllGatherOp op, const Operands &given) {
  DeviceLayout x = given.layouts.front();
  return x == DeviceLayout::shard(static_cast<int64_t>(op.getDim())) ? one(kFull) : Results();
}

static Results exchangeOfRows(Operation *op, const DeviceLayout &x) {
  return llvm::TypeSwitch<Operation *, Results>(op)
      .Case([&](GatherRowsOp gather) { return x == kRows ? one(gather.getWhole() ? kFull : kCopy) : Results(); })
      .Case([&](ScatterRowsOp) { return x == kPartial ? one(kRows) : Results(); })
      .Default([&](Operation *) { return x == kFull ? one(kRows) : Results(); });
}

//===-- All of them ---------------------------------------------------------------------------------------------===//

static Results distributed(Operation *op, const Operands &given) {
  return llvm::TypeSwitch<Operation *, Results>(op)
      .Case([&](LinearOp linearOp) { return linear(linearOp, given); })
      .Case([&](LinearDxOp dx) { return linearDx(dx, given); })
      .Case([&](LinearDwOp dw) { return linearDw(dw, given); })
      .Case([&](BiasDwOp db) { return biasDw(db, given); })
      .Case([&](AddBiasOp bias) { return addBias(bias, given); })
      .Case([&](TransposeOp transpose) {
        DeviceLayout w = given.layouts.front();
        return w.kind == LayoutKind::shard ? one(w.along(1 - w.dim)) : Results();
      })
      .Case([&](EmbeddingOp embedding) {
        bool fits = given.at(embedding.getTable()) == DeviceLayout::shard(0) && countsBy(op, Axis::tensor);
        return fits ? one(kPartial) : Results();
      })
      .Case([&](EmbeddingDwOp dw) { return embeddingDw(dw, given); })
      .Case([&](CrossEntropyStatsOp stats) { return statistics(stats, given); })
      .Case([&](CrossEntropyDzOp dz) { return gradientOfLogits(dz, given); })
      .Case([&](SplitOp splitOp) { return split(splitOp, given); })
      .Case([&](SliceColumnsOp slice) { return sliceColumns(slice, given); })
      .Case([&](PlaceColumnsOp place) { return placeColumns(place, given); })
      .Case([&](AttentionOp attentionOp) { return attention(attentionOp, given); })
      .Case([&](AttentionBwdOp backward) { return attentionBwd(backward, given); })
      .Case<RepeatHeadsOp, SumHeadsOp>([&](Operation *heads) { return copiesOfHeads(heads, given); })
      .Case<AttentionMergeOp, AttentionDeltaOp, SinkOp, SinkBwdOp>(
          [&](Operation *heads) { return byHeads(heads, given); })
      .Case<LayernormOp, LayernormRebuildOp, LayernormBwdOp>(
          [&](Operation *norm) { return rowByRow(norm, given.layouts); })
      .Case<RmsnormOp, RmsnormRebuildOp>([&](auto norm) {
        return given.at(norm.getX()) == kRows ? rowByRow(norm, given.layouts) : normOfHeads(norm, given);
      })
      .Case([&](RmsnormBwdOp norm) {
        return given.at(norm.getX()) == kRows ? rowByRow(norm, given.layouts) : normOfHeadsBwd(norm, given);
      })
      .Case([&](ExpertLinearOp product) { return expertLinear(product, given); })
      .Case([&](ExpertLinearDxOp dx) { return expertLinearDx(dx, given); })
      .Case([&](ExpertLinearDwOp dw) { return expertLinearDw(dw, given); })
      .Case<ScaleRowsOp, ScaleRowsBwdOp>([&](auto rows) { return scaleRows(rows, rows.getW(), given); })
      .Case<AddOp, ScaleOp, CopyOp, AccumulateOp, RoundOp, RowsOp, JoinRowsOp, SplitRowsOp, DispatchOp, CombineOp,
            PlaceWeightsOp, TakeWeightsOp>([&](Operation *each) { return alike(each, given, /*isLinear=*/true); })
      .Case<GeluOp, GeluBwdOp>([&](Operation *each) { return alike(each, given, /*isLinear=*/false); })
      .Case<SwigluOp, SwigluBwdOp, GluOp, GluBwdOp>([&](auto gate) { // no layout says whose columns of p and q
        return gate.getPacked() ? Results() : alike(gate, given, /*isLinear=*/false);
      })
      .Case([&](RopeOp rope) { // with heads that pass its tensor is packed, as that of `attention`
        return rope.getPassing() > 0 ? Results() : alike(rope, given, /*isLinear=*/false);
      })
      .Default(Results());
}

AxesAttr axesOfExchange(Operation *op) {
  return llvm::TypeSwitch<Operation *, AxesAttr>(op)
      .Case<SpreadOp, TakeRowsOp, TakePieceOp, TakeColumnsOp, Exchange>([](auto it) { return it.getAxes(); })
      .Default(AxesAttr());
}

Results inferLayouts(Operation *op, ArrayRef<DeviceLayout> operands, int64_t devices) {
  Operands given{op, operands, devices};
  // These ops work on each device's columns, heads and pieces alone.
  if (isa<GatherRunsOp, ScatterRunsOp, RunsToHeadsOp, HeadsToRunsOp, ExchangeSectionsOp, TakePieceOp>(op))
    return operands.front() == kRows ? Results() : one(operands.front());
  if (auto place = dyn_cast<PlacePieceOp>(op))
    return given.at(place.getX()) == kRows ? Results() : one(given.at(place.getX()));
  if (auto view = dyn_cast<SpreadOp>(op))
    return spread(view, operands.front());
  if (auto sum = dyn_cast<AllReduceOp>(op))
    return allReduce(sum, operands.front());
  if (auto gather = dyn_cast<AllGatherOp>(op))
    return allGather(gather, given);
  if (auto take = dyn_cast<TakeColumnsOp>(op))
    return operands.front() == kFull ? one(DeviceLayout::shard(lastOf(take.getX()))) : Results();
  if (isa<GatherRowsOp, ScatterRowsOp, TakeRowsOp>(op))
    return exchangeOfRows(op, operands.front());
  auto isFull = [](const DeviceLayout &layout) { return layout == kFull || layout.kind == LayoutKind::none; };
  if (llvm::all_of(operands, isFull) && !isa<ZeroOp>(op) && !countsBy(op, Axis::tensor))
    return replicated(op);
  if (isa<ZeroOp>(op))
    return one(kNone);
  return distributed(op, given);
}

} // namespace pp::nn
