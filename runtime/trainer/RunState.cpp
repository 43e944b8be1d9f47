// Where a run stands, as state.json has it: what it says of the run, the program, and the checkpoint's other files.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Checksum.h"
#include "runtime/files/Folder.h"
#include "runtime/trainer/Checkpoint.h"
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

using nlohmann::ordered_json;

namespace pp {
namespace {

constexpr double mostEpochs = 1e6; ///< as of --epochs
constexpr double mostShardBytes = 0x1p62;
constexpr double mostTokens = 0x1p53;                                                ///< of all steps
constexpr const char *sequenceField = "sequence", *rowsField = "sequences_per_step"; ///< the shape of a step

ordered_json programFacts(const Program &program) {
  ordered_json facts = {
      {"model", program.model},          {"precision", program.precision},        {"vocab", program.vocab},
      {sequenceField, program.sequence}, {rowsField, program.sequencesPerStep()}, {"parameters", program.parameters}};
  if (program.updates > 1)
    facts["updates_per_step"] = program.updates;
  if (!program.function.empty())
    facts["function"] = program.function;
  facts["optimizer"] = program.optimizer.kind; // a run of another one has another state
  return facts;
}

/// The settings that decide how a step changes the weights, without the peak rate.
ordered_json optimizerFacts(const OptimizerSpec &optimizer) {
  ordered_json facts = {{"beta1", optimizer.beta1},     {"beta2", optimizer.beta2},
                        {"epsilon", optimizer.epsilon}, {"weight_decay", optimizer.weightDecay},
                        {"clip", optimizer.clip},       {"schedule", nameOf(optimizer.rate)},
                        {"warmup", optimizer.warmup},   {"decay_steps", optimizer.decaySteps},
                        {"min_lr", optimizer.minLr},    {"decay", optimizer.decay},
                        {"lag", optimizer.lag}};
  if (!optimizer.noDecay.empty())
    facts["no_decay"] = optimizer.noDecay;
  if (!optimizer.lrScale.empty())
    facts["lr_scale"] = optimizer.lrScale;
  if (!optimizer.decayScale.empty())
    facts["decay_scale"] = optimizer.decayScale;
  if (optimizer.kind == "adamw")
    return facts;
  facts["momentum"] = optimizer.momentum;
  if (optimizer.kind == "sgd") {
    facts["nesterov"] = optimizer.nesterov;
    return facts;
  }
  facts["adjust"] = optimizer.adjust;
  facts["rest_lr"] = optimizer.restLr;
  facts["rest_weight_decay"] = optimizer.restDecay;
  return facts;
}

ordered_json placeFacts(const Rows::Place &place) { return {place.epoch, place.document, place.token}; }

/// The facts about the begin of the steps of this shape.
ordered_json beginFacts(const ShapeBegin &began) {
  ordered_json facts = {{"step", began.step}, {"sequences", began.rows}, {"tokens", began.tokens}};
  for (const Rows::Place &place : began.data)
    facts["places"].push_back(placeFacts(place));
  if (began.source != Rows::Place())
    facts["source"] = placeFacts(began.source);
  return facts;
}

/// The last line but one of state.json begins so: the checksum of all that is before it.
constexpr std::string_view ownSum = ",\n  \"crc32_before\": \"";

/// A field of state.json, in its range. Throws what is wrong.
template <typename Number> Number fieldOf(const nlohmann::json &object, const char *name, double low, double high) {
  const nlohmann::json &value = object.at(name);
  const bool fits = std::is_integral_v<Number> ? value.is_number_integer() : value.is_number();
  if (!fits || !(value.get<double>() >= low && value.get<double>() <= high))
    throw std::out_of_range(text("`", name, "` is ", value.dump(), "; expected a ",
                                 std::is_integral_v<Number> ? "whole number" : "number", " from ", low, " to ", high));
  return value.get<Number>();
}

Rows::Place placeOf(const nlohmann::json &facts) {
  Rows::Place place;
  const char *const names[] = {"epoch", "document", "token"};
  int64_t *const values[] = {&place.epoch, &place.document, &place.token};
  for (size_t i = 0; i < 3; ++i)
    *values[i] = fieldOf<int64_t>({{names[i], facts.at(i)}}, names[i], 0, mostTokens);
  return place;
}

/// Reads what earlier steps have read, and their shape if it was another one.
void readShape(const nlohmann::json &root, const Program &program, RunState &state, std::vector<StateChange> &changes) {
  nlohmann::json its = {{sequenceField, program.sequence}, {rowsField, program.sequencesPerStep()}};
  its.update(root.at("program"));
  const StepShape was{fieldOf<int64_t>(its, sequenceField, 1, 1e9), fieldOf<int64_t>(its, rowsField, 1, 1e9)};
  if (double(state.step) * double(was.rows) * double(was.sequence) > mostTokens)
    throw std::out_of_range(text(state.step, " steps of ", was.rows, " sequences of ", was.sequence, " tokens"));
  for (auto [before, now, what] : {std::tuple(was.sequence, program.sequence, "tokens a sequence"),
                                   {was.rows, program.sequencesPerStep(), "sequences a step"}})
    if (before != now) {
      state.was = was;
      changes.push_back({"shape", text(what, " were ", before, " and are ", now)});
    }
  if (!root.contains("/data/began"_json_pointer))
    return;
  const auto &began = root.at("/data/began"_json_pointer);
  state.began.step = fieldOf<int64_t>(began, "step", 1, double(state.step));
  state.began.rows = fieldOf<int64_t>(began, "sequences", 1, mostTokens);
  state.began.tokens = fieldOf<int64_t>(began, "tokens", 1, mostTokens);
  for (const auto &place : began.at("places"))
    state.began.data.push_back(placeOf(place));
  if (began.contains("source"))
    state.began.source = placeOf(began.at("source"));
}

void readData(const nlohmann::json &root, RunState &state) {
  state.data = root.value("/data/fingerprint"_json_pointer, std::string());
  state.dataChecksum = root.value("/data/checksum"_json_pointer, std::string());
  state.shuffle = root.value("/data/shuffle"_json_pointer, false);
  state.asksPacking = root.value("/data/pack_asked"_json_pointer, false);
  const auto packing = root.value("/data/pack"_json_pointer, std::string());
  for (Packing known : {Packing::Stream, Packing::Whole, Packing::Split})
    if (packing == nameOf(known))
      state.packing = known;
}

void compareOptimizer(const nlohmann::json &root, const OptimizerSpec &spec, std::vector<StateChange> &changes) {
  const ordered_json optimizer = optimizerFacts(spec), theirs = root.value("optimizer", optimizer);
  auto add = [&](const auto &...words) { changes.push_back({"optimizer", text("the optimizer's ", words...)}); };
  for (auto &[key, value] : optimizer.items())
    if (ordered_json was = theirs.value(key, ordered_json()); was != value)
      add(key, " was ", was.dump(), " and is ", value.dump());
  for (const char *list : {"no_decay", "lr_scale", "decay_scale"})
    if (theirs.contains(list) && !optimizer.contains(list))
      add(list, " was ", theirs[list].dump(), " and is []");
}

} // namespace

std::string stateText(const Program &program, const RunState &state, const std::vector<std::string> &files,
                      const std::map<std::string, std::string> &checksums) {
  const int64_t rows = (state.step - state.began.step) * program.sequencesPerStep();
  ordered_json root = {{"format", 1},
                       {"step", state.step},
                       {"steps", state.steps},
                       {"seed", state.seed},
                       {"lr", state.lr},
                       {"data", {{"fingerprint", state.data}, {"shuffle", state.shuffle}}},
                       {"optimizer", optimizerFacts(program.optimizer)},
                       {"sequences", state.began.rows + rows},
                       {"tokens", state.began.tokens + rows * program.sequence},
                       {"program", programFacts(program)},
                       {"made_by", {{"schedule", program.schedule}, {"ranks", program.ranks}}}};
  if (program.mesh.devicesOfRank() > 1)
    root["made_by"]["mesh"] = program.mesh.describe();
  if (state.epochs)
    root["epochs"] = state.epochs;
  if (!state.dataChecksum.empty())
    root["data"]["checksum"] = state.dataChecksum;
  if (program.documents && state.packing)
    root["data"]["pack"] = nameOf(*state.packing);
  if (state.asksPacking)
    root["data"]["pack_asked"] = true;
  if (state.began.step)
    root["data"]["began"] = beginFacts(state.began);
  if (program.scalesLoss())
    root["loss_scale"] = {{"now", state.lossScale}, {"good_steps", state.goodSteps}, {"skipped_steps", state.skipped}};
  else if (state.skipped)
    root["skipped_steps"] = state.skipped;
  if (!state.origin.empty())
    root["origin"] = state.origin;
  if (state.shardBytes != defaultShardBytes)
    root["shard_bytes"] = state.shardBytes;
  root["files"] = files;
  if (checksums.empty())
    return root.dump(2) + "\n";
  root["crc32"] = checksums;
  std::string body = root.dump(2);
  body.resize(body.size() - 2); // without the last line, a brace
  return text(body, ownSum, Checksum::of(body), "\"\n}\n");
}

Status checkWhole(const std::string &folder) {
  const std::string path = folder + "/" + stateFile;
  std::string body;
  if (Status read = readText(path, body); !read.ok())
    return {read.code(), text("cannot resume from `", folder, "`: ", read.message())};
  std::map<std::string, std::string> checksums;
  try {
    auto root = parseJson(body);
    if (!root.contains("crc32") && body.rfind(ownSum) == std::string::npos)
      return {}; // of a version that wrote none
    checksums = root.value("crc32", checksums);
  } catch (const std::exception &error) {
    return corruptJson(path, body, error);
  }
  const size_t end = std::min(body.rfind(ownSum), body.size());
  if (std::string sum = Checksum::of(body.substr(0, end)); body.substr(end) != text(ownSum, sum, "\"\n}\n"))
    return invalid("`", path, "` is damaged: the checksum of what is before its last field is ", sum,
                   ", which that field does not say");
  for (const auto &[name, expected] : checksums) {
    if (!isFileName(name))
      return invalid("`", path, "` has the checksum of `", name, "`, which is no name of a file in its folder");
    PP_TRY(checkSum(folder + "/" + name, expected));
  }
  return {};
}

Status readRunState(const Program &program, const std::string &folder, RunState &state,
                    std::vector<StateChange> &changes) {
  std::string path = withoutEndSlash(folder) + "/" + stateFile;
  std::string body;
  if (Status read = readText(path, body); !read.ok())
    return {read.code(), text("cannot resume from `", folder, "`: ", read.message())};
  try {
    auto root = parseJson(body);
    if (root.at("format") != 1)
      return invalid("`", path, "` has format ", root.at("format").dump(), "; this program reads format 1");
    if (auto updates = root.at("program").value("updates_per_step", int64_t(1)); updates != program.updates)
      return invalid("cannot resume from `", folder, "`: it was made with ", updates,
                     " updates a step, this program has ", program.updates);
    const ordered_json mine = programFacts(program);
    for (auto &[key, value] : mine.items())
      if (auto theirs = root.at("program").value(key, value); theirs != value && key == "function")
        return invalid("cannot resume from `", folder,
                       "`: the model of that run computes something else with weights of "
                       "these sizes; heads, rotary base, epsilon, activation or window differ");
      else if (theirs != value && key != sequenceField && key != rowsField)
        return invalid("cannot resume from `", folder, "`: it was made with ", key, " ", theirs.dump(),
                       ", this program has ", value.dump());
    state.step = fieldOf<int64_t>(root, "step", 1, mostSteps);
    state.steps = fieldOf<int64_t>(root, "steps", double(state.step), mostSteps);
    state.seed = fieldOf<uint64_t>(root, "seed", 0, double(INT64_MAX));
    state.lr = fieldOf<double>(root, "lr", 0, std::numeric_limits<double>::max());
    state.origin = root.value("origin", std::string());
    if (root.contains("shard_bytes"))
      state.shardBytes = fieldOf<int64_t>(root, "shard_bytes", 1, mostShardBytes);
    if (root.contains("epochs"))
      state.epochs = fieldOf<int64_t>(root, "epochs", 1, mostEpochs);
    readData(root, state);
    readShape(root, program, state, changes);
    compareOptimizer(root, program.optimizer, changes);
    if (!program.scalesLoss()) {
      state.skipped =
          root.contains("skipped_steps") ? fieldOf<int64_t>(root, "skipped_steps", 0, double(state.step)) : 0;
      return {};
    }
    const auto &scale = root.at("loss_scale");
    state.lossScale =
        fieldOf<double>(scale, "now", std::numeric_limits<double>::min(), std::numeric_limits<double>::max());
    state.goodSteps = fieldOf<int64_t>(scale, "good_steps", 0, double(state.step));
    state.skipped = fieldOf<int64_t>(scale, "skipped_steps", 0, double(state.step));
  } catch (const std::exception &error) {
    return corruptJson(path, body, error);
  }
  return {};
}

} // namespace pp
