// Records which ranks of this machine live, and in which step each is, so that another rank can name a killed one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The processes of one machine share a small table. If one dies without a message, mpirun sends SIGTERM to the others,
// and a rank that waits looks at the table by itself: the first to see it prints.
#ifndef PP_RUNTIME_TRANSPORT_PRESENCE_H
#define PP_RUNTIME_TRANSPORT_PRESENCE_H

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace pp {

/// Which rank this process will be, as what started it says; null: it does not.
[[nodiscard]] inline const char *launchedAs() {
  for (const char *name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char *rank = getenv(name))
      return rank;
  return nullptr;
}

/// Makes the table and steps into it; from now on SIGTERM looks at it. Collective, MPI must run.
void enterPresence(int32_t rank, const std::string &name);
/// Steps out in order. Collective.
void leavePresence();

/// Whether the process is stopped, by a signal or a debugger. Safe in signal handlers.
[[nodiscard]] bool isStopped(int32_t pid);
/// There is a table.
[[nodiscard]] bool hasTable();
/// This rank as people know it; empty: it does not know which it is.
[[nodiscard]] std::string nameOfOwn();
/// The table holds every rank of the run.
[[nodiscard]] bool isOneMachine();
/// For each rank the lowest rank on its machine; empty if MPI cannot say it.
[[nodiscard]] const std::vector<int32_t> &machines();
/// The ranks of this machine; 0 without a table.
[[nodiscard]] int32_t ranksHere();
/// Keeps what this rank waits for, in words; empty: it goes on.
void keepWait(const std::string &what);
/// Says what the other ranks of this machine do, because this rank may wait for one of them: first stopped processes,
/// then ranks that do not wait, then what the others wait for. Empty if nothing is known.
[[nodiscard]] std::string describeOthers();
/// Keeps the step that this rank is in.
void keepStep(int64_t step);
/// Keeps which message of its step this rank waits for; said again and again while it waits.
void keepOpen(int32_t message);
/// An entry that a rank of this machine has written, and its age.
struct Seen {
  int32_t rank = -1, open = 0;
  int64_t step = 0;
  double seconds = 0;
};
[[nodiscard]] std::vector<Seen> lookAround();
/// The exit code of this process: that of the first rank on this machine that failed. mpirun reports the code of the
/// rank that ends first, which may be one that waited.
[[nodiscard]] int codeOfFirst(int code);
/// This rank has failed and said so.
void markFailed();
/// Another rank has failed and said so.
[[nodiscard]] bool hasAnotherFailed();
/// Names a rank that has ended without an error message; empty if there is none.
[[nodiscard]] std::string findDead();
/// True for exactly one of all that ask: the one that may print.
[[nodiscard]] bool claimReport();

} // namespace pp

#endif // PP_RUNTIME_TRANSPORT_PRESENCE_H
