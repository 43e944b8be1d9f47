// A schedule in the CSV form of PyTorch's pipelining, one row of cells for each rank, is read and written as `.pipe`.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_FRONTEND_CSV_H
#define PP_FRONTEND_CSV_H

#include "dialect/pipeline/Pipeline.h"
#include "frontend/syntax/Source.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include <vector>

namespace pp {

/// The meaning of a file's letters: today's, or that of PyTorch 2.5, where `B` was today's `I`, and `BW` today's `B`.
enum class CsvDialect { Current, V25 };

/// The action of one cell, or of one member of an OVERLAP_F_B cell.
struct CsvAction {
  // clang-format off
  enum Kind {
    F,
    I,
    B,
    W,
    SendF,
    SendB,
    RecvF,
    RecvB,
    WaitSendF,
    WaitSendB,
    Unshard,
    Reshard,
    ReduceGrad,
    WaitReduceGrad
  };
  // clang-format on
  Kind kind;
  int64_t stage, microbatch = -1;
  llvm::StringRef text;
  llvm::SMLoc at;
  int64_t joint = -1; ///< of an OVERLAP_F_B cell: its number; -1 for a cell of its own

  bool isUnit() const { return kind <= W; }
  bool isBackward() const { return kind == I || kind == B; }
  bool isMessage() const { return isSend() || isReceive(); }
  bool isSend() const { return kind == SendF || kind == SendB; }
  bool isReceive() const { return kind == RecvF || kind == RecvB; }
  bool isWait() const { return kind == WaitSendF || kind == WaitSendB; }
  bool isForward() const { return kind == SendF || kind == RecvF || kind == WaitSendF; }
};

struct CsvRow {
  llvm::SMLoc at;
  std::vector<CsvAction> actions;
  llvm::SMLoc blank; ///< the first empty cell, if there is one
};

struct CsvTable {
  llvm::SMLoc at;
  std::vector<CsvRow> rows; ///< by rank
  bool hasMessages = false;
};

/// The cells of the main buffer, exactly as the grammar has them; lines that begin with `#` are comments.
mlir::FailureOr<CsvTable> readCells(Source &source, CsvDialect dialect);

/// One element of the order over all ranks that respects every row: a unit, the units of one cell, or a message by its
/// SEND cell.
struct CsvStep {
  int64_t rank; ///< of units
  std::vector<const CsvAction *> actions;
};

/// Merges the rows into one order in which a SEND and its RECV are one step; checks before that each message has both
/// ends, in the right rows, between the units that make and use it, in one order at both ends. `ranks` is by stage.
mlir::FailureOr<std::vector<CsvStep>> mergeRows(Source &source, const CsvTable &table, llvm::ArrayRef<int64_t> ranks);

/// Reads the main buffer: a module with one `pipeline.program` of stages and actions, each at the position of its cell.
/// Which units there are, how often, and in which order, is for verify-units and linearize-actions to judge.
mlir::OwningOpRef<mlir::ModuleOp> importCsv(llvm::SourceMgr &manager, mlir::MLIRContext *context, CsvDialect dialect,
                                            llvm::StringRef name);

/// Writes a program of stages and actions as a `.pipe` file: a list for each rank, or, where messages are given, one
/// order. `name` is the schedule's, `origin` where it comes from.
void writePipe(pipeline::ProgramOp program, llvm::StringRef name, llvm::StringRef origin, llvm::raw_ostream &os);

} // namespace pp

#endif // PP_FRONTEND_CSV_H
