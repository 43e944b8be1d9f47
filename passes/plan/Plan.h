// `pp-compile --plan`: replaces the order of a schedule's units by a shorter one that fits the memory.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_PLAN_PLAN_H
#define PP_PASSES_PLAN_PLAN_H

#include "analysis/Simulate.h"
#include "analysis/plan/Planner.h"
#include "mlir/IR/BuiltinOps.h"
#include "passes/Passes.h"
#include "passes/plan/PlanProblem.h"
#include <cmath>

namespace pp {

/// How to compile and simulate the program.
struct PlanRequest {
  ProofOptions proofs;
  ChangeOptions changes;
  Manner manner;
  PlanEffort effort = PlanEffort::Normal;
  double worthBelow = INFINITY; ///< a program whose bound is not below this is not planned
};

/// A program as it was compiled, proved and simulated in its best order.
struct PlanOutcome {
  double makespan = 0, step = 0, bubble = 0;
  double bound = 0; ///< on the makespan; 0 if nothing is known
  int64_t peak = 0; ///< bytes of the rank that needs most
  bool isUnitTime = true;
  std::string seed;         ///< where the order comes from
  std::vector<double> work; ///< by stage: of a microbatch
  double shared = 0;        ///< as written: the work of each rank if they share all work by their speeds
  bool hasPairs = false;    ///< as written: units run side by side
  double fill = 0;          ///< as written: of its limit, what the rank needs that needs the largest share of its own
};

/// Plans the module's program, which is at the level of actions. Its units get the best order that is found, its claims
/// on memory (`limit`) are dropped, and a remark says what is gained; a schedule that is as good stays as it is. Every
/// order that counts was compiled, proved and simulated. Fails after an error where the program cannot be planned or
/// nothing fits the memory.
mlir::LogicalResult planProgram(mlir::ModuleOp module, const PlanRequest &request);
/// The same of a module of one program, without the remark.
mlir::FailureOr<PlanOutcome> planOutcome(mlir::ModuleOp module, const PlanRequest &request);

/// What the planner knows of a program before it plans.
struct PlanModel {
  std::vector<TimedProblem> forms;             ///< with whole backwards, where there are only such, and with halves
  std::vector<std::vector<std::string>> parts; ///< by stage: of the model
};
mlir::FailureOr<PlanModel> planModel(mlir::ModuleOp module, const PlanRequest &request);

/// Compiles, proves and simulates the program as it is. Its bound is the work of the busiest rank. Whether it fits the
/// memory is the caller's to judge.
mlir::FailureOr<PlanOutcome> outcomeAsWritten(mlir::ModuleOp module, const PlanRequest &request);

/// A time for people: a plain number of units, or us, ms or s.
std::string planTime(double time, bool isUnitTime);

} // namespace pp

#endif // PP_PASSES_PLAN_PLAN_H
