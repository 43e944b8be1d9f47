// What a config.json says of the computation, for a program to compare with the one beside other weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   {"model_type": "llama",
//    "fields": {"head_dim": {"is": 8, "absent": 8, "null": 8}, "hidden_act": {"in": ["silu", "swish"]}, ..},
//    "rope":   [{"kind": "", "base": "rope_theta", "theta": 10000, "partial": 1}],
//    "said":   {"rope_scaling": {..}, ..},                             its own fields of rotary positions
//    "keep":   ["model.layers.46.*"]}                                  tensors that are no weights of the model
// runtime/files/FolderConfig.h reads it.
#ifndef PP_FRONTEND_CONFIGFACTS_H
#define PP_FRONTEND_CONFIGFACTS_H

#include "frontend/evaluate/Value.h"
#include "frontend/model/RopeFields.h"
#include "llvm/Support/JSON.h"

namespace pp {

class ConfigFacts {
public:
  /// A field: its value here, and the values that another file means by its absence and by null.
  void read(llvm::StringRef name, const Value &is, const std::optional<Value> &absent,
            const std::optional<Value> &null);
  /// A field that has one of these values, or is not there.
  void only(llvm::StringRef name, const Value &values);
  /// The fields are those of the object `field`, with the type `type` where it has none; `above` holds, with its
  /// defaults, what the fields beside the object say in their place.
  void inside(llvm::StringRef field, llvm::StringRef type, llvm::json::Object above);
  void rope(const RopeDefaults &defaults);
  void keep(const std::string &pattern) { kept.push_back(pattern); }
  [[nodiscard]] std::string text(const FolderConfig &config) const;

private:
  llvm::json::Object fields, outer;
  llvm::json::Array ropes, kept;
};

} // namespace pp

#endif // PP_FRONTEND_CONFIGFACTS_H
