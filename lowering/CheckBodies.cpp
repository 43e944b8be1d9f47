// Walks the nn ops of a task body and the calls of the lowered one side by side.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   %y = nn.linear %x, %w {pipeline.buffers = ..: 2, 0}   pp_linear(rank, 0, p0, p1, null, p2)   ops[0] = linear, ..
// What lies where is read from `pipeline.buffers` and the body's groups; a place must have room for its tensor.
#include "lowering/CheckBodies.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/BodyGroups.h"
#include "llvm/IR/Function.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

class BodyCheck {
public:
  BodyCheck(func::FuncOp body, ArrayRef<bool> apart, int64_t rank, ArrayRef<const llvm::Function *> lowered,
            TextCheck &text)
      : body(body), apart(apart), rank(rank), lowered(lowered), text(text) {}

  LogicalResult run() {
    FailureOr<BodyGroups> found = BodyGroups::get(body);
    if (failed(found))
      return failure();
    groups = std::move(*found);
    if (apart.size() != groups.pointers.size())
      return differs(body, "its slots", Twine(groups.pointers.size()), Twine(apart.size()));
    int64_t argument = 1; // 0 is the rank
    for (auto [payload, isApart] : llvm::zip(groups.pointers, apart)) {
      firsts.push_back(argument);
      argument += isApart ? static_cast<int64_t>(payload.size()) : 1;
    }
    firsts.push_back(argument); // the scratch memory
    for (const llvm::Function *function : lowered) {
      if (static_cast<int64_t>(function->arg_size()) != argument + 1)
        return differs(body, "its arguments", Twine(argument + 1), Twine(function->arg_size()));
      if (std::string why = readCalls(*function, calls); !why.empty())
        return differs(body, "its calls", "calls alone", why);
    }
    if (failed(placeArguments()))
      return failure();
    for (Operation &op : body.front().without_terminator())
      if (failed(placeResults(op)))
        return failure();
    if (failed(checkPlaces(body, groups, rank)))
      return failure();
    return checkOps();
  }

private:
  struct Place {
    int64_t pointer, offset, bytes;
  };

  LogicalResult differs(Operation *op, const Twine &where, const Twine &expected, const Twine &got) {
    return reportDifference(op->getLoc(), rank, "body `@" + body.getSymName() + "`, " + where, expected, got);
  }
  static int64_t bytesOf(Value value) { return tensorBytes(cast<RankedTensorType>(value.getType())); }

  //===-- Places ------------------------------------------------------------------------------------------------===//

  LogicalResult placeArguments() {
    for (const BodyGroups::Group &group : groups.inputs)
      for (unsigned i = 0; i < group.payload.size(); ++i) {
        Value argument = body.getArgument(group.first + i);
        places[argument] = {group.pointer, groups.offsets[group.pointer][i], bytesOf(argument)};
      }
    return success();
  }

  LogicalResult placeResults(Operation &op) {
    if (!op.hasAttr(kBuffersAttr))
      return differs(&op, "`" + op.getName().getStringRef() + "`", "a place for each result", "none");
    auto scratch = body->getAttrOfType<IntegerAttr>(kScratchAttr);
    for (OpResult result : op.getResults()) {
      auto [pointer, offset] = bufferOf(result);
      Place place = {pointer, offset, bytesOf(result)};
      bool exists = place.pointer >= -1 && place.pointer < static_cast<int64_t>(groups.pointers.size());
      int64_t size = !exists || !scratch ? -1
                     : place.pointer < 0 ? scratch.getInt()
                                         : groups.offsets[place.pointer].back();
      if (place.offset < 0 || place.offset + place.bytes > size)
        return differs(&op, "a result of `" + op.getName().getStringRef() + "`", Twine(size) + " bytes of memory",
                       "a tensor from byte " + Twine(place.offset) + " to " + Twine(place.offset + place.bytes));
      places[result] = place;
    }
    return success();
  }

  /// The address that a kernel gets for the value; null for an absent one.
  CallAddress addressOf(Value value) {
    if (!value)
      return {};
    Place place = places.lookup(value);
    if (place.pointer < 0)
      return {firsts.back(), place.offset};
    if (!apart[place.pointer])
      return {firsts[place.pointer], place.offset};
    // The tensor that holds the place; an address for each is handed over.
    ArrayRef<int64_t> offsets = groups.offsets[place.pointer];
    int64_t tensor = llvm::upper_bound(offsets.drop_back(), place.offset) - offsets.begin() - 1;
    return {firsts[place.pointer] + tensor, place.offset - offsets[tensor]};
  }

  //===-- Ops ---------------------------------------------------------------------------------------------------===//

  LogicalResult checkOps() {
    size_t next = 0;
    auto ops = body.front().without_terminator();
    for (auto op = ops.begin(); op != ops.end(); ++op) {
      if (isa<nn::View>(*op))
        continue;
      if (failed(checkCompleted(next)) || failed(checkBeside(*op)))
        return failure();
      if (auto exchange = dyn_cast<nn::Exchange>(*op)) {
        if (failed(checkExchange(exchange, next)))
          return failure();
        continue;
      }
      auto kernel = dyn_cast<nn::Kernel>(*op);
      if (!kernel || next == calls.size())
        return differs(&*op, "`" + op->getName().getStringRef() + "`", "a call of its kernel", "none");
      const ReadCall &call = calls[next++];
      bool updates = isa<nn::AdamwOp>(*op), sums = isa<nn::SumSquaresOp>(*op);
      if ((updates || sums) && call.callee->getName() == ("pp_" + kernel.kernelName() + "_all").str()) {
        FailureOr<size_t> count = updates ? checkUpdates(op, ops.end(), call) : checkSums(op, ops.end(), call);
        if (failed(count))
          return failure();
        for (size_t i = 1; i < *count; ++i)
          if (failed(checkBeside(*++op)))
            return failure();
      } else if (failed(checkOp(kernel, call))) {
        return failure();
      }
    }
    if (failed(checkCompleted(next)))
      return failure();
    if (underWay)
      return differs(underWay->op, "at its end", "`pp_complete` of what is exchanged", "none");
    if (next != calls.size())
      return differs(body, "behind its last op", "no call", "`" + calls[next].callee->getName() + "`");
    return checkReturned();
  }

  /// The call has these operands behind the rank and the number of the kernel's entry, and the entry is this one.
  LogicalResult checkCall(Operation *op, const ReadCall &call, ArrayRef<CallOperand> pointers,
                          const ExpectedKernel &kernel) {
    std::string where = ("body `@" + body.getSymName() + "`, `" + op->getName().getStringRef() + "`").str();
    int64_t number = call.operands.size() > 1 ? call.operands[1].number : -1;
    SmallVector<CallOperand> all = {CallOperand::of(CallAddress{0, 0}), CallOperand::of(number)};
    all.append(pointers.begin(), pointers.end());
    if (!call.callee->isDeclaration())
      return differs(op, "`" + op->getName().getStringRef() + "`", "a kernel", "`" + call.callee->getName() + "`");
    if (failed(compareCalls(op->getLoc(), rank, where, "pp_" + kernel.kernel, all, call)))
      return failure();
    return text.checkKernel(op, number, kernel);
  }

  LogicalResult checkOp(nn::Kernel kernel, const ReadCall &call) {
    SmallVector<CallAddress> addresses;
    for (Value value : kernel.pointers())
      addresses.push_back(addressOf(value));
    if (auto backward = dyn_cast<nn::AttentionBwdOp>(kernel.getOperation()))
      addresses.push_back(addressOf(intactOutput(backward)));
    SmallVector<nn::Run> lists = kernel.lists();
    SmallVector<CallOperand> operands;
    ArrayRef<nn::Run> rest = lists;
    for (unsigned i = 0; i < addresses.size();)
      if (rest.empty() || rest.front().first != i) {
        operands.push_back(CallOperand::of(addresses[i++]));
      } else {
        unsigned count = rest.front().count;
        rest = rest.drop_front();
        operands.push_back(count > 0 ? CallOperand::of(ArrayRef(addresses).slice(i, count))
                                     : CallOperand::of(CallAddress()));
        i += count;
      }
    ExpectedKernel expected = {kernel.kernelName().str(), kernel.elementType(), kernel.dims(), kernel.params(),
                               kernel.flags()};
    // A delta that a library may make by itself: each of its readers gets the output.
    auto delta = dyn_cast<nn::AttentionDeltaOp>(kernel.getOperation());
    if (delta && llvm::all_of(delta->getUsers(), [&](Operation *user) {
          auto backward = dyn_cast<nn::AttentionBwdOp>(user);
          return backward && intactOutput(backward) == delta.getO();
        }))
      expected.flags.push_back("remade");
    expected.add(kernel);
    expected.addMoved(kernel);
    return checkCall(kernel, call, operands, expected);
  }

  //===-- Exchanges ---------------------------------------------------------------------------------------------===//

  struct Message {
    Operation *op;
    int64_t number;
  };

  /// Reads the completion of the message under way, if that is the next call.
  LogicalResult checkCompleted(size_t &next) {
    if (!underWay || next == calls.size() || calls[next].callee->getName() != "pp_complete")
      return success();
    Operation *op = underWay->op;
    std::string where = ("body `@" + body.getSymName() + "`, `" + op->getName().getStringRef() + "`").str();
    CallOperand expected[] = {CallOperand::of(CallAddress{0, 0}), CallOperand::of(underWay->number)};
    underWay.reset();
    return compareCalls(op->getLoc(), rank, where, "pp_complete", expected, calls[next++]);
  }

  /// The op exchanges nothing, writes nothing that the message under way sends, and does not touch what it brings.
  LogicalResult checkBeside(Operation &op) {
    if (!underWay)
      return success();
    auto meets = [&](Value a, Value b) {
      Place one = places.lookup(a), other = places.lookup(b);
      return one.pointer == other.pointer && one.offset < other.offset + other.bytes &&
             other.offset < one.offset + one.bytes;
    };
    Value sent = underWay->op->getOperand(0), comes = underWay->op->getResult(0);
    bool reads = llvm::any_of(op.getOperands(), [&](Value value) { return meets(value, comes); });
    bool writes = llvm::any_of(op.getResults(), [&](Value value) { return meets(value, comes) || meets(value, sent); });
    if (!reads && !writes && !isa<nn::Exchange>(op))
      return success();
    return differs(&op, "`" + op.getName().getStringRef() + "`",
                   "`pp_complete` of message " + Twine(underWay->number) + " before it", "none");
  }

  /// A value that is summed in another place is copied there; then the message is posted.
  LogicalResult checkExchange(nn::Exchange exchange, size_t &next) {
    Operation *op = exchange;
    std::string where = ("body `@" + body.getSymName() + "`, `" + op->getName().getStringRef() + "`").str();
    CallAddress from = addressOf(op->getOperand(0)), to = addressOf(op->getResult(0));
    bool sums = exchange.getKind() == nn::ExchangeKind::all_reduce, copies = sums && !(from == to);
    if (calls.size() - next < (copies ? 2 : 1))
      return differs(op, "`" + op->getName().getStringRef() + "`", "a message", "no further calls");
    auto type = cast<RankedTensorType>(op->getResult(0).getType());
    if (copies && failed(checkCall(op, calls[next++], {CallOperand::of(from), CallOperand::of(to)},
                                   {"copy", type.getElementType(), {type.getNumElements()}, {}, {}})))
      return failure();
    const ReadCall &post = calls[next++];
    int64_t number = post.operands.size() > 1 ? post.operands[1].number : -1;
    CallOperand self = CallOperand::of(CallAddress{0, 0}), message = CallOperand::of(number);
    bool scatters = exchange.getKind() == nn::ExchangeKind::reduce_scatter;
    auto [whole, shard] = scatters ? std::pair(from, to) : std::pair(to, sums ? CallAddress() : from);
    const CallOperand posted[] = {self, message, CallOperand::of(whole), CallOperand::of(shard)};
    if (failed(compareCalls(op->getLoc(), rank, where, "pp_post_collective", posted, post)))
      return failure();
    underWay = {op, number};
    return text.checkExchange(exchange, number);
  }

  /// The output from which delta was made, if nothing was written over it: a library makes delta from it again.
  Value intactOutput(nn::AttentionBwdOp backward) {
    auto delta = backward.getDelta().getDefiningOp<nn::AttentionDeltaOp>();
    if (!delta)
      return {};
    Place output = places.lookup(delta.getO());
    for (auto op = delta->getIterator(); op != std::next(backward->getIterator()); ++op)
      if (op->hasAttr(kBuffersAttr)) // of each op that comes, too: places are known up to the one at hand
        for (OpResult written : op->getResults()) {
          auto [pointer, offset] = bufferOf(written);
          if (pointer == output.pointer && offset < output.offset + output.bytes &&
              output.offset < offset + bytesOf(written))
            return {};
        }
    return delta.getO();
  }

  /// The number of ops of this kind, from `op` on, that a list with so many addresses is for; 0 if none fits.
  template <typename Op> size_t countListed(Block::iterator op, Block::iterator end, size_t addresses, size_t each) {
    size_t count = addresses / each;
    for (size_t i = 0; i < count; ++i, ++op)
      if (op == end || !isa<Op>(*op))
        return 0;
    return count * each == addresses ? count : 0;
  }

  /// Checks the one call for updates that follow each other. It has gradient, weight, m, v and master of each tensor.
  FailureOr<size_t> checkUpdates(Block::iterator op, Block::iterator end, const ReadCall &call) {
    size_t addresses = call.operands.size() == 4 ? call.operands[3].list.size() : 0;
    size_t count = countListed<nn::AdamwOp>(op, end, addresses, 5);
    if (count == 0)
      return differs(&*op, "`pp_adamw_all`", "a list of the updates that follow", Twine(addresses) + " addresses");
    auto first = cast<nn::AdamwOp>(*op);
    ExpectedKernel kernel = {"adamw_all", first.elementType(), {}, {}, {}};
    if (!first.getRate().isExactlyValue(1) || !first.getShrink().isExactlyValue(1))
      kernel.params.assign({first.getRate().convertToDouble(), first.getShrink().convertToDouble()});
    SmallVector<CallAddress> list;
    for (size_t i = 0; i < count; ++i, ++op) {
      auto update = cast<nn::AdamwOp>(*op);
      if (update.getNorm() != first.getNorm() || update.elementType() != first.elementType() ||
          update.getRate() != first.getRate() || update.getShrink() != first.getShrink())
        return differs(update, "`pp_adamw_all`", "updates of one type and group with one norm", "others");
      kernel.add(update, kernel.dims.size());
      kernel.addMoved(update, list.size());
      kernel.dims.append({cast<RankedTensorType>(update.getW().getType()).getNumElements(), update.getDecay()});
      auto [grad, norm, tensors] = split(update.pointers());
      list.push_back(addressOf(grad));
      for (Value tensor : tensors)
        list.push_back(addressOf(tensor));
    }
    if (failed(checkCall(first, call, {CallOperand::of(addressOf(first.getNorm())), CallOperand::of(list)}, kernel)))
      return failure();
    return count;
  }

  static std::tuple<Value, Value, SmallVector<Value>> split(ArrayRef<Value> pointers) {
    return {pointers[0], pointers[1], SmallVector<Value>(pointers.drop_front(2))};
  }

  /// One call for terms of one sum, each added to the one before.
  FailureOr<size_t> checkSums(Block::iterator op, Block::iterator end, const ReadCall &call) {
    size_t addresses = call.operands.size() == 4 ? call.operands[2].list.size() : 0;
    size_t count = countListed<nn::SumSquaresOp>(op, end, addresses, 1);
    if (count == 0)
      return differs(&*op, "`pp_sum_squares_all`", "a list of the terms that follow", Twine(addresses) + " addresses");
    auto first = cast<nn::SumSquaresOp>(*op);
    ExpectedKernel kernel = {"sum_squares_all", first.elementType(), {}, {}, first.flags()};
    SmallVector<CallAddress> list;
    Value sum;
    for (size_t i = 0; i < count; ++i, ++op) {
      auto term = cast<nn::SumSquaresOp>(*op);
      bool follows = !sum || (term.getAcc() == sum && addressOf(term.getSum()) == addressOf(sum));
      if (!follows || term.elementType() != first.elementType())
        return differs(term, "`pp_sum_squares_all`", "terms of one type of one sum", "others");
      kernel.add(term, kernel.dims.size());
      kernel.addMoved(term, list.size());
      int64_t elements = cast<RankedTensorType>(term.getGrad().getType()).getNumElements();
      if (term.getFlat() && term.getFlat()->size() > 3) // the gradient is one of those in a shard
        elements = (*term.getFlat())[3];
      kernel.dims.append({elements, 0});
      list.push_back(addressOf(term.getGrad()));
      sum = term.getSum();
    }
    if (failed(checkCall(first, call, {CallOperand::of(list), CallOperand::of(addressOf(sum))}, kernel)))
      return failure();
    return count;
  }

  //===-- Results -----------------------------------------------------------------------------------------------===//

  /// Every returned tensor lies in its group's place, or is an argument that is handed on in its own place: then the
  /// launch's slots share this memory (prove-slots).
  LogicalResult checkReturned() {
    auto handed = body->getAttrOfType<DenseI64ArrayAttr>(kHandedAttr);
    llvm::DenseMap<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>> stays;
    for (ArrayRef<int64_t> rest = handed ? handed.asArrayRef() : ArrayRef<int64_t>(); rest.size() >= 4;
         rest = rest.drop_front(4))
      stays[{rest[2], rest[3]}] = {rest[0], rest[1]};
    Operation *end = body.front().getTerminator();
    for (const BodyGroups::Group &group : groups.results)
      for (unsigned i = 0; i < group.payload.size(); ++i) {
        Place place = places.lookup(end->getOperand(group.first + i));
        auto isAt = [&](int64_t pointer, int64_t tensor) {
          return place.pointer == pointer && place.offset == groups.offsets[pointer][tensor];
        };
        auto stay = stays.find({group.pointer, i});
        if (!isAt(group.pointer, i) && (stay == stays.end() || !isAt(stay->second.first, stay->second.second)))
          return differs(end, "returned tensor " + Twine(group.first + i),
                         "tensor " + Twine(i) + " of slot " + Twine(group.pointer),
                         "byte " + Twine(place.offset) + " of slot " + Twine(place.pointer));
      }
    return success();
  }

  func::FuncOp body;
  ArrayRef<bool> apart;
  int64_t rank;
  ArrayRef<const llvm::Function *> lowered;
  TextCheck &text;
  BodyGroups groups;
  SmallVector<int64_t> firsts; ///< by pointer: its first argument; last, that of the scratch memory
  llvm::DenseMap<Value, Place> places;
  std::vector<ReadCall> calls;
  std::optional<Message> underWay; ///< posted and not yet completed
};

} // namespace

LogicalResult pp::checkBody(func::FuncOp body, ArrayRef<bool> apart, int64_t rank,
                            ArrayRef<const llvm::Function *> lowered, TextCheck &text) {
  return BodyCheck(body, apart, rank, lowered, text).run();
}
