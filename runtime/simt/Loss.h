// What kernels of losses share: logits, their cap, and what the sum of a step's losses is multiplied by.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_LOSS_H
#define PP_RUNTIME_SIMT_LOSS_H

#include "runtime/simt/Launch.h"

namespace pp {

/// W logits as the loss sees them; Capped: cap tanh(z / cap).
template <bool Capped, int W, class E> PP_DEVICE Pack<Acc<E>, W> logitsOf(const E *z, Acc<E> cap) {
  auto a = load<W>(z);
  if constexpr (Capped)
    for (int j = 0; j < W; ++j)
      a.v[j] = cap * hyperbolicTangent(a.v[j] / cap);
  return a;
}

template <class E, int W> PP_DEVICE void clearRow(E *dz, int64_t n) {
  for (int64_t i = int64_t(threadIdx.x) * W; i < n; i += int64_t(blockDim.x) * W)
    store<W>(dz + i, Pack<Acc<E>, W>{});
}

/// What the sum of a step's losses is multiplied by; the divisor is known when the step runs.
struct LossFactor {
  double scale;
  int ahead;
  bool counted;
  const OptimizerScalars *scalars;
  PP_DEVICE double value() const { return counted ? scale / scalars->divisors[ahead] : scale; }
};

inline LossFactor lossFactor(const PreparedOp &op) {
  return {op.params[0], op.ahead(), op.has(Counted), op.launches->scalars};
}

/// Threads of a block that has a row.
inline int rowThreads(int64_t packs) { return packs >= 512 ? 512 : int((packs + 31) / 32 * 32); }

} // namespace pp

#endif // PP_RUNTIME_SIMT_LOSS_H
