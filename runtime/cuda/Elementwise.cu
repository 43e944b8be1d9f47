// Kernels over flat arrays: gelu, swiglu, add, columns, copies, zero, accumulate, round, sum of squares, AdamW.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A thread computes one pack of 16 bytes. It reads all it needs before it writes, and touches no other's elements, so
// every alias that runtime/Pp.h allows is safe.
#include "runtime/cuda/Map.h"

using namespace pp;

namespace {

constexpr double sqrt2OverPi = 0.79788456080286535588;
constexpr double geluCubic = 0.044715;
constexpr double sqrtHalf = 0.70710678118654752440;

template <class A> PP_DEVICE A geluOf(A a, bool exact) {
  if (exact)
    return A(0.5) * a * (A(1) + errorFunction(a * A(sqrtHalf)));
  return a * sigmoid(A(2 * sqrt2OverPi) * (a + A(geluCubic) * a * a * a));
}
template <class A> PP_DEVICE A geluSlope(A a, bool exact) {
  if (exact)
    return A(0.5) * (A(1) + errorFunction(a * A(sqrtHalf))) +
           a * exponential(A(-0.5) * a * a) * A(0.39894228040143267794);
  A s = sigmoid(A(2 * sqrt2OverPi) * (a + A(geluCubic) * a * a * a));
  return s + a * s * (A(1) - s) * A(2 * sqrt2OverPi) * (A(1) + A(3 * geluCubic) * a * a);
}

template <class E> struct Gelu {
  using Element = E;
  const E *x;
  E *y;
  bool exact;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(x + i);
    for (int j = 0; j < W; ++j)
      a.v[j] = geluOf(a.v[j], exact);
    store<W>(y + i, a);
  }
};
template <class E> pp_status_t gelu(const PreparedOp &op, void *const *arguments) {
  return map(op, Gelu<E>{in<E>(arguments[0]), out<E>(arguments[1]), op.has(Exact)}, op.dims[0],
             aligned(arguments[0], arguments[1]));
}

template <class E> struct GeluBackward {
  using Element = E;
  const E *dy, *x;
  E *dx;
  bool exact;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(x + i), d = load<W>(dy + i);
    for (int j = 0; j < W; ++j)
      d.v[j] *= geluSlope(a.v[j], exact);
    store<W>(dx + i, d);
  }
};
template <class E> pp_status_t gelu_bwd(const PreparedOp &op, void *const *arguments) {
  return map(op, GeluBackward<E>{in<E>(arguments[0]), in<E>(arguments[1]), out<E>(arguments[2]), op.has(Exact)},
             op.dims[0], aligned(arguments[0], arguments[1], arguments[2]));
}

template <class E> struct Swiglu {
  using Element = E;
  const E *p, *q;
  E *y;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(p + i), b = load<W>(q + i);
    for (int j = 0; j < W; ++j)
      a.v[j] *= sigmoid(a.v[j]) * b.v[j];
    store<W>(y + i, a);
  }
};
template <class E> pp_status_t swiglu(const PreparedOp &op, void *const *arguments) {
  return map(op, Swiglu<E>{in<E>(arguments[0]), in<E>(arguments[1]), out<E>(arguments[2])}, op.dims[0],
             aligned(arguments[0], arguments[1], arguments[2]));
}

template <class E> struct SwigluBackward {
  using Element = E;
  const E *dy, *p, *q;
  E *dp, *dq;
  template <int W> PP_DEVICE void at(int64_t i) const {
    using A = Acc<E>;
    auto g = load<W>(dy + i), a = load<W>(p + i), b = load<W>(q + i);
    for (int j = 0; j < W; ++j) {
      A s = sigmoid(a.v[j]), x = a.v[j];
      a.v[j] = g.v[j] * b.v[j] * s * (A(1) + x * (A(1) - s));
      b.v[j] = g.v[j] * x * s;
    }
    store<W>(dp + i, a);
    store<W>(dq + i, b);
  }
};
template <class E> pp_status_t swiglu_bwd(const PreparedOp &op, void *const *arguments) {
  return map(op,
             SwigluBackward<E>{in<E>(arguments[0]), in<E>(arguments[1]), in<E>(arguments[2]), out<E>(arguments[3]),
                               out<E>(arguments[4])},
             op.dims[0], aligned(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]));
}

template <class E> struct Add {
  using Element = E;
  const E *x, *y;
  E *z;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(x + i), b = load<W>(y + i);
    for (int j = 0; j < W; ++j)
      a.v[j] += b.v[j];
    store<W>(z + i, a);
  }
};
template <class E> pp_status_t add(const PreparedOp &op, void *const *arguments) {
  return map(op, Add<E>{in<E>(arguments[0]), in<E>(arguments[1]), out<E>(arguments[2])}, op.dims[0],
             aligned(arguments[0], arguments[1], arguments[2]));
}

/// Column c of row t of x goes to column c of row t of y; rows of different widths.
template <class E> struct Columns {
  using Element = E;
  const E *x;
  E *y;
  int64_t width, xWidth, yWidth;
  template <int W> PP_DEVICE void at(int64_t i) const {
    int64_t row = quotient(i, width), column = i - row * width;
    store<W>(y + row * yWidth + column, load<W>(x + row * xWidth + column));
  }
};
template <class E> pp_status_t slice_columns(const PreparedOp &op, void *const *arguments) {
  int64_t total = op.dims[1], width = op.dims[3];
  const E *from = in<E>(arguments[0]) + op.dims[2];
  return map(op, Columns<E>{from, out<E>(arguments[1]), width, total, width}, op.dims[0] * width,
             aligned(from, arguments[1]) && (total | width) % packOf<E> == 0);
}
template <class E> pp_status_t place_columns(const PreparedOp &op, void *const *arguments) {
  int64_t total = op.dims[1], width = op.dims[3];
  E *to = out<E>(arguments[1]) + op.dims[2];
  return map(op, Columns<E>{in<E>(arguments[0]), to, width, width, total}, op.dims[0] * width,
             aligned(to, arguments[0]) && (total | width) % packOf<E> == 0);
}

template <class E> pp_status_t copy(const PreparedOp &op, void *const *arguments) {
  int64_t n = op.dims[0];
  return map(op, Columns<E>{in<E>(arguments[0]), out<E>(arguments[1]), n, n, n}, n,
             aligned(arguments[0], arguments[1]));
}

template <class E> pp_status_t zero(const PreparedOp &op, void *const *arguments) {
  return clear(op, out<E>(arguments[0]), op.dims[0]);
}

template <class E> struct Accumulated {
  using Element = E;
  const E *x;
  Acc<E> *y;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(x + i), b = load<W>(y + i);
    for (int j = 0; j < W; ++j)
      b.v[j] += a.v[j];
    store<W>(y + i, b);
  }
};
template <class E> pp_status_t accumulate(const PreparedOp &op, void *const *arguments) {
  return map(op, Accumulated<E>{in<E>(arguments[0]), out<Acc<E>>(arguments[1])}, op.dims[0],
             aligned(arguments[0], arguments[1]));
}

template <class E> struct Round {
  using Element = E;
  const Acc<E> *x;
  E *y;
  template <int W> PP_DEVICE void at(int64_t i) const { store<W>(y + i, load<W>(x + i)); }
};
template <class E> pp_status_t round(const PreparedOp &op, void *const *arguments) {
  return map(op, Round<E>{in<Acc<E>>(arguments[0]), out<E>(arguments[1])}, op.dims[0],
             aligned(arguments[0], arguments[1]));
}

// --- Sum of squares: blocks of 4096 in acc, then all blocks in f64, always in the same order ---

constexpr int squaresBlock = 4096;

template <class A> __global__ void squaresKernel(const A *grad, int64_t n, double *parts) {
  A sum[1] = {0};
  int64_t first = int64_t(blockIdx.x) * squaresBlock, end = first + squaresBlock < n ? first + squaresBlock : n;
  for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x)
    sum[0] += grad[i] * grad[i];
  blockSum(sum, sharedMemory<A>());
  if (threadIdx.x == 0)
    parts[blockIdx.x] = double(sum[0]);
}

__global__ void sumKernel(const double *parts, int64_t n, double *total, bool adds) {
  double sum[1] = {0};
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    sum[0] += parts[i];
  blockSum(sum, sharedMemory<double>());
  if (threadIdx.x == 0)
    *total = adds ? *total + sum[0] : sum[0];
}

template <class E> pp_status_t sum_squares(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  double *parts = reinterpret_cast<double *>(op.scratch);
  int64_t blocks = blocksFor(op.dims[0], squaresBlock);
  if (pp_status_t status = launch(op, squaresKernel<A>, {blocks}, 256, blockSumEntries * sizeof(A), in<A>(arguments[0]),
                                  op.dims[0], parts))
    return status;
  return launch(op, sumKernel, {1}, blocks > 32 ? 1024 : 32, blockSumEntries * sizeof(double), parts, blocks,
                out<double>(arguments[1]), op.has(Accumulate));
}

// --- AdamW ---

/// What a call's elements share, computed once per block in f64 from scalars that change with every step.
struct AdamFactors {
  double gamma, beta1, beta2, correction1, correction2, lr, epsilon, decay;
};

PP_DEVICE AdamFactors factorsOf(const OptimizerScalars &scalars, const double *norm2, bool decay) {
  AdamFactors f;
  f.gamma = 1;
  f.beta1 = scalars.beta1, f.beta2 = scalars.beta2, f.lr = scalars.lr, f.epsilon = scalars.epsilon;
  f.decay = decay ? scalars.weightDecay : 0;
  f.correction1 = 1 / (1 - pow(f.beta1, double(scalars.step)));
  f.correction2 = 1 / (1 - pow(f.beta2, double(scalars.step)));
  if (scalars.clip > 0 && norm2) {
    double ratio = scalars.clip / (sqrt(*norm2) + 1e-6);
    f.gamma = ratio < 1 ? ratio : 1;
  }
  return f;
}

template <class E> struct Adam {
  const Acc<E> *grad;
  E *w;
  Acc<E> *m, *v, *master;

  template <int W> PP_DEVICE void at(int64_t i, const AdamFactors &f) const {
    using A = Acc<E>;
    A gamma = A(f.gamma), beta1 = A(f.beta1), beta2 = A(f.beta2), rest1 = A(1 - f.beta1), rest2 = A(1 - f.beta2);
    A correction1 = A(f.correction1), correction2 = A(f.correction2), lr = A(f.lr), epsilon = A(f.epsilon);
    A decay = A(f.decay);
    auto g = load<W>(grad + i), mean = load<W>(m + i), square = load<W>(v + i), value = load<W>(master + i);
    for (int j = 0; j < W; ++j) {
      A slope = gamma * g.v[j];
      mean.v[j] = beta1 * mean.v[j] + rest1 * slope;
      square.v[j] = beta2 * square.v[j] + rest2 * (slope * slope);
      value.v[j] -=
          lr * (mean.v[j] * correction1 / (squareRoot(square.v[j] * correction2) + epsilon) + decay * value.v[j]);
    }
    store<W>(m + i, mean);
    store<W>(v + i, square);
    store<W>(master + i, value);
    if (static_cast<const void *>(w) != master)
      store<W>(w + i, value);
  }
};

template <class E>
__global__ void adamKernel(Adam<E> adam, const OptimizerScalars *scalars, const double *norm2, bool decay, int64_t n,
                           bool wide) {
  AdamFactors *f = sharedMemory<AdamFactors>();
  if (threadIdx.x == 0)
    *f = factorsOf(*scalars, norm2, decay);
  waitBlock();
  constexpr int W = packOf<E>;
  for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * W; i < n;
       i += int64_t(gridDim.x) * blockDim.x * W)
    if (wide && i + W <= n)
      adam.template at<W>(i, *f);
    else
      for (int64_t j = i; j < n && j < i + W; ++j)
        adam.template at<1>(j, *f);
}

template <class E> pp_status_t adamw(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
#ifndef __CUDACC__ // emulated programs have no device that writes them before a step
  *op.launches->scalars = *in<OptimizerScalars>(arguments[6]);
#endif
  void *master = arguments[5] ? arguments[5] : arguments[2];
  Adam<E> adam{in<A>(arguments[0]), out<E>(arguments[2]), out<A>(arguments[3]), out<A>(arguments[4]), out<A>(master)};
  int64_t blocks = blocksFor(op.dims[0], 256 * packOf<E>);
  return launch(op, adamKernel<E>, {blocks < 2048 ? blocks : 2048}, 256, sizeof(AdamFactors), adam,
                static_cast<const OptimizerScalars *>(op.launches->scalars), in<double>(arguments[1]), op.has(Decay),
                op.dims[0], aligned(arguments[0], arguments[2], arguments[3], arguments[4], master));
}

} // namespace

int64_t pp::elementwiseScratch(const PreparedOp &op) {
  return op.kernel == Kernel::sum_squares ? 8 * blocksFor(op.dims[0], squaresBlock) : 0;
}

Body pp::elementwiseBody(Kernel kernel, Type type) {
  switch (kernel) {
    PP_BODY_OF(gelu)
    PP_BODY_OF(gelu_bwd)
    PP_BODY_OF(swiglu)
    PP_BODY_OF(swiglu_bwd)
    PP_BODY_OF(add)
    PP_BODY_OF(slice_columns)
    PP_BODY_OF(place_columns)
    PP_BODY_OF(copy)
    PP_BODY_OF(zero)
    PP_BODY_OF(accumulate)
    PP_BODY_OF(round)
    PP_BODY_OF(sum_squares)
    PP_BODY_OF(adamw)
  default:
    return nullptr;
  }
}
