// The training run of one rank: all made ready, then step after step, then what was learnt about time and memory.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRAINER_TRAINER_H
#define PP_RUNTIME_TRAINER_TRAINER_H

#include "runtime/Kernels.h"
#include "runtime/Options.h"
#include "runtime/audit/Audit.h"
#include "runtime/files/Trace.h"
#include "runtime/trainer/Checkpoint.h"
#include "runtime/trainer/Outputs.h"
#include "runtime/trainer/RunLog.h"
#include "runtime/trainer/StepInputs.h"
#include <array>
#include <future>

namespace pp {

/// How a rank's run ended. `together`: all ranks know of the failure and end in order; only the rank with `mine`
/// reports it. `told`: a signal ended the run early, and nothing failed.
struct Outcome {
  Status status;
  bool together = false;
  bool mine = false;
  bool told = false;
};

struct StepSums;

class Trainer {
public:
  Trainer(Emitted &emitted, const Options &options, Transport &transport, Device &device, int32_t its);
  Trainer(const Trainer &) = delete;
  Trainer &operator=(const Trainer &) = delete;

  /// Collective: every rank of the program runs at the same time.
  Outcome run();

private:
  Status makeReady();
  Status checkOutputs();
  Status checkCopies();
  Status checkShared(const std::string &folder);
  Status chooseCheckpoint();
  Status resolveState();
  Status accept(const std::string &name, const std::string &change);
  Status checkData();
  Status openData();
  Status writeBatches();
  Status endAt(int64_t steps);
  Status checkConfigOf(const WeightFiles &model);
  Status openWeights();
  Status openAdapted();
  Status fillArena();
  Status train();
  void endEarly(int64_t step, bool mayEndHere);
  Status save(int64_t step);
  Status merge();
  Status writeNow(Save &its, const Status &begun, const std::string &folder);
  Status agreed(Save &its, const Status &own);
  Status entered(Save &its, const Status &begun, int64_t seconds);
  void startJob(std::function<Status()> job);
  [[nodiscard]] double ownPart() const;
  Status awaitParts();
  Status endSave(bool waits);
  void sayVanished(const Save &its, const std::string &folder) const;
  [[nodiscard]] Keeping keeping(int64_t step) const;
  Status trainStep(int64_t step, StepSummary &summary);
  void setScalars(int64_t step, StepSummary &summary);
  Status checkLoss(int64_t step, const StepSummary &summary);
  Status runStep(int64_t step, StepInputs &from, StepSummary &summary);
  Status openAudit();
  Status beginAudit(int64_t step);
  Status endAudit(int64_t step);
  Status openEvaluation();
  [[nodiscard]] bool evaluatesAfter(int64_t step) const;
  Status evaluate(int64_t step, std::vector<EvalSummary> &summaries);
  Status runForward(int64_t step, StepInputs &from, int64_t number, StepSummary &summary);
  Status checkForward(const char *option);
  Status writeLogprobs();
  [[nodiscard]] int64_t weightBytes() const;
  /// Bytes for the losses of all targets of a step of `--logprobs`, and where they begin, beside the arena.
  [[nodiscard]] int64_t lossBytes() const;
  [[nodiscard]] int64_t lossesAt() const { return program->arenaBytes + (weightBytes() + 7) / 8 * 8; }
  void placeWeights();
  Status fill(StepInputs &from);
  void seekResults();
  void collect(const StepInputs &from);
  Status summarize(StepSummary &summary);
  void sumRouters(const StepSums &all, StepSummary &summary) const;
  Status adaptScale(int64_t step, bool skipped, double scale);

  // Steps without a barrier (Judge.cpp).
  struct Unsaid {
    int64_t step;
    StepSummary summary;
    std::vector<double> sums; ///< of this rank
  };
  [[nodiscard]] bool isLate() const { return !whole.optimizer.barrier && whole.ranks > 1; }
  [[nodiscard]] bool mustBeJudged(int64_t step) const;
  pp_status_t judge(double norm2);
  pp_status_t redo(bool again);
  Status endLate(int64_t step, bool must, bool &isJudged, StepSummary &summary);
  Status judgeNow(int64_t step);
  Status sumLate(Unsaid &its);
  Status sayLate(Unsaid &its);

  Status finish();
  Status finishTrace();
  Status gatherTraces(std::vector<RankTrace> &traces);
  /// All ranks hear whether one of them failed; from here on they end in order.
  Status settle(Status mine);
  [[nodiscard]] Status checkScratch() const;
  Status printHeader();
  [[nodiscard]] std::string besides() const;
  /// The layout of saved weights: that of the folder that was read, if there was one.
  [[nodiscard]] WeightLayout layout() const;
  /// The layout of the model itself, whether it has adapters or not.
  [[nodiscard]] WeightLayout modelLayout() const;
  [[nodiscard]] RankMemory memory() { return {emitted, *program, transport, device}; }
  [[nodiscard]] bool speaks() const { return rank.device == 0; }

  Emitted &emitted;
  const Options &options;
  Transport &transport;
  Device &device;
  const Program &whole;
  RunLog runLog;
  FolderLock saves, merges; ///< of --save and --merge
  std::string resumed;      ///< the checkpoint that is read: of --resume, or an older one; empty: none
  const RankProgram *program = nullptr;
  pp_rank_t rank;
  std::unique_ptr<Kernels> kernels;
  std::unique_ptr<Audit> audit; ///< of --audit
  Trace trace, evalTrace;       ///< of training; of evaluation, which nobody reads
  StepInputs inputs;            ///< of training
  struct Evaluation {
    Evaluation(const Program &whole, int32_t device, std::string name) : name(std::move(name)), inputs(whole, device) {}
    std::string name;
    StepInputs inputs;
    int64_t steps = 0; ///< read all rows once
  };
  std::deque<Evaluation> evaluations; ///< of --eval
  RunState state;
  int64_t lastStep = 0;                                 ///< of this run; before state.steps with --stop-at
  int64_t skippedBefore = 0;                            ///< this run: steps whose gradients were not finite
  int64_t received = 0, stepBytes = 0;                  ///< bytes of messages so far, and of one step
  std::vector<double> sums;                             ///< what StepSums names
  std::vector<OfTargets<const float>> targetWeights[2]; ///< of a step that trains, and of one that evaluates
  std::vector<StepCopy> results;                        ///< of a step: losses and the norm
  std::vector<std::array<char, 8>> resultAt;            ///< what they are
  std::deque<Unsaid> unsaid;                            ///< steps of which nothing is said yet; the last may be pending
  OptimizerScalars judged;                              ///< of the last of them
  RunState before;                                      ///< it adapted the scale
  bool isPending = false, isWrong = false, stops = false; ///< stops: the step runs up to its judge
  int64_t redone = 0;                                     ///< updates
  Status unscalable;                                      ///< the scale of the loss cannot be smaller
  bool together = false, mine = false;
  bool told = false;  ///< to end: a rank was, and all know
  bool early = false; ///< the last step is one before that of the command line, for that
  std::vector<std::string> remarks;
  WeightFiles files; ///< what --load or --resume names; under adapters the model
  WeightFiles adapters;
  WeightMatch match;
  int64_t vanished = 0;             ///< values of the first weights that f16 holds as 0
  int64_t savedStep = 0;            ///< of the last checkpoint; 0: there is none
  std::set<int64_t> ownSteps;       ///< of all checkpoints
  bool isExchanging = false;        ///< the save behind the steps is at its last part
  bool areDone = false;             ///< all ranks had done their part of it when the step ended
  Save behind{/*later=*/true};      ///< the steps
  std::shared_future<Status> saved; ///< the last member, for its end waits for what reads the others
};

} // namespace pp

#endif // PP_RUNTIME_TRAINER_TRAINER_H
