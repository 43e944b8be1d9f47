// Computes when each slot of a rank program holds something, and the peak of their sum.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A slot that is written anew starts a new segment, so its memory is free for others in the gap: the home of a weight
// that travels is reused between the last use of the old version and the arrival of the new one.
//
// Tensors that launches make for each other alone may lie apart: then a hole need not be as large as a whole stash.
//
// If two launches run side by side, each may run first and last: what either touches lives during both.
#include "analysis/lives/SlotLives.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class Reader {
public:
  Reader(RankOp rank, bool host, bool apart) : rank(rank), host(host), allApart(apart) {}

  std::vector<SlotLife> run() {
    int64_t position = 0;
    for (Operation &op : rank.getBody().front()) {
      auto launch = dyn_cast<LaunchOp>(op);
      bool follows = launch && launch.leader(), leads = launch && launch.follower();
      read(&op, follows ? position - 1 : position, leads ? position + 1 : position);
      ++position;
    }
    std::vector<SlotLife> all;
    all.reserve(lives.size());
    for (SlotLife &life : lives) {
      if (livesToEnd(life.op))
        life.segments.back().last = position;
      else if (livesFromStart(life.op)) // forwards that are done over read it again
        life.segments.front().last = std::max(life.segments.front().last, judged);
      if (life.op.getHost() == host)
        addTo(all, std::move(life));
    }
    return sortByStart(std::move(all));
  }

private:
  RankOp rank;
  bool host, allApart;
  std::vector<SlotLife> lives; ///< by first use
  llvm::DenseMap<Value, size_t> numbers;
  llvm::DenseMap<Type, int64_t> bytesOf;
  struct Handed {
    int64_t position;
    SlotTensor to;
  };
  llvm::DenseMap<Value, llvm::DenseMap<int64_t, Handed>> handed; ///< by slot and tensor
  llvm::DenseSet<Value> heirs;                                   ///< slots that were handed something
  int64_t judged = 0;                                            ///< where the update before is judged

  /// Nothing but launches of this rank sees it, and they get an address for each tensor.
  static bool mayLieApart(SlotOp slot) {
    return slot.getRole() == Role::stash && !slot.getHost() && !slot.getBinding() &&
           slot.getSlot().getType().getPayload().size() > 1 &&
           llvm::none_of(slot.getSlot().getUsers(), [](Operation *user) { return isa<PostOp>(user); });
  }

  /// Sorts numbers and moves each life once, because a life is large.
  static std::vector<SlotLife> sortByStart(std::vector<SlotLife> lives) {
    std::vector<std::pair<int64_t, size_t>> order;
    order.reserve(lives.size());
    for (auto [i, life] : llvm::enumerate(lives))
      order.push_back({life.segments.front().first, i});
    llvm::sort(order);
    std::vector<SlotLife> sorted;
    sorted.reserve(lives.size());
    for (auto [start, i] : order)
      sorted.push_back(std::move(lives[i]));
    return sorted;
  }

  void addTo(std::vector<SlotLife> &all, SlotLife &&life) {
    SlotOp slot = life.op;
    auto gone = handed.find(slot);
    bool apart = slot.getPlaces() || gone != handed.end() || heirs.contains(slot) || (allApart && mayLieApart(slot));
    if (!apart) {
      all.push_back(std::move(life));
      return;
    }
    SmallVector<int64_t> offsets = payloadOffsets(slot.getSlot().getType().getPayload());
    for (int64_t tensor = 0; tensor + 1 < static_cast<int64_t>(offsets.size()); ++tensor) {
      SlotLife &part = all.emplace_back(life);
      part.tensor = tensor;
      part.bytes = offsets[tensor + 1] - offsets[tensor];
      // If somebody touches it afterwards, it lives on, and the proof finds two in one place.
      if (gone == handed.end() || !gone->second.count(tensor))
        continue;
      Handed next = gone->second[tensor];
      part.heir = next.to;
      if (part.segments.back().last == next.position)
        --part.segments.back().last;
    }
  }

  void hand(LaunchOp launch, int64_t position) {
    ArrayRef<int64_t> left = launch.getHanded().value_or(ArrayRef<int64_t>());
    SmallVector<Value> slots = left.empty() ? SmallVector<Value>() : launch.slots();
    for (; left.size() >= 4; left = left.drop_front(4)) {
      handed[slots[left[0]]][left[1]] = {position, {slots[left[2]].getDefiningOp<SlotOp>(), left[3]}};
      heirs.insert(slots[left[2]]);
    }
  }

  static bool livesFromStart(SlotOp slot) { return slot.getBinding() && slot.getBinding()->isThereBefore(); }
  static bool livesToEnd(SlotOp slot) { return slot.getBinding() && slot.getBinding()->isThereAfter(); }

  SlotLife &lifeOf(Value value, int64_t position) {
    auto [it, added] = numbers.try_emplace(value, lives.size());
    if (!added)
      return lives[it->second];
    SlotLife &life = lives.emplace_back();
    life.op = value.getDefiningOp<SlotOp>();
    int64_t &bytes = bytesOf.try_emplace(value.getType(), -1).first->second;
    if (bytes < 0)
      bytes = slotBytes(value);
    life.bytes = bytes;
    life.segments.push_back({livesFromStart(life.op) ? 0 : position, position});
    return life;
  }

  void touch(Value value, int64_t position) { lifeOf(value, position).segments.back().last = position; }

  void write(Value value, int64_t first, int64_t last) {
    bool known = numbers.count(value) || livesFromStart(value.getDefiningOp<SlotOp>());
    SlotLife &life = lifeOf(value, known ? 0 : first);
    if (known)
      life.segments.push_back({first, last});
    else
      life.segments.back().last = last;
  }

  /// The op runs at some time from its first position to its last one.
  void read(Operation *op, int64_t position, int64_t last) {
    if (auto slot = dyn_cast<SlotOp>(op)) {
      if (livesFromStart(slot))
        lifeOf(slot, 0);
    } else if (auto launch = dyn_cast<LaunchOp>(op)) {
      for (Value input : launch.getInputs())
        touch(input, last);
      for (Value result : launch.getResults())
        write(result, position, last);
      if (launch.getScratch())
        write(launch.getScratch(), position, last);
      hand(launch, last);
      if (launch.getJudges())
        judged = position;
    } else if (auto post = dyn_cast<PostOp>(op)) {
      if (Value slot = post.readSlot())
        touch(slot, position);
      if (Value slot = post.writtenSlot(); slot && slot != post.readSlot())
        write(slot, position, position);
    } else if (auto complete = dyn_cast<CompleteOp>(op)) {
      for (Value slot : complete.getRequest().getDefiningOp()->getOperands())
        touch(slot, position);
    }
  }
};

} // namespace

bool pp::meet(const SlotLife &a, const SlotLife &b) {
  for (Segment x : a.segments)
    for (Segment y : b.segments)
      if (x.first <= y.last && y.first <= x.last)
        return true;
  return false;
}

int64_t SlotLife::offset() const {
  SlotOp slot = op;
  if (auto places = slot.getPlaces())
    return (*places)[tensor];
  int64_t begin = static_cast<int64_t>(slot.getOffset().value_or(0));
  return tensor <= 0 ? begin : begin + payloadOffsets(slot.getSlot().getType().getPayload())[tensor];
}

std::vector<SlotLife> pp::slotLives(RankOp rank, bool host, bool apart) {
  if (host && llvm::none_of(rank.getOps<SlotOp>(), [](SlotOp slot) { return slot.getHost(); }))
    return {};
  return Reader(rank, host, apart).run();
}

Peak pp::peakOf(RankOp rank, ArrayRef<SlotLife> lives) {
  AliveSum total;
  llvm::MapVector<StringRef, AliveSum> byRole;
  for (const SlotLife &life : lives) {
    AliveSum &role = byRole[stringifyRole(SlotOp(life.op).getRole())];
    for (Segment segment : life.segments)
      for (AliveSum *sum : {&total, &role})
        sum->add(segment, life.bytes);
  }
  Most most = total.most();
  Peak peak;
  peak.bytes = most.sum;
  for (auto [position, op] : llvm::enumerate(rank.getBody().front()))
    if (static_cast<int64_t>(position) == most.where)
      peak.where = &op;
  for (auto &[role, sum] : byRole) {
    peak.there[role] = sum.at(most.where);
    peak.byRole[role] = sum.most().sum;
  }
  return peak;
}

std::string pp::describeInstant(Operation *op) {
  if (!op)
    return "end of the step";
  if (auto launch = dyn_cast<LaunchOp>(op))
    return launch.getUnit().str();
  if (auto complete = dyn_cast<CompleteOp>(op))
    return "end of " + describeInstant(complete.getRequest().getDefiningOp());
  auto post = dyn_cast<PostOp>(op);
  if (!post)
    return "start of the step";
  StringRef what = post.isCollective() ? post.jointName() : stringifyPostKind(post.getKind());
  return (what + " of " + post.getThing().str()).str();
}
