// Shapes, kernels and costs of what goes element by element: activations, sums, columns, copies.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

INFER(GeluOp) {
  Check check{"gelu", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(GeluBwdOp) {
  Check check{"gelu_bwd", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.same("dy", a.getDy(), "x", a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

/// Checks that p and q have one type, or that their one tensor has a half for each. The caller counts the operands.
template <typename Adaptor> static LogicalResult checkGate(Check check, Adaptor a) {
  if (!a.getPacked())
    return check.same("p", a.getP(), "q", a.getQ());
  if (widthOf(a.getP()) % 2)
    return emitOptionalError(check.loc, "`", check.op, "` expects an even width where it is packed, got ",
                             widthOf(a.getP()));
  return success();
}

/// The type of what a gated unit makes.
template <typename Op> static RankedTensorType gatedType(Op op) {
  RankedTensorType type = tensorOf(op.getP());
  SmallVector<int64_t> shape(type.getShape());
  shape.back() /= op.getPacked() ? 2 : 1;
  return type.clone(shape);
}

/// The gradient of a gated unit's result has the result's type.
template <typename Adaptor> static LogicalResult checkGateBackward(Check check, Adaptor a) {
  return success(succeeded(checkGate(check, a)) && succeeded(check.type("dy", a.getDy(), gatedType(a))));
}

/// The types of what a backward makes: gradients of p and of q, or one of their one tensor.
template <typename Adaptor> static void addGateGradients(Adaptor a, SmallVectorImpl<Type> &types) {
  types.append(a.getPacked() ? 1 : 2, a.getP().getType());
}

INFER(SwigluOp) {
  Check check{"swiglu", loc};
  const size_t operands = a.getPacked() ? 1 : 2;
  if (failed(check.operands(a, operands, operands)) || failed(check.numbers("p", a.getP())) ||
      failed(checkGate(check, a)))
    return failure();
  types.push_back(gatedType(a));
  return success();
}

INFER(SwigluBwdOp) {
  Check check{"swiglu_bwd", loc};
  const size_t operands = a.getPacked() ? 2 : 3;
  if (failed(check.operands(a, operands, operands)) || failed(check.numbers("p", a.getP())) ||
      failed(checkGateBackward(check, a)))
    return failure();
  addGateGradients(a, types);
  return success();
}

/// Activation and numbers of a glu.
template <typename Adaptor> static LogicalResult checkGlu(Check check, Adaptor a) {
  StringRef activation = a.getActivation();
  double limit = a.getLimit().convertToDouble(), alpha = a.getAlpha().convertToDouble();
  if (!is_contained({"silu", "gelu", "gelu_tanh"}, activation))
    return emitOptionalError(check.loc, "`", check.op,
                             "` expects the activation \"silu\", \"gelu\" or \"gelu_tanh\", got \"", activation, "\"");
  if (!(limit >= 0))
    return emitOptionalError(check.loc, "`", check.op, "` expects a `limit` of at least 0, got ", limit);
  if (!(alpha > 0) || (alpha != 1 && activation != "silu"))
    return emitOptionalError(check.loc, "`", check.op, "` expects an `alpha` ",
                             alpha > 0 ? "of 1 where the activation is no silu" : "above 0", ", got ", alpha);
  return success();
}

INFER(GluOp) {
  Check check{"glu", loc};
  const size_t operands = a.getPacked() ? 1 : 2;
  if (failed(check.operands(a, operands, operands)) || failed(check.numbers("p", a.getP())) ||
      failed(checkGlu(check, a)) || failed(checkGate(check, a)))
    return failure();
  types.push_back(gatedType(a));
  return success();
}

INFER(GluBwdOp) {
  Check check{"glu_bwd", loc};
  const size_t operands = a.getPacked() ? 2 : 3;
  if (failed(check.operands(a, operands, operands)) || failed(check.numbers("p", a.getP())) ||
      failed(checkGlu(check, a)) || failed(checkGateBackward(check, a)))
    return failure();
  addGateGradients(a, types);
  return success();
}

INFER(AddOp) {
  Check check{"add", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) ||
      failed(check.same("x", a.getX(), "y", a.getY())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(AddBiasOp) {
  Check check{"add_bias", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) ||
      failed(check.rank("a bias", a.getBias(), 1)) ||
      failed(check.equal("x's width", widthOf(a.getX()), "the bias's", widthOf(a.getBias()))) ||
      (tensorOf(a.getX()) != inSums(a.getBias(), tensorOf(a.getX()).getShape()) &&
       failed(check.sameElements("x", a.getX(), "bias", a.getBias()))))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

Dims AddBiasOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
Flags AddBiasOp::flags() { return flagsOf({{"sums", elementType() != tensorOf(getX()).getElementType()}}); }
Type AddBiasOp::elementType() { return tensorOf(getBias()).getElementType(); }
double AddBiasOp::flops() { return elementsOf(getX()); }

INFER(ScaleOp) {
  Check check{"scale", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(DropoutOp) {
  Check check{"dropout", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)) ||
      failed(check.type(
          "rows", a.getRows(),
          RankedTensorType::get(tensorOf(a.getX()).getShape().take_front(2), IntegerType::get(context, 32)))))
    return failure();
  double rate = a.getRate().convertToDouble();
  if (!(rate >= 0 && rate < 1))
    return emitOptionalError(loc, "`dropout` expects a rate of at least 0 and below 1, got ", rate);
  if (int64_t site = a.getSite(); site < 0 || site >= kDropoutSites)
    return emitOptionalError(loc, "`dropout` expects a site from 0 to ", kDropoutSites - 1, ", got ", site);
  types.push_back(a.getX().getType());
  return success();
}

Dims DropoutOp::dims() {
  auto type = tensorOf(getX());
  Dims dims = {type.getDimSize(0), type.getDimSize(1), type.getDimSize(2), static_cast<int64_t>(getOffset()),
               static_cast<int64_t>(getSite())};
  TwoRuns(*this, getX()).addTo(dims);
  return dims;
}
Flags DropoutOp::flags() { return flagsOf({{"zigzag", getZigzag() > 0}}); }
SmallVector<Varying> DropoutOp::varying() { return TwoRuns(*this, getX()).varying(3, 5); }
SmallVector<double> DropoutOp::params() { return {getRate().convertToDouble()}; }
double DropoutOp::flops() { return 15.0 * elementsOf(getX()); }

static LogicalResult checkPeriods(Check check, StringRef name, Value x, int64_t periods) {
  if (periods >= 1 && widthOf(x) % periods == 0)
    return success();
  return emitOptionalError(check.loc, "`", check.op, "` expects ", name, "'s width to be a multiple of ", periods,
                           " periods, got ", widthOf(x));
}

INFER(pp::nn::SplitOp) {
  Check check{"split", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  int64_t periods = a.getPeriods(), width = widthOf(a.getX());
  if (a.getParts().has_value() == a.getWidths().has_value())
    return emitOptionalError(loc, "`split` expects a number of parts, or widths");
  if (failed(checkPeriods(check, "x", a.getX(), periods)))
    return failure();
  if (a.getParts()) {
    int64_t parts = *a.getParts();
    if (parts <= 0 || width / periods % parts != 0)
      return emitOptionalError(loc, "`split` expects x's width to be a multiple of ", parts, " parts, got ",
                               width / periods);
    types.assign(parts, withWidth(a.getX(), width / parts));
    return success();
  }
  int64_t total = 0;
  ArrayRef<int64_t> widths = *a.getWidths();
  for (int64_t run : widths) {
    if (run < 1 || run > width)
      return emitOptionalError(loc, "`split` expects widths of 1 to ", width, " columns, got ", run);
    types.push_back(withWidth(a.getX(), run * periods));
    total += run;
  }
  return check.equal("all widths together", total, "x's width in a period", width / periods);
}

SmallVector<int64_t> pp::nn::SplitOp::runWidths() {
  SmallVector<int64_t> widths;
  for (Value column : getColumns())
    widths.push_back(widthOf(column) / static_cast<int64_t>(getPeriods()));
  return widths;
}

INFER(ConcatOp) {
  Check check{"concat", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) || failed(check.numbers("y", a.getY())))
    return failure();
  auto x = tensorOf(a.getX()), y = tensorOf(a.getY());
  if (x.getShape().drop_back() != y.getShape().drop_back() || x.getElementType() != y.getElementType())
    return emitOptionalError(loc, "`concat` expects the same rows in x and y, got ", x, " and ", y);
  int64_t periods = a.getPeriods(), times = a.getShared() ? periods : 1;
  if (failed(checkPeriods(check, "x", a.getX(), periods)) ||
      (!a.getShared() && failed(checkPeriods(check, "y", a.getY(), periods))))
    return failure();
  types.push_back(withWidth(a.getX(), widthOf(a.getX()) + times * widthOf(a.getY())));
  return success();
}

INFER(PadOp) {
  Check check{"pad", loc};
  int64_t columns = a.getColumns(), periods = a.getPeriods();
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())) ||
      failed(checkPeriods(check, "x", a.getX(), periods)))
    return failure();
  if (columns < 1)
    return emitOptionalError(loc, "`pad` expects at least 1 column, got ", columns);
  types.push_back(withWidth(a.getX(), widthOf(a.getX()) + periods * columns));
  return success();
}

/// A sequence of so many rows of x.
static RankedTensorType withRows(Value x, int64_t batch, int64_t length) {
  return RankedTensorType::get({batch, length, widthOf(x)}, tensorOf(x).getElementType());
}

INFER(SplitRowsOp) {
  Check check{"split_rows", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)))
    return failure();
  int64_t total = 0;
  for (int64_t count : a.getCounts()) {
    if (count < 1)
      return emitOptionalError(loc, "`split_rows` expects runs of at least 1 row, got ", count);
    types.push_back(withRows(a.getX(), 1, count));
    total += count;
  }
  return check.equal("the rows of all runs", total, "x's rows", rowsOf(a.getX()));
}

INFER(JoinRowsOp) {
  Check check{"join_rows", loc};
  if (failed(check.operands(a, 1, SIZE_MAX)))
    return failure();
  int64_t total = 0, batch = a.getBatch();
  Value first = a.getRuns().front();
  for (Value run : a.getRuns()) {
    if (failed(check.numbers("a run", run)) || failed(check.rank("a run", run, 3)) ||
        failed(check.equal("a run's width", widthOf(run), "that of the first", widthOf(first))) ||
        failed(check.sameElements("a run", run, "the first", first)))
      return failure();
    total += rowsOf(run);
  }
  if (batch < 1 || total % batch != 0)
    return emitOptionalError(loc, "`join_rows` expects rows that are ", batch, " equal sequences, got ", total);
  types.push_back(withRows(first, batch, total / batch));
  return success();
}

INFER(RowsOp) {
  Check check{"rows", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)))
    return failure();
  int64_t start = a.getStart(), count = a.getCount(), total = rowsOf(a.getX());
  if (start < 0 || count < 1 || start + count > total)
    return emitOptionalError(loc, "`rows` expects rows of a tensor of ", total, ", got ", start, " to ", start + count);
  types.push_back(withRows(a.getX(), 1, count));
  return success();
}

/// Columns [start, start + width) are columns of each of `periods` runs of a tensor `total` wide.
static LogicalResult checkColumns(Check check, int64_t start, int64_t width, int64_t total, int64_t periods) {
  if (periods < 1 || total % periods != 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects a width that is a multiple of ", periods,
                             " periods, got ", total);
  if (start >= 0 && width > 0 && start <= total / periods && width <= total / periods - start)
    return success();
  return emitOptionalError(check.loc, "`", check.op, "` expects columns of ",
                           periods == 1 ? "a tensor " : "periods of a tensor ", total, " wide, got ", start, " to ",
                           start + width);
}

INFER(SliceColumnsOp) {
  Check check{"slice_columns", loc};
  if (failed(check.operands(a, 1, 1)) ||
      failed(checkColumns(check, a.getStart(), a.getWidth(), widthOf(a.getX()), a.getPeriods())))
    return failure();
  types.push_back(withWidth(a.getX(), a.getWidth() * a.getPeriods()));
  return success();
}

INFER(SumColumnsOp) {
  Check check{"sum_columns", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())) ||
      failed(checkColumns(check, a.getStart(), a.getWidth(), widthOf(a.getX()), a.getPeriods())))
    return failure();
  types.push_back(withWidth(a.getX(), a.getWidth()));
  return success();
}

INFER(SliceElementsOp) {
  Check check{"slice_elements", loc};
  if (failed(check.operands(a, 1, 1)))
    return failure();
  int64_t start = a.getStart(), count = a.getCount(), total = elementsOf(a.getX());
  if (start < 0 || count <= 0 || start + count > total)
    return emitOptionalError(loc, "`slice_elements` expects elements of a tensor of ", total, ", got ", start, " to ",
                             start + count);
  types.push_back(RankedTensorType::get({count}, tensorOf(a.getX()).getElementType()));
  return success();
}

INFER(PlaceColumnsOp) {
  Check check{"place_columns", loc};
  if (failed(check.operands(a, 1, 2)))
    return failure();
  int64_t periods = a.getPeriods(), runs = a.getShared() ? 1 : periods;
  if (failed(checkPeriods(check, "x", a.getX(), runs)) ||
      failed(checkColumns(check, a.getStart(), widthOf(a.getX()) / runs, a.getTotal(), periods)))
    return failure();
  if (a.getZeros() && a.getAcc())
    return emitOptionalError(loc, "`place_columns` has `zeros` or `acc`, not both");
  types.push_back(withWidth(a.getX(), a.getTotal()));
  return check.into(a.getAcc(), types[0]);
}

INFER(CopyOp) {
  Check check{"copy", loc};
  if (failed(check.operands(a, 1, 2)))
    return failure();
  types.push_back(a.getX().getType());
  return check.into(a.getAcc(), types[0]);
}

INFER(AccumulateOp) {
  Check check{"accumulate", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) ||
      (a.getFlat() && failed(FlatShard::verify(*a.getFlat(), "accumulate", loc))))
    return failure();
  SmallVector<int64_t> shape(tensorOf(a.getX()).getShape());
  if (a.getFlat())
    shape = {FlatShard(*a.getFlat()).shard};
  types.push_back(inSums(a.getX(), shape));
  return check.into(a.getAcc(), types[0]);
}

INFER(RoundOp) {
  Check check{"round", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  Type element = a.getElement(), sum = tensorOf(a.getX()).getElementType();
  if (sumType(element) != sum)
    return emitOptionalError(loc, "`round` makes ", element, " of sums in ", sumType(element), ", got ", sum);
  types.push_back(RankedTensorType::get(tensorOf(a.getX()).getShape(), element));
  return success();
}

INFER(SumSquaresOp) {
  Check check{"sum_squares", loc};
  if (failed(check.operands(a, 1, 2)))
    return failure();
  if (a.getFlat() && failed(FlatShard::verify(*a.getFlat(), "sum_squares", loc)))
    return failure();
  if (a.getFlat() && FlatShard(*a.getFlat()).packed > 0 && elementsOf(a.getGrad()) != FlatShard(*a.getFlat()).shard)
    return emitOptionalError(loc, "`sum_squares` expects a shard of ", FlatShard(*a.getFlat()).shard, " elements, got ",
                             a.getGrad().getType());
  types.push_back(RankedTensorType::get({1}, Float64Type::get(context)));
  return check.into(a.getAcc(), types[0]);
}

Dims GeluOp::dims() { return {elementsOf(getX())}; }
double GeluOp::flops() { return 10.0 * elementsOf(getX()); }
Flags GeluOp::flags() { return flagsOf({{"exact", getExact()}}); }
Dims GeluBwdOp::dims() { return {elementsOf(getX())}; }
double GeluBwdOp::flops() { return 15.0 * elementsOf(getX()); }
Flags GeluBwdOp::flags() { return flagsOf({{"exact", getExact()}}); }
/// Elements of what a gated unit makes; where it is packed also the width of p.
template <typename Op> static Dims gateDims(Op op) {
  RankedTensorType made = gatedType(op);
  Dims dims = {made.getNumElements()};
  if (op.getPacked())
    dims.push_back(made.getShape().back());
  return dims;
}
Dims SwigluOp::dims() { return gateDims(*this); }
double SwigluOp::flops() { return 10.0 * elementsOf(getY()); }
Flags SwigluOp::flags() { return flagsOf({{"packed", getPacked()}}); }
SmallVector<Value> SwigluOp::pointers() { return {getP(), getQ(), getY()}; }
Dims SwigluBwdOp::dims() { return gateDims(*this); }
double SwigluBwdOp::flops() { return 15.0 * elementsOf(getDy()); }
Flags SwigluBwdOp::flags() { return flagsOf({{"packed", getPacked()}}); }
SmallVector<Value> SwigluBwdOp::pointers() { return {getDy(), getP(), getQ(), getDp(), getDq()}; }

template <typename Op> static SmallVector<double> gluParams(Op op) {
  return {op.getLimit().convertToDouble(), op.getAlpha().convertToDouble(), op.getPlus().convertToDouble()};
}
template <typename Op> static Flags gluFlags(Op op) {
  StringRef activation = op.getActivation();
  return flagsOf({{"exact", activation == "gelu"}, {"tanh", activation == "gelu_tanh"}, {"packed", op.getPacked()}});
}
Dims GluOp::dims() { return gateDims(*this); }
double GluOp::flops() { return 10.0 * elementsOf(getY()); }
SmallVector<double> GluOp::params() { return gluParams(*this); }
Flags GluOp::flags() { return gluFlags(*this); }
SmallVector<Value> GluOp::pointers() { return {getP(), getQ(), getY()}; }
Dims GluBwdOp::dims() { return gateDims(*this); }
double GluBwdOp::flops() { return 15.0 * elementsOf(getDy()); }
SmallVector<double> GluBwdOp::params() { return gluParams(*this); }
Flags GluBwdOp::flags() { return gluFlags(*this); }
SmallVector<Value> GluBwdOp::pointers() { return {getDy(), getP(), getQ(), getDp(), getDq()}; }

Dims AddOp::dims() { return {elementsOf(getX())}; }
double AddOp::flops() { return elementsOf(getX()); }
Dims ScaleOp::dims() { return {elementsOf(getX())}; }
SmallVector<double> ScaleOp::params() { return {getFactor().convertToDouble()}; }
double ScaleOp::flops() { return elementsOf(getX()); }

// A period is a row of its own.
Dims SliceColumnsOp::dims() {
  auto periods = static_cast<int64_t>(getPeriods());
  return {rowsOf(getX()) * periods, widthOf(getX()) / periods, static_cast<int64_t>(getStart()),
          static_cast<int64_t>(getWidth())};
}
StringRef SumColumnsOp::kernelName() { return "sum_heads"; }
Dims SumColumnsOp::dims() {
  auto periods = static_cast<int64_t>(getPeriods());
  return {rowsOf(getX()), static_cast<int64_t>(getWidth()), periods, widthOf(getX()) / periods,
          static_cast<int64_t>(getStart())};
}
double SumColumnsOp::flops() { return elementsOf(getY()) * static_cast<double>(getPeriods()); }
StringRef SliceElementsOp::kernelName() { return "slice_columns"; } // of one long row
Dims SliceElementsOp::dims() {
  return {1, elementsOf(getX()), static_cast<int64_t>(getStart()), static_cast<int64_t>(getCount())};
}
Dims PlaceColumnsOp::dims() {
  auto periods = static_cast<int64_t>(getPeriods());
  int64_t times = getShared() ? periods : 1;
  return {rowsOf(getX()) * periods, static_cast<int64_t>(getTotal()) / periods, static_cast<int64_t>(getStart()),
          widthOf(getX()) / (periods / times), times};
}
Flags PlaceColumnsOp::flags() { return flagsOf({{"zeros", getZeros()}}); }

Dims CopyOp::dims() { return {elementsOf(getX())}; }
Dims ZeroOp::dims() { return {elementsOf(getY())}; }
Dims AccumulateOp::dims() { return {elementsOf(getX())}; }
double AccumulateOp::flops() {
  return elementsOf(getX()) / static_cast<double>(getFlat() ? FlatShard(*getFlat()).devices : 1);
}
SmallVector<Varying> AccumulateOp::varying() {
  return getFlat() ? SmallVector<Varying>{FlatShard(*getFlat()).countsOf(getX())} : SmallVector<Varying>();
}
SmallVector<Varying> AccumulateOp::moved() {
  if (!getFlat())
    return {};
  FlatShard flat(*getFlat());
  return {flat.beginsOf(getX(), 0), flat.placesOf(getX(), getAcc(), 1)};
}
Dims RoundOp::dims() { return {elementsOf(getX())}; }
Type RoundOp::elementType() { return getElement(); }
Dims SumSquaresOp::dims() { return {getFlat() ? FlatShard(*getFlat()).elementsIn(getGrad()) : elementsOf(getGrad())}; }
double SumSquaresOp::flops() { return 2.0 * dims()[0]; }
SmallVector<Varying> SumSquaresOp::varying() {
  if (!getOnce())
    return getFlat() ? SmallVector<Varying>{FlatShard(*getFlat()).countsOf(getGrad())} : SmallVector<Varying>();
  Varying counts = {0, *getOnce(), 0, /*once=*/true, static_cast<int64_t>(getCopies().value_or(0))};
  if (getFlat())
    counts.ofShards = FlatShard(*getFlat()).countsOf(getGrad()).ofShards;
  return {counts};
}
SmallVector<Varying> SumSquaresOp::moved() {
  if (!getFlat())
    return {};
  FlatShard flat(*getFlat());
  return {flat.packed > 0 ? flat.placesOf(getGrad(), getGrad(), 0) : flat.beginsOf(getGrad(), 0)};
}
Flags SumSquaresOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

//===-- The ops that others stand for ---------------------------------------------------------------------------===//

SmallVector<Value> SplitOp::decompose(OpBuilder &builder) {
  int64_t end = 0;
  return llvm::map_to_vector(runWidths(), [&](int64_t width) -> Value {
    end += width;
    return builder.create<SliceColumnsOp>(getLoc(), getX(), end - width, width, getPeriods());
  });
}

SmallVector<Value> SplitRowsOp::decompose(OpBuilder &builder) {
  int64_t end = 0;
  return llvm::map_to_vector(getCounts(), [&](int64_t count) -> Value {
    end += count;
    return builder.create<RowsOp>(getLoc(), getX(), end - count, count);
  });
}

SmallVector<Value> ConcatOp::decompose(OpBuilder &builder) {
  int64_t width = widthOf(getZ()), start = widthOf(getX()) / static_cast<int64_t>(getPeriods());
  Value x = builder.create<PlaceColumnsOp>(getLoc(), getX(), Value(), /*start=*/0, width, getPeriods());
  return {builder.create<PlaceColumnsOp>(getLoc(), getY(), x, start, width, getPeriods(), getShared())};
}

SmallVector<Value> PadOp::decompose(OpBuilder &builder) {
  return {builder.create<PlaceColumnsOp>(getLoc(), getX(), Value(), /*start=*/0, widthOf(getZ()), getPeriods(),
                                         /*shared=*/false, /*zeros=*/true)};
}

//===-- Views ---------------------------------------------------------------------------------------------------===//

static int64_t storedBytes(Value value) { return elementsOf(value) * tensorOf(value).getElementTypeBitWidth() / 8; }

using PartsOfView = SmallVector<std::pair<Value, int64_t>>;

Value RowsOp::getWhole() { return getX(); }
PartsOfView RowsOp::getParts() {
  return {{getY(), storedBytes(getY()) / tensorOf(getY()).getDimSize(1) * static_cast<int64_t>(getStart())}};
}
Value SpreadOp::getWhole() { return getX(); }
PartsOfView SpreadOp::getParts() { return {{getY(), 0}}; }
Value PieceOp::getWhole() { return getX(); }
PartsOfView PieceOp::getParts() { return {{getY(), storedBytes(getY()) * static_cast<int64_t>(getIndex())}}; }
Value JoinRowsOp::getWhole() { return getY(); }
PartsOfView JoinRowsOp::getParts() {
  int64_t end = 0;
  return llvm::map_to_vector(getRuns(), [&](Value run) {
    end += storedBytes(run);
    return std::pair(run, end - storedBytes(run));
  });
}
