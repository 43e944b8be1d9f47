// Checks that every op of the module is well formed: once a level, where MLIR would do so after every pass.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "mlir/IR/Threading.h"
#include "mlir/IR/Verifier.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_VERIFYOPS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// Verifies in parallel the ops of the step, or the ranks with their ops; then the program itself and the order of its
/// values.
LogicalResult verifyProgram(ProgramOp program) {
  SmallVector<Operation *> parts;
  for (Operation &op : program.getBody().front())
    parts.push_back(&op);
  return success(
      succeeded(failableParallelForEach(program.getContext(), parts, [](Operation *part) { return verify(part); })) &&
      succeeded(verify(program, /*verifyRecursively=*/false)));
}

struct VerifyOps : public pp::impl::VerifyOpsBase<VerifyOps> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    for (Operation &op : *getOperation().getBody()) {
      auto program = dyn_cast<ProgramOp>(op);
      if (failed(program ? verifyProgram(program) : verify(&op)))
        return signalPassFailure();
    }
    if (failed(verify(getOperation(), /*verifyRecursively=*/false)))
      signalPassFailure();
  }
};

} // namespace
