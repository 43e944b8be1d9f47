// Writes adapter_config.json, reads it as peft 0.21 does, and finds adapters in files by their names.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Adapters.h"
#include "runtime/files/Folder.h"
#include "runtime/files/SafeTensors.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <regex>
#include <tuple>

namespace pp {

using Json = nlohmann::ordered_json; // patterns are tried in the order of the file

namespace {

Status weightsOf(Emitted &emitted, std::vector<const WeightSpec *> &weights) {
  std::vector<const RankProgram *> programs;
  PP_TRY(emitted.all(programs));
  for (const RankProgram *program : programs)
    for (const WeightSpec &weight : program->weights)
      weights.push_back(&weight);
  return {};
}

/// `base_model.model.transformer.h.0.attn.c_attn` stands beside `h.0.attn.c_attn.weight`.
bool isBeside(const std::string &module, const std::string &weight) {
  return (module + ".weight").ends_with("." + weight);
}

//===-- adapter_config.json of others ----------------------------------------------------------------------------===//

/// Fields that change neither what given adapters compute nor how they are trained.
constexpr const char *kNotes[] = {
    "auto_mapping",  "base_model_name_or_path", "corda_config",  "eva_config",   "fan_in_fan_out",    "inference_mode",
    "loftq_config",  "lora_ga_config",          "megatron_core", "peft_version", "qalora_group_size", "revision",
    "runtime_config"};
/// Fields that are compared. All others must say nothing.
constexpr const char *kRead[] = {"alpha_pattern",  "bias",       "exclude_modules", "init_lora_weights",
                                 "layers_pattern", "lora_alpha", "lora_dropout",    "layers_to_transform",
                                 "peft_type",      "r",          "rank_pattern",    "target_modules",
                                 "task_type",      "use_rslora"};

bool saysNothing(const Json &value) {
  return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

bool isWhole(double value) { return std::abs(value) < 1e15 && value == std::floor(value); }

std::string shown(const Json &value) {
  const std::string whole = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return whole.size() > 200 ? whole.substr(0, 198) + ".." : whole;
}

/// Whether C++ reads a regular expression of Python's as Python does, and in bounded time and memory.
bool isPlainPattern(const std::string &pattern) {
  size_t repeats = 1, groups = 0, looks = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = std::string_view(pattern).substr(i);
    const char next = rest.size() > 1 ? rest[1] : '\0';
    if (rest[0] == '\\') {
      if (std::isalnum(static_cast<unsigned char>(next)) && !strchr("bBdDsSwW", next))
        return false;
      ++i;
    } else if (rest.starts_with("[]") || rest.starts_with("[[") || rest.starts_with("[^]")) {
      return false;
    } else if (rest[0] == '{') {
      size_t number = 0;
      for (const char c : rest.substr(1, rest.find('}'))) {
        const bool isDigit = std::isdigit(static_cast<unsigned char>(c));
        repeats = std::min<size_t>(isDigit ? repeats : repeats * std::max<size_t>(number, 1), 100000);
        number = isDigit ? std::min<size_t>(10 * number + size_t(c - '0'), 100000) : 0;
      }
    } else if (rest[0] == '(') {
      ++groups;
      looks += rest.starts_with("(?=") || rest.starts_with("(?!");
    }
    if (repeats * pattern.size() > 20000 || groups > 100 || looks > 3)
      return false;
  }
  return true;
}

class AdapterConfig {
public:
  AdapterConfig(const LoraSpec &lora, const std::vector<std::string> &modules, std::string path, Json root)
      : lora(lora), modules(modules), path(std::move(path)), root(std::move(root)) {}

  Status check() const {
    PP_TRY(oneOf("peft_type", {"LORA"}, nullptr));
    PP_TRY(oneOf("task_type", {nullptr, "CAUSAL_LM"}, nullptr));
    PP_TRY(oneOf("bias", {"none"}, "none"));
    PP_TRY(oneOf("lora_dropout", {lora.dropout}, 0));
    PP_TRY(oneOf("use_rslora", {lora.rslora}, false));
    PP_TRY(checkFirstValues());
    for (const auto &[field, value] : root.items())
      if (!has(kNotes, field) && !has(kRead, field) && !saysNothing(value))
        return wrong(field, "which this program does not compute");
    for (const std::string &module : modules) {
      PP_TRY(checkNumber("r", "rank_pattern", lora.rank, module));
      PP_TRY(checkNumber("lora_alpha", "alpha_pattern",
                         isWhole(lora.alpha) ? Json(int64_t(lora.alpha)) : Json(lora.alpha), module));
      PP_TRY(checkModule(module));
    }
    return {};
  }

private:
  const LoraSpec &lora;
  const std::vector<std::string> &modules;
  const std::string path;
  const Json root;

  template <size_t count> static bool has(const char *const (&names)[count], const std::string &name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  }

  Json get(const std::string &field, const Json &absent = {}) const { return root.value(field, absent); }

  template <typename... Texts> Status wrong(const std::string &field, const Texts &...what) const {
    const bool isThere = root.contains(field);
    return invalid("`", path, "` has ", isThere ? "" : "no ", "`", field, "`", isThere ? " " : "",
                   isThere ? shown(root.at(field)) : "", ", ", what...);
  }

  Status oneOf(const std::string &field, const std::vector<Json> &expected, const Json &absent) const {
    const Json value = get(field, absent);
    return std::find(expected.begin(), expected.end(), value) != expected.end()
               ? Status()
               : wrong(field, "this program computes adapters with ", shown(expected.back()));
  }

  /// Some ways to begin change the model's own weights, and peft does so again whenever it reads the folder.
  Status checkFirstValues() const {
    const Json how = get("init_lora_weights", true);
    if (how.is_boolean())
      return {};
    std::string name = how.is_string() ? how.get<std::string>() : "";
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    for (const char *harmless : {"gaussian", "eva", "orthogonal", "lora_ga"})
      if (name == harmless)
        return {};
    for (const char *converted : {"pissa", "olora", "corda"})
      if (name.starts_with(converted))
        return wrong("init_lora_weights",
                     "with which peft takes a part out of the model's own weights; save the folder ",
                     "with `path_initial_model_for_weight_conversion`, which makes adapters for the model as it is");
    return wrong("init_lora_weights", "which this program does not know");
  }

  /// Whether Python's re.fullmatch finds the text.
  Status matches(const std::string &field, const std::string &pattern, const std::string &text, bool &found) const {
    try {
      if (!isPlainPattern(pattern))
        return wrong(field, "whose pattern `", pattern, "` this program cannot read as Python does");
      found = std::regex_match(text, std::regex(pattern, std::regex::ECMAScript | std::regex_constants::__polynomial));
    } catch (const std::regex_error &) {
      return wrong(field, "whose pattern `", pattern, "` this program cannot read as Python does");
    }
    return {};
  }

  /// The rank, or alpha, of a module: of the first pattern that ends its name, or of all.
  Status checkNumber(const std::string &field, const std::string &patterns, const Json &expected,
                     const std::string &module) const {
    const Json given = get(patterns);
    if (!given.is_null() && !given.is_object())
      return wrong(patterns, "expected an object");
    for (const auto &[pattern, value] : given.items()) {
      bool found = false;
      if (given.is_object())
        PP_TRY(matches(patterns, "(.*\\.)?(" + pattern + ")", module, found));
      if (found)
        return value == expected ? Status()
                                 : wrong(patterns, "this program computes `", module, "` with ", shown(expected));
    }
    return oneOf(field, {expected}, 8);
  }

  /// Whether a list names the module, by its whole name or its last parts; a text is a pattern.
  Status names(const std::string &field, const std::string &module, bool &found) const {
    const Json given = get(field);
    if (given.is_string())
      return matches(field, given, module, found);
    for (const Json &name : given.is_null() ? Json::array() : given)
      if (!given.is_array() || !name.is_string())
        return wrong(field, "expected a text, or a list of texts");
      else if (const std::string text = name; module == text || module.ends_with("." + text))
        found = true;
    return {};
  }

  Status checkModule(const std::string &module) const {
    bool isExcluded = false, isTarget = false;
    if (!saysNothing(get("exclude_modules")))
      PP_TRY(names("exclude_modules", module, isExcluded));
    if (isExcluded)
      return wrong("exclude_modules", "by which peft adapts no `", module, "`; this program does");
    const Json targets = get("target_modules");
    std::string text = targets.is_string() ? targets.get<std::string>() : "";
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    if (text == "all-linear")
      isTarget = module != "lm_head" && module != "embed_out";
    else
      PP_TRY(names("target_modules", module, isTarget));
    if (!isTarget)
      return wrong("target_modules", "by which peft adapts no `", module, "`; this program does");
    const bool isWhole = targets.is_array() && std::find(targets.begin(), targets.end(), Json(module)) != targets.end();
    return isWhole ? Status() : checkLayer(module);
  }

  /// `layers_to_transform` counts by the first number in the module's name, behind one of `layers_pattern`.
  Status checkLayer(const std::string &module) const {
    const Json layers = get("layers_to_transform"), given = get("layers_pattern");
    if (layers.is_null() || layers == Json::array())
      return {};
    const auto isNumber = [](const Json &layer) { return layer.is_number_integer(); };
    if (!(layers.is_array() ? std::all_of(layers.begin(), layers.end(), isNumber) : isNumber(layers)))
      return wrong("layers_to_transform", "expected a whole number, or a list of them");
    Json patterns = saysNothing(given) ? Json{"[^.]*"} : given.is_array() ? given : Json{given};
    const std::string before = saysNothing(given) ? ".*\\." : "(.*\\.)?";
    for (const Json &pattern : patterns) {
      if (!pattern.is_string())
        return wrong("layers_pattern", "expected a text, or a list of texts");
      for (size_t dot = module.find('.'); dot != std::string::npos; dot = module.find('.', dot + 1)) {
        const size_t end = module.find_first_not_of("0123456789", dot + 1);
        bool found = false;
        if (end == std::string::npos || end == dot + 1 || module[end] != '.')
          continue;
        PP_TRY(
            matches("layers_pattern", before + "(" + pattern.get<std::string>() + ")", module.substr(0, dot), found));
        if (!found)
          continue;
        const Json layer = std::stoll(module.substr(dot + 1, end - dot - 1));
        if (layer == layers || (layers.is_array() && std::find(layers.begin(), layers.end(), layer) != layers.end()))
          return {};
        return wrong("layers_to_transform", "by which peft adapts no `", module, "`; this program does");
      }
    }
    return wrong("layers_to_transform", "and peft finds no number of a layer in `", module, "`");
  }
};

/// Refuses a folder with whose config peft would compute or train other adapters. `modules` have one here.
Status checkAdapterConfig(const LoraSpec &lora, const std::vector<std::string> &modules, const std::string &folder) {
  const std::string path = withoutEndSlash(folder) + "/" + adapterConfigFile;
  std::string body;
  PP_TRY(readText(path, body));
  Json root;
  try {
    root = parseOrderedJson(body);
  } catch (const std::exception &error) {
    return corruptJson(path, body, error);
  }
  if (!root.is_object())
    return invalid("`", path, "` is not a JSON object");
  return AdapterConfig(lora, modules, path, std::move(root)).check();
}

} // namespace

std::string adapterOf(const std::map<std::string, Pieces> &adapters, const std::string &weight) {
  for (const auto &[name, pieces] : adapters)
    if (name.ends_with(firstEnd))
      if (std::string module = name.substr(0, name.size() - strlen(firstEnd)); isBeside(module, weight))
        return module;
  return {};
}

Status frozenWeights(Emitted &emitted, std::set<std::string> &names) {
  std::vector<const WeightSpec *> weights;
  PP_TRY(weightsOf(emitted, weights));
  for (const WeightSpec *weight : weights)
    if (weight->frozen)
      names.insert(weight->name);
  return {};
}

Status adapterConfig(RankMemory &memory, const std::string &base, std::string &out) {
  std::vector<const WeightSpec *> weights;
  PP_TRY(weightsOf(memory.emitted, weights));
  std::set<std::string> targets;
  bool isTransposed = false; // whether the file has the weights of the model as [out, in]
  for (const WeightSpec *adapter : weights) {
    if (adapter->frozen || !adapter->name.ends_with(firstEnd))
      continue;
    std::string module = adapter->name.substr(0, adapter->name.size() - strlen(firstEnd));
    targets.insert(module.substr(module.rfind('.') + 1));
    for (const WeightSpec *weight : weights)
      if (weight->frozen && isBeside(module, weight->name))
        isTransposed = weight->stored == Stored::Transposed;
  }
  const LoraSpec &lora = memory.emitted.program().lora;
  Json root = {{"peft_type", "LORA"},
               {"task_type", "CAUSAL_LM"},
               {"base_model_name_or_path", base.empty() ? Json() : Json(base)},
               {"r", lora.rank},
               {"lora_alpha", lora.alpha},
               {"target_modules", targets},
               {"lora_dropout", lora.dropout},
               {"bias", "none"},
               {"fan_in_fan_out", !isTransposed},
               {"use_rslora", lora.rslora},
               {"init_lora_weights", true},
               {"inference_mode", true},
               {"modules_to_save", nullptr}};
  out = root.dump(2) + "\n";
  return {};
}

Status checkAdapterFolder(RankMemory &memory, const std::string &folder) {
  std::vector<const WeightSpec *> weights;
  PP_TRY(weightsOf(memory.emitted, weights));
  std::set<std::string> modules;
  for (const WeightSpec *adapter : weights)
    if (!adapter->frozen && adapter->name.starts_with(nameBegin) && adapter->name.ends_with(firstEnd))
      modules.insert(
          adapter->name.substr(strlen(nameBegin), adapter->name.size() - strlen(nameBegin) - strlen(firstEnd)));
  return checkAdapterConfig(memory.emitted.program().lora, {modules.begin(), modules.end()}, folder);
}

Status matchAdapters(RankMemory &memory, const WeightFiles &files, WeightMatch &match) {
  std::vector<const WeightSpec *> weights;
  PP_TRY(weightsOf(memory.emitted, weights));
  std::set<std::string> known;
  for (const WeightSpec *weight : weights) {
    if (weight->frozen)
      continue;
    known.insert(weight->name);
    FilePlace place = files.find(weight->name);
    if (!place)
      return invalid("`", files.path(), "` lacks `", weight->name, "`, an adapter of this program");
    match.weights[weight->name] = place;
  }
  for (const auto &[name, place] : files.tensors())
    if (!known.contains(name))
      return invalid("`", files.path(), "` has `", name, "`, which is no adapter of this program");
  return {};
}

} // namespace pp
