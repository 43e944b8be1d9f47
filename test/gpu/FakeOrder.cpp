// A driver for CUDA that records the order that streams guarantee, so that messages over NCCL can be checked.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Around the driver of programs for `cuda` (openDriver there is openCudaDriver here), with PP_FAKE_ORDER=K in the
// environment: the K-th wait for an event is left out, and none with -1. Without it that driver is all there is.
#include "runtime/device/Driver.h"
#include "test/gpu/Emulated.h"
#include "test/gpu/FakeCuda.h"
#include <cstdlib>
#include <map>

namespace pp {

Status openCudaDriver(const Options &options, int32_t local, std::unique_ptr<Driver> &made);

namespace {

class OrderedDriver final : public Driver {
public:
  OrderedDriver(std::unique_ptr<Driver> its, int64_t dropped) : inner(std::move(its)), dropped(dropped) {
    here = this;
    fakeAccesses = [](cudaStream_t stream, FakeRanges ranges) {
      here->known.access(here->numbers.at(stream), std::move(ranges));
    };
  }

  Status allocate(size_t bytes, void *&memory) override { return inner->allocate(bytes, memory); }
  Status allocateHost(size_t bytes, void *&memory) override { return inner->allocateHost(bytes, memory); }
  Status makeStream(Stream &made) override {
    PP_TRY(inner->makeStream(made));
    numbers[inner->native(made)] = made;
    return {};
  }
  Status makeEvent(Event &made) override { return inner->makeEvent(made); }
  Status makeTimer(Event &made) override { return inner->makeTimer(made); }
  int64_t between(Event from, Event to) override { return inner->between(from, to); }
  Status record(Event event, Stream stream) override {
    known.record(event, stream);
    return inner->record(event, stream);
  }
  Status wait(Stream stream, Event event) override {
    if (waits++ == dropped)
      return {};
    known.wait(stream, event);
    return inner->wait(stream, event);
  }
  Status copy(Stream stream, void *to, const void *from, size_t bytes) override {
    known.access(stream, {{static_cast<const char *>(from), bytes}, {static_cast<const char *>(to), bytes}});
    return inner->copy(stream, to, from, bytes);
  }
  Status copyRows(Stream stream, const RowsSpec &its) override {
    known.access(stream, rangesOf(its));
    return inner->copyRows(stream, its);
  }
  Status sum(Stream stream, const SumSpec &spec) override { return inner->sum(stream, spec); }
  bool share(void *memory, Handle &handle) override { return inner->share(memory, handle); }
  bool openShared(const Handle &handle, void *&memory) override { return inner->openShared(handle, memory); }
  Status await(Stream stream, uint32_t *word, const void *written, size_t bytes) override {
    if (bytes > 0)
      known.access(stream, {{static_cast<const char *>(written), bytes}});
    return inner->await(stream, word, written, bytes);
  }
  Status beginCapture(Stream origin) override {
    known.join();
    return inner->beginCapture(origin);
  }
  Status endCapture(Stream origin, Graph &made) override { return inner->endCapture(origin, made); }
  Status launch(Graph graph, Stream stream) override { return inner->launch(graph, stream); }
  bool dropGraphs() override { return inner->dropGraphs(); }
  Status finish(Event event) override {
    known.finish(event);
    return inner->finish(event);
  }
  Status finish() override {
    known.join();
    return inner->finish();
  }
  void watch(std::function<Status(bool)> look) override { inner->watch(std::move(look)); }
  void bind(pp_rank_t &rank, Stream stream) override { inner->bind(rank, stream); }
  Status beforeStep(pp_rank_t &rank) override { return inner->beforeStep(rank); }
  Status afterStep(pp_rank_t &rank) override { return inner->afterStep(rank); }
  std::unique_ptr<Transport> check(std::unique_ptr<Transport> transport, StreamDevice &device, int32_t rank,
                                   bool apart) override {
    if (!checks)
      checks = makeCheckedMeeting(apart);
    return makeCheckedTransport(checks, std::move(transport), device, known, rank);
  }
  int32_t multiprocessors() const override { return inner->multiprocessors(); }
  void leaveMultiprocessors(int32_t left) override { inner->leaveMultiprocessors(left); }
  int64_t takenBytes() const override { return inner->takenBytes(); }
  void *native(Stream stream) const override { return inner->native(stream); }
  std::string name() const override { return inner->name(); }

private:
  static inline OrderedDriver *here = nullptr;
  std::unique_ptr<Driver> inner;
  int64_t dropped, waits = 0;
  std::map<const void *, Stream> numbers;
  Order known;
  std::shared_ptr<CheckedMeeting> checks;
};

} // namespace

Status openDriver(const Options &options, int32_t local, std::unique_ptr<Driver> &made) {
  PP_TRY(openCudaDriver(options, local, made));
  if (const char *dropped = getenv("PP_FAKE_ORDER"))
    made = std::make_unique<OrderedDriver>(std::move(made), strtoll(dropped, nullptr, 10));
  return {};
}

} // namespace pp
