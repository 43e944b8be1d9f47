// The optimizer's kernels: the squared norm of gradients and AdamW. Each is one launch for all tensors of a call.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   tensors    | w0 ........ | g0 | w1 .......... |      a block has 4096 elements of one tensor; which one it finds
//   blocks     |0 |1 |2 |3 | |4 | |5 |6 |7 |8 |9 |       by a search in the list of first blocks, which is an argument
#include "runtime/kernels/Facts.h"
#include "runtime/simt/Launch.h"

using namespace pp;

namespace {

/// What one launch takes; a kernel's parameters hold 32 KB.
constexpr int mostTensors = 256;

/// The tensors of one launch, in the order of their blocks.
template <class Tensor> struct TensorList {
  Tensor tensors[mostTensors];
  int64_t sizes[mostTensors], firstBlocks[mostTensors];
  int count = 0;
  int64_t blocks = 0;

  void add(const Tensor &tensor, int64_t size) {
    tensors[count] = tensor, sizes[count] = size, firstBlocks[count++] = blocks;
    blocks += blocksOfElements(size);
  }
  /// The last tensor that begins at or before the block.
  PP_DEVICE int find(int64_t block) const {
    int from = 0, to = count;
    while (to - from > 1) {
      int middle = (from + to) / 2;
      (firstBlocks[middle] <= block ? from : to) = middle;
    }
    return from;
  }
};

/// Calls `add(list, i)` for each of the op's tensors and `launch(list)` for each list of them that is full or the last.
template <class Tensor, class Add, class Launch>
pp_status_t forLists(int64_t tensors, const Add &add, const Launch &launchList) {
  pp_status_t status = PP_OK;
  for (int64_t i = 0; status == PP_OK && i < tensors;) {
    TensorList<Tensor> list;
    for (; i < tensors && list.count < mostTensors; ++i)
      add(list, i);
    status = launchList(list);
  }
  return status;
}

bool isList(const PreparedOp &op) { return op.kernel == Kernel::adamw_all || op.kernel == Kernel::sum_squares_all; }
int64_t countOf(const PreparedOp &op) { return isList(op) ? op.chunkCount : 1; }
int64_t sizeOf(const PreparedOp &op, int64_t i) { return isList(op) ? op.chunks[i].length : op.dims[0]; }

// --- Sum of squares: blocks in acc, or in f64 where that is too narrow; then all blocks in f64, in the same order ---

template <class A> __global__ void squaresKernel(const __grid_constant__ TensorList<const A *> list, double *parts) {
  A sum[1] = {0};
  int tensor = list.find(blockIdx.x);
  const A *grad = list.tensors[tensor];
  int64_t size = list.sizes[tensor], first = (int64_t(blockIdx.x) - list.firstBlocks[tensor]) * elementsOfBlock;
  int64_t end = first + elementsOfBlock < size ? first + elementsOfBlock : size;
  for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x)
    sum[0] += grad[i] * grad[i];
  blockSum(sum, sharedMemory<A>());
  double wide[1] = {double(sum[0])};
  if (sizeof(A) < sizeof(double) &&
      !(sum[0] >= leastSquares && sum[0] <= mostSquares)) { // all threads have the same sum
    wide[0] = 0;
    for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x)
      wide[0] += double(grad[i]) * double(grad[i]);
    blockSum(wide, sharedMemory<double>());
  }
  if (threadIdx.x == 0)
    parts[blockIdx.x] = wide[0];
}

__global__ void sumKernel(const double *parts, int64_t n, double *total, bool adds) {
  double sum[1] = {0};
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    sum[0] += parts[i];
  blockSum(sum, sharedMemory<double>());
  if (threadIdx.x == 0)
    *total = adds ? *total + sum[0] : sum[0];
}

template <class E> pp_status_t sum_squares(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  double *parts = reinterpret_cast<double *>(op.scratch);
  int64_t blocks = 0;
  pp_status_t status = forLists<const A *>(
      countOf(op),
      [&](auto &list, int64_t i) {
        list.add(isList(op) ? inList<A>(arguments[0], i) : in<A>(arguments[0]), sizeOf(op, i));
      },
      [&](const auto &list) {
        double *its = parts + blocks;
        blocks += list.blocks;
        if (list.blocks == 0) // other devices count them
          return PP_OK;
        return launch(op, squaresKernel<A>, {list.blocks}, 256, blockSumEntries * sizeof(double), list, its);
      });
  if (status != PP_OK)
    return status;
  return launch(op, sumKernel, {1}, blocks > 32 ? 1024 : 32, blockSumEntries * sizeof(double), parts, blocks,
                out<double>(arguments[1]), op.has(Accumulate));
}

// --- AdamW ---

/// What a call's elements share, computed in f64 by one thread of each block from scalars that change with every step.
template <class A> struct AdamFactors {
  A gamma, beta1, beta2, rest1, rest2, correction1, correction2, lr, epsilon, decay;
  bool skips; ///< gradients that overflowed, or nothing may change
};

template <class A>
PP_DEVICE AdamFactors<A> factorsOf(const OptimizerScalars &scalars, const double *norm2, double rate, double shrink) {
  AdamFactors<A> f;
  f.skips = scalars.holds || (norm2 && !(*norm2 < -minusInfinity<double>)); // a NaN too
  double gamma = 1 / scalars.lossScale;
  if (scalars.clip > 0 && norm2) {
    double ratio = scalars.clip / (sqrt(*norm2) / scalars.lossScale + 1e-6);
    gamma *= ratio < 1 ? ratio : 1;
  }
  f.gamma = A(gamma);
  f.beta1 = A(scalars.beta1), f.rest1 = A(1 - scalars.beta1), f.correction1 = A(scalars.correction1);
  f.beta2 = A(scalars.beta2), f.rest2 = A(1 - scalars.beta2), f.correction2 = A(scalars.correction2);
  f.lr = A(scalars.lr * rate), f.epsilon = A(scalars.epsilon), f.decay = A(scalars.weightDecay * shrink);
  return f;
}

template <class E> struct Adam {
  const Acc<E> *grad;
  E *w;
  Acc<E> *m, *v, *master;
  bool decays, wide;

  template <int W> PP_DEVICE void at(int64_t i, const AdamFactors<Acc<E>> &f) const {
    using A = Acc<E>;
    auto g = load<W>(grad + i), mean = load<W>(m + i), square = load<W>(v + i), value = load<W>(master + i);
    for (int j = 0; j < W; ++j) {
      A slope = f.gamma * g.v[j];
      mean.v[j] = f.beta1 * mean.v[j] + f.rest1 * slope;
      square.v[j] = f.beta2 * square.v[j] + f.rest2 * (slope * slope);
      A root = squareRoot(square.v[j] * f.correction2) + f.epsilon;
      value.v[j] -= f.lr * (mean.v[j] * f.correction1 / root + f.decay * value.v[j]);
    }
    store<W>(m + i, mean);
    store<W>(v + i, square);
    store<W>(master + i, value);
    if (static_cast<const void *>(w) != master)
      store<W>(w + i, value);
  }
};

template <class E>
__global__ void adamKernel(const __grid_constant__ TensorList<Adam<E>> list, const OptimizerScalars *scalars,
                           const double *norm2, double rate, double shrink) {
  using A = Acc<E>;
  auto *shared = sharedMemory<AdamFactors<A>>();
  int tensor = list.find(blockIdx.x);
  const Adam<E> &adam = list.tensors[tensor];
  if (threadIdx.x == 0)
    *shared = factorsOf<A>(*scalars, norm2, rate, adam.decays ? shrink : 0);
  waitBlock();
  const AdamFactors<A> f = *shared;
  if (f.skips)
    return;
  constexpr int W = packOf<E>;
  int64_t size = list.sizes[tensor], first = (int64_t(blockIdx.x) - list.firstBlocks[tensor]) * elementsOfBlock;
  int64_t end = first + elementsOfBlock < size ? first + elementsOfBlock : size;
  for (int64_t i = first + int64_t(threadIdx.x) * W; i < end; i += int64_t(blockDim.x) * W)
    if (adam.wide && i + W <= end)
      adam.template at<W>(i, f);
    else
      for (int64_t j = i; j < end && j < i + W; ++j)
        adam.template at<1>(j, f);
}

/// `addresses` lists grad, w, m, v and master of each tensor.
template <class E>
pp_status_t adamTensors(const PreparedOp &op, void *const *addresses, const void *norm2, const void *scalars) {
  using A = Acc<E>;
  takeScalars(op, scalars);
  return forLists<Adam<E>>(
      countOf(op),
      [&](auto &list, int64_t i) {
        void *const *its = addresses + 5 * i;
        void *master = its[4] ? its[4] : its[1];
        bool decays = isList(op) ? op.chunks[i].position != 0 : op.has(Decay);
        list.add({in<A>(its[0]), out<E>(its[1]), out<A>(its[2]), out<A>(its[3]), out<A>(master), decays,
                  aligned(its[0], its[1], its[2], its[3], master)},
                 sizeOf(op, i));
      },
      [&](const auto &list) {
        if (list.blocks == 0) // other devices update them
          return PP_OK;
        return launch(op, adamKernel<E>, {list.blocks}, 256, sizeof(AdamFactors<A>), list,
                      static_cast<const OptimizerScalars *>(op.launches->scalars), in<double>(norm2), op.groupRate(),
                      op.groupShrink());
      });
}

template <class E> pp_status_t adamw(const PreparedOp &op, void *const *a) {
  void *const addresses[] = {a[0], a[2], a[3], a[4], a[5]};
  return adamTensors<E>(op, addresses, a[1], a[6]);
}

template <class E> pp_status_t adamw_all(const PreparedOp &op, void *const *a) {
  return adamTensors<E>(op, static_cast<void *const *>(a[1]), a[0], a[2]);
}

template <class E> pp_status_t sum_squares_all(const PreparedOp &op, void *const *a) { return sum_squares<E>(op, a); }

} // namespace

PP_BODIES(sum_squares)
PP_BODIES(sum_squares_all)
PP_BODIES(adamw)
PP_BODIES(adamw_all)
