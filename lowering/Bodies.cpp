// Lowers task bodies: every nn op becomes one call of its kernel on addresses that plan-bodies chose.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: func @s0.F(%x, %w) { %y = nn.linear %x, %w {pp.buffers = [[2, 0]]}  return %y }
// After:  i32 @s0.F(rank, p0, p1, p2, scratch) { s = pp_linear(rank, 0, p0, p1, null, p2); if (s) return s; return 0 }
#include "lowering/Bodies.h"
#include "dialect/Nn.h"

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
    int64_t bytes = payloadOffsets(cast<SlotType>(launch.getScratch().getType()).getPayload()).back();
    if (bytes < scratch)
      return launch.emitOpError() << "has " << bytes << " bytes of scratch; `@" << launch.getCallee() << "` needs "
                                  << scratch;
  }
  return success();
}

const Body *Bodies::get(func::FuncOp function) {
  auto [found, isNew] = bodies.try_emplace(function);
  if (!isNew)
    return found->second.get();
  auto body = std::make_unique<Body>();
  if (succeeded(lower(function, *body)))
    bodies[function] = std::move(body);
  return bodies[function].get();
}

LogicalResult Bodies::lower(func::FuncOp function, Body &body) {
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
  if (auto flops = function->getAttrOfType<FloatAttr>("pipeline.flops"))
    body.flops = flops.getValueAsDouble();

  unsigned pointers = body.groups.pointers.size();
  body.function = calls.addFunction(function.getSymName(), pointers + 2, /*internal=*/true, function.getLoc());
  CallChain chain(calls, body.function);
  Places places = body.groups.argumentPlaces(function);
  for (Operation &op : function.front().without_terminator())
    if (failed(lower(op, chain, places, pointers)))
      return failure();
  chain.finish();
  return success();
}

static LogicalResult placeResults(Operation &op, Bodies::Places &places) {
  auto buffers = op.getAttrOfType<ArrayAttr>(kBuffersAttr);
  if (!buffers || buffers.size() != op.getNumResults())
    return op.emitOpError() << "has no `" << kBuffersAttr << "` for its results; plan-bodies gives it one";
  for (auto [result, attr] : llvm::zip(op.getResults(), buffers)) {
    auto pair = cast<ArrayAttr>(attr);
    places[result] = {cast<IntegerAttr>(pair[0]).getInt(), cast<IntegerAttr>(pair[1]).getInt()};
  }
  return success();
}

static std::string typeName(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

LogicalResult Bodies::lower(Operation &op, CallChain &chain, Places &places, unsigned pointers) {
  auto kernel = dyn_cast<nn::Kernel>(op);
  if (!kernel)
    return op.emitOpError("has no kernel: it cannot run in a task body");
  if (failed(placeResults(op, places)))
    return failure();
  KernelEntry entry = {kernel.kernelName().str(), typeName(kernel.elementType()), kernel.dims(), kernel.params(), {}};
  for (StringRef flag : kernel.flags())
    entry.flags.push_back(flag.str());
  SmallVector<Value> arguments;
  for (Value value : kernel.pointers()) {
    if (!value) {
      arguments.push_back(chain.null());
      continue;
    }
    auto found = places.find(value);
    if (found == places.end())
      return op.emitOpError("reads a value that has no place");
    auto [pointer, offset] = found->second;
    // Argument 0 is the rank, the last one the scratch memory.
    arguments.push_back(chain.address(chain.argument(pointer < 0 ? pointers + 1 : pointer + 1), offset));
  }
  for (nn::Run run : llvm::reverse(kernel.lists())) {
    Value list = chain.list(ArrayRef(arguments).slice(run.first, run.count));
    arguments.erase(arguments.begin() + run.first, arguments.begin() + run.first + run.count);
    arguments.insert(arguments.begin() + run.first, list);
  }
  chain.callRuntime(op.getLoc(), "pp_" + entry.kernel, text.addOp(entry), arguments);
  return success();
}
