// Maps a text or a token file and walks it in order, with every size and every token checked before the first step.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Tokens.h"
#include "runtime/files/Random.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
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
int64_t widthSaid(const std::string &data) { return data.starts_with("u16:") ? 2 : data.starts_with("u32:") ? 4 : 0; }

/// What a file that is no text begins like, or nothing. A text has no byte 0; the files below may have none early on.
std::string binaryKind(std::string_view body) {
  constexpr std::pair<std::string_view, const char *> kinds[] = {{"\x93NUMPY", "an array of NumPy"},
                                                                 {"PK\x03\x04", "a zip archive"},
                                                                 {"\x1f\x8b", "a gzip archive"},
                                                                 {"\x28\xb5\x2f\xfd", "a zstd archive"},
                                                                 {"PAR1", "a Parquet table"}};
  for (auto [begin, kind] : kinds)
    if (body.starts_with(begin))
      return kind;
  return body.substr(0, sampleBytes).find('\0') == std::string_view::npos ? "" : "binary and no token file of llm.c";
}

} // namespace

std::string tokenPath(const std::string &data) { return widthSaid(data) ? data.substr(4) : data; }

Tokens::~Tokens() {
  if (mapping)
    munmap(mapping, mappedBytes);
}

Status Tokens::open(const std::string &data, int64_t sequence, int64_t vocab, uint64_t seed, bool check) {
  this->sequence = sequence;
  this->vocab = vocab;
  this->seed = seed;
  if ((random = data == "random"))
    return {};
  std::string path = tokenPath(data);
  int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return refused("cannot read data `", path, "`: ", strerror(errno));
  struct stat info;
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(file);
    return refused("cannot read data `", path, "`: it is not a regular file");
  }
  mappedBytes = size_t(info.st_size);
  if (mappedBytes > 0) {
    mapping = mmap(nullptr, mappedBytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapping == MAP_FAILED)
      mapping = nullptr;
  }
  int error = errno;
  close(file);
  if (mappedBytes > 0 && !mapping)
    return refused("cannot map data `", path, "`: ", strerror(error));
  return readFormat(path, widthSaid(data), check);
}

Status Tokens::readFormat(const std::string &path, int64_t tokenBytes, bool check) {
  first = static_cast<const char *>(mapping);
  if (tokenBytes) {
    if (int64_t(mappedBytes) % tokenBytes != 0)
      return invalid("`", path, "` has ", mappedBytes, " bytes, which is no multiple of the ", tokenBytes,
                     " bytes of a token");
    width = tokenBytes;
    tokens = int64_t(mappedBytes) / width;
  } else {
    PP_TRY(readHeader(path));
  }
  if (tokens < sequence + 1)
    return invalid("data `", path, "` has ", tokens, " tokens; one sequence of ", sequence, " needs ", sequence + 1);
  for (int64_t i = 0; check && i < tokens; ++i)
    if (at(i) >= vocab)
      return invalid("token ", i, " of `", path, "` is ", at(i), "; the model's vocabulary has ", vocab, ", 0 to ",
                     vocab - 1);
  return {};
}

Status Tokens::readHeader(const std::string &path) {
  int32_t header[3] = {};
  if (mappedBytes >= sizeof header)
    memcpy(header, mapping, sizeof header);
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
  if (std::string kind = binaryKind({first, mappedBytes}); !kind.empty())
    return invalid("data `", path, "` is ", kind, "; if it holds nothing but tokens, `u16:", path, "` or `u32:", path,
                   "` says how wide they are");
  return {};
}

int64_t Tokens::at(int64_t position) const {
  uint32_t token = 0; // as everywhere in the runtime's files, the machine is little endian
  memcpy(&token, first + position * width, size_t(width));
  return token;
}

void Tokens::read(int64_t n, bool targets, int32_t *out, int64_t from, int64_t count) const {
  count = count < 0 ? sequence - from : count;
  from += targets;
  if (random) {
    uint64_t begin = uint64_t(n) * uint64_t(sequence + 1) + uint64_t(from);
    for (int64_t i = 0; i < count; ++i)
      out[i] = int32_t(hashOf(seed, begin + uint64_t(i)) % uint64_t(vocab));
    return;
  }
  int64_t start = (n + windows()) % windows() * sequence + from;
  for (int64_t i = 0; i < count; ++i)
    out[i] = int32_t(at(start + i));
}

} // namespace pp
