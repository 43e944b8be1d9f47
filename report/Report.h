// What `--emit=tasks|comms|torch|stats|json` print, read off the rank programs that are lowered.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_REPORT_REPORT_H
#define PP_REPORT_REPORT_H

#include "analysis/Simulate.h"
#include "llvm/Support/JSON.h"

namespace pp {

/// One row per rank, its units in order, in PyTorch's compute-only grammar (frontend/csv/README.md).
void printTasks(pipeline::ProgramOp program, llvm::raw_ostream &os);

/// The same with communication: activations as `2SEND_F1`, `3RECV_F1`, `2SEND_B1`, `1RECV_B1`; every other thing as
/// `weight.3>1` (sent to rank 1) and `weight.3<0` (received from rank 0), which a PyTorch reader refuses.
void printComms(pipeline::ProgramOp program, llvm::raw_ostream &os);

/// The form for PyTorch's reader: `compute_only`, or with messages `compute_comms`. Without `waits` it is for versions
/// that have no WAIT_SEND and WAIT_REDUCE_GRAD.
struct TorchForm {
  bool messages = false, waits = true;
};

/// Whether PyTorch could say this schedule at all: stages, no parts and no slices. It reads actions, before they are
/// compiled.
llvm::LogicalResult checkTorch(pipeline::ProgramOp program);
/// The program as a schedule of PyTorch; an error at the first thing that such a schedule cannot say.
llvm::LogicalResult exportTorch(pipeline::ProgramOp program, TorchForm form, llvm::raw_ostream &os);

/// JSON: makespan (to the end of the last work), span (of the rank whose work takes longest), step (what completes it
/// included), what an optimizer barrier costs, and per rank busy and idle time by cause, peaks, traffic, counts; links.
/// By costs that know times of ops also each kind of op, as a run with --profile-ops has them; counts are of a step.
void printStats(pipeline::ProgramOp program, const Timeline &timeline, const CostModel &costs, llvm::raw_ostream &os);
/// The same as one value of a larger text, without ops.
void writeStats(pipeline::ProgramOp program, const Timeline &timeline, llvm::json::OStream &json);

/// A file that was read for the program.
struct SourceText {
  llvm::StringRef path, text;
};
/// What a program in JSON says of where it comes from.
struct ProgramOrigin {
  llvm::StringRef version, commit;
  std::string costs; ///< as --costs says; empty: the default
  llvm::SmallVector<SourceText> sources;
};
/// JSON: the proved programs of a module, lists of units and messages, for drivers in other languages
/// (report/PROGRAM.md). An error for what it has no words for: a mesh. `timeline` is of the training program.
llvm::LogicalResult writeProgram(mlir::ModuleOp module, const Timeline &timeline, const ProgramOrigin &origin,
                                 llvm::raw_ostream &os);

} // namespace pp

#endif // PP_REPORT_REPORT_H
