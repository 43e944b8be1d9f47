// One product by a library: a primitive of oneDNN, made once, its sgemm, or OpenBLAS where these take more scratch.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CPU_PRODUCT_H
#define PP_RUNTIME_CPU_PRODUCT_H

#include "runtime/Pp.h"
#include <cstdint>
#include <memory>

namespace pp {

/// c[m,n] (+)= a . b + bias, of f32 or bf16; rows of c lie `cRow` apart.
struct ProductShape {
  int64_t m, n, k;
  int64_t aRow, aColumn, bRow, bColumn, cRow;
  bool bias, accumulate;
  bool half = false, halfOut = false; ///< a, b and bias, and c, are bf16: oneDNN alone
};

class Product {
public:
  /// By OpenBLAS if `blas`, or if a primitive would need more than `most` bytes of scratch. Throws what oneDNN throws.
  Product(const ProductShape &shape, bool blas, int64_t most);
  ~Product();
  /// False: neither library has it within `most` bytes.
  [[nodiscard]] bool fits() const;
  [[nodiscard]] int64_t scratchBytes() const;
  pp_status_t run(const void *a, const void *b, const void *bias, void *c, char *scratch);

private:
  struct State;
  std::unique_ptr<State> state;
};

/// Whether oneDNN multiplies bf16 in tiles of AMX, and f32 in vectors of AVX-512.
bool cpuHasAmx();
bool cpuHasAvx512();

} // namespace pp

#endif // PP_RUNTIME_CPU_PRODUCT_H
