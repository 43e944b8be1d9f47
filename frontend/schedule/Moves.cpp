// Moves: a thing changes place; what message that is must be readable off the two places.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/nn/Nn.h"
#include "frontend/schedule/Elaborator.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace llvm;
using namespace pp;
using namespace pp::pipeline;

LogicalResult Elaborator::move(const MoveStatement *statement, Scope &scope) {
  FailureOr<PlaceAttr> from = PlaceAttr(), to = failure();
  if (statement->from && failed(from = evaluatePlace(statement->from, scope)))
    return failure();
  if (failed(to = evaluatePlace(statement->to, scope)))
    return failure();
  for (const Thing &thing : statement->things)
    if (failed(moveThing(statement, thing, *from, *to, scope)))
      return failure();
  return success();
}

LogicalResult Elaborator::moveThing(const MoveStatement *statement, const Thing &thing, PlaceAttr from, PlaceAttr to,
                                    Scope &scope) {
  Role role = *symbolizeRole(thing.role.text);
  bool wholePiece = role == Role::weight || role == Role::grad || role == Role::opt;
  Piece *piece = nullptr;
  FailureOr<CoordAttr> coord = coordinates(thing.role.text, thing.role.at, thing.coordinates, scope, wholePiece, piece);
  if (failed(coord))
    return failure();
  if (role == Role::stash && piece->recomputed)
    return fail(thing.role.at, "`" + thing.text + "` cannot move: all of " + str(*piece) +
                                   " is recomputed in front of its backward, so `F` leaves no stash");
  if (!from) {
    FailureOr<PlaceAttr> found = sourceOf(statement, thing, role, *piece);
    if (failed(found))
      return failure();
    from = *found;
  }
  bool sums = role == Role::grad && to.getLayout() == Layout::full && to.getRanks().size() > 1; // it is new on all
  if (from == to && !sums &&
      role != Role::stash) // there is one stash: who moves it to where it is has lost track of it
    return success();
  if (from && failed(checkVerb(statement, thing, role, from, to)))
    return failure();
  SmallSetVector<int64_t, 8> anchors;
  for (PlaceAttr place : {from, to})
    if (place)
      anchors.insert(place.getRanks().begin(), place.getRanks().end());
  if (!from) // the shares, wherever they are
    anchors.insert(piece->sharers.begin(), piece->sharers.end());
  if (role == Role::grad)
    piece->sharers.insert(to.getRanks().begin(), to.getRanks().end());
  if (rank && from && !anchors.contains(*rank))
    return fail(statement->at,
                "rank " + Twine(*rank) + " takes no part in this move from " + from.str() + " to " + to.str());
  ArrayRef<int64_t> standsOn = rank ? ArrayRef(*rank) : anchors.getArrayRef();
  if (failed(spendFor(statement->at, standsOn.size())))
    return failure();
  builder.create<TransferOp>(location(statement->at), ThingAttr::get(builder.getContext(), role, *coord), from, to,
                             standsOn);
  return success();
}

// The source of a move that does not name one; null for the shares of a gradient, wherever they are.
FailureOr<PlaceAttr> Elaborator::sourceOf(const MoveStatement *statement, const Thing &thing, Role role,
                                          const Piece &piece) {
  if (rank)
    return PlaceAttr::get(builder.getContext(), {*rank}, Layout::full);
  if (role == Role::grad)
    return PlaceAttr();
  PlaceAttr home = role == Role::weight ? piece.homes : role == Role::opt ? piece.owner : PlaceAttr();
  if (home && (home.getRanks().size() == 1 || home.getLayout() != Layout::full))
    return home;
  return fail(statement->at, "`move " + thing.role.text + "(..)` needs `from`: " +
                                 (role == Role::weight && !home ? str(piece) + " has no place for its weights"
                                                                : "several ranks could hold it"));
}

LogicalResult Elaborator::checkVerb(const MoveStatement *statement, const Thing &thing, Role role, PlaceAttr from,
                                    PlaceAttr to) {
  bool sums = role == Role::grad || role == Role::dkv;
  bool fromList = from.getLayout() == Layout::full && from.getRanks().size() > 1;
  bool toOne = to.getLayout() == Layout::full && to.getRanks().size() == 1;
  if (fromList && role == Role::weight)
    return fail(statement->at, "a weight moves from one rank (every copy is the same); got a list");
  if (fromList && !sums)
    return fail(statement->at, "`" + thing.role.text + "` moves from one rank; got a list");
  std::string ends = "from " + from.str() + " to " + to.str();
  bool hosts = from.getLayout() == Layout::host || to.getLayout() == Layout::host;
  if (hosts && (fromList || from.getRanks() != to.getRanks()))
    return fail(statement->at, "`" + thing.text + "` cannot move " + ends + "; a rank uses its own host memory only");
  if (fromList && role == Role::dkv && !toOne)
    return fail(statement->at, "`" + thing.text + "` cannot move " + ends + "; shares of `dkv` are summed on one rank");
  if (from.getLayout() == Layout::shard && to.getLayout() == Layout::shard)
    return fail(statement->at, "`" + thing.text + "` cannot move " + ends + "; shards stay with their ranks");
  return success();
}

/// The piece that holds a part outside the layers, such as `mtp`, may have its slices on several ranks; a schedule that
/// moves the keys of layers knows nothing of an attention in such a part.
LogicalResult Elaborator::checkKeys() {
  auto module = program->getParentOp()->getParentOfType<mlir::ModuleOp>();
  for (const Undeclared &one : undeclared) {
    auto body = module.lookupSymbol<mlir::func::FuncOp>(model.parts[one.part].function);
    if (!body.getOps<nn::Attends>().empty() && failed(checkKeysOf(model.parts[one.part].name, pieces[one.piece])))
      return failure();
  }
  return success();
}

LogicalResult Elaborator::checkKeysOf(StringRef part, const Piece &piece) {
  auto isOf = [&](CoordAttr coord) {
    return coord.getPart() == piece.name.part && coord.getIndex() == piece.name.index;
  };
  std::map<int64_t, std::pair<CoordAttr, int64_t>> first; // by microbatch: a slice, and its rank
  std::string apart;
  bool moved = false;
  program->walk([&](TransferOp transfer) {
    moved |= transfer.getThing().getRole() == Role::kv && isOf(transfer.getThing().getCoord());
  });
  program->walk([&](UnitOp unit) {
    CoordAttr coord = unit.getUnit().getCoord();
    if (moved || !apart.empty() || unit.getUnit().getPhase() != Phase::F || !isOf(coord))
      return;
    int64_t on = unit.getRanks().front();
    auto [slice, here] = first.try_emplace(coord.getMicrobatch(), coord, on).first->second;
    if (here != on)
      apart = "`F(" + slice.str() + ")` runs on rank " + std::to_string(here) + " and `F(" + coord.str() +
              ")` on rank " + std::to_string(on);
  });
  return apart.empty() ? success()
                       : fail(families[piece.family].at, "the attention of part `" + part +
                                                             "` needs the keys of all slices on one rank, and " +
                                                             apart + "; this schedule moves keys of the layers alone");
}
