// Gives every slot an offset in its rank's arena, so that slots alive at the same time never overlap.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: slots without offsets.  After: offsets, `arena` and `peak` (largest live sum by role) on the rank.
//
//   bytes ^  |W0.......|         |W0'......|       a home keeps its place: its gap serves others
//         |  |A0..|A2.....|A4..|                   first fit by start, lowest address first
//         |  |   |A1..|A3...|                      -> position
//
// First fit by start is right for the regular lives of a pipeline; if it needs more than the largest live sum, which no
// plan can go below, ImprovePlan.cpp tries others. Slots in host memory are planned by themselves, in an arena of their own.
#include "mlir/IR/Threading.h"
#include "passes/Actions.h"
#include "passes/Passes.h"
#include "passes/SlotLives.h"
#include <map>
#include <numeric>
#include <queue>

namespace pp {
#define GEN_PASS_DEF_PLANSLOTS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

struct Layout : SlotLayout {
  explicit Layout(size_t slots) { offsets.assign(slots, 0); }
  void place(size_t slot, int64_t offset, int64_t size) {
    offsets[slot] = offset;
    bytes = std::max(bytes, offset + size);
  }
};

using Range = std::pair<int64_t, int64_t>;

/// The lowest place from `begin` on that none of the sorted ranges overlaps.
int64_t lowestFree(int64_t begin, int64_t bytes, ArrayRef<Range> taken) {
  for (auto [first, end] : taken)
    if (first < begin + bytes && begin < end)
      begin = end;
  return begin;
}

/// First fit in the given order, each slot among all those placed before it.
void firstFit(ArrayRef<SlotLife> lives, ArrayRef<size_t> order, Layout &layout) {
  for (auto [i, slot] : llvm::enumerate(order)) {
    SmallVector<Range> taken;
    for (size_t other : order.take_front(i))
      if (meet(lives[slot], lives[other]))
        taken.push_back({layout.offsets[other], layout.offsets[other] + lives[other].bytes});
    llvm::sort(taken);
    layout.place(slot, lowestFree(0, lives[slot].bytes, taken), lives[slot].bytes);
  }
}

/// What is free while a sweep goes from start to start: gaps by offset, few however many slots are alive.
class FreeRanges {
public:
  int64_t take(int64_t bytes, ArrayRef<Range> alsoTaken) {
    for (auto [begin, end] : gaps) {
      int64_t offset = lowestFree(begin, bytes, alsoTaken);
      if (offset + bytes > end)
        continue;
      Range gap(begin, end);
      gaps.erase(begin);
      if (gap.first < offset)
        gaps[gap.first] = offset;
      if (offset + bytes < gap.second)
        gaps[offset + bytes] = gap.second;
      return offset;
    }
    llvm_unreachable("the last gap has no end");
  }
  void release(int64_t begin, int64_t end) {
    auto after = gaps.lower_bound(begin);
    if (after != gaps.end() && after->first == end) {
      end = after->second;
      after = gaps.erase(after);
    }
    if (after != gaps.begin() && std::prev(after)->second == begin)
      std::prev(after)->second = end;
    else
      gaps[begin] = end;
  }

private:
  std::map<int64_t, int64_t> gaps = {{0, std::numeric_limits<int64_t>::max()}}; // begin -> end
};

/// First fit by start for slots of one segment, around those that are placed: a sweep, in n log n.
void firstFitByStart(ArrayRef<SlotLife> lives, ArrayRef<size_t> order, ArrayRef<size_t> placed, Layout &layout) {
  FreeRanges free;
  using Ending = std::pair<int64_t, size_t>; // last position, slot
  std::priority_queue<Ending, std::vector<Ending>, std::greater<Ending>> alive;
  for (size_t slot : order) {
    const SlotLife &life = lives[slot];
    if (life.bytes == 0)
      continue;
    for (; !alive.empty() && alive.top().first < life.segments.front().first; alive.pop()) {
      size_t ended = alive.top().second;
      free.release(layout.offsets[ended], layout.offsets[ended] + lives[ended].bytes);
    }
    SmallVector<Range> taken;
    for (size_t other : placed)
      if (meet(life, lives[other]))
        taken.push_back({layout.offsets[other], layout.offsets[other] + lives[other].bytes});
    llvm::sort(taken);
    layout.place(slot, free.take(life.bytes, taken), life.bytes);
    alive.push({life.segments.back().last, slot});
  }
}

SlotLayout plan(ArrayRef<SlotLife> lives, int64_t largestLiveSum, int64_t work) {
  // Slots that live in several segments first: they are few, and everything else fits around them.
  std::vector<size_t> order(lives.size());
  std::iota(order.begin(), order.end(), 0);
  auto single =
      std::stable_partition(order.begin(), order.end(), [&](size_t slot) { return lives[slot].segments.size() > 1; });
  ArrayRef<size_t> all(order), homes = all.take_front(single - order.begin());
  Layout best(lives.size());
  firstFit(lives, homes, best);
  firstFitByStart(lives, all.drop_front(homes.size()), homes, best);
  return best.bytes == largestLiveSum ? best : improvePlan(lives, largestLiveSum, std::move(best), work);
}

struct PlanSlots : public pp::impl::PlanSlotsBase<PlanSlots> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      int64_t work = std::min<int64_t>(kRankWork, kProgramWork / std::max<int64_t>(program.getRanks(), 1));
      parallelForEach(&getContext(), llvm::to_vector(program.getOps<RankOp>()),
                      [&](RankOp rank) { planRank(rank, work); });
    }
  }

  /// Slots looked at in search of a better plan: about a fifth of a second a rank, two a program.
  static constexpr int64_t kRankWork = 40'000'000, kProgramWork = 400'000'000;

  static void setOffsets(ArrayRef<SlotLife> lives, const SlotLayout &layout) {
    for (auto [life, offset] : llvm::zip(lives, layout.offsets))
      SlotOp(life.op).setOffsetAttr(IntegerAttr::get(IntegerType::get(SlotOp(life.op).getContext(), 64), offset));
  }

  static void planRank(RankOp rank, int64_t work) {
    Builder builder(rank.getContext());
    std::vector<SlotLife> lives = slotLives(rank);
    Peak peak = peakOf(rank, lives);
    SlotLayout layout = plan(lives, peak.bytes, work);
    setOffsets(lives, layout);
    std::vector<SlotLife> hostLives = slotLives(rank, /*host=*/true);
    SlotLayout host = plan(hostLives, peakOf(rank, hostLives).bytes, work);
    setOffsets(hostLives, host);
    if (host.bytes > 0)
      rank.setHostBytesAttr(builder.getI64IntegerAttr(host.bytes));
    for (auto slot : rank.getOps<SlotOp>())
      if (!slot.getOffset()) // never touched
        slot.setOffsetAttr(builder.getI64IntegerAttr(0));
    rank.setArenaBytesAttr(builder.getI64IntegerAttr(layout.bytes));
    SmallVector<NamedAttribute> entries;
    for (auto [role, bytes] : peak.byRole)
      entries.push_back(builder.getNamedAttr(role, builder.getI64IntegerAttr(bytes)));
    entries.push_back(builder.getNamedAttr("total", builder.getI64IntegerAttr(layout.bytes)));
    if (host.bytes > 0)
      entries.push_back(builder.getNamedAttr("host", builder.getI64IntegerAttr(host.bytes)));
    entries.push_back(builder.getNamedAttr("live", builder.getI64IntegerAttr(peak.bytes)));
    rank->setAttr("peak", builder.getDictionaryAttr(entries));
  }
};

} // namespace
