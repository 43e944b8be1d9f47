// Counts values, slots and stashes of a rank's program by how long they live.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/lives/RankLives.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

RankLives::RankLives(RankOp rank, const BodyTable &bodies) : lives(slotLives(rank)) {
  readOps(rank);
  readStashes(rank, bodies);
}

void RankLives::readOps(RankOp rank) {
  llvm::DenseMap<int64_t, int64_t> groups;
  int64_t next = 0;
  for (Operation &op : rank.getBody().front()) {
    int64_t position = next++;
    if (auto post = dyn_cast<PostOp>(op)) {
      if (post.getShard())
        shards.insert(post.getShard().getDefiningOp());
      if (post.getGroup())
        position = groups.insert({*post.getGroup(), position}).first->second;
    }
    positions.push_back(position);
    if (!isa<CompleteOp>(op))
      for (Value slot : op.getOperands())
        uses[slot.getDefiningOp()].push_back(next - 1);
  }
}

/// A stash that goes to the host and back is on the device until it is sent, and from when it is received.
static StashEvent eventOf(Operation &op, const BodyTable &bodies, CoordAttr &coord) {
  auto isHere = [&](PostOp post) {
    coord = post.getThing().getCoord();
    return post.getThing().getRole() == Role::stash && !post.getSlot().getDefiningOp<SlotOp>().getHost();
  };
  if (auto complete = dyn_cast<CompleteOp>(op)) {
    auto post = complete.getRequest().getDefiningOp<PostOp>();
    return post.getKind() == PostKind::send && isHere(post) ? StashEvent::end : StashEvent::none;
  }
  if (auto post = dyn_cast<PostOp>(op))
    return post.getKind() == PostKind::receive && isHere(post) ? StashEvent::begin : StashEvent::none;
  auto launch = dyn_cast<LaunchOp>(op);
  if (!launch)
    return StashEvent::none;
  coord = launch.getUnit().getCoord();
  bool saves = llvm::any_of(launch.getResults(),
                            [](Value slot) { return slot.getDefiningOp<SlotOp>().getRole() == Role::stash; });
  return stashEventOf(launch.getUnit(), bodies.of(launch), saves);
}

void RankLives::readStashes(RankOp rank, const BodyTable &bodies) {
  llvm::DenseMap<CoordAttr, int64_t> begun;
  for (auto [position, op] : llvm::enumerate(rank.getBody().front())) {
    CoordAttr coord;
    StashEvent event = eventOf(op, bodies, coord);
    if (event == StashEvent::begin)
      begun.insert({coord, position});
    auto alive = event == StashEvent::end ? begun.find(coord) : begun.end();
    if (alive == begun.end())
      continue;
    stashes.push_back({alive->second, static_cast<int64_t>(position)});
    begun.erase(alive);
  }
  for (auto [coord, first] : begun)
    stashes.push_back({first, static_cast<int64_t>(positions.size())});
}

Segment RankLives::used(Operation *slot, Segment segment) const {
  Segment alive = {positions[segment.first], positions[segment.first]};
  auto it = uses.find(slot);
  for (int64_t use : it == uses.end() ? ArrayRef<int64_t>() : ArrayRef<int64_t>(it->second))
    if (segment.first <= use && use <= segment.last)
      alive.last = positions[use];
  return alive;
}

int64_t RankLives::most(Role role, llvm::function_ref<Segment(const SlotLife &, Segment)> lifeOf) const {
  SmallVector<Segment> alive;
  for (const SlotLife &life : lives)
    if (SlotOp(life.op).getRole() == role && !shards.contains(life.op))
      for (Segment segment : life.segments)
        alive.push_back(lifeOf(life, segment));
  return mostAlive(alive);
}

int64_t RankLives::mostValues(Role role) const {
  return most(role, [&](const SlotLife &life, Segment segment) { return used(SlotOp(life.op), segment); });
}

int64_t RankLives::mostSlots(Role role) const {
  return most(role, [](const SlotLife &, Segment segment) { return segment; });
}
