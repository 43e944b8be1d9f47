// The rows that a run reads: documents packed in the order of each epoch, the same whatever the schedule and the ranks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   stream   |t0 .. t7|t8 .. t15|..        rows one after the other; what does not fill the last one is left out
//   split    |aaabbbbb|bbcccccc|c.......   documents one after the other; one that does not fit goes on in the next row
//   whole    |aaa.....|bbbbbbb.|ccccccc.   one that does not fit begins a row; longer ones than a row are cut in pieces
//   groups   |aaabb...|cccddd..|eef.....   whole, and so many documents of the file stay together: here two
#ifndef PP_RUNTIME_FILES_ROWS_H
#define PP_RUNTIME_FILES_ROWS_H

#include "runtime/files/Tokens.h"
#include <deque>
#include <optional>

namespace pp {

inline constexpr int64_t mostSteps = 1000000000; ///< of a run, and so of all options that count steps

enum class Packing : uint8_t { Stream, Whole, Split };
/// `stream`, `whole`, `split`.
[[nodiscard]] const char *nameOf(Packing packing);

/// The number of targets that count, and the sum of their weights (the same number if the data have none).
struct Counted {
  int64_t targets = 0;
  double weights = 0;
  Counted &operator+=(const Counted &other) {
    targets += other.targets, weights += other.weights;
    return *this;
  }
};

class Rows {
public:
  /// Rows of `length` tokens of a file that stays open; `pad` fills what is left of a row. Of documents packed whole
  /// `group` at a time stay together; a group that is longer than a row is an error.
  Status open(const Tokens &tokens, const std::string &path, int64_t length, Packing packing, int32_t pad = 0,
              int64_t group = 1);
  /// From now on this seed orders the documents, or the rows of a stream, in each epoch.
  void shuffle(uint64_t seed) { order = seed; }
  /// The begin of a row: a token of the document or group that is `document`-th in the order of its epoch. In a stream
  /// it is a token of the file; in a shuffled stream, the number of tokens in the rows before it in the epoch.
  struct Place {
    int64_t epoch = 0, document = 0, token = 0;
    bool operator==(const Place &) const = default;
  };
  /// Row 0 begins here, and not with the data. A place that these data do not have is the begin of the next epoch.
  void startAt(const Place &place);
  [[nodiscard]] Place placeOf(int64_t row);
  /// Rows from number `rows` on are empty.
  void endAt(int64_t rows) { last = rows; }

  /// Rows up to the end of epoch number `epochs`; INT64_MAX: surely more than `most`, or as many documents to pack.
  [[nodiscard]] int64_t rowsOf(int64_t epochs, int64_t most = INT64_MAX) const;
  /// Rows of one epoch, from its begin on.
  [[nodiscard]] int64_t rowsPerEpoch() const;
  /// Makes ready to read the rows from `begin` on, before `end`. To go back costs all epochs before.
  void cover(int64_t begin, int64_t end);

  /// What is read of a row, for each of its tokens.
  enum class What : uint8_t {
    Tokens,  ///< the token
    Targets, ///< the next one of its document, or -100 where that does not count
    Starts,  ///< the place of the row where its document begins
    Before,  ///< the token of the row that stands before this one in a stream
    Filled,  ///< 1, and 0 where there is no token
    Weights, ///< the bits of its target's weight, an f32, and 0 where there is no target
    Groups,  ///< the place of the row where the group of its document begins
    Members, ///< which document of its group it is of, from 0 on
  };
  /// Writes row `n`, or `count` places of it from `from` on. `ahead`: of tokens, targets and weights those so many
  /// places on in their document, as far as the row has them; else the pad token, -100 and 0.
  void read(int64_t n, What what, int32_t *out, int64_t from = 0, int64_t count = -1, int64_t ahead = 0) const;
  /// Writes what a column has for the targets of row `n`, or of `count` places of it from `from` on; 0 where there is
  /// none that counts.
  void readColumn(int64_t n, size_t column, double *out, int64_t from, int64_t count) const;
  /// For each place of row `n` whose target counts, writes the place's number to `ofTokens`, where the file has the
  /// target.
  void scatter(int64_t n, const float *numbers, float *ofTokens) const;
  /// The sum of a column with one value for each token, times the weight, over the targets of row `n` that count.
  [[nodiscard]] double columnSum(int64_t n, size_t column) const;
  /// The number of documents of row `n` that have a target that counts.
  [[nodiscard]] int64_t documentsOf(int64_t n) const;
  [[nodiscard]] int64_t groupsOf(int64_t n) const;
  /// The targets of row `n` that count; `ahead`: of those so many places on.
  [[nodiscard]] Counted counted(int64_t n, int64_t ahead = 0) const;
  /// The number of tokens in row `n`.
  [[nodiscard]] int64_t filled(int64_t n) const;

private:
  /// Tokens of one document that stand side by side in a row.
  struct Piece {
    int64_t begin;
    uint32_t length;
    uint32_t column : 31, goesOn : 1; ///< where in its row; whether the next token is of the same document
  };
  struct Epoch {
    int64_t number = 0, firstRow = 0;
    std::vector<Piece> pieces;
    std::vector<size_t> rows; ///< the first piece of each row, and the number of pieces
    [[nodiscard]] int64_t end() const { return firstRow + int64_t(rows.size()) - 1; }
  };
  [[nodiscard]] Epoch pack(int64_t number, int64_t firstRow) const;
  /// Calls `use(piece)` for the pieces of a row.
  template <class Use> void forPieces(int64_t n, Use use) const;
  /// Calls `use(place of the row, target)` for those of these places whose target counts.
  template <class Use> void forTargets(int64_t n, int64_t from, int64_t count, Use use) const;
  /// The number of rows in a stream's epoch that has row 0.
  [[nodiscard]] int64_t firstWindows() const;
  [[nodiscard]] Place placeOfWindow(int64_t n) const;
  [[nodiscard]] Piece window(int64_t n, bool before) const;
  /// Which token the target of the one at `place` of the piece is; -1: there is none that counts.
  [[nodiscard]] int64_t targetOf(const Piece &piece, int64_t place) const;
  [[nodiscard]] bool hasTarget(const Piece &piece) const;
  /// The number of the group that the piece's document is of, and which document of the group it is.
  struct Member {
    int64_t group = 0, number = 0;
  };
  [[nodiscard]] Member memberOf(const Piece &piece) const;

  const Tokens *tokens = nullptr;
  int64_t length = 1;
  Packing packing = Packing::Stream;
  int32_t pad = 0;
  int64_t group = 1;
  std::optional<uint64_t> order;
  Place start;
  int64_t last = INT64_MAX;
  int64_t windows = 0;      ///< rows of a stream before it begins again; 0: it never does
  int64_t nextEpoch = 0;    ///< the first one that is not packed yet
  std::deque<Epoch> packed; ///< those that are read now
};

/// Tokens of a row, and rows of a step.
struct StepShape {
  int64_t sequence = 0, rows = 0;
};

/// The begin of the steps of this shape: what the run read before in steps of other shapes, and its place in the data.
/// All numbers are 0 if there were no such steps.
struct ShapeBegin {
  int64_t step = 0, rows = 0, tokens = 0;
  std::vector<Rows::Place> data; ///< of each of its files
  Rows::Place source;            ///< of the encoder's own
};

} // namespace pp

#endif // PP_RUNTIME_FILES_ROWS_H
