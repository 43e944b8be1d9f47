// Reads what a schedule must know of a model: its parts, how many layers there are, and of which kind each is.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   layer dense { part a  part b }   part bridge   layer wide { part a }   layers ["dense", "dense", "wide"]
//
//   a(0) b(0) a(1) b(1) bridge a(2)      a part between two `layer` blocks stands between the layers of those kinds
#include "frontend/model/Model.h"

using namespace llvm;
using namespace pp;

int64_t ModelOutline::layersBefore(unsigned part) const {
  return count_if(kindOf, [&](unsigned kind) {
    return any_of(ArrayRef(parts).take_front(part), [&](const Part &before) { return before.kind == kind; });
  });
}

std::vector<ModelOutline::Step> ModelOutline::steps() const {
  std::vector<Step> steps;
  int64_t layer = 0;
  auto addLayersUpTo = [&](int64_t end) {
    for (; layer < end; ++layer)
      for (unsigned part = 0; part < parts.size(); ++part)
        if (isIn(part, layer))
          steps.push_back({part, layer});
  };
  for (unsigned part = 0; part < parts.size(); ++part) {
    if (parts[part].kind)
      continue;
    addLayersUpTo(layersBefore(part));
    steps.push_back({part, -1});
  }
  addLayersUpTo(layers);
  return steps;
}

std::string ModelOutline::describe(int64_t layer) const {
  if (layer < 0)
    return "a part outside the layers";
  StringRef kind = kinds[kindOf[layer]];
  return "layer " + std::to_string(layer) + (kind.empty() ? "" : ", of kind `" + kind.str() + "`,");
}

namespace {
class OutlineReader {
public:
  OutlineReader(Evaluator &evaluator, const Model &model, Scope &parameters)
      : evaluator(evaluator), model(model),
        parameters(parameters), outline{model.name.text, model.name.at, {}, {}, {}} {}

  ModelOutline read() {
    outline.isIncomplete = failed(readKinds()) || failed(readParts());
    outline.isUnknown = outline.isIncomplete || failed(readLayers()) || failed(readKindOf()) || failed(checkBetween());
    if (outline.isUnknown) {
      outline.layers = 0;
      outline.kindOf.clear();
    }
    return outline;
  }

private:
  LogicalResult readKinds() {
    for (auto [i, kind] : enumerate(model.kinds)) {
      outline.kinds.push_back(kind.text);
      const Name &first = model.kinds.front();
      if (i > 0 && (kind.text.empty() || first.text.empty()))
        return evaluator.fail(kind.at,
                              "every kind of layers needs a name where a model has several, `layer NAME { .. }`",
                              first.at, "the first kind of layers is here");
      auto *same = find_if(model.kinds, [&](const Name &other) { return other.text == kind.text; });
      if (same != &kind)
        return evaluator.fail(kind.at, "layer kind `" + kind.text + "` is declared twice", same->at,
                              "first declared here");
    }
    return success();
  }

  LogicalResult readParts() {
    for (const ModelPart &part : model.parts) {
      for (const ModelPart &other : ArrayRef(model.parts.data(), &part))
        if (other.name.text == part.name.text && (other.kind == part.kind || !other.kind || !part.kind))
          return evaluator.fail(part.name.at, "part `" + part.name.text + "` is defined twice", other.name.at,
                                "first defined here");
      StringRef kind = part.kind ? outline.kinds[*part.kind] : "";
      outline.parts.push_back(
          {part.name.text, part.kind, (kind.empty() ? "" : kind.str() + ".") + part.name.text.str()});
      for (auto [source, ahead] : zip(part.sources, part.aheads))
        outline.furtherTokens += ahead && source.text == "targets";
    }
    for (auto [i, kind] : enumerate(model.kinds)) {
      if (none_of(model.parts, [&, i = i](const ModelPart &part) { return part.kind == i; }))
        return evaluator.fail(kind.at, "a layer needs at least one part");
      auto *part = find_if(model.parts, [&](const ModelPart &part) { return part.name.text == kind.text; });
      if (part != model.parts.end())
        return evaluator.fail(kind.at, "layer kind `" + kind.text + "` has the name of a part", part->name.at,
                              "the part is defined here");
    }
    return success();
  }

  LogicalResult readLayers() {
    auto *layers = find_if(parameters.bindings, [](Binding &binding) { return binding.name.text == "layers"; });
    bool bound = layers != parameters.bindings.end();
    if (model.kinds.empty() || !bound)
      return evaluator.fail(model.name.at, "model `" + model.name.text + "` needs " +
                                               (model.kinds.empty() ? "a `layer { .. }`" : "a parameter `layers`"));
    if (layers->isWrong)
      return failure();
    SMLoc at = layers->given.isValid() ? layers->given : layers->name.at;
    if (!layers->value.asInt() || *layers->value.asInt() < 1)
      return evaluator.fail(at, "`layers` must be an int of at least 1, got " + layers->value.text());
    outline.layers = *layers->value.asInt();
    outline.layersGiven = layers->given;
    return evaluator.checkCount(at, "layers", outline.layers);
  }

  LogicalResult readKindOf() {
    if (model.kindNumbers.size() > 1) {
      append_range(outline.kindOf, model.kindNumbers);
      return success();
    }
    if (!model.kindOf) {
      if (model.kinds.size() > 1)
        return evaluator.fail(model.kinds[1].at,
                              "this model has " + Twine(model.kinds.size()) +
                                  " kinds of layers; it needs `layers [..]`, the kind of every layer");
      outline.kindOf.assign(outline.layers, 0);
      return success();
    }
    FailureOr<Value> value = evaluator.evaluate(model.kindOf, parameters);
    if (failed(value))
      return failure();
    if (!value->asList())
      return evaluator.fail(model.kindOfAt, "expected a list after `layers`, the kind of every layer, got " +
                                                value->type() + " " + value->text());
    const Value::List &names = *value->asList();
    if (int64_t(names.size()) != outline.layers)
      return evaluator.fail(model.kindOfAt, "this list has " + Twine(names.size()) +
                                                (names.size() == 1 ? " kind" : " kinds") + "; the model has " +
                                                Twine(outline.layers) + (outline.layers == 1 ? " layer" : " layers"));
    for (auto [layer, name] : enumerate(names))
      if (failed(addKindOf(layer, name)))
        return failure();
    return success();
  }

  static std::string quoted(StringRef name) { return "`" + name.str() + "`"; }

  LogicalResult addKindOf(int64_t layer, const Value &name) {
    if (outline.kinds.front().empty())
      return evaluator.fail(model.kindOfAt, "the layers of this model have no kinds; `layer NAME { .. }` declares one",
                            model.kinds.front().at, "the layer is declared here");
    if (!name.asString())
      return evaluator.fail(model.kindOfAt, "expected the name of a kind for layer " + Twine(layer) +
                                                ", a string, got " + name.type() + " " + name.text());
    auto *kind = find(outline.kinds, *name.asString());
    if (kind == outline.kinds.end())
      return evaluator.fail(model.kindOfAt, "layer " + Twine(layer) + " is of kind " + quoted(*name.asString()) +
                                                ", which this model does not have" +
                                                didYouMean(*name.asString(), outline.kinds));
    outline.kindOf.push_back(kind - outline.kinds.begin());
    return success();
  }

  /// A part between two blocks of layers stands behind all layers of the first and before all of the second.
  LogicalResult checkBetween() {
    for (auto [i, part] : enumerate(model.parts)) {
      auto isBefore = [&](int64_t layer) {
        return any_of(ArrayRef(model.parts.data(), &part),
                      [&](const ModelPart &other) { return other.kind == outline.kindOf[layer]; });
      };
      for (int64_t layer = 1; !part.kind && layer < outline.layers; ++layer)
        if (isBefore(layer) && !isBefore(layer - 1))
          return evaluator.fail(model.kindOfAt,
                                outline.describe(layer) + " follows " + outline.describe(layer - 1) + " and part " +
                                    quoted(part.name.text) + " stands behind the layers of the first of these kinds",
                                part.name.at, "the part is here");
    }
    return success();
  }

  Evaluator &evaluator;
  const Model &model;
  Scope &parameters;
  ModelOutline outline;
};
} // namespace

ModelOutline pp::outlineModel(Evaluator &evaluator, const Model &model, Scope &parameters) {
  return OutlineReader(evaluator, model, parameters).read();
}
