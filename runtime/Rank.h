// One rank while it runs: what the C ABI's opaque handle holds, shared by kernels, transports and trainer.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_RANK_H
#define PP_RUNTIME_RANK_H

#include "runtime/Pp.h"
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pp {

class Kernels;   // runtime/Kernels.h: the prepared ops
class Transport; // runtime/transport/Transport.h: the prepared messages
class Trace;     // runtime/files/Trace.h: times of units and waits

/// A queue that takes the kernels of a rank: an emulated device runs them later.
class KernelQueue {
public:
  virtual pp_status_t add(pp_rank_t &rank, std::function<pp_status_t()> work) = 0;

protected:
  ~KernelQueue() = default;
};

/// The targets of a loss that counts them are at most 3 places behind the next token.
constexpr int mostAhead = 3;
/// Columns of datasets that a model may have.
constexpr int mostColumns = 16;
/// The numbers of divisors: of targets so many places on, then of the sums of columns over targets, then of documents
/// that have a target, and of groups of documents.
constexpr int divisorOfColumn = mostAhead + 1, divisorOfDocuments = divisorOfColumn + mostColumns,
              divisorOfGroups = divisorOfDocuments + 1, divisorCount = divisorOfGroups + 1;

/// The numbers that updates and the loss read besides their arrays; the trainer sets them before each step.
struct OptimizerScalars {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weightDecay = 0;
  double clip = 0;      ///< largest global gradient norm; 0: no clipping
  int64_t step = 1;     ///< 1 for the first; skipped ones do not count
  double lossScale = 1; ///< what the loss is multiplied by before its gradient is taken; AdamW divides by it
  /// The divisors of losses that count their targets, by the number of places that the targets are ahead, and further
  /// ones of means over tokens.
  double divisors[divisorCount] = {1, 1, 1, 1};
  double perToken = 1; ///< 1 / tokens of the update, for the losses of routers; 0 where no target counts
  bool holds = false;  ///< no update changes anything: the step is only run for its loss
  double momentum = 0; ///< SGD's and Muon's
  double matrixRate = 0, matrixDecay = 0; ///< Muon's learning rate and weight decay; those above are AdamW's beside it
  uint64_t seed = 0;                      ///< of dropout's masks
  /// AdamW's means start at 0: what makes up for it. They are made here once, with the others, for every kernel; a new
  /// `step` needs new scalars.
  double correction1 = 1 / (1 - std::pow(beta1, double(step))), correction2 = 1 / (1 - std::pow(beta2, double(step)));
};

/// A sum of up to 4096 squares in f32 between these two has lost nothing by overflow or underflow.
constexpr float leastSquares = 0x1p-90f, mostSquares = 0x1.fffffep127f;

/// What the routers of a rank did in a step: their two losses, summed over layers and tokens; the rows of each expert
/// in each layer and microbatch that has tokens; and the number of choices without a row.
struct RouterSums {
  double balance = 0, z = 0;
  int64_t rows = 0, experts = 0, fewest = INT64_MAX, most = 0, dropped = 0;
};

/// One value for each of the targets that lie here: where its loss goes, or its weight.
template <class Value> struct OfTargets {
  const int32_t *begin, *end;
  Value *values;
};

} // namespace pp

struct pp_rank_t {
  int32_t rank = 0; ///< whose program it runs
  int32_t ranks = 1;
  int32_t device = 0;
  pp::Kernels *kernels = nullptr;
  pp::Transport *transport = nullptr;
  pp::Trace *trace = nullptr;
  pp::KernelQueue *queue = nullptr; ///< null: kernels run when they are called
  pp::OptimizerScalars optimizer;
  std::vector<pp::OptimizerScalars> updates;             ///< of a step with several updates, of each; else empty
  std::vector<int32_t> updateOf;                         ///< by unit, where there are several
  std::vector<pp::OfTargets<double>> tokenLosses;        ///< empty: only their sum is wanted
  std::vector<pp::OfTargets<const float>> targetWeights; ///< of the step that runs; empty: all are 1
  std::function<pp_status_t(double)> judge;              ///< of the update before, by the squared norm; empty: nobody
  pp::RouterSums routed;                                 ///< of this step
  bool forward = false;                                  ///< the step that runs is the one that evaluates
  int32_t unit = -1;                                     ///< the unit that runs, for messages
  std::string message;                                   ///< why the last call failed; first failure wins

  /// Those of the update that the unit belongs to.
  [[nodiscard]] const pp::OptimizerScalars *scalars() const {
    return updates.empty() || unit < 0 ? &optimizer : &updates[size_t(updateOf[size_t(unit)])];
  }

  /// The value that belongs to these targets; null if there is none.
  template <class Value>
  [[nodiscard]] static Value *find(const std::vector<pp::OfTargets<Value>> &all, const int32_t *targets) {
    for (const pp::OfTargets<Value> &each : all)
      if (targets >= each.begin && targets < each.end)
        return each.values + (targets - each.begin);
    return nullptr;
  }

  /// Keeps the first message and hands the status on.
  [[nodiscard]] pp_status_t fail(pp_status_t status, std::string why) {
    if (message.empty())
      message = std::move(why);
    return status;
  }
};

#endif // PP_RUNTIME_RANK_H
