// Writes checkpoints all or nothing, in the files of the model that was read, and reads them back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Checkpoint.h"
#include "runtime/files/Folder.h"
#include "runtime/trainer/Adapters.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sys/statvfs.h>

using nlohmann::ordered_json;

namespace pp {
namespace {

constexpr double mostSteps = 1e9; ///< as of --steps

/// A tensor of a checkpoint: gathered from its pieces, or copied from the files that were read.
struct OutTensor {
  FileTensor entry;
  const Pieces *pieces = nullptr;
  FilePlace from;
  const Pieces *a = nullptr, *b = nullptr; ///< of the adapter whose product is added
};

/// A file of tensors of a checkpoint.
struct OutFile {
  std::string name;
  std::vector<OutTensor> tensors;
};

struct Plan {
  std::map<std::string, Pieces> weights, state, adapters;
  std::vector<OutFile> files;     ///< of the weights
  std::vector<std::string> names; ///< of all files
  std::string index;              ///< the text of the index, if there is one
};

int64_t bytesOf(const OutTensor &tensor) {
  std::optional<Type> type = typeOfFile(tensor.entry.type);
  return type && tensor.pieces ? tensor.entry.elements() * int64_t(elementBytes(*type))
                               : tensor.from.tensor->end - tensor.from.tensor->begin;
}

/// Whether every number of `narrow` is one of `wide`.
bool holds(Type wide, Type narrow) {
  return wide == narrow || wide == Type::F64 || (wide == Type::F32 && elementBytes(narrow) == 2);
}

/// Where the values of a weight come from. A file of another type than the run's gets them from the master, rounded
/// once; what such a file cannot hold stands in the optimizer's file as well, for the run that resumes.
Status piecesFor(Plan &plan, const std::string &weight, Type stored, const Pieces *&out) {
  auto found = plan.weights.find(weight);
  if (found == plan.weights.end())
    return internal("no rank hands in `", weight, "`");
  out = &found->second;
  Type own = out->front().tensor.type;
  if (stored == own)
    return {};
  const std::string master = weight + ".master";
  if (!plan.state.contains(master) && !holds(stored, own))
    plan.state[master] = found->second;
  if (auto wider = plan.state.find(master); wider != plan.state.end())
    out = &wider->second;
  return {};
}

/// The files of the origin, with new values for what are weights.
Status planAsRead(Plan &plan, const WeightLayout &layout) {
  std::map<std::string, std::string> weightOf = layout.match->copies;
  for (const auto &[weight, place] : layout.match->weights)
    weightOf[place.tensor->name] = weight;
  for (const auto &file : layout.origin->files()) {
    OutFile out{fileName(file->path()), {}};
    for (const auto &[name, tensor] : file->tensors()) {
      OutTensor &each = out.tensors.emplace_back(OutTensor{tensor, nullptr, {file.get(), &tensor}});
      auto weight = weightOf.find(name);
      if (weight == weightOf.end())
        continue;
      if (layout.type)
        each.entry.type = fileType(*layout.type);
      PP_TRY(piecesFor(plan, weight->second, *typeOfFile(each.entry.type), each.pieces));
    }
    std::stable_sort(out.tensors.begin(), out.tensors.end(),
                     [](const OutTensor &a, const OutTensor &b) { return a.entry.begin < b.entry.begin; });
    plan.files.push_back(std::move(out));
  }
  return {};
}

/// The weights in the order of their names, in as many files as they need.
Status planAfresh(Plan &plan, const WeightLayout &layout) {
  int64_t room = 0;
  for (const auto &[name, pieces] : plan.weights) {
    const TensorSpec &tensor = pieces.front().tensor;
    Type type = layout.type.value_or(tensor.type);
    OutTensor each{{name, fileType(type), fileShape(tensor)}, nullptr, {}};
    PP_TRY(piecesFor(plan, name, type, each.pieces));
    if (plan.files.empty() || bytesOf(each) > room) {
      plan.files.emplace_back();
      room = layout.shardBytes;
    }
    room -= bytesOf(each);
    plan.files.back().tensors.push_back(std::move(each));
  }
  if (layout.adapters)
    plan.files[0].name = adapterFile;
  for (size_t i = 0; i < plan.files.size() && !layout.adapters; ++i) {
    char name[64];
    snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, plan.files.size());
    plan.files[i].name = plan.files.size() == 1 ? WeightFiles::singleName : name;
  }
  return {};
}

/// The index as it was read; its bytes are counted again where the types are others.
std::string indexOf(const Plan &plan, const WeightLayout &layout) {
  int64_t bytes = 0, elements = 0;
  std::map<std::string, std::string> fileOf;
  for (const OutFile &file : plan.files)
    for (const OutTensor &tensor : file.tensors) {
      bytes += bytesOf(tensor);
      elements += tensor.entry.elements();
      fileOf[tensor.entry.name] = file.name;
    }
  if (layout.origin) {
    if (!layout.type || layout.origin->index().empty())
      return layout.origin->index();
    auto root = ordered_json::parse(layout.origin->index());
    if (root.contains("metadata") && root["metadata"].is_object())
      root["metadata"]["total_size"] = bytes;
    return root.dump(2) + "\n";
  }
  if (plan.files.size() == 1)
    return {};
  ordered_json root = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}}, {"weight_map", fileOf}};
  return root.dump(2) + "\n";
}

Status makePlan(RankMemory &memory, const WeightLayout &layout, Plan &plan) {
  PP_TRY(piecesOf(memory, TensorKind::Weights, plan.weights));
  PP_TRY(piecesOf(memory, TensorKind::State, plan.state));
  if (layout.adapters) {
    std::set<std::string> frozen;
    PP_TRY(frozenWeights(memory, frozen));
    std::erase_if(plan.weights, [&](const auto &weight) { return frozen.contains(weight.first); });
    plan.names.push_back(adapterConfigFile);
  }
  PP_TRY(layout.origin ? planAsRead(plan, layout) : planAfresh(plan, layout));
  plan.index = indexOf(plan, layout);
  for (const OutFile &file : plan.files)
    plan.names.push_back(file.name);
  if (!plan.index.empty())
    plan.names.push_back(WeightFiles::indexName);
  plan.names.push_back(optimizerFile);
  plan.names.push_back(stateFile);
  return {};
}

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

Status writeState(const Program &program, const std::string &path, const RunState &state,
                  const std::vector<std::string> &files) {
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
  return writeMark(path, root.dump(2) + "\n");
}

/// Adds factor A B to the weight, all in the layouts of files: A [rank, in], B [out, rank], the weight [out, in] or, as
/// GPT-2 has it, [in, out]. Each number is rounded once.
void addProduct(const OutTensor &tensor, const std::vector<char> &a, const std::vector<char> &b, double factor,
                std::vector<char> &values) {
  const TensorSpec &weight = tensor.pieces->front().tensor, &first = tensor.a->front().tensor;
  auto readA = SafeTensors::readerOf(fileType(first.type)),
       readB = SafeTensors::readerOf(fileType(tensor.b->front().tensor.type)),
       readW = SafeTensors::readerOf(fileType(weight.type));
  const int64_t rank = fileShape(first)[0], in = fileShape(first)[1], out = fileShape(tensor.b->front().tensor)[0];
  for (int64_t o = 0; o < out; ++o)
    for (int64_t i = 0; i < in; ++i) {
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r)
        sum += readB(b.data(), o * rank + r) * readA(a.data(), r * in + i);
      int64_t at = weight.transposed ? o * in + i : i * out + o;
      storeElement(values.data() + at * int64_t(elementBytes(weight.type)), weight.type,
                   readW(values.data(), at) + factor * sum);
    }
}

/// Writes a tensor in the file's type, a block at a time.
Status writeConverted(const OutTensor &tensor, Type own, Type stored, const char *values, SafeTensorsWriter &file,
                      int64_t &vanished) {
  constexpr int64_t most = 1 << 17;
  const int64_t ownBytes = int64_t(elementBytes(own)), bytes = int64_t(elementBytes(stored));
  std::vector<char> block;
  for (int64_t first = 0, all = tensor.entry.elements(); first < all; first += most) {
    const int64_t count = std::min(most, all - first);
    block.resize(size_t(count * bytes));
    PP_TRY(convert(tensor.entry.name, SafeTensors::readerOf(fileType(own)), values + first * ownBytes, count, stored,
                   block.data(), vanished));
    PP_TRY(file.write(block.data(), block.size()));
  }
  return {};
}

/// Gathers the tensors of a file, one at a time, and writes them. Collective.
Status writeFile(RankMemory &memory, const std::string &folder, const OutFile &out,
                 const std::map<std::string, std::string> &metadata, int64_t &vanished) {
  bool writer = memory.program.device == 0;
  std::vector<FileTensor> entries;
  for (const OutTensor &tensor : out.tensors)
    entries.push_back(tensor.entry);
  SafeTensorsWriter file;
  if (writer)
    PP_TRY(file.open(folder + "/" + out.name, entries, metadata));
  std::vector<char> values;
  for (const OutTensor &tensor : out.tensors) {
    if (!tensor.pieces) {
      if (writer)
        PP_TRY(file.write(tensor.from.file->data(*tensor.from.tensor), size_t(bytesOf(tensor))));
      continue;
    }
    PP_TRY(gather(memory, *tensor.pieces, values));
    if (tensor.a) {
      std::vector<char> a, b;
      PP_TRY(gather(memory, *tensor.a, a));
      PP_TRY(gather(memory, *tensor.b, b));
      if (writer)
        addProduct(tensor, a, b, memory.emitted.program().lora.factor, values);
    }
    if (!writer)
      continue;
    Type own = tensor.pieces->front().tensor.type, stored = *typeOfFile(tensor.entry.type);
    PP_TRY(own == stored ? file.write(values.data(), values.size())
                         : writeConverted(tensor, own, stored, values.data(), file, vanished));
  }
  return writer ? file.finish() : Status();
}

/// What is copied from the model's folder.
Status copiedFiles(const WeightLayout &layout, std::vector<std::string> &names, std::vector<std::string> &tooLarge) {
  if (!layout.beside)
    return {};
  PP_TRY(filesBeside(*layout.beside, names, tooLarge));
  if (layout.adapters)
    for (std::vector<std::string> *list : {&names, &tooLarge})
      std::erase_if(*list, [](const std::string &name) { return !isOfTokenizer(name); });
  return {};
}

/// Copies what the model has beside its weights, and writes the index.
Status writeBeside(const std::string &fresh, const WeightLayout &layout, const Plan &plan) {
  std::vector<std::string> beside, tooLarge;
  PP_TRY(copiedFiles(layout, beside, tooLarge));
  for (const std::string &name : beside) {
    std::string body;
    PP_TRY(readText(layout.beside->path() + "/" + name, body));
    if (name == "config.json" && layout.type)
      body = withDtype(body, *layout.type == Type::F32   ? "float32"
                             : *layout.type == Type::F16 ? "float16"
                                                         : "bfloat16");
    PP_TRY(writeText(fresh + "/" + name, body));
  }
  return plan.index.empty() ? Status() : writeText(fresh + "/" + WeightFiles::indexName, plan.index);
}

/// What rank 0 alone writes, state.json first: it says what is ours if the save does not come to its end.
Status writeOthers(RankMemory &memory, const std::string &fresh, const RunState &state, const WeightLayout &layout,
                   Plan &plan) {
  std::vector<std::string> beside, tooLarge;
  PP_TRY(copiedFiles(layout, beside, tooLarge));
  plan.names.insert(plan.names.end(), beside.begin(), beside.end());
  PP_TRY(writeState(memory.emitted.program(), fresh + "/" + stateFile, state, plan.names));
  if (layout.adapters) {
    std::string config;
    PP_TRY(adapterConfig(memory, state.origin, config));
    PP_TRY(writeText(fresh + "/" + adapterConfigFile, config));
  }
  return writeBeside(fresh, layout, plan);
}

Status writeAll(RankMemory &memory, const std::string &fresh, const RunState &state, const WeightLayout &layout,
                int64_t &vanished) {
  Plan plan;
  PP_TRY(makePlan(memory, layout, plan));
  if (memory.program.device == 0)
    PP_TRY(writeOthers(memory, fresh, state, layout, plan));
  // Shards of a model that was read are as others write them; only our own say of which step they are.
  std::map<std::string, std::string> plain = {{"format", "pt"}}, ours = plain;
  ours["step"] = std::to_string(state.step);
  for (const OutFile &file : plan.files)
    PP_TRY(writeFile(memory, fresh, file, state.origin.empty() ? ours : plain, vanished));
  OutFile optimizer{optimizerFile, {}};
  for (const auto &[name, pieces] : plan.state) {
    const TensorSpec &tensor = pieces.front().tensor;
    optimizer.tensors.push_back({{name, fileType(tensor.type), fileShape(tensor)}, &pieces, {}});
  }
  return writeFile(memory, fresh, optimizer, ours, vanished);
}

/// The files of the model, with the product of each adapter in the weight that it stands beside.
Status makeMergePlan(RankMemory &memory, const WeightLayout &layout, Plan &plan) {
  std::set<std::string> frozen;
  PP_TRY(frozenWeights(memory, frozen));
  PP_TRY(piecesOf(memory, TensorKind::Weights, plan.weights));
  for (const auto &[name, pieces] : plan.weights)
    if (!frozen.contains(name))
      plan.adapters[name] = pieces;
  std::erase_if(plan.weights, [&](const auto &weight) { return !frozen.contains(weight.first); });
  PP_TRY(layout.origin ? planAsRead(plan, layout) : planAfresh(plan, layout));
  plan.index = indexOf(plan, layout);
  for (OutFile &file : plan.files)
    for (OutTensor &tensor : file.tensors) {
      if (!tensor.pieces)
        continue;
      const std::string base = adapterOf(plan.adapters, tensor.pieces->front().name);
      if (base.empty())
        continue;
      tensor.a = &plan.adapters.at(base + firstEnd);
      tensor.b = &plan.adapters.at(base + secondEnd);
    }
  return {};
}

Status writeMerged(RankMemory &memory, const std::string &fresh, const WeightLayout &layout, int64_t &vanished) {
  Plan plan;
  PP_TRY(makeMergePlan(memory, layout, plan));
  if (memory.program.device == 0) {
    std::vector<std::string> names, tooLarge;
    PP_TRY(copiedFiles(layout, names, tooLarge));
    for (const OutFile &file : plan.files)
      names.push_back(file.name);
    if (!plan.index.empty())
      names.push_back(WeightFiles::indexName);
    const Program &program = memory.emitted.program();
    const ordered_json mark = {
        {"format", 1}, {"made_by", {{"schedule", program.schedule}, {"ranks", program.ranks}}}, {"files", names}};
    PP_TRY(writeMark(fresh + "/" + mergeFile, mark.dump(2) + "\n"));
    PP_TRY(writeBeside(fresh, layout, plan));
  }
  for (const OutFile &file : plan.files)
    PP_TRY(writeFile(memory, fresh, file, {{"format", "pt"}}, vanished));
  return {};
}

/// Lets `write` fill a folder beside this one, and exchanges the two.
template <typename Write> Status replaceBy(RankMemory &memory, const std::string &folder, Write write) {
  std::string fresh = folder + ".tmp";
  bool writer = memory.program.device == 0;
  if (writer) {
    PP_TRY(checkReplaceable(folder));
    PP_TRY(makeFresh(folder, fresh));
  }
  Status status = write(fresh);
  if (writer && status.ok())
    status = syncFolder(fresh);
  if (writer && status.ok())
    status = replaceFolder(fresh, folder);
  if (writer && !status.ok()) {
    std::error_code error;
    std::filesystem::remove_all(fresh, error);
  }
  return status;
}

} // namespace

Status checkFolder(RankMemory &memory, const std::string &path, const WeightLayout &layout, std::string &remark) {
  std::string folder = withoutEndSlash(followLinks(path)), fresh;
  PP_TRY(checkReplaceable(folder));
  PP_TRY(makeFresh(folder, fresh));
  struct statvfs room;
  bool known = statvfs(fresh.c_str(), &room) == 0;
  std::error_code error;
  std::filesystem::remove(fresh, error);
  Plan plan;
  PP_TRY(makePlan(memory, layout, plan));
  uint64_t needed = 1 << 20;
  for (const OutFile &file : plan.files)
    for (const OutTensor &tensor : file.tensors)
      needed += uint64_t(bytesOf(tensor));
  for (const auto &[name, pieces] : plan.state)
    for (const Held &piece : pieces)
      needed += uint64_t(piece.tensor.bytes());
  std::vector<std::string> beside, tooLarge;
  PP_TRY(copiedFiles(layout, beside, tooLarge));
  for (const std::string &name : beside)
    needed += std::filesystem::file_size(layout.beside->path() + "/" + name, error);
  if (!tooLarge.empty())
    remark = text("`", layout.beside->path(), "/", tooLarge[0], "` has more than 64 MiB and is not copied to `", folder,
                  "`");
  if (known && uint64_t(room.f_bavail) * room.f_frsize < needed)
    return refused("cannot save to `", folder, "`: a checkpoint needs ", needed, " bytes, ",
                   uint64_t(room.f_bavail) * room.f_frsize, " are free");
  return {};
}

Status saveCheckpoint(RankMemory &memory, const std::string &path, const RunState &state, const WeightLayout &layout,
                      int64_t &vanished) {
  return replaceBy(memory, withoutEndSlash(followLinks(path)),
                   [&](const std::string &fresh) { return writeAll(memory, fresh, state, layout, vanished); });
}

Status saveMerged(RankMemory &memory, const std::string &path, const WeightLayout &layout, int64_t &vanished) {
  return replaceBy(memory, withoutEndSlash(followLinks(path)),
                   [&](const std::string &fresh) { return writeMerged(memory, fresh, layout, vanished); });
}

namespace {

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
    return invalid("`", path, "` is corrupt: ", error.what());
  }
  return {};
}

Status loadCheckpoint(RankMemory &memory, const std::string &path, const WeightFiles &files, const WeightMatch &match,
                      const RunState &state) {
  std::string folder = withoutEndSlash(path);
  SafeTensors optimizer;
  PP_TRY(optimizer.open(folder + "/" + optimizerFile));
  std::vector<const SafeTensors *> marked = {&optimizer};
  if (state.origin.empty())
    for (const auto &file : files.files())
      marked.insert(marked.end() - 1, file.get());
  for (const SafeTensors *file : marked) {
    auto found = file->metadata().find("step");
    if (found == file->metadata().end() || found->second != std::to_string(state.step))
      return invalid("`", file->path(), "` does not belong to step ", state.step, " of `", folder, "/", stateFile, "`");
  }
  auto stored = [&](const std::string &name) {
    auto found = optimizer.tensors().find(name);
    return found == optimizer.tensors().end() ? FilePlace() : FilePlace{&optimizer, &found->second};
  };
  // A weight whose file has another type than the run is read from its master, if there is one.
  WeightMatch exact = match;
  for (const WeightSpec &weight : memory.program.weights)
    if (auto found = exact.weights.find(weight.name); found != exact.weights.end())
      if (FilePlace master = stored(weight.name + ".master");
          master && found->second.tensor->type != fileType(weight.type))
        found->second = master;
  int64_t vanished = 0;
  PP_TRY(loadWeights(memory, exact, state.seed, vanished));
  Pieces held;
  PP_TRY(ownState(memory, held));
  for (const Held &each : held) {
    FilePlace place = stored(each.name);
    if (!place)
      return invalid("`", optimizer.path(), "` lacks `", each.name, "`");
    PP_TRY(fromFile(each.tensor, place, memory.device, vanished));
  }
  return {};
}

} // namespace pp
