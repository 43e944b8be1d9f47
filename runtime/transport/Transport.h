// How the messages of one rank travel: prepared before the first step, then posted and completed by number.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two kinds: `mpi` (one rank a process) and `threads` (all ranks in one process). Both take the messages of a directed
// channel in the order they are posted, sum in rank order so that every member holds the same bits, and look at a
// deadline while they wait. The calls below the line are collective and serve the time between steps.
#ifndef PP_RUNTIME_TRANSPORT_TRANSPORT_H
#define PP_RUNTIME_TRANSPORT_TRANSPORT_H

#include "runtime/Program.h"
#include "runtime/Rank.h"
#include "runtime/transport/WordSum.h"
#include <memory>
#include <optional>
#include <span>

namespace pp {

/// When a send is done. Rendezvous: not before its receive was posted (what the deadlock proof assumes).
enum class Sends : uint8_t { Plain, Buffered, Rendezvous };

struct TransportOptions {
  Sends sends = Sends::Plain;
  double timeoutSeconds = 600;
  double delaySeconds = 0; ///< threads: how long a message of a step is on its way, once all its ends are posted
};

/// Checksums of the terms of a sum, by member: of what this one gave each other one, and of what came from each.
/// Absent: nothing goes between the two.
struct SumParts {
  std::vector<std::optional<WordSum>> given, taken;
};

class Transport {
public:
  virtual ~Transport() = default;

  /// Binds the rank's messages; the four calls of a step allocate nothing afterwards but what sums are made in, within
  /// the program's `messageBytes`. Collective.
  virtual Status prepare(const RankProgram &program) = 0;

  virtual pp_status_t postSend(pp_rank_t &rank, int32_t message, const void *data) = 0;
  virtual pp_status_t postReceive(pp_rank_t &rank, int32_t message, void *data) = 0;
  /// `shard`: of a gather or scatter the rank's own range, else null.
  virtual pp_status_t postCollective(pp_rank_t &rank, int32_t message, void *data, void *shard) = 0;
  virtual pp_status_t complete(pp_rank_t &rank, int32_t message) = 0;
  /// Messages posted and not yet completed; must be 0 after a step.
  [[nodiscard]] virtual int64_t outstanding() const = 0;
  /// Bytes of messages of steps that have come from other ranks so far.
  [[nodiscard]] int64_t received() const { return receivedBytes; }

  // --- Between steps -------------------------------------------------------------------------------------------------

  virtual Status send(int32_t to, const void *data, size_t bytes) = 0;
  virtual Status receive(int32_t from, void *data, size_t bytes) = 0;
  /// Every rank gets the sum over ranks, in rank order.
  virtual Status sum(std::span<double> values) = 0;
  /// Every rank hears of the lowest rank that hands in something not ok: `failed` (-1: none) and its code.
  virtual Status agree(const Status &mine, int32_t &failed, pp_status_t &code) = 0;

  /// Writes this rank's step to where other ranks can read it: they name it if this rank is killed.
  virtual void markStep(int64_t step) = 0;
  /// The steps that are marked from now on are those that run forward alone, or those that train.
  void setForward(bool its) { forward = its; }
  /// Seconds of a clock that all ranks share as well as they can.
  [[nodiscard]] virtual double now() const = 0;
  /// Terms of sums that are posted from now on have checksums, or no longer.
  virtual void audit([[maybe_unused]] bool wanted) {}
  /// The parts of the last completed sum with this number; null if members read each other's memory.
  [[nodiscard]] virtual const SumParts *partsOf([[maybe_unused]] int32_t message) const { return nullptr; }
  /// Ranks of this machine that have its processors together, this one included.
  [[nodiscard]] virtual int32_t ranksBeside() const = 0;
  /// Bytes in which sums of messages were made, at most so far.
  [[nodiscard]] virtual int64_t scratchBytes() const { return 0; }
  /// `mpi`, `threads`.
  [[nodiscard]] virtual std::string_view name() const = 0;

protected:
  int64_t receivedBytes = 0;
  bool forward = false;
};

/// Leaves what is said between steps to another transport.
class TransportOver : public Transport {
public:
  explicit TransportOver(std::unique_ptr<Transport> inner) : inner(std::move(inner)) {}
  Status send(int32_t to, const void *data, size_t bytes) override { return inner->send(to, data, bytes); }
  Status receive(int32_t from, void *data, size_t bytes) override { return inner->receive(from, data, bytes); }
  Status sum(std::span<double> values) override { return inner->sum(values); }
  Status agree(const Status &mine, int32_t &failed, pp_status_t &code) override {
    return inner->agree(mine, failed, code);
  }
  void markStep(int64_t step) override { inner->markStep(step); }
  double now() const override { return inner->now(); }
  int32_t ranksBeside() const override { return inner->ranksBeside(); }
  int64_t scratchBytes() const override { return inner->scratchBytes(); }
  void audit(bool wanted) override { inner->audit(wanted); }
  const SumParts *partsOf(int32_t message) const override { return inner->partsOf(message); }

protected:
  std::unique_ptr<Transport> inner;
};

/// What a rank of an in-process run waits for.
struct Standing {
  bool ended = false;
  int32_t unit = -1;
  const MessageSpec *message = nullptr; ///< null: between steps
  const RankProgram *program = nullptr;
};
/// `rank 1 after \`1B0\` waits for ..`
[[nodiscard]] std::string describe(const Standing &standing, int32_t rank);
/// Every rank waits: what each of them waits for.
[[nodiscard]] Status deadlockIn(int64_t step, std::span<const Standing *const> ranks);

/// All ranks of an in-process run meet here.
class Meeting;
[[nodiscard]] std::shared_ptr<Meeting> makeMeeting(int32_t ranks, TransportOptions options);
[[nodiscard]] std::unique_ptr<Transport> makeThreadTransport(std::shared_ptr<Meeting> meeting, int32_t rank);
/// Ends this rank with its status, and wakes the ranks that wait for it.
void leave(Meeting &meeting, int32_t rank, const Status &status);
/// The first failure of any rank and the rank that had it (-1: none).
[[nodiscard]] Status firstFailure(Meeting &meeting, int32_t &rank);

/// Starts MPI if it does not run. `rank`: the number of this process.
Status startMpi(const TransportOptions &options, int32_t &rank);
/// Holds a text of each rank against that of rank 0. `other`: the lowest rank that has another one; all ranks then get
/// what it and rank 0 say of theirs. -1: there is none. Collective.
Status compareOverMpi(const std::string &compared, const std::string &said, int32_t &other, std::string &first,
                      std::string &theirs);
/// Starts MPI; the device that this process is in `rank`. All devices of the mesh or PP_INVALID on every one.
Status makeMpiTransport(const Mesh &mesh, TransportOptions options, int32_t &rank, std::unique_ptr<Transport> &made);
/// True for exactly one of all failing processes (of one machine): the one that may print.
[[nodiscard]] bool claimMpiReport();
/// Ends MPI after a run whose ranks all came this far. Until the process has ended, a child watches it.
void finishMpi();
/// Ends all ranks at once; does not return.
[[noreturn]] void abortMpi(int code);

} // namespace pp

#endif // PP_RUNTIME_TRANSPORT_TRANSPORT_H
