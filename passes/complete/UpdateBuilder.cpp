// Builds the end of an update: gradients to their owners, their norm, the updates, and the new weights' way home.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   shares on ranks --move, sum--> owner --norm per rank, all-reduce--> U on the owner --move--> every home
//
// On a mesh the owner's devices along `data` sum their gradients before the norm. Then all of them have the same sums,
// and each makes the whole norm and the whole update by itself, so their weights stay alike. With `zero = 1` each
// device gets the sum of one shard and updates it; then the devices gather the new weights. With `zero = 2` they sum
// behind each backward, and each device adds up its shard (GradientShares). At the end only gradients with terms of
// tied weights are left to sum.
//
// A tied weight is owned by the first piece that uses it. Each later piece holds a copy in its own payload: its share
// of the gradient is copied out (tie.out), added on the owner (tie.in.k), and the new value comes back (tie.fresh.k).
#include "passes/complete/UpdateBuilder.h"
#include "dialect/pipeline/Clauses.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

ValueKey UpdateBuilder::own(Role role, int64_t piece, int64_t rank) const {
  return {Thing(role, piece), rank, ValueKey::own};
}

Value UpdateBuilder::getOwn(Role role, int64_t piece, int64_t rank) {
  return step.get(own(role, piece, rank), locOf(piece));
}

Value UpdateBuilder::createUpdateTask(const TaskBody &body, int64_t piece, int64_t rank, ValueRange inputs) {
  return step.createTask(body, gradients.updateUnit(piece), rank, inputs, locOf(piece)).getResult(0);
}

LogicalResult UpdateBuilder::createInputs() {
  const Pieces &pieces = step.pieces;
  for (int64_t piece = 0; piece < pieces.size(); ++piece) {
    const TaskBody *update = step.bodies.find(piece, Phase::U);
    if (!pieces.hasWeights(piece) || (pieces.trains(piece) && !update))
      continue;
    if (pieces.homes(piece).empty())
      return emitError(locOf(piece)) << "no rank holds the weights of " << pieces.describe(piece)
                                     << "; give it a place with `at` or `weight at`";
    if (pieces.isSharded(piece)) {
      if (failed(createShardInputs(piece)))
        return failure();
      continue;
    }
    if (!pieces.trains(piece)) {
      createFrozenInputs(piece);
      continue;
    }
    if (pieces.owners(piece).empty())
      return emitError(locOf(piece)) << pieces.describe(piece) << " has no `opt` place, so no rank can update it";
    Thing weight = Thing(Role::weight, piece), state = Thing(Role::opt, piece);
    for (int64_t rank : pieces.homes(piece))
      step.set({weight, rank}, step.addInput(weight, step.typeOn(Role::weight, step.bodies.weightsOf(piece), rank)));
    versions.createInputs(piece);
    if (const BodyGroups::Group *opt = update->input(GroupKind::opt))
      for (int64_t rank : pieces.owners(piece))
        step.set({state, rank}, step.addInput(state, step.typeOn(Role::opt, opt->payload, rank)));
    if (const TaskBody *redo = isLate() ? step.bodies.findUpdate(piece, BodyVariant::redo) : nullptr) {
      const BodyGroups::Group *kept = redo->input(GroupKind::undo);
      if (!kept)
        return emitError(locOf(piece)) << "`barrier = false` does not go with a piece whose weights are all those of "
                                       << "another piece yet: " << pieces.describe(piece);
      undo[piece] =
          step.addInput(Thing(Role::undo, piece), step.typeOn(Role::undo, kept->payload, pieces.owner(piece)));
    }
  }
  for (int64_t rank = 0; isLate() && rank < static_cast<int64_t>(step.program.getRanks()); ++rank)
    if (llvm::none_of(undo, [&](auto &one) { return pieces.owner(one.first) == rank; }))
      return emitError(clauseLoc(step.program, "optimizer.barrier"))
             << "`barrier = false`: rank " << rank << " updates no weights; expected "
             << "that every rank does";
  return success();
}

/// Every home keeps its copy from step to step.
void UpdateBuilder::createFrozenInputs(int64_t piece) {
  Thing weight(Role::weight, piece);
  for (int64_t rank : step.pieces.homes(piece)) {
    Value value = step.addInput(weight, step.typeOn(Role::weight, step.bodies.weightsOf(piece), rank));
    step.set({weight, rank}, value);
    frozen.push_back({weight, value});
  }
}

/// After the last unit: weights that nothing updates are the step's outputs as they are.
void UpdateBuilder::outputFrozen() {
  for (auto [weight, value] : frozen)
    step.output(weight, value, locOf(weight.piece));
}

/// If the updates need a norm, each has one before it. If they do not, only the last one gets a norm, at the end, for
/// the log.
LogicalResult UpdateBuilder::update(ArrayRef<int64_t> pieces) {
  if (!isLate())
    norms.clear();
  if (failed(reduceGradients(pieces)) || failed(addTied(pieces)))
    return failure();
  mergeTerms(pieces);
  if (step.program.sumMembers() > 1)
    sumOverMesh(pieces);
  if (!isLate() && (gradients.updates() == 1 || versions.updatesTogether()))
    createNorms();
  if (failed(updateWeights(pieces)))
    return failure();
  versions.setUpdated(pieces);
  return success();
}

LogicalResult UpdateBuilder::finish() {
  if (isLate()) {
    judge();
    for (auto [rank, norm] : norms)
      step.output(normThing(), norm, step.program.getLoc());
  }
  outputFrozen();
  if (gradients.updates() == 1)
    return update(llvm::to_vector(llvm::seq(int64_t(0), step.pieces.size())));
  gradients.turnTo(gradients.updates() - 1); // each update ran behind its last gradient
  if (!versions.updatesTogether())
    createNorms();
  return success();
}

//===-- Gradients -----------------------------------------------------------------------------------------------===//

LogicalResult UpdateBuilder::reduceGradients(ArrayRef<int64_t> pieces) {
  for (int64_t piece : pieces)
    if (step.pieces.trains(piece) &&
        failed(step.pieces.sharers(piece).empty() ? reduceToOwner(piece) : reduceOnAll(piece)))
      return failure();
  return success();
}

LogicalResult UpdateBuilder::reduceToOwner(int64_t piece) {
  int64_t owner = step.pieces.owner(piece);
  Location loc = locOf(piece);
  if (step.pieces.sumsShards(piece)) {
    auto [sum, whole] = gradients.takeShardSum(piece, owner, loc);
    Value given = whole.value ? whole.value : sum.value;
    if (!given || !gradients.isAll(sum))
      return gradients.reportMissing(piece, owner, sum);
    step.set(own(Role::grad, piece, owner), given);
    return success();
  }
  if (!outline.gradMoves.count(piece))
    for (int64_t rank : gradients.holders(piece)) {
      if (rank == owner)
        continue;
      Share share = gradients.take(piece, rank, loc);
      share.value = step.createMove(Thing(Role::grad, piece), share.value, owner, loc);
      gradients.addTerm(piece, owner, share);
    }
  Share sum = gradients.take(piece, owner, loc);
  if (!gradients.isComplete(sum) || !gradients.holders(piece).empty())
    return gradients.reportMissing(piece, owner, sum);
  step.set(own(Role::grad, piece, owner), sum.value);
  return success();
}

int64_t UpdateBuilder::nearestOwner(int64_t piece, int64_t rank, size_t k) const {
  ArrayRef<int64_t> owners = step.pieces.owners(piece);
  return llvm::is_contained(owners, rank) ? rank : owners[k % owners.size()];
}

LogicalResult UpdateBuilder::addTied(ArrayRef<int64_t> pieces) {
  for (int64_t piece : pieces) {
    if (step.pieces.primary(piece) < 0)
      continue;
    if (step.pieces.isSharded(piece))
      addTiedShards(piece);
    else if (failed(addTiedToOwners(piece)))
      return failure();
  }
  return success();
}

LogicalResult UpdateBuilder::addTiedToOwners(int64_t piece) {
  int64_t primary = step.pieces.primary(piece);
  const TaskBody *out = step.bodies.findUpdate(piece, BodyVariant::tie_out);
  const TaskBody *in = step.bodies.findUpdate(primary, BodyVariant::tie_in, step.pieces.tieNumber(piece));
  if (!out || !in)
    return emitError(locOf(piece)) << "`" << step.pieces.name(piece)
                                   << "` has no derived function for its tied weights";
  for (auto [k, target] : llvm::enumerate(step.pieces.owners(primary))) {
    int64_t owner = nearestOwner(piece, target, k);
    Location loc = locOf(piece);
    Value share = createUpdateTask(*out, piece, owner, {getOwn(Role::grad, piece, owner)});
    if (owner != target)
      share = step.waitFor(step.createMove(Thing(Role::grad, piece), share, target, loc), loc);
    Value sum = getOwn(Role::grad, primary, target);
    sum = step.createTask(*in, gradients.updateUnit(primary), target, {sum, share}, loc).getResult(0);
    step.set(own(Role::grad, primary, target), sum);
  }
  return success();
}

/// Devices along `tensor` sum what each has as a term, where the last contribution is.
void UpdateBuilder::mergeTerms(ArrayRef<int64_t> pieces) {
  for (int64_t piece : pieces) {
    if (!step.pieces.trains(piece))
      continue;
    for (int64_t rank : step.pieces.isSharded(piece) ? step.pieces.shards(piece) : step.pieces.owners(piece)) {
      const TaskBody *merge = step.bodies.findOfShard(piece, BodyVariant::merge, rank);
      if (!merge)
        continue;
      Value terms = getOwn(Role::grad, piece, rank), sum = createUpdateTask(*merge, piece, rank, {terms});
      if (step.pieces.primary(piece) < 0) // else the share of the tied weights has just been read
        sum.getDefiningOp()->moveAfter(terms.getDefiningOp());
      step.set(own(Role::grad, piece, rank), sum);
    }
  }
}

/// Every replica adds what the others have, where the last contribution of its own is; tied weights are their owner's.
void UpdateBuilder::sumOverMesh(ArrayRef<int64_t> pieces) {
  AxesAttr axes = step.program.sumAxes();
  for (int64_t piece : pieces) {
    if (!step.pieces.trains(piece))
      continue;
    if (step.pieces.sumsShards(piece)) {
      int64_t owner = step.pieces.owner(piece);
      if (step.bodies.findUpdate(piece, BodyVariant::tie_in, 0))
        step.set(own(Role::grad, piece, owner),
                 gradients.addToShardSum(piece, owner, getOwn(Role::grad, piece, owner), locOf(piece)));
      continue;
    }
    bool isSharded = step.pieces.isSharded(piece);
    for (int64_t rank : isSharded ? step.pieces.shards(piece) : step.pieces.owners(piece)) {
      int64_t tensors = step.pieces.summedTensors(piece, isSharded ? step.pieces.shardOf(piece, rank) : -1);
      if (tensors == 0)
        continue;
      Value sum = getOwn(Role::grad, piece, rank);
      MoveOp move =
          step.createSum(Thing(Role::grad, piece), sum, axes, tensors, locOf(piece), step.pieces.isCutOverMesh(piece));
      if (step.pieces.primary(piece) < 0) // else the share of the tied weights has just been read
        move->moveAfter(sum.getDefiningOp());
      step.set(own(Role::grad, piece, rank), move.getFuture());
    }
  }
}

//===-- The gradient norm ---------------------------------------------------------------------------------------===//

void UpdateBuilder::addNorm(int64_t piece, int64_t rank) {
  SmallVector<Value> inputs = {getOwn(Role::grad, piece, rank)};
  if (Value norm = norms[rank])
    inputs.push_back(norm);
  const TaskBody *body =
      step.bodies.findOfShard(piece, inputs.size() > 1 ? BodyVariant::norm : BodyVariant::norm_first, rank);
  norms[rank] = createUpdateTask(*body, piece, rank, inputs);
}

/// One running sum of squares on every rank that updates something, pieces in model order. Where several ranks have the
/// whole of a piece, the first of them counts it; where every rank has all pieces, each counts all, and nothing moves.
void UpdateBuilder::createNorms() {
  const Pieces &pieces = step.pieces;
  ArrayRef<int64_t> owners;
  bool alike = true;
  for (int64_t piece = 0; piece < pieces.size(); ++piece)
    if (pieces.trains(piece)) {
      alike &= !pieces.isSharded(piece) && (owners.empty() || owners == pieces.owners(piece));
      owners = pieces.owners(piece);
    }
  for (int64_t piece = 0; piece < pieces.size(); ++piece) {
    if (!pieces.trains(piece))
      continue;
    ArrayRef<int64_t> counting = pieces.isSharded(piece) ? pieces.shards(piece) : pieces.owners(piece);
    if (!pieces.isSharded(piece) && !alike)
      counting = counting.take_front();
    for (int64_t rank : counting)
      addNorm(piece, rank);
  }
  if (!alike) {
    reduceNorms();
    sendNorms();
  }
  if (gradients.isLast())
    for (auto [rank, norm] : norms)
      step.output(normThing(), norm, step.program.getLoc());
}

/// The norm of the step before, of the gradients that its updates kept: it is on its way during the first forwards.
void UpdateBuilder::postNorm() {
  if (!isLate())
    return;
  for (auto [piece, kept] : undo) {
    int64_t rank = step.pieces.owner(piece);
    SmallVector<Value> inputs = {kept};
    if (Value norm = norms[rank])
      inputs.push_back(norm);
    BodyVariant variant = inputs.size() > 1 ? BodyVariant::norm : BodyVariant::norm_first;
    norms[rank] = createUpdateTask(*step.bodies.findUpdate(piece, variant), piece, rank, inputs);
  }
  if (norms.size() > 1)
    sumOfNorms = moveNorms();
}

/// Stands behind the last forward that comes before the first backward of any rank.
void UpdateBuilder::judge() {
  if (!isLate() || std::exchange(isJudged, true))
    return;
  if (sumOfNorms)
    splitNorms(sumOfNorms);
  for (auto [piece, kept] : undo) {
    Value &norm = norms[step.pieces.owner(piece)];
    const TaskBody *body = step.bodies.findUpdate(piece, BodyVariant::judge);
    norm = createUpdateTask(*body, piece, step.pieces.owner(piece), {kept, norm});
  }
}

/// All ranks that counted something get the sum of all.
void UpdateBuilder::reduceNorms() {
  if (norms.size() > 1)
    splitNorms(moveNorms());
}

Value UpdateBuilder::moveNorms() {
  Location loc = step.program.getLoc();
  SmallVector<int64_t> counting;
  SmallVector<Value> terms;
  for (auto [rank, norm] : norms) {
    counting.push_back(rank);
    terms.push_back(norm);
  }
  TupleType payload = cast<ValType>(terms.front().getType()).getPayload();
  Value joined = step.createJoin(Role::stat, payload, step.place(counting, Layout::partial), terms, loc);
  return step.createMove(normThing(), joined, step.place(counting), loc);
}

void UpdateBuilder::splitNorms(Value sum) {
  Location loc = step.program.getLoc();
  Value total = step.waitFor(sum, loc);
  TupleType payload = cast<ValType>(total.getType()).getPayload();
  for (auto &[rank, norm] : norms)
    norm = step.builder.create<pipeline::SplitOp>(loc, step.typeOn(Role::stat, payload, rank), total);
}

/// Sends norms to ranks whose pieces other ranks have counted.
void UpdateBuilder::sendNorms() {
  Location loc = step.program.getLoc();
  for (int64_t piece = 0; piece < step.pieces.size(); ++piece) {
    if (!step.pieces.trains(piece))
      continue;
    ArrayRef<int64_t> owners = step.pieces.owners(piece);
    for (int64_t rank : owners)
      if (!norms.count(rank))
        norms[rank] = step.waitFor(step.createMove(normThing(), norms[owners.front()], rank, loc), loc);
  }
}

//===-- Updates -------------------------------------------------------------------------------------------------===//

LogicalResult UpdateBuilder::updateWeights(ArrayRef<int64_t> pieces) {
  for (int64_t piece : pieces) {
    if (!step.pieces.trains(piece))
      continue;
    if (step.pieces.isSharded(piece)) {
      updateShards(piece);
      continue;
    }
    for (auto [k, owner] : llvm::enumerate(step.pieces.owners(piece)))
      if (failed(updateOnOwner(piece, owner, k)))
        return failure();
    if (gradients.isLast())
      step.output(Thing(Role::grad, piece), getOwn(Role::grad, piece, step.pieces.owners(piece).front()), locOf(piece));
  }
  if (!gradients.isLast())
    return success();
  for (int64_t piece : pieces)
    if (step.pieces.trains(piece) && !step.pieces.homesAreShards(piece))
      step.pieces.isSharded(piece) ? returnGathered(piece) : returnWeights(piece);
  return success();
}

/// The new values of tied weights, from the piece that owns them.
Value UpdateBuilder::freshWeights(int64_t piece, int64_t rank, size_t k) {
  int64_t primary = step.pieces.primary(piece);
  const TaskBody *fresh = step.bodies.findUpdate(primary, BodyVariant::tie_fresh, step.pieces.tieNumber(piece));
  int64_t source = nearestOwner(primary, rank, k);
  Location loc = locOf(piece);
  Value value =
      step.createTask(*fresh, gradients.updateUnit(primary), source, {getOwn(Role::weight, primary, source)}, loc)
          .getResult(0);
  if (source == rank)
    return value;
  return step.waitFor(step.createMove(Thing(Role::weight, piece), value, rank, loc), loc);
}

LogicalResult UpdateBuilder::updateOnOwner(int64_t piece, int64_t owner, size_t k) {
  Location loc = locOf(piece);
  Thing weight = Thing(Role::weight, piece), state = Thing(Role::opt, piece);
  const TaskBody *body = step.bodies.find(piece, Phase::U);
  SmallVector<Value> inputs;
  for (const BodyGroups::Group &group : body->groups.inputs) {
    Value value;
    if (group.name == GroupKind::weight)
      value = step.get({weight, owner}, loc);
    else if (group.name == GroupKind::opt)
      value = step.get({state, owner}, loc);
    else if (group.name == GroupKind::grad)
      value = getOwn(Role::grad, piece, owner);
    else if (group.name == GroupKind::norm)
      value = norms[owner];
    else if (group.name == GroupKind::fresh)
      value = freshWeights(piece, owner, k);
    if (!value)
      return emitError(loc) << "`U(" << step.pieces.name(piece) << ")` on rank " << owner << ": `" << group.name.str()
                            << "(" << step.pieces.name(piece) << ")` is not there at the end of the step";
    inputs.push_back(value);
  }
  if (versions.areUsed())
    versions.keepOld(piece, owner);
  TaskOp task = step.createTask(*body, gradients.updateUnit(piece), owner, inputs, loc);
  for (auto [group, value] : llvm::zip(body->groups.results, task.getResults()))
    if (group.name == GroupKind::weight) {
      Value whole = step.pieces.isCutOverMesh(piece) ? gatherOverMesh(piece, value) : Value(value);
      step.set({weight, owner}, whole);
      step.set(own(Role::weight, piece, owner), whole);
    } else if (group.name == GroupKind::undo) {
      step.output(Thing(Role::undo, piece), value, loc);
    } else if (gradients.isLast()) {
      step.output(state, value, loc);
    } else {
      step.set({state, owner}, value);
    }
  return success();
}

Value UpdateBuilder::gatherOverMesh(int64_t piece, Value weights) {
  AxesAttr axes = step.program.sumAxes();
  return step.createSum(Thing(Role::weight, piece), weights, axes, step.pieces.summedTensors(piece, -1), locOf(piece),
                        /*cut=*/true);
}

/// The value before this one in the same memory: that of an update in place, or of what goes over the mesh.
static Value valueBefore(Value value) {
  if (auto wait = value.getDefiningOp<WaitOp>())
    if (auto move = wait.getFuture().getDefiningOp<MoveOp>(); move && move.getAxes())
      return move.getValue();
  return tiedInput(value);
}

/// The op that made the memory of this value, looking through updates in place: an input, an arrival, ..
static Operation *rootOf(Value value) {
  while (Value last = valueBefore(value))
    value = last;
  return value.getDefiningOp();
}

void UpdateBuilder::returnWeights(int64_t piece) {
  Location loc = locOf(piece);
  versions.outputOld(piece);
  Thing weight = Thing(Role::weight, piece);
  for (int64_t home : step.pieces.homes(piece)) {
    int64_t owner = nearestOwner(piece, home, 0);
    Value value = getOwn(Role::weight, piece, owner);
    if (home != owner)
      value = step.createMove(weight, value, home, loc);
    else if (!isa<InputOp>(rootOf(value))) // the update ran on a copy that travelled
      value = createUpdateTask(step.bodies.copy(piece), piece, owner, {value});
    step.set({weight, home}, value);
  }
  for (int64_t home : step.pieces.homes(piece))
    step.output(weight, step.get({weight, home}, loc), loc);
}
