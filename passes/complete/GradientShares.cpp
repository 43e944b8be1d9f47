// Keeps the shares of gradients by piece and rank, adds those that arrive, and tells which contribution is missing.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "passes/complete/GradientShares.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

GradientShares::GradientShares(StepValues &step, const StepOutline &outline)
    : step(step), outline(outline), numUpdates(step.program.countUpdates()) {}

int64_t GradientShares::slices() const {
  ProgramOp program = step.program;
  return std::max<int64_t>(program.getSlices(), 1);
}

int64_t GradientShares::contributionOf(CoordAttr unit) const {
  return unit.getMicrobatch() * slices() + std::max<int64_t>(unit.getSlice(), 0);
}

llvm::BitVector GradientShares::allContributions() const {
  ProgramOp program = step.program;
  int64_t all = program.getMicrobatches() * slices(), each = all / numUpdates;
  llvm::BitVector own(all);
  own.set(current * each, (current + 1) * each);
  return own;
}

//===-- Updates -------------------------------------------------------------------------------------------------===//

void GradientShares::turnTo(int64_t update) {
  if (update == current)
    return;
  otherTerms[current] = std::move(terms);
  terms = std::move(otherTerms[update]);
  current = update;
}

UnitIdAttr GradientShares::updateUnit(int64_t piece) const {
  CoordAttr coord = step.pieces.op(piece).getCoord();
  return UnitIdAttr::get(coord.getContext(), Phase::U, numUpdates > 1 ? coord.with(current, -1) : coord);
}

//===-- Shares of one rank --------------------------------------------------------------------------------------===//

void GradientShares::set(int64_t piece, int64_t rank, Share share, UnitOp unit) {
  // A bit for every microbatch: shares are moved, not copied.
  share.contributions.set(contributionOf(unit.getUnit().getCoord()));
  if (step.pieces.sumsShards(piece) && !outline.goesOn.contains(unit) && !waitsForTied(piece, share))
    return scatter(piece, rank, std::move(share), unit.getLoc());
  SmallVector<Share, 1> &held = terms[{piece, rank}];
  held.clear();
  held.push_back(std::move(share));
}

Share GradientShares::take(int64_t piece, int64_t rank, Location loc) {
  auto it = terms.find({piece, rank});
  if (it == terms.end())
    return emptyShare();
  SmallVector<Share, 1> all = std::move(it->second);
  terms.erase(it);
  Share sum = std::move(all.front());
  sum.value = step.waitFor(sum.value, loc);
  for (Share &term : llvm::drop_begin(all)) {
    Value arrived = step.waitFor(term.value, loc);
    sum.value =
        step.createTask(step.bodies.sum(piece), updateUnit(piece), rank, {sum.value, arrived}, loc).getResult(0);
    sum.contributions |= term.contributions;
    sum.moved = term.moved ? term.moved : sum.moved;
  }
  return sum;
}

void GradientShares::addTerm(int64_t piece, int64_t rank, Share share) {
  terms[{piece, rank}].push_back(std::move(share));
}

void GradientShares::sumUp(int64_t piece, int64_t rank, Location loc) {
  auto it = terms.find({piece, rank});
  if (it == terms.end() || it->second.size() < 2)
    return;
  Share sum = take(piece, rank, loc);
  terms[{piece, rank}].push_back(std::move(sum));
}

Value GradientShares::createZero(int64_t piece, int64_t rank, Location loc) {
  const TaskBody *zero = step.bodies.findUpdate(piece, BodyVariant::zero);
  if (!zero)
    return emitError(loc) << "`grad(" << step.pieces.name(piece) << ")` has no weights to have a gradient of", Value();
  return step.createTask(*zero, updateUnit(piece), rank, {}, loc).getResult(0);
}

SmallVector<int64_t> GradientShares::holders(int64_t piece) const {
  SmallVector<int64_t> ranks;
  for (auto it = terms.lower_bound({piece, 0}); it != terms.end() && it->first.first == piece; ++it)
    ranks.push_back(it->first.second);
  return ranks;
}

/// The gradients of tied weights are added to the last gradient of their owner, which is summed with them.
bool GradientShares::waitsForTied(int64_t piece, const Share &last) const {
  if (!step.bodies.findUpdate(piece, BodyVariant::tie_in, 0))
    return false;
  llvm::BitVector all = last.contributions;
  if (auto sum = shardSums.find({piece, current}); sum != shardSums.end())
    all |= sum->second.contributions;
  return all == allContributions();
}

Share GradientShares::takeForUnit(int64_t piece, int64_t rank, Location loc) {
  addScattered(rank);
  return take(piece, rank, loc);
}

//===-- Sums of shards over the mesh ----------------------------------------------------------------------------===//

/// Each replica has the sum of its shard where it was in the whole, and nothing beside it. It is added before the rank
/// makes its next gradient, so that there are not two of them.
void GradientShares::scatter(int64_t piece, int64_t rank, Share share, Location loc) {
  AxesAttr axes = step.program.sumAxes();
  share.value = step.createSum(Thing(Role::grad, piece), share.value, axes, step.pieces.summedTensors(piece, -1), loc,
                               /*cut=*/true);
  scattered[rank] = {current, piece, std::move(share)};
}

void GradientShares::addScattered(int64_t rank) {
  auto it = scattered.find(rank);
  if (it == scattered.end())
    return;
  Scattered last = std::move(it->second);
  scattered.erase(it);
  int64_t now = current;
  turnTo(last.update);
  Location loc = step.pieces.op(last.piece).getLoc();
  Share &sum = shardSums[{last.piece, last.update}];
  const TaskBody *adds = step.bodies.findUpdate(last.piece, sum.value ? BodyVariant::sum : BodyVariant::first);
  SmallVector<Value, 2> inputs;
  if (sum.value)
    inputs.push_back(sum.value);
  inputs.push_back(step.waitFor(last.share.value, loc));
  sum.value = step.createTask(*adds, updateUnit(last.piece), rank, inputs, loc).getResult(0);
  sum.contributions |= last.share.contributions;
  turnTo(now);
}

std::pair<Share, Share> GradientShares::takeShardSum(int64_t piece, int64_t rank, Location loc) {
  addScattered(rank);
  Share sum = shardSums[{piece, current}], whole = take(piece, rank, loc);
  sum.contributions |= whole.contributions;
  return {sum, whole};
}

Value GradientShares::addToShardSum(int64_t piece, int64_t rank, Value whole, Location loc) {
  scatter(piece, rank, {whole, {}, nullptr}, loc);
  addScattered(rank);
  return shardSums[{piece, current}].value;
}

//===-- Sums over ranks that update a piece together ------------------------------------------------------------===//

FailureOr<Share> GradientShares::reduce(int64_t piece, ArrayRef<int64_t> ranks, int64_t to, Operation *move) {
  Share sum = emptyShare();
  sum.moved = move;
  std::vector<Value> shares;
  SmallVector<int64_t> members;
  for (int64_t rank : ranks) {
    Share share = take(piece, rank, move->getLoc());
    if (!share.value && rank == to && !(share.value = createZero(piece, to, move->getLoc())))
      return failure();
    if (!share.value)
      continue;
    shares.push_back(share.value);
    members.push_back(rank);
    sum.contributions |= share.contributions;
  }
  sum.value = shares.front();
  if (shares.size() > 1)
    sum.value = step.createJoin(Role::grad, cast<ValType>(sum.value.getType()).getPayload(),
                                step.place(members, Layout::partial), shares, move->getLoc());
  return sum;
}

Share GradientShares::join(int64_t piece, Location loc) {
  SmallVector<int64_t> ranks = step.pieces.sharers(piece);
  SmallVector<Value> shares;
  Share sum = emptyShare();
  for (int64_t rank : ranks) {
    Share share = take(piece, rank, loc);
    shares.push_back(share.value ? share.value : createZero(piece, rank, loc));
    sum.contributions |= share.contributions;
  }
  sum.value = step.createJoin(Role::grad, cast<ValType>(shares.front().getType()).getPayload(),
                              step.place(ranks, Layout::partial), shares, loc);
  return sum;
}

/// Earlier terms have been added up already, so that no rank keeps more than two.
void GradientShares::addOnAll(int64_t piece, Share sum) {
  for (int64_t rank : step.pieces.sharers(piece)) {
    SmallVector<Share, 2> &own = ownTerms[{piece, rank}];
    if (own.size() > 1)
      own = {takeOwn(piece, rank, step.pieces.op(piece).getLoc())};
    own.push_back(sum);
  }
}

Share GradientShares::takeOwn(int64_t piece, int64_t rank, Location loc) {
  SmallVector<Share, 2> all = std::exchange(ownTerms[{piece, rank}], {});
  Share sum = emptyShare();
  TupleType payload = step.bodies.findOfShard(piece, BodyVariant::plain, rank)->input(GroupKind::grad)->payload;
  for (Share &term : all) {
    Value arrived = term.value;
    if (isa<FutureType>(arrived.getType()))
      arrived = step.builder.create<WaitOp>(loc, step.typeOn(Role::grad, payload, rank), arrived);
    if (sum.value)
      arrived = step.createTask(step.bodies.sum(piece, rank), updateUnit(piece), rank, {sum.value, arrived}, loc)
                    .getResult(0);
    sum.value = arrived;
    sum.contributions |= term.contributions;
  }
  return sum;
}

//===-- What is missing -----------------------------------------------------------------------------------------===//

/// The unit that adds this contribution to the gradient of the piece.
UnitOp GradientShares::contributor(int64_t piece, int64_t contribution) const {
  UnitOp found;
  ProgramOp program = step.program;
  program.walk([&](UnitOp unit) {
    Phase phase = unit.getUnit().getPhase();
    CoordAttr coord = unit.getUnit().getCoord();
    if ((phase == Phase::B || phase == Phase::W) && step.pieces.find(coord) == piece &&
        contributionOf(coord) == contribution)
      found = unit;
  });
  return found;
}

/// A share that its schedule moved, and left on a rank that does not update the piece.
LogicalResult GradientShares::reportLeft(int64_t piece, int64_t rank, const Share &share) const {
  const Pieces &pieces = step.pieces;
  int64_t found = share.contributions.find_first();
  std::string name = pieces.name(piece);
  auto error = emitError(pieces.op(piece).getLoc())
               << "`U(" << name << ")` runs on "
               << (pieces.isSharded(piece) ? *pieces.op(piece).getOwner() : step.place(pieces.owners(piece))).str()
               << ", but ";
  if (found < 0)
    error << "an empty share of its gradient";
  else
    error << "the gradient of microbatch " << found / slices();
  error << " is left on rank " << rank << "; this schedule moves `grad(" << name << ")` itself";
  if (UnitOp unit = found < 0 ? UnitOp() : contributor(piece, found))
    error.attachNote(unit.getLoc()) << "computed here" << withLoops(unit);
  if (share.moved) {
    error.attachNote(share.moved->getLoc()) << "last moved here" << withLoops(share.moved);
    return failure();
  }
  Operation *move = outline.gradMoves.at(piece);
  error.attachNote(move->getLoc()) << "`grad(" << name << ")` is moved here" << withLoops(move);
  return failure();
}

LogicalResult GradientShares::reportMissing(int64_t piece, int64_t owner, const Share &share) const {
  bool isShared = !step.pieces.sharers(piece).empty();
  for (int64_t rank : holders(piece))
    if (const auto &left = terms.at({piece, rank}); (rank != owner || isShared) && !left.empty())
      return reportLeft(piece, rank, left.front());
  llvm::BitVector missing = allContributions();
  missing.reset(share.contributions);
  auto error = emitError(step.pieces.op(piece).getLoc())
               << "`U(" << step.pieces.name(piece) << ")` on rank " << owner << " lacks the gradient of ";
  llvm::interleaveComma(missing.set_bits(), error, [&](unsigned unit) { error << "microbatch " << unit / slices(); });
  return error;
}
