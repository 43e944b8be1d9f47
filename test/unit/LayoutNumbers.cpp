// Layouts judged by numbers: four devices that each run an op on what they have must get what one device gets.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The arithmetic is this file's own. A layout of operands that an op accepts over `tensor` is sound if what the devices
// make is the whole result in the layout that the rules say, and if gradients of the results, in transposed layouts,
// lead to the gradients of the operands in transposed layouts (by central differences). All layouts of all operands are
// asked about, so a rule that accepts too much fails here.
#include "dialect/pipeline/Pipeline.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Parser/Parser.h"
#include "passes/layouts/Layouts.h"
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

using namespace mlir;
using namespace pp;
using nn::DeviceLayout;
using Kind = DeviceLayout::Kind;

namespace {

constexpr int64_t kDevices = 4, kBatch = 4, kLength = 4, kHead = 2, kWidth = 48; // 24 heads
using Shape = std::vector<int64_t>;

struct Tensor {
  Shape shape;
  std::vector<double> data;

  int64_t width() const { return shape.back(); }
  int64_t rows() const { return static_cast<int64_t>(data.size()) / width(); }
  double at(int64_t row, int64_t column) const { return data[row * width() + column]; }
  double &at(int64_t row, int64_t column) { return data[row * width() + column]; }
};
using Tensors = std::vector<Tensor>;

Tensor zeros(Shape shape) {
  int64_t size = std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<>());
  return {std::move(shape), std::vector<double>(size)};
}

Shape withWidth(Shape shape, int64_t width) {
  shape.back() = width;
  return shape;
}

//===-- Ops -----------------------------------------------------------------------------------------------------===//

/// Column `c` of row `r` of the result from the operands.
using Element = std::function<double(int64_t r, int64_t c)>;
Tensor filled(Shape shape, const Element &element) {
  Tensor made = zeros(std::move(shape));
  for (int64_t r = 0; r < made.rows(); ++r)
    for (int64_t c = 0; c < made.width(); ++c)
      made.at(r, c) = element(r, c);
  return made;
}

Tensor turned(const Tensor &w) {
  return filled({w.width(), w.rows()}, [&](int64_t r, int64_t c) { return w.at(c, r); });
}

Tensor product(const Tensor &x, const Tensor &w) {
  return filled(withWidth(x.shape, w.width()), [&](int64_t r, int64_t c) {
    double sum = 0;
    for (int64_t k = 0; k < x.width(); ++k)
      sum += x.at(r, k) * w.at(k, c);
    return sum;
  });
}

/// x^T y over all rows.
Tensor outer(const Tensor &x, const Tensor &y) {
  return filled({x.width(), y.width()}, [&](int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t r = 0; r < x.rows(); ++r)
      sum += x.at(r, i) * y.at(r, j);
    return sum;
  });
}

Tensor plusBias(const Tensor &x, const Tensor &bias) {
  return filled(x.shape, [&](int64_t r, int64_t c) { return x.at(r, c) + bias.data[c]; });
}

Tensor each(ArrayRef<Tensor> x, const std::function<double(double, double)> &f) {
  return filled(x[0].shape, [&](int64_t r, int64_t c) { return f(x[0].at(r, c), x.back().at(r, c)); });
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double tanhGelu(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double slopeOfGelu(double x) { return (tanhGelu(x + 1e-5) - tanhGelu(x - 1e-5)) / 2e-5; }

/// 1 / root of the mean square of each head of kHead columns.
Tensor rootsOf(const Tensor &x) {
  return filled(withWidth(x.shape, x.width() / kHead), [&](int64_t r, int64_t h) {
    double sum = 0;
    for (int64_t c = 0; c < kHead; ++c)
      sum += x.at(r, h * kHead + c) * x.at(r, h * kHead + c);
    return 1 / std::sqrt(sum / kHead + 1e-5);
  });
}

Tensor rebuilt(const Tensor &x, const Tensor &gain, const Tensor &roots) {
  return filled(x.shape,
                [&](int64_t r, int64_t c) { return x.at(r, c) * roots.at(r, c / kHead) * gain.data[c % kHead]; });
}

Tensors rmsnorm(ArrayRef<Tensor> x) { return {rebuilt(x[0], x[1], rootsOf(x[0])), rootsOf(x[0])}; }

/// dx and the gain's gradient of dy, x, gain, roots.
Tensors rmsnormBwd(ArrayRef<Tensor> g) {
  Tensor gain = zeros(g[2].shape), dx = zeros(g[1].shape);
  for (int64_t r = 0; r < dx.rows(); ++r)
    for (int64_t h = 0; h < dx.width() / kHead; ++h) {
      double root = g[3].at(r, h), dot = 0;
      for (int64_t c = 0; c < kHead; ++c) {
        double dy = g[0].at(r, h * kHead + c), x = g[1].at(r, h * kHead + c);
        gain.data[c] += dy * x * root;
        dot += dy * g[2].data[c] * x * root;
      }
      for (int64_t c = 0; c < kHead; ++c)
        dx.at(r, h * kHead + c) =
            root * (g[0].at(r, h * kHead + c) * g[2].data[c] - g[1].at(r, h * kHead + c) * root * dot / kHead);
    }
  return {dx, gain};
}

/// y, and mean and 1 / deviation of each row.
Tensors layernorm(ArrayRef<Tensor> x) {
  Shape rows(x[0].shape.begin(), x[0].shape.end() - 1);
  Tensor mean = zeros(rows), roots = zeros(rows), y = zeros(x[0].shape);
  for (int64_t r = 0; r < y.rows(); ++r) {
    double square = 0;
    for (int64_t c = 0; c < y.width(); ++c)
      mean.data[r] += x[0].at(r, c) / static_cast<double>(y.width());
    for (int64_t c = 0; c < y.width(); ++c)
      square += std::pow(x[0].at(r, c) - mean.data[r], 2) / static_cast<double>(y.width());
    roots.data[r] = 1 / std::sqrt(square + 1e-5);
    for (int64_t c = 0; c < y.width(); ++c)
      y.at(r, c) = (x[0].at(r, c) - mean.data[r]) * roots.data[r] * x[1].data[c] + x[2].data[c];
  }
  return {y, mean, roots};
}

/// Pairs of a head are turned by an angle that the position and the head's column say.
Tensor rope(const Tensor &x) {
  return filled(x.shape, [&](int64_t r, int64_t c) {
    double angle = static_cast<double>(r % x.shape[1]);
    double pair = x.at(r, c % 2 == 0 ? c + 1 : c - 1);
    return x.at(r, c) * std::cos(angle) + (c % 2 == 0 ? -pair : pair) * std::sin(angle);
  });
}

Tensor repeated(const Tensor &x, int64_t times) {
  return filled(withWidth(x.shape, x.width() * times),
                [&](int64_t r, int64_t c) { return x.at(r, c / (kHead * times) * kHead + c % kHead); });
}

Tensor summed(const Tensor &x, int64_t times) {
  return filled(withWidth(x.shape, x.width() / times), [&](int64_t r, int64_t c) {
    double sum = 0;
    for (int64_t k = 0; k < times; ++k)
      sum += x.at(r, (c / kHead * times + k) * kHead + c % kHead);
    return sum;
  });
}

/// o, and the log of each query's sum, [batch, heads, length].
Tensors attention(ArrayRef<Tensor> x) {
  const Tensor &q = x[0], &k = x[1], &v = x[2];
  int64_t length = q.shape[1], heads = q.width() / kHead, keys = k.width() / kHead, seen = k.shape[1];
  Tensor o = zeros(q.shape), logs = zeros({q.shape[0], heads, length});
  for (int64_t r = 0; r < q.rows(); ++r)
    for (int64_t h = 0; h < heads; ++h) {
      int64_t from = h / (heads / keys) * kHead;
      double sum = 0;
      std::vector<double> weights(seen);
      for (int64_t j = 0; j < seen; ++j) {
        double score = 0;
        for (int64_t c = 0; c < kHead; ++c)
          score += q.at(r, h * kHead + c) * k.at(r / length * seen + j, from + c);
        sum += weights[j] = std::exp(score);
      }
      logs.data[(r / length * heads + h) * length + r % length] = std::log(sum);
      for (int64_t j = 0; j < seen; ++j)
        for (int64_t c = 0; c < kHead; ++c)
          o.at(r, h * kHead + c) += weights[j] / sum * v.at(r / length * seen + j, from + c);
    }
  return {o, logs};
}

/// Of o and its logs: o times e^(log - joined), where `other` is what the row's log is joined with.
Tensors joined(const Tensor &o, const Tensor &logs, const std::function<double(int64_t, int64_t)> &other) {
  Tensor y = o, all = logs;
  int64_t length = o.shape[1], heads = logs.shape[1];
  for (int64_t r = 0; r < o.rows(); ++r)
    for (int64_t h = 0; h < heads; ++h) {
      int64_t at = (r / length * heads + h) * length + r % length;
      all.data[at] = std::log(std::exp(logs.data[at]) + std::exp(other(at, h)));
      for (int64_t c = 0; c < kHead; ++c)
        y.at(r, h * kHead + c) *= std::exp(logs.data[at] - all.data[at]);
    }
  return {y, all};
}

Tensors merge(ArrayRef<Tensor> x) {
  Tensors first = joined(x[0], x[1], [&](int64_t at, int64_t) { return x[3].data[at]; });
  Tensors second = joined(x[2], x[3], [&](int64_t at, int64_t) { return x[1].data[at]; });
  for (size_t i = 0; i < first[0].data.size(); ++i)
    first[0].data[i] += second[0].data[i];
  return first;
}

/// Device `device` has the table's rows from `device` times as many on, if it counts them.
Tensor embedding(ArrayRef<Tensor> x, int64_t device) {
  int64_t first = device * x[1].rows();
  Shape shape = x[0].shape;
  shape.push_back(x[1].width());
  return filled(shape, [&](int64_t r, int64_t c) {
    int64_t row = static_cast<int64_t>(x[0].data[r]) - first;
    return row >= 0 && row < x[1].rows() ? x[1].at(row, c) : 0;
  });
}

Tensor columns(const Tensor &x, int64_t first, int64_t width) {
  return filled(withWidth(x.shape, width), [&](int64_t r, int64_t c) { return x.at(r, first + c); });
}

Tensors split(const Tensor &x) {
  int64_t width = x.width() / 3;
  return {columns(x, 0, width), columns(x, width, width), columns(x, 2 * width, width)};
}

/// Each run of kHead columns of x, and behind it what `next` says of its row, number and column.
Tensor joined(const Tensor &x, int64_t more, const std::function<double(int64_t, int64_t, int64_t)> &next) {
  int64_t wide = kHead + more;
  return filled(withWidth(x.shape, x.width() / kHead * wide), [&](int64_t r, int64_t c) {
    int64_t run = c / wide, column = c % wide;
    return column < kHead ? x.at(r, run * kHead + column) : next(r, run, column - kHead);
  });
}

/// An op, the shapes of its operands and results, and what it computes.
struct Case {
  std::string name, operands, attributes;
  std::vector<Shape> given, made;
  std::function<Tensors(ArrayRef<Tensor>, int64_t device)> run;
  bool isForward = true;
  int64_t ownKeys = 0; ///< of an attention: heads of keys of a device
};

std::vector<Case> cases() {
  const Shape x = {kBatch, kLength, kWidth}, w = {kWidth, kWidth}, vector = {kWidth}, gain = {kHead},
              roots = {kBatch, kLength, kWidth / kHead}, logs = {kBatch, kWidth / kHead, kLength}, third = {4, 4, 16},
              rows = {kBatch, kLength}, half = {4, 4, 24}, twice = {4, 4, 96};
  using Given = ArrayRef<Tensor>;
  auto all = [](auto f) { return [f](Given g, int64_t) { return Tensors{f(g)}; }; };
  auto many = [](auto f) { return [f](Given g, int64_t) { return f(g); }; };
  auto linear = [](Given g) { return product(g[0], g[1]); };
  auto turnedLinear = [](Given g) { return product(g[0], turned(g[1])); };
  auto same = [](Given g) { return g[0]; };
  auto gate = [](Given g) { return each(g, [](double p, double q) { return silu(p) * q; }); };
  std::vector<Case> cases = {
      {"linear", "%0, %1", "", {x, w}, {x}, all(linear)},
      {"linear", "%0, %1 bias %2", "", {x, w, vector}, {x}, all([&](Given g) {
         return plusBias(product(g[0], g[1]), g[2]);
       })},
      {"linear", "%0, %1", "{transposed = true}", {x, w}, {x}, all(turnedLinear)},
      {"linear_dx", "%0, %1", "", {x, w}, {x}, all(turnedLinear), false},
      {"linear_dx", "%0, %1", "{transposed = true}", {x, w}, {x}, all(linear), false},
      {"linear_dw", "%0, %1", "", {x, x}, {w}, all([](Given g) { return outer(g[0], g[1]); }), false},
      {"linear_dw",
       "%0, %1",
       "{transposed = true}",
       {x, x},
       {w},
       all([](Given g) { return outer(g[1], g[0]); }),
       false},
      {"bias_dw",
       "%0",
       "",
       {x},
       {vector},
       all([](Given g) {
         Tensor ones = filled(withWidth(g[0].shape, 1), [](int64_t, int64_t) { return 1; });
         return Tensor{{g[0].width()}, outer(ones, g[0]).data};
       }),
       false},
      {"add_bias", "%0, %1", "", {x, vector}, {x}, all([](Given g) { return plusBias(g[0], g[1]); })},
      {"transpose", "%0", "", {w}, {w}, all([](Given g) { return turned(g[0]); })},
      {"add", "%0, %1", "", {x, x}, {x}, all([](Given g) { return each(g, std::plus<>()); })},
      {"scale", "%0", "{factor = 3.0}", {x}, {x}, all([](Given g) {
         return each(g, [](double a, double) { return 3 * a; });
       })},
      {"copy", "%0", "", {x}, {x}, all(same)},
      {"gelu", "%0", "", {x}, {x}, all([](Given g) { return each(g, [](double a, double) { return tanhGelu(a); }); })},
      {"gelu_bwd",
       "%0, %1",
       "",
       {x, x},
       {x},
       all([](Given g) { return each(g, [](double dy, double a) { return dy * slopeOfGelu(a); }); }),
       false},
      {"swiglu", "%0, %1", "", {x, x}, {x}, all(gate)},
      {"swiglu", "%0", "{packed = true}", {x}, {half}, all([gate](Given g) {
         int64_t width = g[0].width() / 2;
         return gate(Tensors{columns(g[0], 0, width), columns(g[0], width, width)});
       })},
      {"rmsnorm", "%0, %1", "{heads = 24 : i64}", {x, gain}, {x, roots}, many(rmsnorm)},
      {"rmsnorm_rebuild",
       "%0, %1, %2",
       "{heads = 24 : i64}",
       {x, gain, roots},
       {x},
       all([](Given g) { return rebuilt(g[0], g[1], g[2]); }),
       false},
      {"rmsnorm_bwd", "%0, %1, %2, %3", "{heads = 24 : i64}", {x, x, gain, roots}, {x, gain}, many(rmsnormBwd), false},
      {"layernorm", "%0, %1, %2", "", {x, vector, vector}, {x, rows, rows}, many(layernorm)},
      {"rope", "%0", "{heads = 24 : i64}", {x}, {x}, all([](Given g) { return rope(g[0]); })},
      {"repeat_heads", "%0", "{heads = 24 : i64, times = 2 : i64}", {x}, {twice}, all([](Given g) {
         return repeated(g[0], 2);
       })},
      {"sum_heads", "%0", "{heads = 24 : i64, times = 2 : i64}", {twice}, {x}, all([](Given g) {
         return summed(g[0], 2);
       })},
      {"attention_merge", "%0, %1, %2, %3", "{heads = 24 : i64}", {x, logs, x, logs}, {x, logs}, many(merge)},
      {"sink", "%0, %1, %2", "", {x, logs, {kWidth / kHead}}, {x, logs}, many([](Given g) {
         return joined(g[0], g[1], [&](int64_t, int64_t h) { return g[2].data[h]; });
       })},
      {"embedding", "%0, %1", "", {rows, {12, 3}}, {{kBatch, kLength, 3}}, all([](Given g) {
         return embedding(g, 0);
       })},
      {"embedding",
       "%0, %1",
       "{first_by = #nn.axes<tensor>}",
       {rows, {12, 3}},
       {{kBatch, kLength, 3}},
       [](Given g, int64_t device) { return Tensors{embedding(g, device)}; }},
      {"split", "%0", "{parts = 3 : i64}", {x}, {third, third, third}, many([](Given g) { return split(g[0]); })},
      {"concat", "%0, %1", "", {x, half}, {{kBatch, kLength, 72}}, all([](Given g) {
         return filled(withWidth(g[0].shape, g[0].width() + g[1].width()), [&](int64_t r, int64_t c) {
           return c < g[0].width() ? g[0].at(r, c) : g[1].at(r, c - g[0].width());
         });
       })},
      {"concat", "%0, %1", "{periods = 24 : i64}", {x, half}, {{kBatch, kLength, 72}}, all([](Given g) {
         return joined(g[0], 1, [&](int64_t r, int64_t run, int64_t) { return g[1].at(r, run); });
       })},
      {"concat",
       "%0, %1",
       "{periods = 24 : i64, shared = true}",
       {x, {kBatch, kLength, 3}},
       {{kBatch, kLength, 120}},
       all([](Given g) {
         return joined(g[0], 3, [&](int64_t r, int64_t, int64_t column) { return g[1].at(r, column); });
       })},
      {"pad", "%0", "{columns = 3 : i64, periods = 24 : i64}", {x}, {{kBatch, kLength, 120}}, all([](Given g) {
         return joined(g[0], 3, [](int64_t, int64_t, int64_t) { return 0; });
       })},
      {"sum_columns",
       "%0",
       "{start = 1 : i64, width = 1 : i64, periods = 24 : i64}",
       {x},
       {{kBatch, kLength, 1}},
       all([](Given g) {
         return filled(withWidth(g[0].shape, 1), [&](int64_t r, int64_t) {
           double sum = 0;
           for (int64_t c = 1; c < g[0].width(); c += kHead)
             sum += g[0].at(r, c);
           return sum;
         });
       }),
       false},
  };
  for (int64_t own : {1, 2}) { // the op of one device: what layouts it may have depends on its heads of keys
    const Shape q = {kBatch, kLength, 8}, k = {kBatch, kLength, own * kHead};
    cases.push_back({"attention",
                     "%0, %1, %2",
                     "{heads = 4 : i64, kv_heads = " + std::to_string(own) + " : i64}",
                     {q, k, k},
                     {q, {kBatch, 4, kLength}},
                     many(attention),
                     true,
                     own});
  }
  return cases;
}

//===-- Layouts -------------------------------------------------------------------------------------------------===//

/// The shape of a device's part and which elements of the whole it holds; nothing where these are not equally many.
std::optional<std::pair<Shape, std::vector<int64_t>>> partOf(Shape shape, const DeviceLayout &layout, int64_t device) {
  int64_t size = static_cast<int64_t>(zeros(shape).data.size());
  std::vector<int64_t> held;
  if (layout.kind == Kind::rows) {
    if (shape.size() < 2)
      return std::nullopt;
    for (int64_t i = 0; i < size / kDevices; ++i)
      held.push_back(device * (size / kDevices) + i);
    shape[1] = shape[0] * shape[1] / kDevices;
    shape[0] = 1;
    return std::pair(shape, held);
  }
  if (layout.kind != Kind::shard) {
    held.resize(size);
    std::iota(held.begin(), held.end(), 0);
    return std::pair(shape, held);
  }
  int64_t &n = shape[layout.dim], pieces = kDevices / layout.copies, run = n / layout.runs, piece = run / pieces,
          inner = std::accumulate(shape.begin() + layout.dim + 1, shape.end(), int64_t(1), std::multiplies<>());
  if (n % (pieces * layout.runs) != 0)
    return std::nullopt;
  for (int64_t i = 0; i < size; ++i)
    if (i / inner % n % run / piece == device / layout.copies)
      held.push_back(i);
  n /= pieces;
  return std::pair(shape, held);
}

/// So many neighbours have terms of one sum; 1: none.
int64_t termsOf(const DeviceLayout &layout) {
  return layout.kind == Kind::partial                         ? kDevices
         : layout.copies > 1 && layout.among == Kind::partial ? layout.copies
                                                              : 1;
}

std::mt19937 dice;

Tensor drawn(const Shape &shape) {
  Tensor made = zeros(shape);
  for (double &value : made.data)
    value = std::uniform_real_distribution<>(-1, 1)(dice);
  return made;
}

/// What the devices have of a whole value. Terms are drawn, but for one that makes the sum right.
std::optional<Tensors> partsOf(const Tensor &whole, const DeviceLayout &layout) {
  Tensors parts;
  int64_t terms = termsOf(layout);
  for (int64_t device = 0; device < kDevices; ++device) {
    auto part = partOf(whole.shape, layout, device);
    if (!part)
      return std::nullopt;
    Tensor &own = parts.emplace_back(drawn(part->first));
    if (device % terms != terms - 1)
      continue;
    for (size_t i = 0; i < own.data.size(); ++i) {
      own.data[i] = whole.data[part->second[i]];
      for (int64_t other = device - terms + 1; other < device; ++other)
        own.data[i] -= parts[other].data[i];
    }
  }
  return parts;
}

/// Whether the devices have this whole value in this layout.
bool have(const Tensor &whole, const std::vector<Tensors> &made, size_t result, const DeviceLayout &layout) {
  int64_t terms = termsOf(layout);
  for (int64_t device = 0; device < kDevices; ++device) {
    auto part = partOf(whole.shape, layout, device);
    if (!part || made[device][result].shape != part->first)
      return false;
    for (size_t i = 0; i < part->second.size(); ++i) {
      double sum = 0;
      for (int64_t other = device / terms * terms; other < device / terms * terms + terms; ++other)
        sum += made[other][result].data[i];
      if (!(std::abs(sum - whole.data[part->second[i]]) < 1e-7))
        return false;
    }
  }
  return true;
}

/// An op of a program, and the layouts in question.
class Judge {
public:
  Judge(const Case &its, ArrayRef<DeviceLayout> given, ArrayRef<DeviceLayout> made)
      : its(its), given(given), made(made) {}

  /// Nothing where a layout does not divide what it is of.
  std::optional<bool> isSound() {
    dice.seed(7);
    for (auto [i, shape] : llvm::enumerate(its.given)) {
      Shape size = shape;
      if (its.ownKeys) // so that each device has the op's own heads
        size.back() *= i == 0 ? kDevices : kDevices / given[i].copies;
      whole.push_back(drawn(size));
      if (given[i].kind == Kind::none)
        for (double &token : whole.back().data)
          token = static_cast<double>(std::uniform_int_distribution<int>(0, 11)(dice));
      auto local = given[i].kind == Kind::none ? Tensors(kDevices, whole.back()) : partsOf(whole.back(), given[i]);
      if (!local)
        return std::nullopt;
      parts.push_back(*local);
    }
    Tensors results = its.run(whole, 0);
    std::vector<Tensors> ofDevices;
    for (int64_t device = 0; device < kDevices; ++device)
      ofDevices.push_back(run(device));
    for (auto [i, result] : llvm::enumerate(results)) {
      if (!partOf(result.shape, made[i], 0))
        return std::nullopt;
      if (!have(result, ofDevices, i, made[i]))
        return false;
      gradients.push_back(drawn(result.shape));
      local.push_back(*partsOf(gradients.back(), made[i].transposed()));
    }
    return !its.isForward || hasRightGradients();
  }

private:
  Tensors run(int64_t device) const {
    Tensors operands;
    for (const Tensors &part : parts)
      operands.push_back(part[device]);
    return its.run(operands, device);
  }

  static double dot(const Tensors &gradients, const Tensors &values) {
    double sum = 0;
    for (auto [gradient, value] : llvm::zip(gradients, values))
      sum += std::inner_product(gradient.data.begin(), gradient.data.end(), value.data.begin(), 0.0);
    return sum;
  }

  /// How what `run` makes, times the gradients, moves along a direction of one operand.
  static double slope(Tensor &operand, const Tensor &along, const Tensors &gradients,
                      llvm::function_ref<Tensors()> run) {
    Tensor before = operand;
    double ends[2];
    for (int side : {0, 1}) {
      for (size_t i = 0; i < along.data.size(); ++i)
        operand.data[i] = before.data[i] + (side ? 1e-4 : -1e-4) * along.data[i];
      ends[side] = dot(gradients, run());
    }
    operand = before;
    return (ends[1] - ends[0]) / 2e-4;
  }

  bool hasRightGradients() {
    for (auto [i, layout] : llvm::enumerate(given)) {
      if (layout.kind == Kind::none)
        continue;
      int64_t summed = layout.kind == Kind::copy ? kDevices : layout.among == Kind::copy ? layout.copies : 1;
      for (int64_t first = 0; first < kDevices; first += summed) {
        auto part = *partOf(whole[i].shape, layout, first);
        Tensor along = drawn(part.first), inWhole = zeros(whole[i].shape);
        for (size_t k = 0; k < part.second.size(); ++k)
          inWhole.data[part.second[k]] = along.data[k];
        double expected = slope(whole[i], inWhole, gradients, [&] { return its.run(whole, 0); }), sum = 0;
        for (int64_t device = first; device < first + summed; ++device) {
          Tensors own;
          for (const Tensors &gradient : local)
            own.push_back(gradient[device]);
          sum += slope(parts[i][device], along, own, [&] { return run(device); });
        }
        if (!(std::abs(sum - expected) < 1e-4 * (1 + std::abs(expected))))
          return false;
      }
    }
    return true;
  }

  const Case &its;
  ArrayRef<DeviceLayout> given, made;
  Tensors whole, gradients;
  std::vector<Tensors> parts, local; ///< of operands, and of gradients of results, by device
};

std::vector<DeviceLayout> layoutsOf(const Shape &shape, bool isData, ArrayRef<int64_t> blocks) {
  if (isData)
    return {DeviceLayout::of(Kind::none)};
  std::vector<DeviceLayout> all;
  for (Kind kind : {Kind::full, Kind::copy, Kind::partial, Kind::rows})
    all.push_back(DeviceLayout::of(kind));
  for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim)
    for (int64_t runs : blocks) {
      all.push_back(DeviceLayout::shard(dim, runs));
      for (Kind among : {Kind::full, Kind::copy, Kind::partial})
        all.push_back(DeviceLayout::shard(dim, runs, 2, among));
    }
  return all;
}

OwningOpRef<ModuleOp> parsed(const Case &its, MLIRContext &context) {
  auto typeOf = [&](const Shape &shape, bool isData) {
    std::string text = "tensor<";
    for (int64_t size : shape)
      text += std::to_string(size) + "x";
    return text + (isData ? "i32>" : "f64>");
  };
  std::string arguments, types, results;
  for (auto [i, shape] : llvm::enumerate(its.given)) {
    std::string type = typeOf(shape, its.name == "embedding" && i == 0);
    arguments += (i ? ", %" : "%") + std::to_string(i) + ": " + type;
    types += (i ? ", " : "") + type;
  }
  for (const Shape &shape : its.made)
    results += (results.empty() ? "" : ", ") + typeOf(shape, false);
  std::string text = "func.func @f(" + arguments + ") {\n  %r:" + std::to_string(its.made.size()) + " = nn." +
                     its.name + " " + its.operands + " " + its.attributes + " : (" + types + ") -> (" + results +
                     ")\n  return\n}\n";
  return parseSourceString<ModuleOp>(text, &context);
}

std::string textOf(ArrayRef<DeviceLayout> layouts) {
  std::string text;
  for (const DeviceLayout &layout : layouts)
    text += (text.empty() ? "(" : "; ") + layout.text();
  return text + ")";
}

/// Calls `each` with every assignment of layouts to the operands from number `place` on.
void assign(const Case &its, std::vector<DeviceLayout> &given, const std::function<void()> &each) {
  if (given.size() == its.given.size())
    return each();
  bool isData = its.name == "embedding" && given.empty();
  std::vector<int64_t> blocks = its.given.size() > 3 ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 2, 3};
  for (const DeviceLayout &layout : layoutsOf(its.given[given.size()], isData, blocks)) {
    given.push_back(layout);
    assign(its, given, each);
    given.pop_back();
  }
}

} // namespace

TEST(LayoutNumbers, WhatIsAcceptedIsSound) {
  DialectRegistry registry;
  registry.insert<func::FuncDialect, nn::NnDialect, pipeline::PipelineDialect>();
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  context.loadAllAvailableDialects();
  int64_t sound = 0;
  for (const Case &its : cases()) {
    OwningOpRef<ModuleOp> module = parsed(its, context);
    EXPECT_TRUE(module) << its.name << " " << its.attributes;
    if (!module)
      continue;
    Operation *op = &(*module->getOps<func::FuncOp>().begin()).front().front();
    std::vector<DeviceLayout> given;
    int64_t before = sound;
    assign(its, given, [&] {
      auto made = nn::inferLayouts(op, given, pipeline::Axis::tensor);
      if (!made)
        return;
      std::optional<bool> isSound = Judge(its, given, *made).isSound();
      sound += isSound.value_or(false);
      EXPECT_TRUE(isSound.value_or(true))
          << "nn." << its.name << " " << its.attributes << " makes " << textOf(*made) << " of " << textOf(given);
    });
    EXPECT_GE(sound - before, 1) << its.name << " " << its.attributes;
  }
  EXPECT_GE(sound, 250); // so many the rules that were written by hand took of 25 of these ops
}

TEST(LayoutNumbers, WhatIsWrongIsNotSound) {
  const DeviceLayout partial = DeviceLayout::of(Kind::partial), copy = DeviceLayout::of(Kind::copy),
                     none = DeviceLayout::of(Kind::none), full = DeviceLayout::of(Kind::full);
  auto isSound = [](const char *name, std::vector<DeviceLayout> given, std::vector<DeviceLayout> made) {
    for (const Case &its : cases())
      if (its.name == name && its.attributes.empty() && its.given.size() == given.size())
        return Judge(its, given, made).isSound();
    return std::optional<bool>();
  };
  EXPECT_EQ(isSound("gelu", {partial}, {partial}), false);                        // gelu is not linear
  EXPECT_EQ(isSound("linear", {copy, DeviceLayout::shard(0)}, {partial}), false); // x must be cut as w's rows are
  EXPECT_EQ(isSound("linear", {full, DeviceLayout::shard(1)}, {DeviceLayout::shard(2)}), false); // dx is a term
  EXPECT_EQ(isSound("embedding", {none, DeviceLayout::shard(0)}, {partial}), false);             // without `first_by`
  EXPECT_EQ(isSound("add", {partial, copy}, {partial}), false); // a copy would be counted four times
}
