// A rank's memory on a device with streams, and its step there: asked for call by call, or captured once and replayed.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_DEVICE_STREAMDEVICE_H
#define PP_RUNTIME_DEVICE_STREAMDEVICE_H

#include "runtime/device/Device.h"
#include "runtime/device/Driver.h"
#include "runtime/device/Fibers.h"
#include "runtime/files/Trace.h"
#include "runtime/transport/Transport.h"

namespace pp {

class Emitted; // runtime/Emitted.h

/// The ranks of this process, which share a device and begin and end each step together. With `graph` the first step
/// is asked for call by call (libraries load and tune themselves in it), the second is captured as one graph, and every
/// later step is one launch. Steps that evaluate are counted apart, in the same way.
class StepGroup {
public:
  /// `fibers` null: this process has one rank.
  StepGroup(Driver &driver, Fibers *fibers, int32_t ranks, bool graph)
      : driver(driver), fibers(fibers), ranks(ranks), graphWanted(graph) {}

  /// The next steps are asked for call by call, although there is a graph; all ranks say the same.
  void callByCall(bool wanted) { calls = wanted; }
  /// Each rank calls it; returns when the device is asked for the steps of all. What the rank's stream is asked for
  /// then happens behind them.
  Status run(pp_step_t step, pp_rank_t &rank, char *arena, Driver::Stream compute);
  [[nodiscard]] bool isOfOne() const { return ranks == 1; }

private:
  /// Steps of one kind.
  struct Kind {
    bool called = false; ///< one has been asked for call by call
    Driver::Graph graph = -1;
  };
  /// A rank's stream, and the event of its end.
  struct Lane {
    Driver::Stream compute = -1;
    Driver::Event end = -1;
  };
  enum class How : uint8_t { Calls, Capture, Replay };

  Status open(Kind &kind);
  Status close(Kind &kind);
  template <typename Ready> bool await(const Ready &ready) { return fibers ? fibers->waitUntil(ready) : ready(); }

  Driver &driver;
  Fibers *fibers;
  int32_t ranks, arrived = 0, issued = 0;
  bool graphWanted, calls = false;
  How how = How::Calls;
  int64_t opened = 0, closed = 0; ///< steps
  std::vector<Lane> lanes;
  Driver::Stream origin = -1;
  Driver::Event begin = -1, ended = -1; ///< of a capture; of a launch
  Kind training, evaluation;
};

/// With `timed` the marks of a trace are events in the rank's stream, for which a step must be asked for call by call.
class StreamDevice final : public Device, TraceMarks {
public:
  StreamDevice(Driver &driver, StepGroup &group, bool timed = false) : driver(driver), group(group), timed(timed) {}

  Status allocate(const RankProgram &program, int64_t more) override;
  Status upload(int64_t offset, const void *from, size_t bytes) override;
  Status download(int64_t offset, void *to, size_t bytes) override;
  const char *base() const override { return arena; }
  const char *at(int64_t offset) const override {
    return partOf(offset) == Part::More ? arena + moreAt + (offset - arenaBytes) : place(arena + offset);
  }
  void bind(pp_rank_t &rank) override {
    driver.bind(rank, stream);
    if (timed)
      rank.trace->setMarks(this);
  }
  Status give(const std::vector<StepCopy> &inputs) override;
  pp_status_t run(pp_step_t step, pp_rank_t &rank, const std::vector<StepCopy> &results) override;
  void callByCall(bool wanted) override { group.callByCall(wanted); }
  Status see(const void *at, size_t bytes, std::vector<char> &room, const char *&seen) override;
  int64_t usedBytes() const override { return deviceBytes; }
  int64_t takenBytes() const override { return group.isOfOne() ? driver.takenBytes() : -1; }
  bool isTimed() const override { return timed; }
  std::string name() const override { return driver.name(); }

  /// The stream of the rank's kernels.
  [[nodiscard]] Driver::Stream compute() const { return stream; }
  [[nodiscard]] bool holds(const char *address) const { return address >= arena && address < arena + deviceBytes; }
  /// The place of an address of the emitted step: the host part of the arena is separate memory.
  template <typename Address> [[nodiscard]] Address *place(Address *address) const {
    auto at = static_cast<const char *>(address) - arena;
    return host && at >= deviceBytes ? static_cast<Address *>(host + (at - deviceBytes)) : address;
  }

private:
  enum class Part : uint8_t { Device, Host, More };
  [[nodiscard]] Part partOf(int64_t offset) const {
    return offset < deviceBytes ? Part::Device : offset < arenaBytes ? Part::Host : Part::More;
  }
  /// Memory of the host in which pieces of the arena lie as they do there: those that lie together are one copy.
  struct Staging {
    struct Run {
      int64_t offset, bytes; ///< of the arena
      int64_t at;            ///< in this memory
    };
    std::vector<Run> runs;
    std::vector<char *> places; ///< of the pieces
    char *memory = nullptr;
    int64_t size = 0;
  };

  Status layOut(const std::vector<StepCopy> &pieces, int64_t most, Staging &staging);
  int64_t mark() override;
  int64_t timeOf(int64_t mark) override { return begun + driver.between(timers[0], timers[size_t(mark)]); }

  Driver &driver;
  StepGroup &group;
  bool timed;
  std::vector<Driver::Event> timers; ///< by mark of the step; the first is its begin
  size_t marks = 0;
  int64_t begun = 0; ///< when the first was asked for, of a stream with nothing to do
  Status marksFailed;
  Driver::Stream stream = -1;
  Driver::Event sees = -1;
  Staging given, made;
  char *arena = nullptr, *host = nullptr;
  int64_t deviceBytes = 0, arenaBytes = 0; ///< the host's part lies between the two
  int64_t moreAt = 0;                      ///< where in the device's memory lies what was allocated beside the arena
};

/// All ranks that share one device in one process meet here. Without `fibers` there is one, and its messages to its own
/// host memory are all that is bound.
class StreamMeeting;
[[nodiscard]] std::shared_ptr<StreamMeeting> makeStreamMeeting(int32_t ranks, Driver &driver, Fibers *fibers);
/// Messages are copies and sums on the device, each channel a stream. `device` is allocated before `prepare`.
[[nodiscard]] std::unique_ptr<Transport> makeStreamTransport(std::shared_ptr<StreamMeeting> meeting, int32_t rank,
                                                             StreamDevice &device);
/// This rank's fiber ends.
void leave(StreamMeeting &meeting, int32_t rank);
/// An error that says what every rank waits for, when no rank can go on.
[[nodiscard]] Status standstillOf(const StreamMeeting &meeting);

// For a process that is one rank; `mpi` carries messages of ranks between steps.

/// Messages go through memory of the host, and over MPI.
[[nodiscard]] std::unique_ptr<Transport> makeStagedTransport(std::unique_ptr<Transport> mpi, Driver &driver,
                                                             StreamDevice &device, int32_t rank);
/// Messages go from GPU to GPU: over NCCL, each channel a communicator of its members, or within a machine by copies;
/// `copiesAlone`: none over NCCL. `emitted` has the other ranks' programs, to say what they wait for.
[[nodiscard]] std::unique_ptr<Transport> makeNcclTransport(std::unique_ptr<Transport> mpi,
                                                           const TransportOptions &options, Emitted &emitted,
                                                           Driver &driver, StreamDevice &device, int32_t rank,
                                                           bool copiesAlone);
/// Whether messages of this rank over NCCL leave multiprocessors to its kernels; the driver hears how many.
Status shareMultiprocessors(Emitted &emitted, Driver &driver, int32_t rank);

} // namespace pp

#endif // PP_RUNTIME_DEVICE_STREAMDEVICE_H
