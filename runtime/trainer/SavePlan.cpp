// Deals the tensors of a checkpoint out to files and their writers, the same on all ranks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/SavePlan.h"
#include "runtime/files/Folder.h"
#include "runtime/trainer/Adapters.h"
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

using nlohmann::ordered_json;

namespace pp {
namespace {

/// If ranks together have at most these bytes, one of them writes all.
constexpr int64_t joinedBytes = 64 << 20;

/// Whether every number of `narrow` is one of `wide`.
bool holds(Type wide, Type narrow) {
  return wide == narrow || wide == Type::F64 || (wide == Type::F32 && elementBytes(narrow) == 2);
}

/// The source of a weight's values. A file with another type than the run's takes them from the master, rounded once.
/// Values that such a file cannot hold are also in the optimizer's file, for a resumed run.
Status piecesFor(SavePlan &plan, const std::string &weight, Type stored, const Pieces *&out) {
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

/// The bytes that each device has of these tensors.
std::map<int32_t, int64_t> heldBytes(const std::vector<OutTensor> &tensors) {
  std::map<int32_t, int64_t> held;
  for (const OutTensor &tensor : tensors)
    for (const Held &piece : tensor.pieces ? *tensor.pieces : Pieces())
      held[piece.device] += piece.tensor.bytes();
  return held;
}

/// Chooses the writer of a file with parts of several devices: the device with the least work, where each byte is its
/// own or received.
void chooseWriter(SavePlan &plan, OutFile &file) {
  const std::map<int32_t, int64_t> held = heldBytes(file.tensors);
  int64_t all = 0, least = std::numeric_limits<int64_t>::max();
  for (const OutTensor &tensor : file.tensors)
    all += tensor.bytes();
  for (const auto &[device, its] : held)
    if (const int64_t cost = plan.written[size_t(device)] + all - its; cost < least) {
      least = cost;
      file.writer = device;
    }
  plan.written[size_t(file.writer)] += all;
}

/// The files of the origin, with new values for what are weights.
Status planAsRead(SavePlan &plan, const WeightLayout &layout) {
  std::map<std::string, std::string> weightOf = layout.match->copies;
  for (const auto &[weight, place] : layout.match->weights)
    weightOf[place.tensor->name] = weight;
  for (const auto &file : layout.origin->files()) {
    OutFile out{fileName(file->path()), {}};
    for (const auto &[name, tensor] : file->tensors()) {
      if (layout.origin->find(name).file != file.get())
        continue; // a copy that the index does not name
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
    chooseWriter(plan, out);
    plan.files.push_back(std::move(out));
  }
  return {};
}

/// Tensors that one device writes.
struct Share {
  int32_t writer = 0;
  int64_t bytes = 0;
  std::vector<OutTensor> tensors;
};

/// Each tensor to one of those that have a part of it; neighbours whose shares fit into one file together have one.
std::vector<Share> dealOut(SavePlan &plan, std::vector<OutTensor> tensors, int64_t joined) {
  std::map<int32_t, Share> shares;
  for (OutTensor &tensor : tensors) {
    int32_t writer = tensor.pieces->front().device;
    for (const Held &piece : *tensor.pieces)
      if (plan.written[size_t(piece.device)] < plan.written[size_t(writer)])
        writer = piece.device;
    plan.written[size_t(writer)] += tensor.bytes();
    shares[writer].bytes += tensor.bytes();
    shares[writer].tensors.push_back(std::move(tensor));
  }
  std::vector<Share> out;
  for (auto &[device, share] : shares) {
    if (out.empty() || out.back().bytes + share.bytes > joined) {
      out.push_back(std::move(share));
      out.back().writer = device;
      continue;
    }
    Share &before = out.back();
    plan.written[size_t(device)] -= share.bytes;
    plan.written[size_t(before.writer)] += share.bytes;
    before.bytes += share.bytes;
    std::move(share.tensors.begin(), share.tensors.end(), std::back_inserter(before.tensors));
  }
  for (Share &share : out)
    std::sort(share.tensors.begin(), share.tensors.end(),
              [](const OutTensor &a, const OutTensor &b) { return a.entry.name < b.entry.name; });
  return out;
}

/// Plans new files: `model.safetensors`, or `model-00001-of-00004.safetensors` and so on.
void planAfresh(SavePlan &plan, std::vector<OutTensor> tensors, const std::string &stem, int64_t most, int64_t joined) {
  std::vector<OutFile> files;
  for (Share &share : dealOut(plan, std::move(tensors), joined)) {
    int64_t room = -1;
    for (OutTensor &tensor : share.tensors) {
      if (room < 0 || tensor.bytes() > room) {
        files.push_back({"", {}, share.writer});
        room = most;
      }
      room = std::max<int64_t>(room - tensor.bytes(), 0);
      files.back().tensors.push_back(std::move(tensor));
    }
  }
  if (files.empty())
    files.emplace_back();
  for (size_t i = 0; i < files.size(); ++i) {
    char part[64] = "";
    if (files.size() > 1)
      snprintf(part, sizeof part, "-%05zu-of-%05zu", i + 1, files.size());
    files[i].name = WeightFiles::singleOf(stem + part);
    plan.files.push_back(std::move(files[i]));
  }
}

Status planWeights(SavePlan &plan, const WeightLayout &layout) {
  if (layout.keepsFiles)
    return planAsRead(plan, layout);
  std::vector<OutTensor> tensors;
  for (const auto &[name, pieces] : plan.weights) {
    const TensorSpec &tensor = pieces.front().tensor;
    std::optional<Type> read;
    if (layout.origin)
      if (auto found = layout.match->weights.find(name); found != layout.match->weights.end())
        read = typeOfFile(found->second.tensor->type);
    const Type type = layout.type.value_or(read.value_or(tensor.type));
    OutTensor &each = tensors.emplace_back(OutTensor{{name, fileType(type), fileShape(tensor)}, nullptr, {}});
    PP_TRY(piecesFor(plan, name, type, each.pieces));
  }
  constexpr int64_t all = std::numeric_limits<int64_t>::max();
  if (layout.adapters) // peft reads one file
    planAfresh(plan, std::move(tensors), adapterStem, all, all);
  else
    planAfresh(plan, std::move(tensors), WeightFiles::modelStem, layout.shardBytes,
               std::min(joinedBytes, layout.shardBytes));
  return {};
}

/// Which file has which tensor. Files that were read have the index that they had; its bytes are counted again where
/// the types are others.
std::string indexOf(const SavePlan &plan, bool ofState, const WeightLayout &layout) {
  int64_t bytes = 0, elements = 0, files = 0;
  std::map<std::string, std::string> fileOf;
  for (const OutFile &file : plan.files) {
    files += file.ofState == ofState;
    for (const OutTensor &tensor : file.ofState == ofState ? file.tensors : std::vector<OutTensor>()) {
      bytes += tensor.bytes();
      elements += tensor.entry.elements();
      fileOf[tensor.entry.name] = file.name;
    }
  }
  if (layout.keepsFiles && !ofState) {
    if (!layout.type || layout.origin->index().empty())
      return layout.origin->index();
    auto root = ordered_json::parse(layout.origin->index());
    if (root.contains("metadata") && root["metadata"].is_object())
      root["metadata"]["total_size"] = bytes;
    return root.dump(2) + "\n";
  }
  if (files == 1)
    return {};
  ordered_json root = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}}, {"weight_map", fileOf}};
  return root.dump(2) + "\n";
}

Status collectWeights(Emitted &emitted, SavePlan &plan, std::set<std::string> &frozen) {
  plan = {};
  plan.written.resize(size_t(emitted.program().devices()));
  PP_TRY(piecesOf(emitted, TensorKind::Weights, plan.weights));
  return frozenWeights(emitted, frozen);
}

void addIndex(SavePlan &plan, const char *stem, std::string index) {
  if (!index.empty())
    plan.texts[WeightFiles::indexOf(stem)] = std::move(index);
}

} // namespace

int64_t OutTensor::bytes() const {
  std::optional<Type> type = typeOfFile(entry.type);
  return type && pieces ? entry.elements() * int64_t(elementBytes(*type)) : from.tensor->end - from.tensor->begin;
}

Status planCheckpoint(Emitted &emitted, const WeightLayout &layout, SavePlan &plan) {
  std::set<std::string> frozen;
  PP_TRY(collectWeights(emitted, plan, frozen));
  PP_TRY(piecesOf(emitted, TensorKind::State, plan.state));
  if (layout.adapters) {
    std::erase_if(plan.weights, [&](const auto &weight) { return frozen.contains(weight.first); });
    plan.names.push_back(adapterConfigFile);
  }
  PP_TRY(planWeights(plan, layout));
  const size_t weightFiles = plan.files.size();
  std::vector<OutTensor> state;
  for (const auto &[name, pieces] : plan.state) {
    const TensorSpec &tensor = pieces.front().tensor;
    state.push_back({{name, fileType(tensor.type), fileShape(tensor)}, &pieces, {}});
  }
  planAfresh(plan, std::move(state), optimizerStem, layout.shardBytes, std::min(joinedBytes, layout.shardBytes));
  for (size_t i = weightFiles; i < plan.files.size(); ++i)
    plan.files[i].ofState = true;
  addIndex(plan, WeightFiles::modelStem, indexOf(plan, /*ofState=*/false, layout));
  addIndex(plan, optimizerStem, indexOf(plan, /*ofState=*/true, layout));
  for (const OutFile &file : plan.files)
    plan.names.push_back(file.name);
  for (const auto &[name, body] : plan.texts)
    plan.names.push_back(name);
  plan.names.push_back(stateFile);
  std::set<std::string> names; // those of the origin's files come from its index
  for (const std::string &name : plan.names)
    if (!names.insert(name).second)
      return invalid("cannot save: `", layout.origin ? layout.origin->path() : "", "` has weights in `", name,
                     "`, where a checkpoint has something else; rename that file, and in the index");
  return {};
}

Status planMerged(Emitted &emitted, const WeightLayout &layout, SavePlan &plan) {
  std::set<std::string> frozen;
  PP_TRY(collectWeights(emitted, plan, frozen));
  for (const auto &[name, pieces] : plan.weights)
    if (!frozen.contains(name))
      plan.adapters[name] = pieces;
  std::erase_if(plan.weights, [&](const auto &weight) { return !frozen.contains(weight.first); });
  PP_TRY(planWeights(plan, layout));
  addIndex(plan, WeightFiles::modelStem, indexOf(plan, /*ofState=*/false, layout));
  for (OutFile &file : plan.files) {
    plan.names.push_back(file.name);
    for (OutTensor &tensor : file.tensors) {
      const std::string base = tensor.pieces ? adapterOf(plan.adapters, tensor.pieces->front().name) : "";
      if (base.empty())
        continue;
      tensor.a = &plan.adapters.at(base + firstEnd);
      tensor.b = &plan.adapters.at(base + secondEnd);
    }
  }
  for (const auto &[name, body] : plan.texts)
    plan.names.push_back(name);
  return {};
}

std::vector<int64_t> copiedBytes(const SavePlan &plan) {
  std::vector<int64_t> copied(plan.written.size());
  for (const OutFile &file : plan.files)
    for (const OutTensor &tensor : file.tensors)
      if (tensor.pieces) {
        const TensorSpec &its = tensor.pieces->front().tensor;
        copied[size_t(file.writer)] += its.wholeElements() * int64_t(elementBytes(its.type));
      }
  return copied;
}

} // namespace pp
