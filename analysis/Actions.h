// The actions of a schedule in memory: pieces in model order, units and transfers with what they need and make.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_ACTIONS_H
#define PP_ANALYSIS_ACTIONS_H

#include "dialect/pipeline/Pipeline.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

namespace pp {

/// The pieces of a program in model order, found by coordinate.
class Pieces {
public:
  explicit Pieces(pipeline::ProgramOp program);

  int64_t size() const { return ops.size(); }
  pipeline::PieceOp op(int64_t piece) const { return ops[piece]; }
  const llvm::SmallVector<pipeline::PieceOp> &all() const { return ops; }
  /// The number of the piece of this unit or thing; -1 if the schedule has no such piece.
  int64_t find(pipeline::CoordAttr coord) const;

  /// A value that a part gives to others than the one after it (`e from embed`), or the gradient that one of its
  /// readers gives back. Its number begins behind those of the pieces, and `find` finds it.
  struct Skip {
    pipeline::CoordAttr coord; ///< `embed.e`, or of a gradient `embed.e(k)`, that of reader k in model order
    pipeline::Role role;       ///< act or dact
    int64_t maker;
    llvm::SmallVector<int64_t, 2> readers; ///< in model order
  };
  bool isSkip(int64_t number) const { return number >= size(); }
  const Skip &skip(int64_t number) const { return skips[number - size()]; }
  /// The numbers of those that this piece makes, or reads, in their order. The k-th gradient that a piece makes is that
  /// of the k-th value that it reads.
  llvm::SmallVector<int64_t, 2> skipsFrom(int64_t piece, pipeline::Role role) const;
  llvm::SmallVector<int64_t, 2> skipsInto(int64_t piece, pipeline::Role role) const;
  /// The piece that makes the value with this number: for a piece, itself.
  int64_t makerOf(int64_t number) const { return isSkip(number) ? skip(number).maker : number; }
  pipeline::CoordAttr coordOf(int64_t number) const {
    return isSkip(number) ? skip(number).coord : op(number).getCoord();
  }
  /// `2` or `attn(3)`, as a `.pipe` file writes the piece alone.
  std::string name(int64_t piece) const { return op(piece).getCoord().str(); }
  /// `stage 2` or `attn(3)` in back quotes: the piece in a message.
  std::string describe(int64_t piece) const {
    return op(piece).getCoord().isStage() ? "stage " + name(piece) : "`" + name(piece) + "`";
  }
  /// The ranks of the weights when a step begins; empty for pieces without a place.
  llvm::ArrayRef<int64_t> homes(int64_t piece) const;
  /// Whether no home has all of the weights.
  bool homesAreShards(int64_t piece) const;
  /// The ranks that update all of the piece, each its own copy; empty if none does, or each a shard.
  llvm::ArrayRef<int64_t> owners(int64_t piece) const;
  /// The rank that updates the piece, -1 if none or several.
  int64_t owner(int64_t piece) const { return owners(piece).size() == 1 ? owners(piece).front() : -1; }
  bool isReplicated(int64_t piece) const { return owners(piece).size() > 1; }
  /// The ranks over which weights, gradient and optimizer state of the piece are cut; empty if they are whole.
  llvm::ArrayRef<int64_t> shards(int64_t piece) const;
  bool isSharded(int64_t piece) const { return !shards(piece).empty(); }
  /// Which shard this rank has: the k-th of the ranks in ascending order has the k-th.
  int64_t shardOf(int64_t piece, int64_t rank) const;
  /// The ranks that update the piece together, each a shard or each all of it, ascending; none if one rank updates it.
  llvm::SmallVector<int64_t> sharers(int64_t piece) const;
  /// Whether derive-tasks gave it weights.
  bool hasWeights(int64_t piece) const;
  /// The same, or not known before derive-tasks.
  bool mayHaveWeights(int64_t piece) const;
  bool mayTrain(int64_t piece) const { return !hasWeights(piece) ? mayHaveWeights(piece) : trains(piece); }
  /// Whether it has weights that are trained.
  bool trains(int64_t piece) const;
  /// Whether it, or a piece before it, trains: only then it has a backward.
  bool hasBackward(int64_t piece) const { return piece >= firstTrained; }
  /// The number of tensors of its gradient, or of a shard, that a mesh sums in one run: all but those that are summed
  /// apart, and those of tied weights, which stand last.
  int64_t summedTensors(int64_t piece, int64_t shard) const;
  /// Whether the devices of a rank that updates it, along `data`, update a shard each: `mesh zero = 1` or 2.
  bool isCutOverMesh(int64_t piece) const {
    return zero > 0 && trains(piece) && !isSharded(piece) && summedTensors(piece, -1) > 0;
  }
  /// Whether devices have terms of some of its gradient that are not in these sums, and are summed before it is used.
  bool hasTerms(int64_t piece) const;
  /// Whether they have the sum of a shard of its gradient alone, too: `mesh zero = 2`.
  bool sumsShards(int64_t piece) const { return zero > 1 && isCutOverMesh(piece) && !op(piece).getSumsWhole(); }
  /// For each weight the run in which it is cut over ranks (cutPayload).
  llvm::SmallVector<int64_t> runs(int64_t piece) const;
  /// The piece that owns the first trained weight of this one that is tied; -1 if it has none.
  int64_t primary(int64_t piece) const;
  /// Which of the pieces that share with the same owner this one is: the k of tie.in.k and tie.fresh.k.
  int64_t tieNumber(int64_t piece) const;

private:
  void readSkips(pipeline::ProgramOp program);

  std::vector<Skip> skips;
  llvm::SmallVector<pipeline::PieceOp> ops;
  llvm::DenseMap<std::pair<mlir::Attribute, int64_t>, int64_t> numbers;
  llvm::DenseSet<mlir::Attribute> tiedNames; ///< weights that several pieces use
  int64_t firstTrained = 0;
  bool isForward = false; ///< nothing trains in a forward program
  int64_t zero = 0;       ///< of the mesh, where it cuts something: 1: updates over its replicas, 2: sums, too
};

/// Whether the gradient of a weight is not in the run that replicas sum, and cut with `zero`: experts that are cut over
/// devices; and with `zero` the bias of a router, which has no optimizer state that could be cut.
bool isSummedApart(pipeline::ProgramOp program, nn::WeightAttr weight);

/// Along which axes devices have terms of this weight's gradient, which they sum in a body of its own: along `tensor`
/// where each has the weight and other rows, along `copies` those with the same experts, along all of the run's where a
/// router's bias is not in it. Empty: none.
llvm::SmallVector<nn::Axis> axesOfTerms(pipeline::ProgramOp program, pipeline::WeightAttr weight);

/// The update that the gradient of this microbatch is part of.
int64_t updateOf(pipeline::ProgramOp program, int64_t microbatch);

/// Which version of the weights a unit, a task or a launch reads: 0 is there at the start of the step, each update
/// makes the next, earlier steps made those below 0. By default it is the newest.
template <typename Op> int64_t versionOf(pipeline::ProgramOp program, Op op) {
  std::optional<uint64_t> version = op.getVersion();
  return version ? static_cast<int64_t>(*version) : updateOf(program, op.getUnit().getCoord().getMicrobatch());
}

/// Whether units of the program read other weights than those that are there when the step begins.
bool hasVersions(pipeline::ProgramOp program);

/// Whether an update waits for the gradients of all pieces: it reads their norm, or pieces share weights.
bool updatesTogether(pipeline::ProgramOp program, const Pieces &pieces);

/// The optimizer's `clip` is there and not 0, or gradients of f16 may have overflowed.
bool readsNorm(pipeline::ProgramOp program);

/// Hashes what there is of each microbatch. Four microbatches in a row are neighbours in a table: they are looked up
/// one soon after the other, and a table of all units does not fit into a cache.
inline unsigned hashByMicrobatch(uint64_t what, int64_t slice, int64_t microbatch) {
  using llvm::densemap::detail::mix;
  uint64_t which = static_cast<uint64_t>(slice) << 32 ^ static_cast<uint32_t>(microbatch) >> 2;
  return mix(mix(what) ^ which) << 2 ^ (microbatch & 3);
}

/// Something that an action waits for or brings about. `rank` is -1 where the place does not matter.
struct Condition {
  /// Again: R has run. Stash: a move brought it to this rank, or its F ran there. Gradient: the whole gradient of the
  /// piece, or, of piece -1, of all pieces, for the update that `microbatch` numbers.
  enum Kind : int32_t { Forward, Backward, Weight, Shard, Again, Stash, Gradient } kind;
  int32_t piece, microbatch, slice, rank; ///< 32 bits, for there are several conditions for each unit

  Condition(Kind kind, int64_t piece, int64_t microbatch, int64_t slice, int64_t rank)
      : kind(kind), piece(piece), microbatch(microbatch), slice(slice), rank(rank) {}
  bool operator==(const Condition &other) const = default;
};

/// One element of the schedule's order: a unit, a transfer, or a joint of several.
struct Action {
  mlir::Operation *op;
  llvm::SmallVector<int64_t, 1> anchors; ///< the ranks in whose lists it stands
  llvm::SmallVector<Condition, 3> needs;
  llvm::SmallVector<Condition, 1> makes;
  /// If a step has several updates: piece and update of each gradient that the action adds to.
  llvm::SmallVector<std::pair<int64_t, int64_t>, 1> adds;
};

/// The begins of the slices of a sequence, and the end of the last; as equal as possible, or by the program's
/// `slice_lengths`. Without slices the whole sequence.
llvm::SmallVector<int64_t> sliceStarts(pipeline::ProgramOp program);

/// All actions in emission order.
std::vector<Action> readActions(pipeline::ProgramOp program, const Pieces &pieces);

/// `, with r = 1, i = 3`, or nothing: the end of a message about an action inside loops.
std::string withLoops(mlir::Operation *op);

} // namespace pp

template <> struct llvm::DenseMapInfo<pp::Condition> {
  static pp::Condition getEmptyKey() { return {pp::Condition::Forward, -2, 0, 0, 0}; }
  static pp::Condition getTombstoneKey() { return {pp::Condition::Forward, -3, 0, 0, 0}; }
  static unsigned getHashValue(const pp::Condition &condition) {
    return pp::hashByMicrobatch(uint64_t(condition.kind) | uint64_t(uint32_t(condition.rank)) << 3 |
                                    uint64_t(uint32_t(condition.piece)) << 35,
                                condition.slice, condition.microbatch);
  }
  static bool isEqual(const pp::Condition &a, const pp::Condition &b) { return a == b; }
};

#endif // PP_ANALYSIS_ACTIONS_H
