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

/// Whether one weight has the columns of w_gate, and behind them those of w_up: then w_down is the fourth value.
static bool isPacked(mlir::ValueRange operands) {
  return operands.size() == 4 || (operands.size() == 5 && cast<RankedTensorType>(operands[4].getType()).getRank() != 3);
}

mlir::Value *ExpertValues::find(StringRef name) {
  return StringSwitch<mlir::Value *>(name)
      .Case("router_bias", &routerBias)
      .Case("gate_up_bias", &gateUpBias)
      .Case("down_bias", &downBias)
      .Case("reads", &reads)
      .Default(nullptr);
}

/// Checks the shapes for x of r columns and n experts of width f that read h columns, r unless `reads` is there: wr
/// [r, n], w_gate and w_up [n, h, f], or one weight [n, h, 2 f], and w_down [n, f, h]; biases [n], [n, 2 f] and [n, h].
/// Experts without a gate have w_up alone. The last `identity` of the router's experts have no weights.
static LogicalResult checkShapes(mlir::ValueRange operands, const ExpertValues &named, bool gated, int64_t identity,
                                 function_ref<LogicalResult(const Twine &)> fail) {
  const bool four = isPacked(operands), packed = four && gated;
  static constexpr StringRef each[] = {"x", "wr", "w_gate", "w_up", "w_down"},
                             both[] = {"x", "wr", "w_gate and w_up", "w_down"}, up[] = {"x", "wr", "w_up", "w_down"};
  const ArrayRef<StringRef> names = !four ? ArrayRef<StringRef>(each) : ArrayRef<StringRef>(gated ? both : up);
  if (!four && !gated)
    return fail("`experts` without a gate, of the activation \"relu2\", has one weight before w_down, w_up; got two");
  auto shapeOf = [&](size_t i) { return cast<RankedTensorType>(operands[i].getType()).getShape(); };
  if (shapeOf(0).size() != 3)
    return fail("`experts` expects x with 3 dimensions, got " + shapeText(shapeOf(0)));
  if (shapeOf(1).size() != 2 || shapeOf(2).size() != 3)
    return fail("`experts` expects wr as [in, experts] and " + names[2] + " as [experts, in, out], got " +
                shapeText(shapeOf(1)) + " and " + shapeText(shapeOf(2)));
  const ArrayRef<int64_t> read = named.reads ? cast<RankedTensorType>(named.reads.getType()).getShape() : shapeOf(0);
  if (read.size() != 3 || read.drop_back() != shapeOf(0).drop_back())
    return fail("`experts` expects `reads` with as many rows as x, which is " + shapeText(shapeOf(0)) + ", got " +
                shapeText(read));
  const int64_t router = shapeOf(0).back(), h = read.back();
  int64_t n = shapeOf(1).back(), columns = shapeOf(2).back(), f = packed ? columns / 2 : columns;
  if (packed && columns % 2 != 0)
    return fail("`experts` expects an even number of columns of w_gate and w_up, got " + Twine(columns));
  const int64_t all = n;
  if (identity >= n)
    return fail("`identity` must be less than the " + Twine(n) + " experts of the router, got " + Twine(identity));
  n -= identity;
  SmallVector<SmallVector<int64_t>> expected = {{}, {router, all}, {n, h, columns}, {n, h, columns}, {n, f, h}};
  if (four)
    expected.erase(expected.begin() + 3);
  for (size_t i = 1; i < expected.size(); ++i)
    if (shapeOf(i) != ArrayRef(expected[i]))
      return fail("`experts` expects " + names[i] + " as " + shapeText(expected[i]) + ", got " + shapeText(shapeOf(i)));
  if (named.gateUpBias && !packed)
    return fail("`gate_up_bias` is of one weight for gate and up" +
                Twine(gated ? "; `experts` has two here" : ", and `experts` has no gate here"));
  auto check = [&](mlir::Value bias, StringRef name, ArrayRef<int64_t> wanted) {
    auto shape = bias ? cast<RankedTensorType>(bias.getType()).getShape() : wanted;
    return shape == wanted
               ? success()
               : fail("`experts` expects " + name + " as " + shapeText(wanted) + ", got " + shapeText(shape));
  };
  return success(succeeded(check(named.routerBias, "router_bias", {all})) &&
                 succeeded(check(named.gateUpBias, "gate_up_bias", {n, columns})) &&
                 succeeded(check(named.downBias, "down_bias", {n, h})));
}

/// The bias is a weight that nothing else reads; its `rate` is of the weight, for it is the update that reads it. The
/// other options are the router's.
static LogicalResult steer(mlir::Value bias, SmallVectorImpl<mlir::NamedAttribute> &options,
                           function_ref<LogicalResult(const Twine &)> fail) {
  auto isRate = [](mlir::NamedAttribute option) { return option.getName() == "rate"; };
  auto *rate = find_if(options, isRate);
  if (!bias)
    return rate == options.end() ? success() : fail("`rate` is of a router's bias; `experts` has none here");
  auto argument = dyn_cast<mlir::BlockArgument>(bias);
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

/// Takes these out of the options.
static SmallVector<mlir::NamedAttribute> take(SmallVectorImpl<mlir::NamedAttribute> &options,
                                              std::initializer_list<StringRef> names) {
  auto isIt = [&](mlir::NamedAttribute option) { return is_contained(names, option.getName().getValue()); };
  SmallVector<mlir::NamedAttribute> taken(make_filter_range(options, isIt));
  erase_if(options, isIt);
  return taken;
}

FailureOr<mlir::Value> pp::createExperts(mlir::ValueRange operands, const ExpertValues &named, mlir::Value rows,
                                         ArrayRef<mlir::NamedAttribute> options, CreateOp create,
                                         function_ref<FailureOr<mlir::Value>(mlir::Value)> squared, AddWeighted added,
                                         function_ref<LogicalResult(const Twine &)> fail) {
  SmallVector<mlir::NamedAttribute> routed(options);
  const auto gates = take(routed, {"activation", "limit", "alpha", "plus"}), onInput = take(routed, {"on_input"});
  auto isUngated = [](mlir::NamedAttribute option) {
    return option.getName() == "activation" && cast<mlir::StringAttr>(option.getValue()).getValue() == "relu2";
  };
  const bool gated = none_of(gates, isUngated), packed = gated && isPacked(operands);
  auto *itsIdentity = find_if(routed, [](mlir::NamedAttribute option) { return option.getName() == "identity"; });
  const int64_t identity = itsIdentity == routed.end() ? 0 : cast<mlir::IntegerAttr>(itsIdentity->getValue()).getInt();
  if (failed(checkShapes(operands, named, gated, identity, fail)))
    return failure();
  if (!gated && gates.size() > 1)
    return fail("`experts` of the activation \"relu2\" has no gate, so it has no `limit`, `alpha` or `plus`");
  const size_t matrices = isPacked(operands) ? 4 : 5; // and what stands before them
  mlir::Value bias = operands.size() > matrices ? operands[matrices] : mlir::Value();
  if (failed(steer(bias, routed, fail)))
    return failure();
  if (identity > 0 && named.reads)
    return fail("`experts` has `reads` or `identity`, not both: experts without weights give x itself");
  bool fails = false;
  auto made = [&](StringRef name, mlir::ValueRange takes, ArrayRef<mlir::NamedAttribute> given = {}) {
    FailureOr<mlir::Value> value = fails ? FailureOr<mlir::Value>(failure()) : create(name, takes, given);
    fails |= failed(value);
    return fails ? mlir::Value() : *value;
  };
  mlir::Value x = operands[0];
  const bool isOnInput = !onInput.empty() && cast<mlir::BoolAttr>(onInput[0].getValue()).getValue();
  SmallVector<mlir::Value> scored = {made("router", {x, operands[1]})};
  if (named.routerBias)
    scored[0] = made("add_bias", {scored[0], named.routerBias});
  if (bias)
    scored.push_back(bias);
  if (rows)
    scored.push_back(rows);
  mlir::Builder builder(x.getContext());
  routed.push_back(builder.getNamedAttr(nn::RouteOp::getOperandSegmentSizeAttr(),
                                        builder.getDenseI32ArrayAttr({1, bias ? 1 : 0, rows ? 1 : 0})));
  mlir::Value weights = made("route", scored, routed);
  if (fails)
    return failure();
  auto route = weights.getDefiningOp<nn::RouteOp>();
  mlir::Value places = route.getPlaces(), counts = route.getCounts();
  auto scaled = [&](mlir::Value its) { return made("scale_rows", {its, weights, places}); };
  mlir::Value chosen = made("dispatch", {named.reads ? named.reads : x, places});
  chosen = isOnInput ? scaled(chosen) : chosen;
  auto product = [&](mlir::Value its, mlir::Value w, mlir::Value bias) {
    mlir::Value y = made("expert_linear", {its, w, counts});
    return bias ? made("expert_bias", {y, bias, counts}) : y;
  };
  mlir::Value gate = product(chosen, operands[2], named.gateUpBias);
  mlir::Value up = packed || !gated ? gate : made("expert_linear", {chosen, operands[3], counts});
  if (mlir::Value first =
          packed ? made("split", {gate}, builder.getNamedAttr("parts", builder.getI64IntegerAttr(2))) : mlir::Value())
    gate = first, up = first.getDefiningOp<nn::SplitOp>().getColumns()[1];
  mlir::Value down = operands[matrices - 1], unit;
  if (gated) {
    unit = made(gates.empty() ? "swiglu" : "glu", {gate, up}, gates);
  } else if (!fails) {
    FailureOr<mlir::Value> square = squared(gate);
    fails = failed(square);
    unit = fails ? mlir::Value() : *square;
  }
  mlir::Value y = isOnInput        ? product(unit, down, named.downBias)
                  : named.downBias ? scaled(product(unit, down, named.downBias)) // w (a Wd + b)
                                   : product(scaled(unit), down, {});
  y = made("combine", {y, places});
  if (identity > 0 && !fails) {
    const int64_t held = cast<RankedTensorType>(operands[2].getType()).getDimSize(0);
    mlir::Value u = made("identity_weights", {weights, route.getSel()},
                         builder.getNamedAttr("experts", builder.getI64IntegerAttr(held)));
    return fails ? FailureOr<mlir::Value>(failure()) : added(y, u, x);
  }
  return fails ? FailureOr<mlir::Value>(failure()) : FailureOr<mlir::Value>(y);
}
