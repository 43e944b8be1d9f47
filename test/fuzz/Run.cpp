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

/// No two tokens or targets of a step are equal, not even those of slices one token long; a target is not the next
/// token, for then it would be that of the next slice. Each microbatch has a token in every quarter of the vocabulary,
/// so that no rank's share of an embedding is zero. That is so for 6 microbatches of 4 tokens and a vocabulary of 61.
/// Other data are other tokens.
static void fillTokens(const Program &program, const InputSpec &input, int64_t step, int64_t data, char *arena) {
  auto *out = reinterpret_cast<int32_t *>(arena + input.offset);
  for (int64_t i = 0; i < input.length; ++i) {
    if (input.kind == InputSpec::Kind::Rows) {
      out[i] = int32_t(step * program.microbatches + input.microbatch);
      continue;
    }
    int64_t shift = input.kind == InputSpec::Kind::Targets ? 6 : input.kind == InputSpec::Kind::Source ? 3 : 0;
    int64_t token = (input.first + i) * 15 + input.microbatch + shift;
    out[i] = int32_t((token + step * 5 + data) % program.vocab);
  }
}

void fillInputs(const Program &program, const RankProgram &tables, int64_t step, int64_t data, char *arena) {
  if (step == 0) {
    // Nothing is zero or one: what is forgotten or added twice must show.
    for (const WeightSpec &weight : tables.weights) {
      double base = weight.init == WeightSpec::Init::One ? 1 : 0;
      for (int64_t i = 0; i < weight.elements(); ++i)
        doubles(arena, weight.offset)[i] = base + 0.3 * normalAt(keyOf(1, weight.name), uint64_t(weight.place(i)));
    }
    for (const StateSpec &state : tables.state)
      std::fill_n(doubles(arena, state.offset), state.elements(), 0.0);
  }
  for (const InputSpec &input : tables.inputs)
    fillTokens(program, input, step, data, arena);
}

// The clipping norm lies below every norm that occurs, so that a wrong norm changes every weight.
OptimizerScalars scalarsOf(int64_t step) {
  OptimizerScalars scalars{0.05, 0.8, 0.9, 1e-4, 0.1, 0.05, step + 1};
  scalars.divisors[0] = 7, scalars.momentum = 0.6, scalars.matrixRate = 0.07, scalars.matrixDecay = 0.2,
  scalars.seed = 11;
  return scalars;
}

/// Calls visit(name, values, tensor) for everything of a rank that can be seen after a step; `tensor` says which
/// elements of the whole lie here.
template <typename Visit> static void visitAll(const RankProgram &tables, const char *arena, Visit visit) {
  TensorSpec scalar;
  for (const WeightSpec &weight : tables.weights)
    visit("weight " + weight.name, doubles(arena, weight.offset), weight);
  for (const StateSpec &state : tables.state)
    visit(state.kind + " of " + state.name, doubles(arena, state.offset), state);
  for (const TensorSpec &grad : tables.grads)
    visit("grad " + grad.name, doubles(arena, grad.offset), grad);
  if (tables.normOffset >= 0)
    visit("norm", doubles(arena, tables.normOffset), scalar);
}

void addLosses(const RankProgram &tables, const char *arena, Losses &losses) {
  for (const LossSpec &loss : tables.losses)
    losses["loss " + std::to_string(loss.microbatch)] += *doubles(arena, loss.offset);
}

constexpr double tolerance = 1e-9; // relative to the tensor; sums in another order differ by 1e-15

Outcome compareLosses(const Losses &losses, const Reference &reference, int64_t step) {
  for (auto &[name, loss] : losses) {
    const auto &all = reference.steps[size_t(step)];
    auto found = all.find(name);
    if (found == all.end())
      return {Truth::Wrong, "one rank has no " + name};
    if (double expected = found->second[0]; !(std::abs(loss - expected) <= tolerance * std::abs(expected)))
      return {std::isnan(loss) ? Truth::NotANumber : Truth::Wrong, "step " + std::to_string(step) + ": " + name +
                                                                       " of all ranks is " + std::to_string(loss) +
                                                                       ", expected " + std::to_string(expected)};
  }
  return {};
}

Outcome compare(const RankProgram &tables, const char *arena, const Reference &reference, int64_t step) {
  Outcome outcome;
  visitAll(tables, arena, [&](const std::string &name, const double *values, const TensorSpec &tensor) {
    auto found = reference.steps[size_t(step)].find(name);
    if (outcome.truth != Truth::Clean)
      return;
    if (found == reference.steps[size_t(step)].end()) {
      outcome = {Truth::Wrong, "one rank has no " + name};
      return;
    }
    double scale = 1e-12;
    for (double value : found->second)
      scale = std::max(scale, std::abs(value));
    for (int64_t i = 0; i < tensor.elements() && outcome.truth == Truth::Clean; ++i)
      if (double expected = found->second[size_t(tensor.place(i))];
          !(std::abs(values[i] - expected) <= tolerance * scale))
        outcome = {std::isnan(values[i]) ? Truth::NotANumber : Truth::Wrong,
                   "rank " + std::to_string(tables.rank) + ", step " + std::to_string(step) + ": " + name + " is " +
                       std::to_string(values[i]) + ", expected " + std::to_string(expected)};
  });
  return outcome;
}

Outcome run(const Code &code, const Kernels &kernels, Adversary adversary, uint64_t seed, const Reference &reference) {
  Machine machine(code, kernels, adversary, seed);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (size_t rank = 0; rank < code.ranks.size(); ++rank)
      fillInputs(code.program, code.ranks[rank].tables, step, reference.data, machine.arena(rank));
    Outcome outcome = machine.run(scalarsOf(step));
    Losses losses;
    for (size_t rank = 0; rank < code.ranks.size() && outcome.truth == Truth::Clean; ++rank) {
      outcome = compare(code.ranks[rank].tables, machine.arena(rank), reference, step);
      addLosses(code.ranks[rank].tables, machine.arena(rank), losses);
    }
    if (outcome.truth == Truth::Clean)
      outcome = compareLosses(losses, reference, step);
    if (outcome.truth != Truth::Clean)
      return outcome;
  }
  return {};
}

Reference record(const Code &code, const Kernels &kernels, int64_t data) {
  Reference reference{data, {}};
  Machine machine(code, kernels, Adversary::Early, 0);
  for (int64_t step = 0; step < kSteps; ++step) {
    fillInputs(code.program, code.ranks[0].tables, step, data, machine.arena(0));
    if (machine.run(scalarsOf(step)).truth != Truth::Clean)
      return {data, {}};
    auto &after = reference.steps.emplace_back();
    auto keep = [&](const std::string &name, const double *values, const TensorSpec &tensor) {
      after[name].assign(values, values + tensor.elements());
    };
    visitAll(code.ranks[0].tables, machine.arena(0), keep);
    Losses losses;
    addLosses(code.ranks[0].tables, machine.arena(0), losses);
    for (auto &[name, loss] : losses)
      after[name] = {loss};
  }
  return reference;
}

} // namespace pp::fuzz
