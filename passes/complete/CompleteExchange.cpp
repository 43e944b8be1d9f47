// Units whose attentions are computed in parts on several ranks: their steps and parts, and what travels between them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: together { unit F(0, 0, 3) on [0]   unit F(3, 0, 0) on [3]   attend F(0, 0, 3) over [0] on 3 }
//
//   rank 0 | F.step.0of2 ─┬─ F.part.rest ──────────────┬─ F.step.1of2        layer by layer, all units of the joint in
//   rank 3 | F.step.0of2  └▶ F.part ─ (its own first) ─┘  F.step.1of2        step; keys travel before, if they must
#include "passes/complete/StepBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// `.3` for a unit of slice 3.
static std::string suffixOf(UnitOp op) { return "." + std::to_string(op.getUnit().getCoord().getSlice()); }

/// All of a joint belong together.
void StepBuilder::setJoint(TaskOp task) { task->setAttr("pipeline.joint", builder.getI64IntegerAttr(joints)); }

/// Papers count in units: a body of a unit that is cut takes its share of them.
void StepBuilder::setShare(TaskOp task, const Body &body, const Body &whole) {
  auto flopsOf = [](const Body &body) {
    auto flops = const_cast<Body &>(body).function->getAttrOfType<FloatAttr>("pipeline.flops");
    return flops ? flops.getValueAsDouble() : 0;
  };
  if (double all = flopsOf(whole); all > 0)
    task->setAttr("pipeline.share", builder.getF64FloatAttr(flopsOf(body) / all));
}

LogicalResult StepBuilder::beginCut(CutUnit unit, std::deque<RunningCut> &units) {
  RunningCut &cut = units.emplace_back();
  cut.unit = unit;
  UnitOp op = unit.op;
  CoordAttr coord = op.getUnit().getCoord();
  cut.piece = pieces.find(coord);
  cut.phase = stringifyPhase(op.getUnit().getPhase()).str();
  cut.whole = findBody(cut.piece, cut.phase + suffixOf(op));
  if (op.getUnit().getPhase() == Phase::F && remade.contains(coord))
    cut.phase = "F.light";
  for (cut.steps = 1; cut.steps < 1000; ++cut.steps)
    if ((cut.body = findBody(cut.piece, stepName(cut.phase, 0, cut.steps, unit.plan) + suffixOf(op))))
      break;
  if (!cut.body && cut.phase == "F.light") { // R makes nothing
    cut.phase = "F";
    for (cut.steps = 1; cut.steps < 1000; ++cut.steps)
      if ((cut.body = findBody(cut.piece, stepName(cut.phase, 0, cut.steps, unit.plan) + suffixOf(op))))
        break;
  }
  if (!cut.body)
    return emitError(op.getLoc()) << "`" << op.getUnit().str() << "` has no derived function" << withLoops(op);
  if (op.getUnit().getPhase() != Phase::B || !pieces.hasWeights(cut.piece))
    return success();
  int64_t rank = op.getRanks().front();
  cut.share = takeShare(cut.piece, rank, op.getLoc());
  if (!cut.share.value)
    cut.share.value = createZero(cut.piece, rank, op.getLoc());
  return success(bool(cut.share.value));
}

LogicalResult StepBuilder::buildStep(RunningCut &cut, int64_t step) {
  UnitOp op = cut.unit.op;
  const Body *body = findBody(cut.piece, stepName(cut.phase, step, cut.steps, cut.unit.plan) + suffixOf(op));
  int64_t rank = op.getRanks().front();
  SmallVector<Value> inputs;
  size_t part = 0;
  for (const BodyGroups::Group &group : body->groups.inputs) {
    Value value;
    if (group.kind() == "carry" || group.kind() == "dcarry")
      value = cut.carried[group.name];
    else if (group.kind() == "part" || group.kind() == "dpart")
      value = waitFor(cut.parts[part++], op.getLoc());
    else if (group.name == "grad")
      value = cut.share.value;
    else if (failed(readGroup(op, group, value)))
      return failure();
    inputs.push_back(value);
  }
  cut.parts.clear();
  TaskOp task = createTask(*body, op.getUnit(), rank, inputs, op.getLoc());
  setJoint(task);
  setShare(task, *body, *cut.whole);
  for (auto [group, value] : llvm::zip(body->groups.results, task.getResults())) {
    if (group.kind() == "carry" || group.kind() == "dcarry")
      cut.carried[group.name] = value;
    else if (group.kind() == "query" || group.kind() == "dquery")
      cut.query = value;
    else if (group.name == "grad" && step + 1 < cut.steps)
      cut.share.value = value;
  }
  return recordResults(op, *body, task, step + 1 < cut.steps ? Share() : cut.share);
}

/// Keys and values that a helper lacks: all of a slice, of every attention of the piece.
LogicalResult StepBuilder::sendKeys(RunningCut &cut) {
  CoordAttr coord = cut.unit.op.getUnit().getCoord();
  int64_t from = cut.unit.op.getRanks().front();
  for (auto [help, attend] : llvm::zip(cut.unit.plan.helps, cut.unit.attends))
    for (int64_t slice : help.home ? ArrayRef<int64_t>() : ArrayRef<int64_t>(help.slices))
      for (int64_t attention = 0; attention + 1 < cut.steps; ++attention) {
        ThingAttr keys = thing(Role::kv, cut.piece, coord.getMicrobatch(), slice);
        Value &sent = cut.keys[{attention, slice}];
        if (auto &early = lentKeys[attention][{keys, attend.getRank()}]; !early.empty()) { // moved by the schedule
          sent = early.front();
          early.erase(early.begin());
          continue;
        }
        Value value = get(cutValues[attention], keys, from, attend.getLoc());
        if (!value)
          return reportAbsent(cut.unit.op, keys, from);
        sent = createMove(keys, value, attend.getRank(), attend.getLoc());
      }
  return success();
}

/// The keys that stay are attended here, the others on the helpers; `attention` as they stand in the piece.
LogicalResult StepBuilder::buildPart(RunningCut &cut, const Help *help, int64_t rank, Value query, int64_t attention,
                                     Operation *source) {
  UnitOp op = cut.unit.op;
  CoordAttr coord = op.getUnit().getCoord();
  StringRef phase = StringRef(cut.phase).take_front(1);
  const Body *body = findBody(
      cut.piece, (help ? partName(phase, attention, *help) : restName(phase, attention, cut.unit.plan)) + suffixOf(op));
  SmallVector<Value> inputs;
  for (const BodyGroups::Group &group : body->groups.inputs) {
    Value value = group.kind() == "query" || group.kind() == "dquery" ? waitFor(query, op.getLoc()) : Value();
    if (!value) {
      ThingAttr needed =
          thing(group.kind() == "kv" ? Role::kv : Role::dkv, cut.piece, coord.getMicrobatch(), group.chunk());
      bool isSent = help && !help->home;
      value = isSent ? waitFor(cut.keys[{attention, group.chunk()}], source->getLoc())
                     : get(cutValues[attention], needed, rank, source->getLoc());
      if (!value)
        return reportAbsent(op, needed, rank);
    }
    inputs.push_back(value);
  }
  TaskOp task = createTask(*body, op.getUnit(), rank, inputs, source->getLoc());
  setJoint(task);
  setShare(task, *body, *cut.whole);
  for (auto [group, value] : llvm::zip(body->groups.results, task.getResults()))
    if (group.kind() == "dkv")
      cutValues[attention][{thing(Role::dkv, cut.piece, coord.getMicrobatch(), group.chunk()), rank}] = value;
  Value made = task.getResult(0);
  int64_t home = op.getRanks().front();
  if (rank != home)
    made =
        createMove(thing(Role::part, cut.piece, coord.getMicrobatch(), coord.getSlice()), made, home, source->getLoc());
  cut.parts.push_back(made);
  return success();
}

LogicalResult StepBuilder::buildParts(std::deque<RunningCut> &units, int64_t step) {
  auto attentionOf = [&](RunningCut &cut) { return cut.phase[0] == 'F' ? step : cut.steps - 2 - step; };
  auto isCut = [&](RunningCut &cut) { return cut.unit.plan.gives() && step + 1 < cut.steps; };
  std::vector<std::pair<RunningCut *, SmallVector<Value>>> asked;
  for (RunningCut &cut : units)
    if (isCut(cut)) {
      auto &queries = asked.emplace_back(&cut, SmallVector<Value>()).second;
      CoordAttr coord = cut.unit.op.getUnit().getCoord();
      for (AttendOp attend : cut.unit.attends)
        queries.push_back(createMove(thing(Role::query, cut.piece, coord.getMicrobatch(), coord.getSlice()), cut.query,
                                     attend.getRank(), attend.getLoc()));
    }
  for (RunningCut &cut : units)
    if (isCut(cut) &&
        failed(buildPart(cut, nullptr, cut.unit.op.getRanks().front(), cut.query, attentionOf(cut), cut.unit.op)))
      return failure();
  for (auto &[cut, queries] : asked)
    for (auto [help, attend, query] : llvm::zip(cut->unit.plan.helps, cut->unit.attends, queries))
      if (failed(buildPart(*cut, &help, attend.getRank(), query, attentionOf(*cut), attend)))
        return failure();
  return success();
}

LogicalResult StepBuilder::buildExchange(TogetherOp together) {
  std::deque<RunningCut> units;
  DenseSet<Operation *> cut;
  for (CutUnit unit : exchanges.of(together))
    cut.insert(unit.op);
  for (auto op : together.getOps<UnitOp>())
    if (!cut.contains(op) && failed(buildUnit(op)))
      return failure();
  for (const CutUnit &unit : exchanges.of(together))
    if (failed(beginCut(unit, units)) || failed(sendKeys(units.back())))
      return failure();
  int64_t steps = 0;
  for (RunningCut &unit : units)
    steps = std::max(steps, unit.steps);
  for (int64_t step = 0; step < steps; ++step) {
    for (RunningCut &unit : units)
      if (step < unit.steps && failed(buildStep(unit, step)))
        return failure();
    if (failed(buildParts(units, step)))
      return failure();
  }
  return success();
}
