// Refuses a gradient that leaves a rank while the schedule does not say what has come to that rank by then.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: the actions in one order. After: the same, or an error at what takes the gradient away.
//
//   rank 0 | B(2, 0)  grad(2) to 1   inside `on 0` the move stands in the list of rank 0 alone, so nothing says whether
//   rank 1 | B(2, 1)  grad(2) to 2   rank 0's share goes on to rank 2 or stays on rank 1
//
// A gradient is a sum, so what only adds to it may come in any order: the merge chooses one. What takes it away, a move
// or an update, must come before or after all that adds: in the list of the rank, or because data makes it so.
#include "analysis/Actions.h"
#include "passes/Passes.h"
#include <map>

namespace pp {
#define GEN_PASS_DEF_VERIFYARRIVALS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// Something that changes what a rank holds of the gradient of a piece.
struct Event {
  int64_t action;
  Operation *op;     ///< the unit or transfer
  bool takes, isOwn; ///< its own: it stands in the list of this rank
};

/// Asks whether the lists and data alone put one event before another.
struct Question {
  int64_t piece, rank;
  Event first, second;
};

class Arrivals {
public:
  explicit Arrivals(ProgramOp program) : program(program), pieces(program) {}

  LogicalResult verify() {
    if (!hasForeignMove())
      return success();
    actions = readActions(program, pieces);
    for (auto [i, action] : llvm::enumerate(actions))
      action.op->walk([&](Operation *op) {
        if (auto unit = dyn_cast<UnitOp>(op))
          addUnit(unit, i);
        else if (auto transfer = dyn_cast<TransferOp>(op); transfer && isGrad(transfer))
          addMove(transfer, i);
      });
    std::map<int64_t, std::vector<Question>> byRank; // by a rank in whose list the first of the two stands
    for (auto &[where, list] : events)
      ask(where.first, where.second, list, byRank);
    numberConditions();
    for (auto &[rank, questions] : byRank)
      if (failed(answer(rank, questions)))
        return failure();
    return success();
  }

private:
  ProgramOp program;
  Pieces pieces;
  std::vector<Action> actions;
  std::map<std::pair<int64_t, int64_t>, std::vector<Event>> events; // by piece and rank, in the order of the actions
  DenseMap<Condition, int64_t> makers;                              // how many actions make it

  static bool isGrad(TransferOp op) { return op.getThing().getRole() == Role::grad; }

  /// Whether a gradient comes to a rank or leaves it where the list of that rank does not say so.
  bool hasForeignMove() {
    return program
        .walk([](TransferOp op) {
          auto isForeign = [&](int64_t rank) { return !llvm::is_contained(op.getAnchors(), rank); };
          bool foreign = isGrad(op) && (!op.getFrom() || llvm::any_of(op.getFrom()->getRanks(), isForeign) ||
                                        llvm::any_of(op.getTo().getRanks(), isForeign));
          return foreign ? WalkResult::interrupt() : WalkResult::advance();
        })
        .wasInterrupted();
  }

  void add(int64_t piece, int64_t rank, int64_t action, Operation *op, bool takes) {
    events[{piece, rank}].push_back({action, op, takes, llvm::is_contained(actions[action].anchors, rank)});
  }

  void addUnit(UnitOp unit, int64_t action) {
    Phase phase = unit.getUnit().getPhase();
    if (phase == Phase::B || phase == Phase::W || phase == Phase::U)
      for (int64_t rank : unit.getRanks())
        add(pieces.find(unit.getUnit().getCoord()), rank, action, unit, phase == Phase::U);
  }

  void addMove(TransferOp op, int64_t action) {
    int64_t piece = pieces.find(op.getThing().getCoord());
    for (int64_t rank = 0; rank < int64_t(program.getRanks()); ++rank)
      if (!op.getFrom() || llvm::is_contained(op.getFrom()->getRanks(), rank))
        add(piece, rank, action, op, /*takes=*/true);
    for (int64_t rank : op.getTo().getRanks())
      add(piece, rank, action, op, /*takes=*/false);
  }

  /// Each event against the last one before it that takes, and the first one after it: the others follow from these.
  void ask(int64_t piece, int64_t rank, ArrayRef<Event> list, std::map<int64_t, std::vector<Question>> &byRank) {
    auto compare = [&](const Event &first, const Event &second) {
      ArrayRef<int64_t> anchors = actions[first.action].anchors;
      if (first.action != second.action && !(first.isOwn && second.isOwn) && !anchors.empty())
        byRank[anchors.front()].push_back({piece, rank, first, second});
    };
    const Event *taken = nullptr;
    size_t open = 0; // events since then
    for (auto [i, event] : llvm::enumerate(list)) {
      if (taken)
        compare(*taken, event);
      if (!event.takes)
        continue;
      for (; open < i; ++open)
        compare(list[open], event);
      taken = &event;
    }
  }

  void numberConditions() {
    for (const Action &action : actions)
      for (const Condition &condition : action.makes)
        ++makers[condition];
    for (int64_t piece = 0; piece < pieces.size(); ++piece) // from the start
      for (int64_t rank : pieces.homes(piece))
        ++makers[{pieces.homesAreShards(piece) ? Condition::Shard : Condition::Weight, piece, -1, -1, rank}];
  }

  /// Finds for every action how far this rank's list must have come before the action, and answers the questions by
  /// that.
  LogicalResult answer(int64_t rank, ArrayRef<Question> questions) {
    std::vector<int64_t> place(actions.size(), -1), before(actions.size(), -1), reached(program.getRanks(), -1);
    DenseMap<Condition, int64_t> made; // by only one action: of others nobody knows which it is
    int64_t count = 0;
    for (auto [i, action] : llvm::enumerate(actions)) {
      int64_t &most = before[i];
      for (int64_t anchor : action.anchors)
        most = std::max(most, reached[anchor]);
      for (const Condition &condition : action.needs)
        if (auto it = made.find(condition); it != made.end())
          most = std::max(most, it->second);
      if (llvm::is_contained(action.anchors, rank))
        most = place[i] = count++;
      for (int64_t anchor : action.anchors)
        reached[anchor] = most;
      for (const Condition &condition : action.makes)
        if (makers.lookup(condition) == 1)
          made[condition] = most;
    }
    for (const Question &question : questions)
      if (before[question.second.action] < place[question.first.action])
        return report(question);
    return success();
  }

  //===-- What to say --------------------------------------------------------------------------------------------===//

  LogicalResult report(const Question &question) {
    const Event *taker = &question.second, *other = &question.first;
    if (!taker->takes)
      std::swap(taker, other);
    auto error = emitError(taker->op->getLoc());
    error << "order of arrival of `grad(" << pieces.name(question.piece) << ")` on rank " << question.rank
          << " is not determined: " << does(*taker, question.rank) << withLoops(taker->op);
    error.attachNote(other->op->getLoc()) << does(*other, question.rank) << withLoops(other->op);
    return failure();
  }

  std::string does(const Event &event, int64_t rank) {
    if (auto unit = dyn_cast<UnitOp>(event.op))
      return "`" + unit.getUnit().str() + "` " + (event.takes ? "uses" : "adds to") + " it here";
    auto move = cast<TransferOp>(event.op);
    std::string what = event.takes ? "it leaves here" : "it arrives ";
    if (!event.takes)
      what += (move.getFrom() ? "from " + move.getFrom()->str() + " " : std::string()) + "here";
    if (event.isOwn)
      return what;
    PlaceAttr anchors = PlaceAttr::get(program.getContext(), actions[event.action].anchors, Layout::full);
    return what + ", in the order of " + anchors.str() + " alone; " +
           (move.getFrom() ? "outside `on` the move is" : "the move would be") + " in that of rank " +
           std::to_string(rank) + (move.getFrom() ? ", too" : " if its `from` named it");
  }
};

struct VerifyArrivals : public pp::impl::VerifyArrivalsBase<VerifyArrivals> {
  void runOnPrograms() override {
    markAllAnalysesPreserved();
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(Arrivals(program).verify()))
        return signalPassFailure();
  }
};

} // namespace
