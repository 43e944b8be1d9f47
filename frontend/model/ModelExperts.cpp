// Writes `experts(..)` as a router, the rows of its choices, their products expert by expert, and the sum of these.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/model/ModelExperts.h"
#include "dialect/nn/Nn.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace llvm;
using namespace pp;
using mlir::RankedTensorType;

static std::string shapeText(ArrayRef<int64_t> shape) {
  std::string text;
  raw_string_ostream stream(text);
  interleave(shape, stream, " x ");
  return "[" + text + "]";
}

/// Checks the shapes for h columns of x and n experts of width f: wr [h, n], w_gate and w_up [n, h, f], w_down [n, f,
/// h].
static LogicalResult checkShapes(mlir::ValueRange operands, function_ref<LogicalResult(const Twine &)> fail) {
  static constexpr StringRef names[] = {"x", "wr", "w_gate", "w_up", "w_down"};
  auto shapeOf = [&](size_t i) { return cast<RankedTensorType>(operands[i].getType()).getShape(); };
  if (shapeOf(0).size() != 3)
    return fail("`experts` expects x with 3 dimensions, got " + shapeText(shapeOf(0)));
  if (shapeOf(1).size() != 2 || shapeOf(2).size() != 3)
    return fail("`experts` expects wr as [in, experts] and w_gate as [experts, in, out], got " + shapeText(shapeOf(1)) +
                " and " + shapeText(shapeOf(2)));
  int64_t h = shapeOf(0).back(), n = shapeOf(1).back(), f = shapeOf(2).back();
  const SmallVector<int64_t> expected[] = {{}, {h, n}, {n, h, f}, {n, h, f}, {n, f, h}};
  for (size_t i = 1; i < std::size(expected); ++i)
    if (shapeOf(i) != ArrayRef(expected[i]))
      return fail("`experts` expects " + names[i] + " as " + shapeText(expected[i]) + ", got " + shapeText(shapeOf(i)));
  return success();
}

/// The bias is a weight that nothing else reads; its `rate` is of the weight, for it is the update that reads it. The
/// other options are the router's.
static LogicalResult steer(mlir::ValueRange operands, SmallVectorImpl<mlir::NamedAttribute> &options,
                           function_ref<LogicalResult(const Twine &)> fail) {
  auto isRate = [](mlir::NamedAttribute option) { return option.getName() == "rate"; };
  auto *rate = find_if(options, isRate);
  if (operands.size() < 6)
    return rate == options.end() ? success() : fail("`rate` is of a router's bias; `experts` has none here");
  auto argument = dyn_cast<mlir::BlockArgument>(operands[5]);
  auto function =
      argument ? dyn_cast<mlir::FunctionOpInterface>(argument.getOwner()->getParentOp()) : mlir::FunctionOpInterface();
  auto weight =
      function ? function.getArgAttrOfType<nn::WeightAttr>(argument.getArgNumber(), nn::kWeightAttr) : nn::WeightAttr();
  if (!weight || weight.getShared() || !argument.use_empty())
    return fail("`experts` expects bias as a weight of its part, which nothing else reads");
  auto value = mlir::FloatAttr::get(mlir::Float64Type::get(function.getContext()), 0);
  if (rate != options.end()) {
    value = cast<mlir::FloatAttr>(rate->getValue());
    options.erase(rate);
  }
  function.setArgAttr(argument.getArgNumber(), nn::kWeightAttr, weight.withSteer(value));
  return success();
}

FailureOr<mlir::Value> pp::createExperts(mlir::ValueRange operands, mlir::Value rows,
                                         ArrayRef<mlir::NamedAttribute> options, CreateOp create,
                                         function_ref<LogicalResult(const Twine &)> fail) {
  SmallVector<mlir::NamedAttribute> routed(options);
  if (failed(checkShapes(operands, fail)) || failed(steer(operands, routed, fail)))
    return failure();
  bool fails = false;
  auto made = [&](StringRef name, mlir::ValueRange takes, ArrayRef<mlir::NamedAttribute> given = {}) {
    FailureOr<mlir::Value> value = fails ? FailureOr<mlir::Value>(failure()) : create(name, takes, given);
    fails |= failed(value);
    return fails ? mlir::Value() : *value;
  };
  mlir::Value x = operands[0];
  SmallVector<mlir::Value> scored = {made("router", {x, operands[1]})};
  append_range(scored, operands.drop_front(5));
  if (rows)
    scored.push_back(rows);
  mlir::Builder builder(x.getContext());
  routed.push_back(builder.getNamedAttr(nn::RouteOp::getOperandSegmentSizeAttr(),
                                        builder.getDenseI32ArrayAttr({1, operands.size() > 5 ? 1 : 0, rows ? 1 : 0})));
  mlir::Value weights = made("route", scored, routed);
  if (fails)
    return failure();
  auto route = weights.getDefiningOp<nn::RouteOp>();
  mlir::Value places = route.getPlaces(), counts = route.getCounts();
  mlir::Value chosen = made("dispatch", {x, places});
  mlir::Value gate = made("expert_linear", {chosen, operands[2], counts});
  mlir::Value up = made("expert_linear", {chosen, operands[3], counts});
  mlir::Value scaled = made("scale_rows", {made("swiglu", {gate, up}), weights, places});
  mlir::Value y = made("combine", {made("expert_linear", {scaled, operands[4], counts}), places});
  return fails ? FailureOr<mlir::Value>(failure()) : FailureOr<mlir::Value>(y);
}
