// Chooses turns by a search over all orders of both bodies, and runs given turns, with one stream of computation.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/costs/Interleave.h"
#include "dialect/nn/Bytes.h"
#include "dialect/pipeline/Pipeline.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include <array>

using namespace mlir;
using namespace pp;

namespace {

/// Two bodies while they run.
class Machine {
public:
  Machine(ArrayRef<OpTime> first, ArrayRef<OpTime> second) : ops{first, second} {}

  /// Whether the next op of this body runs while the body's own message is under way.
  bool overlaps(int body) const { return next[body] < ops[body].size() && ops[body][next[body]].overlaps; }

  void wait(int body) { now = std::max(now, there[body]); }
  void runNext(int body) {
    if (!overlaps(body))
      wait(body);
    if (next[body] == 0)
      times.begin[body] = now;
    const OpTime &op = ops[body][next[body]++];
    now += op.compute;
    times.end[body] = std::max(now, there[body]);
    if (!op.axes)
      return;
    double &link = free[op.axes];
    link = std::max(link, now) + op.transfer;
    times.end[body] = there[body] = link + op.latency;
  }

  ArrayRef<OpTime> ops[2];
  size_t next[2] = {0, 0};
  double now = 0, there[2] = {0, 0}; ///< when the body's last message has come
  DenseMap<Attribute, double> free;  ///< of the links of these axes
  BesideTimes times;
};

/// Finds turns among all orders in which both bodies can run: by how many ops each has run, the few best ways to come
/// there. One is better if it is not later in anything that counts for what follows.
class TurnSearch {
public:
  TurnSearch(ArrayRef<OpTime> first, ArrayRef<OpTime> second)
      : ops{first, second}, width(second.size() + 1), most((first.size() + 1) * width <= 100'000     ? 8
                                                           : (first.size() + 1) * width <= 2'000'000 ? 3
                                                                                                     : 1) {
    for (int body : {0, 1}) {
      size_t count = ops[body].size();
      compute[body].assign(count + 1, 0);
      for (size_t i = count; i-- > 0;)
        compute[body][i] = compute[body][i + 1] + ops[body][i].compute;
      for (size_t i = 0; i <= count; ++i)
        alone[body].push_back(runAlone(ops[body].drop_front(i)));
      for (const OpTime &op : ops[body])
        if (op.axes)
          links.try_emplace(op.axes, std::min<size_t>(links.size(), kLinks - 1));
    }
  }

  SmallVector<int64_t> run() {
    steps.resize((ops[0].size() + 1) * width);
    std::vector<Ways> above(width), row(width);
    for (size_t i = 0; i <= ops[0].size(); ++i, std::swap(above, row))
      for (size_t j = 0; j < width; ++j) {
        Ways &ways = row[j];
        ways.clear();
        if (i == 0 && j == 0)
          ways.push_back({});
        if (j > 0) // of two that are alike the first stays: the first body begins
          come(row[j - 1], 1, i, j, ways);
        if (i > 0)
          come(above[j], 0, i, j, ways);
        for (const Way &way : ways)
          steps[i * width + j].push_back(way.step);
      }
    return turnsOf(above.back());
  }

private:
  static constexpr size_t kLinks = 4;
  struct Step {
    uint8_t body = 0, before = 0; ///< whose op came last, and which of the ways to come to the op before it
  };
  struct Way {
    double now = 0, there[2] = {0, 0};
    std::array<double, kLinks> free = {};
    double least = 0; ///< a bound of the time at the end
    Step step;

    bool isNoWorseThan(const Way &other) const {
      return now <= other.now && there[0] <= other.there[0] && there[1] <= other.there[1] &&
             llvm::all_of_zip(free, other.free, [](double a, double b) { return a <= b; });
    }
  };
  using Ways = SmallVector<Way, 8>;

  /// Adds the ways that run the last op of one body behind those before it.
  void come(const Ways &before, int body, size_t i, size_t j, Ways &ways) const {
    const OpTime &op = ops[body][(body == 0 ? i : j) - 1];
    for (auto [number, from] : llvm::enumerate(before)) {
      Way way = from;
      way.now = (op.overlaps ? way.now : std::max(way.now, way.there[body])) + op.compute;
      if (op.axes) {
        double &link = way.free[links.lookup(op.axes)];
        link = std::max(link, way.now) + op.transfer;
        way.there[body] = link + op.latency;
      }
      way.step = {static_cast<uint8_t>(body), static_cast<uint8_t>(number)};
      way.least = std::max({way.now + compute[0][i] + compute[1][j], boundOf(way, 0, i), boundOf(way, 1, j)});
      add(way, ways);
    }
  }

  double boundOf(const Way &way, int body, size_t next) const {
    bool waits = next == ops[body].size() || !ops[body][next].overlaps;
    return std::max({waits ? std::max(way.now, way.there[body]) + alone[body][next] : 0, way.now + alone[body][next],
                     way.there[body]});
  }

  void add(const Way &way, Ways &ways) const {
    if (llvm::any_of(ways, [&](const Way &other) { return other.isNoWorseThan(way); }))
      return;
    llvm::erase_if(ways, [&](const Way &other) { return way.isNoWorseThan(other); });
    auto isBefore = [](const Way &a, const Way &b) { return std::pair(a.least, a.now) < std::pair(b.least, b.now); };
    ways.insert(llvm::upper_bound(ways, way, isBefore), way);
    if (ways.size() > most)
      ways.pop_back();
  }

  /// The turns of the way that ends first.
  SmallVector<int64_t> turnsOf(const Ways &ends) const {
    auto endOf = [](const Way &way) { return std::max({way.now, way.there[0], way.there[1]}); };
    size_t number = 0, left[2] = {ops[0].size(), ops[1].size()};
    for (size_t i = 1; i < ends.size(); ++i)
      if (endOf(ends[i]) < endOf(ends[number]))
        number = i;
    SmallVector<int> order;
    while (left[0] + left[1] > 0) {
      Step step = steps[left[0] * width + left[1]][number];
      order.push_back(step.body);
      --left[step.body];
      number = step.before;
    }
    SmallVector<int64_t> turns = {0};
    for (int body : llvm::reverse(order)) {
      if (static_cast<int>(turns.size() - 1) % 2 != body)
        turns.push_back(0);
      ++turns.back();
    }
    if (!order.empty() && endsUnderWay(1 - order.front()))
      turns.push_back(0); // it waits behind the other's last op, and not before
    return turns;
  }

  bool endsUnderWay(int body) const {
    auto rest = llvm::reverse(ops[body]);
    auto last = llvm::find_if(rest, [](const OpTime &op) { return op.axes || !op.overlaps; });
    return last != rest.end() && last->axes;
  }

  ArrayRef<OpTime> ops[2];
  size_t width, most;
  SmallVector<double> compute[2], alone[2]; ///< of what is left, by the number of ops that have run
  llvm::DenseMap<Attribute, size_t> links;
  std::vector<SmallVector<Step, 8>> steps; ///< of each way, by the numbers of ops that have run
};

} // namespace

BesideTimes pp::runInTurns(ArrayRef<int64_t> turns, ArrayRef<OpTime> first, ArrayRef<OpTime> second) {
  Machine machine(first, second);
  for (auto [i, count] : llvm::enumerate(turns)) {
    int body = static_cast<int>(i % 2);
    for (int64_t op = 0; op < count; ++op)
      machine.runNext(body);
    if (i + 2 >= turns.size()) // its last turn
      machine.wait(body);
  }
  return machine.times;
}

double pp::runAlone(ArrayRef<OpTime> ops) { return runInTurns({static_cast<int64_t>(ops.size())}, ops, {}).length(); }

SmallVector<int64_t> pp::chooseTurns(ArrayRef<OpTime> first, ArrayRef<OpTime> second) {
  SmallVector<int64_t> after = {static_cast<int64_t>(first.size()), static_cast<int64_t>(second.size())};
  SmallVector<int64_t> turns = TurnSearch(first, second).run();
  bool gains = runInTurns(turns, first, second).length() < runInTurns(after, first, second).length() * (1 - 1e-9);
  return gains ? turns : after;
}

SmallVector<OpTime> pp::guessedTimes(func::FuncOp body) {
  constexpr double flopsPerByte = 16;
  SmallVector<OpTime> times;
  for (Operation &op : body.front().without_terminator()) {
    OpTime &time = times.emplace_back();
    time.overlaps = op.hasAttr(pipeline::kOverlapsAttr);
    if (auto exchange = dyn_cast<nn::Exchange>(op)) {
      time.transfer = 1;
      time.axes = op.getAttr("axes") ? op.getAttr("axes") : Attribute(UnitAttr::get(op.getContext()));
    } else if (auto kernel = dyn_cast<nn::Kernel>(op)) {
      time.compute = kernel.flops() + flopsPerByte * static_cast<double>(nn::bytesOf(kernel));
    }
  }
  return times;
}

void pp::scaleMessages(ArrayRef<SmallVector<OpTime> *> bodies) {
  double compute = 0, messages = 0;
  for (const SmallVector<OpTime> *times : bodies)
    for (const OpTime &time : *times) {
      compute += time.compute;
      messages += time.transfer;
    }
  for (SmallVector<OpTime> *times : bodies)
    for (OpTime &time : *times)
      time.transfer *= messages > 0 ? compute / messages : 0;
}
