// `pp-compile --plan`: replaces the order of a schedule's units by a shorter one that fits the memory.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_PLAN_PLAN_H
#define PP_PASSES_PLAN_PLAN_H

#include "analysis/Simulate.h"
#include "mlir/IR/BuiltinOps.h"
#include "passes/Passes.h"

namespace pp {

/// How the program is compiled and simulated.
struct PlanRequest {
  ProofOptions proofs;
  ChangeOptions changes;
  Manner manner;
};

/// Plans the module's program, which is at the level of actions. Its units get the best order that is found, its claims
/// on memory (`limit`) are dropped, and a remark says what is gained; a schedule that is as good stays as it is. Every
/// order that counts was compiled, proved and simulated. Fails after an error where the program cannot be planned or
/// nothing fits the memory.
mlir::LogicalResult planProgram(mlir::ModuleOp module, const PlanRequest &request);

} // namespace pp

#endif // PP_PASSES_PLAN_PLAN_H
