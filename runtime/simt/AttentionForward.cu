// Attention forward in 16 bits on the tensor cores: a block of queries walks the tiles of keys with a running softmax.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   K tile j:    ....load....  | S = Q K^T |                    one tile of K and one of V in shared memory: each is
//   V tile j:                  | ..load..  | O += P V           loaded while the other is multiplied (FlashAttention-2,
//   K tile j+1:                            | ..load..           Dao 2023, section 3)
//
// A warp has 16 * Fold queries and keeps their scores, sums and outputs in registers. Blocks with the most keys come
// first.
#include "runtime/simt/Tiles.h"

using namespace pp;

namespace {

/// E: Bf16 or F16; D: the tile's width; Keys: the tile's rows; Fold: runs of 16 queries of a warp.
template <class E, int D, int Keys, int Fold> struct Forward {
  static constexpr int warps = 4, threads = 32 * warps, queries = 16 * Fold * warps, blocks = Keys / 8;
  static constexpr size_t sharedBytes = size_t(queries + 2 * Keys) * tileStride<D> * sizeof(E);

  RowSums<D / 8> output[Fold];
  float largest[Fold][2], total[Fold][2];

  PP_DEVICE void clear() {
    PP_UNROLL
    for (int f = 0; f < Fold; ++f) {
      output[f].clear();
      largest[f][0] = largest[f][1] = minusInfinity<float>;
      total[f][0] = total[f][1] = 0;
    }
  }

  /// Scores of the warp's queries with a tile of keys; what is read of the tile serves all runs.
  static PP_DEVICE void multiplyKeys(RowSums<blocks> (&scores)[Fold], const E *q, const E *k, int warp) {
    PP_UNROLL
    for (int f = 0; f < Fold; ++f)
      scores[f].clear();
    PP_UNROLL
    for (int c = 0; c < D; c += 16) {
      uint32_t left[Fold][4];
      PP_UNROLL
      for (int f = 0; f < Fold; ++f)
        loadLeft<D>(left[f], q, (warp * Fold + f) * 16, c);
      PP_UNROLL
      for (int j = 0; j < blocks; j += 2) {
        uint32_t right[4];
        loadRight<D>(right, k, j * 8, c);
        PP_UNROLL
        for (int f = 0; f < Fold; ++f) {
          multiply<E>(scores[f].v[j], left[f], right[0], right[1]);
          multiply<E>(scores[f].v[j + 1], left[f], right[2], right[3]);
        }
      }
    }
  }

  /// Adds the weighted rows of a tile of values.
  PP_DEVICE void addValues(const RowSums<blocks> (&weights)[Fold], const E *v) {
    Operands<E, blocks> left0(weights[0]), left1(weights[Fold - 1]);
    PP_UNROLL
    for (int i = 0; i < blocks / 2; ++i)
      PP_UNROLL
    for (int j = 0; j < D / 8; j += 2) {
      uint32_t right[4];
      loadRightDown<D>(right, v, i * 16, j * 8);
      multiply<E>(output[0].v[j], left0.a[i], right[0], right[1]);
      multiply<E>(output[0].v[j + 1], left0.a[i], right[2], right[3]);
      if constexpr (Fold == 2) {
        multiply<E>(output[1].v[j], left1.a[i], right[0], right[1]);
        multiply<E>(output[1].v[j + 1], left1.a[i], right[2], right[3]);
      }
    }
  }

  /// Turns scores into weights and rescales what was summed before. `scale` has log2(e) in it.
  PP_DEVICE void soften(RowSums<blocks> &scores, int f, float scale) {
    PP_UNROLL
    for (int half = 0; half < 2; ++half) {
      float most = largest[f][half];
      PP_UNROLL
      for (int j = 0; j < blocks; ++j)
        most = largerNumber(most, largerNumber(scores.v[j][2 * half], scores.v[j][2 * half + 1]));
      most = largerNumber(most, shuffleXor(most, 1));
      most = largerNumber(most, shuffleXor(most, 2));
      // A row that has seen nothing yet: exp2(-inf - 0) is 0 throughout.
      float base = most == minusInfinity<float> ? 0.0f : most * scale;
      float keep = power2(largest[f][half] * scale - base), sum = 0;
      PP_UNROLL
      for (int j = 0; j < blocks; ++j)
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores.v[j][i] = power2(multiplyAdd(scores.v[j][i], scale, -base));
          sum += scores.v[j][i];
        }
      largest[f][half] = most;
      total[f][half] = total[f][half] * keep + sum;
      PP_UNROLL
      for (int j = 0; j < D / 8; ++j) {
        output[f].v[j][2 * half] *= keep;
        output[f].v[j][2 * half + 1] *= keep;
      }
    }
  }

  /// Clears the weights that dropout drops; the places of the thread's first row and of the tile's first key.
  static PP_DEVICE void drop(const PairDropout<float> &dropout, RowSums<blocks> &weights, int query, int key) {
    int column = int(threadIdx.x) % 4 * 2;
    PP_UNROLL
    for (int j = 0; j < blocks; ++j)
      for (int half = 0; half < 2; ++half)
        dropout.apply(query + half * 8, key + j * 8 + column, weights.v[j][2 * half], weights.v[j][2 * half + 1]);
  }

  /// Divides by the sums and writes rows t and t + 8 of each run, those before `end`.
  PP_DEVICE void write(const AttentionCall &n, int b, int head, int first, int end) {
    int lane = int(threadIdx.x) % 32;
    PP_UNROLL
    for (int f = 0; f < Fold; ++f)
      PP_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum = total[f][half];
      sum += shuffleXor(sum, 1);
      sum += shuffleXor(sum, 2);
      int t = first + 16 * f + lane / 4 + 8 * half;
      if (t >= end)
        continue;
      float inverse = sum > 0 ? 1 / sum : 0;
      E *row = static_cast<E *>(n.o) + n.output(b, t, head);
      PP_UNROLL
      for (int j = 0; j < D / 8; ++j)
        putPair(row, 8 * j + lane % 4 * 2, n.d, output[f].v[j][2 * half] * inverse,
                output[f].v[j][2 * half + 1] * inverse);
      if (lane % 4 == 0)
        static_cast<float *>(n.lse)[n.statistic(b, t, head)] =
            sum > 0 ? n.slopeScale * largest[f][half] + logarithm(sum) : minusInfinity<float>;
    }
  }
};

template <class E, int D, int Keys, int Fold, bool Drops, bool Simple>
__global__ void __launch_bounds__(128) forwardKernel(const __grid_constant__ AttentionCall n) {
  using Block = Forward<E, D, Keys, Fold>;
  constexpr int threads = Block::threads;
  int head = int(blockIdx.y), b = int(blockIdx.z), group = head / n.share(), warp = int(threadIdx.x) / 32;
  int first, end;
  n.queriesOf(int(gridDim.x - 1 - blockIdx.x), Block::queries, first, end);
  E *q = sharedMemory<E>(), *k = q + Block::queries * tileStride<D>, *v = k + Keys * tileStride<D>;
  auto load = [&](E *tile, const void *from, int chunk, int key) {
    loadRows<Keys, D, threads, Simple>(n, tile, static_cast<const E *>(from) + n.key(chunk, b, key, group), n.keyStride,
                                       n.chunks[chunk].length - key);
    commitCopies();
  };
  DropoutIf<float, Drops> dropout(n, b, head);
  Block mine;
  mine.clear();
  loadRows<Block::queries, D, threads, Simple>(n, q, static_cast<const E *>(n.q) + n.query(b, first, head),
                                               n.queryStride, end - first);
  int chunk = 0, key = 0;
  bool more = n.seek(chunk, key, b, first, end);
  if (more)
    load(k, n.chunks[chunk].k, chunk, key);
  while (more) {
    waitCopies<0>();
    waitBlock(); // K is here, and no warp reads V any more
    load(v, n.chunks[chunk].v, chunk, key);
    RowSums<Block::blocks> scores[Fold];
    Block::multiplyKeys(scores, q, k, warp);
    bool masked = key + Keys > n.chunks[chunk].length || (n.causal && key + Keys - 1 > n.leadOf(chunk, first)) ||
                  n.hides(chunk, b, key, end);
    PP_UNROLL
    for (int f = 0; f < Fold; ++f) {
      if (!Simple && n.softcap > 0)
        capScores(n, scores[f]);
      if (masked)
        forHidden<Block::blocks>(n, chunk, b, first + (warp * Fold + f) * 16 + int(threadIdx.x) % 32 / 4, key,
                                 [&](int j, int i) { scores[f].v[j][i] = hidden; });
      mine.soften(scores[f], f, n.scaleInBits);
      if constexpr (Drops)
        Block::drop(dropout, scores[f], n.placeOf(first) + (warp * Fold + f) * 16 + int(threadIdx.x) % 32 / 4,
                    n.chunks[chunk].position + key);
    }
    waitCopies<0>();
    waitBlock(); // V is here, and no warp reads K any more
    key += Keys;
    more = n.seek(chunk, key, b, first, end);
    if (more)
      load(k, n.chunks[chunk].k, chunk, key);
    mine.addValues(scores, v);
  }
  waitCopies<0>();
  mine.write(n, b, head, first + warp * Fold * 16, end);
}

template <class E, int D, int Keys, int Fold> pp_status_t attention(const PreparedOp &op, void *const *a) {
  using Block = Forward<E, D, Keys, Fold>;
  AttentionCall call = attentionCall(op, a[1], nullptr, a[4], sizeof(E));
  call.q = a[0], call.o = a[2], call.lse = a[3];
  call.wide = call.wide && aligned(call.q);
  static constexpr decltype(&forwardKernel<E, D, Keys, Fold, true, true>) kernels[2][2] = {
      {forwardKernel<E, D, Keys, Fold, false, false>, forwardKernel<E, D, Keys, Fold, false, true>},
      {forwardKernel<E, D, Keys, Fold, true, false>, forwardKernel<E, D, Keys, Fold, true, true>}};
  return launch(op, kernels[op.has(Dropped)][call.isSimple()], {call.blocks(Block::queries), call.heads, call.batch},
                Block::threads, Block::sharedBytes, call);
}

/// Two runs of 16 queries per warp halve the reads of K and V from shared memory; wider heads have no registers for it.
template <class E> Body bodyOf(int64_t d) {
  return d <= 64 ? attention<E, 64, 64, 2> : d <= 128 ? attention<E, 128, 64, 2> : attention<E, 256, 64, 1>;
}

} // namespace

Body pp::attentionBody(const PreparedOp &op) {
  if (!onTensorCores(op))
    return attentionBodies[int(op.type)];
  return op.type == Type::F16 ? bodyOf<F16>(op.dims[4]) : bodyOf<Bf16>(op.dims[4]);
}
