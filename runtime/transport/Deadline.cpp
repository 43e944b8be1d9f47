// Ends a process that waits too long at the start or the end of MPI, and names the ranks that have not come.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/transport/Deadline.h"
#include "runtime/Status.h"
#include "runtime/transport/Presence.h"
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <pthread.h>
#include <set>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace pp {
namespace {

/// The name of the thread that watches a deadline. By it other ranks see that this rank has come to the call.
constexpr const char *watchName = "pp: waits";

std::string readFile(const std::string &path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A variable in the environment of a process, as /proc has it: each ends with a zero.
std::string variableOf(const std::string &environment, const std::string &name) {
  const std::string all = std::string(1, '\0') + environment, key = std::string(1, '\0') + name + "=";
  const size_t at = all.find(key);
  return at == all.npos ? "" : std::string(all.c_str() + at + key.size());
}

/// A process that was started as a rank of this run on this machine.
struct Launched {
  std::string rank;
  int32_t pid;
};

/// They have the same namespace of PMIx, or the same parent. Wrappers around a program are ranks, too.
std::vector<Launched> launchedHere() {
  std::vector<Launched> all;
  const char *space = getenv("PMIX_NAMESPACE");
  const std::string parent = std::to_string(getppid());
  std::error_code none;
  for (const auto &entry : std::filesystem::directory_iterator("/proc", none)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos)
      continue;
    const std::string environment = readFile(entry.path() / "environ");
    std::string rank;
    for (const char *variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
      if (rank.empty())
        rank = variableOf(environment, variable);
    if (rank.empty())
      continue;
    std::string stat = readFile(entry.path() / "stat");
    stat = stat.substr(std::min(stat.rfind(')'), stat.size())); // `) S 4711 ..`
    const bool isOurs = space ? variableOf(environment, "PMIX_NAMESPACE") == space
                              : stat.size() > 4 && stat.substr(4, stat.find(' ', 4) - 4) == parent;
    if (isOurs)
      all.push_back({rank, std::atoi(name.c_str())});
  }
  return all;
}

/// Whether a process waits in a call that has a deadline.
bool hasCome(int32_t pid) {
  std::error_code none;
  for (const auto &thread : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", none))
    if (readFile(thread.path() / "comm") == std::string(watchName) + "\n")
      return true;
  return false;
}

/// Works without a table: names ranks of this machine that are stopped, or have not come to the call in which this rank
/// waits.
std::string describeMissing() {
  std::set<std::string> come;
  std::string out;
  const std::vector<Launched> all = launchedHere();
  for (const Launched &each : all)
    if (hasCome(each.pid))
      come.insert(each.rank);
  for (const Launched &each : all)
    if (const bool stopped = isStopped(each.pid); stopped || come.insert(each.rank).second)
      out += text("; rank ", each.rank, " (process ", each.pid, stopped ? ") is stopped" : ") has not come");
  return out;
}

/// The time that a process waits before it reports, if no table says who reports: mpirun ends the others meanwhile. A
/// process that can name a rank reports before those that cannot.
std::chrono::milliseconds turnOf(bool knows) {
  constexpr int step = 100, most = 15, later = 1500;
  const char *number = launchedAs();
  return std::chrono::milliseconds((number ? step * std::min(atoi(number), most) : 0) + (knows ? 0 : later));
}

pid_t watcher = 0; ///< the child that watches the end

/// The child's work: it calls only functions that are safe after a fork.
[[noreturn]] void watchParent(pid_t parent, double seconds, const char *line, size_t length) {
  constexpr double turn = 0.02;
  const timespec pause = {0, long(turn * 1e9)};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (double stopped = 0; getppid() == parent; nanosleep(&pause, nullptr)) {
    stopped = isStopped(parent) ? stopped + turn : 0;
    if (stopped < seconds)
      continue;
    [[maybe_unused]] ssize_t written = claimReport() ? write(STDERR_FILENO, line, length) : 0;
    kill(parent, SIGKILL);
    break;
  }
  _exit(0);
}

} // namespace

void watchEnd(double seconds) {
  const pid_t parent = getpid();
  char line[192];
  const int length = snprintf(line, sizeof line,
                              "pp: error: %s (process %d) is stopped behind its last step, for %g s: it is killed\n",
                              nameOfOwn().c_str(), int(parent), seconds);
  watcher = fork();
  if (watcher != 0)
    return; // (-1: the machine has no process left)
  for (int number : {SIGTERM, SIGUSR1})
    signal(number, SIG_DFL);
  close(STDIN_FILENO);
  close(STDOUT_FILENO);
  watchParent(parent, seconds, line, size_t(length));
}

void endWatched() {
  if (watcher <= 0)
    return;
  fflush(nullptr);
  kill(watcher, SIGKILL);
  waitpid(watcher, nullptr, 0);
}

struct Deadline::Watch {
  std::mutex mutex;
  std::condition_variable ended;
  bool isOver = false;
  std::thread thread;
};

Deadline::Deadline(const char *what, double seconds) : watch(std::make_unique<Watch>()) {
  keepWait(what);
  watch->thread = std::thread([its = watch.get(), what, seconds] {
    pthread_setname_np(pthread_self(), watchName);
    constexpr double longest = 1e8; // three years: what a clock can add
    std::unique_lock lock(its->mutex);
    if (its->ended.wait_for(lock, std::chrono::duration<double>(std::min(seconds, longest)),
                            [its] { return its->isOver; }))
      return;
    std::string others = hasTable() ? describeOthers() : describeMissing();
    if (!hasTable() && its->ended.wait_for(lock, turnOf(!others.empty()), [its] { return its->isOver; }))
      return;
    if (!hasTable() && others.empty())
      others = "; the ranks of this machine have come";
    if (claimReport())
      fprintf(stderr, "pp: error: %s%s is overdue after %g s%s\n", hasTable() ? (nameOfOwn() + ": ").c_str() : "", what,
              seconds, others.c_str());
    const int code = codeOfFirst(PP_PEER);
    markFailed();
    _exit(code);
  });
}

Deadline::~Deadline() {
  {
    std::lock_guard lock(watch->mutex);
    watch->isOver = true;
  }
  watch->ended.notify_all();
  watch->thread.join();
  keepWait({});
}

} // namespace pp
