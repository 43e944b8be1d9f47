// The loops for CPUs with AVX2 and FMA; compiled with flags that only this file has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#define PP_LANES 8
#define PP_ROWS 4
#include "runtime/kernels/Loops.h"

static constexpr IsaTable table = makeTable("avx2");
const IsaTable &pp::avx2Table() { return table; }
