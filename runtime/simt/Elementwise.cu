// Kernels over flat arrays: gelu, swiglu, glu, add, columns, copies, sums of heads, zero, accumulate, round.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A thread computes one pack of 16 bytes. It reads all it needs before it writes, and touches no other's elements, so
// every alias that runtime/Pp.h allows is safe.
#include "runtime/files/Philox.h"
#include "runtime/simt/Map.h"

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

/// Where p and q, or their gradients, of a gated unit lie: apart, or as columns of one tensor.
template <class T> struct Gates {
  T *p, *q;
  int64_t width; ///< columns of p in a row of both; 0: apart
  Gates(const PreparedOp &op, T *first, T *second)
      : p(first), q(op.gate > 0 ? first + op.gate : second), width(op.gate) {}
  /// Of element i of what the unit makes.
  PP_DEVICE int64_t place(int64_t i) const { return width > 0 ? i + quotient(i, width) * width : i; }
};

template <class E> struct Swiglu {
  using Element = E;
  Gates<const E> x;
  E *y;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(x.p + x.place(i)), b = load<W>(x.q + x.place(i));
    for (int j = 0; j < W; ++j)
      a.v[j] *= sigmoid(a.v[j]) * b.v[j];
    store<W>(y + i, a);
  }
};
template <class E> pp_status_t swiglu(const PreparedOp &op, void *const *arguments) {
  const Gates<const E> x(op, in<E>(arguments[0]), in<E>(arguments[1]));
  return map(op, Swiglu<E>{x, out<E>(arguments[2])}, op.dims[0], aligned(x.p, x.q, arguments[2]));
}

template <class E> struct SwigluBackward {
  using Element = E;
  const E *dy;
  Gates<const E> x;
  Gates<E> dx;
  template <int W> PP_DEVICE void at(int64_t i) const {
    using A = Acc<E>;
    auto g = load<W>(dy + i), a = load<W>(x.p + x.place(i)), b = load<W>(x.q + x.place(i));
    for (int j = 0; j < W; ++j) {
      A s = sigmoid(a.v[j]), x = a.v[j];
      a.v[j] = g.v[j] * b.v[j] * s * (A(1) + x * (A(1) - s));
      b.v[j] = g.v[j] * x * s;
    }
    store<W>(dx.p + dx.place(i), a);
    store<W>(dx.q + dx.place(i), b);
  }
};
template <class E> pp_status_t swiglu_bwd(const PreparedOp &op, void *const *arguments) {
  const Gates<const E> x(op, in<E>(arguments[1]), in<E>(arguments[2]));
  const Gates<E> dx(op, out<E>(arguments[3]), out<E>(arguments[4]));
  return map(op, SwigluBackward<E>{in<E>(arguments[0]), x, dx}, op.dims[0],
             aligned(arguments[0], x.p, x.q, dx.p, dx.q));
}

/// What a glu takes beside its tensors; without a limit every number lies within it.
template <class A> struct GluNumbers {
  A limit, alpha, plus;
  bool exact, tanh;
  explicit GluNumbers(const PreparedOp &op)
      : limit(op.params[0] > 0 ? A(op.params[0]) : -minusInfinity<A>), alpha(A(op.params[1])), plus(A(op.params[2])),
        exact(op.has(Exact)), tanh(op.has(Tanh)) {}
  PP_DEVICE A within(A q) const { return q > limit ? limit : q < -limit ? -limit : q; }
  /// The activation of the gate p.
  PP_DEVICE A active(A p) const {
    A g = p > limit ? limit : p;
    return exact || tanh ? geluOf(g, exact) : g * sigmoid(alpha * g);
  }
  PP_DEVICE A slope(A p) const {
    if (p > limit)
      return 0;
    if (exact || tanh)
      return geluSlope(p, exact);
    A s = sigmoid(alpha * p);
    return s + p * s * (A(1) - s) * alpha;
  }
};

template <class E> struct Glu {
  using Element = E;
  Gates<const E> x;
  E *y;
  GluNumbers<Acc<E>> n;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(x.p + x.place(i)), b = load<W>(x.q + x.place(i));
    for (int j = 0; j < W; ++j)
      a.v[j] = n.active(a.v[j]) * (n.within(b.v[j]) + n.plus);
    store<W>(y + i, a);
  }
};
template <class E> pp_status_t glu(const PreparedOp &op, void *const *arguments) {
  const Gates<const E> x(op, in<E>(arguments[0]), in<E>(arguments[1]));
  return map(op, Glu<E>{x, out<E>(arguments[2]), GluNumbers<Acc<E>>(op)}, op.dims[0], aligned(x.p, x.q, arguments[2]));
}

template <class E> struct GluBackward {
  using Element = E;
  const E *dy;
  Gates<const E> x;
  Gates<E> dx;
  GluNumbers<Acc<E>> n;
  template <int W> PP_DEVICE void at(int64_t i) const {
    using A = Acc<E>;
    auto g = load<W>(dy + i), a = load<W>(x.p + x.place(i)), b = load<W>(x.q + x.place(i));
    for (int j = 0; j < W; ++j) {
      A active = n.active(a.v[j]), up = b.v[j];
      a.v[j] = g.v[j] * (n.within(up) + n.plus) * n.slope(a.v[j]);
      b.v[j] = up > n.limit || up < -n.limit ? A(0) : g.v[j] * active;
    }
    store<W>(dx.p + dx.place(i), a);
    store<W>(dx.q + dx.place(i), b);
  }
};
template <class E> pp_status_t glu_bwd(const PreparedOp &op, void *const *arguments) {
  const Gates<const E> x(op, in<E>(arguments[1]), in<E>(arguments[2]));
  const Gates<E> dx(op, out<E>(arguments[3]), out<E>(arguments[4]));
  return map(op, GluBackward<E>{in<E>(arguments[0]), x, dx, GluNumbers<Acc<E>>(op)}, op.dims[0],
             aligned(arguments[0], x.p, x.q, dx.p, dx.q));
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

template <class E> struct Scale {
  using Element = E;
  const E *x;
  E *y;
  Acc<E> factor;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(x + i);
    for (int j = 0; j < W; ++j)
      a.v[j] *= factor;
    store<W>(y + i, a);
  }
};
template <class E> pp_status_t scale(const PreparedOp &op, void *const *arguments) {
  return map(op, Scale<E>{in<E>(arguments[0]), out<E>(arguments[1]), Acc<E>(op.params[0])}, op.dims[0],
             aligned(arguments[0], arguments[1]));
}

template <class E> pp_status_t add_bias(const PreparedOp &op, void *const *arguments) {
  if (!op.has(Sums))
    return addBias<E>(op, arguments[0], arguments[1], arguments[2], op.dims[0], op.dims[1]);
  using A = Acc<E>;
  return map(op, AddBias<E, A>{in<A>(arguments[0]), in<E>(arguments[1]), out<A>(arguments[2]), op.dims[1]},
             op.dims[0] * op.dims[1], false);
}

/// Four elements share a counter; their words are made once for a pack.
template <class E> struct Dropout {
  using Element = E;
  const E *x;
  const int32_t *rows;
  E *y;
  int64_t s, width;
  Places places;
  int64_t site;
  double rate;
  Acc<E> scale;
  const OptimizerScalars *scalars;
  template <int W> PP_DEVICE void at(int64_t i) const {
    auto a = load<W>(x + i);
    int64_t token = quotient(i, width), known = -1;
    int64_t first = places.of(token - quotient(token, s) * s) * width + (i - token * width);
    Words words{};
    DropoutMask mask(scalars->seed, site, rate);
    for (int j = 0; j < W && !scalars->holds; ++j) {
      int64_t place = first + j;
      if (place / 4 != known)
        words = mask.words(known = place / 4, rows[token]);
      a.v[j] = words.v[place % 4] >= mask.threshold ? scale * a.v[j] : Acc<E>(0);
    }
    store<W>(y + i, a);
  }
};
/// dims b s w offset site. A pack is of one token.
template <class E> pp_status_t dropout(const PreparedOp &op, void *const *arguments) {
  takeScalars(op, arguments[3]);
  Dropout<E> dropout{in<E>(arguments[0]),
                     in<int32_t>(arguments[1]),
                     out<E>(arguments[2]),
                     op.dims[1],
                     op.dims[2],
                     Places(op, op.dims[1], op.dims[3]),
                     op.dims[4],
                     op.params[0],
                     Acc<E>(1 / (1 - op.params[0])),
                     op.launches->scalars};
  return map(op, dropout, op.dims[0] * op.dims[1] * op.dims[2],
             op.dims[2] % packOf<E> == 0 && aligned(arguments[0], arguments[2]));
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
/// A row of x goes to columns of `times` rows of y; with `zeros` the other columns are written, too.
template <class E> struct PlacedColumns {
  using Element = E;
  const E *x;
  E *y;
  int64_t start, width, total, times;
  bool zeros;
  template <int W> PP_DEVICE void at(int64_t i) const {
    int64_t written = zeros ? total : width, row = quotient(i, written), column = i - row * written;
    int64_t from = zeros ? column - start : column;
    Pack<Acc<E>, W> a{};
    if (from >= 0 && from < width)
      a = load<W>(x + quotient(row, times) * width + from);
    store<W>(y + row * total + start + from, a);
  }
};
template <class E> pp_status_t place_columns(const PreparedOp &op, void *const *arguments) {
  int64_t total = op.dims[1], start = op.dims[2], width = op.dims[3];
  bool zeros = op.has(Zeros);
  return map(op, PlacedColumns<E>{in<E>(arguments[0]), out<E>(arguments[1]), start, width, total, op.dims[4], zeros},
             op.dims[0] * (zeros ? total : width),
             aligned(arguments[0], arguments[1]) && (total | width | start) % packOf<E> == 0);
}

/// Element i of y[T,n,d] is that of x[T,d].
template <class E> struct Repeated {
  using Element = E;
  const E *x;
  E *y;
  int64_t width, times;
  template <int W> PP_DEVICE void at(int64_t i) const {
    int64_t copy = quotient(i, width), head = quotient(copy, times);
    store<W>(y + i, load<W>(x + head * width + (i - copy * width)));
  }
};
template <class E> pp_status_t repeat_heads(const PreparedOp &op, void *const *arguments) {
  int64_t width = op.dims[1], times = op.dims[2];
  return map(op, Repeated<E>{in<E>(arguments[0]), out<E>(arguments[1]), width, times}, op.dims[0] * times * width,
             aligned(arguments[0], arguments[1]) && width % packOf<E> == 0);
}

template <class E> struct SumOfCopies {
  using Element = E;
  const E *x;
  E *y;
  int64_t width, times, total;
  template <int W> PP_DEVICE void at(int64_t i) const {
    int64_t head = quotient(i, width);
    const E *first = x + head * times * total + (i - head * width);
    auto sum = load<W>(first);
    for (int64_t k = 1; k < times; ++k) {
      auto next = load<W>(first + k * total);
      for (int j = 0; j < W; ++j)
        sum.v[j] += next.v[j];
    }
    store<W>(y + i, sum);
  }
};
template <class E> pp_status_t sum_heads(const PreparedOp &op, void *const *arguments) {
  int64_t width = op.dims[1], times = op.dims[2], total = op.dims[3];
  const E *from = in<E>(arguments[0]) + op.dims[4];
  return map(op, SumOfCopies<E>{from, out<E>(arguments[1]), width, times, total}, op.dims[0] * width,
             aligned(from, arguments[1]) && (total | width) % packOf<E> == 0);
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

} // namespace

pp_status_t pp::addSums(const PreparedOp &op, const void *from, void *to) {
  return map(op, Accumulated<float>{in<float>(from), out<float>(to)}, op.dims[2], aligned(from, to));
}

PP_BODIES(gelu)
PP_BODIES(gelu_bwd)
PP_BODIES(swiglu)
PP_BODIES(swiglu_bwd)
PP_BODIES(glu)
PP_BODIES(glu_bwd)
PP_BODIES(add)
PP_BODIES(add_bias)
PP_BODIES(scale)
PP_BODIES(dropout)
PP_BODIES(slice_columns)
PP_BODIES(place_columns)
PP_BODIES(repeat_heads)
PP_BODIES(sum_heads)
PP_BODIES(copy)
PP_BODIES(zero)
PP_BODIES(accumulate)
PP_BODIES(round)
