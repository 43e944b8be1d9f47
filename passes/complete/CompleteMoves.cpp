// The moves that a schedule writes itself: copies of weights, shares of gradients, activations, stashes for the host.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/StepBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// The unit that uses this stash last, if it has run; where the stash is now, and what brought it there.
InFlightDiagnostic StepBuilder::reportStash(TransferOp op, ThingAttr stash) {
  std::string name = "`" + stash.str() + "`";
  UnitOp user = stashUsers.lookup(stash);
  if (user) {
    auto error = emitError(op.getLoc()) << name << " is moved after its last use" << withLoops(op);
    error.attachNote(user.getLoc()) << "`" << user.getUnit().str() << "` uses it last, here" << withLoops(user);
    return error;
  }
  TransferOp before = stashMoves.lookup(stash);
  bool there = before && before.getTo() == op.getTo();
  auto error = emitError(op.getLoc()) << name;
  if (op.getFrom() == op.getTo() || there)
    error << " moves to " << op.getTo().str() << ", where it is already";
  else
    error << " is not on " << op.getFrom()->str() << ", which sends it";
  error << withLoops(op);
  if (before)
    error.attachNote(before.getLoc()) << "moved to " << before.getTo().str() << " here" << withLoops(before);
  return error;
}

/// A stash leaves for another rank or for its rank's host memory, or comes back: all that its F left.
LogicalResult StepBuilder::buildStashMove(TransferOp op, IntegerAttr group) {
  ThingAttr stash = op.getThing();
  PlaceAttr to = op.getTo();
  bool fromHost = op.getFrom()->getLayout() == Layout::host, toHost = to.getLayout() == Layout::host;
  Key source = {stash, op.getFrom()->getRanks().front()};
  bool moves = false;
  auto move = [&](llvm::DenseMap<Key, Value> &device, llvm::DenseMap<Key, Value> &host) {
    auto &from = fromHost ? host : device, &target = toHost ? host : device;
    Value value = get(from, stash, source.second, op.getLoc());
    if (!value)
      return;
    from.erase(source);
    target[{stash, to.getRanks().front()}] =
        createMove(stash, value, to, op.getLoc(), fromHost || toHost ? IntegerAttr() : group);
    moves = true;
  };
  if (stashUsers.contains(stash) || op.getFrom() == to)
    return reportStash(op, stash);
  move(values, hostValues[-1]);
  move(kept, hostKept[-1]);
  for (auto &[cut, device] : cutValues)
    move(device, hostValues[cut]);
  for (auto &[cut, device] : cutKept)
    move(device, hostKept[cut]);
  if (!moves)
    return reportStash(op, stash);
  stashMoves[stash] = op;
  return success();
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
  if (role == Role::stash && op.getTo().getRanks().size() > 1)
    return emitError(op.getLoc()) << "`" << op.getThing().str() << "` moves to one rank, got " << op.getTo().str()
                                  << withLoops(op);
  if (role == Role::stash)
    return success();
  if (!llvm::is_contained({Role::weight, Role::grad, Role::act, Role::dact, Role::kv, Role::dkv}, role))
    return unsupported(role == Role::opt ? "moves an optimizer state" : "moves a " + stringifyRole(role).str());
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

/// Takes the share away from the rank that it leaves.
FailureOr<Share> StepBuilder::readChunkShare(TransferOp op) {
  Value share = takeChunkShare(op.getThing(), op.getFrom()->getRanks().front(), op.getLoc());
  if (!share)
    return emitError(op.getLoc()) << "`" << op.getThing().str() << "` is not on " << op.getFrom()->str()
                                  << ", which sends it" << withLoops(op);
  return Share{share, {}, op};
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
  IntegerAttr group = builder.getI64IntegerAttr(groups++);
  for (TransferOp op : ops) {
    bool isStash = op.getThing().getRole() == Role::stash;
    if (failed(verifyTransfer(op)) || (isStash && failed(buildStashMove(op, group))))
      return failure();
    if (isStash)
      continue;
    for (auto &[attention, held] : cutValues)
      if (Value value =
              op.getFrom() ? get(held, op.getThing(), op.getFrom()->getRanks().front(), op.getLoc()) : Value())
        keys.push_back({op, attention, value});
    if (!keys.empty() && std::get<0>(keys.back()) == op)
      continue;
    FailureOr<Share> share = isChunkShare(op.getThing()) ? readChunkShare(op) : readThing(op);
    if (failed(share))
      return failure();
    arriving.push_back({op, *share});
  }
  for (auto &[op, share] : arriving) // what came before is added up before more of it is on its way
    if (PieceRank where(pieces.find(op.getThing().getCoord()), op.getTo().getRanks().front());
        op.getThing().getRole() == Role::grad && shares.count(where) && shares[where].size() > 1)
      shares[where] = {takeShare(where.first, where.second, op.getLoc())};
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
      } else if (isChunkShare(op.getThing())) {
        addChunkShare(op.getThing(), to, share.value);
      } else if (involvesShards(op) || to != op.getFrom()->getRanks().front()) { // its copy stays what it was
        values[{op.getThing(), to}] = share.value;
      }
  return success();
}
