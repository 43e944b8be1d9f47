// The loops for CPUs with AVX-512 F, BW, DQ and VL; compiled with flags that only this file has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#define PP_LANES 16
#define PP_ROWS 8
#include "runtime/kernels/Loops.h"

static constexpr IsaTable table = makeTable("avx512");
const IsaTable &pp::avx512Table() { return table; }

static constexpr IsaTable makeTableWithProducts() {
  IsaTable table = makeTable("avx512_bf16", /*multipliesBf16=*/true);
  table.bodies[int(Kernel::attention)][int(Type::Bf16)] = bf16Attention;
  table.bodies[int(Kernel::attention_bwd)][int(Type::Bf16)] = bf16AttentionBackward;
  return table;
}
static constexpr IsaTable withProducts = makeTableWithProducts();
const IsaTable &pp::avx512Bf16Table() { return withProducts; }
