// The fields of a line of a run's log: the trainer writes no others, and no report of a model is called as one of them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_LOGFIELDS_H
#define PP_RUNTIME_LOGFIELDS_H

#include <string_view>

namespace pp {

inline constexpr std::string_view logFields[] = {"step",    "loss",    "ppl",    "mtp",          "z_loss",
                                                 "balance", "z",       "rows",   "dropped",      "grad_norm",
                                                 "skipped", "weight",  "tokens", "tokens_per_s", "flop_per_s",
                                                 "mfu",     "seconds", "eta_s",  "loss_scale"};

/// Those of evaluations begin with `eval`, and those of rates with `lr`.
constexpr bool isLogField(std::string_view name) {
  for (std::string_view field : logFields)
    if (name == field)
      return true;
  return name.starts_with("eval") || name.starts_with("lr");
}

} // namespace pp

#endif // PP_RUNTIME_LOGFIELDS_H
