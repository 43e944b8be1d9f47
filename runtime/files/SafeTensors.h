// Named tensors in safetensors files: read with every claim of the header checked, written all or nothing.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_SAFETENSORS_H
#define PP_RUNTIME_FILES_SAFETENSORS_H

#include "runtime/Program.h"
#include "runtime/files/Checksum.h"
#include "runtime/files/Draft.h"
#include "runtime/files/Mapping.h"
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pp {

/// A tensor as a file describes it.
struct FileTensor {
  std::string name;
  std::string type; ///< F32, BF16, F16, F64, or one that holds no reals
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0; ///< bytes in the data

  [[nodiscard]] int64_t elements() const;
};

/// `[768, 50257]`.
[[nodiscard]] std::string shapeText(const std::vector<int64_t> &shape);
/// F32, BF16, F16, F64.
[[nodiscard]] const char *fileType(Type type);
/// Nothing for types that hold no reals, or that the runtime does not compute with.
[[nodiscard]] std::optional<Type> typeOfFile(const std::string &type);
/// A fault in a text of JSON: at one of its bytes, or at the value to which these keys lead.
struct JsonFault : std::invalid_argument {
  JsonFault(const std::string &what, size_t byte) : invalid_argument(what), byte(byte) {}
  JsonFault(const std::string &what, std::vector<std::string> keys) : invalid_argument(what), keys(std::move(keys)) {}
  size_t byte = std::string_view::npos;
  std::vector<std::string> keys;
};
/// Parses JSON, also the `Infinity` and `NaN` of Python, as strings. Throws, also if an object has a key twice, or if
/// it is nested deeper than a file of ours or of a model.
[[nodiscard]] nlohmann::json parseJson(std::string_view body);
/// The same, in the order of the file.
[[nodiscard]] nlohmann::ordered_json parseOrderedJson(std::string_view body);
/// An exception's message about this file or its `part`, with line and column if they are known.
[[nodiscard]] Status corruptJson(const std::string &path, std::string_view body, const std::exception &error,
                                 const char *part = "");

class SafeTensors {
public:
  Status open(const std::string &path);

  [[nodiscard]] const std::map<std::string, FileTensor> &tensors() const { return entries; }
  [[nodiscard]] const std::map<std::string, std::string> &metadata() const { return remarks; }
  [[nodiscard]] const std::string &path() const { return name; }
  /// Element `i` of a tensor of reals.
  using Reader = double (*)(const void *data, int64_t i);
  /// The reader for elements of this type; null if they are not reals.
  [[nodiscard]] static Reader readerOf(const std::string &type);
  [[nodiscard]] const char *data(const FileTensor &tensor) const { return base + tensor.begin; }

private:
  Status parseEntry(const std::string &key, const nlohmann::json &value);
  Status parse(const char *header, size_t headerBytes, int64_t dataBytes);
  Status checkLayout(int64_t dataBytes) const;

  std::string name;
  std::map<std::string, FileTensor> entries;
  std::map<std::string, std::string> remarks;
  Mapping mapping;
  const char *base = nullptr;
};

/// Writes beside the file and renames at the end; a file that was not finished is removed.
class SafeTensorsWriter {
public:
  /// begin and end of `tensors` are ignored: the data follow in this order. `folder`: that of the file, if it is open.
  Status open(const std::string &path, const std::vector<FileTensor> &tensors,
              const std::map<std::string, std::string> &metadata, int folder = AT_FDCWD);
  Status write(const void *data, size_t bytes);
  Status finish();
  /// The checksum of everything that was written.
  [[nodiscard]] std::string checksum() const { return sum.text(); }

private:
  std::string path;
  Draft draft;
  Checksum sum;
};

} // namespace pp

#endif // PP_RUNTIME_FILES_SAFETENSORS_H
