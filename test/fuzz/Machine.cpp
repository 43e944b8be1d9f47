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
  char *arena = nullptr;
  Range read, target;                  ///< what the transport reads, writes
  bool taken = false, written = false; ///< it has
  std::vector<double> contents;        ///< what it has read
  Message *message = nullptr;
};

struct Machine::Message {
  std::deque<End> ends;
  size_t expected = 2;
  std::pair<int, int64_t> joint;
  std::vector<int64_t> cuts;
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

KernelArguments::KernelArguments(const PreparedOp &op, const KernelCall &call, const Step &step, char *arena,
                                 const void *scalars) {
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
  auto place = [&](size_t list, KeyList &its, size_t q) {
    values[list] = const_cast<void **>(its.of(&op, values[q], static_cast<void *const *>(values[list])));
  };
  if (op.kernel == Kernel::attention)
    place(1, keys, 0);
  if (op.kernel == Kernel::attention_bwd) {
    place(4, keys, 1);
    place(6, gradients, 5);
  }
}

void Machine::launch(size_t rank, const Step &step) {
  for (const KernelCall &call : *step.body) {
    const PreparedOp *op = kernels.find(call.op);
    KernelArguments arguments(*op, call, step, arenas[rank], &scalars);
    scribble(rank);
    if (op->body(*op, arguments.values) != PP_OK)
      return fail(Truth::Fault, "a kernel of " + step.name + " fails");
  }
}

//===-- Messages ------------------------------------------------------------------------------------------------===//

void Machine::post(size_t rank, const Step &step) {
  int64_t self = int64_t(rank), end = self;
  std::vector<int64_t> key;
  if (step.kind == Step::Kind::Joint) {
    key = step.group;
    if (std::find(key.begin(), key.end(), self) == key.end())
      return fail(Truth::Fault, "a rank joins a collective of others");
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
  if (message.joint != step.joint || message.cuts != step.cuts)
    return fail(Truth::Fault, "`" + step.name + "` is another collective for one of its members");
  message.ends.push_back({rank, arenas[rank], step.read, step.written, false, false, {}, &message});
  requests[rank][step.message] = &message.ends.back();
  if (message.reads == Message::When::Post)
    take(message.ends.back());
  if (message.isMet())
    meet(message);
}

void Machine::open(Message &message, const Step &step) {
  using When = Message::When;
  message.expected = step.kind == Step::Kind::Joint ? step.group.size() : 2;
  message.joint = step.joint;
  message.cuts = step.cuts;
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
    if (!end->written && end->message->writes == Message::When::Complete && (end->taken || end->read.bytes() == 0))
      poison(end->arena + end->target.begin, end->target.bytes());
}

void Machine::take(End &end) {
  if (end.read.bytes() == 0 || end.taken)
    return;
  scribble(end.rank);
  end.taken = true;
  end.contents.resize(size_t(end.read.bytes() + 7) / 8);
  memcpy(end.contents.data(), end.arena + end.read.begin, size_t(end.read.bytes()));
}

void Machine::meet(Message &message) {
  blocked.assign(blocked.size(), false);
  auto bytesOf = [](const End &end) { return std::max(end.read.bytes(), end.target.bytes()); };
  for (const End &end : message.ends)
    if (bytesOf(end) != bytesOf(message.ends.front()))
      return fail(Truth::Fault, "a message of " + std::to_string(bytesOf(message.ends.front())) +
                                    " bytes meets one of " + std::to_string(bytesOf(end)));
  if (message.reads == Message::When::Meet)
    for (End &end : message.ends)
      take(end);
  if (message.writes == Message::When::Meet)
    for (End &end : message.ends)
      message.write(end);
}

/// Writes what was sent, or all shards one after the other, or the sum of all terms in the order of the ranks. Of a sum
/// it writes the range for which this end has room.
void Machine::Message::write(End &end) {
  if (end.target.bytes() == 0 || end.written)
    return;
  end.written = true;
  std::vector<End *> sources;
  for (End &source : ends)
    if (source.read.bytes() > 0)
      sources.push_back(&source);
  std::sort(sources.begin(), sources.end(), [](End *a, End *b) { return a->rank < b->rank; });
  char *target = end.arena + end.target.begin;
  if (!cuts.empty() && end.target.bytes() > end.read.bytes()) {
    for (size_t k = 0; k < sources.size(); ++k) {
      auto *shard = reinterpret_cast<const char *>(sources[k]->contents.data());
      for (size_t piece = k; piece + 1 < cuts.size(); shard += cuts[piece + 1] - cuts[piece], piece += sources.size())
        memcpy(target + cuts[piece], shard, size_t(cuts[piece + 1] - cuts[piece]));
    }
    return;
  }
  size_t first = 0;
  while (!cuts.empty() && sources[first] != &end)
    ++first;
  std::vector<double> sum = sources.front()->contents;
  for (size_t k = 1; k < sources.size(); ++k)
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] += sources[k]->contents[i];
  auto *whole = reinterpret_cast<const char *>(sum.data());
  if (cuts.empty())
    memcpy(target, whole, size_t(end.target.bytes()));
  for (size_t piece = first; piece + 1 < cuts.size(); target += cuts[piece + 1] - cuts[piece], piece += sources.size())
    memcpy(target, whole + cuts[piece], size_t(cuts[piece + 1] - cuts[piece]));
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
