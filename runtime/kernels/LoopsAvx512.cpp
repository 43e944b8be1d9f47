// The loops for CPUs with AVX-512 F, BW, DQ and VL; compiled with flags that only this file has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#define PP_LANES 16
#define PP_ROWS 8
#include "runtime/kernels/Loops.h"

static constexpr IsaTable table = makeTable("avx512");
const IsaTable &pp::avx512Table() { return table; }
static constexpr IsaTable withProducts = makeTable("avx512_bf16", /*multipliesBf16=*/true);
const IsaTable &pp::avx512Bf16Table() { return withProducts; }
