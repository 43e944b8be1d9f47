// The CUDA runtime as a driver: one GPU of this machine, its memory, streams, events and graphs.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/device/Driver.h"
#include "runtime/Kernels.h"
#include "runtime/cuda/Gemm.h"
#include "runtime/simt/Messages.h"
#include <chrono>
#include <map>
#include <sched.h>
#include <set>

namespace pp {
namespace {

/// An error that says what CUDA refused, and why; `openDriver` has reported a missing GPU or driver before.
Status checked(cudaError_t error, const char *what) {
  return error == cudaSuccess ? Status() : internal("CUDA: ", what, ": ", cudaGetErrorString(error));
}

class CudaDriver final : public Driver {
public:
  explicit CudaDriver(double timeoutSeconds) : timeoutSeconds(timeoutSeconds) {}
  ~CudaDriver() override;
  Status open(int32_t local);

  Status allocate(size_t bytes, void *&memory) override;
  Status allocateHost(size_t bytes, void *&memory) override;
  Status makeStream(Stream &made) override;
  Status makeEvent(Event &made) override;
  Status makeTimer(Event &made) override;
  int64_t between(Event from, Event to) override;

  Status record(Event event, Stream stream) override {
    busy.insert(stream);
    return checked(cudaEventRecord(events[event], streams[stream]), "recording an event");
  }
  Status wait(Stream stream, Event event) override {
    busy.insert(stream);
    return checked(cudaStreamWaitEvent(streams[stream], events[event], 0), "waiting for an event");
  }
  Status copy(Stream stream, void *to, const void *from, size_t bytes) override {
    busy.insert(stream);
    return checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, streams[stream]), "a copy");
  }
  Status copyRows(Stream stream, const RowsSpec &its) override {
    busy.insert(stream);
    return checked(cudaMemcpy2DAsync(its.to, size_t(its.toStride), its.from, size_t(its.fromStride), size_t(its.bytes),
                                     size_t(its.rows), cudaMemcpyDefault, streams[stream]),
                   "a copy of rows");
  }
  Status sum(Stream stream, const SumSpec &spec) override {
    busy.insert(stream);
    return checked(launchSum(spec, streams[stream]), "a sum");
  }

  bool share(void *memory, Handle &handle) override;
  bool openShared(const Handle &handle, void *&memory) override;
  Status await(Stream stream, uint32_t *word, const void *, size_t) override {
    busy.insert(stream);
    return checked(launchAwait(word, streams[stream]), "waiting for another GPU");
  }

  Status beginCapture(Stream origin) override {
    PP_TRY(finish());
    return checked(cudaStreamBeginCapture(streams[origin], cudaStreamCaptureModeThreadLocal), "beginning a graph");
  }
  Status endCapture(Stream origin, Graph &made) override;
  Status launch(Graph graph, Stream stream) override {
    busy.insert(stream);
    return checked(cudaGraphLaunch(graphs[graph], streams[stream]), "launching the step's graph");
  }
  bool dropGraphs() override;
  Status finish(Event event) override {
    return poll([&] { return cudaEventQuery(events[event]); });
  }
  Status finish() override;
  void watch(std::function<Status(bool)> its) override { look = std::move(its); }

  void bind(pp_rank_t &rank, Stream stream) override {
    rank.kernels->bindStream(streams[stream]);
    told[&rank].stream = stream;
  }
  Status beforeStep(pp_rank_t &rank) override;
  Status afterStep(pp_rank_t &rank) override;
  int32_t multiprocessors() const override { return properties.multiProcessorCount; }
  void leaveMultiprocessors(int32_t left) override { multiprocessorsLeft = left; }
  int64_t takenBytes() const override;
  void *native(Stream stream) const override { return streams[stream]; }
  std::string name() const override { return text("on one ", properties.name); }
  std::string identity() const override { return {properties.uuid.bytes, sizeof properties.uuid.bytes}; }

private:
  /// The words that the kernels of a rank read in a step, and those that they write; in memory of allocateHost.
  struct Words {
    OptimizerScalars scalars;
    RouterSums routed;
    int32_t failed;
  };
  struct Told {
    Stream stream = -1;
    Words *words = nullptr;
  };

  template <typename Query> Status poll(const Query &query);

  double timeoutSeconds;
  cudaDeviceProp properties = {};
  size_t freeAtOpen = 0;
  std::vector<void *> blocks, hostBlocks, opened;
  std::set<void *> shared; ///< of the blocks
  std::vector<cudaStream_t> streams;
  std::vector<cudaEvent_t> events;
  std::vector<cudaGraphExec_t> graphs;
  std::set<Stream> busy; ///< what was asked of them may not have happened
  std::map<const pp_rank_t *, Told> told;
  std::function<Status(bool)> look;
};

/// Work that is still under way may never end (a peer may be dead), so nothing is freed: the process ends, and the
/// system takes everything back.
CudaDriver::~CudaDriver() {
  if (!dropGraphs())
    return;
  for (cudaEvent_t event : events)
    cudaEventDestroy(event);
  for (cudaStream_t stream : streams)
    cudaStreamDestroy(stream);
  for (void *memory : opened)
    cudaIpcCloseMemHandle(memory);
  for (void *block : blocks)
    if (!shared.count(block)) // another process may not have closed it yet
      cudaFree(block);
  for (void *block : hostBlocks)
    cudaFreeHost(block);
}

bool CudaDriver::dropGraphs() {
  for (Stream stream : busy)
    if (cudaStreamQuery(streams[stream]) != cudaSuccess)
      return false;
  for (cudaGraphExec_t graph : graphs)
    cudaGraphExecDestroy(graph);
  graphs.clear();
  return true;
}

Status CudaDriver::open(int32_t local) {
  // Streams of the host share the hardware's queues, 8 of them unless more are asked for before the first call: then a
  // lane would wait for another one, and the proof of progress is about lanes that do not.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  int count = 0, version = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  cudaRuntimeGetVersion(&version);
  if (error == cudaErrorInsufficientDriver)
    return refused("this program needs an NVIDIA driver for CUDA ", version / 1000, ".", version % 1000 / 10,
                   ", and this machine has none or an older one");
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
    return refused("this program was compiled for cuda, and this machine has no NVIDIA GPU that it may use");
  PP_TRY(checked(error, "looking for GPUs"));
  PP_TRY(checked(cudaSetDevice(local % count), "choosing a GPU"));
  PP_TRY(checked(cudaGetDeviceProperties(&properties, local % count), "asking what the GPU is"));
  size_t all = 0; // after the first call that needs a context: what that takes is not the program's
  return checked(cudaMemGetInfo(&freeAtOpen, &all), "asking for the GPU's memory");
}

int64_t CudaDriver::takenBytes() const {
  size_t available = 0, all = 0;
  return cudaMemGetInfo(&available, &all) == cudaSuccess ? int64_t(freeAtOpen) - int64_t(available) : -1;
}

Status CudaDriver::allocate(size_t bytes, void *&memory) {
  size_t available = 0, all = 0;
  cudaError_t error = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation && cudaMemGetInfo(&available, &all) == cudaSuccess) {
    (void)cudaGetLastError();
    return refused("the GPU has ", available, " of ", all, " bytes left; this rank's arena needs ", bytes);
  }
  PP_TRY(checked(error, "allocating an arena"));
  blocks.push_back(memory);
  PP_TRY(checked(cudaMemset(memory, 0, bytes), "clearing an arena"));
  return checked(cudaDeviceSynchronize(), "clearing an arena");
}

Status CudaDriver::allocateHost(size_t bytes, void *&memory) {
  PP_TRY(checked(cudaHostAlloc(&memory, std::max<size_t>(bytes, 1), cudaHostAllocDefault), "allocating host memory"));
  hostBlocks.push_back(memory);
  std::fill_n(static_cast<char *>(memory), bytes, 0);
  return {};
}

bool CudaDriver::share(void *memory, Handle &handle) {
  static_assert(sizeof(Handle) == sizeof(cudaIpcMemHandle_t));
  if (cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t *>(handle.data()), memory) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  shared.insert(memory);
  return true;
}

bool CudaDriver::openShared(const Handle &handle, void *&memory) {
  cudaIpcMemHandle_t its;
  std::copy_n(handle.data(), handle.size(), reinterpret_cast<char *>(&its));
  if (cudaIpcOpenMemHandle(&memory, its, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  opened.push_back(memory);
  return true;
}

Status CudaDriver::makeStream(Stream &made) {
  made = Stream(streams.size());
  return checked(cudaStreamCreateWithFlags(&streams.emplace_back(), cudaStreamNonBlocking), "making a stream");
}

Status CudaDriver::makeEvent(Event &made) {
  made = Event(events.size());
  return checked(cudaEventCreateWithFlags(&events.emplace_back(), cudaEventDisableTiming), "making an event");
}

Status CudaDriver::makeTimer(Event &made) {
  made = Event(events.size());
  return checked(cudaEventCreate(&events.emplace_back()), "making an event");
}

int64_t CudaDriver::between(Event from, Event to) {
  float milliseconds = 0;
  return cudaEventElapsedTime(&milliseconds, events[from], events[to]) == cudaSuccess ? int64_t(milliseconds * 1e6) : 0;
}

Status CudaDriver::endCapture(Stream origin, Graph &made) {
  cudaGraph_t graph = nullptr;
  PP_TRY(checked(cudaStreamEndCapture(streams[origin], &graph), "ending the step's graph"));
  busy.clear(); // nothing of it has been asked for
  made = Graph(graphs.size());
  cudaError_t error = cudaGraphInstantiate(&graphs.emplace_back(), graph, 0);
  cudaGraphDestroy(graph);
  PP_TRY(checked(error, "making the step's graph ready"));
  busy.insert(origin);
  return checked(cudaGraphUpload(graphs[made], streams[origin]), "making the step's graph ready");
}

/// Waits with an eye on the clock and on what may make waiting useless.
template <typename Query> Status CudaDriver::poll(const Query &query) {
  auto deadline = std::chrono::steady_clock::time_point::max();
  for (uint64_t polls = 1;; ++polls) {
    cudaError_t error = query();
    if (error != cudaErrorNotReady)
      return checked(error, "a step");
    if (polls > 100)
      sched_yield();
    if (polls % 1024 != 0)
      continue;
    auto now = std::chrono::steady_clock::now();
    if (polls == 1024)
      deadline = now + std::chrono::milliseconds(int64_t(timeoutSeconds * 1e3));
    if (look)
      PP_TRY(look(now > deadline));
    if (now > deadline)
      return {PP_PEER, text("the GPU has not finished its work in ", timeoutSeconds, " s")};
  }
}

Status CudaDriver::finish() {
  for (Stream stream : busy)
    PP_TRY(poll([&] { return cudaStreamQuery(streams[stream]); }));
  busy.clear();
  return {};
}

Status CudaDriver::beforeStep(pp_rank_t &rank) {
  auto &[stream, words] = told[&rank];
  if (!words) {
    void *memory = nullptr;
    PP_TRY(allocateHost(sizeof(Words), memory));
    words = static_cast<Words *>(memory);
  }
  words->scalars = rank.optimizer;
  words->routed = rank.routed;
  if (void *routed = rank.kernels->routed())
    PP_TRY(copy(stream, routed, &words->routed, sizeof(RouterSums)));
  return copy(stream, rank.kernels->scalars(), &words->scalars, sizeof(OptimizerScalars));
}

Status CudaDriver::afterStep(pp_rank_t &rank) {
  auto &[stream, words] = told[&rank];
  PP_TRY(copy(stream, &words->failed, rank.kernels->failures(), sizeof words->failed));
  if (const void *routed = rank.kernels->routed())
    PP_TRY(copy(stream, &words->routed, routed, sizeof(RouterSums)));
  PP_TRY(finish());
  rank.routed = words->routed;
  return words->failed == 0 ? Status()
                            : invalid("op ", words->failed - 1, " met a token or target outside its vocabulary");
}

} // namespace

std::string_view linkedTarget() { return "cuda"; }

Status openDriver(const Options &options, int32_t local, std::unique_ptr<Driver> &made) {
  auto driver = std::make_unique<CudaDriver>(options.transport.timeoutSeconds);
  PP_TRY(driver->open(local));
  made = std::move(driver);
  return {};
}

} // namespace pp
