// One prepared product of cuBLASLt; where there is no GPU a plain loop stands in for it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CUDA_GEMM_H
#define PP_RUNTIME_CUDA_GEMM_H

#include "runtime/kernels/GemmShape.h"
#include <memory>

namespace pp {

class Gemm {
public:
  /// Chooses the algorithms, by cuBLASLt's heuristics or, with `tunes`, by the clock; `message` says what it refused.
  static pp_status_t create(const GemmShape &shape, bool tunes, std::unique_ptr<Gemm> &gemm, std::string &message);
  ~Gemm();
  const GemmShape &shape() const;
  int64_t scratchBytes() const;
  /// The bias is added here only if the epilogue can (`addsBias`); else by a kernel of its own.
  pp_status_t run(const void *a, const void *b, const void *bias, void *c, char *scratch, void *stream);
  bool addsBias() const;

private:
  struct State;
  Gemm();
  std::unique_ptr<State> state;
};

} // namespace pp

#endif // PP_RUNTIME_CUDA_GEMM_H
