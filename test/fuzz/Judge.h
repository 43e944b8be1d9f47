// Compiles a schedule, asks the proofs about its rank programs or a mutant of them, and runs what they spoke of.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_TEST_FUZZ_JUDGE_H
#define PP_TEST_FUZZ_JUDGE_H

#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "test/fuzz/Run.h"
#include "test/fuzz/Schedules.h"

namespace pp::fuzz {

/// The verdict of the proofs.
struct Verdict {
  bool compiled = true, proved = true;
  std::string proof;                               ///< the pass that refuses, without `pp-prove-`
  std::string message;                             ///< its first error
  std::optional<mlir::Location> at = std::nullopt; ///< and where it stands
};

struct Case {
  std::string mutation;
  Verdict verdict;
  Outcome outcome;
  std::string threads; ///< what the threads transport said otherwise, empty if it agrees or was not asked
  std::string rule;    ///< the stricter rule that refuses a program which runs clean
  int64_t base = 0, mutant = -1;
  std::string text;     ///< the program, where verdict and outcome disagree
  std::string schedule; ///< the `.pipe` text of a mutant of actions

  [[nodiscard]] bool isClean() const { return outcome.truth == Truth::Clean; }
  [[nodiscard]] bool agrees() const {
    if (mutation == "none") // all that is drawn is legal
      return threads.empty() && verdict.proved && isClean();
    return !verdict.compiled || (threads.empty() && (verdict.proved == isClean() || (isClean() && !rule.empty())));
  }
};

/// Everything that one thread needs; cases do not depend on each other.
class Judge {
public:
  explicit Judge(std::string stdlib);

  /// Compiles the schedule to rank programs with the product's pipeline, up to its proofs.
  bool compile(const Schedule &schedule, std::string &why);
  /// The compiled rank programs, and a copy of them.
  mlir::ModuleOp compiled() { return *base; }
  mlir::OwningOpRef<mlir::ModuleOp> copy() { return mlir::ModuleOp(base->clone()); }
  /// Verdict and outcome; `threads`: the threads transport runs it as well.
  Case judge(mlir::ModuleOp module, uint64_t seed, bool threads);
  /// Rank programs of a `.mlir` file; null after an error.
  mlir::OwningOpRef<mlir::ModuleOp> read(llvm::StringRef path);
  /// The verdict alone; `allMaps`: progress with lanes by each map.
  Verdict prove(mlir::ModuleOp module, bool allMaps = false);

private:
  mlir::OwningOpRef<mlir::ModuleOp> compileText(const std::string &text, std::string &why);
  /// The documented rule behind a refusal of a program that runs clean, empty if there is none.
  std::string stricterRule(mlir::ModuleOp module, const Verdict &verdict, uint64_t seed);
  Outcome execute(mlir::ModuleOp module, uint64_t seed, bool threads, std::string &disagreement);
  /// The outcome with other tokens and other moments of its messages: what runs clean by luck does not run clean in
  /// all.
  Outcome executeOtherwise(mlir::ModuleOp module, uint64_t seed);
  /// The results of this schedule's one-rank program on these tokens; null if it fails.
  const Reference *reference(int64_t data);

  std::string stdlib;
  mlir::MLIRContext context;
  std::string passes;              ///< the product's pipeline up to its proofs
  std::vector<std::string> proofs; ///< its passes `pp-prove-..`, in its order
  KernelTable table;
  /// The one-rank program of a schedule.
  struct OneRank {
    std::unique_ptr<Loader> loader;
    Code code;
    std::map<int64_t, Reference> references; ///< by data
  };
  std::map<std::string, OneRank> ones; ///< by its text
  OneRank *one = nullptr;
  mlir::OwningOpRef<mlir::ModuleOp> base;
  std::unique_ptr<Loader> loader;
};

/// The message without its names and numbers.
std::string shapeOf(const std::string &message);

} // namespace pp::fuzz

#endif // PP_TEST_FUZZ_JUDGE_H
