// Judges the paths that a run writes by what they lead to: links are followed, and files are known by their content.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Outputs.h"
#include "runtime/files/Folder.h"
#include "runtime/files/Tokens.h"
#include "runtime/trainer/Mixture.h"
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace pp {
namespace {

using Named = std::pair<const char *, std::string>; ///< an option and its path

/// The files and folders that the run reads, its own program among them.
std::vector<Named> inputsOf(const Options &options) {
  std::vector<Named> inputs;
  auto add = [&](const char *option, const std::string &path) {
    if (!path.empty())
      inputs.push_back({option, path});
  };
  std::vector<Named> data = {{"data", options.data}, {"source", options.source}};
  for (const EvalFile &its : options.evals)
    data.push_back({"eval", its.data});
  for (const auto &[option, name] : data) {
    if (name == "random" && option != std::string("eval"))
      continue;
    std::vector<MixedFile> files; // a list that cannot be read is reported when the data are opened
    if (!readMixture(name, files).ok())
      files.clear();
    if (isMixture(name))
      files.push_back({name.substr(name.find(':') + 1), {}});
    for (const MixedFile &file : files) {
      add(option, tokenPath(file.data));
      for (const char *end : {".idx", ".bin"}) // of Megatron's datasets
        if (std::error_code none; !file.data.empty() && fs::exists(file.data + end, none))
          add(option, file.data + end);
    }
  }
  add("load", options.load);
  add("adapter", options.adapter);
  return inputs;
}

/// Whether `path`, which need not be there, lies in `folder` or below.
bool isInside(const std::string &path, const std::string &folder) {
  std::error_code none;
  const fs::path outer = fs::weakly_canonical(withoutEndSlash(followLinks(folder)), none),
                 inner = fs::weakly_canonical(followLinks(path), none);
  const fs::path way = inner.lexically_relative(outer);
  return !outer.empty() && !way.empty() && way != "." && *way.begin() != "..";
}

bool isSame(const std::string &a, const std::string &b) {
  std::error_code none;
  return a == b || fs::equivalent(a, b, none) || followLinks(a) == followLinks(b);
}

/// A save replaces its folder, on the way `<folder>.tmp` and `<folder>.old`, and with --keep older checkpoints: nothing
/// that is read may lie there, and nothing else be written there. A run that resumes may replace its own checkpoint, or
/// an older one.
Status checkSaved(const char *option, const std::string &path, const Options &options, const std::vector<Named> &inputs,
                  const std::vector<Named> &outputs) {
  const std::string folder = withoutEndSlash(followLinks(path));
  const std::string beside[] = {folder + ".tmp", folder + ".old"};
  std::vector<std::string> all = {folder, beside[0], beside[1]};
  if (options.keep > 1 && option == std::string("save"))
    for (auto &[step, kept] : keptBeside(folder))
      all.push_back(kept);
  for (const std::string &replaced : all) {
    for (const auto &[other, its] : inputs)
      if (isSame(its, replaced) || isInside(its, replaced))
        return invalid("`--", option, " ", path, "` would replace `", replaced, "`, ",
                       other == std::string("load") || other == std::string("adapter")
                           ? "whose weights are read"
                           : text("where `--", other, "` is read"));
    if (!options.resume.empty() && std::count(std::begin(beside), std::end(beside), replaced) &&
        isSame(options.resume, replaced))
      return invalid("`--", option, " ", path, "` would replace `", replaced, "`, whose weights are read");
    for (const auto &[other, its] : outputs)
      if (isInside(its, replaced))
        return invalid("`--", other, " ", its, "` lies in `", replaced, "`, which `--", option, "` replaces");
  }
  return {};
}

/// Whether these first bytes are those of an output of this kind.
bool isOfKind(const std::string &option, const std::string &begin) {
  if (option == "log")
    return begin.starts_with("{\"step\":");
  if (option == "trace" || option == "profile")
    return begin.starts_with("{") && begin.find("\"made_from\":") != std::string::npos;
  constexpr size_t lengthBytes = 8; // of a safetensors file's header
  return begin.size() > lengthBytes && begin.substr(lengthBytes).starts_with("{\"__metadata__\":");
}

const char *kindOf(const struct stat &info) {
  return S_ISDIR(info.st_mode) ? "a folder" : S_ISFIFO(info.st_mode) ? "a pipe" : "a device";
}

} // namespace

Status checkPaths(const Options &options) {
  const std::vector<Named> inputs = inputsOf(options);
  std::vector<Named> outputs, known = inputs;
  for (auto [option, path] : {std::pair("grads", &options.grads),
                              {"log", &options.log},
                              {"trace", &options.trace},
                              {"profile", &options.profile},
                              {"logprobs", &options.logprobs},
                              {"batches", &options.batches},
                              {"tensorboard", &options.tensorboard},
                              {"save", &options.save},
                              {"merge", &options.merge}}) {
    if (path->empty())
      continue;
    for (const auto &[other, its] : known)
      if (isSame(*path, its))
        return invalid("`--", option, " ", *path, "` would be written over what `--", other, "` names");
    const bool isFile = path != &options.save && path != &options.merge && path != &options.tensorboard;
    std::error_code none;
    for (const std::string &folder : {options.load, options.adapter, options.resume})
      if (isFile && fs::is_directory(folder, none) && isInside(*path, folder))
        return invalid("`--", option, " ", *path, "` would be written into `", folder, "`, which is read");
    if (isFile && isSame(*path, "/proc/self/exe"))
      return invalid("`--", option, " ", *path, "` would be written over the program itself");
    outputs.push_back({option, *path});
    known.push_back({option, *path});
  }
  for (auto [option, path] : {std::pair("save", &options.save), {"merge", &options.merge}})
    if (!path->empty())
      PP_TRY(checkSaved(option, *path, options, inputs, outputs));
  return {};
}

Status checkFile(const std::string &option, const std::string &path) {
  auto wrong = [&](const std::string &why) { return refused("cannot write `", path, "` of --", option, ": ", why); };
  struct stat info;
  const bool existed = stat(path.c_str(), &info) == 0;
  if (existed && !S_ISREG(info.st_mode)) {
    if (option != "log" || S_ISDIR(info.st_mode))
      return wrong(text("it is ", kindOf(info), ", expected a file or nothing"));
    return {}; // its lines are written as they come
  }
  if (existed && info.st_size > 0) {
    constexpr size_t looked = 1 << 16;
    std::string begin(looked, 0);
    std::ifstream file(path, std::ios::binary);
    begin.resize(size_t(file.read(begin.data(), looked).gcount()));
    if (!isOfKind(option, begin))
      return wrong(text("the file there was not written by --", option, "; name another one, or remove it"));
  }
  FILE *file = fopen(path.c_str(), "ab");
  if (!file)
    return wrong(strerror(errno));
  fclose(file);
  if (!existed)
    unlink(followLinks(path).c_str());
  return {};
}

Status openLog(const std::string &path, bool appends, FILE *&log) {
  // A pipe that nobody reads would wait for its reader.
  int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  struct stat info;
  if (file < 0 || fstat(file, &info) != 0)
    return refused("cannot write `", path, "` of --log: ", errno == ENXIO ? "nobody reads the pipe" : strerror(errno));
  fcntl(file, F_SETFL, O_APPEND); // waits from here on
  log = fdopen(file, "ab");
  if (!log)
    return refused("cannot write `", path, "` of --log: ", strerror(errno));
  if (!S_ISREG(info.st_mode)) {
    signal(SIGPIPE, SIG_IGN); // a reader that leaves is an error of the next line
    return {};
  }
  if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return refused("cannot write `", path, "` of --log: another run writes it");
  if (!appends && ftruncate(file, 0) != 0)
    return refused("cannot write `", path, "` of --log: ", strerror(errno));
  return {};
}

FolderLock::~FolderLock() {
  if (file < 0)
    return;
  unlink(path.c_str()); // before it is released: who waits for this file looks whether it is still there
  close(file);
}

/// The file has no content. One that a killed run left is locked by nobody.
Status FolderLock::take(const std::string &folder) {
  path = withoutEndSlash(followLinks(folder)) + ".lock";
  for (;;) {
    int tried = open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    struct stat info, there;
    if (tried < 0 || fstat(tried, &info) != 0)
      return refused("cannot save to `", folder, "`: cannot make `", path, "`: ", strerror(errno));
    const bool isOurs = S_ISREG(info.st_mode) && info.st_size == 0;
    const bool isHeld = isOurs && flock(tried, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    const bool isGone = stat(path.c_str(), &there) != 0 || there.st_ino != info.st_ino;
    if (isOurs && !isHeld && !isGone) {
      file = tried;
      return {};
    }
    close(tried);
    if (!isOurs)
      return refused("cannot save to `", folder, "`: `", path, "` is there, and is not the lock of a run");
    if (isHeld)
      return refused("cannot save to `", folder, "`: another run saves to it, which holds `", path, "`");
  }
}

} // namespace pp
