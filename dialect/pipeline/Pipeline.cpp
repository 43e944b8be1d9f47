// Verifiers, names of results and locations of the `pipeline` dialect.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Ranges.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/Path.h"

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

static LogicalResult verifyPlaced(Operation *op, Type type) {
  auto value = cast<ValType>(type);
  if (value.getRanks().empty())
    return op->emitOpError() << "has a value on no rank";
  return verifyRanks(op, cast<ProgramOp>(op->getParentOp()), value.getRanks());
}

LogicalResult InputOp::verify() {
  if (getData().has_value() != (getThing().getRole() == Role::data))
    return emitOpError() << "is `" << getThing().str()
                         << "`; expected the name of the data for `data`, and for no other";
  auto kind = symbolizeBindingKind(getData().value_or("tokens"));
  if (!kind || !BindingAttr::isData(*kind))
    return emitOpError() << "is `" << *getData()
                         << "`; expected tokens, targets, source, starts, positions, rows or column";
  return verifyPlaced(*this, getValue().getType());
}

LogicalResult OutputOp::verify() { return verifyPlaced(*this, getValue().getType()); }

LogicalResult TaskOp::verify() {
  auto program = cast<ProgramOp>((*this)->getParentOp());
  if (getRanks().empty())
    return emitOpError("runs on no rank");
  if (failed(verifyRanks(*this, program, getRanks())) || failed(verifyUnit(*this, program, getUnit())) ||
      failed(verifyShare(*this, getShareAttr())))
    return failure();
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
  if (getAxes() && (from != to || !oneFrom || a != Layout::full)) // of the mesh: it stays on its rank
    return std::nullopt;
  if (getAxes() && getCut())
    return from.getRole() == Role::weight ? Verb::all_gather : Verb::reduce_scatter;
  if (getAxes())
    return Verb::all_reduce;
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
  if (failed(verifyAxes(*this, cast<ProgramOp>((*this)->getParentOp()), getAxesAttr(), getTensors(), to.getPayload())))
    return failure();
  if (getCut() && (!getAxes() || !getTensors() || (to.getRole() != Role::grad && to.getRole() != Role::weight)))
    return emitOpError("is `cut`; expected tensors of a gradient or of weights that go over axes of the mesh");
  return verifyPlaced(*this, to);
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

LogicalResult pp::pipeline::SplitOp::verify() {
  auto group = cast<ValType>(getValue().getType()), own = cast<ValType>(getOwn().getType());
  if (own.getRanks().size() != 1 || !llvm::is_contained(group.getRanks(), own.getRanks().front()))
    return emitOpError() << "takes what " << own.getPlace().str() << " holds of a value on " << group.getPlace().str();
  return success();
}

Value pp::pipeline::tiedInput(Value value) {
  auto task = value.getDefiningOp<TaskOp>();
  int64_t tie = task ? task.getTies()[cast<OpResult>(value).getResultNumber()] : -1;
  return tie < 0 ? Value() : task.getInputs()[tie];
}

//===-- Attributes of task functions ----------------------------------------------------------------------------===//

double pp::pipeline::flopsOf(func::FuncOp body) {
  auto flops = body->getAttrOfType<FloatAttr>(kFlopsAttr);
  return flops ? flops.getValueAsDouble() : 0;
}

std::pair<int64_t, int64_t> pp::pipeline::bufferOf(OpResult result) {
  auto buffers = result.getOwner()->getAttrOfType<DenseI64ArrayAttr>(kBuffersAttr);
  return {buffers[2 * result.getResultNumber()], buffers[2 * result.getResultNumber() + 1]};
}

LogicalResult PipelineDialect::verifyOperationAttribute(Operation *op, NamedAttribute named) {
  StringRef name = named.getName();
  Attribute value = named.getValue();
  auto refuse = [&](StringRef expected) {
    return op->emitOpError() << "expected " << expected << " in `" << name << "`, got " << value;
  };
  if (name == kBuffersAttr) {
    auto places = dyn_cast<DenseI64ArrayAttr>(value);
    return places && places.size() == 2 * op->getNumResults() ? success()
                                                              : refuse("a pointer and an offset for each result");
  }
  if (name == kOverlapsAttr) {
    if (op->getNumResults() == 0 || isa<nn::Exchange>(op))
      return op->emitOpError() << "has `" << name << "`, which is of an op that computes";
    return isa<UnitAttr>(value) ? success() : refuse("nothing");
  }
  if (name == kPlannedAttr && isa<ProgramOp>(op))
    return isa<UnitAttr>(value) ? success() : refuse("nothing");
  if (!isa<func::FuncOp>(op))
    return op->emitOpError() << "has `" << name << "`, an attribute of task functions";
  if (name == kBodyAttr)
    return isa<BodyAttr>(value) ? success() : refuse("`#pipeline.body<..>`");
  if (name == kInputsAttr || name == kResultsAttr)
    return isa<GroupsAttr>(value) ? success() : refuse("`#pipeline.groups<..>`");
  if (name == kTiesAttr || name == kHandedAttr)
    return isa<DenseI64ArrayAttr>(value) ? success() : refuse("numbers");
  if (name == kFlopsAttr)
    return isa<FloatAttr>(value) ? success() : refuse("a floating-point number");
  if (name == kScratchAttr) {
    auto bytes = dyn_cast<IntegerAttr>(value);
    return bytes && bytes.getInt() >= 0 ? success() : refuse("bytes, 0 or more,");
  }
  return op->emitOpError() << "has `" << name << "`, which is no attribute of this dialect";
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

std::string pp::pipeline::lineOf(Location loc) {
  if (auto file = dyn_cast<FileLineColLoc>(loc))
    return (llvm::sys::path::filename(file.getFilename().strref()) + ":" + Twine(file.getLine()) + ":" +
            Twine(file.getColumn()))
        .str();
  if (auto call = dyn_cast<CallSiteLoc>(loc)) {
    Location caller = call.getCaller();
    while (auto further = dyn_cast<CallSiteLoc>(caller))
      caller = further.getCaller();
    std::string own = lineOf(call.getCallee()), first = lineOf(caller);
    return own.empty() || first.empty() ? own + first : own + " called at " + first;
  }
  if (auto named = dyn_cast<NameLoc>(loc))
    return lineOf(named.getChildLoc());
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (Location part : fused.getLocations())
      if (std::string line = lineOf(part); !line.empty())
        return line;
  return "";
}
