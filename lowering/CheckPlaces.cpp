// Follows the bytes of a task body from op to op: each op reads what was made for it, where it was made.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   op              bytes 0 .. 64 of the scratch memory     bytes 64 .. 128
//   %a = f %x       %a                                       ?
//   %b = g %a       %a                                       %b
//   %c = h %b       %c                                       %b          %a is gone: who reads it now is wrong
//
// plan-bodies plans these places and prove-slots looks at whole slots only, so this is the proof of the plan inside.
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/BodyGroups.h"
#include "lowering/CheckBodies.h"
#include <map>

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// A run of bytes of a value that no view made.
struct ByteRun {
  Value value;
  int64_t begin, bytes;
};

/// The contents of a body's memory, byte by byte, as runs of values.
class Contents {
public:
  using Place = std::pair<int64_t, int64_t>; ///< pointer of the signature (-1: scratch), byte

  void write(Place place, const ByteRun &wanted) {
    auto [pointer, begin] = place;
    auto &runs = memory[pointer];
    int64_t end = begin + wanted.bytes;
    auto run = runs.lower_bound(begin);
    if (run != runs.begin() && std::prev(run)->first + std::prev(run)->second.bytes > begin)
      --run;
    while (run != runs.end() && run->first < end) {
      auto [from, old] = *run;
      run = runs.erase(run);
      if (from < begin)
        runs[from] = {old.value, old.begin, begin - from};
      if (int64_t more = from + old.bytes - end; more > 0)
        run = runs.insert({end, {old.value, old.begin + old.bytes - more, more}}).first;
    }
    runs[begin] = wanted;
  }

  bool holds(Place place, const ByteRun &wanted) {
    auto [pointer, begin] = place;
    auto &runs = memory[pointer];
    int64_t done = 0;
    for (auto run = runs.upper_bound(begin); done < wanted.bytes;) {
      if (done == 0) {
        if (run == runs.begin())
          return false;
        --run;
      }
      if (run == runs.end() || run->first > begin + done || run->second.value != wanted.value ||
          run->second.begin + (begin + done - run->first) != wanted.begin + done)
        return false;
      int64_t taken = run->first + run->second.bytes - (begin + done);
      if (taken <= 0)
        return false;
      done += taken;
      ++run;
    }
    return true;
  }

private:
  std::map<int64_t, std::map<int64_t, ByteRun>> memory; ///< by pointer and first byte
};

class PlaceCheck {
public:
  PlaceCheck(func::FuncOp body, const BodyGroups &groups, int64_t rank) : body(body), groups(groups), rank(rank) {}

  LogicalResult run() {
    readHanded();
    for (auto [argument, place] : groups.argumentPlaces(body)) {
      places[argument] = memoryOf(place);
      contents.write(places[argument], {argument, 0, bytesOf(argument)});
    }
    for (Operation &op : body.front().without_terminator())
      if (failed(check(op)))
        return failure();
    Operation *end = body.front().getTerminator();
    for (Value value : end->getOperands())
      if (failed(checkRead(end, value)))
        return failure();
    return checkKept();
  }

private:
  using Place = Contents::Place;

  static int64_t bytesOf(Value value) { return tensorBytes(cast<RankedTensorType>(value.getType())); }

  /// A tensor that is handed on is the same memory under two pointers of the signature.
  void readHanded() {
    auto attr = body->getAttrOfType<DenseI64ArrayAttr>(kHandedAttr);
    for (ArrayRef<int64_t> rest = attr ? attr.asArrayRef() : ArrayRef<int64_t>(); rest.size() >= 4;
         rest = rest.drop_front(4))
      handed[{rest[2], rest[3]}] = {rest[0], rest[1]};
  }

  Place memoryOf(Place place) {
    if (place.first < 0)
      return place;
    ArrayRef<int64_t> offsets = groups.offsets[place.first];
    int64_t tensor = llvm::upper_bound(offsets.drop_back(), place.second) - offsets.begin() - 1;
    auto found = handed.find({place.first, tensor});
    if (found == handed.end())
      return place;
    auto [pointer, other] = found->second;
    return {pointer, groups.offsets[pointer][other] + place.second - offsets[tensor]};
  }

  /// A value as runs of those that its views are made of.
  void resolve(Value value, int64_t begin, int64_t bytes, SmallVectorImpl<ByteRun> &runs) {
    if (auto rows = value.getDefiningOp<nn::RowsOp>()) {
      auto type = cast<RankedTensorType>(value.getType());
      int64_t row = tensorBytes(type) / type.getDimSize(1);
      return resolve(rows.getX(), begin + row * static_cast<int64_t>(rows.getStart()), bytes, runs);
    }
    if (auto spread = value.getDefiningOp<nn::SpreadOp>())
      return resolve(spread.getX(), begin, bytes, runs);
    if (auto piece = value.getDefiningOp<nn::PieceOp>())
      return resolve(piece.getX(), begin + bytesOf(value) * static_cast<int64_t>(piece.getIndex()), bytes, runs);
    auto join = value.getDefiningOp<nn::JoinRowsOp>();
    if (!join) {
      runs.push_back({value, begin, bytes});
      return;
    }
    int64_t place = 0;
    for (Value run : join.getRuns()) {
      int64_t first = std::max(begin, place), last = std::min(begin + bytes, place + bytesOf(run));
      if (first < last)
        resolve(run, first - place, last - first, runs);
      place += bytesOf(run);
    }
  }

  LogicalResult differs(Operation *op, const Twine &expected, const Twine &got) {
    return reportDifference(op->getLoc(), rank,
                            "body `@" + body.getSymName() + "`, `" + op->getName().getStringRef() + "`", expected, got);
  }

  LogicalResult checkRead(Operation *op, Value value) {
    SmallVector<ByteRun> runs;
    resolve(value, 0, bytesOf(value), runs);
    auto [pointer, begin] = places.lookup(value);
    for (const ByteRun &wanted : runs) {
      if (!contents.holds({pointer, begin}, wanted))
        return differs(op, "a value where it was made", "memory that something else was written to");
      begin += wanted.bytes;
    }
    return success();
  }

  LogicalResult check(Operation &op) {
    for (OpResult result : op.getResults())
      places[result] = memoryOf(bufferOf(result));
    if (isa<nn::View>(op))
      return success();
    for (Value operand : op.getOperands())
      if (failed(checkRead(&op, operand)))
        return failure();
    for (unsigned i = 0; i < op.getNumResults(); ++i)
      if (failed(checkWrite(op, i)))
        return failure();
    for (Value result : op.getResults())
      contents.write(places[result], {result, 0, bytesOf(result)});
    return success();
  }

  bool overlap(Value a, Value b) {
    Place here = places.lookup(a), there = places.lookup(b);
    return here.first == there.first && here.second < there.second + bytesOf(b) &&
           there.second < here.second + bytesOf(a);
  }

  /// An op writes over an operand only if its kernel may, and then over all of it.
  LogicalResult checkWrite(Operation &op, unsigned number) {
    Value result = op.getResult(number);
    SmallVector<nn::Tie> ties;
    if (auto inPlace = dyn_cast<nn::InPlace>(op)) {
      ties = inPlace.getRequiredTies();
      for (nn::Tie tie : ties)
        if (tie.result == number && places.lookup(op.getOperand(tie.operand)) != places.lookup(result))
          return differs(&op, "a result in place of operand " + Twine(tie.operand), "one elsewhere");
      llvm::append_range(ties, inPlace.getAllowedTies());
    }
    for (OpOperand &operand : op.getOpOperands()) {
      bool isTied = llvm::any_of(
          ties, [&](nn::Tie tie) { return tie.result == number && tie.operand == operand.getOperandNumber(); });
      bool isSame =
          isTied && places.lookup(operand.get()) == places.lookup(result) && bytesOf(operand.get()) == bytesOf(result);
      if (!isSame && overlap(operand.get(), result))
        return differs(&op, "a result beside operand " + Twine(operand.getOperandNumber()), "one over it");
    }
    for (Value other : op.getResults().take_front(number))
      if (overlap(other, result))
        return differs(&op, "results beside each other", "one over another");
    return success();
  }

  /// Inputs that no result takes over are what they were.
  LogicalResult checkKept() {
    DenseSet<std::pair<int64_t, int64_t>> gone;
    for (auto &[to, from] : handed)
      gone.insert(from);
    for (auto [number, group] : llvm::enumerate(groups.inputs)) {
      if (llvm::is_contained(groups.ties, static_cast<int64_t>(number)))
        continue;
      for (unsigned i = 0; i < group.payload.size(); ++i)
        if (!gone.contains({group.pointer, i}) &&
            failed(checkRead(body.front().getTerminator(), body.getArgument(group.first + i))))
          return failure();
    }
    return success();
  }

  func::FuncOp body;
  const BodyGroups &groups;
  int64_t rank;
  Contents contents;
  llvm::DenseMap<Value, Place> places;
  std::map<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>> handed; ///< result's tensor, input's tensor
};

} // namespace

LogicalResult pp::checkPlaces(func::FuncOp body, const BodyGroups &groups, int64_t rank) {
  return PlaceCheck(body, groups, rank).run();
}
