// What the trainer does around a step, for all ranks at once, and the comparison with the one-rank program.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Run.h"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace pp::fuzz {

static double *doubles(char *arena, int64_t offset) { return reinterpret_cast<double *>(arena + offset); }
static const double *doubles(const char *arena, int64_t offset) {
  return reinterpret_cast<const double *>(arena + offset);
}

/// Every microbatch of every step begins with its own number, so that no two are equal.
static void fillTokens(const Program &program, const InputSpec &input, int64_t step, char *arena) {
  int64_t number = step * program.microbatches + input.microbatch;
  auto *out = reinterpret_cast<int32_t *>(arena + input.offset);
  for (int64_t i = 0; i < input.length; ++i) {
    int64_t place = input.first + i + input.targets;
    uint64_t drawn = hashOf(uint64_t(number), uint64_t(place));
    out[i] = int32_t((place == 0   ? uint64_t(number)
                      : place == 1 ? uint64_t(number / program.vocab)
                                   : drawn) %
                     uint64_t(program.vocab));
  }
}

void fillInputs(const Program &program, const RankProgram &tables, int64_t step, char *arena) {
  if (step == 0) {
    // Nothing is zero or one: what is forgotten or added twice must show.
    for (const WeightSpec &weight : tables.weights) {
      double base = weight.init == WeightSpec::Init::One ? 1 : 0;
      for (int64_t i = 0; i < weight.elements(); ++i)
        doubles(arena, weight.offset)[i] = base + 0.3 * normalAt(keyOf(1, weight.name), uint64_t(i));
    }
    for (const StateSpec &state : tables.state)
      std::fill_n(doubles(arena, state.offset), state.elements(), 0.0);
  }
  for (const InputSpec &input : tables.inputs)
    fillTokens(program, input, step, arena);
}

// The clipping norm lies below every norm that occurs, so that a wrong norm changes every weight.
OptimizerScalars scalarsOf(int64_t step) { return {0.05, 0.8, 0.9, 1e-4, 0.1, 0.05, step + 1}; }

/// Calls visit(name, values, count) for everything of a rank that can be seen after a step.
template <typename Visit> static void visitAll(const RankProgram &tables, const char *arena, Visit visit) {
  for (const WeightSpec &weight : tables.weights)
    visit("weight " + weight.name, doubles(arena, weight.offset), weight.elements());
  for (const StateSpec &state : tables.state)
    visit(state.kind + " of " + state.name, doubles(arena, state.offset), state.elements());
  for (const TensorSpec &grad : tables.grads)
    visit("grad " + grad.name, doubles(arena, grad.offset), grad.elements());
  std::map<int64_t, double> losses; // every slice of a microbatch has one
  for (const LossSpec &loss : tables.losses)
    losses[loss.microbatch] += *doubles(arena, loss.offset);
  for (auto &[microbatch, loss] : losses)
    visit("loss " + std::to_string(microbatch), &loss, 1);
  if (tables.normOffset >= 0)
    visit("norm", doubles(arena, tables.normOffset), 1);
}

Outcome compare(const RankProgram &tables, const char *arena, const Reference &reference, int64_t step) {
  constexpr double tolerance = 1e-9; // relative to the tensor; sums in another order differ by 1e-15
  Outcome outcome;
  visitAll(tables, arena, [&](const std::string &name, const double *values, int64_t count) {
    auto found = reference[size_t(step)].find(name);
    if (outcome.truth != Truth::Clean || found == reference[size_t(step)].end())
      return;
    double scale = 1e-12;
    for (double value : found->second)
      scale = std::max(scale, std::abs(value));
    for (int64_t i = 0; i < count && outcome.truth == Truth::Clean; ++i)
      if (!(std::abs(values[i] - found->second[size_t(i)]) <= tolerance * scale))
        outcome = {std::isnan(values[i]) ? Truth::NotANumber : Truth::Wrong,
                   "rank " + std::to_string(tables.rank) + ", step " + std::to_string(step) + ": " + name + " is " +
                       std::to_string(values[i]) + ", expected " + std::to_string(found->second[size_t(i)])};
  });
  return outcome;
}

Outcome run(const Code &code, const Kernels &kernels, Adversary adversary, uint64_t seed, const Reference &reference) {
  Machine machine(code, kernels, adversary, seed);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (size_t rank = 0; rank < code.ranks.size(); ++rank)
      fillInputs(code.program, code.ranks[rank].tables, step, machine.arena(rank));
    Outcome outcome = machine.run(scalarsOf(step));
    for (size_t rank = 0; rank < code.ranks.size() && outcome.truth == Truth::Clean; ++rank)
      outcome = compare(code.ranks[rank].tables, machine.arena(rank), reference, step);
    if (outcome.truth != Truth::Clean)
      return outcome;
  }
  return {};
}

Reference record(const Code &code, const Kernels &kernels) {
  Reference reference;
  Machine machine(code, kernels, Adversary::Early, 0);
  for (int64_t step = 0; step < kSteps; ++step) {
    fillInputs(code.program, code.ranks[0].tables, step, machine.arena(0));
    if (machine.run(scalarsOf(step)).truth != Truth::Clean)
      return {};
    auto &after = reference.emplace_back();
    visitAll(code.ranks[0].tables, machine.arena(0), [&](const std::string &name, const double *values, int64_t count) {
      after[name].assign(values, values + count);
    });
  }
  return reference;
}

} // namespace pp::fuzz
