// Finds task bodies by piece and identity, and makes those that add gradients or copy weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/derive/TaskBodies.h"
#include "dialect/nn/Nn.h"
#include "passes/derive/DeriveTasks.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

double TaskBody::flops() const { return flopsOf(function); }

const BodyGroups::Group *TaskBody::input(GroupName name) const {
  auto it = llvm::find_if(groups.inputs, [&](const BodyGroups::Group &group) { return group.name == name; });
  return it == groups.inputs.end() ? nullptr : &*it;
}

TaskBodies::TaskBodies(ModuleOp module, const Pieces &pieces) : module(module), pieces(pieces), table(module) {
  for (auto function : module.getOps<func::FuncOp>()) {
    BodyAttr identity = identityOf(function);
    if (!identity || !BodyGroups::isBody(function))
      continue;
    auto groups = BodyGroups::get(function);
    if (succeeded(groups))
      bodies[identity] = std::make_unique<TaskBody>(TaskBody{function, identity, std::move(*groups)});
  }
}

BodyAttr TaskBodies::identity(int64_t piece, Phase phase, BodyVariant variant, int64_t slice, CutAttr cut,
                              int64_t sharer, int64_t shard) const {
  StringAttr pieceClass = pieces.op(piece).getBodiesAttr();
  return pieceClass ? BodyAttr::get(pieceClass, phase, variant, slice, cut, sharer, shard) : BodyAttr();
}

const TaskBody *TaskBodies::find(BodyAttr identity) const {
  auto it = bodies.find(identity);
  return it == bodies.end() ? nullptr : it->second.get();
}

const TaskBody *TaskBodies::findOfShard(int64_t piece, BodyVariant variant, int64_t rank, int64_t sharer) const {
  int64_t shard = pieces.isSharded(piece) ? pieces.shardOf(piece, rank) : -1;
  return find(identity(piece, Phase::U, variant, /*slice=*/-1, /*cut=*/{}, sharer, shard));
}

TupleType TaskBodies::weightsOf(int64_t piece) const {
  SmallVector<Type> types;
  for (auto weight : pieces.op(piece).getWeightsAttr().getAsRange<WeightAttr>())
    types.push_back(weight.getType());
  return TupleType::get(pieces.op(piece).getContext(), types);
}

int64_t TaskBodies::steps(int64_t piece, Phase phase) const {
  StringAttr pieceClass = pieces.op(piece).getBodiesAttr();
  return pieceClass ? table.steps(pieceClass, phase) : 0;
}

const TaskBody &TaskBodies::make(BodyAttr identity, ArrayRef<GroupName> inputs, TupleType payload, GroupName result,
                                 int64_t tie, function_ref<Value(OpBuilder &, ValueRange)> build) {
  std::unique_ptr<TaskBody> &body = bodies[identity];
  if (body)
    return *body;
  OpBuilder inner = OpBuilder::atBlockBegin(module.getBody());
  size_t count = payload.size();
  MLIRContext *context = inner.getContext();
  auto group = [&](GroupName name) { return GroupAttr::get(context, name, count); };
  SmallVector<Type> types;
  for (size_t i = 0; i < inputs.size(); ++i)
    llvm::append_range(types, payload.getTypes());
  auto type = inner.getFunctionType(types, TypeRange(payload.getTypes()));
  auto function = inner.create<func::FuncOp>(module.getLoc(), identity.label(), type);
  function.setPrivate();
  Block *block = function.addEntryBlock();
  inner.setInsertionPointToEnd(block);
  SmallVector<Value> made;
  for (size_t i = 0; i < count; ++i) {
    SmallVector<Value> row;
    for (size_t j = 0; j < inputs.size(); ++j)
      row.push_back(block->getArgument(j * count + i));
    made.push_back(build(inner, row));
  }
  inner.create<func::ReturnOp>(module.getLoc(), made);
  function->setAttr(kBodyAttr, identity);
  function->setAttr(kInputsAttr, GroupsAttr::get(context, llvm::map_to_vector(inputs, group)));
  function->setAttr(kResultsAttr, GroupsAttr::get(context, group(result)));
  function->setAttr(kTiesAttr, inner.getDenseI64ArrayAttr({tie}));
  function->setAttr(kFlopsAttr, inner.getF64FloatAttr(0));
  body = std::make_unique<TaskBody>(TaskBody{function, identity, *BodyGroups::get(function)});
  return *body;
}

static Value addGrads(OpBuilder &inner, ValueRange row) {
  Location loc = row[0].getLoc();
  return roundGrad(inner, loc, nn::addedTo(inner, loc, widenGrad(inner, loc, row[0]), row[1]), row[0].getType());
}

const TaskBody &TaskBodies::sum(int64_t piece, int64_t rank) {
  const TaskBody *update = rank < 0 ? find(piece, Phase::U) : findOfShard(piece, BodyVariant::plain, rank);
  int64_t shard = update->identity.getShard();
  BodyAttr adds = identity(piece, Phase::U, BodyVariant::sum, /*slice=*/-1, /*cut=*/{}, /*sharer=*/-1, shard);
  return make(adds, {GroupKind::grad, GroupKind::share}, update->input(GroupKind::grad)->payload, GroupKind::grad, 0,
              addGrads);
}

const TaskBody &TaskBodies::sumOfKeys(int64_t piece, int64_t slice, TupleType payload) {
  GroupName into(GroupKind::dkv, slice), more(GroupKind::dterm, slice);
  return make(identity(piece, Phase::U, BodyVariant::sum_keys, slice), {into, more}, payload, into, 0,
              [](OpBuilder &inner, ValueRange row) { return nn::addedTo(inner, row[0].getLoc(), row[0], row[1]); });
}

const TaskBody &TaskBodies::copy(int64_t piece) {
  return make(identity(piece, Phase::U, BodyVariant::copy), {GroupKind::weight}, weightsOf(piece), GroupKind::weight,
              -1, [&](OpBuilder &inner, ValueRange row) { return nn::copyOf(inner, module.getLoc(), row[0]); });
}
