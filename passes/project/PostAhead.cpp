// Posts receives earlier than their messages are made, so that no sender that is ahead waits for a busy receiver.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: launch A   launch B   post receive x   launch C   complete x   launch D(x)
// After:  launch A   post receive x   launch B   launch C   complete x   launch D(x)
//
// The order of all ranks puts both posts where the value is made, by times without messages: with them one end comes
// later, and with zero buffering the message begins when it does. A receive costs memory from its post on and nothing
// else, so it stands as long before its `complete` as the longest unit takes (HelixPipe's rule, docs/schedules.md:
// after the task before of the same fold, one task ahead). What comes from one rank stays in its order.
#include "analysis/costs/Costs.h"
#include "passes/Passes.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static double timeOf(const UnitTimes &times, Operation *op) {
  auto launch = dyn_cast<LaunchOp>(op);
  return launch ? times.of(launch) : 0;
}

/// The time that the rank computes between the post and its `complete`.
static double timeAhead(const UnitTimes &times, PostOp post) {
  auto users = post.getRequest().getUsers();
  double time = 0;
  for (Operation *op = post; op && !llvm::is_contained(users, op); op = op->getNextNode())
    time += timeOf(times, op);
  return time;
}

void pp::postReceivesAhead(RankOp rank, const UnitTimes &times, double least) {
  if (least == 0)
    return;
  DenseMap<Attribute, Operation *> last; // receive of a channel
  for (auto post : llvm::make_early_inc_range(rank.getBody().front().getOps<PostOp>())) {
    if (post.getKind() != PostKind::receive || post.isHost())
      continue;
    Operation *before = std::exchange(last[post.getChannelAttr()], post);
    auto slot = post.getSlot().getDefiningOp<SlotOp>();
    if (slot->getNextNode() != post) // its memory holds something else until then
      continue;
    double time = timeAhead(times, post);
    Operation *place = slot;
    for (Operation *op = slot->getPrevNode(); op && op != before && time < least; op = op->getPrevNode())
      if (auto launch = dyn_cast<LaunchOp>(op)) {
        if (launch.getJudges()) // what is posted before it must be able to arrive before it
          break;
        time += timeOf(times, op);
        place = launch.leader() ? place : op; // what runs side by side stays so
      }
    if (place != slot) {
      slot->moveBefore(place);
      post->moveBefore(place);
    }
  }
}
