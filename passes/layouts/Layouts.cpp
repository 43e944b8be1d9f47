// Layouts of values, and the rules of exchanges: from what each device has of an operand to what it has of the result.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The rules of all other ops follow from the factors that they state (FactorModes.cpp). An exchange over axes without
// the one in question runs for each device of this one by itself.
#include "passes/layouts/Layouts.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace pp::nn {
using LayoutKind = DeviceLayout::Kind;
using Results = std::optional<SmallVector<DeviceLayout>>;

static const DeviceLayout kFull = DeviceLayout::of(LayoutKind::full), kCopy = DeviceLayout::of(LayoutKind::copy),
                          kPartial = DeviceLayout::of(LayoutKind::partial), kNone = DeviceLayout::of(LayoutKind::none),
                          kRows = DeviceLayout::of(LayoutKind::rows);
/// Over context: columns of the own heads, and pieces of a vector with an element for each head.
static const DeviceLayout kHeads = DeviceLayout::shard(2), kHeadVector = DeviceLayout::shard(0);

static LayoutKind transposedKind(LayoutKind kind) {
  return kind == LayoutKind::copy ? LayoutKind::partial : kind == LayoutKind::partial ? LayoutKind::copy : kind;
}

DeviceLayout DeviceLayout::transposed() const {
  return {transposedKind(kind), dim, runs, copies, transposedKind(among)};
}

std::string DeviceLayout::text() const {
  static constexpr llvm::StringRef kNames[] = {"none", "data", "full", "copy", "shard", "rows", "partial"};
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

/// Along which axes the op counts from a device's place: rows of a table, columns of logits, heads; null: it does not.
static std::pair<llvm::StringRef, AxesAttr> placesOf(Operation *op) {
  if (takes(op, "first_by"))
    return {"first_by", op->getAttrOfType<AxesAttr>("first_by")};
  auto dropout = op->getAttrOfType<DropoutAttr>("dropout");
  return dropout ? std::pair("dropout", dropout.getHeadsBy()) : std::pair("", AxesAttr());
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
  if (x == kPartial && !op.getNeighbours())
    return one(kFull);
  if (!areNeighbours(x, op.getNeighbours()) || x.among != LayoutKind::partial)
    return std::nullopt;
  x.among = LayoutKind::full;
  return one(x);
}

static Results overTensor(Operation *op, const DeviceLayout &x) {
  auto give = [&](bool fits, const DeviceLayout &result) { return fits ? one(result) : Results(); };
  return llvm::TypeSwitch<Operation *, Results>(op)
      .Case([&](SpreadOp it) { return spread(it, x); })
      .Case([&](AllReduceOp it) { return allReduce(it, x); })
      .Case([&](AllGatherOp it) { return give(x == DeviceLayout::shard(static_cast<int64_t>(it.getDim())), kFull); })
      .Case([&](TakeColumnsOp it) { return give(x == kFull, DeviceLayout::shard(it.getX().getType().getRank() - 1)); })
      .Case([&](GatherRowsOp it) { return give(x == kRows, it.getWhole() ? kFull : kCopy); })
      .Case([&](ScatterRowsOp) { return give(x == kPartial, kRows); })
      .Case([&](TakeRowsOp) { return give(x == kFull, kRows); })
      .Default(Results());
}

/// Rows in which copies of each head lie side by side.
static DeviceLayout rowsWithCopies(int64_t heads, int64_t times, LayoutKind among) {
  return times > 1 ? DeviceLayout{LayoutKind::rows, 0, heads, times, among} : kRows;
}

/// Of heads with copies one is each device's.
static Results toHeads(RunsToHeadsOp op, const DeviceLayout &x) {
  auto members = static_cast<int64_t>(op.getMembers());
  if (x.copies > 1 && x == rowsWithCopies(members / x.copies, x.copies, LayoutKind::copy))
    return one(DeviceLayout::shard(2, 1, x.copies, LayoutKind::copy));
  return x == kRows ? one(kHeads) : Results();
}

static Results toRuns(HeadsToRunsOp op, const DeviceLayout &x) {
  if (x.copies > 1 && x == DeviceLayout::shard(2, 1, x.copies, LayoutKind::partial))
    return one(rowsWithCopies(static_cast<int64_t>(op.getMembers()) / x.copies, x.copies, x.among));
  return x == kHeads ? one(kRows) : Results();
}

/// Copies of the heads of own rows, and the sum of what they get: which heads they are is known until an exchange.
static Results copiesOfRows(Operation *op, const DeviceLayout &x) {
  if (auto repeat = dyn_cast<RepeatHeadsOp>(op))
    return x == kRows ? one(rowsWithCopies(repeat.getHeads(), repeat.getTimes(), LayoutKind::copy)) : Results();
  auto sum = cast<SumHeadsOp>(op);
  return x == rowsWithCopies(sum.getHeads(), sum.getTimes(), LayoutKind::partial) ? one(kRows) : Results();
}

static Results overContext(Operation *op, const DeviceLayout &x) {
  auto give = [&](bool fits, const DeviceLayout &result) { return fits ? one(result) : Results(); };
  return llvm::TypeSwitch<Operation *, Results>(op)
      .Case([&](GatherRunsOp) { // data stays data
        return x == kNone || x.kind == LayoutKind::data ? one(x) : give(x == kRows, kCopy);
      })
      .Case([&](ScatterRunsOp) { return give(x == kPartial, kRows); })
      .Case([&](RunsToHeadsOp it) { return toHeads(it, x); })
      .Case([&](HeadsToRunsOp it) { return toRuns(it, x); })
      .Case([&](TakePieceOp) { return give(x == kCopy, kHeadVector); })
      .Case([&](PlacePieceOp) { return give(x == kHeadVector, kPartial); })
      .Case([&](AllReduceOp) { return give(x == kPartial, kCopy); }) // counts, which have no gradient
      .Default(Results());
}

DeviceLayout layoutOfData(Type data) {
  return isa<FloatType>(cast<RankedTensorType>(data).getElementType()) ? DeviceLayout::of(LayoutKind::data) : kNone;
}

AxesAttr axesOfExchange(Operation *op) { return op->getAttrOfType<AxesAttr>("axes"); }

/// Over axes without this one: each of its devices does so by itself. Rows would come from other sequences, and heads
/// that are already exchanged would lose their order.
static Results overOthers(Operation *op, const DeviceLayout &x, Axis axis) {
  bool fits = axis == Axis::tensor    ? x != kRows || isa<AllReduceOp>(op)
              : axis == Axis::context ? (x != kHeads && x.copies == 1) || !isa<AllGatherOp, TakeColumnsOp>(op)
                                      : true;
  return fits ? one(x) : Results();
}

Results inferLayouts(Operation *op, ArrayRef<DeviceLayout> operands, Axis axis, bool isOfDevice) {
  if (axis == Axis::expert)
    return inferExpertLayouts(op, operands);
  if (isa<ZeroOp>(op))
    return one(kNone);
  if (AxesAttr axes = axesOfExchange(op)) {
    const DeviceLayout &x = operands.front();
    return !llvm::is_contained(axes.getAxes(), axis) ? overOthers(op, x, axis)
           : axis == Axis::tensor                    ? overTensor(op, x)
                                                     : overContext(op, x);
  }
  if (auto sum = dyn_cast<SegmentSumOp>(op); sum && axis == Axis::context && sum.getZigzag() > 0)
    return operands.front() == kCopy || operands.front().kind == LayoutKind::data
               ? one(kRows) // of whole rows, for the own ones
               : Results();
  if (axis == Axis::context && isa<RepeatHeadsOp, SumHeadsOp>(op))
    return copiesOfRows(op, operands.front());
  Results made = layoutsByFactors(op, operands, axis);
  return made || !isOfDevice ? made : layoutsByFactors(op, operands, axis, /*isOfDevice=*/true);
}

} // namespace pp::nn
