// What adapter_config.json says of adapters, by the rules of the peft library.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRAINER_ADAPTERCONFIG_H
#define PP_RUNTIME_TRAINER_ADAPTERCONFIG_H

#include "runtime/Program.h"

namespace pp {

inline constexpr const char *adapterConfigFile = "adapter_config.json";

/// Refuses a folder with whose config peft would compute or train other adapters. `modules` of the model have an
/// adapter in this program.
Status checkAdapterConfig(const LoraSpec &lora, const std::vector<std::string> &modules, const std::string &folder);

} // namespace pp

#endif // PP_RUNTIME_TRAINER_ADAPTERCONFIG_H
