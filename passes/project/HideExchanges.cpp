// Orders the ops of a body so that what it exchanges is on its way while it computes something else.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: %dw = linear_dw %x, %dy   %dx = linear_dx %dy, %w   %s = all_reduce %dx   %dg = norm_bwd %s
// After:  %dx = linear_dx %dy, %w   %s = all_reduce %dx       %dw = linear_dw ..    %dg = norm_bwd %s
//
// A list schedule with one stream of computation and one message at a time. Messages keep their order and leave as soon
// as they can. What a message does not need is held back for it, but no more of it than the message takes: what is held
// back keeps its operands in memory. Nothing passes the next message, for what is made early keeps its result in
// memory. All else keeps its order. Times are those of the program's cluster; without one a body's messages take as
// long together as it computes.
#include "analysis/costs/Costs.h"
#include "mlir/IR/SymbolTable.h"
#include "passes/Passes.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallBitVector.h"

namespace pp {
#define GEN_PASS_DEF_HIDEEXCHANGES
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// The ops of one body while they are put in order.
class BodyOrder {
public:
  BodyOrder(Block &block, ArrayRef<OpTime> times) : block(block), times(times) {
    for (Operation &op : block.without_terminator()) {
      numbers[&op] = ops.size();
      ops.push_back(&op);
    }
    size_t count = ops.size();
    before.assign(count, {});
    for (size_t i = 0; i < count; ++i)
      addEdges(i);
    feeds.assign(count, llvm::SmallBitVector(messages.size()));
    for (size_t m = 0; m < messages.size(); ++m)
      markFeeds(m);
    isDone.resize(count);
  }

  void run() {
    SmallVector<Operation *> order;
    while (order.size() < ops.size()) {
      size_t next = choose();
      isDone.set(next);
      order.push_back(ops[next]);
      if (times[next].axes) {
        there = now + times[next].transfer + times[next].latency;
        underWay = next;
        ++nextMessage;
      } else {
        if (needsMessage(next))
          land();
        now += times[next].compute;
      }
    }
    for (Operation *op : order)
      op->moveBefore(block.getTerminator());
  }

private:
  void addEdges(size_t i) {
    for (Value operand : ops[i]->getOperands())
      if (auto made = numbers.find(operand.getDefiningOp()); made != numbers.end())
        before[i].push_back(made->second);
    if (auto inPlace = dyn_cast<nn::InPlace>(ops[i])) // what it writes over was read by all others
      for (nn::Tie tie : inPlace.getRequiredTies())
        addReaders(i, ops[i]->getOperand(tie.operand));
    if (times[i].axes)
      messages.push_back(i);
  }

  /// Ops that read memory of the value before op i stay before it, also through views of the value or of the value it
  /// views.
  void addReaders(size_t i, Value value) {
    for (Operation *reader : nn::readersOf(value))
      if (auto other = numbers.find(reader); other != numbers.end() && other->second < i)
        before[i].push_back(other->second);
    if (auto op = value.getDefiningOp<nn::View>())
      for (Value operand : op->getOperands())
        addReaders(i, operand);
  }

  /// Marks what the message needs.
  void markFeeds(size_t message) {
    SmallVector<size_t> todo = {messages[message]};
    while (!todo.empty())
      for (size_t made : before[todo.pop_back_val()])
        if (!feeds[made].test(message)) {
          feeds[made].set(message);
          todo.push_back(made);
        }
  }

  bool isReady(size_t i) const {
    return !isDone.test(i) && llvm::all_of(before[i], [&](size_t made) { return isDone.test(made); });
  }
  bool needsMessage(size_t i) const { return underWay && llvm::is_contained(before[i], *underWay); }
  void land() {
    now = std::max(now, there);
    underWay.reset();
  }

  /// The time of the ops that stand before the message, do not feed it, and are not done.
  double heldFor(size_t message) const {
    double held = 0;
    for (size_t i = 0; i < messages[message]; ++i)
      if (!isDone.test(i) && !feeds[i].test(message))
        held += times[i].compute;
    return held;
  }

  size_t choose() {
    if (underWay && now >= there)
      land();
    bool sends = nextMessage < messages.size();
    if (sends && !underWay && isReady(messages[nextMessage]))
      return messages[nextMessage];
    std::optional<size_t> blocked;
    double held = sends && !underWay ? heldFor(nextMessage) : 0;
    double most = sends ? times[messages[nextMessage]].transfer + times[messages[nextMessage]].latency : 0;
    for (size_t i = 0, end = sends ? messages[nextMessage] : ops.size(); i < end; ++i) {
      if (times[i].axes || !isReady(i))
        continue;
      bool waits = needsMessage(i);
      bool holds = !waits && sends && !underWay && !feeds[i].test(nextMessage) && held - times[i].compute < most;
      if (!waits && !holds)
        return i;
      blocked = blocked ? blocked : i;
    }
    if (underWay && sends && isReady(messages[nextMessage])) { // one at a time
      land();
      return messages[nextMessage];
    }
    return *blocked;
  }

  Block &block;
  ArrayRef<OpTime> times;
  SmallVector<Operation *> ops;
  DenseMap<Operation *, size_t> numbers;
  std::vector<SmallVector<size_t, 4>> before; ///< what an op needs
  SmallVector<size_t> messages;
  std::vector<llvm::SmallBitVector> feeds; ///< by op: the messages that need it
  llvm::BitVector isDone;
  size_t nextMessage = 0;
  std::optional<size_t> underWay;
  double now = 0, there = 0;
};

struct HideExchanges : public pp::impl::HideExchangesBase<HideExchanges> {
  void runOnPrograms() override {
    SymbolTable symbols(getOperation());
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (!program.getMeshAttr())
        continue;
      std::unique_ptr<CostModel> costs;
      if (program.getClusterAttr() && !(costs = makeClusterCosts(program, /*experts=*/"")))
        return signalPassFailure();
      DenseSet<Attribute> seen;
      for (auto task : program.getBody().front().getOps<TaskOp>()) {
        auto body = symbols.lookup<func::FuncOp>(task.getCallee());
        if (!seen.insert(task.getCalleeAttr()).second || !body || body.empty() || !exchanges(body))
          continue;
        SmallVector<OpTime> times =
            costs ? costs->opTimes(task.getRanks().front(), body.getName()) : guessedTimes(body);
        if (!costs)
          scaleMessages({&times});
        BodyOrder(body.front(), times).run();
      }
    }
  }

  static bool exchanges(func::FuncOp body) { return !body.front().getOps<nn::Exchange>().empty(); }
};

} // namespace
