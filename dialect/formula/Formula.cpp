// Makes graphs of regions and regions of graphs, simplifies them, and writes them as the runtime reads them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/formula/Formula.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Support/xxhash.h"
#include <cmath>

using namespace mlir;
using namespace pp::nn;

std::string Along::text(unsigned axes) {
  std::string text;
  for (unsigned i = 0; i < 3; ++i)
    if (axes >> i & 1)
      text += "thd"[i];
  return text;
}

std::optional<unsigned> Along::read(StringRef text) {
  for (unsigned axes : {0U, rows, heads, columns, rows | heads, width, all})
    if (Along::text(axes) == text)
      return axes;
  return std::nullopt;
}

StringRef pp::nn::nameOf(Element element) {
  static constexpr llvm::StringLiteral kNames[] = {
#define PP_ELEMENT(name, operands) #name,
#include "runtime/cpu/Elements.def"
  };
  return kNames[static_cast<size_t>(element)];
}

//===-- The graph -----------------------------------------------------------------------------------------------===//

unsigned Formula::add(Term term) {
  auto key = std::tuple(term.op, std::vector<unsigned>(term.of.begin(), term.of.end()),
                        llvm::bit_cast<uint64_t>(term.number), term.leaf, term.over);
  auto [it, isNew] = known.try_emplace(key, size());
  if (isNew)
    terms.push_back(std::move(term));
  return it->second;
}

unsigned Formula::leaf(unsigned tensor, unsigned axes) {
  return add({.op = Element::leaf, .leaf = tensor, .axes = axes});
}

unsigned Formula::number(double number) { return add({.op = Element::number, .number = number}); }

unsigned Formula::keep(Element op, ArrayRef<unsigned> of, unsigned over) {
  Term term{.op = op, .of = llvm::SmallVector<unsigned, 3>(of), .over = over};
  for (unsigned value : of)
    term.axes |= at(value).axes;
  term.axes &= ~over;
  return add(std::move(term));
}

double Formula::numberAt(unsigned value) const {
  return at(value).op == Element::number ? at(value).number : std::numeric_limits<double>::quiet_NaN();
}

/// What two numbers make; NaN if this is not made at once.
static double folded(Element op, double a, double b) {
  switch (op) {
  case Element::add:
    return a + b;
  case Element::sub:
    return a - b;
  case Element::mul:
    return a * b;
  case Element::div:
    return a / b;
  case Element::neg:
    return -a;
  default:
    return std::numeric_limits<double>::quiet_NaN();
  }
}

unsigned Formula::make(Element op, ArrayRef<unsigned> of, unsigned over) {
  const double none = std::numeric_limits<double>::quiet_NaN(); // equals no number
  const double a = of.empty() ? none : numberAt(of[0]), b = of.size() < 2 ? none : numberAt(of[1]);
  if (double made = folded(op, a, b); !std::isnan(made))
    return number(made);
  switch (op) {
  case Element::add:
    return a == 0 ? of[1] : b == 0 ? of[0] : keep(op, of);
  case Element::sub:
    return b == 0 ? of[0] : a == 0 ? make(Element::neg, of[1]) : keep(op, of);
  case Element::mul:
    if (a == 0 || b == 0)
      return number(0);
    return a == 1 ? of[1] : b == 1 ? of[0] : keep(op, of);
  case Element::div:
    if (a == 1 && at(of[1]).op == Element::sqrt)
      return keep(Element::rsqrt, at(of[1]).of);
    return a == 0 || b == 1 ? of[0] : keep(op, of);
  case Element::neg:
    return at(of[0]).op == Element::neg ? at(of[0]).of[0] : keep(op, of);
  case Element::select:
    return of[1] == of[2] ? of[1] : keep(op, of);
  case Element::sum_over:
    return a == 0 ? of[0] : keep(op, of, over);
  default:
    return keep(op, of, over);
  }
}

std::vector<unsigned> Formula::neededFor(ArrayRef<unsigned> values, bool throughReductions) const {
  std::vector<bool> isNeeded(size());
  for (unsigned value : values)
    isNeeded[value] = true;
  for (unsigned value = size(); value-- > 0;) // each value is made of earlier ones
    if (isNeeded[value] && (throughReductions || !isReduction(at(value).op)))
      for (unsigned operand : at(value).of)
        isNeeded[operand] = true;
  std::vector<unsigned> needed;
  for (unsigned value = 0; value < size(); ++value)
    if (isNeeded[value])
      needed.push_back(value);
  return needed;
}

SmallVector<unsigned> pp::nn::rowsToKeep(const Formula &formula, ArrayRef<unsigned> results, unsigned most) {
  std::vector<bool> reduces(formula.size());
  SmallVector<unsigned> kept;
  for (unsigned value : formula.neededFor(results)) {
    const Formula::Term &term = formula.at(value);
    reduces[value] = isReduction(term.op) && (term.axes & Along::rows);
    for (unsigned operand : term.of) {
      if (formula.at(operand).axes & Along::columns)
        continue;
      reduces[value] = reduces[value] || reduces[operand];
      if (reduces[operand] && !isCondition(formula.at(operand).op) && (term.axes & Along::columns) &&
          kept.size() < most && !llvm::is_contained(kept, operand))
        kept.push_back(operand);
    }
    if (term.axes & Along::columns)
      reduces[value] = false;
  }
  return kept;
}

//===-- From a region -------------------------------------------------------------------------------------------===//

static std::optional<Element> elementOf(arith::CmpFPredicate predicate) {
  switch (predicate) {
  case arith::CmpFPredicate::OGT:
    return Element::gt;
  case arith::CmpFPredicate::OGE:
    return Element::ge;
  case arith::CmpFPredicate::OLT:
    return Element::lt;
  case arith::CmpFPredicate::OLE:
    return Element::le;
  case arith::CmpFPredicate::OEQ:
    return Element::eq;
  case arith::CmpFPredicate::UNE:
    return Element::ne;
  default:
    return std::nullopt;
  }
}

static std::optional<Element> elementOf(StringRef reduction) {
  for (Element element :
       {Element::sum_over, Element::mean_over, Element::max_over, Element::min_over, Element::variance_over})
    if (nameOf(element).drop_back(StringRef("_over").size()) == reduction)
      return element;
  return std::nullopt;
}

namespace pp::nn {
/// Which element an op of a region is; nothing if no region may hold it.
std::optional<Element> elementOf(Operation *op) {
  using Answer = std::optional<Element>;
  auto always = [](Element element) { return [element](Operation *) -> Answer { return element; }; };
  return llvm::TypeSwitch<Operation *, Answer>(op)
      .Case([](arith::ConstantOp it) -> Answer {
        if (isa<FloatAttr>(it.getValue()))
          return Element::number;
        auto flag = dyn_cast<BoolAttr>(it.getValue());
        return flag && flag.getValue() ? Answer(Element::yes) : Answer();
      })
      .Case<arith::AddFOp>(always(Element::add))
      .Case<arith::SubFOp>(always(Element::sub))
      .Case<arith::MulFOp>(always(Element::mul))
      .Case<arith::DivFOp>(always(Element::div))
      .Case<arith::MaximumFOp>(always(Element::max))
      .Case<arith::MinimumFOp>(always(Element::min))
      .Case<math::FmaOp>(always(Element::fma))
      .Case<arith::SelectOp>(always(Element::select))
      .Case<arith::NegFOp>(always(Element::neg))
      .Case<math::AbsFOp>(always(Element::abs))
      .Case<math::ExpOp>(always(Element::exp))
      .Case<math::LogOp>(always(Element::log))
      .Case<math::Log1pOp>(always(Element::log1p))
      .Case<math::ExpM1Op>(always(Element::expm1))
      .Case<math::TanhOp>(always(Element::tanh))
      .Case<math::ErfOp>(always(Element::erf))
      .Case<math::SqrtOp>(always(Element::sqrt))
      .Case<math::RsqrtOp>(always(Element::rsqrt))
      .Case<SigmoidOp>(always(Element::sigmoid))
      .Case<SoftplusOp>(always(Element::softplus))
      .Case<RoundedOp>(always(Element::rounded))
      .Case<StopOp>(always(Element::stop))
      .Case([](arith::CmpFOp it) { return ::elementOf(it.getPredicate()); })
      .Case<arith::AndIOp>(always(Element::both))
      .Case<arith::OrIOp>(always(Element::either))
      .Case<arith::XOrIOp>(always(Element::unlike))
      .Case([](pp::nn::ReduceOp it) { return ::elementOf(it.getKind()); })
      .Default([](Operation *) { return Answer(); });
}
} // namespace pp::nn

MapFormula pp::nn::formulaOf(MapOp map) {
  MapFormula its;
  Formula &formula = its.formula;
  llvm::DenseMap<Value, unsigned> values;
  Block &block = map.getBody().front();
  for (auto [i, argument, axes] : llvm::enumerate(block.getArguments(), map.getReads().getAsValueRange<StringAttr>())) {
    its.reads.push_back(*Along::read(axes));
    values[argument] = formula.leaf(i, its.reads.back());
  }
  for (Operation &op : block.without_terminator()) {
    Element element = *elementOf(&op);
    if (element == Element::number) {
      double number = cast<FloatAttr>(cast<arith::ConstantOp>(op).getValue()).getValueAsDouble();
      values[op.getResult(0)] = formula.number(number);
      continue;
    }
    auto reduce = dyn_cast<pp::nn::ReduceOp>(op);
    auto of = llvm::map_to_vector(op.getOperands(), [&](Value value) { return values.lookup(value); });
    values[op.getResult(0)] = formula.keep(element, of, reduce ? *Along::read(reduce.getOver()) : 0);
  }
  for (auto [value, axes] :
       llvm::zip(block.getTerminator()->getOperands(), map.getMakes().getAsValueRange<StringAttr>()))
    its.made.push_back({values.lookup(value), *Along::read(axes)});
  return its;
}

//===-- To a region ---------------------------------------------------------------------------------------------===//

/// What upstream's dialects have no op for.
static Value createOwn(OpBuilder &builder, Location loc, Type sums, const Formula::Term &term, Value x) {
  switch (term.op) {
  case Element::sigmoid:
    return builder.create<SigmoidOp>(loc, sums, x);
  case Element::softplus:
    return builder.create<SoftplusOp>(loc, sums, x);
  case Element::rounded:
    return builder.create<RoundedOp>(loc, sums, x);
  case Element::stop:
    return builder.create<StopOp>(loc, sums, x);
  case Element::number:
    return builder.create<arith::ConstantOp>(loc, builder.getFloatAttr(sums, term.number));
  case Element::yes:
    return builder.create<arith::ConstantOp>(loc, builder.getBoolAttr(true));
  default:
    return builder.create<pp::nn::ReduceOp>(loc, sums, x, nameOf(term.op).drop_back(StringRef("_over").size()),
                                            Along::text(term.over));
  }
}

static Value create(OpBuilder &builder, Location loc, Type sums, const Formula::Term &term, ArrayRef<Value> of) {
  auto compare = [&](arith::CmpFPredicate predicate) -> Value {
    return builder.create<arith::CmpFOp>(loc, predicate, of[0], of[1]);
  };
  switch (term.op) {
#define PP_ONE(element, Op)                                                                                            \
  case Element::element:                                                                                               \
    return builder.create<Op>(loc, of[0]);
#define PP_TWO(element, Op)                                                                                            \
  case Element::element:                                                                                               \
    return builder.create<Op>(loc, of[0], of[1]);
#define PP_COMPARE(element, Predicate)                                                                                 \
  case Element::element:                                                                                               \
    return compare(arith::CmpFPredicate::Predicate);
    PP_TWO(add, arith::AddFOp)
    PP_TWO(sub, arith::SubFOp)
    PP_TWO(mul, arith::MulFOp)
    PP_TWO(div, arith::DivFOp)
    PP_TWO(max, arith::MaximumFOp)
    PP_TWO(min, arith::MinimumFOp)
    PP_ONE(neg, arith::NegFOp)
    PP_ONE(abs, math::AbsFOp)
    PP_ONE(exp, math::ExpOp)
    PP_ONE(log, math::LogOp)
    PP_ONE(log1p, math::Log1pOp)
    PP_ONE(expm1, math::ExpM1Op)
    PP_ONE(tanh, math::TanhOp)
    PP_ONE(erf, math::ErfOp)
    PP_ONE(sqrt, math::SqrtOp)
    PP_ONE(rsqrt, math::RsqrtOp)
    PP_TWO(both, arith::AndIOp)
    PP_TWO(either, arith::OrIOp)
    PP_TWO(unlike, arith::XOrIOp)
    PP_COMPARE(gt, OGT)
    PP_COMPARE(ge, OGE)
    PP_COMPARE(lt, OLT)
    PP_COMPARE(le, OLE)
    PP_COMPARE(eq, OEQ)
    PP_COMPARE(ne, UNE)
#undef PP_ONE
#undef PP_TWO
#undef PP_COMPARE
  case Element::fma:
    return builder.create<math::FmaOp>(loc, of[0], of[1], of[2]);
  case Element::select:
    return builder.create<arith::SelectOp>(loc, of[0], of[1], of[2]);
  default:
    return createOwn(builder, loc, sums, term, of.empty() ? Value() : of[0]);
  }
}

MapOp pp::nn::createMap(OpBuilder &builder, Location loc, const Formula &formula, ArrayRef<Value> tensors,
                        ArrayRef<unsigned> reads, ArrayRef<Formula::Made> made, int64_t heads) {
  auto results = llvm::map_to_vector(made, [](Formula::Made each) { return each.value; });
  std::vector<unsigned> needed = formula.neededFor(results);
  SmallVector<bool> isRead(tensors.size());
  for (unsigned value : needed)
    if (formula.at(value).op == Element::leaf)
      isRead[formula.at(value).leaf] = true;
  OperationState state(loc, MapOp::getOperationName());
  SmallVector<Attribute> readTexts, madeTexts;
  auto *body = new Block;
  state.addRegion()->push_back(body);
  Type sums = sumType(cast<RankedTensorType>(tensors.front().getType()).getElementType());
  SmallVector<Value> arguments(tensors.size());
  for (auto [i, tensor] : llvm::enumerate(tensors))
    if (isRead[i]) {
      state.addOperands(tensor);
      readTexts.push_back(builder.getStringAttr(Along::text(reads[i])));
      arguments[i] = body->addArgument(sums, loc);
    }
  for (Formula::Made each : made)
    madeTexts.push_back(builder.getStringAttr(Along::text(each.axes)));
  state.addAttribute("reads", builder.getArrayAttr(readTexts));
  state.addAttribute("makes", builder.getArrayAttr(madeTexts));
  state.addAttribute("heads", builder.getI64IntegerAttr(heads));
  OpBuilder inside(builder.getContext());
  inside.setInsertionPointToStart(body);
  llvm::DenseMap<unsigned, Value> values;
  for (unsigned value : needed) {
    const Formula::Term &term = formula.at(value);
    auto of = llvm::map_to_vector(term.of, [&](unsigned operand) { return values.lookup(operand); });
    values[value] = term.op == Element::leaf ? arguments[term.leaf] : ::create(inside, loc, sums, term, of);
  }
  inside.create<GiveOp>(loc, llvm::map_to_vector(results, [&](unsigned value) { return values.lookup(value); }));
  SmallVector<Type> types;
  LogicalResult isRight =
      MapOp::inferReturnTypes(builder.getContext(), loc, state.operands,
                              state.attributes.getDictionary(builder.getContext()), nullptr, {}, types);
  assert(succeeded(isRight) && "a formula that nobody checked");
  (void)isRight;
  state.addTypes(types);
  return cast<MapOp>(builder.create(state));
}

//===-- For the runtime -----------------------------------------------------------------------------------------===//

std::string pp::nn::textOfFormula(MapOp map) {
  MapFormula its = formulaOf(map);
  std::string text;
  llvm::raw_string_ostream out(text);
  auto elementOf = [](Value value) { return cast<RankedTensorType>(value.getType()).getElementType(); };
  out << "element " << map.elementType() << "\nwidth " << widthOfFormula(map) << "\nheads " << map.getHeads() << "\n";
  auto axesText = [](unsigned axes) { return axes ? Along::text(axes) : "-"; };
  for (auto [tensor, axes] : llvm::zip(map.getTensors(), its.reads))
    out << "read " << axesText(axes) << " " << elementOf(tensor) << "\n";
  auto results = llvm::map_to_vector(its.made, [](Formula::Made each) { return each.value; });
  llvm::DenseMap<unsigned, unsigned> numbers;
  unsigned next = its.reads.size();
  for (unsigned value : its.formula.neededFor(results)) {
    const Formula::Term &term = its.formula.at(value);
    numbers[value] = term.op == Element::leaf ? term.leaf : next++;
    if (term.op == Element::leaf)
      continue;
    out << nameOf(term.op);
    if (term.op == Element::number)
      out << llvm::format(" %.17g", term.number);
    if (isReduction(term.op))
      out << " " << Along::text(term.over);
    for (unsigned operand : term.of)
      out << " " << numbers.lookup(operand);
    out << "\n";
  }
  for (auto [tensor, each] : llvm::zip(map.getMade(), its.made))
    out << "make " << axesText(each.axes) << " " << elementOf(tensor) << " " << numbers.lookup(each.value) << "\n";
  return text;
}

int64_t pp::nn::numberOfFormula(MapOp map) {
  return static_cast<int64_t>(llvm::xxh3_64bits(textOfFormula(map)) >> 12) + 1; // JSON has 53 bits
}
