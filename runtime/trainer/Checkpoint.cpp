// Writes checkpoints all or nothing, in the files of the model that was read, and reads them back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Checkpoint.h"
#include "runtime/files/Folder.h"
#include "runtime/trainer/Adapters.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/statvfs.h>

using nlohmann::ordered_json;

namespace pp {
namespace {

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
  PP_TRY(piecesOf(memory.emitted, TensorKind::Weights, plan.weights));
  PP_TRY(piecesOf(memory.emitted, TensorKind::State, plan.state));
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
  std::set<std::string> names; // those of the origin's files come from its index
  for (const std::string &name : plan.names)
    if (!names.insert(name).second)
      return invalid("cannot save: `", layout.origin ? layout.origin->path() : "", "` has weights in `", name,
                     "`, where a checkpoint has something else; rename that file, and in the index");
  return {};
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

/// Writes a whole tensor in the file's layout and type, a block at a time.
Status writeTensor(const TensorSpec &tensor, const FileTensor &entry, const std::vector<char> &values,
                   SafeTensorsWriter &file, int64_t &vanished) {
  const Type own = tensor.type, stored = *typeOfFile(entry.type);
  std::vector<char> block;
  return eachBlock(tensor, values, [&](const char *from, int64_t count) {
    if (own == stored)
      return file.write(from, size_t(count) * elementBytes(own));
    block.resize(size_t(count) * elementBytes(stored));
    PP_TRY(convert(entry.name, SafeTensors::readerOf(fileType(own)), from, count, stored, block.data(), vanished));
    return file.write(block.data(), block.size());
  });
}

using Checksums = std::map<std::string, std::string>;

/// Gathers the tensors of a file and has them written, one at a time. Collective.
Status writeFile(RankMemory &memory, const std::string &folder, const OutFile &out,
                 const std::map<std::string, std::string> &metadata, FileWork &work,
                 const std::shared_ptr<Checksums> &checksums) {
  bool writer = memory.program.device == 0;
  std::vector<FileTensor> entries;
  for (const OutTensor &tensor : out.tensors)
    entries.push_back(tensor.entry);
  auto file = std::make_shared<SafeTensorsWriter>();
  if (writer)
    PP_TRY(work.add([=, path = folder + "/" + out.name] { return file->open(path, entries, metadata); }));
  for (const OutTensor &tensor : out.tensors) {
    if (!tensor.pieces) {
      if (writer)
        PP_TRY(work.add([file, place = tensor.from, bytes = size_t(bytesOf(tensor))] {
          return file->write(place.file->data(*place.tensor), bytes);
        }));
      continue;
    }
    const std::shared_ptr<std::vector<char>> values = work.place();
    PP_TRY(gather(memory, *tensor.pieces, *values));
    const TensorSpec &spec = tensor.pieces->front().tensor;
    if (tensor.a) {
      std::vector<char> a, b;
      PP_TRY(gather(memory, *tensor.a, a));
      PP_TRY(gather(memory, *tensor.b, b));
      if (writer) {
        turnForFile(spec, *values);
        turnForFile(tensor.a->front().tensor, a);
        turnForFile(tensor.b->front().tensor, b);
        addProduct(tensor, a, b, memory.emitted.program().lora.factor, *values);
      }
    }
    if (!writer)
      continue;
    TensorSpec layout = spec;
    layout.transposed &= !tensor.a; // it is turned already
    PP_TRY(work.add(
        [=, &work, entry = tensor.entry] { return writeTensor(layout, entry, *values, *file, work.vanished); }));
  }
  return writer ? work.add([=, name = out.name] {
    (*checksums)[name] = file->checksum();
    return file->finish();
  })
                : Status();
}

/// What is copied from the model's folder.
Status copiedFiles(const WeightLayout &layout, std::vector<std::string> &names, std::vector<std::string> &tooLarge) {
  if (layout.beside.empty())
    return {};
  PP_TRY(filesBeside(layout.beside, names, tooLarge));
  if (layout.adapters)
    for (std::vector<std::string> *list : {&names, &tooLarge})
      std::erase_if(*list, [](const std::string &name) { return !isOfTokenizer(name); });
  return {};
}

Status writeSummed(const std::string &folder, const std::string &name, const std::string &body, Checksums &checksums) {
  checksums[name] = Checksum::of(body);
  return writeText(folder + "/" + name, body);
}

/// The type that config.json names: that of most weights; nothing: it is right, for it stood beside these files.
std::optional<Type> typeOf(const Plan &plan, const WeightLayout &layout) {
  if (layout.type || (layout.origin && layout.origin->path() == layout.beside))
    return layout.type;
  std::map<std::string, int64_t> elements;
  for (const OutFile &file : plan.files)
    for (const OutTensor &tensor : file.tensors)
      elements[tensor.entry.type] += tensor.entry.elements();
  auto most = std::max_element(elements.begin(), elements.end(),
                               [](const auto &a, const auto &b) { return a.second < b.second; });
  return most == elements.end() ? std::nullopt : typeOfFile(most->first);
}

/// Copies what the model has beside its weights, and writes the index.
Status writeBeside(const std::string &fresh, const WeightLayout &layout, std::optional<Type> dtype,
                   const std::string &index, Checksums &checksums) {
  static constexpr const char *torchNames[] = {"float32", "bfloat16", "float64", "float16"}; // in the order of Type
  std::vector<std::string> beside, tooLarge;
  PP_TRY(copiedFiles(layout, beside, tooLarge));
  for (const std::string &name : beside) {
    std::string body;
    PP_TRY(readText(layout.beside + "/" + name, body));
    if (name == "config.json" && dtype)
      body = withDtype(body, torchNames[size_t(*dtype)]);
    PP_TRY(writeSummed(fresh, name, body, checksums));
  }
  return index.empty() ? Status() : writeSummed(fresh, WeightFiles::indexName, index, checksums);
}

/// What rank 0 alone writes, state.json first: it says what is ours if the save does not come to its end.
Status writeOthers(RankMemory &memory, const std::string &fresh, const RunState &state, const WeightLayout &layout,
                   Plan &plan, FileWork &work, const std::shared_ptr<Checksums> &checksums) {
  std::vector<std::string> beside, tooLarge;
  PP_TRY(copiedFiles(layout, beside, tooLarge));
  plan.names.insert(plan.names.end(), beside.begin(), beside.end());
  std::string mark = stateText(memory.emitted.program(), state, plan.names, {}), config;
  PP_TRY(work.add([=, path = fresh + "/" + stateFile] { return writeMark(path, mark); }));
  if (layout.adapters) {
    PP_TRY(adapterConfig(memory, state.origin, config));
    PP_TRY(work.add([=] { return writeSummed(fresh, adapterConfigFile, config, *checksums); }));
  }
  const std::optional<Type> dtype = layout.adapters ? std::nullopt : typeOf(plan, layout);
  return work.add([=, index = plan.index] { return writeBeside(fresh, layout, dtype, index, *checksums); });
}

Status writeAll(RankMemory &memory, const std::string &fresh, const RunState &state, const WeightLayout &layout,
                FileWork &work) {
  const bool writer = memory.program.device == 0;
  auto checksums = std::make_shared<Checksums>();
  Plan plan;
  PP_TRY(makePlan(memory, layout, plan));
  if (writer)
    PP_TRY(writeOthers(memory, fresh, state, layout, plan, work, checksums));
  // Shards of a model that was read are as others write them; only our own say of which step they are.
  std::map<std::string, std::string> plain = {{"format", "pt"}}, ours = plain;
  ours["step"] = std::to_string(state.step);
  for (const OutFile &file : plan.files)
    PP_TRY(writeFile(memory, fresh, file, state.origin.empty() ? ours : plain, work, checksums));
  OutFile optimizer{optimizerFile, {}};
  for (const auto &[name, pieces] : plan.state) {
    const TensorSpec &tensor = pieces.front().tensor;
    optimizer.tensors.push_back({{name, fileType(tensor.type), fileShape(tensor)}, &pieces, {}});
  }
  PP_TRY(writeFile(memory, fresh, optimizer, ours, work, checksums));
  return !writer ? Status() : work.add([=, &program = memory.emitted.program(), names = plan.names] {
    return writeMark(fresh + "/" + stateFile, stateText(program, state, names, *checksums));
  });
}

/// The files of the model, with the product of each adapter in the weight that it stands beside.
Status makeMergePlan(RankMemory &memory, const WeightLayout &layout, Plan &plan) {
  std::set<std::string> frozen;
  PP_TRY(frozenWeights(memory, frozen));
  PP_TRY(piecesOf(memory.emitted, TensorKind::Weights, plan.weights));
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

Status writeMerged(RankMemory &memory, const std::string &fresh, const WeightLayout &layout, FileWork &work) {
  Plan plan;
  PP_TRY(makeMergePlan(memory, layout, plan));
  auto checksums = std::make_shared<Checksums>();
  ordered_json mark;
  if (memory.program.device == 0) {
    std::vector<std::string> names, tooLarge;
    PP_TRY(copiedFiles(layout, names, tooLarge));
    for (const OutFile &file : plan.files)
      names.push_back(file.name);
    if (!plan.index.empty())
      names.push_back(WeightFiles::indexName);
    const Program &program = memory.emitted.program();
    mark = {{"format", 1}, {"made_by", {{"schedule", program.schedule}, {"ranks", program.ranks}}}, {"files", names}};
    PP_TRY(writeMark(fresh + "/" + mergeFile, mark.dump(2) + "\n"));
    PP_TRY(writeBeside(fresh, layout, typeOf(plan, layout), plan.index, *checksums));
  }
  for (const OutFile &file : plan.files)
    PP_TRY(writeFile(memory, fresh, file, {{"format", "pt"}}, work, checksums));
  if (memory.program.device != 0)
    return {};
  mark["crc32"] = *checksums;
  return writeMark(fresh + "/" + mergeFile, mark.dump(2) + "\n");
}

/// Lets `write` fill a folder beside this one, and exchanges the two.
template <typename Write>
Status replaceBy(RankMemory &memory, const std::string &folder, const Keeping &keeping, FileWork &work, Write write) {
  const std::string fresh = folder + ".tmp";
  const bool writer = memory.program.device == 0;
  auto make = [=, &work] {
    std::string made;
    PP_TRY(checkReplaceable(folder));
    PP_TRY(makeFresh(folder, keeping, made));
    work.undoBy([made] {
      std::error_code error;
      std::filesystem::remove_all(made, error);
    });
    return Status();
  };
  auto replace = [=] {
    PP_TRY(syncFolder(fresh));
    return replaceFolder(fresh, folder, keeping);
  };
  Status status = writer ? work.add(make) : Status();
  if (status.ok())
    status = write(fresh);
  if (status.ok() && writer)
    status = work.add(replace);
  return status.ok() ? status : work.fail(status);
}

/// Bytes that the system can still give away, and those that `ulimit -v` leaves this process; the smaller number.
int64_t freeMemory() {
  constexpr int64_t kilo = 1024;
  int64_t least = INT64_MAX;
  auto number = [](const std::string &path, const std::string &key) {
    std::ifstream file(path);
    for (std::string word; file >> word;)
      if (int64_t value = 0; word == key && file >> value)
        return value;
    return int64_t(-1);
  };
  if (int64_t available = number("/proc/meminfo", "MemAvailable:"); available >= 0)
    least = available * kilo;
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    if (int64_t used = number("/proc/self/status", "VmSize:"); used >= 0)
      least = std::min(least, std::max<int64_t>(int64_t(limit.rlim_cur) - used * kilo, 0));
  return least;
}

} // namespace

Status FileWork::add(std::function<Status()> job) {
  if (!later)
    return job();
  jobs.push_back(std::move(job));
  return {};
}

std::shared_ptr<std::vector<char>> FileWork::place() {
  if (taken == places.size())
    places.push_back(std::make_shared<std::vector<char>>());
  return places[later ? taken++ : taken];
}

Status FileWork::run() {
  vanished = 0;
  for (auto &job : jobs)
    if (Status status = job(); !status.ok())
      return fail(status);
  jobs.clear();
  taken = 0;
  undoes = nullptr;
  return {};
}

Status FileWork::fail(const Status &why) {
  jobs.clear(); // the files that they hold are not finished
  taken = 0;
  if (undoes)
    undoes();
  undoes = nullptr;
  return why;
}

Status copyBytes(Emitted &emitted, int64_t &bytes) {
  bytes = 0;
  for (TensorKind kind : {TensorKind::Weights, TensorKind::State}) {
    std::map<std::string, Pieces> tensors;
    PP_TRY(piecesOf(emitted, kind, tensors));
    for (const auto &[name, pieces] : tensors)
      bytes += pieces.front().tensor.wholeElements() * int64_t(elementBytes(pieces.front().tensor.type));
  }
  return {};
}

Status checkMemory(int64_t bytes) {
  const int64_t available = freeMemory();
  return bytes <= available
             ? Status()
             : refused("`--save-every` writes behind the steps, from a copy of ", bytes, " bytes on rank 0, and ",
                       available, " bytes of memory are free; `--save-sync` needs no copy");
}

Status findWhole(const std::string &path, int64_t &kept, std::string &damage) {
  const std::string folder = withoutEndSlash(followLinks(path));
  kept = -1;
  const Status newest = checkWhole(withoutEndSlash(path));
  if (newest.ok())
    return {};
  damage = newest.message();
  for (const auto &[step, its] : keptBeside(folder)) {
    const Status status = checkWhole(its);
    if (status.ok()) {
      kept = step;
      return {};
    }
    damage += "; " + status.message();
  }
  return {newest.code(), damage};
}

Status checkFolder(RankMemory &memory, const std::string &path, const WeightLayout &layout, const Keeping &keeping,
                   bool isRead, std::string &remark) {
  const std::string folder = withoutEndSlash(followLinks(path)),
                    parent = std::filesystem::path(folder).parent_path().string();
  PP_TRY(checkTarget(folder, keeping, isRead));
  struct statvfs room;
  bool known = statvfs(parent.empty() ? "." : parent.c_str(), &room) == 0;
  std::error_code error;
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
    needed += std::filesystem::file_size(layout.beside + "/" + name, error);
  if (!tooLarge.empty())
    remark = text("`", layout.beside, "/", tooLarge[0], "` has more than 64 MiB and is not copied to `", folder, "`");
  if (known && uint64_t(room.f_bavail) * room.f_frsize < needed)
    return refused("cannot save to `", folder, "`: a checkpoint needs ", needed, " bytes, ",
                   uint64_t(room.f_bavail) * room.f_frsize, " are free");
  return {};
}

Status saveCheckpoint(RankMemory &memory, const std::string &path, const RunState &state, const WeightLayout &layout,
                      const Keeping &keeping, FileWork &work) {
  return replaceBy(memory, withoutEndSlash(followLinks(path)), keeping, work,
                   [&](const std::string &fresh) { return writeAll(memory, fresh, state, layout, work); });
}

Status saveMerged(RankMemory &memory, const std::string &path, const WeightLayout &layout, int64_t &vanished) {
  FileWork work(/*later=*/false);
  PP_TRY(replaceBy(memory, withoutEndSlash(followLinks(path)), {}, work,
                   [&](const std::string &fresh) { return writeMerged(memory, fresh, layout, work); }));
  vanished += work.vanished;
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
    PP_TRY(fromFile(each.tensor, place, /*isFinite=*/false, memory.device, vanished));
  }
  return {};
}

} // namespace pp
