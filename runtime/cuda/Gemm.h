// One prepared product of cuBLASLt; where there is no GPU a plain loop stands in for it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CUDA_GEMM_H
#define PP_RUNTIME_CUDA_GEMM_H

#include "runtime/kernels/GemmShape.h"
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace pp {

/// Multiprocessors for which products are made from now on; 0: all that there are.
inline std::atomic<int32_t> multiprocessorsLeft{0};

/// The addresses of one call, null where there is nothing.
struct GemmOperands {
  const void *a, *b;
  void *c;
  const void *bias = nullptr;
  void *aux = nullptr; ///< Gelu: u, written; GeluBwd: u, read; BiasDw: the column sums of dy, written, never added to
  const void *residual = nullptr; ///< Add: what the product is added to, in c's layout

  /// cuBLASLt's C, which is read where beta is 1; its D is c.
  const void *added() const { return residual ? residual : c; }
  bool aligned() const {
    auto of = [](const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); };
    return (of(a) | of(b) | of(c) | of(bias) | of(aux) | of(residual)) % 16 == 0;
  }
};

/// A row-major x[outer, inner] as cuBLASLt reads it, column-major: not transposed where rows of x are dense.
/// Columns need a leading dimension of at least their rows, also where there is only one: a row of x of one element may
/// have the stride 1 in both directions.
struct OperandLayout {
  bool straight; ///< CUBLAS_OP_N
  int64_t rows, columns, leading;

  OperandLayout(int64_t outer, int64_t inner, int64_t row, int64_t column)
      : straight(column == 1 && row >= inner), rows(straight ? inner : outer), columns(straight ? outer : inner),
        leading(straight ? row : column) {}
  /// The layouts of b (cuBLASLt's first operand), of a (its second), and of c and its addend (D and C).
  static OperandLayout left(const GemmShape &g) { return {g.k, g.n, g.bRow, g.bColumn}; }
  static OperandLayout right(const GemmShape &g) { return {g.m, g.k, g.aRow, g.aColumn}; }
  static OperandLayout result(const GemmShape &g) { return {g.m, g.n, g.n, 1}; }
};

class Gemm {
public:
  /// Chooses the algorithms, by cuBLASLt's heuristics or, with `tunes`, by the clock; `message` says what it refused.
  /// With an epilogue `gemm` stays null where no kernel does it along: then the two plain ops run.
  static pp_status_t create(const GemmShape &shape, bool tunes, std::unique_ptr<Gemm> &gemm, std::string &message);
  ~Gemm();
  const GemmShape &shape() const;
  int64_t scratchBytes() const;
  /// Whether there is an algorithm for these addresses.
  bool takes(const GemmOperands &operands) const;
  /// The bias is added here only if the epilogue can (`addsBias`); else by a kernel of its own.
  pp_status_t run(const GemmOperands &operands, char *scratch, void *stream);
  bool addsBias() const;

private:
  struct State;
  Gemm();
  std::unique_ptr<State> state;
};

/// Whether to ask for a kernel that does the epilogue along. Gelu only of 16 bits, for cuBLASLt's tanh is good to
/// 2^-11, and with rows of u at multiples of 8 elements; none in f64, which is there to be exact. PP_EPILOGUES: `on`,
/// `off`, or `gelu` for all but bias gradients. By default it is `gelu` where kernels with a gelu are fast: on an H100
/// they are 1.06 to 1.32 times as fast as two calls, those with bias gradients 0.93 to 1.01 times (bench/RESULTS.md). A
/// sum is no more work for any GPU, so that it is on by default everywhere.
inline bool wantsEpilogue(const GemmShape &shape, bool byDefault) {
  const char *text = std::getenv("PP_EPILOGUES");
  bool adds = shape.epilogue == Epilogue::Add;
  std::string_view wish = text ? text : byDefault || adds ? "gelu" : "off";
  if (wish == "off" || shape.type == Type::F64)
    return false;
  return shape.epilogue == Epilogue::BiasDw ? wish != "gelu" : adds || (shape.half() && shape.n % 8 == 0);
}

/// Whether there are plans for any address; gelu's u and column sums need addresses at multiples of 16.
inline bool takesAnyAddress(const GemmShape &shape) {
  return shape.epilogue == Epilogue::None || shape.epilogue == Epilogue::Add;
}

} // namespace pp

#endif // PP_RUNTIME_CUDA_GEMM_H
