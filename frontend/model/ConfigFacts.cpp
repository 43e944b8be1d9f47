// Writes what a family reads of a config.json as JSON for the program.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/ConfigFacts.h"
#include "frontend/model/FolderConfig.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;
using namespace pp;

static json::Value toJson(const Value &value) {
  if (const bool *flag = value.asBool())
    return *flag;
  if (const int64_t *count = value.asInt())
    return *count;
  if (const double *number = value.asNumber())
    return *number;
  if (const StringRef *text = value.asString())
    return text->str();
  json::Array items;
  for (const Value &item : *value.asList())
    items.push_back(toJson(item));
  return items;
}

void ConfigFacts::read(StringRef name, const Value &is, const std::optional<Value> &absent,
                       const std::optional<Value> &null) {
  // Neither changes what is computed from given weights; where rotary positions need the second, `said` has it.
  if (name == "initializer_range" || name == "max_position_embeddings")
    return;
  json::Object field{{"is", toJson(is)}};
  if (absent)
    field["absent"] = toJson(*absent);
  if (null)
    field["null"] = toJson(*null);
  fields[name] = std::move(field);
}

void ConfigFacts::only(StringRef name, const Value &values) { fields[name] = json::Object{{"in", toJson(values)}}; }

void ConfigFacts::inside(StringRef field, StringRef type, json::Object above) {
  outer = json::Object{{"field", field}, {"type", type}, {"above", std::move(above)}};
}

void ConfigFacts::rope(const RopeDefaults &defaults) {
  ropes.push_back(json::Object{{"kind", defaults.kind},
                               {"base", defaults.base},
                               {"theta", defaults.theta},
                               {"partial", defaults.partial.value_or(1)}});
}

std::string ConfigFacts::text(const FolderConfig &config) const {
  json::Object said;
  SmallVector<StringRef> names(std::begin(kRopeFields), std::end(kRopeFields));
  names.push_back("max_position_embeddings");
  for (const json::Value &rope : ropes)
    names.push_back(*rope.getAsObject()->getString("base"));
  for (StringRef name : names)
    if (const json::Value *value = config.get(name))
      said[name] = *value;
  json::Object all{{"model_type", *config.get("model_type")},
                   {"fields", json::Object(fields)},
                   {"rope", json::Array(ropes)},
                   {"keep", json::Array(kept)},
                   {"said", std::move(said)}};
  if (!outer.empty())
    all["inside"] = json::Object(outer);
  std::string text;
  raw_string_ostream(text) << json::Value(std::move(all));
  return text;
}
