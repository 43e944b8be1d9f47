// Cuts the program of a rank that does an update over into its stretches: by its judges, and by counting its head.
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
    (judged == 0 ? parts.head : between).push_back(&op);
    auto launch = dyn_cast<LaunchOp>(op);
    if (launch && launch.getJudges() && ++judged == 2)
      break;
  }
  size_t behind = between.size() - std::min(between.size(), parts.head.size()), at = 0;
  for (; at < behind && isa<CompleteOp>(between[at]); ++at)
    parts.drain.push_back(between[at]);
  parts.undo.assign(between.begin() + at, between.begin() + behind);
  parts.again.assign(between.begin() + behind, between.end());
  return parts;
}
