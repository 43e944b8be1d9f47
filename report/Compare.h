// A measured step beside the planned one, by rank, phase and cause, by task and by lane.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_REPORT_COMPARE_H
#define PP_REPORT_COMPARE_H

#include "analysis/Simulate.h"

namespace pp {

/// A table for people: where the measured step took longer than the planned one, or shorter.
void printComparison(const Timeline &planned, const Timeline &measured, llvm::raw_ostream &os);

} // namespace pp

#endif // PP_REPORT_COMPARE_H
