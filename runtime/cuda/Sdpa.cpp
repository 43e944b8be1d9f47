// Attention written as the graphs of operations that cuDNN knows as its fused attention; lse is max + ln(sum), as ours.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   forward    s = scale q k^T, masked   m = max s   e = exp(s - m)   l = sum e   lse = m + ln l   o = (e / l) v
//   backward   p = exp(scale q k^T - lse), masked      dv = p^T do      ds = scale p (do v^T - delta)
//              dk = ds^T q      dq = ds k, added up in f32 and then rounded
//
// cuDNN sums dq with atomics: two runs differ in the last bits. PP_CUDNN=forward leaves the backward to our own kernel,
// whose bits are always the same; PP_CUDNN=off all of it. cuDNN takes no delta: it makes its own from o.
//
// Versions that are reported to be wrong in a backward (issue 20) leave it to our own kernel (`refusal`).
#include "runtime/cuda/Sdpa.h"
#include "runtime/cuda/Cudnn.h"
#include "runtime/cuda/Memory.h"
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

using namespace pp;

using Shape = CudnnGraph::Shape;
using Tensor = CudnnGraph::Tensor;
using Where = CudnnGraph::Where;

namespace {

/// One for all ranks of the process: they are fibers of one thread. Null where there is no device.
cudnnHandle_t handleOf(const Cudnn &api) {
  static cudnnHandle_t one = [&] {
    cudnnHandle_t made = nullptr;
    return api.create(&made) == CUDNN_STATUS_SUCCESS ? made : nullptr;
  }();
  return one;
}

std::string nameOf(size_t version) {
  return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// The reason that `shared` gave for the first shape without a plan.
std::string &refusedFirst() {
  static auto &one = *new std::string; // as the plans, never destroyed
  return one;
}

} // namespace

struct SdpaPlan::State {
  SdpaShape shape;
  CudnnGraph graph;
  const Cudnn &api;
  float scale, minusInfinity = -std::numeric_limits<float>::infinity(), one = 1;

  State(const SdpaShape &shape, const Cudnn &api)
      : shape(shape), graph(api), api(api), scale(float(1 / std::sqrt(double(shape.width)))) {}

  Shape rows() const { return {{n().batch, n().heads, n().queries, 1}, {n().heads * n().queries, n().queries, 1, 1}}; }
  Shape scores() const { return CudnnGraph::dense(n().batch, n().heads, n().queries, n().keys); }
  Shape queries() const { return CudnnGraph::headRows(n().batch, n().queries, n().heads, n().width, n().queryStride); }
  Shape keys() const { return CudnnGraph::headRows(n().batch, n().keys, n().groups, n().width, n().keyStride); }
  /// The shape of o and dout.
  Shape outputs() const {
    return CudnnGraph::headRows(n().batch, n().queries, n().heads, n().width, n().heads * n().width);
  }
  const SdpaShape &n() const { return shape; }

  cudnnDataType_t element() const { return n().type == Type::F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16; }
  Tensor memory(const Shape &its) { return memory(its, element()); }
  Tensor memory(const Shape &its, cudnnDataType_t type) { return graph.tensor(its, type, Where::Memory); }
  Tensor statistics() { return graph.tensor(rows(), CUDNN_DATA_FLOAT, Where::Memory); }
  Tensor masked(Tensor scores);
  Tensor addedOverHeads(Tensor weights, Tensor right, Tensor sum);
  void describeForward();
  void describeBackward();
  int64_t deltaBytes() const { return align(4 * n().rows()); }
  int64_t sumBytes() const { return align(4 * n().rows() * n().width); }
};

/// Scores of keys behind their query become -inf.
Tensor SdpaPlan::State::masked(Tensor from) {
  if (!shape.causal)
    return from;
  Tensor row = graph.between(scores(), CUDNN_DATA_INT32), column = graph.between(scores(), CUDNN_DATA_INT32);
  Tensor seen = graph.between(scores(), CUDNN_DATA_BOOLEAN), to = graph.between(scores());
  graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, row, from, -1, -1, 2);
  graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, column, from, -1, -1, 3);
  graph.pointwise(CUDNN_POINTWISE_CMP_GE, seen, row, column, -1, -1, CUDNN_DATA_BOOLEAN);
  graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, to, from, graph.scalar(), seen);
  return to;
}

/// Order of places: q, k, v, o, lse, scale, (-inf).
void SdpaPlan::State::describeForward() {
  Tensor q = memory(queries()), k = memory(keys().transposed()), v = memory(keys());
  Tensor o = memory(outputs()), lse = statistics(), factor = graph.scalar();
  Tensor products = graph.between(scores()), scaled = graph.between(scores());
  graph.multiply(q, k, products);
  graph.pointwise(CUDNN_POINTWISE_MUL, scaled, products, factor);
  Tensor seen = masked(scaled), most = graph.between(rows()), less = graph.between(scores());
  Tensor powers = graph.between(scores()), total = graph.between(rows()), logarithm = graph.between(rows());
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, seen, most);
  graph.pointwise(CUDNN_POINTWISE_SUB, less, seen, most);
  graph.pointwise(CUDNN_POINTWISE_EXP, powers, less);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, powers, total);
  graph.pointwise(CUDNN_POINTWISE_LOG, logarithm, total);
  graph.pointwise(CUDNN_POINTWISE_ADD, lse, most, logarithm);
  Tensor weights = graph.between(scores(), element());
  graph.pointwise(CUDNN_POINTWISE_DIV, weights, powers, total);
  graph.multiply(weights, v, o);
}

/// sum[b, group] = the sum over the heads of its group of weights^T right.
Tensor SdpaPlan::State::addedOverHeads(Tensor weights, Tensor right, Tensor sum) {
  Tensor turned = graph.between(scores().transposed(), element());
  graph.reshape(weights, turned);
  if (n().heads == n().groups) {
    graph.multiply(turned, right, sum);
    return sum;
  }
  Tensor all = graph.between(CudnnGraph::dense(n().batch, n().heads, n().keys, n().width), element());
  graph.multiply(turned, right, all);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, all, sum);
  return sum;
}

/// Order of places: q, k, v, dout, o, lse, dk, dv, delta, sums of dq, dq, one, scale, (-inf).
void SdpaPlan::State::describeBackward() {
  Shape all = CudnnGraph::dense(n().batch, n().heads, n().queries, n().width);
  Tensor q = memory(queries()), k = memory(keys().transposed()), v = memory(keys().transposed());
  Tensor dout = memory(outputs()), o = memory(outputs()), lse = statistics();
  Tensor dk = memory(keys()), dv = memory(keys()), delta = statistics();
  Tensor sums = memory(outputs(), CUDNN_DATA_FLOAT), dq = memory(queries());
  Tensor unit = graph.scalar(), factor = graph.scalar();
  Shape strided = {{all.dims[0], all.dims[1], all.dims[2], all.dims[3]},
                   {all.strides[0], all.strides[1], n().heads * n().width, 1}};
  Tensor both = graph.between(strided), total = graph.between(rows());
  graph.pointwise(CUDNN_POINTWISE_MUL, both, dout, o);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, both, total);
  graph.pointwise(CUDNN_POINTWISE_MUL, delta, total, unit);

  Tensor products = graph.between(scores()), scaled = graph.between(scores()), less = graph.between(scores());
  graph.multiply(q, k, products);
  graph.pointwise(CUDNN_POINTWISE_MUL, scaled, products, factor);
  graph.pointwise(CUDNN_POINTWISE_SUB, less, scaled, lse);
  Tensor weights = graph.between(scores());
  graph.pointwise(CUDNN_POINTWISE_EXP, weights, masked(less));
  addedOverHeads(weights, dout, dv);

  Tensor slopes = graph.between(scores()), lessDelta = graph.between(scores()), weighted = graph.between(scores());
  Tensor ds = graph.between(scores());
  graph.multiply(dout, v, slopes);
  graph.pointwise(CUDNN_POINTWISE_SUB, lessDelta, slopes, delta);
  graph.pointwise(CUDNN_POINTWISE_MUL, weighted, lessDelta, weights);
  graph.pointwise(CUDNN_POINTWISE_MUL, ds, weighted, factor);
  addedOverHeads(ds, q, dk);
  Tensor straight = graph.between(keys(), element());
  graph.reshape(k, straight);
  graph.multiply(ds, straight, sums);
  graph.pointwise(CUDNN_POINTWISE_IDENTITY, dq, sums);
}

SdpaPlan::SdpaPlan() = default;
SdpaPlan::~SdpaPlan() = default;
const SdpaShape &SdpaPlan::shape() const { return state->shape; }

std::string SdpaPlan::refusal(const SdpaShape &shape, size_t version) {
  constexpr size_t wrongBackwards = 91001; // and the one before it, the oldest that is taken
  constexpr size_t wrongTails = 91500;
  constexpr int64_t tile = 128;
  if (shape.backward && version <= wrongBackwards)
    return nameOf(version) + " computes wrong gradients of attention in 16 bits; later than 9.10.1 is needed";
  if (shape.backward && version <= wrongTails && shape.keys % tile != 0)
    return nameOf(version) + " may compute wrong gradients for " + std::to_string(shape.keys) +
           " keys, not a multiple of 128; later than 9.15.0 is needed";
  return "";
}

std::string SdpaPlan::firstRefusal() { return refusedFirst(); }

std::unique_ptr<SdpaPlan> SdpaPlan::create(const SdpaShape &shape, const std::string &device, std::string &why) {
  const Cudnn *api = findCudnn(why);
  if (!api)
    return nullptr;
  why = refusal(shape, api->getVersion());
  if (!why.empty())
    return nullptr;
  cudnnHandle_t handle = device.empty() ? handleOf(*api) : nullptr;
  if (device.empty() && !handle) {
    why = "cuDNN could not be started";
    return nullptr;
  }
  std::unique_ptr<SdpaPlan> made(new SdpaPlan);
  made->state = std::make_unique<State>(shape, *api);
  if (shape.backward)
    made->state->describeBackward();
  else
    made->state->describeForward();
  if (!made->state->graph.plan(handle, device)) {
    why = made->state->graph.failure();
    return nullptr;
  }
  if (why = shape.excess(made->scratchBytes()); !why.empty()) {
    why = nameOf(api->getVersion()) + ": " + why;
    return nullptr;
  }
  return made;
}

/// Never destroyed: at the end of the process the device may be gone.
SdpaPlan *SdpaPlan::shared(const SdpaShape &shape) {
  static auto &all =
      *new std::vector<std::pair<SdpaShape, std::unique_ptr<SdpaPlan>>>; // ranks are fibers of one thread
  for (const auto &[known, sdpa] : all)
    if (known == shape)
      return sdpa.get();
  std::string why; // then our own kernels serve
  all.emplace_back(shape, create(shape, "", why));
  if (!all.back().second && refusedFirst().empty())
    refusedFirst() = why;
  return all.back().second.get();
}

int64_t SdpaPlan::scratchBytes() const {
  int64_t own = state->shape.backward ? state->deltaBytes() + state->sumBytes() : 0;
  return own + align(state->graph.workspaceBytes());
}

pp_status_t SdpaPlan::run(const SdpaTensors &its, char *scratch, void *stream, std::string &why) const {
  State &s = *state;
  cudnnHandle_t handle = handleOf(s.api);
  if (s.api.setStream(handle, static_cast<cudaStream_t>(stream)) != CUDNN_STATUS_SUCCESS)
    return PP_INTERNAL;
  std::vector<void *> places;
  auto add = [&](auto... tensors) { (places.push_back(const_cast<void *>(static_cast<const void *>(tensors))), ...); };
  add(its.q, its.k, its.v);
  if (!s.shape.backward) {
    add(its.o, its.lse);
  } else {
    char *sums = scratch + s.deltaBytes();
    add(its.dout, its.o, its.lse, its.dk, its.dv, scratch, sums, its.dq, &s.one);
    scratch = sums + s.sumBytes();
  }
  add(&s.scale);
  if (s.shape.causal)
    add(&s.minusInfinity);
  return s.graph.run(handle, places, scratch, why) ? PP_OK : PP_INTERNAL;
}

std::string SdpaPlan::describe() {
  std::string why;
  const Cudnn *api = findCudnn(why);
  if (isWished("off"))
    why = "PP_CUDNN is off";
  if (!why.empty())
    return "own kernels (" + why + ")";
  return nameOf(api->getVersion()) + " where it has a plan, own kernels elsewhere" +
         (isWished("forward") ? " and in the backward" : "");
}
