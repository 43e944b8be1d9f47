// Lets an attention read q, k and v where the product that makes them leaves them, and its backward write there.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   %q, %k, %v = split %qkv                       %o, %lse = attention %qkv, %qkv, %qkv {packed}
//   %o, %lse = attention %q, %k, %v        =>     and later   %dqkv = attention_bwd .. {packed}
//
// Kernels read rows of a head as far apart as qkv has them; the copies of q, k and v, and of their gradients side by
// side, go. What is stashed is qkv, of as many bytes. An attention of slices, of devices that share a sequence or its
// heads, or of a unit that is cut at its attentions keeps q, k and v apart, for they travel.
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The split whose results are q, k and v of a whole sequence, and nothing else's; null: they are not.
static nn::SplitOp splitOf(nn::AttentionOp attention) {
  OperandRange kv = attention.getKv();
  auto split = attention.getQ().getDefiningOp<nn::SplitOp>();
  if (!split || split.getPeriods() != 1 || kv.size() != 2 || split.getNumResults() != 3 || attention.getOffset() > 0 ||
      attention.getKvOffsets() || attention.getZigzag() > 0)
    return {};
  const Value reads[] = {attention.getQ(), kv[0], kv[1]};
  return llvm::equal(split.getColumns(), reads) && llvm::all_of(reads, [](Value read) { return read.hasOneUse(); })
             ? split
             : nn::SplitOp();
}

void PieceGraph::packAttentions() {
  auto program = *module.getOps<ProgramOp>().begin();
  if (!slice.isWhole() || !piece.cuts.empty() || program.sizeOf(Axis::tensor) > 1 || program.sizeOf(Axis::context) > 1)
    return;
  SmallVector<Value> leave;
  for (const SmallVector<Value> *values : {&actOut, &skipsOut, &keys})
    llvm::append_range(leave, *values);
  for (const SmallVector<Value> &values : kv)
    llvm::append_range(leave, values);
  for (auto attention : llvm::make_early_inc_range(scratch.block().getOps<nn::AttentionOp>())) {
    nn::SplitOp split = splitOf(attention);
    if (!split || llvm::any_of(split.getColumns(), [&](Value column) { return llvm::is_contained(leave, column); }) ||
        llvm::any_of(attention.getO().getUsers(), llvm::IsaPred<nn::SinkOp, nn::AttentionMergeOp>))
      continue;
    attention->setOperands(0, 3, {split.getX(), split.getX(), split.getX()});
    attention.setPacked(true);
    erase(split);
  }
}
