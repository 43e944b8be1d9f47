// The CPU as a device: an arena of pages that the system gives when they are touched, and a step that is a call.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/device/Device.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace pp {
namespace {

class HostDevice final : public Device {
public:
  ~HostDevice() override {
    if (arena)
      munmap(arena, bytes);
  }

  Status allocate(const RankProgram &its, int64_t more) override {
    program = &its;
    if (program->arenaBytes == 0)
      return {};
    gap = -program->arenaBytes & (alignment - 1);
    bytes = size_t(program->arenaBytes + gap + more);
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      return refused("rank ", program->rank, " needs an arena of ", program->arenaBytes, " bytes: ", strerror(errno));
    arena = static_cast<char *>(memory);
    return {};
  }

  Status upload(int64_t offset, const void *from, size_t bytes) override {
    memcpy(const_cast<char *>(at(offset)), from, bytes);
    return {};
  }
  Status download(int64_t offset, void *to, size_t bytes) override {
    memcpy(to, at(offset), bytes);
    return {};
  }

  const char *base() const override { return arena; }
  const char *at(int64_t offset) const override {
    return arena + (offset < program->arenaBytes ? offset : offset + gap);
  }
  void bind(pp_rank_t &) override {}
  Status give(const std::vector<StepCopy> &inputs) override {
    for (const StepCopy &each : inputs)
      memcpy(const_cast<char *>(at(each.offset)), each.host, each.bytes);
    return {};
  }
  pp_status_t run(pp_step_t step, pp_rank_t &rank, const std::vector<StepCopy> &results) override {
    auto code = pp_status_t(step(&rank, arena));
    for (const StepCopy &each : results)
      memcpy(each.host, arena + each.offset, each.bytes);
    return code;
  }

  Status see(const void *at, size_t, std::vector<char> &, const char *&seen) override {
    seen = static_cast<const char *>(at);
    return {};
  }

  /// Pages of the arena that were touched.
  int64_t usedBytes() const override {
    if (!arena)
      return 0;
    int64_t page = sysconf(_SC_PAGESIZE), device = program->arenaBytes - program->hostBytes;
    std::vector<unsigned char> resident((device + page - 1) / page);
    if (mincore(arena, device, resident.data()) != 0)
      return -1;
    int64_t pages = std::count_if(resident.begin(), resident.end(), [](unsigned char flags) { return flags & 1; });
    return std::min(pages * page, program->hostBytes ? program->plannedPeak() : device);
  }
  bool isTimed() const override { return true; }
  std::string name() const override { return ""; }

private:
  const RankProgram *program = nullptr;
  char *arena = nullptr;
  size_t bytes = 0;
  static constexpr int64_t alignment = 64;
  int64_t gap = 0; ///< between the arena and what was allocated beside it
};

} // namespace

std::unique_ptr<Device> makeHostDevice() { return std::make_unique<HostDevice>(); }

} // namespace pp
