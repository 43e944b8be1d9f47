// The bytes that kernels move: the other half of an op's cost beside its flops.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NNBYTES_H
#define PP_DIALECT_NNBYTES_H

#include "dialect/nn/Nn.h"

namespace pp::nn {

/// Bytes that the kernel of this op reads and writes.
double bytesOf(Kernel kernel);

} // namespace pp::nn

#endif // PP_DIALECT_NNBYTES_H
