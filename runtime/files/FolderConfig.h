// Compares the config.json beside weights with the one that a program was compiled from.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FOLDERCONFIG_H
#define PP_RUNTIME_FOLDERCONFIG_H

#include "runtime/Kernels.h"
#include "runtime/Status.h"
#include <string>
#include <vector>

namespace pp {

/// Refuses the config.json of a folder, where there is one, if it means another computation than `facts`, which
/// frontend/model/ConfigFacts.h wrote. Both spellings of rotary positions are read, and what an absent field means.
Status checkConfig(const std::string &facts, const std::string &folder);

/// Patterns of the tensors of such a folder that are no weights of the model: `*` is any text.
[[nodiscard]] std::vector<std::string> keptTensors(const std::string &facts);

/// The same for a program that was compiled from no folder, as far as its ops show it: heads and their width, window,
/// scale and cap of attention, epsilon, rotary base and scaling, and the activation; fields that multiply or clip what
/// no op here does are refused. A program that is cut along `tensor` or `context` shows no heads: `cut`. `sequence` is
/// in tokens.
Status checkConfig(const std::vector<OpSpec> &ops, bool cut, int64_t sequence, const std::string &folder);

} // namespace pp

#endif // PP_RUNTIME_FOLDERCONFIG_H
