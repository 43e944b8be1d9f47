// Reads the identities of all derived functions of a module into a table.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/BodyTable.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

BodyTable::BodyTable(Operation *module) {
  for (auto function : cast<ModuleOp>(module).getOps<func::FuncOp>()) {
    BodyAttr identity = identityOf(function);
    if (!identity)
      continue;
    functions.try_emplace(identity, function);
    callees[FlatSymbolRefAttr::get(function.getSymNameAttr())] = identity;
    if (identity.isStep()) {
      int64_t &steps = stepCounts[{identity.getPieces(), static_cast<int64_t>(identity.getPhase())}];
      steps = std::max(steps, identity.getCut().getSteps());
    }
  }
}
