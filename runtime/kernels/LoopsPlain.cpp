// The loops as any CPU of the target runs them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/Loops.h"

static constexpr IsaTable table = makeTable("plain");
const IsaTable &pp::plainTable() { return table; }
