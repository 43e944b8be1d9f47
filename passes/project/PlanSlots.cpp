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
// plan can go below, ImprovePlan.cpp tries others. Slots in host memory are planned by themselves, in an arena of their
// own. A forward program is planned after the training program, in its arena: weights, optimizer state and older
// weights have their places from there, and the other slots lie around them.
#include "analysis/Actions.h"
#include "analysis/Proof.h"
#include "analysis/lives/Scratch.h"
#include "mlir/IR/Threading.h"
#include "passes/Passes.h"
#include "passes/project/SlotLayout.h"
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

using Range = std::pair<int64_t, int64_t>;

static void place(SlotLayout &layout, size_t slot, int64_t offset, int64_t bytes) {
  layout.offsets[slot] = offset;
  layout.bytes = std::max(layout.bytes, offset + bytes);
}

/// The lowest place from `begin` on that none of the sorted ranges overlaps.
static int64_t lowestFree(int64_t begin, int64_t bytes, ArrayRef<Range> taken) {
  for (auto [first, end] : taken)
    if (first < begin + bytes && begin < end)
      begin = end;
  return begin;
}

/// The places of the other slots that live at the same time.
static SmallVector<Range> besides(ArrayRef<SlotLife> lives, size_t slot, ArrayRef<size_t> others,
                                  const SlotLayout &layout) {
  SmallVector<Range> taken;
  for (size_t other : others)
    if (meet(lives[slot], lives[other]))
      taken.push_back({layout.offsets[other], layout.offsets[other] + lives[other].bytes});
  llvm::sort(taken);
  return taken;
}

void pp::firstFit(ArrayRef<SlotLife> lives, ArrayRef<size_t> order, int64_t bottom, SlotLayout &layout) {
  for (auto [i, slot] : llvm::enumerate(order)) {
    SmallVector<Range> taken = besides(lives, slot, order.take_front(i), layout);
    place(layout, slot, lowestFree(bottom, lives[slot].bytes, taken), lives[slot].bytes);
  }
}

namespace {

/// Slots looked at in search of a better plan: about a fifth of a second a rank, two a program; twice that with slots
/// apart. Where a plan has few bytes above the bound, less: as many as they are worth.
constexpr int64_t kRankWork = 40'000'000, kProgramWork = 400'000'000, kLeastWork = 1'000'000, kWorkPerByte = 400;

/// The free ranges while a sweep goes from start to start: gaps by offset. They are few, however many slots are alive.
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
void firstFitByStart(ArrayRef<SlotLife> lives, ArrayRef<size_t> order, ArrayRef<size_t> placed, SlotLayout &layout) {
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
    place(layout, slot, free.take(life.bytes, besides(lives, slot, placed, layout)), life.bytes);
    alive.push({life.segments.back().last, slot});
  }
}

/// Slots that have a place keep it. The next ones are slots that live in several segments: they are few, and everything
/// else fits around them. The others follow by their start, or by their size if `bySize` is set.
SlotLayout firstFitOf(ArrayRef<SlotLife> lives, bool keeps, bool bySize = false) {
  std::vector<size_t> order(lives.size());
  std::iota(order.begin(), order.end(), 0);
  auto isPlaced = [&](size_t slot) { return keeps && SlotOp(lives[slot].op).getOffset(); };
  auto placed = std::stable_partition(order.begin(), order.end(), isPlaced);
  auto single =
      std::stable_partition(placed, order.end(), [&](size_t slot) { return lives[slot].segments.size() > 1; });
  if (bySize)
    std::stable_sort(single, order.end(), [&](size_t a, size_t b) { return lives[a].bytes > lives[b].bytes; });
  ArrayRef<size_t> all(order), first = all.take_front(single - order.begin());
  SlotLayout layout;
  layout.offsets.assign(lives.size(), 0);
  for (size_t slot : first.take_front(placed - order.begin()))
    place(layout, slot, *SlotOp(lives[slot].op).getOffset(), lives[slot].bytes);
  for (size_t i = placed - order.begin(); i < (bySize ? all.size() : first.size()); ++i) {
    SmallVector<Range> taken = besides(lives, all[i], all.take_front(i), layout);
    place(layout, all[i], lowestFree(0, lives[all[i]].bytes, taken), lives[all[i]].bytes);
  }
  if (!bySize)
    firstFitByStart(lives, all.drop_front(first.size()), first, layout);
  return layout;
}

/// A tensor that is handed on has one life and one place with the tensor that it was before.
struct Joined {
  std::vector<SlotLife> lives;
  std::vector<size_t> of; ///< by life before: the number of its own

  explicit Joined(ArrayRef<SlotLife> parts) {
    llvm::DenseMap<std::pair<Operation *, int64_t>, size_t> heirs;
    for (const SlotLife &part : parts) { // by start: what hands on before its heir
      auto heir = heirs.find({SlotOp(part.op), part.tensor});
      of.push_back(heir == heirs.end() ? lives.size() : heir->second);
      if (heir == heirs.end())
        lives.push_back(part);
      else
        lives[of.back()].segments.back().last = part.segments.back().last;
      if (part.heir.slot)
        heirs[{SlotOp(part.heir.slot), part.heir.tensor}] = of.back();
    }
  }
};

/// A plan of one of a rank's arenas.
struct Plan {
  std::vector<SlotLife> lives;
  Peak peak;
  Joined joined;
  SlotLayout layout;

  /// `keeps`: slots that have their places stay there.
  Plan(RankOp rank, bool host, bool apart, bool keeps = false)
      : lives(slotLives(rank, host, apart)), peak(peakOf(rank, lives)), joined(lives),
        layout(firstFitOf(joined.lives, keeps)) {}
  bool isGood(int64_t enough) const { return layout.bytes <= std::max(enough, peak.bytes + peak.bytes / 50); }
  void improve(int64_t enough, int64_t work) {
    if (int64_t more = layout.bytes - peak.bytes; more > 0)
      layout = improvePlan(joined.lives, peak.bytes, std::move(layout), enough,
                           std::min(work, kLeastWork + more * kWorkPerByte));
  }

  void setOffsets(MLIRContext *context) const {
    Builder builder(context);
    llvm::MapVector<Operation *, SmallVector<int64_t>> places; // of slots whose tensors lie apart, which stand in order
    llvm::DenseMap<int64_t, IntegerAttr> numbers;              // few, each for many slots
    for (auto [life, number] : llvm::zip(lives, joined.of)) {
      IntegerAttr &offset = numbers[layout.offsets[number]];
      if (!offset)
        offset = builder.getI64IntegerAttr(layout.offsets[number]);
      if (life.tensor < 0)
        SlotOp(life.op).setOffsetAttr(offset);
      else
        places[SlotOp(life.op)].push_back(layout.offsets[number]);
    }
    for (auto &[slot, offsets] : places)
      cast<SlotOp>(slot).setPlaces(offsets);
  }
};

/// Plans whole slots first. Plans their tensors apart only if whole slots leave gaps, and `work` finds no plan without
/// them. A plan of at most `enough` bytes is not made better.
Plan planArena(RankOp rank, bool host, int64_t enough, int64_t work) {
  Plan plan(rank, host, /*apart=*/false);
  plan.improve(enough, work);
  if (plan.isGood(enough))
    return plan;
  Plan apart(rank, host, /*apart=*/true);
  if (apart.lives.size() > plan.lives.size())
    apart.improve(enough, work);
  return apart.layout.bytes < plan.layout.bytes ? std::move(apart) : std::move(plan);
}

/// `host`: of its host memory; null if it has none.
void setPlan(RankOp rank, const Plan &plan, const Plan *host) {
  Builder builder(rank.getContext());
  plan.setOffsets(rank.getContext());
  int64_t hostBytes = host ? host->layout.bytes : 0;
  if (host)
    host->setOffsets(rank.getContext());
  if (hostBytes > 0)
    rank.setHostBytesAttr(builder.getI64IntegerAttr(hostBytes));
  for (auto slot : rank.getOps<SlotOp>())
    if (!slot.getOffset() && !slot.getPlaces()) // never touched
      slot.setOffsetAttr(builder.getI64IntegerAttr(0));
  rank.setArenaBytesAttr(builder.getI64IntegerAttr(plan.layout.bytes));
  SmallVector<NamedAttribute> entries;
  for (auto [role, bytes] : plan.peak.byRole)
    entries.push_back(builder.getNamedAttr(role, builder.getI64IntegerAttr(bytes)));
  entries.push_back(builder.getNamedAttr("total", builder.getI64IntegerAttr(plan.layout.bytes)));
  if (hostBytes > 0)
    entries.push_back(builder.getNamedAttr("host", builder.getI64IntegerAttr(hostBytes)));
  entries.push_back(builder.getNamedAttr("live", builder.getI64IntegerAttr(plan.peak.bytes)));
  rank.setPeakAttr(builder.getDictionaryAttr(entries));
}

/// Gives what is kept from step to step the places that it has in the training program. Where that one has more of it,
/// optimizer state and older weights, the forward program gets a slot that nothing touches.
void keepPlaces(RankOp training, RankOp forward) {
  llvm::DenseMap<Attribute, SlotOp> slots; // by binding
  for (auto slot : forward.getOps<SlotOp>())
    if (slot.getBinding())
      slots[slot.getBindingAttr()] = slot;
  OpBuilder builder = OpBuilder::atBlockBegin(&forward.getBody().front());
  for (auto slot : training.getOps<SlotOp>())
    if (BindingAttr binding = slot.getBindingAttr(); binding && binding.isThereBefore() && binding.isThereAfter()) {
      SlotOp own = slots.lookup(slot.getBindingAttr());
      if (!own)
        own = cast<SlotOp>(builder.clone(*slot));
      own.setOffsetAttr(slot.getOffsetAttr());
    }
}

/// Plans in the training program's arena, and makes it larger if it is too small.
void planForward(RankOp training, RankOp forward) {
  keepPlaces(training, forward);
  Plan plan(forward, /*host=*/false, /*apart=*/false, /*keeps=*/true);
  int64_t arena = static_cast<int64_t>(training.getArenaBytes().value_or(0));
  if (plan.layout.bytes > arena)
    if (SlotLayout other = firstFitOf(plan.joined.lives, /*keeps=*/true, /*bySize=*/true);
        other.bytes < plan.layout.bytes)
      plan.layout = std::move(other);
  setPlan(forward, plan, nullptr);
  Builder builder(forward.getContext());
  auto bytes = builder.getI64IntegerAttr(std::max(arena, plan.layout.bytes));
  training.setArenaBytesAttr(bytes);
  forward.setArenaBytesAttr(bytes);
}

/// No sum of the sizes of a rank's slots or messages may overflow, in the plan or in what counts them later: limits
/// would be fooled.
LogicalResult checkBytes(RankOp rank) {
  constexpr int64_t most = int64_t(1) << 61;
  int64_t held = 0, moved = 0;
  for (Operation &op : rank.getBody().front()) {
    if (auto slot = dyn_cast<SlotOp>(op))
      held += slotBytes(slot.getSlot());
    else if (auto post = dyn_cast<PostOp>(op))
      moved += slotBytes(post.getSlot());
    if (std::max(held, moved) >= most)
      return rank.emitError() << "the " << (held >= most ? "values" : "messages") << " of rank " << rank.getRank()
                              << " have " << most << " bytes (2 EiB) or more together; expected fewer";
  }
  return success();
}

struct PlanSlots : public pp::impl::PlanSlotsBase<PlanSlots> {
  using PlanSlotsBase::PlanSlotsBase;

  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      for (auto rank : program.getOps<RankOp>())
        if (failed(checkBytes(rank)))
          return signalPassFailure();
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (program.getForward())
        continue; // below
      int64_t work = std::min<int64_t>(kRankWork, kProgramWork / std::max<int64_t>(program.getRanks(), 1));
      std::vector<int64_t> limits = memoryLimitsOf(program, limit);
      parallelForEach(&getContext(), llvm::to_vector(program.getOps<RankOp>()),
                      [&](RankOp rank) { planRank(rank, work, limits[rank.getRank()]); });
    }
    ProgramOp forward = ProgramOp::forwardOf(getOperation()), training = ProgramOp::trainingOf(getOperation());
    if (!forward || !training)
      return;
    auto trained = llvm::to_vector(training.getOps<RankOp>());
    auto ranks = llvm::to_vector(forward.getOps<RankOp>());
    parallelFor(&getContext(), 0, ranks.size(), [&](size_t i) { planForward(trained[i], ranks[i]); });
  }

  void planRank(RankOp rank, int64_t work, int64_t memory) const {
    int64_t enough = 0;
    if (!improve) {
      Plan plan(rank, /*host=*/false, /*apart=*/false), host(rank, /*host=*/true, /*apart=*/false);
      enough = memory - scratchOf(rank).total();
      auto mayFit = [&] { return peakOf(rank, slotLives(rank, /*host=*/false, /*apart=*/true)).bytes <= enough; };
      if (memory < 0 || plan.layout.bytes <= enough || !mayFit())
        return setPlan(rank, plan, &host);
    }
    Plan plan = planArena(rank, /*host=*/false, enough, work), host = planArena(rank, /*host=*/true, 0, work);
    setPlan(rank, plan, &host);
  }
};

} // namespace
