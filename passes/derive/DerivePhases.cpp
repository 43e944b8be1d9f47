// Differentiates one piece and cuts it into F, B, I, W and R with the exact set of values that each needs saved.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All ops of the piece stand in one block, forward then backward; each body is a slice of it:
//
//   act, weight ─▶ forward ops ─▶ act            F: from act to act and stash
//                    │ stash                     stash = what crosses, less what is rebuilt (docs/derivatives.md R1)
//   dact ─▶ rebuilt, late, backward ops ─▶ dact  B: all below the line; I: what leads to dact and to W's inputs
//                    │ pending                   W: gradients of weights; pending = what crosses (ditto, R3)
//                    └─▶ *_dw, accumulate ─▶ grad
//
// The head is late: nothing in the step reads the loss, so its forward ops stand below the line (docs/derivatives.md,
// "The head"). Of a head that is cut by the vocabulary only those that read the statistics of all shards do. I ends the
// stash: what W reads of it (O-linear's input, 1A a layer) stays where it is and is pending from then on. In a forward
// program the head is not late; its loss is that of the backward, of which nothing else is left. It comes from
// statistics of the logits, not from the kernel that makes dz too.
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

PieceGraph::PieceGraph(ModuleOp module, const PieceModel &piece, const SequenceSlice &slice, Identities &written)
    : module(module), piece(piece), slice(slice), written(written), scratch(module, piece.loc), kv(slice.number + 1) {
  SmallVector<Type> types;
  for (const PieceWeight &weight : piece.weights)
    types.push_back(weight.attr.getType());
  weights = scratch.addArguments(types);
}

//===-- Forward -------------------------------------------------------------------------------------------------===//

/// The argument's value if it is data or a weight; null for an activation.
Value PieceGraph::argumentOf(func::FuncOp part, unsigned number, unsigned &weightsSeen, const PartUse &use) {
  if (part.getArgAttr(number, nn::kWeightAttr))
    return weights[use.weights[weightsSeen++]];
  if (part.getArgAttr(number, nn::kStatsAttr))
    return stats.emplace_back(
        scratch.addArguments({slice.typeIn(part.getArgumentTypes()[number], slice.number)}).front());
  if (auto from = part.getArgAttrOfType<StringAttr>(number, nn::kFromAttr))
    return skipOf(from, slice.typeIn(part.getArgumentTypes()[number], slice.number));
  auto data = part.getArgAttrOfType<StringAttr>(number, nn::kDataAttr);
  if (!data)
    return {};
  auto which = part.getArgAttrOfType<IntegerAttr>(number, nn::kAheadAttr);
  if (data == "column")
    which = part.getArgAttrOfType<IntegerAttr>(number, nn::kColumnAttr);
  if (which) {
    Value &value = numbered[{*symbolizeGroupKind(data.getValue()), which.getInt()}];
    if (!value)
      value = scratch.addArguments({slice.typeIn(part.getArgumentTypes()[number], slice.number)}).front();
    return value;
  }
  SmallVector<Value> &values = *llvm::StringSwitch<SmallVector<Value> *>(data.getValue())
                                    .Case("tokens", &tokens)
                                    .Case("targets", &targets)
                                    .Case("starts", &starts)
                                    .Case("positions", &positions)
                                    .Case("rows", &rows)
                                    .Default(&source);
  if (values.empty())
    values = scratch.addArguments({slice.typeIn(part.getArgumentTypes()[number], slice.number)});
  return values.front();
}

/// Each layer's dropouts have masks of their own. A part outside the layers has those behind the last of layer -1.
static LogicalResult numberDropout(Operation *op, int64_t layer) {
  constexpr int64_t sites = 1 << 16; // 16 bits of the masks' counter
  std::optional<nn::DropoutSite> said = nn::dropoutSiteOf(op);
  if (!said || said->sites == 0)
    return success();
  int64_t site = (layer + 1) * said->sites + said->site;
  if (site >= sites)
    return op->emitError() << "a model has at most " << sites << " dropouts; this is number " << site;
  nn::setDropoutSite(op, {site, 0});
  return success();
}

/// Of a late part F runs what leads to the statistics that it hands out.
void PieceGraph::insertMakersOfStatistics(const PartUse &use) {
  SmallVector<Value> open(statsOut);
  while (!open.empty()) {
    Operation *op = open.pop_back_val().getDefiningOp();
    if (!op || !forward.insert(op).second)
      continue;
    if (use.again)
      runs[op] = run;
    llvm::append_range(open, op->getOperands());
  }
}

LogicalResult PieceGraph::inlinePart(const PartUse &use, SmallVectorImpl<Value> &flow) {
  func::FuncOp part = use.function;
  bool begins = &use == &piece.parts.front();
  unsigned weightsSeen = 0, taken = 0;
  IRMapping mapping;
  for (auto [i, argument] : llvm::enumerate(part.getArguments())) {
    Value value = argumentOf(part, i, weightsSeen, use);
    bool isWeight = part.getArgAttr(i, nn::kWeightAttr) != nullptr;
    bool isRows = part.getArgAttr(i, nn::kRowsAttr) != nullptr;
    Type type = isWeight ? argument.getType()
                : isRows ? slice.rowsIn(argument.getType())
                         : slice.typeIn(argument.getType(), slice.number);
    if (!value && begins) {
      value = scratch.addArguments({type}).front();
      if (!llvm::is_contained(piece.keysIn, taken++))
        act.push_back(value);
    } else if (!value && taken < flow.size())
      value = flow[taken++];
    if (!value)
      return emitError(part.getLoc()) << "part `" << part.getName()
                                      << "` reads more values than the part before it gives";
    if (value.getType() != type)
      return emitError(part.getLoc()) << "part `" << part.getName() << "` reads " << type << " as argument " << i
                                      << ", got " << value.getType();
    mapping.map(argument, value);
  }
  if (!begins && taken < flow.size())
    return emitError(part.getLoc()) << "part `" << part.getName() << "` reads " << taken << " of the " << flow.size()
                                    << " values of the part before it";
  bool late = !part.getOps<nn::Loss>().empty();
  bool shares = !stats.empty(); // the loss with pieces on other ranks
  hasHead |= late;
  run += !use.again;
  OpBuilder builder = OpBuilder::atBlockEnd(&scratch.block());
  for (Operation &op : part.front().without_terminator()) {
    FailureOr<Operation *> copy = slice.isWhole() ? builder.clone(op, mapping) : cloneSliced(builder, op, mapping);
    if (failed(copy) || failed(numberDropout(*copy, use.layer)))
      return failure();
    if (shares && isa<nn::CrossEntropyStatsOp>(*copy))
      statsOut.push_back((*copy)->getResult(0));
    else if (shares && isa<nn::CrossEntropyMergeOp>(*copy) && (*copy)->getOperand(0).getDefiningOp<nn::View>())
      statsOut.back() = (*copy)->getResult(0); // of a rank's columns, of which each of its devices has made some
    if (late)
      continue;
    forward.insert(*copy);
    if (use.again)
      runs[*copy] = run;
  }
  if (late)
    insertMakersOfStatistics(use);
  flow.clear();
  if (!late)
    for (Value value : part.front().getTerminator()->getOperands())
      flow.push_back(mapping.lookup(value));
  nameSkips(part, flow);
  return success();
}

/// Folds transposes into the linears that read them.
LogicalResult PieceGraph::foldTransposes() {
  for (auto linear : scratch.block().getOps<nn::LinearOp>())
    if (Value w = linear.declaredWeight(); w != linear.getW()) {
      linear.getWMutable().set(w);
      linear.setTransposed(!linear.getTransposed());
    }
  for (auto transpose : llvm::make_early_inc_range(scratch.block().getOps<nn::TransposeOp>())) {
    if (!transpose->use_empty())
      return transpose.emitError("`transpose` may stand only where `linear` reads its weight");
    erase(transpose);
  }
  return success();
}

/// The kernel of a whole cross-entropy makes the gradient of the logits too. Statistics and their loss do not.
void PieceGraph::splitLosses() {
  for (auto whole : llvm::make_early_inc_range(scratch.block().getOps<nn::CrossEntropyOp>())) {
    if (whole.getFurther()) // stays apart
      continue;
    OpBuilder builder(whole);
    Value stats = whole.statisticsOf(builder, whole->getOperands(), /*first=*/0, nn::AxesAttr());
    whole->replaceAllUsesWith(whole.fromStatistics(builder, stats, whole->getOperands()));
    erase(whole);
  }
}

LogicalResult PieceGraph::build(bool first) {
  for (const PartUse &part : piece.parts)
    if (failed(inlinePart(part, actOut)))
      return failure();
  if (isLossForward())
    splitLosses();
  splitKeys();
  collectSkips();
  if (failed(foldTransposes()) || failed(chunkMlps()))
    return failure();
  packAttentions();
  packGates();
  if ((hasBackward() || isLossForward()) && failed(differentiate(first)))
    return failure();
  lowerComposed();
  eraseDead();
  if (isLossForward())
    for (Operation &op : scratch.block())
      forward.insert(&op);
  rebuildCheap();
  saveInputs();
  collectStash();
  if (piece.runs(Phase::R))
    splitStash();
  collectPending();
  if (!piece.cuts.empty())
    numberCuts();
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
  seedSkips(gradients);
  for (auto [value, gradient] : llvm::zip(actOut, dact))
    gradients.add(piece.loc, value, gradient);
  seedKeys(gradients);
  types.clear();
  for (Value weight : trained())
    types.push_back(piece.gradType(cast<RankedTensorType>(weight.getType())));
  grads = scratch.addArguments(types);
  gradients.weights.insert(weights.begin(), weights.end());
  for (auto &[name, value] : numbered)
    gradients.data.insert(value);
  if (!first)
    for (auto [weight, grad] : llvm::zip(trained(), grads))
      gradients.set(weight, widenGrad(gradients.builder, piece.loc, grad));
  if (failed(seedChunks(gradients)))
    return failure();
  seedStates(gradients);
  for (Operation *op : llvm::reverse(ops)) {
    if (auto copy = dyn_cast<nn::CopyOp>(op)) { // of keys that came in an activation
      if (Value gradient = gradients.get(copy.getY()))
        gradients.add(op->getLoc(), copy.getX(), gradient);
      continue;
    }
    auto differentiable = dyn_cast<nn::Differentiable>(op);
    if (!differentiable)
      return op->emitError() << "`" << op->getName().stripDialect() << "` has no derivative";
    if (failed(differentiable.differentiate(gradients)))
      return failure();
  }
  return collectGradients(gradients, first);
}

LogicalResult PieceGraph::collectGradients(nn::Gradients &gradients, bool first) {
  // All shards of a loss make the same value, and one of them gives it to the trainer.
  func::FuncOp last = piece.parts.back().function;
  if (gradients.loss && !last.getResultTypes().empty())
    loss = gradients.loss, furtherLoss = gradients.furtherLoss, reports = gradients.reports;
  collectChunks(gradients);
  collectStates(gradients);
  if (!act.empty() && llvm::none_of(act, [&](Value value) { return gradients.get(value); }))
    return emitError(piece.loc) << "nothing that `" << piece.name.getValue()
                                << "` receives leads to anything that it returns";
  for (Value value : piece.endsBackward ? ArrayRef<Value>()
                                        : ArrayRef(act)) { // what is passed on and read no more has a gradient of zero
    Value gradient = gradients.get(value);
    dactOut.push_back(gradient ? gradient : nn::zeroOf(gradients.builder, piece.loc, value.getType()));
  }
  collectSkipGradients(gradients);
  for (auto [weight, grad] : llvm::zip(trained(), grads)) {
    Value sum = gradients.get(weight);
    if (!sum) // nothing reads the weight
      sum = nn::zeroOf(gradients.builder, piece.loc, sumsOf(weight.getType()));
    gradSums.push_back(sum);
    gradOut.push_back(roundGrad(gradients.builder, piece.loc, sum, grad.getType()));
  }
  if (piece.rounds)
    sumOneByOne();
  return success();
}

/// A gradient is widened right before it is added to and rounded right after, so that no more than one is in scratch.
void PieceGraph::sumOneByOne() {
  for (auto [grad, sum, rounded] : llvm::zip(grads, gradSums, gradOut)) {
    if (Operation *last = sum.getDefiningOp(); last && rounded != sum)
      rounded.getDefiningOp()->moveAfter(last);
    for (Operation *widened : grad.getUsers()) {
      Operation *first =
          *llvm::min_element(widened->getUsers(), [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
      widened->moveBefore(first);
      widened->getOperand(1).getDefiningOp()->moveBefore(widened);
    }
  }
}

/// An op that replaces a part of `from` runs where `from` does: in F, and in R if R may run it again. The number is
/// copied first, because an insertion may move the entry that the iterator points at.
void PieceGraph::inherit(Operation *from, Operation *op) {
  if (forward.contains(from))
    forward.insert(op);
  auto it = runs.find(from);
  if (it == runs.end())
    return;
  unsigned number = it->second;
  runs[op] = number;
}

// Splits, concatenations and paddings become the ops that they stand for.
void PieceGraph::lowerComposed() {
  for (auto composed : llvm::make_early_inc_range(scratch.block().getOps<nn::Composed>())) {
    OpBuilder builder(composed);
    Operation *before = composed->getPrevNode();
    SmallVector<Value> made = composed.decompose(builder);
    for (Operation *op = before ? before->getNextNode() : &scratch.block().front(); op != composed;
         op = op->getNextNode())
      inherit(composed, op);
    for (auto [old, value] : llvm::zip(composed->getResults(), made)) {
      old.replaceAllUsesWith(value);
      for (SmallVector<Value> *values : {&actOut, &keys, &skipsOut})
        std::replace(values->begin(), values->end(), Value(old), value);
      if (!kv.empty())
        std::replace(kv.back().begin(), kv.back().end(), Value(old), value);
    }
    erase(composed);
  }
}

void PieceGraph::erase(Operation *op) {
  forward.erase(op);
  runs.erase(op);
  op->erase();
}

void PieceGraph::eraseDead() {
  DenseSet<Value> wanted;
  for (const SmallVector<Value> *values :
       {&actOut, &keys, &dactOut, &gradOut, &statsOut, &skipsOut, &dskipsOut, &statesOut, &dstatesOut})
    wanted.insert(values->begin(), values->end());
  for (const auto *chunks : {&kv, &dkvOut})
    for (const SmallVector<Value> &values : *chunks)
      wanted.insert(values.begin(), values.end());
  wanted.insert(loss);
  wanted.insert(furtherLoss);
  wanted.insert(reports.begin(), reports.end());
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(scratch.block())))
    if (op.use_empty() && llvm::none_of(op.getResults(), [&](Value value) { return wanted.contains(value); }))
      erase(&op);
}

//===-- Bodies --------------------------------------------------------------------------------------------------===//

/// The groups that come from the trainer and from the piece before.
SmallVector<Group> PieceGraph::dataGroups() const {
  SmallVector<Group> groups = {{GroupKind::act, act},         {GroupKind::tokens, tokens},
                               {GroupKind::targets, targets}, {GroupKind::source, source},
                               {GroupKind::starts, starts},   {GroupKind::positions, positions},
                               {GroupKind::rows, rows}};
  groups.append(skipGroups(GroupKind::act, skips));
  groups.append(numberedGroups());
  return groups;
}

SmallVector<Group> PieceGraph::numberedGroups() const {
  SmallVector<Group> groups;
  for (auto &[name, value] : numbered)
    groups.push_back({{name.first, name.second}, {value}});
  return groups;
}

LogicalResult PieceGraph::writeForward(CutAttr cut, const Group &more) {
  SmallVector<Group> inputs = dataGroups(),
                     results = {{GroupKind::act, actOut}, {GroupKind::stats, statsOut}, {GroupKind::keys, keys}};
  results.append(skipGroups(GroupKind::act, skipsOut));
  SmallVector<Group> own, made = savedGroups(GroupKind::stash, stash);
  if (!slice.isWhole()) {
    own = chunkGroups(GroupKind::kv, kv, slice.number);
    inputs.append(chunkGroups(GroupKind::kv, ArrayRef(kv).drop_back()));
    if (readsKeys())
      inputs.append(std::exchange(own, {}));
  }
  results.append(own);
  inputs.append(stateGroups(GroupKind::state, states, slice.number - 1));
  results.append(stateGroups(GroupKind::state, statesOut, slice.number));
  if (isLossForward())
    results.push_back({GroupKind::loss, losses()});
  inputs.push_back({GroupKind::weight, weights});
  results.append(savedGroups(GroupKind::kept, kept));
  results.append(made);
  if (!more.values.empty())
    inputs.push_back(more);
  if (failed(write(identity(Phase::F, cut), inputs, results)))
    return failure();
  if (cut || !piece.runs(Phase::R) || stash.empty())
    return success();
  results.pop_back_n(made.size());
  if (failed(write(identity(Phase::F, BodyVariant::light), inputs, results)))
    return failure();
  inputs.append(own);
  inputs.append(savedGroups(GroupKind::kept, kept));
  if (failed(write(identity(Phase::R), inputs, made)))
    return failure();
  // For units that read the activation of a piece after its R: then it need not wait for them.
  bool isWhole = llvm::all_of(piece.parts, [](const PartUse &part) { return part.again; });
  made.insert(made.begin(), Group{GroupKind::act, actOut});
  return isWhole && !actOut.empty() ? write(identity(Phase::R, BodyVariant::act), inputs, made) : success();
}

LogicalResult PieceGraph::writeBackward(bool first) {
  SmallVector<Value> losses;
  if (loss)
    losses = this->losses();
  BodyVariant variant = first ? BodyVariant::first : BodyVariant::plain;
  SmallVector<Group> inputs = dataGroups();
  inputs.append(savedGroups(GroupKind::kept, kept));
  inputs.append(savedGroups(GroupKind::stash, stash));
  inputs.append({{GroupKind::stats, stats}, {GroupKind::weight, weights}});
  inputs.append(chunkGroups(GroupKind::kv, kv));
  inputs.append(chunkGroups(GroupKind::dkv, dkv));
  inputs.append(stateGroups(GroupKind::state, states, slice.number - 1));
  inputs.append(stateGroups(GroupKind::dstate, dstates, slice.number));
  inputs.append({{GroupKind::dact, dact}, {GroupKind::dkeys, dkeys}});
  inputs.append(skipGroups(GroupKind::dact, dskips));
  SmallVector<Group> results = chunkGroups(GroupKind::dkv, dkvOut, 0, /*tied=*/!dkv.empty());
  results.insert(results.begin(), Group{GroupKind::dact, dactOut});
  results.append(skipGroups(GroupKind::dact, dskipsOut));
  results.append(stateGroups(GroupKind::dstate, dstatesOut, slice.number - 1));
  auto with = [](SmallVector<Group> groups, ArrayRef<Group> more) {
    groups.append(more.begin(), more.end());
    return groups;
  };
  if (piece.runs(Phase::I) && !first &&
      failed(write(identity(Phase::I), inputs, with(with(results, pendingGroups()), {{GroupKind::loss, losses}}))))
    return failure();
  if (piece.runs(Phase::B) &&
      failed(write(identity(Phase::B, variant), with(inputs, {{GroupKind::grad, grads}}),
                   with(results, {{GroupKind::grad, gradOut, !first}, {GroupKind::loss, losses}}))))
    return failure();
  if (!piece.runs(Phase::W) || grads.empty())
    return success();
  SmallVector<Group> given = with({{GroupKind::act, act},
                                   {GroupKind::tokens, tokens},
                                   {GroupKind::source, source},
                                   {GroupKind::starts, starts},
                                   {GroupKind::positions, positions}},
                                  pendingGroups());
  given.append({{GroupKind::dact, dact}, {GroupKind::dkeys, dkeys}, {GroupKind::grad, grads}});
  given.append(skipGroups(GroupKind::act, skips));
  given.append(numberedGroups());
  given.append(skipGroups(GroupKind::dact, dskips));
  return write(identity(Phase::W, variant), given, {{GroupKind::grad, gradOut, !first}});
}

LogicalResult pp::derivePhases(ModuleOp module, const PieceModel &piece, const SequenceSlice &slice) {
  PieceGraph::Identities written;
  PieceGraph next(module, piece, slice, written);
  if (failed(next.build(/*first=*/false)) || failed(next.writeForward()))
    return failure();
  if (next.hasBackward() && failed(next.writeBackward(/*first=*/false)))
    return failure();
  for (const CutRequest &cut : piece.cuts)
    if (PieceGraph graph(module, piece, slice, written); cut.slice == slice.number)
      if (failed(graph.build(/*first=*/false)) || failed(graph.writeCut(cut)))
        return failure();
  for (const CutRequest &cut : piece.aheads)
    if (PieceGraph graph(module, piece, slice, written); cut.slice == slice.number)
      if (failed(graph.build(/*first=*/false)) || failed(graph.writeAhead(cut)))
        return failure();
  if (!next.hasBackward() || piece.trained() == 0) // nothing to add to: B is B.first
    return success();
  PieceGraph first(module, piece, slice, written);
  return success(succeeded(first.build(/*first=*/true)) && succeeded(first.writeBackward(/*first=*/true)));
}
