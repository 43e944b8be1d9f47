// The moves that a schedule writes itself: copies of weights, shares of gradients, activations, stashes for the host.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/StepBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static bool isOffload(TransferOp op) {
  return op.getTo().getLayout() == Layout::host || (op.getFrom() && op.getFrom()->getLayout() == Layout::host);
}

/// A stash leaves for the host's memory, or comes back: all that its F left.
LogicalResult StepBuilder::buildOffload(TransferOp op) {
  Key stash = {op.getThing(), op.getTo().getRanks().front()};
  Layout layout = op.getTo().getLayout();
  bool moves = false;
  for (auto [device, host] : {std::pair(&values, &hostValues), std::pair(&kept, &hostKept)}) {
    auto &from = layout == Layout::host ? *device : *host, &to = layout == Layout::host ? *host : *device;
    Value value = get(from, stash.first, stash.second, op.getLoc());
    if (!value)
      continue;
    from.erase(stash);
    to[stash] = createMove(stash.first, value, stash.second, op.getLoc(), {}, layout);
    moves = true;
  }
  if (moves)
    return success();
  return emitError(op.getLoc()) << "`" << stash.first.str() << "` is not on " << op.getFrom()->str()
                                << ", which sends it" << withLoops(op);
}

LogicalResult StepBuilder::verifyTransfer(TransferOp op) {
  auto unsupported = [&](StringRef what) {
    return emitError(op.getLoc()) << "`move " << op.getThing().str() << "` " << what << ", which is not supported yet"
                                  << withLoops(op);
  };
  if (!op.getFrom())
    return unsupported("gathers shares from all ranks");
  Role role = op.getThing().getRole();
  for (PlaceAttr place : {*op.getFrom(), op.getTo()}) {
    if (place.getLayout() != Layout::full && !(place.getLayout() == Layout::host && role == Role::stash))
      return unsupported("involves " + place.str());
    if (place.getRanks().size() != 1)
      return unsupported("is a collective over " + place.str());
  }
  if (isOffload(op))
    return success();
  if (!llvm::is_contained({Role::weight, Role::grad, Role::act, Role::dact, Role::kv, Role::dkv}, role))
    return unsupported("moves a " + stringifyRole(role).str());
  return success();
}

LogicalResult StepBuilder::readGrad(TransferOp op, int64_t piece, SmallVectorImpl<Share> &arriving) {
  int64_t from = op.getFrom()->getRanks().front();
  Share share = takeShare(piece, from, op.getLoc());
  if (!share.value) { // zeros are sent: the ring keeps turning before the first backward
    const Body *zero = findBody(piece, "zero");
    if (!zero)
      return emitError(op.getLoc()) << "`" << op.getThing().str() << "` has no weights to have a gradient of";
    share.value = createTask(*zero, updateUnit(piece), from, {}, op.getLoc()).getResult(0);
  }
  share.moved = op;
  arriving.push_back(share);
  return success();
}

LogicalResult StepBuilder::buildTransfers(MutableArrayRef<TransferOp> ops) {
  // All reads before all writes.
  SmallVector<Share> arriving;
  for (TransferOp op : ops) {
    int64_t piece = pieces.find(op.getThing().getCoord());
    if (failed(verifyTransfer(op)) || (isOffload(op) && failed(buildOffload(op))))
      return failure();
    if (isOffload(op))
      continue;
    if (op.getThing().getRole() == Role::grad) {
      if (failed(readGrad(op, piece, arriving)))
        return failure();
      continue;
    }
    int64_t from = op.getFrom()->getRanks().front();
    Value value = get(op.getThing(), from, op.getLoc());
    if (!value)
      return emitError(op.getLoc()) << "`" << op.getThing().str() << "` is not on rank " << from << ", which sends it"
                                    << withLoops(op);
    arriving.push_back({value, {}, op});
  }
  IntegerAttr group = builder.getI64IntegerAttr(groups++);
  SmallVector<TransferOp> sent;
  llvm::copy_if(ops, std::back_inserter(sent), [](TransferOp op) { return !isOffload(op); });
  for (auto [op, share] : llvm::zip_equal(sent, arriving)) {
    int64_t to = op.getTo().getRanks().front();
    share.value = createMove(op.getThing(), share.value, to, op.getLoc(), group);
  }
  for (auto [op, share] : llvm::zip_equal(sent, arriving)) {
    int64_t to = op.getTo().getRanks().front();
    if (op.getThing().getRole() == Role::grad)
      addShare(pieces.find(op.getThing().getCoord()), to, share, op.getLoc());
    else
      values[{op.getThing(), to}] = share.value;
  }
  return success();
}
