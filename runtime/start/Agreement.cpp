// Collects what all ranks of a run must have in common, and says where two ranks differ.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/start/Agreement.h"
#include "runtime/Kernels.h"
#include "runtime/Version.h"
#include "runtime/files/Checksum.h"
#include "runtime/files/Folder.h"
#include "runtime/files/SafeTensors.h"
#include "runtime/trainer/Mixture.h"
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace pp {
namespace {

constexpr size_t mostText = size_t(256) << 20; ///< of the texts of ranks, bytes that are compared
constexpr size_t mostSaid = 3;                 ///< differences
// Facts that also differ if other facts of the program differ:
constexpr const char *textsOfRanks = "the checksum of all units, messages and places in memory",
                     *ownVersion = "the version of pp";

/// Size and checksum of a file, or why it has none.
std::string contentOf(const std::string &path) {
  constexpr off_t whole = off_t(1) << 20, block = off_t(1) << 16, blocks = whole / block;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info = {};
  if (file < 0 || fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    const std::string why = file < 0 && errno != ENOENT ? strerror(errno) : "not there";
    if (file >= 0)
      close(file);
    return why;
  }
  Checksum sum;
  std::vector<char> bytes(size_t(std::min(info.st_size, whole)));
  const off_t each = info.st_size > whole ? block : off_t(bytes.size());
  for (off_t i = 0, at = 0; at < off_t(bytes.size()); ++i, at += each) {
    const off_t from = info.st_size > whole ? off_t(double(info.st_size - block) / double(blocks - 1) * double(i)) : 0;
    sum.add(bytes.data(), size_t(std::max<ssize_t>(pread(file, bytes.data(), size_t(each), from), 0)));
  }
  close(file);
  return text(info.st_size, " bytes, checksum ", sum.text());
}

class Facts {
public:
  void add(const std::string &what, const std::string &value, const std::string &path = {}) {
    if (!value.empty())
      all.push_back({what, value, path});
  }
  void addData(const std::string &option, const std::string &data);
  void addWeights(const std::string &option, const std::string &path);
  void addProgram();
  void addOptions(const Program &program, const Options &options);
  void addEnvironment();

  std::vector<Fact> all;
};

/// The program's own text, number by number, without what follows from the rest and the names of local folders.
void Facts::addProgram() {
  const auto root = nlohmann::json::parse(pp_program_json, nullptr, /*allow_exceptions=*/false).flatten();
  const char *later[] = {"/fingerprint", "/flops_per_step", "/folder", "/name", "/tokens_per_step"};
  for (const auto &[path, value] : root.items()) {
    if (std::any_of(std::begin(later), std::end(later), [&](const char *key) { return path.starts_with(key); }))
      continue;
    std::string name = path.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    add(name == "function" ? "what the model computes (heads, rotary base, epsilon, activation, window), as a checksum,"
                           : "`" + name + "` of the program",
        value.is_string() ? value.get<std::string>() : value.dump());
  }
  Checksum sum;
  size_t left = mostText;
  for (int32_t rank = 0; rank < pp_rank_count && left > 0; ++rank)
    if (const char *json = pp_rank_table[rank].json) {
      const size_t bytes = strnlen(json, left);
      sum.add(json, bytes);
      left -= bytes;
    }
  add(textsOfRanks, sum.text());
  add(ownVersion, version());
}

void Facts::addData(const std::string &option, const std::string &data) {
  if (data.empty() || data == "random")
    return add(option, data);
  std::vector<MixedFile> files;
  std::string weights;
  if (Status read = readMixture(data, files); !read.ok())
    return add(option, read.message());
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string path = tokenPath(files[i].data),
                      kind = files[i].data.substr(0, files[i].data.size() - path.size());
    for (const auto &[step, weight] : files[i].weights)
      weights += step == 1 ? text(weight, " ") : text(weight, "@", step, " ");
    std::string content = contentOf(path);
    if (std::error_code none; kind.empty() && fs::exists(path + ".idx", none)) // a dataset of Megatron
      content = text(contentOf(path + ".idx"), "; ", contentOf(path + ".bin"));
    if (!kind.empty())
      content += ", read as " + kind.substr(0, kind.size() - 1);
    add(files.size() > 1 ? text("file ", i + 1, " of ", option) : option, content, files[i].data);
  }
  if (isMixture(data))
    add("the weights of " + option, weights);
}

/// The files of weights, or of a checkpoint.
void Facts::addWeights(const std::string &option, const std::string &path) {
  std::error_code none;
  if (path.empty() || !fs::is_directory(path, none))
    return path.empty() ? void() : add(option, contentOf(path), path);
  std::set<std::string> names;
  const std::set<std::string> read = {"adapter_config.json", "config.json", "model.safetensors.index.json",
                                      "optimizer.safetensors.index.json", "state.json"};
  for (const auto &entry : fs::directory_iterator(path, none))
    if (std::string name = entry.path().filename(); name.ends_with(".safetensors") || read.contains(name))
      names.insert(name);
  for (const std::string &name : names)
    add(text("`", name, "` of ", option), contentOf(path + "/" + name), path + "/" + name);
}

void Facts::addOptions(const Program &program, const Options &options) {
  // Paths of what is written may differ, but all ranks know whether it is wanted. What is left out changes nothing
  // for the others.
  const std::map<std::string, const std::string *> written = {
      {"merge", &options.merge},      {"save", &options.save},       {"grads", &options.grads},
      {"trace", &options.trace},      {"profile", &options.profile}, {"batches", &options.batches},
      {"logprobs", &options.logprobs}};
  const std::set<std::string> read = {"data", "source", "eval", "load", "adapter", "resume"},
                              own = {"log", "tensorboard", "timeout", "peak-flops"};
  for (const auto &[name, path] : written)
    add("`--" + name + "`", path->empty() ? "" : "given");
  for (const auto &[name, value] : options.given)
    if (!written.contains(name) && !read.contains(name) && !own.contains(name))
      add("`--" + name + "`", value.empty() ? "given" : value);
  addData("`--data`", options.data);
  addData("`--source`", options.source);
  std::string names;
  for (const EvalFile &its : options.evals) {
    addData(its.name.empty() ? "`--eval`" : "`--eval " + its.name + "`", its.data);
    names += (names.empty() ? "" : ", ") + its.name;
  }
  add("the order of `--eval`", names);
  addWeights("`--load`", options.load);
  addWeights("`--adapter`", options.adapter);
  addWeights("`--resume`", options.resume);
  // Under adapters the model is read where the first run read it.
  if (std::string body;
      program.adapts() && !options.resume.empty() && readText(options.resume + "/" + stateFile, body).ok())
    if (auto root = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false); root.is_object())
      if (auto origin = root.find("origin"); origin != root.end() && origin->is_string())
        addWeights("the model that `--resume` began with", *origin);
}

/// Adds the settings that change a rank's rounding, or its messages.
void Facts::addEnvironment() {
  add("the kernels' instruction set (PP_ISA limits it)", Kernels::isa());
  for (const char *name :
       {"PP_EPILOGUES", "PP_CUDNN", "PP_COPY_ENGINES", "PP_COPY_WINDOW", "PP_TF32", "PP_TUNE", "NCCL_MAX_CTAS"})
    if (const char *value = getenv(name))
      add(name, text("`", value, "`"));
}

constexpr char separator = '\0';

std::string packed(const std::vector<Fact> &facts) {
  std::string out;
  for (const Fact &fact : facts)
    out += fact.what + separator + fact.value + separator + fact.path + separator;
  return out;
}

std::vector<Fact> unpacked(const std::string &text) {
  std::vector<Fact> facts;
  for (size_t at = 0; at < text.size();) {
    Fact &fact = facts.emplace_back();
    for (std::string *part : {&fact.what, &fact.value, &fact.path}) {
      *part = text.c_str() + std::min(at, text.size());
      at += part->size() + 1;
    }
  }
  return facts;
}

std::string said(const Fact *fact) {
  return !fact ? "not given" : fact->path.empty() ? fact->value : text("`", fact->path, "` (", fact->value, ")");
}

} // namespace

std::vector<Fact> factsOf(const Program &program, const Options &options) {
  Facts facts;
  facts.addProgram();
  facts.addOptions(program, options);
  facts.addEnvironment();
  return facts.all;
}

std::string differenceOf(const std::vector<Fact> &first, const std::vector<Fact> &second,
                         const std::array<std::string, 2> &names) {
  auto find = [](const std::vector<Fact> &facts, const std::string &what) -> const Fact * {
    auto found = std::find_if(facts.begin(), facts.end(), [&](const Fact &fact) { return fact.what == what; });
    return found == facts.end() ? nullptr : &*found;
  };
  std::vector<std::string> all;
  std::set<std::string> seen;
  for (const std::vector<Fact> *facts : {&first, &second})
    for (const Fact &fact : *facts) {
      const Fact *a = find(first, fact.what), *b = find(second, fact.what);
      const bool follows = !all.empty() && (fact.what == textsOfRanks || fact.what == ownVersion);
      if (!seen.insert(fact.what).second || (a && b && a->value == b->value) || follows || all.size() == mostSaid)
        continue;
      all.push_back(text(fact.what, " is ", said(b), " on ", names[1], " and ", said(a), " on ", names[0]));
    }
  std::string out;
  for (const std::string &each : all)
    out += (out.empty() ? "" : "; ") + each;
  return out;
}

Status checkAlike(const Program &program, const Options &options) {
  const std::vector<Fact> mine = factsOf(program, options);
  std::string compared, first, theirs;
  for (const Fact &fact : mine)
    compared += fact.what + separator + fact.value + separator;
  int32_t other = -1;
  PP_TRY(compareOverMpi(compared, packed(mine), other, first, theirs));
  if (other < 0)
    return {};
  auto name = [&](int32_t device) {
    return device < program.devices() ? program.mesh.name(device) : text("rank ", device);
  };
  return invalid("the ranks of this run differ: ",
                 differenceOf(unpacked(first), unpacked(theirs), {name(0), name(other)}));
}

} // namespace pp
