// Prints what the proofs say of mutants of a file's rank programs, and each mutant as JSON, for another checker.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "report/Report.h"
#include "test/fuzz/Judge.h"
#include "test/fuzz/Mutations.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;

namespace pp::fuzz {

/// The verdict on one line, the program on the next one.
static void print(Judge &judge, ModuleOp module, llvm::StringRef mutation) {
  // What is not proved can have a deadlock, so nothing is simulated: the JSON has a time for no action.
  Timeline timeline;
  timeline.makespan = 1;
  timeline.ranks.resize(pipeline::ProgramOp::trainingOf(module).getRanks());
  std::string text;
  llvm::raw_string_ostream os(text);
  (void)writeProgram(module, timeline, ProgramOrigin(), os);
  llvm::erase(text, '\n');
  Verdict verdict = judge.prove(module, /*allMaps=*/true);
  llvm::outs() << llvm::json::Value(llvm::json::Object{{"mutation", mutation},
                                                       {"proof", verdict.proof},
                                                       {"message", llvm::json::fixUTF8(verdict.message)}})
               << "\n"
               << text << "\n";
}

int writeVerdicts(int argc, char **argv) {
  uint64_t seed = 0, count = 0;
  if (argc != 3 || llvm::StringRef(argv[1]).getAsInteger(10, seed) ||
      llvm::StringRef(argv[2]).getAsInteger(10, count)) {
    llvm::errs() << "usage: pp-fuzz verdicts FILE.mlir SEED COUNT\n";
    return 1;
  }
  Judge judge(PP_STDLIB_DIR);
  OwningOpRef<ModuleOp> module = judge.read(argv[0]);
  if (!module)
    return 1;
  print(judge, *OwningOpRef<ModuleOp>(module->clone()), "none");
  for (uint64_t number = 0; number < count; ++number) {
    Dice dice(hashOf(seed, number));
    llvm::StringRef name;
    if (OwningOpRef<ModuleOp> mutant = drawMutant(*module, dice, name))
      print(judge, *mutant, name);
  }
  return 0;
}

} // namespace pp::fuzz
