// The `pipeline` dialect in C++: what runs where, when, and what travels.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_PIPELINE_H
#define PP_DIALECT_PIPELINE_H

#include "dialect/nn/Nn.h"
#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include <optional>

namespace pp::pipeline {

/// The levels of a program, in the order in which it goes through them.
enum class Level { actions, step, ranks };

/// Mark the ops of one level; pieces and limits belong to every level.
template <typename ConcreteOp> class OfActions : public mlir::OpTrait::TraitBase<ConcreteOp, OfActions> {};
template <typename ConcreteOp> class OfStep : public mlir::OpTrait::TraitBase<ConcreteOp, OfStep> {};
template <typename ConcreteOp> class OfRanks : public mlir::OpTrait::TraitBase<ConcreteOp, OfRanks> {};

} // namespace pp::pipeline

#include "dialect/PipelineDialect.h.inc"
#include "dialect/PipelineEnums.h.inc"

namespace pp::pipeline {

using nn::Axis, nn::stringifyAxis, nn::symbolizeAxis;

/// Which group of a task function's tensors: GroupAttr has the meaning of the numbers.
struct GroupName {
  GroupName(GroupKind kind, int64_t number = -1, int64_t attention = -1)
      : kind(kind), number(number), attention(attention) {}
  GroupKind kind;
  int64_t number, attention;

  friend bool operator==(const GroupName &, const GroupName &) = default;
  /// The data that the trainer reads from files for each microbatch; none for other kinds.
  std::optional<BindingKind> data() const;
  /// The name for diagnostics: `kv.2.1`.
  std::string str() const;
};

} // namespace pp::pipeline

#define GET_ATTRDEF_CLASSES
#include "dialect/PipelineAttrs.h.inc"
#define GET_TYPEDEF_CLASSES
#include "dialect/PipelineTypes.h.inc"
#define GET_OP_CLASSES
#include "dialect/PipelineOps.h.inc"

namespace pp::pipeline {

/// The level that an op of a program's body belongs to; none for pieces and limits.
std::optional<Level> levelOf(mlir::Operation *op);
/// `actions`, `the step` or `programs of ranks`.
llvm::StringRef describe(Level level);

/// The identity of a derived function, which says what it computes: a `#pipeline.body`.
inline constexpr llvm::StringLiteral kBodyAttr = "pipeline.body";
/// Attributes of a task function: its tensors grouped into payloads, `#pipeline.groups`; for each group of results the
/// group of inputs whose slot it takes over, or -1; floating-point operations; bytes of scratch memory.
inline constexpr llvm::StringLiteral kInputsAttr = "pipeline.inputs";
inline constexpr llvm::StringLiteral kResultsAttr = "pipeline.results";
inline constexpr llvm::StringLiteral kTiesAttr = "pipeline.ties";
inline constexpr llvm::StringLiteral kFlopsAttr = "pipeline.flops";
inline constexpr llvm::StringLiteral kScratchAttr = "pipeline.scratch_bytes";
/// Which tensors of its results lie where tensors of its inputs lay, as LaunchOp has it, by pointers of the signature.
inline constexpr llvm::StringLiteral kHandedAttr = "pipeline.handed";
/// On an op of a task function: a pointer of the signature and a byte offset for each result; pointer -1 is scratch.
inline constexpr llvm::StringLiteral kBuffersAttr = "pipeline.buffers";
/// On an op of a task function: the op runs while the last exchange before it is still under way. An op without this
/// attribute waits for that message first.
inline constexpr llvm::StringLiteral kOverlapsAttr = "pipeline.overlaps";
/// On a program whose units the planner has put in order: its tasks may be halves of the schedule's tasks.
inline constexpr llvm::StringLiteral kPlannedAttr = "pipeline.planned";

/// The place of a result of an op of a task function, by the op's kBuffersAttr.
std::pair<int64_t, int64_t> bufferOf(mlir::OpResult result);
/// The value of kFlopsAttr, or 0 if it is absent.
double flopsOf(mlir::func::FuncOp body);
/// The value whose memory this one took over: an input of its task; null: it has memory of its own.
mlir::Value tiedInput(mlir::Value value);

/// Every tensor of a payload begins at a multiple of this many bytes.
inline constexpr int64_t kAlignment = 64;

/// The begins of a payload's tensors and, last, the bytes of the whole; all are multiples of kAlignment.
llvm::SmallVector<int64_t> payloadOffsets(mlir::TupleType payload);

/// Bytes of what a slot holds, with the gaps between its tensors.
int64_t slotBytes(mlir::Value slot);

/// A run of elements of one tensor of a payload.
struct ElementRange {
  unsigned tensor;
  int64_t begin, count;
};

/// A payload in shards: the tensors of each, and where the bytes of the whole are cut: of n shards the k-th has bytes
/// bounds[k] to bounds[k + 1], then bounds[n + k] to bounds[n + k + 1], and so on.
struct PayloadCut {
  llvm::SmallVector<llvm::SmallVector<ElementRange>> shards;
  llvm::SmallVector<int64_t> bounds;
};

/// Cuts a payload in shards of equal length, but for multiples of 32 elements: so a cut is at the same elements for
/// weights in 16 bits and for their sums in 32, and each shard's tensors lie in the whole as in a payload of their own.
/// Neighbours of one number in `runs` are cut as one run of elements, so that the k-th shard of a run is the same in
/// every payload that has it. A tensor beyond the end of `runs` has number 0.
PayloadCut cutPayload(mlir::TypeRange tensors, int64_t shards, llvm::ArrayRef<int64_t> runs = {});
/// Tensors as one run of elements, each from a multiple of 32 on, in shards of one length, a multiple of 32: so what a
/// device has differs from what others have by numbers alone. The last shards may go beyond the end.
struct FlatCut {
  int64_t shard = 0;                 ///< elements of a shard
  llvm::SmallVector<int64_t> begins; ///< in elements, where each tensor begins
  llvm::SmallVector<int64_t> bounds; ///< in bytes of the payload: device k has bounds[k] to bounds[k + 1]
};
FlatCut cutFlat(mlir::TypeRange tensors, int64_t devices);
/// The number of a weight's run: that of all weights of the piece that are trained; that of those that are not; or,
/// where other pieces use this weight too, one of its own.
int64_t runOf(int64_t weight, bool shared, bool frozen);
/// The payload of one shard: a tensor for each of its ranges.
mlir::TupleType shardPayload(mlir::TupleType whole, llvm::ArrayRef<ElementRange> ranges);

/// Bytes of one tensor, not rounded.
int64_t tensorBytes(mlir::RankedTensorType type);

/// `loc` with the values of the loops around it, as `with r = 1, i = 3` (frontend writes, diagnostics read).
mlir::Location withLoopValues(mlir::Location loc, llvm::ArrayRef<std::pair<llvm::StringRef, int64_t>> values);
/// The text of what withLoopValues wrote; empty if nothing.
std::string loopValues(mlir::Location loc);
/// Where it stands, as reports of a run say it: `1f1b.pipe:8:22`, without the folder, so that the same source gives the
/// same program everywhere; in a function with the first of the calls that lead there, as
/// `task_list.pipe:15:20 called at mine.pipe:6:5`. Empty: not known.
std::string lineOf(mlir::Location loc);

} // namespace pp::pipeline

#endif // PP_DIALECT_PIPELINE_H
