// Lowers task bodies: every nn op becomes one call of its kernel on addresses that plan-bodies chose.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: func @s0.F(%x, %w) { %y = nn.linear %x, %w {pipeline.buffers = array<i64: 2, 0>}  return %y }
// After:  i32 @s0.F(rank, p0, p1, p2, scratch) { s = pp_linear(rank, 0, p0, p1, null, p2); if (s) return s; return 0 }
//
// An exchange is posted where it stands, and completed before the next op without `pipeline.overlaps`, or at the end.
#include "lowering/Bodies.h"
#include "dialect/nn/Nn.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

LogicalResult Body::checkLaunch(LaunchOp launch) const {
  SmallVector<Value> slots(launch.getInputs());
  slots.append(launch.getResults().begin(), launch.getResults().end());
  if (slots.size() != groups.pointers.size())
    return launch.emitOpError() << "hands " << slots.size() << " slots to `@" << launch.getCallee() << "`, which takes "
                                << groups.pointers.size();
  for (auto [i, slot, payload] : llvm::enumerate(slots, groups.pointers))
    if (cast<SlotType>(slot.getType()).getPayload() != payload)
      return launch.emitOpError() << "hands " << slot.getType() << " as slot " << i << " to `@" << launch.getCallee()
                                  << "`, which takes " << payload;
  if (scratch > 0 && !launch.getScratch())
    return launch.emitOpError() << "has no scratch; `@" << launch.getCallee() << "` needs " << scratch << " bytes";
  if (scratch > 0) {
    int64_t bytes = slotBytes(launch.getScratch());
    if (bytes < scratch)
      return launch.emitOpError() << "has " << bytes << " bytes of scratch; `@" << launch.getCallee() << "` needs "
                                  << scratch;
  }
  return success();
}

std::pair<unsigned, int64_t> Body::argumentOf(std::pair<int64_t, int64_t> place) const {
  auto [pointer, offset] = place; // argument 0 is the rank, the last one the scratch memory
  if (pointer < 0)
    return {begins.back() + 1, offset};
  if (!apart[pointer])
    return {begins[pointer] + 1, offset};
  ArrayRef<int64_t> offsets = groups.offsets[pointer];
  auto tensor = llvm::upper_bound(offsets.drop_back(), offset) - offsets.begin() - 1;
  return {begins[pointer] + 1 + tensor, offset - offsets[tensor]};
}

const Body *Bodies::get(func::FuncOp function, LaunchOp launch, ArrayRef<int64_t> turns) {
  SmallVector<bool> apart;
  for (Value slot : launch.slots()) {
    auto op = slot.getDefiningOp<SlotOp>();
    apart.push_back(op && op.getPlaces());
  }
  auto &variants = bodies[function];
  auto [found, isNew] = variants.try_emplace({apart, SmallVector<int64_t>(turns), bool(launch.leader())});
  if (!isNew)
    return found->second.get();
  auto body = std::make_unique<Body>();
  body->apart = apart;
  body->follows = bool(launch.leader());
  body->name = function.getSymName().str() + (variants.size() > 1 ? ".variant" + std::to_string(variants.size()) : "");
  if (succeeded(lower(function, turns, *body)))
    found->second = std::move(body);
  return found->second.get();
}

/// The op, and those behind it that one call can do as well: updates with one norm, or terms of one sum of squares.
static SmallVector<Operation *> listFrom(Block::iterator op, Block::iterator end) {
  SmallVector<Operation *> run = {&*op};
  for (auto next = std::next(op); next != end; ++next) {
    auto isLike = [&](auto first) {
      using Op = decltype(first);
      auto last = dyn_cast<Op>(run.back()), other = dyn_cast<Op>(*next);
      if (!last || !other || last.elementType() != other.elementType())
        return false;
      if constexpr (std::is_same_v<Op, nn::AdamwOp>)
        return last.getNorm() == other.getNorm() && last.params() == other.params();
      else
        return other.getAcc() == last.getSum();
    };
    if (!isLike(nn::AdamwOp()) && !isLike(nn::SumSquaresOp()))
      break;
    run.push_back(&*next);
  }
  return run;
}

LogicalResult Bodies::lower(func::FuncOp function, ArrayRef<int64_t> turns, Body &body) {
  if (!BodyGroups::isBody(function) || function.empty())
    return function.emitOpError("is launched but is no task body");
  FailureOr<BodyGroups> groups = BodyGroups::get(function);
  auto scratch = function->getAttrOfType<IntegerAttr>(kScratchAttr);
  if (failed(groups))
    return failure();
  if (!scratch)
    return function.emitOpError() << "has no `" << kScratchAttr << "`; plan-bodies gives it one";
  body.groups = std::move(*groups);
  body.scratch = scratch.getInt();
  body.flops = flopsOf(function);

  body.apart.resize(body.groups.pointers.size()); // checkLaunch says what is wrong if the launch has another number
  body.begins = {0};
  for (auto [payload, apart] : llvm::zip(body.groups.pointers, body.apart))
    body.begins.push_back(body.begins.back() + (apart ? payload.size() : 1));
  Places places = body.groups.argumentPlaces(function);
  auto ops = function.front().without_terminator();
  auto count = static_cast<int64_t>(std::distance(ops.begin(), ops.end()));
  if (turns.empty())
    turns = count;
  auto op = ops.begin();
  for (auto [i, length] : llvm::enumerate(turns)) {
    std::string name = body.name + (turns.size() > 1 ? ".turn" + std::to_string(i) : "");
    body.functions.push_back(calls.addFunction(name, body.begins.back() + 2, /*internal=*/true, function.getLoc()));
    CallChain chain(calls, body.functions.back());
    for (int64_t left = length; left > 0;) {
      SmallVector<Operation *> run = op == ops.end() ? SmallVector<Operation *>() : listFrom(op, ops.end());
      left -= static_cast<int64_t>(run.size());
      if (run.empty() || left < 0)
        return function.emitOpError() << "has " << count << " ops, which do not run in these turns";
      if (!llvm::all_of(run, [](Operation *op) { return op->hasAttr(kOverlapsAttr); }))
        complete(chain);
      if (failed(run.size() > 1 ? lowerList(run, chain, places, body) : lower(*op, chain, places, body)))
        return failure();
      std::advance(op, run.size());
    }
    if (i + 1 == turns.size())
      complete(chain);
    chain.finish();
  }
  return op == ops.end() ? success() : function.emitOpError() << "has " << count << " ops, and fewer run in its turns";
}

void Bodies::complete(CallChain &chain) {
  if (posted)
    chain.callRuntime(posted->first, "pp_complete", posted->second);
  posted.reset();
}

static LogicalResult placeResults(Operation &op, Bodies::Places &places) {
  if (!op.hasAttr(kBuffersAttr))
    return op.emitOpError() << "has no `" << kBuffersAttr << "` for its results; plan-bodies gives it one";
  for (OpResult result : op.getResults())
    places[result] = bufferOf(result);
  return success();
}

/// The addresses of values, null where one is absent.
static LogicalResult addAddresses(Operation &op, ArrayRef<Value> values, CallChain &chain, const Bodies::Places &places,
                                  const Body &body, SmallVector<Value> &addresses) {
  for (Value value : values) {
    if (!value) {
      addresses.push_back(chain.null());
      continue;
    }
    auto found = places.find(value);
    if (found == places.end())
      return op.emitOpError("reads a value that has no place");
    auto [argument, offset] = body.argumentOf(found->second);
    addresses.push_back(chain.address(chain.argument(argument), offset));
  }
  return success();
}

/// The output of the attention whose gradients these are, if what delta was made of is still there and nothing that
/// comes until then, these included, is written over it: a library's kernel makes delta by itself.
static Value outputOf(nn::AttentionBwdOp backward, const Bodies::Places &places) {
  auto delta = backward.getDelta().getDefiningOp<nn::AttentionDeltaOp>();
  if (!delta || !places.count(delta.getO()))
    return {};
  auto bytesOf = [](Value value) { return pipeline::tensorBytes(cast<RankedTensorType>(value.getType())); };
  auto [pointer, begin] = places.at(delta.getO());
  int64_t end = begin + bytesOf(delta.getO());
  for (Operation *op = delta; op != backward->getNextNode(); op = op->getNextNode()) {
    if (!op->hasAttr(kBuffersAttr))
      continue;
    for (OpResult result : op->getResults())
      if (auto [at, first] = bufferOf(result); at == pointer && first < end && begin < first + bytesOf(result))
        return {};
  }
  return delta.getO();
}

/// Whether all that read delta get the output as well: where a library makes delta of it, nobody needs this one.
static bool isRemade(nn::AttentionDeltaOp delta, const Bodies::Places &places) {
  return llvm::all_of(delta->getUsers(), [&](Operation *user) {
    auto backward = dyn_cast<nn::AttentionBwdOp>(user);
    return backward && backward->getBlock() == delta->getBlock() && outputOf(backward, places) == delta.getO();
  });
}

LogicalResult Bodies::lower(Operation &op, CallChain &chain, Places &places, const Body &body) {
  if (auto exchange = dyn_cast<nn::Exchange>(op))
    return lowerExchange(exchange, chain, places, body);
  auto kernel = dyn_cast<nn::Kernel>(op);
  bool isView = isa<nn::View>(op);
  if (!kernel && !isView)
    return op.emitOpError("has no kernel: it cannot run in a task body");
  if (failed(placeResults(op, places)))
    return failure();
  if (isView)
    return success();
  KernelEntry entry = {kernel.kernelName().str(), typeName(kernel.elementType()), kernel.dims(), kernel.params(), {}};
  for (StringRef flag : kernel.flags())
    entry.flags.push_back(flag.str());
  if (auto delta = dyn_cast<nn::AttentionDeltaOp>(op); delta && isRemade(delta, places))
    entry.flags.push_back("remade");
  if (failed(text.addTables(kernel, entry)))
    return failure();
  SmallVector<Value> arguments;
  if (failed(addAddresses(op, kernel.pointers(), chain, places, body, arguments)))
    return failure();
  if (auto backward = dyn_cast<nn::AttentionBwdOp>(op))
    if (failed(addAddresses(op, {outputOf(backward, places)}, chain, places, body, arguments)))
      return failure();
  SmallVector<nn::Run> lists = kernel.lists();
  for (nn::Run run : llvm::reverse(lists)) {
    Value list = run.count > 0 ? chain.list(ArrayRef(arguments).slice(run.first, run.count)) : chain.null();
    arguments.erase(arguments.begin() + run.first, arguments.begin() + run.first + run.count);
    arguments.insert(arguments.begin() + run.first, list);
  }
  chain.callRuntime(op.getLoc(), "pp_" + entry.kernel, text.addOp(entry), arguments);
  return success();
}

/// A message of the devices of the rank, posted here. A sum is made in
/// place, in a copy of its operand where that is read later or belongs to another task.
LogicalResult Bodies::lowerExchange(nn::Exchange exchange, CallChain &chain, Places &places, const Body &body) {
  Operation &op = *exchange;
  SmallVector<Value> addresses, values = {op.getResult(0)};
  if (failed(placeResults(op, places)))
    return failure();
  bool sums = exchange.getKind() == nn::ExchangeKind::all_reduce;
  bool inPlace = sums && places.lookup(op.getOperand(0)) == places.lookup(op.getResult(0));
  if (!inPlace)
    values.push_back(op.getOperand(0));
  if (failed(addAddresses(op, values, chain, places, body, addresses)))
    return failure();
  if (exchange.getKind() == nn::ExchangeKind::reduce_scatter)
    std::swap(addresses[0], addresses[1]); // the operand is the whole, the result the shard
  auto type = cast<RankedTensorType>(op.getResult(0).getType());
  if (sums && !inPlace) {
    KernelEntry copy = {"copy", typeName(type.getElementType()), {type.getNumElements()}, {}, {}};
    chain.callRuntime(op.getLoc(), "pp_copy", text.addOp(copy), {addresses[1], addresses[0]});
  }
  FailureOr<int32_t> message = text.addExchange(exchange, body.follows);
  if (failed(message))
    return failure();
  chain.callRuntime(op.getLoc(), "pp_post_collective", *message, {addresses[0], sums ? chain.null() : addresses[1]});
  posted = {op.getLoc(), *message};
  return success();
}

/// One call for many tensors: a launch each costs more than the update of a small one.
LogicalResult Bodies::lowerList(ArrayRef<Operation *> run, CallChain &chain, Places &places, const Body &body) {
  auto first = cast<nn::Kernel>(run.front());
  bool updates = isa<nn::AdamwOp>(run.front());
  KernelEntry entry = {first.kernelName().str() + "_all", typeName(first.elementType()), {}, first.params(), {}};
  SmallVector<Value> tensors, shared;
  for (Operation *op : run) {
    if (failed(placeResults(*op, places)))
      return failure();
    auto update = dyn_cast<nn::AdamwOp>(op);
    entry.dims.append({cast<nn::Kernel>(op).dims().front(), update && update.getDecay()});
    if (failed(text.addTables(cast<nn::Kernel>(op), entry, entry.dims.size() - 2, tensors.size())))
      return failure();
    SmallVector<Value> values = cast<nn::Kernel>(op).pointers();
    values.erase(values.begin() + 1); // the norm, or the sum
    if (failed(addAddresses(*op, values, chain, places, body, tensors)))
      return failure();
  }
  Value all = updates ? cast<nn::AdamwOp>(run.front()).getNorm() : cast<nn::SumSquaresOp>(run.back()).getSum();
  if (failed(addAddresses(*run.front(), {all}, chain, places, body, shared)))
    return failure();
  if (!updates)
    for (StringRef flag : first.flags())
      entry.flags.push_back(flag.str());
  shared.insert(updates ? shared.end() : shared.begin(), chain.list(tensors));
  chain.callRuntime(run.front()->getLoc(), "pp_" + entry.kernel, text.addOp(entry), shared);
  return success();
}
