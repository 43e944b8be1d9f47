// What watches this process where it waits for all ranks at the start or the end of MPI, or ends itself.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRANSPORT_DEADLINE_H
#define PP_RUNTIME_TRANSPORT_DEADLINE_H

#include <memory>

namespace pp {

/// Has a child process watch this one, which is about to end: nobody waits for it any more. If it is stopped for so
/// long, the child says so and kills it.
void watchEnd(double seconds);
/// Writes what is buffered and ends the child, if there is one.
void endWatched();

/// Limits the time of a call of MPI that other ranks must join, and that never returns if they do not. When the time is
/// over, this process names the ranks of this machine that have not come, and ends.
class Deadline {
public:
  Deadline(const char *what, double seconds);
  ~Deadline();
  Deadline(const Deadline &) = delete;
  Deadline &operator=(const Deadline &) = delete;

private:
  struct Watch;
  std::unique_ptr<Watch> watch;
};

} // namespace pp

#endif // PP_RUNTIME_TRANSPORT_DEADLINE_H
