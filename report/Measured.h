// Reads what a run measured back into the record that the simulator fills, so that both are drawn and compared alike.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_REPORT_MEASURED_H
#define PP_REPORT_MEASURED_H

#include "analysis/Simulate.h"

namespace pp {

/// One step of a trace that an emitted program wrote with `--trace`: of its steps after the first the one of median
/// length. Units stand for the program's launches in their order, messages for the flights with their numbers. Memory
/// and links stay empty. A trace of another program is an error.
mlir::FailureOr<Timeline> readMeasured(pipeline::ProgramOp program, llvm::StringRef path);

} // namespace pp

#endif // PP_REPORT_MEASURED_H
