// Reads the clause `mesh`: each option in its range, and a sentence for what is not built yet.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Mesh.h"
#include "frontend/schedule/Elaborator.h"
#include "llvm/ADT/StringExtras.h"

using namespace llvm;
using namespace pp;
using pp::pipeline::Axis;

static const StringRef kMeshOptions[] = {"tensor", "sequence", "context", "attention", "data",
                                         "expert", "zero",     "again",   "order"};
static const StringRef kPartOptions[] = {"tensor", "expert", "attention", "again"};
static const StringRef kAttentions[] = {"gather", "heads", "commute", "ring"};

LogicalResult MeshClause::checkName(SMLoc at, StringRef name) {
  if (is_contained(kMeshOptions, name))
    return success();
  if (name.contains('.'))
    return checkPartOption(at, name.split('.').second);
  return evaluator.fail(at, "`mesh` has no axis `" + name + "`" + didYouMean(name, kMeshOptions), at,
                        thereAre(kMeshOptions));
}

LogicalResult MeshClause::checkPartOption(SMLoc at, StringRef name) {
  if (is_contained(kPartOptions, name))
    return success();
  return evaluator.fail(at, "`mesh of` a part has no option `" + name + "`" + didYouMean(name, kPartOptions), at,
                        thereAre(kPartOptions));
}

LogicalResult MeshClause::read(ArrayRef<Option> options, ArrayRef<Override> overrides, Scope &scope,
                               const ModelOutline &model) {
  bool isRead = true;
  for (const Option &option : options)
    if (option.name.text == "mesh")
      isRead &= succeeded(option.labels.empty()  ? evaluator.fail(option.name.at, "expected `mesh name = value`, as in "
                                                                                   "`mesh data = 2`")
                          : option.parts.empty() ? readAll(option, scope)
                                                 : readPart(option, scope, model));
  auto setGiven = [&](const Override &given, bool ofPart) { // of a part: `mesh.PART.NAME`
    auto [part, name] = given.parameter.split('.');
    if (given.owner != "mesh" || ofPart == name.empty())
      return;
    const Name parts[] = {{part, given.at}};
    isRead &= succeeded(ofPart ? setOfPart(parts, {name, given.at}, given.valueAt, given.value, model)
                               : set({part, given.at}, given.valueAt, given.value));
  };
  for (bool ofPart : {false, true})
    for (const Override &given : overrides)
      setGiven(given, ofPart);
  return isRead ? check() : failure();
}

LogicalResult MeshClause::readAll(const Option &option, Scope &scope) {
  bool isRead = true;
  for (auto [i, label, expr] : enumerate(option.labels, option.values)) {
    for (const Name &first : option.labels.take_front(i))
      if (first.text == label.text)
        return evaluator.fail(label.at, "`" + label.text + "` is given twice", first.at, "first given here");
    FailureOr<Value> value = evaluator.evaluate(expr, scope);
    isRead &= succeeded(value) && succeeded(set(label, originOf(expr, scope), *value));
  }
  return success(isRead);
}

/// The axis with this name, among those that number devices.
static std::optional<Axis> axisNamed(StringRef name) {
  std::optional<Axis> axis = pipeline::symbolizeAxis(name);
  return axis && *axis <= Axis::pipeline ? axis : std::nullopt;
}

static bool isWord(const Value &value, ArrayRef<StringRef> words) {
  return value.asString() && is_contained(words, *value.asString());
}

LogicalResult MeshClause::set(Name name, SMLoc at, const Value &value) {
  if (failed(checkName(name.at, name.text)))
    return failure();
  auto expect = [&](bool good, const Twine &what) -> LogicalResult {
    return good ? success() : evaluator.fail(at, "expected " + what + " for `" + name.text + "`, got " + value.text());
  };
  int64_t number = value.asInt() ? *value.asInt() : -1;
  constexpr int64_t kMostDevices = 1 << 16; // of an axis
  if (std::optional<Axis> axis = axisNamed(name.text); axis && *axis != Axis::pipeline) {
    sizes[static_cast<size_t>(*axis)] = {number, at};
    return expect(number >= 1 && number <= kMostDevices, "an int from 1 to " + Twine(kMostDevices));
  }
  if (name.text == "expert") {
    expert = {number, at};
    return expect(number >= 1 && number <= kMostDevices, "an int from 1 to " + Twine(kMostDevices));
  }
  if (name.text == "zero") {
    zero = {number, at};
    return expect(number >= 0 && number <= 2, "0, 1 or 2");
  }
  if (name.text == "sequence") {
    sequence = {value.asBool() && *value.asBool(), at};
    return expect(value.asBool(), "true or false");
  }
  if (name.text == "attention") {
    attention = value.asString() ? *value.asString() : "gather";
    attentionAt = at;
    return expect(isWord(value, kAttentions), "one of \"" + join(ArrayRef(kAttentions), "\", \"") + "\"");
  }
  if (name.text == "again") {
    std::optional<pipeline::Again> word = value.asString() ? pipeline::symbolizeAgain(*value.asString()) : std::nullopt;
    again = word.value_or(again);
    return expect(word.has_value(), R"(one of "nothing", "inputs", "all")");
  }
  return value.asString() ? setOrder(at, *value.asString()) : expect(false, "four words in a string");
}

LogicalResult MeshClause::setOrder(SMLoc at, StringRef text) {
  SmallVector<StringRef> words;
  text.split(words, ' ', -1, /*KeepEmpty=*/false);
  SmallVector<Axis> axes;
  for (StringRef word : words)
    if (std::optional<Axis> axis = axisNamed(word); axis && !is_contained(axes, *axis))
      axes.push_back(*axis);
  if (axes.size() != order.size() || words.size() != order.size())
    return evaluator.fail(at, "`order`: expected the words tensor, context, data, pipeline once each, got \"" + text +
                                  "\"");
  order = axes;
  return success();
}

//===-- Parts ---------------------------------------------------------------------------------------------------===//

LogicalResult MeshClause::readPart(const Option &option, Scope &scope, const ModelOutline &model) {
  for (auto [label, expr] : zip(option.labels, option.values)) {
    FailureOr<Value> value = evaluator.evaluate(expr, scope);
    if (failed(value) || failed(setOfPart(option.parts, label, originOf(expr, scope), *value, model)))
      return failure();
  }
  return success();
}

LogicalResult MeshClause::setOfPart(ArrayRef<Name> parts, Name name, SMLoc at, const Value &value,
                                    const ModelOutline &model) {
  SmallVector<StringRef> names;
  for (const ModelOutline::Part &part : model.parts)
    names.push_back(part.name);
  for (Name part : parts)
    if (!model.isIncomplete && !is_contained(names, part.text))
      return evaluator.fail(part.at,
                            "`mesh of " + part.text + "`: the model has no part `" + part.text + "`" +
                                didYouMean(part.text, names),
                            part.at, thereAre(names));
  if (failed(checkPartOption(name.at, name.text)))
    return failure();
  if (name.text == "again" || name.text == "attention") {
    pipeline::Again ofAll = again;
    std::string ofAllAttention = attention;
    SMLoc ofAllAt = attentionAt;
    if (failed(set(name, at, value)))
      return failure();
    for (const Name &part : parts)
      if (name.text == "again")
        againOfParts[part.text] = again;
      else
        attentionOfParts[part.text] = {attention, at};
    again = ofAll, attention = ofAllAttention, attentionAt = ofAllAt;
    return success();
  }
  bool isTensor = name.text == "tensor";
  int64_t all = isTensor ? size(Axis::tensor) : expert.value;
  if (value.asInt() && (*value.asInt() == 1 || *value.asInt() == all)) {
    for (const Name &part : parts)
      if (*value.asInt() == 1)
        (isTensor ? wholeParts : expertParts).insert(part.text);
      else
        (isTensor ? wholeParts : expertParts).erase(part.text);
    return success();
  }
  return evaluator.fail(at, "`mesh of` a part `" + name.text + " = " + value.text() +
                                "`: a part has all of the axis, " + Twine(all) + ", or 1");
}

//===-- What is built -------------------------------------------------------------------------------------------===//

LogicalResult MeshClause::check() {
  auto checkAttention = [&](StringRef word, SMLoc at) -> LogicalResult {
    if (size(Axis::context) == 1 || word == "gather" || word == "heads")
      return success();
    return evaluator.fail(at, "`attention = \"" + word +
                                  "\"` is not built yet: over `context` keys are gathered, \"gather\", or heads "
                                  "exchanged, \"heads\"");
  };
  if (failed(checkAttention(attention, attentionAt)))
    return failure();
  for (const auto &[part, its] : attentionOfParts)
    if (failed(checkAttention(its.first, its.second)))
      return failure();
  int64_t context = size(Axis::context), replicas = size(Axis::data), experts = expert.value;
  bool isGroup = context % experts == 0 || (experts % context == 0 && replicas % (experts / context) == 0);
  if (!isGroup)
    return evaluator.fail(expert.at, "`expert = " + Twine(experts) + "` is cut out of context and data; `context = " +
                                         Twine(context) + ", data = " + Twine(replicas) + "` has no such group");
  if (zero.value > 0 && size(Axis::data) * size(Axis::context) == 1)
    return evaluator.fail(zero.at, "`zero = " + Twine(zero.value) + "`: no weight is on several devices");
  if (sequence.value && size(Axis::tensor) == 1)
    return evaluator.fail(sequence.at, "`sequence = true` needs `tensor`; rows are cut over its devices");
  return success();
}

std::optional<int64_t> MeshClause::ranksPerNode(int64_t devicesPerNode) const {
  int64_t devices = devicesOfRank();
  if (devices == 1 || devicesPerNode == 0)
    return devicesPerNode;
  if (order.back() == Axis::pipeline && devicesPerNode % devices == 0)
    return devicesPerNode / devices;
  if (order.back() == Axis::pipeline && devices % devicesPerNode == 0)
    return 1;
  return std::nullopt;
}

LogicalResult MeshClause::markParts(mlir::ModuleOp module) const {
  mlir::Builder builder(module.getContext());
  StringSet<> attends;
  StringRef further; // a part that is cut and has the loss of further tokens
  bool hasExperts = false;
  for (auto function : module.getOps<mlir::func::FuncOp>()) {
    auto named = function->getAttrOfType<mlir::StringAttr>(nn::kPartAttr);
    StringRef part = named ? named.getValue() : function.getName();
    if (size(Axis::tensor) > 1 && wholeParts.contains(part))
      function->setAttr(nn::kWholeAttr, builder.getUnitAttr());
    if (expert.value > 1 && expertParts.contains(part))
      function->setAttr(nn::kAllExpertsAttr, builder.getUnitAttr());
    hasExperts |= !function.getOps<nn::Chooses>().empty();
    auto its = againOfParts.find(part);
    if (gathers() && its != againOfParts.end() && its->second != again)
      function->setAttr(nn::kAgainAttr, builder.getStringAttr(pipeline::stringifyAgain(its->second)));
    auto meeting = attentionOfParts.find(part);
    if (size(Axis::context) > 1 && meeting != attentionOfParts.end() && meeting->second.first != attention)
      function->setAttr(nn::kAttentionAttr, builder.getStringAttr(meeting->second.first));
    if (size(Axis::tensor) > 1 && !wholeParts.contains(part) &&
        any_of(function.getOps<nn::CrossEntropyOp>(), [](auto loss) { return loss.getFurther(); }))
      further = part;
    if (!function.getOps<nn::Attends>().empty())
      attends.insert(part);
  }
  if (!further.empty())
    return evaluator.fail(
        sizes[static_cast<size_t>(Axis::tensor)].at,
        "`tensor = " + Twine(size(Axis::tensor)) +
            "`: the loss of further tokens is not built yet where it is cut over `tensor`; `mesh of " + further +
            " tensor = 1` (`-D mesh." + further + ".tensor=1`) leaves its part whole");
  if (expert.value > 1 && !hasExperts)
    return evaluator.fail(expert.at, "`expert = " + Twine(expert.value) + "`: the model has no experts");
  for (const auto &[part, its] : attentionOfParts)
    if (!attends.contains(part))
      return evaluator.fail(its.second, "`mesh of " + part + " attention = \"" + its.first + "\"`: part `" + part +
                                            "` has no `attention`");
  return success();
}

pipeline::MeshAttr MeshClause::attribute(int64_t ranks, mlir::MLIRContext *context) const {
  if (devicesOfRank() == 1)
    return {};
  SmallVector<int64_t> extents;
  for (Axis axis : order)
    extents.push_back(axis == Axis::pipeline ? ranks : size(axis));
  return pipeline::MeshAttr::get(
      context, order, extents, zero.value, sequence.value != 0, gathers() ? again : pipeline::Again::nothing,
      size(Axis::context) > 1 && attention == "heads" ? pipeline::Meeting::heads : pipeline::Meeting::gather,
      expert.value);
}
