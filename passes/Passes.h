// The passes of `pp` and the pipeline that strings them together.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_PASSES_H
#define PP_PASSES_PASSES_H

#include "analysis/Execution.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"
#include "passes/Levels.h"
#include "llvm/ADT/SetVector.h"

namespace pp {

class UnitTimes;

#define GEN_PASS_DECL
#include "passes/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "passes/Passes.h.inc"

/// How far the pipeline goes: to the step (one global order) or to the planned and proved rank programs.
enum class Until { Step, Ranks };

/// What the proofs check against: the backend's channel map (none: each of them), and the bytes that a rank may
/// allocate (-1: the cluster's).
struct ProofOptions {
  std::optional<ChannelMap> channels = ChannelMap::edge;
  int64_t memoryLimit = -1;
};

/// Options that let passes change the schedule's program.
struct ChangeOptions {
  bool fuse = true;       ///< I and W side by side become B where nobody sees the difference (FuseUnits.cpp)
  bool hoist = false;     ///< weights leave earlier where the step gains by it (HoistMoves.cpp)
  std::string costs;      ///< by which it does, as pp-compile --costs
  bool forward = false;   ///< a program for evaluation beside that for training (DeriveForward.cpp)
  bool epilogues = false; ///< products take the gelu or the bias gradient beside them along (FuseEpilogues.cpp)
  bool interleave = true; ///< units of one `together` hide each other's exchanges (JoinUnits.cpp)
  bool improve = true;    ///< memory plans get smaller also where they fit the memory as they are (ImprovePlan.cpp)
};

/// The whole way from elaborated actions, in order; passes/Pipeline.cpp gives one reason a line.
void buildPipeline(mlir::OpPassManager &manager, Until until = Until::Ranks, const ProofOptions &proofs = {},
                   const ChangeOptions &changes = {});
/// The same for rank programs that a file holds: their bodies are proved, too.
void buildPipelineOfFile(mlir::OpPassManager &manager, const ProofOptions &proofs = {});
/// Its last part: the proofs of planned rank programs.
void addProofs(mlir::OpPassManager &manager, const ProofOptions &proofs);
/// The ranks on which an op of the step stands: of a move both ends.
llvm::SmallSetVector<int64_t, 4> ranksOf(mlir::Operation *op);
/// Moves receives up until the rank runs for `least` between them and what waits for them; a part of project-ranks.
void postReceivesAhead(pipeline::RankOp rank, const UnitTimes &times, double least);

} // namespace pp

#endif // PP_PASSES_PASSES_H
