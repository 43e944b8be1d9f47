// Finds task bodies by piece and name, and makes those that add gradients or copy weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/derive/TaskBodies.h"
#include "dialect/nn/Nn.h"
#include "passes/derive/DeriveTasks.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

double TaskBody::flops() const {
  auto flops = func::FuncOp(function)->getAttrOfType<FloatAttr>("pipeline.flops");
  return flops ? flops.getValueAsDouble() : 0;
}

const BodyGroups::Group *TaskBody::input(StringRef name) const {
  auto it = llvm::find_if(groups.inputs, [&](const BodyGroups::Group &group) { return group.name == name; });
  return it == groups.inputs.end() ? nullptr : &*it;
}

TaskBodies::TaskBodies(ModuleOp module, const Pieces &pieces) : module(module), pieces(pieces) {
  for (auto function : module.getOps<func::FuncOp>()) {
    if (!BodyGroups::isBody(function))
      continue;
    auto groups = BodyGroups::get(function);
    if (succeeded(groups))
      bodies[function.getName()] = {function, std::move(*groups)};
  }
}

std::string TaskBodies::nameOf(int64_t piece, const Twine &suffix) const {
  return (*pieces.op(piece).getBodies() + "." + suffix).str();
}

const TaskBody *TaskBodies::find(int64_t piece, StringRef suffix) const {
  if (!pieces.op(piece).getBodies())
    return nullptr;
  auto it = bodies.find(nameOf(piece, suffix));
  return it == bodies.end() ? nullptr : &it->second;
}

const TaskBody *TaskBodies::findOfShard(int64_t piece, StringRef suffix, int64_t rank) const {
  if (!pieces.isSharded(piece))
    return find(piece, suffix);
  return find(piece, (suffix + "." + Twine(pieces.shardOf(piece, rank))).str());
}

const TaskBody &TaskBodies::make(std::string name, ArrayRef<StringRef> inputs, TupleType payload, StringRef result,
                                 int64_t tie, function_ref<Value(OpBuilder &, ValueRange)> build) {
  auto it = bodies.find(name);
  if (it != bodies.end())
    return it->second;
  OpBuilder inner = OpBuilder::atBlockBegin(module.getBody());
  size_t count = payload.size();
  auto group = [&](StringRef name) -> Attribute {
    return inner.getArrayAttr({inner.getStringAttr(name), inner.getI64IntegerAttr(count)});
  };
  SmallVector<Type> types;
  for (size_t i = 0; i < inputs.size(); ++i)
    llvm::append_range(types, payload.getTypes());
  auto type = inner.getFunctionType(types, TypeRange(payload.getTypes()));
  auto function = inner.create<func::FuncOp>(module.getLoc(), name, type);
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
  function->setAttr("pipeline.inputs", inner.getArrayAttr(llvm::map_to_vector(inputs, group)));
  function->setAttr("pipeline.results", inner.getArrayAttr({group(result)}));
  function->setAttr("pipeline.ties", inner.getDenseI64ArrayAttr({tie}));
  function->setAttr("pipeline.flops", inner.getF64FloatAttr(0));
  return bodies[name] = {function, *BodyGroups::get(function)};
}

static Value addGrads(OpBuilder &inner, ValueRange row) {
  Value sum = widenGrad(inner, row[0].getLoc(), row[0]);
  sum = inner.create<nn::AccumulateOp>(row[0].getLoc(), sum.getType(), row[1], sum);
  return roundGrad(inner, row[0].getLoc(), sum, row[0].getType());
}

const TaskBody &TaskBodies::sum(int64_t piece, int64_t rank) {
  bool isShard = rank >= 0 && pieces.isSharded(piece);
  const TaskBody *update = isShard ? findOfShard(piece, "U", rank) : find(piece, "U");
  std::string number = isShard ? "." + std::to_string(pieces.shardOf(piece, rank)) : "";
  return make(nameOf(piece, "sum" + number), {"grad", "share"}, update->input("grad")->payload, "grad", 0, addGrads);
}

const TaskBody &TaskBodies::sumOfKeys(int64_t piece, int64_t slice, TupleType payload) {
  std::string into = "dkv." + std::to_string(slice), more = "dterm." + std::to_string(slice);
  return make(nameOf(piece, "dkv.sum." + Twine(slice)), {into, more}, payload, into, 0,
              [](OpBuilder &inner, ValueRange row) -> Value {
                return inner.create<nn::AccumulateOp>(row[0].getLoc(), row[0].getType(), row[1], row[0]);
              });
}

const TaskBody &TaskBodies::copy(int64_t piece) {
  return make(nameOf(piece, "copy"), {"weight"}, weightsOf(piece), "weight", -1,
              [&](OpBuilder &inner, ValueRange row) -> Value {
                return inner.create<nn::CopyOp>(module.getLoc(), row[0].getType(), row[0], Value());
              });
}
