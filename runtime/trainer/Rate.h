// The learning rate of each step: a warm-up, and the way down.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_RATE_H
#define PP_RUNTIME_RATE_H

#include "runtime/Program.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace pp {

/// The learning rate of step `step` (1 is the first) of a run whose last step is `last`. With t = step - lag, W =
/// warmup, n = decay_steps (else `last`), q = min_lr, p = (t - W) / (n - W), at most 1, and 1 where n <= W:
///
///   t < W      t / W                                    of wsd: q + (1 - q) t / W; where n <= W for t = W, too
///   cosine     q + (1 - q) (1 + cos(pi p)) / 2          SGDR (Loshchilov and Hutter 2017), without restarts
///   linear     q + (1 - q) (1 - p)
///   constant   1
///   wsd        1 until n - decay, from there on the cosine with p = (t - n + decay) / decay
///              (warm-up, stable, decay: Hu et al. 2024, MiniCPM)
///
/// times `lr`. lag = 1 is how transformers counts: its first step has t = 0.
[[nodiscard]] inline double learningRate(const OptimizerSpec &optimizer, double lr, int64_t step, int64_t last) {
  using Rate = OptimizerSpec::Rate;
  const double least = optimizer.minLr;
  const int64_t t = step - optimizer.lag, warmup = optimizer.warmup;
  auto above = [&](double share) { return lr * (least + (1 - least) * share); };
  auto cosine = [&](double progress) {
    return above(0.5 * (1 + std::cos(std::numbers::pi * std::clamp(progress, 0.0, 1.0))));
  };
  const int64_t end = optimizer.decaySteps > 0 ? optimizer.decaySteps : last;
  if (t < warmup || (t == warmup && end <= warmup)) {
    double share = double(t) / double(warmup);
    return optimizer.rate == Rate::Wsd ? above(share) : lr * share;
  }
  const double progress = end > warmup ? std::min(1.0, double(t - warmup) / double(end - warmup)) : 1;
  switch (optimizer.rate) {
  case Rate::Cosine:
    return cosine(progress);
  case Rate::Linear:
    return above(1 - progress);
  case Rate::Wsd:
    return cosine(double(t - end + optimizer.decay) / double(optimizer.decay));
  case Rate::Constant:
    break;
  }
  return lr;
}

} // namespace pp

#endif // PP_RUNTIME_RATE_H
