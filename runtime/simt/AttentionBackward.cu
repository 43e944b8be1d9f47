// Attention backward in 16 bits on tensor cores, without atomics: dk and dv by tiles of keys, dq by tiles of queries.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Seven products instead of the five that suffice if dq is added by atomics: but every run gives the same bits, and dq
// needs no f32 memory. A block of keys walks the queries that see it, of all heads of its group, so that the sums over
// heads stay in registers; its scores are held transposed (keys x queries), so that they are the left operands of dk,
// dv.
#include "runtime/simt/Tiles.h"

using namespace pp;

namespace {

constexpr int warps = 4, threads = 32 * warps;

/// The logarithm of a row's sum in bits; of a row that sees nothing a number, which makes no weight of its scores.
PP_DEVICE float inBits(float lse) { return lse == minusInfinity<float> ? 0.0f : lse * log2e; }

/// Weight and slope of a pair, in place: the score becomes the weight, the product with v the slope. `delta` has the
/// scale in it; `factor` is dropout's.
template <bool Drops, bool Simple>
PP_DEVICE void slopeOf(const AttentionCall &n, float &score, float &product, float lse, float delta, float factor) {
  float weight = power2(multiplyAdd(score, n.scaleInBits, -lse));
  product = weight * multiplyAdd(product, Drops ? factor * n.slopeScale : n.slopeScale, -delta);
  if constexpr (!Simple) // never below 0: not of hidden ones either
    product *= largerNumber(multiplyAdd(-n.bend * score, score, 1.0f), 0.0f);
  score = Drops ? weight * factor : weight;
}

// --- dk, dv ---

/// Width of the tiles, and how many columns of dk and dv a block sums: the registers hold no more than 128 of both.
template <int D> struct KeyGradient {
  static constexpr int keys = 16 * warps, queries = D > 128 ? 32 : 64, columns = D > 128 ? 128 : D;
  static constexpr int blocks = queries / 8;
  static constexpr size_t sharedBytes = size_t(2 * keys + 4 * queries) * tileStride<D> * sizeof(uint16_t) +
                                        6 * queries * sizeof(float) + sizeof(QueryTiles);
};

/// One stage of what is loaded for a tile of queries.
template <class E, int D> struct QueryStage {
  E *q, *dout;
  float *lse, *delta; ///< lse in bits, delta with the scale
  int *lowest;        ///< the first key that each sees, where something bounds it
  PP_DEVICE QueryStage(E *tiles, int stage) {
    constexpr int queries = KeyGradient<D>::queries;
    q = tiles + 2 * stage * queries * tileStride<D>;
    dout = q + queries * tileStride<D>;
    lse = reinterpret_cast<float *>(tiles + 4 * queries * tileStride<D>) + 3 * stage * queries;
    delta = lse + queries;
    lowest = reinterpret_cast<int *>(delta + queries);
  }
  template <bool Simple> PP_DEVICE void load(const AttentionCall &n, int b, int head, int t) {
    constexpr int queries = KeyGradient<D>::queries;
    int present = QueryTiles::end(n, t) - t;
    loadRows<queries, D, threads, Simple>(n, q, static_cast<const E *>(n.q) + n.query(b, t, head), n.queryStride,
                                          present);
    loadRows<queries, D, threads, Simple>(n, dout, static_cast<const E *>(n.dout) + n.output(b, t, head),
                                          int64_t(n.heads) * n.d, present);
    commitCopies();
  }
};

/// What a thread has of the next tile's rows, of one query each, until the block is done with the tile before.
template <class E, int D> struct QueryRow {
  static constexpr int queries = KeyGradient<D>::queries;
  float lse = 0, delta = 0;
  int lowest = 0;
  PP_DEVICE void load(const AttentionCall &n, int chunk, int b, int head, int t) {
    int i = t + int(threadIdx.x);
    bool there = int(threadIdx.x) < queries && i < QueryTiles::end(n, t);
    int64_t row = n.statistic(b, i, head);
    lse = there ? static_cast<const float *>(n.lse)[row] : 0.0f;
    delta = there ? static_cast<const float *>(n.delta)[row] : 0.0f;
    if (n.isBounded())
      lowest = n.lowest(chunk, b, i);
  }
  PP_DEVICE void store(const AttentionCall &n, const QueryStage<E, D> &stage) const {
    if (int i = int(threadIdx.x); i < queries)
      stage.lse[i] = inBits(lse), stage.delta[i] = delta * n.slopeScale, stage.lowest[i] = lowest;
  }
};

/// Calls `hide(j, i)` for the scores of a tile of queries, from `t` on and before `end`, whose keys they do not see.
template <class E, int D, class Hide>
PP_DEVICE void forHiddenKeys(const AttentionCall &n, const QueryStage<E, D> &stage, int chunk, int firstKey, int t,
                             int end, const Hide &hide) {
  int lane = int(threadIdx.x) % 32, column = lane % 4 * 2;
  PP_UNROLL
  for (int half = 0; half < 2; ++half) {
    int key = firstKey + lane / 4 + 8 * half;
    int low = (n.causal ? key - n.leadOf(chunk, t) : 0) - column;
    int high = (key < n.chunks[chunk].length ? end - t : 0) - column;
    PP_UNROLL
    for (int j = 0; j < KeyGradient<D>::blocks; ++j)
      for (int i = 0; i < 2; ++i)
        if (8 * j + i < low || 8 * j + i >= high)
          hide(j, 2 * half + i);
    if (!n.isBounded())
      continue;
    PP_UNROLL
    for (int j = 0; j < KeyGradient<D>::blocks; ++j)
      for (int i = 0; i < 2; ++i)
        if (key < stage.lowest[8 * j + column + i])
          hide(j, 2 * half + i);
  }
}

template <class E, int D>
PP_DEVICE void writeKeys(const AttentionCall &n, void *to, const RowSums<KeyGradient<D>::columns / 8> &sums, int chunk,
                         int b, int group, int first, int firstColumn) {
  int lane = int(threadIdx.x) % 32;
  PP_UNROLL
  for (int half = 0; half < 2; ++half) {
    int j = first + lane / 4 + 8 * half;
    if (j >= n.chunks[chunk].length)
      continue;
    int64_t at = n.key(chunk, b, j, group);
    PP_UNROLL
    for (int i = 0; i < KeyGradient<D>::columns / 8; ++i) {
      int column = firstColumn + 8 * i + lane % 4 * 2;
      float x = sums.v[i][2 * half], y = sums.v[i][2 * half + 1];
      if (!n.addsToKeys && !n.sums) {
        putPair(static_cast<E *>(to) + at, column, n.d, x, y);
        continue;
      }
      float *row = static_cast<float *>(to) + at;
      if (column < n.d)
        row[column] = n.addsToKeys ? row[column] + x : x;
      if (column + 1 < n.d)
        row[column + 1] = n.addsToKeys ? row[column + 1] + y : y;
    }
  }
}

template <class E, int D, bool Drops, bool Simple>
__global__ void __launch_bounds__(threads) keyGradientKernel(const __grid_constant__ AttentionCall n) {
  using Block = KeyGradient<D>;
  constexpr int queries = Block::queries, halves = D / Block::columns;
  int group = int(blockIdx.y), b = int(blockIdx.z) / halves, firstColumn = int(blockIdx.z) % halves * Block::columns;
  int chunk, first, warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  n.tile(int(blockIdx.x), Block::keys, chunk, first);
  E *k = sharedMemory<E>(), *v = k + Block::keys * tileStride<D>, *stages = v + Block::keys * tileStride<D>;
  int64_t at = n.key(chunk, b, first, group), stride = n.keyStride;
  int present = n.chunks[chunk].length - first;
  loadRows<Block::keys, D, threads, Simple>(n, k, static_cast<const E *>(n.chunks[chunk].k) + at, stride, present);
  loadRows<Block::keys, D, threads, Simple>(n, v, static_cast<const E *>(n.chunks[chunk].v) + at, stride, present);
  // In shared memory, for the registers are full.
  auto &tiles =
      *reinterpret_cast<QueryTiles *>(reinterpret_cast<float *>(stages + 4 * queries * tileStride<D>) + 6 * queries);
  if (threadIdx.x == 0)
    tiles = QueryTiles(n, chunk, b, first, first + (present < Block::keys ? present : Block::keys), queries);
  waitBlock();
  // The tiles of all heads of the group, one after the other: that which is loaded, and the next one.
  int head = group * n.share(), tile = 0, lastHead = tiles.count ? head + n.share() : head;
  QueryRow<E, D> row;
  auto load = [&](int turn) {
    int t = tiles.first(tile, queries);
    QueryStage<E, D>(stages, turn).template load<Simple>(n, b, head, t);
    row.load(n, chunk, b, head, t);
  };
  RowSums<Block::columns / 8> dk, dv;
  dk.clear();
  dv.clear();
  if (head < lastHead)
    load(0);
  for (int turn = 0; head < lastHead; turn ^= 1) {
    QueryStage<E, D> stage(stages, turn);
    row.store(n, stage);
    waitCopies<0>();
    waitBlock(); // this stage is here, and no warp reads the other any more
    int t = tiles.first(tile, queries), last = QueryTiles::end(n, t), end = t + queries < last ? t + queries : last;
    DropoutIf<float, Drops> dropout(n, b, head);
    if (++tile == tiles.count)
      tile = 0, ++head;
    if (head < lastHead)
      load(turn ^ 1);
    RowSums<Block::blocks> scores, products;
    auto hide = [&](int j, int i) { scores.v[j][i] = hidden, products.v[j][i] = 0; };
    scores.clear();
    products.clear();
    multiplyRows<Block::blocks, D>(scores, k, warp * 16, stage.q);
    multiplyRows<Block::blocks, D>(products, v, warp * 16, stage.dout);
    if (!Simple && n.softcap > 0)
      capScores(n, scores);
    if (t + queries > last || present < Block::keys || (n.causal && first + Block::keys - 1 > n.leadOf(chunk, t)) ||
        n.hides(chunk, b, first, end))
      forHiddenKeys(n, stage, chunk, first + warp * 16, t, end, hide);
    PP_UNROLL
    for (int j = 0; j < Block::blocks; ++j)
      PP_UNROLL
    for (int e = 0; e < 4; ++e) {
      int column = 8 * j + lane % 4 * 2 + e % 2, key = first + warp * 16 + lane / 4 + e / 2 * 8;
      float factor = 1;
      if constexpr (Drops)
        factor = dropout.factor(n.placeOf(t) + column, n.chunks[chunk].position + key);
      slopeOf<Drops, Simple>(n, scores.v[j][e], products.v[j][e], stage.lse[column], stage.delta[column], factor);
    }
    multiplyDown<Block::columns / 8, Block::blocks, D>(dv, Operands<E, Block::blocks>(scores), stage.dout, firstColumn);
    multiplyDown<Block::columns / 8, Block::blocks, D>(dk, Operands<E, Block::blocks>(products), stage.q, firstColumn);
  }
  waitCopies<0>();
  writeKeys<E, D>(n, n.chunks[chunk].dk, dk, chunk, b, group, first + warp * 16, firstColumn);
  writeKeys<E, D>(n, n.chunks[chunk].dv, dv, chunk, b, group, first + warp * 16, firstColumn);
}

// --- dq ---

template <int D> struct QueryGradient {
  static constexpr int queries = 16 * warps, keys = D > 128 ? 32 : 64, blocks = keys / 8;
  static constexpr size_t sharedBytes = size_t(2 * queries + 4 * keys) * tileStride<D> * sizeof(uint16_t);
};

/// Writes the warp's rows of dq, from `first` to `end`, or adds to them.
template <class E, int D>
PP_DEVICE void writeQueries(const AttentionCall &n, const RowSums<D / 8> &dq, int b, int head, int first, int end) {
  int lane = int(threadIdx.x) % 32;
  PP_UNROLL
  for (int half = 0; half < 2; ++half) {
    int t = first + lane / 4 + 8 * half;
    if (t >= end)
      continue;
    E *row = static_cast<E *>(n.dq) + n.query(b, t, head);
    PP_UNROLL
    for (int j = 0; j < D / 8; ++j) {
      int column = 8 * j + lane % 4 * 2;
      float x = n.adds && column < n.d ? widen(row[column]) : 0.0f;
      float y = n.adds && column + 1 < n.d ? widen(row[column + 1]) : 0.0f;
      putPair(row, column, n.d, x + dq.v[j][2 * half], y + dq.v[j][2 * half + 1]);
    }
  }
}

template <class E, int D, bool Drops, bool Simple>
__global__ void __launch_bounds__(threads) queryGradientKernel(const __grid_constant__ AttentionCall n) {
  using Block = QueryGradient<D>;
  constexpr int keys = Block::keys;
  int head = int(blockIdx.y), b = int(blockIdx.z), group = head / n.share();
  int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  int first, end;
  n.queriesOf(int(gridDim.x - 1 - blockIdx.x), Block::queries, first, end);
  E *q = sharedMemory<E>(), *dout = q + Block::queries * tileStride<D>;
  E *stages = dout + Block::queries * tileStride<D>;
  loadRows<Block::queries, D, threads, Simple>(n, q, static_cast<const E *>(n.q) + n.query(b, first, head),
                                               n.queryStride, end - first);
  loadRows<Block::queries, D, threads, Simple>(n, dout, static_cast<const E *>(n.dout) + n.output(b, first, head),
                                               int64_t(n.heads) * n.d, end - first);
  auto load = [&](E *stage, int chunk, int key) {
    int64_t from = n.key(chunk, b, key, group);
    int present = n.chunks[chunk].length - key;
    loadRows<keys, D, threads, Simple>(n, stage, static_cast<const E *>(n.chunks[chunk].k) + from, n.keyStride,
                                       present);
    loadRows<keys, D, threads, Simple>(n, stage + keys * tileStride<D>,
                                       static_cast<const E *>(n.chunks[chunk].v) + from, n.keyStride, present);
    commitCopies();
  };
  float lse[2] = {0, 0}, delta[2] = {0, 0};
  for (int half = 0; half < 2; ++half)
    if (int t = first + warp * 16 + lane / 4 + 8 * half; t < end) {
      lse[half] = inBits(static_cast<const float *>(n.lse)[n.statistic(b, t, head)]);
      delta[half] = static_cast<const float *>(n.delta)[n.statistic(b, t, head)] * n.slopeScale;
    }
  DropoutIf<float, Drops> dropout(n, b, head);
  RowSums<D / 8> dq;
  dq.clear();
  int chunk = 0, key = 0, turn = 0;
  bool more = n.seek(chunk, key, b, first, end);
  if (more)
    load(stages, chunk, key);
  for (; more; turn ^= 1) {
    waitCopies<0>();
    waitBlock(); // this stage is here, and no warp reads the other any more
    int thisChunk = chunk, thisKey = key;
    key += keys;
    more = n.seek(chunk, key, b, first, end);
    if (more)
      load(stages + (turn ^ 1) * 2 * keys * tileStride<D>, chunk, key);
    const E *k = stages + turn * 2 * keys * tileStride<D>, *v = k + keys * tileStride<D>;
    RowSums<Block::blocks> scores, products;
    auto hide = [&](int j, int i) { scores.v[j][i] = hidden, products.v[j][i] = 0; };
    scores.clear();
    products.clear();
    multiplyRows<Block::blocks, D>(scores, q, warp * 16, k);
    multiplyRows<Block::blocks, D>(products, dout, warp * 16, v);
    if (!Simple && n.softcap > 0)
      capScores(n, scores);
    if (thisKey + keys > n.chunks[thisChunk].length || (n.causal && thisKey + keys - 1 > n.leadOf(thisChunk, first)) ||
        n.hides(thisChunk, b, thisKey, end))
      forHidden<Block::blocks>(n, thisChunk, b, first + warp * 16 + lane / 4, thisKey, hide);
    PP_UNROLL
    for (int j = 0; j < Block::blocks; ++j) {
      float factors[4] = {1, 1, 1, 1};
      if constexpr (Drops)
        for (int half = 0; half < 2; ++half)
          dropout.apply(n.placeOf(first) + warp * 16 + lane / 4 + half * 8,
                        n.chunks[thisChunk].position + thisKey + 8 * j + lane % 4 * 2, factors[2 * half],
                        factors[2 * half + 1]);
      PP_UNROLL
      for (int e = 0; e < 4; ++e)
        slopeOf<Drops, Simple>(n, scores.v[j][e], products.v[j][e], lse[e / 2], delta[e / 2], factors[e]);
    }
    multiplyDown<D / 8, Block::blocks, D>(dq, Operands<E, Block::blocks>(products), k, 0);
  }
  waitCopies<0>();
  writeQueries<E, D>(n, dq, b, head, first + warp * 16, end);
}

template <class E, int D> pp_status_t attention_bwd(const PreparedOp &op, void *const *a) {
  AttentionCall call = attentionCall(op, a[4], a[6], a[8], sizeof(E));
  call.dout = a[0], call.q = a[1], call.lse = a[2], call.delta = a[3], call.dq = a[5];
  call.wide = call.wide && aligned(call.q, call.dout);
  constexpr int halves = D / KeyGradient<D>::columns;
  static constexpr decltype(&keyGradientKernel<E, D, true, true>) keys[2][2] = {
      {keyGradientKernel<E, D, false, false>, keyGradientKernel<E, D, false, true>},
      {keyGradientKernel<E, D, true, false>, keyGradientKernel<E, D, true, true>}};
  static constexpr decltype(&queryGradientKernel<E, D, true, true>) queries[2][2] = {
      {queryGradientKernel<E, D, false, false>, queryGradientKernel<E, D, false, true>},
      {queryGradientKernel<E, D, true, false>, queryGradientKernel<E, D, true, true>}};
  const bool drops = op.has(Dropped), simple = call.isSimple();
  if (pp_status_t status =
          launch(op, keys[drops][simple], {tilesOf(op, KeyGradient<D>::keys), call.groups, call.batch * halves},
                 threads, KeyGradient<D>::sharedBytes, call))
    return status;
  return launch(op, queries[drops][simple], {call.blocks(QueryGradient<D>::queries), call.heads, call.batch}, threads,
                QueryGradient<D>::sharedBytes, call);
}

template <class E> Body bodyOf(int64_t d) {
  return d <= 64 ? attention_bwd<E, 64> : d <= 128 ? attention_bwd<E, 128> : attention_bwd<E, 256>;
}

} // namespace

Body pp::attentionBackwardBody(const PreparedOp &op) {
  if (!onTensorCores(op))
    return attention_bwdBodies[int(op.type)];
  return op.type == Type::F16 ? bodyOf<F16>(op.dims[4]) : bodyOf<Bf16>(op.dims[4]);
}
