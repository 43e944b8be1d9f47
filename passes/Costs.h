// What tasks and messages cost: in the units that papers count in, by a cluster's data sheet, or as measured.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_COSTS_H
#define PP_PASSES_COSTS_H

#include "dialect/Pipeline.h"

namespace pp {

/// The way of one message: it has its links to itself for `transfer`, and is there `latency` later.
struct Route {
  double latency = 0, transfer = 0;
  llvm::SmallVector<std::string, 2> links; ///< names; two messages that share one go one after the other
};

/// What tasks and messages cost, in seconds or (unit costs) in any unit of time.
class CostModel {
public:
  virtual ~CostModel() = default;
  /// How long this launch takes on this rank.
  virtual double of(int64_t rank, pipeline::LaunchOp launch) const = 0;
  /// `ranks` are sender and receiver (`kind` is send), or the members of a collective.
  virtual Route route(pipeline::PostKind kind, llvm::ArrayRef<int64_t> ranks, int64_t bytes) const;
  /// True where times are multiples of a unit and not seconds.
  virtual bool isUnitTime() const { return false; }
};

/// The costs papers count in; messages and everything that is not a unit take no time.
struct UnitCosts : CostModel {
  double forward = 1, backward = 2, inputs = 1, weights = 1, recompute = 1;
  UnitCosts() = default;
  UnitCosts(double forward, double backward, double inputs, double weights, double recompute)
      : forward(forward), backward(backward), inputs(inputs), weights(weights), recompute(recompute) {}
  double of(int64_t rank, pipeline::LaunchOp launch) const override;
  bool isUnitTime() const override { return true; }
};

} // namespace pp

#endif // PP_PASSES_COSTS_H
