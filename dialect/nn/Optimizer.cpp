// Shapes, kernels and costs of what changes weights.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"
#include <algorithm>

using namespace mlir;
using namespace pp::nn;

/// A gradient of w's shape in the type of sums, and a master for a weight of 16 bits alone.
static LogicalResult checkUpdate(std::optional<Location> loc, StringRef name, Value grad, Value w, Value master,
                                 std::optional<ArrayRef<int64_t>> flat = {}) {
  const bool isPacked = flat && FlatShard(*flat).packed > 0;
  if (isPacked && (FlatShard(*flat).packed != elementsOf(w) || grad.getType() != inSums(w, {(*flat)[1]})))
    return emitOptionalError(loc, "`", name, "` expects a shard of gradients in the type of sums, and ", elementsOf(w),
                             " elements of w in `flat`, got ", grad.getType(), " and ", FlatShard(*flat).packed);
  if (!isPacked && grad.getType() != inSums(w, tensorOf(w).getShape()))
    return emitOptionalError(loc, "`", name, "` expects a gradient of w's shape in the type of sums, got ",
                             grad.getType(), " for ", w.getType());
  if ((tensorOf(w).getElementType().getIntOrFloatBitWidth() == 16) != static_cast<bool>(master))
    return emitOptionalError(loc, "`", name, "` expects a master copy for a weight of 16 bits, and only for one");
  return success();
}

//===-- Shards of several tensors, one behind the other ---------------------------------------------------------===//

LogicalResult FlatShard::verify(ArrayRef<int64_t> flat, StringRef name, std::optional<Location> loc) {
  if ((flat.size() == 3 || (flat.size() == 4 && flat[3] > 0)) && flat[0] >= 0 && flat[1] > 0 && flat[2] > 0)
    return success();
  return emitOptionalError(loc, "`", name, "` expects of `flat` where the tensor begins, the elements of a shard and ",
                           "the number of devices");
}

int64_t FlatShard::elementsIn(Value tensor) const { return packed > 0 ? packed : elementsOf(tensor); }

int64_t FlatShard::firstOf(Value tensor, int64_t device) const {
  return std::clamp<int64_t>(device * shard - begin, 0, elementsIn(tensor));
}

static int64_t bytesOfElement(Value tensor) { return tensorOf(tensor).getElementTypeBitWidth() / 8; }

Varying FlatShard::countsOf(Value tensor) const {
  Varying counts = {0, {}};
  for (int64_t device = 0; device < devices; ++device)
    counts.ofShards.push_back(firstOf(tensor, device + 1) - firstOf(tensor, device));
  return counts;
}

Varying FlatShard::beginsOf(Value tensor, unsigned pointer) const {
  Varying begins = {pointer, {}};
  for (int64_t device = 0; device < devices; ++device)
    begins.ofShards.push_back(firstOf(tensor, device) * bytesOfElement(tensor));
  return begins;
}

Varying FlatShard::placesOf(Value tensor, Value state, unsigned pointer) const {
  Varying places = {pointer, {}};
  for (int64_t device = 0; device < devices; ++device) {
    int64_t first = firstOf(tensor, device), has = firstOf(tensor, device + 1) > first;
    places.ofShards.push_back(has * (begin + first - device * shard) * bytesOfElement(state));
  }
  return places;
}

/// The pointers that move in an update: gradient, norm, weight, and from pointer 3 on the state; null: none, or no
/// master.
template <typename Op> static SmallVector<Varying> movedOf(Op op) {
  SmallVector<Varying> moved;
  if (!op.getFlat())
    return moved;
  FlatShard flat(*op.getFlat());
  for (auto [i, pointer] : llvm::enumerate(op.pointers()))
    if (pointer && i != 1)
      moved.push_back(i == 2 || (i == 0 && flat.packed == 0) ? flat.beginsOf(pointer, i)
                                                             : flat.placesOf(op.getW(), pointer, i));
  return moved;
}

template <typename Op> static SmallVector<Varying> countsOf(Op op) {
  return op.getFlat() ? SmallVector<Varying>{FlatShard(*op.getFlat()).countsOf(op.getW())} : SmallVector<Varying>();
}

/// Checks the shape of a tensor of state: that of the gradient, or a shard.
static LogicalResult checkState(std::optional<Location> loc, StringRef name, Value state, Value grad,
                                std::optional<ArrayRef<int64_t>> flat) {
  Check check{name, loc};
  if (!flat)
    return check.same("state", state, "grad", grad);
  if (failed(FlatShard::verify(*flat, name, loc)))
    return failure();
  auto expected = RankedTensorType::get({(*flat)[1]}, tensorOf(grad).getElementType());
  return state.getType() == expected
             ? success()
             : emitOptionalError(loc, "`", name, "` expects a shard of ", expected, ", got ", state.getType());
}

//===-- Updates -------------------------------------------------------------------------------------------------===//

/// The results take over the operands from `first` on.
static SmallVector<Tie> tiesFrom(unsigned first, unsigned count) {
  SmallVector<Tie> ties;
  for (unsigned i = 0; i < count; ++i)
    ties.push_back({i, first + i});
  return ties;
}

/// Adds the rate and decay of a weight's group, if it has one, behind the kernel's other params.
template <typename Op> static SmallVector<double> groupParams(Op op, SmallVector<double> params) {
  double rate = op.getRate().convertToDouble(), shrink = op.getShrink().convertToDouble();
  if (rate != 1 || shrink != 1)
    params.append({rate, shrink});
  return params;
}

INFER(AdamwOp) {
  Check check{"adamw", loc};
  if (failed(check.operands(a, 4, 6)) || failed(checkState(loc, "adamw", a.getM(), a.getGrad(), a.getFlat())) ||
      failed(checkState(loc, "adamw", a.getV(), a.getGrad(), a.getFlat())) ||
      failed(checkUpdate(loc, "adamw", a.getGrad(), a.getW(), a.getMaster(), a.getFlat())))
    return failure();
  types.assign({a.getW().getType(), a.getM().getType(), a.getV().getType()});
  if (a.getMaster())
    types.push_back(a.getMaster().getType());
  return success();
}

Dims AdamwOp::dims() { return {elementsOf(getW())}; }
SmallVector<double> AdamwOp::params() { return groupParams(*this, {}); }
double AdamwOp::flops() { return 15.0 * elementsOf(getW()); }
Flags AdamwOp::flags() { return flagsOf({{"decay", getDecay()}}); }
Type AdamwOp::elementType() { return tensorOf(getW()).getElementType(); }
SmallVector<Value> AdamwOp::pointers() {
  return {getGrad(), getNorm(), getNewW(), getNewM(), getNewV(), getNewMaster()};
}
SmallVector<Varying> AdamwOp::varying() { return countsOf(*this); }
SmallVector<Varying> AdamwOp::moved() { return movedOf(*this); }
SmallVector<Tie> AdamwOp::getRequiredTies() { return tiesFrom(getNorm() ? 2 : 1, getNumResults()); }

INFER(SgdOp) {
  Check check{"sgd", loc};
  if (failed(check.operands(a, 3, 5)) || failed(checkState(loc, "sgd", a.getU(), a.getGrad(), a.getFlat())) ||
      failed(checkUpdate(loc, "sgd", a.getGrad(), a.getW(), a.getMaster(), a.getFlat())))
    return failure();
  types.assign({a.getW().getType(), a.getU().getType()});
  if (a.getMaster())
    types.push_back(a.getMaster().getType());
  return success();
}

Dims SgdOp::dims() { return {elementsOf(getW())}; }
SmallVector<double> SgdOp::params() { return groupParams(*this, {}); }
double SgdOp::flops() { return 8.0 * elementsOf(getW()); }
Flags SgdOp::flags() { return flagsOf({{"decay", getDecay()}, {"nesterov", getNesterov()}}); }
Type SgdOp::elementType() { return tensorOf(getW()).getElementType(); }
SmallVector<Value> SgdOp::pointers() { return {getGrad(), getNorm(), getNewW(), getNewU(), getNewMaster()}; }
SmallVector<Varying> SgdOp::varying() { return countsOf(*this); }
SmallVector<Varying> SgdOp::moved() { return movedOf(*this); }
SmallVector<Tie> SgdOp::getRequiredTies() { return tiesFrom(getNorm() ? 2 : 1, getNumResults()); }

INFER(SteerOp) {
  if (failed(Check{"steer", loc}.operands(a, 2, 4)) ||
      failed(checkUpdate(loc, "steer", a.getGrad(), a.getW(), a.getMaster())))
    return failure();
  if (!(a.getRate().convertToDouble() >= 0))
    return emitOptionalError(loc, "`steer` expects a rate of at least 0, got ", a.getRate().convertToDouble());
  types.push_back(a.getW().getType());
  if (a.getMaster())
    types.push_back(a.getMaster().getType());
  return success();
}

Dims SteerOp::dims() { return {elementsOf(getW())}; }
SmallVector<double> SteerOp::params() { return {getRate().convertToDouble()}; }
double SteerOp::flops() { return elementsOf(getW()); }
Type SteerOp::elementType() { return tensorOf(getW()).getElementType(); }
SmallVector<Value> SteerOp::pointers() { return {getGrad(), getNorm(), getNewW(), getNewMaster()}; }
SmallVector<Tie> SteerOp::getRequiredTies() { return tiesFrom(getNorm() ? 2 : 1, getNumResults()); }

INFER(MuonMomentumOp) {
  Check check{"muon_momentum", loc};
  if (failed(check.operands(a, 2, 3)) || failed(check.rank("a gradient", a.getGrad(), 2)) ||
      failed(check.same("u", a.getU(), "grad", a.getGrad())))
    return failure();
  types.assign({a.getU().getType(), a.getU().getType()});
  return success();
}

Dims MuonMomentumOp::dims() { return {elementsOf(getGrad())}; }
double MuonMomentumOp::flops() { return 7.0 * elementsOf(getGrad()); }
SmallVector<Value> MuonMomentumOp::pointers() { return {getGrad(), getNorm(), getNewU(), getWay()}; }
SmallVector<Tie> MuonMomentumOp::getRequiredTies() { return {{0, getNorm() ? 2U : 1U}}; }

INFER(UnitNormOp) {
  Check check{"unit_norm", loc};
  if (failed(check.operands(a, 2, 2)))
    return failure();
  if (a.getSum().getType() != RankedTensorType::get({1}, Float64Type::get(context)))
    return emitOptionalError(loc, "`unit_norm` expects one sum of squares in f64, got ", a.getSum().getType());
  types.push_back(a.getX().getType());
  return success();
}

Dims UnitNormOp::dims() { return {elementsOf(getX())}; }
double UnitNormOp::flops() { return elementsOf(getX()); }

INFER(NewtonSchulzOp) {
  Check check{"newton_schulz", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.rank("g", a.getG(), 2)) ||
      failed(check.same("gg", a.getGg(), "g", a.getG())) ||
      failed(check.equal("g's rows", tensorOf(a.getG()).getDimSize(0), "its columns", widthOf(a.getG()))))
    return failure();
  types.push_back(a.getG().getType());
  return success();
}

Dims NewtonSchulzOp::dims() { return {widthOf(getG())}; }
double NewtonSchulzOp::flops() { return 3.0 * elementsOf(getG()); }

INFER(MuonOp) {
  Check check{"muon", loc};
  if (failed(check.operands(a, 2, 4)) || failed(check.rank("a weight", a.getW(), 2)) ||
      failed(checkUpdate(loc, "muon", a.getWay(), a.getW(), a.getMaster())))
    return failure();
  types.push_back(a.getW().getType());
  if (a.getMaster())
    types.push_back(a.getMaster().getType());
  return success();
}

Dims MuonOp::dims() { return {elementsOf(getW())}; }
SmallVector<double> MuonOp::params() { return groupParams(*this, {getFactor().convertToDouble()}); }
double MuonOp::flops() { return 4.0 * elementsOf(getW()); }
Flags MuonOp::flags() { return flagsOf({{"decay", getDecay()}}); }
Type MuonOp::elementType() { return tensorOf(getW()).getElementType(); }
SmallVector<Value> MuonOp::pointers() { return {getWay(), getNorm(), getNewW(), getNewMaster()}; }
SmallVector<Tie> MuonOp::getRequiredTies() { return tiesFrom(getNorm() ? 2 : 1, getNumResults()); }
