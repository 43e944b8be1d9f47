// Maps files and keeps a table of them: a page that is gone raises SIGBUS, whose handler finds the file by its address.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/files/Mapping.h"
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace pp {

bool (*mayReport)() = nullptr;

namespace {

/// More than a large model has files, for each of many ranks in one process.
constexpr size_t maxMappings = 1 << 14;
/// Files below this size may be anything; above it, one of which less was written than this share was never filled.
constexpr int64_t largeBytes = int64_t(1) << 30;
constexpr int64_t leastShare = 8;

struct Region {
  std::atomic<uintptr_t> begin; ///< 0: free
  std::atomic<size_t> size;
  std::atomic<const char *> name;
};
std::array<Region, maxMappings> regions;
std::atomic<bool> reported;

const Region *regionOf(uintptr_t address) {
  for (const Region &region : regions)
    if (uintptr_t begin = region.begin.load(); begin && address >= begin && address < begin + region.size.load())
      return &region;
  return nullptr;
}

/// Calls only what a signal handler may call.
void onBusError(int, siginfo_t *info, void *) {
  const Region *region = regionOf(uintptr_t(info->si_addr));
  if (!region) {
    signal(SIGBUS, SIG_DFL); // the instruction runs again, and ends the process
    return;
  }
  if (!reported.exchange(true) && (!mayReport || mayReport())) {
    const char *parts[] = {"pp: error: `", region->name.load(),
                           "` was cut while the run read it, or cannot be read any more\n"};
    char line[512];
    size_t length = 0;
    for (const char *part : parts)
      for (; *part && length < sizeof line; ++part)
        line[length++] = *part;
    [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line, length);
  }
  _exit(PP_IO);
}

int enter(const char *begin, size_t size, const char *name) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = onBusError;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
  });
  for (size_t i = 0; i < regions.size(); ++i)
    if (regions[i].begin.load() == 0) {
      regions[i].size = size;
      regions[i].name = name;
      regions[i].begin = uintptr_t(begin);
      return int(i);
    }
  return -1;
}

} // namespace

Status Mapping::open(const std::string &path, const std::string &what) {
  close();
  name = path;
  int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe would wait for a writer
  if (file < 0)
    return refused("cannot read ", what, "`", path, "`: ", strerror(errno));
  struct stat info;
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(file);
    return refused("cannot read ", what, "`", path, "`: it is not a regular file");
  }
  const int64_t held = int64_t(info.st_blocks) * 512;
  if (info.st_size > largeBytes && held < info.st_size / leastShare) {
    ::close(file);
    return invalid("cannot read ", what, "`", path, "`: it has ", info.st_size, " bytes, and only ", held,
                   " of them were ever written");
  }
  int error = 0;
  if (info.st_size > 0) {
    void *mapped = mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    error = errno;
    begin = mapped == MAP_FAILED ? nullptr : static_cast<const char *>(mapped);
  }
  ::close(file);
  if (info.st_size > 0 && !begin)
    return refused("cannot map ", what, "`", path, "`: ", strerror(error));
  size = size_t(info.st_size);
  if (begin)
    slot = enter(begin, size, name.c_str());
  if (bytes().starts_with("version https://git-lfs.github.com/spec/"))
    return invalid("cannot read ", what, "`", path,
                   "`: it is a pointer of git-LFS in place of the file; fetch the file ",
                   "with `git lfs pull` in its folder");
  return {};
}

void Mapping::close() {
  if (slot >= 0)
    regions[size_t(slot)].begin = 0;
  if (begin)
    munmap(const_cast<char *>(begin), size);
  begin = nullptr;
  size = 0;
  slot = -1;
}

} // namespace pp
