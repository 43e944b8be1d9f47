// Builds formulas of a model's text: which operands join, what functions are made of, and what is written as one op.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/ModelFormulas.h"
#include "llvm/ADT/StringSwitch.h"
#include <cmath>

using namespace llvm;
using namespace pp;
using mlir::RankedTensorType;
using nn::Along;
using nn::Element;
using Formed = ModelFormulas::Formed;
using FormedOr = ModelFormulas::FormedOr;

/// Those of one operand and of several, then those over the width.
static constexpr StringRef kFunctions[] = {
    "abs",     "exp",        "log",      "log1p",   "expm1",   "tanh",   "sigmoid", "softplus", "logsigmoid",
    "silu",    "relu",       "erf",      "sqrt",    "rsqrt",   "square", "sign",    "power",    "min",
    "max",     "clamp",      "where",    "stop",    "rounded", "sum",    "mean",    "variance", "logsumexp",
    "softmax", "every_head", "of_heads", "logprob", "entropy", "total"};

ArrayRef<StringRef> ModelFormulas::functionNames() { return kFunctions; }
bool ModelFormulas::isFunction(StringRef name) { return is_contained(kFunctions, name); }

void ModelFormulas::clear() {
  formula = nn::Formula();
  tensors.clear(), reads.clear(), made.clear();
}

unsigned ModelFormulas::make(Element op, ArrayRef<unsigned> of, unsigned over) {
  bool folds = all_of(of, [&](unsigned value) { return formula.at(value).op == Element::number; });
  return folds ? formula.make(op, of, over) : formula.keep(op, of, over);
}

//===-- Operands ------------------------------------------------------------------------------------------------===//

FormedOr ModelFormulas::tensor(const Expr *expr, mlir::Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  int64_t rank = type.getRank(), width = type.getShape().back();
  if (!isa<mlir::FloatType>(type.getElementType()))
    return evaluator.fail(expr->at, "`" + expr->text + "` holds integers; a formula takes tensors of numbers");
  if (rank == 2) {
    std::string shape = (Twine(type.getDimSize(0)) + ", " + Twine(type.getDimSize(1))).str();
    return evaluator.fail(expr->at, "`" + expr->text + "` is [" + shape +
                                        "]; a formula takes weights of one dimension, and a product of matrices is "
                                        "`linear(x, w)`");
  }
  unsigned axes = rank == 1 ? width == 1 ? 0 : Along::width : width == 1 ? Along::rows | Along::heads : Along::all;
  size_t known = find(tensors, value) - tensors.begin();
  if (known == tensors.size())
    tensors.push_back(value), reads.push_back(axes);
  return Formed{formula.leaf(known, reads[known]), axes & Along::columns ? width : 0, 1, expr->text};
}

Formed ModelFormulas::ofTokens(StringRef text, mlir::Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  bool isRow = type.getRank() == 2;
  size_t known = find(tensors, value) - tensors.begin();
  if (known == tensors.size())
    tensors.push_back(value), reads.push_back(isRow ? Along::rows : Along::all);
  return {formula.leaf(known, reads[known]), isRow ? 0 : type.getShape().back(), 1, text};
}

SmallVector<mlir::Value> ModelFormulas::tensorsOf(Formed value) const {
  SmallVector<mlir::Value> all;
  for (unsigned each : formula.neededFor(value.value))
    if (formula.at(each).op == Element::leaf)
      all.push_back(tensors[formula.at(each).leaf]);
  return all;
}

FailureOr<mlir::Value> ModelFormulas::writeTokens(const Expr *expr, Formed value) {
  if (formula.at(value.value).op == Element::leaf)
    return tensors[formula.at(value.value).leaf];
  return store(expr, value, Along::rows);
}

FailureOr<mlir::Value> ModelFormulas::writeHeads(const Expr *expr, Formed value) {
  constexpr unsigned axes = Along::rows | Along::heads;
  if (axesOf(value) == axes && !isCondition(value))
    return store(expr, value, axes);
  return evaluator.fail(expr->at, "expected a number for each head of a token, which of_heads(x, heads) reads of a "
                                  "tensor, got `" +
                                      value.text + "`");
}

LogicalResult ModelFormulas::failWidths(const Expr *expr, Formed left, Formed right) {
  StringRef op = expr->kind == Expr::Call || expr->name.empty() ? StringRef(expr->name) : expr->name;
  Formed narrow = left.width < right.width ? left : right, wide = left.width < right.width ? right : left;
  std::string widths =
      ("`" + narrow.text + "` is " + Twine(narrow.width) + " wide and `" + wide.text + "` " + Twine(wide.width)).str();
  bool divides = wide.width % narrow.width == 0;
  if (divides && !(axesOf(narrow) & Along::rows))
    return evaluator.fail(expr->at, widths + "; if every head has this gain, write every_head(" + narrow.text + ", " +
                                        Twine(wide.width / narrow.width) + ")");
  if (divides && isFull(narrow) && formula.at(narrow.value).op == Element::leaf && narrow.width * 4 <= wide.width)
    return evaluator.fail(expr->at, widths + "; if it has a number for each head, write of_heads(" + narrow.text +
                                        ", " + Twine(narrow.width) + ")");
  return evaluator.fail(expr->at, "`" + left.text + "` is " + Twine(left.width) + " wide and `" + right.text + "` " +
                                      Twine(right.width) + "; `" + op + "` goes element by element");
}

/// Makes two operands ones of one formula. A number of a row of another width becomes a tensor of its own.
LogicalResult ModelFormulas::join(const Expr *expr, Formed &left, Formed &right) {
  auto fits = [](const Formed &a, const Formed &b) {
    return (a.width == 0 || b.width == 0 || a.width == b.width) && (a.heads == 1 || b.heads == 1 || a.heads == b.heads);
  };
  for (Formed *one : {&left, &right})
    if (!fits(left, right) && axesOf(*one) == Along::rows) {
      FormedOr row = written(expr, *one);
      if (failed(row))
        return failure();
      *one = *row;
    }
  if (left.width && right.width && left.width != right.width)
    return failWidths(expr, left, right);
  if (!fits(left, right))
    return evaluator.fail(expr->at, "the heads of one formula are equal; `" + left.text + "` has " + Twine(left.heads) +
                                        " and `" + right.text + "` " + Twine(right.heads));
  int64_t width = std::max(left.width, right.width), heads = std::max(left.heads, right.heads);
  if (width % heads != 0)
    return evaluator.fail(expr->at, Twine(heads) + " heads do not divide a width of " + Twine(width));
  return success();
}

/// A comparison is a condition, which only `where` and `and or not` read.
LogicalResult ModelFormulas::checkConditions(const Expr *expr, ArrayRef<Formed> operands) {
  bool wanted = expr->kind == Expr::And || expr->kind == Expr::Or || expr->kind == Expr::Not;
  for (auto [i, operand] : enumerate(operands)) {
    bool expected = wanted || (expr->kind == Expr::Call && expr->name == "where" && i == 0);
    if (isCondition(operand) != expected)
      return evaluator.fail(expr->at, "`" + operand.text + "` is " + (expected ? "no condition" : "a condition") +
                                          (expected ? "; compare it, as in `x > 0`"
                                                    : "; only where(condition, x, y) and `and or not` read one"));
  }
  return success();
}

//===-- Operators -----------------------------------------------------------------------------------------------===//

FormedOr ModelFormulas::combine(const Expr *expr, Element op, Formed left, Formed right) {
  if (failed(join(expr, left, right)))
    return failure();
  return Formed{make(op, {left.value, right.value}), std::max(left.width, right.width),
                std::max(left.heads, right.heads), expr->text};
}

FormedOr ModelFormulas::compare(const Expr *expr, ArrayRef<Formed> operands) {
  std::optional<Formed> all;
  for (auto [i, comparison] : enumerate(expr->comparisons)) {
    Element op = comparison == Expr::Equal          ? Element::eq
                 : comparison == Expr::Unequal      ? Element::ne
                 : comparison == Expr::Less         ? Element::lt
                 : comparison == Expr::LessEqual    ? Element::le
                 : comparison == Expr::Greater      ? Element::gt
                 : comparison == Expr::GreaterEqual ? Element::ge
                                                    : Element::leaf;
    if (op == Element::leaf)
      return evaluator.fail(expr->at, "`in` looks for a value in a list, and `" + operands[i].text + "` is a tensor");
    FormedOr one = combine(expr, op, operands[i], operands[i + 1]);
    if (succeeded(one) && all)
      one = combine(expr, Element::both, *all, *one);
    if (failed(one))
      return failure();
    all = *one;
  }
  return *all;
}

FormedOr ModelFormulas::apply(const Expr *expr, ArrayRef<Formed> operands) {
  if (failed(checkConditions(expr, operands)))
    return failure();
  switch (expr->kind) {
  case Expr::Add:
    return combine(expr, Element::add, operands[0], operands[1]);
  case Expr::Subtract:
    return combine(expr, Element::sub, operands[0], operands[1]);
  case Expr::Multiply:
    return combine(expr, Element::mul, operands[0], operands[1]);
  case Expr::Quotient: {
    Formed divisor = operands[1];
    if (axesOf(divisor) != Along::rows || !(axesOf(operands[0]) & Along::columns))
      return combine(expr, Element::div, operands[0], divisor);
    divisor.value = formula.make(Element::div, {number(1), divisor.value}); // once a row, and kept for the backward
    return combine(expr, Element::mul, operands[0], divisor);
  }
  case Expr::And:
    return combine(expr, Element::both, operands[0], operands[1]);
  case Expr::Or:
    return combine(expr, Element::either, operands[0], operands[1]);
  case Expr::Compare:
    return compare(expr, operands);
  default:
    break;
  }
  Formed its = operands[0];
  its.text = expr->text;
  its.value = expr->kind == Expr::Not ? make(Element::unlike, {its.value, make(Element::yes, {})})
                                      : make(Element::neg, {its.value});
  return its;
}

//===-- Functions -----------------------------------------------------------------------------------------------===//

/// A function of one operand.
std::optional<unsigned> ModelFormulas::function(StringRef name, unsigned x) {
  auto simple = StringSwitch<std::optional<Element>>(name)
                    .Case("abs", Element::abs)
                    .Case("exp", Element::exp)
                    .Case("log", Element::log)
                    .Case("log1p", Element::log1p)
                    .Case("expm1", Element::expm1)
                    .Case("tanh", Element::tanh)
                    .Case("sigmoid", Element::sigmoid)
                    .Case("softplus", Element::softplus)
                    .Case("erf", Element::erf)
                    .Case("sqrt", Element::sqrt)
                    .Case("rsqrt", Element::rsqrt)
                    .Case("stop", Element::stop)
                    .Case("rounded", Element::rounded)
                    .Default(std::nullopt);
  unsigned zero = number(0);
  if (simple)
    return make(*simple, {x});
  if (name == "silu")
    return make(Element::mul, {x, make(Element::sigmoid, {x})});
  if (name == "relu")
    return make(Element::max, {x, zero});
  if (name == "square")
    return make(Element::mul, {x, x});
  if (name == "logsigmoid")
    return make(Element::neg, {make(Element::softplus, {make(Element::neg, {x})})});
  if (name == "sign")
    return make(Element::stop,
                {make(Element::select, {make(Element::gt, {x, zero}), number(1),
                                        make(Element::select, {make(Element::lt, {x, zero}), number(-1), zero})})});
  return std::nullopt;
}

Formed ModelFormulas::squaredRelu(Formed x) {
  x.value = *function("square", *function("relu", x.value));
  return x;
}

FormedOr ModelFormulas::power(const Expr *expr, Formed x, Formed exponent) {
  double number = formula.numberAt(exponent.value), halves = 2 * number;
  if (!(halves == std::floor(halves) && std::fabs(number) <= 16))
    return evaluator.fail(expr->at, "`power` expects a number that is a multiple of one half, of at most 16, got `" +
                                        exponent.text + "`; exp(n * log(x)) is x to the n");
  unsigned base = x.value, result = this->number(1);
  for (auto left = static_cast<int64_t>(std::fabs(number)); left > 0; left /= 2) {
    if (left % 2)
      result = formula.make(Element::mul, {result, base});
    base = left > 1 ? make(Element::mul, {base, base}) : base;
  }
  if (number != std::trunc(number))
    result = formula.make(Element::mul, {result, make(Element::sqrt, {x.value})});
  x.value = number < 0 ? make(Element::div, {this->number(1), result}) : result;
  x.text = expr->text;
  return x;
}

/// Over the width, or the columns of each head.
FormedOr ModelFormulas::reduce(const Expr *expr, Formed x, int64_t heads) {
  if (!(axesOf(x) & Along::rows) || !(axesOf(x) & Along::columns))
    return evaluator.fail(expr->at, "`" + expr->name + "` goes over the width of a row, and `" + x.text + "` has none");
  if (heads > 1 && x.heads > 1 && heads != x.heads)
    return evaluator.fail(expr->at, "the heads of one formula are equal; `" + x.text + "` has " + Twine(x.heads) +
                                        " and `" + expr->text + "` " + Twine(heads));
  if (x.width % heads != 0)
    return evaluator.fail(expr->at, Twine(heads) + " heads do not divide a width of " + Twine(x.width));
  unsigned over = heads > 1 ? Along::columns : Along::width, value = x.value;
  auto its = [&](Element op) { return make(op, {value}, over); };
  Formed result = x;
  result.text = expr->text, result.heads = std::max(x.heads, heads);
  auto simple = StringSwitch<std::optional<Element>>(expr->name)
                    .Case("sum", Element::sum_over)
                    .Case("mean", Element::mean_over)
                    .Case("max", Element::max_over)
                    .Case("min", Element::min_over)
                    .Case("variance", Element::variance_over)
                    .Default(std::nullopt);
  auto settled = [&]() -> FormedOr { // a row of columns is a tensor of its own, which joins with others
    return axesOf(result) == Along::rows && readsColumns(x).first ? written(expr, result) : FormedOr(result);
  };
  if (simple) {
    result.value = its(*simple);
    return settled();
  }
  unsigned most = make(Element::stop, {its(Element::max_over)});
  unsigned power = make(Element::exp, {make(Element::sub, {value, most})});
  unsigned sum = make(Element::sum_over, {power}, over);
  result.value = expr->name == "softmax" ? make(Element::div, {power, sum})
                                         : make(Element::add, {most, make(Element::log, {sum})});
  return settled();
}

/// every_head(g, n): a weight for the columns of every head; of_heads(s, n): a number for each head.
FormedOr ModelFormulas::byHeads(const Expr *expr, Formed x, int64_t heads) {
  const nn::Formula::Term term = formula.at(x.value);
  bool isWeight = term.axes == Along::width, every = expr->name == "every_head";
  if (!every && heads == 1 && term.op == Element::leaf && (term.axes == 0 || term.axes == (Along::rows | Along::heads)))
    return Formed{x.value, 0, 1, expr->text};
  if (every && term.op == Element::leaf && term.axes == 0)
    return evaluator.fail(expr->at, "`" + x.text + "` is one number, which every head has without `every_head`");
  if (term.op != Element::leaf || !(isWeight || (!every && isFull(x))))
    return evaluator.fail(expr->at, "`" + expr->name + "` expects a weight of one dimension" +
                                        (every ? "" : " or a tensor") + ", got `" + x.text + "`");
  if (!every && x.width != heads)
    return evaluator.fail(expr->at, "`of_heads` expects a number for each of " + Twine(heads) + " heads, and `" +
                                        x.text + "` is " + Twine(x.width) + " wide");
  unsigned axes = every ? Along::columns : (term.axes & Along::rows) | Along::heads;
  size_t known = 0; // the same tensor may be read in another way, too
  while (known < tensors.size() && !(tensors[known] == tensors[term.leaf] && reads[known] == axes))
    ++known;
  if (known == tensors.size()) {
    mlir::Value tensor = tensors[term.leaf];
    tensors.push_back(tensor), reads.push_back(axes);
  }
  return Formed{formula.leaf(known, axes), every ? x.width * heads : 0, heads, expr->text};
}

FormedOr ModelFormulas::call(const Expr *expr, ArrayRef<Formed> operands, int64_t heads) {
  StringRef name = expr->name;
  if (failed(checkConditions(expr, operands)))
    return failure();
  bool isReduction = is_contained({"sum", "mean", "variance", "logsumexp", "softmax"}, name) ||
                     (is_contained({"max", "min"}, name) && operands.size() == 1);
  bool isByHeads = name == "every_head" || name == "of_heads";
  size_t expected = name == "where" || name == "clamp"                            ? 3
                    : !isReduction && is_contained({"power", "min", "max"}, name) ? 2
                                                                                  : 1;
  if (operands.size() != expected)
    return evaluator.fail(expr->at, "`" + name + "` takes " + Twine(expected) + (expected == 1 ? " value" : " values") +
                                        ", got " + Twine(operands.size()));
  if (isReduction)
    return reduce(expr, operands[0], heads);
  if (isByHeads)
    return byHeads(expr, operands[0], heads);
  if (name == "power")
    return power(expr, operands[0], operands[1]);
  if (name == "max" || name == "min")
    return combine(expr, name == "max" ? Element::max : Element::min, operands[0], operands[1]);
  if (name == "clamp") {
    FormedOr low = combine(expr, Element::max, operands[0], operands[1]);
    return failed(low) ? FormedOr() : combine(expr, Element::min, *low, operands[2]);
  }
  Formed its = operands[0];
  its.text = expr->text;
  if (name != "where") {
    its.value = *function(name, its.value);
    return its;
  }
  Formed a = operands[1], b = operands[2];
  if (failed(join(expr, its, a)) || failed(join(expr, its, b)) || failed(join(expr, a, b)))
    return failure();
  return Formed{make(Element::select, {its.value, a.value, b.value}), std::max({its.width, a.width, b.width}),
                std::max({its.heads, a.heads, b.heads}), expr->text};
}

//===-- Writing -------------------------------------------------------------------------------------------------===//

std::pair<bool, bool> ModelFormulas::readsColumns(Formed value) const {
  std::pair<bool, bool> has;
  for (unsigned each : formula.neededFor(value.value)) {
    const nn::Formula::Term &term = formula.at(each);
    if (term.op != Element::leaf || term.axes != Along::all)
      continue;
    mlir::Type its = cast<RankedTensorType>(tensors[term.leaf].getType()).getElementType();
    (its == element ? has.second : has.first) = true;
  }
  return has;
}

/// Columns are in the type of sums, and a formula reads full tensors of one type.
LogicalResult ModelFormulas::checkElements(const Expr *expr, Formed value) {
  auto [hasColumn, hasOther] = readsColumns(value);
  if (!hasColumn || (!hasOther && !isFull(value)))
    return success();
  std::string sums, own;
  raw_string_ostream(sums) << nn::sumType(element);
  raw_string_ostream(own) << element;
  return evaluator.fail(expr->at, "`" + value.text + "` reads a column with several values a token, which are " + sums +
                                      (hasOther ? ", together with tensors that are " : ", and is written as ") + own +
                                      "; reduce them to one number for each token first, as in sum(..)");
}

FailureOr<nn::MapOp> ModelFormulas::map(const Expr *expr, Formed value, unsigned axes) {
  auto isLeaf = [&](unsigned each) { return formula.at(each).op == Element::leaf; };
  if (int64_t count = count_if(formula.neededFor(value.value), isLeaf); count > kMostTensors)
    return evaluator.fail(expr->at,
                          "this formula reads " + Twine(count) + " tensors; expected at most " + Twine(kMostTensors));
  if (failed(checkElements(expr, value)))
    return failure();
  SmallVector<nn::Formula::Made> gives = {{value.value, axes}};
  for (unsigned row : nn::rowsToKeep(formula, value.value))
    gives.push_back({row, formula.at(row).axes});
  return nn::createMap(builder, evaluator.location(expr->at), formula, tensors, reads, gives, value.heads);
}

FailureOr<mlir::Value> ModelFormulas::store(const Expr *expr, Formed value, unsigned axes) {
  mlir::Value &tensor = made[value.value];
  if (!tensor) {
    auto map = this->map(expr, value, axes);
    if (failed(map))
      return failure();
    tensor = map->getMade()[0];
  }
  return tensor;
}

FormedOr ModelFormulas::written(const Expr *expr, Formed row) {
  FailureOr<mlir::Value> value = store(expr, row, Along::rows);
  if (failed(value))
    return failure();
  tensors.push_back(*value), reads.push_back(Along::rows);
  return Formed{formula.leaf(tensors.size() - 1, Along::rows), 0, 1, row.text};
}

FailureOr<mlir::Value> ModelFormulas::write(const Expr *expr, Formed value, StringRef reader) {
  unsigned axes = axesOf(value);
  if (formula.at(value.value).op == Element::leaf && isFull(value))
    return failed(checkElements(expr, value)) ? FailureOr<mlir::Value>() : tensors[formula.at(value.value).leaf];
  if (isCondition(value))
    return evaluator.fail(expr->at, "`" + value.text + "` is a condition; only where(condition, x, y) reads one");
  if (!(axes & Along::rows))
    return evaluator.fail(expr->at,
                          "`" + value.text + "` is made of weights and numbers alone; a formula has a tensor");
  if (!(axes & Along::columns))
    return evaluator.fail(expr->at, "`" + value.text + "` has one number for each " +
                                        (axes & Along::heads ? "head of each token" : "token") + ", and " + reader +
                                        " takes a tensor with a width");
  return store(expr, value, Along::all);
}
