// The executor: draws ranks, calls kernels on addresses of their arenas, and carries messages.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/fuzz/Machine.h"
#include "runtime/kernels/Op.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>

namespace pp::fuzz {

struct Machine::End {
  size_t rank = 0;
  char *data = nullptr;
  int64_t bytes = 0;
  bool reads = false, writes = false;  ///< the transport reads, writes this memory
  bool taken = false, written = false; ///< it has
  std::vector<double> contents;        ///< what it has read
  Message *message = nullptr;
};

struct Machine::Message {
  std::deque<End> ends;
  size_t expected = 2;
  enum class When { Post, Meet, Complete } reads = When::Meet, writes = When::Meet;
  [[nodiscard]] bool isMet() const { return ends.size() == expected; }
  void write(End &end);
};

struct Machine::Lane {
  std::deque<Message> messages;
  std::map<int64_t, size_t> posted; ///< by end
};

void poison(char *begin, int64_t bytes) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (; bytes >= 8; bytes -= 8, begin += 8)
    memcpy(begin, &nan, 8);
  memset(begin, 0xff, size_t(bytes));
}

Machine::Machine(const Code &code, const Kernels &kernels, Adversary adversary, uint64_t seed)
    : code(code), kernels(kernels), adversary(adversary), dice(seed) {
  for (const RankCode &rank : code.ranks) {
    size_t bytes = size_t(std::max<int64_t>(64, (rank.tables.arenaBytes + 63) / 64 * 64));
    arenas.push_back(static_cast<char *>(std::aligned_alloc(64, bytes)));
    poison(arenas.back(), int64_t(bytes));
  }
}

Machine::~Machine() {
  for (char *arena : arenas)
    std::free(arena);
}

void Machine::fail(Truth truth, const std::string &why) {
  if (outcome.truth == Truth::Clean)
    outcome = {truth, why};
}

Outcome Machine::run(OptimizerScalars optimizer) {
  scalars = optimizer;
  outcome = {};
  lanes.clear();
  next.assign(code.ranks.size(), 0);
  blocked.assign(code.ranks.size(), false);
  requests.assign(code.ranks.size(), {});
  auto hasEnded = [&](size_t rank) { return next[rank] == code.ranks[rank].steps.size(); };
  while (outcome.truth == Truth::Clean) {
    std::vector<size_t> ready, waiting;
    for (size_t rank = 0; rank < code.ranks.size(); ++rank)
      if (!hasEnded(rank))
        (blocked[rank] ? waiting : ready).push_back(rank);
    if (ready.empty() && waiting.empty())
      break;
    if (ready.empty()) {
      fail(Truth::Hang,
           "rank " + std::to_string(waiting[0]) + " waits for ever at its step " + std::to_string(next[waiting[0]]));
      break;
    }
    size_t rank = dice.pick(ready);
    for (int64_t left = dice.between(1, 6); left > 0 && !hasEnded(rank) && !blocked[rank]; --left)
      if (step(rank); outcome.truth != Truth::Clean)
        break;
  }
  for (size_t rank = 0; rank < requests.size(); ++rank)
    if (!requests[rank].empty())
      fail(Truth::LeftOver, "rank " + std::to_string(rank) + " leaves a message open");
  return outcome;
}

void Machine::step(size_t rank) {
  const Step &step = code.ranks[rank].steps[next[rank]];
  scribble(rank);
  if (step.kind == Step::Kind::Complete) {
    if (!complete(rank, step)) {
      blocked[rank] = true;
      return;
    }
  } else if (step.kind == Step::Kind::Launch) {
    launch(rank, step);
  } else {
    post(rank, step);
  }
  for (Range range : step.dead)
    poison(arenas[rank] + range.begin, range.end - range.begin);
  ++next[rank];
}

KernelArguments::KernelArguments(const KernelCall &call, const Step &step, char *arena, const void *scalars) {
  size_t count = 0, next = 0;
  for (size_t i = 0; i < call.pointers.size(); ++i) {
    auto [slot, offset] = call.pointers[i];
    addresses[i] = slot < 0 ? nullptr : arena + step.places[size_t(slot)] + offset;
  }
  for (auto [first, length] : call.lists) {
    while (next < first)
      values[count++] = addresses[next++];
    values[count++] = addresses + first;
    next += length;
  }
  while (next < call.pointers.size())
    values[count++] = addresses[next++];
  values[count] = const_cast<void *>(scalars);
}

void Machine::launch(size_t rank, const Step &step) {
  for (const KernelCall &call : *step.body) {
    const PreparedOp *op = kernels.find(call.op);
    KernelArguments arguments(call, step, arenas[rank], &scalars);
    scribble(rank);
    if (op->body(*op, arguments.values) != PP_OK)
      return fail(Truth::Fault, "a kernel of " + step.name + " fails");
  }
}

//===-- Messages ------------------------------------------------------------------------------------------------===//

void Machine::post(size_t rank, const Step &step) {
  int64_t self = int64_t(rank), end = self;
  std::vector<int64_t> key;
  if (step.kind == Step::Kind::Sum) {
    key = step.group;
    if (std::find(key.begin(), key.end(), self) == key.end())
      return fail(Truth::Fault, "a rank joins a sum of others");
  } else {
    bool sends = step.kind == Step::Kind::Send;
    key = {-1, sends ? self : step.peer, sends ? step.peer : self};
    end = sends ? 0 : 1;
  }
  key.push_back(step.channel);
  Lane &lane = lanes[key];
  size_t number = lane.posted[end]++;
  if (lane.messages.size() <= number)
    open(lane.messages.emplace_back(), step);
  Message &message = lane.messages[number];
  bool receives = step.kind == Step::Kind::Receive, sums = step.kind == Step::Kind::Sum;
  message.ends.push_back(
      {rank, arenas[rank] + step.offset, step.bytes, !receives, receives || sums, false, false, {}, &message});
  requests[rank][step.message] = &message.ends.back();
  if (message.reads == Message::When::Post)
    take(message.ends.back());
  if (message.isMet())
    meet(message);
}

void Machine::open(Message &message, const Step &step) {
  using When = Message::When;
  message.expected = step.kind == Step::Kind::Sum ? step.group.size() : 2;
  When drawn[] = {When::Post, When::Meet, When::Complete};
  message.reads = adversary == Adversary::Early   ? When::Meet
                  : adversary == Adversary::Eager ? When::Post
                  : adversary == Adversary::Late  ? When::Complete
                                                  : dice.pick(drawn);
  bool late = adversary == Adversary::Mixed ? dice.oneIn(2) : adversary != Adversary::Early;
  message.writes = late || message.reads == When::Complete ? When::Complete : When::Meet;
}

void Machine::scribble(size_t rank) {
  for (auto &[number, end] : requests[rank])
    if (end->writes && !end->written && end->message->writes == Message::When::Complete && (end->taken || !end->reads))
      poison(end->data, end->bytes);
}

void Machine::take(End &end) {
  if (!end.reads || end.taken)
    return;
  scribble(end.rank);
  end.taken = true;
  end.contents.resize(size_t(end.bytes + 7) / 8);
  memcpy(end.contents.data(), end.data, size_t(end.bytes));
}

void Machine::meet(Message &message) {
  blocked.assign(blocked.size(), false);
  for (const End &end : message.ends)
    if (end.bytes != message.ends.front().bytes)
      return fail(Truth::Fault, "a message of " + std::to_string(message.ends.front().bytes) + " bytes meets one of " +
                                    std::to_string(end.bytes));
  if (message.reads == Message::When::Meet)
    for (End &end : message.ends)
      take(end);
  if (message.writes == Message::When::Meet)
    for (End &end : message.ends)
      message.write(end);
}

/// What was sent, or the sum in the order of the ranks.
void Machine::Message::write(End &end) {
  if (!end.writes || end.written)
    return;
  end.written = true;
  std::vector<End *> sources;
  for (End &source : ends)
    if (source.reads)
      sources.push_back(&source);
  std::sort(sources.begin(), sources.end(), [](End *a, End *b) { return a->rank < b->rank; });
  std::vector<double> sum = sources.front()->contents;
  for (size_t k = 1; k < sources.size(); ++k)
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] += sources[k]->contents[i];
  memcpy(end.data, sum.data(), size_t(end.bytes));
}

bool Machine::complete(size_t rank, const Step &step) {
  auto found = requests[rank].find(step.message);
  if (found == requests[rank].end()) {
    fail(Truth::Fault, "a message is completed twice");
    return true;
  }
  Message &message = *found->second->message;
  if (!message.isMet())
    return false;
  for (End &end : message.ends)
    take(end);
  message.write(*found->second);
  requests[rank].erase(found);
  return true;
}

} // namespace pp::fuzz
