// How attributes of weights and dropouts are printed, parsed and verified; what parts of a model, and arguments, carry.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Shapes.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"
#include <cmath>

using namespace mlir;
using namespace pp::nn;

#include "dialect/NnEnums.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialect/NnAttrs.cpp.inc"

void NnDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialect/NnAttrs.cpp.inc"
      >();
}

// <tensor, context>
void AxesAttr::print(AsmPrinter &printer) const { printer << "<" << str() << ">"; }

std::string AxesAttr::str() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleaveComma(getAxes(), os, [&](Axis axis) { os << stringifyAxis(axis); });
  return text;
}

Attribute AxesAttr::parse(AsmParser &parser, Type) {
  SMLoc loc = parser.getCurrentLocation();
  SmallVector<Axis> axes;
  auto parseOne = [&]() -> ParseResult {
    StringRef word;
    if (parser.parseKeyword(&word))
      return failure();
    std::optional<Axis> known = symbolizeAxis(word);
    if (!known || *known == Axis::pipeline)
      return parser.emitError(loc, "expected tensor, context, data, expert or copies, got `") << word << "`";
    axes.push_back(*known);
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater, parseOne))
    return {};
  auto emitError = [&] { return parser.emitError(loc); };
  return getChecked(emitError, parser.getContext(), axes);
}

LogicalResult AxesAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError, ArrayRef<Axis> axes) {
  for (size_t i = 1; i < axes.size(); ++i)
    if (axes[i] <= axes[i - 1])
      return emitError() << "expected axes in the order tensor, context, data, expert, copies, each once";
  return axes.empty() ? emitError() << "expected at least one axis of the mesh" : success();
}

// <[64, 192] dim 1 runs 3 copies 2>
void CutAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getWhole(), printer);
  printer << "] dim " << getDim();
  if (getRuns() != 1)
    printer << " runs " << getRuns();
  if (getCopies() != 1)
    printer << " copies " << getCopies();
  printer << ">";
}

// <4 most 2 capacity 1.25>
void SectionsAttr::print(AsmPrinter &printer) const {
  printer << "<" << getDevices() << " most " << getMost();
  if (getCapacity()) {
    printer << " capacity ";
    printer.printAttributeWithoutType(getCapacity());
  }
  printer << ">";
}

Attribute SectionsAttr::parse(AsmParser &parser, Type) {
  SMLoc loc = parser.getCurrentLocation();
  int64_t devices = 0, most = 0;
  double capacity = 0;
  if (parser.parseLess() || parser.parseInteger(devices) || parser.parseKeyword("most") || parser.parseInteger(most))
    return {};
  bool isLimited = succeeded(parser.parseOptionalKeyword("capacity"));
  if ((isLimited && parser.parseFloat(capacity)) || parser.parseGreater())
    return {};
  auto emitError = [&] { return parser.emitError(loc); };
  return getChecked(emitError, parser.getContext(), devices, most,
                    isLimited ? FloatAttr::get(Float64Type::get(parser.getContext()), capacity) : FloatAttr());
}

LogicalResult SectionsAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError, int64_t devices, int64_t most,
                                   FloatAttr capacity) {
  if (devices < 1 || most < 1)
    return emitError() << "expected at least 1 device and 1 row of a token, got " << devices << " and " << most;
  if (capacity && !(capacity.getValueAsDouble() >= 1))
    return emitError() << "expected a capacity of at least 1, got " << capacity.getValueAsDouble();
  return success();
}

int64_t SectionsAttr::rows(int64_t tokens, int64_t top) const {
  int64_t all = tokens * getMost();
  if (!getCapacity())
    return all;
  double equal = static_cast<double>(tokens * top) / static_cast<double>(getDevices());
  return std::min(all, static_cast<int64_t>(std::ceil(getCapacity().getValueAsDouble() * equal)));
}

double SectionsAttr::filled(int64_t top) const {
  double equal = static_cast<double>(top) / static_cast<double>(getDevices());
  double room = static_cast<double>(getMost());
  return equal / (getCapacity() ? std::min(room, getCapacity().getValueAsDouble() * equal) : room);
}

Attribute CutAttr::parse(AsmParser &parser, Type) {
  SMLoc loc = parser.getCurrentLocation();
  SmallVector<int64_t> whole;
  int64_t dim = 0, runs = 1, copies = 1;
  auto parseOne = [&] { return parser.parseInteger(whole.emplace_back()); };
  if (parser.parseLess() || parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseOne) ||
      parser.parseKeyword("dim") || parser.parseInteger(dim) ||
      (succeeded(parser.parseOptionalKeyword("runs")) && parser.parseInteger(runs)) ||
      (succeeded(parser.parseOptionalKeyword("copies")) && parser.parseInteger(copies)) || parser.parseGreater())
    return {};
  auto emitError = [&] { return parser.emitError(loc); };
  return getChecked(emitError, parser.getContext(), whole, dim, runs, copies);
}

LogicalResult CutAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError, ArrayRef<int64_t> whole, int64_t dim,
                              int64_t runs, int64_t copies) {
  if (dim < 0 || dim >= static_cast<int64_t>(whole.size()))
    return emitError() << "expected a dimension of a tensor with " << whole.size() << " of them, got " << dim;
  if (runs < 1 || copies < 1 || whole[dim] % runs != 0)
    return emitError() << "expected at least 1 copy of equal runs of " << whole[dim] << ", got " << runs << " runs and "
                       << copies << " copies";
  return success();
}

// <"w" as "h.{l}.w" normal 2.0e-2 transposed shared cut <[64, 192] dim 1>>
void WeightAttr::print(AsmPrinter &printer) const {
  printer << "<" << getName();
  if (!getAs().empty())
    printer << " as " << getAs();
  printer << " " << stringifyInit(getInit());
  if (getInit() == Init::normal || getInit() == Init::uniform) {
    printer << " ";
    printer.printAttributeWithoutType(getDeviation());
  }
  if (getStored() != Stored::plain)
    printer << " " << stringifyStored(getStored());
  printer << (getShared() ? " shared" : "");
  if (getCut()) {
    printer << " cut ";
    getCut().print(printer);
  }
  if (getSteer()) {
    printer << " steer ";
    printer.printAttributeWithoutType(getSteer());
  }
  printer << (getTerms() ? " terms" : "");
  if (getExperts() != 1)
    printer << " experts " << getExperts();
  printer << ">";
}

Attribute WeightAttr::parse(AsmParser &parser, Type) {
  MLIRContext *context = parser.getContext();
  SMLoc loc = parser.getCurrentLocation();
  std::string name, as;
  Init init = Init::normal;
  double deviation = 0;
  if (parser.parseLess() || parser.parseString(&name))
    return {};
  if (succeeded(parser.parseOptionalKeyword("as")) && parser.parseString(&as))
    return {};
  if (succeeded(parser.parseOptionalKeyword("zero")))
    init = Init::zero;
  else if (succeeded(parser.parseOptionalKeyword("one")))
    init = Init::one;
  else if (succeeded(parser.parseOptionalKeyword("uniform")))
    init = Init::uniform;
  bool hasDeviation = init == Init::uniform || succeeded(parser.parseOptionalKeyword("normal"));
  if (hasDeviation && parser.parseFloat(deviation))
    return {};
  Stored stored = Stored::plain;
  for (Stored other : {Stored::transposed, Stored::row, Stored::alternate, Stored::column})
    if (succeeded(parser.parseOptionalKeyword(stringifyStored(other))))
      stored = other;
  bool shared = succeeded(parser.parseOptionalKeyword("shared"));
  CutAttr cut;
  if (succeeded(parser.parseOptionalKeyword("cut"))) {
    cut = llvm::dyn_cast_or_null<CutAttr>(CutAttr::parse(parser, Type()));
    if (!cut)
      return {};
  }
  FloatAttr steer;
  double rate = 0;
  if (succeeded(parser.parseOptionalKeyword("steer"))) {
    if (parser.parseFloat(rate))
      return {};
    steer = FloatAttr::get(Float64Type::get(context), rate);
  }
  bool terms = succeeded(parser.parseOptionalKeyword("terms"));
  int64_t experts = 1;
  if ((succeeded(parser.parseOptionalKeyword("experts")) && parser.parseInteger(experts)) || parser.parseGreater())
    return {};
  auto emitError = [&] { return parser.emitError(loc); };
  return getChecked(emitError, context, StringAttr::get(context, name), StringAttr::get(context, as), init,
                    FloatAttr::get(Float64Type::get(context), deviation), stored, shared, cut, steer, terms, experts);
}

LogicalResult WeightAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError, StringAttr name, StringAttr,
                                 Init init, FloatAttr deviation, Stored, bool, CutAttr cut, FloatAttr steer, bool terms,
                                 int64_t experts) {
  if (name.empty())
    return emitError() << "expected a weight with a name";
  double given = deviation.getValueAsDouble();
  if (!(given >= 0) || (given > 0 && init != Init::normal && init != Init::uniform))
    return emitError() << "`" << name.getValue() << "` begins as `" << stringifyInit(init) << "` with deviation "
                       << given << "; expected 0 or more for `normal` and `uniform`, and 0 for others";
  if (steer && !(steer.getValueAsDouble() >= 0))
    return emitError() << "`" << name.getValue() << "` is steered by " << steer.getValueAsDouble()
                       << "; expected a rate of at least 0";
  if (experts < 1)
    return emitError() << "expected experts over at least 1 device, got " << experts;
  if (terms && cut)
    return emitError() << "expected a whole weight where its gradient is in terms";
  return success();
}

WeightAttr WeightAttr::withCut(CutAttr cut) const {
  return get(getContext(), getName(), getAs(), getInit(), getDeviation(), getStored(), getShared(), cut, getSteer(),
             getTerms(), getExperts());
}
WeightAttr WeightAttr::withTerms() const {
  return get(getContext(), getName(), getAs(), getInit(), getDeviation(), getStored(), getShared(), getCut(),
             getSteer(), /*terms=*/true, getExperts());
}
WeightAttr WeightAttr::withSteer(FloatAttr rate) const {
  return get(getContext(), getName(), getAs(), getInit(), getDeviation(), getStored(), getShared(), getCut(), rate,
             getTerms(), getExperts());
}
WeightAttr WeightAttr::withExperts(int64_t devices) const {
  return get(getContext(), getName(), getAs(), getInit(), getDeviation(), getStored(), getShared(), getCut(),
             getSteer(), getTerms(), devices);
}

// <1.0e-01 site 1 of 3 in 1024>
void DropoutAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printer.printAttributeWithoutType(getRate());
  printer << " site " << getSite();
  if (getSites())
    printer << " of " << getSites();
  printer << " in " << getLength();
  if (getHeadsBy()) {
    printer << " heads over ";
    printer.printStrippedAttrOrType(getHeadsBy());
  }
  printer << ">";
}

Attribute DropoutAttr::parse(AsmParser &parser, Type) {
  MLIRContext *context = parser.getContext();
  SMLoc loc = parser.getCurrentLocation();
  double rate = 0;
  int64_t site = 0, sites = 0, length = 0;
  if (parser.parseLess() || parser.parseFloat(rate) || parser.parseKeyword("site") || parser.parseInteger(site) ||
      (succeeded(parser.parseOptionalKeyword("of")) && parser.parseInteger(sites)) || parser.parseKeyword("in") ||
      parser.parseInteger(length))
    return {};
  AxesAttr headsBy;
  if (succeeded(parser.parseOptionalKeyword("heads")))
    if (parser.parseKeyword("over") || !(headsBy = llvm::dyn_cast_or_null<AxesAttr>(AxesAttr::parse(parser, Type()))))
      return {};
  if (parser.parseGreater())
    return {};
  auto emitError = [&] { return parser.emitError(loc); };
  return getChecked(emitError, context, FloatAttr::get(Float64Type::get(context), rate), site, sites, length, headsBy);
}

LogicalResult DropoutAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError, FloatAttr rate, int64_t site,
                                  int64_t sites, int64_t length, AxesAttr) {
  double share = rate.getValueAsDouble();
  if (!(share >= 0 && share < 1))
    return emitError() << "`dropout` expects a rate of at least 0 and below 1, got " << share;
  if (site < 0 || site >= kDropoutSites)
    return emitError() << "`dropout` expects a site from 0 to " << kDropoutSites - 1 << ", got " << site;
  if (sites < 0 || length < 1)
    return emitError() << "`dropout` expects sites of at least 0 and a length of at least 1, got " << sites << " and "
                       << length;
  return success();
}

static LogicalResult refuse(Operation *op, NamedAttribute named, StringRef expected) {
  return op->emitOpError() << "expected " << expected << " in `" << named.getName().strref() << "`, got "
                           << named.getValue();
}

LogicalResult NnDialect::verifyOperationAttribute(Operation *op, NamedAttribute named) {
  StringRef name = named.getName();
  if (!isa<FunctionOpInterface>(op))
    return op->emitOpError() << "has `" << name << "`, an attribute of the parts of a model";
  if (name == kPerLayerAttr || name == kWholeAttr || name == kAllExpertsAttr)
    return isa<UnitAttr>(named.getValue()) ? success() : refuse(op, named, "no value");
  auto isOneOf = [&](ArrayRef<StringRef> words) {
    auto word = dyn_cast<StringAttr>(named.getValue());
    return word && llvm::is_contained(words, word.getValue());
  };
  if (name == kAgainAttr)
    return isOneOf({"nothing", "inputs", "all"}) ? success() : refuse(op, named, "nothing, inputs or all");
  if (name == kAttentionAttr)
    return isOneOf({"gather", "heads"}) ? success() : refuse(op, named, "gather or heads");
  if (name == kPartAttr)
    return isa<StringAttr>(named.getValue()) ? success() : refuse(op, named, "the name of a part");
  if (name == kSkipsAttr) {
    auto names = dyn_cast<ArrayAttr>(named.getValue());
    bool fits = names && llvm::all_of(names, llvm::IsaPred<StringAttr>) &&
                names.size() <= cast<FunctionOpInterface>(op).getNumResults();
    return fits ? success() : refuse(op, named, "the names of the last results");
  }
  if (name == kLayersAttr)
    return isa<DenseI64ArrayAttr>(named.getValue()) ? success() : refuse(op, named, "numbers of layers");
  return op->emitOpError() << "has `" << name << "`, which is no attribute of this dialect";
}

LogicalResult NnDialect::verifyRegionArgAttribute(Operation *op, unsigned, unsigned, NamedAttribute named) {
  StringRef name = named.getName();
  if (name == kWeightAttr)
    return isa<WeightAttr>(named.getValue()) ? success() : refuse(op, named, "`#nn.weight<..>`");
  if (name == kDataAttr) {
    auto data = dyn_cast<StringAttr>(named.getValue());
    static constexpr StringRef kData[] = {"tokens", "targets", "source", "starts", "positions", "rows", "column"};
    bool isKnown = data && llvm::is_contained(kData, data.getValue());
    return isKnown ? success() : refuse(op, named, "tokens, targets, source, starts, positions, rows or column");
  }
  if (name == kAheadAttr) {
    auto ahead = dyn_cast<IntegerAttr>(named.getValue());
    return ahead && ahead.getInt() > 0 ? success() : refuse(op, named, "a number of tokens above 0");
  }
  if (name == kColumnAttr) {
    auto number = dyn_cast<IntegerAttr>(named.getValue());
    return number && number.getInt() >= 0 ? success() : refuse(op, named, "the number of a column, 0 or more");
  }
  if (name == kFromAttr)
    return isa<StringAttr>(named.getValue()) ? success() : refuse(op, named, "the name of a value");
  if (name == kStatsAttr || name == kAdapterAttr || name == kRowsAttr)
    return isa<UnitAttr>(named.getValue()) ? success() : refuse(op, named, "no value");
  return op->emitOpError() << "has an argument with `" << name << "`, which is no attribute of this dialect";
}

//===-- Names of weights ----------------------------------------------------------------------------------------===//

namespace {
/// A number in braces at the beginning of a text: `{l}` is the layer, `{k}` its number among the layers of its kind,
/// and `{2k+1}` twice that and one more.
struct NumberOfLayer {
  int64_t factor = 1, more = 0;
  bool ofKind = false;
  size_t length = 0; ///< of the text; 0: none stands there
};
} // namespace

static NumberOfLayer numberOfLayer(llvm::StringRef text) {
  NumberOfLayer its;
  llvm::StringRef rest = text;
  if (rest.consume_front("{l}"))
    return {1, 0, false, 3};
  if (!rest.consume_front("{"))
    return {};
  if (!rest.empty() && llvm::isDigit(rest.front()) && rest.consumeInteger(10, its.factor))
    return {}; // too large a number
  if (!rest.consume_front("k") || (rest.consume_front("+") && rest.consumeInteger(10, its.more)) ||
      !rest.consume_front("}"))
    return {};
  its.ofKind = true, its.length = text.size() - rest.size();
  return its;
}

bool pp::nn::isNumbered(llvm::StringRef name) {
  for (; !name.empty(); name = name.drop_front())
    if (numberOfLayer(name).length > 0)
      return true;
  return false;
}

/// The text with the numbers of a layer in the place of their braces.
static std::string withLayer(llvm::StringRef text, Operation *part, int64_t layer) {
  auto layers = part->getAttrOfType<DenseI64ArrayAttr>(kLayersAttr);
  int64_t ofKind = layers ? llvm::count_if(layers.asArrayRef(), [&](int64_t other) { return other < layer; }) : layer;
  std::string result;
  while (!text.empty()) {
    NumberOfLayer its = numberOfLayer(text);
    result += its.length == 0 ? text.take_front().str()
                              : std::to_string(its.factor * (its.ofKind ? ofKind : layer) + its.more);
    text = text.drop_front(std::max<size_t>(its.length, 1));
  }
  return result;
}

std::string pp::nn::weightName(WeightAttr declared, Operation *part, int64_t layer) {
  std::string name = withLayer(declared.getAs().getValue(), part, layer);
  if (!name.empty())
    return name;
  name = declared.getName().str();
  if (declared.getShared())
    return name;
  return SymbolTable::getSymbolName(part).str() + "." + (layer < 0 ? "" : std::to_string(layer) + ".") + name;
}
