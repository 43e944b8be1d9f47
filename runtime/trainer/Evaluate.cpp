// The loss over the rows of a file, and of each token, by the step of the program that runs forward alone.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Trainer.h"
#include <algorithm>
#include <cmath>

namespace pp {

Status Trainer::checkForward(const char *option) {
  return program->forward ? Status()
                          : invalid("`--", option,
                                    "`: this program has no forward step; compile it without "
                                    "--forward=false");
}

Status Trainer::openEvaluation() {
  if (!options.logprobs.empty())
    PP_TRY(checkForward("logprobs"));
  if (!options.logprobsColumn.empty() && !inputs.isDataset())
    return invalid("`--logprobs-column` writes the dataset again, and `--data ", options.data,
                   "` is no .safetensors file");
  for (const auto &[name, data] : options.evals) {
    PP_TRY(checkForward("eval"));
    if (data == "random")
      return invalid("`--eval` needs a file: random tokens have no end");
    if (!options.source.empty())
      return invalid("`--eval` and `--source`: the encoder's text of the rows of `--eval` is not known");
    Evaluation &its = evaluations.emplace_back(whole, rank.device, name);
    PP_TRY(its.inputs.open(data, "", state.seed, state.asksPacking ? state.packing : std::nullopt, speaks()));
    its.steps = its.inputs.readOnce();
  }
  return {};
}

bool Trainer::evaluatesAfter(int64_t step) const {
  return !evaluations.empty() && (step == lastStep || (options.evalEvery && step % options.evalEvery == 0));
}

/// Runs step `number` of these rows without learning from them.
Status Trainer::runForward(int64_t step, StepInputs &from, int64_t number, StepSummary &summary) {
  from.begin(number);
  rank.optimizer = {};
  rank.optimizer.divisors[0] = from.divisor();
  from.setFurther(program->forward->inputs, /*update=*/-1, rank.optimizer);
  from.setDivisors(program->ops, /*update=*/-1, rank.optimizer);
  rank.optimizer.holds = true; // nothing is dropped
  rank.updates.clear();
  rank.forward = true;
  transport.setForward(true);
  rank.trace = &evalTrace;
  Status status = runStep(step, from, summary);
  rank.forward = false;
  transport.setForward(false);
  rank.trace = &trace;
  return status;
}

namespace {
/// Of a value of several steps, what one step of all their rows has.
struct MeanOfSteps {
  int64_t divisor; ///< as runtime/Rank.h numbers them; 0: the weights of targets; -1: it is a total
  double sum = 0, divisors = 0;

  void add(double value, const StepInputs &step) {
    const double own = divisor < 0 ? 1 : divisor > 0 ? step.sumOf(divisor) : step.weight();
    sum += value * (divisor == 0 ? step.lossDivisor() : own);
    divisors += own;
  }
  [[nodiscard]] double value() const { return divisor < 0 ? sum : divisors != 0 ? sum / divisors : 0; }
};
} // namespace

/// One file after the other; none of those that are not read to their end if the run is told to end.
Status Trainer::evaluate(int64_t step, std::vector<EvalSummary> &summaries) {
  for (auto &[name, from, steps] : evaluations) {
    std::vector<MeanOfSteps> means = {{whole.divisor}};
    for (int64_t divisor : whole.reportDivisors)
      means.push_back({divisor});
    double weight = 0;
    int64_t tokens = 0;
    for (int64_t number = 1; number <= steps; ++number) {
      StepSummary each;
      PP_TRY(runForward(step, from, number, each));
      means[0].add(each.loss, from);
      for (size_t report = 0; report < each.reports.size(); ++report)
        means[1 + report].add(each.reports[report], from);
      tokens += from.counted();
      weight += from.weight();
      if (told && step < lastStep)
        return {}; // the run ends here
    }
    EvalSummary &its =
        summaries.emplace_back(EvalSummary{name, means[0].value(), tokens, weight, from.hasWeights(), {}});
    for (size_t report = 0; report < whole.reports.size(); ++report)
      its.reports.push_back(means[1 + report].value());
  }
  return {};
}

int64_t Trainer::lossBytes() const {
  int64_t bytes = 0;
  for (const InputSpec &its : options.logprobs.empty() ? std::vector<InputSpec>() : program->forward->inputs)
    if (its.kind == InputSpec::Kind::Targets && its.ahead == 0)
      bytes += whole.batch * its.length * int64_t(sizeof(double));
  return bytes;
}

/// Every rank keeps the losses of the tokens whose cross-entropy it computes. Ranks with shards of one vocabulary all
/// have the same losses: so the sum over ranks is divided by how many have one.
Status Trainer::writeLogprobs() {
  StepInputs data(whole, rank.device);
  PP_TRY(data.open(options.data, options.source, state.seed, state.packing, /*check=*/false));
  if (state.shuffle)
    PP_TRY(data.shuffle(state.seed));
  const int64_t steps = data.readOnce(), perStep = whole.sequencesPerStep() * whole.sequence;
  std::vector<double> mine(size_t(lossBytes()) / sizeof(double)); // of all inputs of targets
  auto *next = reinterpret_cast<double *>(const_cast<char *>(device.at(lossesAt())));
  for (const InputSpec &its : program->forward->inputs)
    if (its.kind == InputSpec::Kind::Targets && its.ahead == 0) {
      const auto *begin = reinterpret_cast<const int32_t *>(device.at(its.offset));
      rank.tokenLosses.push_back({begin, begin + whole.batch * its.length, next});
      next += whole.batch * its.length;
    }
  device.callByCall(true);                      // a graph that evaluation made writes no losses
  std::vector<double> all(size_t(2 * perStep)); // losses, then how many ranks have one
  std::vector<float> logprobs;
  for (int64_t number = 1; number <= steps; ++number) {
    std::fill(mine.begin(), mine.end(), NAN);
    PP_TRY(device.upload(lossesAt(), mine.data(), size_t(lossBytes())));
    StepSummary summary;
    PP_TRY(runForward(lastStep, data, number, summary));
    PP_TRY(device.download(lossesAt(), mine.data(), size_t(lossBytes())));
    std::fill(all.begin(), all.end(), 0.0);
    auto loss = mine.begin();
    for (const InputSpec &its : program->forward->inputs)
      if (its.kind == InputSpec::Kind::Targets && its.ahead == 0)
        for (int64_t i = 0; i < whole.batch * its.length; ++i, ++loss) {
          const int64_t row = data.firstRow(its.microbatch) + i / its.length;
          const auto place = size_t(row * whole.sequence + data.positionOf(its, i % its.length));
          const bool has = !std::isnan(*loss);
          all[place] = has ? *loss : 0;
          all[place + size_t(perStep)] = has;
        }
    PP_TRY(transport.sum(all));
    if (data.counted() > 0 && std::all_of(all.begin() + perStep, all.end(), [](double ranks) { return ranks == 0; }))
      return invalid(
          "`--logprobs`: the model computes no log-probabilities of its targets: it has no `cross_entropy` and "
          "no logprob(z, targets)");
    for (size_t i = 0; speaks() && i < size_t(perStep); ++i)
      logprobs.push_back(float(-all[i] / std::max(all[i + size_t(perStep)], 1.0)));
  }
  rank.tokenLosses.clear();
  device.callByCall(false);
  if (!speaks())
    return {};
  const int64_t rows = data.rowsPerEpoch();
  logprobs.resize(size_t(rows * whole.sequence));
  if (!options.logprobsColumn.empty())
    return data.writeDataset(options.logprobs, options.logprobsColumn, logprobs);
  return data.write(options.logprobs, rows, "logprobs", logprobs);
}

} // namespace pp
