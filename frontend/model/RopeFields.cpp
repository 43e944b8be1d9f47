// Reads the two spellings of rotary positions: `rope_theta` with `rope_scaling`, and `rope_parameters`.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/RopeFields.h"
#include "frontend/evaluate/Value.h"
#include "llvm/ADT/StringSwitch.h"
#include <cmath>

using namespace llvm;
using namespace pp;

namespace {
/// The fields that say how positions turn, whichever way they are spelt.
class RopeFields {
public:
  RopeFields(Source &source, const FolderConfig &config, const RopeDefaults &defaults)
      : source(source), config(config), defaults(defaults) {}

  FailureOr<std::string> call(int64_t sequence) {
    if (failed(defaults.kind.empty() ? readGiven() : readGivenOfKind()))
      return failure();
    if (defaults.isNeeded && !given)
      return refuse("rope_parameters", "`rope_parameters` is not there; this family needs it");
    StringRef type = "default";
    for (StringRef name : {"type", "rope_type"})
      if (const json::Value *value = get(name)) {
        if (!value->getAsString())
          return refuse(givenAs, "expected a string for `" + name + "`");
        type = *value->getAsString();
      }
    FailureOr<double> theta = insideOrOutside("rope_theta", defaults.theta, defaults.base);
    FailureOr<int64_t> width = failed(theta) ? FailureOr<int64_t>() : turnedWidth();
    if (failed(width))
      return failure();
    type = type == "su" ? "longrope" : type == "yarn" ? defaults.yarn : type;
    std::string head = "rope_" + type.str() + "(" + Value(*theta).text() + ", " + std::to_string(*width);
    using Reader = FailureOr<std::string> (RopeFields::*)(int64_t sequence);
    Reader reader = StringSwitch<Reader>(type)
                        .Case("default", &RopeFields::plain)
                        .Case("linear", &RopeFields::linear)
                        .Case("dynamic", &RopeFields::dynamic)
                        .Case("llama3", &RopeFields::llama3)
                        .Case("yarn", &RopeFields::yarn)
                        .Case("longrope", &RopeFields::longrope)
                        .Default(nullptr);
    if (!reader)
      return unknown(type);
    FailureOr<std::string> rest = (this->*reader)(sequence);
    if (failed(rest))
      return failure();
    return head + *rest + ")";
  }

  /// What multiplies the scores of latent attention, m(mscale_all_dim)^2.
  FailureOr<double> temperature() {
    if (failed(readGiven()))
      return failure();
    FailureOr<double> scaleAll = number("mscale_all_dim", 0);
    if (failed(scaleAll) || *scaleAll == 0)
      return failed(scaleAll) ? scaleAll : FailureOr<double>(1);
    FailureOr<double> factor = number("factor");
    if (failed(factor))
      return failure();
    double grown = grownBy(*scaleAll, *factor);
    return grown * grown;
  }

  /// What the dictionary says of growth: its factor, the positions of the first training, and those of all of it, which
  /// nothing here reads.
  static constexpr StringLiteral kGrowth[] = {"llama_4_scaling_beta", "original_max_position_embeddings",
                                              "max_position_embeddings"};
  /// The factor, the positions of the first training, and what is added to a position.
  FailureOr<std::string> growth() {
    if (failed(readGiven()))
      return failure();
    FailureOr<double> factor = number(kGrowth[0]), first = number(kGrowth[1]);
    if (failed(factor) || failed(first))
      return failure();
    if (*first <= 0)
      return refuse(givenAs, "`original_max_position_embeddings` of `" + givenAs + "` must be above 0");
    return "[" + Value(*factor).text() + ", " + Value(*first).text() + ", 0]";
  }

private:
  static double grownBy(double by, double factor) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; }
  /// The object of this name; null where there is none or nothing in it.
  FailureOr<const json::Object *> object(StringRef name) {
    const json::Value *value = config.get(name);
    if (value && !value->getAsObject() && !value->getAsNull())
      return refuse(name, "expected an object or null for `" + name + "`");
    return value && value->getAsObject() && !value->getAsObject()->empty() ? value->getAsObject() : nullptr;
  }
  LogicalResult readGiven() {
    for (StringRef name : {"rope_parameters", "rope_scaling"}) {
      FailureOr<const json::Object *> found = object(name);
      if (failed(found))
        return failure();
      if (*found)
        given = *found, givenAs = name;
    }
    return success();
  }
  /// `rope_parameters` has an object for each type of layers; `rope_scaling` is that of full layers.
  LogicalResult readGivenOfKind() {
    FailureOr<const json::Object *> parameters = object("rope_parameters"), scaling = object("rope_scaling");
    if (failed(parameters) || failed(scaling))
      return failure();
    if (*parameters && *scaling)
      return refuse("rope_scaling",
                    "`rope_scaling` and `rope_parameters` are both there; which one holds is not known");
    static const json::Object nothing;
    for (const auto &[key, value] : *parameters ? **parameters : nothing) {
      StringRef name = key;
      if (name != "full_attention" && name != "sliding_attention")
        return refuse("rope_parameters", "`rope_parameters` has `" + name +
                                             "`; this family has an object for `full_attention` and one for "
                                             "`sliding_attention`");
      if (!value.getAsObject() && !value.getAsNull())
        return refuse("rope_parameters", "expected an object or null for `" + name + "` of `rope_parameters`");
      if (name == defaults.kind && value.getAsObject())
        given = value.getAsObject(), givenAs = "rope_parameters";
    }
    if (*scaling && defaults.kind == "full_attention")
      given = *scaling, givenAs = "rope_scaling";
    return success();
  }
  LogicalResult refuse(StringRef field, const Twine &message) { return source.error(config.at(field)) << message; }
  const json::Value *get(StringRef name) const {
    const json::Value *value = given ? given->get(name) : nullptr;
    return value && value->getAsNull() ? nullptr : value;
  }
  FailureOr<double> number(StringRef name, std::optional<double> absent = std::nullopt) {
    const json::Value *value = get(name);
    if (value && value->getAsNumber())
      return *value->getAsNumber();
    if (!value && absent)
      return *absent;
    return refuse(givenAs, (value ? "expected a number for `" : "`" + givenAs + "` has no `") + name + "`");
  }
  /// A number that stands in the dictionary or, with less weight, beside it.
  FailureOr<double> insideOrOutside(StringRef name, double absent, StringRef outsideName) {
    const json::Value *outside = config.get(outsideName);
    if (get(name) || !outside || outside->getAsNull())
      return number(name, absent);
    if (!outside->getAsNumber())
      return refuse(outsideName, "expected a number for `" + outsideName + "`");
    return *outside->getAsNumber();
  }
  /// The number of columns of a head that the table turns; if it is odd, the last pair has one more column.
  FailureOr<int64_t> turnedWidth() {
    StringRef name = "partial_rotary_factor";
    FailureOr<double> partial = insideOrOutside(name, defaults.partial.value_or(1), name);
    if (failed(partial))
      return failure();
    StringRef said = get(name) || !config.get(name) ? givenAs : name;
    if (!defaults.partial && *partial != 1)
      return refuse(said, "`partial_rotary_factor` is not 1; heads are turned as a whole here");
    auto width = int64_t(double(defaults.width) * *partial);
    if (*partial > 1 || width < 1)
      return refuse(said, "`partial_rotary_factor` is " + Value(*partial).text() + "; of heads of width " +
                              Twine(defaults.width) + " this turns " + Twine(width) + " columns");
    return width;
  }
  LogicalResult unknown(StringRef type) {
    static const StringRef known[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};
    return refuse(givenAs, "rotary positions of type `" + type + "` are not known" + didYouMean(type, known) + "; " +
                               thereAre(known));
  }
  /// An error unless all keys that are given are among these names.
  LogicalResult only(std::initializer_list<StringRef> names) {
    for (const auto &[key, value] : given ? *given : json::Object()) {
      StringRef name = key;
      if (defaults.grows && is_contained(kGrowth, name))
        continue;
      if (!is_contained(names, name) &&
          !is_contained({"type", "rope_type", "rope_theta", "partial_rotary_factor"}, name) && !value.getAsNull())
        return refuse(givenAs, "`" + name + "` of `" + givenAs + "` is not known for this type of rotary positions");
    }
    return success();
  }
  FailureOr<std::string> texts(std::initializer_list<FailureOr<double>> numbers) {
    std::string text;
    for (const FailureOr<double> &one : numbers) {
      if (failed(one))
        return failure();
      text += ", " + Value(*one).text();
    }
    return text;
  }
  /// The length of the sequences with which the plain positions were trained.
  FailureOr<double> original() {
    if (const json::Value *inside = get("original_max_position_embeddings"); inside && defaults.original)
      if (inside->getAsNumber() != *defaults.original)
        return refuse(givenAs, "`original_max_position_embeddings` of `" + givenAs + "` is not that beside it, " +
                                   Value(*defaults.original).text());
    if (defaults.original)
      return *defaults.original;
    for (const json::Value *value : {config.get("original_max_position_embeddings"),
                                     get("original_max_position_embeddings"), config.get("max_position_embeddings")})
      if (value && value->getAsNumber())
        return *value->getAsNumber();
      else if (value && !value->getAsNull())
        return refuse(givenAs, "expected a number for the length of sequences in training");
    return refuse(givenAs, "`original_max_position_embeddings` is not there");
  }
  FailureOr<double> positions() {
    const json::Value *value = config.get("max_position_embeddings");
    if (value && value->getAsNumber())
      return *value->getAsNumber();
    return refuse(givenAs, "`max_position_embeddings` is not there; this type of rotary positions needs it");
  }

  FailureOr<std::string> plain(int64_t) { return failed(only({})) ? FailureOr<std::string>() : std::string(); }
  FailureOr<std::string> linear(int64_t) {
    if (failed(only({"factor"})))
      return failure();
    return texts({number("factor")});
  }
  FailureOr<std::string> dynamic(int64_t sequence) {
    if (failed(only({"factor", "original_max_position_embeddings"})))
      return failure();
    return texts({number("factor"), positions(), double(sequence)});
  }
  FailureOr<std::string> llama3(int64_t) {
    if (failed(only({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})))
      return failure();
    return texts({number("factor"), number("low_freq_factor"), number("high_freq_factor"), original()});
  }
  FailureOr<std::string> yarn(int64_t) {
    if (failed(only({"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
                     "mscale", "mscale_all_dim", "truncate"})))
      return failure();
    const json::Value *truncate = given ? given->get("truncate") : nullptr;
    if (truncate && !truncate->getAsBoolean())
      return refuse(givenAs, "expected true or false for `truncate`");
    bool isWhole = !truncate || *truncate->getAsBoolean();
    if (!isWhole && !defaults.kind.empty()) // transformers looks for it beside the types of layers, where it is not
      return refuse(givenAs, "`truncate` of a type of layers in `" + givenAs + "` must be true");
    FailureOr<double> old = original(), last = positions();
    if (failed(old) || failed(last))
      return failure();
    FailureOr<double> factor = number("factor", *last / *old), scale = number("mscale", 0),
                      scaleAll = number("mscale_all_dim", 0);
    if (failed(factor) || failed(scale) || failed(scaleAll))
      return failure();
    double attention =
        *scale && *scaleAll ? grownBy(*scale, *factor) / grownBy(*scaleAll, *factor) : grownBy(1, *factor);
    FailureOr<std::string> text =
        texts({factor, old, number("beta_fast", 32), number("beta_slow", 1), number("attention_factor", attention)});
    return failed(text) || isWhole ? text : FailureOr<std::string>(*text + ", false");
  }
  FailureOr<std::string> longrope(int64_t sequence) {
    if (failed(only({"factor", "original_max_position_embeddings", "attention_factor", "long_factor", "short_factor"})))
      return failure();
    FailureOr<double> old = original(), last = positions();
    if (failed(old) || failed(last))
      return failure();
    StringRef name = double(sequence) > *old ? "long_factor" : "short_factor";
    const json::Value *list = get(name);
    if (!list || !list->getAsArray())
      return refuse(givenAs, "`" + givenAs + "` has no list `" + name + "`");
    std::string divisors;
    for (const json::Value &item : *list->getAsArray()) {
      if (!item.getAsNumber())
        return refuse(givenAs, "expected numbers in `" + name + "`");
      divisors += (divisors.empty() ? "" : ", ") + Value(*item.getAsNumber()).text();
    }
    FailureOr<double> factor = number("factor", *last / *old);
    if (failed(factor))
      return failure();
    double attention = *factor <= 1 ? 1 : std::sqrt(1 + std::log(*factor) / std::log(*old));
    FailureOr<std::string> text = texts({number("attention_factor", attention)});
    return failed(text) ? text : ", [" + divisors + "]" + *text;
  }

  Source &source;
  const FolderConfig &config;
  const RopeDefaults &defaults;
  const json::Object *given = nullptr;
  StringRef givenAs = "rope_theta";
};
} // namespace

FailureOr<std::string> pp::ropeCall(Source &source, const FolderConfig &config, const RopeDefaults &defaults,
                                    int64_t sequence) {
  return RopeFields(source, config, defaults).call(sequence);
}

FailureOr<std::string> pp::ropeGrowth(Source &source, const FolderConfig &config) {
  RopeDefaults defaults;
  return RopeFields(source, config, defaults).growth();
}

FailureOr<double> pp::ropeTemperature(Source &source, const FolderConfig &config) {
  RopeDefaults defaults;
  return RopeFields(source, config, defaults).temperature();
}
