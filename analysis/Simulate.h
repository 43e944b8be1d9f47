// Runs the planned rank programs in model time: when each task and message starts and ends, who waits and why.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_SIMULATE_H
#define PP_ANALYSIS_SIMULATE_H

#include "analysis/Messages.h"
#include "analysis/costs/Costs.h"

namespace pp {

/// One launch: a unit of F, B, I, W, R, or (phase U) an update or another task that completes the step (sum, norm,
/// tie).
struct Span {
  pipeline::LaunchOp launch;
  double start, end;
  int lane = 0; ///< of two that run in turn 1 and 2: both lie in one row
  pipeline::UnitIdAttr unit() const { return pipeline::LaunchOp(launch).getUnit(); }
  /// A unit that the schedule asked for, other than an update.
  bool isWork() const { return unit().getPhase() != pipeline::Phase::U; }
};

/// One message, or one collective.
struct Flight {
  llvm::SmallVector<pipeline::PostOp, 2> posts; ///< send and receive, or one per member
  llvm::SmallVector<int64_t, 2> ranks;          ///< of `posts`, in their order
  double posted = 0;                            ///< when the first end was ready
  double ready = 0;                             ///< when the last end was
  double start = 0, end = 0;                    ///< when the bytes travel: both ends ready, the links free
  int64_t bytes = 0;
  int64_t link = -1; ///< the first of its links, in `Timeline::links`
  pipeline::PostKind kind() const { return pipeline::PostOp(posts.front()).getKind(); }
};

/// Why a rank idles: what it waits for is not computed yet by another rank (dependency); is there, but behind another
/// message of its lane or link (head of line); is on the wire (communication); nothing is left to do, or nothing has
/// been there to begin with, while others work (imbalance).
enum class IdleCause { dependency, headOfLine, communication, imbalance };
llvm::StringRef stringifyIdleCause(IdleCause cause);

struct Idle {
  double start, end;
  IdleCause cause;
  int64_t flight = -1; ///< what it waited for, in `Timeline::flights`
};

/// Bytes of live slots by role from `time` on.
struct MemoryPoint {
  double time;
  llvm::SmallVector<int64_t, 12> bytes; ///< by pipeline::Role
  int64_t total = 0;
};

struct RankTimeline {
  std::vector<Span> spans;         ///< in order; only two launches side by side overlap
  std::vector<Idle> idles;         ///< the gaps between spans from 0 to the end of the step
  std::vector<double> times;       ///< when the k-th op of the rank's block (slots included) is passed
  std::vector<MemoryPoint> memory; ///< in order of time; where two share a time, the first is a peak of no duration
  double busy = 0;                 ///< sum of the spans that are work
  double first = 0, last = 0;      ///< start of the first and end of the last span that is work
};

struct LinkLoad {
  std::string name; ///< `0>1`, or that of a shared link of the cluster
  int64_t messages = 0, bytes = 0;
  double chunks = 0; ///< of what it carries: weights and gradients of whole pieces, as papers on weight passing count
  double busy = 0;   ///< while bytes travel on it
};

struct Timeline {
  bool unitTime = true;
  std::string units; ///< what a unit of time is, where that does not go without saying
  std::vector<RankTimeline> ranks;
  std::vector<Flight> flights;
  Messages messages; ///< their numbers
  std::vector<LinkLoad> links;
  double makespan = 0; ///< from 0 to the end of the last work of any rank
  double step = 0;     ///< to the end of the last task: updates and what completes the step included
  /// Two steps where no rank waits between them for the others: each begins its second step when its own list has
  /// ended, and no update waits for the norm of all gradients (zero bubble's late validation). Weights on their way
  /// home are waited for.
  double twoSteps = 0;
  /// The time from one step to the next in a long run, as it is, and if all ranks meet between steps. 0 unless asked
  /// for (Manner::periods).
  double period = 0, barrierPeriod = 0;
  /// The cost of a meeting of all ranks between two steps.
  double barrierCost() const { return 2 * step - twoSteps; }
  /// The longest time from the first to the last work of one rank. It is the cost of a step without an optimizer
  /// barrier: a rank then begins the next step before the other ranks have ended this one.
  double span() const;
  /// Share of ranks x makespan in which no work runs.
  double bubble() const;
};

/// The rank programs must be proved (no deadlock). Zero buffering: a message starts when both ends are posted. Without
/// `overlap` ranks do one thing at a time, as Megatron's 1F1B: one message after the other, a receive is posted where
/// its rank waits, and no task begins before all that the rank has sent has arrived. In `lockstep` no task of a
/// `together` begins before all tasks of those before it have ended, on any rank. Failure after an error: there can be
/// a deadlock.
struct Manner {
  bool overlap = true, lockstep = false;
  bool periods = false; ///< simulate further steps to know the period
};
mlir::FailureOr<Timeline> simulate(pipeline::ProgramOp program, const CostModel &costs, Manner manner = {});

/// Bytes of live slots by role over time, from the times at which the rank's ops are passed.
std::vector<MemoryPoint> memoryCurve(pipeline::RankOp rank, llvm::ArrayRef<double> times);

} // namespace pp

#endif // PP_ANALYSIS_SIMULATE_H
