// The matrix products behind linear, linear_dx and linear_dw: sizes and strides, and which rows each expert multiplies.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_GEMMSHAPE_H
#define PP_RUNTIME_KERNELS_GEMMSHAPE_H

#include "runtime/kernels/Facts.h"
#include "runtime/kernels/Op.h"

namespace pp {

/// Work that a product also does: nothing, gelu of its result, a product with gelu's derivative, column sums of dy, or
/// adding a residual.
enum class Epilogue : uint8_t { None, Gelu, GeluBwd, BiasDw, Add };

/// c[m,n] (+)= a . b + bias; transposes are strides, c is dense.
struct GemmShape {
  int64_t m, n, k;
  int64_t aRow, aColumn, bRow, bColumn;
  bool bias, accumulate;
  Type type; ///< of a, b, bias
  bool sums; ///< c holds sums (acc) instead of elements
  Epilogue epilogue = Epilogue::None;
  bool dyIsA = false; ///< BiasDw: dy is the first operand, else the second

  explicit GemmShape(const PreparedOp &op)
      : bias(op.has(WithBias)), accumulate(op.has(Accumulate)), type(op.type),
        sums(op.kernel == Kernel::linear_dw || op.kernel == Kernel::linear_dw_bias) {
    int64_t t = op.dims[0], wide = op.dims[1], narrow = op.dims[2]; // K and N of the linear
    bool transposed = op.has(Transposed);
    aColumn = 1;
    if (op.kernel == Kernel::linear || op.kernel == Kernel::linear_gelu || op.kernel == Kernel::linear_add) {
      m = t, n = narrow, k = wide, aRow = wide;
      bRow = transposed ? 1 : narrow, bColumn = transposed ? wide : 1;
    } else if (!sums) {
      m = t, n = wide, k = narrow, aRow = narrow;
      bRow = transposed ? wide : 1, bColumn = transposed ? 1 : narrow;
    } else {
      // dw = x^T dy, or its transpose dy^T x: the first operand is read down its columns.
      m = transposed ? narrow : wide, n = transposed ? wide : narrow, k = t;
      aRow = 1, aColumn = m, bRow = n, bColumn = 1;
    }
    if (op.kernel == Kernel::linear_gelu)
      epilogue = Epilogue::Gelu;
    else if (op.kernel == Kernel::linear_add)
      epilogue = Epilogue::Add;
    else if (op.kernel == Kernel::linear_dx_gelu)
      epilogue = Epilogue::GeluBwd;
    else if (op.kernel == Kernel::linear_dw_bias)
      epilogue = Epilogue::BiasDw, dyIsA = transposed;
  }
  /// Whether c begins with what is there (beta = 1): in c itself, or in a residual.
  bool adds() const { return accumulate || epilogue == Epilogue::Add; }
  /// 16 bits.
  bool half() const { return type == Type::Bf16 || type == Type::F16; }
  /// c in 16 bits too.
  bool halfOut() const { return half() && !sums; }
  /// Bytes that it may take beside its operands on a CPU, for each thread.
  int64_t scratchLimit() const { return productScratch(m, k, n); }
  bool operator==(const GemmShape &) const = default;
};

/// The rows of an expert in one section of x: `begin` on, so many; the first ones of this expert, or further.
struct ExpertRows {
  int64_t expert, begin, rows;
  bool isFirst;
};

/// Visits each expert's rows in each section, by `counts`[sections][experts]: from the begin of a section on, the rows
/// of one expert follow those of another.
/// `experts`: which of the sizes is their number; behind it is that of the sections.
template <typename Do> void forExpertRows(const PreparedOp &op, const int32_t *counts, Do &&run, int experts = 3) {
  const int64_t n = op.dims[experts], sections = op.dims[experts + 1], room = op.dims[0] / sections;
  for (int64_t e = 0; e < n; ++e)
    for (int64_t s = 0; s < sections; ++s) {
      int64_t begin = s * room;
      for (int64_t before = 0; before < e; ++before)
        begin += counts[s * n + before];
      run(ExpertRows{e, begin, counts[s * n + e], s == 0});
    }
}

} // namespace pp

#endif // PP_RUNTIME_KERNELS_GEMMSHAPE_H
