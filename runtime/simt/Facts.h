// Facts of kernels that the compiler plans by and the kernels live by: what they need beside their operands on a GPU.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_FACTS_H
#define PP_RUNTIME_SIMT_FACTS_H

#include <cstdint>
#include <string_view>

namespace pp {

/// Rows of a sum over rows that one block adds: at most 64 blocks' sums are left, and few rows make one block.
constexpr int64_t rowsOfBlock(int64_t rows) { return rows > 64 * 64 ? (rows + 63) / 64 : 64; }
constexpr int64_t blocksOfRows(int64_t rows) { return (rows + rowsOfBlock(rows) - 1) / rowsOfBlock(rows); }
/// Blocks that share the rows of a norm's backward; each leaves its sums for the gain and the bias. A size has a number
/// of its own, so that a GPU's number of multiprocessors changes no bit.
constexpr int64_t blocksOfNorm(int64_t rows) { return rows < 264 ? rows : 264; }
/// Elements that one block of a sum of squares adds.
inline constexpr int64_t elementsOfBlock = 4096;
constexpr int64_t blocksOfElements(int64_t size) { return (size + elementsOfBlock - 1) / elementsOfBlock; }

/// A kernel by its name, with sizes and numbers in the order of runtime/Pp.h and runtime/kernels/Op.h.
struct SizedCall {
  std::string_view kernel;
  const int64_t *dims;
  int64_t dimCount, paramCount;
  const double *params;
  int64_t acc; ///< bytes of an element of a sum: 8 in f64, else 4
};

/// Bytes of scratch; calls of a rank run one behind the other and share it.
constexpr int64_t simtScratch(const SizedCall &call) {
  const std::string_view kernel = call.kernel;
  const int64_t *dims = call.dims, rows = call.dimCount > 0 ? dims[0] : 0;
  if (kernel == "bias_dw" || kernel == "linear_dw_bias")
    return call.acc * dims[kernel == "bias_dw" ? 1 : 2] * blocksOfRows(rows);
  if (kernel == "layernorm_bwd" || kernel == "rmsnorm_bwd")
    return call.acc * dims[1] * (kernel == "layernorm_bwd" ? 2 : 1) * blocksOfNorm(rows);
  if (kernel == "embedding_dw")
    return 4 * rows;
  if (kernel == "cross_entropy" || kernel == "cross_entropy_loss")
    return 8 * rows * (call.paramCount > 3 && call.params[3] > 0 ? 2 : 1); // with a z-loss
  if (kernel == "route" || kernel == "route_bwd") {
    const int64_t experts = dims[1], shares = rows / dims[3] * experts; // groups of tokens times experts
    if (kernel == "route_bwd")
      return 8 * (rows > shares ? rows : shares);
    const int64_t groups = call.paramCount > 4 ? int64_t(call.params[4]) : 1; // of experts
    return 8 * (rows + shares) + call.acc * rows * (experts + groups);
  }
  if (kernel == "sum_squares")
    return 8 * blocksOfElements(rows);
  int64_t blocks = 0;
  if (kernel == "sum_squares_all")
    for (int64_t i = 0; i < call.dimCount; i += 2)
      blocks += blocksOfElements(dims[i]);
  return 8 * blocks;
}

} // namespace pp

#endif // PP_RUNTIME_SIMT_FACTS_H
