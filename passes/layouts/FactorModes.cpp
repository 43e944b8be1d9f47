// The layouts in which an op can compute, by the factors that it states: in pieces of one, alike, or on terms of a sum.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   cut k of   x: b s k, w: k n -> y: b s n       x is shard 2, w is shard 0: y, which lacks k, is partial
//   cut n      x is a copy, w is shard 1, y is shard 2
//   rows       x has its own s, w is a copy: y is rows
//
// Where the axis has more devices than pieces, the neighbours with one piece go on among themselves: alike, as copies,
// on terms, or in pieces of the factor inside the one that is cut.
#include "dialect/Factors.h"
#include "dialect/formula/Formula.h"
#include "passes/layouts/Layouts.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;

namespace pp::nn {
using LayoutKind = DeviceLayout::Kind;
using Port = FactorRule::Port;

namespace {

/// What a device has of a value along one factor: its piece, a copy, a term of a sum, or it and all its gradient.
enum class State : uint8_t { piece, copy, term, alike };

struct Mode {
  SmallVector<DeviceLayout> operands, results;
};

/// One op, with a port for each operand and result that it has.
struct StatedOp {
  Operation *op;
  Axis axis;
  FactorRule rule;
  std::vector<Port> operands, results;
  SmallVector<std::pair<unsigned, unsigned>> ties; ///< a result, and the operand in which it goes on
  int64_t blocks = 1;                              ///< that lie side by side in the widest tensor
  bool knowsRuns = false;                          ///< which two runs of each sequence a device has
  int64_t keys = 1;                                ///< heads of keys of a device

  bool counts() const { return countsBy(op, axis); }
  bool goesAlongSequences() const {
    return isa<AttentionOp, AttentionBwdOp, AttentionDeltaOp, SinkOp, SinkBwdOp, ScanOp, ScanBwdOp, ConvOp, ConvDxOp,
               ConvDwOp>(op);
  }
};

using States = SmallVector<State>;

class Modes {
public:
  Modes(const StatedOp &its, int64_t copies, int64_t runs)
      : its(its), rule(its.rule), axis(its.axis), copies(copies), runs(runs) {}
  SmallVector<Mode> take();

private:
  /// A way for the neighbours with one piece: the states of operands and results, and the factor that they cut, or -1.
  struct Minor {
    States operands, results;
    int cut = -1;
  };

  std::pair<States, States> statesOf(int factor) const;
  std::pair<States, States> all(State state) const {
    return {States(its.operands.size(), state), States(its.results.size(), state)};
  }
  SmallVector<std::pair<States, States>> terms() const;
  SmallVector<Minor> minors(int factor) const;
  bool isOffered(int factor) const;
  bool canBeBlocks(int factor) const;
  bool fits(ArrayRef<int> cut) const;
  bool hasRows() const;
  std::optional<DeviceLayout> layoutOf(const Port &port, int factor, State state, State minor, int64_t level,
                                       int64_t blocks) const;
  void addWhole(const std::pair<States, States> &states);
  void addCut(int factor, const Minor &minor, int64_t level, int64_t blocks);
  bool is(int factor, ArrayRef<llvm::StringRef> names) const {
    return llvm::is_contained(names, rule.factors[factor].name);
  }

  const StatedOp &its;
  const FactorRule &rule;
  Axis axis;
  int64_t copies, runs;
  SmallVector<Mode> modes;
};

} // namespace

static DeviceLayout layoutOf(State state) {
  return DeviceLayout::of(state == State::copy   ? LayoutKind::copy
                          : state == State::term ? LayoutKind::partial
                                                 : LayoutKind::full);
}

/// Of a result that lacks a factor which operands have, a term; what is added to is as what comes of it.
std::pair<States, States> Modes::statesOf(int factor) const {
  auto has = [&](const Port &port) { return port.has(factor); };
  State without = llvm::any_of(its.operands, has) ? State::term : State::copy;
  std::pair<States, States> states;
  for (const Port &port : its.operands)
    states.first.push_back(has(port) ? State::piece : State::copy);
  for (const Port &port : its.results)
    states.second.push_back(has(port) ? State::piece : without);
  for (auto [result, operand] : its.ties)
    states.first[operand] = states.second[result];
  return states;
}

/// Terms in the operands in which the op is linear, and copies of the others.
SmallVector<std::pair<States, States>> Modes::terms() const {
  if (!rule.isLinear && rule.linearIn.empty())
    return {};
  auto states = all(State::term);
  for (auto [port, state] : llvm::zip(its.operands, states.first))
    if (port.isData || (!rule.isLinear && !llvm::is_contained(rule.linearIn, port.name)))
      state = State::copy;
  return {states};
}

SmallVector<Modes::Minor> Modes::minors(int factor) const {
  SmallVector<Minor> ways;
  for (State state : {State::alike, State::copy}) {
    auto [operands, results] = all(state);
    ways.push_back({operands, results});
  }
  for (auto [operands, results] : terms())
    ways.push_back({operands, results});
  for (int inner = 0; inner < static_cast<int>(rule.factors.size()); ++inner) {
    auto isBehind = [&](const Port &port) {
      return llvm::any_of(port.dims, [&](ArrayRef<int> dim) {
        auto at = llvm::find(dim, factor);
        return at != dim.end() && at + 1 != dim.end() && at[1] == inner;
      });
    };
    if (rule.factors[inner].isWhole || (its.keys > 1 && rule.factors[factor].name == "g") ||
        !(llvm::any_of(its.operands, isBehind) || llvm::any_of(its.results, isBehind)))
      continue;
    auto [operands, results] = statesOf(inner);
    ways.push_back({operands, results, inner});
  }
  return ways;
}

/// Whether the axis cuts this factor: `tensor` cuts columns, `expert` experts, and `context` heads or columns of what
/// goes along sequences.
bool Modes::isOffered(int factor) const {
  if (rule.factors[factor].isWhole || (is(factor, {"b", "s", "S", "u", "o"}) && !rule.isEach))
    return false;
  if (axis == Axis::context)
    return ((is(factor, {"g", "h", "c"}) && its.goesAlongSequences()) || rule.isEach) &&
           !(rule.counts && its.knowsRuns);
  return axis == Axis::expert ? is(factor, {"x"}) || rule.isEach : !is(factor, {"x"});
}

/// A factor that is nobody's head may be blocks that lie side by side, each cut for itself (q|k|v).
bool Modes::canBeBlocks(int factor) const {
  auto isOuter = [&](const Port &port) {
    return llvm::all_of(port.dims,
                        [&](ArrayRef<int> dim) { return !llvm::is_contained(dim, factor) || dim[0] == factor; });
  };
  return axis == Axis::tensor && runs > 1 && !is(factor, {"g", "r", "h", "x", "v", "p", "b", "s"}) &&
         llvm::all_of(its.operands, isOuter) && llvm::all_of(its.results, isOuter);
}

/// An op that counts from a device's place does so where the factor that it counts is cut, and nowhere else.
bool Modes::fits(ArrayRef<int> cut) const {
  auto isCounted = [&](int factor) { return factor >= 0 && rule.factors[factor].isCounted; };
  return llvm::none_of(rule.factors, [](auto &factor) { return factor.isCounted; }) ||
         llvm::any_of(cut, isCounted) == its.counts();
}

bool Modes::hasRows() const {
  int s = rule.numberOf("s");
  auto has = [&](const Port &port) { return port.has(s); };
  if (s < 0 || rule.factors[s].isWhole || !(llvm::any_of(its.operands, has) || llvm::any_of(its.results, has)))
    return false;
  if (axis == Axis::context)
    return !rule.counts || its.knowsRuns;
  return axis == Axis::expert || (!rule.counts && !rule.isRanked && llvm::none_of(its.operands, [&](const Port &port) {
           return port.isData && port.has(s);
         }));
}

std::optional<DeviceLayout> Modes::layoutOf(const Port &port, int factor, State state, State minor, int64_t level,
                                            int64_t blocks) const {
  if (port.isData && axis != Axis::expert)
    return DeviceLayout::of(LayoutKind::none);
  if (state != State::piece)
    return level == 1 || state == minor ? std::optional(nn::layoutOf(state)) : std::nullopt;
  for (auto [d, dim] : llvm::enumerate(port.dims)) {
    auto at = llvm::find(dim, factor);
    if (at == dim.end())
      continue;
    for (int outer : ArrayRef<int>(dim.begin(), at)) {
      if (outer >= 0)
        return std::nullopt;
      blocks *= its.blocks;
    }
    if (level > 1 && minor != State::piece)
      return DeviceLayout::shard(static_cast<int64_t>(d), blocks, level, nn::layoutOf(minor).kind);
    return DeviceLayout::shard(static_cast<int64_t>(d), blocks);
  }
  return std::nullopt;
}

void Modes::addWhole(const std::pair<States, States> &states) {
  auto layouts = [&](ArrayRef<Port> ports, ArrayRef<State> own) {
    SmallVector<DeviceLayout> made;
    for (auto [port, state] : llvm::zip(ports, own))
      made.push_back(port.isData && axis != Axis::expert ? DeviceLayout::of(LayoutKind::none)
                     : state == State::piece             ? DeviceLayout::of(LayoutKind::rows)
                                                         : nn::layoutOf(state));
    return made;
  };
  modes.push_back({layouts(its.operands, states.first), layouts(its.results, states.second)});
}

void Modes::addCut(int factor, const Minor &minor, int64_t level, int64_t blocks) {
  auto [operands, results] = statesOf(factor);
  Minor beside = minor;
  for (auto [result, operand] : its.ties)
    beside.operands[operand] = beside.results[result];
  Mode mode;
  auto add = [&](SmallVector<DeviceLayout> &to, ArrayRef<Port> ports, const States &major, const States &inner) {
    for (auto [port, state, minor] : llvm::zip(ports, major, inner)) {
      std::optional<DeviceLayout> layout = layoutOf(port, factor, state, minor, level, blocks);
      if (!layout)
        return false;
      to.push_back(*layout);
    }
    return true;
  };
  if (fits({factor, minor.cut}) && add(mode.operands, its.operands, operands, beside.operands) &&
      add(mode.results, its.results, results, beside.results))
    modes.push_back(std::move(mode));
}

SmallVector<Mode> Modes::take() {
  if (axis == Axis::tensor && fits({}))
    addWhole(all(State::alike));
  if (hasRows() && fits({}))
    addWhole(statesOf(rule.numberOf("s")));
  if ((rule.isLinear || rule.copies) && fits({})) {
    for (const auto &states : terms())
      addWhole(states);
    addWhole(all(State::copy));
  }
  for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor) {
    if (!isOffered(factor))
      continue;
    auto [operands, results] = statesOf(factor);
    addCut(factor, {operands, results}, 1, 1);
    if (canBeBlocks(factor))
      addCut(factor, {operands, results}, 1, runs);
    for (const Minor &minor : axis == Axis::expert || copies == 1 ? SmallVector<Minor>() : minors(factor)) {
      addCut(factor, minor, copies, 1);
      if (canBeBlocks(factor) && minor.cut < 0)
        addCut(factor, minor, copies, runs);
    }
  }
  return std::move(modes);
}

//===-- Statements of ops ---------------------------------------------------------------------------------------===//

/// The ports of the values that the op has: of each group of its definition as many as there are.
static std::vector<Port> portsOf(ArrayRef<FactorRule::Group> groups, ValueRange values, FactorRule &rule,
                                 llvm::function_ref<std::pair<unsigned, unsigned>(unsigned)> place) {
  std::vector<Port> ports(values.size());
  for (auto [k, group] : llvm::enumerate(groups)) {
    auto [first, count] = place(k);
    for (unsigned i = 0; i < count; ++i) {
      Port &port = ports[first + i] = group[i % group.size()];
      auto type = cast<RankedTensorType>(values[first + i].getType());
      port.isData |= type.getElementType().isInteger(32);
      for (int64_t d = 0; port.isEach && d < type.getRank(); ++d) {
        std::string name = d < 3 ? std::string(1, "bsc"[d]) : "e" + std::to_string(d);
        if (rule.numberOf(name) < 0)
          rule.factors.push_back({name});
        port.dims.push_back({rule.numberOf(name)});
      }
    }
  }
  return ports;
}

/// How many of the narrowest tensor's blocks the widest one has.
static int64_t blocksOf(const StatedOp &its) {
  int64_t wide = 1, narrow = 1;
  auto see = [&](ArrayRef<Port> ports, ValueRange values) {
    for (auto [port, value] : llvm::zip(ports, values))
      if (auto shape = cast<RankedTensorType>(value.getType()).getShape(); !port.isData && !shape.empty())
        (port.has(-1) ? wide : narrow) = shape.back();
  };
  see(its.operands, its.op->getOperands());
  see(its.results, its.op->getResults());
  return std::max<int64_t>(wide / narrow, 1);
}

/// The statement, read once; a unit test reads all of them.
static const FactorRule &ruleOf(llvm::StringRef text) {
  static thread_local llvm::StringMap<FactorRule> known;
  auto [it, isNew] = known.try_emplace(text);
  std::string why;
  if (isNew)
    it->second = *parseFactors(text, why);
  return it->second;
}

static StatedOp statementOf(Factored factored, Axis axis, llvm::StringRef text) {
  Operation *op = factored;
  StatedOp its{op, axis, ruleOf(text), {}, {}, {}};
  its.operands =
      portsOf(its.rule.operands, op->getOperands(), its.rule, [&](unsigned k) { return factored.operandsAt(k); });
  its.results =
      portsOf(its.rule.results, op->getResults(), its.rule, [&](unsigned k) { return factored.resultsAt(k); });
  llvm::DenseSet<unsigned> taken;
  for (auto [i, result] : llvm::enumerate(its.results))
    for (auto [k, operand] : llvm::enumerate(its.operands))
      if (!result.into.empty() && operand.name == result.into && taken.insert(k).second) {
        its.ties.push_back({i, k});
        break;
      }
  its.blocks = blocksOf(its);
  auto zigzag = op->getAttrOfType<IntegerAttr>("zigzag");
  its.knowsRuns = zigzag && zigzag.getInt() > 0;
  if (auto attention = dyn_cast<Attends>(op))
    its.keys = attention.countKeyHeads();
  return its;
}

SmallVector<CutSize, 2> cutSizesOf(Operation *op, ArrayRef<DeviceLayout> operands) {
  SmallVector<CutSize, 2> sizes;
  auto factored = dyn_cast<Factored>(op);
  llvm::StringRef text = factored ? factored.factorText() : "";
  if (!factored || ruleOf(text).sizes.empty())
    return sizes;
  const StatedOp its = statementOf(factored, Axis::tensor, text);
  auto isWhole = [&](int factor) { return its.rule.factors[factor].isWhole; };
  for (const auto &[attribute, counted] : ruleOf(text).sizes) {
    std::optional<CutSize> found;
    for (auto [i, port] : llvm::enumerate(its.operands))
      for (ArrayRef<int> dim : port.dims) {
        dim = dim.drop_while([](int factor) { return factor < 0; });
        bool isInner = !llvm::all_of(dim.drop_front(std::min(counted.size(), dim.size())), isWhole);
        if (dim.take_front(counted.size()) == ArrayRef(counted) && (!found || (found->isInner && !isInner)))
          found = {attribute, static_cast<unsigned>(i), isInner};
      }
    if (found && operands[found->operand].kind == LayoutKind::shard)
      sizes.push_back(*found);
  }
  return sizes;
}

void cutSizes(Operation *op, ArrayRef<DeviceLayout> operands, int64_t devices, NamedAttrList &attributes) {
  Builder builder(op->getContext());
  for (const CutSize &size : cutSizesOf(op, operands)) {
    auto share = [&](int64_t whole) { return localSize(whole, operands[size.operand], devices); };
    Attribute whole = attributes.get(size.attribute);
    if (auto list = dyn_cast_or_null<DenseI64ArrayAttr>(whole))
      attributes.set(size.attribute, builder.getDenseI64ArrayAttr(llvm::map_to_vector(list.asArrayRef(), share)));
    else if (auto count = dyn_cast_or_null<IntegerAttr>(whole); count && count.getInt() > 0)
      attributes.set(size.attribute, builder.getI64IntegerAttr(share(count.getInt())));
  }
}

std::optional<int64_t> dimOfColumns(Operation *op, unsigned operand) {
  auto factored = cast<Factored>(op);
  const StatedOp its = statementOf(factored, Axis::tensor, factored.factorText());
  const Port &port = its.operands[operand];
  auto isCut = [&](int factor) {
    const FactorRule::Factor &of = its.rule.factors[factor];
    return !of.isWhole && of.name != "b" && of.name != "s";
  };
  for (auto [i, dim] : llvm::enumerate(port.dims))
    if (!port.isData && llvm::any_of(dim, isCut))
      return i;
  return std::nullopt;
}

static bool areOf(const Mode &mode, ArrayRef<DeviceLayout> given, const StatedOp &its) {
  auto isWhole = [](const DeviceLayout &layout) {
    return layout == DeviceLayout::of(LayoutKind::full) || layout == DeviceLayout::of(LayoutKind::copy);
  };
  return llvm::all_of(llvm::zip(mode.operands, given, its.operands), [&](auto each) {
    auto &[wanted, layout, port] = each;
    if (layout.kind == LayoutKind::data) // each device has all of its rows, and counts it once
      return isWhole(wanted) || wanted.kind == LayoutKind::none ||
             (its.axis == Axis::context && wanted.kind == LayoutKind::rows);
    return layout.kind == LayoutKind::none || layout == wanted ||
           (port.hasNoGradient && isWhole(layout) && isWhole(wanted));
  });
}

/// What states no factors is computed alike everywhere, where every device has all of it.
static std::optional<SmallVector<DeviceLayout>> alike(Operation *op, ArrayRef<DeviceLayout> operands) {
  bool isWhole = llvm::all_of(operands, [](const DeviceLayout &layout) {
    return layout.kind == LayoutKind::full || layout.kind == LayoutKind::none;
  });
  return isWhole ? std::optional(SmallVector<DeviceLayout>(op->getNumResults(), DeviceLayout::of(LayoutKind::full)))
                 : std::nullopt;
}

std::optional<SmallVector<DeviceLayout>> layoutsByFactors(Operation *op, ArrayRef<DeviceLayout> operands, Axis axis,
                                                          bool isOfDevice) {
  auto factored = dyn_cast<Factored>(op);
  if (!factored)
    return axis == Axis::tensor ? alike(op, operands) : std::nullopt;
  llvm::StringRef text = isOfDevice ? factored.factorTextOfDevice() : factored.factorText();
  if (text.empty())
    return std::nullopt;
  StatedOp its = statementOf(factored, axis, text);
  int64_t copies = 1, runs = 1;
  for (const DeviceLayout &layout : operands)
    if (layout.kind == LayoutKind::shard)
      copies = std::max(copies, layout.copies), runs = std::max(runs, layout.runs);
  for (Mode &mode : Modes(its, copies, runs).take())
    if (areOf(mode, operands, its))
      return std::move(mode.results);
  return std::nullopt;
}

} // namespace pp::nn
