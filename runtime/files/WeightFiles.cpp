// Opens the files of a published model and holds them against their index, so that each tensor has one place.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/WeightFiles.h"
#include "runtime/files/Folder.h"
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

namespace fs = std::filesystem;

namespace pp {
namespace {

/// Reads `weight_map`: the name of a tensor -> the name of a file beside the index.
Status readIndex(const std::string &path, std::string &body, std::map<std::string, std::string> &fileOf) {
  PP_TRY(readText(path, body));
  try {
    const auto root = parseJson(body);
    if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object())
      return invalid("`", path, "` is corrupt: it has no object `weight_map`");
    for (const auto &[tensor, file] : root["weight_map"].items()) {
      if (!file.is_string())
        throw JsonFault(text("expected the name of a file for `", tensor, "`"), {"weight_map", tensor});
      fileOf[tensor] = file.get<std::string>();
    }
  } catch (const std::exception &error) {
    return corruptJson(path, body, error);
  }
  for (const auto &[tensor, its] : fileOf)
    if (!isFileName(its) || !its.ends_with(".safetensors"))
      return invalid("`", path, "`: `", tensor, "` is said to be in `", its,
                     "`, which is no name of a safetensors file in this folder");
  if (fileOf.empty())
    return invalid("`", path, "` names no tensor");
  return {};
}

bool isEqual(const FilePlace &a, const FilePlace &b) {
  return a.tensor->type == b.tensor->type && a.tensor->shape == b.tensor->shape &&
         memcmp(a.file->data(*a.tensor), b.file->data(*b.tensor), size_t(a.tensor->end - a.tensor->begin)) == 0;
}

} // namespace

std::string fileName(const std::string &path) { return fs::path(path).filename().string(); }

FilePlace WeightFiles::find(const std::string &tensor) const {
  auto found = places.find(tensor);
  return found == places.end() ? FilePlace() : found->second;
}

Status WeightFiles::open(const std::string &path, const std::string &stem) {
  name = withoutEndSlash(path);
  std::error_code error;
  folder = fs::is_directory(name, error);
  return folder ? openFolder(stem) : openShard(name, {});
}

/// A tensor that is in several shards is read from the one that the index names. The last shard is what transformers
/// ends with, so an index that names an earlier one is taken only if the copies are equal.
Status WeightFiles::openShard(const std::string &path, const std::map<std::string, std::string> &fileOf) {
  auto file = std::make_unique<SafeTensors>();
  PP_TRY(file->open(path));
  for (const auto &[tensor, entry] : file->tensors()) {
    auto named = fileOf.find(tensor);
    const std::string its = named == fileOf.end() ? "" : named->second;
    if (FilePlace before = find(tensor); !before || its == fileName(path))
      places[tensor] = {file.get(), &entry};
    else if (its == fileName(before.file->path()) && !isEqual(before, {file.get(), &entry}))
      return invalid("`", tensor, "` is in `", before.file->path(),
                     "`, which the index names, and with other values in `", path, "`");
  }
  shards.push_back(std::move(file));
  return {};
}

Status WeightFiles::openFolder(const std::string &stem) {
  const std::string indexPath = name + "/" + indexOf(stem), single = name + "/" + singleOf(stem);
  std::error_code error;
  if (!fs::exists(indexPath, error)) {
    if (fs::exists(single, error))
      return openShard(single, {});
    if (stem != modelStem)
      return invalid("`", name, "` has neither ", singleOf(stem), " nor ", indexOf(stem));
    if (fs::exists(name + "/pytorch_model.bin", error) || fs::exists(name + "/pytorch_model.bin.index.json", error))
      return invalid("`", name, "` has its weights in pytorch_model.bin, which is not read; convert them: python3 -c ",
                     "'from transformers import AutoModelForCausalLM as M; M.from_pretrained(\"", name,
                     "\").save_pretrained(\"", name, "\")'");
    return invalid("`", name, "` has neither ", singleOf(stem), " nor ", indexOf(stem),
                   "; a run without --load, of a program that was made from a folder, begins at random with --init");
  }
  std::map<std::string, std::string> fileOf;
  PP_TRY(readIndex(indexPath, indexText, fileOf));
  std::set<std::string> names;
  for (const auto &[tensor, file] : fileOf)
    names.insert(file);
  if (!names.contains(singleOf(stem)) && fs::exists(single, error))
    return invalid("`", name, "` has two models: ", singleOf(stem), ", and the files that ", indexOf(stem), " names");
  for (const std::string &file : names) {
    if (!fs::exists(name + "/" + file, error))
      return invalid("`", indexPath, "` names `", file, "`, which is not in the folder");
    PP_TRY(openShard(name + "/" + file, fileOf));
  }
  return checkIndex(indexPath, fileOf);
}

Status WeightFiles::checkIndex(const std::string &path, const std::map<std::string, std::string> &fileOf) const {
  for (const auto &[tensor, file] : fileOf)
    if (FilePlace place = find(tensor); !place || fileName(place.file->path()) != file)
      return invalid("`", path, "`: `", tensor, "` is said to be in `", file, "`, which has no such tensor");
  for (const auto &[tensor, place] : places)
    if (!fileOf.contains(tensor))
      return invalid("`", path, "` does not name `", tensor, "`, which is in `", fileName(place.file->path()), "`");
  return {};
}

} // namespace pp
