// How many bytes of states the backward of a scan has at once, which tests make fewer.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_SIMT_SCAN_STATES_H
#define PP_RUNTIME_SIMT_SCAN_STATES_H

#include <cstdint>

namespace pp {

/// At most mostOfStates of runtime/kernels/Facts.h, for which scratch is planned.
extern int64_t statesOfScan;

} // namespace pp

#endif // PP_RUNTIME_SIMT_SCAN_STATES_H
