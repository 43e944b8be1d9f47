// Sends the keys that one piece makes to the attention in the next one, and adds up the shares of their gradients.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   rank 0 | F(qkv, 0) ─▶ kv.0 ─▶ F(attn, 0)     B(attn, 0) ─▶ dkv.0 ─┬─▶ sum ─▶ B(qkv, 0)
//   rank 1 | F(qkv, 1) ─▶ kv.1 ─▶ F(attn, 1)     B(attn, 1) ─▶ dkv.0 ─┘   dkv.1 ─▶ B(qkv, 1)
//                 kv.0, moved ────────┘
#include "dialect/nn/Nn.h"
#include "passes/complete/StepBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

bool StepBuilder::isChunkShare(ThingAttr thing) {
  return thing.getRole() == Role::dkv && keys.reads(pieces.find(thing.getCoord()));
}

/// The own keys of a slice go with its activation; who else sees them is for the schedule to say.
void StepBuilder::deliverKeys(UnitOp op, Value value) {
  CoordAttr coord = op.getUnit().getCoord();
  int64_t rank = op.getRanks().front();
  ThingAttr made = thing(Role::kv, pieces.find(coord) + 1, coord.getMicrobatch(), coord.getSlice());
  values[{made, rank}] = value;
  auto reader = keyReaders.find(made);
  if (reader != keyReaders.end() && reader->second != rank && !brought.contains({made, reader->second}))
    values[{made, reader->second}] = createMove(made, value, reader->second, op.getLoc());
}

LogicalResult StepBuilder::buildAhead(AttendOp op) {
  const CutUnit &unit = *exchanges.ahead(op.getUnit());
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = pieces.find(coord), number = llvm::find(unit.attends, op) - unit.attends.begin();
  std::string phase = stringifyPhase(op.getUnit().getPhase()).str(), suffix = "." + std::to_string(coord.getSlice());
  const Body *body = findBody(piece, aheadName(phase, unit.plan.helps[number], number > 0) + suffix);
  SmallVector<Value> inputs;
  for (const BodyGroups::Group &group : body->groups.inputs)
    if (failed(readGroup(unit.op, group, inputs.emplace_back())))
      return failure();
  TaskOp task = createTask(*body, op.getUnit(), op.getRank(), inputs, op.getLoc());
  setShare(task, *body, *findBody(piece, phase + suffix));
  for (auto [group, value] : llvm::zip(body->groups.results, task.getResults()))
    if (group.kind() == "dkv")
      recordChunkShare(thing(Role::dkv, piece, coord.getMicrobatch(), group.chunk()), op.getRank(), value, op.getLoc());
    else
      aheadParts[op.getUnit()] = value;
  return success();
}

void StepBuilder::recordChunkShare(ThingAttr thing, int64_t rank, Value value, Location loc) {
  auto reader = keyReaders.find(thing);
  if (moved.count(thing) || reader == keyReaders.end() || reader->second == rank)
    return addChunkShare(thing, rank, value);
  addChunkShare(thing, reader->second, createMove(thing, value, reader->second, loc));
}

/// One more term on a rank. It waits in a slot of its own until the sum is taken: a rank that added up earlier would
/// wait for it.
void StepBuilder::addChunkShare(ThingAttr thing, int64_t rank, Value value) {
  chunkShares[thing][rank].push_back(value);
}

/// The rank's share as one value, arrivals waited for and added; null if it has none.
Value StepBuilder::takeChunkShare(ThingAttr thing, int64_t rank, Location loc) {
  SmallVector<Value, 2> terms = std::move(chunkShares[thing][rank]);
  chunkShares[thing].erase(rank);
  Value sum;
  CoordAttr coord = thing.getCoord();
  int64_t piece = pieces.find(coord);
  for (Value term : terms) {
    Value arrived = waitFor(term, loc);
    if (!sum) {
      sum = arrived;
      continue;
    }
    std::string slice = std::to_string(coord.getSlice()), into = "dkv." + slice, more = "dterm." + slice;
    const Body &body =
        makeBody((*pieces.op(piece).getBodies() + ".dkv.sum." + slice).str(), {into, more},
                 cast<ValType>(sum.getType()).getPayload(), into, 0, [](OpBuilder &inner, ValueRange row) -> Value {
                   return inner.create<nn::AccumulateOp>(row[0].getLoc(), row[0].getType(), row[1], row[0]);
                 });
    auto unit = UnitIdAttr::get(program.getContext(), Phase::U, coord);
    sum = createTask(body, unit, rank, {sum, arrived}, loc).getResult(0);
  }
  return sum;
}

Value StepBuilder::gatherChunk(ThingAttr thing, int64_t rank, Location loc) {
  if (Value whole = get(thing, rank, loc)) // W reads what I read
    return whole;
  SmallVector<int64_t> others;
  for (auto &[other, terms] : chunkShares[thing])
    if (other != rank)
      others.push_back(other);
  for (int64_t other : others)
    if (Value share = takeChunkShare(thing, other, loc))
      addChunkShare(thing, rank, createMove(thing, share, rank, loc));
  Value whole = takeChunkShare(thing, rank, loc);
  if (whole)
    values[{thing, rank}] = whole;
  return whole;
}
