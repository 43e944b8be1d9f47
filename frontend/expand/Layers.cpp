// Makes kinds of layers out of `layer NAME in [..]`: layers with equal values are a kind.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   layer window in [0, 4, 4], turned in [1] { part attn .. }   ~~>   layer window0 { .. }  layer window4 { .. }
//                                                                     layers ["window0", "window4", "window4"]
//
// A list with one value is for every layer. A kind is called by the values that differ; where none do, there is one
// kind without a name, as `layer { .. }` makes it: such a model is built as if it had no list.
#include "frontend/expand/Expand.h"

using namespace llvm;
using namespace pp;

/// The int of every layer, or of all of them.
static FailureOr<SmallVector<int64_t>> readValues(Evaluator &evaluator, const LayerVariable &variable,
                                                  Scope &parameters) {
  FailureOr<Value> list = evaluator.evaluate(variable.values, parameters);
  if (failed(list))
    return failure();
  SMLoc at = variable.values->at;
  if (!list->asList())
    return evaluator.fail(at, "expected a list after `in`, an int for every layer, got " + list->type() + " " +
                                  list->text());
  SmallVector<int64_t> values;
  for (auto [layer, item] : enumerate(*list->asList())) {
    if (!item.asInt())
      return evaluator.fail(at,
                            "expected an int for layer " + Twine(layer) + ", got " + item.type() + " " + item.text());
    values.push_back(*item.asInt());
  }
  auto *layers = find_if(parameters.bindings, [](Binding &binding) { return binding.name.text == "layers"; });
  bool isBound = layers != parameters.bindings.end();
  if (values.size() != 1 && isBound && layers->value.asInt() && *layers->value.asInt() != int64_t(values.size()))
    return evaluator.fail(at, "this list has " + Twine(values.size()) + " values; the model has " +
                                  layers->value.text() + " layers");
  return values;
}

/// The values of every layer, one for each variable; of one layer where all lists have one value.
static FailureOr<std::vector<SmallVector<int64_t>>> readLayers(Evaluator &evaluator, const Model &model,
                                                               Scope &parameters) {
  std::vector<SmallVector<int64_t>> lists, layers;
  size_t count = 1;
  for (const LayerVariable &variable : model.layerVariables) {
    for (const LayerVariable &other : model.layerVariables.take_front(lists.size()))
      if (other.name.text == variable.name.text)
        return evaluator.fail(variable.name.at, "`" + variable.name.text + "` is given twice", other.name.at,
                              "first given here");
    if (Binding *same = parameters.find(variable.name.text))
      return evaluator.fail(variable.name.at, "`" + variable.name.text + "` is a parameter, too", same->name.at,
                            "the parameter is here");
    FailureOr<SmallVector<int64_t>> values = readValues(evaluator, variable, parameters);
    if (failed(values))
      return failure();
    if (!lists.empty() && values->size() != 1 && count != 1 && values->size() != count)
      return evaluator.fail(variable.values->at,
                            "this list has " + Twine(values->size()) + " values, and one before it " + Twine(count));
    count = values->size() == 1 ? count : values->size();
    lists.push_back(*values);
  }
  for (size_t layer = 0; layer < count; ++layer) {
    layers.emplace_back();
    for (const SmallVector<int64_t> &list : lists)
      layers.back().push_back(list[list.size() == 1 ? 0 : layer]);
  }
  return layers;
}

/// The variables that have unlike values, each with that of the kind; "" for the only kind.
static std::string kindName(const Model &model, const std::vector<SmallVector<int64_t>> &kinds, size_t kind) {
  std::string name;
  for (auto [i, variable] : enumerate(model.layerVariables))
    if (any_of(kinds, [&, i = i](ArrayRef<int64_t> values) { return values[i] != kinds[0][i]; }))
      name += (name.empty() ? "" : "_") + variable.name.text.str() + std::to_string(kinds[kind][i]);
  return name;
}

/// Leaves out the parts whose condition is false. One that stands behind the layers is the last of a model.
static LogicalResult leaveOut(Evaluator &evaluator, Scope &parameters, ExpandedModel &expanded) {
  const std::vector<ModelPart> all = std::exchange(expanded.parts, {});
  for (const ModelPart &part : all) {
    enterPart(expanded.model, part, parameters);
    FailureOr<bool> isThere =
        part.condition ? holds(evaluator, part.condition, parameters, "if") : FailureOr<bool>(true);
    if (failed(isThere))
      return failure();
    if (*isThere)
      expanded.parts.push_back(part);
  }
  if (!all.empty() && all.back().condition && (expanded.parts.empty() || expanded.parts.back().kind != all.back().kind))
    return evaluator.fail(all.back().condition->at, "no last part is there: part `" + all.back().name.text +
                                                        "` is there if `" + all.back().condition->text +
                                                        "`, which is false, and no other one stands behind the layers");
  expanded.model.parts = expanded.parts;
  return success();
}

LogicalResult pp::expandLayers(Source &source, Evaluator &evaluator, const Model &model, Scope &parameters,
                               ExpandedModel &expanded) {
  expanded.model = model;
  expanded.weights.assign(model.weights.begin(), model.weights.end());
  const StringRef word = source.intern("layer");
  if (!model.kinds.empty() && !model.kinds.front().text.empty() && !parameters.find(word))
    parameters.bind({word, model.kinds.front().at}, Value(word));
  if (model.layerVariables.empty()) {
    expanded.parts.assign(model.parts.begin(), model.parts.end());
    return leaveOut(evaluator, parameters, expanded);
  }
  const Name &first = model.layerVariables.front().name;
  if (model.kinds.size() > 1 || model.kindOf)
    return evaluator.fail(first.at, "`layer " + first.text +
                                        " in ..` says the kinds of all layers; a model with "
                                        "it has no other `layer` and no `layers [..]`");
  FailureOr<std::vector<SmallVector<int64_t>>> layers = readLayers(evaluator, model, parameters);
  if (failed(layers))
    return failure();
  for (const SmallVector<int64_t> &values : *layers) {
    auto found = find(expanded.values, values);
    expanded.kindNumbers.push_back(found - expanded.values.begin());
    if (found == expanded.values.end())
      expanded.values.push_back(values);
  }
  for (size_t kind = 0; kind < expanded.values.size(); ++kind) {
    std::string name = kindName(model, expanded.values, kind);
    expanded.kinds.push_back({mlir::StringAttr::get(source.context, name).getValue(), first.at});
  }
  for (size_t i = 0; i < model.parts.size();) {
    size_t end = i; // the run of parts that stand in layers, or one part that does not
    while (end < model.parts.size() && model.parts[end].kind)
      ++end;
    for (auto [kind, values] : enumerate(expanded.values))
      for (size_t part = i; part < end; ++part) {
        expanded.parts.push_back(model.parts[part]);
        expanded.parts.back().kind = kind;
        expanded.parts.back().layerValues = values;
      }
    if (end == i)
      expanded.parts.push_back(model.parts[end++]);
    i = end;
  }
  expanded.model.kinds = expanded.kinds;
  expanded.model.kindNumbers = expanded.kindNumbers;
  for (const LayerVariable &variable : model.layerVariables)
    parameters.bind(variable.name, Value(int64_t(0)));
  return leaveOut(evaluator, parameters, expanded);
}

void pp::enterPart(const Model &model, const ModelPart &part, Scope &parameters) {
  for (Binding &bound : parameters.bindings) // `layer`, which is no parameter: the name of the kind
    if (part.kind && bound.name.text == "layer" && bound.name.at == model.kinds.front().at)
      bound.value = Value(model.kinds[*part.kind].text);
  for (auto [variable, value] : zip(model.layerVariables, part.layerValues))
    parameters.find(variable.name.text)->value = Value(value);
}
