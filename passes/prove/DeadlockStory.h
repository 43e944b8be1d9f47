// Why rank programs stop: a shortest cycle of waits, told at the user's lines, and which post would remove it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_DEADLOCKSTORY_H
#define PP_PASSES_DEADLOCKSTORY_H

#include "analysis/Execution.h"

namespace pp {

/// One error about an execution that has run and not ended; always failure.
llvm::LogicalResult tellDeadlock(pipeline::ProgramOp program, ChannelMap map, const Execution &execution);

} // namespace pp

#endif // PP_PASSES_DEADLOCKSTORY_H
