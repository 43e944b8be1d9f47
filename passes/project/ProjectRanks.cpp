// Projects the step on its ranks: launches, posts and completes, in the one global order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Before: %f = move act(0, 0) %a : [0] -> [1]     After:  rank 0 { launch @s0.F   post send   launch ..   complete }
//         %b = wait %f                                    rank 1 { post receive   launch ..   complete   launch @s1.F }
//         task @s1.F (%b)
//
// Both sides post where the move stands; the receiver completes where the wait stands. The sender, and a receiver that
// waits for nothing because a later copy serves it, complete after their next launch, or earlier when the memory is
// about to be written: since both posts stand at one place of one total order, a complete anywhere after them cannot
// close a cycle (docs/proofs.md 6). Of weights and gradients an R is no such launch: it only begins a backward,
// and a wait behind it would stop the backward. Where the program has costs of parts, whose units may be of very
// different length, a send waits for as long as the longest of them: the receiver may have begun one just before; and a
// receive is posted as long before it is waited for (PostAhead.cpp).
//
// The program of a rank follows from the ops of the step on this rank alone, in their order. So ranks are projected in
// parallel. They read the step one stretch at a time. The ops of a stretch are erased when nothing behind it reads
// them, so the whole step and the whole programs of the ranks are never in memory at the same time.
#include "analysis/Actions.h"
#include "analysis/costs/Costs.h"
#include "mlir/IR/Threading.h"
#include "passes/Memory.h"
#include "passes/Passes.h"
#include "llvm/ADT/SetVector.h"

namespace pp {
#define GEN_PASS_DEF_PROJECTRANKS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

ValType typeOf(Value value) { return cast<ValType>(value.getType()); }
int64_t rankOf(Value value) { return typeOf(value).getRanks().front(); }

bool isCollective(Verb verb) { return verb != Verb::p2p && verb != Verb::to_host && verb != Verb::from_host; }

/// The ranks of a collective in ascending order.
SmallVector<int64_t> membersOf(MoveOp move) {
  SmallVector<int64_t> members(typeOf(move.getValue()).getRanks());
  if (int64_t root = members.front(); *move.getVerb() == Verb::broadcast) {
    members.assign(move.getTarget().getRanks().begin(), move.getTarget().getRanks().end());
    if (!llvm::is_contained(members, root))
      members.push_back(root);
  }
  llvm::sort(members);
  return members;
}

/// What the tasks of one body have in common.
struct Callee {
  TupleType scratch;                         ///< null if it needs none
  DenseI64ArrayAttr handed;                  ///< tensors that it hands on
  SmallVector<std::optional<int64_t>> slice; ///< by result: of gradients of keys and of keys their slice
  bool judges = false;                       ///< by the norm it reads the update before was right or wrong
};

/// What the projections of all ranks read.
class Step {
public:
  Step(ModuleOp module, ProgramOp program)
      : program(program), pieces(program), times(program), symbols(module), context(program.getContext()) {}

  /// Reads the step, and refuses what no program of a rank can do.
  LogicalResult read();
  /// Goes on to the next stretch of the step, of so many ops, having erased those ops before it that nothing reads any
  /// more. False behind the last one.
  bool advance(size_t length);
  /// The ops of this stretch that stand on the rank.
  ArrayRef<Operation *> on(int64_t rank) const { return stretch[rank]; }
  /// The inputs and outputs of the whole step that stand on the rank.
  ArrayRef<Operation *> ends(int64_t rank) const { return allEnds[rank]; }
  const Callee &callee(TaskOp task) const { return callees.find(task.getCalleeAttr())->second; }
  /// All collectives of a group are one lane: whatever their kind, its members join them in one order. Every group has
  /// a channel of its own, after those of the directed edges. What goes over axes of the mesh has one behind those: a
  /// device is in one group of it.
  int64_t channelOf(ArrayRef<int64_t> members, AxesAttr axes) const;

  ProgramOp program;
  Pieces pieces;
  UnitTimes times;
  double patience = 0; ///< how long a message may be on its way

private:
  SymbolTable symbols;
  MLIRContext *context;
  std::vector<Operation *> ops;
  size_t begin = 0, end = 0;                              ///< of the stretch, in `ops`
  llvm::DenseSet<Operation *> stillRead;                  ///< ops of earlier stretches
  std::vector<std::vector<Operation *>> stretch, allEnds; ///< by rank
  DenseMap<Attribute, Callee> callees;
  DenseMap<Attribute, int64_t> lanes; ///< members of collectives -> number

  void readLanes(ModuleOp module);
  LogicalResult readCallee(TaskOp task);
  LogicalResult readMove(MoveOp move);
  LogicalResult readInput(InputOp input);
  void leave(Operation *left);
};

/// A message that this rank has posted and not completed.
struct Posted {
  Value request, slot;
  int64_t group;   ///< of the user's `together`, -1 for an inferred move
  bool unwaited;   ///< no `wait` says when: sends, and what arrives but is never used
  double time = 0; ///< what the rank has run since then
};

/// Builds the program of one rank.
class Projector {
public:
  Projector(const Step &step, RankOp op)
      : step(step), program(step.program), pieces(step.pieces), op(op), rank(op.getRank()),
        builder(OpBuilder::atBlockEnd(&op.getBody().front())) {}

  void begin() {
    for (Operation *one : step.ends(rank)) // weights that come home are received where the old ones were
      if (auto input = dyn_cast<InputOp>(one))
        homes[input.getThing()] = createInput(input);
    for (Operation *one : step.ends(rank))
      if (auto output = dyn_cast<OutputOp>(one))
        bindHome(output);
  }

  /// Projects the stretch that the step is at.
  void run() {
    for (Operation *one : step.on(rank))
      project(one);
  }

  void finish() {
    if (judge) // the last one: now nothing of the step depends on weights that may be wrong but what is done over
      judge.setJudges(true);
    completeWhere([](const Posted &) { return true; });
    postReceivesAhead(op, step.times, step.patience);
  }

private:
  const Step &step;
  ProgramOp program;
  const Pieces &pieces;
  RankOp op;
  int64_t rank;
  OpBuilder builder;
  LaunchOp judge;
  std::vector<Posted> posted;
  LaunchOp leader;              // the next launch runs beside it; else null
  DenseMap<Value, Value> slots; // value -> slot
  DenseMap<Attribute, Value> homes;
  DenseMap<Value, Value> requests;  // future -> request
  DenseMap<Value, Value> returning; // future of what comes back from the host -> the request of its sending end

  Type requestType() { return RequestType::get(program.getContext()); }

  //===-- Slots -------------------------------------------------------------------------------------------------===//

  Value createSlot(Role role, StringRef label, TupleType payload, Location loc, BindingAttr binding = {},
                   bool host = false) {
    auto type = SlotType::get(program.getContext(), payload);
    return builder.create<SlotOp>(loc, type, role, label, IntegerAttr(), DenseI64ArrayAttr(), binding, host);
  }

  FlatSymbolRefAttr symbolOf(int64_t piece) { return FlatSymbolRefAttr::get(pieces.op(piece).getSymNameAttr()); }

  /// Which shard of a piece the rank has; -1 if the piece is not cut over ranks.
  int64_t shardOf(int64_t piece) {
    SmallVector<int64_t> shards(pieces.shards(piece));
    llvm::sort(shards);
    return shards.empty() ? -1 : llvm::find(shards, rank) - shards.begin();
  }

  BindingAttr bindingOf(InputOp input) {
    ThingAttr thing = input.getThing();
    CoordAttr coord = thing.getCoord();
    MLIRContext *context = program.getContext();
    if (thing.getRole() == Role::data) {
      int64_t slice = coord.getSlice();
      return BindingAttr::get(context, *symbolizeBindingKind(*input.getData()), coord.getMicrobatch(), slice,
                              slice < 0 ? -1 : sliceStarts(program)[slice], std::max<int64_t>(coord.getIndex(), 0));
    }
    std::optional<BindingKind> kind = symbolizeBindingKind(stringifyRole(thing.getRole()));
    if (!kind) // nothing that the trainer finds
      return {};
    int64_t piece = pieces.find(coord);
    bool isShard = pieces.isSharded(piece) && (thing.getRole() == Role::opt || pieces.homesAreShards(piece));
    int64_t shard = isShard ? shardOf(piece) : -1;
    if (kind != BindingKind::weight)
      return BindingAttr::get(context, *kind, symbolOf(piece), shard);
    // Values that units of the next step read from before its beginning.
    if (coord.getMicrobatch() > 0)
      return BindingAttr::get(context, BindingKind::previous, symbolOf(piece), shard, /*save=*/false,
                              coord.getMicrobatch());
    return BindingAttr::get(context, BindingKind::weight, symbolOf(piece), shard,
                            /*save=*/isShard || pieces.homes(piece).front() == rank);
  }

  Value createInput(InputOp input) {
    ThingAttr thing = input.getThing();
    ValType type = typeOf(input.getValue());
    Value slot = createSlot(type.getRole(), thing.str(), type.getPayload(), input.getLoc(), bindingOf(input));
    slots[input.getValue()] = slot;
    return slot;
  }

  void bindHome(OutputOp output) {
    Value home = homes.lookup(output.getThing());
    if (home && !slots.count(output.getValue()) && !isTied(output.getValue()))
      slots[output.getValue()] = home;
  }

  static bool isTied(Value value) {
    auto task = value.getDefiningOp<TaskOp>();
    return task && task.getTies()[cast<OpResult>(value).getResultNumber()] >= 0;
  }

  Value slotOf(Value value, function_ref<std::string()> label, Location loc) {
    Value &slot = slots[value];
    ValType type = typeOf(value);
    if (!slot)
      slot = createSlot(type.getRole(), label(), type.getPayload(), loc, {}, type.getLayout() == Layout::host);
    return slot;
  }

  //===-- Completes ---------------------------------------------------------------------------------------------===//

  template <typename Which> void completeWhere(Which which) {
    llvm::erase_if(posted, [&](const Posted &one) {
      bool ends = which(one);
      if (ends)
        builder.create<CompleteOp>(one.request.getLoc(), one.request);
      return ends;
    });
  }

  static bool isOfWeights(const Posted &posted) {
    Role role = posted.slot.getDefiningOp<SlotOp>().getRole();
    return role == Role::weight || role == Role::grad;
  }

  /// The slot is about to be written: what is still being sent from it must have left.
  void finishSends(Value slot) {
    completeWhere([&](const Posted &one) { return one.unwaited && one.slot == slot; });
  }

  //===-- Operations --------------------------------------------------------------------------------------------===//

  void project(Operation *op) {
    if (auto task = dyn_cast<TaskOp>(op)) {
      projectTask(task);
    } else if (auto move = dyn_cast<MoveOp>(op)) {
      projectMove(move);
    } else if (auto wait = dyn_cast<WaitOp>(op)) {
      projectWait(wait);
    } else if (auto join = dyn_cast<JoinOp>(op)) {
      for (auto [on, value] : llvm::zip(typeOf(join.getValue()).getRanks(), join.getValues()))
        if (on == rank)
          slots[join.getValue()] = slots.lookup(value);
    } else if (auto split = dyn_cast<pipeline::SplitOp>(op)) {
      slots[split.getOwn()] = slots.lookup(split.getValue());
    } else if (auto output = dyn_cast<OutputOp>(op)) {
      projectOutput(output);
    }
  }

  /// `act(0, 1)`: what the task makes. Gradients of keys are of a slice of their own.
  std::string labelOf(TaskOp task, OpResult result) {
    CoordAttr coord = task.getUnit().getCoord();
    ArrayRef<std::optional<int64_t>> slices = step.callee(task).slice; // none of a body without groups
    if (size_t number = result.getResultNumber(); number < slices.size() && slices[number])
      coord = coord.with(coord.getMicrobatch(), *slices[number]);
    return (stringifyRole(typeOf(result).getRole()) + "(" + coord.str() + ")").str();
  }

  /// Nothing may stand between two launches that run side by side: the inputs of the second come before the first.
  void projectTask(TaskOp task) {
    const Callee &callee = step.callee(task);
    if (leader)
      builder.setInsertionPoint(leader);
    SmallVector<Value> inputs, results;
    for (Value input : task.getInputs())
      inputs.push_back(slots.lookup(input));
    for (OpResult result : task->getResults()) {
      if (int64_t tie = task.getTies()[result.getResultNumber()]; tie >= 0) {
        finishSends(inputs[tie]);
        slots[result] = inputs[tie];
        continue;
      }
      Value slot = slotOf(
          result, [&] { return labelOf(task, result); }, task.getLoc());
      finishSends(slot);
      results.push_back(slot);
    }
    Value scratch = callee.scratch ? createSlot(Role::temporary, "scratch", callee.scratch, task.getLoc()) : Value();
    builder.setInsertionPointToEnd(&op.getBody().front());
    auto launch = builder.create<LaunchOp>(
        task.getLoc(), task.getCallee(), task.getUnit(), inputs, results, scratch, callee.handed, task.getVersionAttr(),
        task.getJointAttr(), task.getShareAttr(), task.getBeside() ? builder.getDenseI64ArrayAttr({}) : nullptr);
    leader = task.getBeside() ? launch : nullptr;
    if (callee.judges)
      judge = launch;
    double time = step.times.of(task);
    for (Posted &one : posted)
      one.time += time;
    if (leader)
      return;
    bool begins = task.getUnit().getPhase() == Phase::R;
    completeWhere(
        [&](const Posted &one) { return one.unwaited && one.time >= step.patience && !(begins && isOfWeights(one)); });
  }

  void projectMove(MoveOp move) {
    if (move.getCut())
      return projectInPlace(move);
    switch (*move.getVerb()) {
    case Verb::all_reduce:
    case Verb::reduce:
      return projectSum(move);
    case Verb::broadcast:
      return projectBroadcast(move);
    case Verb::all_gather:
    case Verb::reduce_scatter:
      return projectShards(move);
    default:
      return projectMessage(move);
    }
  }

  /// One end of it stands here; both do if the rank sends it to its host memory or takes it from there.
  void projectMessage(MoveOp move) {
    Value target = move.getFuture();
    for (Operation *user : move.getFuture().getUsers())
      if (auto wait = dyn_cast<WaitOp>(user))
        target = wait.getValue();
    int64_t from = rankOf(move.getValue()), to = move.getTarget().getRanks().front();
    int64_t group = move.getGroup() ? *move.getGroup() : -1;
    if (group >= 0 && step.patience == 0)
      completeWhere([&](const Posted &one) { return one.unwaited && one.group >= 0 && one.group < group; });
    auto channel = builder.getI64IntegerAttr(from * program.getRanks() + to);
    Verb verb = *move.getVerb();
    bool unwaited = target == move.getFuture();
    if (rank == from) {
      Value source = slots.lookup(move.getValue());
      Value sent = builder.create<PostOp>(move.getLoc(), requestType(), PostKind::send, move.getThing(), source,
                                          Value(), ArrayRef<int64_t>(to), IntegerAttr(), DenseI64ArrayAttr(), channel,
                                          move.getGroupAttr());
      // Both ends of a move from the host are on this rank; waiting for the sending end would end the prefetch early.
      bool comesBack = verb == Verb::from_host && !unwaited;
      if (comesBack)
        returning[move.getFuture()] = sent;
      posted.push_back({sent, source, group, !comesBack});
    }
    if (rank != to)
      return;
    auto label = [&] { return move.getThing().str(); };
    Value slot = unwaited ? createSlot(move.getTarget().getRole(), label(), move.getTarget().getPayload(),
                                       move.getLoc(), {}, verb == Verb::to_host)
                          : slotOf(target, label, move.getLoc());
    finishSends(slot);
    Value received = builder.create<PostOp>(move.getLoc(), requestType(), PostKind::receive, move.getThing(), slot,
                                            Value(), ArrayRef<int64_t>(from), IntegerAttr(), DenseI64ArrayAttr(),
                                            channel, move.getGroupAttr());
    posted.push_back({received, slot, group, unwaited});
    requests[move.getFuture()] = received;
  }

  void postCollective(MoveOp move, PostKind kind, Value slot, IntegerAttr root, Value shard = {},
                      DenseI64ArrayAttr cuts = {}) {
    SmallVector<int64_t> members = membersOf(move);
    auto channel = builder.getI64IntegerAttr(step.channelOf(members, move.getAxesAttr()));
    auto post = builder.create<PostOp>(move.getLoc(), requestType(), kind, move.getThing(), slot, shard, members, root,
                                       cuts, channel, IntegerAttr(), move.getAxesAttr(), move.getTensorsAttr());
    // The whole that is scattered is free as soon as what is sent may be.
    bool waits = post.writtenSlot() && (kind != PostKind::reduce_scatter || post.isInPlace());
    bool waited = waits && llvm::any_of(move.getFuture().getUsers(), [&](Operation *user) {
                    auto wait = dyn_cast<WaitOp>(user);
                    return wait && llvm::is_contained(typeOf(wait.getValue()).getRanks(), rank);
                  });
    posted.push_back({post, slot, -1, !waited});
    requests[move.getFuture()] = post;
  }

  /// Sums in place: the sum takes the place of the share of each member, or of the root.
  void projectSum(MoveOp move) {
    bool toOne = *move.getVerb() == Verb::reduce;
    int64_t root = move.getTarget().getRanks().front();
    Value slot = slots.lookup(move.getValue());
    if (!toOne || rank == root)
      finishSends(slot);
    postCollective(move, toOne ? PostKind::reduce : PostKind::all_reduce, slot,
                   toOne ? builder.getI64IntegerAttr(root) : IntegerAttr());
  }

  /// Over the mesh: shards are summed, or gathered, where they lie in the whole.
  void projectInPlace(MoveOp move) {
    Value slot = slots.lookup(move.getValue());
    finishSends(slot);
    TypeRange tensors = typeOf(move.getValue()).getPayload().getTypes().take_front(*move.getTensors());
    int64_t devices = 1;
    for (Axis axis : move.getAxesAttr().getAxes())
      devices *= program.sizeOf(axis);
    slots[move.getFuture()] = slot;
    postCollective(move, *move.getVerb() == Verb::all_gather ? PostKind::all_gather : PostKind::reduce_scatter, slot,
                   IntegerAttr(), Value(), builder.getDenseI64ArrayAttr(cutFlat(tensors, devices).bounds));
  }

  /// The root keeps what it has; every other member receives into a slot of its own.
  void projectBroadcast(MoveOp move) {
    int64_t root = rankOf(move.getValue());
    Value slot = slots.lookup(move.getValue());
    if (rank != root) {
      slot =
          createSlot(move.getTarget().getRole(), move.getThing().str(), move.getTarget().getPayload(), move.getLoc());
      slots[move.getFuture()] = slot;
    }
    postCollective(move, PostKind::broadcast, slot, builder.getI64IntegerAttr(root));
  }

  /// Each member has its shard and the whole: one is read, the other written into a slot of its own.
  void projectShards(MoveOp move) {
    ValType from = typeOf(move.getValue()), to = move.getTarget();
    bool gathers = to.getLayout() == Layout::full;
    SmallVector<int64_t> members = membersOf(move);
    SmallVector<int64_t> runs; // statistics are one
    if (to.getRole() != Role::stat)
      runs = pieces.runs(pieces.find(move.getThing().getCoord()));
    PayloadCut cut = cutPayload(from.getPayload().getTypes(), members.size(), runs);
    Value given = slots.lookup(move.getValue()), made = homeOf(move);
    if (made) {
      finishSends(made);
    } else {
      TupleType payload = to.getPayload();
      if (!gathers)
        payload = shardPayload(from.getPayload(), cut.shards[llvm::find(members, rank) - members.begin()]);
      made = createSlot(to.getRole(), move.getThing().str(), payload, move.getLoc());
    }
    slots[move.getFuture()] = made;
    postCollective(move, gathers ? PostKind::all_gather : PostKind::reduce_scatter, gathers ? made : given,
                   IntegerAttr(), gathers ? given : made, builder.getDenseI64ArrayAttr(cut.bounds));
  }

  /// The place where a value that arrives on the rank must be when the step ends; null if there is none.
  Value homeOf(MoveOp move) {
    for (Operation *user : move.getFuture().getUsers())
      if (auto wait = dyn_cast<WaitOp>(user))
        if (Value slot = slots.lookup(wait.getValue()))
          return slot;
    return {};
  }

  void projectWait(WaitOp wait) {
    auto move = wait.getFuture().getDefiningOp<MoveOp>();
    Value request = requests.lookup(wait.getFuture()), sent = returning.lookup(wait.getFuture());
    completeWhere([&](const Posted &one) { return one.request == request || (sent && one.request == sent); });
    Verb verb = *move.getVerb();
    if (move.getCut() || verb == Verb::broadcast || verb == Verb::all_gather || verb == Verb::reduce_scatter)
      slots[wait.getValue()] = slots.lookup(move.getFuture());
    else if (verb == Verb::all_reduce || verb == Verb::reduce) // in place
      slots[wait.getValue()] = slots.lookup(move.getValue());
  }

  void projectOutput(OutputOp output) {
    ThingAttr thing = output.getThing();
    auto slot = slots.lookup(output.getValue()).getDefiningOp<SlotOp>();
    MLIRContext *context = program.getContext();
    if (thing.getRole() == Role::grad) {
      int64_t piece = pieces.find(thing.getCoord());
      slot.setBindingAttr(BindingAttr::get(context, BindingKind::grad, symbolOf(piece), shardOf(piece)));
    } else if (thing.getRole() == Role::stat && thing.getCoord().getPart() == "norm") {
      slot.setBindingAttr(BindingAttr::get(context, BindingKind::norm));
    } else if (thing.getRole() == Role::stat) {
      slot.setBindingAttr(BindingAttr::get(context, BindingKind::loss, thing.getCoord().getMicrobatch()));
    }
  }
};

//===-- The step ------------------------------------------------------------------------------------------------===//

LogicalResult Step::readCallee(TaskOp task) {
  if (callees.contains(task.getCalleeAttr()))
    return success();
  auto function = symbols.lookup<func::FuncOp>(task.getCallee());
  auto bytes = function ? function->getAttrOfType<IntegerAttr>(kScratchAttr) : IntegerAttr();
  if (!bytes)
    return task.emitOpError() << "calls `" << task.getCallee() << "`, whose memory is not planned";
  Callee &callee = callees[task.getCalleeAttr()];
  callee.handed = function->getAttrOfType<DenseI64ArrayAttr>(kHandedAttr);
  BodyAttr identity = identityOf(function);
  callee.judges = identity && identity.getVariant() == BodyVariant::judge;
  if (bytes.getInt() > 0)
    callee.scratch = TupleType::get(context, {RankedTensorType::get({bytes.getInt()}, IntegerType::get(context, 8))});
  callee.slice.resize(task.getNumResults());
  if (auto groups = function->getAttrOfType<GroupsAttr>(kResultsAttr))
    for (auto [group, slice] : llvm::zip(groups.getGroups(), callee.slice))
      if (llvm::is_contained({GroupKind::kv, GroupKind::dkv, GroupKind::state, GroupKind::dstate}, group.getKind()))
        slice = group.getNumber();
  return success();
}

LogicalResult Step::readMove(MoveOp move) {
  Verb verb = *move.getVerb();
  if (!isCollective(verb))
    return success();
  if (verb == Verb::gather || verb == Verb::scatter || verb == Verb::all_to_all)
    return move.emitOpError() << "is a " << stringifyVerb(verb) << ", which is not supported yet";
  ValType from = typeOf(move.getValue()), to = move.getTarget();
  if (int64_t root = to.getRanks().front(); verb == Verb::reduce && !llvm::is_contained(from.getRanks(), root))
    return move.emitOpError() << "sums on rank " << root << ", which has no share";
  SmallVector<int64_t> members = membersOf(move), others(to.getRanks());
  llvm::sort(others);
  if ((verb == Verb::all_gather || verb == Verb::reduce_scatter) && members != others)
    return move.emitOpError() << "goes from " << from.getPlace().str() << " to " << to.getPlace().str()
                              << "; expected the same ranks";
  if (!move.getAxes())
    lanes.try_emplace(DenseI64ArrayAttr::get(context, members), lanes.size());
  return success();
}

/// The trainer finds weights by the ranks that hold them.
LogicalResult Step::readInput(InputOp input) {
  int64_t piece = pieces.find(input.getThing().getCoord());
  if (input.getThing().getRole() != Role::weight || (piece >= 0 && !pieces.homes(piece).empty()))
    return success();
  return input.emitOpError() << "is a weight of " << (piece < 0 ? "no piece" : pieces.describe(piece))
                             << (piece < 0 ? "" : ", which no rank holds");
}

/// A forward program's groups have the lanes of the training program: the messages of both are bound at once.
void Step::readLanes(ModuleOp module) {
  int64_t ranks = program.getRanks();
  if (ProgramOp training = ProgramOp::trainingOf(module))
    training.walk([&](PostOp post) {
      if (post.isCollective() && !post.getAxes())
        lanes.try_emplace(DenseI64ArrayAttr::get(context, post.getPeers()), *post.getChannel() - ranks * ranks);
    });
}

int64_t Step::channelOf(ArrayRef<int64_t> members, AxesAttr axes) const {
  int64_t ranks = stretch.size();
  return ranks * ranks + (axes ? lanes.size() : 0) + lanes.lookup(DenseI64ArrayAttr::get(context, members));
}

} // namespace

llvm::SmallSetVector<int64_t, 4> pp::ranksOf(Operation *op) {
  llvm::SmallSetVector<int64_t, 4> ranks;
  if (auto task = dyn_cast<TaskOp>(op)) {
    ranks.insert(task.getRanks().front());
  } else if (auto move = dyn_cast<MoveOp>(op)) {
    SmallVector<int64_t> members = {rankOf(move.getValue()), move.getTarget().getRanks().front()};
    if (isCollective(*move.getVerb()))
      members = membersOf(move);
    ranks.insert(members.begin(), members.end());
  } else if (auto output = dyn_cast<OutputOp>(op)) {
    ranks.insert(rankOf(output.getValue()));
  } else if (isa<InputOp, pipeline::SplitOp>(op)) {
    ranks.insert(rankOf(op->getResult(0)));
  } else if (isa<WaitOp, JoinOp>(op)) {
    ArrayRef<int64_t> all = typeOf(op->getResult(0)).getRanks();
    ranks.insert(all.begin(), all.end());
  }
  return ranks;
}

namespace {

LogicalResult Step::read() {
  if (program.getForward())
    readLanes(program->getParentOfType<ModuleOp>());
  stretch.resize(program.getRanks());
  allEnds.resize(program.getRanks());
  for (Operation &op : program.getBody().front()) {
    if (isa<PieceOp>(op))
      continue;
    ops.push_back(&op);
    if (auto task = dyn_cast<TaskOp>(op)) {
      if (failed(readCallee(task)))
        return failure();
      if (times.areByPart())
        patience = std::max(patience, times.of(task));
    } else if (auto move = dyn_cast<MoveOp>(op)) {
      if (failed(readMove(move)))
        return failure();
    } else if (isa<InputOp, OutputOp>(op)) {
      if (auto input = dyn_cast<InputOp>(op); input && failed(readInput(input)))
        return failure();
      for (int64_t rank : ranksOf(&op))
        allEnds[rank].push_back(&op);
    }
  }
  return success();
}

// Sums go through the whole step as one chain. So an op drops its operands at once, and itself stays as long as its
// results are read. Only of a move later ops ask what it moved: its waits.
void Step::leave(Operation *left) {
  for (SmallVector<Operation *> ops = {left}; !ops.empty();) {
    Operation *op = ops.pop_back_val();
    bool unread = op->use_empty();
    llvm::SmallSetVector<Operation *, 8> makers;
    for (Value operand : unread || !isa<MoveOp>(op) ? op->getOperands() : ValueRange())
      makers.insert(operand.getDefiningOp());
    if (unread)
      op->erase();
    else if (stillRead.insert(op); !isa<MoveOp>(op))
      op->setOperands({});
    for (Operation *maker : makers)
      if (maker->use_empty() && stillRead.erase(maker))
        ops.push_back(maker);
  }
}

bool Step::advance(size_t length) {
  for (Operation *op : llvm::reverse(ArrayRef(ops).slice(begin, end - begin)))
    leave(op);
  if (end > begin)
    returnFreeMemory();
  begin = end;
  end = std::min(end + length, ops.size());
  for (std::vector<Operation *> &list : stretch)
    list.clear();
  for (Operation *op : ArrayRef(ops).slice(begin, end - begin))
    for (int64_t rank : ranksOf(op))
      stretch[rank].push_back(op);
  return begin < end;
}

/// The tables of this function are free when it returns.
static LogicalResult projectInStretches(ModuleOp module, ProgramOp program, size_t length) {
  Step step(module, program);
  if (failed(step.read()))
    return failure();
  OpBuilder builder = OpBuilder::atBlockEnd(&program.getBody().front());
  std::vector<Projector> ranks;
  for (int64_t rank = 0; rank < static_cast<int64_t>(program.getRanks()); ++rank) {
    auto op = builder.create<RankOp>(program.getLoc(), rank);
    op.getBody().emplaceBlock();
    ranks.emplace_back(step, op);
  }
  auto forEach = [&](void (Projector::*what)()) {
    parallelForEach(program.getContext(), ranks, [&](Projector &rank) { (rank.*what)(); });
  };
  forEach(&Projector::begin);
  while (step.advance(length))
    forEach(&Projector::run);
  forEach(&Projector::finish);
  return success();
}

LogicalResult projectRanks(ModuleOp module, ProgramOp program, size_t length) {
  LogicalResult done = projectInStretches(module, program, length);
  returnFreeMemory();
  return done;
}

struct ProjectRanks : public pp::impl::ProjectRanksBase<ProjectRanks> {
  using ProjectRanksBase::ProjectRanksBase;

  void runOnPrograms() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(projectRanks(getOperation(), program, std::max<int64_t>(stretch, 1))))
        return signalPassFailure();
  }
};

} // namespace
