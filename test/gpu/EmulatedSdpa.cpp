// Stands in for cuDNN where kernels are emulated: attention by plain loops, if PP_EMULATE_CUDNN is set.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// It takes what cuDNN takes, makes delta from the output as cuDNN does, and asks for as much memory as was measured of
// cuDNN on an H100. `greedy` asks for more than is planned.
#include "runtime/cuda/Sdpa.h"
#include "runtime/simt/Element.h"
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

using namespace pp;

struct SdpaPlan::State {
  SdpaShape shape;
};

namespace {

std::string wish() {
  const char *text = std::getenv("PP_EMULATE_CUDNN");
  return text ? text : "";
}

/// One head, and where its rows of q, of o, and of k and v begin.
template <class E> struct Head {
  const SdpaShape &n;
  int64_t b, h;
  [[nodiscard]] int64_t query(int64_t t) const { return (b * n.queries + t) * n.queryStride + h * n.width; }
  [[nodiscard]] int64_t output(int64_t t) const { return ((b * n.queries + t) * n.heads + h) * n.width; }
  [[nodiscard]] int64_t key(int64_t t) const {
    return (b * n.keys + t) * n.keyStride + h / (n.heads / n.groups) * n.width;
  }
  [[nodiscard]] int64_t statistic(int64_t t) const { return (b * n.heads + h) * n.queries + t; }
  [[nodiscard]] int64_t seen(int64_t t) const { return n.causal ? std::min(t + 1, n.keys) : n.keys; }
  [[nodiscard]] double product(const E *left, int64_t i, const E *right, int64_t j) const {
    double sum = 0;
    for (int64_t c = 0; c < n.width; ++c)
      sum += double(widen(left[i + c])) * double(widen(right[j + c]));
    return sum;
  }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(double(n.width)); }
};

template <class E, class Work> void forEachHead(const SdpaShape &n, const Work &work) {
  for (int64_t b = 0; b < n.batch; ++b)
    for (int64_t h = 0; h < n.heads; ++h)
      work(Head<E>{n, b, h});
}

template <class E> void forward(const SdpaShape &n, const E *q, const E *k, const E *v, E *o, float *lse) {
  forEachHead<E>(n, [&](const Head<E> &head) {
    for (int64_t t = 0; t < n.queries; ++t) {
      std::vector<double> weights, sums(size_t(n.width));
      double total = 0;
      for (int64_t j = 0; j < head.seen(t); ++j)
        total += weights.emplace_back(std::exp(head.scale() * head.product(q, head.query(t), k, head.key(j))));
      for (int64_t j = 0; j < head.seen(t); ++j)
        for (int64_t c = 0; c < n.width; ++c)
          sums[size_t(c)] += weights[size_t(j)] / total * double(widen(v[head.key(j) + c]));
      for (int64_t c = 0; c < n.width; ++c)
        narrow(o[head.output(t) + c], float(sums[size_t(c)]));
      lse[head.statistic(t)] = float(std::log(total));
    }
  });
}

template <class E> struct Backward {
  const E *dout, *q, *k, *v, *o;
  const float *lse;
  SdpaTensors to;
};

template <class E> void backward(const SdpaShape &n, const Backward<E> &a) {
  auto *dqs = static_cast<E *>(a.to.dq), *dks = static_cast<E *>(a.to.dk), *dvs = static_cast<E *>(a.to.dv);
  std::vector<double> dk(size_t(n.batch * n.keys * n.keyStride)), dv(dk.size());
  forEachHead<E>(n, [&](const Head<E> &head) {
    for (int64_t t = 0; t < n.queries; ++t) {
      const int64_t row = head.query(t), out = head.output(t);
      const double delta = head.product(a.dout, out, a.o, out);
      std::vector<double> dq(size_t(n.width));
      for (int64_t j = 0; j < head.seen(t); ++j) {
        const int64_t key = head.key(j);
        double p = std::exp(head.scale() * head.product(a.q, row, a.k, key) - double(a.lse[head.statistic(t)]));
        double ds = head.scale() * p * (head.product(a.dout, out, a.v, key) - delta);
        for (int64_t c = 0; c < n.width; ++c) {
          dv[size_t(key + c)] += p * double(widen(a.dout[out + c]));
          dk[size_t(key + c)] += ds * double(widen(a.q[row + c]));
          dq[size_t(c)] += ds * double(widen(a.k[key + c]));
        }
      }
      for (int64_t c = 0; c < n.width; ++c)
        narrow(dqs[row + c], float(dq[size_t(c)]));
    }
  });
  for (int64_t row = 0; row < n.batch * n.keys; ++row)
    for (int64_t i = row * n.keyStride, end = i + n.groups * n.width; i < end; ++i)
      narrow(dks[i], float(dk[size_t(i)])), narrow(dvs[i], float(dv[size_t(i)]));
}

template <class E> void runAs(const SdpaShape &n, const SdpaTensors &to, void *stream) {
  auto in = [](const void *tensor) { return static_cast<const E *>(tensor); };
  const E *q = in(to.q), *k = in(to.k), *v = in(to.v);
  auto *lse = static_cast<float *>(to.lse);
  if (n.backward) {
    Backward<E> its = {in(to.dout), q, k, v, in(to.o), lse, to};
    simtLaunch(stream, [n, its] { backward(n, its); });
  } else {
    simtLaunch(stream, [=, o = static_cast<E *>(to.o)] { forward(n, q, k, v, o, lse); });
  }
}

} // namespace

SdpaPlan::SdpaPlan() = default;
SdpaPlan::~SdpaPlan() = default;
const SdpaShape &SdpaPlan::shape() const { return state->shape; }
int64_t SdpaPlan::scratchBytes() const {
  const SdpaShape &n = state->shape;
  const int64_t rows = n.rows(), most = wish() == "greedy" ? n.plannedBytes() + 256 : 0;
  const int64_t shared = n.heads > n.groups ? 4 * n.batch * n.heads * n.keys * n.width : 0;
  return std::max(most, n.backward ? 4 * rows * (1 + n.width) + shared + 256 : 256);
}

std::unique_ptr<SdpaPlan> SdpaPlan::create(const SdpaShape &shape, const std::string &, std::string &why) {
  std::unique_ptr<SdpaPlan> made(new SdpaPlan);
  made->state.reset(new State{shape});
  why = wish().empty() ? describe() : shape.excess(made->scratchBytes());
  return why.empty() ? std::move(made) : nullptr;
}

/// Made anew for each op, for a test may change its wish.
SdpaPlan *SdpaPlan::shared(const SdpaShape &shape) {
  static std::mutex mutex; // ranks may be threads
  static auto &all = *new std::vector<std::unique_ptr<SdpaPlan>>;
  std::lock_guard lock(mutex);
  std::string why;
  return all.emplace_back(create(shape, "", why)).get();
}

pp_status_t SdpaPlan::run(const SdpaTensors &tensors, char *, void *stream, std::string &) const {
  if (state->shape.type == Type::F16)
    runAs<F16>(state->shape, tensors, stream);
  else
    runAs<Bf16>(state->shape, tensors, stream);
  return PP_OK;
}

std::string SdpaPlan::refusal(const SdpaShape &, size_t) { return ""; }
std::string SdpaPlan::firstRefusal() { return ""; }
std::string SdpaPlan::describe() {
  return wish().empty() ? "own kernels (built without cuDNN)" : "a stand-in of cuDNN";
}
