// Refuses what a step without a barrier cannot do yet, before anything is derived for it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// With `barrier = false` each rank updates the weights of its pieces by itself, and may repeat the update in the next
// step (docs/barrier.md). Programs that need another rank's weights or gradients between the two updates are refused by
// name.
#include "analysis/Actions.h"
#include "analysis/Optimizer.h"
#include "analysis/Vocabulary.h"
#include "dialect/pipeline/Clauses.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_VERIFYBARRIER
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The feature of the program that needs a barrier, as the end of a sentence; empty if there is none.
static StringRef reasonOf(ProgramOp program) {
  if (MeshAttr mesh = program.getMeshAttr(); mesh && mesh.getZero() > 0)
    return "`zero` above 0";
  if (program.countUpdates() > 1)
    return "several updates a step";
  if (program.getTarget() == "cuda")
    return "--target=cuda";
  if (auto kept = program.getTrain().getAs<StringAttr>("gradients"); kept && kept.getValue().ends_with("16"))
    return "gradients of 16 bits";
  return "";
}

static StringRef reasonOf(const Pieces &pieces, int64_t piece) {
  if (pieces.isSharded(piece) || vocabularyShards(pieces, piece) > 0)
    return "is cut over ranks";
  if (pieces.homes(piece).size() > 1 || pieces.isReplicated(piece))
    return "has its weights on several ranks";
  if (pieces.homes(piece) != pieces.owners(piece))
    return "has its weights on another rank than its optimizer state";
  return "";
}

static LogicalResult refuse(Location loc, const Twine &what, const Twine &why = "") {
  return emitError(loc) << "`barrier = false` does not go with " << what << " yet" << why;
}

static LogicalResult verify(ProgramOp program) {
  if (StringRef reason = reasonOf(program); !reason.empty())
    return refuse(clauseLoc(program, "optimizer.barrier"), reason);
  Pieces pieces(program);
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    if (StringRef reason = reasonOf(pieces, piece); !reason.empty())
      return refuse(pieces.op(piece).getLoc(), "this schedule", ": " + pieces.describe(piece) + " " + reason);
  auto moved = program.walk([&](TransferOp move) {
    if (llvm::is_contained({Role::act, Role::dact, Role::kv, Role::dkv}, move.getThing().getRole()))
      return WalkResult::advance();
    (void)refuse(move.getLoc(), "a schedule that moves `" + move.getThing().str() + "`");
    return WalkResult::interrupt();
  });
  if (moved.wasInterrupted())
    return failure();
  for (auto part : program->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
    if (auto routes = part.getOps<nn::Chooses>(); !routes.empty())
      return refuse((*routes.begin())->getLoc(), "mixtures of experts");
  return success();
}

namespace {
struct VerifyBarrier : public pp::impl::VerifyBarrierBase<VerifyBarrier> {
  void runOnPrograms() override {
    markAllAnalysesPreserved();
    for (auto program : getOperation().getOps<ProgramOp>())
      if (!Optimizer(program).hasBarrier() && failed(verify(program)))
        return signalPassFailure();
  }
};
} // namespace
