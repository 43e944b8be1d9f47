// Looks after the folder of a checkpoint: refuses to replace what is not ours, exchanges, and finds what is copied.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Folder.h"
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace pp {
namespace {

constexpr uintmax_t maxCopiedBytes = 64 << 20;
constexpr size_t maxTextBytes = size_t(1) << 28; // of JSON, all of which is parsed at once

/// The files that our mark in this folder lists, with their checksums, as far as it has them; nothing: there is no
/// mark. What a mark says decides, not its name.
std::optional<std::map<std::string, std::string>> filesOfOurs(const std::string &folder) {
  for (const char *mark : {stateFile, mergeFile}) {
    std::string body;
    if (std::error_code none;
        !std::filesystem::is_regular_file(folder + "/" + mark, none) || !readText(folder + "/" + mark, body).ok())
      continue;
    try {
      auto root = parseJson(body);
      if (root.at("format") != 1 || !root.at("made_by").at("schedule").is_string())
        continue;
      std::map<std::string, std::string> files, sums;
      for (const auto &name : root.at("files").get<std::set<std::string>>())
        files[name];
      for (const auto &[name, sum] : root.value("crc32", sums))
        files[name] = sum;
      files[mark];
      return files;
    } catch (const std::exception &) { // somebody else's, or cut
    }
  }
  return {};
}

/// An error unless every file of the folder, which is about to be removed, is as the folder's mark lists it. A folder
/// that is still being written has drafts and no checksums.
Status checkOurs(const std::string &folder, bool isRead) {
  const auto ours = filesOfOurs(folder);
  const bool isUnfinished = folder.ends_with(".tmp");
  if (!ours)
    return {};
  const bool hasSums = std::any_of(ours->begin(), ours->end(), [](const auto &file) { return !file.second.empty(); });
  if (!hasSums && isRead) // of a version that wrote none
    return {};
  std::error_code error;
  for (const auto &entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    auto found = ours->find(name);
    const std::string sum = found == ours->end() ? "" : found->second;
    if (name == stateFile || name == mergeFile || (isUnfinished && sum.empty()))
      continue;
    const Status status = sum.empty() ? invalid("`", entry.path().string(), "` has no checksum in its mark")
                          : isRead    ? Status()
                                      : checkSum(entry.path().string(), sum);
    if (!status.ok())
      return {status.code(), text("cannot save to `", folder, "`: a checkpoint replaces its whole folder, and ",
                                  status.message(), "; name a new one")};
  }
  return error ? refused("cannot save to `", folder, "`: ", error.message()) : Status();
}

/// A folder cannot be exchanged if another file system is mounted there.
bool isMounted(const std::string &folder) {
  struct stat its, parents;
  const std::string parent = std::filesystem::path(folder).parent_path().string();
  return stat(folder.c_str(), &its) == 0 && stat(parent.empty() ? "." : parent.c_str(), &parents) == 0 &&
         its.st_dev != parents.st_dev;
}

/// The step of a checkpoint, all of whose files were written; -1: it is none.
int64_t stepOf(const std::string &folder) {
  std::string body;
  if (std::error_code none; !std::filesystem::is_regular_file(folder + "/" + stateFile, none) ||
                            !readText(folder + "/" + stateFile, body).ok())
    return -1;
  try {
    auto root = parseJson(body);
    return root.contains("crc32") ? root.at("step").get<int64_t>() : -1;
  } catch (const std::exception &) {
    return -1;
  }
}

/// `old` was replaced by another checkpoint: it stays as an older one, or goes.
Status setAside(const std::string &old, const std::string &folder, const Keeping &keeping) {
  const int64_t its = keeping.most > 1 ? stepOf(old) : -1;
  if (its < 0 || its >= keeping.below) {
    removeOurs(old);
    return {};
  }
  const std::string kept = keptFolder(folder, its);
  PP_TRY(checkReplaceable(kept));
  if (!keeping.own.contains(its))
    PP_TRY(checkOurs(kept, /*isRead=*/false));
  removeOurs(kept);
  return rename(old.c_str(), kept.c_str()) == 0 ? Status()
                                                : refused("cannot keep `", old, "` as `", kept, "`: ", strerror(errno));
}

void removeOlder(const std::string &folder, const Keeping &keeping) {
  int64_t left = keeping.most - 1;
  if (left == 0)
    return; // they are of another run, with --keep
  std::error_code none;
  for (const auto &[its, kept] : keptBeside(folder)) // an empty one is what a run left that was killed here
    if ((its >= keeping.below || std::filesystem::is_empty(kept, none) || --left < 0) && kept != keeping.read &&
        (keeping.own.contains(its) || checkOurs(kept, /*isRead=*/false).ok())) // else it stays
      removeOurs(kept);
}

bool hasWeights(const std::string &name) {
  for (const char *end : {".safetensors", ".index.json", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5",
                          ".msgpack", ".ot", ".npz"})
    if (name.ends_with(end))
      return true;
  return false;
}

} // namespace

void removeOurs(const std::string &folder) {
  std::error_code none;
  std::vector<std::filesystem::path> rest;
  for (const auto &entry : std::filesystem::directory_iterator(folder, none))
    if (std::string name = entry.path().filename().string(); name != stateFile && name != mergeFile)
      rest.push_back(entry.path());
  for (const auto &path : rest)
    std::filesystem::remove(path, none);
  std::filesystem::remove_all(folder, none);
}

std::string withoutEndSlash(std::string path) {
  while (path.size() > 1 && path.ends_with('/'))
    path.pop_back();
  return path;
}

Status checkReplaceable(const std::string &folder) {
  std::error_code error;
  if (std::filesystem::is_symlink(folder, error)) // its end is not found
    return invalid("cannot save to `", folder, "`: it is a link that leads to itself");
  if (!std::filesystem::exists(folder, error))
    return {};
  if (!std::filesystem::is_directory(folder, error))
    return invalid("cannot save to `", folder, "`: it is not a folder");
  if (folder == "." || folder == ".." || folder == "/")
    return invalid("cannot save to `", folder, "`: a checkpoint replaces its whole folder; name a new one");
  std::error_code ignored;
  const auto ours = filesOfOurs(folder);
  for (const auto &entry : std::filesystem::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    std::string whole =
        name.ends_with(".tmp") ? name.substr(0, name.size() - 4) : name;             // left by a run that was killed
    const bool begins = name != whole && (whole == stateFile || whole == mergeFile); // a mark that was never whole
    if (!ours && !begins)
      return invalid("cannot save to `", folder,
                     "`: a checkpoint replaces its whole folder, and no run of pp made this ", "one, which has `", name,
                     "`; name a new one");
    if ((ours && !ours->contains(whole) && !begins) || entry.is_directory(ignored))
      return invalid("cannot save to `", folder, "`: a checkpoint replaces its whole folder, and `", name,
                     "` there is not part of a checkpoint; name a new one");
  }
  return error ? refused("cannot save to `", folder, "`: ", error.message()) : Status();
}

bool isFileName(const std::string &name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

Status checkSum(const std::string &path, const std::string &expected) {
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
             : invalid("`", path, "` is damaged: its checksum is ", sum.text(), ", expected ", expected);
}

Status checkTarget(const std::string &folder, const Keeping &keeping, bool isRead) {
  PP_TRY(checkReplaceable(folder));
  PP_TRY(checkOurs(folder, isRead));
  if (isMounted(folder))
    return invalid("cannot save to `", folder,
                   "`: a checkpoint replaces its whole folder, and a file system is mounted "
                   "there; name a folder in it");
  std::string fresh;
  for (const char *beside : {".tmp", ".old"}) {
    PP_TRY(checkReplaceable(folder + beside));
    PP_TRY(checkOurs(folder + beside, /*isRead=*/false));
  }
  PP_TRY(makeFresh(folder, keeping, fresh));
  std::error_code error;
  std::filesystem::remove(fresh, error);
  return {};
}

std::string keptFolder(const std::string &folder, int64_t step) { return text(folder, ".step-", step); }

std::vector<std::pair<int64_t, std::string>> keptBeside(const std::string &folder) {
  std::vector<std::pair<int64_t, std::string>> found;
  const std::filesystem::path place(folder);
  const std::string begin = keptFolder(place.filename().string(), 0), head = begin.substr(0, begin.size() - 1);
  std::error_code none;
  for (const auto &entry : std::filesystem::directory_iterator(
           place.has_parent_path() ? place.parent_path() : std::filesystem::path("."), none)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (!name.starts_with(head))
      continue;
    auto [end, error] = std::from_chars(name.data() + head.size(), name.data() + name.size(), step);
    const std::string kept = keptFolder(folder, step);
    if (error == std::errc() && end == name.data() + name.size() && kept.ends_with(name) &&
        (filesOfOurs(kept) || std::filesystem::is_empty(kept, none)) && checkReplaceable(kept).ok())
      found.emplace_back(step, kept);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

Status makeFresh(const std::string &folder, const Keeping &keeping, std::string &fresh) {
  fresh = folder + ".tmp";
  std::error_code error;
  if (std::filesystem::exists(fresh, error)) { // else nothing is removed: what comes there meanwhile is not ours
    PP_TRY(checkReplaceable(fresh));
    const int64_t left = stepOf(fresh), now = stepOf(folder);
    if (left >= 0 && left < now && !std::filesystem::exists(keptFolder(folder, left), error))
      PP_TRY(setAside(fresh, folder, keeping)); // it was replaced, and nothing more
    removeOurs(fresh);
  }
  if (std::filesystem::create_directory(fresh, error))
    return {};
  PP_TRY(checkReplaceable(fresh));
  return refused("cannot save to `", folder, "`: cannot make `", fresh,
                 "`: ", error ? error.message() : "it is there and cannot be removed");
}

Status replaceFolder(const std::string &fresh, const std::string &folder, const Keeping &keeping) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) {
    if (rename(fresh.c_str(), folder.c_str()) != 0)
      return refused("cannot rename `", fresh, "` to `", folder, "`: ", strerror(errno));
  } else if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    PP_TRY(setAside(fresh, folder, keeping));
  } else { // a file system that cannot exchange: keep the old one beside until the new one is there
    std::string old = folder + ".old";
    PP_TRY(checkReplaceable(old));
    removeOurs(old);
    if (rename(folder.c_str(), old.c_str()) != 0 || rename(fresh.c_str(), folder.c_str()) != 0)
      return refused("cannot replace `", folder, "`: ", strerror(errno));
    PP_TRY(setAside(old, folder, keeping));
  }
  removeOlder(folder, keeping);
  return syncFolder(std::filesystem::path(folder).parent_path().string());
}

Status SharedFolder::sign(const std::string &fresh, const std::string &mark, uint32_t number) {
  return writeText(fresh + "/" + mark + ".tmp", text(number), /*waits=*/false);
}

Status SharedFolder::enter(const std::string &fresh, const std::string &mark, uint32_t number, const std::string &host,
                           int64_t seconds) {
  const std::string parent = std::filesystem::path(fresh).parent_path().string(), expected = text(number);
  constexpr int directory = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  do {
    leave();
    if (int above = open(parent.empty() ? "." : parent.c_str(), directory); above >= 0)
      close(above); // NFS asks again what is there when a folder is opened
    folder = open(fresh.c_str(), directory);
    const int file = folder < 0 ? -1 : openat(folder, (mark + ".tmp").c_str(), O_RDONLY | O_CLOEXEC);
    char said[32] = "";
    const ssize_t bytes = file < 0 ? -1 : read(file, said, sizeof said);
    if (file >= 0)
      close(file);
    if (bytes > 0 && expected == std::string_view(said, size_t(bytes)))
      return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (std::chrono::steady_clock::now() < end);
  leave();
  char own[256] = "";
  gethostname(own, sizeof own - 1);
  return refused("cannot save to `", fresh.substr(0, fresh.rfind('.')), "`: what rank 0 writes there on host `", host,
                 "` is not there on host `", own,
                 "`; every rank writes its own files, so all need one folder, on storage that their hosts share");
}

void SharedFolder::leave() {
  if (folder >= 0)
    close(folder);
  folder = -1;
}

std::string followLinks(const std::string &path) {
  constexpr int most = 40; // as many as Linux follows
  std::string place = path;
  std::error_code error;
  for (int i = 0; i < most && std::filesystem::is_symlink(withoutEndSlash(place), error); ++i) {
    const std::filesystem::path link = withoutEndSlash(place), to = std::filesystem::read_symlink(link, error);
    place = to.is_absolute() ? to.string() : (link.parent_path() / to).string();
  }
  return std::filesystem::is_symlink(withoutEndSlash(place), error) ? path : place;
}

Status writeMark(const std::string &path, const std::string &body, bool waits) {
  PP_TRY(writeText(path + ".tmp", body, waits));
  return rename((path + ".tmp").c_str(), path.c_str()) == 0 ? Status()
                                                            : refused("cannot write `", path, "`: ", strerror(errno));
}

Status writeText(const std::string &path, const std::string &body, bool waits) {
  FILE *file = fopen(path.c_str(), "wb");
  if (!file)
    return refused("cannot write `", path, "`: ", strerror(errno));
  bool written = fwrite(body.data(), 1, body.size(), file) == body.size() && fflush(file) == 0 &&
                 (!waits || fsync(fileno(file)) == 0);
  int error = errno;
  fclose(file);
  return written ? Status() : refused("cannot write `", path, "`: ", strerror(error));
}

Status readText(const std::string &path, std::string &body) {
  Mapping mapping;
  PP_TRY(mapping.open(path, ""));
  if (mapping.bytes().size() > maxTextBytes)
    return invalid("cannot read `", path, "`: it has ", mapping.bytes().size(), " bytes; the limit is ", maxTextBytes);
  body = mapping.bytes();
  return {};
}

Status filesBeside(const std::string &model, std::vector<std::string> &names, std::vector<std::string> &tooLarge) {
  std::error_code error, ignored;
  for (const auto &entry : std::filesystem::directory_iterator(model, error)) {
    std::string name = entry.path().filename().string();
    if (!entry.is_regular_file(ignored) || hasWeights(name) || name.ends_with(".py") || name.ends_with(".tmp") ||
        name == stateFile || name == mergeFile)
      continue;
    (entry.file_size(ignored) > maxCopiedBytes ? tooLarge : names).push_back(name);
  }
  if (error)
    return refused("cannot read `", model, "`: ", error.message());
  std::sort(names.begin(), names.end());
  std::sort(tooLarge.begin(), tooLarge.end());
  return {};
}

bool isOfTokenizer(const std::string &name) {
  static const char *const begins[] = {
      "tokenizer", "special_tokens_map.json", "added_tokens.json", "vocab.", "merges.txt", "chat_template"};
  return std::any_of(std::begin(begins), std::end(begins), [&](const char *begin) { return name.starts_with(begin); });
}

/// Walks the text once. A string at depth 1 is a key if a colon follows; the value ends before the next comma or brace.
std::string withDtype(const std::string &config, const std::string &dtype) {
  std::string out, key;
  size_t value = 0; // where the value of a key that is looked for begins in `out`; 0: none does
  int depth = 0;
  for (size_t i = 0; i < config.size(); ++i) {
    char c = config[i];
    if (c == '"') {
      size_t end = i + 1;
      while (end < config.size() && config[end] != '"')
        end += config[end] == '\\' ? 2 : 1;
      std::string word = config.substr(i, end + 1 - i);
      if (depth == 1 && !value)
        key = word;
      out += word;
      i = end;
      continue;
    }
    if (value && depth == 1 && (c == ',' || c == '}')) {
      size_t begin = out.find_first_not_of(" \t\r\n", value), last = out.find_last_not_of(" \t\r\n");
      if (begin <= last)
        out.replace(begin, last + 1 - begin, "\"" + dtype + "\"");
      value = 0;
    }
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    out += c;
    if (depth == 1 && c == ':' && (key == "\"dtype\"" || key == "\"torch_dtype\""))
      value = out.size();
    if (depth == 1 && (c == ',' || c == ':'))
      key.clear();
  }
  return out;
}

} // namespace pp
