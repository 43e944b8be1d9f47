// Shapes of what devices of one rank hand each other, and of the views and copies beside it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

INFER(SpreadOp) {
  Check check{"spread", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(AllReduceOp) {
  Check check{"all_reduce", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(AllGatherOp) {
  Check check{"all_gather", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  auto dim = static_cast<int64_t>(a.getDim()), members = static_cast<int64_t>(a.getMembers());
  SmallVector<int64_t> shape(tensorOf(a.getX()).getShape());
  if (dim < 0 || dim >= static_cast<int64_t>(shape.size()) || members < 1)
    return emitOptionalError(loc, "`all_gather` expects a dimension of x, which has ", shape.size(),
                             ", and at least 1 member, got dimension ", dim, " and ", members, " members");
  shape[dim] *= members;
  types.push_back(tensorOf(a.getX()).clone(shape));
  return success();
}

INFER(PieceOp) {
  Check check{"piece", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  auto index = static_cast<int64_t>(a.getIndex()), of = static_cast<int64_t>(a.getOf());
  SmallVector<int64_t> shape(tensorOf(a.getX()).getShape());
  if (shape.empty() || of < 1 || shape[0] % of != 0 || index < 0 || index >= of)
    return emitOptionalError(loc, "`piece` expects one of equal runs of x's first dimension, got number ", index,
                             " of ", of, " of ", a.getX().getType());
  shape[0] /= of;
  types.push_back(tensorOf(a.getX()).clone(shape));
  return success();
}

/// The rows of a [batch, length, width] tensor that each device has.
template <typename Adaptor> static LogicalResult runOfRows(Check check, Adaptor a, SmallVectorImpl<Type> &types) {
  Value x = a.getX();
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", x)) || failed(check.rank("x", x, 3)))
    return failure();
  auto shape = tensorOf(x).getShape();
  auto count = static_cast<int64_t>(a.getMembers());
  if (count < 1 || shape[0] * shape[1] % count != 0)
    return emitOptionalError(check.loc, "`", check.op, "`: ", count, " devices do not divide the ", shape[0] * shape[1],
                             " rows of ", shape[0], " x ", shape[1], " tokens");
  types.push_back(tensorOf(x).clone({1, shape[0] * shape[1] / count, shape[2]}));
  return success();
}

INFER(GatherRowsOp) {
  Check check{"gather_rows", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)))
    return failure();
  auto shape = tensorOf(a.getX()).getShape();
  auto batch = static_cast<int64_t>(a.getBatch()), members = static_cast<int64_t>(a.getMembers());
  if (shape[0] != 1 || batch < 1 || members < 1 || shape[1] * members % batch != 0)
    return emitOptionalError(loc, "`gather_rows` expects a run of the rows of sequences of one length, got ",
                             a.getX().getType(), " of ", members, " members for ", batch, " sequences");
  types.push_back(tensorOf(a.getX()).clone({batch, shape[1] * members / batch, shape[2]}));
  return success();
}

INFER(ScatterRowsOp) { return runOfRows({"scatter_rows", loc}, a, types); }

INFER(TakeRowsOp) { return runOfRows({"take_rows", loc}, a, types); }

/// Checks sequences that are cut in twice as many equal runs as there are members.
template <typename Adaptor>
static LogicalResult runsOfSequences(Check check, Adaptor a, bool whole, SmallVectorImpl<Type> &types) {
  Value x = a.getX();
  bool isData = !whole && tensorOf(x).getElementType().isInteger(32);
  bool isOfTokens = isData || (!whole && tensorOf(x).getRank() == 2); // one number, or integer, for each token
  if (failed(check.operands(a, 1, 1)) || failed(check.rank("x", x, isOfTokens ? 2 : 3)) ||
      (!isData && failed(check.numbers("x", x))))
    return failure();
  SmallVector<int64_t> shape(tensorOf(x).getShape());
  int64_t members = static_cast<int64_t>(a.getMembers()), runs = whole ? 2 * members : 2;
  if (members < 1 || shape[1] % runs != 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects sequences of ", runs, " equal runs, got ",
                             x.getType());
  shape[1] = whole ? shape[1] / members : shape[1] * members;
  types.push_back(tensorOf(x).clone(shape));
  return success();
}

INFER(GatherRunsOp) { return runsOfSequences({"gather_runs", loc}, a, /*whole=*/false, types); }

/// Checks an exchange between two runs of every sequence with all columns, and whole sequences with a piece of the
/// columns.
template <typename Adaptor>
static LogicalResult runsAndHeads(Check check, Adaptor a, bool toHeads, SmallVectorImpl<Type> &types) {
  Value x = a.getX();
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", x)) || failed(check.rank("x", x, 3)))
    return failure();
  SmallVector<int64_t> shape(tensorOf(x).getShape());
  auto members = static_cast<int64_t>(a.getMembers());
  int64_t runs = toHeads ? 2 : 2 * members;
  if (members < 1 || shape[1] % runs != 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects sequences of ", runs, " equal runs, got ",
                             x.getType());
  if (toHeads && shape[2] % members != 0)
    return emitOptionalError(check.loc, "`", check.op, "`: ", members, " devices do not divide the ", shape[2],
                             " columns of x");
  shape[1] = toHeads ? shape[1] * members : shape[1] / members;
  shape[2] = toHeads ? shape[2] / members : shape[2] * members;
  types.push_back(tensorOf(x).clone(shape));
  return success();
}

INFER(ExchangeSectionsOp) {
  Check check{"exchange_sections", loc};
  if (failed(check.operands(a, 1, 1)))
    return failure();
  auto type = tensorOf(a.getX());
  auto members = static_cast<int64_t>(a.getMembers());
  auto shape = type.getShape();
  int64_t sections = shape.empty() ? 0 : shape.size() > 1 && shape[0] == 1 ? shape[1] : shape[0];
  if (members < 1 || sections % members != 0)
    return emitOptionalError(loc, "`exchange_sections` expects equal sections for ", members, " devices, got ", type);
  types.push_back(type);
  return success();
}

INFER(RunsToHeadsOp) { return runsAndHeads({"runs_to_heads", loc}, a, /*toHeads=*/true, types); }

INFER(HeadsToRunsOp) { return runsAndHeads({"heads_to_runs", loc}, a, /*toHeads=*/false, types); }

/// Heads, and as many with copies of each behind it.
template <typename Adaptor>
static LogicalResult copiesOfHeads(Check check, Adaptor a, bool makes, SmallVectorImpl<Type> &types) {
  Value x = a.getX();
  auto heads = static_cast<int64_t>(a.getHeads()), times = static_cast<int64_t>(a.getTimes());
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", x)))
    return failure();
  if (times < 1)
    return emitOptionalError(check.loc, "`", check.op, "` expects at least 1 copy of each head, got ", times);
  if (failed(check.heads("x", widthOf(x), makes ? heads : heads * times, /*even=*/false)))
    return failure();
  types.push_back(withWidth(x, makes ? widthOf(x) * times : widthOf(x) / times));
  return success();
}

INFER(RepeatHeadsOp) { return copiesOfHeads({"repeat_heads", loc}, a, /*makes=*/true, types); }

INFER(SumHeadsOp) { return copiesOfHeads({"sum_heads", loc}, a, /*makes=*/false, types); }

/// dims T d n: heads of all tokens, their width, copies of each.
template <typename Op> static Dims dimsOfCopies(Op op, Value few) {
  int64_t width = widthOf(few) / static_cast<int64_t>(op.getHeads());
  return {elementsOf(few) / width, width, static_cast<int64_t>(op.getTimes())};
}
Dims RepeatHeadsOp::dims() { return dimsOfCopies(*this, getX()); }
Dims SumHeadsOp::dims() {
  Dims dims = dimsOfCopies(*this, getY());
  dims.append({dims[1], 0});
  return dims;
}
double SumHeadsOp::flops() { return elementsOf(getX()); }

INFER(TakePieceOp) {
  Check check{"take_piece", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  SmallVector<int64_t> shape(tensorOf(a.getX()).getShape());
  int64_t members = a.getMembers();
  if (shape.empty() || members < 1 || shape[0] % members != 0)
    return emitOptionalError(loc, "`take_piece`: ", members, " devices do not divide the rows of ", tensorOf(a.getX()));
  shape[0] /= members;
  types.push_back(tensorOf(a.getX()).clone(shape));
  return success();
}

INFER(PlacePieceOp) {
  Check check{"place_piece", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())))
    return failure();
  SmallVector<int64_t> shape(tensorOf(a.getX()).getShape());
  if (shape.empty())
    return emitOptionalError(loc, "`place_piece` expects rows, got ", tensorOf(a.getX()));
  shape[0] *= static_cast<int64_t>(a.getMembers());
  types.push_back(tensorOf(a.getX()).clone(shape));
  return check.into(a.getAcc(), types[0]);
}

StringRef TakePieceOp::kernelName() { return "slice_columns"; } // of one row, from where the device's piece begins
Dims TakePieceOp::dims() { return {1, elementsOf(getX()), 0, elementsOf(getY())}; }
SmallVector<Varying> TakePieceOp::varying() { return {{2, getAxes(), elementsOf(getY())}}; }
StringRef PlacePieceOp::kernelName() { return "place_columns"; }
Dims PlacePieceOp::dims() { return {1, elementsOf(getY()), 0, elementsOf(getX()), 1}; }
SmallVector<Varying> PlacePieceOp::varying() { return {{2, getAxes(), elementsOf(getX())}}; }

INFER(ScatterRunsOp) { return runsOfSequences({"scatter_runs", loc}, a, /*whole=*/true, types); }

INFER(TakeColumnsOp) {
  Check check{"take_columns", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  SmallVector<int64_t> shape(tensorOf(a.getX()).getShape());
  auto members = static_cast<int64_t>(a.getMembers());
  if (shape.empty() || members < 1 || shape.back() % members != 0)
    return emitOptionalError(loc, "`take_columns`: ", members, " devices do not divide the columns of ",
                             a.getX().getType());
  shape.back() /= members;
  types.push_back(tensorOf(a.getX()).clone(shape));
  return success();
}

StringRef TakeColumnsOp::kernelName() { return "slice_columns"; }
Dims TakeColumnsOp::dims() { return {rowsOf(getX()), widthOf(getX()), 0, widthOf(getY())}; }
SmallVector<Varying> TakeColumnsOp::moved() {
  int64_t bytes = widthOf(getY()) * (tensorOf(getY()).getElementTypeBitWidth() / 8);
  return {{0, getAxes(), bytes}};
}

StringRef TakeRowsOp::kernelName() { return "copy"; }
Dims TakeRowsOp::dims() { return {elementsOf(getY())}; }
SmallVector<Varying> TakeRowsOp::moved() {
  int64_t bytes = elementsOf(getY()) * (tensorOf(getY()).getElementTypeBitWidth() / 8);
  return {{0, getAxes(), bytes}};
}

//===-- Derivatives ---------------------------------------------------------------------------------------------===//

// The gradient of a device's share of the work is a share; the gradient of a sum is the gradient of every term.
LogicalResult SpreadOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  Value sum = gradients.builder.create<AllReduceOp>(getLoc(), dy, getAxes(), getNeighboursAttr());
  gradients.weights.contains(getX()) ? gradients.addToWeight(getLoc(), getX(), sum)
                                     : gradients.add(getLoc(), getX(), sum);
  return success();
}

LogicalResult AllReduceOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(), gradients.builder.create<SpreadOp>(getLoc(), dy, getAxes(), getNeighboursAttr()));
  return success();
}

/// The loss itself derives the gather of its statistics.
LogicalResult AllGatherOp::differentiate(Gradients &gradients) {
  bool isColumns = static_cast<int64_t>(getDim()) + 1 == tensorOf(getX()).getRank();
  if (Value dy = isColumns ? gradients.get(getY()) : Value())
    gradients.add(getLoc(), getX(), gradients.builder.create<TakeColumnsOp>(getLoc(), dy, getAxes(), getMembers()));
  return success();
}

LogicalResult TakeColumnsOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(
        getLoc(), getX(),
        gradients.builder.create<AllGatherOp>(getLoc(), dy, getAxes(), tensorOf(getX()).getRank() - 1, getMembers()));
  return success();
}

LogicalResult PieceOp::differentiate(Gradients &) { return success(); }

bool GatherRowsOp::isCheap() { return !getKept(); }
bool GatherRunsOp::isCheap() { return !getKept() || tensorOf(getY()).getElementType().isInteger(32); }
bool HeadsToRunsOp::isCheap() { return !getKept(); }
bool ExchangeSectionsOp::isCheap() { return !getKept() && tensorOf(getY()).getRank() == 3; }

LogicalResult ExchangeSectionsOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(),
                  gradients.builder.create<ExchangeSectionsOp>(getLoc(), dy, getAxes(), getMembers(), /*kept=*/true));
  return success();
}

// Each device hands on what it has, and nothing is added: gradients go the way back. They are made once.
LogicalResult RunsToHeadsOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(),
                  gradients.builder.create<HeadsToRunsOp>(getLoc(), dy, getAxes(), getMembers(), /*kept=*/true));
  return success();
}

LogicalResult HeadsToRunsOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(), gradients.builder.create<RunsToHeadsOp>(getLoc(), dy, getAxes(), getMembers()));
  return success();
}

LogicalResult RepeatHeadsOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(), gradients.builder.create<SumHeadsOp>(getLoc(), dy, getHeads(), getTimes()));
  return success();
}

LogicalResult TakePieceOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  auto piece = cast<RankedTensorType>(dy.getType());
  Value zero = gradients.builder.create<ZeroOp>(getLoc(), piece.clone(tensorOf(getX()).getShape()));
  Value placed = gradients.builder.create<PlacePieceOp>(getLoc(), dy, zero, getAxes(), getMembers());
  gradients.weights.contains(getX()) ? gradients.addToWeight(getLoc(), getX(), placed)
                                     : gradients.add(getLoc(), getX(), placed);
  return success();
}

LogicalResult GatherRunsOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getX(), gradients.builder.create<ScatterRunsOp>(getLoc(), dy, getAxes(), getMembers()));
  return success();
}

/// It stands in backward bodies alone.
LogicalResult ScatterRunsOp::differentiate(Gradients &) { return success(); }

LogicalResult GatherRowsOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  Value dx = getWhole() ? gradients.builder.create<TakeRowsOp>(getLoc(), dy, getAxes(), getMembers(), false).getY()
                        : gradients.builder.create<ScatterRowsOp>(getLoc(), dy, getAxes(), getMembers(), false).getY();
  gradients.add(getLoc(), getX(), dx);
  return success();
}

/// Gathers the gradient of a run of rows, so that every device gets all rows, as `whole` says.
template <typename Op> static LogicalResult gatherGradient(Op op, bool whole, Gradients &gradients) {
  if (Value dy = gradients.get(op.getY()))
    gradients.add(op.getLoc(), op.getX(),
                  gradients.builder.create<GatherRowsOp>(op.getLoc(), dy, op.getAxes(),
                                                         tensorOf(op.getX()).getDimSize(0), op.getMembers(), whole,
                                                         op.getKept()));
  return success();
}

LogicalResult ScatterRowsOp::differentiate(Gradients &gradients) {
  return gatherGradient(*this, /*whole=*/false, gradients);
}
LogicalResult TakeRowsOp::differentiate(Gradients &gradients) {
  return gatherGradient(*this, /*whole=*/true, gradients);
}
