// Finds the weights that the parts of a model have, and what each is called and starts from.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/ModelWeights.h"
#include "frontend/evaluate/CommandLine.h"
#include "frontend/expand/Expand.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/MathExtras.h"
#include <cmath>

using namespace llvm;
using namespace pp;

/// Bytes, also of a whole model's worth of such tensors, are counted in 64 bits.
static constexpr int64_t kMostElements = int64_t(1) << 48;

std::string pp::saysTooLarge(ArrayRef<int64_t> dimensions) {
  int64_t count = 1;
  if (none_of(dimensions, [&](int64_t size) { return MulOverflow(count, size, count) || count > kMostElements; }))
    return "";
  std::string text;
  raw_string_ostream stream(text);
  interleave(dimensions, stream << "is [", " x ");
  stream << "]; a tensor has at most " << kMostElements << " elements";
  return text;
}

/// Whether an expression over tensors names `name`; a branch that is not taken names nothing.
FailureOr<bool> ModelWeights::reads(const Expr *expr, StringRef name) {
  if (expr->kind == Expr::Variable)
    return expr->name == name;
  if (expr->kind == Expr::Conditional) {
    FailureOr<const Expr *> taken = branch(expr);
    return failed(taken) ? FailureOr<bool>() : reads(*taken, name);
  }
  for (const Expr *operand : expr->operands) {
    FailureOr<bool> found = reads(operand, name);
    if (failed(found) || *found)
      return found;
  }
  return false;
}

FailureOr<bool> ModelWeights::reads(const ModelPart &part, StringRef name) {
  enterPart(model, part, parameters);
  SmallVector<const Expr *> all(part.results);
  for (const ModelPart::Definition &definition : part.definitions)
    all.push_back(definition.value);
  for (const Expr *expr : all) {
    FailureOr<bool> found = reads(expr, name);
    if (failed(found) || *found)
      return found;
  }
  return false;
}

FailureOr<const Expr *> ModelWeights::branch(const Expr *conditional) {
  FailureOr<Expr *> taken = takenBranch(evaluator, conditional, parameters);
  return failed(taken) ? FailureOr<const Expr *>() : *taken;
}

LogicalResult ModelWeights::findShared() {
  for (const WeightDeclaration &weight : model.weights) {
    int64_t readers = 0;
    for (const ModelPart &part : model.parts) {
      FailureOr<bool> found = reads(part, weight.name.text);
      if (failed(found))
        return failure();
      readers += *found && part.kind ? 2 : *found; // a part of layers stands in several
    }
    if (readers > 1)
      shared.push_back(&weight);
  }
  return success();
}

FailureOr<SmallVector<ModelWeight>> ModelWeights::of(const ModelPart &part) {
  SmallVector<ModelWeight> weights;
  absent.clear();
  auto add = [&](ModelWeight weight) -> LogicalResult {
    const Expr *condition = weight.declared->condition;
    FailureOr<bool> isThere = condition ? holds(evaluator, condition, parameters, "if") : FailureOr<bool>(true);
    if (failed(isThere))
      return failure();
    if (*isThere)
      weights.push_back(weight);
    else
      absent.push_back(weight.declared);
    return success();
  };
  for (const WeightDeclaration &weight : part.weights)
    if (failed(add({&weight, part.name.text, part.kind})))
      return failure();
  for (const WeightDeclaration &weight : model.weights) {
    FailureOr<bool> found = reads(part, weight.name.text);
    if (failed(found) || (*found && failed(add({&weight, "", std::nullopt}))))
      return failure();
  }
  return weights;
}

const WeightDeclaration *ModelWeights::findAbsent(const Expr *expr) const {
  auto found = find_if(absent, [&](const WeightDeclaration *weight) {
    return expr->kind == Expr::Variable && weight->name.text == expr->name;
  });
  return found == absent.end() ? nullptr : *found;
}

FailureOr<mlir::RankedTensorType> ModelWeights::typeOf(const WeightDeclaration &weight) {
  SmallVector<int64_t> dimensions;
  for (const Expr *expr : weight.dimensions) {
    FailureOr<int64_t> size = evaluator.evaluateInt(expr, parameters, "as a dimension");
    if (failed(size))
      return failure();
    SMLoc at = originOf(expr, parameters);
    if (*size < 1)
      return evaluator.fail(at,
                            "dimension `" + (expr->kind == Expr::Variable ? expr->name : expr->text) + "` of `" +
                                weight.name.text + "` must be at least 1, got " + Twine(*size),
                            at == expr->at ? SMLoc() : expr->at, "the weight is declared here");
    dimensions.push_back(*size);
  }
  if (std::string tooLarge = saysTooLarge(dimensions); !tooLarge.empty())
    return evaluator.fail(weight.name.at, "weight `" + weight.name.text + "` " + tooLarge);
  return mlir::RankedTensorType::get(dimensions, shape.element);
}

// `normal(d)`, `residual(d, layers)`, `one`, `zero`: name and deviation.
FailureOr<std::pair<StringRef, double>> ModelWeights::initOf(const WeightDeclaration &weight) {
  const Expr *init = weight.init;
  if (!init)
    return std::make_pair(StringRef("normal"), 0.02);
  while (init->kind == Expr::Conditional) {
    FailureOr<const Expr *> taken = branch(init);
    if (failed(taken))
      return failure();
    init = *taken;
  }
  StringRef name = init->name;
  bool isCall = init->kind == Expr::Call;
  if (init->kind == Expr::Variable && (name == "one" || name == "zero"))
    return std::make_pair(name, 0.0);
  bool residual = name == "residual";
  if (!isCall || !(residual || name == "normal"))
    return evaluator.fail(init->at, "`" + init->text +
                                        "` is not a start value; there are `normal(deviation)`, "
                                        "`residual(deviation, layers)`, `one` and `zero`");
  if (init->operands.size() != (residual ? 2 : 1))
    return evaluator.fail(init->at, "`" + name + "` takes " + Twine(residual ? 2 : 1) +
                                        (residual ? " values" : " value") + ", got " + Twine(init->operands.size()));
  FailureOr<double> deviation = evaluator.evaluateNumber(init->operands[0], parameters);
  FailureOr<double> layers =
      residual ? evaluator.evaluateNumber(init->operands[1], parameters) : FailureOr<double>(0.5);
  if (failed(deviation) || failed(layers))
    return failure();
  if (*deviation < 0)
    return evaluator.fail(init->operands[0]->at,
                          "expected a deviation of at least 0 for `" + name + "`, got " + Value(*deviation).text());
  if (*layers <= 0)
    return evaluator.fail(init->operands[1]->at,
                          "expected a number of layers above 0 for `residual`, got " + Value(*layers).text());
  return std::make_pair(StringRef("normal"), *deviation / std::sqrt(2 * *layers));
}

/// Two weights have two names; those of layers of different kinds may have one, as the layers have different numbers.
LogicalResult ModelWeights::checkName(const ModelWeight &weight, StringRef name) {
  for (const auto &[other, known] : named)
    if (other.declared != weight.declared && known == name && (other.kind == weight.kind || !name.contains("{l}")))
      return evaluator.fail(weight.declared->checkpoint->at, "a second weight is called `" + name + "` in checkpoints",
                            other.declared->checkpoint->at, "the first one is here");
  named.push_back({weight, name.str()});
  return success();
}

/// A name in checkpoints: `{n}` is the number of layers, and `{n+1}` one more.
std::string ModelWeights::numbered(std::string name) const {
  auto *layers = find_if(parameters.bindings, [](Binding &binding) { return binding.name.text == "layers"; });
  for (size_t at = 0; (at = name.find("{n", at)) != std::string::npos; ++at) {
    StringRef rest = StringRef(name).substr(at + 2);
    int64_t more = 0;
    if (rest.consume_front("+") ? !rest.consumeInteger(10, more) && rest.consume_front("}") : rest.consume_front("}"))
      name.replace(at, name.size() - at - rest.size(), std::to_string(*layers->value.asInt() + more));
  }
  return name;
}

/// Whether files can have a weight of these dimensions in this form.
LogicalResult ModelWeights::checkStored(const WeightDeclaration &weight, nn::Stored stored, SMLoc at, bool ofExperts) {
  size_t count = weight.dimensions.size();
  if ((stored == nn::Stored::transposed && !ofExperts && count != 2 && count != 3) ||
      ((stored == nn::Stored::row || stored == nn::Stored::column) && count != 1))
    return evaluator.fail(
        at, "`" + weight.name.text + "` has " + Twine(count) + (count == 1 ? " dimension; " : " dimensions; ") +
                (stored == nn::Stored::row      ? "one that is stored as a row has 1"
                 : stored == nn::Stored::column ? "one that is stored as a column has 1"
                                                : "a transposed weight has 2, or 3 with one of experts"));
  FailureOr<mlir::RankedTensorType> type = typeOf(weight);
  if (succeeded(type) && stored == nn::Stored::alternate && type->getShape().back() % 2 != 0)
    return evaluator.fail(at, "`" + weight.name.text + "` has " + Twine(type->getShape().back()) +
                                  " columns; two halves take turns where it is stored as `alternate`");
  return success(succeeded(type));
}

FailureOr<nn::WeightAttr> ModelWeights::attributeOf(const ModelWeight &weight) {
  const WeightDeclaration &declared = *weight.declared;
  auto init = initOf(declared);
  if (failed(init))
    return failure();
  std::string layer = weight.kind ? ".{l}." : ".";
  std::string name = (weight.part.empty() ? "" : weight.part.str() + layer) + declared.name.text.str();
  nn::Stored stored = nn::Stored::plain;
  if (const Expr *as = declared.checkpoint) {
    if (as->kind == Expr::Call && as->operands.size() == 1)
      stored = StringSwitch<nn::Stored>(as->name)
                   .Case("transpose", nn::Stored::transposed)
                   .Case("row", nn::Stored::row)
                   .Case("alternate", nn::Stored::alternate)
                   .Case("column", nn::Stored::column)
                   .Default(nn::Stored::plain);
    const Expr *text = stored == nn::Stored::plain ? as : as->operands[0];
    if (text->kind != Expr::String)
      return evaluator.fail(as->at, "expected the name in checkpoints after `as`, \"..\", or transpose(\"..\"), "
                                    "row(\"..\"), column(\"..\") or alternate(\"..\"), got `" +
                                        as->text + "`");
    bool ofExperts = text->name.contains("{e}");
    if (failed(checkStored(declared, stored, as->at, ofExperts)))
      return failure();
    if (ofExperts && declared.dimensions.size() != 3)
      return evaluator.fail(text->at, "`" + declared.name.text + "` has " + Twine(declared.dimensions.size()) +
                                          (declared.dimensions.size() == 1 ? " dimension" : " dimensions") +
                                          "; a weight of experts, whose name has `{e}`, has 3");
    if (nn::isNumbered(text->name) != weight.kind.has_value())
      return evaluator.fail(text->at, weight.kind ? "this weight is in every layer; its name needs `{l}`, the layer"
                                                  : "this weight is in no layer; its name has no number of a layer");
    name = numbered(text->name.str());
    if (failed(checkName(weight, name)))
      return failure();
  }
  return nn::WeightAttr::get(builder.getContext(), builder.getStringAttr(declared.name.text),
                             builder.getStringAttr(name), *nn::symbolizeInit(init->first),
                             builder.getF64FloatAttr(init->second), stored,
                             /*shared=*/is_contained(shared, &declared));
}
