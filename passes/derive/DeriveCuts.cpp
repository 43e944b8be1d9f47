// Cuts F and B of a slice at their attentions, so that parts of these can be computed on other ranks.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   F.3        pre ─ attention over kv.0 to kv.3 ─ post         of one layer
//
//   donor      F.step.0of2 ─▶ query ─▶ F.part.rest (kv.1 to kv.3) ─▶ F.step.1of2: merges the parts, post
//   helper              └────▶ F.part (kv.0) ──────────────────────────┘
//
//   B.3        post ─ attention_bwd ─ pre                       dkv.0 to dkv.3 are added to
//   donor      B.step.0of2 ─▶ query ─▶ B.part.rest ─▶ dq, adds to dkv.1 to dkv.3 ─▶ B.step.1of2: adds dq, adds to dkv.0
//   helper              └────▶ B.part ──▶ dq, dk and dv of slice 0 ───────────────────┘
//
// Steps go through the ops in their order; what a step makes for later ones is in its `carry`. What F saves is in
// groups by attention, the same for all ways to cut, so F and B are cut independently of each other.
#include "passes/derive/PieceGraph.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

void PieceGraph::numberCuts() {
  int64_t forwards = 0, later = 0;
  for (Operation &op : scratch.block()) {
    bool isForward = forward.contains(&op), isCut = isa<nn::Attends>(op) && isForward == isa<nn::Differentiable>(op);
    int64_t &count = isForward ? forwards : later;
    count += isCut;
    cuts[&op] = count;
    count += isCut;
    if (isCut)
      (isForward ? attentions : backwards).push_back(&op);
  }
  queries.resize(attentions.size());
  parts.resize(attentions.size());
  partSums.resize(attentions.size());
  // The values that wait for W are in the same groups, however the unit is cut. Those that F saved wait when I ends.
  for (Value value : pending)
    pendingCuts[forward.contains(value.getDefiningOp()) ? later : cutOf(value)].push_back(value);
}

int64_t PieceGraph::cutOf(Value value) const {
  Operation *op = value.getDefiningOp();
  return op ? cuts.lookup(op) : 0;
}

SmallVector<Group> PieceGraph::savedGroups(GroupKind kind, ArrayRef<Value> values) const {
  if (piece.cuts.empty())
    return {{kind, llvm::to_vector(values)}};
  std::map<int64_t, SmallVector<Value>> byCut;
  for (Value value : values)
    byCut[cutOf(value)].push_back(value);
  SmallVector<Group> groups;
  for (auto &[cut, saved] : byCut)
    groups.push_back({{kind, cut}, saved});
  return groups;
}

SmallVector<Group> PieceGraph::pendingGroups() const {
  if (piece.cuts.empty())
    return {{GroupKind::pending, pending}};
  SmallVector<Group> groups;
  for (auto &[cut, values] : pendingCuts)
    groups.push_back({{GroupKind::pending, cut}, values});
  return groups;
}

LogicalResult PieceGraph::writeCut(const CutRequest &cut) {
  if (attentions.empty())
    return emitError(piece.loc) << "`" << piece.name.getValue()
                                << "` has no attention in which another rank could help";
  bool isForward = cut.phase == Phase::F;
  size_t count = isForward ? attentions.size() : backwards.size();
  for (size_t i = 0; cut.plan.gives() && i < count; ++i)
    if (failed(isForward ? cutForward(i, cut.plan) : cutBackward(i, cut)))
      return failure();
  if (!isForward)
    return writeBackwardSteps(cut);
  if (piece.runs(Phase::R) && !stash.empty() && failed(writeForwardSteps(cut.plan, /*light=*/true)))
    return failure();
  return writeForwardSteps(cut.plan, /*light=*/false);
}

//===-- Steps ---------------------------------------------------------------------------------------------------===//

/// The values that each step makes for later steps, without those that are saved anyway.
SmallVector<Group> PieceGraph::carryGroups(GroupKind kind, const CutPlan &plan, bool inForward, ArrayRef<Value> saved,
                                           ArrayRef<Value> ends) const {
  int64_t last = inForward ? attentions.size() : backwards.size();
  const DenseSet<Value> known(saved.begin(), saved.end()); // many: sums of all weights after each step
  SmallVector<Group> groups;
  for (int64_t step = 0; step < last; ++step)
    groups.push_back({{kind, step}, {}});
  auto stepOf = [&](Operation *op) -> int64_t {
    auto it = cuts.find(op);
    return it == cuts.end() || forward.contains(op) != inForward ? -1 : plan.stepOf(it->second);
  };
  for (Operation &op : const_cast<Scratch &>(scratch).block()) {
    int64_t step = stepOf(&op);
    if (step < 0 || step == last)
      continue;
    for (Value result : op.getResults())
      if (!known.contains(result) &&
          (llvm::is_contained(ends, result) ||
           llvm::any_of(result.getUsers(), [&](Operation *user) { return stepOf(user) > step; })))
        groups[step].values.push_back(result);
  }
  return groups;
}

/// Those of the groups `stash.0`, `stash.1`, .. that this step makes, or, `before`, those that earlier ones made.
static SmallVector<Group> ofStep(ArrayRef<Group> groups, const CutPlan &plan, int64_t step, bool before) {
  SmallVector<Group> chosen;
  for (const Group &group : groups) {
    int64_t made = plan.stepOf(group.name.number);
    if (before ? made < step : made == step)
      chosen.push_back(group);
  }
  return chosen;
}

LogicalResult PieceGraph::writeForwardSteps(const CutPlan &plan, bool light) {
  int64_t steps = attentions.size() + 1;
  BodyVariant variant = light ? BodyVariant::light : BodyVariant::plain;
  SmallVector<Group> saved = savedGroups(GroupKind::kept, kept);
  if (!light)
    saved.append(savedGroups(GroupKind::stash, stash));
  SmallVector<Value> known = kv.back();
  for (const Group &group : saved)
    llvm::append_range(known, group.values);
  SmallVector<Value> ends = actOut;
  llvm::append_range(ends, skipsOut);
  SmallVector<Group> carries = carryGroups(GroupKind::carry, plan, true, known, ends);
  for (int64_t step = 0; step < steps; ++step) {
    SmallVector<Group> inputs = dataGroups(), results;
    inputs.append(ofStep(saved, plan, step, /*before=*/true));
    inputs.push_back({GroupKind::weight, weights});
    inputs.append(chunkGroups(GroupKind::kv, ArrayRef(kv).drop_back()));
    inputs.append(stateGroups(GroupKind::state, states, slice.number - 1));
    inputs.append(carries.begin(), carries.begin() + step);
    if (step > 0)
      inputs.append(parts[step - 1]);
    if (step + 1 == steps) {
      results.push_back({GroupKind::act, actOut});
      results.append(skipGroups(GroupKind::act, skipsOut));
    }
    if (step + 1 == steps && isLossForward())
      results.push_back({GroupKind::loss, losses()});
    if (step + 1 < steps)
      results.push_back(chunkGroup(GroupKind::kv, kv.back(), slice.number, step));
    for (const Group &left : stateGroups(GroupKind::state, statesOut, slice.number))
      if (plan.stepOf(left.name.attention) == step)
        results.push_back(left);
    results.append(ofStep(saved, plan, step, /*before=*/false));
    if (step + 1 < steps)
      results.append({carries[step], queries[step]});
    if (failed(write(identity(Phase::F, variant, plan.step(module.getContext(), step, steps)), inputs, results)))
      return failure();
  }
  return success();
}

/// The sum as far as ops up to this step add to it in place.
template <typename IsBefore> static Value continued(Value sum, IsBefore isBefore) {
  for (bool goesOn = true; goesOn;) {
    goesOn = false;
    for (OpOperand &use : sum.getUses())
      if (auto inPlace = dyn_cast<nn::InPlace>(use.getOwner()); inPlace && isBefore(inPlace))
        for (nn::Tie tie : inPlace.getRequiredTies())
          if (tie.operand == use.getOperandNumber() && !goesOn) {
            sum = use.getOwner()->getResult(tie.result);
            goesOn = true;
            break;
          }
  }
  return sum;
}

/// The gradients of keys that this step adds to: of those that helpers sent back, or of a whole attention.
SmallVector<Group> PieceGraph::sumsOfStep(const CutPlan &plan, int64_t step) const {
  if (plan.gives())
    return step > 0 ? partSums[step - 1] : SmallVector<Group>();
  SmallVector<Group> sums;
  for (size_t k = 0; step < static_cast<int64_t>(backwards.size()) && k < dkvOut.size(); ++k)
    sums.push_back(chunkGroup(GroupKind::dkv, dkvOut[k], k, attentions.size() - 1 - step, !dkv.empty()));
  return sums;
}

/// The gradients that this sum adds to.
SmallVector<Value> PieceGraph::argumentsOf(const Group &sum) const {
  for (const Group &group : chunkGroups(GroupKind::dkv, dkv))
    if (group.name == sum.name)
      return group.values;
  return {};
}

/// The gradients of weights after this step of the unit. A gradient to which no step has added yet is still the one
/// that came in. A gradient that is kept rounded is rounded once, at its end; until then its sum is carried from step
/// to step.
SmallVector<Value> PieceGraph::sumsUpTo(const CutPlan &plan, int64_t step) const {
  auto isDone = [&](Operation *op) { return cuts.contains(op) && plan.stepOf(cuts.lookup(op)) <= step; };
  SmallVector<Value> sums;
  for (auto [grad, sum, last] : llvm::zip(grads, gradSums, gradOut))
    sums.push_back(sum == last ? continued(grad, isDone) : isDone(last.getDefiningOp()) ? last : grad);
  return sums;
}

LogicalResult PieceGraph::writeBackwardSteps(const CutRequest &cut) {
  const CutPlan &plan = cut.plan;
  bool sumsWeights = cut.phase == Phase::B;
  int64_t steps = backwards.size() + 1;
  SmallVector<Group> waiting = sumsWeights ? SmallVector<Group>() : pendingGroups();
  SmallVector<Value> known;
  for (int64_t step = 0; step < steps; ++step)
    llvm::append_range(known, sumsUpTo(plan, step));
  for (const Group &group : waiting)
    llvm::append_range(known, group.values);
  for (Operation &op : scratch.block())
    if (!sumsWeights && (op.hasTrait<nn::WeightGradient>() || isa<nn::ZeroOp>(op))) // W runs these
      llvm::append_range(known, op.getResults());
  if (sumsUpTo(plan, steps - 1) != gradOut)
    return emitError(piece.loc) << "`attend` expects gradients that are added to in place";
  SmallVector<Value> ends = dactOut;
  llvm::append_range(ends, dskipsOut);
  SmallVector<Group> carries = carryGroups(GroupKind::dcarry, plan, false, known, ends);
  for (int64_t step = 0; step < steps; ++step) {
    SmallVector<Group> inputs = dataGroups(), results;
    inputs.append(savedGroups(GroupKind::kept, kept));
    inputs.append(savedGroups(GroupKind::stash, stash));
    inputs.push_back({GroupKind::weight, weights});
    if (!plan.gives())
      inputs.append(chunkGroups(GroupKind::kv, kv));
    inputs.append(stateGroups(GroupKind::state, states, slice.number - 1));
    inputs.append(stateGroups(GroupKind::dstate, dstates, slice.number));
    inputs.push_back({GroupKind::dact, dact});
    inputs.append(skipGroups(GroupKind::dact, dskips));
    inputs.append(carries.begin(), carries.begin() + step);
    if (plan.gives() && step > 0)
      inputs.append(parts[step - 1]);
    SmallVector<Group> sums = sumsOfStep(plan, step);
    for (const Group &sum : sums)
      if (sum.tied)
        inputs.push_back({sum.name, argumentsOf(sum)});
    inputs.append(ofStep(waiting, plan, step, /*before=*/true));
    if (sumsWeights)
      inputs.push_back({GroupKind::grad, step > 0 ? sumsUpTo(plan, step - 1) : llvm::to_vector(grads)});
    if (step + 1 == steps) {
      results.push_back({GroupKind::dact, dactOut});
      results.append(skipGroups(GroupKind::dact, dskipsOut));
    }
    results.append(sums);
    for (const Group &left : stateGroups(GroupKind::dstate, dstatesOut, slice.number - 1))
      if (auto made = llvm::map_range(left.values, [&](Value value) { return plan.stepOf(cutOf(value)); });
          *std::max_element(made.begin(), made.end()) == step)
        results.push_back(left);
    results.append(ofStep(waiting, plan, step, /*before=*/false));
    if (sumsWeights)
      results.push_back({GroupKind::grad, sumsUpTo(plan, step), true});
    if (loss && plan.stepOf(cutOf(loss)) == step)
      results.push_back({GroupKind::loss, losses()});
    if (step + 1 < steps)
      results.append({carries[step], queries[step]});
    if (failed(write(identity(cut.phase, plan.step(module.getContext(), step, steps)), inputs, results)))
      return failure();
  }
  return success();
}
