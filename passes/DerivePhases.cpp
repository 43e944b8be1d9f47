// Differentiates one piece and cuts it into F, B, I, W and R with the exact set of values that each needs saved.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All ops of the piece stand in one block, forward then backward; each body is a slice of it:
//
//   act, weight ─▶ forward ops ─▶ act            F: from act to act and stash
//                    │ stash                     stash = what crosses, less what is rebuilt (nn_ops R1)
//   dact ─▶ rebuilt, late, backward ops ─▶ dact  B: all below the line; I: what leads to dact and to W's inputs
//                    │ pending                   W: gradients of weights; pending = what crosses (nn_ops R3)
//                    └─▶ *_dw, accumulate ─▶ grad
//
// The head is late: nothing in the step reads the loss, so its forward ops stand below the line (nn_ops, Head (a)). W
// takes copies of what it reads of the stash (O-linear's input, 1A a layer), so that I frees the stash.
#include "mlir/IR/IRMapping.h"
#include "passes/DeriveTasks.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {
/// All ops of a piece, forward and backward, and the values that its bodies start from and lead to.
class PieceGraph {
public:
  PieceGraph(ModuleOp module, const PieceModel &piece);
  /// The forward ops; then, if the program has a backward, the derivatives. `first`: no gradient to add to.
  LogicalResult build(bool first);
  LogicalResult writeForward();
  LogicalResult writeBackward(bool first);
  bool hasBackward() const { return piece.runs(Phase::B) || piece.runs(Phase::I) || piece.runs(Phase::W); }

private:
  LogicalResult inlinePart(const PartUse &part, SmallVectorImpl<Value> &flow);
  Value argumentOf(func::FuncOp part, unsigned number, unsigned &weightsSeen, const PartUse &use);
  LogicalResult foldTransposes();
  LogicalResult differentiate(bool first);
  LogicalResult collectGradients(nn::Gradients &gradients, bool first);
  void lowerSplits();
  void eraseDead();
  void rebuildCheap();
  Value rebuilt(Value value, Operation *before);
  void collectStash();
  void collectPending();
  LogicalResult writeNamed(const Twine &phase, ArrayRef<Group> inputs, ArrayRef<Group> results) {
    return writeBody(module, piece.loc, (Twine(piece.prefix) + "." + phase).str(), inputs, results);
  }

  ModuleOp module;
  const PieceModel &piece;
  Scratch scratch;
  SmallVector<Value> act, tokens, targets, weights, dact, grads; ///< arguments
  SmallVector<Value> actOut, dactOut, gradOut, stash, pending;
  Value loss;
  DenseSet<Operation *> forward; ///< what F runs
  llvm::SetVector<Value> cheap;  ///< outputs that the backward makes again
  DenseMap<Value, Value> again;  ///< those made again so far
};
} // namespace

PieceGraph::PieceGraph(ModuleOp module, const PieceModel &piece)
    : module(module), piece(piece), scratch(module, piece.loc) {
  SmallVector<Type> types;
  for (const PieceWeight &weight : piece.weights)
    types.push_back(weight.attr.getType());
  weights = scratch.addArguments(types);
}

//===-- Forward -------------------------------------------------------------------------------------------------===//

/// The argument's value if it is data or a weight; null for an activation.
Value PieceGraph::argumentOf(func::FuncOp part, unsigned number, unsigned &weightsSeen, const PartUse &use) {
  if (part.getArgAttr(number, "nn.weight"))
    return weights[use.weights[weightsSeen++]];
  auto data = part.getArgAttrOfType<StringAttr>(number, "nn.data");
  if (!data)
    return {};
  SmallVector<Value> &values = data == "tokens" ? tokens : targets;
  if (values.empty())
    values = scratch.addArguments({part.getArgumentTypes()[number]});
  return values.front();
}

LogicalResult PieceGraph::inlinePart(const PartUse &use, SmallVectorImpl<Value> &flow) {
  func::FuncOp part = use.function;
  bool begins = &use == &piece.parts.front();
  unsigned weightsSeen = 0, taken = 0;
  IRMapping mapping;
  for (auto [i, argument] : llvm::enumerate(part.getArguments())) {
    Value value = argumentOf(part, i, weightsSeen, use);
    if (!value && begins)
      value = act.emplace_back(scratch.addArguments({argument.getType()}).front());
    else if (!value && taken < flow.size())
      value = flow[taken++];
    if (!value)
      return emitError(part.getLoc()) << "part `" << part.getName()
                                      << "` reads more values than the part before it gives";
    if (value.getType() != argument.getType())
      return emitError(part.getLoc()) << "part `" << part.getName() << "` reads " << argument.getType()
                                      << " as argument " << i << ", got " << value.getType();
    mapping.map(argument, value);
  }
  if (taken < flow.size())
    return emitError(part.getLoc()) << "part `" << part.getName() << "` reads " << taken << " of the " << flow.size()
                                    << " values of the part before it";
  bool late = llvm::any_of(part.getOps(), [](Operation &op) { return isa<nn::CrossEntropyOp>(op); });
  OpBuilder builder = OpBuilder::atBlockEnd(&scratch.block());
  for (Operation &op : part.front().without_terminator()) {
    Operation *copy = builder.clone(op, mapping);
    if (!late)
      forward.insert(copy);
  }
  flow.clear();
  if (!late)
    for (Value value : part.front().getTerminator()->getOperands())
      flow.push_back(mapping.lookup(value));
  return success();
}

/// Folds transposes into the linears that read them.
LogicalResult PieceGraph::foldTransposes() {
  for (auto linear : scratch.block().getOps<nn::LinearOp>())
    if (auto transpose = linear.getW().getDefiningOp<nn::TransposeOp>()) {
      linear.getWMutable().set(transpose.getW());
      linear.setTransposed(!linear.getTransposed());
    }
  for (auto transpose : llvm::make_early_inc_range(scratch.block().getOps<nn::TransposeOp>())) {
    if (!transpose->use_empty())
      return transpose.emitError("`transpose` may stand only where `linear` reads its weight");
    forward.erase(transpose);
    transpose.erase();
  }
  return success();
}

LogicalResult PieceGraph::build(bool first) {
  for (const PartUse &part : piece.parts)
    if (failed(inlinePart(part, actOut)))
      return failure();
  if (failed(foldTransposes()))
    return failure();
  if (hasBackward() && failed(differentiate(first)))
    return failure();
  lowerSplits();
  eraseDead();
  rebuildCheap();
  collectStash();
  collectPending();
  return success();
}

//===-- Backward ------------------------------------------------------------------------------------------------===//

LogicalResult PieceGraph::differentiate(bool first) {
  nn::Gradients gradients(OpBuilder::atBlockEnd(&scratch.block()), piece.lossScale);
  SmallVector<Operation *> ops;
  for (Operation &op : scratch.block())
    ops.push_back(&op);
  SmallVector<Type> types;
  for (Value value : actOut)
    types.push_back(value.getType());
  dact = scratch.addArguments(types);
  for (auto [value, gradient] : llvm::zip(actOut, dact))
    gradients.add(piece.loc, value, gradient);
  types.clear();
  for (Value weight : weights) {
    auto type = cast<RankedTensorType>(weight.getType());
    types.push_back(type.clone(nn::sumType(type.getElementType())));
  }
  grads = scratch.addArguments(types);
  if (!first)
    for (auto [weight, grad] : llvm::zip(weights, grads))
      gradients.set(weight, grad);
  for (Operation *op : llvm::reverse(ops)) {
    auto differentiable = dyn_cast<nn::Differentiable>(op);
    if (!differentiable)
      return op->emitError() << "`" << op->getName().stripDialect() << "` has no derivative";
    if (failed(differentiable.differentiate(gradients)))
      return failure();
  }
  return collectGradients(gradients, first);
}

LogicalResult PieceGraph::collectGradients(nn::Gradients &gradients, bool first) {
  loss = gradients.loss;
  for (auto [i, value] : llvm::enumerate(act)) {
    dactOut.push_back(gradients.get(value));
    if (!dactOut.back())
      return emitError(piece.loc) << "value " << i << " that `" << piece.prefix
                                  << "` receives leads to nothing that it returns";
  }
  for (auto [weight, grad] : llvm::zip(weights, grads)) {
    Value sum = gradients.get(weight);
    if (!sum) // nothing reads the weight
      sum = gradients.builder.create<nn::ZeroOp>(piece.loc, grad.getType());
    gradOut.push_back(sum);
  }
  return success();
}

void PieceGraph::lowerSplits() {
  for (auto split : llvm::make_early_inc_range(scratch.block().getOps<nn::SplitOp>())) {
    OpBuilder builder(split);
    int64_t start = 0;
    for (Value column : split.getColumns()) {
      int64_t width = cast<RankedTensorType>(column.getType()).getShape().back();
      auto slice = builder.create<nn::SliceColumnsOp>(split.getLoc(), split.getX(), start, width);
      if (forward.contains(split))
        forward.insert(slice);
      column.replaceAllUsesWith(slice.getY());
      std::replace(actOut.begin(), actOut.end(), column, Value(slice.getY()));
      start += width;
    }
    forward.erase(split);
    split.erase();
  }
}

void PieceGraph::eraseDead() {
  DenseSet<Value> wanted;
  for (const SmallVector<Value> *values : {&actOut, &dactOut, &gradOut})
    wanted.insert(values->begin(), values->end());
  wanted.insert(loss);
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(scratch.block())))
    if (op.use_empty() && llvm::none_of(op.getResults(), [&](Value value) { return wanted.contains(value); })) {
      forward.erase(&op);
      op.erase();
    }
}

//===-- What is saved -------------------------------------------------------------------------------------------===//

// nn_ops R1: one pass in program order. An output of a cheap op need not be saved if its inputs are there: arguments,
// saved anyway, or made again themselves. Only what the backward reads counts.
void PieceGraph::rebuildCheap() {
  DenseSet<Value> there;
  for (Operation &op : scratch.block()) {
    if (!forward.contains(&op))
      continue;
    auto readLater = [&](Value value) {
      return llvm::any_of(value.getUsers(), [&](Operation *user) { return !forward.contains(user); });
    };
    for (Value result : op.getResults())
      if (readLater(result))
        there.insert(result);
    auto differentiable = dyn_cast<nn::Differentiable>(op);
    bool can = differentiable && differentiable.isCheap() && llvm::all_of(op.getOperands(), [&](Value operand) {
                 return isa<BlockArgument>(operand) || there.contains(operand);
               });
    if (can && readLater(op.getResult(0)))
      cheap.insert(op.getResult(0));
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

/// The value made again, right before its first reader.
Value PieceGraph::rebuilt(Value value, Operation *before) {
  if (!cheap.contains(value))
    return value;
  Value &made = again[value];
  if (made)
    return made;
  OpBuilder builder(before);
  Operation *op = cast<nn::Differentiable>(value.getDefiningOp()).rebuild(builder);
  for (OpOperand &operand : op->getOpOperands())
    operand.set(rebuilt(operand.get(), op));
  return again[value] = op->getResult(0);
}

void PieceGraph::collectStash() {
  llvm::SetVector<Value> saved;
  for (Operation &op : scratch.block())
    if (forward.contains(&op))
      for (Value result : op.getResults())
        if (llvm::any_of(result.getUsers(), [&](Operation *user) { return !forward.contains(user); }))
          saved.insert(result);
  stash = saved.takeVector();
}

// W runs the ops that make gradients of weights and nothing else: it reads no weight (nn_ops R3).
void PieceGraph::collectPending() {
  DenseSet<Value> crossing;
  auto isWeightOp = [](Operation *op) { return op && op->hasTrait<nn::WeightGradient>(); };
  for (Value grad : gradOut)
    if (grad.getDefiningOp() && !isWeightOp(grad.getDefiningOp()) && !isa<nn::ZeroOp>(grad.getDefiningOp()))
      crossing.insert(grad); // a hand that is the whole sum
  for (Operation &op : scratch.block())
    if (isWeightOp(&op))
      for (Value operand : op.getOperands())
        if (operand.getDefiningOp() && !isWeightOp(operand.getDefiningOp()))
          crossing.insert(operand);
  for (Operation &op : scratch.block()) // one order for I, W and W.first
    for (Value result : op.getResults())
      if (crossing.contains(result))
        pending.push_back(result);
}

//===-- Bodies --------------------------------------------------------------------------------------------------===//

LogicalResult PieceGraph::writeForward() {
  SmallVector<Group> inputs = {{"act", act}, {"tokens", tokens}, {"targets", targets}, {"weight", weights}};
  if (failed(writeNamed("F", inputs, {{"act", actOut}, {"stash", stash}})))
    return failure();
  if (!piece.runs(Phase::R))
    return success();
  return success(succeeded(writeNamed("F.light", inputs, {{"act", actOut}})) &&
                 succeeded(writeNamed("R", inputs, {{"stash", stash}})));
}

LogicalResult PieceGraph::writeBackward(bool first) {
  SmallVector<Value> losses;
  if (loss)
    losses.push_back(loss);
  StringRef suffix = first ? ".first" : "", tie = first ? "" : "grad";
  SmallVector<Group> inputs = {{"act", act},     {"tokens", tokens},  {"targets", targets},
                               {"stash", stash}, {"weight", weights}, {"dact", dact}};
  if (piece.runs(Phase::I) && !first &&
      failed(writeNamed("I", inputs, {{"dact", dactOut}, {"pending", pending}, {"loss", losses}})))
    return failure();
  if (piece.runs(Phase::B)) {
    SmallVector<Group> all = inputs;
    all.push_back({"grad", grads});
    if (failed(writeNamed("B" + suffix, all, {{"dact", dactOut}, {"grad", gradOut, tie.str()}, {"loss", losses}})))
      return failure();
  }
  if (!piece.runs(Phase::W) || piece.weights.empty())
    return success();
  SmallVector<Group> given = {{"act", act}, {"tokens", tokens}, {"pending", pending}, {"dact", dact}, {"grad", grads}};
  return writeNamed("W" + suffix, given, {{"grad", gradOut, tie.str()}});
}

LogicalResult pp::derivePhases(ModuleOp module, const PieceModel &piece) {
  PieceGraph next(module, piece);
  if (failed(next.build(/*first=*/false)) || failed(next.writeForward()))
    return failure();
  if (!next.hasBackward())
    return success();
  if (failed(next.writeBackward(/*first=*/false)))
    return failure();
  if (piece.weights.empty()) // nothing to add to: B is B.first
    return success();
  PieceGraph first(module, piece);
  return success(succeeded(first.build(/*first=*/true)) && succeeded(first.writeBackward(/*first=*/true)));
}
