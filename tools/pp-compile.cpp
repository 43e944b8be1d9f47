// pp-compile: all that `pp` does, and executables; started by the name pp-translate, it translates schedules.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/Proof.h"
#include "lowering/Lowering.h"
#include "tools/command/Tool.h"
#include "tools/judge/Check.h"

static llvm::LogicalResult writeObjects(const pp::ProvedModule &proved, llvm::StringRef folder) {
  llvm::SmallVector<std::string> paths;
  return pp::emitObjects(proved, pp::programRanks(proved.get()), folder, paths);
}

int main(int argc, char **argv) {
  static const pp::CodeMaker code = {pp::linkedTargets, pp::loadLoweringDialects, pp::writeLlvmText, pp::emitObject,
                                     writeObjects,      pp::emitExecutable,       pp::wantsCheck,    pp::check};
  return pp::runTool(argc, argv, &code);
}
