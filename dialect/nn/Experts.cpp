// Shapes, kernels, costs and derivatives of mixtures of experts.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   x ── router ── route ─▶ w, places, counts
//   └─── dispatch ─▶ rows ── expert_linear, swiglu ── scale_rows ── expert_linear ── combine ─▶ y
//
// The weights of choices multiply what goes into the last product, so that no output of an expert is saved. `rows` and
// what goes into that product are cheap: the backward makes them again of x and places.
#include "dialect/nn/Shapes.h"

using namespace mlir;
using namespace pp::nn;

static RankedTensorType integers(Value like, ArrayRef<int64_t> shape) {
  return RankedTensorType::get(shape, IntegerType::get(like.getContext(), 32));
}

/// Rows for all choices of the tokens of x, or those of sections.
static RankedTensorType rowsOfChoices(Value x, int64_t top, std::optional<SectionsAttr> sections) {
  auto type = tensorOf(x);
  if (sections && *sections)
    return RankedTensorType::get({1, sections->getDevices() * sections->rows(rowsOf(x), top), type.getDimSize(2)},
                                 type.getElementType());
  return RankedTensorType::get({type.getDimSize(0), type.getDimSize(1) * top, type.getDimSize(2)},
                               type.getElementType());
}

/// i32, for each choice of a token the number of its row.
static LogicalResult checkPlaces(Check &check, Value places) {
  auto type = tensorOf(places);
  if (type.getRank() == 3 && type.getElementType().isInteger(32))
    return success();
  return emitOptionalError(check.loc, "`", check.op, "` expects places to be i32 [batch, length, top], got ", type);
}

//===-- Router --------------------------------------------------------------------------------------------------===//

INFER(RouterOp) {
  Check check{"router", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) ||
      failed(check.numbers("wr", a.getWr())) || failed(check.rank("x", a.getX(), 3)) ||
      failed(check.rank("wr", a.getWr(), 2)) || failed(check.sameElements("x", a.getX(), "wr", a.getWr())) ||
      failed(check.equal("x's width", widthOf(a.getX()), "wr's rows", tensorOf(a.getWr()).getDimSize(0))))
    return failure();
  auto x = tensorOf(a.getX());
  types.push_back(inSums(a.getX(), {x.getDimSize(0), x.getDimSize(1), widthOf(a.getWr())}));
  return success();
}

Dims RouterOp::dims() { return {rowsOf(getX()), widthOf(getX()), widthOf(getWr())}; }
double RouterOp::flops() { return 2.0 * elementsOf(getX()) * widthOf(getWr()); }

LogicalResult RouterOp::differentiate(Gradients &gradients) {
  Value dlogits = gradients.get(getLogits());
  if (!dlogits)
    return success();
  OpBuilder &builder = gradients.builder;
  gradients.set(getWr(), builder.create<RouterDwOp>(getLoc(), getX(), dlogits, gradients.get(getWr())));
  gradients.set(getX(), builder.create<RouterDxOp>(getLoc(), dlogits, getWr(), gradients.get(getX())));
  return success();
}

INFER(RouterDxOp) {
  Check check{"router_dx", loc};
  if (failed(check.operands(a, 2, 3)) || failed(check.rank("dlogits", a.getDlogits(), 3)) ||
      failed(check.rank("wr", a.getWr(), 2)) ||
      failed(check.equal("dlogits' width", widthOf(a.getDlogits()), "wr's columns", widthOf(a.getWr()))))
    return failure();
  auto r = tensorOf(a.getDlogits()), wr = tensorOf(a.getWr());
  types.push_back(RankedTensorType::get({r.getDimSize(0), r.getDimSize(1), wr.getDimSize(0)}, wr.getElementType()));
  return check.into(a.getAcc(), types[0]);
}

Dims RouterDxOp::dims() { return {rowsOf(getDx()), widthOf(getDx()), widthOf(getDlogits())}; }
double RouterDxOp::flops() { return 2.0 * elementsOf(getDx()) * widthOf(getDlogits()); }
Flags RouterDxOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }
Type RouterDxOp::elementType() { return tensorOf(getWr()).getElementType(); }

INFER(RouterDwOp) {
  Check check{"router_dw", loc};
  if (failed(check.operands(a, 2, 3)) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "dlogits'", rowsOf(a.getDlogits()))))
    return failure();
  types.push_back(inSums(a.getX(), {widthOf(a.getX()), widthOf(a.getDlogits())}));
  return check.into(a.getAcc(), types[0]);
}

Dims RouterDwOp::dims() { return {rowsOf(getX()), widthOf(getX()), widthOf(getDlogits())}; }
double RouterDwOp::flops() { return 2.0 * elementsOf(getX()) * widthOf(getDlogits()); }
Flags RouterDwOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

//===-- Choices -------------------------------------------------------------------------------------------------===//

/// A sparsemixer chooses two experts by their logits alone, and has no loss of its own.
template <typename Adaptor> static LogicalResult checkMixer(std::optional<Location> loc, Adaptor a) {
  if (a.getScore() != "sparsemixer")
    return success();
  if (a.getTop() != 2)
    return emitOptionalError(loc, "`score = \"sparsemixer\"` has 2 choices of each token; `top` is ", a.getTop());
  if (a.getBias() || a.getGroups() != 1 || a.getRenormalise() || a.getIdentity() != 0)
    return emitOptionalError(loc,
                             "`score = \"sparsemixer\"` is without a bias, `groups`, `renormalise` and `identity`");
  if (!a.getBalance().isZero() || !a.getZ().isZero())
    return emitOptionalError(loc, "`balance` and `z` are losses of routers with another `score` than \"sparsemixer\"");
  if (double jitter = a.getJitter().convertToDouble(); !(jitter >= 0 && std::isfinite(jitter)))
    return emitOptionalError(loc, "`jitter` must be at least 0, got ", jitter);
  return success();
}

/// Sigmoids, a bias of each expert, and groups of experts, of which each has at least the number that its value needs.
template <typename Adaptor> static LogicalResult checkScores(std::optional<Location> loc, Adaptor a, int64_t experts) {
  auto groups = static_cast<int64_t>(a.getGroups()), best = static_cast<int64_t>(a.getTopGroups());
  auto top = static_cast<int64_t>(a.getTop());
  if (a.getScore() != "softmax" && a.getScore() != "sigmoid" && a.getScore() != "sparsemixer")
    return emitOptionalError(loc, "`score` is \"softmax\", \"sigmoid\" or \"sparsemixer\", got \"", a.getScore(), "\"");
  if (failed(checkMixer(loc, a)))
    return failure();
  if (a.getScore() == "sigmoid" && !a.getZ().isZero())
    return emitOptionalError(loc, "`z` is a loss of routers with `score = \"softmax\"`, got ",
                             a.getZ().convertToDouble(), " with \"sigmoid\"");
  if (a.getGroupBy() != "pair" && a.getGroupBy() != "largest")
    return emitOptionalError(loc, "`group_by` is \"pair\" or \"largest\", got \"", a.getGroupBy(), "\"");
  if (!a.getAdded().isZero() && !a.getRenormalise())
    return emitOptionalError(loc, "`added` is of the sum by which `renormalise = true` divides, got ",
                             a.getAdded().convertToDouble(), " without it");
  if (!a.getLeast().isZero() && !a.getRenormalise())
    return emitOptionalError(loc, "`least` is of the sum by which `renormalise = true` divides, got ",
                             a.getLeast().convertToDouble(), " without it");
  if (int64_t least = a.getGroupBy() == "largest" ? 1 : 2;
      groups < 1 || experts % groups || (groups > 1 && experts / groups < least))
    return emitOptionalError(loc, "`groups` must divide ", experts, " experts in groups of at least ", least, ", got ",
                             groups);
  if (best < 1 || best > groups || top > best * (experts / groups))
    return emitOptionalError(loc, "`top_groups` must be 1 to ", groups, " groups with at least ", top,
                             " experts together, got ", best);
  if (!a.getBias())
    return success();
  auto bias = tensorOf(a.getBias());
  if (bias.getRank() == 1 && bias.getDimSize(0) == experts && isa<FloatType>(bias.getElementType()) &&
      sumType(bias.getElementType()) == tensorOf(a.getLogits()).getElementType())
    return success();
  return emitOptionalError(loc, "`experts` expects bias as a number for each of ", experts, " experts, got ", bias);
}

constexpr int64_t mostExperts = 1 << 16;

INFER(RouteOp) {
  Check check{"route", loc};
  if (failed(check.operands(a, 1, 3)) || failed(check.numbers("logits", a.getLogits())) ||
      failed(check.rank("logits", a.getLogits(), 3)))
    return failure();
  auto logits = tensorOf(a.getLogits());
  if (a.getRows() && failed(check.type("rows", a.getRows(), integers(a.getLogits(), logits.getShape().drop_back()))))
    return failure();
  auto top = static_cast<int64_t>(a.getTop());
  int64_t batch = logits.getDimSize(0), length = logits.getDimSize(1), experts = logits.getDimSize(2);
  if (experts > mostExperts) // each is a tensor of a checkpoint, with a name of its own
    return emitOptionalError(loc, "`experts` expects at most ", mostExperts, " experts, got ", experts);
  if (top < 1 || top > experts)
    return emitOptionalError(loc, "`experts` has ", experts, " experts; `top` must be 1 to ", experts, ", got ", top);
  if (a.getOver() != "sequence" && a.getOver() != "microbatch")
    return emitOptionalError(loc, "`over` is \"sequence\" or \"microbatch\", got \"", a.getOver(), "\"");
  if (batch * length * top > std::numeric_limits<int32_t>::max())
    return emitOptionalError(loc, "`experts` expects at most ", std::numeric_limits<int32_t>::max(),
                             " choices in a microbatch, got ", batch * length * top);
  if (failed(checkScores(loc, a, experts)))
    return failure();
  int64_t sections = a.getSections() ? a.getSections()->getDevices() : 1;
  auto identity = static_cast<int64_t>(a.getIdentity());
  if (identity < 0 || identity >= experts)
    return emitOptionalError(loc, "`identity` must be less than the ", experts, " experts of the router, got ",
                             identity);
  experts -= identity; // with weights
  if (experts % sections != 0)
    return emitOptionalError(loc, "`experts` has ", experts, " experts; ", sections, " sections do not divide them");
  double capacity = a.getCapacity().convertToDouble();
  if (capacity != 0 && !(capacity >= 1))
    return emitOptionalError(loc,
                             "`capacity` is how much room there is, in shares of the mean: at least 1, or 0 for all "
                             "that could come; got ",
                             capacity);
  if (capacity != 0 && a.getBias())
    return emitOptionalError(loc, "`capacity` with a bias is not built yet: what is dropped would not be counted");
  if (capacity != 0 && identity != 0)
    return emitOptionalError(loc,
                             "`capacity` with `identity` is not built yet: it is counted in choices of all experts");
  types.push_back(inSums(a.getLogits(), {batch, length, top}));
  types.push_back(integers(a.getLogits(), {batch, length, top}));
  types.push_back(logits);
  types.push_back(statistic(a.getLogits()));
  types.push_back(integers(a.getLogits(), {batch, length, top}));
  types.push_back(sections > 1 ? integers(a.getLogits(), {sections, experts / sections})
                               : integers(a.getLogits(), {experts}));
  return success();
}

/// The number of consecutive tokens over which a loss of balance is taken.
static int64_t groupOf(RouteOp op) {
  return op.getOver() == "sequence" ? tensorOf(op.getLogits()).getDimSize(1) : rowsOf(op.getLogits());
}

Dims RouteOp::dims() {
  return {rowsOf(getLogits()),
          widthOf(getLogits()),
          widthOf(getW()),
          groupOf(*this),
          getSections() ? getSections()->getDevices() : 1,
          getSections() ? getSections()->rows(rowsOf(getLogits()), widthOf(getW())) : elementsOf(getW())};
}
SmallVector<double> RouteOp::params() {
  double reported = getShared() ? 0 : getBalance().convertToDouble();    // else by the derivative, which has all counts
  double capacity = getSections() ? getCapacity().convertToDouble() : 0; // one device has room for all
  SmallVector<double> params = {getScale().convertToDouble(), reported, getZ().convertToDouble(), capacity};
  double least = getLeast().convertToDouble(), added = getAdded().convertToDouble();
  const bool mixes = getScore() == "sparsemixer", more = getIdentity() != 0 || mixes;
  if (getGroups() != 1 || least != 0 || added != 0 || more)
    params.append({static_cast<double>(getGroups()), static_cast<double>(getTopGroups())});
  if (least != 0 || added != 0 || more)
    params.push_back(least);
  if (added != 0 || more)
    params.push_back(added);
  if (more)
    params.push_back(static_cast<double>(getIdentity()));
  if (mixes)
    params.push_back(getJitter().convertToDouble());
  return params;
}
Flags RouteOp::flags() {
  return flagsOf({{"renormalise", getRenormalise()},
                  {"sigmoid", getScore() == "sigmoid"},
                  {"sparsemixer", getScore() == "sparsemixer"},
                  {"largest", getGroups() != 1 && getGroupBy() == "largest"}});
}
Type RouteOp::elementType() { return tensorOf(getBias() ? getBias() : getLogits()).getElementType(); }
SmallVector<Value> RouteOp::pointers() {
  return {getLogits(), getBias(), getRows(), getW(), getSel(), getP(), getLse(), getPlaces(), getCounts()};
}
double RouteOp::flops() { return (4.0 + widthOf(getW())) * elementsOf(getLogits()); }

/// The balance of a group Γ of T tokens is α n/k Σ c_i/T · Σ p_ti/T, and that of a step the mean over groups by their
/// tokens; the counts c are constants, of all devices that share the group.
LogicalResult RouteOp::differentiate(Gradients &gradients) {
  Value dw = gradients.get(getW());
  if (!dw)
    return success();
  int64_t group = groupOf(*this);
  Value often;
  if (getShared() && !getBalance().isZero()) {
    often = gradients.builder.create<ChoiceCountsOp>(getLoc(), getSel(), group, widthOf(getLogits()),
                                                     tensorOf(getLogits()).getElementType());
    often = gradients.builder.create<AllReduceOp>(getLoc(), often, *getShared(), IntegerAttr());
  }
  auto backward = gradients.builder.create<RouteBwdOp>(
      getLoc(), dw, getW(), getSel(), getP(), getZ().isZero() ? Value() : getLse(), often, getRenormalise(), getScale(),
      getBalance(), group, getZ(), getScore() == "sigmoid", getLeast(), getAdded(), getScore() == "sparsemixer",
      getScore() == "sparsemixer" ? getJitter() : llvm::APFloat(0.0));
  Type sums = tensorOf(getLogits()).getElementType();
  if (Value bias = getBias(); bias && getIdentity() == 0)
    gradients.set(bias,
                  gradients.builder.create<ExpertLoadOp>(getLoc(), getCounts(), gradients.get(bias), getTop(), sums));
  else if (bias)
    gradients.set(bias, gradients.builder.create<ChoiceLoadOp>(getLoc(), getSel(), gradients.get(bias),
                                                               widthOf(getLogits()), sums));
  gradients.add(getLoc(), getLogits(), backward.getDlogits());
  return success();
}

INFER(ExpertLoadOp) {
  Check check{"expert_load", loc};
  if (failed(check.operands(a, 1, 2)))
    return failure();
  auto counts = tensorOf(a.getCounts());
  if (counts.getRank() > 2 || a.getTop() < 1)
    return emitOptionalError(loc, "`expert_load` expects i32 [experts] and `top` choices of each token, got ", counts,
                             " and ", a.getTop());
  types.push_back(RankedTensorType::get({counts.getNumElements()}, a.getSum()));
  return check.into(a.getAcc(), types[0]);
}

Dims ExpertLoadOp::dims() { return {elementsOf(getCounts()), static_cast<int64_t>(getTop())}; }
double ExpertLoadOp::flops() { return 3.0 * elementsOf(getCounts()); }
Flags ExpertLoadOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }
Type ExpertLoadOp::elementType() { return getSum(); }

INFER(ChoiceCountsOp) {
  Check check{"choice_counts", loc};
  if (failed(check.operands(a, 1, 1)))
    return failure();
  auto group = static_cast<int64_t>(a.getGroup()), experts = static_cast<int64_t>(a.getExperts());
  int64_t tokens = rowsOf(a.getSel());
  if (group < 1 || experts < 1 || tokens % group)
    return emitOptionalError(loc, "`choice_counts` expects groups that divide ", tokens, " tokens, got ", group);
  types.push_back(RankedTensorType::get({tokens / group, experts}, a.getSum()));
  return success();
}

Dims ChoiceCountsOp::dims() {
  return {rowsOf(getSel()), static_cast<int64_t>(getExperts()), widthOf(getSel()), static_cast<int64_t>(getGroup())};
}
double ChoiceCountsOp::flops() { return elementsOf(getSel()); }
Type ChoiceCountsOp::elementType() { return getSum(); }

INFER(ChoiceLoadOp) {
  Check check{"choice_load", loc};
  if (failed(check.operands(a, 1, 2)) || failed(checkPlaces(check, a.getSel())))
    return failure();
  if (a.getExperts() < 1)
    return emitOptionalError(loc, "`choice_load` expects at least 1 expert, got ", a.getExperts());
  types.push_back(RankedTensorType::get({static_cast<int64_t>(a.getExperts())}, a.getSum()));
  return check.into(a.getAcc(), types[0]);
}

Dims ChoiceLoadOp::dims() { return {rowsOf(getSel()), static_cast<int64_t>(getExperts()), widthOf(getSel())}; }
double ChoiceLoadOp::flops() { return elementsOf(getSel()) + 3.0 * static_cast<double>(getExperts()); }
Flags ChoiceLoadOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }
Type ChoiceLoadOp::elementType() { return getSum(); }

INFER(RouteBwdOp) {
  Check check{"route_bwd", loc};
  if (failed(check.operands(a, 4, 6)) || failed(check.same("dw", a.getDw(), "w", a.getW())) ||
      failed(check.equal("w's elements", elementsOf(a.getW()), "sel's", elementsOf(a.getSel()))) ||
      failed(check.equal("w's rows", rowsOf(a.getW()), "p's", rowsOf(a.getP()))))
    return failure();
  if (a.getGroup() < 1 || rowsOf(a.getP()) % static_cast<int64_t>(a.getGroup()))
    return emitOptionalError(loc, "`route_bwd` expects groups that divide ", rowsOf(a.getP()), " tokens, got ",
                             a.getGroup());
  auto counts = inSums(a.getP(), {rowsOf(a.getP()) / static_cast<int64_t>(a.getGroup()), widthOf(a.getP())});
  if (a.getOften() && failed(check.type("often", a.getOften(), counts)))
    return failure();
  types.push_back(a.getP().getType());
  return success();
}

Dims RouteBwdOp::dims() { return {rowsOf(getP()), widthOf(getP()), widthOf(getW()), static_cast<int64_t>(getGroup())}; }
SmallVector<double> RouteBwdOp::params() {
  SmallVector<double> params = {getScale().convertToDouble(), getBalance().convertToDouble(), getZ().convertToDouble()};
  if (!getLeast().isZero() || !getAdded().isZero() || getSparsemixer())
    params.push_back(getLeast().convertToDouble());
  if (!getAdded().isZero() || getSparsemixer())
    params.push_back(getAdded().convertToDouble());
  if (getSparsemixer())
    params.push_back(getJitter().convertToDouble());
  return params;
}
Flags RouteBwdOp::flags() {
  return flagsOf({{"renormalise", getRenormalise()}, {"sigmoid", getSigmoid()}, {"sparsemixer", getSparsemixer()}});
}
SmallVector<Value> RouteBwdOp::pointers() {
  return {getDw(), getW(), getSel(), getP(), getLse(), getOften(), getDlogits()};
}
double RouteBwdOp::flops() { return 8.0 * elementsOf(getP()); }

//===-- Experts that give a token itself ------------------------------------------------------------------------===//

INFER(IdentityWeightsOp) {
  Check check{"identity_weights", loc};
  if (failed(check.operands(a, 2, 2)) || failed(checkPlaces(check, a.getSel())) ||
      failed(check.type("w", a.getW(), tensorOf(a.getSel()).clone(tensorOf(a.getW()).getElementType()))))
    return failure();
  auto w = tensorOf(a.getW());
  types.push_back(w.clone(w.getShape().drop_back()));
  return success();
}

Dims IdentityWeightsOp::dims() { return {rowsOf(getW()), widthOf(getW()), static_cast<int64_t>(getExperts())}; }
double IdentityWeightsOp::flops() { return elementsOf(getW()); }

LogicalResult IdentityWeightsOp::differentiate(Gradients &gradients) {
  if (Value du = gradients.get(getU()))
    gradients.add(getLoc(), getW(),
                  gradients.builder.create<IdentityWeightsBwdOp>(getLoc(), du, getSel(), getExperts()));
  return success();
}

INFER(IdentityWeightsBwdOp) {
  Check check{"identity_weights_bwd", loc};
  if (failed(check.operands(a, 2, 2)) || failed(checkPlaces(check, a.getSel())) ||
      failed(check.rank("du", a.getDu(), 2)) ||
      failed(check.equal("du's elements", elementsOf(a.getDu()), "sel's rows", rowsOf(a.getSel()))))
    return failure();
  types.push_back(RankedTensorType::get(tensorOf(a.getSel()).getShape(), tensorOf(a.getDu()).getElementType()));
  return success();
}

Dims IdentityWeightsBwdOp::dims() { return {rowsOf(getSel()), widthOf(getSel()), static_cast<int64_t>(getExperts())}; }

//===-- Rows ----------------------------------------------------------------------------------------------------===//

INFER(DispatchOp) {
  Check check{"dispatch", loc};
  if (failed(check.operands(a, 2, 2)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)) ||
      failed(checkPlaces(check, a.getPlaces())) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "places'", rowsOf(a.getPlaces()))))
    return failure();
  types.push_back(rowsOfChoices(a.getX(), widthOf(a.getPlaces()), a.getSections()));
  return success();
}

Dims DispatchOp::dims() { return {rowsOf(getX()), widthOf(getPlaces()), widthOf(getX())}; }
LogicalResult DispatchOp::differentiate(Gradients &gradients) {
  if (Value drows = gradients.get(getRows()))
    gradients.set(getX(), gradients.builder.create<CombineOp>(getLoc(), drows, getPlaces(), gradients.get(getX()),
                                                              getSectionsAttr()));
  return success();
}

INFER(CombineOp) {
  Check check{"combine", loc};
  if (failed(check.operands(a, 2, 3)) || failed(check.numbers("rows", a.getRows())) ||
      failed(check.rank("rows", a.getRows(), 3)) || failed(checkPlaces(check, a.getPlaces())) ||
      (!a.getSections() &&
       failed(check.equal("rows' number", rowsOf(a.getRows()), "places'", elementsOf(a.getPlaces())))))
    return failure();
  if (auto its = a.getSections())
    if (int64_t all = its->getDevices() * its->rows(rowsOf(a.getPlaces()), widthOf(a.getPlaces()));
        failed(check.equal("rows' number", rowsOf(a.getRows()), "the sections'", all)))
      return failure();
  auto places = tensorOf(a.getPlaces());
  types.push_back(RankedTensorType::get({places.getDimSize(0), places.getDimSize(1), widthOf(a.getRows())},
                                        tensorOf(a.getRows()).getElementType()));
  return check.into(a.getAcc(), types[0]);
}

Dims CombineOp::dims() { return {rowsOf(getY()), widthOf(getPlaces()), widthOf(getY())}; }
double CombineOp::flops() { return static_cast<double>(elementsOf(getPlaces())) * widthOf(getY()); }
Flags CombineOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

LogicalResult CombineOp::differentiate(Gradients &gradients) {
  if (Value dy = gradients.get(getY()))
    gradients.add(getLoc(), getRows(),
                  gradients.builder.create<DispatchOp>(getLoc(), dy, getPlaces(), getSectionsAttr()));
  return success();
}

/// The number of sections of counts [sections, experts], or [experts].
static int64_t sectionsOf(Value counts) {
  auto type = tensorOf(counts);
  return type.getRank() > 1 ? type.getDimSize(0) : 1;
}
static Dims dimsOfExperts(Value rows, int64_t in, int64_t out, Value counts) {
  return {rowsOf(rows), in, out, tensorOf(counts).getShape().back(), sectionsOf(counts)};
}
/// Those that there are on average of all that there is room for.
template <typename Op> static double rowsOnAverage(Op op, Value rows) {
  return static_cast<double>(rowsOf(rows)) * op.getFilled().convertToDouble();
}

/// Sections of rows, in each of which there are `counts` of each expert.
static LogicalResult checkCounts(Check &check, Value rows, Value counts) {
  auto type = tensorOf(counts);
  if (type.getRank() < 1 || type.getRank() > 2 || !type.getElementType().isInteger(32))
    return emitOptionalError(check.loc, "`", check.op,
                             "` expects counts to be i32 [experts] or [sections, experts], got ", type);
  if (int64_t sections = sectionsOf(counts); rowsOf(rows) % sections != 0)
    return emitOptionalError(check.loc, "`", check.op, "` expects ", sections, " equal sections of rows, got ",
                             rows.getType());
  return success();
}

/// Rows of width `width` and, for each of the experts of `counts`, a matrix of w.
static LogicalResult checkExperts(Check &check, StringRef name, Value rows, Value w, Value counts, int64_t dim) {
  if (failed(checkCounts(check, rows, counts)) || failed(check.numbers("w", w)) || failed(check.rank("w", w, 3)) ||
      failed(check.rank(name, rows, 3)) || failed(check.sameElements(name, rows, "w", w)) ||
      failed(check.equal("the router's experts", tensorOf(counts).getShape().back(), "w's", tensorOf(w).getDimSize(0))))
    return failure();
  return check.equal((name + "'s width").str(), widthOf(rows), dim == 1 ? "w's rows" : "w's columns",
                     tensorOf(w).getDimSize(dim));
}

INFER(ExpertLinearOp) {
  Check check{"expert_linear", loc};
  if (failed(check.operands(a, 3, 3)) || failed(checkExperts(check, "x", a.getX(), a.getW(), a.getCounts(), 1)))
    return failure();
  types.push_back(withWidth(a.getX(), widthOf(a.getW())));
  return success();
}

Dims ExpertLinearOp::dims() { return dimsOfExperts(getX(), widthOf(getX()), widthOf(getY()), getCounts()); }
double ExpertLinearOp::flops() { return 2.0 * rowsOnAverage(*this, getX()) * widthOf(getX()) * widthOf(getY()); }

LogicalResult ExpertLinearOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  OpBuilder &builder = gradients.builder;
  gradients.set(getW(), builder.create<ExpertLinearDwOp>(getLoc(), getX(), dy, getCounts(), gradients.get(getW()),
                                                         getFilledAttr()));
  gradients.set(getX(), builder.create<ExpertLinearDxOp>(getLoc(), dy, getW(), getCounts(), gradients.get(getX()),
                                                         getFilledAttr()));
  return success();
}

INFER(ExpertLinearDxOp) {
  Check check{"expert_linear_dx", loc};
  if (failed(check.operands(a, 3, 4)) || failed(checkExperts(check, "dy", a.getDy(), a.getW(), a.getCounts(), 2)))
    return failure();
  types.push_back(withWidth(a.getDy(), tensorOf(a.getW()).getDimSize(1)));
  return check.into(a.getAcc(), types[0]);
}

Dims ExpertLinearDxOp::dims() { return dimsOfExperts(getDx(), widthOf(getDx()), widthOf(getDy()), getCounts()); }
double ExpertLinearDxOp::flops() { return 2.0 * rowsOnAverage(*this, getDx()) * widthOf(getDx()) * widthOf(getDy()); }
Flags ExpertLinearDxOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

INFER(ExpertLinearDwOp) {
  Check check{"expert_linear_dw", loc};
  if (failed(check.operands(a, 3, 4)) || failed(check.sameElements("x", a.getX(), "dy", a.getDy())) ||
      failed(check.equal("x's rows", rowsOf(a.getX()), "dy's", rowsOf(a.getDy()))))
    return failure();
  types.push_back(inSums(a.getX(), {tensorOf(a.getCounts()).getShape().back(), widthOf(a.getX()), widthOf(a.getDy())}));
  return check.into(a.getAcc(), types[0]);
}

Dims ExpertLinearDwOp::dims() { return dimsOfExperts(getX(), widthOf(getX()), widthOf(getDy()), getCounts()); }
double ExpertLinearDwOp::flops() { return 2.0 * rowsOnAverage(*this, getX()) * widthOf(getX()) * widthOf(getDy()); }
Flags ExpertLinearDwOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

INFER(ExpertBiasOp) {
  Check check{"expert_bias", loc};
  if (failed(check.operands(a, 3, 3)) || failed(check.numbers("x", a.getX())) || failed(check.rank("x", a.getX(), 3)) ||
      failed(check.rank("a bias", a.getBias(), 2)) || failed(checkCounts(check, a.getX(), a.getCounts())) ||
      failed(check.sameElements("x", a.getX(), "bias", a.getBias())) ||
      failed(check.equal("the router's experts", tensorOf(a.getCounts()).getShape().back(), "the bias's",
                         tensorOf(a.getBias()).getDimSize(0))) ||
      failed(check.equal("x's width", widthOf(a.getX()), "the bias's", widthOf(a.getBias()))))
    return failure();
  types.push_back(a.getX().getType());
  return success();
}

static Dims dimsOfBiases(Value rows, Value counts) {
  return {rowsOf(rows), widthOf(rows), tensorOf(counts).getShape().back(), sectionsOf(counts)};
}

Dims ExpertBiasOp::dims() { return dimsOfBiases(getX(), getCounts()); }
double ExpertBiasOp::flops() { return elementsOf(getX()); }

LogicalResult ExpertBiasOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  gradients.set(getBias(),
                gradients.builder.create<ExpertBiasDwOp>(getLoc(), dy, getCounts(), gradients.get(getBias())));
  gradients.add(getLoc(), getX(), dy);
  return success();
}

INFER(ExpertBiasDwOp) {
  Check check{"expert_bias_dw", loc};
  if (failed(check.operands(a, 2, 3)) || failed(check.numbers("dy", a.getDy())) ||
      failed(check.rank("dy", a.getDy(), 3)) || failed(checkCounts(check, a.getDy(), a.getCounts())))
    return failure();
  types.push_back(inSums(a.getDy(), {tensorOf(a.getCounts()).getShape().back(), widthOf(a.getDy())}));
  return check.into(a.getAcc(), types[0]);
}

Dims ExpertBiasDwOp::dims() { return dimsOfBiases(getDy(), getCounts()); }
double ExpertBiasDwOp::flops() { return elementsOf(getDy()); }
Flags ExpertBiasDwOp::flags() { return flagsOf({{"accumulate", getAcc() != nullptr}}); }

INFER(PlaceWeightsOp) {
  Check check{"place_weights", loc};
  if (failed(check.operands(a, 2, 2)) || failed(checkPlaces(check, a.getPlaces())) ||
      failed(check.equal("w's elements", elementsOf(a.getW()), "places'", elementsOf(a.getPlaces()))))
    return failure();
  SectionsAttr sections = a.getSections();
  types.push_back(RankedTensorType::get({1, sections.getDevices() * sections.rows(rowsOf(a.getW()), widthOf(a.getW()))},
                                        tensorOf(a.getW()).getElementType()));
  return success();
}

Dims PlaceWeightsOp::dims() { return {rowsOf(getW()), widthOf(getW()), elementsOf(getRows())}; }

LogicalResult PlaceWeightsOp::differentiate(Gradients &gradients) {
  if (Value drows = gradients.get(getRows()))
    gradients.add(getLoc(), getW(), gradients.builder.create<TakeWeightsOp>(getLoc(), drows, getPlaces()));
  return success();
}

INFER(TakeWeightsOp) {
  Check check{"take_weights", loc};
  if (failed(check.operands(a, 2, 2)) || failed(checkPlaces(check, a.getPlaces())))
    return failure();
  types.push_back(RankedTensorType::get(tensorOf(a.getPlaces()).getShape(), tensorOf(a.getRows()).getElementType()));
  return success();
}

Dims TakeWeightsOp::dims() { return {rowsOf(getPlaces()), widthOf(getPlaces()), elementsOf(getRows())}; }

/// A number for each choice, or without places for each row.
static LogicalResult checkWeightsOfRows(Check &check, Value rows, Value w, Value places) {
  if (!places)
    return check.equal("the rows", rowsOf(rows), "w's elements", elementsOf(w));
  if (failed(checkPlaces(check, places)))
    return failure();
  return check.equal("the rows", rowsOf(rows), "places'", elementsOf(places));
}

INFER(ScaleRowsOp) {
  Check check{"scale_rows", loc};
  if (failed(check.operands(a, 2, 3)) || failed(check.numbers("a", a.getA())) ||
      failed(checkWeightsOfRows(check, a.getA(), a.getW(), a.getPlaces())) ||
      failed(
          check.type("w", a.getW(), inSums(a.getA(), tensorOf(a.getPlaces() ? a.getPlaces() : a.getW()).getShape()))))
    return failure();
  types.push_back(a.getA().getType());
  return success();
}

/// Rows, and numbers of each.
static Dims dimsOfWeights(Value w, Value places, Value rows) {
  return places ? Dims{rowsOf(w), widthOf(w), widthOf(rows)} : Dims{elementsOf(w), 1, widthOf(rows)};
}

Dims ScaleRowsOp::dims() { return dimsOfWeights(getW(), getPlaces(), getA()); }
SmallVector<Value> ScaleRowsOp::pointers() { return {getA(), getW(), getPlaces(), getY()}; }
double ScaleRowsOp::flops() { return elementsOf(getA()); }
LogicalResult ScaleRowsOp::differentiate(Gradients &gradients) {
  Value dy = gradients.get(getY());
  if (!dy)
    return success();
  auto backward = gradients.builder.create<ScaleRowsBwdOp>(getLoc(), dy, getA(), getW(), getPlaces());
  gradients.add(getLoc(), getA(), backward.getDa());
  gradients.add(getLoc(), getW(), backward.getDw());
  return success();
}

INFER(ScaleRowsBwdOp) {
  Check check{"scale_rows_bwd", loc};
  if (failed(check.operands(a, 3, 4)) || failed(check.same("dy", a.getDy(), "a", a.getA())) ||
      failed(checkWeightsOfRows(check, a.getA(), a.getW(), a.getPlaces())))
    return failure();
  types.append({a.getA().getType(), a.getW().getType()});
  return success();
}

Dims ScaleRowsBwdOp::dims() { return dimsOfWeights(getW(), getPlaces(), getA()); }
SmallVector<Value> ScaleRowsBwdOp::pointers() { return {getDy(), getA(), getW(), getPlaces(), getDa(), getDw()}; }
double ScaleRowsBwdOp::flops() { return 3.0 * elementsOf(getA()); }

Value ExpertLinearOp::expertWeights() { return getW(); }
Value ExpertLinearDxOp::expertWeights() { return getW(); }
Value ExpertLinearDwOp::expertWeights() { return getDw(); }

StringRef RouteOp::whyNotSliced() {
  return getBalance().isZero() ? "" : "`balance` counts the experts of whole sequences; slices do not see them";
}
