// Makes a memory plan smaller: it fills lanes of slots of one size in sweeps, and keeps the best of many layouts.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   bytes ^ |P0.|   |P1..|     |P2.|    two lanes of pending values,
//         | |S0.....|S3......|S5...     three of stashes; a slot that finds all lanes of its size
//         | |S1........|S4.......|      taken goes to the gap that it fills best
//         | |S2..|A1|A2|S6.....|
//         +--------------------------> position
//
// Where slots of different sizes follow each other, first fit leaves gaps that nothing fills. In lanes a slot takes the
// place of one of its own size. Lanes for all that ever live at once may be more than the bound, the largest live sum:
// then some sizes get fewer. How many, in which order, and what else a slot may take is tried by lot, from a fixed
// seed: the same program has the same plan everywhere. Work is bounded, whatever the program's size.
#include "passes/project/SlotLayout.h"
#include "llvm/ADT/MapVector.h"
#include <numeric>
#include <random>

using namespace mlir;
using namespace pp;

namespace {

struct Range {
  int64_t begin, end;
  int64_t until = 0; ///< of a slot that was placed: its last position in the sweep
  bool operator<(const Range &other) const { return begin < other.begin; }
};

struct Gap {
  int64_t begin, end;
};

/// The rules by which a layout is made.
struct Recipe {
  enum Rule : unsigned { lowestLane = 1, highEnd = 2, firstGap = 4, noLanes = 8, rules = 16 };
  std::vector<int64_t> lanes; ///< by size: how many
  std::vector<size_t> order;  ///< of the sizes, from below
  std::vector<unsigned> rule; ///< by size
  bool backwards = false;
};

class Improver {
public:
  Improver(ArrayRef<SlotLife> lives, int64_t bound, int64_t work);
  SlotLayout run(SlotLayout first, int64_t enough);

private:
  ArrayRef<SlotLife> lives;
  int64_t bound, work, least;       ///< a sweep that comes down to `least` work is given up
  int64_t bottom = 0, room = 0;     ///< `room`: the height that a search wants
  SlotLayout best, fixed;           ///< `fixed`: slots that live all the time or in several segments, at the bottom
  std::vector<int64_t> sizes, most; ///< by size: bytes, and how many live at once
  std::vector<size_t> sizeOf;       ///< by slot: the number of its size
  std::vector<size_t> forwards, backwards;   ///< the other slots by start, and by end from the last
  std::vector<size_t> several;               ///< slots of several segments
  std::vector<SmallVector<Range, 0>> around; ///< by slot: what it meets of them, by offset
  SmallVector<Gap, 64> gaps;                 ///< of one placement
  std::minstd_rand lots{1};

  void placeFixed();
  void countSizes();
  bool search(int64_t height);
  Recipe draw();
  Recipe change(Recipe recipe);
  SlotLayout sweep(const Recipe &recipe);
  int64_t placeFor(size_t slot, ArrayRef<Range> taken, ArrayRef<int64_t> lanes, unsigned rule);
  size_t lot(size_t count) { return lots() % count; }
};

} // namespace

Improver::Improver(ArrayRef<SlotLife> lives, int64_t bound, int64_t work)
    : lives(lives), bound(bound), work(work), least(-work), sizeOf(lives.size()), around(lives.size()) {
  fixed.offsets.assign(lives.size(), 0);
  placeFixed();
  countSizes();
}

void Improver::placeFixed() {
  int64_t end = 0;
  for (const SlotLife &life : lives)
    end = std::max(end, life.segments.back().last);
  for (auto [slot, life] : llvm::enumerate(lives)) {
    if (life.bytes == 0)
      continue;
    if (life.segments.size() > 1) {
      several.push_back(slot);
    } else if (life.segments.front().first == 0 && life.segments.front().last == end) {
      fixed.offsets[slot] = fixed.bytes;
      fixed.bytes += life.bytes;
    } else {
      forwards.push_back(slot);
    }
  }
  bottom = fixed.bytes;
  firstFit(lives, several, bottom, fixed);
  for (size_t slot : forwards)
    for (size_t other : several)
      if (meet(lives[slot], lives[other]))
        around[slot].push_back({fixed.offsets[other], fixed.offsets[other] + lives[other].bytes});
  for (SmallVector<Range, 0> &its : around)
    std::sort(its.begin(), its.end()); // (llvm::sort takes memory for each call)
  backwards = forwards;                // lives are sorted by start
  llvm::stable_sort(
      backwards, [&](size_t a, size_t b) { return lives[a].segments.front().last > lives[b].segments.front().last; });
}

void Improver::countSizes() {
  llvm::MapVector<int64_t, std::vector<Segment>> bySize;
  for (size_t slot : forwards) {
    auto it = bySize.insert({lives[slot].bytes, {}}).first;
    it->second.push_back(lives[slot].segments.front());
    sizeOf[slot] = it - bySize.begin();
  }
  for (auto &[bytes, segments] : bySize) {
    sizes.push_back(bytes);
    most.push_back(mostAlive(segments));
  }
}

SlotLayout Improver::run(SlotLayout first, int64_t enough) {
  best = std::move(first);
  if (enough >= bound) {
    search(enough / 64 * 64);
    return std::move(best);
  }
  // What is good enough first, for with more room there are more ways; to better it is worth less.
  int64_t more = work / 8;
  for (int64_t percent : {102, 101, 100}) {
    if (!search(bound * percent / 100 / 64 * 64))
      break;
    work = std::min(work, more);
  }
  return std::move(best);
}

/// True if a layout of this height is known, or found before the work is done.
bool Improver::search(int64_t height) {
  room = height;
  Recipe recipe;
  int64_t reached = 0;
  for (int turn = 0, since = 0; best.bytes > height; ++turn) {
    if (work <= 0)
      return false;
    bool anew = turn < 64 || since > 200;
    Recipe next = anew ? draw() : change(recipe);
    SlotLayout layout = sweep(next);
    if (layout.bytes < best.bytes)
      best = layout;
    ++since;
    if (anew ? (turn == 0 || since > 200 || layout.bytes < reached)
             : layout.bytes < reached || (layout.bytes == reached && lot(2))) {
      since = anew || layout.bytes < reached ? 0 : since;
      reached = layout.bytes;
      recipe = std::move(next);
    }
  }
  return true;
}

Recipe Improver::draw() {
  Recipe recipe;
  recipe.lanes = most;
  recipe.order.resize(sizes.size());
  std::iota(recipe.order.begin(), recipe.order.end(), 0);
  if (lot(2))
    llvm::sort(recipe.order, [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  else
    std::shuffle(recipe.order.begin(), recipe.order.end(), lots);
  bool same = lot(4);
  recipe.rule.assign(sizes.size(), lot(Recipe::noLanes));
  for (unsigned &rule : recipe.rule)
    rule = same ? rule : lot(Recipe::rules);
  recipe.backwards = lot(2);
  int64_t height = fixed.bytes;
  for (auto [count, bytes] : llvm::zip(most, sizes))
    height += count * bytes;
  while (height > room && llvm::any_of(recipe.lanes, [](int64_t count) { return count > 0; }))
    if (size_t size = lot(sizes.size()); recipe.lanes[size] > 0) {
      --recipe.lanes[size];
      height -= sizes[size];
    }
  return recipe;
}

/// Up to three small changes.
Recipe Improver::change(Recipe recipe) {
  for (size_t left = 1 + lot(3); left > 0; --left) {
    size_t kind = lot(6), size = lot(sizes.size());
    if (kind == 0)
      recipe.rule[size] = lot(Recipe::rules);
    else if (kind == 1)
      recipe.backwards = !recipe.backwards;
    else if (kind == 2)
      std::swap(recipe.order[size], recipe.order[lot(sizes.size())]);
    else
      recipe.lanes[size] = std::clamp<int64_t>(recipe.lanes[size] + (lot(2) ? 1 : -1), 0, most[size]);
  }
  return recipe;
}

SlotLayout Improver::sweep(const Recipe &recipe) {
  std::vector<SmallVector<int64_t, 8>> lanes(sizes.size());
  int64_t height = fixed.bytes;
  for (size_t size : recipe.order)
    for (int64_t i = 0; i < recipe.lanes[size]; ++i, height += sizes[size])
      lanes[size].push_back(height);
  SlotLayout layout = fixed;
  SmallVector<Range, 64> alive, more; // by offset
  for (size_t slot : recipe.backwards ? backwards : forwards) {
    Segment segment = lives[slot].segments.front();
    int64_t begin = recipe.backwards ? -segment.last : segment.first;
    int64_t end = recipe.backwards ? -segment.first : segment.last;
    llvm::erase_if(alive, [&](const Range &range) { return range.until < begin; });
    ArrayRef<Range> taken = alive;
    if (!around[slot].empty()) {
      more.resize(alive.size() + around[slot].size());
      std::merge(alive.begin(), alive.end(), around[slot].begin(), around[slot].end(), more.begin());
      taken = more;
    }
    work -= static_cast<int64_t>(taken.size()) + 10;
    if (work < least) {
      layout.bytes = std::numeric_limits<int64_t>::max();
      return layout;
    }
    int64_t offset = placeFor(slot, taken, lanes[sizeOf[slot]], recipe.rule[sizeOf[slot]]);
    Range placed = {offset, offset + lives[slot].bytes, end};
    alive.insert(llvm::upper_bound(alive, placed), placed);
    layout.offsets[slot] = offset;
    layout.bytes = std::max(layout.bytes, placed.end);
  }
  return layout;
}

/// The place is in a free lane of the slot's size: the lowest lane, or the one in the tightest gap. Without such a lane
/// it is at one end of the tightest or the lowest gap.
int64_t Improver::placeFor(size_t slot, ArrayRef<Range> taken, ArrayRef<int64_t> lanes, unsigned rule) {
  constexpr int64_t open = std::numeric_limits<int64_t>::max() / 2;
  int64_t bytes = lives[slot].bytes, last = bottom, chosen = -1, least = std::numeric_limits<int64_t>::max();
  gaps.resize_for_overwrite(taken.size() + 1);
  size_t count = 0;
  for (const Range &range : taken) { // without branches: most of the time goes here
    gaps[count] = {last, range.begin};
    count += range.begin > last;
    last = std::max(last, range.end);
  }
  gaps[count] = {last, open};
  gaps.truncate(count + 1);
  auto widthOf = [&](Gap gap) { return (gap.end == open ? std::max(room, gap.begin) : gap.end) - gap.begin; };
  auto choose = [&](int64_t offset, int64_t cost) {
    if (cost >= least)
      return;
    least = cost;
    chosen = offset;
  };
  size_t after = 0; // the first gap behind a lane: both lie in the order of their offsets
  for (int64_t lane : rule &Recipe::noLanes ? ArrayRef<int64_t>() : lanes) {
    while (after < gaps.size() && gaps[after].begin <= lane)
      ++after;
    if (after == 0 || lane + bytes > gaps[after - 1].end)
      continue;
    if (rule & Recipe::lowestLane)
      return lane;
    choose(lane, widthOf(gaps[after - 1]));
  }
  if (chosen >= 0)
    return chosen;
  for (const Gap &gap : gaps)
    if (int64_t width = widthOf(gap); width >= bytes) {
      int64_t offset = rule & Recipe::highEnd ? gap.begin + width - bytes : gap.begin;
      if (rule & Recipe::firstGap)
        return offset;
      choose(offset, width);
    }
  return chosen >= 0 ? chosen : last;
}

SlotLayout pp::improvePlan(ArrayRef<SlotLife> lives, int64_t bound, SlotLayout first, int64_t enough, int64_t work) {
  return Improver(lives, bound, work).run(std::move(first), enough);
}
