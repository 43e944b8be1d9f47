// Proves the memory plan: no two live slots overlap, all lie inside the arena, nothing is touched while in flight.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A sweep over addresses at every instant, independent of how plan-slots chose them (proofs.md 7).
#include "passes/Actions.h"
#include "passes/Passes.h"
#include "passes/SlotLives.h"
#include "mlir/IR/Threading.h"

namespace pp {
#define GEN_PASS_DEF_PROVESLOTS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

struct ProveSlots : public pp::impl::ProveSlotsBase<ProveSlots> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(failableParallelForEach(&getContext(), llvm::to_vector(program.getOps<RankOp>()), [](RankOp rank) {
            return success(succeeded(proveDisjoint(rank)) && succeeded(proveFlights(rank)));
          })))
        return signalPassFailure();
  }

  static LogicalResult proveDisjoint(RankOp rank) {
    struct Event {
      int64_t position;
      bool begins;
      const SlotLife *life;
    };
    std::vector<SlotLife> lives = slotLives(rank);
    std::vector<Event> events;
    for (const SlotLife &life : lives)
      for (Segment segment : life.segments) {
        events.push_back({segment.first, true, &life});
        events.push_back({segment.last + 1, false, &life});
      }
    llvm::stable_sort(events, [](const Event &a, const Event &b) {
      return std::pair(a.position, a.begins) < std::pair(b.position, b.begins);
    });
    std::map<int64_t, const SlotLife *> live; // by offset
    for (const Event &event : events) {
      SlotOp slot = event.life->op;
      int64_t begin = slot.getOffset().value_or(0), end = begin + event.life->bytes;
      if (!event.begins) {
        live.erase(begin);
        continue;
      }
      if (end > static_cast<int64_t>(rank.getArenaBytes().value_or(0)))
        return slot.emitOpError() << slot.getLabel() << " ends at byte " << end << " of an arena of "
                                  << rank.getArenaBytes().value_or(0);
      auto after = live.lower_bound(begin);
      if (after != live.end() && after->first < end)
        return reportOverlap(rank, slot, after->second->op, event.position);
      if (after != live.begin() && std::prev(after)->first + std::prev(after)->second->bytes > begin)
        return reportOverlap(rank, slot, std::prev(after)->second->op, event.position);
      live[begin] = event.life;
    }
    return success();
  }

  static LogicalResult reportOverlap(RankOp rank, SlotOp slot, SlotOp other, int64_t position) {
    auto error = slot.emitOpError() << "`" << slot.getLabel() << "` overlaps `" << other.getLabel() << "` on rank "
                                    << rank.getRank() << " at position " << position;
    error.attachNote(other.getLoc()) << "`" << other.getLabel() << "` is here";
    return failure();
  }

  /// Between post and complete a received slot is dead for everybody, a sent slot may only be read.
  static LogicalResult proveFlights(RankOp rank) {
    llvm::MapVector<Value, PostOp> receiving, sending;
    auto clash = [&](Operation *op, PostOp post, StringRef what) {
      auto error = op->emitOpError() << what << " `" << post.getThing().str() << "` while it is in flight on rank "
                                     << rank.getRank();
      error.attachNote(post.getLoc()) << "posted here";
      return failure();
    };
    for (Operation &op : rank.getBody().front()) {
      if (auto post = dyn_cast<PostOp>(op)) {
        if (receiving.count(post.getSlot()))
          return clash(&op, receiving[post.getSlot()], "posts");
        if (post.getKind() != PostKind::send && sending.count(post.getSlot()))
          return clash(&op, sending[post.getSlot()], "receives over");
        (post.getKind() == PostKind::send ? sending : receiving)[post.getSlot()] = post;
      } else if (auto complete = dyn_cast<CompleteOp>(op)) {
        auto post = complete.getRequest().getDefiningOp<PostOp>();
        auto &flights = post.getKind() == PostKind::send ? sending : receiving;
        if (flights.lookup(post.getSlot()) == post)
          flights.erase(post.getSlot());
      } else if (auto launch = dyn_cast<LaunchOp>(op)) {
        for (Value slot : launch->getOperands())
          if (receiving.count(slot))
            return clash(&op, receiving[slot], "reads");
        for (Value slot : launch.getResults())
          if (sending.count(slot))
            return clash(&op, sending[slot], "writes");
      }
    }
    return success();
  }
};

} // namespace
