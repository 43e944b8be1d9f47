// What the shards of a part that is cut by the vocabulary make: summed where it is read, or gathered on all of them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   rank 0  F(embed(0)): rows of its tokens, else 0 \                F(head(0)): statistics <- all_gather -> B(head(0))
//   rank 1  F(embed(1)): rows of its tokens, else 0 - reduce -> F(0) F(head(1)): statistics <- all_gather -> B(head(1))
//
// The piece before a part broadcasts to its shards (StepBuilder::deliver), and what their backwards make of it is
// reduced.
#include "analysis/Vocabulary.h"
#include "passes/complete/StepBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

LogicalResult StepBuilder::addShardResult(UnitOp op, Role role, int64_t piece, Value value) {
  CoordAttr coord = op.getUnit().getCoord();
  ThingAttr made = thing(role, leadOf(pieces, piece), coord.getMicrobatch(), coord.getSlice());
  SmallVector<Value> &results = shardResults[made];
  results.resize(vocabularyShards(pieces, piece));
  results[piece - leadOf(pieces, piece)] = value;
  if (llvm::is_contained(results, Value()))
    return success();
  SmallVector<Value> all = std::move(results);
  shardResults.erase(made);
  MLIRContext *context = program.getContext();
  SmallVector<int64_t> ranks;
  for (Value result : all)
    ranks.push_back(cast<ValType>(result.getType()).getRanks().front());
  auto payload = cast<ValType>(value.getType()).getPayload();
  if (role == Role::stat) {
    SmallVector<Type> types;
    for (size_t i = 0; i < all.size(); ++i)
      llvm::append_range(types, payload.getTypes());
    auto group =
        ValType::get(context, role, TupleType::get(context, types), PlaceAttr::get(context, ranks, Layout::shard));
    Value joined = builder.create<JoinOp>(op.getLoc(), group, all);
    Value future = createMove(made, joined, PlaceAttr::get(context, ranks, Layout::full), op.getLoc(), {});
    for (int64_t rank : ranks)
      values[{made, rank}] = future;
    return success();
  }
  for (int64_t to : consumers.lookup(made)) {
    if (!llvm::is_contained(ranks, to)) {
      auto error = emitError(pieces.op(piece).getLoc())
                   << "`" << pieces.op(piece).getCoord().getPart().strref() << "` is cut over "
                   << PlaceAttr::get(context, ranks, Layout::full).str() << ", and what it makes is read on rank " << to
                   << "; that rank needs a shard, too" << withLoops(op);
      return error;
    }
    auto group = ValType::get(context, role, payload, PlaceAttr::get(context, ranks, Layout::partial));
    Value joined = builder.create<JoinOp>(op.getLoc(), group, all);
    values[{made, to}] = createMove(made, joined, to, op.getLoc());
    break; // one piece reads it, on one rank
  }
  return success();
}
