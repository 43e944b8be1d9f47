// Two task bodies that run side by side: in which turns their ops run, so that messages of one hide behind the other.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_INTERLEAVE_H
#define PP_ANALYSIS_INTERLEAVE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SmallVector.h"

namespace pp {

/// One op of a task body: seconds that it computes, or seconds that its message has the links of its axes to itself and
/// is on its way beside that.
struct OpTime {
  double compute = 0, transfer = 0, latency = 0;
  mlir::Attribute axes;  ///< null: it exchanges nothing
  bool overlaps = false; ///< it runs while its body's message is under way (kOverlapsAttr)
  double all() const { return compute + transfer + latency; }
  bool operator==(const OpTime &) const = default;
};

/// When each of two bodies begins its first op and has ended its last one, in seconds from the begin of both.
struct BesideTimes {
  double begin[2] = {0, 0}, end[2] = {0, 0};
  double length() const { return std::max(end[0], end[1]); }
};

/// Runs the ops in these turns, as `beside` of pipeline.launch has them: one op computes at a time, messages over the
/// same axes go one after the other, and a body waits for its message before the next op that does not overlap with it,
/// or at its end.
BesideTimes runInTurns(llvm::ArrayRef<int64_t> turns, llvm::ArrayRef<OpTime> first, llvm::ArrayRef<OpTime> second);

/// Turns in which both end early: the best of all orders where bodies are short, near it where they are long; one after
/// the other where that is as short. A turn of 0 ops only waits for the body's last message.
llvm::SmallVector<int64_t> chooseTurns(llvm::ArrayRef<OpTime> first, llvm::ArrayRef<OpTime> second);

/// The time of one body alone.
double runAlone(llvm::ArrayRef<OpTime> ops);

/// Times of a body without a cluster: arithmetic and bytes in one ratio for all ops; each message takes one unit.
llvm::SmallVector<OpTime> guessedTimes(mlir::func::FuncOp body);

/// Messages of these bodies come to take as long together as the bodies compute.
void scaleMessages(llvm::ArrayRef<llvm::SmallVector<OpTime> *> bodies);

} // namespace pp

#endif // PP_ANALYSIS_INTERLEAVE_H
