// Builds one function of `nn` ops for each part of a model; shapes are checked here, once the sizes are known.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/Model.h"
#include "dialect/nn/Nn.h"
#include "frontend/model/ModelLosses.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/MathExtras.h"
#include <cmath>

using namespace llvm;
using namespace pp;
using mlir::RankedTensorType;

//===-- The language's ops --------------------------------------------------------------------------------------===//

namespace {
struct OpAttribute {
  enum Kind { Count, Number, Flag, Text, Token, Window, Numbers };
  const char *op, *name;
  Kind kind;
  bool required;
};

/// An op that models may use: the words for its operands; the last `optional` of them may be left out.
struct ModelOp {
  StringRef name, operands;
  unsigned optional = 0;
};
} // namespace

static const ModelOp kOps[] = {{"embedding", "tokens, table"},
                               {"positions", "tokens, table"},
                               {"linear", "x, w, bias", 1},
                               {"transpose", "w"},
                               {"layernorm", "x, gain, bias"},
                               {"rmsnorm", "x, gain"},
                               {"rope", "x"},
                               {"attention", "q, k, v"},
                               {"gelu", "x"},
                               {"swiglu", "p, q"},
                               {"split", "x"},
                               {"cross_entropy", "z, targets"}};

static constexpr OpAttribute kAttributes[] = {
    {"embedding", "pad", OpAttribute::Token, false},    {"layernorm", "epsilon", OpAttribute::Number, false},
    {"rmsnorm", "epsilon", OpAttribute::Number, false}, {"rmsnorm", "heads", OpAttribute::Count, false},
    {"rope", "heads", OpAttribute::Count, true},        {"rope", "theta", OpAttribute::Number, false},
    {"rope", "style", OpAttribute::Text, false},        {"rope", "table", OpAttribute::Numbers, false},
    {"attention", "heads", OpAttribute::Count, true},   {"attention", "kv_heads", OpAttribute::Count, false},
    {"attention", "causal", OpAttribute::Flag, true},   {"attention", "window", OpAttribute::Window, false},
    {"gelu", "exact", OpAttribute::Flag, false},        {"split", "parts", OpAttribute::Count, true}};

namespace {
using Tensors = SmallVector<mlir::Value, 3>;

/// A weight and, once it is an argument of the function that is being built, its value.
struct Weight {
  const WeightDeclaration *declared;
  StringRef part;               // empty: shared
  std::optional<unsigned> kind; // of the layers that have it
};

class ModelBuilder {
public:
  ModelBuilder(Source &source, Evaluator &evaluator, const Model &model, Scope &parameters, BatchShape shape,
               const ModelOutline &outline, mlir::OpBuilder &builder)
      : source(source), evaluator(evaluator), model(model), parameters(parameters), shape(shape), outline(outline),
        builder(builder), built(model.parts.size()) {}

  LogicalResult build() {
    if (failed(evaluator.run(model.requirements, parameters)) || failed(findShared()))
      return failure();
    std::optional<ModelOutline::Step> previous;
    SmallVector<mlir::Type> types;
    for (ModelOutline::Step step : outline.steps()) {
      Built &part = built[step.part];
      if (part.isBuilt ? failed(checkFollows(step, *previous, types)) : failed(buildPart(step.part, previous, types)))
        return failure();
      types = part.results;
      previous = step;
    }
    auto loss = RankedTensorType::get({1}, pp::nn::sumType(shape.element));
    if (types.size() != 1 || types[0] != loss)
      return evaluator.fail(model.parts.back().returnAt,
                            "the last part of a model returns the loss alone, got " + str(types));
    return success();
  }

private:
  /// What the function of a part takes and returns.
  struct Built {
    bool isBuilt = false;
    SmallVector<mlir::Type> inputs, results;
  };

  /// A part that stands in several layers takes the same in all of them.
  LogicalResult checkFollows(ModelOutline::Step step, ModelOutline::Step previous, ArrayRef<mlir::Type> types) {
    const Built &part = built[step.part];
    if (types == ArrayRef(part.inputs))
      return success();
    SMLoc returned = model.parts[previous.part].returnAt;
    if (previous.layer >= 0 && model.parts[previous.part].kind == model.parts[step.part].kind)
      return evaluator.fail(returned,
                            "a layer must return what it takes, so that layers can follow each other; it takes " +
                                str(part.inputs) + " and returns " + str(types));
    return evaluator.fail(model.parts[step.part].name.at,
                          outline.describe(step.layer) + " takes " + str(part.inputs) +
                              ", as the first of its kind does, " + "and gets " + str(types),
                          returned, "returned here by " + outline.describe(previous.layer));
  }

  static std::string str(mlir::TypeRange types) {
    std::string text;
    raw_string_ostream stream(text);
    for (auto [i, type] : enumerate(types)) {
      stream << (i ? ", [" : "[");
      interleave(cast<RankedTensorType>(type).getShape(), stream, " x ");
      stream << "]";
    }
    return types.empty() ? "nothing" : text;
  }

  //===-- Weights -----------------------------------------------------------------------------------------------===//

  /// Of an expression over tensors, whether it names `name`; a branch that is not taken names nothing.
  FailureOr<bool> reads(const Expr *expr, StringRef name) {
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

  FailureOr<bool> reads(const ModelPart &part, StringRef name) {
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

  FailureOr<bool> holds(const Expr *condition, StringRef word) {
    FailureOr<Value> value = evaluator.evaluate(condition, parameters);
    if (failed(value))
      return failure();
    if (value->asBool())
      return *value->asBool();
    return evaluator.fail(condition->at,
                          "expected true or false after `" + word + "`, got " + value->type() + " " + value->text());
  }

  FailureOr<const Expr *> branch(const Expr *conditional) {
    FailureOr<bool> is = holds(conditional->operands[0], "if");
    if (failed(is))
      return failure();
    return conditional->operands[*is ? 1 : 2];
  }

  /// Which weights of the model several parts read: one tensor, used in several places.
  LogicalResult findShared() {
    for (const WeightDeclaration &weight : model.weights) {
      int64_t readers = 0;
      for (const ModelPart &part : model.parts) {
        FailureOr<bool> found = reads(part, weight.name.text);
        if (failed(found))
          return failure();
        readers += *found;
      }
      if (readers > 1)
        shared.push_back(&weight);
    }
    return success();
  }

  /// The part's own weights in order of declaration, then those of the model that it reads, but for weights whose
  /// condition does not hold.
  FailureOr<SmallVector<Weight>> weightsOf(const ModelPart &part) {
    SmallVector<Weight> weights;
    absent.clear();
    auto add = [&](Weight weight) -> LogicalResult {
      const Expr *condition = weight.declared->condition;
      FailureOr<bool> isThere = condition ? holds(condition, "if") : FailureOr<bool>(true);
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

  /// The declaration of a weight that is not there.
  const WeightDeclaration *findAbsent(const Expr *expr) {
    auto found = find_if(absent, [&](const WeightDeclaration *weight) {
      return expr->kind == Expr::Variable && weight->name.text == expr->name;
    });
    return found == absent.end() ? nullptr : *found;
  }

  FailureOr<RankedTensorType> typeOf(const WeightDeclaration &weight) {
    SmallVector<int64_t> dimensions;
    for (const Expr *expr : weight.dimensions) {
      FailureOr<int64_t> size = evaluator.evaluateInt(expr, parameters, "as a dimension");
      if (failed(size))
        return failure();
      if (*size < 1)
        return evaluator.fail(expr->at, "dimension `" + expr->text + "` of `" + weight.name.text +
                                            "` must be at least 1, got " + Twine(*size));
      dimensions.push_back(*size);
    }
    if (!fits(dimensions))
      return evaluator.fail(weight.name.at, "weight `" + weight.name.text + "` " + tooLarge(dimensions));
    return RankedTensorType::get(dimensions, shape.element);
  }

  /// Bytes, also of a whole model's worth of such tensors, are counted in 64 bits.
  static constexpr int64_t kMostElements = int64_t(1) << 48;

  static bool fits(ArrayRef<int64_t> dimensions) {
    int64_t count = 1;
    return none_of(dimensions, [&](int64_t size) { return MulOverflow(count, size, count) || count > kMostElements; });
  }

  static std::string tooLarge(ArrayRef<int64_t> dimensions) {
    std::string text;
    raw_string_ostream stream(text);
    interleave(dimensions, stream << "is [", " x ");
    stream << "]; a tensor has at most " << kMostElements << " elements";
    return text;
  }

  FailureOr<double> number(const Expr *expr) {
    FailureOr<Value> value = evaluator.evaluate(expr, parameters);
    if (failed(value))
      return failure();
    if (auto *count = value->asInt())
      return double(*count);
    if (auto *exact = value->asNumber())
      return *exact;
    return evaluator.fail(expr->at, "expected a number, got " + value->type() + " " + value->text());
  }

  // `normal(d)`, `residual(d, layers)`, `one`, `zero`: name and deviation.
  FailureOr<std::pair<StringRef, double>> initOf(const WeightDeclaration &weight) {
    const Expr *init = weight.init;
    if (!init)
      return std::make_pair(StringRef("normal"), 0.02);
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
    FailureOr<double> deviation = number(init->operands[0]);
    FailureOr<double> layers = residual ? number(init->operands[1]) : FailureOr<double>(0.5);
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
  LogicalResult checkName(const Weight &weight, StringRef name) {
    for (const auto &[other, known] : named)
      if (other.declared != weight.declared && known == name && (other.kind == weight.kind || name.contains("{k}")))
        return evaluator.fail(weight.declared->checkpoint->at,
                              "a second weight is called `" + name + "` in checkpoints", other.declared->checkpoint->at,
                              "the first one is here");
    named.push_back({weight, name.str()});
    return success();
  }

  FailureOr<nn::WeightAttr> declarationOf(const Weight &weight) {
    const WeightDeclaration &declared = *weight.declared;
    auto init = initOf(declared);
    if (failed(init))
      return failure();
    std::string layer = weight.kind ? ".{l}." : ".";
    std::string name = (weight.part.empty() ? "" : weight.part.str() + layer) + declared.name.text.str();
    bool transposed = false;
    if (const Expr *as = declared.checkpoint) {
      transposed = as->kind == Expr::Call && as->name == "transpose" && as->operands.size() == 1;
      const Expr *text = transposed ? as->operands[0] : as;
      if (text->kind != Expr::String)
        return evaluator.fail(
            as->at, "expected the name in checkpoints after `as`, \"..\" or transpose(\"..\"), got `" + as->text + "`");
      if (transposed && declared.dimensions.size() != 2)
        return evaluator.fail(as->at, "`" + declared.name.text + "` has " + Twine(declared.dimensions.size()) +
                                          (declared.dimensions.size() == 1 ? " dimension" : " dimensions") +
                                          "; a transposed weight has 2");
      StringRef number = text->name.contains("{k}") ? "{k}" : "{l}";
      if (text->name.contains(number) != weight.kind.has_value())
        return evaluator.fail(text->at, weight.kind
                                            ? "this weight is in every layer; its name needs `{l}`, the layer"
                                            : "this weight is in no layer; its name has no `" + number.str() + "`");
      name = text->name.str();
      if (failed(checkName(weight, name)))
        return failure();
    }
    return nn::WeightAttr::get(builder.getContext(), builder.getStringAttr(declared.name.text),
                               builder.getStringAttr(name), *nn::symbolizeInit(init->first),
                               builder.getF64FloatAttr(init->second), transposed,
                               /*shared=*/is_contained(shared, &declared));
  }

  //===-- Parts -------------------------------------------------------------------------------------------------===//

  static bool isData(StringRef name) { return name == "tokens" || name == "targets" || name == "source"; }

  LogicalResult define(Name name, mlir::Value value) {
    for (auto &[first, old] : values)
      if (first.text == name.text)
        return evaluator.fail(name.at, "`" + name.text + "` is defined twice", first.at, "first defined here");
    values.push_back({name, value});
    return success();
  }

  LogicalResult checkInputs(const ModelPart &part, const ModelPart *previous, size_t got) {
    size_t expected = count_if(part.parameters, [](const Name &name) { return !isData(name.text); });
    if (expected == got)
      return success();
    std::string values = " value" + std::string(expected == 1 ? "" : "s");
    if (!previous)
      return evaluator.fail(part.name.at,
                            "part `" + part.name.text + "` comes first, so it takes `tokens` or `source` only");
    return evaluator.fail(part.name.at,
                          "part `" + part.name.text + "` takes " + Twine(expected) + values + ", got " + Twine(got) +
                              " from `" + previous->name.text + "`",
                          previous->returnAt, "returned here");
  }

  LogicalResult buildPart(unsigned number, std::optional<ModelOutline::Step> before, ArrayRef<mlir::Type> inputs) {
    const ModelPart &part = model.parts[number];
    const ModelPart *previous = before ? &model.parts[before->part] : nullptr;
    if (failed(checkInputs(part, previous, inputs.size())))
      return failure();
    built[number].isBuilt = true;
    built[number].inputs.assign(inputs.begin(), inputs.end());
    auto dataType = RankedTensorType::get({shape.batch, shape.sequence}, builder.getI32Type());
    SmallVector<mlir::Type> types;
    SmallVector<mlir::DictionaryAttr> attributes;
    SmallVector<Name> names;
    for (const Name &name : part.parameters) {
      bool data = isData(name.text);
      types.push_back(data ? dataType : inputs.front());
      inputs = inputs.drop_front(!data);
      attributes.push_back(
          data ? builder.getDictionaryAttr(builder.getNamedAttr(nn::kDataAttr, builder.getStringAttr(name.text)))
               : builder.getDictionaryAttr({}));
      names.push_back(name);
    }
    FailureOr<SmallVector<Weight>> weights = weightsOf(part);
    if (failed(weights))
      return failure();
    for (const Weight &weight : *weights) {
      FailureOr<RankedTensorType> type = typeOf(*weight.declared);
      FailureOr<nn::WeightAttr> said = failed(type) ? FailureOr<nn::WeightAttr>() : declarationOf(weight);
      if (failed(type) || failed(said))
        return failure();
      types.push_back(*type);
      attributes.push_back(builder.getDictionaryAttr(builder.getNamedAttr(nn::kWeightAttr, *said)));
      names.push_back(weight.declared->name);
    }
    return buildFunction(number, names, types, attributes);
  }

  LogicalResult buildFunction(unsigned number, ArrayRef<Name> names, ArrayRef<mlir::Type> types,
                              ArrayRef<mlir::DictionaryAttr> attributes) {
    const ModelPart &part = model.parts[number];
    mlir::OpBuilder::InsertionGuard guard(builder);
    auto function = builder.create<mlir::func::FuncOp>(source.location(part.name.at), outline.parts[number].function,
                                                       builder.getFunctionType(types, {}));
    function.setPrivate();
    if (part.kind)
      markLayers(function, part);
    for (auto [i, said] : enumerate(attributes))
      function.setArgAttrs(i, said);
    builder.setInsertionPointToStart(function.addEntryBlock());
    values.clear();
    losses.clear();
    for (auto [name, argument] : zip(names, function.getArguments()))
      if (failed(define(name, argument)))
        return failure();
    for (const ModelPart::Definition &definition : part.definitions)
      if (failed(let(definition)))
        return failure();
    SmallVector<mlir::Value> returned;
    for (const Expr *expr : part.results) {
      FailureOr<mlir::Value> value = tensor(expr);
      if (failed(value))
        return failure();
      returned.push_back(*value);
    }
    if (failed(losses.finish(builder, evaluator, &part == &model.parts.back(), returned)))
      return failure();
    append_range(built[number].results, mlir::ValueRange(returned).getTypes());
    builder.create<mlir::func::ReturnOp>(source.location(part.returnAt), returned);
    function.setFunctionType(builder.getFunctionType(types, built[number].results));
    return success();
  }

  /// A kind with a name says which part the function is, and of which layers.
  void markLayers(mlir::func::FuncOp function, const ModelPart &part) {
    function->setAttr(nn::kPerLayerAttr, builder.getUnitAttr());
    if (model.kinds[*part.kind].text.empty())
      return;
    SmallVector<int64_t> layers;
    for (auto [layer, kind] : enumerate(outline.kindOf))
      if (kind == *part.kind)
        layers.push_back(layer);
    function->setAttr(nn::kPartAttr, builder.getStringAttr(part.name.text));
    function->setAttr(nn::kLayersAttr, builder.getDenseI64ArrayAttr(layers));
  }

  LogicalResult let(const ModelPart::Definition &definition) {
    FailureOr<Tensors> made = tensors(definition.value);
    if (failed(made))
      return failure();
    if (made->size() != definition.names.size())
      return evaluator.fail(definition.names[0].at, "this defines " + Twine(definition.names.size()) + " names, and `" +
                                                        definition.value->text + "` gives " + Twine(made->size()) +
                                                        (made->size() == 1 ? " value" : " values"));
    for (auto [name, value] : zip(definition.names, *made))
      if (failed(define(name, value)))
        return failure();
    return success();
  }

  //===-- Expressions over tensors ------------------------------------------------------------------------------===//

  FailureOr<mlir::Value> tensor(const Expr *expr) {
    FailureOr<Tensors> made = tensors(expr);
    if (failed(made))
      return failure();
    if (made->size() != 1)
      return evaluator.fail(expr->at, "`" + expr->text + "` gives " + Twine(made->size()) +
                                          " values; name them with `let a, b, .. = ..`");
    return made->front();
  }

  FailureOr<Tensors> tensors(const Expr *expr) {
    if (expr->kind == Expr::Variable)
      return variable(expr);
    if (expr->kind == Expr::Call)
      return call(expr);
    if (expr->kind == Expr::Multiply)
      return weighted(expr);
    if (expr->kind == Expr::Conditional) {
      FailureOr<const Expr *> taken = branch(expr);
      return failed(taken) ? FailureOr<Tensors>() : tensors(*taken);
    }
    if (expr->kind != Expr::Add)
      return evaluator.fail(expr->at, "expected a tensor, got `" + expr->text + "`");
    FailureOr<mlir::Value> left = tensor(expr->operands[0]), right = failure();
    if (failed(left) || failed(right = tensor(expr->operands[1])))
      return failure();
    if (losses.isLoss(*left) && losses.isLoss(*right))
      return Tensors{losses.sum(builder, *left, *right)};
    if (failed(checkNoLoss(expr->operands[0], *left)) || failed(checkNoLoss(expr->operands[1], *right)))
      return failure();
    return create(expr, "add", {*left, *right}, {});
  }

  LogicalResult checkNoLoss(const Expr *expr, mlir::Value value) {
    if (!losses.isLoss(value))
      return success();
    return evaluator.fail(expr->at, "`" + expr->text +
                                        "` is a loss; it can only be multiplied by a number, added to a " +
                                        "loss, or returned");
  }

  /// Whether the expression speaks of tensors; one that does not is evaluated.
  bool isTensor(const Expr *expr) {
    if (expr->kind == Expr::Variable)
      return any_of(values, [&](auto &value) { return value.first.text == expr->name; });
    if (expr->kind == Expr::Call)
      return any_of(kOps, [&](const ModelOp &op) { return op.name == expr->name; });
    return any_of(expr->operands, [&](const Expr *operand) { return isTensor(operand); });
  }

  /// A number times a loss.
  FailureOr<Tensors> weighted(const Expr *expr) {
    const Expr *weight = expr->operands[0], *loss = expr->operands[1];
    if (isTensor(weight))
      std::swap(weight, loss);
    if (isTensor(weight) || !isTensor(loss))
      return evaluator.fail(expr->at, "expected a number times a loss, got `" + expr->text + "`");
    FailureOr<mlir::Value> value = tensor(loss);
    FailureOr<double> factor = failed(value) ? FailureOr<double>() : number(weight);
    if (failed(value) || failed(factor))
      return failure();
    if (!losses.isLoss(*value))
      return evaluator.fail(expr->at, "`*` multiplies a loss, and `" + loss->text + "` is not one");
    return Tensors{losses.scaled(builder, *value, *factor)};
  }

  FailureOr<Tensors> variable(const Expr *expr) {
    SmallVector<StringRef> names;
    for (auto &[name, value] : values) {
      if (name.text == expr->name)
        return Tensors{value};
      names.push_back(name.text);
    }
    if (const WeightDeclaration *weight = findAbsent(expr))
      return evaluator.fail(expr->at,
                            "`" + expr->name + "` is not there: it is declared if `" + weight->condition->text +
                                "`, which is false",
                            weight->condition->at, "the condition is here");
    if (Binding *found = parameters.find(expr->name))
      return evaluator.fail(expr->at, "expected a tensor, got " + found->value.type() + " " + found->value.text());
    return evaluator.fail(expr->at, "`" + expr->name + "` is not defined" + didYouMean(expr->name, names));
  }

  FailureOr<Tensors> call(const Expr *expr) {
    const ModelOp *op = find_if(kOps, [&](const ModelOp &one) { return one.name == expr->name; });
    if (op == std::end(kOps))
      return unknownOp(expr);
    SmallVector<mlir::Value> operands;
    SmallVector<mlir::NamedAttribute> attributes;
    for (auto [i, label, operand] : enumerate(expr->labels, expr->operands)) {
      Name named = label;
      if (named.text.empty() && expr->name == "split" && i == 1)
        named = {"parts", operand->at};
      if (!named.text.empty()) {
        FailureOr<mlir::Attribute> made = attribute(expr, named, operand);
        if (failed(made))
          return failure();
        if (*made)
          attributes.push_back(builder.getNamedAttr(named.text, *made));
        continue;
      }
      if (i >= op->operands.count(',') + 1 - op->optional && findAbsent(operand))
        continue; // `linear(x, w, b)` without b
      FailureOr<mlir::Value> value = tensor(operand);
      if (failed(value) || failed(checkNoLoss(operand, *value)))
        return failure();
      operands.push_back(*value);
    }
    size_t most = op->operands.count(',') + 1;
    if (operands.size() + op->optional < most || operands.size() > most)
      return evaluator.fail(expr->at, "`" + op->name + "` takes " +
                                          (op->optional ? Twine(most - op->optional) + " or " : "") + Twine(most) +
                                          (most == 1 ? " value" : " values") + ", got " + Twine(operands.size()) +
                                          ": `" + signature(*op) + "`");
    for (const OpAttribute &known : kAttributes) {
      auto given = [&](mlir::NamedAttribute attribute) { return attribute.getName() == known.name; };
      if (!known.required || known.op != expr->name || any_of(attributes, given))
        continue;
      if (StringRef(known.name) == "causal")
        return evaluator.fail(expr->at, "`attention` needs `causal = true`, where no token sees a later one, or "
                                        "`causal = false`, where every token sees all");
      return evaluator.fail(expr->at, "`" + expr->name + "` needs `" + known.name + " = ..`");
    }
    return create(expr, expr->name, operands, attributes);
  }

  /// `linear(x, w[, bias])`; a default is that of the op's definition.
  std::string signature(const ModelOp &op) {
    mlir::NamedAttrList defaults;
    mlir::OperationName(("nn." + op.name).str(), builder.getContext()).populateDefaultAttrs(defaults);
    SmallVector<StringRef> words;
    op.operands.split(words, ", ");
    std::string text = (op.name + "(").str();
    for (auto [i, word] : enumerate(words))
      text += ((i + op.optional >= words.size() ? "[, " : i ? ", " : "") + word).str();
    text += std::string(op.optional, ']');
    for (const OpAttribute &known : kAttributes) {
      static const char *const kinds[] = {"int", "number", "true|false", "string", "-1", "0", "[]"};
      if (known.op != op.name)
        continue;
      text += std::string(", ") + known.name + " = ";
      mlir::Attribute normal = defaults.get(known.name);
      if (StringRef(known.name) == "kv_heads")
        text += "heads";
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

  LogicalResult unknownOp(const Expr *expr) {
    SmallVector<StringRef> names;
    std::string all = "there are `x + y`";
    for (const ModelOp &op : kOps) {
      names.push_back(op.name);
      all += ", `" + signature(op) + "`";
    }
    return evaluator.fail(
        expr->at, "`" + expr->name + "` is not an operation of models" + didYouMean(expr->name, names), expr->at, all);
  }

  /// Null for a value that says what an op without the option does.
  FailureOr<mlir::Attribute> attribute(const Expr *call, Name label, const Expr *expr) {
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
    if (found->kind == OpAttribute::Window)
      return checkWindow(label, *value, expr->at);
    mlir::Attribute made;
    if (auto *count = value->asInt(); count && found->kind == OpAttribute::Count && *count > 0)
      made = builder.getI64IntegerAttr(*count);
    else if (count && found->kind == OpAttribute::Number && *count > 0)
      made = builder.getF64FloatAttr(*count);
    else if (auto *exact = value->asNumber(); exact && found->kind == OpAttribute::Number && *exact > 0)
      made = builder.getF64FloatAttr(*exact);
    else if (auto *flag = value->asBool(); flag && found->kind == OpAttribute::Flag)
      made = builder.getBoolAttr(*flag);
    else if (count && found->kind == OpAttribute::Token && *count >= -1)
      made = builder.getI64IntegerAttr(*count);
    else if (auto *text = value->asString(); text && found->kind == OpAttribute::Text)
      made = builder.getStringAttr(*text);
    static const char *const kinds[] = {"an int of at least 1", "a number above 0", "true or false", "a string",
                                        "a token, or -1 for none,"};
    if (!made)
      return evaluator.fail(expr->at, "expected " + Twine(kinds[found->kind]) + " for `" + label.text + "`, got " +
                                          value->text());
    return made;
  }

  FailureOr<mlir::Attribute> numbers(Name label, const Value &value, SMLoc at) {
    SmallVector<double> all;
    for (const Value &item : value.asList() ? *value.asList() : Value::List())
      if (item.asInt() || item.asNumber())
        all.push_back(item.asInt() ? double(*item.asInt()) : *item.asNumber());
    if (!value.asList() || all.size() != value.asList()->size())
      return evaluator.fail(at, "expected a list of numbers for `" + label.text + "`, got " + value.text());
    return all.empty() ? mlir::Attribute() : builder.getDenseF64ArrayAttr(all);
  }

  /// A window that covers the sequence hides nothing; no kernel has a shorter one.
  FailureOr<mlir::Attribute> checkWindow(Name label, const Value &value, SMLoc at) {
    const int64_t *window = value.asInt();
    if (!window || *window < 0)
      return evaluator.fail(at, "expected an int of at least 0 for `" + label.text + "`, got " + value.text());
    if (*window && *window < shape.sequence)
      return evaluator.fail(at, "a window of " + Twine(*window) + " tokens is shorter than a sequence of " +
                                    Twine(shape.sequence) + "; such windows are not supported yet");
    return mlir::Attribute();
  }

  FailureOr<Tensors> create(const Expr *expr, StringRef name, mlir::ValueRange operands,
                            ArrayRef<mlir::NamedAttribute> given) {
    mlir::NamedAttrList attributes(given);
    mlir::OperationName(("nn." + name).str(), builder.getContext()).populateDefaultAttrs(attributes);
    // The text may be right and a size from the command line wrong: an error of shapes names these sizes, too.
    mlir::ScopedDiagnosticHandler addSizes(builder.getContext(), [&](mlir::Diagnostic &error) {
      for (const Binding &bound : parameters.bindings)
        if (bound.given.isValid())
          error.attachNote(source.location(bound.given)) << "`" << bound.name.text << "` is " << bound.value.text();
      return failure(); // the next handler prints it
    });
    FailureOr<mlir::Operation *> op = pp::nn::createOp(builder, source.location(expr->at), name, operands, attributes);
    if (failed(op))
      return failure();
    for (mlir::Type type : (*op)->getResultTypes())
      if (auto tensor = dyn_cast<RankedTensorType>(type); tensor && !fits(tensor.getShape()))
        return evaluator.fail(expr->at, "the result of `" + name + "` " + tooLarge(tensor.getShape()));
    if (name == "cross_entropy")
      losses.add((*op)->getResult(0), expr->at);
    // What an op keeps for its backward is not seen by the model.
    return Tensors((*op)->getResults().take_front(name == "split" ? (*op)->getNumResults() : 1));
  }

  Source &source;
  Evaluator &evaluator;
  const Model &model;
  Scope &parameters;
  BatchShape shape;
  const ModelOutline &outline;
  mlir::OpBuilder &builder;
  ModelLosses losses;                                // of the part that is being built
  std::vector<Built> built;                          // by part
  SmallVector<const WeightDeclaration *> shared;     // by several parts
  SmallVector<const WeightDeclaration *> absent;     // from the part that is being built
  SmallVector<std::pair<Weight, std::string>> named; // in checkpoints
  SmallVector<std::pair<Name, mlir::Value>> values;  // of the part that is being built
};
} // namespace

LogicalResult pp::buildModel(Source &source, Evaluator &evaluator, const Model &model, Scope &parameters,
                             BatchShape shape, const ModelOutline &outline, mlir::OpBuilder &builder) {
  return ModelBuilder(source, evaluator, model, parameters, shape, outline, builder).build();
}
