// Writes the update of one weight: AdamW, SGD with momentum, or Muon, whose direction is five steps of an iteration.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/derive/WeightUpdate.h"
#include "dialect/nn/Nn.h"

using namespace mlir;
using namespace pp;

/// The orthogonal matrix next to x [rows, columns], about: x over its norm, then five times
///   rows <= columns   G = x x^T, x = (a I + b G + c G G) x
///   rows > columns    G = x^T x, x = x (a I + b G + c G G), the same for the transposed x
/// Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks.
static Value orthogonal(OpBuilder &builder, Location loc, Value x) {
  constexpr int kSteps = 5;
  auto type = cast<RankedTensorType>(x.getType());
  bool isWide = type.getDimSize(0) <= type.getDimSize(1);
  Value sum = builder.create<nn::SumSquaresOp>(loc, x, Value(), nn::AxesAttr(), IntegerAttr(), DenseI64ArrayAttr());
  x = builder.create<nn::UnitNormOp>(loc, x, sum);
  for (int step = 0; step < kSteps; ++step) {
    Value square = isWide ? nn::productOf(builder, loc, x, x, /*bias=*/{}, /*transposed=*/true)
                          : builder.create<nn::LinearDwOp>(loc, x, x, Value()).getDw();
    Value factor = builder.create<nn::NewtonSchulzOp>(loc, square, nn::productOf(builder, loc, square, square));
    x = isWide ? nn::productOf(builder, loc, factor, x) : nn::productOf(builder, loc, x, factor);
  }
  return x;
}

Value pp::writeWeightUpdate(OpBuilder &builder, const Optimizer &optimizer, pipeline::WeightAttr attr,
                            const WeightUpdate &update, llvm::SmallVectorImpl<Value> &newState) {
  auto [loc, grad, norm, weight, state, flat] = update;
  bool decays = optimizer.decays(attr);
  llvm::APFloat rate(optimizer.rateOf(attr)), shrink(optimizer.shrinkOf(attr));
  auto master = [&, state = state](size_t i) { return i < state.size() ? state[i] : Value(); };
  Operation *op = nullptr;
  switch (optimizer.ruleFor(attr)) {
  case Optimizer::Rule::adamw:
    op =
        builder.create<nn::AdamwOp>(loc, grad, norm, weight, state[0], state[1], master(2), decays, rate, shrink, flat);
    break;
  case Optimizer::Rule::sgd:
    op = builder.create<nn::SgdOp>(loc, grad, norm, weight, state[0], master(1), decays, optimizer.isNesterov(), rate,
                                   shrink, flat);
    break;
  case Optimizer::Rule::steer:
    op = builder.create<nn::SteerOp>(loc, grad, norm, weight, master(0), attr.getDeclared().getSteer());
    break;
  case Optimizer::Rule::muon: {
    auto momentum = builder.create<nn::MuonMomentumOp>(loc, grad, norm, state[0]);
    newState.push_back(momentum.getNewU());
    op = builder.create<nn::MuonOp>(loc, orthogonal(builder, loc, momentum.getWay()), norm, weight, master(1), decays,
                                    llvm::APFloat(optimizer.lengthOf(attr.getType())), rate, shrink);
    break;
  }
  }
  llvm::append_range(newState, op->getResults().drop_front());
  return op->getResult(0);
}
