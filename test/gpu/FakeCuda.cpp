// The part of the CUDA runtime that ours calls, on this CPU: streams, events, copies and graphs by CUDA's rules.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Linked in the place of the CUDA runtime, with the kernels of the device `cuda` as C++ (runtime/simt/BlockFibers.h),
// so that everything above it runs as it would on a GPU. Nothing happens when it is asked for: streams go on whenever
// the host asks whether something is done, each by a random length. What CUDA forbids in a capture is refused.
// Streams share the hardware's queues, in which what was asked for first begins first. A kernel begins when a
// multiprocessor is free; operations of NCCL keep some each until they end. After a kernel that fails every call does.
//   PP_FAKE_CUDA=N   looking for GPUs fails with error N
//   PP_FAKE_SHARED=1 all processes have one GPU
//   PP_FAKE_SEED=N   another order
//   PP_FAKE_SMS=N    multiprocessors (132, as an H100)
//   PP_FAKE_HELD=1   at its end the process says how many of them messages held at most
//   PP_FAKE_COPIES=1 at its end the process says how often something was copied to the device and from it, graphs
//                    apart, and how many of these copies wait for the host, since its memory is not pinned
//   PP_FAKE_FAIL=RANK:K   on this rank the K-th kernel, from 0, reads what is not there
#include "test/gpu/FakeCuda.h"
#include "runtime/files/Random.h"
#include "runtime/simt/BlockFibers.h"
#include "runtime/simt/Messages.h"
#include "runtime/transport/GroupSums.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <unistd.h>
#include <utility>

namespace {

/// One thing in a stream: work, the mark of an event, or a wait for one.
struct Item {
  std::function<pp::FakeWork()> make;
  pp::FakeWork running;
  CUevent_st *event = nullptr;
  int64_t number = 0; ///< of the mark, among the event's; in a graph among the graph's
  bool waits = false;
  int64_t asked = 0; ///< how many things were asked for before it
};
using Queue = std::deque<Item>;

} // namespace

struct CUevent_st {
  int64_t asked = 0, done = 0;
  CUgraph_st *graph = nullptr; ///< the capture that it was recorded in last
  int64_t mark = 0;            ///< the graph's number of that
  std::chrono::steady_clock::time_point when;
};
struct CUgraph_st {
  std::map<CUstream_st *, Queue> queues;
  std::vector<std::pair<CUstream_st *, size_t>> marks; ///< where each lies
  CUstream_st *origin = nullptr;
};
struct CUgraphExec_st {
  std::vector<Queue> queues;
  int64_t marks = 0;
};
struct CUstream_st {
  Queue queue;
  int64_t number = 0;
  CUgraph_st *graph = nullptr; ///< what it is captured for
};

namespace {

constexpr int64_t memoryBytes = int64_t(1) << 34;

struct Machine;
extern Machine machine;

struct Machine {
  std::vector<CUstream_st *> streams;
  std::map<void *, int64_t> blocks; ///< of the device's memory
  std::map<void *, int64_t> pinned; ///< of the host's
  int64_t copiesTo = 0, copiesFrom = 0, copiesOfPages = 0;
  int64_t taken = 0; ///< by them, and by libraries
  CUgraph_st *capture = nullptr;
  cudaError_t last = cudaSuccess, broken = cudaSuccess; ///< broken: for ever
  uint64_t seed = 0, draws = 0;
  int64_t asked = 0, streamsMade = 0, queues = 8;
  int64_t all = 132, free = 132; ///< multiprocessors
  int64_t mostHeld = 0;          ///< by messages
  int64_t kernels = 0, failing = -1;
  Machine() {
    const char *given = getenv("PP_FAKE_SEED"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (const char *its = getenv("PP_FAKE_SMS"))
      all = free = atoll(its);
    if (const char *fault = getenv("PP_FAKE_FAIL"); fault && atoi(fault) == atoi(rank ? rank : "0"))
      failing = atoll(strchr(fault, ':') + 1);
    seed = strtoull(given ? given : "1", nullptr, 10) * 64 + strtoull(rank ? rank : "0", nullptr, 10);
    pp::simtMemory = [](void *memory, int64_t bytes) {
      pp::fakeTake(bytes);
      if (bytes > 0)
        machine.blocks[memory] = bytes;
      else
        machine.blocks.erase(memory);
    };
    pp::simtStreams = [](void *stream, std::function<void()> kernel) {
      (void)pp::fakeEnqueue(static_cast<cudaStream_t>(stream), [kernel] {
        return [kernel] {
          if (machine.free < 1)
            return false;
          if (machine.kernels++ == machine.failing)
            machine.broken = cudaErrorIllegalAddress;
          kernel();
          return true;
        };
      });
    };
  }
  ~Machine() {
    if (getenv("PP_FAKE_HELD"))
      fprintf(stderr, "held: %lld multiprocessors\n", (long long)mostHeld);
    if (getenv("PP_FAKE_COPIES"))
      fprintf(stderr, "copies: %lld to the device, %lld from it, %lld of pages\n", (long long)copiesTo,
              (long long)copiesFrom, (long long)copiesOfPages);
  }
  uint64_t draw() { return pp::hashOf(seed, ++draws); }
} machine;

bool isIn(const std::map<void *, int64_t> &blocks, const void *address) {
  auto behind = blocks.upper_bound(const_cast<void *>(address));
  return behind != blocks.begin() &&
         address < static_cast<char *>(std::prev(behind)->first) + std::prev(behind)->second;
}

/// The result of a call: after a failed kernel all calls fail.
cudaError_t done() { return machine.broken; }
cudaError_t fail(cudaError_t error) { return machine.last = error; }

/// A launch of a graph under way.
struct Run {
  std::vector<Queue> queues;
  std::vector<bool> marks;
};

/// Whether what was asked of this stream first has come to the front of its hardware queue: a thing that has not begun
/// keeps back all that was asked for later, of other streams of the queue, too.
bool isInFront(const CUstream_st &stream) {
  const Item &item = stream.queue.front();
  return item.running || std::none_of(machine.streams.begin(), machine.streams.end(), [&](const CUstream_st *other) {
           if (other == &stream || other->number % machine.queues != stream.number % machine.queues)
             return false;
           size_t begun = !other->queue.empty() && other->queue.front().running;
           return other->queue.size() > begun && other->queue[begun].asked < item.asked;
         });
}

/// Does the first thing of a queue if it can be done; `run`: of a graph.
bool goOn(Queue &queue, Run *run) {
  Item &item = queue.front();
  if (item.make) {
    if (!item.running)
      item.running = item.make();
    if (!item.running())
      return false;
  } else if (item.waits) {
    if (run ? !run->marks[size_t(item.number)] : item.event->done < item.number)
      return false;
  } else if (run) {
    run->marks[size_t(item.number)] = true;
  } else {
    item.event->done = item.number;
    item.event->when = std::chrono::steady_clock::now();
  }
  queue.pop_front();
  return true;
}

/// Returns whether an item came to its end.
template <typename QueueOf, typename MayGoOn>
bool goOnAll(size_t count, Run *run, const QueueOf &queueOf, const MayGoOn &mayGoOn) {
  size_t first = count ? machine.draw() % count : 0;
  bool any = false;
  for (size_t i = 0; i < count; ++i) {
    Queue &queue = queueOf((first + i) % count);
    for (uint64_t most = 1 + machine.draw() % 24; most > 0 && !queue.empty(); --most) {
      if (!mayGoOn((first + i) % count) || !goOn(queue, run))
        break;
      any = true;
    }
  }
  return any;
}

bool isIdle() {
  return std::all_of(machine.streams.begin(), machine.streams.end(),
                     [](const CUstream_st *stream) { return stream->queue.empty(); });
}

/// A call that waits for the whole device, or allocates, is forbidden in a capture.
bool isForbidden() { return machine.capture != nullptr; }

cudaError_t put(cudaStream_t stream, Item item) {
  item.asked = machine.asked++;
  (stream->graph ? stream->graph->queues[stream] : stream->queue).push_back(std::move(item));
  return done();
}

} // namespace

cudaError_t pp::fakeEnqueue(cudaStream_t stream, std::function<FakeWork()> make) {
  Item item;
  item.make = std::move(make);
  return put(stream, std::move(item));
}
void pp::fakeBreak(cudaError_t error) { machine.broken = error; }
bool pp::fakeIsCaptured(cudaStream_t stream) { return stream->graph != nullptr; }
void pp::fakeTake(int64_t bytes) { machine.taken += bytes; }
/// Who asks again and again, while nothing ends, waits for another process, and leaves the core to it.
void pp::fakeGoOn() {
  static thread_local int inVain = 0;
  bool any = goOnAll(
      machine.streams.size(), nullptr, [](size_t i) -> Queue & { return machine.streams[i]->queue; },
      [](size_t i) { return isInFront(*machine.streams[i]); });
  inVain = any ? 0 : inVain + 1;
  if (inVain > 300)
    std::this_thread::sleep_for(std::chrono::microseconds(1));
}
bool pp::fakeOccupy(int64_t multiprocessors) {
  bool fits = multiprocessors <= machine.free;
  machine.free -= fits ? multiprocessors : 0;
  machine.mostHeld = std::max(machine.mostHeld, machine.all - machine.free);
  return fits;
}

cudaError_t pp::launchSum(const SumSpec &spec, cudaStream_t stream) {
  return fakeEnqueue(stream, [spec] {
    return [spec] {
      auto bytes = spec.count * int64_t(spec.type == Type::F64 ? 8 : spec.type == Type::F32 ? 4 : 2);
      sumMembers(spec.type, spec.parts, spec.sums[0], bytes);
      for (void *sum : spec.sums)
        if (sum != spec.sums[0])
          memcpy(sum, spec.sums[0], size_t(bytes));
      return true;
    };
  });
}

extern "C" {

// --- The device and its memory ---------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int *count) {
  const char *error = getenv("PP_FAKE_CUDA"), *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (!queues) // 8 of them: lanes would share a queue, and nobody wished that
    return fail(cudaErrorInvalidValue);
  machine.queues = std::clamp(atoi(queues), 1, 32);
  *count = error ? 0 : 8;
  return error ? fail(cudaError_t(atoi(error))) : cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
  *properties = {};
  properties->multiProcessorCount = int(machine.all);
  snprintf(properties->name, sizeof properties->name, "GPU that is not there");
  const int process = getenv("PP_FAKE_SHARED") ? 1 : getpid();
  memcpy(properties->uuid.bytes, &process, sizeof process);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *all) {
  *all = size_t(memoryBytes);
  *available = size_t(memoryBytes - machine.taken);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void **memory, size_t bytes) {
  if (isForbidden())
    return fail(cudaErrorStreamCaptureUnsupported);
  *memory = bytes <= size_t(memoryBytes - machine.taken) ? pp::fakeMemory(bytes) : nullptr;
  if (!*memory)
    return fail(cudaErrorMemoryAllocation);
  memset(*memory, 0xff, bytes); // whoever needs zeros asks for them
  machine.taken += machine.blocks[*memory] = int64_t(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
  if (auto block = machine.blocks.find(memory); block != machine.blocks.end()) {
    machine.taken -= block->second;
    machine.blocks.erase(block);
  }
  return pp::fakeFree(memory) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) {
  if (isForbidden())
    return fail(cudaErrorStreamCaptureUnsupported);
  bool fits = bytes <= size_t(memoryBytes - machine.taken);
  *memory = fits ? aligned_alloc(256, (bytes + 255) / 256 * 256) : nullptr;
  if (*memory) {
    memset(*memory, 0xff, bytes); // whoever needs zeros asks for them
    machine.pinned[*memory] = int64_t(bytes);
  }
  return *memory ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void *memory) {
  machine.pinned.erase(memory);
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemset(void *memory, int value, size_t bytes) {
  memset(memory, value, bytes);
  return isForbidden() ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (isForbidden())
    return fail(cudaErrorStreamCaptureUnsupported);
  while (!isIdle())
    pp::fakeGoOn();
  return done();
}
cudaError_t cudaGetLastError() {
  cudaError_t last = std::exchange(machine.last, cudaSuccess);
  return machine.broken ? machine.broken : last;
}
const char *cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation           ? "out of memory"
         : error == cudaErrorIllegalAddress           ? "an illegal memory access was encountered"
         : error == cudaErrorStreamCaptureUnsupported ? "operation not permitted when stream is capturing"
         : error == cudaErrorStreamCaptureUnjoined    ? "capturing stream has unjoined work"
         : error == cudaErrorStreamCaptureIsolation   ? "dependency created on uncaptured work in another stream"
                                                      : "an error of the stand-in";
}

// --- Streams and events ----------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned) {
  *made = machine.streams.emplace_back(new CUstream_st);
  (*made)->number = machine.streamsMade++;
  return done();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::erase(machine.streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->graph)
    return fail(cudaErrorStreamCaptureUnsupported);
  pp::fakeGoOn();
  return machine.broken ? machine.broken : stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventCreate(cudaEvent_t *made) {
  *made = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned) { return cudaEventCreate(made); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->graph = stream->graph;
  if (event->graph) {
    event->mark = int64_t(event->graph->marks.size());
    event->graph->marks.push_back({stream, event->graph->queues[stream].size()});
  } else {
    ++event->asked;
  }
  Item item;
  item.event = event;
  item.number = event->graph ? event->mark : event->asked;
  return put(stream, std::move(item));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (machine.capture && event->graph == machine.capture)
    stream->graph = machine.capture; // the capture goes on here
  else if (stream->graph)
    return event->asked == 0 ? cudaSuccess : fail(cudaErrorStreamCaptureIsolation);
  Item item;
  item.event = event;
  item.number = stream->graph ? event->mark : event->asked;
  item.waits = true;
  return put(stream, std::move(item));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (machine.capture && event->graph == machine.capture)
    return fail(cudaErrorCapturedEvent);
  pp::fakeGoOn();
  return machine.broken ? machine.broken : event->done == event->asked ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->when - from->when).count();
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const bool isTo = isIn(machine.blocks, to) || pp::fakeIsPeers(to), isFrom = isIn(machine.blocks, from);
  if (!stream->graph && isTo != isFrom) {
    ++(isTo ? machine.copiesTo : machine.copiesFrom);
    machine.copiesOfPages += !isIn(machine.pinned, isTo ? from : to);
  }
  return pp::fakeEnqueue(stream, [=] {
    return [=] {
      pp::fakeCopy(to, from, bytes);
      return true;
    };
  });
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t toStride, const void *from, size_t fromStride, size_t bytes, size_t rows,
                              cudaMemcpyKind, cudaStream_t stream) {
  if (bytes > toStride || bytes > fromStride)
    return fail(cudaErrorInvalidPitchValue);
  return pp::fakeEnqueue(stream, [=] {
    return [=] {
      for (size_t row = 0; row < rows; ++row)
        memcpy(static_cast<char *>(to) + row * toStride, static_cast<const char *>(from) + row * fromStride, bytes);
      return true;
    };
  });
}

// --- Graphs ----------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (machine.capture)
    return fail(cudaErrorIllegalState);
  machine.capture = stream->graph = new CUgraph_st;
  stream->graph->origin = stream;
  return cudaSuccess;
}

/// Whether all that was captured comes before the end of the origin's part.
static bool isJoined(const CUgraph_st &graph) {
  std::map<CUstream_st *, size_t> reached; // by stream: how many of its first things
  std::vector<std::pair<CUstream_st *, size_t>> open = {{graph.origin, graph.queues.at(graph.origin).size()}};
  while (!open.empty()) {
    auto [stream, length] = open.back();
    open.pop_back();
    const Queue &queue = graph.queues.at(stream);
    for (size_t i = reached[stream]; i < length; ++i)
      if (queue[i].waits) {
        auto [from, at] = graph.marks[size_t(queue[i].number)];
        open.push_back({from, at + 1});
      }
    reached[stream] = std::max(reached[stream], length);
  }
  return std::all_of(graph.queues.begin(), graph.queues.end(),
                     [&](const auto &each) { return reached[each.first] == each.second.size(); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *made) {
  CUgraph_st *graph = std::exchange(machine.capture, nullptr);
  *made = graph;
  for (CUstream_st *each : machine.streams)
    each->graph = nullptr;
  if (!graph || graph->origin != stream)
    return fail(cudaErrorIllegalState);
  return isJoined(*graph) ? cudaSuccess : fail(cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st;
  (*made)->marks = int64_t(graph->marks.size());
  for (auto &[stream, queue] : graph->queues)
    (*made)->queues.push_back(queue);
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return pp::fakeEnqueue(stream, [graph]() -> pp::FakeWork {
    auto run = std::make_shared<Run>(Run{graph->queues, std::vector<bool>(size_t(graph->marks))});
    return [run] {
      goOnAll(
          run->queues.size(), run.get(), [&](size_t i) -> Queue & { return run->queues[i]; },
          [](size_t) { return true; });
      return std::all_of(run->queues.begin(), run->queues.end(), [](const Queue &queue) { return queue.empty(); });
    };
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}

} // extern "C"
