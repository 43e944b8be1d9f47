// Switches between the stacks of the ranks; a round in which nobody can go on is a standstill.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/device/Fibers.h"
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace pp {

namespace {

/// The stack of each fiber; only pages that are touched take memory. The lowest page is not mapped: an overflow ends
/// the program.
constexpr size_t stackBytes = size_t(16) << 20;

/// The fibers that run in this thread, for the function that a new stack begins with.
thread_local Fibers *entering = nullptr;

} // namespace

struct Fibers::Fiber {
  int32_t number = 0;
  char *stack = nullptr;
  ucontext_t context;
  Condition condition = nullptr; ///< null: it can go on
  const void *what = nullptr;
  bool ended = false;
  ~Fiber() {
    if (stack)
      munmap(stack, stackBytes);
  }
};

struct Fibers::Contexts {
  ucontext_t scheduler;
};

Fibers::Fibers(int32_t count) : contexts(std::make_unique<Contexts>()) {
  for (int32_t number = 0; number < count; ++number) {
    fibers.push_back(std::make_unique<Fiber>());
    fibers.back()->number = number;
  }
}

Fibers::~Fibers() = default;

void Fibers::enter() {
  Fibers &all = *entering;
  Fiber &self = *all.current;
  all.body(self.number);
  self.ended = true; // and on in the scheduler, which is the context's link
}

bool Fibers::await(Condition condition, const void *what) {
  if (!why.ok())
    return false;
  if (condition(what))
    return true;
  Fiber &self = *current;
  self.condition = condition;
  self.what = what;
  swapcontext(&self.context, &contexts->scheduler);
  return why.ok();
}

void Fibers::breakOff(int32_t number, Status status) {
  if (!why.ok())
    return;
  why = std::move(status);
  failedNumber = number;
}

Status Fibers::run(const std::function<void(int32_t)> &its, const std::function<Status()> &standstill) {
  body = its;
  for (auto &fiber : fibers) {
    void *stack = mmap(nullptr, stackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED)
      return refused("no stack for rank ", fiber->number, ": ", strerror(errno));
    fiber->stack = static_cast<char *>(stack);
    mprotect(fiber->stack, size_t(sysconf(_SC_PAGESIZE)), PROT_NONE);
    getcontext(&fiber->context);
    fiber->context.uc_stack = {stack, 0, stackBytes};
    fiber->context.uc_link = &contexts->scheduler;
    makecontext(&fiber->context, &Fibers::enter, 0);
  }
  entering = this;
  for (size_t left = fibers.size(); left > 0;) {
    bool moved = false;
    for (auto &fiber : fibers) {
      if (fiber->ended || (fiber->condition && why.ok() && !fiber->condition(fiber->what)))
        continue;
      fiber->condition = nullptr;
      current = fiber.get();
      swapcontext(&contexts->scheduler, &fiber->context);
      moved = true;
      left -= fiber->ended;
    }
    if (!moved)
      breakOff(-1, standstill());
  }
  return {};
}

} // namespace pp
