// The work of a step if ranks share it, which the search hopes for: stages without work and slow ranks count, too.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Frontend.h"
#include "mlir/IR/BuiltinOps.h"
#include "passes/plan/Plan.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// Of a model of three layers on four ranks: the first has the embedding alone, the second nothing, the others two
/// layers, and one with the head. `figures` of the devices, or costs of parts.
PlanOutcome outcomeOf(const std::string &figures, const std::string &costs) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, nn::NnDialect, PipelineDialect>();
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  context.loadAllAvailableDialects();
  FrontendOptions options;
  options.stdlibDir = PP_STDLIB_DIR;
  options.cluster = "given";
  options.defines = {{"schedule", "megatron"}, {"layout", "E||tt|tL"}, {"ranks", "4"},   {"microbatches", "8"},
                     {"layers", "3"},          {"hidden", "8"},        {"heads", "1"},   {"ffn", "8"},
                     {"vocab", "8"},           {"microbatch", "1"},    {"sequence", "4"}};
  auto file = llvm::MemoryBuffer::getFile(PP_STDLIB_DIR "/../examples/train.pipe");
  std::string text = (*file)->getBuffer().str() + "cluster given { ranks 4  memory 1e9  device " + figures +
                     "  inside bandwidth = 1e9, latency = 1e-6 }\n";
  llvm::SourceMgr manager;
  manager.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBufferCopy(text), {});
  OwningOpRef<ModuleOp> module = importPipe(manager, &context, options);
  PlanRequest request;
  request.changes.costs = costs;
  FailureOr<PlanOutcome> outcome = failure();
  if (module && (costs.empty() || succeeded(setPartCosts(*module->getOps<ProgramOp>().begin(), costs))))
    outcome = outcomeAsWritten(*module, request);
  EXPECT_TRUE(succeeded(outcome));
  return succeeded(outcome) ? *outcome : PlanOutcome();
}

} // namespace

// A layer takes 1 in F, 1 in I and 1 in W, the head 2: 8 microbatches of 9 + 6 are 120, of which the last rank has
// 8 * (3 + 6).
TEST(SharedWork, RanksWithoutWork) {
  PlanOutcome outcome = outcomeOf("f32 = 1e9, bandwidth = 1e9", "qkv=1,head=2,rest=0");
  EXPECT_DOUBLE_EQ(outcome.bound, 72);
  EXPECT_DOUBLE_EQ(outcome.shared, 30);
  EXPECT_FALSE(outcome.hasPairs);
}

// If the units take T on a fast rank, they take 3 T on a rank that is a third as fast: four fast ranks need T / 4, two
// of each 1 / (2 / T + 2 / (3 T)), which is half as much again. It does not matter who has which units now.
TEST(SharedWork, RanksOfTwoSpeeds) {
  double fast = outcomeOf("f32 = 3e9, bandwidth = 3e9", "").shared;
  EXPECT_GT(fast, 0);
  for (const char *speeds : {"[3e9, 3e9, 1e9, 1e9]", "[1e9, 3e9, 3e9, 1e9]"}) {
    double mixed = outcomeOf(std::string("f32 = ") + speeds + ", bandwidth = " + speeds, "").shared;
    EXPECT_NEAR(mixed / fast, 1.5, 1e-9) << speeds;
  }
}
