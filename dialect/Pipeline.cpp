// Verifiers, printing and queries of the `pipeline` dialect.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/Pipeline.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace pp::pipeline;

#include "dialect/PipelineDialect.cpp.inc"
#include "dialect/PipelineEnums.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialect/PipelineAttrs.cpp.inc"
#define GET_TYPEDEF_CLASSES
#include "dialect/PipelineTypes.cpp.inc"
#define GET_OP_CLASSES
#include "dialect/PipelineOps.cpp.inc"

/// Placed types print as `!r0_act`, the full type once at the top.
struct Aliases : public OpAsmDialectInterface {
  using OpAsmDialectInterface::OpAsmDialectInterface;
  AliasResult getAlias(Type type, llvm::raw_ostream &os) const override {
    auto value = dyn_cast<ValType>(type);
    if (!value)
      return AliasResult::NoAlias;
    os << "r";
    llvm::interleave(value.getRanks(), os, "_");
    os << "_" << stringifyRole(value.getRole());
    return AliasResult::FinalAlias;
  }
};

void PipelineDialect::initialize() {
  addInterfaces<Aliases>();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialect/PipelineAttrs.cpp.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialect/PipelineTypes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialect/PipelineOps.cpp.inc"
      >();
}

//===-- Coordinates ---------------------------------------------------------------------------------------------===//

std::string CoordAttr::pieceName() const {
  std::string name = isStage() ? "s" : getPart().str();
  return getIndex() < 0 ? name : name + std::to_string(getIndex());
}

std::string CoordAttr::str() const {
  std::string text = isStage() ? std::to_string(getIndex()) : getPart().str();
  if (!isStage() && getIndex() >= 0)
    text += "(" + std::to_string(getIndex()) + ")";
  if (getMicrobatch() >= 0)
    text += ", " + std::to_string(getMicrobatch());
  if (getSlice() >= 0)
    text += ", " + std::to_string(getSlice());
  return text;
}

CoordAttr CoordAttr::with(int64_t microbatch, int64_t slice) const {
  return CoordAttr::get(getContext(), getPart(), getIndex(), microbatch, slice);
}

// <stage 2 mb 3>  <part "attn" 3 mb 1 slice 5>
static void printCoord(AsmPrinter &printer, CoordAttr coord) {
  if (coord.isStage()) {
    printer << "stage " << coord.getIndex();
  } else {
    printer << "part " << coord.getPart();
    if (coord.getIndex() >= 0)
      printer << " " << coord.getIndex();
  }
  if (coord.getMicrobatch() >= 0)
    printer << " mb " << coord.getMicrobatch();
  if (coord.getSlice() >= 0)
    printer << " slice " << coord.getSlice();
}

static FailureOr<CoordAttr> parseCoord(AsmParser &parser) {
  std::string part;
  int64_t index = -1, microbatch = -1, slice = -1;
  if (succeeded(parser.parseOptionalKeyword("stage"))) {
    if (parser.parseInteger(index))
      return failure();
  } else {
    if (parser.parseKeyword("part") || parser.parseString(&part))
      return failure();
    OptionalParseResult given = parser.parseOptionalInteger(index);
    if (given.has_value() && failed(*given))
      return failure();
  }
  if (succeeded(parser.parseOptionalKeyword("mb")) && parser.parseInteger(microbatch))
    return failure();
  if (succeeded(parser.parseOptionalKeyword("slice")) && parser.parseInteger(slice))
    return failure();
  MLIRContext *context = parser.getContext();
  return CoordAttr::get(context, StringAttr::get(context, part), index, microbatch, slice);
}

Attribute CoordAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  auto coord = parseCoord(parser);
  if (failed(coord) || parser.parseGreater())
    return {};
  return *coord;
}

void CoordAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printCoord(printer, *this);
  printer << ">";
}

//===-- Units and things ----------------------------------------------------------------------------------------===//

std::string UnitIdAttr::str() const { return stringifyPhase(getPhase()).str() + "(" + getCoord().str() + ")"; }

std::string UnitIdAttr::cell() const {
  CoordAttr coord = getCoord();
  std::string text;
  if (coord.isStage()) {
    if (coord.getSlice() >= 0)
      text += "s" + std::to_string(coord.getSlice()) + ".";
    text += std::to_string(coord.getIndex());
  } else {
    text += coord.getPart().str() + ".";
    if (coord.getSlice() >= 0)
      text += "s" + std::to_string(coord.getSlice()) + ".";
    if (coord.getIndex() >= 0)
      text += std::to_string(coord.getIndex());
  }
  text += stringifyPhase(getPhase());
  if (coord.getMicrobatch() >= 0)
    text += std::to_string(coord.getMicrobatch());
  return text;
}

std::string ThingAttr::str() const { return stringifyRole(getRole()).str() + "(" + getCoord().str() + ")"; }

template <typename Enum>
static FailureOr<std::pair<Enum, CoordAttr>> parseTagged(AsmParser &parser, std::optional<Enum> (*symbolize)(StringRef),
                                                         StringRef what) {
  StringRef keyword;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parser.parseKeyword(&keyword))
    return failure();
  std::optional<Enum> tag = symbolize(keyword);
  if (!tag)
    return parser.emitError(loc, "expected a ") << what << ", got `" << keyword << "`";
  auto coord = parseCoord(parser);
  if (failed(coord) || parser.parseGreater())
    return failure();
  return std::make_pair(*tag, *coord);
}

Attribute UnitIdAttr::parse(AsmParser &parser, Type) {
  auto parsed = parseTagged<Phase>(parser, symbolizePhase, "phase");
  return failed(parsed) ? Attribute() : UnitIdAttr::get(parser.getContext(), parsed->first, parsed->second);
}

void UnitIdAttr::print(AsmPrinter &printer) const {
  printer << "<" << stringifyPhase(getPhase()) << " ";
  printCoord(printer, getCoord());
  printer << ">";
}

Attribute ThingAttr::parse(AsmParser &parser, Type) {
  auto parsed = parseTagged<Role>(parser, symbolizeRole, "role");
  return failed(parsed) ? Attribute() : ThingAttr::get(parser.getContext(), parsed->first, parsed->second);
}

void ThingAttr::print(AsmPrinter &printer) const {
  printer << "<" << stringifyRole(getRole()) << " ";
  printCoord(printer, getCoord());
  printer << ">";
}

//===-- Places and placed types ---------------------------------------------------------------------------------===//

std::string PlaceAttr::str() const {
  std::string text = getLayout() == Layout::host ? "the host of " : getLayout() == Layout::shard ? "shards of " : "";
  text += getRanks().size() == 1 ? "rank " : "ranks ";
  for (auto [i, rank] : llvm::enumerate(getRanks()))
    text += (i ? ", " : "") + std::to_string(rank);
  return text;
}

// [0, 1] full
static void printPlace(AsmPrinter &printer, PlaceAttr place) {
  printer << "[";
  llvm::interleaveComma(place.getRanks(), printer);
  printer << "]";
  if (place.getLayout() != Layout::full)
    printer << " " << stringifyLayout(place.getLayout());
}

static FailureOr<PlaceAttr> parsePlace(AsmParser &parser) {
  SmallVector<int64_t> ranks;
  auto one = [&] { return parser.parseInteger(ranks.emplace_back()); };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, one))
    return failure();
  Layout layout = Layout::full;
  StringRef keyword;
  SMLoc loc = parser.getCurrentLocation();
  if (succeeded(parser.parseOptionalKeyword(&keyword))) {
    std::optional<Layout> given = symbolizeLayout(keyword);
    if (!given)
      return parser.emitError(loc, "expected a layout, got `") << keyword << "`";
    layout = *given;
  }
  return PlaceAttr::get(parser.getContext(), ranks, layout);
}

Attribute PlaceAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  auto place = parsePlace(parser);
  if (failed(place) || parser.parseGreater())
    return {};
  return *place;
}

void PlaceAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printPlace(printer, *this);
  printer << ">";
}

Type ValType::parse(AsmParser &parser) {
  StringRef keyword;
  TupleType payload;
  if (parser.parseLess())
    return {};
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseKeyword(&keyword))
    return {};
  std::optional<Role> role = symbolizeRole(keyword);
  if (!role)
    return parser.emitError(loc, "expected a role, got `") << keyword << "`", Type();
  if (parser.parseComma() || parser.parseType(payload) || parser.parseComma())
    return {};
  auto place = parsePlace(parser);
  if (failed(place) || parser.parseGreater())
    return {};
  return ValType::get(parser.getContext(), *role, payload, *place);
}

void ValType::print(AsmPrinter &printer) const {
  printer << "<" << stringifyRole(getRole()) << ", " << getPayload() << ", ";
  printPlace(printer, getPlace());
  printer << ">";
}

int64_t pp::pipeline::tensorBytes(RankedTensorType type) {
  return type.getNumElements() * llvm::divideCeil(type.getElementTypeBitWidth(), 8);
}

SmallVector<int64_t> pp::pipeline::payloadOffsets(TupleType payload) {
  SmallVector<int64_t> offsets = {0};
  for (Type type : payload.getTypes())
    offsets.push_back(llvm::alignTo(offsets.back() + tensorBytes(cast<RankedTensorType>(type)), kAlignment));
  return offsets;
}

/// Elements between two places where tensors may be cut: kAlignment bytes of the shortest type.
static constexpr int64_t kCutUnit = kAlignment / 2;

/// Tensors [first, last) as one run, cut evenly.
static void cutRun(TypeRange tensors, unsigned first, unsigned last, PayloadCut &cut) {
  int64_t units = 0, unit = 0, shards = cut.shards.size();
  auto unitsOf = [&](unsigned i) {
    return llvm::divideCeil(cast<RankedTensorType>(tensors[i]).getNumElements(), kCutUnit);
  };
  for (unsigned i = first; i < last; ++i)
    units += unitsOf(i);
  SmallVector<int64_t> bytes(shards);
  for (unsigned i = first; i < last; ++i) {
    auto type = cast<RankedTensorType>(tensors[i]);
    int64_t elements = type.getNumElements(), begin = 0;
    for (int64_t left = unitsOf(i); left > 0;) {
      int64_t shard = ((unit + 1) * shards - 1) / units,
              end = (shard + 1) * units / shards; // the shard that has the unit
      int64_t taken = std::min(left, end - unit), count = std::min(taken * kCutUnit, elements - begin);
      cut.shards[shard].push_back({i, begin, count});
      bytes[shard] += llvm::alignTo(tensorBytes(RankedTensorType::get({count}, type.getElementType())), kAlignment);
      begin += count;
      left -= taken;
      unit += taken;
    }
  }
  for (int64_t piece : bytes)
    cut.bounds.push_back(cut.bounds.back() + piece);
}

PayloadCut pp::pipeline::cutPayload(TypeRange tensors, int64_t shards, ArrayRef<bool> apart) {
  PayloadCut cut;
  cut.shards.resize(shards);
  cut.bounds = {0};
  auto isApart = [&](unsigned i) { return i < apart.size() && apart[i]; };
  for (unsigned first = 0, last = 0; first < tensors.size(); first = last) {
    last = first + 1;
    while (last < tensors.size() && !isApart(first) && !isApart(last))
      ++last;
    cutRun(tensors, first, last, cut);
  }
  return cut;
}

TupleType pp::pipeline::shardPayload(TupleType whole, ArrayRef<ElementRange> ranges) {
  SmallVector<Type> types;
  for (ElementRange range : ranges)
    types.push_back(
        RankedTensorType::get({range.count}, cast<RankedTensorType>(whole.getType(range.tensor)).getElementType()));
  return TupleType::get(whole.getContext(), types);
}

int64_t ValType::getBytes() const {
  int64_t bytes = payloadOffsets(getPayload()).back();
  return getLayout() == Layout::shard ? llvm::divideCeil(bytes, getRanks().size()) : bytes;
}

//===-- Names of results ----------------------------------------------------------------------------------------===//

/// `s2_m3_k1`: piece, microbatch, slice.
static std::string nameOf(CoordAttr coord) {
  std::string name = coord.pieceName();
  if (coord.getMicrobatch() >= 0)
    name += "_m" + std::to_string(coord.getMicrobatch());
  if (coord.getSlice() >= 0)
    name += "_k" + std::to_string(coord.getSlice());
  return name;
}

static std::string nameOf(ThingAttr thing) {
  return stringifyRole(thing.getRole()).str() + "_" + nameOf(thing.getCoord());
}

void InputOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getValue(),
          nameOf(getThing()) + "_r" + std::to_string(cast<ValType>(getValue().getType()).getRanks().front()));
}

void TaskOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  std::string unit = stringifyPhase(getUnit().getPhase()).lower() + "_" + nameOf(getUnit().getCoord()) + "_";
  for (Value result : getResults())
    setName(result, unit + stringifyRole(cast<ValType>(result.getType()).getRole()).str());
}

void MoveOp::getAsmResultNames(OpAsmSetValueNameFn setName) { setName(getFuture(), "moving_" + nameOf(getThing())); }

void WaitOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  if (auto move = getFuture().getDefiningOp<MoveOp>())
    setName(getValue(), nameOf(move.getThing()));
}

void SlotOp::getAsmResultNames(OpAsmSetValueNameFn setName) { setName(getSlot(), stringifyRole(getRole())); }

//===-- Verifiers -----------------------------------------------------------------------------------------------===//

static LogicalResult verifyOnRanks(Operation *op, TypeRange types, ArrayRef<int64_t> ranks, StringRef what) {
  for (auto [i, type] : llvm::enumerate(types)) {
    auto value = cast<ValType>(type);
    for (int64_t rank : ranks)
      if (!llvm::is_contained(value.getRanks(), rank))
        return op->emitOpError() << what << " " << i << " is on " << value.getPlace().str()
                                 << ", the task runs on rank " << rank;
  }
  return success();
}

LogicalResult TaskOp::verify() {
  if (getTies().size() != getNumResults())
    return emitOpError() << "has " << getNumResults() << " results and " << getTies().size() << " ties";
  for (auto [i, tie] : llvm::enumerate(getTies())) {
    if (tie < 0)
      continue;
    if (tie >= static_cast<int64_t>(getInputs().size()))
      return emitOpError() << "result " << i << " is tied to operand " << tie << ", there are " << getInputs().size();
    if (getInputs()[tie].getType() != getResult(i).getType())
      return emitOpError() << "result " << i << " is tied to operand " << tie << " of another type";
  }
  if (failed(verifyOnRanks(*this, getInputs().getTypes(), getRanks(), "operand")))
    return failure();
  return verifyOnRanks(*this, getResultTypes(), getRanks(), "result");
}

ValType MoveOp::getTarget() { return cast<FutureType>(getFuture().getType()).getValue(); }

std::optional<Verb> MoveOp::getVerb() {
  auto from = cast<ValType>(getValue().getType()), to = getTarget();
  bool oneFrom = from.getRanks().size() == 1, oneTo = to.getRanks().size() == 1;
  Layout a = from.getLayout(), b = to.getLayout();
  if (from.getRanks() == to.getRanks() && oneFrom && a == Layout::full && b == Layout::host)
    return Verb::to_host;
  if (from.getRanks() == to.getRanks() && oneFrom && a == Layout::host && b == Layout::full)
    return Verb::from_host;
  if (a == Layout::full && b == Layout::full)
    return oneTo ? Verb::p2p : Verb::broadcast;
  if (a == Layout::partial && b == Layout::full)
    return oneTo ? Verb::reduce : Verb::all_reduce;
  if (a == Layout::partial && b == Layout::shard)
    return Verb::reduce_scatter;
  if (a == Layout::shard && b == Layout::full)
    return oneTo ? Verb::gather : Verb::all_gather;
  if (a == Layout::full && b == Layout::shard && oneFrom)
    return Verb::scatter;
  if (a == Layout::shard && b == Layout::shard)
    return Verb::all_to_all;
  return std::nullopt;
}

LogicalResult MoveOp::verify() {
  auto from = cast<ValType>(getValue().getType()), to = getTarget();
  if (from.getRole() != to.getRole() || from.getPayload() != to.getPayload())
    return emitOpError() << "changes more than the place: from " << from << " to " << to;
  if (!getVerb())
    return emitOpError() << "has no verb from " << from.getPlace().str() << " (" << stringifyLayout(from.getLayout())
                         << ") to " << to.getPlace().str() << " (" << stringifyLayout(to.getLayout()) << ")";
  return success();
}

LogicalResult WaitOp::verify() {
  ValType expected = cast<FutureType>(getFuture().getType()).getValue(), given = cast<ValType>(getValue().getType());
  bool own = given.getLayout() == Layout::full && given.getRole() == expected.getRole() &&
             given.getRanks().size() == 1 && llvm::is_contained(expected.getRanks(), given.getRanks().front());
  bool copy = expected.getLayout() == Layout::full && given.getPayload() == expected.getPayload();
  if (given != expected && !(own && (copy || expected.getLayout() == Layout::shard)))
    return emitOpError() << "gives " << given << ", the future holds " << expected;
  return success();
}

LogicalResult JoinOp::verify() {
  auto group = cast<ValType>(getValue().getType());
  if (group.getLayout() == Layout::full && group.getRanks().size() > 1)
    return emitOpError("makes shards or partial sums, not a full value");
  if (group.getRanks().size() != getValues().size())
    return emitOpError() << "joins " << getValues().size() << " values on a group of " << group.getRanks().size();
  for (auto [rank, value] : llvm::zip(group.getRanks(), getValues()))
    if (cast<ValType>(value.getType()).getRanks() != ArrayRef<int64_t>(rank))
      return emitOpError() << "expected a value on rank " << rank << ", got " << value.getType();
  return success();
}

LogicalResult SplitOp::verify() {
  auto group = cast<ValType>(getValue().getType()), piece = cast<ValType>(getPiece().getType());
  if (piece.getRanks().size() != 1 || !llvm::is_contained(group.getRanks(), piece.getRanks().front()))
    return emitOpError() << "takes a piece on " << piece.getPlace().str() << " of a value on "
                         << group.getPlace().str();
  return success();
}

//===-- Locations -----------------------------------------------------------------------------------------------===//

Location pp::pipeline::withLoopValues(Location loc, ArrayRef<std::pair<StringRef, int64_t>> values) {
  if (values.empty())
    return loc;
  std::string text;
  for (auto [name, value] : values)
    text += (text.empty() ? "" : ", ") + name.str() + " = " + std::to_string(value);
  return FusedLoc::get({loc}, StringAttr::get(loc.getContext(), text), loc.getContext());
}

std::string pp::pipeline::loopValues(Location loc) {
  if (auto fused = dyn_cast<FusedLoc>(loc))
    if (auto text = dyn_cast_or_null<StringAttr>(fused.getMetadata()))
      return text.str();
  return "";
}
