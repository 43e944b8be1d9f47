// Keeps that this process was told to end: a run that saves then writes its checkpoint behind the step in progress.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRANSPORT_TOLD_H
#define PP_RUNTIME_TRANSPORT_TOLD_H

namespace pp {

/// From now on SIGTERM and SIGUSR1 are kept, and do not end this process. A second SIGTERM does.
void keepSignals();
[[nodiscard]] bool areSignalsKept();
/// The signal that has come; 0: none.
[[nodiscard]] int toldBy();
/// Ignores further signals: the run ends anyway.
void ignoreSignals();

/// Whether SIGTERM comes because another rank has failed: then this one ends at once. It is asked in a signal handler.
/// Null: no.
extern bool (*hasRunFailed)();

} // namespace pp

#endif // PP_RUNTIME_TRANSPORT_TOLD_H
