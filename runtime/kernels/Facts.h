// Facts of kernels that the compiler plans by and the kernels live by: what they need beside their operands.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_FACTS_H
#define PP_RUNTIME_KERNELS_FACTS_H

#include <cstdint>
#include <span>
#include <string_view>

namespace pp {

/// A kernel by its name, with sizes and numbers in the order of its record in Kernels.def.
struct SizedCall {
  std::string_view kernel;
  std::span<const int64_t> dims;
  std::span<const double> params;
  int64_t bytes; ///< of an element

  constexpr bool is(auto... names) const { return ((kernel == names) || ...); }
  constexpr int64_t bytesOfSum() const { return bytes > 4 ? bytes : 4; }
};

/// The positions of a rope's table: those of the run, from `first` on. With documents, whose positions count from their
/// own starts, and with two runs, of which the second begins at `second` above 0, it has all positions from 0 on.
struct RopeRows {
  int64_t first, count;
  constexpr RopeRows(int64_t rows, int64_t offset, bool hasDocuments, int64_t second)
      : first(hasDocuments || second > 0 ? 0 : offset), count(second > 0 ? second + rows / 2 : offset + rows - first) {}
};

/// Whether three numbers stand behind the table of a rope, by which what it turns grows.
constexpr bool growsRope(int64_t d, std::span<const double> params) { return int64_t(params.size()) > 1 + d / 2; }

/// The pairs of a head of width d that rope turns.
constexpr int64_t pairsOfRope(int64_t d, std::span<const double> params) {
  return params.size() > 1 && !growsRope(d, params) ? int64_t(params.size()) - 1 : d / 2;
}

//===-- On a CPU: the same bounds for every CPU, so that plans depend on none -----------------------------------===//

/// A product in f64 packs blocks of its operands: rows of the first, columns of the second, and their depth.
inline constexpr int64_t doubleRows = 4, doubleWidth = 256, doubleDepth = 192;
/// A product of experts multiplies so many rows at a time, and widens blocks of 16 bits with this edge to f32.
inline constexpr int64_t rowsOfCall = 48, edgeOfBlock = 10 * rowsOfCall;
/// A blocked attention does so many queries at a time.
inline constexpr int64_t queriesOfBlock = 96;

/// The most that a product of t x k x n takes with one thread, whatever library computes it: f32 copies of its
/// operands if these are small, else blocks of them. The library's own scratch is in it.
inline constexpr int64_t mostOfProduct = 8 << 20;
constexpr int64_t productScratch(int64_t t, int64_t k, int64_t n) {
  const int64_t all = (1 << 18) + 4 * (t * k + k * n + t * n) + 512 * (t + k + n);
  return all < mostOfProduct ? all : mostOfProduct;
}

/// Attention with the tiles of AVX-512, whose panels are the widest: dense keys and values of one kv head, a block of
/// queries, and what the blocks of queries carry from chunk to chunk if there are several. In f64 the scores of one
/// query, and its output.
constexpr int64_t attentionScratch(const SizedCall &call) {
  const std::span<const int64_t> dims = call.dims;
  const int64_t runs = dims.size() % 2 ? 2 : 1, s = dims[1] / runs; // with two runs their sizes have one more
  const int64_t share = dims[2] / dims[3], d = dims[4];
  const bool backward = call.is("attention_bwd");
  int64_t chunks = 0, longest = 0, all = 0;
  for (size_t i = 6; i + 1 < dims.size(); i += 2, ++chunks)
    longest = longest < dims[i] ? dims[i] : longest, all += dims[i];
  if (call.bytes == 8)
    return backward ? 0 : 8 * (all + d);
  constexpr int64_t queries = queriesOfBlock, panel = 48;
  const int64_t width = (d + 15) / 16 * 16, keys = (longest + 15) / 16 * 16 * width;
  const int64_t block = d <= 64    ? 96
                        : d <= 128 ? 64
                                   : 32,
                kept = chunks > 1 ? share * runs * ((s + queries - 1) / queries) : 1;
  return 4 * (backward ? 4 * keys + 4 * queries * width + 2 * block * queries + 3 * queries + kept * queries * width
                       : 2 * keys + 2 * queries * width + block * panel + kept * queries * (width + 2));
}

/// A scan does so many rows at a time. Its rows in scratch are whole lines, an odd number of lines apart, so that those
/// of a panel share no cache sets.
inline constexpr int64_t rowsOfScan = 32;
constexpr int64_t lineOfScan(int64_t columns) { return (columns + 15) / 16 * 16; }
constexpr int64_t strideOfScan(int64_t columns) { return ((columns + 15) / 16 | 1) * 16; }

/// A scan has chunks of its operands and their products, and a state for each head that shares the keys. Its backward
/// has one head's states in front of all chunks, its rows of v, and sums for the keys that heads share.
constexpr int64_t scanScratch(const SizedCall &call) {
  const int64_t s = call.dims[1], share = call.dims[2] / call.dims[3], rows = rowsOfScan;
  const int64_t d = lineOfScan(call.dims[4]), e = lineOfScan(call.dims[5]);
  const int64_t wideD = strideOfScan(call.dims[4]), wideE = strideOfScan(call.dims[5]);
  const int64_t both = rows * (2 * wideD + d + 3 * wideE + 5 * rows), state = d * wideE;
  const bool byChannel = call.params.size() > 1 && call.params[1] > 0;
  const int64_t scaled = byChannel ? rows * wideD * (call.is("scan") ? 10 : 12) : 0; // by decays of columns
  if (call.is("scan"))
    return call.bytesOfSum() * (both + share * state + scaled);
  const int64_t borders = (s - 1) / rows + 2; // with that in front of a slice, and that behind the chunk at hand
  return call.bytesOfSum() * (both + state + rows * (3 * wideD + wideE + e + 2 * rows) + borders * e * wideD + s * e +
                              scaled + (share > 1 ? 2 * s * d : 0));
}

/// Bytes of scratch with one thread; calls of a rank run one behind the other and share it. Products take what the
/// library at hand asks for; a rank where that is more does not start.
constexpr int64_t cpuScratch(const SizedCall &call) {
  const std::span<const int64_t> dims = call.dims;
  const bool isLinear = call.kernel.starts_with("linear");
  if (isLinear || call.kernel.starts_with("expert_linear") || call.is("router", "router_dx", "router_dw")) {
    if (call.bytes == 8)
      return 8 * doubleDepth * (doubleRows + doubleWidth);
    if (isLinear)
      return productScratch(dims[0], dims[1], dims[2]);
    if (call.bytes == 2)
      return 3 * 4 * edgeOfBlock * edgeOfBlock;
    return call.is("expert_linear", "expert_linear_dx") ? 4 * rowsOfCall * (dims[1] + dims[2]) : 0;
  }
  if (call.is("attention", "attention_bwd"))
    return attentionScratch(call);
  if (call.is("scan", "scan_bwd"))
    return scanScratch(call);
  if (call.is("conv", "conv_dx", "conv_dw")) // the taps side by side, and a row of sums
    return call.bytesOfSum() * dims[2] * (dims[3] + 1);
  if (call.is("attention_merge")) // a row of d sums, and a weight for each part
    return 8 * (dims[3] + dims[4]);
  return call.is("route", "route_bwd") ? 24 * dims[1] : 0;
}

//===-- On a GPU ------------------------------------------------------------------------------------------------===//

/// Rows of a sum over rows that one block adds: at most 64 blocks' sums are left, and few rows make one block.
constexpr int64_t rowsOfBlock(int64_t rows) { return rows > 64 * 64 ? (rows + 63) / 64 : 64; }
constexpr int64_t blocksOfRows(int64_t rows) { return (rows + rowsOfBlock(rows) - 1) / rowsOfBlock(rows); }
/// Blocks that share the rows of a norm's backward; each leaves its sums for the gain and the bias. A size has a number
/// of its own, so that a GPU's number of multiprocessors changes no bit.
constexpr int64_t blocksOfNorm(int64_t rows) { return rows < 264 ? rows : 264; }
/// Elements that one block of a sum of squares adds.
inline constexpr int64_t elementsOfBlock = 4096;
constexpr int64_t blocksOfElements(int64_t size) { return (size + elementsOfBlock - 1) / elementsOfBlock; }

/// What cuBLASLt gets for a product, as it recommends for Hopper, and the most that cuDNN may want for an attention: of
/// so many queries of all heads and sequences, and so many keys, 0 where heads do not share them
/// (analysis/lives/DeviceScratch.cpp says why).
inline constexpr int64_t workspaceOfProduct = int64_t(32) << 20;
constexpr int64_t sdpaScratch(bool backward, int64_t queries, int64_t sharedKeys, int64_t width) {
  const auto wholeBlocks = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  return (int64_t(64) << 10) +
         (backward ? wholeBlocks(4 * queries) + 2 * wholeBlocks(4 * queries * width) + 4 * sharedKeys * width : 0);
}

/// The backward of a scan has so many heads' states at once at most, unless one head's alone are more.
inline constexpr int64_t mostOfStates = int64_t(512) << 20;
/// What the backward of a scan has of one head of a sequence, in numbers of acc: the states in front of chunks, and
/// their gradients; rows like those of v, pairs of rows of a chunk, and what becomes of a decay.
struct ScanParts {
  int64_t states, rows, pairs, decays;
  constexpr ScanParts(std::span<const int64_t> dims, bool byChannel)
      : states(((dims[1] - 1) / rowsOfScan + 1) * dims[4] * dims[5]), rows(dims[1] * dims[5]),
        pairs(dims[1] * rowsOfScan),
        decays(byChannel ? 0 : dims[1] * (1 + 3 * ((dims[4] + rowsOfScan - 1) / rowsOfScan))) {}
  constexpr int64_t all() const { return 2 * (states + rows + pairs) + decays; }
};
/// How many heads, of all sequences, the backward of a scan does at once: whole heads of keys, or a part of one.
constexpr int64_t headsOfScan(const SizedCall &call, int64_t bytes = mostOfStates) {
  const std::span<const int64_t> dims = call.dims;
  const ScanParts parts(dims, call.params.size() > 1 && call.params[1] > 0);
  const int64_t all = dims[0] * dims[2], share = dims[2] / dims[3];
  int64_t most = bytes / (call.bytesOfSum() * parts.all());
  if (most >= all)
    return all;
  if (most >= share)
    return most / share * share;
  for (most = most < 1 ? 1 : most; share % most;)
    --most;
  return most;
}
/// With a sum of dq and one of dk, of a head of keys whose heads are not done at once.
constexpr int64_t scanBackwardScratch(const SizedCall &call) {
  const std::span<const int64_t> dims = call.dims;
  const int64_t heads = headsOfScan(call), sums = heads < dims[2] / dims[3] ? 2 * dims[1] * dims[4] : 0;
  const ScanParts parts(dims, call.params.size() > 1 && call.params[1] > 0);
  return call.bytesOfSum() * (heads * parts.all() + sums);
}

/// Bytes of scratch of our own kernels; calls of a rank run one behind the other and share it.
constexpr int64_t simtScratch(const SizedCall &call) {
  const std::span<const int64_t> dims = call.dims;
  const int64_t rows = dims.empty() ? 0 : dims[0];
  if (call.is("bias_dw", "linear_dw_bias"))
    return call.bytesOfSum() * dims[call.is("bias_dw") ? 1 : 2] * blocksOfRows(rows);
  if (call.is("layernorm_bwd", "rmsnorm_bwd"))
    return call.bytesOfSum() * dims[1] * (call.is("layernorm_bwd") ? 2 : 1) * blocksOfNorm(rows);
  if (call.is("embedding_dw"))
    return 4 * rows;
  if (call.is("scan_bwd"))
    return scanBackwardScratch(call);
  if (call.is("conv_dw"))
    return call.bytesOfSum() * dims[2] * dims[3] * blocksOfRows(rows * dims[1]);
  if (call.is("cross_entropy", "cross_entropy_loss"))
    return 8 * rows * (call.params.size() > 3 && call.params[3] > 0 ? 2 : 1); // with a z-loss
  if (call.is("route", "route_bwd")) {
    const int64_t experts = dims[1], shares = rows / dims[3] * experts; // groups of tokens times experts
    if (call.is("route_bwd"))
      return 8 * (rows > shares ? rows : shares);
    const int64_t groups = call.params.size() > 4 ? int64_t(call.params[4]) : 1; // of experts
    return 8 * (rows + shares) + call.bytesOfSum() * rows * (experts + groups);
  }
  if (call.is("sum_squares"))
    return 8 * blocksOfElements(rows);
  int64_t blocks = 0;
  for (size_t i = 0; call.is("sum_squares_all") && i < dims.size(); i += 2)
    blocks += blocksOfElements(dims[i]);
  return 8 * blocks;
}

} // namespace pp

#endif // PP_RUNTIME_KERNELS_FACTS_H
