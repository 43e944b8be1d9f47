// The messages of rank programs: which posts are ends of the same message, its number, and the bytes that it brings.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_MESSAGES_H
#define PP_ANALYSIS_MESSAGES_H

#include "dialect/pipeline/Pipeline.h"
#include "llvm/ADT/DenseMap.h"

namespace pp {

/// Numbers from 1: sends and collectives in the order of ranks and of their lists. An emitted program counts the same
/// way (runtime/files/Trace.cpp), so that a planned and a measured message have the same number.
class Messages {
public:
  Messages() = default;
  explicit Messages(pipeline::ProgramOp program);

  int64_t size() const { return count; }
  int64_t numberOf(pipeline::PostOp post) const { return numbers.lookup(post); }

private:
  llvm::DenseMap<mlir::Operation *, int64_t> numbers; ///< by post
  int64_t count = 0;
};

/// Bytes that a rank sends, receives or has all of in a collective: of its slot, or of the first tensors of it.
int64_t bytesOf(pipeline::PostOp post);
/// Bytes that come to the rank from others, each member's straight from it.
int64_t bytesReceived(pipeline::PostOp post);

} // namespace pp

#endif // PP_ANALYSIS_MESSAGES_H
