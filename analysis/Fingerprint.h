// What identifies a program in the files that its runs write, so that it refuses the files of another program.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_FINGERPRINT_H
#define PP_ANALYSIS_FINGERPRINT_H

#include "dialect/pipeline/Pipeline.h"
#include "llvm/Support/JSON.h"

namespace pp {

/// Names and sizes, and hashes: of each task's operand types (`tasks`, by name), of every rank's units in order
/// (`units`), and of its messages in order (`messages`). A run copies it into its profile and trace as `made_from`.
mlir::DictionaryAttr fingerprintOf(pipeline::ProgramOp program);

/// What is wrong with a file whose root this is: it does not say what it was made from, or that was another program,
/// with the first difference. Empty if it is of this program; `inOrder`: with the same units and messages in the same
/// order. Without, the schedule, its ranks and its microbatches may be others: what both run works on the same tensors.
std::string differenceFrom(pipeline::ProgramOp program, const llvm::json::Object &root, bool inOrder);

} // namespace pp

#endif // PP_ANALYSIS_FINGERPRINT_H
