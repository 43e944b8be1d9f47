// Writes checkpoints all or nothing, in the files of the model that was read, and reads them back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Checkpoint.h"
#include "runtime/files/Folder.h"
#include "runtime/trainer/Adapters.h"
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

using nlohmann::ordered_json;

namespace pp {
namespace {

/// Adds factor A B to the weight, all in the layouts of files: A [rank, in], B [out, rank], the weight [out, in] or, as
/// GPT-2 has it, [in, out]. Each number is rounded once.
void addProduct(const OutTensor &tensor, const std::vector<char> &a, const std::vector<char> &b, double factor,
                std::vector<char> &values) {
  const TensorSpec &weight = tensor.pieces->front().tensor, &first = tensor.a->front().tensor;
  auto readA = SafeTensors::readerOf(fileType(first.type)),
       readB = SafeTensors::readerOf(fileType(tensor.b->front().tensor.type)),
       readW = SafeTensors::readerOf(fileType(weight.type));
  const TensorSpec::Turned turned = weight.turned();
  const int64_t rank = fileShape(first)[0], in = fileShape(first)[1], out = fileShape(tensor.b->front().tensor)[0];
  for (int64_t o = 0; o < out; ++o)
    for (int64_t i = 0; i < in; ++i) {
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r)
        sum += readB(b.data(), o * rank + r) * readA(a.data(), r * in + i);
      const int64_t at = placeInFile(turned, i * out + o);
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

/// The files that a save copies from the model's folder.
Status copiedFiles(const WeightLayout &layout, std::vector<std::string> &names, std::vector<std::string> &tooLarge) {
  if (layout.beside.empty())
    return {};
  PP_TRY(filesBeside(layout.beside, names, tooLarge));
  if (layout.adapters)
    for (std::vector<std::string> *list : {&names, &tooLarge})
      std::erase_if(*list, [](const std::string &name) { return !isOfTokenizer(name); });
  return {};
}

/// The type that config.json names: that of most weights; nothing: it is right, for it stood beside these files.
std::optional<Type> typeOf(const SavePlan &plan, const WeightLayout &layout) {
  if (layout.type || (layout.origin && layout.origin->path() == layout.beside))
    return layout.type;
  std::map<std::string, int64_t> elements;
  for (const OutFile &file : plan.files)
    for (const OutTensor &tensor : file.ofState ? std::vector<OutTensor>() : file.tensors)
      elements[tensor.entry.type] += tensor.entry.elements();
  auto most = std::max_element(elements.begin(), elements.end(),
                               [](const auto &a, const auto &b) { return a.second < b.second; });
  return most == elements.end() ? std::nullopt : typeOfFile(most->first);
}

/// The bytes that the system has free, and those that `ulimit -v` leaves this process.
void freeMemory(int64_t &ofSystem, int64_t &ofProcess) {
  constexpr int64_t kilo = 1024;
  auto number = [](const std::string &path, const std::string &key) {
    std::ifstream file(path);
    for (std::string word; file >> word;)
      if (int64_t value = 0; word == key && file >> value)
        return value;
    return int64_t(-1);
  };
  const int64_t available = number("/proc/meminfo", "MemAvailable:"), used = number("/proc/self/status", "VmSize:");
  ofSystem = available >= 0 ? available * kilo : INT64_MAX;
  rlimit limit;
  const bool isLimited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && used >= 0;
  ofProcess = isLimited ? std::max<int64_t>(int64_t(limit.rlim_cur) - used * kilo, 0) : INT64_MAX;
}

} // namespace

void FileWork::add(std::function<Status()> job) {
  if (later)
    jobs.push_back(std::move(job));
  else if (failed.ok())
    failed = job();
}

std::shared_ptr<std::vector<char>> FileWork::place() {
  if (taken == places.size())
    places.push_back(std::make_shared<std::vector<char>>());
  return places[later ? taken++ : taken];
}

Status FileWork::run() {
  for (auto &job : jobs)
    if (failed.ok())
      failed = job();
  jobs.clear(); // files that are not finished go with them
  taken = 0;
  return std::exchange(failed, Status());
}

//===-- A folder in the making -----------------------------------------------------------------------------------===//

void Save::open(RankMemory &memory, const std::string &path, const Keeping &its, const std::string &markName) {
  folder = withoutEndSlash(followLinks(path));
  fresh = folder + ".tmp";
  keeping = its;
  mark = markName;
  makes = memory.program.device == 0;
  made = false;
  texts.clear();
  factor = memory.emitted.program().lora.factor;
  ofWeights = ofState = {{"format", "pt"}};
  checksums.clear();
  ownVanished = 0;
}

Status Save::begin(RankMemory &memory, const std::string &path, const RunState &state, const WeightLayout &layout,
                   const Keeping &its) {
  open(memory, path, its, stateFile);
  about = text("the checkpoint of step ", state.step);
  PP_TRY(planCheckpoint(memory.emitted, layout, plan));
  // Shards of a model that was read are as others write them; only our own say of which step they are.
  ofState["step"] = std::to_string(state.step);
  if (state.origin.empty())
    ofWeights = ofState;
  if (!makes)
    return {};
  markText = [this, &program = memory.emitted.program(), state](const Checksums &sums) {
    return stateText(program, state, names, sums);
  };
  PP_TRY(makeFolder(layout, layout.adapters ? std::nullopt : typeOf(plan, layout)));
  std::string config;
  if (layout.adapters) {
    PP_TRY(adapterConfig(memory, state.origin, config));
    texts.emplace_back([=, this] { return writeSummed(adapterConfigFile, config); });
  }
  return {};
}

Status Save::beginTrial(RankMemory &memory, const std::string &path) {
  open(memory, path, {}, stateFile);
  return makes ? makeEmpty("") : Status();
}

Status Save::beginMerged(RankMemory &memory, const std::string &path, const WeightLayout &layout) {
  open(memory, path, {}, mergeFile);
  PP_TRY(planMerged(memory.emitted, layout, plan));
  if (!makes)
    return {};
  markText = [this, &program = memory.emitted.program()](const Checksums &sums) {
    ordered_json its = {{"format", 1}, {"made_by", {{"schedule", program.schedule}, {"ranks", program.ranks}}}};
    its["files"] = names;
    if (!sums.empty())
      its["crc32"] = sums;
    return its.dump(2) + "\n";
  };
  return makeFolder(layout, typeOf(plan, layout));
}

/// The mark is there before anything else: it says what is ours if the save does not come to its end. The steps do not
/// wait until it is on the disk.
Status Save::makeFolder(const WeightLayout &layout, std::optional<Type> dtype) {
  std::vector<std::string> tooLarge;
  copied.clear();
  PP_TRY(copiedFiles(layout, copied, tooLarge));
  names = plan.names;
  names.insert(names.end(), copied.begin(), copied.end());
  PP_TRY(checkReplaceable(folder));
  PP_TRY(makeEmpty(markText({})));
  texts.emplace_back([this] { return writeMark(fresh + "/" + mark, markText({}), /*waits=*/true); });
  texts.emplace_back([=, this, beside = layout.beside] { return copyBeside(beside, dtype); });
  for (const auto &[name, body] : plan.texts)
    texts.emplace_back([=, this, name = name, body = body] { return writeSummed(name, body); });
  return {};
}

/// Makes the empty folder, with a mark if there is one yet.
Status Save::makeEmpty(const std::string &markBody) {
  PP_TRY(makeFresh(folder, keeping, fresh));
  made = true;
  if (!markBody.empty())
    PP_TRY(writeMark(fresh + "/" + mark, markBody, /*waits=*/false));
  number = std::random_device()();
  return SharedFolder::sign(fresh, mark, number);
}

Status Save::tell(Transport &transport) {
  std::vector<double> said(257); // the number, and the host of rank 0
  if (makes) {
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    said[0] = number;
    std::copy(std::begin(own), std::end(own), said.begin() + 1);
  }
  PP_TRY(transport.sum(said));
  number = uint32_t(said[0]);
  host.assign(said.begin() + 1, std::find(said.begin() + 1, said.end(), 0.0));
  return {};
}

Status Save::writeSummed(const std::string &name, const std::string &body) {
  checksums[name] = Checksum::of(body);
  return writeText(fresh + "/" + name, body, /*waits=*/true);
}

/// Copies the files that the model has beside its weights.
Status Save::copyBeside(const std::string &beside, std::optional<Type> dtype) {
  static constexpr const char *torchNames[] = {"float32", "bfloat16", "float64", "float16"}; // in the order of Type
  for (const std::string &name : copied) {
    std::string body;
    PP_TRY(readText(beside + "/" + name, body));
    if (name == "config.json" && dtype)
      body = withDtype(body, torchNames[size_t(*dtype)]);
    PP_TRY(writeSummed(name, body));
  }
  return {};
}

/// In each round every rank receives one of its tensors, and writes it when the tensors of all ranks are on their way:
/// no rank waits for another rank's disk.
Status Save::gather(RankMemory &memory) {
  const int32_t own = memory.program.device;
  for (auto &job : std::exchange(texts, {}))
    work.add(std::move(job));
  std::vector<std::vector<std::pair<const OutFile *, const OutTensor *>>> turns(plan.written.size());
  size_t rounds = 0;
  for (const OutFile &out : plan.files) {
    auto &its = turns[size_t(out.writer)];
    for (const OutTensor &tensor : out.tensors)
      its.emplace_back(&out, &tensor);
    if (out.tensors.empty())
      its.emplace_back(&out, nullptr);
    rounds = std::max(rounds, its.size());
  }
  std::shared_ptr<SafeTensorsWriter> file;
  for (size_t round = 0; round < rounds; ++round) {
    Gathered mine;
    for (size_t device = 0; device < turns.size(); ++device)
      if (round < turns[device].size() && turns[device][round].second)
        PP_TRY(gatherOne(memory, *turns[device][round].second, int32_t(device), mine));
    if (round >= turns[size_t(own)].size())
      continue;
    const auto [out, tensor] = turns[size_t(own)][round];
    if (!tensor || tensor == &out->tensors.front())
      addOpen(*out, file = std::make_shared<SafeTensorsWriter>());
    if (tensor)
      addTensor(*tensor, mine, file);
    if (!tensor || tensor == &out->tensors.back())
      work.add([=, this, name = out->name] {
        checksums[name] = file->checksum();
        return file->finish();
      });
  }
  return {};
}

Status Save::gatherOne(RankMemory &memory, const OutTensor &tensor, int32_t to, Gathered &mine) {
  const bool isMine = memory.program.device == to;
  auto get = [&](const Pieces *pieces, Values place, Values &out) {
    if (isMine)
      out = place;
    return pieces ? pp::gather(memory, *pieces, to, *place) : Status();
  };
  auto other = [] { return std::make_shared<std::vector<char>>(); };
  PP_TRY(get(tensor.pieces, isMine && tensor.pieces ? work.place() : other(), mine.values));
  PP_TRY(get(tensor.a, other(), mine.a));
  return get(tensor.b, other(), mine.b);
}

void Save::addOpen(const OutFile &out, const std::shared_ptr<SafeTensorsWriter> &file) {
  std::vector<FileTensor> entries;
  for (const OutTensor &tensor : out.tensors)
    entries.push_back(tensor.entry);
  work.add([=, this, path = fresh + "/" + out.name, says = out.ofState ? ofState : ofWeights] {
    return file->open(path, entries, says, shared.descriptor());
  });
}

void Save::addTensor(const OutTensor &tensor, const Gathered &its, const std::shared_ptr<SafeTensorsWriter> &file) {
  work.add([=, this] {
    if (!tensor.pieces)
      return file->write(tensor.from.file->data(*tensor.from.tensor), size_t(tensor.bytes()));
    TensorSpec layout = tensor.pieces->front().tensor;
    if (tensor.a) {
      turnForFile(layout, *its.values);
      turnForFile(tensor.a->front().tensor, *its.a);
      turnForFile(tensor.b->front().tensor, *its.b);
      addProduct(tensor, *its.a, *its.b, factor, *its.values);
      layout.stored = Stored::Plain; // it is turned already
    }
    return writeTensor(layout, tensor.entry, *its.values, *file, ownVanished);
  });
}

Status Save::share(RankMemory &memory) {
  std::vector<double> said(plan.files.size() + 1); // checksums of 32 bits, which doubles hold
  for (size_t i = 0; i < plan.files.size(); ++i)
    if (plan.files[i].writer == memory.program.device)
      said[i] = double(std::stoul(checksums.at(plan.files[i].name), nullptr, 16));
  said.back() = double(ownVanished);
  PP_TRY(memory.transport.sum(said));
  vanished = int64_t(said.back());
  for (size_t i = 0; i < plan.files.size(); ++i)
    checksums[plan.files[i].name] = Checksum::text(uint32_t(said[i]));
  return {};
}

Status Save::commit() {
  shared.leave();
  if (!makes)
    return {};
  PP_TRY(writeMark(fresh + "/" + mark, markText(checksums), /*waits=*/true));
  PP_TRY(syncFolder(fresh));
  return replaceFolder(fresh, folder, keeping);
}

void Save::undo() {
  shared.leave();
  if (made)
    removeOurs(fresh);
}

Status Save::named(const Status &status) const {
  return status.code() != PP_IO || about.empty() ? status : refused(about, " is not written: ", status.message());
}

//===-- Before a run ---------------------------------------------------------------------------------------------===//

Status copyBytes(Emitted &emitted, const WeightLayout &layout, std::vector<int64_t> &bytes) {
  SavePlan plan;
  PP_TRY(planCheckpoint(emitted, layout, plan));
  bytes = copiedBytes(plan);
  return {};
}

Status checkMemory(int64_t bytes, int64_t beside) {
  int64_t ofSystem = 0, ofProcess = 0;
  freeMemory(ofSystem, ofProcess);
  const bool fits = bytes <= ofProcess && beside <= ofSystem;
  const int64_t needed = bytes > ofProcess ? bytes : beside, available = bytes > ofProcess ? ofProcess : ofSystem;
  return fits ? Status()
              : refused("`--save-every` writes behind the steps, from a copy of ", needed, " bytes, and ", available,
                        " bytes of memory are free; `--save-sync` needs no copy");
}

Status checkFolder(RankMemory &memory, const std::string &path, const WeightLayout &layout, const Keeping &keeping,
                   bool isRead, std::string &remark) {
  const std::string folder = withoutEndSlash(followLinks(path)),
                    parent = std::filesystem::path(folder).parent_path().string();
  PP_TRY(checkTarget(folder, keeping, isRead));
  struct statvfs room;
  bool known = statvfs(parent.empty() ? "." : parent.c_str(), &room) == 0;
  std::error_code error;
  SavePlan plan;
  PP_TRY(planCheckpoint(memory.emitted, layout, plan));
  uint64_t needed = 1 << 20;
  for (const OutFile &file : plan.files)
    for (const OutTensor &tensor : file.tensors)
      needed += uint64_t(tensor.bytes());
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

Status loadCheckpoint(RankMemory &memory, const std::string &path, const WeightFiles &files, const WeightMatch &match,
                      const RunState &state) {
  std::string folder = withoutEndSlash(path);
  WeightFiles optimizer;
  PP_TRY(optimizer.open(folder, optimizerStem));
  std::vector<const SafeTensors *> marked;
  for (const WeightFiles *its : {&files, static_cast<const WeightFiles *>(&optimizer)})
    for (const auto &file : its->files())
      if (its == &optimizer || state.origin.empty())
        marked.push_back(file.get());
  for (const SafeTensors *file : marked) {
    auto found = file->metadata().find("step");
    if (found == file->metadata().end() || found->second != std::to_string(state.step))
      return invalid("`", file->path(), "` does not belong to step ", state.step, " of `", folder, "/", stateFile, "`");
  }
  // A weight whose file has another type than the run is read from its master, if there is one.
  WeightMatch exact = match;
  for (const WeightSpec &weight : memory.program.weights)
    if (auto found = exact.weights.find(weight.name); found != exact.weights.end())
      if (FilePlace master = optimizer.find(weight.name + ".master");
          master && found->second.tensor->type != fileType(weight.type))
        found->second = master;
  int64_t vanished = 0;
  PP_TRY(loadWeights(memory, exact, state.seed, vanished));
  Pieces held;
  PP_TRY(ownState(memory, held));
  for (const Held &each : held) {
    FilePlace place = optimizer.find(each.name);
    if (!place)
      return invalid("`", optimizer.path(), "` lacks `", each.name, "`");
    PP_TRY(fromFile(each.tensor, place, /*isFinite=*/false, memory.device, vanished));
  }
  return {};
}

} // namespace pp
