// Folders of adapters as the peft library has them: adapter_model.safetensors, and a config that says what they are.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRAINER_ADAPTERS_H
#define PP_RUNTIME_TRAINER_ADAPTERS_H

#include "runtime/trainer/Gather.h"
#include <set>

namespace pp {

inline constexpr const char *adapterStem = "adapter_model";
inline constexpr const char *adapterConfigFile = "adapter_config.json";

/// The begin of the names of all adapters, and the ends of the names of an adapter's two weights.
inline constexpr const char *nameBegin = "base_model.model.";
inline constexpr const char *firstEnd = ".lora_A.weight", *secondEnd = ".lora_B.weight";

/// The name, without its end, of the adapter beside this weight of the model; empty if there is none.
[[nodiscard]] std::string adapterOf(const std::map<std::string, Pieces> &adapters, const std::string &weight);

/// The names of the weights that no update changes, of all ranks.
Status frozenWeights(Emitted &emitted, std::set<std::string> &names);

/// The text of adapter_config.json. `base`: the folder of the model; empty: not known.
Status adapterConfig(RankMemory &memory, const std::string &base, std::string &out);

/// Refuses a folder whose adapters this program does not compute.
Status checkAdapterFolder(RankMemory &memory, const std::string &folder);

/// Finds the tensor of every adapter of all ranks, and refuses others.
Status matchAdapters(RankMemory &memory, const WeightFiles &files, WeightMatch &match);

} // namespace pp

#endif // PP_RUNTIME_TRAINER_ADAPTERS_H
