// Runs code for two training steps and compares every number that a trainer can see with the one-rank program's.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_FUZZ_RUN_H
#define PP_TEST_FUZZ_RUN_H

#include "test/fuzz/Load.h"

namespace pp::fuzz {

/// Two, so that what the first step leaves in the wrong place is read by the second.
inline constexpr int64_t kSteps = 2;

/// The results of one rank.
struct Reference {
  int64_t data = 0; ///< from these tokens, one of `vocab` sets
  /// Weights, optimizer state, gradients, losses and the gradient norm after each step, by name; empty if it fails.
  std::vector<std::map<std::string, std::vector<double>>> steps;
};

/// Fills what the trainer fills: at step 0 the weights and the optimizer's state, at every step the data.
void fillInputs(const Program &program, const RankProgram &tables, int64_t step, int64_t data, char *arena);
OptimizerScalars scalarsOf(int64_t step);

/// Losses of microbatches, by name: a microbatch whose slices are on several ranks has a term on each.
using Losses = std::map<std::string, double>;
void addLosses(const RankProgram &tables, const char *arena, Losses &losses);
/// Compares the sums over all ranks.
Outcome compareLosses(const Losses &losses, const Reference &reference, int64_t step);
/// Compares what a rank holds after a step, but for its losses.
Outcome compare(const RankProgram &tables, const char *arena, const Reference &reference, int64_t step);

/// Runs all steps on the executor.
Outcome run(const Code &code, const Kernels &kernels, Adversary adversary, uint64_t seed, const Reference &reference);
/// Runs the one-rank program on these tokens and keeps what it computes.
Reference record(const Code &code, const Kernels &kernels, int64_t data);
/// Runs all steps on the runtime's own transport, a thread for each rank.
Outcome runThreads(const Code &code, const std::vector<OpSpec> &ops, const Reference &reference);

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_RUN_H
