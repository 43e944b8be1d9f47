// Runs steps without a barrier: judges each update when its norm has come, repeats a wrong one, and logs steps later.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The emitted step calls `judge` behind its first forwards (docs/barrier.md). All ranks have the same bits of the norm,
// so each decides by itself, and all decide alike. Losses of all ranks are summed once in several steps, and before
// anything is written or evaluated: a sum is a barrier, too.
#include "runtime/trainer/Trainer.h"
#include <cmath>

namespace pp {
namespace {

/// The status of a step that ran only up to its judge.
constexpr auto stopped = pp_status_t(PP_INTERNAL + 1);
/// A step is logged after at most this many further steps.
constexpr size_t unsaidSteps = 16;

/// Whether an update that assumed a finite norm that needs no clipping was right: as gammaOf and skips of the kernels.
bool isRight(const OptimizerScalars &scalars, double norm2) {
  if (!std::isfinite(norm2))
    return false;
  double ratio = scalars.clip / (std::sqrt(norm2) / scalars.lossScale + 1e-6);
  return scalars.clip <= 0 || !(ratio < 1);
}

} // namespace

/// Whether the step must be judged at once: weights that are saved, evaluated or read after it must be right.
bool Trainer::mustBeJudged(int64_t step) const {
  return step == lastStep || evaluatesAfter(step) ||
         (!options.save.empty() && options.saveEvery && step % options.saveEvery == 0);
}

/// The step before, as far as it was not judged. What follows a wrong update is done over, but for the head of this
/// step where `stops`.
pp_status_t Trainer::judge(double norm2) {
  if (!isPending)
    return stops ? stopped : PP_OK;
  isPending = false;
  StepSummary &summary = unsaid.back().summary;
  summary.hasNorm = true;
  summary.norm = std::sqrt(norm2) / summary.lossScale;
  isWrong = !isRight(judged, norm2);
  if (!std::isfinite(summary.norm)) {
    summary.skipped = true;
    state.lossScale = before.lossScale;
    state.goodSteps = before.goodSteps;
    state.skipped = before.skipped;
    state.skippedInRow = before.skippedInRow;
    unscalable = adaptScale(unsaid.back().step, /*skipped=*/true, summary.lossScale);
  }
  if (stops)
    return stopped;
  return isWrong ? redo(/*again=*/true) : PP_OK;
}

pp_status_t Trainer::redo(bool again) {
  const pp_late_entry_t &entry = pp_late_table[rank.rank];
  isWrong = false;
  ++redone;
  if (audit)
    audit->forget(); // it may be behind the step
  rank.optimizer = judged;
  rank.trace = &evalTrace; // a step has each unit once
  pp_status_t code = again ? device.run(entry.drain, rank, {}) : PP_OK;
  if (code == PP_OK)
    code = device.run(entry.undo, rank, {});
  if (code == PP_OK && again) {
    StepSummary unread;
    setScalars(unsaid.back().step + 1, unread);
    code = device.run(entry.head, rank, {});
  }
  rank.trace = &trace;
  return code;
}

/// Ends the step and keeps its log line for later. If the step `must` be judged, waits for its norm and logs the steps
/// before it.
Status Trainer::endLate(int64_t step, bool must, bool &isJudged, StepSummary &summary) {
  if (!unscalable.ok())
    return settle(unscalable);
  unsaid.push_back({step, summary, sums});
  judged = rank.optimizer;
  before = state;
  isPending = true;
  PP_TRY(adaptScale(step, /*skipped=*/false, summary.lossScale));
  if (must)
    PP_TRY(judgeNow(step));
  if (!must && unsaid.size() <= unsaidSteps)
    return {};
  Unsaid last = std::move(unsaid.back());
  unsaid.pop_back();
  for (; !unsaid.empty(); unsaid.pop_front())
    PP_TRY(sayLate(unsaid.front()));
  isJudged = must;
  if (!must) {
    unsaid.push_back(std::move(last));
    return {};
  }
  PP_TRY(sumLate(last));
  summary = last.summary;
  return unscalable.ok() ? Status() : settle(unscalable);
}

/// Runs the next step up to its judge, on rows of this one: what it makes is left.
Status Trainer::judgeNow(int64_t step) {
  PP_TRY(fill(inputs));
  stops = true;
  rank.trace = &evalTrace;
  pp_status_t code = device.run(pp_rank_table[rank.rank].step, rank, {});
  if (code == stopped)
    code = device.run(pp_late_table[rank.rank].drain, rank, {});
  if (code == PP_OK && isWrong)
    code = redo(/*again=*/false);
  rank.trace = &trace;
  stops = false;
  received = transport.received();
  if (code == PP_OK)
    return {};
  return {code, text(program->name, ", behind step ", step, ": ", rank.message.empty() ? "failed" : rank.message)};
}

Status Trainer::sumLate(Unsaid &its) {
  sums = its.sums;
  PP_TRY(summarize(its.summary));
  return checkLoss(its.step, its.summary);
}

Status Trainer::sayLate(Unsaid &its) {
  PP_TRY(sumLate(its));
  return speaks() ? runLog.say(its.step, state.steps, lastStep, its.summary) : Status();
}

} // namespace pp
