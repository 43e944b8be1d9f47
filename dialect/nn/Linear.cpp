// Shapes, kernels and costs of linears, alone or with an epilogue, and of tables whose rows tokens and positions pick.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

static RankedTensorType rowsOfTable(Value tokens, Value table) {
  SmallVector<int64_t> shape(tensorOf(tokens).getShape());
  shape.push_back(widthOf(table));
  return RankedTensorType::get(shape, tensorOf(table).getElementType());
}

/// A table that is cut has rows from `first` on of a vocabulary of `whole`; tokens of others give zeros.
template <typename Op> static Dims tableDims(Op op, Value x, int64_t rows) {
  Dims dims = {elementsOf(op.getTokens()), widthOf(x), rows};
  if (op.getFirst() || op.getFirstBy())
    dims.append({static_cast<int64_t>(op.getFirst().value_or(0)), static_cast<int64_t>(op.getWhole().value_or(rows))});
  return dims;
}

template <typename Op> static SmallVector<Varying> firstRow(Op op, int64_t rows) {
  return op.getFirstBy() ? SmallVector<Varying>{{3, *op.getFirstBy(), rows}} : SmallVector<Varying>();
}

INFER(EmbeddingOp) {
  Check check{"embedding", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.tokens("tokens", a.getTokens())) ||
      failed(check.numbers("the table", a.getTable())) || failed(check.rank("a table", a.getTable(), 2)) ||
      failed(check.vocabulary(tensorOf(a.getTable()).getDimSize(0))))
    return failure();
  types.push_back(rowsOfTable(a.getTokens(), a.getTable()));
  return success();
}

Dims EmbeddingOp::dims() { return tableDims(*this, getX(), tensorOf(getTable()).getDimSize(0)); }
SmallVector<Varying> EmbeddingOp::varying() { return firstRow(*this, tensorOf(getTable()).getDimSize(0)); }

INFER(EmbeddingDwOp) {
  Check check{"embedding_dw", loc};
  if (failed(check.operands(a, 2, 3)) ||
      failed(check.equal("the tokens", elementsOf(a.getTokens()), "dx's rows", rowsOf(a.getDx()))))
    return failure();
  types.push_back(inSums(a.getDx(), {static_cast<int64_t>(a.getVocab()), widthOf(a.getDx())}));
  return check.into(a.getAcc(), types[0]);
}

Dims EmbeddingDwOp::dims() { return tableDims(*this, getDx(), getVocab()); }
SmallVector<double> EmbeddingDwOp::params() {
  auto pad = static_cast<int64_t>(getPad());
  return pad < 0 ? SmallVector<double>() : SmallVector<double>{static_cast<double>(pad)};
}
SmallVector<Varying> EmbeddingDwOp::varying() { return firstRow(*this, getVocab()); }
double EmbeddingDwOp::flops() { return elementsOf(getDx()); }
Flags EmbeddingDwOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

INFER(PositionsOp) {
  Check check{"positions", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.tokens("tokens", a.getTokens())) ||
      failed(check.numbers("the table", a.getTable())) || failed(check.rank("a table", a.getTable(), 2)))
    return failure();
  int64_t last = static_cast<int64_t>(a.getOffset()) +
                 widthOf(a.getTokens()) * std::max<int64_t>(1, static_cast<int64_t>(a.getZigzag()));
  if (last > tensorOf(a.getTable()).getDimSize(0))
    return emitOptionalError(loc, "`positions` expects a table of at least ", last, " positions, got ",
                             tensorOf(a.getTable()).getDimSize(0));
  types.push_back(rowsOfTable(a.getTokens(), a.getTable()));
  return success();
}

INFER(PositionsDwOp) {
  Check check{"positions_dw", loc};
  if (failed(check.operands(a, 1, 2)) || failed(check.rank("dx", a.getDx(), 3)))
    return failure();
  types.push_back(inSums(a.getDx(), {static_cast<int64_t>(a.getPositions()), widthOf(a.getDx())}));
  return check.into(a.getAcc(), types[0]);
}

template <typename Op> static Dims positionDims(Op op, Value x, int64_t context) {
  auto type = tensorOf(x);
  Dims dims = {type.getDimSize(0), type.getDimSize(1), type.getDimSize(2), static_cast<int64_t>(op.getOffset()),
               context};
  TwoRuns(op, x).addTo(dims);
  return dims;
}

Dims PositionsOp::dims() { return positionDims(*this, getX(), tensorOf(getTable()).getDimSize(0)); }
Flags PositionsOp::flags() { return flagsOf({{"zigzag", getZigzag() > 0}}); }
SmallVector<Varying> PositionsOp::varying() { return TwoRuns(*this, getX()).varying(3, 5); }

Dims PositionsDwOp::dims() { return positionDims(*this, getDx(), getPositions()); }
SmallVector<Varying> PositionsDwOp::varying() { return TwoRuns(*this, getDx()).varying(3, 5); }
double PositionsDwOp::flops() { return elementsOf(getDx()); }
Flags PositionsDwOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}, {"zigzag", getZigzag() > 0}}); }

INFER(LinearOp) {
  Check check{"linear", loc};
  if (failed(check.operands(a, 2, 3)) || failed(check.numbers("x", a.getX())) || failed(check.numbers("w", a.getW())) ||
      failed(check.rank("w", a.getW(), 2)) || failed(check.sameElements("x", a.getX(), "w", a.getW())))
    return failure();
  auto w = tensorOf(a.getW());
  bool transposed = a.getTransposed();
  int64_t in = w.getDimSize(transposed ? 1 : 0), out = w.getDimSize(transposed ? 0 : 1);
  if (failed(check.equal("x's width", widthOf(a.getX()), transposed ? "w's columns" : "w's rows", in)))
    return failure();
  if (Value bias = a.getBias())
    if (failed(check.rank("a bias", bias, 1)) || failed(check.equal("w's width", out, "the bias's", widthOf(bias))) ||
        failed(check.sameElements("x", a.getX(), "bias", bias)))
      return failure();
  types.push_back(withWidth(a.getX(), out));
  return success();
}

LogicalResult LinearOp::canonicalize(LinearOp op, PatternRewriter &rewriter) {
  auto transpose = op.getW().getDefiningOp<TransposeOp>();
  if (!transpose)
    return failure();
  rewriter.modifyOpInPlace(op, [&] {
    op.getWMutable().set(transpose.getW());
    op.setTransposed(!op.getTransposed());
  });
  return success();
}

INFER(TransposeOp) {
  Check check{"transpose", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.rank("a weight", a.getW(), 2)))
    return failure();
  auto w = tensorOf(a.getW());
  types.push_back(RankedTensorType::get({w.getDimSize(1), w.getDimSize(0)}, w.getElementType()));
  return success();
}

INFER(LinearDxOp) {
  Check check{"linear_dx", loc};
  if (failed(check.operands(a, 2, 3)) || failed(check.rank("w", a.getW(), 2)))
    return failure();
  auto w = tensorOf(a.getW());
  int64_t in = w.getDimSize(a.getTransposed() ? 1 : 0), out = w.getDimSize(a.getTransposed() ? 0 : 1);
  if (failed(check.equal("dy's width", widthOf(a.getDy()), a.getTransposed() ? "w's rows" : "w's columns", out)) ||
      failed(check.sameElements("dy", a.getDy(), "w", a.getW())))
    return failure();
  types.push_back(withWidth(a.getDy(), in));
  return check.into(a.getAcc(), types[0]);
}

INFER(LinearDwOp) {
  Check check{"linear_dw", loc};
  if (failed(check.operands(a, 2, 3)) || failed(check.sameElements("x", a.getX(), "dy", a.getDy())) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "dy's", rowsOf(a.getDy()))))
    return failure();
  SmallVector<int64_t> shape = {widthOf(a.getX()), widthOf(a.getDy())};
  if (a.getTransposed())
    std::swap(shape[0], shape[1]);
  types.push_back(inSums(a.getX(), shape));
  return check.into(a.getAcc(), types[0]);
}

INFER(BiasDwOp) {
  Check check{"bias_dw", loc};
  if (failed(check.operands(a, 1, 2)))
    return failure();
  types.push_back(inSums(a.getDy(), {widthOf(a.getDy())}));
  return check.into(a.getAcc(), types[0]);
}

INFER(QuantizeOp) {
  Check check{"quantize", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  for (auto [name, number] : {std::pair("rows", a.getRows()), {"columns", a.getColumns()}})
    if (static_cast<int64_t>(number) < 0)
      return emitOptionalError(loc, "`quantize` expects `", name, "` of at least 0, got ",
                               static_cast<int64_t>(number));
  types.push_back(a.getX().getType());
  return success();
}

Dims QuantizeOp::dims() {
  return {rowsOf(getX()), widthOf(getX()), static_cast<int64_t>(getRows()), static_cast<int64_t>(getColumns())};
}
double QuantizeOp::flops() { return 4.0 * elementsOf(getX()); }

//===-- Stand-ins -----------------------------------------------------------------------------------------------===//

INFER(OpaqueOp) {
  Check check{"opaque", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) || failed(check.rank("w", a.getW(), 1)) ||
      failed(check.sameElements("x", a.getX(), "w", a.getW())))
    return failure();
  const auto keeps = static_cast<int64_t>(a.getKeeps());
  if (double flops = a.getFlops().convertToDouble(); !(flops >= 0 && flops < 1e30) || keeps < 1)
    return emitOptionalError(loc, "`opaque` expects `flops` of at least 0 and `keeps` of at least 1, got ", flops,
                             " and ", keeps);
  types.push_back(a.getX().getType());
  types.push_back(inSums(a.getX(), {keeps}));
  return success();
}

INFER(OpaqueDxOp) {
  Check check{"opaque_dx", loc};
  if (failed(check.operands(a, 3, 4)) || failed(check.numbers("dy", a.getDy())) ||
      failed(check.sameElements("dy", a.getDy(), "w", a.getW())))
    return failure();
  types.push_back(a.getDy().getType());
  return check.into(a.getAcc(), types[0]);
}

INFER(OpaqueDwOp) {
  Check check{"opaque_dw", loc};
  if (failed(check.operands(a, 2, 3)) || failed(check.numbers("dy", a.getDy())))
    return failure();
  types.push_back(inSums(a.getDy(), {static_cast<int64_t>(a.getCount())}));
  return check.into(a.getAcc(), types[0]);
}

Dims OpaqueOp::dims() { return {elementsOf(getX()), elementsOf(getW()), elementsOf(getKept())}; }
double OpaqueOp::flops() { return getFlops().convertToDouble(); }
Dims OpaqueDxOp::dims() { return {elementsOf(getDx()), elementsOf(getW()), elementsOf(getKept())}; }
Flags OpaqueDxOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }
double OpaqueDxOp::flops() { return getFlops().convertToDouble(); }
Dims OpaqueDwOp::dims() { return {elementsOf(getDy()), elementsOf(getDw()), elementsOf(getKept())}; }
Flags OpaqueDwOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }
double OpaqueDwOp::flops() { return getFlops().convertToDouble(); }

//===-- Products ------------------------------------------------------------------------------------------------===//

/// 2 for each multiplication and addition of a product of [T, K] and [K, N].
static double gemm(ArrayRef<int64_t> dims) { return 2.0 * dims[0] * dims[1] * dims[2]; }

Dims LinearOp::dims() { return {rowsOf(getX()), widthOf(getX()), widthOf(getY())}; }
double LinearOp::flops() { return gemm(dims()) + (getBias() ? elementsOf(getY()) : 0); }
Flags LinearOp::flags() { return flagsOf({{"transposed", getTransposed()}, {"bias", getBias() != nullptr}}); }
SmallVector<Value> LinearOp::pointers() { return {getX(), getW(), getBias(), getY()}; }

Dims LinearDxOp::dims() { return {rowsOf(getDy()), widthOf(getDx()), widthOf(getDy())}; }
double LinearDxOp::flops() { return gemm(dims()); }
Flags LinearDxOp::flags() { return flagsOf({{"transposed", getTransposed()}, {"accumulate", getAcc() != nullptr}}); }

Dims LinearDwOp::dims() { return {rowsOf(getX()), widthOf(getX()), widthOf(getDy())}; }
double LinearDwOp::flops() { return gemm(dims()); }
Flags LinearDwOp::flags() { return flagsOf({{"transposed", getTransposed()}, {"accumulate", getAcc() != nullptr}}); }

Dims BiasDwOp::dims() { return {rowsOf(getDy()), widthOf(getDy())}; }
double BiasDwOp::flops() { return elementsOf(getDy()); }
Flags BiasDwOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

//===-- With the work of a second kernel ------------------------------------------------------------------------===//

INFER(LinearGeluOp) {
  Check check{"linear_gelu", loc};
  if (failed(check.operands(a, 2, 3)) ||
      failed(LinearOp::inferReturnTypes(context, loc, a.getOperands(), a.getAttributes(), nullptr, {}, types)))
    return failure();
  types.push_back(types.front());
  return success();
}

Dims LinearGeluOp::dims() { return {rowsOf(getX()), widthOf(getX()), widthOf(getU())}; }
double LinearGeluOp::flops() {
  return 2.0 * elementsOf(getU()) * widthOf(getX()) + (10 + (getBias() != nullptr)) * elementsOf(getU());
}
Flags LinearGeluOp::flags() { return flagsOf({{"transposed", getTransposed()}, {"bias", getBias() != nullptr}}); }
SmallVector<Value> LinearGeluOp::pointers() { return {getX(), getW(), getBias(), getU(), getY()}; }

INFER(LinearAddOp) {
  Check check{"linear_add", loc};
  if (failed(check.operands(a, 3, 4)))
    return failure();
  ValueRange product = a.getOperands().drop_back();
  if (failed(LinearOp::inferReturnTypes(context, loc, product, a.getAttributes(), nullptr, {}, types)))
    return failure();
  return check.type("r", a.getR(), types.front());
}

Dims LinearAddOp::dims() { return {rowsOf(getX()), widthOf(getX()), widthOf(getY())}; }
double LinearAddOp::flops() {
  return 2.0 * elementsOf(getY()) * widthOf(getX()) + (1 + (getBias() != nullptr)) * elementsOf(getY());
}
Flags LinearAddOp::flags() { return flagsOf({{"transposed", getTransposed()}, {"bias", getBias() != nullptr}}); }
SmallVector<Value> LinearAddOp::pointers() { return {getX(), getW(), getBias(), getR(), getY()}; }

INFER(LinearDxGeluOp) {
  Check check{"linear_dx_gelu", loc};
  ValueRange product = a.getOperands().take_front(2);
  if (failed(check.operands(a, 3, 3)) ||
      failed(LinearDxOp::inferReturnTypes(context, loc, product, a.getAttributes(), nullptr, {}, types)))
    return failure();
  return check.type("u", a.getU(), types.front());
}

Dims LinearDxGeluOp::dims() { return {rowsOf(getDy()), widthOf(getDu()), widthOf(getDy())}; }
double LinearDxGeluOp::flops() { return 2.0 * elementsOf(getDu()) * widthOf(getDy()) + 15.0 * elementsOf(getDu()); }
Flags LinearDxGeluOp::flags() { return flagsOf({{"transposed", getTransposed()}}); }

INFER(LinearDwBiasOp) {
  Check check{"linear_dw_bias", loc};
  if (failed(check.operands(a, 2, 4)))
    return failure();
  ValueRange product = a.getOperands().take_front(2);
  if (failed(LinearDwOp::inferReturnTypes(context, loc, product, a.getAttributes(), nullptr, {}, types)))
    return failure();
  types.push_back(inSums(a.getDy(), {widthOf(a.getDy())}));
  if (a.getAcc().size() == 1)
    return emitOptionalError(loc, "`linear_dw_bias` adds into both sums or none, got one");
  for (auto [acc, type] : llvm::zip(a.getAcc(), types))
    if (failed(check.into(acc, type)))
      return failure();
  return success();
}

Dims LinearDwBiasOp::dims() { return {rowsOf(getX()), widthOf(getX()), widthOf(getDy())}; }
double LinearDwBiasOp::flops() { return 2.0 * elementsOf(getX()) * widthOf(getDy()) + elementsOf(getDy()); }
Flags LinearDwBiasOp::flags() { return flagsOf({{"transposed", getTransposed()}, {"accumulate", !getAcc().empty()}}); }
SmallVector<Tie> LinearDwBiasOp::getRequiredTies() {
  return getAcc().empty() ? SmallVector<Tie>{} : SmallVector<Tie>{{0, 2}, {1, 3}};
}

Value LinearOp::declaredWeight() {
  auto transpose = getW().getDefiningOp<TransposeOp>();
  return transpose ? transpose.getW() : getW();
}

SmallVector<Value> LinearGeluOp::decompose(OpBuilder &builder) {
  Value u = productOf(builder, getLoc(), getX(), getW(), getBias(), getTransposed());
  return {u, builder.create<GeluOp>(getLoc(), u)};
}

SmallVector<Value> LinearAddOp::decompose(OpBuilder &builder) {
  Value product = productOf(builder, getLoc(), getX(), getW(), getBias(), getTransposed());
  return {builder.create<AddOp>(getLoc(), getR(), product)};
}

SmallVector<Value> LinearDxGeluOp::decompose(OpBuilder &builder) {
  Value dx = builder.create<LinearDxOp>(getLoc(), getDy(), getW(), Value(), getTransposed());
  return {builder.create<GeluBwdOp>(getLoc(), dx, getU())};
}

SmallVector<Value> LinearDwBiasOp::decompose(OpBuilder &builder) {
  bool adds = !getAcc().empty();
  Value dw = builder.create<LinearDwOp>(getLoc(), getX(), getDy(), adds ? getAcc()[0] : Value(), getTransposed());
  return {dw, builder.create<BiasDwOp>(getLoc(), getDy(), adds ? getAcc()[1] : Value())};
}

StringRef OpaqueOp::whyNotSliced() { return "`opaque` says what whole sequences cost; slices do not see it"; }
