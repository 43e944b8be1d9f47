// Follows the values of a step from the op that makes or brings them to their last use, through updates in place.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/lives/StepLives.h"
#include "analysis/Vocabulary.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static bool isAwaited(MoveOp move, int64_t rank) {
  return llvm::any_of(move.getFuture().getUsers(), [&](Operation *user) {
    auto wait = dyn_cast<WaitOp>(user);
    return wait && llvm::is_contained(cast<ValType>(wait.getValue().getType()).getRanks(), rank);
  });
}

StepLives::StepLives(ProgramOp program, const BodyTable &bodies) : pieces(program), bodies(bodies) {
  number(program);
  findShards(program);
  for (Operation &op : program.getBody().front())
    if (auto task = dyn_cast<TaskOp>(op)) {
      readTask(task);
      readStash(task);
    } else if (auto input = dyn_cast<InputOp>(op)) {
      begin(input.getValue(), 0, &op);
    } else if (auto move = dyn_cast<MoveOp>(op)) {
      readStashMove(move);
      readMove(move);
    } else if (auto wait = dyn_cast<WaitOp>(op)) {
      readWait(wait);
    }
}

ArrayRef<ValueLife> StepLives::of(Role role, int64_t rank) const {
  auto it = lives.find({static_cast<int64_t>(role), rank});
  return it == lives.end() ? ArrayRef<ValueLife>() : ArrayRef<ValueLife>(it->second);
}

void StepLives::number(ProgramOp program) {
  int64_t next = 1, group = -1, groupPosition = 0;
  for (Operation &op : program.getBody().front()) {
    auto move = dyn_cast<MoveOp>(op);
    if (!move || !move.getGroup()) {
      positions[&op] = next++;
      continue;
    }
    if (static_cast<int64_t>(*move.getGroup()) != group)
      groupPosition = next++;
    group = *move.getGroup();
    positions[&op] = groupPosition;
    for (PlaceAttr place : {cast<ValType>(move.getValue().getType()).getPlace(), move.getTarget().getPlace()})
      for (int64_t rank : place.getRanks())
        groups[rank].push_back(groupPosition);
  }
  end = next;
}

void StepLives::findShards(ProgramOp program) {
  for (auto join : program.getOps<JoinOp>())
    if (cast<ValType>(join.getValue().getType()).getLayout() == Layout::shard)
      for (Value value : join.getValues())
        while (value && shards.insert(value).second)
          value = tiedInput(value);
}

//===-- Values --------------------------------------------------------------------------------------------------===//

/// Whether the value is a new weight on its way to a piece that shares it: a part of a weight.
bool StepLives::isFresh(Value value) const {
  if (auto wait = value.getDefiningOp<WaitOp>())
    value = wait.getFuture().getDefiningOp<MoveOp>().getValue();
  auto task = value.getDefiningOp<TaskOp>();
  BodyAttr body = task ? bodies.of(task) : BodyAttr();
  return body && body.getVariant() == BodyVariant::tie_fresh;
}

void StepLives::extend(ValueLife &life, Value value) {
  for (Operation *user : value.getUsers())
    if (positions[user] > life.last && !isa<OutputOp>(user)) {
      life.last = positions[user];
      life.kept = user;
    }
}

void StepLives::begin(Value value, int64_t first, Operation *born) {
  auto type = cast<ValType>(value.getType());
  if (type.getRole() == Role::stash || type.getRanks().size() != 1 || shards.contains(value) || isFresh(value))
    return;
  RoleRank key(static_cast<int64_t>(type.getRole()), type.getRanks().front());
  std::vector<ValueLife> &list = lives[key];
  storage[value] = {key, list.size()};
  list.push_back({{first, first}, born, born});
  extend(list.back(), value);
}

/// The value goes on in the place of another. False where that has no life of its own.
bool StepLives::goesOn(Value value, Value before) {
  if (shards.contains(before)) {
    shards.insert(value);
    return true;
  }
  auto taken = storage.find(before);
  if (taken == storage.end())
    return false;
  auto [key, index] = taken->second;
  storage[value] = {key, index};
  extend(lives[key][index], value);
  return true;
}

void StepLives::readTask(TaskOp task) {
  for (auto [result, tie] : llvm::zip(task.getResults(), task.getTies()))
    if (tie < 0 || !goesOn(result, task.getInputs()[tie]))
      begin(result, positions[task], task);
}

void StepLives::readWait(WaitOp wait) {
  if (cast<FutureType>(wait.getFuture().getType()).getValue().getLayout() == Layout::shard) {
    shards.insert(wait.getValue());
    return;
  }
  auto move = wait.getFuture().getDefiningOp<MoveOp>();
  if (!move.getAxes() || !goesOn(wait.getValue(), move.getValue())) // over the mesh it is summed where it is
    begin(wait.getValue(), positions[move], move);
}

/// A copy that arrives and that nobody waits for.
void StepLives::readMove(MoveOp move) {
  ValType from = cast<ValType>(move.getValue().getType()), type = move.getTarget();
  if (type.getRole() == Role::stash || type.getLayout() != Layout::full)
    return;
  for (int64_t rank : type.getRanks())
    if (!llvm::is_contained(from.getRanks(), rank) && !isAwaited(move, rank))
      lives[{static_cast<int64_t>(type.getRole()), rank}].push_back(
          {{positions[move], endOfArrival(move, rank)}, move, move});
}

int64_t StepLives::endOfArrival(MoveOp move, int64_t rank) const {
  auto its = groups.find(rank);
  if (!move.getGroup() || its == groups.end())
    return end;
  auto next = llvm::upper_bound(its->second, positions.lookup(move));
  return next != its->second.end() ? *next - 1 : end;
}

//===-- Stashes -------------------------------------------------------------------------------------------------===//

void StepLives::endStash(UnitRank key, Operation *end) {
  auto it = stashes.find(key);
  if (it == stashes.end())
    return;
  auto [first, born] = it->second;
  lives[{static_cast<int64_t>(Role::stash), key.second}].push_back({{first, positions[end]}, born, end});
  stashes.erase(it);
}

/// A stash lives where it is sent to from there on, and until then where it was; on the host it does not count.
void StepLives::readStashMove(MoveOp move) {
  if (move.getThing().getRole() != Role::stash)
    return;
  auto source = cast<ValType>(move.getValue().getType());
  Attribute coord = move.getThing().getCoord();
  if (source.getLayout() != Layout::host)
    endStash({coord, source.getRanks().front()}, move);
  if (move.getTarget().getLayout() != Layout::host)
    stashes.try_emplace({coord, move.getTarget().getRanks().front()}, positions[move], move);
}

void StepLives::readStash(TaskOp task) {
  UnitIdAttr unit = task.getUnit();
  int64_t piece = pieces.find(unit.getCoord());
  if (piece >= 0 && vocabularyShards(pieces, piece)) // a shard of a part, not a piece
    return;
  UnitRank key(unit.getCoord(), task.getRanks().front());
  bool saves =
      llvm::any_of(task.getResultTypes(), [](Type type) { return cast<ValType>(type).getRole() == Role::stash; });
  switch (stashEventOf(unit, bodies.of(task), saves)) {
  case StashEvent::begin:
    stashes.try_emplace(key, positions[task], task);
    break;
  case StashEvent::end:
    endStash(key, task);
    break;
  case StashEvent::none:
    break;
  }
}
