// Computes the learning rate: a warm-up, and the way down.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/trainer/Rate.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace pp {

double learningRate(const OptimizerSpec &optimizer, double lr, int64_t step, int64_t last) {
  using Rate = OptimizerSpec::Rate;
  const double least = optimizer.minLr;
  const int64_t t = step - optimizer.lag, warmup = optimizer.warmup;
  auto above = [&](double share) { return lr * (least + (1 - least) * share); };
  auto cosine = [&](double progress) {
    return above(0.5 * (1 + std::cos(std::numbers::pi * std::clamp(progress, 0.0, 1.0))));
  };
  if (t < warmup) {
    double share = double(t) / double(warmup);
    return optimizer.rate == Rate::Wsd ? above(share) : lr * share;
  }
  const int64_t end = optimizer.decaySteps > 0 ? optimizer.decaySteps : last;
  if (optimizer.rate == Rate::Constant || end <= warmup)
    return lr;
  const double progress = std::min(1.0, double(t - warmup) / double(end - warmup));
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
