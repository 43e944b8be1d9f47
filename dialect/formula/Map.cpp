// The op `nn.map`: its text, its checks, the factors that follow from its axes, and what its kernel is told.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/formula/Formula.h"
#include "dialect/nn/Shapes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace pp::nn;

namespace pp::nn {
std::optional<Element> elementOf(Operation *op); // Formula.cpp
}

//===-- Text ----------------------------------------------------------------------------------------------------===//

void MapOp::print(OpAsmPrinter &printer) {
  printer << " reads(";
  llvm::interleaveComma(llvm::zip(getTensors(), getReads()), printer,
                        [&](auto each) { printer << std::get<0>(each) << ": " << std::get<1>(each); });
  printer << ") makes(";
  llvm::interleaveComma(getMakes(), printer, [&](Attribute axes) { printer << axes; });
  printer << ") heads " << getHeads();
  printer.printOptionalAttrDictWithKeyword((*this)->getAttrs(), {"reads", "makes", "heads"});
  printer << ' ';
  printer.printRegion(getBody());
  printer << " : ";
  printer.printFunctionalType(getOperation());
}

ParseResult MapOp::parse(OpAsmParser &parser, OperationState &result) {
  SmallVector<OpAsmParser::UnresolvedOperand> tensors;
  SmallVector<Attribute> reads, makes;
  auto readText = [&](SmallVector<Attribute> &texts) {
    StringAttr text;
    if (parser.parseAttribute(text))
      return failure();
    texts.push_back(text);
    return success();
  };
  auto readTensor = [&]() -> ParseResult {
    return failure(parser.parseOperand(tensors.emplace_back()) || parser.parseColon() || failed(readText(reads)));
  };
  auto readMade = [&]() -> ParseResult { return readText(makes); };
  using Delimiter = OpAsmParser::Delimiter;
  int64_t heads = 1;
  FunctionType type;
  SMLoc at = parser.getCurrentLocation();
  if (parser.parseKeyword("reads") || parser.parseCommaSeparatedList(Delimiter::Paren, readTensor) ||
      parser.parseKeyword("makes") || parser.parseCommaSeparatedList(Delimiter::Paren, readMade) ||
      parser.parseKeyword("heads") || parser.parseInteger(heads) ||
      parser.parseOptionalAttrDictWithKeyword(result.attributes) || parser.parseRegion(*result.addRegion()) ||
      parser.parseColonType(type) || parser.resolveOperands(tensors, type.getInputs(), at, result.operands))
    return failure();
  Builder &builder = parser.getBuilder();
  result.addAttribute("reads", builder.getArrayAttr(reads));
  result.addAttribute("makes", builder.getArrayAttr(makes));
  result.addAttribute("heads", builder.getI64IntegerAttr(heads));
  result.addTypes(type.getResults());
  return success();
}

//===-- Checks --------------------------------------------------------------------------------------------------===//

namespace {

/// The sizes that the tensors of a map have in common.
struct Sizes {
  int64_t batch = 0, length = 0, width = 0, heads = 1;
  Type element; ///< of full tensors, or of weights where no full one is read
  bool hasFull = false;
  std::optional<Location> loc;

  LogicalResult read(Value tensor, unsigned axes, size_t number);
  RankedTensorType typeOf(unsigned axes) const;

private:
  LogicalResult agree(int64_t &known, int64_t size, size_t number, StringRef what) {
    if (known != 0 && known != size)
      return emitOptionalError(loc, "`map` reads tensors of one ", what, ", got ", known, " and as tensor ", number,
                               " ", size);
    known = size;
    return success();
  }
};

} // namespace

LogicalResult Sizes::read(Value tensor, unsigned axes, size_t number) {
  RankedTensorType type = tensorOf(tensor);
  ArrayRef<int64_t> shape = type.getShape();
  int64_t rank = (axes & Along::rows ? 2 : 0) + ((axes & Along::width) || !(axes & Along::rows) ? 1 : 0);
  if (type.getRank() != rank)
    return emitOptionalError(loc, "`map` expects tensor ", number, " \"", Along::text(axes), "\" with ", rank,
                             rank == 1 ? " dimension, got " : " dimensions, got ", type);
  if ((axes & Along::rows) && (failed(agree(batch, shape[0], number, "number of sequences")) ||
                               failed(agree(length, shape[1], number, "length"))))
    return failure();
  bool isFull = axes == Along::all;
  if (isFull && hasFull && element != type.getElementType())
    return emitOptionalError(loc, "`map` reads full tensors of one element type, got ", element, " and ",
                             type.getElementType());
  if (isFull || (!hasFull && ((axes & Along::columns) || !element)))
    element = type.getElementType();
  hasFull |= isFull;
  int64_t last = shape.back();
  if ((axes & Along::width) == Along::heads && last != heads)
    return emitOptionalError(loc, "`map` expects tensor ", number, " \"", Along::text(axes),
                             "\" with a number for each of ", heads, heads == 1 ? " head, got " : " heads, got ", type);
  if (axes == 0 && last != 1)
    return emitOptionalError(loc, "`map` expects tensor ", number, " \"\" with one element, got ", type);
  if (!(axes & Along::columns))
    return success();
  return agree(width, axes & Along::heads ? last : last * heads, number, "width");
}

RankedTensorType Sizes::typeOf(unsigned axes) const {
  SmallVector<int64_t> shape;
  if (axes & Along::rows)
    shape = {batch, length};
  if (axes & Along::columns)
    shape.push_back(axes & Along::heads ? width : width / heads);
  else if ((axes & Along::heads) || shape.empty())
    shape.push_back(axes & Along::heads ? heads : 1);
  return RankedTensorType::get(shape, axes == Along::all ? element : sumType(element));
}

static FailureOr<unsigned> axesOf(Attribute text, StringRef what, std::optional<Location> loc) {
  std::optional<unsigned> axes = Along::read(cast<StringAttr>(text).getValue());
  if (axes)
    return *axes;
  return emitOptionalError(loc, "`map` ", what, " \"thd\", \"th\", \"t\", \"hd\", \"d\", \"h\" or \"\", got ", text);
}

INFER(MapOp) {
  Check check{"map", loc};
  if (failed(check.operands(a, 1, 64)))
    return failure();
  auto heads = static_cast<int64_t>(a.getHeads());
  if (a.getReads().size() != a.getTensors().size())
    return emitOptionalError(loc, "`map` reads ", a.getTensors().size(), " tensors and has axes of ",
                             a.getReads().size());
  if (heads < 1)
    return emitOptionalError(loc, "`map` expects at least 1 head, got ", heads);
  Sizes sizes;
  sizes.heads = heads, sizes.loc = loc;
  for (auto [i, tensor, text] : llvm::enumerate(a.getTensors(), a.getReads())) {
    FailureOr<unsigned> axes = axesOf(text, "reads", loc);
    if (failed(axes) || failed(check.numbers("its tensors", tensor)) || failed(sizes.read(tensor, *axes, i)))
      return failure();
  }
  if (sizes.width % heads != 0)
    return emitOptionalError(loc, "`map` expects a width that is a multiple of ", heads, " heads, got ", sizes.width);
  for (Attribute text : a.getMakes()) {
    FailureOr<unsigned> axes = axesOf(text, "makes", loc);
    if (failed(axes))
      return failure();
    if (((*axes & Along::rows) && sizes.batch == 0) || ((*axes & Along::columns) && sizes.width == 0))
      return emitOptionalError(loc, "`map` makes ", text, " and reads nothing of that size");
    types.push_back(sizes.typeOf(*axes));
  }
  return success();
}

/// What the region gives fits what is made: a tensor with rows has all axes of its value.
static LogicalResult checkGiven(MapOp map) {
  MapFormula its = formulaOf(map);
  for (auto [i, each] : llvm::enumerate(its.made))
    if (unsigned axes = its.formula.at(each.value).axes; (each.axes & Along::rows) && (axes & ~each.axes))
      return map.emitOpError() << "makes \"" << Along::text(each.axes) << "\" as tensor " << i
                               << ", and its value has \"" << Along::text(axes) << "\"";
  return success();
}

LogicalResult MapOp::verifyRegions() {
  Block &block = getBody().front();
  Type sums = sumType(elementType());
  if (block.getNumArguments() != getTensors().size() ||
      llvm::any_of(block.getArgumentTypes(), [&](Type type) { return type != sums; }))
    return emitOpError() << "expects a region with an argument " << sums << " for each of " << getTensors().size()
                         << " tensors";
  auto give = dyn_cast<GiveOp>(block.back());
  if (!give)
    return emitOpError("expects a region that ends with `nn.give`");
  for (Operation &op : block.without_terminator()) {
    if (!elementOf(&op))
      return op.emitOpError() << "is no op of formulas";
    for (Type type : op.getResultTypes())
      if (type != sums && !type.isInteger(1))
        return op.emitOpError() << "makes " << type << " in a formula that computes in " << sums;
    if (auto reduce = dyn_cast<pp::nn::ReduceOp>(op); reduce && !llvm::is_contained({"hd", "d", "h"}, reduce.getOver()))
      return op.emitOpError() << "expects to go over \"hd\", \"d\" or \"h\", got \"" << reduce.getOver() << "\"";
  }
  if (give.getValues().size() != getMade().size() ||
      llvm::any_of(give.getValues().getTypes(), [&](Type type) { return type != sums; }))
    return give.emitOpError() << "expects a value " << sums << " for each of " << getMade().size() << " tensors";
  return checkGiven(*this);
}

//===-- Factors -------------------------------------------------------------------------------------------------===//

namespace {

/// How a value depends on some tensors, all others fixed: not at all, linearly, or otherwise; a zero is both of the
/// first.
enum class Degree : uint8_t { zero, fixed, linear, other };

} // namespace

static Degree degreeOf(const Formula::Term &term, ArrayRef<Degree> of) {
  auto sum = [](Degree a, Degree b) { return a == Degree::zero ? b : b == Degree::zero || a == b ? a : Degree::other; };
  auto product = [](Degree a, Degree b) {
    if (a == Degree::zero || b == Degree::zero)
      return Degree::zero;
    return a == Degree::fixed ? b : b == Degree::fixed ? a : Degree::other;
  };
  auto isFixed = [](Degree degree) { return degree == Degree::fixed || degree == Degree::zero; };
  switch (term.op) {
  case Element::number:
    return term.number == 0 ? Degree::zero : Degree::fixed;
  case Element::add:
  case Element::sub:
    return sum(of[0], of[1]);
  case Element::mul:
    return product(of[0], of[1]);
  case Element::fma:
    return sum(product(of[0], of[1]), of[2]);
  case Element::div:
    return isFixed(of[1]) ? of[0] : Degree::other;
  case Element::select:
    return isFixed(of[0]) ? sum(of[1], of[2]) : Degree::other;
  case Element::neg:
  case Element::stop:
  case Element::sum_over:
  case Element::mean_over:
    return of[0];
  default:
    return llvm::all_of(of, isFixed) ? Degree::fixed : Degree::other;
  }
}

/// Whether all that is made is linear in these tensors together.
static bool isLinearIn(const MapFormula &its, uint64_t tensors) {
  std::vector<Degree> degrees;
  for (unsigned value = 0; value < its.formula.size(); ++value) {
    const Formula::Term &term = its.formula.at(value);
    auto of = llvm::map_to_vector(term.of, [&](unsigned operand) { return degrees[operand]; });
    degrees.push_back(term.op != Element::leaf   ? degreeOf(term, of)
                      : tensors >> term.leaf & 1 ? Degree::linear
                                                 : Degree::fixed);
  }
  return llvm::all_of(its.made, [&](Formula::Made each) { return degrees[each.value] == Degree::linear; });
}

/// The most tensors in which a formula is linear together, as a set of bits. Of many tensors one at most is looked for.
static uint64_t linearTensors(const MapFormula &its) {
  uint64_t count = its.reads.size(), best = 0;
  for (uint64_t set = 1; count <= 8 && set < 1U << count; ++set)
    if (llvm::popcount(set) > llvm::popcount(best) && isLinearIn(its, set))
      best = set;
  for (uint64_t i = 0; count > 8 && i < count && best == 0; ++i)
    if (isLinearIn(its, uint64_t(1) << i))
      best = uint64_t(1) << i;
  return best;
}

/// Whether all reductions are sums over columns, and gradients of weights linear in them: of cut columns a device then
/// has terms. Nothing that has rows may read such a sum.
static bool areTermsOfGradients(const MapFormula &its) {
  std::vector<Degree> degrees;
  auto isFixed = [](Degree degree) { return degree == Degree::fixed || degree == Degree::zero; };
  for (unsigned value = 0; value < its.formula.size(); ++value) {
    const Formula::Term &term = its.formula.at(value);
    auto of = llvm::map_to_vector(term.of, [&](unsigned operand) { return degrees[operand]; });
    if (term.over != 0 && !(term.op == Element::sum_over && isFixed(of[0])))
      return false;
    degrees.push_back(term.over != 0 ? Degree::linear : term.op == Element::leaf ? Degree::fixed : degreeOf(term, of));
  }
  return llvm::all_of(its.made, [&](Formula::Made each) {
    return isFixed(degrees[each.value]) || (!(each.axes & Along::rows) && degrees[each.value] == Degree::linear);
  });
}

/// Without heads the columns are one factor. `hasOneOfSeveral`: the one head is a device's own of several, which are
/// cut.
static StringRef factorsOf(MapOp map, bool hasOneOfSeveral) {
  const bool hasHeads = map.getHeads() > 1 || hasOneOfSeveral;
  MapFormula its = formulaOf(map);
  unsigned whole = 0;
  const bool areTerms = areTermsOfGradients(its);
  for (unsigned value = 0; value < its.formula.size(); ++value)
    whole |= areTerms ? 0 : its.formula.at(value).over;
  std::string text;
  llvm::raw_string_ostream out(text);
  auto state = [&](char kind, size_t i, unsigned axes) {
    const char *h = whole & Along::heads ? "h!" : "h", *d = whole & Along::columns ? "d!" : "d";
    out << (i ? ", " : "") << kind << i << ":" << (axes & Along::rows ? " b s" : "");
    if (!hasHeads && (axes & Along::columns))
      out << (whole & Along::columns ? " c!" : " c");
    else if ((axes & Along::width) == Along::width)
      out << " (" << h << " " << d << ")";
    else if (axes & Along::width)
      out << " " << (axes & Along::heads ? hasHeads ? h : "h!" : d);
    else if (axes == 0)
      out << " u!";
  };
  for (auto [i, axes] : llvm::enumerate(its.reads))
    state('x', i, axes);
  out << " -> ";
  for (auto [i, each] : llvm::enumerate(its.made))
    state('y', i, each.axes);
  uint64_t linear = linearTensors(its);
  const bool counts =
      map.getHeads() > 1 && llvm::any_of(its.reads, [](unsigned axes) { return (axes & Along::heads) != 0; });
  if (linear != 0 || counts)
    out << " ;" << (counts ? " heads(h)" : "");
  if (llvm::popcount(linear) == static_cast<int>(its.reads.size()))
    out << " linear";
  else
    for (unsigned i = 0; i < its.reads.size(); ++i)
      if (linear >> i & 1)
        out << " linear_in(x" << i << ")";
  return StringAttr::get(map.getContext(), text).getValue(); // the context keeps it
}

StringRef MapOp::factorText() { return factorsOf(*this, false); }
StringRef MapOp::factorTextOfDevice() { return getHeads() == 1 ? factorsOf(*this, true) : ""; }

ArrayRef<llvm::StringLiteral> MapOp::factorTexts() {
  static constexpr llvm::StringLiteral kTexts[] = {
      "x0: b s c, x1: b s c -> y0: b s c ; linear",
      "x0: b s (h d!), x1: d!, x2: b s h -> y0: b s (h d!), y1: d! ; linear_in(x0)", "x0: b s c!, x1: u! -> y0: b s"};
  return kTexts;
}

std::pair<unsigned, unsigned> MapOp::operandsAt(unsigned k) { return {k, 1}; }
std::pair<unsigned, unsigned> MapOp::resultsAt(unsigned k) { return {k, 1}; }

//===-- Its kernel ----------------------------------------------------------------------------------------------===//

Type MapOp::elementType() {
  Type element;
  for (auto [tensor, text] : llvm::zip(getTensors(), getReads().getAsValueRange<StringAttr>())) {
    Type own = tensorOf(tensor).getElementType();
    if (text == "thd")
      return own;
    if (!element || StringRef(text).ends_with("d"))
      element = own;
  }
  return element;
}

StringRef MapOp::kernelName() { return "formula"; }

int64_t pp::nn::rowsOfFormula(MapOp map) {
  for (auto [tensor, text] : llvm::zip(map.getTensors(), map.getReads().getAsValueRange<StringAttr>()))
    if (StringRef(text).starts_with("t"))
      return tensorOf(tensor).getDimSize(0) * tensorOf(tensor).getDimSize(1);
  return 1;
}

int64_t pp::nn::widthOfFormula(MapOp map) {
  auto heads = static_cast<int64_t>(map.getHeads());
  for (auto [tensor, text] : llvm::zip(map.getTensors(), map.getReads().getAsValueRange<StringAttr>()))
    if (StringRef(text).ends_with("d"))
      return nn::widthOf(tensor) * (text == "d" ? heads : 1);
  return heads;
}

Dims MapOp::dims() {
  int64_t width = widthOfFormula(*this);
  Dims dims = {rowsOfFormula(*this), width, static_cast<int64_t>(getHeads()), numberOfFormula(*this)};
  for (ArrayAttr texts : {getReads(), getMakes()})
    for (StringRef axes : texts.getAsValueRange<StringAttr>()) // elements from a row to the next
      dims.push_back(axes == "thd" ? width : axes == "th" ? getHeads() : axes == "t" ? 1 : 0);
  return dims;
}

SmallVector<Run> MapOp::lists() { return {{0, (*this)->getNumOperands() + (*this)->getNumResults()}}; }

double MapOp::flops() {
  MapFormula its = formulaOf(*this);
  auto heads = static_cast<double>(getHeads()), width = static_cast<double>(widthOfFormula(*this)), sum = 0.0;
  auto rows = static_cast<double>(rowsOfFormula(*this));
  auto elements = [&](unsigned axes) {
    return (axes & Along::rows ? rows : 1) * (axes & Along::heads ? heads : 1) *
           (axes & Along::columns ? width / heads : 1);
  };
  for (unsigned value = 0; value < its.formula.size(); ++value) {
    const Formula::Term &term = its.formula.at(value);
    bool isCostly = (term.op >= Element::exp && term.op <= Element::softplus) || term.op == Element::div;
    if (!term.of.empty() && term.op != Element::stop)
      sum += elements(term.axes | term.over | its.formula.at(term.of[0]).axes) * (isCostly ? 8 : 1);
  }
  return sum;
}

int64_t pp::nn::scratchOfFormula(MapOp map) {
  MapFormula its = formulaOf(map);
  auto heads = static_cast<int64_t>(map.getHeads());
  int64_t columns = widthOfFormula(map) / heads, bytes = 0;
  auto add = [&](unsigned axes) {
    bytes += 8 * (axes & Along::heads ? heads : 1) * (axes & Along::columns ? columns : 1) + 64;
  };
  for (unsigned value = 0; value < its.formula.size(); ++value)
    add(its.formula.at(value).axes);
  for (Formula::Made each : its.made)
    add(each.axes);
  return bytes;
}

/// Runs begin where packs of four elements do.
SmallVector<RowSum> pp::nn::rowSumsOf(MapOp map) {
  MapFormula its = formulaOf(map);
  auto heads = static_cast<int64_t>(map.getHeads()), columns = widthOfFormula(map) / heads;
  SmallVector<RowSum> sums;
  int64_t next = 0;
  for (Formula::Made each : its.made) {
    RowSum &sum = sums.emplace_back();
    if (each.axes & Along::rows)
      continue;
    bool hasHeads = each.axes & Along::heads, hasColumns = each.axes & Along::columns;
    sum.first = next;
    sum.count = (hasHeads ? heads : 1) * (hasColumns ? columns : 1);
    if (hasColumns && !hasHeads && (its.formula.at(each.value).axes & Along::heads))
      sum.times = heads;
    next += static_cast<int64_t>(llvm::alignTo(sum.count * sum.times, 4));
  }
  return sums;
}

int64_t pp::nn::partOfFormula(MapOp map) {
  int64_t part = 0;
  for (const RowSum &sum : rowSumsOf(map))
    part = std::max(part, static_cast<int64_t>(llvm::alignTo(sum.first + sum.count * sum.times, 4)));
  return part;
}

/// A row is read as a whole before any of it is stored.
SmallVector<Tie> MapOp::getAllowedTies() {
  SmallVector<Tie> ties;
  for (auto [i, made, makes] : llvm::enumerate(getMade(), getMakes().getAsValueRange<StringAttr>()))
    for (auto [k, tensor, reads] : llvm::enumerate(getTensors(), getReads().getAsValueRange<StringAttr>()))
      if (makes == "thd" && reads == "thd" && made.getType() == tensor.getType())
        ties.push_back({static_cast<unsigned>(i), static_cast<unsigned>(k)});
  return ties;
}
