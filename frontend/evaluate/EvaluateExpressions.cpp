// Evaluates expressions: operators and lists with Python's meaning.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/evaluate/Evaluator.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/SaveAndRestore.h"
#include <cmath>

using namespace llvm;
using namespace pp;

//===-- Operators -----------------------------------------------------------------------------------------------===//

LogicalResult Evaluator::spend(SMLoc at, int64_t count) {
  if (count > budget.steps - steps)
    return stop(at, "the schedule has taken " + Twine(budget.steps) +
                        " evaluation steps, the limit (`--max-steps`); is there a loop without an end?");
  steps += count;
  return reserve(at, 0);
}

LogicalResult Evaluator::reserve(SMLoc at, int64_t more) {
  if (more <= (budget.bytes - Value::listBytes - actionBytes) / int64_t(sizeof(Value)))
    return success();
  return stop(at, "the lists and actions of the schedule take more than " + Twine(budget.bytes / 1'000'000) +
                      " MB here, the limit (`--max-megabytes`)");
}

LogicalResult Evaluator::reserveOne(SMLoc at, const Value::List &items) {
  return items.size() < items.capacity() ? success() : reserve(at, 2 * int64_t(items.size()));
}

LogicalResult Evaluator::checkNesting(SMLoc at, unsigned nesting) {
  return nesting <= 100 ? success() : fail(at, "lists are nested more than 100 deep here");
}

// Eight items are compared in a step; whoever takes them all has no step left.
int64_t Evaluator::comparisonsLeft() {
  int64_t left = budget.steps - steps;
  return left < INT64_MAX / 8 - 1 ? (left + 1) * 8 : INT64_MAX;
}

FailureOr<int> Evaluator::order(SMLoc at, const Twine &word, const Value &a, const Value &b) {
  int64_t most = comparisonsLeft(), left = most;
  auto types = a.unlike(b, left);
  int order = a.compare(b, left);
  if (failed(spend(at, (most - left) / 8)))
    return failure();
  if (types)
    return fail(at, word + " compares " + types->first + " with " + types->second);
  return order;
}

LogicalResult Evaluator::spendAction(SMLoc at, int64_t bytes) {
  if (actions == budget.actions)
    return stop(at, "the schedule has emitted " + Twine(budget.actions) +
                        " actions, the limit (`--max-actions`); is there a loop without an end?");
  ++actions;
  actionBytes += bytes;
  return reserve(at, 0);
}

LogicalResult Evaluator::checkCount(SMLoc at, const Twine &what, int64_t count) {
  if (count <= budget.actions)
    return success();
  return fail(at, Twine(count) + " " + what + " need an action each; the limit is " + Twine(budget.actions) +
                      " (`--max-actions`)");
}

LogicalResult Evaluator::checkDepth(SMLoc at) {
  return depth < 6000 ? success() : stop(at, "calls, blocks and operators are nested more than 6000 deep here");
}

FailureOr<Value> Evaluator::evaluate(const Expr *expr, Scope &scope) {
  if (failed(spend(expr->at)) || failed(checkDepth(expr->at)))
    return failure();
  SaveAndRestore deeper(depth, depth + 1);
  switch (expr->kind) {
  case Expr::Integer:
    return Value(expr->integer);
  case Expr::Number:
    return Value(expr->number);
  case Expr::String:
    return Value(expr->name);
  case Expr::Boolean:
    return Value(expr->integer != 0);
  case Expr::Variable:
    return variable(expr, scope);
  case Expr::Compare:
    return compare(expr, scope);
  case Expr::Index:
    return index(expr, scope);
  case Expr::Range:
    return range(expr, scope);
  case Expr::Call:
    return call(expr, scope, /*asStatement=*/false);
  case Expr::Negate:
  case Expr::Add:
  case Expr::Subtract:
  case Expr::Multiply:
  case Expr::Divide:
  case Expr::Quotient:
  case Expr::Modulo:
    return arithmetic(expr, scope);
  default:
    return evaluateOperands(expr, scope);
  }
}

// Evaluates operators that choose which of their operands are evaluated, and lists.
FailureOr<Value> Evaluator::evaluateOperands(const Expr *expr, Scope &scope) {
  ArrayRef<Expr *> operands = expr->operands;
  switch (expr->kind) {
  case Expr::Conditional: {
    FailureOr<bool> condition = evaluateBool(operands[0], scope, "`if`");
    if (failed(condition))
      return failure();
    return evaluate(operands[*condition ? 1 : 2], scope);
  }
  case Expr::Not: {
    FailureOr<bool> value = evaluateBool(operands[0], scope, "`not`");
    if (failed(value))
      return failure();
    return Value(!*value);
  }
  case Expr::And:
  case Expr::Or: {
    StringRef word = expr->kind == Expr::And ? "beside `and`" : "beside `or`";
    FailureOr<bool> left = evaluateBool(operands[0], scope, word);
    if (failed(left))
      return failure();
    if (*left == (expr->kind == Expr::Or))
      return Value(*left);
    FailureOr<bool> right = evaluateBool(operands[1], scope, word);
    if (failed(right))
      return failure();
    return Value(*right);
  }
  case Expr::List: {
    Value::List items;
    for (Expr *operand : operands) {
      FailureOr<Value> item = evaluate(operand, scope);
      if (failed(item) || failed(checkNesting(operand->at, item->nesting() + 1)))
        return failure();
      items.push_back(std::move(*item));
    }
    return Value(std::move(items));
  }
  default: {
    Value::List items;
    if (failed(comprehend(expr, 0, scope, items)))
      return failure();
    return Value(std::move(items));
  }
  }
}

FailureOr<bool> Evaluator::evaluateBool(const Expr *expr, Scope &scope, StringRef after) {
  FailureOr<Value> value = evaluate(expr, scope);
  if (failed(value))
    return failure();
  if (auto *truth = value->asBool())
    return *truth;
  StringRef where = after.starts_with("`") ? "after " : "";
  return fail(expr->at, "expected a bool " + where + after + ", got " + value->type() + " " + value->text());
}

FailureOr<int64_t> Evaluator::evaluateInt(const Expr *expr, Scope &scope, const Twine &what) {
  FailureOr<Value> value = evaluate(expr, scope);
  if (failed(value))
    return failure();
  if (auto *count = value->asInt())
    return *count;
  return fail(expr->at, "expected an int " + what + ", got " + value->type() + " " + value->text());
}

FailureOr<double> Evaluator::evaluateNumber(const Expr *expr, Scope &scope) {
  FailureOr<Value> value = evaluate(expr, scope);
  if (failed(value))
    return failure();
  if (auto *count = value->asInt())
    return double(*count);
  if (auto *exact = value->asNumber())
    return *exact;
  return fail(expr->at, "expected a number, got " + value->type() + " " + value->text());
}

static int64_t floorDivide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

// The result, or nullopt where it does not fit in 64 bits. The divisor is not 0.
static std::optional<int64_t> calculate(Expr::Kind kind, int64_t a, int64_t b) {
  int64_t result;
  switch (kind) {
  case Expr::Add:
    return AddOverflow(a, b, result) ? std::nullopt : std::optional(result);
  case Expr::Subtract:
    return SubOverflow(a, b, result) ? std::nullopt : std::optional(result);
  case Expr::Multiply:
    return MulOverflow(a, b, result) ? std::nullopt : std::optional(result);
  case Expr::Divide:
    return b == -1 ? calculate(Expr::Subtract, 0, a) : std::optional(floorDivide(a, b));
  default:
    return b == -1 ? 0 : a - floorDivide(a, b) * b;
  }
}

static double calculate(Expr::Kind kind, double a, double b) {
  switch (kind) {
  case Expr::Add:
    return a + b;
  case Expr::Subtract:
    return a - b;
  case Expr::Multiply:
    return a * b;
  case Expr::Divide:
    return std::floor(a / b);
  case Expr::Quotient:
    return a / b;
  default:
    return a - std::floor(a / b) * b;
  }
}

static std::optional<double> asAnyNumber(const Value &value) {
  if (auto *count = value.asInt())
    return *count;
  return value.asNumber() ? std::optional(*value.asNumber()) : std::nullopt;
}

FailureOr<Value> Evaluator::arithmetic(const Expr *expr, Scope &scope) {
  FailureOr<Value> left = expr->kind == Expr::Negate ? Value(int64_t(0)) : evaluate(expr->operands[0], scope);
  if (failed(left))
    return failure();
  FailureOr<Value> right = evaluate(expr->operands.back(), scope);
  if (failed(right))
    return failure();
  if (expr->kind == Expr::Add && left->asList() && right->asList())
    return concatenate(expr->at, std::move(*left), *right);
  return arithmetic(expr, *left, *right);
}

// A list that nobody else has grows in place.
FailureOr<Value> Evaluator::concatenate(SMLoc at, Value list, const Value &more) {
  size_t size = list.asList()->size(), added = more.asList()->size();
  bool fits = !list.isShared() && list.asList()->capacity() - size >= added;
  if (failed(spend(at, int64_t((list.isShared() ? size / 8 : 0) + added))) ||
      (!fits && failed(reserve(at, int64_t(2 * (size + added))))))
    return failure();
  Value::List &items = list.ownItems();
  items.insert(items.end(), more.asList()->begin(), more.asList()->end());
  list.deepen(more.nesting());
  return list;
}

FailureOr<Value> Evaluator::arithmetic(const Expr *expr, const Value &left, const Value &right) {
  bool negates = expr->kind == Expr::Negate;
  StringRef op = negates ? "-" : expr->name;
  Expr::Kind kind = negates ? Expr::Subtract : expr->kind;
  if (left.asInt() && right.asInt() && kind != Expr::Quotient) {
    int64_t a = *left.asInt(), b = *right.asInt();
    if ((kind == Expr::Divide || kind == Expr::Modulo) && b == 0)
      return fail(expr->at, "division by zero in `" + op + "`");
    if (std::optional<int64_t> result = calculate(kind, a, b))
      return Value(*result);
    return fail(expr->at, "`" + op + "` of " + Twine(a) + " and " + Twine(b) + " does not fit in 64 bits");
  }
  std::optional<double> a = asAnyNumber(left), b = asAnyNumber(right);
  if (a && b && *b == 0 && (kind == Expr::Divide || kind == Expr::Quotient || kind == Expr::Modulo))
    return fail(expr->at, "division by zero in `" + op + "`");
  if (a && b) {
    Value result(calculate(kind, *a, *b));
    if (std::isfinite(*result.asNumber()))
      return result;
    return fail(expr->at, "`" + op + "` of " + left.text() + " and " + right.text() + " does not fit in a number");
  }
  if (negates)
    return fail(expr->at, "`-` expects an int, got " + right.type());
  return fail(expr->at, "`" + op + "` expects two ints, got " + left.type() + " and " + right.type());
}

FailureOr<Value> Evaluator::range(const Expr *expr, Scope &scope) {
  FailureOr<Value> from = evaluate(expr->operands[0], scope), to = failure();
  if (failed(from) || failed(to = evaluate(expr->operands[1], scope)))
    return failure();
  if (!from->asInt() || !to->asInt())
    return fail(expr->at, "`..` expects two ints, got " + from->type() + " and " + to->type());
  return countUp(expr->at, *from->asInt(), *to->asInt());
}

FailureOr<Value> Evaluator::countUp(SMLoc at, int64_t begin, int64_t end) {
  end = std::max(begin, end);
  int64_t size = calculate(Expr::Subtract, end, begin).value_or(INT64_MAX);
  if (failed(reserve(at, size)) || failed(spend(at, size)))
    return failure();
  Value::List items;
  items.reserve(end - begin);
  for (int64_t i = begin; i < end; ++i)
    items.emplace_back(i);
  return Value(std::move(items));
}

static bool ordered(Expr::Comparison kind, int order) {
  switch (kind) {
  case Expr::Less:
    return order < 0;
  case Expr::LessEqual:
    return order <= 0;
  case Expr::Greater:
    return order > 0;
  case Expr::GreaterEqual:
    return order >= 0;
  case Expr::Unequal:
    return order != 0;
  default:
    return order == 0;
  }
}

FailureOr<bool> Evaluator::contains(SMLoc at, const Value::List &items, const Value &wanted) {
  int64_t most = comparisonsLeft(), left = most;
  std::optional<std::pair<StringRef, StringRef>> types;
  for (const Value &item : items)
    if (types = wanted.unlike(item, left); types || left <= 0)
      break;
  bool found = !types && any_of(items, [&](const Value &item) { return item.compare(wanted, left) == 0; });
  if (failed(spend(at, (most - left) / 8)))
    return failure();
  if (types)
    return fail(at, "`in` compares " + types->first + " with " + types->second);
  return found;
}

FailureOr<Value> Evaluator::compare(const Expr *expr, Scope &scope) {
  static const char *const words[] = {"==", "!=", "<", "<=", ">", ">=", "in"};
  FailureOr<Value> left = evaluate(expr->operands[0], scope);
  for (auto [kind, operand] : zip(expr->comparisons, expr->operands.drop_front())) {
    if (failed(left))
      return failure();
    FailureOr<Value> right = evaluate(operand, scope);
    if (failed(right))
      return failure();
    bool holds;
    if (kind == Expr::In) {
      if (!right->asList())
        return fail(expr->at, "expected a list after `in`, got " + right->type() + " " + right->text());
      FailureOr<bool> found = contains(expr->at, *right->asList(), *left);
      if (failed(found))
        return failure();
      holds = *found;
    } else if (kind == Expr::Equal || kind == Expr::Unequal) {
      FailureOr<int> found = order(expr->at, Twine("`") + words[kind] + "`", *left, *right);
      if (failed(found))
        return failure();
      holds = ordered(kind, *found);
    } else {
      std::optional<double> a = asAnyNumber(*left), b = asAnyNumber(*right);
      if (!a || !b)
        return fail(expr->at,
                    Twine("`") + words[kind] + "` expects two ints, got " + left->type() + " and " + right->type());
      auto *i = left->asInt(), *j = right->asInt();
      holds = ordered(kind, i && j ? (*i < *j ? -1 : *i > *j) : *a < *b ? -1 : *a > *b);
    }
    if (!holds)
      return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

LogicalResult Evaluator::checkedIndex(SMLoc at, const Value &list, const Value &index) {
  if (!list.asList())
    return fail(at, "expected a list before `[`, got " + list.type() + " " + list.text());
  if (!index.asInt())
    return fail(at, "expected an int between `[` and `]`, got " + index.type() + " " + index.text());
  int64_t size = list.asList()->size(), i = *index.asInt();
  if (0 <= i && i < size)
    return success();
  if (size == 0)
    return fail(at, "index " + Twine(i) + " is outside this list, which is empty");
  return fail(at, "index " + Twine(i) + " is outside this list of " + Twine(size) + ", 0 to " + Twine(size - 1));
}

FailureOr<Value> Evaluator::index(const Expr *expr, Scope &scope) {
  FailureOr<Value> list = evaluate(expr->operands[0], scope);
  if (failed(list))
    return failure();
  FailureOr<Value> index = evaluate(expr->operands[1], scope);
  if (failed(index) || failed(checkedIndex(expr->at, *list, *index)))
    return failure();
  return (*list->asList())[*index->asInt()];
}

//===-- Lists ---------------------------------------------------------------------------------------------------===//

LogicalResult Evaluator::bindPattern(const Generator &generator, const Value &item, Scope &scope) {
  if (!generator.unpacks) {
    scope.bind(generator.names[0], item);
    return success();
  }
  const Value::List *items = item.asList();
  SMLoc at = generator.names[0].at;
  if (!items)
    return fail(at, "expected a list of " + Twine(generator.names.size()) + " to unpack, got " + item.type() + " " +
                        item.text());
  if (items->size() != generator.names.size())
    return fail(at, "expected a list of " + Twine(generator.names.size()) + " to unpack, got " + item.text() + " of " +
                        Twine(items->size()));
  for (auto [name, value] : zip(generator.names, *items))
    scope.bind(name, value);
  return success();
}

LogicalResult Evaluator::comprehend(const Expr *expr, unsigned depth, Scope &scope, Value::List &items) {
  if (depth == expr->generators.size()) {
    if (expr->filter) {
      FailureOr<bool> wanted = evaluateBool(expr->filter, scope, "`if`");
      if (failed(wanted) || !*wanted)
        return LogicalResult(wanted);
    }
    FailureOr<Value> item = evaluate(expr->operands[0], scope);
    if (failed(item) || failed(checkNesting(expr->at, item->nesting() + 1)) || failed(reserveOne(expr->at, items)))
      return failure();
    items.push_back(std::move(*item));
    return success();
  }
  const Generator &generator = expr->generators[depth];
  FailureOr<Value> list = evaluate(generator.list, scope);
  if (failed(list))
    return failure();
  if (!list->asList())
    return fail(generator.list->at, "expected a list after `in`, got " + list->type() + " " + list->text());
  for (const Value &item : *list->asList()) {
    Scope inner(&scope);
    if (failed(bindPattern(generator, item, inner)) || failed(comprehend(expr, depth + 1, inner, items)))
      return failure();
  }
  return success();
}
