// Lets attentions and gated units read their operands where one product leaves them, and their backwards write there.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   %q, %k, %v = split %qkv                       %o, %lse = attention %qkv, %qkv, %qkv {packed}
//   %o, %lse = attention %q, %k, %v        =>     and later   %dqkv = attention_bwd .. {packed}
//
//   %p, %q = split %pq                            %y = swiglu %pq {packed}
//   %y = swiglu %p, %q                     =>     and later   %dpq = swiglu_bwd .. {packed}
//
// Kernels read rows as far apart as the product has them; the copies of the operands, and of their gradients side by
// side, go. Ropes of q and k become one of qkv, which turns them where they lie. What is stashed has as many bytes. An
// attention of slices, of devices that share a sequence or its heads, or of a unit that is cut at its attentions keeps
// q, k and v apart, for they travel.
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// The ops that make q, k and v: a split, and behind it a rope of q and one of k, or no ropes.
struct Made {
  nn::SplitOp split;
  nn::RopeOp ropes[2];

  /// The ops in an order in which they can be erased: a reader before the ops that it reads.
  [[nodiscard]] SmallVector<Operation *> ops() const {
    return ropes[0] ? SmallVector<Operation *>{ropes[0], ropes[1], split} : SmallVector<Operation *>{split};
  }
};

} // namespace

/// Whether the two turn alike, each the heads that attention sees.
static bool turnAlike(nn::RopeOp q, nn::RopeOp k, nn::AttentionOp attention) {
  auto angles = [](auto rope) {
    return std::tuple(rope.getStarts(), rope.getThetaAttr(), rope.getStyleAttr(), rope.getOffset(), rope.getTableAttr(),
                      rope.getInverse(), rope.getZigzag(), rope.getPassing(), rope.getGrowthAttr());
  };
  auto turns = [](auto rope, int64_t heads) { return static_cast<int64_t>(rope.getHeads()) == heads; };
  return q && k && angles(q) == angles(k) && turns(q, static_cast<int64_t>(attention.getHeads())) &&
         turns(k, attention.countKeyHeads()) && q.getOffset() == 0 && q.getZigzag() == 0 && q.getPassing() == 0;
}

/// The ops that make q, k and v, if these are the results of a split of a whole sequence, with or without ropes, and
/// nobody else reads them.
static std::optional<Made> makingOf(nn::AttentionOp attention) {
  OperandRange kv = attention.getKv();
  if (kv.size() != 2 || attention.getOffset() > 0 || attention.getKvOffsets() || attention.getZigzag() > 0)
    return std::nullopt;
  Made made;
  Value reads[] = {attention.getQ(), kv[0], kv[1]};
  for (int i = 0; i < 2; ++i)
    if (auto rope = reads[i].getDefiningOp<nn::RopeOp>(); rope && reads[i].hasOneUse())
      reads[i] = (made.ropes[i] = rope).getX();
  auto split = reads[0].getDefiningOp<nn::SplitOp>();
  if (!split || split.getPeriods() != 1 || !llvm::equal(split.getColumns(), reads) ||
      !llvm::all_of(reads, [](Value read) { return read.hasOneUse(); }) ||
      ((made.ropes[0] || made.ropes[1]) && !turnAlike(made.ropes[0], made.ropes[1], attention)))
    return std::nullopt;
  made.split = split;
  return made;
}

/// One rope of the whole tensor turns q and k where they lie; v passes.
static nn::RopeOp ropeOfAll(Made made, nn::AttentionOp attention) {
  OpBuilder builder(attention);
  auto q = made.ropes[0];
  const int64_t kvHeads = attention.countKeyHeads();
  return builder.create<nn::RopeOp>(q.getLoc(), made.split.getX(), q.getStarts(),
                                    static_cast<int64_t>(attention.getHeads()) + 2 * kvHeads, q.getTheta(),
                                    q.getStyle(), q.getOffset(), q.getInverse(), q.getTableAttr(), q.getZigzag(),
                                    /*passing=*/kvHeads, q.getGrowthAttr());
}

/// Whether a result of the op leaves the piece, or is a key or value that other slices read.
bool PieceGraph::goesOn(Operation *op) const {
  auto has = [&](ArrayRef<Value> values) {
    return llvm::any_of(values, [&](Value value) { return value.getDefiningOp() == op; });
  };
  return has(actOut) || has(skipsOut) || has(keys) || llvm::any_of(kv, has);
}

void PieceGraph::packAttentions() {
  ProgramOp program = piece.program;
  if (!slice.isWhole() || !piece.cuts.empty() || program.sizeOf(Axis::tensor) > 1 || program.sizeOf(Axis::context) > 1)
    return;
  for (auto attention : llvm::make_early_inc_range(scratch.block().getOps<nn::AttentionOp>())) {
    std::optional<Made> made = makingOf(attention);
    if (!made || llvm::any_of(attention.getO().getUsers(), llvm::IsaPred<nn::SinkOp, nn::AttentionMergeOp>))
      continue;
    SmallVector<Operation *> gone = made->ops();
    if (llvm::any_of(gone, [&](Operation *op) { return goesOn(op); }))
      continue;
    Value all = made->split.getX();
    if (made->ropes[0]) {
      auto rope = ropeOfAll(*made, attention);
      inherit(made->ropes[0], rope);
      all = rope.getY();
    }
    attention->setOperands(0, 3, {all, all, all});
    attention.setPacked(true);
    for (Operation *op : gone)
      erase(op);
  }
}

void PieceGraph::packGates() {
  if (ProgramOp(piece.program).sizeOf(Axis::tensor) > 1) // its devices have columns of both
    return;
  auto pack = [&](auto gate) {
    auto split = gate.getP().template getDefiningOp<nn::SplitOp>();
    const Value reads[] = {gate.getP(), gate.getQ()};
    if (!split || split.getPeriods() != 1 || !llvm::equal(split.getColumns(), reads) || goesOn(split) ||
        !llvm::all_of(reads, [](Value read) { return read.hasOneUse(); }))
      return;
    gate->setOperands(split.getX());
    gate.setPacked(true);
    erase(split);
  };
  for (Operation &op : llvm::make_early_inc_range(scratch.block()))
    llvm::TypeSwitch<Operation *>(&op).Case<nn::SwigluOp, nn::GluOp>(pack);
}
