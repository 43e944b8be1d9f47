// The loss over the rows of `--eval`: the step of training runs on them, and its updates change nothing.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Trainer.h"
#include <algorithm>

namespace pp {

Status Trainer::openEvaluation() {
  if (options.eval.empty())
    return {};
  if (options.eval == "random")
    return invalid("`--eval` needs a file: random tokens have no end");
  if (!options.source.empty())
    return invalid("`--eval` and `--source`: the encoder's text of the rows of `--eval` is not known");
  // There an update keeps the weights that it replaces: no step leaves everything as it is.
  const bool keeps = std::any_of(program->state.begin(), program->state.end(),
                                 [](const StateSpec &state) { return state.kind.starts_with("previous"); });
  if (whole.updates > 1 || keeps)
    return invalid("`--eval`: units of the schedule `", whole.schedule,
                   "` read older weights; it has no step that changes nothing");
  PP_TRY(evalInputs.open(options.eval, "", state.seed, options.packing, speaks()));
  evalSteps = evalInputs.readOnce();
  return {};
}

Status Trainer::evaluate(int64_t step, StepSummary &summary) {
  double sum = 0;
  for (int64_t number = 1; number <= evalSteps; ++number) {
    evalInputs.begin(number);
    rank.optimizer = {};
    rank.optimizer.divisor = evalInputs.divisor(0);
    rank.optimizer.holds = true;
    StepSummary each;
    PP_TRY(runStep(step, evalInputs, each));
    sum += each.loss * evalInputs.lossDivisor();
    summary.evalTokens += evalInputs.counted();
  }
  summary.evalLoss = summary.evalTokens ? sum / double(summary.evalTokens) : 0;
  summary.evaluated = true;
  return {};
}

} // namespace pp
