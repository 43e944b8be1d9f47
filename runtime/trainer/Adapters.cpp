// Writes and checks adapter_config.json, and finds adapters in files by their names.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Adapters.h"
#include "runtime/files/Folder.h"
#include <cstring>
#include <nlohmann/json.hpp>

using nlohmann::ordered_json;

namespace pp {
namespace {

Status weightsOf(RankMemory &memory, std::vector<const WeightSpec *> &weights) {
  std::vector<const RankProgram *> programs;
  PP_TRY(memory.emitted.all(programs));
  for (const RankProgram *program : programs)
    for (const WeightSpec &weight : program->weights)
      weights.push_back(&weight);
  return {};
}

/// `base_model.model.transformer.h.0.attn.c_attn` stands beside `h.0.attn.c_attn.weight`.
bool isBeside(const std::string &module, const std::string &weight) {
  return (module + ".weight").ends_with("." + weight);
}

} // namespace

std::string adapterOf(const std::map<std::string, Pieces> &adapters, const std::string &weight) {
  for (const auto &[name, pieces] : adapters)
    if (name.ends_with(firstEnd))
      if (std::string module = name.substr(0, name.size() - strlen(firstEnd)); isBeside(module, weight))
        return module;
  return {};
}

Status frozenWeights(RankMemory &memory, std::set<std::string> &names) {
  std::vector<const WeightSpec *> weights;
  PP_TRY(weightsOf(memory, weights));
  for (const WeightSpec *weight : weights)
    if (weight->frozen)
      names.insert(weight->name);
  return {};
}

Status adapterConfig(RankMemory &memory, const std::string &base, std::string &out) {
  std::vector<const WeightSpec *> weights;
  PP_TRY(weightsOf(memory, weights));
  std::set<std::string> targets;
  bool isTransposed = false; // whether the file has the weights of the model as [out, in]
  for (const WeightSpec *adapter : weights) {
    if (adapter->frozen || !adapter->name.ends_with(firstEnd))
      continue;
    std::string module = adapter->name.substr(0, adapter->name.size() - strlen(firstEnd));
    targets.insert(module.substr(module.rfind('.') + 1));
    for (const WeightSpec *weight : weights)
      if (weight->frozen && isBeside(module, weight->name))
        isTransposed = weight->transposed;
  }
  const LoraSpec &lora = memory.emitted.program().lora;
  ordered_json root = {{"peft_type", "LORA"},
                       {"task_type", "CAUSAL_LM"},
                       {"base_model_name_or_path", base.empty() ? ordered_json() : ordered_json(base)},
                       {"r", lora.rank},
                       {"lora_alpha", lora.alpha},
                       {"target_modules", targets},
                       {"lora_dropout", 0.0},
                       {"bias", "none"},
                       {"fan_in_fan_out", !isTransposed},
                       {"use_rslora", lora.rslora},
                       {"init_lora_weights", true},
                       {"inference_mode", true},
                       {"modules_to_save", nullptr}};
  out = root.dump(2) + "\n";
  return {};
}

Status checkAdapterConfig(const Program &program, const std::string &folder) {
  const std::string path = withoutEndSlash(folder) + "/" + adapterConfigFile;
  std::string body;
  PP_TRY(readText(path, body));
  nlohmann::json root;
  try {
    root = parseJson(body);
  } catch (const std::exception &error) {
    return corruptJson(path, body, error);
  }
  if (!root.is_object())
    return invalid("`", path, "` is not a JSON object");
  const LoraSpec &lora = program.lora;
  const std::pair<const char *, nlohmann::json> expected[] = {{"peft_type", "LORA"},      {"r", lora.rank},
                                                              {"lora_alpha", lora.alpha}, {"use_rslora", lora.rslora},
                                                              {"bias", "none"},           {"use_dora", false}};
  for (const auto &[field, value] : expected)
    if (auto found = root.find(field); found != root.end() ? *found != value : field == std::string("r"))
      return invalid("`", path, "` has ", found == root.end() ? "no" : found->dump(), " `", field,
                     "`, this program computes adapters with ", value.dump());
  for (const char *field : {"modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern",
                            "target_parameters", "exclude_modules"})
    if (auto found = root.find(field); found != root.end() && !found->is_null() && !found->empty())
      return invalid("`", path, "` has `", field, "`, which this program does not know");
  return {};
}

Status matchAdapters(RankMemory &memory, const WeightFiles &files, WeightMatch &match) {
  std::vector<const WeightSpec *> weights;
  PP_TRY(weightsOf(memory, weights));
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
