// Reads config.json as a family does: defaults, and rotary positions under the names of older and newer files.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/FolderConfig.h"
#include "runtime/files/Folder.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace pp {

using nlohmann::json;

namespace {
constexpr const char *kOriginal = "original_max_position_embeddings", *kPositions = "max_position_embeddings";

/// The field, or that of an object in a field, by both names with `_` between them; null where there is none.
json get(const json &object, const std::string &name) {
  if (!object.is_object() || object.contains(name))
    return object.is_object() ? object.at(name) : json();
  for (const auto &[key, inner] : object.items())
    if (inner.is_object() && name.starts_with(key + "_") && inner.contains(name.substr(key.size() + 1)))
      return inner.at(name.substr(key.size() + 1));
  return json();
}

json firstOf(std::initializer_list<json> all) {
  for (const json &one : all)
    if (!one.is_null())
      return one;
  return {};
}

/// The settings of a configuration for the rotary positions of one type of layers, each under one name.
json ropeOf(const json &config, const json &defaults) {
  const std::string kind = defaults.at("kind"), base = defaults.at("base");
  json given = get(config, "rope_parameters");
  if (!kind.empty())
    given = get(given, kind);
  if (json scaling = get(config, "rope_scaling");
      scaling.is_object() && !scaling.empty() && (kind.empty() || kind == "full_attention"))
    given = scaling;
  json made = json::object();
  for (const auto &[name, value] : given.items())
    if (!value.is_null() && given.is_object())
      made[name] = value;
  const json type = firstOf({get(given, "rope_type"), get(given, "type"), "default"});
  made.erase("type");
  made["rope_type"] = type == "su" ? json("longrope") : type;
  made["rope_theta"] = firstOf({get(given, "rope_theta"), get(config, base), defaults.at("theta")});
  const char *partial = "partial_rotary_factor";
  made[partial] = firstOf({get(given, partial), get(config, partial), defaults.at("partial")});
  if (type == "default" || type == "linear")
    return made;
  made[kOriginal] = firstOf({get(config, kOriginal), get(given, kOriginal), get(config, kPositions)});
  made[kPositions] = get(config, kPositions);
  return made;
}

Status compare(const std::string &path, const std::string &name, const json &theirs, const json &ours) {
  const bool isNone = ours.is_null() || (ours.is_number() && ours < 0); // a row of padding that is not there
  if (theirs == ours)
    return {};
  return invalid("`", path, "` has ", theirs.is_null() ? "no `" + name + "`" : "`" + name + "` " + theirs.dump(),
                 "; this program was compiled for ", isNone ? "none" : ours.dump(),
                 "; compile it from that folder, or say --changed config");
}

/// With Infinity in a list as the number that frontend/model/Family.cpp has for it.
json finite(json value) {
  for (size_t i = 0; value.is_array() && i < value.size(); ++i)
    if (value[i] == "Infini" || value[i] == json::object({{"__float__", "Infinity"}}))
      value[i] = 1e300;
  return value;
}

Status compareField(const std::string &path, const std::string &name, const json &theirs, const json &facts) {
  const json given = finite(get(theirs, name));
  if (!facts.contains("in")) {
    const char *unsaid = theirs.contains(name) ? "null" : "absent";
    return compare(path, name, given.is_null() ? get(facts, unsaid) : given, facts.at("is"));
  }
  const json &allowed = facts.at("in");
  bool fits = given.is_null() || std::find(allowed.begin(), allowed.end(), given) != allowed.end();
  return fits ? Status() : compare(path, name, given, allowed.size() == 1 ? allowed[0] : allowed);
}

/// The fields of the object that the program was made from, and in their place what the fields around it say.
json innerOf(const json &config, const json &how) {
  json inner = get(config, how.at("field"));
  if (!inner.is_object())
    inner = json::object();
  if (!inner.contains("model_type"))
    inner["model_type"] = how.at("type");
  for (const auto &[name, absent] : how.at("above").items())
    inner[name] = firstOf({get(config, name), absent});
  return inner;
}

/// The first of these fields that is there and not null: its name and what it holds.
std::pair<std::string, json> fieldOf(const json &config, std::initializer_list<const char *> names) {
  for (const char *name : names)
    if (json value = get(config, name); !value.is_null())
      return {name, value};
  return {*names.begin(), {}};
}

Status differs(const std::string &path, const std::string &name, const json &theirs, const json &ours) {
  return invalid("`", path, "` has `", name, "` ", theirs.dump(), "; this program computes with ", ours.dump(),
                 "; compile it from that folder, or say --changed config");
}

Status compareNumber(const std::string &path, const std::pair<std::string, json> &field, double ours) {
  const auto &[name, theirs] = field;
  if (!theirs.is_number() || std::abs(theirs.get<double>() - ours) <= 1e-6 * std::abs(ours))
    return {};
  return differs(path, name, theirs, ours);
}

/// A rope that is given by its base; one that has a table may be any.
Status compareRope(const std::string &path, const json &config, const OpSpec &op) {
  if (op.params.size() != 1)
    return {};
  json given = get(config, "rope_parameters");
  if (json scaling = get(config, "rope_scaling"); scaling.is_object() && !scaling.empty())
    given = scaling;
  const json type = firstOf({get(given, "rope_type"), get(given, "type"), "default"});
  if (type != "default")
    return differs(path, "rope_type", type, "default");
  const json base = firstOf({get(get(config, "rope_parameters"), "rope_theta"), get(config, "rope_theta")});
  return compareNumber(path, {"rope_theta", base}, op.params[0]);
}

/// Some layers have the window and some have none: the file says which, or they alternate in every model of the type.
bool mixesWindows(const json &config) {
  const json types = get(config, "layer_types"), model = get(config, "model_type");
  if (types.is_array())
    return std::find(types.begin(), types.end(), "full_attention") != types.end();
  if (config.contains("max_window_layers") && get(config, "use_sliding_window") == true)
    return true;
  const std::initializer_list<const char *> alternating = {"gemma2",  "gemma3", "gemma3_text",
                                                           "cohere2", "olmo3",  "gpt_oss"};
  return std::find(alternating.begin(), alternating.end(), model) != alternating.end();
}

/// A window as wide as the sequence hides nothing.
Status compareWindow(const std::string &path, const json &config, double ours, int64_t sequence) {
  const json window = get(config, "sliding_window");
  if (get(config, "use_sliding_window") == false || mixesWindows(config))
    return ours == 0 ? Status() : compareNumber(path, {"sliding_window", window}, ours);
  const double theirs = window.is_number() ? window.get<double>() : 0;
  auto hides = [&](double width) { return width > 0 && width < double(sequence); };
  if (theirs == ours || (!hides(theirs) && !hides(ours)))
    return {};
  return differs(path, "sliding_window", window, ours > 0 ? json(ours) : json());
}

/// The params are window, scale and softcap; those behind the last one that is set are left out.
Status compareAttention(const std::string &path, const json &config, const OpSpec &op, bool cut, int64_t sequence) {
  auto param = [&](size_t i) { return i < op.params.size() ? op.params[i] : 0; };
  PP_TRY(compareWindow(path, config, param(0), sequence));
  const double width = double(op.dims[4]), scale = param(1) != 0 ? param(1) : 1 / std::sqrt(width);
  if (const json scalar = get(config, "query_pre_attn_scalar"); scalar.is_number())
    PP_TRY(compareNumber(path, {"query_pre_attn_scalar", scalar}, 1 / (scale * scale)));
  PP_TRY(compareNumber(path, {"attention_multiplier", get(config, "attention_multiplier")}, scale));
  if (const json cap = get(config, "attn_logit_softcapping"); cap.is_number() ? cap != param(2) : param(2) != 0)
    return differs(path, "attn_logit_softcapping", cap, param(2) != 0 ? json(param(2)) : json());
  if (cut)
    return {};
  PP_TRY(compareNumber(path, fieldOf(config, {"num_attention_heads", "n_head"}), double(op.dims[2])));
  PP_TRY(compareNumber(path, fieldOf(config, {"num_key_value_heads"}), double(op.dims[3])));
  return compareNumber(path, fieldOf(config, {"head_dim"}), width);
}

/// Fields of other families that no op of ours shows, and the value with which they mean nothing.
Status compareNeutral(const std::string &path, const json &config) {
  const std::pair<const char *, json> neutral[] = {{"embedding_multiplier", 1.0},
                                                   {"residual_multiplier", 1.0},
                                                   {"logits_scaling", 1.0},
                                                   {"logit_scale", 1.0},
                                                   {"clip_qkv", nullptr},
                                                   {"alibi", false},
                                                   {"scale_attn_by_inverse_layer_idx", false}};
  for (const auto &[name, value] : neutral)
    if (const json theirs = get(config, name); !theirs.is_null() && theirs != value)
      return differs(path, name, theirs, value);
  return {};
}

Status compareOp(const std::string &path, const json &config, const OpSpec &op, bool cut, int64_t sequence) {
  if (op.kernel == "rope")
    return compareRope(path, config, op);
  if (op.kernel == "rmsnorm" || op.kernel == "layernorm")
    return compareNumber(
        path, fieldOf(config, {"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"}),
        op.params[0]);
  if (op.kernel == "attention")
    return compareAttention(path, config, op, cut, sequence);
  const auto [name, act] = fieldOf(config, {"hidden_activation", "hidden_act", "activation_function"});
  bool silu = act == "silu" || act == "swish";
  if (act.is_string() && ((op.kernel == "swiglu" && !silu) || (op.kernel.starts_with("gelu") && silu)))
    return differs(path, name, act, op.kernel == "swiglu" ? "silu" : "gelu");
  return {};
}

Status parse(const std::string &path, const std::string &text, json &config) {
  try {
    config = parseJson(text);
  } catch (const std::exception &error) {
    return corruptJson(path, text, error);
  }
  return config.is_object() ? Status() : invalid("`", path, "` is no object of fields");
}
} // namespace

std::vector<std::string> keptTensors(const std::string &facts) {
  const json kept = get(json::parse(facts, nullptr, /*allow_exceptions=*/false), "keep");
  return kept.is_array() ? kept.get<std::vector<std::string>>() : std::vector<std::string>();
}

Status checkConfig(const std::vector<OpSpec> &ops, bool cut, int64_t sequence, const std::string &folder) {
  const std::string path = folder + "/config.json";
  std::string text;
  if (!std::filesystem::exists(path))
    return {};
  PP_TRY(readText(path, text));
  json config;
  PP_TRY(parse(path, text, config));
  PP_TRY(compareNeutral(path, config));
  for (const OpSpec &op : ops)
    PP_TRY(compareOp(path, config, op, cut, sequence));
  return {};
}

Status checkConfig(const std::string &facts, const std::string &folder) {
  const std::string path = folder + "/config.json";
  std::string text;
  if (!std::filesystem::exists(path))
    return {};
  PP_TRY(readText(path, text));
  try {
    json theirs;
    PP_TRY(parse(path, text, theirs));
    const json ours = json::parse(facts);
    if (ours.contains("inside"))
      theirs = innerOf(theirs, ours.at("inside"));
    PP_TRY(compare(path, "model_type", get(theirs, "model_type"), ours.at("model_type")));
    for (const auto &[name, field] : ours.at("fields").items())
      PP_TRY(compareField(path, name, theirs, field));
    for (const json &defaults : ours.at("rope")) {
      json mine = ropeOf(ours.at("said"), defaults), other = ropeOf(theirs, defaults), all = mine;
      all.update(other);
      PP_TRY(compare(path, "rope_type", other.at("rope_type"), mine.at("rope_type")));
      for (const auto &[name, value] : all.items())
        PP_TRY(compare(path, name, get(other, name), get(mine, name)));
    }
  } catch (const json::exception &error) {
    return corruptJson(path, text, error);
  }
  return {};
}

} // namespace pp
