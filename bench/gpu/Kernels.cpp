// Times the kernels of the device cuda on a GPU, one line for each shape; bench/gpu/kernels.py adds PyTorch's times.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A line is: kernel, type, dims, microseconds (the median of repeated graph replays), TFLOP/s of products and
// attention, GB/s, and for products the time of the fastest algorithm that cuBLASLt has (PP_TUNE) over the time of the
// one chosen here; for products with an epilogue also the time of the two plain calls (PP_EPILOGUES=off) over that of
// the one.
//
// usage: pp-gpu-kernels [--wait] [KERNEL..]    (--wait: for a line of the input after each row; all kernels, or these)
#include "bench/gpu/Cases.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <random>
#include <set>
#include <string>

using namespace pp;

namespace {

int64_t sizeOf(Type type) { return type == Type::F64 ? 8 : type == Type::F32 ? 4 : 2; }

bool check(cudaError_t error, const char *what) {
  if (error != cudaSuccess)
    std::fprintf(stderr, "pp-gpu-kernels: %s: %s\n", what, cudaGetErrorString(error));
  return error == cudaSuccess;
}

/// Arguments in the device's memory: normal numbers, tokens of a small vocabulary.
class Buffers {
public:
  Buffers() = default;
  Buffers(const Buffers &) = delete;
  ~Buffers() {
    for (void *each : owned)
      cudaFree(each);
  }
  bool add(Type type, const Argument &argument) {
    int64_t bytes = argument.count * (argument.kind == Argument::Tokens ? 4 : sizeOf(type));
    void *memory = nullptr;
    if (!check(cudaMalloc(&memory, size_t(bytes)), "no memory"))
      return false;
    owned.push_back(memory);
    std::vector<char> some(size_t(std::min<int64_t>(bytes, 1 << 22)));
    fill(some, argument.kind == Argument::Tokens, type);
    for (int64_t at = 0; at < bytes; at += int64_t(some.size()))
      if (!check(cudaMemcpy(static_cast<char *>(memory) + at, some.data(),
                            size_t(std::min(bytes - at, int64_t(some.size()))), cudaMemcpyHostToDevice),
                 "copy"))
        return false;
    return true;
  }
  void *last() const { return owned.back(); }

private:
  std::vector<void *> owned;
  std::mt19937 generator{1};

  void fill(std::vector<char> &bytes, bool tokens, Type type) {
    std::normal_distribution<float> normal(0, 1);
    for (size_t at = 0; at + 8 <= bytes.size(); at += size_t(tokens ? 4 : sizeOf(type))) {
      float value = normal(generator);
      double wide = value;
      int32_t token = int32_t(generator() % 30000);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      uint16_t high = uint16_t(bits >> 16);
      if (tokens)
        std::memcpy(&bytes[at], &token, 4);
      else if (type == Type::F64)
        std::memcpy(&bytes[at], &wide, 8);
      else if (type == Type::F32)
        std::memcpy(&bytes[at], &value, 4);
      else
        std::memcpy(&bytes[at], &high, 2);
    }
  }
};

/// Microseconds of one call inside a graph of ten; negative on failure.
double timeOf(const PreparedOp &op, void *const *arguments, cudaStream_t stream) {
  constexpr int calls = 10, replays = 15;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t program = nullptr;
  bool fine = op.body(op, arguments) == PP_OK && check(cudaStreamSynchronize(stream), "first call") &&
              check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; fine && i < calls; ++i)
    fine = op.body(op, arguments) == PP_OK;
  if (!fine || !check(cudaStreamEndCapture(stream, &graph), "end of capture") ||
      !check(cudaGraphInstantiate(&program, graph, 0), "graph"))
    return -1;
  cudaEvent_t from, to;
  cudaEventCreate(&from);
  cudaEventCreate(&to);
  std::vector<float> times;
  for (int i = 0; i < replays; ++i) {
    cudaEventRecord(from, stream);
    cudaGraphLaunch(program, stream);
    cudaEventRecord(to, stream);
    float milliseconds = 0;
    if (!check(cudaEventSynchronize(to), "replay") || !check(cudaEventElapsedTime(&milliseconds, from, to), "time"))
      return -1;
    times.push_back(milliseconds * 1000 / calls);
  }
  cudaEventDestroy(from);
  cudaEventDestroy(to);
  cudaGraphExecDestroy(program);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return double(times[times.size() / 2]);
}

/// Prepares and times under an environment: PP_TUNE lets cuBLASLt try its algorithms, PP_CUDNN=off is without cuDNN.
double measure(const Case &one, const char *variable, const char *value, cudaStream_t stream) {
  if (variable)
    setenv(variable, value, 1);
  std::unique_ptr<Kernels> kernels;
  std::string message;
  pp_status_t status = Kernels::prepare({one.spec}, kernels, message);
  if (variable)
    unsetenv(variable);
  if (status != PP_OK) {
    std::fprintf(stderr, "pp-gpu-kernels: %s\n", message.c_str());
    return -1;
  }
  kernels->bindStream(stream);
  Buffers buffers;
  std::vector<void *> arguments, lists[2];
  for (size_t i = 0; i < one.arguments.size(); ++i) {
    const Argument &argument = one.arguments[i];
    if (argument.kind == Argument::Nothing) {
      arguments.push_back(nullptr);
      continue;
    }
    Type acc = one.spec.type == Type::F64 ? Type::F64 : Type::F32;
    Type type = argument.kind == Argument::SumsOf ? acc : one.spec.type;
    bool listed = int(i) == one.list || int(i) == one.secondList;
    for (int copy = 0; copy < (listed ? 2 : 1); ++copy) {
      if (!buffers.add(type, argument))
        return -1;
      if (listed)
        lists[int(i) == one.secondList].push_back(buffers.last());
    }
    arguments.push_back(listed ? lists[int(i) == one.secondList].data() : buffers.last());
  }
  return timeOf(*kernels->find(0), arguments.data(), stream);
}

/// `own`: without cuDNN. `waits`: for a line of the input after the row.
void report(const Case &one, bool own, bool waits, cudaStream_t stream) {
  bool pair =
      one.spec.kernel.ends_with("_gelu") || one.spec.kernel.ends_with("_add") || one.spec.kernel.ends_with("_bias");
  double time = own    ? measure(one, "PP_CUDNN", "off", stream)
                : pair ? measure(one, "PP_EPILOGUES", "on", stream)
                       : measure(one, nullptr, nullptr, stream),
         bytes = 0;
  for (const Argument &argument : one.arguments)
    if (argument.moved && argument.kind != Argument::Nothing)
      bytes += double(argument.count) * (argument.kind == Argument::Elements ? double(sizeOf(one.spec.type)) : 4);
  std::string name = one.spec.kernel, dims;
  for (const std::string &flag : one.spec.flags)
    name += "/" + flag;
  if (own)
    name += "/own";
  for (int64_t dim : one.spec.dims)
    dims += (dims.empty() ? "" : " ") + std::to_string(dim);
  const char *type = one.spec.type == Type::F64 ? "f64" : one.spec.type == Type::F32 ? "f32" : "bf16";
  std::printf("%s,%s,%s,%.2f,%.1f,%.0f", name.c_str(), type, dims.c_str(), time, flopsOf(one.spec) / time * 1e-6,
              bytes / time * 1e-3);
  if (one.spec.kernel.starts_with("linear"))
    std::printf(",%.3f", measure(one, "PP_TUNE", "1", stream) / time);
  if (pair)
    std::printf(",%.3f", measure(one, "PP_EPILOGUES", "off", stream) / time);
  std::printf("\n");
  std::fflush(stdout);
  if (waits)
    while (std::getchar() != '\n' && !std::feof(stdin)) {
    }
}

} // namespace

int main(int argc, char **argv) {
  std::set<std::string> wanted(argv + 1, argv + argc);
  const bool waits = wanted.erase("--wait");
  int devices = 0;
  if (!check(cudaGetDeviceCount(&devices), "no GPU can be used"))
    return 77;
  cudaDeviceProp device;
  cudaStream_t stream;
  if (!check(cudaGetDeviceProperties(&device, 0), "device") ||
      !check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"))
    return 1;
  std::printf("# %s, %d multiprocessors, attention by %s\nkernel,type,dims,us,TFLOP/s,GB/s,best,plain\n", device.name,
              device.multiProcessorCount, Kernels::attention().c_str());
  std::fflush(stdout);
  const std::vector<Case> cases = timedCases();
  for (const std::string &name : wanted)
    if (std::none_of(cases.begin(), cases.end(), [&](const Case &one) { return one.spec.kernel == name; })) {
      std::fprintf(stderr, "pp-gpu-kernels: no kernel `%s` is timed\n", name.c_str());
      return 2;
    }
  for (const Case &one : cases) {
    if (!wanted.empty() && !wanted.contains(one.spec.kernel))
      continue;
    report(one, false, waits, stream);
    if (one.spec.kernel == "attention" || one.spec.kernel == "attention_bwd")
      report(one, true, waits, stream);
  }
  std::printf("# %s\n", Kernels::engines().c_str());
  cudaStreamDestroy(stream);
  return 0;
}
