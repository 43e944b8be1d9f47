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
#include "analysis/Actions.h"
#include "analysis/Costs.h"
#include "passes/Passes.h"
#include "passes/project/PlanBodies.h"
#include "llvm/ADT/MapVector.h"

namespace pp {
#define GEN_PASS_DEF_PROJECTRANKS
#include "passes/Passes.h.inc"
} // namespace pp

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

namespace {

/// A message that this rank has posted and not completed.
struct Posted {
  Value request, slot;
  int64_t group;   ///< of the user's `together`, -1 for an inferred move
  bool unwaited;   ///< no `wait` says when: sends, and what arrives but is never used
  double time = 0; ///< what the rank has run since then
};

/// One rank's program while it grows.
struct RankProgram {
  RankOp op;
  std::vector<Posted> posted;
};

class Projector {
public:
  Projector(ModuleOp module, ProgramOp program)
      : module(module), program(program), pieces(program), times(program), builder(program.getContext()),
        symbols(module) {}

  LogicalResult run() {
    Block &body = program.getBody().front();
    std::vector<Operation *> step;
    for (Operation &op : body)
      if (!isa<PieceOp>(op))
        step.push_back(&op);
    for (auto task : body.getOps<TaskOp>())
      patience = times.areByPart() ? std::max(patience, times.of(task.getUnit(), task.getCallee())) : 0;
    builder.setInsertionPointToEnd(&body);
    for (int64_t rank = 0; rank < static_cast<int64_t>(program.getRanks()); ++rank) {
      auto op = builder.create<RankOp>(program.getLoc(), rank, IntegerAttr(), IntegerAttr());
      op.getBody().emplaceBlock();
      ranks.push_back({op, {}});
    }
    for (Operation *op : step) // weights that come home are received where the old ones were
      if (auto input = dyn_cast<InputOp>(op))
        homes[{input.getThing(), rankOf(input.getValue())}] = createInput(input);
    for (Operation *op : step)
      if (auto output = dyn_cast<OutputOp>(op))
        bindHome(output);
    for (Operation *op : step)
      if (failed(project(op)))
        return failure();
    for (RankProgram &rank : ranks)
      completeWhere(rank, [](const Posted &) { return true; });
    for (RankProgram &rank : ranks)
      postReceivesAhead(rank.op, times, patience);
    for (Operation *op : llvm::reverse(step))
      op->erase();
    return success();
  }

private:
  ModuleOp module;
  ProgramOp program;
  Pieces pieces;
  UnitTimes times;
  double patience = 0; ///< how long a message may be on its way
  OpBuilder builder;
  SymbolTable symbols;
  std::vector<RankProgram> ranks;
  DenseMap<std::pair<Value, int64_t>, Value> slots; // (value, rank) -> slot
  DenseMap<std::pair<Attribute, int64_t>, Value> homes;
  DenseMap<std::pair<Value, int64_t>, Value> requests; // (future, rank) -> request
  DenseMap<Value, Value> returning;   // future of what comes back from the host -> the request of its sending end
  DenseMap<Attribute, int64_t> lanes; // members of collectives -> number

  static ValType typeOf(Value value) { return cast<ValType>(value.getType()); }
  static int64_t rankOf(Value value) { return typeOf(value).getRanks().front(); }

  Type requestType() { return RequestType::get(program.getContext()); }

  OpBuilder &at(int64_t rank) {
    builder.setInsertionPointToEnd(&ranks[rank].op.getBody().front());
    return builder;
  }

  //===-- Slots -------------------------------------------------------------------------------------------------===//

  Value createSlot(int64_t rank, Role role, StringRef label, TupleType payload, Location loc,
                   DictionaryAttr binding = {}, bool host = false) {
    auto type = SlotType::get(program.getContext(), payload);
    return at(rank).create<SlotOp>(loc, type, role, label, IntegerAttr(), DenseI64ArrayAttr(), binding, host);
  }

  DictionaryAttr binding(StringRef kind, ArrayRef<NamedAttribute> more) {
    SmallVector<NamedAttribute> entries(more);
    entries.push_back(builder.getNamedAttr("kind", builder.getStringAttr(kind)));
    return builder.getDictionaryAttr(entries);
  }

  NamedAttribute entry(StringRef name, int64_t number) {
    return builder.getNamedAttr(name, builder.getI64IntegerAttr(number));
  }

  NamedAttribute pieceEntry(CoordAttr coord) {
    return builder.getNamedAttr("piece", FlatSymbolRefAttr::get(program.getContext(), coord.pieceName()));
  }

  /// Which shard of a piece that is cut the rank has.
  void addShard(int64_t piece, int64_t rank, SmallVectorImpl<NamedAttribute> &entries) {
    SmallVector<int64_t> shards(pieces.shards(piece));
    llvm::sort(shards);
    if (!shards.empty())
      entries.push_back(
          builder.getNamedAttr("shard", builder.getI64IntegerAttr(llvm::find(shards, rank) - shards.begin())));
  }

  Value createInput(InputOp input) {
    ThingAttr thing = input.getThing();
    int64_t rank = rankOf(input.getValue());
    DictionaryAttr bound;
    if (thing.getRole() == Role::data) {
      int64_t slice = thing.getCoord().getSlice();
      SmallVector<NamedAttribute> entries = {entry("microbatch", thing.getCoord().getMicrobatch())};
      if (slice >= 0)
        entries.append({entry("slice", slice), entry("first", sliceStarts(program)[slice])});
      bound = binding(*input.getData(), entries);
    } else {
      int64_t piece = pieces.find(thing.getCoord());
      bool isShard = pieces.isSharded(piece) && (thing.getRole() == Role::opt || pieces.homesAreShards(piece));
      bool save = thing.getRole() == Role::opt || isShard || pieces.homes(piece).front() == rank;
      SmallVector<NamedAttribute> entries = {pieceEntry(thing.getCoord()),
                                             builder.getNamedAttr("save", builder.getBoolAttr(save))};
      if (isShard)
        addShard(piece, rank, entries);
      // What units of the next step read that go back further than its beginning.
      int64_t back = thing.getRole() == Role::weight ? thing.getCoord().getMicrobatch() : -1;
      if (back > 0)
        entries.push_back(entry("back", back));
      bound = binding(back > 0 ? "previous" : stringifyRole(thing.getRole()), entries);
    }
    ValType type = typeOf(input.getValue());
    Value slot = createSlot(rank, type.getRole(), thing.str(), type.getPayload(), input.getLoc(), bound);
    slots[{input.getValue(), rank}] = slot;
    return slot;
  }

  void bindHome(OutputOp output) {
    int64_t rank = rankOf(output.getValue());
    Value home = homes.lookup({output.getThing(), rank});
    if (home && !slots.count({output.getValue(), rank}) && !isTied(output.getValue()))
      slots[{output.getValue(), rank}] = home;
  }

  static bool isTied(Value value) {
    auto task = value.getDefiningOp<TaskOp>();
    return task && task.getTies()[cast<OpResult>(value).getResultNumber()] >= 0;
  }

  Value slotOf(Value value, int64_t rank, StringRef label, Location loc) {
    Value &slot = slots[{value, rank}];
    ValType type = typeOf(value);
    if (!slot)
      slot = createSlot(rank, type.getRole(), label, type.getPayload(), loc, {}, type.getLayout() == Layout::host);
    return slot;
  }

  //===-- Completes ---------------------------------------------------------------------------------------------===//

  template <typename Which> void completeWhere(RankProgram &rank, Which which) {
    std::vector<Posted> kept;
    for (Posted &posted : rank.posted) {
      if (which(posted))
        at(rank.op.getRank()).create<CompleteOp>(posted.request.getLoc(), posted.request);
      else
        kept.push_back(posted);
    }
    rank.posted = std::move(kept);
  }

  static bool isOfWeights(const Posted &posted) {
    Role role = posted.slot.getDefiningOp<SlotOp>().getRole();
    return role == Role::weight || role == Role::grad;
  }

  /// The slot is about to be written: what is still being sent from it must have left.
  void finishSends(int64_t rank, Value slot) {
    completeWhere(ranks[rank], [&](const Posted &posted) { return posted.unwaited && posted.slot == slot; });
  }

  //===-- Operations --------------------------------------------------------------------------------------------===//

  LogicalResult project(Operation *op) {
    if (auto task = dyn_cast<TaskOp>(op))
      return projectTask(task);
    if (auto move = dyn_cast<MoveOp>(op))
      return projectMove(move);
    if (auto wait = dyn_cast<WaitOp>(op))
      projectWait(wait);
    else if (auto join = dyn_cast<JoinOp>(op))
      for (auto [rank, value] : llvm::zip(typeOf(join.getValue()).getRanks(), join.getValues()))
        slots[{join.getValue(), rank}] = slots.lookup({value, rank});
    if (auto piece = dyn_cast<pipeline::SplitOp>(op))
      slots[{piece.getPiece(), rankOf(piece.getPiece())}] = slots.lookup({piece.getValue(), rankOf(piece.getPiece())});
    if (auto output = dyn_cast<OutputOp>(op))
      projectOutput(output);
    return success();
  }

  /// `act(0, 1)`: what the task makes. Gradients of keys are of a slice of their own.
  std::string labelOf(TaskOp task, OpResult result) {
    CoordAttr coord = task.getUnit().getCoord();
    auto body = symbols.lookup<func::FuncOp>(task.getCallee());
    if (auto groups = body ? body->getAttrOfType<ArrayAttr>("pipeline.results") : ArrayAttr()) {
      BodyGroups::Group group;
      group.name = cast<StringAttr>(cast<ArrayAttr>(groups[result.getResultNumber()])[0]).str();
      if (group.kind() == "kv" || group.kind() == "dkv")
        coord = coord.with(coord.getMicrobatch(), group.chunk());
    }
    return (stringifyRole(typeOf(result).getRole()) + "(" + coord.str() + ")").str();
  }

  LogicalResult projectTask(TaskOp task) {
    int64_t rank = task.getRanks().front();
    SmallVector<Value> inputs, results, scratch;
    for (Value input : task.getInputs())
      inputs.push_back(slots.lookup({input, rank}));
    for (auto [result, tie] : llvm::zip(task.getResults(), task.getTies())) {
      if (tie >= 0) {
        finishSends(rank, inputs[tie]);
        slots[{result, rank}] = inputs[tie];
        continue;
      }
      Value slot = slotOf(result, rank, labelOf(task, cast<OpResult>(result)), task.getLoc());
      finishSends(rank, slot);
      results.push_back(slot);
    }
    auto function = symbols.lookup<func::FuncOp>(task.getCallee());
    auto bytes = function ? function->getAttrOfType<IntegerAttr>("pipeline.scratch_bytes") : IntegerAttr();
    if (!bytes)
      return task.emitOpError() << "calls `" << task.getCallee() << "`, whose memory is not planned";
    if (bytes.getInt() > 0) {
      auto payload =
          TupleType::get(program.getContext(), {RankedTensorType::get({bytes.getInt()}, builder.getI8Type())});
      scratch.push_back(createSlot(rank, Role::temporary, "scratch", payload, task.getLoc()));
    }
    auto launch = at(rank).create<LaunchOp>(task.getLoc(), task.getCallee(), task.getUnit(), inputs, results,
                                            scratch.empty() ? Value() : scratch.front(),
                                            function->getAttrOfType<DenseI64ArrayAttr>(kHandedAttr));
    for (StringRef name : {"pipeline.joint", "pipeline.share", "pipeline.version"})
      if (Attribute attr = task->getAttr(name))
        launch->setAttr(name, attr);
    for (Posted &posted : ranks[rank].posted)
      posted.time += times.of(task.getUnit(), task.getCallee());
    bool begins = task.getUnit().getPhase() == Phase::R;
    completeWhere(ranks[rank], [&](const Posted &posted) {
      return posted.unwaited && posted.time >= patience && !(begins && isOfWeights(posted));
    });
    return success();
  }

  LogicalResult projectMove(MoveOp move) {
    Value target = move.getFuture();
    for (Operation *user : move.getFuture().getUsers())
      if (auto wait = dyn_cast<WaitOp>(user))
        target = wait.getValue();
    Verb verb = *move.getVerb();
    if (verb == Verb::all_reduce || verb == Verb::reduce)
      return projectSum(move);
    if (verb == Verb::broadcast)
      return projectBroadcast(move);
    if (verb == Verb::all_gather || verb == Verb::reduce_scatter)
      return projectShards(move);
    if (verb != Verb::p2p && verb != Verb::to_host && verb != Verb::from_host) // the last two: to the rank itself
      return move.emitOpError() << "is a " << stringifyVerb(verb) << ", which is not supported yet";
    int64_t from = rankOf(move.getValue()), to = move.getTarget().getRanks().front();
    int64_t group = move.getGroup() ? *move.getGroup() : -1;
    if (group >= 0 && patience == 0)
      for (int64_t rank : {from, to})
        completeWhere(ranks[rank], [&](const Posted &posted) {
          return posted.unwaited && posted.group >= 0 && posted.group < group;
        });
    auto channel = builder.getI64IntegerAttr(from * program.getRanks() + to);
    Value source = slots.lookup({move.getValue(), from});
    Value sent = at(from).create<PostOp>(move.getLoc(), requestType(), PostKind::send, move.getThing(), source, Value(),
                                         ArrayRef<int64_t>(to), IntegerAttr(), DenseI64ArrayAttr(), channel,
                                         move.getGroupAttr());
    bool unwaited = target == move.getFuture();
    // Of what comes back from the host both ends are here; to wait for its sending end would end the prefetch early.
    bool comesBack = verb == Verb::from_host && !unwaited;
    if (comesBack)
      returning[move.getFuture()] = sent;
    ranks[from].posted.push_back({sent, source, group, !comesBack});
    Value slot = unwaited ? createSlot(to, move.getTarget().getRole(), move.getThing().str(),
                                       move.getTarget().getPayload(), move.getLoc(), {}, verb == Verb::to_host)
                          : slotOf(target, to, move.getThing().str(), move.getLoc());
    finishSends(to, slot);
    Value received = at(to).create<PostOp>(move.getLoc(), requestType(), PostKind::receive, move.getThing(), slot,
                                           Value(), ArrayRef<int64_t>(from), IntegerAttr(), DenseI64ArrayAttr(),
                                           channel, move.getGroupAttr());
    ranks[to].posted.push_back({received, slot, group, unwaited});
    requests[{move.getFuture(), to}] = received;
    return success();
  }

  /// All collectives of a group are one lane: whatever their kind, its members join them in one order. Every group has
  /// a channel of its own, after those of the directed edges.
  Value postCollective(MoveOp move, PostKind kind, int64_t rank, Value slot, ArrayRef<int64_t> group, IntegerAttr root,
                       Value shard = {}, DenseI64ArrayAttr cuts = {}) {
    SmallVector<int64_t> members(group);
    llvm::sort(members);
    int64_t number = lanes.try_emplace(builder.getDenseI64ArrayAttr(members), lanes.size()).first->second;
    auto channel = builder.getI64IntegerAttr(program.getRanks() * program.getRanks() + number);
    auto post = at(rank).create<PostOp>(move.getLoc(), requestType(), kind, move.getThing(), slot, shard, members, root,
                                        cuts, channel, IntegerAttr());
    // The whole that is scattered is free as soon as what is sent may be.
    bool waits = post.writtenSlot() && kind != PostKind::reduce_scatter;
    bool waited = waits && llvm::any_of(move.getFuture().getUsers(), [&](Operation *user) {
                    auto wait = dyn_cast<WaitOp>(user);
                    return wait && llvm::is_contained(typeOf(wait.getValue()).getRanks(), rank);
                  });
    ranks[rank].posted.push_back({post, slot, -1, !waited});
    requests[{move.getFuture(), rank}] = post;
    return post;
  }

  /// In place: the sum is where the share of each member, or of the root, was.
  LogicalResult projectSum(MoveOp move) {
    ValType type = typeOf(move.getValue());
    bool toOne = *move.getVerb() == Verb::reduce;
    int64_t root = move.getTarget().getRanks().front();
    if (toOne && !llvm::is_contained(type.getRanks(), root))
      return move.emitOpError() << "sums on rank " << root << ", which has no share";
    for (int64_t rank : type.getRanks()) {
      Value slot = slots.lookup({move.getValue(), rank});
      if (!toOne || rank == root)
        finishSends(rank, slot);
      postCollective(move, toOne ? PostKind::reduce : PostKind::all_reduce, rank, slot, type.getRanks(),
                     toOne ? builder.getI64IntegerAttr(root) : IntegerAttr());
    }
    return success();
  }

  /// The root keeps what it has; every other member receives into a slot of its own.
  LogicalResult projectBroadcast(MoveOp move) {
    int64_t root = rankOf(move.getValue());
    SmallVector<int64_t> members(move.getTarget().getRanks());
    if (!llvm::is_contained(members, root))
      members.push_back(root);
    for (int64_t rank : members) {
      Value slot = slots.lookup({move.getValue(), root});
      if (rank != root) {
        slot = createSlot(rank, move.getTarget().getRole(), move.getThing().str(), move.getTarget().getPayload(),
                          move.getLoc());
        slots[{move.getFuture(), rank}] = slot;
      }
      postCollective(move, PostKind::broadcast, rank, slot, members, builder.getI64IntegerAttr(root));
    }
    return success();
  }

  /// Each member has its shard and the whole: one is read, the other written into a slot of its own.
  LogicalResult projectShards(MoveOp move) {
    ValType from = typeOf(move.getValue()), to = move.getTarget();
    bool gathers = to.getLayout() == Layout::full;
    SmallVector<int64_t> members(from.getRanks()), others(to.getRanks());
    llvm::sort(members);
    llvm::sort(others);
    if (members != others)
      return move.emitOpError() << "goes from " << from.getPlace().str() << " to " << to.getPlace().str()
                                << "; expected the same ranks";
    SmallVector<TupleType> payloads;
    SmallVector<bool> apart; // statistics have no tied tensors
    if (to.getRole() != Role::stat)
      apart = pieces.apart(pieces.find(move.getThing().getCoord()));
    PayloadCut cut = cutPayload(from.getPayload().getTypes(), members.size(), apart);
    for (ArrayRef<ElementRange> ranges : cut.shards)
      payloads.push_back(shardPayload(from.getPayload(), ranges));
    for (auto [rank, payload] : llvm::zip(members, payloads)) {
      Value given = slots.lookup({move.getValue(), rank});
      Value made = homeOf(move, rank);
      if (made)
        finishSends(rank, made);
      else
        made =
            createSlot(rank, to.getRole(), move.getThing().str(), gathers ? to.getPayload() : payload, move.getLoc());
      slots[{move.getFuture(), rank}] = made;
      postCollective(move, gathers ? PostKind::all_gather : PostKind::reduce_scatter, rank, gathers ? made : given,
                     members, IntegerAttr(), gathers ? given : made, builder.getDenseI64ArrayAttr(cut.bounds));
    }
    return success();
  }

  /// Where what arrives on the rank belongs when the step ends; null if nowhere.
  Value homeOf(MoveOp move, int64_t rank) {
    for (Operation *user : move.getFuture().getUsers())
      if (auto wait = dyn_cast<WaitOp>(user))
        if (Value slot = slots.lookup({wait.getValue(), rank}))
          return slot;
    return {};
  }

  void projectWait(WaitOp wait) {
    auto move = wait.getFuture().getDefiningOp<MoveOp>();
    for (int64_t rank : typeOf(wait.getValue()).getRanks()) {
      Value request = requests.lookup({wait.getFuture(), rank}), sent = returning.lookup(wait.getFuture());
      completeWhere(ranks[rank], [&](const Posted &posted) {
        return posted.request == request || (sent && posted.request == sent);
      });
      Verb verb = *move.getVerb();
      if (verb == Verb::broadcast || verb == Verb::all_gather || verb == Verb::reduce_scatter)
        slots[{wait.getValue(), rank}] = slots.lookup({move.getFuture(), rank});
      else if (verb == Verb::all_reduce || verb == Verb::reduce) // in place
        slots[{wait.getValue(), rank}] = slots.lookup({move.getValue(), rank});
    }
  }

  void projectOutput(OutputOp output) {
    ThingAttr thing = output.getThing();
    auto slot = slots.lookup({output.getValue(), rankOf(output.getValue())}).getDefiningOp<SlotOp>();
    if (thing.getRole() == Role::grad) {
      SmallVector<NamedAttribute> entries = {pieceEntry(thing.getCoord())};
      addShard(pieces.find(thing.getCoord()), rankOf(output.getValue()), entries);
      slot.setBindingAttr(binding("grad", entries));
    } else if (thing.getRole() == Role::stat && thing.getCoord().getPart() == "norm")
      slot.setBindingAttr(binding("norm", {}));
    else if (thing.getRole() == Role::stat)
      slot.setBindingAttr(binding("loss", entry("microbatch", thing.getCoord().getMicrobatch())));
  }
};

struct ProjectRanks : public pp::impl::ProjectRanksBase<ProjectRanks> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<ProgramOp>())
      if (failed(Projector(getOperation(), program).run()))
        return signalPassFailure();
  }
};

} // namespace
