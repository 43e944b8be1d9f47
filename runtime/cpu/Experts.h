// The products of mixtures of experts but of f64: of an expert's rows, whose number is known when they run.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CPU_EXPERTS_H
#define PP_RUNTIME_CPU_EXPERTS_H

#include "runtime/kernels/Op.h"

namespace pp {

/// The body of router, expert_linear and their gradients; null of other ops.
Body expertBody(const PreparedOp &op);

} // namespace pp

#endif // PP_RUNTIME_CPU_EXPERTS_H
