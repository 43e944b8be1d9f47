// Makes kinds of layers out of `layer NAME in [..]`: layers with one value are a kind.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   layer window in [0, 4, 4] { part attn .. }   ~~>   layer window0 { .. }  layer window4 { .. }
//                                                      layers ["window0", "window4", "window4"]
//
// A list with one value, once or for every layer, makes one kind without a name, as `layer { .. }` does: such a model
// is built as if it had no list.
#include "frontend/model/Model.h"

using namespace llvm;
using namespace pp;

/// The int of every layer, or of all of them.
static FailureOr<SmallVector<int64_t>> readValues(Evaluator &evaluator, const Model &model, Scope &parameters) {
  FailureOr<Value> list = evaluator.evaluate(model.layerValues, parameters);
  if (failed(list))
    return failure();
  SMLoc at = model.layerValues->at;
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

LogicalResult pp::expandLayers(Source &source, Evaluator &evaluator, const Model &model, Scope &parameters,
                               ExpandedModel &expanded) {
  Name variable = model.layerVariable;
  if (model.kinds.size() > 1 || model.kindOf)
    return evaluator.fail(variable.at, "`layer " + variable.text +
                                           " in ..` says the kinds of all layers; a model with "
                                           "it has no other `layer` and no `layers [..]`");
  if (Binding *same = parameters.find(variable.text))
    return evaluator.fail(variable.at, "`" + variable.text + "` is a parameter, too", same->name.at,
                          "the parameter is here");
  FailureOr<SmallVector<int64_t>> values = readValues(evaluator, model, parameters);
  if (failed(values))
    return failure();
  SmallVector<int64_t> distinct;
  for (int64_t value : *values) {
    auto *found = find(distinct, value);
    expanded.kindNumbers.push_back(found - distinct.begin());
    if (found == distinct.end())
      distinct.push_back(value);
  }
  for (int64_t value : distinct) {
    std::string name = distinct.size() > 1 ? variable.text.str() + std::to_string(value) : "";
    expanded.kinds.push_back({mlir::StringAttr::get(source.context, name).getValue(), variable.at});
  }
  for (size_t i = 0; i < model.parts.size();) {
    size_t end = i; // the run of parts that stand in layers, or one part that does not
    while (end < model.parts.size() && model.parts[end].kind)
      ++end;
    for (auto [kind, value] : enumerate(distinct))
      for (size_t part = i; part < end; ++part) {
        expanded.parts.push_back(model.parts[part]);
        expanded.parts.back().kind = kind;
        expanded.parts.back().layerValue = value;
      }
    if (end == i)
      expanded.parts.push_back(model.parts[end++]);
    i = end;
  }
  expanded.model = model;
  expanded.model.parts = expanded.parts;
  expanded.model.kinds = expanded.kinds;
  expanded.model.kindNumbers = expanded.kindNumbers;
  parameters.bind(variable, Value(int64_t(0)));
  return success();
}

void pp::enterPart(const Model &model, const ModelPart &part, Scope &parameters) {
  if (model.layerValues && part.kind)
    parameters.find(model.layerVariable.text)->value = Value(part.layerValue);
}
