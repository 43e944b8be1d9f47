// Takes the settings of a `train` by name: each in its range, once, and with an effect.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Settings.h"
#include "llvm/ADT/StringExtras.h"
#include <cmath>
#include <limits>

using namespace llvm;
using namespace pp;

static constexpr const char *kRanges[] = {"an int of at least 1",
                                          "an int of at least 0",
                                          "a number of at least 0",
                                          "a number above 0",
                                          "a number of at least 0 and below 1",
                                          "a number from 0 to 1",
                                          "0 or 1",
                                          "true or false"};

static constexpr StringRef kAdjustments[] = {"original", "match_rms_adamw"};

namespace {
/// A setting of optimizers, with its default for each that has it: NaN where one has not.
struct OptimizerSetting {
  StringRef name;
  Setting::Range range;
  double values[std::size(kOptimizers)]; // in their order
  bool scalesLoss = false;
  ArrayRef<StringRef> words = {};
};
} // namespace

static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
static const OptimizerSetting kOptimizerSettings[] = {{"lr", Setting::AtLeast0, {1e-3, 2e-2, 1e-2}},
                                                      {"rest_lr", Setting::AtLeast0, {kNone, 1e-3, kNone}},
                                                      {"beta1", Setting::Below1, {0.9, 0.9, kNone}},
                                                      {"beta2", Setting::Below1, {0.95, 0.95, kNone}},
                                                      {"epsilon", Setting::Above0, {1e-8, 1e-8, kNone}},
                                                      {"momentum", Setting::Below1, {kNone, 0.95, 0.9}},
                                                      {"nesterov", Setting::Flag, {kNone, kNone, 0}},
                                                      {"barrier", Setting::Flag, {1, kNone, 1}},
                                                      {"adjust", Setting::Word, {kNone, 0, kNone}, false, kAdjustments},
                                                      {"weight_decay", Setting::AtLeast0, {0.1, 0.1, 0}},
                                                      {"rest_weight_decay", Setting::AtLeast0, {kNone, 0.1, kNone}},
                                                      {"no_decay", Setting::Texts, {0, 0, 0}},
                                                      {"lr_scale", Setting::Factors, {0, 0, 0}},
                                                      {"decay_scale", Setting::Factors, {0, 0, 0}},
                                                      {"clip", Setting::AtLeast0, {1, 1, 1}},
                                                      {"warmup", Setting::Count, {0, 0, 0}},
                                                      {"decay_steps", Setting::Count, {0, 0, 0}},
                                                      {"min_lr", Setting::Share, {0.1, 0.1, 0.1}},
                                                      {"schedule", Setting::Word, {0, 0, 0}, false, kRates},
                                                      {"decay", Setting::Count, {0, 0, 0}},
                                                      {"lag", Setting::Bit, {0, 0, 0}},
                                                      {"loss_scale", Setting::Above0, {65536, 65536, 65536}, true},
                                                      {"scale_window", Setting::Count, {2000, 2000, 2000}, true}};

bool Settings::choose(StringRef name) {
  const StringRef *found = llvm::find(kOptimizers, name);
  if (found == std::end(kOptimizers))
    return false;
  kind = *found;
  optimizer.clear();
  for (const OptimizerSetting &one : kOptimizerSettings)
    if (double value = one.values[found - kOptimizers]; !std::isnan(value))
      optimizer.push_back({one.name, value, one.range, one.scalesLoss, one.words});
  return true;
}

bool Settings::has(StringRef option, StringRef name) {
  return any_of(of(option), [&](const Setting &setting) { return setting.name == name; });
}

static bool takes(const Setting &setting, double number) {
  switch (setting.range) {
  case Setting::Size:
  case Setting::Count:
    return number >= (setting.range == Setting::Size) && number <= INT32_MAX;
  case Setting::AtLeast0:
    return number >= 0;
  case Setting::Above0:
    return number > 0;
  case Setting::Below1:
    return number >= 0 && number < 1;
  case Setting::Share:
    return number >= 0 && number <= 1;
  case Setting::Bit:
  case Setting::Flag:
    return number == 0 || number == 1;
  case Setting::Word:
  case Setting::Texts:
  case Setting::Factors:
    return false;
  }
  llvm_unreachable("a range");
}

MutableArrayRef<Setting> Settings::of(StringRef option) {
  for (auto [name, settings] : all())
    if (name == option)
      return settings;
  llvm_unreachable("an option with settings");
}

Setting &Settings::find(MutableArrayRef<Setting> settings, StringRef name) {
  return *find_if(settings, [&](const Setting &one) { return one.name == name; });
}

LogicalResult Settings::check(Evaluator &evaluator, SMLoc at, StringRef option, StringRef name) {
  if (has(option, name))
    return success();
  SmallVector<StringRef> names;
  for (const Setting &setting : of(option))
    names.push_back(setting.name);
  StringRef owner = option == "optimizer" && kind != "adamw" ? kind : option;
  return evaluator.fail(at, "`" + owner + "` has no option `" + name + "`" + didYouMean(name, names), at,
                        thereAre(names));
}

/// Texts and numbers in turn: `["lm_head", 0.1, "norm", 2]`.
static bool readFactors(Setting &setting, const Value &value) {
  setting.texts.clear();
  setting.factors.clear();
  const Value::List *items = value.asList();
  if (!items || items->size() % 2)
    return false;
  for (auto [i, item] : enumerate(*items)) {
    std::optional<double> factor = item.asInt()      ? std::optional<double>(*item.asInt())
                                   : item.asNumber() ? std::optional<double>(*item.asNumber())
                                                     : std::nullopt;
    if (i % 2 ? !factor || !(*factor >= 0) || std::isinf(*factor) : !item.asString() || item.asString()->empty())
      return false;
    if (i % 2)
      setting.factors.push_back(*factor);
    else
      setting.texts.push_back(*item.asString());
  }
  return true;
}

LogicalResult Settings::set(Evaluator &evaluator, SMLoc at, StringRef option, StringRef name, const Value &value) {
  if (!has(option, name)) // `check` has said so
    return failure();
  Setting &setting = find(of(option), name);
  setting.at = at;
  if (setting.range == Setting::Word) {
    const StringRef *word = value.asString();
    const StringRef *found = word ? llvm::find(setting.words, *word) : setting.words.end();
    if (found == setting.words.end())
      return evaluator.fail(at, "expected one of \"" + join(setting.words, "\", \"") + "\" for `" + name + "`, got " +
                                    value.text());
    setting.value = static_cast<double>(found - setting.words.begin());
    return success();
  }
  if (setting.range == Setting::Texts) {
    setting.texts.clear();
    for (const Value &item : value.asList() ? *value.asList() : Value::List{value})
      if (item.asString() && !item.asString()->empty())
        setting.texts.push_back(*item.asString());
      else
        return evaluator.fail(at, "expected a list of texts for `" + name + "`, got " + value.text());
    return success();
  }
  if (setting.range == Setting::Factors) {
    if (readFactors(setting, value))
      return success();
    return evaluator.fail(at,
                          "expected texts and numbers of at least 0 in turn for `" + name + "`, got " + value.text());
  }
  std::optional<double> number;
  if (setting.range == Setting::Flag)
    number = value.asBool() ? std::optional<double>(*value.asBool()) : std::nullopt;
  else if (auto *count = value.asInt())
    number = *count;
  else if (auto *exact = value.asNumber(); exact && !setting.isInt())
    number = *exact;
  if (number && setting.isInt() && *number > INT32_MAX)
    return evaluator.fail(at, "`" + name + "` is at most " + Twine(INT32_MAX) + ", got " + value.text());
  if (!number || !takes(setting, *number))
    return evaluator.fail(at, Twine("expected ") + kRanges[setting.range] + " for `" + name + "`, got " + value.text());
  setting.value = *number;
  return success();
}

LogicalResult Settings::checkOptimizer(Evaluator &evaluator, StringRef precision) {
  for (const Setting &setting : optimizer)
    if (setting.scalesLoss && setting.at.isValid() && precision != "f16")
      return evaluator.fail(setting.at, "`" + setting.name + "` is for `precision f16`; this program has " + precision);
  const Setting &rate = find(optimizer, "schedule"), &decay = find(optimizer, "decay");
  StringRef word = rate.words[static_cast<size_t>(rate.value)];
  if (word == "wsd" && decay.value == 0)
    return evaluator.fail(rate.at, "`schedule = \"wsd\"` needs `decay = N`: over how many steps the rate falls");
  if (word != "wsd" && decay.value > 0)
    return evaluator.fail(decay.at, "`decay` is for `schedule = \"wsd\"`; this rate is \"" + word + "\"", rate.at,
                          "the rate is chosen here");
  if (const Setting &steps = find(optimizer, "decay_steps"); word == "constant" && steps.value > 0)
    return evaluator.fail(steps.at, "`decay_steps` has no effect: a rate that is \"constant\" does not fall", rate.at,
                          "the rate is chosen here");
  return success();
}

mlir::DictionaryAttr Settings::dictionaryOf(StringRef option, StringRef precision, mlir::Builder &builder) {
  SmallVector<mlir::NamedAttribute> made;
  for (const Setting &setting : of(option)) {
    if ((setting.scalesLoss && precision != "f16") || (setting.name == "barrier" && setting.value != 0))
      continue;
    mlir::Attribute value = builder.getF64FloatAttr(setting.value);
    if (setting.range == Setting::Word)
      value = builder.getStringAttr(setting.words[static_cast<size_t>(setting.value)]);
    else if (setting.range == Setting::Flag)
      value = builder.getBoolAttr(setting.value != 0);
    else if (setting.range == Setting::Texts)
      value = builder.getStrArrayAttr(setting.texts);
    else if (setting.range == Setting::Factors)
      value = builder.getArrayAttr(to_vector(map_range(zip(setting.texts, setting.factors), [&](auto group) {
        return mlir::Attribute(builder.getArrayAttr(
            {builder.getStringAttr(std::get<0>(group)), builder.getF64FloatAttr(std::get<1>(group))}));
      })));
    else if (setting.isInt())
      value = builder.getI64IntegerAttr(static_cast<int64_t>(setting.value));
    if ((setting.range != Setting::Texts && setting.range != Setting::Factors) || !setting.texts.empty())
      made.push_back(builder.getNamedAttr(setting.name, value));
  }
  if (option == "optimizer" && kind != "adamw")
    made.push_back(builder.getNamedAttr("kind", builder.getStringAttr(kind)));
  return builder.getDictionaryAttr(made);
}
