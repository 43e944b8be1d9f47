// Loops over flat arrays: gelu, swiglu, glu, 8 bits, add, add_bias, scale, copies of columns and heads, sums, round.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// `#pragma omp simd` promises no dependence between iterations; iteration i touches index i alone, so every alias that
// runtime/Pp.h allows is safe.
#ifndef PP_RUNTIME_KERNELS_ELEMENTWISE_H
#define PP_RUNTIME_KERNELS_ELEMENTWISE_H

#include "runtime/Rank.h"
#include "runtime/files/Philox.h"
#include "runtime/kernels/Element.h"
#include <limits>

namespace {
using namespace pp;

constexpr double sqrt2OverPi = 0.79788456080286535588;
constexpr double geluCubic = 0.044715;

/// tanh form as a * sigmoid(2u): half (1 + tanh u) is sigmoid(2u), and exp vectorises where tanh does not.
template <class E> pp_status_t gelu(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  int64_t n = op.dims[0];
  if (op.has(Exact)) {
    for (int64_t i = 0; i < n; ++i) {
      A a = get(x, i);
      put(y, i, A(0.5) * a * (A(1) + errorFunction(a * A(0.70710678118654752440))));
    }
    return PP_OK;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A a = get(x, i);
    A u2 = A(2 * sqrt2OverPi) * (a + A(geluCubic) * a * a * a);
    put(y, i, a * sigmoid(u2));
  }
  return PP_OK;
}

template <class E> pp_status_t gelu_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *dy = in<E>(arguments[0]);
  const E *x = in<E>(arguments[1]);
  E *dx = out<E>(arguments[2]);
  int64_t n = op.dims[0];
  if (op.has(Exact)) {
    for (int64_t i = 0; i < n; ++i) {
      A a = get(x, i);
      A normal = A(0.5) * (A(1) + errorFunction(a * A(0.70710678118654752440)));
      put(dx, i, get(dy, i) * (normal + a * exponential(A(-0.5) * a * a) * A(0.39894228040143267794)));
    }
    return PP_OK;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A a = get(x, i);
    A s = sigmoid(A(2 * sqrt2OverPi) * (a + A(geluCubic) * a * a * a));
    A slope = A(2 * sqrt2OverPi) * (A(1) + A(3 * geluCubic) * a * a);
    put(dx, i, get(dy, i) * (s + a * s * (A(1) - s) * slope));
  }
  return PP_OK;
}

/// Elements that a gated unit makes together: all, or a row where p and q are columns of one tensor.
template <class E> struct GatedRow {
  int64_t count;
  const E *p, *q;
  E *y;
};
/// The same of its backward.
template <class E> struct GatedRowBackward {
  int64_t count;
  const E *dy, *p, *q;
  E *dp, *dq;
};

template <class E, class Run> PP_INLINE void gatedRows(const PreparedOp &op, void *const *arguments, Run run) {
  const int64_t width = op.gate, count = width > 0 ? width : op.dims[0];
  const E *p = in<E>(arguments[0]), *q = width > 0 ? p + width : in<E>(arguments[1]);
  for (int64_t at = 0; at < op.dims[0]; at += count)
    run(GatedRow<E>{count, p + 2 * at, q + 2 * at, out<E>(arguments[2]) + at});
}
template <class E, class Run> PP_INLINE void gatedRowsBackward(const PreparedOp &op, void *const *arguments, Run run) {
  const int64_t width = op.gate, count = width > 0 ? width : op.dims[0];
  const E *p = in<E>(arguments[1]), *q = width > 0 ? p + width : in<E>(arguments[2]);
  E *dp = out<E>(arguments[3]), *dq = width > 0 ? dp + width : out<E>(arguments[4]);
  for (int64_t at = 0; at < op.dims[0]; at += count)
    run(GatedRowBackward<E>{count, in<E>(arguments[0]) + at, p + 2 * at, q + 2 * at, dp + 2 * at, dq + 2 * at});
}

template <class E> pp_status_t swiglu(const PreparedOp &op, void *const *arguments) {
  gatedRows<E>(op, arguments, [](GatedRow<E> row) {
#pragma omp simd
    for (int64_t i = 0; i < row.count; ++i) {
      Acc<E> a = get(row.p, i);
      put(row.y, i, a * sigmoid(a) * get(row.q, i));
    }
  });
  return PP_OK;
}

template <class E> pp_status_t swiglu_bwd(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  gatedRowsBackward<E>(op, arguments, [](GatedRowBackward<E> row) {
#pragma omp simd
    for (int64_t i = 0; i < row.count; ++i) {
      A g = get(row.dy, i), a = get(row.p, i), b = get(row.q, i);
      A s = sigmoid(a);
      put(row.dp, i, g * b * s * (A(1) + a * (A(1) - s)));
      put(row.dq, i, g * a * s);
    }
  });
  return PP_OK;
}

/// Numbers of 8 bits, e4m3: 3 bits of fraction, 448 at most, and below 2^-6 multiples of 2^-9.
template <class A> struct EightBits;
template <> struct EightBits<float> {
  using Bits = uint32_t;
  static constexpr int fraction = 23, bias = 127;
};
template <> struct EightBits<double> {
  using Bits = uint64_t;
  static constexpr int fraction = 52, bias = 1023;
};

/// The largest power of two with which `largest` is at most 448, and no more than makes its inverse a normal number.
template <class A> PP_INLINE A scaleOf(A largest) {
  using F = EightBits<A>;
  if (!(largest > 0) || largest > A(std::numeric_limits<A>::max()))
    return 1;
  const auto bits = __builtin_bit_cast(typename F::Bits, largest);
  const int exponent =
      int(bits >> F::fraction) - F::bias; // of numbers below the normal ones too small: the bound holds
  const bool fits = (bits << (8 * sizeof(A) - F::fraction)) <= (typename F::Bits(3) << (8 * sizeof(A) - 2)); // 1.75
  const int power = (fits ? 8 : 7) - exponent;
  return __builtin_bit_cast(A, typename F::Bits(power < F::bias ? power + F::bias : 2 * F::bias - 1) << F::fraction);
}

/// The number of 8 bits that is nearest, of two the even one.
template <class A> PP_INLINE A toEightBits(A x) {
  using F = EightBits<A>;
  using Bits = typename F::Bits;
  constexpr int cut = F::fraction - 3;
  constexpr A small = A(Bits(3) << (F::fraction - 1)) / A(512); // what is added to it becomes a multiple of 2^-9
  A size = x < 0 ? -x : x;
  size = size > 448 ? A(448) : size;
  Bits bits = __builtin_bit_cast(Bits, size);
  bits = (bits + (Bits(1) << (cut - 1)) - 1 + (bits >> cut & 1)) & ~((Bits(1) << cut) - 1);
  A rounded = size < A(0.015625) ? (size + small) - small : __builtin_bit_cast(A, bits);
  return x != x ? x : x < 0 ? -rounded : rounded;
}

/// Columns that have blocks of their own, all rows of a band at a time; `largest` is that of each.
template <class E> PP_INLINE void quantizeColumns(const E *x, E *y, int64_t rows, int64_t columns, int64_t width) {
  using A = Acc<E>;
  constexpr int64_t most = 64;
  A largest[most], scale[most], inverse[most];
  for (int64_t first = 0; first < columns; first += most) {
    const int64_t count = columns - first < most ? columns - first : most;
    for (int64_t j = 0; j < count; ++j)
      largest[j] = 0;
    for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        A a = get(x, i * width + first + j), size = a < 0 ? -a : a;
        largest[j] = size > largest[j] || size != size ? size : largest[j];
      }
    for (int64_t j = 0; j < count; ++j) {
      scale[j] = scaleOf(largest[j]);
      inverse[j] = 1 / scale[j];
    }
    for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        const int64_t at = i * width + first + j;
        put(y, at, toEightBits<A>(get(x, at) * scale[j]) * inverse[j]);
      }
  }
}

/// One block.
template <class E> PP_INLINE void quantizeBlock(const E *x, E *y, int64_t rows, int64_t columns, int64_t width) {
  using A = Acc<E>;
  A largest = 0;
  bool isNan = false;
  for (int64_t i = 0; i < rows; ++i)
#pragma omp simd reduction(max : largest) reduction(| : isNan)
    for (int64_t j = 0; j < columns; ++j) {
      A a = get(x, i * width + j), size = a < 0 ? -a : a;
      largest = size > largest ? size : largest;
      isNan |= a != a;
    }
  const A scale = isNan ? A(1) : scaleOf(largest), inverse = 1 / scale;
  for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j)
      put(y, i * width + j, toEightBits<A>(get(x, i * width + j) * scale) * inverse);
}

template <class E> pp_status_t quantize(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  const int64_t rows = op.dims[0], width = op.dims[1];
  const int64_t high = op.dims[2] > 0 ? op.dims[2] : rows, wide = op.dims[3] > 0 ? op.dims[3] : width;
  for (int64_t i = 0; i < rows; i += high) {
    const int64_t count = rows - i < high ? rows - i : high;
    if (wide == 1)
      quantizeColumns(x + i * width, y + i * width, count, width, width);
    else
      for (int64_t j = 0; j < width; j += wide)
        quantizeBlock(x + i * width + j, y + i * width + j, count, width - j < wide ? width - j : wide, width);
  }
  return PP_OK;
}

enum class Activation { Silu, Gelu, GeluTanh };

/// The activation and its slope; alpha is silu's alone.
template <Activation kind, class A> PP_INLINE A activate(A x, A alpha, A &slope) {
  if constexpr (kind == Activation::Gelu) {
    A normal = A(0.5) * (A(1) + errorFunction(x * A(0.70710678118654752440)));
    slope = normal + x * exponential(A(-0.5) * x * x) * A(0.39894228040143267794);
    return x * normal;
  } else {
    constexpr bool tanh = kind == Activation::GeluTanh;
    A s = sigmoid(tanh ? A(2 * sqrt2OverPi) * (x + A(geluCubic) * x * x * x) : alpha * x);
    A rise = tanh ? A(2 * sqrt2OverPi) * (A(1) + A(3 * geluCubic) * x * x) : alpha;
    slope = s + x * s * (A(1) - s) * rise;
    return x * s;
  }
}

/// The numbers of a glu beside its tensors; without a limit its bound is infinite.
template <class A> struct GluNumbers {
  A limit, alpha, plus;
  explicit GluNumbers(const PreparedOp &op)
      : limit(op.params[0] > 0 ? A(op.params[0]) : A(__builtin_huge_val())), alpha(A(op.params[1])),
        plus(A(op.params[2])) {}
  PP_INLINE A gate(A p) const { return p > limit ? limit : p; }
  PP_INLINE A within(A q) const { return q > limit ? limit : q < -limit ? -limit : q; }
};

template <class E, Activation kind> void gluOf(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const GluNumbers<A> n(op);
  gatedRows<E>(op, arguments, [n](GatedRow<E> row) {
#pragma omp simd
    for (int64_t i = 0; i < row.count; ++i) {
      A slope;
      put(row.y, i, activate<kind>(n.gate(get(row.p, i)), n.alpha, slope) * (n.within(get(row.q, i)) + n.plus));
    }
  });
}

template <class E, Activation kind> void gluBackward(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const GluNumbers<A> n(op);
  gatedRowsBackward<E>(op, arguments, [n](GatedRowBackward<E> row) {
#pragma omp simd
    for (int64_t i = 0; i < row.count; ++i) {
      A d = get(row.dy, i), a = get(row.p, i), b = get(row.q, i), slope;
      A active = activate<kind>(n.gate(a), n.alpha, slope);
      put(row.dp, i, a > n.limit ? A(0) : d * (n.within(b) + n.plus) * slope);
      put(row.dq, i, b > n.limit || b < -n.limit ? A(0) : d * active);
    }
  });
}

template <class E> pp_status_t glu(const PreparedOp &op, void *const *arguments) {
  op.has(Exact)  ? gluOf<E, Activation::Gelu>(op, arguments)
  : op.has(Tanh) ? gluOf<E, Activation::GeluTanh>(op, arguments)
                 : gluOf<E, Activation::Silu>(op, arguments);
  return PP_OK;
}

template <class E> pp_status_t glu_bwd(const PreparedOp &op, void *const *arguments) {
  op.has(Exact)  ? gluBackward<E, Activation::Gelu>(op, arguments)
  : op.has(Tanh) ? gluBackward<E, Activation::GeluTanh>(op, arguments)
                 : gluBackward<E, Activation::Silu>(op, arguments);
  return PP_OK;
}

template <class E> pp_status_t add(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  const E *y = in<E>(arguments[1]);
  E *z = out<E>(arguments[2]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    put(z, i, get(x, i) + get(y, i));
  return PP_OK;
}

template <class E> pp_status_t scale(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  A factor = A(op.params[0]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    put(y, i, factor * A(get(x, i)));
  return PP_OK;
}

template <class E, class X> pp_status_t addBias(const PreparedOp &op, void *const *arguments) {
  const E *bias = in<E>(arguments[1]);
  int64_t h = op.dims[1];
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const X *x = in<X>(arguments[0]) + t * h;
    X *y = out<X>(arguments[2]) + t * h;
#pragma omp simd
    for (int64_t i = 0; i < h; ++i)
      put(y, i, Acc<E>(get(x, i)) + Acc<E>(get(bias, i)));
  }
  return PP_OK;
}

/// dims T h.
template <class E> pp_status_t add_bias(const PreparedOp &op, void *const *arguments) {
  return op.has(Sums) ? addBias<E, Acc<E>>(op, arguments) : addBias<E, E>(op, arguments);
}

/// dims b s w offset site. An element is read before it is written: y may be x.
template <class E> pp_status_t dropout(const PreparedOp &op, void *const *arguments) {
  using A = Acc<E>;
  const auto *scalars = static_cast<const OptimizerScalars *>(arguments[3]);
  int64_t s = op.dims[1], width = op.dims[2], rows = op.dims[0] * s;
  if (scalars->holds) {
    memmove(arguments[2], arguments[0], size_t(rows * width) * sizeof(E));
    return PP_OK;
  }
  DropoutMask mask(scalars->seed, op.dims[4], op.params[0]);
  A scale = A(1 / (1 - op.params[0]));
  for (int64_t t = 0; t < rows; ++t) {
    const E *x = in<E>(arguments[0]) + t * width;
    E *y = out<E>(arguments[2]) + t * width;
    int64_t first = op.positionOf(t % s, s, op.dims[3]) * width, group = -1;
    Words words{};
    for (int64_t c = 0; c < width; ++c) {
      if ((first + c) / 4 != group)
        words = mask.words(group = (first + c) / 4, in<int32_t>(arguments[1])[t]);
      put(y, c, words.v[(first + c) % 4] >= mask.threshold ? scale * A(get(x, c)) : A(0));
    }
  }
  return PP_OK;
}

template <class E> pp_status_t slice_columns(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  int64_t total = op.dims[1], start = op.dims[2], width = op.dims[3];
  for (int64_t t = 0; t < op.dims[0]; ++t)
    memcpy(y + t * width, x + t * total + start, size_t(width) * sizeof(E));
  return PP_OK;
}

template <class E> pp_status_t place_columns(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  int64_t total = op.dims[1], start = op.dims[2], width = op.dims[3], times = op.dims[4];
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    if (op.has(Zeros))
      memset(y + t * total, 0, size_t(total) * sizeof(E));
    memcpy(y + t * total + start, x + t / times * width, size_t(width) * sizeof(E));
  }
  return PP_OK;
}

template <class E> pp_status_t repeat_heads(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  E *y = out<E>(arguments[1]);
  int64_t width = op.dims[1], times = op.dims[2];
  for (int64_t t = 0; t < op.dims[0]; ++t)
    for (int64_t k = 0; k < times; ++k)
      memcpy(y + (t * times + k) * width, x + t * width, size_t(width) * sizeof(E));
  return PP_OK;
}

template <class E> pp_status_t sum_heads(const PreparedOp &op, void *const *arguments) {
  int64_t width = op.dims[1], times = op.dims[2], total = op.dims[3];
  for (int64_t t = 0; t < op.dims[0]; ++t) {
    const E *x = in<E>(arguments[0]) + t * times * total + op.dims[4];
    E *y = out<E>(arguments[1]) + t * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      Acc<E> sum = Acc<E>(get(x, i));
      for (int64_t k = 1; k < times; ++k)
        sum += Acc<E>(get(x, k * total + i));
      put(y, i, sum);
    }
  }
  return PP_OK;
}

template <class E> pp_status_t copy(const PreparedOp &op, void *const *arguments) {
  memmove(arguments[1], arguments[0], size_t(op.dims[0]) * sizeof(E));
  return PP_OK;
}

template <class E> pp_status_t zero(const PreparedOp &op, void *const *arguments) {
  memset(arguments[0], 0, size_t(op.dims[0]) * sizeof(E));
  return PP_OK;
}

template <class E> pp_status_t accumulate(const PreparedOp &op, void *const *arguments) {
  const E *x = in<E>(arguments[0]);
  Acc<E> *y = out<Acc<E>>(arguments[1]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    y[i] += get(x, i);
  return PP_OK;
}

template <class E> pp_status_t round(const PreparedOp &op, void *const *arguments) {
  const Acc<E> *x = in<Acc<E>>(arguments[0]);
  E *y = out<E>(arguments[1]);
  int64_t n = op.dims[0];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    put(y, i, x[i]);
  return PP_OK;
}

} // namespace

#endif // PP_RUNTIME_KERNELS_ELEMENTWISE_H
