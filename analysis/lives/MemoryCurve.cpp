// Turns the lives of a rank's slots into bytes by role over time.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Simulate.h"
#include "analysis/lives/SlotLives.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// Keeps at most two points at one time: the largest, then the last; so the curve's maximum is the planned peak.
static void addPoint(std::vector<MemoryPoint> &curve, MemoryPoint point) {
  size_t same = 0;
  while (same < 2 && same < curve.size() && curve[curve.size() - 1 - same].time == point.time)
    ++same;
  if (same == 0) {
    curve.push_back(std::move(point));
    return;
  }
  MemoryPoint &last = curve.back();
  if (same == 1)
    last.total > point.total ? curve.push_back(std::move(point)) : void(last = std::move(point));
  else if (MemoryPoint &largest = curve[curve.size() - 2]; point.total >= largest.total) {
    largest = std::move(point);
    curve.pop_back();
  } else
    last = std::move(point);
}

std::vector<MemoryPoint> pp::memoryCurve(RankOp rank, ArrayRef<double> times) {
  // The changes before the op at each position: a slot counts from its first op to the end of its last.
  std::vector<SmallVector<std::pair<Role, int64_t>, 2>> changes(times.size() + 2);
  for (const SlotLife &life : slotLives(rank))
    for (Segment segment : life.segments) {
      changes[segment.first].push_back({SlotOp(life.op).getRole(), life.bytes});
      changes[std::min<size_t>(segment.last, times.size()) + 1].push_back({SlotOp(life.op).getRole(), -life.bytes});
    }
  std::vector<MemoryPoint> curve;
  MemoryPoint now = {0, llvm::SmallVector<int64_t, 12>(getMaxEnumValForRole() + 1, 0)};
  for (size_t position = 0; position <= times.size(); ++position) {
    if (changes[position].empty())
      continue;
    for (auto [role, bytes] : changes[position]) {
      now.bytes[static_cast<int>(role)] += bytes;
      now.total += bytes;
    }
    now.time = position == 0 ? 0 : times[position - 1];
    addPoint(curve, now);
  }
  return curve;
}
