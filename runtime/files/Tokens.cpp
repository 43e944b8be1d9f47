// Maps a text or a token file, with every size, every document and every token checked before the first step.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Tokens.h"
#include "runtime/files/Checksum.h"
#include "runtime/files/Random.h"
#include "runtime/files/SafeTensors.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <unistd.h>

namespace pp {
namespace {

constexpr int64_t headerBytes = 256 * 4;
constexpr size_t sampleBytes = size_t(1) << 16;

/// llm.c's formats: the first two words of the header, and how wide a token is.
struct TokenFormat {
  int32_t magic, version;
  int64_t width;
};
constexpr TokenFormat formats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

/// The width that the words before the file's name say; 0: none.
int64_t widthSaid(const std::string &data) {
  constexpr std::pair<std::string_view, int64_t> widths[] = {{"u8:", 1}, {"u16:", 2}, {"u32:", 4}};
  for (auto [begin, width] : widths)
    if (data.starts_with(begin))
      return width;
  return 0;
}

constexpr std::string_view numpyMagic = "\x93NUMPY";
constexpr const char *numpy = "an array of NumPy, whose header is no tokens; its `tofile` writes tokens alone";

/// Whether all of this is UTF-8 without control characters that no text has. It may end inside a character.
bool isText(std::string_view body) {
  for (size_t i = 0; i < body.size();) {
    const auto lead = uint8_t(body[i]);
    const size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    constexpr std::string_view controls =
        "\t\n\v\f\r\b\x1b\x1a"; // the last two: of terminals, and of old ends of files
    if (length == 1 && (lead < 0x20 || lead == 0x7f) && controls.find(char(lead)) == std::string_view::npos)
      return false;
    if (length > 1 && (lead < 0xc2 || lead > 0xf4))
      return false;
    for (size_t j = i + 1; j < i + length && j < body.size(); ++j)
      if ((uint8_t(body[j]) & 0xc0) != 0x80)
        return false;
    i += length;
  }
  return true;
}

/// The kind of a binary file by its first bytes; empty for a text. Bytes of a binary file are no tokens unless the user
/// says so.
std::string binaryKind(std::string_view body) {
  constexpr std::pair<std::string_view, const char *> kinds[] = {{"PK\x03\x04", "a zip archive"},
                                                                 {"\x1f\x8b", "a gzip archive"},
                                                                 {"\x28\xb5\x2f\xfd", "a zstd archive"},
                                                                 {"PAR1", "a Parquet table"}};
  for (auto [begin, kind] : kinds)
    if (body.starts_with(begin))
      return kind;
  return isText(body.substr(0, sampleBytes)) ? "" : "neither UTF-8 text nor a token file of llm.c";
}

double readInt(const void *data, int64_t i) {
  int32_t value = 0;
  memcpy(&value, static_cast<const char *>(data) + i * int64_t(sizeof value), sizeof value);
  return value;
}
double readByte(const void *data, int64_t i) { return static_cast<const uint8_t *>(data)[i]; }

/// Of a column's type; null if columns have no such type.
SafeTensors::Reader columnReader(const std::string &type, bool isInt) {
  if (type == "I32" || type == "U8")
    return type == "U8" ? readByte : readInt;
  return isInt || type == "F64" ? nullptr : SafeTensors::readerOf(type);
}

} // namespace

std::string tokenPath(const std::string &data) { return widthSaid(data) ? data.substr(data.find(':') + 1) : data; }

Tokens::Tokens() = default;

Tokens::~Tokens() = default;

Status Tokens::open(const std::string &data, int64_t vocab, uint64_t seed, bool check,
                    const std::vector<ColumnSpec> &specs) {
  this->vocab = vocab;
  this->seed = seed;
  random = data == "random";
  std::string path = tokenPath(data);
  if (random) {
    for (const ColumnSpec &spec : specs)
      columns.push_back({spec.values(), spec.absent.value_or(0), spec.isGiven});
    return {};
  }
  if (std::string index = path + ".idx"; !widthSaid(data) && access(index.c_str(), F_OK) == 0) {
    PP_TRY(readMegatron(path));
  } else {
    PP_TRY(readFormat(path, widthSaid(data)));
  }
  if (dataset)
    PP_TRY(checkNames(path, !specs.empty()));
  for (const ColumnSpec &spec : specs)
    PP_TRY(readColumn(path, spec));
  if (check)
    PP_TRY(checkTokens(path));
  for (size_t number = 0; check && number < specs.size(); ++number)
    PP_TRY(checkColumn(path, specs[number], number));
  return {};
}

Status Tokens::checkTokens(const std::string &path) const {
  const float most = weighted ? std::numeric_limits<float>::max() : 1;
  for (int64_t i = 0; i < tokens; ++i)
    if (stored(i) < 0 || stored(i) >= vocab)
      return invalid("token ", i, " of `", path, "` is ", stored(i), "; the model's vocabulary has ", vocab, ", 0 to ",
                     vocab - 1);
  for (int64_t i = 0; counts && i < tokens; ++i)
    if (const float its = weighted ? weightOf(i) : float(uint8_t(counts[i])); !(its >= 0 && its <= most))
      return invalid("`counted` of `", path, "` has ", its, " at token ", i, "; expected ",
                     weighted ? "a weight of at least 0 that is finite" : "0 or 1");
  return {};
}

Status Tokens::map(const std::string &path) {
  PP_TRY(mapping.open(path, "data "));
  first = mapping.bytes().data();
  return {};
}

Status Tokens::readFormat(const std::string &path, int64_t tokenBytes) {
  if (!tokenBytes && path.ends_with(".safetensors"))
    return readDataset(path);
  PP_TRY(map(path));
  if (!tokenBytes)
    return readHeader(path);
  if (mapping.bytes().starts_with(numpyMagic))
    return invalid("data `", path, "` is ", numpy);
  const size_t mappedBytes = mapping.bytes().size();
  if (int64_t(mappedBytes) % tokenBytes != 0)
    return invalid("`", path, "` has ", mappedBytes, " bytes, which is no multiple of the ", tokenBytes,
                   " bytes of a token");
  width = tokenBytes;
  tokens = int64_t(mappedBytes) / width;
  return {};
}

Status Tokens::readDataset(const std::string &path) {
  dataset = std::make_unique<SafeTensors>();
  PP_TRY(dataset->open(path));
  auto found = dataset->tensors().find("tokens");
  if (found == dataset->tensors().end() || found->second.shape.size() != 1)
    return invalid("data `", path, "` has no `tokens` of one dimension");
  const FileTensor &tensor = found->second;
  if (tensor.type != "I32" && tensor.type != "U32" && tensor.type != "U16")
    return invalid("`tokens` of `", path, "` are ", tensor.type, "; expected I32, U32 or U16");
  width = tensor.type == "U16" ? 2 : 4;
  tokens = tensor.elements();
  first = dataset->data(tensor);
  PP_TRY(readDocuments(path));
  return readCounted(path);
}

/// What no program could read is a mistake, and so is a column for a model that knows of none.
Status Tokens::checkNames(const std::string &path, bool readsColumns) const {
  for (const auto &[name, tensor] : dataset->tensors()) {
    const bool isColumn = (tensor.shape.size() == 1 || tensor.shape.size() == 2) && tensor.shape[0] == tokens &&
                          columnReader(tensor.type, false);
    if (name == "tokens" || name == "documents" || name == "counted" || (isColumn && readsColumns))
      continue;
    if (!readsColumns)
      return invalid("data `", path, "` has `", name,
                     "`; a program can read `tokens`, `documents` and `counted`, and "
                     "columns that its model declares");
    return invalid("data `", path, "` has `", name, "`, ", tensor.type, " ", shapeText(tensor.shape),
                   "; beside `tokens`, `documents` and `counted` a dataset has columns, [", tokens, "] or [", tokens,
                   ", k] of type F32, BF16, F16, I32 or U8");
  }
  return {};
}

Status Tokens::readColumn(const std::string &path, const ColumnSpec &spec) {
  Column column = {spec.values(), spec.absent.value_or(0), spec.isGiven};
  const auto *known = dataset && !spec.isMade ? &dataset->tensors() : nullptr;
  auto found = known ? known->find(spec.name) : std::map<std::string, FileTensor>::const_iterator();
  if (!known || found == known->end()) {
    columns.push_back(column);
    std::string has;
    for (auto each = known ? known->begin() : found; known && each != known->end(); ++each)
      has += text(has.empty() ? "it has `" : ", `", each->first, "`");
    if (!spec.absent && !spec.isMade)
      return invalid("data `", path, "` has no column `", spec.name, "`, which the model reads; ",
                     known ? has : "it has tokens alone, and a .safetensors dataset may have columns");
    return {};
  }
  const FileTensor &tensor = found->second;
  std::vector<int64_t> shape = {tokens};
  if (spec.width > 0)
    shape.push_back(spec.width);
  column.read = columnReader(tensor.type, spec.isInt);
  column.bytes = {dataset->data(tensor), size_t(tensor.end - tensor.begin)};
  if (tensor.shape != shape || !column.read)
    return invalid("column `", spec.name, "` of `", path, "` is ", tensor.type, " ", shapeText(tensor.shape),
                   "; the model reads ", spec.isInt ? "ints" : "numbers", ", ", shapeText(shape), " of type ",
                   spec.isInt ? "I32 or U8" : "F32, BF16, F16, I32 or U8");
  columns.push_back(column);
  return {};
}

Status Tokens::checkColumn(const std::string &path, const ColumnSpec &spec, size_t number) const {
  const int64_t values = columns[number].values;
  for (int64_t i = 0; columns[number].read && i < tokens * values; ++i) {
    const double value = columns[number].read(columns[number].bytes.data(), i);
    const bool fits = spec.isInt ? value >= 0 && value < double(vocab) : std::isfinite(value);
    if (!fits && isCounted(i / values))
      return invalid("column `", spec.name, "` of `", path, "` has ", value, " at token ", i / values,
                     values > 1 ? text(", value ", i % values) : std::string(), "; expected ",
                     spec.isInt ? text("a token of the vocabulary, 0 to ", vocab - 1) : "a finite number");
  }
  return {};
}

Status Tokens::readDocuments(const std::string &path) {
  auto found = dataset->tensors().find("documents");
  if (found == dataset->tensors().end())
    return {};
  const FileTensor &tensor = found->second;
  if (tensor.type != "I64" || tensor.shape.size() != 1)
    return invalid("`documents` of `", path, "` are ", tensor.type, " of ", tensor.shape.size(),
                   " dimensions; expected I64 of one dimension");
  begins.resize(size_t(tensor.elements()));
  if (!begins.empty())
    memcpy(begins.data(), dataset->data(tensor), begins.size() * sizeof(int64_t));
  if (begins.size() < 2 || begins.front() != 0 || begins.back() != tokens)
    return invalid("`documents` of `", path, "` go from ", begins.empty() ? 0 : begins.front(), " to ",
                   begins.empty() ? 0 : begins.back(), "; expected 0 to ", tokens, ", the number of tokens");
  auto falls = std::adjacent_find(begins.begin(), begins.end(), std::greater<>());
  if (falls != begins.end())
    return invalid("`documents` of `", path, "` fall from ", falls[0], " to ", falls[1], " at document ",
                   falls - begins.begin());
  return {};
}

Status Tokens::readCounted(const std::string &path) {
  auto found = dataset->tensors().find("counted");
  if (found == dataset->tensors().end())
    return {};
  const FileTensor &tensor = found->second;
  weighted = tensor.type == "F32";
  if ((tensor.type != "U8" && !weighted) || tensor.shape.size() != 1 || tensor.elements() != tokens)
    return invalid("`counted` of `", path, "` are ", tensor.elements(), " values of type ", tensor.type, "; expected ",
                   tokens, " of type U8 or F32, one for each token");
  counts = dataset->data(tensor);
  return {};
}

/// PREFIX.idx: "MMIDIDX", two zeros, u64 version 1, u8 type of tokens, u64 sequences, u64 marks; i32 lengths of the
/// sequences, i64 offsets of the sequences, i64 marks, which say with which sequences documents begin (NVIDIA's
/// Megatron-LM, IndexedDataset).
Status Tokens::readMegatron(const std::string &prefix) {
  const std::string index = prefix + ".idx";
  constexpr int64_t headBytes = 34;
  PP_TRY(map(index));
  const char *bytes = first;
  const int64_t size = int64_t(mapping.bytes().size());
  if (size < headBytes || std::string_view(bytes, 9) != std::string_view("MMIDIDX\0\0", 9))
    return invalid("`", index, "` is no index of a Megatron dataset");
  auto number = [&](int64_t place) {
    int64_t out = 0;
    memcpy(&out, bytes + place, sizeof out);
    return out;
  };
  constexpr int64_t widths[] = {0, 1, 0, 2, 4, 8, 0, 0, 2}; // by the code of the type; the others have no tokens
  const auto code = size_t(uint8_t(bytes[17]));
  if (number(9) != 1 || code >= std::size(widths) || widths[code] == 0)
    return invalid("`", index, "` has version ", number(9), " and tokens of type ", code,
                   "; this program reads version 1 and the types 1, 3, 4, 5 and 8");
  const int64_t sequences = number(18), marks = number(26);
  if (sequences < 0 || sequences > size || marks < 0 || marks > size || size < headBytes + 12 * sequences + 8 * marks)
    return invalid("`", index, "` is truncated: it has ", size, " bytes for ", sequences, " sequences and ", marks,
                   " marks of documents");
  int64_t counted = 0;
  std::vector<int64_t> starts = {0}; // of the sequences
  for (int64_t i = 0; i < sequences; ++i) {
    int32_t length = 0;
    memcpy(&length, bytes + headBytes + 4 * i, sizeof length);
    int64_t offset = number(headBytes + 4 * sequences + 8 * i);
    if (length < 0 || offset != counted * widths[code])
      return invalid("sequence ", i, " of `", index, "` has ", length, " tokens from byte ", offset,
                     " on; expected byte ", counted * widths[code], ", right behind the sequence before");
    starts.push_back(counted += length);
  }
  for (int64_t i = 0; i < marks; ++i) {
    const int64_t mark = number(headBytes + 12 * sequences + 8 * i),
                  least = i ? number(headBytes + 12 * sequences + 8 * (i - 1)) : 0;
    if (mark < least || mark > sequences || (i == 0 && mark != 0) || (i + 1 == marks && mark != sequences))
      return invalid("mark ", i, " of `", index, "` is sequence ", mark, "; documents begin with sequences 0 to ",
                     sequences, ", in their order");
    begins.push_back(starts[size_t(mark)]);
  }
  PP_TRY(map(prefix + ".bin"));
  width = widths[code];
  tokens = counted;
  if (const size_t mappedBytes = mapping.bytes().size(); counted * width > int64_t(mappedBytes))
    return invalid("`", prefix, ".bin` is truncated: `", index, "` says ", counted, " tokens of ", width,
                   " bytes, the file has ", mappedBytes, " bytes");
  return {};
}

Status Tokens::readHeader(const std::string &path) {
  const size_t mappedBytes = mapping.bytes().size();
  int32_t header[3] = {};
  if (mappedBytes >= sizeof header)
    memcpy(header, first, sizeof header);
  for (const TokenFormat &format : formats) {
    if (header[0] != format.magic)
      continue;
    if (int64_t(mappedBytes) < headerBytes)
      return invalid("token file `", path, "` is truncated: ", mappedBytes, " bytes, its header alone has ",
                     headerBytes);
    if (header[1] != format.version)
      return invalid("token file `", path, "` has version ", header[1], "; this program reads version ",
                     format.version);
    tokens = header[2];
    width = format.width;
    int64_t expected = headerBytes + width * tokens;
    if (tokens < 0 || expected != int64_t(mappedBytes))
      return invalid("token file `", path, "` does not fit its header: ", tokens, " tokens need ", expected,
                     " bytes, the file has ", mappedBytes);
    first += headerBytes;
    return {};
  }
  tokens = int64_t(mappedBytes);
  if (mapping.bytes().starts_with(numpyMagic))
    return invalid("data `", path, "` is ", numpy);
  if (std::string kind = binaryKind(mapping.bytes()); !kind.empty())
    return invalid("data `", path, "` is ", kind, "; if it holds nothing but tokens, `u8:", path, "`, `u16:", path,
                   "` or `u32:", path, "` says how wide they are");
  return {};
}

int64_t Tokens::stored(int64_t position) const {
  uint64_t token = 0; // as everywhere in the runtime's files, the machine is little endian
  memcpy(&token, first + position * width, size_t(width));
  return int64_t(token);
}

int32_t Tokens::at(int64_t position) const {
  return int32_t(random ? hashOf(seed, uint64_t(position)) % uint64_t(vocab) : uint64_t(stored(position)));
}

float Tokens::weightOf(int64_t position) const {
  if (!weighted)
    return !counts || counts[position] != 0 ? 1 : 0;
  float weight = 0;
  memcpy(&weight, counts + position * int64_t(sizeof weight), sizeof weight);
  return weight;
}

/// The bytes that the program reads: the tokens, its columns, and with documents their begins and which tokens count.
std::vector<std::string_view> Tokens::contents(bool withDocuments) const {
  std::vector<std::string_view> all = {{first, size_t(tokens * width)}};
  if (withDocuments && !begins.empty())
    all.emplace_back(reinterpret_cast<const char *>(begins.data()), begins.size() * sizeof(int64_t));
  if (withDocuments && counts)
    all.emplace_back(counts, size_t(tokens) * (weighted ? sizeof(float) : 1));
  for (const Column &column : columns)
    if (column.read)
      all.push_back(column.bytes);
    else if (column.isGiven)
      all.emplace_back(reinterpret_cast<const char *>(&column.absent), sizeof column.absent);
  return all;
}

std::string Tokens::checksum(bool withDocuments) const {
  if (random)
    return "random";
  Checksum sum;
  for (std::string_view bytes : contents(withDocuments))
    sum.add(bytes.data(), bytes.size());
  return sum.text();
}

std::string Tokens::fingerprint(bool withDocuments) const {
  if (random)
    return "random";
  auto hash = uint64_t(tokens);
  for (std::string_view bytes : contents(withDocuments)) {
    hash = keyOf(hash, bytes.substr(0, sampleBytes));
    hash = keyOf(hash, bytes.substr(bytes.size() - std::min(bytes.size(), sampleBytes)));
  }
  char out[64];
  snprintf(out, sizeof out, "%lld tokens, %016llx", static_cast<long long>(tokens),
           static_cast<unsigned long long>(hash));
  return out;
}

} // namespace pp
