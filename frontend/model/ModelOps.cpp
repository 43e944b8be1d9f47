// Knows the ops of models: what each takes, and how its options are read from a model's text.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/ModelOps.h"
#include "frontend/model/ModelFormulas.h"
#include "llvm/ADT/StringSwitch.h"
#include <cmath>

using namespace llvm;
using namespace pp;

namespace {
struct OpAttribute {
  enum Kind { Count, Number, Flag, Text, Token, Window, Numbers, Limit, Natural, Factor, Runs };
  const char *op, *name;
  Kind kind;
  bool required;
};
} // namespace

static const ModelOp kOps[] = {{"embedding", "tokens, table"},
                               {"positions", "tokens, table"},
                               {"linear", "x, w, bias", 1},
                               {"transpose", "w"},
                               {"opaque", "x, w"},
                               {"layernorm", "x, gain, bias"},
                               {"rmsnorm", "x, gain"},
                               {"rope", "x"},
                               {"attention", "q, k, v"},
                               {"sink", "o, s"},
                               {"conv", "x, w"},
                               {"scan", "q, k, v, decay, beta"},
                               {"gelu", "x"},
                               {"swiglu", "p, q"},
                               {"glu", "p, q"},
                               {"experts", "x, wr, w_gate, w_up, w_down, bias", 2},
                               {"scale", "x"},
                               {"dropout", "x"},
                               {"split", "x"},
                               {"concat", "x, y"},
                               {"pad", "x"},
                               {"cross_entropy", "z, targets"}};

static constexpr OpAttribute kAttributes[] = {{"embedding", "pad", OpAttribute::Token, false},
                                              {"opaque", "flops", OpAttribute::Limit, true},
                                              {"opaque", "keeps", OpAttribute::Count, true},
                                              {"layernorm", "epsilon", OpAttribute::Number, false},
                                              {"rmsnorm", "epsilon", OpAttribute::Number, false},
                                              {"rmsnorm", "heads", OpAttribute::Count, false},
                                              {"rope", "heads", OpAttribute::Count, true},
                                              {"rope", "theta", OpAttribute::Number, false},
                                              {"rope", "style", OpAttribute::Text, false},
                                              {"rope", "table", OpAttribute::Numbers, false},
                                              {"rope", "growth", OpAttribute::Numbers, false},
                                              {"attention", "heads", OpAttribute::Count, true},
                                              {"attention", "kv_heads", OpAttribute::Count, false},
                                              {"attention", "causal", OpAttribute::Flag, true},
                                              {"attention", "window", OpAttribute::Window, false},
                                              {"attention", "scale", OpAttribute::Limit, false},
                                              {"attention", "softcap", OpAttribute::Limit, false},
                                              {"attention", "dropout", OpAttribute::Limit, false},
                                              {"scan", "heads", OpAttribute::Count, true},
                                              {"scan", "key_heads", OpAttribute::Count, false},
                                              {"scan", "delta", OpAttribute::Flag, false},
                                              {"scan", "channels", OpAttribute::Flag, false},
                                              {"gelu", "exact", OpAttribute::Flag, false},
                                              {"positions", "offset", OpAttribute::Natural, false},
                                              {"split", "parts", OpAttribute::Runs, true},
                                              {"split", "periods", OpAttribute::Count, false},
                                              {"concat", "periods", OpAttribute::Count, false},
                                              {"concat", "shared", OpAttribute::Flag, false},
                                              {"pad", "columns", OpAttribute::Count, true},
                                              {"pad", "periods", OpAttribute::Count, false},
                                              {"rmsnorm", "plus", OpAttribute::Natural, false},
                                              {"scale", "factor", OpAttribute::Factor, true},
                                              {"glu", "activation", OpAttribute::Text, false},
                                              {"glu", "limit", OpAttribute::Limit, false},
                                              {"glu", "alpha", OpAttribute::Number, false},
                                              {"dropout", "rate", OpAttribute::Limit, true},
                                              {"glu", "plus", OpAttribute::Factor, false},
                                              {"cross_entropy", "softcap", OpAttribute::Limit, false},
                                              {"cross_entropy", "z_loss", OpAttribute::Limit, false},
                                              {"experts", "top", OpAttribute::Count, true},
                                              {"experts", "renormalise", OpAttribute::Flag, false},
                                              {"experts", "scale", OpAttribute::Number, false},
                                              {"experts", "balance", OpAttribute::Limit, false},
                                              {"experts", "over", OpAttribute::Text, false},
                                              {"experts", "z", OpAttribute::Limit, false},
                                              {"experts", "score", OpAttribute::Text, false},
                                              {"experts", "groups", OpAttribute::Count, false},
                                              {"experts", "top_groups", OpAttribute::Count, false},
                                              {"experts", "rate", OpAttribute::Limit, false},
                                              {"experts", "capacity", OpAttribute::Limit, false},
                                              {"experts", "group_by", OpAttribute::Text, false},
                                              {"experts", "least", OpAttribute::Limit, false},
                                              {"experts", "added", OpAttribute::Limit, false},
                                              {"experts", "on_input", OpAttribute::Flag, false},
                                              {"experts", "activation", OpAttribute::Text, false},
                                              {"experts", "limit", OpAttribute::Limit, false},
                                              {"experts", "alpha", OpAttribute::Number, false},
                                              {"experts", "plus", OpAttribute::Factor, false},
                                              {"experts", "identity", OpAttribute::Natural, false},
                                              {"experts", "jitter", OpAttribute::Limit, false}};

const ModelOp *pp::findModelOp(StringRef name) {
  const ModelOp *op = find_if(kOps, [&](const ModelOp &one) { return one.name == name; });
  return op == std::end(kOps) ? nullptr : op;
}

/// `linear(x, w[, bias])`; a default is that of the op's definition.
std::string ModelOptions::signature(const ModelOp &op) {
  mlir::NamedAttrList defaults;
  StringRef name = op.name == "experts" ? "route" : op.name; // the op that has its options
  mlir::OperationName(("nn." + name).str(), builder.getContext()).populateDefaultAttrs(defaults);
  if (op.name == "experts")
    mlir::OperationName("nn.glu", builder.getContext()).populateDefaultAttrs(defaults);
  SmallVector<StringRef> words;
  op.operands.split(words, ", ");
  std::string text = (op.name + "(").str();
  for (auto [i, word] : enumerate(words))
    text += ((i + op.optional >= words.size() ? "[, " : i ? ", " : "") + word).str();
  text += std::string(op.optional, ']');
  for (const OpAttribute &known : kAttributes) {
    static const char *const kinds[] = {"int", "number", "true|false", "string", "-1",           "0",
                                        "[]",  "number", "0",          "number", "int|[int, ..]"};
    if (known.op != op.name)
      continue;
    text += std::string(", ") + known.name + " = ";
    mlir::Attribute normal = defaults.get(known.name);
    if (StringRef(known.name).ends_with("_heads"))
      text += "heads";
    else if (StringRef(known.name) == "scale" && op.name == "attention")
      text += "1 / sqrt(d)";
    else if (StringRef(known.name) == "dropout" || (StringRef(known.name) == "rate" && !known.required))
      text += "0.0";
    else if (auto number = dyn_cast_or_null<mlir::FloatAttr>(normal))
      text += Value(number.getValueAsDouble()).text();
    else if (auto flag = dyn_cast_or_null<mlir::BoolAttr>(normal); flag && !known.required)
      text += flag.getValue() ? "true" : "false";
    else if (auto count = dyn_cast_or_null<mlir::IntegerAttr>(normal); count && !known.required)
      text += std::to_string(count.getInt());
    else if (auto string = dyn_cast_or_null<mlir::StringAttr>(normal))
      text += Value(string.getValue()).text();
    else
      text += kinds[known.kind];
  }
  return text + ")";
}

LogicalResult ModelOptions::failUnknown(const Expr *expr, bool isFormula) {
  SmallVector<StringRef> names;
  for (const ModelOp &op : kOps)
    names.push_back(op.name);
  bool isKnownElsewhere = is_contained({"sin", "cos", "tan", "round", "floor", "ceil", "topk"}, expr->name);
  if (isFormula && expr->operands.size() <= 2 && (isKnownElsewhere || didYouMean(expr->name, names).empty()))
    return evaluator.fail(expr->at,
                          "`" + expr->name + "` is not a function of formulas" +
                              didYouMean(expr->name, ModelFormulas::functionNames()),
                          expr->at, thereAre(ModelFormulas::functionNames()));
  if (evaluator.globals.find(expr->name))
    return evaluator.fail(expr->at, "`" + expr->name + "` is a function of numbers; an operation of models is expected",
                          expr->at, thereAre(names));
  return evaluator.fail(expr->at, "`" + expr->name + "` is not an operation of models" + didYouMean(expr->name, names),
                        expr->at, thereAre(names) + "; frontend/OPERATIONS.md says what each takes");
}

FailureOr<mlir::Attribute> ModelOptions::read(const Expr *call, Name label, const Expr *expr) {
  const OpAttribute *found = nullptr;
  SmallVector<StringRef> names;
  for (const OpAttribute &known : kAttributes) {
    if (known.op != call->name)
      continue;
    names.push_back(known.name);
    if (known.name == label.text)
      found = &known;
  }
  if (!found)
    return evaluator.fail(label.at,
                          "`" + call->name + "` has no option `" + label.text + "`" + didYouMean(label.text, names));
  FailureOr<Value> value = evaluator.evaluate(expr, parameters);
  if (failed(value))
    return failure();
  if (found->kind == OpAttribute::Numbers)
    return numbers(label, *value, expr->at);
  if (found->kind == OpAttribute::Runs && value->asList())
    return runs(label, *value, expr->at);
  if (found->kind == OpAttribute::Window)
    return checkWindow(label, *value, expr->at);
  mlir::Attribute made;
  if (auto *count = value->asInt();
      count && (found->kind == OpAttribute::Count || found->kind == OpAttribute::Runs) && *count > 0)
    made = builder.getI64IntegerAttr(*count);
  else if (count && found->kind == OpAttribute::Number && *count > 0)
    made = builder.getF64FloatAttr(*count);
  else if (auto *exact = value->asNumber(); exact && found->kind == OpAttribute::Number && *exact > 0)
    made = builder.getF64FloatAttr(*exact);
  else if (found->kind == OpAttribute::Limit && ((count && *count >= 0) || (exact && *exact >= 0)))
    made = builder.getF64FloatAttr(count ? double(*count) : *exact);
  else if (auto *flag = value->asBool(); flag && found->kind == OpAttribute::Flag)
    made = builder.getBoolAttr(*flag);
  else if (found->kind == OpAttribute::Factor && (count || (exact && std::isfinite(*exact))))
    made = builder.getF64FloatAttr(count ? double(*count) : *exact);
  else if (count && *count >= (found->kind == OpAttribute::Token ? -1 : 0) &&
           (found->kind == OpAttribute::Token || found->kind == OpAttribute::Natural))
    made = builder.getI64IntegerAttr(*count);
  else if (auto *text = value->asString(); text && found->kind == OpAttribute::Text)
    made = builder.getStringAttr(*text);
  static const char *const kinds[] = {"an int of at least 1",
                                      "a number above 0",
                                      "true or false",
                                      "a string",
                                      "a token, or -1 for none,",
                                      "",
                                      "",
                                      "a number of at least 0",
                                      "an int of at least 0",
                                      "a number",
                                      "an int of at least 1 or a list of them"};
  if (!made)
    return evaluator.fail(expr->at,
                          "expected " + Twine(kinds[found->kind]) + " for `" + label.text + "`, got " + value->text());
  if (call->name == "attention" && label.text == "dropout" && cast<mlir::FloatAttr>(made).getValue().isZero())
    return mlir::Attribute();
  return call->name == "scale" ? roundedFactor(made) : made;
}

/// Rounds a constant of the model to the type of its tensors, as transformers does.
mlir::Attribute ModelOptions::roundedFactor(mlir::Attribute given) {
  APFloat factor = cast<mlir::FloatAttr>(given).getValue();
  bool changes = false;
  factor.convert(shape.element.getFloatSemantics(), APFloat::rmNearestTiesToEven, &changes);
  factor.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &changes);
  return builder.getFloatAttr(builder.getF64Type(), factor);
}

Name ModelOptions::labelOf(const Expr *call, size_t i) {
  Name label = call->labels[i];
  StringRef second = StringSwitch<StringRef>(call->name)
                         .Case("split", "parts")
                         .Case("pad", "columns")
                         .Case("scale", "factor")
                         .Case("dropout", "rate")
                         .Default("");
  if (label.text.empty() && i == 1 && !second.empty())
    return {second, call->operands[i]->at};
  return label;
}

bool ModelOptions::isNothing(StringRef name, ArrayRef<mlir::NamedAttribute> given) {
  if (name != "scale" && name != "dropout")
    return false;
  double nothing = name == "scale" ? 1 : 0;
  return all_of(given, [&](mlir::NamedAttribute factor) {
    return cast<mlir::FloatAttr>(factor.getValue()).getValueAsDouble() == nothing;
  });
}

StringRef ModelOptions::nameOf(StringRef name, ArrayRef<mlir::NamedAttribute> given) {
  if (name != "glu")
    return name;
  mlir::NamedAttrList normal;
  mlir::OperationName("nn.glu", builder.getContext()).populateDefaultAttrs(normal);
  return all_of(given, [&](mlir::NamedAttribute one) { return normal.get(one.getName()) == one.getValue(); }) ? "swiglu"
                                                                                                              : name;
}

FailureOr<mlir::Attribute> ModelOptions::numbers(Name label, const Value &value, SMLoc at) {
  SmallVector<double> all;
  for (const Value &item : value.asList() ? *value.asList() : Value::List())
    if (item.asInt() || item.asNumber())
      all.push_back(item.asInt() ? double(*item.asInt()) : *item.asNumber());
  if (!value.asList() || all.size() != value.asList()->size())
    return evaluator.fail(at, "expected a list of numbers for `" + label.text + "`, got " + value.text());
  return all.empty() ? mlir::Attribute() : builder.getDenseF64ArrayAttr(all);
}

/// The widths of what is cut, in place of the number of equal parts.
FailureOr<mlir::Attribute> ModelOptions::runs(Name label, const Value &value, SMLoc at) {
  SmallVector<int64_t> widths;
  for (const Value &item : *value.asList())
    if (item.asInt() && *item.asInt() > 0)
      widths.push_back(*item.asInt());
  if (widths.empty() || widths.size() != value.asList()->size())
    return evaluator.fail(at, "expected ints of at least 1 for `" + label.text + "`, got " + value.text());
  return mlir::Attribute(builder.getDenseI64ArrayAttr(widths));
}

/// A window that covers the sequence hides nothing.
FailureOr<mlir::Attribute> ModelOptions::checkWindow(Name label, const Value &value, SMLoc at) {
  const int64_t *window = value.asInt();
  if (!window || *window < 0)
    return evaluator.fail(at, "expected an int of at least 0 for `" + label.text + "`, got " + value.text());
  return *window && *window < shape.sequence ? builder.getI64IntegerAttr(*window) : mlir::Attribute();
}

LogicalResult ModelOptions::checkCount(const Expr *call, const ModelOp &op, size_t operands) {
  size_t most = op.mostOperands();
  if (operands + op.optional >= most && operands <= most)
    return success();
  return evaluator.fail(
      call->at, "`" + op.name + "` takes " +
                    (op.optional ? Twine(most - op.optional) + (op.optional > 1 ? " to " : " or ") : "") + Twine(most) +
                    (most == 1 ? " value" : " values") + ", got " + Twine(operands) + ": `" + signature(op) + "`");
}

LogicalResult ModelOptions::checkComplete(const Expr *call, ArrayRef<mlir::NamedAttribute> given) {
  for (const OpAttribute &known : kAttributes) {
    auto isIt = [&](mlir::NamedAttribute attribute) {
      return attribute.getName() == known.name || (known.kind == OpAttribute::Runs && attribute.getName() == "widths");
    };
    if (!known.required || known.op != call->name || any_of(given, isIt))
      continue;
    if (StringRef(known.name) == "causal")
      return evaluator.fail(call->at, "`attention` needs `causal = true`, where no token sees a later one, or "
                                      "`causal = false`, where every token sees all");
    return evaluator.fail(call->at, "`" + call->name + "` needs `" + known.name + " = ..`");
  }
  return success();
}
