// Makes a memory plan smaller: other orders for first fit, and what lies too high goes earlier in the order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// First fit follows an order, and the order decides: by start is right for the regular lives of a pipeline, by size, by
// length of life or by their product for others. If none reaches the largest live sum, below which no plan can go, the best
// is improved: what came to lie above that sum goes earlier in the order, first all of it, then slot by slot, by lot, as long
// as that helps. The lots are those of a fixed seed: the same program has the same plan everywhere.
#include "passes/SlotLives.h"
#include <numeric>
#include <random>

using namespace mlir;
using namespace pp;

namespace {

bool meet(const SlotLife &a, const SlotLife &b) {
  for (Segment x : a.segments)
    for (Segment y : b.segments)
      if (x.first <= y.last && y.first <= x.last)
        return true;
  return false;
}

/// Looks for an arena that is no larger than the largest live sum.
class Improver {
public:
  Improver(ArrayRef<SlotLife> lives, int64_t bound) : lives(lives), bound(bound), conflicts(lives.size()) {
    readConflicts();
  }

  SlotLayout run(SlotLayout first) {
    std::vector<size_t> start(lives.size());
    std::iota(start.begin(), start.end(), 0); // lives are sorted by start
    // Slots that live in several segments first: they are few, and everything else fits around them.
    llvm::stable_sort(
        start, [&](size_t a, size_t b) { return lives[a].segments.size() > 1 && lives[b].segments.size() <= 1; });
    auto largest = [&](auto &&key) {
      std::vector<size_t> order = start;
      llvm::stable_sort(order, [&](size_t a, size_t b) { return key(lives[a]) > key(lives[b]); });
      return order;
    };
    auto bytes = [](const SlotLife &life) { return life.bytes; };
    auto length = [](const SlotLife &life) { return lengthOf(life); };
    auto area = [](const SlotLife &life) { return life.bytes * lengthOf(life); };
    order = start;
    for (std::vector<size_t> next : {start, largest(bytes), largest(area), largest(length)})
      if (boost(std::move(next)))
        break;
    if (best.bytes > bound)
      climb();
    return best.bytes < first.bytes ? best : first;
  }

private:
  ArrayRef<SlotLife> lives;
  int64_t bound, work = 0;
  std::vector<SmallVector<uint32_t, 0>> conflicts; ///< of each slot: those that live at the same time
  std::vector<size_t> order;                       ///< of the best layout
  SlotLayout best;

  /// Visited conflicts; the plan is as good as it gets in about a tenth of a second.
  static constexpr int64_t kWork = 10'000'000;

  static int64_t lengthOf(const SlotLife &life) {
    int64_t length = 0;
    for (Segment segment : life.segments)
      length += segment.last - segment.first + 1;
    return length;
  }

  void readConflicts() {
    for (size_t i = 0; i < lives.size(); ++i)
      for (size_t j = i + 1; j < lives.size(); ++j) {
        if (lives[j].segments.front().first > lives[i].segments.back().last)
          break; // sorted by start
        if (lives[i].bytes > 0 && lives[j].bytes > 0 && meet(lives[i], lives[j])) {
          conflicts[i].push_back(j);
          conflicts[j].push_back(i);
        }
      }
  }

  /// First fit, lowest address first.
  SlotLayout fit(ArrayRef<size_t> order) {
    SlotLayout layout{std::vector<int64_t>(lives.size(), -1), 0};
    SmallVector<std::pair<int64_t, int64_t>> taken;
    for (size_t slot : order) {
      taken.clear();
      for (size_t other : conflicts[slot])
        if (layout.offsets[other] >= 0)
          taken.push_back({layout.offsets[other], layout.offsets[other] + lives[other].bytes});
      work += conflicts[slot].size();
      llvm::sort(taken);
      int64_t offset = 0;
      for (auto [begin, end] : taken) {
        if (offset + lives[slot].bytes <= begin)
          break;
        offset = std::max(offset, end);
      }
      layout.offsets[slot] = offset;
      layout.bytes = std::max(layout.bytes, offset + lives[slot].bytes);
    }
    return layout;
  }

  bool isAbove(const SlotLayout &layout, size_t slot) const { return layout.offsets[slot] + lives[slot].bytes > bound; }

  void keep(const SlotLayout &layout, ArrayRef<size_t> order) {
    if (!best.offsets.empty() && best.bytes <= layout.bytes)
      return;
    best = layout;
    this->order = order.vec();
  }

  /// Everything above the bound goes earlier in the order by half, again and again. True once the bound is reached.
  bool boost(std::vector<size_t> order) {
    for (int turn = 0; turn < 30; ++turn) {
      SlotLayout layout = fit(order);
      keep(layout, order);
      if (best.bytes <= bound || work > kWork)
        return true;
      std::vector<std::pair<size_t, size_t>> keyed;
      for (auto [position, slot] : llvm::enumerate(order))
        keyed.push_back({isAbove(layout, slot) ? position : 2 * position, slot});
      llvm::stable_sort(keyed, [](auto &a, auto &b) { return a.first < b.first; });
      std::transform(keyed.begin(), keyed.end(), order.begin(), [](auto &entry) { return entry.second; });
    }
    return false;
  }

  /// The arena, then the bytes above the bound.
  std::pair<int64_t, int64_t> costOf(const SlotLayout &layout) const {
    int64_t above = 0;
    for (size_t slot = 0; slot < lives.size(); ++slot)
      above += std::max<int64_t>(0, layout.offsets[slot] + lives[slot].bytes - bound);
    return {layout.bytes, above};
  }

  /// One slot above the bound changes its place in the order, with one that it meets or to an earlier one.
  void climb() {
    std::minstd_rand lots(1);
    auto cost = costOf(best);
    while (best.bytes > bound && work < kWork) {
      std::vector<size_t> above, next = order;
      for (size_t position = 0; position < order.size(); ++position)
        if (isAbove(best, order[position]))
          above.push_back(position);
      size_t from = above[lots() % above.size()], slot = order[from];
      if (lots() % 2 && !conflicts[slot].empty()) {
        std::swap(next[from], *llvm::find(next, conflicts[slot][lots() % conflicts[slot].size()]));
      } else {
        size_t to = lots() % (from + 1);
        std::rotate(next.begin() + to, next.begin() + from, next.begin() + from + 1);
      }
      SlotLayout layout = fit(next);
      if (auto made = costOf(layout); made <= cost) {
        cost = made;
        best = std::move(layout);
        order = std::move(next);
      }
    }
  }
};

} // namespace

SlotLayout pp::improvePlan(ArrayRef<SlotLife> lives, int64_t bound, SlotLayout first) {
  return Improver(lives, bound).run(std::move(first));
}
