// Products of bf16 on CPUs with AVX512-BF16, by our own kernel: oneDNN's 2.6 takes longer for them than for f32.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CPU_BF16GEMM_H
#define PP_RUNTIME_CPU_BF16GEMM_H

#include "runtime/kernels/GemmShape.h"

namespace pp {

/// Columns of c are dealt out to threads in multiples of so many.
inline constexpr int64_t bf16Panel = 48;

#ifdef PP_X86_64
/// Bytes of scratch, aligned to 64, that one thread needs.
int64_t bf16GemmBytes(const GemmShape &shape);
/// The columns [first, end) of c; `first` is a multiple of bf16Panel, and so is `end` unless it is the last.
void bf16Gemm(const GemmShape &shape, const void *a, const void *b, const void *bias, void *c, char *scratch,
              int64_t first, int64_t end);
#else // no table there multiplies bf16
inline int64_t bf16GemmBytes(const GemmShape &) { return 0; }
inline void bf16Gemm(const GemmShape &, const void *, const void *, const void *, void *, char *, int64_t, int64_t) {}
#endif

} // namespace pp

#endif // PP_RUNTIME_CPU_BF16GEMM_H
