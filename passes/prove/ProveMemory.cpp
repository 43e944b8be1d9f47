// Proves that no rank allocates more than its memory, or says when it is largest and what fills it then.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Counts the arena, and the scratch of kernels, messages and libraries beside it. Reports the contents of the arena at
// its largest live set, which is computed here anew from the lives of the slots (docs/proofs.md 8).
#include "analysis/Actions.h"
#include "analysis/Proof.h"
#include "analysis/lives/Scratch.h"
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
    std::vector<int64_t> limits = memoryLimitsOf(program, limit);
    int64_t arena = 0, beside = 0, nccl = 0, most = INT64_MIN;
    RankOp fullest; // where most is needed above the limit, or least is left
    for (auto rank : program.getOps<RankOp>()) {
      RankScratch scratch = scratchOf(rank);
      int64_t its = rank.getArenaBytes().value_or(0);
      arena = std::max(arena, its), beside = std::max(beside, scratch.total()), nccl = std::max(nccl, scratch.nccl);
      if (int64_t above = its + scratch.total() - limits[rank.getRank()]; above > most)
        fullest = rank, most = above;
    }
    if (!fullest)
      return success();
    bool isLimited = limits.front() >= 0, isOne = llvm::all_equal(limits);
    if (isLimited && most > 0)
      return report(fullest, limits[fullest.getRank()], isOne);
    SmallVector<Fact> facts = {{"largest", arena}};
    if (beside > 0)
      facts.push_back({"scratch", beside});
    if (nccl > 0)
      facts.push_back({"nccl", nccl});
    if (isLimited)
      facts.push_back(isOne ? Fact("limit", limits.front()) : Fact("limit", "of each rank's devices"));
    recordProof(program, "memory", facts);
    return success();
  }

  static std::string exactly(int64_t bytes) { return std::to_string(bytes) + " bytes (" + formatBytes(bytes) + ")"; }

  static LogicalResult report(RankOp rank, int64_t limit, bool isOne) {
    Peak peak = peakOf(rank, slotLives(rank));
    RankScratch scratch = scratchOf(rank);
    int64_t needed = rank.getArenaBytes().value_or(0) + scratch.total();
    auto error = emitError(peak.where ? peak.where->getLoc() : rank.getLoc());
    error << "rank " << rank.getRank() << " needs " << exactly(needed) << ", more than its limit of " << exactly(limit)
          << "; it is fullest at `" << describeInstant(peak.where) << "`";
    if (peak.where)
      error << withLoops(peak.where);
    auto roles = peak.there.takeVector();
    llvm::stable_sort(roles, [](auto &a, auto &b) { return a.second > b.second; });
    auto &note = error.attachNote(rank.getLoc()) << "most of it is ";
    llvm::interleaveComma(ArrayRef(roles).take_front(3), note,
                          [&](auto &role) { note << role.first << " " << formatBytes(role.second); });
    if (scratch.total() > 0)
      note << "; scratch beside them: " << scratch.str();
    auto &hint = error.attachNote(rank.getLoc());
    if (isOne)
      hint << "the smallest limit that passes is " << needed << " (`--memory-limit=" << needed << "`)";
    else
      hint << "it passes if each device of this rank has a `memory` of " << needed;
    if (peak.bytes + scratch.total() <= limit)
      hint << "; the values that are alive at once would fit, with " << exactly(peak.bytes + scratch.total())
           << "; the gaps of the plan do not";
    return failure();
  }
};

} // namespace
