// Reads an op's spec: the one place that knows which dims, params and flags each kernel takes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_KERNELS_SPECS_H
#define PP_RUNTIME_KERNELS_SPECS_H

#include "runtime/kernels/Op.h"

namespace pp {

/// Turns a spec into an op with its flags, dims, params and chunks, which stay where `chunks` holds them; empty on
/// success, else what is wrong.
std::string readSpec(const OpSpec &spec, PreparedOp &op, std::vector<Chunk> &chunks);

} // namespace pp

#endif // PP_RUNTIME_KERNELS_SPECS_H
