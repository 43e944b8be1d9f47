// Ops that stand for two plain ones: which these are, and how they run one after the other where no kernel does both.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_PAIRS_H
#define PP_RUNTIME_KERNELS_PAIRS_H

#include "runtime/kernels/Op.h"
#include <array>

namespace pp {

bool isPair(Kernel kernel);

/// The specs of the two, of a pair's that is right.
std::array<OpSpec, 2> partsOf(const OpSpec &pair);

/// The body of a pair: the two prepared `parts`, with the bits that they have on their own.
pp_status_t runParts(const PreparedOp &pair, void *const *arguments);

} // namespace pp

#endif // PP_RUNTIME_KERNELS_PAIRS_H
