// Verifies that each op of each task body computes by a rule of layouts, on what the devices of an axis have of values.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   weight `wo` cut <[64, 64] dim 0> ─▶ shard 0 ┐
//   stash, as F returned it        ─▶ shard 2 ─▶ linear ─▶ partial ─▶ all_reduce ─▶ full ─▶ add with x, full
//
// Layouts come from nothing but the cuts of weights and the exchange ops; what one body hands to another has the layout
// with which it left. How they were chosen is not asked. A value without an exchange that it needs has the right shape
// and the wrong numbers: a sum that is not added up, a gradient that is counted once for each device. Each of the axes
// tensor, context and expert is verified for itself.
#include "dialect/pipeline/BodyGroups.h"
#include "passes/Passes.h"
#include "passes/layouts/Layouts.h"
#include <map>
#include <set>

namespace pp {
#define GEN_PASS_DEF_VERIFYLAYOUTS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
using nn::DeviceLayout;
using LayoutKind = DeviceLayout::Kind;
using Layouts = SmallVector<DeviceLayout>;

namespace {

class LayoutVerifier {
public:
  LayoutVerifier(ModuleOp module, ProgramOp program, Axis axis)
      : module(module), program(program), axis(axis), devices(program.sizeOf(axis)) {}
  LogicalResult run();

private:
  using Bodies = SmallVector<std::pair<BodyAttr, func::FuncOp>>;

  LogicalResult verify(BodyAttr body, func::FuncOp function);
  LogicalResult verifyParts();
  std::optional<Layouts> layoutsOf(BodyAttr body, GroupName name, TupleType payload) const;
  Layouts ofWeights(bool isGradient) const;
  const Layouts *find(BodyAttr body, GroupName name, StringAttr of = {}) const;
  LogicalResult record(func::FuncOp function, BodyAttr body, GroupName name, const Layouts &layouts);

  /// The layout on this axis of losses, and of activations that nothing else determines.
  DeviceLayout ofRows() const {
    return DeviceLayout::of(isContext() ? LayoutKind::rows : ofExperts() ? LayoutKind::none : LayoutKind::full);
  }
  DeviceLayout ofLosses() const {
    return DeviceLayout::of(isContext() ? LayoutKind::partial : ofExperts() ? LayoutKind::none : LayoutKind::full);
  }
  bool isContext() const { return axis == Axis::context; }
  bool ofExperts() const { return axis == Axis::expert; }

  ModuleOp module;
  ProgramOp program;
  Axis axis;
  int64_t devices;
  PieceOp piece, before; ///< whose bodies are verified, and the one that hands it its activation
  /// The layouts that bodies of these pieces return, by slice and name of the group.
  std::map<std::tuple<const void *, int64_t, std::string>, Layouts> known;
};

} // namespace

static Layouts transposed(Layouts layouts) {
  for (DeviceLayout &layout : layouts)
    layout = layout.transposed();
  return layouts;
}

/// In the order of their payload. The sum of a weight's gradient is whole in each of its copies over `tensor`, unless
/// it is declared to be in terms; over `context`, and of experts over `copies`, it is summed once a step.
Layouts LayoutVerifier::ofWeights(bool isGradient) const {
  auto layoutOf = [&](nn::WeightAttr declared) {
    if (ofExperts())
      return declared.getExperts() > 1 ? DeviceLayout::shard(0)
                                       : DeviceLayout::of(isGradient ? LayoutKind::partial : LayoutKind::none);
    return !isContext() && !declared.getTerms() ? nn::layoutOf(declared)
                                                : DeviceLayout::of(isGradient ? LayoutKind::partial : LayoutKind::copy);
  };
  Layouts layouts;
  for (auto weight : PieceOp(piece).getWeightsAttr().getAsRange<WeightAttr>())
    if (!isGradient || !weight.getFrozen())
      layouts.push_back(layoutOf(weight.getDeclared()));
  return layouts;
}

/// Keys and states of a slice are there for bodies of other slices.
static int64_t sliceOf(BodyAttr body, GroupName name) {
  return name.kind == GroupKind::kv || name.kind == GroupKind::state ? -1 : body.getSlice();
}

const Layouts *LayoutVerifier::find(BodyAttr body, GroupName name, StringAttr of) const {
  int64_t slice = sliceOf(body, name);
  auto it = known.find({(of ? of : body.getPieces()).getAsOpaquePointer(), slice, name.str()});
  return it == known.end() ? nullptr : &it->second;
}

/// Those of a group that comes in; nothing if nobody has made it.
std::optional<Layouts> LayoutVerifier::layoutsOf(BodyAttr body, GroupName name, TupleType payload) const {
  auto all = [&](DeviceLayout layout) { return Layouts(payload.size(), layout); };
  StringAttr maker = before ? PieceOp(before).getBodiesAttr() : StringAttr();
  auto given = [&](GroupName of, StringAttr by = {}) {
    const Layouts *layouts = find(body, of, by);
    return layouts ? std::optional(*layouts) : std::nullopt;
  };
  auto gradientOf = [&](GroupName of) {
    auto layouts = given(of);
    return layouts ? std::optional(transposed(*layouts)) : std::nullopt;
  };
  if (name.data())
    return all(ofExperts() || payload.size() == 0 ? DeviceLayout::of(LayoutKind::none)
                                                  : nn::layoutOfData(payload.getType(0)));
  switch (name.kind) {
  case GroupKind::weight:
    return ofWeights(/*isGradient=*/false);
  case GroupKind::grad:
    return ofWeights(/*isGradient=*/true);
  case GroupKind::act: // what skips parts is whole
    return name.number >= 0 || !maker ? all(ofRows()) : given(name, maker);
  case GroupKind::dact:
    return name.number >= 0 ? all(ofRows()) : gradientOf(GroupKind::act);
  case GroupKind::dkeys:
    return gradientOf(GroupKind::keys);
  case GroupKind::kv:
    if (auto own = given(name))
      return own;
    return maker ? given(GroupKind::keys, maker) : std::nullopt;
  case GroupKind::dkv: {
    auto keys = layoutsOf(body, GroupName(GroupKind::kv, name.number, name.attention), payload);
    return keys ? std::optional(transposed(*keys)) : std::nullopt;
  }
  case GroupKind::dstate:
    return gradientOf(GroupName(GroupKind::state, name.number, name.attention));
  case GroupKind::stats:
    return all(ofRows());
  case GroupKind::loss:
    return all(ofLosses());
  case GroupKind::norm:
    return all(DeviceLayout::of(LayoutKind::full));
  default:
    return given(name);
  }
}

/// An error unless the value leaves in the layout that its readers expect.
LogicalResult LayoutVerifier::record(func::FuncOp function, BodyAttr body, GroupName name, const Layouts &layouts) {
  std::optional<Layouts> expected;
  SmallVector<Type> types(layouts.size(), Float32Type::get(module.getContext()));
  auto payload = TupleType::get(module.getContext(), types);
  if (llvm::is_contained({GroupKind::grad, GroupKind::loss, GroupKind::stats, GroupKind::dstate}, name.kind))
    expected = layoutsOf(body, name, payload);
  else if (name.kind == GroupKind::dact) // that of what came in
    if (auto came = layoutsOf(body, GroupName(GroupKind::act, name.number), payload))
      expected = transposed(*came);
  if (!expected) {
    known[{body.getPieces().getAsOpaquePointer(), sliceOf(body, name), name.str()}] = layouts;
    return success();
  }
  for (auto [i, layout] : llvm::enumerate(layouts))
    if (i < expected->size() && layout.kind != LayoutKind::none && layout != (*expected)[i])
      return function.emitOpError() << "returns tensor " << i << " of `" << name.str() << "` as " << layout.text()
                                    << " over `" << stringifyAxis(axis) << " = " << devices << "`; expected "
                                    << (*expected)[i].text();
  return success();
}

LogicalResult LayoutVerifier::verify(BodyAttr body, func::FuncOp function) {
  if (function.empty())
    return success();
  FailureOr<BodyGroups> groups = BodyGroups::get(function);
  if (failed(groups))
    return failure();
  llvm::DenseMap<Value, DeviceLayout> layouts;
  for (const BodyGroups::Group &group : groups->inputs) {
    std::optional<Layouts> given = layoutsOf(body, group.name, group.payload);
    if (!given || given->size() < group.payload.size())
      return function.emitOpError() << "reads `" << group.name.str()
                                    << "`, which no body returned whose layouts are known";
    for (size_t i = 0; i < group.payload.size(); ++i)
      layouts[function.getArgument(group.first + i)] = (*given)[i];
  }
  for (Operation &op : function.front().without_terminator()) {
    Layouts operands = llvm::map_to_vector(op.getOperands(), [&](Value value) { return layouts.lookup(value); });
    auto results = nn::inferLayouts(&op, operands, axis, /*isOfDevice=*/true);
    if (!results) {
      auto error = op.emitOpError() << "in `" << function.getName() << "` has no rule for `" << stringifyAxis(axis)
                                    << " = " << devices << "`";
      for (auto [i, layout] : llvm::enumerate(operands))
        error << (i == 0 ? ": operand 0 is " : i == 1 ? ", operand 1 is " : ", then ") << layout.text();
      error << nn::whatCounts(&op, axis);
      if (auto stated = dyn_cast<nn::Factored>(op))
        error << "; its factors are `" << stated.factorText() << "`";
      return error;
    }
    for (auto [result, layout] : llvm::zip(op.getResults(), *results))
      layouts[result] = layout;
  }
  for (const BodyGroups::Group &group : groups->results) {
    Layouts made;
    for (size_t i = 0; i < group.payload.size(); ++i)
      made.push_back(layouts.lookup(function.front().getTerminator()->getOperand(group.first + i)));
    if (failed(record(function, body, group.name, made)))
      return failure();
  }
  return success();
}

/// A part of a backward attention has the queries of a forward one of its piece: two runs, or whole sequences.
LogicalResult LayoutVerifier::verifyParts() {
  std::set<std::pair<const void *, int64_t>> forward; // by pieces: `zigzag`
  for (bool reads : {false, true})
    for (auto function : module.getOps<func::FuncOp>()) {
      auto body = function->getAttrOfType<BodyAttr>(kBodyAttr);
      if (!body)
        continue;
      const void *pieces = body.getPieces().getAsOpaquePointer();
      for (auto part : function.getOps<nn::Attends>())
        if (std::pair key(pieces, static_cast<int64_t>(part.getZigzag())); isa<nn::Differentiable>(*part))
          forward.insert(key);
        else if (reads && body.getCut() && !forward.count(key))
          return part->emitOpError() << "in `" << function.getName() << "` has `zigzag = " << part.getZigzag()
                                     << "`, which no forward attention of its piece has";
    }
  return success();
}

/// Makers before readers: phases in the order F, R, I, B, W; of slices the keys come first. Updates add and divide
/// what lies at one place, and units that are cut at their attentions have the ops of those that are not, with the rows
/// that verifyParts asks for.
LogicalResult LayoutVerifier::run() {
  if (devices == 1)
    return success();
  if (isContext() && failed(verifyParts()))
    return failure();
  std::map<const void *, Bodies> bodies;
  for (auto function : module.getOps<func::FuncOp>())
    if (auto body = function->getAttrOfType<BodyAttr>(kBodyAttr); body && !body.getCut() && body.getPhase() != Phase::U)
      bodies[body.getPieces().getAsOpaquePointer()].push_back({body, function});
  auto placeOf = [](BodyAttr body) {
    static constexpr Phase kOrder[] = {Phase::F, Phase::R, Phase::I, Phase::B, Phase::W};
    return std::tuple(llvm::find(kOrder, body.getPhase()) - kOrder, body.getSlice(), body.getVariant());
  };
  for (PieceOp next : program.getOps<PieceOp>()) {
    bool isBeside = piece && next.getVocabularyAttr() && piece.getVocabularyAttr() && // another shard of one part
                    next.getCoord().getPart() == piece.getCoord().getPart();
    before = isBeside ? before : piece;
    piece = next;
    Bodies &own = bodies[piece.getBodiesAttr().getAsOpaquePointer()];
    llvm::stable_sort(own, [&](auto &a, auto &b) { return placeOf(a.first) < placeOf(b.first); });
    for (auto [body, function] : own)
      if (failed(verify(body, function)))
        return failure();
  }
  return success();
}

namespace {
struct VerifyLayouts : public pp::impl::VerifyLayoutsBase<VerifyLayouts> {
  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      for (Axis axis : {Axis::tensor, Axis::context, Axis::expert})
        if (failed(LayoutVerifier(getOperation(), program, axis).run()))
          return signalPassFailure();
  }
};
} // namespace
