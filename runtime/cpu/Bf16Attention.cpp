// Attention of bf16 whose products are of bf16, for CPUs with AVX512-BF16; compiled with flags that only this file has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Scores and sums stay in f32. What is multiplied is rounded: the weights P before P V and Pt dO, and dSt before its
// two products; q, k, v and dO are bf16 as they come.
#include "runtime/kernels/BlockedBackward.h"
#include "runtime/kernels/BlockedForward.h"

using Forward = BlockedForward<16, 8, /*paired=*/true>;
using Backward = BlockedBackward<16, 8, /*paired=*/true>;

pp_status_t pp::bf16Attention(const PreparedOp &op, void *const *arguments) {
  return Forward::run<Bf16>(op, arguments);
}
pp_status_t pp::bf16AttentionBackward(const PreparedOp &op, void *const *arguments) {
  return Backward::run<Bf16>(op, arguments);
}
