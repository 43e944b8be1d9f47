// Attention in f32 and f64, and for heads that the tensor cores' tiles do not hold: a warp for each row, tiles of 32.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Forward and dq: a warp has a query and walks the keys. dk and dv: a warp has a key and walks the queries that see it,
// of all heads of its group. A lane computes one score of a tile; then lanes own columns of the sums.
#include "runtime/simt/KeyLists.h"

using namespace pp;

namespace {

constexpr int tileRows = 32, warps = 4;

/// The block's shared memory: two tiles of rows d + 1 apart, and for each warp two rows of its own, two sums, scores.
template <class A> struct PlainTiles {
  A *first, *second, *own[2], *sum[2], *scores[2];
  PP_DEVICE PlainTiles(int d) {
    A *next = sharedMemory<A>();
    int warp = int(threadIdx.x) / 32;
    first = next, next += tileRows * (d + 1);
    second = next, next += tileRows * (d + 1);
    next += warp * (4 * d + 2 * tileRows);
    for (int i = 0; i < 2; ++i) {
      own[i] = next + i * d;
      sum[i] = next + (2 + i) * d;
      scores[i] = next + 4 * d + i * tileRows;
    }
  }
};
template <class A> size_t plainBytes(int64_t d) {
  return size_t(2 * tileRows * (d + 1) + warps * (4 * d + 2 * tileRows)) * sizeof(A);
}

/// Up to 32 rows, `stride` apart, for all warps; the caller waits before and after.
template <class E> PP_DEVICE void loadTile(Acc<E> *tile, const E *rows, int64_t stride, int count, int d) {
  int warp = int(threadIdx.x) / 32, rest = count - warp;
  rows += warp * stride, tile += warp * (d + 1);
  PP_ROLLED
  for (int c = int(threadIdx.x) % 32; c < d; c += 32) {
    E its[tileRows / warps] = {}; // all on their way before the first is stored
    const E *from = rows + c;
    Acc<E> *to = tile + c;
    PP_UNROLL
    for (int i = 0; i < tileRows; i += warps, from += warps * stride)
      if (i < rest)
        its[i / warps] = *from;
    PP_UNROLL
    for (int i = 0; i < tileRows; i += warps, to += warps * (d + 1))
      if (i < rest)
        *to = widen(its[i / warps]);
  }
}
template <class E> PP_DEVICE void loadRow(Acc<E> *row, const E *from, int d, int lane) {
  for (int c = lane; c < d; c += 32)
    row[c] = widen(from[c]);
}
template <class A> PP_DEVICE A dot(const A *x, const A *y, int d) {
  A sum = 0;
  for (int c = 0; c < d; ++c)
    sum += x[c] * y[c];
  return sum;
}
/// sum[c] += over the tile's rows: weights[j] * rows[j][c].
template <class A> PP_DEVICE void addRows(A *sum, const A *weights, const A *rows, int count, int d, int lane) {
  for (int c = lane; c < d; c += 32) {
    A more = 0;
    for (int j = 0; j < count; ++j)
      more += weights[j] * rows[j * (d + 1) + c];
    sum[c] += more;
  }
}

/// Keys from `key` of the chunk into the first tile, values into the second, by all warps; how many.
template <class E>
PP_DEVICE int loadKeys(const PlainTiles<Acc<E>> &tiles, const AttentionCall &n, int b, int group, int chunk, int key) {
  int rest = n.chunks[chunk].length - key, count = rest < tileRows ? rest : tileRows;
  int64_t at = n.key(chunk, b, key, group), stride = n.keyStride;
  waitBlock();
  loadTile(tiles.first, static_cast<const E *>(n.chunks[chunk].k) + at, stride, count, n.d);
  loadTile(tiles.second, static_cast<const E *>(n.chunks[chunk].v) + at, stride, count, n.d);
  waitBlock();
  return count;
}

template <class E, bool Drops>
__global__ void __launch_bounds__(32 * warps, 6) plainForwardKernel(const __grid_constant__ AttentionCall n) {
  using A = Acc<E>;
  int lane = int(threadIdx.x) % 32, d = n.d, head = int(blockIdx.y), b = int(blockIdx.z), group = head / n.share();
  int first, end;
  n.queriesOf(int(blockIdx.x), warps, first, end);
  int t = first + int(threadIdx.x) / 32;
  PlainTiles<A> tiles(d);
  if (t < end)
    loadRow(tiles.own[0], static_cast<const E *>(n.q) + n.query(b, t, head), d, lane);
  for (int c = lane; c < d; c += 32)
    tiles.sum[0][c] = 0;
  DropoutIf<A, Drops> dropout(n, b, head);
  A largest = minusInfinity<A>, total = 0;
  for (int chunk = 0, key = 0; n.seek(chunk, key, b, first, end); key += tileRows) {
    int count = loadKeys<E>(tiles, n, b, group, chunk, key);
    bool seen = t < end && n.sees(chunk, b, t, key + lane);
    A score = seen ? n.capped(A(n.scale) * dot(tiles.own[0], tiles.first + lane * (d + 1), d)) : minusInfinity<A>;
    A most = larger(largest, warpLargest(score));
    A weight = seen ? weightOf(score - most) : A(0);
    A keep = largest == most ? A(1) : weightOf(largest - most);
    total = total * keep + warpSum(weight);
    largest = most;
    for (int c = lane; c < d; c += 32)
      tiles.sum[0][c] *= keep;
    if constexpr (Drops)
      weight *= dropout.factor(n.placeOf(t), n.chunks[chunk].position + key + lane);
    tiles.scores[0][lane] = weight;
    waitWarp();
    addRows(tiles.sum[0], tiles.scores[0], tiles.second, count, d, lane);
    waitWarp();
  }
  if (t >= end)
    return;
  E *o = static_cast<E *>(n.o) + n.output(b, t, head);
  for (int c = lane; c < d; c += 32)
    narrow(o[c], total > 0 ? tiles.sum[0][c] / total : A(0));
  if (lane == 0)
    static_cast<A *>(n.lse)[n.statistic(b, t, head)] = largest + logarithm(total);
}

/// The weight of a pair, as dropout leaves it, and the slope of its score.
template <class A> struct PairSlope {
  A weight = 0, slope = 0;
  PP_DEVICE PairSlope(const AttentionCall &n, bool seen, const A *q, const A *k, const A *dout, const A *v, A lse,
                      A delta, A factor) {
    if (!seen)
      return;
    A score = n.capped(A(n.scale) * dot(q, k, n.d));
    weight = weightOf(score - lse);
    slope = A(n.scale) * weight * (factor * dot(dout, v, n.d) - delta) * n.slopeOfCap(score);
    weight *= factor;
  }
};

template <class E, bool Drops>
__global__ void __launch_bounds__(32 * warps, 6) plainQueryGradientKernel(const __grid_constant__ AttentionCall n) {
  using A = Acc<E>;
  int lane = int(threadIdx.x) % 32, d = n.d, head = int(blockIdx.y), b = int(blockIdx.z), group = head / n.share();
  int first, end;
  n.queriesOf(int(blockIdx.x), warps, first, end);
  int t = first + int(threadIdx.x) / 32;
  PlainTiles<A> tiles(d);
  A lse = 0, delta = 0;
  if (t < end) {
    loadRow(tiles.own[0], static_cast<const E *>(n.q) + n.query(b, t, head), d, lane);
    loadRow(tiles.own[1], static_cast<const E *>(n.dout) + n.output(b, t, head), d, lane);
    lse = static_cast<const A *>(n.lse)[n.statistic(b, t, head)];
    delta = static_cast<const A *>(n.delta)[n.statistic(b, t, head)];
  }
  for (int c = lane; c < d; c += 32)
    tiles.sum[0][c] = 0;
  DropoutIf<A, Drops> dropout(n, b, head);
  for (int chunk = 0, key = 0; n.seek(chunk, key, b, first, end); key += tileRows) {
    int count = loadKeys<E>(tiles, n, b, group, chunk, key);
    A factor = 1;
    if constexpr (Drops)
      factor = dropout.factor(n.placeOf(t), n.chunks[chunk].position + key + lane);
    PairSlope<A> pair(n, t < end && n.sees(chunk, b, t, key + lane), tiles.own[0], tiles.first + lane * (d + 1),
                      tiles.own[1], tiles.second + lane * (d + 1), lse, delta, factor);
    tiles.scores[0][lane] = pair.slope;
    waitWarp();
    addRows(tiles.sum[0], tiles.scores[0], tiles.first, count, d, lane);
    waitWarp();
  }
  if (t >= end)
    return;
  E *dq = static_cast<E *>(n.dq) + n.query(b, t, head);
  for (int c = lane; c < d; c += 32)
    narrow(dq[c], tiles.sum[0][c] + (n.adds ? widen(dq[c]) : A(0)));
}

/// Writes a row of dk or dv, or adds to it.
template <class E>
PP_DEVICE void writeKeyRow(const AttentionCall &n, void *to, int64_t at, const Acc<E> *sum, int lane) {
  for (int c = lane; c < n.d; c += 32)
    if (n.addsToKeys)
      static_cast<Acc<E> *>(to)[at + c] += sum[c];
    else if (n.sums)
      static_cast<Acc<E> *>(to)[at + c] = sum[c];
    else
      narrow(static_cast<E *>(to)[at + c], sum[c]);
}

template <class E, bool Drops>
__global__ void __launch_bounds__(32 * warps, 6) plainKeyGradientKernel(const __grid_constant__ AttentionCall n) {
  using A = Acc<E>;
  int lane = int(threadIdx.x) % 32, d = n.d, group = int(blockIdx.y), b = int(blockIdx.z), chunk, first;
  n.tile(int(blockIdx.x), warps, chunk, first);
  int j = first + int(threadIdx.x) / 32, length = n.chunks[chunk].length;
  PlainTiles<A> tiles(d);
  int64_t at = n.key(chunk, b, j, group);
  if (j < length) {
    loadRow(tiles.own[0], static_cast<const E *>(n.chunks[chunk].k) + at, d, lane);
    loadRow(tiles.own[1], static_cast<const E *>(n.chunks[chunk].v) + at, d, lane);
  }
  for (int c = lane; c < d; c += 32)
    tiles.sum[0][c] = tiles.sum[1][c] = 0;
  int64_t stride = int64_t(n.heads) * d;
  QueryTiles queries(n, chunk, b, first, first + warps < length ? first + warps : length, tileRows);
  for (int head = group * n.share(); head < (group + 1) * n.share(); ++head) {
    DropoutIf<A, Drops> dropout(n, b, head);
    for (int i = 0; i < queries.count; ++i) {
      int t = queries.first(i, tileRows), rest = QueryTiles::end(n, t) - t, count = rest < tileRows ? rest : tileRows;
      waitBlock();
      loadTile(tiles.first, static_cast<const E *>(n.q) + n.query(b, t, head), n.queryStride, count, d);
      loadTile(tiles.second, static_cast<const E *>(n.dout) + n.output(b, t, head), stride, count, d);
      waitBlock();
      bool seen = lane < count && n.sees(chunk, b, t + lane, j);
      int64_t row = n.statistic(b, t + lane, head);
      A factor = 1;
      if constexpr (Drops)
        factor = dropout.factor(n.placeOf(t + lane), n.chunks[chunk].position + j);
      PairSlope<A> pair(n, seen, tiles.first + lane * (d + 1), tiles.own[0], tiles.second + lane * (d + 1),
                        tiles.own[1], seen ? static_cast<const A *>(n.lse)[row] : A(0),
                        seen ? static_cast<const A *>(n.delta)[row] : A(0), factor);
      tiles.scores[0][lane] = pair.slope;
      tiles.scores[1][lane] = pair.weight;
      waitWarp();
      addRows(tiles.sum[0], tiles.scores[0], tiles.first, count, d, lane);
      addRows(tiles.sum[1], tiles.scores[1], tiles.second, count, d, lane);
      waitWarp();
    }
  }
  if (j >= length)
    return;
  writeKeyRow<E>(n, n.chunks[chunk].dk, at, tiles.sum[0], lane);
  writeKeyRow<E>(n, n.chunks[chunk].dv, at, tiles.sum[1], lane);
}

template <class E> pp_status_t attention(const PreparedOp &op, void *const *a) {
  AttentionCall call = attentionCall(op, a[1], nullptr, a[4], sizeof(E));
  call.q = a[0], call.o = a[2], call.lse = a[3];
  auto *kernel = op.has(Dropped) ? plainForwardKernel<E, true> : plainForwardKernel<E, false>;
  return launch(op, kernel, {call.blocks(warps), call.heads, call.batch}, 32 * warps, plainBytes<Acc<E>>(call.d), call);
}

template <class E> pp_status_t attention_bwd(const PreparedOp &op, void *const *a) {
  AttentionCall call = attentionCall(op, a[4], a[6], a[8], sizeof(E));
  auto *queries = op.has(Dropped) ? plainQueryGradientKernel<E, true> : plainQueryGradientKernel<E, false>;
  auto *keys = op.has(Dropped) ? plainKeyGradientKernel<E, true> : plainKeyGradientKernel<E, false>;
  call.dout = a[0], call.q = a[1], call.lse = a[2], call.delta = a[3], call.dq = a[5];
  if (pp_status_t status = launch(op, queries, {call.blocks(warps), call.heads, call.batch}, 32 * warps,
                                  plainBytes<Acc<E>>(call.d), call))
    return status;
  return launch(op, keys, {tilesOf(op, warps), call.groups, call.batch}, 32 * warps, plainBytes<Acc<E>>(call.d), call);
}

} // namespace

AttentionCall pp::attentionCall(const PreparedOp &op, const void *kv, void *dkv, const void *scalars,
                                int64_t elementBytes) {
  AttentionCall call{};
  call.batch = int(op.dims[0]), call.s = int(op.dims[1]), call.heads = int(op.dims[2]), call.groups = int(op.dims[3]);
  call.d = int(op.dims[4]), call.count = int(op.chunkCount);
  call.queryStride = int(op.queryStride()), call.keyStride = int(op.keyStride());
  call.run = op.has(Zigzag) ? call.s / 2 : call.s;
  call.apart = op.has(Zigzag) ? int(op.second - op.dims[5]) - call.run : 0;
  call.causal = op.has(Causal), call.adds = op.has(Accumulate), call.addsToKeys = op.has(AccumulateKv);
  call.sums = op.has(Sums);
  call.scale = op.params[1] > 0 ? op.params[1] : 1 / std::sqrt(double(call.d));
  call.slopeScale = float(call.scale), call.scaleInBits = float(call.scale * 1.44269504088896340736);
  call.window = int(op.params[0]), call.softcap = op.params[2];
  if (call.softcap > 0) {
    call.toCap = float(call.scale / call.softcap), call.fromCap = float(call.softcap / call.scale);
    call.bend = call.toCap * call.toCap;
  }
  call.position = int(op.dims[5]);
  call.starts = op.has(Documents) ? inList<int32_t>(kv, 2 * op.chunkCount) : nullptr;
  if (op.has(Dropped)) {
    takeScalars(op, scalars);
    call.rows = inList<int32_t>(kv, 2 * op.chunkCount + op.has(Documents)), call.scalars = op.launches->scalars;
    call.rate = op.params[3], call.site = int(op.params[4]), call.whole = int64_t(op.params[5]);
    call.firstHead = int(op.params[6]);
  }
  call.wide = call.d * elementBytes % 16 == 0;
  for (int64_t i = 0; i < op.chunkCount; ++i) {
    KeyChunk &chunk = call.chunks[i];
    chunk.k = inList<void>(kv, 2 * i), chunk.v = inList<void>(kv, 2 * i + 1);
    if (dkv)
      chunk.dk = inList<void>(dkv, 2 * i), chunk.dv = inList<void>(dkv, 2 * i + 1);
    chunk.length = int(op.chunks[i].length);
    chunk.position = int(op.chunks[i].position);
    call.wide = call.wide && aligned(chunk.k, chunk.v);
  }
  return call;
}

/// The tensor cores' tiles always fit; these have the whole width in f32 or f64.
size_t pp::attentionSharedBytes(const PreparedOp &op) {
  if (onTensorCores(op))
    return 0;
  return op.type == Type::F64 ? plainBytes<double>(op.dims[4]) : plainBytes<float>(op.dims[4]);
}

PP_BODIES(attention)
PP_BODIES(attention_bwd)
