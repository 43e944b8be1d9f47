// Evaluates names and calls: of the schedule's functions, its pieces, and what is built in.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/evaluate/Evaluator.h"
#include "llvm/Support/MathExtras.h"
#include <cmath>

using namespace llvm;
using namespace pp;

//===-- Names ---------------------------------------------------------------------------------------------------===//

Binding *Scope::find(StringRef name) {
  for (Binding &binding : reverse(bindings))
    if (binding.name.text.data() == name.data())
      return &binding;
  return nullptr;
}

static constexpr const char *kBuiltins[] = {"min",       "max",          "sum",         "len",          "abs",
                                            "power",     "sorted",       "reversed",    "unique",       "letters",
                                            "layers_of", "rope_default", "rope_linear", "rope_dynamic", "rope_llama3",
                                            "rope_yarn", "rope_longrope"};

LogicalResult Evaluator::unknown(StringRef name, SMLoc at, Scope &scope) {
  SmallVector<StringRef> names(std::begin(kBuiltins), std::end(kBuiltins));
  for (Scope *around : {&scope, &globals})
    for (; around; around = around->parent)
      for (Binding &binding : around->bindings)
        names.push_back(binding.name.text);
  addNames(names);
  if (isIncomplete)
    return failure();
  bool isUnit = name.size() == 1 && StringRef("fbiwru").contains(name.front());
  return fail(at, "`" + name + "` is not defined" +
                      (isUnit ? "; units have capital letters: `" + name.upper() + "(..)`" : didYouMean(name, names)));
}

FailureOr<Value> Evaluator::variable(const Expr *expr, Scope &scope) {
  Binding *found = nullptr;
  for (Scope *around = &scope; around && !found; around = around->parent)
    found = around->find(expr->name);
  if (!found) {
    if (std::optional<FailureOr<Value>> value = predefined(expr->name, expr->at))
      return *value;
    found = globals.find(expr->name);
  }
  if (!found)
    return unknown(expr->name, expr->at, scope);
  if (found->isWrong)
    return failure();
  if (found->function)
    return fail(expr->at, "`" + expr->name + "` is a function; call it as `" + expr->name + "(..)`", found->name.at,
                "`" + expr->name + "` is declared here");
  return found->value;
}

//===-- Calls ---------------------------------------------------------------------------------------------------===//

FailureOr<Value> Evaluator::call(const Expr *expr, Scope &scope, bool asStatement) {
  for (Scope *around = &scope; around; around = around->parent) {
    Binding *found = around->find(expr->name);
    if (!found)
      continue;
    if (found->isWrong)
      return failure();
    if (!found->function)
      return fail(expr->at,
                  "`" + expr->name + "` is " + found->value.type() + " " + found->value.text() + ", not a function",
                  found->name.at, "`" + expr->name + "` is defined here");
    return callFunction(found->function, around, expr, scope, asStatement);
  }
  if (std::optional<FailureOr<Value>> piece = pieceCall(expr, scope))
    return *piece;
  if (Binding *found = globals.find(expr->name))
    return found->isWrong ? FailureOr<Value>(failure())
                          : callFunction(found->function, &globals, expr, scope, asStatement);
  if (is_contained(kBuiltins, expr->name))
    return callBuiltin(expr, scope);
  return unknown(expr->name, expr->at, scope);
}

FailureOr<Value> Evaluator::callFunction(const Function *function, Scope *around, const Expr *expr, Scope &scope,
                                         bool asStatement) {
  StringRef name = function->name.text;
  auto declared = [&] { return ("`" + name + "` is declared here").str(); };
  size_t expected = function->parameters.size(), got = expr->operands.size();
  if (expected != got)
    return fail(expr->at,
                "`" + name + "` takes " + Twine(expected) + (expected == 1 ? " value" : " values") + ", got " +
                    Twine(got),
                function->name.at, declared());
  if (callers.size() == 100)
    return stop(expr->at, "`" + name + "` calls itself 100 deep; the limit is 100", function->name.at, declared());
  Scope inner(around, function);
  for (auto [parameter, operand] : zip(function->parameters, expr->operands)) {
    FailureOr<Value> value = evaluate(operand, scope);
    if (failed(value))
      return failure();
    inner.bind(parameter, std::move(*value));
  }
  callers.push_back({expr->at, std::nullopt});
  expressionDepth += !asStatement;
  FailureOr<Value> result = failure();
  if (function->value) {
    result = evaluate(function->value, inner);
  } else {
    FailureOr<Flow> flow = runBlock(function->body, inner);
    if (succeeded(flow))
      result = *flow == Flow::Return ? std::move(returned) : Value();
  }
  expressionDepth -= !asStatement;
  callers.pop_back();
  if (succeeded(result) && !asStatement && result->type() == "nothing")
    return fail(expr->at, "`" + name + "` ends without `return`, so it has no value here", function->name.at,
                declared());
  return result;
}

// The smallest or largest int, or the sum, of `items`.
static std::optional<int64_t> fold(StringRef name, ArrayRef<Value> items) {
  int64_t result = name == "sum" ? 0 : *items[0].asInt();
  for (const Value &item : items) {
    int64_t value = *item.asInt();
    if (name == "sum" && AddOverflow(result, value, result))
      return std::nullopt;
    if (name != "sum")
      result = name == "min" ? std::min(result, value) : std::max(result, value);
  }
  return result;
}

FailureOr<Value> Evaluator::callBuiltin(const Expr *expr, Scope &scope) {
  StringRef name = expr->name;
  Value::List values;
  for (Expr *operand : expr->operands) {
    FailureOr<Value> value = evaluate(operand, scope);
    if (failed(value))
      return failure();
    values.push_back(std::move(*value));
  }
  if (name.starts_with("rope_"))
    return ropeTable(expr, values);
  if (name == "power")
    return power(expr, values);
  bool folds = name == "min" || name == "max" || name == "sum";
  if (folds && (values.size() != 1 || values[0].asInt()) && name != "sum")
    values = {Value(std::move(values))};
  if (values.size() != 1)
    return fail(expr->at, "`" + name + "` takes 1 value, got " + Twine(values.size()));
  Value &value = values[0];
  if (name == "abs") {
    if (!value.asInt() || *value.asInt() == INT64_MIN)
      return fail(expr->at, "`abs` expects an int, got " + value.type() + " " + value.text());
    return Value(std::abs(*value.asInt()));
  }
  if (name == "layers_of")
    return layersOf(expr, scope, value);
  if (name == "letters") {
    const StringRef *text = value.asString();
    if (!text)
      return fail(expr->at, "`letters` expects a string, got " + value.type() + " " + value.text());
    if (failed(spend(expr->at, text->size())) || failed(reserve(expr->at, text->size())))
      return failure();
    Value::List items;
    for (size_t i = 0; i < text->size(); ++i)
      items.push_back(Value(source.intern(text->substr(i, 1))));
    return Value(std::move(items));
  }
  if (!value.asList())
    return fail(expr->at, "`" + name + "` expects a list, got " + value.type() + " " + value.text());
  if (failed(spend(expr->at, value.asList()->size())) || failed(reserve(expr->at, value.asList()->size())))
    return failure();
  if (name == "len")
    return Value(int64_t(value.asList()->size()));
  if (folds) {
    for (const Value &item : *value.asList())
      if (!item.asInt())
        return fail(expr->at, "`" + name + "` expects ints, got " + item.type() + " " + item.text());
    if (value.asList()->empty() && name != "sum")
      return fail(expr->at, "`" + name + "` of nothing has no value");
    if (std::optional<int64_t> result = fold(name, *value.asList()))
      return Value(*result);
    return fail(expr->at, "`sum` does not fit in 64 bits");
  }
  if (name == "sorted")
    return sorted(expr, value);
  if (name == "unique")
    return unique(expr, value);
  Value::List &items = value.ownItems();
  std::reverse(items.begin(), items.end());
  return value;
}

FailureOr<Value> Evaluator::power(const Expr *expr, ArrayRef<Value> values) {
  if (values.size() != 2)
    return fail(expr->at, "`power` takes 2 values, got " + Twine(values.size()) + ": `power(x, exponent)`");
  auto numberOf = [](const Value &value) {
    return value.asInt() ? double(*value.asInt()) : value.asNumber() ? *value.asNumber() : std::nan("");
  };
  double made = std::pow(numberOf(values[0]), numberOf(values[1]));
  if (!(numberOf(values[0]) > 0) || !std::isfinite(made))
    return fail(expr->at, "`power` expects a number above 0 and an exponent, got " + values[0].text() + " and " +
                              values[1].text());
  return Value(made);
}

FailureOr<Value> Evaluator::unique(const Expr *expr, const Value &list) {
  Value::List items;
  for (const Value &item : *list.asList()) {
    int64_t most = comparisonsLeft(), left = most;
    bool isNew = none_of(items, [&](const Value &kept) { return kept.compare(item, left) == 0; });
    if (failed(spend(expr->at, (most - left) / 8)))
      return failure();
    if (isNew)
      items.push_back(item);
  }
  return Value(std::move(items));
}

// Any two neighbours of the result are compared with each other, so no value of another type goes unseen.
FailureOr<Value> Evaluator::sorted(const Expr *expr, Value &list) {
  std::optional<std::pair<StringRef, StringRef>> unlike;
  int64_t most = comparisonsLeft(), left = most;
  llvm::stable_sort(list.ownItems(), [&](const Value &a, const Value &b) {
    if (!unlike)
      unlike = a.unlike(b, left);
    return a.compare(b, left) < 0;
  });
  if (failed(spend(expr->at, (most - left) / 8)))
    return failure();
  if (unlike && unlike->second < unlike->first) // not what the algorithm met first
    std::swap(unlike->first, unlike->second);
  if (unlike)
    return fail(expr->at, "`sorted` compares " + unlike->first + " with " + unlike->second);
  return list;
}
