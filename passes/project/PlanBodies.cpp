// Plans memory inside task bodies: each op result gets a byte range in a slot or in the body's scratch memory.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: %a = nn.linear %x, %w   %b = nn.gelu %a   %c = nn.linear %b, %v   return %c
// After:  %a {pipeline.buffers = array<i64: -1, 0>}, %b {..: -1, 65536}, %c {..: 3, 0}, `pipeline.scratch_bytes`
//
// A returned value is written straight to the place of its result group; a value in the slot of an input (ties) stays
// there. The other values are placed by first fit, once in order of birth and once by size; the smaller of the two
// plans is taken.
//
//   op      0   1   2   3   4                A value lives from the op that makes it to its last reader, both included:
//   %a      [-------]                        an op never writes where it still reads, except where its kernel says
//   %b          [-------]    offset 64K      that it may (in-place ties) and the operand dies there.
//   %d                  [---]  offset 0
#include "dialect/nn/Nn.h"
#include "passes/Passes.h"
#include "passes/project/BodyPlan.h"
#include <map>

namespace pp {
#define GEN_PASS_DEF_PLANBODIES
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- Buffers -------------------------------------------------------------------------------------------------===//

/// The place of each tensor in the body's flat list of results.
static SmallVector<Place> placesOfResults(const BodyGroups &groups) {
  SmallVector<Place> places;
  for (const BodyGroups::Group &group : groups.results)
    for (int64_t offset : ArrayRef(groups.offsets[group.pointer]).drop_back())
      places.push_back({group.pointer, offset});
  return places;
}

// A value lies in one place only: what is returned twice, or is an argument that must appear elsewhere, is copied.
void BodyPlan::copyReturned() {
  argumentPlaces = groups.argumentPlaces(body);
  resultPlaces = placesOfResults(groups);
  for (BlockArgument argument : body.getArguments())
    argumentsAt[argumentPlaces.lookup(argument)].push_back(argument);
  Operation *end = terminator();
  OpBuilder builder(end);
  copyParts();
  llvm::DenseMap<Value, Place> seen = argumentPlaces;
  for (OpOperand &operand : end->getOpOperands()) {
    Place place = resultPlaces[operand.getOperandNumber()];
    auto [found, isNew] = seen.try_emplace(operand.get(), place);
    if (isPending(operand.getOperandNumber()) && dies(operand.get()))
      hand(operand.get(), operand.getOperandNumber());
    else if (!isNew && found->second != place)
      operand.set(nn::copyOf(builder, end->getLoc(), operand.get()));
  }
}

int64_t BodyPlan::lastUse(Value value) const {
  int64_t last = -1;
  for (Operation *user : nn::readersOf(value))
    last = std::max(last, numbers.lookup(user));
  return last;
}

void BodyPlan::number() {
  for (auto [i, op] : llvm::enumerate(body.front()))
    numbers[&op] = static_cast<int64_t>(i);
  auto add = [&](Value value, int64_t birth) -> Buffer & {
    index[value] = buffers.size();
    buffers.push_back(
        {birth, std::max(birth, lastUse(value)), bytesOf(value), false, std::nullopt, 1, index[value], 0});
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

/// The buffer that holds the value now, and where in it the value begins. What was taken in refers to what took it in,
/// so that a long chain of ties costs what a short one does for each of its values.
std::pair<unsigned, int64_t> BodyPlan::find(Value value) {
  unsigned own = index.lookup(value), root = own;
  int64_t offset = 0;
  for (; buffers[root].into != root; root = buffers[root].into)
    offset += buffers[root].shift;
  for (int64_t rest = offset; buffers[own].into != root && own != root;) { // the next search is short
    Buffer &passed = buffers[own];
    own = passed.into;
    passed.into = root;
    rest -= std::exchange(passed.shift, rest);
  }
  return {root, offset};
}

// `from` comes to lie `offset` bytes behind the beginning of `into`; the buffer that begins first takes the other one
// in.
void BodyPlan::merge(Value into, Value from, int64_t offset) {
  auto [target, targetOffset] = find(into);
  auto [source, sourceOffset] = find(from);
  int64_t shift = targetOffset + offset - sourceOffset;
  if (shift < 0)
    return merge(from, into, -offset);
  if (target == source)
    return;
  Buffer &a = buffers[target], &b = buffers[source];
  a.birth = std::min(a.birth, b.birth);
  a.death = std::max(a.death, b.death);
  a.bytes = std::max(a.bytes, shift + b.bytes);
  a.given |= b.given;
  if (!a.place)
    a.place = b.place;
  a.values += b.values;
  b.into = target;
  b.shift = shift;
}

// The value in the buffer before `op` writes it must not be read later, nor by `op` itself as another operand.
LogicalResult BodyPlan::tieRequired(Operation &op) {
  auto inPlace = dyn_cast<nn::InPlace>(op);
  if (!inPlace)
    return success();
  for (nn::Tie tie : inPlace.getRequiredTies()) {
    Value operand = op.getOperand(tie.operand), result = op.getResult(tie.result);
    if (bytesOf(operand) != bytesOf(result))
      return op.emitOpError() << "ties " << result.getType() << " to an operand of type " << operand.getType();
    for (Operation *user : nn::readersOf(operand))
      if (numbers.lookup(user) > numbers.lookup(&op)) {
        InFlightDiagnostic error = op.emitOpError()
                                   << "writes over its operand " << tie.operand << ", which is read afterwards";
        error.attachNote(user->getLoc()) << "read here";
        return error;
      }
    auto [own, begin] = find(operand);
    for (OpOperand &other : op.getOpOperands())
      if (auto [buffer, offset] = find(other.get()); other.getOperandNumber() != tie.operand && buffer == own &&
                                                     offset < begin + bytesOf(operand) &&
                                                     begin < offset + bytesOf(other.get()))
        return op.emitOpError() << "writes over its operand " << tie.operand << ", which it reads as operand "
                                << other.getOperandNumber() << ", too";
    Buffer &buffer = bufferOf(operand);
    if (buffer.given && !llvm::is_contained(groups.ties, buffer.place->first))
      return op.emitOpError() << "writes over an argument of group `" << groups.inputs[buffer.place->first].name.str()
                              << "`, whose slot no result takes over";
    merge(operand, result);
  }
  return success();
}

// A value that goes to the slot of an input whose argument is still read from the writing op on would destroy it.
LogicalResult BodyPlan::checkOverwrite(Value written, Place place) {
  int64_t birth = bufferOf(written).birth;
  for (Value argument : argumentsAt.lookup(place))
    for (Operation *user : nn::readersOf(argument))
      if (numbers.lookup(user) >= birth) {
        Operation *writer = written.getDefiningOp();
        InFlightDiagnostic error = writer->emitOpError("writes the slot of an argument that is still read");
        error.attachNote(user->getLoc()) << "read here";
        return error;
      }
  return success();
}

LogicalResult BodyPlan::placeResults() {
  Operation *end = terminator();
  for (OpOperand &operand : end->getOpOperands()) {
    Place place = resultPlaces[operand.getOperandNumber()];
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
    unsigned own = find(operand).first;
    if (own == find(result).first)
      continue;
    Buffer &from = bufferOf(operand), &to = bufferOf(result);
    auto reads = llvm::count_if(op.getOperands(), [&](Value v) { return find(v).first == own; });
    bool dies = from.death == now && reads == 1 && !from.given && !from.place;
    bool begins = to.birth == now && !to.given && !(to.place && to.place->first < inputs);
    if (dies && begins && from.bytes == to.bytes && isWhole(operand) && isWhole(result))
      merge(result, operand);
  }
}

namespace {

/// Buffers that were placed, found by the ops at which they live: few live beside each other, however many there are.
class PlacedBuffers {
public:
  PlacedBuffers(ArrayRef<Buffer> buffers, int64_t ops) : buffers(buffers), ops(ops + 2), nodes(2 * this->ops) {}

  /// Adds it to as few nodes of the tree as cover its life.
  void add(unsigned i) {
    byBirth.insert({buffers[i].birth, i});
    int64_t first = leaf(buffers[i].birth), end = leaf(buffers[i].death) + 1;
    for (; first < end; first /= 2, end /= 2) {
      if (first % 2)
        nodes[first++].push_back(i);
      if (end % 2)
        nodes[--end].push_back(i);
    }
  }
  /// Those that live at the birth of the buffer, then those that are born in its life.
  SmallVector<unsigned> beside(unsigned i) const {
    SmallVector<unsigned> found;
    for (int64_t node = leaf(buffers[i].birth); node > 0; node /= 2)
      llvm::append_range(found, nodes[node]);
    for (auto it = byBirth.upper_bound(buffers[i].birth); it != byBirth.end() && it->first <= buffers[i].death; ++it)
      found.push_back(it->second);
    return found;
  }

private:
  ArrayRef<Buffer> buffers;
  int64_t ops; ///< from -1, where arguments begin, to the return
  std::vector<SmallVector<unsigned, 1>> nodes;
  std::multimap<int64_t, unsigned> byBirth;

  int64_t leaf(int64_t op) const { return ops + op + 1; }
};

} // namespace

int64_t BodyPlan::colour(bool bySize, SmallVectorImpl<int64_t> &offsets) {
  SmallVector<unsigned> order;
  for (auto [i, buffer] : llvm::enumerate(buffers))
    if (buffer.into == i && !buffer.place)
      order.push_back(i);
  llvm::stable_sort(order, [&](unsigned a, unsigned b) {
    return bySize ? buffers[a].bytes > buffers[b].bytes : buffers[a].birth < buffers[b].birth;
  });
  offsets.assign(buffers.size(), 0);
  PlacedBuffers placed(buffers, numbers.size());
  int64_t total = 0;
  for (unsigned i : order) {
    // The first gap between the buffers that live at the same time will do.
    SmallVector<unsigned> beside = placed.beside(i);
    llvm::sort(beside, [&](unsigned a, unsigned b) { return offsets[a] < offsets[b]; });
    int64_t offset = 0;
    for (unsigned other : beside) {
      int64_t end = offsets[other] + buffers[other].bytes;
      if (end <= offset)
        continue;
      if (offset + buffers[i].bytes <= offsets[other])
        break;
      offset = end;
    }
    offsets[i] = offset;
    total = std::max(total, offset + buffers[i].bytes);
    placed.add(i);
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
      auto [i, offset] = find(result);
      Place place = buffers[i].place.value_or(Place(-1, begins[i]));
      places.append({place.first, place.second + offset});
    }
    op.setAttr(kBuffersAttr, builder.getDenseI64ArrayAttr(places));
  }
  body->setAttr(kScratchAttr, builder.getI64IntegerAttr(std::min(scratch, other)));
  if (handed.empty())
    body->removeAttr(kHandedAttr);
  else
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
  for (Operation &op : body.front()) {
    tieAllowed(op);
    keepUnderWay(op);
  }
  handOn();
  write();
  markOverlaps();
  return success();
}

/// A stash that goes to host memory and back lies in one run of bytes, as messages do: then W gets copies.
static bool movesStash(ModuleOp module) {
  auto isOfStash = [](auto move) { return move.getThing().getRole() == Role::stash; };
  for (auto program : module.getOps<ProgramOp>()) {
    if (llvm::any_of(program.getOps<MoveOp>(), isOfStash))
      return true;
    for (auto rank : program.getOps<RankOp>()) // of a file
      if (llvm::any_of(rank.getOps<PostOp>(), isOfStash))
        return true;
  }
  return false;
}

namespace {
struct PlanBodies : public pp::impl::PlanBodiesBase<PlanBodies> {
  void runOnOperation() override {
    bool hands = !movesStash(getOperation());
    for (auto body : getOperation().getOps<func::FuncOp>()) {
      if (!BodyGroups::isBody(body) || body.empty())
        continue;
      FailureOr<BodyGroups> groups = BodyGroups::get(body);
      if (failed(groups) || failed(BodyPlan(body, std::move(*groups), hands).run()))
        return signalPassFailure();
    }
  }
};
} // namespace
