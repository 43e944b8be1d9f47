// Gives every slot an offset in its rank's arena, so that slots alive at the same time never overlap.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: slots without offsets.  After: offsets, `arena` and `peak` (largest live sum by role) on the rank.
//
//   bytes ^  |W0.......|         |W0'......|       a home keeps its place: its gap serves others
//         |  |A0..|A2.....|A4..|                   first fit by start, lowest address first
//         |  |   |A1..|A3...|                      -> position
//
// Two orders are tried, by start (good for the regular lives of a pipeline) and, if that needs more than the largest
// live sum, by size; the smaller arena wins.
#include "mlir/IR/Threading.h"
#include "passes/Actions.h"
#include "passes/Passes.h"
#include "passes/SlotLives.h"
#include <numeric>

namespace pp {
#define GEN_PASS_DEF_PLANSLOTS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

struct Layout {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};

bool meet(const SlotLife &a, const SlotLife &b) {
  for (Segment x : a.segments)
    for (Segment y : b.segments)
      if (x.first <= y.last && y.first <= x.last)
        return true;
  return false;
}

/// First fit in the given order; `byStart`: it is sorted by start, so slots that have ended never matter again.
Layout firstFit(ArrayRef<SlotLife> lives, ArrayRef<size_t> order, bool byStart) {
  Layout layout;
  layout.offsets.assign(lives.size(), 0);
  std::vector<size_t> placed; // candidates for conflicts; the dead are dropped when ordered by start
  for (size_t slot : order) {
    const SlotLife &life = lives[slot];
    if (byStart)
      llvm::erase_if(placed,
                     [&](size_t other) { return lives[other].segments.back().last < life.segments.front().first; });
    SmallVector<std::pair<int64_t, int64_t>> taken;
    for (size_t other : placed)
      if (meet(life, lives[other]))
        taken.push_back({layout.offsets[other], layout.offsets[other] + lives[other].bytes});
    llvm::sort(taken);
    int64_t offset = 0;
    for (auto [begin, end] : taken) {
      if (offset + life.bytes <= begin)
        break;
      offset = std::max(offset, end);
    }
    layout.offsets[slot] = offset;
    layout.bytes = std::max(layout.bytes, offset + life.bytes);
    placed.push_back(slot);
  }
  return layout;
}

Layout plan(ArrayRef<SlotLife> lives, int64_t largestLiveSum) {
  std::vector<size_t> order(lives.size());
  std::iota(order.begin(), order.end(), 0);
  // Slots that live in several segments first: they are few, and everything else fits around them.
  llvm::stable_sort(order, [&](size_t a, size_t b) {
    bool manyA = lives[a].segments.size() > 1, manyB = lives[b].segments.size() > 1;
    return manyA != manyB ? manyA : lives[a].segments.front().first < lives[b].segments.front().first;
  });
  Layout best = firstFit(lives, order, true);
  if (best.bytes == largestLiveSum || lives.size() > 4000) // quadratic below
    return best;
  llvm::stable_sort(order, [&](size_t a, size_t b) { return lives[a].bytes > lives[b].bytes; });
  Layout bySize = firstFit(lives, order, false);
  return bySize.bytes < best.bytes ? bySize : best;
}

struct PlanSlots : public pp::impl::PlanSlotsBase<PlanSlots> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      parallelForEach(&getContext(), llvm::to_vector(program.getOps<RankOp>()), [](RankOp rank) { planRank(rank); });
  }

  static void planRank(RankOp rank) {
    Builder builder(rank.getContext());
    std::vector<SlotLife> lives = slotLives(rank);
    Peak peak = peakOf(rank, lives);
    Layout layout = plan(lives, peak.bytes);
    for (auto [life, offset] : llvm::zip(lives, layout.offsets))
      life.op.setOffsetAttr(builder.getI64IntegerAttr(offset));
    for (auto slot : rank.getOps<SlotOp>())
      if (!slot.getOffset()) // never touched
        slot.setOffsetAttr(builder.getI64IntegerAttr(0));
    rank.setArenaBytesAttr(builder.getI64IntegerAttr(layout.bytes));
    SmallVector<NamedAttribute> entries;
    for (auto [role, bytes] : peak.byRole)
      entries.push_back(builder.getNamedAttr(role, builder.getI64IntegerAttr(bytes)));
    entries.push_back(builder.getNamedAttr("total", builder.getI64IntegerAttr(layout.bytes)));
    entries.push_back(builder.getNamedAttr("live", builder.getI64IntegerAttr(peak.bytes)));
    rank->setAttr("peak", builder.getDictionaryAttr(entries));
  }
};

} // namespace
