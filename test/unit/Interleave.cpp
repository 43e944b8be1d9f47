// The turns of two bodies side by side: cases done by hand, bounds that always hold, small ones against every merge.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/costs/Interleave.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/MLIRContext.h"
#include <gtest/gtest.h>
#include <numeric>
#include <random>

using namespace mlir;
using namespace pp;

namespace {

class Interleave : public testing::Test {
protected:
  MLIRContext context;
  OpTime compute(double seconds) { return {seconds, 0, 0, {}}; }
  OpTime beside(double seconds) { return {seconds, 0, 0, {}, true}; }
  OpTime message(double transfer, double latency = 0) { return {0, transfer, latency, UnitAttr::get(&context)}; }
  using Body = SmallVector<OpTime>;
  double lengthOf(const Body &first, const Body &second) {
    return runInTurns(chooseTurns(first, second), first, second).length();
  }
};

/// All merges of two bodies, each as its turns, and the shortest of them.
double shortest(ArrayRef<OpTime> first, ArrayRef<OpTime> second) {
  double best = 1e9;
  size_t all = first.size() + second.size();
  for (unsigned set = 0; set < 1u << all; ++set) {
    if (static_cast<size_t>(__builtin_popcount(set)) != first.size())
      continue;
    SmallVector<int64_t> turns = {0};
    for (size_t i = 0; i < all; ++i) {
      size_t body = (set >> i & 1) ? 0 : 1;
      if ((turns.size() - 1) % 2 != body)
        turns.push_back(0);
      ++turns.back();
    }
    for (int more = 0; more < 3; ++more, turns.push_back(0)) // at the end turns that only wait
      best = std::min(best, runInTurns(turns, first, second).length());
  }
  return best;
}

} // namespace

// Each computes 3 times 1 s with a message of 1 s after the first and the second time: all are hidden.
TEST_F(Interleave, MessagesOfBothHideBehindTheOther) {
  Body body = {compute(1), message(1), compute(1), message(1), compute(1)};
  EXPECT_DOUBLE_EQ(runInTurns({5, 5}, body, body).length(), 10);
  EXPECT_DOUBLE_EQ(lengthOf(body, body), 6);
}

TEST_F(Interleave, WithoutMessagesOneRunsAfterTheOther) {
  Body first = {compute(1), compute(2)}, second = {compute(3)};
  EXPECT_EQ(chooseTurns(first, second), (SmallVector<int64_t>{2, 1}));
}

// The wait for a body's last message has its own turn, behind the ops that the other body computes meanwhile.
TEST_F(Interleave, TheLastMessageIsHiddenToo) {
  Body first = {compute(2), message(2)}, second = {compute(2)};
  EXPECT_DOUBLE_EQ(runInTurns({2, 1}, first, second).length(), 6);
  EXPECT_EQ(chooseTurns(first, second), (SmallVector<int64_t>{2, 1, 0}));
  BesideTimes times = runInTurns({2, 1, 0}, first, second);
  EXPECT_DOUBLE_EQ(times.end[0], 4);
  EXPECT_DOUBLE_EQ(times.begin[1], 2);
  EXPECT_DOUBLE_EQ(times.end[1], 4);
}

// Links carry one message at a time; what is only on its way does not hold them.
TEST_F(Interleave, MessagesShareLinksAndNotTheirWay) {
  Body transfers = {message(2), compute(0)}, waits = {message(0, 2), compute(0)};
  EXPECT_DOUBLE_EQ(runInTurns({1, 1, 1, 1}, transfers, transfers).length(), 4);
  EXPECT_DOUBLE_EQ(runInTurns({1, 1, 1, 1}, waits, waits).length(), 2);
}

// The second has a message at once, and nothing to do before: it begins.
TEST_F(Interleave, WhoSendsFirstBegins) {
  Body first = {compute(3)}, second = {message(3), compute(1)};
  EXPECT_EQ(chooseTurns(first, second), (SmallVector<int64_t>{0, 1, 1, 1}));
  EXPECT_DOUBLE_EQ(lengthOf(first, second), 4);
}

// The body computes 2 s while its message is under way; an end waits for it, too.
TEST_F(Interleave, AnOpThatOverlapsRunsWhileItsBodysMessageIsUnderWay) {
  Body body = {compute(1), message(2), beside(2), compute(1)};
  EXPECT_DOUBLE_EQ(runAlone(body), 4);
  EXPECT_DOUBLE_EQ(runAlone({compute(1), message(2), compute(2), compute(1)}), 6);
  EXPECT_DOUBLE_EQ(runAlone({message(3), beside(1)}), 3);
}

// All messages but the last are hidden: 30 + 30 s of computation, and 1 s behind it.
TEST_F(Interleave, LongBodiesInTurnHideAllButTheLastMessage) {
  Body body;
  for (int i = 0; i < 30; ++i)
    body.append({compute(1), message(1)});
  EXPECT_DOUBLE_EQ(lengthOf(body, body), 61);
}

TEST_F(Interleave, DrawnBodiesRunAsInTheBestMerge) {
  std::mt19937 random(5);
  constexpr int cases = 300;
  for (int i = 0; i < cases; ++i) {
    Body bodies[2];
    double computed = 0;
    int64_t sizes[2];
    for (int body : {0, 1}) {
      for (size_t left = 1 + random() % 5; left > 0; --left) {
        auto seconds = static_cast<double>(1 + random() % 9);
        const OpTime drawn[] = {compute(seconds), message(seconds), message(0, seconds), beside(seconds)};
        bodies[body].push_back(drawn[random() % 4]);
        computed += bodies[body].back().compute;
      }
      sizes[body] = static_cast<int64_t>(bodies[body].size());
    }
    SmallVector<int64_t> turns = chooseTurns(bodies[0], bodies[1]);
    int64_t run[2] = {0, 0};
    for (size_t turn = 0; turn < turns.size(); ++turn)
      run[turn % 2] += turns[turn];
    EXPECT_EQ(run[0], sizes[0]);
    EXPECT_EQ(run[1], sizes[1]);
    double length = runInTurns(turns, bodies[0], bodies[1]).length(), best = shortest(bodies[0], bodies[1]);
    EXPECT_GE(length, std::max({runAlone(bodies[0]), runAlone(bodies[1]), computed}) - 1e-9);
    EXPECT_NEAR(length, best, 1e-9);
  }
}
