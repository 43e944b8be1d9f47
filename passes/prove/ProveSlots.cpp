// Proves the memory plan: no two live slots overlap, all lie inside the arena, nothing is touched while in flight.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A sweep over addresses at every instant, independent of how plan-slots chose them (docs/proofs.md 7). Every post is
// completed once.
#include "analysis/Actions.h"
#include "analysis/Proof.h"
#include "analysis/lives/SlotLives.h"
#include "mlir/IR/Threading.h"
#include "passes/Passes.h"
#include "llvm/ADT/StringMap.h"
#include <atomic>

namespace pp {
#define GEN_PASS_DEF_PROVESLOTS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// The memory that each body writes over: inputs to which results are tied, and tensors that it hands on to others.
struct Overwrites {
  DenseI64ArrayAttr ties, handed;
};
using Written = llvm::StringMap<Overwrites>;

/// Between post and complete nobody may touch a slot that receives, and nobody may write a slot that is sent.
class Flights {
public:
  Flights(RankOp rank, const Written &written) : rank(rank), written(written) {}

  LogicalResult prove() {
    std::vector<PostOp> posts;
    for (Operation &op : rank.getBody().front()) {
      LogicalResult fine = success();
      if (auto post = dyn_cast<PostOp>(op))
        fine = begin(posts.emplace_back(post));
      else if (auto complete = dyn_cast<CompleteOp>(op))
        end(complete.getRequest().getDefiningOp<PostOp>());
      else if (auto launch = dyn_cast<LaunchOp>(op))
        fine = prove(launch);
      if (failed(fine))
        return failure();
    }
    for (PostOp post : posts)
      if (failed(proveCompleted(post)))
        return failure();
    return success();
  }

private:
  RankOp rank;
  const Written &written;
  llvm::DenseMap<Value, SmallVector<PostOp, 2>> receiving, sending; // a slot may be sent to several ranks at once

  LogicalResult begin(PostOp post) {
    Value read = post.readSlot(), written = post.writtenSlot();
    for (Value slot : {read, written})
      if (slot && failed(free(post, slot, receiving, "posts")))
        return failure();
    if (written && failed(free(post, written, sending, "receives over")))
      return failure();
    if (written)
      receiving[written].push_back(post);
    if (read && read != written)
      sending[read].push_back(post);
    return success();
  }

  /// A message in flight at the end of the step would still be in flight in the next one; the runtime refuses to go on.
  LogicalResult proveCompleted(PostOp post) {
    if (post.getRequest().hasOneUse())
      return success();
    bool never = post.getRequest().use_empty();
    auto error = emitError(post.getLoc())
                 << "`" << post.getThing().str() << "` is posted on rank " << rank.getRank()
                 << (never ? " and never completed" : " once and completed twice") << withLoops(post);
    Operation *last = nullptr;
    for (Operation *user : post.getRequest().getUsers())
      if (!last || last->isBeforeInBlock(user))
        last = user;
    if (last)
      error.attachNote(last->getLoc()) << "completed again here" << withLoops(last);
    return failure();
  }

  void end(PostOp post) {
    for (auto *flights : {&receiving, &sending})
      for (Value slot : post->getOperands()) {
        auto it = flights->find(slot);
        if (it == flights->end())
          continue;
        llvm::erase(it->second, post);
        if (it->second.empty())
          flights->erase(it);
      }
  }

  LogicalResult prove(LaunchOp launch) {
    auto write = [&](Value slot) {
      return success(succeeded(free(launch, slot, receiving, "writes")) &&
                     succeeded(free(launch, slot, sending, "writes")));
    };
    for (Value slot : launch.getInputs())
      if (failed(free(launch, slot, receiving, "reads")))
        return failure();
    for (Value slot : launch.getResults())
      if (failed(write(slot)))
        return failure();
    if (launch.getScratch() && failed(write(launch.getScratch())))
      return failure();
    if (LaunchOp other = launch.follower();
        other && (failed(proveApart(launch, other)) || failed(proveApart(other, launch))))
      return failure();
    auto body = written.find(launch.getCallee());
    if (body == written.end())
      return success();
    for (Value slot : tiedSlots(launch))
      if (failed(write(slot)))
        return failure();
    return proveHanded(launch, body->second.handed, write);
  }

  /// Inputs that the launch writes over.
  SmallVector<Value> tiedSlots(LaunchOp launch) const {
    SmallVector<Value> slots;
    auto body = written.find(launch.getCallee());
    if (body != written.end() && body->second.ties)
      for (int64_t tie : body->second.ties.asArrayRef())
        if (tie >= 0)
          slots.push_back(launch.getInputs()[tie]);
    return slots;
  }

  /// Two launches run side by side in any turns: what one writes the other does not touch. That their slots do not
  /// overlap follows from their lives.
  LogicalResult proveApart(LaunchOp launch, LaunchOp other) {
    SmallVector<Value> writes = tiedSlots(launch), touches = other.slots();
    llvm::append_range(writes, launch.getResults());
    for (LaunchOp each : {launch, other})
      if (each.getScratch())
        (each == launch ? writes : touches).push_back(each.getScratch());
    for (Value slot : writes)
      if (llvm::is_contained(touches, slot)) {
        auto error = emitError(launch.getLoc())
                     << "`" << launch.getUnit().str() << "` writes `" << slot.getDefiningOp<SlotOp>().getLabel()
                     << "` on rank " << rank.getRank() << " beside `" << other.getUnit().str() << "`, which uses it"
                     << withLoops(launch);
        error.attachNote(other.getLoc()) << "it runs in turn with this" << withLoops(other);
        return failure();
      }
    return success();
  }

  /// The body writes no copy of what it hands on: it must lie where the launch wants it, and nobody may be reading
  /// there. That nobody reads the old slot later is seen as an overlap: then both live (SlotLives.cpp).
  LogicalResult proveHanded(LaunchOp launch, DenseI64ArrayAttr attr, function_ref<LogicalResult(Value)> write) {
    if (launch.getHandedAttr() != attr)
      return emitError(launch.getLoc()) << "`" << launch.getUnit().str() << "` does not say what `@"
                                        << launch.getCallee() << "` hands on";
    SmallVector<Value> slots = attr ? launch.slots() : SmallVector<Value>();
    for (ArrayRef<int64_t> left = attr ? attr.asArrayRef() : ArrayRef<int64_t>(); !left.empty();
         left = left.drop_front(4)) {
      auto from = slots[left[0]].getDefiningOp<SlotOp>(), to = slots[left[2]].getDefiningOp<SlotOp>();
      if (failed(write(from)))
        return failure();
      int64_t there = from.tensorOffsets()[left[1]], here = to.tensorOffsets()[left[3]];
      if (here != there)
        return emitError(launch.getLoc())
               << "`" << launch.getUnit().str() << "` hands on tensor " << left[1] << " of `" << from.getLabel()
               << "`, which lies at byte " << there << " of rank " << rank.getRank() << ", as tensor " << left[3]
               << " of `" << to.getLabel() << "`, which is planned at byte " << here;
    }
    return success();
  }

  LogicalResult free(Operation *op, Value slot, const llvm::DenseMap<Value, SmallVector<PostOp, 2>> &flights,
                     StringRef what) {
    auto it = flights.find(slot);
    if (it == flights.end() || it->second.empty())
      return success();
    PostOp post = it->second.front();
    auto error = emitError(op->getLoc());
    if (auto launch = dyn_cast<LaunchOp>(op))
      error << "`" << launch.getUnit().str() << "` ";
    error << what << " `" << post.getThing().str() << "` while it is in flight on rank " << rank.getRank()
          << withLoops(op);
    error.attachNote(post.getLoc()) << "posted here" << withLoops(post);
    return failure();
  }
};

struct ProveSlots : public pp::impl::ProveSlotsBase<ProveSlots> {
  void runOnPrograms() override {
    markAllAnalysesPreserved();
    Written written;
    for (auto function : getOperation().getOps<func::FuncOp>())
      written[function.getName()] = {function->getAttrOfType<DenseI64ArrayAttr>(kTiesAttr),
                                     function->getAttrOfType<DenseI64ArrayAttr>(kHandedAttr)};
    for (auto program : getOperation().getOps<ProgramOp>()) {
      std::atomic<int64_t> slots = 0, segments = 0;
      if (failed(failableParallelForEach(&getContext(), llvm::to_vector(program.getOps<RankOp>()), [&](RankOp rank) {
            for (bool host : {false, true}) {
              std::vector<SlotLife> lives = slotLives(rank, host);
              slots += lives.size();
              for (const SlotLife &life : lives)
                segments += life.segments.size();
              if (failed(proveDisjoint(rank, lives, (host ? rank.getHostBytes() : rank.getArenaBytes()).value_or(0))))
                return failure();
            }
            return Flights(rank, written).prove();
          })))
        return signalPassFailure();
      recordProof(program, "slots", {{"slots", slots.load()}, {"lives", segments.load()}});
    }
    ProgramOp training = ProgramOp::trainingOf(getOperation()), forward = ProgramOp::forwardOf(getOperation());
    if (training && forward)
      for (auto [rank, other] : llvm::zip(training.getOps<RankOp>(), forward.getOps<RankOp>()))
        if (failed(proveKept(rank, other)))
          return signalPassFailure();
  }

  /// Every value that the training program keeps from step to step has a slot of the forward program in the same place.
  /// prove-values shows that the slot holds the same value at the end of the step.
  static LogicalResult proveKept(RankOp training, RankOp forward) {
    llvm::DenseMap<Attribute, SlotOp> slots; // by binding
    for (auto slot : forward.getOps<SlotOp>())
      if (slot.getBinding())
        slots[slot.getBindingAttr()] = slot;
    for (auto slot : training.getOps<SlotOp>()) {
      BindingAttr binding = slot.getBindingAttr();
      if (!binding || !binding.isThereBefore() || !binding.isThereAfter())
        continue;
      SlotOp other = slots.lookup(binding);
      if (other && other.getOffset() == slot.getOffset() && other.getSlot().getType() == slot.getSlot().getType())
        continue;
      auto error = emitError(slot.getLoc()) << "`" << slot.getLabel() << "` of rank " << training.getRank()
                                            << " lies at byte " << slot.getOffset().value_or(0) << ", and ";
      if (!other)
        return error << "the forward program has no slot for it";
      error << "in the forward program at byte " << other.getOffset().value_or(0);
      error.attachNote(other.getLoc()) << "`" << other.getLabel() << "` is here";
      return failure();
    }
    return success();
  }

  static LogicalResult proveDisjoint(RankOp rank, ArrayRef<SlotLife> lives, int64_t arena) {
    struct Event {
      int64_t position;
      bool begins;
      size_t life;
      auto key() const { return std::tuple(position, begins, life); }
    };
    std::vector<Event> events;
    std::vector<int64_t> offsets(lives.size());
    events.reserve(2 * lives.size());
    for (auto [i, life] : llvm::enumerate(lives)) {
      offsets[i] = life.offset();
      for (Segment segment : life.bytes > 0 ? ArrayRef(life.segments) : ArrayRef<Segment>()) {
        events.push_back({segment.first, true, i});
        events.push_back({segment.last + 1, false, i});
      }
    }
    llvm::sort(events, [](const Event &a, const Event &b) { return a.key() < b.key(); });
    std::map<int64_t, size_t> live; // by offset
    auto endOf = [&](size_t life) { return offsets[life] + lives[life].bytes; };
    for (const Event &event : events) {
      SlotOp slot = lives[event.life].op;
      int64_t begin = offsets[event.life], end = endOf(event.life);
      if (!event.begins) {
        live.erase(begin);
        continue;
      }
      if (end > arena)
        return emitError(slot.getLoc()) << "`" << slot.getLabel() << "` ends at byte " << end << " of an arena of "
                                        << arena;
      auto after = live.lower_bound(begin);
      if (after != live.end() && after->first < end)
        return reportOverlap(rank, slot, lives[after->second].op, event.position);
      if (after != live.begin() && endOf(std::prev(after)->second) > begin)
        return reportOverlap(rank, slot, lives[std::prev(after)->second].op, event.position);
      live[begin] = event.life;
    }
    return success();
  }

  static LogicalResult reportOverlap(RankOp rank, SlotOp slot, SlotOp other, int64_t position) {
    auto error = emitError(slot.getLoc()) << "`" << slot.getLabel() << "` overlaps `" << other.getLabel()
                                          << "` on rank " << rank.getRank() << " at position " << position;
    error.attachNote(other.getLoc()) << "`" << other.getLabel() << "` is here";
    return failure();
  }
};

} // namespace
