// The training text as a stream of tokens, and the same batch for a step whatever the schedule and the ranks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_TOKENS_H
#define PP_RUNTIME_FILES_TOKENS_H

#include "runtime/Status.h"
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace pp {

class SafeTensors;

class Tokens {
public:
  Tokens();
  ~Tokens();
  Tokens(const Tokens &) = delete;
  Tokens &operator=(const Tokens &) = delete;

  /// Opens a text (bytes are tokens), a token file of llm.c, or with `u16:` or `u32:` before its name a file of nothing
  /// but tokens. llm.c's header has 256 int32: 20240520, 1 and the count before u16 tokens; 20240801, 7 and the count
  /// before u32. A name PREFIX for which there is a PREFIX.idx is a dataset of Megatron; its documents follow each
  /// other. A .safetensors file has one tensor, `tokens`, of type I32, U32 or U16. `random`: tokens from the seed. With
  /// `check` every token is held against the vocabulary.
  Status open(const std::string &path, int64_t sequence, int64_t vocab, uint64_t seed, bool check);

  /// From now on the sequences of each epoch come in an order of this seed.
  void shuffle(uint64_t seed) { order = seed; }

  /// What of sequence n is read: its tokens, one token later, or the sequence that stands before it in the stream.
  enum class What : uint8_t { Sequence, Targets, Before };
  /// Writes sequence number `n` of the run, or `count` tokens of it from `from` on.
  void read(int64_t n, What what, int32_t *out, int64_t from = 0, int64_t count = -1) const;

  /// What tells these tokens from others: their number, and a hash of the first and the last of them.
  [[nodiscard]] std::string fingerprint() const;

  [[nodiscard]] int64_t count() const { return tokens; }
  /// Sequences before the stream begins again; 0: it never does.
  [[nodiscard]] int64_t windows() const { return random ? 0 : (tokens - 1) / sequence; }

private:
  Status readFormat(const std::string &path, int64_t tokenBytes);
  Status readHeader(const std::string &path);
  Status readMegatron(const std::string &prefix);
  Status readDataset(const std::string &path);
  Status map(const std::string &path);
  [[nodiscard]] int64_t at(int64_t position) const;

  int64_t sequence = 1, vocab = 1, tokens = 0;
  uint64_t seed = 0;
  bool random = false;
  void *mapping = nullptr;
  size_t mappedBytes = 0;
  const char *first = nullptr; ///< the first token
  int64_t width = 1;           ///< bytes of a token
  std::optional<uint64_t> order;
  std::unique_ptr<SafeTensors> dataset;
};

/// The file that `--data` names: without `u16:` or `u32:`, which say what it holds.
[[nodiscard]] std::string tokenPath(const std::string &data);

} // namespace pp

#endif // PP_RUNTIME_FILES_TOKENS_H
