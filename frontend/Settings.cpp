// Takes the settings of a `train` by name: each in its range, once, and with an effect.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Settings.h"
#include "llvm/ADT/StringExtras.h"

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
  SmallVector<StringRef> names;
  for (const Setting &setting : of(option))
    names.push_back(setting.name);
  if (is_contained(names, name))
    return success();
  return evaluator.fail(at, "`" + option + "` has no option `" + name + "`" + didYouMean(name, names), at,
                        thereAre(names));
}

LogicalResult Settings::set(Evaluator &evaluator, SMLoc at, StringRef option, StringRef name, const Value &value) {
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
    if (setting.scalesLoss && precision != "f16")
      continue;
    mlir::Attribute value = builder.getF64FloatAttr(setting.value);
    if (setting.range == Setting::Word)
      value = builder.getStringAttr(setting.words[static_cast<size_t>(setting.value)]);
    else if (setting.isInt())
      value = builder.getI64IntegerAttr(static_cast<int64_t>(setting.value));
    made.push_back(builder.getNamedAttr(setting.name, value));
  }
  return builder.getDictionaryAttr(made);
}
