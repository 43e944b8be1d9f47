// Stands in for cuBLASLt where kernels are emulated: the same products by plain loops, rounded once.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Element.h"
#include "runtime/cuda/Gemm.h"
#include <vector>

using namespace pp;

struct Gemm::State {
  GemmShape shape;
};

namespace {

template <class E, class C> void multiplyPlain(const GemmShape &g, const E *a, const E *b, const E *bias, C *c) {
  using A = Acc<E>;
  std::vector<A> row(size_t(g.n));
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j)
      row[size_t(j)] = bias ? A(widen(bias[j])) : A(0);
    for (int64_t l = 0; l < g.k; ++l) {
      A left = widen(a[i * g.aRow + l * g.aColumn]);
      for (int64_t j = 0; j < g.n; ++j)
        row[size_t(j)] += left * A(widen(b[l * g.bRow + j * g.bColumn]));
    }
    for (int64_t j = 0; j < g.n; ++j)
      narrow(c[i * g.n + j], row[size_t(j)] + (g.accumulate ? widen(c[i * g.n + j]) : A(0)));
  }
}

template <class E> void multiplyAs(const GemmShape &g, const void *a, const void *b, const void *bias, void *c) {
  const E *left = static_cast<const E *>(a), *right = static_cast<const E *>(b), *more = static_cast<const E *>(bias);
  if (g.sums)
    multiplyPlain(g, left, right, more, static_cast<Acc<E> *>(c));
  else
    multiplyPlain(g, left, right, more, static_cast<E *>(c));
}

} // namespace

Gemm::Gemm() = default;
Gemm::~Gemm() = default;
const GemmShape &Gemm::shape() const { return state->shape; }
int64_t Gemm::scratchBytes() const { return 0; }
/// As cuBLASLt, which has no such epilogue in f64: so that the kernel which then adds the bias is tested.
bool Gemm::addsBias() const { return state->shape.bias && state->shape.type != Type::F64; }

pp_status_t Gemm::create(const GemmShape &shape, bool, std::unique_ptr<Gemm> &gemm, std::string &) {
  gemm.reset(new Gemm);
  gemm->state = std::make_unique<State>(shape);
  return PP_OK;
}

pp_status_t Gemm::run(const void *a, const void *b, const void *bias, void *c, char *, void *stream) {
  if (!addsBias())
    bias = nullptr;
  simtLaunch(stream, [=, &g = state->shape] {
    if (g.type == Type::F64)
      multiplyAs<double>(g, a, b, bias, c);
    else if (g.type == Type::F32)
      multiplyAs<float>(g, a, b, bias, c);
    else if (g.type == Type::F16)
      multiplyAs<F16>(g, a, b, bias, c);
    else
      multiplyAs<Bf16>(g, a, b, bias, c);
  });
  return PP_OK;
}
