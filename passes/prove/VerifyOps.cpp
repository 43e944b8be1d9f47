// Checks that every op of the module is well formed: once a level, where MLIR would do so after every pass.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "mlir/IR/Verifier.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_VERIFYOPS
#include "passes/Passes.h.inc"
} // namespace pp

namespace {

struct VerifyOps : public pp::impl::VerifyOpsBase<VerifyOps> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    if (failed(mlir::verify(getOperation())))
      signalPassFailure();
  }
};

} // namespace
