// Reads the planning problem of a compiled program: times and bytes of its rank programs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/plan/PlanProblem.h"
#include "analysis/Messages.h"
#include "analysis/lives/SlotLives.h"
#include <algorithm>
#include <cmath>
#include <map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// Reads times and bytes from rank programs. Microbatches are equal; what one of the middle occupies is what each does.
class PlanProblemReader {
public:
  PlanProblemReader(ProgramOp program, const CostModel &costs, bool isSplit)
      : program(program), costs(costs), pieces(program), samples(pieces.size(), program.getMicrobatches() / 2) {
    problem.ranks = program.getRanks();
    problem.microbatches = program.getMicrobatches();
    problem.isSplit = isSplit;
    for (int64_t piece = 0; piece < pieces.size(); ++piece)
      problem.stages.emplace_back().rank = pieces.homes(piece).front();
    times.assign(pieces.size(), {0, 0, 0});
    delays.assign(pieces.size(), {0, 0});
    again.assign(pieces.size(), 0);
    host.assign(pieces.size(), 0);
    readOffloads();
  }

  TimedProblem run() {
    for (auto rank : program.getOps<RankOp>()) {
      readTimes(rank);
      readBytes(rank);
    }
    double longest = 0, tick = 1;
    for (const auto &its : times)
      longest = std::max({longest, its[0], its[1], its[2]});
    tick = longest > 0 ? std::max(longest / 1e9, 1e-300) : 1;
    for (const auto &its : delays)
      tick = std::max({tick, its[0] / 1e15, its[1] / 1e15}); // an int has room for all of a step
    for (auto [s, stage] : llvm::enumerate(problem.stages)) {
      for (int64_t kind = 0; kind < 3; ++kind)
        stage.time[kind] = std::max<int64_t>(1, std::llround(times[s][kind] / tick));
      stage.forward = std::llround(delays[s][0] / tick);
      stage.backward = std::llround(delays[s][1] / tick);
      balance(stage);
    }
    TimedProblem timed = {std::move(problem), tick, {}, {}};
    for (double time : again)
      timed.again.push_back(static_cast<int64_t>(time / tick));
    for (double time : host)
      timed.host.push_back(static_cast<int64_t>(time / tick));
    return timed;
  }

private:
  ProgramOp program;
  const CostModel &costs;
  Pieces pieces;
  std::vector<int64_t> samples; ///< by stage: the microbatch that stands for all
  PlanProblem problem;
  std::vector<std::array<double, 3>> times;  ///< by stage
  std::vector<double> again;                 ///< by stage: of R, a part of its backward's
  std::vector<double> host;                  ///< by stage: of its stash to host memory
  std::vector<std::array<double, 2>> delays; ///< by stage: of messages to the next, to the previous one

  bool isWork(LaunchOp launch) const { return launch.getUnit().getPhase() != Phase::U; }
  bool isSample(LaunchOp launch) const {
    return isWork(launch) && launch.getUnit().getCoord().getMicrobatch() == samples[stageOf(launch)];
  }
  int64_t stageOf(LaunchOp launch) const { return pieces.find(launch.getUnit().getCoord()); }

  /// If stashes wait in host memory, one of them stands for all. While a stash leaves or comes back, another unit runs
  /// on its rank, and two stashes are there: each F and each I of the stage allocates both for that time.
  void readOffloads() {
    std::map<int64_t, std::map<int64_t, int64_t>> moved; // by stage and microbatch: bytes
    for (auto rank : program.getOps<RankOp>())
      for (auto post : rank.getOps<PostOp>()) {
        if (!post.isHost() || post.getKind() != PostKind::send || post.getSlot().getDefiningOp<SlotOp>().getHost())
          continue;
        CoordAttr coord = post.getThing().getCoord();
        moved[pieces.find(coord)][coord.getMicrobatch()] += bytesOf(post);
        Route route = costs.route(PostKind::send, {static_cast<int64_t>(rank.getRank()), kHost}, bytesOf(post));
        double &time = host[pieces.find(coord)];
        time = std::max(time, route.transfer + route.latency);
      }
    for (auto &[piece, its] : moved) {
      auto [microbatch, bytes] = *std::next(its.begin(), static_cast<int64_t>(its.size() / 2));
      samples[piece] = microbatch;
      for (int64_t kind : {kPlanF, kPlanI}) {
        problem.stages[piece].alloc[kind] += bytes;
        problem.stages[piece].free[kind] += bytes;
      }
    }
  }

  void readTimes(RankOp rank) {
    double microbatches = problem.microbatches;
    int64_t number = rank.getRank();
    for (auto launch : rank.getOps<LaunchOp>()) {
      if (!isWork(launch))
        continue;
      double time = costs.of(number, launch) / microbatches;
      std::array<double, 3> &its = times[stageOf(launch)];
      if (launch.getUnit().getPhase() == Phase::R)
        again[stageOf(launch)] += time;
      if (problem.isSplit && launch.getUnit().getPhase() == Phase::B) { // fused: half of it is taken for each half
        its[kPlanI] += time / 2;
        its[kPlanW] += time / 2;
      } else {
        its[planKindOf(launch.getUnit().getPhase())] += time;
      }
    }
    for (auto post : rank.getOps<PostOp>()) {
      Role role = post.getThing().getRole();
      if (post.getKind() != PostKind::send || (role != Role::act && role != Role::dact))
        continue;
      int64_t piece = pieces.find(post.getThing().getCoord());
      if (pieces.isSkip(piece)) // its reader waits for the pieces between, too
        continue;
      Route route = costs.route(PostKind::send, {number, post.getPeers().front()}, bytesOf(post));
      double &delay = delays[piece][role == Role::dact];
      delay = std::max(delay, route.lastPost + route.transfer + route.latency + route.wake);
    }
  }

  /// The first unit allocates a value that lives from one unit of a stage to another, and the last unit frees it; one
  /// unit allocates and frees scratch. Tensors that a launch hands on change their slot and stay allocated.
  void readBytes(RankOp rank) {
    llvm::DenseMap<Value, SmallVector<LaunchOp>> users;
    for (auto launch : rank.getOps<LaunchOp>())
      for (Value slot : launch->getOperands())
        users[slot].push_back(launch);
    for (auto launch : rank.getOps<LaunchOp>())
      for (Value slot : launch.slots())
        if (SmallVector<LaunchOp> &its = users[slot]; !llvm::is_contained(its, launch))
          its.push_back(launch);
    std::vector<SlotLife> lives = slotLives(rank);
    llvm::DenseSet<std::pair<Operation *, int64_t>> inherited;
    for (const SlotLife &life : lives)
      if (life.heir.slot)
        inherited.insert({SlotOp(life.heir.slot), life.heir.tensor});
    for (const SlotLife &life : lives) {
      SlotOp slot = life.op;
      if (slot.getBinding() && (slot.getBinding()->isThereBefore() || slot.getBinding()->isThereAfter()))
        continue;
      SmallVector<LaunchOp> its = users.lookup(slot.getSlot());
      llvm::erase_if(its, [&](LaunchOp launch) { return !isSample(launch); });
      if (its.empty())
        continue;
      int64_t stage = stageOf(its.back());
      LaunchOp first = *llvm::find_if(its, [&](LaunchOp launch) { return stageOf(launch) == stage; });
      PlanStage &made = problem.stages[stage];
      if (!inherited.contains({slot, life.tensor}))
        made.alloc[kindOf(first)] += life.bytes;
      if (!life.heir.slot)
        made.free[kindOf(its.back())] += life.bytes;
    }
  }

  int64_t kindOf(LaunchOp launch) const { return planKindOf(launch.getUnit().getPhase()); }

  /// Tensors that are handed on may change their size: what a microbatch allocates is what it frees.
  void balance(PlanStage &stage) const {
    int64_t rest = 0;
    for (int64_t kind = 0; kind < 3; ++kind)
      rest += stage.alloc[kind] - stage.free[kind];
    (rest > 0 ? stage.free[problem.kinds() - 1] : stage.alloc[kPlanF]) += std::abs(rest);
  }
};

} // namespace

int64_t TimedProblem::lowerBound() const {
  PlanProblem without = problem;
  std::vector<int64_t> work(problem.ranks, 0);
  for (auto [stage, time] : llvm::zip_equal(without.stages, again)) {
    work[stage.rank] += problem.microbatches * (stage.time[kPlanF] + stage.time[kPlanI]);
    work[stage.rank] += problem.isSplit ? problem.microbatches * stage.time[kPlanW] : 0;
    stage.time[kPlanI] -= std::min(time, stage.time[kPlanI] - 1);
  }
  return std::max(lowerBoundOf(without), *llvm::max_element(work));
}

TimedProblem pp::readPlanProblem(ProgramOp program, const CostModel &costs, bool isSplit, ArrayRef<int64_t> limits,
                                 llvm::function_ref<PlanOrder(const PlanProblem &)> orderOf) {
  TimedProblem timed = PlanProblemReader(program, costs, isSplit).run();
  PlanProblem &problem = timed.problem;
  problem.limits.assign(problem.ranks, 0);
  std::vector<int64_t> peaks = peaksOf(PlanGraph(problem, /*isReversed=*/false), orderOf(problem));
  for (auto rank : program.getOps<RankOp>())
    problem.limits[rank.getRank()] =
        limits[rank.getRank()] - (static_cast<int64_t>(rank.getArenaBytes().value_or(0)) - peaks[rank.getRank()]);
  return timed;
}
