// What `--emit=timeline` and the other pictures draw, all of them from the one record of a simulated or measured run.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_REPORT_PICTURES_H
#define PP_REPORT_PICTURES_H

#include "analysis/Simulate.h"

namespace pp {

struct DrawingOptions {
  bool toScale = false; ///< B is two cells wide, all else one; without it B is one, too
  unsigned columns = 0; ///< of text, after which the drawing goes on below; 0: never
};

/// A drawing for a terminal: `r0 | F0 F1 .. B0`; in colours where `os` has them or `--color` asks for them.
void drawTimeline(pipeline::ProgramOp program, const DrawingOptions &options, llvm::raw_ostream &os);

struct PictureOptions {
  bool messages = false; ///< arrows
  bool memory = false;   ///< curves under the rows
};

/// The figure that a paper would print.
void drawSvg(pipeline::ProgramOp program, const Timeline &timeline, const PictureOptions &options,
             llvm::raw_ostream &os);

/// One HTML page: timeline, memory, where time goes, links, and what was proved. `measured` is drawn under the plan if
/// it is not null. The page loads itself again when the script `watched` beside it says a new number; never if
/// `watched` is empty.
void writeReport(pipeline::ProgramOp program, const Timeline &timeline, const Timeline *measured,
                 llvm::StringRef watched, llvm::raw_ostream &os);

/// Chrome's trace format, for chrome://tracing and Perfetto; a unit of unit time is a millisecond.
void writeTrace(pipeline::ProgramOp program, const Timeline &timeline, llvm::raw_ostream &os);

/// Chakra execution traces for ASTRA-sim: PREFIX.<device>.et, and PREFIX.groups.json where sums are over fewer than all
/// devices. Without a mesh a device is a rank.
llvm::LogicalResult writeChakra(pipeline::ProgramOp program, const Timeline &timeline, llvm::StringRef prefix);

} // namespace pp

#endif // PP_REPORT_PICTURES_H
