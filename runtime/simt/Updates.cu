// Kernels over flat arrays that change weights: SGD, biases of routers, and what Muon does element by element.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/simt/Map.h"

using namespace pp;

namespace {

/// The rank's scalars on the device, which change with every step, and the squared norm of all gradients.
struct StepScalars {
  const OptimizerScalars *scalars;
  const double *norm2;

  StepScalars(const PreparedOp &op, const void *norm2, const void *given)
      : scalars(static_cast<const OptimizerScalars *>(op.launches->scalars)), norm2(in<double>(norm2)) {
    takeScalars(op, given);
  }
  /// Gradients that overflowed, a NaN too, or nothing may change.
  PP_DEVICE bool skips() const { return scalars->holds || (norm2 && !(*norm2 < -minusInfinity<double>)); }
  PP_DEVICE double gamma() const {
    double gamma = 1 / scalars->lossScale;
    if (scalars->clip > 0 && norm2) {
      double ratio = scalars->clip / (sqrt(*norm2) / scalars->lossScale + 1e-6);
      gamma *= ratio < 1 ? ratio : 1;
    }
    return gamma;
  }
};

template <class E> struct Sgd {
  using Element = E;
  const Acc<E> *grad;
  E *w;
  Acc<E> *u, *master;
  double rate, shrink; ///< what the rank's rate and weight decay are multiplied by
  bool nesterov;
  StepScalars its;
  template <int W> PP_DEVICE void at(int64_t i) const {
    using A = Acc<E>;
    if (its.skips())
      return;
    A gamma = A(its.gamma()), momentum = A(its.scalars->momentum), lr = A(its.scalars->lr * rate);
    A decay = A(its.scalars->weightDecay * shrink);
    auto g = load<W>(grad + i), mean = load<W>(u + i), value = load<W>(master + i);
    for (int j = 0; j < W; ++j) {
      A slope = gamma * g.v[j] + decay * value.v[j];
      mean.v[j] = momentum * mean.v[j] + slope;
      value.v[j] -= lr * (nesterov ? slope + momentum * mean.v[j] : mean.v[j]);
    }
    store<W>(u + i, mean);
    store<W>(master + i, value);
    if (static_cast<const void *>(w) != master)
      store<W>(w + i, value);
  }
};
template <class E> pp_status_t sgd(const PreparedOp &op, void *const *a) {
  void *master = a[4] ? a[4] : a[2];
  return map(op,
             Sgd<E>{in<Acc<E>>(a[0]), out<E>(a[2]), out<Acc<E>>(a[3]), out<Acc<E>>(master), op.groupRate(), op.shrink(),
                    op.has(Nesterov), StepScalars(op, a[1], a[5])},
             op.dims[0], aligned(a[0], a[2], a[3], master));
}

template <class E> struct Steer {
  using Element = E;
  const Acc<E> *grad;
  E *w;
  Acc<E> *master;
  Acc<E> rate;
  StepScalars its;
  template <int W> PP_DEVICE void at(int64_t i) const {
    using A = Acc<E>;
    if (its.skips())
      return;
    auto g = load<W>(grad + i), value = load<W>(master + i);
    for (int j = 0; j < W; ++j)
      value.v[j] += g.v[j] > 0 ? -rate : g.v[j] < 0 ? rate : A(0);
    store<W>(master + i, value);
    if (static_cast<const void *>(w) != master)
      store<W>(w + i, value);
  }
};
template <class E> pp_status_t steer(const PreparedOp &op, void *const *a) {
  void *master = a[3] ? a[3] : a[2];
  return map(
      op,
      Steer<E>{in<Acc<E>>(a[0]), out<E>(a[2]), out<Acc<E>>(master), Acc<E>(op.params[0]), StepScalars(op, a[1], a[4])},
      op.dims[0], aligned(a[0], a[2], master));
}

template <class E> struct MuonMomentum {
  using Element = Acc<E>;
  const Acc<E> *grad;
  Acc<E> *u, *way;
  StepScalars its;
  template <int W> PP_DEVICE void at(int64_t i) const {
    using A = Acc<E>;
    bool keeps = its.skips(); // the way is not gone, but what it holds is read
    A gamma = A(its.gamma()), momentum = A(keeps ? 1 : its.scalars->momentum), rest = 1 - momentum;
    auto g = load<W>(grad + i), mean = load<W>(u + i);
    for (int j = 0; j < W; ++j) {
      A slope = keeps ? A(0) : gamma * g.v[j];
      mean.v[j] = momentum * mean.v[j] + rest * slope;
      g.v[j] = momentum * mean.v[j] + rest * slope;
    }
    store<W>(u + i, mean);
    store<W>(way + i, g);
  }
};
template <class E> pp_status_t muon_momentum(const PreparedOp &op, void *const *a) {
  return map(op, MuonMomentum<E>{in<Acc<E>>(a[0]), out<Acc<E>>(a[2]), out<Acc<E>>(a[3]), StepScalars(op, a[1], a[4])},
             op.dims[0], aligned(a[0], a[2], a[3]));
}

template <class E> struct UnitNorm {
  using Element = E;
  const E *x;
  const double *sum;
  E *y;
  template <int W> PP_DEVICE void at(int64_t i) const {
    double root = sqrt(*sum);
    Acc<E> factor = Acc<E>(1 / (root > 1e-7 ? root : 1e-7));
    auto a = load<W>(x + i);
    for (int j = 0; j < W; ++j)
      a.v[j] *= factor;
    store<W>(y + i, a);
  }
};
template <class E> pp_status_t unit_norm(const PreparedOp &op, void *const *a) {
  return map(op, UnitNorm<E>{in<E>(a[0]), in<double>(a[1]), out<E>(a[2])}, op.dims[0], aligned(a[0], a[2]));
}

template <class E> struct NewtonSchulz {
  using Element = E;
  const E *g, *gg;
  E *p;
  int64_t next; ///< elements from one of the diagonal to the next
  template <int W> PP_DEVICE void at(int64_t i) const {
    using A = Acc<E>;
    auto a = load<W>(g + i), b = load<W>(gg + i);
    for (int j = 0; j < W; ++j)
      a.v[j] = A(-4.7750) * a.v[j] + A(2.0315) * b.v[j] + A((i + j) % next == 0 ? 3.4445 : 0);
    store<W>(p + i, a);
  }
};
template <class E> pp_status_t newton_schulz(const PreparedOp &op, void *const *a) {
  int64_t n = op.dims[0];
  return map(op, NewtonSchulz<E>{in<E>(a[0]), in<E>(a[1]), out<E>(a[2]), n + 1}, n * n, aligned(a[0], a[1], a[2]));
}

template <class E> struct Muon {
  using Element = E;
  const Acc<E> *way;
  E *w;
  Acc<E> *master;
  Acc<E> factor;
  double rate, shrink;
  StepScalars its;
  template <int W> PP_DEVICE void at(int64_t i) const {
    using A = Acc<E>;
    if (its.skips())
      return;
    A lr = A(its.scalars->matrixRate * rate), decay = A(its.scalars->matrixDecay * shrink);
    auto step = load<W>(way + i), value = load<W>(master + i);
    for (int j = 0; j < W; ++j)
      value.v[j] -= lr * (decay * value.v[j] + factor * step.v[j]);
    store<W>(master + i, value);
    if (static_cast<const void *>(w) != master)
      store<W>(w + i, value);
  }
};
template <class E> pp_status_t muon(const PreparedOp &op, void *const *a) {
  void *master = a[3] ? a[3] : a[2];
  return map(op,
             Muon<E>{in<Acc<E>>(a[0]), out<E>(a[2]), out<Acc<E>>(master), Acc<E>(op.params[0]), op.groupRate(),
                     op.shrink(), StepScalars(op, a[1], a[4])},
             op.dims[0], aligned(a[0], a[2], master));
}

} // namespace

PP_BODIES(sgd)
PP_BODIES(steer)
PP_BODIES(muon_momentum)
PP_BODIES(unit_norm)
PP_BODIES(newton_schulz)
PP_BODIES(muon)
