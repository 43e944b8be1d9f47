// How coordinates, units, things, places and placed types are printed and parsed, and what they answer.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/Pipeline.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace pp::pipeline;

//===-- Groups --------------------------------------------------------------------------------------------------===//

std::optional<BindingKind> GroupName::data() const {
  switch (kind) {
  case GroupKind::tokens:
    return BindingKind::tokens;
  case GroupKind::targets:
    return BindingKind::targets;
  case GroupKind::source:
    return BindingKind::source;
  case GroupKind::starts:
    return BindingKind::starts;
  case GroupKind::positions:
    return BindingKind::positions;
  case GroupKind::rows:
    return BindingKind::rows;
  case GroupKind::column:
    return BindingKind::column;
  default:
    return std::nullopt;
  }
}

std::string GroupName::str() const {
  std::string text = stringifyGroupKind(kind).str();
  for (int64_t each : {number, attention})
    if (each >= 0)
      text += "." + std::to_string(each);
  return text;
}

// kv[2, 1] x 2
static GroupAttr parseGroup(AsmParser &parser) {
  StringRef word;
  int64_t number = -1, attention = -1, tensors = 0;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseKeyword(&word))
    return {};
  std::optional<GroupKind> kind = symbolizeGroupKind(word);
  if (!kind) {
    parser.emitError(loc) << "expected what a group holds, as `act`, `weight` or `kv`, got `" << word << "`";
    return {};
  }
  if (succeeded(parser.parseOptionalLSquare()))
    if (parser.parseInteger(number) || (succeeded(parser.parseOptionalComma()) && parser.parseInteger(attention)) ||
        parser.parseRSquare())
      return {};
  if (parser.parseKeyword("x") || parser.parseInteger(tensors))
    return {};
  return parser.getChecked<GroupAttr>(loc, parser.getContext(), *kind, number, attention, tensors);
}

static void printGroup(AsmPrinter &printer, GroupAttr group) {
  printer << stringifyGroupKind(group.getKind());
  if (group.getNumber() >= 0)
    printer << "[" << group.getNumber();
  if (group.getAttention() >= 0)
    printer << ", " << group.getAttention();
  if (group.getNumber() >= 0)
    printer << "]";
  printer << " x " << group.getTensors();
}

Attribute GroupAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  GroupAttr group = parseGroup(parser);
  return !group || parser.parseGreater() ? Attribute() : group;
}

void GroupAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printGroup(printer, *this);
  printer << ">";
}

Attribute GroupsAttr::parse(AsmParser &parser, Type) {
  SmallVector<GroupAttr> groups;
  auto parseNext = [&]() -> ParseResult { return success(bool(groups.emplace_back(parseGroup(parser)))); };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater, parseNext))
    return {};
  return get(parser.getContext(), groups);
}

void GroupsAttr::print(AsmPrinter &printer) const {
  printer << "<";
  llvm::interleaveComma(getGroups(), printer, [&](GroupAttr group) { printGroup(printer, group); });
  printer << ">";
}

LogicalResult GroupAttr::verify(function_ref<InFlightDiagnostic()> emitError, GroupKind kind, int64_t number,
                                int64_t attention, int64_t tensors) {
  if (number < -1 || attention < -1 || (number < 0 && attention >= 0))
    return emitError() << "expected numbers of 0 or more in a group, got " << number << ", " << attention;
  if (tensors < 0)
    return emitError() << "expected a number of tensors in a group, got " << tensors;
  return success();
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

//===-- Weights -------------------------------------------------------------------------------------------------===//

// <"h.0.w" : tensor<4x4xf32> tied declared <"w" as "h.{l}.w" normal 2.0e-2>>
void pp::pipeline::WeightAttr::print(AsmPrinter &printer) const {
  printer << "<" << getName() << " : " << getType() << (getTied() ? " tied" : "") << (getFrozen() ? " frozen" : "")
          << " declared ";
  getDeclared().print(printer);
  printer << ">";
}

Attribute pp::pipeline::WeightAttr::parse(AsmParser &parser, Type) {
  std::string name;
  RankedTensorType type;
  if (parser.parseLess() || parser.parseString(&name) || parser.parseColonType(type))
    return {};
  bool tied = succeeded(parser.parseOptionalKeyword("tied"));
  bool frozen = succeeded(parser.parseOptionalKeyword("frozen"));
  if (parser.parseKeyword("declared"))
    return {};
  auto declared = llvm::dyn_cast_or_null<pp::nn::WeightAttr>(pp::nn::WeightAttr::parse(parser, {}));
  if (!declared || parser.parseGreater())
    return {};
  return get(parser.getContext(), StringAttr::get(parser.getContext(), name), type, tied, frozen, declared);
}

//===-- Bindings and shards -------------------------------------------------------------------------------------===//

bool BindingAttr::isData(BindingKind kind) {
  return kind == BindingKind::tokens || kind == BindingKind::targets || kind == BindingKind::source ||
         kind == BindingKind::starts || kind == BindingKind::positions || kind == BindingKind::rows ||
         kind == BindingKind::column;
}

bool BindingAttr::isThereBefore() const {
  BindingKind kind = getKind();
  return kind != BindingKind::grad && kind != BindingKind::loss && kind != BindingKind::norm;
}

bool BindingAttr::isThereAfter() const { return !isData(getKind()); }

LogicalResult BindingAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError, BindingKind kind,
                                  FlatSymbolRefAttr piece, int64_t shard, bool save, int64_t back, int64_t microbatch,
                                  int64_t slice, int64_t first, int64_t number) {
  StringRef name = stringifyBindingKind(kind);
  bool isOfMicrobatch = !isOfPiece(kind) && kind != BindingKind::norm;
  if (isOfPiece(kind) != bool(piece))
    return emitError() << "`" << name << "` is bound to " << (piece ? "a piece; expected none" : "no piece");
  if (isOfMicrobatch != (microbatch >= 0))
    return emitError() << "`" << name << "` is bound to " << (isOfMicrobatch ? "no microbatch" : "a microbatch");
  if (shard < -1 || (shard >= 0 && !piece))
    return emitError() << "`" << name << "` is bound to shard " << shard << "; expected a shard of a piece";
  if (save && kind != BindingKind::weight)
    return emitError() << "`" << name << "` is not saved; weights are";
  if (back < 0 || (back > 0) != (kind == BindingKind::previous))
    return emitError() << "`" << name << "` goes back " << back
                       << " versions; expected 1 or more for `previous`, and 0 for "
                       << "others";
  if ((slice >= 0) != (first >= 0) || (slice >= 0 && (!isOfMicrobatch || kind == BindingKind::loss)))
    return emitError() << "`" << name << "` is bound to slice " << slice << " from token " << first
                       << "; expected both or none, and both for data only";
  if (kind == BindingKind::column && number < 0)
    return emitError() << "`column` has number " << number << "; expected 0 or more";
  static constexpr BindingKind kNumbered[] = {BindingKind::tokens, BindingKind::targets, BindingKind::column};
  if (number < 0 || (number > 0 && !llvm::is_contained(kNumbered, kind)))
    return emitError() << "`" << name << "` is bound to places " << number << " ahead; expected 0, or more for tokens "
                       << "and targets";
  return success();
}

// <weight @s0 shard 1 save>  <previous @s0 back 2>  <tokens mb 3 slice 1 first 64>  <norm>
void BindingAttr::print(AsmPrinter &printer) const {
  printer << "<" << stringifyBindingKind(getKind());
  if (getPiece())
    printer << " " << getPiece();
  auto number = [&](StringRef word, int64_t value, int64_t none) {
    if (value != none)
      printer << " " << word << " " << value;
  };
  number("shard", getShard(), -1);
  number("back", getBack(), 0);
  if (getSave())
    printer << " save";
  number("mb", getMicrobatch(), -1);
  number("slice", getSlice(), -1);
  number("first", getFirst(), -1);
  number(isColumn() ? "number" : "ahead", getNumber(), isColumn() ? -1 : 0);
  printer << ">";
}

Attribute BindingAttr::parse(AsmParser &parser, Type) {
  StringRef keyword;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parser.parseKeyword(&keyword))
    return {};
  std::optional<BindingKind> kind = symbolizeBindingKind(keyword);
  if (!kind)
    return parser.emitError(loc, "expected what a slot is bound to, got `") << keyword << "`", Attribute();
  FlatSymbolRefAttr piece;
  OptionalParseResult named = parser.parseOptionalAttribute(piece);
  if (named.has_value() && failed(*named))
    return {};
  int64_t shard = -1, back = 0, microbatch = -1, slice = -1, first = -1, which = 0;
  auto number = [&](StringRef word, int64_t &value) {
    return success(failed(parser.parseOptionalKeyword(word)) || succeeded(parser.parseInteger(value)));
  };
  if (failed(number("shard", shard)) || failed(number("back", back)))
    return {};
  bool save = succeeded(parser.parseOptionalKeyword("save"));
  if (failed(number("mb", microbatch)) || failed(number("slice", slice)) || failed(number("first", first)) ||
      failed(number(kind == BindingKind::column ? "number" : "ahead", which)) || parser.parseGreater())
    return {};
  auto emitError = [&] { return parser.emitError(loc); };
  return getChecked(emitError, parser.getContext(), *kind, piece, shard, save, back, microbatch, slice, first, which);
}

LogicalResult VocabularyAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError, int64_t first,
                                     RankedTensorType whole, int64_t shards) {
  if (shards < 1)
    return emitError() << "a part cut in " << shards << " shards; expected 1 or more";
  if (!whole.hasStaticShape() || whole.getRank() == 0 || first < 0 || first >= *llvm::max_element(whole.getShape()))
    return emitError() << "a shard that begins with number " << first << " of " << whole
                       << "; expected a row or a column of it";
  return success();
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

//===-- Bodies --------------------------------------------------------------------------------------------------===//

// [0, 1] home
static void printKeys(AsmPrinter &printer, KeysAttr keys) {
  printer << "[";
  llvm::interleaveComma(keys.getSlices(), printer);
  printer << (keys.getHome() ? "] home" : "]");
}

static KeysAttr parseKeys(AsmParser &parser) {
  SmallVector<int64_t> slices;
  auto one = [&] { return parser.parseInteger(slices.emplace_back()); };
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, one))
    return {};
  bool home = succeeded(parser.parseOptionalKeyword("home"));
  return parser.getChecked<KeysAttr>(loc, parser.getContext(), ArrayRef<int64_t>(slices), home);
}

Attribute KeysAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  KeysAttr keys = parseKeys(parser);
  return !keys || parser.parseGreater() ? Attribute() : keys;
}

void KeysAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printKeys(printer, *this);
  printer << ">";
}

LogicalResult KeysAttr::verify(function_ref<InFlightDiagnostic()> emitError, ArrayRef<int64_t> slices, bool) {
  for (size_t i = 1; i < slices.size(); ++i)
    if (slices[i] <= slices[i - 1])
      return emitError() << "expected slices in ascending order, got " << slices[i] << " behind " << slices[i - 1];
  return success();
}

std::string KeysAttr::label() const {
  std::string label;
  ArrayRef<int64_t> slices = getSlices();
  for (size_t i = 0; i < slices.size();) {
    size_t end = i + 1;
    while (end < slices.size() && slices[end] == slices[end - 1] + 1)
      ++end;
    label += (label.empty() ? "" : "n") + std::to_string(slices[i]) + "to" + std::to_string(slices[end - 1] + 1);
    i = end;
  }
  return label + (getHome() ? "h" : "");
}

// step 1 of 2 keys [0, 1], [2] home
static void printCut(AsmPrinter &printer, CutAttr cut) {
  printer << stringifyCutKind(cut.getKind()) << " " << cut.getNumber();
  if (cut.getKind() == CutKind::step)
    printer << " of " << cut.getSteps();
  if (!cut.getKeys().empty()) {
    printer << " keys ";
    llvm::interleaveComma(cut.getKeys(), printer, [&](KeysAttr keys) { printKeys(printer, keys); });
  }
  if (cut.getNext())
    printer << " next";
}

/// Parses the rest of a cut, behind its kind.
static CutAttr parseCut(AsmParser &parser, SMLoc loc, CutKind kind) {
  int64_t number = 0, steps = 1;
  SmallVector<KeysAttr> keys;
  if (parser.parseInteger(number) ||
      (kind == CutKind::step && (parser.parseKeyword("of") || parser.parseInteger(steps))))
    return {};
  if (succeeded(parser.parseOptionalKeyword("keys")))
    do {
      keys.push_back(parseKeys(parser));
      if (!keys.back())
        return {};
    } while (succeeded(parser.parseOptionalComma()));
  bool next = succeeded(parser.parseOptionalKeyword("next"));
  return parser.getChecked<CutAttr>(loc, parser.getContext(), kind, number, steps, ArrayRef<KeysAttr>(keys), next);
}

static constexpr StringRef cutKinds[] = {"step", "part", "rest"};

Attribute CutAttr::parse(AsmParser &parser, Type) {
  StringRef kind;
  if (parser.parseLess())
    return {};
  SMLoc loc = parser.getCurrentLocation();
  if (failed(parser.parseOptionalKeyword(&kind, cutKinds)))
    return parser.emitError(loc, "expected `step`, `part` or `rest`"), Attribute();
  CutAttr cut = parseCut(parser, loc, *symbolizeCutKind(kind));
  return !cut || parser.parseGreater() ? Attribute() : cut;
}

void CutAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printCut(printer, *this);
  printer << ">";
}

LogicalResult CutAttr::verify(function_ref<InFlightDiagnostic()> emitError, CutKind kind, int64_t number, int64_t steps,
                              ArrayRef<KeysAttr> keys, bool next) {
  if (kind == CutKind::step && (number < 0 || number >= steps))
    return emitError() << "step " << number << " does not exist; the unit has " << steps << " steps, from 0 on";
  if (number < 0)
    return emitError() << "expected the number of an attention, got " << number;
  if (kind == CutKind::part && keys.size() != 1)
    return emitError() << "a `part` attends the keys of one entry, got " << keys.size();
  if (kind == CutKind::rest && keys.empty())
    return emitError() << "a `rest` needs the keys that others attend";
  if (next && kind != CutKind::part)
    return emitError() << "only a `part` can be `next`";
  return success();
}

Attribute BodyAttr::parse(AsmParser &parser, Type) {
  std::string pieces;
  StringRef keyword;
  if (parser.parseLess() || parser.parseString(&pieces))
    return {};
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseKeyword(&keyword))
    return {};
  std::optional<Phase> phase = symbolizePhase(keyword);
  if (!phase)
    return parser.emitError(loc, "expected a phase, got `") << keyword << "`", Attribute();
  SmallVector<StringRef> variants;
  for (uint64_t i = 0; i <= getMaxEnumValForBodyVariant(); ++i)
    variants.push_back(stringifyBodyVariant(static_cast<BodyVariant>(i)));
  BodyVariant variant = BodyVariant::plain;
  if (succeeded(parser.parseOptionalKeyword(&keyword, variants)))
    variant = *symbolizeBodyVariant(keyword);
  int64_t slice = -1, sharer = -1, shard = -1;
  auto parseNumber = [&](StringRef name, int64_t &number) {
    return succeeded(parser.parseOptionalKeyword(name)) && parser.parseInteger(number);
  };
  if (parseNumber("slice", slice) || parseNumber("sharer", sharer) || parseNumber("shard", shard))
    return {};
  CutAttr cut;
  SMLoc cutLoc = parser.getCurrentLocation();
  if (succeeded(parser.parseOptionalKeyword(&keyword, cutKinds)))
    if (cut = parseCut(parser, cutLoc, *symbolizeCutKind(keyword)); !cut)
      return {};
  if (parser.parseGreater())
    return {};
  MLIRContext *context = parser.getContext();
  return parser.getChecked<BodyAttr>(loc, context, StringAttr::get(context, pieces), *phase, variant, slice, cut,
                                     sharer, shard);
}

void BodyAttr::print(AsmPrinter &printer) const {
  printer << "<" << getPieces() << " " << stringifyPhase(getPhase());
  if (getVariant() != BodyVariant::plain)
    printer << " " << stringifyBodyVariant(getVariant());
  if (getSlice() >= 0)
    printer << " slice " << getSlice();
  if (getSharer() >= 0)
    printer << " sharer " << getSharer();
  if (getShard() >= 0)
    printer << " shard " << getShard();
  if (CutAttr cut = getCut()) {
    printer << " ";
    printCut(printer, cut);
  }
  printer << ">";
}

/// Whether the phase has bodies of this variant.
static bool hasVariant(Phase phase, BodyVariant variant) {
  switch (variant) {
  case BodyVariant::plain:
    return true;
  case BodyVariant::light:
    return phase == Phase::F;
  case BodyVariant::act:
    return phase == Phase::R;
  case BodyVariant::first:
    return phase == Phase::B || phase == Phase::W || phase == Phase::U;
  default:
    return phase == Phase::U;
  }
}

LogicalResult BodyAttr::verify(function_ref<InFlightDiagnostic()> emitError, StringAttr pieces, Phase phase,
                               BodyVariant variant, int64_t slice, CutAttr cut, int64_t sharer, int64_t shard) {
  if (!pieces || pieces.empty())
    return emitError() << "expected the class of pieces that the body is of";
  if (!hasVariant(phase, variant))
    return emitError() << "`" << stringifyPhase(phase) << "` has no body `" << stringifyBodyVariant(variant) << "`";
  if (slice < -1 || sharer < -1 || shard < -1)
    return emitError() << "expected numbers from 0 on";
  bool isTied = variant == BodyVariant::tie_in || variant == BodyVariant::tie_fresh;
  if (isTied != (sharer >= 0))
    return emitError() << "`" << stringifyBodyVariant(variant) << "` "
                       << (isTied ? "needs the number of a sharer" : "has no sharer");
  if (shard >= 0 && phase != Phase::U)
    return emitError() << "`" << stringifyPhase(phase) << "` works on whole pieces, not on shard " << shard;
  if (slice >= 0 && phase == Phase::U && variant != BodyVariant::sum_keys)
    return emitError() << "an update is of all slices, not of slice " << slice;
  if (cut && (slice < 0 || phase == Phase::W || phase == Phase::R || phase == Phase::U))
    return emitError() << "only F, B and I of a slice can be cut at their attentions";
  return success();
}

static StringRef labelOf(BodyVariant variant) {
  switch (variant) {
  case BodyVariant::norm_first:
    return "norm.first";
  case BodyVariant::sum_keys:
    return "dkv.sum";
  case BodyVariant::tie_out:
    return "tie.out";
  case BodyVariant::tie_in:
    return "tie.in";
  case BodyVariant::tie_fresh:
    return "tie.fresh";
  default:
    return stringifyBodyVariant(variant);
  }
}

/// `step.1of2.0to2_2to3`, `part.0.2to3`, `part.0.2to3.next`, `part.0.rest.0to2`.
static std::string labelOf(CutAttr cut) {
  std::string keys = llvm::join(llvm::map_range(cut.getKeys(), [](KeysAttr keys) { return keys.label(); }), "_");
  std::string number = std::to_string(cut.getNumber());
  if (cut.getKind() == CutKind::step)
    return "step." + number + "of" + std::to_string(cut.getSteps()) + "." + (keys.empty() ? "all" : keys);
  return "part." + number + (cut.getKind() == CutKind::rest ? ".rest." : ".") + keys + (cut.getNext() ? ".next" : "");
}

std::string BodyAttr::label() const { return getPieces().str() + "." + task(); }

std::string BodyAttr::task() const {
  std::string label;
  if (getPhase() != Phase::U || isUpdate())
    label = stringifyPhase(getPhase()).str();
  if (getVariant() != BodyVariant::plain)
    label += (label.empty() ? "" : ".") + labelOf(getVariant()).str();
  if (CutAttr cut = getCut())
    label += "." + labelOf(cut);
  for (int64_t number : {getSharer(), getSlice(), getShard()})
    if (number >= 0)
      label += "." + std::to_string(number);
  return label;
}
