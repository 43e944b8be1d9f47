// Sums what is alive at each position, and says which tasks begin and end the stash of a unit.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/lives/Lifetimes.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

void AliveSum::add(Segment segment, int64_t weight) {
  changes.push_back({segment.first, weight});
  changes.push_back({segment.last + 1, -weight});
}

Most AliveSum::most() {
  llvm::sort(changes); // what ends at a position ends before something begins there
  Most most;
  int64_t now = 0;
  for (auto [position, change] : changes) {
    now += change;
    if (now > most.sum)
      most = {now, position};
  }
  return most;
}

int64_t AliveSum::at(int64_t position) const {
  int64_t sum = 0;
  for (auto [changed, change] : changes)
    sum += changed <= position ? change : 0;
  return sum;
}

int64_t pp::mostAlive(ArrayRef<Segment> segments) {
  AliveSum alive;
  for (Segment segment : segments)
    alive.add(segment);
  return alive.most().sum;
}

StashEvent pp::stashEventOf(UnitIdAttr unit, BodyAttr body, bool savesStash) {
  Phase phase = unit.getPhase();
  if (isPart(body))
    return StashEvent::none;
  if (phase == Phase::R || (phase == Phase::F && (savesStash || !isLight(body))))
    return StashEvent::begin;
  bool isBackward = phase == Phase::B || phase == Phase::W;
  return isBackward && endsUnit(body) ? StashEvent::end : StashEvent::none;
}
