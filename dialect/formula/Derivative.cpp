// Differentiates formulas: walks a region backwards, and makes a map that reads gradients, operands and kept rows.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   %y, %r = map reads(%x: "thd", %g: "hd") makes("thd", "t")          y = x r g, r = 1 / sqrt(mean(x^2) + eps)
//   %dx, %dg = map reads(%x: "thd", %g: "hd", %dy: "thd", %r: "t") makes("thd", "hd")
//
// Axes that an operand lacks were broadcast, so its gradient is summed over them: heads and columns by a reduction, and
// rows, or of a weight all axes, by what is made. A backward never reads a full result, for that is rounded. Of the
// rows that F keeps it reads what it needs.
#include "dialect/formula/Formula.h"

using namespace mlir;
using namespace pp::nn;

namespace {

/// Gradients of the values of a formula. The graph that is built begins with the forward one, with the same numbers.
class Reversal {
public:
  Reversal(MapOp map, const Gradients &gradients);

  /// Walks backwards.
  void run();
  /// Makes the map, and adds what it makes to the gradients.
  void write(Gradients &gradients);

private:
  void pull(unsigned value, unsigned gradient);
  void pullReduction(unsigned value, unsigned gradient);
  void pullLargest(unsigned value, unsigned gradient, Element wins);
  void add(unsigned to, unsigned gradient, unsigned axes);
  unsigned summed(unsigned gradient, unsigned axes) {
    return axes ? make(Element::sum_over, {gradient}, axes) : gradient;
  }
  bool isWeight(unsigned value) const {
    return formula.at(value).op == Element::leaf && !(formula.at(value).axes & Along::rows);
  }
  unsigned make(Element op, ArrayRef<unsigned> of, unsigned over = 0) { return formula.make(op, of, over); }
  unsigned number(double value) { return formula.number(value); }
  unsigned function(Element op, unsigned x) { return make(op, {x}); }
  unsigned mul(unsigned a, unsigned b) { return make(Element::mul, {a, b}); }
  unsigned div(unsigned a, unsigned b) { return make(Element::div, {a, b}); }
  unsigned sub(unsigned a, unsigned b) { return make(Element::sub, {a, b}); }
  unsigned neg(unsigned a) { return make(Element::neg, {a}); }
  unsigned where(unsigned condition, unsigned a, unsigned b) { return make(Element::select, {condition, a, b}); }
  unsigned withKept(unsigned value);

  MapOp map;
  SmallVector<Formula::Made> made;
  Formula formula;
  unsigned forward = 0;                      ///< so many values are of the forward graph
  std::vector<std::optional<unsigned>> sums; ///< by forward value: its gradient so far
  SmallVector<Value> tensors;                ///< that the backward may read
  SmallVector<unsigned> reads;
  llvm::DenseMap<unsigned, unsigned> kept, replaced; ///< forward values that F keeps, as leaves; and what reads those
};

} // namespace

Reversal::Reversal(MapOp map, const Gradients &gradients) : map(map), tensors(map.getTensors()) {
  MapFormula its = formulaOf(map);
  made = its.made, formula = std::move(its.formula), reads = its.reads;
  forward = formula.size();
  sums.resize(forward);
  for (auto [result, each] : llvm::zip(map.getMade(), made)) {
    unsigned tensor = tensors.size();
    if (Value gradient = gradients.get(result)) {
      tensors.push_back(gradient);
      reads.push_back(each.axes);
      add(each.value, formula.leaf(tensor, each.axes), each.axes);
    } else if (!(each.axes & Along::columns)) {
      tensors.push_back(result);
      reads.push_back(each.axes);
      kept[each.value] = formula.leaf(tensor, each.axes);
    }
  }
}

/// One more term of the gradient of `to`, which was broadcast to these axes.
void Reversal::add(unsigned to, unsigned gradient, unsigned axes) {
  if (formula.isZero(gradient) || formula.at(to).op == Element::number)
    return;
  unsigned lacks = axes & ~formula.at(to).axes & Along::width;
  if (isWeight(to)) // what is made is summed over all axes that the gradient has
    lacks &= ~formula.at(gradient).axes;
  gradient = summed(gradient, lacks);
  auto later = [&](unsigned sum) { return formula.at(sum).axes & ~formula.at(to).axes & Along::width; };
  if (sums[to] && later(*sums[to]) != later(gradient)) { // terms of unlike axes are summed before they are added
    sums[to] = summed(*sums[to], later(*sums[to]));
    gradient = summed(gradient, later(gradient));
  }
  sums[to] = sums[to] ? make(Element::add, {*sums[to], gradient}) : gradient;
}

void Reversal::run() {
  for (unsigned value = forward; value-- > 0;)
    if (sums[value] && !formula.at(value).of.empty())
      pull(value, *sums[value]);
}

/// `wins` of two compares the other way round where the smaller one is taken. A number takes no half at a tie.
void Reversal::pullLargest(unsigned value, unsigned g, Element wins) {
  auto of = formula.at(value).of;
  unsigned axes = formula.at(value).axes, zero = number(0);
  for (unsigned i = 0; i < 2; ++i) {
    unsigned x = of[i], other = of[1 - i];
    unsigned tied = formula.at(other).op == Element::number ? zero : mul(number(0.5), g);
    unsigned loses = tied == zero ? zero : where(make(wins, {other, x}), zero, tied);
    add(x, where(make(wins, {x, other}), g, loses), axes);
  }
}

void Reversal::pullReduction(unsigned value, unsigned g) {
  const Formula::Term term = formula.at(value);
  unsigned x = term.of[0], axes = formula.at(x).axes | term.over;
  unsigned count = make(Element::sum_over, {number(1)}, term.over);
  switch (term.op) {
  case Element::sum_over:
    return add(x, g, axes);
  case Element::mean_over:
    return add(x, div(g, count), axes);
  case Element::variance_over: {
    unsigned centred = sub(x, make(Element::mean_over, {x}, term.over));
    return add(x, mul(div(mul(number(2), g), count), centred), axes);
  }
  default: { // evenly among those that are as large
    unsigned hit = where(make(Element::eq, {x, value}), number(1), number(0));
    return add(x, mul(hit, div(g, make(Element::sum_over, {hit}, term.over))), axes);
  }
  }
}

void Reversal::pull(unsigned value, unsigned g) {
  const Formula::Term term = formula.at(value);
  unsigned axes = term.axes, y = value, one = number(1), zero = number(0);
  if (isCondition(term.op) || term.op == Element::stop)
    return;
  if (isReduction(term.op))
    return pullReduction(value, g);
  unsigned a = term.of[0], b = term.of.size() > 1 ? term.of[1] : 0;
  switch (term.op) {
  case Element::add:
    add(a, g, axes);
    return add(b, g, axes);
  case Element::sub:
    add(a, g, axes);
    return add(b, neg(g), axes);
  case Element::mul:
    add(a, mul(g, b), axes);
    return add(b, mul(g, a), axes);
  case Element::fma:
    add(a, mul(g, b), axes);
    add(b, mul(g, a), axes);
    return add(term.of[2], g, axes);
  case Element::div: {
    if (formula.numberAt(a) == 1)
      return add(b, neg(mul(g, mul(y, y))), axes);
    unsigned q = div(g, b);
    add(a, q, axes);
    return add(b, neg(mul(q, y)), axes);
  }
  case Element::select:
    add(b, where(a, g, zero), axes);
    return add(term.of[2], where(a, zero, g), axes);
  case Element::max:
    return pullLargest(value, g, Element::gt);
  case Element::min:
    return pullLargest(value, g, Element::lt);
  case Element::neg:
    return add(a, neg(g), axes);
  case Element::rounded:
    return add(a, g, axes);
  case Element::abs:
    return add(a, where(make(Element::gt, {a, zero}), g, where(make(Element::lt, {a, zero}), neg(g), zero)), axes);
  case Element::exp:
    return add(a, mul(g, y), axes);
  case Element::log:
    return add(a, div(g, a), axes);
  case Element::log1p:
    return add(a, div(g, make(Element::add, {one, a})), axes);
  case Element::expm1:
    return add(a, mul(g, make(Element::add, {one, y})), axes);
  case Element::tanh:
    return add(a, mul(g, sub(one, mul(y, y))), axes);
  case Element::erf:
    return add(a, mul(mul(g, number(1.1283791670955126)), function(Element::exp, neg(mul(a, a)))), axes);
  case Element::sqrt:
    return add(a, div(g, mul(number(2), y)), axes);
  case Element::rsqrt:
    return add(a, mul(mul(number(-0.5), g), mul(mul(y, y), y)), axes);
  case Element::sigmoid:
    return add(a, mul(g, mul(y, sub(one, y))), axes);
  case Element::softplus:
    return add(a, mul(g, function(Element::sigmoid, a)), axes);
  default:
    llvm_unreachable("an element without a derivative");
  }
}

/// The value with those that F keeps in place of how they were made.
unsigned Reversal::withKept(unsigned value) {
  if (auto found = kept.find(value); found != kept.end())
    return found->second;
  if (auto found = replaced.find(value); found != replaced.end())
    return found->second;
  const Formula::Term term = formula.at(value);
  if (term.of.empty())
    return replaced[value] = value;
  auto of = llvm::map_to_vector(term.of, [&](unsigned operand) { return withKept(operand); });
  unsigned now = formula.keep(term.op, of, term.over);
  return replaced[value] = now;
}

void Reversal::write(Gradients &gradients) {
  SmallVector<Formula::Made> gives;
  SmallVector<Value> of;
  for (auto [i, tensor] : llvm::enumerate(map.getTensors())) {
    unsigned leaf = formula.leaf(i, reads[i]);
    if (leaf >= forward || !sums[leaf] || gradients.data.contains(tensor))
      continue;
    gives.push_back({withKept(*sums[leaf]), reads[i]});
    of.push_back(tensor);
  }
  if (of.empty())
    return;
  MapOp backward = createMap(gradients.builder, map.getLoc(), formula, tensors, reads, gives, map.getHeads());
  for (auto [tensor, given, gradient] : llvm::zip(of, gives, backward.getMade())) {
    Type element = cast<RankedTensorType>(tensor.getType()).getElementType();
    if (!(given.axes & Along::rows)) {
      gradients.addToWeight(map.getLoc(), tensor, gradient);
      continue;
    }
    Value rounded = gradient;
    if (cast<RankedTensorType>(gradient.getType()).getElementType() != element)
      rounded = gradients.builder.create<RoundOp>(map.getLoc(), gradient, TypeAttr::get(element));
    gradients.add(map.getLoc(), tensor, rounded);
  }
}

LogicalResult MapOp::differentiate(Gradients &gradients) {
  if (llvm::none_of(getMade(), [&](Value value) { return gradients.get(value); }))
    return success();
  Reversal reversal(*this, gradients);
  reversal.run();
  reversal.write(gradients);
  return success();
}

/// The first result alone, with the rows that F keeps in place of the reductions.
Operation *MapOp::rebuild(OpBuilder &builder) {
  MapFormula its = formulaOf(*this);
  Formula &formula = its.formula;
  SmallVector<Value> tensors(getTensors());
  SmallVector<unsigned> reads = its.reads;
  llvm::DenseMap<unsigned, unsigned> now;
  for (auto [result, each] : llvm::drop_begin(llvm::zip(getMade(), its.made)))
    if ((each.axes & Along::rows) && !(each.axes & Along::columns)) {
      now[each.value] = formula.leaf(tensors.size(), each.axes);
      tensors.push_back(result);
      reads.push_back(each.axes);
    }
  SmallVector<unsigned> results = {its.made.front().value};
  for (unsigned value : formula.neededFor(results)) {
    const Formula::Term term = formula.at(value);
    if (now.contains(value))
      continue;
    auto of = llvm::map_to_vector(term.of, [&](unsigned operand) { return now.lookup(operand); });
    unsigned again = term.of.empty() ? value : formula.keep(term.op, of, term.over);
    now[value] = again;
  }
  return createMap(builder, getLoc(), formula, tensors, reads, {{now[results[0]], its.made.front().axes}}, getHeads());
}
