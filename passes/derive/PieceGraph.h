// All ops of a piece in one block, forward then backward, and which of their values its bodies hand to each other.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_PIECEGRAPH_H
#define PP_PASSES_PIECEGRAPH_H

#include "mlir/IR/IRMapping.h"
#include "passes/derive/DeriveTasks.h"

namespace pp {

/// All ops of a piece, forward and backward, and the values that its bodies start from and lead to.
class PieceGraph {
public:
  using Identities = llvm::DenseSet<pipeline::BodyAttr>;
  /// `written`: parts of attentions that graphs of this piece and slice have written so far.
  PieceGraph(mlir::ModuleOp module, const PieceModel &piece, const SequenceSlice &slice, Identities &written);
  /// Builds the forward ops, and the derivatives if there is a backward. `first`: no gradient is there yet.
  mlir::LogicalResult build(bool first);
  /// F, and R where there is one; or the rest of F behind what was attended ahead, with one more input.
  mlir::LogicalResult writeForward(pipeline::CutAttr cut = {}, const Group &more = {});
  mlir::LogicalResult writeBackward(bool first);
  /// The steps and parts of a unit that is cut at its attentions (DeriveCuts.cpp).
  mlir::LogicalResult writeCut(const CutRequest &cut);
  /// Writes the attention that runs ahead of a unit, and the unit that attends the rest (DeriveAhead.cpp).
  mlir::LogicalResult writeAhead(const CutRequest &cut);
  /// The linears before an activation function and the one behind it.
  struct Mlp {
    llvm::SmallVector<mlir::Operation *> up;
    mlir::Operation *activation, *down;
  };
  llvm::ArrayRef<mlir::Value> trained() const { return llvm::ArrayRef(weights).take_front(piece.trained()); }
  bool hasBackward() const {
    return piece.runs(pipeline::Phase::B) || piece.runs(pipeline::Phase::I) || piece.runs(pipeline::Phase::W);
  }

private:
  mlir::LogicalResult inlinePart(const PartUse &part, llvm::SmallVectorImpl<mlir::Value> &flow);
  void insertMakersOfStatistics(const PartUse &use);
  mlir::Value argumentOf(mlir::func::FuncOp part, unsigned number, unsigned &weightsSeen, const PartUse &use);
  // DeriveSkips.cpp: values that skip parts.
  mlir::Value skipOf(mlir::StringAttr name, mlir::Type type);
  void nameSkips(mlir::func::FuncOp part, llvm::SmallVectorImpl<mlir::Value> &results);
  void collectSkips();
  void seedSkips(nn::Gradients &gradients);
  void collectSkipGradients(nn::Gradients &gradients);
  static llvm::SmallVector<Group> skipGroups(pipeline::GroupKind kind, llvm::ArrayRef<mlir::Value> values);
  /// The data that an attention, or its backward, reads beside queries and keys.
  llvm::SmallVector<Group> dataOf(nn::Attends attention) const {
    llvm::SmallVector<Group> groups;
    if (attention.getStarts())
      groups.push_back({pipeline::GroupKind::starts, starts});
    if (attention.getRows())
      groups.push_back({pipeline::GroupKind::rows, rows});
    return groups;
  }
  // DeriveSlices.cpp: the ops as one slice of the sequence sees them.
  mlir::FailureOr<mlir::Operation *> cloneSliced(mlir::OpBuilder &builder, mlir::Operation &op, mlir::IRMapping &map);
  mlir::LogicalResult addChunks(mlir::OpBuilder &builder, nn::AttentionOp attention,
                                llvm::SmallVectorImpl<mlir::Value> &operands);
  mlir::LogicalResult seedChunks(nn::Gradients &gradients);
  void collectChunks(nn::Gradients &gradients);
  mlir::LogicalResult goOn(mlir::OpBuilder &builder, mlir::Operation &op, llvm::SmallVectorImpl<mlir::Value> &operands,
                           mlir::NamedAttrList &attributes);
  void seedStates(nn::Gradients &gradients);
  void collectStates(nn::Gradients &gradients);
  /// Takes the keys for the piece after out of what goes on to it.
  void splitKeys();
  void seedKeys(nn::Gradients &gradients);
  /// Keys and values of this slice come from the piece before.
  bool readsKeys() const { return !piece.keysIn.empty(); }
  /// F makes the loss: of a forward program, and of statistics of its own alone.
  bool isLossForward() const { return piece.isForward && hasHead && stats.empty(); }
  bool isOwnChunk(mlir::Value value) const { return !kv.empty() && llvm::is_contained(kv.back(), value); }
  /// `kv.0`, `kv.1`, .. from slice `first` on; if units of the piece are cut `kv.0.0`, .., by attention.
  llvm::SmallVector<Group> chunkGroups(pipeline::GroupKind kind, llvm::ArrayRef<llvm::SmallVector<mlir::Value>> chunks,
                                       size_t first = 0, bool tied = false) const;
  Group chunkGroup(pipeline::GroupKind kind, llvm::ArrayRef<mlir::Value> chunk, int64_t slice, int64_t attention,
                   bool tied = false) const;

  /// `state.2`, or `dstate.2`: these values of slice 2; if units of the piece are cut `state.2.0`, .., by cut.
  llvm::SmallVector<Group> stateGroups(pipeline::GroupKind kind, llvm::ArrayRef<mlir::Value> values,
                                       int64_t number) const;

  /// The values that F keeps and saves; if units of the piece are cut, in one group for each step.
  llvm::SmallVector<Group> savedGroups(pipeline::GroupKind kind, llvm::ArrayRef<mlir::Value> values) const;
  /// The values that I leaves for W: one group, or one for each cut if units of the piece are cut.
  llvm::SmallVector<Group> pendingGroups() const;
  llvm::SmallVector<Group> dataGroups() const;
  llvm::SmallVector<Group> numberedGroups() const;
  // DeriveAhead.cpp
  mlir::LogicalResult writeForwardAhead(const CutRequest &cut);
  mlir::LogicalResult writeBackwardAhead(const CutRequest &cut);
  mlir::LogicalResult writeBackwardRest(const CutRequest &cut, const Group &given);
  // DeriveCuts.cpp, DeriveParts.cpp
  void numberCuts();
  int64_t cutOf(mlir::Value value) const;
  mlir::LogicalResult cutForward(int64_t attention, const CutPlan &plan);
  mlir::LogicalResult cutBackward(int64_t number, const CutRequest &cut);
  mlir::LogicalResult writeForwardSteps(const CutPlan &plan, bool light);
  mlir::LogicalResult writeBackwardSteps(const CutRequest &cut);
  llvm::SmallVector<mlir::Value> sumsUpTo(const CutPlan &plan, int64_t step) const;
  llvm::SmallVector<Group> carryGroups(pipeline::GroupKind kind, const CutPlan &plan, bool inForward,
                                       llvm::ArrayRef<mlir::Value> saved, llvm::ArrayRef<mlir::Value> ends) const;
  void replace(mlir::Value value, mlir::Value by);
  /// Whether this body is written already, for another way to cut the unit; from now on it is.
  bool isWritten(pipeline::BodyAttr identity) { return !written.insert(identity).second; }
  mlir::LogicalResult writePart(int64_t number, int64_t attention, llvm::ArrayRef<mlir::Value> query,
                                pipeline::KeysAttr help, pipeline::BodyAttr identity);
  void sumParts(int64_t number, int64_t attention, const CutPlan &plan);
  llvm::SmallVector<Group> sumsOfStep(const CutPlan &plan, int64_t step) const;
  llvm::SmallVector<mlir::Value> argumentsOf(const Group &sum) const;

  void splitLosses();
  mlir::LogicalResult foldTransposes();
  // PackOperands.cpp
  bool goesOn(mlir::Operation *op) const;
  void packAttentions();
  void packGates();
  // DeriveChunks.cpp
  mlir::LogicalResult chunkMlps();
  mlir::Value chunkMlp(const Mlp &mlp, llvm::ArrayRef<int64_t> counts);
  mlir::LogicalResult differentiate(bool first);
  mlir::LogicalResult collectGradients(nn::Gradients &gradients, bool first);
  void sumOneByOne();
  void lowerComposed();
  void inherit(mlir::Operation *from, mlir::Operation *op);
  void eraseDead();
  void erase(mlir::Operation *op);
  void rebuildCheap();
  bool isCheap(mlir::Operation *op) const;
  void markCheap(mlir::Value value, const llvm::DenseSet<mlir::Value> &makeable);
  mlir::Value rebuilt(mlir::Value value, mlir::Operation *before);
  void saveInputs();
  void collectStash();
  void splitStash();
  void collectPending();
  /// The identity of a body of this piece on this slice.
  pipeline::BodyAttr identity(pipeline::Phase phase, pipeline::BodyVariant variant = pipeline::BodyVariant::plain,
                              pipeline::CutAttr cut = {}) const {
    return pipeline::BodyAttr::get(piece.name, phase, variant, slice.number, cut);
  }
  pipeline::BodyAttr identity(pipeline::Phase phase, pipeline::CutAttr cut) const {
    return identity(phase, pipeline::BodyVariant::plain, cut);
  }
  mlir::LogicalResult write(pipeline::BodyAttr identity, llvm::ArrayRef<Group> inputs, llvm::ArrayRef<Group> results) {
    return writeBody(module, piece.loc, identity, inputs, results);
  }

  mlir::ModuleOp module;
  const PieceModel &piece;
  const SequenceSlice &slice;
  Identities &written;
  Scratch scratch;
  llvm::SmallVector<mlir::Value> act, tokens, targets, source, starts, positions, rows, weights, dact,
      grads; ///< arguments
  /// Values that skip parts, as they come in and go out, and their gradients; of one that is not asked for, null.
  llvm::SmallVector<mlir::Value> skips, skipsOut, dskips, dskipsOut;
  llvm::DenseMap<mlir::StringAttr, mlir::Value> named; ///< those, and those that stay in the piece
  llvm::SmallVector<mlir::Value> keys, dkeys;     ///< k and v for the piece after, and their gradients, which come in
  llvm::SmallVector<mlir::Value> stats, statsOut; ///< of a loss over shards: all of them, and this one's
  llvm::SmallVector<mlir::Value> actOut, dactOut, gradSums, gradOut, kept, stash, pending;
  std::map<std::pair<pipeline::GroupKind, int64_t>, mlir::Value> numbered; ///< data so many places on, and columns
  mlir::Value loss, furtherLoss;
  llvm::SmallVector<mlir::Value> reports;
  llvm::SmallVector<mlir::Value> losses() const {
    llvm::SmallVector<mlir::Value> all = {loss};
    if (furtherLoss)
      all.push_back(furtherLoss);
    all.append(reports);
    return all;
  }
  bool hasHead = false; ///< a part of it ends in a loss
  /// Keys and values of all attentions by slice, the own one last; the gradients that later slices gave them, and those
  /// with this one's part.
  llvm::SmallVector<llvm::SmallVector<mlir::Value>> kv, dkv, dkvOut;
  llvm::SmallVector<mlir::Operation *> carriers; ///< scans and convolutions that go on from slice to slice
  /// Of each what it goes on from, and what it leaves; the gradients of what it leaves, and of what it goes on from.
  llvm::SmallVector<mlir::Value> states, statesOut, dstates, dstatesOut;
  llvm::DenseSet<mlir::Operation *> forward;        ///< what F runs
  llvm::DenseMap<mlir::Operation *, unsigned> runs; ///< what R may run again: the number of its run of parts
  unsigned run = 0;
  llvm::DenseSet<mlir::Operation *> inChunks;      ///< linears whose output is there for a run of rows at a time
  llvm::SetVector<mlir::Value> cheap;              ///< outputs that the backward makes again
  llvm::DenseMap<mlir::Value, mlir::Value> again;  ///< those made again so far
  llvm::DenseMap<mlir::Operation *, int64_t> cuts; ///< by op how many beginnings and ends of attentions are before it
  std::map<int64_t, llvm::SmallVector<mlir::Value>> pendingCuts; ///< `pending` by what makes it
  llvm::SmallVector<mlir::Operation *> attentions, backwards;    ///< in block order
  /// By attention in block order: what its helpers need, what they give, and the gradients of keys that come with it.
  std::vector<Group> queries;
  std::vector<llvm::SmallVector<Group>> parts, partSums;
};

} // namespace pp

#endif // PP_PASSES_PIECEGRAPH_H
