// Several files of data with weights, read as one: which file each row of a run is from, and which of its rows it is.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   weights 3, 2, 1      a b c a b a | a b c a b a | ..      row n of the run; each file's rows come in their own order
//
// The next row is from the file that is farthest behind its weight, of equal ones the first. So after any number of
// rows each file has its share to within a row or so, and nothing is random: a run that resumes needs the row's number.
#ifndef PP_RUNTIME_TRAINER_MIXTURE_H
#define PP_RUNTIME_TRAINER_MIXTURE_H

#include "runtime/files/Rows.h"

namespace pp {

/// A line of a mixture: what `--data` could name, and its weight in millionths.
struct MixedFile {
  std::string data;
  int64_t weight;
};

/// `mix:FILE`.
[[nodiscard]] bool isMixture(const std::string &data);
/// The lines of `mix:FILE`; names are relative to its folder. Any other data is a mixture of itself alone.
Status readMixture(const std::string &data, std::vector<MixedFile> &files);

class Mixture {
public:
  Status open(const std::string &data, int64_t vocab, uint64_t seed, bool check);
  /// Says how all files are cut into rows.
  Status cut(int64_t length, Packing packing, int32_t pad);
  /// From now on each file has an order of its own; the first one that of this seed.
  void shuffle(uint64_t seed);

  [[nodiscard]] bool isOne() const { return sources.size() == 1; }
  /// The first file, which is all of it where `isOne`.
  [[nodiscard]] const Tokens &tokens() const { return sources.front().tokens; }
  [[nodiscard]] Rows &rows() { return sources.front().rows; }
  /// Each file's next row at row `n` of the run; and a run that begins there, in the order in which weights begin.
  [[nodiscard]] std::vector<Rows::Place> placesAt(int64_t n);
  void startAt(const std::vector<Rows::Place> &places);
  [[nodiscard]] bool hasCounted() const;
  /// Whether all files have documents; some do and some do not: false, and an error where `isAsked`.
  Status findDocuments(bool isAsked, bool &all) const;
  [[nodiscard]] std::string fingerprint(bool withDocuments) const;
  /// A line for each file: its tokens, its share of the rows, and after how many steps it has been read once.
  [[nodiscard]] std::string describe(int64_t rowsPerStep);

  /// As of Rows.
  void cover(int64_t begin, int64_t end);
  void read(int64_t n, Rows::What what, int32_t *out, int64_t from = 0, int64_t count = -1, int64_t ahead = 0) const;
  [[nodiscard]] int64_t counted(int64_t n, int64_t ahead) const;
  [[nodiscard]] int64_t filled(int64_t n) const;

private:
  struct Source {
    std::string data;
    int64_t weight = 1; ///< without what all weights have as a factor
    Tokens tokens;
    Rows rows;
    int64_t credit = 0,
            drawn = 0; ///< weight times the rows of the run, less total times `drawn`; its rows before `next`
  };
  struct Place {
    size_t source;
    int64_t row;
  };
  [[nodiscard]] Place placeOf(int64_t n) const { return isOne() ? Place{0, n} : places[size_t(n - first)]; }
  void restart(int64_t row);

  std::deque<Source> sources;
  int64_t total = 1; ///< of the weights: after so many rows all begins again
  std::deque<Place> places;
  int64_t first = 0, next = 0; ///< the rows of the run whose places are known
};

} // namespace pp

#endif // PP_RUNTIME_TRAINER_MIXTURE_H
