// The pass shells of what is also called as a function: derive-tasks and plan-bodies.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Passes.h"
#include "passes/derive/DeriveTasks.h"
#include "passes/project/PlanBodies.h"

namespace pp {
#define GEN_PASS_DEF_DERIVETASKS
#define GEN_PASS_DEF_PLANBODIES
#include "passes/Passes.h.inc"
} // namespace pp

namespace {

struct DeriveTasks : public pp::impl::DeriveTasksBase<DeriveTasks> {
  void runOnPrograms() override {
    if (failed(pp::deriveTasks(getOperation())))
      signalPassFailure();
  }
};

struct PlanBodies : public pp::impl::PlanBodiesBase<PlanBodies> {
  void runOnOperation() override {
    if (failed(pp::planBodies(getOperation())))
      signalPassFailure();
  }
};

} // namespace
