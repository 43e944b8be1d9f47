// Keeps the values of a growing step by thing and place, and creates its inputs, waits, moves, tasks and outputs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/StepValues.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

StepValues::StepValues(ModuleOp module, ProgramOp program)
    : program(program), pieces(program), bodies(module, pieces), builder(program.getContext()),
      places(program.getRanks()) {}

//===-- Things, places, types -----------------------------------------------------------------------------------===//

ThingAttr StepValues::attr(Thing thing) const {
  MLIRContext *context = builder.getContext();
  auto coordOf = [&](StringRef part) {
    return CoordAttr::get(context, StringAttr::get(context, part), -1, thing.microbatch, thing.slice);
  };
  if (unitCoord && thing.piece == unitPiece && thing.role != Role::data &&
      thing.microbatch == unitCoord.getMicrobatch() && thing.slice == unitCoord.getSlice())
    return ThingAttr::get(context, thing.role, unitCoord);
  if (thing.piece < 0)
    return ThingAttr::get(context, thing.role, coordOf("norm"));
  if (thing.role == Role::data) {
    int64_t number = thing.piece / kDataKinds;
    bool isNumbered = number > 0 || dataKind(thing) == BindingKind::column;
    return ThingAttr::get(context, thing.role,
                          CoordAttr::get(context, StringAttr::get(context, stringifyBindingKind(dataKind(thing))),
                                         isNumbered ? number : -1, thing.microbatch, thing.slice));
  }
  return ThingAttr::get(context, thing.role, pieces.coordOf(thing.piece).with(thing.microbatch, thing.slice));
}

PlaceAttr StepValues::place(ArrayRef<int64_t> ranks, Layout layout) const {
  return PlaceAttr::get(builder.getContext(), ranks, layout);
}

ValType StepValues::typeOn(Role role, TupleType payload, int64_t rank) const {
  return ValType::get(builder.getContext(), role, payload, place({rank}));
}

Role StepValues::roleOf(GroupKind kind) {
  switch (kind) {
  case GroupKind::act:
    return Role::act;
  case GroupKind::dact:
    return Role::dact;
  case GroupKind::weight:
  case GroupKind::fresh:
    return Role::weight;
  case GroupKind::grad:
  case GroupKind::share:
    return Role::grad;
  case GroupKind::stash:
  case GroupKind::kept:
  case GroupKind::pending:
    return Role::stash;
  case GroupKind::opt:
    return Role::opt;
  case GroupKind::undo:
    return Role::undo;
  case GroupKind::kv:
  case GroupKind::keys:
    return Role::kv;
  case GroupKind::dkv:
  case GroupKind::dterm:
  case GroupKind::dkeys:
    return Role::dkv;
  case GroupKind::state:
    return Role::state;
  case GroupKind::dstate:
    return Role::dstate;
  case GroupKind::tokens:
  case GroupKind::targets:
  case GroupKind::source:
  case GroupKind::starts:
  case GroupKind::positions:
  case GroupKind::rows:
  case GroupKind::column:
    return Role::data;
  case GroupKind::query:
  case GroupKind::dquery:
    return Role::query;
  case GroupKind::part:
  case GroupKind::dpart:
    return Role::part;
  case GroupKind::carry:
  case GroupKind::dcarry:
    return Role::temporary;
  case GroupKind::norm:
  case GroupKind::loss:
  case GroupKind::stats:
    return Role::stat;
  }
  llvm_unreachable("a group of another kind");
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
    ValType type = typeOn(key.thing.role, future.getValue().getPayload(), key.rank);
    return it->second = builder.create<WaitOp>(loc, type, it->second);
  }
  return it->second = waitFor(it->second, loc);
}

//===-- Ops -----------------------------------------------------------------------------------------------------===//

void StepValues::begin() {
  lastInput = pieces.op(pieces.size() - 1);
  builder.setInsertionPointToEnd(&program.getBody().front());
}

Value StepValues::addInput(Thing thing, ValType type, StringRef data) {
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointAfter(lastInput);
  auto input = builder.create<InputOp>(program.getLoc(), type, attr(thing),
                                       data.empty() ? StringAttr() : builder.getStringAttr(data));
  lastInput = input;
  return input;
}

Value StepValues::waitFor(Value value, Location loc) {
  if (auto future = dyn_cast<FutureType>(value.getType()))
    return builder.create<WaitOp>(loc, future.getValue(), value);
  return value;
}

Value StepValues::createMove(Thing thing, Value value, int64_t to, Location loc, IntegerAttr group) {
  PlaceAttr &target = places[to];
  if (!target)
    target = place({to});
  return createMove(thing, value, target, loc, group);
}

Value StepValues::createMove(Thing thing, Value value, PlaceAttr to, Location loc, IntegerAttr group) {
  auto from = cast<ValType>(value.getType());
  FutureType &future = futures[{from, to}];
  if (!future)
    future = FutureType::get(builder.getContext(),
                             ValType::get(builder.getContext(), from.getRole(), from.getPayload(), to));
  return builder.create<MoveOp>(loc, future, attr(thing), value, group);
}

MoveOp StepValues::createSum(Thing thing, Value value, AxesAttr axes, int64_t tensors, Location loc, bool cut) {
  auto future = FutureType::get(builder.getContext(), cast<ValType>(value.getType()));
  return builder.create<MoveOp>(loc, future, attr(thing), value, IntegerAttr(), axes,
                                builder.getI64IntegerAttr(tensors), cut);
}

Value StepValues::createJoin(Role role, TupleType payload, PlaceAttr place, ValueRange values, Location loc) {
  return builder.create<JoinOp>(loc, ValType::get(builder.getContext(), role, payload, place), values);
}

TaskOp StepValues::createTask(const TaskBody &body, UnitIdAttr unit, int64_t rank, ValueRange inputs, Location loc) {
  auto [it, isNew] = kinds.try_emplace({&body, rank});
  TaskKind &kind = it->second;
  if (isNew) {
    for (const BodyGroups::Group &group : body.groups.results)
      kind.types.push_back(typeOn(roleOf(group.kind()), group.payload, rank));
    kind.callee = SymbolRefAttr::get(func::FuncOp(body.function));
    kind.ranks = builder.getDenseI64ArrayAttr(rank);
    kind.ties = builder.getDenseI64ArrayAttr(body.groups.ties);
  }
  return builder.create<TaskOp>(loc, kind.types, kind.callee, unit, kind.ranks, kind.ties, inputs, IntegerAttr(),
                                IntegerAttr(), FloatAttr(), UnitAttr());
}

void StepValues::output(Thing thing, Value value, Location loc) { builder.create<OutputOp>(loc, attr(thing), value); }
