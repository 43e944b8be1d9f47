// Checks the schedule's own memory claims: at most so many weights, gradients or stashes alive at once on a rank.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: the step with `limit` ops. After: the same, or an error that names what arrived too much and what is kept.
// A weight lives from its arrival to its last use, a gradient share until it is moved away or consumed, a stash from F
// to its last backward; arriving and leaving values of one `together` both count (docs/proofs.md 8). A copy that nobody
// waits for has its slot until the rank's next group of messages, where project-ranks completes its message.
#include "analysis/BodyTable.h"
#include "analysis/Vocabulary.h"
#include "passes/Passes.h"

namespace pp {
#define GEN_PASS_DEF_VERIFYLIMITS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// The life of one value on one rank, in positions of the step.
struct Life {
  int64_t first, last;
  Operation *born, *kept; ///< the ops at both ends
};

class Lives {
public:
  Lives(ProgramOp program, const BodyTable &bodies) : pieces(program), bodies(bodies) {
    for (JoinOp join : number(program)) // a shard is no weight and no gradient: it is not counted
      if (cast<ValType>(join.getValue().getType()).getLayout() == Layout::shard)
        for (Value value : join.getValues())
          for (; value && shards.insert(value).second; value = storageOf(value)) {
          }
    for (Operation &op : program.getBody().front()) {
      if (auto task = dyn_cast<TaskOp>(op))
        readTask(task);
      else if (auto input = dyn_cast<InputOp>(op))
        begin(input.getValue(), 0, &op);
      else if (auto move = dyn_cast<MoveOp>(op))
        readMove(move);
      else if (auto wait = dyn_cast<WaitOp>(op); wait && isShard(wait))
        shards.insert(wait.getValue());
      else if (wait)
        begin(wait.getValue(), positions[wait.getFuture().getDefiningOp()], wait.getFuture().getDefiningOp());
    }
  }

  ArrayRef<Life> of(Role role, int64_t rank) { return lives[{static_cast<int64_t>(role), rank}]; }

private:
  Pieces pieces;
  const BodyTable &bodies;
  DenseMap<Operation *, int64_t> positions;       // moves of one `together` share a position
  std::map<int64_t, std::vector<int64_t>> groups; // by rank: the positions of its groups of messages
  int64_t end = 0;
  std::map<std::pair<int64_t, int64_t>, std::vector<Life>> lives;
  DenseSet<Value> shards;
  DenseMap<Value, std::pair<ValType, int64_t>> storage; // value -> index of the life it continues
  DenseMap<std::pair<Attribute, int64_t>, std::pair<int64_t, Operation *>> forwards;

  /// Numbers the ops; returns the joins among them.
  SmallVector<JoinOp> number(ProgramOp program) {
    SmallVector<JoinOp> joins;
    int64_t next = 1, group = -1, groupPosition = 0;
    for (Operation &op : program.getBody().front()) {
      auto move = dyn_cast<MoveOp>(op);
      if (move && move.getGroup()) {
        if (static_cast<int64_t>(*move.getGroup()) != group)
          groupPosition = next++;
        group = *move.getGroup();
        positions[&op] = groupPosition;
        for (PlaceAttr place : {cast<ValType>(move.getValue().getType()).getPlace(), move.getTarget().getPlace()})
          for (int64_t rank : place.getRanks())
            groups[rank].push_back(groupPosition);
        continue;
      }
      if (auto join = dyn_cast<JoinOp>(op))
        joins.push_back(join);
      positions[&op] = next++;
    }
    end = next;
    return joins;
  }

  /// The value whose memory this one took over; null: it has its own.
  static Value storageOf(Value value) {
    auto task = value.getDefiningOp<TaskOp>();
    int64_t tie = task ? task.getTies()[cast<OpResult>(value).getResultNumber()] : -1;
    return tie < 0 ? Value() : task.getInputs()[tie];
  }

  static bool isShard(WaitOp wait) {
    return cast<FutureType>(wait.getFuture().getType()).getValue().getLayout() == Layout::shard;
  }

  /// What pieces with shared weights tell each other after an update: a part of a weight, on its way.
  bool isFresh(Value value) const {
    if (auto wait = value.getDefiningOp<WaitOp>())
      value = wait.getFuture().getDefiningOp<MoveOp>().getValue();
    auto task = value.getDefiningOp<TaskOp>();
    BodyAttr body = task ? bodies.of(task) : BodyAttr();
    return body && body.getVariant() == BodyVariant::tie_fresh;
  }

  void extend(Life &life, Value value) {
    for (Operation *user : value.getUsers())
      if (positions[user] > life.last && !isa<OutputOp>(user)) {
        life.last = positions[user];
        life.kept = user;
      }
  }

  void begin(Value value, int64_t first, Operation *born) {
    auto type = cast<ValType>(value.getType());
    if (type.getRole() == Role::stash || type.getRanks().size() != 1 || shards.contains(value) || isFresh(value))
      return;
    auto &list = lives[{static_cast<int64_t>(type.getRole()), type.getRanks().front()}];
    storage[value] = {type, static_cast<int64_t>(list.size())};
    list.push_back({first, first, born, born});
    extend(list.back(), value);
  }

  void readMove(MoveOp move) {
    readStashMove(move);
    ValType from = cast<ValType>(move.getValue().getType()), type = move.getTarget();
    if (type.getRole() == Role::stash || type.getLayout() != Layout::full)
      return;
    for (int64_t rank : type.getRanks())
      if (!llvm::is_contained(from.getRanks(), rank) && !isAwaited(move, rank))
        lives[{static_cast<int64_t>(type.getRole()), rank}].push_back(
            {positions[move], endOfArrival(move, rank), move, move});
  }

  static bool isAwaited(MoveOp move, int64_t rank) {
    return llvm::any_of(move.getFuture().getUsers(), [&](Operation *user) {
      auto wait = dyn_cast<WaitOp>(user);
      return wait && llvm::is_contained(cast<ValType>(wait.getValue().getType()).getRanks(), rank);
    });
  }

  int64_t endOfArrival(MoveOp move, int64_t rank) {
    const std::vector<int64_t> &its = groups[rank];
    auto next = std::upper_bound(its.begin(), its.end(), positions[move]);
    return move.getGroup() && next != its.end() ? *next - 1 : end;
  }

  /// A stash lives where it is sent to from there on, and until then where it was; on the host it does not count.
  void readStashMove(MoveOp move) {
    if (move.getThing().getRole() != Role::stash)
      return;
    auto source = cast<ValType>(move.getValue().getType());
    Attribute coord = move.getThing().getCoord();
    if (source.getLayout() != Layout::host)
      endStash({coord, source.getRanks().front()}, move);
    if (move.getTarget().getLayout() != Layout::host)
      forwards.try_emplace({coord, move.getTarget().getRanks().front()}, positions[move], move);
  }

  void endStash(std::pair<Attribute, int64_t> key, Operation *end) {
    auto it = forwards.find(key);
    if (it == forwards.end())
      return;
    lives[{static_cast<int64_t>(Role::stash), key.second}].push_back(
        {it->second.first, positions[end], it->second.second, end});
    forwards.erase(it);
  }

  void readTask(TaskOp task) {
    int64_t position = positions[task];
    for (auto [result, tie] : llvm::zip(task.getResults(), task.getTies())) {
      if (tie >= 0 && shards.contains(task.getInputs()[tie])) {
        shards.insert(result);
        continue;
      }
      auto taken = tie < 0 ? storage.end() : storage.find(task.getInputs()[tie]);
      if (taken == storage.end()) {
        begin(result, position, task);
        continue;
      }
      auto [type, index] = taken->second;
      storage[result] = {type, index};
      extend(lives[{static_cast<int64_t>(type.getRole()), type.getRanks().front()}][index], result);
    }
    BodyAttr body = bodies.of(task);
    if (isPart(body))
      return;
    // Stashes are counted by units: from F to B or W; from R where F keeps nothing but its inputs.
    UnitIdAttr unit = task.getUnit();
    int64_t piece = pieces.find(unit.getCoord());
    if (piece >= 0 && vocabularyShards(pieces, piece)) // a shard of a part, not a piece
      return;
    std::pair<Attribute, int64_t> key = {unit.getCoord(), task.getRanks().front()};
    auto isStash = [](Type type) { return cast<ValType>(type).getRole() == Role::stash; };
    bool keeps = !isLight(body) || llvm::any_of(task.getResultTypes(), isStash);
    if (unit.getPhase() == Phase::R || (unit.getPhase() == Phase::F && keeps))
      forwards.try_emplace(key, position, task);
    else if ((unit.getPhase() == Phase::B || unit.getPhase() == Phase::W) && endsUnit(body))
      endStash(key, task);
  }
};

struct VerifyLimits : public pp::impl::VerifyLimitsBase<VerifyLimits> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    for (auto program : getOperation().getOps<ProgramOp>()) {
      auto limits = llvm::to_vector(program.getOps<LimitOp>());
      if (limits.empty())
        continue;
      Lives lives(program, getAnalysis<BodyTable>());
      for (LimitOp limit : limits)
        for (int64_t rank : limit.getRanks())
          if (failed(verify(limit, rank, lives.of(limit.getRole(), rank))))
            return signalPassFailure();
    }
  }

  static LogicalResult verify(LimitOp limit, int64_t rank, ArrayRef<Life> lives) {
    std::vector<std::tuple<int64_t, int64_t, const Life *>> events; // position, +1 first (both ends count), life
    for (const Life &life : lives) {
      events.push_back({life.first, -1, &life});
      events.push_back({life.last, 1, &life});
    }
    llvm::sort(events, [](auto &a, auto &b) {
      return std::pair(std::get<0>(a), std::get<1>(a)) < std::pair(std::get<0>(b), std::get<1>(b));
    });
    int64_t alive = 0, most = 0, when = 0;
    for (auto [position, step, life] : events) {
      alive -= step;
      if (alive > most) {
        most = alive;
        when = position;
      }
    }
    if (most <= static_cast<int64_t>(limit.getCount()))
      return success();
    return report(limit, rank, lives, most, when);
  }

  static LogicalResult report(LimitOp limit, int64_t rank, ArrayRef<Life> lives, int64_t most, int64_t when) {
    auto error = emitError(limit.getLoc())
                 << "rank " << rank << " holds " << most << " "
                 << (limit.getRole() == Role::stash ? "stashes" : (stringifyRole(limit.getRole()) + "s").str())
                 << " at once; the limit is " << static_cast<int64_t>(limit.getCount()) << withLoops(limit);
    const Life *newest = nullptr, *longest = nullptr;
    for (const Life &life : lives) {
      if (life.first > when || life.last < when)
        continue;
      if (!newest || life.first > newest->first)
        newest = &life;
      if (!longest || life.last > longest->last)
        longest = &life;
    }
    error.attachNote(newest->born->getLoc()) << "the last of them arrives here" << withLoops(newest->born);
    bool unused = longest->kept == longest->born;
    error.attachNote(longest->kept->getLoc())
        << (unused ? "one of them arrives here and is not used" : "one of them is kept for its use here")
        << withLoops(longest->kept);
    return error;
  }
};

} // namespace
