// One prepared product of oneDNN (or OpenBLAS): f32, or bf16 storage (natively with AMX, else widened to f32).
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_GEMM_H
#define PP_RUNTIME_KERNELS_GEMM_H

#include "runtime/kernels/Op.h"
#include <memory>

namespace pp {

/// c[m,n] (+)= a . b + bias; transposes are strides, c is dense.
struct GemmShape {
  int64_t m, n, k;
  int64_t aRow, aColumn, bRow, bColumn;
  bool bias, accumulate;
  bool bf16;    ///< a, b, bias in bf16
  bool bf16Out; ///< c too

  /// The shape of a linear, linear_dx or linear_dw.
  explicit GemmShape(const PreparedOp &op);
  bool operator==(const GemmShape &) const = default;
};

class Gemm {
public:
  /// Creates the primitive; on failure `message` says what oneDNN refused.
  static pp_status_t create(const GemmShape &shape, std::unique_ptr<Gemm> &gemm, std::string &message);
  ~Gemm();
  const GemmShape &shape() const;
  int64_t scratchBytes() const;
  pp_status_t run(const void *a, const void *b, const void *bias, void *c, char *scratch);

private:
  struct State;
  Gemm();
  std::unique_ptr<State> state;
};

/// The bodies of linear, linear_dx and linear_dw in f32 and bf16.
pp_status_t runLinear(const PreparedOp &op, void *const *arguments);
pp_status_t runLinearDx(const PreparedOp &op, void *const *arguments);
pp_status_t runLinearDw(const PreparedOp &op, void *const *arguments);

} // namespace pp

#endif // PP_RUNTIME_KERNELS_GEMM_H
