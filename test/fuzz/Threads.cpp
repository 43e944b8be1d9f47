// The same code on the runtime's transport between threads: the executor must agree with what is shipped.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/Op.h"
#include "runtime/transport/Transport.h"
#include "test/fuzz/Run.h"
#include <algorithm>
#include <cstdlib>
#include <thread>

namespace pp::fuzz {
namespace {

/// One rank, in its own thread from `prepare` on.
struct RankThread {
  const Code &code;
  const RankCode &rank;
  const std::vector<OpSpec> &ops;
  const Reference &reference;
  std::shared_ptr<Meeting> meeting;
  std::shared_ptr<char> arena; ///< this and the transport until all have left: a peer may still copy, or meet a message
  std::shared_ptr<Transport> transport;
  Outcome outcome = {};
  std::vector<Losses> losses = std::vector<Losses>(size_t(kSteps));

  void run() {
    Status status = runSteps(*transport);
    leave(*meeting, rank.tables.rank, status);
    if (!status.ok() && outcome.truth == Truth::Clean)
      outcome = {status.code() == PP_PEER ? Truth::Hang : Truth::Fault, status.message()};
  }

  Status runSteps(Transport &transport) {
    std::unique_ptr<Kernels> kernels;
    std::string why;
    if (Kernels::prepare(ops, kernels, why) != PP_OK)
      return internal(why);
    pp_rank_t state;
    state.rank = rank.tables.rank;
    state.ranks = int32_t(code.ranks.size());
    state.kernels = kernels.get();
    PP_TRY(transport.prepare(rank.tables));
    for (int64_t step = 0; step < kSteps; ++step) {
      fillInputs(code.program, rank.tables, step, reference.data, arena.get());
      state.optimizer = scalarsOf(step);
      for (const Step &each : rank.steps)
        PP_TRY(runStep(each, state, transport, arena.get()));
      PP_TRY(transport.sum({}));
      if (outcome.truth == Truth::Clean)
        outcome = compare(rank.tables, arena.get(), reference, step);
      addLosses(rank.tables, arena.get(), losses[size_t(step)]);
      if (transport.outstanding() != 0)
        return internal("a message was posted and never completed");
    }
    return {};
  }

  Status runStep(const Step &step, pp_rank_t &state, Transport &transport, char *arena) {
    pp_status_t status = PP_OK;
    if (step.kind == Step::Kind::Send)
      status = transport.postSend(state, step.message, arena + step.offset);
    else if (step.kind == Step::Kind::Receive)
      status = transport.postReceive(state, step.message, arena + step.offset);
    else if (step.kind == Step::Kind::Joint)
      status = transport.postCollective(state, step.message, arena + step.offset,
                                        step.shard < 0 ? nullptr : arena + step.shard);
    else if (step.kind == Step::Kind::Complete)
      status = transport.complete(state, step.message);
    for (const KernelCall &call : step.body ? *step.body : BodyCode()) {
      const PreparedOp *op = state.kernels->find(call.op);
      KernelArguments arguments(*op, call, step, arena, &state.optimizer);
      if (status == PP_OK)
        status = op->body(*op, arguments.values);
    }
    if (status == PP_OK)
      for (Range range : step.dead)
        poison(arena + range.begin, range.end - range.begin);
    return status == PP_OK ? Status() : Status(status, state.message);
  }
};

} // namespace

Outcome runThreads(const Code &code, const std::vector<OpSpec> &ops, const Reference &reference) {
  TransportOptions options;
  options.sends = Sends::Rendezvous;
  auto meeting = makeMeeting(int32_t(code.ranks.size()), options);
  std::vector<RankThread> ranks;
  for (const RankCode &rank : code.ranks) {
    size_t bytes = size_t(std::max<int64_t>(64, (rank.tables.arenaBytes + 63) / 64 * 64));
    std::shared_ptr<char> arena(static_cast<char *>(std::aligned_alloc(64, bytes)), &std::free);
    poison(arena.get(), int64_t(bytes));
    ranks.push_back({code, rank, ops, reference, meeting, arena, makeThreadTransport(meeting, rank.tables.rank)});
  }
  std::vector<std::thread> threads;
  for (RankThread &rank : ranks)
    threads.emplace_back([&rank] { rank.run(); });
  for (std::thread &thread : threads)
    thread.join();
  for (const RankThread &rank : ranks)
    if (rank.outcome.truth != Truth::Clean)
      return rank.outcome;
  for (int64_t step = 0; step < kSteps; ++step) {
    Losses sums;
    for (const RankThread &rank : ranks)
      for (auto &[name, loss] : rank.losses[size_t(step)])
        sums[name] += loss;
    if (Outcome outcome = compareLosses(sums, reference, step); outcome.truth != Truth::Clean)
      return outcome;
  }
  return {};
}

} // namespace pp::fuzz
