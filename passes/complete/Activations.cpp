// Sends activations and their gradients to their readers, also from and to the shards of a part cut by the vocabulary.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   rank 0  F(embed(0)): rows of its tokens, else 0 \                F(head(0)): statistics <- all_gather -> B(head(0))
//   rank 1  F(embed(1)): rows of its tokens, else 0 - reduce -> F(0) F(head(1)): statistics <- all_gather -> B(head(1))
//
// The piece before such a part broadcasts to its shards; the gradients that their backwards make are reduced.
#include "passes/complete/Activations.h"
#include "analysis/Vocabulary.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

void Activations::record(Thing made, Value value, int64_t piece, int64_t rank, Location loc) {
  step.set({made, rank}, value);
  if (outline.moves.contains(made))
    return;
  SmallVector<int64_t, 2> readers = outline.readersOf(made);
  int64_t next = made.role == Role::act ? *groupOf(step.pieces, piece).end() : leadOf(step.pieces, piece) - 1;
  if (readers.size() > 1 && !step.pieces.isSkip(made.piece) && vocabularyShards(step.pieces, next)) {
    llvm::sort(readers);
    Value future = step.createMove(made, value, step.place(readers), loc);
    for (int64_t to : readers)
      if (to != rank)
        step.set({made, to}, future);
    return;
  }
  for (int64_t to : readers)
    if (to != rank && !step.has({made, to}))
      step.set({made, to}, step.createMove(made, value, to, loc));
}

LogicalResult Activations::recordShard(UnitOp op, Role role, int64_t piece, Value value) {
  int64_t lead = leadOf(step.pieces, piece);
  Thing made = step.thing(role, lead, op.getUnit().getCoord());
  SmallVector<Value> &results = shards[made];
  results.resize(vocabularyShards(step.pieces, piece));
  results[piece - lead] = value;
  if (llvm::is_contained(results, Value()))
    return success();
  SmallVector<Value> all = std::move(results);
  shards.erase(made);
  SmallVector<int64_t> ranks;
  for (Value result : all)
    ranks.push_back(cast<ValType>(result.getType()).getRanks().front());
  if (role != Role::stat)
    return reduce(made, ranks, all, op);
  gather(made, ranks, all, op.getLoc());
  return success();
}

void Activations::gather(Thing made, ArrayRef<int64_t> ranks, ValueRange values, Location loc) {
  SmallVector<Type> types;
  for (Value value : values)
    llvm::append_range(types, cast<ValType>(value.getType()).getPayload().getTypes());
  auto payload = TupleType::get(step.builder.getContext(), types);
  Value joined = step.createJoin(made.role, payload, step.place(ranks, Layout::shard), values, loc);
  Value future = step.createMove(made, joined, step.place(ranks), loc);
  for (int64_t rank : ranks)
    step.set({made, rank}, future);
}

LogicalResult Activations::reduce(Thing made, ArrayRef<int64_t> ranks, ValueRange values, UnitOp op) {
  SmallVector<int64_t, 2> readers = outline.readersOf(made);
  if (readers.empty())
    return success();
  int64_t to = readers.front(); // one piece reads it, on one rank
  PieceOp piece = step.pieces.op(step.pieces.find(op.getUnit().getCoord()));
  if (!llvm::is_contained(ranks, to))
    return emitError(piece.getLoc()) << "`" << piece.getCoord().getPart().strref() << "` is cut over "
                                     << step.place(ranks).str() << ", and its result is read on rank " << to
                                     << "; that rank needs a shard, too" << withLoops(op);
  auto payload = cast<ValType>(values.front().getType()).getPayload();
  Value joined = step.createJoin(made.role, payload, step.place(ranks, Layout::partial), values, op.getLoc());
  step.set({made, to}, step.createMove(made, joined, to, op.getLoc()));
  return success();
}
