// What was proved of a program, with counts: recorded by the proofs on the program, read and printed from there.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_PROOF_H
#define PP_ANALYSIS_PROOF_H

#include "analysis/lives/Scratch.h"
#include "mlir/Pass/PassInstrumentation.h"
#include "llvm/ADT/StringMap.h"

namespace mlir {
class PassManager;
} // namespace mlir

namespace pp {

/// A number (or word) that a proof reports: `lanes 6`, `channels edge`.
struct Fact {
  std::string name, text;
  int64_t count = 0;
  bool isNumber = false;
  Fact(llvm::StringRef name, int64_t count) : name(name), text(std::to_string(count)), count(count), isNumber(true) {}
  Fact(llvm::StringRef name, llvm::StringRef text) : name(name), text(text) {}
};

/// Notes on the program (attribute `proof`) that this proof holds. `name` is the pass's without `prove-`.
void recordProof(pipeline::ProgramOp program, llvm::StringRef name, llvm::ArrayRef<Fact> facts);

/// Forgets what a file says was proved of its programs: nobody can know whether it was.
void dropProofs(mlir::ModuleOp module);

/// The ranks that the module's program has programs for, in order.
llvm::SmallVector<int64_t> programRanks(mlir::ModuleOp module);

/// A module of rank programs for which every proof ran in this process and holds. Objects and executables are made of
/// nothing else.
class ProvedModule {
public:
  /// Runs `manager`, which must end with the proofs (addProofs); fails with their errors.
  static mlir::FailureOr<ProvedModule> run(mlir::PassManager &manager, mlir::ModuleOp module);
  mlir::ModuleOp get() const { return module; }

private:
  explicit ProvedModule(mlir::ModuleOp module) : module(module) {}
  mlir::ModuleOp module;
};

/// The bytes that each rank may allocate: `given`, else the memory of its smallest device by the program's cluster; -1
/// for all ranks if there is neither.
std::vector<int64_t> memoryLimitsOf(pipeline::ProgramOp program, int64_t given);
/// `22.35 GiB`, or `22.35 GiB to 74.51 GiB`.
std::string formatLimits(llvm::ArrayRef<int64_t> limits);

/// The times of passes, by their argument (`pp-prove-slots`), and of all passes together.
struct PassTimes {
  llvm::StringMap<double> seconds;
  double total = 0;
};
/// Add it to a pass manager; `times` must outlive the run.
std::unique_ptr<mlir::PassInstrumentation> timePasses(PassTimes &times);

/// The results of the proofs of one program.
struct Proof {
  struct Statement {
    std::string name;  ///< `progress`
    std::string claim; ///< `no cycle of waits with zero buffering`
    std::vector<Fact> facts;
    double seconds = -1; ///< -1 where it was not measured
  };
  struct Rank {
    int64_t rank;
    int64_t limit = -1;                                 ///< bytes; -1 where there is none
    int64_t planned;                                    ///< bytes of its arena: what the program allocates
    int64_t scratch;                                    ///< beside the arena, of kernels and messages
    int64_t live;                                       ///< the largest live set, which no plan can be below
    std::string at;                                     ///< the unit at which that is reached
    std::vector<std::pair<std::string, int64_t>> roles; ///< its bytes at that instant, largest first
  };
  /// An axis of the mesh on which a rank has several devices.
  struct MeshAxis {
    std::string name;
    int64_t groups, members, apart; ///< a group's devices are so far apart in number
    std::vector<Fact> step;         ///< what one device of each rank does along it in a step
  };
  std::string program, channels;
  int64_t ranks = 0, microbatches = 0, slices = 0;
  int64_t devicesOfRank = 1;
  std::vector<MeshAxis> mesh;
  std::vector<Fact> subject;         ///< units by phase, messages by role: what the statements are about
  std::vector<Statement> statements; ///< in the order of the proofs
  std::vector<Rank> memory;
  double proofSeconds = 0, passSeconds = 0;

  /// Reads what the proofs recorded on a program of rank programs.
  explicit Proof(pipeline::ProgramOp program, const PassTimes &times = {});
};

/// A short table for people, and for a paper's appendix.
void printProof(const Proof &proof, llvm::raw_ostream &os);
/// The same as JSON.
void printProofJson(const Proof &proof, llvm::raw_ostream &os);

} // namespace pp

#endif // PP_ANALYSIS_PROOF_H
