// Checks the moves that a schedule writes itself: what may be moved, between which places, and when.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/MoveBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

bool MoveBuilder::involvesShards(TransferOp op) const {
  return (op.getFrom() && op.getFrom()->getLayout() == Layout::shard) || op.getTo().getLayout() == Layout::shard;
}

bool MoveBuilder::sumsOnAll(TransferOp op) const {
  PlaceAttr to = op.getTo();
  return op.getThing().getRole() == Role::grad &&
         (to.getLayout() == Layout::shard || (to.getLayout() == Layout::full && to.getRanks().size() > 1));
}

LogicalResult MoveBuilder::verify(TransferOp op) const {
  auto unsupported = [&](const Twine &what) {
    return emitError(op.getLoc()) << "`move " << op.getThing().str() << "` " << what << ", which is not supported yet"
                                  << withLoops(op);
  };
  Role role = op.getThing().getRole();
  if (involvesShards(op) || (sumsOnAll(op) && step.pieces.isReplicated(pieceOf(op))))
    return verifyGroup(op);
  for (PlaceAttr place : {op.getFromAttr(), op.getTo()})
    if (place && place.getLayout() != Layout::full && !(place.getLayout() == Layout::host && role == Role::stash))
      return unsupported("involves " + place.str());
  if (role == Role::grad && op.getTo().getRanks().size() != 1) {
    auto error = emitError(op.getLoc()) << "`move " << op.getThing().str() << "` sums a gradient on "
                                        << op.getTo().str() << ", and not all of these ranks update it"
                                        << withLoops(op);
    error.attachNote(step.pieces.op(pieceOf(op)).getLoc()) << "placed here";
    return error;
  }
  if (role == Role::stash && op.getTo().getRanks().size() > 1)
    return emitError(op.getLoc()) << "`" << op.getThing().str() << "` moves to one rank, got " << op.getTo().str()
                                  << withLoops(op);
  if (role == Role::opt)
    return unsupported("moves an optimizer state");
  if (!llvm::is_contained({Role::weight, Role::grad, Role::act, Role::dact, Role::kv, Role::dkv, Role::stash}, role))
    return unsupported("moves a " + stringifyRole(role));
  return success();
}

static SmallVector<int64_t> sorted(ArrayRef<int64_t> ranks) {
  SmallVector<int64_t> list(ranks);
  llvm::sort(list);
  return list;
}

/// A gather brings the whole weight to all that have a shard. A sum ends in all shards, or on all that update the
/// piece.
LogicalResult MoveBuilder::verifyGroup(TransferOp op) const {
  const Pieces &pieces = step.pieces;
  int64_t piece = pieceOf(op);
  PlaceAttr from = op.getFromAttr(), to = op.getTo();
  bool gathers = op.getThing().getRole() == Role::weight && from && from.getLayout() == Layout::shard &&
                 to.getLayout() == Layout::full;
  bool scatters = sumsOnAll(op) && (!from || from.getLayout() == Layout::full);
  bool isCut = involvesShards(op);
  if (!gathers && !scatters)
    return emitError(op.getLoc()) << "`move " << op.getThing().str() << "` involves "
                                  << (to.getLayout() == Layout::shard ? to : from).str()
                                  << ", which is not supported yet" << withLoops(op);
  // Shards move between all that have one; a gradient is summed on all that update it.
  SmallVector<int64_t> expected = isCut == pieces.isSharded(piece) ? pieces.sharers(piece) : SmallVector<int64_t>();
  for (PlaceAttr place : {from, to}) {
    if (!place || sorted(place.getRanks()) == expected)
      continue;
    auto error = emitError(op.getLoc()) << "`move " << op.getThing().str() << "` goes "
                                        << (place == to ? "to " : "from ") << place.str();
    if (expected.empty())
      error << ", but " << pieces.describe(piece) << (isCut ? " is not cut over ranks" : " is not updated there")
            << withLoops(op);
    else
      error << "; expected all of " << pieces.op(piece).getOwner()->str() << withLoops(op);
    error.attachNote(pieces.op(piece).getLoc()) << "placed here";
    return failure();
  }
  return success();
}

/// The unit that uses this stash last, if it has run; where the stash is now, and what brought it there.
InFlightDiagnostic MoveBuilder::reportStash(TransferOp op) const {
  Thing stash = step.thing(op.getThing());
  std::string name = "`" + step.str(stash) + "`";
  if (UnitOp user = stashUsers.lookup(stash)) {
    auto error = emitError(op.getLoc()) << name << " is moved after its last use" << withLoops(op);
    error.attachNote(user.getLoc()) << "`" << user.getUnit().str() << "` uses it last, here" << withLoops(user);
    return error;
  }
  TransferOp before = stashMoves.lookup(stash);
  bool isThere = op.getFrom() == op.getTo() || (before && before.getTo() == op.getTo());
  auto error = emitError(op.getLoc()) << name;
  if (isThere)
    error << " moves to " << op.getTo().str() << ", where it is already";
  else
    error << " is not on " << op.getFrom()->str() << ", which sends it";
  error << withLoops(op);
  if (before)
    error.attachNote(before.getLoc()) << "moved to " << before.getTo().str() << " here" << withLoops(before);
  return error;
}
