// The mesh of a program: how its devices are numbered along the axes, and messages between devices of one rank.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/Ranges.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static ParseResult parseAxis(AsmParser &parser, Axis &axis) {
  StringRef word;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseKeyword(&word))
    return failure();
  std::optional<Axis> known = symbolizeAxis(word);
  if (!known)
    return parser.emitError(loc, "expected tensor, context, data or pipeline, got `") << word << "`";
  axis = *known;
  return success();
}

/// One of the words of an enum.
template <typename Word>
static ParseResult parseWord(AsmParser &parser, std::optional<Word> (*symbolize)(StringRef), Word &word,
                             StringRef words) {
  StringRef text;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseKeyword(&text))
    return failure();
  std::optional<Word> known = symbolize(text);
  word = known.value_or(word);
  return known ? ParseResult(success()) : parser.emitError(loc) << "expected " << words << ", got `" << text << "`";
}

//===-- #pipeline.mesh ------------------------------------------------------------------------------------------===//

Attribute MeshAttr::parse(AsmParser &parser, Type) {
  SmallVector<Axis> order;
  SmallVector<int64_t> sizes;
  int64_t zero = 0;
  bool sequence = false;
  Again again = Again::nothing;
  Meeting attention = Meeting::gather;
  int64_t expert = 1;
  auto parseEntry = [&]() -> ParseResult {
    if (succeeded(parser.parseOptionalKeyword("sequence"))) {
      sequence = true;
      return success();
    }
    if (succeeded(parser.parseOptionalKeyword("again")))
      return parseWord(parser, symbolizeAgain, again, "nothing, inputs or all");
    if (succeeded(parser.parseOptionalKeyword("attention")))
      return parseWord(parser, symbolizeMeeting, attention, "gather or heads");
    if (succeeded(parser.parseOptionalKeyword("expert")))
      return parser.parseInteger(expert);
    if (succeeded(parser.parseOptionalKeyword("zero")))
      return parser.parseInteger(zero);
    return failure(parseAxis(parser, order.emplace_back()) || parser.parseInteger(sizes.emplace_back()));
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater, parseEntry))
    return {};
  return parser.getChecked<MeshAttr>(parser.getContext(), ArrayRef<Axis>(order), ArrayRef<int64_t>(sizes), zero,
                                     sequence, again, attention, expert);
}

void MeshAttr::print(AsmPrinter &printer) const {
  printer << "<";
  llvm::interleaveComma(llvm::zip(getOrder(), getSizes()), printer,
                        [&](auto entry) { printer << stringifyAxis(std::get<0>(entry)) << " " << std::get<1>(entry); });
  if (getZero() > 0)
    printer << ", zero " << getZero();
  if (getSequence())
    printer << ", sequence";
  if (getAgain() != Again::nothing)
    printer << ", again " << stringifyAgain(getAgain());
  if (getAttention() != Meeting::gather)
    printer << ", attention " << stringifyMeeting(getAttention());
  if (getExpert() != 1)
    printer << ", expert " << getExpert();
  printer << ">";
}

LogicalResult MeshAttr::verify(function_ref<InFlightDiagnostic()> emitError, ArrayRef<Axis> order,
                               ArrayRef<int64_t> sizes, int64_t zero, bool sequence, Again again, Meeting attention,
                               int64_t expert) {
  if (zero < 0 || zero > 2)
    return emitError() << "expected zero 0, 1 or 2, got " << zero;
  SmallVector<Axis> sorted(order);
  llvm::sort(sorted);
  if (sizes.size() != order.size() || sorted != ArrayRef({Axis::tensor, Axis::context, Axis::data, Axis::pipeline}))
    return emitError() << "expected each of tensor, context, data and pipeline once, with a size";
  for (auto [axis, size] : llvm::zip(order, sizes))
    if (size < 1)
      return emitError() << "the axis `" << stringifyAxis(axis) << "` has " << size << " devices; expected at least 1";
  constexpr int64_t kMostDevices = 20'000'000; // passes have tables of them
  int64_t devices = 1;
  for (int64_t size : sizes) {
    if (size > kMostDevices / devices)
      return emitError() << "the mesh has more than " << kMostDevices << " devices, the most that one may have";
    devices *= size;
  }
  int64_t context = sizes[llvm::find(order, Axis::context) - order.begin()],
          data = sizes[llvm::find(order, Axis::data) - order.begin()];
  if (expert < 1 || context * data % expert != 0 || (context % expert != 0 && expert % context != 0))
    return emitError() << "experts are cut over " << expert << " devices, of which there is no group in " << context
                       << " along context times " << data << " along data";
  bool hasContext = sizes[llvm::find(order, Axis::context) - order.begin()] > 1;
  if (attention != Meeting::gather && !hasContext)
    return emitError() << "expected `attention` where there are several devices along `context`";
  if (again != Again::nothing && !sequence && !hasContext && expert == 1)
    return emitError() << "expected `again` where there is `sequence`, or several devices along `context` or `expert`: "
                          "nothing else is gathered";
  return success();
}

int64_t MeshAttr::sizeOf(Axis axis) const {
  if (axis == Axis::expert)
    return getExpert();
  if (axis == Axis::copies)
    return sumMembers() / getExpert();
  return getSizes()[llvm::find(getOrder(), axis) - getOrder().begin()];
}

int64_t MeshAttr::stride(Axis axis) const {
  int64_t stride = 1;
  for (auto [other, size] : llvm::zip(getOrder(), getSizes())) {
    if (other == axis)
      break;
    stride *= size;
  }
  return stride;
}

// A group of `expert` is a run of devices along context, or all along context and a run along data; `copies` are the
// devices at the same place of each group.
SmallVector<int64_t> MeshAttr::line(int64_t device, ArrayRef<Axis> axes) const {
  SmallVector<int64_t> members = {device};
  auto extend = [&](Axis axis, int64_t run, bool within) { // within a run of neighbours, or from run to run
    SmallVector<int64_t> along;
    int64_t step = stride(axis), size = sizeOf(axis);
    for (int64_t member : members)
      for (int64_t own = member / step % size, k = 0; k < size; ++k)
        if (within ? k / run == own / run : k % run == own % run)
          along.push_back(member + (k - own) * step);
    members = std::move(along);
  };
  int64_t context = sizeOf(Axis::context), onContext = std::min(getExpert(), context), onData = getExpert() / onContext;
  for (Axis axis : axes)
    if (axis == Axis::expert || axis == Axis::copies) {
      extend(Axis::context, onContext, axis == Axis::expert);
      extend(Axis::data, onData, axis == Axis::expert);
    } else {
      extend(axis, sizeOf(axis), /*within=*/true);
    }
  llvm::sort(members);
  return members;
}

int64_t MeshAttr::devicesOfRank() const {
  int64_t devices = 1;
  for (auto [axis, size] : llvm::zip(getOrder(), getSizes()))
    devices *= axis == Axis::pipeline ? 1 : size;
  return devices;
}

SmallVector<Axis> MeshAttr::sumAxes() const {
  SmallVector<Axis> axes;
  for (Axis axis : llvm::reverse(getOrder()))
    if ((axis == Axis::context || axis == Axis::data) && sizeOf(axis) > 1)
      axes.push_back(axis);
  return axes;
}

AxesAttr ProgramOp::sumAxes() {
  if (sumMembers() == 1)
    return {};
  SmallVector<Axis> axes = getMeshAttr().sumAxes();
  llvm::sort(axes);
  return AxesAttr::get(getContext(), axes);
}

//===-- #pipeline.axes ------------------------------------------------------------------------------------------===//

Attribute AxesAttr::parse(AsmParser &parser, Type) {
  SmallVector<Axis> axes;
  auto parseOne = [&] { return parseAxis(parser, axes.emplace_back()); };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater, parseOne))
    return {};
  return parser.getChecked<AxesAttr>(parser.getContext(), ArrayRef<Axis>(axes));
}

void AxesAttr::print(AsmPrinter &printer) const {
  printer << "<";
  llvm::interleaveComma(getAxes(), printer, [&](Axis axis) { printer << stringifyAxis(axis); });
  printer << ">";
}

LogicalResult AxesAttr::verify(function_ref<InFlightDiagnostic()> emitError, ArrayRef<Axis> axes) {
  if (axes.empty() || llvm::is_contained(axes, Axis::pipeline))
    return emitError() << "expected axes along which the devices of one rank lie";
  for (size_t i = 1; i < axes.size(); ++i)
    if (axes[i] <= axes[i - 1])
      return emitError() << "expected axes in the order tensor, context, data, expert, copies, each once";
  return success();
}

std::string pp::pipeline::textOf(AxesAttr axes) {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleaveComma(axes.getAxes(), os, [&](Axis axis) { os << stringifyAxis(axis); });
  return text;
}

//===-- Messages between devices of a rank ----------------------------------------------------------------------===//

LogicalResult pp::pipeline::verifyAxes(Operation *op, ProgramOp program, AxesAttr axes, std::optional<uint64_t> tensors,
                                       TupleType payload) {
  if (!axes)
    return tensors ? op->emitOpError("has a number of tensors; only what goes over axes of the mesh has one")
                   : success();
  if (!program.getMeshAttr())
    return op->emitOpError() << "goes over " << textOf(axes) << ", and this program has no mesh";
  if (tensors && (*tensors < 1 || *tensors > payload.size()))
    return op->emitOpError() << "has " << static_cast<int64_t>(*tensors) << " tensors of " << payload.size();
  return success();
}

int64_t PostOp::countMembers() {
  int64_t members = getPeers().size();
  for (Axis axis : getAxesAttr() ? getAxesAttr().getAxes() : ArrayRef<Axis>())
    members *= (*this)->getParentOfType<ProgramOp>().sizeOf(axis);
  return members;
}

TupleType PostOp::getPayload() {
  TupleType payload = getSlot().getType().getPayload();
  return getTensors() ? TupleType::get(getContext(), payload.getTypes().take_front(*getTensors())) : payload;
}

void MoveOp::build(OpBuilder &builder, OperationState &state, Type future, ThingAttr thing, Value value,
                   IntegerAttr group, AxesAttr axes, IntegerAttr tensors, bool cut) {
  auto &properties = state.getOrAddProperties<Properties>();
  properties.thing = thing;
  properties.group = group;
  properties.axes = axes;
  properties.tensors = tensors;
  properties.cut = cut ? builder.getUnitAttr() : UnitAttr();
  state.addOperands(value);
  state.addTypes(future);
}

void PostOp::build(OpBuilder &builder, OperationState &state, Type request, PostKind kind, ThingAttr thing, Value slot,
                   Value shard, ArrayRef<int64_t> peers, IntegerAttr root, DenseI64ArrayAttr cuts, IntegerAttr channel,
                   IntegerAttr group, AxesAttr axes, IntegerAttr tensors) {
  auto &properties = state.getOrAddProperties<Properties>();
  properties.kind = PostKindAttr::get(builder.getContext(), kind);
  properties.thing = thing;
  properties.peers = builder.getDenseI64ArrayAttr(peers);
  properties.root = root;
  properties.cuts = cuts;
  properties.channel = channel;
  properties.group = group;
  properties.axes = axes;
  properties.tensors = tensors;
  state.addOperands(slot);
  if (shard)
    state.addOperands(shard);
  state.addTypes(request);
}
