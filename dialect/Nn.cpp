// Shapes, kernels and costs of the `nn` ops.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/Nn.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace pp::nn;

#include "dialect/NnDialect.cpp.inc"
#include "dialect/NnInterfaces.cpp.inc"
#define GET_OP_CLASSES
#include "dialect/NnOps.cpp.inc"

void NnDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "dialect/NnOps.cpp.inc"
      >();
}

FailureOr<Operation *> pp::nn::createOp(OpBuilder &builder, Location loc, StringRef name, ValueRange operands,
                                        ArrayRef<NamedAttribute> attributes) {
  MLIRContext *context = builder.getContext();
  auto registered = RegisteredOperationName::lookup(("nn." + name).str(), context);
  if (!registered)
    return emitError(loc) << "`" << name << "` is no op of `nn`", failure();
  auto *infer = registered->getInterface<InferTypeOpInterface>();
  if (!infer)
    return emitError(loc) << "`" << name << "` is no op of a model", failure();
  SmallVector<Type> types;
  auto dictionary = builder.getDictionaryAttr(attributes);
  if (failed(infer->inferReturnTypes(context, loc, operands, dictionary, nullptr, {}, types)))
    return failure();
  OperationState state(loc, *registered);
  state.addOperands(operands);
  state.addTypes(types);
  state.addAttributes(attributes);
  return builder.create(state);
}

//===-- Shapes --------------------------------------------------------------------------------------------------===//

Type pp::nn::sumType(Type element) { return element.isF64() ? element : Float32Type::get(element.getContext()); }

static RankedTensorType tensorOf(Value value) { return cast<RankedTensorType>(value.getType()); }
static int64_t widthOf(Value value) { return tensorOf(value).getShape().back(); }
static int64_t elementsOf(Value value) { return tensorOf(value).getNumElements(); }
static int64_t rowsOf(Value value) { return elementsOf(value) / widthOf(value); }

static RankedTensorType withWidth(Value like, int64_t width) {
  SmallVector<int64_t> shape(tensorOf(like).getShape());
  shape.back() = width;
  return RankedTensorType::get(shape, tensorOf(like).getElementType());
}

/// One statistic for each row.
static RankedTensorType statistic(Value like) {
  auto type = tensorOf(like);
  return RankedTensorType::get(type.getShape().drop_back(), sumType(type.getElementType()));
}

static RankedTensorType inSums(Value like, ArrayRef<int64_t> shape) {
  return RankedTensorType::get(shape, sumType(tensorOf(like).getElementType()));
}

namespace {
/// What is wrong with the operands of one op, said at its location; the first complaint ends the check.
struct Check {
  StringRef op;
  std::optional<Location> loc;

  /// The attributes that the op needs are there and `least` to `most` operands, all ranked static tensors.
  template <typename Adaptor> LogicalResult operands(Adaptor adaptor, size_t least, size_t most) {
    size_t count = adaptor.getOperands().size();
    if (count < least || count > most) {
      if (least == most)
        return emitOptionalError(loc, "`", op, "` expects ", least, least == 1 ? " operand" : " operands", ", got ",
                                 count);
      return emitOptionalError(loc, "`", op, "` expects ", least, " to ", most, " operands, got ", count);
    }
    for (Value value : adaptor.getOperands())
      if (auto type = dyn_cast<RankedTensorType>(value.getType()); !type || !type.hasStaticShape())
        return emitOptionalError(loc, "`", op, "` expects tensors of fixed shape, got ", value.getType());
    return adaptor.verify(loc.value_or(UnknownLoc::get(adaptor.getOperands().getTypes()[0].getContext())));
  }
  LogicalResult rank(StringRef name, Value value, int64_t rank) {
    int64_t got = tensorOf(value).getRank();
    if (got == rank)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " with ", rank, rank == 1 ? " dimension" : " dimensions",
                             ", got ", got);
  }
  LogicalResult numbers(StringRef name, Value value) {
    if (isa<FloatType>(tensorOf(value).getElementType()) && tensorOf(value).getRank() > 0)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " to hold numbers, got ", value.getType());
  }
  LogicalResult tokens(StringRef name, Value value) {
    if (tensorOf(value).getElementType().isInteger(32) && tensorOf(value).getRank() == 2)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " to be i32 [batch, length], got ", value.getType());
  }
  LogicalResult equal(StringRef what, int64_t expected, StringRef name, int64_t got) {
    if (expected == got)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", what, " ", expected, " to be ", name, ", got ", got);
  }
  LogicalResult same(StringRef name, Value value, StringRef otherName, Value other) {
    if (value.getType() == other.getType())
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " and ", otherName, " of one shape and type, got ",
                             value.getType(), " and ", other.getType());
  }
  LogicalResult sameElements(StringRef name, Value value, StringRef otherName, Value other) {
    Type a = tensorOf(value).getElementType(), b = tensorOf(other).getElementType();
    if (a == b)
      return success();
    return emitOptionalError(loc, "`", op, "` expects ", name, " and ", otherName, " of one element type, got ", a,
                             " and ", b);
  }
  /// The sum so far has the result's type.
  LogicalResult into(Value acc, Type result) {
    if (!acc || acc.getType() == result)
      return success();
    return emitOptionalError(loc, "`", op, "` adds ", result, " into a tensor of another type ", acc.getType());
  }
  /// `width` is `heads` heads of equal, even width.
  LogicalResult heads(StringRef name, int64_t width, int64_t heads, bool even) {
    if (heads <= 0 || width % heads != 0)
      return emitOptionalError(loc, "`", op, "` expects ", name, "'s width to be a multiple of ", heads, " heads, got ",
                               width);
    if (even && width / heads % 2 != 0)
      return emitOptionalError(loc, "`", op, "` expects heads of even width, got ", width / heads);
    return success();
  }
};
} // namespace

#define INFER(Op)                                                                                                      \
  LogicalResult Op::inferReturnTypes(MLIRContext *context, std::optional<Location> loc, Op::Adaptor a,                 \
                                     SmallVectorImpl<Type> &types)

static RankedTensorType rowsOfTable(Value tokens, Value table) {
  SmallVector<int64_t> shape(tensorOf(tokens).getShape());
  shape.push_back(widthOf(table));
  return RankedTensorType::get(shape, tensorOf(table).getElementType());
}

INFER(EmbeddingOp) {
  Check check{"embedding", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.tokens("tokens", a.getTokens())) ||
      failed(check.numbers("the table", a.getTable())) || failed(check.rank("a table", a.getTable(), 2)))
    return failure();
  types.push_back(rowsOfTable(a.getTokens(), a.getTable()));
  return success();
}

INFER(PositionsOp) {
  Check check{"positions", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.tokens("tokens", a.getTokens())) ||
      failed(check.numbers("the table", a.getTable())) || failed(check.rank("a table", a.getTable(), 2)))
    return failure();
  int64_t last = static_cast<int64_t>(a.getOffset()) + widthOf(a.getTokens());
  if (last > tensorOf(a.getTable()).getDimSize(0))
    return emitOptionalError(loc, "`positions` expects a table of at least ", last, " positions, got ",
                             tensorOf(a.getTable()).getDimSize(0));
  types.push_back(rowsOfTable(a.getTokens(), a.getTable()));
  return success();
}

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

INFER(TransposeOp) {
  Check check{"transpose", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.rank("a weight", a.getW(), 2)))
    return failure();
  auto w = tensorOf(a.getW());
  types.push_back(RankedTensorType::get({w.getDimSize(1), w.getDimSize(0)}, w.getElementType()));
  return success();
}

/// A gain or bias of a norm of x.
static LogicalResult checkPerColumn(Check check, StringRef name, Value vector, Value x) {
  return success(succeeded(check.rank(name, vector, 1)) &&
                 succeeded(check.equal("x's width", widthOf(x), name.str() + "'s width", widthOf(vector))) &&
                 succeeded(check.sameElements("x", x, name, vector)));
}

INFER(LayernormOp) {
  Check check{"layernorm", loc};
  if (failed(check.operands(a, 3, 3)) || failed(check.numbers("x", a.getX())) ||
      failed(checkPerColumn(check, "the gain", a.getGain(), a.getX())) ||
      failed(checkPerColumn(check, "the bias", a.getBias(), a.getX())))
    return failure();
  types.assign({a.getX().getType(), statistic(a.getX()), statistic(a.getX())});
  return success();
}

INFER(RmsnormOp) {
  Check check{"rmsnorm", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) ||
      failed(checkPerColumn(check, "the gain", a.getGain(), a.getX())))
    return failure();
  types.assign({a.getX().getType(), statistic(a.getX())});
  return success();
}

INFER(RopeOp) {
  Check check{"rope", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)) ||
      failed(check.heads("x", widthOf(a.getX()), a.getHeads(), /*even=*/true)))
    return failure();
  if (a.getStyle() != "half" && a.getStyle() != "pair")
    return emitOptionalError(loc, "`rope` expects the style \"half\" or \"pair\", got \"", a.getStyle(), "\"");
  types.push_back(a.getX().getType());
  return success();
}

/// Shapes of q, k, v.
template <typename Adaptor> static LogicalResult checkAttention(Check check, Adaptor a) {
  Value q = a.getQ(), k = a.getK(), v = a.getV();
  if (failed(check.numbers("q", q)) || failed(check.rank("q", q, 3)) || failed(check.rank("k", k, 3)) ||
      failed(check.same("k", k, "v", v)) || failed(check.sameElements("q", q, "k", k)))
    return failure();
  int64_t heads = a.getHeads(), kvHeads = a.getKvHeads() ? a.getKvHeads() : heads;
  if (failed(check.heads("q", widthOf(q), heads, false)) || failed(check.heads("k", widthOf(k), kvHeads, false)))
    return failure();
  if (heads % kvHeads != 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects heads to be a multiple of kv_heads, got ", heads,
                             " and ", kvHeads);
  if (failed(check.equal("q's head width", widthOf(q) / heads, "k's", widthOf(k) / kvHeads)) ||
      failed(check.equal("q's batch", tensorOf(q).getDimSize(0), "k's", tensorOf(k).getDimSize(0))) ||
      failed(check.equal("q's length", tensorOf(q).getDimSize(1), "k's", tensorOf(k).getDimSize(1))))
    return failure();
  return success();
}

INFER(AttentionOp) {
  Check check{"attention", loc};
  if (failed(check.operands(a, 3, 3)) || failed(checkAttention(check, a)))
    return failure();
  auto q = tensorOf(a.getQ());
  types.assign({q, inSums(a.getQ(), {q.getDimSize(0), static_cast<int64_t>(a.getHeads()), q.getDimSize(1)})});
  return success();
}

INFER(GeluOp) {
  Check check{"gelu", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(SwigluOp) {
  Check check{"swiglu", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("p", a.getP())) ||
      failed(check.same("p", a.getP(), "q", a.getQ())))
    return failure();
  types.push_back(a.getP().getType());
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

INFER(SplitOp) {
  Check check{"split", loc};
  if (failed(check.operands(a, 1, 1)) || failed(check.numbers("x", a.getX())))
    return failure();
  int64_t parts = a.getParts(), width = widthOf(a.getX());
  if (parts <= 0 || width % parts != 0)
    return emitOptionalError(loc, "`split` expects x's width to be a multiple of ", parts, " parts, got ", width);
  types.assign(parts, withWidth(a.getX(), width / parts));
  return success();
}

/// Logits [.., V] and one target for each row.
static LogicalResult checkLogits(Check check, Value z, Value targets) {
  if (failed(check.numbers("the logits", z)) || failed(check.tokens("the targets", targets)))
    return failure();
  return check.equal("the logits' rows", rowsOf(z), "the targets", elementsOf(targets));
}

INFER(CrossEntropyOp) {
  Check check{"cross_entropy", loc};
  if (failed(check.operands(a, 2, 2)) || failed(checkLogits(check, a.getZ(), a.getTargets())))
    return failure();
  types.push_back(inSums(a.getZ(), {1}));
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

INFER(EmbeddingDwOp) {
  Check check{"embedding_dw", loc};
  if (failed(check.operands(a, 2, 3)) ||
      failed(check.equal("the tokens", elementsOf(a.getTokens()), "dx's rows", rowsOf(a.getDx()))))
    return failure();
  types.push_back(inSums(a.getDx(), {static_cast<int64_t>(a.getVocab()), widthOf(a.getDx())}));
  return check.into(a.getAcc(), types[0]);
}

INFER(PositionsDwOp) {
  Check check{"positions_dw", loc};
  if (failed(check.operands(a, 1, 2)) || failed(check.rank("dx", a.getDx(), 3)))
    return failure();
  types.push_back(inSums(a.getDx(), {static_cast<int64_t>(a.getPositions()), widthOf(a.getDx())}));
  return check.into(a.getAcc(), types[0]);
}

INFER(LayernormRebuildOp) {
  Check check{"layernorm_rebuild", loc};
  if (failed(check.operands(a, 5, 5)) || failed(checkPerColumn(check, "the gain", a.getGain(), a.getX())) ||
      failed(checkPerColumn(check, "the bias", a.getBias(), a.getX())) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "mean's elements", elementsOf(a.getMean()))) ||
      failed(check.same("mean", a.getMean(), "rstd", a.getRstd())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(LayernormBwdOp) {
  Check check{"layernorm_bwd", loc};
  if (failed(check.operands(a, 5, 6)) || failed(check.same("dy", a.getDy(), "x", a.getX())) ||
      failed(checkPerColumn(check, "the gain", a.getGain(), a.getX())) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "mean's elements", elementsOf(a.getMean()))) ||
      failed(check.same("mean", a.getMean(), "rstd", a.getRstd())))
    return failure();
  Type hand = inSums(a.getX(), {widthOf(a.getX())});
  types.assign({a.getX().getType(), hand, hand});
  return check.into(a.getAcc(), types[0]);
}

INFER(RmsnormRebuildOp) {
  Check check{"rmsnorm_rebuild", loc};
  if (failed(check.operands(a, 3, 3)) || failed(checkPerColumn(check, "the gain", a.getGain(), a.getX())) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "rstd's elements", elementsOf(a.getRstd()))))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(RmsnormBwdOp) {
  Check check{"rmsnorm_bwd", loc};
  if (failed(check.operands(a, 4, 5)) || failed(check.same("dy", a.getDy(), "x", a.getX())) ||
      failed(checkPerColumn(check, "the gain", a.getGain(), a.getX())) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "rstd's elements", elementsOf(a.getRstd()))))
    return failure();
  types.assign({a.getX().getType(), inSums(a.getX(), {widthOf(a.getX())})});
  return check.into(a.getAcc(), types[0]);
}

INFER(AttentionBwdOp) {
  Check check{"attention_bwd", loc};
  if (failed(check.operands(a, 6, 6)) || failed(checkAttention(check, a)) ||
      failed(check.same("dout", a.getDout(), "q", a.getQ())) || failed(check.same("o", a.getO(), "q", a.getQ())))
    return failure();
  types.assign({a.getQ().getType(), a.getK().getType(), a.getV().getType()});
  return success();
}

INFER(GeluBwdOp) {
  Check check{"gelu_bwd", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.same("dy", a.getDy(), "x", a.getX())))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

INFER(SwigluBwdOp) {
  Check check{"swiglu_bwd", loc};
  if (failed(check.operands(a, 3, 3)) || failed(check.same("dy", a.getDy(), "p", a.getP())) ||
      failed(check.same("p", a.getP(), "q", a.getQ())))
    return failure();
  types.assign({a.getP().getType(), a.getQ().getType()});
  return success();
}

INFER(CrossEntropyBwdOp) {
  Check check{"cross_entropy_bwd", loc};
  if (failed(check.operands(a, 2, 2)) || failed(checkLogits(check, a.getZ(), a.getTargets())))
    return failure();
  types.assign({a.getZ().getType(), inSums(a.getZ(), {1})});
  return success();
}

/// Columns [start, start + width) are columns of a tensor `total` wide.
static LogicalResult checkColumns(Check check, int64_t start, int64_t width, int64_t total) {
  if (start >= 0 && width > 0 && start + width <= total)
    return success();
  return emitOptionalError(check.loc, "`", check.op, "` expects columns of a tensor ", total, " wide, got ", start,
                           " to ", start + width);
}

INFER(SliceColumnsOp) {
  Check check{"slice_columns", loc};
  if (failed(check.operands(a, 1, 1)) || failed(checkColumns(check, a.getStart(), a.getWidth(), widthOf(a.getX()))))
    return failure();
  types.push_back(withWidth(a.getX(), a.getWidth()));
  return success();
}

INFER(PlaceColumnsOp) {
  Check check{"place_columns", loc};
  if (failed(check.operands(a, 1, 2)) || failed(checkColumns(check, a.getStart(), widthOf(a.getX()), a.getTotal())))
    return failure();
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
  if (failed(check.operands(a, 2, 2)) || failed(check.same("x", a.getX(), "acc", a.getAcc())))
    return failure();
  types.push_back(a.getAcc().getType());
  return success();
}

INFER(SumSquaresOp) {
  Check check{"sum_squares", loc};
  if (failed(check.operands(a, 1, 2)))
    return failure();
  types.push_back(RankedTensorType::get({1}, Float64Type::get(context)));
  return check.into(a.getAcc(), types[0]);
}

INFER(AdamwOp) {
  Check check{"adamw", loc};
  if (failed(check.operands(a, 4, 6)) || failed(check.same("m", a.getM(), "grad", a.getGrad())) ||
      failed(check.same("v", a.getV(), "grad", a.getGrad())))
    return failure();
  Type element = tensorOf(a.getW()).getElementType();
  if (a.getGrad().getType() != inSums(a.getW(), tensorOf(a.getW()).getShape()))
    return emitOptionalError(loc, "`adamw` expects a gradient of w's shape in the type of sums, got ",
                             a.getGrad().getType(), " for ", a.getW().getType());
  if (element.isBF16() != static_cast<bool>(a.getMaster()))
    return emitOptionalError(loc, "`adamw` expects a master copy for a bf16 weight, and only for one");
  types.assign({a.getW().getType(), a.getM().getType(), a.getV().getType()});
  if (a.getMaster())
    types.push_back(a.getMaster().getType());
  return success();
}

#undef INFER

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

//===-- Kernels -------------------------------------------------------------------------------------------------===//

Type pp::nn::firstElementType(Operation *op) {
  for (Value value : op->getOperands())
    if (Type element = tensorOf(value).getElementType(); isa<FloatType>(element))
      return element;
  return tensorOf(op->getResult(0)).getElementType();
}

SmallVector<Value> pp::nn::operandsThenResults(Operation *op) {
  SmallVector<Value> pointers;
  SmallVector<Tie> ties;
  if (auto inPlace = dyn_cast<InPlace>(op))
    ties = inPlace.getRequiredTies();
  for (OpOperand &operand : op->getOpOperands())
    if (llvm::none_of(ties, [&](Tie tie) { return tie.operand == operand.getOperandNumber(); }))
      pointers.push_back(operand.get());
  llvm::append_range(pointers, op->getResults());
  return pointers;
}

using Dims = SmallVector<int64_t>;
using Flags = SmallVector<StringRef>;

/// The names whose condition holds.
static Flags flagsOf(std::initializer_list<std::pair<StringRef, bool>> all) {
  Flags flags;
  for (auto [name, set] : all)
    if (set)
      flags.push_back(name);
  return flags;
}

/// 2 for each multiplication and addition of a product of [T, K] and [K, N].
static double gemm(ArrayRef<int64_t> dims) { return 2.0 * dims[0] * dims[1] * dims[2]; }

Dims EmbeddingOp::dims() { return {elementsOf(getTokens()), widthOf(getX()), tensorOf(getTable()).getDimSize(0)}; }
double EmbeddingOp::flops() { return 0; }

Dims EmbeddingDwOp::dims() { return {elementsOf(getTokens()), widthOf(getDx()), static_cast<int64_t>(getVocab())}; }
double EmbeddingDwOp::flops() { return elementsOf(getDx()); }
Flags EmbeddingDwOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

static Dims positionDims(Value x, int64_t offset, int64_t context) {
  auto type = tensorOf(x);
  return {type.getDimSize(0), type.getDimSize(1), type.getDimSize(2), offset, context};
}

Dims PositionsOp::dims() { return positionDims(getX(), getOffset(), tensorOf(getTable()).getDimSize(0)); }
double PositionsOp::flops() { return 0; }
Dims PositionsDwOp::dims() { return positionDims(getDx(), getOffset(), getPositions()); }
double PositionsDwOp::flops() { return elementsOf(getDx()); }
Flags PositionsDwOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

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

Dims LayernormOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
SmallVector<double> LayernormOp::params() { return {getEpsilon().convertToDouble()}; }
double LayernormOp::flops() { return 8.0 * elementsOf(getX()); }
Dims LayernormRebuildOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
double LayernormRebuildOp::flops() { return 4.0 * elementsOf(getX()); }
Dims LayernormBwdOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
double LayernormBwdOp::flops() { return 12.0 * elementsOf(getX()); }
Flags LayernormBwdOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

Dims RmsnormOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
SmallVector<double> RmsnormOp::params() { return {getEpsilon().convertToDouble()}; }
double RmsnormOp::flops() { return 8.0 * elementsOf(getX()); }
Dims RmsnormRebuildOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
double RmsnormRebuildOp::flops() { return 2.0 * elementsOf(getX()); }
Dims RmsnormBwdOp::dims() { return {rowsOf(getX()), widthOf(getX())}; }
double RmsnormBwdOp::flops() { return 12.0 * elementsOf(getX()); }
Flags RmsnormBwdOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

Dims RopeOp::dims() {
  auto type = tensorOf(getX());
  int64_t heads = getHeads();
  return {type.getDimSize(0), type.getDimSize(1), heads, type.getDimSize(2) / heads, static_cast<int64_t>(getOffset())};
}
SmallVector<double> RopeOp::params() { return {getTheta().convertToDouble()}; }
double RopeOp::flops() { return 6.0 * elementsOf(getX()); }
Flags RopeOp::flags() { return flagsOf({{"pair", getStyle() == "pair"}, {"inverse", getInverse()}}); }

template <typename Op> static Dims attentionDims(Op op) {
  auto q = tensorOf(op.getQ());
  int64_t heads = op.getHeads(), kvHeads = op.getKvHeads() ? op.getKvHeads() : heads;
  return {q.getDimSize(0), q.getDimSize(1), heads, kvHeads, q.getDimSize(2) / heads};
}

/// Pairs of a query and a key that it sees, times the width: each costs 4 forward (two products).
template <typename Op> static double attentionPairs(Op op) {
  Dims dims = attentionDims(op);
  double length = dims[1];
  return dims[0] * (op.getCausal() ? length * (length + 1) / 2 : length * length) * widthOf(op.getQ());
}

Dims AttentionOp::dims() { return attentionDims(*this); }
double AttentionOp::flops() { return 4 * attentionPairs(*this); }
Flags AttentionOp::flags() { return flagsOf({{"causal", getCausal()}}); }
Dims AttentionBwdOp::dims() { return attentionDims(*this); }
double AttentionBwdOp::flops() { return 10 * attentionPairs(*this); }
Flags AttentionBwdOp::flags() { return flagsOf({{"causal", getCausal()}}); }

Dims GeluOp::dims() { return {elementsOf(getX())}; }
double GeluOp::flops() { return 10.0 * elementsOf(getX()); }
Flags GeluOp::flags() { return flagsOf({{"exact", getExact()}}); }
Dims GeluBwdOp::dims() { return {elementsOf(getX())}; }
double GeluBwdOp::flops() { return 15.0 * elementsOf(getX()); }
Flags GeluBwdOp::flags() { return flagsOf({{"exact", getExact()}}); }
Dims SwigluOp::dims() { return {elementsOf(getP())}; }
double SwigluOp::flops() { return 10.0 * elementsOf(getP()); }
Dims SwigluBwdOp::dims() { return {elementsOf(getP())}; }
double SwigluBwdOp::flops() { return 15.0 * elementsOf(getP()); }
Dims AddOp::dims() { return {elementsOf(getX())}; }
double AddOp::flops() { return elementsOf(getX()); }

StringRef CrossEntropyBwdOp::kernelName() { return "cross_entropy"; }
Dims CrossEntropyBwdOp::dims() { return {rowsOf(getZ()), widthOf(getZ())}; }
SmallVector<double> CrossEntropyBwdOp::params() { return {getScale().convertToDouble()}; }
double CrossEntropyBwdOp::flops() { return 8.0 * elementsOf(getZ()); }

Dims SliceColumnsOp::dims() {
  return {rowsOf(getX()), widthOf(getX()), static_cast<int64_t>(getStart()), static_cast<int64_t>(getWidth())};
}
double SliceColumnsOp::flops() { return 0; }
Dims PlaceColumnsOp::dims() {
  return {rowsOf(getX()), static_cast<int64_t>(getTotal()), static_cast<int64_t>(getStart()), widthOf(getX())};
}
double PlaceColumnsOp::flops() { return 0; }

Dims CopyOp::dims() { return {elementsOf(getX())}; }
double CopyOp::flops() { return 0; }
Dims ZeroOp::dims() { return {elementsOf(getY())}; }
double ZeroOp::flops() { return 0; }
Dims AccumulateOp::dims() { return {elementsOf(getX())}; }
double AccumulateOp::flops() { return elementsOf(getX()); }
Dims SumSquaresOp::dims() { return {elementsOf(getGrad())}; }
double SumSquaresOp::flops() { return 2.0 * elementsOf(getGrad()); }
Flags SumSquaresOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

Dims AdamwOp::dims() { return {elementsOf(getW())}; }
double AdamwOp::flops() { return 15.0 * elementsOf(getW()); }
Flags AdamwOp::flags() { return flagsOf({{"decay", getDecay()}}); }
Type AdamwOp::elementType() { return tensorOf(getW()).getElementType(); }
SmallVector<Value> AdamwOp::pointers() {
  return {getGrad(), getNorm(), getNewW(), getNewM(), getNewV(), getNewMaster()};
}
SmallVector<Tie> AdamwOp::getRequiredTies() {
  unsigned first = getNorm() ? 2 : 1;
  SmallVector<Tie> ties;
  for (unsigned i = 0; i < getNumResults(); ++i)
    ties.push_back({i, first + i});
  return ties;
}
