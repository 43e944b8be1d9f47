// How coordinates, units, things, places and placed types are printed and parsed, and what they answer.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/Pipeline.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace pp::pipeline;

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

int64_t ValType::getBytes() const {
  int64_t bytes = payloadOffsets(getPayload()).back();
  return getLayout() == Layout::shard ? llvm::divideCeil(bytes, getRanks().size()) : bytes;
}
