// The handler of the signals by which schedulers and people tell a run to end.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/transport/Told.h"
#include <atomic>
#include <csignal>
#include <unistd.h>

namespace pp {
namespace {

std::atomic<int> told = 0;
std::atomic<bool> kept = false;
static_assert(std::atomic<int>::is_always_lock_free);

void onSignal(int number) {
  if (number == SIGTERM && ((hasRunFailed && hasRunFailed()) || told.load() == SIGTERM))
    _exit(128 + number);
  told.store(number);
}

void handle(void (*by)(int)) {
  struct sigaction action = {};
  action.sa_handler = by;
  action.sa_flags = SA_RESTART; // files are being written
  for (int number : {SIGTERM, SIGUSR1})
    sigaction(number, &action, nullptr);
}

} // namespace

bool (*hasRunFailed)() = nullptr;

void keepSignals() {
  kept = true;
  handle(onSignal);
}

bool areSignalsKept() { return kept; }

int toldBy() { return told; }

void ignoreSignals() { handle(SIG_IGN); }

} // namespace pp
