// What a device does when asked, later: memory, streams, events, copies, sums, and a graph of them; CUDA does it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The rules are CUDA's. What is asked of one stream happens in order; a wait holds a stream up until what the event
// stood for when the wait was asked for has happened; nothing else is ordered. In a capture nothing happens.
// Streams, events and memory are named by small numbers and addresses, and live as long as the driver.
#ifndef PP_RUNTIME_DEVICE_DRIVER_H
#define PP_RUNTIME_DEVICE_DRIVER_H

#include "runtime/Options.h"
#include "runtime/Program.h"
#include "runtime/Rank.h"
#include <array>

namespace pp {

class StreamDevice;

/// sums[k][i] = parts[0][i] + parts[1][i] + .. for every k, in this order; a sum may be one of the parts.
struct SumSpec {
  std::vector<const void *> parts;
  std::vector<void *> sums;
  int64_t count = 0;
  Type type = Type::F32; ///< of 16 bits the sum is made in f32 and rounded once
};

/// `rows` times `bytes`, which lie so far apart in the one and in the other.
struct RowsSpec {
  void *to = nullptr;
  const void *from = nullptr;
  int64_t toStride = 0, fromStride = 0, rows = 0, bytes = 0;
};

class Driver {
public:
  using Stream = int32_t;
  using Event = int32_t;
  using Graph = int32_t;

  virtual ~Driver() = default;

  /// Zero memory of the device, and of the host where the device can reach it.
  virtual Status allocate(size_t bytes, void *&memory) = 0;
  virtual Status allocateHost(size_t bytes, void *&memory) = 0;
  virtual Status makeStream(Stream &made) = 0;
  virtual Status makeEvent(Event &made) = 0;
  /// An event that keeps when it happened. / Nanoseconds from one such to another, both of which have happened.
  virtual Status makeTimer(Event &made) = 0;
  virtual int64_t between(Event from, Event to) = 0;

  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;
  /// Copies between any two of host memory, allocateHost's memory and device memory.
  virtual Status copy(Stream stream, void *to, const void *from, size_t bytes) = 0;
  virtual Status copyRows(Stream stream, const RowsSpec &spec) = 0;
  virtual Status sum(Stream stream, const SumSpec &spec) = 0;

  /// A handle by which another process of this machine opens memory of `allocate`; false: the device has none.
  using Handle = std::array<char, 64>;
  virtual bool share([[maybe_unused]] void *memory, [[maybe_unused]] Handle &handle) { return false; }
  /// Opens memory that another process shares, for as long as the driver lives; false: this device cannot reach it.
  virtual bool openShared([[maybe_unused]] const Handle &handle, [[maybe_unused]] void *&memory) { return false; }
  /// Holds the stream up until a word of this device is 1, and makes it 0. Another process makes it 1 by a copy, behind
  /// what it has written to `written`.
  virtual Status await([[maybe_unused]] Stream stream, [[maybe_unused]] uint32_t *word,
                       [[maybe_unused]] const void *written, [[maybe_unused]] size_t bytes) {
    return internal("this device has no words that another one writes");
  }

  /// Work for `origin`, and for streams that wait for it, becomes a graph and does not run. In the end `origin` must
  /// wait for all these streams.
  virtual Status beginCapture(Stream origin) = 0;
  virtual Status endCapture(Stream origin, Graph &made) = 0;
  virtual Status launch(Graph graph, Stream stream) = 0;
  /// Ends all graphs, which hold on to what they captured; false: something is still under way, and they stay.
  virtual bool dropGraphs() = 0;

  /// Returns when what the event stands for, or all that was asked for, has happened; PP_PEER when it is overdue.
  virtual Status finish(Event event) = 0;
  virtual Status finish() = 0;
  /// `look` is called now and then during a wait, and once more when it is overdue; an error of it ends the wait.
  virtual void watch(std::function<Status(bool overdue)> look) = 0;

  /// The kernels of the rank go to this stream from now on.
  virtual void bind(pp_rank_t &rank, Stream stream) = 0;
  /// The rank's scalars are those of the step that begins. / Waits for all that was asked for. What the kernels of the
  /// step found wrong; what they say of routers is then the rank's.
  virtual Status beforeStep(pp_rank_t &rank) = 0;
  virtual Status afterStep(pp_rank_t &rank) = 0;

  /// The transport of a rank as this driver wants it: drivers of tests check its messages. `apart`: each rank has a
  /// device of its own.
  virtual std::unique_ptr<Transport> check(std::unique_ptr<Transport> transport, [[maybe_unused]] StreamDevice &device,
                                           [[maybe_unused]] int32_t rank, [[maybe_unused]] bool apart) {
    return transport;
  }

  /// The number of multiprocessors; 0: not known.
  [[nodiscard]] virtual int32_t multiprocessors() const { return 0; }
  /// So many of them are left to kernels while messages hold theirs. Said before kernels are prepared.
  virtual void leaveMultiprocessors([[maybe_unused]] int32_t left) {}
  /// Bytes of the device's memory that are taken since it was opened, whoever took them; -1: not known.
  [[nodiscard]] virtual int64_t takenBytes() const { return -1; }
  /// The handle under which other libraries know the stream.
  [[nodiscard]] virtual void *native(Stream stream) const = 0;
  [[nodiscard]] virtual std::string name() const = 0;
  /// Tells this device from all others, of other machines, too; of one length on all devices. Empty: not known.
  [[nodiscard]] virtual std::string identity() const { return {}; }
};

/// The target of programs for this runtime: `cpu` or `cuda`.
[[nodiscard]] std::string_view linkedTarget();
/// The driver that this program was linked for and the options ask for; null: kernels run on this CPU at once. `local`
/// counts the ranks of this machine.
Status openDriver(const Options &options, int32_t local, std::unique_ptr<Driver> &made);

} // namespace pp

#endif // PP_RUNTIME_DEVICE_DRIVER_H
