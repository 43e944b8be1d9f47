// Stands in for cuBLASLt where kernels are emulated: the products by plain loops, epilogues on sums not yet rounded.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Gemm.h"
#include "runtime/simt/Element.h"
#include <cmath>
#include <vector>

using namespace pp;

struct Gemm::State {
  GemmShape shape;
};

namespace {

/// By the formula, where our kernels take a sigmoid.
double geluOf(double u, bool slope) {
  double inner = std::sqrt(2 / M_PI) * (u + 0.044715 * u * u * u), t = std::tanh(inner);
  double turn = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * u * u);
  return slope ? 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * turn : 0.5 * u * (1 + t);
}

/// Row i of c from its sums.
template <class E, class C> void finish(const GemmShape &g, int64_t i, const std::vector<Acc<E>> &row, C *c, E *aux) {
  using A = Acc<E>;
  for (int64_t j = i * g.n; j < (i + 1) * g.n; ++j) {
    A sum = row[size_t(j - i * g.n)] + (g.accumulate ? A(widen(c[j])) : A(0));
    if (g.epilogue == Epilogue::Gelu) {
      narrow(aux[j], sum);
      sum = A(geluOf(double(sum), false));
    } else if (g.epilogue == Epilogue::GeluBwd) {
      sum *= A(geluOf(double(widen(aux[j])), true));
    }
    narrow(c[j], sum);
  }
}

template <class E, class C>
void multiplyPlain(const GemmShape &g, const E *a, const E *b, const E *bias, C *c, E *aux) {
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
    finish<E>(g, i, row, c, aux);
  }
}

/// The column sums of dy, over what was there.
template <class E> void sumColumns(const GemmShape &g, const E *a, const E *b, Acc<E> *sums) {
  for (int64_t j = 0; j < (g.dyIsA ? g.m : g.n); ++j) {
    sums[j] = 0;
    for (int64_t l = 0; l < g.k; ++l)
      sums[j] += widen(g.dyIsA ? a[j * g.aRow + l * g.aColumn] : b[l * g.bRow + j * g.bColumn]);
  }
}

template <class E> void multiplyAs(const GemmShape &g, const GemmOperands &o, const void *added) {
  const E *left = static_cast<const E *>(o.a), *right = static_cast<const E *>(o.b),
          *bias = static_cast<const E *>(added);
  if (g.epilogue == Epilogue::BiasDw)
    sumColumns(g, left, right, static_cast<Acc<E> *>(o.aux));
  E *aux = g.epilogue == Epilogue::BiasDw ? nullptr : static_cast<E *>(o.aux);
  if (g.sums)
    multiplyPlain(g, left, right, bias, static_cast<Acc<E> *>(o.c), aux);
  else
    multiplyPlain(g, left, right, bias, static_cast<E *>(o.c), aux);
}

} // namespace

Gemm::Gemm() = default;
Gemm::~Gemm() = default;
const GemmShape &Gemm::shape() const { return state->shape; }
int64_t Gemm::scratchBytes() const { return 0; }
/// As cuBLASLt, which has no such epilogue in f64: so that the kernel which then adds the bias is tested.
bool Gemm::addsBias() const { return state->shape.bias && state->shape.type != Type::F64; }

pp_status_t Gemm::create(const GemmShape &shape, bool, std::unique_ptr<Gemm> &gemm, std::string &) {
  gemm.reset();
  if (shape.epilogue != Epilogue::None && !wantsEpilogue(shape, true))
    return PP_OK;
  gemm.reset(new Gemm);
  gemm->state = std::make_unique<State>(shape);
  return PP_OK;
}

pp_status_t Gemm::run(const GemmOperands &operands, char *, void *stream) {
  if (state->shape.epilogue != Epilogue::None && !operands.aligned())
    return PP_INTERNAL; // as cuBLASLt's plans, which are for such addresses alone
  const void *bias = addsBias() ? operands.bias : nullptr;
  simtLaunch(stream, [=, &g = state->shape] {
    if (g.type == Type::F64)
      multiplyAs<double>(g, operands, bias);
    else if (g.type == Type::F32)
      multiplyAs<float>(g, operands, bias);
    else if (g.type == Type::F16)
      multiplyAs<F16>(g, operands, bias);
    else
      multiplyAs<Bf16>(g, operands, bias);
  });
  return PP_OK;
}
