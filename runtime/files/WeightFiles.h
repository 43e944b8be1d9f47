// The tensors of a model, or of an optimizer: a safetensors file, or a folder with one or with an index and its shards.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_WEIGHTFILES_H
#define PP_RUNTIME_WEIGHTFILES_H

#include "runtime/files/SafeTensors.h"
#include <memory>

namespace pp {

/// The place of a tensor in the files.
struct FilePlace {
  const SafeTensors *file = nullptr;
  const FileTensor *tensor = nullptr;
  explicit operator bool() const { return tensor != nullptr; }
};

class WeightFiles {
public:
  static constexpr const char *modelStem = "model";

  /// The names for this stem: of a single file, and of the index of several.
  [[nodiscard]] static std::string singleOf(const std::string &stem) { return stem + ".safetensors"; }
  [[nodiscard]] static std::string indexOf(const std::string &stem) { return singleOf(stem) + ".index.json"; }

  /// Opens a file, or what a folder has: the files that its index names, or `model.safetensors`. If several files have
  /// a tensor, the index says whose it is.
  Status open(const std::string &path, const std::string &stem = modelStem);

  [[nodiscard]] const std::string &path() const { return name; }
  /// Whether this is a folder, and not a file.
  [[nodiscard]] bool isFolder() const { return folder; }
  /// The text of the index; empty if there is none.
  [[nodiscard]] const std::string &index() const { return indexText; }
  /// The files in the order of their names.
  [[nodiscard]] const std::vector<std::unique_ptr<SafeTensors>> &files() const { return shards; }
  [[nodiscard]] const std::map<std::string, FilePlace> &tensors() const { return places; }
  [[nodiscard]] FilePlace find(const std::string &tensor) const;

private:
  Status openFolder(const std::string &stem);
  Status openShard(const std::string &path, const std::map<std::string, std::string> &fileOf);
  Status checkIndex(const std::string &path, const std::map<std::string, std::string> &fileOf) const;

  std::string name, indexText;
  bool folder = false;
  std::vector<std::unique_ptr<SafeTensors>> shards;
  std::map<std::string, FilePlace> places;
};

/// The last part of a path.
[[nodiscard]] std::string fileName(const std::string &path);

} // namespace pp

#endif // PP_RUNTIME_WEIGHTFILES_H
