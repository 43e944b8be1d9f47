// Keeps the values of a growing step by thing and place, and creates its inputs, waits, moves, tasks and outputs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/StepValues.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

StepValues::StepValues(ModuleOp module, ProgramOp program)
    : program(program), pieces(program), bodies(module, pieces), builder(program.getContext()) {}

//===-- Things, places, types -----------------------------------------------------------------------------------===//

ThingAttr StepValues::thing(Role role, int64_t piece, int64_t mb, int64_t slice) const {
  return ThingAttr::get(builder.getContext(), role, pieces.op(piece).getCoord().with(mb, slice));
}

ThingAttr StepValues::thing(Role role, int64_t piece, CoordAttr unit) const {
  CoordAttr own = pieces.op(piece).getCoord();
  if (own.getPart() == unit.getPart() && own.getIndex() == unit.getIndex()) // most often: nothing to look up
    return ThingAttr::get(builder.getContext(), role, unit);
  return thing(role, piece, unit.getMicrobatch(), unit.getSlice());
}

PlaceAttr StepValues::place(ArrayRef<int64_t> ranks, Layout layout) const {
  return PlaceAttr::get(builder.getContext(), ranks, layout);
}

ValType StepValues::typeOn(Role role, TupleType payload, int64_t rank) const {
  return ValType::get(builder.getContext(), role, payload, place({rank}));
}

Role StepValues::roleOf(StringRef kind) {
  return llvm::StringSwitch<Role>(kind)
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

//===-- Values --------------------------------------------------------------------------------------------------===//

void StepValues::set(const ValueKey &key, Value value) {
  numCuts = std::max<int64_t>(numCuts, key.cut + 1);
  values[key] = value;
}

Value StepValues::get(const ValueKey &key, Location loc) {
  auto it = values.find(key);
  if (it == values.end())
    return {};
  auto future = dyn_cast<FutureType>(it->second.getType());
  if (future && future.getValue().getRanks().size() > 1) { // this rank's copy of a broadcast
    ValType type = typeOn(key.thing.getRole(), future.getValue().getPayload(), key.rank);
    return it->second = builder.create<WaitOp>(loc, type, it->second);
  }
  return it->second = waitFor(it->second, loc);
}

//===-- Ops -----------------------------------------------------------------------------------------------------===//

void StepValues::begin() {
  lastInput = pieces.op(pieces.size() - 1);
  builder.setInsertionPointToEnd(&program.getBody().front());
}

Value StepValues::addInput(ThingAttr thing, ValType type, StringRef data) {
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointAfter(lastInput);
  auto input =
      builder.create<InputOp>(program.getLoc(), type, thing, data.empty() ? StringAttr() : builder.getStringAttr(data));
  lastInput = input;
  return input;
}

Value StepValues::waitFor(Value value, Location loc) {
  if (auto future = dyn_cast<FutureType>(value.getType()))
    return builder.create<WaitOp>(loc, future.getValue(), value);
  return value;
}

Value StepValues::createMove(ThingAttr thing, Value value, int64_t to, Location loc, IntegerAttr group) {
  return createMove(thing, value, place({to}), loc, group);
}

Value StepValues::createMove(ThingAttr thing, Value value, PlaceAttr to, Location loc, IntegerAttr group) {
  auto from = cast<ValType>(value.getType());
  auto target = ValType::get(builder.getContext(), from.getRole(), from.getPayload(), to);
  return builder.create<MoveOp>(loc, FutureType::get(builder.getContext(), target), thing, value, group);
}

Value StepValues::createJoin(Role role, TupleType payload, PlaceAttr place, ValueRange values, Location loc) {
  return builder.create<JoinOp>(loc, ValType::get(builder.getContext(), role, payload, place), values);
}

TaskOp StepValues::createTask(const TaskBody &body, UnitIdAttr unit, int64_t rank, ValueRange inputs, Location loc) {
  auto [it, isNew] = resultTypes.try_emplace({&body, rank});
  SmallVector<Type> &types = it->second;
  for (const BodyGroups::Group &group : isNew ? ArrayRef(body.groups.results) : ArrayRef<BodyGroups::Group>())
    types.push_back(typeOn(roleOf(group.kind()), group.payload, rank));
  return builder.create<TaskOp>(loc, types, body.name(), unit, ArrayRef<int64_t>(rank), body.groups.ties, inputs,
                                IntegerAttr(), IntegerAttr(), FloatAttr());
}

void StepValues::output(ThingAttr thing, Value value, Location loc) { builder.create<OutputOp>(loc, thing, value); }
