// Cuts the program of a rank that does an update over into its stretches, and compares these with the step.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/lives/Redo.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

RedoParts pp::redoPartsOf(RankOp redo) {
  RedoParts parts;
  std::vector<Operation *> between;
  int64_t judged = 0;
  for (Operation &op : redo.getBody().front()) {
    if (isa<SlotOp>(op))
      continue;
    (judged == 0 ? parts.head : judged == 1 ? between : parts.rest).push_back(&op);
    auto launch = dyn_cast<LaunchOp>(op);
    judged += launch && launch.getJudges();
  }
  size_t behind = between.size() - std::min(between.size(), parts.head.size()), at = 0;
  for (; at < behind && isa<CompleteOp>(between[at]); ++at)
    parts.drain.push_back(between[at]);
  parts.undo.assign(between.begin() + at, between.begin() + behind);
  parts.again.assign(between.begin() + behind, between.end());
  return parts;
}

namespace {

using Ops = ArrayRef<Operation *>;

std::string textOf(Operation *op) {
  if (!op)
    return "no further op";
  if (auto launch = dyn_cast<LaunchOp>(op))
    return "`launch " + launch.getUnit().str() + "`";
  if (auto post = dyn_cast<PostOp>(op))
    return "`" + stringifyPostKind(post.getKind()).str() + " " + post.getThing().str() + "`";
  return "a `complete`";
}

/// A rank of the step and of the redo program, op by op.
class Comparison {
public:
  Comparison(RankOp step, RankOp redo) : step(step), redo(redo), parts(redoPartsOf(redo)) {}

  LogicalResult run() {
    if (step.getArenaBytes() != redo.getArenaBytes() || step.getHostBytes() != redo.getHostBytes())
      return emitError(redo.getLoc()) << "the redo program of rank " << redo.getRank()
                                      << " has another size of memory than the step";
    std::vector<Operation *> head, rest;
    for (Operation &op : step.getBody().front())
      if (!isa<SlotOp>(op))
        (endsWithJudge(head) ? rest : head).push_back(&op);
    return success(succeeded(compare("head", head, parts.head)) &&
                   succeeded(compare("second head", head, parts.again)) &&
                   succeeded(compare("rest", rest, parts.rest)) && succeeded(compareUpdates(head, rest)));
  }

private:
  mutable RankOp step, redo; // whose getters are not const
  RedoParts parts;
  llvm::DenseMap<Value, Value> requests; ///< of the step, by those of the redo program

  static bool endsWithJudge(Ops ops) {
    auto last = ops.empty() ? LaunchOp() : dyn_cast<LaunchOp>(ops.back());
    return last && last.getJudges();
  }

  LogicalResult differs(StringRef where, Operation *mine, Operation *other) const {
    auto error = emitError(mine ? mine->getLoc() : redo.getLoc());
    error << "in the redo program of rank " << redo.getRank() << " the " << where << " has " << textOf(mine)
          << " where the step has " << textOf(other);
    if (mine && other && textOf(mine) == textOf(other))
      error << " with other operands or attributes";
    if (other)
      error.attachNote(other->getLoc()) << "the step's is here";
    return error;
  }

  LogicalResult compare(StringRef where, Ops expected, Ops got) {
    for (size_t i = 0; i < std::max(expected.size(), got.size()); ++i) {
      Operation *mine = i < got.size() ? got[i] : nullptr, *other = i < expected.size() ? expected[i] : nullptr;
      if (!mine || !other || !isSame(mine, other))
        return differs(where, mine, other);
    }
    return success();
  }

  /// The same op with operands that are the same; what it makes then is the same, too.
  bool isSame(Operation *mine, Operation *other) {
    if (mine->getName() != other->getName() || mine->getAttrDictionary() != other->getAttrDictionary() ||
        mine->getNumOperands() != other->getNumOperands() || mine->getNumResults() != other->getNumResults())
      return false;
    for (auto [ours, theirs] : llvm::zip(mine->getOperands(), other->getOperands())) {
      auto slot = ours.getDefiningOp<SlotOp>(), its = theirs.getDefiningOp<SlotOp>();
      bool same =
          slot ? its && ours.getType() == theirs.getType() && slot->getAttrDictionary() == its->getAttrDictionary()
               : requests.lookup(ours) == theirs;
      if (!same)
        return false;
    }
    for (auto [ours, theirs] : llvm::zip(mine->getResults(), other->getResults()))
      requests[ours] = theirs;
    return true;
  }

  /// Launches that are done over have the numbers of the last ones of the step, messages those of the step's with
  /// weights.
  LogicalResult compareUpdates(Ops head, Ops rest) const {
    std::vector<PostOp> weights;
    int64_t launches = 0;
    for (Ops ops : {head, rest})
      for (Operation *op : ops) {
        launches += isa<LaunchOp>(op);
        if (auto post = dyn_cast<PostOp>(op); post && post.getThing().getRole() == Role::weight)
          weights.push_back(post);
      }
    size_t next = 0;
    for (Operation *op : parts.undo) {
      PostOp other = next < weights.size() ? weights[next] : PostOp();
      if (auto post = dyn_cast<PostOp>(op)) {
        if (!other || post->getAttrDictionary() != other->getAttrDictionary() ||
            post.getSlot().getType() != other.getSlot().getType())
          return differs("update", op, other);
        ++next;
      }
      if (isa<LaunchOp>(op) && --launches < 0)
        return differs("update", op, nullptr);
    }
    return next == weights.size() ? success() : differs("update", nullptr, weights[next]);
  }
};

} // namespace

LogicalResult pp::verifyRedo(ModuleOp module) {
  ProgramOp step = ProgramOp::trainingOf(module), redo = ProgramOp::redoOf(module);
  bool judges = false;
  if (step)
    step.walk([&](LaunchOp launch) { judges |= launch.getJudges(); });
  if (judges != bool(redo))
    return emitError((step ? step : redo).getLoc())
           << (redo ? "there is a redo program, and no unit of the step judges an update"
                    : "a unit of the step judges an update, and there is no redo program");
  if (!redo)
    return success();
  for (auto [rank, again] : llvm::zip(step.getOps<RankOp>(), redo.getOps<RankOp>()))
    if (failed(Comparison(rank, again).run()))
      return failure();
  return success();
}
