// Stands in for cuBLASLt where kernels are emulated: the products by plain loops, epilogues on sums not yet rounded.
// Operands are read by the layouts that cuBLASLt gets, and refused where it refuses them.
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

/// Element (i, j) of an x[outer, inner].
int64_t placeOf(const OperandLayout &its, int64_t i, int64_t j) {
  return its.straight ? j + i * its.leading : i + j * its.leading;
}

/// gelu by its formula; our kernels compute it by a sigmoid.
double geluOf(double u, bool slope) {
  double inner = std::sqrt(2 / M_PI) * (u + 0.044715 * u * u * u), t = std::tanh(inner);
  double turn = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * u * u);
  return slope ? 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * turn : 0.5 * u * (1 + t);
}

/// Row i of c from its sums; `added` is null or what goes to it, of the same layout.
template <class E, class C>
void finish(const GemmShape &g, int64_t i, const std::vector<Acc<E>> &row, C *c, const C *added, E *aux) {
  using A = Acc<E>;
  const OperandLayout result = OperandLayout::result(g);
  for (int64_t column = 0; column < g.n; ++column) {
    int64_t j = placeOf(result, i, column);
    A sum = row[size_t(column)] + (added ? A(widen(added[j])) : A(0));
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
void multiplyPlain(const GemmShape &g, const E *a, const E *b, const E *bias, C *c, const C *added, E *aux) {
  using A = Acc<E>;
  const OperandLayout left = OperandLayout::right(g), right = OperandLayout::left(g);
  std::vector<A> row(size_t(g.n));
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j)
      row[size_t(j)] = bias ? A(widen(bias[j])) : A(0);
    for (int64_t l = 0; l < g.k; ++l) {
      A factor = widen(a[placeOf(left, i, l)]);
      for (int64_t j = 0; j < g.n; ++j)
        row[size_t(j)] += factor * A(widen(b[placeOf(right, l, j)]));
    }
    finish<E>(g, i, row, c, added, aux);
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

template <class E, class C> void multiplyTo(const GemmShape &g, const GemmOperands &o, const E *bias, E *aux) {
  C *c = static_cast<C *>(o.c);
  const C *added = g.adds() ? static_cast<const C *>(o.added()) : nullptr;
  multiplyPlain(g, static_cast<const E *>(o.a), static_cast<const E *>(o.b), bias, c, added, aux);
}

template <class E> void multiplyAs(const GemmShape &g, const GemmOperands &o, const void *added) {
  const E *left = static_cast<const E *>(o.a), *right = static_cast<const E *>(o.b),
          *bias = static_cast<const E *>(added);
  if (g.epilogue == Epilogue::BiasDw)
    sumColumns(g, left, right, static_cast<Acc<E> *>(o.aux));
  E *aux = g.epilogue == Epilogue::BiasDw ? nullptr : static_cast<E *>(o.aux);
  if (g.sums)
    multiplyTo<E, Acc<E>>(g, o, bias, aux);
  else
    multiplyTo<E, E>(g, o, bias, aux);
}

} // namespace

Gemm::Gemm() = default;
Gemm::~Gemm() = default;
const GemmShape &Gemm::shape() const { return state->shape; }
/// As large as cuBLASLt's workspace, though nothing uses it.
int64_t Gemm::scratchBytes() const { return workspaceOfProduct; }
/// False in f64, as for cuBLASLt, so that the kernel that then adds the bias is tested.
bool Gemm::addsBias() const { return state->shape.bias && state->shape.type != Type::F64; }

pp_status_t Gemm::create(const GemmShape &shape, bool, std::unique_ptr<Gemm> &gemm, std::string &message) {
  gemm.reset();
  if (shape.epilogue != Epilogue::None && !wantsEpilogue(shape, true))
    return PP_OK;
  for (const OperandLayout &its :
       {OperandLayout::left(shape), OperandLayout::right(shape), OperandLayout::result(shape)})
    if (its.leading < its.rows) { // cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_INVALID_VALUE
      message = "cuBLASLt refused a leading dimension of " + std::to_string(its.leading) + " for columns of " +
                std::to_string(its.rows);
      return PP_INTERNAL;
    }
  gemm.reset(new Gemm);
  gemm->state = std::make_unique<State>(shape);
  return PP_OK;
}

bool Gemm::takes(const GemmOperands &operands) const { return takesAnyAddress(state->shape) || operands.aligned(); }

pp_status_t Gemm::run(const GemmOperands &operands, char *, void *stream) {
  bool adds = state->shape.epilogue == Epilogue::Add; // elsewhere than to what it reads
  if (!takes(operands) || adds != (operands.residual != nullptr) || (adds && operands.residual == operands.c))
    return PP_INTERNAL;
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
