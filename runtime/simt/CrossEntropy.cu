// Cross-entropy kernels: loss and gradient of whole rows, or of shards of the vocabulary through their statistics.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A block for each row reads the logits twice: once for their maximum and sum of exponentials together, once for the
// gradient, which may lie over them. The rows' losses are summed in f64 by one block, always in the same order.
#include "runtime/simt/Loss.h"
#include "runtime/simt/Map.h"
#include <algorithm>

using namespace pp;

namespace {

/// The largest of some logits and the sum of exp(z - largest) of them.
template <class A> struct Softmax {
  A largest = minusInfinity<A>, sum = 0;
  PP_DEVICE void add(A most, A more) {
    A both = larger(largest, most);
    if (both == minusInfinity<A>)
      return;
    sum = sum * exponential(largest - both) + more * exponential(most - both);
    largest = both;
  }
};

template <class E, int W, bool Capped>
PP_DEVICE Softmax<Acc<E>> softmaxOf(const E *z, int64_t n, Acc<E> cap, Acc<E> *shared) {
  using A = Acc<E>;
  Softmax<A> mine;
  for (int64_t i = int64_t(threadIdx.x) * W; i < n; i += int64_t(blockDim.x) * W) {
    auto a = logitsOf<Capped, W>(z + i, cap);
    A most = a.v[0], sum = 0;
    for (int j = 1; j < W; ++j)
      most = larger(most, a.v[j]);
    most = larger(most, mine.largest);
    for (int j = 0; j < W; ++j)
      sum += exponential(a.v[j] - most);
    mine.sum = mine.sum * exponential(mine.largest - most) + sum;
    mine.largest = most;
  }
  PP_UNROLL
  for (int mask = 16; mask; mask /= 2) {
    A largest = shuffleXor(mine.largest, mask), sum = shuffleXor(mine.sum, mask);
    mine.add(largest, sum);
  }
  if (threadIdx.x % 32 == 0) {
    shared[2 * (threadIdx.x / 32)] = mine.largest;
    shared[2 * (threadIdx.x / 32) + 1] = mine.sum;
  }
  waitBlock();
  Softmax<A> all;
  for (int warp = 0; warp < int(blockDim.x / 32); ++warp)
    all.add(shared[2 * warp], shared[2 * warp + 1]);
  return all;
}

/// dz = factor * exp(z - largest), less `scale` at the target's column; of capped logits times the cap's slope.
template <class E, int W, bool Capped>
PP_DEVICE void writeGradient(const E *z, E *dz, int64_t n, Acc<E> largest, Acc<E> factor, Acc<E> scale, int64_t target,
                             Acc<E> cap) {
  for (int64_t i = int64_t(threadIdx.x) * W; i < n; i += int64_t(blockDim.x) * W) {
    auto a = logitsOf<Capped, W>(z + i, cap);
    for (int j = 0; j < W; ++j) {
      Acc<E> logit = a.v[j];
      a.v[j] = factor * exponential(logit - largest) - (i + j == target ? scale : Acc<E>(0));
      if constexpr (Capped)
        a.v[j] *= Acc<E>(1) - (logit / cap) * (logit / cap);
    }
    store<W>(dz + i, a);
  }
}

template <class E> struct LossArrays {
  const E *z;
  const int32_t *targets;
  E *dz;
  Acc<E> *stats;
  const float *weights; ///< of each row; null: all are 1
  double *losses;       ///< of each row
  double *told;         ///< these without their weights, of rows that have a target; null: nobody asks
  int64_t n, first, vocabulary;
  int64_t exist; ///< columns of the vocabulary; the others are padding
  LossFactor factor;
  Acc<E> cap;   ///< of the logits; 0: none
  double zLoss; ///< what squares of lse are multiplied by
  int32_t *failures, mark;

  PP_DEVICE double weight(int64_t row) const { return weights ? double(weights[row]) : 1; }

  PP_DEVICE Acc<E> slope(int64_t row) const { return Acc<E>(factor.value() * factor.scalars->lossScale * weight(row)); }

  PP_DEVICE void writeLoss(int64_t row, int64_t rows, double loss, double lse) const {
    losses[row] = weight(row) * loss;
    if (told && targets[row] >= 0)
      told[row] = loss;
    if (zLoss > 0)
      losses[rows + row] = weight(row) * (lse * lse);
  }
  /// The factor of a row's powers.
  PP_DEVICE Acc<E> powers(int64_t row, Acc<E> largest, Acc<E> sum) const {
    if (zLoss <= 0)
      return slope(row) / sum;
    const double lse = double(largest) + double(logarithm(sum));
    return slope(row) * Acc<E>(1 + 2 * zLoss * lse) / sum;
  }

  /// The row's target; a wrong one counts as ignored, and is reported.
  PP_DEVICE int64_t target(int64_t row) const {
    int64_t target = targets[row];
    if (target < vocabulary)
      return target;
    setOnce(failures, mark);
    return -1;
  }
};

template <class E, int W, bool Capped> __global__ void __launch_bounds__(512) lossKernel(LossArrays<E> a) {
  using A = Acc<E>;
  int64_t row = blockIdx.x, target = a.target(row);
  const E *z = a.z + row * a.n;
  E *dz = a.dz + row * a.n;
  if (target < 0) {
    clearRow<E, W>(dz, a.n);
    if (threadIdx.x == 0)
      a.writeLoss(row, gridDim.x, 0, 0);
    return;
  }
  A logit = logitsOf<Capped, 1>(z + target, a.cap).v[0];
  Softmax<A> all = softmaxOf<E, W, Capped>(z, a.n, a.cap, sharedMemory<A>());
  if (threadIdx.x == 0)
    a.writeLoss(row, gridDim.x, double(all.largest - logit) + double(logarithm(all.sum)),
                double(all.largest) + double(logarithm(all.sum)));
  writeGradient<E, W, Capped>(z, dz, a.n, all.largest, a.powers(row, all.largest, all.sum), a.slope(row), target,
                              a.cap);
}

template <class A> __global__ void sumLossesKernel(const double *losses, int64_t n, LossFactor factor, A *loss) {
  double sum[1] = {0};
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    sum[0] += losses[i];
  blockSum(sum, sharedMemory<double>());
  if (threadIdx.x == 0)
    *loss = A(factor.value() * sum[0]);
}

template <class E> pp_status_t sumLosses(const PreparedOp &op, const double *losses, void *loss) {
  const int threads = op.dims[0] > 32 ? 1024 : 32;
  auto sum = [&](const double *its, LossFactor factor, Acc<E> *to) {
    return launch(op, sumLossesKernel<Acc<E>>, {1}, threads, blockSumEntries * sizeof(double), its, op.dims[0], factor,
                  to);
  };
  LossFactor factor = lossFactor(op);
  if (pp_status_t status = sum(losses, factor, out<Acc<E>>(loss)); status != PP_OK || op.zLoss() <= 0)
    return status;
  factor.scale *= op.zLoss();
  return sum(losses + op.dims[0], factor, out<Acc<E>>(loss) + 1);
}

/// Launches the kernel's wide or narrow form, a block for each row.
template <class E, class K>
pp_status_t launchRows(const PreparedOp &op, const LossArrays<E> &a, K wideKernel, K narrowKernel) {
  constexpr int W = packOf<E>;
  bool wide = a.n % W == 0 && a.exist % W == 0 && aligned(a.z, a.dz);
  return launch(op, wide ? wideKernel : narrowKernel, {op.dims[0]}, rowThreads(blocksFor(a.n, wide ? W : 1)),
                2 * blockSumEntries * sizeof(Acc<E>), a);
}

template <class E> LossArrays<E> arraysOf(const PreparedOp &op, const void *z, const void *targets) {
  LossArrays<E> a{};
  a.factor = lossFactor(op);
  a.z = in<E>(z), a.targets = in<int32_t>(targets);
  a.losses = reinterpret_cast<double *>(op.scratch);
  a.cap = Acc<E>(op.logitCap());
  a.zLoss = op.kernel == Kernel::cross_entropy_stats ? 0 : op.zLoss();
  a.n = a.exist = op.dims[1], a.first = op.dims[2], a.vocabulary = op.dims[3];
  a.failures = op.launches->failures, a.mark = op.number + 1;
  return a;
}

template <class E> pp_status_t cross_entropy(const PreparedOp &op, void *const *arguments) {
  takeScalars(op, arguments[4]);
  LossArrays<E> a = arraysOf<E>(op, arguments[0], arguments[1]);
  a.dz = out<E>(arguments[2]);
  a.told = out<double>(arguments[5]);
  a.weights = in<float>(arguments[6]);
  a.vocabulary = a.n;
  constexpr int W = packOf<E>;
  if (pp_status_t status = a.cap > 0 ? launchRows(op, a, lossKernel<E, W, true>, lossKernel<E, 1, true>)
                                     : launchRows(op, a, lossKernel<E, W, false>, lossKernel<E, 1, false>))
    return status;
  return sumLosses<E>(op, a.losses, arguments[3]);
}

// --- Shards of the vocabulary ---

template <class E, int W, bool Capped> __global__ void __launch_bounds__(512) statsKernel(LossArrays<E> a) {
  using A = Acc<E>;
  int64_t row = blockIdx.x, target = a.target(row) - a.first;
  const E *z = a.z + row * a.n;
  Softmax<A> all = softmaxOf<E, W, Capped>(z, a.exist, a.cap, sharedMemory<A>());
  if (threadIdx.x)
    return;
  A *stats = a.stats + 3 * row;
  stats[0] = all.largest, stats[1] = all.sum;
  stats[2] = target >= 0 && target < a.n ? logitsOf<Capped, 1>(z + target, a.cap).v[0] : A(0);
}

/// dims T n first V: columns [first, first + n) of V; those from V on are padding, which counts nowhere.
template <class E> pp_status_t cross_entropy_stats(const PreparedOp &op, void *const *arguments) {
  LossArrays<E> a = arraysOf<E>(op, arguments[0], arguments[1]);
  a.stats = out<Acc<E>>(arguments[2]);
  a.exist = std::min(a.n, a.vocabulary - a.first);
  constexpr int W = packOf<E>;
  return a.cap > 0 ? launchRows(op, a, statsKernel<E, W, true>, statsKernel<E, 1, true>)
                   : launchRows(op, a, statsKernel<E, W, false>, statsKernel<E, 1, false>);
}

constexpr int mostParts = 256;
struct PartList {
  const void *parts[mostParts];
};

/// A row is read from all parts before it is written: the result may lie on the first part.
template <class A>
__global__ void mergeKernel(const __grid_constant__ PartList list, int parts, int64_t rows, A *stats) {
  int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * 3;
  if (row >= 3 * rows)
    return;
  A largest = minusInfinity<A>, sum = 0, logit = 0;
  for (int i = 0; i < parts; ++i)
    largest = larger(largest, static_cast<const A *>(list.parts[i])[row]);
  for (int i = 0; i < parts; ++i) {
    const A *part = static_cast<const A *>(list.parts[i]) + row;
    sum += part[1] * exponential(part[0] - largest);
    logit += part[2];
  }
  stats[row] = largest, stats[row + 1] = sum, stats[row + 2] = logit;
}

/// dims T parts.
template <class E> pp_status_t cross_entropy_merge(const PreparedOp &op, void *const *arguments) {
  PartList list{};
  for (int64_t i = 0; i < op.dims[1]; ++i)
    list.parts[i] = inList<Acc<E>>(arguments[0], i);
  return launch(op, mergeKernel<Acc<E>>, {blocksFor(op.dims[0], 128)}, 128, 0, list, int(op.dims[1]), op.dims[0],
                out<Acc<E>>(arguments[1]));
}

template <class E> struct RowLoss {
  using Element = E;
  const Acc<E> *stats;
  const int32_t *targets;
  const float *weights;     ///< of each row; null: all are 1
  double *losses, *squares; ///< squares: of lse; null where they are not wanted
  double *told;             ///< losses without weights, of rows with a target; null: nobody asks
  template <int W> PP_DEVICE void at(int64_t t) const {
    const Acc<E> *row = stats + 3 * t;
    const double lse = double(row[0]) + double(logarithm(row[1]));
    const double weight = targets[t] < 0 ? 0 : weights ? double(weights[t]) : 1;
    const double mine = double(row[0] - row[2]) + double(logarithm(row[1]));
    losses[t] = targets[t] < 0 ? 0 : weight * mine;
    if (told && targets[t] >= 0)
      told[t] = mine;
    if (squares)
      squares[t] = targets[t] < 0 ? 0 : weight * (lse * lse);
  }
};
/// dims T.
template <class E> pp_status_t cross_entropy_loss(const PreparedOp &op, void *const *arguments) {
  takeScalars(op, arguments[3]);
  double *losses = reinterpret_cast<double *>(op.scratch);
  double *squares = op.zLoss() > 0 ? losses + op.dims[0] : nullptr;
  if (pp_status_t status = map(op,
                               RowLoss<E>{in<Acc<E>>(arguments[0]), in<int32_t>(arguments[1]), in<float>(arguments[5]),
                                          losses, squares, out<double>(arguments[4])},
                               op.dims[0], false))
    return status;
  return sumLosses<E>(op, losses, arguments[2]);
}

template <class E, int W, bool Capped> __global__ void __launch_bounds__(512) shardGradientKernel(LossArrays<E> a) {
  int64_t row = blockIdx.x, target = a.target(row);
  const Acc<E> *stats = a.stats + 3 * row;
  if (target < 0)
    clearRow<E, W>(a.dz + row * a.n, a.n);
  else
    writeGradient<E, W, Capped>(a.z + row * a.n, a.dz + row * a.n, a.exist, stats[0], a.powers(row, stats[0], stats[1]),
                                a.slope(row), target - a.first, a.cap);
  if (target >= 0)
    clearRow<E, 1>(a.dz + row * a.n + a.exist, a.n - a.exist);
}

/// dims T n first V; stats are the merged ones.
template <class E> pp_status_t cross_entropy_dz(const PreparedOp &op, void *const *arguments) {
  takeScalars(op, arguments[4]);
  LossArrays<E> a = arraysOf<E>(op, arguments[0], arguments[1]);
  a.stats = out<Acc<E>>(arguments[2]);
  a.dz = out<E>(arguments[3]);
  a.weights = in<float>(arguments[5]);
  a.exist = std::min(a.n, a.vocabulary - a.first);
  constexpr int W = packOf<E>;
  return a.cap > 0 ? launchRows(op, a, shardGradientKernel<E, W, true>, shardGradientKernel<E, 1, true>)
                   : launchRows(op, a, shardGradientKernel<E, W, false>, shardGradientKernel<E, 1, false>);
}

} // namespace

PP_BODIES(cross_entropy)
PP_BODIES(cross_entropy_stats)
PP_BODIES(cross_entropy_merge)
PP_BODIES(cross_entropy_loss)
PP_BODIES(cross_entropy_dz)
