// What to say where a step cannot be completed: inputs that are elsewhere, gradients that do not reach their update.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/StepBuilder.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

/// An input that the schedule moves itself, and not to where it is read; keys of a slice that ran elsewhere.
LogicalResult StepBuilder::reportAbsent(UnitOp op, ThingAttr thing, int64_t rank) {
  SmallVector<int64_t> ranks;
  for (int64_t other = 0; other < static_cast<int64_t>(program.getRanks()); ++other)
    if (values.count({thing, other}))
      ranks.push_back(other);
  auto error = emitError(op.getLoc()) << "`" << op.getUnit().str() << "` on rank " << rank << " needs `" << thing.str()
                                      << "`, which is on "
                                      << PlaceAttr::get(program.getContext(), ranks, Layout::full).str()
                                      << withLoops(op);
  if (auto move = dyn_cast_or_null<TransferOp>(moved.lookup(thing))) {
    int64_t to = move.getTo().getRanks().front();
    auto &note = error.attachNote(move.getLoc()) << "`" << thing.str() << "` is moved by hand here, to rank " << to;
    if (to == rank)
      note << ", and only later";
    else
      note << "; move it to rank " << rank << " too, or leave all its moves to the compiler";
    note << withLoops(move);
  } else if (thing.getRole() == Role::kv || thing.getRole() == Role::dkv) {
    error.attachNote(pieces.op(pieces.find(thing.getCoord())).getLoc())
        << "slices read the keys of those before them; run all slices of a microbatch on one rank, or move `"
        << thing.str() << "` to rank " << rank;
  }
  return failure();
}

/// The unit that adds this contribution to the gradient of the piece.
UnitOp StepBuilder::contributor(int64_t piece, int64_t contribution) {
  int64_t slices = std::max<int64_t>(program.getSlices(), 1);
  UnitOp found;
  program.walk([&](UnitOp unit) {
    Phase phase = unit.getUnit().getPhase();
    CoordAttr coord = unit.getUnit().getCoord();
    int64_t number = coord.getMicrobatch() * slices + std::max<int64_t>(coord.getSlice(), 0);
    if ((phase == Phase::B || phase == Phase::W) && pieces.find(coord) == piece && number == contribution)
      found = unit;
  });
  return found;
}

/// A share that its schedule moved, and left on a rank that does not update the piece.
LogicalResult StepBuilder::reportLeft(int64_t piece, int64_t rank, const Share &share) {
  int64_t found = share.contributions.find_first();
  std::string name = pieces.name(piece);
  auto error =
      emitError(pieces.op(piece).getLoc())
      << "`U(" << name << ")` runs on "
      << (pieces.isSharded(piece) ? pieces.op(piece).getOwner()->str()
                                  : PlaceAttr::get(program.getContext(), pieces.owners(piece), Layout::full).str())
      << ", but ";
  if (found < 0)
    error << "an empty share of its gradient";
  else
    error << "the gradient of microbatch " << found / std::max<int64_t>(program.getSlices(), 1);
  error << " is left on rank " << rank << "; this schedule moves `grad(" << name << ")` itself";
  UnitOp unit = found < 0 ? UnitOp() : contributor(piece, found);
  if (unit)
    error.attachNote(unit.getLoc()) << "computed here" << withLoops(unit);
  if (share.moved)
    error.attachNote(share.moved->getLoc()) << "last moved here" << withLoops(share.moved);
  else
    error.attachNote(movedGrads[piece]->getLoc())
        << "`grad(" << name << ")` is moved here" << withLoops(movedGrads[piece]);
  return failure();
}

LogicalResult StepBuilder::reportMissing(int64_t piece, int64_t owner, const Share &share) {
  int64_t slices = std::max<int64_t>(program.getSlices(), 1);
  for (auto &[where, terms] : shares)
    if (where.first == piece && (where.second != owner || !sharers(piece).empty()) && !terms.empty())
      return reportLeft(piece, where.second, terms.front());
  llvm::BitVector missing = allContributions();
  missing.reset(share.contributions);
  auto error = emitError(pieces.op(piece).getLoc())
               << "`U(" << pieces.name(piece) << ")` on rank " << owner << " lacks the gradient of ";
  llvm::interleaveComma(missing.set_bits(), error, [&](unsigned unit) { error << "microbatch " << unit / slices; });
  return error;
}
