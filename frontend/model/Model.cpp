// Builds one function of `nn` ops for each part of a model; shapes are checked here, once the sizes are known.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/Model.h"
#include "dialect/nn/Nn.h"
#include "frontend/expand/Expand.h"
#include "frontend/model/ModelExperts.h"
#include "frontend/model/ModelFormulas.h"
#include "frontend/model/ModelLosses.h"
#include "frontend/model/ModelOps.h"
#include "frontend/model/ModelSkips.h"
#include "frontend/model/ModelWeights.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <cmath>

using namespace llvm;
using namespace pp;
using mlir::RankedTensorType;

/// If rows hold documents, attention, rotary and learned positions read the begin of the token's document, and the
/// token's distance from it. Dropout and routers read the token's row in the run, or -1 where there is no token.
static constexpr StringRef kAdded[] = {"starts", "positions", "rows"};

namespace {
using Tensors = SmallVector<mlir::Value, 3>;
using Types = SmallVector<mlir::Type>;

class ModelBuilder {
public:
  ModelBuilder(Source &source, Evaluator &evaluator, const Model &model, Scope &parameters, BatchShape shape,
               const ModelOutline &outline, mlir::OpBuilder &builder, SmallVectorImpl<mlir::Attribute> &list)
      : source(source), evaluator(evaluator), model(model), parameters(parameters), shape(shape), outline(outline),
        builder(builder), weights(evaluator, model, parameters, shape, builder),
        options(evaluator, parameters, shape, builder), skips(evaluator, model, builder),
        columns(evaluator, model, parameters, shape, builder), columnList(list),
        formulas(evaluator, builder, shape.element), built(model.parts.size()) {}

  LogicalResult build() {
    if (failed(evaluator.run(model.requirements, parameters)) || failed(weights.findShared()) || failed(columns.read()))
      return failure();
    std::optional<ModelOutline::Step> previous;
    std::optional<Types> types = Types();
    for (ModelOutline::Step step : outline.steps()) {
      Built &part = built[step.part];
      if (!part.isBuilt)
        part.isWrong = model.parts[step.part].isWrong || failed(buildPart(step.part, previous, types));
      else if (types && !part.isWrong && failed(checkFollows(step, *previous, *types)))
        return failure();
      types = part.isWrong ? std::nullopt : std::optional(part.results);
      previous = step;
    }
    if (any_of(built, [](const Built &part) { return part.isWrong; }))
      return failure();
    for (auto [site, op] : enumerate(dropouts))
      nn::setDropoutSite(op, {int64_t(site), int64_t(dropouts.size())});
    auto isLoss = [&](mlir::Type type) { // behind it its z-loss, if there is one
      auto element = pp::nn::sumType(shape.element);
      return type == RankedTensorType::get({1}, element) || type == RankedTensorType::get({2}, element);
    };
    const size_t trained = types->size() - model.parts.back().reports.size();
    if (trained == 0 || trained > 2 || !all_of(*types, isLoss))
      return evaluator.fail(model.parts.back().returnAt,
                            "the last part of a model returns the loss alone, got " + str(*types));
    return success();
  }

private:
  /// A name, and the tensor or the formula that it stands for; neither: its definition is wrong.
  struct Known {
    Name name;
    mlir::Value value;
    std::optional<ModelFormulas::Formed> formed;
  };
  /// The types that the function of a part takes and returns.
  struct Built {
    bool isBuilt = false;
    bool isWrong = false; ///< so that what it returns is not known
    Types inputs, results;
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

  //===-- Parts -------------------------------------------------------------------------------------------------===//

  static bool isData(StringRef name) { return name == "tokens" || name == "targets" || name == "source"; }

  bool isLast(const ModelPart &part) const { return &part == &model.parts.back(); }
  /// Those that the part may read.
  ArrayRef<ModelColumns::Column> columnsOf(const ModelPart &part) const {
    return isLast(part) ? columns.all() : ArrayRef<ModelColumns::Column>();
  }

  LogicalResult define(Name name, mlir::Value value) { return define({name, value, std::nullopt}); }
  /// A column of ints.
  bool isInts(const Known &known) const {
    auto argument = dyn_cast_or_null<mlir::BlockArgument>(known.value);
    const ModelColumns::Column *column = argument ? columns.find(known.name.text) : nullptr;
    return column && column->isInt() && column->name.at == known.name.at;
  }
  LogicalResult define(Known known) {
    if (const Known *old = find(known.name.text))
      return evaluator.fail(known.name.at, "`" + known.name.text + "` is defined twice", old->name.at,
                            "first defined here");
    values.push_back(known);
    return success();
  }
  /// What the part knows, and not the function of the file that is being inlined.
  const SmallVector<Known> &partValues() const { return callers.empty() ? values : *callers.front().values; }
  const Known *find(StringRef name) const {
    const auto *found = find_if(values, [&](const Known &known) { return known.name.text == name; });
    return found == values.end() ? nullptr : found;
  }

  LogicalResult checkInputs(const ModelPart &part, const ModelPart *previous, size_t got) {
    size_t expected = 0;
    for (auto [name, source] : zip(part.parameters, part.sources)) {
      if (shape.documents && (source.text.empty() ? name : source).text == "source")
        return evaluator.fail(name.at, "`documents = true` with an encoder is not supported yet: the rows of `source` "
                                       "hold no documents");
      expected += source.text.empty() && !isData(name.text);
    }
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

  /// `next from tokens + 1`: of each place the token so many places on in its document.
  FailureOr<mlir::DictionaryAttr> dataFrom(Name source, const Expr *places) {
    mlir::NamedAttrList said;
    said.set(nn::kDataAttr, builder.getStringAttr(source.text));
    if (!places)
      return said.getDictionary(builder.getContext());
    FailureOr<int64_t> ahead = evaluator.evaluateInt(places, parameters, ("after `" + source.text + " +`").str());
    if (failed(ahead))
      return failure();
    if (source.text == "source")
      return evaluator.fail(source.at, "only `tokens` and `targets` can be taken from places further on");
    if (*ahead < 1 || *ahead >= shape.sequence)
      return evaluator.fail(places->at, "expected 1 to " + Twine(shape.sequence - 1) + " places in sequences of " +
                                            Twine(shape.sequence) + " tokens, got " + Twine(*ahead));
    if (shape.documents && source.text == "targets" && *ahead > nn::kMostAhead)
      return evaluator.fail(places->at, "expected at most " + Twine(nn::kMostAhead) +
                                            " places with `documents = true`, which counts the targets of each; got " +
                                            Twine(*ahead));
    said.set(nn::kAheadAttr, builder.getI64IntegerAttr(*ahead));
    return said.getDictionary(builder.getContext());
  }

  /// If a part takes the result of a wrong part, everything else of it is still checked.
  LogicalResult buildPart(unsigned number, std::optional<ModelOutline::Step> before, std::optional<Types> given) {
    const ModelPart &part = model.parts[number];
    enterPart(model, part, parameters);
    const ModelPart *previous = before ? &model.parts[before->part] : nullptr;
    built[number].isBuilt = true;
    if (given && failed(checkInputs(part, previous, given->size())))
      return failure();
    ArrayRef<mlir::Type> inputs = given ? ArrayRef(*given) : ArrayRef<mlir::Type>();
    built[number].inputs.assign(inputs.begin(), inputs.end());
    SmallVector<StringRef> unknown;
    auto dataType = RankedTensorType::get({shape.batch, shape.sequence}, builder.getI32Type());
    SmallVector<mlir::Type> types;
    SmallVector<mlir::DictionaryAttr> attributes;
    SmallVector<Name> names;
    for (auto [i, name] : enumerate(part.parameters)) {
      names.push_back(name);
      if (isData(part.sources[i].text)) {
        FailureOr<mlir::DictionaryAttr> from = dataFrom(part.sources[i], part.aheads[i]);
        if (failed(from))
          return failure();
        types.push_back(dataType);
        attributes.push_back(*from);
        continue;
      }
      bool data = isData(name.text), comesByName = !part.sources[i].text.empty();
      auto maker = find_if(model.parts, [&](const ModelPart &one) { return one.name.text == part.sources[i].text; });
      bool isWrong = comesByName ? maker != model.parts.end() && built[maker - model.parts.begin()].isWrong : !given;
      if (isWrong && !data) {
        unknown.push_back(name.text);
        types.push_back(dataType);
        attributes.push_back(builder.getDictionaryAttr({}));
        continue;
      }
      FailureOr<ModelSkips::Value> skip = skips.find(part, i);
      if (failed(skip))
        return failure();
      if (skip->name) {
        types.push_back(skip->type);
        attributes.push_back(builder.getDictionaryAttr(builder.getNamedAttr(nn::kFromAttr, skip->name)));
        continue;
      }
      types.push_back(data ? dataType : inputs.front());
      inputs = inputs.drop_front(!data);
      attributes.push_back(
          data ? builder.getDictionaryAttr(builder.getNamedAttr(nn::kDataAttr, builder.getStringAttr(name.text)))
               : builder.getDictionaryAttr({}));
    }
    addedAt = types.size();
    for (StringRef name : kAdded) {
      types.push_back(dataType);
      attributes.push_back(builder.getDictionaryAttr(builder.getNamedAttr(nn::kDataAttr, builder.getStringAttr(name))));
      names.push_back({"", part.name.at});
    }
    for (const ModelColumns::Column &column : columnsOf(part)) {
      types.push_back(column.type);
      attributes.push_back(
          builder.getDictionaryAttr(builder.getNamedAttr(nn::kDataAttr, builder.getStringAttr("column"))));
      names.push_back({"", part.name.at});
    }
    FailureOr<SmallVector<ModelWeight>> read = weights.of(part);
    if (failed(read))
      return failure();
    for (const ModelWeight &weight : *read) {
      evaluator.setCallers(weight.declared->calls);
      FailureOr<RankedTensorType> type = weights.typeOf(*weight.declared);
      FailureOr<nn::WeightAttr> said = failed(type) ? FailureOr<nn::WeightAttr>() : weights.attributeOf(weight);
      if (failed(type) || failed(said))
        return failure();
      types.push_back(*type);
      attributes.push_back(builder.getDictionaryAttr(builder.getNamedAttr(nn::kWeightAttr, *said)));
      names.push_back(weight.declared->name);
    }
    evaluator.setCallers({});
    return buildFunction(number, names, types, attributes, unknown);
  }

  LogicalResult buildFunction(unsigned number, ArrayRef<Name> names, ArrayRef<mlir::Type> types,
                              ArrayRef<mlir::DictionaryAttr> attributes, ArrayRef<StringRef> unknown) {
    const ModelPart &part = model.parts[number];
    current = &part;
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
    formulas.clear();
    losses.clear();
    statistics.clear();
    logits.clear();
    means.clear();
    weighed.clear();
    added.clear();
    append_range(added, function.getArguments().slice(addedAt, std::size(kAdded)));
    const unsigned columnsAt = addedAt + std::size(kAdded);
    for (auto [column, argument] : zip(columnsOf(part), function.getArguments().drop_front(columnsAt))) {
      bool isInt = column.isInt();
      std::optional<ModelFormulas::Formed> formed;
      if (!isInt)
        formed = formulas.ofTokens(column.name.text, argument);
      else if (column.isMade())
        groups = argument;
      if (failed(define({column.name, isInt ? argument : mlir::Value(), formed})))
        return failure();
    }
    for (auto [name, argument] : zip(names, function.getArguments()))
      if (!name.text.empty() && failed(define(name, is_contained(unknown, name.text) ? mlir::Value() : argument)))
        return failure();
    unsigned wrong = unknown.size();
    for (const ModelPart::Definition &definition : part.definitions) {
      evaluator.setCallers(definition.calls);
      if (failed(let(part, definition))) {
        for (const Name &name : definition.names)
          if (!find(name.text))
            values.push_back({name, mlir::Value(), std::nullopt});
        if (++wrong == kMostErrors)
          return failure();
      }
    }
    evaluator.setCallers({});
    SmallVector<mlir::Value> returned;
    for (const Expr *expr : part.results) {
      FailureOr<mlir::Value> value = tensor(expr);
      wrong += failed(value);
      returned.push_back(value.value_or(mlir::Value()));
    }
    if (wrong || failed(losses.finish(builder, evaluator, isLast(part), shape.sequence, part.reports, returned)))
      return failure();
    append_range(built[number].results, mlir::ValueRange(returned).getTypes());
    if (failed(returnSkips(part, function, returned)))
      return failure();
    builder.create<mlir::func::ReturnOp>(source.location(part.returnAt), returned);
    function.setFunctionType(builder.getFunctionType(types, mlir::ValueRange(returned).getTypes()));
    if (isLast(part))
      columns.finish(function, columnsAt, columnList);
    for (auto [mean, column] : weighed)
      for (mlir::Operation *each : losses.copiesOf(mean))
        cast<nn::TokenMeanOp>(each).setDivisor(nn::kDivisorOfColumn +
                                               cast<mlir::IntegerAttr>(saidOf(column, nn::kColumnAttr)).getInt());
    for (size_t i = added.size(); i-- > 0;)
      if (added[i].use_empty())
        function.eraseArgument(addedAt + i);
    return success();
  }

  /// Returns the values that other parts take, behind those for the next part. The part reads such values of other
  /// parts itself.
  LogicalResult returnSkips(const ModelPart &part, mlir::func::FuncOp function,
                            SmallVectorImpl<mlir::Value> &returned) {
    SmallVector<mlir::Attribute> names;
    for (const Name &name : skips.wantedOf(part))
      if (const Known *known = find(name.text)) {
        names.push_back(builder.getStringAttr(ModelSkips::nameOf(part, name)));
        skips.add(part, name, known->value.getType());
        returned.push_back(known->value);
      }
    if (!names.empty())
      function->setAttr(nn::kSkipsAttr, builder.getArrayAttr(names));
    for (auto [i, name, from] : enumerate(part.parameters, part.sources))
      if (!from.text.empty() && function.getArgument(i).use_empty() && !is_contained(returned, function.getArgument(i)))
        return evaluator.fail(name.at, "part `" + part.name.text + "` takes `" + name.text + "` from `" + from.text +
                                           "` and does not read it");
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

  LogicalResult let(const ModelPart &part, const ModelPart::Definition &definition) {
    if (definition.names.size() == 1 && isFormula(definition.value)) {
      FailureOr<Known> made = single(definition.value);
      Name name = definition.names[0];
      if (succeeded(made) && made->formed && isWritten(part, name.text)) {
        FailureOr<mlir::Value> value = formulas.write(definition.value, *made->formed);
        made = failed(value) ? FailureOr<Known>() : Known{name, *value, std::nullopt};
      }
      return failed(made) ? failure() : define({name, made->value, made->formed});
    }
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

  FailureOr<mlir::Value> tensor(const Expr *expr, StringRef reader = "a part") {
    FailureOr<Tensors> made = isFormula(expr) ? formula(expr, reader) : tensors(expr);
    if (failed(made))
      return failure();
    if (made->size() != 1)
      return evaluator.fail(expr->at, "`" + expr->text + "` gives " + Twine(made->size()) +
                                          " values; name them with `let a, b, .. = ..`");
    return made->front();
  }

  FailureOr<Tensors> tensors(const Expr *expr) {
    if (isFormula(expr))
      return formula(expr);
    if (isMean(expr)) {
      FailureOr<mlir::Value> loss = lossOf(expr);
      return failed(loss) ? FailureOr<Tensors>() : Tensors{*loss};
    }
    if (isLoss(expr) && is_contained({Expr::Negate, Expr::Subtract, Expr::Quotient}, expr->kind))
      return weighted(expr);
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
    if (expr->kind == Expr::List) {
      Tensors all;
      for (const Expr *item : expr->operands) {
        FailureOr<mlir::Value> value = tensor(item);
        if (failed(value))
          return failure();
        all.push_back(*value);
      }
      return all;
    }
    if (expr->kind == Expr::Index)
      return evaluator.fail(expr->at, "expected a tensor, got `" + expr->text +
                                          "`; the tensors of a split have names: `let a, b = split(..)`");
    if (expr->kind != Expr::Add)
      return evaluator.fail(expr->at, "expected a tensor, got `" + expr->text +
                                          "`; frontend/OPERATIONS.md has the operations of tensors");
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
    if (expr->kind == Expr::Call && functionOf(expr))
      return evaluator.fail(expr->at,
                            "a loss that a function gives is named before it is used: `let loss = " + expr->text + "`");
    return evaluator.fail(expr->at, "`" + expr->text +
                                        "` is a loss; it can only be multiplied by a number, added to a " +
                                        "loss, or returned");
  }

  /// Whether the expression speaks of tensors; one that does not is evaluated.
  bool isTensor(const Expr *expr) {
    if (expr->kind == Expr::Variable)
      return find(expr->name) != nullptr;
    return (expr->kind == Expr::Call && findModelOp(expr->name) && !functionOf(expr)) ||
           any_of(expr->operands, [&](const Expr *operand) { return isTensor(operand); });
  }

  //===-- Formulas ----------------------------------------------------------------------------------------------===//

  /// The function of the file that is called with tensors; null if that is none.
  const Function *functionOf(const Expr *expr) {
    Binding *found = expr->kind == Expr::Call ? evaluator.globals.find(expr->name) : nullptr;
    bool speaks = found && any_of(expr->operands, [&](const Expr *operand) { return isTensor(operand); });
    return speaks ? found->function : nullptr;
  }

  bool isLoss(const Expr *expr) {
    if (expr->kind == Expr::Variable) {
      const Known *known = find(expr->name);
      return known && known->value && losses.isLoss(known->value);
    }
    if (expr->kind == Expr::Multiply || expr->kind == Expr::Quotient)
      return (isLoss(expr->operands[0]) && !isTensor(expr->operands[1])) ||
             (expr->kind == Expr::Multiply && isLoss(expr->operands[1]) && !isTensor(expr->operands[0]));
    if (expr->kind == Expr::Add || expr->kind == Expr::Subtract)
      return isLoss(expr->operands[0]) && isLoss(expr->operands[1]);
    if (expr->kind == Expr::Negate)
      return isLoss(expr->operands[0]);
    if (!isMean(expr))
      return expr->kind == Expr::Call && expr->name == "cross_entropy";
    FailureOr<mlir::Value> loss = lossOf(expr);
    return failed(loss) || *loss;
  }

  //===-- Losses of tokens --------------------------------------------------------------------------------------===//

  /// A function of logits: logprob(z, ids), entropy(z), and of what these read logsumexp(z) and mean(z).
  bool readsLogits(const Expr *expr) {
    if (expr->kind != Expr::Call || evaluator.globals.find(expr->name) || expr->operands.empty())
      return false;
    StringRef z = expr->operands[0]->kind == Expr::Variable ? expr->operands[0]->name : StringRef();
    return expr->name == "logprob" || expr->name == "entropy" ||
           (is_contained({"logsumexp", "mean"}, expr->name) && !z.empty() && areLogits(z));
  }

  /// Whether logprob, entropy or cross_entropy read this name, in the part or in the function that is being inlined, or
  /// where that function is called.
  bool areLogits(StringRef z) {
    if (const Known *known = find(z); known && known->value && logits.contains(known->value))
      return true;
    auto reads = [&](auto self, const Expr *expr) -> bool {
      bool isIt = expr->kind == Expr::Call && is_contained({"logprob", "entropy", "cross_entropy"}, expr->name) &&
                  !expr->operands.empty() && expr->operands[0]->kind == Expr::Variable && expr->operands[0]->name == z;
      return isIt || any_of(expr->operands, [&](const Expr *operand) { return self(self, operand); });
    };
    SmallVector<const Expr *> all;
    if (callers.empty()) {
      for (const ModelPart::Definition &definition : current->definitions)
        all.push_back(definition.value);
      all.append(current->results.begin(), current->results.end());
    } else if (const Function *function = callers.back().function; function->value) {
      all.push_back(function->value);
    } else {
      for (const Statement *statement : function->body) {
        if (const auto *end = dyn_cast<ReturnStatement>(statement))
          all.push_back(end->value);
        else if (const auto *let = dyn_cast<LetStatement>(statement))
          for (const LetStatement::Definition &definition : let->definitions)
            all.push_back(definition.value);
      }
    }
    return any_of(all, [&](const Expr *expr) { return reads(reads, expr); });
  }

  static mlir::Attribute saidOf(mlir::Value value, StringRef name) {
    auto argument = dyn_cast_or_null<mlir::BlockArgument>(value);
    return argument
               ? cast<mlir::func::FuncOp>(argument.getOwner()->getParentOp()).getArgAttr(argument.getArgNumber(), name)
               : mlir::Attribute();
  }
  bool isTargets(mlir::Value value) const { return saidOf(value, nn::kDataAttr) == builder.getStringAttr("targets"); }

  /// The first targets that the part takes.
  mlir::Value targetsOf(const Expr *expr) {
    for (const Known &known : partValues())
      if (isTargets(known.value))
        return known.value;
    (void)evaluator.fail(expr->at, "`" + expr->name + "` is of tokens that have a target; part `" + current->name.text +
                                       "` takes no `targets`");
    return {};
  }

  /// Statistics of logits; those of one softcap and one choice of columns are made once.
  FailureOr<nn::TokenStatsOp> statisticsOf(const Expr *expr, mlir::Value z, mlir::Value ids, double softcap) {
    mlir::Value targets = ids && isTargets(ids) ? ids : targetsOf(expr);
    if (!targets)
      return failure();
    for (auto op : statistics)
      if (op.getZ() == z && op.getSoftcap().convertToDouble() == softcap && op.getTargets() == targets &&
          (!ids || op.getIds() == ids))
        return op;
    FailureOr<mlir::Operation *> op =
        nn::createOp(builder, evaluator.location(expr->at), "token_stats", {z, targets, ids ? ids : targets},
                     builder.getNamedAttr("softcap", builder.getF64FloatAttr(softcap)));
    if (failed(op))
      return failure();
    statistics.push_back(cast<nn::TokenStatsOp>(*op));
    return statistics.back();
  }

  ModelFormulas::FormedOr ofLogits(const Expr *expr) {
    bool picks = expr->name == "logprob";
    double softcap = 0;
    SmallVector<const Expr *> given;
    for (auto [i, operand] : enumerate(expr->operands)) {
      StringRef label = options.labelOf(expr, i).text;
      if (label.empty()) {
        given.push_back(operand);
        continue;
      }
      if (label != "softcap")
        return evaluator.fail(operand->at, "`" + expr->name + "` has no option `" + label + "`; it has `softcap`");
      FailureOr<double> cap = evaluator.evaluateNumber(operand, parameters);
      if (failed(cap))
        return failure();
      if ((softcap = *cap) < 0 || !std::isfinite(softcap))
        return evaluator.fail(operand->at, "expected a number of at least 0 for `softcap`, got " + operand->text);
    }
    if (given.size() != (picks ? 2 : 1))
      return evaluator.fail(expr->at, "`" + expr->name + "` takes " + (picks ? "2 values" : "1 value") + ", got " +
                                          Twine(given.size()) + ": `" + expr->name + (picks ? "(z, targets" : "(z") +
                                          ", softcap = 0.0)`");
    FailureOr<mlir::Value> z = tensor(given[0], ("`" + expr->name + "`").str()), ids = mlir::Value();
    const Known *ints = picks && given[1]->kind == Expr::Variable ? find(given[1]->name) : nullptr;
    if (ints && isInts(*ints))
      ids = ints->value;
    else if (picks)
      ids = tensor(given[1], "`logprob`");
    if (failed(z) || failed(ids))
      return failure();
    if (picks && !cast<RankedTensorType>(ids->getType()).getElementType().isInteger(32))
      return evaluator.fail(given[1]->at, "`logprob` expects `targets`, or a column of ints, got `" + given[1]->text +
                                              "`, which holds numbers");
    auto made = statisticsOf(expr, *z, *ids, softcap);
    if (failed(made))
      return failure();
    auto lse = formulas.ofTokens(expr->text, made->getLse());
    if (picks)
      return formulas.difference(expr, formulas.ofTokens(expr->text, made->getPicks()), lse);
    if (expr->name == "entropy")
      return formulas.difference(expr, lse, formulas.ofTokens(expr->text, made->getMeanP()));
    return expr->name == "mean" ? formulas.ofTokens(expr->text, made->getMean()) : lse;
  }

  /// `mean(v)` or `total(v)`, which is a loss if v is one number for each token.
  bool isMean(const Expr *expr) {
    return expr->kind == Expr::Call && is_contained({"mean", "total"}, expr->name) &&
           !evaluator.globals.find(expr->name) && !expr->operands.empty() && isTensor(expr->operands[0]) &&
           !readsLogits(expr) && !isOver(expr);
  }

  /// The loss, or null of a mean over a width. It is made once; what is wrong in it is said once.
  FailureOr<mlir::Value> lossOf(const Expr *expr) {
    auto known = means.find(expr);
    if (known == means.end())
      known = means.try_emplace(expr, meanOf(expr)).first;
    return known->second;
  }

  FailureOr<mlir::Value> meanOf(const Expr *expr) {
    ModelFormulas::FormedOr v = formed(expr->operands[0]);
    if (failed(v))
      return failure();
    bool isMean = expr->name == "mean";
    if (!formulas.isOfTokens(*v) && isMean)
      return mlir::Value();
    if (!formulas.isOfTokens(*v))
      return evaluator.fail(expr->at, "`total` adds up one number for each token, and `" + v->text + "` is none");
    if (current != &model.parts.back())
      return evaluator.fail(expr->at, "`" + v->text + "` has one number for each token; losses are for the last part");
    SegmentKind kind = segmentOf(*v);
    mlir::Value by; // the column that weighs it
    mlir::NamedAttrList said;
    mlir::OperationName("nn.token_mean", builder.getContext()).populateDefaultAttrs(said);
    if (!isMean || shape.documents || kind.starts)
      said.set(isMean ? "counted" : "total", builder.getUnitAttr());
    if (isMean && kind.divisor)
      said.set("divisor", builder.getI64IntegerAttr(kind.divisor));
    for (size_t i = 1; i < expr->operands.size(); ++i) {
      FailureOr<mlir::Value> column = weightOf(expr, i, kind);
      if (failed(column))
        return failure();
      by = *column;
      said.set("counted", builder.getUnitAttr());
      ModelFormulas::FormedOr weight = formed(expr->operands[i]);
      v = failed(weight) ? ModelFormulas::FormedOr() : formulas.product(expr, *v, *weight);
      if (failed(v))
        return failure();
    }
    FailureOr<mlir::Value> tokens = formulas.writeTokens(expr, *v);
    FailureOr<mlir::Value> targets = failed(tokens) ? FailureOr<mlir::Value>() : targetsOf(expr, *v);
    if (failed(targets))
      return failure();
    if ((by || kind.starts) && saidOf(*targets, nn::kAheadAttr))
      return evaluator.fail(expr->at, "`" + expr->operands[0]->text +
                                          "` is of targets further on; columns and documents are of `targets`");
    SmallVector<mlir::Value> operands = {*tokens, *targets};
    if (kind.starts)
      operands.push_back(kind.starts);
    FailureOr<mlir::Operation *> op =
        nn::createOp(builder, evaluator.location(expr->at), "token_mean", operands, said.getAttrs());
    if (failed(op))
      return failure();
    mlir::Value loss = (*op)->getResult(0);
    losses.add(loss, expr->at);
    if (by)
      weighed.push_back({cast<nn::TokenMeanOp>(*op), by});
    return loss;
  }

  /// Calls `use` with the ops behind the formulas that the value is made of.
  template <class Use> void forMakers(ModelFormulas::Formed v, Use use) {
    SmallVector<mlir::Value> open = formulas.tensorsOf(v);
    while (!open.empty()) {
      mlir::Value value = open.pop_back_val();
      if (auto map = value.getDefiningOp<nn::MapOp>())
        append_range(open, map.getTensors());
      else
        use(value);
    }
  }

  /// Where the documents, or groups, begin if a value is one of these: made of their sums alone.
  struct SegmentKind {
    mlir::Value starts;
    int64_t divisor = 0;
  };
  SegmentKind segmentOf(ModelFormulas::Formed v) {
    SegmentKind kind;
    bool isOne = true;
    forMakers(v, [&](mlir::Value value) {
      auto sum = value.getDefiningOp<nn::SegmentSumOp>();
      isOne &= sum && (!kind.starts || kind.starts == sum.getStarts());
      if (sum)
        kind.starts = sum.getStarts();
    });
    if (!isOne || !kind.starts)
      return {};
    kind.divisor = kind.starts == added[0] ? nn::kDivisorOfDocuments : nn::kDivisorOfGroups;
    return kind;
  }

  /// The column w of `mean(v, weight = w)`.
  FailureOr<mlir::Value> weightOf(const Expr *expr, size_t i, SegmentKind kind) {
    const Expr *weight = expr->operands[i];
    if (expr->name != "mean" || i > 1 || options.labelOf(expr, i).text != "weight")
      return evaluator.fail(weight->at, "`" + expr->name + "` of tokens takes 1 value" +
                                            (expr->name == "mean" ? ", and may have `weight = column`" : ""));
    const Known *known = weight->kind == Expr::Variable ? find(weight->name) : nullptr;
    const ModelColumns::Column *column = known && known->formed ? columns.find(weight->name) : nullptr;
    if (!column || column->isMade() || column->name.at != known->name.at || column->type.getRank() != 2)
      return evaluator.fail(weight->at, "the weight of a mean is known before the step: a column with one number for " +
                                            Twine("each token; `") + weight->text + "` is none");
    if (kind.starts)
      return evaluator.fail(weight->at, "a mean over documents has no weight");
    return formulas.tensorsOf(*known->formed).front();
  }

  /// `sum(v, over = document)`, which every token of a document has, or `over = group`; or their `mean`.
  bool isOver(const Expr *expr) {
    return expr->kind == Expr::Call && is_contained({"sum", "mean"}, expr->name) &&
           !evaluator.globals.find(expr->name) && expr->operands.size() == 2 &&
           options.labelOf(expr, 1).text == "over" && isTensor(expr->operands[0]);
  }
  ModelFormulas::FormedOr sumOver(const Expr *expr) {
    const Expr *over = expr->operands[1];
    bool isOfGroups = over->name == "group";
    if (over->kind != Expr::Variable || (over->name != "document" && !isOfGroups))
      return evaluator.fail(over->at, "expected `document` or `group` behind `over =`, got `" + over->text + "`");
    if (!shape.documents)
      return evaluator.fail(over->at,
                            "`over = " + over->name + "` needs `data .., documents = true`, where rows hold documents");
    if (isOfGroups && shape.group == 1)
      return needsGroups(over, "over = group");
    ModelFormulas::FormedOr v = formed(expr->operands[0]);
    if (failed(v))
      return failure();
    if (!formulas.isOfTokens(*v))
      return evaluator.fail(expr->at, "`over = " + over->name + "` adds up one number for each token, and `" + v->text +
                                          "` is none");
    FailureOr<mlir::Value> tokens = formulas.writeTokens(expr, *v);
    FailureOr<mlir::Value> targets = failed(tokens) ? FailureOr<mlir::Value>() : targetsOf(expr, *v);
    if (failed(targets))
      return failure();
    mlir::NamedAttrList said;
    mlir::OperationName("nn.segment_sum", builder.getContext()).populateDefaultAttrs(said);
    if (expr->name == "mean")
      said.set("mean", builder.getUnitAttr());
    FailureOr<mlir::Operation *> op =
        nn::createOp(builder, evaluator.location(expr->at), "segment_sum",
                     {*tokens, *targets, isOfGroups ? groups : added[0]}, said.getAttrs());
    return failed(op) ? ModelFormulas::FormedOr() : formulas.ofTokens(expr->text, (*op)->getResult(0));
  }

  /// The targets of the log-probabilities that the value is made of; without any, the first that the part takes.
  FailureOr<mlir::Value> targetsOf(const Expr *expr, ModelFormulas::Formed v) {
    SmallVector<mlir::Value> all;
    forMakers(v, [&](mlir::Value value) {
      mlir::Operation *maker = value.getDefiningOp();
      if (isa_and_present<nn::TokenStatsOp, nn::SegmentSumOp>(maker) && !is_contained(all, maker->getOperand(1)))
        all.push_back(maker->getOperand(1));
    });
    if (all.size() > 1)
      return evaluator.fail(expr->at, "`" + v.text + "` is made of the log-probabilities of two kinds of targets; " +
                                          "take a mean of each");
    mlir::Value targets = all.empty() ? targetsOf(expr) : all.front();
    return targets ? FailureOr<mlir::Value>(targets) : FailureOr<mlir::Value>();
  }

  /// Whether it is computed as a formula: not a tensor that is there, an operation's, or a sum of these.
  bool isFormula(const Expr *expr) {
    if (!isTensor(expr) || isLoss(expr))
      return false;
    auto isVector = [&](const Expr *operand) {
      const Known *known = operand->kind == Expr::Variable ? find(operand->name) : nullptr;
      return known && known->value && cast<RankedTensorType>(known->value.getType()).getRank() == 1 &&
             !losses.isLoss(known->value);
    };
    switch (expr->kind) {
    case Expr::Variable:
      return find(expr->name)->formed.has_value();
    case Expr::Call:
      return functionOf(expr) || (!findModelOp(expr->name) && ModelFormulas::isFunction(expr->name));
    case Expr::Add:
      return any_of(expr->operands, [&](const Expr *operand) { return isFormula(operand) || isVector(operand); }) ||
             !all_of(expr->operands, [&](const Expr *operand) { return isTensor(operand); });
    case Expr::Conditional:
      return isTensor(expr->operands[0]);
    default:
      return expr->kind != Expr::List && expr->kind != Expr::Index;
    }
  }

  FailureOr<const Expr *> branch(const Expr *expr) {
    const Expr *condition = expr->operands[0], *yes = expr->operands[1], *no = expr->operands[2];
    if (!isTensor(condition))
      return weights.branch(expr);
    return evaluator.fail(condition->at, "`" + condition->text +
                                             "` is a tensor; `if` chooses when the model is compiled, " + "and where(" +
                                             condition->text + ", " + yes->text + ", " + no->text +
                                             ") chooses for each element");
  }

  /// A value that is written, or one of a formula that is not.
  FailureOr<Known> single(const Expr *expr) {
    if (const Function *function = functionOf(expr))
      return inlined(function, expr);
    if (expr->kind == Expr::Variable && find(expr->name) && find(expr->name)->formed)
      return *find(expr->name);
    if (!isFormula(expr)) {
      FailureOr<mlir::Value> value = tensor(expr);
      return failed(value) ? FailureOr<Known>() : Known{{}, *value, std::nullopt};
    }
    ModelFormulas::FormedOr made = formed(expr);
    return failed(made) ? FailureOr<Known>() : Known{{}, {}, *made};
  }

  FailureOr<Tensors> formula(const Expr *expr, StringRef reader = "a part") {
    FailureOr<Known> made = single(expr);
    if (failed(made))
      return failure();
    FailureOr<mlir::Value> value = made->formed ? formulas.write(expr, *made->formed, reader) : FailureOr(made->value);
    return failed(value) ? FailureOr<Tensors>() : Tensors{*value};
  }

  /// The value as an operand of a formula.
  ModelFormulas::FormedOr formed(const Expr *expr) {
    if (!isTensor(expr)) {
      FailureOr<double> number =
          failed(checkAbsent(expr)) ? FailureOr<double>() : evaluator.evaluateNumber(expr, parameters);
      return failed(number) ? ModelFormulas::FormedOr() : formulas.number(expr, *number);
    }
    if (readsLogits(expr))
      return ofLogits(expr);
    if (isOver(expr))
      return sumOver(expr);
    bool isBuiltIn = expr->kind == Expr::Call && isFormula(expr) && !functionOf(expr);
    if (expr->kind == Expr::Conditional) {
      FailureOr<const Expr *> taken = branch(expr);
      return failed(taken) ? ModelFormulas::FormedOr() : formed(*taken);
    }
    if ((expr->kind == Expr::Call && !isBuiltIn) || expr->kind == Expr::Variable) {
      FailureOr<Known> made = single(expr);
      if (failed(made) || (made->value && failed(checkNoLoss(expr, made->value))))
        return failure();
      return made->formed ? ModelFormulas::FormedOr(*made->formed) : formulas.tensor(expr, made->value);
    }
    if (is_contained({Expr::Divide, Expr::Modulo, Expr::Range, Expr::List, Expr::Index, Expr::Comprehension},
                     expr->kind))
      return evaluator.fail(expr->at, "`" + expr->text + "` is no formula; its operators are + - * /, comparisons, " +
                                          "and `and or not`");
    SmallVector<ModelFormulas::Formed> operands;
    int64_t heads = 1;
    for (auto [i, operand] : enumerate(expr->operands)) {
      bool isHeads = isBuiltIn && (options.labelOf(expr, i).text == "heads" ||
                                   (i == 1 && is_contained({"every_head", "of_heads"}, expr->name)));
      if (isHeads) {
        FailureOr<int64_t> count = evaluator.evaluateInt(operand, parameters, "for the number of heads");
        if (failed(count))
          return failure();
        if ((heads = *count) < 1)
          return evaluator.fail(operand->at, "expected at least 1 head, got " + Twine(heads));
        continue;
      }
      if (isBuiltIn && !options.labelOf(expr, i).text.empty())
        return evaluator.fail(operand->at, "`" + expr->name +
                                               "` goes over the width of a row, or with heads = n over " +
                                               "each head's columns");
      ModelFormulas::FormedOr value = formed(operand);
      if (failed(value))
        return failure();
      operands.push_back(*value);
    }
    return isBuiltIn ? formulas.call(expr, operands, heads) : formulas.apply(expr, operands);
  }

  /// What a function of the file gives for these tensors and numbers: its text stands in place of the call.
  FailureOr<Known> inlined(const Function *function, const Expr *expr) {
    StringRef name = function->name.text;
    if (function->parameters.size() != expr->operands.size())
      return evaluator.fail(expr->at,
                            "`" + name + "` takes " + Twine(function->parameters.size()) + " values, got " +
                                Twine(expr->operands.size()),
                            function->name.at, "`" + name + "` is declared here");
    if (callers.size() == 100)
      return evaluator.fail(expr->at, "`" + name + "` calls itself 100 deep; the limit is 100");
    Scope inner(nullptr, function);
    SmallVector<Known> given;
    for (auto [parameter, operand] : zip(function->parameters, expr->operands)) {
      const Known *ints = operand->kind == Expr::Variable ? find(operand->name) : nullptr;
      if (ints && isInts(*ints)) {
        given.push_back({parameter, ints->value, std::nullopt});
        continue;
      }
      if (isTensor(operand)) {
        FailureOr<Known> value = single(operand);
        if (failed(value))
          return failure();
        given.push_back({parameter, value->value, value->formed});
        if (value->value && operand->kind == Expr::Variable && areLogits(operand->name))
          logits.insert(value->value);
        continue;
      }
      FailureOr<Value> value = evaluator.evaluate(operand, parameters);
      if (failed(value))
        return failure();
      inner.bind(parameter, std::move(*value));
    }
    DenseMap<const Expr *, FailureOr<mlir::Value>> outside;
    std::swap(parameters, inner);
    std::swap(values, given);
    std::swap(means, outside);
    callers.push_back({&given, function});
    FailureOr<Known> result = function->value ? single(function->value) : body(function);
    callers.pop_back();
    std::swap(means, outside);
    std::swap(values, given);
    std::swap(parameters, inner);
    if (succeeded(result) && result->formed)
      result->formed->text = expr->text;
    return result;
  }

  FailureOr<Known> body(const Function *function) {
    for (const Statement *statement : function->body) {
      if (const auto *end = dyn_cast<ReturnStatement>(statement))
        return single(end->value);
      const auto *let = dyn_cast<LetStatement>(statement);
      if (!let || let->changes)
        return evaluator.fail(statement->at, "a function that is called with tensors has `let` and `return` alone");
      for (const LetStatement::Definition &definition : let->definitions) {
        if (isTensor(definition.value)) {
          FailureOr<Known> made = single(definition.value);
          if (failed(made) || failed(define({definition.name, made->value, made->formed})))
            return failure();
          continue;
        }
        FailureOr<Value> value = evaluator.evaluate(definition.value, parameters);
        if (failed(value))
          return failure();
        parameters.bind(definition.name, std::move(*value));
      }
    }
    return evaluator.fail(function->name.at, "`" + function->name.text + "` ends without `return`");
  }

  /// Whether an operation reads the value of this name, or the part returns it.
  bool isWritten(const ModelPart &part, StringRef name) {
    return any_of(part.results, [&](const Expr *result) { return readsWhole(result, name, true); }) ||
           any_of(part.definitions,
                  [&](const ModelPart::Definition &each) { return readsWhole(each.value, name, false); }) ||
           any_of(skips.wantedOf(part), [&](const Name &wanted) { return wanted.text == name; });
  }
  bool readsWhole(const Expr *expr, StringRef name, bool isWhole, unsigned depth = 0) {
    if (expr->kind == Expr::Variable)
      return isWhole && expr->name == name;
    Binding *found = expr->kind == Expr::Call ? evaluator.globals.find(expr->name) : nullptr;
    const Function *function = found ? found->function : nullptr;
    bool passes = expr->kind == Expr::List || expr->kind == Expr::Conditional;
    bool isOp = expr->kind == Expr::Call && !function &&
                (findModelOp(expr->name) || is_contained({"logprob", "entropy"}, expr->name));
    for (auto [i, operand] : enumerate(expr->operands)) {
      bool takesWhole = (isOp && !ModelOptions::isOfHeads(expr->name, i)) || (passes && isWhole);
      if (function && function->value && i < function->parameters.size() && depth < 100)
        takesWhole = readsWhole(function->value, function->parameters[i].text, false, depth + 1);
      if (readsWhole(operand, name, takesWhole, depth + 1))
        return true;
    }
    return false;
  }

  /// A number times a loss, a loss by a number, one less another, or less than nothing.
  FailureOr<Tensors> weighted(const Expr *expr) {
    const Expr *weight = expr->operands[0], *loss = expr->operands.back();
    if (expr->kind == Expr::Negate || expr->kind == Expr::Subtract) {
      FailureOr<mlir::Value> before = tensor(weight), last = tensor(loss);
      if (failed(before) || failed(last))
        return failure();
      mlir::Value less = losses.scaled(builder, *last, -1);
      return Tensors{expr->kind == Expr::Negate ? less : losses.sum(builder, *before, less)};
    }
    if (isTensor(weight))
      std::swap(weight, loss);
    if (!isTensor(loss))
      return evaluator.fail(expr->at, "expected a tensor, got `" + expr->text +
                                          "`; frontend/OPERATIONS.md has the operations of tensors");
    FailureOr<mlir::Value> value = tensor(loss);
    FailureOr<double> factor = failed(value) ? FailureOr<double>() : evaluator.evaluateNumber(weight, parameters);
    if (failed(value) || failed(factor))
      return failure();
    if (expr->kind == Expr::Quotient && *factor == 0)
      return evaluator.fail(weight->at, "a loss is divided by 0");
    return Tensors{losses.scaled(builder, *value, expr->kind == Expr::Quotient ? 1 / *factor : *factor)};
  }

  LogicalResult needsGroups(const Expr *expr, StringRef what) {
    return evaluator.fail(expr->at, "`" + what + "` needs `data .., documents = true, group = N`: so many documents " +
                                        "of the data stay together in a row");
  }

  /// Names that nothing defines, where a tensor may stand: columns where they are not read, and those that may have
  /// been forgotten.
  LogicalResult checkAbsent(const Expr *expr) {
    for (const Expr *operand : expr->kind == Expr::Comprehension ? ArrayRef<Expr *>() : expr->operands)
      if (failed(checkAbsent(operand)))
        return failure();
    StringRef name = expr->name;
    bool isWord = is_contained({"ranks", "microbatches", "slices", "layers", "stage", "model", "schedule"}, name);
    if (expr->kind != Expr::Variable || isWord || parameters.find(name) || evaluator.globals.find(name))
      return success();
    if (evaluator.isIncomplete)
      return failure();
    if (columns.find(name) && callers.empty() && !isLast(*current))
      return evaluator.fail(expr->at, "`" + name + "` is a column of the dataset, which the last part, `" +
                                          model.parts.back().name.text + "`, alone reads");
    if (ModelColumns::isMade(name) && shape.group == 1)
      return needsGroups(expr, name);
    SmallVector<StringRef> names;
    for (const Known &known : values)
      names.push_back(known.name.text);
    for (const Binding &bound : parameters.bindings)
      names.push_back(bound.name.text);
    std::string meant = didYouMean(name, names);
    if (isLast(*current) && callers.empty() && meant.empty())
      meant = ("; if the dataset has it, write `column " + name + "` in the model").str();
    return evaluator.fail(expr->at, "`" + name + "` is not defined" + meant);
  }

  FailureOr<Tensors> variable(const Expr *expr) {
    for (const Known &known : values) {
      if (known.name.text == expr->name && isInts(known))
        return evaluator.fail(expr->at, "`" + expr->name + "` holds ints, which `logprob` alone reads");
      if (known.name.text == expr->name)
        return known.value ? FailureOr<Tensors>(Tensors{known.value}) : FailureOr<Tensors>(); // what defines it failed
    }
    if (const WeightDeclaration *weight = weights.findAbsent(expr))
      return evaluator.fail(expr->at,
                            "`" + expr->name + "` is not there: it is declared if `" + weight->condition->text +
                                "`, which is false",
                            weight->condition->at, "the condition is here");
    if (Binding *found = parameters.find(expr->name))
      return evaluator.fail(expr->at, "expected a tensor, got " + found->value.type() + " " + found->value.text());
    if (failed(checkAbsent(expr)))
      return failure();
    return evaluator.fail(expr->at, "expected a tensor, got the function `" + expr->name + "`");
  }

  FailureOr<Tensors> call(const Expr *expr) {
    const ModelOp *op = findModelOp(expr->name);
    if (!op)
      return options.failUnknown(expr, any_of(expr->operands, [&](const Expr *operand) { return isTensor(operand); }));
    SmallVector<mlir::Value> operands;
    SmallVector<mlir::NamedAttribute> attributes;
    ExpertValues ofExperts;
    for (auto [i, operand] : enumerate(expr->operands)) {
      Name named = options.labelOf(expr, i);
      if (mlir::Value *its = expr->name == "experts" ? ofExperts.find(named.text) : nullptr) {
        FailureOr<mlir::Value> value =
            weights.findAbsent(operand) ? mlir::Value() : tensor(operand, ("`" + named.text + "`").str());
        if (failed(value))
          return failure();
        *its = *value;
        continue;
      }
      if (!named.text.empty()) {
        FailureOr<mlir::Attribute> made = options.read(expr, named, operand);
        if (failed(made))
          return failure();
        if (*made)
          attributes.push_back(
              builder.getNamedAttr(isa<mlir::DenseI64ArrayAttr>(*made) ? StringRef("widths") : named.text, *made));
        continue;
      }
      if (i >= op->mostOperands() - op->optional && weights.findAbsent(operand))
        continue; // `linear(x, w, b)` without b
      FailureOr<mlir::Value> value = ModelOptions::isOfHeads(expr->name, operands.size())
                                         ? ofHeads(operand)
                                         : tensor(operand, ("`" + expr->name + "`").str());
      if (failed(value) || failed(checkNoLoss(operand, *value)))
        return failure();
      operands.push_back(*value);
      if (expr->name == "sink" && operands.size() == 1 && failed(addStatistic(operand, operands)))
        return failure();
    }
    size_t written = operands.size() - (expr->name == "sink" && !operands.empty());
    if (failed(options.checkCount(expr, *op, written)) || failed(options.checkComplete(expr, attributes)))
      return failure();
    if (options.isNothing(expr->name, attributes))
      return Tensors{operands.front()};
    if (expr->name == "experts")
      return experts(expr, operands, ofExperts, attributes);
    return create(expr, options.nameOf(expr->name, attributes), operands, attributes);
  }

  /// A number for each head of a token, in the type of sums.
  FailureOr<mlir::Value> ofHeads(const Expr *expr) {
    ModelFormulas::FormedOr made = formed(expr);
    return failed(made) ? FailureOr<mlir::Value>() : formulas.writeHeads(expr, *made);
  }

  FailureOr<Tensors> experts(const Expr *expr, mlir::ValueRange operands, const ExpertValues &named,
                             ArrayRef<mlir::NamedAttribute> given) {
    auto make = [&](StringRef name, mlir::ValueRange takes,
                    ArrayRef<mlir::NamedAttribute> attributes) -> FailureOr<mlir::Value> {
      FailureOr<Tensors> made = create(expr, name, takes, attributes);
      return failed(made) ? FailureOr<mlir::Value>() : made->front();
    };
    // Documents may leave rows empty. The last step of an evaluation may, too, where only a capacity would see it.
    const bool hasCapacity = any_of(given, [](mlir::NamedAttribute option) {
      return option.getName() == "capacity" && !cast<mlir::FloatAttr>(option.getValue()).getValue().isZero();
    });
    auto squared = [&](mlir::Value its) -> FailureOr<mlir::Value> {
      ModelFormulas::FormedOr relu = formulas.tensor(expr, its);
      return failed(relu) ? FailureOr<mlir::Value>() : formulas.write(expr, formulas.squaredRelu(*relu));
    };
    auto addWeighted = [&](mlir::Value y, mlir::Value u, mlir::Value x) -> FailureOr<mlir::Value> {
      ModelFormulas::FormedOr left = formulas.tensor(expr, y), right = formulas.tensor(expr, x);
      if (failed(left) || failed(right) ||
          failed(right = formulas.product(expr, formulas.ofTokens(expr->text, u), *right)) ||
          failed(left = formulas.sum(expr, *left, *right)))
        return failure();
      return formulas.write(expr, *left);
    };
    FailureOr<mlir::Value> y =
        createExperts(operands, named, shape.documents || hasCapacity ? added[2] : mlir::Value(), given, make, squared,
                      addWeighted, [&](const Twine &why) { return evaluator.fail(expr->at, why); });
    return failed(y) ? FailureOr<Tensors>() : Tensors{*y};
  }

  /// Adds the log-sum-exp of an attention to the operands, behind its output.
  LogicalResult addStatistic(const Expr *expr, SmallVectorImpl<mlir::Value> &operands) {
    auto attention = operands.back().getDefiningOp<nn::AttentionOp>();
    if (expr->kind != Expr::Call || expr->name != "attention" || !attention)
      return evaluator.fail(expr->at, "`sink` stands around an `attention(..)`, got `" + expr->text + "`");
    operands.push_back(attention.getLse());
    return success();
  }

  /// Attention, scans and rotary positions end and begin with documents, where rows have several.
  FailureOr<Tensors> create(const Expr *expr, StringRef name, mlir::ValueRange takes,
                            ArrayRef<mlir::NamedAttribute> given) {
    SmallVector<mlir::Value> operands(takes);
    if (shape.documents && is_contained({"attention", "rope", "conv", "scan"}, name))
      operands.push_back(added[0]);
    if (shape.documents && name == "positions") { // rows of the table by the place in the document
      auto offset = dyn_cast_or_null<mlir::IntegerAttr>(mlir::NamedAttrList(given).get("offset"));
      if (offset && offset.getInt() > 0)
        return evaluator.fail(expr->at, "`positions` with an `offset` is not for `documents = true`, where rows of the "
                                        "table are places in documents");
      int64_t rows = cast<RankedTensorType>(operands[1].getType()).getDimSize(0);
      if (rows < shape.sequence)
        return evaluator.fail(expr->at, "`positions` expects a table of at least " + Twine(shape.sequence) +
                                            " positions, got " + Twine(rows));
      operands[0] = added[1];
      name = "embedding";
    }
    mlir::NamedAttrList attributes(given);
    if (is_contained({"conv", "scan"}, name)) { // with `starts` or without, and no state before a sequence
      SmallVector<int32_t> counts(takes.size(), 1);
      counts.append({shape.documents, 0});
      attributes.set("operandSegmentSizes", builder.getDenseI32ArrayAttr(counts));
    }
    auto rate = name == "attention" ? dyn_cast_or_null<mlir::FloatAttr>(attributes.get("dropout")) : mlir::FloatAttr();
    if (rate && rate.getValueAsDouble() < 1)
      attributes.set("dropout", nn::DropoutAttr::get(builder.getContext(), rate, 0, 0, shape.sequence));
    else if (rate)
      return evaluator.fail(expr->at, "`attention` expects a rate of dropout of at least 0 and below 1, got " +
                                          Value(rate.getValueAsDouble()).text());
    if (name == "dropout" || rate)
      operands.push_back(added[2]);
    mlir::OperationName(("nn." + name).str(), builder.getContext()).populateDefaultAttrs(attributes);
    if (auto keys = dyn_cast_or_null<mlir::IntegerAttr>(attributes.get("key_heads")); keys && keys.getInt() == 1)
      attributes.set("shared", builder.getBoolAttr(true));
    // The text may be right and a size from the command line wrong: an error of shapes names these sizes, too.
    // It names the op as it is written, too: `glu`, of which some are `swiglu`, and `+`.
    mlir::ScopedDiagnosticHandler addSizes(builder.getContext(), [&](mlir::Diagnostic &error) {
      for (mlir::DiagnosticArgument &argument : error.getArguments())
        if (argument.getKind() == mlir::DiagnosticArgument::DiagnosticArgumentKind::String &&
            argument.getAsString() == name)
          argument = mlir::DiagnosticArgument(expr->name);
      for (const Binding &bound : parameters.bindings)
        if (bound.given.isValid())
          error.attachNote(source.location(bound.given)) << "`" << bound.name.text << "` is " << bound.value.text();
      return failure(); // the next handler prints it
    });
    FailureOr<mlir::Operation *> op =
        pp::nn::createOp(builder, evaluator.location(expr->at), name, operands, attributes);
    if (failed(op))
      return failure();
    for (mlir::Type type : (*op)->getResultTypes())
      if (auto tensor = dyn_cast<RankedTensorType>(type))
        if (std::string tooLarge = saysTooLarge(tensor.getShape()); !tooLarge.empty())
          return evaluator.fail(expr->at, "the result of `" + name + "` " + tooLarge);
    if (nn::dropoutSiteOf(*op))
      dropouts.push_back(*op);
    if (auto loss = dyn_cast<pp::nn::CrossEntropyOp>(*op)) {
      loss.setCounted(shape.documents);
      losses.add(loss.getLoss(), expr->at);
    }
    // The model does not see results that an op keeps for its backward.
    return Tensors((*op)->getResults().take_front(name == "split" ? (*op)->getNumResults() : 1));
  }

  Source &source;
  Evaluator &evaluator;
  const Model &model;
  Scope &parameters;
  BatchShape shape;
  const ModelOutline &outline;
  mlir::OpBuilder &builder;
  ModelWeights weights;
  ModelOptions options;
  ModelSkips skips;
  ModelColumns columns;
  SmallVectorImpl<mlir::Attribute> &columnList;
  ModelFormulas formulas;                  // of the part that is being built
  ModelLosses losses;                      // of the part that is being built
  std::vector<Built> built;                // by part
  SmallVector<mlir::Value, 3> added;       // data that the text does not name, as kAdded says
  mlir::Value groups;                      // where groups of documents begin, in the last part
  unsigned addedAt = 0;                    // the number of the first among the arguments
  SmallVector<mlir::Operation *> dropouts; // of the model, in the order of its text
  SmallVector<Known> values;               // of the part that is being built, or of the function that is being inlined
  struct Inlined {
    const SmallVector<Known> *values; // of its caller; the first caller is the part
    const Function *function;
  };
  SmallVector<Inlined> callers;
  const ModelPart *current = nullptr;                           // that is being built
  SmallVector<std::pair<nn::TokenMeanOp, mlir::Value>> weighed; // means, and the columns that weigh them
  SmallVector<nn::TokenStatsOp> statistics;                     // of the part's logits
  DenseSet<mlir::Value> logits;                                 // that a function gets
  DenseMap<const Expr *, FailureOr<mlir::Value>> means;         // that were built, of the part or the function
};
} // namespace

LogicalResult pp::buildModel(Source &source, Evaluator &evaluator, const Model &model, Scope &parameters,
                             BatchShape shape, const ModelOutline &outline, mlir::OpBuilder &builder,
                             SmallVectorImpl<mlir::Attribute> &columns) {
  return ModelBuilder(source, evaluator, model, parameters, shape, outline, builder, columns).build();
}
