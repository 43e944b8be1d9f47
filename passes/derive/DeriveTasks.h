// Differentiates the model's parts into the task bodies of the pieces: what derive-tasks does, and its inner shapes.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_DERIVETASKS_H
#define PP_PASSES_DERIVETASKS_H

#include "analysis/BodyTable.h"
#include "analysis/Exchange.h"
#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SetVector.h"

namespace pp {

/// Gives every piece of a program its weights and task bodies (`@s0.F`, `@s0.B`, ..). Those of a forward program save
/// nothing, and their names begin with `forward.`. Of rank programs the launches say what a schedule's actions say:
/// these bodies are then beside those that are launched.
mlir::LogicalResult deriveTasks(mlir::ModuleOp module, pipeline::ProgramOp program);

// --- Inside derive-tasks -------------------------------------------------------------------------------------------

/// One weight of a piece.
struct PieceWeight {
  pipeline::WeightAttr attr;
  int64_t primary = -1; ///< for a tied weight: the number of the piece that owns it
  bool isTied() const { return primary >= 0; }
  bool isFrozen() const { return attr.getFrozen(); }
};

/// One part of the model inside a piece: its function, and which weights of the piece are its weight arguments.
struct PartUse {
  mlir::func::FuncOp function;
  llvm::SmallVector<unsigned> weights;
  int64_t layer;
  bool again = true; ///< R, where there is one, runs it again
};

/// A piece that must give this one's owner its gradients and take new values of shared weights.
struct Sharer {
  llvm::SmallVector<unsigned> weights; ///< the owner's weights, in the sharer's order
};

/// The tokens of a sequence that a unit works on: all of them, or those of one of several slices.
struct SequenceSlice {
  int64_t number = -1, count = 0;    ///< -1: the whole sequence
  llvm::SmallVector<int64_t> starts; ///< of all slices; at last the end of the sequence
  int64_t devices = 1;               ///< of the context axis, over which each slice is cut by itself

  bool isWhole() const { return number < 0; }
  bool isLast() const { return number + 1 == count; }
  int64_t start() const { return isWhole() ? 0 : starts[number]; }
  int64_t length(int64_t slice) const { return starts[slice + 1] - starts[slice]; }
  /// The type of an activation, of tokens or targets in slice `of`: [batch, length, ..].
  mlir::Type typeIn(mlir::Type whole, int64_t of) const;
  /// The type of a run of the rows of all sequences, shortened like the slice.
  mlir::Type rowsIn(mlir::Type whole) const;
  /// The positions where these slices begin: `kv_offsets` of an attention over their keys.
  mlir::DenseI64ArrayAttr startsOf(llvm::ArrayRef<int64_t> chunks, mlir::MLIRContext *context) const;
};

/// A way in which units of a piece are cut at their attentions.
struct CutRequest {
  pipeline::Phase phase;
  int64_t slice;
  CutPlan plan;
};

/// The input from which a body class is derived.
struct PieceModel {
  pipeline::ProgramOp program;
  mlir::StringAttr name; ///< of the class of pieces that share the bodies: that of the first of them
  mlir::Location loc;
  llvm::SmallVector<PartUse> parts;
  llvm::SmallVector<PieceWeight> weights; ///< those that are frozen last
  llvm::SmallVector<Sharer> sharers;
  unsigned phases = 0;                          ///< bit p set: units of phase p are in the program
  double lossScale = 1;                         ///< 1 / tokens of the step, for a piece with the loss
  int64_t chunks = 1;                           ///< in which an MLP is computed
  std::optional<mlir::Location> chunksLoc = {}; ///< where they are given
  bool readsNorm = false;                       ///< updates read the norm of all gradients
  bool endsBackward = false;                    ///< nothing before it has a backward that would read its dact
  bool rounds = false; ///< gradients are kept and travel in the weights' type, not in that of sums
  /// The type of the gradient of a weight of this type.
  mlir::RankedTensorType gradType(mlir::RankedTensorType weight) const;
  std::vector<CutRequest> aheads = {}; ///< keys are attended ahead of these units, help by help
  std::vector<CutRequest> cuts = {};   ///< if there are any, stashes and keys are kept by attention
  int64_t shards = 0;                  ///< over which updates are cut; 0: they are whole
  int64_t replicas = 0;                ///< of the mesh, over which updates are cut; 0: each makes all of them
  bool sumsShards = false;             ///< each of them has the sum of its shard of the gradient alone
  bool cutsWeights = false;            ///< they are whole on every rank, which cuts its shard out of them
  bool isForward = false;              ///< it is of a forward program: nothing trains, and F makes the loss
  /// Of k and v among the values that come in, if the piece before makes the keys of slices; and among those that go
  /// out, if this one makes them for the piece after (KeysBefore).
  llvm::SmallVector<unsigned, 2> keysIn = {}, keysOut = {};
  /// A value that skips parts, which comes in or goes out.
  struct Skip {
    mlir::StringAttr name;
    unsigned gradients; ///< how many come back for it, or whether one goes back
  };
  llvm::SmallVector<Skip, 1> skipsIn = {}, skipsOut = {};
  /// The number of its weights that are trained.
  size_t trained() const {
    auto isTrained = [](const PieceWeight &weight) { return !weight.isFrozen(); };
    return isForward ? 0 : llvm::count_if(weights, isTrained);
  }
  bool runs(pipeline::Phase phase) const { return phases & 1u << static_cast<unsigned>(phase); }
  static void add(std::vector<CutRequest> &cuts, const CutRequest &cut);
};

/// Tensors that travel as one payload.
struct Group {
  pipeline::GroupName name = pipeline::GroupKind::act;
  llvm::SmallVector<mlir::Value> values;
  bool tied = false;   ///< of a result: it takes over the memory of the input group of its name
  bool always = false; ///< of an input: an operand even where the body does not read it
};

/// Makes the two ops again of which fuse-epilogues has made one.
void splitEpilogues(mlir::func::FuncOp body);

/// A function under construction; several bodies take a share of its ops.
class Scratch {
public:
  Scratch(mlir::ModuleOp module, mlir::Location loc);
  ~Scratch() { function.erase(); }
  mlir::Block &block() { return function.front(); }
  llvm::SmallVector<mlir::Value> addArguments(llvm::ArrayRef<mlir::Type> types);

  mlir::func::FuncOp function;
};

/// Writes the function of this identity: the ops of the values' block that lead from the inputs to the results,
/// nothing else. Leaves out input groups that nothing reads. Sets the attributes by which later passes know the
/// function and its groups.
mlir::LogicalResult writeBody(mlir::ModuleOp module, mlir::Location loc, pipeline::BodyAttr identity,
                              llvm::ArrayRef<Group> inputs, llvm::ArrayRef<Group> results);

/// A tensor of this shape in the type of sums.
mlir::RankedTensorType sumsOf(mlir::Type tensor);

/// A gradient in the type of sums, in memory of its own if it is kept in another; and the sum in the type it is kept
/// in.
mlir::Value widenGrad(mlir::OpBuilder &builder, mlir::Location loc, mlir::Value grad);
mlir::Value roundGrad(mlir::OpBuilder &builder, mlir::Location loc, mlir::Value sum, mlir::Type kept);

/// Whether the part has an MLP that can be computed in chunks.
bool hasMlp(mlir::func::FuncOp part);

/// F, B, I, W, R of a piece on a slice, as far as the program runs them.
mlir::LogicalResult derivePhases(mlir::ModuleOp module, const PieceModel &piece, const SequenceSlice &slice);

/// U, norm, zero and what moves the gradients and values of tied weights.
mlir::LogicalResult deriveUpdates(mlir::ModuleOp module, const PieceModel &piece);

} // namespace pp

#endif // PP_PASSES_DERIVETASKS_H
