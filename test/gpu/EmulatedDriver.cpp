// A device that is this CPU: keeps what it is asked for, and does it in a random order that streams and events allow.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Each stream is a queue; a wait in it names the record that it waits for. Streams have random priorities, and the
// first that can go on does one thing; now and then the priorities change. So one rank may run far ahead of another,
// and a copy may be as late as the program allows. CUDA may do that, too, but rarely does. A capture keeps the same
// queues, and a later launch runs them.
#include "runtime/Program.h"
#include "runtime/files/Random.h"
#include "runtime/files/Trace.h"
#include "runtime/transport/GroupSums.h"
#include "test/gpu/Emulated.h"
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>

namespace pp {
namespace {

/// One thing asked of a stream. A record is work that does nothing; a wait holds until `awaits` is done.
struct Asked {
  Driver::Stream stream = 0;
  int64_t awaits = -1; ///< number of a record
  std::function<void()> work;
};

/// The queued requests, in the order of asking; `first` is the number of the first one.
struct Program {
  std::vector<Asked> asked;
  int64_t first = 0;
  std::vector<bool> done = {}; ///< as far as it goes; the rest is not
};

class EmulatedDriver final : public Driver {
public:
  EmulatedDriver(uint64_t seed, int64_t dropped) : seed(seed), dropped(dropped) {}

  Status allocate(size_t bytes, void *&memory) override {
    memory = calloc(std::max<size_t>(bytes, 1) + 64, 1);
    if (!memory)
      return refused("no memory for an arena of ", bytes, " bytes");
    blocks.emplace_back(memory, free);
    memory = reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64);
    return {};
  }
  Status allocateHost(size_t bytes, void *&memory) override { return allocate(bytes, memory); }
  Status makeStream(Stream &made) override {
    made = streams++;
    return {};
  }
  Status makeEvent(Event &made) override {
    made = Event(recordOf.size());
    recordOf.push_back(-1);
    times.push_back(0);
    return {};
  }
  Status makeTimer(Event &made) override { return makeEvent(made); }
  int64_t between(Event from, Event to) override { return times[to] - times[from]; }

  Status record(Event event, Stream stream) override {
    recordOf[event] = pending.first + int64_t(pending.asked.size());
    known.record(event, stream);
    return ask(stream, [this, event] { times[event] = Trace::now(); });
  }
  Status wait(Stream stream, Event event) override;
  Status copy(Stream stream, void *to, const void *from, size_t bytes) override {
    known.access(stream, {{static_cast<const char *>(from), bytes}, {static_cast<const char *>(to), bytes}});
    return ask(stream, [=] { memcpy(to, from, bytes); });
  }
  Status copyRows(Stream stream, const RowsSpec &its) override {
    known.access(stream, rangesOf(its));
    return ask(stream, [=] {
      for (int64_t row = 0; row < its.rows; ++row)
        memcpy(static_cast<char *>(its.to) + row * its.toStride,
               static_cast<const char *>(its.from) + row * its.fromStride, size_t(its.bytes));
    });
  }
  Status sum(Stream stream, const SumSpec &spec) override;

  Status beginCapture(Stream origin) override;
  Status endCapture(Stream origin, Graph &made) override;
  bool dropGraphs() override { return true; }
  /// Earlier requests of this stream come first; requests of other streams may be late.
  Status launch(Graph graph, Stream stream) override {
    int64_t last = -1;
    for (size_t i = 0; i < pending.asked.size(); ++i)
      if (pending.asked[i].stream == stream)
        last = int64_t(i);
    PP_TRY(last < 0 ? Status() : run(pending, last));
    graphs[graph].done.clear();
    return run(graphs[graph]);
  }
  Status finish(Event event) override;
  Status finish() override;
  void watch(std::function<Status(bool)>) override {} // nothing here waits

  void bind(pp_rank_t &rank, Stream stream) override;
  Status beforeStep(pp_rank_t &) override { return {}; }
  Status afterStep(pp_rank_t &rank) override;
  void *native(Stream) const override { return nullptr; }
  std::unique_ptr<Transport> check(std::unique_ptr<Transport> transport, StreamDevice &device, int32_t rank,
                                   bool apart) override {
    if (!checks)
      checks = makeCheckedMeeting(apart);
    return makeCheckedTransport(checks, std::move(transport), device, known, rank);
  }
  std::string name() const override { return text("emulated streams, seed ", seed); }

private:
  /// The kernels of one rank, put into its stream.
  struct RankQueue final : KernelQueue {
    EmulatedDriver *driver = nullptr;
    Stream stream = 0;
    pp_status_t failed = PP_OK;
    pp_status_t add(pp_rank_t &rank, std::function<pp_status_t()> work) override;
  };

  Status ask(Stream stream, std::function<void()> work, int64_t awaits = -1);
  Status run(Program &program, int64_t until = -1);
  [[nodiscard]] size_t choose(const std::vector<bool> &canGoOn);
  [[nodiscard]] Status checkJoined(Stream origin) const;
  uint64_t draw() { return hashOf(seed, ++draws); }

  uint64_t seed, draws = 0;
  int64_t dropped, waits = 0;
  std::vector<std::unique_ptr<void, void (*)(void *)>> blocks;
  Stream streams = 0;
  std::vector<int64_t> recordOf; ///< by event: the number of its last record
  std::vector<int64_t> times;    ///< by event: when its last record was carried out
  std::vector<uint64_t> priorities;
  Program pending;
  bool captures = false;
  std::set<Stream> capturing;
  std::vector<Program> graphs;
  std::map<const pp_rank_t *, RankQueue> rankQueues;
  Order known;
  std::shared_ptr<CheckedMeeting> checks;
};

Status EmulatedDriver::ask(Stream stream, std::function<void()> work, int64_t awaits) {
  if (captures && !capturing.count(stream))
    return internal("stream ", stream, " is asked for work in a capture that it has not joined");
  pending.asked.push_back({stream, awaits, std::move(work)});
  return {};
}

Status EmulatedDriver::wait(Stream stream, Event event) {
  if (recordOf[event] < 0)
    return internal("stream ", stream, " waits for event ", event, ", which nobody has recorded");
  if (captures && recordOf[event] < pending.first)
    return internal("stream ", stream, " waits in a capture for event ", event, ", which was recorded before it");
  // A dropped wait orders nothing, and still joins the capture: what is looked for is the wrong result.
  int64_t awaits = recordOf[event];
  bool isDropped = waits++ == dropped;
  if (!isDropped)
    known.wait(stream, event);
  if (captures)
    capturing.insert(stream);
  return ask(
      stream, [] {}, isDropped ? -1 : awaits);
}

Status EmulatedDriver::sum(Stream stream, const SumSpec &spec) {
  std::vector<std::pair<const char *, size_t>> ranges;
  for (const void *part : spec.parts)
    ranges.push_back({static_cast<const char *>(part), size_t(spec.count) * elementBytes(spec.type)});
  for (const void *sum : spec.sums)
    ranges.push_back({static_cast<const char *>(sum), size_t(spec.count) * elementBytes(spec.type)});
  known.access(stream, std::move(ranges));
  return ask(stream, [spec] {
    size_t bytes = size_t(spec.count) * elementBytes(spec.type);
    sumMembers(spec.type, spec.parts, spec.sums[0], int64_t(bytes));
    for (void *sum : std::span(spec.sums).subspan(1))
      memcpy(sum, spec.sums[0], bytes);
  });
}

Status EmulatedDriver::beginCapture(Stream origin) {
  PP_TRY(finish());
  captures = true;
  capturing = {origin};
  return {};
}

Status EmulatedDriver::endCapture(Stream origin, Graph &made) {
  captures = false;
  if (dropped < 0)
    PP_TRY(checkJoined(origin));
  made = Graph(graphs.size());
  graphs.push_back(std::move(pending));
  pending = {{}, graphs.back().first + int64_t(graphs.back().asked.size())};
  return {};
}

/// Everything captured must come before the end of the origin stream.
Status EmulatedDriver::checkJoined(Stream origin) const {
  std::map<Stream, int64_t> last;
  std::vector<int64_t> before(pending.asked.size(), -1); // in its stream
  for (size_t i = 0; i < pending.asked.size(); ++i) {
    auto [found, isNew] = last.try_emplace(pending.asked[i].stream, int64_t(i));
    before[i] = isNew ? -1 : found->second;
    found->second = int64_t(i);
  }
  std::vector<bool> reached(pending.asked.size());
  if (auto end = last.find(origin); end != last.end())
    reached[end->second] = true;
  for (int64_t i = int64_t(reached.size()) - 1; i >= 0; --i) {
    if (!reached[i])
      return internal("the capture ends, and what stream ", pending.asked[i].stream, " was asked for is not awaited");
    if (before[i] >= 0)
      reached[before[i]] = true;
    if (pending.asked[i].awaits >= pending.first)
      reached[pending.asked[i].awaits - pending.first] = true;
  }
  return {};
}

Status EmulatedDriver::finish() {
  if (captures)
    return internal("a capture is waited for before it has ended");
  known.join();
  Program now = std::move(pending);
  pending = {{}, now.first + int64_t(now.asked.size())};
  return run(now);
}

Status EmulatedDriver::finish(Event event) {
  if (captures)
    return internal("an event is waited for before the capture has ended");
  known.finish(event);
  return recordOf[event] < pending.first ? Status() : run(pending, recordOf[event] - pending.first);
}

size_t EmulatedDriver::choose(const std::vector<bool> &canGoOn) {
  if (draw() % 16 == 0)
    priorities[draw() % priorities.size()] = draw();
  size_t best = canGoOn.size();
  for (size_t stream = 0; stream < canGoOn.size(); ++stream)
    if (canGoOn[stream] && (best == canGoOn.size() || priorities[stream] > priorities[best]))
      best = stream;
  return best;
}

/// All of the program that is not done yet; or no more than it takes to do number `until`.
Status EmulatedDriver::run(Program &program, int64_t until) {
  std::vector<bool> &done = program.done;
  done.resize(program.asked.size());
  std::vector<std::vector<size_t>> queues(streams); // from their ends
  size_t left = 0;
  for (size_t i = program.asked.size(); i-- > 0;)
    if (!done[i]) {
      queues[program.asked[i].stream].push_back(i);
      ++left;
    }
  while (priorities.size() < size_t(streams))
    priorities.push_back(draw());
  std::vector<bool> canGoOn(streams);
  for (; left > 0 && (until < 0 || !done[until]); --left) {
    for (Stream stream = 0; stream < streams; ++stream) {
      int64_t awaits = queues[stream].empty() ? -1 : program.asked[queues[stream].back()].awaits - program.first;
      canGoOn[stream] = !queues[stream].empty() && (awaits < 0 || done[awaits]);
    }
    size_t next = choose(canGoOn);
    if (next == canGoOn.size())
      return internal("the device stands still");
    size_t number = queues[next].back();
    queues[next].pop_back();
    program.asked[number].work();
    done[number] = true;
  }
  return {};
}

void EmulatedDriver::bind(pp_rank_t &rank, Stream stream) {
  RankQueue &its = rankQueues[&rank];
  its.driver = this;
  its.stream = stream;
  rank.queue = &its;
}

pp_status_t EmulatedDriver::RankQueue::add(pp_rank_t &rank, std::function<pp_status_t()> work) {
  Status status = driver->ask(stream, [this, work = std::move(work)] {
    if (pp_status_t code = failed == PP_OK ? work() : PP_OK; code != PP_OK)
      failed = code;
  });
  return status.ok() ? PP_OK : rank.fail(status.code(), status.message());
}

Status EmulatedDriver::afterStep(pp_rank_t &rank) {
  PP_TRY(finish());
  pp_status_t failed = rankQueues[&rank].failed;
  return failed == PP_OK ? Status() : Status(failed, rank.message);
}

} // namespace

std::string_view linkedTarget() { return "cpu"; }

/// PP_EMULATE=SEED[:K] in the environment asks for the emulated device, with wait number K left out. Without it a
/// program runs as users run it.
Status openDriver(const Options &options, int32_t, std::unique_ptr<Driver> &made) {
  const char *asked = getenv("PP_EMULATE");
  if (!asked)
    return options.noGraph ? invalid("`--no-graph` has no effect: this program runs on a CPU") : Status();
  char *end = nullptr;
  uint64_t seed = strtoull(asked, &end, 10);
  int64_t dropped = *end == ':' ? strtoll(end + 1, &end, 10) : -1;
  if (end == asked || *end != '\0')
    return invalid("PP_EMULATE expects SEED or SEED:K, got `", asked, "`");
  made = makeEmulatedDriver(seed, dropped);
  return {};
}

std::unique_ptr<Driver> makeEmulatedDriver(uint64_t seed, int64_t dropped) {
  return std::make_unique<EmulatedDriver>(seed, dropped);
}

} // namespace pp
