// Sends the keys that one piece makes to the attention in the next one, and adds up the shares of their gradients.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   rank 0 | F(qkv, 0) ─▶ kv.0 ─▶ F(attn, 0)     B(attn, 0) ─▶ dkv.0 ─┬─▶ sum ─▶ B(qkv, 0)
//   rank 1 | F(qkv, 1) ─▶ kv.1 ─▶ F(attn, 1)     B(attn, 1) ─▶ dkv.0 ─┘   dkv.1 ─▶ B(qkv, 1)
//                 kv.0, moved ────────┘
#include "passes/complete/KeyShares.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The own keys of a slice go with its activation; who else sees them is for the schedule to say.
void KeyShares::deliver(UnitOp op, Value value) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t rank = op.getRanks().front();
  Thing made = step.thing(Role::kv, step.pieces.find(coord) + 1, coord);
  step.set({made, rank}, value);
  auto reader = outline.keyReaders.find(made);
  if (reader != outline.keyReaders.end() && reader->second != rank &&
      !outline.keysMovedTo.contains({made, reader->second}))
    step.set({made, reader->second}, step.createMove(made, value, reader->second, op.getLoc()));
}

void KeyShares::lend(int64_t attention, Thing keys, int64_t rank, Value value) {
  lent[attention][{keys, rank}].push_back(value);
}

Value KeyShares::takeLent(int64_t attention, Thing keys, int64_t rank) {
  auto it = lent.find(attention);
  if (it == lent.end())
    return {};
  auto copies = it->second.find({keys, rank});
  if (copies == it->second.end() || copies->second.empty())
    return {};
  Value first = copies->second.front();
  copies->second.erase(copies->second.begin());
  return first;
}

bool KeyShares::isShare(Thing thing) const { return thing.role == Role::dkv && outline.keys.reads(thing.piece); }

void KeyShares::record(Thing thing, int64_t rank, Value value, Location loc) {
  auto reader = outline.keyReaders.find(thing);
  if (outline.moves.contains(thing) || reader == outline.keyReaders.end() || reader->second == rank)
    return add(thing, rank, value);
  add(thing, reader->second, step.createMove(thing, value, reader->second, loc));
}

void KeyShares::add(Thing thing, int64_t rank, Value value) { shares[thing][rank].push_back(value); }

Value KeyShares::take(Thing thing, int64_t rank, Location loc) {
  SmallVector<Value, 2> terms = std::move(shares[thing][rank]);
  shares[thing].erase(rank);
  Value sum;
  auto unit = UnitIdAttr::get(step.builder.getContext(), Phase::U, step.attr(thing).getCoord());
  for (Value term : terms) {
    Value arrived = step.waitFor(term, loc);
    if (!sum) {
      sum = arrived;
      continue;
    }
    const TaskBody &body = step.bodies.sumOfKeys(thing.piece, thing.slice, cast<ValType>(sum.getType()).getPayload());
    sum = step.createTask(body, unit, rank, {sum, arrived}, loc).getResult(0);
  }
  return sum;
}

Value KeyShares::gather(Thing thing, int64_t rank, Location loc) {
  if (Value whole = step.get({thing, rank}, loc)) // W reads what I read
    return whole;
  SmallVector<int64_t> others;
  for (auto &[other, terms] : shares[thing])
    if (other != rank)
      others.push_back(other);
  for (int64_t other : others)
    if (Value share = take(thing, other, loc))
      add(thing, rank, step.createMove(thing, share, rank, loc));
  Value whole = take(thing, rank, loc);
  if (whole)
    step.set({thing, rank}, whole);
  return whole;
}
