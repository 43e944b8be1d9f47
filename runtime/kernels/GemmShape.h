// The matrix product behind linear, linear_dx and linear_dw: sizes and strides, for every library that computes it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_GEMMSHAPE_H
#define PP_RUNTIME_KERNELS_GEMMSHAPE_H

#include "runtime/kernels/Op.h"

namespace pp {

/// c[m,n] (+)= a . b + bias; transposes are strides, c is dense.
struct GemmShape {
  int64_t m, n, k;
  int64_t aRow, aColumn, bRow, bColumn;
  bool bias, accumulate;
  Type type; ///< of a, b, bias
  bool sums; ///< c holds sums (acc) instead of elements

  explicit GemmShape(const PreparedOp &op)
      : bias(op.has(WithBias)), accumulate(op.has(Accumulate)), type(op.type), sums(op.kernel == Kernel::linear_dw) {
    int64_t t = op.dims[0], wide = op.dims[1], narrow = op.dims[2]; // K and N of the linear
    bool transposed = op.has(Transposed);
    aColumn = 1;
    if (op.kernel == Kernel::linear) {
      m = t, n = narrow, k = wide, aRow = wide;
      bRow = transposed ? 1 : narrow, bColumn = transposed ? wide : 1;
    } else if (op.kernel == Kernel::linear_dx) {
      m = t, n = wide, k = narrow, aRow = narrow;
      bRow = transposed ? wide : 1, bColumn = transposed ? 1 : narrow;
    } else {
      // dw = x^T dy, or its transpose dy^T x: the first operand is read down its columns.
      m = transposed ? narrow : wide, n = transposed ? wide : narrow, k = t;
      aRow = 1, aColumn = m, bRow = n, bColumn = 1;
    }
  }
  /// 16 bits.
  bool half() const { return type == Type::Bf16 || type == Type::F16; }
  /// c in 16 bits too.
  bool halfOut() const { return half() && !sums; }
  bool operator==(const GemmShape &) const = default;
};

} // namespace pp

#endif // PP_RUNTIME_KERNELS_GEMMSHAPE_H
