// Runs the planned rank programs in model time: when each unit starts and ends, who waits, what is sent.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_SIMULATE_H
#define PP_PASSES_SIMULATE_H

#include "dialect/Pipeline.h"

namespace pp {

/// How long units take, in any unit of time; messages take none.
struct CostModel {
  double forward = 1, backward = 2, inputs = 1, weights = 1, recompute = 1;
  double of(pipeline::Phase phase) const;
};

/// One launch of a unit of F, B, I, W or R.
struct Span {
  pipeline::UnitIdAttr unit;
  double start, end;
};

struct Timeline {
  std::vector<std::vector<Span>> ranks;
  double makespan = 0; ///< from the first start to the last end of a unit
  double busy(int64_t rank) const;
};

/// The rank programs must be proved (no deadlock). Runs them with messages that take no time and zero buffering.
Timeline simulate(pipeline::ProgramOp program, const CostModel &costs);

} // namespace pp

#endif // PP_PASSES_SIMULATE_H
