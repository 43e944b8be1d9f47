// The ranks of a run as fibers of one thread: each has its stack, and gives way only where it waits.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_DEVICE_FIBERS_H
#define PP_RUNTIME_DEVICE_FIBERS_H

#include "runtime/Status.h"
#include <functional>
#include <memory>
#include <vector>

namespace pp {

class Fibers {
public:
  explicit Fibers(int32_t count);
  ~Fibers();
  Fibers(const Fibers &) = delete;
  Fibers &operator=(const Fibers &) = delete;

  /// Runs body(0), body(1), .. to their ends. When all that are left wait for what none of them will bring about,
  /// `standstill` says what that means, and the run is broken off with it.
  Status run(const std::function<void(int32_t)> &body, const std::function<Status()> &standstill);

  /// On a fiber: lets the others run until `ready()`; false if the run was broken off before. Allocates nothing.
  template <typename Ready> bool waitUntil(const Ready &ready) {
    return await([](const void *what) { return (*static_cast<const Ready *>(what))(); }, &ready);
  }

  /// The run cannot go on: all waits end. The first reason stays.
  void breakOff(int32_t number, Status status);
  [[nodiscard]] const Status &failure() const { return why; }
  [[nodiscard]] int32_t failed() const { return failedNumber; }

private:
  struct Fiber;
  struct Contexts;
  using Condition = bool (*)(const void *);
  bool await(Condition condition, const void *what);
  static void enter();

  std::vector<std::unique_ptr<Fiber>> fibers;
  std::unique_ptr<Contexts> contexts;
  std::function<void(int32_t)> body;
  Fiber *current = nullptr;
  Status why;
  int32_t failedNumber = -1;
};

} // namespace pp

#endif // PP_RUNTIME_DEVICE_FIBERS_H
