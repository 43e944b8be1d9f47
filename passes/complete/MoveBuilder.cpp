// Builds the moves that a schedule writes itself: each takes a value from one place, and puts it into another.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/MoveBuilder.h"
#include "passes/complete/UpdateBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

//===-- Stashes -------------------------------------------------------------------------------------------------===//

void MoveBuilder::recordStashUse(Thing stash, UnitOp op) {
  if (outline.movesStashes)
    stashUsers[stash] = op;
}

/// A stash leaves for another rank or for its rank's host memory, or comes back: all that its F left.
LogicalResult MoveBuilder::buildStashMove(TransferOp op, IntegerAttr group) {
  Thing stash = step.thing(op.getThing());
  PlaceAttr from = *op.getFrom(), to = op.getTo();
  if (stashUsers.contains(stash) || from == to)
    return reportStash(op);
  bool fromHost = from.getLayout() == Layout::host, toHost = to.getLayout() == Layout::host;
  bool moves = false;
  for (ValueKey::Part part : {ValueKey::whole, ValueKey::light})
    for (int64_t cut = -1; cut < step.cuts(); ++cut) {
      ValueKey source{stash, from.getRanks().front(), part, cut, fromHost};
      Value value = step.get(source, op.getLoc());
      if (!value)
        continue;
      step.erase(source);
      step.set({stash, to.getRanks().front(), part, cut, toHost},
               step.createMove(stash, value, to, op.getLoc(), fromHost || toHost ? IntegerAttr() : group));
      moves = true;
    }
  if (!moves)
    return reportStash(op);
  stashMoves[stash] = op;
  return success();
}

//===-- What is taken -------------------------------------------------------------------------------------------===//

SmallVector<MoveBuilder::KeyMove> MoveBuilder::readCutKeys(TransferOp op) {
  SmallVector<KeyMove> found;
  for (int64_t attention = 0; op.getFrom() && attention < step.cuts(); ++attention)
    if (Value value = step.get(
            {step.thing(op.getThing()), op.getFrom()->getRanks().front(), ValueKey::whole, attention}, op.getLoc()))
      found.push_back({op, attention, value});
  return found;
}

/// Takes the shares away from where they are. Of one rank: what is sent, zeros if it has none, so that a ring keeps
/// turning before the first backward. Of several: their sum, which one collective makes on the rank it goes to. The sum
/// is made in place, so that rank takes part, with zeros if it has nothing.
FailureOr<Share> MoveBuilder::readGrad(TransferOp op) {
  int64_t piece = pieceOf(op), to = op.getTo().getRanks().front();
  SmallVector<int64_t> from = gradients.holders(piece);
  if (op.getFrom())
    from.assign(op.getFrom()->getRanks().begin(), op.getFrom()->getRanks().end());
  if (from.size() != 1) {
    if (!llvm::is_contained(from, to))
      from.push_back(to);
    return gradients.reduce(piece, from, to, op);
  }
  Share share = gradients.take(piece, from.front(), op.getLoc());
  if (!share.value && !(share.value = gradients.createZero(piece, from.front(), op.getLoc())))
    return failure();
  share.moved = op;
  return share;
}

FailureOr<Share> MoveBuilder::read(TransferOp op) {
  Thing thing = step.thing(op.getThing());
  bool isGrad = thing.role == Role::grad;
  if (involvesShards(op) || sumsOnAll(op))
    return isGrad ? gradients.join(pieceOf(op), op.getLoc())
                  : Share{joinShards(step, pieceOf(op), op.getLoc()), {}, op};
  if (isGrad)
    return readGrad(op);
  int64_t from = op.getFrom()->getRanks().front();
  if (keys.isShare(thing)) {
    if (Value share = keys.take(thing, from, op.getLoc()))
      return Share{share, {}, op};
    return emitError(op.getLoc()) << "`" << step.str(thing) << "` is not on " << op.getFrom()->str()
                                  << ", which sends it" << withLoops(op);
  }
  if (Value value = step.get({thing, from}, op.getLoc()))
    return Share{value, {}, op};
  return emitError(op.getLoc()) << "`" << step.str(thing) << "` is not on rank " << from << ", which sends it"
                                << withLoops(op);
}

//===-- What arrives --------------------------------------------------------------------------------------------===//

void MoveBuilder::sendCutKeys(const KeyMove &move, IntegerAttr group) {
  TransferOp op = move.op;
  Thing thing = step.thing(op.getThing());
  for (int64_t to : op.getTo().getRanks()) {
    Value sent = step.createMove(thing, move.value, to, op.getLoc(), group);
    if (thing.role == Role::kv)
      keys.lend(move.attention, thing, to, sent);
    else
      step.set({thing, to, ValueKey::whole, move.attention}, sent);
  }
}

void MoveBuilder::write(TransferOp op, Share share) {
  Thing thing = step.thing(op.getThing());
  if (sumsOnAll(op))
    return gradients.addOnAll(pieceOf(op), share);
  for (int64_t to : op.getTo().getRanks())
    if (thing.role == Role::grad) {
      gradients.sumUp(pieceOf(op), to, op.getLoc());
      gradients.addTerm(pieceOf(op), to, share);
    } else if (keys.isShare(thing)) {
      keys.add(thing, to, share.value);
    } else if (involvesShards(op) || to != op.getFrom()->getRanks().front()) { // its copy stays what it was
      step.set({thing, to}, share.value);
    }
}

LogicalResult MoveBuilder::build(ArrayRef<TransferOp> ops) {
  // All reads before all writes.
  SmallVector<Arrival> arrivals;
  SmallVector<KeyMove> keyMoves;
  IntegerAttr group = step.builder.getI64IntegerAttr(groups++);
  for (TransferOp op : ops) {
    if (failed(verify(op)))
      return failure();
    if (llvm::is_contained({Role::kv, Role::dkv}, op.getThing().getRole()) &&
        outline.exchanges.hasNoKeys(op.getThing().getCoord()))
      continue;
    if (op.getThing().getRole() == Role::stash) {
      if (failed(buildStashMove(op, group)))
        return failure();
      continue;
    }
    SmallVector<KeyMove> cutKeys = readCutKeys(op);
    llvm::append_range(keyMoves, cutKeys);
    if (!cutKeys.empty())
      continue;
    FailureOr<Share> share = read(op);
    if (failed(share))
      return failure();
    arrivals.push_back({op, *share});
  }
  for (auto &[op, share] : arrivals) // what came before is added up before more of it is on its way
    if (op.getThing().getRole() == Role::grad)
      gradients.sumUp(pieceOf(op), op.getTo().getRanks().front(), op.getLoc());
  for (const KeyMove &move : keyMoves)
    sendCutKeys(move, group);
  for (auto &[op, share] : arrivals) // a sum of one share may be where it goes already
    if (cast<ValType>(share.value.getType()).getPlace() != op.getTo())
      share.value = step.createMove(step.thing(op.getThing()), share.value, op.getTo(), op.getLoc(), group);
  for (auto &[op, share] : arrivals)
    write(op, share);
  return success();
}
