// The ways to run the ranks of a program: threads, fibers that share a device, or processes under mpirun.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_START_RUN_H
#define PP_RUNTIME_START_RUN_H

#include "runtime/device/Driver.h"
#include "runtime/trainer/Trainer.h"

namespace pp {

/// The exit status of a run that was told to end, and has saved where it is.
constexpr int endedEarly = 5;

/// Prints once why a run failed; the exit status of the process.
int say(const Status &status);
/// And on which device, where that is not the first.
int say(const Status &status, const Mesh &mesh, int32_t device);

/// All devices in this process, each a thread on this CPU.
int runThreads(Emitted &emitted, const Options &options);
/// All devices in this process, one thread that asks the device for the work of all.
int runStreams(Emitted &emitted, const Options &options, Driver &driver);
/// This process is one device of several under mpirun. (Where the program was linked with MPI.)
int runMpi(Emitted &emitted, const Options &options);

} // namespace pp

#endif // PP_RUNTIME_START_RUN_H
