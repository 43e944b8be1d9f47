// Proves that no rank allocates more than its memory, or says when it is largest and what fills it then.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What counts is the arena, which is all that a step allocates; how it is filled is told at its largest live set,
// computed here anew from the lives of the slots (docs/proofs.md 8).
#include "analysis/Actions.h"
#include "analysis/Proof.h"
#include "analysis/lives/SlotLives.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_PROVEMEMORY
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

struct ProveMemory : public pp::impl::ProveMemoryBase<ProveMemory> {
  using ProveMemoryBase::ProveMemoryBase;

  void runOnPrograms() override {
    markAllAnalysesPreserved();
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(prove(program)))
        return signalPassFailure();
  }

  LogicalResult prove(ProgramOp program) {
    int64_t bytes = memoryLimitOf(program, limit);
    RankOp largest;
    for (auto rank : program.getOps<RankOp>())
      if (!largest || rank.getArenaBytes().value_or(0) > largest.getArenaBytes().value_or(0))
        largest = rank;
    if (!largest)
      return success();
    int64_t most = largest.getArenaBytes().value_or(0);
    if (bytes >= 0 && most > bytes)
      return report(largest, bytes);
    SmallVector<Fact> facts = {{"largest", most}};
    if (bytes >= 0)
      facts.push_back({"limit", bytes});
    recordProof(program, "memory", facts);
    return success();
  }

  static std::string exactly(int64_t bytes) { return std::to_string(bytes) + " bytes (" + formatBytes(bytes) + ")"; }

  static LogicalResult report(RankOp rank, int64_t limit) {
    Peak peak = peakOf(rank, slotLives(rank));
    int64_t arena = rank.getArenaBytes().value_or(0);
    auto error = emitError(peak.where ? peak.where->getLoc() : rank.getLoc());
    error << "rank " << rank.getRank() << " needs " << exactly(arena) << ", more than its limit of " << exactly(limit)
          << "; it is fullest at `" << describeInstant(peak.where) << "`";
    if (peak.where)
      error << withLoops(peak.where);
    auto roles = peak.there.takeVector();
    llvm::stable_sort(roles, [](auto &a, auto &b) { return a.second > b.second; });
    auto &note = error.attachNote(rank.getLoc()) << "most of it is ";
    llvm::interleaveComma(ArrayRef(roles).take_front(3), note,
                          [&](auto &role) { note << role.first << " " << formatBytes(role.second); });
    auto &hint = error.attachNote(rank.getLoc())
                 << "the smallest limit that passes is " << arena << " (`--memory-limit=" << arena << "`)";
    if (peak.bytes <= limit)
      hint << "; the values that are alive at once would fit, with " << exactly(peak.bytes)
           << "; the gaps of the plan do not";
    return failure();
  }
};

} // namespace
