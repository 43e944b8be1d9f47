// One prepared product: of oneDNN or OpenBLAS, or of bf16 by ourselves.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CPU_GEMM_H
#define PP_RUNTIME_CPU_GEMM_H

#include "runtime/kernels/GemmShape.h"
#include <memory>

namespace pp {

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

/// The bodies of linear, linear_dx and linear_dw but of f64.
pp_status_t runLinear(const PreparedOp &op, void *const *arguments);
pp_status_t runLinearDx(const PreparedOp &op, void *const *arguments);
pp_status_t runLinearDw(const PreparedOp &op, void *const *arguments);

} // namespace pp

#endif // PP_RUNTIME_CPU_GEMM_H
