// The learning rate of each step.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_RATE_H
#define PP_RUNTIME_RATE_H

#include "runtime/Program.h"

namespace pp {

/// The learning rate of step `step` (1 is the first) of a run whose last step is `last`. With t = step - lag, W =
/// warmup, n = decay_steps (else `last`), q = min_lr, p = (t - W) / (n - W), at most 1:
///
///   t < W      t / W                                    of wsd: q + (1 - q) t / W
///   cosine     q + (1 - q) (1 + cos(pi p)) / 2          SGDR (Loshchilov and Hutter 2017), without restarts
///   linear     q + (1 - q) (1 - p)
///   constant   1
///   wsd        1 until n - decay, from there on the cosine with p = (t - n + decay) / decay
///              (warm-up, stable, decay: Hu et al. 2024, MiniCPM)
///
/// times `lr`. lag = 1 is how transformers counts: its first step has t = 0.
[[nodiscard]] double learningRate(const OptimizerSpec &optimizer, double lr, int64_t step, int64_t last);

} // namespace pp

#endif // PP_RUNTIME_RATE_H
