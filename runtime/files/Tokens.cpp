// Maps a text or a token file and walks it in order, with every size and every token checked before the first step.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Tokens.h"
#include "runtime/files/Random.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace pp {
namespace {

constexpr int32_t tokenMagic = 20240520;
constexpr int64_t headerBytes = 256 * 4;

} // namespace

Tokens::~Tokens() {
  if (mapping)
    munmap(mapping, mappedBytes);
}

Status Tokens::open(const std::string &path, int64_t sequence, int64_t vocab, uint64_t seed, bool check) {
  this->sequence = sequence;
  this->vocab = vocab;
  this->seed = seed;
  if ((random = path == "random"))
    return {};
  int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return refused("cannot read data `", path, "`: ", strerror(errno));
  struct stat info;
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(file);
    return refused("cannot read data `", path, "`: it is no regular file");
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
  return readHeader(path, check);
}

Status Tokens::readHeader(const std::string &path, bool check) {
  int32_t header[3] = {};
  if (mappedBytes >= sizeof header)
    memcpy(header, mapping, sizeof header);
  if (header[0] == tokenMagic) {
    if (int64_t(mappedBytes) < headerBytes)
      return invalid("token file `", path, "` is truncated: ", mappedBytes, " bytes, its header alone has ",
                     headerBytes);
    if (header[1] != 1)
      return invalid("token file `", path, "` has version ", header[1], "; this program reads version 1");
    tokens = header[2];
    int64_t expected = headerBytes + 2 * tokens;
    if (tokens < 0 || expected != int64_t(mappedBytes))
      return invalid("token file `", path, "` does not fit its header: ", tokens, " tokens need ", expected,
                     " bytes, the file has ", mappedBytes);
    words = reinterpret_cast<const uint16_t *>(static_cast<const char *>(mapping) + headerBytes);
  } else {
    tokens = int64_t(mappedBytes);
    bytes = static_cast<const uint8_t *>(mapping);
  }
  if (tokens < sequence + 1)
    return invalid("data `", path, "` has ", tokens, " tokens; one sequence of ", sequence, " needs ", sequence + 1);
  for (int64_t i = 0; check && i < tokens; ++i)
    if (at(i) >= vocab)
      return invalid("token ", i, " of `", path, "` is ", at(i), "; the model's vocabulary has ", vocab, ", 0 to ",
                     vocab - 1);
  return {};
}

int32_t Tokens::at(int64_t position) const { return words ? words[position] : bytes[position]; }

void Tokens::read(int64_t n, bool targets, int32_t *out, int64_t first, int64_t count) const {
  count = count < 0 ? sequence - first : count;
  first += targets;
  if (random) {
    uint64_t begin = uint64_t(n) * uint64_t(sequence + 1) + uint64_t(first);
    for (int64_t i = 0; i < count; ++i)
      out[i] = int32_t(hashOf(seed, begin + uint64_t(i)) % uint64_t(vocab));
    return;
  }
  int64_t start = (n + windows()) % windows() * sequence + first;
  for (int64_t i = 0; i < count; ++i)
    out[i] = at(start + i);
}

} // namespace pp
