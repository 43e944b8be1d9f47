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
  auto move = [&](llvm::DenseMap<Key, Value> &device, llvm::DenseMap<Key, Value> &host) {
    auto &from = layout == Layout::host ? device : host, &to = layout == Layout::host ? host : device;
    Value value = get(from, stash.first, stash.second, op.getLoc());
    if (!value)
      return;
    from.erase(stash);
    to[stash] = createMove(stash.first, value, stash.second, op.getLoc(), {}, layout);
    moves = true;
  };
  move(values, hostValues[-1]);
  move(kept, hostKept[-1]);
  for (auto &[cut, device] : cutValues)
    move(device, hostValues[cut]);
  for (auto &[cut, device] : cutKept)
    move(device, hostKept[cut]);
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
  Role role = op.getThing().getRole();
  if (involvesShards(op) || (sumsOnAll(op) && pieces.isReplicated(pieces.find(op.getThing().getCoord()))))
    return verifyShards(op);
  for (PlaceAttr place : {op.getFromAttr(), op.getTo()})
    if (place && place.getLayout() != Layout::full && !(place.getLayout() == Layout::host && role == Role::stash))
      return unsupported("involves " + place.str());
  if (role == Role::grad && op.getTo().getRanks().size() != 1) {
    auto error = emitError(op.getLoc()) << "`move " << op.getThing().str() << "` adds a gradient up on "
                                        << op.getTo().str() << ", which do not all update it" << withLoops(op);
    error.attachNote(pieces.op(pieces.find(op.getThing().getCoord())).getLoc()) << "placed here";
    return error;
  }
  if (isOffload(op))
    return success();
  if (!llvm::is_contained({Role::weight, Role::grad, Role::act, Role::dact, Role::kv, Role::dkv}, role))
    return unsupported("moves a " + stringifyRole(role).str());
  return success();
}

/// The empty share of a gradient.
Value StepBuilder::createZero(int64_t piece, int64_t rank, Location loc) {
  const Body *zero = findBody(piece, "zero");
  if (!zero)
    return emitError(loc) << "`grad(" << pieces.name(piece) << ")` has no weights to have a gradient of", Value();
  return createTask(*zero, updateUnit(piece), rank, {}, loc).getResult(0);
}

/// Takes the shares away from where they are. Of one rank: what is sent, zeros if it has none, so that a ring keeps
/// turning before the first backward. Of several: their sum, which one collective makes on the rank it goes to.
FailureOr<Share> StepBuilder::readGrad(TransferOp op) {
  int64_t piece = pieces.find(op.getThing().getCoord());
  SmallVector<int64_t> from;
  if (op.getFrom())
    llvm::append_range(from, op.getFrom()->getRanks());
  else
    for (auto &[where, terms] : shares)
      if (where.first == piece)
        from.push_back(where.second);
  if (from.size() != 1)
    return reduceShares(op, from);
  Share share = takeShare(piece, from.front(), op.getLoc());
  if (!share.value && !(share.value = createZero(piece, from.front(), op.getLoc())))
    return failure();
  share.moved = op;
  return share;
}

/// The sum is made in place, so the rank it goes to takes part, with zeros if it has nothing.
FailureOr<Share> StepBuilder::reduceShares(TransferOp op, SmallVector<int64_t> from) {
  int64_t piece = pieces.find(op.getThing().getCoord()), to = op.getTo().getRanks().front();
  if (!llvm::is_contained(from, to))
    from.push_back(to);
  Share sum{{}, llvm::BitVector(allContributions().size()), op};
  std::vector<Value> terms;
  SmallVector<int64_t> members;
  for (int64_t rank : from) {
    Share share = takeShare(piece, rank, op.getLoc());
    if (!share.value && rank == to && !(share.value = createZero(piece, to, op.getLoc())))
      return failure();
    if (!share.value)
      continue;
    terms.push_back(share.value);
    members.push_back(rank);
    sum.contributions |= share.contributions;
  }
  sum.value = terms.front();
  if (terms.size() == 1)
    return sum;
  MLIRContext *context = program.getContext();
  auto group = ValType::get(context, Role::grad, cast<ValType>(sum.value.getType()).getPayload(),
                            PlaceAttr::get(context, members, Layout::partial));
  sum.value = builder.create<JoinOp>(op.getLoc(), group, terms);
  return sum;
}

FailureOr<Share> StepBuilder::readThing(TransferOp op) {
  if (involvesShards(op) || sumsOnAll(op)) {
    int64_t piece = pieces.find(op.getThing().getCoord());
    return op.getThing().getRole() == Role::grad ? joinShares(piece, op.getLoc())
                                                 : Share{joinShards(piece, op.getLoc()), {}, op};
  }
  if (op.getThing().getRole() == Role::grad)
    return readGrad(op);
  int64_t from = op.getFrom()->getRanks().front();
  Value value = get(values, op.getThing(), from, op.getLoc());
  if (!value)
    return emitError(op.getLoc()) << "`" << op.getThing().str() << "` is not on rank " << from << ", which sends it"
                                  << withLoops(op);
  return Share{value, {}, op};
}

LogicalResult StepBuilder::buildTransfers(MutableArrayRef<TransferOp> ops) {
  // All reads before all writes.
  SmallVector<std::pair<TransferOp, Share>> arriving;
  SmallVector<std::tuple<TransferOp, int64_t, Value>> keys; // of pieces whose units are cut: by attention
  for (TransferOp op : ops) {
    if (failed(verifyTransfer(op)) || (isOffload(op) && failed(buildOffload(op))))
      return failure();
    if (isOffload(op))
      continue;
    for (auto &[attention, held] : cutValues)
      if (Value value =
              op.getFrom() ? get(held, op.getThing(), op.getFrom()->getRanks().front(), op.getLoc()) : Value())
        keys.push_back({op, attention, value});
    if (!keys.empty() && std::get<0>(keys.back()) == op)
      continue;
    FailureOr<Share> share = readThing(op);
    if (failed(share))
      return failure();
    arriving.push_back({op, *share});
  }
  for (auto &[op, share] : arriving) // what came before is added up before more of it is on its way
    if (PieceRank where(pieces.find(op.getThing().getCoord()), op.getTo().getRanks().front());
        op.getThing().getRole() == Role::grad && shares.count(where) && shares[where].size() > 1)
      shares[where] = {takeShare(where.first, where.second, op.getLoc())};
  IntegerAttr group = builder.getI64IntegerAttr(groups++);
  for (auto [op, attention, value] : keys)
    for (int64_t to : op.getTo().getRanks())
      if (Value sent = createMove(op.getThing(), value, to, op.getLoc(), group); op.getThing().getRole() == Role::kv)
        lentKeys[attention][{op.getThing(), to}].push_back(sent);
      else
        cutValues[attention][{op.getThing(), to}] = sent;
  for (auto &[op, share] : arriving) // a sum of one share may be where it goes already
    if (cast<ValType>(share.value.getType()).getPlace() != op.getTo())
      share.value = createMove(op.getThing(), share.value, op.getTo(), op.getLoc(), group);
  for (auto &[op, share] : arriving)
    for (int64_t to : op.getTo().getRanks())
      if (sumsOnAll(op)) {
        addOnAll(pieces.find(op.getThing().getCoord()), share);
        break;
      } else if (op.getThing().getRole() == Role::grad) {
        addShare(pieces.find(op.getThing().getCoord()), to, share, op.getLoc());
      } else if (involvesShards(op) || to != op.getFrom()->getRanks().front()) { // its copy stays what it was
        values[{op.getThing(), to}] = share.value;
      }
  return success();
}
