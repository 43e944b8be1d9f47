// Compares what was lowered with what was proved: LLVM modules and texts, read back just before they are written.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The proofs speak of `pipeline.rank` programs; what runs are calls with numbers and addresses. These checks read the
// calls and the JSON texts back from the LLVM module, with none of the code that wrote them, and ask that they are
// what the rank program says: every launch, post and complete in order with its number and its addresses, every kernel
// of every body, every entry of every table, nothing missing and nothing else. They run in every lowering and are
// linear.
#ifndef PP_LOWERING_CHECKLOWERED_H
#define PP_LOWERING_CHECKLOWERED_H

#include "dialect/pipeline/Pipeline.h"

namespace llvm {
class Module;
} // namespace llvm

namespace pp {

/// The module of one rank; `forward` is its program for evaluation and `redo` the program that repeats an update; null
/// if there is none. A difference is an error at the op whose lowering differs.
mlir::LogicalResult checkLowered(pipeline::RankOp rank, pipeline::RankOp forward, pipeline::RankOp redo,
                                 const llvm::Module &lowered);

/// The module with the table of `ranks` and the text of the program. `evaluates`: the ranks have forward programs;
/// `isLate`: programs that do an update over.
mlir::LogicalResult checkLoweredTable(pipeline::ProgramOp program, llvm::ArrayRef<int64_t> ranks, bool evaluates,
                                      bool isLate, const llvm::Module &lowered);

} // namespace pp

#endif // PP_LOWERING_CHECKLOWERED_H
