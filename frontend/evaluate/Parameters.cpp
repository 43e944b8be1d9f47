// Binds the parameters of schedules, models and training programs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/evaluate/Parameters.h"

using namespace llvm;
using namespace pp;

const Parameter *Callee::find(StringRef text) const {
  for (const Parameter &parameter : parameters)
    if (parameter.name.text == text || (!parameter.role.empty() && parameter.role == text))
      return &parameter;
  return nullptr;
}

std::string Callee::nearest(StringRef text) const {
  SmallVector<StringRef> names;
  for (const Parameter &parameter : parameters)
    names.push_back(parameter.role.empty() ? parameter.name.text : parameter.role);
  return didYouMean(text, names);
}

namespace {
/// Finds which argument of a call belongs to which parameter.
class ArgumentBinder {
public:
  ArgumentBinder(Evaluator &evaluator, const Callee &callee, Scope &around, ArrayRef<Override> overrides, Scope &into)
      : evaluator(evaluator), callee(callee), around(around), overrides(overrides), into(into),
        arguments(callee.parameters.size()) {}

  LogicalResult assign(const Expr *call) {
    if (!call || call->kind != Expr::Call)
      return success();
    std::string declared = ("`" + callee.name.text + "` is declared here").str();
    bool isRight = true;
    for (auto [i, label, value] : enumerate(call->labels, call->operands)) {
      size_t number = i;
      if (!label.text.empty()) {
        const Parameter *found = callee.find(label.text);
        if (!found) {
          isRight = succeeded(evaluator.fail(label.at,
                                             callee.kind + " `" + callee.name.text + "` has no parameter `" +
                                                 label.text + "`" + callee.nearest(label.text),
                                             callee.name.at, declared));
          continue;
        }
        number = found - callee.parameters.begin();
      }
      if (number >= arguments.size())
        return evaluator.fail(value->at,
                              "`" + callee.name.text + "` takes " + Twine(arguments.size()) + " values, got " +
                                  Twine(call->operands.size()),
                              callee.name.at, declared);
      if (arguments[number])
        isRight = succeeded(evaluator.fail(value->at,
                                           "parameter `" + callee.parameters[number].name.text + "` is given twice",
                                           arguments[number]->at, "first given here"));
      arguments[number] = value;
    }
    return success(isRight);
  }

  /// A parameter whose value is wrong is wrong itself, and the others are bound.
  LogicalResult bind() {
    bool isRight = true;
    for (auto [parameter, argument] : zip(callee.parameters, arguments)) {
      if (into.find(parameter.name.text)) {
        isRight = succeeded(evaluator.fail(parameter.name.at, "`" + parameter.name.text + "` is defined twice"));
        continue;
      }
      SMLoc at = parameter.name.at;
      FailureOr<Value> value = valueOf(parameter, argument, at);
      if (failed(value) || failed(check(parameter, *value, at))) {
        bindWrong(parameter);
        isRight = false;
        continue;
      }
      into.bind(parameter.name, *value);
      if (at.isValid() && at != parameter.name.at && !(argument && at == argument->at))
        into.bindings.back().given = at;
    }
    return success(isRight);
  }

  /// Nothing is said of what a parameter is for whose value is wrong, or not known.
  void bindWrong(const Parameter &parameter) {
    into.bindings.push_back({parameter.name, Value(), false, nullptr, {}, /*isWrong=*/true});
  }

private:
  FailureOr<Value> valueOf(const Parameter &parameter, const Expr *argument, SMLoc &at) {
    for (const Override &given : reverse(overrides)) // the last of a name counts
      if (given.owner == callee.kind && callee.find(given.parameter) == &parameter) {
        at = given.valueAt.isValid() ? given.valueAt : at;
        return given.value;
      }
    if (argument) {
      at = originOf(argument, around);
      return evaluator.evaluate(argument, around);
    }
    if (parameter.value) {
      SMLoc given = givenOf(parameter.value, into);
      at = given.isValid() ? given : at;
      return evaluator.evaluate(parameter.value, into);
    }
    StringRef shown = parameter.role.empty() ? parameter.name.text : parameter.role;
    if (evaluator.attempt)
      for (const auto &[name, size] : evaluator.attempt->sizes)
        if (name == shown)
          return Value(size);
    return evaluator.fail(at, "parameter `" + shown + "` of `" + callee.name.text + "` has no value; `-D " + shown +
                                  "=..` gives it one");
  }

  LogicalResult check(const Parameter &parameter, const Value &value, SMLoc at) {
    StringRef shown = parameter.role.empty() ? parameter.name.text : parameter.role;
    auto counts = [](const Value &item) { return item.asInt() && *item.asInt() >= 1; };
    if (parameter.role == "slices" && value.asList()) { // their lengths
      if (value.asList()->empty() || !all_of(*value.asList(), counts))
        return evaluator.fail(at, "`slices` must be an int or a list of lengths, each at least 1, got " + value.text());
      return success();
    }
    if (!parameter.role.empty()) {
      if (!counts(value))
        return evaluator.fail(at, "`" + shown + "` must be an int of at least 1, got " + value.text());
      return evaluator.checkCount(at, shown, *value.asInt());
    }
    // A default shows the type: a misspelt `-D layers=8x` ends here and not in the middle of a formula.
    if (!parameter.value)
      return success();
    FailureOr<Value> normal = evaluator.evaluate(parameter.value, into);
    if (failed(normal))
      return failure();
    bool numbers = (value.asInt() || value.asNumber()) && (normal->asInt() || normal->asNumber());
    if (value.sameTypeAs(*normal) || numbers)
      return success();
    return evaluator.fail(at, "parameter `" + shown + "` of `" + callee.name.text + "` expects " + normal->type() +
                                  " like its default " + normal->text() + ", got " + value.type() + " " + value.text());
  }

  Evaluator &evaluator;
  const Callee &callee;
  Scope &around;
  ArrayRef<Override> overrides;
  Scope &into;
  SmallVector<const Expr *> arguments;
};
} // namespace

LogicalResult pp::bindParameters(Evaluator &evaluator, const Callee &callee, const Expr *call, Scope &around,
                                 ArrayRef<Override> overrides, Scope &into) {
  ArgumentBinder binder(evaluator, callee, around, overrides, into);
  if (succeeded(binder.assign(call)))
    return binder.bind();
  for (const Parameter &parameter : callee.parameters)
    binder.bindWrong(parameter);
  return failure();
}

//===-- What nothing reads --------------------------------------------------------------------------------------===//

static bool isSet(ArrayRef<Override> overrides, const Callee &callee, const Parameter *parameter) {
  return any_of(overrides, [&](const Override &given) {
    return given.owner == callee.kind && callee.find(given.parameter) == parameter;
  });
}

/// The names in the arguments of a call, but for those whose parameters the command line sets.
static void addArguments(const ChosenCall &chosen, ArrayRef<Override> overrides, SmallVectorImpl<StringRef> &names) {
  if (!chosen.call || chosen.call->kind != Expr::Call)
    return;
  ArrayRef<Parameter> parameters = chosen.callee.parameters;
  for (auto [i, label, value] : enumerate(chosen.call->labels, chosen.call->operands)) {
    const Parameter *parameter = !label.text.empty()     ? chosen.callee.find(label.text)
                                 : i < parameters.size() ? &parameters[i]
                                                         : nullptr;
    if (!isSet(overrides, chosen.callee, parameter))
      addNames(value, names);
  }
}

/// The parameters of the training program that what is chosen reads, also through the defaults of others.
static SmallVector<StringRef> namesRead(const Train &train, ArrayRef<ChosenCall> chosen, ArrayRef<Override> overrides) {
  SmallVector<StringRef> names;
  for (const ChosenCall &call : chosen)
    addArguments(call, overrides, names);
  for (const Option &option : train.options) {
    addNames(option.chooser, names);
    if (!option.chooser && !is_contained({"model", "schedule", "cluster"}, option.name.text))
      addNames(option.value, names);
    for (const Expr *value : option.values)
      addNames(value, names);
  }
  for (const RecomputeStatement *recompute : train.recomputes) {
    for (const Expr *piece : recompute->pieces)
      addNames(piece, names);
    for (const Expr *whole : recompute->of)
      addNames(whole, names);
  }
  Callee callee{"train", train.name, train.parameters};
  for (const Parameter &parameter : reverse(train.parameters))
    if (is_contained(names, parameter.name.text) && !isSet(overrides, callee, &parameter))
      addNames(parameter.value, names);
  return names;
}

void pp::warnOfUnread(Source &source, const Train &train, ArrayRef<ChosenCall> chosen, ArrayRef<Override> overrides) {
  SmallVector<StringRef> read = namesRead(train, chosen, overrides);
  for (const Override &given : overrides) {
    if (given.owner != "train" || is_contained(read, given.parameter))
      continue;
    mlir::InFlightDiagnostic warning = mlir::emitWarning(source.location(given.at))
                                       << "`" << given.parameter << "` has no effect: nothing that is chosen reads it";
    for (const Option &option : train.options) {
      SmallVector<StringRef> readers;
      for (const Choice &choice : option.choices) {
        SmallVector<StringRef> names;
        addNames(choice.call, names);
        if (is_contained(names, given.parameter))
          readers.push_back(choice.labels.front().text);
      }
      if (!readers.empty())
        warning.attachNote(source.location(option.name.at)) << "of the " << option.name.text << "s, " << listed(readers)
                                                            << (readers.size() == 1 ? " reads it" : " read it");
    }
  }
}
