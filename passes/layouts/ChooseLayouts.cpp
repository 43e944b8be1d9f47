// Chooses layouts on the tensor axis by dynamic programming over the ops of a layer, or of a part outside the layers.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   a: full ─▶ spread ─▶ copy ─▶ linear w shard 1 ─▶ shard 2 ─▶ attention ─▶ shard 2 ─▶ linear wo shard 0 ─▶ partial
//                                                                                    ─▶ all_reduce ─▶ y: full
//
// A state is what is known behind an op: the layout of each live value, and the other forms in which it is there. The
// rules of the ops (passes/layouts/Layouts.h) say how it can go on. Every weight of two or more dimensions is cut if
// its reader has a rule for that; without this constraint the cheapest choice would be to cut none. The weights that
// `lora` adds are small and may be whole. With `inRows` what one layer hands to the next, and the norms and sums on the
// way, are runs of rows (Korthikanti et al. 2022, 4.2.2): gathered before the products, scattered behind them. A
// formula that reduces over columns that are cut gathers them. A part with `nn.whole` has whole weights on every
// device: it computes alike everywhere, or of a run of rows its own. Its inputs that are columns are gathered, and a
// cut part that reads its result takes columns of it. Of two ways to the same state the cheaper one is kept. The cost
// of a way is compared by the products of a device, then by the bytes that come to it in forward and backward, then by
// the number of exchanges. Of equal ways the one that was found first is kept.
#include "passes/layouts/ChooseLayouts.h"
#include "dialect/pipeline/Clauses.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace pp;
using nn::DeviceLayout;
using LayoutKind = DeviceLayout::Kind;

static bool hasAttribute(BlockArgument argument, StringRef name) {
  auto part = cast<func::FuncOp>(argument.getOwner()->getParentOp());
  return part.getArgAttr(argument.getArgNumber(), name) != nullptr;
}

static BlockArgument weightOf(Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  return argument && hasAttribute(argument, nn::kWeightAttr) ? argument : BlockArgument();
}

SmallVector<BlockArgument> pp::flowOf(func::FuncOp part) {
  SmallVector<BlockArgument> flow;
  for (BlockArgument argument : part.getArguments())
    if (llvm::none_of(ArrayRef<StringRef>{nn::kWeightAttr, nn::kDataAttr, nn::kStatsAttr, nn::kFromAttr},
                      [&](StringRef name) { return hasAttribute(argument, name); }))
      flow.push_back(argument);
  return flow;
}

/// Its linear makes logits: those of tokens beyond the vocabulary do not exist.
static bool makesLogits(Operation *reader) {
  if (isa<nn::TransposeOp>(reader))
    return llvm::all_of(reader->getUsers(), makesLogits);
  auto linear = dyn_cast<nn::LinearOp>(reader);
  return linear && llvm::all_of(linear->getUsers(), llvm::IsaPred<nn::ReadsLogits>);
}

/// An activation, of [batch, length, width]: with `inRows` a device may have a run of its rows.
static bool hasRows(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  auto argument = dyn_cast<BlockArgument>(value);
  bool isActivation = !argument || !(hasAttribute(argument, nn::kWeightAttr) || hasAttribute(argument, nn::kDataAttr));
  return isActivation && type && type.getRank() == 3 && isa<FloatType>(type.getElementType());
}

bool pp::isVocabulary(Value weight, const DeviceLayout &layout) {
  return llvm::all_of(weight.getUsers(), [&](Operation *reader) {
    return (isa<nn::EmbeddingOp>(reader) && layout.dim == 0) || makesLogits(reader);
  });
}

/// Every device of the axis has the whole weights of this op's part.
static bool isOfWholePart(Operation *op) { return op->getParentOfType<func::FuncOp>()->hasAttr(nn::kWholeAttr); }

/// In how many runs of one width it cuts all columns; 0 if it does not.
static int64_t equalRuns(nn::SplitOp split) {
  return split.getPeriods() == 1 && llvm::all_equal(split.runWidths()) ? split.getNumResults() : 0;
}

/// Whether each device has whole heads, or periods, of an op that reads them one by one; of one period nobody could
/// tell that it is one.
static bool hasWholeRuns(Operation *op, ArrayRef<DeviceLayout> operands, int64_t devices) {
  return llvm::all_of(nn::cutSizesOf(op, operands), [&](const nn::CutSize &size) {
    auto count = op->getAttrOfType<IntegerAttr>(size.attribute);
    int64_t pieces = devices / operands[size.operand].copies;
    return !count || size.isInner || count.getInt() == 0 ||
           (count.getInt() % pieces == 0 && (size.attribute != "periods" || count.getInt() > pieces));
  });
}

namespace {

/// What one choice costs, compared in this order.
struct Price {
  double work = 0, received = 0, exchanges = 0;
  bool operator<(const Price &other) const {
    return std::tie(work, received, exchanges) < std::tie(other.work, other.received, other.exchanges);
  }
};

struct State {
  llvm::MapVector<Value, SmallVector<DeviceLayout>> forms; ///< of live values; the first is that of the value itself
  Price price;
  std::vector<LayoutChoice::Step> steps;
  SmallVector<std::pair<Value, DeviceLayout>> arguments;
};

class Chooser {
public:
  Chooser(ArrayRef<func::FuncOp> parts, int64_t devices, bool inRows)
      : parts(parts), devices(devices), inRows(inRows) {}
  FailureOr<LayoutChoice> run();

private:
  /// By what is known behind an op, in the order in which it was found.
  struct States : std::vector<std::pair<std::string, State>> {
    void keep(const std::string &key, const State &state) {
      auto known = llvm::find_if(*this, [&](auto &entry) { return entry.first == key; });
      if (known == end())
        emplace_back(key, state);
      else if (state.price < known->second.price)
        known->second = state;
    }
  };

  void enter(State &state, func::FuncOp part, ArrayRef<DeviceLayout> before) const;
  bool takesColumns(const State &state, Operation *op, Value operand) const;
  SmallVector<DeviceLayout> candidates(const State &state, Operation *op, Value operand) const;
  void choose(const State &state, Operation *op, SmallVectorImpl<DeviceLayout> &chosen, States &next) const;
  void step(const State &state, Operation *op, ArrayRef<DeviceLayout> chosen, States &next) const;
  std::optional<SmallVector<DeviceLayout>> results(Operation *op, ArrayRef<DeviceLayout> chosen) const;
  bool convert(State &state, Value value, const DeviceLayout &wanted) const;
  bool convertRows(State &state, Value value, const DeviceLayout &wanted) const;
  /// What parts hand to each other, where it is not cut otherwise.
  DeviceLayout boundary(Value value) const {
    return DeviceLayout::of(inRows && hasRows(value) ? LayoutKind::rows : LayoutKind::full);
  }
  SmallVector<DeviceLayout> returned(State &state, func::FuncOp part) const;
  LogicalResult refuse(Operation *op, const State &state) const;
  /// The share of a whole value that comes to a device when all devices hand it around once.
  double share() const { return static_cast<double>(devices - 1) / static_cast<double>(devices); }

  ArrayRef<func::FuncOp> parts;
  int64_t devices;
  bool inRows;
  SmallVector<int64_t> runs = {1};   ///< blocks in which columns may be cut
  SmallVector<int64_t> copies = {1}; ///< neighbours that may have one piece
  llvm::DenseSet<Value> fromWhole;   ///< arguments that come from a part with whole weights
};

} // namespace

/// Integers have no layout; what comes from other parts by name, and statistics, are whole.
void Chooser::enter(State &state, func::FuncOp part, ArrayRef<DeviceLayout> before) const {
  state.forms.clear();
  SmallVector<BlockArgument> flow = flowOf(part);
  for (BlockArgument argument : part.getArguments()) {
    if (hasAttribute(argument, nn::kWeightAttr))
      continue;
    auto *place = llvm::find(flow, argument);
    DeviceLayout layout = hasAttribute(argument, nn::kDataAttr) ? nn::layoutOfData(argument.getType())
                                                                : DeviceLayout::of(LayoutKind::full);
    if (place != flow.end() && static_cast<size_t>(place - flow.begin()) < before.size())
      layout = before[place - flow.begin()];
    else if (place != flow.end())
      layout = boundary(argument);
    state.forms[argument] = {layout};
    state.arguments.push_back({argument, layout});
  }
}

static int64_t lastDimOf(Value value) { return cast<RankedTensorType>(value.getType()).getRank() - 1; }

/// In a part that is cut: a value that a part with whole weights has computed alike on every device.
bool Chooser::takesColumns(const State &state, Operation *op, Value operand) const {
  auto argument = dyn_cast<BlockArgument>(operand);
  auto type = dyn_cast<RankedTensorType>(operand.getType());
  LayoutKind kind = state.forms.find(operand)->second.front().kind;
  bool comesFromWhole = argument && fromWhole.contains(argument);
  return comesFromWhole && !isOfWholePart(op) && (kind == LayoutKind::full || kind == LayoutKind::rows) && type &&
         type.getRank() > 1 && type.getShape().back() % devices == 0;
}

/// The layouts in which an op may ask for this operand.
SmallVector<DeviceLayout> Chooser::candidates(const State &state, Operation *op, Value operand) const {
  auto known = state.forms.find(operand);
  if (known != state.forms.end()) {
    SmallVector<DeviceLayout> all = known->second;
    DeviceLayout first = all.front(), columns = DeviceLayout::shard(lastDimOf(operand));
    auto add = [&](const DeviceLayout &layout) {
      if (!llvm::is_contained(all, layout))
        all.push_back(layout);
    };
    bool isGathered = isOfWholePart(op) && (first.kind == LayoutKind::rows || (first == columns && !weightOf(operand)));
    if (isGathered && isa<nn::RunsToHeadsOp, nn::RepeatHeadsOp>(op)) // else heads would be in another order, or more
      return {DeviceLayout::of(LayoutKind::full)};
    bool mayReduce = !weightOf(operand) && // over whole rows
                     ((isa<nn::MapOp>(op) && first == columns) ||
                      (isa<nn::MapOp, nn::TokenStatsOp>(op) && first.kind == LayoutKind::rows));
    if (first.kind == LayoutKind::partial || isGathered || mayReduce ||
        isa<nn::RouterOp>(op)) // a router's choices are everybody's
      add(DeviceLayout::of(LayoutKind::full));
    if (takesColumns(state, op, operand))
      add(columns);
    bool canHaveRows = inRows && hasRows(operand);
    if (canHaveRows && (first.kind == LayoutKind::partial || first.kind == LayoutKind::full))
      add(DeviceLayout::of(LayoutKind::rows));
    if (first.kind == LayoutKind::partial || first.kind == LayoutKind::full || first.kind == LayoutKind::rows)
      add(DeviceLayout::of(LayoutKind::copy));
    if (first.kind == LayoutKind::shard && first.copies > 1 && weightOf(operand))
      add(DeviceLayout::shard(first.dim, first.runs, first.copies, LayoutKind::copy));
    return all;
  }
  int64_t rank = cast<RankedTensorType>(operand.getType()).getRank();
  if (isOfWholePart(op))
    return {DeviceLayout::of(LayoutKind::full), DeviceLayout::of(LayoutKind::copy)};
  bool isColumn = cast<RankedTensorType>(operand.getType()).getShape().back() == 1; // a gate of one number a token
  SmallVector<DeviceLayout> all;
  for (int64_t dim = 0; dim < rank - isColumn; ++dim)
    for (int64_t run : runs)
      for (int64_t copy : copies)
        all.push_back(DeviceLayout::shard(dim, run, copy, copy > 1 ? LayoutKind::copy : LayoutKind::full));
  if (rank == 1 || isColumn || isa<nn::PositionsOp, nn::RouterOp, nn::ExpertBiasOp>(op) ||
      hasAttribute(cast<BlockArgument>(operand), nn::kAdapterAttr)) {
    all.push_back(DeviceLayout::of(LayoutKind::full));
    all.push_back(DeviceLayout::of(LayoutKind::copy));
  }
  return all;
}

/// The layout that the weight has in memory, if an op reads it in this layout.
static DeviceLayout asKept(DeviceLayout layout) {
  layout.among = LayoutKind::full;
  return layout.kind == LayoutKind::copy ? DeviceLayout::of(LayoutKind::full) : layout;
}

/// Makes the value there in this form, if a conversion leads to it; counts what that moves in forward and backward.
bool Chooser::convert(State &state, Value value, const DeviceLayout &wanted) const {
  auto &forms = state.forms[value];
  if (forms.empty()) {
    forms.push_back(asKept(wanted));
    state.arguments.push_back({value, forms.front()});
  }
  if (llvm::is_contained(forms, wanted))
    return true;
  DeviceLayout full = DeviceLayout::of(LayoutKind::full), rows = DeviceLayout::of(LayoutKind::rows);
  bool takes = wanted.kind == LayoutKind::shard && fromWhole.contains(value);
  bool gathers = forms.front().kind == LayoutKind::shard && wanted == full;
  if (takes && !llvm::is_contained(forms, full) && !convertRows(state, value, full))
    return false;
  if (takes || gathers) { // take_columns, whose derivative is an all_gather; and the other way round
    state.price.received += share() * static_cast<double>(cast<RankedTensorType>(value.getType()).getNumElements());
    state.price.exchanges += 1;
    forms.push_back(wanted);
    return true;
  }
  if (wanted == rows || (forms.front() != full && llvm::is_contained(forms, rows)))
    return convertRows(state, value, wanted);
  double bytes = static_cast<double>(cast<RankedTensorType>(value.getType()).getNumElements());
  auto pay = [&] {
    state.price.received += 2 * share() * bytes;
    state.price.exchanges += 1;
  };
  if (forms.front().kind == LayoutKind::partial && !llvm::is_contained(forms, full)) {
    forms.push_back(full); // all_reduce
    pay();
    if (wanted == full)
      return true;
  }
  bool isSpread = wanted.kind == LayoutKind::copy && llvm::is_contained(forms, full);
  if (!isSpread && !(wanted.among == LayoutKind::copy && asKept(wanted) == forms.front()))
    return false;
  forms.push_back(wanted); // spread, whose derivative is an all_reduce
  pay();
  return true;
}

/// The same to and from runs of rows. Of a value that is a run all rows are gathered for products, which divide the
/// work that follows; as a whole only where it leaves the parts.
bool Chooser::convertRows(State &state, Value value, const DeviceLayout &wanted) const {
  auto &forms = state.forms[value];
  DeviceLayout rows = DeviceLayout::of(LayoutKind::rows);
  double bytes = static_cast<double>(cast<RankedTensorType>(value.getType()).getNumElements());
  auto pay = [&](double times) {
    state.price.received += times * share() * bytes;
    state.price.exchanges += times;
  };
  if (!llvm::is_contained(forms, rows)) {
    bool isSum = forms.front().kind == LayoutKind::partial; // scatter_rows, or take_rows, and the gradient's gather
    if (!isSum && forms.front().kind != LayoutKind::full)
      return false;
    forms.push_back(rows);
    pay(isSum ? 2 : 1);
  }
  if (wanted == rows)
    return true;
  if (wanted.kind != LayoutKind::copy && wanted.kind != LayoutKind::full)
    return false;
  forms.push_back(wanted); // gather_rows
  pay(wanted.kind == LayoutKind::copy ? 2 : 1);
  return true;
}

/// The layouts of results once SplitParts has changed the op for a device's part. A piece of a table gets its first
/// row, so results are terms. Losses that are cut by the vocabulary get their exchange, so the result is whole. Of
/// copied keys a device gets the one head that it reads.
std::optional<SmallVector<DeviceLayout>> Chooser::results(Operation *op, ArrayRef<DeviceLayout> chosen) const {
  if (isa<nn::ReadsLogits>(op) && chosen.front() == DeviceLayout::shard(2))
    return SmallVector<DeviceLayout>(op->getNumResults(), DeviceLayout::of(LayoutKind::full));
  if (auto attention = dyn_cast<nn::Attends>(op); attention && chosen[1].kind == LayoutKind::shard) {
    int64_t heads = attention.countKeyHeads();
    if (chosen[1].copies != std::max<int64_t>(1, devices / heads) || // each device has whole heads of keys
        !llvm::all_equal(chosen.slice(1, attention.getKv().size())))
      return std::nullopt;
    DeviceLayout copied = DeviceLayout::shard(2, 1, chosen[1].copies, LayoutKind::copy);
    SmallVector<DeviceLayout> own(chosen);
    std::replace(own.begin() + 1, own.end(), copied, DeviceLayout::shard(2)); // queries are never copies
    return nn::inferLayouts(op, own, Axis::tensor);
  }
  if (isa<nn::EmbeddingOp>(op) && chosen[1] == DeviceLayout::shard(0))
    return SmallVector<DeviceLayout>{DeviceLayout::of(LayoutKind::partial)};
  return hasWholeRuns(op, chosen, devices) ? nn::inferLayouts(op, chosen, Axis::tensor) : std::nullopt;
}

void Chooser::step(const State &state, Operation *op, ArrayRef<DeviceLayout> chosen, States &next) const {
  std::optional<SmallVector<DeviceLayout>> made = results(op, chosen);
  if (!made)
    return;
  State after = state;
  for (auto [operand, layout] : llvm::zip(op->getOperands(), chosen))
    if (layout.kind != LayoutKind::none && !convert(after, operand, layout))
      return;
  bool isWhole = isOfWholePart(op);
  bool isCut = llvm::any_of(chosen, [&](const DeviceLayout &layout) {
    return layout.kind == LayoutKind::shard || (isWhole && layout.kind == LayoutKind::rows);
  });
  if (isa<nn::Product, nn::Attends>(op))
    after.price.work += cast<nn::Kernel>(op).flops() / static_cast<double>(isCut ? devices : 1);
  for (auto [result, layout] : llvm::zip(op->getResults(), *made))
    after.forms[result] = {layout};
  after.steps.push_back({SmallVector<DeviceLayout>(chosen), *made});
  std::string key;
  SmallVector<Value> dead;
  for (auto &[value, forms] : after.forms) {
    bool isRead = llvm::any_of(value.getUsers(), [&](Operation *user) { return op->isBeforeInBlock(user); });
    if (!isRead) {
      dead.push_back(value);
      continue;
    }
    key += std::to_string(reinterpret_cast<uintptr_t>(value.getAsOpaquePointer())) + ":";
    for (const DeviceLayout &form : forms)
      key += form.text() + ";";
  }
  for (Value value : dead)
    after.forms.erase(value);
  next.keep(key, after);
}

void Chooser::choose(const State &state, Operation *op, SmallVectorImpl<DeviceLayout> &chosen, States &next) const {
  if (chosen.size() == op->getNumOperands())
    return step(state, op, chosen, next);
  Value operand = op->getOperand(chosen.size());
  bool isAlike = isa<nn::CrossEntropyMergeOp>(op); // statistics of all shards of a vocabulary, as many as ranks
  for (unsigned i = 0; i < chosen.size(); ++i)
    if (isAlike || op->getOperand(i) == operand) { // twice the same value
      chosen.push_back(DeviceLayout(chosen[i]));
      choose(state, op, chosen, next);
      chosen.pop_back();
      return;
    }
  for (const DeviceLayout &layout : candidates(state, op, operand)) {
    chosen.push_back(layout);
    choose(state, op, chosen, next);
    chosen.pop_back();
  }
}

/// What the part returns: no sums that are not added up, and whole values where the next reader may be any part.
SmallVector<DeviceLayout> Chooser::returned(State &state, func::FuncOp part) const {
  auto skips = part->getAttrOfType<ArrayAttr>(nn::kSkipsAttr);
  auto values = part.front().getTerminator()->getOperands();
  size_t handed = values.size() - (skips ? skips.size() : 0), followed = part == parts.back() ? 0 : handed;
  SmallVector<DeviceLayout> layouts;
  for (auto [i, value] : llvm::enumerate(values)) {
    DeviceLayout first = state.forms[value].front();
    bool isAlike = part->hasAttr(nn::kWholeAttr) && first.kind == LayoutKind::full;
    bool stays = first.kind == LayoutKind::none || ((first.kind == LayoutKind::shard || isAlike) && i < followed);
    layouts.push_back(stays ? first : i < handed ? boundary(value) : DeviceLayout::of(LayoutKind::full));
    if (!stays && !convert(state, value, layouts.back()))
      return {};
  }
  state.steps.push_back({layouts, {}});
  return layouts;
}

/// Masks count the elements of a row, and a device with a piece of it has no number for the first one.
static LogicalResult refuseDropout(nn::DropoutOp dropout, int64_t devices) {
  auto part = dropout->getParentOfType<func::FuncOp>();
  Location at = dropout.getLoc();
  std::string who = ("`dropout` in part `" + part.getName() + "`").str(), what = "what it drops";
  for (Operation *user : dropout->getUsers())
    for (Value operand : user->getOperands()) {
      auto argument = dyn_cast<BlockArgument>(operand);
      if (!argument || !hasAttribute(argument, nn::kAdapterAttr))
        continue;
      who = "`lora.dropout`";
      at = clauseLoc(part, "lora.dropout", at);
      what = "what `" + part.getArgAttrOfType<nn::WeightAttr>(argument.getArgNumber(), nn::kWeightAttr).getAs().str() +
             "` reads";
    }
  return emitError(at) << who << ": `tensor = " << devices << "` cuts " << what
                       << ", and dropout of a cut tensor is not built yet";
}

LogicalResult Chooser::refuse(Operation *op, const State &state) const {
  if (auto dropout = dyn_cast<nn::DropoutOp>(op))
    return refuseDropout(dropout, devices);
  auto part = op->getParentOfType<func::FuncOp>();
  auto error = op->emitError() << "`" << op->getName().stripDialect() << "` in part `" << part.getName()
                               << "` has no rule for `tensor = " << devices << "`";
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    auto known = state.forms.find(operand);
    if (known == state.forms.end())
      continue;
    error << (i == 0 ? ": " : ", ") << "operand " << i << " is " << known->second.front().text();
  }
  if (isa<nn::RmsnormOp>(op))
    error << "; of columns that are cut each device norms whole heads";
  if (isa<nn::ScanOp>(op))
    error << "; of heads that are cut each device scans whole ones, with their heads of q and k";
  if (isa<nn::SplitOp, nn::ConcatOp, nn::PadOp>(op))
    error << "; of columns that are cut each device has a piece of each of equal runs, or two or more whole periods";
  StringRef name = part.getName().substr(part.getName().rfind('.') + 1); // without the kind of its layers
  error << "; `mesh of " << name << " tensor = 1` (`-D mesh." << name
        << ".tensor=1`) gives every device all weights of the part";
  return error;
}

FailureOr<LayoutChoice> Chooser::run() {
  for (size_t i = 1; i < parts.size(); ++i)
    if (func::FuncOp(parts[i - 1])->hasAttr(nn::kWholeAttr))
      for (BlockArgument argument : flowOf(parts[i]))
        fromWhole.insert(argument);
  for (func::FuncOp part : parts)
    part.walk([&](Operation *op) {
      if (auto split = dyn_cast<nn::SplitOp>(op); split && equalRuns(split) > 1)
        runs.push_back(equalRuns(split));
      if (auto attention = dyn_cast<nn::Attends>(op); attention && devices > attention.countKeyHeads())
        copies.push_back(devices / attention.countKeyHeads());
    });
  for (auto *list : {&runs, &copies}) {
    llvm::sort(*list);
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  std::vector<std::pair<State, SmallVector<DeviceLayout>>> ends = {{State(), {}}}; // with what the part before returned
  for (func::FuncOp part : parts) {
    States states;
    for (auto &[state, before] : ends) {
      enter(state, part, before);
      std::string key;
      for (const DeviceLayout &layout : before)
        key += layout.text() + ";";
      states.keep(key, state);
    }
    for (Operation &op : part.front().without_terminator()) {
      States next;
      SmallVector<DeviceLayout> chosen;
      for (auto &[key, state] : states)
        choose(state, &op, chosen, next);
      if (next.empty())
        return refuse(&op, states.front().second);
      states = std::move(next);
    }
    ends.clear();
    for (auto &[key, state] : states)
      if (SmallVector<DeviceLayout> layouts = returned(state, part);
          layouts.size() == part.front().getTerminator()->getNumOperands())
        ends.push_back({state, layouts});
    if (ends.empty())
      return refuse(part.front().getTerminator(), states.front().second);
  }
  State &best = llvm::min_element(ends, [](auto &a, auto &b) { return a.first.price < b.first.price; })->first;
  LayoutChoice choice;
  size_t next = 0;
  for (func::FuncOp part : parts)
    for (Operation &op : part.front())
      choice.steps[&op] = best.steps[next++];
  for (auto &[argument, layout] : best.arguments)
    choice.arguments[argument] = layout;
  return choice;
}

LogicalResult pp::checkHeads(nn::Attends attention, int64_t devices) {
  auto fail = [&](const Twine &why) {
    return refuseClause(attention, "mesh.tensor",
                        "`attention` in part `" + attention->getParentOfType<func::FuncOp>().getName() + "` has " +
                            why);
  };
  int64_t heads = attention.getHeads(), keys = attention.countKeyHeads();
  if (heads % devices != 0)
    return fail(Twine(heads) + " heads; `tensor = " + Twine(devices) + "` does not divide them");
  if (keys % devices != 0 && devices % keys != 0)
    return fail(Twine(keys) + " heads of keys; `tensor = " + Twine(devices) +
                "` neither divides them nor is a multiple of them");
  return success();
}

pipeline::Again pp::againOf(func::FuncOp part, pipeline::MeshAttr mesh) {
  auto its = part->getAttrOfType<StringAttr>(nn::kAgainAttr);
  return its ? *pipeline::symbolizeAgain(its.getValue()) : mesh.getAgain();
}

pipeline::Meeting pp::meetingOf(func::FuncOp part, pipeline::MeshAttr mesh) {
  auto its = part->getAttrOfType<StringAttr>(nn::kAttentionAttr);
  return its ? *pipeline::symbolizeMeeting(its.getValue()) : mesh.getAttention();
}

FailureOr<LayoutChoice> pp::chooseLayouts(ArrayRef<func::FuncOp> parts, int64_t devices, bool inRows) {
  for (func::FuncOp part : parts)
    for (auto attention : func::FuncOp(part).getOps<nn::Attends>())
      if (!isOfWholePart(attention) && failed(checkHeads(attention, devices)))
        return failure();
  return Chooser(parts, devices, inRows).run();
}
