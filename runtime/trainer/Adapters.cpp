// Writes adapter_config.json, and finds adapters in files by their names.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Adapters.h"
#include "runtime/trainer/AdapterConfig.h"
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

Status checkAdapterFolder(RankMemory &memory, const std::string &folder) {
  std::vector<const WeightSpec *> weights;
  PP_TRY(weightsOf(memory, weights));
  std::set<std::string> modules;
  for (const WeightSpec *adapter : weights)
    if (!adapter->frozen && adapter->name.starts_with(nameBegin) && adapter->name.ends_with(firstEnd))
      modules.insert(
          adapter->name.substr(strlen(nameBegin), adapter->name.size() - strlen(nameBegin) - strlen(firstEnd)));
  return checkAdapterConfig(memory.emitted.program().lora, {modules.begin(), modules.end()}, folder);
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
