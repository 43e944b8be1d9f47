// The rules of layouts on the axis of experts, where a device has other tokens and other experts than its neighbours.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   dispatch: rows of the own tokens ─▶ exchange_sections ─▶ rows of the own experts ─▶ expert_linear, swiglu, ..
//                                                            └─▶ exchange_sections ─▶ own tokens ─▶ combine
//
// All else does not know experts: it has no layout here, and none of these may come to it.
#include "passes/layouts/Layouts.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace pp::nn {
using LayoutKind = DeviceLayout::Kind;
using Results = std::optional<SmallVector<DeviceLayout>>;

static const DeviceLayout kNone = DeviceLayout::of(LayoutKind::none), kOfTokens = DeviceLayout::of(LayoutKind::rows),
                          kOfExperts = DeviceLayout::shard(1), kOwnExperts = DeviceLayout::shard(0);

namespace {
struct Given {
  Operation *op;
  ArrayRef<DeviceLayout> layouts;

  DeviceLayout at(Value value) const {
    for (auto [operand, layout] : llvm::zip(op->getOperands(), layouts))
      if (operand == value)
        return layout;
    return kNone;
  }
  Results all(bool fits, const DeviceLayout &layout) const {
    return fits ? Results(SmallVector<DeviceLayout>(op->getNumResults(), layout)) : Results();
  }
};
} // namespace

/// Whether rows, and how many there are of each expert, are of the own experts, or, where each device has all experts,
/// of the own tokens.
static std::optional<bool> isOfExperts(const Given &given, Value rows, Value counts) {
  if (given.at(rows) == kOfExperts && given.at(counts) == kOfExperts)
    return true;
  return given.at(rows) == kOfTokens && given.at(counts) == kOfTokens ? std::optional(false) : std::nullopt;
}

static DeviceLayout ofRows(bool ofExperts) { return ofExperts ? kOfExperts : kOfTokens; }

/// A product, or the gradient of its rows, or the sum with a bias.
template <typename Op> static Results product(Op op, Value rows, Value weight, const Given &given) {
  std::optional<bool> ofExperts = isOfExperts(given, rows, op.getCounts());
  const DeviceLayout &w = ofExperts.value_or(false) ? kOwnExperts : kNone;
  return given.all(ofExperts && given.at(weight) == w, ofRows(ofExperts.value_or(false)));
}

template <typename Op> static Results gradient(Op op, const Given &given) {
  std::optional<bool> ofExperts = isOfExperts(given, op.getDy(), op.getCounts());
  bool fits = ofExperts.has_value();
  if constexpr (std::is_same_v<Op, ExpertLinearDwOp>)
    fits &= given.at(op.getX()) == given.at(op.getDy());
  DeviceLayout made = ofExperts && *ofExperts ? kOwnExperts : DeviceLayout::of(LayoutKind::partial);
  bool goesOn = !op.getAcc() || given.at(op.getAcc()) == made || given.at(op.getAcc()) == kNone;
  return given.all(fits && goesOn, made);
}

/// Row by row: all operands that have a layout have the same.
static Results alike(const Given &given) {
  DeviceLayout common = kNone;
  for (const DeviceLayout &layout : given.layouts) {
    if (layout != kNone && common != kNone && layout != common)
      return {};
    common = layout == kNone ? common : layout;
  }
  return given.all(true, common);
}

/// Weights of experts, and rows of the own ones, come to nothing that does not know them.
static bool isForeign(const DeviceLayout &layout) { return layout == kOfExperts || layout == kOwnExperts; }

Results inferExpertLayouts(Operation *op, ArrayRef<DeviceLayout> operands) {
  Given given{op, operands};
  AxesAttr axes = axesOfExchange(op);
  if (axes && axes.getAxes() != ArrayRef(Axis::expert) && !isa<ExchangeSectionsOp>(op)) // for each device by itself
    return given.all(true, operands.front());
  return llvm::TypeSwitch<Operation *, Results>(op)
      .Case([&](RouteOp) { return given.all(!llvm::any_of(operands, isForeign), kOfTokens); })
      .Case([&](ExchangeSectionsOp it) {
        const DeviceLayout &x = operands.front();
        bool isHere = it.getAxes().getAxes() == ArrayRef(Axis::expert);
        return given.all(isHere && (x == kOfTokens || x == kOfExperts), x == kOfTokens ? kOfExperts : kOfTokens);
      })
      .Case<DispatchOp, PlaceWeightsOp>([&](auto it) {
        return given.all(!isForeign(operands.front()) && given.at(it.getPlaces()) == kOfTokens, kOfTokens);
      })
      .Case<IdentityWeightsOp, IdentityWeightsBwdOp>([&](auto it) { // what a token weighs itself stays with it
        return given.all(!isForeign(operands.front()) && given.at(it.getSel()) == kOfTokens,
                         isa<IdentityWeightsOp>(op) ? kNone : kOfTokens);
      })
      .Case<CombineOp, TakeWeightsOp>([&](auto it) {
        bool fits = given.at(it.getRows()) == kOfTokens && given.at(it.getPlaces()) == kOfTokens;
        return given.all(fits, isa<CombineOp>(op) ? kNone : kOfTokens);
      })
      .Case([&](ExpertLinearOp it) { return product(it, it.getX(), it.getW(), given); })
      .Case([&](ExpertBiasOp it) { return product(it, it.getX(), it.getBias(), given); })
      .Case([&](ExpertLinearDxOp it) {
        bool goesOn = !it.getAcc() || given.at(it.getAcc()) == given.at(it.getDy());
        return goesOn ? product(it, it.getDy(), it.getW(), given) : Results();
      })
      .Case<ExpertLinearDwOp, ExpertBiasDwOp>([&](auto it) { return gradient(it, given); })
      .Case<ScaleRowsOp, ScaleRowsBwdOp>([&](auto it) {
        bool ofTokens = it.getPlaces() != nullptr; // else a number for each row
        DeviceLayout expected = ofRows(!ofTokens);
        bool fits = llvm::all_of(operands, [&](const DeviceLayout &layout) { return layout == expected; });
        return given.all(fits, expected);
      })
      .Case<SwigluOp, SwigluBwdOp, GeluOp, GeluBwdOp, GluOp, GluBwdOp, AddOp, ScaleOp, CopyOp, AccumulateOp, RoundOp,
            MapOp, SplitOp, SliceColumnsOp, PlaceColumnsOp>([&](Operation *) { return alike(given); })
      .Default([&](Operation *) { return given.all(!llvm::any_of(operands, isForeign), kNone); });
}

} // namespace pp::nn
