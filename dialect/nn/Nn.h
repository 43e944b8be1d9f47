// The `nn` dialect in C++: what a task computes, how it is differentiated, and which kernel computes it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_DIALECT_NN_H
#define PP_DIALECT_NN_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace pp::nn {

/// Attributes of a part of a model and of its arguments: see the dialect's description.
inline constexpr llvm::StringLiteral kWeightAttr = "nn.weight";
inline constexpr llvm::StringLiteral kAdapterAttr = "nn.adapter";
inline constexpr llvm::StringLiteral kDataAttr = "nn.data";
inline constexpr llvm::StringLiteral kAheadAttr = "nn.ahead";
inline constexpr llvm::StringLiteral kColumnAttr = "nn.column";
inline constexpr llvm::StringLiteral kRowsAttr = "nn.rows";
inline constexpr llvm::StringLiteral kStatsAttr = "nn.stats";
inline constexpr llvm::StringLiteral kFromAttr = "nn.from";
inline constexpr llvm::StringLiteral kSkipsAttr = "nn.skips";
inline constexpr llvm::StringLiteral kPerLayerAttr = "nn.per_layer";
inline constexpr llvm::StringLiteral kWholeAttr = "nn.whole";
inline constexpr llvm::StringLiteral kAllExpertsAttr = "nn.all_experts";
inline constexpr llvm::StringLiteral kAgainAttr = "nn.again";
inline constexpr llvm::StringLiteral kAttentionAttr = "nn.attention";
inline constexpr llvm::StringLiteral kPartAttr = "nn.part";
inline constexpr llvm::StringLiteral kLayersAttr = "nn.layers";

/// Result number `result` and operand number `operand` are one buffer.
struct Tie {
  unsigned result, operand;
};

/// `count` pointers of a kernel call from number `first` on.
struct Run {
  unsigned first, count;
};

/// Losses that count their targets have these at most so many places further on than the next token (runtime/Rank.h).
inline constexpr int64_t kMostAhead = 3;

/// The numbers of divisors of means over tokens, beside those of targets so many places on (runtime/Rank.h).
inline constexpr int64_t kMostColumns = 16, kDivisorOfColumn = kMostAhead + 1,
                         kDivisorOfDocuments = kDivisorOfColumn + kMostColumns,
                         kDivisorOfGroups = kDivisorOfDocuments + 1;

/// The type of sums over elements of this type: f64 for f64, else f32.
mlir::Type sumType(mlir::Type element);

/// The state of a backward under construction: gradients of values so far, and where to put the next op.
class Gradients {
public:
  /// `lossScale` multiplies the sum over one microbatch's tokens: 1 / tokens of the whole step.
  Gradients(mlir::OpBuilder builder, double lossScale) : builder(builder), lossScale(lossScale) {}
  /// The gradient of `value` as far as it is summed; null: nothing yet.
  mlir::Value get(mlir::Value value) const { return sums.lookup(value); }
  /// `gradient` is the whole sum, what was there included (made by an op with `acc`).
  void set(mlir::Value value, mlir::Value gradient) { sums[value] = gradient; }
  /// One more term of the sum.
  void add(mlir::Location loc, mlir::Value value, mlir::Value gradient);
  /// One more term of the sum of a weight, in the type of sums, made elsewhere (a hand).
  void addToWeight(mlir::Location loc, mlir::Value weight, mlir::Value gradient);

  mlir::OpBuilder builder;
  const double lossScale;
  /// The loss, once a cross-entropy was differentiated.
  mlir::Value loss, furtherLoss;
  llvm::SmallVector<mlir::Value> reports; ///< values that are only told, by number
  /// Their gradients are sums over units, which W goes on with; and what has none.
  llvm::DenseSet<mlir::Value> weights, data;

private:
  llvm::DenseMap<mlir::Value, mlir::Value> sums;
};

/// Marks the ops that W runs: they make gradients of weights and read no weight.
template <typename ConcreteOp> class WeightGradient : public mlir::OpTrait::TraitBase<ConcreteOp, WeightGradient> {};

/// Marks the ops whose first result may be rebuilt elementwise.
template <typename ConcreteOp> class Cheap : public mlir::OpTrait::TraitBase<ConcreteOp, Cheap> {};

/// Marks the ops that state their factors (dialect/Factors.h).
template <typename ConcreteOp> class Stated : public mlir::OpTrait::TraitBase<ConcreteOp, Stated> {};
/// Whether the columns of `whole` are runs as wide as `run`, of which one begins at `start`.
bool areEqualRuns(mlir::Value whole, mlir::Value run, uint64_t start);

// Defaults of the Kernel interface.
mlir::Type firstElementType(mlir::Operation *op);
llvm::SmallVector<mlir::Value> operandsThenResults(mlir::Operation *op);

} // namespace pp::nn

#include "dialect/NnDialect.h.inc"
#include "dialect/NnEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialect/NnAttrs.h.inc"

namespace pp::nn {

/// A size of a kernel that differs from device to device along these axes: each has `step` more than the one before it;
/// with `once` the first of each `copies` neighbours (0: of all) has the size, and the others 0. Where there are
/// `ofShards` each of the devices that sum a gradient has its own of these instead of the size.
struct Varying {
  unsigned dim;
  AxesAttr axes; ///< null: only among those
  int64_t step = 0;
  bool once = false;
  int64_t copies = 0;
  llvm::SmallVector<int64_t> ofShards = {};
};

} // namespace pp::nn

#include "dialect/NnInterfaces.h.inc"
#define GET_OP_CLASSES
#include "dialect/NnOps.h.inc"

namespace pp::nn {

/// Which of the model's dropouts an op has: until the layer is known, `sites` is how many the model's text has, then 0.
struct DropoutSite {
  int64_t site, sites;
};
std::optional<DropoutSite> dropoutSiteOf(mlir::Operation *op);
/// Sets the site of an op that has dropout.
void setDropoutSite(mlir::Operation *op, DropoutSite site);

/// The ops that read the value's memory, through views too; a view is a reader itself.
llvm::SmallVector<mlir::Operation *> readersOf(mlir::Value value);

/// Whether the op has an attribute of this name, set or not.
bool takes(mlir::Operation *op, llvm::StringRef attribute);

/// The name in checkpoints of a weight that this part of a model declares, in this layer; -1: the part exists once.
std::string weightName(WeightAttr declared, mlir::Operation *part, int64_t layer);

/// Whether the name in checkpoints has a number of a layer: `{l}`, `{k}`, or a multiple of the latter, as in `{2k+1}`.
bool isNumbered(llvm::StringRef name);

/// x in another buffer; that of `into`, whose content is lost, if given.
mlir::Value copyOf(mlir::OpBuilder &builder, mlir::Location loc, mlir::Value x, mlir::Value into = {});
mlir::Value zeroOf(mlir::OpBuilder &builder, mlir::Location loc, mlir::Type type);
/// sum + x, in the memory and type of `sum`; of a shard with `flat` what a device has of x.
mlir::Value addedTo(mlir::OpBuilder &builder, mlir::Location loc, mlir::Value sum, mlir::Value x,
                    mlir::DenseI64ArrayAttr flat = {});
/// x times w, transposed or not, plus a bias if there is one.
mlir::Value productOf(mlir::OpBuilder &builder, mlir::Location loc, mlir::Value x, mlir::Value w, mlir::Value bias = {},
                      bool transposed = false);

/// Makes `nn.<name>` with inferred result types; a wrong operand or attribute is an error at `loc`.
mlir::FailureOr<mlir::Operation *> createOp(mlir::OpBuilder &builder, mlir::Location loc, llvm::StringRef name,
                                            mlir::ValueRange operands, llvm::ArrayRef<mlir::NamedAttribute> attributes);
/// Makes the op again, its regions included, with other operands and attributes.
mlir::FailureOr<mlir::Operation *> createAgain(mlir::OpBuilder &builder, mlir::Operation *op, mlir::ValueRange operands,
                                               llvm::ArrayRef<mlir::NamedAttribute> attributes);

} // namespace pp::nn

#endif // PP_DIALECT_NN_H
