// The tokens of a file, the documents that they make, and which of them count as targets.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_TOKENS_H
#define PP_RUNTIME_FILES_TOKENS_H

#include "runtime/files/Mapping.h"
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pp {

class SafeTensors;

class Tokens {
public:
  Tokens();
  ~Tokens();
  Tokens(const Tokens &) = delete;
  Tokens &operator=(const Tokens &) = delete;

  /// Opens a text (UTF-8, whose bytes are tokens), a token file of llm.c, or with `u8:`, `u16:` or `u32:` before its
  /// name a file of nothing but tokens. llm.c's header has 256 int32: 20240520, 1 and the count before u16 tokens;
  /// 20240801, 7 and the count before u32. A name PREFIX for which there is a PREFIX.idx is a dataset of Megatron. A
  /// .safetensors file has `tokens` of type I32, U32 or U16; it may have `documents` I64, where each begins and at last
  /// the number of tokens, and `counted` U8, 1 for a token that counts as a target, or F32, its weight as one.
  /// `random`: tokens from the seed. With `check` every token is held against the vocabulary.
  Status open(const std::string &path, int64_t vocab, uint64_t seed, bool check);

  /// A text that identifies these tokens: their number, and a hash of the first and last ones. If the program reads
  /// documents, the hash has the first and last begins of documents, too, and which tokens count.
  [[nodiscard]] std::string fingerprint(bool withDocuments) const;
  /// A checksum of all that the fingerprint samples.
  [[nodiscard]] std::string checksum(bool withDocuments) const;

  [[nodiscard]] int64_t count() const { return tokens; }
  [[nodiscard]] bool isRandom() const { return random; }
  /// The token at this position; random ones have no last position.
  [[nodiscard]] int32_t at(int64_t position) const;
  /// The begins of the documents, and the number of tokens; empty if the file has no documents.
  [[nodiscard]] const std::vector<int64_t> &documents() const { return begins; }
  [[nodiscard]] bool hasCounted() const { return counts; }
  /// Tokens count by weights.
  [[nodiscard]] bool hasWeights() const { return weighted; }
  [[nodiscard]] bool isCounted(int64_t position) const { return weightOf(position) != 0; }
  /// The factor of the token's loss if the token is a target.
  [[nodiscard]] float weightOf(int64_t position) const;

private:
  Status readFormat(const std::string &path, int64_t tokenBytes);
  Status readHeader(const std::string &path);
  Status readMegatron(const std::string &prefix);
  Status readDataset(const std::string &path);
  Status map(const std::string &path);
  Status readDocuments(const std::string &path);
  Status readCounted(const std::string &path);
  Status checkTokens(const std::string &path) const;
  [[nodiscard]] int64_t stored(int64_t position) const;
  [[nodiscard]] std::vector<std::string_view> contents(bool withDocuments) const;

  int64_t vocab = 1, tokens = 0;
  uint64_t seed = 0;
  bool random = false;
  Mapping mapping;
  const char *first = nullptr; ///< the first token
  int64_t width = 1;           ///< bytes of a token
  std::vector<int64_t> begins;
  const char *counts = nullptr; ///< of each token; null: all count
  bool weighted = false;        ///< they are F32
  std::unique_ptr<SafeTensors> dataset;
};

/// The file that `--data` names: without `u8:`, `u16:` or `u32:`, which say what it holds.
[[nodiscard]] std::string tokenPath(const std::string &data);

} // namespace pp

#endif // PP_RUNTIME_FILES_TOKENS_H
