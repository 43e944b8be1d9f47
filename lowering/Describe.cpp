// Writes what an emitted program says about itself: the JSON texts that runtime/Program.h describes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "lowering/Describe.h"
#include "analysis/Actions.h"
#include "analysis/Fingerprint.h"
#include "analysis/Messages.h"
#include "analysis/Optimizer.h"
#include "llvm/ADT/StringMap.h"
#include <nlohmann/json.hpp>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;
using Json = nlohmann::ordered_json;

struct RankText::Tables {
  Json head, ops = Json::array(), units = Json::array(), messages = Json::array(), weights = Json::array(),
             state = Json::array(), grads = Json::array(), inputs = Json::array(), losses = Json::array(), norm,
             forward;                                  ///< null: what is added is the training program's
  llvm::StringMap<int32_t> opNumbers, exchangeNumbers; ///< text of an entry to its number
  MeshAttr mesh;                                       ///< null: each rank is one device
};

std::string pp::typeName(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

static Json toJson(Attribute attr) {
  if (auto value = dyn_cast_or_null<BoolAttr>(attr))
    return value.getValue();
  if (auto value = dyn_cast_or_null<IntegerAttr>(attr))
    return value.getInt();
  if (auto value = dyn_cast_or_null<FloatAttr>(attr))
    return value.getValueAsDouble();
  if (auto value = dyn_cast_or_null<StringAttr>(attr))
    return value.str();
  if (auto values = dyn_cast_or_null<ArrayAttr>(attr)) {
    Json list = Json::array();
    for (Attribute value : values)
      list.push_back(toJson(value));
    return list;
  }
  if (auto values = dyn_cast_or_null<DictionaryAttr>(attr)) {
    Json object = Json::object();
    for (NamedAttribute value : values)
      object[value.getName().str()] = toJson(value.getValue());
    return object;
  }
  return nullptr;
}

int64_t pp::hostBegin(RankOp rank) { return llvm::alignTo(rank.getArenaBytes().value_or(0), 4096); }

RankText::RankText(RankOp rank) : tables(std::make_unique<Tables>()) {
  tables->mesh = rank->getParentOfType<ProgramOp>().getMeshAttr();
  tables->head["rank"] = rank.getRank();
  int64_t host = rank.getHostBytes().value_or(0);
  tables->head["arena_bytes"] = host ? hostBegin(rank) + host : static_cast<int64_t>(rank.getArenaBytes().value_or(0));
  if (host)
    tables->head["host_bytes"] = host;
  if (auto peak = rank.getPeakAttr())
    tables->head["peak"] = toJson(peak);
}

RankText::~RankText() = default;

void RankText::setScratch(const RankScratch &scratch) {
  tables->head["kernel_bytes"] = scratch.kernels;
  tables->head["message_bytes"] = scratch.messages;
  if (scratch.targetWeights > 0)
    tables->head["target_weight_bytes"] = scratch.targetWeights;
  if (!scratch.isDevice)
    return;
  tables->head["nccl_bytes"] = scratch.nccl;
  tables->head["nccl_multiprocessors"] = scratch.multiprocessors;
  tables->head["nccl_multiprocessors_of_collectives"] = scratch.multiprocessorsOfCollectives;
}

int32_t RankText::addOp(const KernelEntry &entry) {
  Json json = {{"kernel", entry.kernel}, {"type", entry.type}};
  json["dims"] = std::vector<int64_t>(entry.dims.begin(), entry.dims.end());
  auto jsonOf = [](const DimTable &table) {
    return Json{{"by", std::vector<std::string>(table.by.begin(), table.by.end())},
                {"of", std::vector<int64_t>(table.of.begin(), table.of.end())}};
  };
  for (auto &[dim, table] : entry.tables)
    json["dims"][dim] = jsonOf(table);
  if (!entry.moved.empty())
    json["moved"] = std::vector<int64_t>(entry.moved.rbegin()->first + 1);
  for (auto &[pointer, table] : entry.moved)
    json["moved"][pointer] = jsonOf(table);
  json["params"] = std::vector<double>(entry.params.begin(), entry.params.end());
  for (auto &[param, table] : entry.varied)
    json["params"][param] = jsonOf(table);
  json["flags"] = std::vector<std::string>(entry.flags.begin(), entry.flags.end());
  auto [found, isNew] = tables->opNumbers.try_emplace(json.dump(), static_cast<int32_t>(tables->ops.size()));
  if (isNew)
    tables->ops.push_back(std::move(json));
  return found->second;
}

/// A line that an entry stands for; of equal exchanges it has all.
static void addLine(Json &entry, Location loc) {
  const std::string line = lineOf(loc);
  std::string lines = entry.value("line", std::string());
  if (!line.empty() && !StringRef(", " + lines + ",").contains(", " + line + ","))
    entry["line"] = lines + (lines.empty() ? "" : ", ") + line;
}

int32_t RankText::addUnit(LaunchOp launch, double flops) {
  UnitIdAttr unit = launch.getUnit();
  tables->units.push_back({{"name", unit.cell()},
                           {"phase", stringifyPhase(unit.getPhase()).str()},
                           {"task", launch.getCallee().str()},
                           {"microbatch", unit.getCoord().getMicrobatch()},
                           {"flops", flops}});
  addLine(tables->units.back(), launch.getLoc());
  return static_cast<int32_t>(tables->units.size() - 1);
}

// A payload with gaps is sent or summed as one run of elements, gaps included: nobody reads them.
static Json collectiveOf(PostOp post) {
  TupleType payload = post.getPayload();
  auto first = cast<RankedTensorType>(payload.getType(0));
  int64_t count = first.getNumElements();
  if (payload.size() > 1 || post.getCuts())
    count = payloadOffsets(payload).back() / std::max<int64_t>(1, first.getElementTypeBitWidth() / 8);
  Json json = {{"kind", stringifyPostKind(post.getKind()).str()},
               {"root", post.getRoot() ? static_cast<int64_t>(*post.getRoot()) : -1},
               {"group", std::vector<int64_t>(post.getPeers().begin(), post.getPeers().end())},
               {"channel", post.getChannel().value_or(0)},
               {"count", count},
               {"type", typeName(first.getElementType())}};
  if (AxesAttr axes = post.getAxesAttr())
    for (Axis axis : axes.getAxes())
      json["axes"].push_back(stringifyAxis(axis).str());
  if (auto cuts = post.getCuts())
    json["cuts"] = std::vector<int64_t>(cuts->begin(), cuts->end());
  return json;
}

int32_t RankText::addMessage(PostOp post) {
  Json json;
  if (post.isCollective())
    json = collectiveOf(post);
  else
    json = {{"kind", stringifyPostKind(post.getKind()).str()},
            {"peer", post.getPeers().empty() ? -1 : post.getPeers().front()},
            {"channel", post.getChannel().value_or(0)},
            {"bytes", payloadOffsets(post.getSlot().getType().getPayload()).back()}};
  if (post.isHost())
    json["host"] = true;
  json["label"] = post.getThing().str();
  if (auto slot = post.getSlot().getDefiningOp<SlotOp>(); !post.isCollective() && !post.isHost() && !slot.getHost())
    json["offset"] = slot.getOffset().value_or(0);
  addLine(json, post.getLoc());
  tables->messages.push_back(std::move(json));
  return static_cast<int32_t>(tables->messages.size() - 1);
}

FailureOr<int32_t> RankText::addExchange(nn::Exchange exchange, bool follows) {
  FailureOr<InnerMessage> message = innerMessage(exchange, tables->mesh);
  if (failed(message))
    return failure();
  Json json = {
      {"kind", nn::stringifyExchangeKind(exchange.getKind()).str()},
      {"root", -1},
      {"group", std::vector<int64_t>{tables->head["rank"].get<int64_t>()}},
      {"channel", message->channel},
      {"count", message->type.getNumElements()},
      {"type", message->type.getElementType().isInteger(32) ? "f32" : typeName(message->type.getElementType())}};
  for (Axis axis : message->axes.getAxes())
    json["axes"].push_back(stringifyAxis(axis).str());
  if (int64_t neighbours = exchange.countNeighbours())
    json["neighbours"] = neighbours;
  if (!message->cuts.empty())
    json["cuts"] = std::vector<int64_t>(message->cuts.begin(), message->cuts.end());
  if (message->zigzag)
    json["zigzag"] = true;
  if (exchange.getKind() == nn::ExchangeKind::all_to_all) {
    StringRef to = exchange.getCut();
    json["to"] = to.str();
    if (to != "sections") {
      json["sequences"] = message->type.getDimSize(0);
      json["length"] = message->type.getDimSize(1) * (to == "columns" ? 1 : message->members);
    }
  }
  json["inside"] = true;
  std::string shape;
  for (int64_t extent : message->type.getShape())
    shape += (shape.empty() ? "" : "x") + std::to_string(extent);
  json["label"] = shape;
  auto [found, isNew] = tables->exchangeNumbers.try_emplace((follows ? "beside " : "") + json.dump(),
                                                            static_cast<int32_t>(tables->messages.size()));
  if (isNew)
    tables->messages.push_back(std::move(json));
  addLine(tables->messages[found->second], exchange->getLoc());
  return found->second;
}

/// A table over these has the numbers of the members of a sum in their order.
static std::vector<std::string> namesOfSumAxes(MeshAttr mesh) {
  std::vector<std::string> names;
  for (Axis axis : mesh.sumAxes())
    names.push_back(stringifyAxis(axis).str());
  return names;
}

FailureOr<DimTable> RankText::tableOf(nn::Kernel kernel, const nn::Varying &each, int64_t size) const {
  if (!tables->mesh)
    return kernel.emitOpError() << "differs along " << (each.axes ? each.axes.str() : "data")
                                << ", and this program has no mesh";
  DimTable table;
  int64_t devices = 1, members = tables->mesh.sumMembers();
  for (nn::Axis axis : each.axes ? each.axes.getAxes() : ArrayRef<nn::Axis>()) {
    devices *= tables->mesh.sizeOf(axis);
    table.by.push_back(nn::stringifyAxis(axis).str());
  }
  if (!each.ofShards.empty() && static_cast<int64_t>(each.ofShards.size()) != members)
    return kernel.emitOpError() << "is cut over " << each.ofShards.size() << " devices; this program has " << members
                                << " that sum one gradient";
  if (!each.ofShards.empty())
    llvm::append_range(table.by, namesOfSumAxes(tables->mesh));
  int64_t copies = each.copies ? each.copies : devices;
  for (int64_t k = 0; k < devices; ++k) {
    int64_t own = !each.once ? size + k * each.step : k % copies == 0 ? size : 0;
    if (each.ofShards.empty())
      table.of.push_back(own);
    for (int64_t ofShards : each.ofShards)
      table.of.push_back(each.once && k % copies != 0 ? 0 : ofShards);
  }
  return table;
}

LogicalResult RankText::addTables(nn::Kernel kernel, KernelEntry &entry, unsigned first,
                                  std::optional<size_t> pointers) {
  auto add = [&](const nn::Varying &each, int64_t size, DimTable &to) {
    FailureOr<DimTable> table = tableOf(kernel, each, size);
    if (succeeded(table))
      to = std::move(*table);
    return failed(table);
  };
  for (const nn::Varying &each : kernel.varying())
    if (add(each, entry.dims[first + each.dim], entry.tables[first + each.dim]))
      return failure();
  for (const nn::Varying &each : kernel.variedParams())
    if (add(each, 0, entry.varied[each.dim]))
      return failure();
  for (const nn::Varying &each : kernel.moved())
    if (add(each, 0, entry.moved[pointers ? *pointers + each.dim - (each.dim > 1) : each.dim]))
      return failure();
  return success();
}

/// Its units and messages go on in the tables of the training program.
void RankText::beginForward() {
  tables->forward = {{"units", tables->units.size()}, {"messages", tables->messages.size()}};
  tables->forward["inputs"] = Json::array();
  tables->forward["losses"] = Json::array();
}

//===-- Slots ---------------------------------------------------------------------------------------------------===//

static Json tensorJson(WeightAttr weight, RankedTensorType type, int64_t offset) {
  Json json = {{"name", weight.getName().str()}, {"shape", weight.getType().getShape().vec()}};
  json["type"] = typeName(type.getElementType());
  json["offset"] = offset;
  return json;
}

static Json tableOf(ArrayRef<int64_t> of) { return {{"by", Json::array({"tensor"})}, {"of", of.vec()}}; }

/// A weight that is cut over `devices`: which of the whole tensor's elements a device has. Pieces lie one behind the
/// other in each run of the cut dimension; the last ones may go beyond its end. What a rank has of a vocabulary begins
/// with number `begins` of that dimension.
static void addCut(nn::CutAttr cut, int64_t devices, ArrayRef<int64_t> whole, int64_t begins, Json &json) {
  const int64_t run = cut.getWhole()[cut.getDim()] / cut.getRuns(), pieces = devices / cut.getCopies(),
                piece = static_cast<int64_t>(llvm::divideCeil(run, pieces));
  int64_t stride = 1;
  SmallVector<int64_t> bases, valid;
  Json dims = Json::array();
  for (int64_t dim = static_cast<int64_t>(whole.size()) - 1; dim >= 0; stride *= whole[dim--]) {
    if (dim != cut.getDim()) {
      dims.insert(dims.begin(), Json::array({whole[dim], stride, whole[dim]}));
      continue;
    }
    for (int64_t device = 0; device < devices; ++device) {
      int64_t first = device / cut.getCopies() * piece;
      bases.push_back((begins + std::min(first, run)) * stride);
      valid.push_back(std::clamp<int64_t>(run - first, 0, piece));
    }
    Json exist = llvm::all_equal(valid) ? Json(valid.front()) : tableOf(valid);
    dims.insert(dims.begin(), Json::array({piece, stride, exist}));
    if (cut.getRuns() > 1)
      dims.insert(dims.begin(), Json::array({cut.getRuns(), run * stride, cut.getRuns()}));
  }
  json["shape"] = whole.vec();
  json["base"] = tableOf(bases);
  json["dims"] = std::move(dims);
  if (cut.getCopies() > 1)
    json["copies"] = cut.getCopies();
}

static Json weightJson(WeightAttr weight, int64_t offset, bool save) {
  Json json = tensorJson(weight, weight.getType(), offset);
  nn::WeightAttr declared = weight.getDeclared();
  json["stored"] = nn::stringifyStored(declared.getStored()).str();
  json["init"] = {{"kind", nn::stringifyInit(declared.getInit()).str()},
                  {"deviation", declared.getDeviation().getValueAsDouble()}};
  json["save"] = save && !weight.getTied();
  json["tied"] = weight.getTied();
  if (weight.getFrozen())
    json["frozen"] = true;
  return json;
}

/// The piece that the slot is bound to; null and an error if it has no weights.
static PieceOp boundPiece(SlotOp slot, const Pieces &pieces) {
  FlatSymbolRefAttr name = slot.getBinding()->getPiece();
  for (PieceOp piece : pieces.all())
    if (piece.getSymName() == name.getValue() && piece.getWeightsAttr())
      return piece;
  slot.emitOpError() << "is bound to piece `" << name.getValue() << "`, which has no weights";
  return nullptr;
}

namespace {
/// Lists the tensors of a weight, opt or grad slot; the payload is checked against the piece's weights as it goes.
struct Bound {
  SlotOp slot;
  SmallVector<int64_t> offsets;
  size_t next = 0;
  bool isShard = false;
  std::vector<std::pair<WeightAttr, ElementRange>> tensors; ///< of a shard the ranges that it has, else all whole
  RankedTensorType whole; ///< of a piece that is cut by the vocabulary: all of its weight
  int64_t first = 0;      ///< the row or column of it where this piece begins
  int64_t replicas = 0;   ///< over which updates of the piece are cut, if they are
  FlatCut flat;           ///< of its own weights
  bool sumsShards;        ///< they have their shards of its gradient alone

  Bound(SlotOp slot, const Pieces &pieces, PieceOp piece)
      : slot(slot), offsets(payloadOffsets(slot.getSlot().getType().getPayload())),
        sumsShards(pieces.sumsShards(pieces.find(piece.getCoord()))) {
    if (VocabularyAttr vocabulary = piece.getVocabularyAttr()) {
      whole = vocabulary.getWhole();
      first = vocabulary.getFirst();
    }
    int64_t shard = slot.getBinding()->getShard();
    isShard = shard >= 0;
    ArrayAttr weights = piece.getWeightsAttr();
    int64_t shards = piece.getOwner() ? piece.getOwner()->getRanks().size() : 1;
    SmallVector<Type> types;
    for (auto weight : weights.getAsRange<WeightAttr>())
      types.push_back(weight.getType());
    PayloadCut cut = cutPayload(types, isShard ? shards : 1, pieces.runs(pieces.find(piece.getCoord())));
    for (ElementRange range : cut.shards[isShard ? shard : 0])
      tensors.push_back({cast<WeightAttr>(weights[range.tensor]), range});
    if (int64_t number = pieces.find(piece.getCoord()); pieces.isCutOverMesh(number)) {
      replicas = slot->getParentOfType<ProgramOp>().sumMembers();
      flat = cutFlat(ArrayRef(types).take_front(pieces.summedTensors(number, -1)), replicas);
    }
  }

  /// Whether updates of this weight, one of the first ones, are cut.
  bool isFlat(ElementRange range) const { return range.tensor < flat.begins.size(); }

  /// Adds the elements of a weight that a replica has: with `place` in the run of all its shards, else in the weight's
  /// own place.
  void addFlat(ElementRange range, int64_t elementBytes, int64_t offset, bool place, Json &json) const {
    SmallVector<int64_t> begins, counts, places;
    for (int64_t k = 0; k < replicas; ++k) {
      int64_t begin = flat.begins[range.tensor], from = std::clamp<int64_t>(k * flat.shard - begin, 0, range.count),
              to = std::clamp<int64_t>((k + 1) * flat.shard - begin, 0, range.count);
      begins.push_back(from);
      counts.push_back(to - from);
      int64_t at = place ? (to > from ? begin + from - k * flat.shard : 0) : from;
      places.push_back(offset + at * elementBytes);
    }
    MeshAttr mesh = SlotOp(slot)->getParentOfType<ProgramOp>().getMeshAttr();
    auto table = [&](ArrayRef<int64_t> of) { return Json{{"by", namesOfSumAxes(mesh)}, {"of", of.vec()}}; };
    json.update({{"begin", table(begins)}, {"count", table(counts)}, {"offset", table(places)}});
  }

  /// A device along `expert` has as many experts as the others, behind those of the ones before it.
  static void addExperts(WeightAttr weight, ElementRange range, Json &json) {
    const int64_t devices = weight.getDeclared().getExperts(), own = weight.getType().getNumElements();
    auto table = [&](int64_t first, int64_t step) {
      std::vector<int64_t> of;
      for (int64_t k = 0; k < devices; ++k)
        of.push_back(first + k * step);
      return Json{{"by", Json::array({"expert"})}, {"of", of}};
    };
    json["shape"][0] = json["shape"][0].get<int64_t>() * devices;
    if (json.contains("dims"))
      json["dims"][0] = {json["shape"][0], json["dims"][0][1], json["shape"][0]};
    json["begin"] = table(range.begin, own);
    json["count"] = table(range.count, 0);
    json["offset"] = table(json["offset"].get<int64_t>(), 0);
  }

  /// The next tensor of the payload; null and an error if the payload has no more or it has another shape.
  RankedTensorType take(WeightAttr weight, ElementRange range) {
    TupleType payload = slot.getSlot().getType().getPayload();
    if (next == payload.size())
      return slot.emitOpError() << "holds " << payload.size() << " tensors, too few for `" << weight.getName().strref()
                                << "`",
             nullptr;
    auto type = cast<RankedTensorType>(payload.getType(next++));
    ArrayRef<int64_t> shape = isShard ? ArrayRef(range.count) : weight.getType().getShape();
    if (type.getShape() != shape)
      return slot.emitOpError() << "holds " << type << " where `" << weight.getName().strref() << "` has "
                                << weight.getType(),
             nullptr;
    return type;
  }
  int64_t offset() { return static_cast<int64_t>(*slot.getOffset()) + offsets[next - 1]; }
  /// For a shard, the file has the whole tensor and the slot has `count` elements from `begin` on; for columns it has
  /// `run` of each `stride`.
  Json describe(Json json, WeightAttr weight, ElementRange range) {
    if (isShard)
      json.update({{"begin", range.begin}, {"count", range.count}});
    nn::CutAttr cut = weight.getDeclared().getCut();
    if (cut)
      addCut(cut, slot->getParentOfType<ProgramOp>().sizeOf(Axis::tensor), whole ? whole.getShape() : cut.getWhole(),
             first, json);
    if (weight.getDeclared().getExperts() > 1)
      addExperts(weight, range, json);
    if (!whole || cut)
      return json;
    RankedTensorType here = weight.getType();
    json.update({{"shape", whole.getShape().vec()}, {"count", here.getNumElements()}});
    if (whole.getShape().drop_front() == here.getShape().drop_front()) // rows
      json["begin"] = first * (here.getNumElements() / here.getDimSize(0));
    else
      json.update({{"begin", first}, {"run", here.getShape().back()}, {"stride", whole.getShape().back()}});
    return json;
  }
  LogicalResult finish() {
    TupleType payload = slot.getSlot().getType().getPayload();
    if (next != payload.size())
      return slot.emitOpError() << "holds " << payload.size() << " tensors, its piece describes " << next;
    return success();
  }
};
} // namespace

/// A number of an entry: one, or one for each of some devices.
static std::vector<int64_t> numbersOf(const Json &number) {
  return number.is_object() ? number["of"].get<std::vector<int64_t>>() : std::vector<int64_t>{number.get<int64_t>()};
}
static void setNumbers(Json &number, const std::vector<int64_t> &of) {
  if (number.is_object())
    number["of"] = of;
  else
    number = of.front();
}

/// A weight of experts, `{e}` in its name, is a tensor of each of them in files: as many entries, one behind the other.
/// Of a shard, what it has of each; of a matrix that is cut, the device's piece.
static void addTensor(Json json, Json &list) {
  std::string name = json["name"];
  size_t at = name.find("{e}");
  if (at == std::string::npos)
    return list.push_back(std::move(json));
  std::vector<int64_t> shape = json["shape"];
  int64_t each = 1, width = json["type"] == "f64" ? 8 : json["type"] == "f32" ? 4 : 2;
  if (json.contains("dims"))
    json["dims"].erase(0); // each expert is cut alike
  for (size_t dim = 1; dim < shape.size(); ++dim)
    each *= json.contains("dims") ? json["dims"][dim - 1][0].get<int64_t>() : shape[dim];
  json["shape"] = std::vector<int64_t>(shape.begin() + 1, shape.end());
  bool isShard = json.contains("begin");
  const std::vector<int64_t> begins = numbersOf(isShard ? json["begin"] : Json(0)),
                             sizes = numbersOf(isShard ? json["count"] : Json(shape[0] * each)),
                             places = numbersOf(json["offset"]);
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    std::vector<int64_t> begin, count, place;
    for (size_t i = 0; i < begins.size(); ++i) {
      int64_t from = std::max(begins[i], expert * each), to = std::min(begins[i] + sizes[i], (expert + 1) * each);
      count.push_back(std::max<int64_t>(to - from, 0));
      begin.push_back(count.back() > 0 ? from - expert * each : 0);
      place.push_back(places[i % places.size()] + (count.back() > 0 ? (from - begins[i]) * width : 0));
    }
    if (llvm::all_of(count, [](int64_t its) { return its == 0; }))
      continue;
    Json one = json;
    one["name"] = std::string(name).replace(at, 3, std::to_string(expert));
    setNumbers(one["offset"], place);
    if (isShard) {
      setNumbers(one["begin"], begin);
      setNumbers(one["count"], count);
    }
    list.push_back(std::move(one));
  }
}

static LogicalResult addWeights(Bound bound, Json &list) {
  bool save = bound.slot.getBinding()->getSave();
  for (auto [weight, range] : bound.tensors) {
    if (!bound.take(weight, range))
      return failure();
    addTensor(bound.describe(weightJson(weight, bound.offset(), save), weight, range), list);
  }
  return bound.finish();
}

/// All weights that are cut over replicas share one tensor of each kind.
static LogicalResult addFlatState(Bound &bound, const Optimizer &optimizer, Json &list) {
  TupleType payload = bound.slot.getSlot().getType().getPayload();
  for (auto [weight, range] : bound.tensors) {
    if (!bound.isFlat(range))
      continue;
    for (auto [i, kind] : llvm::enumerate(optimizer.stateOf(weight))) {
      auto type = i < payload.size() ? cast<RankedTensorType>(payload.getType(i)) : RankedTensorType();
      if (!type || type.getShape() != ArrayRef(bound.flat.shard))
        return bound.slot.emitOpError() << "holds no shard of `" << weight.getName().strref() << "` of "
                                        << bound.flat.shard << " elements";
      bound.next = i + 1;
      Json json = tensorJson(weight, type, bound.offset());
      json["kind"] = kind.str();
      json = bound.describe(std::move(json), weight, range);
      bound.addFlat(range, type.getElementTypeBitWidth() / 8, bound.offset(), /*place=*/true, json);
      addTensor(std::move(json), list);
    }
  }
  return success();
}

static LogicalResult addState(Bound bound, const Optimizer &optimizer, Json &list) {
  if (failed(addFlatState(bound, optimizer, list)))
    return failure();
  for (auto [weight, range] : bound.tensors) {
    if (weight.getTied() || weight.getFrozen() || bound.isFlat(range))
      continue;
    for (StringRef kind : optimizer.stateOf(weight)) {
      RankedTensorType type = bound.take(weight, range);
      if (!type)
        return failure();
      Json json = tensorJson(weight, type, bound.offset());
      json["kind"] = kind.str();
      addTensor(bound.describe(std::move(json), weight, range), list);
    }
  }
  return bound.finish();
}

/// Older versions of the weights, which units of the next step read; of shared ones too, for each has a copy.
static LogicalResult addPrevious(Bound bound, Json &list) {
  int64_t back = bound.slot.getBinding()->getBack();
  for (auto [weight, range] : bound.tensors) {
    RankedTensorType type = bound.take(weight, range);
    if (!type)
      return failure();
    Json json = tensorJson(weight, type, bound.offset());
    json["kind"] = "previous" + (back > 1 ? std::to_string(back) : "");
    addTensor(bound.describe(std::move(json), weight, range), list);
  }
  return bound.finish();
}

static LogicalResult addGrads(Bound bound, Json &list) {
  TupleType payload = bound.slot.getSlot().getType().getPayload();
  for (auto [weight, range] : bound.tensors) {
    if (weight.getFrozen())
      continue;
    bool isPacked = bound.sumsShards && bound.isFlat(range); // all own weights have theirs in the first tensor
    RankedTensorType type =
        isPacked && payload.size() > 0 ? cast<RankedTensorType>(payload.getType(0)) : bound.take(weight, range);
    if (!type)
      return failure();
    if (isPacked && type.getShape() != ArrayRef(bound.flat.shard))
      return bound.slot.emitOpError() << "holds no shard of the gradient of `" << weight.getName().strref() << "`";
    bound.next = isPacked ? 1 : bound.next;
    if (weight.getTied()) // its share is summed on the owner; what stays here is no whole gradient
      continue;
    Json json = tensorJson(weight, type, bound.offset());
    json["stored"] = nn::stringifyStored(weight.getDeclared().getStored()).str();
    json = bound.describe(std::move(json), weight, range);
    if (bound.isFlat(range))
      bound.addFlat(range, type.getElementTypeBitWidth() / 8, bound.offset(), bound.sumsShards, json);
    addTensor(std::move(json), list);
  }
  return bound.finish();
}

LogicalResult RankText::addSlot(SlotOp slot, const Pieces &pieces) {
  BindingAttr binding = slot.getBindingAttr();
  if (!binding)
    return success();
  bool isForward = !tables->forward.is_null();
  if (binding.isOfPiece()) {
    if (isForward) // in the places of the training program
      return success();
    PieceOp piece = boundPiece(slot, pieces);
    if (!piece)
      return failure();
    Bound bound(slot, pieces, piece);
    switch (binding.getKind()) {
    case BindingKind::weight:
      return addWeights(bound, tables->weights);
    case BindingKind::opt:
      return addState(bound, Optimizer(slot->getParentOfType<ProgramOp>()), tables->state);
    case BindingKind::previous:
      return addPrevious(bound, tables->state);
    case BindingKind::undo: // what the programs alone read and write
      return success();
    default:
      return addGrads(bound, tables->grads);
    }
  }
  int64_t offset = static_cast<int64_t>(*slot.getOffset());
  if (binding.getKind() == BindingKind::norm) {
    tables->norm = {{"offset", offset}};
    return success();
  }
  auto type = cast<RankedTensorType>(slot.getSlot().getType().getPayload().getType(0));
  if (binding.getKind() == BindingKind::loss) {
    Json loss = {
        {"microbatch", binding.getMicrobatch()}, {"offset", offset}, {"type", typeName(type.getElementType())}};
    TupleType payload = slot.getSlot().getType().getPayload();
    auto reports = slot->getParentOfType<ProgramOp>().getTrain().getAs<ArrayAttr>("reports");
    const size_t told = payload.size() - (reports ? reports.size() : 0);
    if (told > 1)
      loss["further"] = offset + payloadOffsets(payload)[1];
    for (size_t i = told; i < payload.size(); ++i)
      loss["reports"].push_back(offset + payloadOffsets(payload)[i]);
    for (auto [its, at] : llvm::zip(payload.getTypes(), payloadOffsets(payload)))
      if (auto both = cast<RankedTensorType>(its); both.getNumElements() == 2)
        loss["z"].push_back(offset + at + both.getElementTypeBitWidth() / 8);
    (isForward ? tables->forward["losses"] : tables->losses).push_back(std::move(loss));
    return success();
  }
  Json input = {{"kind", stringifyBindingKind(binding.getKind()).str()},
                {"microbatch", binding.getMicrobatch()},
                {"offset", offset}};
  if (binding.getSlice() >= 0) {
    input["first"] = binding.getFirst();
    input["length"] = type.getDimSize(1);
  }
  if (binding.getAhead() > 0)
    input["ahead"] = binding.getAhead();
  if (binding.isColumn())
    input["column"] = binding.getNumber();
  (isForward ? tables->forward["inputs"] : tables->inputs).push_back(std::move(input));
  return success();
}

std::string RankText::take() {
  Json json = std::move(tables->head);
  json["ops"] = std::move(tables->ops);
  json["units"] = std::move(tables->units);
  json["messages"] = std::move(tables->messages);
  json["weights"] = std::move(tables->weights);
  json["state"] = std::move(tables->state);
  json["grads"] = std::move(tables->grads);
  json["inputs"] = std::move(tables->inputs);
  json["losses"] = std::move(tables->losses);
  if (!tables->norm.is_null())
    json["norm"] = std::move(tables->norm);
  if (!tables->forward.is_null())
    json["forward"] = std::move(tables->forward);
  return json.dump();
}

//===-- The program ---------------------------------------------------------------------------------------------===//

/// Of the weight as files have it.
static int64_t elementsOfAll(WeightAttr weight) {
  nn::CutAttr cut = weight.getDeclared().getCut();
  int64_t elements = weight.getDeclared().getExperts();
  for (int64_t extent : cut ? cut.getWhole() : weight.getType().getShape())
    elements *= extent;
  return elements;
}

static double stepFlops(ProgramOp program) {
  SymbolTable symbols(program->getParentOfType<ModuleOp>());
  double sum = 0;
  for (auto rank : program.getOps<RankOp>())
    for (auto launch : rank.getOps<LaunchOp>())
      if (launch.getUnit().getPhase() != Phase::R)
        if (auto body = symbols.lookup<func::FuncOp>(launch.getCallee()))
          sum += flopsOf(body);
  return sum;
}

/// Whether the model has an encoder with tokens of its own.
static bool readsSource(ProgramOp program) {
  return program
      .walk([](SlotOp slot) {
        bool isSource = slot.getBinding() && slot.getBinding()->getKind() == BindingKind::source;
        return isSource ? WalkResult::interrupt() : WalkResult::advance();
      })
      .wasInterrupted();
}

FailureOr<std::string> pp::describeProgram(ProgramOp program) {
  DictionaryAttr train = program.getTrain();
  Json json = {{"name", program.getSymName().str()}};
  for (StringRef key : {"model", "schedule"})
    json[key.str()] = toJson(train.get(key));
  json["ranks"] = program.getRanks();
  if (MeshAttr mesh = program.getMeshAttr()) {
    for (auto [axis, size] : llvm::zip(mesh.getOrder(), mesh.getSizes()))
      json["mesh"]["order"].push_back({stringifyAxis(axis).str(), size});
    if (mesh.getExpert() > 1)
      json["mesh"]["expert"] = mesh.getExpert();
  }
  json["microbatches"] = program.getMicrobatches();
  for (StringRef key : {"batch", "sequence", "vocab", "precision"})
    json[key.str()] = toJson(train.get(key));
  for (StringRef key : {"model", "schedule", "batch", "sequence", "vocab", "precision"})
    if (json[key.str()].is_null())
      return program.emitOpError() << "has no `" << key << "` in its `train` attribute";
  if (!json["batch"].is_number_integer() || !json["sequence"].is_number_integer())
    return program.emitOpError("expected integers for `batch` and `sequence` in its `train` attribute");

  int64_t tokens = static_cast<int64_t>(program.getMicrobatches());
  for (int64_t factor : {json["batch"].get<int64_t>(), json["sequence"].get<int64_t>(), program.sizeOf(Axis::data)})
    if (factor < 1 || llvm::MulOverflow(tokens, factor, tokens))
      return program.emitOpError() << "has a step of too few or too many tokens: " << program.getMicrobatches()
                                   << " microbatches of `batch` " << json["batch"].dump() << " and `sequence` "
                                   << json["sequence"].dump();

  int64_t updates = program.countUpdates();
  if (updates > 1)
    json["updates"] = updates;
  if (auto target = program.getTarget()) {
    if (updates > 1 && *target == "cuda")
      return emitError(program.getLoc()) << "a step with " << updates
                                         << " updates is for --target=cpu; on a GPU it is not supported yet";
    json["target"] = target->str();
  }
  int64_t parameters = 0;
  for (auto piece : program.getOps<PieceOp>())
    if (ArrayAttr weights = piece.getWeightsAttr())
      for (auto weight : weights.getAsRange<WeightAttr>())
        parameters += weight.getTied() ? 0 : elementsOfAll(weight);
  json["parameters"] = parameters;
  int64_t replicas = program.sizeOf(Axis::data);
  int64_t devices = replicas * program.sizeOf(Axis::tensor) * program.sizeOf(Axis::context);
  json["flops_per_step"] = stepFlops(program) * static_cast<double>(devices);
  json["tokens_per_step"] = tokens;
  if (readsSource(program))
    json["reads_source"] = true;
  if (train.get("documents"))
    json["documents"] = true;
  for (StringRef key : {"optimizer", "function", "folder", "config", "pad", "group", "columns", "divisor", "reports",
                        "report_divisors", "lora"})
    if (Attribute value = train.get(key))
      json[key.str()] = toJson(value);
  json["fingerprint"] = toJson(fingerprintOf(program));
  return json.dump();
}
