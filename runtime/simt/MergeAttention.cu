// Kernels that join partial attentions, or an attention and its sinks, to one, and row sums that all backwards share.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/simt/Launch.h"

using namespace pp;

namespace {

constexpr int warps = 4;
constexpr int mostParts = 256;
struct MergeList {
  const void *parts[2 * mostParts]; ///< o0, lse0, o1, lse1, ..
};

/// A row of heads as it lies in o, and where its statistic lies.
struct HeadRow {
  int64_t at, statistic;
  PP_DEVICE HeadRow(int64_t row, int64_t s, int64_t heads, int64_t d) {
    int64_t head = row % heads, t = row / heads % s, b = row / heads / s;
    at = row * d;
    statistic = (b * heads + head) * s + t;
  }
};

/// A warp for each row, which it reads from all parts before it writes: the result may lie on the first part. A part
/// that saw no key has weight 0, and so have all if none did.
template <class E>
__global__ void mergeKernel(const __grid_constant__ MergeList list, int parts, int64_t rows, int64_t s, int64_t heads,
                            int64_t d, E *o, Acc<E> *lse) {
  using A = Acc<E>;
  int64_t number = int64_t(blockIdx.x) * warps + threadIdx.x / 32;
  if (number >= rows)
    return;
  HeadRow row(number, s, heads, d);
  auto lseOf = [&](int i) { return static_cast<const A *>(list.parts[2 * i + 1])[row.statistic]; };
  A largest = minusInfinity<A>, total = 0;
  for (int i = 0; i < parts; ++i)
    largest = larger(largest, lseOf(i));
  bool some = largest > minusInfinity<A>;
  for (int i = 0; some && i < parts; ++i)
    total += exponential(lseOf(i) - largest);
  for (int64_t c = int64_t(threadIdx.x) % 32; c < d; c += 32) {
    A sum = 0;
    for (int i = 0; some && i < parts; ++i) {
      A weight = exponential(lseOf(i) - largest) / total;
      if (weight > 0)
        sum += weight * widen(static_cast<const E *>(list.parts[2 * i])[row.at + c]);
    }
    narrow(o[row.at + c], sum);
  }
  waitWarp(); // all lanes have read the lse that may lie here
  if (threadIdx.x % 32 == 0)
    lse[row.statistic] = largest + logarithm(total);
}

/// dims b s H d parts.
template <class E> pp_status_t attention_merge(const PreparedOp &op, void *const *arguments) {
  MergeList list{};
  for (int64_t i = 0; i < 2 * op.dims[4]; ++i)
    list.parts[i] = inList<void>(arguments[0], i);
  int64_t rows = op.dims[0] * op.dims[1] * op.dims[2];
  return launch(op, mergeKernel<E>, {blocksFor(rows, warps)}, 32 * warps, 0, list, int(op.dims[4]), rows, op.dims[1],
                op.dims[2], op.dims[3], out<E>(arguments[1]), out<Acc<E>>(arguments[2]));
}

template <class E, int W>
__global__ void deltaKernel(const E *dout, const E *o, Acc<E> *delta, int64_t rows, int64_t s, int64_t heads,
                            int64_t d) {
  int64_t number = int64_t(blockIdx.x) * warps + threadIdx.x / 32;
  if (number >= rows)
    return;
  HeadRow row(number, s, heads, d);
  Acc<E> sum = 0;
  for (int64_t c = int64_t(threadIdx.x) % 32 * W; c < d; c += 32 * W) {
    auto a = load<W>(dout + row.at + c), b = load<W>(o + row.at + c);
    for (int j = 0; j < W; ++j)
      sum += a.v[j] * b.v[j];
  }
  sum = warpSum(sum);
  if (threadIdx.x % 32 == 0)
    delta[row.statistic] = sum;
}

/// dims b s H d.
template <class E> pp_status_t attention_delta(const PreparedOp &op, void *const *arguments) {
  constexpr int W = packOf<E>;
  int64_t rows = op.dims[0] * op.dims[1] * op.dims[2];
  bool wide = op.dims[3] % W == 0 && aligned(arguments[0], arguments[1]);
  return launch(op, wide ? deltaKernel<E, W> : deltaKernel<E, 1>, {blocksFor(rows, warps)}, 32 * warps, 0,
                in<E>(arguments[0]), in<E>(arguments[1]), out<Acc<E>>(arguments[2]), rows, op.dims[1], op.dims[2],
                op.dims[3]);
}

/// A warp for each row; all lanes read the log-sum-exp before one writes the new one.
template <class E>
__global__ void sinkKernel(const E *o, const Acc<E> *lse, const E *scores, E *y, Acc<E> *lseY, int64_t rows, int64_t s,
                           int64_t heads, int64_t d) {
  using A = Acc<E>;
  int64_t number = int64_t(blockIdx.x) * warps + threadIdx.x / 32;
  if (number >= rows)
    return;
  HeadRow row(number, s, heads, d);
  A was = lse[row.statistic], score = widen(scores[number % heads]), most = larger(was, score);
  A whole = most + logarithm(exponential(was - most) + exponential(score - most)), share = exponential(was - whole);
  for (int64_t c = int64_t(threadIdx.x) % 32; c < d; c += 32)
    narrow(y[row.at + c], share * widen(o[row.at + c]));
  waitWarp();
  if (threadIdx.x % 32 == 0)
    lseY[row.statistic] = whole;
}

/// dims b s H d.
template <class E> pp_status_t sink(const PreparedOp &op, void *const *arguments) {
  int64_t rows = op.dims[0] * op.dims[1] * op.dims[2];
  return launch(op, sinkKernel<E>, {blocksFor(rows, warps)}, 32 * warps, 0, in<E>(arguments[0]),
                in<Acc<E>>(arguments[1]), in<E>(arguments[2]), out<E>(arguments[3]), out<Acc<E>>(arguments[4]), rows,
                op.dims[1], op.dims[2], op.dims[3]);
}

constexpr int sinkThreads = 256;

/// A block for each head, whose threads add rows in a fixed order.
template <class E>
__global__ void sinkScoresKernel(const E *scores, const Acc<E> *lse, const Acc<E> *delta, Acc<E> *ds, int64_t batch,
                                 int64_t s, int64_t heads) {
  using A = Acc<E>;
  int64_t head = blockIdx.x;
  A score = widen(scores[head]), sum[1] = {0};
  for (int64_t i = threadIdx.x; i < batch * s; i += sinkThreads) {
    int64_t row = (i / s * heads + head) * s + i % s;
    sum[0] -= exponential(score - lse[row]) * delta[row];
  }
  blockSum(sum, sharedMemory<A>());
  if (threadIdx.x == 0)
    ds[head] = sum[0];
}

/// dims b s H.
template <class E> pp_status_t sink_bwd(const PreparedOp &op, void *const *arguments) {
  return launch(op, sinkScoresKernel<E>, {op.dims[2]}, sinkThreads, blockSumEntries * sizeof(Acc<E>),
                in<E>(arguments[0]), in<Acc<E>>(arguments[1]), in<Acc<E>>(arguments[2]), out<Acc<E>>(arguments[3]),
                op.dims[0], op.dims[1], op.dims[2]);
}

} // namespace

PP_BODIES(attention_merge)
PP_BODIES(attention_delta)
PP_BODIES(sink)
PP_BODIES(sink_bwd)
