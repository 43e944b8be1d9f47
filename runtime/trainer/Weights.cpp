// Fills and reads the named tensors of the arena: seeds, files, transposition and rounding in one place.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Weights.h"
#include "runtime/Options.h"
#include "runtime/files/Half.h"
#include "runtime/files/Random.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <set>

namespace pp {
namespace {

Status fill(const WeightSpec &weight, const TensorSpec &place, uint64_t seed, Device &device) {
  uint64_t key = keyOf(seed, weight.name);
  int64_t count = place.elements();
  std::vector<char> values(size_t(place.bytes()));
  for (int64_t i = 0; i < count; ++i) {
    double value = weight.init == WeightSpec::Init::One    ? 1
                   : weight.init == WeightSpec::Init::Zero ? 0
                                                           : weight.deviation * normalAt(key, uint64_t(place.place(i)));
    storeElement(values.data() + i * int64_t(elementBytes(place.type)), place.type, value);
  }
  return device.upload(place.offset, values.data(), values.size());
}

/// The weight that a master, or an old version, belongs to; it may begin the step on another rank.
Status findWeight(RankMemory &memory, const std::string &name, const WeightSpec *&out) {
  auto search = [&](const RankProgram &program) {
    auto found = std::find_if(program.weights.begin(), program.weights.end(),
                              [&](const WeightSpec &weight) { return weight.name == name; });
    out = found == program.weights.end() ? nullptr : &*found;
    return out != nullptr;
  };
  if (search(memory.program))
    return {};
  for (int32_t rank = 0; rank < memory.emitted.program().ranks; ++rank) {
    const RankProgram *program = nullptr;
    PP_TRY(memory.emitted.rank(rank, program));
    if (search(*program))
      return {};
  }
  return internal("no rank holds the weight `", name, "` whose state rank ", memory.program.rank, " has");
}

/// The name under which a file has the tensor: with or without what Hugging Face puts before the names.
std::string nameInFile(const std::string &name, const SafeTensors &file) {
  static const std::array<std::string, 2> prefixes = {"model.", "transformer."};
  if (file.tensors().contains(name))
    return name;
  for (const std::string &prefix : prefixes) {
    if (file.tensors().contains(prefix + name))
      return prefix + name;
    if (name.starts_with(prefix) && file.tensors().contains(name.substr(prefix.size())))
      return name.substr(prefix.size());
  }
  return {};
}

Status missing(const std::vector<std::string> &names, const SafeTensors &file) {
  std::string list;
  for (size_t i = 0; i < names.size() && i < 4; ++i)
    list += text(i ? ", `" : "`", names[i], "`");
  if (names.size() > 4)
    list += text(" and ", names.size() - 4, " more");
  std::vector<std::string> had;
  for (const auto &[name, tensor] : file.tensors())
    had.push_back(name);
  auto nearest = nearestName(names[0], had);
  return invalid("`", file.path(), "` lacks ", list, " of this model; it has ", had.size(), " tensors",
                 nearest ? ", the nearest name is `" + *nearest + "`" : std::string());
}

} // namespace

void storeElement(char *at, Type type, double value) {
  auto put = [at](auto element) { memcpy(at, &element, sizeof element); };
  if (type == Type::F64)
    put(value);
  else if (type == Type::F32)
    put(float(value));
  else
    put(type == Type::F16 ? roundToF16(float(value)) : roundToBf16(float(value)));
}

Status initWeights(RankMemory &memory, uint64_t seed) {
  for (const WeightSpec &weight : memory.program.weights)
    PP_TRY(fill(weight, weight, seed, memory.device));
  for (const StateSpec &state : memory.program.state) {
    if (!state.isWeight())
      continue;
    const WeightSpec *weight = nullptr;
    PP_TRY(findWeight(memory, state.name, weight));
    PP_TRY(fill(*weight, state, seed, memory.device));
  }
  return {};
}

std::vector<int64_t> fileShape(const TensorSpec &tensor) {
  return tensor.transposed ? std::vector<int64_t>{tensor.shape[1], tensor.shape[0]} : tensor.shape;
}

void toFileLayout(const TensorSpec &tensor, const char *from, char *out) {
  if (!tensor.transposed) {
    memcpy(out, from, size_t(tensor.wholeElements()) * elementBytes(tensor.type));
    return;
  }
  size_t size = elementBytes(tensor.type);
  for (int64_t column = 0; column < tensor.shape[1]; ++column)
    for (int64_t row = 0; row < tensor.shape[0]; ++row, out += size)
      memcpy(out, from + (row * tensor.shape[1] + column) * int64_t(size), size);
}

Status fromFile(const TensorSpec &tensor, const SafeTensors &file, const std::string &fileName, Device &device) {
  const FileTensor &entry = file.tensors().at(fileName);
  SafeTensors::Reader read = SafeTensors::readerOf(entry.type);
  if (!read)
    return invalid("`", file.path(), "`: `", fileName, "` has type ", entry.type, ", expected F32, BF16, F16 or F64");
  std::vector<int64_t> expected = fileShape(tensor);
  if (entry.shape != expected)
    return invalid("`", file.path(), "`: `", fileName, "` has shape ", shapeText(entry.shape), ", this model expects ",
                   shapeText(expected));
  const char *data = file.data(entry);
  std::vector<char> values(size_t(tensor.bytes()));
  for (int64_t i = 0, count = tensor.elements(); i < count; ++i) {
    int64_t element = tensor.place(i);
    if (tensor.transposed)
      element = element % tensor.shape[1] * tensor.shape[0] + element / tensor.shape[1];
    storeElement(values.data() + i * int64_t(elementBytes(tensor.type)), tensor.type, read(data, element));
  }
  return device.upload(tensor.offset, values.data(), values.size());
}

Status loadWeights(RankMemory &memory, const SafeTensors &file, std::string &remark) {
  // Rank 0 holds the whole model's names against the file, so that one message tells all that is missing.
  bool first = memory.program.rank == 0;
  std::set<std::string> lacking, unused;
  for (const auto &[name, tensor] : file.tensors())
    unused.insert(name);
  for (int32_t rank = 0; rank < (first ? memory.emitted.program().ranks : 1); ++rank) {
    const RankProgram *program = nullptr;
    PP_TRY(memory.emitted.rank(first ? rank : memory.program.rank, program));
    for (const WeightSpec &weight : program->weights)
      if (std::string found = nameInFile(weight.name, file); found.empty())
        lacking.insert(weight.name);
      else
        unused.erase(found);
  }
  if (!lacking.empty())
    return missing({lacking.begin(), lacking.end()}, file);
  for (const WeightSpec &weight : memory.program.weights)
    PP_TRY(fromFile(weight, file, nameInFile(weight.name, file), memory.device));
  for (const StateSpec &state : memory.program.state) {
    if (!state.isWeight())
      continue;
    const WeightSpec *weight = nullptr;
    PP_TRY(findWeight(memory, state.name, weight));
    TensorSpec place = state;
    place.transposed = weight->transposed;
    PP_TRY(fromFile(place, file, nameInFile(state.name, file), memory.device));
  }
  if (first && !unused.empty())
    remark = text("`", file.path(), "` has ", unused.size(), unused.size() == 1 ? " tensor" : " tensors",
                  " that this model does not use, such as `", *unused.begin(), "`");
  return {};
}

} // namespace pp
