// Compares the JSON texts of a lowered program with its rank programs, pieces and attributes (runtime/Program.h).
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "lowering/CheckTexts.h"
#include "analysis/Actions.h"
#include "analysis/Fingerprint.h"
#include "analysis/Optimizer.h"
#include "analysis/lives/Scratch.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/IR/Function.h"
#include <nlohmann/json.hpp>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
using JsonValue = nlohmann::json; // without an order of keys: two texts that say the same are equal

//===-- Words ---------------------------------------------------------------------------------------------------===//

LogicalResult pp::reportDifference(Location loc, int64_t rank, const Twine &where, const Twine &expected,
                                   const Twine &got) {
  return emitError(loc) << "rank " << rank << " is not lowered as it was proved: " << where << ": expected " << expected
                        << ", got " << got << "; this is a fault of pp-compile";
}

LogicalResult pp::compareCalls(Location loc, int64_t rank, const Twine &where, StringRef callee,
                               ArrayRef<CallOperand> expected, const ReadCall &got) {
  StringRef name = got.callee->getName();
  if (name != callee)
    return reportDifference(loc, rank, where, "`" + callee + "`", "`" + name + "`");
  if (got.operands.size() != expected.size() || !got.callee->getReturnType()->isIntegerTy(32))
    return reportDifference(loc, rank, where + ", `" + name + "`", Twine(expected.size()) + " operands",
                            Twine(got.operands.size()));
  for (auto [i, pair] : llvm::enumerate(llvm::zip(expected, got.operands)))
    if (auto &[want, have] = pair; !(want == have))
      return reportDifference(loc, rank, where + ", operand " + Twine(i) + " of `" + name + "`", want.str(),
                              have.str());
  return success();
}

int64_t pp::slotBegin(SlotOp slot) {
  constexpr uint64_t kPage = 4096;
  int64_t offset = static_cast<int64_t>(slot.getOffset().value_or(0));
  if (!slot.getHost())
    return offset;
  return offset +
         static_cast<int64_t>(llvm::alignTo(slot->getParentOfType<RankOp>().getArenaBytes().value_or(0), kPage));
}

/// `{"a":1,..}`, cut where it is long.
static std::string shortened(const JsonValue &json) {
  std::string text = json.is_discarded() ? "nothing" : json.dump();
  if (text.size() > 300)
    text.replace(297, std::string::npos, "...");
  return text;
}

static std::string nameOfType(Type type) {
  if (type.isF32())
    return "f32";
  if (type.isF64())
    return "f64";
  if (type.isBF16())
    return "bf16";
  return type.isF16() ? "f16" : type.isInteger(32) ? "i32" : "unknown";
}

static JsonValue numbers(ArrayRef<int64_t> values) { return std::vector<int64_t>(values.begin(), values.end()); }

/// The value of an attribute in JSON.
static JsonValue inWords(Attribute attr) {
  JsonValue json;
  if (auto entries = dyn_cast_or_null<ArrayAttr>(attr)) {
    json = JsonValue::array();
    for (Attribute entry : entries)
      json.push_back(inWords(entry));
  } else if (auto entries = dyn_cast_or_null<DictionaryAttr>(attr)) {
    json = JsonValue::object();
    for (NamedAttribute entry : entries)
      json[entry.getName().str()] = inWords(entry.getValue());
  } else if (auto text = dyn_cast_or_null<StringAttr>(attr))
    json = text.str();
  else if (auto truth = dyn_cast_or_null<BoolAttr>(attr))
    json = truth.getValue();
  else if (auto number = dyn_cast_or_null<IntegerAttr>(attr))
    json = number.getInt();
  else if (auto real = dyn_cast_or_null<FloatAttr>(attr))
    json = real.getValueAsDouble();
  return json;
}

//===-- A rank --------------------------------------------------------------------------------------------------===//

struct TextCheck::State {
  RankOp rank;
  ProgramOp program;
  int64_t number;
  JsonValue text;
  Pieces pieces;
  llvm::StringMap<PieceOp> named;  ///< the pieces by their symbols
  llvm::BitVector kernels;         ///< entries of `ops` that a body names
  llvm::StringMap<size_t> entries; ///< by table: how many are compared
  JsonValue forward;               ///< what the text must say of the forward program, lists apart; null without one

  State(RankOp rank, StringRef json)
      : rank(rank), program(rank->getParentOfType<ProgramOp>()), number(static_cast<int64_t>(rank.getRank())),
        text(JsonValue::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false)), pieces(program) {
    for (auto piece : program.getOps<PieceOp>())
      named[piece.getSymName()] = piece;
  }

  /// The table with this name; `forward.inputs` is the table `inputs` of the forward program.
  const JsonValue *find(StringRef key) const {
    auto [in, table] = key.contains('.') ? key.split('.') : std::pair(StringRef(), key);
    const JsonValue *object = in.empty() ? &text : find(in);
    auto found = object ? object->find(table.str()) : text.end();
    return !object || found == object->end() ? nullptr : &*found;
  }
  /// Of what is compared now.
  StringRef ownTable(StringRef table, StringRef inForward) const { return forward.is_null() ? table : inForward; }

  LogicalResult compare(Location loc, const Twine &where, const JsonValue &expected, const JsonValue *got) {
    if (got && *got == expected)
      return success();
    return reportDifference(loc, number, where, shortened(expected), got ? shortened(*got) : "nothing");
  }

  /// The next entry of a table.
  LogicalResult compareNext(Location loc, StringRef table, const JsonValue &expected) {
    size_t next = entries[table]++;
    return compareEntry(loc, table, static_cast<int64_t>(next), expected);
  }

  LogicalResult compareEntry(Location loc, StringRef table, int64_t index, const JsonValue &expected) {
    const JsonValue *list = find(table);
    bool exists = list && list->is_array() && index >= 0 && index < static_cast<int64_t>(list->size());
    return compare(loc, "entry " + Twine(index) + " of `" + table + "`", expected, exists ? &(*list)[index] : nullptr);
  }

  /// The source lines of an entry; empty if it has none.
  std::string linesOf(StringRef table, int64_t index) const {
    const JsonValue *list = find(table);
    if (!list || !list->is_array() || index < 0 || index >= static_cast<int64_t>(list->size()))
      return "";
    const JsonValue &entry = (*list)[static_cast<size_t>(index)];
    auto lines = entry.is_object() ? entry.find("line") : entry.end();
    return lines != entry.end() && lines->is_string() ? lines->get<std::string>() : "";
  }

  LogicalResult compareWeights(SlotOp slot, BindingKind kind);

  /// Devices along axes of the mesh, in the order of their coordinates.
  int64_t devicesAlong(nn::AxesAttr axes) {
    int64_t devices = 1;
    for (nn::Axis axis : axes.getAxes())
      devices *= program.sizeOf(axis);
    return devices;
  }
  static JsonValue namesOf(nn::AxesAttr axes) {
    JsonValue names = JsonValue::array();
    for (nn::Axis axis : axes.getAxes())
      names.push_back(nn::stringifyAxis(axis).str());
    return names;
  }

  /// A number that each device along `data` has for itself; along the other axes it may count once.
  JsonValue byReplica(const nn::Varying &number);

  /// A size that each device has for itself.
  JsonValue byDevice(const nn::Varying &size, int64_t first) {
    if (!size.ofShards.empty())
      return byReplica(size);
    int64_t devices = devicesAlong(size.axes);
    std::vector<int64_t> all(devices, 0);
    if (size.once)
      for (int64_t at = 0; at < devices; at += size.copies ? size.copies : devices)
        all[at] = first;
    for (int64_t at = 0; !size.once && at < devices; ++at)
      all[at] = first + at * size.step;
    return {{"by", namesOf(size.axes)}, {"of", all}};
  }
};

/// Axes along which devices sum a gradient, so that a table over them has its members in the order of their numbers.
static JsonValue namesOfSummed(ProgramOp program) {
  MeshAttr mesh = program.getMeshAttr();
  std::vector<std::pair<int64_t, std::string>> axes;
  for (Axis axis : {Axis::context, Axis::data})
    if (mesh && mesh.sizeOf(axis) > 1)
      axes.push_back({-mesh.stride(axis), stringifyAxis(axis).str()});
  llvm::sort(axes);
  JsonValue names = JsonValue::array();
  for (auto &[stride, name] : axes)
    names.push_back(name);
  return names;
}

JsonValue TextCheck::State::byReplica(const nn::Varying &number) {
  const int64_t others = number.axes ? devicesAlong(number.axes) : 1, copies = number.copies ? number.copies : others;
  JsonValue names = number.axes ? namesOf(number.axes) : JsonValue::array(), all = JsonValue::array();
  for (const JsonValue &axis : namesOfSummed(program))
    names.push_back(axis);
  for (int64_t i = 0; i < others * static_cast<int64_t>(number.ofShards.size()); ++i)
    all.push_back(i / static_cast<int64_t>(number.ofShards.size()) % copies == 0 || !number.once
                      ? number.ofShards[i % number.ofShards.size()]
                      : 0);
  return {{"by", names}, {"of", all}};
}

TextCheck::TextCheck(RankOp rank, StringRef text) : state(std::make_unique<State>(rank, text)) {}
TextCheck::~TextCheck() = default;

LogicalResult TextCheck::checkHead(RankOp forward) {
  RankOp rank = state->rank;
  if (!state->text.is_object())
    return reportDifference(rank.getLoc(), state->number, "its text", "a JSON object", "something else");
  int64_t arena = static_cast<int64_t>(rank.getArenaBytes().value_or(0));
  int64_t host = static_cast<int64_t>(rank.getHostBytes().value_or(0));
  RankScratch scratch = scratchOf(rank, forward);
  JsonValue expected = {{"rank", state->number},
                        {"arena_bytes", arena},
                        {"kernel_bytes", scratch.kernels},
                        {"message_bytes", scratch.messages}};
  if (scratch.targetWeights > 0)
    expected["target_weight_bytes"] = scratch.targetWeights;
  if (rank->getParentOfType<ProgramOp>().getTarget() == "cuda") {
    expected["nccl_bytes"] = scratch.nccl;
    expected["nccl_multiprocessors"] = scratch.multiprocessors;
    expected["nccl_multiprocessors_of_collectives"] = scratch.multiprocessorsOfCollectives;
  }
  if (host > 0) {
    expected["arena_bytes"] = (arena + 4095) / 4096 * 4096 + host;
    expected["host_bytes"] = host;
  }
  if (auto peak = rank.getPeakAttr())
    expected["peak"] = inWords(peak);
  JsonValue head = state->text;
  for (const char *table :
       {"ops", "units", "messages", "weights", "state", "grads", "inputs", "losses", "norm", "forward"})
    head.erase(table);
  if (const JsonValue *ops = state->find("ops"); ops && ops->is_array())
    state->kernels.resize(ops->size());
  return state->compare(rank.getLoc(), "the head of its text", expected, &head);
}

LogicalResult TextCheck::checkUnit(LaunchOp launch, int64_t number, double flops) {
  UnitIdAttr unit = launch.getUnit();
  JsonValue expected = {{"name", unit.cell()},
                        {"phase", stringifyPhase(unit.getPhase()).str()},
                        {"task", launch.getCallee().str()},
                        {"microbatch", unit.getCoord().getMicrobatch()},
                        {"flops", flops}};
  if (std::string line = lineOf(launch.getLoc()); !line.empty())
    expected["line"] = line;
  state->entries["units"] = static_cast<size_t>(number + 1);
  return state->compareEntry(launch.getLoc(), "units", number, expected);
}

LogicalResult TextCheck::checkMessage(PostOp post, int64_t number) {
  TupleType payload = post.getSlot().getType().getPayload();
  int64_t tensors = static_cast<int64_t>(post.getTensors().value_or(payload.size()));
  int64_t bytes = payloadOffsets(payload)[tensors];
  JsonValue expected = {{"kind", stringifyPostKind(post.getKind()).str()},
                        {"label", post.getThing().str()},
                        {"channel", post.getChannel().value_or(0)}};
  if (std::string line = lineOf(post.getLoc()); !line.empty())
    expected["line"] = line;
  if (post.isHost())
    expected["host"] = true;
  if (!post.isCollective()) {
    if (post.getPeers().size() != 1)
      return reportDifference(post.getLoc(), state->number, "a message", "one peer", Twine(post.getPeers().size()));
    expected.update({{"peer", post.getPeers().front()}, {"bytes", bytes}});
    if (auto slot = post.getSlot().getDefiningOp<SlotOp>(); !post.isHost() && !slot.getHost())
      expected["offset"] = slotBegin(slot);
  } else {
    auto first = cast<RankedTensorType>(payload.getType(0));
    Type element = first.getElementType();
    // A sum is one over elements of one type; what is broadcast or gathered is bytes.
    bool isSum = post.getKind() != PostKind::broadcast && post.getKind() != PostKind::all_gather;
    for (Type type : payload.getTypes())
      if (Type other = cast<RankedTensorType>(type).getElementType(); isSum && other != element)
        return reportDifference(post.getLoc(), state->number, "a sum", "one type", nameOfType(other));
    bool isOne = tensors == 1 && !post.getCuts();
    int64_t width = tensorBytes(RankedTensorType::get({1}, element));
    expected.update({{"group", numbers(post.getPeers())},
                     {"root", post.getRoot() ? static_cast<int64_t>(*post.getRoot()) : -1},
                     {"count", isOne ? first.getNumElements() : bytes / width},
                     {"type", nameOfType(element)}});
    if (post.getCuts())
      expected["cuts"] = numbers(*post.getCuts());
    for (Axis axis : post.getAxes() ? post.getAxesAttr().getAxes() : ArrayRef<Axis>())
      expected["axes"].push_back(stringifyAxis(axis).str());
  }
  state->entries["messages"] = static_cast<size_t>(number + 1);
  return state->compareEntry(post.getLoc(), "messages", number, expected);
}

int64_t TextCheck::countMessages() const { return static_cast<int64_t>(state->entries.lookup("messages")); }

LogicalResult TextCheck::checkExchange(nn::Exchange exchange, int64_t number) {
  nn::AxesAttr axes = exchange.getAxes();
  bool scatter = exchange.getKind() == nn::ExchangeKind::reduce_scatter;
  bool zigzag = isa<nn::GatherRunsOp, nn::ScatterRunsOp>(exchange);
  Value given = exchange->getOperand(0), made = exchange->getResult(0);
  auto whole = cast<RankedTensorType>((scatter ? given : made).getType());
  int64_t channel = 1073741824 + 64 * exchange.countNeighbours();
  for (nn::Axis axis : axes.getAxes())
    channel += axis == nn::Axis::tensor    ? 1
               : axis == nn::Axis::context ? 2
               : axis == nn::Axis::data    ? 4
               : axis == nn::Axis::expert  ? 16
                                           : 32;
  std::string label;
  for (auto [i, extent] : llvm::enumerate(whole.getShape()))
    label += (i ? "x" : "") + std::to_string(extent);
  JsonValue expected = {{"kind", "all_reduce"},
                        {"root", -1},
                        {"group", numbers(state->number)},
                        {"channel", channel},
                        {"count", whole.getNumElements()},
                        {"type", whole.getElementType().isInteger(32) ? "f32" : nameOfType(whole.getElementType())},
                        {"axes", State::namesOf(axes)},
                        {"inside", true},
                        {"label", label}};
  if (exchange.countNeighbours() > 0)
    expected["neighbours"] = exchange.countNeighbours();
  auto members = exchange->getAttrOfType<IntegerAttr>("members");
  bool sums = exchange.getKind() == nn::ExchangeKind::all_reduce,
       swaps = exchange.getKind() == nn::ExchangeKind::all_to_all;
  if (!sums && (!members || state->devicesAlong(axes) != members.getInt()))
    return reportDifference(exchange.getLoc(), state->number, "a gather, a scatter or an all-to-all",
                            Twine(state->devicesAlong(axes)) + " members", Twine(members ? members.getInt() : 0));
  if (isa<nn::ExchangeSectionsOp>(exchange)) {
    expected["kind"] = "all_to_all";
    expected["to"] = "sections";
  } else if (swaps) {
    int64_t before = cast<RankedTensorType>(given.getType()).getDimSize(1), after = whole.getDimSize(1);
    expected["kind"] = "all_to_all";
    expected["sequences"] = whole.getDimSize(0);
    expected["length"] = std::max(before, after);
    expected["to"] = after > before ? "columns" : "runs";
  } else if (!sums) {
    expected["kind"] = scatter ? "reduce_scatter" : "all_gather";
    int64_t run = tensorBytes(cast<RankedTensorType>((scatter ? made : given).getType()));
    if (zigzag) { // half of what a device has of each sequence
      run /= 2 * whole.getDimSize(0);
      expected["zigzag"] = true;
    }
    if (auto gather = dyn_cast<nn::AllGatherOp>(exchange.getOperation()))
      for (int64_t i = 0; i < static_cast<int64_t>(gather.getDim()); ++i)
        run /= whole.getDimSize(i);
    for (int64_t cut = 0; cut <= tensorBytes(whole); cut += run)
      expected["cuts"].push_back(cut);
  }
  if (std::string line = lineOf(exchange.getLoc()); !line.empty()) {
    std::string lines = state->linesOf("messages", number); // one entry stands for all equal exchanges
    expected["line"] = StringRef(", " + lines + ",").contains(", " + line + ",") ? lines : line;
  }
  size_t &count = state->entries["messages"];
  count = std::max(count, static_cast<size_t>(number + 1));
  return state->compareEntry(exchange.getLoc(), "messages", number, expected);
}

LogicalResult TextCheck::checkKernel(Operation *op, int64_t number, const ExpectedKernel &kernel) {
  JsonValue flags = JsonValue::array(), params = JsonValue::array();
  for (StringRef flag : kernel.flags)
    flags.push_back(flag.str());
  for (double param : kernel.params)
    params.push_back(param);
  JsonValue expected = {
      {"kernel", kernel.kernel}, {"type", nameOfType(kernel.type)}, {"params", params}, {"flags", flags}};
  expected["dims"] = numbers(kernel.dims);
  for (auto [i, its] : kernel.varying)
    expected["dims"][i] = state->byDevice(its, kernel.dims[i]);
  for (auto [i, its] : kernel.varied)
    expected["params"][i] = state->byDevice(its, 0);
  for (auto [i, its] : kernel.moved) {
    while (!expected.contains("moved") || expected["moved"].size() <= i)
      expected["moved"].push_back(0);
    expected["moved"][i] = state->byDevice(its, 0);
  }
  if (failed(state->compareEntry(op->getLoc(), "ops", number, expected)))
    return failure();
  state->kernels.set(static_cast<unsigned>(number));
  return success();
}

void TextCheck::beginForward(int64_t units, int64_t messages, bool exists) {
  if (exists)
    state->forward = {{"units", units}, {"messages", messages}};
}

LogicalResult TextCheck::finish() {
  Location loc = state->rank.getLoc();
  SmallVector<StringRef> tables = {"units", "messages", "weights", "state", "grads", "inputs", "losses"};
  JsonValue own = state->text.value("forward", JsonValue());
  for (StringRef table : {"forward.inputs", "forward.losses"})
    if (!state->forward.is_null()) {
      tables.push_back(table);
      state->forward[table.split('.').second.str()] = state->find(table) ? *state->find(table) : JsonValue();
    }
  if (failed(state->compare(loc, "`forward` of its text", state->forward, &own)))
    return failure();
  for (StringRef table : tables) {
    const JsonValue *list = state->find(table);
    size_t count = list && list->is_array() ? list->size() : 0;
    if (!list || !list->is_array() || count != state->entries[table])
      return reportDifference(loc, state->number, "`" + table + "`", Twine(state->entries[table]) + " entries",
                              list && list->is_array() ? Twine(count) : Twine("no list"));
  }
  const JsonValue *ops = state->find("ops");
  if (!ops || !ops->is_array() || !state->kernels.all())
    return reportDifference(loc, state->number, "`ops`", "kernels that its bodies call", "others");
  if (state->find("norm") && state->entries["norm"] == 0)
    return reportDifference(loc, state->number, "`norm`", "nothing", shortened(state->text["norm"]));
  return success();
}

//===-- Slots ---------------------------------------------------------------------------------------------------===//

LogicalResult TextCheck::checkSlot(SlotOp slot) {
  BindingAttr binding = slot.getBindingAttr();
  if (!binding)
    return success();
  BindingKind kind = binding.getKind();
  if (kind == BindingKind::undo)
    return success();
  if (binding.getPiece()) // the forward program's are those of the training program, as prove-slots has shown
    return state->forward.is_null() ? state->compareWeights(slot, kind) : success();
  JsonValue expected = {{"offset", static_cast<int64_t>(slot.getOffset().value_or(0))}};
  if (kind == BindingKind::norm) {
    ++state->entries["norm"];
    return state->compare(slot.getLoc(), "`norm`", expected, state->find("norm"));
  }
  expected["microbatch"] = binding.getMicrobatch();
  auto tensor = cast<RankedTensorType>(slot.getSlot().getType().getPayload().getType(0));
  if (kind == BindingKind::loss) {
    expected["type"] = nameOfType(tensor.getElementType());
    auto named = slot->getParentOfType<ProgramOp>().getTrain().getAs<ArrayAttr>("reports");
    const size_t tensors = slot.getSlot().getType().getPayload().size(), reports = named ? named.size() : 0;
    if (tensors == 2 + reports) // each tensor begins on a line of its own
      expected["further"] = expected["offset"].get<int64_t>() + 64;
    for (size_t i = 0; i < reports; ++i)
      expected["reports"].push_back(expected["offset"].get<int64_t>() +
                                    64 * static_cast<int64_t>(tensors - reports + i));
    for (auto [number, its] : llvm::enumerate(slot.getSlot().getType().getPayload().getTypes()))
      if (cast<RankedTensorType>(its).getDimSize(0) == 2) // the second one is the z-loss
        expected["z"].push_back(expected["offset"].get<int64_t>() + 64 * static_cast<int64_t>(number) +
                                (tensor.getElementType().isF64() ? 8 : 4));
    return state->compareNext(slot.getLoc(), state->ownTable("losses", "forward.losses"), expected);
  }
  expected["kind"] = stringifyBindingKind(kind).str();
  if (binding.getFirst() >= 0)
    expected.update({{"first", binding.getFirst()}, {"length", tensor.getDimSize(1)}});
  if (kind == BindingKind::column)
    expected["column"] = binding.getNumber();
  else if (int64_t places = binding.getNumber())
    expected["ahead"] = places;
  return state->compareNext(slot.getLoc(), state->ownTable("inputs", "forward.inputs"), expected);
}

/// A tensor [outer, runs, run, inner] of which each device has [outer, runs, piece, inner], from another place on. The
/// rank itself may have a part of the `whole` cut dimension, which begins with number `first` of it.
static JsonValue pieceOf(nn::CutAttr cut, int64_t devices, ArrayRef<int64_t> whole, int64_t first) {
  const int64_t dim = cut.getDim(), runs = cut.getRuns(), run = cut.getWhole()[dim] / runs, copies = cut.getCopies();
  const int64_t piece = (run * copies + devices - 1) / devices;
  auto inner = [&](int64_t from) {
    int64_t elements = 1;
    for (int64_t extent : whole.drop_front(from))
      elements *= extent;
    return elements;
  };
  JsonValue dims = JsonValue::array(), bases = JsonValue::array(), rests = JsonValue::array();
  bool isPadded = piece * (devices / copies) != run;
  for (int64_t device = 0; device < devices; ++device) {
    int64_t rest = std::max<int64_t>(run - device / copies * piece, 0);
    bases.push_back((first + run - rest) * inner(dim + 1));
    rests.push_back(std::min(rest, piece));
  }
  JsonValue by = {"tensor"}, last = {{"by", by}, {"of", rests}};
  for (int64_t i = 0; i < static_cast<int64_t>(whole.size()); ++i) {
    int64_t stride = inner(i + 1);
    if (i == dim && runs > 1)
      dims.push_back(numbers({runs, run * stride, runs}));
    dims.push_back(numbers({i == dim ? piece : whole[i], stride, i == dim ? piece : whole[i]}));
    if (i == dim && isPadded)
      dims.back()[2] = last;
  }
  JsonValue part = {{"shape", numbers(whole)}, {"base", {{"by", by}, {"of", bases}}}, {"dims", dims}};
  if (copies > 1)
    part["copies"] = copies;
  return part;
}

/// Which part of the whole tensor lies in a slot: nothing where it is all of it.
static JsonValue partOf(PieceOp piece, WeightAttr weight, bool isShard, ElementRange range) {
  JsonValue part = JsonValue::object();
  VocabularyAttr vocabulary = piece.getVocabularyAttr();
  nn::CutAttr cut = weight.getDeclared().getCut();
  if (cut)
    part =
        pieceOf(cut, piece->getParentOfType<ProgramOp>().sizeOf(Axis::tensor),
                vocabulary ? vocabulary.getWhole().getShape() : cut.getWhole(), vocabulary ? vocabulary.getFirst() : 0);
  if (isShard)
    part.update({{"begin", range.begin}, {"count", range.count}});
  if (!vocabulary || cut)
    return part;
  ArrayRef<int64_t> whole = vocabulary.getWhole().getShape(), here = weight.getType().getShape();
  int64_t first = vocabulary.getFirst(), count = weight.getType().getNumElements();
  part["shape"] = numbers(whole);
  part["count"] = count;
  if (whole.drop_front() == here.drop_front()) { // some of its rows
    part["begin"] = first * (count / here.front());
    return part;
  }
  part.update({{"begin", first}, {"run", here.back()}, {"stride", whole.back()}});
  return part;
}

/// Describes a tensor of which each device along `expert` has an equal run of experts, or a range of their elements.
static JsonValue expertsOf(WeightAttr weight, ElementRange range, int64_t offset) {
  int64_t devices = weight.getDeclared().getExperts(), own = weight.getType().getNumElements();
  std::vector<int64_t> shape(weight.getType().getShape()), begins;
  if (nn::CutAttr cut = weight.getDeclared().getCut())
    shape.assign(cut.getWhole().begin(), cut.getWhole().end());
  shape.front() *= devices;
  for (int64_t device = 0; device < devices; ++device)
    begins.push_back(device * own + range.begin);
  auto table = [&](const std::vector<int64_t> &of) { return JsonValue{{"by", {"expert"}}, {"of", of}}; };
  return {{"shape", shape},
          {"begin", table(begins)},
          {"count", table(std::vector<int64_t>(devices, range.count))},
          {"offset", table(std::vector<int64_t>(devices, offset))}};
}

/// The elements of weights that lie one behind the other, each from a multiple of 32 on.
static int64_t elementsOf(ArrayRef<WeightAttr> weights) {
  int64_t all = 0;
  for (WeightAttr weight : weights)
    all += (weight.getType().getNumElements() + 31) / 32 * 32;
  return all;
}
static int64_t shardElements(ArrayRef<WeightAttr> own, int64_t replicas) {
  return (elementsOf(own) / 32 + replicas - 1) / replicas * 32;
}

/// If updates are cut over replicas, each replica has a run of the elements of all the piece's own weights, each of
/// which begins at a multiple of 32. Tells which elements of this weight a replica has, and where, from `offset` on.
static JsonValue shardsOf(ArrayRef<WeightAttr> own, size_t number, int64_t replicas, int64_t offset, int64_t width,
                          bool isState, const JsonValue &axes) {
  const int64_t begin = elementsOf(own.take_front(number)), elements = own[number].getType().getNumElements(),
                each = shardElements(own, replicas);
  std::vector<int64_t> firsts, counts, places;
  for (int64_t replica = 0; replica < replicas; ++replica) {
    int64_t low = std::max(begin, replica * each), high = std::min(begin + elements, (replica + 1) * each);
    bool has = low < high;
    firsts.push_back(has ? low - begin : replica * each > begin ? elements : 0);
    counts.push_back(has ? high - low : 0);
    places.push_back(offset + width * (!isState ? firsts.back() : has ? low - replica * each : 0));
  }
  auto table = [&](const std::vector<int64_t> &of) { return JsonValue{{"by", axes}, {"of", of}}; };
  return {{"begin", table(firsts)}, {"count", table(counts)}, {"offset", table(places)}};
}

/// A run of elements that a device has: `first` to `end` of the tensor, at `offset` in memory.
struct Held {
  int64_t first, end, offset;
};

/// The elements that each device has of an entry's tensor, which has `all` elements; a single item if devices are
/// alike.
static std::vector<Held> heldOf(const JsonValue &tensor, int64_t all) {
  auto at = [](const JsonValue &number, size_t device) {
    return number.is_object() ? number["of"][device].get<int64_t>() : number.get<int64_t>();
  };
  if (!tensor.contains("count"))
    return {{0, all, tensor["offset"].get<int64_t>()}};
  size_t devices = tensor["count"].is_object() ? tensor["count"]["of"].size() : 1;
  std::vector<Held> held;
  for (size_t k = 0; k < devices; ++k) {
    int64_t first = at(tensor["begin"], k);
    held.push_back({first, first + at(tensor["count"], k), at(tensor["offset"], k)});
  }
  return held;
}

/// The tensors that files have in place of this one: with `{e}` in its name, one for each index of the first dimension.
/// A shard may have a part of such a tensor, and a device a piece of each.
static std::vector<JsonValue> filesOf(const JsonValue &tensor, int64_t width) {
  auto name = tensor["name"].get<std::string>();
  auto [before, after] = StringRef(name).split("{e}");
  if (before.size() == name.size())
    return {tensor};
  std::vector<int64_t> shape = tensor["shape"];
  const bool isCut = tensor.contains("dims");
  int64_t elements = 1;
  for (size_t dim = 1; dim < shape.size(); ++dim)
    elements *= isCut ? tensor["dims"][dim][0].get<int64_t>() : shape[dim];
  std::vector<JsonValue> files;
  for (int64_t index = 0; index < shape.front(); ++index) {
    std::vector<int64_t> firsts, counts, places;
    int64_t most = 0;
    for (Held held : heldOf(tensor, shape.front() * elements)) {
      int64_t low = std::max(held.first, index * elements), count = std::min(held.end, (index + 1) * elements) - low;
      bool has = count > 0;
      firsts.push_back(has ? low % elements : 0);
      counts.push_back(has ? count : 0);
      places.push_back(held.offset + (has ? low - held.first : 0) * width);
      most = std::max(most, count);
    }
    if (most <= 0)
      continue;
    JsonValue file = tensor;
    file["name"] = (before + Twine(index) + after).str();
    file["shape"] = numbers(ArrayRef(shape).drop_front());
    auto put = [&](StringRef key, const std::vector<int64_t> &of) {
      JsonValue &number = file[key.str()];
      number = number.is_object() ? JsonValue{{"by", number["by"]}, {"of", of}} : JsonValue(of.front());
    };
    put("offset", places);
    if (isCut)
      file["dims"] = JsonValue(std::vector<JsonValue>(tensor["dims"].begin() + 1, tensor["dims"].end()));
    if (tensor.contains("count")) {
      put("begin", firsts);
      put("count", counts);
    }
    files.push_back(std::move(file));
  }
  return files;
}

/// The entries of the tensors of a weight, previous, opt or grad slot, in the order of its payload.
LogicalResult TextCheck::State::compareWeights(SlotOp slot, BindingKind kind) {
  BindingAttr binding = slot.getBindingAttr();
  PieceOp piece = named.lookup(binding.getPiece().getValue());
  if (!piece || !piece.getWeightsAttr())
    return reportDifference(slot.getLoc(), number, "a slot of `" + slot.getLabel() + "`", "a piece with weights",
                            "none");
  auto weights = llvm::to_vector(piece.getWeightsAttr().getAsRange<WeightAttr>());
  int64_t shard = binding.getShard();
  SmallVector<Type> types;
  for (WeightAttr weight : weights)
    types.push_back(weight.getType());
  int64_t shards = shard >= 0 && piece.getOwner() ? static_cast<int64_t>(piece.getOwner()->getRanks().size()) : 1;
  PayloadCut cut = cutPayload(types, shards, pieces.runs(pieces.find(piece.getCoord())));
  Optimizer optimizer(slot->getParentOfType<ProgramOp>());
  TupleType payload = slot.getSlot().getType().getPayload();
  SmallVector<int64_t> offsets = slot.tensorOffsets();
  size_t next = 0;
  int64_t back = binding.getBack();
  std::string previous = ("previous" + (back > 1 ? Twine(back) : Twine())).str();
  int64_t replicas = pieces.isCutOverMesh(pieces.find(piece.getCoord()))
                         ? program.sizeOf(Axis::data) * program.sizeOf(Axis::context)
                         : 0;
  SmallVector<WeightAttr> own;
  for (WeightAttr weight : weights)
    if (!weight.getTied() && !weight.getFrozen() && !isSummedApart(program, weight.getDeclared()))
      own.push_back(weight);
  bool isFlat = replicas > 0 && (kind == BindingKind::opt || kind == BindingKind::grad);
  bool isOld = kind == BindingKind::previous, isWeight = kind == BindingKind::weight || isOld,
       isState = kind == BindingKind::opt || isOld;
  for (ElementRange range : cut.shards[std::max<int64_t>(shard, 0)]) {
    WeightAttr weight = weights[range.tensor];
    SmallVector<StringRef> parts = {""};
    if (weight.getFrozen() && (kind == BindingKind::opt || kind == BindingKind::grad))
      continue;
    if (kind == BindingKind::opt)
      parts = weight.getTied() ? SmallVector<StringRef>() : optimizer.stateOf(weight);
    if (isOld)
      parts = {previous};
    bool isCut = isFlat && llvm::is_contained(own, weight);
    bool isPacked = isCut && (kind == BindingKind::opt || pieces.sumsShards(pieces.find(piece.getCoord())));
    if (isPacked && !parts.empty())
      next = 0; // all weights have theirs in the same tensors
    for (StringRef part : parts) {
      if (next == payload.size())
        return reportDifference(slot.getLoc(), number, "a slot of `" + slot.getLabel() + "`", "more tensors",
                                Twine(payload.size()));
      auto type = cast<RankedTensorType>(payload.getType(next));
      int64_t offset = offsets[next++], elements = shard >= 0 ? range.count : weight.getType().getNumElements();
      JsonValue shards = JsonValue::object();
      if (isCut)
        shards = shardsOf(own, llvm::find(own, weight) - own.begin(), replicas, offset,
                          type.getElementTypeBitWidth() / 8, isPacked, namesOfSummed(program));
      if (isPacked)
        elements = shardElements(own, replicas);
      if (type.getNumElements() != elements || (isWeight && type.getElementType() != weight.getType().getElementType()))
        return reportDifference(slot.getLoc(), number, "`" + weight.getName().strref() + "`",
                                Twine(elements) + " elements",
                                Twine(type.getNumElements()) + " of another shape or type");
      if (kind == BindingKind::grad && weight.getTied())
        continue; // its owner has the sum
      JsonValue expected = {{"name", weight.getName().str()},
                            {"shape", numbers(weight.getType().getShape())},
                            {"type", nameOfType(type.getElementType())},
                            {"offset", offset}};
      expected.update(partOf(piece, weight, shard >= 0, range));
      if (weight.getDeclared().getExperts() > 1) {
        expected.update(expertsOf(weight, shard >= 0 ? range : ElementRange{range.tensor, 0, elements}, offset));
        if (expected.contains("dims"))
          expected["dims"][0][0] = expected["dims"][0][2] = expected["shape"][0];
      }
      expected.update(shards);
      if (isState)
        expected["kind"] = part.str();
      else
        expected["stored"] = nn::stringifyStored(weight.getDeclared().getStored()).str();
      if (kind == BindingKind::weight) {
        nn::WeightAttr declared = weight.getDeclared();
        expected["init"] = {{"kind", nn::stringifyInit(declared.getInit()).str()},
                            {"deviation", declared.getDeviation().getValueAsDouble()}};
        expected.update({{"save", binding.getSave() && !weight.getTied()}, {"tied", weight.getTied()}});
        if (weight.getFrozen())
          expected["frozen"] = true;
      }
      StringRef table = kind == BindingKind::weight ? "weights" : isState ? "state" : "grads";
      for (const JsonValue &one : filesOf(expected, type.getElementTypeBitWidth() / 8))
        if (failed(compareNext(slot.getLoc(), table, one)))
          return failure();
    }
  }
  if (next == payload.size())
    return success();
  return reportDifference(slot.getLoc(), number, "a slot of `" + slot.getLabel() + "`", Twine(next) + " tensors",
                          Twine(payload.size()));
}

//===-- The program ---------------------------------------------------------------------------------------------===//

static int64_t countWhole(WeightAttr weight) {
  nn::CutAttr cut = weight.getDeclared().getCut();
  return weight.getDeclared().getExperts() *
         (cut ? ShapedType::getNumElements(cut.getWhole()) : weight.getType().getNumElements());
}

LogicalResult pp::checkProgramText(ProgramOp program, StringRef text) {
  JsonValue got = JsonValue::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false), expected;
  DictionaryAttr train = program.getTrain();
  for (StringRef key : {"model", "schedule", "batch", "sequence", "vocab", "precision", "optimizer", "function",
                        "folder", "config", "pad", "group", "columns", "divisor", "reports", "report_divisors", "lora"})
    if (Attribute value = train.get(key))
      expected[key.str()] = inWords(value);
  if (train.get("documents"))
    expected["documents"] = true;
  if (auto target = program.getTarget())
    expected["target"] = target->str();
  if (program.countUpdates() > 1)
    expected["updates"] = program.countUpdates();
  int64_t parameters = 0, microbatches = static_cast<int64_t>(program.getMicrobatches());
  for (auto piece : program.getOps<PieceOp>())
    for (Attribute each : piece.getWeights().value_or(ArrayAttr::get(program.getContext(), {})))
      if (auto weight = cast<WeightAttr>(each))
        parameters += weight.getTied() ? 0 : countWhole(weight);
  double flops = 0;
  auto module = program->getParentOfType<ModuleOp>();
  SymbolTable symbols(module);
  program.walk([&](LaunchOp launch) {
    auto body = symbols.lookup<func::FuncOp>(launch.getCallee());
    if (body && launch.getUnit().getPhase() != Phase::R)
      flops += flopsOf(body);
  });
  for (auto rank : program.getOps<RankOp>())
    for (auto slot : rank.getOps<SlotOp>())
      if (slot.getBinding() && slot.getBinding()->getKind() == BindingKind::source)
        expected["reads_source"] = true;
  auto numberOf = [&](StringRef key) {
    auto value = train.getAs<IntegerAttr>(key);
    return value ? value.getInt() : 0;
  };
  expected.update({{"name", program.getSymName().str()},
                   {"ranks", program.getRanks()},
                   {"microbatches", microbatches},
                   {"parameters", parameters},
                   {"flops_per_step", flops},
                   {"tokens_per_step", numberOf("batch") * numberOf("sequence") * microbatches}});
  if (MeshAttr mesh = program.getMeshAttr()) {
    expected["mesh"] = {{"order", JsonValue::array()}};
    for (size_t i = 0; i < mesh.getSizes().size(); ++i)
      expected["mesh"]["order"].push_back({stringifyAxis(mesh.getOrder()[i]).str(), mesh.getSizes()[i]});
    if (mesh.getExpert() > 1)
      expected["mesh"]["expert"] = mesh.getExpert();
    int64_t replicas = program.sizeOf(Axis::data);
    expected["flops_per_step"] =
        flops * static_cast<double>(replicas * program.sizeOf(Axis::tensor) * program.sizeOf(Axis::context));
    expected["tokens_per_step"] = expected["tokens_per_step"].get<int64_t>() * replicas;
  }
  // Names for people and hashes; nothing that is computed depends on it.
  expected["fingerprint"] = inWords(fingerprintOf(program));
  if (got == expected)
    return success();
  return emitError(program.getLoc()) << "the text of the program is not what was proved: expected "
                                     << shortened(expected) << ", got " << shortened(got)
                                     << "; this is a fault of pp-compile";
}
