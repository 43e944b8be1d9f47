// Builds units whose attentions are computed in parts on several ranks: their steps, their parts, and what travels.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: together { unit F(0, 0, 3) on [0]   unit F(3, 0, 0) on [3]   attend F(0, 0, 3) over [0] on 3 }
//
//   rank 0 | F.step.0of2 ─┬─ F.part.rest ──────────────┬─ F.step.1of2        layer by layer, all units of the joint in
//   rank 3 | F.step.0of2  └▶ F.part ─ (its own first) ─┘  F.step.1of2        step; keys travel before, if they must
#include "passes/complete/AttentionExchange.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

const TaskBody *AttentionExchange::stepOf(const RunningCut &cut, int64_t number) const {
  CutAttr part = cut.unit.plan.step(step.builder.getContext(), number, cut.steps);
  return step.bodies.find(cut.piece, cut.phase(), cut.variant, cut.coord().getSlice(), part);
}

LogicalResult AttentionExchange::begin(RunningCut &cut) {
  UnitOp op = cut.unit.op;
  Phase phase = cut.phase();
  cut.piece = step.pieces.find(cut.coord());
  cut.whole = step.bodies.find(cut.piece, phase, BodyVariant::plain, cut.coord().getSlice());
  cut.steps = step.bodies.steps(cut.piece, phase);
  if (phase == Phase::F && outline.recomputed.contains(cut.coord()))
    cut.variant = BodyVariant::light;
  if (cut.steps > 0 && !stepOf(cut, 0)) // R makes nothing
    cut.variant = BodyVariant::plain;
  if (cut.steps == 0 || !stepOf(cut, 0))
    return emitError(op.getLoc()) << "`" << op.getUnit().str() << "` has no derived function" << withLoops(op);
  if (phase != Phase::B || !step.pieces.trains(cut.piece))
    return success();
  cut.share = gradients.takeForUnit(cut.piece, cut.rank(), op.getLoc());
  if (!cut.share.value)
    cut.share.value = gradients.createZero(cut.piece, cut.rank(), op.getLoc());
  return success(bool(cut.share.value));
}

LogicalResult AttentionExchange::buildStep(RunningCut &cut, int64_t number) {
  UnitOp op = cut.unit.op;
  const TaskBody *body = stepOf(cut, number);
  SmallVector<Value> inputs;
  size_t part = 0;
  for (const BodyGroups::Group &group : body->groups.inputs) {
    Value &value = inputs.emplace_back();
    if (group.kind() == GroupKind::carry || group.kind() == GroupKind::dcarry)
      value = cut.carried[group.number()];
    else if (group.kind() == GroupKind::part || group.kind() == GroupKind::dpart)
      value = step.waitFor(cut.parts[part++], op.getLoc());
    else if (group.name == GroupKind::grad)
      value = cut.share.value;
    else if (failed(units.readGroup(op, group, value)))
      return failure();
  }
  cut.parts.clear();
  TaskOp task = step.createTask(*body, op.getUnit(), cut.rank(), inputs, op.getLoc());
  units.setJoint(task);
  units.setShare(task, *body, *cut.whole);
  for (auto [group, value] : llvm::zip(body->groups.results, task.getResults()))
    if (group.kind() == GroupKind::carry || group.kind() == GroupKind::dcarry)
      cut.carried[group.number()] = value;
    else if (group.kind() == GroupKind::query || group.kind() == GroupKind::dquery)
      cut.query = value;
    else if (group.name == GroupKind::grad && !cut.isLast(number))
      cut.share.value = value;
  return units.recordResults(op, *body, task, cut.isLast(number) ? cut.share : Share());
}

/// Keys and values that a helper lacks: all of a slice, of every attention of the piece.
LogicalResult AttentionExchange::sendKeys(RunningCut &cut) {
  for (auto [help, attend] : llvm::zip(cut.unit.plan.helps, cut.unit.attends))
    for (int64_t slice : help.getHome() ? ArrayRef<int64_t>() : help.getSlices())
      for (int64_t attention = 0; attention + 1 < cut.steps; ++attention) {
        Thing made = Thing(Role::kv, cut.piece, cut.coord().getMicrobatch(), slice);
        Value &sent = cut.keys[{attention, slice}];
        sent = keys.takeLent(attention, made, attend.getRank());
        if (sent) // moved by the schedule
          continue;
        Value value = step.get({made, cut.rank(), ValueKey::whole, attention}, attend.getLoc());
        if (!value)
          return units.reportAbsent(cut.unit.op, made, cut.rank());
        sent = step.createMove(made, value, attend.getRank(), attend.getLoc());
      }
  return success();
}

/// The keys that stay are attended here, the others on the helpers.
LogicalResult AttentionExchange::buildPart(RunningCut &cut, KeysAttr help, int64_t rank, Value query, int64_t attention,
                                           Operation *source) {
  UnitOp op = cut.unit.op;
  CutAttr part = help ? CutPlan::part(attention, help) : cut.unit.plan.rest(step.builder.getContext(), attention);
  const TaskBody *body = step.bodies.find(cut.piece, cut.phase(), BodyVariant::plain, cut.coord().getSlice(), part);
  SmallVector<Value> inputs;
  for (const BodyGroups::Group &group : body->groups.inputs) {
    if (group.kind() == GroupKind::query || group.kind() == GroupKind::dquery) {
      inputs.push_back(step.waitFor(query, op.getLoc()));
      continue;
    }
    if (std::optional<BindingKind> data = group.name.data()) {
      inputs.push_back(units.dataInput(*data, cut.coord(), rank, group.payload));
      continue;
    }
    Thing needed = Thing(group.kind() == GroupKind::kv ? Role::kv : Role::dkv, cut.piece, cut.coord().getMicrobatch(),
                         group.number());
    bool isSent = help && !help.getHome();
    Value value = isSent ? step.waitFor(cut.keys[{attention, group.number()}], source->getLoc())
                         : step.get({needed, rank, ValueKey::whole, attention}, source->getLoc());
    if (!value)
      return units.reportAbsent(op, needed, rank);
    inputs.push_back(value);
  }
  TaskOp task = step.createTask(*body, op.getUnit(), rank, inputs, source->getLoc());
  units.setJoint(task);
  units.setShare(task, *body, *cut.whole);
  for (auto [group, value] : llvm::zip(body->groups.results, task.getResults()))
    if (group.kind() == GroupKind::dkv) {
      Thing made = Thing(Role::dkv, cut.piece, cut.coord().getMicrobatch(), group.number());
      step.set({made, rank, ValueKey::whole, attention}, value);
    }
  Value made = task.getResult(0);
  if (rank != cut.rank())
    made = step.createMove(step.thing(Role::part, cut.piece, cut.coord()), made, cut.rank(), source->getLoc());
  cut.parts.push_back(made);
  return success();
}

/// All queries leave before any part is computed; a rank computes its own parts before those of others.
LogicalResult AttentionExchange::buildParts(MutableArrayRef<RunningCut> cuts, int64_t number) {
  std::vector<SmallVector<Value>> queries(cuts.size());
  for (auto [cut, sent] : llvm::zip(cuts, queries))
    for (AttendOp attend : cut.isPartedAfter(number) ? ArrayRef<AttendOp>(cut.unit.attends) : ArrayRef<AttendOp>())
      sent.push_back(step.createMove(step.thing(Role::query, cut.piece, cut.coord()), cut.query, attend.getRank(),
                                     attend.getLoc()));
  for (RunningCut &cut : cuts)
    if (cut.isPartedAfter(number) &&
        failed(buildPart(cut, KeysAttr(), cut.rank(), cut.query, cut.attentionAfter(number), cut.unit.op)))
      return failure();
  for (auto [cut, sent] : llvm::zip(cuts, queries))
    for (auto [help, attend, query] : llvm::zip(cut.unit.plan.helps, cut.unit.attends, sent))
      if (failed(buildPart(cut, help, attend.getRank(), query, cut.attentionAfter(number), attend)))
        return failure();
  return success();
}

LogicalResult AttentionExchange::build(TogetherOp together) {
  std::vector<RunningCut> cuts;
  DenseSet<Operation *> cutOps;
  for (CutUnit &unit : outline.exchanges.of(together)) {
    cutOps.insert(unit.op);
    cuts.emplace_back().unit = unit;
  }
  for (auto op : together.getOps<UnitOp>())
    if (!cutOps.contains(op) && failed(units.build(op)))
      return failure();
  int64_t steps = 0;
  for (RunningCut &cut : cuts) {
    if (failed(begin(cut)) || failed(sendKeys(cut)))
      return failure();
    steps = std::max(steps, cut.steps);
  }
  for (int64_t number = 0; number < steps; ++number) {
    for (RunningCut &cut : cuts)
      if (number < cut.steps && failed(buildStep(cut, number)))
        return failure();
    if (failed(buildParts(cuts, number)))
      return failure();
  }
  return success();
}

LogicalResult AttentionExchange::buildAhead(AttendOp op) {
  const CutUnit &unit = *outline.exchanges.ahead(op.getUnit());
  CoordAttr coord = op.getUnit().getCoord();
  int64_t piece = step.pieces.find(coord), number = llvm::find(unit.attends, op) - unit.attends.begin();
  Phase phase = op.getUnit().getPhase();
  CutAttr part = CutPlan::part(/*attention=*/0, unit.plan.helps[number], /*next=*/number > 0);
  const TaskBody *body = step.bodies.find(piece, phase, BodyVariant::plain, coord.getSlice(), part);
  SmallVector<Value> inputs;
  for (const BodyGroups::Group &group : body->groups.inputs)
    if (failed(units.readGroup(unit.op, group, inputs.emplace_back())))
      return failure();
  TaskOp task = step.createTask(*body, op.getUnit(), op.getRank(), inputs, op.getLoc());
  units.setShare(task, *body, *step.bodies.find(piece, phase, BodyVariant::plain, coord.getSlice()));
  for (auto [group, value] : llvm::zip(body->groups.results, task.getResults()))
    if (group.kind() == GroupKind::dkv)
      keys.record(Thing(Role::dkv, piece, coord.getMicrobatch(), group.number()), op.getRank(), value, op.getLoc());
    else
      units.setPartAhead(op.getUnit(), value);
  return success();
}
