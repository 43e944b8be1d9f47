// Cuts the MLPs of a piece in runs of rows, so that what lies between their linears is there for one run at a time.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: u = linear h, w1    g = gelu u    z = linear g, w2          After, for every run i of `mlp chunks = n`:
//
//   h ─▶ split_rows ─▶ h_i ─▶ linear ─▶ u_i ─▶ gelu ─▶ g_i ─▶ linear ─▶ z_i ─▶ join_rows ─▶ z
//
// The derivatives follow from the ops: run by run in reverse, with sums of weights' gradients that go through all runs.
// Views move nothing: h_i lies in h, z_i is written where z is (HelixPipe 4.5: "preallocated buffers").
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;

/// Around this op, if all it reads are linears of one value, and one linear reads it and nothing else.
static std::optional<PieceGraph::Mlp> mlpAround(Operation &op) {
  auto activation = dyn_cast<nn::Differentiable>(op);
  if (!activation || !activation.isCheap() || !op.hasOneUse() || op.getNumOperands() == 0)
    return std::nullopt;
  PieceGraph::Mlp mlp{{}, &op, *op.user_begin()};
  for (Value operand : op.getOperands()) {
    auto linear = operand.getDefiningOp<nn::LinearOp>();
    if (!linear || !linear->hasOneUse() || (!mlp.up.empty() && linear.getX() != mlp.up.front()->getOperand(0)))
      return std::nullopt;
    mlp.up.push_back(linear);
  }
  auto down = dyn_cast<nn::LinearOp>(mlp.down);
  return down && down.getX() == op.getResult(0) ? std::optional(mlp) : std::nullopt;
}

bool pp::hasMlp(func::FuncOp part) {
  return llvm::any_of(part.front(), [](Operation &op) { return mlpAround(op).has_value(); });
}

// Runs begin at multiples of 8 rows: then kernels that read 16 bytes at a time can, whatever the width.
static FailureOr<SmallVector<int64_t>> rowsOfRuns(Location loc, int64_t rows, int64_t chunks) {
  int64_t eights = llvm::divideCeil(rows, 8);
  if (chunks > eights) {
    emitError(loc) << "`mlp chunks = " << chunks << "`: a unit of " << rows << " tokens has at most " << eights
                   << (eights == 1 ? " chunk" : " chunks") << " of 8";
    return failure();
  }
  SmallVector<int64_t> counts;
  for (int64_t i = 0; i < chunks; ++i)
    counts.push_back(std::min(rows, eights * (i + 1) / chunks * 8) - eights * i / chunks * 8);
  return counts;
}

/// Writes the ops of the MLP once for every run.
Value PieceGraph::chunkMlp(const Mlp &mlp, ArrayRef<int64_t> counts) {
  OpBuilder builder(mlp.down);
  Value x = mlp.up.front()->getOperand(0);
  SmallVector<Operation *> made;
  SmallVector<Value> joined;
  auto split = builder.create<nn::SplitRowsOp>(mlp.activation->getLoc(), x, counts);
  made.push_back(split);
  for (Value rows : split.getRuns()) {
    IRMapping mapping;
    mapping.map(x, rows);
    auto add = [&](Operation *op) { // of the types of the run
      SmallVector<Value> operands =
          llvm::map_to_vector(op->getOperands(), [&](Value value) { return mapping.lookupOrDefault(value); });
      made.push_back(*nn::createAgain(builder, op, operands, op->getAttrs()));
      mapping.map(op->getResult(0), made.back()->getResult(0));
      return made.back();
    };
    for (Operation *linear : mlp.up)
      inChunks.insert(add(linear));
    add(mlp.activation);
    joined.push_back(add(mlp.down)->getResult(0));
  }
  int64_t batch = cast<RankedTensorType>(x.getType()).getDimSize(0);
  made.push_back(builder.create<nn::JoinRowsOp>(mlp.down->getLoc(), joined, batch));
  for (Operation *op : made)
    inherit(mlp.down, op);
  return made.back()->getResult(0);
}

LogicalResult PieceGraph::chunkMlps() {
  if (piece.chunks == 1)
    return success();
  SmallVector<Mlp> mlps;
  for (Operation &op : scratch.block())
    if (std::optional<Mlp> mlp = mlpAround(op))
      mlps.push_back(*mlp);
  for (const Mlp &mlp : mlps) {
    auto type = cast<RankedTensorType>(mlp.down->getOperand(0).getType());
    auto counts = rowsOfRuns(*piece.chunksLoc, type.getNumElements() / type.getShape().back(), piece.chunks);
    if (failed(counts))
      return failure();
    replace(mlp.down->getResult(0), chunkMlp(mlp, *counts));
    erase(mlp.down);
    erase(mlp.activation);
    for (Operation *linear : mlp.up)
      erase(linear);
  }
  return success();
}
