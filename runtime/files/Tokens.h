// The tokens of a file, the documents that they make, which of them count as targets, and columns beside them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_FILES_TOKENS_H
#define PP_RUNTIME_FILES_TOKENS_H

#include "runtime/Program.h"
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
  /// the number of tokens, and `counted` U8, 1 for a token that counts as a target, or F32, its weight as one. What
  /// else it has are columns, [tokens] or [tokens, k].
  /// `random`: tokens from the seed. With `check` every token is held against the vocabulary, and so are ints of these
  /// columns where the token counts; their numbers must be finite there.
  Status open(const std::string &path, int64_t vocab, uint64_t seed, bool check,
              const std::vector<ColumnSpec> &columns = {});

  /// A text that identifies these tokens: their number, and a hash of the first and last ones. If the program reads
  /// documents, the hash has the first and last begins of documents, too, and which tokens count; and columns that it
  /// reads.
  [[nodiscard]] std::string fingerprint(bool withDocuments) const;
  /// A checksum of all that the fingerprint samples.
  [[nodiscard]] std::string checksum(bool withDocuments) const;

  [[nodiscard]] int64_t count() const { return tokens; }
  /// The .safetensors file that they are of; null: another one.
  [[nodiscard]] const SafeTensors *file() const { return dataset.get(); }
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
  /// Values of a token in the column with this number.
  [[nodiscard]] int64_t valuesOf(size_t column) const { return columns[column].values; }
  [[nodiscard]] double valueOf(size_t column, int64_t position, int64_t value) const {
    const Column &its = columns[column];
    return its.read ? its.read(its.bytes.data(), position * its.values + value) : its.absent;
  }

private:
  struct Column {
    int64_t values;
    double absent = 0;                          ///< the value of all tokens, where there is no `read`
    bool isGiven = false;                       ///< by the command line: another value makes other data
    double (*read)(const void *, int64_t) = {}; ///< of an element
    std::string_view bytes = {};
  };
  Status readFormat(const std::string &path, int64_t tokenBytes);
  Status readHeader(const std::string &path);
  Status readMegatron(const std::string &prefix);
  Status readDataset(const std::string &path);
  Status map(const std::string &path);
  Status readDocuments(const std::string &path);
  Status readCounted(const std::string &path);
  Status checkNames(const std::string &path, bool readsColumns) const;
  Status readColumn(const std::string &path, const ColumnSpec &spec);
  Status checkColumn(const std::string &path, const ColumnSpec &spec, size_t number) const;
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
  std::vector<Column> columns;
};

/// The file that `--data` names: without `u8:`, `u16:` or `u32:`, which say what it holds.
[[nodiscard]] std::string tokenPath(const std::string &data);

} // namespace pp

#endif // PP_RUNTIME_FILES_TOKENS_H
