// Reads `freeze` and `lora`, and checks that the model has the weights and modules that they name.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/TrainedWeights.h"
#include "dialect/nn/Nn.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <cmath>

using namespace llvm;
using namespace pp;

static const StringRef kLoraOptions[] = {"rank", "alpha", "targets", "rslora", "dropout"};

LogicalResult TrainedWeights::checkName(SMLoc at, StringRef name) {
  if (is_contained(kLoraOptions, name))
    return success();
  return evaluator.fail(at, "`lora` has no option `" + name + "`" + didYouMean(name, kLoraOptions), at,
                        thereAre(kLoraOptions));
}

/// `a,b`, `[a, b]` or `["a", "b"]`.
LogicalResult TrainedWeights::setTargets(SMLoc at, const Value &value) {
  targets.clear();
  if (const Value::List *list = value.asList()) {
    for (const Value &item : *list)
      if (const StringRef *text = item.asString())
        targets.push_back({*text, at});
  } else if (const StringRef *text = value.asString()) {
    SmallVector<StringRef> words;
    text->split(words, ',', -1, /*KeepEmpty=*/false);
    for (StringRef word : words)
      targets.push_back({word.trim(), at});
  }
  if (targets.empty())
    return evaluator.fail(at, "expected names of modules for `targets`, as in [\"q_proj\", \"v_proj\"], got " +
                                  value.text());
  return success();
}

LogicalResult TrainedWeights::set(Name name, SMLoc at, const Value &value) {
  if (failed(checkName(name.at, name.text)))
    return failure();
  if (!loraAt.isValid())
    loraAt = name.at;
  if (name.text == "targets")
    return setTargets(at, value);
  std::optional<double> number;
  if (auto *count = value.asInt())
    number = *count;
  else if (auto *exact = value.asNumber())
    number = *exact;
  auto expect = [&](bool good, StringRef what) -> LogicalResult {
    return good ? success() : evaluator.fail(at, "expected " + what + " for `" + name.text + "`, got " + value.text());
  };
  if (name.text == "rank") {
    rank = value.asInt() ? *value.asInt() : 0;
    return expect(rank > 0 && rank <= 65536, "an int of at least 1");
  }
  if (name.text == "alpha") {
    alpha = number.value_or(0);
    return expect(alpha > 0, "a number above 0");
  }
  if (name.text == "rslora") {
    rslora = value.asBool() && *value.asBool();
    return expect(value.asBool(), "true or false");
  }
  dropout = number.value_or(-1);
  return expect(dropout >= 0 && dropout < 1, "a rate of at least 0 and below 1");
}

LogicalResult TrainedWeights::read(const Option *freezeOption, const Option *loraOption, ArrayRef<Override> overrides,
                                   Scope &scope) {
  if (freezeOption)
    freeze.assign(freezeOption->texts.begin(), freezeOption->texts.end());
  if (loraOption && loraOption->labels.empty())
    return evaluator.fail(loraOption->name.at, "expected `lora rank = .., alpha = .., targets = [..]`");
  for (size_t i = 0; loraOption && i < loraOption->labels.size(); ++i) {
    FailureOr<Value> value = evaluator.evaluate(loraOption->values[i], scope);
    if (failed(value) || failed(set(loraOption->labels[i], originOf(loraOption->values[i], scope), *value)))
      return failure();
  }
  for (const Override &given : overrides) {
    if (given.owner == "lora" && failed(set({given.parameter, given.at}, given.valueAt, given.value)))
      return failure();
    if (given.owner != "freeze")
      continue;
    freeze.clear();
    SmallVector<StringRef> texts;
    std::string all = given.value.asString() ? given.value.asString()->str() : given.value.text();
    source.intern(StringRef(all).trim("[]")).split(texts, ',', -1, /*KeepEmpty=*/false);
    for (StringRef text : texts)
      freeze.push_back({text.trim(), given.valueAt});
  }
  return loraAt.isValid() ? checkLora(loraOption ? loraOption->name.at : loraAt) : success();
}

LogicalResult TrainedWeights::checkLora(SMLoc at) {
  for (auto [name, isGiven] : {std::pair("rank", rank > 0), {"alpha", alpha > 0}, {"targets", !targets.empty()}})
    if (!isGiven)
      return evaluator.fail(at, Twine("`lora` needs `") + name +
                                    "`, as in `lora rank = 8, alpha = 16, targets = [\"q_proj\", \"v_proj\"]`");
  if (!freeze.empty())
    return evaluator.fail(freeze.front().at, "`freeze` beside `lora`, which freezes all weights of the model", at,
                          "`lora` stands here");
  return success();
}

static std::string someOf(ArrayRef<StringRef> all) {
  std::string list;
  for (StringRef name : all.take_front(4))
    list += (list.empty() ? "`" : ", `") + name.str() + "`";
  return list + (all.size() > 4 ? " and " + std::to_string(all.size() - 4) + " more" : "");
}

LogicalResult TrainedWeights::checkText(SMLoc at, StringRef option, StringRef text) {
  if (loraAt.isValid() || any_of(names, [&](StringRef name) { return name.contains(text); }))
    return success(); // names of adapters are made later
  return evaluator.fail(at, "`" + option + "`: no weight has `" + text + "` in its name", at,
                        "the weights of the model are " + someOf(names.getArrayRef()));
}

LogicalResult TrainedWeights::check(mlir::ModuleOp module, StringRef model) {
  SetVector<StringRef> modules;
  for (auto program : module.getOps<pipeline::ProgramOp>())
    for (auto piece : program.getOps<pipeline::PieceOp>())
      for (auto part : piece.getParts().getAsRange<mlir::ArrayAttr>()) {
        auto function = module.lookupSymbol<mlir::func::FuncOp>(cast<mlir::StringAttr>(part[0]));
        for (unsigned i = 0; i < function.getNumArguments(); ++i)
          if (auto declared = function.getArgAttrOfType<nn::WeightAttr>(i, nn::kWeightAttr)) {
            StringRef name =
                source.intern(nn::weightName(declared, function, cast<mlir::IntegerAttr>(part[1]).getInt()));
            names.insert(name);
            if (auto shape = cast<mlir::RankedTensorType>(function.getArgumentTypes()[i]);
                shape.getRank() == 2 && name.consume_back(".weight"))
              modules.insert(name.substr(name.rfind('.') + 1));
          }
      }
  for (Name text : freeze)
    if (none_of(names, [&](StringRef name) { return name.contains(text.text); }))
      return evaluator.fail(text.at, "`freeze`: no weight has `" + text.text + "` in its name", text.at,
                            "the weights of `" + model + "` are " + someOf(names.getArrayRef()));
  for (Name target : targets)
    if (target.text != "all-linear" && !modules.contains(target.text))
      return evaluator.fail(target.at,
                            "`lora`: no module is called `" + target.text + "`" +
                                didYouMean(target.text, modules.getArrayRef()),
                            target.at, thereAre(modules.getArrayRef()));
  return success();
}

void TrainedWeights::addTo(SmallVectorImpl<mlir::NamedAttribute> &attributes, mlir::Builder &builder) const {
  auto texts = [&](ArrayRef<Name> names) {
    return builder.getStrArrayAttr(llvm::map_to_vector(names, [](const Name &name) { return name.text; }));
  };
  if (!freeze.empty())
    attributes.push_back(builder.getNamedAttr("freeze", texts(freeze)));
  if (targets.empty())
    return;
  double root = rslora ? std::sqrt(rank) : rank;
  SmallVector<mlir::NamedAttribute> lora = {builder.getNamedAttr("rank", builder.getI64IntegerAttr(rank)),
                                            builder.getNamedAttr("alpha", builder.getF64FloatAttr(alpha)),
                                            builder.getNamedAttr("factor", builder.getF64FloatAttr(alpha / root)),
                                            builder.getNamedAttr("rslora", builder.getBoolAttr(rslora)),
                                            builder.getNamedAttr("targets", texts(targets))};
  if (dropout > 0)
    lora.push_back(builder.getNamedAttr("dropout", builder.getF64FloatAttr(dropout)));
  attributes.push_back(builder.getNamedAttr("lora", builder.getDictionaryAttr(lora)));
}
