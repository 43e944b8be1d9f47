// Plans memory inside task bodies: each op result gets a byte range in a slot or in the body's scratch memory.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: %a = nn.linear %x, %w   %b = nn.gelu %a   %c = nn.linear %b, %v   return %c
// After:  %a {pipeline.buffers = array<i64: -1, 0>}, %b {..: -1, 65536}, %c {..: 3, 0}, `pipeline.scratch_bytes`
//
// What is returned is written straight where its result group lies; a value in the slot of an input (ties) stays there.
// The rest is coloured: first fit by offset, once in order of birth and once by size, the smaller of the two.
//
//   op      0   1   2   3   4                A value lives from the op that makes it to its last reader, both included:
//   %a      [-------]                        an op never writes where it still reads, except where its kernel says
//   %b          [-------]    offset 64K      that it may (in-place ties) and the operand dies there.
//   %d                  [---]  offset 0
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "passes/project/BodyPlan.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- Buffers -------------------------------------------------------------------------------------------------===//

/// Where tensor `position` of the body's flat list of results lies.
static Place resultPlace(const BodyGroups &groups, unsigned position) {
  for (const BodyGroups::Group &group : groups.results)
    if (position < group.first + group.payload.size())
      return {group.pointer, payloadOffsets(group.payload)[position - group.first]};
  llvm_unreachable("BodyGroups::get checked that groups cover all results");
}

// A value lies in one place only: what is returned twice, or is an argument that must appear elsewhere, is copied.
void BodyPlan::copyReturned() {
  argumentPlaces = groups.argumentPlaces(body);
  Operation *end = terminator();
  OpBuilder builder(end);
  copyParts();
  llvm::DenseMap<Value, Place> seen = argumentPlaces;
  for (OpOperand &operand : end->getOpOperands()) {
    auto [found, isNew] = seen.try_emplace(operand.get(), resultPlace(groups, operand.getOperandNumber()));
    if (isPending(operand.getOperandNumber()) && dies(operand.get()))
      hand(operand.get(), operand.getOperandNumber());
    else if (!isNew && found->second != resultPlace(groups, operand.getOperandNumber()))
      operand.set(builder.create<nn::CopyOp>(end->getLoc(), operand.get(), Value()).getY());
  }
}

int64_t BodyPlan::lastUse(Value value) const {
  int64_t last = -1;
  for (Operation *user : readersOf(value))
    last = std::max(last, numbers.lookup(user));
  return last;
}

void BodyPlan::number() {
  for (auto [i, op] : llvm::enumerate(body.front()))
    numbers[&op] = static_cast<int64_t>(i);
  auto add = [&](Value value, int64_t birth) -> Buffer & {
    index[value] = buffers.size();
    buffers.push_back({birth, std::max(birth, lastUse(value)), bytesOf(value), false, std::nullopt, {value}});
    return buffers.back();
  };
  for (BlockArgument argument : body.getArguments()) {
    Buffer &buffer = add(argument, -1);
    buffer.given = true;
    buffer.place = argumentPlaces.lookup(argument);
  }
  for (Operation &op : body.front())
    for (Value result : op.getResults())
      add(result, numbers.lookup(&op));
  for (Operation &op : body.front())
    mergeViews(op);
}

// `from` comes to lie `offset` bytes behind the beginning of `into`; the buffer that begins first takes the other one
// in.
void BodyPlan::merge(Value into, Value from, int64_t offset) {
  int64_t shift = offsets.lookup(into) + offset - offsets.lookup(from);
  if (shift < 0)
    return merge(from, into, -offset);
  unsigned target = index.lookup(into), source = index.lookup(from);
  if (target == source)
    return;
  Buffer &a = buffers[target], &b = buffers[source];
  a.birth = std::min(a.birth, b.birth);
  a.death = std::max(a.death, b.death);
  a.bytes = std::max(a.bytes, shift + b.bytes);
  a.given |= b.given;
  if (!a.place)
    a.place = b.place;
  for (Value value : b.values) {
    index[value] = target;
    offsets[value] += shift;
  }
  a.values.append(b.values.begin(), b.values.end());
  b.values.clear();
}

// The value in the buffer before `op` writes it must not be read later.
LogicalResult BodyPlan::tieRequired(Operation &op) {
  auto inPlace = dyn_cast<nn::InPlace>(op);
  if (!inPlace)
    return success();
  for (nn::Tie tie : inPlace.getRequiredTies()) {
    Value operand = op.getOperand(tie.operand), result = op.getResult(tie.result);
    if (bytesOf(operand) != bytesOf(result))
      return op.emitOpError() << "ties " << result.getType() << " to an operand of type " << operand.getType();
    for (Operation *user : readersOf(operand))
      if (numbers.lookup(user) > numbers.lookup(&op)) {
        InFlightDiagnostic error = op.emitOpError()
                                   << "writes over its operand " << tie.operand << ", which is read afterwards";
        error.attachNote(user->getLoc()) << "read here";
        return error;
      }
    Buffer &buffer = bufferOf(operand);
    if (buffer.given && !llvm::is_contained(groups.ties, buffer.place->first))
      return op.emitOpError() << "writes over an argument of group `" << groups.inputs[buffer.place->first].name
                              << "`, whose slot no result takes over";
    merge(operand, result);
  }
  return success();
}

// A value that goes to the slot of an input whose argument is still read from the writing op on would destroy it.
LogicalResult BodyPlan::checkOverwrite(Value written, Place place) {
  int64_t birth = bufferOf(written).birth;
  for (auto [argument, other] : argumentPlaces) {
    if (other != place)
      continue;
    for (Operation *user : readersOf(argument))
      if (numbers.lookup(user) >= birth) {
        Operation *writer = written.getDefiningOp();
        InFlightDiagnostic error = writer->emitOpError("writes the slot of an argument that is still read");
        error.attachNote(user->getLoc()) << "read here";
        return error;
      }
  }
  return success();
}

LogicalResult BodyPlan::placeResults() {
  Operation *end = terminator();
  for (OpOperand &operand : end->getOpOperands()) {
    Place place = resultPlace(groups, operand.getOperandNumber());
    Buffer &buffer = bufferOf(operand.get());
    if (taken.contains(operand.getOperandNumber()))
      continue;
    if (buffer.place && *buffer.place != place)
      return end->emitOpError() << "returns as tensor " << operand.getOperandNumber()
                                << " a value that was made in place of another group's";
    if (!buffer.place && failed(checkOverwrite(operand.get(), place)))
      return failure();
    buffer.place = place;
  }
  return success();
}

// An operand that dies here hands its buffer on. Not what is an argument: its slot is the rank program's.
void BodyPlan::tieAllowed(Operation &op) {
  auto inPlace = dyn_cast<nn::InPlace>(op);
  if (!inPlace)
    return;
  int64_t now = numbers.lookup(&op), inputs = static_cast<int64_t>(groups.inputs.size());
  for (nn::Tie tie : inPlace.getAllowedTies()) {
    Value operand = op.getOperand(tie.operand), result = op.getResult(tie.result);
    if (index.lookup(operand) == index.lookup(result))
      continue;
    Buffer &from = bufferOf(operand), &to = bufferOf(result);
    auto reads = llvm::count_if(op.getOperands(), [&](Value v) { return index.lookup(v) == index.lookup(operand); });
    bool dies = from.death == now && reads == 1 && !from.given && !from.place;
    bool begins = to.birth == now && !to.given && !(to.place && to.place->first < inputs);
    if (dies && begins && from.bytes == to.bytes && isWhole(operand) && isWhole(result))
      merge(result, operand);
  }
}

int64_t BodyPlan::colour(bool bySize, SmallVectorImpl<int64_t> &offsets) {
  SmallVector<unsigned> order, placed;
  for (auto [i, buffer] : llvm::enumerate(buffers))
    if (!buffer.values.empty() && !buffer.place)
      order.push_back(i);
  llvm::stable_sort(order, [&](unsigned a, unsigned b) {
    return bySize ? buffers[a].bytes > buffers[b].bytes : buffers[a].birth < buffers[b].birth;
  });
  offsets.assign(buffers.size(), 0);
  int64_t total = 0;
  for (unsigned i : order) {
    // `placed` is sorted by offset: the first gap between the buffers that live at the same time will do.
    int64_t offset = 0;
    for (unsigned other : placed) {
      bool together = buffers[other].birth <= buffers[i].death && buffers[i].birth <= buffers[other].death;
      if (!together || offsets[other] + buffers[other].bytes <= offset)
        continue;
      if (offset + buffers[i].bytes <= offsets[other])
        break;
      offset = offsets[other] + buffers[other].bytes;
    }
    offsets[i] = offset;
    total = std::max(total, offset + buffers[i].bytes);
    placed.insert(llvm::upper_bound(placed, offset, [&](int64_t at, unsigned b) { return at < offsets[b]; }), i);
  }
  return total;
}

void BodyPlan::write() {
  SmallVector<int64_t> byBirth, bySize;
  int64_t scratch = colour(false, byBirth), other = colour(true, bySize);
  ArrayRef<int64_t> begins = other < scratch ? bySize : byBirth;
  Builder builder(body.getContext());
  for (Operation &op : body.front().without_terminator()) {
    SmallVector<int64_t> places;
    for (Value result : op.getResults()) {
      unsigned i = index.lookup(result);
      Place place = buffers[i].place.value_or(Place(-1, begins[i]));
      places.append({place.first, place.second + offsets.lookup(result)});
    }
    op.setAttr(kBuffersAttr, builder.getDenseI64ArrayAttr(places));
  }
  body->setAttr(kScratchAttr, builder.getI64IntegerAttr(std::min(scratch, other)));
  if (!handed.empty())
    body->setAttr(kHandedAttr, builder.getDenseI64ArrayAttr(handed));
}

LogicalResult BodyPlan::run() {
  for (Operation &op : body.front())
    for (Type type : op.getResultTypes())
      if (auto tensor = dyn_cast<RankedTensorType>(type); !tensor || !tensor.hasStaticShape())
        return op.emitOpError() << "expected results that are tensors of static shape in a task body, got " << type;
  copyReturned();
  number();
  for (Operation &op : body.front())
    if (failed(tieRequired(op)))
      return failure();
  if (failed(placeResults()))
    return failure();
  for (Operation &op : body.front())
    tieAllowed(op);
  handOn();
  write();
  return success();
}

/// A stash that goes to host memory and back lies in one run of bytes, as messages do: then W gets copies.
static bool movesStash(ModuleOp module) {
  for (auto program : module.getOps<ProgramOp>())
    for (auto move : program.getOps<MoveOp>())
      if (move.getThing().getRole() == Role::stash)
        return true;
  return false;
}

LogicalResult pp::planBodies(ModuleOp module) {
  bool hands = !movesStash(module);
  for (auto body : module.getOps<func::FuncOp>()) {
    if (!BodyGroups::isBody(body) || body.empty())
      continue;
    FailureOr<BodyGroups> groups = BodyGroups::get(body);
    if (failed(groups) || failed(BodyPlan(body, std::move(*groups), hands).run()))
      return failure();
  }
  return success();
}
