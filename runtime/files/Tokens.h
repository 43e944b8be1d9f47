// The training text as a stream of tokens, and the same batch for a step whatever the schedule and the ranks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TOKENS_H
#define PP_RUNTIME_TOKENS_H

#include "runtime/Status.h"
#include <cstdint>
#include <string>

namespace pp {

class Tokens {
public:
  Tokens() = default;
  ~Tokens();
  Tokens(const Tokens &) = delete;
  Tokens &operator=(const Tokens &) = delete;

  /// Opens a text (bytes are tokens) or a token file with llm.c's header: 256 int32 (magic 20240520, version 1, count),
  /// then uint16 tokens. `random`: tokens from the seed. With `check` every token is held against the vocabulary.
  Status open(const std::string &path, int64_t sequence, int64_t vocab, uint64_t seed, bool check);

  /// Writes sequence number `n` of the run, or `count` tokens of it from `first` on; one token later for targets.
  /// Number -1 is the last one of the stream.
  void read(int64_t n, bool targets, int32_t *out, int64_t first = 0, int64_t count = -1) const;

  [[nodiscard]] int64_t count() const { return tokens; }
  /// Sequences before the stream begins again; 0: it never does.
  [[nodiscard]] int64_t windows() const { return random ? 0 : (tokens - 1) / sequence; }

private:
  Status readHeader(const std::string &path, bool check);
  [[nodiscard]] int32_t at(int64_t position) const;

  int64_t sequence = 1, vocab = 1, tokens = 0;
  uint64_t seed = 0;
  bool random = false;
  void *mapping = nullptr;
  size_t mappedBytes = 0;
  const uint8_t *bytes = nullptr;  ///< of a text
  const uint16_t *words = nullptr; ///< of a token file
};

} // namespace pp

#endif // PP_RUNTIME_TOKENS_H
