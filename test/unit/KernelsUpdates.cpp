// SGD and the steps of Muon against their formulas in f64.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "test/unit/Kernels.h"
#include <cmath>

using namespace pp;
using namespace pp::test;

namespace {

constexpr size_t count = 103;

std::vector<std::string> flags(bool decay, bool nesterov = false) {
  std::vector<std::string> words;
  if (decay)
    words.emplace_back("decay");
  if (nesterov)
    words.emplace_back("nesterov");
  return words;
}

struct Case {
  double clip, scale;
};
/// No clipping; a norm that is clipped; one that is not, with a loss scale.
constexpr Case cases[] = {{0, 1}, {0.5, 1}, {1e6, 1024}};
/// Params of weights without a group, and of a group with half the rate and twice the decay.
const std::vector<double> groups[] = {{}, {0.5, 2}};

double normOf(const Values &grad) {
  double sum = 0;
  for (double g : grad)
    sum += g * g;
  return sum;
}

/// The factor from the gradient of the scaled loss to that of the loss, with clipping.
double gammaOf(const Case &its, const Values &grad) {
  double norm = std::sqrt(normOf(grad)) / its.scale;
  return (its.clip > 0 ? std::min(1.0, its.clip / (norm + 1e-6)) : 1) / its.scale;
}

} // namespace

/// Compares with the formula of Sutskever et al. 2013, as torch.optim.SGD writes it.
TEST(KernelsUpdates, Sgd) {
  for (Type type : allTypes)
    for (bool decay : {false, true})
      for (bool nesterov : {false, true})
        for (const Case &its : cases) {
          Type acc = accOf(type);
          const std::vector<double> &group = groups[its.scale > 1];
          OneOp op("sgd", type, {int64_t(count)}, group, flags(decay, nesterov));
          OptimizerScalars &scalars = op.rank.optimizer;
          scalars.lr = group.empty() ? 1e-2 : 2e-2, scalars.weightDecay = group.empty() ? 0.1 : 0.05;
          scalars.momentum = 0.9;
          scalars.clip = its.clip, scalars.lossScale = its.scale;
          Values w = rounded(acc, random(count, 1)), u(count, 0), grad = rounded(acc, random(count, 2));
          Array weights(type, w), master(acc, w), momentum(acc, u);
          for (int step = 1; step <= 3; ++step) {
            for (size_t i = 0; i < count; ++i) {
              double g = gammaOf(its, grad) * grad[i] + (decay ? 0.1 * w[i] : 0);
              u[i] = 0.9 * u[i] + g;
              w[i] -= 1e-2 * (nesterov ? g + 0.9 * u[i] : u[i]);
            }
            op(pp_sgd, Array(acc, grad), Array(Type::F64, Values{normOf(grad)}), weights, momentum,
               isHalf(type) ? master.data() : nullptr);
          }
          expectNear(isHalf(type) ? master.get() : weights.get(), w, toleranceOf(acc) / 10, "w");
          expectNear(momentum.get(), u, toleranceOf(acc) / 10, "u");
          if (isHalf(type))
            expectEqual(weights.get(), rounded(type, master.get()), "w is the master rounded");
        }
}

/// A device updates a part of a weight whose state lies elsewhere in its shard: nothing else changes.
TEST(KernelsUpdates, PartsOfWeights) {
  for (Type type : {Type::F32, Type::F64, Type::Bf16})
    for (bool list : {false, true}) {
      Type acc = accOf(type);
      const size_t first = 32, place = 64, has = 40, all = 160;
      const int64_t wide = acc == Type::F64 ? 8 : 4, narrow = type == Type::Bf16 ? 2 : wide;
      std::vector<int64_t> moved = {int64_t(first) * wide,   0,
                                    int64_t(first) * narrow, int64_t(place) * wide,
                                    int64_t(place) * wide,   type == Type::Bf16 ? int64_t(place) * wide : 0};
      if (list)
        moved.erase(moved.begin() + 1);
      Values w = rounded(acc, random(all, 1)), grad = rounded(acc, random(all, 2)),
             state = rounded(acc, random(all, 3));
      for (double &value : state)
        value = std::fabs(value);
      auto run = [&](const OpSpec &spec, Array &weights, Array &m, Array &v, Array &master, Array &grads) {
        OneOp op(spec);
        op.rank.optimizer.lr = 0.01, op.rank.optimizer.weightDecay = 0.1;
        void *half = isHalf(type) ? master.data() : nullptr;
        const Array norm(Type::F64, Values{1});
        void *tensors[] = {grads.data(), weights.data(), m.data(), v.data(), half};
        if (spec.kernel == "adamw_all")
          op(pp_adamw_all, norm, tensors);
        else
          op(pp_adamw, grads, norm, weights, m, v, half);
      };
      Array weights(type, w), m(acc, state), v(acc, state), master(acc, w), grads(acc, grad);
      const OpSpec part = list ? OpSpec{"adamw_all", type, {int64_t(has), 1}, {}, {}, moved}
                               : OpSpec{"adamw", type, {int64_t(has)}, {}, {"decay"}, moved};
      // The state of element `first + i` lies at `place + i`; so does the master.
      Values shifted = w;
      std::copy_n(w.begin() + first, has, shifted.begin() + place);
      master.set(shifted);
      run(part, weights, m, v, master, grads);
      auto cut = [&](const Values &values, size_t from) {
        return Values(values.begin() + from, values.begin() + from + has);
      };
      Array ownW(type, cut(w, first)), ownM(acc, cut(state, place)), ownV(acc, cut(state, place)),
          ownMaster(acc, cut(w, first)), ownGrad(acc, cut(grad, first));
      run({"adamw", type, {int64_t(has)}, {}, {"decay"}}, ownW, ownM, ownV, ownMaster, ownGrad);
      Values expectedW = rounded(type, w), expectedM = state;
      const Values newW = ownW.get(), newM = ownM.get();
      std::copy(newW.begin(), newW.end(), expectedW.begin() + first);
      std::copy(newM.begin(), newM.end(), expectedM.begin() + place);
      expectEqual(weights.get(), expectedW, "w");
      expectEqual(m.get(), expectedM, "m");
    }
}

/// A device adds the part of a gradient in its shard, which may be empty, to the sum of the shard; other sums stay.
TEST(KernelsUpdates, PartsOfSums) {
  for (Type type : {Type::F32, Type::F64, Type::Bf16, Type::F16})
    for (size_t has : {size_t(40), size_t(1), size_t(0)}) {
      Type acc = accOf(type);
      const size_t first = 64, place = 32;
      const int64_t wide = acc == Type::F64 ? 8 : 4, narrow = isHalf(type) ? 2 : wide;
      Values grad = rounded(type, random(160, 1)), expected = rounded(acc, random(96, 2));
      Array sum(acc, expected), grads(type, grad);
      OneOp op(OpSpec{"accumulate", type, {int64_t(has)}, {}, {}, {int64_t(first) * narrow, int64_t(place) * wide}});
      op(pp_accumulate, grads, sum);
      for (size_t i = 0; i < has; ++i)
        expected[place + i] += grad[first + i];
      expectEqual(sum.get(), rounded(acc, expected), "sum");
    }
}

TEST(KernelsUpdates, MuonMomentum) {
  for (Type type : {Type::F32, Type::F64})
    for (const Case &its : cases) {
      OneOp op("muon_momentum", type, {int64_t(count)});
      op.rank.optimizer.momentum = 0.95, op.rank.optimizer.clip = its.clip, op.rank.optimizer.lossScale = its.scale;
      Values u = rounded(type, random(count, 1)), grad = rounded(type, random(count, 2)), way(count);
      Array momentum(type, u), got(type, count);
      for (size_t i = 0; i < count; ++i) {
        double g = gammaOf(its, grad) * grad[i];
        u[i] = 0.95 * u[i] + 0.05 * g;
        way[i] = 0.95 * u[i] + 0.05 * g;
      }
      op(pp_muon_momentum, Array(type, grad), Array(Type::F64, Values{normOf(grad)}), momentum, got);
      expectNear(momentum.get(), u, toleranceOf(type) / 10, "u");
      expectNear(got.get(), way, toleranceOf(type) / 10, "way");
    }
}

/// Also works in place, and if all numbers are zero.
TEST(KernelsUpdates, UnitNorm) {
  for (Type type : {Type::F32, Type::F64}) {
    Values x = rounded(type, random(count, 1)), y = x;
    for (double &value : y)
      value /= std::sqrt(normOf(x));
    OneOp op("unit_norm", type, {int64_t(count)});
    Array in(type, x), apart(type, count), zero(type, Values(count, 0));
    op(pp_unit_norm, in, Array(Type::F64, Values{normOf(x)}), apart);
    expectNear(apart.get(), y, toleranceOf(type), "apart");
    op(pp_unit_norm, in, Array(Type::F64, Values{normOf(x)}), in);
    expectEqual(in.get(), apart.get(), "in place");
    op(pp_unit_norm, zero, Array(Type::F64, Values{0}), zero);
    expectEqual(zero.get(), Values(count, 0), "zero");
  }
}

TEST(KernelsUpdates, NewtonSchulz) {
  for (Type type : {Type::F32, Type::F64})
    for (size_t n : {1, 3, 8, 33}) {
      Values g = rounded(type, random(n * n, 1)), gg = rounded(type, random(n * n, 2)), p(n * n);
      for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < n; ++j)
          p[i * n + j] = (i == j ? 3.4445 : 0) - 4.7750 * g[i * n + j] + 2.0315 * gg[i * n + j];
      OneOp op("newton_schulz", type, {int64_t(n)});
      Array square(type, gg);
      op(pp_newton_schulz, Array(type, g), square, square);
      expectNear(square.get(), p, toleranceOf(type), "p");
    }
}

TEST(KernelsUpdates, Muon) {
  for (Type type : allTypes)
    for (int decay : {0, 1, 2}) { // 2: in the group
      Type acc = accOf(type);
      std::vector<double> params = {1.5};
      if (decay == 2)
        params.insert(params.end(), {0.5, 2});
      OneOp op("muon", type, {int64_t(count)}, params, flags(decay));
      op.rank.optimizer.matrixRate = decay == 2 ? 4e-2 : 2e-2, op.rank.optimizer.matrixDecay = decay == 2 ? 0.05 : 0.1;
      op.rank.optimizer.lr = 7, op.rank.optimizer.weightDecay = 7; // those of the weights beside it
      Values w = rounded(acc, random(count, 1)), way = rounded(acc, random(count, 2));
      Array weights(type, w), master(acc, w);
      for (size_t i = 0; i < count; ++i)
        w[i] -= 2e-2 * ((decay ? 0.1 : 0) * w[i] + 1.5 * way[i]);
      op(pp_muon, Array(acc, way), Array(Type::F64, Values{4}), weights, isHalf(type) ? master.data() : nullptr);
      expectNear(isHalf(type) ? master.get() : weights.get(), w, toleranceOf(acc) / 10, "w");
      if (isHalf(type))
        expectEqual(weights.get(), rounded(type, master.get()), "w is the master rounded");
    }
}

/// Gradients that overflowed change nothing, and leave nothing behind that is not finite; so does a step that holds.
TEST(KernelsUpdates, WhatOverflowedIsSkipped) {
  for (double norm2 : {double(INFINITY), double(NAN), 9.0}) {
    Values old = rounded(Type::F16, random(9, 1)), grad(9, 1);
    grad[3] = INFINITY;
    Array gradient(Type::F32, grad), norm(Type::F64, Values{norm2});
    Array w(Type::F16, old), u(Type::F32, old), way(Type::F32, size_t(9)), master(Type::F32, old);
    OneOp sgd("sgd", Type::F16, {9}, {}, {"decay"}), muon("muon", Type::F16, {9}, {1}, {"decay"});
    OneOp momentum("muon_momentum", Type::F32, {9});
    for (OneOp *op : {&sgd, &muon, &momentum})
      op->rank.optimizer.lr = op->rank.optimizer.matrixRate = 1, op->rank.optimizer.holds = norm2 == 9;
    sgd(pp_sgd, gradient, norm, w, u, master);
    momentum(pp_muon_momentum, gradient, norm, u, way);
    muon(pp_muon, gradient, norm, w, master);
    for (const Array *array : {&w, &u, &master})
      expectEqual(array->get(), old, "what was there");
    for (double value : way.get())
      EXPECT_TRUE(std::isfinite(value));
  }
}
