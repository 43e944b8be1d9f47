// Refuses programs of another level of the `pipeline` dialect than the one that a pass takes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/Levels.h"

using namespace mlir;
using namespace pp::pipeline;

LogicalResult pp::requireLevel(ModuleOp module, Level level, StringRef pass) {
  for (auto program : module.getOps<ProgramOp>())
    for (Operation &op : program.getBody().front()) {
      std::optional<Level> found = levelOf(&op);
      if (!found)
        continue;
      if (*found == level)
        break;
      auto error = emitError(program.getLoc()) << "`" << pass << "` takes " << describe(level) << "; `@"
                                               << program.getSymName() << "` holds " << describe(*found);
      error.attachNote(op.getLoc()) << "`" << op.getName() << "` belongs to " << describe(*found);
      return error;
    }
  return success();
}
