// Reads and writes safetensors: eight bytes of header length, a JSON header, then the data without gap or overlap.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/SafeTensors.h"
#include "runtime/files/Half.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <set>
#include <unistd.h>

namespace pp {
namespace {

/// The format's own bound on the header.
constexpr uint64_t maxHeaderBytes = 100'000'000;
/// Printing what is deeper would need a stack of its own.
constexpr int maxJsonDepth = 64;

/// Bytes of one element, 0 for an unknown type.
int64_t bytesOf(const std::string &type) {
  static const std::map<std::string, int64_t> sizes = {
      {"F64", 8}, {"I64", 8}, {"U64", 8},     {"F32", 4},     {"I32", 4}, {"U32", 4}, {"F16", 2}, {"BF16", 2},
      {"I16", 2}, {"U16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
  auto found = sizes.find(type);
  return found == sizes.end() ? 0 : found->second;
}

template <typename Element> Element load(const void *data, int64_t i) {
  Element element;
  memcpy(&element, static_cast<const char *>(data) + i * int64_t(sizeof element), sizeof element);
  return element;
}
double readF64(const void *data, int64_t i) { return load<double>(data, i); }
double readF32(const void *data, int64_t i) { return load<float>(data, i); }
double readBf16(const void *data, int64_t i) { return fromBf16(load<uint16_t>(data, i)); }
double readF16(const void *data, int64_t i) { return fromF16(load<uint16_t>(data, i)); }

/// The end of the string that begins here: its second quote, or the end of the text.
size_t endOfString(std::string_view body, size_t at) {
  for (++at; at < body.size() && body[at] != '"'; ++at)
    at += body[at] == '\\';
  return std::min(at, body.size());
}

/// The key to which these keys lead; npos where escapes hide it.
size_t placeOf(std::string_view body, const std::vector<std::string> &keys) {
  size_t depth = 0, found = 0;
  for (size_t at = 0; at < body.size(); ++at) {
    depth += body[at] == '{' || body[at] == '[';
    depth -= body[at] == '}' || body[at] == ']';
    if (body[at] != '"')
      continue;
    const size_t end = endOfString(body, at), next = body.find_first_not_of(" \t\r\n", end + 1);
    const bool isKey = next != body.npos && body[next] == ':';
    if (isKey && depth == found + 1 && body.substr(at + 1, end - at - 1) == keys[found] && ++found == keys.size())
      return at;
    at = end;
  }
  return body.npos;
}

/// Infinity and NaN as strings of the same length.
std::string withoutInfinity(std::string_view body) {
  std::string made(body);
  if (body.find("Infinity") == body.npos && body.find("NaN") == body.npos)
    return made;
  for (size_t at = 0; at < body.size(); ++at) {
    if (body[at] == '"') {
      at = endOfString(body, at);
      continue;
    }
    for (std::string_view word : {"-Infinity", "Infinity", "NaN"})
      if (body.substr(at).starts_with(word)) {
        made.replace(at, word.size(), text("\"", word.substr(0, word.size() - 2), "\""));
        at += word.size() - 1;
        break;
      }
  }
  return made;
}

} // namespace

int64_t FileTensor::elements() const {
  int64_t product = 1;
  for (int64_t extent : shape)
    product *= extent;
  return product;
}

std::string shapeText(const std::vector<int64_t> &shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    out += text(i ? ", " : "", shape[i]);
  return out + "]";
}

const char *fileType(Type type) {
  static constexpr const char *names[] = {"F32", "BF16", "F64", "F16"}; // in the order of Type
  return names[size_t(type)];
}

std::optional<Type> typeOfFile(const std::string &type) {
  for (Type each : {Type::F64, Type::F32, Type::F16, Type::Bf16})
    if (type == fileType(each))
      return each;
  return {};
}

template <typename json> static json parsed(std::string_view body) {
  std::vector<std::set<std::string>> keys; // of the objects that are open
  auto check = [&keys](int depth, typename json::parse_event_t event, json &value) {
    if (depth > maxJsonDepth)
      throw std::invalid_argument(text("it is nested more than ", maxJsonDepth, " deep"));
    if (event == json::parse_event_t::object_start)
      keys.emplace_back();
    if (event == json::parse_event_t::object_end)
      keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.template get<std::string>()).second)
      throw std::invalid_argument(text("`", value.template get<std::string>(), "` is there twice"));
    return true;
  };
  try {
    return json::parse(withoutInfinity(body), check);
  } catch (const nlohmann::json::parse_error &error) { // .. - WHAT
    const std::string said = error.what();
    const size_t what = said.rfind(" - ");
    throw JsonFault("it is no JSON: " + (what == std::string::npos ? said : said.substr(what + 3)),
                    std::max<size_t>(error.byte, 1) - 1);
  }
}

nlohmann::json parseJson(std::string_view body) { return parsed<nlohmann::json>(body); }
nlohmann::ordered_json parseOrderedJson(std::string_view body) { return parsed<nlohmann::ordered_json>(body); }

Status corruptJson(const std::string &path, std::string_view body, const std::exception &error, const char *part) {
  const auto *fault = dynamic_cast<const JsonFault *>(&error);
  size_t at = !fault                ? body.npos
              : fault->keys.empty() ? std::min(fault->byte, body.size())
                                    : placeOf(body, fault->keys);
  std::string place = path, what = error.what();
  if (at != body.npos) {
    const std::string_view before = body.substr(0, at);
    place += text(":", 1 + std::count(before.begin(), before.end(), '\n'), ":", at - (before.rfind('\n') + 1) + 1);
  }
  if (what.starts_with("[json.exception"))
    what.erase(0, what.find("] ") + 2);
  return invalid(part, "`", place, "` is corrupt: ", what);
}

SafeTensors::Reader SafeTensors::readerOf(const std::string &type) {
  static constexpr std::pair<const char *, Reader> readers[] = {
      {"F32", readF32}, {"BF16", readBf16}, {"F64", readF64}, {"F16", readF16}};
  for (auto [name, reader] : readers)
    if (type == name)
      return reader;
  return nullptr;
}

Status SafeTensors::open(const std::string &path) {
  name = path;
  PP_TRY(mapping.open(path, ""));
  const size_t mappedBytes = mapping.bytes().size();
  if (mappedBytes < 8)
    return invalid("`", path, "` is not a safetensors file: ", mappedBytes, " bytes, the header's length alone has 8");
  const char *start = mapping.bytes().data();
  uint64_t headerBytes = 0;
  memcpy(&headerBytes, start, 8);
  if (headerBytes > maxHeaderBytes)
    return invalid("`", path, "` is not a safetensors file: its header claims ", headerBytes, " bytes, at most ",
                   maxHeaderBytes, " are allowed");
  if (headerBytes > mappedBytes - 8)
    return invalid("`", path, "` is truncated: its header has ", headerBytes, " bytes, the file ", mappedBytes - 8,
                   " after the length");
  base = start + 8 + headerBytes;
  return parse(start + 8, headerBytes, int64_t(mappedBytes - 8 - headerBytes));
}

Status SafeTensors::parseEntry(const std::string &key, const nlohmann::json &value) {
  const bool isRemark = key == "__metadata__";
  try {
    if (isRemark) {
      remarks = value.get<std::map<std::string, std::string>>();
      return {};
    }
    auto offsets = value.at("data_offsets").get<std::vector<int64_t>>();
    if (offsets.size() != 2)
      return invalid("`", name, "` is corrupt: `", key, "` has ", offsets.size(), " offsets, not 2");
    entries[key] = {key, value.at("dtype").get<std::string>(), value.at("shape").get<std::vector<int64_t>>(),
                    offsets[0], offsets[1]};
  } catch (const nlohmann::json::exception &) {
    throw JsonFault(text("`", key,
                         isRemark ? "` maps names to strings"
                                  : "` needs `dtype`, a text, and `shape` and "
                                    "`data_offsets`, lists of whole numbers"),
                    {key});
  }
  return {};
}

Status SafeTensors::parse(const char *header, size_t headerBytes, int64_t dataBytes) {
  try {
    auto root = parseJson({header, headerBytes});
    for (auto &[key, value] : root.items())
      PP_TRY(parseEntry(key, value));
  } catch (const std::exception &error) {
    return corruptJson(name, {header, headerBytes}, error, "the header of ");
  }
  return checkLayout(dataBytes);
}

Status SafeTensors::checkLayout(int64_t dataBytes) const {
  std::vector<const FileTensor *> order;
  for (const auto &[key, tensor] : entries) {
    order.push_back(&tensor);
    int64_t size = bytesOf(tensor.type);
    if (size == 0)
      return invalid("`", name, "`: `", key, "` has the unknown type ", tensor.type);
    for (int64_t extent : tensor.shape) {
      if (extent < 0 || (extent > 0 && size > INT64_MAX / extent))
        return invalid("`", name, "` is corrupt: `", key, "` has shape ", shapeText(tensor.shape));
      size *= extent;
    }
    if (tensor.begin < 0 || tensor.end < tensor.begin || tensor.end - tensor.begin != size)
      return invalid("`", name, "` is corrupt: `", key, "` of type ", tensor.type, " and shape ",
                     shapeText(tensor.shape), " needs ", size, " bytes, its offsets are ", tensor.begin, " to ",
                     tensor.end);
    if (tensor.end > dataBytes)
      return invalid("`", name, "` is truncated: `", key, "` ends at byte ", tensor.end, " of the data, the file has ",
                     dataBytes);
  }
  std::sort(order.begin(), order.end(), [](const FileTensor *a, const FileTensor *b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  int64_t at = 0;
  for (const FileTensor *tensor : order) {
    if (tensor->begin != at)
      return invalid("`", name, "` is corrupt: `", tensor->name, "` begins at byte ", tensor->begin, " of the data, ",
                     tensor->begin < at ? "inside the tensor before it, which ends at " : "expected ", at);
    at = tensor->end;
  }
  if (at != dataBytes)
    return invalid("`", name, "` is corrupt: its tensors end at byte ", at, " of the data, the file has ", dataBytes);
  return {};
}

Status SafeTensorsWriter::open(const std::string &target, const std::vector<FileTensor> &tensors,
                               const std::map<std::string, std::string> &metadata, int folder) {
  path = target;
  sum = {};
  nlohmann::ordered_json root;
  root["__metadata__"] = metadata;
  int64_t at = 0;
  for (const FileTensor &tensor : tensors) {
    int64_t end = at + tensor.elements() * bytesOf(tensor.type);
    root[tensor.name] = {{"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string header = root.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  uint64_t headerBytes = header.size();
  PP_TRY(draft.open(target, folder));
  PP_TRY(write(&headerBytes, 8));
  return write(header.data(), header.size());
}

Status SafeTensorsWriter::write(const void *data, size_t bytes) {
  sum.add(data, bytes);
  return fwrite(data, 1, bytes, draft.file()) == bytes ? Status()
                                                       : refused("cannot write `", path, "`: ", strerror(errno));
}

Status SafeTensorsWriter::finish() { return draft.finish(); }

Status syncFolder(const std::string &path) {
  int folder = open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return refused("cannot open folder `", path, "`: ", strerror(errno));
  const Status status = syncOpen(folder, path);
  close(folder);
  return status;
}

Status syncOpen(int folder, const std::string &path) {
  const bool synced = fsync(folder) == 0 || errno == EINVAL; // some file systems have nothing to sync
  return synced ? Status() : refused("cannot sync folder `", path, "`: ", strerror(errno));
}

} // namespace pp
