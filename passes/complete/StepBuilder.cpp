// What complete-step builds with: things and their types, task bodies, values and where they are, gradient shares.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/StepBuilder.h"
#include "dialect/nn/Nn.h"
#include "passes/derive/DeriveTasks.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- Things, bodies, values ----------------------------------------------------------------------------------===//

const BodyGroups::Group *Body::input(StringRef name) const {
  auto it = llvm::find_if(groups.inputs, [&](const BodyGroups::Group &group) { return group.name == name; });
  return it == groups.inputs.end() ? nullptr : &*it;
}

StepBuilder::StepBuilder(ModuleOp module, ProgramOp program)
    : module(module), program(program), pieces(program), builder(program.getContext()), exchanges(program),
      keys(program, pieces.all()) {
  for (auto function : module.getOps<func::FuncOp>()) {
    if (!BodyGroups::isBody(function))
      continue;
    auto groups = BodyGroups::get(function);
    if (succeeded(groups))
      bodies[function.getName()] = {function, std::move(*groups)};
  }
}

ThingAttr StepBuilder::thing(Role role, int64_t piece, int64_t mb, int64_t slice) {
  return ThingAttr::get(program.getContext(), role, pieces.op(piece).getCoord().with(mb, slice));
}

ValType StepBuilder::typeOn(Role role, TupleType payload, int64_t rank) {
  MLIRContext *context = program.getContext();
  return ValType::get(context, role, payload, PlaceAttr::get(context, {rank}, Layout::full));
}

UnitIdAttr StepBuilder::updateUnit(int64_t piece) {
  CoordAttr coord = pieces.op(piece).getCoord();
  return UnitIdAttr::get(program.getContext(), Phase::U, updates > 1 ? coord.with(update, -1) : coord);
}

const Body *StepBuilder::findBody(int64_t piece, StringRef suffix) {
  auto prefix = pieces.op(piece).getBodies();
  if (!prefix)
    return nullptr;
  auto it = bodies.find((*prefix + "." + suffix).str());
  return it == bodies.end() ? nullptr : &it->second;
}

llvm::BitVector StepBuilder::allContributions() {
  int64_t all = program.getMicrobatches() * std::max<int64_t>(program.getSlices(), 1), each = all / updates;
  llvm::BitVector own(all);
  own.set(update * each, (update + 1) * each);
  return own;
}

Value StepBuilder::addInput(ThingAttr thing, ValType type, StringRef data) {
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointAfter(lastInput);
  auto input =
      builder.create<InputOp>(program.getLoc(), type, thing, data.empty() ? StringAttr() : builder.getStringAttr(data));
  lastInput = input;
  return input;
}

Value StepBuilder::waitFor(Value value, Location loc) {
  if (auto future = dyn_cast<FutureType>(value.getType()))
    return builder.create<WaitOp>(loc, future.getValue(), value);
  return value;
}

Value StepBuilder::get(llvm::DenseMap<Key, Value> &map, ThingAttr thing, int64_t rank, Location loc) {
  auto it = map.find({thing, rank});
  if (it == map.end())
    return {};
  auto future = dyn_cast<FutureType>(it->second.getType());
  if (future && future.getValue().getRanks().size() > 1) // this rank's copy of a broadcast
    return it->second =
               builder.create<WaitOp>(loc, typeOn(thing.getRole(), future.getValue().getPayload(), rank), it->second);
  return it->second = waitFor(it->second, loc);
}

Value StepBuilder::createMove(ThingAttr thing, Value value, int64_t to, Location loc, IntegerAttr group,
                              Layout layout) {
  return createMove(thing, value, PlaceAttr::get(program.getContext(), {to}, layout), loc, group);
}

Value StepBuilder::createMove(ThingAttr thing, Value value, PlaceAttr to, Location loc, IntegerAttr group) {
  auto from = cast<ValType>(value.getType());
  auto target = ValType::get(program.getContext(), from.getRole(), from.getPayload(), to);
  return builder.create<MoveOp>(loc, FutureType::get(program.getContext(), target), thing, value, group);
}

Role StepBuilder::roleOf(StringRef group) {
  return llvm::StringSwitch<Role>(group)
      .Case("act", Role::act)
      .Case("dact", Role::dact)
      .Cases("weight", "fresh", Role::weight)
      .Cases("grad", "share", Role::grad)
      .Cases("stash", "kept", "pending", Role::stash)
      .Case("opt", Role::opt)
      .Cases("kv", "keys", Role::kv)
      .Cases("dkv", "dterm", "dkeys", Role::dkv)
      .Cases("tokens", "targets", "source", Role::data)
      .Cases("query", "dquery", Role::query)
      .Cases("part", "dpart", Role::part)
      .Cases("carry", "dcarry", Role::temporary)
      .Default(Role::stat);
}

TaskOp StepBuilder::createTask(const Body &body, UnitIdAttr unit, int64_t rank, ValueRange inputs, Location loc) {
  SmallVector<Type> types;
  for (const BodyGroups::Group &group : body.groups.results)
    types.push_back(typeOn(roleOf(group.kind()), group.payload, rank));
  StringRef callee = const_cast<func::FuncOp &>(body.function).getName();
  return builder.create<TaskOp>(loc, types, callee, unit, ArrayRef<int64_t>(rank), body.groups.ties, inputs);
}

void StepBuilder::output(ThingAttr thing, Value value, Location loc) { builder.create<OutputOp>(loc, thing, value); }

//===-- Gradient shares -----------------------------------------------------------------------------------------===//

const Body &StepBuilder::makeBody(std::string name, ArrayRef<StringRef> inputs, TupleType payload, StringRef result,
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

static Value accumulate(OpBuilder &inner, ValueRange row) {
  Value sum = widenGrad(inner, row[0].getLoc(), row[0]);
  sum = inner.create<nn::AccumulateOp>(row[0].getLoc(), sum.getType(), row[1], sum);
  return roundGrad(inner, row[0].getLoc(), sum, row[0].getType());
}

const Body &StepBuilder::sumBody(int64_t piece, int64_t rank) {
  bool isShard = rank >= 0 && pieces.isSharded(piece);
  const Body *update = isShard ? findShardBody(piece, "U", rank) : findBody(piece, "U");
  func::FuncOp function = update->function;
  std::string number = isShard ? ("." + function.getName().rsplit('.').second).str() : "";
  return makeBody((*pieces.op(piece).getBodies() + ".sum" + number).str(), {"grad", "share"},
                  update->input("grad")->payload, "grad", 0, accumulate);
}

const Body &StepBuilder::copyBody(int64_t piece) {
  return makeBody((*pieces.op(piece).getBodies() + ".copy").str(), {"weight"},
                  findBody(piece, "U")->input("weight")->payload, "weight", -1,
                  [&](OpBuilder &inner, ValueRange row) -> Value {
                    return inner.create<nn::CopyOp>(module.getLoc(), row[0].getType(), row[0], Value());
                  });
}

Share StepBuilder::takeShare(int64_t piece, int64_t rank, Location loc) {
  auto it = shares.find({piece, rank});
  if (it == shares.end())
    return {{}, llvm::BitVector(allContributions().size()), nullptr};
  SmallVector<Share, 1> terms = std::move(it->second);
  shares.erase(it);
  Share sum = terms.front();
  sum.value = waitFor(sum.value, loc);
  for (Share &term : llvm::drop_begin(terms)) {
    Value arrived = waitFor(term.value, loc);
    sum.value = createTask(sumBody(piece), updateUnit(piece), rank, {sum.value, arrived}, loc).getResult(0);
    sum.contributions |= term.contributions;
    sum.moved = term.moved ? term.moved : sum.moved;
  }
  return sum;
}

void StepBuilder::addShare(int64_t piece, int64_t rank, Share share, Location loc) {
  if (auto it = shares.find({piece, rank}); it != shares.end() && it->second.size() > 1) {
    Share sum = takeShare(piece, rank, loc);
    shares[{piece, rank}] = {sum};
  }
  shares[{piece, rank}].push_back(std::move(share));
}
