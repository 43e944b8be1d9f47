// Gathers tensors by name on rank 0, writes checkpoints all or nothing, and reads them back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Checkpoint.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sys/statvfs.h>
#include <tuple>
#include <unistd.h>

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace pp {
namespace {

const char *const modelFile = "model.safetensors";
const char *const optimizerFile = "optimizer.safetensors";
const char *const stateFile = "state.json";

/// A tensor of one rank under its name in the file.
struct Held {
  std::string name;
  TensorSpec tensor;
  int32_t rank = 0;
};

/// What a rank hands in for a kind. The layout of state is that of its weight, which `transposed` knows by name.
void collect(const RankProgram &program, TensorKind kind, const std::map<std::string, bool> &transposed,
             std::vector<Held> &out) {
  if (kind == TensorKind::Weights)
    for (const WeightSpec &weight : program.weights)
      if (weight.save)
        out.push_back({weight.name, weight, program.rank});
  if (kind == TensorKind::Grads)
    for (const TensorSpec &grad : program.grads)
      out.push_back({grad.name, grad, program.rank});
  if (kind == TensorKind::State)
    for (const StateSpec &state : program.state) {
      Held held{state.name + "." + state.kind, state, program.rank};
      if (auto found = transposed.find(state.name); found != transposed.end())
        held.tensor.transposed = found->second;
      out.push_back(held);
    }
}

/// Layouts of all weights; a rank's state may belong to a weight that begins the step elsewhere.
Status layouts(RankMemory &memory, std::map<std::string, bool> &out) {
  for (int32_t rank = 0; rank < memory.emitted.program().ranks; ++rank) {
    const RankProgram *program = nullptr;
    PP_TRY(memory.emitted.rank(rank, program));
    for (const WeightSpec &weight : program->weights)
      out[weight.name] = weight.transposed;
  }
  return {};
}

/// Where several ranks have all of a tensor's state, each for its own update, the first of them hands it in: leaves out
/// what a rank before this one has.
Status leaveCopies(RankMemory &memory, std::vector<Held> &out) {
  std::set<std::pair<std::string, int64_t>> seen;
  for (int32_t rank = 0; rank < memory.emitted.program().ranks; ++rank) {
    const RankProgram *program = nullptr;
    PP_TRY(memory.emitted.rank(rank, program));
    std::set<std::pair<std::string, int64_t>> here;
    for (const StateSpec &state : program->state)
      here.insert({state.name + "." + state.kind, state.begin});
    std::erase_if(out,
                  [&](const Held &held) { return held.rank == rank && seen.contains({held.name, held.tensor.begin}); });
    seen.merge(here);
  }
  return {};
}

/// What the ranks hand in, or this rank; with `copies` all that it has.
Status plan(RankMemory &memory, TensorKind kind, bool everyRank, std::vector<Held> &out, bool copies = false) {
  std::map<std::string, bool> transposed;
  if (kind == TensorKind::State)
    PP_TRY(layouts(memory, transposed));
  if (everyRank) {
    for (int32_t rank = 0; rank < memory.emitted.program().ranks; ++rank) {
      const RankProgram *program = nullptr;
      PP_TRY(memory.emitted.rank(rank, program));
      collect(*program, kind, transposed, out);
    }
  } else {
    collect(memory.program, kind, transposed, out);
  }
  if (kind == TensorKind::State && !copies)
    PP_TRY(leaveCopies(memory, out));
  std::sort(out.begin(), out.end(), [](const Held &a, const Held &b) {
    return std::tie(a.name, a.tensor.begin) < std::tie(b.name, b.tensor.begin);
  });
  if (kind == TensorKind::State && !copies) // old versions of a weight that two pieces of one rank share
    out.erase(std::unique(out.begin(), out.end(),
                          [](const Held &a, const Held &b) {
                            return a.rank == b.rank && a.name == b.name && a.tensor.begin == b.tensor.begin;
                          }),
              out.end());
  // Each tensor once, or its shards one after the other, or side by side.
  auto end = [](const TensorSpec &shard) { return shard.begin + (shard.run < 0 ? shard.elements() : shard.run); };
  auto whole = [](const TensorSpec &shard) { return shard.run < 0 ? shard.wholeElements() : shard.stride; };
  for (size_t i = 0; everyRank && i < out.size(); ++i) {
    bool continues = i > 0 && out[i].name == out[i - 1].name;
    int64_t reached = continues ? end(out[i - 1].tensor) : 0;
    if (out[i].tensor.begin < reached)
      return internal("ranks ", out[i - 1].rank, " and ", out[i].rank, " both hand in `", out[i].name, "`");
    bool ends = i + 1 == out.size() || out[i + 1].name != out[i].name;
    if (out[i].tensor.begin > reached || (ends && end(out[i].tensor) < whole(out[i].tensor)))
      return internal("no rank hands in all of `", out[i].name, "`");
  }
  return {};
}

std::string trimmed(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/'))
    folder.pop_back();
  return folder;
}

std::string errorOf(const std::error_code &error) { return error.message(); }

ordered_json programFacts(const Program &program) {
  ordered_json facts = {{"model", program.model},
                        {"precision", program.precision},
                        {"vocab", program.vocab},
                        {"sequence", program.sequence},
                        {"sequences_per_step", program.sequencesPerStep()},
                        {"parameters", program.parameters}};
  if (program.updates > 1)
    facts["updates_per_step"] = program.updates;
  return facts;
}

Status writeState(const Program &program, const std::string &path, const RunState &state) {
  ordered_json root = {{"format", 1},
                       {"step", state.step},
                       {"steps", state.steps},
                       {"seed", state.seed},
                       {"lr", state.lr},
                       {"sequences", state.step * program.sequencesPerStep()},
                       {"program", programFacts(program)},
                       {"made_by", {{"schedule", program.schedule}, {"ranks", program.ranks}}}};
  if (program.scalesLoss())
    root["loss_scale"] = {{"now", state.lossScale}, {"good_steps", state.goodSteps}, {"skipped_steps", state.skipped}};
  std::string body = root.dump(2) + "\n";
  FILE *file = fopen(path.c_str(), "wb");
  if (!file)
    return refused("cannot write `", path, "`: ", strerror(errno));
  bool written =
      fwrite(body.data(), 1, body.size(), file) == body.size() && fflush(file) == 0 && fsync(fileno(file)) == 0;
  int error = errno;
  fclose(file);
  return written ? Status() : refused("cannot write `", path, "`: ", strerror(error));
}

/// The elements in place, each rounded once.
void multiply(Type type, std::vector<char> &elements, double factor) {
  for (size_t i = 0; i * elementBytes(type) < elements.size(); ++i) {
    char *at = elements.data() + i * elementBytes(type);
    storeElement(at, type, factor * SafeTensors::readerOf(fileType(type))(at, 0));
  }
}

/// Puts the finished folder `fresh` where `folder` is; at no moment is there none.
Status replaceFolder(const std::string &fresh, const std::string &folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) {
    if (rename(fresh.c_str(), folder.c_str()) != 0)
      return refused("cannot rename `", fresh, "` to `", folder, "`: ", strerror(errno));
  } else if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(fresh, error);
  } else { // a file system that cannot exchange: keep the old one beside until the new one is there
    std::string old = folder + ".old";
    fs::remove_all(old, error);
    if (rename(folder.c_str(), old.c_str()) != 0 || rename(fresh.c_str(), folder.c_str()) != 0)
      return refused("cannot replace `", folder, "`: ", strerror(errno));
    fs::remove_all(old, error);
  }
  return syncFolder(fs::path(folder).parent_path().string());
}

/// A folder that exists is replaced only if it is a checkpoint or empty.
Status checkReplaceable(const std::string &folder) {
  std::error_code error;
  if (!fs::exists(folder, error))
    return {};
  if (!fs::is_directory(folder, error))
    return invalid("cannot save to `", folder, "`: it is not a folder");
  if (folder == "." || folder == ".." || folder == "/")
    return invalid("cannot save to `", folder, "`: a checkpoint replaces its whole folder; name a new one");
  for (const auto &entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    std::string whole =
        name.ends_with(".tmp") ? name.substr(0, name.size() - 4) : name; // left by a run that was killed
    if (whole != modelFile && whole != optimizerFile && whole != stateFile)
      return invalid("cannot save to `", folder, "`: a checkpoint replaces its whole folder, and `", name,
                     "` there is not part of a checkpoint; name a new one");
  }
  return error ? refused("cannot save to `", folder, "`: ", errorOf(error)) : Status();
}

/// Makes an empty folder `<folder>.tmp`.
Status makeFresh(const std::string &folder, std::string &fresh) {
  fresh = folder + ".tmp";
  PP_TRY(checkReplaceable(fresh));
  std::error_code error;
  fs::remove_all(fresh, error);
  if (!fs::create_directory(fresh, error))
    return refused("cannot save to `", folder, "`: cannot make `", fresh,
                   "`: ", error ? errorOf(error) : "it is there and cannot be removed");
  return {};
}

} // namespace

Status writeTensors(RankMemory &memory, TensorKind kind, const std::string &path,
                    std::map<std::string, std::string> metadata, double factor) {
  bool writer = memory.program.rank == 0;
  std::vector<Held> held;
  PP_TRY(plan(memory, kind, writer, held));
  if (!writer) {
    std::vector<char> mine;
    for (const Held &each : held) {
      mine.resize(size_t(each.tensor.bytes()));
      PP_TRY(memory.device.download(each.tensor.offset, mine.data(), mine.size()));
      PP_TRY(memory.transport.send(0, mine.data(), mine.size()));
    }
    return {};
  }
  metadata["format"] = "pt";
  std::vector<FileTensor> entries;
  for (const Held &each : held)
    if (each.tensor.begin == 0)
      entries.push_back({each.name, fileType(each.tensor.type), fileShape(each.tensor)});
  SafeTensorsWriter file;
  PP_TRY(file.open(path, entries, metadata));
  std::vector<char> whole, shard, buffer;
  for (size_t i = 0; i < held.size(); ++i) {
    const TensorSpec &tensor = held[i].tensor;
    size_t size = elementBytes(tensor.type);
    whole.resize(size_t(tensor.wholeElements()) * size);
    shard.resize(size_t(tensor.bytes()));
    if (held[i].rank == memory.program.rank)
      PP_TRY(memory.device.download(tensor.offset, shard.data(), shard.size()));
    else
      PP_TRY(memory.transport.receive(held[i].rank, shard.data(), shard.size()));
    int64_t run = tensor.run < 0 ? tensor.elements() : tensor.run;
    for (int64_t at = 0; at < tensor.elements(); at += run)
      memcpy(whole.data() + size_t(tensor.place(at)) * size, shard.data() + size_t(at) * size, size_t(run) * size);
    if (i + 1 < held.size() && held[i + 1].name == held[i].name) // more of its shards come
      continue;
    buffer.resize(whole.size());
    toFileLayout(tensor, whole.data(), buffer.data());
    if (factor != 1)
      multiply(tensor.type, buffer, factor);
    PP_TRY(file.write(buffer.data(), buffer.size()));
  }
  return file.finish();
}

Status checkFolder(RankMemory &memory, const std::string &path) {
  std::string folder = trimmed(path), fresh;
  PP_TRY(checkReplaceable(folder));
  PP_TRY(makeFresh(folder, fresh));
  struct statvfs room;
  bool known = statvfs(fresh.c_str(), &room) == 0;
  std::error_code error;
  fs::remove(fresh, error);
  std::vector<Held> held;
  PP_TRY(plan(memory, TensorKind::Weights, true, held));
  std::vector<Held> state;
  PP_TRY(plan(memory, TensorKind::State, true, state));
  held.insert(held.end(), state.begin(), state.end());
  uint64_t needed = 1 << 20;
  for (const Held &each : held)
    needed += uint64_t(each.tensor.bytes());
  if (known && uint64_t(room.f_bavail) * room.f_frsize < needed)
    return refused("cannot save to `", folder, "`: a checkpoint needs ", needed, " bytes, ",
                   uint64_t(room.f_bavail) * room.f_frsize, " are free");
  return {};
}

Status checkFile(const std::string &option, const std::string &path) {
  std::error_code error;
  bool existed = fs::exists(path, error);
  FILE *file = fopen(path.c_str(), "ab");
  if (!file)
    return refused("cannot write `", path, "` of --", option, ": ", strerror(errno));
  fclose(file);
  if (!existed)
    unlink(path.c_str());
  return {};
}

Status saveCheckpoint(RankMemory &memory, const std::string &path, const RunState &state) {
  std::string folder = trimmed(path), fresh = folder + ".tmp";
  bool writer = memory.program.rank == 0;
  if (writer) {
    PP_TRY(checkReplaceable(folder));
    PP_TRY(makeFresh(folder, fresh));
  }
  std::map<std::string, std::string> metadata = {{"step", std::to_string(state.step)}};
  Status status = writeTensors(memory, TensorKind::Weights, fresh + "/" + modelFile, metadata);
  if (status.ok())
    status = writeTensors(memory, TensorKind::State, fresh + "/" + optimizerFile, metadata);
  if (writer && status.ok())
    status = writeState(memory.emitted.program(), fresh + "/" + stateFile, state);
  if (writer && status.ok())
    status = syncFolder(fresh);
  if (writer && status.ok())
    status = replaceFolder(fresh, folder);
  if (writer && !status.ok()) {
    std::error_code error;
    fs::remove_all(fresh, error);
  }
  return status;
}

Status readRunState(const Program &program, const std::string &folder, RunState &state) {
  std::string path = trimmed(folder) + "/" + stateFile;
  std::ifstream file(path);
  if (!file)
    return refused("cannot resume from `", folder, "`: cannot read `", path, "`: ", strerror(errno));
  try {
    auto root = nlohmann::json::parse(file);
    if (root.at("format") != 1)
      return invalid("`", path, "` has format ", root.at("format").dump(), "; this program reads format 1");
    if (auto updates = root.at("program").value("updates_per_step", int64_t(1)); updates != program.updates)
      return invalid("cannot resume from `", folder, "`: it was made with ", updates,
                     " updates a step, this program has ", program.updates);
    const ordered_json mine = programFacts(program);
    for (auto &[key, value] : mine.items())
      if (auto theirs = root.at("program").at(key); theirs != value)
        return invalid("cannot resume from `", folder, "`: it was made with ", key, " ", theirs.dump(),
                       ", this program has ", value.dump());
    state.step = root.at("step").get<int64_t>();
    state.steps = root.at("steps").get<int64_t>();
    state.seed = root.at("seed").get<uint64_t>();
    state.lr = root.at("lr").get<double>();
    if (!program.scalesLoss())
      return {};
    const auto &scale = root.at("loss_scale");
    state.lossScale = scale.at("now").get<double>();
    state.goodSteps = scale.at("good_steps").get<int64_t>();
    state.skipped = scale.at("skipped_steps").get<int64_t>();
  } catch (const std::exception &error) {
    return invalid("`", path, "` is corrupt: ", error.what());
  }
  return {};
}

Status loadCheckpoint(RankMemory &memory, const std::string &path, const RunState &state) {
  std::string folder = trimmed(path), remark;
  SafeTensors model, optimizer;
  PP_TRY(model.open(folder + "/" + modelFile));
  PP_TRY(optimizer.open(folder + "/" + optimizerFile));
  for (const SafeTensors *file : {&model, &optimizer}) {
    auto found = file->metadata().find("step");
    if (found == file->metadata().end() || found->second != std::to_string(state.step))
      return invalid("`", file->path(), "` does not belong to step ", state.step, " of `", folder, "/", stateFile, "`");
  }
  PP_TRY(loadWeights(memory, model, remark));
  std::vector<Held> held;
  PP_TRY(plan(memory, TensorKind::State, false, held, true));
  for (const Held &each : held) {
    if (!optimizer.tensors().contains(each.name))
      return invalid("`", optimizer.path(), "` lacks `", each.name, "`");
    PP_TRY(fromFile(each.tensor, optimizer, each.name, memory.device));
  }
  return {};
}

} // namespace pp
