// Decides what a piece's bodies save for each other: the stash of F, its share that R makes again, what W waits for.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// With R, what F keeps is cut at the parts that R runs. `kept` is what the other parts save and what R starts from, the
// values that enter a run of such parts; `stash` is the rest, made by R, or by an F that no R follows:
//
//   x ─▶ [pre qkv] ─▶ q k v ─▶ attn ─▶ o ─▶ [post pre qkv] ─▶ ..  [..] run again: kept {o, lse, x}, stash {q, k, v, ..}
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// For an MLP in chunks the backward itself makes, chunk by chunk, what R would make: so it never exists as a whole.
bool PieceGraph::isCheap(Operation *op) const {
  if (isa<nn::RowsOp, nn::RopeOp>(op) || (piece.runs(Phase::R) && inChunks.contains(op) && runs.contains(op)))
    return true;
  auto differentiable = dyn_cast<nn::Differentiable>(op);
  return differentiable && differentiable.isCheap();
}

// docs/derivatives.md R1: one pass in program order. An output of a cheap op need not be saved if its inputs are there:
// arguments, saved anyway, or made again themselves. Only what the backward reads counts.
void PieceGraph::rebuildCheap() {
  DenseSet<Value> there, makeable;
  std::function<bool(Value)> readLater = [&](Value value) {
    return llvm::any_of(value.getUsers(), [&](Operation *user) {
      return !forward.contains(user) || (isa<nn::View>(user) && readLater(user->getResult(0)));
    });
  };
  for (Operation &op : scratch.block()) {
    if (!forward.contains(&op))
      continue;
    for (Value result : op.getResults())
      if (readLater(result))
        there.insert(result);
    if (auto gather = dyn_cast<nn::GatherRunsOp>(op); gather && gather.isCheap() && readLater(gather.getY()))
      there.insert(gather.getX()); // the own share is saved, and all of them are gathered again
    bool can = isCheap(&op) && llvm::all_of(op.getOperands(), [&](Value operand) {
                 return isa<BlockArgument>(operand) || there.contains(operand) || makeable.contains(operand);
               });
    if (!can || (isa<nn::RopeOp>(op) && !makeable.contains(op.getOperand(0))))
      continue; // a rope of what is saved or came in would be made again for nothing
    makeable.insert(op.getResult(0));
    if (readLater(op.getResult(0)) && !isOwnChunk(op.getResult(0)))
      markCheap(op.getResult(0), makeable);
  }
  SmallVector<Operation *> backward;
  for (Operation &op : scratch.block())
    if (!forward.contains(&op))
      backward.push_back(&op);
  for (Operation *op : backward)
    for (OpOperand &operand : op->getOpOperands())
      if (cheap.contains(operand.get()))
        operand.set(rebuilt(operand.get(), op));
}

/// Together with what it is made of, as far as that is made again, too.
void PieceGraph::markCheap(Value value, const DenseSet<Value> &makeable) {
  cheap.insert(value);
  for (Value operand : value.getDefiningOp()->getOperands())
    if (makeable.contains(operand) && !isOwnChunk(operand))
      markCheap(operand, makeable);
}

/// The value made again, right before its first reader.
Value PieceGraph::rebuilt(Value value, Operation *before) {
  if (!cheap.contains(value))
    return value;
  Value &made = again[value];
  if (made)
    return made;
  OpBuilder builder(before);
  Operation *op = value.getDefiningOp();
  op = isa<nn::RowsOp>(op) ? builder.clone(*op) : cast<nn::Differentiable>(op).rebuild(builder);
  for (OpOperand &operand : op->getOpOperands())
    operand.set(rebuilt(operand.get(), op));
  return again[value] = op->getResult(0);
}

// If the backward reads only a part of the input, as in `return attention(q, k, v), x`, F saves that part: values that
// the piece just passes on must not wait with it.
void PieceGraph::saveInputs() {
  auto isLater = [&](OpOperand &use) {
    return !forward.contains(use.getOwner()) || (piece.runs(Phase::R) && runs.contains(use.getOwner()));
  };
  auto isNeeded = [&](Value value) { return llvm::any_of(value.getUses(), isLater); };
  if (llvm::all_of(act, isNeeded) || llvm::none_of(act, isNeeded))
    return;
  OpBuilder builder = OpBuilder::atBlockBegin(&scratch.block());
  for (Value value : act)
    if (isNeeded(value)) {
      Value copy = nn::copyOf(builder, piece.loc, value);
      forward.insert(copy.getDefiningOp());
      value.replaceUsesWithIf(copy,
                              [&](OpOperand &use) { return use.getOwner() != copy.getDefiningOp() && isLater(use); });
    }
}

void PieceGraph::collectStash() {
  llvm::SetVector<Value> saved;
  for (Operation &op : scratch.block())
    if (forward.contains(&op))
      for (Value result : op.getResults())
        if (!isOwnChunk(result) &&
            llvm::any_of(result.getUsers(), [&](Operation *user) { return !forward.contains(user); }))
          saved.insert(result);
  stash = saved.takeVector();
}

// Walks from the values that R makes back through the ops that R runs; values of other ops that it meets must be kept
// for R. A value that enters a run of parts from an earlier run is kept, too: else R would also run the end of every
// earlier part (the residual stream).
void PieceGraph::splitStash() {
  auto isRun = [&](Value value) { // what a router chose once is never chosen again
    Operation *op = value.getDefiningOp();
    return op && runs.contains(op) && !isa<nn::Chooses>(op);
  };
  auto isKept = [&](Value value) {
    return !isRun(value) || llvm::any_of(value.getUsers(), [&](Operation *user) {
      auto it = runs.find(user);
      return it != runs.end() && it->second != runs.lookup(value.getDefiningOp());
    });
  };
  DenseSet<Value> keep, seen;
  SmallVector<Value> open = stash;
  for (Value value : stash)
    if (isKept(value))
      keep.insert(value);
  while (!open.empty()) {
    Value value = open.pop_back_val();
    if (isa<BlockArgument>(value) || isOwnChunk(value) || !seen.insert(value).second)
      continue;
    if (isKept(value))
      keep.insert(value);
    else
      llvm::append_range(open, value.getDefiningOp()->getOperands());
  }
  llvm::erase_if(stash, [&](Value value) { return keep.contains(value); });
  for (Operation &op : scratch.block())
    llvm::copy_if(op.getResults(), std::back_inserter(kept), [&](Value value) { return keep.contains(value); });
}

// W runs the ops that make gradients of weights and nothing else: it reads no weight (docs/derivatives.md R3).
void PieceGraph::collectPending() {
  DenseSet<Value> crossing;
  auto isWeightOp = [](Operation *op) { // and the sum of what neighbours with the same piece of a weight have
    if (auto sum = dyn_cast_or_null<nn::AllReduceOp>(op))
      op = sum.getX().getDefiningOp();
    return op && op->hasTrait<nn::WeightGradient>();
  };
  auto crosses = [&](Value value) {
    Operation *op = value.getDefiningOp();
    return op && !isWeightOp(op) && !isa<nn::ZeroOp>(op);
  };
  auto isGatheredByW = [&](Operation *op) {
    if (auto back = dyn_cast<nn::HeadsToRunsOp>(op))
      return !back.getKept();
    auto gather = dyn_cast<nn::GatherRowsOp>(op);
    return gather && (!gather.getKept() || llvm::all_of(gather->getUsers(), isWeightOp));
  };
  auto viewed = [&](Value value) { // W takes its rows itself, and gathers them
    while (Operation *view = value.getDefiningOp()) {
      if (!isa<nn::View>(view) && !isGatheredByW(view))
        break;
      value = view->getOperand(0);
    }
    return value;
  };
  for (Value sum : gradSums)
    if (crosses(sum))
      crossing.insert(sum); // a hand that is the whole sum
  for (Operation &op : scratch.block())
    if (isWeightOp(&op))
      for (Value operand : op.getOperands())
        if (crosses(viewed(operand)))
          crossing.insert(viewed(operand));
  for (Operation &op : scratch.block()) // one order for I, W and W.first
    for (Value result : op.getResults())
      if (crossing.contains(result))
        pending.push_back(result);
}
