// What a run says of its steps: a line on the terminal, a JSON line in a file, an event for TensorBoard.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_RUNLOG_H
#define PP_RUNTIME_RUNLOG_H

#include "runtime/Options.h"
#include "runtime/Program.h"
#include "runtime/files/EventFile.h"
#include <deque>

namespace pp {

/// The loss over the rows of a file.
struct EvalSummary {
  std::string name; ///< empty: it has none
  double loss = 0;
  int64_t tokens = 0; ///< targets that count
  double weight = 0;  ///< the sum of their weights
  bool hasWeights = false;
  std::vector<double> reports; ///< of the program, in its order
};

/// The figures of one step.
struct StepSummary {
  double loss = 0, norm = 0, lr = 0, seconds = 0, lossScale = 1;
  int64_t tokens = 0;          ///< targets that count
  double weight = 0;           ///< the sum of their weights
  std::vector<double> weights; ///< the same of each update of a step that trains
  std::vector<EvalSummary> evals;
  double further = 0;                      ///< the loss that is told apart
  double zLoss = 0;                        ///< that is trained beside them
  std::vector<double> reports;             ///< of the program, in its order
  double balance = 0, z = 0, meanRows = 0; ///< of routers, and rows of their experts
  double dropped = 0;                      ///< share of choices that had no row
  int64_t fewestRows = 0, mostRows = 0;
  bool hasExperts = false, hasFurther = false, hasZLoss = false, hasNorm = false, hasWeights = false, skipped = false;
};

class RunLog {
public:
  RunLog(const Program &whole, const Options &options) : whole(whole), options(options) {}
  ~RunLog();
  RunLog(const RunLog &) = delete;
  RunLog &operator=(const RunLog &) = delete;

  /// Makes the files that the command line asks for. A resumed run appends to its log and begins a new event file.
  Status open();
  /// Says what step `step` of `steps` did; the run ends after `last`.
  Status say(int64_t step, int64_t steps, int64_t last, const StepSummary &summary);
  /// Says the losses before step 1 of `steps`.
  Status sayFirst(int64_t steps, const std::vector<EvalSummary> &evals);

private:
  /// Which share of their peak FLOP/s all ranks have used; negative: the peak is not known.
  [[nodiscard]] double share(double seconds) const;
  void print(int64_t step, int64_t steps, double left, const StepSummary &summary) const;
  void printEvals(int64_t steps, const std::vector<EvalSummary> &evals) const;
  [[nodiscard]] std::string lineOf(double left, const StepSummary &summary) const;
  Status write(int64_t step, const std::string &fields, const std::vector<EvalSummary> &evals);

  const Program &whole;
  const Options &options;
  FILE *log = nullptr;
  EventFile events;
  std::deque<double> recent; ///< seconds of the last steps; the run's first one leaves when there is a second
  int64_t second = 0;        ///< number of the run's second step
};

} // namespace pp

#endif // PP_RUNTIME_RUNLOG_H
