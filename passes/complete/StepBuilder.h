// Builds the step in SSA: what is where, what is on its way, and what each gradient share already holds.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_STEPBUILDER_H
#define PP_PASSES_STEPBUILDER_H

#include "analysis/Actions.h"
#include "analysis/Exchange.h"
#include "analysis/Keys.h"
#include "dialect/pipeline/Pipeline.h"
#include "mlir/IR/Builders.h"
#include "passes/project/PlanBodies.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include <deque>
#include <map>

namespace pp {

/// A task body as `complete-step` sees it: the function, and how its tensors are grouped.
struct Body {
  mlir::func::FuncOp function;
  BodyGroups groups;
  /// The input group of this name, null if the body does not read it.
  const BodyGroups::Group *input(llvm::StringRef name) const;
};

/// The share of a gradient that one rank holds, with the microbatches (and slices) it contains.
struct Share {
  mlir::Value value; ///< a value, or a future if it is on its way
  llvm::BitVector contributions;
  mlir::Operation *moved = nullptr; ///< the transfer that brought it, or part of it, last; for messages
};

/// A unit that is cut at its attentions, while its joint is built.
struct RunningCut {
  CutUnit unit;
  int64_t piece, steps;
  std::string phase;                                       ///< of its bodies: F, F.light, B or I
  const Body *body = nullptr, *whole = nullptr;            ///< its first step; all of it
  std::map<std::string, mlir::Value> carried;              ///< by group
  std::map<std::pair<int64_t, int64_t>, mlir::Value> keys; ///< on helpers: by attention and slice
  llvm::SmallVector<mlir::Value> parts;                    ///< of the attention before the next step
  mlir::Value query;
  Share share;
};

class StepBuilder {
public:
  StepBuilder(mlir::ModuleOp module, pipeline::ProgramOp program);

  /// Turns every action into tasks and moves (CompleteStep.cpp).
  mlir::LogicalResult buildActions();
  /// Reductions, the gradient norm, updates, and the new weights' way home (FinishStep.cpp).
  mlir::LogicalResult finish();

private:
  using Key = std::pair<pipeline::ThingAttr, int64_t>;
  using PieceRank = std::pair<int64_t, int64_t>;

  mlir::ModuleOp module;
  pipeline::ProgramOp program;
  Pieces pieces;
  mlir::OpBuilder builder;
  mlir::Operation *lastInput = nullptr;
  int64_t groups = 0;
  int64_t joints = 0; ///< `together`s so far; tasks of one of them have its number as `pipeline.joint`
  llvm::StringMap<Body> bodies;

  llvm::DenseMap<Key, mlir::Value> values; ///< thing on a rank: a value, or a future until somebody waits
  llvm::DenseMap<pipeline::ThingAttr, llvm::SmallVector<mlir::Value>> shardResults; ///< what the shards of a part made
  llvm::DenseMap<Key, mlir::Value> kept; ///< by stash: what F keeps of it where R makes the rest
  std::map<int64_t, llvm::DenseMap<Key, mlir::Value>> cutValues,
      cutKept; ///< where units are cut: by attention, by step
  /// Those of a cut; of -1 those of units that are not cut.
  llvm::DenseMap<Key, mlir::Value> &valuesOf(int64_t cut) { return cut < 0 ? values : cutValues[cut]; }
  llvm::DenseMap<Key, mlir::Value> &keptOf(int64_t cut) { return cut < 0 ? kept : cutKept[cut]; }
  /// Stashes in the rank's host memory: by what makes them where units are cut, else under -1.
  std::map<int64_t, llvm::DenseMap<Key, mlir::Value>> hostValues, hostKept;
  bool movesStashes = false;
  llvm::DenseMap<pipeline::ThingAttr, pipeline::UnitOp> stashUsers;     ///< the last use of each, once it has run
  llvm::DenseMap<pipeline::ThingAttr, pipeline::TransferOp> stashMoves; ///< the last move of each so far
  /// Keys that the schedule moved, where units are cut: by attention. Each copy serves one `attend`.
  std::map<int64_t, llvm::DenseMap<Key, llvm::SmallVector<mlir::Value, 1>>> lentKeys;
  Exchanges exchanges;
  KeysBefore keys;
  llvm::DenseMap<pipeline::ThingAttr, int64_t> keyReaders; ///< of keys, and gradients of keys: where their slice reads
  llvm::DenseMap<pipeline::UnitIdAttr, mlir::Value> aheadParts; ///< what was attended ahead of the unit so far
  llvm::DenseSet<Key> brought;                                  ///< keys that the schedule itself moves to a rank
  llvm::DenseMap<pipeline::ThingAttr, std::map<int64_t, llvm::SmallVector<mlir::Value, 2>>> chunkShares; ///< by rank
  llvm::DenseSet<pipeline::CoordAttr> remade;              ///< the units with an R
  llvm::DenseSet<mlir::Location> toldLate;                 ///< updates by hand: one remark for all that a loop makes
  llvm::DenseSet<mlir::Operation *> readAgain;             ///< the R whose rank reads the activation after them
  std::map<PieceRank, llvm::SmallVector<Share, 1>> shares; ///< terms of the gradient of a piece on a rank
  llvm::DenseMap<pipeline::ThingAttr, llvm::SmallVector<int64_t, 2>> consumers; ///< where an act or dact is read
  llvm::DenseMap<pipeline::ThingAttr, mlir::Operation *> moved;                 ///< things the schedule itself moves
  std::map<int64_t, mlir::Operation *> movedGrads; ///< pieces whose grad the schedule itself moves
  /// Several updates in a step, and weights older than the step's beginning (CompleteUpdates.cpp).
  bool versioned = false;          ///< units say which weights they read
  int64_t updates = 1, update = 0; ///< of the step; the one whose gradients are in hand
  std::vector<std::map<PieceRank, llvm::SmallVector<Share, 1>>> otherShares; ///< by update: those not in hand
  std::map<std::pair<int64_t, int64_t>, mlir::Value> oldWeights; ///< by piece and version, once a newer one is made
  std::map<std::pair<int64_t, int64_t>, int64_t> readers;        ///< by piece and version: units that are to come
  std::map<std::pair<int64_t, int64_t>, int64_t> lacking; ///< by piece, -1 for all, and update: gradients to come
  std::vector<int64_t> newest, carried; ///< by piece: its version by now; how many older ones the next step reads
  llvm::DenseSet<int64_t> keptAtHome;   ///< pieces times versions whose copy is where the next step wants it
  llvm::SmallVector<int64_t> finishing; ///< the pieces that are updated now
  bool together = true;                 ///< an update waits for all pieces
  std::map<int64_t, mlir::Value> norms, gathered;             ///< by rank; new weights of a piece on their way
  std::map<PieceRank, mlir::Value> ownWeights, ownGrads;      ///< of who updates a piece: of all of it, or its shard
  std::map<PieceRank, llvm::SmallVector<Share, 2>> ownShares; ///< where several do, what they have summed so far

  // Things, places, types.
  pipeline::ThingAttr thing(pipeline::Role role, int64_t piece, int64_t mb = -1, int64_t slice = -1);
  pipeline::ValType typeOn(pipeline::Role role, mlir::TupleType payload, int64_t rank);
  pipeline::UnitIdAttr updateUnit(int64_t piece);
  const Body *findBody(int64_t piece, llvm::StringRef suffix);
  /// What the tensors of a group of this kind are: `kv` of `kv.2`.
  static pipeline::Role roleOf(llvm::StringRef kind);
  llvm::BitVector allContributions();

  // Values.
  mlir::Value addInput(pipeline::ThingAttr thing, pipeline::ValType type, llvm::StringRef data = "");
  mlir::Value waitFor(mlir::Value valueOrFuture, mlir::Location loc);
  mlir::Value get(pipeline::ThingAttr thing, int64_t rank, mlir::Location loc) { return get(values, thing, rank, loc); }
  mlir::Value get(llvm::DenseMap<Key, mlir::Value> &map, pipeline::ThingAttr thing, int64_t rank, mlir::Location loc);
  mlir::Value createMove(pipeline::ThingAttr thing, mlir::Value value, int64_t to, mlir::Location loc,
                         mlir::IntegerAttr group = {}, pipeline::Layout layout = pipeline::Layout::full);
  mlir::Value createMove(pipeline::ThingAttr thing, mlir::Value value, pipeline::PlaceAttr to, mlir::Location loc,
                         mlir::IntegerAttr group);
  pipeline::TaskOp createTask(const Body &body, pipeline::UnitIdAttr unit, int64_t rank, mlir::ValueRange inputs,
                              mlir::Location loc);
  void output(pipeline::ThingAttr thing, mlir::Value value, mlir::Location loc);

  // Actions (CompleteStep.cpp).
  void readActions();
  /// Whether units of this phase read the activation that comes in.
  bool readsActivation(int64_t piece, pipeline::Phase phase);
  /// The body of this unit: one of several where it continues a sum, or where R follows.
  const Body *bodyOf(pipeline::UnitOp op, bool continues);
  mlir::LogicalResult createInputs();
  mlir::LogicalResult buildUnit(pipeline::UnitOp op);
  mlir::LogicalResult collectInputs(pipeline::UnitOp op, const Body &body, llvm::SmallVectorImpl<mlir::Value> &inputs);
  /// What the unit reads of this group where it runs.
  mlir::LogicalResult readGroup(pipeline::UnitOp op, const BodyGroups::Group &group, mlir::Value &value);
  mlir::LogicalResult recordResults(pipeline::UnitOp op, const Body &body, pipeline::TaskOp task, Share share);
  /// Sends an activation, or its gradient, to whoever reads it elsewhere.
  void deliver(pipeline::ThingAttr made, mlir::Value value, int64_t piece, int64_t rank, mlir::Location loc);
  mlir::Value dataInput(llvm::StringRef kind, pipeline::CoordAttr unit, int64_t rank, mlir::TupleType payload);

  // Parts cut by the vocabulary (CompleteVocabulary.cpp).
  /// What one shard made: when all have, it is summed where it is read, or gathered on all if it is statistics.
  mlir::LogicalResult addShardResult(pipeline::UnitOp op, pipeline::Role role, int64_t piece, mlir::Value value);

  // Attention on several ranks (CompleteExchange.cpp).
  void setShare(pipeline::TaskOp task, const Body &body, const Body &whole);
  void setJoint(pipeline::TaskOp task);
  mlir::LogicalResult buildExchange(pipeline::TogetherOp together);
  mlir::LogicalResult beginCut(CutUnit unit, std::deque<RunningCut> &units);
  mlir::LogicalResult sendKeys(RunningCut &cut);
  mlir::LogicalResult buildStep(RunningCut &cut, int64_t step);
  mlir::LogicalResult buildParts(std::deque<RunningCut> &units, int64_t step);
  mlir::LogicalResult buildPart(RunningCut &cut, const Help *help, int64_t rank, mlir::Value query, int64_t attention,
                                mlir::Operation *source);

  // Moves (CompleteMoves.cpp).
  mlir::LogicalResult buildTransfers(llvm::MutableArrayRef<pipeline::TransferOp> ops);
  mlir::LogicalResult buildStashMove(pipeline::TransferOp op, mlir::IntegerAttr group);
  mlir::InFlightDiagnostic reportStash(pipeline::TransferOp op, pipeline::ThingAttr stash);
  mlir::LogicalResult verifyTransfer(pipeline::TransferOp op);
  mlir::Value createZero(int64_t piece, int64_t rank, mlir::Location loc);
  mlir::FailureOr<Share> readThing(pipeline::TransferOp op);
  mlir::FailureOr<Share> readChunkShare(pipeline::TransferOp op);
  mlir::FailureOr<Share> readGrad(pipeline::TransferOp op);
  mlir::FailureOr<Share> reduceShares(pipeline::TransferOp op, llvm::SmallVector<int64_t> from);
  bool involvesShards(pipeline::TransferOp op);
  /// Whether it sums a gradient on all who update the piece: into their shards, or on each.
  bool sumsOnAll(pipeline::TransferOp op);
  mlir::LogicalResult verifyShards(pipeline::TransferOp op);

  // Pieces that several ranks update: cut over them, or whole on each (CompleteShards.cpp).
  /// These ranks, ascending; none if one updates the piece.
  llvm::SmallVector<int64_t> sharers(int64_t piece);
  mlir::LogicalResult createShardInputs(int64_t piece);
  /// The shards of a weight as one value.
  mlir::Value joinShards(int64_t piece, mlir::Location loc);
  /// What every rank of the piece has of its gradient, zeros where that is nothing, as one value of partial sums.
  Share joinShares(int64_t piece, mlir::Location loc);
  void addOnAll(int64_t piece, Share sum);
  Share takeOwn(int64_t piece, int64_t rank, mlir::Location loc);
  /// `@s0.U.1` of the rank that has shard 1; of a piece that is not cut, `@s0.U`.
  const Body *findShardBody(int64_t piece, llvm::StringRef name, int64_t rank);
  mlir::LogicalResult reduceOnAll(int64_t piece);
  mlir::LogicalResult updateShards(int64_t piece);
  mlir::Value freshShard(int64_t piece, int64_t rank, mlir::Location loc);
  void addTiedShards(int64_t piece);
  void returnGathered(int64_t piece);

  // Keys that the piece before the attention makes, and shares of their gradients (CompleteKeys.cpp).
  /// Whether it is a share of a sum: the gradient of keys that slices attend beside each other.
  bool isChunkShare(pipeline::ThingAttr thing);
  /// Keys attended ahead of their unit.
  mlir::LogicalResult buildAhead(pipeline::AttendOp op);
  void deliverKeys(pipeline::UnitOp op, mlir::Value value);
  /// A share that was made here; if the schedule moves none of these, it goes to who reads the sum.
  void recordChunkShare(pipeline::ThingAttr thing, int64_t rank, mlir::Value value, mlir::Location loc);
  void addChunkShare(pipeline::ThingAttr thing, int64_t rank, mlir::Value value);
  mlir::Value takeChunkShare(pipeline::ThingAttr thing, int64_t rank, mlir::Location loc);
  /// All shares, wherever they are, as one sum on this rank.
  mlir::Value gatherChunk(pipeline::ThingAttr thing, int64_t rank, mlir::Location loc);

  // Gradient shares.
  /// The rank's whole share of a piece's gradient as one value, arrivals waited for and added; null if empty.
  Share takeShare(int64_t piece, int64_t rank, mlir::Location loc);
  /// One more term on its way to this rank. Of those before it all have been added: no more than one waits in a slot.
  void addShare(int64_t piece, int64_t rank, Share share, mlir::Location loc);
  /// `@s0.sum(grad, share) -> grad`: adds what arrived to what is here.
  /// Adds two gradients of the piece; with a rank, of what that rank updates of it.
  const Body &sumBody(int64_t piece, int64_t rank = -1);
  /// `@s0.copy(weight) -> weight`: the new version to its home, where the update ran on a copy that travelled.
  const Body &copyBody(int64_t piece);
  const Body &makeBody(std::string name, llvm::ArrayRef<llvm::StringRef> inputs, mlir::TupleType payload,
                       llvm::StringRef result, int64_t tie,
                       llvm::function_ref<mlir::Value(mlir::OpBuilder &, mlir::ValueRange)> build);

  // Several updates, older weights (CompleteUpdates.cpp).
  void readVersions();
  mlir::LogicalResult createOldInputs(int64_t piece, mlir::TupleType payload);
  /// Puts the gradient shares of this update in hand.
  void turnTo(int64_t number);
  /// The weights that a unit reads; null and an error if that version is not made yet.
  mlir::FailureOr<mlir::Value> weightOf(pipeline::UnitOp op, int64_t piece, int64_t rank);
  /// After a unit that adds to a gradient: runs the update if that was its last.
  mlir::LogicalResult countGradient(pipeline::UnitOp op);
  mlir::LogicalResult finishUpdate();
  mlir::LogicalResult finishLast();
  /// Right before an update in place: a copy of the weights for whom still reads them.
  void keepOld(int64_t piece, int64_t rank);
  void outputOld(int64_t piece);
  bool isLast() const { return update + 1 == updates; }

  // The end of the step (FinishStep.cpp).
  mlir::LogicalResult reduceGradients();
  pipeline::UnitOp contributor(int64_t piece, int64_t contribution);
  mlir::LogicalResult reportLeft(int64_t piece, int64_t rank, const Share &share);
  mlir::LogicalResult reportAbsent(pipeline::UnitOp op, pipeline::ThingAttr thing, int64_t rank);
  mlir::LogicalResult reportMissing(int64_t piece, int64_t owner, const Share &share);
  /// Who of the ranks that update the piece is nearest to the k-th of others that do so with another.
  int64_t nearestOwner(int64_t piece, int64_t rank, size_t k);
  mlir::LogicalResult addTiedShares();
  void addNorm(int64_t piece, int64_t rank);
  void reduceNorms();
  pipeline::ThingAttr normThing();
  void createNorms();
  mlir::LogicalResult createUpdates();
  mlir::LogicalResult createUpdates(int64_t piece);
  mlir::LogicalResult createUpdate(int64_t piece, int64_t rank, size_t k);
  void returnWeights(int64_t piece);
};

} // namespace pp

#endif // PP_PASSES_STEPBUILDER_H
