// Merges the lists of the ranks into one order in which every action finds its inputs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: actions in emission order, each anchored in the lists of some ranks.
// After:  the same actions in an order that keeps every list and has every input made before it is used.
//
//   rank 0 | F0 F1 .. B0 B1
//   rank 1 | .. F0 B0 F1 B1       ~~> F0@0  F1@0 F0@1  B0@1  B0@0 F1@1  B1@1  B1@0
//
// An action may go when it heads the list of every rank it is anchored on and its inputs exist; then its start in unit
// time is known and never changes, so a priority queue gives the order in O(n log n). Of those that start together the
// one of the lowest rank goes first: the order follows from the lists, not from where the text has them. Time order
// matters: messages are posted in sending order, which keeps receive buffers few and any lane layout free of cycles
// (docs/proofs.md 6). Where the program has costs of parts, they are the clock.
#include "analysis/Actions.h"
#include "analysis/Keys.h"
#include "analysis/costs/Costs.h"
#include "passes/Passes.h"
#include <queue>

namespace pp {
#define GEN_PASS_DEF_LINEARIZEACTIONS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The time of its longest unit; keys that are attended ahead take their share of it, and transfers no time.
static double durationOf(const Action &action, const UnitTimes &times) {
  if (auto ahead = dyn_cast<AttendOp>(action.op)) {
    auto slices = static_cast<double>(ahead.getUnit().getCoord().getSlice() + 1);
    return times.of(ahead.getUnit()) * static_cast<double>(ahead.getSlices().size()) / slices;
  }
  double longest = 0;
  action.op->walk([&](UnitOp unit) { longest = std::max(longest, times.of(unit.getUnit())); });
  return longest;
}

namespace {

class Merger {
public:
  Merger(ProgramOp program)
      : program(program), times(program), pieces(program), actions(readActions(program, pieces)) {}

  LogicalResult run() {
    start();
    std::vector<int64_t> order;
    while (!ready.empty()) {
      auto [time, turn] = ready.top();
      ready.pop();
      int64_t action = byTurn[turn];
      order.push_back(action);
      finish(action, time);
    }
    if (order.size() != actions.size())
      return reportStuck();
    Block &body = program.getBody().front();
    for (int64_t action : order)
      actions[action].op->moveBefore(&body, body.end());
    return success();
  }

private:
  ProgramOp program;
  UnitTimes times;
  Pieces pieces;
  std::vector<Action> actions;
  std::vector<std::vector<int64_t>> lists; // by rank: actions in emission order
  std::vector<size_t> heads;               // by rank: the first action of the list that has not gone
  std::vector<int64_t> unmet;
  std::vector<int64_t> turns, byTurn; // of an action among those that start together, and the action of a turn
  std::vector<double> clocks, earliest;
  DenseMap<std::pair<int64_t, int64_t>, int64_t> lacking; // piece, or -1, and update -> gradients that are to come
  DenseMap<Condition, double> made;                       // condition -> when
  DenseMap<Condition, SmallVector<int64_t, 1>> waiting;   // condition -> actions that lack it
  using Entry = std::pair<double, int64_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> ready;

  void start() {
    lists.resize(program.getRanks());
    clocks.assign(lists.size(), 0);
    heads.assign(lists.size(), 0);
    unmet.assign(actions.size(), 0);
    earliest.assign(actions.size(), 0);
    for (int64_t piece = 0; piece < pieces.size(); ++piece)
      for (int64_t rank : pieces.homes(piece))
        made[{pieces.homesAreShards(piece) ? Condition::Shard : Condition::Weight, piece, -1, -1, rank}] = 0;
    for (const Action &action : actions)
      for (auto [piece, update] : action.adds) {
        ++lacking[{piece, update}];
        ++lacking[{-1, update}];
      }
    for (auto [i, action] : llvm::enumerate(actions)) {
      for (int64_t rank : action.anchors)
        lists[rank].push_back(i);
      unmet[i] = action.anchors.size();
      for (const Condition &condition : action.needs)
        if (!made.count(condition)) {
          waiting[condition].push_back(i);
          ++unmet[i];
        }
    }
    takeTurns();
    for (size_t rank = 0; rank < lists.size(); ++rank)
      if (!lists[rank].empty())
        meet(lists[rank].front());
    for (auto [i, action] : llvm::enumerate(actions))
      if (action.anchors.empty() && unmet[i] == 0)
        ready.push({0, turns[i]});
  }

  /// Orders actions by their first rank, then by their place in its list; actions without a rank come first.
  void takeTurns() {
    turns.resize(actions.size());
    auto next = [&](int64_t action) {
      turns[action] = byTurn.size();
      byTurn.push_back(action);
    };
    for (auto [i, action] : llvm::enumerate(actions))
      if (action.anchors.empty())
        next(i);
    for (auto [rank, list] : llvm::enumerate(lists))
      for (int64_t action : list)
        if (actions[action].anchors.front() == int64_t(rank)) // they are sorted
          next(action);
  }

  void meet(int64_t action) {
    if (--unmet[action] > 0)
      return;
    double time = earliest[action];
    for (int64_t rank : actions[action].anchors)
      time = std::max(time, clocks[rank]);
    ready.push({time, turns[action]});
  }

  void finish(int64_t number, double time) {
    const Action &action = actions[number];
    double end = time + durationOf(action, times);
    for (const Condition &condition : action.makes)
      give(condition, end);
    for (auto [piece, update] : action.adds)
      for (int64_t of : {piece, int64_t(-1)})
        if (--lacking[{of, update}] == 0)
          give({Condition::Gradient, of, update, -1, -1}, end);
    for (int64_t rank : action.anchors) {
      clocks[rank] = end;
      if (++heads[rank] < lists[rank].size())
        meet(lists[rank][heads[rank]]);
    }
  }

  void give(const Condition &condition, double end) {
    if (!made.try_emplace(condition, end).second)
      return;
    auto it = waiting.find(condition);
    if (it == waiting.end())
      return;
    SmallVector<int64_t, 1> waiters = std::move(it->second);
    waiting.erase(it);
    for (int64_t waiter : waiters) {
      earliest[waiter] = std::max(earliest[waiter], end);
      meet(waiter);
    }
  }

  bool headsItsLists(int64_t number) const {
    return llvm::all_of(actions[number].anchors, [&](int64_t rank) { return lists[rank][heads[rank]] == number; });
  }

  const Condition *lacks(int64_t number) const {
    for (const Condition &condition : actions[number].needs)
      if (!made.count(condition))
        return &condition;
    return nullptr;
  }

  static std::string describe(Operation *op) {
    if (auto unit = dyn_cast<UnitOp>(op))
      return "`" + unit.getUnit().str() + "`";
    if (auto attend = dyn_cast<AttendOp>(op))
      return "`attend " + attend.getUnit().str() + "`";
    if (auto transfer = dyn_cast<TransferOp>(op))
      return "`move " + transfer.getThing().str() + "`";
    std::string first;
    op->walk([&](Operation *inner) {
      if (first.empty() && isa<UnitOp, TransferOp>(inner))
        first = describe(inner);
    });
    return "the `together` of " + first;
  }

  static bool isWeight(const Condition &condition) {
    return condition.kind == Condition::Weight || condition.kind == Condition::Shard;
  }

  static bool isPlaced(const Condition &condition) {
    return isWeight(condition) || condition.kind == Condition::Stash || condition.kind == Condition::Gradient;
  }

  /// The first move that brings the stash to the rank.
  TransferOp bringer(const Condition &condition) {
    CoordAttr coord = pieces.op(condition.piece).getCoord().with(condition.microbatch, condition.slice);
    TransferOp found;
    program.walk([&](TransferOp other) {
      ThingAttr thing = other.getThing();
      if (!found && thing.getRole() == Role::stash && thing.getCoord() == coord &&
          other.getTo().getLayout() == Layout::full && other.getTo().getRanks().front() == condition.rank)
        found = other;
    });
    return found;
  }

  /// The unit that would make this condition, if there is one.
  UnitOp maker(const Condition &condition) {
    UnitOp found;
    program.walk([&](UnitOp unit) {
      CoordAttr coord = unit.getUnit().getCoord();
      Phase phase = unit.getUnit().getPhase();
      bool makes = condition.kind == Condition::Forward ? phase == Phase::F
                   : condition.kind == Condition::Again ? phase == Phase::R
                                                        : phase == Phase::B || phase == Phase::I;
      if (!isPlaced(condition) && makes && pieces.find(coord) == condition.piece &&
          coord.getMicrobatch() == condition.microbatch && coord.getSlice() == condition.slice)
        found = unit;
    });
    return found;
  }

  /// `is on rank 3`, `is on ranks 0, 1`: where the weight of a piece is by now.
  std::string whereWeightIs(int64_t piece) {
    SmallVector<int64_t> ranks;
    for (auto &entry : made)
      if (entry.first.kind == Condition::Weight && entry.first.piece == piece)
        ranks.push_back(entry.first.rank);
    llvm::sort(ranks);
    if (ranks.empty() && pieces.homesAreShards(piece))
      return "it is cut over " + PlaceAttr::get(program.getContext(), pieces.homes(piece), Layout::full).str();
    if (ranks.empty())
      return "no rank holds it";
    return "it is on " + PlaceAttr::get(program.getContext(), ranks, Layout::full).str();
  }

  /// True if what it lacks comes later in its own list: then no other rank is to blame.
  bool blocksItself(int64_t number) {
    const Condition *condition = lacks(number);
    if (condition && condition->kind == Condition::Stash)
      return llvm::any_of(bringer(*condition).getAnchors(),
                          [&](int64_t rank) { return llvm::is_contained(actions[number].anchors, rank); });
    UnitOp unit = condition ? maker(*condition) : UnitOp();
    return unit && llvm::any_of(unit.getRanks(),
                                [&](int64_t rank) { return llvm::is_contained(actions[number].anchors, rank); });
  }

  /// The action to blame: one that blocks itself, else one that only lacks an input, else one that waits for its turn.
  int64_t firstBlocked() {
    auto rankOf = [&](int64_t number) {
      return std::pair(blocksItself(number) ? 0 : headsItsLists(number) ? 1 : 2, number);
    };
    std::optional<std::pair<int, int64_t>> first;
    for (size_t rank = 0; rank < lists.size(); ++rank)
      if (heads[rank] < lists[rank].size()) {
        auto candidate = rankOf(lists[rank][heads[rank]]);
        first = first ? std::min(*first, candidate) : candidate;
      }
    return first->second;
  }

  LogicalResult reportStuck() {
    int64_t first = firstBlocked();
    Operation *op = actions[first].op;
    const Condition *condition = lacks(first);
    auto error = emitError(op->getLoc());
    error << describe(op) << " on " << placeOf(first) << " ";
    if (!condition)
      error << "waits for its turn on another rank" << withLoops(op);
    else if (isWeight(*condition))
      reportWeight(error, op, *condition);
    else if (condition->kind == Condition::Stash)
      reportStash(error, op, *condition);
    else if (condition->kind == Condition::Gradient)
      reportUpdate(error, op, *condition);
    else
      reportUnit(error, op, *condition);
    if (!blocksItself(first))
      noteOthers(error, first);
    return failure();
  }

  std::string placeOf(int64_t action) {
    return PlaceAttr::get(program.getContext(), actions[action].anchors, Layout::full).str();
  }

  void reportWeight(InFlightDiagnostic &error, Operation *op, const Condition &condition) {
    error << "needs " << (condition.kind == Condition::Shard ? "a shard of " : "") << "`weight("
          << pieces.name(condition.piece) << ")`, which is not on rank " << condition.rank << "; "
          << whereWeightIs(condition.piece) << withLoops(op);
    auto &note = error.attachNote(pieces.op(condition.piece).getLoc());
    if (pieces.homes(condition.piece).empty())
      note << "declared without a place here";
    else
      note << "placed here; " << (pieces.homesAreShards(condition.piece) ? "" : "run it there, or ") << "`move weight("
           << pieces.name(condition.piece) << ")` to rank " << condition.rank << " first";
  }

  void reportStash(InFlightDiagnostic &error, Operation *op, const Condition &condition) {
    CoordAttr coord = pieces.op(condition.piece).getCoord().with(condition.microbatch, condition.slice);
    error << "needs `stash(" << coord.str() << ")` on rank " << condition.rank << ", and it is not there yet"
          << withLoops(op);
    if (TransferOp move = bringer(condition))
      error.attachNote(move.getLoc()) << "it arrives there later, here" << withLoops(move);
  }

  /// A version of weights that no update has made yet: it lacks the gradient of the first unit that has not run.
  void reportUpdate(InFlightDiagnostic &error, Operation *op, const Condition &condition) {
    int64_t piece = condition.piece;
    op->walk([&](UnitOp unit) { piece = piece < 0 ? pieces.find(unit.getUnit().getCoord()) : piece; });
    error << "needs `weight(" << pieces.name(piece) << ")` after update " << condition.microbatch
          << ", which lacks gradients" << withLoops(op);
    for (int64_t rank = 0, ranks = lists.size(); rank < ranks; ++rank)
      for (int64_t number : ArrayRef(lists[rank]).drop_front(heads[rank]))
        for (auto [of, update] : actions[number].adds)
          if (update == condition.microbatch && (condition.piece < 0 || of == condition.piece)) {
            error.attachNote(actions[number].op->getLoc())
                << describe(actions[number].op) << " adds one later, on rank " << rank << withLoops(actions[number].op);
            return;
          }
  }

  void reportUnit(InFlightDiagnostic &error, Operation *op, const Condition &condition) {
    UnitOp unit = maker(condition);
    auto waiter = dyn_cast<UnitOp>(op);
    bool own = waiter && pieces.find(waiter.getUnit().getCoord()) == condition.piece;
    bool isChunk = waiter && condition.slice != waiter.getUnit().getCoord().getSlice();
    StringRef thing = own ? "stash" : "act";
    if (condition.kind == Condition::Backward)
      thing = "dact";
    else if (isChunk)
      thing = "kv";
    int64_t of = isChunk ? pieces.find(waiter.getUnit().getCoord()) : condition.piece; // who attends the keys
    bool isState = isChunk && KeysBefore(program, pieces.all()).hasNoKeys(of);
    if (isState && condition.kind != Condition::Backward)
      thing = "state";
    std::string coord = pieces.op(of).getCoord().with(condition.microbatch, condition.slice).str();
    StringRef phase = condition.kind == Condition::Forward ? "`F`"
                      : condition.kind == Condition::Again ? "`R`"
                                                           : "backward";
    if (isChunk && condition.kind == Condition::Backward)
      error << "needs " << (isState ? "dstate" : "dkv") << " from slice " << condition.slice
            << ", whose backward has not run";
    else if (auto transfer = dyn_cast<TransferOp>(op))
      error << "needs `" << transfer.getThing().str() << "`, and its " << phase << " has not run";
    else
      error << "needs `" << thing << "(" << coord << ")`, and its " << phase << " has not run";
    error << withLoops(op);
    if (unit)
      error.attachNote(unit.getLoc()) << "`" << unit.getUnit().str() << "` comes later, on rank "
                                      << unit.getRanks().front() << withLoops(unit);
  }

  /// Up to three other ranks that wait at other places: the cycle, as far as it helps.
  void noteOthers(InFlightDiagnostic &error, int64_t first) {
    SmallVector<Location> told = {actions[first].op->getLoc()};
    for (size_t rank = 0; rank < lists.size() && told.size() < 4; ++rank) {
      if (heads[rank] == lists[rank].size())
        continue;
      int64_t head = lists[rank][heads[rank]];
      Operation *op = actions[head].op;
      if (llvm::is_contained(told, op->getLoc()))
        continue;
      told.push_back(op->getLoc());
      const Condition *condition = lacks(head);
      auto &note = error.attachNote(op->getLoc());
      note << "rank " << rank << " waits at " << describe(op);
      if (UnitOp unit = condition ? maker(*condition) : UnitOp()) {
        int64_t other = unit.getRanks().front();
        Operation *before = actions[lists[other][heads[other]]].op;
        note << " for `" << unit.getUnit().str() << "`";
        if (before != unit && !before->isAncestor(unit)) // else that rank waits there too, which is told of it
          note << ", which comes after " << describe(before) << " on rank " << other;
      }
      note << withLoops(op);
    }
  }
};

struct LinearizeActions : public pp::impl::LinearizeActionsBase<LinearizeActions> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(Merger(program).run()))
        return signalPassFailure();
  }
};

} // namespace
