// Where a rank's memory lies and how its step runs there: on this CPU, or on a device that works through streams.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer touches the arena through this alone: what it writes before a step and reads after it is a copy.
#ifndef PP_RUNTIME_DEVICE_DEVICE_H
#define PP_RUNTIME_DEVICE_DEVICE_H

#include "runtime/Program.h"
#include "runtime/Rank.h"
#include <memory>
#include <vector>

namespace pp {

/// Bytes of the arena, or of what was allocated beside it, and where they come from or go to on the host.
struct StepCopy {
  int64_t offset;
  void *host;
  size_t bytes;
};

class Device {
public:
  virtual ~Device() = default;

  /// Makes the arena of the program, and so many bytes more, all of it zero. These have the offsets from the arena's
  /// size on.
  virtual Status allocate(const RankProgram &program, int64_t more) = 0;
  virtual Status upload(int64_t offset, const void *from, size_t bytes) = 0;
  virtual Status download(int64_t offset, void *to, size_t bytes) = 0;

  /// The address of the arena for its kernels.
  [[nodiscard]] virtual const char *base() const = 0;
  /// The address of an offset for its kernels.
  [[nodiscard]] virtual const char *at(int64_t offset) const = 0;

  /// The kernels of this rank are prepared; from now on they run here.
  virtual void bind(pp_rank_t &rank) = 0;
  /// Copies what the next step reads: it has been read from the host, and is in the arena when the step begins.
  virtual Status give(const std::vector<StepCopy> &inputs) = 0;
  /// Runs one step of the rank to its end, and copies what it has made to the host. Collective over the ranks of the
  /// device.
  virtual pp_status_t run(pp_step_t step, pp_rank_t &rank, const std::vector<StepCopy> &results) = 0;

  /// Steps from now on are asked for call by call, or as is fastest.
  virtual void callByCall([[maybe_unused]] bool wanted) {}
  /// The bytes at an address of the arena, once everything that the rank has asked for is done. May be called between
  /// steps and in them. `room` is for a copy.
  virtual Status see(const void *at, size_t bytes, std::vector<char> &room, const char *&seen) = 0;

  /// Bytes of the arena that the run has used, host memory apart; -1: not known.
  [[nodiscard]] virtual int64_t usedBytes() const = 0;
  /// Bytes of the device's memory that are taken since the process opened it; -1: not known, or not the rank's alone.
  [[nodiscard]] virtual int64_t takenBytes() const { return -1; }
  /// The marks of a step say when its units ran. Elsewhere only when they were handed to the device.
  [[nodiscard]] virtual bool isTimed() const = 0;
  /// The device's name, behind that of the kernels; empty for this CPU.
  [[nodiscard]] virtual std::string name() const = 0;
};

/// This CPU: pages of the system, the step is a call.
[[nodiscard]] std::unique_ptr<Device> makeHostDevice();

} // namespace pp

#endif // PP_RUNTIME_DEVICE_DEVICE_H
