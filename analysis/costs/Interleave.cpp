// Chooses turns by running both bodies greedily, and runs given turns, with one stream of computation and messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/costs/Interleave.h"
#include "llvm/ADT/DenseMap.h"

using namespace mlir;
using namespace pp;

namespace {

/// Two bodies while they run.
class Machine {
public:
  Machine(ArrayRef<OpTime> first, ArrayRef<OpTime> second) : ops{first, second} {}

  bool isDone(int body) const { return next[body] == ops[body].size() && there[body] <= now; }
  /// Its next op need not wait.
  bool isReady(int body) const { return there[body] <= now; }

  void wait(int body) { now = std::max(now, there[body]); }
  void runNext(int body) {
    wait(body);
    if (next[body] == 0)
      times.begin[body] = now;
    const OpTime &op = ops[body][next[body]++];
    now += op.compute;
    times.end[body] = now;
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

class Chooser {
public:
  Chooser(ArrayRef<OpTime> first, ArrayRef<OpTime> second, int begins) : machine(first, second), current(begins) {
    for (int body : {0, 1})
      for (const OpTime &op : machine.ops[body])
        left[body] += op.all();
  }

  SmallVector<int64_t> run() {
    turns = {0};
    while (!machine.isDone(0) || !machine.isDone(1)) {
      choose();
      if ((static_cast<int>(turns.size()) - 1) % 2 != current)
        turns.push_back(0);
      machine.wait(current);
      if (machine.next[current] == machine.ops[current].size())
        continue; // a turn, or the end of one, that waits
      const OpTime &op = machine.ops[current][machine.next[current]];
      left[current] -= op.all();
      waited[current] = op.axes != Attribute();
      machine.runNext(current);
      ++turns.back();
    }
    if (waited[1 - current]) // behind what the other has computed, and not before
      turns.push_back(0);
    return turns;
  }

private:
  void choose() {
    int other = 1 - current;
    bool isOver = machine.isDone(current);
    if (machine.isDone(other) && !isOver)
      return;
    bool isReady = !isOver && machine.isReady(current), canChange = machine.isReady(other);
    bool sends = isReady && machine.next[current] < machine.ops[current].size() &&
                 machine.ops[current][machine.next[current]].axes; // which takes none of its time
    bool comesBack = canChange && waited[other] && left[other] > left[current] && !sends;
    if (isOver || (!isReady && (canChange || machine.there[other] < machine.there[current])) || comesBack)
      current = other;
  }

  Machine machine;
  int current;
  double left[2] = {0, 0};
  bool waited[2] = {false, false}; ///< its last op was a message
  SmallVector<int64_t> turns;
};

} // namespace

BesideTimes pp::runInTurns(ArrayRef<int64_t> turns, ArrayRef<OpTime> first, ArrayRef<OpTime> second) {
  Machine machine(first, second);
  for (auto [i, count] : llvm::enumerate(turns)) {
    int body = static_cast<int>(i % 2);
    machine.wait(body); // for what it has sent, before anything else of its own
    for (int64_t op = 0; op < count; ++op)
      machine.runNext(body);
    if (i + 2 >= turns.size()) // its last turn
      machine.wait(body);
  }
  return machine.times;
}

SmallVector<int64_t> pp::chooseTurns(ArrayRef<OpTime> first, ArrayRef<OpTime> second) {
  SmallVector<int64_t> best = {static_cast<int64_t>(first.size()), static_cast<int64_t>(second.size())};
  double length = runInTurns(best, first, second).length();
  for (int begins : {0, 1}) {
    SmallVector<int64_t> turns = Chooser(first, second, begins).run();
    double its = runInTurns(turns, first, second).length();
    if (its < length * (1 - 1e-9)) {
      best = turns;
      length = its;
    }
  }
  return best;
}
