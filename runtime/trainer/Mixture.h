// Several files of data with weights, read as one: which file each row of a run is from, and which of its rows it is.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   weights 3, 2, 1      a b c a b a | a b c a b a | ..      row n of the run; each file's rows come in their own order
//
// The next row is from the file that is farthest behind its weight, of equal ones the first. So after any number of
// rows each file has its share to within a row or so, and nothing is random: a run that resumes needs the row's number.
// Weights may change at steps: each stage between two such steps begins as a run does, but files go on.
#ifndef PP_RUNTIME_TRAINER_MIXTURE_H
#define PP_RUNTIME_TRAINER_MIXTURE_H

#include "runtime/files/Rows.h"
#include <map>

namespace pp {

/// A line of a mixture: what `--data` could name, and its weights in millionths, each by the first step that has it.
struct MixedFile {
  std::string data;
  std::map<int64_t, int64_t> weights;
};

/// `mix:FILE`.
[[nodiscard]] bool isMixture(const std::string &data);
/// The lines of `mix:FILE`; names are relative to its folder. Any other data is a mixture of itself alone.
Status readMixture(const std::string &data, std::vector<MixedFile> &files);

class Mixture {
public:
  Status open(const std::string &data, int64_t vocab, uint64_t seed, bool check,
              const std::vector<ColumnSpec> &columns = {});
  /// Says how all files are cut into rows.
  Status cut(int64_t length, Packing packing, int32_t pad, int64_t group);
  /// From now on each file has its own random order; the first file has the order of this seed.
  void shuffle(uint64_t seed);

  [[nodiscard]] bool isOne() const { return sources.size() == 1; }
  /// The first file, which is all of it where `isOne`.
  [[nodiscard]] const Tokens &tokens() const { return sources.front().tokens; }
  [[nodiscard]] Rows &rows() { return sources.front().rows; }
  /// Each file's next row at row `n` of the run; and a run of so many rows a step that begins there behind `step`.
  [[nodiscard]] std::vector<Rows::Place> placesAt(int64_t n);
  void startAt(const std::vector<Rows::Place> &places, int64_t step, int64_t rowsPerStep);
  [[nodiscard]] bool hasCounted() const;
  [[nodiscard]] bool hasWeights() const;
  /// Whether all files have documents; some do and some do not: false, and an error where `isAsked`.
  Status findDocuments(bool isAsked, bool &all) const;
  [[nodiscard]] std::string fingerprint(bool withDocuments) const;
  /// Of all files, as of Tokens.
  [[nodiscard]] std::string checksum(bool withDocuments) const;
  /// A line for each file and stage: its tokens, its share of the rows, and after how many steps it has been read once.
  [[nodiscard]] std::string describe(int64_t rowsPerStep);

  /// As of Rows.
  void cover(int64_t begin, int64_t end);
  void read(int64_t n, Rows::What what, int32_t *out, int64_t from = 0, int64_t count = -1, int64_t ahead = 0) const;
  void readColumn(int64_t n, size_t column, double *out, int64_t from, int64_t count) const;
  [[nodiscard]] double columnSum(int64_t n, size_t column) const;
  [[nodiscard]] int64_t documentsOf(int64_t n) const;
  [[nodiscard]] int64_t groupsOf(int64_t n) const;
  [[nodiscard]] Counted counted(int64_t n, int64_t ahead) const;
  [[nodiscard]] int64_t filled(int64_t n) const;

private:
  struct Source {
    std::string data;
    Tokens tokens;
    Rows rows;
    int64_t credit = 0,
            drawn = 0; ///< weight times rows of the stage, less total times those drawn; its rows before `next`
  };
  /// Steps with the same weights.
  struct Stage {
    int64_t step;                 ///< the first one
    std::vector<int64_t> weights; ///< of the sources, without what all of them have as a factor
    int64_t total = 0;            ///< of the weights: after so many rows all begins again
    int64_t row = 0;              ///< the first row
    std::vector<int64_t> drawn;   ///< rows of each source before that; empty: not known yet
  };
  struct Place {
    size_t source;
    int64_t row;
  };
  [[nodiscard]] Place placeOf(int64_t n) const { return isOne() ? Place{0, n} : places[size_t(n - first)]; }
  /// The rows of the file that row `n` is of, and which of them it is.
  [[nodiscard]] std::pair<const Rows &, int64_t> rowOf(int64_t n) const;
  Status openStages(const std::string &data, const std::vector<MixedFile> &files);
  [[nodiscard]] size_t stageOf(int64_t row) const;
  void enter(size_t its);
  void restart(int64_t row);
  [[nodiscard]] std::string shareOf(size_t source) const;
  size_t draw();

  std::deque<Source> sources;
  std::vector<Stage> stages;
  size_t stage = 0; ///< of `next`
  std::deque<Place> places;
  int64_t first = 0, next = 0; ///< the rows of the run whose places are known
};

} // namespace pp

#endif // PP_RUNTIME_TRAINER_MIXTURE_H
