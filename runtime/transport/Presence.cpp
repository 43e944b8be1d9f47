// Keeps the table of this machine's ranks in memory that MPI shares; the signal handler reads it too.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// The C interface alone: the C++ bindings of mpi.h would need their own library.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "runtime/transport/Presence.h"
#include "runtime/Pp.h"
#include "runtime/files/Mapping.h"
#include "runtime/transport/Told.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

namespace pp {
namespace {

enum Life : int32_t { unknown, runs, endsInOrder, failed };

/// The entry of one rank, which the other ranks of its machine read.
struct Entry {
  std::atomic<int32_t> pid;
  std::atomic<int32_t> rank;
  std::atomic<int32_t> state; ///< one of Life
  std::atomic<int32_t> open;  ///< number of a message
  std::atomic<int64_t> step;
  char name[64];              ///< written before the others look
  std::atomic<int64_t> heard; ///< when `open` was kept, in nanoseconds of this machine's clock
  std::atomic<int32_t> waits; ///< 1: for `what`
  char what[256];             ///< may be read while it is written: words for people
};
/// The table of one machine; `reported`: somebody has printed; `code`: of the first that failed, or 0.
struct Table {
  std::atomic<int32_t> reported;
  std::atomic<int32_t> code;
  std::atomic<int32_t> count;
  Entry entries[1];
};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int32_t>::is_always_lock_free);

// One per process: the signal handler reads them.
Table *table = nullptr;
bool oneMachine = false;
Entry *own = nullptr;
MPI_Win tableWindow = MPI_WIN_NULL;
std::vector<int32_t> machineOf; // the handler does not look at this one

/// The state of a process as Linux shows it: `R`, `T` stopped, `Z` dead, ..; 0: not known. Safe in signal handlers.
char stateOf(int32_t pid) {
  char path[32], stat[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return 0;
  ssize_t size = read(file, stat, sizeof stat - 1);
  close(file);
  stat[size > 0 ? size : 0] = 0;
  const char *state = strrchr(stat, ')'); // the state follows the name
  return state && state[1] ? state[2] : 0;
}

bool isDead(int32_t pid) {
  if (kill(pid, 0) != 0)
    return errno == ESRCH;
  char state = stateOf(pid);
  return state == 'Z' || state == 'X';
}

const Entry *findDeadEntry() {
  if (!table)
    return nullptr;
  for (int32_t i = 0; i < table->count.load(); ++i) {
    const Entry &entry = table->entries[i];
    if (entry.state.load() == runs && &entry != own && isDead(entry.pid.load()))
      return &entry;
  }
  return nullptr;
}

int describeDead(const Entry &dead, char *out, size_t size) {
  return snprintf(out, size,
                  "%s (process %d) ended without an error message in step %lld: it was killed, or it crashed",
                  dead.name, dead.pid.load(), static_cast<long long>(dead.step.load()));
}

/// SIGTERM has come. If it is mpirun that ends us: says whose death caused it, unless somebody has said why already.
bool reportDead() {
  char line[224] = "pp: error: ";
  size_t head = strlen(line);
  const Entry *dead = findDeadEntry();
  if (dead && table->reported.exchange(1) == 0) {
    int length = int(head) + describeDead(*dead, line + head, sizeof line - head - 1);
    line[length++] = '\n';
    [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line, length);
  }
  return dead || hasAnotherFailed();
}

void onTerminate(int) {
  static_cast<void>(reportDead());
  _exit(128 + SIGTERM);
}

/// Makes the table of this machine's ranks and steps into it.
bool makeTable(int32_t rank, const std::string &name) {
  MPI_Comm machine = MPI_COMM_NULL;
  if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine) != MPI_SUCCESS)
    return false;
  int local = 0, locals = 1, ranks = 1;
  MPI_Comm_rank(machine, &local);
  MPI_Comm_size(machine, &locals);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_set_errhandler(machine, MPI_ERRORS_RETURN);
  int32_t lowest = rank;
  MPI_Bcast(&lowest, 1, MPI_INT32_T, 0, machine);
  machineOf.resize(ranks);
  if (MPI_Allgather(&lowest, 1, MPI_INT32_T, machineOf.data(), 1, MPI_INT32_T, MPI_COMM_WORLD) != MPI_SUCCESS)
    machineOf.clear();
  void *base = nullptr;
  MPI_Aint size = local == 0 ? MPI_Aint(sizeof(Table) + locals * sizeof(Entry)) : 0;
  int unit = 1;
  bool made = MPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, machine, &base, &tableWindow) == MPI_SUCCESS &&
              MPI_Win_shared_query(tableWindow, 0, &size, &unit, &base) == MPI_SUCCESS && base;
  if (made) {
    if (local == 0) {
      memset(base, 0, size);
      static_cast<Table *>(base)->count = locals;
    }
    MPI_Barrier(machine);
    table = static_cast<Table *>(base);
    own = &table->entries[local];
    own->pid = getpid();
    own->rank = rank;
    snprintf(own->name, sizeof own->name, "%s", name.c_str());
    own->state = runs;
    MPI_Barrier(machine);
  }
  MPI_Comm_free(&machine);
  return made && locals == ranks;
}

} // namespace

void enterPresence(int32_t rank, const std::string &name) {
  oneMachine = makeTable(rank, name);
  hasRunFailed = reportDead;
  if (!areSignalsKept())
    signal(SIGTERM, onTerminate);
  mayReport = [] {
    const bool isMine = claimReport(); // before the others see that we failed, and say so
    static_cast<void>(codeOfFirst(PP_IO));
    markFailed();
    return isMine;
  };
}

void leavePresence() {
  if (own)
    own->state = endsInOrder;
  MPI_Barrier(MPI_COMM_WORLD); // nobody may look at a table that is gone
  hasRunFailed = nullptr;
  if (!areSignalsKept())
    signal(SIGTERM, SIG_DFL);
  mayReport = nullptr;
  table = nullptr;
  own = nullptr;
  if (tableWindow != MPI_WIN_NULL)
    MPI_Win_free(&tableWindow);
}

bool isStopped(int32_t pid) {
  const char state = stateOf(pid);
  return state == 'T' || state == 't';
}

bool hasTable() { return table != nullptr; }

std::string nameOfOwn() {
  const char *number = launchedAs();
  return own ? own->name : number ? std::string("rank ") + number : std::string();
}

bool isOneMachine() { return oneMachine; }

const std::vector<int32_t> &machines() { return machineOf; }

int32_t ranksHere() { return table ? table->count.load() : 0; }

void keepStep(int64_t step) {
  if (own)
    own->step.store(step, std::memory_order_relaxed);
}

static int64_t clockOfMachine() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void keepOpen(int32_t message) {
  if (!own)
    return;
  own->open.store(message, std::memory_order_relaxed);
  own->heard.store(clockOfMachine(), std::memory_order_relaxed);
}

std::vector<Seen> lookAround() {
  std::vector<Seen> all;
  for (int32_t i = 0; table && i < table->count.load(); ++i) {
    const Entry &entry = table->entries[i];
    all.push_back({entry.rank, entry.open, entry.step, double(clockOfMachine() - entry.heard) * 1e-9});
  }
  std::sort(all.begin(), all.end(), [](const Seen &a, const Seen &b) { return a.rank < b.rank; });
  return all;
}

void keepWait(const std::string &what) {
  if (!own)
    return;
  if (!what.empty())
    snprintf(own->what, sizeof own->what, "%s", what.c_str());
  own->waits.store(!what.empty(), std::memory_order_release);
}

std::string describeOthers() {
  constexpr size_t most = 8; // of the lines of a long story
  std::vector<std::pair<int, std::string>> all;
  for (int32_t i = 0; table && i < table->count.load(); ++i) {
    const Entry &entry = table->entries[i];
    char line[384];
    const long long step = entry.step;
    const bool stopped = isStopped(entry.pid);
    if (&entry == own || (entry.state.load() != runs && !stopped))
      continue;
    const bool waits = entry.waits.load(std::memory_order_acquire) != 0;
    if (stopped)
      snprintf(line, sizeof line, "; %s (process %d) is stopped in step %lld", entry.name, entry.pid.load(), step);
    else if (waits)
      snprintf(line, sizeof line, "; %s waits for %.255s in step %lld", entry.name, entry.what, step);
    else
      snprintf(line, sizeof line, "; %s (process %d) waits for nobody in step %lld", entry.name, entry.pid.load(),
               step);
    all.push_back({stopped ? 0 : waits ? 2 : 1, line});
  }
  std::stable_sort(all.begin(), all.end(), [](const auto &a, const auto &b) { return a.first < b.first; });
  std::string out;
  for (size_t i = 0; i < all.size() && i < most; ++i)
    out += all[i].second;
  return out;
}

int codeOfFirst(int code) {
  int32_t first = 0;
  return !table || table->code.compare_exchange_strong(first, code) ? code : first;
}

void markFailed() {
  if (own)
    own->state = failed;
}

bool hasAnotherFailed() {
  for (int32_t i = 0; table && i < table->count.load(); ++i)
    if (&table->entries[i] != own && table->entries[i].state.load() == failed)
      return true;
  return false;
}

std::string findDead() {
  char line[192];
  const Entry *dead = findDeadEntry();
  return dead ? std::string(line, describeDead(*dead, line, sizeof line)) : std::string();
}

bool claimReport() { return !table || table->reported.exchange(1) == 0; }

} // namespace pp
