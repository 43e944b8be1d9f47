// What each step of a run reads: the rows of its microbatches, and the number of targets that its loss is divided by.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Of D replicas row b of microbatch i of the k-th has number (((t - 1) * microbatches + i) * D + k) * batch + b in step
// t, whatever the schedule: as if there were one replica with D times the rows. Every rank counts the targets of a step
// by itself, before the step: units of its first microbatch may run long before another rank reads the last one.
// Devices along `context` read two runs of each row: the k-th of them from its begin and the k-th from its end.
#ifndef PP_RUNTIME_TRAINER_STEPINPUTS_H
#define PP_RUNTIME_TRAINER_STEPINPUTS_H

#include "runtime/Program.h"
#include "runtime/Rank.h"
#include "runtime/trainer/Mixture.h"
#include <array>

namespace pp {

class Device;
class SafeTensorsWriter;
struct FileTensor;

/// The number (runtime/Rank.h) of what the op of a loss divides by: 0 for a cross-entropy. -1: the op is not of a loss.
[[nodiscard]] int64_t divisorOf(const OpSpec &op);

class StepInputs {
public:
  StepInputs(const Program &whole, int32_t device)
      : whole(whole), replica(whole.mesh.coordinate(device, Axis::Data)),
        context(whole.mesh.coordinate(device, Axis::Context)), counts(whole.documents) {}

  /// Opens `data`, and for an encoder `source`, if they are not empty. Absent: documents are packed whole, where the
  /// program and the data know of them.
  Status open(const std::string &data, const std::string &source, uint64_t seed, std::optional<Packing> packing,
              bool check);
  /// From now on each epoch has a random order by this seed.
  Status shuffle(uint64_t seed);
  /// The run goes on behind `step`, which `before` says where to find. If steps had another shape until then, `before`
  /// is from now on where those of this shape begin.
  Status goOn(int64_t step, const std::optional<StepShape> &was, ShapeBegin &before);
  /// The last step of those that it takes to read the data so often; what is left of the last one is empty where the
  /// program reads documents, and else the begin of the next epoch.
  Status endAfter(int64_t epochs, int64_t &last);

  /// The number of steps that read the data once, in its order; the rest of the last one is empty. Targets are counted
  /// even if the program does not divide by them.
  [[nodiscard]] int64_t readOnce();

  /// Makes a step ready: rows, and how many targets count and how many tokens there are in each of its updates.
  void begin(int64_t step);
  /// The factor of the routers' losses for each token. An update without targets trains nothing.
  [[nodiscard]] double perToken(int64_t update) const {
    return weights[size_t(update)] > 0 ? 1 / double(tokens[size_t(update)]) : 0;
  }
  /// Tokens of the step.
  [[nodiscard]] int64_t filled() const;
  /// The divisor of an update's loss: the weights of its targets, or 1 if no target counts.
  [[nodiscard]] double divisor(int64_t update) const { return notZero(weights[size_t(update)]); }
  /// Sums of weights, by update of the step.
  [[nodiscard]] const std::vector<double> &weightsOfUpdates() const { return weights; }
  /// The same of losses over targets some places further on, as far as `specs` have such; update -1: of the whole step.
  void setFurther(const std::vector<InputSpec> &specs, int64_t update, OptimizerScalars &scalars);
  /// The same of a step that evaluates, where no update cuts it.
  [[nodiscard]] double divisor() const { return notZero(weight()); }
  /// The divisor of the loss of a step that evaluates.
  [[nodiscard]] double lossDivisor() const {
    return whole.documents ? divisor() : double(whole.sequencesPerStep() * whole.sequence);
  }
  /// The divisor with this number, from divisorOfColumn on: the sum of a column's weights, or the number of documents
  /// or groups, in the rows of an update, or of the whole step for -1. It may be 0.
  [[nodiscard]] double sumOf(int64_t number, int64_t update = -1) const;
  /// The same of means over tokens that columns weigh, and of means over documents, as far as the ops have such.
  void setDivisors(const std::vector<OpSpec> &ops, int64_t update, OptimizerScalars &scalars);
  /// Targets of the step that count, and the sum of their weights.
  [[nodiscard]] int64_t counted() const { return targets; }
  [[nodiscard]] double weight() const;
  /// Targets have weights, which are not all 1.
  [[nodiscard]] bool hasWeights() const { return data.hasWeights(); }
  /// Writes what this rank reads to its memory; and from the offset `weightsAt` on the weights of its targets, input by
  /// input, if that is not negative.
  Status fill(const std::vector<InputSpec> &specs, int64_t weightsAt, Device &device);
  /// Writes the first `count` rows and a number for each of their tokens to a file.
  Status write(const std::string &path, int64_t count, const std::string &name, const std::vector<float> &numbers);
  /// Writes the dataset again with one more column. `numbers` has one for each place of the rows: the token that is the
  /// target of a place gets it, and other tokens get 0.
  Status writeDataset(const std::string &path, const std::string &column, const std::vector<float> &numbers);
  /// Writes the rows and divisors of the steps after `done` up to `last` to a file.
  Status write(const std::string &path, int64_t done, int64_t last);

  [[nodiscard]] std::string fingerprint() const;
  /// Of all that is read: it takes as long as to read all of it.
  [[nodiscard]] std::string checksum() const;
  [[nodiscard]] Packing packing() const { return packed; }
  /// The number, within the step, of this replica's first row of a microbatch.
  [[nodiscard]] int64_t firstRow(int64_t microbatch) const {
    return (microbatch * whole.replicas() + replica) * whole.batch;
  }
  /// Which token of its row number i is of an input's row.
  [[nodiscard]] int64_t positionOf(const InputSpec &its, int64_t i) const {
    const auto [first, second] = runsOf(its);
    return i < first.length ? first.first + i : second.first + i - first.length;
  }
  [[nodiscard]] int64_t tokenCount() const { return data.tokens().count(); }
  [[nodiscard]] bool isDataset() const { return data.tokens().file(); } ///< of a .safetensors file
  /// A line for each file of a mixture; else empty.
  [[nodiscard]] std::string describeMixture() { return data.isOne() ? "" : data.describe(whole.sequencesPerStep()); }
  [[nodiscard]] int64_t sourceCount() const { return source.count(); }
  /// Rows of the first epoch; 0: random tokens have no end, nor have mixtures.
  [[nodiscard]] int64_t rowsPerEpoch() {
    return !data.isOne() || data.tokens().isRandom() ? 0 : data.rows().rowsPerEpoch();
  }

private:
  struct Run {
    int64_t first, length; ///< of the sequence; the second may have no tokens
  };
  [[nodiscard]] std::array<Run, 2> runsOf(const InputSpec &its) const;
  [[nodiscard]] static double notZero(double weight) { return weight > 0 ? weight : 1; }
  Status read(const InputSpec &its, Rows::What what, int32_t *next);
  void readColumn(const InputSpec &its, char *next);
  /// Writes `count` places of a column of row `n` from `from` on, with values of `bytes`; returns the end.
  char *writeColumn(int64_t n, size_t column, int64_t from, int64_t count, int64_t bytes, char *next);
  /// One kind of data that a file may have for each row, and its name.
  struct Column {
    std::string name, type;
    Rows::What what;
    int64_t number = -1; ///< of a column of the data
  };
  [[nodiscard]] std::vector<Column> columns() const;
  /// Opens a file with `first` and the columns of so many rows.
  Status open(SafeTensorsWriter &file, const std::string &path, const FileTensor &first, int64_t rows,
              const std::map<std::string, std::string> &facts) const;
  Status writeRows(SafeTensorsWriter &file, int64_t begin, int64_t end);
  /// The first row of a step among those of this shape.
  [[nodiscard]] int64_t rowOf(int64_t number) const { return (number - 1 - began.step) * whole.sequencesPerStep(); }
  /// The rows of an update of the step, or of the whole step for -1: the first one, and the end.
  [[nodiscard]] std::pair<int64_t, int64_t> rowsOf(int64_t update) const;
  [[nodiscard]] int64_t rowsPerUpdate() const { return whole.sequencesPerStep() / whole.updates; }

  const Program &whole;
  int64_t replica, context; ///< coordinates of the device
  Mixture data;             ///< what the model reads
  Tokens source;            ///< an encoder's file of its own
  Rows sourceRows;
  ShapeBegin began;
  Packing packed = Packing::Stream;
  bool hasSource = false;
  bool counts; ///< targets and tokens, row by row
  int64_t step = 0;
  int64_t targets = 0;         ///< of the step that count
  std::vector<double> weights; ///< of targets that count, by update of the step: their sum
  std::vector<int64_t> tokens; ///< by update of the step
  std::vector<int32_t> input;  ///< all of a step's
  std::vector<double> values;  ///< of a column, on their way
  std::vector<int32_t> made;   ///< of one that follows from the rows
};

} // namespace pp

#endif // PP_RUNTIME_TRAINER_STEPINPUTS_H
