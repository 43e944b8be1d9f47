// Where a run stands, as state.json has it: what it says of the run, the program, and the checkpoint's other files.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Checksum.h"
#include "runtime/files/Folder.h"
#include "runtime/trainer/Checkpoint.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

using nlohmann::ordered_json;

namespace pp {
namespace {

constexpr double mostSteps = 1e9; ///< as of --steps

ordered_json programFacts(const Program &program) {
  ordered_json facts = {{"model", program.model},
                        {"precision", program.precision},
                        {"vocab", program.vocab},
                        {"sequence", program.sequence},
                        {"sequences_per_step", program.sequencesPerStep()},
                        {"parameters", program.parameters}};
  if (program.updates > 1)
    facts["updates_per_step"] = program.updates;
  if (!program.function.empty())
    facts["function"] = program.function;
  facts["optimizer"] = program.optimizer.kind; // a run of another one has another state
  return facts;
}

/// What decides how a step changes the weights, apart from the peak rate.
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

/// The last line but one of state.json begins so: the checksum of all that is before it.
constexpr std::string_view ownSum = ",\n  \"crc32_before\": \"";

/// Reads the file to its end.
Status checkFile(const std::string &path, const std::string &expected) {
  if (std::error_code none; !std::filesystem::is_regular_file(path, none))
    return refused("`", path, "` is damaged: it is no file");
  std::unique_ptr<FILE, int (*)(FILE *)> file(fopen(path.c_str(), "rb"), fclose);
  if (!file)
    return refused("`", path, "` cannot be read: ", strerror(errno));
  Checksum sum;
  std::vector<char> block(1 << 18);
  while (size_t bytes = fread(block.data(), 1, block.size(), file.get()))
    sum.add(block.data(), bytes);
  if (ferror(file.get()))
    return refused("`", path, "` cannot be read: ", strerror(errno));
  return sum.text() == expected
             ? Status()
             : invalid("`", path, "` is damaged: its checksum is ", sum.text(), ", `", stateFile, "` says ", expected);
}

/// A field of state.json, in its range. Throws what is wrong.
template <typename Number> Number fieldOf(const nlohmann::json &object, const char *name, double low, double high) {
  const nlohmann::json &value = object.at(name);
  const bool fits = std::is_integral_v<Number> ? value.is_number_integer() : value.is_number();
  if (!fits || !(value.get<double>() >= low && value.get<double>() <= high))
    throw std::out_of_range(text("`", name, "` is ", value.dump(), "; expected a ",
                                 std::is_integral_v<Number> ? "whole number" : "number", " from ", low, " to ", high));
  return value.get<Number>();
}

} // namespace

std::string stateText(const Program &program, const RunState &state, const std::vector<std::string> &files,
                      const std::map<std::string, std::string> &checksums) {
  ordered_json root = {{"format", 1},
                       {"step", state.step},
                       {"steps", state.steps},
                       {"seed", state.seed},
                       {"lr", state.lr},
                       {"data", {{"fingerprint", state.data}, {"shuffle", state.shuffle}}},
                       {"optimizer", optimizerFacts(program.optimizer)},
                       {"sequences", state.step * program.sequencesPerStep()},
                       {"program", programFacts(program)},
                       {"made_by", {{"schedule", program.schedule}, {"ranks", program.ranks}}}};
  if (program.mesh.devicesOfRank() > 1)
    root["made_by"]["mesh"] = program.mesh.describe();
  if (program.documents && state.packing)
    root["data"]["pack"] = nameOf(*state.packing);
  if (program.scalesLoss())
    root["loss_scale"] = {{"now", state.lossScale}, {"good_steps", state.goodSteps}, {"skipped_steps", state.skipped}};
  if (!state.origin.empty())
    root["origin"] = state.origin;
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
    if (name.empty() || name == ".." || name.find('/') != std::string::npos)
      return invalid("`", path, "` has the checksum of `", name, "`, which is no name of a file in its folder");
    PP_TRY(checkFile(folder + "/" + name, expected));
  }
  return {};
}

Status readRunState(const Program &program, const std::string &folder, RunState &state,
                    std::vector<std::string> &changes) {
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
      else if (theirs != value)
        return invalid("cannot resume from `", folder, "`: it was made with ", key, " ", theirs.dump(),
                       ", this program has ", value.dump());
    state.step = fieldOf<int64_t>(root, "step", 1, mostSteps);
    state.steps = fieldOf<int64_t>(root, "steps", double(state.step), mostSteps);
    state.seed = fieldOf<uint64_t>(root, "seed", 0, double(INT64_MAX));
    state.lr = fieldOf<double>(root, "lr", 0, std::numeric_limits<double>::max());
    state.origin = root.value("origin", std::string());
    state.data = root.value("/data/fingerprint"_json_pointer, std::string());
    state.shuffle = root.value("/data/shuffle"_json_pointer, false);
    const auto packing = root.value("/data/pack"_json_pointer, std::string());
    for (Packing known : {Packing::Stream, Packing::Whole, Packing::Split})
      if (packing == nameOf(known))
        state.packing = known;
    const ordered_json optimizer = optimizerFacts(program.optimizer);
    const ordered_json theirs = root.value("optimizer", optimizer);
    for (auto &[key, value] : optimizer.items())
      if (ordered_json was = theirs.value(key, ordered_json()); was != value)
        changes.push_back(text(key, " was ", was.dump(), " and is ", value.dump()));
    for (const char *list : {"no_decay", "lr_scale", "decay_scale"})
      if (theirs.contains(list) && !optimizer.contains(list))
        changes.push_back(text(list, " was ", theirs[list].dump(), " and is []"));
    if (!program.scalesLoss())
      return {};
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
