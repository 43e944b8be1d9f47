// Schedules the fibers of one block after another; switches by hand on x86-64, by ucontext elsewhere.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/simt/BlockFibers.h"
#include "runtime/files/Random.h"
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <sys/mman.h>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

using namespace pp;

#ifdef __x86_64__
extern "C" void pp_simt_switch(void **from, void *to);
asm(R"(
.text
.type pp_simt_switch, @function
pp_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pp_simt_switch, .-pp_simt_switch
)");
#endif

namespace {

constexpr size_t stackBytes = 1 << 17;
constexpr unsigned lanes = 32, mostThreads = 1024;

enum class Phase : uint8_t { Ready, WaitsWarp, WaitsBlock, Done };

struct Copy {
  void *to;
  const void *from;
  size_t bytes;
  int group;
};

struct Fiber {
#ifdef __x86_64__
  void *stack = nullptr;
#else
  ucontext_t context;
#endif
  Phase phase = Phase::Done;
  std::vector<Copy> copies;
  int group = 0;
};

struct Warp {
  alignas(64) char slots[2][lanes][simtSlotBytes];
  unsigned generation = 0, arrived = 0;
};

void fiberMain();

struct Machine {
  std::vector<Fiber> fibers{mostThreads};
  std::vector<Warp> warps{mostThreads / lanes};
  Fiber host;
  char *stacks = nullptr;
  std::vector<char> sharedMemory;
  SimtPlace place;
  const std::function<void()> *body = nullptr;
  unsigned threads = 0, current = 0, waiting = 0;
  bool down = false;
  uint64_t seed = 0, draws = 0; ///< of a random order; 0: it is up or down

  Machine() {
    stacks = static_cast<char *>(mmap(nullptr, stackBytes * mostThreads, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    const char *order = std::getenv("PP_SIMT_ORDER");
    down = order && std::string(order) == "down";
    seed = order ? std::strtoull(order, nullptr, 10) : 0;
  }
  ~Machine() { munmap(stacks, stackBytes * mostThreads); }

  unsigned warpSize(unsigned warp) const {
    unsigned rest = threads - warp * lanes;
    return rest < lanes ? rest : lanes;
  }
  void prepare(unsigned i) {
    Fiber &fiber = fibers[i];
    fiber.phase = Phase::Ready;
    fiber.copies.clear();
    fiber.group = 0;
    char *stack = stacks + size_t(i) * stackBytes;
#ifdef __x86_64__
    void **top = reinterpret_cast<void **>(stack + stackBytes - 64);
    *--top = nullptr; // a return address for fiberMain, which never returns; keeps the stack aligned as after a call
    *--top = reinterpret_cast<void *>(fiberMain);
    for (int saved = 0; saved < 6; ++saved)
      *--top = nullptr;
    fiber.stack = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack;
    fiber.context.uc_stack.ss_size = stackBytes;
    makecontext(&fiber.context, fiberMain, 0);
#endif
  }
  void enter(Fiber &from, Fiber &to) {
#ifdef __x86_64__
    pp_simt_switch(&from.stack, to.stack);
#else
    swapcontext(&from.context, &to.context);
#endif
  }
  unsigned after(unsigned i) const { return down ? (i ? i - 1 : threads - 1) : (i + 1 < threads ? i + 1 : 0); }

  uint64_t draw() { return hashOf(seed, ++draws); }
  unsigned firstThread() { return seed ? unsigned(draw() % threads) : down ? threads - 1 : 0; }
  /// Block i of `count` in the order of this run.
  static uint64_t inOrder(uint64_t i, uint64_t count, uint64_t drawn) {
    uint64_t step = drawn % count + 1;
    while (std::gcd(step, count) != 1)
      ++step;
    return (drawn / count + i % count * step) % count;
  }

  /// Goes to the next fiber that can run, or back to the host when all are done.
  void yield() {
    Fiber &from = fibers[current];
    unsigned done = 0, next = seed ? firstThread() : current;
    for (unsigned i = 0; i < threads; ++i) {
      next = after(next);
      if (fibers[next].phase == Phase::Ready) {
        if (next == current)
          return;
        current = next;
        place.thread.x = next;
        return enter(from, fibers[next]);
      }
      done += fibers[next].phase == Phase::Done;
    }
    if (done == threads)
      return enter(from, host);
    std::fprintf(stderr,
                 "emulated kernel: block (%u, %u, %u) waits forever: %u of %u threads have ended, %u wait for all\n",
                 place.block.x, place.block.y, place.block.z, done, threads, waiting);
    std::abort();
  }

  void runBlock() {
    for (unsigned i = 0; i < threads; ++i)
      prepare(i);
    for (Warp &warp : warps)
      warp.generation = warp.arrived = 0;
    waiting = 0;
    std::memset(sharedMemory.data(), 0xff, sharedMemory.size());
    current = firstThread();
    place.thread = {current, 0, 0};
    enter(host, fibers[current]);
  }
};

Machine &machine() {
  static thread_local std::unique_ptr<Machine> here = std::make_unique<Machine>();
  return *here;
}

void fiberMain() {
  Machine &m = machine();
  (*m.body)();
  m.fibers[m.current].phase = Phase::Done;
  m.yield();
}

} // namespace

void (*pp::simtStreams)(void *stream, std::function<void()> kernel) = nullptr;
void (*pp::simtMemory)(void *memory, int64_t bytes) = nullptr;

SimtPlace &pp::simtPlace() { return machine().place; }

void pp::runGrid(SimtIndex grid, unsigned threads, size_t sharedBytes, const std::function<void()> &body) {
  Machine &m = machine();
  m.sharedMemory.resize(sharedBytes + 64);
  m.body = &body;
  m.threads = threads;
  m.place.blocks = grid;
  m.place.threads = {threads, 1, 1};
  m.place.shared = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(m.sharedMemory.data()) + 63) / 64 * 64);
  uint64_t count = uint64_t(grid.x) * grid.y * grid.z, drawn = m.seed ? m.draw() : 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t block = m.seed ? m.inOrder(i, count, drawn) : m.down ? count - 1 - i : i;
    m.place.block = {unsigned(block % grid.x), unsigned(block / grid.x % grid.y), unsigned(block / grid.x / grid.y)};
    m.runBlock();
  }
}

void pp::simtWaitBlock() {
  Machine &m = machine();
  if (++m.waiting == m.threads) {
    m.waiting = 0;
    for (unsigned i = 0; i < m.threads; ++i)
      m.fibers[i].phase = Phase::Ready;
    return;
  }
  m.fibers[m.current].phase = Phase::WaitsBlock;
  m.yield();
}

void pp::simtWaitWarp() {
  Machine &m = machine();
  unsigned number = m.current / lanes;
  Warp &warp = m.warps[number];
  if (++warp.arrived == m.warpSize(number)) {
    warp.arrived = 0;
    ++warp.generation;
    for (unsigned i = 0; i < m.warpSize(number); ++i)
      m.fibers[number * lanes + i].phase = Phase::Ready;
    return;
  }
  m.fibers[m.current].phase = Phase::WaitsWarp;
  m.yield();
}

char *pp::simtSlot() {
  Machine &m = machine();
  Warp &warp = m.warps[m.current / lanes];
  return warp.slots[warp.generation & 1][m.current % lanes];
}

const char *pp::simtExchangeSlots() {
  Machine &m = machine();
  Warp &warp = m.warps[m.current / lanes];
  const char *slots = warp.slots[warp.generation & 1][0];
  simtWaitWarp();
  return slots;
}

void pp::simtMisaligned(const void *address, int bytes) {
  const SimtPlace &at = machine().place;
  std::fprintf(stderr,
               "emulated kernel: block (%u, %u, %u), thread %u: %d bytes at once at %p, not a multiple of them\n",
               at.block.x, at.block.y, at.block.z, at.thread.x, bytes, address);
  std::abort();
}

void pp::simtCopyLater(void *to, const void *from, size_t bytes) {
  Fiber &fiber = machine().fibers[machine().current];
  fiber.copies.push_back({to, from, bytes, fiber.group});
}

void pp::simtCommitCopies() { ++machine().fibers[machine().current].group; }

void pp::simtWaitCopies(int groupsLeft) {
  Fiber &fiber = machine().fibers[machine().current];
  std::erase_if(fiber.copies, [&](const Copy &copy) {
    if (copy.group >= fiber.group - groupsLeft)
      return false;
    std::memset(copy.to, 0, 16);
    if (copy.bytes)
      std::memcpy(copy.to, copy.from, copy.bytes);
    return true;
  });
}
